//! Renders what happened in a failed run as one HTML page: time runs down, nodes, proxies and clients are columns, and
//! grants are bars.
//!
//! The simulation and the tests with real processes (`tests/chaos/`) share this file, so it names nothing of either.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// The most events on a page: some behind the first violation, and the rest before it.
pub(crate) const MOST_EVENTS: usize = 5000;
const EVENTS_BEHIND: usize = 500;
/// The most sentences about violations on a page, and characters of a text.
const MOST_WRONG: usize = 20;
const MOST_CHARACTERS: usize = 400;
/// The size of rows and columns, of the column of times, and of a bar, in pixels.
const ROW: usize = 18;
const WIDTH: usize = 170;
const TIMES: usize = 110;
const BAR: usize = 8;
/// The bars that a column shows side by side.
const LANES: usize = 4;

const STYLE: &str = "body{margin:0;font:12px/18px monospace;width:max-content;min-width:100%}\
h1,p,li{font-family:sans-serif;margin:6px 12px}h1{font-size:18px}\
p,li,h1{max-width:1200px}\
header{position:sticky;top:0;z-index:3;background:#eee;height:24px;line-height:24px;font-weight:bold}\
header span{position:absolute}main{position:relative}\
main div{height:18px;white-space:nowrap;border-bottom:1px solid #f0f0f0;box-sizing:border-box}\
time{display:inline-block;position:sticky;left:0;z-index:2;background:#eee;padding-left:12px;box-sizing:border-box}\
main b{position:absolute;width:6px;border-radius:3px;opacity:.75}\
.vote{color:#777}.grant{color:#060;font-weight:bold}.loss{color:#c40;font-weight:bold}\
.fault{color:#70a}.wrong{background:#c00;color:#fff;font-weight:bold}.wrong time{color:#c00}";

/// Where something happened. The order is that of the columns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PageColumn {
    Node(usize),
    Proxy(usize),
    Data,
    Client(String),
    /// In no part alone.
    All,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// A lock node's answer.
    Vote,
    /// A client may count on the lock until that time.
    Grant {
        lock: String,
        until: u64,
    },
    /// A client was told that its lock is lost.
    Loss,
    Fault,
    /// The checker's complaint.
    Wrong,
    /// Requests, refusals, releases.
    Other,
}

#[derive(Debug, Clone)]
pub(crate) struct PageEvent {
    /// In microseconds.
    pub(crate) at: u64,
    pub(crate) column: PageColumn,
    pub(crate) kind: PageKind,
    pub(crate) text: String,
}

/// Writes a page to where failed tests leave their output, and returns its path. `wrong`: the checker's sentences.
pub(crate) fn write_page(
    name: &str,
    title: &str,
    events: Vec<PageEvent>,
    wrong: &[String],
) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tests");
    let file = folder.join(format!("{name}.html"));
    let written =
        fs::create_dir_all(folder).and_then(|()| fs::write(&file, page(title, events, wrong)));
    // The test fails for another reason, which this must not hide.
    written.unwrap_or_else(|error| println!("no page at {}: {error}", file.display()));
    file
}

/// Returns the page.
pub(crate) fn page(title: &str, mut events: Vec<PageEvent>, wrong: &[String]) -> String {
    events.sort_by_key(|event| event.at);
    // A part has its column even if nothing that is shown happened there.
    let columns: BTreeSet<PageColumn> = events.iter().map(|event| event.column.clone()).collect();
    let columns: BTreeMap<PageColumn, usize> =
        columns.into_iter().enumerate().map(|(number, column)| (column, number)).collect();
    let all = events.len();
    let first_wrong = events.iter().position(|event| event.kind == PageKind::Wrong);
    let end = first_wrong.map_or(all, |first| (first + EVENTS_BEHIND).max(MOST_EVENTS).min(all));
    let (events, shown) = (&events[..end], end.min(MOST_EVENTS));
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{0}</title><style>{STYLE}</style><h1>{0}</h1>\
         <p>{1} of {all} events. Time runs down, in seconds. A bar is the time for which a client may count on a \
         lock; each lock has a colour. Behind a lock node's vote stands its answer. \
         <a href=\"#wrong\">What is wrong</a> stands at the end.</p>\n",
        escape(title),
        shown
    );
    let _ = write!(out, "<header style=\"min-width:{}px\">", TIMES + columns.len() * WIDTH);
    for (column, number) in &columns {
        let name = match column {
            PageColumn::Node(number) => format!("node {number}"),
            PageColumn::Proxy(number) => format!("proxy {number}"),
            PageColumn::Data => "data node".to_owned(),
            PageColumn::Client(name) => name.clone(),
            PageColumn::All => "all".to_owned(),
        };
        let left = TIMES + number * WIDTH;
        let _ = write!(out, "<span style=\"left:{left}px\">{}</span>", escape(&name));
    }
    out.push_str("</header>\n<main>\n");
    rows(&mut out, &events[end - shown..], &columns);
    bars(&mut out, events, end - shown, &columns);
    out.push_str("</main>\n<h1 id=wrong>What is wrong</h1><ul>\n");
    for sentence in wrong.iter().take(MOST_WRONG) {
        let _ = writeln!(out, "<li class=wrong>{}", escape(sentence));
    }
    out.push_str("</ul></html>\n");
    out
}

fn rows(out: &mut String, events: &[PageEvent], columns: &BTreeMap<PageColumn, usize>) {
    for event in events {
        let class = match event.kind {
            PageKind::Vote => "vote",
            PageKind::Grant { .. } => "grant",
            PageKind::Loss => "loss",
            PageKind::Fault => "fault",
            PageKind::Wrong => "wrong",
            PageKind::Other => "other",
        };
        let (at, text) = (event.at as f64 / 1e6, escape(&event.text));
        // Beside the bars; a complaint goes over all columns.
        let left = match event.kind {
            PageKind::Wrong => 0,
            _ => columns[&event.column] * WIDTH + LANES * BAR,
        };
        let _ = writeln!(
            out,
            "<div class={class}><time style=\"width:{TIMES}px\">{at:.6}</time>\
             <span style=\"margin-left:{left}px\">{text}</span></div>"
        );
    }
}

/// Draws the bars of events, of which those from `first` on have rows: a bar may have begun earlier.
fn bars(
    out: &mut String,
    events: &[PageEvent],
    first: usize,
    columns: &BTreeMap<PageColumn, usize>,
) {
    // Until when each lane of each column is taken.
    let mut taken = vec![[0; LANES]; columns.len()];
    for (number, event) in events.iter().enumerate() {
        let PageKind::Grant { lock, until } = &event.kind else { continue };
        let row = number.max(first);
        if row > number && events[first].at >= *until {
            continue;
        }
        let column = columns[&event.column];
        let lanes = &mut taken[column];
        let lane = lanes.iter().position(|end| *end <= event.at).unwrap_or(LANES - 1);
        lanes[lane] = lanes[lane].max(*until);
        let rows = events[row..].partition_point(|event| event.at < *until).max(1);
        let hash = lock.bytes().fold(0, |sum, byte| (sum * 31 + usize::from(byte)) % 360);
        let colour = hash * 67 % 360;
        let _ = writeln!(
            out,
            "<b title=\"{}\" style=\"left:{}px;top:{}px;height:{}px;background:hsl({colour} 70% 45%)\"></b>",
            escape(lock),
            TIMES + column * WIDTH + lane * BAR,
            (row - first) * ROW,
            rows * ROW,
        );
    }
}

/// Returns the text, cut off where it is too long, as it may stand in HTML.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(MOST_CHARACTERS) {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}
