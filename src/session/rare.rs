//! State that most sessions never have: it takes the room of a pointer until it is first changed, so that idle
//! connections cost little.

use std::{
    mem,
    ops::{Deref, DerefMut},
};

/// A `T` that is allocated when it is first changed.
pub(super) struct Rare<T>(Option<Box<T>>);

/// State that every session begins with.
pub(super) trait Unchanged: Default + 'static {
    const UNCHANGED: &'static Self;
}

impl<T> Default for Rare<T> {
    fn default() -> Rare<T> {
        Rare(None)
    }
}

impl<T: Unchanged> Rare<T> {
    /// Returns the state if it was ever changed, without allocating it.
    pub(super) fn changed(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Takes the state, and leaves that of a new session.
    pub(super) fn take(&mut self) -> Rare<T> {
        mem::take(self)
    }
}

impl<T: Unchanged> Deref for Rare<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::UNCHANGED)
    }
}

impl<T: Unchanged> DerefMut for Rare<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
