//! Clients that write under a claim, each through a connection of its own. The proxy's part is in
//! `src/session/guarded/` and, at LOCK, in `src/session/jobs/announce.rs`.

use super::{
    CLIENTS, Fault, Setup,
    data::{Data, Reply, Request, Watch, Write},
};

/// A state. Nothing depends on the place of a session, so sessions are kept sorted, which makes one of states that
/// differ only in names. A step's `client` is the session's place just before the step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) data: Data,
    pub(crate) sessions: [Session; CLIENTS],
    /// The fence of the last grant.
    pub(crate) last_fence: u8,
    /// How many of each fault may still come.
    pub(crate) stops: u8,
    pub(crate) forgets: u8,
    pub(crate) wrong: Wrong,
    /// Whether a write landed that was under way when the data node went back. Updates lost to it do not count.
    pub(crate) is_excused: bool,
}

/// Things that must never have happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wrong {
    pub(crate) below: bool,
    pub(crate) overwritten: bool,
    pub(crate) lost: bool,
    pub(crate) told: bool,
}

/// A client, and the proxy's connection for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Session {
    /// LOCKs and writes that it may still send.
    pub(crate) locks: u8,
    pub(crate) writes: u8,
    /// Whether the client holds the lock, as the lock nodes say. The client does not notice when this ends.
    pub(crate) valid: bool,
    /// The proxy's knowledge of the lock.
    pub(crate) claim: Option<Claim>,
    /// The number of landed writes that the client has seen since it was told of the lock.
    pub(crate) read: Option<u8>,
    pub(crate) phase: Phase,
    /// Whether the transaction under way is the client's own.
    pub(crate) own: bool,
    /// How often the write under way has landed, and its place among all writes.
    pub(crate) landings: u8,
    pub(crate) landed_at: u8,
    /// Requests sent and not carried out.
    pub(crate) requests: Vec<Request>,
    /// The reply to the last request carried out.
    pub(crate) reply: Option<Reply>,
    pub(crate) watch: Watch,
    /// The offset at which replicas have the fence that this connection wrote last. `None`: they never acknowledge
    /// it, as the data node ends the wait when it becomes a replica.
    pub(crate) written: Option<u8>,
    /// Whether replicas have acknowledged that.
    pub(crate) is_acknowledged: bool,
    /// Whether the data node has taken on another history since the last write.
    pub(crate) doubts: bool,
    /// Whether requests were under way when that happened.
    pub(crate) under_way: bool,
}

/// A grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) fence: u8,
    /// Whether the fence was announced on the data node.
    pub(crate) raised: bool,
}

/// The event that a session waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The next command of its client.
    #[default]
    Idle,
    /// The data node's answer to the fence of a lock just granted.
    Locking,
    /// The script's answer.
    Short,
    /// The fence that the data node knows.
    Asking,
    /// EXEC's answer.
    Committing,
    /// No event: the connection has ended.
    Stopped,
}

/// The way of a write to the data node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The script, then a transaction of the proxy's.
    Short,
    /// A transaction of the proxy's, which is repeated when it is dropped.
    Long,
    /// A transaction of the client's; the client is told if it is dropped.
    Own,
}

/// A step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client is granted the lock.
    Lock { client: usize },
    /// A client's time is over, and the client does not notice.
    Expire { client: usize },
    /// A client gives the lock back.
    Unlock { client: usize },
    /// A client reads, through any connection.
    Read { client: usize },
    /// A client writes what it computed from that.
    Write { client: usize, way: Way },
    /// The data node carries out its connection's next request.
    CarryOut { client: usize },
    /// The proxy has all replies that it waits for.
    Answered { client: usize },
    /// A client's connection ends.
    Stop { client: usize },
    /// The data node forgets all but this fence.
    Forget { to: u8 },
    /// The data node goes back to what its replicas have.
    FailOver,
    /// Replicas get all that the data node has.
    Replicate,
}

impl State {
    pub(crate) fn first(setup: &Setup) -> State {
        let session = |locks| Session { locks, writes: setup.writes, ..Session::default() };
        let mut sessions = setup.locks.map(session);
        sessions.sort_unstable();
        State {
            data: Data::default(),
            sessions,
            last_fence: 0,
            stops: setup.stops,
            forgets: setup.forgets,
            wrong: Wrong::default(),
            is_excused: false,
        }
    }

    pub(crate) fn steps(&self, steps: &mut Vec<Step>, setup: &Setup) {
        for (client, one) in self.sessions.iter().enumerate() {
            // Equal sessions have equal steps.
            if client > 0 && *one == self.sessions[client - 1] {
                continue;
            }
            if one.valid {
                steps.push(Step::Expire { client });
            }
            if !one.requests.is_empty() {
                steps.push(Step::CarryOut { client });
            } else if one.reply.is_some() {
                steps.push(Step::Answered { client });
            }
            let is_alive = one.phase != Phase::Stopped;
            if self.stops > 0 && is_alive && one.claim.is_some() {
                steps.push(Step::Stop { client });
            }
            if one.phase != Phase::Idle {
                continue;
            }
            let others = || self.sessions.iter().enumerate().filter(|(other, _)| *other != client);
            if one.locks > 0 && others().all(|(_, other)| !other.valid) {
                steps.push(Step::Lock { client });
            }
            let Some(claim) = one.claim else { continue };
            steps.push(Step::Unlock { client });
            if one.writes == 0 {
                continue;
            }
            if one.read != Some(self.data.version()) {
                steps.push(Step::Read { client });
            }
            if one.read.is_some() {
                let ways = [Way::Short, Way::Long, Way::Own];
                // The script is only for a fence that was announced.
                let open = &ways[usize::from(!claim.raised)..];
                steps.extend(open.iter().map(|way| Step::Write { client, way: *way }));
            }
        }
        if setup.replicas {
            if self.data.replica.0 < self.data.offset {
                steps.push(Step::Replicate);
                if self.forgets > 0 {
                    steps.push(Step::FailOver);
                }
            }
            return;
        }
        if self.forgets > 0 {
            let most = if setup.forgets_all { 1 } else { self.data.stored };
            steps.extend((0..self.data.stored.min(most)).map(|to| Step::Forget { to }));
        }
    }

    pub(crate) fn after(&self, step: Step, setup: &Setup) -> State {
        let mut next = self.clone();
        match step {
            Step::Lock { client } => next.lock(client, setup),
            Step::Expire { client } => next.sessions[client].valid = false,
            Step::Unlock { client } => next.sessions[client].ends_claim(),
            Step::Read { client } => next.sessions[client].read = Some(next.data.version()),
            Step::Write { client, way } => next.sessions[client].write(way, setup),
            Step::CarryOut { client } => next.carry_out(client, setup),
            Step::Answered { client } => next.answered(client, setup),
            Step::Stop { client } => {
                next.stops -= 1;
                next.sessions[client].stop();
            }
            Step::Forget { to } => {
                next.forgets -= 1;
                next.data.forget(to);
                next.has_another_history(setup);
            }
            Step::FailOver => {
                next.forgets -= 1;
                next.data.fail_over();
                next.has_another_history(setup);
            }
            Step::Replicate => next.data.replicate(),
        }
        next.sessions.sort_unstable();
        next
    }

    fn lock(&mut self, client: usize, setup: &Setup) {
        if !setup.has(Fault::FenceNotLarger) || self.last_fence == 0 {
            self.last_fence += 1;
        }
        let (fence, one) = (self.last_fence, &mut self.sessions[client]);
        one.locks -= 1;
        (one.valid, one.read) = (true, None);
        one.claim = Some(Claim { fence, raised: setup.has(Fault::RaiseBehindAnswer) });
        if setup.has(Fault::NoRaiseAtLock) {
            return;
        }
        one.requests.push(Request::Raise { fence });
        one.wait(setup);
        if !setup.has(Fault::RaiseBehindAnswer) {
            one.phase = Phase::Locking;
        }
    }

    fn carry_out(&mut self, client: usize, setup: &Setup) {
        let one = &mut self.sessions[client];
        let request = one.requests.remove(0);
        if request == Request::Wait {
            one.is_acknowledged = one.written.is_some_and(|written| self.data.replica.0 >= written);
            return;
        }
        let before = (self.data.seen, self.data.acknowledged, self.data.version());
        let outcome = self.data.carry_out(request, &mut one.watch, setup);
        if setup.replicas && matches!(request, Request::Raise { .. }) {
            one.written = Some(self.data.offset);
        }
        if let Some(write) = outcome.lands {
            let (seen, acknowledged, version) = before;
            self.is_excused |= one.under_way;
            self.wrong.below |= write.fence < seen;
            self.wrong.overwritten |= write.fence < acknowledged;
            self.wrong.lost |= write.based_on != version && !self.is_excused;
            one.landings += 1;
            one.landed_at = self.data.version();
        }
        if one.phase == Phase::Stopped {
            // No client waits for the reply.
            (one.landings, one.landed_at, one.reply) = (0, 0, None);
            if one.requests.is_empty() {
                one.watch = Watch::Nothing;
            }
        } else {
            one.reply = Some(outcome.reply);
        }
        if outcome.writes_fence {
            self.fence_is_written(Some(client));
        }
    }

    /// Notes that the data node has forgotten, or gone back.
    fn has_another_history(&mut self, setup: &Setup) {
        self.fence_is_written(None);
        for one in &mut self.sessions {
            one.written = None;
            one.doubts |= setup.sees && one.claim.is_some();
            one.under_way |= setup.sees && !one.requests.is_empty();
        }
    }

    /// Notes that the fence is written, by a connection that does not watch it itself at that time, or by none.
    fn fence_is_written(&mut self, by: Option<usize>) {
        for (client, one) in self.sessions.iter_mut().enumerate() {
            if by != Some(client) && one.watch == Watch::Unwritten {
                one.watch = Watch::Written;
            }
        }
    }

    fn answered(&mut self, client: usize, setup: &Setup) {
        let one = &mut self.sessions[client];
        let (Some(reply), Some(claim)) = (one.reply.take(), &mut one.claim) else { return };
        let is_acknowledged = !setup.replicas || one.is_acknowledged;
        match (one.phase, reply) {
            (Phase::Locking, Reply::Fence(_))
                if !is_acknowledged && !setup.has(Fault::NotAcknowledged) =>
            {
                one.phase = Phase::Idle;
                one.ends_claim();
            }
            (Phase::Locking, Reply::Fence(seen))
                if seen <= claim.fence && (one.valid || !setup.forgets_all) =>
            {
                claim.raised = true;
                one.phase = Phase::Idle;
            }
            (Phase::Locking, _) => {
                one.phase = Phase::Idle;
                one.ends_claim();
            }
            (Phase::Asking, Reply::Fence(seen)) => {
                let fence = claim.fence;
                if !claim.raised && !is_acknowledged && seen == fence {
                    // NOREPLICAS: UNWATCH, and the next write announces it again.
                    one.watch = Watch::Nothing;
                    self.tell(client, false);
                    return;
                }
                if one.doubts && !setup.has(Fault::NoDoubt) && seen == fence && one.valid {
                    // An equal fence proves nothing here. The lock nodes say that the lock is held.
                    (one.doubts, claim.raised) = (false, false);
                    one.ask(setup);
                    return;
                }
                let is_held = one.valid || !one.doubts || setup.has(Fault::NoDoubt);
                let is_enough = seen < fence && setup.has(Fault::SmallerIsEnough);
                if seen == fence && is_held || is_enough || setup.has(Fault::NoCompareInProxy) {
                    claim.raised = true;
                    one.commit(setup);
                } else if seen < fence && (one.valid || setup.has(Fault::NoAsking)) {
                    // The lock nodes have said so.
                    claim.raised = false;
                    one.ask(setup);
                } else {
                    // FENCED or NOTHELD: UNWATCH, and the claim is gone.
                    (one.claim, one.read, one.watch) = (None, None, Watch::Nothing);
                    self.tell(client, false);
                }
            }
            (Phase::Short | Phase::Committing, Reply::Done) => self.tell(client, true),
            (Phase::Committing, Reply::Dropped) if setup.has(Fault::DroppedIsDone) => {
                self.tell(client, true);
            }
            (Phase::Committing, Reply::Dropped) if one.own => self.tell(client, false),
            (Phase::Short, Reply::Refused) | (Phase::Committing, Reply::Dropped) => one.ask(setup),
            // The client was told of its lock before.
            _ => {}
        }
    }

    /// Tells the client the outcome of its write.
    fn tell(&mut self, client: usize, is_done: bool) {
        let one = &mut self.sessions[client];
        self.wrong.told |= one.landings != u8::from(is_done);
        if let (true, Some(claim)) = (is_done, one.claim) {
            self.data.acknowledge(claim.fence, one.landed_at);
            // The client knows what it has written.
            one.read = Some(one.landed_at);
        }
        (one.landings, one.landed_at) = (0, 0);
        (one.phase, one.own, one.under_way) = (Phase::Idle, false, false);
    }
}

impl Session {
    fn ends_claim(&mut self) {
        (self.claim, self.read, self.valid) = (None, None, false);
    }

    fn the_write(&self) -> Option<Write> {
        Some(Write { fence: self.claim?.fence, based_on: self.read? })
    }

    fn write(&mut self, way: Way, setup: &Setup) {
        let Some(write) = self.the_write() else { return };
        self.writes -= 1;
        if std::mem::take(&mut self.doubts) && !setup.has(Fault::NoDoubt) {
            if !self.valid {
                // The lock nodes have said so: NOTHELD.
                (self.claim, self.read) = (None, None);
                return;
            }
            self.claim = self.claim.map(|claim| Claim { raised: false, ..claim });
            self.own = way == Way::Own;
            self.ask(setup);
            return;
        }
        self.own = way == Way::Own;
        if way == Way::Short {
            self.requests.push(Request::Script(write));
            self.phase = Phase::Short;
        } else {
            self.ask(setup);
        }
    }

    /// Sends one packet: `Fences::ask`.
    fn ask(&mut self, setup: &Setup) {
        let Some(claim) = self.claim else { return };
        if !claim.raised {
            self.requests.push(Request::Raise { fence: claim.fence });
            self.wait(setup);
        }
        if !setup.has(Fault::NoWatch) && !setup.has(Fault::WatchBehindGet) {
            self.requests.push(Request::Watch);
        }
        self.requests.push(Request::Get);
        self.phase = Phase::Asking;
    }

    /// Makes the data node wait until replicas acknowledge what was sent before.
    fn wait(&mut self, setup: &Setup) {
        if setup.replicas {
            self.is_acknowledged = false;
            self.requests.push(Request::Wait);
        }
    }

    /// Sends another packet: the write and EXEC.
    fn commit(&mut self, setup: &Setup) {
        let Some(write) = self.the_write() else { return };
        if setup.has(Fault::WatchBehindGet) {
            self.requests.push(Request::Watch);
        }
        self.requests.push(Request::Exec(write));
        self.phase = Phase::Committing;
    }

    /// Ends a connection; bytes already sent may still be carried out.
    fn stop(&mut self) {
        let (valid, requests, watch) = (self.valid, std::mem::take(&mut self.requests), self.watch);
        *self = Session { valid, requests, watch, phase: Phase::Stopped, ..Session::default() };
    }
}
