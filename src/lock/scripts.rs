//! The Lua scripts that lock nodes run, and how they are called.

use std::{sync::LazyLock, time::Duration};

use crate::resp::encode;

/// Put before a lock's key to make the key of its last fence.
const FENCE_PREFIX: &[u8] = b"lockgate:fence:";
/// Put before a lock's key to make the channel on which its release is told.
/// The scripts know it too.
const CHANNEL_PREFIX: &[u8] = b"lockgate:free:";
/// Locks that one call renews at the most: their sum (see prolong.lua) must be
/// exact in a double, as Lua's numbers are, which 53 would allow.
pub(super) const MAX_RENEWALS: usize = 50;

/// One script, known to a node by its digest.
struct Script {
    body: &'static str,
    digest: String,
    /// How every call begins that has so many keys and arguments.
    call: Vec<u8>,
}

impl Script {
    fn new(body: &'static str, keys: usize, arguments: usize) -> Script {
        let digest = sha1_smol::Sha1::from(body).digest().to_string();
        let call = beginning(&digest, keys, arguments);
        Script { body, digest, call }
    }

    /// Begins a call; what is to be appended takes about so many bytes.
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
    LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua"), 2, 5));
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "release") {
        return Script::new("redis.call('DEL', KEYS[1]) return {1, 0, 0}", 1, 2);
    }
    Script::new(include_str!("scripts/release.lua"), 1, 2)
});
static UNDO: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/undo.lua"), 2, 2));
static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua"), 1, 2));
static PROLONG: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/prolong.lua"), 1, 2));
static HAND_OVER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/hand_over.lua"), 2, 6));
static RAISE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/raise.lua"), 2, 3));
static ATTACH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/attach.lua"), 2, 1));

/// How many commands [`load`] appends.
pub(super) const LOADS: usize = 8;

/// Appends a SCRIPT LOAD for every script.
pub(super) fn load(out: &mut Vec<u8>) {
    for script in [&ACQUIRE, &RELEASE, &UNDO, &RENEW, &PROLONG, &RAISE, &HAND_OVER, &ATTACH] {
        encode::command(out, &[b"SCRIPT", b"LOAD", script.body.as_bytes()]);
    }
}

/// The channel on which a node tells the release of the lock at `key`.
pub(super) fn channel(key: &[u8]) -> Vec<u8> {
    [CHANNEL_PREFIX, key].concat()
}

/// The key of the lock whose releases are told on `channel`.
pub(super) fn key_of_channel(channel: &[u8]) -> Option<&[u8]> {
    channel.strip_prefix(CHANNEL_PREFIX)
}

/// What a lock is asked for with.
pub(super) struct Wanted<'a> {
    pub(super) key: &'a [u8],
    pub(super) token: &'a [u8],
    pub(super) ttl: Duration,
    /// Proposed; the node gives a larger one where it knows one.
    pub(super) fence: u64,
    pub(super) fence_ttl: Duration,
    /// Known to no other.
    pub(super) attempt: u64,
}

impl Wanted<'_> {
    fn bytes(&self) -> usize {
        FENCE_PREFIX.len() + 2 * self.key.len() + self.token.len() + 200
    }

    fn append_keys(&self, out: &mut Vec<u8>) {
        encode::bulk(out, self.key);
        encode::bulk_of_two(out, FENCE_PREFIX, self.key);
    }

    fn append_arguments(&self, out: &mut Vec<u8>) {
        encode::bulk(out, self.token);
        encode::bulk_number(out, millis(self.ttl));
        encode::bulk_number(out, self.fence);
        encode::bulk_number(out, millis(self.fence_ttl));
        encode::bulk_number(out, self.attempt);
    }
}

pub(super) fn acquire(wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = ACQUIRE.call(wanted.bytes());
    wanted.append_keys(&mut out);
    wanted.append_arguments(&mut out);
    out
}

pub(super) fn hand_over(from: &[u8], wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = HAND_OVER.call(wanted.bytes() + from.len());
    wanted.append_keys(&mut out);
    encode::bulk(&mut out, from);
    wanted.append_arguments(&mut out);
    out
}

pub(super) fn undo(key: &[u8], token: &[u8], attempt: u64) -> Vec<u8> {
    let mut out = UNDO.call(FENCE_PREFIX.len() + 2 * key.len() + token.len() + 100);
    encode::bulk(&mut out, key);
    encode::bulk_of_two(&mut out, FENCE_PREFIX, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, attempt);
    out
}

pub(super) fn release(key: &[u8], token: &[u8], who: &[u8]) -> Vec<u8> {
    let mut out = RELEASE.call(key.len() + token.len() + who.len() + 30);
    encode::bulk(&mut out, key);
    encode::bulk(&mut out, token);
    encode::bulk(&mut out, who);
    out
}

pub(super) fn renew(key: &[u8], token: &[u8], ttl: Duration) -> Vec<u8> {
    let mut out = RENEW.call(key.len() + token.len() + 50);
    encode::bulk(&mut out, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, millis(ttl));
    out
}

/// At most [`MAX_RENEWALS`] locks: key, token and TTL of each.
pub(super) fn prolong(locks: &[(&[u8], &[u8], Duration)]) -> Vec<u8> {
    let mut out = beginning(&PROLONG.digest, locks.len(), 2 * locks.len());
    for (key, ..) in locks {
        encode::bulk(&mut out, key);
    }
    for (_, token, ttl) in locks {
        encode::bulk(&mut out, token);
        encode::bulk_number(&mut out, millis(*ttl));
    }
    out
}

pub(super) fn raise(key: &[u8], token: &[u8], fence: u64, fence_ttl: Duration) -> Vec<u8> {
    let mut out = RAISE.call(FENCE_PREFIX.len() + 2 * key.len() + token.len() + 100);
    encode::bulk(&mut out, key);
    encode::bulk_of_two(&mut out, FENCE_PREFIX, key);
    encode::bulk(&mut out, token);
    encode::bulk_number(&mut out, fence);
    encode::bulk_number(&mut out, millis(fence_ttl));
    out
}

pub(super) fn attach(key: &[u8], token: &[u8]) -> Vec<u8> {
    let mut out = ATTACH.call(FENCE_PREFIX.len() + 2 * key.len() + token.len() + 30);
    encode::bulk(&mut out, key);
    encode::bulk_of_two(&mut out, FENCE_PREFIX, key);
    encode::bulk(&mut out, token);
    out
}

/// Whole milliseconds, rounded down: a TTL must not outlive its validity's basis.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
