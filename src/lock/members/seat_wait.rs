//! How long the node on a seat has waited, as one proxy has seen it.

use std::time::Duration;

use tokio::time::Instant;

use super::marker::Identity;

/// The wait of the node on one seat.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct SeatWait {
    /// The time when the last connection that could vote ended.
    left: Option<Instant>,
    seen: Option<SeenWait>,
}

/// A waiting node, as this proxy has seen it.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct SeenWait {
    who: Identity,
    /// The text of the node's note of its wait.
    note: String,
    /// The time when this proxy first saw it; by then it had waited for `before` already.
    since: Instant,
    before: Duration,
}

impl SeenWait {
    fn waited(&self, now: Instant) -> Duration {
        self.before + now.saturating_duration_since(self.since)
    }
}

impl SeatWait {
    /// Notes that a connection that could vote has ended. A wait that is first seen later began no earlier.
    pub(super) fn left(&mut self, now: Instant) {
        self.left = Some(now);
    }

    /// Notes that a node waits, and returns for how long it has. `note`: the text of the node's note of its wait;
    /// `by_node`: how long it has waited by the node's own clock.
    pub(super) fn saw(
        &mut self,
        who: Identity,
        note: &str,
        by_node: Duration,
        now: Instant,
    ) -> Duration {
        let mut before = by_node;
        if let Some(seen) = self.seen.as_ref().filter(|seen| seen.who == who) {
            // The proxy's own clock counts on from what it saw first: the node's may jump.
            if seen.note == note {
                return seen.waited(now);
            }
            before = before.min(seen.waited(now));
        }
        if let Some(left) = self.left {
            before = before.min(now.saturating_duration_since(left));
        }
        self.seen = Some(SeenWait { who, note: note.to_owned(), since: now, before });
        before
    }

    /// Returns when the wait that was seen last will have taken `enough`; `None`: no wait was seen.
    pub(super) fn over_at(&self, enough: Duration) -> Option<Instant> {
        let seen = self.seen.as_ref()?;
        Some(seen.since + enough.saturating_sub(seen.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second, the name, note and wait that are seen then (`None`: a connection ends), and the wait that counts.
    type SeenRow = (u64, Option<(&'static str, &'static str, u64)>, u64);

    #[test]
    fn a_wait_is_counted_by_the_clock_that_makes_it_longest() {
        let secs = Duration::from_secs;
        let who = |name: &str| Identity {
            run_id: name.into(),
            replication_id: "f0".into(),
            election: None,
        };
        let begin = Instant::now();
        let rows: [SeenRow; 9] = [
            (0, Some(("a", "first note", 4)), 4),
            (2, Some(("a", "first note", 0)), 6),
            (3, Some(("a", "first note", 90)), 7),
            // A note that is written anew begins the wait anew, by no more than was seen.
            (5, Some(("a", "second note", 1)), 1),
            (6, Some(("a", "third note", 80)), 2),
            (7, Some(("b", "first note", 30)), 30),
            (8, None, 0),
            // It may have voted until the connection ended.
            (10, Some(("c", "first note", 30)), 2),
            (11, Some(("c", "first note", 31)), 3),
        ];
        let mut wait = SeatWait::default();
        assert_eq!(wait.over_at(secs(60)), None);
        for (at, seen, waited) in rows {
            let now = begin + secs(at);
            let Some((name, note, by_node)) = seen else {
                wait.left(now);
                continue;
            };
            assert_eq!(wait.saw(who(name), note, secs(by_node), now), secs(waited), "at {at}");
            assert_eq!(wait.over_at(secs(60)), Some(now + secs(60 - waited)), "at {at}");
        }
    }
}
