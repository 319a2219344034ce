//! The question to the data node before a guarded write: has it seen a larger fence?
//!
//! The question is one packet: EVAL announces a fence that is new, WAIT has replicas acknowledge it if
//! they must, WATCH makes EXEC fail if it is written again, GET reads it, and MULTI opens the
//! transaction that the write belongs to. Fences live in database 0: if the client has selected
//! another one, SELECT goes there before WATCH and comes back behind GET. This module knows nothing of
//! connections: it makes bytes and reads replies.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    FENCE_PREFIX,
    replicas::{Replicas, Unacknowledged},
};
use crate::{
    cluster::slot::{self, TAG},
    key::Key,
    resp::{encode, expected::Expected, number},
};

/// The script that makes the data node remember a fence, and answers the largest fence that it knows.
const ANNOUNCE: &[u8] = include_bytes!("announce.lua");

/// The error if the reply to SELECT is neither OK nor an error.
const NOT_SELECTED: &[u8] = b"ERR the data node did not select the database";

/// The error while the slot of a fence is being moved from node to node.
pub(crate) const MOVING: &[u8] =
    b"TRYAGAIN the slot may be on its way to another node, and with it the fence of the lock";

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: a claim's fence counts as the largest, whatever the data node has
    /// seen.
    pub(crate) static NOT_COMPARED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A lock that this connection holds, with the fence of its grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FencedLock {
    /// The lock's key on the nodes.
    pub key: Key,
    /// The fence of the grant.
    pub fence: u64,
    /// Whether the data node is known to have seen this fence.
    pub announced: bool,
    /// The guarded key that needs the lock.
    pub wanted_for: Vec<u8>,
}

/// How a claim's fence stands on the data node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FenceStanding {
    /// The fence is the largest.
    Largest,
    /// The data node has seen this larger fence.
    Fenced(u64),
    /// The data node does not know the fence, or no longer does.
    Unknown,
    /// The node does not have the slot of the fence ([`FenceQuestion::elsewhere`]).
    Elsewhere,
}

/// A reply that is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingReply {
    /// The reply to a command before the question, or to ASKING; nothing in it matters.
    Any,
    /// The reply to EVAL or GET: the largest fence of this claim's lock.
    Fence(usize),
    /// The reply to WAIT.
    Replicas(Replicas),
    /// The reply to SELECT 0.
    There,
    /// The reply to WATCH; for one claim if each has a WATCH of its own.
    Watched(Option<usize>),
    /// The reply to the SELECT of the client's own database.
    Back,
    /// The reply to MULTI.
    Multi,
}

/// The end of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    /// MULTI, behind all else.
    Multi,
    /// Nothing: the client sends MULTI itself.
    Nothing,
    /// ASKING, behind all else, for the MULTI that the client sends itself.
    Asking,
}

/// A question under way.
#[derive(Debug)]
pub(crate) struct FenceQuestion {
    missing: VecDeque<MissingReply>,
    /// The fence that the data node has answered, by claim.
    seen: Vec<Option<u64>>,
    /// For each claim, the error of a node that does not have the slot of its fence. Only the client's
    /// own MULTI goes on without such a claim.
    elsewhere: Vec<Option<Vec<u8>>>,
    /// Whether such errors are kept by claim; if not, they count as any other error.
    goes_on: bool,
    /// The first other error line, without `-` and line end.
    error: Option<Vec<u8>>,
    /// Whether too few replicas have acknowledged the fences announced.
    lacks_replicas: bool,
    /// Whether database 0 was selected, and the client's own has not been selected again.
    astray: bool,
    /// Whether MULTI was answered with OK.
    in_multi: bool,
}

/// Where fences are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FencePlace {
    /// On the one data node.
    #[default]
    Alone,
    /// On the cluster node that has the slot of the lock's name: the lock's key without this many bytes
    /// of prefix.
    Slot { prefix: usize },
}

impl FencePlace {
    /// Appends the key of a lock's largest fence.
    pub(crate) fn append(self, out: &mut Vec<u8>, key: &Key) {
        match self.slot(key) {
            None => encode::bulk_of_two(out, FENCE_PREFIX, key),
            Some(slot) => encode::bulk_of_two(out, &tagged(slot), key),
        }
    }

    /// Returns the key of a lock's largest fence.
    pub(crate) fn fence_key(self, key: &Key) -> Vec<u8> {
        match self.slot(key) {
            None => [FENCE_PREFIX, key].concat(),
            Some(slot) => [&tagged(slot), &**key].concat(),
        }
    }

    /// Returns the slot of a lock's fence; `None` outside of a cluster.
    pub(crate) fn slot(self, key: &Key) -> Option<u16> {
        match self {
            FencePlace::Alone => None,
            FencePlace::Slot { prefix } => Some(slot::slot(key.get(prefix..).unwrap_or_default())),
        }
    }
}

/// Length of the prefix that [`tagged`] returns.
const TAGGED: usize = FENCE_PREFIX.len() + TAG + 3;

/// Returns what stands before a lock's key in the key of its fence, in a cluster. It has a hash tag of
/// the slot, as the lock's name may have none, or braces that make no tag.
fn tagged(slot: u16) -> [u8; TAGGED] {
    let mut bytes = [0; TAGGED];
    let (prefix, rest) = bytes.split_at_mut(FENCE_PREFIX.len());
    prefix.copy_from_slice(FENCE_PREFIX);
    rest[0] = b'{';
    rest[1..=TAG].copy_from_slice(&slot::tag(slot));
    rest[TAG + 1..].copy_from_slice(b"}:");
    bytes
}

/// Appends the call that announces a fence. `selected`: the connection's database, if it is known.
pub(crate) fn announce(
    out: &mut Vec<u8>,
    place: FencePlace,
    key: &Key,
    fence: u64,
    selected: Option<u64>,
    ttl: Duration,
) {
    encode::array(out, 7);
    encode::bulk(out, b"EVAL");
    encode::bulk(out, ANNOUNCE);
    encode::bulk(out, b"1");
    place.append(out, key);
    encode::bulk_number(out, fence);
    encode::bulk_number(out, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    // A client that uses database 0 alone needs no permission to SELECT.
    encode::bulk(out, if selected == Some(0) { b"" } else { b"0" });
}

/// Returns the arguments behind EVAL of the same call, for a connection on which database 0 is
/// selected.
pub(crate) fn announcement(
    place: FencePlace,
    key: &Key,
    fence: u64,
    ttl: Duration,
) -> [Vec<u8>; 6] {
    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let (fence, ttl) = (fence.to_string().into_bytes(), ttl.to_string().into_bytes());
    [ANNOUNCE.to_vec(), b"1".to_vec(), place.fence_key(key), fence, ttl, Vec::new()]
}

fn select(out: &mut Vec<u8>, database: u64) {
    encode::array(out, 2);
    encode::bulk(out, b"SELECT");
    encode::bulk_number(out, database);
}

/// Reads a fence: a bulk string that is a number. Returns `None` for any other reply.
pub(crate) fn read_fence(reply: &[u8]) -> Option<u64> {
    let line = reply.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
    let at = memchr::memchr(b'\n', line)?;
    u64::try_from(number::integer(&line[at + 1..])?).ok()
}

/// Whether no proxy's clock can have made this fence: it is more than a day ahead of the clock
/// here. Fences are microseconds since 1970.
pub(crate) fn is_from_the_future(fence: u64) -> bool {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let latest = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + DAY;
    u128::from(fence) > latest.as_micros()
}

/// Returns the text of an error reply. An `-ASK` becomes `-TRYAGAIN`: while a slot moves, a fence may
/// be on one node and the key that it protects on the other, and no client may be led past the fence.
pub(crate) fn read_error(reply: &[u8]) -> Option<Vec<u8>> {
    let text = reply.strip_prefix(b"-")?.trim_ascii_end();
    Some(if text.starts_with(b"ASK ") { MOVING.to_vec() } else { text.to_vec() })
}

/// Returns the error of a node that does not have the slot of a key that it was asked about. An `-ASK`
/// becomes `-TRYAGAIN`.
pub(crate) fn read_elsewhere(reply: &[u8]) -> Option<String> {
    let error = read_error(reply).filter(|error| is_about_slots(error))?;
    Some(String::from_utf8_lossy(&error).into_owned())
}

/// Whether an error says that another node has the slot, that no node has it, or that it is moving.
fn is_about_slots(error: &[u8]) -> bool {
    [&b"MOVED "[..], b"TRYAGAIN ", b"CLUSTERDOWN "].iter().any(|code| error.starts_with(code))
}

/// Returns the command by which fences are watched, and what its reply looks like.
fn watch() -> (&'static str, Expected) {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "watch") {
        return ("EXISTS", Expected::Number);
    }
    ("WATCH", Expected::Ok)
}

impl FenceQuestion {
    /// Appends the question about `claims`, for a connection whose database is `selected`. The first
    /// `before` replies belong to commands sent before the question. `replicas` must acknowledge a fence
    /// that is announced with it.
    pub(crate) fn ask(
        out: &mut Vec<u8>,
        place: FencePlace,
        claims: &[FencedLock],
        before: usize,
        with: With,
        selected: u64,
        (ttl, replicas): (Duration, Option<Replicas>),
    ) -> FenceQuestion {
        let mut missing: VecDeque<MissingReply> = (0..before).map(|_| MissingReply::Any).collect();
        for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| !claim.announced) {
            announce(out, place, &claim.key, claim.fence, Some(selected), ttl);
            missing.push_back(MissingReply::Fence(index));
        }
        if let Some(replicas) = replicas.filter(|_| missing.len() > before) {
            replicas.ask(out, None);
            missing.push_back(MissingReply::Replicas(replicas));
        }
        if selected != 0 {
            select(out, 0);
            missing.push_back(MissingReply::There);
        }
        let (watch, _) = watch();
        // In a cluster all keys of one command must be in one slot.
        let at_once = if place == FencePlace::Alone { claims.len().max(1) } else { 1 };
        for (index, claims) in claims.chunks(at_once).enumerate() {
            encode::array(out, 1 + claims.len());
            encode::bulk(out, watch.as_bytes());
            claims.iter().for_each(|claim| place.append(out, &claim.key));
            missing.push_back(MissingReply::Watched((place != FencePlace::Alone).then_some(index)));
        }
        for (index, claim) in claims.iter().enumerate() {
            encode::array(out, 2);
            encode::bulk(out, b"GET");
            place.append(out, &claim.key);
            missing.push_back(MissingReply::Fence(index));
        }
        if selected != 0 {
            select(out, selected);
            missing.push_back(MissingReply::Back);
        }
        match with {
            With::Multi => {
                encode::command(out, &[b"MULTI"]);
                missing.push_back(MissingReply::Multi);
            }
            With::Asking => {
                encode::command(out, &[b"ASKING"]);
                missing.push_back(MissingReply::Any);
            }
            With::Nothing => {}
        }
        let (seen, elsewhere) = (vec![None; claims.len()], vec![None; claims.len()]);
        let goes_on = with != With::Multi && place != FencePlace::Alone;
        let (lacks_replicas, astray, in_multi) = (false, false, false);
        FenceQuestion {
            missing,
            seen,
            elsewhere,
            goes_on,
            error: None,
            lacks_replicas,
            astray,
            in_multi,
        }
    }

    /// Returns how many replies are still to come.
    pub(crate) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Returns what the replies still to come look like, in their order.
    pub(crate) fn expected(&self) -> impl Iterator<Item = Expected> {
        self.missing.iter().map(|missing| match missing {
            MissingReply::Fence(_) => Expected::Text,
            MissingReply::Replicas(_) => Expected::Number,
            MissingReply::Watched(_) => watch().1,
            MissingReply::Any | MissingReply::There | MissingReply::Back | MissingReply::Multi => {
                Expected::Ok
            }
        })
    }

    /// Takes in a reply.
    pub(crate) fn reply(&mut self, reply: &[u8]) {
        let Some(missing) = self.missing.pop_front() else { return };
        match missing {
            MissingReply::Any => return,
            MissingReply::Replicas(replicas) => {
                if let Err(why) = replicas.read(reply) {
                    self.lacks_replicas |= matches!(why, Unacknowledged::TooFew(_));
                    self.error.get_or_insert_with(|| replicas.refuse_fence(&why, None));
                }
                return;
            }
            _ => {}
        }
        if let Some(error) = read_error(reply) {
            let of = match missing {
                MissingReply::Fence(index) => Some(index),
                MissingReply::Watched(index) => index,
                _ => None,
            };
            match of.filter(|_| self.goes_on && is_about_slots(&error)) {
                Some(index) => self.elsewhere[index].get_or_insert(error),
                None => self.error.get_or_insert(error),
            };
            return;
        }
        match missing {
            // The last answer counts: GET comes after WATCH.
            MissingReply::Fence(index) => self.seen[index] = read_fence(reply),
            MissingReply::Multi => self.in_multi = reply.starts_with(b"+OK"),
            MissingReply::There | MissingReply::Back if !reply.starts_with(b"+OK") => {
                self.error.get_or_insert(NOT_SELECTED.to_vec());
            }
            MissingReply::There => self.astray = true,
            MissingReply::Back => self.astray = false,
            MissingReply::Any | MissingReply::Replicas(_) | MissingReply::Watched(_) => {}
        }
    }

    /// Whether too few replicas have acknowledged a fence, once all replies are in.
    pub(crate) fn lacks_replicas(&self) -> bool {
        self.lacks_replicas
    }

    /// Whether the transaction was opened.
    pub(crate) fn in_multi(&self) -> bool {
        self.in_multi
    }

    /// Whether another database is selected than before, once all replies are in.
    pub(crate) fn is_astray(&self) -> bool {
        self.astray
    }

    /// Returns the first error, once all replies are in.
    pub(crate) fn error(&self) -> Option<&[u8]> {
        self.error.as_deref()
    }

    /// Returns why nothing was learned of this claim: another node has the slot of its fence, or no node
    /// has it.
    pub(crate) fn elsewhere(&self, claim: usize) -> Option<&[u8]> {
        self.elsewhere.get(claim)?.as_deref()
    }

    /// Returns how each claim's fence stands, once all replies are in.
    pub(crate) fn standings<'a>(
        &'a self,
        claims: &'a [FencedLock],
    ) -> impl Iterator<Item = FenceStanding> + 'a {
        let told = self.seen.iter().zip(&self.elsewhere);
        claims.iter().zip(told).map(|(claim, (seen, elsewhere))| match seen {
            _ if elsewhere.is_some() => FenceStanding::Elsewhere,
            #[cfg(test)]
            _ if NOT_COMPARED.get() => FenceStanding::Largest,
            #[cfg(feature = "planted")]
            _ if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "compare") => {
                FenceStanding::Largest
            }
            Some(seen) if *seen > claim.fence => FenceStanding::Fenced(*seen),
            Some(seen) if *seen == claim.fence => FenceStanding::Largest,
            _ => FenceStanding::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(key: &str, fence: u64, announced: bool) -> FencedLock {
        FencedLock { key: Key::from(key), fence, announced, wanted_for: Vec::new() }
    }

    fn asked(claims: &[FencedLock], with: With) -> (String, FenceQuestion) {
        asked_in(0, claims, with)
    }

    fn asked_in(selected: u64, claims: &[FencedLock], with: With) -> (String, FenceQuestion) {
        let mut out = Vec::new();
        let how = (Duration::from_secs(1), None);
        let fences =
            FenceQuestion::ask(&mut out, FencePlace::Alone, claims, 0, with, selected, how);
        (String::from_utf8(out).unwrap(), fences)
    }

    #[test]
    fn the_announcement_is_the_same_for_the_client_library() {
        for place in [FencePlace::Alone, FencePlace::Slot { prefix: 5 }] {
            let (key, ttl) = (Key::from("lock:a"), Duration::from_secs(60));
            let (mut one, mut other) = (Vec::new(), Vec::new());
            announce(&mut one, place, &key, 7, Some(0), ttl);
            let arguments = announcement(place, &key, 7, ttl);
            let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            encode::command(&mut other, &[&[b"EVAL" as &[u8]], &words[..]].concat());
            assert_eq!(one, other);
        }
    }

    #[test]
    fn what_get_says_behind_watch_counts() {
        let claims = [claim("a", 5, false), claim("b", 7, true)];
        let (sent, mut fences) = asked(&claims, With::Multi);
        assert_eq!(sent.matches("EVAL").count(), 1);
        assert_eq!(sent.matches("GET\r\n$16\r\nlockgate:guard:").count(), 2);
        for reply in ["$1\r\n5\r\n", "+OK\r\n", "$1\r\n6\r\n", "$1\r\n7\r\n", "+OK\r\n"] {
            fences.reply(reply.as_bytes());
        }
        assert_eq!(fences.missing(), 0);
        assert!(fences.in_multi() && fences.error().is_none());
        let standings: Vec<FenceStanding> = fences.standings(&claims).collect();
        assert_eq!(standings, [FenceStanding::Fenced(6), FenceStanding::Largest]);
    }

    #[test]
    fn a_fence_that_was_forgotten_is_not_the_largest() {
        let claims = [claim("a", 5, true)];
        for (reply, expected) in [
            ("$-1\r\n", FenceStanding::Unknown),
            ("_\r\n", FenceStanding::Unknown),
            ("$1\r\n4\r\n", FenceStanding::Unknown),
        ] {
            let (_, mut fences) = asked(&claims, With::Nothing);
            fences.reply(b"+OK\r\n");
            fences.reply(reply.as_bytes());
            assert_eq!(fences.standings(&claims).next(), Some(expected));
        }
    }

    #[test]
    fn another_database_is_left_and_selected_again() {
        let claims = [claim("a", 5, true)];
        let (sent, _) = asked(&claims, With::Multi);
        assert!(!sent.contains("SELECT"));
        let (sent, _) = asked_in(12, &claims, With::Multi);
        let mut expected = Vec::new();
        for words in [
            &["SELECT", "0"][..],
            &["WATCH", "lockgate:guard:a"],
            &["GET", "lockgate:guard:a"],
            &["SELECT", "12"],
            &["MULTI"],
        ] {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode::command(&mut expected, &words);
        }
        assert_eq!(sent, String::from_utf8(expected).unwrap());
        for (there, back, astray, error) in [
            ("+OK", "+OK", false, None),
            ("+OK", "-NOPERM x", true, Some("NOPERM x")),
            ("-NOPERM y", "-NOPERM x", false, Some("NOPERM y")),
            ("+OK", ":1", true, Some("ERR the data node did not select the database")),
            ("$-1", "+OK", false, Some("ERR the data node did not select the database")),
        ] {
            let (_, mut fences) = asked_in(12, &claims, With::Multi);
            for reply in [there, "+OK", "$1\r\n5", back, "+OK"] {
                fences.reply(format!("{reply}\r\n").as_bytes());
            }
            assert_eq!((fences.missing(), fences.is_astray()), (0, astray), "{there} {back}");
            assert_eq!(fences.error(), error.map(str::as_bytes), "{there} {back}");
        }
    }

    #[test]
    fn replicas_acknowledge_a_fence_that_is_announced_before_it_counts() {
        let config = crate::config::GuardsConfig { replicas: 2, ..Default::default() };
        let how = (Duration::from_secs(1), Replicas::of(&config));
        let asked = |announced| {
            let (mut out, claims) = (Vec::new(), [claim("a", 5, announced)]);
            let place = FencePlace::Alone;
            let fences = FenceQuestion::ask(&mut out, place, &claims, 1, With::Multi, 0, how);
            (String::from_utf8(out).unwrap(), fences)
        };
        assert!(!asked(true).0.contains("WAIT"), "it was acknowledged before");
        for (reply, lacks, error) in [
            (":2\r\n", false, None),
            (":1\r\n", true, Some("NOREPLICAS 1 of 2 replicas")),
            ("-NOPERM x\r\n", false, Some("NOPERM guards.replicas needs WAIT: x")),
        ] {
            let (sent, mut fences) = asked(false);
            let place = |word: &str| sent.find(word).unwrap();
            assert!(place("EVAL") < place("WAIT") && place("WAIT") < place("WATCH"));
            let others = ["+OK\r\n", "$1\r\n5\r\n"];
            for reply in others.into_iter().chain([reply, "+OK\r\n", "$1\r\n5\r\n", "+OK\r\n"]) {
                fences.reply(reply.as_bytes());
            }
            assert_eq!((fences.missing(), fences.lacks_replicas()), (0, lacks));
            let told = fences.error().map(String::from_utf8_lossy);
            assert_eq!(told.is_some(), error.is_some());
            assert!(told.unwrap_or_default().starts_with(error.unwrap_or_default()));
        }
    }

    #[test]
    fn in_a_cluster_each_fence_is_asked_about_by_itself_and_may_be_elsewhere() {
        let claims = [claim("lock:a", 5, false), claim("lock:b", 7, true)];
        let ask = |with| {
            let (mut out, how) = (Vec::new(), (Duration::from_secs(1), None));
            let place = FencePlace::Slot { prefix: 5 };
            let question = FenceQuestion::ask(&mut out, place, &claims, 0, with, 0, how);
            (String::from_utf8(out).unwrap(), question)
        };
        let replies =
            ["$1\r\n5\r\n", "+OK\r\n", "-MOVED 1 b:1\r\n", "$1\r\n5\r\n", "-MOVED 1 b:1\r\n"];
        let (sent, mut fences) = ask(With::Nothing);
        assert_eq!(sent.matches("WATCH").count(), 2);
        replies.iter().for_each(|reply| fences.reply(reply.as_bytes()));
        let standings: Vec<FenceStanding> = fences.standings(&claims).collect();
        assert_eq!(standings, [FenceStanding::Largest, FenceStanding::Elsewhere]);
        assert_eq!((fences.error(), fences.elsewhere(0)), (None, None));
        assert_eq!(fences.elsewhere(1), Some(b"MOVED 1 b:1".as_slice()));
        // A write goes on with all of its fences or with none.
        let (_, mut fences) = ask(With::Multi);
        replies.iter().for_each(|reply| fences.reply(reply.as_bytes()));
        assert_eq!(fences.error(), Some(b"MOVED 1 b:1".as_slice()));
    }

    #[test]
    fn nobody_is_asked_to_go_on_elsewhere_while_a_slot_moves() {
        assert_eq!(read_error(b"-ASK 7 10.0.0.1:1\r\n").as_deref(), Some(MOVING));
        assert!(read_elsewhere(b"-ASK 7 10.0.0.1:1\r\n").unwrap().starts_with("TRYAGAIN "));
        assert_eq!(read_elsewhere(b"-MOVED 7 10.0.0.1:1\r\n").unwrap(), "MOVED 7 10.0.0.1:1");
        for here in ["-ERR syntax error\r\n", "$-1\r\n", "-NOPERM no\r\n"] {
            assert_eq!(read_elsewhere(here.as_bytes()), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn a_fence_is_in_the_slot_of_the_locks_name(
            name in "[{}a*:]{0,12}", bytes: Vec<u8>, prefix in "[{}l:]{0,6}"
        ) {
            let place = FencePlace::Slot { prefix: prefix.len() };
            for name in [name.as_bytes(), &bytes] {
                let key = Key::new(prefix.as_bytes(), name);
                proptest::prop_assert_eq!(slot::slot(&place.fence_key(&key)), slot::slot(name));
                let mut out = Vec::new();
                place.append(&mut out, &key);
                let mut expected = Vec::new();
                encode::bulk(&mut expected, &place.fence_key(&key));
                proptest::prop_assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn the_first_error_is_kept() {
        let (_, mut fences) = asked(&[claim("a", 5, true)], With::Multi);
        fences.reply(b"-NOPERM x\r\n");
        fences.reply(b"-ERR y\r\n");
        fences.reply(b"+OK\r\n");
        assert_eq!(fences.error(), Some(b"NOPERM x".as_slice()));
        assert!(fences.in_multi());
    }
}
