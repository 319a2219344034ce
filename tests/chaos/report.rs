//! Prints the outcome of a run, and fails the test if something was wrong.

use std::{collections::BTreeMap, fmt::Write as _, sync::atomic::Ordering, time::Duration};

use crate::{
    checker::{self, Verdict, Wrong},
    client::Style,
    deployment::{Deployment, PROXIES},
    failed_run::FailedRun,
    fault::ENDED,
    history::{Event, Idiom, Setting, Time, Writing, keys},
    schedule::{self, Span},
    updates,
    writes::{self, What},
};

/// The longest time without a grant, or without a write, while a quorum is up.
const GAP: Time = 5_000_000;
/// The longest time without a grant once a quorum is up again: quarantine is over by then, but
/// clients may still be waiting for answers to earlier requests, and for TCP.
const RECOVERY: Time = 8_000_000;
/// The time before the clients are stopped in which each of their requests must be answered, some with a grant and
/// some with an acknowledged write.
const ANSWERED: Time = 4_000_000;
/// The same for a permit. Few clients ask for one, about one a second is granted.
const PERMITTED: Time = 12_000_000;
/// The time around a fault from which lines of history are shown.
const AROUND: Time = 4_000_000;
const LINES: usize = 400;
/// Tells one kind of wrong write from the others.
type IsOne = fn(&What) -> bool;
const WRONG_WRITES: [(&str, IsOne); 5] = [
    ("acknowledged, and lost", |what| matches!(what, What::Lost)),
    ("refused, and made", |what| matches!(what, What::Refused(_))),
    ("made twice, in part or by nobody", |what| {
        matches!(what, What::Repeated | What::Half | What::Unknown | What::Elsewhere(_))
    }),
    ("made below a larger fence", |what| matches!(what, What::Below(_))),
    ("made behind what a successor had read", |what| matches!(what, What::Late(_))),
];

/// Prints the outcome of a run, and fails if a check does.
pub(crate) fn judge(deployment: &Deployment, spans: &[Span], from: Time, until: Time) {
    let histories = deployment.histories();
    let verdict = checker::check(&histories);
    let writes = writes::check(&histories, &deployment.lists());
    let updates = updates::check(&histories, deployment.options().guards);
    let max_ttl = Duration::from_millis(deployment.options().max_ttl);
    let windows = schedule::quorum_up(spans, from, until, max_ttl);
    let mut wrong: Vec<String> = verdict.wrong.iter().map(Wrong::to_string).collect();
    wrong.extend(writes.wrong.iter().map(writes::Wrong::to_string));
    wrong.extend(updates.wrong.iter().map(updates::Wrong::to_string));
    wrong.extend(pauses("grant", &verdict.granted, &windows));
    wrong.extend(pauses("write", &writes.acknowledged, &windows));
    wrong.extend(silences(&verdict, until));
    wrong.extend(leaks(&verdict, until));
    let calm = (until - ANSWERED, until);
    wrong.extend(goes_on("grant", &verdict.granted, calm));
    wrong.extend(goes_on("write", &writes.acknowledged, calm));
    if deployment.options().style == Style::Mixed && deployment.options().clients > 0 {
        wrong.extend(goes_on("permit", &verdict.permits, (until - PERMITTED, until)));
    }
    if deployment.options().sharers > 0 {
        let (reads, alone) = (&verdict.reads, &verdict.alone);
        wrong.extend(goes_on("reader", reads, (until - PERMITTED, until)));
        wrong.extend(goes_on("holder alone of what is shared", alone, (until - PERMITTED, until)));
    }
    if deployment.options().adopted > 0 {
        wrong.extend(goes_on("adopted lock", &verdict.taken, calm));
    }
    if verdict.over != deployment.clients() {
        wrong.push(format!("{} of {} clients ended", verdict.over, deployment.clients()));
    }
    print(deployment, spans, &verdict, &windows, (from, until));
    print_writes(&writes, &windows);
    print_updates(&updates);
    if wrong.is_empty() {
        println!("\nresult: nothing is wrong");
        return;
    }
    for one in &verdict.wrong {
        let (_, time) = whereabouts(one);
        let after = time.saturating_sub(from) as f64 / 1e6;
        println!("WRONG after {after:.1} s: {one}, {}", faults_before(spans, time, max_ttl));
    }
    for one in verdict.wrong.iter().take(3) {
        println!("\nWRONG: {one}\n{}", history_around(deployment, whereabouts(one)));
    }
    for one in writes.wrong.iter().take(3) {
        println!("\nWRONG: {one}\n{}", history_around(deployment, (&one.key, one.sent)));
    }
    for one in updates.wrong.iter().take(3) {
        println!("\nWRONG: {one}\n{}", history_around(deployment, (&one.key, one.told[1])));
    }
    for proxy in 0..PROXIES {
        let log = deployment.proxy_log(proxy);
        let from = log.len().saturating_sub(4000);
        println!("proxy {proxy}: …{}", String::from_utf8_lossy(&log.as_bytes()[from..]));
    }
    let mut seen = seen(&verdict);
    seen.extend(writes.wrong.iter().map(|one| (one.sent, one.to_string())));
    seen.extend(updates.wrong.iter().map(|one| (one.told[1], one.to_string())));
    let (seed, log) = (deployment.options().seed, &deployment.log);
    let (histories, verdict) = (&histories, &verdict);
    FailedRun { name: "all", seed, log, histories, verdict, seen, wrong }.fail();
}

/// Returns the pauses without any of `what` that are too long.
fn pauses(what: &str, times: &[Time], windows: &[(Time, Time)]) -> Vec<String> {
    let long = windows.iter().filter_map(|window| {
        let (late, gap) = pace(times, *window);
        let (from, until) = window;
        (gap > GAP || late > RECOVERY).then(|| {
            format!(
                "a quorum was up from {from} to {until}: first {what} after {late} µs, then none \
                 for {gap} µs"
            )
        })
    });
    long.collect()
}

/// Returns a complaint if none of `what` came once nothing was wrong any more: everything must have recovered,
/// however often it has failed.
fn goes_on(what: &str, times: &[Time], (from, until): (Time, Time)) -> Option<String> {
    let is_there = times.iter().any(|time| (from..until).contains(time));
    (!is_there).then(|| format!("no {what} in the calm"))
}

/// Returns the time until the first of these times, and the longest from one to the next.
fn pace(times: &[Time], (from, until): (Time, Time)) -> (Time, Time) {
    let first = times.iter().find(|time| **time >= from).copied().unwrap_or(until).min(until);
    (first - from, checker::longest_gap(times, first, until).0)
}

/// Returns the requests that were not answered although nothing was wrong any more.
fn silences(verdict: &Verdict, until: Time) -> Vec<String> {
    let late = verdict.silences.iter().filter(|silence| silence.sent > until - ANSWERED);
    late.map(|silence| format!("no answer in the calm: {silence:?}")).collect()
}

/// Returns the MLOCKs and LOCKs that were refused although nothing was wrong any more, and kept a lock.
fn leaks(verdict: &Verdict, until: Time) -> Vec<String> {
    let late = verdict.leaks.iter().filter(|leak| leak.refused > until - ANSWERED);
    late.map(|leak| format!("a lock that was refused is kept: {leak:?}")).collect()
}

fn print(
    deployment: &Deployment,
    spans: &[Span],
    verdict: &Verdict,
    windows: &[(Time, Time)],
    (from, until): (Time, Time),
) {
    let mut table: BTreeMap<&str, (usize, Time)> = BTreeMap::new();
    for span in spans {
        let entry = table.entry(span.fault.name()).or_default();
        entry.0 += 1;
        entry.1 += span.until - span.from;
    }
    let options = deployment.options();
    let seconds = |time: Time| time as f64 / 1e6;
    let clients = deployment.running_clients();
    println!("seed {}, {:.0} s, {clients} clients", options.seed, seconds(until - from));
    println!("\n{:<55} {:>5} {:>9}", "fault", "times", "seconds");
    for (name, (times, lasted)) in &table {
        println!("{name:<55} {times:>5} {:>9.1}", seconds(*lasted));
    }
    println!("{:<55} {:>5}", "all", spans.len());
    let counts = &verdict.counts;
    let packets = deployment.network().counts();
    let number = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let up: Time = windows.iter().map(|(from, until)| until - from).sum();
    let (recovery, gap) = slowest(&verdict.granted, windows);
    println!();
    for (what, value) in [
        ("requests", counts.requests.to_string()),
        ("grants", counts.grants.to_string()),
        ("permits granted, and refused", {
            format!("{}, {}", verdict.permits.len(), counts.permits_refused)
        }),
        ("readers granted, and others alone beside them", {
            format!("{}, {}", counts.reads, verdict.alone.len())
        }),
        ("sets granted, and refused", format!("{}, {}", counts.sets, counts.sets_refused)),
        ("refused, and looked at", counts.probes.to_string()),
        ("the same, and kept meanwhile", verdict.leaks.len().to_string()),
        ("renewals", counts.renewals.to_string()),
        ("adopted locks taken", counts.taken.to_string()),
        ("the same prolonged", counts.prolonged.to_string()),
        ("the same released in time", counts.released.to_string()),
        ("the same deleted by anybody", counts.deletions.to_string()),
        ("refused: held", counts.held.to_string()),
        ("refused: NOQUORUM", counts.no_quorum.to_string()),
        ("other errors", counts.errors.to_string()),
        ("session locks lost", counts.losses.to_string()),
        ("requests ended by the connection's end", counts.ended.to_string()),
        ("requests given up by the client", verdict.silences.len().to_string()),
        ("packets passed", number(&packets.passed).to_string()),
        ("packets lost", number(&packets.lost).to_string()),
        ("packets cut off", number(&packets.cut).to_string()),
        ("packets late", number(&packets.late).to_string()),
        ("packets that overtook", number(&packets.overtook).to_string()),
        ("waits for emptied nodes, in their logs", logged(deployment, "it was restarted, emptied")),
        ("clocks' jumps, in the same", logged(deployment, "of a lock node has jumped forward")),
        ("accepts that failed, in the same", logged(deployment, "cannot accept connections")),
        ("nodes ended by a full disk", ended(deployment)),
        ("processes that took another's place", logged(deployment, "taking over from")),
        ("configurations taken, and refused", {
            let taken = logged(deployment, "read the configuration again");
            format!("{taken}, {}", logged(deployment, "the configuration cannot be used"))
        }),
        ("seconds with a quorum up", format!("{:.1}", seconds(up))),
        ("longest without a grant then, s", format!("{:.2}", seconds(gap))),
        ("longest until the first one, s", format!("{:.2}", seconds(recovery))),
        ("two holders at once", two(verdict).to_string()),
        ("the same if counted from the answer", verdict.careless.to_string()),
        ("fences that did not grow", fences(verdict).to_string()),
        ("requests without an end", unanswered(verdict).to_string()),
        ("losses that were not the answer", untold(verdict).to_string()),
    ] {
        println!("{what:<40} {value:>12}");
    }
    for (word, times) in &verdict.refused {
        println!("{:<40} {times:>12}", format!("adopted commands refused: {word}"));
    }
}

/// Returns the longest time until the first of these times, and the longest pause, in any of these windows.
fn slowest(times: &[Time], windows: &[(Time, Time)]) -> (Time, Time) {
    let paces = || windows.iter().map(|window| pace(times, *window));
    let recovery = paces().map(|(recovery, _)| recovery).max();
    (recovery.unwrap_or(0), paces().map(|(_, gap)| gap).max().unwrap_or(0))
}

fn print_writes(verdict: &writes::Verdict, windows: &[(Time, Time)]) {
    let counts = &verdict.counts;
    if counts.acknowledged.is_empty() {
        return;
    }
    println!();
    let row = |what: &str, value: String| println!("{what:<40} {value:>12}");
    for ((shape, attached), times) in &counts.acknowledged {
        let line = if *attached { "attached" } else { "own" };
        row(&format!("writes acknowledged: {shape:?}, {line}"), times.to_string());
    }
    row("writes acknowledged", counts.acknowledged.values().sum::<usize>().to_string());
    for (word, times) in &counts.refused {
        row(&format!("writes refused: {word}"), times.to_string());
    }
    row("writes without an answer: made", counts.open.0.to_string());
    row("writes without an answer: not made", counts.open.1.to_string());
    row("entries", counts.entries.to_string());
    row("lengths read under a new lock", counts.lengths.to_string());
    let (recovery, gap) = slowest(&verdict.acknowledged, windows);
    row("longest without a write then, s", format!("{:.2}", gap as f64 / 1e6));
    row("longest until the first one, s", format!("{:.2}", recovery as f64 / 1e6));
    for (name, is_one) in WRONG_WRITES {
        let count = verdict.wrong.iter().filter(|wrong| is_one(&wrong.what)).count();
        row(name, count.to_string());
    }
}

/// Returns how often the proxies have logged these words.
fn logged(deployment: &Deployment, words: &str) -> String {
    let times = |proxy| deployment.proxy_log(proxy).matches(words).count();
    (0..PROXIES).map(times).sum::<usize>().to_string()
}

fn ended(deployment: &Deployment) -> String {
    deployment.log.iter().filter(|(_, what)| what.contains(ENDED)).count().to_string()
}

fn two(verdict: &Verdict) -> usize {
    verdict.wrong.iter().filter(|wrong| matches!(wrong, Wrong::TwoHolders(..))).count()
}

fn fences(verdict: &Verdict) -> usize {
    verdict.wrong.iter().filter(|wrong| matches!(wrong, Wrong::Fence { .. })).count()
}

fn unanswered(verdict: &Verdict) -> usize {
    verdict.wrong.iter().filter(|wrong| matches!(wrong, Wrong::NoAnswer { .. })).count()
}

fn untold(verdict: &Verdict) -> usize {
    let is_one = |wrong: &&Wrong| matches!(wrong, Wrong::Untold { .. } | Wrong::Behind { .. });
    verdict.wrong.iter().filter(is_one).count()
}

fn print_updates(verdict: &updates::Verdict) {
    let counts = &verdict.counts;
    if counts.timely == 0 {
        return;
    }
    println!();
    let row = |what: &str, value: usize| println!("{what:<40} {value:>12}");
    row("redis-py: updates in time", counts.timely);
    row("redis-py: updates too late", counts.late);
    for (word, times) in &counts.refused {
        row(&format!("redis-py: updates refused: {word}"), *times);
    }
    row("redis-py: updates without an answer", counts.open);
    row("redis-py: updates lost", verdict.wrong.len());
}

/// Returns the lock of a fault, and its time.
fn whereabouts(wrong: &Wrong) -> (&str, Time) {
    match wrong {
        Wrong::TwoHolders(_, other) => (&other.key, other.from),
        Wrong::Fence { key, told, .. }
        | Wrong::Unasked { key, told, .. }
        | Wrong::Fenced { key, told, .. } => (key, *told),
        Wrong::NoAnswer { sent, .. } => ("", *sent),
        Wrong::Untold { key, sent, .. } | Wrong::Behind { key, sent, .. } => (key, *sent),
    }
}

/// Returns what is wrong in clients' histories, with its time.
pub(crate) fn seen(verdict: &Verdict) -> Vec<(Time, String)> {
    verdict.wrong.iter().map(|one| (whereabouts(one).1, one.to_string())).collect()
}

/// Returns the faults that may be the reason for what went wrong at `time`, the latest last.
fn faults_before(spans: &[Span], time: Time, max_ttl: Duration) -> String {
    let earliest = time.saturating_sub(Time::try_from(max_ttl.as_micros()).unwrap_or(Time::MAX));
    let mut felt: Vec<&Span> =
        spans.iter().filter(|span| span.from < time && span.until > earliest).collect();
    felt.sort_by_key(|span| span.from);
    let words = felt.iter().map(|span| {
        let ago = (time - span.from) as f64 / 1e6;
        format!("{ago:.1} s after the begin of {:?}", span.fault)
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Returns events of clients about this key, and faults, around that time.
fn history_around(deployment: &Deployment, (key, time): (&str, Time)) -> String {
    let mut lines: Vec<(Time, String)> = deployment.log.clone();
    for (client, history) in deployment.histories().iter().enumerate() {
        let mut about = false;
        for (at, event) in history {
            if let Event::Sent { key: asked, .. }
            | Event::Writing(Writing { key: asked, .. })
            | Event::Setting(Setting { key: asked, .. })
            | Event::Idiom(Idiom { key: asked, .. }) = event
            {
                about = keys(asked).any(|asked| asked == key);
            }
            if about {
                lines.push((*at, format!("client {client}: {event}")));
            }
        }
    }
    lines.retain(|(at, _)| at.abs_diff(time) < AROUND);
    lines.sort();
    let mut text = String::new();
    for (at, line) in lines.iter().take(LINES) {
        let _ = writeln!(text, "{at} {line}");
    }
    text
}
