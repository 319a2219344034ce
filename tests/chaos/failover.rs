//! Failovers among the faults: a lock node that Sentinels watch, alone or beside two others, and a
//! data node that they watch too.
//!
//! The master is killed, stopped, made a replica by hand, cut off together with a proxy and a Sentinel, and comes
//! back as a master that does not know of the failover yet. Replicas promoted meanwhile lack locks. The checker
//! judges what clients were told. Here it is judged that grants come again through every proxy, that no session lock
//! is lost where other lock nodes are a quorum, and that no Redis acknowledges a write once it is no longer the data
//! node.

mod cluster;
mod fleet;
mod shards;
mod writer;

use std::{collections::BTreeMap, ops::Range, path::PathBuf, thread, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    alone,
    checker::{self, Wrong},
    client::Style,
    failed_run::FailedRun,
    history::{Event, Outcome, Time, keys, now},
    number, report, sound, writes,
};
use fleet::{Act, Fleet, History, Options, PLAIN, PROXIES, SENTINELS, What};

const SECOND: Time = 1_000_000;
/// The time for which a promoted replica waits beyond the longest TTL: `CONFIRM` of the lock nodes.
const CONFIRM: Time = 5 * SECOND;
/// The time beyond the documented wait until each proxy has granted a lock: an election that has to be
/// repeated, connections that are made anew, TCP, and clients that still wait for earlier answers.
const RECOVERY: Time = 15 * SECOND;
/// The time for which the former data node may acknowledge writes after a switch.
const MOVED: Time = 2 * SECOND;
/// The pause between two looks at the histories.
const LOOK: Duration = Duration::from_secs(1);
/// The time around a fault from which lines of history are shown.
const AROUND: Time = 20 * SECOND;
const LINES: usize = 600;

/// The kinds of faults, as they are printed.
const KINDS: [&str; 9] = [
    "SENTINEL FAILOVER",
    "master killed, back at once",
    "master killed, back later",
    "replication held, then master killed",
    "cut off: master, proxy, Sentinel",
    "proxy cut off from all Sentinels",
    "Sentinel killed",
    "master stopped",
    "SENTINEL FAILOVER twice",
];

/// The steps of an episode, in order, each with its time in ms from the beginning.
type Steps = Vec<(u64, Act)>;

/// An episode that is over.
struct Episode {
    /// The kinds of its faults.
    kinds: Vec<usize>,
    from: Time,
    until: Time,
    /// The time by which each proxy had granted a lock again. `None` if the next episode began soon.
    recovered: Option<Time>,
}

/// Returns options of a random run. The TTLs of a lock node that is alone are short for an odd seed; for an even one
/// they are long enough for session locks to outlive a failover.
fn random(seed: u64, alone: bool) -> Options {
    let (max_ttl, default_ttl) = match (alone, seed % 2) {
        (true, 0) => (16_000, 16_000),
        _ => (4000, 4000),
    };
    Options {
        seed,
        alone,
        max_ttl,
        default_ttl,
        quarantine: true,
        binary: binary(),
        pinned: &[Style::Mixed, Style::Sessions, Style::ToTheEnd],
        wandering: &[Style::Mixed, Style::Mixed],
        keys: 8,
        guards: None,
    }
}

/// Returns options under which a lock that is granted twice is seen at once: where replicas do not wait, by leases
/// that last for longer than an election.
fn calm(quarantine: bool) -> Options {
    let pinned = &[Style::ToTheEnd, Style::ToTheEnd, Style::Late];
    let max_ttl = if quarantine { 4000 } else { 10_000 };
    Options { quarantine, max_ttl, pinned, wandering: &[], keys: 4, ..random(1, true) }
}

fn binary() -> PathBuf {
    sound().0
}

/// Returns options of a random run whose clients write under the locks of guards. `guards`: what the proxies'
/// `guards` have beside their rules.
fn guarded(seed: u64, guards: &'static str) -> Options {
    let pinned = &[Style::Mixed, Style::ToTheEnd, Style::Writers];
    let wandering = &[Style::Mixed, Style::Writers];
    Options { guards: Some(guards), pinned, wandering, ..random(seed, false) }
}

/// Returns the steps of one fault. `data`: how likely it is about the data node.
fn steps(kind: usize, data: f64, random: &mut StdRng) -> Steps {
    let what = if random.random_bool(data) { What::Data } else { What::Locks };
    let mut within = |range: Range<u64>| random.random_range(range);
    match kind {
        0 => vec![(0, Act::FailOver(what)), (within(2000..4000), Act::Nothing)],
        1 => {
            let empty = within(0..2) == 0;
            let back = Act::Restart { what, empty };
            vec![(0, Act::Kill(what)), (within(100..700), back)]
        }
        2 => {
            let empty = within(0..2) == 0;
            let back = Act::Restart { what, empty };
            vec![(0, Act::Kill(what)), (within(2500..7000), back)]
        }
        3 => {
            let held = within(500..3000);
            let (empty, back) = (within(0..2) == 0, within(3000..6000));
            vec![
                (0, Act::HoldReplication(what)),
                (held, Act::Kill(what)),
                (held + 3000, Act::LetReplicate(what)),
                (held + back, Act::Restart { what, empty }),
            ]
        }
        4 => {
            let (proxy, sentinel) = (within(0..PROXIES as u64), within(0..SENTINELS as u64));
            let (proxy, sentinel) = (proxy as usize, sentinel as usize);
            let sides: Vec<u64> = (0..PLAIN).map(|_| within(0..3)).collect();
            let on = |side| (0..PLAIN).filter(|node| sides[*node] == side).collect();
            let (plain, shared) = (on(0), on(1));
            // Without the data node no client of this proxy is served.
            let data = within(0..4) > 0;
            let cut = Act::CutOff { proxy, sentinel, plain, shared, data };
            vec![(0, cut), (within(8000..15_000), Act::Heal { proxy })]
        }
        5 => {
            let proxy = within(0..PROXIES as u64) as usize;
            vec![(0, Act::Deafen { proxy }), (within(6000..9000), Act::Heal { proxy })]
        }
        6 => {
            let sentinel = within(0..SENTINELS as u64) as usize;
            let back = Act::StartSentinel(sentinel);
            vec![(0, Act::KillSentinel(sentinel)), (within(3000..8000), back)]
        }
        7 => vec![(0, Act::Stop(what)), (within(1500..6000), Act::Continue(what))],
        _ => {
            let again = within(2000..4500);
            vec![
                (0, Act::FailOver(what)),
                (again, Act::FailOver(what)),
                (again + 2500, Act::Nothing),
            ]
        }
    }
}

/// Makes an episode: one fault, and often another that begins while it lasts.
fn episode(kind: usize, data: f64, random: &mut StdRng) -> (Vec<usize>, Steps) {
    let (mut kinds, mut all) = (vec![kind], steps(kind, data, random));
    if random.random_bool(0.5) {
        let second = *[0, 2, 5, 6, 7].get(random.random_range(0..5)).unwrap_or(&0);
        if second != kind {
            let begin = random.random_range(0..3000);
            let later = steps(second, data, random).into_iter().map(|(at, act)| (at + begin, act));
            // The two faults must not be about the same proxy or master.
            let is_other = |act: &Act| all.iter().all(|(_, other)| !collide(act, other));
            let later: Steps = later.collect();
            if later.iter().all(|(_, act)| is_other(act)) {
                kinds.push(second);
                all.extend(later);
            }
        }
    }
    all.sort_by_key(|(at, _)| *at);
    (kinds, all)
}

/// Whether two faults' steps are about one and the same process.
fn collide(one: &Act, other: &Act) -> bool {
    let proxy = |act: &Act| match act {
        Act::CutOff { proxy, .. } | Act::Deafen { proxy } | Act::Heal { proxy } => Some(*proxy),
        _ => None,
    };
    let what = |act: &Act| match act {
        Act::FailOver(what) | Act::Kill(what) | Act::Stop(what) | Act::Continue(what) => {
            Some(*what)
        }
        Act::Restart { what, .. } => Some(*what),
        _ => None,
    };
    let both = |one: Option<usize>, other: Option<usize>| one.is_some() && one == other;
    both(proxy(one), proxy(other))
        || both(what(one).map(|what| what as usize), what(other).map(|what| what as usize))
}

/// Makes faults for `length`.
fn play_all(fleet: &mut Fleet, length: Duration) -> Vec<Episode> {
    let mut random = StdRng::seed_from_u64(fleet.options().seed);
    let data = if fleet.options().guards.is_some() { 0.7 } else { 0.3 };
    let begun = now();
    let (mut kinds, mut episodes) = (Vec::new(), Vec::new());
    while now() < begun + length.as_micros() as Time {
        if kinds.is_empty() {
            kinds = (0..KINDS.len()).collect();
            kinds.shuffle(&mut random);
        }
        let (kinds, steps) = episode(kinds.pop().unwrap_or(0), data, &mut random);
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

fn play(fleet: &mut Fleet, steps: &[(u64, Act)]) {
    let begun = now();
    for (at, act) in steps {
        let due = begun + at * 1000;
        thread::sleep(Duration::from_micros(due.saturating_sub(now())));
        fleet.act(act);
    }
}

/// Returns the longest time that may pass without a grant after the end of a fault.
fn limit(options: &Options) -> Time {
    let wait = if options.alone { options.max_ttl * 1010 + CONFIRM } else { 0 };
    wait + RECOVERY
}

/// Waits until a lock has been granted through every proxy since `since`, at most for as long as it
/// may take. Returns the time of the last of these grants.
fn recover(fleet: &mut Fleet, since: Time) -> Time {
    let limit = limit(fleet.options());
    loop {
        thread::sleep(LOOK);
        let firsts = (0..PROXIES).map(|proxy| {
            let granted = granted(&fleet.histories(), Some(proxy));
            granted.into_iter().find(|time| *time > since)
        });
        let all: Option<Vec<Time>> = firsts.collect();
        match all {
            Some(all) => return all.into_iter().max().unwrap_or(since),
            None if now() > since + limit => return Time::MAX,
            None => {}
        }
    }
}

/// Returns the times when clients of a proxy, or of all proxies, were told of a grant.
fn granted(histories: &[(Option<usize>, History)], proxy: Option<usize>) -> Vec<Time> {
    let of = histories.iter().filter(|(one, _)| proxy.is_none() || *one == proxy);
    checker::check(&of.map(|(_, history)| history.clone()).collect::<Vec<_>>()).granted
}

/// Returns the proxies and times of all session locks that clients were told they had lost.
fn losses(histories: Vec<(Option<usize>, History)>) -> Vec<(usize, Time)> {
    let is_loss = |event: &Event| matches!(event, Event::Pushed | Event::Answered(Outcome::Lost));
    let of = |(proxy, history): (Option<usize>, History)| {
        let lost = history.into_iter().filter(|(_, event)| is_loss(event));
        proxy.map(|proxy| lost.map(move |(time, _)| (proxy, time)).collect::<Vec<_>>())
    };
    histories.into_iter().filter_map(of).flatten().collect()
}

/// Prints the outcome of a run, and fails if something is wrong.
fn judge(fleet: &Fleet, episodes: &[Episode], from: Time) {
    let options = fleet.options();
    let histories: Vec<_> = fleet.histories().into_iter().map(|(_, history)| history).collect();
    let verdict = checker::check(&histories);
    let mut wrong: Vec<String> = verdict.wrong.iter().map(Wrong::to_string).collect();
    if verdict.over != fleet.clients() {
        wrong.push(format!("{} of {} clients ended", verdict.over, fleet.clients()));
    }
    let limit = limit(options);
    for Episode { kinds, until, recovered, .. } in episodes {
        if recovered.is_some_and(|recovered| recovered > until + limit) {
            wrong.push(format!("no grant through every proxy within {limit} µs of {kinds:?}"));
        }
    }
    let lost = losses(fleet.histories());
    let felt = options.default_ttl * 1000 + CONFIRM;
    let is_cut = |(proxy, time): &(usize, Time)| {
        let of = |cut: &&fleet::Cut| cut.plain || cut.proxy == *proxy && cut.from_nodes;
        fleet.cuts.iter().filter(of).any(|cut| cut.is_felt(*time, felt))
    };
    let unexpected: Vec<_> = lost.iter().filter(|loss| !is_cut(loss)).collect();
    if !options.alone {
        let words = |(proxy, time): &&&(usize, Time)| {
            format!("a session lock of proxy {proxy} was lost at {time}, which was not cut off")
        };
        wrong.extend(unexpected.iter().map(|loss| words(&loss)));
    }
    let (writes, strayed) = strayed(fleet);
    wrong.extend(strayed);
    print(fleet, &verdict, episodes, from);
    if options.guards.is_some() {
        let guarded = writes::check(&histories, &fleet.lists());
        wrong.extend(guarded.wrong.iter().map(writes::Wrong::to_string));
        println!("guarded writes: {:?}", guarded.counts);
    }
    let switches = |what| fleet.tenures(what).len() - 1;
    println!(
        "failover: setup={} seed={} seconds={} locks={} data={} grants={} renewals={} noquorum={} \
         overlaps={} careless={} fences={} losses={} of_uncut={} writes={writes} wrong={}",
        if options.alone { "a" } else { "b" },
        options.seed,
        (now() - from) / SECOND,
        switches(What::Locks),
        switches(What::Data),
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
        println!("\nWRONG: {one}\n{}", around(&fleet.log, &fleet.histories(), one));
    }
    for (time, what) in &fleet.log {
        println!("{time} {what}");
    }
    for what in [What::Locks, What::Data] {
        println!("{what:?}: {:?}", fleet.tenures(what));
    }
    println!("cuts: {:?}", fleet.cuts);
    for proxy in 0..PROXIES {
        println!("proxy {proxy}: {}", fleet.proxy_log(proxy));
    }
    let (seed, log, seen) = (options.seed, &fleet.log, report::seen(&verdict));
    let (histories, verdict) = (&histories, &verdict);
    FailedRun { name: "failover", seed, log, histories, verdict, seen, wrong }.fail();
}

/// Counts acknowledged writes. Returns what is wrong with some: acknowledged by a Redis that was no longer the data
/// node, or lost by the one that is.
fn strayed(fleet: &Fleet) -> (usize, Vec<String>) {
    let tenures = fleet.tenures(What::Data);
    let writes = fleet.acknowledged();
    let (since, last) = fleet.last_data();
    let mut wrong = Vec::new();
    for (proxy, host, write) in &writes {
        let is_there = |(from, until, master): &(Time, Time, usize)| {
            master == host
                && from.saturating_sub(SECOND) <= write.told
                && write.told <= until.saturating_add(MOVED)
        };
        if !tenures.iter().any(is_there) && !fleet.is_cut_off(*proxy, write.told) {
            wrong.push(format!("proxy {proxy} let host {host} acknowledge {write:?}: {tenures:?}"));
        }
        if *host == last && write.sent > since && !fleet.has(*host, &write.key) {
            wrong.push(format!("host {host} has acknowledged and lost {write:?}"));
        }
    }
    wrong.truncate(10);
    (writes.len(), wrong)
}

fn print(fleet: &Fleet, verdict: &checker::Verdict, episodes: &[Episode], from: Time) {
    let seconds = |time: Time| format!("{:.1}", time as f64 / 1e6);
    // By kind, and alone or with another: how often, the longest time without a grant, and the longest
    // from its end until each proxy has granted again.
    let mut table: BTreeMap<String, (usize, Time, Time)> = BTreeMap::new();
    let ends = episodes.iter().skip(1).map(|next| next.from).chain([now()]);
    for (episode, end) in episodes.iter().zip(ends).filter(|(episode, _)| !episode.kinds.is_empty())
    {
        let end = episode.recovered.map_or(end, |recovered| recovered.min(end));
        let (gap, _) = checker::longest_gap(&verdict.granted, episode.from, end);
        let recovery = episode.recovered.map_or(0, |time| time.saturating_sub(episode.until));
        let kinds: Vec<&str> = episode.kinds.iter().map(|kind| KINDS[*kind]).collect();
        let row = table.entry(kinds.join(" + ")).or_default();
        *row = (row.0 + 1, row.1.max(gap), row.2.max(recovery));
    }
    println!("\n{:<75} {:>5} {:>12} {:>14}", "fault", "times", "no grant, s", "all proxies, s");
    for (kinds, (times, gap, recovery)) in table {
        println!("{kinds:<75} {times:>5} {:>12} {:>14}", seconds(gap), seconds(recovery));
    }
    let (gap, since) = checker::longest_gap(&verdict.granted, from, now());
    println!("longest without a grant: {} s, {} s after the begin", seconds(gap), {
        seconds(since - from)
    });
    println!("{:?}", fleet.options());
}

/// Returns events of clients and faults about what is wrong.
fn around(log: &[(Time, String)], histories: &[(Option<usize>, History)], wrong: &Wrong) -> String {
    let (key, time) = match wrong {
        Wrong::TwoHolders(_, other) => (&*other.key, other.from),
        Wrong::Fence { key, told, .. }
        | Wrong::Unasked { key, told, .. }
        | Wrong::Fenced { key, told, .. } => (&**key, *told),
        Wrong::NoAnswer { sent, .. } => ("", *sent),
        Wrong::Untold { key, sent, .. } | Wrong::Behind { key, sent, .. } => (&**key, *sent),
    };
    let mut lines: Vec<(Time, String)> = log.to_vec();
    for (client, (proxy, history)) in histories.iter().enumerate() {
        let mut about = false;
        for (at, event) in history {
            if let Event::Sent { key: asked, .. } = event {
                about = keys(asked).any(|asked| asked == key);
            }
            let refused = matches!(event, Event::Answered(Outcome::Held | Outcome::Error(_)));
            if about && !refused {
                lines.push((*at, format!("client {client} of proxy {proxy:?}: {event}")));
            }
        }
    }
    lines.retain(|(at, _)| at.abs_diff(time) < AROUND);
    lines.sort();
    // Requests that were refused say nothing.
    let mut asked: Option<(Time, String)> = None;
    let mut text = Vec::new();
    for (at, line) in lines {
        if line.contains(": sent Lease") {
            asked = Some((at, line));
            continue;
        }
        text.extend(asked.take().filter(|_| line.contains("granted")));
        text.push((at, line));
    }
    let skip = text.len().saturating_sub(LINES);
    let lines = text.iter().skip(skip).map(|(at, line)| format!("{at} {line}\n"));
    lines.collect()
}

fn run(options: impl Fn(u64) -> Options) {
    let _alone = alone();
    let seed = match number("LOCKGATE_SEED", 0) {
        0 => rand::random_range(1..1_000_000),
        seed => seed,
    };
    let length = Duration::from_secs(60 * number("LOCKGATE_MINUTES", 1));
    let mut fleet = Fleet::start(options(seed));
    fleet.start_clients();
    let from = now();
    recover(&mut fleet, from);
    let episodes = play_all(&mut fleet, length);
    fleet.stop_clients();
    judge(&fleet, &episodes, from);
}

/// No test of its own: the entry point of each process that writes to the data node.
#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn writer_process() {
    if let Ok(orders) = std::env::var(writer::VARIABLE) {
        writer::run(&orders);
    }
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_the_only_lock_node_fails_over() {
    run(|seed| random(seed, true));
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_one_of_three_lock_nodes_fails_over() {
    run(|seed| random(seed, false));
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn no_acknowledged_write_is_lost_that_all_replicas_have() {
    run(|seed| guarded(seed, "  replicas: 2\n  replica_timeout: 300ms\n  wait_at: write\n"));
}

/// Writes that the master had not replicated when it died, where no proxy waits for replicas.
#[test]
#[ignore = "takes minutes: make chaos"]
fn without_replicas_acknowledged_writes_are_lost() {
    let _alone = alone();
    let mut fleet = Fleet::start(guarded(1, ""));
    fleet.start_clients();
    let from = now();
    recover(&mut fleet, from);
    let what = What::Data;
    let back = Act::Restart { what, empty: true };
    play(
        &mut fleet,
        &[
            (0, Act::HoldReplication(what)),
            (1000, Act::Kill(what)),
            (5000, Act::LetReplicate(what)),
            (6000, back),
        ],
    );
    let since = now();
    recover(&mut fleet, since);
    fleet.stop_clients();
    let histories: Vec<_> = fleet.histories().into_iter().map(|(_, history)| history).collect();
    let found = writes::check(&histories, &fleet.lists()).wrong;
    println!("{} are wrong, the first: {}", found.len(), found.first().expect("none is lost"));
}

/// Cuts off a proxy with both masters and the Sentinel of its number. Both sides reach these plain
/// lock nodes.
fn cut(proxy: usize, shared: Vec<usize>) -> Act {
    Act::CutOff { proxy, sentinel: proxy, plain: vec![], shared, data: true }
}

/// Returns the pairs of clients that have had a lock at once.
fn two_holders(histories: Vec<(Option<usize>, History)>) -> Vec<Wrong> {
    let histories: Vec<_> = histories.into_iter().map(|(_, history)| history).collect();
    let wrong = checker::check(&histories).wrong.into_iter();
    wrong.filter(|wrong| matches!(wrong, Wrong::TwoHolders(..))).collect()
}

/// Locks that the master had not replicated when it died, on replicas that do not wait.
#[test]
#[ignore = "takes minutes: make chaos"]
fn without_quarantine_a_failover_makes_two_holders() {
    let _alone = alone();
    let mut fleet = Fleet::start(calm(false));
    fleet.start_clients();
    let from = now();
    recover(&mut fleet, from);
    for _ in 0..4 {
        let what = What::Locks;
        play(
            &mut fleet,
            &[
                (0, Act::HoldReplication(what)),
                (1000, Act::Kill(what)),
                (5000, Act::LetReplicate(what)),
                (6000, Act::Restart { what, empty: true }),
            ],
        );
        let since = now();
        recover(&mut fleet, since);
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
fn a_proxy_cut_off_with_the_old_master_stops_before_others_grant() {
    let _alone = alone();
    let mut fleet = Fleet::start(calm(true));
    fleet.start_clients();
    let from = now();
    recover(&mut fleet, from);
    for proxy in 0..2 {
        let cut_off = now();
        play(&mut fleet, &[(0, cut(proxy, vec![])), (20_000, Act::Heal { proxy })]);
        let healed = now();
        recover(&mut fleet, healed);
        let within = |time: &&Time| (cut_off..healed).contains(*time);
        let seconds = |time: Time| time.saturating_sub(cut_off) as f64 / 1e6;
        let inside = granted(&fleet.histories(), Some(proxy));
        let outside = granted(&fleet.histories(), Some(2));
        let (_, _, master) = *fleet.tenures(What::Locks).last().expect("a master");
        let told = fleet.tenures(What::Locks).last().map_or(0, |(time, ..)| *time);
        let stopped = inside.iter().filter(within).max().copied().unwrap_or(cut_off);
        // A grant from before the cut may be told just after it.
        let began = outside.iter().filter(within).find(|time| **time > told).copied();
        let began = began.expect("the others grant before the cut is healed");
        println!(
            "cut off at 0 s: host {master} named at {:.1} s; the proxy inside granted until {:.1} s, \
             those outside from {:.1} s",
            seconds(told),
            seconds(stopped),
            seconds(began)
        );
        let found = two_holders(fleet.histories());
        assert!(
            found.is_empty(),
            "{}\n{}",
            found[0],
            around(&fleet.log, &fleet.histories(), &found[0])
        );
        assert!(told > cut_off, "the Sentinels have named another master");
        assert!(stopped > cut_off + SECOND, "the old master was not heard of any more at once");
        assert!(stopped < cut_off + CONFIRM + SECOND, "it went on with the old master");
    }
}

/// A proxy that is cut off with the old master reaches the other lock nodes too.
#[test]
#[ignore = "takes minutes: make chaos"]
fn a_proxy_cut_off_with_the_old_master_keeps_nobody_else_from_locks() {
    let _alone = alone();
    let pinned = &[Style::Mixed, Style::Sessions, Style::Late];
    let mut fleet = Fleet::start(Options { pinned, ..random(1, false) });
    fleet.start_clients();
    let from = now();
    recover(&mut fleet, from);
    let cut_off = now();
    play(&mut fleet, &[(0, cut(0, (0..PLAIN).collect())), (20_000, Act::Heal { proxy: 0 })]);
    let healed = now();
    recover(&mut fleet, healed);
    for proxy in 0..PROXIES {
        let granted = granted(&fleet.histories(), Some(proxy));
        let (gap, _) = checker::longest_gap(&granted, cut_off, healed);
        let count = granted.iter().filter(|time| (cut_off..healed).contains(*time)).count();
        let epochs = fleet.proxy_log(proxy).matches("the lock nodes' epoch").count();
        let lost = losses(fleet.histories()).into_iter().filter(|(of, _)| *of == proxy).count();
        println!(
            "proxy {proxy}: {count} grants in 20 s, none for {:.1} s; {lost} session locks lost; {epochs} \
             epochs in its log",
            gap as f64 / 1e6,
        );
        assert!(proxy == 0 || lost == 0, "two lock nodes have kept it all the time");
        assert!(gap < RECOVERY, "two lock nodes are a quorum");
    }
    let found = two_holders(fleet.histories());
    assert!(
        found.is_empty(),
        "{}\n{}",
        found[0],
        around(&fleet.log, &fleet.histories(), &found[0])
    );
}
