//! What a replaced process still has. It tells the process that took its place, over the connection on which they
//! agreed: a line a second for itself, and for each process before it.
//!
//! A process of an earlier version tells nothing. Its id alone shows that it is there.

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
};
use tokio::time::{sleep, timeout};

use super::wire::Wire;
use crate::session::earlier::{EarlierProcess, EarlierProcesses, WhatIsLeft};

/// The first word of such a line.
const LEFT: &str = "left";
/// How often it is sent.
const EVERY: Duration = Duration::from_secs(1);
/// How long the other process may take to read a line.
const TALK_LIMIT: Duration = Duration::from_secs(3);

/// Returns the line about a process.
fn encode(pid: i32, left: WhatIsLeft) -> String {
    let WhatIsLeft { connections, held, waiters } = left;
    format!("{LEFT} {pid} {connections} {held} {waiters}")
}

/// Reads a line. Returns `None` if it says something else, as a later version may.
fn read(line: &str) -> Option<EarlierProcess> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[LEFT, pid, connections, held, waiters] = words.as_slice() else { return None };
    let left = WhatIsLeft {
        connections: connections.parse().ok()?,
        held: held.parse().ok()?,
        waiters: waiters.parse().ok()?,
    };
    Some(EarlierProcess { pid: pid.parse().ok().filter(|pid| *pid > 0)?, left: Some(left) })
}

/// Tells the process at the other end what this one and those before it still have, until that process has gone.
pub(super) async fn tell(wire: &Wire, own: impl Fn() -> WhatIsLeft, earlier: &EarlierProcesses) {
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    loop {
        let before = earlier.all().into_iter();
        let before = before.filter_map(|process| Some((process.pid, process.left?)));
        for (pid, left) in [(pid, own())].into_iter().chain(before) {
            if !matches!(timeout(TALK_LIMIT, wire.send(&encode(pid, left), None)).await, Ok(Ok(())))
            {
                return;
            }
        }
        sleep(EVERY).await;
    }
}

/// A process that is known, until it ends.
struct KnownProcess {
    /// A handle of this process, and of no later one with its id. `None` if the system has no such handles.
    process: Option<OwnedFd>,
}

impl KnownProcess {
    fn new(pid: Pid) -> KnownProcess {
        KnownProcess { process: pidfd_open(pid, PidfdFlags::empty()).ok() }
    }

    fn has_ended(&self, pid: Pid) -> bool {
        let Some(process) = &self.process else {
            return test_kill_process(pid) == Err(Errno::SRCH);
        };
        let mut asked = [PollFd::new(process, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().intersects(PollFlags::IN)
    }
}

/// Most processes that are followed. Each upgrade makes one more.
const MOST: usize = 64;

/// Takes in what the replaced process tells of itself and of others, until all of them have ended.
pub(super) async fn follow(mut wire: Wire, earlier: Arc<EarlierProcesses>) {
    let (mut known, mut is_open) = (BTreeMap::new(), true);
    let note = |process: EarlierProcess, known: &mut BTreeMap<i32, KnownProcess>| {
        let Some(pid) = Pid::from_raw(process.pid) else { return };
        if known.len() < MOST || known.contains_key(&process.pid) {
            known.entry(process.pid).or_insert_with(|| KnownProcess::new(pid));
            earlier.told(process);
        }
    };
    if let Some(pid) = wire.peer() {
        note(EarlierProcess { pid, left: None }, &mut known);
    }
    while is_open || !known.is_empty() {
        tokio::select! {
            line = wire.line(), if is_open => match line {
                Ok(Some(line)) => if let Some(process) = read(&line) {
                    note(process, &mut known);
                },
                Ok(None) | Err(_) => is_open = false,
            },
            () = sleep(EVERY) => {}
        }
        known.retain(|pid, process| {
            let has_ended = Pid::from_raw(*pid).is_none_or(|pid| process.has_ended(pid));
            if has_ended {
                earlier.gone(*pid);
            }
            !has_ended
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_others_are_passed_over() {
        let left = WhatIsLeft { connections: 3, held: 2, waiters: 1 };
        let line = encode(7, left);
        assert_eq!(line, "left 7 3 2 1");
        assert_eq!(read(&line), Some(EarlierProcess { pid: 7, left: Some(left) }));
        for other in
            ["", "left", "left 7 3 2", "left 7 3 2 1 0", "left 0 3 2 1", "left -7 3 2 1", "done"]
        {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
