//! Tests of adopted commands about readers: what the lock nodes are asked, in which order, and what the client is told.

use super::*;
use crate::{
    config::{AdoptMode, AdoptOptions, AdoptRule, NoQuorumPolicy},
    key::{Key, Token},
    lock::{Holding, SameToken},
};

/// Symfony's scripts.
const SAVE: &str = "6fdee501a3714553b74c0d67687b921b90b05d18";
const READ: &str = "b5745b5be27d9033eb5d3eb254df2faf502b88df";
const EXTEND: &str = "63be12a3515941092212f15c08327d60916de9fa";
const DELETE: &str = "a70f7f5087a0cb2c2c9ca50d1f64e234c2628f0c";
const IS_MINE: &str = "3b6bdbbe16f821f49177b16c7707f331f015a779";

const YES: &str = ":1\r\n";
const NO: &str = "$-1\r\n";
const LONG: Duration = Duration::from_secs(31);

fn enforced(no_quorum: NoQuorumPolicy) -> Pair {
    let mut config = Config::default();
    config.locks.shared = true;
    config.adopt.rules.push(AdoptRule {
        keys: Pattern::new("old:*"),
        lock: Some(Template::new("{1}").unwrap()),
        mode: AdoptMode::Enforce,
        options: AdoptOptions { no_quorum, ..AdoptOptions::default() },
        scripts: Vec::new(),
    });
    Pair::with(config)
}

/// Sends a script, for a client that may.
fn send(pair: &mut Pair, script: &str) {
    let words = match script {
        DELETE => vec!["EVALSHA", script, "1", "old:a", "t"],
        IS_MINE => vec!["EVALSHA", script, "1", "old:a", "1.5", "t"],
        _ => vec!["EVALSHA", script, "1", "old:a", "1.5", "t", "30000"],
    };
    pair.commands(&[&words]);
    if !pair.at_data().is_empty() {
        pair.reply("-ERR syntax error\r\n");
    }
}

fn missing() -> NoQuorum {
    NoQuorum { answered: 1, nodes: 3, quorum: 2, ..NoQuorum::default() }
}

/// Answers the question by which claim the token reads.
fn tells_reader(pair: &mut Pair, said: Result<Option<Claim>, NoQuorum>) {
    let Question::Reader { key, token } = pair.question() else { panic!("another question") };
    assert_eq!((&key[..], &token[..]), (&b"lock:a"[..], &b"t"[..]));
    let (token, left) = (Token::from(b"t"), Some(LONG));
    let holding = |claim| Holding { token: token.clone(), left, claim: Some(claim) };
    pair.answer(Answer::Look(said.map(|claim| claim.map(holding))));
}

/// Answers the question for a part. Returns the claim by which it was asked for.
fn grants(pair: &mut Pair, validity: Duration) -> Claim {
    let Question::AdoptShared { key, token, ttl, claim } = pair.question() else {
        panic!("another question")
    };
    assert_eq!((&key[..], &token[..]), (&b"lock:a"[..], &b"t"[..]));
    assert!(ttl > Duration::from_secs(30) && claim.is_adopted() && !key.is_of_reader());
    let (until, claim_told) = (Instant::now() + validity, Some(claim));
    pair.answer(Answer::Grant(Ok(Grant { fence: 0, claim: claim_told, validity, until })));
    claim
}

/// Answers a renewal: of the part with this claim, or of the lock that the token has alone.
fn renews(pair: &mut Pair, of: Option<Claim>, is_held: bool) {
    let Question::Renew { key, claim, .. } = pair.question() else { panic!("another question") };
    let expected =
        of.map_or_else(|| Key::from(b"lock:a"), |of| of.key_of_reader(&Key::from(b"lock:a")));
    assert!(key == expected && claim == of);
    let (validity, until, grant) = (LONG, Instant::now() + LONG, None);
    pair.answer(Answer::Renew(Ok(is_held.then_some(Renewed { validity, until, grant }))));
}

/// Answers a release, as [`renews`].
fn releases(pair: &mut Pair, of: Option<Claim>, said: Result<bool, NoQuorum>) {
    let Question::Unlock { key, claim, .. } = pair.question() else { panic!("another question") };
    let expected =
        of.map_or_else(|| Key::from(b"lock:a"), |of| of.key_of_reader(&Key::from(b"lock:a")));
    assert!(key == expected && claim == of);
    pair.answer(Answer::Unlock(said));
}

/// Fails unless the client was told this, and the connection remembers so many locks.
fn ends(pair: &mut Pair, reply: &str, locks: usize) {
    assert_eq!(pair.at_client(), reply);
    assert!(pair.core.question().is_none());
    assert_eq!(pair.core.desk.tokens.held.len(), locks);
}

/// Returns a session that has a reader, and the claim of that.
fn reading() -> (Pair, Claim) {
    let mut pair = enforced(NoQuorumPolicy::Error);
    send(&mut pair, READ);
    tells_reader(&mut pair, Ok(None));
    let claim = grants(&mut pair, LONG);
    ends(&mut pair, YES, 1);
    (pair, claim)
}

#[tokio::test(start_paused = true)]
async fn a_part_is_asked_for_where_the_token_reads_nothing() {
    let (mut pair, claim) = reading();
    // What the connection remembers is prolonged and given back at once.
    for script in [READ, EXTEND] {
        send(&mut pair, script);
        renews(&mut pair, Some(claim), true);
        ends(&mut pair, YES, 1);
    }
    send(&mut pair, DELETE);
    releases(&mut pair, Some(claim), Ok(true));
    ends(&mut pair, YES, 0);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_was_granted_elsewhere_is_found() {
    let claim = Claim::adopted();
    let mut pair = enforced(NoQuorumPolicy::Error);
    send(&mut pair, READ);
    tells_reader(&mut pair, Ok(Some(claim)));
    renews(&mut pair, Some(claim), true);
    ends(&mut pair, YES, 0);
    send(&mut pair, EXTEND);
    renews(&mut pair, None, false);
    tells_reader(&mut pair, Ok(Some(claim)));
    renews(&mut pair, Some(claim), true);
    ends(&mut pair, YES, 0);
    for (found, reply) in [(Some(claim), YES), (None, NO)] {
        send(&mut pair, IS_MINE);
        assert!(matches!(pair.question(), Question::Look { .. }));
        let (token, left) = (Token::from(Token::OF_READERS), Some(LONG));
        pair.answer(Answer::Look(Ok(Some(Holding { token, left, claim: None }))));
        tells_reader(&mut pair, Ok(found));
        ends(&mut pair, reply, 0);
    }
    send(&mut pair, DELETE);
    releases(&mut pair, None, Ok(false));
    tells_reader(&mut pair, Ok(Some(claim)));
    releases(&mut pair, Some(claim), Ok(true));
    ends(&mut pair, YES, 0);
}

#[tokio::test(start_paused = true)]
async fn a_remembered_part_that_has_ended_is_looked_for_elsewhere() {
    let other = Claim::adopted();
    for found in [Some(other), None] {
        let (mut pair, claim) = reading();
        send(&mut pair, READ);
        renews(&mut pair, Some(claim), false);
        tells_reader(&mut pair, Ok(found));
        match found {
            Some(other) => renews(&mut pair, Some(other), true),
            None => assert_ne!(grants(&mut pair, LONG), claim),
        }
        ends(&mut pair, YES, usize::from(found.is_none()));

        let (mut pair, claim) = reading();
        send(&mut pair, EXTEND);
        renews(&mut pair, Some(claim), false);
        renews(&mut pair, None, false);
        tells_reader(&mut pair, Ok(found));
        if let Some(other) = found {
            renews(&mut pair, Some(other), true);
        }
        ends(&mut pair, if found.is_some() { YES } else { NO }, 0);
    }
    // One that the lock nodes have told ends before it is prolonged.
    let mut pair = enforced(NoQuorumPolicy::Error);
    send(&mut pair, EXTEND);
    renews(&mut pair, None, false);
    tells_reader(&mut pair, Ok(Some(other)));
    renews(&mut pair, Some(other), false);
    ends(&mut pair, NO, 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_reads_stays_alone_and_a_reader_that_writes_is_refused() {
    for (same, is_held, reply) in [
        (SameToken::Grants([Claim::adopted()].into_iter().collect()), true, YES),
        (SameToken::Unknown, true, YES),
        (SameToken::Unknown, false, NO),
    ] {
        let mut pair = enforced(NoQuorumPolicy::Error);
        send(&mut pair, READ);
        tells_reader(&mut pair, Ok(None));
        assert!(matches!(pair.question(), Question::AdoptShared { .. }));
        let held = NotGranted::Held { remaining: Some(LONG), may_be_free: false, same_token: same };
        pair.answer(Answer::Grant(Err(held)));
        renews(&mut pair, None, is_held);
        ends(&mut pair, reply, 0);
    }
    // Another's lock.
    let mut pair = enforced(NoQuorumPolicy::Error);
    send(&mut pair, READ);
    tells_reader(&mut pair, Ok(None));
    assert!(matches!(pair.question(), Question::AdoptShared { .. }));
    let same_token = SameToken::Grants(std::iter::empty().collect());
    let held = NotGranted::Held { remaining: Some(LONG), may_be_free: false, same_token };
    pair.answer(Answer::Grant(Err(held)));
    ends(&mut pair, NO, 0);

    let (mut pair, _) = reading();
    send(&mut pair, SAVE);
    renews(&mut pair, None, false);
    assert!(matches!(pair.question(), Question::Adopt { .. }));
    pair.answer(Answer::Grant(Err(NotGranted::held(false))));
    ends(&mut pair, NO, 1);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_too_short_for_its_ttl_is_not_told() {
    let late = "-NOQUORUM the lock nodes answered too late for this TTL, try again\r\n";
    for (millis, told, locks) in [(30_000, YES, 1), (29_999, late, 0)] {
        let mut pair = enforced(NoQuorumPolicy::Error);
        send(&mut pair, READ);
        tells_reader(&mut pair, Ok(None));
        grants(&mut pair, Duration::from_millis(millis));
        ends(&mut pair, told, locks);
    }
}

#[tokio::test(start_paused = true)]
async fn too_few_lock_nodes_settle_nothing() {
    let mut pair = enforced(NoQuorumPolicy::Error);
    send(&mut pair, READ);
    tells_reader(&mut pair, Err(missing()));
    assert!(pair.at_client().starts_with("-NOQUORUM "));
    send(&mut pair, READ);
    tells_reader(&mut pair, Ok(None));
    assert!(matches!(pair.question(), Question::AdoptShared { .. }));
    pair.answer(Answer::Grant(Err(NotGranted::NoQuorum(missing()))));
    assert!(pair.at_client().starts_with("-NOQUORUM "));
    ends(&mut pair, "", 0);
    // A release that was carried out all the same, and asked for again.
    let (mut pair, claim) = reading();
    send(&mut pair, DELETE);
    releases(&mut pair, Some(claim), Err(missing()));
    assert!(pair.at_client().starts_with("-NOQUORUM "));
    // Until its outcome is known, the part is not prolonged.
    send(&mut pair, EXTEND);
    renews(&mut pair, None, false);
    tells_reader(&mut pair, Ok(Some(claim)));
    assert!(pair.at_client().starts_with("-NOQUORUM a release of this lock is still under way"));
    ends(&mut pair, "", 1);
}
