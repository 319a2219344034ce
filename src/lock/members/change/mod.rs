//! Changing the set of lock nodes while proxies run: `locks.next_nodes` replace `locks.nodes`.
//!
//! The agreement of the set before ([`super::deployment`]) decides, by rounds on its seats:
//!
//! 1. *The set before is sealed*: a quorum has a marker of the phase [`Phase::Joint`]. No node that has it votes, so
//!    from then on nothing is granted, renewed or raised.
//! 2. *Its locks are copied* to every node of the next set that is there ([`copying`]). They are read on nodes that
//!    have that marker, of a quorum at least. What counted before the seal was carried out on a quorum before its
//!    nodes were sealed; one of these is among the nodes read. A lock that may be on a quorum is copied, for as long
//!    as any node has it. What was released meanwhile is taken back. A note on each node says that its copy is whole.
//!    The note is lost with the node's memory.
//! 3. *The set before is left*: the marker turns to [`Phase::Left`], which names the nodes with whole copies, a
//!    quorum of the next set. Or it turns back to [`Phase::Stands`]. Each is one round, which compares the marker of
//!    step 1. So only one of the two happens, and only with copies made under that very seal.
//! 4. *The next set begins*: its nodes get the first marker of their own, where the note still stands. Any
//!    coordinator that finds step 3 done may do this, and repeat it. A proxy that lists both sets does it, too.
//!
//! Each copy has its own seal, written by the coordinator that copies: a decision that another coordinator is about
//! to make under an earlier seal then fails, and no copy that was decided upon is overwritten. A coordinator takes
//! the seal from another once, and waits for one that takes it from itself. Once no node has voted for as long as is
//! allowed, each coordinator takes the change back.
//!
//! If the next set cannot begin, as nodes of it have lost their copies, the set before is sealed again and copied
//! anew, once it is proven that no quorum begins by the first decision ([`anew`]).
//!
//! Any coordinator can repeat whatever fails in between, or take the change back before step 3. A quorum of the set
//! before is needed up to there, and one of the next set from step 2 on. A node of the next set that was not there,
//! or has forgotten its copy, is a stranger, and waits like any other.
//!
//! A slow coordinator does no harm: each write of a copy compares a note, which the next copy and the beginning of
//! the set remove. A copy begins only where the note is still the one from before its locks were read. So it removes
//! no copy that was decided upon: when the locks were read, after that note, the set before was still sealed for this
//! copy. A node's own locks that are not among the copied ones are removed: they date from when it was last a lock
//! node, or from a change that was taken back.
//!
//! A proxy has one set at a time ([`SetPair`] says which), and begins no deployment by itself while its file lists
//! two. A set's number stands in its markers, so that a node of both sets never has the same text for both.
//!
//! - `coordinator` takes all steps, in that order, possibly beside others (`seals`); `change_error` says why it did not.
//! - `sets`: one set of nodes and its agreement; `which`: which of two sets votes, as a pure function; `set_pair`
//!   asks that for a proxy, `progress` for an operator; `begin`: step 4; `anew`: back from there to step 1.
//! - `preflight`: what is tried before anything is sealed; `misfit`: what keeps a node out.
//! - `copying`: the order of step 2; `copier`: the connection to a node that is read or written; `found`: what the
//!   nodes read say together of a lock.

mod anew;
mod begin;
mod change_error;
mod coordinator;
mod copier;
mod copying;
mod found;
mod misfit;
mod preflight;
mod progress;
mod seals;
mod set_pair;
mod sets;
mod which;

pub(super) use self::copier::{COPIED, has_copy};
pub(in crate::lock) use self::set_pair::{FoundSet, SetPair, votes_anew};
pub(crate) use self::{
    change_error::ChangeError,
    coordinator::{BackedOut, Changed, back_out, change},
    progress::{ChangeStatus, NodeOfSet, NodesNow, nodes_now, status},
    which::SetNow,
};
