//! Draws the screen from the merged reports and the user's choices.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{
    choices::View,
    documents::Round,
    layout::{Sheet, TableColumn, TableRow, Tone},
    merge::{FamilyRow, LockRow, NodeRow, WaiterRow, WatchedProxy},
    plain::PlainText,
    wanted::LockSort,
};
use crate::report::{document::SharingPart, lists::ClientPart};

/// Everything that can be shown.
#[derive(Clone, Copy)]
pub(super) struct Board<'a> {
    pub(super) proxies: &'a [WatchedProxy],
    pub(super) nodes: &'a [NodeRow],
    pub(super) locks: &'a [LockRow],
    pub(super) line: &'a [WaiterRow],
    pub(super) view: &'a View,
    pub(super) now: SystemTime,
    pub(super) every: Duration,
}

/// Most locks on a screen that is written once.
const LOCKS_ONCE: usize = 50;
/// Most lines of such a screen.
const LINES_ONCE: u16 = 1000;

const PROXY_COLUMNS: [TableColumn; 10] = [
    words("PROXY", 14, 40, 0),
    words("STATE", 11, 11, 0),
    words("NAME", 8, 40, 9),
    words("VERSION", 7, 12, 8),
    number("UPTIME", 7, 6),
    number("CLIENTS", 7, 5),
    number("HELD", 6, 3),
    number("WAITERS", 7, 1),
    number("GRANTS/S", 8, 2),
    number("REFUSED/S", 9, 4),
];
const NODE_COLUMNS: [TableColumn; 4] = [
    words("LOCK NODE", 14, 40, 0),
    number("VOTES", 5, 0),
    number("ROUND TRIP", 10, 2),
    words("STATE", 12, 400, 1),
];
const LOCK_COLUMNS: [TableColumn; 8] = [
    words("  LOCK", 12, 60, 0),
    words("HOLDER", 14, 22, 3),
    words("NAME", 8, 24, 4),
    words("PROXY", 14, 24, 7),
    number("HELD", 7, 2),
    number("TTL", 7, 6),
    number("WAITERS", 7, 1),
    number("LONGEST", 7, 5),
];
/// The additional column of hot locks.
const WAITED_COLUMN: TableColumn = number("WAITED", 7, 3);
const LINE_COLUMNS: [TableColumn; 5] = [
    words("CLIENT", 14, 40, 0),
    words("NAME", 8, 40, 2),
    words("PROXY", 14, 40, 3),
    number("WAITED", 7, 0),
    number("HOLDS", 5, 4),
];

const HELP: [&str; 20] = [
    "q, Ctrl-C      ends",
    "j k ↓ ↑        the next and the last lock; g G: the first and the last of all",
    "1 w            locks that most clients wait for first",
    "2 a            locks held for longest first",
    "3 t            locks first that a client has waited for longest",
    "4 h            hot locks: waited for longest by all clients together, lately",
    "/              locks whose names have this word, or match this pattern (KEYS); Esc: all",
    "Enter          who holds the lock and who waits for it; Enter, Esc: back",
    "p              nothing is asked until p is pressed again",
    "",
    "name#*         all permits of a family (LOCK name PERMITS n), the oldest grant and the first end;",
    "               Enter shows each permit, and so does a pattern that leaves out name#*: name#[0-9]*",
    "HELD           locks granted through this proxy; of a lock, for how long",
    "TTL            until the lock ends if nobody renews it",
    "LONGEST        how long the first in line has waited",
    "REFUSED/S      LOCKs and writes refused: busy, too few lock nodes, queue full, guards, adopt",
    "sharing:       with share: yes, clients on links to the data node and the replies that they are owed there, and",
    "               clients that got a connection of their own, and by what; lockgate doctor names these",
    "VOTES          proxies that count on this lock node's votes, of those that were reached",
    "",
];

const fn words(title: &'static str, least: u16, most: u16, dispensable: u8) -> TableColumn {
    TableColumn { title, least, most, dispensable, numbers: false }
}

const fn number(title: &'static str, width: u16, dispensable: u8) -> TableColumn {
    TableColumn { title, least: width, most: width, dispensable, numbers: true }
}

impl Board<'_> {
    /// Draws the screen.
    pub(super) fn draw(&self, width: u16, height: u16) -> Sheet {
        let mut sheet = Sheet::new(width, height);
        sheet.line(&self.summary(), Tone::Head);
        if self.view.help {
            HELP.iter().for_each(|line| sheet.line(line, Tone::Plain));
        } else if let Some(name) = &self.view.open {
            self.draw_line(&mut sheet, name);
        } else {
            self.draw_all(&mut sheet);
        }
        sheet.skip_to_last(1);
        sheet.line(&self.foot(), Tone::Plain);
        sheet
    }

    /// Returns the screen as text, with as many lines as it needs.
    pub(super) fn text(&self, width: u16) -> Vec<String> {
        let (locks, left_out) = self.locks.split_at(self.locks.len().min(LOCKS_ONCE));
        // A proxy takes three lines at most; headings and blank lines are 10.
        let lines = 3 * self.proxies.len() + self.nodes.len() + locks.len() + 10;
        let lines = u16::try_from(lines).unwrap_or(u16::MAX).min(LINES_ONCE);
        let mut sheet = Sheet::new(width, lines);
        sheet.line(&self.summary(), Tone::Plain);
        Board { locks, ..*self }.draw_all(&mut sheet);
        let mut lines = sheet.text();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        if !left_out.is_empty() {
            lines.push(format!("  … {} more", left_out.len()));
        }
        lines
    }

    fn draw_all(&self, sheet: &mut Sheet) {
        if let Some(complaint) = self.complaint() {
            sheet.line(&complaint, Tone::Warning);
        }
        // Locks get what the proxies and nodes leave, but some lines in any case.
        let gap = usize::from(sheet.room() > 16);
        let room = sheet.room().saturating_sub(1 + 3 * gap);
        let mut proxies: Vec<_> = self.proxies.iter().map(|proxy| self.proxy(proxy)).collect();
        let mut nodes: Vec<_> = self.nodes.iter().map(node).collect();
        let locks: Vec<_> =
            self.locks.iter().enumerate().map(|(place, row)| self.marked(place, row)).collect();
        let wanted = (height(&proxies), height(&nodes));
        let of_locks = part(height(&locks).max(2), room, wanted.0 + wanted.1);
        let of_nodes = part(wanted.1, room - of_locks, wanted.0);
        let of_proxies = room - of_locks - of_nodes;
        worst_first(&mut nodes, of_nodes);
        worst_first(&mut proxies, of_proxies);
        let blank = |sheet: &mut Sheet| (0..gap).for_each(|_| sheet.line("", Tone::Plain));
        blank(sheet);
        sheet.table(&PROXY_COLUMNS, &proxies, of_proxies);
        blank(sheet);
        if !nodes.is_empty() {
            sheet.table(&NODE_COLUMNS, &nodes, of_nodes);
            blank(sheet);
        }
        let room = sheet.room().saturating_sub(1);
        let mut columns = LOCK_COLUMNS.to_vec();
        if self.view.sort == LockSort::Hot {
            columns.push(WAITED_COLUMN);
        }
        // Rows before the marked lock are left out until it is visible.
        let shown = room.saturating_sub(2).max(1);
        let first = (self.view.marked + 1).saturating_sub(shown);
        sheet.table(&columns, &locks[first.min(locks.len())..], room);
        if locks.is_empty() {
            sheet.line(self.no_locks(), Tone::Plain);
        }
    }

    fn no_locks(&self) -> &'static str {
        match self.view {
            _ if self.nodes.is_empty() => "  not known",
            View { sort: LockSort::Hot, .. } => "  none was waited for lately",
            view if view.filter.is_empty() => "  none",
            _ => "  none that matches",
        }
    }

    fn draw_line(&self, sheet: &mut Sheet, name: &[u8]) {
        let shown = PlainText::of_bytes(name).to_string();
        sheet.line("", Tone::Plain);
        let lock = self.locks.iter().find(|lock| lock.name.0 == name);
        let family = lock.and_then(|lock| lock.family.as_ref());
        // The one place that shows a long name whole.
        let mut rest = format!("{} {shown}", if family.is_some() { "Permits" } else { "Lock" });
        while !rest.is_empty() && sheet.room() > 8 {
            let end =
                rest.char_indices().nth(sheet.width().max(1)).map_or(rest.len(), |(at, _)| at);
            sheet.line(&rest[..end], Tone::Head);
            rest.drain(..end);
        }
        for text in lock.map_or_else(|| vec!["not held, and not waited for".into()], told) {
            sheet.line(&text, Tone::Plain);
        }
        sheet.line("", Tone::Plain);
        let permits = family.map_or(&[][..], |family| &family.permits);
        if !permits.is_empty() {
            let first = self.view.scrolled.min(permits.len() - 1);
            let rows: Vec<_> = permits[first..].iter().map(|lock| self.lock(lock, "  ")).collect();
            // Who waits gets what the permits leave, but half of the room in any case.
            let waiting = 3 + self.line.len();
            sheet.table(&LOCK_COLUMNS, &rows, part(height(&rows), sheet.room(), waiting));
            sheet.line("", Tone::Plain);
        }
        let waiters = lock.map_or(0, |lock| lock.waiters);
        let scrolled = self.view.scrolled.saturating_sub(permits.len());
        let first = scrolled.min(self.line.len().saturating_sub(1));
        let rows: Vec<_> = self.line[first..].iter().map(waiter).collect();
        let room = sheet.room().saturating_sub(2);
        sheet.table(&LINE_COLUMNS, &rows, room);
        let missing = waiters.saturating_sub(self.line.len());
        if self.line.is_empty() && waiters == 0 {
            sheet.line("  nobody waits", Tone::Plain);
        } else if missing > 0 {
            sheet.line(&format!("  … {missing} more wait, who are not known yet"), Tone::Plain);
        }
    }

    fn summary(&self) -> String {
        let ready = self.rounds().filter(|round| round.status.proxy.ready).count();
        let voting = self.nodes.iter().filter(|node| node.votes > 0 && node.votes == node.asked);
        let held: usize = self.rounds().map(|round| round.status.locks.held).sum();
        let waiters: usize = self.rounds().map(|round| round.status.locks.waiters).sum();
        let paused = if self.view.paused { "PAUSED  " } else { "" };
        format!(
            "{paused}{ready} of {} ready  {} of {} lock nodes vote  {held} held  {waiters} wait  {}",
            count(self.proxies_once().count(), "proxy", "proxies"),
            voting.count(),
            self.nodes.len(),
            time_of_day(self.now),
        )
    }

    fn foot(&self) -> String {
        let view = self.view;
        if let Some(filter) = &view.typing {
            return format!("/{}_   Enter: filter, Esc: as before", PlainText::of(filter));
        }
        if view.help {
            return "any key: back".into();
        }
        if view.open.is_some() {
            return "Enter back  j k scroll  p pause  ? help  q quit".into();
        }
        let mut foot = format!("by {}", view.sort.as_str());
        if !view.filter.is_empty() {
            foot += &format!(", with {}", PlainText::of(&view.filter));
        }
        let pause = if view.paused { "p go on" } else { "p pause" };
        let every = self.every.as_secs_f64();
        // What matters less comes last, as a narrow screen cuts it.
        let keys = "/ filter  Enter line  1 waiters  2 age  3 wait  4 hot";
        foot + &format!("  ? help  q quit  {pause}  {keys}  every {every} s")
    }

    /// The proxies, each once.
    fn proxies_once(&self) -> impl Iterator<Item = &WatchedProxy> {
        self.proxies.iter().filter(|proxy| proxy.same_as.is_none())
    }

    fn rounds(&self) -> impl Iterator<Item = &Round> {
        self.proxies_once().filter_map(|proxy| proxy.round.as_ref())
    }

    /// The first complaint of a proxy about what it was asked.
    fn complaint(&self) -> Option<String> {
        let complains = |proxy: &WatchedProxy| {
            let complaint = proxy.round.as_ref()?.complaint.as_ref()?;
            Some(format!("{}: {complaint}", proxy.label))
        };
        self.proxies.iter().find_map(complains)
    }

    fn proxy(&self, proxy: &WatchedProxy) -> TableRow {
        let label = proxy.label.to_string();
        let Some(round) = &proxy.round else {
            let (state, tone, below) = match &proxy.trouble {
                None => ("asked", Tone::Plain, Vec::new()),
                Some((since, reason)) => {
                    let gone = self.now.duration_since(*since).unwrap_or_default();
                    let since = format!("since {} ({})", time_of_day(*since), span(gone));
                    let below = vec![(format!("{since}: {reason}"), Tone::Bad)];
                    ("unreachable", Tone::Bad, below)
                }
            };
            return TableRow {
                cells: vec![label, state.into()],
                tone: (1, tone),
                below,
                marked: false,
            };
        };
        if let Some(other) = &proxy.same_as {
            let below = format!("the same proxy as {other}, and counted once");
            let below = vec![(below, Tone::Warning)];
            let cells = vec![label, "same".into(), round.status.proxy.name.to_string()];
            return TableRow { cells, tone: (1, Tone::Warning), below, marked: false };
        }
        let status = &round.status;
        let (state, tone) = match &status.proxy {
            proxy if proxy.draining => ("draining", Tone::Warning),
            proxy if !proxy.ready => ("not ready", Tone::Bad),
            _ if !status.problems.is_empty() => ("ready", Tone::Warning),
            _ => ("ready", Tone::Good),
        };
        let problems: Vec<_> = status.problems.iter().map(PlainText::as_str).collect();
        let below = (!problems.is_empty()).then(|| (problems.join("; "), tone));
        let shared = status.sharing.as_ref().map(|sharing| (shares(sharing), Tone::Plain));
        let below = below.into_iter().chain(shared).collect();
        let rate = |rate: Option<f64>| rate.map_or("-".into(), rate_text);
        TableRow {
            cells: vec![
                label,
                state.into(),
                status.proxy.name.to_string(),
                status.proxy.version.to_string(),
                span(Duration::from_millis(status.proxy.uptime_ms)),
                status.proxy.connections.to_string(),
                status.locks.held.to_string(),
                status.locks.waiters.to_string(),
                rate(proxy.rates.map(|rates| rates.grants)),
                rate(proxy.rates.map(|rates| rates.refusals())),
            ],
            tone: (1, tone),
            below,
            marked: false,
        }
    }

    fn marked(&self, place: usize, lock: &LockRow) -> TableRow {
        let marked = place == self.view.marked;
        TableRow { marked, ..self.lock(lock, if marked { "> " } else { "  " }) }
    }

    fn lock(&self, lock: &LockRow, marker: &str) -> TableRow {
        let (holder, name) = lock.holder.as_ref().map_or_else(Default::default, client);
        let holder = lock.family.as_ref().map_or(holder, held);
        let holder = if lock.readers > 1 { format!("{} readers", lock.readers) } else { holder };
        let proxy = lock.proxy.as_ref().map_or_else(|| "elsewhere".into(), ToString::to_string);
        let proxy = if lock.family.is_some() { String::new() } else { proxy };
        let mut cells = vec![
            format!("{marker}{}", PlainText::of_bytes(&lock.name.0)),
            holder,
            name,
            proxy,
            optional(lock.held_ms),
            optional(lock.remaining_ms),
            lock.waiters.to_string(),
            if lock.waiters > 0 { millis(lock.longest_wait_ms) } else { "-".into() },
        ];
        if self.view.sort == LockSort::Hot {
            cells.push(millis(lock.waited_ms));
        }
        TableRow { cells, ..TableRow::default() }
    }
}

/// Returns the line about the clients of a proxy that share connections to the data node.
fn shares(sharing: &SharingPart<PlainText>) -> String {
    let SharingPart { shared, own, come, pinned, links, owed, most_owed } = sharing;
    let all: u64 = pinned.iter().map(|cause| cause.clients).fold(0, u64::saturating_add);
    let causes = pinned.iter().map(|cause| format!("{} {}", cause.by, cause.clients));
    let causes = causes.collect::<Vec<_>>().join(", ");
    let causes = if causes.is_empty() { causes } else { format!(" ({causes})") };
    let links = count(*links, "link", "links");
    format!(
        "sharing: {shared} on {links}, {owed} owed, {most_owed} on one; own: {own} now, {all} of {come} in all{causes}"
    )
}

/// The number of lines of a table.
fn height(rows: &[TableRow]) -> usize {
    1 + rows.iter().map(TableRow::height).sum::<usize>()
}

/// How much of `room` one table gets: up to half of it, or what the others leave, if that is more.
fn part(wanted: usize, room: usize, others: usize) -> usize {
    wanted.min((room / 2).max(room.saturating_sub(others)))
}

/// Puts rows in trouble first if not all rows fit.
fn worst_first(rows: &mut [TableRow], room: usize) {
    if height(rows) > room {
        rows.sort_by_key(|row| match row.tone.1 {
            Tone::Bad => 0,
            Tone::Warning => 1,
            _ => 2,
        });
    }
}

fn node(node: &NodeRow) -> TableRow {
    let (tone, state) = match &node.states[..] {
        // A node that votes may still have something wrong.
        [(state, _)] if node.votes == node.asked && state.as_str() == "ok" => {
            (Tone::Good, state.to_string())
        }
        [(state, _)] => {
            let tone = if node.votes == 0 { Tone::Bad } else { Tone::Warning };
            (tone, state.to_string())
        }
        states => {
            let seen = states.iter().map(|(state, by)| {
                let by: Vec<_> = by.iter().map(PlainText::as_str).collect();
                format!("{}: {state}", by.join(", "))
            });
            (Tone::Warning, format!("seen differently: {}", seen.collect::<Vec<_>>().join("; ")))
        }
    };
    let round_trip = node.round_trip_us.map_or("-".into(), |us| {
        format!("{:.2}ms", Duration::from_micros(us).as_secs_f64() * 1000.0)
    });
    let votes = format!("{}/{}", node.votes, node.asked);
    TableRow {
        cells: vec![node.address.to_string(), votes, round_trip, state],
        tone: (3, tone),
        ..TableRow::default()
    }
}

fn waiter(WaiterRow { told, proxy }: &WaiterRow) -> TableRow {
    let cells = vec![
        told.client.address.to_string(),
        told.client.name.to_string(),
        proxy.to_string(),
        millis(told.waited_ms),
        told.locks.to_string(),
    ];
    TableRow { cells, ..TableRow::default() }
}

/// Returns what is known about a lock, line by line.
fn told(lock: &LockRow) -> Vec<String> {
    let waiting = format!(
        "{} in line, the first for {}",
        count(lock.waiters, "client", "clients"),
        millis(lock.longest_wait_ms)
    );
    if let Some(family) = &lock.family {
        let (oldest, first) = (optional(lock.held_ms), optional(lock.remaining_ms));
        let times = format!("the oldest for {oldest}; the first ends in {first} unless renewed");
        return vec![held(family), times, waiting];
    }
    let Some(proxy) = &lock.proxy else {
        return vec!["held, but through none of these proxies".into(), waiting];
    };
    let (address, name) = lock.holder.as_ref().map_or_else(Default::default, client);
    let by = match lock.readers {
        0 => "held by".to_owned(),
        1 => "read by".to_owned(),
        more => format!("read by {more} clients, first of them"),
    };
    vec![
        format!("{by} {address} {name} through {proxy}"),
        format!(
            "for {}, ends in {} unless renewed, fence {}",
            optional(lock.held_ms),
            optional(lock.remaining_ms),
            lock.fence.map_or("-".into(), |fence| fence.to_string())
        ),
        waiting,
    ]
}

/// How many permits of a family are held.
fn held(family: &FamilyRow) -> String {
    format!("{} of {} held", family.held.len(), family.n)
}

/// A client's address and name.
fn client(client: &ClientPart<PlainText>) -> (String, String) {
    let address = match client.address.as_str() {
        "" => "unknown".into(),
        address if client.connected => address.to_owned(),
        address => format!("{address} (gone)"),
    };
    (address, client.name.to_string())
}

fn count(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

fn optional(time_ms: Option<u64>) -> String {
    time_ms.map_or("-".into(), millis)
}

fn millis(time_ms: u64) -> String {
    span(Duration::from_millis(time_ms))
}

/// Writes a time in at most seven characters.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, l: char, small: u64, s: char| format!("{large}{l}{small:02}{s}");
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..10 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, 'm', seconds % 60, 's'),
        3600..86400 => two(seconds / 3600, 'h', seconds / 60 % 60, 'm'),
        86400..8_640_000 => two(seconds / 86400, 'd', seconds / 3600 % 24, 'h'),
        _ => format!("{}d", (seconds / 86400).min(999_999)),
    }
}

fn rate_text(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        ..10.0 => format!("{rate:.1}"),
        ..100_000.0 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}

/// Writes the time of day as the log does.
fn time_of_day(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::top::merge;

    const NOW: SystemTime = UNIX_EPOCH;

    /// Three proxies: one with many locks, one that is away, and one not heard from yet.
    fn proxies() -> Vec<WatchedProxy> {
        let mut proxies: Vec<_> = ["here:1", "away:1", "new:1"].map(WatchedProxy::new).into();
        let nodes: Vec<_> = (0..9)
            .map(|node| {
                let state = if node == 8 { "refused" } else { "ok" };
                serde_json::json!({"address": format!("n{node}:1"), "state": state, "votes": node < 8})
            })
            .collect();
        let status = serde_json::json!({"proxy": {"pid": 1, "uptime_ms": 1, "ready": true}, "nodes": nodes,
            "problems": ["lock node n8:1: refused"]});
        let locks: Vec<_> = (0..70)
            .map(|lock| serde_json::json!({"key": format!("{lock:02}作業"), "waiters": 100 - lock, "held_ms": 1}))
            .collect();
        let mut round =
            Round { status: serde_json::from_value(status).unwrap(), ..Round::default() };
        round.add(serde_json::from_value(locks.into()).unwrap());
        proxies[0].hear(Ok(round), NOW);
        proxies[1].hear(Err(PlainText::of("connection refused")), NOW);
        proxies
    }

    fn with_board<T>(view: &View, see: impl FnOnce(&Board<'_>) -> T) -> T {
        let proxies = proxies();
        let (nodes, locks) = (merge::nodes(&proxies), merge::locks(&proxies, view.sort, None));
        see(&Board {
            proxies: &proxies,
            nodes: &nodes,
            locks: &locks,
            line: &[],
            view,
            now: NOW + Duration::from_secs(90_061),
            every: Duration::from_secs(2),
        })
    }

    fn drawn(view: &View, width: u16, height: u16) -> Vec<String> {
        with_board(view, |board| board.draw(width, height)).text()
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        let open = View { open: Some("05作業\x1b".into()), scrolled: 7, ..View::default() };
        let hot = View { sort: LockSort::Hot, typing: Some("wörd".into()), ..View::default() };
        let help = View { help: true, ..View::default() };
        let far = View { marked: 69, paused: true, ..View::default() };
        for view in [View::default(), open, hot, help, far] {
            for (width, height) in (0..30)
                .flat_map(|size| [(size, 25), (90, size), (size, size), (5 * size, 2 * size)])
            {
                assert_eq!(drawn(&view, width, height).len(), usize::from(height));
            }
        }
    }

    #[test]
    fn what_is_in_trouble_and_the_marked_lock_are_seen_where_not_all_is() {
        let view = View { marked: 60, ..View::default() };
        let screen = drawn(&view, 100, 16);
        let sees =
            |words: &[&str]| screen.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(sees(&["away:1", "unreachable"]), "{screen:#?}");
        assert!(sees(&["n8:1", "0/1", "refused"]) && !sees(&["n7:1"]), "{screen:#?}");
        assert!(sees(&["> 60作業"]) && sees(&["q quit"]), "{screen:#?}");
    }

    #[test]
    fn a_screen_of_text_has_all_but_the_last_locks() {
        let text = with_board(&View::default(), |board| board.text(120));
        let lines = |word: &str| text.iter().filter(|line| line.contains(word)).count();
        assert_eq!((lines("ok"), lines("refused"), lines("作業")), (8, 3, LOCKS_ONCE), "{text:#?}");
        assert_eq!(lines("since 00:00:00 UTC (1d01h): connection refused"), 1, "{text:#?}");
        assert_eq!(lines("… 20 more"), 1, "{text:#?}");
    }

    #[test]
    fn times_are_short() {
        for (time, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (9_960, "9.9s"),
            (59_999, "59s"),
            (61_000, "1m01s"),
            (7_260_000, "2h01m"),
            (90_000_000, "1d01h"),
            (8_640_000_000, "100d"),
            (u64::MAX, "999999d"),
        ] {
            assert_eq!(millis(time), text);
        }
    }
}
