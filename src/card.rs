//! Who a client's connection is, as operators see it: its address, and the name that it gave itself by CLIENT SETNAME
//! or HELLO. Locks and waiters carry the card of the connection that asked for them.

use std::{
    fmt,
    net::SocketAddr,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{key::Key, sync::Mutex};

/// Most bytes of a name that are kept.
const LONGEST_NAME: usize = 64;

/// What operators are told of one client's connection. A lease keeps the card after its connection has ended.
#[derive(Default)]
pub(crate) struct ClientCard {
    /// Tells one connection of this process from another.
    number: u64,
    /// Where the client is, if known; behind a balancer, the address that the balancer named.
    address: Option<SocketAddr>,
    name: Mutex<Option<Arc<str>>>,
    /// The lock for which the client stands in line.
    waits_for: Mutex<Option<Box<Key>>>,
    has_left: AtomicBool,
}

/// The card as its connection has it: once that is gone, the client has left.
pub(crate) struct OwnCard(Arc<ClientCard>);

impl OwnCard {
    /// Makes the card of a connection that comes from `address`.
    pub(crate) fn new(address: Option<SocketAddr>) -> OwnCard {
        OwnCard(ClientCard::new(address))
    }
}

impl Deref for OwnCard {
    type Target = Arc<ClientCard>;

    fn deref(&self) -> &Arc<ClientCard> {
        &self.0
    }
}

impl Drop for OwnCard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl ClientCard {
    /// Makes the card of a connection that comes from `address`.
    pub(crate) fn new(address: Option<SocketAddr>) -> Arc<ClientCard> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(ClientCard { number, address, ..ClientCard::default() })
    }

    /// Returns a number that no other connection of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the client's address as `10.0.0.1:6000`; empty if it is not known.
    pub(crate) fn address(&self) -> String {
        self.address.map_or_else(String::new, |address| address.to_string())
    }

    /// Returns the name that the client gave itself; empty if there is none.
    pub(crate) fn name(&self) -> Arc<str> {
        self.name.lock().clone().unwrap_or_default()
    }

    /// Notes the name that the client gave itself. An empty one removes it.
    pub(crate) fn rename(&self, name: &[u8]) {
        let name = printable(name);
        *self.name.lock() = (!name.is_empty()).then(|| name.into());
    }

    /// Notes for which lock the client stands in line now; `None` if for none.
    pub(crate) fn set_waits_for(&self, key: Option<Key>) {
        *self.waits_for.lock() = key.map(Box::new);
    }

    /// Returns the lock for which the client stands in line.
    pub(crate) fn waits_for(&self) -> Option<Key> {
        self.waits_for.lock().as_deref().cloned()
    }

    /// Notes that the connection has ended.
    fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Whether the connection is still open.
    pub(crate) fn is_here(&self) -> bool {
        !self.has_left.load(Ordering::Relaxed)
    }
}

impl PartialEq for ClientCard {
    fn eq(&self, other: &ClientCard) -> bool {
        self.number == other.number
    }
}

impl Eq for ClientCard {}

impl fmt::Debug for ClientCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCard({})", self.number)
    }
}

/// Returns the beginning of a name. Redis accepts only graphic characters; another server may accept others, which
/// must not be able to end a log line.
fn printable(name: &[u8]) -> String {
    let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
    name.iter().take(LONGEST_NAME).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_printable_and_may_be_taken_away() {
        let card = ClientCard::new("10.0.0.1:7".parse().ok());
        assert_eq!((card.address().as_str(), &*card.name()), ("10.0.0.1:7", ""));
        card.rename(b"a\r\nb \xff");
        assert_eq!(&*card.name(), "a??b??");
        card.rename(&[b'x'; 1000]);
        assert_eq!(*card.name(), *"x".repeat(64));
        card.rename(b"");
        assert_eq!(&*card.name(), "");
        assert!(card.is_here());
        card.leave();
        assert!(!card.is_here());
        assert_ne!(ClientCard::new(None).number(), ClientCard::new(None).number());
    }
}
