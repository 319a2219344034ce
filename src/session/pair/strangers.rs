//! Tests of clients that the data node has not let in: nothing that they send is learned, counted or told.

use super::*;
use crate::config::{AdoptMode, AdoptOptions, AdoptRule};

const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                       return redis.call('del', KEYS[1]) else return 0 end -- mine";

/// Makes the session of a client that has sent nothing yet, with a rule in this mode: the key `old:X` is the lock X.
fn stranger(mode: AdoptMode) -> Pair {
    let mut config = Config::default();
    config.adopt.rules.push(AdoptRule {
        keys: Pattern::new("old:*"),
        lock: Some(Template::new("{1}").unwrap()),
        mode,
        options: AdoptOptions::default(),
        scripts: Vec::new(),
    });
    let mut pair = Pair::with(config);
    pair.core.desk.conn.state.known = false;
    pair
}

/// Returns how many idioms were counted.
fn seen(pair: &Pair) -> u64 {
    pair.core.desk.shared.adoption.as_ref().unwrap().totals().seen
}

/// Returns how many refusals were counted.
fn refused(pair: &Pair) -> u64 {
    pair.core.desk.shared.adoption.as_ref().unwrap().totals().refused
}

fn log_in(pair: &mut Pair) {
    pair.commands(&[&["AUTH", "secret"]]);
    pair.reply("+OK\r\n");
    pair.at_data();
    pair.at_client();
}

#[tokio::test(start_paused = true)]
async fn what_passes_counts_once_the_data_node_has_let_the_client_send_it() {
    let all: [&[&str]; 3] = [
        &["SET", "old:a", "t", "NX", "PX", "1000"],
        &["EVAL", RELEASE, "1", "old:a", "t"],
        &["GET", "old:a"],
    ];
    for cut in [0, 1, 60, 150] {
        let bytes: Vec<u8> = all.iter().flat_map(|words| command(words)).collect();
        let mut pair = stranger(AdoptMode::Audit);
        let send = |pair: &mut Pair| {
            pair.send(&bytes[..cut]);
            pair.send(&bytes[cut..]);
            assert_eq!(pair.at_data().as_bytes(), bytes);
            seen(pair)
        };
        assert_eq!(send(&mut pair), 0);
        pair.reply(&NOAUTH.repeat(3));
        assert_eq!(seen(&pair), 0, "{cut}: of a stranger");
        log_in(&mut pair);
        assert_eq!(send(&mut pair), 0);
        pair.reply("-NOPERM x\r\n-NOPERM x\r\n-NOPERM x\r\n");
        assert_eq!(seen(&pair), 0, "{cut}: of a client that may not");
        assert_eq!(send(&mut pair), 0);
        for (counted, reply) in ["+OK\r\n", ":1\r\n", "$-1\r\n"].into_iter().enumerate() {
            assert_eq!(seen(&pair), counted as u64);
            pair.reply(reply);
        }
        assert_eq!(seen(&pair), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_replies_is_bounded() {
    let mut pair = stranger(AdoptMode::Audit);
    for _ in 0..2000 {
        pair.commands(&[&["EVAL", RELEASE, "1", "old:a", "t"], &["GET", "old:a"], &["PING"]]);
    }
    pair.reply(&NOAUTH.repeat(6000));
    assert_eq!((seen(&pair), pair.core.is_at_rest()), (0, true));
    log_in(&mut pair);
    for _ in 0..2000 {
        pair.commands(&[&["GET", "old:a"], &["PING"]]);
    }
    pair.reply(&"+PONG\r\n".repeat(4000));
    assert_eq!((seen(&pair), pair.core.is_at_rest()), (2000, true));
}

#[tokio::test(start_paused = true)]
async fn a_script_is_learned_from_clients_that_may_run_it() {
    let mut pair = stranger(AdoptMode::Enforce);
    let digest = sha1_smol::Sha1::from(RELEASE).digest().to_string();
    let call: &[&str] = &["EVALSHA", &digest, "1", "old:a", "t"];
    for words in [&["SCRIPT", "LOAD", RELEASE][..], &["EVAL", RELEASE, "1", "old:a", "t"]] {
        pair.commands(&[words, &["GET", "b"]]);
        assert_eq!(pair.at_data(), text(&["PING"]));
        pair.reply(NOAUTH);
        assert_eq!(pair.at_client(), NOAUTH, "the data node's own words");
        assert_eq!(pair.at_data(), text(&["GET", "b"]));
        pair.reply(NOAUTH);
        pair.at_client();
    }
    log_in(&mut pair);
    pair.commands(&[call]);
    pair.reply("-ERR syntax error\r\n");
    assert!(pair.at_client().starts_with("-NOSCRIPT"));
    pair.at_data();
    pair.commands(&[&["SCRIPT", "LOAD", RELEASE]]);
    assert_eq!(pair.at_data(), text(&["SCRIPT", "LOAD", RELEASE]));
    pair.reply(&format!("$40\r\n{digest}\r\n"));
    pair.commands(&[call]);
    assert!(matches!(pair.question(), Question::Unlock { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_counts_of_a_client_that_may() {
    let mut pair = stranger(AdoptMode::Enforce);
    for (replies, counted) in [(NOAUTH, 0), ("-NOPERM no\r\n", 0), ("-ERR syntax error\r\n", 1)] {
        pair.commands(&[&["APPEND", "old:a", "x"]]);
        pair.reply(replies);
        assert!(pair.at_client().starts_with('-'));
        assert_eq!((refused(&pair), seen(&pair)), (counted, counted), "{replies}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stranger_is_not_told_which_keys_are_guarded() {
    let mut pair = Pair::guarded();
    pair.core.desk.conn.state.known = false;
    pair.commands(&[&["SET", "g:k", "1"], &["GET", "a"]]);
    pair.send(b"SET g:k 2\r\n");
    assert_eq!(pair.at_data(), text(&["PING"]));
    pair.reply(NOAUTH);
    assert_eq!((pair.at_client(), pair.at_data()), (NOAUTH.to_owned(), text(&["GET", "a"])));
    pair.reply(NOAUTH);
    assert_eq!(pair.at_data(), text(&["PING"]), "the next one");
    pair.reply(NOAUTH);
    assert_eq!(pair.at_client(), NOAUTH.repeat(2));
    assert!(pair.core.is_at_rest());
    // A client that may not send PING has been let in all the same.
    pair.commands(&[&["SET", "g:k", "1"]]);
    pair.reply("-NOPERM this user has no permissions to run the 'ping' command\r\n");
    assert!(pair.at_client().starts_with("-NOTHELD 'g:k'"));
}
