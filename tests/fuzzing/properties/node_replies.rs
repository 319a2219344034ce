//! Any bytes from a lock node are votes or garbage, with the same result however they are split.

use lockgate::lock::{VotesRead, read_votes};

use super::pieces::{seeded, ways};

/// Reads `pieces` as a connection does: incomplete replies are kept.
fn read(pieces: &[&[u8]]) -> VotesRead {
    let (mut all, mut kept) = (VotesRead::default(), Vec::new());
    for piece in pieces {
        kept.extend_from_slice(piece);
        let read = read_votes(&kept);
        all.votes.extend(read.votes);
        assert!(read.used <= kept.len());
        all.used += read.used;
        kept.drain(..read.used);
        if read.garbage {
            all.garbage = true;
            break;
        }
    }
    all
}

/// Checks an input: two bytes of seed, then the bytes of a lock node.
pub fn check(input: &[u8]) {
    let (mut rng, bytes) = seeded(input);
    let whole = read(&[bytes]);
    for [by_numbers, decoded] in &whole.votes {
        assert_eq!(by_numbers, decoded);
    }
    for pieces in ways(bytes, &mut rng) {
        assert_eq!(read(&pieces), whole, "cut into {pieces:?}");
    }
}
