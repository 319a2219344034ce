//! The pieces in which bytes arrive.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Inputs up to this length are also cut byte by byte.
const BYTE_BY_BYTE: usize = 600;

/// Takes the seed for everything random from the first two bytes of an input.
pub fn seeded(input: &[u8]) -> (StdRng, &[u8]) {
    match input {
        [first, second, rest @ ..] => {
            (StdRng::seed_from_u64(u64::from(u16::from_le_bytes([*first, *second]))), rest)
        }
        short => (StdRng::seed_from_u64(0), short),
    }
}

/// Cuts at random places, or not at all, or byte by byte.
pub fn pieces<'a>(bytes: &'a [u8], rng: &mut StdRng) -> Vec<&'a [u8]> {
    match rng.random_range(0..6) {
        0 => vec![bytes],
        1 if bytes.len() < BYTE_BY_BYTE => bytes.chunks(1).collect(),
        2 if bytes.len() < BYTE_BY_BYTE => bytes.chunks(rng.random_range(2..8)).collect(),
        _ => {
            let (mut all, mut rest) = (Vec::new(), bytes);
            for _ in 0..rng.random_range(1..5) {
                let (piece, after) = rest.split_at(rng.random_range(0..=rest.len()));
                all.push(piece);
                rest = after;
            }
            all.push(rest);
            all
        }
    }
}

/// Cuts in several ways, one of them byte by byte where that is not too many.
pub fn ways<'a>(bytes: &'a [u8], rng: &mut StdRng) -> Vec<Vec<&'a [u8]>> {
    let mut ways: Vec<Vec<&[u8]>> = (0..3).map(|_| pieces(bytes, rng)).collect();
    if bytes.len() < BYTE_BY_BYTE {
        ways.push(bytes.chunks(1).collect());
    }
    ways
}
