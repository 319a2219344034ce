//! The state of the upstream connection on the data node: learned from its replies, and from what was sent where no
//! reply tells.

use super::{
    guarded::armed::Armed, jobs::authorize::Permissions, queued_lock::QueuedLock, rare::Rare,
};
use crate::resp::name::{Channels, ReplyMode};

/// Known state of the upstream connection.
pub(super) struct Conn {
    pub(super) state: State,
    /// The mode that CLIENT REPLY set last.
    pub(super) reply_mode: ReplyMode,
    /// ASKING or CLIENT CACHING has set a flag for the next command.
    pub(super) next_only: bool,
    /// With `next_only`: it was ASKING.
    pub(super) asking: bool,
    /// MULTI was forwarded while replies were off: no reply tells whether it worked.
    pub(super) blind_multi: bool,
    /// WATCH was forwarded while replies were off.
    pub(super) blind_watch: bool,
    /// AUTH or HELLO was forwarded: if MULTI has queued it, EXEC may make the client another user.
    pub(super) auth_queued: bool,
    /// The selected database. `None` after SELECT or RESET, until CLIENT INFO has told it.
    pub(super) database: Option<u64>,
    /// The data node's error to a client that it has not let in, for the command that is scanned next.
    pub(super) refusal: Vec<u8>,
    /// The client has sent SYNC, PSYNC or REPLCONF, as replicas do.
    pub(super) is_replica: bool,
    /// The fences that are watched for the client's transaction.
    pub(super) armed: Option<Box<Armed>>,
    /// WATCH of an adopted lock was refused: the next transaction must not go on as if it were watched.
    pub(super) lost_watch: bool,
    /// The adopted commands in the client's transaction.
    pub(super) locks: Vec<QueuedLock>,
    /// What the client may lock. Forgotten when it may have become another user.
    pub(super) permissions: Rare<Permissions>,
}

impl Default for Conn {
    fn default() -> Conn {
        Conn {
            state: State::default(),
            reply_mode: ReplyMode::On,
            next_only: false,
            asking: false,
            blind_multi: false,
            blind_watch: false,
            auth_queued: false,
            database: Some(0),
            refusal: Vec::new(),
            is_replica: false,
            armed: None,
            lost_watch: false,
            locks: Vec::new(),
            permissions: Rare::default(),
        }
    }
}

impl Conn {
    /// Whether ASKING has set a flag for the next command.
    pub(super) fn is_asking(&self) -> bool {
        self.next_only && self.asking
    }

    /// Whether the data node queues commands, as far as can be known.
    pub(super) fn in_multi(&self) -> bool {
        self.state.multi || self.blind_multi
    }

    /// Whether the data node would refuse or queue an ordinary command now. Then a command of ours
    /// is not carried out either.
    pub(super) fn refuses_ours(&self) -> bool {
        self.in_multi() || self.state.monitor || self.state.quit || self.state.is_resp2_subscriber()
    }

    /// Notes that the client's transaction has ended, or was given up.
    pub(super) fn transaction_ended(&mut self) {
        self.armed = None;
        self.locks = Vec::new();
        self.lost_watch = false;
        self.blind_multi = false;
        if std::mem::take(&mut self.auth_queued) {
            self.permissions = Rare::default();
        }
    }
}

/// State of the upstream connection after the last reply that was read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct State {
    /// HELLO 3 was answered.
    pub(super) resp3: bool,
    /// Between MULTI and EXEC or DISCARD.
    pub(super) multi: bool,
    /// After WATCH, until EXEC, DISCARD or UNWATCH.
    pub(super) watching: bool,
    /// After MONITOR.
    pub(super) monitor: bool,
    /// After QUIT: the data node carries nothing out any more and closes.
    pub(super) quit: bool,
    /// A reply came that Redis gives only to a client that has authenticated or need not.
    pub(super) known: bool,
    pub(super) channels: i64,
    pub(super) patterns: i64,
    pub(super) shards: i64,
}

impl State {
    /// Whether this is a RESP2 connection with subscriptions. Such a connection may send few
    /// commands, and ours are not among them.
    pub(super) fn is_resp2_subscriber(&self) -> bool {
        !self.resp3 && (self.channels > 0 || self.patterns > 0 || self.shards > 0)
    }

    /// Whether every frame that is not a push answers a command.
    pub(super) fn is_plain(&self) -> bool {
        !self.monitor && !self.is_resp2_subscriber()
    }

    /// Number of subscriptions of one kind.
    pub(super) fn subscriptions(&self, kind: Channels) -> i64 {
        match kind {
            Channels::Plain => self.channels,
            Channels::Pattern => self.patterns,
            Channels::Shard => self.shards,
        }
    }

    /// Takes in the count at the end of a confirmation: Redis counts channels
    /// and patterns together, sharded channels apart.
    pub(super) fn set_subscriptions(&mut self, kind: Channels, count: i64) {
        match kind {
            Channels::Plain => self.channels = (count - self.patterns).max(0),
            Channels::Pattern => self.patterns = (count - self.channels).max(0),
            Channels::Shard => self.shards = count.max(0),
        }
    }
}
