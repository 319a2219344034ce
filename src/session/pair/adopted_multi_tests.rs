//! Tests of adopted commands inside a client's own transaction: what the data node and the lock nodes are asked, in
//! which order, and what the client is told.

use super::{adopted_tests::enforced, *};
use crate::{key::Token, lock::Holding};

const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const TAKE: &[&str] = &["SET", "old:a", "t", "NX", "PX", "1000"];
const PROBE: &str = "SET old:a x NX XX";

/// A data node in a transaction, and lock nodes that answer each question with success.
struct Both {
    /// All that either was asked, in order.
    seen: Vec<String>,
    queued: usize,
    /// The reply to EXEC; if empty, an array of one number for each queued command.
    exec: &'static str,
}

impl Both {
    fn new(exec: &'static str) -> Both {
        Both { seen: Vec::new(), queued: 0, exec }
    }

    fn serve(&mut self, pair: &mut Pair, piece: usize) -> String {
        loop {
            let mut replies = String::new();
            let unread = pair.at_data();
            let mut unread = &unread[..];
            while let Some((words, length)) = first_command(unread) {
                let all = words.join(" ");
                replies += &match &all[..] {
                    "MULTI" => "+OK\r\n".to_owned(),
                    "EXEC" if self.exec.is_empty() => {
                        let all = (0..self.queued).map(|n| format!(":{n}\r\n"));
                        format!("*{}\r\n{}", self.queued, all.collect::<String>())
                    }
                    "EXEC" => self.exec.to_owned(),
                    "DISCARD" => "+OK\r\n".to_owned(),
                    "LOCK" => "-ERR unknown command\r\n".to_owned(),
                    _ => {
                        self.queued += 1;
                        "+QUEUED\r\n".to_owned()
                    }
                };
                self.seen.push(all);
                unread = &unread[length..];
            }
            for piece in replies.as_bytes().chunks(piece) {
                pair.reply(std::str::from_utf8(piece).unwrap());
            }
            let question = pair.core.question();
            if question.is_none() && replies.is_empty() {
                return pair.at_client();
            }
            if let Some(question) = question {
                let answer = self.answer(*question);
                pair.answer(answer);
            }
        }
    }

    fn answer(&mut self, question: Question) -> Answer {
        let validity = Duration::from_secs(9);
        let until = Instant::now() + validity;
        let (asked, answer) = match question {
            Question::Adopt { claim, .. } => {
                let claim = Some(claim);
                ("adopt", Answer::Grant(Ok(Grant { fence: 7, claim, validity, until })))
            }
            Question::Unlock { .. } => ("unlock", Answer::Unlock(Ok(true))),
            Question::Renew { .. } => {
                ("renew", Answer::Renew(Ok(Some(Renewed { validity, until, grant: None }))))
            }
            Question::Look { .. } => {
                let (token, left, claim) =
                    (Token::from(b"t"), Some(validity), Some(Claim::adopted()));
                ("look", Answer::Look(Ok(Some(Holding { token, left, claim }))))
            }
            _ => panic!("another question"),
        };
        self.seen.push(asked.to_owned());
        answer
    }
}

#[tokio::test(start_paused = true)]
async fn locks_come_first_and_what_frees_last_wherever_bytes_are_cut() {
    let all: [&[&str]; 8] = [
        &["MULTI"],
        &["INCR", "x"],
        &["PEXPIRE", "old:a", "1000"],
        TAKE,
        &["EVALSHA", RELEASE, "1", "old:a", "t"],
        &["GET", "old:a"],
        &["INCR", "y"],
        &["EXEC"],
    ];
    let bytes: Vec<u8> = all.iter().flat_map(|words| command(words)).collect();
    for cut in 0..bytes.len() {
        let (mut pair, mut both) = (enforced(), Both::new(""));
        pair.send(&bytes[..cut]);
        pair.send(&bytes[cut..]);
        let told = both.serve(&mut pair, 1 + cut % 7);
        let expected = [
            "MULTI",
            "INCR x",
            PROBE,
            PROBE,
            PROBE,
            "GET old:a",
            "INCR y",
            "look",
            "renew",
            "adopt",
            "EXEC",
            "unlock",
            "look",
        ];
        assert_eq!(both.seen, expected, "{cut}");
        let queued = "+QUEUED\r\n".repeat(6);
        let exec = "*6\r\n:0\r\n:1\r\n+OK\r\n:1\r\n$1\r\nt\r\n:5\r\n";
        assert_eq!(told, format!("+OK\r\n{queued}{exec}"), "{cut}");
        assert!(pair.core.desk.conn.locks.is_empty() && !pair.core.desk.conn.state.multi);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_not_executed_gives_back() {
    for exec in ["*-1\r\n", "_\r\n", "-EXECABORT discarded\r\n"] {
        let (mut pair, mut both) = (enforced(), Both::new(exec));
        let release = &["EVALSHA", RELEASE, "1", "old:b", "t"];
        pair.commands(&[&["MULTI"], TAKE, release, &["EXEC"], &["MULTI"]]);
        let told = both.serve(&mut pair, usize::MAX);
        assert!(told.ends_with(&format!("{exec}+OK\r\n")), "{told}");
        let expected = ["MULTI", PROBE, "SET old:b x NX XX", "adopt", "EXEC", "MULTI"];
        assert_eq!(both.seen, expected, "nothing is freed");
        assert!(pair.core.desk.tokens.held.is_empty(), "what was taken is forgotten");
    }
}

#[tokio::test(start_paused = true)]
async fn what_frees_first_has_the_lock_nodes_asked_before_anything_is_executed() {
    let (mut pair, mut both) = (enforced(), Both::new(""));
    let release = &["EVALSHA", RELEASE, "1", "old:a", "t"];
    pair.commands(&[&["MULTI"], &["INCR", "x"], release, &["DEL", "old:a"], &["EXEC"]]);
    let told = both.serve(&mut pair, usize::MAX);
    assert!(told.ends_with("*3\r\n:0\r\n:1\r\n:1\r\n"), "{told}");
    let executed = both.seen.iter().position(|what| what == "EXEC").unwrap();
    assert_eq!(both.seen[executed - 1..], ["look", "EXEC", "unlock", "look", "unlock"]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_no_transactions_is_not_taken_for_one() {
    for exec in ["*0\r\n", "+OK\r\n"] {
        let (mut pair, mut both) = (enforced(), Both::new(exec));
        pair.commands(&[&["MULTI"], TAKE, &["EXEC"]]);
        let told = both.serve(&mut pair, usize::MAX);
        assert_eq!(told, "+OK\r\n+QUEUED\r\n");
        assert_eq!(pair.core.tracking, Tracking::Closing);
    }
}
