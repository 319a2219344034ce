//! The entries that clients write under their locks: at the end of a list for each lock, so that the data node itself
//! shows in which order they landed.

use std::{fmt, str::FromStr};

/// The proxies' `guards`, of lists and of values that libraries write. Locks with other names guard
/// nothing.
pub(crate) const GUARDS: &str = "guards:\n\
    \x20 - keys: \"data:key-*\"\n    lock: \"key-{1}\"\n    policy: enforce\n\
    \x20 - keys: \"stock:key-*\"\n    lock: \"key-{1}\"\n    policy: enforce\n";

/// Returns the proxies' `adopt`, with this mode.
pub(crate) fn adopt(mode: &str) -> String {
    format!("adopt:\n  - keys: \"old:*\"\n    lock: \"{{1}}\"\n    mode: {mode}\n")
}

/// Returns the key that lock libraries take for this lock.
pub(crate) fn adopted(lock: &str) -> String {
    format!("old:{lock}")
}

/// Whether lock libraries delete this lock without asking whose it is. No guard needs such a lock.
pub(crate) fn may_be_deleted(lock: &str) -> bool {
    let number = lock.strip_prefix("free-").and_then(|number| number.parse::<usize>().ok());
    number.is_some_and(|number| number % 8 == 7)
}

/// The family whose permits are the first locks.
pub(crate) const FAMILY: &str = "key-p";
pub(crate) const PERMITS: usize = 3;

/// Returns the name of a lock. The first are permits; of the others, one of four guards nothing.
pub(crate) fn lock(number: usize) -> String {
    match number {
        ..PERMITS => format!("{FAMILY}#{number}"),
        _ if number % 4 == 3 => format!("free-{number}"),
        _ => format!("key-{number}"),
    }
}

/// The number of locks that some clients share and others take alone. No other clients take them, and they guard
/// nothing.
pub(crate) const SHARED: usize = 2;

/// Returns the name of a lock that is shared.
pub(crate) fn shared(number: usize) -> String {
    format!("shared-{number}")
}

pub(crate) fn is_shared(lock: &str) -> bool {
    lock.starts_with("shared-")
}

pub(crate) fn is_permit(lock: &str) -> bool {
    lock.contains('#')
}

/// Returns the names of the first permits, joined by commas.
pub(crate) fn permits(number: usize) -> String {
    (0..number).map(lock).collect::<Vec<_>>().join(",")
}

/// Whether writes need this lock, if there are guards.
pub(crate) fn is_guard(lock: &str) -> bool {
    lock.starts_with("key-")
}

/// Returns the list that is written under a lock.
pub(crate) fn list(lock: &str) -> String {
    format!("data:{lock}")
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The fence of the grant under which its writer wrote it.
    pub(crate) fence: u64,
    pub(crate) client: usize,
    /// The number among the client's writes, from 1.
    pub(crate) number: u64,
    /// The number among the write's entries, from 0.
    pub(crate) part: usize,
}

impl fmt::Display for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { fence, client, number, part } = self;
        write!(out, "{fence}:{client}:{number}:{part}")
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Entry, String> {
        let wrong = || format!("not an entry: {text:?}");
        let numbers: Result<Vec<u64>, _> = text.split(':').map(str::parse).collect();
        let [fence, client, number, part] = numbers.map_err(|_| wrong())?[..] else {
            return Err(wrong());
        };
        let small = |number: u64| usize::try_from(number).map_err(|_| wrong());
        Ok(Entry { fence, client: small(client)?, number, part: small(part)? })
    }
}
