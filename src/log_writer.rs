//! Lines for stderr, written by a thread of their own: whoever serves clients never waits for
//! whoever reads the log. What waits is bounded. Lines of the log beyond that are dropped and counted.
//! Lines of the audit trail never are: whoever is about to cause one waits for room first
//! ([`room`]), and the writer repeats what could not be written.

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

/// Most bytes that wait to be written when a line of the log may still join them.
const MOST_WAITING: usize = 8 * 1024 * 1024;
/// Most bytes that wait to be written when something may begin of which the audit trail will have
/// lines.
const TRAIL_ROOM: usize = 4 * 1024 * 1024;
/// Most bytes that are written at once: when these have been written there is room again.
const PIECE: usize = 16 * 1024;
/// What a buffer keeps for the next lines.
const KEPT: usize = 64 * 1024;
/// How long the writer waits where stderr takes nothing now and does not have it wait.
const AGAIN: Duration = Duration::from_millis(10);
/// How long the writer waits before it repeats what could not be written.
const REPEATED_AFTER: Duration = Duration::from_millis(100);
/// How long one waits for room in the audit trail. A writer that has written nothing for so long
/// stands still.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an ending process waits for somebody who reads its last lines.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How often it waits so long, if something was read meanwhile.
const MOST_WAITS: u32 = 10;

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

/// A line's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    /// Of the log.
    Log,
    /// Of the audit trail.
    Trail,
}

/// Lines on their way to the writer.
struct Lines {
    waiting: Mutex<LinesWaiting>,
    /// Bytes that are not written yet, those in the writer's hand too. Changed under the mutex.
    unwritten: AtomicUsize,
    /// The writer waits for lines.
    more: Condvar,
    /// Whoever ends the process waits for the writer.
    written: Condvar,
    /// The place of those that wait for room in the trail: first come, first served.
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
    /// Whether lines of the trail are among these.
    has_trail: bool,
    /// Whether lines of the trail are among those in the writer's hand.
    hand_has_trail: bool,
    /// When bytes were last written, or began to wait.
    moved: Option<Instant>,
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

    /// Bytes that are not written yet.
    fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Has the line wait for the writer, if it is the trail's or there is room.
    fn push(&self, line: &[u8], kind: LineKind) -> Fate {
        let mut waiting = self.lock();
        let unwritten = self.unwritten() + line.len();
        if kind == LineKind::Log && unwritten > MOST_WAITING {
            waiting.dropped += 1;
            return Fate::Dropped;
        }
        if unwritten == line.len() {
            waiting.moved = Some(Instant::now());
        }
        self.unwritten.store(unwritten, Ordering::Relaxed);
        waiting.has_trail |= kind == LineKind::Trail;
        waiting.bytes.extend_from_slice(line);
        drop(waiting);
        self.more.notify_one();
        Fate::Waits
    }

    /// Takes all that waits into `hand`, which must be empty. Waits until there is something. Returns how many
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
        waiting.moved = Some(Instant::now());
        self.unwritten.store(self.unwritten().saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Whether something may begin now of which the trail will have lines.
    fn has_room(&self) -> bool {
        self.unwritten() <= TRAIL_ROOM && self.first.available_permits() > 0
    }

    /// Waits until something may begin of which the trail will have lines, for `wait` at most, or else for
    /// as long as a writer that does not stand still may need. Returns whether it may.
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

    /// How long nothing has been written though lines of the trail wait, and how many bytes wait.
    fn stalled(&self) -> Option<(Duration, usize)> {
        let waiting = self.lock();
        let is_trail = waiting.has_trail || waiting.hand_has_trail;
        let moved = waiting.moved.filter(|_| is_trail && self.unwritten() > 0)?;
        Some((moved.elapsed(), self.unwritten()))
    }

    /// Waits until all is written, for as long as somebody reads something within `time`, and at most
    /// [`MOST_WAITS`] times as long. Returns whether all is.
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

/// Writes what comes to stderr, until the process ends.
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

/// Writes lines, in pieces.
struct Writing<W> {
    out: W,
    /// Whether what cannot be written is repeated until it can be.
    repeats: bool,
    /// Whether a line was lost of which a part has been written: the next one must not be taken for its
    /// rest.
    is_torn: bool,
}

impl<W: Write> Writing<W> {
    /// Writes these lines, and calls `wrote` with the length of each part of them that is written or lost.
    /// Returns how many lines were lost, as they cannot be written (a full disk).
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

    /// Writes some of these bytes. Fails if they cannot be written and are not to be repeated.
    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.out.write(bytes) {
                Ok(written) if written > 0 => return Ok(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // As one whose reader stands still.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
                Ok(_) | Err(_) if self.repeats => thread::sleep(REPEATED_AFTER),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What is written at once of these lines: whole ones, unless the first one is longer.
fn piece(lines: &[u8]) -> &[u8] {
    let Some(piece) = lines.get(..PIECE) else { return lines };
    let end = memchr::memrchr(b'\n', piece).map_or(piece.len(), |at| at + 1);
    &piece[..end]
}

/// Starts the thread that writes. Until then, lines are written where they come from.
///
/// # Errors
/// If there can be no more threads.
pub(crate) fn start() -> io::Result<()> {
    let lines = LINES.get_or_init(Lines::default);
    thread::Builder::new().name("log".into()).spawn(move || write_all(lines)).map(drop)
}

/// Writes whole lines of the log to stderr, or drops them if too many wait.
pub(crate) fn write(lines: &[u8]) {
    write_as(lines, LineKind::Log);
}

/// Writes a whole line of the audit trail to stderr. It waits for as long as it cannot be written: for room,
/// wait before ([`room`]).
pub(crate) fn write_trail(line: &[u8]) {
    write_as(line, LineKind::Trail);
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

/// Whether something may begin now of which the audit trail will have lines.
pub(crate) fn has_room() -> bool {
    LINES.get().is_none_or(Lines::has_room)
}

/// Waits until something may begin of which the audit trail will have lines: for `wait` at most, or else for
/// two seconds, and not at all while the writer stands still. Returns whether it may.
pub(crate) async fn room(wait: Option<Duration>) -> bool {
    match LINES.get() {
        Some(lines) if !lines.has_room() => lines.room(wait).await,
        _ => true,
    }
}

/// How long nothing has been written though lines of the audit trail wait, and how many bytes wait.
/// `None`: none wait.
pub(crate) fn trail_stalled() -> Option<(Duration, usize)> {
    LINES.get().and_then(Lines::stalled)
}

/// Waits for the last lines to be written: for ten seconds at most, and for a second if nobody reads
/// them. For the end of the process.
pub(crate) fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(LAST_LINES);
    }
}

/// Makes the counter of dropped lines, with its help text. The recorder must be installed.
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
        // What is in hand waits as well, until it is written.
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
        assert_eq!(lines.push(b"one\n", LineKind::Trail), Fate::Waits);
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
        let push = |bytes: usize| lines.push(&vec![b'x'; bytes], LineKind::Trail);
        push(TRAIL_ROOM);
        assert!(lines.has_room());
        push(1);
        assert!(!lines.has_room());
        assert!(!lines.room(Some(Duration::from_secs(60))).await, "nothing was written");
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

    /// Takes four bytes at a time, with something in between.
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
            lines.push(b"two\n", LineKind::Trail);
            writer.join().unwrap();
        });
    }
}
