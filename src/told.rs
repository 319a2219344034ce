//! What may stand in the log: keys as they are shown there, and few lines about what can happen at
//! any rate.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use crate::sync::Mutex;

/// Most lines at once.
const BURST: u32 = 10;
/// The time after which one more is allowed.
const ONE_MORE_EVERY: Duration = Duration::from_secs(1);

/// Limits the lines of one kind of event: [`BURST`] at once, and one more every
/// [`ONE_MORE_EVERY`]. Those that are left out are counted.
pub(crate) struct FewLines(Mutex<LineRoom>);

struct LineRoom {
    lines: u32,
    /// When the last line came back.
    since: Option<Instant>,
    left_out: u64,
}

impl FewLines {
    pub(crate) const fn new() -> FewLines {
        FewLines(Mutex::new(LineRoom { lines: BURST, since: None, left_out: 0 }))
    }

    /// Counts an event. Returns how many before it had no line, if this one is to have one.
    pub(crate) fn next(&self, now: Instant) -> Option<u64> {
        let mut room = self.0.lock();
        if room.has_one(now) {
            return Some(std::mem::take(&mut room.left_out));
        }
        room.left_out += 1;
        None
    }

    /// Returns how many events had no line, once one line about them is allowed.
    pub(crate) fn left_out(&self, now: Instant) -> Option<u64> {
        let mut room = self.0.lock();
        let is_due = room.left_out > 0 && room.has_one(now);
        is_due.then(|| std::mem::take(&mut room.left_out))
    }
}

impl LineRoom {
    /// Takes the room for one line, if there is one.
    fn has_one(&mut self, now: Instant) -> bool {
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
    const LONGEST: usize = 128;
    let cut = &bytes[..bytes.len().min(LONGEST)];
    if bytes.len() <= LONGEST && cut.iter().all(|b| b.is_ascii_graphic() || *b == b' ') {
        return String::from_utf8_lossy(cut);
    }
    let dots = if bytes.len() > LONGEST { "…" } else { "" };
    Cow::Owned(format!("{}{dots}", cut.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
