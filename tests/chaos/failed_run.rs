//! What the [page](crate::history_page) of a failed run shows: what clients asked and were told, when they counted on
//! locks, faults, and violations. A real lock node's votes are not seen.

use std::path::PathBuf;

use crate::{
    checker::Verdict,
    history::{Event, Outcome, Time},
    history_page::{PageColumn, PageEvent, PageKind, write_page},
};

/// A run that failed.
pub(crate) struct FailedRun<'a> {
    pub(crate) name: &'a str,
    pub(crate) seed: u64,
    /// Faults and other acts of the test.
    pub(crate) log: &'a [(Time, String)],
    pub(crate) histories: &'a [Vec<(Time, Event)>],
    pub(crate) verdict: &'a Verdict,
    /// Violations, and when each was seen.
    pub(crate) seen: Vec<(Time, String)>,
    /// All violations, those of no time too.
    pub(crate) wrong: Vec<String>,
}

impl FailedRun<'_> {
    /// Fails the test.
    pub(crate) fn fail(mut self) -> ! {
        let page = self.write();
        let (seed, count) = (self.seed, self.wrong.len());
        self.wrong.truncate(20);
        let first = self.wrong.join("\n");
        panic!("seed {seed}: {count} things are wrong, {}:\n{first}", page.display());
    }

    /// Writes the page, and returns its path.
    fn write(&self) -> PathBuf {
        let add = |kind: PageKind, column: PageColumn, at: Time, text: String| PageEvent {
            at,
            column,
            kind,
            text,
        };
        let mut events = Vec::new();
        for (at, what) in self.log {
            events.push(add(PageKind::Fault, party(what), *at, what.clone()));
        }
        for (number, history) in self.histories.iter().enumerate() {
            for (at, event) in history {
                let kind = match event {
                    Event::Pushed | Event::Answered(Outcome::Lost) => PageKind::Loss,
                    Event::Killed => PageKind::Fault,
                    _ => PageKind::Other,
                };
                events.push(add(kind, client(number), *at, event.to_string()));
            }
        }
        for belief in &self.verdict.beliefs {
            let kind = PageKind::Grant { lock: belief.key.clone(), until: belief.until };
            let text = format!("{} is held by {belief}", belief.key);
            events.push(add(kind, client(belief.client), belief.from, text));
        }
        for (at, what) in &self.seen {
            events.push(add(PageKind::Wrong, PageColumn::All, *at, format!("WRONG: {what}")));
        }
        let name = format!("chaos-{}-{}", self.name, self.seed);
        write_page(&name, &name, events, &self.wrong)
    }
}

fn client(number: usize) -> PageColumn {
    PageColumn::Client(format!("client {number:02}"))
}

/// Returns the column of an act that is written as a fault is: `begins: NodeCut(2, Both)`.
fn party(act: &str) -> PageColumn {
    let fault = act.split_once(": ").map_or(act, |(_, fault)| fault);
    let number = fault.split(|letter: char| !letter.is_ascii_digit()).find(|word| !word.is_empty());
    let number = number.and_then(|number| number.parse().ok());
    match (fault, number) {
        // These have no proxy's number, or that of a group of clients.
        _ if fault.starts_with("ProxyClock") || fault.starts_with("ClientsCut") => PageColumn::All,
        (_, Some(number)) if fault.starts_with("Node") => PageColumn::Node(number),
        (_, Some(number)) if fault.starts_with("Proxy") => PageColumn::Proxy(number),
        (_, Some(number)) if fault.starts_with("Client") => client(number),
        _ if fault.starts_with("Data") => PageColumn::Data,
        _ => PageColumn::All,
    }
}

#[test]
fn a_failed_run_has_a_page_with_each_client() {
    let read =
        |text: &str| crate::history::parse(&text.replace(" | ", "\n").replace("over", "over\n"));
    let histories = [
        read("1000 sent Lease a | 2000 granted x<y> 1 10 | 20000 over"),
        read("2500 sent Lease a | 3000 granted z 2 10 | 20000 over"),
    ];
    let verdict = crate::checker::check(&histories);
    let wrong: Vec<String> = verdict.wrong.iter().map(ToString::to_string).collect();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    let log = [
        (1500, "begins: NodeCut(2, Both)".to_owned()),
        (1600, "begins: ProxyKilled(1)".to_owned()),
    ];
    let seen = vec![(3000, wrong[0].clone())];
    let (histories, verdict) = (&histories[..], &verdict);
    let run = FailedRun {
        name: "planted",
        seed: 0,
        log: &log,
        histories,
        verdict,
        seen,
        wrong: wrong.clone(),
    };
    let file = run.write();
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    for column in ["node 2", "proxy 1", "client 00", "client 01"] {
        assert!(page.contains(&format!("px\">{column}</span>")), "no column of {column}: {page}");
    }
    let sentence = wrong[0].replace('<', "&lt;").replace('>', "&gt;");
    assert_eq!(page.matches(&sentence).count(), 2, "where it happened, and at the end: {page}");
    assert_eq!(page.matches("<b title=\"a\"").count(), 2, "two bars: {page}");
}
