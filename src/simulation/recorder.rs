//! Records what happens in the simulation that runs in this thread, for the [page](super::history_page) of a seed that
//! fails. To record takes time, so it is done where a seed that has failed is simulated once more.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use tokio::time::Instant;

use super::history_page::{PageColumn, PageEvent, PageKind};

/// What tells a script from the others, and what it asks of a lock node.
const SCRIPTS: [(&str, &str); 13] = [
    ("-- Takes a lock on this node and", "acquire"),
    ("-- Gives a lock a fresh TTL", "renew"),
    ("-- Keeps locks on this node for", "renew"),
    ("-- Gives a lock back on this node and", "release"),
    ("-- Gives back on this node what one", "undo"),
    ("-- Puts a lock back on this node", "put back"),
    ("-- Passes a lock on this node", "hand over"),
    ("-- Gives a lock on this node that a token", "take over"),
    ("-- Adds a reader to a lock", "acquire for a reader"),
    ("-- Gives a reader a fresh TTL", "renew for a reader"),
    ("-- Keeps readers on this node for", "renew for a reader"),
    ("-- Takes a reader from a lock", "release for a reader"),
    ("-- Puts a reader back on this node", "put back for a reader"),
];

#[derive(Default)]
struct Recording {
    begun: Option<Instant>,
    events: Vec<PageEvent>,
    /// The event that began each client's present hold of each lock.
    holds: HashMap<(String, String), usize>,
}

thread_local! {
    static RECORDING: RefCell<Recording> = RefCell::default();
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Records what happens while `run` simulates.
pub(super) fn recorded<T>(run: impl FnOnce() -> T) -> T {
    RECORDING.take();
    IS_ON.set(true);
    let outcome = run();
    IS_ON.set(false);
    outcome
}

/// Times count from the first call.
pub(super) fn begin() {
    RECORDING.with_borrow_mut(|recording| *recording.begun.get_or_insert_with(Instant::now));
}

/// Returns what was recorded.
pub(super) fn take() -> Vec<PageEvent> {
    RECORDING.take().events
}

/// Records an event of this client, or of the party that its text names if there is no client.
pub(super) fn note(client: Option<&str>, kind: PageKind, text: &str) {
    if !IS_ON.get() {
        return;
    }
    // `c3.7` is the eighth lock of the client `c3`.
    let column = client.map(|name| PageColumn::Client(name.split('.').next().unwrap().to_owned()));
    let column = column.unwrap_or_else(|| column_of(text));
    let text = text.to_owned();
    RECORDING.with_borrow_mut(|recording| {
        let at = recording.micros(Instant::now());
        recording.events.push(PageEvent { at, column, kind, text });
    });
}

/// Makes the last event of a client the beginning of a time for which it counts on a lock. `None`: until it [`ends`].
pub(super) fn holds(key: &str, name: &str, until: Option<Instant>) {
    if !IS_ON.get() {
        return;
    }
    ends(key, name, Instant::now());
    RECORDING.with_borrow_mut(|recording| {
        let until = until.map_or(u64::MAX, |until| recording.micros(until));
        let is_meant = |event: &PageEvent| matches!(event.column, PageColumn::Client(_));
        let Some(last) = recording.events.iter().rposition(is_meant) else { return };
        recording.events[last].kind = PageKind::Grant { lock: key.to_owned(), until };
        recording.holds.insert((key.to_owned(), name.to_owned()), last);
    });
}

/// Records that a client counts on a lock until then at the latest.
pub(super) fn ends(key: &str, name: &str, at: Instant) {
    if !IS_ON.get() {
        return;
    }
    RECORDING.with_borrow_mut(|recording| {
        let at = recording.micros(at);
        let Some(event) = recording.holds.get(&(key.to_owned(), name.to_owned())) else { return };
        if let PageKind::Grant { until, .. } = &mut recording.events[*event].kind {
            *until = at.min(*until);
        }
    });
}

/// Records a lock node's answer to a script, if that is a vote.
pub(super) fn vote(node: usize, proxy: usize, (script, words): (&str, &[Vec<u8>]), answer: &[u8]) {
    if !IS_ON.get() {
        return;
    }
    let is_meant = |(begins, _): &&(&str, &str)| {
        memchr::memmem::find(script.as_bytes(), begins.as_bytes()).is_some()
    };
    let Some((_, asked)) = SCRIPTS.iter().find(is_meant) else { return };
    let text = |word: usize| String::from_utf8_lossy(words.get(word).map_or(b"", Vec::as_slice));
    // Behind the keys stands the token.
    let (keys, numbers) = (text(2), String::from_utf8_lossy(answer));
    let token = keys.parse::<usize>().map(|keys| text(3 + keys)).unwrap_or_default();
    let numbers: Vec<&str> = numbers.split("\r\n").filter(|part| !part.is_empty()).collect();
    let said = match numbers[..] {
        // A number alone is a yes too: the fence of a grant, or how many hear of a release.
        [number] if number.starts_with(':') => "yes",
        [_, ":1", ..] => "yes",
        _ => "no",
    };
    let (key, numbers) = (text(3), numbers.join(" "));
    let text = format!("{asked} {key} for {token}, proxy {proxy}: {said} ({numbers})");
    RECORDING.with_borrow_mut(|recording| {
        let (at, column) = (recording.micros(Instant::now()), PageColumn::Node(node));
        recording.events.push(PageEvent { at, column, kind: PageKind::Vote, text });
    });
}

/// Returns the party that this text is about: of a proxy and a node, the proxy.
fn column_of(text: &str) -> PageColumn {
    let number = |word: &str| {
        let behind = text.split(word).nth(1)?;
        behind.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    if text.starts_with("data: ") {
        return PageColumn::Data;
    }
    let proxy = number("proxy ").map(PageColumn::Proxy);
    proxy.or_else(|| number("node ").map(PageColumn::Node)).unwrap_or(PageColumn::All)
}

impl Recording {
    fn micros(&self, at: Instant) -> u64 {
        let since = self.begun.map(|begun| at.saturating_duration_since(begun));
        u64::try_from(since.unwrap_or_default().as_micros()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{
        Planted,
        history_page::{MOST_EVENTS, page},
        simulate,
        world::RunOutcome,
    };

    #[test]
    fn a_seed_that_fails_has_a_page() {
        let says =
            |outcome: &RunOutcome| outcome.faults.iter().any(|fault| fault.contains("at once"));
        let simulated = |seed| recorded(|| simulate(seed, Planted::SmallQuorum));
        let mut outcomes = (0..400).map(simulated);
        let RunOutcome { faults, mut events, .. } = outcomes.find(says).unwrap();
        let wrong = events.iter().find(|event| event.kind == PageKind::Wrong).unwrap().at;
        let text = "node 1 is <b>&\"".to_owned();
        events.push(PageEvent { at: wrong, column: column_of(&text), kind: PageKind::Fault, text });
        // The first violation stays, however much has followed.
        let later = PageEvent {
            at: u64::MAX,
            column: PageColumn::All,
            kind: PageKind::Other,
            text: "later".to_owned(),
        };
        events.resize(events.len() + MOST_EVENTS, later);
        let page = page("a seed", events, &faults);
        for column in ["node 0", "node 2", "proxy 2", "c0", "c1", "c2", "c3", "c4", "c5", "keeper"]
        {
            assert!(page.contains(&format!("px\">{column}</span>")), "no column of {column}");
        }
        assert!(page.contains("node 1 is &lt;b&gt;&amp;&quot;</span>") && !page.contains("<b>"));
        assert!(page.matches("<div ").count() <= MOST_EVENTS);
        assert!(page.contains("class=vote") && page.contains("class=grant"));
        let sentence = faults[0].replace('"', "&quot;");
        let (rows, end) = page.split_once("id=wrong").unwrap();
        assert!(rows.contains(&format!("WRONG: {sentence}")), "not where it happened: {sentence}");
        assert!(end.contains(&sentence), "not at the end: {sentence}");
    }
}
