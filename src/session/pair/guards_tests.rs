//! Tests of guarded writes: which way they go, and what their clients are told.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_guarded_write_needs_its_lock_and_is_compared_with_its_fence() {
    let mut pair = Pair::guarded();
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
async fn a_line_of_blanks_is_not_sent_on() {
    let mut pair = Pair::guarded();
    let (before, behind) = (text(&["PING"]), text(&["ECHO", "SET g:k 1"]));
    pair.send(format!("{before} \t \r\n{behind}\r\n  \n{before}").as_bytes());
    assert_eq!(pair.at_data(), format!("{before}{behind}\r\n{before}"));
}

#[tokio::test(start_paused = true)]
async fn the_long_way_takes_the_reply_out_of_exec() {
    let mut pair = Pair::guarded();
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
    // The data node has a larger fence, so nothing is written.
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
    let mut pair = Pair::guarded();
    pair.lock("k", 7);
    pair.commands(&[&["SET", "g:k", "1"]]);
    pair.reply("-ERR FENCE is another\r\n");
    pair.reply("+OK\r\n$1\r\n8\r\n+OK\r\n");
    pair.reply("-NOPERM no\r\n");
    assert_eq!(pair.core.tracking, Tracking::Closing);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_armed_before_its_multi() {
    let mut pair = Pair::guarded();
    pair.lock("k", 7);
    pair.commands(&[&["MULTI"], &["SET", "g:k", "1"], &["EXEC"]]);
    let asked = pair.at_data();
    assert!(asked.contains("WATCH") && !asked.contains("MULTI"), "{asked}");
    pair.reply("+OK\r\n$1\r\n7\r\n");
    // Only the reply to MULTI tells whether SET is queued.
    assert_eq!(pair.at_data(), text(&["MULTI"]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(&["SET", "g:k", "1"]) + &text(&["EXEC"]));
    // A fence was written meanwhile.
    pair.reply("+QUEUED\r\n*-1\r\n");
    assert!(pair.at_client().starts_with("+OK\r\n+QUEUED\r\n-FENCED"));
}

#[tokio::test(start_paused = true)]
async fn writes_that_are_here_share_a_call_and_their_reply_comes_in_any_pieces() {
    let reply = "*3\r\n:1\r\n$1\r\nx\r\n+INTEGER 9007199254740993\r\n";
    for cut in 0..=reply.len() {
        let mut pair = Pair::guarded();
        pair.lock("k", 7);
        let commands: [&[&str]; 4] = [
            &["INCR", "g:k"],
            &["GETDEL", "g:k"],
            &["INCRBY", "g:k", "9007199254740993"],
            &["GET", "g:k"],
        ];
        pair.commands(&commands);
        let call = pair.at_data();
        assert_eq!(call.matches("EVALSHA").count(), 1, "{call}");
        assert!(!call.ends_with(&text(commands[3])), "{call}");
        pair.reply(&reply[..cut]);
        pair.reply(&reply[cut..]);
        assert_eq!(pair.at_client(), ":1\r\n$1\r\nx\r\n:9007199254740993\r\n", "{cut}");
        assert_eq!(pair.at_data(), text(commands[3]));
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_script_has_not_made_is_sent_again_and_nothing_twice() {
    let mut pair = Pair::guarded();
    pair.lock("k", 7);
    let commands: [&[&str]; 3] = [&["INCR", "g:k"], &["LPUSH", "g:k", "x"], &["INCR", "g:k"]];
    pair.commands(&commands);
    pair.at_data();
    // The second write has failed: one was made.
    pair.reply("*1\r\n:1\r\n");
    assert_eq!(pair.at_client(), ":1\r\n");
    let again = pair.at_data();
    assert!(again.contains("LPUSH") && !again.contains("EXEC"), "{again}");
    pair.reply("-WRONGTYPE no\r\n");
    // The long way tells why.
    pair.at_data();
    pair.reply("+OK\r\n$1\r\n7\r\n+OK\r\n");
    assert_eq!(pair.at_data(), text(commands[1]) + &text(&["EXEC"]));
    pair.reply("+QUEUED\r\n*1\r\n-WRONGTYPE no\r\n");
    assert_eq!(pair.at_client(), "-WRONGTYPE no\r\n");
    let last = pair.at_data();
    assert!(last.contains("INCR") && !last.contains("LPUSH"), "{last}");
    pair.reply(":2\r\n");
    assert_eq!(pair.at_client(), ":2\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_connection_cut_in_a_call_tells_nothing_that_did_not_come() {
    let reply = "*2\r\n:1\r\n:2\r\n";
    for cut in 0..reply.len() {
        let mut pair = Pair::guarded();
        pair.lock("k", 7);
        pair.commands(&[&["INCR", "g:k"], &["INCR", "g:k"], &["LOCK", "k", "t", "PX", "9"]]);
        pair.reply(&reply[..cut]);
        pair.core.data_closed();
        pair.settle();
        let told = pair.at_client();
        assert!(":1\r\n:2\r\n".starts_with(&told), "{cut}: {told}");
        assert!(pair.core.question().is_none(), "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_runs_out_while_the_data_node_takes_its_fence_is_not_granted() {
    let mut pair = Pair::guarded();
    pair.commands(&[&["LOCK", "k", "t", "PX", "10000"]]);
    pair.reply("-ERR syntax error\r\n");
    pair.question();
    pair.answer(granted(7));
    tokio::time::advance(Duration::from_secs(11)).await;
    pair.reply("$1\r\n7\r\n");
    let told = pair.at_client();
    assert!(told.starts_with("-NOTHELD the lock had run out"), "{told}");
    pair.commands(&[&["SET", "g:k", "1"]]);
    assert!(pair.at_client().starts_with("-NOTHELD 'g:k'"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_has_run_out_is_asked_about_in_the_middle() {
    let mut pair = Pair::guarded();
    pair.lock("a", 7);
    pair.commands(&[&["LOCK.ATTACH", "b", "s"]]);
    let attached = |fence| {
        let Answer::Grant(Ok(grant)) = granted(fence) else { panic!("no grant") };
        Answer::Attached(vec![Ok(Some(grant))])
    };
    pair.reply("-ERR syntax error\r\n");
    pair.question();
    pair.answer(attached(8));
    pair.reply("$1\r\n8\r\n");
    pair.at_client();
    // The attached lock's keeper may have renewed it meanwhile, unknown to this connection, which has renewed its own
    // lock.
    tokio::time::advance(Duration::from_secs(9)).await;
    pair.commands(&[&["RENEW", "a", "t", "PX", "20000"]]);
    let until = Instant::now() + Duration::from_secs(20);
    pair.reply("-ERR syntax error\r\n");
    pair.answer(Answer::Renew(Ok(Some(Renewed {
        validity: Duration::from_secs(20),
        until,
        grant: None,
    }))));
    pair.at_client();
    tokio::time::advance(Duration::from_secs(2)).await;
    pair.at_data();
    pair.commands(&[&["INCR", "g:a"], &["INCR", "g:b"], &["INCR", "g:a"]]);
    let call = pair.at_data();
    assert!(call.contains("g:a") && !call.contains("g:b"), "{call}");
    pair.reply(":1\r\n");
    assert!(matches!(pair.question(), Question::Attached { locks } if locks.len() == 1));
    assert_eq!(pair.at_data(), "");
    pair.answer(Answer::Attached(vec![Ok(None)]));
    let told = pair.at_client();
    assert!(told.starts_with(":1\r\n-NOTHELD 'g:b'"), "{told}");
    let call = pair.at_data();
    assert!(call.contains("g:a") && !call.contains("g:b"), "{call}");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_the_client_itself_made_conditional_ends_as_ever() {
    let mut pair = Pair::guarded();
    pair.lock("k", 7);
    pair.commands(&[&["WATCH", "free"], &["SET", "g:k", "x"]]);
    pair.at_data();
    pair.reply("+OK\r\n");
    let told = pair.at_client();
    assert!(told.starts_with("+OK\r\n-ERR a guarded write between WATCH"), "{told}");
    pair.commands(&[&["MULTI"], &["SET", "g:k", "x"], &["EXEC"]]);
    pair.reply("+OK\r\n$1\r\n7\r\n");
    pair.reply("+OK\r\n");
    pair.reply("+QUEUED\r\n*-1\r\n");
    assert_eq!(pair.at_client(), "+OK\r\n+QUEUED\r\n*-1\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_replies_cannot_be_followed_is_closed() {
    let mut pair = Pair::guarded();
    pair.commands(&[&["REPLCONF", "capa", "eof"], &["SET", "g:k", "x"]]);
    assert_eq!(pair.core.tracking, Tracking::Closing);
    assert!(!pair.at_data().contains("g:k"));
}
