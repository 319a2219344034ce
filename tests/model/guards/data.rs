//! The data node: the lock's fences that it knows, and the writes that landed.

use super::{Fault, Setup};

/// A request to the data node. Each is carried out at one instant; other connections' requests may come between two
/// of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Remember a fence: `guard/announce.lua`.
    Raise { fence: u8 },
    /// Wait for replicas, for some time: WAIT behind `Raise`, in the same packet.
    Wait,
    /// Compare and write: `guard/write.lua`.
    Script(Write),
    /// Watch the fence, and nothing that was watched before.
    Watch,
    /// Read the fence.
    Get,
    /// Write, unless a watched key was written: MULTI, the write, EXEC.
    Exec(Write),
}

/// A guarded write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Write {
    /// The fence of the claim under which it is made.
    pub(crate) fence: u8,
    /// The number of writes that its client had seen when it computed this one.
    pub(crate) based_on: u8,
}

/// An answer of the data node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    /// The largest fence that the data node knows; 0: none.
    Fence(u8),
    /// The fence is watched.
    Watched,
    /// The write has landed.
    Done,
    /// The script has seen another fence.
    Refused,
    /// EXEC has found a watched key written.
    Dropped,
}

/// Whether a connection's EXEC will be carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Watch {
    /// Nothing is watched.
    #[default]
    Nothing,
    /// The fence was not written since.
    Unwritten,
    /// The fence was written since.
    Written,
}

/// The data node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Data {
    /// The lock's stored fence; 0 if there is none.
    pub(crate) stored: u8,
    /// The largest fence that was stored, or under which a write landed, since the data node last forgot.
    pub(crate) seen: u8,
    /// The fences of all writes that landed, in order.
    pub(crate) landed: Vec<u8>,
    /// The number of writes that landed before it last forgot.
    pub(crate) forgotten: u8,
    /// The largest fence of the later writes that were acknowledged.
    pub(crate) acknowledged: u8,
    /// The replication offset: how often the fence was written, and the data node failed over.
    pub(crate) offset: u8,
    /// What replicas have: an offset, and the fence stored at that offset.
    pub(crate) replica: (u8, u8),
}

/// The outcome of a request.
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    /// Whether the fence was written, which concerns connections that watch it.
    pub(crate) writes_fence: bool,
    /// The client's write landed.
    pub(crate) lands: Option<Write>,
}

impl Data {
    /// Returns the number of writes that have landed.
    pub(crate) fn version(&self) -> u8 {
        self.landed.len() as u8
    }

    /// Carries out a request of a connection with this watch.
    pub(crate) fn carry_out(
        &mut self,
        request: Request,
        watch: &mut Watch,
        setup: &Setup,
    ) -> Outcome {
        let mut outcome = Outcome { reply: Reply::Watched, writes_fence: false, lands: None };
        match request {
            Request::Raise { fence } => {
                // An equal one is written again.
                if self.stored <= fence || setup.has(Fault::RaiseLowers) {
                    self.stored = fence;
                    self.seen = self.seen.max(fence);
                    self.offset += u8::from(setup.replicas);
                    outcome.writes_fence = true;
                }
                outcome.reply = Reply::Fence(self.stored);
            }
            // The session handles it.
            Request::Wait => {}
            Request::Get => outcome.reply = Reply::Fence(self.stored),
            Request::Watch => *watch = Watch::Unwritten,
            Request::Script(write) => {
                let is_own = self.stored == write.fence || setup.has(Fault::NoCompareInScript);
                outcome.lands = (is_own || setup.has(Fault::CompareBehindWrite)).then_some(write);
                outcome.reply = if is_own { Reply::Done } else { Reply::Refused };
            }
            Request::Exec(write) => {
                let was_written = std::mem::take(watch) == Watch::Written;
                outcome.lands = (!was_written).then_some(write);
                outcome.reply = if was_written { Reply::Dropped } else { Reply::Done };
            }
        }
        if let Some(write) = outcome.lands {
            self.landed.push(write.fence);
            self.seen = self.seen.max(write.fence);
        }
        outcome
    }

    /// Notes that a client is told of the write that landed at this place.
    pub(crate) fn acknowledge(&mut self, fence: u8, landed_at: u8) {
        if landed_at > self.forgotten {
            self.acknowledged = self.acknowledged.max(fence);
        }
    }

    /// Forgets all that it has seen but this fence.
    pub(crate) fn forget(&mut self, to: u8) {
        (self.stored, self.seen, self.acknowledged) = (to, to, 0);
        self.forgotten = self.version();
    }

    /// Lets a replica take its place, or the data node become a replica and then the master again.
    pub(crate) fn fail_over(&mut self) {
        self.forget(self.replica.1);
        self.offset += 1;
        self.replicate();
    }

    /// Brings the replicas up to date.
    pub(crate) fn replicate(&mut self) {
        self.replica = (self.offset, self.stored);
    }
}
