//! Tests of commands of ours among others: which commands wait for which, and the order of answers.

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
    let held = NotGranted::held(false);
    pair.answer(Answer::Grant(Err(held)));
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
    // A push arrives in part while the lock nodes are asked.
    pair.commands(&[&["LOCK", "k", "t", "PX", "1000"]]);
    pair.reply("-ERR syntax error\r\n>2\r\n+invalidate\r\n");
    pair.question();
    let held = NotGranted::held(false);
    pair.answer(Answer::Grant(Err(held)));
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
    let held = NotGranted::held(false);
    pair.answer(Answer::Grant(Err(held)));
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
    assert!(!pair.core.awaits_answer() && pair.core.desk.unsent.is_empty());
    assert!(!pair.at_data().contains("free"));
}

/// Answers as a Redis that allows everything, and as lock nodes that grant everything.
fn serve_all(pair: &mut Pair, piece: usize) {
    let mut data = |words: &[&str]| match words {
        ["ECHO", word] => format!("${}\r\n{word}\r\n", word.len()),
        [ping] if ping.eq_ignore_ascii_case("PING") => "+PONG\r\n".to_owned(),
        ["SET", "lock:k", "x", "NX", "XX"] => "-ERR syntax error\r\n".to_owned(),
        [] | [""] => String::new(),
        other => panic!("{other:?}"),
    };
    let mut others = |question| match question {
        Question::Lock { .. } => granted(1),
        Question::Unlock { .. } => Answer::Unlock(Ok(true)),
        Question::Renew { ttl, .. } => Answer::Renew(Ok(Some(renewed(ttl)))),
        _ => panic!("something else is asked"),
    };
    pair.serve(piece, &mut data, &mut others);
}

fn renewed(ttl: Duration) -> Renewed {
    Renewed { validity: ttl, until: Instant::now() + ttl, grant: None }
}

const GRANT: &str = "*3\r\n$1\r\nt\r\n:1\r\n:10000\r\n";

#[tokio::test(start_paused = true)]
async fn own_commands_at_every_position_of_a_pipeline() {
    for (position, behind, piece) in (0..6)
        .flat_map(|position| (0..6).map(move |behind| (position, behind)))
        .flat_map(|(position, behind)| [1, 3, 1000].map(|piece| (position, behind, piece)))
    {
        let mut all: Vec<(&[&str], &str)> = vec![
            (&["ECHO", "a"], "$1\r\na\r\n"),
            (&["ECHO", "b"], "$1\r\nb\r\n"),
            (&["ECHO", "c"], "$1\r\nc\r\n"),
            (&["ECHO", "d"], "$1\r\nd\r\n"),
            (&["ECHO", "e"], "$1\r\ne\r\n"),
        ];
        all.insert(position, (&["LOCK", "k", "t", "PX", "10000"], GRANT));
        all.insert((position + 1 + behind).min(6), (&["UNLOCK", "k", "t"], ":1\r\n"));
        let mut pair = Pair::new();
        pair.commands(&all.iter().map(|(words, _)| *words).collect::<Vec<_>>());
        serve_all(&mut pair, piece);
        let expected: String = all.iter().map(|(_, reply)| *reply).collect();
        assert_eq!(pair.at_client(), expected, "{position} {behind} {piece}");
    }
}

#[tokio::test(start_paused = true)]
async fn own_commands_come_in_any_pieces() {
    let bytes = [
        &command(&["LOCK", "k", "t", "PX", "10000"]),
        &b"ping\r\n rEnEw 'k' \"t\" px 20000\r\n\r\n*0\r\n"[..],
        &command(&["UNLOCK", "k", "t"]),
    ]
    .concat();
    let expected = [GRANT, "+PONG\r\n:20000\r\n:1\r\n"].concat();
    for cut in 0..=bytes.len() {
        let mut pair = Pair::new();
        pair.send(&bytes[..cut]);
        pair.send(&bytes[cut..]);
        serve_all(&mut pair, 1000);
        assert_eq!(pair.at_client(), expected, "{cut}");
    }
    let mut pair = Pair::new();
    bytes.iter().for_each(|byte| pair.send(&[*byte]));
    serve_all(&mut pair, 1);
    assert_eq!(pair.at_client(), expected);
}

#[tokio::test(start_paused = true)]
async fn unlock_waits_for_earlier_commands_and_later_ones_wait_for_it() {
    let mut pair = Pair::new();
    let commands: [&[&str]; 3] =
        [&["BLPOP", "list", "0"], &["UNLOCK", "k", "t"], &["SET", "after", "1"]];
    pair.commands(&commands);
    assert_eq!(pair.at_data(), text(commands[0]));
    assert!(pair.core.question().is_none(), "not yet released");
    pair.reply("*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
    assert_eq!(pair.at_data(), text(&["SET", "lock:k", "x", "NX", "XX"]));
    pair.reply("-ERR syntax error\r\n");
    assert!(matches!(pair.question(), Question::Unlock { .. }));
    assert_eq!(pair.at_data(), "", "not yet sent on");
    pair.answer(Answer::Unlock(Ok(true)));
    assert_eq!(pair.at_data(), text(commands[2]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_client(), "*2\r\n$4\r\nlist\r\n$1\r\nx\r\n:1\r\n+OK\r\n");
}

#[tokio::test(start_paused = true)]
async fn what_came_before_a_hang_up_still_runs_in_order() {
    let mut pair = Pair::new();
    pair.commands(&[&["ECHO", "a"], &["UNLOCK", "k", "t"], &["ECHO", "b"]]);
    assert!(!pair.core.client_closed());
    assert!(pair.core.linger().is_some(), "but not for ever");
    serve_all(&mut pair, 1000);
    assert_eq!(pair.at_client(), "$1\r\na\r\n:1\r\n$1\r\nb\r\n");
    assert!(pair.core.linger().is_none());
}

#[tokio::test(start_paused = true)]
async fn wherever_a_push_is_cut_an_answer_stands_before_or_behind_it() {
    let pushes = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nx\r\n>1\r\n+gone\r\n";
    let second = pushes.find(">1").unwrap();
    for cut in 0..=pushes.len() {
        let mut pair = Pair::new();
        pair.commands(&[&["LOCK", "k", "t", "PX", "10000"]]);
        pair.reply("-ERR syntax error\r\n");
        pair.reply(&pushes[..cut]);
        pair.question();
        pair.answer(granted(1));
        (cut..pushes.len()).for_each(|at| pair.reply(&pushes[at..=at]));
        let told = pair.at_client();
        let place = match cut {
            0 => 0,
            _ if cut <= second => second,
            _ => pushes.len(),
        };
        assert_eq!(told, [&pushes[..place], GRANT, &pushes[place..]].concat(), "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_audited_reaches_the_data_node_as_it_came() {
    let large = "x".repeat(40_000);
    let all: [&[&str]; 11] = [
        &["CLIENT", "SETNAME", "x"],
        &["SET", "lock:a", "t", "NX", "PX", "1000"],
        &["GET", "key"],
        &["GET", "key"],
        &["EVALSHA", "c3f8721cbb97f72bc19e972846bd7aaf91901658", "1", "lock:a", "t"],
        &["EVAL", &large, "1", "lock:a"],
        &["SET", "lock:a", &large],
        &["WATCH", "lock:a"],
        &["GET", "lock:a"],
        &["MULTI"],
        &["DEL", "lock:a"],
    ];
    let sent: Vec<u8> = all.iter().flat_map(|words| command(words)).collect();
    for piece in [1, 7, 1000, 50_000, sent.len()] {
        let config = Config::parse("adopt: {keys: 'lock:*'}", "f", &|_| None).unwrap();
        let mut pair = Pair::with(config);
        for bytes in sent.chunks(piece) {
            pair.send(bytes);
            assert!(pair.core.idiom_look.is_some());
        }
        assert_eq!(pair.at_data().as_bytes(), sent, "in pieces of {piece}");
        assert_eq!(pair.at_client(), "");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_has_its_turn_once_its_client_has_gone_is_not_asked_for() {
    let mut pair = Pair::guarded();
    pair.lock("k", 7);
    let commands: [&[&str]; 3] =
        [&["SET", "g:k", "1"], &["LOCK", "z", "t", "PX", "4000", "WAIT", "0"], &["SET", "a", "1"]];
    pair.commands(&commands);
    pair.at_data();
    // The client's end comes while a command in front of the LOCK has the floor.
    assert!(!pair.core.client_closed());
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_client(), "+OK\r\n");
    assert!(pair.core.question().is_none() && !pair.core.is_waiting());
    assert_eq!((pair.at_data(), pair.core.desk.unsent.len()), (String::new(), 0));
    assert!(pair.core.linger().is_none(), "so that nothing is left to wait for");
}
