//! The Lua scripts that lock nodes run, and how they are called.

use std::{sync::LazyLock, time::Duration};

use super::Claim;
use crate::{
    clock::millis,
    cluster::slot,
    config::{LockNode, LockNotify, LocksConfig},
    resp::encode,
};

/// Prefix of the key of a lock's last fence; the lock's key follows. [`Dialect::Tagged`] puts a tag of the key's slot
/// between them, as in `lockgate:fence:{abcd}:lock:job`. The lock's key itself could be the tag for most keys, but
/// not for those with braces.
const FENCE_PREFIX: &[u8] = b"lockgate:fence:";
/// Prefix of the channel on which a lock's release is published; the lock's key follows. The scripts have it too.
const CHANNEL_PREFIX: &[u8] = b"lockgate:free:";
/// Prefix of the stream by which those that wait hear of a lock's release; the lock's key follows. The scripts have
/// it too.
const STREAM_PREFIX: &[u8] = b"lockgate:wake:";
/// The key of a node's marker: its deployment, epoch and seat. Scripts that vote are sent the marker to compare. They
/// name its key themselves: passed as one of the keys of each call, it would make a LOCK with its UNLOCK cost a node
/// 2 % more.
pub(crate) const MARKER: &[u8] = b"lockgate:deployment";
/// The key of the longest TTL that was ever stored on a node, in ms.
pub(crate) const LONGEST: &[u8] = b"lockgate:longest";
/// The key of the largest `locks.max_ttl` of any proxy, in ms. If all nodes forget, the proxies that have seen it
/// wait for that long.
pub(crate) const MAX_TTL: &[u8] = b"lockgate:max_ttl";
/// The most locks that one call renews. Their sum (see prolong.lua) must be exact in a double, as Lua's numbers are;
/// that would allow 53.
pub(super) const MAX_RENEWALS: usize = 50;

/// How the keys beside a lock's own are named on the nodes of a deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// By the lock's key alone: no node is a cluster's.
    #[default]
    Plain,
    /// By a tag of the slot of the lock's key too: there is a cluster among the nodes, and a script may touch only
    /// one slot beside that of the node's marker, whose key it is sent.
    Tagged,
    /// As [`Dialect::Tagged`], and releases are published by streams.
    Streams,
}

impl Dialect {
    /// Returns the dialect of a configuration's nodes. It is the same on all of them, as one request goes to all.
    pub(super) fn of(config: &LocksConfig) -> Dialect {
        let is_cluster = |node: &LockNode| matches!(node, LockNode::Cluster(_));
        match (config.nodes.iter().any(is_cluster), config.notify) {
            (true, LockNotify::Stream) => Dialect::Streams,
            (true, LockNotify::PubSub) => Dialect::Tagged,
            (false, _) => Dialect::Plain,
        }
    }

    /// Whether the keys beside a lock are named by its slot.
    pub(super) fn is_tagged(self) -> bool {
        self != Dialect::Plain
    }
}

/// A part that stands before a script: it gives names to what differs between dialects.
struct ScriptPart {
    plain: &'static str,
    tagged: &'static str,
    streams: &'static str,
}

/// Where the node's marker lies (`place`). In [`Dialect::Tagged`] the script is sent that key, behind the marker.
const COMPARES: ScriptPart = ScriptPart {
    plain: include_str!("scripts/plain_marker.lua"),
    tagged: include_str!("scripts/tagged_marker.lua"),
    streams: include_str!("scripts/tagged_marker.lua"),
};
/// The names beside a lock (`beside`), and how keys with such names are asked for (`ask`).
const NAMES: ScriptPart = ScriptPart {
    plain: include_str!("scripts/plain_beside.lua"),
    tagged: include_str!("scripts/tagged_beside.lua"),
    streams: include_str!("scripts/tagged_beside.lua"),
};
/// How those who wait for a lock are told of its release (`wake`).
const WAKES: ScriptPart = ScriptPart {
    plain: include_str!("scripts/plain_wake.lua"),
    tagged: include_str!("scripts/tagged_wake.lua"),
    streams: include_str!("scripts/streams.lua"),
};
/// How those who wait for a lock are counted (`waiters`).
const COUNTS: ScriptPart = ScriptPart {
    plain: include_str!("scripts/plain_waiters.lua"),
    tagged: include_str!("scripts/tagged_waiters.lua"),
    streams: include_str!("scripts/streams.lua"),
};

/// The set of a lock's readers, and how it is read and changed.
const READS: ScriptPart = ScriptPart {
    plain: include_str!("scripts/readers.lua"),
    tagged: include_str!("scripts/readers.lua"),
    streams: include_str!("scripts/readers.lua"),
};

/// One script, known to a node by its digest.
struct Script {
    body: String,
    digest: String,
    /// The beginning of every call with the script's number of keys and arguments.
    call: Vec<u8>,
}

/// A script in all dialects.
struct Dialects {
    plain: Script,
    tagged: Script,
    streams: Script,
}

impl Dialects {
    /// Makes a script that needs these parts before it, from its text, and how many keys and arguments it gets. One
    /// that begins with [`COMPARES`] gets another argument unless it is plain.
    fn new(parts: &[&ScriptPart], body: &'static str, keys: usize, arguments: usize) -> Dialects {
        let compares = parts.first().is_some_and(|part| part.plain == COMPARES.plain);
        let script = |more: usize, of: fn(&ScriptPart) -> &'static str| {
            let texts = parts.iter().map(|part| of(part)).chain([body]);
            Script::new(texts.collect(), keys, arguments + more)
        };
        Dialects {
            plain: script(0, |part| part.plain),
            tagged: script(usize::from(compares), |part| part.tagged),
            streams: script(usize::from(compares), |part| part.streams),
        }
    }

    fn in_dialect(&self, dialect: Dialect) -> &Script {
        match dialect {
            Dialect::Plain => &self.plain,
            Dialect::Tagged => &self.tagged,
            Dialect::Streams => &self.streams,
        }
    }
}

impl Script {
    fn new(body: String, keys: usize, arguments: usize) -> Script {
        let digest = sha1_smol::Sha1::from(&body).digest().to_string();
        let call = beginning(&digest, keys, arguments);
        Script { body, digest, call }
    }

    /// Begins a call, with room for `bytes` of keys and arguments.
    fn call(&self, bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.call.len() + bytes);
        out.extend_from_slice(&self.call);
        out
    }
}

fn beginning(digest: &str, keys: usize, arguments: usize) -> Vec<u8> {
    let mut out = Vec::new();
    encode::array(&mut out, 3 + keys + arguments);
    encode::bulk(&mut out, b"EVALSHA");
    encode::bulk(&mut out, digest.as_bytes());
    encode::bulk_number(&mut out, keys as u64);
    out
}

static ACQUIRE: LazyLock<Dialects> = LazyLock::new(|| {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "readers") {
        let body = include_str!("scripts/acquire.lua").replace("last >= now", "false");
        return Dialects::new(&[&COMPARES], body.leak(), 2, 7);
    }
    Dialects::new(&[&COMPARES], include_str!("scripts/acquire.lua"), 2, 7)
});
static RELEASE: LazyLock<Dialects> = LazyLock::new(|| {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "release") {
        return Dialects::new(&[], "redis.call('DEL', KEYS[1]) return {1, 0, 0}", 2, 3);
    }
    Dialects::new(&[&NAMES, &WAKES], include_str!("scripts/release.lua"), 2, 3)
});
static UNDO: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&NAMES, &WAKES], include_str!("scripts/undo.lua"), 2, 3));
static RENEW: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&COMPARES], include_str!("scripts/renew.lua"), 2, 5));
static PROLONG: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&COMPARES], include_str!("scripts/prolong.lua"), 3, 5));
static HEAL: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&COMPARES, &NAMES, &READS], include_str!("scripts/heal.lua"), 2, 6)
});
static HAND_OVER: LazyLock<Dialects> = LazyLock::new(|| {
    let parts = &[&COMPARES, &NAMES, &COUNTS, &READS];
    Dialects::new(parts, include_str!("scripts/hand_over.lua"), 2, 8)
});
static RAISE: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&COMPARES], include_str!("scripts/raise.lua"), 2, 5));
static ATTACH: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&COMPARES], include_str!("scripts/attach.lua"), 2, 2));
static LOOK: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&COMPARES], include_str!("scripts/look.lua"), 2, 1));
static TAKE_OVER: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[&COMPARES], include_str!("scripts/take_over.lua"), 2, 6));
static NOTE: LazyLock<Dialects> =
    LazyLock::new(|| Dialects::new(&[], include_str!("scripts/longest.lua"), 1, 1));

static ACQUIRE_SHARED: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&COMPARES, &READS], include_str!("scripts/acquire_shared.lua"), 2, 6)
});
static RELEASE_SHARED: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&NAMES, &WAKES, &READS], include_str!("scripts/release_shared.lua"), 2, 3)
});
static RENEW_SHARED: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&COMPARES, &READS], include_str!("scripts/renew_shared.lua"), 2, 4)
});
static PROLONG_SHARED: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&COMPARES, &READS], include_str!("scripts/prolong_shared.lua"), 3, 4)
});
static HEAL_SHARED: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&COMPARES, &NAMES, &READS], include_str!("scripts/heal_shared.lua"), 2, 4)
});
static LOOK_SHARED: LazyLock<Dialects> = LazyLock::new(|| {
    Dialects::new(&[&COMPARES, &READS], include_str!("scripts/look_shared.lua"), 2, 2)
});

/// All scripts, in the order in which they are loaded.
static ALL: [&LazyLock<Dialects>; LOADS] = [
    &ACQUIRE,
    &RELEASE,
    &UNDO,
    &RENEW,
    &PROLONG,
    &HEAL,
    &RAISE,
    &HAND_OVER,
    &ATTACH,
    &TAKE_OVER,
    &NOTE,
    &LOOK,
    &ACQUIRE_SHARED,
    &RELEASE_SHARED,
    &RENEW_SHARED,
    &PROLONG_SHARED,
    &HEAL_SHARED,
    &LOOK_SHARED,
];

/// The number of commands that [`load`] appends.
pub(super) const LOADS: usize = 18;

/// Appends a SCRIPT LOAD for every script.
pub(crate) fn load(dialect: Dialect, out: &mut Vec<u8>) {
    for script in ALL {
        let body = &script.in_dialect(dialect).body;
        encode::command(out, &[b"SCRIPT", b"LOAD", body.as_bytes()]);
    }
}

/// Returns the key of a lock's fence and claim, on a node that is no cluster's.
pub(super) fn fence_key(key: &[u8]) -> Vec<u8> {
    beside(Dialect::Plain, FENCE_PREFIX, key)
}

/// Returns the channel on which a node publishes the release of the lock at `key`.
pub(super) fn channel(dialect: Dialect, key: &[u8]) -> Vec<u8> {
    beside(dialect, CHANNEL_PREFIX, key)
}

/// Returns the stream of those that wait for the lock at `key`.
pub(super) fn stream(dialect: Dialect, key: &[u8]) -> Vec<u8> {
    beside(dialect, STREAM_PREFIX, key)
}

/// Returns the name with this prefix that belongs to the lock at `key`. On a cluster it lies in the key's slot.
fn beside(dialect: Dialect, prefix: &[u8], key: &[u8]) -> Vec<u8> {
    match dialect.is_tagged() {
        true => [prefix, b"{", &slot::tag(slot::slot(key)), b"}:", key].concat(),
        false => [prefix, key].concat(),
    }
}

/// Returns the key of the lock whose releases are published on `channel`.
pub(super) fn key_of_channel(dialect: Dialect, channel: &[u8]) -> Option<&[u8]> {
    let key = channel.strip_prefix(CHANNEL_PREFIX)?;
    match dialect.is_tagged() {
        true => key.get(slot::TAG + 3..),
        false => Some(key),
    }
}

/// The grant that a release means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) claim: Claim,
    /// Set if a proxy may be putting the grant back: for how long nodes refuse that.
    pub(crate) barred: Option<Duration>,
}

/// A request for a lock.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) token: &'a [u8],
    pub(crate) ttl: Duration,
    /// The proposed fence. A node gives a larger one if it knows one.
    pub(crate) fence: u64,
    pub(crate) fence_ttl: Duration,
    pub(crate) claim: Claim,
}

impl Wanted<'_> {
    fn bytes(&self) -> usize {
        FENCE_PREFIX.len() + 2 * self.key.len() + self.token.len() + 310
    }

    fn append_arguments(&self, out: &mut Vec<u8>) {
        encode::bulk(out, self.token);
        encode::bulk_number(out, millis(self.ttl));
        encode::bulk_number(out, self.fence);
        encode::bulk_number(out, millis(self.fence_ttl));
        encode::bulk_number(out, self.claim.number());
    }
}

/// Appends the lock's key, and that of its fence and claim.
#[inline]
fn append_keys(out: &mut Vec<u8>, dialect: Dialect, key: &[u8]) {
    encode::bulk(out, key);
    match dialect.is_tagged() {
        false => encode::bulk_of_two(out, FENCE_PREFIX, key),
        true => encode::bulk_of_two(out, &tagged_prefix(key), key),
    }
}

/// Returns [`FENCE_PREFIX`] with a tag of the key's slot behind it. Not inlined: without a cluster it costs nothing.
#[inline(never)]
fn tagged_prefix(key: &[u8]) -> [u8; FENCE_PREFIX.len() + slot::TAG + 3] {
    let tag = slot::tag(slot::slot(key));
    let mut prefix = [0; FENCE_PREFIX.len() + slot::TAG + 3];
    let (first, rest) = prefix.split_at_mut(FENCE_PREFIX.len());
    first.copy_from_slice(FENCE_PREFIX);
    rest[0] = b'{';
    rest[1..=slot::TAG].copy_from_slice(&tag);
    rest[slot::TAG + 1..].copy_from_slice(b"}:");
    prefix
}

/// Returns how many bytes to reserve for keys and a token, and for numbers beside them.
fn room(key: &[u8], token: &[u8]) -> usize {
    FENCE_PREFIX.len() + 2 * key.len() + token.len() + 210
}

fn append_claim(out: &mut Vec<u8>, claim: Option<Claim>) {
    match claim {
        Some(claim) => encode::bulk_number(out, claim.number()),
        None => encode::bulk(out, b""),
    }
}

/// Asks for a lock. `again`: only where this claim has it already.
///
/// This and all other requests of scripts that vote lack their last argument. It differs from node
/// to node and is appended when the request is sent: [`told`].
pub(crate) fn acquire(dialect: Dialect, wanted: &Wanted<'_>, again: bool) -> Vec<u8> {
    let mut out = ACQUIRE.in_dialect(dialect).call(wanted.bytes());
    append_keys(&mut out, dialect, wanted.key);
    wanted.append_arguments(&mut out);
    encode::bulk(&mut out, if again { b"1" } else { b"" });
    out
}

/// Asks for a lock for a client that waits in line: where it has readers, a node notes the intent, which may bar new
/// readers for the time `bars`, of at least 2 ms.
pub(super) fn acquire_in_line(dialect: Dialect, wanted: &Wanted<'_>, bars: Duration) -> Vec<u8> {
    let mut out = ACQUIRE.in_dialect(dialect).call(wanted.bytes());
    append_keys(&mut out, dialect, wanted.key);
    wanted.append_arguments(&mut out);
    encode::bulk_number(&mut out, millis(bars).max(2));
    out
}

pub(super) fn hand_over(
    dialect: Dialect,
    from: &[u8],
    claim: Claim,
    wanted: &Wanted<'_>,
) -> Vec<u8> {
    let mut out = HAND_OVER.in_dialect(dialect).call(wanted.bytes() + from.len());
    append_keys(&mut out, dialect, wanted.key);
    encode::bulk(&mut out, from);
    encode::bulk_number(&mut out, claim.number());
    wanted.append_arguments(&mut out);
    out
}

/// Undoes an attempt. `met_readers`: it was refused where there are readers, and its client waits.
pub(crate) fn undo(
    dialect: Dialect,
    key: &[u8],
    token: &[u8],
    claim: Claim,
    met_readers: bool,
) -> Vec<u8> {
    let mut out = UNDO.in_dialect(dialect).call(room(key, token));
    append_keys(&mut out, dialect, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, claim.number());
    encode::bulk(&mut out, if met_readers { b"1" } else { b"" });
    out
}

pub(crate) fn release(
    dialect: Dialect,
    key: &[u8],
    token: &[u8],
    who: &[u8],
    ended: Ended,
) -> Vec<u8> {
    let script = RELEASE.in_dialect(dialect);
    let mut out = match ended.barred {
        Some(_) => beginning(&script.digest, 2, 4),
        None => script.call(room(key, token) + who.len()),
    };
    append_keys(&mut out, dialect, key);
    encode::bulk(&mut out, token);
    encode::bulk(&mut out, who);
    append_claim_to_find(&mut out, ended.claim);
    if let Some(barred) = ended.barred {
        encode::bulk_number(&mut out, millis(barred));
    }
    out
}

pub(crate) fn renew(
    dialect: Dialect,
    key: &[u8],
    token: &[u8],
    ttl: Duration,
    claim: Option<Claim>,
    fence_ttl: Duration,
) -> Vec<u8> {
    let mut out = RENEW.in_dialect(dialect).call(room(key, token));
    append_keys(&mut out, dialect, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, millis(ttl));
    append_claim(&mut out, claim);
    encode::bulk_number(&mut out, millis(fence_ttl));
    out
}

/// One of the locks that a call renews.
pub(super) struct Prolonged<'a> {
    pub(super) key: &'a [u8],
    pub(super) token: &'a [u8],
    /// `None`: the lock is only looked at, and its TTL stays.
    pub(super) ttl: Option<Duration>,
    pub(super) claim: Claim,
}

/// Appends a claim for release and renewal, which search for it. Claims have sixteen digits, so with a blank before
/// it none is part of another.
fn append_claim_to_find(out: &mut Vec<u8>, claim: Claim) {
    encode::bulk_of_two(out, b" ", itoa::Buffer::new().format(claim.number()).as_bytes());
}

fn append_ttl(out: &mut Vec<u8>, ttl: Option<Duration>) {
    match ttl {
        Some(ttl) => encode::bulk_number(out, millis(ttl)),
        None => encode::bulk(out, b"-1"),
    }
}

/// Renews at most [`MAX_RENEWALS`] locks. Without a `fence_ttl`, fences stay as they are.
pub(super) fn prolong(
    dialect: Dialect,
    locks: &[Prolonged<'_>],
    fence_ttl: Option<Duration>,
) -> Vec<u8> {
    debug_assert!(locks.len() <= MAX_RENEWALS, "their sum must be exact");
    let digest = &PROLONG.in_dialect(dialect).digest;
    let more = usize::from(dialect.is_tagged());
    let mut out = beginning(digest, 2 * locks.len(), 3 * locks.len() + 2 + more);
    for lock in locks {
        append_keys(&mut out, dialect, lock.key);
    }
    for lock in locks {
        encode::bulk(&mut out, lock.token);
        append_ttl(&mut out, lock.ttl);
        append_claim_to_find(&mut out, lock.claim);
    }
    match fence_ttl {
        Some(ttl) => encode::bulk_number(&mut out, millis(ttl)),
        None => encode::bulk(&mut out, b""),
    }
    out
}

/// Puts a lock back with this fence and claim if a node has lost it.
pub(crate) fn heal(dialect: Dialect, wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = HEAL.in_dialect(dialect).call(wanted.bytes());
    append_keys(&mut out, dialect, wanted.key);
    wanted.append_arguments(&mut out);
    out
}

/// Gives a lock that the token holds a new claim.
pub(super) fn take_over(dialect: Dialect, wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = TAKE_OVER.in_dialect(dialect).call(wanted.bytes());
    append_keys(&mut out, dialect, wanted.key);
    wanted.append_arguments(&mut out);
    out
}

pub(crate) fn raise(
    dialect: Dialect,
    key: &[u8],
    token: &[u8],
    fence: u64,
    fence_ttl: Duration,
    claim: Claim,
) -> Vec<u8> {
    let mut out = RAISE.in_dialect(dialect).call(room(key, token));
    append_keys(&mut out, dialect, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, fence);
    encode::bulk_number(&mut out, millis(fence_ttl));
    encode::bulk_number(&mut out, claim.number());
    out
}

pub(crate) fn attach(dialect: Dialect, key: &[u8], token: &[u8]) -> Vec<u8> {
    let mut out = ATTACH.in_dialect(dialect).call(room(key, token));
    append_keys(&mut out, dialect, key);
    encode::bulk(&mut out, token);
    out
}

/// Asks which token holds a lock.
pub(crate) fn look(dialect: Dialect, key: &[u8]) -> Vec<u8> {
    let mut out = LOOK.in_dialect(dialect).call(room(key, b""));
    append_keys(&mut out, dialect, key);
    out
}

/// The calls about readers of a lock, which name a reader by its token and its claim.
pub(super) mod shared {
    use super::*;

    /// Appends keys, token and claim of a reader, with `between` them.
    fn call(
        script: &Dialects,
        dialect: Dialect,
        (key, token, claim): (&[u8], &[u8], Claim),
        between: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let mut out = script.in_dialect(dialect).call(room(key, token));
        append_keys(&mut out, dialect, key);
        encode::bulk(&mut out, token);
        between(&mut out);
        encode::bulk_number(&mut out, claim.number());
        out
    }

    /// Asks to read. `again`: only where this claim does so already. `bars`: for how long intents of writers bar new
    /// readers.
    pub(in crate::lock) fn acquire(
        dialect: Dialect,
        wanted: &Wanted<'_>,
        again: bool,
        bars: Duration,
    ) -> Vec<u8> {
        let reader = (wanted.key, wanted.token, wanted.claim);
        let ttl = |out: &mut Vec<u8>| encode::bulk_number(out, millis(wanted.ttl));
        let mut out = call(&ACQUIRE_SHARED, dialect, reader, ttl);
        encode::bulk(&mut out, if again { b"1" } else { b"" });
        encode::bulk_number(&mut out, millis(bars));
        out
    }

    /// Takes a reader away: one that has ended, or what one attempt may have added.
    pub(in crate::lock) fn release(
        dialect: Dialect,
        key: &[u8],
        token: &[u8],
        who: &[u8],
        ended: Ended,
    ) -> Vec<u8> {
        let who = |out: &mut Vec<u8>| encode::bulk(out, who);
        let Some(barred) = ended.barred else {
            return call(&RELEASE_SHARED, dialect, (key, token, ended.claim), who);
        };
        let mut out = beginning(&RELEASE_SHARED.in_dialect(dialect).digest, 2, 4);
        append_keys(&mut out, dialect, key);
        encode::bulk(&mut out, token);
        who(&mut out);
        encode::bulk_number(&mut out, ended.claim.number());
        encode::bulk_number(&mut out, millis(barred));
        out
    }

    /// Takes all readers of a lock away, and refuses for the time `barred` to have them put back.
    pub(in crate::lock) fn release_all(
        dialect: Dialect,
        key: &[u8],
        who: &[u8],
        barred: Duration,
    ) -> Vec<u8> {
        let ended = Ended { claim: Claim::NOT_STORED, barred: Some(barred) };
        release(dialect, key, b"", who, ended)
    }

    /// Gives a reader a fresh TTL.
    pub(in crate::lock) fn renew(
        dialect: Dialect,
        key: &[u8],
        token: &[u8],
        ttl: Duration,
        claim: Claim,
    ) -> Vec<u8> {
        let ttl = |out: &mut Vec<u8>| encode::bulk_number(out, millis(ttl));
        call(&RENEW_SHARED, dialect, (key, token, claim), ttl)
    }

    /// Keeps at most [`MAX_RENEWALS`] readers.
    pub(in crate::lock) fn prolong(dialect: Dialect, locks: &[Prolonged<'_>]) -> Vec<u8> {
        debug_assert!(locks.len() <= MAX_RENEWALS, "their sum must be exact");
        let digest = &PROLONG_SHARED.in_dialect(dialect).digest;
        let more = usize::from(dialect.is_tagged());
        let mut out = beginning(digest, 2 * locks.len(), 3 * locks.len() + 1 + more);
        for lock in locks {
            append_keys(&mut out, dialect, lock.key);
        }
        for lock in locks {
            encode::bulk(&mut out, lock.token);
            append_ttl(&mut out, lock.ttl);
            encode::bulk_number(&mut out, lock.claim.number());
        }
        out
    }

    /// Puts a reader back if a node has lost it.
    pub(in crate::lock) fn heal(dialect: Dialect, wanted: &Wanted<'_>) -> Vec<u8> {
        let ttl = |out: &mut Vec<u8>| encode::bulk_number(out, millis(wanted.ttl));
        call(&HEAL_SHARED, dialect, (wanted.key, wanted.token, wanted.claim), ttl)
    }

    /// Asks by which grant a token reads.
    pub(in crate::lock) fn look(dialect: Dialect, key: &[u8], token: &[u8]) -> Vec<u8> {
        let mut out = LOOK_SHARED.in_dialect(dialect).call(room(key, token));
        append_keys(&mut out, dialect, key);
        encode::bulk(&mut out, token);
        out
    }
}

/// Has a node note at `key` that it is about to store a lock for `ttl`, or that a proxy may ask for
/// one.
pub(crate) fn note(key: &[u8], ttl: Duration) -> Vec<u8> {
    let mut out = NOTE.plain.call(key.len() + 50);
    encode::bulk(&mut out, key);
    encode::bulk_number(&mut out, millis(ttl));
    out
}

/// Encodes the end of all requests that vote: the marker that a node must have, in the memory that votes (empty:
/// nothing is compared); and in [`Dialect::Tagged`] the marker's key.
pub(crate) fn told(dialect: Dialect, line: &[u8], place: &[u8]) -> Vec<u8> {
    #[cfg(feature = "planted")]
    let line: &[u8] = match std::env::var("LOCKGATE_PLANT") {
        Ok(fault) if fault == "marker" => b"",
        _ => line,
    };
    let mut out = Vec::with_capacity(line.len() + place.len() + 32);
    encode::bulk(&mut out, line);
    if dialect.is_tagged() {
        encode::bulk(&mut out, place);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_script_has_the_parts_whose_names_it_uses_and_no_others() {
        let parts: [(&ScriptPart, &[&str]); 5] = [
            (&COMPARES, &["place"]),
            (&NAMES, &["beside", "ask("]),
            (&WAKES, &["wake("]),
            (&COUNTS, &["waiters("]),
            (&READS, &["mark("]),
        ];
        for script in ALL {
            let whole = &script.plain.body;
            for (part, names) in parts {
                let rest = whole.replace(part.plain, "");
                let mut code = rest.lines().filter(|line| !line.trim_start().starts_with("--"));
                let is_needed = code.any(|line| names.iter().any(|name| line.contains(name)));
                assert_eq!(whole.contains(part.plain), is_needed, "{names:?}:\n{whole}");
            }
            let first = script.plain.body.contains(COMPARES.plain);
            assert_eq!(first, script.plain.body.starts_with(COMPARES.plain), "{whole}");
            // No key and no channel of a cluster is named by the lock's key alone.
            for text in [&script.tagged.body, &script.streams.body] {
                let mut code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
                let is_plain =
                    |line: &str| line.contains("lockgate:") && !line.contains(".. beside");
                assert!(!code.any(is_plain) && !text.contains(NAMES.plain), "{text}");
            }
        }
    }

    proptest! {
        /// A Redis Cluster refuses a script that touches keys of two slots.
        #[test]
        fn keys_beside_a_lock_have_its_slot(
            braces in "lock:[{}a*b]{0,12}", bytes: Vec<u8>, plain in "lock:[a-z]{1,10}",
        ) {
            for key in [braces.as_bytes(), &bytes, plain.as_bytes()] {
                let mut out = Vec::new();
                append_keys(&mut out, Dialect::Tagged, key);
                let mut expected = Vec::new();
                let tag = slot::tag(slot::slot(key));
                let fence = [FENCE_PREFIX, b"{", &tag, b"}:", key].concat();
                encode::bulk(&mut expected, key);
                encode::bulk(&mut expected, &fence);
                prop_assert_eq!(out, expected);
                prop_assert_eq!(slot::slot(&fence), slot::slot(key));
                let ended = [b"lockgate:ended:", &fence[FENCE_PREFIX.len()..]].concat();
                prop_assert_eq!(slot::slot(&ended), slot::slot(key));
                let channel = channel(Dialect::Tagged, key);
                prop_assert_eq!(&channel, &[CHANNEL_PREFIX, &fence[FENCE_PREFIX.len()..]].concat());
                prop_assert_eq!(slot::slot(&channel), slot::slot(key));
                prop_assert_eq!(key_of_channel(Dialect::Tagged, &channel), Some(key));
            }
        }
    }
}
