//! Scripts that are played to both twins: sequences of commands that reach every state, and bytes that are not
//! commands.
//!
//! Scripts leave out what may differ between any two connections: the time, chance, ids. Commands that both twins
//! refuse their users need not be left out.

use arbitrary::{Result, Unstructured};
use lockgate::resp::encode;

/// One step of a script. It ends when Redis has nothing more to say.
#[derive(Debug)]
pub enum Part {
    /// Bytes for Redis itself, and for the twin behind the proxy.
    Send(Vec<u8>, Vec<u8>),
    /// A command of another client, which is connected straight to each Redis.
    Other(&'static [&'static str]),
}

/// The script of one client.
#[derive(Debug)]
pub struct Script {
    pub parts: Vec<Part>,
    /// How its bytes are cut into pieces.
    pub seed: u64,
}

/// Bytes that are no command.
const BLANKS: [&str; 4] = ["\r\n", "*0\r\n", "*-1\r\n", " \t\n"];
const KEYS: [&str; 3] = ["a", "b", "c"];
/// The most bytes of a script with an error or QUIT in it. If Redis closes with bytes unread, the kernel sends a
/// reset, which may overtake the error.
const MOST_BYTES: usize = 4000;
const LENGTHS: [usize; 6] = [0, 1, 10, 60, 300, 20_000];

impl Script {
    /// Reads a script from any bytes. Returns `None` if it has something that cannot be compared. `unique` is part of
    /// each lock's name, so that scripts share no locks.
    pub fn read(input: &[u8], unique: u64) -> Option<Script> {
        let mut data = Unstructured::new(input);
        let seed = data.arbitrary::<u16>().unwrap_or_default().into();
        let parts = match data.int_in_range(0..=3).unwrap_or_default() {
            0 | 1 => commands_and_bytes(&mut data),
            2 => muted(&mut data),
            _ => with_locks(&mut data, unique),
        };
        Some(Script { parts: parts.ok()?.filter(|parts| !parts.is_empty())?, seed })
    }
}

fn both(bytes: Vec<u8>) -> Part {
    Part::Send(bytes.clone(), bytes)
}

/// Makes a command that is allowed in any state.
fn command(data: &mut Unstructured<'_>, resp3: bool, most: usize) -> Result<Vec<Vec<u8>>> {
    let (key, other) = (*data.choose(&KEYS)?, *data.choose(&KEYS)?);
    let length = *data.choose(&LENGTHS)?;
    let value = "x".repeat(length.min(most));
    let words: &[&str] = match data.int_in_range(0..=35)? {
        0 => &["PING"],
        1 => &["SET", key, &value],
        2 => &["GET", key],
        3 => &["INCR", key],
        4 => &["RPUSH", key, "1", &value],
        5 => &["LRANGE", key, "0", "-1"],
        6 => &["HSET", key, "f", &value],
        7 => &["HGETALL", key],
        8 => &["DEL", key],
        9 => &["MULTI"],
        10 => &["EXEC"],
        11 => &["DISCARD"],
        12 => &["WATCH", key],
        13 => &["SUBSCRIBE", "a"],
        14 => &["PSUBSCRIBE", "d*"],
        15 => &["UNSUBSCRIBE"],
        16 => &["PUNSUBSCRIBE"],
        17 => &["UNSUBSCRIBE", key, "a"],
        18 => &["CLIENT", "REPLY", "ON"],
        19 => &["RESET"],
        20 => &["HELLO", if resp3 { "2" } else { "3" }],
        21 => &["EVAL", "return {KEYS[1],{1,2},{ok='fine'},false}", "1", key],
        22 => &["NOSUCH", key, &value],
        23 => &["AUTH", "nobody", "x"],
        24 => &["SELECT", "1"],
        25 => &["LPOP", key, "1"],
        26 => &["MGET", "a", "b", "c"],
        27 => &["ECHO", &value],
        28 => &["PUBLISH", "a", other],
        29 => &["SUBSCRIBE"],
        30 => &["EXEC", "x"],
        31 => &["MONITOR"],
        32 => &["SYNC"],
        33 => &["REPLCONF", "x", "y"],
        34 => &["ASKING"],
        _ => &["CLIENT", "REPLY", "MAYBE"],
    };
    Ok(words.iter().map(|word| word.as_bytes().to_vec()).collect())
}

/// Appends a command as an array, perhaps behind bytes that are no command, or as a line.
fn write(out: &mut Vec<u8>, words: &[Vec<u8>], data: &mut Unstructured<'_>) -> Result<()> {
    let plain = |word: &Vec<u8>| {
        !word.is_empty() && !word.iter().any(|byte| b" '\"\r\n".contains(byte)) && word.len() < 1000
    };
    match data.int_in_range(0..=7)? {
        0 if words.iter().all(plain) => {
            out.extend(words.join(&b' '));
            out.extend(data.choose(&["\r\n", "\n", "  \r\n"])?.as_bytes());
            return Ok(());
        }
        1 => out.extend(data.choose(&BLANKS)?.as_bytes()),
        _ => {}
    }
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    encode::command(out, &words);
    Ok(())
}

/// Makes commands, damaged ones, and random bytes.
fn commands_and_bytes(data: &mut Unstructured<'_>) -> Result<Option<Vec<Part>>> {
    const BROKEN: [&str; 13] = [
        "*1\r\n$-1\r\n",
        "*x\r\n",
        "*01\r\n",
        "*2147483648\r\n",
        "*1\r\n$536870913\r\n",
        "*99999999999999999999\r\n",
        "*1\r\nPING\r\n",
        "PING \"a\r\n",
        "*2\r\n$4\r\nECHO\r\n$-5\r\n",
        "*1\n$4\nPING\n",
        "*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$x\r\n",
        "*2\r\n$6\r\nclient\r\nx",
        "QUIT\r\n",
    ];
    const OTHERS: [&[&str]; 3] =
        [&["PUBLISH", "a", "subscribe"], &["PUBLISH", "d1", ""], &["SET", "b", "other"]];
    let mut parts = Vec::new();
    let mut bytes = Vec::new();
    let mut resp3 = false;
    if data.ratio(1, 3)? {
        resp3 = true;
        encode::command(&mut bytes, &[b"HELLO", b"3"]);
    }
    let damaged: bool = data.arbitrary()?;
    while !data.is_empty() {
        match data.int_in_range(0..=19)? {
            0..=13 => {
                let words = command(data, resp3, if damaged { 300 } else { 20_000 })?;
                write(&mut bytes, &words, data)?;
            }
            14 | 15 => parts.push(both(std::mem::take(&mut bytes))),
            16 => {
                parts.push(both(std::mem::take(&mut bytes)));
                parts.push(Part::Other(data.choose(&OTHERS)?));
            }
            _ if !damaged => {}
            17 => bytes.extend(data.choose(&BROKEN)?.as_bytes()),
            18 => {
                let length = data.int_in_range(0..=20)?.min(data.len());
                bytes.extend(data.bytes(length)?);
            }
            _ => {
                // Mostly near the end, so that a byte behind it can be misread.
                let at = bytes.len().saturating_sub(data.int_in_range(1..=40)?);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *data.choose(b"*$:+-\r\n 019\"'\\x\0\xff")?;
                }
            }
        }
    }
    parts.push(both(bytes));
    let sent = |part: &Part| match part {
        Part::Send(direct, _) => direct.clone(),
        Part::Other(_) => Vec::new(),
    };
    let all: Vec<u8> = parts.iter().flat_map(sent).collect();
    // Replies stay on here, see `muted`; Lockgate's own commands are in `with_locks`.
    let lower = all.to_ascii_lowercase();
    let has = |word: &str| lower.windows(word.len()).any(|at| at == word.as_bytes());
    let closes = damaged || has("quit");
    let ours = ["lock", "renew", "skip", "off"].iter().any(|word| has(word));
    // An escape in quotes could hide one of these words.
    let hidden = has("\\x");
    let too_long = closes && all.len() > MOST_BYTES;
    // At these words Redis closes without the replies that it has not written yet.
    let http = has("post") || has("host:");
    // Replies to these depend on a counter, chance or a clock.
    let chance = ["scan", "rand", "spop", "time", "xadd", "object", "wait", "info"];
    let chance = chance.iter().any(|word| has(word));
    Ok(Some(parts).filter(|_| !ours && !hidden && !too_long && !http && !chance))
}

/// Makes well-formed commands while replies are on and off. Errors of the protocol and QUIT are left out: whether
/// Redis closes behind one that it may not answer depends on how packets fall.
fn muted(data: &mut Unstructured<'_>) -> Result<Option<Vec<Part>>> {
    let mut bytes = Vec::new();
    while !data.is_empty() {
        let words = match data.int_in_range(0..=9)? {
            0 => vec![b"CLIENT".to_vec(), b"REPLY".to_vec(), b"OFF".to_vec()],
            1 => vec![b"CLIENT".to_vec(), b"REPLY".to_vec(), b"SKIP".to_vec()],
            2 => vec![b"CLIENT".to_vec(), b"REPLY".to_vec(), b"ON".to_vec()],
            3 => vec![b"CLIENT".to_vec(), b"CACHING".to_vec(), b"YES".to_vec()],
            _ => {
                let resp3 = data.arbitrary()?;
                command(data, resp3, 20_000)?
            }
        };
        write(&mut bytes, &words, data)?;
    }
    Ok(Some(vec![both(bytes)]))
}

/// The state of the client's connection that decides whether the proxy or Redis answers a LOCK.
#[derive(Default)]
struct State {
    multi: bool,
    subscribed: bool,
    resp3: bool,
    off: bool,
    skip: bool,
    /// Which of the locks are held.
    held: [bool; 2],
}

/// Mixes Lockgate's commands with others. Redis itself is sent a command with the same answer, or the same command if
/// the proxy must let Redis refuse it.
fn with_locks(data: &mut Unstructured<'_>, unique: u64) -> Result<Option<Vec<Part>>> {
    let mut parts = Vec::new();
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    let mut state = State::default();
    while !data.is_empty() {
        let mut same: Option<Vec<&str>> = None;
        let refuses = state.multi || state.subscribed && !state.resp3;
        let key = *data.choose(&KEYS)?;
        let large = "v".repeat(*data.choose(&LENGTHS)?);
        let skipped = std::mem::take(&mut state.skip);
        match data.int_in_range(0..=15)? {
            0 => same = Some(vec!["PING"]),
            1 if !refuses => same = Some(vec!["SET", key, &large]),
            2 if !refuses => same = Some(vec!["ECHO", &large]),
            3 if !refuses => same = Some(vec!["RPUSH", "list", "1", &large]),
            4 if !refuses => same = Some(vec!["LRANGE", "list", "0", "-1"]),
            5 if !refuses && !skipped => {
                same = Some(vec!["MULTI"]);
                state.multi = true;
            }
            6 if state.multi && !skipped => {
                same = Some(vec![*data.choose(&["EXEC", "DISCARD"])?]);
                state.multi = false;
            }
            7 if !refuses && !skipped && !state.off => {
                same = Some(vec!["SUBSCRIBE", "a"]);
                state.subscribed = true;
            }
            8 if state.subscribed && !state.multi && !skipped && !state.off => {
                same = Some(vec!["UNSUBSCRIBE", "a"]);
                state.subscribed = false;
            }
            9 if !state.multi && !state.subscribed && !skipped && !state.off => {
                state.resp3 = data.arbitrary()?;
                same = Some(vec!["HELLO", if state.resp3 { "3" } else { "2" }]);
            }
            10 if !skipped => {
                same = Some(vec!["RESET"]);
                state = State { held: state.held, ..State::default() };
            }
            11 if !refuses && !skipped => {
                let mode = *data.choose(&["ON", "OFF", "SKIP"])?;
                same = Some(vec!["CLIENT", "REPLY", mode]);
                state.skip = mode == "SKIP" && !state.off;
                state.off = (state.off || mode == "OFF") && mode != "ON";
            }
            12 if !refuses => same = Some(vec!["AUTH", "nobody", "x"]),
            13 if !skipped && !state.off => {
                parts.push(Part::Send(std::mem::take(&mut direct), std::mem::take(&mut proxied)));
                continue;
            }
            _ => own(data, &mut state, refuses, unique, &mut direct, &mut proxied)?,
        }
        if let Some(words) = same {
            let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            let from = direct.len();
            write(&mut direct, &words, data)?;
            proxied.extend_from_slice(&direct[from..]);
        }
    }
    // The script ends with replies that show that all is done: a client that hangs up would abort its LOCK.
    let end: &[&[&[u8]]] = &[&[b"PING"], &[b"RESET"], &[b"PING"]];
    for words in end {
        encode::command(&mut direct, words);
        encode::command(&mut proxied, words);
    }
    parts.push(Part::Send(direct, proxied));
    Ok(Some(parts))
}

/// Appends one of Lockgate's commands for the proxy, and for Redis one with the same answer.
fn own(
    data: &mut Unstructured<'_>,
    state: &mut State,
    refuses: bool,
    unique: u64,
    direct: &mut Vec<u8>,
    proxied: &mut Vec<u8>,
) -> Result<()> {
    const UNKNOWN: &str = "ERR unknown subcommand \\'nosuch\\'. Try LOCKGATE HELP.";
    let which = usize::from(data.arbitrary::<bool>()?);
    let key = format!("z{unique}:{which}");
    let long = "z".repeat(20_000);
    let lua = |value: &str| vec!["EVAL".to_owned(), format!("return {value}"), "0".into()];
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let nothing = || own(&["LPOP", "nosuch", "1"]);
    let error = |text: &str| lua(&format!("redis.error_reply('{text}')"));
    let held = &mut state.held[which];
    let (ours, instead) = match data.int_in_range(0..=9)? {
        0..=2 if !*held => {
            *held |= !refuses;
            (own(&["LOCK", &key, "tokn", "PX", "20000"]), lua("{'tokn',1,2}"))
        }
        0..=2 => (own(&["LOCK", &key, "another", "PX", "20000"]), nothing()),
        3 | 4 => {
            let answer = if *held { "1" } else { "0" };
            *held &= refuses;
            (own(&["UNLOCK", &key, "tokn"]), lua(answer))
        }
        5 => (own(&["RENEW", &key, "none", "PX", "20000"]), lua("0")),
        6 => (
            own(&["LOCK", &key, "FOO", "1"]),
            error("ERR syntax error, unknown option \\'FOO\\'; for a TTL write PX 1"),
        ),
        7 => (own(&["UNLOCK"]), error("ERR wrong number of arguments for \\'unlock\\' command")),
        8 if !refuses => (
            own(&["LOCK", &long, "tokn", "PX", "20000"]),
            error("ERR key or token is too long (locks.max_key, locks.max_token)"),
        ),
        _ => (own(&["LOCKGATE", "nosuch"]), error(UNKNOWN)),
    };
    if data.ratio(1, 8)? {
        let blank = data.choose(&BLANKS)?.as_bytes();
        direct.extend_from_slice(blank);
        proxied.extend_from_slice(blank);
    }
    let instead = if refuses { &ours } else { &instead };
    encode(direct, instead);
    let inline = ours.iter().all(|word| word.len() < 100) && data.ratio(1, 5)?;
    if inline {
        proxied.extend_from_slice(format!("{}\r\n", ours.join(" ")).as_bytes());
    } else {
        encode(proxied, &ours);
    }
    Ok(())
}

fn encode(out: &mut Vec<u8>, words: &[String]) {
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    encode::command(out, &words);
}
