//! What is known of scripts: those of the configuration and of libraries by their digests, others
//! once a client has shown them by EVAL or SCRIPT LOAD.

use std::collections::{HashMap, VecDeque};

use super::{
    first_free::{self, FirstFree},
    idiom::OtherKind,
    normal::{self, Normal},
    rows::{self, Digest, Row},
};
use crate::{config::AdoptRule, sync::Mutex};

/// The most scripts that are remembered. Each takes some 100 bytes; programs that paste values into
/// their scripts have more than any bound, and push out the oldest.
const MOST: usize = 4096;

/// Commands on hashes in scripts of locks.
const HASH_WORDS: [&str; 7] = ["hset", "hsetnx", "hget", "hexists", "hincrby", "hdel", "hmset"];
/// Commands on sorted sets in scripts of locks.
const SORTED_SET_WORDS: [&str; 6] =
    ["zadd", "zscore", "zcard", "zrem", "zrangebyscore", "zremrangebyscore"];

/// What a script is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<'a> {
    /// A library's, or one of the configuration.
    Row(&'a Row),
    /// A compare-and-delete or a compare-and-expire, if it is called with one key.
    Normal(Normal),
    /// A script that takes the first free one of its keys.
    FirstFree(FirstFree),
    /// A script that is not known, and what else than a lock it is about.
    Nothing(OtherKind),
}

/// Scripts of the configuration, and those that clients have shown. Bodies are not kept.
#[derive(Default)]
pub(crate) struct KnownScripts {
    /// The scripts of the configuration, by the number of the rule and by digest.
    configured: HashMap<(usize, Digest), Row>,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    /// What is known of the scripts shown that no [`Row`] describes.
    by_digest: HashMap<Digest, Known<'static>>,
    /// The oldest first.
    order: VecDeque<Digest>,
}

impl KnownScripts {
    /// Makes the collection of scripts, with those of these rules.
    pub(crate) fn of(rules: &[AdoptRule]) -> KnownScripts {
        let scripts = rules.iter().enumerate().flat_map(|(rule, AdoptRule { scripts, .. })| {
            scripts.iter().map(move |script| ((rule, script.digest), rows::of_configured(script)))
        });
        KnownScripts { configured: scripts.collect(), ..KnownScripts::default() }
    }

    /// Returns what is known, under this rule, of the script with this digest; `None`: no client has
    /// shown it.
    pub(crate) fn get(&self, digest: &Digest, rule: Option<usize>) -> Option<Known<'_>> {
        if let Some(row) = rule.and_then(|rule| self.configured.get(&(rule, *digest))) {
            return Some(Known::Row(row));
        }
        if let Some(row) = rows::by_digest(digest) {
            return Some(Known::Row(row));
        }
        self.learned.lock().by_digest.get(digest).copied()
    }

    /// Takes in a script that a client shows, for a key of this rule or for no key.
    pub(crate) fn learn(&self, body: &[u8], rule: Option<usize>) -> (Digest, Known<'_>) {
        let digest = sha1_smol::Sha1::from(body).digest().bytes();
        if let Some(before) = self.get(&digest, rule) {
            return (digest, before);
        }
        let known = (normal::of(body).map(Known::Normal))
            .or_else(|| first_free::of(body).map(Known::FirstFree))
            .unwrap_or_else(|| Known::Nothing(kind(body)));
        let mut learned = self.learned.lock();
        if learned.by_digest.insert(digest, known).is_none() {
            learned.order.push_back(digest);
        }
        if learned.order.len() > MOST
            && let Some(oldest) = learned.order.pop_front()
        {
            learned.by_digest.remove(&oldest);
        }
        (digest, known)
    }
}

/// Returns what an unknown script is about, by the names of commands in it: a hint for the reader of
/// the error.
fn kind(body: &[u8]) -> OtherKind {
    let words = body.split(|byte| !byte.is_ascii_alphanumeric());
    let has = |names: &[&str], word: &[u8]| {
        names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    words.fold(OtherKind::Any, |kind, word| match kind {
        OtherKind::Hash => kind,
        _ if has(&HASH_WORDS, word) => OtherKind::Hash,
        _ if has(&SORTED_SET_WORDS, word) => OtherKind::SortedSet,
        _ => kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_learned_and_the_oldest_forgotten() {
        let scripts = KnownScripts::default();
        let body = |n: usize| format!("return {n}");
        let (first, known) = scripts.learn(body(0).as_bytes(), None);
        assert!(matches!(known, Known::Nothing(OtherKind::Any)));
        assert!(matches!(scripts.get(&first, None), Some(Known::Nothing(OtherKind::Any))));
        for n in 0..=MOST {
            scripts.learn(body(n).as_bytes(), None);
        }
        assert!(scripts.get(&first, None).is_none(), "bounded");
        assert_eq!(scripts.learned.lock().by_digest.len(), MOST);
        assert_eq!(scripts.learned.lock().order.len(), MOST);
    }

    #[test]
    fn unknown_scripts_are_called_by_what_they_use() {
        for (body, expected) in [
            ("return 1", OtherKind::Any),
            ("return redis.call('HEXISTS', KEYS[1], ARGV[2])", OtherKind::Hash),
            ("redis.call('zadd', KEYS[1], 1, ARGV[1])", OtherKind::SortedSet),
            ("redis.call('zadd', KEYS[2], 1, 'x') redis.call('hset', KEYS[1])", OtherKind::Hash),
            ("return redis.call('get', 'ahset')", OtherKind::Any),
        ] {
            assert_eq!(kind(body.as_bytes()), expected, "{body}");
        }
    }
}
