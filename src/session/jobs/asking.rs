//! Questions of jobs, their answers, and the stages that wait for these.
//!
//! A constructor of [`Question`] tells the type of the answer. [`Progress::ask`], the one way to ask, takes the question
//! together with a function that hears an answer of this type.

use std::{sync::Arc, time::Duration};

use super::{
    super::operator_acts::NotTakenBack, Desk, Job, Ours, Progress, undo::Undo, unexpected,
};
use crate::{
    bridge::Asker,
    guard::{Guards, asked::AskedCommand, learn::AskError},
    key::{Key, Token},
    lock::{Claim, Grant, Holding, NoQuorum, NotAttached, NotGranted, Renewed},
};

/// A question that does not go over the session's own connection to the data node. It goes to the lock nodes unless
/// its comment says otherwise; about a bridged lock, to the data node too. At most one is under way at a time.
pub(in crate::session) enum Question {
    /// Takes a lock.
    Lock { key: Key, token: Token, ttl: Duration, again: Option<Claim>, wait: Option<Duration> },
    /// Takes a lock for an adopted command, by this claim, unless it is held, even by the same token.
    Adopt { key: Key, token: Token, ttl: Duration, claim: Claim },
    /// Releases a lock.
    Unlock { key: Key, token: Token, claim: Option<Claim>, asker: Asker },
    /// Renews a lock.
    Renew { key: Key, token: Token, ttl: Duration, claim: Option<Claim>, asker: Asker },
    /// Gives a lock this new claim, so that it gets another keeper, or none.
    TakeOver { key: Key, token: Token, ttl: Duration, claim: Claim },
    /// Whether these tokens hold these locks.
    Attached(Vec<(Key, Token)>),
    /// Who holds this lock.
    Look(Key),
    /// By which claim this token holds this lock.
    ClaimOf(Key, Token),
    /// Takes a lock back for an operator, from the grant with this fence or from whichever has the lock. The data node
    /// is told too, over a connection of the proxy's own.
    TakeBack { name: Vec<u8>, fence: Option<u64>, by: String },
    /// Gives these locks back.
    Free(Vec<(Key, Token, Claim)>),
    /// Raises the fence of a lock to at least this number.
    Raise { key: Key, token: Token, claim: Claim, fence: u64 },
    /// Which keys this command writes: asked of the data node, over a connection of the proxy's own.
    Keys(Arc<Guards>, AskedCommand),
    /// Which commands the data node has, as the one of this name is not known: asked of the data node, over a
    /// connection of the proxy's own.
    Commands(Arc<Guards>, Vec<u8>),
    /// Waits for between half of this time and all of it: nothing is asked.
    Rest(Duration),
}

/// Whether a token holds a lock.
pub(in crate::session) type Attached = Result<Option<Grant>, NotAttached>;

/// The answer to the [`Question`] of the same name.
pub(in crate::session) enum Answer {
    /// The answer to `Lock`, `Adopt` and `TakeOver`.
    Grant(Result<Grant, NotGranted>),
    Unlock(Result<bool, NoQuorum>),
    Renew(Result<Option<Renewed>, NoQuorum>),
    /// In the question's order.
    Attached(Vec<Attached>),
    /// `None`: the lock is free, or the votes are split: no token can be on a quorum. Nor has a bridged lock a key.
    Look(Result<Option<Holding>, NoQuorum>),
    /// `None`: the token does not hold it.
    ClaimOf(Result<Option<Claim>, NoQuorum>),
    /// The answer to `TakeBack`.
    TakenBack(Result<(), NotTakenBack>),
    /// The fence that counts; `None` if the lock is not held any more.
    Raise(Result<Option<u64>, NoQuorum>),
    Keys(Result<Vec<Vec<u8>>, AskError>),
    /// Whether the commands could be read.
    Commands(bool),
    /// The answer to `Rest`, and to `Free`, whether or not all lock nodes have answered.
    Done,
}

/// A question that is answered by an `A`.
pub(in crate::session) struct Typed<A> {
    question: Question,
    /// Returns the answer, unless it is one to another question.
    read: fn(Answer) -> Option<A>,
}

/// Makes a [`Typed`] question of a question and the answer to it.
macro_rules! typed {
    ($question:expr, $answer:pat => $said:expr) => {
        Typed {
            question: $question,
            read: |answer| match answer {
                $answer => Some($said),
                _ => None,
            },
        }
    };
}

/// Each constructor makes the question of its name.
impl Question {
    pub(super) fn lock(
        key: Key,
        token: Token,
        ttl: Duration,
        again: Option<Claim>,
        wait: Option<Duration>,
    ) -> Typed<Result<Grant, NotGranted>> {
        typed!(Question::Lock { key, token, ttl, again, wait }, Answer::Grant(said) => said)
    }

    pub(super) fn adopt(
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Claim,
    ) -> Typed<Result<Grant, NotGranted>> {
        typed!(Question::Adopt { key, token, ttl, claim }, Answer::Grant(said) => said)
    }

    pub(super) fn unlock(
        key: Key,
        token: Token,
        claim: Option<Claim>,
        asker: Asker,
    ) -> Typed<Result<bool, NoQuorum>> {
        typed!(Question::Unlock { key, token, claim, asker }, Answer::Unlock(said) => said)
    }

    pub(super) fn renew(
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Option<Claim>,
        asker: Asker,
    ) -> Typed<Result<Option<Renewed>, NoQuorum>> {
        typed!(Question::Renew { key, token, ttl, claim, asker }, Answer::Renew(said) => said)
    }

    pub(super) fn take_over(
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Claim,
    ) -> Typed<Result<Grant, NotGranted>> {
        typed!(Question::TakeOver { key, token, ttl, claim }, Answer::Grant(said) => said)
    }

    pub(in crate::session) fn attached(locks: Vec<(Key, Token)>) -> Typed<Vec<Attached>> {
        typed!(Question::Attached(locks), Answer::Attached(said) => said)
    }

    pub(super) fn look(key: Key) -> Typed<Result<Option<Holding>, NoQuorum>> {
        typed!(Question::Look(key), Answer::Look(said) => said)
    }

    pub(super) fn claim_of(key: Key, token: Token) -> Typed<Result<Option<Claim>, NoQuorum>> {
        typed!(Question::ClaimOf(key, token), Answer::ClaimOf(said) => said)
    }

    pub(super) fn take_back(
        name: Vec<u8>,
        fence: Option<u64>,
        by: String,
    ) -> Typed<Result<(), NotTakenBack>> {
        typed!(Question::TakeBack { name, fence, by }, Answer::TakenBack(said) => said)
    }

    pub(super) fn free(grants: Vec<(Key, Token, Claim)>) -> Typed<()> {
        typed!(Question::Free(grants), Answer::Done => ())
    }

    pub(super) fn raise(
        key: Key,
        token: Token,
        claim: Claim,
        fence: u64,
    ) -> Typed<Result<Option<u64>, NoQuorum>> {
        typed!(Question::Raise { key, token, claim, fence }, Answer::Raise(said) => said)
    }

    pub(in crate::session) fn keys(
        guards: Arc<Guards>,
        command: AskedCommand,
    ) -> Typed<Result<Vec<Vec<u8>>, AskError>> {
        typed!(Question::Keys(guards, command), Answer::Keys(said) => said)
    }

    pub(in crate::session) fn commands(guards: Arc<Guards>, name: Vec<u8>) -> Typed<bool> {
        typed!(Question::Commands(guards, name), Answer::Commands(were_read) => were_read)
    }

    pub(super) fn rest(time: Duration) -> Typed<()> {
        typed!(Question::Rest(time), Answer::Done => ())
    }
}

/// A job and its question. Only [`Progress::ask`] makes one, so the job hears the answer.
pub(in crate::session) struct AskingJob {
    job: Box<dyn Job>,
    question: Question,
}

impl AskingJob {
    pub(in crate::session) fn into_parts(self) -> (Box<dyn Job>, Question) {
        (self.job, self.question)
    }

    /// Puts the job into another, which hands it the answer.
    pub(super) fn inside(self, outer: impl FnOnce(Box<dyn Job>) -> Box<dyn Job>) -> Progress {
        Progress::Ask(AskingJob { job: outer(self.job), ..self })
    }
}

impl Progress {
    /// Asks a question. Once it is answered, `hear` takes the stage on. Until then the stage tells what this command
    /// is ([`Job::asks_for`] and others); it gets no events but [`Job::more_came`].
    pub(in crate::session) fn ask<S: Job + 'static, A: 'static>(
        stage: S,
        Typed { question, read }: Typed<A>,
        hear: impl FnOnce(S, A, &mut Desk) -> Progress + Send + 'static,
    ) -> Progress {
        Progress::Ask(AskingJob { job: Box::new(AwaitsAnswer { stage, read, hear }), question })
    }
}

/// A stage that waits for the answer to its question.
struct AwaitsAnswer<S, A, F> {
    stage: S,
    read: fn(Answer) -> Option<A>,
    hear: F,
}

impl<S: Job, A, F: FnOnce(S, A, &mut Desk) -> Progress + Send> Job for AwaitsAnswer<S, A, F> {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let AwaitsAnswer { stage, read, hear } = *self;
        match read(answer) {
            Some(said) => hear(stage, said, desk),
            None => unexpected(),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        self.stage.asks_for()
    }

    fn ours(&self) -> Option<Ours> {
        self.stage.ours()
    }

    fn needs_replies(&self) -> bool {
        self.stage.needs_replies()
    }

    fn waits_in_line(&self) -> bool {
        self.stage.waits_in_line()
    }

    fn rests(&self) -> bool {
        self.stage.rests()
    }

    fn gives_way(&self) -> bool {
        self.stage.gives_way()
    }

    fn more_came(self: Box<Self>, desk: &mut Desk) -> Progress {
        Box::new(self.stage).more_came(desk)
    }

    fn announces(&self, key: &Key) -> bool {
        self.stage.announces(key)
    }

    fn undo(self: Box<Self>) -> Option<Undo> {
        Box::new(self.stage).undo()
    }
}

/// A command of ours that only waits for the answer; what it is about is in the function that hears it.
impl Job for Ours {
    fn asks_for(&self) -> Option<Ours> {
        Some(*self)
    }
}
