//! One client connection and its upstream connection, for their whole life.
//!
//! `Session::poll` is the place to see a byte pass: both directions and the
//! lock command under way, if there is one, move in one task, and none stalls
//! another. Bytes are read into one buffer that all sessions of a thread share
//! and are written from there; a session keeps only what a socket did not take
//! and what may not be sent yet, so that an idle one costs no buffer.
//!
//! - [`requests`]: client → data node; [`intercept`]: what the stream goes on without;
//!   [`notes`]: what each command will be answered.
//! - [`replies`]: data node → client, and what each reply tells.
//! - [`barrier`]: the life of a command that must wait for earlier replies.
//! - [`lock_command`]: LOCK, UNLOCK, RENEW and their kin on the engine, and their replies.
//! - [`attached`]: locks taken elsewhere, asked about again once their time has run out.
//! - [`inquiry`]: LOCKGATE's answers.
//! - [`listing`]: our entries behind the data node's in COMMAND's lists.
//! - [`gather`]: which commands guards are about.
//! - [`guarded`]: writes that need a lock; [`unwrap`]: the reply of one, out of EXEC's.
//! - [`lost`]: what a client is told when its session lock is lost.
//! - [`owed`], [`state`]: which replies are owed, and what they have told so far.
//! - [`pulse`]: signs of life while a client waits for Lockgate or holds a lock; [`idle`]: how
//!   long the data node lets clients be idle.
//! - [`ahead`]: what comes behind a LOCK that waits, read so that the client's end is seen.
//! - [`authorize`]: may this client lock this key.
//! - [`metrics`]: what is counted of commands, and the words for how things end.

pub mod ahead;
pub mod attached;
pub mod authorize;
pub mod barrier;
pub mod gather;
pub mod guarded;
pub mod idle;
pub mod inquiry;
pub mod intercept;
pub mod listing;
pub mod lock_command;
pub mod lost;
pub mod metrics;
pub mod notes;
pub mod owed;
pub mod pulse;
pub mod replies;
pub mod requests;
pub mod state;
pub mod unwrap;

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::{
    authorize::Permissions,
    barrier::Barrier,
    gather::Gather,
    guarded::Armed,
    idle::Idle,
    lock_command::Tokens,
    lost::News,
    metrics::{CloseReason, Metrics},
    owed::Owed,
    state::State,
    unwrap::Unwrap,
};
use crate::{
    config::{Config, OnDisconnect},
    guard::Guards,
    lock::{Alarm, Engine, Losses},
    net::{Outbox, Stream},
    resp::{
        name::ReplyMode,
        reply::ReplyScanner,
        request::{INLINE_LIMIT, RequestScanner},
    },
};

/// Most bytes moved by one read. Half the cost of large values is saved by
/// 64 KB against 8 KB; small ones do not care.
const READ: usize = 64 * 1024;
/// Room for a read behind bytes shown a second time: at most an inline command.
const SCRATCH: usize = INLINE_LIMIT + 1 + READ;
/// How long a connection may linger after QUIT while its replies are off, or with each
/// command that waits, as an UNLOCK behind a blocked one, after its client has hung up.
const LINGER: Duration = Duration::from_secs(1);

thread_local! {
    /// Holds bytes only between a read and the write that follows it in the
    /// same poll, hence one for all sessions of a thread.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// What all sessions share.
pub struct Shared {
    /// The lock engine.
    pub engine: Arc<Engine>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The configuration as it is now: it changes when it is read again.
    pub config: ArcSwap<Config>,
    /// Rules on the keys that clients write, if there are any.
    pub guards: Option<Arc<Guards>>,
    /// How long the data node lets clients be idle.
    pub idle: Arc<Idle>,
    /// What all sessions have read behind LOCKs that wait.
    pub ahead: Arc<ahead::Taken>,
    /// Clients connected now, for LOCKGATE; a metric cannot be read back.
    pub clients: AtomicUsize,
    /// When the proxy was started.
    pub started: Instant,
    /// Addresses on which clients are accepted.
    pub listen: Vec<SocketAddr>,
    /// Set when the proxy shuts down, before `drain` is cancelled.
    pub draining: AtomicBool,
    /// Wakes every session once `draining` is set.
    pub drain: CancellationToken,
    /// Ends every session, whatever it is doing.
    pub abort: CancellationToken,
}

/// One client connection, its upstream connection, and what passes between them.
pub struct Session {
    /// Session locks in it are given back by [`Session::run`] before the client sees its
    /// connection end and comes back; otherwise they are renewed no more and run out.
    tokens: Tokens,
    client: Stream,
    upstream: Stream,
    shared: Arc<Shared>,
    /// As it was when the client came.
    config: Arc<Config>,

    /// Where the client's commands end.
    requests: RequestScanner,
    /// Client bytes that may not be sent yet: the beginning of a command whose
    /// name is not yet known, or all that came during a barrier.
    held: Vec<u8>,
    /// What came behind `held` during a LOCK that waits in line.
    ahead: Option<Box<ahead::Ahead>>,
    /// `held` is to be scanned again: the barrier before it is over.
    rescan: bool,
    /// The command at the beginning of `held` has waited and is now forwarded.
    pass_next: Option<requests::Pass>,
    /// A command of ours too long to be one is being dropped.
    dropping: Option<intercept::Dropping>,
    to_upstream: Outbox,
    /// The client has sent FIN.
    client_done: bool,
    /// The client has ended the connection, by FIN or by a reset.
    hung_up: bool,
    /// Who hangs up may be a balancer, while the client goes on.
    balanced: bool,
    /// Bytes read from the client so far.
    read: u64,
    /// FIN was passed on.
    upstream_shut: bool,
    /// The data node takes no more bytes; its last replies may still come.
    upstream_dead: bool,

    /// What CLIENT REPLY was last set to.
    reply_mode: ReplyMode,
    /// ASKING or CLIENT CACHING has set a flag for the next command.
    next_only: bool,
    /// MULTI went by while replies were off, so nobody will tell whether it worked.
    blind_multi: bool,
    /// AUTH was queued by MULTI: EXEC may make the client somebody else.
    auth_queued: bool,
    /// Which database is selected. None: a SELECT has gone by, and nobody was asked since.
    database: Option<u64>,

    /// Where the data node's replies end.
    replies: ReplyScanner,
    owed: Owed,
    state: State,
    to_client: Outbox,
    /// The reply being received answers a command of the proxy's own.
    own_reply: Option<Vec<u8>>,
    /// The reply being received is a list to which our entries are added.
    addition: Option<listing::Addition>,
    /// The reply being received is EXEC's or a script's, and the proxy has a part in it.
    unwrap: Option<Box<Unwrap>>,
    /// The data node has closed.
    upstream_done: bool,

    /// Replies can no longer be followed (docs/design/forwarding.md): all bytes
    /// pass untouched, and LOCK with them, which the data node refuses.
    relay: bool,
    /// Guards could be passed by unseen: the connection is to be closed.
    unguarded: bool,
    /// Bytes were met that Redis would not parse, and there are guards: no more of the
    /// client's are forwarded.
    broken: bool,
    /// A large command that must be whole before it is looked at.
    gather: Option<Box<Gather>>,
    /// Others were given the room of the one at the beginning of `held`.
    no_room: bool,
    /// This client may not call scripts.
    no_scripts: bool,
    /// How many guarded writes may share the next call of one.
    together: guarded::Limit,
    /// The fences that are watched for the transaction under way.
    armed: Option<Box<Armed>>,
    /// In a box, as it is passed from hand to hand and most connections have none.
    barrier: Option<Box<Barrier>>,
    /// Of the lock command under way, kept for the next one.
    alarm: Alarm,
    permissions: Permissions,
    /// Where the watchdog tells of lost locks, once there is one to lose.
    losses: Option<Arc<Losses>>,
    /// Pushes about them, to be written between two frames.
    pushes: Vec<u8>,
    /// What the client is being told of them.
    news: Option<Box<News>>,
    /// When to look again whether a client that floods has hung up.
    look: Option<Pin<Box<Sleep>>>,
    /// When the data node is to hear of this connection again.
    pulse: Option<Pin<Box<Sleep>>>,
    /// The proxy answers, or has answered, what the data node does not hear of.
    unheard: bool,
    /// When to close whatever is still missing.
    linger: Option<Pin<Box<Sleep>>>,
}

/// How a direction's step ended: whether anything moved, or that the session is over.
type Step = Result<bool, CloseReason>;

impl Session {
    /// A session over two fresh connections. `balanced`: the client came through a balancer.
    pub fn new(client: Stream, upstream: Stream, shared: Arc<Shared>, balanced: bool) -> Session {
        let config = shared.config.load_full();
        let permissions = Permissions::new(config.locks.authorize_cache);
        Session {
            client,
            upstream,
            shared,
            config,
            requests: RequestScanner::default(),
            held: Vec::new(),
            ahead: None,
            rescan: false,
            pass_next: None,
            dropping: None,
            to_upstream: Outbox::default(),
            client_done: false,
            hung_up: false,
            balanced,
            read: 0,
            upstream_shut: false,
            upstream_dead: false,
            reply_mode: ReplyMode::On,
            next_only: false,
            blind_multi: false,
            auth_queued: false,
            database: Some(0),
            replies: ReplyScanner::default(),
            owed: Owed::default(),
            state: State::default(),
            to_client: Outbox::default(),
            own_reply: None,
            addition: None,
            unwrap: None,
            upstream_done: false,
            relay: false,
            unguarded: false,
            broken: false,
            gather: None,
            no_room: false,
            no_scripts: false,
            together: guarded::Limit::default(),
            armed: None,
            barrier: None,
            alarm: Alarm::default(),
            permissions,
            tokens: Tokens::default(),
            losses: None,
            pushes: Vec::new(),
            news: None,
            look: None,
            pulse: None,
            unheard: false,
            linger: None,
        }
    }

    /// Moves bytes until either side is gone or the proxy shuts down.
    /// Both connections are closed when this returns or is dropped, and a LOCK
    /// under way is undone. Session locks are released if the client has ended the
    /// connection. Where the data node or the proxy has, the client may go on as its
    /// validity allows: they run out.
    pub async fn run(mut self) -> CloseReason {
        let shared = self.shared.clone();
        let mut drain = pin!(shared.drain.cancelled());
        let mut abort = pin!(shared.abort.cancelled());
        let mut registered = false;
        let reason = poll_fn(|cx| {
            if !registered {
                // Once is enough: this task's waker stays the same, and the
                // flag beside the token is cheaper to look at.
                registered = true;
                let _ = drain.as_mut().poll(cx);
                let _ = abort.as_mut().poll(cx);
            }
            self.poll(cx)
        })
        .await;
        self.abort_barrier();
        if self.client_gives_back() {
            self.tokens.give_back();
        }
        reason
    }

    /// Whether the client itself has ended the connection.
    fn client_gives_back(&self) -> bool {
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "give back") {
            return true;
        }
        let by_default = if self.balanced { OnDisconnect::Expire } else { OnDisconnect::Release };
        let on_disconnect = self.config.locks.on_disconnect.unwrap_or(by_default);
        self.state.quit || self.hung_up && on_disconnect == OnDisconnect::Release
    }

    /// The client's socket has failed. That it was reset, or closed, is the client's doing.
    /// Any other error may be the network's, as a keepalive without an answer.
    #[cold]
    fn client_failed(&mut self, error: &io::Error) -> CloseReason {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        self.hung_up |= matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        CloseReason::Client
    }

    /// Both directions and the barrier, until none of them can move.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        BUFFER.with_borrow_mut(|buffer| {
            loop {
                match self.step(cx, buffer) {
                    Err(reason) => return Poll::Ready(reason),
                    Ok(true) => {}
                    Ok(false) => return Poll::Pending,
                }
            }
        })
    }

    /// One turn of everything. True: it may be worth another.
    fn step(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Step {
        let mut waited = self.barrier.is_some();
        self.take_losses(cx)?;
        self.poll_requests(cx, buffer)?;
        waited |= self.barrier.is_some();
        let mut moved = self.poll_replies(cx, buffer)?;
        moved |= self.poll_barrier(cx)?;
        moved |= self.push_losses(cx)?;
        self.check_that_news_can_be_told(cx)?;
        // Each direction goes on until its sockets stop it; only a barrier
        // makes one wait for the other, and then leaves it something to do.
        let entangled = waited || self.barrier.is_some();
        let left = self.rescan
            || self.client_done
            || !self.to_upstream.is_empty()
            || !self.to_client.is_empty();
        self.poll_pulse(cx);
        self.poll_linger(cx)?;
        if self.upstream_done && self.to_client.is_empty() && !self.answer_is_near() {
            return Err(if self.client_done { CloseReason::Client } else { CloseReason::Upstream });
        }
        if self.unguarded {
            return Err(CloseReason::Unguarded);
        }
        let in_line = self.barrier.as_ref().is_some_and(|barrier| barrier.waits_in_line());
        if self.shared.draining.load(Ordering::Relaxed)
            && (self.is_at_rest() || in_line || self.shared.abort.is_cancelled())
        {
            return Err(CloseReason::Shutdown);
        }
        Ok(moved && entangled && left)
    }

    /// Whether nothing that was begun is unfinished.
    fn is_at_rest(&self) -> bool {
        self.barrier.is_none()
            && self.owed.is_empty()
            && self.replies.between_frames()
            && self.requests.between_commands()
            && self.to_client.is_empty()
            && self.to_upstream.is_empty()
    }

    /// Gives up following the replies: from here on bytes only pass.
    fn relay_from_here(&mut self) {
        self.relay = true;
        self.unguarded = self.shared.guards.as_ref().is_some_and(|guards| guards.enforces());
        self.unwrap = None;
        self.owed.clear();
        self.own_reply = None;
        if let Some(barrier) = self.barrier.take() {
            self.undo(barrier);
            self.rescan = true;
        }
        self.rescan |= !self.held.is_empty();
    }

    /// Closes after [`LINGER`] unless something else does it before.
    fn start_linger(&mut self) {
        let until = Instant::now() + LINGER;
        self.linger.get_or_insert_with(|| Box::pin(sleep_until(until)));
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        match self.linger.as_mut().map(|timer| timer.as_mut().poll(cx)) {
            Some(Poll::Ready(())) if self.client_done => Err(CloseReason::Client),
            Some(Poll::Ready(())) => Err(CloseReason::Quit),
            _ => Ok(()),
        }
    }
}
