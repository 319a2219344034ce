//! Commands that begin as the one before, up to the end of their name: pipelines are
//! full of them, and what was found out about one is true of the next.
//!
//! Scanning a GET takes 189 instructions at depth 16, where there are guards; 489 without this.

use super::name::Name;

/// Where the name begins in the commands that are remembered: behind a head as in
/// `*2\r\n$3\r\n`, of less than ten words and a name of at most eight letters.
pub(super) const NAME_AT: usize = 8;

/// What was found out about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beginning {
    pub(super) name: Name,
    /// Number of words, the name included.
    pub(super) arguments: usize,
    /// Of the name, in bytes.
    pub(super) length: usize,
}

/// The last command, if it can be remembered.
#[derive(Debug, Default)]
pub(super) struct Last {
    /// Its first eight bytes.
    head: u64,
    /// Its name, filled up with zeros.
    name: u64,
    /// Which of eight bytes are its name.
    mask: u64,
    /// None: there is none.
    beginning: Option<Beginning>,
}

/// Head and name, and what is behind a short one.
#[inline]
fn two(bytes: &[u8]) -> Option<(u64, u64)> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*head), u64::from_le_bytes(*rest.first_chunk::<8>()?)))
}

impl Last {
    /// What is known of the command at the beginning of `bytes`, if it begins as the last.
    #[inline]
    pub(super) fn again(&self, bytes: &[u8]) -> Option<Beginning> {
        let (head, name) = two(bytes)?;
        if head == self.head && name & self.mask == self.name { self.beginning } else { None }
    }

    /// There is no last command.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.beginning = None;
    }

    /// The command at the beginning of `bytes` is the last. Its name, at `name_at`, is all
    /// that it is known by.
    #[inline]
    pub(super) fn remember(&mut self, bytes: &[u8], name_at: usize, beginning: Beginning) {
        self.forget();
        if name_at == NAME_AT
            && (1..=8).contains(&beginning.length)
            && let Some((head, name)) = two(bytes)
        {
            self.mask = u64::MAX >> (64 - 8 * beginning.length);
            (self.head, self.name) = (head, name & self.mask);
            self.beginning = Some(beginning);
        }
    }
}
