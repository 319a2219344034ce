//! The Lua scripts that lock nodes run, and how they are called.

use std::{sync::LazyLock, time::Duration};

use super::Claim;
use crate::{clock::millis, resp::encode};

/// Prefix that makes a lock's key the key of its last fence.
const FENCE_PREFIX: &[u8] = b"lockgate:fence:";
/// Prefix that makes a lock's key the channel on which its release is published. The scripts know
/// it too.
const CHANNEL_PREFIX: &[u8] = b"lockgate:free:";
/// The key of a node's marker: its deployment, epoch and seat. Scripts that vote are sent the
/// marker to compare. They name its key themselves: as one of the keys of each call it would cost a
/// node 2 % of a LOCK with its UNLOCK more.
pub(crate) const MARKER: &[u8] = b"lockgate:deployment";
/// The key of the longest TTL that was ever stored on a node, in ms.
pub(crate) const LONGEST: &[u8] = b"lockgate:longest";
/// The key of the largest `locks.max_ttl` of any proxy, in ms. If all nodes forget, the proxies
/// that have seen it wait for so long.
pub(crate) const MAX_TTL: &[u8] = b"lockgate:max_ttl";
/// Locks that one call renews at the most: their sum (see prolong.lua) must be exact in a double,
/// as Lua's numbers are, which 53 would allow.
pub(super) const MAX_RENEWALS: usize = 50;

/// One script, known to a node by its digest.
struct Script {
    body: &'static str,
    digest: String,
    /// The beginning of every call with the script's number of keys and arguments.
    call: Vec<u8>,
}

impl Script {
    fn new(body: &'static str, keys: usize, arguments: usize) -> Script {
        let digest = sha1_smol::Sha1::from(body).digest().to_string();
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

static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua"), 2, 7));
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "release") {
        return Script::new("redis.call('DEL', KEYS[1]) return {1, 0, 0}", 2, 3);
    }
    Script::new(include_str!("scripts/release.lua"), 2, 3)
});
static UNDO: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/undo.lua"), 2, 2));
static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua"), 2, 5));
static PROLONG: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/prolong.lua"), 3, 5));
static HEAL: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/heal.lua"), 2, 6));
static HAND_OVER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/hand_over.lua"), 2, 8));
static RAISE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/raise.lua"), 2, 5));
static ATTACH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/attach.lua"), 2, 2));
static LOOK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/look.lua"), 2, 1));
static TAKE_OVER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/take_over.lua"), 2, 6));
static NOTE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/longest.lua"), 1, 1));

/// All scripts, in the order in which they are loaded.
static ALL: [&LazyLock<Script>; LOADS] = [
    &ACQUIRE, &RELEASE, &UNDO, &RENEW, &PROLONG, &HEAL, &RAISE, &HAND_OVER, &ATTACH, &TAKE_OVER,
    &NOTE, &LOOK,
];

/// The number of commands that [`load`] appends.
pub(super) const LOADS: usize = 12;

/// Appends a SCRIPT LOAD for every script.
pub(crate) fn load(out: &mut Vec<u8>) {
    for script in ALL {
        encode::command(out, &[b"SCRIPT", b"LOAD", script.body.as_bytes()]);
    }
}

/// The channel on which a node publishes the release of the lock at `key`.
pub(super) fn channel(key: &[u8]) -> Vec<u8> {
    [CHANNEL_PREFIX, key].concat()
}

/// The key of the lock whose releases are published on `channel`.
pub(super) fn key_of_channel(channel: &[u8]) -> Option<&[u8]> {
    channel.strip_prefix(CHANNEL_PREFIX)
}

/// The grant that a release means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) claim: Claim,
    /// Set if another proxy has made the grant: for how long nodes refuse to have it put back.
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
        FENCE_PREFIX.len() + 2 * self.key.len() + self.token.len() + 300
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
fn append_keys(out: &mut Vec<u8>, key: &[u8]) {
    encode::bulk(out, key);
    encode::bulk_of_two(out, FENCE_PREFIX, key);
}

/// Bytes to reserve for keys and a token, and for numbers beside them.
fn room(key: &[u8], token: &[u8]) -> usize {
    FENCE_PREFIX.len() + 2 * key.len() + token.len() + 200
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
pub(crate) fn acquire(wanted: &Wanted<'_>, again: bool) -> Vec<u8> {
    let mut out = ACQUIRE.call(wanted.bytes());
    append_keys(&mut out, wanted.key);
    wanted.append_arguments(&mut out);
    encode::bulk(&mut out, if again { b"1" } else { b"" });
    out
}

pub(super) fn hand_over(from: &[u8], claim: Claim, wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = HAND_OVER.call(wanted.bytes() + from.len());
    append_keys(&mut out, wanted.key);
    encode::bulk(&mut out, from);
    encode::bulk_number(&mut out, claim.number());
    wanted.append_arguments(&mut out);
    out
}

pub(crate) fn undo(key: &[u8], token: &[u8], claim: Claim) -> Vec<u8> {
    let mut out = UNDO.call(room(key, token));
    append_keys(&mut out, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, claim.number());
    out
}

pub(crate) fn release(key: &[u8], token: &[u8], who: &[u8], ended: Ended) -> Vec<u8> {
    let mut out = match ended.barred {
        Some(_) => beginning(&RELEASE.digest, 2, 4),
        None => RELEASE.call(room(key, token) + who.len()),
    };
    append_keys(&mut out, key);
    encode::bulk(&mut out, token);
    encode::bulk(&mut out, who);
    append_claim_to_find(&mut out, ended.claim);
    if let Some(barred) = ended.barred {
        encode::bulk_number(&mut out, millis(barred));
    }
    out
}

pub(crate) fn renew(
    key: &[u8],
    token: &[u8],
    ttl: Duration,
    claim: Option<Claim>,
    fence_ttl: Duration,
) -> Vec<u8> {
    let mut out = RENEW.call(room(key, token));
    append_keys(&mut out, key);
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

/// Appends a claim for release and renewal, which search for it. Claims have sixteen digits, so
/// with the blank before it none is part of another.
fn append_claim_to_find(out: &mut Vec<u8>, claim: Claim) {
    encode::bulk_of_two(out, b" ", itoa::Buffer::new().format(claim.number()).as_bytes());
}

/// Renews at most [`MAX_RENEWALS`] locks. Without a TTL, fences stay as they are.
pub(super) fn prolong(locks: &[Prolonged<'_>], fence_ttl: Option<Duration>) -> Vec<u8> {
    debug_assert!(locks.len() <= MAX_RENEWALS, "their sum must be exact");
    let mut out = beginning(&PROLONG.digest, 2 * locks.len(), 3 * locks.len() + 2);
    for lock in locks {
        append_keys(&mut out, lock.key);
    }
    for lock in locks {
        encode::bulk(&mut out, lock.token);
        match lock.ttl {
            Some(ttl) => encode::bulk_number(&mut out, millis(ttl)),
            None => encode::bulk(&mut out, b"-1"),
        }
        append_claim_to_find(&mut out, lock.claim);
    }
    match fence_ttl {
        Some(ttl) => encode::bulk_number(&mut out, millis(ttl)),
        None => encode::bulk(&mut out, b""),
    }
    out
}

/// Puts a lock back with this fence and claim if a node has lost it.
pub(crate) fn heal(wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = HEAL.call(wanted.bytes());
    append_keys(&mut out, wanted.key);
    wanted.append_arguments(&mut out);
    out
}

/// Gives a lock that the token holds a new claim.
pub(super) fn take_over(wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = TAKE_OVER.call(wanted.bytes());
    append_keys(&mut out, wanted.key);
    wanted.append_arguments(&mut out);
    out
}

pub(crate) fn raise(
    key: &[u8],
    token: &[u8],
    fence: u64,
    fence_ttl: Duration,
    claim: Claim,
) -> Vec<u8> {
    let mut out = RAISE.call(room(key, token));
    append_keys(&mut out, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, fence);
    encode::bulk_number(&mut out, millis(fence_ttl));
    encode::bulk_number(&mut out, claim.number());
    out
}

pub(crate) fn attach(key: &[u8], token: &[u8]) -> Vec<u8> {
    let mut out = ATTACH.call(room(key, token));
    append_keys(&mut out, key);
    encode::bulk(&mut out, token);
    out
}

/// Asks who holds a lock.
pub(crate) fn look(key: &[u8]) -> Vec<u8> {
    let mut out = LOOK.call(room(key, b""));
    append_keys(&mut out, key);
    out
}

/// Has a node note that it is about to store a lock for `ttl`.
pub(crate) fn note(ttl: Duration) -> Vec<u8> {
    note_at(LONGEST, ttl)
}

/// Has a node note that a proxy may ask for a lock for `ttl`.
pub(super) fn note_max_ttl(ttl: Duration) -> Vec<u8> {
    note_at(MAX_TTL, ttl)
}

fn note_at(key: &[u8], ttl: Duration) -> Vec<u8> {
    let mut out = NOTE.call(key.len() + 50);
    encode::bulk(&mut out, key);
    encode::bulk_number(&mut out, millis(ttl));
    out
}

/// Encodes the last argument of all scripts that vote: the marker that a node must have to be
/// proven in the memory that votes. If it is empty nothing is compared.
pub(crate) fn told(line: &[u8]) -> Vec<u8> {
    #[cfg(feature = "planted")]
    let line: &[u8] = match std::env::var("LOCKGATE_PLANT") {
        Ok(fault) if fault == "marker" => b"",
        _ => line,
    };
    let mut out = Vec::with_capacity(line.len() + 16);
    encode::bulk(&mut out, line);
    out
}
