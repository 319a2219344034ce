//! What can happen next, and what then is: `src/lock/engine.rs`, `acquire.rs` and
//! `node.rs`, without threads and sockets.

use super::{
    link::{Answer, Request},
    quorum::{Decision, Rule, Votes, quorum},
    setup::{Clocks, Fault, NODES, Quarantine, Raise, Setup},
    state::{Asking, Held, State, Vote, What},
};

/// One step. Nodes are named by their places in the state before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes.
    Tick,
    /// A client sends LOCK.
    Lock { client: usize },
    /// A client sends UNLOCK, or a session lock's validity has ended and it is lost.
    Unlock { client: usize },
    /// The same where another client of that proxy waits in line.
    HandOver { client: usize, to: usize },
    /// A client sends RENEW, or the watchdog does.
    Renew { client: usize },
    /// Time is up for a command, or its client hangs up.
    GiveUp { client: usize },
    /// A proxy looks at the votes that have come in.
    Look { client: usize },
    /// A node carries out the oldest request of a proxy, or a later one where order
    /// is not kept.
    CarryOut { node: usize, proxy: usize, at: usize },
    /// A node's oldest answer reaches the proxy.
    Answered { node: usize, proxy: usize },
    /// A connection ends.
    Break { node: usize, proxy: usize },
    /// It is open again.
    Open { node: usize, proxy: usize },
    /// A node restarts with nothing in its memory.
    Restart { node: usize },
}

impl State {
    /// All that may happen next.
    pub(crate) fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        if !matches!(setup.clocks, Clocks::Right(end) if self.now >= end) {
            steps.push(Step::Tick);
        }
        for client in 0..setup.proxy_of.len() {
            self.steps_of_client(client, setup, steps);
        }
        let proxies = setup.proxy_of.iter().max().map_or(0, |last| last + 1);
        for node in 0..NODES {
            for proxy in 0..proxies {
                self.steps_of_link(node, proxy, setup, steps);
            }
            if self.restarts > 0 {
                steps.push(Step::Restart { node });
            }
        }
    }

    fn steps_of_client(&self, client: usize, setup: &Setup, steps: &mut Vec<Step>) {
        let one = &self.clients[client];
        if let Some(asking) = &one.asking {
            if setup.late_looks && self.decision(client, asking, setup) != Decision::Open {
                steps.push(Step::Look { client });
            }
            if asking.elapsed >= setup.timeout {
                steps.push(Step::GiveUp { client });
            }
        } else if setup.is_symmetric() && client > 0 && self.clients[0].number == 0 {
            // Where clients are alike, the one that asks first may be called the first.
            return;
        } else if one.locks > 0 && (one.held.is_none() || setup.locks_again) {
            steps.push(Step::Lock { client });
        }
        // A session lock is released though its renewal is under way.
        let renewing = one.asking.is_none_or(|asking| asking.what == What::Renewal);
        if one.held.is_none() || !renewing {
            return;
        }
        if setup.gives_back {
            steps.push(Step::Unlock { client });
        }
        if one.asking.is_none() && self.renewals > 0 {
            steps.push(Step::Renew { client });
        }
        if self.hand_overs > 0 {
            for (to, next) in self.clients.iter().enumerate().take(setup.proxy_of.len()) {
                let waits = next.asking.is_none() && next.held.is_none();
                if to != client && waits && setup.proxy_of[to] == setup.proxy_of[client] {
                    steps.push(Step::HandOver { client, to });
                }
            }
        }
    }

    fn steps_of_link(&self, node: usize, proxy: usize, setup: &Setup, steps: &mut Vec<Step>) {
        let column = &self.columns[node];
        let link = &column.links[proxy];
        if link.down {
            if column.node.quarantine == 0 {
                steps.push(Step::Open { node, proxy });
            }
            return;
        }
        let reachable = if setup.has(Fault::Overtaking) { link.requests.len() } else { 1 };
        for at in 0..reachable.min(link.requests.len()) {
            steps.push(Step::CarryOut { node, proxy, at });
        }
        if !link.answers.is_empty() {
            steps.push(Step::Answered { node, proxy });
        }
        if self.breaks > 0 && setup.breaks_at == proxy {
            steps.push(Step::Break { node, proxy });
        }
    }

    /// What is after this step.
    pub(crate) fn after(&self, step: Step, setup: &Setup) -> State {
        let mut next = self.clone();
        match step {
            Step::Tick => next.tick(setup),
            Step::Lock { client } => next.lock(client, setup),
            Step::Unlock { client } => next.unlock(client, setup),
            Step::HandOver { client, to } => next.hand_over(client, to, setup),
            Step::Renew { client } => next.renew(client, setup),
            Step::GiveUp { client } => next.give_up(client, setup),
            Step::Look { client } => next.look(client, setup),
            Step::CarryOut { node, proxy, at } => {
                let column = &mut next.columns[node];
                let link = &mut column.links[proxy];
                let request = link.requests.remove(at);
                if let Some(answer) = column.node.carry_out(request, setup) {
                    link.answers.push((request, answer));
                }
            }
            Step::Answered { node, proxy } => next.answered(node, proxy, setup),
            Step::Break { node, proxy } => {
                next.breaks -= 1;
                next.end_link(node, proxy, setup);
            }
            Step::Open { node, proxy } => next.columns[node].links[proxy].open(setup),
            Step::Restart { node } => next.restart(node, setup),
        }
        next.in_order(setup)
    }

    fn tick(&mut self, setup: &Setup) {
        if let Clocks::Right(_) = setup.clocks {
            self.now += 1;
        }
        for column in self.columns.iter_mut() {
            column.node.tick();
        }
        for client in 0..setup.proxy_of.len() {
            let one = &mut self.clients[client];
            if let Some(held) = &mut one.held {
                held.valid = held.valid.saturating_sub(1);
                held.first = held.first.saturating_sub(1);
            }
            if let Some(asking) = &mut one.asking {
                asking.elapsed += 1;
                if asking.elapsed > setup.patience {
                    self.give_up(client, setup);
                }
            }
        }
    }

    /// Begins an operation, whose request the caller then sends.
    fn begin(&mut self, client: usize, what: What, ttl: u8, handed: bool) -> u8 {
        let one = &mut self.clients[client];
        one.number += 1;
        one.asking = Some(Asking { what, number: one.number, ttl, elapsed: 0, handed });
        one.number
    }

    /// Asks all nodes, and waits for their votes.
    fn ask(&mut self, client: usize, request: Request, setup: &Setup) {
        for column in self.columns.iter_mut() {
            let asked = column.links[setup.proxy_of[client]].send(request);
            column.votes[client] = if asked { Vote::Pending } else { Vote::Missing };
        }
        // Too many may be down.
        self.votes_came(client, setup);
    }

    /// Asks all nodes; nobody waits for their votes.
    fn tell(&mut self, client: usize, request: Request, setup: &Setup) {
        for column in self.columns.iter_mut() {
            column.links[setup.proxy_of[client]].send(request);
        }
    }

    fn lock(&mut self, client: usize, setup: &Setup) {
        let again = self.clients[client].held.is_some();
        let ttl = if again { setup.ttl_again } else { setup.ttl };
        self.clients[client].locks -= 1;
        let number = self.begin(client, What::Grant, ttl, false);
        let fence = setup.proposal(setup.proxy_of[client], self.now);
        let by = client as u8;
        self.ask(client, Request::Acquire { by, number, ttl, fence }, setup);
    }

    fn unlock(&mut self, client: usize, setup: &Setup) {
        self.clients[client].held = None;
        self.end_asking(client);
        self.tell(client, Request::Release { by: client as u8 }, setup);
    }

    fn hand_over(&mut self, client: usize, to: usize, setup: &Setup) {
        self.hand_overs -= 1;
        self.clients[client].held = None;
        self.end_asking(client);
        let ttl = setup.ttl;
        let number = self.begin(to, What::Grant, ttl, true);
        let fence = setup.proposal(setup.proxy_of[to], self.now);
        let (from, by) = (client as u8, to as u8);
        self.ask(to, Request::HandOver { from, by, number, ttl, fence }, setup);
    }

    fn renew(&mut self, client: usize, setup: &Setup) {
        self.renewals -= 1;
        let ttl = setup.ttl;
        let number = self.begin(client, What::Renewal, ttl, false);
        self.ask(client, Request::Renew { by: client as u8, number, ttl }, setup);
    }

    /// Ends a command without success. What an attempt may have taken is undone.
    fn give_up(&mut self, client: usize, setup: &Setup) {
        let Some(asking) = self.end_asking(client) else { return };
        let attempt = match asking.what {
            What::Grant => asking.number,
            What::Raise { attempt, .. } => attempt,
            What::Renewal => return,
        };
        self.tell(client, Request::Undo { by: client as u8, number: attempt }, setup);
    }

    /// Nobody waits for its votes any more.
    fn end_asking(&mut self, client: usize) -> Option<Asking> {
        for column in self.columns.iter_mut() {
            column.votes[client] = Vote::None;
        }
        self.clients[client].asking.take()
    }

    fn answered(&mut self, node: usize, proxy: usize, setup: &Setup) {
        let column = &mut self.columns[node];
        let (request, answer) = column.links[proxy].answers.remove(0);
        let Some((client, number)) = request.asked_by() else { return };
        if self.clients[client].asking.is_some_and(|asking| asking.number == number) {
            column.votes[client] = match answer {
                Answer::Yes(fence) => Vote::Yes(fence),
                Answer::No => Vote::No,
            };
            self.votes_came(client, setup);
        }
    }

    /// A connection ends: votes in flight on it are missing.
    fn end_link(&mut self, node: usize, proxy: usize, setup: &Setup) {
        let column = &mut self.columns[node];
        let unanswered = column.links[proxy].end();
        for (client, number) in &unanswered {
            if self.clients[*client].asking.is_some_and(|asking| asking.number == *number) {
                column.votes[*client] = Vote::Missing;
            }
        }
        for (client, _) in unanswered {
            self.votes_came(client, setup);
        }
    }

    fn restart(&mut self, node: usize, setup: &Setup) {
        self.restarts -= 1;
        let fast = self.columns[node].node.fast;
        let quarantine = match setup.quarantine {
            Quarantine::Off => 0,
            // It is the node's own clock that counts how long it has been up.
            Quarantine::On | Quarantine::UnlessAllAreNew => setup.ttl.saturating_sub(fast),
        };
        self.columns[node].node.restart(quarantine);
        let all_are_new = self.columns.iter().all(|column| column.node.quarantine > 0);
        if setup.quarantine == Quarantine::UnlessAllAreNew && all_are_new {
            self.columns.iter_mut().for_each(|column| column.node.quarantine = 0);
        }
        for proxy in 0..self.columns[node].links.len() {
            if setup.proxy_of.contains(&proxy) && !self.columns[node].links[proxy].down {
                self.end_link(node, proxy, setup);
            }
        }
    }

    fn votes_came(&mut self, client: usize, setup: &Setup) {
        if !setup.late_looks {
            self.look(client, setup);
        }
    }

    /// What the votes come to, by the rules of Lockgate itself.
    fn decision(&self, client: usize, asking: &Asking, setup: &Setup) -> Decision {
        let mut counted = Votes { nodes: NODES, ..Votes::default() };
        for column in self.columns.iter() {
            match column.votes[client] {
                Vote::Yes(_) => counted.yes += 1,
                Vote::No => counted.no += 1,
                Vote::Missing => counted.missing += 1,
                Vote::None | Vote::Pending => {}
            }
        }
        if setup.has(Fault::QuorumTooSmall) && counted.yes + 1 >= quorum(NODES) {
            return Decision::Yes;
        }
        counted.decide(match asking.what {
            What::Grant | What::Raise { .. } => Rule::Grant,
            What::Renewal => Rule::Renewal,
        })
    }

    /// The proxy looks at the votes: `Acquire::poll` and `Renew::poll`.
    fn look(&mut self, client: usize, setup: &Setup) {
        let Some(asking) = self.clients[client].asking else { return };
        match (self.decision(client, &asking, setup), asking.what) {
            (Decision::Open, _) => {}
            (Decision::Yes, What::Grant) => {
                let (fence, stored) = self.fence(client);
                let enough = quorum(NODES) - usize::from(setup.has(Fault::QuorumTooSmall));
                if stored >= enough || setup.has(Fault::NoSecondRound) {
                    return self.granted(client, &asking, fence, setup);
                }
                let one = &mut self.clients[client];
                one.number += 1;
                let (number, attempt) = (one.number, asking.number);
                let what = What::Raise { fence, attempt };
                one.asking = Some(Asking { what, number, ..asking });
                let held = setup.raise == Raise::WhereHeld;
                self.ask(client, Request::Raise { by: client as u8, number, fence, held }, setup);
            }
            (Decision::Yes, What::Raise { fence, .. }) => {
                self.granted(client, &asking, fence, setup);
            }
            (Decision::Yes, What::Renewal) => {
                let valid = setup.validity(asking.ttl, asking.elapsed);
                if let Some(held) = &mut self.clients[client].held
                    && valid > 0
                {
                    held.valid = valid;
                }
                self.end_asking(client);
            }
            // Its holder is told that it holds nothing, so nothing of it may stay.
            (Decision::No, What::Renewal) => self.unlock(client, setup),
            (Decision::No | Decision::NoQuorum, _) => self.give_up(client, setup),
        }
    }

    /// The largest fence that a granting node gave, and how many nodes store it.
    fn fence(&self, client: usize) -> (u8, usize) {
        let given = |vote: Vote| if let Vote::Yes(fence) = vote { fence } else { 0 };
        let fences = self.columns.each_ref().map(|column| given(column.votes[client]));
        let fence = fences.iter().copied().max().unwrap_or_default();
        (fence, fences.iter().filter(|given| **given == fence).count())
    }

    fn granted(&mut self, client: usize, asking: &Asking, fence: u8, setup: &Setup) {
        let valid = setup.validity(asking.ttl, asking.elapsed);
        if valid == 0 {
            // Too slow to be worth anything.
            return self.give_up(client, setup);
        }
        self.end_asking(client);
        let first = asking.ttl.saturating_sub(asking.elapsed);
        self.clients[client].held = Some(Held { valid, first, handed: asking.handed });
        self.fence_went_back |= fence <= self.last_fence;
        self.last_fence = self.last_fence.max(fence);
    }
}
