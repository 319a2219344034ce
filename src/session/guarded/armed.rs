//! Fences that the data node watches for the client's own transaction.

use crate::{guard::fences::FencedLock, key::Key};

/// The locks of the client's transaction whose fences are watched, and why those of others are not.
#[derive(Debug, Default)]
pub(in crate::session) struct Armed {
    pub(super) claims: Vec<FencedLock>,
    /// Why this lock's fence is not watched; without a key, why no fence is.
    pub(super) refused: Vec<(Option<Key>, Vec<u8>)>,
    /// A guarded write was queued.
    pub(super) has_writes: bool,
}

impl Armed {
    pub(super) fn watches(&self, claim: &FencedLock) -> bool {
        self.claims.iter().any(|other| other.key == claim.key && other.fence == claim.fence)
    }

    pub(super) fn refused(&self, key: &Key) -> Option<Vec<u8>> {
        let of = |(other, _): &&(Option<Key>, Vec<u8>)| other.as_ref().is_none_or(|o| o == key);
        self.refused.iter().find(of).map(|(_, error)| error.clone())
    }
}
