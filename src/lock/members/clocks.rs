//! Nodes' clocks, which may drift but must not jump: docs/design/votes.md, "Validity and clocks".
//!
//! A node whose clock jumps forward ends locks before their time. So this proxy compares each node's clock with its
//! own. It sends TIME behind every batch that may grant a lock or find one free, and twice a second. If a quorum of
//! clocks has jumped, either they were set together or this proxy stood still with its own clock (a paused virtual
//! machine): no lock that its clients hold counts any more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    clock::Instant,
    config::LocksConfig,
    lock::{longest::LongestGrant, quorum::DRIFT, voters::Voters},
    sync::Mutex,
};

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: jumps go unseen.
    pub(crate) static UNWATCHED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// What a sample shows, compared with the samples before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Sight {
    /// The clock drifts at most as far as is allowed for.
    Steady,
    /// The clock has jumped forward, by at least this much.
    JumpedForward(Duration),
    /// The clock was stepped back, by at least this much.
    SteppedBack(Duration),
}

/// How far one node's clock is ahead of this proxy's, as far as samples show. Plain numbers in this file are
/// microseconds.
#[derive(Debug, Default)]
pub(in crate::lock) struct NodeClock(Option<Bounds>);

/// The least and the most by which the node's clock can be ahead. Every sample narrows these bounds, and the drift
/// widens them over time.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    least: i64,
    most: i64,
    /// The time of the last sample.
    at: i64,
}

impl NodeClock {
    /// Takes a sample: the node's clock showed `node` at some time between `sent` and `received`.
    #[inline]
    pub(in crate::lock) fn sample(
        &mut self,
        sent: Instant,
        received: Instant,
        node: i64,
        drift_factor: f64,
    ) -> Sight {
        let (sent, at) = (sent.micros(), received.micros());
        // An absurd answer must not overflow.
        let node = node.clamp(-(1 << 60), 1 << 60);
        let drift = |time: i64| (time as f64 * drift_factor) as i64;
        // The clock may have drifted since the node read it, and microseconds are rounded.
        let around = drift(at - sent) + 1;
        let now = Bounds { least: node - (at + around), most: node - (sent - around), at };
        debug_assert!(now.least <= now.most, "a clock is between its bounds");
        let Some(before) = self.0.replace(now) else { return Sight::Steady };
        let drift = drift(at - before.at);
        let (least, most) = (before.least - drift, before.most + drift);
        let by = |micros: i64| Duration::from_micros(micros.unsigned_abs());
        // The allowance for drift has a constant part.
        let slack = DRIFT.as_micros() as i64;
        let sight = if now.least > most + slack {
            Sight::JumpedForward(by(now.least - most))
        } else if now.most < least - slack {
            Sight::SteppedBack(by(least - now.most))
        } else {
            if now.least <= most && least <= now.most {
                self.0 = Some(Bounds { least: now.least.max(least), most: now.most.min(most), at });
            }
            return Sight::Steady;
        };
        #[cfg(test)]
        if UNWATCHED.get() {
            return Sight::Steady;
        }
        sight
    }
}

/// The nodes that wait because their clocks have jumped, and the losses that follow.
#[derive(Debug)]
pub(in crate::lock) struct Clocks {
    /// Whether nodes have to wait (`locks.quarantine`).
    quarantine: bool,
    longest: Arc<LongestGrant>,
    /// `locks.drift_factor`.
    drift_factor: f64,
    voters: Voters,
    /// By seat, when the node's clock jumped.
    jumps: Mutex<Vec<Option<Instant>>>,
    /// No answer counts to a request made up to this time, in [`Instant::micros`].
    lost_until: AtomicI64,
    /// Notified when all session locks are lost.
    pub(in crate::lock) lost: Notify,
}

impl Clocks {
    pub(in crate::lock) fn new(config: &LocksConfig, longest: Arc<LongestGrant>) -> Clocks {
        let voters = Voters::new(config);
        Clocks {
            quarantine: config.quarantine,
            longest,
            drift_factor: config.drift_factor,
            jumps: Mutex::new(vec![None; voters.seats()]),
            voters,
            lost_until: AtomicI64::new(-1),
            lost: Notify::new(),
        }
    }

    /// Notes that the clock of the node on seat `index` has jumped forward. Returns the end of the node's wait.
    pub(in crate::lock) fn jumped(&self, index: usize) -> Option<Instant> {
        if !self.quarantine {
            return None;
        }
        let (now, wait) = (Instant::now(), self.wait());
        let mut all = self.jumps.lock();
        all[index] = Some(now);
        if self.voters.have_any(|seat| all[seat].is_some_and(|jumped| jumped + wait > now)) {
            self.lost_until.store(now.micros(), Ordering::Release);
            self.lost.notify_one();
        }
        Some(now + wait)
    }

    /// Returns how long such a node waits: by then every lock that it ended too early has ended by itself, whichever
    /// proxy granted it.
    fn wait(&self) -> Duration {
        self.longest.get().mul_f64(1.0 + self.drift_factor) + DRIFT
    }

    /// Returns the end of the wait of the node on seat `index`, or `None` if it may vote.
    pub(in crate::lock) fn waits_until(&self, index: usize) -> Option<Instant> {
        let (now, wait) = (Instant::now(), self.wait());
        let mut all = self.jumps.lock();
        all[index].take_if(|jumped| *jumped + wait <= now);
        all[index].map(|jumped| jumped + wait)
    }

    /// Whether this proxy may have stood still after `since`.
    #[inline]
    pub(in crate::lock) fn is_lost(&self, since: Instant) -> bool {
        since.micros() <= self.lost_until.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RedisUrl;

    const DRIFT_FACTOR: f64 = 0.01;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Samples a node whose clock is ahead by `ahead` ms, at `at` ms after `begun`. The round trip takes 20 ms, of
    /// which the way to the node takes `way`.
    fn look(clock: &mut NodeClock, begun: Instant, at: u64, way: u64, ahead: i64) -> Sight {
        let sent = begun + ms(at);
        let node = (sent + ms(way)).micros() + 1000 * ahead;
        clock.sample(sent, sent + ms(20), node, DRIFT_FACTOR)
    }

    #[test]
    fn a_clock_that_drifts_is_steady_whatever_the_way_takes() {
        for drift in [-9, 0, 9] {
            let (mut clock, begun) = (NodeClock::default(), Instant::now());
            for step in 0..2000_i64 {
                let at = [700, 701, 2000, 30_000][step as usize % 4] + 33_000 * (step as u64 / 4);
                let way = (7 * step as u64) % 21;
                let ahead = 1_000_000 + drift * (at + way) as i64 / 1000;
                let sight = look(&mut clock, begun, at, way, ahead);
                assert_eq!(sight, Sight::Steady, "{drift} at {at}");
            }
        }
    }

    #[test]
    fn jumps_are_seen_in_both_directions_once_they_are_longer_than_a_round_trip() {
        for (by, at) in [(60, 1000), (-60, 1000), (3_600_000, 5000), (-3_600_000, 5000)] {
            let (mut clock, begun) = (NodeClock::default(), Instant::now());
            assert_eq!(look(&mut clock, begun, 0, 20, 500), Sight::Steady, "the first");
            let least = ms(i64::unsigned_abs(by) - 42 - at / 90);
            let most = ms(i64::unsigned_abs(by));
            match look(&mut clock, begun, at, 0, 500 + by) {
                Sight::JumpedForward(seen) if by > 0 => assert!(seen >= least && seen <= most),
                Sight::SteppedBack(seen) if by < 0 => assert!(seen >= least && seen <= most),
                other => panic!("{by}: {other:?}"),
            }
            let sight = look(&mut clock, begun, at + 1000, 10, 500 + by);
            assert_eq!(sight, Sight::Steady, "it stays there");
        }
    }

    #[test]
    fn small_steps_add_up() {
        let (mut clock, begun) = (NodeClock::default(), Instant::now());
        let seen = (0..100)
            .any(|step| look(&mut clock, begun, 10 * step, 10, 3 * step as i64) != Sight::Steady);
        assert!(seen, "300 ms within a second");
    }

    #[test]
    fn a_late_answer_tells_little_and_spoils_nothing() {
        let (mut clock, begun) = (NodeClock::default(), Instant::now());
        look(&mut clock, begun, 0, 10, 0);
        // The node was stopped, before or after it read its clock.
        for (at, read) in [(100, 110), (5000, 8900)] {
            let (sent, node) = (begun + ms(at), (begun + ms(read)).micros());
            let sight = clock.sample(sent, sent + ms(4000), node, DRIFT_FACTOR);
            assert_eq!(sight, Sight::Steady);
        }
        let sight = look(&mut clock, begun, 9100, 10, 200);
        assert!(matches!(sight, Sight::JumpedForward(_)), "{sight:?}");
    }

    #[test]
    fn batches_under_way_at_once_are_steady() {
        let (mut clock, begun) = (NodeClock::default(), Instant::now());
        for step in 0..1000 {
            assert_eq!(look(&mut clock, begun, step, step % 21, 0), Sight::Steady, "{step}");
        }
    }

    #[test]
    fn numbers_that_no_clock_shows_break_nothing() {
        let mut clock = NodeClock::default();
        for node in [i64::MAX, i64::MIN, 0, -1, i64::MAX] {
            let now = Instant::now();
            clock.sample(now, now, node, DRIFT_FACTOR);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quorum_that_has_jumped_loses_what_was_asked_for_before() {
        let mut config = LocksConfig {
            nodes: (1..4).map(|port| RedisUrl::local(port).into()).collect(),
            max_ttl: Duration::from_secs(60),
            ..LocksConfig::default()
        };
        let longest = Arc::new(LongestGrant::new(config.max_ttl));
        let clocks = Clocks::new(&config, longest.clone());
        let before = Instant::now();
        assert!(clocks.jumped(0).is_some() && !clocks.is_lost(before));
        tokio::time::advance(Duration::from_secs(30)).await;
        let since = Instant::now();
        assert!(clocks.jumped(0).is_some(), "again");
        assert!(!clocks.is_lost(before), "it is but one");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(clocks.waits_until(0).is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(clocks.waits_until(0).is_none());
        assert!(clocks.jumped(1).is_some() && !clocks.is_lost(since));
        assert!(clocks.jumped(2).is_some() && clocks.is_lost(Instant::now()));
        tokio::time::advance(ms(1)).await;
        assert!(!clocks.is_lost(Instant::now()));
        config.quarantine = false;
        let clocks = Clocks::new(&config, longest);
        assert!((0..3).all(|node| clocks.jumped(node).is_none()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_jumped_waits_for_the_grants_of_all_proxies() {
        let config = LocksConfig {
            nodes: vec![RedisUrl::local(1).into()],
            max_ttl: Duration::from_secs(3),
            ..LocksConfig::default()
        };
        let longest = Arc::new(LongestGrant::new(config.max_ttl));
        longest.heard_of(Duration::from_secs(20));
        let clocks = Clocks::new(&config, longest.clone());
        assert!(clocks.jumped(0).is_some());
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(clocks.waits_until(0).is_some(), "another proxy's grant may last still");
        // A proxy that is heard of only now may have granted before.
        longest.heard_of(Duration::from_secs(40));
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(clocks.waits_until(0).is_some());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(clocks.waits_until(0).is_none());
    }
}
