//! One attempt to take a lock: a request for it, or a hand-over.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Alarm, Claim, Grant, NotGranted, SameToken,
    grants::Grants,
    holders::Holder,
    node::nodes::{Nodes, Tally},
    operation::{Absence, Kind, Operation, Vote},
    quorum::{Decision, Rule},
    scripts,
};
use crate::{
    card::ClientCard,
    clock::Instant,
    key::{Key, Token},
};

/// A LOCK under way. Dropped before it is ready, it is undone on every node.
pub struct Acquire {
    grants: Arc<Grants>,
    /// The time before the first node was asked.
    since: Instant,
    ttl: Duration,
    /// The grant's name on the nodes.
    claim: Claim,
    /// Whether a node grants only a lock that is held there: by the same claim or, for a take-over, by the token.
    again: bool,
    /// Whether it gives the lock another claim.
    takes_over: bool,
    /// Whether the lock is granted only to the claim that has it already.
    only_again: bool,
    /// The client that asks, if that is known.
    card: Option<Arc<ClientCard>>,
    tally: Tally,
    /// The fence, and the second round of votes, which makes a quorum remember it.
    raising: Option<(u64, Tally)>,
    done: bool,
}

impl Acquire {
    /// Asks all nodes for `key` on behalf of an adopted command. A held lock is refused, whatever its token.
    pub(super) fn ask_adopted(
        grants: &Arc<Grants>,
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Claim,
    ) -> Acquire {
        debug_assert!(claim.is_adopted(), "blind commands may end the grant");
        Acquire::ask_as(grants, key, token, ttl, (claim, false))
    }

    /// Asks all nodes for `key` on behalf of `token`. `again` is the claim of a grant to this token that the asker
    /// has. If so many nodes deny that grant that no quorum has it, it has ended, and the lock is asked for by a new
    /// claim.
    pub(super) fn ask(
        grants: &Arc<Grants>,
        key: Key,
        token: Token,
        ttl: Duration,
        again: Option<Claim>,
    ) -> Acquire {
        let claim = again.unwrap_or_else(Claim::new);
        Acquire::ask_as(grants, key, token, ttl, (claim, again.is_some()))
    }

    /// Asks all nodes for a reader's part of `key` by this claim. Several clients may have parts at the same time.
    pub(super) fn ask_shared(
        grants: &Arc<Grants>,
        key: &Key,
        token: Token,
        ttl: Duration,
        claim: Claim,
    ) -> Acquire {
        Acquire::ask_as(grants, claim.key_of_reader(key), token, ttl, (claim, false))
    }

    /// Asks as [`Acquire::ask`] does, for a client that waits in line: where the lock has readers, new ones are barred
    /// for its sake.
    pub(super) fn ask_in_line(
        grants: &Arc<Grants>,
        key: Key,
        token: Token,
        ttl: Duration,
    ) -> Acquire {
        let (since, nodes, claim) = (Instant::now(), grants.nodes(), Claim::new());
        let wanted = nodes.wanted(&key, &token, ttl, claim);
        let request = scripts::acquire_in_line(nodes.dialect, &wanted, nodes.intents_bar);
        let kind = Kind::Acquire { claim, again: false };
        let operation = nodes.operation(kind, key, token, ttl, request).in_line();
        Acquire::submit((grants, &nodes), operation, Rule::Grant, (claim, false), since)
    }

    fn ask_as(
        grants: &Arc<Grants>,
        key: Key,
        token: Token,
        ttl: Duration,
        (claim, again): (Claim, bool),
    ) -> Acquire {
        let (since, nodes) = (Instant::now(), grants.nodes());
        let wanted = nodes.wanted(&key, &token, ttl, claim);
        let request = match key.is_of_reader() {
            true => scripts::shared::acquire(nodes.dialect, &wanted, again, nodes.intents_bar),
            false => scripts::acquire(nodes.dialect, &wanted, again),
        };
        let kind = Kind::Acquire { claim, again };
        let operation = nodes.operation(kind, key, token, ttl, request);
        let rule = if again { Rule::Renewal } else { Rule::Grant };
        Acquire::submit((grants, &nodes), operation, rule, (claim, again), since)
    }

    /// Gives the lock that `token` holds this new claim on all nodes, and so another keeper or none. Nothing is
    /// undone if that fails: the previous keeper may still count on the lock.
    pub(super) fn take_over(
        grants: &Arc<Grants>,
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Claim,
    ) -> Acquire {
        let (since, nodes) = (Instant::now(), grants.nodes());
        let request = scripts::take_over(nodes.dialect, &nodes.wanted(&key, &token, ttl, claim));
        let kind = Kind::Acquire { claim, again: true };
        let operation = nodes.operation(kind, key, token, ttl, request);
        let (by, rule) = ((grants, &*nodes), Rule::Grant);
        let mut taking = Acquire::submit(by, operation, rule, (claim, true), since);
        taking.takes_over = true;
        taking
    }

    /// Passes `key` on from one grant to a new one on all nodes. Counted by [`Rule::Release`], the operation's votes
    /// say whether the giver held the lock.
    pub(super) fn hand_over(
        (grants, nodes): (&Arc<Grants>, &Arc<Nodes>),
        (from, giver): (Token, Claim),
        key: Key,
        token: Token,
        ttl: Duration,
    ) -> (Acquire, Arc<Operation>) {
        let (since, claim) = (Instant::now(), Claim::new());
        let wanted = nodes.wanted(&key, &token, ttl, claim);
        let request = scripts::hand_over(nodes.dialect, &from, giver, &wanted);
        let kind = Kind::HandOver { claim };
        let operation = nodes.operation(kind, key, token, ttl, request).given_by(from, giver);
        let (by, rule) = ((grants, nodes), Rule::Grant);
        let acquire = Acquire::submit(by, operation, rule, (claim, false), since);
        let operation = acquire.tally.operation.clone();
        (acquire, operation)
    }

    fn submit(
        (grants, nodes): (&Arc<Grants>, &Arc<Nodes>),
        operation: Operation,
        rule: Rule,
        (claim, again): (Claim, bool),
        since: Instant,
    ) -> Acquire {
        let ttl = operation.ttl;
        let operation = nodes.submit(operation);
        let tally = nodes.await_votes(operation, rule, ttl);
        let (grants, raising) = (grants.clone(), None);
        let (takes_over, only_again, card, done) = (false, false, None, false);
        Acquire {
            grants,
            since,
            ttl,
            claim,
            again,
            takes_over,
            only_again,
            card,
            tally,
            raising,
            done,
        }
    }

    /// Has the attempt refused if the grant with the claim to be granted again has ended.
    pub(super) fn only_again(mut self) -> Acquire {
        self.only_again = true;
        self
    }

    /// Notes which client asks.
    pub(crate) fn by(mut self, card: &Arc<ClientCard>) -> Acquire {
        self.card = Some(card.clone());
        self
    }

    /// Returns the operation's timer, for reuse.
    pub(crate) fn alarm(&mut self) -> &mut Alarm {
        &mut self.tally.alarm
    }

    fn granted(&mut self, fence: u64) -> Result<Grant, NotGranted> {
        let now = Instant::now();
        match self.tally.nodes.validity(self.ttl, self.since, now) {
            Some(validity) => {
                self.done = true;
                let operation = &self.tally.operation;
                let until = self.since + self.ttl;
                debug_assert!(
                    self.granting() >= self.tally.nodes.quorum(),
                    "a quorum votes for it"
                );
                debug_assert!(now + validity <= until, "a validity ends before its lock does");
                operation.grant();
                let (key, token) = (&operation.key, &operation.token);
                let card = self.card.take();
                let holder = Holder::new(token, self.claim, fence, now, until).by(card);
                self.grants.granted(key, holder);
                if self.again && !self.takes_over {
                    self.grants.heal_once_told(&self.tally.nodes, operation, self.claim, self.ttl);
                }
                self.put_on_waiting();
                self.tally.nodes.learn_fence(fence);
                let until = now + validity;
                Ok(Grant { fence, claim: Some(self.claim), validity, until })
            }
            // The votes came so late that no validity is left.
            None => Err(self.no_quorum(&self.tally.operation.votes())),
        }
    }

    /// Asks for the lock by a new claim, as the previous grant has ended. Nodes that still have that grant give it
    /// back first. The old claim takes nothing anew: another proxy's release of it may still be on its way to a node,
    /// and would end the new grant there.
    fn start_over(&mut self) {
        let (grants, asked) = (self.grants.clone(), self.tally.operation.clone());
        let (key, token) = (asked.key.clone(), asked.token.clone());
        let nodes = &self.tally.nodes;
        nodes.submit(nodes.releasing(key.clone(), token.clone(), self.claim));
        asked.close();
        self.done = true;
        let card = self.card.take();
        *self = Acquire::ask(&grants, key, token, self.ttl, None);
        self.card = card;
    }

    /// Puts a lock that was just granted on the nodes that may not grant now, but keep what is put on them. Once such
    /// a node votes it must have the lock, as another node may then lose it by a restart.
    fn put_on_waiting(&self) {
        let operation = &self.tally.operation;
        let votes = operation.votes();
        let waits = |node: &usize| {
            matches!(
                votes[*node],
                Vote::Missing(Absence::Quarantined | Absence::Jumped | Absence::Paused)
            )
        };
        if (0..votes.len()).any(|node| waits(&node)) {
            let waiting = (0..votes.len()).filter(waits);
            let grant = (&operation.key, &operation.token, self.claim);
            self.grants.put_back((&self.tally.nodes, waiting), grant);
        }
    }

    /// Gives the attempt up. Returns the answer that another grant holds the lock.
    fn held(&mut self) -> NotGranted {
        self.give_up();
        let votes = self.tally.operation.votes();
        let may_be_free = self.granting() > 0;
        // The lock may be free once a quorum of nodes is.
        let mut held: Vec<Option<Duration>> = votes
            .iter()
            .filter_map(|vote| match vote {
                Vote::Yes(_) | Vote::Taken(_) => Some(Some(Duration::ZERO)),
                Vote::No(millis) | Vote::Same { left: millis, .. } => {
                    Some(u64::try_from(*millis).ok().map(Duration::from_millis))
                }
                _ => None,
            })
            .collect();
        // A key without a TTL comes last.
        held.sort_by_key(|remaining| remaining.unwrap_or(Duration::MAX));
        let remaining = held.get(self.tally.nodes.quorum() - 1).copied().flatten();
        let same = votes.iter().filter_map(|vote| match vote {
            Vote::Same { claim, .. } => Some(Claim::told(*claim)),
            _ => None,
        });
        let same_token = SameToken::Grants(same.collect());
        NotGranted::Held { remaining, may_be_free, same_token }
    }

    /// Gives the attempt up. Returns the answer to votes that do not decide, or came too late.
    fn no_quorum(&mut self, votes: &[Vote]) -> NotGranted {
        self.give_up();
        NotGranted::NoQuorum(self.tally.nodes.no_quorum(&self.tally.operation.key, votes))
    }

    /// Undoes this attempt on every node that may have granted it, whether the node answered or
    /// not.
    ///
    /// An attempt that only prolongs has taken nothing. What the same claim had before stays, though it may have ended
    /// as far as this proxy knows: its holder may have renewed it through another one.
    fn give_up(&mut self) {
        self.done = true;
        let operation = &self.tally.operation;
        debug_assert!(!operation.is_granted(), "a grant is released, and not undone");
        operation.close();
        if self.again {
            return;
        }
        let undo = Arc::new(operation.undo(self.claim));
        for (node, vote) in operation.votes().into_iter().enumerate() {
            match vote {
                // Nothing to undo: the node was never asked, or the undo is on the list for its next connection.
                Vote::Missing(Absence::Down | Absence::Busy | Absence::Disconnected) => {}
                _ => self.tally.nodes.submit_to(node, &undo),
            }
        }
    }

    /// Returns the number of nodes that granted the lock.
    fn granting(&self) -> usize {
        let granted = |vote: &Vote| matches!(vote, Vote::Yes(_) | Vote::Taken(_));
        self.tally.operation.votes().into_iter().filter(granted).count()
    }

    /// Returns the largest fence that a granting node gave, and the number of nodes that store it.
    fn fence(&self) -> (u64, usize) {
        let (mut fence, mut stored) = (0, 0);
        for vote in self.tally.operation.votes() {
            if let Vote::Yes(given) | Vote::Taken(given) = vote {
                let given = u64::try_from(given).unwrap_or(0);
                if given > fence {
                    (fence, stored) = (given, 0);
                }
                stored += usize::from(given == fence);
            }
        }
        (fence, stored)
    }
}

impl Future for Acquire {
    type Output = Result<Grant, NotGranted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.raising.is_none() {
            loop {
                match ready!(self.tally.poll_decision(cx)) {
                    Decision::Yes => break,
                    // A reader's key names its grant.
                    Decision::No
                        if self.again
                            && !self.takes_over
                            && !self.only_again
                            && !self.tally.operation.key.is_of_reader() =>
                    {
                        self.start_over();
                    }
                    Decision::No => return Poll::Ready(Err(self.held())),
                    Decision::NoQuorum | Decision::Open => {
                        let votes = self.tally.operation.votes();
                        return Poll::Ready(Err(self.no_quorum(&votes)));
                    }
                }
            }
            let (fence, stored) = self.fence();
            if stored >= self.tally.nodes.quorum() {
                return Poll::Ready(self.granted(fence));
            }
            let (nodes, asked) = (&self.tally.nodes, &self.tally.operation);
            let key = asked.key.clone();
            let request = scripts::raise(
                nodes.dialect,
                &key,
                &asked.token,
                fence,
                nodes.fence_ttl,
                self.claim,
            );
            let nobody = Token::from("");
            let raising = nodes.ask(Kind::Raise, Rule::Grant, key, nobody, self.ttl, request);
            self.raising = Some((fence, raising));
        }
        let Some((fence, raising)) = &mut self.raising else { return Poll::Pending };
        let fence = *fence;
        let decision = ready!(raising.poll_decision(cx));
        let votes = raising.operation.votes();
        Poll::Ready(match decision {
            Decision::Yes => {
                debug_assert!(
                    storing(&votes, fence) >= self.tally.nodes.quorum(),
                    "a quorum stores the fence"
                );
                self.granted(fence)
            }
            _ => Err(self.no_quorum(&votes)),
        })
    }
}

/// Returns the number of nodes whose answer says that they store `fence` or a larger one.
fn storing(votes: &[Vote], fence: u64) -> usize {
    let stores = |stored: &i64| u64::try_from(*stored).is_ok_and(|stored| stored >= fence);
    votes.iter().filter(|vote| matches!(vote, Vote::Yes(stored) if stores(stored))).count()
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if !self.done {
            self.give_up();
        }
    }
}
