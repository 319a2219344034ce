//! A connection's experience with the short way: whether its client may use it, and how many writes
//! are worth putting into one call.

use crate::guard::write::MAX_WRITES;

/// The most writes of any call, as limits count them.
const MOST: u32 = MAX_WRITES as u32;

/// A connection's experience with the short way.
#[derive(Debug, Default)]
pub(in crate::session) struct ShortWay {
    /// This client may not call scripts.
    is_forbidden: bool,
    together: Limit,
}

impl ShortWay {
    pub(super) fn is_open(&self) -> bool {
        !self.is_forbidden
    }

    pub(super) fn forbid(&mut self) {
        self.is_forbidden = true;
    }

    /// Returns the most writes that the next call may have.
    pub(super) fn most(&self) -> usize {
        self.together.0 as usize
    }

    /// Notes that `made` of the `tried` writes in one call were carried out.
    pub(super) fn note(&mut self, tried: usize, made: usize) {
        self.together.note(tried, made);
    }
}

/// The most writes that the next call may have. Writes that a call has not carried out were sent in vain, so the next
/// call begins small again.
#[derive(Debug, Clone, Copy)]
struct Limit(u32);

impl Default for Limit {
    fn default() -> Limit {
        Limit(MOST)
    }
}

impl Limit {
    fn note(&mut self, tried: usize, made: usize) {
        if made == tried {
            self.0 = (self.0 * 2).min(MOST);
        } else if tried > 1 {
            self.0 = 1;
        }
    }
}
