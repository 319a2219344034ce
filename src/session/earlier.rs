//! Processes whose place this one has taken, and that have clients still: they have no pages and no metrics
//! of their own any more, so this one tells of them.

use metrics::{Gauge, describe_gauge, gauge};

use crate::sync::Mutex;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EarlierProcess {
    pub(crate) pid: i32,
    /// What it has still; none: it does not tell.
    pub(crate) left: Option<WhatIsLeft>,
}

/// What such a process has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct WhatIsLeft {
    pub(crate) connections: u64,
    /// Locks that it keeps for them, or has granted, as far as it knows.
    pub(crate) held: u64,
    pub(crate) waiters: u64,
}

/// All of them, with their gauges.
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
    /// None yet. The recorder must be installed: handles made before it lead nowhere.
    pub(crate) fn new() -> EarlierProcesses {
        EarlierProcesses {
            all: Mutex::default(),
            processes: gauge!("lockgate_earlier_processes"),
            connections: gauge!("lockgate_earlier_connections"),
            locks: gauge!("lockgate_earlier_locks"),
        }
    }

    /// All of them now, by their ids.
    pub(crate) fn all(&self) -> Vec<EarlierProcess> {
        self.all.lock().clone()
    }

    /// Takes in what is known of one.
    pub(crate) fn told(&self, process: EarlierProcess) {
        let mut all = self.all.lock();
        match all.binary_search_by_key(&process.pid, |known| known.pid) {
            Ok(at) => all[at].left = process.left.or(all[at].left),
            Err(at) => all.insert(at, process),
        }
        self.count(&all);
    }

    /// Forgets one that has ended.
    pub(crate) fn gone(&self, pid: i32) {
        let mut all = self.all.lock();
        all.retain(|process| process.pid != pid);
        self.count(&all);
    }

    fn count(&self, all: &[EarlierProcess]) {
        let sum = |of: fn(&WhatIsLeft) -> u64| -> f64 {
            all.iter().filter_map(|process| process.left.as_ref()).map(|left| of(left) as f64).sum()
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
