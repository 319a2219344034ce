use std::time::Duration;

use proptest::prelude::*;

use super::{
    by_holder::{Act, Acts, Replies},
    script_call::TOO_FEW_ARGUMENTS,
    task::{AdoptWork, LockWork, LookWord, QueuedWork, WorkOnReaders},
    transaction::{Track, TransactionPart},
    verdict::RefusalReason,
    *,
};
use crate::{
    config::{
        AdoptMode, AdoptScript, BlindPolicy, LongTtlPolicy, NoTtlPolicy, Pattern, ScriptOp,
        ScriptUnit, Template, UnknownPolicy,
    },
    key::Token,
    resp::encode,
};

const LIMITS: Limits = Limits { max_token: 64, max_ttl: Duration::from_secs(60), shared: true };
const RELEASE: &str = "local was = redis.call('get', KEYS[1]) if was == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

fn rule(keys: &str, mode: AdoptMode, options: AdoptOptions) -> AdoptRule {
    AdoptRule { keys: Pattern::new(keys), lock: None, mode, options, scripts: Vec::new() }
}

fn adoption() -> Arc<Adoption> {
    let rule = |keys| rule(keys, AdoptMode::Audit, AdoptOptions::default());
    let lock = Some(Template::new("{1}").unwrap());
    Adoption::new(&[AdoptRule { lock, ..rule("lock:*") }, rule("*:mutex")]).unwrap()
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::command(&mut bytes, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    bytes
}

fn look(adoption: &Adoption, words: &[&str]) -> AdoptLook {
    adoption.look(&command(words), &LIMITS)
}

fn found(adoption: &Adoption, words: &[&str]) -> Sighting {
    match look(adoption, words) {
        AdoptLook::Found(found) => found.sighting,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn idioms_on_adopted_keys_are_found_and_judged() {
    let adoption = adoption();
    let long = "x".repeat(65);
    let reserved = std::str::from_utf8(Token::OF_EMPTY_VALUE).unwrap();
    for (words, rule, op, verdict) in [
        (&["SET", "lock:a", "t", "NX", "PX", "1000"][..], 0, Op::Acquire, AdoptVerdict::Quorum),
        (&["SET", "a:mutex", "t", "NX", "EX", "60"], 1, Op::Acquire, AdoptVerdict::Quorum),
        (&["SET", "lock:a", "t", "NX", "EX", "61"], 0, Op::Acquire, AdoptVerdict::Refused),
        (&["SET", "lock:a", &long, "NX", "EX", "1"], 0, Op::Acquire, AdoptVerdict::Refused),
        (&["SET", "lock:a", "", "NX", "EX", "1"], 0, Op::Acquire, AdoptVerdict::Quorum),
        (&["SET", "lock:a", reserved, "NX", "EX", "1"], 0, Op::Acquire, AdoptVerdict::Refused),
        (&["SET", "lock:a", "t", "NX"], 0, Op::AcquireForEver, AdoptVerdict::Refused),
        (&["SET", "lock:a", "t"], 0, Op::Overwrite, AdoptVerdict::Refused),
        (&["SET", "lock:a", "t", "NX", "XX"], 0, Op::Malformed, AdoptVerdict::Error),
        (&["DEL", "lock:a"], 0, Op::ReleaseBlind, AdoptVerdict::Quorum),
        (&["DEL", "lock:a", "lock:b"], 0, Op::ReleaseBlind, AdoptVerdict::Quorum),
        (&["DEL", "cache", "lock:b"], 0, Op::ReleaseBlind, AdoptVerdict::Refused),
        (&["EXPIRE", "lock:a", "0"], 0, Op::ExtendBlind, AdoptVerdict::Quorum),
        (&["GET", "lock:a"], 0, Op::Look, AdoptVerdict::Quorum),
        (&["EXISTS", "lock:a", "lock:b"], 0, Op::Other, AdoptVerdict::Refused),
        (&["MSET", "a", "lock:a", "lock:b", "v"], 0, Op::Other, AdoptVerdict::Refused),
        (&["HSET", "lock:a", "f", "v"], 0, Op::Other, AdoptVerdict::Refused),
        (&["FCALL", "f", "1", "lock:a"], 0, Op::Other, AdoptVerdict::Refused),
        (&["EVAL_RO", "return 1", "1", "lock:a"], 0, Op::Other, AdoptVerdict::Refused),
        (&["EVAL", RELEASE, "1", "lock:a", "t"], 0, Op::Release, AdoptVerdict::Quorum),
        (&["EVAL", RELEASE, "1", "lock:a"], 0, Op::Malformed, AdoptVerdict::Error),
        (
            &["EVAL", RELEASE, "2", "lock:a", "lock:b", "t"],
            0,
            Op::UnknownScript,
            AdoptVerdict::Refused,
        ),
        (&["EVAL", "return 1", "1", "lock:a"], 0, Op::UnknownScript, AdoptVerdict::Refused),
        (&["EVALSHA", &"0".repeat(40), "1", "lock:a"], 0, Op::UnseenScript, AdoptVerdict::NoScript),
        (&["EVALSHA", "short", "1", "lock:a"], 0, Op::Malformed, AdoptVerdict::Error),
        (&["WATCH", "lock:a"], 0, Op::Watch, AdoptVerdict::Refused),
    ] {
        let found = found(&adoption, words);
        assert_eq!((found.rule, found.op, found.verdict), (Some(rule), op, verdict), "{words:?}");
    }
    for words in [
        &["SET", "key", "t", "NX", "PX", "1000"][..],
        &["GET", "key"],
        &["SET", "key", "lock:a"],
        &["MSET", "a", "lock:a"],
        &["PUBLISH", "lock:a", "x"],
        &["PING"],
        &["EVAL", RELEASE, "1", "key", "lock:a"],
        &["EVAL", RELEASE, "x", "lock:a"],
        &["EVAL", RELEASE, "9", "lock:a"],
        &["EVAL"],
        &["SCRIPT", "EXISTS", "lock:a"],
        &["DEL"],
    ] {
        assert_eq!(look(&adoption, words), AdoptLook::Free, "{words:?}");
    }
}

#[test]
fn scripts_of_libraries_are_known_by_their_digests() {
    let adoption = adoption();
    let eval = |digest: &str, words: &[&str]| {
        let words = [&["evalsha", digest][..], words].concat();
        found(&adoption, &words)
    };
    let release = eval("C3F8721CBB97F72BC19E972846BD7AAF91901658", &["1", "lock:a", "t"]);
    assert_eq!((release.op, release.library), (Op::Release, "redis-py"));
    assert_eq!(release.replies, Some(Replies::read(["0", "1", "1", "0"])));
    let extend = "a4e8783852e6b949f9ef3a97212805108459a890";
    for (switch, op) in [("0", Op::ExtendBy), ("1", Op::Extend)] {
        assert_eq!(eval(extend, &["1", "lock:a", "t", "1000", switch]).op, op);
    }
    // Several locks, of which all must be adopted.
    let redlock = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    let two = eval(redlock, &["2", "lock:a", "lock:b", "t", "1000"]);
    assert_eq!(
        (two.op, two.verdict, two.library),
        (Op::Acquire, AdoptVerdict::Quorum, "node-redlock 5")
    );
    let mixed = eval(redlock, &["2", "lock:a", "other", "t", "1000"]);
    assert_eq!((mixed.verdict, mixed.because), (AdoptVerdict::Refused, verdict::MIXED));
    // The list that wakes waiters is no lock.
    let signal = "90da91872223f85eb1376a17e3c4df21ace8c54b";
    let apart = eval(signal, &["2", "lock:a", "lock-signal:a", "t", "1000"]);
    assert_eq!((apart.op, apart.verdict), (Op::Release, AdoptVerdict::Quorum));
    assert!(apart.because.contains("list"));
    assert_eq!(
        eval(signal, &["2", "lock:a", "lock:signal", "t", "1000"]).verdict,
        AdoptVerdict::Refused
    );
    // Keys that are a TTL and a token.
    let touch = eval("78d3bb55c589f1b2edf66f3527f5017f8dfcd6bb", &["3", "lock:a", "1000", "t"]);
    assert_eq!((touch.op, touch.verdict), (Op::Extend, AdoptVerdict::Quorum));
    // A database before the token.
    let other = eval("1b77b94aa78451d55dfa97e18819bfbfc596cb5b", &["1", "lock:a", "0", "t", "100"]);
    assert_eq!((other.verdict, other.because), (AdoptVerdict::Quorum, verdict::DATABASE));
    let faulty = eval("7bcdefae3714859f68f1f2377bddae74a1af9391", &["1", "lock:a", "t", "-1"]);
    assert_eq!(faulty.op, Op::Faulty);
}

#[test]
fn scripts_are_learned_from_eval_and_script_load() {
    let adoption = adoption();
    let digest = sha1_smol::Sha1::from(RELEASE).digest().to_string();
    let evalsha = ["EVALSHA", &digest, "1", "lock:a", "t"];
    assert_eq!(found(&adoption, &evalsha).op, Op::UnseenScript);
    assert_eq!(look(&adoption, &["script", "load", RELEASE]), AdoptLook::Free);
    let known = found(&adoption, &evalsha);
    assert_eq!((known.op, known.verdict, known.library), (Op::Release, AdoptVerdict::Quorum, ""));
}

#[test]
fn what_is_too_large_is_told_as_that() {
    let adoption = adoption();
    let large = "x".repeat(MAX_LOOK);
    let set = found(&adoption, &["SET", "lock:a", &large]);
    assert_eq!((set.rule, set.op, set.verdict), (Some(0), Op::TooLarge, AdoptVerdict::Unknown));
    // The keys stand behind the body.
    let eval = found(&adoption, &["EVAL", &large, "1", "key"]);
    assert_eq!((eval.rule, eval.op), (None, Op::TooLarge));
    assert_eq!(look(&adoption, &["SET", "key", &large]), AdoptLook::Free);
    assert_eq!(look(&adoption, &["PING", &large]), AdoptLook::Free);
}

/// Returns what is noted of commands on one connection.
fn noted(commands: &[&str]) -> Vec<(Op, AdoptVerdict, &'static str)> {
    let (adoption, mut track) = (adoption(), Track::default());
    let mut noted = Vec::new();
    for text in commands {
        let words: Vec<&str> = text.split(' ').collect();
        let part = match words[0] {
            "MULTI" => TransactionPart::Multi,
            "EXEC" => TransactionPart::Exec,
            "DISCARD" => TransactionPart::Discard,
            "UNWATCH" => TransactionPart::Unwatch,
            "WATCH" => TransactionPart::Watch,
            _ => TransactionPart::Other,
        };
        noted.extend(track.step(part, &look(&adoption, &words)));
    }
    noted.iter().map(|sighting| (sighting.op, sighting.verdict, sighting.library)).collect()
}

#[test]
fn a_transaction_that_releases_or_extends_is_known() {
    let se = "StackExchange.Redis";
    let look = (Op::Look, AdoptVerdict::Quorum, "");
    let release = (Op::Release, AdoptVerdict::Quorum, se);
    let extend = (Op::Extend, AdoptVerdict::Quorum, se);
    for (inside, expected) in [
        ("DEL lock:a", release),
        ("UNLINK lock:a", release),
        ("PEXPIRE lock:a 100", extend),
        ("EXPIRE lock:a 60", extend),
        ("EXPIRE lock:a 61", (Op::Extend, AdoptVerdict::Refused, se)),
    ] {
        let commands = ["WATCH lock:a", "GET lock:a", "MULTI", inside, "EXEC"];
        assert_eq!(noted(&commands), [look, expected], "{inside}");
    }
    assert_eq!(
        noted(&[
            "WATCH lock:a",
            "WATCH lock:a",
            "GET key",
            "GET lock:a",
            "SET lock:a t NX",
            "MULTI",
            "DEL lock:a",
            "EXEC",
        ]),
        [look, (Op::AcquireForEver, AdoptVerdict::Refused, ""), release]
    );
    assert_eq!(noted(&["WATCH lock:a", "GET lock:a", "UNWATCH"]), [look]);
    assert_eq!(noted(&["WATCH lock:a", "GET lock:a", "MULTI", "DISCARD"]), [look]);
    assert_eq!(noted(&["WATCH key", "MULTI", "SET key 1", "EXEC"]), []);
    let watch = (Op::Watch, AdoptVerdict::Refused, "");
    let inside = (Op::ReleaseBlind, AdoptVerdict::Refused, "");
    for (other, expected) in [
        (
            &["WATCH lock:a", "GET lock:a", "MULTI", "DEL lock:b", "EXEC"][..],
            vec![look, inside, watch],
        ),
        (&["WATCH lock:a", "MULTI", "DEL lock:a", "EXEC"], vec![inside, watch]),
        (
            &["WATCH lock:a", "GET lock:a", "MULTI", "DEL lock:a", "SET key 1", "EXEC"],
            vec![look, watch, inside],
        ),
        (
            &["WATCH lock:a", "GET lock:a", "MULTI", "SET key 1", "DEL lock:a", "EXEC"],
            vec![look, inside, watch],
        ),
        (
            &["MULTI", "DEL lock:a", "EXEC", "DEL lock:a"],
            vec![(Op::ReleaseBlind, AdoptVerdict::Quorum, ""); 2],
        ),
        (&["WATCH lock:a lock:b", "GET key"], vec![watch]),
        (
            &["WATCH lock:a", "WATCH key", "GET lock:a", "MULTI", "DEL lock:a", "EXEC"],
            vec![look, inside, watch],
        ),
        (
            &["WATCH key", "WATCH lock:a", "GET lock:a", "MULTI", "DEL lock:a", "EXEC"],
            vec![watch, look, inside],
        ),
        (
            &["WATCH lock:a", "WATCH lock:b", "GET lock:a", "MULTI", "DEL lock:a", "EXEC"],
            vec![watch, look, inside, watch],
        ),
    ] {
        assert_eq!(noted(other), expected, "{other:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// What is found does not depend on how much came at once.
    #[test]
    fn a_command_in_pieces_is_found_as_it_is_whole(
        at in 0_usize..9,
        cuts in proptest::collection::vec(0_usize..200, 0..6),
    ) {
        let all: [&[&str]; 9] = [
            &["SET", "lock:a", "t", "NX", "PX", "1000"],
            &["GET", "key"],
            &["EVAL", RELEASE, "1", "lock:a", "t"],
            &["DEL", "key", "lock:a"],
            &["DEL", "key", "other"],
            &["CLIENT", "SETNAME", "x"],
            &["EVALSHA", "c3f8721cbb97f72bc19e972846bd7aaf91901658", "1", "key", "t"],
            &["SET", "lock:a", "t"],
            &["PING"],
        ];
        let (adoption, bytes) = (adoption(), command(all[at]));
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = adoption.look(&bytes, &LIMITS);
        for cut in cuts {
            match adoption.look(&bytes[..cut], &LIMITS) {
                AdoptLook::More(least) => prop_assert!(least > cut && least <= bytes.len()),
                early => prop_assert_eq!(&early, &whole),
            }
        }
    }

    #[test]
    fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = adoption().look(&bytes, &LIMITS);
        let mut head = b"*3\r\n$4\r\nEVAL\r\n".to_vec();
        head.extend_from_slice(&bytes);
        let _ = adoption().look(&head, &LIMITS);
        let _ = super::normal::of(&bytes);
    }
}

/// Returns what is done with a lock by these acts; `token`: `None` for a blind command.
fn on_lock(
    acts: Acts,
    token: Option<&Token>,
    ttl: Option<Duration>,
    mut replies: Replies,
) -> AdoptWork {
    if token.is_none() {
        // Another token's lock is the command's own, and a LOCK client's counts as free.
        (replies.endless, replies.other) = (replies.own, replies.absent);
    }
    AdoptWork::Lock(LockWork {
        token: token.cloned(),
        ttl,
        acts,
        replies,
        first_of: None,
        readers: WorkOnReaders::None,
    })
}

#[test]
fn a_lock_without_a_ttl_is_renewed_where_its_script_makes_no_difference() {
    for (replies, endless) in [
        (["0", "1", "1", "0"], Act::Renew),
        (["0", "1", "0", "0"], Act::Nothing),
        (["0", "1", "2", "0"], Act::Nothing),
    ] {
        let (token, ttl) = (Some(Token::from("t")), Some(Duration::from_secs(1)));
        let replies = Replies::read(replies);
        let work = |acts| LockWork::new((token.clone(), ttl), acts, replies).acts;
        assert_eq!(work(Acts::RENEW), Acts { endless, ..Acts::RENEW });
        assert_eq!(work(Acts::TAKE_OR_RENEW), Acts { endless, ..Acts::TAKE_OR_RENEW });
        assert_eq!(work(Acts::FREE), Acts::FREE);
        // Whatever the replies, there is no TTL to be taken away, and none to add to.
        let kept = LockWork::new((token.clone(), None), Acts::RENEW, replies);
        assert_eq!(kept.acts, Acts { endless: Act::Nothing, ..Acts::RENEW });
        assert_eq!(Acts::ADD_TO.endless, Act::Nothing);
    }
    let blind = Replies::read(["0", "1", "2", "3"]);
    let blind = LockWork::new((None, Some(Duration::from_secs(1))), Acts::RENEW, blind);
    assert_eq!(blind.acts, Acts::RENEW);
    assert_eq!(blind.replies, Replies::read(["0", "1", "1", "0"]));
}

#[test]
fn enforced_rules_make_tasks() {
    let rule = |keys, mode| rule(keys, mode, AdoptOptions::default());
    let lock = Some(Template::new("{2}/{1}").unwrap());
    let adoption = Adoption::new(&[
        rule("seen:*", AdoptMode::Audit),
        AdoptRule { lock, ..rule("lock:*:*", AdoptMode::Enforce) },
    ])
    .unwrap();
    assert!(adoption.enforces());
    let task = |words: &[&str]| match look(&adoption, words) {
        AdoptLook::Found(found) => {
            assert_eq!(found.length, command(words).len(), "{words:?}");
            found.task.map(|task| *task)
        }
        AdoptLook::Free => None,
        other => panic!("{words:?}: {other:?}"),
    };
    let work = |words: &[&str]| task(words).unwrap().work;
    let taken = task(&["SET", "lock:a:b", "t", "NX", "PX", "1500"]).unwrap();
    assert_eq!((&taken.key[..], &taken.lock[..]), (&b"lock:a:b"[..], &b"b/a"[..]));
    let (token, ttl) = (Token::from("t"), Duration::from_millis(1500));
    let replies = Replies::read(["+OK", "nil", "nil", "nil"]);
    assert_eq!(taken.work, on_lock(Acts::TAKE, Some(&token), Some(ttl), replies));
    let seconds = Duration::from_secs(2);
    let held = Replies::read(["nil", "+OK", "+OK", "nil"]);
    let extend = |replies| on_lock(Acts::RENEW, Some(&token), Some(seconds), replies);
    assert_eq!(work(&["SET", "lock:a:b", "t", "XX", "EX", "2"]), extend(held));
    assert_eq!(work(&["SET", "lock:a:b", "t", "IFEQ", "t", "EX", "2"]), extend(held));
    let compared = Replies::read(["0", "1", "1", "0"]);
    let release = on_lock(Acts::FREE, Some(&token), None, compared);
    for words in [
        &["EVAL", RELEASE, "1", "lock:a:b", "t"][..],
        &["DELEX", "lock:a:b", "IFEQ", "t"],
        &["DELIFEQ", "lock:a:b", "t"],
    ] {
        assert_eq!(work(words), release, "{words:?}");
    }
    let blind = Replies::read(["0", "1", "1", "1"]);
    for words in [&["DEL", "lock:a:b"][..], &["UNLINK", "lock:a:b"], &["EXPIRE", "lock:a:b", "-1"]]
    {
        assert_eq!(work(words), on_lock(Acts::FREE, None, None, blind), "{words:?}");
    }
    let extend = on_lock(Acts::RENEW, None, Some(ttl), blind);
    assert_eq!(work(&["PEXPIRE", "lock:a:b", "1500"]), extend);
    assert_eq!(work(&["GET", "lock:a:b"]), AdoptWork::Look(LookWord::Get));
    assert_eq!(work(&["WATCH", "lock:a:b"]), AdoptWork::Watch);
    for (words, expected) in [
        (&["DEL", "lock:a:b"][..], Some(QueuedWork::Release)),
        (&["UNLINK", "lock:a:b"], Some(QueuedWork::Release)),
        (&["EXPIRE", "lock:a:b", "0"], Some(QueuedWork::Release)),
        (&["EXPIRE", "lock:a:b", "2"], Some(QueuedWork::Extend(seconds))),
        (&["PEXPIRE", "lock:a:b", "2000"], Some(QueuedWork::Extend(seconds))),
        (&["EXPIRE", "lock:a:b", "61"], None),
        (&["EXPIRE", "lock:a:b", "2", "XX"], None),
        (&["EXPIREAT", "lock:a:b", "9999999999"], None),
        (&["DEL", "lock:a:b", "lock:a:c"], None),
        (&["DELEX", "lock:a:b"], None),
        (&["GET", "lock:a:b"], None),
    ] {
        let AdoptLook::Found(found) = look(&adoption, words) else { panic!() };
        assert_eq!(found.queued, expected, "{words:?}");
    }
    for words in [
        &["SET", "lock:a:b", "t"][..],
        &["SET", "lock:a:b", "t", "NX"],
        &["SET", "lock:a:b", "t", "NX", "PXAT", "9999999999999"],
        &["EXPIREAT", "lock:a:b", "9999999999"],
        &["SET", "lock:a:b", "t", "NX", "GET", "PX", "1"],
        &["SET", "lock:a:b", "t", "XX", "GET", "PX", "1"],
        &["SET", "lock:a:b", "t", "NX", "PX", "60001"],
        &["DEL", "x", "lock:a:c"],
        &["EXPIRE", "lock:a:b", "1", "GT"],
        &["PERSIST", "lock:a:b"],
        &["WATCH", "lock:a:b", "lock:a:c"],
        &["GETDEL", "lock:a:b"],
        &["EVAL", "return 1", "1", "lock:a:b"],
    ] {
        assert!(matches!(work(words), AdoptWork::Refuse(_)), "{words:?}");
        assert_eq!(found(&adoption, words).verdict, AdoptVerdict::Refused, "{words:?}");
    }
    // DEL of several keys.
    let several = task(&["DEL", "lock:a:b", "lock:c:d", "lock:e:f"]).unwrap();
    assert_eq!(several.work, on_lock(Acts::FREE, None, None, blind));
    let others = [(&b"lock:c:d"[..], &b"d/c"[..]), (b"lock:e:f", b"f/e")];
    assert_eq!(several.others, others.map(|(key, lock)| (key.to_vec(), lock.to_vec())));
    for (count, is_refused) in [(16, false), (17, true)] {
        let words = [&["UNLINK"][..], &vec!["lock:a:b"; count]].concat();
        assert_eq!(matches!(work(&words), AdoptWork::Refuse(_)), is_refused, "{count}");
    }
    // node-redlock with two resources.
    let redlock = ["EVALSHA", "e5a322e2634ef59a516e8ea150cb085afafee684", "2", "lock:a:b"];
    let many = task(&[&redlock[..], &["lock:c:d", "t", "1500"]].concat()).unwrap();
    assert!(matches!(&many.work, AdoptWork::Lock(work) if work.acts == Acts::TAKE), "{many:?}");
    assert_eq!(many.others, [(b"lock:c:d".to_vec(), b"d/c".to_vec())]);
    let mixed = task(&[&redlock[..], &["seen:c", "t", "1500"]].concat()).unwrap();
    assert!(matches!(mixed.work, AdoptWork::Refuse(_)), "{mixed:?}");
    // It is refused whichever of the keys comes first.
    for words in [
        &["EVALSHA", redlock[1], "2", "seen:c", "lock:a:b", "t", "1500"][..],
        &["DEL", "seen:c", "lock:a:b"],
        &["MSET", "seen:c", "v", "lock:a:b", "v"],
        &["MGET", "seen:c", "lock:a:b"],
    ] {
        assert!(matches!(work(words), AdoptWork::Refuse(_)), "{words:?}");
    }
    let unseen = work(&["EVALSHA", &"0".repeat(40), "1", "lock:a:b"]);
    assert!(matches!(unseen, AdoptWork::Fail(error) if error.starts_with("NOSCRIPT ")));
    for words in [&["SET", "seen:a", "t", "NX", "PX", "1"][..], &["DEL", "seen:a"], &["GET", "x"]] {
        assert_eq!(task(words), None, "{words:?}");
    }
    // The rest of a value that is too long is not waited for.
    let long = command(&["SET", "lock:a:b", &"x".repeat(MAX_LOOK), "NX", "PX", "1"]);
    for bytes in [&long[..], &long[..40]] {
        let AdoptLook::Found(found) = adoption.look(bytes, &LIMITS) else { panic!() };
        assert!(matches!(found.task.unwrap().work, AdoptWork::Refuse(_)));
        assert_eq!(found.length, 0);
    }
}

/// Returns the sighting of a command under one enforced rule with these options, and its work.
fn under(options: AdoptOptions, words: &[&str]) -> (Sighting, Option<AdoptWork>) {
    let adoption = Adoption::new(&[rule("lock:*", AdoptMode::Enforce, options)]).unwrap();
    match look(&adoption, words) {
        AdoptLook::Found(found) => (found.sighting, found.task.map(|task| task.work)),
        other => panic!("{words:?}: {other:?}"),
    }
}

const MEDUSA: &str = "0eafb65e6aa537bcc966e2af2a66dc7f3f66e121";
const WALRUS: &str = "d893d8da0844b834c9c5a41fb79b469749e6f442";
const LARAVEL_REFRESH: &str = "d5f94f1848f0c54fff99d99dbc4d54184a157c02";

#[test]
fn locks_without_a_ttl_get_the_rules() {
    let ttl = Duration::from_secs(30);
    let given = AdoptOptions { no_ttl: NoTtlPolicy::For(ttl), ..AdoptOptions::default() };
    let token = Token::from("t");
    let acquire = |replies| on_lock(Acts::TAKE, Some(&token), Some(ttl), replies);
    let again = Replies::read(["1", "1", "1", "0"]);
    for (words, expected) in [
        (&["SET", "lock:a", "t", "NX"][..], acquire(Replies::read(["+OK", "nil", "nil", "nil"]))),
        (&["SETNX", "lock:a", "t"], acquire(Replies::read(["1", "0", "0", "0"]))),
        (
            &["EVALSHA", WALRUS, "1", "lock:a", "t", "0"],
            acquire(Replies::read(["1", "0", "0", "0"])),
        ),
        (
            &["EVALSHA", MEDUSA, "1", "lock:a", "t", "0", "false"],
            on_lock(Acts::TAKE_OR_RENEW, Some(&token), Some(ttl), again),
        ),
        (
            &["EVALSHA", MEDUSA, "1", "lock:a", "t", "0", "true"],
            acquire(Replies::read(["1", "0", "0", "0"])),
        ),
        (
            &["EVALSHA", LARAVEL_REFRESH, "1", "lock:a", "t", "0"],
            on_lock(Acts::RENEW, Some(&token), Some(ttl), Replies::read(["0", "1", "1", "0"])),
        ),
        (
            &["SET", "lock:a", "t", "IFEQ", "t"],
            on_lock(
                Acts::RENEW,
                Some(&token),
                Some(ttl),
                Replies::read(["nil", "+OK", "+OK", "nil"]),
            ),
        ),
    ] {
        let (sighting, work) = under(given, words);
        assert_eq!((sighting.verdict, work), (AdoptVerdict::Quorum, Some(expected)), "{words:?}");
        let (sighting, work) = under(AdoptOptions::default(), words);
        assert!(matches!(work, Some(AdoptWork::Refuse(_))), "{words:?}");
        assert_eq!(verdict::reason(sighting.op, sighting.because), RefusalReason::NoTtl);
    }
    // A script for which a TTL of 0 is an error stays refused, and so do the faulty and the blind.
    for words in [
        &["EVALSHA", "862f31bf38e9b63ce28d6e9e5143551bb34ef981", "1", "lock:a", "t", "0"][..],
        &["EVALSHA", "7bcdefae3714859f68f1f2377bddae74a1af9391", "1", "lock:a", "t", "-1"],
        &["PERSIST", "lock:a"],
        &["SET", "lock:a", "t"],
    ] {
        assert!(matches!(under(given, words).1, Some(AdoptWork::Refuse(_))), "{words:?}");
    }
}

#[test]
fn locks_without_a_ttl_are_kept_where_the_rule_says_so() {
    let kept = AdoptOptions { no_ttl: NoTtlPolicy::Session, ..AdoptOptions::default() };
    let token = Token::from("t");
    // Nothing is to be done where the lock has no TTL already.
    let keep = |acts, replies| {
        let acts = Acts { endless: Act::Nothing, ..acts };
        let token = Some(token.clone());
        let (ttl, first_of, readers) = (None, None, WorkOnReaders::None);
        AdoptWork::Lock(LockWork { token, ttl, acts, replies, first_of, readers })
    };
    let taken = Replies::read(["1", "0", "0", "0"]);
    for (words, expected) in [
        (
            &["SET", "lock:a", "t", "NX"][..],
            keep(Acts::TAKE, Replies::read(["+OK", "nil", "nil", "nil"])),
        ),
        (&["SETNX", "lock:a", "t"], keep(Acts::TAKE, taken)),
        (&["EVALSHA", WALRUS, "1", "lock:a", "t", "0"], keep(Acts::TAKE, taken)),
        (
            &["EVALSHA", MEDUSA, "1", "lock:a", "t", "0", "false"],
            keep(Acts::TAKE_OR_RENEW, Replies::read(["1", "1", "1", "0"])),
        ),
        (&["EVALSHA", MEDUSA, "1", "lock:a", "t", "0", "true"], keep(Acts::TAKE, taken)),
        (
            &["EVALSHA", LARAVEL_REFRESH, "1", "lock:a", "t", "0"],
            keep(Acts::RENEW, Replies::read(["0", "1", "1", "0"])),
        ),
        (
            &["SET", "lock:a", "t", "IFEQ", "t"],
            keep(Acts::RENEW, Replies::read(["nil", "+OK", "+OK", "nil"])),
        ),
    ] {
        let (sighting, work) = under(kept, words);
        assert_eq!((sighting.verdict, work), (AdoptVerdict::Quorum, Some(expected)), "{words:?}");
    }
    // With a TTL it is a lease, whatever the rule says of others.
    let ttl = Duration::from_secs(7);
    for words in [
        &["SET", "lock:a", "t", "NX", "EX", "7"][..],
        &["EVALSHA", MEDUSA, "1", "lock:a", "t", "7", "false"],
        &["SET", "lock:a", "t", "XX", "EX", "7"],
    ] {
        let Some(AdoptWork::Lock(LockWork { ttl: Some(given), .. })) = under(kept, words).1 else {
            panic!("{words:?}")
        };
        assert!(given == ttl || given == ttl / 1000, "{words:?}: {given:?}");
    }
    for words in [&["PERSIST", "lock:a"][..], &["SET", "lock:a", "t"]] {
        assert!(matches!(under(kept, words).1, Some(AdoptWork::Refuse(_))), "{words:?}");
    }
}

#[test]
fn a_script_with_too_few_arguments_is_told_so() {
    for words in [
        &["EVAL", RELEASE, "1", "lock:a"][..],
        &["EVALSHA", MEDUSA, "1", "lock:a", "t"],
        &["EVALSHA", WALRUS, "1", "lock:a"],
    ] {
        let (sighting, work) = under(AdoptOptions::default(), words);
        assert_eq!(sighting.verdict, AdoptVerdict::Error);
        assert_eq!(work, Some(AdoptWork::Fail(TOO_FEW_ARGUMENTS)), "{words:?}");
    }
    let (_, work) = under(AdoptOptions::default(), &["EVALSHA", MEDUSA, "1", "lock:a", "t", "x"]);
    let error = "ERR value is not an integer or out of range";
    assert_eq!(work, Some(AdoptWork::Fail(error)), "a TTL that is no number");
}

#[test]
fn long_ttls_are_cut_where_the_rule_says_so() {
    let cut = AdoptOptions { long_ttl: LongTtlPolicy::Cap, ..AdoptOptions::default() };
    for words in [
        &["SET", "lock:a", "t", "NX", "EX", "61"][..],
        &["SET", "lock:a", "t", "XX", "PX", "9223372036854775807"],
        &["PEXPIRE", "lock:a", "60001"],
        &["EVALSHA", MEDUSA, "1", "lock:a", "t", "61"],
    ] {
        let (sighting, work) = under(cut, words);
        assert_eq!((sighting.verdict, sighting.because), (AdoptVerdict::Quorum, verdict::CAPPED));
        assert!(sighting.ttl > Some(Duration::from_secs(60)), "as it was asked for: {words:?}");
        let Some(AdoptWork::Lock(LockWork { ttl, .. })) = work else { panic!("{words:?}") };
        assert_eq!(ttl, Some(Duration::from_secs(60)), "{words:?}");
        let (sighting, work) = under(AdoptOptions::default(), words);
        assert!(matches!(work, Some(AdoptWork::Refuse(_))), "{words:?}");
        assert_eq!(verdict::reason(sighting.op, sighting.because), RefusalReason::LongTtl);
        assert!(sighting.ttl > Some(Duration::from_secs(60)), "as it was asked for: {words:?}");
    }
    let (sighting, _) = under(cut, &["SET", "lock:a", "t", "NX", "EX", "60"]);
    assert_eq!(sighting.because, "");
}

#[test]
fn what_is_no_idiom_is_refused_by_what_it_is_or_forwarded() {
    let forward = AdoptOptions { unknown: UnknownPolicy::Forward, ..AdoptOptions::default() };
    for (words, reason) in [
        (&["HSET", "lock:a", "f", "v"][..], RefusalReason::Hash),
        (&["ZADD", "lock:a", "1", "v"], RefusalReason::SortedSet),
        (
            &["EVAL", "return redis.call('hexists', KEYS[1], 'x')", "1", "lock:a"],
            RefusalReason::Hash,
        ),
        (&["EVAL", "redis.call('ZADD', KEYS[1], 1, 'x')", "1", "lock:a"], RefusalReason::SortedSet),
        (&["EVAL", "return 1", "2", "lock:a", "other"], RefusalReason::UnknownScript),
        (&["FCALL", "f", "1", "lock:a"], RefusalReason::NoIdiom),
        (&["INCR", "lock:a"], RefusalReason::NoIdiom),
        (&["MGET", "lock:a", "other"], RefusalReason::NoIdiom),
    ] {
        let (sighting, work) = under(forward, words);
        assert_eq!((sighting.verdict, work), (AdoptVerdict::Forwarded, None), "{words:?}");
        assert_eq!(verdict::reason(sighting.op, sighting.because), reason, "{words:?}");
        let (_, work) = under(AdoptOptions::default(), words);
        assert!(matches!(work, Some(AdoptWork::Refuse(_))), "{words:?}");
    }
    // A command that takes, frees or reads a lock never goes to the data node.
    let bullmq = "7ece82993bd7604131328c7d69ae15c31b8e237e";
    let reserved = std::str::from_utf8(Token::OF_EMPTY_VALUE).unwrap();
    for (words, reason) in [
        (&["SET", "lock:a", "t", "NX"][..], RefusalReason::NoTtl),
        (&["SET", "lock:a", "t", "NX", "GET", "PX", "1"], RefusalReason::NoIdiom),
        (&["SET", "lock:a", "t"], RefusalReason::Overwrite),
        (&["SETEX", "lock:a", "1", "t"], RefusalReason::Overwrite),
        (&["MSETNX", "lock:a", "t"], RefusalReason::NoIdiom),
        (&["DELEX", "lock:a", "IFNE", "t"], RefusalReason::NoIdiom),
        (&["EXPIRE", "lock:a", "1", "GT"], RefusalReason::NoIdiom),
        (&["EXISTS", "lock:a", "lock:b"], RefusalReason::Keys),
        (&["DEL", "lock:a", "other"], RefusalReason::Keys),
        (&["PERSIST", "lock:a"], RefusalReason::NoTtl),
        (&["SET", "lock:a", reserved, "NX", "PX", "1"], RefusalReason::Token),
        (&["WATCH", "lock:a", "lock:b"], RefusalReason::Transaction),
        (&["EVALSHA", bullmq, "1", "lock:a", "t"], RefusalReason::Job),
        (&["SET", "lock:a", &"x".repeat(MAX_LOOK)], RefusalReason::TooLarge),
    ] {
        let (sighting, work) = under(forward, words);
        assert!(matches!(work, Some(AdoptWork::Refuse(_))), "{words:?}");
        assert_eq!(verdict::reason(sighting.op, sighting.because), reason, "{words:?}");
    }
    let unseen = under(forward, &["EVALSHA", &"0".repeat(40), "1", "lock:a"]).1.unwrap();
    assert!(matches!(unseen, AdoptWork::Fail(error) if error.starts_with("NOSCRIPT ")));
    // A command too large to be looked at is judged by its name.
    let large = "x".repeat(MAX_LOOK);
    assert_eq!(under(forward, &["HSET", "lock:a", "f", &large]).1, None);
    assert!(under(AdoptOptions::default(), &["HSET", "lock:a", "f", &large]).1.is_some());
    assert!(under(forward, &["PERSIST", "lock:a", &large]).1.is_some());
}

#[test]
fn of_several_rules_the_stricter_counts() {
    let lax = AdoptOptions {
        unknown: UnknownPolicy::Forward,
        no_ttl: NoTtlPolicy::For(Duration::from_secs(5)),
        long_ttl: LongTtlPolicy::Cap,
        ..AdoptOptions::default()
    };
    let strict = AdoptOptions { blind: BlindPolicy::Refuse, ..AdoptOptions::default() };
    assert_eq!((lax.and(strict), strict.and(lax)), (strict, strict));
    let longer = AdoptOptions { no_ttl: NoTtlPolicy::For(Duration::from_secs(9)), ..lax };
    assert_eq!((lax.and(longer), longer.and(lax)), (lax, lax));
    let kept = AdoptOptions { no_ttl: NoTtlPolicy::Session, ..lax };
    let refused = AdoptOptions { no_ttl: NoTtlPolicy::Refuse, ..lax };
    assert_eq!((kept.and(kept), kept.and(lax), lax.and(kept)), (kept, refused, refused));
    let (enforce, audit) = (AdoptMode::Enforce, AdoptMode::Audit);
    let rules = [
        rule("lax:*", enforce, lax),
        rule("strict:*", enforce, strict),
        rule("seen:*", audit, strict),
    ];
    let adoption = Adoption::new(&rules).unwrap();
    for (keys, verdict) in [
        (["lax:a", "lax:b"], AdoptVerdict::Forwarded),
        (["lax:a", "strict:b"], AdoptVerdict::Refused),
        (["strict:a", "lax:b"], AdoptVerdict::Refused),
        (["seen:a", "lax:b"], AdoptVerdict::Forwarded),
        (["other", "lax:b"], AdoptVerdict::Forwarded),
    ] {
        assert_eq!(found(&adoption, &["MGET", keys[0], keys[1]]).verdict, verdict, "{keys:?}");
    }
    let blind = found(&adoption, &["DEL", "strict:a"]);
    assert_eq!(verdict::reason(blind.op, blind.because), RefusalReason::Blind);
}

#[test]
fn a_time_of_day_is_a_ttl_by_the_proxys_clock() {
    let rule = rule("lock:*", AdoptMode::Enforce, AdoptOptions::default());
    let mut adoption = Adoption::new(&[rule]).unwrap();
    Arc::get_mut(&mut adoption).unwrap().time_of_day = || 1_000_000;
    let work = |words: &[&str]| match look(&adoption, words) {
        AdoptLook::Found(found) => found.task.unwrap().work,
        other => panic!("{words:?}: {other:?}"),
    };
    let (token, set) = (Token::from("t"), Replies::read(["+OK", "nil", "nil", "nil"]));
    let (held, blind) =
        (Replies::read(["nil", "+OK", "+OK", "nil"]), Replies::read(["0", "1", "1", "1"]));
    let (ttl, second) = (Duration::from_millis(1500), Duration::from_secs(1));
    let acquire = on_lock(Acts::TAKE, Some(&token), Some(ttl), set);
    let extend = on_lock(Acts::RENEW, Some(&token), Some(second), held);
    let release = on_lock(Acts::FREE, Some(&token), None, held);
    for (words, expected) in [
        (&["SET", "lock:a", "t", "NX", "PXAT", "1001500"][..], acquire),
        (&["SET", "lock:a", "t", "XX", "EXAT", "1001"], extend.clone()),
        (&["SET", "lock:a", "t", "IFEQ", "t", "EXAT", "1001"], extend),
        (&["EXPIREAT", "lock:a", "1001"], on_lock(Acts::RENEW, None, Some(second), blind)),
        (&["PEXPIREAT", "lock:a", "1001500"], on_lock(Acts::RENEW, None, Some(ttl), blind)),
        // Times that have passed.
        (
            &["SET", "lock:a", "t", "NX", "EXAT", "1000"],
            on_lock(Acts::TAKE, Some(&token), Some(Duration::ZERO), set),
        ),
        (&["SET", "lock:a", "t", "XX", "EXAT", "1000"], release.clone()),
        (&["SET", "lock:a", "t", "IFEQ", "t", "PXAT", "5"], release),
        (&["EXPIREAT", "lock:a", "1000"], on_lock(Acts::FREE, None, None, blind)),
        (&["PEXPIREAT", "lock:a", "-7"], on_lock(Acts::FREE, None, None, blind)),
    ] {
        assert_eq!(work(words), expected, "{words:?}");
    }
}

#[test]
fn a_release_publishes_what_its_script_would() {
    let adoption =
        Adoption::new(&[rule("lock:*", AdoptMode::Enforce, AdoptOptions::default())]).unwrap();
    let aside = |words: &[&str]| match look(&adoption, words) {
        AdoptLook::Found(found) => {
            let task = found.task.unwrap();
            assert!(task.work.frees(), "{words:?}");
            let text = |word: Vec<u8>| String::from_utf8(word).unwrap();
            let commands: Vec<Vec<String>> =
                task.aside.into_iter().map(|words| words.into_iter().map(text).collect()).collect();
            commands
        }
        other => panic!("{words:?}: {other:?}"),
    };
    let spring = "7a71e9443a2a41539fb115a5a27d5a748a871aed";
    assert_eq!(
        aside(&["EVALSHA", spring, "1", "lock:a", "t", "locks-channel:lock:a"]),
        [["PUBLISH", "locks-channel:lock:a", "lock:a"]]
    );
    let json = "02718596825c5bf6c57af391b4dc01a6d2d9d88a";
    assert_eq!(
        aside(&["EVALSHA", json, "2", "lock:a", "releases", "0.5"]),
        [["PUBLISH", "releases", r#"{ "key": "lock:a", "value": "0.5" }"#]]
    );
    let AdoptLook::Found(found) = look(&adoption, &["EVALSHA", spring, "1", "lock:a", "t"]) else {
        panic!()
    };
    assert!(matches!(found.task.unwrap().work, AdoptWork::Fail(_)), "without a channel");
}

#[test]
fn scripts_of_the_configuration_are_known_under_their_rule() {
    let body = "return 'of our own'";
    let digest = sha1_smol::Sha1::from(body).digest();
    let script = |op, ttl| AdoptScript {
        digest: digest.bytes(),
        op,
        token: 2,
        ttl,
        unit: ScriptUnit::Seconds,
        replies: ["-1", "+OK", "+OK", "nil"],
    };
    let (token, ttl, replies) = (
        Token::from("t"),
        Duration::from_secs(5),
        Replies::read(script(ScriptOp::Release, None).replies),
    );
    for (op, place, expected) in [
        (ScriptOp::Acquire, Some(1), on_lock(Acts::TAKE, Some(&token), Some(ttl), replies)),
        (
            ScriptOp::AcquireReentrant,
            Some(1),
            on_lock(Acts::TAKE_OR_RENEW, Some(&token), Some(ttl), replies),
        ),
        (ScriptOp::Extend, Some(1), on_lock(Acts::RENEW, Some(&token), Some(ttl), replies)),
        (ScriptOp::ExtendBy, Some(1), on_lock(Acts::ADD_TO, Some(&token), Some(ttl), replies)),
        (ScriptOp::Release, None, on_lock(Acts::FREE, Some(&token), None, replies)),
    ] {
        let with = AdoptRule {
            scripts: vec![script(op, place)],
            ..rule("lock:*", AdoptMode::Enforce, AdoptOptions::default())
        };
        let without = rule("other:*", AdoptMode::Enforce, AdoptOptions::default());
        let adoption = Adoption::new(&[without, with]).unwrap();
        let digest = digest.to_string().to_uppercase();
        for words in [["EVALSHA", &digest], ["EVAL", body]] {
            let of =
                |key: &str| match look(&adoption, &[&words[..], &["1", key, "5", "t"]].concat()) {
                    AdoptLook::Found(found) => (found.sighting, found.task.unwrap().work),
                    other => panic!("{words:?}: {other:?}"),
                };
            let (sighting, work) = of("lock:a");
            assert_eq!(work, expected, "{words:?}");
            assert_eq!((sighting.library, sighting.replies), ("", Some(replies)));
            assert!(sighting.digest.is_some());
            assert!(!matches!(of("other:a").0.verdict, AdoptVerdict::Quorum), "another rule's");
        }
    }
}

/// Laravel's script that takes the first free one of its keys, by its digest; and another spelling of it.
const FUNNEL: &str = "420ca604de4310d8301943a71390ee669720d640";
const FUNNEL_BODY: &str = "for i, v in pairs(redis.call('MGET', unpack(KEYS))) do if not v then \
                           redis.call('SET', KEYS[i], ARGV[3], 'EX', ARGV[2]) return ARGV[1]..i end end";

#[test]
fn the_first_free_one_of_several_locks_is_taken() {
    let keys = ["3", "lock:f1", "lock:f2", "lock:f3"];
    let adoption = |mode| Adoption::new(&[rule("lock:*", mode, AdoptOptions::default())]).unwrap();
    let say = |adoption: &Adoption, script: [&str; 2], argv: &[&str]| {
        let words = [&script[..], &keys, argv].concat();
        match look(adoption, &words) {
            AdoptLook::Found(found) => (found.sighting, found.task),
            other => panic!("{words:?}: {other:?}"),
        }
    };
    let enforced = adoption(AdoptMode::Enforce);
    let unseen = rows::hexadecimal(&sha1_smol::Sha1::from(FUNNEL_BODY).digest().bytes());
    assert_eq!(say(&enforced, ["EVALSHA", &unseen], &["f", "30", "t"]).0.op, Op::UnseenScript);
    look(&enforced, &["SCRIPT", "LOAD", FUNNEL_BODY]);
    for (script, library) in
        [(["EVALSHA", FUNNEL], "Laravel"), (["EVALSHA", &unseen], ""), (["EVAL", FUNNEL_BODY], "")]
    {
        let (sighting, task) = say(&enforced, script, &["f", "30", "t"]);
        assert_eq!((sighting.op, sighting.verdict), (Op::AcquireFirst, AdoptVerdict::Quorum));
        assert_eq!((sighting.library, sighting.ttl), (library, Some(Duration::from_secs(30))));
        assert_eq!(sighting.replies.unwrap().to_string(), "place nil nil nil");
        let task = task.unwrap();
        let others = [b"lock:f2", b"lock:f3"].map(|key| (key.to_vec(), key.to_vec()));
        assert_eq!((&task.key[..], &task.others[..]), (&b"lock:f1"[..], &others[..]));
        let AdoptWork::Lock(work) = task.work else { panic!("{script:?}: {:?}", task.work) };
        assert_eq!((work.first_of.as_deref(), work.acts), (Some(&b"f"[..]), Acts::TAKE));
        assert_eq!((work.token, work.ttl), (Some(Token::from("t")), Some(Duration::from_secs(30))));
        // What Redis would refuse, and what is no lock here.
        for (argv, expected) in [
            (&["f", "x", "t"][..], AdoptWork::Fail("ERR value is not an integer or out of range")),
            (&["f", "30"], AdoptWork::Fail(TOO_FEW_ARGUMENTS)),
            (&["f", "0", "t"], AdoptWork::Refuse("its TTL is not above 0")),
            (&["f", "61", "t"], AdoptWork::Refuse("its TTL is longer than locks.max_ttl")),
        ] {
            assert_eq!(say(&enforced, script, argv).1.unwrap().work, expected, "{argv:?}");
        }
        let (sighting, task) =
            say(&adoption(AdoptMode::Audit), ["EVAL", FUNNEL_BODY], &["f", "30", "t"]);
        assert_eq!((sighting.op, task), (Op::AcquireFirst, None));
    }
}

#[test]
fn a_script_that_answers_a_name_needs_one() {
    let body = FUNNEL_BODY.replace("ARGV[1]", "ARGV[4]");
    for (name, expected) in [("f", None), ("", Some(AdoptWork::Fail(TOO_FEW_ARGUMENTS)))] {
        let words = ["EVAL", &body, "2", "lock:f1", "lock:f2", "x", "30", "t", name];
        let words = &words[..if expected.is_some() { 8 } else { 9 }];
        let (sighting, work) = under(AdoptOptions::default(), words);
        assert_eq!(sighting.op, Op::AcquireFirst);
        match (work, expected) {
            (Some(AdoptWork::Lock(work)), None) => {
                assert_eq!(work.first_of.as_deref(), Some(name.as_bytes()));
            }
            (work, expected) => assert_eq!(work, expected),
        }
    }
}

#[test]
fn too_many_keys_or_mixed_ones_make_no_family() {
    let rules = |unknown| {
        let options = AdoptOptions { unknown, ..AdoptOptions::default() };
        let enforced = rule("lock:*", AdoptMode::Enforce, options);
        Adoption::new(&[enforced, rule("seen:*", AdoptMode::Audit, options)]).unwrap()
    };
    let call = |names: Vec<String>, script: [&str; 2]| {
        let all = [vec![names.len().to_string()], names, ["f", "30", "t"].map(Into::into).into()];
        script.map(str::to_owned).into_iter().chain(all.concat()).collect::<Vec<String>>()
    };
    let say = |adoption: &Adoption, words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let AdoptLook::Found(found) = look(adoption, &words) else { panic!("{words:?}") };
        (found.sighting.op, found.sighting.verdict, found.sighting.because)
    };
    for script in [["EVALSHA", FUNNEL], ["EVAL", FUNNEL_BODY]] {
        let many = |count: usize| call((0..count).map(|at| format!("lock:{at}")).collect(), script);
        let adoption = rules(UnknownPolicy::Refuse);
        assert_eq!(say(&adoption, &many(1)).1, AdoptVerdict::Quorum);
        assert_eq!(say(&adoption, &many(256)), (Op::AcquireFirst, AdoptVerdict::Quorum, ""));
        let unknown = say(&adoption, &many(257));
        assert_eq!((unknown.0, unknown.1), (Op::UnknownScript, AdoptVerdict::Refused));
        let forwarded = say(&rules(UnknownPolicy::Forward), &many(257));
        assert_eq!(forwarded.1, AdoptVerdict::Forwarded);
        for other in ["seen:2", "2"] {
            let mixed = say(&adoption, &call(vec!["lock:1".into(), other.into()], script));
            assert_eq!((mixed.1, mixed.2), (AdoptVerdict::Refused, verdict::MIXED), "{other}");
        }
    }
}

/// Symfony's five scripts, with ARGV that have a TTL where they need one.
const SYMFONY: [(&str, &[&str], Op); 9] = [
    ("6fdee501a3714553b74c0d67687b921b90b05d18", &["1.5", "t", "1000"], Op::AcquireAgain),
    ("abdbb1413a25737fc4cfb9cf79ace1a22dad6ab3", &["1.5", "t", "1000"], Op::AcquireAgain),
    ("b5745b5be27d9033eb5d3eb254df2faf502b88df", &["1.5", "t", "1000"], Op::AcquireShared),
    ("dee54f77398d3c6d122b4111f3af8ccf1a93ac93", &["1.5", "t", "1000"], Op::AcquireShared),
    ("63be12a3515941092212f15c08327d60916de9fa", &["1.5", "t", "1000"], Op::Extend),
    ("fe7bee082a8220c6b621ace999a1ab57c4ab5145", &["1.5", "t", "1000"], Op::Extend),
    ("a70f7f5087a0cb2c2c9ca50d1f64e234c2628f0c", &["t"], Op::Release),
    ("3b6bdbbe16f821f49177b16c7707f331f015a779", &["1.5", "t"], Op::Look),
    ("e27f94ac94f5d96f23f2e8697462233b6349a566", &["1.5", "t"], Op::Look),
];

#[test]
fn scripts_of_a_library_with_readers_say_what_they_have_to_do_with_readers() {
    for (digest, argv, op) in SYMFONY {
        let words = [&["EVALSHA", digest, "1", "lock:a"], argv].concat();
        let (sighting, work) = under(AdoptOptions::default(), &words);
        assert_eq!((sighting.op, sighting.verdict), (op, AdoptVerdict::Quorum));
        assert_eq!(sighting.library, "Symfony");
        let Some(AdoptWork::Lock(work)) = work else { panic!("{words:?}") };
        let takes = op == Op::AcquireShared;
        let readers = if takes { WorkOnReaders::Takes } else { WorkOnReaders::May };
        assert_eq!((work.readers, work.token), (readers, Some(Token::from("t"))));
        let ttl = (argv.len() == 3).then_some(Duration::from_secs(1));
        assert_eq!(work.ttl, ttl, "{words:?}");
        let (sighting, work) = under(AdoptOptions::default(), &words[..words.len() - 1]);
        assert_eq!(sighting.op, Op::Malformed, "an argument is missing: {words:?}");
        assert_eq!(work, Some(AdoptWork::Fail(TOO_FEW_ARGUMENTS)));
    }
    let words = ["EVALSHA", "175897a4e379e99e79a54937be09226f76cdcfe5", "1", "lock:a", "t", "9"];
    let Some(AdoptWork::Lock(work)) = under(AdoptOptions::default(), &words).1 else { panic!() };
    assert_eq!(work.readers, WorkOnReaders::None, "of another library with the same replies");
}

#[test]
fn a_reader_is_refused_where_locks_have_none_and_never_forwarded() {
    let limits = Limits { shared: false, ..LIMITS };
    let unknown = UnknownPolicy::Forward;
    let options = AdoptOptions { unknown, ..AdoptOptions::default() };
    let adoption = Adoption::new(&[rule("lock:*", AdoptMode::Enforce, options)]).unwrap();
    for (digest, argv, op) in SYMFONY {
        let words = [&["EVALSHA", digest, "1", "lock:a"], argv].concat();
        let look = adoption.look(&command(&words), &limits);
        let AdoptLook::Found(Found { sighting, task: Some(task), .. }) = look else { panic!() };
        let is_refused = op == Op::AcquireShared;
        assert_eq!(task.work.is_refusal(), is_refused, "{words:?}");
        if is_refused {
            assert_eq!(sighting.verdict, AdoptVerdict::Refused);
            let reason = verdict::reason(sighting.op, sighting.because);
            assert_eq!(reason, RefusalReason::Shared);
        }
    }
    // A TTL that is none, or too long.
    for (ttl, because) in
        [("0", "its TTL is not above 0"), ("60001", "its TTL is longer than locks.max_ttl")]
    {
        let words = ["EVALSHA", SYMFONY[2].0, "1", "lock:a", "1.5", "t", ttl];
        assert_eq!(under(AdoptOptions::default(), &words).1, Some(AdoptWork::Refuse(because)));
    }
}

#[test]
fn the_question_whether_scripts_may_read_the_clock_is_about_no_lock() {
    let adoption =
        Adoption::new(&[rule("*", AdoptMode::Enforce, AdoptOptions::default())]).unwrap();
    let check = "c481d49b4a48e48a9eeacd5d51655b5fcbb19925";
    let said = |words: &[&str]| look(&adoption, words) == AdoptLook::Free;
    assert!(said(&["EVALSHA", check, "1", "symfony_check_support_time"]));
    for other in [
        &["EVALSHA", check, "1", "lock:a"][..],
        &["EVALSHA", check, "2", "symfony_check_support_time", "lock:a"],
        &["EVALSHA", SYMFONY[0].0, "1", "symfony_check_support_time", "1.5", "t", "1000"],
        &["EVAL", "return 1", "1", "symfony_check_support_time"],
        &["GET", "symfony_check_support_time"],
    ] {
        assert!(!said(other), "{other:?}");
    }
}
