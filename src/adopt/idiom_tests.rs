use super::{super::redis_tests::RealRedis, *};

/// SET's options, and a word that is none.
const OPTIONS: [&[&[u8]]; 16] = [
    &[b"NX"],
    &[b"xX"],
    &[b"get"],
    &[b"KEEPTTL"],
    &[b"EX", b"100"],
    &[b"px", b"100000"],
    &[b"EXAT", b"33177117420"],
    &[b"PXAT", b"33177117420000"],
    &[b"EX", b"0"],
    &[b"PX", b"-1"],
    &[b"EX", b"ten"],
    &[b"PXAT", b"0"],
    &[b"EX"],
    &[b"nx\0y"],
    &[b"PERSIST"],
    &[b"px\0", b"100000"],
];

#[test]
fn options_exclude_one_another_as_in_redis() {
    let mut real = RealRedis::start();
    let mut lists: Vec<Vec<&[u8]>> = vec![vec![]];
    for length in 1..=3 {
        let longest: Vec<_> = lists.clone();
        for list in longest {
            lists.extend(OPTIONS.iter().map(|option| [&list[..], option].concat()));
        }
        lists.sort();
        lists.dedup();
        assert!(length < 3 || lists.len() > 3000);
    }
    let commands: Vec<Vec<&[u8]>> = lists
        .iter()
        .flat_map(|options| {
            [vec![&b"DEL"[..], b"k"], [&[&b"SET"[..], b"k", b"t"], &options[..]].concat()]
        })
        .collect();
    let replies = real.all(&commands);
    for (words, reply) in commands.iter().zip(replies).skip(1).step_by(2) {
        let found = of_words(words);
        let shown: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
        let error = reply.strip_prefix('-');
        assert_eq!(found.op == Op::Malformed, error.is_some(), "{shown:?}: {reply}");
        assert_eq!(error.unwrap_or(found.error), found.error, "{shown:?}");
    }
}

#[test]
fn what_redis_refuses_is_refused_in_its_words() {
    let mut real = RealRedis::start();
    let texts = [
        "SET k",
        "SET k t PX 0",
        "SET k t PX 0 x",
        "SET k t EX ten NX",
        "SET k t EXAT 9223372036854775807",
        "SETNX k",
        "EXPIRE k",
        "expire k ten",
        "PEXPIRE k",
        "EXPIREAT k",
        "EXPIREAT k 9223372036854775807",
        "PEXPIREAT k",
        "PEXPIREAT k 99999999999999999999",
        "PERSIST k x",
        "get k x",
        "TTL k x",
        "PTTL k x",
        "TYPE k x",
        "STRLEN k x",
    ];
    let commands: Vec<Vec<&[u8]>> =
        texts.iter().map(|text| text.split(' ').map(str::as_bytes).collect()).collect();
    for (text, (words, reply)) in texts.iter().zip(commands.iter().zip(real.all(&commands))) {
        let found = of_words(words);
        assert_eq!(found.op, Op::Malformed, "{text}");
        assert_eq!(format!("-{}", found.error), reply, "{text}");
    }
}

#[test]
fn words_are_taken_for_what_they_are() {
    let seconds = |ttl| Some((ttl, TtlUnit::Seconds));
    let millis = |ttl| Some((ttl, TtlUnit::Millis));
    for (text, op, ttl) in [
        ("SET k t NX PX 30000", Op::Acquire, millis(30000)),
        ("set k t px 30000 nx", Op::Acquire, millis(30000)),
        ("SET k t EX 30 NX NX", Op::Acquire, seconds(30)),
        ("SET k t NX EXAT 33177117420", Op::Acquire, millis(33_177_117_419_993)),
        ("SET k t NX PXAT 10", Op::Acquire, millis(3)),
        ("SET k t PXAT 2 XX", Op::OverwriteHeld, millis(-5)),
        ("SET k t EXAT 1 IFEQ t", Op::Extend, millis(993)),
        ("SET k t NX EXAT 9223372036854775807", Op::Malformed, None),
        ("SET k t NX EXAT -1", Op::Malformed, None),
        ("SET k t NX", Op::AcquireForEver, None),
        ("SET k t NX KEEPTTL", Op::AcquireForEver, None),
        ("SETNX k t", Op::AcquireForEver, None),
        ("SET k t NX GET PX 1", Op::Other, millis(1)),
        ("SET k t XX PX 1", Op::OverwriteHeld, millis(1)),
        ("SET k t", Op::Overwrite, None),
        ("SET k t PX 1", Op::Overwrite, millis(1)),
        ("SET k t XX", Op::Overwrite, None),
        ("SET k t IFEQ t PX 5", Op::Extend, millis(5)),
        ("SET k t EX 5 IFEQ t", Op::Extend, seconds(5)),
        ("SET k t IFEQ t", Op::Persist, None),
        ("SET k t IFEQ other PX 5", Op::Overwrite, millis(5)),
        ("SET k t IFNE x PX 5", Op::Overwrite, millis(5)),
        ("SET k t IFEQ t NX", Op::Malformed, None),
        ("GETSET k t", Op::Overwrite, None),
        ("DEL k", Op::ReleaseBlind, None),
        ("unlink k", Op::ReleaseBlind, None),
        ("DELEX k", Op::ReleaseBlind, None),
        ("DELEX k IFEQ t", Op::Release, None),
        ("DELIFEQ k t", Op::Release, None),
        ("DELEX k IFNE t", Op::Other, None),
        ("EXPIRE k 10", Op::ExtendBlind, seconds(10)),
        ("PEXPIRE k 10", Op::ExtendBlind, millis(10)),
        ("PEXPIREAT k 10", Op::ExtendBlind, millis(3)),
        ("EXPIREAT k -1", Op::ExtendBlind, millis(-1007)),
        ("EXPIREAT k 9223372036854775807", Op::Malformed, None),
        ("EXPIREAT k ten", Op::Malformed, None),
        ("EXPIREAT k 10 GT", Op::Other, millis(9993)),
        ("EXPIRE k 10 NX", Op::Other, None),
        ("EXPIRE k ten", Op::Malformed, None),
        ("EXPIRE k", Op::Malformed, None),
        ("PERSIST k", Op::PersistBlind, None),
        ("GET k", Op::Look, None),
        ("EXISTS k", Op::Look, None),
        ("PTTL k", Op::Look, None),
        ("GET k x", Op::Malformed, None),
        ("HSET k f v", Op::Other, None),
        ("SET k", Op::Malformed, None),
        ("A.COMMAND.WITH.A.LONG.NAME k", Op::Other, None),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let found = of_words(&words).counted_from(|| 7);
        assert_eq!((found.op, found.ttl), (op, ttl), "{text}");
    }
}
