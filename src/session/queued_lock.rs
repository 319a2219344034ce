//! An adopted command inside the client's own transaction.

use smallvec::SmallVec;

use crate::adopt::task::AdoptTask;

/// An adopted command whose stand-in is queued on the data node.
pub(super) struct QueuedLock {
    pub(super) task: AdoptTask,
    /// The database that was selected.
    pub(super) database: u64,
    /// The places of the replies to its stand-ins in EXEC's reply; the first is the command's.
    pub(super) places: SmallVec<[usize; 1]>,
}
