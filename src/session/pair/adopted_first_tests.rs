//! Tests of a script that takes the first free one of several adopted locks: what the lock nodes are asked, in which
//! order, and what the client is told.

use super::{
    adopted_tests::{enforced, enforced_with},
    *,
};
use crate::{
    config::{AdoptMode, AdoptOptions, AdoptRule, NoQuorumPolicy},
    key::Token,
    lock::Holding,
};

/// Laravel's script, with three keys.
const TAKE: [&str; 9] = [
    "EVALSHA",
    "420ca604de4310d8301943a71390ee669720d640",
    "3",
    "old:f1",
    "old:f2",
    "old:f3",
    "name",
    "30",
    "id",
];
const NIL: &str = "$-1\r\n";
const MAY: &str = "-ERR syntax error\r\n";

/// What the lock nodes tell about one lock.
#[derive(Clone, Copy)]
enum SlotTold {
    Free,
    Held,
    TooFew,
}
use SlotTold::{Free, Held, TooFew};

fn missing() -> NoQuorum {
    NoQuorum { answered: 1, nodes: 3, quorum: 2, ..NoQuorum::default() }
}

fn told(all: [SlotTold; 3]) -> Answer {
    let (left, claim) = (Some(Duration::from_secs(9)), Some(Claim::adopted()));
    let look = |told| match told {
        Free => Ok(None),
        Held => Ok(Some(Holding { token: Token::from(b"other"), left, claim })),
        TooFew => Err(missing()),
    };
    Answer::LookAll(all.map(look).into())
}

fn granted(validity: Duration) -> Answer {
    let (claim, until) = (Some(Claim::adopted()), Instant::now() + validity);
    Answer::Grant(Ok(Grant { fence: 7, claim, validity, until }))
}

const LONG: Duration = Duration::from_secs(31);

/// Sends the script, for a client that may set all keys.
fn begin(mut pair: Pair) -> Pair {
    pair.commands(&[&TAKE, &["SET", "x", "1"]]);
    let probe = |key: &str| text(&["SET", key, "x", "NX", "XX"]);
    assert_eq!(pair.at_data(), probe("old:f1"));
    pair.reply(MAY);
    assert_eq!(pair.at_data(), probe("old:f2") + &probe("old:f3"));
    pair.reply(&MAY.repeat(2));
    pair
}

fn looks(pair: &mut Pair, all: [SlotTold; 3]) {
    let Question::LookAll { keys } = pair.question() else { panic!("another question") };
    let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    assert_eq!(names, [b"lock:f1", b"lock:f2", b"lock:f3"]);
    pair.answer(told(all));
}

/// Answers the question for this lock.
fn asks(pair: &mut Pair, lock: &str, answer: Answer) {
    let Question::Adopt { key, token, ttl, claim } = pair.question() else {
        panic!("another question")
    };
    assert_eq!((&key[..], &token[..]), (lock.as_bytes(), &b"id"[..]));
    assert!(ttl > Duration::from_secs(30) && claim.is_adopted());
    pair.answer(answer);
}

/// Fails unless the client was told this, and the command behind the script has gone on.
fn ends(pair: &mut Pair, reply: &str, locks: usize) {
    assert_eq!(pair.at_client(), reply);
    assert_eq!(pair.at_data(), text(&["SET", "x", "1"]));
    assert!(pair.core.question().is_none());
    assert_eq!(pair.core.desk.tokens.held.len(), locks);
}

#[tokio::test(start_paused = true)]
async fn the_first_one_that_is_free_is_taken() {
    for (all, lock, reply) in [
        ([Free; 3], "lock:f1", "$5\r\nname1\r\n"),
        ([Held, Free, Free], "lock:f2", "$5\r\nname2\r\n"),
        ([Held, Held, Free], "lock:f3", "$5\r\nname3\r\n"),
        // Too few have told about one behind the first that is free.
        ([Free, TooFew, Held], "lock:f1", "$5\r\nname1\r\n"),
    ] {
        let mut pair = begin(enforced());
        looks(&mut pair, all);
        asks(&mut pair, lock, granted(LONG));
        ends(&mut pair, reply, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn where_none_is_free_none_is_asked_for() {
    let mut pair = begin(enforced());
    looks(&mut pair, [Held; 3]);
    ends(&mut pair, NIL, 0);
    let mut pair = enforced();
    pair.commands(&[&["HELLO", "3"]]);
    pair.reply("%1\r\n$5\r\nproto\r\n:3\r\n");
    pair.at_data();
    pair.at_client();
    let mut pair = begin(pair);
    looks(&mut pair, [Held; 3]);
    ends(&mut pair, "_\r\n", 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_taken_in_between_is_passed_by() {
    let held = || Answer::Grant(Err(NotGranted::held(false)));
    let mut pair = begin(enforced());
    looks(&mut pair, [Free, Held, Free]);
    asks(&mut pair, "lock:f1", held());
    asks(&mut pair, "lock:f3", granted(LONG));
    ends(&mut pair, "$5\r\nname3\r\n", 1);
    // All are.
    let mut pair = begin(enforced());
    looks(&mut pair, [Held, Free, Free]);
    asks(&mut pair, "lock:f2", held());
    asks(&mut pair, "lock:f3", held());
    ends(&mut pair, NIL, 0);
    // The refusal of a moment ago does not count for one that was freed through another proxy since.
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_client(), "+OK\r\n");
    pair.commands(&[&TAKE, &["SET", "x", "1"]]);
    pair.at_data();
    pair.reply(&MAY.repeat(2));
    looks(&mut pair, [Held, Free, Held]);
    asks(&mut pair, "lock:f2", granted(LONG));
    ends(&mut pair, "$5\r\nname2\r\n", 1);
}

#[tokio::test(start_paused = true)]
async fn too_few_lock_nodes_are_asked_again_or_told() {
    let none = || Answer::Grant(Err(NotGranted::NoQuorum(missing())));
    // The look, and then the question for one lock.
    let mut pair = begin(enforced());
    looks(&mut pair, [Held, TooFew, Free]);
    assert!(matches!(pair.question(), Question::Rest { .. }));
    pair.answer(Answer::Done(()));
    looks(&mut pair, [Held, Held, Free]);
    asks(&mut pair, "lock:f3", none());
    assert!(matches!(pair.question(), Question::Rest { .. }));
    pair.answer(Answer::Done(()));
    asks(&mut pair, "lock:f3", granted(LONG));
    ends(&mut pair, "$5\r\nname3\r\n", 1);
    let no_quorum = NoQuorumPolicy::Error;
    for is_told_by_look in [true, false] {
        let options = AdoptOptions { no_quorum, ..AdoptOptions::default() };
        let mut pair = begin(enforced_with(options));
        looks(&mut pair, [Held, if is_told_by_look { TooFew } else { Free }, Free]);
        if !is_told_by_look {
            asks(&mut pair, "lock:f2", none());
        }
        let told = pair.at_client();
        assert!(told.starts_with("-NOQUORUM 1 of 3 lock nodes answered"), "{told}");
        assert!(pair.core.desk.tokens.held.is_empty());
    }
    let no_quorum = NoQuorumPolicy::Close;
    let mut pair = begin(enforced_with(AdoptOptions { no_quorum, ..AdoptOptions::default() }));
    looks(&mut pair, [TooFew; 3]);
    assert_eq!(pair.core.tracking, Tracking::Closing);
    assert_eq!(pair.at_client(), "");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_too_short_is_given_back_and_no_other_is_asked_for() {
    let no_quorum = NoQuorumPolicy::Error;
    let mut pair = begin(enforced_with(AdoptOptions { no_quorum, ..AdoptOptions::default() }));
    looks(&mut pair, [Free; 3]);
    asks(&mut pair, "lock:f1", granted(Duration::from_millis(29_999)));
    let late = "-NOQUORUM the lock nodes answered too late for this TTL, try again\r\n";
    ends(&mut pair, late, 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_gone_is_told_of_none_and_has_none() {
    // While the lock nodes are away: it is given up.
    let mut pair = begin(enforced());
    looks(&mut pair, [TooFew; 3]);
    assert!(matches!(pair.question(), Question::Rest { .. }));
    assert!(pair.core.client_closed(), "it is given up");
    assert!(pair.core.desk.tokens.held.is_empty());
    // The look tells of no free lock: none is asked for, and what stands behind is carried out, as on Redis.
    let mut pair = begin(enforced());
    assert!(!pair.core.client_closed());
    looks(&mut pair, [Held; 3]);
    assert!(pair.core.desk.tokens.held.is_empty());
    assert_eq!(pair.at_data(), text(&["SET", "x", "1"]));
}

/// Makes a session whose adopted locks guards need.
fn guarded() -> Pair {
    let mut config = Config::default();
    config.adopt.rules.push(AdoptRule {
        keys: Pattern::new("old:*"),
        lock: Some(Template::new("{1}").unwrap()),
        mode: AdoptMode::Enforce,
        options: AdoptOptions::default(),
        scripts: Vec::new(),
    });
    config.guards.rules.push(GuardRule {
        keys: Pattern::new("g:*"),
        lock: Template::new("{1}").unwrap(),
        policy: Policy::Enforce,
    });
    Pair::with(config)
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_fence_the_data_node_refuses_is_given_back() {
    for is_refused in [true, false] {
        let mut pair = begin(guarded());
        looks(&mut pair, [Held, Free, Free]);
        asks(&mut pair, "lock:f2", granted(LONG));
        assert_eq!(pair.at_client(), "", "the data node has not taken the fence yet");
        assert!(pair.at_data().starts_with("*"), "the fence is announced");
        pair.reply(if is_refused { "-OOM too much\r\n" } else { "$1\r\n5\r\n" });
        let told = if is_refused { "-OOM too much\r\n" } else { "$5\r\nname2\r\n" };
        assert_eq!(pair.at_client(), told);
        assert_eq!(pair.core.desk.tokens.held.len(), usize::from(!is_refused));
    }
    // The replies can no longer be told apart before the client is told of its lock.
    let mut pair = begin(guarded());
    looks(&mut pair, [Free; 3]);
    asks(&mut pair, "lock:f1", granted(LONG));
    assert_eq!(pair.core.desk.tokens.held.len(), 1);
    pair.core.relay();
    assert!(pair.core.desk.tokens.held.is_empty(), "it is given back");
}

#[tokio::test(start_paused = true)]
async fn each_key_needs_the_clients_right() {
    for refused in 0..3 {
        let mut pair = enforced();
        pair.commands(&[&TAKE]);
        let no = "-NOPERM this user has no permissions\r\n";
        let replies: Vec<&str> = (0..3).map(|at| if at == refused { no } else { MAY }).collect();
        pair.reply(replies[0]);
        if refused > 0 {
            pair.reply(&replies[1..].concat());
        }
        assert_eq!(pair.at_client(), no);
        assert!(pair.core.question().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn two_keys_of_one_lock_are_refused() {
    let mut pair = enforced();
    let words = [&TAKE[..4], &["old:f2", "old:f1", "name", "30", "id"]].concat();
    pair.commands(&[&words]);
    pair.reply(MAY);
    assert_eq!(pair.at_client(), "-ERR two keys of one command are one adopted lock (adopt)\r\n");
}
