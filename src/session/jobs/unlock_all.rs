//! MUNLOCK: gives several locks back, each by itself.

use std::collections::VecDeque;

use super::{
    super::{attempts::InTheWay, desk::Desk, session_metrics::Outcome},
    Job, Ours, Progress, Question,
    own_grant::{self, GrantOfToken, NoGrant, TokensGrant},
    unlock,
};
use crate::{
    bridge::Asker,
    command::{BadRequest, shown},
    key::{Key, Token},
    lock::{Claim, NoQuorum},
    resp::encode,
};

/// A MUNLOCK whose locks are found and then released.
struct UnlockingAll {
    ours: Ours,
    /// Locks whose LOCK by this token the connection was refused, with what stood in its way: the lock nodes are asked
    /// which grant the token has, one lock after the other.
    doubted: VecDeque<(Key, Token, InTheWay)>,
    /// Locks to be released, by the claim that the lock nodes have named or else by the connection's own.
    found: Vec<(Key, Token, Option<Claim>)>,
    /// How many were released.
    released: usize,
    /// The first error. The other locks are released all the same.
    failed: Option<(String, Outcome)>,
}

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has no token for any of these locks.
pub(super) fn begin(
    ours: Ours,
    keys: &[Key],
    token: Option<Token>,
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    let (doubted, found) = (VecDeque::new(), Vec::with_capacity(keys.len()));
    let mut all = UnlockingAll { ours, doubted, found, released: 0, failed: None };
    let mut missing = Vec::new();
    for key in keys {
        let key = match own_grant::key_of(key.clone(), token.as_ref(), desk) {
            Ok(key) => key,
            Err(error) => {
                missing.push(error);
                continue;
            }
        };
        let key = &key;
        match own_grant::token_of(key, token.clone(), desk) {
            Ok(token) => match desk.tokens.in_the_way(key, &token) {
                Some(in_the_way) => all.doubted.push_back((key.clone(), token, in_the_way)),
                None => all.found.push((key.clone(), token, None)),
            },
            Err(NoGrant::NotNamed(error)) => missing.push(error),
            Err(no_grant) => no_grant.note(key, true, desk)?,
        }
    }
    let has_none = missing.len() == keys.len();
    match missing.into_iter().next() {
        Some(error) if has_none => return Err(error),
        Some(error) => all.fail(error.to_string(), Outcome::BadRequest),
        None => {}
    }
    Ok(all.find(desk))
}

impl Job for UnlockingAll {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl UnlockingAll {
    /// Finds the next grant that is in doubt, or releases what was found.
    fn find(mut self, desk: &mut Desk) -> Progress {
        let ours = self.ours;
        let Some((key, token, in_the_way)) = self.doubted.pop_front() else {
            return self.release(desk);
        };
        let question = Question::claim_of(key.clone(), token.clone());
        let asks = GrantOfToken { ours, key, token, in_the_way, unlocks: true };
        Progress::ask(self, question, move |all, said, desk| all.told(asks, said, desk))
    }

    /// Takes in which grant a token has.
    fn told(
        mut self,
        asks: GrantOfToken,
        said: Result<Option<Claim>, NoQuorum>,
        desk: &mut Desk,
    ) -> Progress {
        match asks.judge(said, desk) {
            TokensGrant::Its(claim) => self.found.push((asks.key, asks.token, Some(claim))),
            TokensGrant::Nobodys => own_grant::note_not_held(&asks.key, true, desk),
            TokensGrant::Unsure => {
                let error = BadRequest::Unsure(shown(desk.name(&asks.key)));
                self.fail(error.to_string(), Outcome::NotHeld);
            }
            TokensGrant::Unknown(error) => self.fail(error.told(), Outcome::NoQuorum),
        }
        self.find(desk)
    }

    fn release(self, desk: &mut Desk) -> Progress {
        if self.found.is_empty() {
            return self.tell(desk);
        }
        let grants = self.found.iter().map(|(key, token, claim)| {
            let (claim, asker) = match claim {
                Some(claim) => (Some(*claim), Asker::Told),
                None => (unlock::gives_back(key, token, desk), Asker::Ours),
            };
            (key.clone(), token.clone(), claim, asker)
        });
        let question = Question::unlock_all(grants.collect());
        Progress::ask(self, question, |all, said, desk| all.answered(said, desk))
    }

    /// Takes in which locks were released.
    fn answered(mut self, said: Vec<Result<bool, NoQuorum>>, desk: &mut Desk) -> Progress {
        for ((key, token, claim), said) in std::mem::take(&mut self.found).iter().zip(said) {
            match said {
                Ok(released) => {
                    desk.tokens.remove(key, token);
                    if released && claim.is_none() {
                        // It was the connection's own.
                        desk.tokens.refused_no_more(key, token);
                    }
                    self.released += usize::from(released);
                }
                Err(error) => self.fail(error.told(), Outcome::NoQuorum),
            }
        }
        self.tell(desk)
    }

    fn fail(&mut self, error: String, outcome: Outcome) {
        self.failed.get_or_insert((error, outcome));
    }

    fn tell(self, desk: &Desk) -> Progress {
        if let Some((error, outcome)) = self.failed {
            return self.ours.refuse(&error, outcome, desk);
        }
        let mut out = Vec::new();
        encode::integer(&mut out, i64::try_from(self.released).unwrap_or(i64::MAX));
        self.ours.count(if self.released > 0 { Outcome::Ok } else { Outcome::NotHeld }, desk);
        self.ours.answer(out, None)
    }
}
