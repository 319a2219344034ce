//! `/api/locks`, `/api/hot`, `/api/holders`, `/api/clients`, `/api/adopted` and `/api/pinned`: lists of bounded length,
//! like those of LOCKGATE. None of them has tokens.

use serde::{Deserialize, Serialize};

use super::{few::few, lock_name::LockName};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClientPart<T: Default = String> {
    pub(crate) address: T,
    pub(crate) name: T,
    /// Whether its connection is still open.
    pub(crate) connected: bool,
}

/// Who holds a lock, through which proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Serialize, Deserialize)]
pub(crate) struct HolderList {
    pub(crate) holders: Vec<Option<HolderPart>>,
}

/// `/api/locks`.
#[derive(Serialize, Deserialize)]
pub(crate) struct LockList<T: Default = String> {
    #[serde(deserialize_with = "few", bound(deserialize = "T: Deserialize<'de>"))]
    pub(crate) locks: Vec<LockPart<T>>,
    /// The families of these locks, each whole.
    #[serde(default, deserialize_with = "few")]
    pub(crate) families: Vec<FamilyPart>,
}

/// The permits of a family that were granted through one proxy, and the clients that wait for them there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FamilyPart {
    /// That of the family's line: `family#*`.
    #[serde(flatten)]
    pub(crate) name: LockName,
    /// How many permits the family has.
    pub(crate) n: usize,
    /// Which of them are held.
    #[serde(deserialize_with = "few")]
    pub(crate) held: Vec<usize>,
    /// Of the oldest grant.
    pub(crate) held_ms: Option<u64>,
    /// Of the first to end.
    pub(crate) remaining_ms: Option<u64>,
    /// Clients that wait for any permit, or for one by its name.
    pub(crate) waiters: usize,
    pub(crate) longest_wait_ms: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LockPart<T: Default = String> {
    #[serde(flatten)]
    pub(crate) name: LockName,
    /// `session`, `lease`, `shared` (it has readers, of which the oldest is told), `permits` (the line of a family), `elsewhere` (clients here wait for it, and another proxy
    /// granted it), or `unknown` (they wait, and the holder is not known).
    pub(crate) kind: T,
    pub(crate) fence: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) waiters: usize,
    pub(crate) longest_wait_ms: u64,
    /// How many readers it has here; 0: the holder has it alone.
    pub(crate) readers: usize,
    pub(crate) adopted: Option<T>,
    pub(crate) holder: Option<ClientPart<T>>,
    /// The other proxy that granted it, if that one has told.
    pub(crate) proxy: Option<T>,
    /// The family of the list that it belongs to.
    pub(crate) family: Option<LockName>,
}

/// `/api/hot`.
#[derive(Serialize, Deserialize)]
pub(crate) struct HotList<T: Default = String> {
    #[serde(deserialize_with = "few", bound(deserialize = "T: Deserialize<'de>"))]
    pub(crate) hot: Vec<HotPart<T>>,
    /// The families of these locks, each whole.
    #[serde(default, deserialize_with = "few")]
    pub(crate) families: Vec<FamilyPart>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HotPart<T: Default = String> {
    #[serde(flatten)]
    pub(crate) name: LockName,
    pub(crate) waited_ms: u64,
    /// The part of `waited_ms` that may have been for other locks.
    pub(crate) excess_ms: u64,
    pub(crate) waits: u64,
    pub(crate) longest_ms: u64,
    pub(crate) waiters: usize,
    /// As in [`LockPart`]; `None` if no client here holds the lock or waits for it.
    pub(crate) kind: Option<T>,
    pub(crate) fence: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) holder: Option<ClientPart<T>>,
    /// The other proxy that granted it, if that one has told.
    pub(crate) proxy: Option<T>,
    /// The first in line.
    #[serde(skip_deserializing)]
    pub(crate) line: Vec<InLinePart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct InLinePart {
    pub(crate) client: Option<ClientPart>,
    pub(crate) waited_ms: u64,
    pub(crate) ttl_ms: u64,
}

/// `/api/clients`.
#[derive(Serialize, Deserialize)]
pub(crate) struct ClientList<T: Default = String> {
    #[serde(deserialize_with = "few", bound(deserialize = "T: Deserialize<'de>"))]
    pub(crate) clients: Vec<BusyClientPart<T>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BusyClientPart<T: Default = String> {
    #[serde(flatten)]
    pub(crate) client: ClientPart<T>,
    pub(crate) locks: usize,
    #[serde(skip_deserializing)]
    pub(crate) keys: Vec<LockName>,
    pub(crate) longest_hold_ms: u64,
    pub(crate) waits_for: Option<LockName>,
    pub(crate) waited_ms: u64,
}

/// `/api/adopted`.
#[derive(Serialize, Deserialize)]
pub(crate) struct AdoptedList {
    #[serde(deserialize_with = "few")]
    pub(crate) adopted: Vec<AdoptedPart>,
    /// How often something was seen for which there was no room.
    #[serde(default)]
    pub(crate) left_out: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AdoptedPart {
    pub(crate) times: u64,
    pub(crate) keys: String,
    pub(crate) lock: String,
    pub(crate) client: String,
    pub(crate) idiom: String,
    pub(crate) form: String,
    pub(crate) library: String,
    pub(crate) script: Option<String>,
    #[serde(rename = "unsafe")]
    pub(crate) danger: String,
    pub(crate) verdict: String,
    pub(crate) because: String,
    pub(crate) mode: String,
    /// The longest TTL that was asked for.
    pub(crate) longest_ttl_ms: Option<u64>,
}

/// `/api/pinned`.
#[derive(Serialize, Deserialize)]
pub(crate) struct PinnedList {
    #[serde(deserialize_with = "few")]
    pub(crate) pinned: Vec<PinnedPart>,
}

/// Clients that got a connection of their own, with `share: yes`, in the same way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PinnedPart {
    /// A name; or that of a library, with an address; or an address.
    pub(crate) client: String,
    /// What they sent, as in the label of `lockgate_pinned_total`.
    pub(crate) by: String,
    pub(crate) command: String,
    pub(crate) clients: u64,
}

#[cfg(test)]
mod tests {
    use super::{super::few::MOST_READ, *};

    #[test]
    fn no_more_of_a_list_is_kept_than_can_be_asked_for() {
        let many = format!(r#"{{"locks": [{}{{}}]}}"#, "{},".repeat(MOST_READ + 5));
        let many: LockList = serde_json::from_str(&many).unwrap();
        assert_eq!(many.locks.len(), MOST_READ);
    }
}
