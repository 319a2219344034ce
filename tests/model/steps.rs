//! The steps from a state, and the states after them: `src/lock/acquire.rs`, `release.rs`,
//! `renew.rs` and `node/node.rs`, without threads and sockets.

use super::{
    link::{Answer, Link, Request, Whose, claim_of},
    quorum::{Decision, Rule, Votes, quorum},
    setup::{Clocks, Fault, NODES, Quarantine, Setup},
    state::{Asking, Client, Column, Held, State, Vote, What},
};

/// One step. Nodes are named by their places in the state before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes.
    Tick,
    /// A client sends LOCK.
    Lock { client: usize },
    /// A client whose lock was unlocked elsewhere sends LOCK on another connection.
    LockAnew { client: usize },
    /// A client sends UNLOCK, or a session lock's validity has ended and it is lost.
    Unlock { client: usize },
    /// A client sends UNLOCK with its token, by which another client has a grant.
    UnlockByToken { client: usize },
    /// A grant is given back while another client of that proxy waits in line.
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
    /// A connection opens again.
    Open { node: usize, proxy: usize },
    /// A node restarts with nothing in its memory.
    Restart { node: usize },
}

impl State {
    /// Adds all steps that may come next.
    pub(crate) fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        let ends = matches!(setup.clocks, Clocks::Right(end) if self.now >= end);
        if !(ends || setup.prompt && self.is_busy()) {
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
            if self.restarts > 0 && self.may_go_away(node, setup) {
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
            // If clients are alike, the one that asks first may be called the first.
            return;
        } else if one.locks > 0 && (one.held.is_none() || setup.locks_again) {
            steps.push(Step::Lock { client });
        }
        let ended = |held: Held| held.unlocked || self.unlocking == Some(held.claim);
        if one.locks > 0 && one.asking.is_none() && one.held.is_some_and(ended) {
            steps.push(Step::LockAnew { client });
        }
        if one.held.is_none() && one.asking.is_none() && self.by_token > 0 {
            let tokens = self.clients.iter().zip(setup.token_of);
            let asks = |other: &Client| other.asking.is_some() && !setup.has(Fault::UnlockByToken);
            let others = tokens.filter(|(other, _)| other.held.is_some() || asks(other));
            if others.into_iter().any(|(_, token)| token == setup.token_of[client]) {
                steps.push(Step::UnlockByToken { client });
            }
        }
        // A session lock may be released while its renewal is under way.
        let renewing = one.asking.is_none_or(|asking| asking.what == What::Renewal);
        if one.held.is_none() || !renewing {
            return;
        }
        if setup.gives_back {
            steps.push(Step::Unlock { client });
        }
        // A lock whose validity has ended is lost, and not renewed.
        let kept = !setup.heals || one.held.is_some_and(|held| held.known > 0);
        if one.asking.is_none() && self.renewals > 0 && kept && !setup.prompt {
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
            return steps.push(Step::Open { node, proxy });
        }
        let reachable = if setup.has(Fault::Overtaking) { link.requests.len() } else { 1 };
        for at in 0..reachable.min(link.requests.len()) {
            steps.push(Step::CarryOut { node, proxy, at });
        }
        if !link.answers.is_empty() {
            steps.push(Step::Answered { node, proxy });
        }
        if self.breaks > 0 && setup.breaks_at == proxy && self.may_go_away(node, setup) {
            steps.push(Step::Break { node, proxy });
        }
    }

    /// Returns the state after this step.
    pub(crate) fn after(&self, step: Step, setup: &Setup) -> State {
        let mut next = self.clone();
        match step {
            Step::Tick => next.tick(setup),
            Step::Lock { client } => next.lock(client, setup),
            Step::LockAnew { client } => {
                next.clients[client].held = None;
                next.lock(client, setup);
            }
            Step::Unlock { client } => next.unlock(client, setup),
            Step::UnlockByToken { client } => next.unlock_by_token(client, setup),
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
            Step::Open { node, proxy } => {
                next.columns[node].links[proxy].open(setup);
            }
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
                held.known = held.known.saturating_sub(1);
                held.first = held.first.saturating_sub(1);
                self.lost |= setup.prompt && held.valid == 0;
            }
            if let Some(asking) = &mut one.asking {
                asking.elapsed += 1;
                if asking.elapsed > setup.patience {
                    self.give_up(client, setup);
                }
            }
            let one = &self.clients[client];
            if setup.prompt && one.asking.is_none() && one.held.is_some_and(|held| held.valid > 0) {
                self.renew(client, setup);
            }
        }
    }

    /// Whether a connection that is up still has requests or answers under way.
    fn is_busy(&self) -> bool {
        let links = self.columns.iter().flat_map(|column| &column.links);
        let busy = |link: &Link| !link.requests.is_empty() || !link.answers.is_empty();
        links.filter(|link| !link.down).any(busy)
    }

    /// Whether a node may go away: where locks must be kept, only if all others have them.
    fn may_go_away(&self, node: usize, setup: &Setup) -> bool {
        let others = self.columns.iter().enumerate().filter(|(other, _)| *other != node);
        // A node has the lock if it was renewed there since the node came back, and if no undo is still to come for a
        // vote whose answer was lost: that would remove the lock.
        let undoes = |request: &Request| matches!(request, Request::Undo { .. });
        let has_it = |column: &Column| {
            let link = &column.links[0];
            let undone = !link.requests.iter().any(undoes);
            // Where no lock is put back, the node need not have it.
            let has = column.node.left + 1 >= setup.ttl || setup.has(Fault::NoHeal);
            !link.down && column.node.quarantine == 0 && undone && has
        };
        !setup.prompt
            || self.held().next().is_some() && others.into_iter().all(|(_, column)| has_it(column))
    }

    /// Begins an operation, whose request the caller then sends. `claim` is the grant's, if it has
    /// one already.
    fn begin(&mut self, client: usize, what: What, ttl: u8, claim: Option<u8>) -> (u8, u8) {
        let one = &mut self.clients[client];
        one.number += 1;
        let (number, again) = (one.number, claim.is_some());
        let claim = claim.unwrap_or_else(|| claim_of(client, number));
        let (elapsed, handed, unlocked) = (0, false, false);
        one.asking = Some(Asking { what, number, claim, again, ttl, elapsed, handed, unlocked });
        (number, claim)
    }

    /// Asks all nodes, and waits for their votes.
    fn ask(&mut self, client: usize, request: Request, setup: &Setup) {
        for column in self.columns.iter_mut() {
            let waits = column.node.quarantine > 0;
            let asked = column.links[setup.proxy_of[client]].send(request, waits);
            column.votes[client] = if asked { Vote::Pending } else { Vote::Missing };
        }
        // Too many nodes may be down.
        self.votes_came(client, setup);
    }

    /// Sends a request to all nodes without waiting for votes.
    fn tell(&mut self, client: usize, request: Request, setup: &Setup) {
        for column in self.columns.iter_mut() {
            column.links[setup.proxy_of[client]].send(request, false);
        }
    }

    fn lock(&mut self, client: usize, setup: &Setup) {
        let held = self.clients[client].held;
        let ttl = if held.is_some() { setup.ttl_again } else { setup.ttl };
        self.clients[client].locks -= 1;
        let before = held.map(|held| held.claim);
        let (number, claim) = self.begin(client, What::Grant, ttl, before);
        let fence = setup.proposal(setup.proxy_of[client], self.now);
        let (by, token, again) = (client as u8, setup.token_of[client], held.is_some());
        self.ask(client, Request::Acquire { by, number, token, claim, again, ttl, fence }, setup);
    }

    fn unlock(&mut self, client: usize, setup: &Setup) {
        let Some(held) = self.clients[client].held.take() else { return };
        let late_heal =
            setup.has(Fault::HealBehindRelease).then(|| self.heal_of(client, &held, setup));
        self.end_asking(client);
        let (by, token) = (client as u8, setup.token_of[client]);
        let whose = Whose::Claim(held.claim);
        self.tell(client, Request::Release { by, number: 0, token, whose }, setup);
        if let Some((heal, nodes)) = late_heal.flatten() {
            for node in nodes {
                self.columns[node].links[setup.proxy_of[client]].send(heal, false);
            }
        }
    }

    /// Gives back the grant that the client's token has, after asking the nodes which one that is.
    fn unlock_by_token(&mut self, client: usize, setup: &Setup) {
        self.by_token -= 1;
        self.in_vain = (self.clients.iter().zip(setup.token_of)).any(|(other, theirs)| {
            theirs != setup.token_of[client] && other.held.is_some_and(|held| held.valid > 0)
        });
        let (by, token) = (client as u8, setup.token_of[client]);
        if setup.has(Fault::UnlockByToken) {
            for (other, theirs) in self.clients.iter_mut().zip(setup.token_of) {
                other.held.take_if(|_| theirs == token);
            }
            let whose = Whose::Token;
            return self.tell(client, Request::Release { by, number: 0, token, whose }, setup);
        }
        let (number, _) = self.begin(client, What::Look, setup.ttl, None);
        self.ask(client, Request::Look { by, number, token }, setup);
    }

    /// Releases a grant by the claim that the nodes named. From now on no client may count on it, though its own
    /// proxy does not know.
    fn release_elsewhere(&mut self, client: usize, claim: u8, setup: &Setup) {
        for other in &mut self.clients {
            if let Some(held) = other.held.as_mut().filter(|held| held.claim == claim) {
                held.valid = 0;
            }
        }
        self.unlocking = Some(claim).filter(|_| !self.in_vain);
        let (number, _) = self.begin(client, What::Release { claim }, setup.ttl, None);
        let (by, token, whose) = (client as u8, setup.token_of[client], Whose::Elsewhere(claim));
        self.ask(client, Request::Release { by, number, token, whose }, setup);
    }

    /// Notes that an UNLOCK is answered. What a client is told of that grant counts if it was asked for from now on.
    fn unlocked(&mut self, client: usize, claim: u8) {
        self.unlocking = None;
        self.end_asking(client);
        for other in &mut self.clients {
            if let Some(held) = other.held.as_mut().filter(|held| held.claim == claim) {
                held.unlocked = true;
            }
            if let Some(asking) = other.asking.as_mut().filter(|asking| asking.claim == claim) {
                asking.unlocked = !self.in_vain;
            }
        }
    }

    /// Whether an UNLOCK that was under way at the same time ends what is granted or renewed.
    fn is_unlocked(&self, asking: &Asking) -> bool {
        asking.unlocked || self.unlocking == Some(asking.claim)
    }

    /// Returns the claim that most nodes name, behind the number of these nodes.
    fn named(&self, client: usize) -> Option<(usize, u8)> {
        let votes = || self.columns.iter().map(|column| column.votes[client]);
        let named = votes().filter_map(|vote| match vote {
            Vote::Yes(claim) => Some((votes().filter(|other| *other == vote).count(), claim)),
            _ => None,
        });
        named.max()
    }

    fn hand_over(&mut self, client: usize, to: usize, setup: &Setup) {
        self.hand_overs -= 1;
        let Some(held) = self.clients[client].held.take() else { return };
        self.end_asking(client);
        let ttl = setup.ttl;
        let (number, claim) = self.begin(to, What::Grant, ttl, None);
        if let Some(asking) = &mut self.clients[to].asking {
            asking.handed = true;
        }
        let fence = setup.proposal(setup.proxy_of[to], self.now);
        let (from, giver, by) = (setup.token_of[client], held.claim, to as u8);
        let token = setup.token_of[to];
        self.ask(
            to,
            Request::HandOver { from, giver, by, number, token, claim, ttl, fence },
            setup,
        );
    }

    fn renew(&mut self, client: usize, setup: &Setup) {
        let Some(held) = self.clients[client].held else { return };
        self.renewals = self.renewals.saturating_sub(1);
        let ttl = setup.ttl;
        let (number, claim) = self.begin(client, What::Renewal, ttl, Some(held.claim));
        let (by, token) = (client as u8, setup.token_of[client]);
        self.ask(client, Request::Renew { by, number, token, claim, ttl }, setup);
    }

    /// Returns the request that puts a lock back, and the nodes that need it, once a quorum has confirmed the
    /// renewal.
    fn heal_of(&self, client: usize, held: &Held, setup: &Setup) -> Option<(Request, Vec<usize>)> {
        let asking = self.clients[client].asking.filter(|asking| asking.what == What::Renewal)?;
        let with = |vote: Vote| {
            let nodes = self.columns.iter().enumerate();
            nodes.filter(|(_, c)| c.votes[client] == vote).map(|(node, _)| node).collect::<Vec<_>>()
        };
        let Held { claim, fence, .. } = *held;
        let (by, token) = (client as u8, setup.token_of[client]);
        let Asking { number, ttl, .. } = asking;
        let heal = Request::Heal { by, number, token, claim, ttl, fence };
        let mut lacking = with(Vote::No);
        if setup.has(Fault::HealBehindRelease) {
            lacking.extend(with(Vote::Pending));
        }
        let may = setup.heals && !setup.has(Fault::NoHeal) && held.known > 0 && !lacking.is_empty();
        (may && with(Vote::Yes(0)).len() >= quorum(NODES)).then_some((heal, lacking))
    }

    /// Ends a command without success. A lock that the attempt may have taken is undone, but one that the same claim
    /// had before stays.
    fn give_up(&mut self, client: usize, setup: &Setup) {
        let Some(asking) = self.clients[client].asking else { return };
        if asking.what == What::Renewal && setup.heals {
            let pending = self.columns.iter_mut().filter(|c| c.votes[client] == Vote::Pending);
            pending.for_each(|column| column.votes[client] = Vote::Missing);
            self.look(client, setup);
            self.end_asking(client);
            return;
        }
        self.end_asking(client);
        let keeps = asking.again && !setup.has(Fault::UndoTakesEarlier);
        if matches!(asking.what, What::Look | What::Release { .. }) {
            return;
        }
        if asking.what != What::Renewal && !keeps {
            let (token, claim) = (setup.token_of[client], asking.claim);
            self.tell(client, Request::Undo { token, claim }, setup);
        }
    }

    /// Ends the client's operation, whose votes are no longer waited for.
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
        let Some(asking) = self.clients[client].asking.filter(|asking| asking.number == number)
        else {
            return;
        };
        column.votes[client] = match answer {
            Answer::Yes(fence) => Vote::Yes(fence),
            Answer::No => Vote::No,
        };
        if let (Request::Renew { .. }, Answer::No, Some(held)) =
            (request, answer, self.clients[client].held)
            && (setup.has(Fault::HealCounts) || setup.has(Fault::HealWithoutQuorum))
        {
            let Held { claim, fence, .. } = held;
            let (by, token, ttl) = (client as u8, setup.token_of[client], asking.ttl);
            let heal = Request::Heal { by, number, token, claim, ttl, fence };
            column.links[proxy].send(heal, false);
            if setup.has(Fault::HealCounts) {
                column.votes[client] = Vote::Pending;
            }
        }
        self.votes_came(client, setup);
    }

    /// Ends a connection: votes in flight on it are missing.
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
            // The node's own clock counts.
            Quarantine::On => setup.ttl.saturating_sub(fast),
        };
        self.columns[node].node.restart(quarantine);
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

    /// Returns the outcome of the votes, by Lockgate's own rules.
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
        let waits_for_all = setup.heals && asking.what == What::Renewal;
        if waits_for_all && counted.yes + counted.no + counted.missing < NODES {
            return Decision::Open;
        }
        if asking.what == What::Look {
            // Nodes that name other claims decide nothing.
            let alike = self.named(client).map_or(0, |(alike, _)| alike);
            let others = counted.yes - alike;
            counted = Votes { yes: alike, missing: counted.missing + others, ..counted };
        }
        // It is not enough that few nodes have the grant: a release may be under way to the others.
        if let What::Release { .. } = asking.what
            && counted.yes < quorum(NODES)
        {
            return match counted {
                Votes { yes, no, .. } if yes + no == NODES => Decision::No,
                Votes { yes, no, missing, .. } if yes + no + missing == NODES => Decision::NoQuorum,
                _ => Decision::Open,
            };
        }
        counted.decide(match asking.what {
            What::Grant if asking.again && !setup.has(Fault::AgainTakesFree) => Rule::Renewal,
            What::Grant | What::Raise { .. } => Rule::Grant,
            What::Renewal | What::Look | What::Release { .. } => Rule::Renewal,
        })
    }

    /// Looks at the votes, as the proxy does in `Acquire::poll` and `Renew::poll`.
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
                let (number, what) = (one.number, What::Raise { fence });
                one.asking = Some(Asking { what, number, ..asking });
                let (by, token, claim) = (client as u8, setup.token_of[client], asking.claim);
                self.ask(client, Request::Raise { by, number, token, claim, fence }, setup);
            }
            (Decision::Yes, What::Raise { fence }) => {
                self.granted(client, &asking, fence, setup);
            }
            (Decision::Yes, What::Renewal) => self.renewed(client, &asking, setup),
            // The holder is told that it holds nothing, so no node may keep its lock.
            (Decision::No, What::Renewal) => {
                self.lost |= setup.prompt;
                self.unlock(client, setup);
            }
            (Decision::NoQuorum, What::Renewal) => drop(self.end_asking(client)),
            (Decision::Yes, What::Look) => {
                let claim = self.named(client).map_or(0, |(_, claim)| claim);
                self.release_elsewhere(client, claim, setup);
            }
            (Decision::Yes | Decision::No, What::Release { claim }) => {
                self.unlocked(client, claim);
            }
            (Decision::No | Decision::NoQuorum, What::Look)
                if setup.has(Fault::UnlockAllSeen) && self.named(client).is_some() =>
            {
                let claim = self.named(client).map_or(0, |(_, claim)| claim);
                self.release_elsewhere(client, claim, setup);
            }
            // Too few nodes have the grant, so it has ended. The client asks for another.
            (Decision::No, What::Grant) if asking.again && !setup.has(Fault::AgainTakesFree) => {
                self.unlock(client, setup);
                self.clients[client].locks += 1;
                self.lock(client, setup);
            }
            (Decision::No | Decision::NoQuorum, _) => self.give_up(client, setup),
        }
    }

    /// Returns the largest fence that a granting node gave, and how many nodes store it.
    fn fence(&self, client: usize) -> (u8, usize) {
        let given = |vote: Vote| if let Vote::Yes(fence) = vote { fence } else { 0 };
        let fences = self.columns.each_ref().map(|column| given(column.votes[client]));
        let fence = fences.iter().copied().max().unwrap_or_default();
        (fence, fences.iter().filter(|given| **given == fence).count())
    }

    fn granted(&mut self, client: usize, asking: &Asking, fence: u8, setup: &Setup) {
        let valid = setup.validity(asking.ttl, asking.elapsed);
        if valid == 0 {
            // The votes came so late that no validity is left.
            return self.give_up(client, setup);
        }
        self.end_asking(client);
        let first = asking.ttl.saturating_sub(asking.elapsed);
        let Asking { claim, handed, .. } = asking;
        let (claim, handed, known) = (*claim, *handed, first);
        let valid = if self.is_unlocked(asking) { 0 } else { valid };
        let (healed, unlocked) = (false, false);
        let held = Held { valid, known, claim, fence, first, handed, healed, unlocked };
        self.clients[client].held = Some(held);
        self.fence_went_back |= fence <= self.last_fence;
        self.last_fence = self.last_fence.max(fence);
    }

    fn renewed(&mut self, client: usize, asking: &Asking, setup: &Setup) {
        let valid = setup.validity(asking.ttl, asking.elapsed);
        let Some(mut held) = self.clients[client].held else { return };
        if valid > 0 {
            let known = asking.ttl.saturating_sub(asking.elapsed);
            let valid = if self.is_unlocked(asking) { 0 } else { valid };
            (held.valid, held.known) = (valid, known);
            held.unlocked = false;
        }
        let heal = self.heal_of(client, &held, setup).filter(|_| valid > 0);
        self.end_asking(client);
        for (heal, node) in heal
            .into_iter()
            .flat_map(|(heal, nodes)| nodes.into_iter().map(move |node| (heal, node)))
        {
            self.columns[node].links[setup.proxy_of[client]].send(heal, false);
            held.healed = true;
        }
        self.clients[client].held = Some(held);
    }
}
