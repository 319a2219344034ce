//! Commands of ours among others: what waits for what, and where answers stand.

use super::*;

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
