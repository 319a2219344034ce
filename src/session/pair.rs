//! A session between two byte strings: what its client and its data node send and get, with the
//! answers of others given by hand. No sockets, no tasks.
//!
//! Ordering and guards are tried here in milliseconds where no Redis is needed to know what is
//! right; `tests/` has the same against a real one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::{
    Shared, Taken,
    core::{Core, Tracking},
    desk::Desk,
    idle::Idle,
    jobs::{Answer, Question},
    metrics::Metrics,
};
use crate::{
    clock::Instant,
    config::{Config, GuardRule, Pattern, Policy, Template},
    guard::Guards,
    lock::{Claim, Engine, Grant, NotGranted},
    resp::encode,
};

/// A session, and what has come out of it.
struct Pair {
    core: Core,
    data: Vec<u8>,
    client: Vec<u8>,
}

impl Pair {
    /// Whoever writes to `g:X` needs the lock X.
    fn new() -> Pair {
        let rule = GuardRule {
            keys: Pattern::new("g:*"),
            lock: Template::new("{1}").unwrap(),
            policy: Policy::Enforce,
        };
        let mut config = Config::default();
        config.guards.rules.push(rule);
        // Asked by hand, they need not be there.
        let engine = Engine::start(&config.locks);
        let shared = Arc::new(Shared {
            engine,
            metrics: Metrics::new(),
            guards: Some(Guards::of_few_commands(&config)),
            config: ArcSwap::from_pointee(config),
            idle: Arc::new(Idle::default()),
            ahead: Arc::new(Taken::default()),
            clients: AtomicUsize::new(0),
            started: tokio::time::Instant::now(),
            listen: Vec::new(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            abort: CancellationToken::new(),
        });
        Pair { core: Core::new(Desk::new(shared)), data: Vec::new(), client: Vec::new() }
    }

    /// All that goes on by itself.
    fn settle(&mut self) {
        loop {
            self.core.go_on();
            self.core.push_losses();
            self.data.append(&mut self.core.desk.to_data.take());
            self.client.append(&mut self.core.to_client.take());
            if !self.core.must_look_again() {
                return;
            }
            let (held, range) = self.core.look_again().unwrap();
            self.data.append(&mut self.core.desk.to_data.take());
            self.data.extend_from_slice(&held[range]);
        }
    }

    /// The client sends this.
    fn send(&mut self, bytes: &[u8]) {
        self.core.read += bytes.len() as u64;
        if self.core.is_waiting() || self.core.is_gathering() {
            self.core.client_sent_more(bytes).unwrap();
        } else {
            let bytes = [&std::mem::take(&mut self.core.desk.held)[..], bytes].concat();
            let range = self.core.client_sent(&bytes).unwrap();
            self.data.append(&mut self.core.desk.to_data.take());
            self.data.extend_from_slice(&bytes[range]);
        }
        self.settle();
    }

    fn commands(&mut self, commands: &[&[&str]]) {
        self.send(&commands.iter().flat_map(|words| command(words)).collect::<Vec<_>>());
    }

    /// The data node answers this.
    fn reply(&mut self, bytes: &str) {
        let from = self.core.data_sent(bytes.as_bytes());
        self.client.append(&mut self.core.to_client.take());
        self.client.extend_from_slice(&bytes.as_bytes()[from..]);
        self.settle();
    }

    /// What others are asked.
    fn question(&mut self) -> Question {
        *self.core.question().expect("nothing is asked")
    }

    fn answer(&mut self, answer: Answer) {
        self.core.answer(answer);
        self.settle();
    }

    /// What has come to the data node since it was last looked.
    fn at_data(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.data)).unwrap()
    }

    /// What has come to the client since it was last looked.
    fn at_client(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.client)).unwrap()
    }

    /// The client locks X and is granted it for ten seconds, with this fence.
    fn lock(&mut self, name: &str, fence: u64) {
        self.commands(&[&["LOCK", name, "t", "PX", "10000"]]);
        if !self.at_data().is_empty() {
            self.reply("-ERR syntax error\r\n");
        }
        assert!(matches!(self.question(), Question::Lock { .. }));
        self.answer(granted(fence));
        let raise = self.at_data();
        assert!(raise.contains("EVAL") && raise.contains(&format!("lock:{name}")), "{raise}");
        assert_eq!(self.at_client(), "", "not before the data node has taken the fence");
        self.reply(&format!("${}\r\n{fence}\r\n", fence.to_string().len()));
        assert!(self.at_client().starts_with("*3\r\n$1\r\nt\r\n"));
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::command(&mut bytes, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    bytes
}

fn text(words: &[&str]) -> String {
    String::from_utf8(command(words)).unwrap()
}

fn granted(fence: u64) -> Answer {
    let validity = Duration::from_secs(10);
    let (claim, until) = (Some(Claim::new()), Instant::now() + validity);
    Answer::Lock(Ok(Grant { fence, claim, validity, until }))
}

#[tokio::test(start_paused = true)]
async fn a_lock_waits_for_earlier_replies_and_all_behind_it_wait_for_it() {
    let mut pair = Pair::new();
    pair.commands(&[&["GET", "a"], &["LOCK", "k", "t", "PX", "1000"], &["GET", "b"]]);
    assert_eq!(pair.at_data(), text(&["GET", "a"]));
    pair.reply("$1\r\n");
    assert_eq!((pair.at_data(), pair.at_client()), (String::new(), "$1\r\n".into()));
    pair.reply("1\r\n");
    assert_eq!(pair.at_client(), "1\r\n");
    assert_eq!(pair.at_data(), text(&["SET", "lock:k", "x", "NX", "XX"]));
    pair.reply("-ERR syntax error\r\n");
    assert!(matches!(pair.question(), Question::Lock { wait: None, .. }));
    let held = NotGranted::Held { remaining: None, contested: false };
    pair.answer(Answer::Lock(Err(held)));
    assert_eq!(pair.at_client(), "*-1\r\n");
    assert_eq!(pair.at_data(), text(&["GET", "b"]));
}

#[tokio::test(start_paused = true)]
async fn who_may_not_write_the_key_may_not_lock_it() {
    let mut pair = Pair::new();
    pair.commands(&[&["LOCK", "k"], &["PING"]]);
    pair.at_data();
    pair.reply("-NOPERM this user has no permissions to run the 'set' command\r\n");
    let error = "-NOPERM this user has no permissions to run the 'lock' command\r\n";
    assert_eq!(pair.at_client(), error);
    assert!(pair.core.question().is_none());
    assert_eq!(pair.at_data(), text(&["PING"]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_never_placed_inside_a_reply() {
    let mut pair = Pair::new();
    // A push comes while the lock nodes are asked, and not all of it.
    pair.commands(&[&["LOCK", "k", "t", "PX", "1000"]]);
    pair.reply("-ERR syntax error\r\n>2\r\n+invalidate\r\n");
    pair.question();
    let held = NotGranted::Held { remaining: None, contested: false };
    pair.answer(Answer::Lock(Err(held)));
    assert_eq!(pair.at_client(), ">2\r\n+invalidate\r\n");
    pair.reply("*1\r\n$1\r\nx\r\n");
    assert_eq!(pair.at_client(), "*1\r\n$1\r\nx\r\n*-1\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_guarded_write_needs_its_lock_and_is_compared_with_its_fence() {
    let mut pair = Pair::new();
    pair.commands(&[&["SET", "g:k", "1"], &["PING"]]);
    assert!(pair.at_client().starts_with("-NOTHELD 'g:k'"));
    assert_eq!(pair.at_data(), text(&["PING"]));
    pair.reply("+PONG\r\n");
    pair.at_client();
    pair.lock("k", 7);
    pair.commands(&[&["SET", "g:k", "1"], &["SET", "free", "1"]]);
    let script = pair.at_data();
    assert!(script.contains("EVALSHA") && script.contains("\r\n7\r\n"), "{script}");
    assert!(!script.contains("free"), "{script}");
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_client(), "+OK\r\n");
    assert_eq!(pair.at_data(), text(&["SET", "free", "1"]));
}

#[tokio::test(start_paused = true)]
async fn the_long_way_takes_the_reply_out_of_exec() {
    let mut pair = Pair::new();
    pair.lock("k", 7);
    pair.commands(&[&["SET", "g:k", "1"]]);
    pair.at_data();
    pair.reply("-NOSCRIPT No matching script.\r\n");
    assert_eq!(pair.at_client(), "");
    let asked = pair.at_data();
    assert!(asked.contains("SCRIPT") && asked.contains("WATCH") && asked.ends_with("MULTI\r\n"));
    pair.reply("$1\r\nd\r\n+OK\r\n$1\r\n7\r\n+OK\r\n");
    assert_eq!(pair.at_data(), text(&["SET", "g:k", "1"]) + &text(&["EXEC"]));
    pair.reply("+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(pair.at_client(), "+OK\r\n");
    // A larger fence: nothing is written.
    pair.commands(&[&["SET", "g:k", "2"]]);
    pair.at_data();
    pair.reply("-ERR FENCE is another\r\n");
    pair.at_data();
    pair.reply("+OK\r\n$1\r\n8\r\n+OK\r\n");
    assert_eq!(pair.at_data(), text(&["DISCARD"]));
    pair.reply("+OK\r\n");
    assert!(pair.at_client().starts_with("-FENCED 'g:k' was not written"));
    assert_eq!(pair.core.tracking, Tracking::Matched);
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_undone_ends_the_connection() {
    let mut pair = Pair::new();
    pair.lock("k", 7);
    pair.commands(&[&["SET", "g:k", "1"]]);
    pair.reply("-ERR FENCE is another\r\n");
    pair.reply("+OK\r\n$1\r\n8\r\n+OK\r\n");
    pair.reply("-NOPERM no\r\n");
    assert_eq!(pair.core.tracking, Tracking::Closing);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_armed_before_its_multi() {
    let mut pair = Pair::new();
    pair.lock("k", 7);
    pair.commands(&[&["MULTI"], &["SET", "g:k", "1"], &["EXEC"]]);
    let asked = pair.at_data();
    assert!(asked.contains("WATCH") && !asked.contains("MULTI"), "{asked}");
    pair.reply("+OK\r\n$1\r\n7\r\n");
    // Whether SET is queued is known once MULTI is answered.
    assert_eq!(pair.at_data(), text(&["MULTI"]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(&["SET", "g:k", "1"]) + &text(&["EXEC"]));
    // A fence was written meanwhile.
    pair.reply("+QUEUED\r\n*-1\r\n");
    assert!(pair.at_client().starts_with("+OK\r\n+QUEUED\r\n-FENCED"));
}

#[tokio::test(start_paused = true)]
async fn a_client_without_replies_gets_none_of_ours() {
    let mut pair = Pair::new();
    pair.commands(&[&["CLIENT", "REPLY", "OFF"]]);
    assert_eq!(pair.at_data(), text(&["CLIENT", "REPLY", "ON"]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(&["CLIENT", "REPLY", "OFF"]));
    pair.commands(&[&["LOCK", "k", "t", "PX", "1000"]]);
    let probe = text(&["SET", "lock:k", "x", "NX", "XX"]);
    assert_eq!(pair.at_data(), text(&["CLIENT", "REPLY", "ON"]) + &probe);
    pair.reply("+OK\r\n-ERR syntax error\r\n");
    assert_eq!(pair.at_data(), text(&["CLIENT", "REPLY", "OFF"]));
    pair.question();
    let held = NotGranted::Held { remaining: None, contested: false };
    pair.answer(Answer::Lock(Err(held)));
    assert_eq!(pair.at_client(), "");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_wants_its_lock_no_more() {
    let mut pair = Pair::new();
    pair.commands(&[&["LOCK", "k", "t", "PX", "1000"], &["SET", "free", "1"]]);
    pair.reply("-ERR syntax error\r\n");
    pair.question();
    assert!(pair.core.awaits_answer());
    assert!(pair.core.client_closed(), "nor what was to run under it");
    pair.settle();
    assert!(!pair.core.awaits_answer() && pair.core.desk.held.is_empty());
    assert!(!pair.at_data().contains("free"));
}
