//! Begins the set of lock nodes that was decided upon. Any coordinator or proxy may do so, and repeat it.

use std::{fmt, time::Duration};

use super::{
    super::{round, seats::Plan},
    copier::{COPIED, Copier, CopyNote},
    sets::{LookedAt, NodeSet, Trouble, joined, silent},
    which::ChangeDecision,
};

/// The reason why no quorum is known to have begun.
pub(super) struct NotBegun {
    /// Whether too few nodes can begin, even counting those that do not answer.
    pub(super) is_hopeless: bool,
    /// Which nodes cannot begin, each with the reason.
    pub(super) late: Vec<Trouble>,
}

impl NotBegun {
    /// Says what keeps the set's nodes from beginning.
    pub(super) fn why(&self) -> String {
        if self.late.is_empty() { "they did not agree in time".into() } else { joined(&self.late) }
    }
}

/// Writes the next set's first marker on nodes whose copy is still whole. Once a quorum has it, returns what keeps
/// other nodes of the set from beginning.
///
/// # Errors
/// If no quorum is known to have that marker.
pub(super) async fn begin(
    to: &NodeSet,
    mut of_to: LookedAt,
    ChangeDecision { first, seal, .. }: &ChangeDecision,
    longest: Duration,
) -> Result<Vec<Trouble>, NotBegun> {
    let whole = CopyNote::whole(&first.id, *seal);
    let (mut acceptors, mut admitted) = (Vec::new(), Vec::new());
    let mut troubles = silent(to, &of_to);
    let mut may_yet: Vec<usize> = (0..to.ways.len())
        .filter(|seat| of_to.looks[*seat].is_none() && !first.is_blank(*seat))
        .collect();
    for (seat, look) in of_to.looks.iter().enumerate() {
        let Some(look) = look else { continue };
        let mut fails = |why: &dyn fmt::Display| troubles.push(Trouble::of(to, seat, &why));
        if !look.identity().is_some_and(|who| first.names(seat, &who)) {
            fails(&"is not one that was copied to, or was restarted since");
            continue;
        }
        if look.marker().is_some_and(|marker| marker.deployment == *first) {
            acceptors.push(seat);
            may_yet.push(seat);
            continue;
        }
        // A node that refuses writes by now would keep all others from beginning.
        let tried = async {
            let mut copier = Copier::connect(&to.ways[seat]).await?;
            copier.try_to_write().await?;
            copier.note().await
        };
        match tried.await {
            Ok(note) if note.as_ref() == Some(&whole) => {
                acceptors.push(seat);
                admitted.push(seat);
                may_yet.push(seat);
            }
            Ok(_) => fails(&"has lost its copy"),
            Err(error) => {
                may_yet.push(seat);
                fails(&error);
            }
        }
    }
    let is_begun = of_to.survey.committed.as_ref().is_some_and(|it| it.deployment == *first);
    if is_begun && admitted.is_empty() {
        return Ok(troubles);
    }
    let is_hopeless = !to.is_quorum(&may_yet);
    if !to.is_quorum(&acceptors) {
        return Err(NotBegun { is_hopeless, late: troubles });
    }
    // These nodes are admitted by the note on their copy.
    for seat in &admitted {
        if let Ok(answered) = &mut of_to.all[*seat] {
            answered.look.note.clone_from(&whole);
        }
    }
    let (blank, joining) = (vec![], vec![]);
    let plan = Plan { next: first.clone(), acceptors, blank, admitted, joining };
    let is_quorum = |seats: &[usize]| to.is_quorum(seats);
    let promised = of_to.survey.promised.clone();
    let done = round::carry_out_by(COPIED, of_to.all, &plan, &promised, longest, is_quorum).await;
    if done.is_some() { Ok(troubles) } else { Err(NotBegun { is_hopeless, late: troubles }) }
}
