//! Lines for stderr, written by a thread of their own: nothing that serves clients waits for the reader of the log.
//! What waits is bounded. Log lines beyond that are dropped and counted. Audit trail lines never are: code that is
//! about to cause one waits for room first ([`room`]), and the writer repeats what could not be written.

use std::{
    io::{self, Write},
    mem,
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use metrics::{counter, describe_counter};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::warn;

/// Most unwritten bytes, a new log line included, with which that line may still wait.
const MOST_WAITING: usize = 8 * 1024 * 1024;
/// Most unwritten bytes with which something may begin that writes to the audit trail.
const TRAIL_ROOM: usize = 4 * 1024 * 1024;
/// Most bytes that are written at once: once they are written, there is room again.
const PIECE: usize = 16 * 1024;
/// The capacity that a buffer keeps for the next lines.
const KEPT: usize = 64 * 1024;
/// How long the writer sleeps when a non-blocking stderr accepts nothing, and how often a caller looks for room.
const AGAIN: Duration = Duration::from_millis(10);
/// How long the writer waits before it repeats a failed write.
const REPEATED_AFTER: Duration = Duration::from_millis(100);
/// How long a caller waits for room in the audit trail. A writer that has written nothing for so long has stalled.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an ending process waits for its last lines to be read.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How often it waits so long, if something was read each time.
const MOST_WAITS: u32 = 10;

/// How long the admin address reports a lost line.
const SHOWN_FOR: Duration = Duration::from_secs(10 * 60);

static LINES: OnceLock<Lines> = OnceLock::new();
/// The number of lines lost since the start, and when the last one was.
static LOST: Mutex<(u64, Option<Instant>)> = Mutex::new((0, None));

/// Counts lost lines.
fn lose(lines: u64) {
    if lines > 0 {
        counter!("lockgate_log_lines_dropped_total").increment(lines);
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        *lost = (lost.0 + lines, Some(Instant::now()));
    }
}

/// Returns how many lines were lost since the start, if one was in the last ten minutes.
pub(crate) fn lost_lately() -> Option<u64> {
    let (lines, at) = *LOST.lock().unwrap_or_else(PoisonError::into_inner);
    at.filter(|at| at.elapsed() < SHOWN_FOR).map(|_| lines)
}

/// A line's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    /// A line of the log.
    Log,
    /// A line of the audit trail.
    AuditTrail,
}

/// Lines on their way to the writer.
struct Lines {
    waiting: Mutex<LinesWaiting>,
    /// Bytes not yet written, including those in the writer's hand. Changed under the mutex.
    unwritten: AtomicUsize,
    /// Wakes the writer: there are lines.
    more: Condvar,
    /// Wakes the thread that ends the process: the writer has finished what it had in hand.
    written: Condvar,
    /// Serves callers that wait for room in the trail first come, first served.
    first: Semaphore,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines {
            waiting: Mutex::default(),
            unwritten: AtomicUsize::new(0),
            more: Condvar::new(),
            written: Condvar::new(),
            first: Semaphore::new(1),
        }
    }
}

#[derive(Default)]
struct LinesWaiting {
    bytes: Vec<u8>,
    /// Whether lines of the trail are among `bytes`.
    has_trail: bool,
    /// Whether lines of the trail are among those in the writer's hand.
    hand_has_trail: bool,
    /// When bytes were last written, or the first of them began to wait.
    moved: Option<tokio::time::Instant>,
    /// Lines dropped since the writer last took lines.
    dropped: u64,
    /// Whether the writer has lines in hand.
    is_writing: bool,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Waits,
    Dropped,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, LinesWaiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes not yet written.
    fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Queues the line for the writer if it is the trail's or there is room.
    fn push(&self, line: &[u8], kind: LineKind) -> Fate {
        let mut waiting = self.lock();
        let unwritten = self.unwritten() + line.len();
        if kind == LineKind::Log && unwritten > MOST_WAITING {
            waiting.dropped += 1;
            return Fate::Dropped;
        }
        if unwritten == line.len() {
            waiting.moved = Some(tokio::time::Instant::now());
        }
        self.unwritten.store(unwritten, Ordering::Relaxed);
        waiting.has_trail |= kind == LineKind::AuditTrail;
        waiting.bytes.extend_from_slice(line);
        drop(waiting);
        self.more.notify_one();
        Fate::Waits
    }

    /// Moves everything that waits into `hand`, which must be empty. Waits until there is something. Returns how many
    /// lines were dropped before, and whether lines of the trail are in hand.
    fn take(&self, hand: &mut Vec<u8>) -> (u64, bool) {
        let mut waiting = self.lock();
        (waiting.is_writing, waiting.hand_has_trail) = (false, false);
        self.written.notify_all();
        while waiting.bytes.is_empty() {
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_writing = true;
        waiting.hand_has_trail = mem::take(&mut waiting.has_trail);
        mem::swap(&mut waiting.bytes, hand);
        (mem::take(&mut waiting.dropped), waiting.hand_has_trail)
    }

    /// Notes that so many of the bytes in hand have been written, or are lost.
    fn wrote(&self, bytes: usize) {
        let mut waiting = self.lock();
        waiting.moved = Some(tokio::time::Instant::now());
        self.unwritten.store(self.unwritten().saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Whether something that writes to the trail may begin now.
    fn has_room(&self) -> bool {
        self.unwritten() <= TRAIL_ROOM && self.first.available_permits() > 0
    }

    /// Waits until something that writes to the trail may begin. Waits for `wait` at most; if that is `None`, for
    /// [`PATIENCE`], or not at all if the writer has stalled. Returns whether it may.
    async fn room(&self, wait: Option<Duration>) -> bool {
        let is_still = self.stalled().is_some_and(|(time, _)| time >= PATIENCE);
        let wait = wait.unwrap_or(if is_still { Duration::ZERO } else { PATIENCE });
        let there_is = async {
            let _first = self.first.acquire().await;
            while self.unwritten() > TRAIL_ROOM {
                sleep(AGAIN).await;
            }
        };
        timeout(wait, there_is).await.is_ok()
    }

    /// Returns how long nothing has been written although lines of the trail wait, and how many bytes wait.
    fn stalled(&self) -> Option<(Duration, usize)> {
        let waiting = self.lock();
        let is_trail = waiting.has_trail || waiting.hand_has_trail;
        let moved = waiting.moved.filter(|_| is_trail && self.unwritten() > 0)?;
        Some((moved.elapsed(), self.unwritten()))
    }

    /// Waits until everything is written: for `time` if nothing is read meanwhile, and for at most [`MOST_WAITS`]
    /// times as long otherwise. Returns whether everything is.
    fn flush(&self, time: Duration) -> bool {
        let is_busy = |waiting: &mut LinesWaiting| waiting.is_writing || !waiting.bytes.is_empty();
        for _ in 0..MOST_WAITS {
            let before = self.unwritten();
            let waited = self.written.wait_timeout_while(self.lock(), time, is_busy);
            if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return true;
            }
            if self.unwritten() >= before {
                return false;
            }
        }
        false
    }
}

/// Writes queued lines to stderr until the process ends.
fn write_all(lines: &Lines) {
    let (mut hand, mut losses, mut is_torn) = (Vec::new(), LostLines::default(), false);
    loop {
        let (dropped, has_trail) = lines.take(&mut hand);
        losses.dropped += dropped;
        let mut writing = Writing { out: io::stderr(), repeats: has_trail, is_torn };
        let lost = writing.write(&hand, |bytes| lines.wrote(bytes));
        is_torn = writing.is_torn;
        lose(lost);
        let are_written = lost == 0;
        losses.unwritten += lost;
        hand.clear();
        hand.shrink_to(KEPT);
        // While nothing can be written, only /metrics and /readyz can report it.
        if let Some(LostLines { dropped, unwritten }) = losses.due(are_written) {
            warn!(dropped, unwritten, "{TOLD}");
        }
    }
}

/// The log line about lost lines.
const TOLD: &str =
    "lines of the log were dropped, as nobody read it, or could not be written (a full disk)";

/// Lines lost since the last report.
#[derive(Debug, Default, PartialEq, Eq)]
struct LostLines {
    /// For want of room.
    dropped: u64,
    /// Because the write failed.
    unwritten: u64,
}

impl LostLines {
    /// Returns what to report, once the latest lines could be written. The report may be lost too; it is then counted
    /// like any other line, and reported again.
    fn due(&mut self, are_written: bool) -> Option<LostLines> {
        let is_due = are_written && *self != LostLines::default();
        is_due.then(|| mem::take(self))
    }
}

/// Writes lines, in pieces.
struct Writing<W> {
    out: W,
    /// Whether a failed write is repeated until it succeeds.
    repeats: bool,
    /// Whether a line was lost after a part of it was written: the next line must not be taken for its rest.
    is_torn: bool,
}

impl<W: Write> Writing<W> {
    /// Writes these lines, and calls `wrote` with the length of each part that is written or lost. Returns how many
    /// lines were lost because they cannot be written (a full disk).
    fn write(&mut self, lines: &[u8], mut wrote: impl FnMut(usize)) -> u64 {
        let mut fails = self.is_torn && self.write_some(b"\n").is_err();
        let mut rest = lines;
        while !fails && !rest.is_empty() {
            match self.write_some(piece(rest)) {
                Ok(written) => {
                    let (part, behind) = rest.split_at(written.min(rest.len()));
                    (self.is_torn, rest) = (!part.ends_with(b"\n"), behind);
                    wrote(part.len());
                }
                Err(_) => fails = true,
            }
        }
        if rest.is_empty() {
            return 0;
        }
        wrote(rest.len());
        let lost = rest.iter().filter(|byte| **byte == b'\n').count();
        u64::try_from(lost).unwrap_or(u64::MAX)
    }

    /// Writes some of these bytes. Fails if the write fails and is not to be repeated.
    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.out.write(bytes) {
                Ok(written) if written > 0 => return Ok(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A non-blocking stderr that is full: waits, as a blocking one would.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
                Ok(_) | Err(_) if self.repeats => thread::sleep(REPEATED_AFTER),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the part of these lines to write at once: whole lines, unless the first one is longer.
fn piece(lines: &[u8]) -> &[u8] {
    let Some(piece) = lines.get(..PIECE) else { return lines };
    let end = memchr::memrchr(b'\n', piece).map_or(piece.len(), |at| at + 1);
    &piece[..end]
}

/// Starts the thread that writes. Until then, lines are written by the thread that logs them.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start() -> io::Result<()> {
    let lines = LINES.get_or_init(Lines::default);
    thread::Builder::new().name("log".into()).spawn(move || write_all(lines)).map(drop)
}

/// Writes whole log lines to stderr, or drops them if too many wait.
pub(crate) fn write(lines: &[u8]) {
    write_as(lines, LineKind::Log);
}

/// Writes a whole line of the audit trail to stderr. The line waits for as long as it cannot be written; callers wait
/// for room before ([`room`]).
pub(crate) fn write_trail(line: &[u8]) {
    write_as(line, LineKind::AuditTrail);
}

fn write_as(lines: &[u8], kind: LineKind) {
    match LINES.get() {
        None => drop(io::stderr().lock().write_all(lines)),
        Some(waiting) => {
            if waiting.push(lines, kind) == Fate::Dropped {
                lose(1);
            }
        }
    }
}

/// Whether something that writes to the audit trail may begin now.
pub(crate) fn has_room() -> bool {
    LINES.get().is_none_or(Lines::has_room)
}

/// Waits until something that writes to the audit trail may begin. Waits for `wait` at most; if that is `None`, for
/// two seconds, or not at all if the writer has stalled. Returns whether it may.
pub(crate) async fn room(wait: Option<Duration>) -> bool {
    match LINES.get() {
        Some(lines) if !lines.has_room() => lines.room(wait).await,
        _ => true,
    }
}

/// Returns how long nothing has been written although lines of the audit trail wait, and how many bytes wait. `None`
/// if none wait.
pub(crate) fn audit_trail_stalled() -> Option<(Duration, usize)> {
    LINES.get().and_then(Lines::stalled)
}

/// Waits for the last lines to be written, at the end of the process: for ten seconds at most, and for a second if
/// nothing is read.
pub(crate) fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(LAST_LINES);
    }
}

/// Registers the counter of dropped lines, with its help text. The recorder must be installed.
pub(crate) fn describe() {
    describe_counter!(
        "lockgate_log_lines_dropped_total",
        "Lines of the log dropped, as more than 8 MB of lines waited to be read or they could not be written. None of them is the audit trail's."
    );
    counter!("lockgate_log_lines_dropped_total").increment(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_in_their_order_up_to_a_bound_and_the_rest_is_counted() {
        let (lines, mut hand) = (Lines::default(), Vec::new());
        let push = |line: &[u8]| lines.push(line, LineKind::Log);
        assert_eq!(push(b"one\n"), Fate::Waits);
        assert_eq!(push(b"two\n"), Fate::Waits);
        assert_eq!(push(&vec![b'x'; MOST_WAITING]), Fate::Dropped);
        assert_eq!(push(b"three\n"), Fate::Waits);
        assert_eq!(lines.take(&mut hand), (1, false));
        assert_eq!(hand, b"one\ntwo\nthree\n");
        // Lines in hand count as waiting until they are written.
        let rest = vec![b'x'; MOST_WAITING - hand.len()];
        assert_eq!((push(&rest), push(b"four\n")), (Fate::Waits, Fate::Dropped));
        lines.wrote(hand.len());
        hand.clear();
        assert_eq!(push(b"five\n"), Fate::Waits);
        assert_eq!(lines.take(&mut hand), (1, false));
        assert!(hand.ends_with(b"xfive\n"));
    }

    #[test]
    fn a_line_of_the_trail_is_kept_however_many_wait() {
        let (lines, mut hand) = (Lines::default(), Vec::new());
        assert_eq!(lines.stalled(), None);
        assert_eq!(lines.push(&vec![b'x'; MOST_WAITING], LineKind::Log), Fate::Waits);
        assert_eq!(lines.stalled(), None, "the log's own lines may be lost");
        assert_eq!(lines.push(b"one\n", LineKind::AuditTrail), Fate::Waits);
        assert_eq!(lines.push(b"two\n", LineKind::Log), Fate::Dropped);
        assert_eq!(lines.stalled().map(|(_, bytes)| bytes), Some(MOST_WAITING + 4));
        assert_eq!(lines.take(&mut hand), (1, true));
        assert!(hand.ends_with(b"xone\n"));
        lines.wrote(hand.len() - 4);
        assert_eq!(lines.stalled().map(|(_, bytes)| bytes), Some(4));
        lines.wrote(4);
        assert_eq!(lines.stalled(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_for_room_get_it_in_their_order_as_something_is_written() {
        let lines = Lines::default();
        let push = |bytes: usize| lines.push(&vec![b'x'; bytes], LineKind::AuditTrail);
        push(TRAIL_ROOM);
        assert!(lines.has_room());
        push(1);
        assert!(!lines.has_room());
        assert!(!lines.room(Some(Duration::from_secs(60))).await, "nothing was written");
        assert!(!lines.room(None).await, "nothing was written for so long that nobody waits");
        lines.wrote(1);
        push(1);
        let order = Mutex::new(Vec::new());
        let one = async |name: &'static str| {
            assert!(lines.room(None).await);
            order.lock().unwrap().push(name);
        };
        let writer = async {
            sleep(PATIENCE / 2).await;
            assert!(!lines.has_room());
            lines.wrote(1);
            assert!(!lines.has_room(), "others came before");
        };
        tokio::join!(one("first"), one("second"), one("third"), writer);
        assert_eq!(*order.lock().unwrap(), ["first", "second", "third"]);
        assert!(lines.has_room());
    }

    /// Accepts a few bytes at a time, with errors in between.
    struct Slow(Vec<u8>, Vec<io::ErrorKind>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() >= 10
                && let Some(kind) = self.1.pop()
            {
                return Err(kind.into());
            }
            let taken = bytes.len().min(5);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_slow_ones_and_the_trails_are_not() {
        let lines = b"one\ntwo\nthree\nfour\n";
        let full = vec![io::ErrorKind::StorageFull, io::ErrorKind::BrokenPipe];
        let busy = vec![io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
        for (errors, repeats) in [(busy, false), (full.clone(), true)] {
            let (mut out, mut parts) = (Slow(Vec::new(), errors), Vec::new());
            let mut writing = Writing { out: &mut out, repeats, is_torn: false };
            assert_eq!(writing.write(lines, |bytes| parts.push(bytes)), 0);
            assert_eq!((&out.0[..], &parts[..]), (&lines[..], &[5, 5, 5, 4][..]));
        }
        let (mut out, mut parts) = (Slow(Vec::new(), full), Vec::new());
        let mut writing = Writing { out: &mut out, repeats: false, is_torn: false };
        assert_eq!(writing.write(lines, |bytes| parts.push(bytes)), 2);
        // The rest of a line is lost. The next line must not be taken for it.
        assert_eq!(writing.write(b"five\n", |_| {}), 1);
        assert_eq!(writing.write(b"six\n", |_| {}), 0);
        assert_eq!((&out.0[..], &parts[..]), (&b"one\ntwo\nth\nsix\n"[..], &[5, 5, 9][..]));
    }

    #[test]
    fn whole_lines_are_written_at_once() {
        let lines = b"a line\n".repeat(PIECE);
        assert_eq!(piece(&lines).len(), PIECE / 7 * 7);
        assert_eq!(piece(b"one\ntwo\n"), b"one\ntwo\n");
        assert_eq!(piece(&vec![b'x'; 2 * PIECE]).len(), PIECE);
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
        lines.push(b"one\n", LineKind::Log);
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
            lines.push(b"two\n", LineKind::AuditTrail);
            writer.join().unwrap();
        });
    }
}
