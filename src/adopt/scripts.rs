//! What is known of scripts: those of libraries by their digests, others once a client has
//! shown them by EVAL or SCRIPT LOAD.

use std::collections::{HashMap, VecDeque};

use super::{
    normal::{self, Normal},
    rows::{self, Digest, Row},
};
use crate::sync::Mutex;

/// Scripts that are remembered at the same time. Each takes some 100 bytes; programs that paste
/// values into their scripts have more than any bound, and push out the oldest.
const MOST: usize = 4096;

/// What a script is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known {
    /// A library's.
    Row(&'static Row),
    /// One of the two great forms, if it is called with one key.
    Normal(Normal),
    /// A script that is not known.
    Nothing,
}

/// Scripts that clients have shown. Bodies are not kept.
#[derive(Default)]
pub(crate) struct KnownScripts {
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    by_digest: HashMap<Digest, Option<Normal>>,
    /// The oldest first.
    order: VecDeque<Digest>,
}

impl KnownScripts {
    /// What is known of the script with this digest; none: no client has shown it.
    pub(crate) fn get(&self, digest: &Digest) -> Option<Known> {
        if let Some(row) = rows::by_digest(digest) {
            return Some(Known::Row(row));
        }
        self.learned.lock().by_digest.get(digest).map(|normal| known(*normal))
    }

    /// Takes in a script that a client shows.
    pub(crate) fn learn(&self, body: &[u8]) -> (Digest, Known) {
        let digest = sha1_smol::Sha1::from(body).digest().bytes();
        if let Some(before) = self.get(&digest) {
            return (digest, before);
        }
        let normal = normal::of(body);
        let mut learned = self.learned.lock();
        if learned.by_digest.insert(digest, normal).is_none() {
            learned.order.push_back(digest);
        }
        if learned.order.len() > MOST
            && let Some(oldest) = learned.order.pop_front()
        {
            learned.by_digest.remove(&oldest);
        }
        (digest, known(normal))
    }
}

fn known(normal: Option<Normal>) -> Known {
    normal.map_or(Known::Nothing, Known::Normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_learned_and_the_oldest_forgotten() {
        let scripts = KnownScripts::default();
        let body = |n: usize| format!("return {n}");
        let (first, known) = scripts.learn(body(0).as_bytes());
        assert!(matches!(known, Known::Nothing));
        assert!(matches!(scripts.get(&first), Some(Known::Nothing)));
        for n in 0..=MOST {
            scripts.learn(body(n).as_bytes());
        }
        assert!(scripts.get(&first).is_none(), "bounded");
        assert_eq!(scripts.learned.lock().by_digest.len(), MOST);
        assert_eq!(scripts.learned.lock().order.len(), MOST);
    }
}
