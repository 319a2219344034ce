//! The Lua scripts that lock nodes run, and how they are called.

use std::{sync::LazyLock, time::Duration};

use bytes::Bytes;

use crate::resp::encode;

/// Put before a lock's key to make the key of its last fence.
const FENCE_PREFIX: &[u8] = b"lockgate:fence:";
/// Put before a lock's key to make the channel on which its release is told.
/// The scripts know it too.
const CHANNEL_PREFIX: &[u8] = b"lockgate:free:";
/// Locks that one call renews at the most: their sum (see renew.lua) must be
/// exact in a double, as Lua's numbers are, which 53 would allow.
pub(super) const MAX_RENEWALS: usize = 50;

/// One script, known to a node by its digest.
struct Script {
    body: &'static str,
    digest: String,
}

impl Script {
    fn new(body: &'static str) -> Script {
        Script { body, digest: sha1_smol::Sha1::from(body).digest().to_string() }
    }

    fn call(&self, keys: &[&[u8]], arguments: &[&[u8]]) -> Bytes {
        let count = keys.len().to_string();
        let mut words: Vec<&[u8]> = Vec::with_capacity(3 + keys.len() + arguments.len());
        words.extend([b"EVALSHA".as_slice(), self.digest.as_bytes(), count.as_bytes()]);
        words.extend(keys);
        words.extend(arguments);
        let bytes = words.iter().map(|word| word.len() + 16).sum();
        let mut out = Vec::with_capacity(bytes);
        encode::command(&mut out, &words);
        out.into()
    }
}

static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
static UNDO: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/undo.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
static HAND_OVER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/hand_over.lua")));
static RAISE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/raise.lua")));

/// How many commands [`load`] appends.
pub(super) const LOADS: usize = 6;

/// Appends a SCRIPT LOAD for every script.
pub(super) fn load(out: &mut Vec<u8>) {
    for script in [&ACQUIRE, &RELEASE, &UNDO, &RENEW, &RAISE, &HAND_OVER] {
        encode::command(out, &[b"SCRIPT", b"LOAD", script.body.as_bytes()]);
    }
}

/// The key under which a node remembers the last fence of the lock at `key`.
pub(super) fn fence_key(key: &[u8]) -> Vec<u8> {
    [FENCE_PREFIX, key].concat()
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

pub(super) fn acquire(wanted: &Wanted<'_>) -> Bytes {
    let (fence, attempt) = (wanted.fence.to_string(), name(wanted.attempt));
    ACQUIRE.call(
        &[wanted.key, &fence_key(wanted.key)],
        &[
            wanted.token,
            &millis(wanted.ttl),
            fence.as_bytes(),
            &millis(wanted.fence_ttl),
            attempt.as_bytes(),
        ],
    )
}

pub(super) fn hand_over(from: &[u8], wanted: &Wanted<'_>) -> Bytes {
    let (fence, attempt) = (wanted.fence.to_string(), name(wanted.attempt));
    HAND_OVER.call(
        &[wanted.key, &fence_key(wanted.key)],
        &[
            from,
            wanted.token,
            &millis(wanted.ttl),
            fence.as_bytes(),
            &millis(wanted.fence_ttl),
            attempt.as_bytes(),
        ],
    )
}

pub(super) fn undo(key: &[u8], token: &[u8], attempt: u64) -> Bytes {
    UNDO.call(&[key, &fence_key(key)], &[token, name(attempt).as_bytes()])
}

/// An attempt as the nodes know it.
fn name(attempt: u64) -> String {
    format!("{attempt:x}")
}

pub(super) fn release(key: &[u8], token: &[u8], who: &[u8]) -> Bytes {
    RELEASE.call(&[key], &[token, who])
}

/// At most [`MAX_RENEWALS`] locks: key, token and TTL of each.
pub(super) fn renew(locks: &[(&[u8], &[u8], Duration)]) -> Bytes {
    let keys: Vec<&[u8]> = locks.iter().map(|(key, ..)| *key).collect();
    let ttls: Vec<Vec<u8>> = locks.iter().map(|(.., ttl)| millis(*ttl)).collect();
    let arguments: Vec<&[u8]> =
        locks.iter().zip(&ttls).flat_map(|((_, token, _), ttl)| [*token, ttl.as_slice()]).collect();
    RENEW.call(&keys, &arguments)
}

pub(super) fn raise(key: &[u8], fence: u64, fence_ttl: Duration) -> Bytes {
    RAISE.call(&[&fence_key(key)], &[fence.to_string().as_bytes(), &millis(fence_ttl)])
}

/// Whole milliseconds as text, rounded down: a TTL must not outlive its validity's basis.
fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}
