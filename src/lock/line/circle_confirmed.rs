//! Whether a circle of waiting clients still exists, by the lock nodes' answers.

use std::{future::poll_fn, sync::Arc};

use super::circle::{KeptInCircle, circle};
use crate::{
    card::ClientCard,
    lock::{LookUp, grants::Grants},
};

/// Asks the lock nodes whether each lock of the circle is held by the grant that this proxy knows, and then checks
/// whether the circle still exists.
pub(in crate::lock) async fn stands(
    grants: Arc<Grants>,
    found: Vec<KeptInCircle>,
    card: Arc<ClientCard>,
) -> bool {
    let looks: Vec<LookUp> = {
        let nodes = grants.nodes();
        found.iter().map(|lock| LookUp::ask(&nodes, lock.key.clone())).collect()
    };
    for (mut look, lock) in looks.into_iter().zip(&found) {
        let claim = poll_fn(|cx| look.poll_claim_of(&lock.token, cx)).await;
        if claim != Ok(Some(lock.claim)) {
            return false;
        }
    }
    let Some(first) = found.first() else { return false };
    card.waits_for().as_ref() == Some(&first.key)
        && circle(&grants.holders, &first.key, &card).as_ref() == Some(&found)
}
