//! Tests of lock idioms on keys of an enforced adopt rule: what the data node sees of them, and what the client is
//! told.

use super::*;
use crate::{
    config::{
        AdoptMode, AdoptOptions, AdoptRule, BlindPolicy, LongTtlPolicy, NoQuorumPolicy, NoTtlPolicy,
    },
    key::Token,
    lock::Holding,
};

const TAKE: [&str; 6] = ["SET", "old:a", "t", "NX", "PX", "1000"];
const PROBE: [&str; 5] = ["SET", "old:a", "x", "NX", "XX"];
/// redis-py's release and node-redlock's acquire.
const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const TAKE_MANY: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";

/// Makes a session with an enforced rule: the key `old:X` is the lock X.
pub(super) fn enforced() -> Pair {
    enforced_with(AdoptOptions::default())
}

pub(super) fn enforced_with(options: AdoptOptions) -> Pair {
    let mut config = Config::default();
    config.adopt.rules.push(AdoptRule {
        keys: Pattern::new("old:*"),
        lock: Some(Template::new("{1}").unwrap()),
        mode: AdoptMode::Enforce,
        options,
        scripts: Vec::new(),
    });
    Pair::with(config)
}

/// Returns a grant that is valid for this long.
fn valid_for(millis: u64) -> Answer {
    let validity = Duration::from_millis(millis);
    let (claim, until) = (Some(Claim::new()), Instant::now() + validity);
    Answer::Grant(Ok(Grant { fence: 7, claim, validity, until }))
}

#[tokio::test(start_paused = true)]
async fn the_data_node_sees_none_of_it_wherever_the_bytes_are_cut() {
    let all = [
        &["GET", "x"][..],
        &TAKE,
        &["GET", "old"],
        &["EVALSHA", RELEASE, "1", "old:a", "t"],
        &["SET", "old", "t", "NX", "PX", "1000"],
    ];
    let bytes: Vec<u8> = all.iter().flat_map(|words| command(words)).collect();
    for cut in 0..bytes.len() {
        let mut pair = enforced();
        let mut seen = Vec::new();
        let mut asked = Vec::new();
        pair.send(&bytes[..cut]);
        pair.send(&bytes[cut..]);
        pair.serve(
            usize::MAX,
            &mut |words| {
                seen.push(words.join(" "));
                match words[0] {
                    "SET" if words == PROBE => "-ERR syntax error\r\n".into(),
                    name => format!("+{name}\r\n"),
                }
            },
            &mut |question| match question {
                Question::Adopt { ttl, .. } => {
                    assert!(ttl > Duration::from_secs(1));
                    asked.push("adopt");
                    valid_for(1000)
                }
                Question::Unlock { .. } => {
                    asked.push("unlock");
                    Answer::Unlock(Ok(true))
                }
                _ => panic!("another question"),
            },
        );
        let expected = ["GET x", &PROBE.join(" "), "GET old", "SET old t NX PX 1000"];
        assert_eq!(seen, expected, "{cut}");
        assert_eq!(asked, ["adopt", "unlock"], "{cut}");
        assert_eq!(pair.at_client(), "+GET\r\n+OK\r\n+GET\r\n:1\r\n+SET\r\n", "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_too_short_for_its_ttl_is_not_told() {
    let late = "-NOQUORUM the lock nodes answered too late for this TTL, try again\r\n";
    let no_quorum = NoQuorumPolicy::Error;
    let options = AdoptOptions { no_quorum, ..AdoptOptions::default() };
    for (millis, told) in [(1000, "+OK\r\n"), (999, late)] {
        let mut pair = enforced_with(options);
        pair.commands(&[&TAKE]);
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Adopt { .. }));
        pair.answer(valid_for(millis));
        assert_eq!(pair.at_client(), told);
        assert_eq!(pair.core.desk.tokens.held.len(), usize::from(millis == 1000));
    }
    // The first of several locks becomes too short while the others are asked for.
    for (waited, told) in [(0, ":2\r\n"), (1, late)] {
        let mut pair = enforced_with(options);
        pair.commands(&[&["EVALSHA", TAKE_MANY, "2", "old:a", "old:b", "t", "1000"]]);
        assert_eq!(pair.at_data(), text(&PROBE));
        pair.reply("-ERR syntax error\r\n");
        assert_eq!(pair.at_data(), text(&["SET", "old:b", "x", "NX", "XX"]));
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Adopt { .. }));
        pair.answer(valid_for(1000));
        tokio::time::advance(Duration::from_millis(waited)).await;
        assert!(matches!(pair.question(), Question::Adopt { .. }));
        pair.answer(valid_for(1000));
        assert_eq!(pair.at_client(), told);
        assert_eq!(pair.core.desk.tokens.held.len(), if waited == 0 { 2 } else { 0 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_too_short_for_its_ttl_is_not_told() {
    let late = "-NOQUORUM the lock nodes answered too late for this TTL, try again\r\n";
    for (millis, told) in [(1000, "+OK\r\n"), (999, late)] {
        let no_quorum = NoQuorumPolicy::Error;
        let mut pair = enforced_with(AdoptOptions { no_quorum, ..AdoptOptions::default() });
        pair.commands(&[&["SET", "old:a", "t", "XX", "PX", "1000"]]);
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Renew { .. }));
        let validity = Duration::from_millis(millis);
        let until = Instant::now() + validity;
        pair.answer(Answer::Renew(Ok(Some(Renewed { validity, until, grant: None }))));
        assert_eq!(pair.at_client(), told);
    }
}

#[tokio::test(start_paused = true)]
async fn what_stands_behind_is_carried_out_though_the_client_has_gone() {
    let mut pair = enforced();
    pair.commands(&[&TAKE, &["SET", "x", "1"]]);
    pair.reply("-ERR syntax error\r\n");
    assert!(matches!(pair.question(), Question::Adopt { .. }));
    pair.at_data();
    assert!(!pair.core.client_closed(), "Redis would carry it out");
    pair.answer(valid_for(1000));
    assert_eq!(pair.at_data(), text(&["SET", "x", "1"]));
}

#[tokio::test(start_paused = true)]
async fn a_blind_command_may_be_for_the_grant_of_its_own_connection_alone() {
    let options = AdoptOptions { blind: BlindPolicy::OwnOnly, ..AdoptOptions::default() };
    for (is_own, token) in [(true, "t"), (false, "t"), (true, "u")] {
        let is_another = token != "t";
        let mut pair = enforced_with(options);
        pair.commands(&[&TAKE]);
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Adopt { .. }));
        let (claim, validity) = (Some(Claim::adopted()), Duration::from_secs(1));
        let until = Instant::now() + validity;
        pair.answer(Answer::Grant(Ok(Grant { fence: 7, claim, validity, until })));
        assert_eq!(pair.at_client(), "+OK\r\n");
        for blind in [&["PEXPIRE", "old:a", "500"][..], &["DEL", "old:a"]] {
            pair.commands(&[blind]);
            assert!(matches!(pair.question(), Question::Look { .. }));
            let claim = if is_own { claim } else { Some(Claim::adopted()) };
            let token = Token::from(token.as_bytes());
            pair.answer(Answer::Look(Ok(Some(Holding { token, left: Some(validity), claim }))));
            if !is_own || is_another {
                assert_eq!(pair.at_client(), ":0\r\n", "{blind:?}");
                continue;
            }
            match pair.question() {
                Question::Renew { claim: asked, .. } => {
                    assert_eq!(asked, claim);
                    let renewed = Renewed { validity, until, grant: None };
                    pair.answer(Answer::Renew(Ok(Some(renewed))));
                }
                Question::Unlock { claim: asked, .. } => {
                    assert_eq!(asked, claim);
                    pair.answer(Answer::Unlock(Ok(true)));
                }
                _ => panic!("another question"),
            }
            assert_eq!(pair.at_client(), ":1\r\n", "{blind:?}");
        }
    }
    // A blind command on a connection that has taken no lock ends none.
    let mut pair = enforced_with(options);
    pair.commands(&[&["DEL", "old:a"]]);
    pair.reply("-ERR syntax error\r\n");
    assert!(matches!(pair.question(), Question::Look { .. }));
    let (token, left) = (Token::from(b"t"), Some(Duration::from_secs(1)));
    pair.answer(Answer::Look(Ok(Some(Holding { token, left, claim: Some(Claim::adopted()) }))));
    assert_eq!(pair.at_client(), ":0\r\n");
    assert!(pair.core.question().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_added_to_a_ttl_is_cut_where_ttls_are() {
    // redis-py's extension, whose last argument makes it add.
    let extend = "a4e8783852e6b949f9ef3a97212805108459a890";
    for is_cut in [true, false] {
        let long_ttl = if is_cut { LongTtlPolicy::Cap } else { LongTtlPolicy::Refuse };
        let mut pair = enforced_with(AdoptOptions { long_ttl, ..AdoptOptions::default() });
        pair.commands(&[&["EVALSHA", extend, "1", "old:a", "t", "50000", "0"]]);
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Look { .. }));
        let (token, left) = (Token::from(b"t"), Some(Duration::from_secs(30)));
        pair.answer(Answer::Look(Ok(Some(Holding { token, left, claim: Some(Claim::adopted()) }))));
        if !is_cut {
            assert_eq!(pair.at_client(), "-ERR the TTL would be longer than locks.max_ttl\r\n");
            continue;
        }
        let Question::Renew { ttl, .. } = pair.question() else { panic!("another question") };
        assert!((60_000..62_000).contains(&ttl.as_millis()), "{ttl:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_locks_have_no_ttl_what_is_done_follows_from_one_look() {
    // @medusajs/locking-redis takes the lock, or renews it for its token.
    let again = "0eafb65e6aa537bcc966e2af2a66dc7f3f66e121";
    let second = Some(Duration::from_secs(1));
    let options = AdoptOptions { no_ttl: NoTtlPolicy::Session, ..AdoptOptions::default() };
    for (holder, left) in [(None, None), (Some("t"), second), (Some("t"), None), (Some("u"), None)]
    {
        let mut pair = enforced_with(options);
        pair.commands(&[&["EVALSHA", again, "1", "old:a", "t", "1", "false"]]);
        pair.reply("-ERR syntax error\r\n");
        assert!(matches!(pair.question(), Question::Look { .. }));
        let claim = Some(if left.is_some() { Claim::adopted() } else { Claim::endless() });
        let holding = holder.map(|token| Holding { token: Token::from(token), left, claim });
        pair.answer(Answer::Look(Ok(holding)));
        match (holder, left) {
            (None, _) => assert!(matches!(pair.question(), Question::Adopt { .. })),
            (Some("t"), Some(_)) => assert!(matches!(pair.question(), Question::Renew { .. })),
            (Some("t"), None) => {
                assert!(matches!(pair.question(), Question::TakeOver { .. }));
                // Another connection has released the lock meanwhile: it is free, and is taken.
                let (remaining, same_token) = (None, SameToken::Unknown);
                let held = NotGranted::Held { remaining, may_be_free: false, same_token };
                pair.answer(Answer::Grant(Err(held)));
                assert!(matches!(pair.question(), Question::Adopt { .. }));
                pair.answer(valid_for(1000));
                assert_eq!(pair.at_client(), ":1\r\n");
            }
            _ => assert_eq!(pair.at_client(), ":0\r\n"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_several_keys_is_freed_by_itself() {
    let held = |token: &[u8], claim| {
        let (token, left) = (Token::from(token), Some(Duration::from_secs(1)));
        Answer::Look(Ok(Some(Holding { token, left, claim: Some(claim) })))
    };
    let mut pair = enforced();
    pair.commands(&[&["DEL", "old:a", "old:b", "old:c", "old:d", "old:a"], &["GET", "x"]]);
    pair.reply("-ERR syntax error\r\n");
    let probes =
        ["b", "c", "d", "a"].map(|key| text(&["SET", &format!("old:{key}"), "x", "NX", "XX"]));
    assert_eq!(pair.at_data(), text(&PROBE) + &probes.concat());
    pair.reply(&"-ERR syntax error\r\n".repeat(4));
    // Two adopted clients' locks, a LOCK client's, a free one, and one that was just freed.
    for (name, holder) in [
        ("a", Some((&b"t"[..], Claim::adopted()))),
        ("b", Some((b"u", Claim::adopted()))),
        ("c", Some((b"v", Claim::new()))),
        ("d", None),
        ("a", None),
    ] {
        let Question::Look { key } = pair.question() else { panic!("another question") };
        assert_eq!(&key[..], format!("lock:{name}").as_bytes());
        let Some((token, claim)) = holder else {
            pair.answer(Answer::Look(Ok(None)));
            continue;
        };
        pair.answer(held(token, claim));
        if !claim.is_adopted() {
            continue;
        }
        let Question::Unlock { key: freed, token: by, claim: of, .. } = pair.question() else {
            panic!("another question")
        };
        assert_eq!((freed, &by[..], of), (key, token, Some(claim)));
        pair.answer(Answer::Unlock(Ok(true)));
    }
    assert_eq!(pair.at_client(), ":2\r\n");
    assert_eq!(pair.at_data(), text(&["GET", "x"]));
}
