//! Which commands go on a shared connection.
//!
//! Only what is known to leave nothing behind in its connection is shared: the names are a positive list. All else
//! gets its client a connection of its own.

use super::share_metrics::PinCause;

/// Commands that have one reply, do not block, and leave nothing behind in the connection, in capitals and in order.
/// By the command tables of Redis 2.8 to 7.4: none is flagged as blocking or `no_multi`. PUBLISH and PUBSUB are of
/// pub/sub and subscribe to nothing.
const SHARED: &[&str] = &[
    "ACL",
    "APPEND",
    "BGREWRITEAOF",
    "BGSAVE",
    "BITCOUNT",
    "BITFIELD",
    "BITFIELD_RO",
    "BITOP",
    "BITPOS",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "COPY",
    "DBSIZE",
    "DECR",
    "DECRBY",
    "DEL",
    "DUMP",
    "ECHO",
    "EVAL",
    "EVALSHA",
    "EVALSHA_RO",
    "EVAL_RO",
    "EXISTS",
    "EXPIRE",
    "EXPIREAT",
    "EXPIRETIME",
    "FCALL",
    "FCALL_RO",
    "FLUSHALL",
    "FLUSHDB",
    "GEOADD",
    "GEODIST",
    "GEOHASH",
    "GEOPOS",
    "GEORADIUS",
    "GEORADIUSBYMEMBER",
    "GEORADIUSBYMEMBER_RO",
    "GEORADIUS_RO",
    "GEOSEARCH",
    "GEOSEARCHSTORE",
    "GET",
    "GETBIT",
    "GETDEL",
    "GETEX",
    "GETRANGE",
    "GETSET",
    "HDEL",
    "HEXISTS",
    "HEXPIRE",
    "HEXPIREAT",
    "HEXPIRETIME",
    "HGET",
    "HGETALL",
    "HINCRBY",
    "HINCRBYFLOAT",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HMSET",
    "HPERSIST",
    "HPEXPIRE",
    "HPEXPIREAT",
    "HPEXPIRETIME",
    "HPTTL",
    "HRANDFIELD",
    "HSCAN",
    "HSET",
    "HSETNX",
    "HSTRLEN",
    "HTTL",
    "HVALS",
    "INCR",
    "INCRBY",
    "INCRBYFLOAT",
    "INFO",
    "KEYS",
    "LASTSAVE",
    "LATENCY",
    "LCS",
    "LINDEX",
    "LINSERT",
    "LLEN",
    "LMOVE",
    "LMPOP",
    "LOLWUT",
    "LPOP",
    "LPOS",
    "LPUSH",
    "LPUSHX",
    "LRANGE",
    "LREM",
    "LSET",
    "LTRIM",
    "MEMORY",
    "MGET",
    "MSET",
    "MSETNX",
    "OBJECT",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PEXPIRETIME",
    "PFADD",
    "PFCOUNT",
    "PFMERGE",
    "PING",
    "PSETEX",
    "PTTL",
    "PUBLISH",
    "PUBSUB",
    "RANDOMKEY",
    "RENAME",
    "RENAMENX",
    "RESTORE",
    "ROLE",
    "RPOP",
    "RPOPLPUSH",
    "RPUSH",
    "RPUSHX",
    "SADD",
    "SCAN",
    "SCARD",
    "SDIFF",
    "SDIFFSTORE",
    "SET",
    "SETBIT",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "SINTER",
    "SINTERCARD",
    "SINTERSTORE",
    "SISMEMBER",
    "SLOWLOG",
    "SMEMBERS",
    "SMISMEMBER",
    "SMOVE",
    "SORT",
    "SORT_RO",
    "SPOP",
    "SPUBLISH",
    "SRANDMEMBER",
    "SREM",
    "SSCAN",
    "STRLEN",
    "SUBSTR",
    "SUNION",
    "SUNIONSTORE",
    "TIME",
    "TOUCH",
    "TTL",
    "TYPE",
    "UNLINK",
    "XACK",
    "XADD",
    "XAUTOCLAIM",
    "XCLAIM",
    "XDEL",
    "XGROUP",
    "XINFO",
    "XLEN",
    "XPENDING",
    "XRANGE",
    "XREVRANGE",
    "XSETID",
    "XTRIM",
    "ZADD",
    "ZCARD",
    "ZCOUNT",
    "ZDIFF",
    "ZDIFFSTORE",
    "ZINCRBY",
    "ZINTER",
    "ZINTERCARD",
    "ZINTERSTORE",
    "ZLEXCOUNT",
    "ZMPOP",
    "ZMSCORE",
    "ZPOPMAX",
    "ZPOPMIN",
    "ZRANDMEMBER",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZRANGESTORE",
    "ZRANK",
    "ZREM",
    "ZREMRANGEBYLEX",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYSCORE",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
    "ZREVRANK",
    "ZSCAN",
    "ZSCORE",
    "ZUNION",
    "ZUNIONSTORE",
];
/// The length of the longest name in [`SHARED`].
const LONGEST: usize = 20;

/// What becomes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It goes on a link.
    Share,
    /// It goes on a link as the only one: others' commands would wait as long as it blocks.
    Alone,
    /// It says who the client is, or which database it wants: [`super::greeter`] asks for it.
    Greet,
    /// It leaves state in a connection unless the data node refuses it, as Redis does: [`super::greeter`] tries it. If
    /// it is accepted, the client gets a connection of its own.
    Try,
    /// SELECT: of the database that the client has it shares; before all other commands it is a greeting.
    Select,
    /// QUIT is answered here, and ends no link.
    Quit,
    /// It may have to end a script during which the data node takes little else: the client gets a connection of its
    /// own, on which this comes first.
    Kill,
    /// The client gets a connection of its own.
    Pin(PinCause),
}

/// Decides by a command's first two words.
pub(super) fn treatment(name: &[u8], second: Option<&[u8]>) -> Treatment {
    let mut capitals = [0; LONGEST];
    let Some(capitals) = capitals.get_mut(..name.len()) else {
        return Treatment::Pin(PinCause::Other);
    };
    capitals.copy_from_slice(name);
    capitals.make_ascii_uppercase();
    let name: &[u8] = capitals;
    if SHARED.binary_search_by(|shared| shared.as_bytes().cmp(name)).is_ok() {
        return Treatment::Share;
    }
    let is = |word: &str| second.is_some_and(|second| second.eq_ignore_ascii_case(word.as_bytes()));
    let cause = match name {
        b"AUTH" | b"HELLO" => return Treatment::Greet,
        b"CLIENT" if is("SETNAME") || is("SETINFO") => return Treatment::Greet,
        // redis-py and node-redis send it at once, by default.
        b"CLIENT" if is("MAINT_NOTIFICATIONS") => return Treatment::Try,
        b"SELECT" => return Treatment::Select,
        b"QUIT" => return Treatment::Quit,
        // They wait for what this connection has written, so they must go where that went.
        b"WAIT" | b"WAITAOF" => return Treatment::Alone,
        b"SCRIPT" if is("LOAD") || is("EXISTS") || is("FLUSH") => return Treatment::Share,
        b"FUNCTION"
            if ["LOAD", "DELETE", "FLUSH", "LIST", "DUMP", "RESTORE", "STATS"]
                .into_iter()
                .any(is) =>
        {
            return Treatment::Share;
        }
        b"SCRIPT" | b"FUNCTION" if is("KILL") => return Treatment::Kill,
        b"SHUTDOWN" => return Treatment::Kill,
        b"CLIENT" => PinCause::Client,
        b"MULTI" | b"WATCH" => PinCause::Transaction,
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"MONITOR" => PinCause::PubSub,
        b"BLPOP" | b"BRPOP" | b"BRPOPLPUSH" | b"BLMOVE" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BZMPOP" | b"XREAD" | b"XREADGROUP" => PinCause::Blocking,
        _ => PinCause::Other,
    };
    Treatment::Pin(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert!(SHARED.is_sorted() && SHARED.iter().all(|name| name.len() <= LONGEST));
        for name in SHARED {
            assert_eq!(treatment(name.to_lowercase().as_bytes(), None), Treatment::Share, "{name}");
        }
        for (words, wanted) in [
            (("client", Some("SetName")), Treatment::Greet),
            (("CLIENT", Some("ID")), Treatment::Pin(PinCause::Client)),
            (("CLIENT", Some("maint_notifications")), Treatment::Try),
            (("CLIENT", None), Treatment::Pin(PinCause::Client)),
            (("script", Some("load")), Treatment::Share),
            (("script", Some("KILL")), Treatment::Kill),
            (("function", Some("kill")), Treatment::Kill),
            (("FUNCTION", Some("LIB")), Treatment::Pin(PinCause::Other)),
            (("Multi", None), Treatment::Pin(PinCause::Transaction)),
            (("GET\0", None), Treatment::Pin(PinCause::Other)),
            (("", None), Treatment::Pin(PinCause::Other)),
            (("GEORADIUSBYMEMBER_ROW", None), Treatment::Pin(PinCause::Other)),
        ] {
            let (name, second) = words;
            assert_eq!(treatment(name.as_bytes(), second.map(str::as_bytes)), wanted, "{words:?}");
        }
    }
}
