//! Scripts of libraries, known by their digests: what each does, where its token and TTL stand,
//! and what it answers. No body is kept here.

use std::{collections::HashMap, sync::LazyLock};

use super::{
    by_holder::Replies,
    idiom::Op,
    normal::{Normal, TtlUnit},
};
use crate::config::{AdoptScript, ScriptOp, ScriptUnit};

/// A script's SHA-1.
pub(crate) type Digest = [u8; 20];

/// What a script does, and its replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Behaviour {
    /// The idiom.
    pub(crate) op: Op,
    pub(crate) replies: Replies,
}

/// Where an argument stands, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentPlace {
    /// ARGV.
    Argv(usize),
    /// KEYS, where one library puts token and TTL.
    Keys(usize),
}

/// Which of KEYS are locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhichKeys {
    /// The first.
    First,
    /// All.
    All,
}

/// What a script does besides, once it has released its lock.
#[derive(Debug)]
pub(crate) struct Aside {
    /// The words for operators.
    pub(crate) told: &'static str,
    /// The commands for the data node.
    pub(crate) commands: &'static [&'static [AsideWord]],
}

/// A word of such a command.
#[derive(Debug)]
pub(crate) enum AsideWord {
    /// The word itself.
    Text(&'static str),
    /// What the client sent at this place.
    Sent(ArgumentPlace),
    /// Several, without anything between them.
    Joined(&'static [AsideWord]),
}

impl AsideWord {
    /// Returns the word. `argument`: what the client sent at a place. `None`: nothing there.
    pub(crate) fn spell<'a>(
        &self,
        argument: &impl Fn(ArgumentPlace) -> Option<&'a [u8]>,
    ) -> Option<Vec<u8>> {
        match self {
            AsideWord::Text(text) => Some(text.as_bytes().to_vec()),
            AsideWord::Sent(place) => argument(*place).map(<[u8]>::to_vec),
            AsideWord::Joined(words) => {
                let words = words.iter().map(|word| word.spell(argument));
                Some(words.collect::<Option<Vec<_>>>()?.concat())
            }
        }
    }
}

/// A known script.
#[derive(Debug)]
pub(crate) struct Row {
    /// The digest in hexadecimal; empty for a script of the configuration.
    digest: &'static str,
    /// The library that sends the script; empty if that is not known.
    pub(crate) library: &'static str,
    behaviour: Behaviour,
    /// Which of KEYS are locks.
    pub(crate) locks: WhichKeys,
    /// Where the token stands, if there is one.
    pub(crate) token: Option<ArgumentPlace>,
    /// Where the TTL stands, if there is one.
    pub(crate) ttl: Option<(ArgumentPlace, TtlUnit)>,
    /// Whether a TTL of 0 or less takes the lock without a TTL.
    pub(crate) is_for_ever_at_zero: bool,
    /// Values of arguments that give the script another behaviour; the first that matches counts.
    switches: [Option<(usize, &'static str, &'static Behaviour)>; 2],
    /// What the script does besides, on the data node.
    pub(crate) aside: Option<&'static Aside>,
    /// Which argument is the number of the database.
    pub(crate) database: Option<usize>,
    /// Set if the script takes the first free one of its keys: where the name stands that it answers.
    pub(crate) name: Option<ArgumentPlace>,
    /// Whether the library has readers, which share a lock.
    pub(crate) has_readers: bool,
}

impl Row {
    /// Returns what the script does with these ARGV.
    pub(crate) fn behaviour(&self, argv: &[&[u8]]) -> Behaviour {
        let is_set = |(at, value, _): &&(usize, &str, _)| {
            argv.get(at - 1).is_some_and(|argument| *argument == value.as_bytes())
        };
        let set = self.switches.iter().flatten().find(is_set);
        set.map_or(self.behaviour, |(_, _, other)| **other)
    }
}

/// Makes a behaviour with the replies where the key is absent, has this token, has it without a TTL, has another: `+OK`,
/// a number, `nil`, `ms` and `s` for what is left of the TTL.
const fn b(op: Op, replies: [&'static str; 4]) -> Behaviour {
    Behaviour { op, replies: Replies::read(replies) }
}

const RELEASE: Behaviour = b(Op::Release, ["0", "1", "1", "0"]);
const EXTEND: Behaviour = b(Op::Extend, ["0", "1", "1", "0"]);
static ACQUIRE: Behaviour = b(Op::Acquire, ["1", "0", "0", "0"]);
static EXTEND_BY: Behaviour = b(Op::ExtendBy, ["0", "1", "0", "0"]);
static ACQUIRE_OK: Behaviour = b(Op::Acquire, ["+OK", "nil", "nil", "nil"]);
static AGAIN: Behaviour = b(Op::AcquireAgain, ["1", "1", "1", "0"]);
static AGAIN_RQ: Behaviour = b(Op::AcquireAgain, ["1", "2", "2", "0"]);
static AGAIN_OK: Behaviour = b(Op::AcquireAgain, ["+OK", "+OK", "+OK", "nil"]);
static EXTEND_TTL: Behaviour = b(Op::Extend, ["0", "1", "0", "0"]);
static EXTEND_OK: Behaviour = b(Op::Extend, ["nil", "+OK", "+OK", "nil"]);
static AGAIN_MINUS: Behaviour = b(Op::AcquireAgain, ["1", "1", "1", "-1"]);
static LEFT_POTTERY: Behaviour = b(Op::Look, ["0", "ms", "0", "0"]);
static AGAIN_ERROR: Behaviour = b(Op::AcquireAgain, ["+OK", "+OK", "+OK", "error"]);
static RELEASE_ERROR: Behaviour = b(Op::Release, ["+OK", "1", "1", "error"]);
static LEFT_ERROR: Behaviour = b(Op::Look, ["error", "s", "-1", "error"]);
static RELEASE_INVERTED: Behaviour = b(Op::Release, ["1", "0", "0", "1"]);
static EXTEND_INVERTED: Behaviour = b(Op::Extend, ["1", "0", "2", "1"]);
static RESET: Behaviour = b(Op::ReleaseBlind, ["0", "1", "1", "1"]);
static SHERLOCK_FOR_EVER: Behaviour = b(Op::Faulty, ["1", "0", "0", "0"]);
static EXTEND_STATUS: Behaviour = b(Op::Extend, ["0", "+OK", "+OK", "0"]);
static RELEASE_NIL: Behaviour = b(Op::Release, ["nil", "nil", "nil", "nil"]);
static RELEASE_MINUS: Behaviour = b(Op::Release, ["-1", "1", "1", "0"]);
static RELEASE_OK: Behaviour = b(Op::Release, ["nil", "+OK", "+OK", "nil"]);
static LEFT_NIL: Behaviour = b(Op::Look, ["nil", "ms", "0", "nil"]);
static LEFT_MINUS: Behaviour = b(Op::Look, ["-3", "ms", "-1", "-3"]);
static AGAIN_OR_NIL: Behaviour = b(Op::AcquireAgain, ["1", "1", "1", "nil"]);
const EXTEND_OR_NIL: Behaviour = b(Op::Extend, ["nil", "1", "1", "nil"]);
const RELEASE_OR_NIL: Behaviour = b(Op::Release, ["nil", "1", "1", "nil"]);
const SHARE_OR_NIL: Behaviour = b(Op::AcquireShared, ["1", "1", "1", "nil"]);
const IS_MINE: Behaviour = b(Op::Look, ["nil", "1", "1", "nil"]);
static RELEASE_TEXT: Behaviour = b(Op::Release, ["false", "true", "true", "false"]);
static PERSIST: Behaviour = b(Op::Persist, ["0", "1", "1", "0"]);
static LEFT_ANY: Behaviour = b(Op::Look, ["[nil,-2]", "[token,ms]", "[token,-1]", "[token,ms]"]);
pub(super) const FIRST_FREE: Behaviour = b(Op::AcquireFirst, ["place", "nil", "nil", "nil"]);
static JOB: Behaviour = b(Op::Job, ["0", "1", "1", "0"]);

const fn row(digest: &'static str, library: &'static str, behaviour: &Behaviour) -> Row {
    Row {
        digest,
        library,
        behaviour: *behaviour,
        locks: WhichKeys::First,
        token: Some(ArgumentPlace::Argv(1)),
        ttl: None,
        is_for_ever_at_zero: false,
        switches: [None, None],
        aside: None,
        database: None,
        name: None,
        has_readers: false,
    }
}

/// Makes the row of a script with a TTL as its second argument.
const fn timed(
    digest: &'static str,
    library: &'static str,
    behaviour: &'static Behaviour,
    unit: TtlUnit,
) -> Row {
    Row { ttl: Some((ArgumentPlace::Argv(2), unit)), ..row(digest, library, behaviour) }
}

/// Makes locks of all of KEYS.
const fn many(row: Row) -> Row {
    Row { locks: WhichKeys::All, ..row }
}

/// Puts the number of the database before token and TTL. All of KEYS are locks.
const fn in_database(row: Row) -> Row {
    let ttl = match row.ttl {
        Some((_, unit)) => Some((ArgumentPlace::Argv(3), unit)),
        None => None,
    };
    Row { database: Some(1), token: Some(ArgumentPlace::Argv(2)), ttl, ..many(row) }
}

/// Makes the row of a script of a library with readers, by which a lock's token is the second argument, and a TTL the
/// third: the first is the time.
const fn with_readers(digest: &'static str, behaviour: &Behaviour) -> Row {
    let ttl = match behaviour.op {
        Op::Release | Op::Look => None,
        _ => Some((ArgumentPlace::Argv(3), Millis)),
    };
    let token = match behaviour.op {
        Op::Release => ArgumentPlace::Argv(1),
        _ => ArgumentPlace::Argv(2),
    };
    Row { token: Some(token), ttl, has_readers: true, ..row(digest, "Symfony", behaviour) }
}

const fn aside(row: Row, aside: &'static Aside) -> Row {
    Row { aside: Some(aside), ..row }
}

/// Lets a TTL of 0 or less take the lock without a TTL.
const fn or_for_ever(row: Row) -> Row {
    Row { is_for_ever_at_zero: true, ..row }
}

const fn switch(row: Row, at: usize, value: &'static str, other: &'static Behaviour) -> Row {
    let new = Some((at, value, other));
    let switches = match row.switches {
        [None, _] => [new, None],
        [first, _] => [first, new],
    };
    Row { switches, ..row }
}

use TtlUnit::{Millis, Seconds};

const LIST: &str = "pushes to a list that waiters pop from";
const CHANNEL: &str = "publishes on a channel";
const FIRST_KEY: AsideWord = AsideWord::Sent(ArgumentPlace::Keys(1));
const FIRST_ARGUMENT: AsideWord = AsideWord::Sent(ArgumentPlace::Argv(1));
const SECOND_KEY: AsideWord = AsideWord::Sent(ArgumentPlace::Keys(2));
const SECOND_ARGUMENT: AsideWord = AsideWord::Sent(ArgumentPlace::Argv(2));
static SIGNAL: Aside = Aside {
    told: LIST,
    commands: &[
        &[AsideWord::Text("DEL"), SECOND_KEY],
        &[AsideWord::Text("LPUSH"), SECOND_KEY, AsideWord::Text("1")],
        &[AsideWord::Text("PEXPIRE"), SECOND_KEY, SECOND_ARGUMENT],
    ],
};
static EVENT: Aside = Aside {
    told: LIST,
    commands: &[
        &[AsideWord::Text("LPUSH"), SECOND_KEY, AsideWord::Text("1")],
        &[AsideWord::Text("LTRIM"), SECOND_KEY, AsideWord::Text("0"), AsideWord::Text("0")],
    ],
};
static MESSAGE: Aside = Aside {
    told: CHANNEL,
    commands: &[&[AsideWord::Text("PUBLISH"), SECOND_KEY, SECOND_ARGUMENT]],
};
/// Publishes the lock's key, on a channel among the arguments.
static KEY_MESSAGE: Aside =
    Aside { told: CHANNEL, commands: &[&[AsideWord::Text("PUBLISH"), SECOND_ARGUMENT, FIRST_KEY]] };
/// Publishes the lock's key and token as JSON.
static JSON_MESSAGE: Aside = Aside {
    told: CHANNEL,
    commands: &[&[
        AsideWord::Text("PUBLISH"),
        SECOND_KEY,
        AsideWord::Joined(&[
            AsideWord::Text(r#"{ "key": ""#),
            FIRST_KEY,
            AsideWord::Text(r#"", "value": ""#),
            FIRST_ARGUMENT,
            AsideWord::Text(r#"" }"#),
        ]),
    ]],
};

/// All known scripts of libraries. One that names no lock among its KEYS (python-redis-lock's
/// reset_all) never gets here.
#[rustfmt::skip]
static ROWS: [Row; 117] = [
    row("c3f8721cbb97f72bc19e972846bd7aaf91901658", "redis-py", &RELEASE),
    switch(timed("a4e8783852e6b949f9ef3a97212805108459a890", "redis-py", &EXTEND_TTL, Millis),
        3, "0", &EXTEND_BY),
    timed("1cac51482acf5858da00f6d685d68f886cd6b6b2", "redis-py", &EXTEND, Millis),
    timed("411b7c153e0ab3ba59d6d1e36cc7858ebd76f2c5", "celery-redbeat", &EXTEND_TTL, Millis),
    timed("4227fa753143e6f652e2e185d254964b3a7413a5", "RQ", &AGAIN_RQ, Seconds),
    row("4e92fdc63815b3a0a2dd1c1df3694de73607c88d", "redlock-py", &RELEASE),
    row("fc03c85cef965af38f17fef05d68cc66c7d85c96", "redlock (Python)", &RELEASE),
    row("e9b478387d9b08487f964382baf8443e7bd1aeb5", "redlock-ng", &RELEASE),
    timed("20503cb22929c16ca7525d8fd1a5736f023dd629", "redlock-ng", &EXTEND, Millis),
    row("a4aada0b36710970eedaaaeec4a6b7d8c78c4f80", "pottery", &RELEASE),
    timed("ba015a80261b616e7a62d35df0b8e3edbe6c9414", "pottery", &EXTEND, Millis),
    row("f5f7bd3a3aa4a63c507c1155c5ea1219b350d992", "pottery", &LEFT_POTTERY),
    timed("c75a9bf1538efcdb1f383acc3e273c5089d57e58", "aioredlock", &AGAIN_ERROR, Millis),
    row("241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5", "aioredlock", &RELEASE_ERROR),
    row("f908d3f43dbcabc68fc0c9ecaf1fa4a285ecdb0a", "aioredlock", &LEFT_ERROR),
    aside(row("90da91872223f85eb1376a17e3c4df21ace8c54b", "python-redis-lock", &RELEASE_INVERTED), &SIGNAL),
    timed("fed16109024d968d9496e4140fe1355bac05ebff", "python-redis-lock", &EXTEND_INVERTED, Seconds),
    Row { token: None, ..aside(row("afbc8014508f92e446b56567e8ba600e811c1bd5", "python-redis-lock", &RESET), &SIGNAL) },
    switch(timed("7bcdefae3714859f68f1f2377bddae74a1af9391", "sherlock", &ACQUIRE, Seconds),
        2, "-1", &SHERLOCK_FOR_EVER),
    row("bfb9f817b2e860fe4fc58656b2bf657d3fdc2be1", "sherlock", &RELEASE),
    timed("8a7fdef25bdef981900f982f5773edaf35000372", "sherlock", &EXTEND, Seconds),
    row("ea535b5ce831428455ea063dc10eadacff025884", "coredis", &RELEASE),
    timed("e03e083d81632b90688e6621ceb7b922dea67c5d", "coredis", &EXTEND_BY, Millis),
    row("ae3671744a5dbb24ea37ef607b8b10ac7856d43e", "aiocache", &RELEASE),
    row("b948f76fda6b97319d3426a2fb42b0d4f02c7146", "cashews", &RELEASE),
    or_for_ever(timed("d893d8da0844b834c9c5a41fb79b469749e6f442", "walrus", &ACQUIRE, Millis)),
    aside(row("758ee2fc57c84a93a25cd712f592a1b4898d6c03", "walrus", &RELEASE), &EVENT),
    row("e63c1bdcff89893c1242d737ef2971b3f2f9ea96", "redis-lock-py", &RELEASE),
    aside(row("3ee65fe8cbb7be7badd45039a1eb0861cfa89286", "redis-lock-py", &RELEASE), &MESSAGE),
    timed("7a1e2313543c636a6197704ea9dac88eceb31444", "redis-lock-py", &EXTEND_BY, Seconds),
    many(timed("e5a322e2634ef59a516e8ea150cb085afafee684", "node-redlock 4", &ACQUIRE, Millis)),
    many(row("0f0f23b9048b36752b5be114f357ba083449f908", "node-redlock 4", &RELEASE)),
    many(timed("ce46f80993d5dac20dd066eb301a4e37994bdbed", "node-redlock 4", &EXTEND, Millis)),
    many(timed("96da70f7716f27d278a5218544df37fd8b0a5e4c", "node-redlock 5", &ACQUIRE, Millis)),
    many(row("e4612211c9f8f51c257e26e056b0a654b3187242", "node-redlock 5", &RELEASE)),
    many(timed("aed6f382e410db8ba7926d4e5e9aab410bf2a78a", "node-redlock 5", &EXTEND, Millis)),
    timed("862f31bf38e9b63ce28d6e9e5143551bb34ef981", "node-redlock 3", &ACQUIRE_OK, Millis),
    row("cf0e94b2e9ffc7e04395cf88f7583fc309985910", "node-redlock 3 or redislock (Go)", &RELEASE),
    timed("a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf", "node-redlock 3 or redislock (Go)", &EXTEND, Millis),
    in_database(timed("1b77b94aa78451d55dfa97e18819bfbfc596cb5b", "@sesamecare-oss/redlock", &ACQUIRE, Millis)),
    in_database(row("df51f6837dcfe303d334e6abea9aeae192bab216", "@sesamecare-oss/redlock", &RELEASE)),
    in_database(timed("820e9778d2b6733e9ed771e4be90ae73a95a6f3b", "@sesamecare-oss/redlock", &EXTEND, Millis)),
    row("7157921a7cc7cfba979acf6d63f073151df17d12", "redis-semaphore", &RELEASE),
    timed("594683e49a64ebaf975caf5f8079a1d097c438f1", "redis-semaphore", &EXTEND, Millis),
    row("fd83166fb3d7235e3ace652b700c9e217c1adc1f", "redlock-universal", &RELEASE),
    timed("e218d686a8f90368e5cd45074f06ce766cad9987", "redlock-universal", &EXTEND, Millis),
    row("4dbb87cd80182f627d42cf6042188ecf00a1ff12", "ioredis-lock", &RELEASE),
    row("da225123b2af4a41136fdba7ffac1e045e344da1", "@microfleet/ioredis-lock", &RELEASE),
    timed("50f5ab4d38adaf78b662a67356cf1fe302b3e00f", "ioredis-lock", &EXTEND, Millis),
    timed("bf3108245472c550b02852e1e425128e5eb399c4", "@microfleet/ioredis-lock", &EXTEND, Millis),
    row("0a87223fb92fcc2308021a1b6da07197448b6402", "@verrou/core or @chat-adapter", &RELEASE),
    timed("3950eadb2785a5afcc0daf9e56adc0bbd14017a4", "@verrou/core or @chat-adapter", &EXTEND, Millis),
    row("b6a796aa8d73bb4ce6e26afe648196d086a8d1f1", "redislock (npm)", &RELEASE),
    timed("b8781a7c50e72ae869ca41c3fe9f504e365f3881", "redislock (npm)", &EXTEND, Millis),
    row("5cc368fb92acd8fee3a986dc8e971d6cf28c3b44", "node-redis-warlock", &RELEASE),
    Row {
        token: Some(ArgumentPlace::Keys(3)),
        ttl: Some((ArgumentPlace::Keys(2), Millis)),
        ..row("78d3bb55c589f1b2edf66f3527f5017f8dfcd6bb", "node-redis-warlock", &EXTEND_STATUS)
    },
    timed("4181d5af82ff00f12fe8f2952fed7db5774fc369", "murlock", &AGAIN, Millis),
    row("36c51548bc94e82390cca93961e4cfcd20a2c1f7", "murlock", &RELEASE),
    // `*` is the token of all clients that give none, and so no holder's.
    or_for_ever(switch(switch(timed("0eafb65e6aa537bcc966e2af2a66dc7f3f66e121", "@medusajs/locking-redis", &AGAIN, Seconds),
        3, "true", &ACQUIRE), 1, "*", &ACQUIRE)),
    row("a0b59436cc046114766453c42adbb4c9c62ca99c", "@medusajs/locking-redis", &RELEASE),
    timed("4294933f08f20c8eba99ef809315810389dfb0a3", "@medusajs/locking-redis", &EXTEND, Seconds),
    row("59bc3e108ef7f99b02996a98489960c0edcc9945", "@upstash/lock", &RELEASE),
    timed("459cfa2e6c93bad7aa427b850f346bf836b2002d", "@upstash/lock", &EXTEND_BY, Seconds),
    aside(row("02718596825c5bf6c57af391b4dc01a6d2d9d88a", "simple-redis-mutex", &RELEASE_NIL), &JSON_MESSAGE),
    many(timed("72c682f803c16e52907ef702e4fc696ba57f0009", "@redis-kit/lock", &ACQUIRE, Millis)),
    many(row("38ad3f653a96ee41b8682a9d7f8bb30ea7840dfd", "@redis-kit/lock", &RELEASE)),
    many(timed("f52279a283865ecc0df2be6106ebd28746886112", "@redis-kit/lock", &EXTEND, Millis)),
    row("7ece82993bd7604131328c7d69ae15c31b8e237e", "BullMQ", &JOB),
    row("e950836ed1e694540c503ef9972b8de518044d3b", "redsync", &RELEASE_MINUS),
    timed("d75bb8b5bd13532ddedd17762e772346e39b321e", "redsync", &EXTEND, Millis),
    timed("b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79", "redsync", &AGAIN, Millis),
    many(Row {
        ttl: Some((ArgumentPlace::Argv(3), Millis)),
        ..row("eb0c00d98f6f33b4262419a509002884540f30be", "redislock (Go)", &AGAIN_OK)
    }),
    many(row("9470c810040e272ee6c579d8d4331aaf6332a7b1", "redislock (Go)", &RELEASE_OK)),
    many(timed("5a22d7e8431313862816d4416b5e46dd70fc340d", "redislock (Go)", &EXTEND_OK, Millis)),
    many(row("66e1084c2d842a7e8c271925aae90219fac4e129", "redislock (Go)", &LEFT_NIL)),
    Row {
        ttl: Some((ArgumentPlace::Argv(3), Millis)),
        ..row("80a1b5f2cfccec3b7119ba7721d2127682b691a7", "redislock (Go)", &AGAIN_OK)
    },
    row("6484da7d58920897fdc22b7f9afd1a3d47524ea8", "redislock (Go)", &LEFT_MINUS),
    row("daf86bbf8740dd3ca86733367a016364b2110627", "rslock", &RELEASE),
    timed("17a49af0c4b1a9034503fa84f3570f5ca76c4cbf", "rslock", &EXTEND, Millis),
    row("544c68b7ffd46e5d7ccc58a27204557efba43310", "redlock (Rust)", &RELEASE),
    timed("175897a4e379e99e79a54937be09226f76cdcfe5", "Spring Integration", &AGAIN_OR_NIL, Millis),
    row("f0f9038aa2b6d6c3436c72d147573ea2a58f0ef2", "Spring Integration", &RELEASE_OR_NIL),
    aside(row("7a71e9443a2a41539fb115a5a27d5a748a871aed", "Spring Integration", &RELEASE_OR_NIL), &KEY_MESSAGE),
    timed("879e0f7b8d83c3266d4e996627438c05dbda0b89", "Spring Integration", &EXTEND_OR_NIL, Millis),
    row("194f3902b2dd08557818d09fc2e7682d91480e53", "ShedLock", &RELEASE),
    timed("67256370c2d1c87e2250898075542b1a7fa5b917", "ShedLock", &EXTEND, Millis),
    timed("7ea1efbea425b62e6593f238a6c18bf25907dbd9", "lock4j", &ACQUIRE_OK, Millis),
    row("8346c71009ae4c895ff1757a6743ec825a38b42d", "lock4j", &RELEASE_TEXT),
    timed("86b4fe869d9cbdd1d98fbd1a558026fd419f7ce5", "lock4j", &EXTEND, Millis),
    row("18b2a577dbe847b16bebde190d69a1613d68e60e", "RedLock.net", &RELEASE),
    row("cb0427378f700ddb2f0e9394dbb0a40bd6dba04a", "RedLock.net", &RELEASE),
    timed("9f614a785a5f9ae8c6396c6b4bf94d2087342603", "RedLock.net", &AGAIN_MINUS, Millis),
    timed("3e7c6bf3e080bb97a92e77362149c26252b98212", "RedLock.net", &AGAIN_MINUS, Millis),
    row("2e47b373b4dbd63ee966d2eb9fe24ed6a138ad4e", "Medallion", &RELEASE),
    timed("e95849a1757fe494b3c802dc09b717d0c074eb21", "Medallion", &EXTEND, Millis),
    row("647c65a442733a1aa440f99908d249d13b4d6c4a", "Laravel", &RELEASE),
    row("a50243715157b186c5162c69e02eff3bf0c7994a", "Laravel", &RELEASE),
    switch(timed("d5f94f1848f0c54fff99d99dbc4d54184a157c02", "Laravel", &EXTEND, Seconds),
        2, "0", &PERSIST),
    timed("a08c9c69b7c07ae2485190873b90d128a23e502d", "Laravel", &ACQUIRE_OK, Seconds),
    Row {
        token: Some(ArgumentPlace::Argv(3)),
        name: Some(ArgumentPlace::Argv(1)),
        ..many(timed("420ca604de4310d8301943a71390ee669720d640", "Laravel", &FIRST_FREE, Seconds))
    },
    timed("81523960da32c1f15ecab9f1f0fae74f7e943d07", "Symfony 5.1 or older", &AGAIN, Millis),
    row("bec85b1c518b7ba0348a49c79b24adbb1ca95d3b", "Symfony 5.1 or older, or redlock-php", &RELEASE),
    timed("ae948f48c8da9feb2e215c474a412c605d33ff30", "Symfony 5.1 or older", &EXTEND, Millis),
    // Of each but the release there are two: by the clock of Redis, and by the client's.
    with_readers("6fdee501a3714553b74c0d67687b921b90b05d18", &AGAIN_OR_NIL),
    with_readers("abdbb1413a25737fc4cfb9cf79ace1a22dad6ab3", &AGAIN_OR_NIL),
    with_readers("b5745b5be27d9033eb5d3eb254df2faf502b88df", &SHARE_OR_NIL),
    with_readers("dee54f77398d3c6d122b4111f3af8ccf1a93ac93", &SHARE_OR_NIL),
    with_readers("63be12a3515941092212f15c08327d60916de9fa", &EXTEND_OR_NIL),
    with_readers("fe7bee082a8220c6b621ace999a1ab57c4ab5145", &EXTEND_OR_NIL),
    with_readers("a70f7f5087a0cb2c2c9ca50d1f64e234c2628f0c", &RELEASE_OR_NIL),
    with_readers("3b6bdbbe16f821f49177b16c7707f331f015a779", &IS_MINE),
    with_readers("e27f94ac94f5d96f23f2e8697462233b6349a566", &IS_MINE),
    row("d220654d7721ae520b15ed0e24a4cc97024efa08", "php-lock", &RELEASE),
    switch(timed("ceb2b2062e40c51a2b3963fd078bc71f11bdc65c", "redlock-rb", &AGAIN_OK, Millis),
        3, "no", &EXTEND_OK),
    row("8e4905cee18e7c3188d10f2b8b170e403baed34f", "redlock-rb", &RELEASE),
    Row { token: None, ..row("78d2ca48a6dc9ef6892059792a3a0c5237733d64", "redlock-rb", &LEFT_ANY) },
    row("b70c2384248f88e6b75b9f89241a180f856ad852", "Redis's documentation", &RELEASE),
];

/// Returns the row of the script with this digest.
pub(crate) fn by_digest(digest: &Digest) -> Option<&'static Row> {
    static BY_DIGEST: LazyLock<HashMap<Digest, &'static Row>> = LazyLock::new(|| {
        ROWS.iter().filter_map(|row| Some((read(row.digest.as_bytes())?, row))).collect()
    });
    BY_DIGEST.get(digest).copied()
}

/// Reads a digest as EVALSHA has it: 40 hexadecimal digits in any case.
pub(crate) fn read(text: &[u8]) -> Option<Digest> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut digest = Digest::default();
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(digest)
}

/// Writes a digest as Redis does.
pub(crate) fn hexadecimal(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns what a compare-and-delete or a compare-and-expire does, as a row would say it: its
/// behaviour, and the places of token and TTL.
pub(crate) fn of_normal(normal: Normal) -> (Behaviour, usize, Option<(usize, TtlUnit)>) {
    match normal {
        Normal::Release { token, is_nil } => {
            (if is_nil { RELEASE_OR_NIL } else { RELEASE }, token, None)
        }
        Normal::Extend { token, ttl, unit, is_nil, .. } => {
            (if is_nil { EXTEND_OR_NIL } else { EXTEND }, token, Some((ttl, unit)))
        }
    }
}

/// Returns the row of a script that the configuration describes.
pub(super) fn of_configured(script: &AdoptScript) -> Row {
    let op = match script.op {
        ScriptOp::Acquire => Op::Acquire,
        ScriptOp::AcquireReentrant => Op::AcquireAgain,
        ScriptOp::Release => Op::Release,
        ScriptOp::Extend => Op::Extend,
        ScriptOp::ExtendBy => Op::ExtendBy,
    };
    let unit = match script.unit {
        ScriptUnit::Millis => Millis,
        ScriptUnit::Seconds => Seconds,
    };
    Row {
        token: Some(ArgumentPlace::Argv(script.token)),
        ttl: script.ttl.map(|ttl| (ArgumentPlace::Argv(ttl), unit)),
        ..row("", "", &b(op, script.replies))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_digest_is_whole_and_there_once() {
        let digests: HashSet<Digest> =
            ROWS.iter().map(|row| read(row.digest.as_bytes()).expect(row.digest)).collect();
        assert_eq!(digests.len(), ROWS.len());
        for row in &ROWS {
            assert_eq!(row.digest, row.digest.to_ascii_lowercase());
            let found = by_digest(&read(row.digest.to_uppercase().as_bytes()).unwrap()).unwrap();
            assert_eq!(found.digest, row.digest);
            assert!(!row.library.is_empty());
        }
    }

    #[test]
    fn digests_are_read_as_evalsha_reads_them() {
        for bad in ["", "c3", "c3f8721cbb97f72bc19e972846bd7aaf9190165g", &"a".repeat(42)] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn an_argument_may_make_another_behaviour_of_a_script() {
        let digest = read(b"a4e8783852e6b949f9ef3a97212805108459a890").unwrap();
        let extend = by_digest(&digest).unwrap();
        assert_eq!(extend.behaviour(&[b"t", b"10", b"0"]).op, Op::ExtendBy);
        assert_eq!(extend.behaviour(&[b"t", b"10", b"1"]).op, Op::Extend);
        assert_eq!(extend.behaviour(&[b"t", b"10"]).op, Op::Extend);
    }
}
