//! Tests of a session between two byte strings: all that its client and its data node send and get, with all other
//! answers given by the test. No sockets, no tasks.
//!
//! Ordering and guards are tested here in milliseconds, as no Redis is needed to know what is right; `tests/` does the
//! same against a real one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod adopted_exec_tests;
mod adopted_first_tests;
mod adopted_multi_tests;
mod adopted_quorum;
mod adopted_shared_tests;
mod adopted_tests;
mod fronts_tests;
mod guards_tests;
mod lines;
mod mlock_tests;
mod ordering;
mod skipped;
mod strangers;
mod unexpected;
mod zero_bytes;

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
    Shared, Taken, UnreadReplies,
    core::{Core, Tracking},
    desk::Desk,
    idle::Idle,
    jobs::{Answer, Question},
    session_metrics::Metrics,
};
use crate::{
    adopt::Adoption,
    clock::Instant,
    config::{Config, GuardRule, Pattern, Policy, Template},
    data::DataNode,
    fleet::known::Fleet,
    guard::Guards,
    lock::{Claim, Engine, Grant, NoQuorum, NotGranted, Renewed, SameToken},
    resp::encode,
};

/// A session, and its output.
struct Pair {
    core: Core,
    data: Vec<u8>,
    client: Vec<u8>,
}

impl Pair {
    /// Makes a session without guards.
    fn new() -> Pair {
        Pair::with(Config::default())
    }

    /// Makes a session with a guard: writes to `g:X` need the lock X.
    fn guarded() -> Pair {
        let rule = GuardRule {
            keys: Pattern::new("g:*"),
            lock: Template::new("{1}").unwrap(),
            policy: Policy::Enforce,
        };
        let mut config = Config::default();
        config.guards.rules.push(rule);
        Pair::with(config)
    }

    fn with(config: Config) -> Pair {
        // The lock nodes need not exist, as the test answers for them.
        let engine = Engine::start(&config.locks);
        let shared = Arc::new(Shared {
            engine,
            data: DataNode::start(&Config::default()),
            metrics: Metrics::new(),
            guards: (!config.guards.rules.is_empty()).then(|| Guards::of_few_commands(&config)),
            adoption: Adoption::new(&config.adopt.rules),
            bridge: None,
            fleet: Arc::new(Fleet::new()),
            data_is_silent: Arc::default(),
            config: ArcSwap::from_pointee(config),
            idle: Arc::new(Idle::default()),
            ahead: Arc::new(Taken::default()),
            unread: Arc::new(UnreadReplies::default()),
            clients: AtomicUsize::new(0),
            started: tokio::time::Instant::now(),
            name: String::new(),
            listen: Vec::new(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            roll: Arc::default(),
            abort: CancellationToken::new(),
        });
        let mut core = Core::new(Desk::new(shared));
        // The data node has let the client in.
        core.desk.conn.state.known = true;
        Pair { core, data: Vec::new(), client: Vec::new() }
    }

    /// Runs the session as far as it goes without input.
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

    /// Sends these bytes as the client.
    fn send(&mut self, bytes: &[u8]) {
        self.core.read += bytes.len() as u64;
        if self.core.is_waiting() || self.core.is_gathering() {
            self.core.client_sent_more(bytes).unwrap();
        } else {
            let bytes = [&std::mem::take(&mut self.core.desk.unsent)[..], bytes].concat();
            let range = self.core.client_sent(&bytes).unwrap();
            self.data.append(&mut self.core.desk.to_data.take());
            self.data.extend_from_slice(&bytes[range]);
        }
        self.settle();
    }

    fn commands(&mut self, commands: &[&[&str]]) {
        self.send(&commands.iter().flat_map(|words| command(words)).collect::<Vec<_>>());
    }

    /// Sends this reply as the data node.
    fn reply(&mut self, bytes: &str) {
        let from = self.core.data_sent(bytes.as_bytes());
        self.client.append(&mut self.core.to_client.take());
        self.client.extend_from_slice(&bytes.as_bytes()[from..]);
        self.settle();
    }

    /// Returns the question that the lock nodes, or another connection, are asked.
    fn question(&mut self) -> Question {
        *self.core.question().expect("nothing is asked")
    }

    fn answer(&mut self, answer: Answer) {
        self.core.answer(answer);
        self.settle();
    }

    /// Returns the bytes that the data node has received since the last call.
    fn at_data(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.data)).unwrap()
    }

    /// Returns the bytes that the client has received since the last call.
    fn at_client(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.client)).unwrap()
    }

    /// Answers as the data node, and as others, until nothing is left to answer. The data node's bytes come in pieces
    /// of `piece`.
    fn serve(
        &mut self,
        piece: usize,
        data: &mut dyn FnMut(&[&str]) -> String,
        others: &mut dyn FnMut(Question) -> Answer,
    ) {
        let mut unread = String::new();
        loop {
            unread += &self.at_data();
            let mut replies = String::new();
            while let Some((words, length)) = first_command(&unread) {
                replies += &data(&words);
                unread.drain(..length);
            }
            for piece in replies.as_bytes().chunks(piece) {
                self.reply(std::str::from_utf8(piece).unwrap());
            }
            let question = self.core.question();
            let done = question.is_none() && replies.is_empty();
            if let Some(question) = question {
                self.answer(others(*question));
            }
            if done {
                assert_eq!(unread, "", "the rest of a command");
                return;
            }
        }
    }

    /// Makes the client take the lock `name`, granted for ten seconds with this fence.
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

/// Returns the first command in these bytes, multibulk or inline, and its length.
fn first_command(bytes: &str) -> Option<(Vec<&str>, usize)> {
    let (head, rest) = bytes.split_once("\r\n")?;
    let Some(count) = head.strip_prefix('*') else {
        return Some((head.split(' ').collect(), head.len() + 2));
    };
    let (mut words, mut at) = (Vec::new(), rest);
    for _ in 0..count.parse().unwrap() {
        let (length, rest) = at.strip_prefix('$')?.split_once("\r\n")?;
        let length: usize = length.parse().unwrap();
        words.push(rest.get(..length)?);
        at = rest.get(length + 2..)?;
    }
    Some((words, bytes.len() - at.len()))
}

fn text(words: &[&str]) -> String {
    String::from_utf8(command(words)).unwrap()
}

fn granted(fence: u64) -> Answer {
    let validity = Duration::from_secs(10);
    let (claim, until) = (Some(Claim::new()), Instant::now() + validity);
    Answer::Grant(Ok(Grant { fence, claim, validity, until }))
}
