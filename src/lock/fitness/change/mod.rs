//! Changing the set of lock nodes while proxies run: `locks.nodes` gives place to `locks.next_nodes`.
//!
//! The agreement of the set before ([`super::deployment`]) decides, by rounds on its seats:
//!
//! 1. *It is sealed*: a quorum has a marker of the phase [`Phase::Joint`]. No node that has it votes, so
//!    from then on nothing is granted, renewed or raised.
//! 2. *Its locks are copied* to every node of the next set that is there ([`copying`]). They are read
//!    on nodes that have that marker, of a quorum at least. What was promised before the seal was
//!    carried out on a quorum before its nodes were sealed; one of these is among the nodes read. A lock
//!    that may be on a quorum is copied, for as long as any node has it. What was released meanwhile is
//!    taken back. A note on each node says that its copy is whole. The note is gone with the memory.
//! 3. *It is left*: the marker turns to [`Phase::Left`], which names the nodes with whole copies, a
//!    quorum of the next set. Or it turns back to [`Phase::Stands`]. Each is one round, which compares
//!    the marker of step 1. So one of both comes about, and only with copies made under that very seal.
//! 4. *The next set begins*: its nodes get the first marker of their own, where the note still stands.
//!    Whoever finds step 3 done may do that, again and again.
//!
//! Each copy has a seal of its own, written by who copies: what another coordinator is about to decide upon
//! comes to nothing, and is not written over. A coordinator takes the seal from another once, and waits for
//! who takes it from itself. Once nobody has voted for as long as it may take, each takes the change back. A proxy that lists both sets does step 4, too.
//!
//! Where the next set cannot begin, as nodes that were copied to have lost that, the set before is sealed again
//! and copied anew, once it is proven that no quorum begins by the first decision ([`anew`]).
//!
//! Whatever fails in between can be done again by anybody, or taken back before step 3. A quorum of the set
//! before is needed up to there, and one of the next set from step 2 on. A node of the next set that
//! was not there, or has forgotten its copy, is a stranger, and waits as any other.
//!
//! Who was slow does no harm: each write of a copy compares a note that the next copy, and the beginning
//! of the set, take away. A copy is begun where the note is still the one from before its locks were read: so
//! it takes none away that was decided upon, as the set before was sealed for this one after that. A node's own locks that are not among the copied ones are taken away from it: they
//! are from when it was a lock node last, or from a change that was taken back.
//!
//! A proxy has one set at a time ([`SetPair`] says which), and begins no deployment by itself while its
//! file lists two. A set's number stands in its markers, so that a node of both sets never has one text
//! for both.
//!
//! - `coordinator` does it all, in that order, one of several at once (`seals`); `error` says why it did not.
//! - `sets`: one set of nodes and its agreement; `which`: which of two sets votes, purely; `set_pair` asks that for a
//!   proxy, `status` for an operator; `begin`: step 4; `anew`: back from there to step 1.
//! - `trial`: what is tried before anything is sealed; `misfit`: what keeps a node out.
//! - `copying`: the order of step 2; `copier`: a node that is read or written; `found`: what the nodes read
//!   tell together of a lock.

mod anew;
mod begin;
mod coordinator;
mod copier;
mod copying;
mod error;
mod found;
mod misfit;
mod seals;
mod set_pair;
mod sets;
mod status;
mod trial;
mod which;

pub(super) use self::copier::{COPIED, has_copy};
pub(in crate::lock) use self::set_pair::{FoundSet, SetPair, votes_anew};
pub use self::{
    coordinator::{BackedOut, Changed, back_out, change},
    error::ChangeError,
    status::{ChangeStatus, NodeOfSet, nodes_now, status},
    which::SetNow,
};
