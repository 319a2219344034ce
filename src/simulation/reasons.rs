//! Whether a session lock was lost for a reason.
//!
//! More is known here than any proxy knows: which locks each node had, and when the lock's proxy
//! could ask it. From that follows what the proxy should have done, by docs/design/keeping.md,
//! "Session locks":
//!
//! - **renewed**: if a quorum of nodes had the lock and could be asked for as long as one failed
//!   renewal and the next one take, between a third of the TTL and the end of the validity, the
//!   lock should have been renewed;
//! - **put back**: if besides a node that had lost it could be asked for as long as two renewals
//!   take, the lock should have been put back there;
//! - **kept**: no node has ended it by a command.
//!
//! A loss that breaks none of these is one that no proxy could have prevented.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{
    NODE_TIMEOUT,
    redis::{Cause, Had},
};
use crate::lock::Claim;

/// The time after which a proxy has found a node that is well again: its longest pause between two
/// attempts (2 s), and a handshake of which every message may take ten times as long as others, or
/// a round in which a node is given its seat.
const FOUND: Duration = Duration::from_secs(3);
/// The time after which a proxy has learned of a newer epoch that a node got: it asks all nodes at most every 500 ms,
/// and waits for the slowest of them for up to a second.
const LEARNED: Duration = Duration::from_millis(1500);
/// The time for which a node waits after its clock was seen to jump: the longest TTL with its
/// drift. Where locks are adopted, it is longer.
const WAITS: Duration = Duration::from_millis(1652);
const WAITS_FOR_ADOPTED: Duration = Duration::from_millis(2085);
/// The longest time between two TIMEs sent to a node that can be asked.
const SEEN: Duration = Duration::from_secs(1);
/// How far back the check looks for a lock that should have been put back.
const LOOKED_BACK: Duration = Duration::from_secs(8);
/// The error of timers, which count whole milliseconds.
const SLACK: Duration = Duration::from_millis(10);
/// The step by which the check walks through time.
const STEP: Duration = Duration::from_millis(2);
/// Shares of the TTL: a renewal goes out at a third of it, and again a twentieth after it has
/// failed; nodes have a tenth for each.
const RENEWED: u32 = 3;
const AGAIN: u32 = 20;
const ASKED: u32 = 10;

/// A session lock whose holder was told just now that it is lost.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) proxy: usize,
    /// The lock's key on the nodes.
    pub(super) key: Vec<u8>,
    pub(super) claim: Claim,
    /// The lock's last TTL, and since when it had that. Earlier TTLs are not judged: renewing a
    /// lock for another TTL may change what its nodes can be asked for in time.
    pub(super) ttl: Duration,
    pub(super) since: Instant,
    /// The largest part of a TTL that is valid.
    pub(super) valid: f64,
    /// The longest time that a message takes, with rare exceptions.
    pub(super) delay: Duration,
    /// Whether locks are adopted.
    pub(super) adopts: bool,
}

/// Why a session lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// A quorum of clocks had jumped.
    Clocks,
    /// Too few nodes still had the lock.
    Forgotten,
    /// Too few nodes could be asked.
    Unreachable,
    /// The lock's TTL was so short that there was no time to renew it twice.
    TooShort,
}

/// Faults on the ways to the nodes, and their times.
#[derive(Debug, Default)]
pub(super) struct History {
    failures: Vec<Failure>,
    messages: Vec<Message>,
    links: Vec<VoteLink>,
    /// Connections that have ended.
    ended: HashSet<u64>,
    /// The nodes that got a newer epoch, and when.
    marked: Vec<(usize, Instant)>,
    /// The node and the proxy of each request that named the node's epoch, and its time.
    proven: Vec<(usize, usize, Instant)>,
    jumped: Vec<(usize, Instant)>,
    /// The nodes that were restarted, and when.
    restarted: Vec<(usize, Instant)>,
    /// Whether nodes have had markers of several deployments at once.
    pub(super) was_split: bool,
}

/// A time in which a node could not be asked.
#[derive(Debug)]
struct Failure {
    node: usize,
    /// The proxy that could not ask. `None`: all of them.
    proxy: Option<usize>,
    from: Instant,
    until: Instant,
}

#[derive(Debug)]
struct Message {
    node: usize,
    connection: u64,
    sent: Instant,
    arrives: Instant,
}

/// A connection over which a proxy asks for votes.
#[derive(Debug)]
struct VoteLink {
    node: usize,
    proxy: usize,
    connection: u64,
    from: Instant,
    until: Option<Instant>,
}

impl History {
    /// Notes a fault of the node that lasts for `time`.
    pub(super) fn failed(&mut self, node: usize, proxy: Option<usize>, time: Duration) {
        let from = Instant::now();
        self.failures.push(Failure { node, proxy, from, until: from + time });
    }

    /// Notes that the node is another from now on: with or without its memory, it must be given its seat anew.
    pub(super) fn restarted(&mut self, node: usize) {
        self.failed(node, None, Duration::ZERO);
        self.restarted.push((node, Instant::now()));
    }

    /// Returns when the last fault of the node or of a way to it ends.
    pub(super) fn last_fault(&self, node: usize) -> Option<Instant> {
        let failures = self.failures.iter().filter(|failure| failure.node == node);
        failures.map(|failure| failure.until).max()
    }

    pub(super) fn forgot_scripts(&mut self, node: usize) {
        self.failed(node, None, FOUND);
    }

    pub(super) fn has_scripts(&mut self, node: usize) {
        let now = Instant::now();
        let open = |failure: &&mut Failure| {
            failure.node == node && failure.proxy.is_none() && failure.until == failure.from + FOUND
        };
        self.failures.iter_mut().filter(open).for_each(|one| one.until = one.until.min(now));
    }

    pub(super) fn jumped(&mut self, node: usize) {
        self.jumped.push((node, Instant::now()));
    }

    pub(super) fn marked(&mut self, node: usize) {
        self.marked.push((node, Instant::now()));
    }

    pub(super) fn proven(&mut self, node: usize, proxy: usize) {
        self.proven.push((node, proxy, Instant::now()));
    }

    pub(super) fn sent(&mut self, node: usize, connection: u64, arrives: Instant) {
        self.messages.push(Message { node, connection, sent: Instant::now(), arrives });
    }

    pub(super) fn linked(&mut self, node: usize, proxy: usize, connection: u64) {
        let from = Instant::now();
        // A node carries out what it has received, even after the connection has ended.
        if self.ended.contains(&connection) {
            return;
        }
        self.links.push(VoteLink { node, proxy, connection, from, until: None });
    }

    pub(super) fn unlinked(&mut self, connection: u64) {
        self.ended.insert(connection);
        let link = self.links.iter_mut().find(|link| link.connection == connection);
        link.into_iter().for_each(|link| link.until = Some(Instant::now()));
    }

    /// Returns why a session lock was lost, or an error if it should have been kept. `records` are the locks that
    /// each node had.
    pub(super) fn reason_of(&self, loss: &Loss, records: &[&[Had]]) -> Result<Reason, String> {
        let now = Instant::now();
        let quorum = records.len() / 2 + 1;
        let had: Vec<Vec<&Had>> = records
            .iter()
            .map(|all| all.iter().filter(|had| had.key == loss.key).collect())
            .collect();
        let claim = loss.claim.to_string();
        let (asked, again) = (NODE_TIMEOUT.min(loss.ttl / ASKED), loss.ttl / AGAIN);
        // Nodes may get as little as half that time to answer for a lock that is renewed together with others.
        let least = Duration::from_millis(1 << (asked.as_millis() as u64).max(1).ilog2());
        let renewing = asked + again + asked + SLACK;
        let healing = loss.ttl / RENEWED + renewing + asked;
        let valid = loss.ttl.mul_f64(loss.valid).saturating_sub(loss.ttl / RENEWED);
        let renewed_from = (loss.since + loss.ttl / RENEWED).max(now - valid);
        let first = loss.since.max(now - LOOKED_BACK);
        let nodes: Vec<NodeHistory<'_>> =
            (0..records.len()).map(|node| self.node(node, loss, &had[node], least / 2)).collect();
        let waits = if loss.adopts { WAITS_FOR_ADOPTED } else { WAITS };
        let jumped = |node: &usize| {
            let jumps = self.jumped.iter().filter(|(which, _)| which == node);
            jumps.into_iter().any(|(_, at)| nodes[*node].seen_by(*at, now) + waits >= now)
        };
        if (0..records.len()).filter(jumped).count() >= quorum {
            return Ok(Reason::Clocks);
        }
        let ended = |node: &NodeHistory<'_>| {
            node.lost(&claim).any(|had| had.cause == Cause::Command && had.at < now)
        };
        if let Some(node) = nodes.iter().position(ended) {
            return Err(format!("node {node} has ended it"));
        }
        let left = nodes.iter().filter(|node| node.held_by(now) == Some(claim.as_str())).count();
        // The times since which each node could be asked without interruption and had the lock, or
        // lacked it.
        let (mut has, mut lacks) = (vec![None; nodes.len()], vec![None; nodes.len()]);
        let mut at = first;
        while at < now {
            for (index, node) in nodes.iter().enumerate() {
                let (asked, by) = (node.could_be_asked(at), node.held_by(at));
                let is = [asked && by == Some(claim.as_str()), asked && by.is_none()];
                for (since, is) in [&mut has[index], &mut lacks[index]].into_iter().zip(is) {
                    *since = if is { since.or(Some(at)) } else { None };
                }
            }
            let lasting = |since: &Option<Instant>, time: Duration, from: Instant| {
                since.is_some_and(|since| at >= since.max(from) + time)
            };
            let healthy = has.iter().filter(|since| lasting(since, healing, first)).count();
            if healthy >= quorum
                && let Some(node) = lacks.iter().position(|since| lasting(since, healing, first))
            {
                return Err(format!(
                    "{:?} ago it should have been put back on node {node}",
                    now - at
                ));
            }
            let renewed = |node: &usize| lasting(&has[*node], renewing, renewed_from);
            let renewed: Vec<usize> = (0..nodes.len()).filter(renewed).collect();
            // A lock renewed then can have been lost since only if too few nodes were left that had
            // it. A node that could be asked for the renewal may have lost the lock behind it. Or
            // a quorum without it was renewed just before: then no other renewal was due in which
            // it could be asked, and the lock ran out there.
            let just_before = at - loss.ttl / RENEWED - asked - SLACK;
            let is_not_due =
                nodes.iter().filter(|node| node.renewed_between(just_before, at, &claim)).count()
                    >= quorum;
            let kept = |node: &&usize| {
                let node = &nodes[**node];
                let ran_out = || is_not_due && node.held_by(now).is_none();
                left >= quorum || !(node.lost_since(at - renewing, &claim) || ran_out())
            };
            if renewed.len() >= quorum && renewed.iter().filter(kept).count() >= quorum {
                return Err(format!("{:?} ago it should have been renewed", now - at));
            }
            at += STEP;
        }
        Ok(if left < quorum {
            Reason::Forgotten
        } else if now < renewed_from + renewing || 2 * loss.delay >= least {
            Reason::TooShort
        } else {
            Reason::Unreachable
        })
    }

    /// Returns the history of one node, for a proxy that waits for an answer for twice `most`, once for each way.
    fn node<'a>(
        &self,
        node: usize,
        loss: &Loss,
        had: &'a [&'a Had],
        most: Duration,
    ) -> NodeHistory<'a> {
        let now = Instant::now();
        let proxy = loss.proxy;
        let links: Vec<&VoteLink> =
            self.links.iter().filter(|link| link.node == node && link.proxy == proxy).collect();
        let failures: Vec<&Failure> = self
            .failures
            .iter()
            .filter(|one| one.node == node && one.proxy.is_none_or(|whose| whose == proxy))
            .collect();
        let mut not: Vec<(Instant, Instant)> =
            failures.iter().map(|one| (one.from, one.until)).collect();
        for message in &self.messages {
            if message.node == node
                && message.arrives + LOOKED_BACK >= now
                && message.arrives - message.sent > most
                && links.iter().any(|link| link.connection == message.connection)
            {
                not.push((message.sent, message.arrives));
            }
        }
        for (_, at) in self.marked.iter().filter(|(which, _)| *which == node) {
            let known =
                |one: &&(usize, usize, Instant)| (one.0, one.1) == (node, proxy) && one.2 >= *at;
            let known = self.proven.iter().find(known).map(|one| one.2);
            not.push((*at, known.unwrap_or(*at + LEARNED).min(*at + LEARNED)));
        }
        // A proxy may find a node only some time after it can. And once a seat is given to another node, all
        // connections are made anew.
        let disturbed = failures.iter().map(|one| one.until);
        let disturbed = disturbed.chain(self.marked.iter().map(|(_, at)| *at));
        let sought: Vec<(Instant, Instant)> = disturbed.map(|at| (at, at + FOUND)).collect();
        let mut sought: Vec<(Instant, Instant)> =
            failures.iter().map(|one| (one.from, one.until)).chain(sought).collect();
        // A node that was restarted or has lost its memory is given its seat by the others, once enough of them can be
        // asked.
        let has_forgotten = |had: &&Had| had.cause == Cause::Memory && had.at + LOOKED_BACK >= now;
        let is_another =
            |(which, at): &(usize, Instant)| *which == node && *at + LOOKED_BACK >= now;
        if had.iter().any(has_forgotten) || self.restarted.iter().any(is_another) {
            let waits = if loss.adopts { WAITS_FOR_ADOPTED } else { WAITS };
            let failed = self.failures.iter().filter(|one| one.node != node);
            sought.extend(failed.map(|one| (one.from, one.until + FOUND)));
            let jumped = self.jumped.iter().filter(|(which, _)| *which != node);
            sought.extend(jumped.map(|(_, at)| (*at, *at + SEEN + waits + FOUND)));
        }
        // A node that belongs to another deployment is not asked at all, for as long as it does.
        if self.was_split {
            sought.push((now - LOOKED_BACK, now));
        }
        let linked = links.iter().map(|link| (link.from, link.until.unwrap_or(now))).collect();
        NodeHistory { had, not, linked, sought }
    }
}

/// One node's history, as one proxy could ask it for one lock.
struct NodeHistory<'a> {
    had: &'a [&'a Had],
    /// Times in which the node could not be asked.
    not: Vec<(Instant, Instant)>,
    /// Times in which the proxy was connected.
    linked: Vec<(Instant, Instant)>,
    /// Times in which the proxy need not have been connected.
    sought: Vec<(Instant, Instant)>,
}

impl NodeHistory<'_> {
    fn could_be_asked(&self, at: Instant) -> bool {
        let within = |spans: &[(Instant, Instant)]| {
            spans.iter().any(|(from, until)| *from <= at && at <= *until)
        };
        !within(&self.not) && (within(&self.linked) || !within(&self.sought))
    }

    /// Returns the latest time by which the proxy has seen a change made at `from`.
    fn seen_by(&self, from: Instant, now: Instant) -> Instant {
        let (mut since, mut at) = (None, from);
        while at < now {
            since = if self.could_be_asked(at) { since.or(Some(at)) } else { None };
            if since.is_some_and(|since| at - since >= SEEN) {
                break;
            }
            at += STEP;
        }
        at
    }

    /// Returns the times at which the node lost this grant's lock too early.
    fn lost(&self, claim: &str) -> impl Iterator<Item = &Had> {
        let whose = move |had: &Had| had.by.as_ref().is_some_and(|(whose, _)| whose == claim);
        let lost = self.had.windows(2).filter(move |pair| whose(pair[0]) && pair[1].was_ended);
        lost.map(|pair| pair[1])
    }

    /// Whether the node has lost the lock since `at`, or its clock was set.
    fn lost_since(&self, at: Instant, claim: &str) -> bool {
        let is_set = self.had.iter().any(|had| had.at >= at && had.cause == Cause::Clock);
        is_set || self.lost(claim).any(|had| had.at >= at)
    }

    /// Whether this grant was renewed or put back on the node in that time.
    fn renewed_between(&self, from: Instant, until: Instant, claim: &str) -> bool {
        self.had.iter().any(|had| {
            let is_its = had.by.as_ref().is_some_and(|(whose, _)| whose == claim);
            is_its && had.cause == Cause::Command && from <= had.at && had.at <= until
        })
    }

    /// Returns the claim of the grant that held the lock at that time.
    fn held_by(&self, at: Instant) -> Option<&str> {
        let had = self.had.iter().rev().find(|had| had.at <= at)?;
        had.by.as_ref().filter(|(_, until)| *until > at).map(|(claim, _)| claim.as_str())
    }
}
