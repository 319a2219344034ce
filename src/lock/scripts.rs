//! The Lua scripts that lock nodes run, and how they are called.

use std::{sync::LazyLock, time::Duration};

use bytes::Bytes;

use crate::resp::encode;

/// Put before a lock's key to make the key of its last fence.
const FENCE_PREFIX: &[u8] = b"lockgate:fence:";

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
static RAISE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/raise.lua")));

/// How many commands [`load`] appends.
pub(super) const LOADS: usize = 5;

/// Appends a SCRIPT LOAD for every script.
pub(super) fn load(out: &mut Vec<u8>) {
    for script in [&ACQUIRE, &RELEASE, &UNDO, &RENEW, &RAISE] {
        encode::command(out, &[b"SCRIPT", b"LOAD", script.body.as_bytes()]);
    }
}

/// The key under which a node remembers the last fence of the lock at `key`.
pub(super) fn fence_key(key: &[u8]) -> Vec<u8> {
    [FENCE_PREFIX, key].concat()
}

pub(super) fn acquire(
    key: &[u8],
    token: &[u8],
    ttl: Duration,
    fence: u64,
    fence_ttl: Duration,
    attempt: u64,
) -> Bytes {
    let (fence, attempt) = (fence.to_string(), name(attempt));
    ACQUIRE.call(
        &[key, &fence_key(key)],
        &[token, &millis(ttl), fence.as_bytes(), &millis(fence_ttl), attempt.as_bytes()],
    )
}

pub(super) fn undo(key: &[u8], token: &[u8], attempt: u64) -> Bytes {
    UNDO.call(&[key, &fence_key(key)], &[token, name(attempt).as_bytes()])
}

/// An attempt as the nodes know it.
fn name(attempt: u64) -> String {
    format!("{attempt:x}")
}

pub(super) fn release(key: &[u8], token: &[u8]) -> Bytes {
    RELEASE.call(&[key], &[token])
}

pub(super) fn renew(key: &[u8], token: &[u8], ttl: Duration) -> Bytes {
    RENEW.call(&[key], &[token, &millis(ttl)])
}

pub(super) fn raise(key: &[u8], fence: u64, fence_ttl: Duration) -> Bytes {
    RAISE.call(&[&fence_key(key)], &[fence.to_string().as_bytes(), &millis(fence_ttl)])
}

/// Whole milliseconds as text, rounded down: a TTL must not outlive its validity's basis.
fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}
