//! Patterns of guards match the keys that Redis's KEYS returns for them.

use crate::support::{Client, Reply};
use lockgate::{config::Pattern, tools::redis_server::RedisServer};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};

/// All characters that have a meaning in patterns, and some that have none.
const ALPHABET: [&str; 9] = ["a", "b", "c", "*", "[", "]", "^", "-", "\\"];

/// Returns all texts of one to `length` letters.
fn texts(length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut from = 0;
    for _ in 0..length {
        let shorter = all[from..].to_vec();
        from = all.len();
        for text in shorter {
            all.extend(ALPHABET.iter().map(|letter| text.clone() + letter));
        }
    }
    // The empty key is left out: KEYS * returns it by a shortcut, but Redis's star does not match the empty text.
    all.split_off(1)
}

#[test]
fn a_pattern_matches_what_keys_gives_for_it() {
    let redis = RedisServer::start(&[]).unwrap();
    let mut client = Client::connect(redis.port());
    let keys = texts(3);
    for keys in keys.chunks(100) {
        let words: Vec<_> =
            ["MSET"].into_iter().chain(keys.iter().flat_map(|key| [key.as_str(), "1"])).collect();
        assert_eq!(client.cmd(&words), Reply::ok());
    }
    // All short patterns, and random longer ones.
    let mut patterns = texts(3);
    let letter = proptest::sample::select([&ALPHABET[..], &["?", "*"]].concat());
    let longer = proptest::collection::vec(letter, 4..10);
    let mut runner = TestRunner::default();
    for _ in 0..4000 {
        patterns.push(longer.new_tree(&mut runner).unwrap().current().concat());
    }
    for patterns in patterns.chunks(100) {
        let commands: Vec<_> = patterns.iter().map(|text| ["KEYS", text]).collect();
        let commands: Vec<_> = commands.iter().map(|words| &words[..]).collect();
        for (text, reply) in patterns.iter().zip(client.pipe(&commands)) {
            let Reply::Array(found) = reply else { panic!("{text}: {reply:?}") };
            let mut found: Vec<_> = found
                .into_iter()
                .map(|key| match key {
                    Reply::Bulk(key) => String::from_utf8(key).unwrap(),
                    other => panic!("{text}: {other:?}"),
                })
                .collect();
            found.sort();
            let pattern = Pattern::new(text);
            let mut matched: Vec<_> =
                keys.iter().filter(|key| pattern.matches(key.as_bytes())).cloned().collect();
            matched.sort();
            assert_eq!(matched, found, "{text}");
            for key in &matched {
                let captures = pattern.captures(key.as_bytes()).unwrap();
                assert_eq!(captures.len(), pattern.stars(), "{text} {key}");
            }
        }
    }
}
