//! A client in a line, and lines as operators see them.

use std::{sync::Arc, task::Waker, time::Duration};

use tokio::time::Instant;

use crate::{
    card::ClientCard,
    key::{Key, Token},
    lock::Acquire,
};

/// What a waiter wants.
pub(in crate::lock) struct LineUp {
    pub(in crate::lock) token: Token,
    pub(in crate::lock) ttl: Duration,
    /// Whether the waiter is a reader: several may have the lock at the same time.
    pub(in crate::lock) shared: bool,
    /// The client, if that is known.
    pub(in crate::lock) card: Option<Arc<ClientCard>>,
}

/// A waiter, as shown to operators.
#[derive(Debug)]
pub(crate) struct WaiterStatus {
    /// The client, if that is known.
    pub(crate) card: Option<Arc<ClientCard>>,
    /// How long it has waited.
    pub(crate) waited: Duration,
    /// The TTL that it asks for.
    pub(crate) ttl: Duration,
}

/// A line with waiters, as shown to operators.
#[derive(Debug)]
pub(in crate::lock) struct LineStatus {
    pub(in crate::lock) key: Key,
    /// The number of waiters.
    pub(in crate::lock) waiters: usize,
    /// The sum of their waits.
    pub(in crate::lock) waited: Duration,
    /// How long the first of them has waited.
    pub(in crate::lock) longest: Duration,
    /// Whether the lock nodes have named a holder of the lock, and nothing was heard since.
    pub(in crate::lock) is_held: bool,
    /// Whether it is the line of a family.
    pub(in crate::lock) is_family: bool,
}

/// A client in a line.
pub(super) struct InLine {
    pub(super) ticket: u64,
    pub(super) since: Instant,
    pub(super) wants: LineUp,
    pub(super) waker: Option<Waker>,
    /// The lock, while it is handed over to this waiter.
    pub(super) handed: Option<Acquire>,
    /// Whether the waiter, a reader, is to ask beside the head: another reader has just been granted its part.
    pub(super) is_let_in: bool,
}

impl InLine {
    pub(super) fn new(ticket: u64, wants: LineUp) -> InLine {
        let since = Instant::now();
        InLine { ticket, since, wants, waker: None, handed: None, is_let_in: false }
    }

    /// Returns the waiter as shown to operators.
    pub(super) fn shown(&self, now: Instant) -> WaiterStatus {
        let LineUp { ttl, card, .. } = &self.wants;
        WaiterStatus { card: card.clone(), waited: now - self.since, ttl: *ttl }
    }
}

/// Returns who came first.
pub(super) fn earlier<'a>(
    one: Option<&'a InLine>,
    other: Option<&'a InLine>,
) -> Option<&'a InLine> {
    one.into_iter().chain(other).min_by_key(|seat| seat.ticket)
}
