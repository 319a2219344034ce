//! What is reported of one command on an adopted key.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use smallvec::SmallVec;

use super::{by_holder::Replies, idiom::Op, rows::Digest, verdict::AdoptVerdict};

/// An idiom on an adopted key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// The rule that its key matches; `None`: too little of the command could be looked at to tell.
    pub(crate) rule: Option<usize>,
    /// What the command does to the lock.
    pub(crate) op: Op,
    /// The words that stand for the command.
    pub(crate) form: &'static str,
    /// The script's library; empty if that is not known.
    pub(crate) library: &'static str,
    /// The digest of a script whose library is not known.
    pub(crate) digest: Option<Digest>,
    /// What would become of the command.
    pub(crate) verdict: AdoptVerdict,
    /// The verdict's reason, or what the script does besides; may be empty.
    pub(crate) because: &'static str,
    /// A script's replies.
    pub(crate) replies: Option<Replies>,
    /// The TTL that was asked for; in a list of what was seen, the longest. `None`: none was given.
    pub(crate) ttl: Option<Duration>,
}

impl Sighting {
    pub(super) fn new(
        rule: Option<usize>,
        op: Op,
        (verdict, because): (AdoptVerdict, &'static str),
    ) -> Sighting {
        let (form, library, digest, replies, ttl) = ("", "", None, None, None);
        Sighting { rule, op, form, library, digest, verdict, because, replies, ttl }
    }
}

/// Hashes only the lengths of the texts, as each adopted command's sighting is looked up among those
/// seen: hashing the texts took a twentieth of the proxy's instructions for an adopted lock.
impl Hash for Sighting {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Sighting { rule, op, form, library, digest, verdict, because, .. } = self;
        state.write_usize(rule.map_or(0, |rule| rule + 1));
        let texts = [form.len(), library.len(), because.len()];
        let texts = texts.iter().fold(0, |all, length| all * 256 + length);
        state.write_usize((texts << 16) + ((*op as usize) << 8) + *verdict as usize);
        if let Some(digest) = digest {
            digest.hash(state);
        }
    }
}

/// The sightings to be noted after a command.
pub(crate) type Sightings = SmallVec<[Sighting; 2]>;
