//! What a client is told when its session lock is lost.
//!
//! By `locks.on_lost: error` the next command is answered `-LOCKLOST` instead of being
//! carried out, and so is all that the client had sent before it could read that: what was
//! read already, or could have been, when the first such answer was written. UNLOCK and
//! RENEW of the lost lock are answered 0, which tells as much.

use std::task::{Context, Poll};

use super::{Session, Step, metrics::CloseReason};
use crate::{
    config::OnLost,
    key::{Key, Token},
    resp::{
        encode,
        name::{Name, Own, ReplyMode},
        split::{Split, split},
    },
};

/// Commands that are refused by one answer, so that it stays small.
const MAX_TOGETHER: usize = 256;

/// Losses that the client is to be told of, or has just been.
#[derive(Debug)]
pub(super) struct News {
    lost: Vec<(Key, Token)>,
    /// With which commands are refused.
    error: String,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The next command is refused.
    Untold,
    /// The answer that tells is about to be written.
    Telling,
    /// It is written. What the client had sent by then is refused: so many bytes since
    /// the connection began.
    Told { until: u64 },
}

/// Commands that are refused in favour of the news, and whose bytes are dropped as they come.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// How many.
    pub(super) count: usize,
    /// It is EXEC or DISCARD: the transaction must not stay open.
    pub(super) ends_transaction: bool,
}

impl Refused {
    pub(super) fn one(name: Name) -> Refused {
        let ends_transaction = matches!(name, Name::Exec | Name::Discard);
        Refused { count: 1, ends_transaction }
    }
}

impl News {
    fn new(lost: Vec<(Key, Token)>, prefix: usize) -> News {
        let mut news = News { lost, error: String::new(), stage: Stage::Untold };
        news.word(prefix);
        news
    }

    fn word(&mut self, prefix: usize) {
        let Some((key, _)) = self.lost.last() else { return };
        let key = String::from_utf8_lossy(&key[prefix.min(key.len())..]);
        let others = match self.lost.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        self.error =
            format!("LOCKLOST the lock '{key}'{others} was lost, this command was not executed");
    }
}

impl Session {
    /// Takes what the watchdog has told, and does as `locks.on_lost` says.
    #[inline]
    pub(super) fn take_losses(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let Some(losses) = &self.losses else { return Ok(()) };
        if losses.is_check_due() {
            if let Some(first) = self.tokens.valid_until() {
                losses.check_by(first);
            }
            losses.settle();
        }
        if !losses.any() {
            return Ok(());
        }
        self.note_losses(cx)
    }

    #[cold]
    fn note_losses(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let all = self.losses.as_ref().map(|losses| losses.take()).unwrap_or_default();
        let prefix = self.config.locks.prefix.len();
        let mut lost = Vec::new();
        for loss in all {
            // One that this connection itself has replaced or given back is none. And a LOCK
            // that is not answered yet is answered that it is not held.
            if self.tokens.lose(&loss)
                && !self.barrier.as_ref().is_some_and(|barrier| barrier.is_raising(&loss.key))
            {
                lost.push((loss.key, loss.token));
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        let pushed = self.state.resp3 && !self.relay;
        if pushed {
            for (key, token) in &lost {
                encode::push(&mut self.pushes, 3);
                encode::bulk(&mut self.pushes, b"lock-lost");
                encode::bulk(&mut self.pushes, &key[prefix.min(key.len())..]);
                encode::bulk(&mut self.pushes, token);
            }
        }
        match self.config.locks.on_lost {
            #[cfg(feature = "planted")]
            _ if pushed && std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "untold") => {
            }
            OnLost::Ignore => {}
            OnLost::Push if pushed => {}
            OnLost::Close => {
                let _ = self.push_losses(cx)?;
                return Err(CloseReason::LockLost);
            }
            OnLost::Error | OnLost::Push => {
                if let Some(before) = self.news.take()
                    && before.stage == Stage::Untold
                {
                    lost.splice(..0, before.lost);
                }
                self.news = Some(Box::new(News::new(lost, prefix)));
                self.check_that_news_can_be_told(cx)?;
            }
        }
        Ok(())
    }

    /// Who gets no replies, or those that cannot be told apart, cannot be told: it must
    /// not go on as if nothing had happened.
    #[inline]
    pub(super) fn check_that_news_can_be_told(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<(), CloseReason> {
        if self.news.is_some() { self.close_if_deaf(cx) } else { Ok(()) }
    }

    #[cold]
    fn close_if_deaf(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let Some(news) = &self.news else { return Ok(()) };
        let deaf = self.reply_mode != ReplyMode::On && news.stage == Stage::Untold;
        if deaf || self.relay && !matches!(news.stage, Stage::Told { .. }) {
            let _ = self.push_losses(cx)?;
            return Err(CloseReason::LockLost);
        }
        Ok(())
    }

    /// Whether the next command is to be refused.
    pub(super) fn has_untold_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.stage == Stage::Untold)
    }

    /// Whether a command whose first byte is the `position`-th of the client's is refused.
    /// False: nor is any behind it.
    #[cold]
    pub(super) fn is_refused_at(&mut self, position: u64) -> bool {
        match self.news.as_ref().map(|news| news.stage) {
            Some(Stage::Told { until }) if position >= until => {
                self.news = None;
                false
            }
            news => news.is_some(),
        }
    }

    /// Whether the command goes on although others are refused: an UNLOCK or RENEW of what
    /// was lost, or one that is not whole yet.
    #[cold]
    pub(super) fn is_about_lost(&self, own: Own, bytes: &[u8]) -> bool {
        if !matches!(own, Own::Unlock | Own::Renew) {
            return false;
        }
        match split(bytes, crate::command::MAX_WORDS, self.own_limit()) {
            Split::Incomplete => true,
            Split::TooLong => false,
            Split::Whole { words, .. } => {
                let [_, key, rest @ ..] = &words[..] else { return false };
                let key = crate::command::full_key(key, &self.config.locks);
                // Where the number of words is odd the first behind the key is the token.
                let token = rest.first().filter(|_| rest.len() % 2 == 1);
                self.was_lost(&key, token.map(|token| &**token))
            }
        }
    }

    /// Whether the client is being told that it has lost this lock.
    pub(super) fn was_lost(&self, key: &Key, token: Option<&[u8]>) -> bool {
        self.news.as_ref().is_some_and(|news| {
            let same = |held: &Token| token.is_none_or(|token| **held == *token);
            news.lost.iter().any(|(lost, held)| lost == key && same(held))
        })
    }

    /// An UNLOCK or RENEW of it is about to be answered 0. Who unlocks it has sent nothing
    /// behind that in the belief to hold it.
    pub(super) fn tells_of(&mut self, key: &Key, unlocks: bool) {
        let Some(news) = &mut self.news else { return };
        if news.stage != Stage::Untold {
            return;
        }
        if news.lost.len() > 1 {
            news.lost.retain(|(lost, _)| lost != key);
            news.word(self.config.locks.prefix.len());
        } else if unlocks {
            self.news = None;
        } else {
            news.stage = Stage::Telling;
        }
    }

    /// The error for so many commands; with it the client is told.
    pub(super) fn lost_answer(&mut self, count: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        if let Some(news) = &mut self.news {
            if news.stage == Stage::Untold {
                news.stage = Stage::Telling;
            }
            (0..count).for_each(|_| encode::error(&mut answer, &news.error));
        }
        answer
    }

    /// An answer is being written. If it is the one that tells, what the client has sent
    /// up to now was sent without knowing.
    #[inline]
    pub(super) fn note_told(&mut self) {
        if let Some(news) = &mut self.news
            && news.stage == Stage::Telling
        {
            news.stage = Stage::Told { until: self.read + self.client.readable() };
            #[cfg(feature = "planted")]
            if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "pipeline") {
                self.news = None;
            }
        }
    }

    /// All that the client has sent so far was read: for TLS, how much that would be was
    /// not known before.
    #[inline]
    pub(super) fn note_all_read(&mut self) {
        if let Some(news) = &mut self.news
            && let Stage::Told { until } = &mut news.stage
        {
            *until = self.read.min(*until);
        }
    }

    /// Whether one more command is refused together with those that are being dropped.
    #[cold]
    pub(super) fn is_refused_too(&self, refused: &Refused, name: Name, position: u64) -> bool {
        let special = matches!(name, Name::Blank | Name::Exec | Name::Discard | Name::Own(_))
            || refused.ends_transaction;
        !special
            && refused.count < MAX_TOGETHER
            && self
                .news
                .as_ref()
                .is_some_and(|news| matches!(news.stage, Stage::Told { until } if position < until))
    }

    /// Writes pushes between two frames.
    #[inline]
    pub(super) fn push_losses(&mut self, cx: &mut Context<'_>) -> Step {
        if self.pushes.is_empty() { Ok(false) } else { self.push_between_frames(cx) }
    }

    #[cold]
    fn push_between_frames(&mut self, cx: &mut Context<'_>) -> Step {
        if !self.replies.between_frames() || self.relay {
            return Ok(false);
        }
        let pushes = std::mem::take(&mut self.pushes);
        self.to_client.push(&pushes);
        match self.to_client.poll_flush(&mut self.client, cx) {
            Poll::Ready(Err(error)) => Err(self.client_failed(&error)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(true),
        }
    }
}
