//! Decides for each command how it fits into the client's transaction about an adopted lock ([`LockTransaction`]).

use super::{
    core::Core,
    dropping::Dropping,
    jobs::adopted_exec::{ALONE, MISFIT, TransactionCommand, TransactionStep},
    lock_transaction::LockTransaction,
};
use crate::{
    adopt::task::{AdoptTask, AdoptWork},
    resp::{
        name::Name,
        request::INLINE_LIMIT,
        split::{Split, split},
    },
};

/// Redis's errors, which leave the transaction as it is.
const NESTED_MULTI: &str = "ERR MULTI calls can not be nested";
const NESTED_WATCH: &str = "ERR WATCH inside MULTI is not allowed";
/// Redis's error for an EXEC with more words, which ends the transaction.
const EXEC_ARITY: &str =
    "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";

/// Fate of a command behind WATCH of an adopted lock.
pub(super) enum Transacting {
    /// Judged as any other command.
    Pass,
    /// Kept back, for its turn or for the rest of its bytes.
    Kept,
    /// Dropped: its bytes, as they arrive.
    Drop(Dropping),
}

impl Core {
    /// Whether a transaction about an adopted lock is open.
    #[inline]
    pub(super) fn is_in_transaction(&self) -> bool {
        self.desk.transaction.as_ref().is_some_and(|stage| stage.is_open())
    }

    /// Looks at a command behind WATCH of an adopted lock. `arguments`: the number of its words.
    #[cold]
    pub(super) fn transact(&mut self, name: Name, arguments: usize, bytes: &[u8]) -> Transacting {
        let step = match (name, self.is_in_transaction()) {
            (Name::Multi, false) if arguments == 1 => TransactionStep::Multi,
            (Name::Unwatch, false) if arguments == 1 => TransactionStep::Unwatch,
            (Name::Exec, true) if arguments == 1 => TransactionStep::Exec,
            (Name::Discard, true) if arguments == 1 => TransactionStep::Discard,
            (Name::Exec, true) => {
                self.desk.transaction = None;
                return Transacting::Drop(Dropping::Misfit(EXEC_ARITY));
            }
            (Name::Multi, true) => return Transacting::Drop(Dropping::Misfit(NESTED_MULTI)),
            (Name::Watch, true) => return Transacting::Drop(Dropping::Misfit(NESTED_WATCH)),
            // On the data node no key is watched and no transaction is open.
            (Name::Reset, _) if arguments == 1 => {
                self.desk.transaction = None;
                return Transacting::Pass;
            }
            (Name::Quit, _) => {
                self.desk.transaction = None;
                return Transacting::Pass;
            }
            (_, false) | (Name::Blank | Name::Other | Name::SetName | Name::Topology(_), true) => {
                return Transacting::Pass;
            }
            (_, true) => return Transacting::Drop(self.refuse_as_misfit(MISFIT)),
        };
        match split(bytes, 1, INLINE_LIMIT) {
            Split::Incomplete => Transacting::Kept,
            Split::TooLong => Transacting::Drop(self.refuse_as_misfit(MISFIT)),
            Split::Whole { length, .. } => {
                // The proxy answers the command, so the data node owes no reply.
                self.see(name, &bytes[..length], false);
                self.wait(Box::new(TransactionCommand { step, length }));
                Transacting::Kept
            }
        }
    }

    /// Returns the refusal of a command that is about no adopted key, if it does not fit into the transaction.
    #[cold]
    pub(super) fn misfit(&mut self, name: Name) -> Option<Dropping> {
        match (name, self.is_in_transaction()) {
            (Name::Other | Name::SetName | Name::Topology(_), true) => {
                Some(self.refuse_as_misfit(MISFIT))
            }
            (Name::Watch, false) => Some(self.refuse_as_misfit(ALONE)),
            _ => None,
        }
    }

    /// Fits a command on an adopted key into the transaction, or has it refused.
    #[cold]
    pub(super) fn fit(&mut self, name: Name, task: &mut AdoptTask) {
        let is_open = self.is_in_transaction();
        let is_first = matches!(self.desk.transaction.as_deref(), Some(LockTransaction::Open(_)));
        match task.work {
            AdoptWork::Queue(_) if is_first => {
                self.desk.step_transaction(LockTransaction::attempt);
                return;
            }
            _ if task.work.is_refusal() && (is_open || name == Name::Watch) => {}
            _ if is_open => task.work = AdoptWork::Fail(MISFIT),
            _ => return,
        }
        self.refuse_as_misfit(MISFIT);
    }

    /// Notes that a command does not fit into the transaction, and is refused by this error.
    fn refuse_as_misfit(&mut self, error: &'static str) -> Dropping {
        self.desk.step_transaction(LockTransaction::misfit);
        if let Some(look) = &mut self.idiom_look {
            look.spoil();
        }
        Dropping::Misfit(error)
    }

    /// Notes that a command is dropped because the client must first be told of a loss.
    #[cold]
    pub(super) fn lose_in_transaction(&mut self, name: Name) {
        if !self.is_in_transaction() {
            return;
        }
        match name {
            Name::Exec | Name::Discard => self.desk.transaction = None,
            _ => self.desk.step_transaction(LockTransaction::misfit),
        }
    }
}
