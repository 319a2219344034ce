//! Commands that the client's stream goes on without: our own, which wait for their turn,
//! and those whose bytes are dropped as they come, and that are answered then.

use std::task::Context;

use super::{Session, barrier::Barrier, guarded::Guarded, lost::Refused};
use crate::{
    command::{BadRequest, MAX_WORDS, operator},
    guard::Stop,
    resp::{
        name::{Name, Own},
        split::{Split, split},
    },
};

/// Bytes of a command of ours beside its key and token: lengths, options, numbers.
const WORDS_SLACK: usize = 512;

/// A command whose bytes are dropped as they come, and that is answered then.
#[derive(Debug, Clone, Copy)]
pub enum Dropping {
    /// One of ours, too long to be one.
    TooLong {
        /// Which.
        own: Own,
        /// How many words it has, the name included.
        words: usize,
    },
    /// Any: the client must first be told that its lock is lost.
    Lost(Refused),
    /// A write that cannot be checked against the guards: too large, or no room for it.
    Unguardable {
        /// It is larger than `guards.max_command`.
        too_large: bool,
    },
}

/// What becomes of a command of ours when it begins.
pub(super) enum Intercepted {
    /// It waits for its turn, or for the rest of itself.
    Kept,
    /// It is too long to be one: its bytes are dropped as they come.
    Dropping,
    /// It is about commands of Redis too, which answers.
    Redis,
}

impl Session {
    /// Begins to drop a command, because the client must first be told that its
    /// lock is lost. What stands before it is forwarded.
    #[cold]
    pub(super) fn drop_for_the_news(&mut self, cx: &mut Context<'_>, name: Name, before: &[u8]) {
        self.dropping = Some(Dropping::Lost(Refused::one(name)));
        self.forward(cx, before);
    }

    /// Drops one more command, at that position of what the client has sent, together with
    /// those that are being dropped. False: it does not belong to them.
    #[inline]
    pub(super) fn drop_too(&mut self, name: Name, position: u64) -> bool {
        let Some(Dropping::Lost(mut refused)) = self.dropping else { return false };
        let too = self.is_refused_too(&refused, name, position);
        if too {
            refused.count += 1;
            self.dropping = Some(Dropping::Lost(refused));
        }
        too
    }

    /// Most bytes that a command of ours can have.
    pub(super) fn own_limit(&self) -> usize {
        self.config.locks.max_key + self.config.locks.max_token + WORDS_SLACK
    }

    /// Begins a command of ours if all of it is there.
    pub(super) fn intercept(&mut self, own: Own, arguments: usize, bytes: &[u8]) -> Intercepted {
        match split(bytes, MAX_WORDS, self.own_limit()) {
            Split::Whole { words, .. }
                if own == Own::Command && operator::command(&words[1..]).is_none() =>
            {
                Intercepted::Redis
            }
            Split::Whole { words, length } => {
                let barrier = Barrier::own(own, &words[1..], length, &self.config.locks);
                self.wait(barrier);
                Intercepted::Kept
            }
            Split::Incomplete => Intercepted::Kept,
            // More names than we have.
            Split::TooLong if own == Own::Command => Intercepted::Redis,
            Split::TooLong => {
                self.dropping = Some(Dropping::TooLong { own, words: arguments });
                Intercepted::Dropping
            }
        }
    }

    /// The last byte of a command being dropped has been seen: answers it.
    /// False: none was being dropped.
    #[inline]
    pub(super) fn answer_dropped(&mut self) -> bool {
        match self.dropping.take() {
            Some(dropping) => self.answer_instead(dropping),
            None => return false,
        }
        true
    }

    #[cold]
    fn answer_instead(&mut self, dropping: Dropping) {
        self.wait(match dropping {
            Dropping::Lost(refused) => Barrier::lost(refused),
            Dropping::Unguardable { too_large } => {
                let stop = if too_large { Stop::TooLarge } else { Stop::NoRoom };
                Barrier::of(Guarded::write(0, stop, None))
            }
            Dropping::TooLong { own, words } => {
                let error = match own {
                    _ if words <= MAX_WORDS => BadRequest::TooLong,
                    Own::Unlock | Own::Attach | Own::Detach => BadRequest::Arity(own),
                    Own::Lock | Own::Renew => BadRequest::TooManyWords,
                    Own::Lockgate | Own::Command => BadRequest::Arity(own),
                };
                Barrier::refused(own, error)
            }
        });
    }
}
