//! The beginning of the set of lock nodes that was decided upon. Anybody may do that, again and again.

use std::time::Duration;

use super::{
    super::{marker::Deployment, round, seats::Plan},
    copier::{COPIED, Copier, CopyNote},
    sets::{LookedAt, NodeSet},
};

/// Writes the next set's first marker where the copy is whole still. Returns whether a quorum has it.
pub(super) async fn begin(
    to: &NodeSet,
    mut of_to: LookedAt,
    first: &Deployment,
    (seal, longest): (u64, Duration),
) -> bool {
    let whole = CopyNote::whole(&first.id, seal);
    let (mut acceptors, mut admitted) = (Vec::new(), Vec::new());
    for (seat, look) in of_to.looks.iter().enumerate() {
        let Some(look) = look else { continue };
        if !look.identity().is_some_and(|who| first.names(seat, &who)) {
            continue;
        }
        if look.marker().is_some_and(|marker| marker.deployment == *first) {
            acceptors.push(seat);
            continue;
        }
        let Ok(mut copier) = Copier::connect(&to.ways[seat]).await else { continue };
        if matches!(copier.note().await, Ok(Some(note)) if note == whole) {
            acceptors.push(seat);
            admitted.push(seat);
        }
    }
    let is_begun = of_to.survey.committed.as_ref().is_some_and(|it| it.deployment == *first);
    if is_begun && admitted.is_empty() {
        return true;
    }
    if !to.is_quorum(&acceptors) {
        return false;
    }
    // The note that admits them is that of the copy.
    for seat in &admitted {
        if let Ok(answered) = &mut of_to.all[*seat] {
            answered.look.note.clone_from(&whole);
        }
    }
    let (blank, joining) = (vec![], vec![]);
    let plan = Plan { next: first.clone(), acceptors, blank, admitted, joining };
    let is_quorum = |seats: &[usize]| to.is_quorum(seats);
    let promised = of_to.survey.promised.clone();
    round::carry_out_by(COPIED, of_to.all, &plan, &promised, longest, is_quorum).await.is_some()
}
