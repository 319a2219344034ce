//! The cases to play: corner cases by hand, and random sequences from a grammar that reaches every state.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{
    Case, Step,
    support::{self, encode},
};

pub(crate) fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

pub(crate) fn commands(all: &[&[&str]]) -> Step {
    Step::Send(support::pipeline(all))
}

pub(crate) fn corner_cases() -> Vec<Case> {
    let long = "z".repeat(70_000);
    let large = "v".repeat(3_000_000);
    let mut all: Vec<(&str, Vec<Step>)> = vec![
        ("ping", vec![send("PING\r\n")]),
        (
            "inline quoting",
            vec![send("SET a \"b\\x41 c\\n\"\r\nGET a\r\nset 'q' 'it\\'s'\nget q\n")],
        ),
        ("inline blank lines", vec![send("\r\n\r\n  \r\n\nPING\r\n")]),
        ("inline unbalanced", vec![send("PING\r\nSET a \"b\r\nPING\r\n")]),
        ("inline unbalanced single", vec![send("SET a 'b'c\r\n")]),
        ("inline long", vec![Step::Send(long.clone().into_bytes()), Step::Read]),
        (
            "inline long word",
            vec![Step::Send(format!("PING {}\r\n", &long[..60_000]).into_bytes())],
        ),
        ("empty commands", vec![send("*0\r\n*-1\r\n*-5\r\n*1\r\n$4\r\nPING\r\n")]),
        ("careless line ends", vec![send("*1\rX$4\rYPINGab*2\r.$4\r.ECHO..$1\r.x..")]),
        ("null bulk argument", vec![send("*2\r\n$4\r\nECHO\r\n$-1\r\n")]),
        ("post", vec![send("POST / HTTP/1.1\r\nHost: x\r\n\r\n")]),
        ("host", vec![send("PING\r\n"), Step::Read, send("Host: x\r\nPING\r\n")]),
        ("get http", vec![send("GET / HTTP/1.1\r\n"), Step::Read, send("Host: x\r\n\r\n")]),
        ("quit", vec![send("PING\r\nQUIT\r\n"), Step::Read]),
        ("behind quit", vec![send("PING\r\nQUIT\r\nLOCK a\r\nCOMMAND INFO lock\r\nPING\r\n")]),
        (
            "a mode up to a zero byte",
            vec![
                commands(&[
                    &["CLIENT", "REPLY", "SKIP\0"],
                    &["SET", "a", "1"],
                    &["CLIENT", "REPLY", "OFF\0and much more than any mode has"],
                    &["SET", "a", "2"],
                    &["CLIENT", "REPLY", "ON\0"],
                    &["GET", "a"],
                ]),
                Step::Read,
                send("CLIENT REPLY \"off\\x00\"\r\nPING\r\nCLIENT REPLY on\r\nPING\r\n"),
            ],
        ),
        ("unknown", vec![commands(&[&["FOO", "bar"], &["CLIENT", "NOSUCH"], &["GET"]])]),
        (
            "select",
            vec![commands(&[
                &["SELECT", "3"],
                &["SET", "a", "1"],
                &["SELECT", "99"],
                &["GET", "a"],
            ])],
        ),
        (
            "multi",
            vec![commands(&[
                &["MULTI"],
                &["SET", "a", "1"],
                &["INCR", "a"],
                &["GET", "a"],
                &["EXEC"],
            ])],
        ),
        (
            "multi error",
            vec![commands(&[&["MULTI"], &["NOSUCH"], &["SET", "a", "1"], &["EXEC"], &["EXEC"]])],
        ),
        (
            "multi nested",
            vec![commands(&[&["MULTI"], &["MULTI"], &["DISCARD"], &["DISCARD"], &["EXEC", "x"]])],
        ),
        (
            "multi runtime error",
            vec![commands(&[
                &["MULTI"],
                &["SET", "a", "x"],
                &["INCR", "a"],
                &["LPUSH", "a", "1"],
                &["EXEC"],
            ])],
        ),
        (
            "watch broken",
            vec![
                commands(&[&["WATCH", "w"], &["GET", "w"]]),
                Step::Read,
                Step::Other(vec!["SET", "w", "1"]),
                commands(&[&["MULTI"], &["GET", "w"], &["EXEC"]]),
            ],
        ),
        (
            "watch kept",
            vec![commands(&[&["WATCH", "w"], &["MULTI"], &["GET", "w"], &["EXEC"], &["UNWATCH"]])],
        ),
        (
            "hello",
            vec![commands(&[
                &["HELLO"],
                &["HELLO", "3"],
                &["HELLO", "2"],
                &["HELLO", "4"],
                &["HELLO", "x"],
                &["PING"],
            ])],
        ),
        (
            "hello 3 types",
            vec![commands(&[
                &["HELLO", "3"],
                &["HSET", "h", "a", "1"],
                &["HGETALL", "h"],
                &["SADD", "s", "x"],
                &["SMEMBERS", "s"],
                &["GET", "none"],
                &["ZADD", "z", "1.5", "m"],
                &["ZSCORE", "z", "m"],
                &["LRANGE", "none", "0", "1"],
                &["DEBUG", "PROTOCOL", "x"],
            ])],
        ),
        (
            "hello auth fails",
            vec![commands(&[
                &["HELLO", "3", "AUTH", "default", "x"],
                &["AUTH", "nobody", "x"],
                &["AUTH", "x"],
                &["PING"],
            ])],
        ),
        (
            "subscribe",
            vec![
                commands(&[
                    &["SUBSCRIBE", "a", "b", "a"],
                    &["UNSUBSCRIBE", "b"],
                    &["PING"],
                    &["GET", "x"],
                    &["PSUBSCRIBE", "p*"],
                ]),
                Step::Read,
                Step::Other(vec!["PUBLISH", "a", "hi"]),
                Step::Read,
                commands(&[&["UNSUBSCRIBE"], &["PUNSUBSCRIBE"], &["PING"]]),
            ],
        ),
        ("subscribe quit", vec![commands(&[&["SUBSCRIBE", "a"], &["QUIT"]])]),
        ("subscribe reset", vec![commands(&[&["SUBSCRIBE", "a"], &["RESET"], &["GET", "a"]])]),
        (
            "subscribe arity",
            vec![commands(&[
                &["SUBSCRIBE"],
                &["PSUBSCRIBE"],
                &["UNSUBSCRIBE"],
                &["PUNSUBSCRIBE", "x", "y"],
                &["PING"],
            ])],
        ),
        ("sharded", vec![commands(&[&["SSUBSCRIBE", "a"], &["SUNSUBSCRIBE"], &["PING"]])]),
        (
            "subscribe resp3",
            vec![commands(&[
                &["HELLO", "3"],
                &["SUBSCRIBE", "a"],
                &["SET", "x", "1"],
                &["PUBLISH", "a", "self"],
                &["UNSUBSCRIBE"],
                &["UNSUBSCRIBE"],
                &["GET", "x"],
            ])],
        ),
        (
            "subscribe resp3 in multi",
            vec![commands(&[
                &["HELLO", "3"],
                &["SUBSCRIBE", "a"],
                &["MULTI"],
                &["PUBLISH", "a", "self"],
                &["SET", "x", "1"],
                &["EXEC"],
                &["GET", "x"],
            ])],
        ),
        (
            "subscribe in multi",
            vec![commands(&[&["MULTI"], &["SUBSCRIBE", "a"], &["EXEC"], &["PING"], &["GET", "x"]])],
        ),
        (
            "reply off",
            vec![commands(&[
                &["SET", "a", "1"],
                &["CLIENT", "REPLY", "OFF"],
                &["SET", "a", "2"],
                &["GET", "a"],
                &["CLIENT", "REPLY", "ON"],
                &["GET", "a"],
            ])],
        ),
        (
            "reply off, and commands that begin alike",
            vec![commands(&[
                &["CLIENT", "REPLY", "OFF"],
                &["GET", "a"],
                &["GET", "b"],
                &["GET", "c"],
                &["CLIENT", "REPLY", "ON"],
                &["CLIENT", "REPLY", "SKIP"],
                &["GET", "a"],
                &["GET", "b"],
                &["GET", "c"],
                &["GET", "d"],
            ])],
        ),
        (
            "reply off reset",
            vec![commands(&[
                &["CLIENT", "REPLY", "OFF"],
                &["SET", "a", "2"],
                &["RESET"],
                &["GET", "a"],
            ])],
        ),
        (
            "reply skip",
            vec![commands(&[
                &["CLIENT", "REPLY", "SKIP"],
                &["GET", "a"],
                &["ECHO", "b"],
                &["CLIENT", "REPLY", "SKIP"],
                &["CLIENT", "REPLY", "SKIP"],
                &["ECHO", "c"],
                &["ECHO", "d"],
            ])],
        ),
        (
            "reply skip on",
            vec![commands(&[
                &["CLIENT", "REPLY", "SKIP"],
                &["CLIENT", "REPLY", "ON"],
                &["ECHO", "d"],
            ])],
        ),
        (
            "reply skip off on",
            vec![commands(&[
                &["CLIENT", "REPLY", "SKIP"],
                &["CLIENT", "REPLY", "OFF"],
                &["ECHO", "d"],
                &["CLIENT", "REPLY", "SKIP"],
                &["CLIENT", "REPLY", "ON"],
                &["ECHO", "e"],
            ])],
        ),
        ("reply skip blank", vec![send("CLIENT REPLY SKIP\r\n\r\nPING\r\n")]),
        (
            "reply bad",
            vec![commands(&[
                &["CLIENT", "REPLY", "MAYBE"],
                &["CLIENT", "REPLY"],
                &["CLIENT", "REPLY", "ON", "x"],
                &["PING"],
            ])],
        ),
        (
            "reply in multi",
            vec![commands(&[
                &["MULTI"],
                &["CLIENT", "REPLY", "OFF"],
                &["GET", "a"],
                &["EXEC"],
                &["PING"],
            ])],
        ),
        (
            "reply off in subscriber",
            vec![commands(&[&["SUBSCRIBE", "a"], &["CLIENT", "REPLY", "OFF"], &["PING"]])],
        ),
        (
            "reply off, subscribe",
            vec![
                commands(&[&["CLIENT", "REPLY", "OFF"], &["SUBSCRIBE", "a"], &["PING"]]),
                Step::Read,
                Step::Other(vec!["PUBLISH", "a", "hi"]),
            ],
        ),
        (
            "reply off, multi",
            vec![commands(&[
                &["CLIENT", "REPLY", "OFF"],
                &["MULTI"],
                &["SET", "a", "1"],
                &["EXEC"],
                &["CLIENT", "REPLY", "ON"],
                &["GET", "a"],
            ])],
        ),
        (
            "reply off, queued on",
            vec![commands(&[
                &["CLIENT", "REPLY", "OFF"],
                &["MULTI"],
                &["CLIENT", "REPLY", "ON"],
                &["GET", "a"],
                &["EXEC"],
                &["PING"],
            ])],
        ),
        (
            "reply skip, hello",
            vec![commands(&[&["CLIENT", "REPLY", "SKIP"], &["HELLO", "3"], &["GET", "none"]])],
        ),
        (
            "reply skip, reset",
            vec![commands(&[&["CLIENT", "REPLY", "SKIP"], &["RESET"], &["PING"]])],
        ),
        (
            "reply skip, multi",
            vec![commands(&[
                &["CLIENT", "REPLY", "SKIP"],
                &["MULTI"],
                &["SET", "a", "1"],
                &["EXEC"],
            ])],
        ),
        (
            "reply skip, subscribe",
            vec![commands(&[&["CLIENT", "REPLY", "SKIP"], &["SUBSCRIBE", "a"], &["PING"]])],
        ),
        (
            "monitor",
            vec![
                commands(&[&["MONITOR"]]),
                Step::Read,
                Step::Other(vec!["SET", "a", "1"]),
                Step::Read,
                commands(&[&["MONITOR"], &["RESET"], &["PING"]]),
            ],
        ),
        (
            "blpop",
            vec![
                commands(&[&["BLPOP", "l", "0"], &["PING"]]),
                Step::Read,
                Step::Other(vec!["RPUSH", "l", "x"]),
            ],
        ),
        ("blpop times out", vec![commands(&[&["BLPOP", "l", "0.05"], &["PING"]])]),
        ("blpop hang up", vec![commands(&[&["BLPOP", "l", "0"]]), Step::Read, Step::HangUp]),
        ("hang up", vec![commands(&[&["SET", "a", "1"], &["GET", "a"]]), Step::HangUp]),
        (
            "hang up in a command",
            vec![send("PING\r\n*2\r\n$4\r\nECHO\r\n$10\r\nabc"), Step::HangUp],
        ),
        ("hang up in a name", vec![send("PING\r\n*2\r\n$4\r\nEC"), Step::HangUp]),
        ("hang up at once", vec![Step::HangUp]),
        ("unfinished", vec![send("*1\r\n$4\r\nPI")]),
        ("unfinished own", vec![send("*2\r\n$4\r\nLOCK\r\n$1\r\n")]),
        ("large", vec![commands(&[&["SET", "a", &large], &["STRLEN", "a"], &["GET", "a"]])]),
        ("large echo", vec![commands(&[&["ECHO", &large], &["ECHO", &long]])]),
        (
            "large list",
            vec![commands(&[
                &["EVAL", "for i=1,5000 do redis.call('RPUSH','l','element '..i) end", "0"],
                &["LRANGE", "l", "0", "-1"],
            ])],
        ),
        (
            "eval",
            vec![commands(&[
                &["EVAL", "return {1,{2,'x',{}},false,redis.status_reply('S')}", "0"],
                &["EVALSHA", "x", "0"],
                &["EVAL", "return redis.call('GET')", "0"],
                &["EVAL", "(", "0"],
            ])],
        ),
        (
            "eval resp3",
            vec![commands(&[
                &["HELLO", "3"],
                &["EVAL", "redis.setresp(3) return {double=1.5}", "0"],
                &["EVAL", "return {map={a=1}}", "0"],
            ])],
        ),
        (
            "object",
            vec![commands(&[
                &["SET", "a", "1"],
                &["OBJECT", "ENCODING", "a"],
                &["OBJECT", "HELP"],
            ])],
        ),
        (
            "command docs",
            vec![commands(&[
                &["COMMAND", "DOCS", "get"],
                &["COMMAND", "INFO", "get", "nosuch"],
                &["CONFIG", "GET", "maxmemory"],
            ])],
        ),
        ("sync refused", vec![commands(&[&["MULTI"], &["SYNC"], &["EXEC"], &["PING"]])]),
        (
            "replconf",
            vec![commands(&[&["REPLCONF", "listening-port", "1"], &["REPLCONF", "x"], &["PING"]])],
        ),
        (
            "tracking",
            vec![
                commands(&[
                    &["HELLO", "3"],
                    &["CLIENT", "TRACKING", "ON", "OPTIN"],
                    &["CLIENT", "CACHING", "YES"],
                    &["GET", "t"],
                ]),
                Step::Read,
                Step::Other(vec!["SET", "t", "1"]),
                Step::Read,
                commands(&[&["GET", "t"]]),
            ],
        ),
        ("asking", vec![commands(&[&["ASKING"], &["READONLY"], &["GET", "a"]])]),
        ("wait", vec![commands(&[&["WAIT", "0", "1"], &["DEBUG", "SLEEP", "0"]])]),
    ];
    let bad = [
        "*01\r\n",
        "*+1\r\n",
        "*1 \r\n",
        "* 1\r\n",
        "*-0\r\n",
        "*x\r\n",
        "*\r\n",
        "*1\r\n:4\r\n",
        "*1\r\nPING\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$+4\r\nPING\r\n",
        "*1\r\n$04\r\nPING\r\n",
        "*1\r\n$ 4\r\nPING\r\n",
        "*1\r\n$\r\n",
        "*1\r\n$x\r\n",
        "*2147483648\r\n",
        "*1\r\n$99999999999\r\n",
        "*1\r\n$9223372036854775808\r\n",
        "*99999999999999999999999\r\n",
        "*2\r\n$4\r\nECHO\r\n$-5\r\n",
        "*2\r\n$4\r\nECHO\r\nx\r\n",
        "*3\r\n$4\r\nLOCK\r\n$-1\r\n",
        "*1\r\n*1\r\n*1\r\n",
        "*1\n$4\nPING\n",
        "*2\r\n$6\r\nCLIENT\r\nx",
        "*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$x\r\n",
        "*1\r\n$536870913\r\n",
        "*2\r\n$4\r\nECHO\r\n$-92233720368547758081\r\n",
    ];
    for text in bad {
        all.push(("malformed", vec![send(text)]));
        all.push((
            "malformed behind",
            vec![send("PING\r\nECHO x\r\n"), send(text), send("PING\r\n")],
        ));
    }
    let cut = |(name, steps): (&'static str, Vec<Step>)| {
        (0..3).map(move |seed| Case { name: name.to_owned(), seed, steps: steps.clone() })
    };
    all.into_iter().flat_map(cut).collect()
}

/// Makes a random sequence from a small grammar that reaches every state.
pub(crate) fn random_case(seed: u64) -> Case {
    sequence(seed, &[0, 1, 10, 100, 20_000], true)
}

/// Makes a random sequence with values of these lengths; with CLIENT REPLY OFF and SKIP only if it may be `mute`.
fn sequence(seed: u64, lengths: &[usize], mute: bool) -> Case {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut steps = Vec::new();
    let mut bytes = Vec::new();
    let mut hidden = false;
    let resp3 = rng.random_bool(0.4);
    if resp3 {
        bytes.extend(encode(&["HELLO", "3"]));
    }
    for _ in 0..rng.random_range(3..25) {
        let key = *["a", "b", "c"].choose(&mut rng).unwrap();
        let value = "x".repeat(*lengths.choose(&mut rng).unwrap());
        let words: &[&str] = match rng.random_range(0..36) {
            0..3 => &["SET", key, &value],
            3..6 => &["GET", key],
            6 => &["INCR", key],
            7 => &["RPUSH", key, "1", "2", &value],
            8 => &["LRANGE", key, "0", "-1"],
            9 => &["HSET", key, "f", &value],
            10 => &["HGETALL", key],
            11 => &["DEL", key],
            12..14 => &["MULTI"],
            14..16 => &["EXEC"],
            16 => &["DISCARD"],
            17 => &["WATCH", key],
            // Only one channel: Redis confirms the end of several in any order.
            18 => &["SUBSCRIBE", "a"],
            19 => &["PSUBSCRIBE", "d*"],
            20 => &["UNSUBSCRIBE"],
            21 => &["PUNSUBSCRIBE"],
            22 => &["UNSUBSCRIBE", key, "a"],
            23 if mute => &["CLIENT", "REPLY", "SKIP"],
            24 if mute => &["CLIENT", "REPLY", "OFF"],
            25 => &["CLIENT", "REPLY", "ON"],
            26 => &["RESET"],
            27 => &["HELLO", if resp3 { "2" } else { "3" }],
            28 => &["EVAL", "return {KEYS[1],{1,2},{ok='fine'}}", "1", key],
            29 => &["NOSUCH", key],
            30 => &["PING"],
            31 => &["AUTH", "nobody", "x"],
            32 => &["SELECT", "1"],
            33 => &["LPOP", key],
            34 => &["MGET", "a", "b", "c"],
            _ => &["ECHO", &value],
        };
        hidden |= words.contains(&"OFF") || words.contains(&"SKIP");
        match rng.random_range(0..12) {
            0 if words.iter().all(|word| !word.is_empty() && !word.contains([' ', '\''])) => {
                bytes.extend(words.join(" ").bytes().chain(*b"\r\n"));
            }
            1 => bytes.extend([b"\r\n".to_vec(), encode(words)].concat()),
            2 => bytes.extend([b"*0\r\n".to_vec(), encode(words)].concat()),
            _ => bytes.extend(encode(words)),
        }
        match rng.random_range(0..10) {
            0 => {
                steps.push(Step::Send(std::mem::take(&mut bytes)));
                steps.push(Step::Read);
            }
            1 => {
                steps.push(Step::Send(std::mem::take(&mut bytes)));
                steps.push(Step::Read);
                steps.push(Step::Other(vec!["PUBLISH", "a", "subscribe"]));
                steps.push(Step::Other(vec!["SET", "b", "other"]));
            }
            _ => {}
        }
    }
    steps.push(Step::Send(bytes));
    match rng.random_range(0..6) {
        0 => steps.push(Step::HangUp),
        // If the error is hidden, it depends on chance when Redis closes.
        1 if !hidden => steps.push(send("*1\r\n$4\r\nPING\r\n*x\r\n")),
        _ => {}
    }
    Case { name: "random".into(), seed, steps }
}

/// Makes a random sequence with a few of its bytes changed, lost, doubled or inserted.
///
/// Values are small: if Redis closes with bytes unread, the kernel sends a reset, which may overtake the error.
/// Sequences are never mute: whether Redis closes after an error that it may not tell depends on whether it still has
/// earlier replies to write, hence on how the packets fell.
pub(crate) fn damaged_case(seed: u64) -> Case {
    const PUT_IN: &[u8] = b"*$:+-\r\n 019\"'\\x\0\xff";
    let mut case = sequence(seed, &[0, 1, 10, 100, 300], false);
    let mut rng = StdRng::seed_from_u64(!seed);
    case.name = "damaged".into();
    for step in &mut case.steps {
        let Step::Send(bytes) = step else { continue };
        for _ in 0..rng.random_range(1..4) {
            // Half of the time near the start, where more bytes follow that can be misread.
            let reach = [bytes.len(), bytes.len().min(40)][rng.random_range(0..2)];
            if reach == 0 {
                continue;
            }
            let at = rng.random_range(0..reach);
            let new = PUT_IN[rng.random_range(0..PUT_IN.len())];
            match rng.random_range(0..5) {
                0 => bytes[at] = new,
                1 => bytes.insert(at, new),
                2 => drop(bytes.remove(at)),
                3 => bytes.insert(at, bytes[at]),
                _ => drop(bytes.drain(at..reach.min(at + 9))),
            }
        }
    }
    case
}
