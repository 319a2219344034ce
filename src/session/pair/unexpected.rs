//! Tests of an unexpected frame in place of the answer to a question of the proxy: nothing that rests on the question
//! is done.

use super::*;
use crate::session::pair::adopted_tests::enforced;

/// Frames that could come though the proxy knows of no subscription and no MONITOR: two messages, a subscription's
/// confirmation, a line of MONITOR, a queued command, another command's list, a stream.
const FRAMES: [&str; 7] = [
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
    "*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$1\r\nx\r\n",
    "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
    "+1699999999.123456 [0 127.0.0.1:1] \"PING\"\r\n",
    "+QUEUED\r\n",
    "*0\r\n",
    "+CONTINUE\r\n",
];

/// Checks that the lock nodes are not asked, and that the connection, which must be followed, ends.
fn ends(pair: &mut Pair, frame: &str, what: &str) {
    pair.at_data();
    pair.at_client();
    pair.reply(frame);
    assert!(pair.core.question().is_none(), "{what} {frame:?}");
    assert_eq!(pair.core.tracking, Tracking::Closing, "{what} {frame:?}");
    assert_eq!((pair.at_data(), pair.at_client()), Default::default(), "{what} {frame:?}");
}

#[tokio::test(start_paused = true)]
async fn no_adopted_command_is_permitted_by_it() {
    let all = [
        &["SET", "old:a", "t", "NX", "PX", "1000"][..],
        &["DEL", "old:a"],
        &["DEL", "old:a", "old:b"],
        &["PEXPIRE", "old:a", "10"],
        &["GET", "old:a"],
        &["EXISTS", "old:a"],
        &["TTL", "old:a"],
        &["PTTL", "old:a"],
        &["STRLEN", "old:a"],
        &["TYPE", "old:a"],
        &["WATCH", "old:a"],
    ];
    for words in all {
        for frame in FRAMES {
            // This may be the name of a type.
            if words[0] == "TYPE" && frame == "+CONTINUE\r\n" {
                continue;
            }
            let mut pair = enforced();
            pair.commands(&[words]);
            ends(&mut pair, frame, words[0]);
        }
    }
    // A reply to a question of another kind is no permission either.
    for (words, frame) in [
        (&["GET", "old:a"][..], ":1\r\n"),
        (&["EXISTS", "old:a"], "$1\r\na\r\n"),
        (&["TYPE", "old:a"], "$-1\r\n"),
        (&["DEL", "old:a"], ":1\r\n"),
    ] {
        let mut pair = enforced();
        pair.commands(&[words]);
        ends(&mut pair, frame, words[0]);
    }
    // The second key of several.
    let mut pair = enforced();
    pair.commands(&[&["DEL", "old:a", "old:b"]]);
    pair.reply("-ERR syntax error\r\n");
    ends(&mut pair, FRAMES[0], "another key");
    // The selected database.
    let mut pair = enforced();
    pair.commands(&[&["SELECT", "1"], &["DEL", "old:a"]]);
    pair.reply("+OK\r\n");
    pair.reply("-ERR syntax error\r\n");
    ends(&mut pair, FRAMES[0], "SELECT");
}

#[tokio::test(start_paused = true)]
async fn no_lock_is_permitted_and_no_guarded_write_made_by_it() {
    for frame in FRAMES {
        for words in [&["LOCK", "k", "PX", "1000"][..], &["UNLOCK", "k", "t"], &["RENEW", "k", "t"]]
        {
            let mut pair = Pair::guarded();
            pair.commands(&[words]);
            ends(&mut pair, frame, words[0]);
        }
        for words in
            [&["LOCKGATE", "INFO"][..], &["LOCKGATE", "PAUSE", "1"], &["COMMAND", "INFO", "LOCK"]]
        {
            let mut pair = Pair::guarded();
            pair.commands(&[words]);
            ends(&mut pair, frame, words[0]);
        }
        // The announcement of the fence.
        let mut pair = Pair::guarded();
        pair.commands(&[&["LOCK", "k", "t", "PX", "10000"]]);
        pair.reply("-ERR syntax error\r\n");
        pair.question();
        pair.answer(granted(7));
        ends(&mut pair, frame, "announcing");
        assert!(pair.core.desk.tokens.held.is_empty(), "{frame:?}: undone");
        // The long way of a write.
        let before = "$1\r\nd\r\n+OK\r\n$1\r\n7\r\n+OK\r\n+QUEUED\r\n";
        let replies: Vec<&str> = before.split_inclusive("\r\n").collect();
        for answered in [0, 2, 3, 5] {
            let mut pair = Pair::guarded();
            pair.lock("k", 7);
            pair.commands(&[&["SET", "g:k", "1"]]);
            pair.reply("-NOSCRIPT No matching script.\r\n");
            pair.reply(&replies[..answered].concat());
            ends(&mut pair, frame, "the long way");
        }
        // The EXEC around the write.
        if frame != "*0\r\n" {
            let mut pair = Pair::guarded();
            pair.lock("k", 7);
            pair.commands(&[&["SET", "g:k", "1"]]);
            pair.reply("-NOSCRIPT No matching script.\r\n");
            pair.reply(before);
            ends(&mut pair, frame, "EXEC");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_rules_the_frame_is_the_clients_and_all_else_passes() {
    for frame in FRAMES {
        let mut pair = Pair::new();
        pair.commands(&[&["LOCK", "k"]]);
        pair.at_data();
        pair.reply(frame);
        assert!(pair.core.question().is_none());
        assert_eq!((pair.core.tracking, &*pair.at_client()), (Tracking::Relayed, frame));
        assert_eq!(pair.at_data(), text(&["LOCK", "k"]), "Redis says that it has no such command");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_connection_is_believed_to_be_does_not_follow_from_it() {
    for words in [
        &["MULTI"][..],
        &["EXEC"],
        &["DISCARD"],
        &["WATCH", "a"],
        &["UNWATCH"],
        &["HELLO", "2"],
        &["RESET"],
        &["CLIENT", "SETNAME", "a"],
    ] {
        let mut pair = Pair::guarded();
        pair.commands(&[words]);
        let message = FRAMES[0];
        pair.reply(message);
        let is_list = words == ["EXEC"];
        let expected = if is_list { Tracking::Matched } else { Tracking::Closing };
        assert_eq!(pair.core.tracking, expected, "{words:?}");
    }
}
