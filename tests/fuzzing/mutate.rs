//! Makes inputs from other inputs, as a fuzzer does, but the same ones each time.

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};

/// The longest input.
const MOST: usize = 1500;

/// Parts of the grammars under test.
const TOKENS: [&str; 40] = [
    "\r\n",
    "\n",
    "\r",
    "*1\r\n",
    "*2\r\n",
    "*3\r\n",
    "*0\r\n",
    "*-1\r\n",
    "$4\r\n",
    "$0\r\n",
    "$-1\r\n",
    ":1\r\n",
    ":-1\r\n",
    "+OK\r\n",
    "%1\r\n",
    ">2\r\n",
    "~1\r\n",
    "|1\r\n",
    "_\r\n",
    "$5\r\n",
    "LOCK",
    "UNLOCK",
    "CLIENT",
    "REPLY",
    "COMMAND",
    "DOCS",
    "MULTI",
    "EXEC",
    "SUBSCRIBE",
    "\"",
    "'",
    "\\x41",
    "9223372036854775807",
    "-9223372036854775808",
    "locks:\n",
    "  nodes: ",
    "redis://h:1",
    "10s",
    "${U}",
    "- ",
];

/// Returns one of `corpus` with some bytes changed, or random bytes.
pub(crate) fn input(corpus: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut input = match corpus.choose(rng) {
        Some(seed) if rng.random_bool(0.8) => seed.clone(),
        _ => {
            let length = rng.random_range(0..400);
            (0..length).map(|_| rng.random()).collect()
        }
    };
    for _ in 0..rng.random_range(0..8) {
        let at = rng.random_range(0..=input.len());
        let end = rng.random_range(at..=input.len().min(at + 40));
        match rng.random_range(0..7) {
            0 if at < input.len() => input[at] = rng.random(),
            1 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            2 => drop(input.drain(at..end)),
            3 => drop(input.splice(at..at, input[at..end].to_vec())),
            4 => {
                let other = corpus.choose(rng).map_or(&[][..], Vec::as_slice);
                let from = rng.random_range(0..=other.len());
                input.splice(at..at, other[from..].iter().copied());
            }
            5 => {
                // A chain, or a nesting.
                let token = TOKENS.choose(rng).copied().unwrap_or_default();
                let times = 1 << rng.random_range(0..10);
                input.splice(at..at, token.repeat(times).bytes());
            }
            _ => {
                let token = TOKENS.choose(rng).copied().unwrap_or_default();
                input.splice(at..at, token.bytes());
            }
        }
    }
    input.truncate(MOST);
    input
}
