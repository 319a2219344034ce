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
//!
//! - `own`: a command of ours, from its turn on.
//! - `raise`: what is told to the data node of a lock that guards need.
//! - `undo`: what becomes of a LOCK that was granted and is not answered.

mod own;
mod raise;
mod undo;

use std::task::{Context, Poll};

use self::{
    own::{Asked, operation},
    raise::{Outbidding, Raising},
    undo::Undo,
};
use super::{
    Session, Step,
    authorize::{self, Permission},
    guarded::{Guarded, Told},
    lock_command::Running,
    lost::Refused,
    metrics::Outcome,
    owed::Entry,
    requests::{Pass, READ_AHEAD},
    unwrap::Whose,
};
use crate::{
    clock::Instant,
    command::BadRequest,
    key::Key,
    resp::{
        encode,
        name::{Name, Own, ReplyMode},
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
    /// Of a LOCK that was granted: the client does not know it yet.
    undo: Option<Undo>,
}

#[derive(Debug)]
enum What {
    /// AUTH or HELLO: forwarded after the wait.
    Pass,
    /// CLIENT REPLY: forwarded after the wait, answered or not.
    ClientReply(ReplyMode),
    /// Commands that were dropped, because the client must first be told that its
    /// lock is lost.
    Lost(Refused),
    /// A large command behind it, of a client that may not have said who it is.
    Identify,
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
    /// The data node has seen a larger one: the lock nodes raise theirs beyond it.
    Outbid(Outbidding),
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

    /// The answer to commands dropped in favour of the news.
    pub fn lost(refused: Refused) -> Box<Barrier> {
        Barrier::new(What::Lost(refused))
    }

    /// Whether it is a LOCK of that key whose fence the data node is being told.
    pub(super) fn is_raising(&self, key: &Key) -> bool {
        match &self.phase {
            Phase::Raise(raising) => raising.is_of(key),
            Phase::Outbid(outbidding) => outbidding.is_of(key),
            _ => false,
        }
    }

    /// Whether it is to be looked at again where it stands, at the beginning of what is held.
    fn is_held(&self) -> bool {
        match &self.what {
            What::Pass | What::ClientReply(_) | What::Identify => true,
            What::Own { length, .. } => *length > 0,
            What::Guarded(guarded) => guarded.is_held(),
            What::Lost(_) => false,
        }
    }

    /// A write that guards are about, or MULTI.
    pub(super) fn of(guarded: Guarded) -> Box<Barrier> {
        Barrier::new(What::Guarded(guarded))
    }

    /// A question whether the client has said who it is.
    pub(super) fn identify() -> Box<Barrier> {
        Barrier::new(What::Identify)
    }

    /// It has been asked.
    pub(super) fn probes(mut self: Box<Barrier>) -> Box<Barrier> {
        self.phase = Phase::Probe { missing: 1 };
        self
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

    /// Whether the lock nodes are being asked.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Run(_))
    }

    /// Whether it is a LOCK.
    pub fn is_lock(&self) -> bool {
        matches!(self.what, What::Own { own: Own::Lock, .. })
    }

    fn new(what: What) -> Box<Barrier> {
        let since = Instant::now();
        Box::new(Barrier { what, phase: Phase::Drain, since, waited: false, undo: None })
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
        if self.client_done {
            // Each has its time: many that are each done within it are not cut off.
            self.linger = None;
            self.start_linger();
        }
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
            Phase::Run(_) | Phase::Outbid(_) | Phase::Answer(_) => false,
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
                Phase::Outbid(outbidding) => match outbidding.poll_raised(cx) {
                    Poll::Ready(raised) => {
                        moved = true;
                        if let Some(barrier) = self.barrier.take() {
                            self.outbid_answered(barrier, raised);
                        }
                        continue;
                    }
                    Poll::Pending => return Ok(moved),
                },
                // A client that does not read its answers gets no more of them.
                Phase::Answer(answer)
                    if self.replies.between_frames() && self.to_client.len() < READ_AHEAD =>
                {
                    let answer = std::mem::take(answer);
                    self.note_told();
                    if let Err(error) = self.to_client.send(&mut self.client, cx, &answer) {
                        return Err(self.client_failed(&error));
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
                    barrier.undo = granted.as_ref().and_then(|lock| {
                        let engine = self.shared.engine.clone();
                        lock.is_new.then(|| Undo::new(engine, lock))
                    });
                    match granted {
                        Some(lock) if self.is_guard_lock(&lock.key) => {
                            self.begin_raise(barrier, lock, answer);
                        }
                        _ => self.answer(barrier, answer),
                    }
                }
                (Phase::Answer(_), _) => self.end_barrier(barrier),
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
            || self.state.quit
            || self.state.is_resp2_subscriber();
        let barrier = match self.has_untold_news() && !self.is_told_by(&barrier) {
            // It is refused when it is looked at again.
            true if barrier.is_held() => return self.rescan = true,
            true => Barrier::lost(Refused::one(Name::Other)),
            false => barrier,
        };
        match barrier.what {
            What::Pass => self.pass_held(Pass::Counted),
            What::Lost(refused) => self.begin_lost(barrier, refused),
            What::Identify => self.begin_identify(barrier),
            What::Guarded(_) => self.begin_guarded(barrier),
            What::ClientReply(mode) => self.begin_client_reply(mode, refused_here, barrier),
            What::Own { own, .. } => {
                if barrier.waited {
                    let waited = barrier.since.elapsed().as_secs_f64();
                    self.shared.metrics.barrier_wait_seconds.record(waited);
                }
                if refused_here {
                    self.refuse_by_forwarding(own, barrier);
                } else {
                    self.begin_own(barrier);
                }
            }
        }
    }

    /// Whether its answer tells the client of the loss.
    fn is_told_by(&self, barrier: &Barrier) -> bool {
        match &barrier.what {
            What::Lost(_) => true,
            What::Own { asked: Ok(asked), .. } => {
                asked.given_back().is_some_and(|(key, token)| self.was_lost(key, token))
            }
            _ => false,
        }
    }

    /// A transaction must not go on without the command that was dropped, nor stay open
    /// where that was to end it.
    fn begin_lost(&mut self, mut barrier: Box<Barrier>, refused: Refused) {
        if self.state.multi || self.blind_multi {
            let command: &[u8] = if refused.ends_transaction { b"DISCARD" } else { b"LOCK" };
            self.ask(|out| encode::command(out, &[command]));
            barrier.phase = Phase::Probe { missing: 1 };
            self.barrier = Some(barrier);
        } else {
            let answer = self.lost_answer(refused.count);
            self.answer(barrier, answer);
        }
    }

    /// What the transaction was to be told has come back.
    fn lost_in_multi(&mut self, barrier: Box<Barrier>, refused: Refused, reply: &[u8]) {
        if refused.ends_transaction && reply.starts_with(b"+OK") {
            (self.state.multi, self.state.watching, self.blind_multi) = (false, false, false);
            self.armed = None;
            if std::mem::take(&mut self.auth_queued) {
                self.permissions.forget();
            }
        }
        let answer = self.lost_answer(refused.count);
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
            What::Lost(refused) => {
                let refused = *refused;
                self.lost_in_multi(barrier, refused, reply);
            }
            What::Identify => self.identified(reply),
            What::Own { own, asked, .. } => {
                let question = match own {
                    Own::Lockgate => authorize::Asked::Operator,
                    Own::Command => authorize::Asked::Commands,
                    _ => authorize::Asked::Lock,
                };
                if self.reply_mode == ReplyMode::Off {
                    let mut off = Vec::new();
                    encode::command(&mut off, &[b"CLIENT", b"REPLY", b"OFF"]);
                    self.to_upstream.push(&off);
                }
                match authorize::read(question, reply) {
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

    /// Answers at the next boundary between frames, or not at all where
    /// replies are off.
    pub(super) fn answer(&mut self, mut barrier: Box<Barrier>, answer: Vec<u8>) {
        self.unheard = true;
        if matches!(barrier.what, What::Own { silent: true, .. })
            || barrier.is_silent()
            || answer.is_empty()
        {
            self.note_told();
            self.end_barrier(barrier);
        } else {
            barrier.phase = Phase::Answer(answer);
            self.barrier = Some(barrier);
        }
    }

    /// The command is done: what came behind it goes on.
    fn end_barrier(&mut self, mut barrier: Box<Barrier>) {
        if let Some(undo) = barrier.undo.take() {
            undo.disarm();
        }
        let length = match barrier.what {
            What::Own { length, .. } => length,
            What::Lost(_) => 0,
            What::Guarded(ref guarded) => guarded.length(),
            What::Pass | What::ClientReply(_) | What::Identify => return,
        };
        if self.client_done {
            self.linger = None;
        }
        // With so much held, nothing was read any more.
        let stopped = self.held.len() >= READ_AHEAD;
        self.held.drain(..length.min(self.held.len()));
        self.rescan = stopped || !self.held.is_empty();
    }

    /// Gives the barrier up. A LOCK under way is released on every node when
    /// its future is dropped.
    pub(super) fn abort_barrier(&mut self) {
        let Some(barrier) = self.barrier.take() else { return };
        if let What::Own { own, .. } = barrier.what
            && let Some(operation) = operation(own)
        {
            let took = barrier.since.elapsed();
            self.shared.metrics.lock_request(operation, Outcome::Aborted, took);
        }
        self.undo(barrier);
    }

    /// Drops a barrier. What a LOCK that was not answered has taken is given back.
    pub(super) fn undo(&mut self, mut barrier: Box<Barrier>) {
        if let Some(undo) = barrier.undo.take() {
            undo.undo(&mut self.tokens);
        }
    }
}
