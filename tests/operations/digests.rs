//! Each script of a library that the proxy knows by its digest gives the same answers from the lock nodes as on
//! Redis, and leaves the lock as it leaves its key there, whatever the key's state.
//!
//! `digests.txt` says what each script does, independently of the proxy's own table.

use std::collections::BTreeSet;

use crate::support::{Client, Proxy, Reply, eventually};

const TABLE: &str = include_str!("digests.txt");
/// The proxy's table.
const KNOWN: &str = include_str!("../../src/adopt/rows.rs");

/// The TTL that a key has, and the one that a script gives it, in seconds. They are far apart, since the machine may
/// be busy, and their sum is within `locks.max_ttl`.
const BEFORE: i64 = 40;
const NEW: i64 = 15;

/// Stands for the readers of a lock, of which GET tells no token.
const READERS: &str = "readers";

/// What one script does.
struct Script {
    digest: &'static str,
    does: &'static str,
    replies: [&'static str; 4],
    words: Vec<&'static str>,
}

fn scripts() -> Vec<Script> {
    let (mut all, mut head) = (Vec::new(), None);
    for line in TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let Some(digest) = line.strip_prefix("    ") else {
            head = line.split_once(" : ");
            continue;
        };
        let (what, words) = head.expect("a line of what it does");
        let what: Vec<&str> = what.split(' ').collect();
        let [does, absent, mine, lasting, other] = what[..] else { panic!("{what:?}") };
        let (replies, words) = ([absent, mine, lasting, other], words.split(' ').collect());
        all.push(Script { digest, does, replies, words });
    }
    all
}

#[test]
fn the_table_has_each_script_that_is_known() {
    let is_digest = |word: &&str| word.len() == 40 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let known: BTreeSet<&str> = KNOWN.split('"').filter(is_digest).collect();
    let here: BTreeSet<&str> = scripts().iter().map(|script| script.digest).collect();
    assert_eq!(here, known);
    assert!(here.len() > 100, "{}", here.len());
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Absent,
    /// The key has the token of the script's caller or another one, with or without a TTL.
    Held {
        mine: bool,
        ttl: bool,
    },
}

const STATES: [State; 5] = [
    State::Absent,
    State::Held { mine: true, ttl: true },
    State::Held { mine: true, ttl: false },
    State::Held { mine: false, ttl: true },
    State::Held { mine: false, ttl: false },
];

/// Returns the seconds for a reply in milliseconds, rounded up.
fn seconds(reply: &Reply) -> i64 {
    match reply {
        Reply::Int(millis) if *millis >= 0 => (millis + 999) / 1000,
        Reply::Int(code) => *code,
        other => panic!("{other:?}"),
    }
}

/// Whether the reply is the one in the table, for a key with the TTL [`BEFORE`].
fn is_as_told(reply: &Reply, told: &str) -> bool {
    match told {
        "nil" => *reply == Reply::NullBulk,
        "+OK" => *reply == Reply::ok(),
        "error" => *reply == Reply::Error("ERR ERROR".into()),
        "true" | "false" | "name1" => *reply == Reply::bulk(told),
        "ms" => (NEW + 1..=BEFORE).contains(&seconds(reply)),
        "s" => matches!(reply, Reply::Int(left) if (NEW + 1..=BEFORE).contains(left)),
        // An error, or a reply that does not claim success.
        "-" => matches!(reply, Reply::Error(_) | Reply::Array(_)),
        number => *reply == Reply::Int(number.parse().expect(number)),
    }
}

/// Plays one script on a key in a state. `are_kept`: a client can have a lock without a TTL. Returns the difference.
fn play(
    script: &Script,
    state: State,
    number: usize,
    (proxy, are_kept): (&Proxy, bool),
) -> Result<(), String> {
    let Script { digest, does, replies, words } = script;
    let key = format!("lock:{number}:{state:?}").replace(' ', "");
    let mine = if words.contains(&"*") { "*" } else { "mine" };
    let (mut holder, mut client) = (proxy.client(), proxy.client());
    let token = |mine_: bool| if mine_ { mine } else { "another's" };
    if let (State::Held { mine, ttl: false }, true) = (state, are_kept) {
        assert_eq!(holder.cmd(&["SET", &key, token(mine), "NX"]), Reply::ok());
    } else if let State::Held { mine, ttl } = state {
        let take = ["SET", &key, token(mine), "NX", "EX", &BEFORE.to_string()];
        assert_eq!(holder.cmd(&take), Reply::ok());
        for node in 0..if ttl { 0 } else { 3 } {
            let persist = ["PERSIST", &format!("lock:{key}")];
            eventually("it is there", || proxy.node_client(node).cmd(&persist) == Reply::Int(1));
        }
    }
    let (millis, secs) = ((1000 * NEW).to_string(), NEW.to_string());
    let words = words.iter().map(|word| match *word {
        "K" => &key,
        "O" => "signal",
        "T" => mine,
        "M" => &millis,
        "S" => &secs,
        other => other,
    });
    let words: Vec<&str> = ["EVALSHA", digest].into_iter().chain(words).collect();
    let reply = client.cmd(&words);
    let told = match state {
        _ if *does == "persist" && !are_kept => "-",
        State::Absent => replies[0],
        State::Held { mine: true, ttl: true } => replies[1],
        // Without no_ttl no client takes a lock without a TTL. A lock that has none anyway may be given one, where
        // the script would not.
        State::Held { mine: true, ttl: false } if *does == "extend" && !are_kept => {
            let is_kept = is_as_told(&reply, replies[2]) && replies[1] != replies[2];
            if is_kept { replies[2] } else { replies[1] }
        }
        State::Held { mine: true, ttl: false } => replies[2],
        State::Held { mine: false, .. } => replies[3],
    };
    // A script that does more than release may be refused as a whole.
    let refused = reply.error_text().contains("is an adopted lock: ");
    let may_be = refused && words.contains(&"signal");
    if !may_be && !is_as_told(&reply, told) {
        return Err(format!("{words:?} on {state:?}: {reply:?} instead of {told}"));
    }

    let (is_mine, is_done) = (matches!(state, State::Held { mine: true, .. }), !refused);
    let unchanged = match state {
        State::Absent => None,
        State::Held { mine, ttl } => Some((token(mine), if ttl { BEFORE } else { -1 })),
    };
    let taken = Some((mine, NEW));
    let expected = match *does {
        _ if !is_done => unchanged,
        "release" if is_mine => None,
        "reset" => None,
        "add" if state == (State::Held { mine: true, ttl: true }) => Some((mine, BEFORE + NEW)),
        "persist" if is_mine && are_kept => Some((mine, -1)),
        "extend" if is_mine && (told == replies[1]) => taken,
        "take" if state == State::Absent => taken,
        "again" if state == State::Absent || is_mine => taken,
        "share" if state == State::Absent => Some((READERS, NEW)),
        "share" if is_mine => taken,
        "release" | "extend" | "add" | "take" | "again" | "share" | "look" | "refuse"
        | "persist" => unchanged,
        other => panic!("{other}"),
    };
    let (value, left) = (client.cmd(&["GET", &key]), seconds(&client.cmd(&["PTTL", &key])));
    let is_right = match expected {
        Some((READERS, ttl)) => {
            value.error_text().starts_with("WRONGTYPE") && (1..=ttl).contains(&left)
        }
        None => value == Reply::NullBulk && left == -2,
        Some((token, -1)) => value == Reply::bulk(token) && left == -1,
        // Longer than the next shorter TTL.
        Some((token, ttl)) => {
            let less = [0, NEW, BEFORE].into_iter().rev().find(|less| *less < ttl);
            value == Reply::bulk(token) && (less.unwrap_or_default() + 1..=ttl).contains(&left)
        }
    };
    match is_right {
        true => Ok(()),
        false => {
            Err(format!("{words:?} on {state:?} left {value:?} for {left} s, not {expected:?}"))
        }
    }
}

#[test]
fn each_answers_as_on_redis_in_each_state_of_its_key() {
    play_all("no_ttl: refuse", false);
}

#[test]
#[ignore = "takes long: make long"]
fn each_answers_as_on_redis_where_locks_may_have_no_ttl() {
    play_all("no_ttl: session", true);
}

fn play_all(option: &str, are_kept: bool) {
    let rules = format!("adopt:\n  - keys: 'lock:*'\n    mode: enforce\n    {option}");
    let mut proxy = Proxy::with().nodes(3).locks("shared: yes").top(&rules).start();
    let mut wrong = Vec::new();
    for (number, script) in scripts().iter().enumerate() {
        for state in STATES {
            wrong.extend(play(script, state, number, (&proxy, are_kept)).err());
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    // Only the signals have reached the data node.
    let mut data = Client::connect(proxy.data().port());
    let Reply::Array(keys) = data.cmd(&["KEYS", "lock:*"]) else { panic!("no keys") };
    assert!(keys.is_empty(), "{keys:?}");
}
