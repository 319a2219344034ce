//! Every script of the lock nodes by itself, on a real Redis, for each state of the lock's key and each kind of
//! caller: what it answers, and what stands at the key afterwards ([`TABLE`]).

use std::collections::{BTreeMap, BTreeSet};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{Client, Reply};

const KEY: &str = "lock:job";
const FENCE: &str = "lockgate:fence:lock:job";
/// A lock with a reader of the asker's, for scripts that are sent several locks.
const BESIDE: &str = "lock:beside";
const FENCE_BESIDE: &str = "lockgate:fence:lock:beside";
const CHANNEL: &str = "lockgate:free:lock:job";
const NOTE: &str = "lockgate:ended:lock:job 1111111111111111";
const MARKER: &str = "lockgate:deployment";
/// The claims `c1` to `c4`: the asker's grant, another grant to the asker's token, another token's, and that of the
/// last writer before a set of readers.
const CLAIMS: [(&str, &str); 4] = [
    ("c1", "1111111111111111"),
    ("c2", "2222222222222222"),
    ("c3", "3333333333333333"),
    ("c4", "4444444444444444"),
];
/// How late a machine may be, in ms. What the table tells apart is further apart.
const LATE: i64 = 9_000;
/// The TTL of a set in which all have ended, in ms.
const LEFT_OVER: i64 = 60_000;
/// The TTL of fences, in ms.
const FENCE_TTL: i64 = 600_000;

/// The members of a set of readers, as the table calls them: the asker's reader, another reader of its token, another
/// token's, and the intents of another writer and of the asker.
const MEMBERS: [(&str, &str); 5] = [
    ("mine", "1111111111111111 me"),
    ("mine2", "2222222222222222 me"),
    ("theirs", "3333333333333333 you"),
    ("wyou", "w you"),
    ("wme", "w me"),
];

/// The states of the key: a name, and what stands there. `string`: a token, its TTL, and the claim beside it; `set`:
/// members with the time until they end, in ms, `since` when intents bar readers, and `no ttl`; else a command makes
/// it. Intents bar for 30 s, and then for as long not.
const STATES: [(&str, &str); 20] = [
    ("free", ""),
    ("their string", "string you 20000 c3"),
    ("own string", "string me 20000 c1"),
    ("own by another claim", "string me 20000 c2"),
    ("mine", "set mine 20000"),
    ("theirs", "set theirs 20000"),
    ("twice", "set mine 20000 mine2 30000"),
    ("mine ended", "set mine -1000 theirs 20000"),
    ("theirs ended", "set mine 20000 theirs -1000"),
    ("ended", "set mine -1000 theirs -500"),
    ("intents", "set since 5000 wyou 20000"),
    ("ended intents", "set since 5000 wyou -1000"),
    ("barred", "set since 5000 theirs 20000 wyou 25000"),
    ("barred mine", "set since 5000 mine 20000 wyou 25000"),
    ("not barred", "set since 40000 theirs 20000 wyou 25000"),
    ("bar over", "set since 70000 theirs 20000 wyou 25000"),
    ("no ttl", "set theirs 20000 no ttl"),
    ("sorted set", "ZADD lock:job 1 a -2e15 b 3e15 c 7 lockgate"),
    ("list", "RPUSH lock:job lockgate"),
    ("hash", "HSET lock:job lockgate -1e15"),
];

/// What each script does: its name with the kind of call ([`arguments`]); then for each state the answer, and what
/// is there afterwards.
///
/// In answers `~` stands before a time that is left. Afterwards: `same`, nothing has changed; `gone`, the key;
/// `string` with token and TTL; `set` with members as in [`STATES`], and the TTL is that of the last end; then
/// `fence` with the value and claim beside it, otherwise that has not changed; `told`, those who wait have heard of
/// it; `note`, a release through another proxy is noted. `foreign` are all keys that are not Lockgate's; `rest`, the
/// states not named.
const TABLE: &str = "
acquire
  free -> 29000 | string me 10000, fence 29000 c1
  their string -> 0 ~20000 0 | same
  own string -> 0 ~20000 c1 | same
  own by another claim -> 0 ~20000 c2 | same
  mine, theirs, twice, mine ended, theirs ended, barred, barred mine -> 5 500 0 | same
  not barred, bar over -> 5 500 0 | same
  no ttl -> 5 500 0 | same
  ended, intents, ended intents -> 29000 | string me 10000, fence 29000 c1
  foreign -> 0 ~20000 0 | same
acquire waiting
  free -> 29000 | string me 10000, fence 29000 c1
  their string -> 0 ~20000 0 | same
  own string -> 0 ~20000 c1 | same
  own by another claim -> 0 ~20000 c2 | same
  mine -> 5 500 0 | set since 0 mine 20000 wme 1000
  theirs -> 5 500 0 | set since 0 theirs 20000 wme 1000
  twice -> 5 500 0 | set since 0 mine 20000 mine2 30000 wme 1000
  mine ended -> 5 500 0 | set since 0 theirs 20000 wme 1000
  theirs ended -> 5 500 0 | set since 0 mine 20000 wme 1000
  barred -> 5 500 0 | set since 5000 theirs 20000 wyou 25000 wme 1000
  barred mine -> 5 500 0 | set since 5000 mine 20000 wyou 25000 wme 1000
  not barred -> 5 500 0 | set since 40000 theirs 20000 wyou 25000 wme 1000
  bar over -> 5 500 0 | set since 0 theirs 20000 wyou 25000 wme 1000
  no ttl -> 5 500 0 | set since 0 theirs 20000 wme 1000 no ttl
  ended, intents, ended intents -> 29000 | string me 10000, fence 29000 c1
  foreign -> 0 ~20000 0 | same
acquire again
  free -> 0 -2 0 | same
  their string -> 0 ~20000 0 | same
  own string -> 29000 | string me 20000, fence 29000 c1
  own by another claim -> 0 ~20000 c2 | same
  mine, theirs, mine ended, theirs ended -> 0 ~20000 0 | same
  twice -> 0 ~30000 0 | same
  barred, barred mine, not barred, bar over -> 0 ~25000 0 | same
  no ttl -> 0 -1 0 | same
  ended, ended intents -> 0 ~60000 0 | same
  intents, foreign -> 0 ~20000 0 | same
acquire_shared
  free -> 0 | set mine 10000
  their string -> 0 ~20000 0 | same
  own string -> 0 ~20000 c1 | same
  own by another claim -> 0 ~20000 c2 | same
  mine -> 0 | set mine 10000
  theirs -> 0 | set mine 10000 theirs 20000
  twice -> 0 | set mine 10000 mine2 30000
  mine ended -> 0 | set mine 10000 theirs 20000
  theirs ended -> 0 | set mine 10000
  ended -> 0 | set mine 10000
  intents -> 0 500 0 | same
  ended intents -> 0 | set since 5000 mine 10000
  barred, barred mine -> 0 500 0 | same
  not barred -> 0 | set since 40000 mine 10000 theirs 20000 wyou 25000
  bar over -> 0 | set since 70000 mine 10000 theirs 20000 wyou 25000
  no ttl -> 0 | set mine 10000 theirs 20000
  foreign -> 0 ~20000 0 | same
acquire_shared again
  free -> 0 -2 0 | same
  their string -> 0 ~20000 0 | same
  own string -> 0 ~20000 c1 | same
  own by another claim -> 0 ~20000 c2 | same
  mine -> 0 | set mine 20000
  theirs, mine ended, ended, intents, ended intents, barred, not barred -> 0 -2 0 | same
  bar over, no ttl -> 0 -2 0 | same
  twice -> 0 | set mine 20000 mine2 30000
  theirs ended -> 0 | set mine 20000
  barred mine -> 0 | set since 5000 mine 20000 wyou 25000
  foreign -> 0 ~20000 0 | same
acquire_shared again for longer
  mine -> 0 | set mine 90000
  twice -> 0 | set mine 90000 mine2 30000
  barred mine -> 0 | set since 5000 mine 90000 wyou 25000
  free, theirs, mine ended, ended, intents, ended intents, barred, not barred -> 0 -2 0 | same
  bar over, no ttl -> 0 -2 0 | same
  their string -> 0 ~20000 0 | same
  own string -> 0 ~20000 c1 | same
  own by another claim -> 0 ~20000 c2 | same
  theirs ended -> 0 | set mine 90000
  foreign -> 0 ~20000 0 | same
renew_shared
  free, their string, own string, own by another claim, theirs, mine ended -> 0 0 0 | same
  ended, intents, ended intents, barred, not barred, bar over, no ttl, foreign -> 0 0 0 | same
  mine, theirs ended -> 1 0 c1 | set mine 10000
  twice -> 1 0 c1 | set mine 10000 mine2 30000
  barred mine -> 1 0 c1 | set since 5000 mine 10000 wyou 25000
prolong_shared
  free, their string, own string, own by another claim, theirs, mine ended -> 0 2 | same
  ended, intents, ended intents, barred, not barred, bar over, no ttl, foreign -> 0 2 | same
  mine, theirs ended -> 1 3 | set mine 90000
  twice -> 1 3 | set mine 90000 mine2 30000
  barred mine -> 1 3 | set since 5000 mine 90000 wyou 25000
prolong_shared for less
  free, their string, own string, own by another claim, theirs, mine ended -> 0 2 | same
  ended, intents, ended intents, barred, not barred, bar over, no ttl, foreign -> 0 2 | same
  mine, theirs ended, twice, barred mine -> 1 3 | same
prolong_shared look
  free, their string, own string, own by another claim, theirs, mine ended -> 0 2 | same
  ended, intents, ended intents, barred, not barred, bar over, no ttl, foreign -> 0 2 | same
  mine, theirs ended, twice, barred mine -> 1 3 | same
release_shared
  free, their string, own string, own by another claim, foreign -> 0 0 0 | same
  mine, theirs ended -> 1 | gone, told
  twice -> -1 | set mine2 30000
  theirs -> 0 0 0 | same
  mine ended -> 0 0 0 | set theirs 20000
  ended, ended intents -> 0 0 0 | gone
  intents -> 0 0 0 | same
  barred, not barred, bar over -> 0 0 0 | same
  barred mine -> 1 | set since 5000 wyou 25000, told
  no ttl -> 0 0 0 | set theirs 20000
release_shared through another proxy
  free, their string, own string, own by another claim, foreign -> 0 0 0 | same, note
  mine, theirs ended -> 1 | gone, told, note
  twice -> -1 | set mine2 30000, note
  theirs -> 0 0 0 | same, note
  mine ended -> 0 0 0 | set theirs 20000, note
  ended, ended intents -> 0 0 0 | gone, note
  intents -> 0 0 0 | same, note
  barred, not barred, bar over -> 0 0 0 | same, note
  barred mine -> 1 | set since 5000 wyou 25000, told, note
  no ttl -> 0 0 0 | set theirs 20000, note
heal_shared
  free -> 1 0 | set mine 10000
  their string, own string, own by another claim, foreign -> 0 0 | same
  mine, twice, theirs ended, barred mine -> 0 0 | same
  theirs, mine ended, no ttl -> 1 0 | set mine 10000 theirs 20000
  ended -> 1 0 | set mine 10000
  intents -> 1 0 | set since 5000 mine 10000 wyou 20000
  ended intents -> 1 0 | set since 5000 mine 10000
  barred -> 1 0 | set since 5000 mine 10000 theirs 20000 wyou 25000
  not barred -> 1 0 | set since 40000 mine 10000 theirs 20000 wyou 25000
  bar over -> 1 0 | set since 70000 mine 10000 theirs 20000 wyou 25000
heal_shared released
  rest -> 0 0 | same
look_shared
  free, their string, own string, own by another claim, theirs, mine ended -> 0 0 0 '' | same
  ended, intents, ended intents, barred, not barred, bar over, no ttl -> 0 0 0 '' | same
  foreign -> 0 0 0 '' | same
  mine, theirs ended, barred mine -> 1 ~20000 c1 me | same
  twice -> 1 0 0 '' | same
heal
  free -> 1 29000 | string me 10000, fence 29000 c1
  their string, own string, own by another claim, foreign -> 0 0 | same
  mine, theirs, twice, barred, barred mine, not barred, bar over -> 0 0 | same
  mine ended -> 0 0 | set theirs 20000
  theirs ended -> 0 0 | set mine 20000
  no ttl -> 0 0 | set theirs 20000
  ended, intents, ended intents -> 1 29000 | string me 10000, fence 29000 c1
undo
  own string -> 1 0 | gone, told
  rest -> 0 0 | same
undo of who waits for readers
  own string -> 1 0 | set since 0 wme 1000, told
  rest -> 0 0 | same
release
  own string -> 1 | gone, told
  rest -> 0 0 0 | same
renew
  own string -> 1 5 c1 | string me 10000
  rest -> 0 0 0 | same
prolong
  own string -> 1 1 | string me 90000
  rest -> 0 0 | same
look
  free -> 0 0 0 '' | same
  their string -> 1 ~20000 c3 you | same
  own string -> 1 ~20000 c1 me | same
  own by another claim -> 1 ~20000 c2 me | same
  mine, theirs, mine ended, theirs ended -> 1 ~20000 0 lockgate-readers | same
  twice -> 1 ~30000 0 lockgate-readers | same
  barred, barred mine, not barred, bar over -> 1 ~25000 0 lockgate-readers | same
  no ttl -> 1 -1 0 lockgate-readers | same
  ended, intents, ended intents -> 0 0 0 '' | same
  foreign -> 1 ~20000 c4 '' | same
attach
  own string, own by another claim -> 1 5 ~20000 | same
  rest -> 0 0 0 | same
hand_over
  free -> 2 29000 1 | string you 10000, fence 29000 c3
  own string -> 1 29000 1 | string you 10000, fence 29000 c3
  their string, own by another claim -> 0 ~20000 0 | same
  mine, theirs -> 0 ~20000 0 | same
  mine ended, no ttl -> 0 ~20000 0 | set theirs 20000
  theirs ended -> 0 ~20000 0 | set mine 20000
  twice -> 0 ~30000 0 | same
  barred, barred mine, not barred, bar over -> 0 ~25000 0 | same
  ended, intents, ended intents -> 2 29000 1 | string you 10000, fence 29000 c3
  foreign -> 0 ~20000 0 | same
raise
  own string -> 1 29000 | same, fence 29000 c1
  rest -> 0 0 | same
take_over
  own string, own by another claim -> 1 29000 | same, fence 29000 c1
  free -> 0 0 | same
  their string -> 0 ~20000 | same
  mine, theirs, mine ended, theirs ended, intents -> 0 ~20000 | same
  twice -> 0 ~30000 | same
  barred, barred mine, not barred, bar over -> 0 ~25000 | same
  no ttl -> 0 0 | same
  ended, ended intents -> 0 ~60000 | same
  foreign -> 0 ~20000 | same
";

macro_rules! lua {
    ($name:literal) => {
        ($name, include_str!(concat!("../../src/lock/scripts/", $name, ".lua")))
    };
}

const SCRIPTS: [(&str, &str); 19] = [
    lua!("acquire"),
    lua!("acquire_shared"),
    lua!("attach"),
    lua!("copy"),
    lua!("hand_over"),
    lua!("heal"),
    lua!("heal_shared"),
    lua!("look"),
    lua!("look_shared"),
    lua!("prolong"),
    lua!("prolong_shared"),
    lua!("raise"),
    lua!("release"),
    lua!("release_shared"),
    lua!("renew"),
    lua!("renew_shared"),
    lua!("take_over"),
    lua!("tell"),
    lua!("undo"),
];
/// The parts before scripts, where no node is a cluster's and where one is, and the names for which a script has each.
const PARTS: [[(&str, &str); 2]; 5] = [
    [lua!("plain_marker"), lua!("tagged_marker")],
    [lua!("plain_beside"), lua!("tagged_beside")],
    [lua!("plain_waiters"), lua!("tagged_waiters")],
    [lua!("plain_wake"), lua!("tagged_wake")],
    [lua!("readers"), lua!("readers")],
];
const NAMES: [&[&str]; 5] =
    [&["place"], &["beside", "ask(", "wake(", "waiters("], &["waiters("], &["wake("], &["mark("]];

/// Returns a script as nodes run it, with the parts whose names it uses.
fn script(name: &str, is_tagged: bool) -> String {
    let body = SCRIPTS.iter().find(|script| script.0 == name).unwrap().1;
    let uses = |names: &[&str]| {
        let mut code = body.lines().filter(|line| !line.trim_start().starts_with("--"));
        code.any(|line| names.iter().any(|name| line.contains(name)))
    };
    let parts = PARTS.iter().zip(NAMES).filter(|(_, names)| uses(names));
    parts.map(|(part, _)| part[usize::from(is_tagged)].1).chain([body]).collect()
}

/// Returns what a kind of call sends behind the keys; scripts that vote are sent the marker last.
fn arguments(call: &str) -> Vec<&'static str> {
    let [c1, behind_blank, c3] = [CLAIMS[0].1, " 1111111111111111", CLAIMS[2].1];
    match call {
        "acquire" => vec!["me", "10000", "29000", "600000", c1, "", "here"],
        "acquire waiting" => vec!["me", "10000", "29000", "600000", c1, "30000", "here"],
        "acquire again" => vec!["me", "10000", "29000", "600000", c1, "1", "here"],
        "acquire_shared" => vec!["me", "10000", c1, "", "30000", "here"],
        "acquire_shared again" => vec!["me", "10000", c1, "1", "30000", "here"],
        "acquire_shared again for longer" => vec!["me", "90000", c1, "1", "30000", "here"],
        "renew_shared" | "heal_shared" | "heal_shared released" => {
            vec!["me", "10000", c1, "here"]
        }
        "prolong_shared" => vec!["me", "90000", c1, "me", "-1", c1, "here"],
        "prolong_shared for less" => vec!["me", "10000", c1, "me", "-1", c1, "here"],
        "prolong_shared look" => vec!["me", "-1", c1, "me", "-1", c1, "here"],
        "release_shared" => vec!["me", "who", c1],
        "release_shared through another proxy" => vec!["me", "who", c1, "40000"],
        "look_shared" | "attach" => vec!["me", "here"],
        "heal" | "take_over" => vec!["me", "10000", "29000", "600000", c1, "here"],
        "undo" => vec!["me", c1, ""],
        "undo of who waits for readers" => vec!["me", c1, "1"],
        "release" => vec!["me", "who", behind_blank],
        "renew" => vec!["me", "10000", c1, "600000", "here"],
        "prolong" => vec!["me", "90000", behind_blank, "600000", "here"],
        "look" => vec!["here"],
        "hand_over" => vec!["me", c1, "you", "10000", "29000", "600000", c3, "here"],
        "raise" => vec!["me", "29000", "600000", c1, "here"],
        other => panic!("no such call: {other}"),
    }
}

/// One cell of the table.
#[derive(Clone, Copy)]
struct Cell {
    call: &'static str,
    state: &'static str,
    answer: &'static str,
    after: &'static str,
}

/// Returns all cells; panics where a state is missing from a script, or is there twice.
fn cells() -> Vec<Cell> {
    let mut all: Vec<Cell> = Vec::new();
    let mut call = "";
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let Some((states, rest)) = line.split_once(" -> ") else {
            call = line;
            continue;
        };
        let (answer, after) = rest.split_once(" | ").unwrap();
        let is_named = |state: &str, all: &[Cell]| {
            all.iter().any(|cell| (cell.call, cell.state) == (call, state))
        };
        let known = STATES.iter().map(|state| state.0);
        let states: Vec<&str> = match states.trim() {
            "rest" => known.filter(|state| !is_named(state, &all)).collect(),
            named => named.split(", ").flat_map(states_called).collect(),
        };
        for state in states {
            assert!(!is_named(state, &all), "{call}: {state} is there twice");
            all.push(Cell { call, state, answer, after });
        }
    }
    let mut by_call = BTreeMap::<_, usize>::new();
    all.iter().for_each(|cell| *by_call.entry(cell.call).or_default() += 1);
    assert!(by_call.values().all(|&count| count == STATES.len()), "{by_call:?}");
    all
}

fn states_called(name: &'static str) -> Vec<&'static str> {
    match name {
        "foreign" => vec!["sorted set", "list", "hash"],
        name => vec![name],
    }
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Int(number) => *number,
        Reply::Bulk(text) => std::str::from_utf8(text).unwrap().parse::<f64>().unwrap() as i64,
        other => panic!("no number: {other:?}"),
    }
}

/// Returns the words of an answer.
fn words(reply: &Reply) -> String {
    match reply {
        Reply::Array(all) => all.iter().map(words).collect::<Vec<_>>().join(" "),
        Reply::Bulk(text) if text.is_empty() => "''".to_owned(),
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Int(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

/// Whether an answer is what the table tells.
fn is_told(answer: &Reply, table: &str) -> bool {
    let (answer, table) = (words(answer), table.replace("''", "\u{1}"));
    let answer: Vec<&str> = answer.split(' ').collect();
    let table: Vec<&str> = table.split(' ').collect();
    let is_same = |(seen, told): (&&str, &&str)| match told.strip_prefix('~') {
        Some(time) => {
            let (seen, time) = (seen.parse::<i64>().unwrap_or(-9), time.parse::<i64>().unwrap());
            (time - LATE..=time + 1).contains(&seen)
        }
        None => *seen == claim(told).unwrap_or(&told.replace('\u{1}', "''")),
    };
    answer.len() == table.len() && answer.iter().zip(&table).all(is_same)
}

fn claim(name: &str) -> Option<&'static str> {
    CLAIMS.iter().find(|claim| claim.0 == name).map(|claim| claim.1)
}

/// The members of a set as the table tells them: each with a time; when intents began to bar; and whether the set
/// has a TTL.
struct Members {
    ends: BTreeMap<&'static str, i64>,
    since: Option<i64>,
    has_ttl: bool,
}

impl Members {
    fn read(text: &str) -> Members {
        let mut members = Members { ends: BTreeMap::new(), since: None, has_ttl: true };
        let words: Vec<&str> = text.split(' ').skip(1).collect();
        for pair in words.chunks(2) {
            match *pair {
                ["no", "ttl"] => members.has_ttl = false,
                ["since", time] => members.since = Some(time.parse().unwrap()),
                [name, time] => {
                    let member = MEMBERS.iter().find(|member| member.0 == name).unwrap();
                    members.ends.insert(member.1, time.parse().unwrap());
                }
                _ => panic!("not pairs: {text}"),
            }
        }
        members
    }
}

/// What stands at the key and beside it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    kind: Reply,
    dump: Reply,
    fence: Reply,
    /// The other lock.
    beside: Reply,
}

/// A node, and one that listens to the lock's channel.
struct Node {
    client: Client,
    listener: Client,
    server: RedisServer,
    /// Whether scripts are sent as to the nodes of a cluster.
    is_tagged: bool,
}

impl Node {
    fn start() -> Node {
        let server = RedisServer::start(&[]).unwrap();
        let [client, mut listener] = [(); 2].map(|()| Client::connect(server.port()));
        // A server before Redis 7 has no sharded channels.
        listener.pipe(&[&["SUBSCRIBE", CHANNEL], &["SSUBSCRIBE", CHANNEL]]);
        Node { client, listener, server, is_tagged: false }
    }

    /// Connects as a user that may do this.
    fn user(&mut self, rules: &[&str]) -> Client {
        let set = [&["ACL", "SETUSER", "limited", "reset", "on", "nopass"], rules].concat();
        assert_eq!(self.client.cmd(&set), Reply::ok());
        let mut client = Client::connect(self.server.port());
        assert_eq!(client.cmd(&["AUTH", "limited", "x"]), Reply::ok());
        client
    }

    /// Returns the node's time, in ms.
    fn time(&mut self) -> i64 {
        millis(&self.client.cmd(&["TIME"]))
    }

    /// Returns when a key ends, in ms since 1970. PEXPIRETIME tells it too, but not before Redis 7.
    fn end(&mut self, key: &str) -> Option<i64> {
        loop {
            let replies = self.client.pipe(&[&["TIME"], &["PTTL", key], &["TIME"]]);
            let left = number(&replies[1]);
            if left < 0 {
                return None;
            }
            if millis(&replies[2]) - millis(&replies[0]) <= 1 {
                return Some(millis(&replies[0]) + left);
            }
        }
    }

    fn seen(&mut self) -> Seen {
        let commands = [&["TYPE", KEY][..], &["DUMP", KEY], &["GET", FENCE], &["DUMP", BESIDE]];
        let mut replies = self.client.pipe(&commands).into_iter();
        let mut next = || replies.next().unwrap();
        Seen { kind: next(), dump: next(), fence: next(), beside: next() }
    }

    /// Writes a set of readers.
    fn write(&mut self, key: &str, members: &Members) {
        let now = self.time();
        let since = members.since.map_or(0, |since| now - since);
        let mut words = vec!["ZADD".to_owned(), key.to_owned()];
        words.extend([(-1_000_000_000_000_000 - since).to_string(), "lockgate".to_owned()]);
        for (member, time) in &members.ends {
            let sign = if member.starts_with('w') { -1 } else { 1 };
            words.extend([(sign * (now + time)).to_string(), (*member).to_owned()]);
        }
        self.client.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let last = members.ends.values().max().copied().unwrap();
        let ends = now + if last > 0 { last + 1 } else { LEFT_OVER };
        if members.has_ttl {
            self.client.cmd(&["PEXPIREAT", key, &ends.to_string()]);
        }
    }

    /// Brings the key into a state.
    fn prepare(&mut self, state: &str) {
        let what = STATES.iter().find(|known| known.0 == state).unwrap().1;
        self.client.pipe(&[&["FLUSHALL"], &["SET", MARKER, "here"]]);
        self.write(BESIDE, &Members::read("set mine 20000"));
        let words: Vec<&str> = what.split(' ').collect();
        let fence_ttl = FENCE_TTL.to_string();
        let mut fence = "c4";
        match words[..] {
            [""] => return,
            ["string", token, ttl, claim] => {
                self.client.cmd(&["SET", KEY, token, "PX", ttl]);
                fence = claim;
            }
            ["set", ..] => self.write(KEY, &Members::read(what)),
            _ => {
                self.client.pipe(&[&words, &["PEXPIRE", KEY, "20000"]]);
            }
        }
        let fence = format!("5 {}", claim(fence).unwrap());
        assert_eq!(self.client.cmd(&["SET", FENCE, &fence, "PX", &fence_ttl]), Reply::ok());
    }

    /// Counts what was heard of the lock's release.
    fn heard(&mut self) -> usize {
        self.listener.send(b"PING\r\n");
        let is_pong = |reply: &Reply| matches!(reply, Reply::Array(all) if all.len() == 2);
        (0..).take_while(|_| !is_pong(&self.listener.reply())).count()
    }

    /// Runs a script by a kind of call.
    fn run(&self, user: &mut Client, call: &str, arguments: &[&str]) -> Reply {
        let text = script(call.split(' ').next().unwrap(), self.is_tagged);
        self.run_text(user, &text, call, arguments)
    }

    fn run_text(&self, user: &mut Client, text: &str, call: &str, arguments: &[&str]) -> Reply {
        let keys = match call.starts_with("prolong_shared") {
            true => vec!["4", KEY, FENCE, BESIDE, FENCE_BESIDE],
            false => vec!["2", KEY, FENCE],
        };
        let place = text.starts_with(PARTS[0][1].1).then_some(MARKER);
        let place = place.as_slice();
        user.cmd(&[&["EVAL", text], &keys[..], arguments, place].concat())
    }

    /// Returns what is not as the table tells after a cell's call.
    fn check(&mut self, user: &mut Client, cell: &Cell) -> Result<(), String> {
        self.prepare(cell.state);
        if cell.call == "heal_shared released" {
            self.client.cmd(&["SET", NOTE, "", "PX", "40000"]);
        }
        let (before, ended, from) = (self.seen(), self.end(KEY), self.time());
        let answer = self.run(user, cell.call, &arguments(cell.call));
        let (seen, ends, to) = (self.seen(), self.end(KEY), self.time());
        ensure(is_told(&answer, cell.answer), || format!("it answers {answer:?}"))?;
        ensure(seen.beside == before.beside, || "the lock beside".to_owned())?;
        let mut rest = cell.after.split(", ").collect::<BTreeSet<_>>();
        let fence = rest.iter().find_map(|part| part.strip_prefix("fence ")).map(|fence| {
            let (number, name) = fence.split_once(' ').unwrap();
            Reply::bulk(&format!("{number} {}", claim(name).unwrap()))
        });
        ensure(seen.fence == fence.unwrap_or(before.fence.clone()), || {
            format!("{:?}", seen.fence)
        })?;
        let fence_left = self.end(FENCE).map(|end| end - from - FENCE_TTL);
        ensure(fence_left.is_none_or(|late| late.abs() < LATE), || format!("{fence_left:?}"))?;
        let heard = self.heard();
        ensure(heard == usize::from(rest.remove("told")), || format!("{heard} were told"))?;
        let noted = self.end(NOTE).is_some();
        let is_noted = rest.remove("note") || cell.call == "heal_shared released";
        ensure(noted == is_noted, || format!("noted: {noted}"))?;
        let what = cell.after.split(", ").next().unwrap();
        match what.split(' ').collect::<Vec<_>>()[..] {
            ["same"] => {
                let is_same = seen.dump == before.dump && near(ends, ended);
                ensure(is_same, || format!("{before:?} {ended:?} is now {seen:?} {ends:?}"))
            }
            ["gone"] => ensure(seen.kind == Reply::simple("none"), || format!("{seen:?}")),
            ["string", token, ttl] => {
                let value = self.client.cmd(&["GET", KEY]);
                let late = ends.map(|ends| ends - from - ttl.parse::<i64>().unwrap());
                let is_so = value == Reply::bulk(token) && late.is_some_and(|l| l.abs() < LATE);
                ensure(is_so, || format!("{value:?}, {late:?} ms more"))
            }
            _ => self.check_set(&Members::read(what), ends, from..=to),
        }
    }

    /// Returns what is not as told of the set after a call in this time.
    fn check_set(
        &mut self,
        told: &Members,
        ends: Option<i64>,
        call: std::ops::RangeInclusive<i64>,
    ) -> Result<(), String> {
        let reply = self.client.cmd(&["ZRANGE", KEY, "0", "-1", "WITHSCORES"]);
        let Reply::Array(all) = &reply else {
            return Err(format!("no set: {reply:?}"));
        };
        let pairs = all.chunks(2).map(|pair| (words(&pair[0]), number(&pair[1])));
        let mut scores: BTreeMap<String, i64> = pairs.collect();
        let mark = scores.remove("lockgate").ok_or("no mark")?;
        let since = -1_000_000_000_000_000 - mark;
        let bars = told.since.map_or(0..=0, |ago| call.start() - ago - LATE..=call.end() - ago);
        ensure(bars.contains(&since), || format!("intents bar since {since}, not {bars:?}"))?;
        let is_same = scores.keys().eq(told.ends.keys());
        ensure(is_same, || format!("members: {scores:?}"))?;
        let mut last = 0;
        for ((member, score), time) in scores.iter().zip(told.ends.values()) {
            let end = if member.starts_with('w') { -score } else { *score };
            let expected = call.start() + time - LATE..=call.end() + time;
            ensure(expected.contains(&end), || format!("{member}: {end}, not {expected:?}"))?;
            last = last.max(end);
        }
        let expected = told.has_ttl.then_some(last + 1);
        ensure(near(ends, expected), || format!("it ends {ends:?}, not {expected:?}"))
    }
}

fn ensure(holds: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(fault()) }
}

/// Whether two times are the same. They are measured to 1 ms.
fn near(one: Option<i64>, other: Option<i64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => (one - other).abs() <= 2,
        (one, other) => one == other,
    }
}

/// Whether a script has failed by an ACL: before Redis 7.2, and since.
fn is_forbidden(answer: &Reply) -> bool {
    let ends = ["can't run this command", "has no permissions to run"];
    ends.iter().any(|text| answer.error_text().contains(text))
}

/// Reads the reply to TIME, in ms.
fn millis(reply: &Reply) -> i64 {
    match reply {
        Reply::Array(all) => number(&all[0]) * 1000 + number(&all[1]) / 1000,
        other => panic!("no time: {other:?}"),
    }
}

/// Runs cells by a user, and panics with all faults.
fn all_hold(node: &mut Node, user: &mut Client, cells: impl IntoIterator<Item = Cell>) {
    let mut faults = Vec::new();
    for cell in cells {
        if let Err(fault) = node.check(user, &cell) {
            let Cell { call, state, answer, after } = cell;
            faults.push(format!("{call}, {state}: not {answer} | {after}: {fault}"));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Whether readers stand at the key, or have stood there.
fn is_shared(state: &str) -> bool {
    STATES.iter().any(|known| known.0 == state && known.1.starts_with("set"))
}

#[test]
fn each_script_does_in_each_state_of_the_key_what_the_table_tells() {
    let mut node = Node::start();
    let mut user = Client::connect(node.server.port());
    all_hold(&mut node, &mut user, cells());
    node.is_tagged = true;
    all_hold(&mut node, &mut user, cells());
}

/// A writer is to ask again when the last reader ends, and not when an intent does.
#[test]
fn a_writer_is_told_when_the_last_reader_ends() {
    let mut node = Node::start();
    let mut user = Client::connect(node.server.port());
    for call in ["acquire", "acquire waiting"] {
        let mut refusal = || {
            node.prepare("free");
            node.write(KEY, &Members::read("set since 5000 mine 100 theirs 400 wyou 25000"));
            let answer = node.run(&mut user, call, &arguments(call));
            // On a machine that stalls for so long, both have ended.
            matches!(answer, Reply::Array(_)).then(|| words(&answer))
        };
        let told = (0..20).find_map(|_| refusal()).unwrap();
        let time = told.strip_prefix("5 ").and_then(|rest| rest.strip_suffix(" 0")).unwrap();
        assert!((1..=401).contains(&time.parse::<i64>().unwrap()), "{call}: {told}");
    }
}

/// A node with another marker does not vote, and changes nothing.
#[test]
fn no_script_that_votes_does_anything_where_the_marker_is_another() {
    let mut node = Node::start();
    let mut user = Client::connect(node.server.port());
    for cell in cells() {
        let mut arguments = arguments(cell.call);
        if arguments.pop() != Some("here") {
            continue;
        }
        arguments.push("else");
        node.prepare(cell.state);
        let (before, ended) = (node.seen(), node.end(KEY));
        let answer = words(&node.run(&mut user, cell.call, &arguments));
        assert!(answer.starts_with("3 0"), "{}, {}: {answer}", cell.call, cell.state);
        assert_eq!(node.seen(), before, "{}, {}", cell.call, cell.state);
        assert!(near(node.end(KEY), ended), "{}, {}", cell.call, cell.state);
    }
}

/// What needs the time fails before it has changed anything but the note of a release; all else is as ever.
#[test]
fn without_time_scripts_on_readers_fail_and_change_nothing() {
    let mut node = Node::start();
    let mut user = node.user(&["~*", "&*", "+@all", "-time"]);
    let mut failed = BTreeMap::<_, Vec<_>>::new();
    for cell in cells() {
        node.prepare(cell.state);
        let (before, ended) = (node.seen(), node.end(KEY));
        let answer = node.run(&mut user, cell.call, &arguments(cell.call));
        if answer.error_text().is_empty() {
            node.heard();
            if cell.call == "look" && is_shared(cell.state) {
                // It cannot tell whether there are readers.
                let told = words(&answer);
                assert!(told.starts_with("1 ") && told.ends_with(" ''"), "{told}");
                continue;
            }
            if cell.call.contains("readers") && cell.state == "own string" {
                // No intent is left.
                assert_eq!(
                    (words(&answer), node.seen().kind),
                    ("1 0".into(), Reply::simple("none"))
                );
                continue;
            }
            all_hold(&mut node, &mut user, [cell]);
            continue;
        }
        assert!(is_forbidden(&answer), "{answer:?}");
        assert_eq!(node.seen(), before, "{}, {}", cell.call, cell.state);
        assert!(near(node.end(KEY), ended), "{}, {}", cell.call, cell.state);
        assert_eq!(node.heard(), 0);
        failed.entry(cell.call).or_default().push(cell.state);
    }
    for (call, states) in &failed {
        let sets = STATES.iter().map(|state| state.0).filter(|state| is_shared(state));
        let all_sets = sets.collect::<BTreeSet<_>>();
        let others: Vec<_> = states.iter().filter(|state| !all_sets.contains(**state)).collect();
        assert_eq!(states.len() - others.len(), all_sets.len(), "{call}: {states:?}");
        match call.split(' ').next().unwrap() {
            // They ask for it before they look at the locks.
            "prolong_shared" => assert_eq!(states.len(), STATES.len()),
            "acquire_shared" | "heal_shared" => assert_eq!(others, [&"free"], "{call}"),
            _ => assert!(others.is_empty(), "{call}: {others:?}"),
        }
    }
    let calls = failed.keys().filter(|call| !call.contains("_shared")).copied();
    assert_eq!(calls.collect::<Vec<_>>(), ["acquire", "acquire waiting", "hand_over", "heal"]);
    assert_eq!(failed.len(), 16, "{:?}", failed.keys());
}

/// A user who may do only what exclusive locks need has them as before; readers it is refused, with the reason.
#[test]
fn exclusive_locks_need_no_more_commands_than_before() {
    let mut node = Node::start();
    let commands = "+@connection +@scripting +@pubsub +info +time +get +set +del +pttl +pexpire";
    let mut rules = vec!["~lock:*", "~lockgate:*", "resetchannels", "&lockgate:*"];
    rules.extend(commands.split(' '));
    let mut user = node.user(&rules);
    let exclusive = |cell: &Cell| {
        !cell.call.contains("_shared") && !cell.call.contains("readers") && !is_shared(cell.state)
    };
    all_hold(&mut node, &mut user, cells().into_iter().filter(exclusive));
    for call in ["acquire_shared", "acquire_shared again"] {
        node.prepare("free");
        let answer = node.run(&mut user, call, &arguments(call));
        assert!(is_forbidden(&answer), "{call}: {answer:?}");
        assert_eq!(node.seen().kind, Reply::simple("none"));
    }
}

/// The set lasts as long as the intent, and a writer is told of no more time than a reader has left.
#[test]
fn an_intent_outlasts_the_readers() {
    let mut node = Node::start();
    let mut user = Client::connect(node.server.port());
    let mut tries = 0..100;
    loop {
        assert!(tries.next().is_some(), "the machine is too slow");
        node.prepare("free");
        let from = node.time();
        node.write(KEY, &Members::read("set theirs 400"));
        let answer = node.run(&mut user, "acquire waiting", &arguments("acquire waiting"));
        let (ends, to) = (node.end(KEY), node.time());
        if to - from > 200 {
            continue;
        }
        let Reply::Array(held) = &answer else { panic!("{answer:?}") };
        assert!((1..=401).contains(&number(&held[1])), "{answer:?}");
        assert!((from + 999..=to + 1003).contains(&ends.unwrap()), "{from} {to} {ends:?}");
        let intent = number(&node.client.cmd(&["ZSCORE", KEY, "w me"]));
        assert!((from + 1000..=to + 1000).contains(&-intent), "{from} {to} {intent}");
        return;
    }
}

/// A node may stop between any two commands of a script, and before Redis 7.2 its clock goes on meanwhile.
#[test]
fn a_node_that_stops_within_a_script_ends_no_reader_early() {
    // 50 ms or more, once the script knows the time.
    let late = "local function late(name, ...) for _ = 1, name == 'TIME' and 0 or 15e6 do end \
                return redis.call(name, ...) end ";
    for call in ["acquire_shared", "renew_shared", "prolong_shared for less", "heal_shared"] {
        let mut node = Node::start();
        let mut user = Client::connect(node.server.port());
        node.prepare("free");
        let is_there = matches!(call, "renew_shared" | "prolong_shared for less");
        node.write(
            KEY,
            &Members::read(
                ["set theirs 10150", "set theirs 10150 mine 9000"][usize::from(is_there)],
            ),
        );
        let other = number(&node.client.cmd(&["ZSCORE", KEY, MEMBERS[2].1]));
        let text = script(call.split(' ').next().unwrap(), false).replace("redis.call(", "late(");
        let answer = node.run_text(&mut user, &[late, &text].concat(), call, &arguments(call));
        assert!(answer.error_text().is_empty(), "{call}: {answer:?}");
        let scores =
            node.client.pipe(&[&["ZSCORE", KEY, MEMBERS[0].1], &["ZSCORE", KEY, MEMBERS[2].1]]);
        let last = number(&scores[0]).max(other);
        assert_eq!(number(&scores[1]), other, "{call}");
        assert!(near(node.end(KEY), Some(last + 1)), "{call}: {:?}, not {last}", node.end(KEY));
    }
}

/// The sum tells which of fifty locks are kept, to the last.
#[test]
fn fifty_readers_are_prolonged_at_once() {
    let mut node = Node::start();
    let text = script("prolong_shared", false);
    let names: Vec<String> = (0..50).map(|index| format!("lock:{index}")).collect();
    let mut words = vec!["EVAL", &text, "100"];
    for name in &names {
        node.write(name, &Members::read("set mine 20000 theirs 30000"));
        words.extend([name.as_str(), "lockgate:fence:lock"]);
    }
    for index in 0..names.len() {
        words.extend(["me", if index % 2 == 0 { "90000" } else { "-1" }, CLAIMS[0].1]);
    }
    words.push("");
    let all = (1 << 50) - 1;
    let answer = Reply::Array(vec![Reply::Int(1), Reply::Int(all)]);
    assert_eq!(node.client.cmd(&words), answer);
    for (index, name) in names.iter().enumerate() {
        let left = node.end(name).unwrap() - node.time();
        assert_eq!(left > 31_000, index % 2 == 0, "{name}: {left}");
    }
    assert_eq!(node.client.cmd(&["DEL", "lock:49"]), Reply::Int(1));
    let answer = Reply::Array(vec![Reply::Int(0), Reply::Int(all - (1 << 49))]);
    assert_eq!(node.client.cmd(&words), answer);
}

/// A set is told as a lock that no writer has, with the readers that it has; and those that were released through
/// another proxy.
#[test]
fn a_set_is_told_with_its_readers() {
    let mut node = Node::start();
    let text = script("tell", false);
    for (state, what) in STATES.iter().filter(|state| is_shared(state.0)) {
        node.prepare(state);
        let (before, ended) = (node.seen(), node.end(KEY));
        let answer = node.client.cmd(&["EVAL", &text, "1", MARKER, "here", "lock:", "", KEY]);
        let is_reader = |member: &(&&str, &i64)| !member.0.starts_with('w') && *member.1 > 0;
        let members = Members::read(what).ends;
        let mut expected = format!("0 lock:job '' -2 5 {} ''", CLAIMS[3].1);
        let mut readers: Vec<_> = members.iter().filter(is_reader).collect();
        readers.sort_by_key(|member| member.1);
        for (reader, left) in readers {
            let (claim, token) = reader.split_once(' ').unwrap();
            expected += &format!(" lock:job {claim} {token} ~{left} '' reader");
        }
        assert!(is_told(&answer, &expected), "{state}: {answer:?} {expected}");
        assert_eq!((node.seen(), node.end(KEY).is_some()), (before, ended.is_some()), "{state}");
    }
    node.client.cmd(&["SET", NOTE, "", "PX", "40000"]);
    let answer = node.client.cmd(&["EVAL", &text, "1", MARKER, "here", "lock:", "0"]);
    let noted = format!("lock:job {} 0 '' ended", CLAIMS[0].1);
    assert!(words(&answer).contains(&noted), "{answer:?}");
}

/// A copy is written where the node does not vote: a lock that is free on the other nodes leaves what stands there,
/// and what is taken back by its claim is not a set. A lock that is held replaces all that stood at its key.
#[test]
fn a_copy_of_a_lock_replaces_a_set_of_readers_and_a_free_one_does_not() {
    let mut node = Node::start();
    let text = script("copy", false);
    let copy = |node: &mut Node, lock: [&str; 2], claim: &str| {
        let [token, left] = lock;
        let keys = ["EVAL", &text, "4", KEY, FENCE, "lockgate:copied", MARKER];
        let rest = ["begun", "here", token, left, "7", "7", "600000", claim];
        node.client.cmd(&["SET", "lockgate:copied", "begun"]);
        assert_eq!(
            node.client.cmd(&[&keys[..], &rest].concat()),
            Reply::Array(vec![Reply::Int(1)])
        );
    };
    for (state, _) in STATES.iter().filter(|state| is_shared(state.0)) {
        node.prepare(state);
        let (before, ended) = (node.seen(), node.end(KEY));
        for lock in [["", "-1"], ["me", "0"]] {
            copy(&mut node, lock, CLAIMS[0].1);
            assert_eq!(node.seen().dump, before.dump, "{state}");
            assert!(near(node.end(KEY), ended), "{state}");
        }
        copy(&mut node, ["me", "10000"], CLAIMS[0].1);
        assert_eq!(node.client.cmd(&["GET", KEY]), Reply::bulk("me"), "{state}");
    }
}

/// Readers are written beside those that the node has, in place of all else that stands there, and taken back one by
/// one.
#[test]
fn a_copy_of_readers_is_written_in_each_state_and_taken_back_one_by_one() {
    let mut node = Node::start();
    let text = script("copy", false);
    let [mine, theirs] = [MEMBERS[0].1, MEMBERS[2].1];
    let copy = |node: &mut Node, left: &str, readers: &[&str]| {
        let keys = ["EVAL", &text, "4", KEY, FENCE, "lockgate:copied", MARKER];
        let rest = ["begun", "here", "", left, "7", "7", "600000", CLAIMS[3].1];
        node.client.cmd(&["SET", "lockgate:copied", "begun"]);
        let answer = node.client.cmd(&[&keys[..], &rest, readers].concat());
        assert_eq!(answer, Reply::Array(vec![Reply::Int(1)]));
    };
    for (state, what) in STATES {
        node.prepare(state);
        let from = node.time();
        copy(&mut node, "-1", &[mine, "50000", theirs, "10000"]);
        let to = node.time();
        let mut ends = match is_shared(state) {
            true => Members::read(what),
            false => Members::read("set"),
        };
        ends.ends.retain(|_, left| *left > 0);
        ends.ends.insert(mine, 50_000);
        // A later end stays.
        let later = ends.ends.get(theirs).copied().unwrap_or_default().max(10_000);
        ends.ends.insert(theirs, later);
        ends.has_ttl = true;
        let end = node.end(KEY);
        assert_eq!(node.check_set(&ends, end, from..=to), Ok(()), "{state}");
        assert_eq!(node.client.cmd(&["GET", FENCE]), Reply::bulk(&format!("7 {}", CLAIMS[3].1)));
        copy(&mut node, "0", &[mine, "50000"]);
        ends.ends.remove(mine);
        let end = node.end(KEY);
        assert_eq!(node.check_set(&ends, end, from..=to), Ok(()), "{state}");
    }
}
