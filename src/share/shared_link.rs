//! A connection to the data node on which the commands of many clients go, and how their replies are told apart.
//!
//! Commands go out in the order in which they came, so the replies come in that order: a queue of mailboxes says
//! whose the next ones are. A link is written once a turn of its thread, with what all its clients have sent.

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{
    mailbox::{self, Mailbox, SHARED_HELD},
    patience::Patience,
    sharers::OwingLink,
    sharing::Sharing,
    unblock::unblock,
};
use crate::{
    data::Tenure,
    net::{Outbox, Stream},
    resp::reply::{NextReply, ReplyScanner},
    sync::Mutex,
};

/// Most bytes of commands that wait for the data node to take them. More stay with their clients.
const MOST_UNSENT: usize = 256 * 1024;
/// Most bytes held for a client so that the replies of others behind come through.
const MOST_HELD: usize = 4 << 20;
/// Most links of one pool that are kept though all that is to come over them is for a client that has left.
const MOST_ABANDONED: usize = 64;
/// How often the data node is asked to end what blocks an abandoned link.
const UNBLOCK_AGAIN: Duration = Duration::from_secs(3);
/// Most bytes read at once.
const READ: usize = 64 * 1024;

/// How long others may wait for one client's pipeline. As many commands as are carried out in this time are put on a
/// link at once.
const TURN: Duration = Duration::from_millis(20);

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into_boxed_slice());
}

/// How far a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkStage {
    Opening,
    /// The data node carries out what comes.
    Open,
    Ended,
}

/// The part of a link that its clients see.
pub(super) struct SharedLink {
    state: Mutex<LinkState>,
    tenure: Option<Arc<Tenure>>,
    /// How many links of the pool are kept though their client has left.
    abandoned_of_pool: Arc<AtomicUsize>,
}

struct LinkState {
    stage: LinkStage,
    /// Commands that the link's task has not taken.
    unsent: Vec<u8>,
    /// Whose the next replies are, and how many of them.
    queue: VecDeque<(Arc<Mailbox>, u32)>,
    /// How many have left the queue.
    passed: u64,
    /// The client that nobody else's commands go behind, as it has not taken a large reply.
    owner: Option<Arc<Mailbox>>,
    /// The same for a command that may block, until every reply that its client is owed has come.
    blocker: Option<Arc<Mailbox>>,
    /// The data node is being asked to end what blocks here: nobody else may block meanwhile.
    is_being_unblocked: bool,
    /// Wakes the link's task.
    task: Option<Waker>,
    /// Clients that wait for room.
    writers: Vec<Arc<Mailbox>>,
    /// Clients that have used a link of a data node with guards.
    users: Vec<Weak<Mailbox>>,
    used: Instant,
    /// Since when the next reply is awaited.
    awaited: Instant,
    /// Nothing was awaited before.
    begins: bool,
    /// The shortest time in which a reply has come, which is the way's.
    nearest: Duration,
    /// How long the data node took for each of the last replies, besides the way.
    pace: Duration,
}

impl LinkState {
    fn wake_task(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Has a client woken once there is room.
    fn wait(&mut self, mailbox: &Arc<Mailbox>) {
        if mailbox.begin_waiting() {
            if self.writers.len() == self.writers.capacity() {
                self.writers.retain(|writer| !writer.has_left());
            }
            self.writers.push(mailbox.clone());
        }
    }

    fn wake_writers(&mut self) {
        self.writers.drain(..).for_each(|writer| writer.has_room());
    }

    /// How long the data node takes for the replies that come now, besides the way.
    fn took(&self) -> Duration {
        let nearest = if self.nearest == Duration::MAX { Duration::ZERO } else { self.nearest };
        self.awaited.elapsed().saturating_sub(nearest)
    }

    /// How many commands one client may have on the link at once, at the pace of the last replies.
    fn at_once(&self) -> u32 {
        if self.took() > TURN {
            return mailbox::FEW;
        }
        let many = TURN.as_nanos().checked_div(self.pace.as_nanos()).unwrap_or(u128::MAX);
        u32::try_from(many).unwrap_or(u32::MAX).clamp(mailbox::FEW, mailbox::MANY_AT_ONCE)
    }

    /// Notes that so many replies have come.
    fn note_pace(&mut self, answered: u32) {
        if answered == 0 {
            return;
        }
        self.pace = (self.pace + self.took() / answered) / 2;
        let now = Instant::now();
        if std::mem::take(&mut self.begins) {
            self.nearest = self.nearest.min(now - self.awaited);
        }
        self.awaited = now;
    }

    /// Has no owner any more where that has taken all, or has left with nobody's replies behind its own. It may have gone
    /// to another connection since, and does not say so here.
    fn let_owner_go(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let has_all = owner.is_settled() && owner.held().0 == 0;
        let goes = has_all || owner.has_left() && self.is_all_of(&owner);
        self.owner = (!goes).then_some(owner);
    }

    /// Whether a command of this client may go on the link.
    fn takes(&mut self, mailbox: &Arc<Mailbox>) -> bool {
        self.let_owner_go();
        let queue = &self.queue;
        self.blocker.take_if(|blocker| !queue.iter().any(|(owed, _)| Arc::ptr_eq(owed, blocker)));
        let mut own = self.owner.iter().chain(&self.blocker);
        let is_open = self.stage != LinkStage::Ended && !self.is_being_unblocked;
        is_open && own.all(|client| Arc::ptr_eq(client, mailbox))
    }

    /// Whether the link is the own one of a client that has left, and all that is to come is for that client.
    fn is_abandoned(&self) -> bool {
        let has_left = |client: &Arc<Mailbox>| client.is_useless() && self.is_all_of(client);
        !self.queue.is_empty() && self.owner.iter().chain(&self.blocker).any(has_left)
    }

    /// Whether clients that are there must end with the link.
    fn has_users(&self) -> bool {
        self.users.iter().filter_map(Weak::upgrade).any(|user| !user.has_left())
    }

    /// Whether all replies that are owed are one client's.
    fn is_all_of(&self, mailbox: &Arc<Mailbox>) -> bool {
        self.queue.iter().all(|(owed, _)| Arc::ptr_eq(owed, mailbox))
    }
}

/// The result of handing a command over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The commands will be sent.
    Taken,
    /// There is no room now. The client is woken once there is.
    Full,
    /// The link has ended, or is another client's own.
    Gone,
}

impl SharedLink {
    pub(super) fn new(tenure: Option<Arc<Tenure>>) -> SharedLink {
        let state = LinkState {
            stage: LinkStage::Opening,
            unsent: Vec::new(),
            queue: VecDeque::new(),
            passed: 0,
            owner: None,
            blocker: None,
            is_being_unblocked: false,
            task: None,
            writers: Vec::new(),
            users: Vec::new(),
            used: Instant::now(),
            awaited: Instant::now(),
            begins: false,
            nearest: Duration::MAX,
            pace: Duration::ZERO,
        };
        SharedLink { state: Mutex::new(state), tenure, abandoned_of_pool: Arc::default() }
    }

    /// Makes another link of the same pool.
    pub(super) fn beside(&self, tenure: Option<Arc<Tenure>>) -> SharedLink {
        SharedLink { abandoned_of_pool: self.abandoned_of_pool.clone(), ..SharedLink::new(tenure) }
    }

    /// Whether the link leads to the Redis of this tenure, which has not ended.
    pub(super) fn is_of(&self, tenure: Option<&Arc<Tenure>>) -> bool {
        match (&self.tenure, tenure) {
            (None, None) => true,
            (Some(own), Some(tenure)) => Arc::ptr_eq(own, tenure) && !own.has_ended(),
            _ => false,
        }
    }

    /// Whether the link is open.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().stage == LinkStage::Open
    }

    /// The tenure of the Redis to which the link leads.
    pub(super) fn tenure(&self) -> Option<&Arc<Tenure>> {
        self.tenure.as_ref()
    }

    /// Whether a command of this client may go on the link.
    pub(super) fn takes(&self, mailbox: &Arc<Mailbox>) -> bool {
        self.state.lock().takes(mailbox)
    }

    /// Whether the link is the client's own for now, and all that is owed over it is that client's: any number of its
    /// commands may go on the link then, as nobody waits behind them.
    pub(super) fn is_lent_to(&self, mailbox: &Arc<Mailbox>) -> bool {
        let state = self.state.lock();
        let is_owner = state.owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, mailbox));
        is_owner && state.is_all_of(mailbox)
    }

    /// Hands whole commands over, whose replies `mailbox` will get. `alone`: no other client's command comes behind
    /// them.
    pub(super) fn push(
        &self,
        commands: &[u8],
        count: u32,
        mailbox: &Arc<Mailbox>,
        alone: bool,
    ) -> Pushed {
        let state = &mut *self.state.lock();
        if !state.takes(mailbox) {
            return Pushed::Gone;
        }
        if state.unsent.len() > MOST_UNSENT {
            state.wait(mailbox);
            return Pushed::Full;
        }
        state.unsent.extend_from_slice(commands);
        mailbox.owe(count);
        match state.queue.back_mut() {
            Some((last, owed)) if Arc::ptr_eq(last, mailbox) => *owed += count,
            None => {
                (state.awaited, state.begins) = (Instant::now(), true);
                state.queue.push_back((mailbox.clone(), count));
            }
            _ => state.queue.push_back((mailbox.clone(), count)),
        }
        if alone {
            state.blocker = Some(mailbox.clone());
        }
        state.wake_task();
        Pushed::Taken
    }

    /// Sends a sign of life that has no reply, if the link is open.
    pub(super) fn pulse(&self) {
        let state = &mut *self.state.lock();
        if state.stage == LinkStage::Open && state.unsent.is_empty() {
            state.unsent.extend_from_slice(b"\r\n");
            state.wake_task();
        }
    }

    /// Has the client end with the link.
    pub(super) fn bind(&self, mailbox: &Arc<Mailbox>) {
        let mut state = self.state.lock();
        if state.users.len() == state.users.capacity() {
            state.users.retain(|user| user.strong_count() > 0);
        }
        state.users.push(Arc::downgrade(mailbox));
    }

    /// Notes that a client has taken replies, or has left: the link may have waited for that.
    pub(super) fn look(&self, mailbox: &Arc<Mailbox>) {
        let state = &mut *self.state.lock();
        if state.owner.iter().chain(&state.blocker).any(|client| Arc::ptr_eq(client, mailbox)) {
            state.wake_task();
        }
    }

    /// Notes that the data node has let the link in.
    pub(super) fn opened(&self) {
        let state = &mut *self.state.lock();
        (state.stage, state.awaited) = (LinkStage::Open, Instant::now());
    }

    /// Whether a client waits for what is to come over the link.
    pub(super) fn is_awaited(&self) -> bool {
        self.state.lock().queue.iter().any(|(mailbox, _)| !mailbox.is_useless())
    }

    /// Whether nothing was sent for `time`, nothing is owed, and nobody must end with the link.
    pub(super) fn is_idle(&self, time: Duration) -> bool {
        let state = self.state.lock();
        state.queue.is_empty()
            && state.unsent.is_empty()
            && !state.has_users()
            && state.used.elapsed() > time
    }

    /// Ends the link, and each client with a reply owed: whether its command was carried out is unknown. `words`: the
    /// error that each is told once, where nothing was sent.
    pub(super) fn end(&self, words: &[u8]) {
        let state = &mut *self.state.lock();
        state.stage = LinkStage::Ended;
        state.unsent = Vec::new();
        for (mailbox, _) in state.queue.drain(..) {
            mailbox.end_with(words);
        }
        state.users.drain(..).filter_map(|user| user.upgrade()).for_each(|user| user.end());
        (state.owner, state.blocker) = (None, None);
        state.wake_writers();
    }
}

impl OwingLink for SharedLink {
    fn owed(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.stage == LinkStage::Open)
            .then(|| state.queue.iter().map(|(_, owed)| u64::from(*owed)).sum())
    }
}

/// The part of a link that has its socket.
pub(super) struct LinkPump {
    link: Arc<SharedLink>,
    sharing: Arc<Sharing>,
    stream: Stream,
    outbox: Outbox,
    replies: ReplyScanner,
    /// The frame that has begun is a push, which nobody gets.
    in_push: bool,
    /// What the data node knows the link by, if the proxy needs it.
    id: Option<u64>,
    /// When to look whether an abandoned link may end; the link is then counted in its pool.
    abandoned: Option<Pin<Box<Sleep>>>,
    patience: Patience,
}

impl Drop for LinkPump {
    fn drop(&mut self) {
        self.count_no_more();
    }
}

impl LinkPump {
    pub(super) fn new(
        link: Arc<SharedLink>,
        sharing: Arc<Sharing>,
        (stream, id): (Stream, Option<u64>),
    ) -> LinkPump {
        LinkPump {
            link,
            sharing,
            stream,
            id,
            outbox: Outbox::keeping(READ),
            replies: ReplyScanner::default(),
            in_push: false,
            abandoned: None,
            patience: Patience::default(),
        }
    }

    /// Moves bytes until the link ends. Returns whether the data node has ended it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        BUFFER.with_borrow_mut(|buffer| {
            loop {
                if self.poll_commands(cx).is_err() {
                    return Poll::Ready(true);
                }
                match self.may_read(cx) {
                    MayRead::Yes => {}
                    MayRead::No => return Poll::Pending,
                    MayRead::Useless => return Poll::Ready(false),
                }
                let mut read = ReadBuf::new(buffer);
                match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(_)) => return Poll::Ready(true),
                    Poll::Ready(Ok(())) if read.filled().is_empty() => return Poll::Ready(true),
                    Poll::Ready(Ok(())) => {}
                }
                if !self.deliver(read.filled()) {
                    return Poll::Ready(true);
                }
            }
        })
    }

    /// Sends what clients have handed over.
    fn poll_commands(&mut self, cx: &mut Context<'_>) -> std::io::Result<()> {
        loop {
            if self.outbox.poll_flush(&mut self.stream, cx)?.is_pending() {
                self.link.state.lock().task = Some(cx.waker().clone());
                return Ok(());
            }
            let mut unsent = {
                let state = &mut *self.link.state.lock();
                if state.unsent.is_empty() {
                    match &mut state.task {
                        Some(task) => task.clone_from(cx.waker()),
                        None => state.task = Some(cx.waker().clone()),
                    }
                    return Ok(());
                }
                state.used = Instant::now();
                state.wake_writers();
                std::mem::take(&mut state.unsent)
            };
            self.outbox.send(&mut self.stream, cx, &unsent)?;
            unsent.clear();
            let state = &mut *self.link.state.lock();
            // The memory is used again, unless it is much.
            if state.unsent.is_empty() && unsent.capacity() <= READ {
                state.unsent = unsent;
            }
        }
    }

    /// Whether more replies may be read, by how much their client has not taken.
    fn may_read(&mut self, cx: &mut Context<'_>) -> MayRead {
        let mut state = self.link.state.lock();
        if state.is_abandoned() {
            let has_users = state.has_users();
            drop(state);
            return self.keep_abandoned(cx, has_users);
        }
        state.let_owner_go();
        let owner = state.owner.clone();
        let is_alone = owner.as_ref().is_some_and(|owner| state.is_all_of(owner));
        let turns = state.passed..state.passed + state.queue.len() as u64;
        drop(state);
        self.count_no_more();
        let Some(owner) = owner else {
            self.patience.end();
            return MayRead::Yes;
        };
        let (held, taken) = owner.held();
        match is_alone {
            true => self.patience.end(),
            false => self.patience.note(&owner, taken, turns),
        }
        // Nobody else waits for what comes: the data node holds it until the session takes more.
        let most = match is_alone || mailbox::is_too_much_held() {
            true => SHARED_HELD,
            false => MOST_HELD,
        };
        if held <= most {
            self.patience.rest();
            return MayRead::Yes;
        }
        if is_alone {
            owner.lend();
        } else if self.patience.is_over(cx, taken) {
            owner.give_up();
            return MayRead::Yes;
        }
        MayRead::No
    }

    /// Says what becomes of a link of which all that is to come is for a client that has left. It ends, so that a data
    /// node has no more connections than clients; with other clients that must end with it, it stays, unless there are
    /// many such links.
    fn keep_abandoned(&mut self, cx: &mut Context<'_>, has_users: bool) -> MayRead {
        let most = MOST_ABANDONED + usize::from(self.abandoned.is_some());
        if !has_users || self.link.abandoned_of_pool.load(Ordering::Relaxed) >= most {
            return MayRead::Useless;
        }
        let is_new = self.abandoned.is_none();
        let timer = self.abandoned.get_or_insert_with(|| {
            self.link.abandoned_of_pool.fetch_add(1, Ordering::Relaxed);
            Box::pin(sleep(UNBLOCK_AGAIN))
        });
        let mut is_time = is_new;
        while timer.as_mut().poll(cx).is_ready() {
            *timer = Box::pin(sleep(UNBLOCK_AGAIN));
            is_time = true;
        }
        if is_time {
            self.unblock();
        }
        MayRead::Yes
    }

    /// Has the data node end the command that blocks, if one does.
    fn unblock(&self) {
        let Some(id) = self.id else { return };
        let is_asked = std::mem::replace(&mut self.link.state.lock().is_being_unblocked, true);
        if !is_asked {
            let (link, data) = (self.link.clone(), self.sharing.data.clone());
            drop(tokio::spawn(async move {
                unblock(data, link.tenure.clone(), id).await;
                link.state.lock().is_being_unblocked = false;
            }));
        }
    }

    /// Notes that the link is not abandoned, or ends.
    fn count_no_more(&mut self) {
        if self.abandoned.take().is_some() {
            self.link.abandoned_of_pool.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives replies to those to whom they are owed. Returns `false` if the link cannot go on: what has come is no
    /// reply, or nobody's.
    fn deliver(&mut self, bytes: &[u8]) -> bool {
        let comes_push = |at: usize, replies: &ReplyScanner| {
            replies.between_frames() && bytes.get(at) == Some(&b'>')
        };
        let state = &mut *self.link.state.lock();
        let most = state.at_once();
        let (mut at, mut all_answered) = (0, 0);
        while at < bytes.len() {
            self.in_push |= comes_push(at, &self.replies);
            if self.in_push {
                match self.replies.next(bytes, &mut at) {
                    NextReply::Frame(_) => self.in_push = false,
                    NextReply::End => break,
                    NextReply::Broken => return false,
                }
                self.sharing.metrics.pushes.increment(1);
                continue;
            }
            let Some((mailbox, owed)) = state.queue.front_mut() else { return false };
            let from = at;
            let mut answered = self.replies.skip_flat(bytes, &mut at, *owed);
            if answered < *owed && at < bytes.len() && !comes_push(at, &self.replies) {
                match self.replies.next(bytes, &mut at) {
                    NextReply::Frame(_) => answered += 1,
                    NextReply::End => {}
                    NextReply::Broken => return false,
                }
            }
            let held = mailbox.deliver(&bytes[from..at], answered, most);
            *owed -= answered;
            all_answered += answered;
            if held > SHARED_HELD {
                state.owner = Some(mailbox.clone());
            }
            if *owed == 0 {
                state.queue.pop_front();
                state.passed += 1;
            }
        }
        state.note_pace(all_answered);
        true
    }
}

enum MayRead {
    Yes,
    /// The client must take some first.
    No,
    /// All that is to come is for a client that has left.
    Useless,
}
