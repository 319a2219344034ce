//! Goes back to copying if the next set was decided upon and cannot begin, as nodes of it have lost their copies: the
//! set before still has all locks.
//!
//! The set before is sealed again once the next one provably never begins by the decision. A node begins if the
//! decision names it and its note on the copy still stands; beginning deletes the note. So the note is taken away
//! from so many named nodes that the others are no quorum, which is possible unless a quorum has lost it. A node
//! without such a note proves nothing: it may have begun before it forgot everything. Nor does a node that is another
//! process by now: the named one may be elsewhere, if the list was edited.

use super::{
    super::{marker::Deployment, self_report::SelfReport},
    copier::{Copier, CopyNote},
    sets::{LookedAt, NodeSet},
};

/// Whether a marker is left over from a beginning that came to nothing before this seal.
pub(super) fn is_rest(theirs: &Deployment, joint: &Deployment) -> bool {
    theirs.id == joint.id && theirs.set == joint.set + 1 && theirs.epoch <= joint.epoch
}

/// Whether a note is about a copy made under this seal, whole or taken away. A node that has begun has none.
fn is_of(note: &str, id: &str, seal: u64) -> bool {
    note == CopyNote::whole(id, seal) || note == CopyNote::taken(id, seal)
}

/// Keeps the next set from beginning with `first` by copies made under this seal. Returns whether it is now certain
/// that it never does.
pub(super) async fn prevent(to: &NodeSet, of_to: &LookedAt, first: &Deployment, seal: u64) -> bool {
    if first.shape != to.voters.shape() || first.seats.len() != to.ways.len() {
        return false;
    }
    let are_enough = |kept: &[usize]| {
        let may_begin = |seat: &usize| !first.is_blank(*seat) && !kept.contains(seat);
        !to.is_quorum(&(0..to.ways.len()).filter(may_begin).collect::<Vec<_>>())
    };
    let is_named = |seat: &usize| {
        let who = of_to.looks[*seat].as_ref().and_then(SelfReport::identity);
        who.is_some_and(|who| first.names(*seat, &who))
    };
    let named: Vec<usize> = (0..to.ways.len()).filter(is_named).collect();
    let mut noted = Vec::new();
    for seat in named {
        let note = async { Copier::connect(&to.ways[seat]).await?.note().await };
        if note.await.is_ok_and(|note| note.is_some_and(|note| is_of(&note, &first.id, seal))) {
            noted.push(seat);
        }
    }
    // If the notes are too few, they are left as they are: the other nodes may come back.
    if !are_enough(&noted) {
        return false;
    }
    let mut kept = Vec::new();
    for seat in noted {
        let taken =
            async { Copier::connect(&to.ways[seat]).await?.take_away(&first.id, seal).await };
        if taken.await.is_ok_and(|who| first.names(seat, &who)) {
            kept.push(seat);
        }
    }
    are_enough(&kept)
}
