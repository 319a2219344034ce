//! `/api/locks`, `/api/hot`, `/api/holders`, `/api/clients` and `/api/adopted`: lists of bounded length, like those of
//! LOCKGATE. None of them has tokens.

use std::sync::Arc;

use serde::Serialize;

use super::lock_name::LockName;

#[derive(Serialize)]
pub(crate) struct ClientPart {
    pub(crate) address: String,
    pub(crate) name: Arc<str>,
    /// Whether its connection is still open.
    pub(crate) connected: bool,
}

/// Who holds a lock, through which proxy.
#[derive(Serialize)]
pub(crate) struct HolderPart {
    /// `session` or `lease`.
    pub(crate) kind: String,
    pub(crate) fence: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) holder: Option<ClientPart>,
    /// The proxy that granted it, by its own name.
    pub(crate) proxy: String,
}

/// `/api/holders`.
#[derive(Serialize)]
pub(crate) struct HolderList {
    pub(crate) holders: Vec<Option<HolderPart>>,
}

/// `/api/locks`.
#[derive(Serialize)]
pub(crate) struct LockList {
    pub(crate) locks: Vec<LockPart>,
}

#[derive(Serialize)]
pub(crate) struct LockPart {
    #[serde(flatten)]
    pub(crate) name: LockName,
    /// `session`, `lease`, `elsewhere` (clients here wait for it, and another proxy granted it), or `unknown` (they
    /// wait, and the holder is not known).
    pub(crate) kind: &'static str,
    pub(crate) fence: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) waiters: usize,
    pub(crate) longest_wait_ms: u64,
    pub(crate) adopted: Option<&'static str>,
    pub(crate) holder: Option<ClientPart>,
    /// The other proxy that granted it, if that one has told.
    pub(crate) proxy: Option<String>,
    /// The lock's name.
    #[serde(skip)]
    pub(crate) bytes: Vec<u8>,
}

/// `/api/hot`.
#[derive(Serialize)]
pub(crate) struct HotList {
    pub(crate) hot: Vec<HotPart>,
}

#[derive(Serialize)]
pub(crate) struct HotPart {
    #[serde(flatten)]
    pub(crate) name: LockName,
    pub(crate) waited_ms: u64,
    /// The part of `waited_ms` that may have been for other locks.
    pub(crate) excess_ms: u64,
    pub(crate) waits: u64,
    pub(crate) longest_ms: u64,
    pub(crate) waiters: usize,
    /// As in [`LockPart`]; `None` if no client here holds the lock or waits for it.
    pub(crate) kind: Option<&'static str>,
    pub(crate) fence: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) holder: Option<ClientPart>,
    /// The other proxy that granted it, if that one has told.
    pub(crate) proxy: Option<String>,
    /// The first in line.
    pub(crate) line: Vec<InLinePart>,
    /// The lock's name.
    #[serde(skip)]
    pub(crate) bytes: Vec<u8>,
}

#[derive(Serialize)]
pub(crate) struct InLinePart {
    pub(crate) client: Option<ClientPart>,
    pub(crate) waited_ms: u64,
    pub(crate) ttl_ms: u64,
}

/// `/api/clients`.
#[derive(Serialize)]
pub(crate) struct ClientList {
    pub(crate) clients: Vec<BusyClientPart>,
}

#[derive(Serialize)]
pub(crate) struct BusyClientPart {
    #[serde(flatten)]
    pub(crate) client: ClientPart,
    pub(crate) locks: usize,
    pub(crate) keys: Vec<LockName>,
    pub(crate) longest_hold_ms: u64,
    pub(crate) waits_for: Option<LockName>,
    pub(crate) waited_ms: u64,
}

/// `/api/adopted`.
#[derive(Serialize)]
pub(crate) struct AdoptedList {
    pub(crate) adopted: Vec<AdoptedPart>,
    /// How often something was seen for which there was no room.
    pub(crate) left_out: u64,
}

#[derive(Serialize)]
pub(crate) struct AdoptedPart {
    pub(crate) times: u64,
    pub(crate) keys: String,
    pub(crate) lock: String,
    pub(crate) client: Arc<str>,
    pub(crate) idiom: &'static str,
    pub(crate) form: &'static str,
    pub(crate) library: &'static str,
    pub(crate) script: Option<String>,
    #[serde(rename = "unsafe")]
    pub(crate) danger: &'static str,
    pub(crate) verdict: &'static str,
    pub(crate) because: &'static str,
    pub(crate) mode: &'static str,
    /// The longest TTL that was asked for.
    pub(crate) longest_ttl_ms: Option<u64>,
}
