//! Adopted commands about which too few lock nodes answered. By the rule's `no_quorum` the client's connection is
//! closed, at once or once the lock nodes have been asked again for some seconds, or the client is told the error.
//!
//! Libraries ride out a Redis that is away for a moment, but many of them give up at an error that they do not know.

use std::time::Duration;

use super::{
    super::{desk::Desk, session_metrics::Outcome},
    Answering, Job, Ours, Progress, Question,
    lock::no_quorum,
};
use crate::{clock::Instant, config::NoQuorumPolicy, lock::NoQuorum, resp::encode};

/// How long the lock nodes are asked again. Clients give an answer up after 2 s (Jedis), 3 s (go-redis, Redisson) or
/// 5 s (StackExchange.Redis); most have no such limit.
const PATIENCE: Duration = Duration::from_secs(3);
/// The shortest and the longest pause between two questions.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// A command for which the lock nodes are to be asked again in a moment.
struct Resting(Ours);

impl Job for Resting {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.0)
    }

    fn rests(&self) -> bool {
        true
    }
}

/// Runs `anew` in a moment, or ends the command as one that the lock nodes have not settled.
pub(super) fn unsettled(
    ours: Ours,
    error: &NoQuorum,
    desk: &Desk,
    anew: impl FnOnce(&mut Desk) -> Progress + Send + 'static,
) -> Progress {
    if error.is_unwritten {
        // The command has already waited for the audit trail.
        return no_quorum(ours, error, desk);
    }
    match pause(ours) {
        Some(pause) => rest(ours, pause, desk, anew),
        None => ours.unsettled(&error.told(), desk),
    }
}

/// As [`unsettled`], for another reason than too few answers.
pub(super) fn unsettled_as(
    ours: Ours,
    error: &str,
    desk: &Desk,
    anew: impl FnOnce(&mut Desk) -> Progress + Send + 'static,
) -> Progress {
    match pause(ours) {
        Some(pause) => rest(ours, pause, desk, anew),
        None => ours.unsettled(error, desk),
    }
}

fn rest(
    ours: Ours,
    pause: Duration,
    desk: &Desk,
    anew: impl FnOnce(&mut Desk) -> Progress + Send + 'static,
) -> Progress {
    desk.shared.metrics.adopt_retries.increment(1);
    Progress::ask(Resting(ours), Question::rest(pause), |_, (), desk| anew(desk))
}

/// Returns how long to wait before the lock nodes are asked again. `None`: they are not.
fn pause(ours: Ours) -> Option<Duration> {
    if ours.adopted != Some(NoQuorumPolicy::Wait) {
        return None;
    }
    // The longer they have been away, the longer they may stay away.
    let waited = Instant::now().saturating_duration_since(ours.since);
    let [least, most] = PAUSES;
    (waited < PATIENCE).then(|| (waited / 2).clamp(least, most))
}

/// Whether this error says that the lock nodes have settled nothing, so that nothing may rest on the command.
pub(super) fn is_unsettled(error: &[u8]) -> bool {
    error.starts_with(b"NOQUORUM ") || error.starts_with(b"TRYAGAIN ")
}

impl Ours {
    /// Whether the lock nodes are asked again for this command if too few answer.
    pub(super) fn may_ask_again(self) -> bool {
        pause(self).is_some()
    }

    /// Ends a command whose outcome the lock nodes have not settled.
    pub(super) fn unsettled(self, error: &str, desk: &Desk) -> Progress {
        self.count(Outcome::NoQuorum, desk);
        let mut answer = Vec::new();
        encode::error(&mut answer, error);
        self.end_unsettled(answer)
    }

    /// As [`Ours::unsettled`], with the answer to a command that was counted. The caller must have what was granted
    /// given back.
    pub(super) fn end_unsettled(self, answer: Vec<u8>) -> Progress {
        match self.adopted {
            None | Some(NoQuorumPolicy::Error) => self.answer(answer, None),
            // To the client it looks like a Redis that has gone away.
            Some(NoQuorumPolicy::Wait | NoQuorumPolicy::Close) => {
                Progress::Leave(Answering::new(Vec::new(), self.length))
            }
        }
    }
}
