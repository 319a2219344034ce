//! Tests of a client that came through a front of a cluster: replies that name nodes, wherever their bytes are cut.

use super::*;
use crate::{
    cluster::table::{FrontTable, ShownAs},
    config::{ClusterConfig, DataConfig, GuardsConfig, WaitAt},
    data::FrontView,
};

/// Makes a session at a front. The node `a` at 10.0.0.1:7000 has the front 192.0.2.9:6001.
pub(super) fn at_front() -> Pair {
    let mut table = FrontTable::default();
    table.add("a", &["10.0.0.1"], 7000, ShownAs::Front(6001));
    let mut pair = Pair::new();
    pair.core.show(Arc::new(FrontView::of(table, "192.0.2.9")));
    pair
}

/// As [`at_front`], with a guard: writes to `g:X` need the lock `g:X`.
fn guarded_at_front() -> Pair {
    guarded_with(|_| {})
}

/// As before, with other settings of the guards.
fn guarded_with(set: impl FnOnce(&mut GuardsConfig)) -> Pair {
    let mut table = FrontTable::default();
    table.add("a", &["10.0.0.1"], 7000, ShownAs::Front(6001));
    let rule = GuardRule {
        keys: Pattern::new("g:*"),
        lock: Template::new("g:{1}").unwrap(),
        policy: Policy::Enforce,
    };
    let cluster = ClusterConfig::of(vec!["redis://10.0.0.1:7000".parse().unwrap()]);
    let mut config = Config { data: DataConfig::Cluster(cluster), ..Config::default() };
    config.guards.rules.push(rule);
    set(&mut config.guards);
    let mut pair = Pair::with(config);
    pair.core.show(Arc::new(FrontView::of(table, "192.0.2.9")));
    pair
}

/// Makes the client take the lock `g:k`, with fence 7.
fn lock(pair: &mut Pair) {
    pair.commands(&[&["LOCK", "g:k", "t", "PX", "10000"]]);
    pair.reply("-MOVED 1 10.0.0.1:7000\r\n-ERR syntax error\r\n");
    pair.question();
    pair.answer(granted(7));
    pair.reply("$1\r\n7\r\n");
    if pair.at_data().contains("WAIT") {
        pair.reply(":1\r\n");
    }
    assert!(pair.at_client().starts_with("*3\r\n$1\r\nt\r\n:7\r\n"));
}

const MOVED: &str = "-MOVED 5 10.0.0.1:7000\r\n";
const FRONT: &str = "-MOVED 5 192.0.2.9:6001\r\n";

#[tokio::test(start_paused = true)]
async fn a_call_has_writes_of_one_slot() {
    let mut pair = guarded_at_front();
    lock(&mut pair);
    pair.commands(&[&["LOCK", "g:j", "t", "PX", "10000"]]);
    pair.reply("-ERR syntax error\r\n-ERR syntax error\r\n");
    pair.question();
    pair.answer(granted(8));
    pair.reply("$1\r\n8\r\n");
    pair.at_data();
    pair.commands(&[&["INCR", "g:k"], &["INCR", "g:k"], &["INCR", "g:j"]]);
    assert_eq!(pair.at_data().matches("INCR").count(), 2);
    pair.reply("*2\r\n:1\r\n:2\r\n");
    assert_eq!(pair.at_data().matches("INCR").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_guards_lock_is_taken_only_where_its_slot_is() {
    for (told, expected) in [
        (MOVED, FRONT),
        ("-ASK 5 10.0.0.1:7000\r\n", "-TRYAGAIN the slot may be on its way"),
        ("-CLUSTERDOWN Hash slot not served\r\n", "-CLUSTERDOWN Hash slot not served\r\n"),
    ] {
        let mut pair = guarded_at_front();
        pair.commands(&[&["LOCK", "g:k", "t", "PX", "10000"]]);
        let asked = pair.at_data();
        assert_eq!(asked.matches("SET").count(), 2, "{asked}");
        pair.reply("-ERR syntax error\r\n");
        pair.reply(told);
        assert!(pair.core.question().is_none(), "no lock node was asked");
        let answer = pair.at_client();
        assert!(answer.starts_with(expected), "{answer}");
        // The slot leaves between the question and the announcement.
        let mut pair = guarded_at_front();
        pair.commands(&[&["LOCK", "g:k", "t", "PX", "10000"]]);
        pair.reply("-ERR syntax error\r\n-ERR syntax error\r\n");
        pair.question();
        pair.answer(granted(7));
        pair.reply(told);
        let answer = pair.at_client();
        assert!(answer.starts_with(expected), "{answer}");
        pair.commands(&[&["SET", "g:k", "1"]]);
        pair.reply("-ERR syntax error\r\n");
        assert!(pair.at_client().starts_with("-NOTHELD"));
    }
    // Locks that guards do not need lie on the lock nodes alone.
    let mut pair = guarded_at_front();
    pair.commands(&[&["LOCK", "free", "t", "PX", "10000"]]);
    assert_eq!(pair.at_data().matches("SET").count(), 1);
    pair.reply(MOVED);
    pair.question();
}

#[tokio::test(start_paused = true)]
async fn a_write_without_its_lock_is_led_to_the_front_of_its_slot() {
    for (told, expected) in [
        (MOVED, FRONT),
        ("-ASK 5 10.0.0.1:7000\r\n", "-TRYAGAIN the slot may be on its way"),
        ("-CLUSTERDOWN Hash slot not served\r\n", "-CLUSTERDOWN Hash slot not served\r\n"),
        ("-ERR syntax error\r\n", "-NOTHELD 'g:k'"),
        ("-NOPERM no\r\n", "-NOTHELD 'g:k'"),
    ] {
        let mut pair = guarded_at_front();
        for flag in [false, true] {
            if flag {
                pair.commands(&[&["CLIENT", "CACHING", "YES"]]);
                pair.reply("+OK\r\n");
                pair.at_client();
                pair.at_data();
            }
            pair.commands(&[&["SET", "g:k", "1"], &["GET", "x"]]);
            let asked = pair.at_data();
            assert!(asked.starts_with("*5\r\n$3\r\nSET\r\n$30\r\nlockgate:guard:{"), "{asked}");
            assert!(asked.ends_with("$2\r\nNX\r\n$2\r\nXX\r\n"), "nothing is written: {asked}");
            pair.reply(told);
            let answer = pair.at_client();
            assert!(answer.starts_with(expected), "{answer}");
            assert_eq!(pair.at_data(), text(&["GET", "x"]));
            pair.reply("$-1\r\n");
            assert_eq!(pair.at_client(), "$-1\r\n");
        }
        // No node can be asked in a transaction.
        pair.commands(&[&["MULTI"], &["SET", "g:k", "1"]]);
        pair.reply("+OK\r\n");
        assert!(!pair.at_data().contains("NX"));
        pair.reply("-ERR unknown command\r\n");
        let answer = pair.at_client();
        assert!(answer.starts_with("+OK\r\n-NOTHELD 'g:k'"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guarded_write_leads_to_a_front_or_nowhere() {
    for (told, expected) in
        [(MOVED, FRONT), ("-ASK 5 10.0.0.1:7000\r\n", "-TRYAGAIN the slot may be on its way")]
    {
        let mut pair = guarded_at_front();
        lock(&mut pair);
        pair.commands(&[&["SET", "g:k", "1"]]);
        pair.reply(told);
        // WATCH, GET and MULTI.
        pair.reply(&format!("{told}{told}+OK\r\n"));
        pair.reply("+OK\r\n");
        let answer = pair.at_client();
        assert!(answer.starts_with(expected), "{answer}");
        // The fence is here, and the key is not.
        pair.commands(&[&["SET", "g:k", "1"]]);
        pair.reply("-ERR Script attempted to access a non local key in a cluster node\r\n");
        pair.reply("+OK\r\n$1\r\n7\r\n+OK\r\n");
        pair.reply(&format!("{told}-EXECABORT x\r\n"));
        let answer = pair.at_client();
        assert!(answer.starts_with(expected), "{answer}");
        // In the client's own transaction.
        pair.commands(&[&["MULTI"], &["SET", "g:k", "1"], &["EXEC"]]);
        pair.reply(&format!("{told}{told}"));
        pair.reply("+OK\r\n");
        pair.reply("-ERR unknown command\r\n");
        pair.reply("-EXECABORT x\r\n");
        let answer = pair.at_client();
        assert!(answer.starts_with(&format!("+OK\r\n{expected}")), "{answer}");
        assert_eq!(pair.core.tracking, Tracking::Matched);
    }
}

#[tokio::test(start_paused = true)]
async fn what_asking_was_sent_for_is_refused_and_uses_it_up() {
    let mut pair = guarded_at_front();
    lock(&mut pair);
    pair.commands(&[&["ASKING"], &["SET", "g:k", "1"], &["GET", "k"]]);
    assert_eq!(pair.at_data(), text(&["ASKING"]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(&["PING"]));
    pair.reply("+PONG\r\n");
    let told = pair.at_client();
    assert!(told.starts_with("+OK\r\n-TRYAGAIN the slot may be on its way"), "{told}");
    assert_eq!(pair.at_data(), text(&["GET", "k"]));
    pair.reply("$-1\r\n");
    pair.at_client();
    // A PING uses up the client's ASKING before the proxy's questions. It is sent again for the client's MULTI.
    pair.commands(&[&["ASKING"], &["MULTI"]]);
    pair.at_data();
    pair.reply("+OK\r\n");
    let asked = pair.at_data();
    assert!(asked.starts_with(&text(&["PING"])) && asked.contains("WATCH"), "{asked}");
    assert!(asked.ends_with(&text(&["ASKING"])), "{asked}");
    pair.reply("+PONG\r\n+OK\r\n$1\r\n7\r\n+OK\r\n");
    assert_eq!(pair.at_data(), text(&["MULTI"]));
    pair.reply("+OK\r\n");
    assert!(pair.core.is_at_rest());
}

#[tokio::test(start_paused = true)]
async fn a_transaction_under_a_lock_names_fronts_too() {
    let armed = |watch: bool| {
        let mut pair = guarded_at_front();
        lock(&mut pair);
        if watch {
            pair.commands(&[&["WATCH", "k"]]);
            pair.reply("+OK\r\n");
        }
        pair.commands(&[&["MULTI"]]);
        pair.reply("+OK\r\n$1\r\n7\r\n");
        pair.reply("+OK\r\n");
        pair.commands(&[&["SET", "g:k", "1"], &["CLUSTER", "NODES"], &["EXEC"]]);
        pair.reply("+QUEUED\r\n+QUEUED\r\n");
        pair.at_client();
        pair
    };
    for (reply, told) in [
        (format!("*2\r\n+OK\r\n{LINE}"), format!("*2\r\n+OK\r\n{SHOWN}")),
        (MOVED.to_owned(), FRONT.to_owned()),
        ("*-1\r\n".to_owned(), "-FENCED a lock of this transaction".to_owned()),
    ] {
        for piece in [1, 4, 1000] {
            let mut pair = armed(false);
            for piece in reply.as_bytes().chunks(piece) {
                pair.reply(std::str::from_utf8(piece).unwrap());
            }
            let got = pair.at_client();
            assert!(got.starts_with(&told), "{got}");
            assert!(pair.core.is_at_rest());
        }
    }
    let mut pair = armed(true);
    pair.reply("*-1\r\n");
    assert_eq!(pair.at_client(), "*-1\r\n");
}

/// The proxy holds the reply for replicas, and could not tell fronts in it.
#[tokio::test(start_paused = true)]
async fn a_transaction_whose_replies_are_held_names_no_node() {
    for pieces in [1, 4, 1000] {
        let mut pair = guarded_with(|guards| {
            (guards.replicas, guards.wait_at) = (1, WaitAt::Write);
        });
        lock(&mut pair);
        pair.commands(&[&["MULTI"]]);
        pair.reply("+OK\r\n$1\r\n7\r\n");
        pair.reply("+OK\r\n");
        pair.commands(&[&["SET", "g:k", "1"], &["CLUSTER", "NODES"], &["EXEC"]]);
        pair.at_data();
        pair.reply("+QUEUED\r\n+QUEUED\r\n");
        assert!(pair.at_data().contains("EXEC"));
        assert!(pair.at_client().ends_with("+QUEUED\r\n"));
        let replies = format!("*2\r\n+OK\r\n{LINE}:1\r\n");
        for piece in replies.as_bytes().chunks(pieces) {
            pair.reply(std::str::from_utf8(piece).unwrap());
        }
        assert_eq!(pair.core.tracking, Tracking::Closing);
        assert_eq!(pair.at_client(), "", "in pieces of {pieces}");
    }
}

const LINE: &str = "$32\r\na 10.0.0.1:7000@1 master - 0 0 0\r\n";
const SHOWN: &str = "$33\r\na 192.0.2.9:6001@0 master - 0 0 0\r\n";

#[tokio::test(start_paused = true)]
async fn a_reply_is_changed_wherever_it_is_cut() {
    let commands: [&[&str]; 11] = [
        &["GET", "k"],
        &["GET", "k"],
        &["CLUSTER", "NODES"],
        &["GET", "k"],
        &["MULTI"],
        &["GET", "k"],
        &["CLUSTER", "NODES"],
        &["GET", "k"],
        &["EXEC"],
        &["GET", "k"],
        &["GET", "k"],
    ];
    let told = |line: &str, front: &str| {
        format!(
            "$1\r\nv\r\n-MOVED 5 {front}\r\n{line}-ERR {front} of no redirection\r\n+OK\r\n+QUEUED\r\n\
             +QUEUED\r\n+QUEUED\r\n*3\r\n{LINE}{line}{LINE}-ASK 7 {front}\r\n$-1\r\n"
        )
    };
    let replies = told(LINE, "10.0.0.1:7000");
    let wanted = told(SHOWN, "192.0.2.9:6001").replace("-ERR 192.0.2.9:6001", "-ERR 10.0.0.1:7000");
    for piece in [1, 2, 3, 5, 7, 11, 1000] {
        let mut pair = at_front();
        pair.commands(&commands);
        for piece in replies.as_bytes().chunks(piece) {
            pair.reply(std::str::from_utf8(piece).unwrap());
        }
        assert_eq!(pair.at_client(), wanted, "in pieces of {piece}");
        assert!(pair.core.is_at_rest());
    }
    // Without a front nothing changes.
    let mut pair = Pair::new();
    pair.commands(&commands);
    pair.reply(&replies);
    assert_eq!(pair.at_client(), replies);
}

#[tokio::test(start_paused = true)]
async fn only_what_a_transaction_has_queued_counts() {
    let mut pair = at_front();
    pair.commands(&[&["MULTI"], &["CLUSTER", "NODES"], &["DISCARD"], &["MULTI"], &["GET", "k"]]);
    pair.reply("+OK\r\n+QUEUED\r\n+OK\r\n+OK\r\n+QUEUED\r\n");
    pair.commands(&[&["MULTI"], &["WATCH", "k"], &["CLUSTER", "NODES"], &["EXEC"]]);
    pair.reply("-ERR MULTI calls can not be nested\r\n-ERR WATCH inside MULTI is not allowed\r\n");
    pair.reply("+QUEUED\r\n");
    pair.at_client();
    pair.reply(&format!("*2\r\n{LINE}{LINE}"));
    assert_eq!(pair.at_client(), format!("*2\r\n{LINE}{SHOWN}"));
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_replies_are_not_followed_is_closed_and_a_replica_is_not() {
    let mut pair = at_front();
    pair.commands(&[&["MULTI"], &["SUBSCRIBE", "c"]]);
    pair.reply("+OK\r\n+QUEUED\r\n");
    assert_eq!(pair.core.tracking, Tracking::Closing);
    // Where no node announces a front, no replica comes through one.
    let replica = &[&["REPLCONF", "listening-port", "1"][..]];
    let mut pair = at_front();
    pair.commands(replica);
    assert_eq!(pair.core.tracking, Tracking::Closing);
    let mut table = FrontTable::default();
    table.add("a", &["10.0.0.1"], 7000, ShownAs::AsItIs);
    let mut pair = Pair::new();
    pair.core.show(Arc::new(FrontView::of(table, "10.0.0.1")));
    pair.commands(replica);
    assert_eq!(pair.core.tracking, Tracking::Relayed);
    // A reply that is too long to be held.
    let mut pair = at_front();
    pair.commands(&[&["CLUSTER", "NODES"]]);
    pair.reply(&format!("$5000000\r\n{}", "x".repeat(4_200_000)));
    assert_eq!((pair.core.tracking, pair.at_client()), (Tracking::Closing, String::new()));
}

#[tokio::test(start_paused = true)]
async fn nothing_passes_behind_what_closes_the_connection() {
    let moved = "-MOVED 5 10.0.0.1:7000\r\n";
    // A reply that is too long to be held, in one piece with the replies behind it.
    let mut pair = at_front();
    pair.commands(&[&["MULTI"], &["GET", "k"], &["CLUSTER", "NODES"], &["EXEC"], &["PING"]]);
    let long = format!("$4200000\r\n{}\r\n", "x".repeat(4_200_000));
    pair.reply(&format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{long}{LINE}+PONG\r\n{moved}"));
    pair.reply(moved);
    assert_eq!(pair.core.tracking, Tracking::Closing);
    assert_eq!(pair.at_client(), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    // Replies that can no longer be followed.
    let mut pair = at_front();
    pair.commands(&[&["GET", "k"], &["MULTI"], &["HELLO", "3"], &["CLUSTER", "NODES"], &["EXEC"]]);
    pair.reply(&format!("$1\r\nv\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n%0\r\n{LINE}{moved}"));
    assert_eq!(pair.core.tracking, Tracking::Closing);
    let told = pair.at_client();
    assert!(!told.contains("10.0.0.1"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_redirected_names_the_front() {
    let mut pair = at_front();
    pair.commands(&[&["MULTI"], &["GET", "k"], &["CLUSTER", "NODES"], &["EXEC"], &["GET", "k"]]);
    pair.reply("+OK\r\n+QUEUED\r\n+QUEUED\r\n-MOVED 5 10.0.0.1:7000\r\n-ASK 5 10.0.0.1:7000\r\n");
    let told = "+OK\r\n+QUEUED\r\n+QUEUED\r\n-MOVED 5 192.0.2.9:6001\r\n-ASK 5 192.0.2.9:6001\r\n";
    assert_eq!(pair.at_client(), told);
}
