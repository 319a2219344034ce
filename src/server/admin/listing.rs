//! `/api/locks`, `/api/hot`, `/api/clients` and `/api/adopted`: lists of bounded length, as LOCKGATE
//! has them. No token is told.
//!
//! Clients choose the names of locks, which may be any bytes. One that is no text is told as text with
//! marks in the place of what is none, and by its bytes besides.

use std::{fmt::Write as _, sync::Arc};

use serde::Serialize;

use crate::{
    adopt::{rows::hexadecimal, verdict::danger},
    card::ClientCard,
    clock::millis,
    lock::{LockStatus, LocksWanted},
    session::Shared,
};

/// Most clients in line that are told of one hot lock.
const MOST_IN_LINE: usize = 8;

/// A lock's name.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct LockName {
    key: String,
    /// Its bytes in hexadecimal, where they are no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
}

#[derive(Serialize)]
struct ClientPart {
    address: String,
    name: Arc<str>,
    /// Whether its connection has not ended.
    connected: bool,
}

/// `/api/locks`.
#[derive(Serialize)]
pub(super) struct LockList {
    locks: Vec<LockPart>,
}

#[derive(Serialize)]
struct LockPart {
    #[serde(flatten)]
    name: LockName,
    /// `session`, `lease`, `elsewhere`: clients here wait for it, and another proxy granted it; or
    /// `unknown`: they wait, and who has it is not known.
    kind: &'static str,
    fence: Option<u64>,
    held_ms: Option<u64>,
    remaining_ms: Option<u64>,
    waiters: usize,
    longest_wait_ms: u64,
    adopted: Option<&'static str>,
    holder: Option<ClientPart>,
}

/// `/api/hot`.
#[derive(Serialize)]
pub(super) struct HotList {
    hot: Vec<HotPart>,
}

#[derive(Serialize)]
struct HotPart {
    #[serde(flatten)]
    name: LockName,
    waited_ms: u64,
    /// The part of `waited_ms` that may have been for other locks.
    excess_ms: u64,
    waits: u64,
    longest_ms: u64,
    waiters: usize,
    /// As that of a lock; none if nobody here holds it or waits.
    kind: Option<&'static str>,
    fence: Option<u64>,
    held_ms: Option<u64>,
    holder: Option<ClientPart>,
    /// The first in line.
    line: Vec<InLinePart>,
}

#[derive(Serialize)]
struct InLinePart {
    client: Option<ClientPart>,
    waited_ms: u64,
    ttl_ms: u64,
}

/// `/api/clients`.
#[derive(Serialize)]
pub(super) struct ClientList {
    clients: Vec<BusyClientPart>,
}

#[derive(Serialize)]
struct BusyClientPart {
    #[serde(flatten)]
    client: ClientPart,
    locks: usize,
    keys: Vec<LockName>,
    longest_hold_ms: u64,
    waits_for: Option<LockName>,
    waited_ms: u64,
}

/// `/api/adopted`.
#[derive(Serialize)]
pub(super) struct AdoptedList {
    adopted: Vec<AdoptedPart>,
    /// How often something was seen that there was no room for.
    left_out: u64,
}

#[derive(Serialize)]
struct AdoptedPart {
    times: u64,
    keys: String,
    lock: String,
    client: Arc<str>,
    idiom: &'static str,
    form: &'static str,
    library: &'static str,
    script: Option<String>,
    #[serde(rename = "unsafe")]
    danger: &'static str,
    verdict: &'static str,
    because: &'static str,
    mode: &'static str,
}

impl LockName {
    fn new(name: &[u8]) -> LockName {
        match std::str::from_utf8(name) {
            Ok(text) => LockName { key: text.to_owned(), key_hex: None },
            Err(_) => {
                let mut hex = String::with_capacity(2 * name.len());
                for byte in name {
                    // Writing to a String cannot fail.
                    let _ = write!(hex, "{byte:02x}");
                }
                let key = String::from_utf8_lossy(name).into_owned();
                LockName { key, key_hex: Some(hex) }
            }
        }
    }

    /// The name of the lock that has this key on the nodes.
    fn of(key: &[u8], shared: &Shared) -> LockName {
        LockName::new(key.get(prefix(shared)..).unwrap_or_default())
    }
}

impl ClientPart {
    fn of(card: &Arc<ClientCard>) -> ClientPart {
        let (address, name) = (card.address(), card.name());
        ClientPart { address, name, connected: card.is_here() }
    }
}

/// The locks that are wanted. Returns `None` if comparing them with the pattern would take too long.
pub(super) fn locks(shared: &Shared, wanted: &LocksWanted) -> Option<LockList> {
    let found = shared.engine.list(wanted, prefix(shared))?;
    Some(LockList { locks: found.iter().map(|lock| part(lock, shared)).collect() })
}

fn part(lock: &LockStatus, shared: &Shared) -> LockPart {
    let grant = lock.grant.as_ref();
    LockPart {
        name: LockName::of(&lock.key, shared),
        kind: lock.kind(),
        fence: grant.map(|grant| grant.fence),
        held_ms: grant.map(|grant| millis(grant.held_for)),
        remaining_ms: grant.map(|grant| millis(grant.remaining)),
        waiters: lock.waiters,
        longest_wait_ms: millis(lock.longest_wait),
        adopted: grant.and_then(|grant| grant.adopted),
        holder: grant.and_then(|grant| grant.holder.as_ref()).map(ClientPart::of),
    }
}

/// The locks that were waited for longest, at most so many.
pub(super) fn hot(shared: &Shared, most: usize) -> HotList {
    let engine = &shared.engine;
    let hot = engine.hot(most).into_iter().map(|hot| {
        let grant = engine.lock(&hot.key).and_then(|lock| lock.grant);
        let line = match hot.waiters {
            0 => Vec::new(),
            _ => engine.waiters(&hot.key),
        };
        HotPart {
            name: LockName::of(&hot.key, shared),
            waited_ms: millis(hot.waited),
            excess_ms: millis(hot.excess),
            waits: hot.waits,
            longest_ms: millis(hot.longest),
            waiters: hot.waiters,
            kind: Some(hot.kind).filter(|kind| !kind.is_empty()),
            fence: grant.as_ref().map(|grant| grant.fence),
            held_ms: grant.as_ref().map(|grant| millis(grant.held_for)),
            holder: hot.holder.as_ref().map(ClientPart::of),
            line: line
                .iter()
                .take(MOST_IN_LINE)
                .map(|waiter| InLinePart {
                    client: waiter.card.as_ref().map(ClientPart::of),
                    waited_ms: millis(waiter.waited),
                    ttl_ms: millis(waiter.ttl),
                })
                .collect(),
        }
    });
    HotList { hot: hot.collect() }
}

/// The clients that hold locks or wait, at most so many.
pub(super) fn clients(shared: &Shared, most: usize) -> ClientList {
    let clients = shared.engine.clients(most).into_iter().map(|client| {
        let keys = client.keys.iter().map(|key| LockName::of(key, shared)).collect();
        let waits_for = client.waits_for.as_ref().map(|(key, _)| LockName::of(key, shared));
        let waited = client.waits_for.map(|(_, waited)| waited).unwrap_or_default();
        BusyClientPart {
            client: ClientPart::of(&client.card),
            locks: client.held,
            keys,
            longest_hold_ms: millis(client.longest_hold),
            waits_for,
            waited_ms: millis(waited),
        }
    });
    ClientList { clients: clients.collect() }
}

/// The lock idioms that were seen, the unsafe first, at most so many.
pub(super) fn adopted(shared: &Shared, most: usize) -> AdoptedList {
    let Some(adoption) = &shared.adoption else {
        return AdoptedList { adopted: Vec::new(), left_out: 0 };
    };
    let (seen, left_out) = adoption.seen();
    let seen = seen.into_iter().take(most).map(|(sighting, client, times)| AdoptedPart {
        times,
        keys: adoption.pattern(&sighting).to_owned(),
        lock: adoption.lock(&sighting).to_owned(),
        client,
        idiom: sighting.op.as_str(),
        form: sighting.form,
        library: sighting.library,
        script: sighting.digest.map(|digest| hexadecimal(&digest)),
        danger: danger(sighting.op),
        verdict: sighting.verdict.as_str(),
        because: sighting.because,
        mode: adoption.mode_of(&sighting),
    });
    AdoptedList { adopted: seen.collect(), left_out }
}

/// The length of what stands before a lock's name in its key on the nodes.
fn prefix(shared: &Shared) -> usize {
    shared.config.load().locks.prefix.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_told_by_its_bytes_too() {
        let text = LockName::new("wörk".as_bytes());
        assert_eq!(text, LockName { key: "wörk".into(), key_hex: None });
        let bytes = LockName::new(b"a\xff\x00");
        assert_eq!(bytes, LockName { key: "a\u{fffd}\0".into(), key_hex: Some("61ff00".into()) });
        let json = serde_json::to_string(&bytes).unwrap();
        assert_eq!(json, r#"{"key":"a�\u0000","key_hex":"61ff00"}"#);
    }
}
