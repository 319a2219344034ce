//! News of a lost session lock, and how the client is told.
//!
//! With `locks.on_lost: error` the next command is answered `-LOCKLOST` instead of being carried
//! out. So is everything that the client sent before it could read that answer: all bytes that were
//! read, or could have been, when the first such answer was written. UNLOCK and RENEW of the lost
//! lock are answered 0, which tells as much.

use std::{sync::Arc, task::Waker};

use super::planted::{self, PlantedFault};
use crate::{
    card::ClientCard,
    key::{Key, Token},
    lock::Losses,
    resp::{encode, name::Name},
};

/// Most commands refused by one answer, so that it stays small.
const MAX_TOGETHER: usize = 256;

/// Losses from the watchdog, and how far the client was told of them.
#[derive(Default)]
pub(super) struct Losing {
    /// Inbox for the watchdog's losses, once there is a session lock to lose.
    pub(super) losses: Option<Arc<Losses>>,
    /// Pushes about losses, to be written between two frames.
    pub(super) pushes: Vec<u8>,
    pub(super) news: Option<Box<News>>,
}

/// Losses that the client is to be told of, or has just been told of.
#[derive(Debug)]
pub(super) struct News {
    lost: Vec<(Key, Token)>,
    /// The error that refuses commands.
    error: String,
    stage: NewsStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewsStage {
    /// The next command is refused.
    Untold,
    /// The answer that tells of the loss is being made.
    Telling,
    /// The answer is in the client's outbox.
    Written,
    /// The answer was written. Commands that the client had sent by then are refused: `until` is the number of its
    /// bytes since the connection began.
    Told { until: u64 },
}

/// Commands refused because of a loss, whose bytes are dropped as they arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    pub(super) count: usize,
    /// EXEC or DISCARD is among them: the transaction must not stay open.
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
        let mut news = News { lost, error: String::new(), stage: NewsStage::Untold };
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

impl Losing {
    /// Returns the inbox for the watchdog's losses.
    pub(super) fn listen(&mut self, waker: &Waker, card: &Arc<ClientCard>) -> &Arc<Losses> {
        self.losses.get_or_insert_with(|| Arc::new(Losses::new(waker.clone(), card.clone())))
    }

    /// Has the next command refused for these losses.
    pub(super) fn add(&mut self, mut lost: Vec<(Key, Token)>, prefix: usize) {
        if let Some(before) = self.news.take()
            && before.stage == NewsStage::Untold
        {
            lost.splice(..0, before.lost);
        }
        // A reader's key means the lock to its client.
        lost.iter_mut().for_each(|(key, _)| *key = key.of_lock().into_owned());
        self.news = Some(Box::new(News::new(lost, prefix)));
    }

    /// Whether the client is to be told of a loss, or has just been told.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Whether the next command is to be refused.
    pub(super) fn has_untold_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.stage == NewsStage::Untold)
    }

    /// Whether the answer that tells of the loss is in the client's outbox or was written.
    pub(super) fn has_told(&self) -> bool {
        self.news
            .as_ref()
            .is_some_and(|news| matches!(news.stage, NewsStage::Written | NewsStage::Told { .. }))
    }

    /// Returns whether the command whose first byte is at `position` of the client's bytes is refused. If not, the news
    /// ends: no later command is refused either.
    #[cold]
    pub(super) fn refuse_at(&mut self, position: u64) -> bool {
        match self.news.as_ref().map(|news| news.stage) {
            Some(NewsStage::Told { until }) if position >= until => {
                self.news = None;
                false
            }
            news => news.is_some(),
        }
    }

    /// Whether one more command is refused together with those being dropped.
    #[cold]
    pub(super) fn is_refused_too(&self, refused: &Refused, name: Name, position: u64) -> bool {
        let special = matches!(name, Name::Blank | Name::Exec | Name::Discard | Name::Own(_))
            || refused.ends_transaction;
        !special
            && refused.count < MAX_TOGETHER
            && self.news.as_ref().is_some_and(
                |news| matches!(news.stage, NewsStage::Told { until } if position < until),
            )
    }

    /// Whether the client is being told that it has lost this lock.
    pub(super) fn was_lost(&self, key: &Key, token: Option<&[u8]>) -> bool {
        self.news.as_ref().is_some_and(|news| {
            let key = &*key.of_lock();
            let same = |held: &Token| token.is_none_or(|token| **held == *token);
            news.lost.iter().any(|(lost, held)| lost == key && same(held))
        })
    }

    /// Notes that an UNLOCK or RENEW of a lost lock is about to be answered 0. A client that unlocks has sent nothing
    /// behind the UNLOCK in the belief that it holds the lock.
    pub(super) fn tells_of(&mut self, key: &Key, unlocks: bool, prefix: usize) {
        let Some(news) = &mut self.news else { return };
        if news.stage != NewsStage::Untold {
            return;
        }
        if news.lost.len() > 1 {
            news.lost.retain(|(lost, _)| **lost != **key);
            news.word(prefix);
        } else if unlocks {
            self.news = None;
        } else {
            news.stage = NewsStage::Telling;
        }
    }

    /// Returns the error, once for each of `count` commands. The client is told by it.
    pub(super) fn answer(&mut self, count: usize) -> Vec<u8> {
        let mut answer = Vec::new();
        if let Some(news) = &mut self.news {
            if news.stage == NewsStage::Untold {
                news.stage = NewsStage::Telling;
            }
            (0..count).for_each(|_| encode::error(&mut answer, &news.error));
        }
        answer
    }

    /// Notes that an answer is put into the client's outbox; it may be the one that tells of the
    /// loss.
    #[inline]
    pub(super) fn note_written(&mut self) {
        if let Some(news) = &mut self.news
            && news.stage == NewsStage::Telling
        {
            news.stage = NewsStage::Written;
        }
    }

    /// Notes that the client's outbox is written now. If it tells of the loss, all that the client
    /// has sent up to now was sent without knowing: `until` bytes since the connection began.
    #[inline]
    pub(super) fn note_told(&mut self, until: impl FnOnce() -> u64) {
        if let Some(news) = &mut self.news
            && news.stage == NewsStage::Written
        {
            news.stage = NewsStage::Told { until: until() };
            if planted::has(PlantedFault::Pipeline) {
                self.news = None;
            }
        }
    }

    /// Notes that the line at `position` of the client's bytes became longer by `more`, or shorter.
    #[cold]
    pub(super) fn note_rewritten(&mut self, position: u64, more: i64) {
        if let Some(news) = &mut self.news
            && let NewsStage::Told { until } = &mut news.stage
            && position < *until
        {
            *until = until.saturating_add_signed(more);
        }
    }

    /// Notes that all of the client's bytes so far were read. With TLS their number was not known
    /// before.
    #[inline]
    pub(super) fn note_all_read(&mut self, read: u64) {
        if let Some(news) = &mut self.news
            && let NewsStage::Told { until } = &mut news.stage
        {
            *until = read.min(*until);
        }
    }
}
