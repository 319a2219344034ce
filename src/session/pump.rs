//! The sockets of a session: moves their bytes into the session's core, and the core's bytes out.
//!
//! All sessions of a thread read into one buffer and write from there. A session keeps only bytes
//! that a socket did not take or that are unsent, so an idle session costs no buffer.

use std::{
    cell::RefCell,
    future::{Future, pending, poll_fn},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::{
    ahead::{Ahead, ReadAhead, TOO_MUCH},
    core::{Core, READ_AHEAD, Tracking},
    desk::Desk,
    planted::{self, PlantedFault},
    question::Asked,
    session_metrics::CloseReason,
    shared::Shared,
};
use crate::{
    config::OnDisconnect,
    data::{FrontView, Tenure},
    lock::Alarm,
    net::{Outbox, Stream},
    resp::request::INLINE_LIMIT,
};

/// Most bytes moved by one read. 64 KB halve the cost of large values against 8 KB; small values
/// cost the same.
pub(super) const READ: usize = 64 * 1024;
/// Room for a read behind bytes shown a second time, which are at most an inline command.
const SCRATCH: usize = INLINE_LIMIT + 1 + READ;
/// The bytes of replies, read at once, from which on it matters how fast a client reads.
const LARGE: usize = 16 * 1024;
/// How often to look whether a client that sends more behind a LOCK than is read ahead has hung up, and whether there
/// is room again for what a client does not read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a client may take none of the bytes that wait for it, once no more may be held for it. Clients that read
/// a value of 20 MB in pieces, and lag by milliseconds, must not be closed.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

thread_local! {
    /// The buffer of this thread. It holds bytes only between a read and the write that follows it in the same poll,
    /// so one buffer serves all sessions of a thread.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// Lends the buffer of this thread.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| work(buffer))
}

/// A client's connection, its upstream connection, and the bytes that pass between them.
pub(crate) struct Session {
    /// Owns the session locks. If they are to be released, [`Session::end`] does so before the client can see its
    /// connection end and come back; otherwise they are no longer renewed and run out.
    pub(super) core: Core,
    pub(super) client: Stream,
    pub(super) upstream: Stream,
    pub(super) upstream_state: Upstream,
    /// The client has ended the connection, by FIN or by a reset.
    pub(super) hung_up: bool,
    /// The client came through a balancer, which may hang up while the client goes on.
    pub(super) balanced: bool,
    /// The tenure of the Redis to which the upstream connection leads. `None`: it never ends.
    pub(super) tenure: Option<Arc<Tenure>>,
    /// Bytes read ahead, behind the unsent ones, during a LOCK that waits in line.
    pub(super) ahead: Option<Box<Ahead>>,
    /// The question that is being asked for the command that has the floor.
    pub(super) asked: Option<Box<Asked>>,
    /// Timer of the last lock command, kept for the next one.
    pub(super) alarm: Alarm,
    /// Since when the client takes none of the bytes that wait for it. Set while a command of its
    /// own waits for that.
    pub(super) untaken: Option<Box<Untaken>>,
    /// When to look again whether a flooding client has hung up.
    pub(super) look: Option<Pin<Box<Sleep>>>,
    /// When the data node is due the next sign of life.
    pub(super) pulse: Option<Pin<Box<Sleep>>>,
    /// When to close the connection, whatever is still missing.
    pub(super) linger: Option<Pin<Box<Sleep>>>,
}

/// How far the connection to the data node is closed.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    /// FIN was passed on.
    shut: bool,
    /// The data node takes no more bytes; its last replies may still come.
    dead: bool,
    /// The data node has closed.
    done: bool,
    /// The client's socket takes few bytes ahead.
    pub(super) measures: bool,
}

/// Bytes that wait for a client that takes none of them.
pub(super) struct Untaken {
    /// How many waited for the client when it last took some.
    held: usize,
    since: Instant,
    /// When to look again.
    look: Pin<Box<Sleep>>,
}

/// How a direction's step ended: whether anything moved, or why the session is over.
type Moved = Result<bool, CloseReason>;

impl Upstream {
    pub(super) fn open(measures: bool) -> Upstream {
        Upstream { measures, ..Upstream::default() }
    }

    /// Whether the connection is open in both directions.
    pub(super) fn is_open(&self) -> bool {
        !self.shut && !self.dead && !self.done
    }
}

impl Session {
    /// Makes a session over two fresh connections. `balanced`: the client came through a balancer.
    pub(crate) fn new(
        client: Stream,
        upstream: Stream,
        shared: Arc<Shared>,
        balanced: bool,
    ) -> Session {
        Session::with(Core::new(Desk::new(shared)), client, upstream, balanced)
    }

    pub(super) fn with(core: Core, client: Stream, upstream: Stream, balanced: bool) -> Session {
        Session {
            core,
            client,
            upstream,
            upstream_state: Upstream::default(),
            hung_up: false,
            balanced,
            tenure: None,
            ahead: None,
            asked: None,
            alarm: Alarm::default(),
            untaken: None,
            look: None,
            pulse: None,
            linger: None,
        }
    }

    /// Ends the session with the tenure of the Redis to which its upstream connection leads.
    pub(crate) fn during(mut self, tenure: Option<Arc<Tenure>>) -> Session {
        self.tenure = tenure;
        self
    }

    /// Shows the client the nodes of a cluster as `view` does, if there is one.
    pub(crate) fn showing(mut self, view: Option<Arc<FrontView>>) -> Session {
        if let Some(view) = view {
            self.core.show(view);
        }
        self
    }

    /// Notes the client's address, for operators.
    pub(crate) fn of(mut self, client: Option<SocketAddr>) -> Session {
        self.core.desk.come_from(client);
        self
    }

    /// Notes by which front of a cluster the client came; 0 if there is no cluster.
    pub(crate) fn through(mut self, front: usize) -> Session {
        self.core.desk.come_through(front);
        self
    }

    /// Ends the session for this reason. What it does at its end is boxed, so that those that run keep no room for it.
    pub(super) async fn end(&mut self, reason: CloseReason) {
        self.core.abort();
        self.asked = None;
        let gives_back = self.client_gives_back()
            && (!self.core.desk.tokens.has_session_locks()
                || Box::pin(self.upstream_is_settled()).await);
        self.end_locks(gives_back);
        match reason {
            CloseReason::BarrierBuffer => Box::pin(self.part()).await,
            CloseReason::SlowReader => self.note_slow_reader(),
            _ => {}
        }
    }

    /// Gives the session locks back, or lets them run out.
    fn end_locks(&mut self, gives_back: bool) {
        let mut tokens = self.core.desk.tokens.take();
        if planted::has(PlantedFault::Kept) {
            std::mem::forget(tokens);
        } else if gives_back && let Some(tokens) = tokens.changed() {
            let shared = &self.core.desk.shared;
            tokens.give_back(|key, token| shared.free_keys(key, token));
        }
    }

    /// Whether the session locks are released: QUIT was obeyed, or the client has hung up and `locks.on_disconnect`
    /// says so.
    fn client_gives_back(&self) -> bool {
        let by_default = if self.balanced { OnDisconnect::Expire } else { OnDisconnect::Release };
        let desk = &self.core.desk;
        let on_disconnect = desk.config.locks.on_disconnect.unwrap_or(by_default);
        desk.conn.state.quit
            || self.hung_up && on_disconnect == OnDisconnect::Release
            || planted::has(PlantedFault::GiveBack)
    }

    /// Waits until all that was sent for the client is carried out, or its Redis is no longer the data node: a late write
    /// must not land under the next holder of its lock. Returns `false` if the proxy ends before that; the locks run out
    /// then.
    async fn upstream_is_settled(&mut self) -> bool {
        let (shared, tenure) = (self.core.desk.shared.clone(), self.tenure.clone());
        let settled = poll_fn(|cx| self.upstream.poll_settled(cx));
        let moved = async {
            match &tenure {
                Some(tenure) => tenure.ended().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = settled => true,
            () = moved => true,
            () = shared.abort.cancelled() => false,
        }
    }

    /// Notes that the client's socket has failed. A reset or a close is the client's doing; any
    /// other error may be the network's, such as a keepalive without an answer.
    #[cold]
    fn client_failed(&mut self, error: &io::Error) -> CloseReason {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        self.hung_up |= matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        CloseReason::Client
    }

    /// Moves both directions and the command that has the floor until none can go on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        BUFFER.with_borrow_mut(|buffer| {
            loop {
                match self.step(cx, buffer) {
                    Err(reason) => {
                        // The answer that tells why the connection ends is worth a try.
                        self.note_told();
                        let _ = self.core.to_client.poll_flush(&mut self.client, cx);
                        return Poll::Ready(reason);
                    }
                    Ok(true) => {}
                    Ok(false) => return Poll::Pending,
                }
            }
        })
    }

    /// Runs one turn of everything. Returns whether another may be worth it.
    fn step(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Moved {
        if self.tenure.as_ref().is_some_and(|tenure| tenure.has_ended()) {
            return Err(CloseReason::DataMoved);
        }
        let mut waited = self.core.is_waiting();
        self.core.take_losses()?;
        self.poll_requests(cx, buffer)?;
        waited |= self.core.is_waiting();
        let mut moved = self.poll_replies(cx, buffer)?;
        if self.core.is_waiting() || self.asked.is_some() {
            moved |= self.poll_floor(cx)?;
        }
        if self.core.push_losses() {
            moved = true;
            self.flush_client(cx)?;
        }
        self.core.check_that_news_can_be_told()?;
        // Each direction goes on until its sockets stop it. Only a command that has the floor makes
        // one direction wait for the other, and then leaves it something to do.
        let entangled = waited || self.core.is_waiting();
        let left = self.core.must_look_again()
            || self.core.client_done
            || !self.core.desk.to_data.is_empty()
            || !self.core.to_client.is_empty();
        self.poll_pulse(cx);
        self.poll_linger(cx)?;
        if self.upstream_state.done && self.core.to_client.is_empty() && !self.core.answer_is_near()
        {
            let by_client = self.core.client_done;
            return Err(if by_client { CloseReason::Client } else { CloseReason::Upstream });
        }
        if self.core.tracking == Tracking::Closing {
            return Err(self.core.closing);
        }
        if self.core.is_draining()
            && (self.core.is_at_rest()
                || self.core.waits_in_line()
                || self.core.is_resting()
                || self.core.desk.shared.abort.is_cancelled())
        {
            return Err(CloseReason::Shutdown);
        }
        Ok(moved && entangled && left)
    }

    /// Sends the bytes that wait for the data node, then reads from the client as long as the data
    /// node takes more.
    fn poll_requests(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Moved {
        let mut moved = false;
        loop {
            if self.core.tracking == Tracking::Closing {
                // The unsent bytes were never judged, and the connection ends.
                return Ok(moved);
            }
            if !self.core.desk.to_data.is_empty() {
                match self.core.desk.to_data.poll_flush(&mut self.upstream, cx) {
                    Poll::Ready(Ok(())) => moved = true,
                    Poll::Ready(Err(_)) => self.upstream_is_dead(),
                    Poll::Pending if self.blocks_for_nobody(cx, buffer)? => {
                        return Err(CloseReason::Client);
                    }
                    Poll::Pending => return Ok(moved),
                }
            }
            if self.upstream_state.dead {
                return Ok(moved | self.drop_requests(cx, buffer)?);
            }
            if self.core.desk.room.is_some() {
                self.core.give_back_room();
            }
            if self.core.is_gathering() {
                self.core.look_after_gather();
            }
            if self.core.must_look_again() {
                let (held, range) = self.core.look_again()?;
                moved = true;
                self.forward(cx, &held[range]);
                continue;
            }
            if self.core.client_done {
                if !self.pass_fin(cx) {
                    return match self.blocks_for_nobody(cx, buffer)? {
                        true => Err(CloseReason::Client),
                        false => Ok(moved),
                    };
                }
                moved = true;
                continue;
            }
            if self.core.is_draining() && self.core.is_at_rest() {
                return Ok(moved);
            }
            let waiting = self.core.is_waiting();
            if waiting && self.core.desk.unsent.len() >= READ_AHEAD {
                if self.upstream_state.done {
                    return Ok(moved | self.drop_requests(cx, buffer)?);
                }
                if self.blocks_for_nobody(cx, buffer)? {
                    return Err(CloseReason::Client);
                }
                match self.watch_flood(cx, buffer)? {
                    true => {
                        moved = true;
                        continue;
                    }
                    false => return Ok(moved),
                }
            }
            // Unsent bytes are shown again with the new ones behind them, in front of the buffer
            // unless they are too many.
            let held = &self.core.desk.unsent;
            let apart = waiting || self.core.is_gathering() || held.len() > buffer.len() - READ;
            let kept = if apart { 0 } else { held.len() };
            if kept > 0 {
                buffer[..kept].copy_from_slice(held);
            }
            let mut read = ReadBuf::new(&mut buffer[kept..kept + READ]);
            match self.poll_read_client(cx, &mut read) {
                Poll::Pending => {
                    self.core.desk.losing.note_all_read(self.core.read);
                    return Ok(moved);
                }
                Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
                Poll::Ready(Ok(())) => moved = true,
            }
            let end = kept + read.filled().len();
            if end == kept {
                self.client_hung_up();
                continue;
            }
            self.core.read += (end - kept) as u64;
            self.core.desk.shared.metrics.bytes_from_clients.increment((end - kept) as u64);
            if apart {
                self.core.client_sent_more(&buffer[..end])?;
            } else {
                let range = self.core.client_sent(&buffer[..end])?;
                self.forward(cx, &buffer[range]);
            }
        }
    }

    /// Sends bytes to the data node, or drops them if it takes no more.
    pub(super) fn forward(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
        if !bytes.is_empty()
            && !self.upstream_state.dead
            && self.core.desk.to_data.send(&mut self.upstream, cx, bytes).is_err()
        {
            self.upstream_is_dead();
        }
    }

    /// Notes that the data node takes no more bytes. Its last replies may still be on their way.
    fn upstream_is_dead(&mut self) {
        self.upstream_state.dead = true;
        self.core.desk.to_data = Outbox::default();
    }

    /// Whether the client's FIN was passed on.
    pub(super) fn upstream_is_shut(&self) -> bool {
        self.upstream_state.shut
    }

    /// Passes the client's FIN on, once everything before it is sent. Returns whether anything
    /// moved.
    fn pass_fin(&mut self, cx: &mut Context<'_>) -> bool {
        if self.core.is_waiting() || self.upstream_state.shut {
            return false;
        }
        if !self.core.desk.unsent.is_empty() {
            // This is the beginning of a command that will never be whole.
            let held = std::mem::take(&mut self.core.desk.unsent);
            self.forward(cx, &held);
            return true;
        }
        match Pin::new(&mut self.upstream).poll_shutdown(cx) {
            Poll::Pending => false,
            Poll::Ready(_) => {
                self.upstream_state.shut = true;
                true
            }
        }
    }

    /// Reads and drops what the client sends, as nothing of it will be carried out. A client that reads only once it
    /// has written everything would otherwise wait for ever.
    #[cold]
    pub(super) fn drop_requests(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Moved {
        let mut moved = false;
        while !self.core.client_done {
            let mut read = ReadBuf::new(&mut buffer[..READ]);
            match self.poll_read_client(cx, &mut read) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
                Poll::Ready(Ok(())) if read.filled().is_empty() => self.client_hung_up(),
                Poll::Ready(Ok(())) => {}
            }
            let bytes = &self.core.desk.shared.metrics.bytes_from_clients;
            bytes.increment(read.filled().len() as u64);
            moved = true;
        }
        Ok(moved)
    }

    /// Takes in that the client has ended the connection.
    fn client_hung_up(&mut self) {
        self.hung_up = true;
        if self.core.client_closed() {
            self.ahead = None;
        }
        self.drop_what_is_not_asked();
    }

    /// Looks after a client that has sent as many bytes as may stay unsent while a command waits.
    /// Returns `false` if no more is to be read from the client now.
    fn watch_flood(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Moved {
        if self.core.waits_in_line() {
            match self.read_ahead(cx, buffer)? {
                ReadAhead::Some => return Ok(true),
                ReadAhead::Nothing => return Ok(false),
                ReadAhead::NoRoom => {}
                ReadAhead::TooMuch => {
                    // The waiter is dropped with its LOCK and leaves the line.
                    self.core.refuse(TOO_MUCH);
                    self.drop_what_is_not_asked();
                    return Ok(true);
                }
                ReadAhead::End => {
                    self.client_hung_up();
                    return Ok(true);
                }
            }
        }
        if !self.flood_has_ended(cx, buffer)? {
            return Ok(false);
        }
        if let Some(error) = self.client.take_error() {
            return Err(self.client_failed(&error));
        }
        if self.core.is_given_up_by_leaving() {
            self.client_hung_up();
            return Ok(true);
        }
        self.hung_up = true;
        Err(CloseReason::Client)
    }

    /// Reads behind a LOCK that waits in line, or a command that blocks, beyond what any command may have behind it.
    #[cold]
    fn read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<ReadAhead, CloseReason> {
        let shared = &self.core.desk.shared;
        let ahead = self.ahead.get_or_insert_with(|| Box::new(Ahead::new(shared.ahead.clone())));
        if !ahead.has_room() {
            return Ok(ReadAhead::NoRoom);
        }
        let mut read = ReadBuf::new(&mut buffer[..READ]);
        match Pin::new(&mut self.client).poll_read(cx, &mut read) {
            Poll::Pending => return Ok(ReadAhead::Nothing),
            Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
            Poll::Ready(Ok(())) if read.filled().is_empty() => {
                self.ahead = None;
                return Ok(ReadAhead::End);
            }
            Poll::Ready(Ok(())) => ahead.push(read.filled()),
        }
        shared.metrics.bytes_from_clients.increment(read.filled().len() as u64);
        Ok(if ahead.is_too_much() { ReadAhead::TooMuch } else { ReadAhead::Some })
    }

    /// Hands over bytes that were read ahead, or else reads from the client. As a call of its own it
    /// would cost each read 40 instructions.
    #[inline(always)]
    fn poll_read_client(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(ahead) = &mut self.ahead {
            if let Some(piece) = ahead.pop() {
                read.put_slice(&piece);
                return Poll::Ready(Ok(()));
            }
            self.ahead = None;
        }
        Pin::new(&mut self.client).poll_read(cx, read)
    }

    /// Whether a command that blocks holds back what the client has sent, and the client has hung up: Redis then drops
    /// what stands behind it. Looks only every [`LOOK_EVERY`].
    #[cold]
    fn blocks_for_nobody(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<bool, CloseReason> {
        while self.upstream.may_block() && self.is_time_to_look(cx) {
            if self.upstream.blocks()
                && self.core.to_client.is_empty()
                && (self.core.client_done
                    || self.client.has_hung_up()
                    || self.read_to_the_end(cx, buffer)?)
            {
                self.hung_up = true;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads ahead as far as may be. Returns whether the client's FIN has come.
    fn read_to_the_end(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<bool, CloseReason> {
        while self.ahead.as_ref().is_none_or(|ahead| !ahead.is_too_much()) {
            match self.read_ahead(cx, buffer)? {
                ReadAhead::Some | ReadAhead::TooMuch => {}
                ReadAhead::End => return Ok(true),
                ReadAhead::Nothing | ReadAhead::NoRoom => break,
            }
        }
        Ok(false)
    }

    /// Whether the client has hung up behind more bytes than are read while a command has the floor, and the command is
    /// given up by that. Looks only every [`LOOK_EVERY`], and reads ahead for it only where the command has long waited
    /// for its place: what is before it may block for ever.
    fn flood_has_ended(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<bool, CloseReason> {
        while self.is_time_to_look(cx) {
            let waits = self.core.has_long_waited_for_its_place() && self.core.to_client.is_empty();
            if (waits || self.core.is_lock()) && self.client.has_hung_up()
                || waits && self.read_to_the_end(cx, buffer)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether [`LOOK_EVERY`] has passed. If not, the task is woken once it has.
    fn is_time_to_look(&mut self, cx: &mut Context<'_>) -> bool {
        let timer = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
        let is_time = timer.as_mut().poll(cx).is_ready();
        if is_time {
            self.look = None;
        }
        is_time
    }

    /// Sends the bytes that wait for the client, then reads from the data node as long as the
    /// client takes more. While the command with the floor, or one that is to leave shared
    /// connections, needs replies, they are read even if the client does not take them, up to
    /// `barrier_buffer`. A client that then takes nothing for [`PATIENCE`] is closed, as its command
    /// could wait for ever.
    fn poll_replies(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Moved {
        let mut moved = false;
        loop {
            if !self.core.to_client.is_empty() {
                match self.core.to_client.poll_flush(&mut self.client, cx) {
                    Poll::Ready(Ok(())) => {
                        moved = true;
                        self.all_is_taken();
                    }
                    Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
                    // A client that does read, if slowly, is not closed: it only makes the data node wait.
                    Poll::Pending if self.check_reader() => {
                        return match self.client_takes_nothing(cx) {
                            true => Err(CloseReason::BarrierBuffer),
                            false => Ok(moved),
                        };
                    }
                    Poll::Pending if self.upstream.gave_up_reader(cx) => {
                        return Err(CloseReason::SlowReader);
                    }
                    Poll::Pending if self.outstays() && self.client_takes_nothing(cx) => {
                        return Err(CloseReason::Client);
                    }
                    Poll::Pending
                        if !self.core.needs_replies() && !self.upstream.needs_replies() =>
                    {
                        return Ok(moved);
                    }
                    Poll::Pending => {}
                }
            }
            if self.upstream_state.done {
                return Ok(moved);
            }
            let mut read = ReadBuf::new(&mut buffer[..READ]);
            match Pin::new(&mut self.upstream).poll_read(cx, &mut read) {
                Poll::Pending => return Ok(moved),
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {}
                Poll::Ready(_) if self.upstream.gave_up_reader(cx) => {
                    return Err(CloseReason::SlowReader);
                }
                // All that the data node sent before it closed has been read.
                Poll::Ready(_) => {
                    self.upstream_state.done = true;
                    moved = true;
                    self.core.data_closed();
                    continue;
                }
            }
            moved = true;
            let end = read.filled().len();
            if end >= LARGE {
                self.measure_reader();
            }
            self.core.desk.shared.metrics.bytes_from_data.increment(end as u64);
            let from = self.core.data_sent(&buffer[..end]);
            if self.core.replies.take_refused_write() {
                self.doubt_data_node();
            }
            self.note_told();
            if let Err(error) = self.core.to_client.send(&mut self.client, cx, &buffer[from..end]) {
                return Err(self.client_failed(&error));
            }
        }
    }

    /// Has the client's socket tell how fast the client reads, while it does so over shared connections.
    fn measure_reader(&mut self) {
        let measures = self.upstream.is_shared();
        if measures != self.upstream_state.measures {
            self.upstream_state.measures = measures;
            self.client.take_few(measures);
        }
    }

    /// Takes in that the data node has refused a write, as a replica does.
    #[cold]
    fn doubt_data_node(&self) {
        if let Some(tenure) = &self.tenure {
            tenure.doubt();
        }
    }

    /// Returns whether no more may be held for the client, and the command that has the floor, or is to leave shared
    /// connections, goes on only once the client takes some of it. If not, its patience begins anew, unless it outstays.
    #[cold]
    fn check_reader(&mut self) -> bool {
        if !self.core.reserve_more()
            && (self.core.waits_for_reader() || self.upstream.needs_replies())
        {
            return true;
        }
        if !self.outstays() {
            self.untaken = None;
        }
        false
    }

    /// Whether the client has ended its half of the connection, and what it has yet to read would keep its locks or a
    /// shared connection for as long as it likes. Redis closes the connection of such a client.
    fn outstays(&self) -> bool {
        self.hung_up && (self.upstream.is_shared() || self.core.desk.tokens.has_session_locks())
    }

    /// Whether the client has taken none of the bytes that wait for it for [`PATIENCE`].
    #[cold]
    fn client_takes_nothing(&mut self, cx: &mut Context<'_>) -> bool {
        let (held, now) = (self.core.to_client.len(), Instant::now());
        let untaken = self.untaken.get_or_insert_with(|| {
            Box::new(Untaken { held, since: now, look: Box::pin(sleep(LOOK_EVERY)) })
        });
        if untaken.held != held {
            (untaken.held, untaken.since) = (held, now);
        }
        while untaken.look.as_mut().poll(cx).is_ready() {
            untaken.look = Box::pin(sleep(LOOK_EVERY));
        }
        now >= untaken.since + PATIENCE
    }

    /// Notes that the client has taken all that was held for it.
    #[inline]
    fn all_is_taken(&mut self) {
        self.untaken = None;
        self.core.all_is_read();
    }

    /// Moves the command that has the floor as far as the answers to its questions allow.
    #[inline(never)]
    fn poll_floor(&mut self, cx: &mut Context<'_>) -> Moved {
        let mut moved = false;
        loop {
            moved |= self.core.go_on();
            if let Some(question) = self.core.question() {
                let Desk { shared, card, .. } = &self.core.desk;
                let asked = Asked::ask(*question, shared, card, &mut self.alarm);
                self.asked = Some(Box::new(asked));
            }
            self.drop_what_is_not_asked();
            let Some(asked) = &mut self.asked else { break };
            let Poll::Ready(answer) = asked.poll_answer(cx) else { break };
            asked.give_back(&mut self.alarm);
            self.asked = None;
            moved = true;
            self.core.answer(answer);
        }
        self.note_told();
        self.flush_client(cx)?;
        Ok(moved)
    }

    /// Drops the question of a command that was given up. A LOCK under way is undone by that.
    fn drop_what_is_not_asked(&mut self) {
        if self.asked.is_some() && !self.core.awaits_answer() {
            self.asked = None;
        }
    }

    /// Notes that the client's outbox goes out now. If it tells of a loss, all that the client has
    /// sent by now was sent without knowing.
    fn note_told(&mut self) {
        let (read, client) = (self.core.read, &self.client);
        self.core.desk.losing.note_told(|| read + client.readable());
    }

    fn flush_client(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        match self.core.to_client.poll_flush(&mut self.client, cx) {
            Poll::Ready(Err(error)) => Err(self.client_failed(&error)),
            Poll::Ready(Ok(())) => {
                self.all_is_taken();
                Ok(())
            }
            Poll::Pending => Ok(()),
        }
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let Some(until) = self.core.linger() else {
            self.linger = None;
            return Ok(());
        };
        if self.linger.as_ref().is_none_or(|timer| timer.deadline() != until) {
            self.linger = Some(Box::pin(sleep_until(until)));
        }
        match self.linger.as_mut().map(|timer| timer.as_mut().poll(cx)) {
            Some(Poll::Ready(())) if self.core.client_done => Err(CloseReason::Client),
            Some(Poll::Ready(())) => Err(CloseReason::Quit),
            _ => Ok(()),
        }
    }
}
