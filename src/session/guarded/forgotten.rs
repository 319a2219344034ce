//! A fence that the data node has forgotten is stored there again only under a lock that
//! is still held.
//!
//! A late write could otherwise raise the fence of a grant that is over, as nothing larger
//! is known any more. So the lock nodes are asked first whether the token has the lock
//! still. Only then: who finds its fence where it should be asks nobody.

use super::{
    super::{Session, barrier::Barrier, lock_command::FENCE_FORGOTTEN, metrics::GuardedWrite},
    Told, fenced,
};
use crate::{
    clock::Instant,
    guard::shown,
    key::Key,
    lock::{Attach, Grant, NotAttached},
};

/// What the lock nodes said of the locks whose fences are not known.
pub(in crate::session) struct Held {
    /// The proxy's transaction is still open.
    in_multi: bool,
    locks: Vec<(Key, Result<Option<Grant>, NotAttached>)>,
}

impl Session {
    /// Asks the lock nodes about the claims that are not raised.
    pub(super) fn ask_whether_held(&mut self, mut barrier: Box<Barrier>, in_multi: bool) {
        let now = Instant::now();
        let Some(guarded) = barrier.guarded() else { return };
        let forgotten = guarded.claims.iter().filter(|claim| !claim.raised);
        let asked: Vec<(Key, Attach)> = forgotten
            .filter_map(|claim| {
                let (token, _) = self.tokens.left(&claim.key, claim.fence, now)?;
                let attach = self.shared.engine.attach(claim.key.clone(), token.clone());
                Some((claim.key.clone(), attach))
            })
            .collect();
        guarded.wait_for(async move {
            let mut locks = Vec::with_capacity(asked.len());
            for (key, attach) in asked {
                locks.push((key, attach.await));
            }
            Told::Held(Held { in_multi, locks })
        });
        self.barrier = Some(barrier.goes_on());
    }

    /// They have answered: has the fences raised again, or gives up. A transaction goes on
    /// with the locks that are left.
    pub(super) fn goes_on_held(&mut self, mut barrier: Box<Barrier>, told: Held) {
        let Some(guarded) = barrier.guarded() else { return };
        let (is_multi, mut refused) = (guarded.is_multi, None);
        let prefix = self.config.locks.prefix.len();
        guarded.claims.retain(|claim| {
            if claim.raised {
                return true;
            }
            let said = told.locks.iter().find(|(key, _)| *key == claim.key).map(|(_, said)| said);
            let held = self.tokens.left(&claim.key, claim.fence, Instant::now());
            let (error, result) = match (said, held) {
                // By LOCK of the same token, which is a new grant.
                (Some(Ok(Some(grant))), _) if grant.fence > claim.fence => {
                    self.tokens.forget(&claim.key, claim.fence);
                    (fenced(claim, grant.fence, prefix), GuardedWrite::Fenced)
                }
                (Some(Ok(Some(_))), Some(_)) => return true,
                (Some(Err(NotAttached::NoQuorum(why))), _) => {
                    (format!("NOQUORUM {why}"), GuardedWrite::Refused)
                }
                (Some(Err(NotAttached::FenceForgotten)), _) => {
                    (FENCE_FORGOTTEN.to_owned(), GuardedWrite::Refused)
                }
                (Some(Ok(Some(_) | None)) | None, _) => {
                    if let Some((token, _)) = held {
                        let token = token.clone();
                        self.tokens.not_held(&claim.key, &token);
                    }
                    let lock = shown(claim.key.get(prefix..).unwrap_or_default());
                    (
                        format!("NOTHELD the lock '{lock}' is not held any more"),
                        GuardedWrite::NotHeld,
                    )
                }
            };
            refused.get_or_insert((error.into_bytes(), result));
            false
        });
        match refused {
            Some((error, _)) if is_multi && guarded.claims.is_empty() => {
                self.arm_for_nothing(error);
            }
            Some((error, result)) if !is_multi => {
                self.shared.metrics.guarded(result);
                self.give_up(barrier, told.in_multi, &error);
            }
            _ if is_multi => {
                guarded.tries += 1;
                self.ask_for_fences(barrier, true);
            }
            _ => self.try_again(barrier, told.in_multi),
        }
    }
}
