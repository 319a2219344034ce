//! Which nodes may vote: DESIGN.md, "A node that lost its memory".
//!
//! A node that was restarted may have forgotten locks that are still held, and
//! would grant them again. So it votes only once all that it may have forgotten
//! has run out. Whether it was restarted is seen from its `run_id`: a key on the
//! node itself, the marker, has the one that was admitted the last time, which
//! proxies that start later find there. Nodes of which none has a marker, seen by
//! a proxy that has not admitted any, are a new deployment.
//!
//! Not seen from here: a node whose keys are deleted while it runs, and all nodes
//! and all proxies restarted at once, which looks like a new deployment.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::fault::Fault;
use crate::config::LocksConfig;

/// The key on a node that has the `run_id` that was admitted.
pub(crate) const MARKER: &[u8] = b"lockgate:node";

/// What a node says of itself before it is admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// Its `run_id`, new with each start; none where it does not tell.
    pub(super) run_id: Option<String>,
    /// How long it has been up, by its own clock, in whole seconds rounded down.
    pub(super) uptime: Duration,
    /// It is no replica.
    pub(super) is_master: bool,
    /// The `run_id` that was admitted the last time.
    pub(super) marker: Option<String>,
}

/// What is to become of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It votes.
    Admitted,
    /// Not now: it is to be looked at again. The reason stays the same meanwhile.
    Quarantined(String),
    /// Not as it is.
    Refused(Fault, String),
}

/// What is known of all nodes of one proxy.
#[derive(Debug)]
pub(super) struct Admissions {
    quarantine: bool,
    allow_shared_instance: bool,
    /// After so long a node has nothing forgotten that is still held.
    enough: Duration,
    max_ttl: Duration,
    nodes: Mutex<Vec<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// What it said the last time.
    look: Option<Look>,
    /// It is connected, or is about to be.
    is_there: bool,
    /// The `run_id` that this proxy has admitted.
    admitted: Option<String>,
}

impl Admissions {
    pub(super) fn new(config: &LocksConfig) -> Admissions {
        Admissions {
            quarantine: config.quarantine,
            allow_shared_instance: config.allow_shared_instance,
            // A clock that is fast counts the time too soon.
            enough: config.max_ttl.mul_f64(1.0 + config.drift_factor),
            max_ttl: config.max_ttl,
            nodes: Mutex::new(config.nodes.iter().map(|_| Known::default()).collect()),
        }
    }

    /// Notes what node `index` says, and whether it may vote.
    pub(super) fn judge(&self, index: usize, look: &Look) -> Verdict {
        let mut nodes = self.lock();
        nodes[index].look = Some(look.clone());
        nodes[index].is_there = true;
        if !look.is_master {
            return Verdict::Refused(Fault::Replica, Fault::Replica.meaning().into());
        }
        let Some(run_id) = &look.run_id else {
            return if self.quarantine {
                Verdict::Refused(Fault::Unidentified, Fault::Unidentified.meaning().into())
            } else {
                Verdict::Admitted
            };
        };
        if !self.allow_shared_instance
            && let Some(twin) = twin(&nodes, index, run_id)
        {
            let why = format!("it is the same instance as node {}; each must be its own", twin + 1);
            return Verdict::Refused(Fault::SharedInstance, why);
        }
        if self.quarantine && nodes[index].admitted.as_ref() != Some(run_id) {
            if is_new_deployment(&nodes) {
                for node in nodes.iter_mut() {
                    node.admitted = node.look.as_ref().and_then(|look| look.run_id.clone());
                }
            } else if look.marker.as_ref() != Some(run_id) && look.uptime < self.enough {
                return Verdict::Quarantined(self.why(&nodes, look));
            }
        }
        nodes[index].admitted = Some(run_id.clone());
        Verdict::Admitted
    }

    /// The connection to node `index` is gone.
    pub(super) fn left(&self, index: usize) {
        self.lock()[index].is_there = false;
    }

    fn why(&self, nodes: &[Known], look: &Look) -> String {
        let known = nodes.iter().any(Known::was_admitted);
        let what = match &look.marker {
            Some(_) => "it was restarted",
            None if known => "it was restarted or is new",
            None => "not all nodes have told whether this deployment is new",
        };
        format!("quarantined until it has been up for {:?} (locks.max_ttl): {what}", self.max_ttl)
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// By this proxy or, as its marker tells, by another.
    fn was_admitted(&self) -> bool {
        self.admitted.is_some() || self.look.as_ref().is_some_and(|look| look.marker.is_some())
    }
}

/// Another node that is connected to the same instance.
fn twin(nodes: &[Known], index: usize, run_id: &String) -> Option<usize> {
    (0..nodes.len()).filter(|other| *other != index).find(|other| {
        let other = &nodes[*other];
        other.is_there
            && other.look.as_ref().is_some_and(|look| look.run_id.as_ref() == Some(run_id))
    })
}

/// Every node has told that nobody ever admitted it.
fn is_new_deployment(nodes: &[Known]) -> bool {
    nodes.iter().all(|node| node.look.is_some() && !node.was_admitted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RedisUrl;

    fn three(change: impl FnOnce(&mut LocksConfig)) -> Admissions {
        let mut config = LocksConfig {
            nodes: (1..4).map(RedisUrl::local).collect(),
            max_ttl: Duration::from_secs(60),
            ..LocksConfig::default()
        };
        change(&mut config);
        Admissions::new(&config)
    }

    fn young(run_id: &str, marker: Option<&str>) -> Look {
        Look {
            run_id: Some(run_id.into()),
            uptime: Duration::from_secs(1),
            is_master: true,
            marker: marker.map(str::to_owned),
        }
    }

    fn is_quarantined(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Quarantined(_))
    }

    #[test]
    fn a_new_deployment_votes_once_all_nodes_have_said_that_it_is_one() {
        let admissions = three(|_| {});
        let look = |index: usize| young(["a", "b", "c"][index], None);
        for index in [0, 1, 0] {
            assert!(is_quarantined(&admissions.judge(index, &look(index))));
        }
        for index in [2, 0, 1] {
            assert_eq!(admissions.judge(index, &look(index)), Verdict::Admitted);
        }
    }

    #[test]
    fn one_marker_is_enough_to_know_that_it_is_not_new() {
        let admissions = three(|_| {});
        assert_eq!(admissions.judge(0, &young("a", Some("a"))), Verdict::Admitted);
        for index in [1, 2, 1] {
            let look = young(["a", "b", "c"][index], None);
            assert!(is_quarantined(&admissions.judge(index, &look)), "{index}");
        }
        // Another proxy has admitted it.
        assert_eq!(admissions.judge(1, &young("b", Some("b"))), Verdict::Admitted);
    }

    #[test]
    fn a_restarted_node_waits_until_it_has_been_up_for_long_enough() {
        let admissions = three(|_| {});
        for index in 0..3 {
            let run_id = ["a", "b", "c"][index];
            assert_eq!(admissions.judge(index, &young(run_id, Some(run_id))), Verdict::Admitted);
        }
        // All of them, and none has kept its marker.
        for index in 0..3 {
            let run_id = ["d", "e", "f"][index];
            admissions.left(index);
            assert!(is_quarantined(&admissions.judge(index, &young(run_id, None))));
            let mut look = young(run_id, Some("old"));
            look.uptime = Duration::from_secs(60);
            assert!(is_quarantined(&admissions.judge(index, &look)), "its clock may be fast");
            look.uptime = Duration::from_secs(61);
            assert_eq!(admissions.judge(index, &look), Verdict::Admitted);
        }
        // The connection broke, nothing else.
        admissions.left(0);
        assert_eq!(admissions.judge(0, &young("d", None)), Verdict::Admitted);
    }

    #[test]
    fn two_nodes_must_be_two_instances() {
        let admissions = three(|_| {});
        admissions.judge(0, &young("a", Some("a")));
        let verdict = admissions.judge(1, &young("a", Some("a")));
        assert!(
            matches!(&verdict, Verdict::Refused(Fault::SharedInstance, why) if why.contains("node 1"))
        );
        // It has moved.
        admissions.left(0);
        assert_eq!(admissions.judge(1, &young("a", Some("a"))), Verdict::Admitted);
        let admissions = three(|config| config.allow_shared_instance = true);
        admissions.judge(0, &young("a", Some("a")));
        assert_eq!(admissions.judge(1, &young("a", Some("a"))), Verdict::Admitted);
    }

    #[test]
    fn a_replica_or_a_node_without_a_name_does_not_vote() {
        let admissions = three(|_| {});
        let look = Look { is_master: false, ..young("a", Some("a")) };
        assert!(matches!(admissions.judge(0, &look), Verdict::Refused(Fault::Replica, _)));
        let look = Look { run_id: None, ..young("a", Some("a")) };
        assert!(matches!(admissions.judge(0, &look), Verdict::Refused(Fault::Unidentified, _)));
        let admissions = three(|config| config.quarantine = false);
        assert_eq!(admissions.judge(0, &look), Verdict::Admitted);
        assert_eq!(admissions.judge(1, &young("b", Some("x"))), Verdict::Admitted);
    }
}
