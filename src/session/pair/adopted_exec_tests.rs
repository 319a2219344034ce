//! Tests of transactions about an adopted lock: what the data node sees of them, what the lock nodes are asked, and
//! what the client is told.

use super::{
    adopted_tests::{enforced, enforced_with},
    *,
};
use crate::{
    config::{AdoptOptions, NoQuorumPolicy},
    key::Token,
    lock::Holding,
};

const WATCH: &[&str] = &["WATCH", "old:a"];
const GET: &[&str] = &["GET", "old:a"];
const MULTI: &[&str] = &["MULTI"];
const DEL: &[&str] = &["DEL", "old:a"];
const EXEC: &[&str] = &["EXEC"];
const PROBE: &str = "SET old:a x NX XX";
const MISFIT: &str = "-ERR a transaction on an adopted lock is WATCH, GET, MULTI, one of DEL, \
                      UNLINK, EXPIRE and PEXPIRE, and EXEC, all of one key (adopt)\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

/// The lock nodes, on which one lock matters, and the data node.
struct Others {
    holder: Option<(&'static str, Claim)>,
    asked: Vec<String>,
    seen: Vec<String>,
}

impl Others {
    /// Makes them with the lock free, or held by this token.
    fn with(holder: Option<&'static str>) -> Others {
        let holder = holder.map(|token| (token, Claim::adopted()));
        Others { holder, asked: Vec::new(), seen: Vec::new() }
    }

    fn answer(&mut self, question: Question) -> Answer {
        let has = |holder: Option<(&'static str, Claim)>, token: &Token, claim: Option<Claim>| {
            holder.is_some_and(|(held, of)| *held.as_bytes() == **token && claim == Some(of))
        };
        match question {
            Question::Look { .. } => {
                self.asked.push("look".into());
                Answer::Look(Ok(self.holder.map(|(token, claim)| {
                    let left = Some(Duration::from_secs(9));
                    Holding { token: Token::from(token), left, claim: Some(claim) }
                })))
            }
            Question::Adopt { .. } => {
                self.asked.push("adopt".into());
                assert!(self.holder.is_some());
                Answer::Grant(Err(NotGranted::held(false)))
            }
            Question::Unlock { token, claim, .. } => {
                self.asked.push("unlock".into());
                let released = has(self.holder, &token, claim);
                if released {
                    self.holder = None;
                }
                Answer::Unlock(Ok(released))
            }
            Question::Renew { token, claim, ttl, .. } => {
                self.asked.push("renew".into());
                let renewed = Renewed { validity: ttl, until: Instant::now() + ttl, grant: None };
                Answer::Renew(Ok(has(self.holder, &token, claim).then_some(renewed)))
            }
            _ => panic!("another question"),
        }
    }

    /// Serves a session until nothing is left to answer. Returns what its client was told.
    fn serve(&mut self, pair: &mut Pair) -> String {
        let Others { seen, .. } = self;
        let mut noted = std::mem::take(seen);
        let mut data = |words: &[&str]| {
            let all = words.join(" ");
            let reply = match &all[..] {
                "EXEC" | "DISCARD" => format!("-ERR {all} without MULTI\r\n"),
                _ if words[0] == "SET" && all.ends_with(" x NX XX") => {
                    "-ERR syntax error\r\n".to_owned()
                }
                "GET old:a" | "GET old:b" => "$-1\r\n".to_owned(),
                "HELLO 3" => "%0\r\n".to_owned(),
                "CLIENT INFO" => "$9\r\nid=1 db=0\r\n".to_owned(),
                "CLIENT REPLY ON" => "+OK\r\n".to_owned(),
                "CLIENT REPLY SKIP" | "LOCK" => String::new(),
                _ => format!("+{}\r\n", words[0]),
            };
            noted.push(all);
            reply
        };
        pair.serve(usize::MAX, &mut data, &mut |question| self.answer(question));
        self.seen = noted;
        pair.at_client()
    }

    /// Makes the client send these commands. Returns what it was told.
    fn told(&mut self, pair: &mut Pair, commands: &[&[&str]]) -> String {
        pair.commands(commands);
        self.serve(pair)
    }
}

#[tokio::test(start_paused = true)]
async fn the_data_node_sees_none_of_a_transaction_wherever_its_bytes_are_cut() {
    let all: [&[&str]; 9] = [
        &["GET", "x"],
        WATCH,
        &["GET", "y"],
        GET,
        // A command of another caller on the same connection.
        &["SET", "old:a", "u", "NX", "PX", "1000"],
        MULTI,
        DEL,
        EXEC,
        &["GET", "z"],
    ];
    let bytes: Vec<u8> = all.iter().flat_map(|words| command(words)).collect();
    // The data node does not answer half a command.
    let is_in_plain = |cut: usize| {
        let mut at = 0;
        all.iter().any(|words| {
            let begin = at;
            at += command(words).len();
            begin < cut && cut < at && words[0] == "GET" && words != &GET
        })
    };
    for (hello, null) in [("", "$-1\r\n"), ("3", "_\r\n")] {
        for cut in 0..bytes.len() {
            let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
            if !hello.is_empty() {
                others.told(&mut pair, &[&["HELLO", hello]]);
                others.seen.clear();
            }
            pair.send(&bytes[..cut]);
            let mut told = String::new();
            if !is_in_plain(cut) {
                told += &others.serve(&mut pair);
            }
            pair.send(&bytes[cut..]);
            told += &others.serve(&mut pair);
            assert_eq!(others.seen, ["GET x", "GET old:a", "GET y", PROBE, "GET z"], "{cut}");
            assert_eq!(others.asked, ["look", "adopt", "unlock"], "{cut}");
            let expected = format!(
                "+GET\r\n+OK\r\n+GET\r\n$1\r\nt\r\n{null}+OK\r\n+QUEUED\r\n*1\r\n:1\r\n+GET\r\n"
            );
            assert_eq!(told, expected, "{cut}");
            assert!(pair.core.desk.transaction.is_none());
        }
    }
    // As text, in single bytes.
    let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
    let mut told = String::new();
    for byte in b"watch old:a\r\nget old:a\r\nmulti\r\nunlink old:a\r\nexec\r\n" {
        pair.send(&[*byte]);
        told += &others.serve(&mut pair);
    }
    assert_eq!(told, "+OK\r\n$1\r\nt\r\n+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    assert_eq!(others.seen, ["GET old:a", PROBE]);
}

#[tokio::test(start_paused = true)]
async fn what_get_told_decides_at_exec() {
    let expire: &[&str] = &["PEXPIRE", "old:a", "5000"];
    let gone: &[&str] = &["EXPIRE", "old:a", "0"];
    let again = Claim::adopted();
    for (before, inside, after, exec, asked) in [
        // The lock at EXEC: the same grant, free, another's, and a second grant of the same token.
        (Some("t"), Some(DEL), None, "*1\r\n:1\r\n", "unlock"),
        (Some("t"), Some(expire), None, "*1\r\n:1\r\n", "renew"),
        (Some("t"), Some(gone), None, "*1\r\n:1\r\n", "unlock"),
        (Some("t"), None, None, "*0\r\n", "look"),
        (Some("t"), Some(DEL), Some(None), "*-1\r\n", "unlock"),
        (Some("t"), Some(expire), Some(None), "*-1\r\n", "renew"),
        (Some("t"), None, Some(None), "*-1\r\n", "look"),
        (Some("t"), Some(DEL), Some(Some(("u", again))), "*-1\r\n", "unlock"),
        (Some("t"), Some(DEL), Some(Some(("t", again))), "*-1\r\n", "unlock"),
        (Some("t"), Some(expire), Some(Some(("t", again))), "*-1\r\n", "renew"),
        (Some("t"), None, Some(Some(("t", again))), "*-1\r\n", "look"),
        (None, Some(DEL), None, "*1\r\n:0\r\n", "look"),
        (None, Some(expire), None, "*1\r\n:0\r\n", "look"),
        (None, None, None, "*0\r\n", "look"),
        (None, Some(DEL), Some(Some(("u", again))), "*-1\r\n", "look"),
        (None, None, Some(Some(("u", again))), "*-1\r\n", "look"),
    ] {
        let (mut pair, mut others) = (enforced(), Others::with(before));
        let mut commands = vec![WATCH, GET, MULTI];
        commands.extend(inside);
        others.told(&mut pair, &commands);
        if let Some(after) = after {
            others.holder = after;
        }
        let before_exec = others.holder;
        assert_eq!(others.told(&mut pair, &[EXEC]), exec, "{before:?} {inside:?} {after:?}");
        assert_eq!(others.asked, ["look", asked]);
        if exec == "*-1\r\n" {
            assert_eq!(others.holder, before_exec, "nothing was done");
        }
        assert!(!others.seen.iter().any(|seen| seen == "MULTI" || seen == "EXEC"));
    }
    // Two GETs that are told of different holders.
    for (first, second) in [(Some("t"), None), (None, Some("t")), (Some("t"), Some("u"))] {
        let (mut pair, mut others) = (enforced(), Others::with(first));
        others.told(&mut pair, &[WATCH, GET]);
        others.holder = second.map(|token| (token, again));
        let told = others.told(&mut pair, &[GET, MULTI, DEL, EXEC]);
        assert!(told.ends_with("+OK\r\n+QUEUED\r\n*-1\r\n"), "{told}");
        assert!(!others.asked.contains(&"unlock".to_owned()), "{:?}", others.asked);
    }
}

#[tokio::test(start_paused = true)]
async fn too_few_lock_nodes_are_told_and_a_late_extension_is_no_success() {
    let missing = || NoQuorum { answered: 1, nodes: 3, quorum: 2, ..NoQuorum::default() };
    let no_quorum = NoQuorumPolicy::Error;
    let enforced = || enforced_with(AdoptOptions { no_quorum, ..AdoptOptions::default() });
    for inside in [DEL, &["PEXPIRE", "old:a", "5000"]] {
        let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
        others.told(&mut pair, &[WATCH, GET, MULTI, inside]);
        pair.commands(&[EXEC]);
        match pair.question() {
            Question::Unlock { .. } => pair.answer(Answer::Unlock(Err(missing()))),
            _ => pair.answer(Answer::Renew(Err(missing()))),
        }
        let told = pair.at_client();
        assert!(told.starts_with("-NOQUORUM "), "{told}");
        assert!(pair.core.desk.transaction.is_none());
    }
    let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
    others.told(&mut pair, &[WATCH, GET, MULTI, &["PEXPIRE", "old:a", "5000"]]);
    pair.commands(&[EXEC]);
    assert!(matches!(pair.question(), Question::Renew { .. }));
    let validity = Duration::from_millis(4999);
    let until = Instant::now() + validity;
    pair.answer(Answer::Renew(Ok(Some(Renewed { validity, until, grant: None }))));
    assert!(pair.at_client().starts_with("-NOQUORUM "));
    // A GET that is answered with an error has not read the lock.
    let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
    others.told(&mut pair, &[WATCH]);
    pair.commands(&[GET]);
    assert!(matches!(pair.question(), Question::Look { .. }));
    pair.answer(Answer::Look(Err(missing())));
    let told = others.told(&mut pair, &[MULTI, DEL, EXEC]);
    assert!(told.contains("-ERR no GET told who holds the adopted lock 'a'"), "{told}");
    assert!(told.ends_with(ABORTED) && others.asked.is_empty(), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_of_anything_else_fails_and_nothing_of_it_is_done() {
    let unread = "-ERR no GET told who holds the adopted lock 'a' since its WATCH (adopt)\r\n";
    let alone = "-ERR an adopted lock is watched alone, without other keys (adopt)\r\n";
    let set: &[&str] = &["SET", "x", "1"];
    let large = "x".repeat(30_000);
    let token = "$1\r\nt\r\n";
    for (commands, expected) in [
        (vec![WATCH, GET, MULTI, set, EXEC], format!("+OK\r\n{token}+OK\r\n{MISFIT}{ABORTED}")),
        (
            vec![WATCH, GET, MULTI, DEL, set, EXEC],
            format!("+OK\r\n{token}+OK\r\n+QUEUED\r\n{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, set, DEL, EXEC],
            format!("+OK\r\n{token}+OK\r\n{MISFIT}{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, DEL, DEL, EXEC],
            format!("+OK\r\n{token}+OK\r\n+QUEUED\r\n{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, &["DEL", "old:b"], EXEC],
            format!("+OK\r\n{token}+OK\r\n{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, &["SET", "old:a", "t", "NX", "PX", "1000"], EXEC],
            format!("+OK\r\n{token}+OK\r\n{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, &["SET", "old:a", &large, "NX", "PX", "1000"], DEL, EXEC],
            format!(
                "+OK\r\n{token}+OK\r\n-ERR the command on an adopted lock is refused: it is \
                 larger than what is looked at (adopt)\r\n{MISFIT}{ABORTED}"
            ),
        ),
        (
            vec![WATCH, GET, MULTI, &["SET", "x", &large], &["LOCK", "k"], &["PING"], EXEC],
            format!("+OK\r\n{token}+OK\r\n{MISFIT}{MISFIT}{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, &["SUBSCRIBE", "c"], &["UNWATCH"], &["DISCARD", "x"], EXEC],
            format!("+OK\r\n{token}+OK\r\n{MISFIT}{MISFIT}{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, MULTI, &["CLIENT", "REPLY", "OFF"], &["HELLO", "3"], EXEC],
            format!("+OK\r\n{token}+OK\r\n{MISFIT}{MISFIT}{ABORTED}"),
        ),
        (vec![WATCH, MULTI, DEL, EXEC], format!("+OK\r\n+OK\r\n{unread}{ABORTED}")),
        (
            vec![WATCH, MULTI, EXEC],
            "+OK\r\n+OK\r\n-EXECABORT an adopted lock was watched and not read (adopt)\r\n".into(),
        ),
        // What was read before the WATCH is not watched.
        (vec![GET, WATCH, MULTI, DEL, EXEC], format!("{token}+OK\r\n+OK\r\n{unread}{ABORTED}")),
        (
            vec![WATCH, GET, &["WATCH", "x"], GET, MULTI, DEL, EXEC],
            format!("+OK\r\n{token}{alone}{token}+OK\r\n{MISFIT}{ABORTED}"),
        ),
        (
            vec![WATCH, GET, &["WATCH", "old:b"], MULTI, DEL, EXEC],
            format!("+OK\r\n{token}{alone}+OK\r\n{MISFIT}{ABORTED}"),
        ),
        // Redis forgives these too.
        (
            vec![WATCH, GET, MULTI, MULTI, WATCH, &["WATCH", "x"], DEL, EXEC],
            format!(
                "+OK\r\n{token}+OK\r\n-ERR MULTI calls can not be nested\r\n-ERR WATCH inside \
                 MULTI is not allowed\r\n-ERR WATCH inside MULTI is not allowed\r\n+QUEUED\r\n\
                 *1\r\n:1\r\n"
            ),
        ),
        (
            vec![WATCH, GET, MULTI, DEL, &["EXEC", "x"]],
            format!(
                "+OK\r\n{token}+OK\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of: \
                 wrong number of arguments for 'exec' command\r\n"
            ),
        ),
        (
            vec![WATCH, WATCH, GET, MULTI, DEL, EXEC],
            format!("+OK\r\n+OK\r\n{token}+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"),
        ),
    ] {
        let ends_well = expected.ends_with(":1\r\n");
        let bytes: Vec<u8> = commands.iter().flat_map(|words| command(words)).collect();
        for piece in [1, 7, 5000, bytes.len()] {
            let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
            let mut told = String::new();
            for bytes in bytes.chunks(piece) {
                pair.send(bytes);
                told += &others.serve(&mut pair);
            }
            assert_eq!(told, expected, "{commands:?} in pieces of {piece}");
            assert_eq!(others.asked.contains(&"unlock".to_owned()), ends_well, "{commands:?}");
            let probes = ["GET old:a", "GET old:b", PROBE, "SET old:b x NX XX", "SET  x NX XX"];
            assert!(
                others.seen.iter().all(|seen| probes.contains(&&seen[..])),
                "{:?}",
                others.seen
            );
            // Later commands are not affected.
            others.seen.clear();
            let told = others.told(&mut pair, &[MULTI, set, EXEC]);
            assert_eq!(told, "+MULTI\r\n+SET\r\n-ERR EXEC without MULTI\r\n");
            assert_eq!(others.seen, ["MULTI", "SET x 1", "EXEC"], "{commands:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unwatch_and_discard_forget_it() {
    for (commands, seen) in [
        (&[WATCH, GET, &["UNWATCH"], DEL][..], &["GET old:a", PROBE][..]),
        (&[WATCH, GET, MULTI, &["DISCARD"], DEL], &["GET old:a", PROBE]),
        (&[WATCH, GET, MULTI, DEL, &["DISCARD"], DEL], &["GET old:a", PROBE]),
        (&[WATCH, GET, MULTI, &["PING"], &["DISCARD"], DEL], &["GET old:a", PROBE]),
        (&[WATCH, &["WATCH", "x"], &["UNWATCH"], DEL], &["GET old:a", PROBE]),
        (&[WATCH, GET, MULTI, &["RESET"], DEL], &["GET old:a", "RESET", PROBE, "CLIENT INFO"]),
    ] {
        let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
        let told = others.told(&mut pair, commands);
        assert!(told.ends_with(":1\r\n") && !told.ends_with("*1\r\n:1\r\n"), "{told}");
        assert_eq!(others.asked.iter().filter(|asked| *asked == "unlock").count(), 1);
        assert_eq!(others.seen, seen, "{commands:?}");
        assert!(pair.core.desk.transaction.is_none());
    }
    // Without MULTI both are errors, which Redis words, and the WATCH stays.
    let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
    let told = others.told(&mut pair, &[WATCH, GET, EXEC, &["DISCARD"], MULTI, DEL, EXEC]);
    let expected = "+OK\r\n$1\r\nt\r\n-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n\
                    +OK\r\n+QUEUED\r\n*1\r\n:1\r\n";
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_no_locks_are_not_watched_beside_one() {
    let alone = "-ERR an adopted lock is watched alone, without other keys (adopt)\r\n";
    let mut pair = enforced();
    pair.commands(&[&["WATCH", "x"], WATCH]);
    assert_eq!(pair.at_data(), text(&["WATCH", "x"]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(GET));
    pair.reply("$-1\r\n");
    assert_eq!(pair.at_client(), ["+OK\r\n", alone].concat());
    // The other transaction must not go on as if the lock were watched.
    pair.commands(&[MULTI, DEL]);
    assert_eq!(pair.at_data(), text(MULTI));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(&["LOCK"]));
    pair.reply("-ERR unknown command\r\n");
    assert_eq!(pair.at_client(), ["+OK\r\n", alone].concat());
    // Nor if the other key was watched while replies were off, so that no reply told.
    for mode in ["OFF", "SKIP"] {
        let mut pair = enforced();
        pair.commands(&[&["CLIENT", "REPLY", mode]]);
        pair.reply("+OK\r\n");
        pair.commands(&[&["WATCH", "x"]]);
        if mode == "OFF" {
            pair.commands(&[&["CLIENT", "REPLY", "ON"]]);
            pair.reply("+OK\r\n");
        }
        pair.at_client();
        pair.commands(&[WATCH]);
        pair.reply("$-1\r\n");
        assert_eq!(pair.at_client(), alone, "{mode}");
        pair.commands(&[&["UNWATCH"], WATCH]);
        pair.reply("+OK\r\n");
        assert_eq!(pair.at_client(), "+OK\r\n+OK\r\n", "{mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_leaves_nothing_begun() {
    let all = [WATCH, GET, MULTI, DEL, EXEC];
    let bytes: Vec<u8> = all.iter().flat_map(|words| command(words)).collect();
    for cut in 0..=bytes.len() {
        let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
        pair.send(&bytes[..cut]);
        assert!(!pair.core.client_closed());
        others.serve(&mut pair);
        let is_whole = cut == bytes.len();
        assert_eq!(others.holder.is_none(), is_whole, "{cut}");
        assert_eq!(others.asked.contains(&"unlock".to_owned()), is_whole, "{cut}");
        assert!(others.seen.iter().all(|seen| seen == "GET old:a" || seen == PROBE), "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_a_lock_client_is_ended_by_no_transaction() {
    let (mut pair, mut others) = (enforced(), Others::with(None));
    others.holder = Some(("t", Claim::new()));
    let told = others.told(&mut pair, &[WATCH, GET, MULTI, DEL, EXEC]);
    let refused = "-ERR the adopted lock 'a' was taken by LOCK, and no transaction ends or prolongs \
                   such (adopt)\r\n";
    assert_eq!(told, format!("+OK\r\n$1\r\nt\r\n+OK\r\n{refused}{ABORTED}"));
    assert_eq!(others.asked, ["look"]);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_read_or_delete_the_key_may_not_so_in_a_transaction() {
    let denied = "-NOPERM No permissions to access a key\r\n";
    let mut pair = enforced();
    pair.commands(&[WATCH]);
    assert_eq!(pair.at_data(), text(GET));
    pair.reply(denied);
    assert_eq!(pair.at_client(), denied);
    assert!(pair.core.desk.transaction.is_none());
    let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
    others.told(&mut pair, &[WATCH, GET, MULTI]);
    pair.commands(&[DEL]);
    assert_eq!(pair.at_data(), text(&["SET", "old:a", "x", "NX", "XX"]));
    pair.reply(denied);
    assert_eq!(others.told(&mut pair, &[EXEC]), [denied, ABORTED].concat());
    assert_eq!(others.asked, ["look"]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_is_told_in_between_fails_the_transaction() {
    let lost = "-LOCKLOST the lock 'k' was lost, this command was not executed\r\n";
    for (before, told_of, then, expected) in [
        (&[WATCH, GET, MULTI][..], DEL, &[EXEC][..], ABORTED),
        (&[WATCH, GET, MULTI, DEL], &["PING"], &[EXEC], ABORTED),
        // The transaction has ended, so the data node is asked about another EXEC.
        (&[WATCH, GET, MULTI, DEL], EXEC, &[EXEC], "-ERR EXEC without MULTI\r\n"),
        (&[WATCH, GET, MULTI, DEL], &["DISCARD"], &[&["PING"]], "+PING\r\n"),
        (&[WATCH, GET], &["PING"], &[MULTI, DEL, EXEC], "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"),
    ] {
        let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
        others.told(&mut pair, before);
        let key = pair.core.desk.key(b"k");
        let prefix = pair.core.desk.config.locks.prefix.len();
        pair.core.desk.losing.add(vec![(key, Token::from("t"))], prefix);
        assert_eq!(others.told(&mut pair, &[told_of]), lost);
        let read = pair.core.read;
        pair.core.desk.losing.note_told(|| read);
        assert_eq!(others.told(&mut pair, then), expected, "{before:?} {told_of:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn replies_that_are_skipped_change_nothing_of_a_transaction() {
    // CLIENT REPLY behind MULTI is no part of the transaction.
    for skipped in 0..3 {
        let all = [WATCH, GET, MULTI, DEL, EXEC];
        let replies = ["+OK\r\n", "$1\r\nt\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n"];
        let (mut pair, mut others) = (enforced(), Others::with(Some("t")));
        let mut told = others.told(&mut pair, &all[..skipped]);
        told += &others.told(&mut pair, &[&["CLIENT", "REPLY", "SKIP"]]);
        told += &others.told(&mut pair, &all[skipped..]);
        assert_eq!(told, [&replies[..skipped], &replies[skipped + 1..]].concat().concat());
        assert_eq!(others.asked, ["look", "unlock"], "{skipped}");
        // The reply to the next command is told again.
        assert_eq!(others.told(&mut pair, &[&["PING"]]), "+PING\r\n");
    }
}
