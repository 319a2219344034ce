//! The parts of a session that a job may use, and the steps that many jobs share.

use std::{net::SocketAddr, sync::Arc, task::Waker, time::Duration};

use super::{
    claims::Tokens,
    conn::Conn,
    guarded::limit::ShortWay,
    lock_transaction::LockTransaction,
    loss_news::Losing,
    owed::{Entry, Owed},
    planted::{self, PlantedFault},
    rare::Rare,
    shared::Shared,
    sights::Sights,
};
use crate::{
    card::OwnCard,
    clock::Instant,
    cluster::slot::slot,
    config::Config,
    data::FrontView,
    guard::{
        Room, UNCOUNTED,
        fences::{FencePlace, FencedLock},
        history::DataHistory,
        replicas::Replicas,
    },
    key::{Key, Token},
    lock::{Grant, Keep},
    net::Outbox,
    resp::{encode, expected::Expected, name::ReplyMode},
};

/// The parts of a session that a job may use.
pub(super) struct Desk {
    pub(super) shared: Arc<Shared>,
    /// The configuration at the time when the client connected.
    pub(super) config: Arc<Config>,
    pub(super) conn: Conn,
    /// Who the client is, as operators are told.
    pub(super) card: OwnCard,
    pub(super) tokens: Rare<Tokens>,
    pub(super) losing: Losing,
    pub(super) owed: Owed,
    /// Client bytes that may not be sent yet: the beginning of a command whose name is not known,
    /// or all that came while a command waits, its own bytes first.
    pub(super) unsent: Vec<u8>,
    pub(super) to_data: Outbox,
    pub(super) short_way: ShortWay,
    /// The data node's history, which tells whether it may have forgotten fences.
    pub(super) history: Option<Arc<DataHistory>>,
    /// The number of changes of that history at the last look.
    pub(super) history_changes: u64,
    /// The client's transaction about an adopted lock.
    pub(super) transaction: Option<Box<LockTransaction>>,
    pub(super) sights: Rare<Sights>,
    /// How the client is shown a cluster's nodes; none: no reply about them is changed.
    pub(super) view: Option<Arc<FrontView>>,
    /// Room of a large command that guards look at, from its first bytes until it has been sent on.
    pub(super) room: Option<Room>,
    /// Wakes the session's task.
    pub(super) waker: Waker,
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>) -> Desk {
        let config = shared.config.load_full();
        let mut desk = Desk::with(shared, config, OwnCard::new(None));
        desk.come_through(0);
        desk
    }

    /// Makes the desk of a client with this card, without the data node's history.
    pub(super) fn with(shared: Arc<Shared>, config: Arc<Config>, card: OwnCard) -> Desk {
        Desk {
            history_changes: 0,
            history: None,
            conn: Conn::default(),
            card,
            config,
            shared,
            tokens: Rare::default(),
            losing: Losing::default(),
            owed: Owed::default(),
            unsent: Vec::new(),
            to_data: Outbox::default(),
            short_way: ShortWay::default(),
            transaction: None,
            sights: Rare::default(),
            view: None,
            room: None,
            waker: Waker::noop().clone(),
        }
    }

    /// Notes the client's address.
    pub(super) fn come_from(&mut self, address: Option<SocketAddr>) {
        self.card = OwnCard::new(address);
    }

    /// Whether the client is being told that it has lost this lock, and has nothing of it by that token since.
    pub(super) fn was_lost(&self, key: &Key, token: Option<&[u8]>) -> bool {
        self.losing.was_lost(key, token)
            && !self.tokens.has_of(&key.of_lock(), token, Instant::now())
    }

    /// Notes that the data node is the one behind this front of a cluster.
    pub(super) fn come_through(&mut self, front: usize) {
        self.history = self.shared.guards.as_ref().map(|guards| guards.history(front).clone());
        self.history_changes = self.history.as_ref().map_or(0, |history| history.changes());
    }

    /// Sends a command of the proxy's own, whose reply the client does not see. A reply that is neither an
    /// error nor `expected` voids the question: nothing that rests on it is done.
    pub(super) fn ask(&mut self, expected: Expected, command: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        command(&mut bytes);
        self.to_data.push(&bytes);
        // Nothing else is owed, so there is room.
        let _ = self.owed.push(Entry::Ours(expected));
    }

    /// Turns replies on if the client has turned them off, so that the next question is answered.
    /// Returns whether they were off: [`Desk::hush_again`] turns them off again.
    pub(super) fn speak_up(&mut self) -> bool {
        let is_off = self.conn.reply_mode == ReplyMode::Off;
        if is_off {
            self.ask(Expected::Ok, |out| {
                encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]);
            });
        }
        is_off
    }

    /// Turns replies off again if the client has them off, once the questions behind [`Desk::speak_up`] are answered.
    pub(super) fn hush_again(&mut self) {
        if self.conn.reply_mode == ReplyMode::Off {
            self.hush();
        }
    }

    /// Turns replies off again.
    pub(super) fn hush(&mut self) {
        let mut off = Vec::new();
        encode::command(&mut off, &[b"CLIENT", b"REPLY", b"OFF"]);
        self.to_data.push(&off);
    }

    /// Takes the transaction about an adopted lock, if there is one, to its next stage.
    pub(super) fn step_transaction(
        &mut self,
        step: impl FnOnce(LockTransaction) -> LockTransaction,
    ) {
        if let Some(stage) = self.transaction.take() {
            self.transaction = Some(Box::new(step(*stage)));
        }
    }

    /// Returns the lock's name as clients know it, without `locks.prefix`.
    pub(super) fn name<'k>(&self, key: &'k Key) -> &'k [u8] {
        key.get(self.config.locks.prefix.len()..).unwrap_or_default()
    }

    /// Returns the key on the lock nodes for a lock's name as clients know it.
    pub(super) fn key(&self, name: &[u8]) -> Key {
        Key::new(self.config.locks.prefix.as_bytes(), name)
    }

    /// Takes room for `held` bytes of a large command and of its answer, unless it has as much. Returns `false` if
    /// other clients' commands take too much, or were given this one's room. `is_whole`: no more is to come, so from
    /// now on its room is given to no other.
    pub(super) fn reserve_room(&mut self, held: usize, is_whole: bool) -> bool {
        let waker = if is_whole { None } else { Some(&self.waker) };
        match (&mut self.room, &self.shared.guards) {
            (Some(room), _) => room.grow(held, waker),
            (None, Some(guards)) if held > UNCOUNTED => {
                self.room = guards.room(held, waker);
                self.room.is_some()
            }
            (None, _) => true,
        }
    }

    /// Whether writes to some keys need this lock.
    pub(super) fn is_guard_lock(&self, key: &Key) -> bool {
        !planted::has(PlantedFault::Raise) && self.shared.is_guard_lock(key)
    }

    /// Whether this lock, which a client's token does not have alone, may be shared by it with other readers.
    pub(super) fn may_be_readers(&self, key: &Key) -> bool {
        self.config.locks.shared && !key.is_of_reader()
    }

    /// Takes in whether the data node may have forgotten the fences that it was sent on this connection. Returns
    /// whether that is news.
    #[inline]
    pub(super) fn take_in_history(&mut self) -> bool {
        let Some(history) = &self.history else { return false };
        let changes = history.changes();
        let is_news = self.history_changes != changes && !planted::has(PlantedFault::NoDoubt);
        if is_news {
            self.history_changes = changes;
            if let Some(tokens) = self.tokens.changed() {
                tokens.doubt_all();
            }
        }
        is_news
    }

    /// Notes which of these fences the data node may have forgotten since it was last asked about them: they count as
    /// not announced. Returns whether there is one, so that the answer proves nothing.
    pub(super) fn note_doubts(&mut self, claims: &mut [FencedLock]) -> bool {
        let is_news = self.take_in_history();
        let mut doubts = false;
        for claim in claims {
            // If there is no news, a fence that counted as not announced was announced with the question.
            if is_news || claim.announced && self.tokens.is_doubted(&claim.key) {
                claim.announced = false;
                doubts = true;
            }
        }
        doubts
    }

    /// Where the data node keeps fences.
    pub(super) fn fence_place(&self) -> FencePlace {
        self.shared.guards.as_ref().map(|guards| guards.place).unwrap_or_default()
    }

    /// Whether the data node is a cluster's, and guards are enforced: fences are in slots.
    pub(super) fn has_slots(&self) -> bool {
        self.fence_place() != FencePlace::Alone
    }

    /// Whether the client came through a front of a cluster, and these locks' names are in several slots. Clients of a
    /// cluster route by the names.
    pub(super) fn are_in_several_slots(&self, keys: &[Key]) -> bool {
        let slots = || keys.iter().map(|key| slot(self.name(key)));
        self.is_of_cluster() && slots().zip(slots().skip(1)).any(|(one, next)| one != next)
    }

    /// Whether the client came through a front of a cluster, or the data node is a cluster's.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.view.is_some() || self.has_slots()
    }

    /// Returns the replicas that must acknowledge fences.
    pub(super) fn replicas(&self) -> Option<Replicas> {
        self.shared.replicas()
    }

    /// Whether commands and replies must be seen: at least one guard is enforced, one adopt rule is
    /// bridged or enforced, or replies name a cluster's nodes. A connection that cannot be followed
    /// must then end.
    pub(super) fn must_be_followed(&self) -> bool {
        self.shared.guards.as_ref().is_some_and(|guards| guards.enforces())
            || self.shared.adoption.as_ref().is_some_and(|adoption| adoption.enforces())
            || self.view.as_ref().is_some_and(|view| {
                // A replication stream names no node, so a replica may be relayed. Only where nodes announce fronts
                // can this client be one.
                !(self.conn.is_replica && view.may_lead_replicas())
            })
    }

    /// Whether rules judge commands, or a front hides a cluster's nodes. Lines are then forwarded as arrays
    /// of the words that were judged.
    pub(super) fn has_rules(&self) -> bool {
        self.shared.guards.is_some() || self.shared.adoption.is_some() || self.view.is_some()
    }

    /// Has the watchdog renew a session lock from now on. Returns `None` if the lock was granted
    /// elsewhere and its claim is not known here.
    pub(super) fn keep(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Duration,
        grant: &Grant,
    ) -> Option<Keep> {
        let claim = grant.claim?;
        let losses = self.losing.listen(&self.waker, &self.card);
        Some(self.shared.engine.keep(key, token, claim, ttl, grant.until, losses))
    }
}
