//! Reasons why a node cannot join the next set.

use super::super::{
    marker::Deployment,
    self_report::{MarkerFound, SelfReport},
};

/// Returns why locks must not be copied to a node, or `None` if they may be.
pub(super) fn misfit(look: &SelfReport, ours: &Deployment) -> Option<String> {
    if !look.is_master {
        return Some("is a replica".into());
    }
    if look.run_id.is_none() {
        return Some("does not tell its run_id: allow its user INFO".into());
    }
    foreign(look, Some(&ours.id))
}

/// Returns what on a node keeps it from joining the deployment `ours`.
pub(super) fn foreign(look: &SelfReport, ours: Option<&str>) -> Option<String> {
    match &look.marker {
        MarkerFound::Marker(marker) if ours.is_some_and(|ours| marker.deployment.id != ours) => {
            let id = &marker.deployment.id;
            Some(format!(
                "belongs to another deployment, {id}: if that is not used any more, DEL lockgate:deployment there"
            ))
        }
        MarkerFound::Other => Some("has something else at lockgate:deployment".into()),
        _ => None,
    }
}
