//! What the data node thinks of this connection, learned from its replies.

use crate::resp::name::Channels;

/// State of the upstream connection as of the last reply that was read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct State {
    /// HELLO 3 was answered.
    pub resp3: bool,
    /// Between MULTI and EXEC or DISCARD.
    pub multi: bool,
    /// After WATCH, until EXEC, DISCARD or UNWATCH.
    pub watching: bool,
    /// After MONITOR.
    pub monitor: bool,
    /// After QUIT: the data node carries nothing out any more and closes.
    pub quit: bool,
    /// Something was answered that only a client gets that has said who it is, or need not.
    pub known: bool,
    pub(super) channels: i64,
    pub(super) patterns: i64,
    pub(super) shards: i64,
}

impl State {
    /// In RESP2 a connection with subscriptions may send few commands, and ours
    /// are not among them.
    pub fn is_resp2_subscriber(&self) -> bool {
        !self.resp3 && (self.channels > 0 || self.patterns > 0 || self.shards > 0)
    }

    /// Whether every frame that is not a push answers a command.
    pub fn is_plain(&self) -> bool {
        !self.monitor && !self.is_resp2_subscriber()
    }

    /// Subscriptions of one kind.
    pub fn subscriptions(&self, kind: Channels) -> i64 {
        match kind {
            Channels::Plain => self.channels,
            Channels::Pattern => self.patterns,
            Channels::Shard => self.shards,
        }
    }

    /// Takes in the count at the end of a confirmation: Redis counts channels
    /// and patterns together, sharded channels apart.
    pub fn set_subscriptions(&mut self, kind: Channels, count: i64) {
        match kind {
            Channels::Plain => self.channels = (count - self.patterns).max(0),
            Channels::Pattern => self.patterns = (count - self.channels).max(0),
            Channels::Shard => self.shards = count.max(0),
        }
    }
}
