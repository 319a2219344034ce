//! A voter with several seats: a Redis Cluster, alone or beside two other lock nodes
//! (`src/lock/shards.rs`, and in `src/lock/voters.rs` when a voter agrees).
//!
//! There is one lock. The cluster has two shards, and the slot of the lock moves between them, with its key. Each
//! shard has a master and a replica, which gets what the master has at any time or never. A proxy learns of
//! promotions and moves when it asks, at any time or never, and may be started anew. One step writes an agreement on
//! all nodes that accept it, and one step asks for a lock and grants it: delays are in `epochs.rs` and in the model
//! of the algorithm.

use stateright::{Model, Property};

use super::quorum::quorum;

/// The seats: two of the cluster, and one of each other lock node; the voter of each.
const SEATS: usize = 4;
const VOTER_OF: [usize; SEATS] = [0, 0, 1, 2];
const VOTERS: usize = 3;
const SHARDS: usize = 2;
const PROXIES: usize = 2;
/// Redises for each seat: a master and a replica, or two that one address leads to.
const SERVERS: usize = 2;

/// Bounds of one run. Times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Whether the cluster is the only voter.
    pub(crate) alone: bool,
    /// The TTL of all locks, which is also the longest there is.
    pub(crate) ttl: u8,
    /// For how long votes of a shard count after the cluster was asked.
    pub(crate) confirm: u8,
    /// LOCKs of each proxy's clients, and renewals of all.
    pub(crate) locks: [u8; PROXIES],
    pub(crate) renewals: u8,
    /// Promotions. The former master is cut off with the proxies that reach it, or dies.
    pub(crate) promotions: u8,
    /// Moves of the slot, with its key.
    pub(crate) moves: u8,
    /// Whether the slot may also be moved away from a shard that does not vote. Proxies then follow where it has
    /// been.
    pub(crate) moves_from_waiting: bool,
    /// How often a proxy is started anew.
    pub(crate) starts: u8,
    /// The proxies that the address of another lock node leads to a new server at some time.
    pub(crate) exchanged_for: &'static [usize],
    /// Whether the second shard is new: its seat is blank.
    pub(crate) is_new: bool,
    /// The seat that each proxy cannot reach.
    pub(crate) cut: [Option<usize>; PROXIES],
    /// The fault that is planted.
    pub(crate) fault: Option<Fault>,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A voter agrees once any of its seats has.
    AnySeat,
    /// Votes of a shard count however long ago the cluster was asked.
    NotConfirmed,
    /// A promoted Redis votes at once.
    NoWait,
    /// A promoted Redis waits for the longest TTL alone.
    WaitWithoutConfirm,
    /// A shard votes on locks of all slots.
    AnySlot,
    /// A slot is moved without its keys.
    KeyLeftBehind,
    /// Locks are granted at once in a slot that has left a shard that waits.
    NoDoubt,
    /// A newly started proxy assumes that no slot has left such a shard.
    TrustedAtStart,
    /// The note of a slot's custody counts in every configuration of the cluster.
    NotedForGood,
}

/// A grant: its number, and the rest of its TTL.
type Lock = (u8, u8);

/// The occupant of a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Seat {
    Blank,
    Waiting(u8),
    Filled(u8),
}

/// The agreement as a Redis stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Marker {
    epoch: u8,
    seats: [Seat; SEATS],
}

/// What one Redis remembers, all of which is replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Memory {
    lock: Option<Lock>,
    marker: Option<Marker>,
    /// The identity that waits here, and for how long so far.
    note: Option<(u8, u8)>,
    /// The shard's configuration epoch in which the slot was noted to be in custody.
    custody: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    who: u8,
    is_master: bool,
    /// Whether it has the lock's slot, as far as it knows.
    has_slot: bool,
    memory: Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Proxy {
    /// The server of each seat, as far as the proxy knows, and how long ago it asked the cluster.
    reach: [usize; SEATS],
    asked: u8,
    /// The shard that has the slot, as far as the proxy knows.
    route: usize,
    /// The epoch that its requests name.
    epoch: u8,
    /// Whether it has asked the cluster since it was started, and the shards' configuration epochs then.
    has_asked: bool,
    configured: [u8; SHARDS],
    /// For how long it grants nothing in the slot, as the slot is in doubt.
    doubts: u8,
    /// The lock that its client counts on.
    valid: Option<Lock>,
    locks: u8,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    servers: [[Server; SERVERS]; SEATS],
    proxies: [Proxy; PROXIES],
    /// The master of each shard, and the shard that has the slot, as the cluster says.
    masters: [usize; SHARDS],
    home: usize,
    /// The configuration epoch of each shard: a new one is larger than all others.
    configured: [u8; SHARDS],
    next_who: u8,
    next_grant: u8,
    renewals: u8,
    promotions: u8,
    moves: u8,
    starts: u8,
    exchanged: bool,
    /// The time since the last promotion; no more than `confirm` is counted.
    calm: u8,
    /// What has happened: a grant where the slot was moved to, one by a promoted Redis, one by the new server of
    /// another voter, and a lock put back on a shard that waits.
    seen: [bool; 4],
}

/// A step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    /// A proxy asks the cluster, and reads all markers that it reaches.
    Ask(usize),
    /// A proxy writes the next agreement about a seat, or a note there.
    Agree(usize, usize),
    /// A client's LOCK is granted, by these voters and no more.
    Lock(usize, u8),
    Renew(usize, u8),
    Release(usize),
    /// The replica gets all that the master has.
    Replicate(usize),
    Promote(usize),
    /// A former master becomes a replica, or is dead.
    Demote(usize),
    /// The slot moves to a shard.
    Move(usize),
    /// An address leads some proxies to a new server.
    Exchange,
    /// A proxy whose clients count on nothing is started anew.
    Start(usize),
}

/// Of two clients at most one counts on the lock.
pub(crate) const ONE_OWNER: &str = "one holder while shards fail over and slots move";
/// Two markers with one epoch are the same.
pub(crate) const ONE_AGREEMENT: &str = "an epoch of shards is one thing";
/// Properties that must hold in every state.
pub(crate) const SHARDS_ALWAYS: &[&str] = &[ONE_OWNER, ONE_AGREEMENT];
/// Things that must be possible.
pub(crate) const MOVED_GRANTS: &str = "a grant by the shard that the slot was moved to";
pub(crate) const PROMOTED_GRANTS: &str = "a grant by a promoted shard";
pub(crate) const EXCHANGED_GRANTS: &str = "a grant with the vote of another server";
pub(crate) const KEPT_BY_SHARD: &str = "a lock is put back on a shard that waits";

/// One run of the checker.
pub(crate) struct Shards(pub Setup);

impl Shards {
    fn has(&self, fault: Fault) -> bool {
        self.0.fault == Some(fault)
    }

    fn voters(&self) -> usize {
        if self.0.alone { 1 } else { VOTERS }
    }

    /// Returns the number of seats of all voters.
    fn seats(&self) -> usize {
        if self.0.alone { SHARDS } else { SEATS }
    }

    /// Returns how long a Redis waits on a seat.
    fn wait(&self, seat: usize) -> u8 {
        match self.0.fault {
            Some(Fault::NoWait) => 0,
            _ if seat >= SHARDS || self.has(Fault::WaitWithoutConfirm) => self.0.ttl,
            _ => self.0.ttl + self.0.confirm,
        }
    }

    /// Whether a quorum of voters agrees: each by all its seats that are not blank.
    fn agree(&self, base: &Marker, accepts: &[bool; SEATS]) -> bool {
        let agrees = |voter: usize| {
            let own = || (0..self.seats()).filter(move |seat| VOTER_OF[*seat] == voter);
            let holds_out = |seat: usize| !accepts[seat] && base.seats[seat] != Seat::Blank;
            own().any(|seat| accepts[seat]) && (self.has(Fault::AnySeat) || !own().any(holds_out))
        };
        (0..self.voters()).filter(|voter| agrees(*voter)).count() >= quorum(self.voters())
    }

    /// Returns the sets of voters that are just a quorum.
    fn quorums(&self) -> &'static [u8] {
        if self.0.alone { &[0b1] } else { &[0b011, 0b101, 0b110] }
    }
}

impl State {
    fn server(&self, proxy: usize, seat: usize) -> &Server {
        &self.servers[seat][self.proxies[proxy].reach[seat]]
    }

    fn is_reached(&self, proxy: usize, seat: usize, model: &Shards) -> bool {
        let is_cut = model.0.cut[proxy] == Some(seat);
        // A node without slots is no shard, and no proxy asks it.
        let is_there = seat >= SHARDS || !model.0.is_new || seat == 0 || self.knows_new(seat);
        seat < model.seats() && !is_cut && is_there && self.server(proxy, seat).is_master
    }

    fn knows_new(&self, seat: usize) -> bool {
        self.home == seat || self.servers[seat].iter().any(|it| it.memory.marker.is_some())
    }

    /// Returns the seat by which a voter votes for a proxy.
    fn seat_of(&self, proxy: usize, voter: usize) -> usize {
        if voter == 0 { self.proxies[proxy].route } else { voter + 1 }
    }

    /// Whether the vote of a seat counts for a proxy; if `waits`, also that of one that waits.
    fn counts(&self, proxy: usize, seat: usize, waits: bool, model: &Shards) -> bool {
        let (this, server) = (&self.proxies[proxy], self.server(proxy, seat));
        let is_confirmed =
            seat >= SHARDS || this.asked < model.0.confirm || model.has(Fault::NotConfirmed);
        let is_its = seat >= SHARDS || server.has_slot || model.has(Fault::AnySlot);
        let marker = server.memory.marker.filter(|marker| marker.epoch == this.epoch);
        let votes = marker.is_some_and(|it| it.seats[seat] == Seat::Filled(server.who));
        let noted = server.memory.note.filter(|(who, _)| *who == server.who);
        // There is no other voter to ask. The shard has a copy of the marker, or none as it is new.
        let keeps = waits
            && model.0.alone
            && noted.is_some_and(|(_, waited)| waited >= model.0.confirm)
            && !votes;
        self.is_reached(proxy, seat, model) && is_confirmed && is_its && (votes || keeps)
    }

    fn all_count(&self, proxy: usize, voters: u8, waits: bool, model: &Shards) -> bool {
        let mut asked = (0..model.voters()).filter(|voter| voters & (1 << voter) != 0);
        asked.all(|voter| self.counts(proxy, self.seat_of(proxy, voter), waits, model))
    }

    /// Returns the locks on the servers of these voters.
    fn locks(&mut self, proxy: usize, voters: u8, model: &Shards) -> Vec<&mut Option<Lock>> {
        let mut seats: Vec<usize> = Vec::new();
        for voter in (0..model.voters()).filter(|voter| voters & (1 << voter) != 0) {
            seats.push(self.seat_of(proxy, voter));
        }
        let reach = self.proxies[proxy].reach;
        let all = self.servers.iter_mut().enumerate();
        let asked = all.filter(|(seat, _)| seats.contains(seat));
        asked.map(|(seat, servers)| &mut servers[reach[seat]].memory.lock).collect()
    }

    /// Whether this proxy knows that a shard lacked nothing when the slot left it.
    fn has_seen_vote(&self, proxy: usize, shard: usize, model: &Shards) -> bool {
        let (this, server) = (&self.proxies[proxy], self.server(proxy, shard));
        let marker = server.memory.marker.filter(|marker| marker.epoch == this.epoch);
        self.is_reached(proxy, shard, model)
            && this.reach[shard] == self.masters[shard]
            && this.configured[shard] == self.configured[shard]
            && marker.is_some_and(|it| it.seats[shard] == Seat::Filled(server.who))
    }

    /// Whether the slot is in custody, as far as this proxy knows.
    fn is_in_custody(&self, proxy: usize, model: &Shards) -> bool {
        let (this, home) = (&self.proxies[proxy], self.home);
        if !this.has_asked {
            return model.has(Fault::TrustedAtStart);
        }
        let is_watched = this.asked < model.0.confirm;
        match home == this.route {
            true => is_watched || this.configured[home] == self.configured[home],
            false => {
                is_watched && self.has_seen_vote(proxy, this.route, model)
                    || model.has(Fault::NoDoubt)
            }
        }
    }

    fn ask(&mut self, proxy: usize, model: &Shards) {
        let (masters, home) = (self.masters, self.home);
        if model.0.moves_from_waiting && !self.is_in_custody(proxy, model) {
            self.proxies[proxy].doubts = model.wait(home);
        }
        let this = &mut self.proxies[proxy];
        (this.reach[0], this.reach[1]) = (masters[0], masters[1]);
        (this.asked, this.route) = (0, home);
        let markers = (0..SEATS).filter(|seat| self.is_reached(proxy, *seat, model));
        let markers = markers.filter_map(|seat| self.server(proxy, seat).memory.marker);
        let newest = markers.map(|marker| marker.epoch).max().unwrap_or(0);
        self.proxies[proxy].epoch = newest.max(self.proxies[proxy].epoch);
        let configured = self.configured;
        let this = &mut self.proxies[proxy];
        (this.has_asked, this.configured) = (true, configured);
        if !model.0.moves_from_waiting || !self.is_reached(proxy, home, model) {
            return;
        }
        let note = &mut self.servers[home][masters[home]].memory.custody;
        let is_noted = |of: u8| of == configured[home] || model.has(Fault::NotedForGood);
        let this = &mut self.proxies[proxy];
        if note.is_some_and(is_noted) {
            this.doubts = 0;
        }
        if this.doubts == 0 {
            *note = Some(configured[home]);
        }
    }

    /// Writes what is due at a seat.
    fn agree(&mut self, proxy: usize, seat: usize, model: &Shards) -> Option<()> {
        // A proxy that does not know whether a shard's master is still the master writes nothing there.
        let is_confirmed =
            |seat: &usize| *seat >= SHARDS || self.proxies[proxy].asked < model.0.confirm;
        let reached = (0..SEATS).filter(|seat| self.is_reached(proxy, *seat, model));
        let reached: Vec<usize> = reached.filter(is_confirmed).collect();
        let marker = |seat: &usize| self.server(proxy, *seat).memory.marker;
        let base = reached.iter().filter_map(marker).max_by_key(|marker| marker.epoch)?;
        let (mut intact, mut over) = ([false; SEATS], [false; SEATS]);
        for at in &reached {
            let server = self.server(proxy, *at);
            let named = |marker: &Marker| marker.seats[*at] == Seat::Filled(server.who);
            intact[*at] = named(&base) && server.memory.marker.is_some_and(|it| named(&it));
            let waited = server.memory.note.filter(|(who, _)| *who == server.who);
            over[*at] = !intact[*at] && waited.is_some_and(|(_, it)| it >= model.wait(*at));
        }
        let is_covered = model.agree(&base, &intact);
        let who = self.server(proxy, seat).who;
        let is_stranger = reached.contains(&seat) && !intact[seat];
        let mut next = Marker { epoch: base.epoch + 1, ..base };
        let mut acceptors = intact;
        if !is_stranger {
            // A node that lags behind gets the agreement of the others.
            next.epoch = base.epoch;
        } else if is_covered && base.seats[seat] != Seat::Waiting(who) {
            next.seats[seat] = Seat::Waiting(who);
        } else if over[seat] {
            next.seats[seat] = Seat::Filled(who);
            (0..SEATS).for_each(|at| acceptors[at] |= over[at]);
        } else {
            // As the only voter, it waits without an agreement.
            let memory = &mut self.servers[seat][self.proxies[proxy].reach[seat]].memory;
            if memory.note.is_none_or(|(noted, _)| noted != who) {
                memory.note = Some((who, 0));
            }
            return Some(());
        }
        if !model.agree(&base, &acceptors) {
            return None;
        }
        let reach = self.proxies[proxy].reach;
        for at in (0..SEATS).filter(|at| acceptors[*at]) {
            self.servers[at][reach[at]].memory.marker = Some(next);
        }
        if next.seats[seat] == Seat::Waiting(who) {
            self.servers[seat][reach[seat]].memory.note = Some((who, 0));
        }
        self.proxies[proxy].epoch = next.epoch;
        Some(())
    }

    fn tick(&mut self, model: &Shards) {
        let age = |lock: &mut Option<Lock>| {
            *lock = lock.and_then(|(id, left)| (left > 1).then_some((id, left - 1)));
        };
        for (seat, servers) in self.servers.iter_mut().enumerate() {
            for Server { memory, .. } in servers {
                age(&mut memory.lock);
                if let Some((_, waited)) = &mut memory.note {
                    *waited = (*waited + 1).min(model.wait(seat));
                }
            }
        }
        if model.0.moves_from_waiting {
            self.calm = (self.calm + 1).min(model.0.confirm);
        }
        for proxy in &mut self.proxies {
            age(&mut proxy.valid);
            proxy.asked = (proxy.asked + 1).min(model.0.confirm);
            proxy.doubts = proxy.doubts.saturating_sub(1);
        }
    }

    fn lock(&mut self, proxy: usize, voters: u8, model: &Shards) -> Option<()> {
        let lock = Some((self.next_grant, model.0.ttl));
        let mut all = self.locks(proxy, voters, model);
        if all.iter().any(|lock| lock.is_some()) {
            return None;
        }
        all.iter_mut().for_each(|it| **it = lock);
        self.next_grant += 1;
        let this = &mut self.proxies[proxy];
        (this.valid, this.locks) = (lock, this.locks - 1);
        let first = self.server(proxy, self.seat_of(proxy, 0)).who;
        let by_cluster = voters & 1 != 0;
        self.seen[0] |= by_cluster && self.proxies[proxy].route == 1;
        self.seen[1] |= by_cluster && first >= FIRST_PROMOTED;
        self.seen[2] |= voters & 2 != 0 && self.proxies[proxy].reach[2] == 1;
        Some(())
    }

    fn renew(&mut self, proxy: usize, voters: u8, model: &Shards) -> Option<()> {
        let (grant, _) = self.proxies[proxy].valid?;
        let lock = Some((grant, model.0.ttl));
        let waits = !self.all_count(proxy, voters, false, model);
        let mut all = self.locks(proxy, voters, model);
        if all.iter().any(|lock| lock.is_some_and(|(id, _)| id != grant)) {
            return None;
        }
        let is_back = all.iter().any(|lock| lock.is_none());
        all.iter_mut().for_each(|it| **it = lock);
        self.renewals -= 1;
        self.proxies[proxy].valid = lock;
        self.seen[3] |= waits && is_back;
        Some(())
    }

    fn move_to(&mut self, shard: usize, model: &Shards) {
        self.moves -= 1;
        let (from, to) = (self.home, shard);
        let source = &mut self.servers[from][self.masters[from]];
        source.has_slot = false;
        let lock = source.memory.lock.take();
        let target = &mut self.servers[to][self.masters[to]];
        target.has_slot = true;
        target.memory.lock = lock.filter(|_| !model.has(Fault::KeyLeftBehind));
        self.home = to;
        // A shard that imports a slot has the newest configuration from then on.
        if self.configured[to] < self.configured[from] {
            self.configure(to, model);
        }
    }
}

impl State {
    fn configure(&mut self, shard: usize, model: &Shards) {
        if !model.0.moves_from_waiting {
            return;
        }
        self.configured[shard] = self.configured.into_iter().max().unwrap_or(0) + 1;
    }
}

/// The configuration epochs of the shards at first.
const CONFIGURED: [u8; SHARDS] = [1, 2];

/// The number of the first server that is promoted; those there at first have smaller ones.
const FIRST_PROMOTED: u8 = (SEATS * SERVERS) as u8;

impl Model for Shards {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut seats = [0, 2, 4, 6].map(Seat::Filled);
        if self.0.is_new {
            seats[1] = Seat::Blank;
        }
        let server = |seat: usize, number: usize| {
            let is_new = seat == 1 && self.0.is_new || seat >= SHARDS && number > 0;
            let marker = (!is_new).then_some(Marker { epoch: 0, seats });
            let custody = (seat == 0).then_some(CONFIGURED[0]);
            let memory = Memory { lock: None, marker, note: None, custody };
            let is_master = number == 0 || seat >= SHARDS;
            let has_slot = seat == 0 && number == 0;
            Server { who: (seat * SERVERS + number) as u8, is_master, has_slot, memory }
        };
        let proxy = |at: usize| Proxy {
            reach: [0; SEATS],
            asked: 0,
            route: 0,
            epoch: 0,
            has_asked: true,
            configured: CONFIGURED,
            doubts: 0,
            valid: None,
            locks: self.0.locks[at],
        };
        vec![State {
            servers: [0, 1, 2, 3].map(|seat| [0, 1].map(|number| server(seat, number))),
            proxies: [proxy(0), proxy(1)],
            masters: [0; SHARDS],
            home: 0,
            configured: CONFIGURED,
            next_who: FIRST_PROMOTED,
            next_grant: 1,
            renewals: self.0.renewals,
            promotions: self.0.promotions,
            moves: self.0.moves,
            starts: self.0.starts,
            exchanged: false,
            calm: self.0.confirm,
            seen: [false; 4],
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        // A single client cannot take a lock that another counts on.
        let may_count = |proxy: &&Proxy| proxy.valid.is_some() || proxy.locks > 0;
        if state.proxies.iter().filter(may_count).count() < PROXIES {
            return;
        }
        steps.push(Step::Tick);
        for (proxy, this) in state.proxies.iter().enumerate() {
            steps.push(Step::Ask(proxy));
            steps.extend((0..self.seats()).map(|seat| Step::Agree(proxy, seat)));
            for voters in self.quorums() {
                if this.valid.is_none()
                    && this.locks > 0
                    && (this.doubts == 0 || voters & 1 == 0)
                    && state.all_count(proxy, *voters, false, self)
                {
                    steps.push(Step::Lock(proxy, *voters));
                }
                if this.valid.is_some()
                    && state.renewals > 0
                    && state.all_count(proxy, *voters, true, self)
                {
                    steps.push(Step::Renew(proxy, *voters));
                }
            }
            if this.valid.is_some() {
                steps.push(Step::Release(proxy));
            } else if state.starts > 0 {
                steps.push(Step::Start(proxy));
            }
        }
        for shard in 0..SHARDS {
            let [master, other] = [state.masters[shard], 1 - state.masters[shard]];
            if state.servers[shard][other].is_master {
                steps.push(Step::Demote(shard));
            } else if state.servers[shard][master].memory.marker.is_some() {
                steps.push(Step::Replicate(shard));
                if state.promotions > 0 {
                    steps.push(Step::Promote(shard));
                }
            }
        }
        let source = &state.servers[state.home][state.masters[state.home]];
        let votes = |marker: Marker| marker.seats[state.home] == Seat::Filled(source.who);
        // No slot is moved there and back, with a failover in between, from one look to the next.
        let is_fit = match self.0.moves_from_waiting {
            true => state.calm == self.0.confirm,
            false => source.memory.marker.is_some_and(votes),
        };
        if state.moves > 0 && is_fit {
            steps.push(Step::Move(1 - state.home));
        }
        if !self.0.exchanged_for.is_empty() && !state.exchanged {
            steps.push(Step::Exchange);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.tick(self),
            Step::Ask(proxy) => next.ask(proxy, self),
            Step::Agree(proxy, seat) => next.agree(proxy, seat, self)?,
            Step::Lock(proxy, voters) => next.lock(proxy, voters, self)?,
            Step::Renew(proxy, voters) => next.renew(proxy, voters, self)?,
            Step::Release(proxy) => {
                let (grant, _) = next.proxies[proxy].valid.take()?;
                // Where a seat does not vote for the proxy, the request does not arrive.
                for voter in 0..self.voters() {
                    if state.counts(proxy, state.seat_of(proxy, voter), true, self) {
                        for lock in next.locks(proxy, 1 << voter, self) {
                            *lock = lock.filter(|(held, _)| *held != grant);
                        }
                    }
                }
            }
            Step::Replicate(shard) => {
                let master = state.masters[shard];
                next.servers[shard][1 - master].memory = state.servers[shard][master].memory;
            }
            Step::Promote(shard) => {
                next.promotions -= 1;
                next.masters[shard] = 1 - state.masters[shard];
                next.configure(shard, self);
                next.calm = if self.0.moves_from_waiting { 0 } else { next.calm };
                let server = &mut next.servers[shard][next.masters[shard]];
                (server.who, server.is_master) = (next.next_who, true);
                server.has_slot = state.home == shard;
                next.next_who += 1;
            }
            // The former master hears of the new one, and gets all that it has.
            Step::Demote(shard) => {
                let memory = next.servers[shard][next.masters[shard]].memory;
                let server = &mut next.servers[shard][1 - state.masters[shard]];
                (server.is_master, server.has_slot, server.memory) = (false, false, memory);
            }
            Step::Move(shard) => next.move_to(shard, self),
            Step::Start(proxy) => {
                next.starts -= 1;
                let this = &mut next.proxies[proxy];
                (this.asked, this.epoch, this.has_asked) = (self.0.confirm, 0, false);
            }
            Step::Exchange => {
                next.exchanged = true;
                self.0.exchanged_for.iter().for_each(|proxy| next.proxies[*proxy].reach[2] = 1);
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Shards>> {
        let all: [Property<Shards>; 6] = [
            Property::always(ONE_OWNER, |_, state: &State| {
                state.proxies.iter().filter(|proxy| proxy.valid.is_some()).count() <= 1
            }),
            Property::always(ONE_AGREEMENT, |_, state: &State| {
                let markers = || state.servers.iter().flatten().filter_map(|it| it.memory.marker);
                markers().all(|one| markers().all(|it| it.epoch != one.epoch || it == one))
            }),
            Property::sometimes(MOVED_GRANTS, |_, state: &State| state.seen[0]),
            Property::sometimes(PROMOTED_GRANTS, |_, state: &State| state.seen[1]),
            Property::sometimes(EXCHANGED_GRANTS, |_, state: &State| state.seen[2]),
            Property::sometimes(KEPT_BY_SHARD, |_, state: &State| state.seen[3]),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}
