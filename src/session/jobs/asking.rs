//! Questions of jobs that do not go over the session's own connection to the data node, and their answers. The function
//! that makes a question tells the type of its answer.

use std::{sync::Arc, time::Duration};

use super::super::{
    all_or_none::{AllOrNone, AllWanted},
    operator_acts::NotTakenBack,
};
use crate::{
    bridge::Asker,
    command::act::MeantGrant,
    guard::{Guards, asked::AskedCommand, learn::AskError},
    key::{Key, Token},
    lock::{
        Claim, Grant, Holding, NoQuorum, NotAttached, NotGranted, PermitGrant, PermitWanted,
        Renewed,
    },
};

/// Makes [`Question`] of the kinds of questions, and for each kind a function that makes such a question. A line also
/// tells which [`Answer`] the question has, and what is in that.
macro_rules! questions {
    (
        $(#[$all:meta])*
        enum Question {
            $(
                $(#[$doc:meta])*
                $new:ident: $kind:ident { $($field:ident: $type:ty),* } -> $answer:ident($said:ty);
            )*
        }
    ) => {
        $(#[$all])*
        pub(in crate::session) enum Question {
            $($(#[$doc])* $kind { $($field: $type),* },)*
        }

        impl Question {
            $(pub(in crate::session) fn $new($($field: $type),*) -> Typed<$said> {
                let question = Question::$kind { $($field),* };
                let read = |answer| match answer {
                    Answer::$answer(said) => Some(said),
                    _ => None,
                };
                Typed { question, read }
            })*
        }
    };
}

questions! {
    /// A question that does not go over the session's own connection to the data node. It goes to the lock nodes
    /// unless its comment says otherwise; about a bridged lock, to the data node too. At most one is under way at a
    /// time.
    enum Question {
        /// Takes a lock.
        lock: Lock {
            key: Key, token: Token, ttl: Duration, again: Option<Claim>, wait: Option<Duration>
        } -> Grant(Granting);
        /// Takes a reader's part of a lock. `again`: the part that this claim has.
        read: Read {
            key: Key, token: Token, ttl: Duration, again: Option<Claim>, wait: Option<Duration>
        } -> Grant(Granting);
        /// By which grant this token is a reader of this lock.
        reader: Reader { key: Key, token: Token } -> Look(Looking);
        /// Takes a lock for an adopted command, by this claim, unless it is held, even by the same token.
        adopt: Adopt { key: Key, token: Token, ttl: Duration, claim: Claim } -> Grant(Granting);
        /// Takes a reader's part of a lock for an adopted command, by this claim.
        adopt_shared: AdoptShared { key: Key, token: Token, ttl: Duration, claim: Claim } -> Grant(Granting);
        /// Gives a lock this new claim, so that it gets another keeper, or none.
        take_over: TakeOver { key: Key, token: Token, ttl: Duration, claim: Claim } -> Grant(Granting);
        /// Releases a lock.
        unlock: Unlock { key: Key, token: Token, claim: Option<Claim>, asker: Asker }
            -> Unlock(Result<bool, NoQuorum>);
        /// Takes all of several locks, or none.
        lock_all: LockAll { wanted: AllWanted } -> LockAll(AllOrNone);
        /// Takes the first free lock of a family.
        permit: Permit { wanted: PermitWanted } -> Permit(Result<PermitGrant, NotGranted>);
        /// Releases several locks, each by itself.
        unlock_all: UnlockAll { grants: Vec<(Key, Token, Option<Claim>, Asker)> }
            -> UnlockAll(Vec<Result<bool, NoQuorum>>);
        /// Renews a lock.
        renew: Renew { key: Key, token: Token, ttl: Duration, claim: Option<Claim>, asker: Asker }
            -> Renew(Result<Option<Renewed>, NoQuorum>);
        /// Whether these tokens hold these locks.
        attached: Attached { locks: Vec<(Key, Token)> } -> Attached(Vec<Attached>);
        /// Who holds this lock.
        look: Look { key: Key } -> Look(Looking);
        /// Who holds each of these locks.
        look_all: LookAll { keys: Vec<Key> } -> LookAll(Vec<Looking>);
        /// By which claim this token holds this lock.
        claim_of: ClaimOf { key: Key, token: Token } -> ClaimOf(Result<Option<Claim>, NoQuorum>);
        /// Takes a lock back for an operator, from the grant that is meant. The data node is told too, over a connection
        /// of the proxy's own.
        take_back: TakeBack { name: Vec<u8>, grant: MeantGrant, by: String }
            -> TakenBack(Result<(), NotTakenBack>);
        /// Gives these locks back.
        free: Free { grants: Vec<(Key, Token, Claim)> } -> Done(());
        /// Raises the fence of a lock to at least this number.
        raise: Raise { key: Key, token: Token, claim: Claim, fence: u64 }
            -> Raise(Result<Option<u64>, NoQuorum>);
        /// Which keys this command writes: asked of the data node, over a connection of the proxy's own.
        keys: Keys { guards: Arc<Guards>, command: AskedCommand } -> Keys(Result<Vec<Vec<u8>>, AskError>);
        /// Which commands the data node has, as the one of this name is not known: asked of the data node, over a
        /// connection of the proxy's own.
        commands: Commands { guards: Arc<Guards>, name: Vec<u8> } -> Commands(bool);
        /// Waits for between half of this time and all of it: nothing is asked.
        rest: Rest { time: Duration } -> Done(());
    }
}

/// Whether a lock was granted.
type Granting = Result<Grant, NotGranted>;
/// Who holds a lock.
type Looking = Result<Option<Holding>, NoQuorum>;
/// Whether a token holds a lock.
pub(in crate::session) type Attached = Result<Option<Grant>, NotAttached>;

/// The answer to a [`Question`].
pub(in crate::session) enum Answer {
    Grant(Granting),
    Unlock(Result<bool, NoQuorum>),
    LockAll(AllOrNone),
    Permit(Result<PermitGrant, NotGranted>),
    /// In the question's order.
    UnlockAll(Vec<Result<bool, NoQuorum>>),
    Renew(Result<Option<Renewed>, NoQuorum>),
    /// In the question's order.
    Attached(Vec<Attached>),
    /// `None`: the lock is free, or the votes are split: no token can be on a quorum. Nor has a bridged lock a key.
    Look(Looking),
    /// In the question's order.
    LookAll(Vec<Looking>),
    /// `None`: the token does not hold it.
    ClaimOf(Result<Option<Claim>, NoQuorum>),
    TakenBack(Result<(), NotTakenBack>),
    /// The fence that counts; `None` if the lock is not held any more.
    Raise(Result<Option<u64>, NoQuorum>),
    Keys(Result<Vec<Vec<u8>>, AskError>),
    /// Whether the commands could be read.
    Commands(bool),
    /// To `Free` it comes whether or not all lock nodes have answered.
    Done(()),
}

/// A question that is answered by an `A`.
pub(in crate::session) struct Typed<A> {
    question: Question,
    /// Returns what is in the answer, unless it is one to another question.
    read: fn(Answer) -> Option<A>,
}

impl<A> Typed<A> {
    /// Returns the question, and what reads the answer.
    pub(in crate::session) fn parts(self) -> (HeardQuestion, fn(Answer) -> Option<A>) {
        (HeardQuestion(self.question), self.read)
    }
}

/// A question whose answer a job hears, as its maker has what reads that ([`Typed::parts`]).
pub(in crate::session) struct HeardQuestion(Question);

impl From<HeardQuestion> for Question {
    fn from(HeardQuestion(question): HeardQuestion) -> Question {
        question
    }
}
