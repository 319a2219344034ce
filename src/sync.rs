//! A mutex without poison.

use std::sync::{self, MutexGuard, PoisonError};

/// A [`sync::Mutex`] that is also taken if a thread has panicked while it held the lock. No code
/// panics there; if some did, all other clients must not end with it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
