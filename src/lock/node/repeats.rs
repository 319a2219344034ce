//! Operations that a node refused because it has forgotten the scripts (SCRIPT FLUSH), and which of
//! them may be repeated.
//!
//! Knows no connection: the pump sends nothing new while an operation is noted here, and repeats it once all that was
//! in flight has been answered.

use std::sync::Arc;

use crate::lock::operation::{Kind, Operation};

/// How often an operation is repeated, as the node may forget the scripts again. After that its vote is an error.
const MAX_REPEATS: u8 = 8;

/// An operation, and how often it was refused.
pub(super) type RefusedOperation = (Arc<Operation>, u8);

/// Refused operations, in the order of the answers.
#[derive(Default)]
pub(super) struct Repeats {
    /// Each with the length of `done` when it was refused.
    refused: Vec<(RefusedOperation, usize)>,
    /// Operations that were sent after the first refused one and not refused, as another proxy had loaded the scripts
    /// meanwhile.
    done: Vec<Arc<Operation>>,
}

impl Repeats {
    /// Whether an operation waits for the scripts.
    pub(super) fn is_needed(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Notes a refusal. Returns the operation if it was refused too often.
    pub(super) fn refused(
        &mut self,
        (operation, times): RefusedOperation,
    ) -> Result<(), Arc<Operation>> {
        if times >= MAX_REPEATS {
            return Err(operation);
        }
        self.refused.push(((operation, times + 1), self.done.len()));
        Ok(())
    }

    pub(super) fn answered(&mut self, operation: &Arc<Operation>) {
        if self.is_needed() {
            self.done.push(operation.clone());
        }
    }

    /// Takes the refused operations, each with whether it may be repeated.
    pub(super) fn take(&mut self) -> Vec<(RefusedOperation, bool)> {
        let done = std::mem::take(&mut self.done);
        let refused = std::mem::take(&mut self.refused);
        let judged = |(refused, before): (RefusedOperation, usize)| {
            let again = may_repeat(&refused.0, &done[before..]);
            (refused, again)
        };
        refused.into_iter().map(judged).collect()
    }
}

/// Whether a refused operation may be repeated after `done`, which was sent behind it.
///
/// A repeated acquire could come after its own release, which is among `done` or, if the acquire was given up,
/// follows. A repeated release or renewal could hit a newer grant to the same token. A fence only grows, whenever it
/// is raised. A question changes nothing.
fn may_repeat(refused: &Operation, done: &[Arc<Operation>]) -> bool {
    let met = || done.iter().any(|other| other.key == refused.key);
    match refused.kind {
        Kind::Acquire { .. } | Kind::HandOver { .. } => !refused.is_closed() && !met(),
        Kind::Release | Kind::Renew => !met(),
        // The watchdog asks again later.
        Kind::RenewMany => false,
        // A lock may have been given back since.
        Kind::Heal => !met(),
        Kind::Raise | Kind::Attach | Kind::Look | Kind::Flush => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Claim;
    use std::time::Duration;

    fn operation(kind: Kind, key: &[u8]) -> Arc<Operation> {
        Arc::new(Operation::new(
            kind,
            key.into(),
            "t".into(),
            Duration::from_secs(1),
            Vec::new(),
            1,
        ))
    }

    fn locking() -> Kind {
        Kind::Acquire { claim: Claim::new(), again: false }
    }

    /// Returns, for each refused operation, whether it may be repeated after `done` was answered.
    fn repeated(refused: &[&Arc<Operation>], done: &[(Kind, &[u8])]) -> Vec<bool> {
        let mut repeats = Repeats::default();
        repeats.answered(&operation(Kind::Release, b"before"));
        for operation in refused {
            assert!(repeats.refused(((*operation).clone(), 0)).is_ok());
        }
        for (kind, key) in done {
            repeats.answered(&operation(*kind, key));
        }
        let taken = repeats.take();
        assert!(!repeats.is_needed() && repeats.take().is_empty());
        assert!(taken.iter().zip(refused).all(|((got, _), given)| Arc::ptr_eq(&got.0, given)));
        taken.into_iter().map(|(_, again)| again).collect()
    }

    #[test]
    fn what_met_nothing_is_asked_again_in_order() {
        let (acquire, release) = (operation(locking(), b"k"), operation(Kind::Release, b"k"));
        assert_eq!(repeated(&[&acquire, &release], &[]), [true, true]);
        let others: &[(Kind, &[u8])] = &[(locking(), b"other"), (Kind::Release, b"other")];
        assert_eq!(repeated(&[&acquire, &release], others), [true, true]);
        let before = operation(Kind::Release, b"before");
        assert_eq!(repeated(&[&before], &[]), [true], "that was answered before the refusal");
    }

    #[test]
    fn nothing_is_asked_again_behind_its_own_end_or_a_newer_grant() {
        let (acquire, release) = (operation(locking(), b"k"), operation(Kind::Release, b"k"));
        assert_eq!(repeated(&[&acquire], &[(Kind::Release, b"k")]), [false]);
        assert_eq!(repeated(&[&release], &[(locking(), b"k")]), [false]);
        acquire.close();
        assert_eq!(repeated(&[&acquire], &[]), [false], "it was given up");
        let raise = operation(Kind::Raise, b"k");
        assert_eq!(repeated(&[&raise], &[(locking(), b"k")]), [true]);
    }

    #[test]
    fn a_release_is_asked_again_though_its_acquire_was_done_before() {
        let (other, release) = (operation(locking(), b"other"), operation(Kind::Release, b"k"));
        let mut repeats = Repeats::default();
        assert!(repeats.refused((other, 0)).is_ok());
        repeats.answered(&operation(locking(), b"k"));
        assert!(repeats.refused((release, 0)).is_ok());
        assert!(repeats.take().into_iter().all(|(_, again)| again));
    }

    #[test]
    fn a_node_that_never_learns_is_given_up() {
        let mut repeats = Repeats::default();
        let mut next = (operation(Kind::Release, b"k"), 0);
        let mut times = 0;
        while repeats.refused(next.clone()).is_ok() {
            next = repeats.take().remove(0).0;
            times += 1;
        }
        assert_eq!(times, MAX_REPEATS);
    }
}
