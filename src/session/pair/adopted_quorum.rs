//! Tests of adopted commands about which too few lock nodes answer: what is asked again, and how it ends.

use super::{
    adopted_tests::{enforced, enforced_with},
    *,
};
use crate::{
    config::{AdoptOptions, NoQuorumPolicy},
    key::Token,
    lock::Holding,
    session::session_metrics::CloseReason,
};

/// redis-py's release, node-redlock's acquire and release of several locks, and aioredlock's release.
const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const TAKE_MANY: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
const RELEASE_MANY: &str = "e4612211c9f8f51c257e26e056b0a654b3187242";
const TELLING_RELEASE: &str = "241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5";

const TAKE: &[&str] = &["SET", "old:a", "t", "NX", "PX", "1000"];
const BEGIN: [&[&str]; 4] = [&["WATCH", "old:a"], &["GET", "old:a"], &["MULTI"], &["DEL", "old:a"]];

fn missing() -> NoQuorum {
    NoQuorum { answered: 1, nodes: 3, quorum: 2, ..NoQuorum::default() }
}

/// Returns the answer to a question if too few lock nodes answer.
fn none(question: &Question) -> Answer {
    match question {
        Question::Adopt { .. } | Question::TakeOver { .. } => {
            Answer::Grant(Err(NotGranted::NoQuorum(missing())))
        }
        Question::Unlock { .. } => Answer::Unlock(Err(missing())),
        Question::Renew { .. } => Answer::Renew(Err(missing())),
        Question::Look { .. } => Answer::Look(Err(missing())),
        Question::Rest { .. } => Answer::Done(()),
        _ => panic!("another question"),
    }
}

/// Returns the answer of lock nodes on which `t` holds the lock, if `is_held`.
fn answered(question: &Question, is_held: bool) -> Answer {
    let validity = Duration::from_secs(9);
    let until = Instant::now() + validity;
    let claim = Some(Claim::adopted());
    match question {
        Question::Adopt { claim, .. } => {
            Answer::Grant(Ok(Grant { fence: 7, claim: Some(*claim), validity, until }))
        }
        Question::Unlock { .. } => Answer::Unlock(Ok(is_held)),
        Question::Renew { .. } => {
            Answer::Renew(Ok(is_held.then_some(Renewed { validity, until, grant: None })))
        }
        Question::Look { .. } => Answer::Look(Ok(is_held.then(|| Holding {
            token: Token::from(b"t"),
            left: Some(validity),
            claim,
        }))),
        _ => panic!("another question"),
    }
}

fn kind(question: &Question) -> &'static str {
    match question {
        Question::Adopt { .. } => "adopt",
        Question::Unlock { .. } => "unlock",
        Question::Renew { .. } => "renew",
        Question::Look { .. } => "look",
        Question::Rest { .. } => "rest",
        _ => "another",
    }
}

/// Answers a session until it asks nothing more. Each question is asked in vain first.
fn ride_out(pair: &mut Pair, is_held: bool) -> Vec<&'static str> {
    let (mut asked, mut is_away) = (Vec::new(), true);
    loop {
        while pair.at_data().contains("old:") {
            pair.reply("-ERR syntax error\r\n");
        }
        let Some(question) = pair.core.question() else { return asked };
        asked.push(kind(&question));
        if matches!(*question, Question::Rest { .. }) {
            is_away = false;
            pair.answer(Answer::Done(()));
        } else if is_away {
            pair.answer(none(&question));
        } else {
            is_away = true;
            pair.answer(answered(&question, is_held));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_question_is_asked_again() {
    let rest = |kind| [kind, "rest", kind];
    let exec = &["EXEC"][..];
    for (words, is_held, kinds, told) in [
        (TAKE, true, vec!["adopt"], "+OK\r\n"),
        (&["GET", "old:a"], true, vec!["look"], "$1\r\nt\r\n"),
        (&["SET", "old:a", "t", "XX", "PX", "1000"], true, vec!["renew"], "+OK\r\n"),
        (&["EVALSHA", RELEASE, "1", "old:a", "t"], true, vec!["unlock"], ":1\r\n"),
        (
            &["EVALSHA", TELLING_RELEASE, "1", "old:a", "t"],
            false,
            vec!["unlock", "look"],
            "+OK\r\n",
        ),
        (&["DEL", "old:a"], true, vec!["look", "unlock"], ":1\r\n"),
        (&["PEXPIRE", "old:a", "1000"], true, vec!["look", "renew"], ":1\r\n"),
        (
            &["EVALSHA", TAKE_MANY, "2", "old:a", "old:b", "t", "1000"],
            true,
            vec!["adopt", "adopt"],
            ":2\r\n",
        ),
        (
            &["EVALSHA", RELEASE_MANY, "2", "old:a", "old:b", "t"],
            true,
            vec!["unlock", "unlock"],
            ":2\r\n",
        ),
        (exec, true, vec!["unlock"], "*1\r\n:1\r\n"),
    ] {
        let mut pair = enforced();
        if words == exec {
            for words in BEGIN {
                pair.commands(&[words]);
                ride_out(&mut pair, true);
            }
            pair.at_client();
        }
        pair.commands(&[words]);
        let asked = ride_out(&mut pair, is_held);
        assert_eq!(asked, kinds.into_iter().flat_map(rest).collect::<Vec<_>>(), "{words:?}");
        assert_eq!(pair.at_client(), told, "{words:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_asked_for_again_by_another_claim() {
    let mut pair = enforced();
    pair.commands(&[TAKE]);
    pair.reply("-ERR syntax error\r\n");
    let Question::Adopt { claim: first, .. } = pair.question() else { panic!("another question") };
    pair.answer(Answer::Grant(Err(NotGranted::NoQuorum(missing()))));
    assert!(matches!(pair.question(), Question::Rest { .. }));
    pair.answer(Answer::Done(()));
    let Question::Adopt { claim: second, .. } = pair.question() else { panic!("another question") };
    assert_ne!(first, second, "the undo of the first may come late");
}

#[tokio::test(start_paused = true)]
async fn what_was_released_meanwhile_counts_as_released() {
    for (was_held, told) in [(true, ":1\r\n"), (false, ":0\r\n")] {
        let mut pair = enforced();
        pair.commands(&[&["EVALSHA", RELEASE, "1", "old:a", "t"]]);
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Unlock { .. }));
        pair.answer(Answer::Unlock(Err(NoQuorum { was_held, ..missing() })));
        assert!(matches!(pair.question(), Question::Rest { .. }));
        pair.answer(Answer::Done(()));
        assert!(matches!(pair.question(), Question::Unlock { .. }));
        pair.answer(Answer::Unlock(Ok(false)));
        assert_eq!(pair.at_client(), told);
    }
}

#[tokio::test(start_paused = true)]
async fn the_connection_ends_once_the_time_is_over_or_at_once() {
    for (no_quorum, least) in [(NoQuorumPolicy::Wait, 3000), (NoQuorumPolicy::Close, 0)] {
        let mut pair = enforced_with(AdoptOptions { no_quorum, ..AdoptOptions::default() });
        let began = Instant::now();
        pair.commands(&[TAKE, &["SET", "x", "1"]]);
        pair.at_data();
        pair.reply("-ERR syntax error\r\n");
        while let Some(question) = pair.core.question() {
            if let Question::Rest { time } = *question {
                tokio::time::advance(time).await;
            }
            pair.answer(none(&question));
        }
        assert_eq!(pair.core.tracking, Tracking::Closing);
        assert!(pair.core.closing == CloseReason::NoQuorum);
        assert_eq!((pair.at_client(), pair.at_data()), (String::new(), String::new()));
        let waited = Instant::now().saturating_duration_since(began).as_millis();
        assert!((least..=least + 300).contains(&waited), "{waited}");
    }
    let no_quorum = NoQuorumPolicy::Error;
    let mut pair = enforced_with(AdoptOptions { no_quorum, ..AdoptOptions::default() });
    pair.commands(&[TAKE]);
    pair.reply("-ERR syntax error\r\n");
    let question = pair.question();
    pair.answer(none(&question));
    assert!(pair.at_client().starts_with("-NOQUORUM 1 of 3 lock nodes answered"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_gone_is_waited_for_no_longer() {
    for hangs_up_first in [true, false] {
        let mut pair = enforced();
        pair.commands(&[TAKE, &["SET", "x", "1"]]);
        pair.at_data();
        pair.reply("-ERR syntax error\r\n");
        let question = pair.question();
        if hangs_up_first {
            assert!(!pair.core.client_closed());
        }
        pair.answer(none(&question));
        if !hangs_up_first {
            assert!(matches!(pair.question(), Question::Rest { .. }));
            assert!(pair.core.client_closed(), "it is given up");
            pair.settle();
        }
        assert!(pair.core.question().is_none() && !pair.core.awaits_answer());
        assert_eq!((pair.at_client(), pair.at_data()), (String::new(), String::new()));
        assert!(pair.core.desk.unsent.is_empty());
    }
}
