//! Processes that this one has replaced and that still have clients. They no longer serve pages or metrics of their
//! own, so this one shows what they have.

use metrics::{Gauge, describe_gauge, gauge};

use crate::sync::Mutex;

/// A process that this one has replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EarlierProcess {
    pub(crate) pid: i32,
    /// What it still has. `None`: it has not told.
    pub(crate) left: Option<WhatIsLeft>,
}

/// What such a process still has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct WhatIsLeft {
    pub(crate) connections: u64,
    /// Locks that it keeps for its clients, or has granted, as far as it knows.
    pub(crate) held: u64,
    pub(crate) waiters: u64,
}

/// All such processes, with their gauges.
pub(crate) struct EarlierProcesses {
    all: Mutex<Vec<EarlierProcess>>,
    processes: Gauge,
    connections: Gauge,
    locks: Gauge,
}

/// Gives each metric its help text. The recorder must be installed.
pub(super) fn describe() {
    describe_gauge!(
        "lockgate_earlier_processes",
        "Processes from before upgrades that have clients still."
    );
    describe_gauge!(
        "lockgate_earlier_connections",
        "Client connections that processes from before upgrades have still, as far as they tell."
    );
    describe_gauge!(
        "lockgate_earlier_locks",
        "Locks that processes from before upgrades have granted and hold still, as far as they tell."
    );
}

impl EarlierProcesses {
    /// Makes the gauges, without any process yet. The recorder must be installed: handles made before it lead
    /// nowhere.
    pub(crate) fn new() -> EarlierProcesses {
        EarlierProcesses {
            all: Mutex::default(),
            processes: gauge!("lockgate_earlier_processes"),
            connections: gauge!("lockgate_earlier_connections"),
            locks: gauge!("lockgate_earlier_locks"),
        }
    }

    /// Returns all processes, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<EarlierProcess> {
        self.all.lock().clone()
    }

    /// Takes in what is known of one process.
    pub(crate) fn told(&self, process: EarlierProcess) {
        let mut all = self.all.lock();
        match all.binary_search_by_key(&process.pid, |known| known.pid) {
            Ok(at) => all[at].left = process.left.or(all[at].left),
            Err(at) => all.insert(at, process),
        }
        self.count(&all);
    }

    /// Forgets a process that has ended.
    pub(crate) fn gone(&self, pid: i32) {
        let mut all = self.all.lock();
        all.retain(|process| process.pid != pid);
        self.count(&all);
    }

    fn count(&self, all: &[EarlierProcess]) {
        let sum = |of: fn(&WhatIsLeft) -> u64| -> f64 {
            let left = all.iter().filter_map(|process| process.left.as_ref());
            // As numbers with a fraction none would be -0.
            left.map(of).sum::<u64>() as f64
        };
        self.processes.set(all.len() as f64);
        self.connections.set(sum(|left| left.connections));
        self.locks.set(sum(|left| left.held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_until_it_has_ended() {
        let earlier = EarlierProcesses::new();
        let left = |connections| Some(WhatIsLeft { connections, ..WhatIsLeft::default() });
        for (pid, left) in [(7, None), (3, left(2)), (7, left(5)), (7, None)] {
            earlier.told(EarlierProcess { pid, left });
        }
        let known = |pid, left| EarlierProcess { pid, left };
        assert_eq!(earlier.all(), [known(3, left(2)), known(7, left(5))]);
        earlier.gone(3);
        earlier.gone(8);
        assert_eq!(earlier.all(), [known(7, left(5))]);
    }
}
