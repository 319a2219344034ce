//! The life of a command that must wait for every earlier reply.
//!
//! LOCK, UNLOCK, RENEW and their kin keep a pipeline's order: they begin after every
//! earlier command of the connection has been answered, and what comes after
//! them is sent on only when they are done. AUTH, HELLO and CLIENT REPLY are
//! ordinary commands that only wait, because of what their replies depend on.
//!
//! ```text
//! Drain ─ all earlier replies are in ─┬─ forwarded: a command that only waited, or
//!                                     │  one of ours where the data node is to refuse it
//!                                     ├─ Probe ─ may this client lock this key? ─┐
//!                                     └──────────────────────────────────────────┴─ Run ─ Answer
//! ```

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use super::{
    Session, Step,
    authorize::{self, Permission},
    fences,
    guarded::{Guarded, Told},
    lock_command::{Granted, Left, Running, encode_grant},
    owed::Entry,
    requests::{Pass, READ_AHEAD},
    unwrap::Whose,
};
use crate::{
    command::{
        self, BadRequest, Request,
        operator::{self, Inquiry},
    },
    config::LocksConfig,
    key::{Key, Token},
    lock::Engine,
    metrics::{CloseReason, Operation, Outcome},
    resp::{
        encode,
        request::{Name, Own, ReplyMode},
    },
};

/// A command that waits, and how far it has come. Its bytes, where it has any
/// left, are at the beginning of what the session holds.
#[derive(Debug)]
pub struct Barrier {
    what: What,
    phase: Phase,
    /// When it began to wait.
    since: Instant,
    /// There were earlier replies to wait for.
    waited: bool,
}

#[derive(Debug)]
enum What {
    /// AUTH or HELLO: forwarded after the wait.
    Pass,
    /// CLIENT REPLY: forwarded after the wait, answered or not.
    ClientReply(ReplyMode),
    /// A command that was dropped, because the client must first be told that its
    /// lock is lost.
    Lost,
    /// A write to guarded keys, or a MULTI behind which there may be some.
    Guarded(Guarded),
    /// One of ours.
    Own {
        own: Own,
        /// What its words say, or what is wrong with it whoever asks.
        asked: Result<Asked, BadRequest>,
        /// How many bytes of what is held are its own.
        length: usize,
        /// Replies are off or skipped: it runs, but says nothing.
        silent: bool,
    },
}

/// What a command of ours asks for. That its options are wrong is told only to
/// who may ask.
#[derive(Debug)]
enum Asked {
    /// What is about one lock: all but those.
    Lock { key: Key, request: Result<Request, BadRequest> },
    /// LOCKGATE, or COMMAND about commands of ours.
    Inquiry(Result<Inquiry, BadRequest>),
}

/// A lock just granted, or attached to, whose fence the data node is being told.
struct Raising {
    key: Key,
    fence: u64,
    /// Of a lock granted to this connection: it is given back when this is dropped before.
    undo: Option<(Arc<Engine>, Token)>,
    /// The reply to LOCK or LOCK.ATTACH.
    answer: Vec<u8>,
}

impl fmt::Debug for Raising {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raising({})", self.fence)
    }
}

impl Drop for Raising {
    fn drop(&mut self) {
        if let Some((engine, token)) = self.undo.take() {
            drop(engine.release(self.key.clone(), token));
        }
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is in a box")]
enum Phase {
    /// Waits for earlier replies.
    Drain,
    /// Waits for the replies to so many commands of the proxy's own; the last one tells.
    Probe { missing: usize },
    /// A guarded write is on its way; see [`Guarded`] for how far.
    Guarded,
    /// The nodes are being asked.
    Run(Running),
    /// A lock that guards need was granted; the data node is told its fence, and
    /// then this is the answer.
    Raise(Raising),
    /// Done; this is to be written between two frames.
    Answer(Vec<u8>),
}

impl Barrier {
    /// An ordinary command that only waits.
    pub fn pass(name: Name) -> Box<Barrier> {
        match name {
            Name::ClientReply(mode) => Barrier::new(What::ClientReply(mode)),
            _ => Barrier::new(What::Pass),
        }
    }

    /// A command of ours, with the words behind its name, in `length` bytes.
    pub fn own(
        own: Own,
        words: &[Cow<'_, [u8]>],
        length: usize,
        locks: &LocksConfig,
    ) -> Box<Barrier> {
        let asked = command::check_arity(own, words.len() + 1).map(|()| match own {
            Own::Lockgate => Asked::Inquiry(operator::lockgate(words)),
            // One about commands of Redis too has been forwarded.
            Own::Command => Asked::Inquiry(operator::command(words).ok_or(BadRequest::Syntax)),
            Own::Lock | Own::Unlock | Own::Renew | Own::Attach | Own::Detach => {
                let key = command::full_key(&words[0], locks);
                let request = command::parse(own, &key, words, locks);
                Asked::Lock { key, request }
            }
        });
        Barrier::new(What::Own { own, asked, length, silent: false })
    }

    /// A command of ours whose bytes were dropped.
    pub fn refused(own: Own, error: BadRequest) -> Box<Barrier> {
        Barrier::new(What::Own { own, asked: Err(error), length: 0, silent: false })
    }

    /// The answer to a command dropped in favour of the news.
    pub fn lost() -> Box<Barrier> {
        Barrier::new(What::Lost)
    }

    /// A write that guards are about, or MULTI.
    pub(super) fn of(guarded: Guarded) -> Box<Barrier> {
        Barrier::new(What::Guarded(guarded))
    }

    /// Whose reply comes next.
    pub(super) fn whose(&mut self) -> Whose {
        self.guarded().map_or(Whose::Exec, |guarded| guarded.whose())
    }

    /// What has been begun goes on as far as [`Guarded`] knows.
    pub(super) fn goes_on(mut self: Box<Barrier>) -> Box<Barrier> {
        self.phase = Phase::Guarded;
        self
    }

    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
        self.guarded().map_or(Poll::Pending, |guarded| guarded.poll_told(cx))
    }

    /// It, if it is one.
    pub(super) fn guarded(&mut self) -> Option<&mut Guarded> {
        match &mut self.what {
            What::Guarded(guarded) => Some(guarded),
            _ => None,
        }
    }

    /// Whether the client is told nothing.
    pub(super) fn is_silent(&mut self) -> bool {
        self.guarded().is_some_and(|guarded| guarded.is_silent())
    }

    /// Whether all that is missing are replies for the client.
    fn is_telling(&self) -> bool {
        matches!(&self.what, What::Guarded(guarded) if guarded.is_telling())
    }

    /// Whether it is a LOCK that waits in line.
    pub fn waits_in_line(&self) -> bool {
        matches!(&self.phase, Phase::Run(running) if running.waits_in_line())
    }

    /// Whether it is a LOCK.
    pub fn is_lock(&self) -> bool {
        matches!(self.what, What::Own { own: Own::Lock, .. })
    }

    fn new(what: What) -> Box<Barrier> {
        let since = Instant::now();
        Box::new(Barrier { what, phase: Phase::Drain, since, waited: false })
    }
}

/// The metrics' word for a command of ours.
fn operation(own: Own) -> Option<Operation> {
    match own {
        Own::Lock => Some(Operation::Lock),
        Own::Unlock => Some(Operation::Unlock),
        Own::Renew => Some(Operation::Renew),
        Own::Attach => Some(Operation::Attach),
        Own::Detach => Some(Operation::Detach),
        Own::Lockgate | Own::Command => None,
    }
}

impl Session {
    /// Starts the wait for all replies owed so far.
    pub(super) fn wait(&mut self, mut barrier: Box<Barrier>) {
        let metrics = &self.shared.metrics;
        if let What::Own { own, .. } = barrier.what {
            match own {
                Own::Lock => &metrics.commands_lock,
                Own::Unlock => &metrics.commands_unlock,
                Own::Renew => &metrics.commands_renew,
                Own::Attach => &metrics.commands_attach,
                Own::Detach => &metrics.commands_detach,
                Own::Lockgate | Own::Command => &metrics.commands_lockgate,
            }
            .increment(1);
            if !self.owed.is_empty() {
                barrier.waited = true;
                metrics.barrier_waits.increment(1);
            }
        }
        self.barrier = Some(barrier);
    }

    /// Whether replies must be read for the barrier to get on, even if the
    /// client does not take them.
    pub(super) fn barrier_needs_replies(&self) -> bool {
        self.barrier.as_ref().is_some_and(|barrier| match barrier.phase {
            // Else it begins before anything more has to be read.
            Phase::Drain => !self.owed.is_empty(),
            Phase::Probe { .. } | Phase::Raise(_) => true,
            // The replies to the writes themselves may be large, and are not held.
            Phase::Guarded => {
                !barrier.is_telling()
                    && !self.unwrap.as_ref().is_some_and(|unwrap| unwrap.is_passing())
            }
            Phase::Run(_) | Phase::Answer(_) => false,
        })
    }

    /// Whether an answer is on its way that needs nothing of the data node any more.
    pub(super) fn answer_is_near(&self) -> bool {
        // Nothing can be placed behind the beginning of a frame that has no end.
        self.replies.between_frames()
            && self.barrier.as_ref().is_some_and(|barrier| {
                !barrier.is_lock() && matches!(barrier.phase, Phase::Run(_) | Phase::Answer(_))
            })
    }

    /// Moves the barrier as far as it goes.
    pub(super) fn poll_barrier(&mut self, cx: &mut Context<'_>) -> Step {
        let mut moved = false;
        while let Some(barrier) = &mut self.barrier {
            let told = match &mut barrier.phase {
                Phase::Drain if self.owed.is_empty() => None,
                Phase::Run(running) => match running.poll_answer(cx) {
                    Poll::Ready(told) => Some(told),
                    Poll::Pending => return Ok(moved),
                },
                Phase::Answer(answer) if self.replies.between_frames() => {
                    if self.to_client.send(&mut self.client, cx, answer).is_err() {
                        self.barrier = None;
                        return Err(CloseReason::Client);
                    }
                    None
                }
                Phase::Guarded => match barrier.poll_told(cx) {
                    Poll::Ready(told) => {
                        let Some(barrier) = self.barrier.take() else { continue };
                        self.guard_was_told(barrier, told);
                        moved = true;
                        continue;
                    }
                    Poll::Pending => return Ok(moved),
                },
                Phase::Drain | Phase::Probe { .. } | Phase::Raise(_) | Phase::Answer(_) => {
                    return Ok(moved);
                }
            };
            moved = true;
            let Some(mut barrier) = self.barrier.take() else { continue };
            match (&mut barrier.phase, told) {
                (Phase::Run(running), Some(told)) => {
                    let (answer, granted) = self.finish_running(running, told, cx.waker());
                    match granted {
                        Some(lock) if self.is_guard_lock(&lock.key) => {
                            self.begin_raise(barrier, lock, answer);
                        }
                        _ => self.answer(barrier, answer),
                    }
                }
                (Phase::Answer(_), _) => self.end_barrier(&barrier),
                _ => self.begin(barrier),
            }
        }
        Ok(moved)
    }

    /// All earlier replies are in, so the state of the connection is known.
    fn begin(&mut self, barrier: Box<Barrier>) {
        let refused_here = self.state.multi
            || self.blind_multi
            || self.state.monitor
            || self.state.is_resp2_subscriber();
        match barrier.what {
            What::Pass => self.pass_held(Pass::Counted),
            What::Lost => self.begin_lost(barrier),
            What::Guarded(_) => self.begin_guarded(barrier),
            What::ClientReply(mode) => self.begin_client_reply(mode, refused_here, barrier),
            What::Own { own, .. } => {
                if barrier.waited {
                    let waited = barrier.since.elapsed().as_secs_f64();
                    self.shared.metrics.barrier_wait_seconds.record(waited);
                }
                if refused_here {
                    self.refuse_by_forwarding(own, &barrier);
                } else {
                    self.begin_own(barrier);
                }
            }
        }
    }

    /// Lets the data node refuse a command of ours, in its place and in its own
    /// words, and mark a transaction as failed.
    fn refuse_by_forwarding(&mut self, own: Own, barrier: &Barrier) {
        if matches!(barrier.what, What::Own { length: 0, .. }) {
            // Its own bytes were dropped; the bare name does as well.
            let mut bytes = Vec::new();
            encode::command(&mut bytes, &[command::name(own).as_bytes()]);
            self.to_upstream.push(&bytes);
            self.note(Name::Own(own), 1);
            self.end_barrier(barrier);
        } else {
            self.pass_held(Pass::Counted);
        }
    }

    /// A transaction must not go on without the command that was dropped.
    fn begin_lost(&mut self, mut barrier: Box<Barrier>) {
        if self.state.multi || self.blind_multi {
            self.ask(|out| encode::command(out, &[b"LOCK"]));
            barrier.phase = Phase::Probe { missing: 1 };
            self.barrier = Some(barrier);
        } else {
            self.answer_lost(barrier);
        }
    }

    /// Whether writes to some keys need this lock.
    fn is_guard_lock(&self, key: &Key) -> bool {
        // One whose client is told nothing is told to the data node with its first write.
        self.reply_mode == ReplyMode::On
            && self.shared.guards.as_ref().is_some_and(|guards| {
                key.get(self.config.locks.prefix.len()..).is_some_and(|lock| guards.is_needed(lock))
            })
    }

    /// Tells the data node the fence of a lock just granted or attached to, before the client is told
    /// of the lock: from then on no earlier holder can write any more.
    fn begin_raise(&mut self, mut barrier: Box<Barrier>, lock: Granted, answer: Vec<u8>) {
        let Granted { key, token, fence, attached } = lock;
        let ttl = self.config.locks.fence_ttl;
        self.ask(|out| fences::raise(out, &key, fence, ttl));
        let undo = (!attached).then(|| (self.shared.engine.clone(), token));
        barrier.phase = Phase::Raise(Raising { key, fence, undo, answer });
        self.barrier = Some(barrier);
    }

    fn raise_answered(&mut self, barrier: Box<Barrier>, mut raising: Raising, reply: &[u8]) {
        let error = match (fences::read_fence(reply), fences::read_error(reply)) {
            (Some(seen), _) if seen <= raising.fence => {
                // The data node took its time, which is the lock's time too.
                match self.tokens.left(&raising.key, raising.fence, Instant::now()) {
                    None => {
                        b"NOTHELD the lock had run out before the data node took its fence, try again"
                            .to_vec()
                    }
                    Some((token, left)) => {
                        let mut answer = std::mem::take(&mut raising.answer);
                        if let Left::For(validity) = left {
                            answer.clear();
                            encode_grant(&mut answer, token, raising.fence, validity);
                        }
                        self.tokens.raised(&raising.key, raising.fence);
                        raising.undo = None;
                        return self.answer(barrier, answer);
                    }
                }
            }
            (Some(seen), _) if raising.undo.is_none() => format!(
                "FENCED the lock was granted again since, with fence {seen} after {}",
                raising.fence
            )
            .into_bytes(),
            (Some(seen), _) => format!(
                "FENCED the data node has seen fence {seen} of this lock, more than {}, try again",
                raising.fence
            )
            .into_bytes(),
            (None, Some(error)) => error,
            (None, None) => b"ERR the data node did not take the lock's fence".to_vec(),
        };
        // Nothing could be written under it. One granted here is given back.
        self.tokens.forget(&raising.key, raising.fence);
        drop(raising);
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, &error);
        self.answer(barrier, answer);
    }

    fn answer_lost(&mut self, barrier: Box<Barrier>) {
        let mut answer = Vec::new();
        let lost = self.lost.take().unwrap_or_default();
        encode::error(&mut answer, &lost);
        self.answer(barrier, answer);
    }

    /// Scans what is held again, its first command going through.
    pub(super) fn pass_held(&mut self, pass: Pass) {
        self.pass_next = Some(pass);
        self.rescan = true;
    }

    fn begin_client_reply(
        &mut self,
        mode: ReplyMode,
        refused_here: bool,
        mut barrier: Box<Barrier>,
    ) {
        match (self.reply_mode, mode) {
            // Answered, with OK, an error or QUEUED.
            (ReplyMode::On, ReplyMode::On) => self.pass_held(Pass::Counted),
            (ReplyMode::On, _) if refused_here => self.pass_held(Pass::Counted),
            // It will be obeyed in silence if CLIENT REPLY is allowed at all.
            (ReplyMode::On, _) => {
                self.ask(|out| encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]));
                barrier.phase = Phase::Probe { missing: 1 };
                self.barrier = Some(barrier);
            }
            // Queued without a word: nobody will tell.
            _ if self.blind_multi => self.relay_from_here(),
            (_, ReplyMode::On) => {
                self.reply_mode = ReplyMode::On;
                self.pass_held(Pass::Counted);
            }
            // SKIP has no effect while replies are off.
            (ReplyMode::Off, _) => self.pass_held(Pass::Unanswered(ReplyMode::Off)),
            (ReplyMode::Skip, mode) => self.pass_held(Pass::Unanswered(mode)),
        }
    }

    /// Sends a command of the proxy's own whose reply the client does not see.
    pub(super) fn ask(&mut self, command: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        command(&mut bytes);
        self.to_upstream.push(&bytes);
        // Nothing else is owed, so there is room.
        let _ = self.owed.push(Entry::Ours);
    }

    fn begin_own(&mut self, mut barrier: Box<Barrier>) {
        let What::Own { own, asked, length, silent } = &mut barrier.what else { return };
        *silent = self.reply_mode != ReplyMode::On;
        if self.reply_mode == ReplyMode::Skip {
            // Uses the flag up, as any command would.
            let bytes = self.held[..*length].to_vec();
            self.to_upstream.push(if bytes.is_empty() { b"LOCK\r\n" } else { &bytes });
            self.reply_mode = ReplyMode::On;
        }
        let key = match asked {
            Ok(Asked::Lock { key, .. }) => Some(&*key),
            Ok(Asked::Inquiry(_)) => None,
            Err(error) => {
                let error = error.to_string();
                return self.answer_error(barrier, &error, Outcome::BadRequest);
            }
        };
        // A flag for the next command only must be used up; a silent one must
        // learn that earlier commands are done.
        let ask = *silent || std::mem::take(&mut self.next_only);
        // Read once for all that begins with it.
        let now = if barrier.waited { Instant::now() } else { barrier.since };
        let remembered = key.is_some_and(|key| self.permissions.remembered(key, now));
        if !ask && remembered {
            return self.carry_out(barrier, now);
        }
        let is_about_commands = *own == Own::Command;
        let mut missing = 1;
        if self.reply_mode == ReplyMode::Off {
            self.ask(|out| encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]));
            missing = 2;
        }
        self.ask(|out| match key {
            Some(key) => authorize::probe(out, key),
            None if is_about_commands => encode::command(out, &[b"COMMAND", b"COUNT"]),
            None => authorize::probe_operator(out),
        });
        barrier.phase = Phase::Probe { missing };
        self.barrier = Some(barrier);
    }

    /// A reply to [`Session::ask`] has come.
    pub(super) fn probe_answered(&mut self, reply: &[u8]) {
        let Some(mut barrier) = self.barrier.take() else { return };
        match std::mem::replace(&mut barrier.phase, Phase::Drain) {
            Phase::Guarded => {
                barrier.phase = Phase::Guarded;
                return self.guard_answered(barrier, reply);
            }
            Phase::Raise(raising) => return self.raise_answered(barrier, raising, reply),
            phase => barrier.phase = phase,
        }
        if let Phase::Probe { missing } = &mut barrier.phase
            && *missing > 1
        {
            *missing -= 1;
            self.barrier = Some(barrier);
            return;
        }
        match &barrier.what {
            What::ClientReply(mode) if reply.starts_with(b"+OK") => {
                self.pass_held(Pass::Unanswered(*mode));
            }
            What::ClientReply(_) | What::Pass => self.pass_held(Pass::Counted),
            // A reply that nobody asked for: nothing is known any more.
            What::Guarded(_) => self.relay_from_here(),
            What::Lost => self.answer_lost(barrier),
            What::Own { asked, .. } => {
                if self.reply_mode == ReplyMode::Off {
                    let mut off = Vec::new();
                    encode::command(&mut off, &[b"CLIENT", b"REPLY", b"OFF"]);
                    self.to_upstream.push(&off);
                }
                match authorize::read(reply) {
                    Permission::Refused(error) => {
                        self.answer_error(barrier, &error, Outcome::Denied);
                    }
                    Permission::Granted => {
                        let now = Instant::now();
                        if let Ok(Asked::Lock { key, .. }) = asked {
                            self.permissions.remember(key, now);
                        }
                        self.carry_out(barrier, now);
                    }
                }
            }
        }
    }

    /// The client may: asks the nodes, or tells what it wants to know.
    fn carry_out(&mut self, mut barrier: Box<Barrier>, now: Instant) {
        let What::Own { asked: Ok(asked), .. } = &barrier.what else { return };
        let error = match asked {
            Asked::Inquiry(Ok(inquiry)) => {
                let answer = self.tell(inquiry);
                return self.answer(barrier, answer);
            }
            Asked::Lock { key, request: Ok(request) } => {
                match self.start_running(key, request, now) {
                    Ok(running) => {
                        barrier.phase = Phase::Run(running);
                        self.barrier = Some(barrier);
                        return;
                    }
                    Err(error) => error.to_string(),
                }
            }
            Asked::Inquiry(Err(error)) | Asked::Lock { request: Err(error), .. } => {
                error.to_string()
            }
        };
        self.answer_error(barrier, &error, Outcome::BadRequest);
    }

    fn answer_error(&mut self, barrier: Box<Barrier>, error: &str, outcome: Outcome) {
        if let What::Own { own, .. } = barrier.what
            && let Some(operation) = operation(own)
        {
            self.shared.metrics.lock_request(operation, outcome, barrier.since.elapsed());
        }
        let mut answer = Vec::new();
        encode::error(&mut answer, error);
        self.answer(barrier, answer);
    }

    /// Answers at the next boundary between frames, or not at all where
    /// replies are off.
    pub(super) fn answer(&mut self, mut barrier: Box<Barrier>, answer: Vec<u8>) {
        if matches!(barrier.what, What::Own { silent: true, .. })
            || barrier.is_silent()
            || answer.is_empty()
        {
            self.end_barrier(&barrier);
        } else {
            barrier.phase = Phase::Answer(answer);
            self.barrier = Some(barrier);
        }
    }

    /// The command is done: what came behind it goes on.
    fn end_barrier(&mut self, barrier: &Barrier) {
        let length = match barrier.what {
            What::Own { length, .. } => length,
            What::Lost => 0,
            What::Guarded(ref guarded) => guarded.length(),
            What::Pass | What::ClientReply(_) => return,
        };
        // With so much held, nothing was read any more.
        let stopped = self.held.len() >= READ_AHEAD;
        self.held.drain(..length.min(self.held.len()));
        self.rescan = stopped || !self.held.is_empty();
    }

    /// Gives the barrier up. A LOCK under way is released on every node when
    /// its future is dropped.
    pub(super) fn abort_barrier(&mut self) {
        if let Some(barrier) = self.barrier.take()
            && let What::Own { own, .. } = barrier.what
            && let Some(operation) = operation(own)
        {
            let took = barrier.since.elapsed();
            self.shared.metrics.lock_request(operation, Outcome::Aborted, took);
        }
    }
}
