//! Stages that wait for the answer to a question, or for replies of the data node.
//!
//! [`Progress::ask`], the one way to ask a [`Question`](super::Question), takes the question together with a function
//! that hears the answer. Its type is the question's, so no stage is asked to hear the answer to another question.

use super::{Answer, Desk, Job, Ours, Progress, asking::Typed, undo::Undo, unexpected};
use crate::key::Key;

impl Progress {
    /// Asks a question. Once it is answered, `hear` takes the stage on. Until then the stage tells what this command
    /// is ([`Job::asks_for`] and others); it gets no events but [`Job::more_came`].
    pub(in crate::session) fn ask<S: Job, A: 'static>(
        stage: S,
        question: Typed<A>,
        hear: impl FnOnce(S, A, &mut Desk) -> Progress + Send + 'static,
    ) -> Progress {
        let (question, read) = question.parts();
        Progress::Ask(Box::new(AwaitsAnswer { stage, read, hear }), question)
    }

    /// Waits until no reply of the data node is owed. Then `hear` takes the stage on with the last reply. Until then
    /// the stage tells what this command is ([`Job::ours`]).
    pub(in crate::session) fn await_replies<S: Job>(
        stage: S,
        hear: impl FnOnce(S, &[u8], &mut Desk) -> Progress + Send + 'static,
    ) -> Progress {
        Progress::Wait(Box::new(AwaitsReplies { stage, hear }))
    }
}

/// A stage that waits for the answer to its question.
struct AwaitsAnswer<S, A, F> {
    stage: S,
    read: fn(Answer) -> Option<A>,
    hear: F,
}

impl<S: Job, A: 'static, F> Job for AwaitsAnswer<S, A, F>
where
    F: FnOnce(S, A, &mut Desk) -> Progress + Send + 'static,
{
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

/// A stage that waits for the last of the replies that the data node owes.
struct AwaitsReplies<S, F> {
    stage: S,
    hear: F,
}

impl<S: Job, F> Job for AwaitsReplies<S, F>
where
    F: FnOnce(S, &[u8], &mut Desk) -> Progress + Send + 'static,
{
    fn reply(self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        match desk.owed.is_empty() {
            true => (self.hear)(self.stage, reply, desk),
            false => Progress::Wait(self),
        }
    }

    fn ours(&self) -> Option<Ours> {
        self.stage.ours()
    }
}

/// A command of ours that only waits; what it is about is in the function that hears the answer.
impl Job for Ours {
    fn asks_for(&self) -> Option<Ours> {
        Some(*self)
    }
}
