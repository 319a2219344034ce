//! Checks that [`properties`] hold for any bytes: for interesting inputs found before, and for a fixed number made
//! from them.
//!
//! `make fuzz` looks for more, guided by coverage. `LOCKGATE_TEST_SEED=n` makes other inputs here.
//!
//! These tests have a binary of their own, because it shares its properties with `fuzz/` and keeps the machine busy.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod mutate;
mod properties;

use std::{fs, path::Path, thread};

use properties::{
    bodies, configuration, differential::Twins, grammar, node_replies, replies, requests,
};
use rand::{SeedableRng, rngs::StdRng};

/// Prints the current input if the test fails.
struct AtHand {
    what: String,
    input: Vec<u8>,
}

impl Drop for AtHand {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("it was {}: b\"{}\"", self.what, self.input.escape_ascii());
        }
    }
}

/// Checks the target's corpus, and then `count` inputs made from it.
fn run(target: &str, count: u64, mut check: impl FnMut(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzzing/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has nothing in it", dir.display());
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for (file, input) in files.iter().zip(&corpus) {
        let at_hand = AtHand { what: file.display().to_string(), input: input.clone() };
        check(&at_hand.input);
    }
    let first = std::env::var("LOCKGATE_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + count {
        let input = mutate::input(&corpus, &mut StdRng::seed_from_u64(seed));
        let at_hand = AtHand { what: format!("{target}, LOCKGATE_TEST_SEED={seed}"), input };
        check(&at_hand.input);
    }
}

#[test]
fn requests_are_scanned_alike_however_they_are_split() {
    run("requests", 10_000, requests::check);
}

#[test]
fn replies_are_scanned_alike_however_they_are_split() {
    run("replies", 10_000, replies::check);
}

#[test]
fn lines_and_words_are_read_as_meant_or_refused_in_one_line() {
    run("grammar", 40_000, grammar::check);
}

#[test]
fn any_body_of_a_script_is_read_on_a_small_stack() {
    run("bodies", 3_000, bodies::check);
}

#[test]
fn any_configuration_is_read_or_refused_without_a_secret() {
    run("configuration", 1000, configuration::check);
}

#[test]
fn any_reply_of_a_node_is_votes_or_garbage() {
    run("node_replies", 20_000, node_replies::check);
}

#[test]
fn any_script_is_answered_as_by_redis() {
    let mut twins = Twins::start();
    run("differential", 500, |input| twins.check(input));
}
