//! Finds which words of a command are keys that it writes, by Redis's key specifications.
//!
//! A specification has two steps, as COMMAND tells them: where a group of keys begins, and how far
//! it goes. This module knows nothing of connections or rules.

use smallvec::SmallVec;

use crate::resp::number;

/// Where a group of keys begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At this word; the name is word 0.
    Index(usize),
    /// Behind this word, at each place from word `from` on; if `from` is negative, at each place up to
    /// that many words before the end. Redis reads options in any order and often uses the last one,
    /// so every place counts here.
    Keyword {
        /// The keyword; case does not matter.
        word: Vec<u8>,
        /// Where the search begins.
        from: i64,
    },
}

/// How far a group of keys goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Find {
    /// Up to the word `last`, counted from the first key, or from the end if negative.
    Range {
        last: i64,
        /// Distance from key to key, in words.
        step: usize,
        /// With `last` -1: only the first of this many equal parts of the words left.
        limit: usize,
    },
    /// As many keys as one of the words says.
    Count {
        /// Where the number stands, counted from the beginning of the group.
        number: usize,
        /// Where the first key is, counted likewise.
        first: usize,
        /// Distance from key to key, in words.
        step: usize,
    },
}

/// A group of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeySpec {
    pub begin: Begin,
    pub find: Find,
}

/// Positions of words.
pub(crate) type Positions = SmallVec<[usize; 4]>;

/// The most positions found in one command. A group begins wherever its keyword stands and may go to
/// the end, so a client could cause as many as there are pairs of words. One position more shows that
/// there are too many.
pub(crate) const MAX_POSITIONS: usize = 1 << 18;

impl KeySpec {
    /// Returns the specification of commands whose one key is right behind their name.
    pub(crate) fn first_word() -> KeySpec {
        KeySpec { begin: Begin::Index(1), find: Find::Range { last: 0, step: 1, limit: 0 } }
    }

    /// Adds the positions of the keys among these words, the name included. Positions without a
    /// word are left out: Redis refuses such a command.
    pub(crate) fn find<Word: AsRef<[u8]>>(&self, words: &[Word], found: &mut Positions) {
        match &self.begin {
            Begin::Index(index) => self.find_from(*index, words, found),
            Begin::Keyword { word, from } => {
                let (first, last) = match usize::try_from(*from) {
                    Ok(from) => (from, words.len()),
                    Err(_) => {
                        let back = usize::try_from(from.unsigned_abs()).unwrap_or(usize::MAX);
                        (1, (words.len() + 1).saturating_sub(back))
                    }
                };
                for at in (first..last).filter(|at| is_keyword(words[*at].as_ref(), word)) {
                    if found.len() > MAX_POSITIONS {
                        return;
                    }
                    self.find_from(at + 1, words, found);
                }
            }
        }
    }

    /// Adds the keys of the group that begins at `begin`.
    fn find_from<Word: AsRef<[u8]>>(&self, begin: usize, words: &[Word], found: &mut Positions) {
        let (first, last, step) = match self.find {
            Find::Range { last, step, limit } => {
                let left = words.len().saturating_sub(begin);
                let last = match last {
                    -1 if limit > 1 => (begin + left / limit).checked_sub(1),
                    0.. => usize::try_from(last).ok().and_then(|last| begin.checked_add(last)),
                    _ => usize::try_from(-last).ok().and_then(|back| words.len().checked_sub(back)),
                };
                (begin, last, step)
            }
            Find::Count { number, first, step } => {
                let count =
                    words.get(begin + number).and_then(|word| number::integer(word.as_ref()));
                let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
                let last = count
                    .checked_sub(1)
                    .map(|more| (begin + first).saturating_add(more.saturating_mul(step)));
                (begin + first, last, step)
            }
        };
        let Some(last) = last else { return };
        let all = (first..words.len().min(last.saturating_add(1))).step_by(step.max(1));
        found.extend(all.take((MAX_POSITIONS + 1).saturating_sub(found.len())));
    }
}

/// Whether Redis reads this word as the keyword: in any case, and up to a zero byte.
fn is_keyword(word: &[u8], keyword: &[u8]) -> bool {
    let end = memchr::memchr(0, word).unwrap_or(word.len());
    word[..end].eq_ignore_ascii_case(keyword)
}

/// Adds the words that a command may write by its options, whatever Redis answers about it: its answer
/// about SORT's options is not always what SORT does.
pub(crate) fn behind_options<Word: AsRef<[u8]>>(words: &[Word], found: &mut Positions) {
    for at in 2..words.len() {
        if is_keyword(words[at - 1].as_ref(), b"STORE") {
            found.push(at);
        }
    }
    // MIGRATE with several keys has an empty word in place of the first.
    if words.get(3).is_some_and(|word| word.as_ref().is_empty()) {
        let keys = (6..words.len()).find(|at| is_keyword(words[*at].as_ref(), b"KEYS"));
        found.extend(keys.unwrap_or(words.len()) + 1..words.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &KeySpec, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let mut positions = Positions::new();
        spec.find(&words, &mut positions);
        positions.iter().map(|at| words[*at].to_owned()).collect()
    }

    fn range(begin: usize, last: i64, step: usize) -> KeySpec {
        KeySpec { begin: Begin::Index(begin), find: Find::Range { last, step, limit: 0 } }
    }

    #[test]
    fn ranges_end_where_redis_ends_them() {
        assert_eq!(found(&KeySpec::first_word(), "SET k v"), ["k"]);
        assert_eq!(found(&range(1, -1, 1), "DEL a b c"), ["a", "b", "c"]);
        assert_eq!(found(&range(1, -1, 2), "MSET a 1 b 2"), ["a", "b"]);
        assert_eq!(found(&range(1, -2, 1), "BLPOP a b 0"), ["a", "b"]);
        assert_eq!(found(&range(1, 1, 1), "RENAME a b"), ["a", "b"]);
        assert_eq!(found(&range(2, 0, 1), "BITOP AND d a b"), ["d"]);
        assert!(found(&range(1, -1, 1), "DEL").is_empty());
        assert!(found(&range(5, 0, 1), "SET k v").is_empty());
        assert_eq!(found(&range(1, 3, 1), "X a"), ["a"]);
    }

    #[test]
    fn counted_keys_are_those_that_are_there() {
        let eval =
            KeySpec { begin: Begin::Index(2), find: Find::Count { number: 0, first: 1, step: 1 } };
        assert_eq!(found(&eval, "EVAL s 2 a b c"), ["a", "b"]);
        assert!(found(&eval, "EVAL s 0 a b c").is_empty());
        assert!(found(&eval, "EVAL s -1 a").is_empty());
        assert!(found(&eval, "EVAL s x a").is_empty());
        assert_eq!(found(&eval, "EVAL s 9223372036854775807 a"), ["a"]);
        assert!(found(&eval, "EVAL s").is_empty());
    }

    #[test]
    fn keywords_are_looked_for_from_both_ends() {
        let find = Find::Range { last: -1, step: 1, limit: 2 };
        let begin = Begin::Keyword { word: b"STREAMS".to_vec(), from: 4 };
        let streams = KeySpec { begin, find };
        assert_eq!(found(&streams, "XREADGROUP GROUP g c streams a b 1 2"), ["a", "b"]);
        assert!(found(&streams, "XREADGROUP GROUP STREAMS c x a").is_empty());
        let all = found(&streams, "XREADGROUP COUNT 1 GROUP STREAMS c STREAMS a 0");
        assert!(all.contains(&"a".to_owned()), "{all:?}");
        assert_eq!(found(&streams, "XREADGROUP GROUP g c streams\0 a 1"), ["a"]);
        let find = Find::Range { last: -1, step: 1, limit: 0 };
        let begin = Begin::Keyword { word: b"KEYS".to_vec(), from: -2 };
        let migrate = KeySpec { begin, find };
        assert_eq!(found(&migrate, "MIGRATE h p x 0 9 KEYS KEYS a"), ["KEYS", "a", "a"]);
        assert_eq!(found(&migrate, "MIGRATE h p x 0 9 KEYS a b"), ["a", "b"]);
        assert!(found(&migrate, "MIGRATE h p x 0 9").is_empty());
        assert!(found(&migrate, "M").is_empty());
        let find = Find::Range { last: 0, step: 1, limit: 0 };
        let store = KeySpec { begin: Begin::Keyword { word: b"STORE".to_vec(), from: 6 }, find };
        assert_eq!(found(&store, "GEORADIUS k 0 0 1 m STORE a STORE b STORE"), ["a", "b"]);
    }

    #[test]
    fn a_keyword_at_each_place_does_not_multiply() {
        let find = Find::Range { last: -1, step: 1, limit: 2 };
        let begin = Begin::Keyword { word: b"STREAMS".to_vec(), from: 4 };
        let mut positions = Positions::new();
        KeySpec { begin, find }.find(&vec!["STREAMS"; 100_000], &mut positions);
        assert_eq!(positions.len(), MAX_POSITIONS + 1);
    }

    #[test]
    fn what_options_may_write_is_found_without_redis() {
        let found = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let mut positions = Positions::new();
            behind_options(&words, &mut positions);
            positions.iter().map(|at| words[*at].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found("SORT l STORE BY store\0 k"), ["BY", "k"]);
        assert!(found("SORT STORE").is_empty());
        assert_eq!(found("MIGRATE h p  0 9 COPY KEYS a b"), ["a", "b"]);
        assert!(found("MIGRATE h p k 0 9 KEYS a b").is_empty());
    }
}
