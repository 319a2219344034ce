//! How bytes fall apart on their way.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Inputs up to this long are also shown byte by byte.
const BYTE_BY_BYTE: usize = 600;

/// Takes the seed of everything random from an input's first two bytes.
pub fn seeded(input: &[u8]) -> (StdRng, &[u8]) {
    match input {
        [first, second, rest @ ..] => {
            (StdRng::seed_from_u64(u64::from(u16::from_le_bytes([*first, *second]))), rest)
        }
        short => (StdRng::seed_from_u64(0), short),
    }
}

/// Cuts at random places: whole, in a few pieces, or byte by byte.
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

/// Several ways to cut, byte by byte among them where that is not too many.
pub fn ways<'a>(bytes: &'a [u8], rng: &mut StdRng) -> Vec<Vec<&'a [u8]>> {
    let mut ways: Vec<Vec<&[u8]>> = (0..3).map(|_| pieces(bytes, rng)).collect();
    if bytes.len() < BYTE_BY_BYTE {
        ways.push(bytes.chunks(1).collect());
    }
    ways
}
