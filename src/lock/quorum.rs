//! Votes and validity: pure arithmetic, without clocks or connections. The words are those of
//! Redlock (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>).

use std::time::Duration;

/// The constant part of the clock drift: Redis expires keys with a precision of one millisecond,
/// and rounding to milliseconds here costs as much again.
pub(super) const DRIFT: Duration = Duration::from_millis(2);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: quorums of this thread are one too small.
    pub(crate) static TOO_SMALL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns the smallest majority of `nodes`: any two quorums share a node.
pub(super) fn quorum(nodes: usize) -> usize {
    #[cfg(test)]
    if TOO_SMALL.get() {
        return nodes / 2;
    }
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "quorum") {
        return nodes / 2;
    }
    nodes / 2 + 1
}

/// The least validity worth telling: clients are told whole milliseconds.
const LEAST: Duration = Duration::from_millis(1);

/// Returns the shortest TTL that leaves [`LEAST`] if nodes answer at once, in whole milliseconds.
pub(crate) fn shortest_ttl(drift_factor: f64) -> Duration {
    ttl_for(LEAST, Duration::ZERO, drift_factor)
}

/// Returns the shortest TTL, in whole milliseconds, that leaves `validity` if nodes answer within `elapsed`.
pub(crate) fn ttl_for(validity: Duration, elapsed: Duration, drift_factor: f64) -> Duration {
    let ttl = (validity + elapsed + DRIFT).as_secs_f64() / (1.0 - drift_factor);
    Duration::from_millis((ttl * 1000.0).ceil() as u64)
}

/// Returns the part of `ttl` that is left for the holder after `elapsed`. Returns `None` if it is less than 1 ms.
///
/// `ttl × drift_factor + 2 ms` are set aside, as a node's clock may run faster than the proxy's.
/// `elapsed` counts from before the first node was asked.
pub(crate) fn validity(ttl: Duration, elapsed: Duration, drift_factor: f64) -> Option<Duration> {
    let drift = ttl.mul_f64(drift_factor) + DRIFT;
    #[cfg(feature = "planted")]
    let drift = match std::env::var("LOCKGATE_PLANT") {
        Ok(fault) if fault == "drift" => Duration::ZERO,
        _ => drift,
    };
    let left = ttl.checked_sub(elapsed)?.checked_sub(drift).filter(|left| *left >= LEAST);
    debug_assert!(left.is_none_or(|left| left <= ttl), "a validity is no longer than its TTL");
    left
}

/// Returns the two numbers between which the fence of a lock's grant lies. `stored` are the fences on those of the
/// `nodes` where its holder has it. Returns `None` if they are too few to tell.
///
/// The nodes that voted for the grant, a quorum, store at most its fence, and a quorum stores at least that. The
/// nodes that are left beside a quorum may store anything.
pub(super) fn fence_bounds(stored: &mut [u64], nodes: usize) -> Option<(u64, u64)> {
    debug_assert!(stored.len() <= nodes, "a lock node stores one fence of a lock");
    let others = nodes - quorum(nodes);
    let last = stored.len().checked_sub(1)?;
    let at = last.checked_sub(others)?;
    stored.sort_unstable();
    Some((stored[at], stored[last - at]))
}

/// Votes of the nodes so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Votes {
    /// All nodes.
    pub(super) nodes: usize,
    /// Votes for granted, released or renewed.
    pub(super) yes: usize,
    /// Hand-over only: votes that grant the lock to the taker, though not by the giver's release.
    pub(super) taken: usize,
    /// Votes that another token holds the lock, or that this token does not.
    pub(super) no: usize,
    /// Nodes that did not answer, and will not be waited for.
    pub(super) missing: usize,
}

/// The rule by which votes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// A quorum must say yes.
    Grant,
    /// A quorum must say yes. The lock is lost once so many say no that no quorum is left.
    Renewal,
    /// The lock was held if a quorum may have held it.
    Release,
    /// All nodes must have answered or be missing, whatever they say.
    All,
}

/// The outcome of the votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// More answers are needed.
    Open,
    Yes,
    /// No: enough nodes answered to rule out a yes.
    No,
    /// Too few nodes answered to decide.
    NoQuorum,
}

impl Votes {
    /// Counts a node that names a holder, which `alike` nodes name, this one included. Yes counts the nodes that name
    /// the holder which most name; no counts all others that have answered.
    ///
    /// Decided by [`Rule::Renewal`], yes then means that a quorum names one holder, and no that no holder can be
    /// named by a quorum any more: even if all silent and missing nodes named it too, the holder that most name would
    /// have no quorum, so no other would.
    pub(super) fn named(&mut self, alike: usize) {
        let answered = self.answered() + 1;
        self.yes = self.yes.max(alike);
        self.no = answered - self.yes - self.taken;
    }

    /// Returns the votes in words.
    pub(super) fn told(self) -> String {
        let Votes { nodes, yes, no, missing, .. } = self;
        format!("{yes} yes, {no} no, {missing} missing of {nodes}")
    }

    /// Whether no node has answered, and a quorum still may.
    pub(super) fn are_unheard(self) -> bool {
        self.answered() == 0 && self.pending() >= quorum(self.nodes)
    }

    fn pending(self) -> usize {
        self.nodes - self.answered() - self.missing
    }

    fn answered(self) -> usize {
        self.yes + self.taken + self.no
    }

    /// Decides by this rule.
    pub(super) fn decide(self, rule: Rule) -> Decision {
        debug_assert!(self.answered() + self.missing <= self.nodes, "a lock node votes once");
        match rule {
            Rule::Grant => self.majority(),
            Rule::Renewal => self.renewal(),
            Rule::Release => self.release(),
            Rule::All if self.pending() == 0 => Decision::Yes,
            Rule::All => Decision::Open,
        }
    }

    /// Decides on a grant: a quorum must say yes.
    ///
    /// The answer is "held" as soon as a grant is impossible and a quorum has answered. Otherwise
    /// all nodes are waited for, so that "held" and "too few nodes" are never confused and the
    /// error names the right nodes.
    fn majority(self) -> Decision {
        let quorum = quorum(self.nodes);
        let granted = self.yes + self.taken;
        if granted >= quorum {
            Decision::Yes
        } else if granted + self.pending() >= quorum {
            Decision::Open
        } else if self.answered() >= quorum {
            Decision::No
        } else if self.pending() > 0 {
            Decision::Open
        } else {
            Decision::NoQuorum
        }
    }

    /// Decides on a renewal: a quorum must say yes. "Not held" needs so many denials that the other
    /// nodes are no quorum: nodes that are only slow may still hold the lock.
    fn renewal(self) -> Decision {
        let quorum = quorum(self.nodes);
        if self.yes >= quorum {
            Decision::Yes
        } else if self.no > self.nodes - quorum {
            Decision::No
        } else if self.pending() > 0 {
            Decision::Open
        } else {
            Decision::NoQuorum
        }
    }

    /// Decides on a release: the lock was held if the nodes that released it, with those that
    /// cannot say, may have been a quorum.
    fn release(self) -> Decision {
        let quorum = quorum(self.nodes);
        if self.yes >= quorum {
            Decision::Yes
        } else if self.no + self.taken > self.nodes - quorum {
            Decision::No
        } else if self.pending() > 0 {
            Decision::Open
        } else if self.answered() < quorum {
            Decision::NoQuorum
        } else if self.yes > 0 && self.yes + self.missing >= quorum {
            Decision::Yes
        } else {
            Decision::No
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_quorums_share_a_node() {
        for (nodes, expected) in [(1, 1), (3, 2), (5, 3), (7, 4), (9, 5)] {
            assert_eq!(quorum(nodes), expected);
            assert!(2 * quorum(nodes) > nodes);
        }
    }

    #[test]
    fn a_ttl_leaves_the_validity_that_it_is_for() {
        let ms = Duration::from_millis;
        for drift in [0.0, 0.01, 0.3] {
            for wanted in [1, 10, 999, 30_000, 3_600_000] {
                let ttl = ttl_for(ms(wanted), ms(100), drift);
                assert!(validity(ttl, ms(100), drift) >= Some(ms(wanted)), "{wanted} {drift}");
                let less = validity(ttl - ms(2), ms(100), drift);
                assert!(less < Some(ms(wanted)), "{wanted} {drift}");
            }
        }
    }

    #[test]
    fn validity_is_ttl_less_time_and_drift() {
        let ms = Duration::from_millis;
        assert_eq!(validity(ms(1000), ms(100), 0.01), Some(ms(888)));
        assert_eq!(validity(ms(1000), ms(987), 0.01), Some(ms(1)));
        assert_eq!(validity(ms(1000), ms(988), 0.01), None);
        assert_eq!(validity(ms(1000), ms(2000), 0.01), None);
        assert_eq!(validity(ms(2), ms(0), 0.0), None);
    }

    fn votes(yes: usize, no: usize, missing: usize) -> Votes {
        Votes { nodes: 5, yes, no, missing, taken: 0 }
    }

    #[test]
    fn what_was_taken_and_not_given_counts_for_one_side() {
        let votes = |yes, taken, no| Votes { nodes: 5, yes, taken, no, missing: 0 };
        assert_eq!(votes(3, 0, 0).decide(Rule::Grant), Decision::Yes);
        assert_eq!(votes(3, 0, 0).decide(Rule::Release), Decision::Yes);
        assert_eq!(votes(1, 2, 0).decide(Rule::Grant), Decision::Yes);
        assert_eq!(votes(1, 2, 0).decide(Rule::Release), Decision::Open);
        assert_eq!(votes(1, 3, 0).decide(Rule::Release), Decision::No);
        assert_eq!(votes(2, 0, 3).decide(Rule::Grant), Decision::No);
        assert_eq!(votes(2, 2, 0).decide(Rule::All), Decision::Open);
        assert_eq!(votes(2, 2, 1).decide(Rule::All), Decision::Yes);
    }

    #[test]
    fn a_grant_is_decided_as_early_as_it_can_be() {
        assert_eq!(votes(3, 0, 0).majority(), Decision::Yes);
        assert_eq!(votes(2, 2, 0).majority(), Decision::Open);
        assert_eq!(votes(0, 3, 0).majority(), Decision::No);
        assert_eq!(votes(2, 3, 0).majority(), Decision::No);
        assert_eq!(votes(1, 1, 2).majority(), Decision::Open);
        assert_eq!(votes(1, 2, 2).majority(), Decision::No);
        assert_eq!(votes(1, 1, 3).majority(), Decision::NoQuorum);
        assert_eq!(votes(0, 0, 3).majority(), Decision::Open);
        assert_eq!(votes(0, 0, 5).majority(), Decision::NoQuorum);
        assert_eq!(votes(2, 0, 3).majority(), Decision::NoQuorum);
    }

    #[test]
    fn nodes_are_all_late_if_none_has_answered_and_enough_may() {
        assert!(votes(0, 0, 0).are_unheard() && votes(0, 0, 2).are_unheard());
        for heard in [votes(1, 0, 0), votes(0, 1, 0), votes(0, 0, 3), votes(0, 0, 5)] {
            assert!(!heard.are_unheard(), "{heard:?}");
        }
    }

    #[test]
    fn a_renewal_fails_only_by_those_who_say_not_held() {
        assert_eq!(votes(3, 0, 0).renewal(), Decision::Yes);
        assert_eq!(votes(0, 3, 0).renewal(), Decision::No);
        assert_eq!(votes(2, 2, 0).renewal(), Decision::Open);
        assert_eq!(votes(2, 1, 2).renewal(), Decision::NoQuorum);
        assert_eq!(votes(0, 2, 3).renewal(), Decision::NoQuorum);
        assert_eq!(votes(2, 3, 0).renewal(), Decision::No);
    }

    #[test]
    fn a_release_is_believed_where_a_quorum_may_have_held() {
        assert_eq!(votes(3, 0, 0).release(), Decision::Yes);
        assert_eq!(votes(0, 3, 0).release(), Decision::No);
        assert_eq!(votes(2, 2, 0).release(), Decision::Open);
        assert_eq!(votes(2, 2, 1).release(), Decision::Yes);
        assert_eq!(votes(1, 2, 2).release(), Decision::Yes);
        assert_eq!(votes(1, 3, 1).release(), Decision::No);
        assert_eq!(votes(2, 0, 3).release(), Decision::NoQuorum);
    }

    #[test]
    fn the_fence_of_a_grant_is_what_a_quorum_stores() {
        let bounds = |stored: &[u64]| fence_bounds(&mut stored.to_vec(), 5);
        assert_eq!(bounds(&[7, 7, 7]), Some((7, 7)));
        assert_eq!(bounds(&[9, 7, 8]), Some((7, 9)));
        assert_eq!(bounds(&[9, 7, 7, 7]), Some((7, 7)));
        assert_eq!(bounds(&[9, 9, 7, 7]), Some((7, 9)));
        assert_eq!(bounds(&[9, 9, 7, 7, 7]), Some((7, 7)));
        assert_eq!(bounds(&[7, 7]), None);
        assert_eq!(bounds(&[]), None);
        assert_eq!(fence_bounds(&mut [5], 1), Some((5, 5)));
    }

    /// Counts these answers to the question which token holds a lock. `None`: the node is missing; 0: the lock is
    /// free there; others: holders.
    fn looked(nodes: usize, answers: &[Option<u8>]) -> Votes {
        let mut votes = Votes { nodes, ..Votes::default() };
        for (at, answer) in answers.iter().enumerate() {
            match answer {
                None => votes.missing += 1,
                Some(0) => votes.no += 1,
                Some(_) => votes.named(answers[..=at].iter().filter(|one| *one == answer).count()),
            }
        }
        votes
    }

    #[test]
    fn a_look_is_decided_as_early_as_it_can_be() {
        let look = |text: &str| {
            let answer = |answer| match answer {
                b'?' => None,
                b'-' => Some(0),
                holder => Some(holder),
            };
            let answers: Vec<Option<u8>> = text.bytes().map(answer).collect();
            looked(5, &answers).decide(Rule::Renewal)
        };
        for (answers, decision) in [
            ("aaa", Decision::Yes),
            ("abaca", Decision::Yes),
            ("??aaa", Decision::Yes),
            ("---", Decision::No),
            ("?---", Decision::No),
            ("aabb", Decision::Open),
            ("aabbc", Decision::No),
            ("abc", Decision::Open),
            ("abcd", Decision::No),
            ("ab-", Decision::Open),
            ("ab--", Decision::No),
            ("a--", Decision::Open),
            ("aa--", Decision::Open),
            ("a---", Decision::No),
            ("aa---", Decision::No),
            ("aa--?", Decision::NoQuorum),
            ("aabb?", Decision::NoQuorum),
            ("ab-?", Decision::Open),
            ("abc-?", Decision::No),
            ("--???", Decision::NoQuorum),
            ("aa???", Decision::NoQuorum),
            ("?????", Decision::NoQuorum),
        ] {
            assert_eq!(look(answers), decision, "{answers}");
        }
    }

    proptest! {
        #[test]
        fn a_look_stands_whatever_the_others_say(
            half in 0usize..4, answers in proptest::collection::vec(proptest::option::of(0u8..3), 7)
        ) {
            let nodes = 2 * half + 1;
            let answers = &answers[..nodes];
            let has = |answers: &[Option<u8>], holder: u8| {
                answers.iter().filter(|answer| **answer == Some(holder)).count()
            };
            let mut before = Decision::Open;
            for known in 0..=nodes {
                let now = looked(nodes, &answers[..known]).decide(Rule::Renewal);
                if before != Decision::Open {
                    prop_assert_eq!(before, now);
                }
                before = now;
                let answers = &answers[..known];
                let missing = answers.iter().filter(|answer| answer.is_none()).count();
                let holders = [1, 2].map(|holder| has(answers, holder));
                let expected = if holders.iter().any(|has| *has >= quorum(nodes)) {
                    Decision::Yes
                } else if holders.iter().chain([&0]).all(|has| {
                    has + missing + nodes - known < quorum(nodes)
                }) {
                    Decision::No
                } else if known < nodes {
                    Decision::Open
                } else {
                    Decision::NoQuorum
                };
                prop_assert_eq!(now, expected);
            }
        }

        #[test]
        fn the_bounds_of_a_fence_have_it_between_them(
            half in 0usize..4,
            given in proptest::collection::vec(1u64..9, 7),
            order in Just((0usize..7).collect::<Vec<_>>()).prop_shuffle(),
            raised in Just((0usize..7).collect::<Vec<_>>()).prop_shuffle(),
            told in Just((0usize..7).collect::<Vec<_>>()).prop_shuffle(),
            more in 0usize..4,
        ) {
            let nodes = 2 * half + 1;
            let quorum = quorum(nodes);
            let those = |order: &[usize], many: usize| -> Vec<usize> {
                order.iter().copied().filter(|node| *node < nodes).take(many).collect()
            };
            // Each node gives its own fence. The first quorum's votes decide, and the second round
            // reaches another quorum.
            let mut stored = given[..nodes].to_vec();
            let voters = those(&order, quorum);
            let fence = voters.iter().map(|node| stored[*node]).max().unwrap();
            if voters.iter().any(|node| stored[*node] != fence) {
                for node in those(&raised, quorum) {
                    stored[node] = stored[node].max(fence);
                }
            }
            let told = those(&told, quorum + more);
            let mut seen: Vec<u64> = told.iter().map(|node| stored[*node]).collect();
            let (least, most) = fence_bounds(&mut seen, nodes).unwrap();
            prop_assert!(least <= fence && fence <= most, "{stored:?} {fence} {seen:?}");
            if told.len() == nodes {
                prop_assert_eq!(least, most);
            }
        }

        #[test]
        fn a_decision_stands_whatever_the_others_say(
            half in 0usize..4, order in proptest::collection::vec(0u8..3, 7)
        ) {
            let nodes = 2 * half + 1;
            let mut now = Votes { nodes, ..Votes::default() };
            let (mut majority, mut renewal, mut release) =
                (Decision::Open, Decision::Open, Decision::Open);
            for vote in &order[..nodes] {
                match vote {
                    0 => now.yes += 1,
                    1 => now.no += 1,
                    _ => now.missing += 1,
                }
                for (before, after) in [
                    (&mut majority, now.majority()),
                    (&mut renewal, now.renewal()),
                    (&mut release, now.release()),
                ] {
                    if *before != Decision::Open {
                        prop_assert_eq!(*before, after);
                    }
                    *before = after;
                }
            }
            prop_assert_ne!(majority, Decision::Open);
            prop_assert_ne!(renewal, Decision::Open);
            prop_assert_ne!(release, Decision::Open);
            prop_assert_eq!(renewal == Decision::Yes, now.yes >= quorum(nodes));
            prop_assert_eq!(majority == Decision::Yes, now.yes >= quorum(nodes));
        }
    }
}
