//! A session without its sockets: bytes in, bytes out, questions out, answers in.
//!
//! [`Core`] knows nothing of sockets, tasks or futures, so it also runs in the simulation and
//! between two byte strings. Methods are of four kinds:
//!
//! - Events: [`Core::client_sent`], [`Core::client_closed`], [`Core::data_sent`],
//!   [`Core::data_closed`], [`Core::answer`], [`Core::take_losses`].
//! - Progress after an event: [`Core::go_on`], [`Core::look_again`].
//! - Wishes to the caller: [`Core::question`], [`Core::needs_replies`], [`Core::linger`], and the
//!   two outboxes.
//! - State: `is_…` and `has_…`.
//!
//! Bytes that pass are not copied: `client_sent` and `data_sent` return the part of their argument
//! that the caller sends on behind the outbox.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    attempts::InTheWay,
    desk::Desk,
    dropping::Dropping,
    filter::{Filter, Whose},
    gather::Gather,
    idiom_look::IdiomLook,
    jobs::{Answer, Answering, Job, Ours, Pass, Progress, Question, Waits, When},
    loss_news::Refused,
    notes::Noted,
    planted::{self, PlantedFault},
    session_metrics::{CloseReason, Outcome},
    unread::UnreadShare,
};
use crate::{
    clock::Instant,
    cluster::rewrite::may_redirect,
    config::OnLost,
    data::FrontView,
    key::Key,
    lock::LossKind,
    log_text::shown,
    net::Outbox,
    resp::{
        encode,
        name::{Name, Own, ReplyMode},
        reply::ReplyScanner,
        request::RequestScanner,
    },
};

/// Most bytes read ahead while a command waits, so that a client's FIN behind them is seen.
pub(super) const READ_AHEAD: usize = 64 * 1024;
/// How long a connection stays open after a QUIT whose replies are off. Once the client has hung
/// up, each command that waits, such as an UNLOCK behind a blocked command, gets this time too.
const LINGER: Duration = Duration::from_secs(1);

/// A session without its sockets.
pub(super) struct Core {
    pub(super) desk: Desk,
    pub(super) turn: Turn,
    pub(super) question: Asking,
    pub(super) tracking: Tracking,
    /// Why the connection ends once it is [`Tracking::Closing`].
    pub(super) closing: CloseReason,
    /// The scanner that finds where the client's commands end.
    pub(super) requests: RequestScanner,
    /// The look at commands on adopted keys. `None`: there are no adopt rules.
    pub(super) idiom_look: Option<Box<IdiomLook>>,
    /// Bytes read from the client so far.
    pub(super) read: u64,
    /// The client sends no more.
    pub(super) client_done: bool,
    /// The scanner that finds where the data node's replies end.
    pub(super) replies: ReplyScanner,
    /// Filter of the reply being received, unless the reply passes unchanged.
    pub(super) filter: Option<Filter>,
    pub(super) to_client: Outbox,
    /// This session's share of what is held for clients that do not read, if it holds much.
    pub(super) unread: Option<Box<UnreadShare>>,
    /// When to close the connection, whatever is still missing.
    pub(super) linger: Option<tokio::time::Instant>,
    /// Set when the proxy answers a command itself: the data node hears nothing from the client and may close it as
    /// idle.
    pub(super) unheard: bool,
}

/// Bytes that were unsent, and the range of them to send to the data node.
type Looked = (Vec<u8>, Range<usize>);

/// The owner of the floor.
#[derive(Default)]
pub(super) enum Turn {
    /// The client: its commands are forwarded.
    #[default]
    Client,
    /// Nothing yet: the unsent bytes are to be scanned again.
    Again(First),
    /// A command whose bytes are dropped as they arrive.
    Dropping(Dropping),
    /// A large command that must arrive whole before guards judge it.
    Gathering(Box<Gather>),
    /// A command that waits for earlier replies.
    Draining(Box<dyn Waits>, When),
    /// A command that has begun.
    Job(Box<dyn Job>),
    /// A command that is done: its answer waits to be written between two frames.
    Answering(Box<Answering>),
}

/// Stage of the question of the command that has the floor.
pub(super) enum Asking {
    /// No question.
    Nothing,
    /// A question that is not asked yet.
    Now(Box<Question>),
    /// A question that was asked and is not answered.
    Waits,
}

/// How the first of the unsent commands goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// Judged as any other command.
    Anew,
    /// Forwarded: the command has waited.
    Pass(Pass),
    /// Refused: the command was being gathered, and other clients were given its room.
    NoRoom,
    /// Refused by the data node's own error, as it has not let the client in.
    Stranger,
}

/// Whether replies are matched to commands (docs/design/forwarding.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracking {
    /// Each reply is matched to its command.
    Matched,
    /// Matching was given up: all bytes pass untouched, even LOCK, which the data node refuses.
    Relayed,
    /// As `Relayed`, but no more client bytes are forwarded: there are rules or a front, and the data node refuses
    /// what the client has sent.
    Muted,
    /// The connection is to be closed, for the reason in [`Core::closing`].
    Closing,
}

impl Core {
    pub(super) fn new(desk: Desk) -> Core {
        let idiom_look = IdiomLook::of(&desk);
        Core::with(desk, idiom_look)
    }

    pub(super) fn with(desk: Desk, idiom_look: Option<Box<IdiomLook>>) -> Core {
        Core {
            idiom_look,
            desk,
            turn: Turn::Client,
            question: Asking::Nothing,
            tracking: Tracking::Matched,
            closing: CloseReason::Unguarded,
            requests: RequestScanner::default(),
            read: 0,
            client_done: false,
            replies: ReplyScanner::default(),
            filter: None,
            to_client: Outbox::default(),
            unread: None,
            linger: None,
            unheard: false,
        }
    }

    /// Shows the client the nodes of a cluster as `view` does.
    pub(super) fn show(&mut self, view: Arc<FrontView>) {
        self.desk.view = Some(view);
        self.desk.owed.look_into_transactions();
        self.replies.stop_at_redirections();
    }

    /// Whether a command has the floor: client bytes stay unsent meanwhile.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.turn, Turn::Draining(..) | Turn::Job(_) | Turn::Answering(_))
    }

    /// Whether the unsent bytes are to be scanned again.
    #[inline]
    pub(super) fn must_look_again(&self) -> bool {
        matches!(self.turn, Turn::Again(_))
    }

    /// Whether a LOCK or MLOCK has the floor.
    pub(super) fn is_lock(&self) -> bool {
        self.ours().is_some_and(|ours| ours.own.takes_locks() && ours.adopted.is_none())
    }

    /// Whether a LOCK that waits in line has the floor.
    pub(super) fn waits_in_line(&self) -> bool {
        matches!(&self.turn, Turn::Job(job) if job.waits_in_line())
    }

    /// Whether the command that has the floor has waited for earlier replies longer than a client that has hung up is
    /// waited for.
    pub(super) fn has_long_waited_for_its_place(&self) -> bool {
        matches!(&self.turn, Turn::Draining(_, when) if when.since.elapsed() >= LINGER)
    }

    /// Whether what has the floor ends at once when the client hangs up.
    pub(super) fn is_given_up_by_leaving(&self) -> bool {
        self.is_lock() || self.is_resting()
    }

    /// Whether an adopted command waits for more lock nodes to come back.
    pub(super) fn is_resting(&self) -> bool {
        matches!(&self.turn, Turn::Job(job) if job.rests())
    }

    /// Whether the lock nodes are being asked for a command of ours.
    pub(super) fn is_asking(&self) -> bool {
        matches!(&self.turn, Turn::Job(job) if job.asks_for().is_some())
    }

    /// Returns the command of ours that has the floor.
    fn ours(&self) -> Option<Ours> {
        match &self.turn {
            Turn::Draining(what, when) => {
                let (own, length) = what.own()?;
                Some(Ours { own, length, silent: false, adopted: None, since: when.since })
            }
            Turn::Job(job) => job.ours(),
            Turn::Answering(answering) => answering.ours(),
            _ => None,
        }
    }

    /// Returns what was sent for the guarded write that has the floor, and whether its client gets
    /// no replies. The reply to it comes next.
    pub(super) fn wraps(&self) -> Option<(Whose, bool)> {
        match &self.turn {
            Turn::Job(job) => job.wraps(),
            _ => None,
        }
    }

    /// Returns how many bytes may be held of the reply that comes next, if the command with the floor has it held.
    pub(super) fn holds(&self) -> Option<usize> {
        let Turn::Job(job) = &self.turn else { return None };
        let guards = self.desk.shared.guards.as_ref();
        let most = || job.holds_at_most().or(guards.map(|guards| guards.max_command));
        if job.holds() { most() } else { None }
    }

    /// Whether the command with the floor needs replies to be read, even if the client does not
    /// take them.
    pub(super) fn needs_replies(&self) -> bool {
        match &self.turn {
            // With nothing owed the command begins before more has to be read.
            Turn::Draining(..) => !self.desk.owed.is_empty(),
            Turn::Job(job) => job.needs_replies(),
            // The answer stands behind the frame that has begun.
            Turn::Answering(_) => !self.replies.between_frames(),
            _ => false,
        }
    }

    /// Whether, once no more may be held for the client, the command with the floor goes on only if the client reads.
    pub(super) fn waits_for_reader(&self) -> bool {
        matches!(self.turn, Turn::Answering(_)) || self.needs_replies()
    }

    /// Takes a share of the room for unread replies if one is needed, and returns whether more may be held for the client.
    #[inline]
    pub(super) fn reserve_more(&mut self) -> bool {
        let (held, most) = (self.to_client.len(), self.desk.config.barrier_buffer);
        UnreadShare::is_free(held, most) && self.unread.is_none() || self.reserve(held, most)
    }

    #[cold]
    fn reserve(&mut self, held: usize, most: usize) -> bool {
        let all = &self.desk.shared.unread;
        let share = self.unread.get_or_insert_with(|| Box::new(UnreadShare::new(all.clone())));
        share.note(held);
        held < most && share.has_room(most)
    }

    /// Notes that the client has taken all that was held for it.
    #[inline]
    pub(super) fn all_is_read(&mut self) {
        self.unread = None;
    }

    /// Whether an answer is coming that needs nothing more from the data node.
    pub(super) fn answer_is_near(&self) -> bool {
        // No answer can stand behind a frame that was cut off.
        self.replies.between_frames()
            && !self.is_lock()
            && !self.is_resting()
            && (self.is_asking() || matches!(self.turn, Turn::Answering(_)))
    }

    /// Whether everything that was begun is finished.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_waiting()
            && self.desk.owed.is_empty()
            && self.replies.between_frames()
            && self.requests.between_commands()
            && self.to_client.is_empty()
            && self.desk.to_data.is_empty()
    }

    /// Takes the question that is to be asked now, if there is one.
    pub(super) fn question(&mut self) -> Option<Box<Question>> {
        match std::mem::replace(&mut self.question, Asking::Waits) {
            Asking::Now(question) => Some(question),
            before => {
                self.question = before;
                None
            }
        }
    }

    /// Whether a question was asked and is not answered.
    pub(super) fn awaits_answer(&self) -> bool {
        matches!(self.question, Asking::Waits)
    }

    /// Whether a large command is being gathered until it is whole.
    #[inline]
    pub(super) fn is_gathering(&self) -> bool {
        matches!(self.turn, Turn::Gathering(_))
    }

    /// Returns when to close the connection, whatever is still missing.
    pub(super) fn linger(&self) -> Option<tokio::time::Instant> {
        self.linger
    }

    /// Closes the connection after [`LINGER`] unless something else does so before.
    pub(super) fn start_linger(&mut self) {
        self.linger.get_or_insert_with(|| tokio::time::Instant::now() + LINGER);
    }

    /// Gives a command the floor. The command begins once all replies owed so far are in.
    pub(super) fn wait(&mut self, what: Box<dyn Waits>) {
        debug_assert!(!self.is_waiting(), "one command at a time has the floor");
        let mut when = When { since: Instant::now(), waited: false };
        if let Some((own, _)) = what.own() {
            let metrics = &self.desk.shared.metrics;
            match own {
                Own::Lock | Own::Mlock => &metrics.commands_lock,
                Own::Unlock | Own::Munlock => &metrics.commands_unlock,
                Own::Renew => &metrics.commands_renew,
                Own::Attach => &metrics.commands_attach,
                Own::Detach => &metrics.commands_detach,
                Own::Lockgate | Own::Command => &metrics.commands_lockgate,
            }
            .increment(1);
            if !self.desk.owed.is_empty() {
                when.waited = true;
                metrics.barrier_waits.increment(1);
            }
        }
        self.turn = Turn::Draining(what, when);
        if self.client_done {
            // Each command has its own time, so that a row of quick ones is not cut off.
            self.linger = None;
            self.start_linger();
        }
    }

    /// Moves the command that has the floor as far as it goes by itself. Returns whether anything has changed.
    pub(super) fn go_on(&mut self) -> bool {
        let mut moved = false;
        loop {
            let is_ready = match &self.turn {
                Turn::Draining(..) => {
                    self.desk.owed.is_empty() || planted::has(PlantedFault::OutOfPlace)
                }
                // A client that does not read its answers is not made to wait for that: it may read only once it has
                // sent everything.
                Turn::Answering(_) => self.replies.between_frames() && self.reserve_more(),
                Turn::Job(job) => job.gives_way() && self.has_more_behind(job.as_ref()),
                _ => false,
            };
            if !is_ready {
                return moved;
            }
            moved = true;
            match std::mem::take(&mut self.turn) {
                Turn::Draining(what, when) => {
                    let progress = self.begin(what, when);
                    self.apply(progress);
                }
                Turn::Answering(answering) => self.finish(*answering),
                Turn::Job(job) => {
                    self.question = Asking::Nothing;
                    let progress = job.more_came(&mut self.desk);
                    self.apply(progress);
                }
                turn => self.turn = turn,
            }
        }
    }

    /// Whether the client has sent more than this command of ours, which has the floor.
    fn has_more_behind(&self, job: &dyn Job) -> bool {
        job.ours().is_some_and(|ours| self.desk.unsent.len() > ours.length)
    }

    /// Begins a command once all earlier replies are in.
    fn begin(&mut self, what: Box<dyn Waits>, when: When) -> Progress {
        debug_assert!(
            self.desk.owed.is_empty() || planted::has(PlantedFault::OutOfPlace),
            "nobody's answer overtakes an earlier reply"
        );
        let desk = &mut self.desk;
        if desk.losing.has_untold_news() && !what.tells_of_loss(desk) {
            // The command is refused when it is scanned again.
            return match what.is_unsent() {
                true => Progress::Again,
                false => Box::new(Refused::one(Name::Other)).begin(when, desk),
            };
        }
        what.begin(when, desk)
    }

    /// Lets the command that has begun take its next step.
    pub(super) fn step(&mut self, step: impl FnOnce(Box<dyn Job>, &mut Desk) -> Progress) {
        match std::mem::take(&mut self.turn) {
            Turn::Job(job) => {
                self.question = Asking::Nothing;
                let progress = step(job, &mut self.desk);
                self.apply(progress);
            }
            // The command was given up meanwhile.
            turn => self.turn = turn,
        }
    }

    /// Hands an answer to the command that asked.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.step(|job, desk| job.answer(answer, desk));
    }

    /// Refuses the command of ours that has begun.
    pub(super) fn refuse(&mut self, error: &str) {
        self.step(|job, desk| match job.ours() {
            Some(ours) => {
                desk.tokens.stood_in_the_way(InTheWay::Unknown(Instant::now()));
                ours.refuse(error, Outcome::BadRequest, desk)
            }
            None => Progress::Wait(job),
        });
    }

    /// Applies the result of a step of the command that has the floor.
    fn apply(&mut self, progress: Progress) {
        match progress {
            Progress::Wait(job) => self.turn = Turn::Job(job),
            Progress::Ask(job, _) if job.rests() && self.client_done => {
                self.turn = Turn::Job(job);
                self.give_up();
            }
            Progress::Ask(job, question) => {
                self.unheard |= job.asks_for().is_some();
                self.question = Asking::Now(Box::new(question.into()));
                self.turn = Turn::Job(job);
            }
            Progress::Pass(pass) => self.turn = Turn::Again(First::Pass(pass)),
            Progress::Again => self.turn = Turn::Again(First::Anew),
            Progress::Stranger(error) => {
                self.desk.conn.refusal = error;
                self.turn = Turn::Again(First::Stranger);
            }
            Progress::Answer(answering) => {
                self.unheard = true;
                if answering.is_empty() {
                    self.finish(*answering);
                } else {
                    self.turn = Turn::Answering(answering);
                }
            }
            Progress::Relay => self.relay(),
            Progress::Mute => {
                self.relay();
                self.tracking = Tracking::Muted;
                self.start_linger();
            }
            Progress::Close(answering) => {
                self.tracking = Tracking::Closing;
                self.apply(Progress::Answer(answering));
            }
            Progress::Leave(answering) => {
                self.closing = CloseReason::NoQuorum;
                self.apply(Progress::Close(answering));
            }
        }
    }

    /// Answers a command that is done, and lets the bytes behind it go on.
    fn finish(&mut self, answering: Answering) {
        let (answer, length) = answering.finish();
        let answer = self.with_front(answer);
        debug_assert!(answer.is_empty() || self.replies.between_frames());
        debug_assert!(length <= self.desk.unsent.len(), "a command's bytes are held until its end");
        self.desk.losing.note_written();
        self.to_client.push(&answer);
        if self.client_done {
            self.linger = None;
        }
        let held = &mut self.desk.unsent;
        // With so many bytes unsent, reading had stopped.
        let stopped = held.len() >= READ_AHEAD;
        held.drain(..length.min(held.len()));
        if stopped || !held.is_empty() {
            self.turn = Turn::Again(First::Anew);
        }
    }

    /// Names the front in an answer that passes a node's redirection on.
    fn with_front(&self, answer: Vec<u8>) -> Vec<u8> {
        match &self.desk.view {
            Some(view) if may_redirect(&answer) => view.redirect(&answer).unwrap_or(answer),
            _ => answer,
        }
    }

    /// Gives up whatever has the floor. A LOCK that was granted and not answered is given back; a
    /// LOCK under way is released on every node when its future is dropped.
    pub(super) fn abort(&mut self) {
        if let Some(ours) = self.ours() {
            ours.count(Outcome::Aborted, &self.desk);
        }
        self.undo();
    }

    fn undo(&mut self) {
        self.question = Asking::Nothing;
        let undo = match std::mem::take(&mut self.turn) {
            Turn::Job(job) => job.undo(),
            Turn::Answering(answering) => answering.undo(),
            _ => None,
        };
        if let Some(undo) = undo {
            undo.undo(&mut self.desk.tokens);
        }
    }

    /// Gives up matching replies to commands: from here on bytes only pass. Where commands must be followed, the
    /// connection ends instead.
    pub(super) fn relay(&mut self) {
        let enforced = self.desk.must_be_followed();
        self.tracking = if enforced { Tracking::Closing } else { Tracking::Relayed };
        if !self.filter.as_ref().is_some_and(Filter::must_end) {
            self.filter = None;
        }
        self.desk.owed.clear();
        if let Some(sights) = self.desk.sights.changed() {
            sights.forget();
        }
        let passes = matches!(self.turn, Turn::Again(_));
        let waited = self.is_waiting();
        if !passes {
            self.undo();
        }
        if waited || !self.desk.unsent.is_empty() {
            self.turn = Turn::Again(First::Anew);
        }
    }

    /// Acts on the result of noting a forwarded command.
    pub(super) fn noted(&mut self, noted: Noted) {
        match noted {
            Noted::Followed => {}
            Noted::Lost => self.relay(),
            Noted::Quit => self.start_linger(),
        }
    }

    /// Gives up whatever has the floor, and all behind it, which was to run under its lock.
    fn give_up(&mut self) {
        self.abort();
        self.desk.unsent.clear();
    }

    /// Takes in that the client has sent FIN or reset its connection. A LOCK that has the floor is
    /// given up, and with it all behind it; so is a command that waits for lock nodes to come back.
    /// Any other command may finish within [`LINGER`]. Returns whether one was given up.
    pub(super) fn client_closed(&mut self) -> bool {
        self.client_done = true;
        if self.is_given_up_by_leaving() {
            self.give_up();
            return true;
        }
        if self.is_waiting() {
            self.start_linger();
        }
        false
    }

    /// Takes the losses that the watchdog has told of, and acts as `locks.on_lost` says.
    ///
    /// # Errors
    /// If the connection is to end. The outbox is then worth one more try.
    #[inline]
    pub(super) fn take_losses(&mut self) -> Result<(), CloseReason> {
        match self.desk.losing.losses {
            Some(_) => self.look_for_losses(),
            None => Ok(()),
        }
    }

    /// Does the work of [`Core::take_losses`] for a client that has had a session lock; most have had none.
    #[inline(never)]
    fn look_for_losses(&mut self) -> Result<(), CloseReason> {
        let Some(losses) = &self.desk.losing.losses else { return Ok(()) };
        if losses.take_due_check() {
            if let Some(first) = self.desk.tokens.valid_until() {
                losses.check_by(first);
            }
            losses.settle();
        }
        if !losses.any() {
            return Ok(());
        }
        self.note_losses()
    }

    #[cold]
    fn note_losses(&mut self) -> Result<(), CloseReason> {
        let desk = &mut self.desk;
        let all = desk.losing.losses.as_ref().map(|losses| losses.take()).unwrap_or_default();
        let announces = |key: &Key| matches!(&self.turn, Turn::Job(job) if job.announces(key));
        let (mut lost, mut unknown) = (Vec::new(), Vec::new());
        for loss in all {
            // A lock that this connection itself has replaced or given back is not lost. A LOCK whose fence is still
            // being announced will be answered NOTHELD.
            if desk.tokens.lose(&loss) && !announces(&loss.key) {
                match loss.kind {
                    LossKind::Told => lost.push((loss.key, loss.token)),
                    LossKind::Unknown => unknown.push(loss.key),
                    LossKind::Ended => {}
                }
            }
        }
        if let Some(key) = unknown.first() {
            if let Some(adoption) = &desk.shared.adoption {
                adoption.tell_of_loss(&shown(desk.name(key)), unknown.len() - 1);
            }
            if desk.config.locks.on_lost == OnLost::Close {
                self.push_losses();
                return Err(CloseReason::LockLost);
            }
        }
        let desk = &mut self.desk;
        if lost.is_empty() {
            return Ok(());
        }
        let pushed = desk.conn.state.resp3 && self.tracking == Tracking::Matched;
        if pushed {
            for (key, token) in &lost {
                let mut push = Vec::new();
                encode::push(&mut push, 3);
                encode::bulk(&mut push, b"lock-lost");
                encode::bulk(&mut push, desk.name(key));
                encode::bulk(&mut push, token);
                desk.losing.pushes.append(&mut push);
            }
        }
        match desk.config.locks.on_lost {
            _ if pushed && planted::has(PlantedFault::Untold) => {}
            OnLost::Ignore => {}
            OnLost::Push if pushed => {}
            OnLost::Close => {
                self.push_losses();
                return Err(CloseReason::LockLost);
            }
            OnLost::Error | OnLost::Push => {
                let prefix = desk.config.locks.prefix.len();
                desk.losing.add(lost, prefix);
                self.check_that_news_can_be_told()?;
            }
        }
        Ok(())
    }

    /// Checks that a client with a loss to hear of can be told: replies that are off or not tracked
    /// cannot tell, and the client must not go on as if nothing had happened.
    ///
    /// # Errors
    /// If the client cannot be told: the connection is to end.
    #[inline]
    pub(super) fn check_that_news_can_be_told(&mut self) -> Result<(), CloseReason> {
        if self.desk.losing.has_news() { self.close_if_deaf() } else { Ok(()) }
    }

    #[cold]
    fn close_if_deaf(&mut self) -> Result<(), CloseReason> {
        let (conn, losing) = (&self.desk.conn, &self.desk.losing);
        let deaf = conn.reply_mode != ReplyMode::On && losing.has_untold_news();
        if deaf || self.tracking != Tracking::Matched && !losing.has_told() {
            self.push_losses();
            return Err(CloseReason::LockLost);
        }
        Ok(())
    }

    /// Puts the pushes about losses between two frames. Returns whether there were any.
    #[inline]
    pub(super) fn push_losses(&mut self) -> bool {
        let pushes = &mut self.desk.losing.pushes;
        let may = !pushes.is_empty()
            && self.replies.between_frames()
            && self.tracking == Tracking::Matched;
        if may {
            self.to_client.push(&std::mem::take(pushes));
        }
        may
    }

    /// Scans the unsent bytes again; the turn says how their first command goes on. Returns the
    /// bytes, and the range of them to send to the data node.
    ///
    /// # Errors
    /// If the connection is to end.
    pub(super) fn look_again(&mut self) -> Result<Looked, CloseReason> {
        let first = match self.turn {
            Turn::Again(first) => first,
            _ => First::Anew,
        };
        debug_assert!(self.must_look_again());
        self.turn = Turn::Client;
        let held = std::mem::take(&mut self.desk.unsent);
        self.take_losses()?;
        let range = self.scan(&held, first);
        Ok((held, range))
    }

    /// Whether the proxy is to shut down as soon as this connection allows.
    pub(super) fn is_draining(&self) -> bool {
        self.desk.shared.draining.load(Ordering::Relaxed)
    }
}
