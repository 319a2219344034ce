//! How many files this process may have open, and how many clients that allows.

use std::io;

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tracing::warn;

/// Each client takes its own connection and one to the data node.
const EACH: u64 = 2;
/// Listeners, threads' epolls, /metrics, looking up names, and a little more.
const OTHERS: u64 = 64;
/// Connections to a lock node at the same time, at the most.
const EACH_NODE: u64 = 4;

/// Whether `error` says that there are no more, for this process or at all.
pub(crate) fn are_used_up(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Makes room for `maxclients`, as far as the system lets us (`ulimit -Hn`), and
/// gives how many there is room for. Redis does the same with its `maxclients`:
/// who is told that the proxy is full knows more than who is not accepted.
pub(crate) fn make_room(maxclients: usize, nodes: usize) -> usize {
    let others = OTHERS.saturating_add(EACH_NODE.saturating_mul(nodes as u64));
    let wanted = EACH.saturating_mul(maxclients as u64).saturating_add(others);
    let limit = getrlimit(Resource::Nofile);
    let mut allowed = limit.current.unwrap_or(u64::MAX);
    if allowed < wanted {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let raised = Rlimit { current: Some(current), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            allowed = current;
        }
    }
    if allowed >= wanted {
        return maxclients;
    }
    let room = usize::try_from(allowed.saturating_sub(others) / EACH).unwrap_or(maxclients).max(1);
    warn!(
        maxclients,
        lowered_to = room,
        open_files = allowed,
        needed = wanted,
        "too few file descriptors (ulimit -n) for maxclients"
    );
    room
}
