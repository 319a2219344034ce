//! A LOCK that was granted and is not answered yet: nobody may count on it.

use std::{fmt, sync::Arc};

use super::super::lock_command::{Granted, Tokens};
use crate::{
    key::{Key, Token},
    lock::{Claim, Engine},
};

/// Dropped, it gives the lock back.
pub(super) struct Undo {
    lock: Option<(Arc<Engine>, Key, Token, Option<Claim>)>,
    fence: u64,
}

impl Undo {
    pub(super) fn new(engine: Arc<Engine>, lock: &Granted) -> Undo {
        let Granted { key, token, claim, fence, .. } = lock;
        Undo { lock: Some((engine, key.clone(), token.clone(), *claim)), fence: *fence }
    }

    /// The client is told of it.
    pub(super) fn disarm(mut self) {
        self.lock = None;
    }

    /// It never will be.
    pub(super) fn undo(self, tokens: &mut Tokens) {
        if let Some((_, key, token, _)) = &self.lock {
            tokens.forget(key, self.fence);
            tokens.refused(key, token);
        }
    }
}

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Undo({})", self.fence)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((engine, key, token, claim)) = self.lock.take() {
            drop(engine.release(key, token, claim));
        }
    }
}
