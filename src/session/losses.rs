//! What a client is told when its session lock is lost.
//!
//! By `locks.on_lost: error` the next command is answered `-LOCKLOST` instead of being
//! carried out, and so is all that the client had sent before it could read that: what was
//! read already, or could have been, when the first such answer was written. UNLOCK and
//! RENEW of the lost lock are answered 0, which tells as much.

use std::{sync::Arc, task::Waker};

use super::planted::{self, PlantedFault};
use crate::{
    key::{Key, Token},
    lock::Losses,
    resp::{encode, name::Name},
};

/// Commands that are refused by one answer, so that it stays small.
const MAX_TOGETHER: usize = 256;

/// What the watchdog tells of lost session locks, and what the client is told.
#[derive(Default)]
pub(super) struct Losing {
    /// Where the watchdog tells of them, once there is one to lose.
    pub(super) losses: Option<Arc<Losses>>,
    /// Pushes about them, to be written between two frames.
    pub(super) pushes: Vec<u8>,
    news: Option<Box<News>>,
}

/// Losses that the client is to be told of, or has just been.
#[derive(Debug)]
struct News {
    lost: Vec<(Key, Token)>,
    /// With which commands are refused.
    error: String,
    stage: NewsStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewsStage {
    /// The next command is refused.
    Untold,
    /// The answer that tells is about to be written.
    Telling,
    /// It has been put to what is written.
    Written,
    /// It is written. What the client had sent by then is refused: so many bytes since
    /// the connection began.
    Told { until: u64 },
}

/// Commands that are refused in favour of the news, and whose bytes are dropped as they come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
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
    /// Returns where the watchdog tells of lost session locks.
    pub(super) fn listen(&mut self, waker: &Waker) -> &Arc<Losses> {
        self.losses.get_or_insert_with(|| Arc::new(Losses::new(waker.clone())))
    }

    /// The next command is to be refused for these losses.
    pub(super) fn add(&mut self, mut lost: Vec<(Key, Token)>, prefix: usize) {
        if let Some(before) = self.news.take()
            && before.stage == NewsStage::Untold
        {
            lost.splice(..0, before.lost);
        }
        self.news = Some(Box::new(News::new(lost, prefix)));
    }

    /// Whether the client is to be told of a loss, or has just been.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Whether the next command is to be refused.
    pub(super) fn has_untold_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.stage == NewsStage::Untold)
    }

    /// Whether the answer that tells has been put to what is written.
    pub(super) fn has_told(&self) -> bool {
        self.news
            .as_ref()
            .is_some_and(|news| matches!(news.stage, NewsStage::Written | NewsStage::Told { .. }))
    }

    /// Whether a command whose first byte is the `position`-th of the client's is refused.
    /// False: nor is any behind it.
    #[cold]
    pub(super) fn is_refused_at(&mut self, position: u64) -> bool {
        match self.news.as_ref().map(|news| news.stage) {
            Some(NewsStage::Told { until }) if position >= until => {
                self.news = None;
                false
            }
            news => news.is_some(),
        }
    }

    /// Whether one more command is refused together with those that are being dropped.
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
            let same = |held: &Token| token.is_none_or(|token| **held == *token);
            news.lost.iter().any(|(lost, held)| lost == key && same(held))
        })
    }

    /// An UNLOCK or RENEW of it is about to be answered 0. Who unlocks it has sent nothing
    /// behind that in the belief to hold it.
    pub(super) fn tells_of(&mut self, key: &Key, unlocks: bool, prefix: usize) {
        let Some(news) = &mut self.news else { return };
        if news.stage != NewsStage::Untold {
            return;
        }
        if news.lost.len() > 1 {
            news.lost.retain(|(lost, _)| lost != key);
            news.word(prefix);
        } else if unlocks {
            self.news = None;
        } else {
            news.stage = NewsStage::Telling;
        }
    }

    /// The error for so many commands; with it the client is told.
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

    /// An answer is put to what is written; it may be the one that tells.
    #[inline]
    pub(super) fn note_written(&mut self) {
        if let Some(news) = &mut self.news
            && news.stage == NewsStage::Telling
        {
            news.stage = NewsStage::Written;
        }
    }

    /// What is written goes to the client now. If the client is told by it, what it has sent
    /// up to now was sent without knowing: so many bytes since the connection began.
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

    /// All that the client has sent so far was read, so many bytes: for TLS, how much that
    /// would be was not known before.
    #[inline]
    pub(super) fn note_all_read(&mut self, read: u64) {
        if let Some(news) = &mut self.news
            && let NewsStage::Told { until } = &mut news.stage
        {
            *until = read.min(*until);
        }
    }
}
