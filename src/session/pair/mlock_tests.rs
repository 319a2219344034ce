//! Tests of MLOCK and MUNLOCK: what the data node and the lock nodes are asked, and what becomes of locks that the
//! client is not told of.

use super::{fronts_tests::at_front, *};
use crate::session::{
    all_or_none::{AllOrNone, NoneGranted, take_all},
    claims::Granted,
    jobs::Undo,
};

const PERMITTED: &str = "-ERR syntax error\r\n";

/// Makes an answer of grants with these fences, for the keys of the question: the first for ten seconds, each further
/// one for a second less.
fn all_granted(pair: &mut Pair, fences: &[u64]) -> Answer {
    let Question::LockAll { wanted } = pair.question() else { panic!("another question") };
    let mut validity = Duration::from_secs(11);
    let grant = |(key, fence): (&_, &u64)| {
        validity -= Duration::from_secs(1);
        let (claim, until) = (Some(Claim::new()), Instant::now() + validity);
        let grant = Grant { fence: *fence, claim, validity, until };
        let lock = Granted::here(key, &wanted.token, &grant, None);
        (grant, Undo::new(pair.core.desk.shared.clone(), &lock))
    };
    Answer::LockAll(Ok(wanted.keys.iter().zip(fences).map(grant).collect()))
}

#[tokio::test(start_paused = true)]
async fn the_data_node_is_asked_about_each_key() {
    let mut pair = Pair::new();
    pair.commands(&[&["MLOCK", "2", "a", "b", "t", "PX", "10000"], &["PING"]]);
    let probe = |key| text(&["SET", key, "x", "NX", "XX"]);
    assert_eq!(pair.at_data(), probe("lock:a") + &probe("lock:b"));
    pair.reply(PERMITTED);
    assert!(pair.core.question().is_none(), "the answer about b is missing");
    pair.reply(PERMITTED);
    let granted = all_granted(&mut pair, &[7, 5]);
    pair.answer(granted);
    assert_eq!(pair.at_client(), "*3\r\n$1\r\nt\r\n:9000\r\n*2\r\n:7\r\n:5\r\n");
    assert_eq!(pair.at_data(), text(&["PING"]));
    pair.reply("+PONG\r\n");
    pair.at_client();
    // They are remembered, and each lock by itself is the connection's.
    pair.commands(&[&["UNLOCK", "b"]]);
    assert!(matches!(pair.question(), Question::Unlock { claim: Some(_), .. }));
    pair.answer(Answer::Unlock(Ok(true)));
    pair.commands(&[&["MUNLOCK", "2", "a", "b"]]);
    let Question::UnlockAll { grants } = pair.question() else { panic!("another question") };
    assert!(matches!(&grants[..], [(key, _, Some(_), _)] if **key == *b"lock:a"));
    pair.answer(Answer::UnlockAll(vec![Ok(true)]));
    assert_eq!(pair.at_client(), ":1\r\n:1\r\n");
    for refused in [0, 1] {
        let mut pair = Pair::new();
        pair.commands(&[&["MLOCK", "2", "a", "b"]]);
        for at in 0..2 {
            pair.reply(if at == refused { "-NOPERM no\r\n" } else { PERMITTED });
        }
        assert_eq!(pair.at_client(), "-NOPERM no\r\n");
        assert!(pair.core.question().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn on_a_front_all_keys_are_of_one_slot() {
    let mut pair = at_front();
    pair.commands(&[&["MLOCK", "2", "a", "b"]]);
    pair.reply(&"-MOVED 1 10.0.0.1:7000\r\n".repeat(2));
    assert_eq!(pair.at_client(), "-CROSSSLOT Keys in request don't hash to the same slot\r\n");
    pair.commands(&[&["MLOCK", "2", "{x}a", "{x}b"]]);
    pair.reply(&"-MOVED 1 10.0.0.1:7000\r\n".repeat(2));
    assert!(matches!(pair.question(), Question::LockAll { .. }));
    pair.answer(Answer::LockAll(Err(NoneGranted {
        why: NotGranted::held(false),
        in_the_way: Vec::new(),
    })));
    assert_eq!(pair.at_client(), "*-1\r\n");
}

#[tokio::test(start_paused = true)]
async fn the_fences_are_announced_one_after_the_other() {
    for fails in [false, true] {
        let mut pair = Pair::guarded();
        pair.commands(&[&["MLOCK", "2", "a", "b", "t", "PX", "10000"]]);
        pair.at_data();
        pair.reply(&PERMITTED.repeat(2));
        let granted = all_granted(&mut pair, &[7, 5]);
        pair.answer(granted);
        let announced = pair.at_data();
        assert!(announced.contains("lock:a") && !announced.contains("lock:b"), "{announced}");
        pair.reply("$1\r\n7\r\n");
        let announced = pair.at_data();
        assert!(announced.contains("lock:b") && !announced.contains("lock:a"), "{announced}");
        assert_eq!(pair.at_client(), "", "not before the data node has both");
        if fails {
            pair.reply("-OOM too much\r\n");
            assert_eq!(pair.at_client(), "-OOM too much\r\n");
            assert!(pair.core.desk.tokens.held.is_empty(), "both are given back");
        } else {
            pair.reply("$1\r\n5\r\n");
            assert_eq!(pair.at_client(), "*3\r\n$1\r\nt\r\n:9000\r\n*2\r\n:7\r\n:5\r\n");
            pair.commands(&[&["SET", "g:a", "1"]]);
            assert!(pair.at_data().contains("EVALSHA"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn locks_that_the_client_is_not_told_of_are_forgotten() {
    let mut pair = Pair::guarded();
    pair.commands(&[&["MLOCK", "2", "a", "b", "t", "PX", "10000"]]);
    pair.reply(&PERMITTED.repeat(2));
    let granted = all_granted(&mut pair, &[7, 5]);
    pair.answer(granted);
    assert_eq!(pair.core.desk.tokens.held.len(), 2);
    assert!(pair.core.client_closed(), "it is given up");
    assert!(pair.core.desk.tokens.held.is_empty());
}

/// Asks for `a` and `b`, of which `b` is refused so often, and waits for 60 s. Returns the outcome, and the questions:
/// each key, and whether it was waited for.
async fn taken(refusals: usize) -> (AllOrNone, Vec<(String, bool)>, Duration) {
    let pair = Pair::new();
    let shared = pair.core.desk.shared.clone();
    let asked = Arc::new(crate::sync::Mutex::new(Vec::new()));
    let seen = asked.clone();
    let ask = move |key: crate::key::Key, wait: Option<Duration>| {
        let name = String::from_utf8_lossy(&key).into_owned();
        let mut seen = seen.lock();
        let tries = seen.iter().filter(|(known, waits)| *known == name && !waits).count();
        let is_refused = name == "b" && wait.is_none() && tries < refusals;
        seen.push((name, wait.is_some()));
        let validity = Duration::from_secs(10);
        let (claim, until) = (Some(Claim::new()), Instant::now() + validity);
        std::future::ready(match is_refused {
            true => Err(NotGranted::held(false)),
            false => Ok(Grant { fence: 7, claim, validity, until }),
        })
    };
    let wanted = crate::session::all_or_none::AllWanted {
        keys: vec!["a".into(), "b".into()],
        token: "t".into(),
        ttl: Duration::from_secs(10),
        wait: Some(Duration::from_secs(60)),
    };
    let begun = tokio::time::Instant::now();
    let said = take_all(shared, wanted, ask).await;
    let asked = asked.lock().clone();
    (said, asked, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn the_refused_lock_is_waited_for_and_then_the_others_are_asked_at_once() {
    let (said, asked, took) = taken(0).await;
    assert_eq!(said.map(|all| all.len()).ok(), Some(2));
    assert_eq!((asked.len(), took), (2, Duration::ZERO));
    let (said, asked, took) = taken(1).await;
    assert_eq!(said.map(|all| all.len()).ok(), Some(2));
    let asked: Vec<(&str, bool)> = asked.iter().map(|(key, waits)| (&**key, *waits)).collect();
    assert_eq!(asked, [("a", false), ("b", false), ("b", true), ("a", false)]);
    assert_eq!(took, Duration::ZERO, "nobody has refused twice");
}
