//! Every sequence of events up to a depth, on real [`Members`]. Proxies know what nodes report; an observer knows what
//! each node has forgotten, and which locks may be held.
//!
//! Events take no time, but for those by which time passes. A state that was seen is not explored again. All seats are
//! alike at the start, so they fail first in their order.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::*;
use crate::lock::{
    members::{marker::Phase, right::Right, self_report::MarkerFound},
    operation::Absence,
    quorum::quorum,
};

#[path = "explored_nodes_tests.rs"]
mod nodes;
use nodes::{deployment, marker, node};

/// The longest PX that was stored, as all nodes note, and the longest that a proxy may ask for.
const STORED: Duration = Duration::from_secs(60);
const MAX_TTL: Duration = Duration::from_secs(100);
const DRIFT: f64 = 0.1;
/// Half a grant, and longer than any wait.
const HALF: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(130);
/// How long another proxy may take to hear of a failover.
const CONFIRM: Duration = Duration::from_secs(5);

/// What is explored: the seats, the proxies, `confirm`, whether no node has a marker at the start, how many events,
/// and how many of them are of these kinds.
struct ExploredCase {
    seats: usize,
    proxies: usize,
    confirm: Duration,
    is_blank: bool,
    depth: usize,
    mishaps: usize,
    kinds: &'static [Mishap],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    /// A node restarts empty, or with its marker of the start and no lock; or is emptied while it runs.
    Restarted,
    Restored,
    Emptied,
    /// The address leads to a node of another deployment, or to that of the next seat.
    Foreign,
    Twin,
    /// The address leads the first proxy to an empty server, or to a promoted one with a copy of the marker.
    Exchanged,
    Promoted,
    /// The first proxy loses its way to the node, or is started anew.
    Cut,
    Anew,
    /// The set is sealed for a change: the first of its nodes, or all.
    Sealed,
}

#[derive(Debug, Clone, Copy)]
enum SeatEvent {
    Mishap(usize, Mishap),
    /// The first proxy's way is mended, and the address leads all proxies where it leads the first.
    Mended(usize),
    /// A proxy asks its nodes something: connections that prove nothing end, and new ones are tried.
    Look(usize),
    Survey(usize),
    /// What is due is written; with a seat, the connection to it ends behind its promise.
    Write(usize, Option<usize>),
    /// A survey and all that is due, at once.
    Round(usize),
    /// An operator pauses the first node, or resumes it.
    Pause,
    Passes(Duration),
}

/// A server, and what only the observer knows.
#[derive(Clone)]
struct ExploredServer {
    look: SelfReport,
    is_up: bool,
    /// The number of its memory, which no other has.
    memory: usize,
    /// When each lock has run out that the memory may lack, and when nobody reaches the server before it any more.
    whole_at: Duration,
    alone_at: Duration,
}

/// The servers that were asked, and their reports.
type AskedServers = Vec<Option<(usize, SelfReport)>>;

#[derive(Clone)]
struct ExploredProxy {
    members: Members,
    generation: u64,
    /// For each seat: where its address leads, whether the way is cut, the connection and its generation, and the
    /// marker to prove with whether the node must not grant.
    leads: Vec<usize>,
    cut: Vec<bool>,
    links: Vec<Option<(usize, u64)>>,
    told: Vec<(String, bool)>,
    due: Option<Arc<(RoundToMake, AskedServers)>>,
}

#[derive(Clone)]
struct Explored {
    case: &'static ExploredCase,
    begin: Instant,
    now: Duration,
    servers: Vec<Arc<ExploredServer>>,
    proxies: Vec<ExploredProxy>,
    is_paused: bool,
    is_sealed: bool,
    mishaps: usize,
    /// How many seats have failed, memories there were, and rounds.
    failed: usize,
    memories: usize,
    rounds: usize,
    /// Memories that may have granted a lock together, and until when.
    grants: Vec<(Vec<usize>, Duration)>,
    /// What proxies have learned.
    chosen: Vec<Arc<Accepted>>,
    broken: Option<&'static str>,
}

/// Events.
impl Explored {
    fn events(&self) -> Vec<SeatEvent> {
        let nearly = self.case.wait() - Duration::from_secs(1);
        let mut all: Vec<SeatEvent> = [HALF, nearly, LONG].map(SeatEvent::Passes).into();
        for (proxy, it) in self.proxies.iter().enumerate() {
            all.extend([SeatEvent::Look(proxy), SeatEvent::Survey(proxy), SeatEvent::Round(proxy)]);
            if let Some(plan) = it.due.as_ref().map(|due| &due.0.plan) {
                let seats = plan.acceptors.iter().chain(&plan.joining).copied().map(Some);
                all.extend(seats.chain([None]).map(|lost| SeatEvent::Write(proxy, lost)));
            }
        }
        for seat in self.case.seats() {
            let leads = self.proxies[0].leads[seat];
            if self.proxies.iter().any(|it| it.cut[seat] || it.leads[seat] != leads) {
                all.push(SeatEvent::Mended(seat));
            }
            if self.mishaps < self.case.mishaps && seat <= self.failed {
                all.extend(self.case.kinds.iter().map(|kind| SeatEvent::Mishap(seat, *kind)));
            }
        }
        all.extend((self.case.seats == 1).then_some(SeatEvent::Pause));
        all
    }

    fn happens(&mut self, event: SeatEvent) {
        match event {
            SeatEvent::Mishap(seat, mishap) => self.goes_wrong(seat, mishap),
            SeatEvent::Mended(seat) => self.mend(seat),
            SeatEvent::Look(proxy) => self.look(proxy),
            SeatEvent::Survey(proxy) => self.survey(proxy),
            SeatEvent::Write(proxy, lost) => self.write(proxy, lost),
            SeatEvent::Round(proxy) => self.round(proxy),
            SeatEvent::Pause => self.is_paused = !self.is_paused,
            SeatEvent::Passes(time) => self.pass(time),
        }
        self.observe();
    }

    /// No round lasts so long, and each proxy hears of a failover.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.proxies.iter_mut().for_each(|proxy| proxy.due = None);
        let seats = self.case.seats().filter(|_| !self.case.confirm.is_zero());
        seats.for_each(|seat| self.mend(seat));
        self.grants.retain(|(_, until)| *until > self.now);
    }

    fn mend(&mut self, seat: usize) {
        let leads = self.proxies[0].leads[seat];
        for proxy in 0..self.case.proxies {
            self.proxies[proxy].cut[seat] = false;
            self.lead(proxy, seat, leads);
        }
    }

    fn lead(&mut self, proxy: usize, seat: usize, server: usize) {
        if self.proxies[proxy].leads[seat] != server {
            self.end(proxy, seat);
            self.proxies[proxy].leads[seat] = server;
        }
    }

    fn goes_wrong(&mut self, seat: usize, mishap: Mishap) {
        self.mishaps += 1;
        self.failed = self.failed.max(seat + 1);
        let (seats, before) = (self.case.seats, self.proxies[0].leads[seat]);
        let found = match mishap {
            Mishap::Restarted | Mishap::Exchanged | Mishap::Emptied => MarkerFound::Nothing,
            Mishap::Restored => marker(deployment("d", seats), seat),
            Mishap::Promoted => self.servers[before].look.marker.clone(),
            Mishap::Foreign => marker(deployment("other", seats), seat),
            Mishap::Twin => {
                let twin = self.proxies[0].leads[(seat + 1) % seats];
                return (0..self.case.proxies).for_each(|proxy| self.lead(proxy, seat, twin));
            }
            Mishap::Cut => {
                self.proxies[0].cut[seat] = true;
                return self.end(0, seat);
            }
            Mishap::Anew => {
                self.case.seats().for_each(|seat| self.end(0, seat));
                let members = self.case.members(&format!("p{}", self.mishaps));
                let this = &mut self.proxies[0];
                return (this.members, this.due, this.generation) = (members, None, 0);
            }
            Mishap::Sealed => return self.seal(),
        };
        if mishap == Mishap::Emptied {
            let name = self.servers[before].look.run_id.clone().unwrap();
            Arc::make_mut(&mut self.servers[before]).look = node(&name, found);
            return self.forgets(before);
        }
        let is_foreign = mishap == Mishap::Foreign;
        let name =
            if is_foreign { format!("other{seat}") } else { format!("n{}", self.servers.len()) };
        let after = self.add(node(&name, found));
        let is_gone = matches!(mishap, Mishap::Restarted | Mishap::Restored);
        Arc::make_mut(&mut self.servers[before]).is_up &= !is_gone;
        for proxy in 0..if is_gone || is_foreign { self.case.proxies } else { 1 } {
            for at in self.case.seats() {
                if at == seat || is_gone && self.proxies[proxy].leads[at] == before {
                    self.lead(proxy, at, after);
                }
            }
        }
    }

    /// Seals the set, as a coordinator does that reaches all nodes, if a quorum has the newest marker.
    fn seal(&mut self) {
        let newest = self.chosen.iter().max_by_key(|it| it.deployment.epoch).unwrap();
        let Deployment { epoch, .. } = newest.deployment;
        let sealed =
            Deployment { epoch: epoch + 1, phase: Phase::Joint(1), ..newest.deployment.clone() };
        let leads = self.proxies[0].leads.clone();
        let has_newest = |seat: &usize| {
            let look = &self.servers[leads[*seat]].look;
            look.marker().is_some_and(|it| it.deployment == newest.deployment && it.seat == *seat)
        };
        let seats: Vec<usize> = self.case.seats().filter(has_newest).collect();
        self.is_sealed |= seats.len() >= quorum(self.case.seats);
        for seat in seats.into_iter().filter(|_| self.is_sealed) {
            let look = &mut Arc::make_mut(&mut self.servers[leads[seat]]).look;
            look.marker = marker(sealed.clone(), seat);
            (look.promised, look.accepted) = ("900".into(), "900".into());
        }
    }
}

/// Properties.
impl Explored {
    /// Returns what may be asked of the node that is connected, if it proves its marker.
    fn right(&self, proxy: usize, seat: usize) -> Option<Right> {
        let (link, (told, waits)) =
            (self.proxies[proxy].links[seat]?, &self.proxies[proxy].told[seat]);
        let marker = self.servers[link.0].look.marker()?;
        let paused = (self.is_paused && seat == 0).then_some(Absence::Paused);
        let kept_from = if *waits { Some(Absence::Quarantined) } else { paused };
        let is_proven = marker.deployment.told(marker.seat) == *told;
        is_proven.then(|| Right::of(kept_from, true, *waits && self.case.seats == 1))
    }

    /// Returns the connected servers of a proxy that have such a right.
    fn connected(&self, proxy: usize, is: fn(Right) -> bool) -> Vec<&ExploredServer> {
        let has = |seat: &usize| self.right(proxy, *seat).is_some_and(is);
        let server = |seat: usize| &*self.servers[self.proxies[proxy].links[seat].unwrap().0];
        self.case.seats().filter(has).map(server).collect()
    }

    fn voters(&self, proxy: usize) -> Vec<&ExploredServer> {
        self.connected(proxy, |right| right == Right::Vote)
    }

    fn observe(&mut self) {
        let needed = quorum(self.case.seats);
        let mut broken = self.broken;
        let mut holds = |promise, is_kept: bool| {
            if !is_kept {
                broken = broken.or(Some(promise));
            }
        };
        for proxy in 0..self.case.proxies {
            let voters = self.voters(proxy);
            let kept = self.connected(proxy, |right| matches!(right, Right::KeepOwn(_)));
            let agreed = |it: &&ExploredServer| it.look.marker().map(|it| it.deployment.clone());
            let memories: HashSet<usize> = voters.iter().map(|it| it.memory).collect();
            holds(
                "a memory that may lack locks waits",
                voters.iter().all(|it| it.whole_at <= self.now),
            );
            holds(
                "a single voter keeps nothing yet",
                kept.iter().all(|it| it.alone_at <= self.now),
            );
            holds("one epoch counts", voters.iter().map(agreed).all(|it| it == agreed(&voters[0])));
            holds("a node votes once", memories.len() == voters.len());
            holds("a sealed set grants nothing", !self.is_sealed || voters.len() < needed);
            let until = self.now + STORED;
            // Each quorum of these nodes leaves out some.
            let lacks = |(all, _): &&(Vec<usize>, _)| {
                memories.iter().filter(|it| !all.contains(it)).count()
            };
            holds("two quorums share a node", self.grants.iter().all(|it| lacks(&it) < needed));
            let mut quorums = vec![vec![]];
            for memory in memories {
                let with = |some: &Vec<usize>| [&some[..], &[memory]].concat();
                quorums.extend(quorums.iter().map(with).collect::<Vec<_>>());
            }
            quorums.retain(|some| some.len() == needed);
            quorums.iter_mut().for_each(|some| some.sort_unstable());
            self.grants.retain(|(some, _)| !quorums.contains(some));
            self.grants.extend(quorums.into_iter().map(|some| (some, until)));
        }
        self.grants.sort_unstable();
        self.broken = broken;
    }

    /// Returns what does not hold once nothing more goes wrong and enough time has passed: all healthy nodes vote,
    /// unless the set is sealed.
    fn outcome(&self) -> Option<&'static str> {
        let mut all = self.clone();
        all.is_paused = false;
        self.case.seats().for_each(|seat| all.mend(seat));
        for _ in 0..6 {
            for proxy in (0..self.case.proxies).cycle().take(3 * self.case.proxies) {
                all.look(proxy);
                all.round(proxy);
            }
            (0..self.case.proxies).for_each(|proxy| all.look(proxy));
            all.observe();
            let is_well = |proxy| all.voters(proxy).len() >= all.healthy(proxy);
            if all.broken.is_some() || (0..self.case.proxies).all(is_well) {
                return all.broken;
            }
            all.pass(LONG);
        }
        (!self.is_sealed).then_some("all healthy nodes vote at last")
    }

    /// Counts the nodes with a marker of their seat, or without any.
    fn healthy(&self, proxy: usize) -> usize {
        let leads = self.proxies[proxy].leads.iter().enumerate();
        let is_healthy = |(seat, server): &(usize, &usize)| {
            let marker = self.servers[**server].look.marker();
            marker.is_none_or(|it| it.deployment.id != "other" && it.seat == *seat)
        };
        leads.filter(is_healthy).map(|it| it.1).collect::<HashSet<_>>().len()
    }

    /// Returns a number for all that the future depends on. A ballot names its deployment.
    fn fingerprint(&self) -> u64 {
        let hash = &mut DefaultHasher::new();
        let of = |it: &Accepted| (it.ballot.clone(), it.deployment.id.clone(), it.deployment.epoch);
        let of_look = |it: &SelfReport| {
            let place = it.marker().map(|it| it.deployment.told(it.seat));
            (place, it.run_id.clone(), it.promised.clone(), it.accepted.clone(), it.note.clone())
        };
        (self.now, self.is_paused, self.is_sealed, self.mishaps, self.failed).hash(hash);
        (self.rounds, &self.grants).hash(hash);
        for it in &self.servers {
            (of_look(&it.look), it.is_up, it.memory, it.whole_at, it.alone_at).hash(hash);
        }
        for it in &self.proxies {
            (it.generation, &it.leads, &it.cut, &it.links, &it.told).hash(hash);
            if let Some((round, asked)) = it.due.as_deref() {
                (round.plan.next.seats_text(), &round.plan.acceptors).hash(hash);
                asked.iter().flatten().for_each(|it| (it.0, of_look(&it.1)).hash(hash));
            }
            let Members { current, survey, stored, other, given_up, learned, seats, .. } =
                &it.members;
            (current.as_deref().map(of), stored, other, given_up, learned).hash(hash);
            if let Some(it) = survey {
                let agreed = [&it.committed, &it.newest].map(|it| it.as_ref().map(of));
                (agreed, &it.ids, &it.intact, it.is_blank).hash(hash);
            }
            format!("{seats:?}").hash(hash);
        }
        hash.finish()
    }
}

/// Explores every sequence of events. Returns how many states and events there were.
fn explore(case: &'static ExploredCase) -> Result<(usize, usize), String> {
    let (mut seen, mut events) = (HashSet::new(), 0);
    let mut level = vec![(Explored::new(case), Vec::new())];
    for left in (0..case.depth).rev() {
        let mut next = Vec::new();
        for (state, path) in &level {
            for event in state.events() {
                let (mut after, mut path) = (state.clone(), path.clone());
                after.happens(event);
                path.push(event);
                events += 1;
                if let Some(broken) = after.broken {
                    return Err(format!("{broken}: {path:?}"));
                }
                if left > 0 && seen.insert(after.fingerprint()) {
                    if let Some(broken) =
                        Some(&after).filter(|_| left > 1).and_then(Explored::outcome)
                    {
                        return Err(format!("{broken}, in the end: {path:?}"));
                    }
                    next.push((after, path));
                }
            }
        }
        level = next;
    }
    Ok((seen.len(), events))
}

#[test]
fn whatever_happens_two_quorums_share_a_memory_that_has_their_locks_and_all_get_well() {
    use Mishap::{
        Anew, Cut, Emptied, Exchanged, Foreign, Promoted, Restarted, Restored, Sealed, Twin,
    };
    const THREE: ExploredCase = ExploredCase {
        seats: 3,
        proxies: 1,
        confirm: Duration::ZERO,
        is_blank: false,
        depth: 5,
        mishaps: 2,
        kinds: &[Restarted, Restored],
    };
    static CASES: [ExploredCase; 7] = [
        THREE,
        ExploredCase { kinds: &[Restarted, Emptied, Foreign, Twin, Anew, Cut], ..THREE },
        ExploredCase { mishaps: 3, kinds: &[Restarted, Sealed], ..THREE },
        ExploredCase { proxies: 2, kinds: &[Restarted, Exchanged, Cut], ..THREE },
        ExploredCase { proxies: 2, confirm: CONFIRM, kinds: &[Promoted], ..THREE },
        ExploredCase { seats: 4, is_blank: true, kinds: &[Restarted, Cut], ..THREE },
        ExploredCase {
            seats: 1,
            proxies: 2,
            confirm: CONFIRM,
            kinds: &[Restarted, Emptied, Foreign, Promoted],
            ..THREE
        },
    ];
    for (number, case) in CASES.iter().enumerate() {
        let (states, events) = explore(case).unwrap_or_else(|broken| panic!("{number}: {broken}"));
        assert!(states > 500, "the case has few states: {number}, {states} and {events} events");
    }
}
