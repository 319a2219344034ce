//! A command of ours whose turn has come: whether the client may, and then what it asks for.

use std::borrow::Cow;

use super::{
    super::{
        Session, authorize,
        metrics::{Operation, Outcome},
        requests::Pass,
    },
    Barrier, Phase, What,
};
use crate::{
    clock::Instant,
    command::{
        self, BadRequest, Request,
        operator::{self, Inquiry},
    },
    config::LocksConfig,
    key::Key,
    resp::{
        encode,
        name::{Name, Own, ReplyMode},
    },
};

/// What a command of ours asks for. That its options are wrong is told only to
/// who may ask.
#[derive(Debug)]
pub(super) enum Asked {
    /// What is about one lock: all but those.
    Lock { key: Key, request: Result<Request, BadRequest> },
    /// LOCKGATE, or COMMAND about commands of ours.
    Inquiry(Result<Inquiry, BadRequest>),
}

impl Asked {
    /// The lock, and the token if it is named, that an UNLOCK or RENEW is about.
    pub(super) fn given_back(&self) -> Option<(&Key, Option<&[u8]>)> {
        match self {
            Asked::Lock {
                key,
                request: Ok(Request::Unlock { token } | Request::Renew { token, .. }),
            } => Some((key, token.as_deref())),
            _ => None,
        }
    }
}

impl Barrier {
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
}

/// The metrics' word for a command of ours.
pub(super) fn operation(own: Own) -> Option<Operation> {
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
    /// Lets the data node refuse a command of ours, in its place and in its own
    /// words, and mark a transaction as failed.
    pub(super) fn refuse_by_forwarding(&mut self, own: Own, barrier: Box<Barrier>) {
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

    pub(super) fn begin_own(&mut self, mut barrier: Box<Barrier>) {
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

    /// The client may: asks the nodes, or tells what it wants to know.
    pub(super) fn carry_out(&mut self, mut barrier: Box<Barrier>, now: Instant) {
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
                        self.unheard = true;
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

    pub(in crate::session) fn answer_error(
        &mut self,
        barrier: Box<Barrier>,
        error: &str,
        outcome: Outcome,
    ) {
        if let What::Own { own, .. } = barrier.what
            && let Some(operation) = operation(own)
        {
            self.shared.metrics.lock_request(operation, outcome, barrier.since.elapsed());
        }
        let mut answer = Vec::new();
        encode::error(&mut answer, error);
        self.answer(barrier, answer);
    }
}
