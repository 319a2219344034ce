//! Whether a session lock was lost for a reason.
//!
//! What is known here is more than any proxy knows: what each node had of the lock, and
//! when it could be asked by the lock's proxy. From that follows what the proxy should have
//! made of it, by docs/design/locks.md, "Session locks":
//!
//! - **renewed**: where a quorum of nodes had the lock and could be asked for as long as one
//!   renewal that fails and the next one take, between a third of the TTL and the end of
//!   the validity, the lock should have been renewed;
//! - **put back**: where besides a node that had lost it could be asked for as long as two
//!   renewals take, the lock should have been put back there;
//! - **kept**: no node has ended it by a command.
//!
//! A loss with none of these is one that no proxy could have helped.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{
    NODE_TIMEOUT,
    redis::{Cause, Had},
};
use crate::lock::Claim;

/// A proxy has found a node that is well again after so long: its longest pause between two
/// attempts (2 s), and a handshake of which every message may take ten times as long as
/// others, or a round in which a node is given its seat.
const FOUND: Duration = Duration::from_secs(3);
/// So long after a node was told a newer epoch a proxy has learned it there: it asks all
/// nodes at most every 500 ms, and waits for the slowest of them for up to a second.
const LEARNED: Duration = Duration::from_millis(1500);
/// For so long a node whose clock has jumped waits from when that is seen: the longest TTL
/// with its drift.
const WAITS: Duration = Duration::from_millis(1652);
/// A node that can be asked is asked for its time at least so often.
const SEEN: Duration = Duration::from_secs(1);
/// How far back it is looked whether a lock should have been put back.
const LOOKED_BACK: Duration = Duration::from_secs(8);
/// Of timers, which count whole milliseconds.
const SLACK: Duration = Duration::from_millis(10);
/// Time is looked at in such steps.
const STEP: Duration = Duration::from_millis(2);
/// A renewal goes out at a third of the TTL, and again a twentieth after it has failed; nodes
/// have a tenth for each.
const RENEWED: u32 = 3;
const AGAIN: u32 = 20;
const ASKED: u32 = 10;

/// A session lock of which its holder was told just now that it is lost.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) proxy: usize,
    /// On the nodes.
    pub(super) key: Vec<u8>,
    pub(super) claim: Claim,
    /// The TTL that it had at last, and since when: what was before is not judged, as who
    /// renews a lock for another TTL may change what its nodes can be asked for in time.
    pub(super) ttl: Duration,
    pub(super) since: Instant,
    /// The largest part of a TTL that is valid.
    pub(super) valid: f64,
    /// The longest that a message takes but now and then.
    pub(super) delay: Duration,
}

/// Why it was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// A quorum of clocks have jumped.
    Clocks,
    /// Too few nodes had it any more.
    Forgotten,
    /// Too few nodes could be asked.
    Unreachable,
    /// Its TTL was so short that there was no time to renew it twice.
    TooShort,
}

/// What went wrong on the ways to the nodes, and when.
#[derive(Debug, Default)]
pub(super) struct History {
    failures: Vec<Failure>,
    messages: Vec<Message>,
    links: Vec<VoteLink>,
    /// Connections that have ended.
    ended: HashSet<u64>,
    /// Nodes that were told a newer epoch.
    marked: Vec<(usize, Instant)>,
    /// Who has asked which node by the epoch that it has.
    proven: Vec<(usize, usize, Instant)>,
    jumped: Vec<(usize, Instant)>,
    /// Nodes have had markers of several deployments at once.
    pub(super) was_split: bool,
}

/// A node could not be asked.
#[derive(Debug)]
struct Failure {
    node: usize,
    /// By whom; none: by anybody.
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
    /// Something happened to the node, which lasts for so long.
    pub(super) fn failed(&mut self, node: usize, proxy: Option<usize>, time: Duration) {
        let from = Instant::now();
        self.failures.push(Failure { node, proxy, from, until: from + time });
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
        // A node carries out what it has received, though nobody hears of it.
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

    /// `records`: what each node had.
    pub(super) fn reason_of(&self, loss: &Loss, records: &[&[Had]]) -> Result<Reason, String> {
        let now = Instant::now();
        let quorum = records.len() / 2 + 1;
        let had: Vec<Vec<&Had>> = records
            .iter()
            .map(|all| all.iter().filter(|had| had.key == loss.key).collect())
            .collect();
        let claim = loss.claim.to_string();
        let (asked, again) = (NODE_TIMEOUT.min(loss.ttl / ASKED), loss.ttl / AGAIN);
        // Of locks that are renewed together some have up to half as long.
        let least = Duration::from_millis(1 << (asked.as_millis() as u64).max(1).ilog2());
        let renewing = asked + again + asked + SLACK;
        let healing = loss.ttl / RENEWED + renewing + asked;
        let valid = loss.ttl.mul_f64(loss.valid).saturating_sub(loss.ttl / RENEWED);
        let renewed_from = (loss.since + loss.ttl / RENEWED).max(now - valid);
        let first = loss.since.max(now - LOOKED_BACK);
        let nodes: Vec<NodeHistory<'_>> =
            (0..records.len()).map(|node| self.node(node, loss, &had[node], least / 2)).collect();
        let jumped = |node: &usize| {
            let jumps = self.jumped.iter().filter(|(which, _)| which == node);
            jumps.into_iter().any(|(_, at)| nodes[*node].seen_by(*at, now) + WAITS >= now)
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
        // For how long without interruption each could be asked and had it, or lacked it.
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
            // Renewed then, it can have been lost since only if too few were left that had it.
            // What a node has lost while it could be renewed may have been lost behind that.
            let kept =
                |node: &&usize| left >= quorum || !nodes[**node].lost_since(at - renewing, &claim);
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

    /// What is known of one node, for who waits for an answer for twice as long as `most`.
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
        // It is found again some time after it can be; and once a seat is given to another,
        // all connections are made anew.
        let disturbed = failures.iter().map(|one| one.until);
        let disturbed = disturbed.chain(self.marked.iter().map(|(_, at)| *at));
        let sought: Vec<(Instant, Instant)> = disturbed.map(|at| (at, at + FOUND)).collect();
        let mut sought: Vec<(Instant, Instant)> =
            failures.iter().map(|one| (one.from, one.until)).chain(sought).collect();
        // A node that belongs to another deployment is not asked at all, for as long as it does.
        if self.was_split {
            sought.push((now - LOOKED_BACK, now));
        }
        let linked = links.iter().map(|link| (link.from, link.until.unwrap_or(now))).collect();
        NodeHistory { had, not, linked, sought }
    }
}

/// One node, as one proxy could ask it for one lock.
struct NodeHistory<'a> {
    had: &'a [&'a Had],
    /// When it could not be asked, from and until then.
    not: Vec<(Instant, Instant)>,
    /// When the proxy was connected.
    linked: Vec<(Instant, Instant)>,
    /// When it need not have been connected.
    sought: Vec<(Instant, Instant)>,
}

impl NodeHistory<'_> {
    fn could_be_asked(&self, at: Instant) -> bool {
        let within = |spans: &[(Instant, Instant)]| {
            spans.iter().any(|(from, until)| *from <= at && at <= *until)
        };
        !within(&self.not) && (within(&self.linked) || !within(&self.sought))
    }

    /// When at the latest the proxy has seen what was so from then on.
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

    /// When it has lost this grant's lock before its time.
    fn lost(&self, claim: &str) -> impl Iterator<Item = &Had> {
        let whose = move |had: &Had| had.by.as_ref().is_some_and(|(whose, _)| whose == claim);
        let lost = self.had.windows(2).filter(move |pair| whose(pair[0]) && pair[1].was_ended);
        lost.map(|pair| pair[1])
    }

    /// Whether it has lost it since then, or its clock was set.
    fn lost_since(&self, at: Instant, claim: &str) -> bool {
        let is_set = self.had.iter().any(|had| had.at >= at && had.cause == Cause::Clock);
        is_set || self.lost(claim).any(|had| had.at >= at)
    }

    /// By whose claim.
    fn held_by(&self, at: Instant) -> Option<&str> {
        let had = self.had.iter().rev().find(|had| had.at <= at)?;
        had.by.as_ref().filter(|(_, until)| *until > at).map(|(claim, _)| claim.as_str())
    }
}
