//! A script of a lock library about several adopted keys: all or nothing. The lock nodes are asked for one lock after
//! the other, in the client's order. At the first lock that another client holds, what was granted is given back.
//! Other clients are refused meanwhile; no lock ever has two holders.
//!
//! DEL of several adopted keys frees each key by itself.

use std::{collections::HashSet, mem, time::Duration};

use super::{
    super::{
        claims::{Granted, Held},
        desk::Desk,
        session_metrics::Outcome,
    },
    Job, Ours, Progress, Question,
    adopted_lock::{RELEASE_UNDER_WAY, TOO_SLOW},
    authorize::{self, Permission, Probe},
    undo::Undo,
    unexpected, unlock,
    unsettled::{unsettled, unsettled_as},
};
use crate::{
    adopt::{
        by_holder::Act,
        task::{LockWork, SentBy},
    },
    bridge::Asker,
    clock::Instant,
    config::BlindPolicy,
    key::{Key, Token},
    lock::{Claim, Grant, Holding, NoQuorum, NotGranted, Renewed, padded},
    resp::{encode, expected::Expected},
};

pub(super) const TWO_KEYS: &str = "ERR two keys of one command are one adopted lock (adopt)";

/// The locks of one command, and how far the command is. The reply is a number: for a release, the locks released;
/// otherwise all of them or 0.
pub(super) struct Many {
    ours: Ours,
    sender: SentBy,
    keys: Vec<Key>,
    /// The client's token; for a blind release, the token that holds the lock asked about.
    token: Token,
    /// Set for a command that names no token: each lock is freed whichever token of an adopted command holds it, or
    /// only where this connection was granted it.
    blind: Option<BlindPolicy>,
    act: Act,
    ttl: Duration,
    /// How many locks have been asked about.
    done: usize,
    /// How many of them the token holds, or held.
    held: usize,
    /// An earlier release of the lock asked about, which too few lock nodes answered, was of a valid grant.
    was_held: bool,
    /// The earliest end of what was granted or renewed.
    until: Option<Instant>,
    /// The grants, which are given back unless the client is told.
    grants: Vec<(Grant, Undo)>,
    /// The error of the first lock about which too few lock nodes answered.
    failed: Option<NoQuorum>,
}

impl Many {
    /// Asks whether the client may, for the keys behind the first, and then about the first lock.
    pub(super) fn begin(
        (ours, sender): (Ours, SentBy),
        keys: Vec<Key>,
        (work, blind): (LockWork, BlindPolicy),
        others: &[Vec<u8>],
        desk: &mut Desk,
    ) -> Progress {
        let LockWork { token, ttl, acts, .. } = work;
        let act = if acts.absent == Act::Take { Act::Take } else { acts.own };
        let blind = token.is_none().then_some(blind);
        let (token, ttl) = (token.unwrap_or_else(|| Token::from(b"")), ttl.unwrap_or_default());
        if blind.is_none() && has_twice(&keys) {
            return ours.refuse(TWO_KEYS, Outcome::BadRequest, desk);
        }
        if act == Act::Take && keys.iter().any(|key| desk.is_guard_lock(key)) {
            let error = "ERR several adopted locks at once are no locks that guards need (adopt)";
            return ours.refuse(error, Outcome::BadRequest, desk);
        }
        let (until, grants, failed) = (None, Vec::new(), None);
        let (done, held, was_held) = (0, 0, false);
        let many = Many {
            ours,
            sender,
            keys,
            token,
            blind,
            act,
            ttl,
            done,
            held,
            was_held,
            until,
            grants,
            failed,
        };
        permit_others(ours, others, |desk| many.next(desk), desk)
    }

    fn next(self, desk: &mut Desk) -> Progress {
        let Some(key) = self.keys.get(self.done).cloned() else { return self.end(desk) };
        let token = self.token.clone();
        let ttl = padded(self.ttl, &desk.config.locks);
        match self.act {
            Act::Take => {
                let question = Question::adopt(key.clone(), token, ttl, Claim::adopted());
                Progress::ask(self, question, move |many, said, desk| many.taken(&key, said, desk))
            }
            // The lock nodes carry the release out sooner or later.
            Act::Renew if desk.tokens.is_given_back(&key, &token) => {
                Many { held: 0, ..self }.tell(desk)
            }
            Act::Renew if desk.shared.engine.must_release(&key) => {
                unsettled_as(self.ours, RELEASE_UNDER_WAY, desk, |desk| self.next(desk))
            }
            Act::Renew => {
                let question = Question::renew(key.clone(), token, ttl, None, Asker::Adopted);
                Progress::ask(self, question, move |many, said, desk| {
                    many.renewed(&key, said, desk)
                })
            }
            Act::Free if self.blind.is_none() => self.release(key, None, desk),
            Act::Free => {
                let question = Question::look(key.clone());
                Progress::ask(self, question, |many, said, desk| many.looked(key, said, desk))
            }
            Act::Nothing | Act::AddTo => unexpected(),
        }
    }

    fn release(self, key: Key, claim: Option<Claim>, desk: &mut Desk) -> Progress {
        unlock::gives_back(&key, &self.token, desk);
        let question = Question::unlock(key.clone(), self.token.clone(), claim, Asker::Adopted);
        Progress::ask(self, question, move |many, said, desk| many.released(&key, said, desk))
    }

    /// Takes in whether the lock nodes have granted a lock.
    fn taken(mut self, key: &Key, said: Result<Grant, NotGranted>, desk: &mut Desk) -> Progress {
        match said {
            Ok(grant) => {
                let granted = Granted::here(key, &self.token, &grant, None);
                self.ends_by(grant.until);
                self.grants.push((grant, Undo::new(desk.shared.clone(), &granted)));
                self.next(desk)
            }
            Err(NotGranted::NoQuorum(error)) => {
                unsettled(self.ours, &error, desk, |desk| self.next(desk))
            }
            // What was granted is dropped with the job, which gives it back.
            Err(_) => Many { held: 0, ..self }.tell(desk),
        }
    }

    /// Takes in whether the lock nodes have renewed a lock.
    fn renewed(
        mut self,
        key: &Key,
        said: Result<Option<Renewed>, NoQuorum>,
        desk: &mut Desk,
    ) -> Progress {
        match said {
            Ok(Some(renewed)) => {
                desk.tokens.renewed(key, &self.token, self.ttl, renewed.until);
                self.ends_by(renewed.until);
                self.next(desk)
            }
            Ok(None) => Many { held: 0, ..self }.tell(desk),
            Err(error) => unsettled(self.ours, &error, desk, |desk| self.next(desk)),
        }
    }

    /// Takes in whether the lock nodes have released a lock.
    fn released(mut self, key: &Key, said: Result<bool, NoQuorum>, desk: &mut Desk) -> Progress {
        match said {
            Ok(released) => {
                desk.tokens.remove(key, &self.token);
                self.held += usize::from(released || self.was_held);
            }
            Err(error) if self.ours.may_ask_again() => {
                // The lock nodes may have carried the release out all the same.
                self.was_held |= error.was_held;
                return unsettled(self.ours, &error, desk, |desk| self.next(desk));
            }
            // The others are released all the same.
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
        self.was_held = false;
        self.done += 1;
        self.next(desk)
    }

    fn end(mut self, desk: &mut Desk) -> Progress {
        if let Some(error) = &self.failed {
            return self.ours.unsettled(&error.told(), desk);
        }
        let now = Instant::now();
        if self.act != Act::Free && self.until.is_none_or(|until| until < now + self.ttl) {
            // The grants are dropped, which gives them back.
            let (grants, until) = (Vec::new(), None);
            let anew = Many { done: 0, held: 0, grants, until, ..self };
            return unsettled_as(anew.ours, TOO_SLOW, desk, |desk| anew.next(desk));
        }
        for (key, (grant, undo)) in self.keys.iter().zip(mem::take(&mut self.grants)) {
            let ttl = grant.until - now;
            desk.shared.engine.name_adopted(key, &self.token, self.sender.name());
            desk.shared.metrics.granted(false);
            desk.tokens.insert(
                key.clone(),
                Held::granted(self.token.clone(), ttl, &grant, None),
                now,
            );
            undo.disarm();
        }
        self.tell(desk)
    }

    fn tell(&self, desk: &Desk) -> Progress {
        let outcome = match (self.held, self.act) {
            (1.., _) => Outcome::Ok,
            (0, Act::Take) => Outcome::Busy,
            (0, _) => Outcome::NotHeld,
        };
        self.ours.count(outcome, desk);
        let mut answer = Vec::new();
        encode::integer(&mut answer, i64::try_from(self.held).unwrap_or(i64::MAX));
        self.ours.answer(answer, None)
    }

    /// Frees a lock of a command that names no token, whichever token the lock nodes have told.
    fn looked(
        mut self,
        key: Key,
        said: Result<Option<Holding>, NoQuorum>,
        desk: &mut Desk,
    ) -> Progress {
        let is_own_only = self.blind == Some(BlindPolicy::OwnOnly);
        let holder = match said {
            Ok(holding) => holding
                .and_then(|Holding { token, claim, .. }| {
                    Some((token, claim.filter(|claim| claim.is_adopted())?))
                })
                .filter(|(token, claim)| {
                    !is_own_only || desk.tokens.has_grant(&key, token, Some(*claim))
                }),
            Err(error) if self.ours.may_ask_again() => {
                return unsettled(self.ours, &error, desk, |desk| self.next(desk));
            }
            // The client is told that the outcome is unknown, and the grant that this proxy knows is released
            // all the same.
            Err(error) => {
                self.failed.get_or_insert(error);
                desk.known_adopted(&key, is_own_only)
            }
        };
        if let Some((token, claim)) = holder {
            self.token = token;
            return self.release(key, Some(claim), desk);
        }
        self.held += usize::from(mem::take(&mut self.was_held));
        self.done += 1;
        self.next(desk)
    }

    fn ends_by(&mut self, until: Instant) {
        self.until = Some(self.until.map_or(until, |before| before.min(until)));
        (self.done, self.held) = (self.done + 1, self.held + 1);
    }
}

/// Whether two of these are one lock.
pub(super) fn has_twice(keys: &[Key]) -> bool {
    let mut seen = HashSet::new();
    !keys.iter().all(|key| seen.insert(key))
}

/// Asks whether the client may set these keys, which stand behind the first, and goes on with `next` if so.
pub(super) fn permit_others(
    ours: Ours,
    others: &[Vec<u8>],
    next: impl FnOnce(&mut Desk) -> Progress + Send + 'static,
    desk: &mut Desk,
) -> Progress {
    let of_mode = usize::from(desk.speak_up());
    for key in others {
        desk.ask(Expected::Set, |out| authorize::probe(out, key));
    }
    Progress::Wait(Box::new(Permitting { ours, next: Box::new(next), of_mode, refused: None }))
}

/// A command for which the data node was asked whether the client may set the keys behind the first.
struct Permitting {
    ours: Ours,
    /// Takes the command on if the client may.
    next: Box<dyn FnOnce(&mut Desk) -> Progress + Send>,
    /// Number of missing replies to turning replies on, which come first.
    of_mode: usize,
    refused: Option<String>,
}

impl Job for Permitting {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        if self.of_mode > 0 {
            self.of_mode -= 1;
            return Progress::Wait(self);
        }
        if let Permission::Refused(error) = authorize::read(Probe::Adopted(Expected::Set), reply) {
            self.refused.get_or_insert(error);
        }
        if !desk.owed.is_empty() {
            return Progress::Wait(self);
        }
        desk.hush_again();
        match self.refused {
            Some(error) => self.ours.refuse(&error, Outcome::Denied, desk),
            None => (self.next)(desk),
        }
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl Job for Many {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}
