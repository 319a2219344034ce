//! A lock node that is alone and fails over (`src/lock/address.rs`, and in
//! `src/lock/members/membership.rs` the node that is alone and has a copy of the marker).
//!
//! A master and a replica, which the Sentinels promote and demote. The replica gets what the master has at any time
//! or never. A proxy learns of a promotion when it asks the Sentinels, at any time or never. A request is sent,
//! carried out and answered in one step: delays are in the other model.

use stateright::{Model, Property};

/// The numbers of proxies and of Redises.
const PROXIES: usize = 2;
const REDISES: usize = 2;

/// Bounds of one run. Times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The TTL of all locks, which is also the longest there is.
    pub(crate) ttl: u8,
    /// For how long votes count after the Sentinels were asked.
    pub(crate) confirm: u8,
    /// LOCKs of each proxy's clients, and renewals of all.
    pub(crate) locks: [u8; PROXIES],
    pub(crate) renewals: u8,
    /// Promotions. The former master is cut off with the proxies that reach it, or dies.
    pub(crate) promotions: u8,
    /// How many ticks longer a lock lasts on a Redis that has it by replication: its clock is behind.
    pub(crate) skew: u8,
    /// The fault that is planted.
    pub(crate) fault: Option<Fault>,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A promoted Redis votes at once, as for a lock on a Redis with a replica.
    NoWait,
    /// A promoted Redis waits for the longest TTL alone.
    WaitWithoutConfirm,
    /// A master's vote counts however long ago the proxy asked the Sentinels.
    NoConfirm,
    /// Renewals on a promoted Redis count while the former master may still grant.
    RenewedAtOnce,
    /// A promoted Redis renews any lock that it has, though the proxy's lock has run out or was released.
    RenewedByCopy,
    /// A master that is elected again keeps its identity.
    SameIfElectedAgain,
}

/// A grant: its number, and the rest of its TTL.
type Lock = (u8, u8);

/// What one Redis remembers, all of which is replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Memory {
    lock: Option<Lock>,
    /// The identity that votes here, by the marker.
    seat: u8,
    /// The identity that waits here, and for how long so far.
    note: Option<(u8, u8)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Redis {
    /// The identity: a new one with each election.
    who: u8,
    role: Role,
    memory: Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Master,
    Replica,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Proxy {
    /// The Redis that the Sentinels named, and how long ago they were asked.
    named: (usize, u8),
    /// The Redis that it is connected to, with its identity, and whether that waits.
    link: Option<(usize, u8, bool)>,
    /// The identity that votes, as far as the proxy knows.
    seat: u8,
    /// The lock that its client counts on.
    valid: Option<Lock>,
    /// The last grant, of which a client may still have the token.
    last: Option<u8>,
    locks: u8,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    redises: [Redis; REDISES],
    proxies: [Proxy; PROXIES],
    /// The master, as the Sentinels say.
    named: usize,
    next_who: u8,
    next_grant: u8,
    renewals: u8,
    promotions: u8,
    /// Whether a promoted Redis has renewed a lock that it did not have, and whether one that it had.
    put_back: bool,
    renewed: bool,
}

/// A step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    /// A proxy asks the Sentinels, and leaves a Redis that they do not name.
    Ask(usize),
    /// A proxy connects, and writes what is due: a note, or that the wait is over.
    Connect(usize),
    Lock(usize),
    Renew(usize),
    /// A client renews by an earlier token, whose grant the proxy does not know.
    RenewByToken(usize),
    /// A client releases, and the release arrives or not.
    Release(usize, bool),
    /// The replica gets all that the master has.
    Replicate,
    /// The Sentinels promote the replica.
    Promote,
    /// The Sentinels elect the former master again, which has not heard of the one in between.
    ElectAgain,
    /// A former master dies, or comes back as a replica.
    Die(usize),
    Demote(usize),
}

/// Of two clients at most one counts on the lock.
pub(crate) const ONE_HELD: &str = "one holder across failovers";
/// Properties that must hold in every state.
pub(crate) const FAILOVER_ALWAYS: &[&str] = &[ONE_HELD];
/// A promoted Redis grants.
pub(crate) const GRANTS_AGAIN: &str = "a grant by a promoted Redis";
/// A promoted Redis renews a lock that it had by replication, while it waits.
pub(crate) const COPY_RENEWED: &str = "a renewal of a replicated lock";
/// A lock that was not replicated is put back on a promoted Redis, while it waits.
pub(crate) const PUT_BACK: &str = "a lock is put back where it was not replicated";

/// One run of the checker.
pub(crate) struct Failover(pub Setup);

impl Failover {
    fn has(&self, fault: Fault) -> bool {
        self.0.fault == Some(fault)
    }

    /// Returns how long a promoted Redis waits.
    fn wait(&self) -> u8 {
        match self.0.fault {
            Some(Fault::NoWait) => 0,
            Some(Fault::WaitWithoutConfirm) => self.0.ttl,
            _ => self.0.ttl + self.0.confirm,
        }
    }
}

impl State {
    /// Returns the Redis whose votes count for a proxy now, and whether it waits.
    fn counts(&self, proxy: usize, model: &Failover) -> Option<(usize, bool)> {
        let this = &self.proxies[proxy];
        let (at, who, waits) = this.link?;
        let redis = &self.redises[at];
        let is_confirmed =
            this.named.0 == at && this.named.1 < model.0.confirm || model.has(Fault::NoConfirm);
        let is_proven = redis.memory.seat == this.seat;
        let is_there = redis.who == who && redis.role == Role::Master;
        (is_there && is_confirmed && is_proven).then_some((at, waits))
    }

    fn connect(&mut self, proxy: usize, model: &Failover) {
        let this = &mut self.proxies[proxy];
        let at = this.named.0;
        let redis = &mut self.redises[at];
        let (who, memory) = (redis.who, &mut redis.memory);
        this.seat = this.seat.max(memory.seat);
        if memory.seat == who {
            this.link = Some((at, who, false));
            return;
        }
        let waited = match memory.note {
            Some((noted, waited)) if noted == who => waited,
            _ => {
                memory.note = Some((who, 0));
                0
            }
        };
        if waited >= model.wait() {
            (memory.seat, this.seat) = (who, who);
            this.link = Some((at, who, false));
        } else if memory.seat == this.seat
            && (waited >= model.0.confirm || model.has(Fault::RenewedAtOnce))
        {
            this.link = Some((at, who, true));
        }
    }

    fn renew(&mut self, proxy: usize, known: Option<u8>, model: &Failover) {
        let Some((at, waits)) = self.counts(proxy, model) else { return };
        let (memory, this) = (&mut self.redises[at].memory, &mut self.proxies[proxy]);
        let Some(grant) = known else { return };
        self.renewals -= 1;
        let was_there = memory.lock.is_some();
        if waits && this.valid.is_some() && !was_there {
            memory.lock = this.valid;
        }
        match &mut memory.lock {
            Some((id, left)) if *id == grant => {
                *left = model.0.ttl;
                this.valid = Some((grant, model.0.ttl));
                self.renewed |= waits && was_there;
                self.put_back |= waits && !was_there;
            }
            _ => this.valid = None,
        }
    }

    fn tick(&mut self, model: &Failover) {
        let age = |lock: &mut Option<Lock>| {
            *lock = lock.and_then(|(id, left)| (left > 1).then_some((id, left - 1)));
        };
        for Redis { memory, .. } in &mut self.redises {
            age(&mut memory.lock);
            if let Some((_, waited)) = &mut memory.note {
                *waited = (*waited + 1).min(model.wait());
            }
        }
        for proxy in &mut self.proxies {
            age(&mut proxy.valid);
            proxy.named.1 = (proxy.named.1 + 1).min(model.0.confirm);
        }
    }

    /// Ends all connections to a Redis.
    fn unlink(&mut self, at: usize) {
        for proxy in &mut self.proxies {
            proxy.link = proxy.link.filter(|link| link.0 != at);
        }
    }
}

impl Model for Failover {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let memory = Memory { lock: None, seat: 0, note: None };
        let redis = |who, role| Redis { who, role, memory };
        let link = Some((0, 0, false));
        let proxy = |at: usize| Proxy {
            named: (0, 0),
            link,
            seat: 0,
            valid: None,
            last: None,
            locks: self.0.locks[at],
        };
        vec![State {
            redises: [redis(0, Role::Master), redis(1, Role::Replica)],
            proxies: [proxy(0), proxy(1)],
            named: 0,
            next_who: 2,
            next_grant: 1,
            renewals: self.0.renewals,
            promotions: self.0.promotions,
            put_back: false,
            renewed: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for (proxy, this) in state.proxies.iter().enumerate() {
            steps.push(Step::Ask(proxy));
            if this.link.is_none_or(|(.., waits)| waits)
                && state.redises[this.named.0].role == Role::Master
            {
                steps.push(Step::Connect(proxy));
            }
            if this.valid.is_some() {
                steps.push(Step::Release(proxy, false));
            }
            let Some((at, waits)) = state.counts(proxy, self) else { continue };
            if this.locks > 0 && !waits && state.redises[at].memory.lock.is_none() {
                steps.push(Step::Lock(proxy));
            }
            if this.valid.is_some() {
                steps.push(Step::Release(proxy, true));
                if state.renewals > 0 {
                    steps.push(Step::Renew(proxy));
                }
            } else if this.last.is_some()
                && state.renewals > 0
                && (!waits || self.has(Fault::RenewedByCopy))
            {
                steps.push(Step::RenewByToken(proxy));
            }
        }
        let other = 1 - state.named;
        if state.redises[other].role == Role::Replica {
            steps.push(Step::Replicate);
            if state.promotions > 0 {
                steps.push(Step::Promote);
            }
        } else {
            if state.redises[other].role == Role::Master {
                steps.push(Step::Die(other));
                if state.promotions > 0 {
                    steps.push(Step::ElectAgain);
                }
            }
            steps.push(Step::Demote(other));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.tick(self),
            Step::Ask(proxy) => {
                let this = &mut next.proxies[proxy];
                this.named = (state.named, 0);
                let who = state.redises[state.named].who;
                this.link = this.link.filter(|link| (link.0, link.1) == (state.named, who));
            }
            Step::Connect(proxy) => next.connect(proxy, self),
            Step::Lock(proxy) => {
                let (at, _) = next.counts(proxy, self)?;
                let lock = Some((next.next_grant, self.0.ttl));
                next.next_grant += 1;
                next.redises[at].memory.lock = lock;
                let this = &mut next.proxies[proxy];
                this.locks -= 1;
                (this.valid, this.last) = (lock, lock.map(|(id, _)| id));
            }
            Step::Renew(proxy) => next.renew(proxy, next.proxies[proxy].last, self),
            Step::RenewByToken(proxy) => next.renew(proxy, next.proxies[proxy].last, self),
            Step::Release(proxy, arrives) => {
                let at = next.counts(proxy, self).map(|(at, _)| at).filter(|_| arrives);
                let id = next.proxies[proxy].valid.take().map(|(id, _)| id);
                if let Some(at) = at {
                    let lock = &mut next.redises[at].memory.lock;
                    *lock = lock.filter(|(held, _)| Some(*held) != id);
                }
            }
            Step::Replicate => {
                let mut memory = next.redises[state.named].memory;
                if let Some((_, left)) = &mut memory.lock {
                    *left += self.0.skew;
                }
                next.redises[1 - state.named].memory = memory;
            }
            Step::Promote => {
                next.promotions -= 1;
                next.named = 1 - state.named;
                let redis = &mut next.redises[next.named];
                (redis.who, redis.role) = (next.next_who, Role::Master);
                next.next_who += 1;
                next.unlink(1 - state.named);
            }
            Step::ElectAgain => {
                next.promotions -= 1;
                next.named = 1 - state.named;
                if !self.has(Fault::SameIfElectedAgain) {
                    next.redises[next.named].who = next.next_who;
                    next.next_who += 1;
                }
            }
            Step::Die(at) => {
                next.redises[at].role = Role::Dead;
                next.unlink(at);
            }
            // The Sentinels reach it again: it is made a replica, and its connections end.
            Step::Demote(at) => {
                let memory = next.redises[1 - at].memory;
                let redis = &mut next.redises[at];
                (redis.role, redis.memory) = (Role::Replica, memory);
                next.unlink(at);
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Failover>> {
        let all: [Property<Failover>; 4] = [
            Property::always(ONE_HELD, |_, state: &State| {
                state.proxies.iter().filter(|proxy| proxy.valid.is_some()).count() <= 1
            }),
            Property::sometimes(GRANTS_AGAIN, |_, state: &State| {
                let by_another = |proxy: &Proxy| proxy.valid.is_some() && proxy.seat > 1;
                state.proxies.iter().any(by_another)
            }),
            Property::sometimes(COPY_RENEWED, |_, state: &State| state.renewed),
            Property::sometimes(PUT_BACK, |_, state: &State| state.put_back),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}
