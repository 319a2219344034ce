//! The refused LOCKs of a connection that named a token. Several clients may use one token, so an UNLOCK or RENEW by
//! that token could meet another client's grant.
//!
//! Such a command acts only on a grant that can be its client's own. A refusal excludes the grants of the same token
//! that stood in the way of the LOCK, by their claims. It excludes no grant made since: that is the client's own,
//! made over another connection of its pool. Once the details of a refusal are forgotten, nothing tells the two cases
//! apart.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use smallvec::SmallVec;

use super::planted::{self, PlantedFault};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, SameToken},
};

/// Most refusals for which a connection remembers what stood in the way.
const MOST: usize = 256;
/// Number of 64-bit words of the set that remembers each older refusal by one bit.
const WORDS: usize = 256;

/// What stood in the way of a LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InTheWay {
    /// These grants of the same token.
    Grants(SmallVec<[Claim; 1]>),
    /// The LOCK was refused at this time. Whether the token then had the lock is not known: too few lock nodes have
    /// answered, or none was asked.
    Unknown(Instant),
    /// A grant that was made to the attempt itself, and given back untold.
    GivenBack(Option<Claim>),
    /// The details had to make room for later refusals.
    Forgotten,
}

impl InTheWay {
    /// Returns what stood in the way of a LOCK that was refused at `now`.
    pub(super) fn of(same_token: SameToken, now: Instant) -> InTheWay {
        match same_token {
            SameToken::Grants(grants) => InTheWay::Grants(grants),
            SameToken::Unknown => InTheWay::Unknown(now),
        }
    }

    /// Returns that only grants of other tokens stood in the way.
    pub(super) fn of_others() -> InTheWay {
        InTheWay::Grants(SmallVec::new())
    }

    /// Whether no grant of the token stood in the way.
    fn is_nothing(&self) -> bool {
        matches!(self, InTheWay::Grants(grants) if grants.is_empty())
    }

    /// Whether the grant with this claim stood in the way; `None` if that cannot be told. `granted_at`: when it was
    /// made, if that is known.
    pub(super) fn has(&self, claim: Claim, granted_at: Option<Instant>) -> Option<bool> {
        match self {
            _ if planted::has(PlantedFault::AnyGrant) => Some(true),
            InTheWay::Grants(grants) if grants.contains(&claim) => Some(true),
            InTheWay::Unknown(refused_at) if granted_at? < *refused_at => Some(true),
            InTheWay::GivenBack(own) => Some(*own == Some(claim)),
            // Whoever has taken the lock over may have it from a grant that stood in the way.
            InTheWay::Grants(_) | InTheWay::Unknown(_) => (!claim.is_taken_over()).then_some(false),
            InTheWay::Forgotten => None,
        }
    }
}

/// A LOCK that has begun.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) key: Key,
    /// The token that it names.
    pub(super) token: Option<Token>,
    pub(super) in_the_way: InTheWay,
    /// When it was refused, or began.
    pub(super) at: Instant,
}

/// The last LOCK or MLOCK of a connection, and its refused ones that named a token.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The LOCK under way, or the last one if it was refused.
    last: Option<Attempt>,
    /// The same of a MLOCK: an attempt for each of its locks.
    several: Vec<Attempt>,
    /// The last refusals, the oldest first, each with the hash of its key and token.
    refused: VecDeque<(u64, InTheWay)>,
    /// The refusals before those.
    forgotten: Option<Box<Bits>>,
}

impl Attempts {
    pub(super) const NONE: Attempts =
        Attempts { last: None, several: Vec::new(), refused: VecDeque::new(), forgotten: None };

    pub(super) fn begin(&mut self, key: Key, token: Option<Token>, now: Instant) {
        self.last = Some(Attempt { key, token, in_the_way: InTheWay::Unknown(now), at: now });
    }

    /// Notes that a MLOCK of these keys begins.
    pub(super) fn begin_several(&mut self, keys: &[Key], token: Option<&Token>, now: Instant) {
        let attempt = |key: &Key| {
            let (key, token) = (key.clone(), token.cloned());
            Attempt { key, token, in_the_way: InTheWay::Unknown(now), at: now }
        };
        self.several = keys.iter().map(attempt).collect();
    }

    /// Notes what stood in the way of the MLOCK under way, for each of its locks.
    pub(super) fn stood_in_the_way_of_each(&mut self, all: impl Iterator<Item = InTheWay>) {
        for (attempt, what) in self.several.iter_mut().zip(all) {
            (attempt.in_the_way, attempt.at) = (what, Instant::now());
        }
    }

    /// Notes that all locks of the MLOCK under way are granted.
    pub(super) fn all_granted(&mut self) {
        self.several.clear();
    }

    pub(super) fn stood_in_the_way(&mut self, what: InTheWay) {
        if let Some(attempt) = &mut self.last {
            (attempt.in_the_way, attempt.at) = (what, Instant::now());
        }
    }

    /// Notes that the LOCK under way is granted. Returns the token that it named; the outer `None` if no LOCK is
    /// under way.
    pub(super) fn granted(&mut self) -> Option<Option<Token>> {
        self.last.take().map(|attempt| attempt.token)
    }

    /// Returns the last LOCK, once, if it was refused; of a MLOCK, one lock after the other.
    #[inline]
    pub(super) fn ended(&mut self) -> Option<Attempt> {
        self.last.take().or_else(|| self.several.pop())
    }

    /// Remembers a refusal.
    pub(super) fn refused(&mut self, key: &Key, token: &Token, in_the_way: InTheWay) {
        let number = number_of(key, token);
        self.remove(number);
        // A grant that has the lock is told by at least one node of any quorum. If none of the token is told, those
        // noted before have ended. An entry must then say so only where the bits would say `Forgotten`.
        let may_be_forgotten = self.forgotten.as_ref().is_some_and(|bits| bits.may_have(number));
        if in_the_way.is_nothing() && !may_be_forgotten {
            return;
        }
        // By now the nodes have released what was given back.
        if self.refused.len() >= MOST
            && let Some((oldest, what)) = self.refused.pop_front()
            && !matches!(what, InTheWay::GivenBack(_))
        {
            self.forgotten.get_or_insert_default().add(oldest);
        }
        self.refused.push_back((number, in_the_way));
    }

    /// Returns what stood in the way of the last LOCK of this key and token, if it was refused.
    pub(super) fn in_the_way(&self, key: &Key, token: &Token) -> Option<InTheWay> {
        if self.refused.is_empty() && self.forgotten.is_none() {
            return None;
        }
        let number = number_of(key, token);
        let known = self.refused.iter().find(|(known, _)| *known == number);
        match (known, &self.forgotten) {
            (Some((_, in_the_way)), _) => Some(in_the_way.clone()),
            (None, Some(forgotten)) if forgotten.may_have(number) => Some(InTheWay::Forgotten),
            (None, _) => None,
        }
    }

    /// Forgets a refusal, unless it is remembered by one bit.
    pub(super) fn forget(&mut self, key: &Key, token: &Token) {
        if !self.refused.is_empty() {
            self.remove(number_of(key, token));
        }
    }

    fn remove(&mut self, number: u64) {
        // The number is nearly always the one noted last.
        if self.refused.back().is_some_and(|(last, _)| *last == number) {
            self.refused.pop_back();
        } else if self.refused.iter().any(|(known, _)| *known == number) {
            self.refused.retain(|(known, _)| *known != number);
        }
    }
}

/// Hashes a key with a token, seeded at random: clients choose both, and must not be able to make
/// two hashes collide.
fn number_of(key: &Key, token: &Token) -> u64 {
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHES.hash_one((key.number(), &**token))
}

/// A set of numbers with false positives.
#[derive(Debug)]
struct Bits([u64; WORDS]);

impl Default for Bits {
    fn default() -> Bits {
        Bits([0; WORDS])
    }
}

impl Bits {
    fn add(&mut self, number: u64) {
        if let Some(word) = self.0.get_mut(Bits::word(number)) {
            *word |= 1 << (number % 64);
        }
    }

    fn may_have(&self, number: u64) -> bool {
        self.0.get(Bits::word(number)).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    fn word(number: u64) -> usize {
        (number / 64) as usize % WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(all: &[Claim]) -> InTheWay {
        InTheWay::Grants(all.iter().copied().collect())
    }

    #[test]
    fn what_was_taken_over_since_a_refusal_may_have_stood_in_the_way() {
        let (refused_at, granted, taken) = (Instant::now(), Claim::new(), Claim::taken_over());
        let later = Some(refused_at + std::time::Duration::from_millis(1));
        for in_the_way in [InTheWay::Unknown(refused_at), InTheWay::of_others()] {
            assert_eq!(in_the_way.has(granted, later), Some(false), "{in_the_way:?}");
            assert_eq!(in_the_way.has(taken, later), None, "{in_the_way:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_about_the_grants_that_stood_in_the_way() {
        let (key, token, mut attempts) = (Key::from("k"), Token::from("t"), Attempts::default());
        let (first, second, now) = (Claim::new(), Claim::new(), Instant::now());
        attempts.refused(&key, &token, grants(&[first]));
        let known = attempts.in_the_way(&key, &token).unwrap();
        assert_eq!((known.has(first, None), known.has(second, None)), (Some(true), Some(false)));
        assert_eq!(attempts.in_the_way(&key, &Token::from("u")), None);
        attempts.refused(&key, &token, grants(&[]));
        assert_eq!(attempts.in_the_way(&key, &token), None, "others alone had it");
        attempts.refused(&key, &token, InTheWay::Unknown(now));
        let known = attempts.in_the_way(&key, &token).unwrap();
        let later = now + std::time::Duration::from_millis(1);
        assert_eq!(known.has(first, Some(later)), Some(false), "it was made since");
        assert_eq!(known.has(first, Some(now - std::time::Duration::from_millis(1))), Some(true));
        assert_eq!(known.has(first, None), None, "that cannot be told");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_makes_no_other_lock_doubtful() {
        let (token, mut attempts) = (Token::from("t"), Attempts::default());
        let key = |n: usize| Key::from(&n.to_string());
        let claim = Claim::new();
        for n in 0..100 * MOST {
            attempts.refused(&key(n), &token, InTheWay::GivenBack(Some(claim)));
        }
        assert!((0..99 * MOST).all(|n| attempts.in_the_way(&key(n), &token).is_none()));
        let last = attempts.in_the_way(&key(100 * MOST - 1), &token).unwrap();
        assert_eq!(
            (last.has(claim, None), last.has(Claim::new(), None)),
            (Some(true), Some(false))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_is_never_taken_for_what_was_not() {
        let (token, mut attempts) = (Token::from("t"), Attempts::default());
        let key = |n: usize| Key::from(&n.to_string());
        for n in 0..4 * MOST {
            attempts.refused(&key(n), &token, grants(&[Claim::new()]));
        }
        assert_eq!(attempts.refused.len(), MOST);
        let known = |n| attempts.in_the_way(&key(n), &token);
        assert!((0..3 * MOST).all(|n| known(n) == Some(InTheWay::Forgotten)));
        assert!((3 * MOST..4 * MOST).all(|n| matches!(known(n), Some(InTheWay::Grants(_)))));
        let wrong = (4 * MOST..12 * MOST).filter(|n| known(*n).is_some()).count();
        assert!(wrong < MOST, "{wrong} of {} that were never refused", 8 * MOST);
    }
}
