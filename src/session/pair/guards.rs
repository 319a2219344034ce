//! Guarded writes: which way they go, and what their clients are told.

use super::*;

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
