//! A client that came through a front of a cluster: replies that name nodes, wherever their bytes are
//! cut.

use super::*;
use crate::{
    cluster::table::{FrontTable, ShownAs},
    data::FrontView,
};

/// A session at a front. The node `a` at 10.0.0.1:7000 has the front 192.0.2.9:6001.
fn at_front() -> Pair {
    let mut table = FrontTable::default();
    table.add("a", &["10.0.0.1"], 7000, ShownAs::Front(6001));
    let mut pair = Pair::new();
    pair.core.show(Arc::new(FrontView::of(table, "192.0.2.9")));
    pair
}

const LINE: &str = "$32\r\na 10.0.0.1:7000@1 master - 0 0 0\r\n";
const SHOWN: &str = "$33\r\na 192.0.2.9:6001@1 master - 0 0 0\r\n";

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
    // Elsewhere nothing changes.
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
    let mut pair = at_front();
    pair.commands(&[&["REPLCONF", "listening-port", "1"]]);
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
    // Too long to be held, in one piece with the replies behind it.
    let mut pair = at_front();
    pair.commands(&[&["MULTI"], &["GET", "k"], &["CLUSTER", "NODES"], &["EXEC"], &["PING"]]);
    let long = format!("$4200000\r\n{}\r\n", "x".repeat(4_200_000));
    pair.reply(&format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{long}{LINE}+PONG\r\n{moved}"));
    pair.reply(moved);
    assert_eq!(pair.core.tracking, Tracking::Closing);
    assert_eq!(pair.at_client(), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    // Replies that cannot be followed any more.
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
