//! A Redis Cluster as a lock node, alone or beside two others, whose shards fail over and whose slots move.
//!
//! Replicas are promoted by hand and by election, after the master was killed, stopped, or cut off together with a
//! proxy; masters come back that do not know of the failover yet, with their keys or without; shards are down as a
//! whole; slots in which there are locks move between shards, to a new shard and back, half of their keys for seconds
//! on either side. The checker judges what clients were told. Here it is judged that each proxy grants again, and
//! that the locks of each shard are granted again.

use std::{collections::BTreeMap, ops::Range, thread, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::{
    CONFIRM, LOOK, RECOVERY, SECOND, around,
    fleet::{Cut, History},
    granted, losses,
    shards::{Act, NEW, NODE_TIMEOUT, Options, PLAIN, PROXIES, SHARDS, ShardFleet, Slot},
    two_holders,
};
use crate::{
    alone,
    checker::{self, Wrong},
    client::Style,
    failed_run::FailedRun,
    history::{Event, Outcome, Time, now},
    number, report, sound, trace,
};

/// The kinds of faults, as they are printed.
const KINDS: [&str; 14] = [
    "CLUSTER FAILOVER",
    "CLUSTER FAILOVER FORCE",
    "master killed, back at once",
    "master killed, back later",
    "replication held, then master killed",
    "shard stopped",
    "cut off: master, proxy",
    "proxy cut off from two shards",
    "shard down as a whole",
    "proxy killed",
    "slot moved, and back",
    "slot moved to a new shard, and back",
    "the marker's slot moved, and back",
    "slot half moved, then master killed",
];
/// The kinds that may begin while another one lasts.
const BESIDE: [usize; 6] = [0, 1, 5, 7, 9, 10];

/// The steps of an episode, in order, each with its time in ms from the beginning.
type Steps = Vec<(u64, Act)>;

/// An episode that is over.
struct Episode {
    kinds: Vec<usize>,
    from: Time,
    until: Time,
    /// The time by which each proxy and each shard had granted a lock again. `None` if the next episode began soon.
    recovered: Option<Time>,
}

/// Returns options of a random run. TTLs are long for one seed of four.
fn random(seed: u64, alone: bool) -> Options {
    let ttl = if seed.is_multiple_of(4) { 18_000 } else { 6000 };
    Options {
        seed,
        alone,
        full: seed.is_multiple_of(2),
        max_ttl: ttl,
        default_ttl: ttl,
        quarantine: true,
        binary: sound().0,
        pinned: &[Style::Mixed, Style::Mixed, Style::Sessions, Style::ToTheEnd],
        wandering: &[Style::Mixed, Style::Mixed],
        keys: 12,
    }
}

/// Returns options under which a lock that is granted twice is seen at once.
fn calm(quarantine: bool) -> Options {
    let pinned = &[Style::ToTheEnd, Style::ToTheEnd, Style::Late];
    // Fewer locks than clients: a lock that was lost is asked for at once.
    let (max_ttl, keys) = if quarantine { (6000, 12) } else { (12_000, 6) };
    Options { quarantine, max_ttl, keys, pinned, wandering: &[], ..random(1, true) }
}

/// Returns the steps of one fault.
fn steps(kind: usize, random: &mut StdRng) -> Steps {
    let mut within = |range: Range<u64>| random.random_range(range);
    let shard = within(0..SHARDS as u64) as usize;
    let other = (shard + 1 + within(0..2) as usize) % SHARDS;
    let proxy = within(0..PROXIES as u64) as usize;
    let number = within(0..12) as usize;
    let empty = within(0..2) == 0;
    let kill = Act::Kill { shard, whole: false };
    let back = Act::Restart { shard, empty };
    let begin = |slot, to| Act::BeginMove { slot, from: shard, to };
    // Some of the keys lie on either side for a while, there and back.
    let there_and_back = |begins: Vec<Act>, within: &mut dyn FnMut(Range<u64>) -> u64| {
        let mut all: Steps = begins.into_iter().map(|act| (0, act)).collect();
        let mut at = 0;
        for again in [Act::BeginBack, Act::Nothing] {
            at += within(0..600);
            all.push((at, Act::MoveKey));
            at += within(100..1500);
            all.push((at, Act::FinishMoves));
            at += within(500..4000);
            all.push((at, again));
        }
        all
    };
    match kind {
        0 | 1 => {
            let by_hand = Act::FailOver { shard, force: kind == 1 };
            vec![(0, by_hand), (within(2000..4000), Act::Nothing)]
        }
        2 => vec![(0, kill), (within(100..900), back), (3000, Act::Nothing)],
        3 => vec![(0, kill), (within(4000..9000), back)],
        4 => {
            let (held, back_at) = (within(500..3000), within(4000..9000));
            vec![
                (0, Act::HoldReplication(shard)),
                (held, kill),
                (held + 3900, Act::LetReplicate(shard)),
                (held + back_at, back),
            ]
        }
        5 => {
            let stop = Act::Stop { shard, whole: within(0..4) == 0 };
            vec![(0, stop), (within(3000..8000), Act::Continue(shard))]
        }
        6 => {
            let sides: Vec<u64> = (0..PLAIN).map(|_| within(0..3)).collect();
            let on = |side| (0..PLAIN).filter(|node| sides[*node] == side).collect();
            let (plain, shared) = (on(0), on(1));
            let replicas = (0..SHARDS).filter(|it| *it != shard && within(0..3) == 0).collect();
            let cut = Act::CutOff { proxy, shard, replicas, plain, shared };
            vec![(0, cut), (within(8000..15_000), Act::Heal { proxy })]
        }
        7 => {
            let deafen = Act::Deafen { proxy, shards: vec![shard, other] };
            vec![(0, deafen), (within(6000..9000), Act::Heal { proxy })]
        }
        8 => {
            let kill = Act::Kill { shard, whole: true };
            vec![(0, kill), (within(3000..8000), back), (9000, Act::Nothing)]
        }
        9 => vec![(0, Act::KillProxy(proxy)), (within(300..2000), Act::StartProxy(proxy))],
        10 => {
            let also = begin(Slot::Lock(number + 1), other);
            there_and_back(vec![begin(Slot::Lock(number), other), also], &mut within)
        }
        11 => {
            // A new shard needs a slot for its marker.
            let slots = vec![begin(Slot::Beside(number), NEW), begin(Slot::Lock(number), NEW)];
            there_and_back(slots, &mut within)
        }
        12 => there_and_back(vec![begin(Slot::Station, other)], &mut within),
        _ => {
            let killed = within(100..1500);
            let back_at = killed + within(3000..8000);
            vec![
                (0, begin(Slot::Lock(number), other)),
                (within(0..100), Act::MoveKey),
                (killed, kill),
                (back_at, back),
                (back_at + 100, Act::FinishMoves),
            ]
        }
    }
}

/// Makes an episode: one fault, and often another that begins while it lasts.
fn episode(kind: usize, random: &mut StdRng) -> (Vec<usize>, Steps) {
    let (mut kinds, mut all) = (vec![kind], steps(kind, random));
    if random.random_bool(0.5) {
        let second = BESIDE[random.random_range(0..BESIDE.len())];
        let begin = random.random_range(0..3000);
        let later = steps(second, random).into_iter().map(|(at, act)| (at + begin, act));
        let later: Steps = later.collect();
        let is_other = |act: &Act| all.iter().all(|(_, other)| !collide(act, other));
        if second != kind && later.iter().all(|(_, act)| is_other(act)) {
            kinds.push(second);
            all.extend(later);
        }
    }
    all.sort_by_key(|(at, _)| *at);
    (kinds, all)
}

/// Whether the undoing of one fault's step would undo another's.
fn collide(one: &Act, other: &Act) -> bool {
    let proxy = |act: &Act| match act {
        Act::CutOff { proxy, .. } | Act::Deafen { proxy, .. } | Act::Heal { proxy } => Some(*proxy),
        Act::KillProxy(proxy) | Act::StartProxy(proxy) => Some(*proxy),
        _ => None,
    };
    let shard = |act: &Act| match act {
        Act::FailOver { shard, .. } | Act::Kill { shard, .. } | Act::Restart { shard, .. } => {
            Some(*shard)
        }
        Act::Stop { shard, .. } | Act::Continue(shard) => Some(*shard),
        Act::HoldReplication(shard) | Act::LetReplicate(shard) => Some(*shard),
        _ => None,
    };
    let both = |one: Option<usize>, other: Option<usize>| one.is_some() && one == other;
    both(proxy(one), proxy(other)) || both(shard(one), shard(other))
}

/// Makes faults for `length`, and until each kind has come.
fn play_all(fleet: &mut ShardFleet, length: Duration) -> Vec<Episode> {
    let mut random = StdRng::seed_from_u64(fleet.options().seed);
    let begun = now();
    let (mut to_come, mut episodes) = (Vec::new(), Vec::new());
    let mut rounds = 0;
    while now() < begun + length.as_micros() as Time || rounds < 2 {
        if to_come.is_empty() {
            rounds += 1;
            to_come = (0..KINDS.len()).collect();
            to_come.shuffle(&mut random);
        }
        let (kinds, steps) = episode(to_come.pop().unwrap_or(0), &mut random);
        let short = random.random_bool(0.3).then(|| random.random_range(300..2500));
        let from = now();
        play(fleet, &steps);
        let until = now();
        let recovered = match short {
            Some(calm) => {
                thread::sleep(Duration::from_millis(calm));
                None
            }
            None => Some(recover(fleet, until)),
        };
        episodes.push(Episode { kinds, from, until, recovered });
    }
    let until = now();
    let recovered = Some(recover(fleet, until));
    episodes.push(Episode { kinds: vec![], from: until, until, recovered });
    episodes
}

fn play(fleet: &mut ShardFleet, steps: &[(u64, Act)]) {
    let begun = now();
    for (at, act) in steps {
        let due = begun + at * 1000;
        thread::sleep(Duration::from_micros(due.saturating_sub(now())));
        fleet.act(act);
    }
    fleet.settle();
}

/// Returns the longest time that may pass without a grant after the end of a fault.
fn limit(options: &Options) -> Time {
    let wait = options.max_ttl * 1010 + CONFIRM + NODE_TIMEOUT * 1000;
    // Where a shard has just one key, a client may keep that to the end of its lock.
    let held = options.max_ttl * 1000;
    if options.alone { wait + held + RECOVERY } else { held + RECOVERY }
}

/// Waits until a lock has been granted through every proxy, and one of every shard, since `since`, at most
/// for as long as it may take. Returns the time of the last of these grants.
fn recover(fleet: &ShardFleet, since: Time) -> Time {
    let limit = limit(fleet.options());
    loop {
        thread::sleep(LOOK);
        let histories = fleet.histories();
        let of_proxies = (0..PROXIES).map(|proxy| granted(&histories, Some(proxy)));
        let of_shards = grants_of_shards(fleet, &histories).into_iter();
        let firsts = of_proxies
            .chain(of_shards.filter(|times| !times.is_empty()))
            .map(|times| times.into_iter().find(|time| *time > since));
        let all: Option<Vec<Time>> = firsts.collect();
        match all {
            Some(all) => return all.into_iter().max().unwrap_or(since),
            None if now() > since + limit => return Time::MAX,
            None => {}
        }
    }
}

/// Returns the times when locks of each shard were granted, in order.
fn grants_of_shards(fleet: &ShardFleet, histories: &[(Option<usize>, History)]) -> Vec<Vec<Time>> {
    let keys = (0..fleet.options().keys).map(trace::lock);
    let shards: BTreeMap<String, usize> =
        keys.filter_map(|key| Some((key.clone(), fleet.shard_of(&key)?))).collect();
    let mut all = vec![Vec::new(); SHARDS + 1];
    for (_, history) in histories {
        let mut asked = None;
        for (time, event) in history {
            match event {
                Event::Sent { key, .. } => asked = shards.get(key),
                Event::Answered(Outcome::Granted { name, .. }) => {
                    asked = name.as_ref().map_or(asked, |name| shards.get(name));
                    asked.iter().for_each(|shard| all[**shard].push(*time));
                }
                _ => {}
            }
        }
    }
    all.iter_mut().for_each(|times| times.sort_unstable());
    all
}

/// Prints the outcome of a run, and fails if something is wrong.
fn judge(fleet: &ShardFleet, episodes: &[Episode], from: Time) {
    let options = fleet.options();
    let all = fleet.histories();
    let histories: Vec<_> = all.iter().map(|(_, history)| history.clone()).collect();
    let verdict = checker::check(&histories);
    let mut wrong: Vec<String> = verdict.wrong.iter().map(Wrong::to_string).collect();
    if verdict.over != fleet.clients() {
        wrong.push(format!("{} of {} clients ended", verdict.over, fleet.clients()));
    }
    let limit = limit(options);
    for Episode { kinds, until, recovered, .. } in episodes {
        if recovered.is_some_and(|recovered| recovered > until + limit) {
            let what = "no grant through every proxy and of every shard";
            wrong.push(format!("{what} within {limit} µs of {kinds:?}"));
        }
    }
    let lost = losses(all.clone());
    let felt = options.default_ttl * 1000 + CONFIRM;
    let is_cut = |(proxy, time): &&(usize, Time)| {
        let of = |cut: &&Cut| cut.plain || cut.proxy == *proxy;
        fleet.cuts.iter().filter(of).any(|cut| cut.is_felt(*time, felt))
    };
    let unexpected: Vec<_> = lost.iter().filter(|loss| !is_cut(loss)).collect();
    if !options.alone {
        let words = |(proxy, time): &&&(usize, Time)| {
            format!("a session lock of proxy {proxy} was lost at {time}, which was not cut off")
        };
        wrong.extend(unexpected.iter().map(|loss| words(&loss)));
    }
    print(fleet, &all, &verdict, episodes, from);
    let failovers: usize = (0..SHARDS).map(|shard| fleet.tenures(shard).len() - 1).sum();
    println!(
        "cluster: setup={} coverage={} seed={} seconds={} failovers={failovers} moved={} grants={} \
         renewals={} noquorum={} overlaps={} careless={} fences={} losses={} of_uncut={} wrong={}",
        if options.alone { "alone" } else { "one of three" },
        if options.full { "full" } else { "part" },
        options.seed,
        (now() - from) / SECOND,
        fleet.moved,
        verdict.counts.grants,
        verdict.counts.renewals,
        verdict.counts.no_quorum,
        verdict.wrong.iter().filter(|one| matches!(one, Wrong::TwoHolders(..))).count(),
        verdict.careless,
        verdict.wrong.iter().filter(|one| matches!(one, Wrong::Fence { .. })).count(),
        lost.len(),
        unexpected.len(),
        wrong.len(),
    );
    if wrong.is_empty() {
        return;
    }
    for one in verdict.wrong.iter().take(2) {
        println!("\nWRONG: {one}\n{}", around(&fleet.log, &all, one));
    }
    for (time, what) in &fleet.log {
        println!("{time} {what}");
    }
    (0..SHARDS).for_each(|shard| println!("shard {shard}: {:?}", fleet.tenures(shard)));
    println!("cuts: {:?}", fleet.cuts);
    for proxy in 0..PROXIES {
        println!("proxy {proxy}: {}", fleet.proxy_log(proxy));
    }
    let (seed, log, seen) = (options.seed, &fleet.log, report::seen(&verdict));
    let (histories, verdict) = (&histories, &verdict);
    FailedRun { name: "cluster", seed, log, histories, verdict, seen, wrong }.fail();
}

fn print(
    fleet: &ShardFleet,
    histories: &[(Option<usize>, History)],
    verdict: &checker::Verdict,
    episodes: &[Episode],
    from: Time,
) {
    let seconds = |time: Time| format!("{:.1}", time as f64 / 1e6);
    // By kind, and alone or with another: how often, the longest time without a grant, and the longest
    // from its end until each proxy and each shard has granted again.
    let mut table: BTreeMap<String, (usize, Time, Time)> = BTreeMap::new();
    let ends = episodes.iter().skip(1).map(|next| next.from).chain([now()]);
    for (episode, end) in episodes.iter().zip(ends).filter(|(it, _)| !it.kinds.is_empty()) {
        let end = episode.recovered.map_or(end, |recovered| recovered.min(end));
        let (gap, _) = checker::longest_gap(&verdict.granted, episode.from, end);
        let recovery = episode.recovered.map_or(0, |time| time.saturating_sub(episode.until));
        let kinds: Vec<&str> = episode.kinds.iter().map(|kind| KINDS[*kind]).collect();
        let row = table.entry(kinds.join(" + ")).or_default();
        *row = (row.0 + 1, row.1.max(gap), row.2.max(recovery));
    }
    println!("\n{:<75} {:>5} {:>12} {:>14}", "fault", "times", "no grant, s", "all again, s");
    for (kinds, (times, gap, recovery)) in table {
        println!("{kinds:<75} {times:>5} {:>12} {:>14}", seconds(gap), seconds(recovery));
    }
    // After the last episode clients end.
    let until = episodes.last().map_or(from, |last| last.until);
    let (gap, since) = checker::longest_gap(&verdict.granted, from, until);
    println!("longest without a grant: {} s, {} s after the begin", seconds(gap), {
        seconds(since - from)
    });
    for (shard, times) in grants_of_shards(fleet, histories).iter().enumerate().take(SHARDS) {
        let (gap, since) = checker::longest_gap(times, from, until);
        let (count, since) = (times.len(), seconds(since - from));
        println!("shard {shard}: {count} grants, none for {} s, {since} s after", seconds(gap));
    }
    println!("{:?}", fleet.options());
}

fn run(alone_in_it: bool) {
    let _alone = alone();
    let seed = match number("LOCKGATE_SEED", 0) {
        0 => rand::random_range(1..1_000_000),
        seed => seed,
    };
    let length = Duration::from_secs(60 * number("LOCKGATE_MINUTES", 1));
    let mut fleet = ShardFleet::start(random(seed, alone_in_it));
    fleet.start_clients();
    let from = now();
    recover(&fleet, from);
    let episodes = play_all(&mut fleet, length);
    fleet.stop_clients();
    judge(&fleet, &episodes, from);
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_shards_of_the_only_lock_node_fail_over_and_slots_move() {
    run(true);
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_shards_of_one_of_three_lock_nodes_fail_over_and_slots_move() {
    run(false);
}

/// Locks that the master had not replicated when it died, on replicas that do not wait.
#[test]
#[ignore = "takes minutes: make chaos"]
fn without_quarantine_a_shards_failover_makes_two_holders() {
    let _alone = alone();
    let mut fleet = ShardFleet::start(calm(false));
    fleet.start_clients();
    let from = now();
    recover(&fleet, from);
    for shard in (0..SHARDS).cycle().take(2 * SHARDS) {
        play(
            &mut fleet,
            &[
                (0, Act::HoldReplication(shard)),
                (1000, Act::Kill { shard, whole: false }),
                (6000, Act::LetReplicate(shard)),
                (7000, Act::Restart { shard, empty: true }),
            ],
        );
        let since = now();
        recover(&fleet, since);
        if let Some(wrong) = two_holders(fleet.histories()).first() {
            println!("found after {} s: {wrong}", (now() - from) / SECOND);
            return;
        }
    }
    panic!("not found: nothing shows that the wait is needed");
}

/// Shows until when a proxy that is cut off with the old master grants, and from when the others do.
#[test]
#[ignore = "takes minutes: make chaos"]
fn a_proxy_cut_off_with_a_shards_old_master_stops_before_others_grant() {
    let _alone = alone();
    let mut fleet = ShardFleet::start(calm(true));
    fleet.start_clients();
    let from = now();
    recover(&fleet, from);
    for (proxy, shard) in [(0, 0), (1, 1)] {
        let cut_off = now();
        let none = Vec::new;
        let (replicas, plain, shared) = (none(), none(), none());
        let cut = Act::CutOff { proxy, shard, replicas, plain, shared };
        play(&mut fleet, &[(0, cut), (30_000, Act::Heal { proxy })]);
        let healed = now();
        recover(&fleet, healed);
        let histories = fleet.histories();
        let of = |which: &dyn Fn(usize) -> bool| {
            let of = histories.iter().filter(|(it, _)| it.is_some_and(which)).cloned();
            let times = grants_of_shards(&fleet, &of.collect::<Vec<_>>()).swap_remove(shard);
            times.into_iter().filter(|time| (cut_off..healed).contains(time)).collect::<Vec<_>>()
        };
        let seconds = |time: Time| time.saturating_sub(cut_off) as f64 / 1e6;
        let (promoted, master) = *fleet.tenures(shard).last().expect("a master");
        let stopped = of(&|it| it == proxy).last().copied().unwrap_or(cut_off);
        // A grant from before the cut may be told just after it.
        let began = of(&|it| it != proxy).into_iter().find(|time| *time > promoted);
        let began = began.expect("the others grant before the cut is healed");
        println!(
            "cut off at 0 s: node {master} promoted at {:.1} s; the proxy inside granted until {:.1} s, \
             those outside from {:.1} s",
            seconds(promoted),
            seconds(stopped),
            seconds(began)
        );
        let found = two_holders(histories.clone());
        assert!(found.is_empty(), "{}\n{}", found[0], around(&fleet.log, &histories, &found[0]));
        assert!(promoted > cut_off, "another master was elected");
        assert!(stopped < cut_off + CONFIRM + SECOND, "it went on with the old master");
    }
}
