//! The data node's commands: which of them write, and where their keys are.
//!
//! They are read from the data node's own COMMAND, so that modules are known too, and again whenever
//! the connection for it was made anew.

use std::collections::HashMap;

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use super::written_keys::{Begin, Find, KeySpec};

/// Keys that a command writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Writes {
    /// None: the command reads, or has nothing to do with keys.
    Nothing,
    /// The word behind the name.
    First,
    /// The keys of these groups.
    Groups(Box<[KeySpec]>),
    /// Keys that only Redis can tell, from all words.
    Ask,
    /// Whole databases.
    Databases,
    /// Depends on the word behind the name.
    #[allow(clippy::box_collection, reason = "few commands have any; the others stay small")]
    Subcommand(Box<HashMap<Vec<u8>, Writes>>),
}

/// All commands, by name.
#[derive(Debug)]
pub(crate) struct Table {
    /// Every command, by its name in capitals.
    names: HashMap<Vec<u8>, Writes>,
    /// A hash table of names of up to eight bytes, as numbers, with open addressing. 0: free.
    numbers: Box<[u64; PLACES]>,
    /// The glance at the name in the same place.
    glances: Box<[Glance; PLACES]>,
    first_bytes: FirstBytes,
}

/// Size of the hash table of names. Redis has some 240 commands, so most stand where they are looked
/// for first. Of many more, as modules may bring, some are not known at a glance.
const PLACES: usize = 1024;

/// For each byte, whether a guarded or reserved key can begin with it.
pub(crate) type FirstBytes = [bool; 256];

/// Result of one look at the beginning of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glance {
    /// The command writes nothing.
    Nothing,
    /// The command writes the word behind its name.
    First {
        /// Number of bytes before the name's line end.
        name_end: usize,
    },
    /// Undecided: more of the command must be read.
    More,
}

/// Mask that removes the case of letters. It clears the same bit of other bytes too, which turns no
/// name of a Redis command into another's.
const FOLD: u64 = u64::from_le_bytes([!0x20; 8]);
/// `*?\r?$?\r?`: the beginning of a command of fewer than ten words, whose name has fewer than ten
/// letters.
const HEAD: u64 = u64::from_le_bytes([b'*', 0, b'\r', 0, b'$', 0, b'\r', 0]);
const HEAD_MASK: u64 = u64::from_le_bytes([0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0]);
const HEAD_LENGTH: usize = 8;

/// Returns the place where a name is looked for first. Multiplication by the golden ratio spreads
/// differences over the high bits.
#[inline]
fn place(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PLACES
}

impl Table {
    pub(super) fn new(commands: Vec<(Vec<u8>, Writes)>, first_bytes: FirstBytes) -> Table {
        let mut table = Table {
            names: HashMap::new(),
            numbers: Box::new([0; PLACES]),
            glances: Box::new([Glance::More; PLACES]),
            first_bytes,
        };
        for (count, (name, writes)) in commands.into_iter().enumerate() {
            let in_capitals = name.to_ascii_uppercase();
            // A name that was asked for before the first reading is listed twice.
            if table.names.contains_key(&in_capitals) {
                continue;
            }
            if (1..=8).contains(&name.len()) && count < PLACES / 2 {
                let mut bytes = [0; 8];
                bytes[..name.len()].copy_from_slice(&name);
                let number = u64::from_le_bytes(bytes) & FOLD;
                let mut at = place(number);
                while table.numbers[at] != 0 && table.numbers[at] != number {
                    at = (at + 1) % PLACES;
                }
                // Two names that are alike without case are told apart by a closer look.
                let glance = match &writes {
                    _ if table.numbers[at] == number => Glance::More,
                    Writes::Nothing => Glance::Nothing,
                    Writes::First => Glance::First { name_end: 0 },
                    _ => Glance::More,
                };
                (table.numbers[at], table.glances[at]) = (number, glance);
            }
            table.names.insert(in_capitals, writes);
        }
        table
    }

    /// Returns the keys that the command of this name writes; the case does not matter. Returns
    /// `None` if there is no such command.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Writes> {
        let name: SmallVec<[u8; 32]> = name.iter().map(u8::to_ascii_uppercase).collect();
        self.names.get(&name[..])
    }

    /// Glances at a command that is an array of fewer than ten words with a name of up to eight bytes,
    /// as nearly all are. The result holds for all commands with the same bytes up to the end of the
    /// name.
    #[inline]
    pub(crate) fn glance(&self, bytes: &[u8]) -> Glance {
        let Some((head, rest)) = bytes.split_first_chunk::<8>() else { return Glance::More };
        let length = usize::from(head[5].wrapping_sub(b'0'));
        let (true, 1..=8, Some(eight)) =
            (u64::from_le_bytes(*head) & HEAD_MASK == HEAD, length, rest.first_chunk::<8>())
        else {
            return Glance::More;
        };
        let number = u64::from_le_bytes(*eight) & FOLD & (u64::MAX >> (64 - 8 * length));
        // A name that ends in NUL would look like the name without it.
        if number >> (8 * (length - 1)) == 0 {
            return Glance::More;
        }
        let mut at = place(number);
        while self.numbers[at] != number {
            if self.numbers[at] == 0 {
                return Glance::More;
            }
            at = (at + 1) % PLACES;
        }
        match self.glances[at] {
            Glance::First { .. } => Glance::First { name_end: HEAD_LENGTH + length },
            glance => glance,
        }
    }

    /// Whether, by the glance, no guard is about the command at the beginning of `bytes`.
    #[inline]
    pub(crate) fn is_free(&self, glance: Glance, bytes: &[u8]) -> bool {
        match glance {
            Glance::Nothing => true,
            Glance::First { name_end } => {
                match bytes.get(name_end..).and_then(<[u8]>::first_chunk::<8>) {
                    // The key's length has one digit, or two.
                    Some(
                        [_, _, b'$', _, b'\r', _, first, _] | [_, _, b'$', _, _, b'\r', _, first],
                    ) => !self.first_bytes[usize::from(*first)],
                    _ => false,
                }
            }
            Glance::More => false,
        }
    }

    /// Returns the key of a command that, by the glance, writes the word behind its name.
    pub(crate) fn first_key<'b>(&self, glance: Glance, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let Glance::First { name_end } = glance else { return None };
        match *bytes.get(name_end..)? {
            [_, _, b'$', length @ b'1'..=b'9', b'\r', _, ref key @ ..] => {
                key.get(..usize::from(length - b'0'))
            }
            [_, _, b'$', ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', _, ref key @ ..] => {
                key.get(..usize::from(ten - b'0') * 10 + usize::from(one - b'0'))
            }
            _ => None,
        }
    }

    /// As [`Table::get`], but faster if a glance is enough. The command of this name is at the beginning of `bytes`.
    pub(crate) fn writes(&self, name: &[u8], bytes: &[u8]) -> Option<&Writes> {
        match self.glance(bytes) {
            // A glance may confuse bytes that are not letters.
            Glance::First { .. } if name.iter().all(u8::is_ascii_alphabetic) => {
                Some(&Writes::First)
            }
            _ => self.get(name),
        }
    }

    /// Number of commands, without subcommands.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Reads the reply to COMMAND INFO with these names. Malformed entries and names without a
    /// command are left out.
    pub(crate) fn read(names: &[Vec<u8>], reply: &Value, first_bytes: FirstBytes) -> Table {
        let named = names.iter().zip(items(reply));
        let entries = named.filter_map(|(name, value)| Some((name.clone(), entry(value)?.1)));
        Table::new(entries.collect(), first_bytes)
    }
}

/// Reads the names in COMMAND's reply. Redis lists the names that it was built with, which
/// `rename-command` may have removed or given to other commands.
pub(crate) fn names(reply: &Value) -> Vec<Vec<u8>> {
    let name = |entry: &Value| items(entry).first().and_then(text).map(<[u8]>::to_vec);
    items(reply).iter().filter_map(name).collect()
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        _ => &[],
    }
}

fn text(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn integer(value: Option<&Value>) -> Option<i64> {
    match value {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    }
}

fn index(value: Option<&Value>) -> Option<usize> {
    usize::try_from(integer(value)?).ok()
}

fn has(flags: &[Value], flag: &str) -> bool {
    flags.iter().any(|value| text(value).is_some_and(|t| t.eq_ignore_ascii_case(flag.as_bytes())))
}

/// Returns the field of a map, which RESP2 writes as an array of names and values.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let pair = items(map).chunks_exact(2).find(|pair| text(&pair[0]) == Some(name.as_bytes()))?;
    pair.get(1)
}

/// Reads one entry of COMMAND: name, arity, flags, first key, last key, step, and since Redis 7 ACL
/// categories, tips, key specifications and subcommands.
fn entry(value: &Value) -> Option<(Vec<u8>, Writes)> {
    let fields = items(value);
    let full = text(fields.first()?)?;
    // A subcommand is listed as "container|subcommand".
    let name = full.rsplit(|byte| *byte == b'|').next()?;
    if let Some(writes) = not_said_to_write(full) {
        return Some((name.to_vec(), writes));
    }
    let subcommands = fields.get(9).map(items).unwrap_or_default();
    if !subcommands.is_empty() {
        let known = subcommands.iter().filter_map(entry);
        let known = known.map(|(name, writes)| (name.to_ascii_uppercase(), writes)).collect();
        return Some((name.to_vec(), Writes::Subcommand(Box::new(known))));
    }
    let writes = match writes(fields) {
        Writes::Groups(groups) if groups.is_empty() => without_keys(full),
        writes => writes,
    };
    Some((name.to_vec(), writes))
}

/// Returns the keys of commands that replace data although Redis does not flag them as writes.
fn not_said_to_write(name: &[u8]) -> Option<Writes> {
    const DEBUG: [&str; 7] =
        ["CRASH-AND-RECOVER", "FLUSHALL", "LOADAOF", "POPULATE", "RELOAD", "REPLICATE", "RESTART"];
    match name.to_ascii_uppercase().as_slice() {
        b"REPLICAOF" | b"SLAVEOF" => Some(Writes::Databases),
        b"DEBUG" => {
            let known = DEBUG.map(|word| (word.as_bytes().to_vec(), Writes::Databases));
            Some(Writes::Subcommand(Box::new(HashMap::from(known))))
        }
        _ => None,
    }
}

/// Reads a command's flags and key specifications. An empty list of groups means that it writes, but
/// names no key.
fn writes(fields: &[Value]) -> Writes {
    let flags = fields.get(2).map(items).unwrap_or_default();
    // Redis does not flag EVAL and its like as writes, as that depends on the script. Other flags
    // identify them, as `rename-command` may have renamed them.
    let runs_scripts = has(flags, "movablekeys") && has(flags, "noscript");
    if has(flags, "readonly") || !(has(flags, "write") || runs_scripts) {
        return Writes::Nothing;
    }
    match fields.get(8) {
        Some(specs) => by_specs(items(specs)),
        None => by_positions(flags, fields),
    }
}

/// Returns what a command writes that names no key: whole databases, unless the command is about
/// libraries of functions.
fn without_keys(name: &[u8]) -> Writes {
    let about_functions = name.get(..9).is_some_and(|n| n.eq_ignore_ascii_case(b"function|"));
    if about_functions { Writes::Nothing } else { Writes::Databases }
}

/// Reads the keys as Redis tells them before version 7: first key, last key and step.
fn by_positions(flags: &[Value], fields: &[Value]) -> Writes {
    if has(flags, "movablekeys") {
        return Writes::Ask;
    }
    let (Some(first), Some(last)) = (index(fields.get(3)), integer(fields.get(4))) else {
        return Writes::Ask;
    };
    if first == 0 {
        return Writes::Groups(Box::default());
    }
    let step = index(fields.get(5)).unwrap_or(1);
    let last = if last < 0 { last } else { last - first as i64 };
    simplest(vec![KeySpec {
        begin: Begin::Index(first),
        find: Find::Range { last, step, limit: 0 },
    }])
}

fn by_specs(specs: &[Value]) -> Writes {
    let (mut all, mut written) = (Vec::new(), Vec::new());
    for spec in specs {
        let flags = field(spec, "flags").map(items).unwrap_or_default();
        let Some(read) = spec_of(spec).filter(|_| !has(flags, "incomplete")) else {
            return Writes::Ask;
        };
        // The word is no key, though a cluster routes the command by it.
        if has(flags, "not_key") {
            continue;
        }
        if !has(flags, "RO") {
            written.push(read.clone());
        }
        all.push(read);
    }
    // Redis flags the streams of XREADGROUP as only read, but the command writes to their groups.
    simplest(if written.is_empty() { all } else { written })
}

fn simplest(groups: Vec<KeySpec>) -> Writes {
    match groups.as_slice() {
        [only] if *only == KeySpec::first_word() => Writes::First,
        _ => Writes::Groups(groups.into()),
    }
}

fn spec_of(spec: &Value) -> Option<KeySpec> {
    let (begin, find) = (field(spec, "begin_search")?, field(spec, "find_keys")?);
    let (how, to) = (field(begin, "spec")?, field(find, "spec")?);
    let begin = match text(field(begin, "type")?)? {
        b"index" => Begin::Index(index(field(how, "index"))?),
        b"keyword" => Begin::Keyword {
            word: text(field(how, "keyword")?)?.to_vec(),
            from: integer(field(how, "startfrom"))?,
        },
        _ => return None,
    };
    let find = match text(field(find, "type")?)? {
        b"range" => Find::Range {
            last: integer(field(to, "lastkey"))?,
            step: index(field(to, "keystep"))?,
            limit: index(field(to, "limit"))?,
        },
        b"keynum" => Find::Count {
            number: index(field(to, "keynumidx"))?,
            first: index(field(to, "firstkey"))?,
            step: index(field(to, "keystep"))?,
        },
        _ => return None,
    };
    Some(KeySpec { begin, find })
}

/// Reads the reply to COMMAND GETKEYSANDFLAGS about a command of this name: the keys that are
/// written. Returns `None` if it is no such reply.
pub(super) fn written_keys(name: &[u8], reply: &Value) -> Option<Vec<Vec<u8>>> {
    // As in `by_specs`. Redis 8.0 tells the keys of XREADGROUP only when asked, so they get here.
    let writes_what_it_reads = name.eq_ignore_ascii_case(b"xreadgroup");
    let (Value::Array(pairs) | Value::Set(pairs)) = reply else { return None };
    let mut keys = Vec::new();
    for pair in pairs {
        let [key, flags @ (Value::Array(_) | Value::Set(_))] = items(pair) else { return None };
        let key = text(key)?;
        if !has(items(flags), "RO") || writes_what_it_reads {
            keys.push(key.to_vec());
        }
    }
    Some(keys)
}

/// Reads the reply to COMMAND GETKEYS. Returns `None` if it is no such reply.
pub(super) fn keys(reply: &Value) -> Option<Vec<Vec<u8>>> {
    let Value::Array(keys) = reply else { return None };
    keys.iter().map(|key| text(key).map(<[u8]>::to_vec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_told_twice_is_known_at_a_glance() {
        let names = [b"get".to_vec(), b"GET".to_vec()].map(|name| (name, Writes::Nothing));
        let table = Table::new(names.into(), [false; 256]);
        assert_eq!(table.glance(b"*2\r\n$3\r\nGet\r\n$1\r\nk\r\n"), Glance::Nothing);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_glance_does_not_make_another_command_of_a_name() {
        let table = Table::new(vec![(b"ts.add".to_vec(), Writes::First)], [true; 256]);
        let command = |name: &[u8]| [b"*2\r\n$6\r\n", name, b"\r\n$1\r\nk\r\n"].concat();
        let writes = |name: &[u8]| table.writes(name, &command(name)).cloned();
        assert_eq!(writes(b"TS.add"), Some(Writes::First));
        assert!(table.glance(&command(b"TS\x0eADD")) != Glance::More);
        assert_eq!(writes(b"TS\x0eADD"), None);
    }

    #[test]
    fn a_group_is_written_though_its_stream_is_said_to_be_read() {
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        let flags = ["RO", "access"].map(|flag| Value::SimpleString(flag.to_owned()));
        let reply = Value::Array(vec![Value::Array(vec![bulk(b"s"), Value::Set(flags.into())])]);
        assert_eq!(written_keys(b"xReadGroup", &reply), Some(vec![b"s".to_vec()]));
        assert_eq!(written_keys(b"sort", &reply), Some(Vec::new()));
    }

    #[test]
    fn an_answer_that_redis_does_not_give_names_no_keys() {
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        let list = |items: &[Value]| Value::Array(items.to_vec());
        let flags = list(&[Value::SimpleString("OW".to_owned())]);
        for reply in [
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            bulk(b"k"),
            list(&[bulk(b"k")]),
            list(&[list(&[bulk(b"k")])]),
            list(&[list(&[bulk(b"k"), bulk(b"OW")])]),
            list(&[list(&[Value::Int(1), flags.clone()])]),
        ] {
            assert_eq!(written_keys(b"sort", &reply), None, "{reply:?}");
        }
        for reply in [Value::Nil, Value::Okay, bulk(b"k"), list(&[Value::Nil]), list(&[flags])] {
            assert_eq!(keys(&reply), None, "{reply:?}");
        }
        assert_eq!(keys(&list(&[bulk(b"k")])), Some(vec![b"k".to_vec()]));
        assert_eq!(keys(&list(&[])), Some(Vec::new()));
    }
}
