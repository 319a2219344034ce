//! Announces again a fence that the data node has forgotten, or may have, but only under a lock that is still held.
//!
//! The data node has forgotten a fence if it knows none, or an earlier one. It may have forgotten the fence if it has
//! become another process since, or its data has another history ([`crate::guard::history`]). In both cases it may
//! have forgotten a larger fence too, so a late write could announce the fence of a grant that is over. So the lock
//! nodes are asked first whether the token still has the lock. A write whose fence the data node knows asks nothing.

use super::{
    super::{
        desk::Desk,
        jobs::{Attached, FENCE_FORGOTTEN, Job, Progress, Question},
        planted::{self, PlantedFault},
        session_metrics::GuardedWrite,
    },
    arm::arm_for_nothing,
    log::tell_refused,
    long::{ConnectionChange, ask_for_fences, try_again},
    refuse::refuse,
    short,
    subject::{Subject, fenced},
};
use crate::{
    clock::Instant,
    guard::fences::FencedLock,
    key::{Key, Token},
    lock::NotAttached,
    log_text::shown,
};

/// Asks the lock nodes about the claims whose fences are not announced. `undo`: what the question about the fences
/// has changed, if it was asked.
pub(super) fn ask(subject: Subject, undo: Option<ConnectionChange>, desk: &mut Desk) -> Progress {
    let now = Instant::now();
    let asked: Vec<(Key, Token)> = subject
        .claims()
        .iter()
        .filter(|claim| !claim.announced)
        .filter_map(|claim| {
            let (token, _) = desk.tokens.left(&claim.key, claim.fence, now)?;
            Some((claim.key.clone(), token.clone()))
        })
        .collect();
    let question = Question::attached(asked.clone());
    Progress::ask(Checking { subject, undo, asked }, question, Checking::checked)
}

/// A write or MULTI about whose locks the lock nodes were asked, as the data node may not know the fences.
struct Checking {
    subject: Subject,
    undo: Option<ConnectionChange>,
    asked: Vec<(Key, Token)>,
}

impl Job for Checking {}

impl Checking {
    /// Has the fences announced again, or gives up. A transaction goes on with the locks that are left.
    fn checked(mut self, said: Vec<Attached>, desk: &mut Desk) -> Progress {
        let mut refused = None;
        self.subject.claimed().claims.retain(|claim| {
            let at = self.asked.iter().position(|(key, _)| *key == claim.key);
            let why = judge(claim, at.and_then(|at| said.get(at)), desk);
            let stays = why.is_none();
            if let Some(why) = why {
                refused.get_or_insert(why);
            }
            stays
        });
        match (self.subject, refused) {
            (Subject::Multi(claimed), Some((error, _))) if claimed.claims.is_empty() => {
                arm_for_nothing(error, desk)
            }
            (Subject::Multi(mut claimed), _) => {
                claimed.tries += 1;
                match self.undo {
                    Some(_) => ask_for_fences(Subject::Multi(claimed), true, desk),
                    None => short::begin(Subject::Multi(claimed), desk),
                }
            }
            (Subject::Write(write), Some((error, result))) => match self.undo {
                Some(undo) => {
                    desk.shared.metrics.guarded(result);
                    tell_refused(result, desk.unsent_command(write.length), &error, desk);
                    undo.then(write, &error, desk)
                }
                None => refuse(write, &error, result, desk),
            },
            (Subject::Write(mut write), None) => match self.undo {
                Some(undo) => try_again(write, undo, desk),
                None => {
                    write.turn_replies_on(desk);
                    short::begin(Subject::Write(write), desk)
                }
            },
        }
    }
}

/// Returns why nothing may be written under a claim, according to the lock nodes. Returns `None` if its lock is held.
fn judge(
    claim: &FencedLock,
    said: Option<&Attached>,
    desk: &mut Desk,
) -> Option<(Vec<u8>, GuardedWrite)> {
    if claim.announced || planted::has(PlantedFault::NoAsking) {
        return None;
    }
    let held = desk.tokens.left(&claim.key, claim.fence, Instant::now());
    let (error, result) = match (said, held) {
        // A later LOCK with the same token was granted anew.
        (Some(Ok(Some(grant))), _) if grant.fence > claim.fence => {
            desk.tokens.superseded(&claim.key, claim.fence);
            (fenced(claim, grant.fence, desk), GuardedWrite::Fenced)
        }
        (Some(Ok(Some(_))), Some(_)) => return None,
        (Some(Err(NotAttached::NoQuorum(why))), _) => (why.told(), GuardedWrite::Refused),
        (Some(Err(NotAttached::FenceForgotten)), _) => {
            (FENCE_FORGOTTEN.to_owned(), GuardedWrite::Refused)
        }
        (Some(Ok(Some(_) | None)) | None, _) => {
            if let Some((token, _)) = held {
                let token = token.clone();
                desk.tokens.not_held(&claim.key, &token);
            }
            let lock = shown(desk.name(&claim.key));
            (format!("NOTHELD the lock '{lock}' is not held any more"), GuardedWrite::NotHeld)
        }
    };
    Some((error.into_bytes(), result))
}
