//! Tests of inline commands: the data node carries out what was judged.

use super::*;
use crate::session::pair::adopted_tests::enforced;

/// Makes sessions in which commands are judged, the last one at a front of a cluster.
fn with_rules() -> [Pair; 3] {
    [Pair::guarded(), enforced(), fronts_tests::at_front()]
}

#[tokio::test(start_paused = true)]
async fn a_line_is_sent_on_as_the_words_that_were_judged() {
    for (line, words) in [
        ("SET x\x0by v\r\n", &["SET", "x\x0by", "v"][..]),
        ("  ECHO 'a b'\x0c\n", &["ECHO", "a b"]),
        ("GET \"\\x41\\n\"\r\n", &["GET", "A\n"]),
        ("\x0bPING\r\n", &["PING"]),
    ] {
        for mut pair in with_rules() {
            pair.send(line.as_bytes());
            assert_eq!(pair.at_data(), text(words), "{line:?}");
        }
        let mut pair = Pair::new();
        pair.send(line.as_bytes());
        assert_eq!(pair.at_data(), line, "without rules nothing is changed");
    }
}

/// Sends these bytes in two pieces. Returns what the client was told, and what the data node was sent.
fn carry_out(all: &str, cut: usize) -> (String, Vec<String>) {
    let mut pair = Pair::guarded();
    pair.send(&all.as_bytes()[..cut]);
    pair.send(&all.as_bytes()[cut..]);
    let mut sent = Vec::new();
    let mut data = |words: &[&str]| {
        if words != [""] {
            sent.push(words.join(" "));
        }
        match words {
            [] | [""] => String::new(),
            ["SET", ..] => "-ERR syntax error\r\n".to_owned(),
            ["EVAL", ..] => "$1\r\n7\r\n".to_owned(),
            [name, ..] => format!("+{name}\r\n"),
        }
    };
    let mut others = |question| match question {
        Question::Lock { .. } => granted(7),
        Question::Unlock { .. } => Answer::Unlock(Ok(true)),
        _ => panic!("something else is asked"),
    };
    pair.serve(usize::MAX, &mut data, &mut others);
    assert_eq!(pair.core.tracking, Tracking::Matched, "{cut}");
    (pair.at_client(), sent)
}

#[tokio::test(start_paused = true)]
async fn lines_and_arrays_keep_their_order_wherever_they_are_cut() {
    let commands: [&[&str]; 7] = [
        &["PING"],
        &["ECHO", "2"],
        &["SET", "g:k", "1"],
        &["LOCK", "k", "t", "PX", "10000"],
        &["GET", "free"],
        &["UNLOCK", "k", "t"],
        &["ECHO", "a b"],
    ];
    let arrays: String = commands.iter().map(|words| text(words)).collect();
    let expected = carry_out(&arrays, 0);
    assert!(expected.0.starts_with("+PING\r\n+ECHO\r\n-NOTHELD 'g:k'"), "{expected:?}");
    assert!(expected.0.ends_with(":1\r\n+ECHO\r\n"), "{expected:?}");
    let echo = text(commands[1]);
    let lines = format!(
        "PING\r\n\r\n{echo}SET g:k\t1 \r\nLOCK k 't' PX 10000\n \x0b \nGET free\r\nUNLOCK k t\n{}",
        "ECHO \"a b\"\r\n"
    );
    for cut in 0..lines.len() {
        assert_eq!(carry_out(&lines, cut), expected, "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_whose_quotes_do_not_balance_is_not_sent_on() {
    for line in ["SET g:k \"a\r\n", "SET g:k 'a'b\r\n"] {
        let mut pair = Pair::guarded();
        pair.send(format!("{line}SET g:k 1\r\n").as_bytes());
        assert_eq!(pair.at_data(), "\"\r\n", "Redis has the same error for it");
        assert_eq!(pair.core.tracking, Tracking::Muted);
    }
}
