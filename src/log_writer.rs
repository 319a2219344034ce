//! Lines for stderr, written by a thread of their own: whoever serves clients never waits for
//! whoever reads the log. What waits is bounded; lines beyond are dropped and counted.

use std::{
    io::{self, Write},
    mem,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use metrics::{counter, describe_counter};
use tracing::warn;

/// Most bytes that wait for the writer. It has as many in hand at most: the longest pause of a
/// reader of the log that loses nothing is what that many lines take to come.
const MOST_WAITING: usize = 4 * 1024 * 1024;
/// What a buffer keeps for the next lines.
const KEPT: usize = 64 * 1024;
/// How long the writer waits where stderr takes nothing now and does not have it wait.
const AGAIN: Duration = Duration::from_millis(10);
/// How long an ending process waits for its last lines to be read.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How long a lost line is told of at the admin address.
const SHOWN_FOR: Duration = Duration::from_secs(10 * 60);

static LINES: OnceLock<Lines> = OnceLock::new();
/// How many lines were lost since the start, and when the last one was.
static LOST: Mutex<(u64, Option<Instant>)> = Mutex::new((0, None));

/// Counts lines that nobody will read.
fn lose(lines: u64) {
    if lines > 0 {
        counter!("lockgate_log_lines_dropped_total").increment(lines);
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        *lost = (lost.0 + lines, Some(Instant::now()));
    }
}

/// How many lines were lost since the start, if one was in the last ten minutes.
pub(crate) fn lost_lately() -> Option<u64> {
    let (lines, at) = *LOST.lock().unwrap_or_else(PoisonError::into_inner);
    at.filter(|at| at.elapsed() < SHOWN_FOR).map(|_| lines)
}

/// Lines on their way to the writer.
#[derive(Default)]
struct Lines {
    waiting: Mutex<LinesWaiting>,
    /// The writer waits for lines.
    more: Condvar,
    /// Whoever ends the process waits for the writer.
    written: Condvar,
}

#[derive(Default)]
struct LinesWaiting {
    bytes: Vec<u8>,
    /// Lines dropped since that was last told.
    dropped: u64,
    /// Whether the writer has lines in hand.
    is_writing: bool,
}

/// What came of a line.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Waits,
    Dropped,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, LinesWaiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the line wait for the writer, if there is room.
    fn push(&self, line: &[u8]) -> Fate {
        let mut waiting = self.lock();
        if waiting.bytes.len() + line.len() > MOST_WAITING {
            waiting.dropped += 1;
            return Fate::Dropped;
        }
        waiting.bytes.extend_from_slice(line);
        drop(waiting);
        self.more.notify_one();
        Fate::Waits
    }

    /// Takes all that waits into `hand`, which must be empty. Waits until there is something. Returns how many
    /// lines were dropped before.
    fn take(&self, hand: &mut Vec<u8>) -> u64 {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        self.written.notify_all();
        while waiting.bytes.is_empty() {
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_writing = true;
        mem::swap(&mut waiting.bytes, hand);
        mem::take(&mut waiting.dropped)
    }

    /// Waits until all is written, for `time` at most. Returns whether it is.
    fn flush(&self, time: Duration) -> bool {
        let is_busy = |waiting: &mut LinesWaiting| waiting.is_writing || !waiting.bytes.is_empty();
        let waited = self.written.wait_timeout_while(self.lock(), time, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Writes what comes to stderr, until the process ends.
fn write_all(lines: &Lines) {
    let (mut hand, mut losses) = (Vec::new(), LostLines::default());
    loop {
        losses.dropped += lines.take(&mut hand);
        let lost = write_out(&mut io::stderr().lock(), &hand);
        lose(lost);
        let are_written = lost == 0;
        losses.unwritten += lost;
        hand.clear();
        hand.shrink_to(KEPT);
        // While nothing can be written only /metrics and /readyz can tell.
        if let Some(LostLines { dropped, unwritten }) = losses.due(are_written) {
            warn!(dropped, unwritten, "{TOLD}");
        }
    }
}

/// The line about lines that are missing.
const TOLD: &str =
    "lines of the log were dropped, as nobody read it, or could not be written (a full disk)";

/// Lines that are missing, since that was last told.
#[derive(Debug, Default, PartialEq, Eq)]
struct LostLines {
    /// For want of room.
    dropped: u64,
    /// They could not be written.
    unwritten: u64,
}

impl LostLines {
    /// What is to be told, once what came last could be written. That line may be lost too, and is counted
    /// then as any other: it is told again.
    fn due(&mut self, are_written: bool) -> Option<LostLines> {
        let is_due = are_written && *self != LostLines::default();
        is_due.then(|| mem::take(self))
    }
}

/// Writes these lines. Returns how many were lost, as they cannot be written (a full disk).
fn write_out(out: &mut impl Write, mut lines: &[u8]) -> u64 {
    while !lines.is_empty() {
        match out.write(lines) {
            Ok(written) if written > 0 => lines = &lines[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // As one whose reader stands still.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Ok(_) | Err(_) => {
                let lost = lines.iter().filter(|byte| **byte == b'\n').count();
                return u64::try_from(lost).unwrap_or(u64::MAX);
            }
        }
    }
    0
}

/// Starts the thread that writes. Until then, lines are written where they come from.
///
/// # Errors
/// If there can be no more threads.
pub(crate) fn start() -> io::Result<()> {
    let lines = LINES.get_or_init(Lines::default);
    thread::Builder::new().name("log".into()).spawn(move || write_all(lines)).map(drop)
}

/// Writes whole lines to stderr, or drops them if too many wait.
pub(crate) fn write(lines: &[u8]) {
    match LINES.get() {
        None => drop(io::stderr().lock().write_all(lines)),
        Some(waiting) => {
            if waiting.push(lines) == Fate::Dropped {
                lose(1);
            }
        }
    }
}

/// Waits for the last lines to be written, for a second at most. For the end of the process.
pub(crate) fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(LAST_LINES);
    }
}

/// Makes the counter of dropped lines, with its help text. The recorder must be installed.
pub(crate) fn describe() {
    describe_counter!(
        "lockgate_log_lines_dropped_total",
        "Lines of the log and of the audit trail dropped, as more than 4 MB of them waited to be read or they could not be written."
    );
    counter!("lockgate_log_lines_dropped_total").increment(0);
}

/// Takes lines from tracing, each in one piece.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_in_their_order_up_to_a_bound_and_the_rest_is_counted() {
        let (lines, mut hand) = (Lines::default(), Vec::new());
        assert_eq!(lines.push(b"one\n"), Fate::Waits);
        assert_eq!(lines.push(b"two\n"), Fate::Waits);
        assert_eq!(lines.push(&vec![b'x'; MOST_WAITING]), Fate::Dropped);
        assert_eq!(lines.push(b"three\n"), Fate::Waits);
        assert_eq!(lines.take(&mut hand), 1);
        assert_eq!(hand, b"one\ntwo\nthree\n");
        hand.clear();
        assert_eq!(lines.push(b"four\n"), Fate::Waits);
        assert_eq!(lines.take(&mut hand), 0);
        assert_eq!(hand, b"four\n");
    }

    /// Takes four bytes at a time, with something in between.
    struct Slow(Vec<u8>, Vec<io::ErrorKind>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() >= 8
                && let Some(kind) = self.1.pop()
            {
                return Err(kind.into());
            }
            let taken = bytes.len().min(4);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_slow_ones_are_not() {
        let lines = b"one\ntwo\nthree\nfour\n";
        let busy = vec![io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
        let mut out = Slow(Vec::new(), busy);
        assert_eq!(write_out(&mut out, lines), 0);
        assert_eq!(out.0, lines);
        let mut out = Slow(Vec::new(), vec![io::ErrorKind::StorageFull]);
        assert_eq!(write_out(&mut out, lines), 2);
        assert_eq!(out.0, b"one\ntwo\n");
    }

    #[test]
    fn what_could_not_be_written_is_told_once_something_can() {
        let mut losses = LostLines { dropped: 0, unwritten: 2 };
        assert_eq!(losses.due(false), None, "that line would be lost as well");
        losses.unwritten += 3;
        losses.dropped += 1;
        assert_eq!(losses.due(true), Some(LostLines { dropped: 1, unwritten: 5 }));
        assert_eq!(losses.due(true), None);
    }

    #[test]
    fn an_end_waits_for_what_the_writer_has_in_hand_and_not_for_ever() {
        let lines = Lines::default();
        assert!(lines.flush(Duration::ZERO));
        lines.push(b"one\n");
        assert!(!lines.flush(Duration::from_millis(1)));
        let mut hand = Vec::new();
        lines.take(&mut hand);
        assert!(!lines.flush(Duration::from_millis(1)));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                hand.clear();
                lines.take(&mut hand)
            });
            assert!(lines.flush(Duration::from_secs(60)));
            lines.push(b"two\n");
            writer.join().unwrap();
        });
    }
}
