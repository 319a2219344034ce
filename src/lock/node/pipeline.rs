//! The ordered, pipelined connection to one lock node.
//!
//! One task owns the socket. Operations of all clients come through one FIFO queue ([`Link`]),
//! leave in batches, one write each, and their replies are matched in order.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::{ArcSwap, Cache};
use redis_protocol::resp2::types::OwnedFrame;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::Notify,
    time,
};

use super::{
    link::{Closed, Leftover, Link, LinkShared, Queued, Sender},
    repeats::Repeats,
};
use crate::{
    clock::{Instant, millis},
    key::Key,
    lock::{
        alarm::Alarm,
        lock_metrics::NodeMetrics,
        members::{
            clocks::Sight,
            standing::{NodeStanding, Told},
        },
        node_reply,
        operation::{Absence, Kind, Operation, Vote},
        scripts::{self, Dialect},
        stations::Station,
    },
    net::{Outbox, Stream},
    resp::flat,
    sync::Mutex,
};

/// The most operations in one write: bounds a batch's memory, not its speed.
const BATCH: usize = 512;
/// Bytes of memory kept for the next batch.
const KEEP: usize = 64 * 1024;
/// Jobs for which memory is kept; a node that had stopped may have left many.
const KEEP_JOBS: usize = 4 * BATCH;
/// Bytes read at a time; an answer takes some thirty.
const READ: usize = 16 * 1024;
/// The longest time between two questions for a node's time, which is a sign of life too.
const TIME_EVERY: Duration = Duration::from_millis(500);
/// The question for a node's time, encoded.
const TIME: &[u8] = b"*1\r\n$4\r\nTIME\r\n";
/// The most votes that wait for one TIME; a node reads some forty requests at once.
const PROVEN_TOGETHER: usize = 32;

/// A callback with one argument.
type Callback<What> = Box<dyn Fn(What) + Send>;
/// A callback with an operation.
type OnError = dyn Fn(&Arc<Operation>) + Send;
/// Returns why a node may lack the lock at a key.
type MayLack = dyn Fn(&Key) -> Option<Absence> + Send;

/// The parts of a node that its connection needs.
pub(super) struct NodeSide {
    /// The place of its voter in `locks.nodes`, from 0.
    pub(super) node: usize,
    /// Where its marker lies.
    pub(super) station: Station,
    pub(super) silence: Duration,
    pub(super) metrics: Arc<NodeMetrics>,
    pub(super) standing: Arc<NodeStanding>,
    /// `locks.drift_factor`.
    pub(super) drift_factor: f64,
    pub(super) dialect: Dialect,
    /// Returns why the node may lack the lock at a key: then its word that the lock is free does not count.
    pub(super) may_lack: Box<MayLack>,
    /// Called with each sight of the node's clock. `None`: the node does not tell its TIME.
    pub(super) on_clock: Callback<Option<Sight>>,
    /// Called with a release or a hand-over that the node has answered with an error, or a hand-over left out.
    pub(super) on_error: Box<OnError>,
    /// Called with an operation that the node refused for its slot: it is elsewhere, on its way, or served nowhere.
    pub(super) on_moved: Box<OnError>,
}

/// Starts the task that owns `stream`, whose handshake is done. `on_end` is called with the unanswered operations
/// once the queue is closed, and before [`Link::is_closed`] says so.
pub(super) fn start(
    stream: Stream,
    side: NodeSide,
    client_id: Option<i64>,
    run_id: Option<String>,
    on_end: impl FnOnce(Leftover) + Send + 'static,
) -> Link {
    let shared = Arc::new(LinkShared {
        queue: Mutex::default(),
        pending: AtomicUsize::new(0),
        closed: AtomicBool::new(false),
        ending: AtomicBool::new(false),
        ended: Notify::new(),
    });
    let mut pump = Pump {
        stream,
        told: Cache::new(side.standing.told.clone()),
        side,
        jobs: VecDeque::new(),
        out: Outbox::keeping(KEEP),
        in_flight: VecDeque::new(),
        repeats: Repeats::default(),
        space: vec![0; READ].into_boxed_slice(),
        received: Vec::new(),
        heard: Instant::now(),
        is_late: false,
        asked: None,
        measured: None,
        times: 0,
        unproven: Vec::new(),
        refused: Vec::new(),
        alarm: Alarm::default(),
        next_tick: time::Instant::now(),
        shared: shared.clone(),
    };
    let ending = shared.clone();
    tokio::spawn(async move {
        let reason = std::future::poll_fn(|cx| pump.poll(cx)).await;
        let leftover = pump.end(reason);
        on_end(leftover);
        ending.closed.store(true, Ordering::Release);
        ending.ended.notify_waiters();
    });
    Link { sender: Arc::new(Sender(shared)), client_id, run_id }
}

/// A request whose reply has not come.
struct InFlight {
    sent: Sent,
    at: Instant,
}

enum Sent {
    /// An operation, and how often the node refused it because it had no scripts.
    Operation(Arc<Operation>, u8),
    Blind,
    /// TIME; `measured`: its round trip counts.
    Time {
        measured: bool,
    },
}

struct Pump {
    stream: Stream,
    side: NodeSide,
    /// [`NodeStanding::told`], cached: reading it costs little while it does not change.
    told: Cache<Arc<ArcSwap<Told>>, Arc<Told>>,
    /// Jobs taken from the queue.
    jobs: VecDeque<Queued>,
    out: Outbox,
    in_flight: VecDeque<InFlight>,
    /// Refused operations. While there are any, nothing new is sent, so that the order of
    /// operations stays.
    repeats: Repeats,
    space: Box<[u8]>,
    /// The beginning of a reply that is not yet whole.
    received: Vec<u8>,
    /// The time when something last came, or when the first request in flight was sent.
    heard: Instant,
    /// Whether the first reply of the last read took longer than a vote may.
    is_late: bool,
    /// When TIME was last sent.
    asked: Option<Instant>,
    /// When the last TIME was sent whose round trip counts.
    measured: Option<Instant>,
    /// TIMEs in flight.
    times: usize,
    /// Votes which say that a lock is free, or was. They count once a TIME behind them has shown the node's clock.
    unproven: Vec<(Arc<Operation>, Vote)>,
    /// Operations that the node has not carried out, as its marker has changed. Once there is one, nothing more is
    /// sent, and the connection ends when all replies that are due have come.
    refused: Vec<Arc<Operation>>,
    /// The timer for `next_tick`.
    alarm: Alarm,
    /// The time of the next check for silence, and for a TIME that is due.
    next_tick: time::Instant,
    shared: Arc<LinkShared>,
}

impl Pump {
    /// Reads, sends and watches the clock until the connection ends.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        loop {
            if let Some(closed) = self.shared.ended_from_outside() {
                return Poll::Ready(closed);
            }
            if let Err(closed) = self.tick(cx) {
                return Poll::Ready(closed);
            }
            match self.read(cx) {
                Poll::Ready(closed) => return Poll::Ready(closed),
                Poll::Pending => {}
            }
            if !self.refused.is_empty() {
                if self.in_flight.is_empty() {
                    return Poll::Ready(Closed::Unproven);
                }
                // What is in the buffer counts as sent.
                return match ready!(self.out.poll_flush(&mut self.stream, cx)) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(error.into()),
                };
            }
            self.repeat();
            if let Err(closed) = ready!(self.poll_write(cx)) {
                return Poll::Ready(closed);
            }
        }
    }

    /// Sends one batch. Ready: there are more jobs, but reading comes first.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        ready!(self.out.poll_flush(&mut self.stream, cx))?;
        if self.repeats.is_needed() {
            return Poll::Pending;
        }
        ready!(self.poll_jobs(cx))?;
        self.encode();
        ready!(self.out.poll_flush(&mut self.stream, cx))?;
        self.poll_jobs(cx)
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), Closed> {
        while self.alarm.poll(self.next_tick, cx).is_ready() {
            let every = (self.side.silence / 4).min(TIME_EVERY / 2).max(Duration::from_millis(1));
            self.next_tick = time::Instant::now() + every;
            let now = Instant::now();
            if !self.in_flight.is_empty() && now - self.heard >= self.side.silence {
                return Err(Closed::Silent(self.side.silence));
            }
            let waited = self.in_flight.front().map(|first| now - first.at);
            self.side.metrics.pace.look(now, waited);
            let may_send = !self.repeats.is_needed() && self.refused.is_empty();
            if may_send && self.asked.is_none_or(|asked| now - asked >= TIME_EVERY) {
                self.ask_time(now);
            }
        }
        Ok(())
    }

    /// Asks for the node's TIME. Its round trip is measured twice a second, even behind other requests if the node is
    /// never idle.
    fn ask_time(&mut self, at: Instant) {
        let measured = self.measured.is_none_or(|before| at - before >= TIME_EVERY);
        if measured {
            self.measured = Some(at);
        }
        self.out.push(TIME);
        self.times += 1;
        self.asked = Some(at);
        self.push(Sent::Time { measured }, at);
    }

    /// Sends TIME behind operations whose votes may say that a lock is free. Such votes count only once the answer
    /// shows a clock that has not jumped: sent before them, TIME would miss a jump in between.
    fn prove(&mut self, unproven: &mut usize, at: Instant) {
        if std::mem::take(unproven) > 0 && !self.side.standing.unwatched.load(Ordering::Relaxed) {
            self.ask_time(at);
        }
    }

    fn push(&mut self, sent: Sent, now: Instant) {
        if self.in_flight.is_empty() {
            self.heard = now;
        }
        let last = self.in_flight.back();
        debug_assert!(
            last.is_none_or(|last| last.at <= now),
            "replies come in the order of sending"
        );
        self.in_flight.push_back(InFlight { sent, at: now });
    }

    /// Takes all jobs, once there are some.
    fn poll_jobs(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        if !self.jobs.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if self.jobs.capacity() > KEEP_JOBS {
            self.jobs = VecDeque::new();
        }
        let mut queue = self.shared.queue.lock();
        if queue.jobs.is_empty() && !queue.closed {
            match &mut queue.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut self.jobs, &mut queue.jobs);
        if self.jobs.is_empty() {
            return Poll::Ready(Err(self.shared.ended_from_outside().unwrap_or(Closed::Unused)));
        }
        Poll::Ready(Ok(()))
    }

    fn encode(&mut self) {
        debug_assert!(!self.repeats.is_needed(), "nothing overtakes what is to be repeated");
        let now = Instant::now();
        let mut unproven = 0;
        for _ in 0..BATCH {
            let Some(job) = self.jobs.pop_front() else { break };
            match job {
                Queued::Operation(operation) => {
                    self.note_longest(&operation, now);
                    if !self.put(&operation) {
                        continue;
                    }
                    unproven += usize::from(operation.kind.may_say_free());
                    self.push(Sent::Operation(operation, 0), now);
                    if unproven >= PROVEN_TOGETHER {
                        self.prove(&mut unproven, now);
                    }
                }
                Queued::Blind(bytes) => {
                    self.out.push(&bytes);
                    self.push(Sent::Blind, now);
                }
            }
        }
        self.prove(&mut unproven, now);
    }

    /// Has the node note the operation's TTL before it stores a lock for that long, if no TTL before was as long.
    fn note_longest(&mut self, operation: &Operation, now: Instant) {
        if !operation.kind.stores() {
            return;
        }
        let ttl = millis(operation.ttl);
        if self.side.standing.longest.fetch_max(ttl, Ordering::Relaxed) < ttl {
            self.out.push(&scripts::note(&self.side.station.key(scripts::LONGEST), operation.ttl));
            self.shared.pending.fetch_add(1, Ordering::Relaxed);
            self.push(Sent::Blind, now);
        }
    }

    /// Puts an operation into the batch. Returns false if the node must not be asked it any more.
    fn put(&mut self, operation: &Arc<Operation>) -> bool {
        if operation.kind.is_proven() {
            let told = self.told.load();
            // An epoch has begun since the operation was made.
            if operation.learned < told.learned
                && !operation.is_wanted(self.side.node, &told.seatings)
            {
                self.leave_out(operation);
                return false;
            }
            self.out.push(&operation.request);
            self.out.push(&told.marker);
        } else {
            self.out.push(&operation.request);
        }
        true
    }

    #[cold]
    fn leave_out(&self, operation: &Arc<Operation>) {
        if matches!(operation.kind, Kind::HandOver { .. }) {
            // The giver's lock is still to be given back.
            (self.side.on_error)(operation);
        }
        self.shared.done();
        operation.vote(self.side.node, Vote::Missing(Absence::Unproven));
    }

    /// Reads all that has come. Ready: the connection has ended.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        loop {
            let mut buf = ReadBuf::new(&mut self.space);
            if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf)) {
                return Poll::Ready(error.into());
            }
            if buf.filled().is_empty() {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the node");
                return Poll::Ready(error.into());
            }
            self.heard = Instant::now();
            // The first reply has waited the longest.
            if let Some(first) = self.in_flight.front() {
                let waited = self.heard - first.at;
                self.side.metrics.pace.sample(waited);
                self.is_late = self.side.metrics.pace.is_late(waited);
            }
            self.received.extend_from_slice(buf.filled());
            if let Err(closed) = self.read_replies() {
                return Poll::Ready(closed);
            }
        }
    }

    fn read_replies(&mut self) -> Result<(), Closed> {
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        loop {
            let rest = &received[at..];
            if rest.is_empty() {
                break;
            }
            if let Some((numbers, length)) = node_reply::numbers(rest) {
                at += length;
                self.answered(NodeReply::Numbers(numbers))?;
            } else if let Some(InFlight { sent: Sent::Time { .. }, .. }) = self.in_flight.front()
                && let Some((time, length)) = node_reply::time(rest)
            {
                at += length;
                self.answered(NodeReply::Time(time))?;
            } else if let Some((frame, length)) = node_reply::read(rest)? {
                at += length;
                self.answered(NodeReply::Frame(&frame))?;
            } else {
                break;
            }
        }
        self.received = received;
        self.received.drain(..at);
        Ok(())
    }

    #[inline]
    fn answered(&mut self, answer: NodeReply<'_>) -> Result<(), Closed> {
        // A reply to nothing is as wrong as one that cannot be read.
        let InFlight { sent, at } = self.in_flight.pop_front().ok_or(flat::Garbage)?;
        let operation = match sent {
            Sent::Time { measured } => return self.time_told(at, measured, answer),
            Sent::Blind => {
                self.shared.done();
                return Ok(());
            }
            Sent::Operation(operation, times) if answer.is_noscript() => {
                match self.repeats.refused((operation, times)) {
                    Ok(()) => return Ok(()),
                    Err(too_often) => too_often,
                }
            }
            Sent::Operation(operation, _) => {
                self.repeats.answered(&operation);
                operation
            }
        };
        let vote = match answer {
            NodeReply::Numbers(numbers) => node_reply::vote_of_numbers(operation.kind, numbers),
            NodeReply::Frame(frame) => node_reply::vote(operation.kind, frame),
            NodeReply::Time(_) => Err(flat::Garbage),
        };
        match vote {
            Ok((mut vote, listeners)) => {
                if listeners != 0 {
                    operation.heard_of_listeners(listeners);
                }
                if let (Vote::Found { .. }, NodeReply::Frame(frame)) = (vote, answer) {
                    let (_, token) = node_reply::look(frame)?;
                    operation.heard_of_holder(self.side.node, token);
                }
                // A node that may lack locks is asked, too: its word counts that a lock is held, not that it is free.
                if operation.kind == Kind::Look
                    && operation.kind.says_free(vote)
                    && let Some(why) = (self.side.may_lack)(&operation.key)
                {
                    vote = Vote::Missing(why);
                }
                if self.is_late {
                    self.count_if_late(&operation, at);
                }
                if self.times > 0 && operation.kind.says_free(vote) {
                    self.unproven.push((operation, vote));
                    return Ok(());
                }
                if let (Vote::Missing(Absence::Error), NodeReply::Frame(OwnedFrame::Error(text))) =
                    (vote, answer)
                    && let Some(why) = node_reply::elsewhere(operation.kind, text)
                {
                    vote = Vote::Missing(why);
                }
                if vote == Vote::Missing(Absence::Unproven) {
                    self.refused.push(operation);
                    return Ok(());
                }
                self.vote(&operation, vote);
                if matches!(answer, NodeReply::Frame(OwnedFrame::Error(text)) if text.starts_with("READONLY"))
                {
                    return Err(Closed::Replica);
                }
                Ok(())
            }
            Err(garbage) => {
                // The outcome of this operation is unknown, like that of those behind it.
                self.in_flight.push_front(InFlight { sent: Sent::Operation(operation, 0), at });
                Err(garbage.into())
            }
        }
    }

    /// Counts a late vote that was not waited for, as the others made the quorum. One that was waited for was counted
    /// when its time was up.
    #[cold]
    fn count_if_late(&self, operation: &Operation, sent_at: Instant) {
        let late = self.side.metrics.pace.is_late(self.heard.saturating_duration_since(sent_at));
        if late && operation.is_pending(self.side.node) {
            self.side.metrics.errors_timeout.increment(1);
        }
    }

    /// Takes the answer to TIME, which decides whether the votes that waited for it count.
    fn time_told(
        &mut self,
        at: Instant,
        measured: bool,
        answer: NodeReply<'_>,
    ) -> Result<(), Closed> {
        debug_assert!(self.times > 0, "a node tells its TIME when asked");
        self.times -= 1;
        if measured {
            self.side.metrics.round_trip(self.heard - at);
        }
        let standing = &self.side.standing;
        let mut error = None;
        let time: Option<i64> = match answer {
            NodeReply::Time(time) => Some(time),
            NodeReply::Frame(OwnedFrame::Error(text)) => {
                // Any other error does not say whether the node may tell its time.
                let never = text.starts_with("NOPERM") || text.starts_with("ERR unknown command");
                error = (!never).then_some(Absence::Error);
                None
            }
            NodeReply::Frame(frame) => Some(node_reply::time_of(frame)?),
            NodeReply::Numbers(_) => return Err(flat::Garbage.into()),
        };
        if measured && let Some(time) = time {
            self.side.metrics.clock_is_ahead(ahead(time, self.heard - at));
        }
        if error.is_none() {
            let sight = time.map(|time| {
                let mut clock = standing.clock.lock();
                clock.sample(at, self.heard, time, self.side.drift_factor)
            });
            if sight != Some(Sight::Steady) || standing.unwatched.load(Ordering::Relaxed) {
                (self.side.on_clock)(sight);
            }
        }
        if standing.jumped.load(Ordering::Acquire) {
            error = Some(Absence::Jumped);
        }
        let mut unproven = std::mem::take(&mut self.unproven);
        for (operation, vote) in unproven.drain(..) {
            self.vote(&operation, error.map_or(vote, Vote::Missing));
        }
        self.unproven = unproven;
        Ok(())
    }

    fn vote(&self, operation: &Arc<Operation>, vote: Vote) {
        if let Vote::Missing(Absence::Moved | Absence::ClusterDown) = vote {
            (self.side.on_moved)(operation);
        } else if matches!(vote, Vote::Missing(Absence::Error)) {
            self.side.metrics.errors_reply.increment(1);
            self.side.standing.refused.notify_one();
            if matches!(operation.kind, Kind::Release | Kind::HandOver { .. }) {
                (self.side.on_error)(operation);
            }
        }
        self.shared.done();
        operation.vote(self.side.node, vote);
    }

    /// Loads the scripts and repeats the operations refused for want of them, once nothing else is
    /// in flight.
    fn repeat(&mut self) {
        if !self.repeats.is_needed() || !self.in_flight.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut scripts = Vec::new();
        scripts::load(self.side.dialect, &mut scripts);
        self.out.push(&scripts);
        for _ in 0..scripts::LOADS {
            self.shared.pending.fetch_add(1, Ordering::Relaxed);
            self.push(Sent::Blind, now);
        }
        let mut unproven = 0;
        for ((operation, times), again) in self.repeats.take() {
            if again {
                if !self.put(&operation) {
                    continue;
                }
                unproven += usize::from(operation.kind.may_say_free());
                self.push(Sent::Operation(operation, times), now);
            } else {
                self.vote(&operation, Vote::Missing(Absence::Error));
            }
        }
        self.prove(&mut unproven, now);
    }

    /// Closes the queue and hands over the unanswered operations.
    fn end(&mut self, reason: Closed) -> Leftover {
        if !matches!(reason, Closed::Unused) {
            // Bytes that have not reached the node must not reach it after the clean-up.
            self.stream.reset_on_drop();
        }
        self.heard = Instant::now();
        for InFlight { sent, at } in &self.in_flight {
            if let Sent::Operation(operation, _) = sent {
                self.count_if_late(operation, *at);
            }
        }
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        let queued = std::mem::take(&mut queue.jobs);
        drop(queue);
        let mut unsent = std::mem::take(&mut self.refused);
        unsent.extend(self.jobs.drain(..).chain(queued).filter_map(Queued::operation));
        let mut sent: Vec<_> =
            self.repeats.take().into_iter().map(|((operation, _), _)| operation).collect();
        sent.extend(self.unproven.drain(..).map(|(operation, _)| operation));
        for InFlight { sent: was, .. } in self.in_flight.drain(..) {
            if let Sent::Operation(operation, _) = was {
                sent.push(operation);
            }
        }
        Leftover { sent, unsent, reason }
    }
}

/// Returns how far a node's time, read half a round trip ago, is ahead of this machine's time of day, in seconds.
fn ahead(time: i64, round_trip: Duration) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let read = now.saturating_sub(round_trip / 2).as_micros();
    time.saturating_sub(i64::try_from(read).unwrap_or(i64::MAX)) as f64 / 1e6
}

/// A reply, decoded as far as needed.
#[derive(Clone, Copy)]
enum NodeReply<'a> {
    Numbers(node_reply::Numbers),
    /// In microseconds since 1970.
    Time(i64),
    Frame(&'a OwnedFrame),
}

impl NodeReply<'_> {
    fn is_noscript(self) -> bool {
        matches!(self, NodeReply::Frame(OwnedFrame::Error(text)) if text.starts_with("NOSCRIPT"))
    }
}
