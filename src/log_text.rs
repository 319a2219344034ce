//! Text for people: foreign text made harmless, keys as they are shown, and a limit on log lines about events that
//! can come at any rate.

use std::{
    borrow::Cow,
    fmt::Write as _,
    time::{Duration, Instant},
};

use crate::sync::Mutex;

/// Most lines at once.
const BURST: u32 = 10;
/// The time after which one more is allowed.
const ONE_MORE_EVERY: Duration = Duration::from_secs(1);

/// Most bytes of a key or a lock that are shown.
pub(crate) const LONGEST_SHOWN: usize = 128;

/// Limits the log lines about one kind of event: [`BURST`] at once, and one more every [`ONE_MORE_EVERY`]. Events
/// left out are counted.
pub(crate) struct FewLines(Mutex<LineRoom>);

struct LineRoom {
    lines: u32,
    /// When room was last added.
    since: Option<Instant>,
    left_out: u64,
}

impl FewLines {
    pub(crate) const fn new() -> FewLines {
        FewLines(Mutex::new(LineRoom { lines: BURST, since: None, left_out: 0 }))
    }

    /// Counts an event. If the event may have a line, returns how many events before it had none.
    pub(crate) fn next(&self, now: Instant) -> Option<u64> {
        let mut room = self.0.lock();
        if room.take_one(now) {
            return Some(std::mem::take(&mut room.left_out));
        }
        room.left_out += 1;
        None
    }

    /// Returns how many events had no line, if one line about them is allowed now.
    pub(crate) fn left_out(&self, now: Instant) -> Option<u64> {
        let mut room = self.0.lock();
        let is_due = room.left_out > 0 && room.take_one(now);
        is_due.then(|| std::mem::take(&mut room.left_out))
    }
}

impl LineRoom {
    /// Takes room for one line, and returns whether there was any.
    fn take_one(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let more = now.saturating_duration_since(since).as_secs() / ONE_MORE_EVERY.as_secs();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.lines = self.lines.saturating_add(more).min(BURST);
            self.since = Some(now);
        }
        let has_one = self.lines > 0;
        self.lines -= u32::from(has_one);
        has_one
    }
}

/// Returns a key or a lock as an error or the log shows it: printable, and not too long.
pub(crate) fn shown(bytes: &[u8]) -> Cow<'_, str> {
    let cut = &bytes[..bytes.len().min(LONGEST_SHOWN)];
    if bytes.len() <= LONGEST_SHOWN && cut.iter().all(|b| b.is_ascii_graphic() || *b == b' ') {
        return String::from_utf8_lossy(cut);
    }
    let dots = if bytes.len() > LONGEST_SHOWN { "…" } else { "" };
    Cow::Owned(format!("{}{dots}", cut.escape_ascii()))
}

/// Whether a terminal displays this character and does not act on it. A newline counts as displayed.
fn is_plain(c: char) -> bool {
    match c {
        '\n' | ' '..='~' => true,
        // Characters that change the writing direction, or are invisible, have an escape.
        c => !c.is_ascii() && c.escape_debug().len() == 1,
    }
}

/// Returns a text of which a terminal displays every character and acts on none: servers and clients choose the words
/// of their errors and names. Other characters are written as `\u009b`, the escape of JSON too: a JSON document means
/// the same as before.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_plain(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// Like [`plain`], in one line.
pub(crate) fn plain_line(text: &str) -> Cow<'_, str> {
    match text.contains('\n') {
        true => plain(text).replace('\n', "\\n").into(),
        false => plain(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys_and_json_stays_the_same() {
        let chars: Vec<char> = ('\0'..=char::MAX).collect();
        let mut all: Vec<String> = chars.chunks(4096).map(String::from_iter).collect();
        all.push(
            "ERR \x1b]0;PWNED\x07\x1b[31mred\u{9b}1m\u{202e} \u{8}\u{b}<b>\r\n wörk 作業".into(),
        );
        let obeyed = |c: char| c.is_control() || "\u{200e}\u{202e}\u{2066}\u{feff}".contains(c);
        for text in all {
            let line = plain_line(&text);
            assert!(!line.contains(obeyed), "{text:?}: {line}");
            let json = serde_json::to_string(&text).unwrap();
            let back: String = serde_json::from_str(&plain(&json)).unwrap();
            assert_eq!(back, text);
        }
        for text in ["wörk 作業 \"it's\" \\", "two\nlines"] {
            assert_eq!(plain(text), text);
        }
        assert_eq!(plain("\u{9b}1m\u{e0001}\x1b"), "\\u009b1m\\udb40\\udc01\\u001b");
        assert_eq!(plain_line("one\ntwo"), "one\\ntwo");
    }

    #[test]
    fn so_many_lines_at_once_then_one_a_second_and_the_rest_is_counted() {
        let (few, start) = (FewLines::new(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        for _ in 0..BURST {
            assert_eq!(few.next(at(0)), Some(0));
        }
        assert_eq!((few.next(at(1)), few.next(at(999))), (None, None));
        assert_eq!(few.next(at(1000)), Some(2));
        assert_eq!((few.next(at(1001)), few.left_out(at(1500))), (None, None));
        assert_eq!(few.left_out(at(2000)), Some(1));
        assert_eq!(few.left_out(at(3000)), None, "nothing is left out");
        for _ in 0..BURST {
            assert_eq!(few.next(at(60_000)), Some(0));
        }
        assert_eq!(few.next(at(60_000)), None, "no more than so many however long it was quiet");
    }

    #[test]
    fn what_is_shown_is_printable_and_short() {
        assert_eq!(shown(b"a key"), "a key");
        assert_eq!(shown(b"a\r\n\xff"), "a\\r\\n\\xff");
        assert_eq!(shown(&[b'x'; 500]).chars().count(), 129);
    }
}
