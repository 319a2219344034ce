//! The grammar of our commands, by example.

use super::*;
use crate::config::Pattern;

fn config() -> LocksConfig {
    LocksConfig {
        nodes: Vec::new(),
        node_queue: 10,
        fence_ttl: Duration::from_secs(60),
        max_key: 8,
        max_token: 6,
        ..LocksConfig::default()
    }
}

/// The key on the nodes, and the request.
type Read = Result<(Key, Request), BadRequest>;

fn read(own: Own, words: &str) -> Read {
    let words: Vec<Vec<u8>> = words.split_whitespace().map(|w| w.as_bytes().to_vec()).collect();
    check_arity(own, words.len() + 1)?;
    let key = full_key(&words[0], &config());
    parse(own, &key, &words, &config()).map(|request| (key, request))
}

fn lock(key: &str, token: Option<&str>, millis: u64) -> Read {
    waiting(key, token, Some(millis), None)
}

fn waiting(key: &str, token: Option<&str>, ttl: Option<u64>, wait: Option<u64>) -> Read {
    let request = Request::Lock {
        token: token.map(Token::from),
        ttl: ttl.map(Duration::from_millis),
        wait: wait.map(Duration::from_millis),
    };
    Ok((Key::from(key), request))
}

#[test]
fn options_are_pairs_and_an_odd_word_is_the_token() {
    assert_eq!(read(Own::Lock, "k PX 100"), lock("lock:k", None, 100));
    assert_eq!(read(Own::Lock, "k t px 100"), lock("lock:k", Some("t"), 100));
    assert_eq!(read(Own::Lock, "k eX 2"), lock("lock:k", None, 2000));
    assert_eq!(read(Own::Lock, "PX PX 60000"), lock("lock:PX", None, 60_000));
    assert_eq!(read(Own::Lock, "k"), waiting("lock:k", None, None, None));
    assert_eq!(read(Own::Lock, "k t"), waiting("lock:k", Some("t"), None, None));
    assert_eq!(read(Own::Lock, "k wait 5"), waiting("lock:k", None, None, Some(5)));
    assert_eq!(
        read(Own::Lock, "k t WAIT 60000 PX 9"),
        waiting("lock:k", Some("t"), Some(9), Some(60_000))
    );
    // A number is a token if it cannot have been meant as a TTL.
    assert_eq!(read(Own::Lock, "k 7 PX 100"), lock("lock:k", Some("7"), 100));
    assert_eq!(read(Own::Lock, "k 7a"), waiting("lock:k", Some("7a"), None, None));
    assert_eq!(read(Own::Lock, "k WAIT 0"), waiting("lock:k", None, None, Some(60_000)));
    let unlock = |token: Option<&[u8]>| {
        Ok((Key::from("lock:k"), Request::Unlock { token: token.map(Token::from) }))
    };
    assert_eq!(read(Own::Unlock, "k"), unlock(None));
    assert_eq!(read(Own::Unlock, "k t"), unlock(Some(b"t")));
    let renew = |token: Option<&[u8]>, ttl: Option<u64>| {
        let ttl = ttl.map(Duration::from_millis);
        Ok((Key::from("lock:k"), Request::Renew { token: token.map(Token::from), ttl }))
    };
    assert_eq!(read(Own::Renew, "k"), renew(None, None));
    assert_eq!(read(Own::Renew, "k t"), renew(Some(b"t"), None));
    assert_eq!(read(Own::Renew, "k t EX 1"), renew(Some(b"t"), Some(1000)));
    assert_eq!(read(Own::Renew, "k PX 7"), renew(None, Some(7)));
    let attach = Request::Attach { token: Token::from("7") };
    assert_eq!(read(Own::Attach, "k 7"), Ok((Key::from("lock:k"), attach)));
    assert_eq!(read(Own::Detach, "k"), Ok((Key::from("lock:k"), Request::Detach)));
}

#[test]
fn bad_words_get_redis_own_wording() {
    let cases: [(Own, &str, &str); 42] = [
        (Own::Lock, "", "ERR wrong number of arguments for 'lock' command"),
        (Own::Unlock, "", "ERR wrong number of arguments for 'unlock' command"),
        (Own::Unlock, "k t x", "ERR wrong number of arguments for 'unlock' command"),
        (Own::Renew, "", "ERR wrong number of arguments for 'renew' command"),
        (Own::Attach, "", "ERR wrong number of arguments for 'lock.attach' command"),
        (Own::Attach, "k", "ERR wrong number of arguments for 'lock.attach' command"),
        (Own::Attach, "k t x", "ERR wrong number of arguments for 'lock.attach' command"),
        (Own::Attach, "k 1234567", "ERR token is longer than 6 bytes (locks.max_token)"),
        (Own::Detach, "k t", "ERR wrong number of arguments for 'lock.detach' command"),
        (Own::Detach, "123456789", "ERR key is longer than 8 bytes (locks.max_key)"),
        (Own::Lock, "k PX 1 PX 1", "ERR syntax error, 'PX' is one option too many"),
        (Own::Lock, "k PX 100 EX 1", "ERR syntax error, 'EX' is one option too many"),
        (Own::Lock, "k FOO 100", "ERR syntax error, unknown option 'FOO'; for a TTL write PX 100"),
        (Own::Renew, "k t 30", "ERR syntax error, unknown option 't'; for a TTL write PX 30"),
        (Own::Lock, "k NX 100", "ERR syntax error, unknown option 'NX'"),
        (Own::Lock, "k t NX", "ERR syntax error, unknown option 'NX'"),
        (Own::Lock, "k NX PX 100", "ERR syntax error, unknown option 'NX'"),
        (Own::Lock, "k PX 100 nx", "ERR syntax error, unknown option 'nx'"),
        (Own::Lock, "k t PX", "ERR syntax error, 'PX' lacks its value"),
        (Own::Lock, "k PX 9 WAIT 1 WAIT 1", "ERR syntax error, 'WAIT' is one option too many"),
        (Own::Renew, "k t WAIT 9", "ERR syntax error, unknown option 'WAIT'"),
        (Own::Lock, "k PX x", "ERR value is not an integer or out of range, 'x' for PX"),
        (Own::Lock, "k EX 1.5", "ERR value is not an integer or out of range, '1.5' for EX"),
        (Own::Lock, "k PX +5", "ERR value is not an integer or out of range, '+5' for PX"),
        (
            Own::Lock,
            "k PX 9223372036854775808",
            "ERR value is not an integer or out of range, '9223372036854775808' for PX",
        ),
        (
            Own::Lock,
            "k PX 100 WAIT x",
            "ERR timeout is not an integer or out of range, 'x' for WAIT",
        ),
        (Own::Lock, "k PX 0", "ERR invalid expire time in 'lock' command, the shortest is 4 ms"),
        (Own::Lock, "k PX -1", "ERR invalid expire time in 'lock' command, the shortest is 4 ms"),
        (Own::Lock, "k PX 3", "ERR invalid expire time in 'lock' command, the shortest is 4 ms"),
        (
            Own::Lock,
            "k EX 9223372036854775807",
            "ERR invalid expire time in 'lock' command, the longest is 60000 ms (locks.max_ttl)",
        ),
        (Own::Renew, "k PX 0", "ERR invalid expire time in 'renew' command, the shortest is 4 ms"),
        (
            Own::Lock,
            "k PX 60001",
            "ERR invalid expire time in 'lock' command, the longest is 60000 ms (locks.max_ttl)",
        ),
        (
            Own::Lock,
            "k PX 9223372036854775807",
            "ERR invalid expire time in 'lock' command, the longest is 60000 ms (locks.max_ttl)",
        ),
        (
            Own::Renew,
            "k EX 61",
            "ERR invalid expire time in 'renew' command, the longest is 60000 ms (locks.max_ttl)",
        ),
        (Own::Lock, "123456789 PX 100", "ERR key is longer than 8 bytes (locks.max_key)"),
        (Own::Unlock, "123456789", "ERR key is longer than 8 bytes (locks.max_key)"),
        (Own::Lock, "k 1234567 PX 100", "ERR token is longer than 6 bytes (locks.max_token)"),
        (Own::Renew, "k 1234567", "ERR token is longer than 6 bytes (locks.max_token)"),
        (Own::Lock, "k WAIT 1.5", "ERR timeout is not an integer or out of range, '1.5' for WAIT"),
        (
            Own::Lock,
            "k WAIT 9223372036854775808",
            "ERR timeout is not an integer or out of range, '9223372036854775808' for WAIT",
        ),
        (Own::Lock, "k WAIT -1", "ERR timeout is negative"),
        (
            Own::Lock,
            "k WAIT 60001",
            "ERR invalid wait time in 'lock' command, the longest is 60000 ms (locks.max_wait)",
        ),
    ];
    for (own, words, error) in cases {
        assert_eq!(read(own, words).unwrap_err().to_string(), error, "{own:?} {words}");
    }
}

#[test]
fn what_was_not_meant_for_a_token_is_none() {
    let cases = [
        (Own::Lock, "job 30000", "'30000' is no token; for a TTL write LOCK job PX 30000"),
        (Own::Renew, "job 300", "'300' is no token; for a TTL write RENEW job PX 300"),
        (Own::Lock, "job 3 WAIT 5", "'3' is no token; for a TTL write LOCK job PX 3"),
        (Own::Lock, "job 5s", "'5s' is no token; for a TTL write LOCK job PX <milliseconds>"),
        (Own::Lock, "job -1", "'-1' is no token; for a TTL write LOCK job PX <milliseconds>"),
        (Own::Lock, "job 1.5H", "'1.5H' is no token; for a TTL write LOCK job PX <milliseconds>"),
        (Own::Renew, "job +9ms", "'+9ms' is no token; for a TTL write RENEW job PX <milliseconds>"),
        (Own::Lock, "job PX", "'PX' is no token; for a TTL write LOCK job PX <milliseconds>"),
        (Own::Lock, "job pxat", "'pxat' is no token; for a TTL write LOCK job PX <milliseconds>"),
        (
            Own::Lock,
            "job Wait",
            "'Wait' is no token; for a limit write LOCK job WAIT <milliseconds>",
        ),
        (Own::Renew, "job nx", "'nx' is no token; LOCK grants none of that name"),
        (Own::Renew, "job shared", "'shared' is no token; LOCK grants none of that name"),
        (Own::Unlock, "job PX", "'PX' is no token; LOCK grants none of that name"),
        (Own::Attach, "job Fence", "'Fence' is no token; LOCK grants none of that name"),
    ];
    for (own, words, error) in cases {
        assert_eq!(read(own, words).unwrap_err().to_string(), format!("ERR {error}"), "{words}");
    }
    for word in NO_TOKENS {
        let word = String::from_utf8_lossy(word).to_ascii_lowercase();
        for own in [Own::Lock, Own::Unlock, Own::Renew, Own::Attach] {
            assert!(read(own, &format!("k {word}")).is_err(), "{own:?} {word}");
        }
        for own in [Own::Mlock, Own::Munlock] {
            assert!(read_many(own, &format!("1 k {word}")).is_err(), "{own:?} {word}");
        }
    }
    let empty = |own: Own, words: &[&[u8]]| {
        let key = full_key(words[0], &config());
        parse(own, &key, words, &config()).unwrap_err().to_string()
    };
    let error = "ERR '' is no token; leave it out, and the proxy makes one";
    assert_eq!(empty(Own::Lock, &[b"k", b""]), error);
    assert_eq!(empty(Own::Lock, &[b"k", b"", b"PX", b"100"]), error);
    let error = "ERR '' is no token; leave it out for the one that this connection was granted";
    assert_eq!(empty(Own::Unlock, &[b"k", b""]), error);
    assert_eq!(empty(Own::Renew, &[b"k", b"", b"PX", b"100"]), error);
    let error = "ERR '' is no token; name the one that LOCK answered";
    assert_eq!(empty(Own::Attach, &[b"k", b""]), error);
    assert_eq!(empty(Own::Lock, &[b"", b"PX", b"100"]), "ERR the key is empty");
    assert_eq!(empty(Own::Unlock, &[b""]), "ERR the key is empty");
}

#[test]
fn lockgates_own_keys_are_out_of_reach() {
    let config = LocksConfig { prefix: String::new(), max_key: 100, ..config() };
    let words = [b"lockgate:fence:x".to_vec(), b"PX".to_vec(), b"100".to_vec()];
    let key = full_key(&words[0], &config);
    assert_eq!(parse(Own::Lock, &key, &words, &config), Err(BadRequest::Reserved));
}

/// The keys on the nodes, and the request.
type ReadMany = Result<(Vec<Key>, Request), BadRequest>;

fn read_many(own: Own, words: &str) -> ReadMany {
    let words: Vec<Vec<u8>> = words.split(' ').map(|w| w.as_bytes().to_vec()).collect();
    check_arity(own, words.len() + 1)?;
    let (keys, rest) = divide(&words)?;
    let full_keys: Vec<Key> = keys.iter().map(|key| full_key(key, &config())).collect();
    let request = parse_many(own, (&full_keys, keys), rest, &config())?;
    Ok((full_keys, request))
}

#[test]
fn the_number_of_keys_says_which_words_are_keys() {
    let keys = |keys: &[&str]| -> Vec<Key> { keys.iter().map(Key::from).collect() };
    let lock = |token: Option<&str>, ttl: Option<u64>, wait: Option<u64>| Request::Lock {
        token: token.map(Token::from),
        ttl: ttl.map(Duration::from_millis),
        wait: wait.map(Duration::from_millis),
    };
    let two = keys(&["lock:a", "lock:b"]);
    assert_eq!(read_many(Own::Mlock, "2 a b"), Ok((two.clone(), lock(None, None, None))));
    assert_eq!(read_many(Own::Mlock, "2 a b t"), Ok((two.clone(), lock(Some("t"), None, None))));
    let all = lock(Some("t"), Some(2000), Some(7));
    assert_eq!(read_many(Own::Mlock, "2 a b t WAIT 7 ex 2"), Ok((two.clone(), all)));
    let words = keys(&["lock:PX", "lock:9"]);
    assert_eq!(read_many(Own::Mlock, "2 PX 9 px 8"), Ok((words, lock(None, Some(8), None))));
    let one = keys(&["lock:2"]);
    assert_eq!(read_many(Own::Mlock, "1 2 PX 9"), Ok((one, lock(None, Some(9), None))));
    let unlock = |token: Option<&str>| Request::Unlock { token: token.map(Token::from) };
    assert_eq!(read_many(Own::Munlock, "2 a b"), Ok((two.clone(), unlock(None))));
    assert_eq!(read_many(Own::Munlock, "2 a b t"), Ok((two, unlock(Some("t")))));
    let most = (1..=MAX_KEYS).map(|n| format!(" k{n}")).collect::<String>();
    let (all, _) = read_many(Own::Mlock, &format!("128{most} t PX 9 WAIT 9")).unwrap();
    assert_eq!(all.len(), MAX_KEYS);
    assert_eq!(format!("MLOCK 128{most} t PX 9 WAIT 9").split(' ').count(), max_words(Own::Mlock));
}

#[test]
fn numbers_of_keys_that_do_not_fit_are_named() {
    let (above, less) = ("ERR numkeys should be greater than 0", "is not");
    let missing =
        "ERR Number of keys can't be greater than number of args, numkeys is 3, and 2 words follow";
    let cases = [
        (Own::Mlock, "2", "ERR wrong number of arguments for 'mlock' command".to_owned()),
        (Own::Munlock, "2", "ERR wrong number of arguments for 'munlock' command".to_owned()),
        (Own::Mlock, "0 a", format!("{above}, '0' {less}")),
        (Own::Mlock, "-1 a", format!("{above}, '-1' {less}")),
        (Own::Munlock, "a b", format!("{above}, 'a' {less}")),
        (Own::Mlock, "1.5 a", format!("{above}, '1.5' {less}")),
        (
            Own::Mlock,
            "99999999999999999999 a",
            "ERR numkeys should be at most 128, '99999999999999999999' is more".to_owned(),
        ),
        (Own::Mlock, "129 a", "ERR numkeys should be at most 128, '129' is more".to_owned()),
        (Own::Mlock, "3 a b", missing.to_owned()),
        (Own::Munlock, "3 a b", missing.to_owned()),
        (Own::Mlock, "3 a b a", "ERR the lock 'a' is named twice".to_owned()),
        (Own::Munlock, "2 a a t", "ERR the lock 'a' is named twice".to_owned()),
        (Own::Mlock, "2 a ", "ERR the key is empty".to_owned()),
        (Own::Mlock, "2 a 123456789", "ERR key is longer than 8 bytes (locks.max_key)".to_owned()),
        (Own::Mlock, "1 a b c", "ERR syntax error, unknown option 'c'".to_owned()),
        (
            Own::Mlock,
            "1 a SHARED",
            "ERR 'SHARED' is no token; LOCK grants none of that name".to_owned(),
        ),
        (Own::Mlock, "1 a t SHARED PX 9", "ERR syntax error, unknown option 'SHARED'".to_owned()),
        (Own::Mlock, "1 a PERMITS 2", "ERR syntax error, unknown option 'PERMITS'".to_owned()),
        (Own::Mlock, "1 a PX 9 EX 1", "ERR syntax error, 'EX' is one option too many".to_owned()),
        (Own::Mlock, "1 a t PX", "ERR syntax error, 'PX' lacks its value".to_owned()),
        (Own::Munlock, "1 a t PX 9", "ERR syntax error, unknown option 'PX'".to_owned()),
        (Own::Mlock, "2 a b 9", "ERR '9' is no token; for a TTL write MLOCK 2 a … PX 9".to_owned()),
        (
            Own::Mlock,
            "1 a wait",
            "ERR 'wait' is no token; for a limit write MLOCK 1 a WAIT <milliseconds>".to_owned(),
        ),
        (
            Own::Mlock,
            "1 a PX 3",
            "ERR invalid expire time in 'mlock' command, the shortest is 4 ms".to_owned(),
        ),
        (
            Own::Mlock,
            "1 a WAIT 60001",
            "ERR invalid wait time in 'mlock' command, the longest is 60000 ms (locks.max_wait)"
                .to_owned(),
        ),
        (
            Own::Munlock,
            "1 a ",
            "ERR '' is no token; leave it out for those that this connection was granted"
                .to_owned(),
        ),
    ];
    for (own, words, error) in cases {
        assert_eq!(read_many(own, words).unwrap_err().to_string(), error, "{own:?} {words}");
    }
}

#[test]
fn permits_are_an_option_of_lock_alone() {
    let permit = |n: usize, token: Option<&str>, ttl: Option<u64>, wait: Option<u64>| {
        let request = Request::Permit {
            n,
            token: token.map(Token::from),
            ttl: ttl.map(Duration::from_millis),
            wait: wait.map(Duration::from_millis),
        };
        Ok((Key::from("lock:k"), request))
    };
    assert_eq!(read(Own::Lock, "k PERMITS 1"), permit(1, None, None, None));
    assert_eq!(read(Own::Lock, "k t permits 256"), permit(256, Some("t"), None, None));
    let all = "k t WAIT 7 PERMITS 3 EX 2";
    assert_eq!(read(Own::Lock, all), permit(3, Some("t"), Some(2000), Some(7)));
    assert_eq!(format!("LOCK {all}").split(' ').count() + 1, max_words(Own::Lock));
    // The longest permit's name must fit too. What only looks like a permit's name is a family's.
    assert!(read(Own::Lock, "123456 PERMITS 10").is_ok());
    for family in ["k#a", "k#", "#3", "k#256", "k#03", "k#-1", "k#3#"] {
        assert!(read(Own::Lock, &format!("{family} PERMITS 2")).is_ok(), "{family}");
    }
    let between = |word: &str| format!("ERR PERMITS should be between 1 and 256, '{word}' is not");
    let cases = [
        ("k PERMITS 0", between("0")),
        ("k PERMITS -1", between("-1")),
        ("k PERMITS 257", between("257")),
        ("k PERMITS 3x", between("3x")),
        ("k PERMITS 9223372036854775808", between("9223372036854775808")),
        ("k permits", "ERR token is longer than 6 bytes (locks.max_token)".to_owned()),
        ("k t PERMITS", "ERR syntax error, 'PERMITS' lacks its value".to_owned()),
        ("k PERMITS 2 PERMITS 2", "ERR syntax error, 'PERMITS' is one option too many".to_owned()),
        ("k PERMITS 2 SHARED", "ERR SHARED and PERMITS exclude each other".to_owned()),
        ("123456 PERMITS 11", "ERR key is longer than 8 bytes (locks.max_key)".to_owned()),
        (
            "k#255 PERMITS 2",
            "ERR 'k#255' is a permit of 'k', and has no permits of its own".to_owned(),
        ),
    ];
    for (words, error) in cases {
        let told = read(Own::Lock, words).unwrap_err().to_string();
        assert_eq!(told, error, "{words}");
    }
    let config = LocksConfig { max_token: 100, ..config() };
    let told = parse(Own::Lock, &Key::from("lock:k"), &["k", "permits"], &config);
    let error = "ERR 'permits' is no token; for one of n permits write LOCK k PERMITS <n>";
    assert_eq!(told.unwrap_err().to_string(), error);
    for (own, words) in [(Own::Unlock, "k t"), (Own::Renew, "k t"), (Own::Attach, "k")] {
        let told = read(own, &format!("{words} PERMITS 2")).unwrap_err().to_string();
        assert!(told.starts_with("ERR "), "{own:?} {told}");
    }
}

#[test]
fn shared_is_an_option_of_lock_without_a_value() {
    let shared = |token: Option<&str>, ttl: Option<u64>, wait: Option<u64>| {
        let request = Request::Shared {
            token: token.map(Token::from),
            ttl: ttl.map(Duration::from_millis),
            wait: wait.map(Duration::from_millis),
        };
        Ok((Key::from("lock:k"), request))
    };
    let config = LocksConfig { shared: true, ..config() };
    let read = |words: &str| -> Result<(Key, Request), BadRequest> {
        let words: Vec<&str> = words.split(' ').collect();
        let key = full_key(words[0].as_bytes(), &config);
        Ok((key.clone(), parse(Own::Lock, &key, &words, &config)?))
    };
    assert_eq!(read("k SHARED"), shared(None, None, None));
    assert_eq!(read("k t shared"), shared(Some("t"), None, None));
    for words in ["k t SHARED EX 2 WAIT 7", "k t EX 2 SHARED WAIT 7", "k t EX 2 WAIT 7 SHARED"] {
        assert_eq!(read(words), shared(Some("t"), Some(2000), Some(7)), "{words}");
    }
    for (words, error) in [
        ("k SHARED SHARED", "ERR syntax error, 'SHARED' is one option too many"),
        ("k t PX SHARED", "ERR syntax error, 'PX' lacks its value"),
        ("k PERMITS 2 SHARED", "ERR SHARED and PERMITS exclude each other"),
        ("k PX SHARED 9", "ERR syntax error, 'PX' lacks its value"),
        ("k t WAIT SHARED 9", "ERR syntax error, 'WAIT' lacks its value"),
        ("k SHARED t", "ERR syntax error, unknown option 't'"),
        ("k SHARED t PX 9", "ERR syntax error, unknown option 't'"),
        ("k t SHARED FOO 1", "ERR syntax error, unknown option 'FOO'"),
    ] {
        assert_eq!(read(words).unwrap_err().to_string(), error, "{words}");
    }
}

#[test]
fn the_files_number_of_permits_counts() {
    let rule = |keys: &str, n| PermitRule { keys: Pattern::new(keys), n };
    let rules = [rule("g:*", 8), rule("g:a", 4)];
    let told = |family: &str, n: usize| {
        check_permits(family.as_bytes(), n, &rules).map_err(|error| error.to_string())
    };
    assert!(told("g:a", 8).is_ok() && told("h:a", 5).is_ok());
    let error = "ERR 'g:a' has 8 permits (locks.permits), PERMITS 4 contradicts that";
    assert_eq!(told("g:a", 4), Err(error.to_owned()), "the first rule counts");
}
