//! A look at each command whether it is a lock idiom on an adopted key.
//!
//! Under a rule in mode `audit` nothing is held for that: of a command that comes in pieces the
//! first bytes are copied as they pass. With a rule in mode `bridge` or `enforce` a command is held
//! until it is known whether that is about its key.

use std::sync::Arc;

use crate::{
    adopt::{
        AdoptLook, Adoption, Found, MAX_LOOK,
        glance::Alike,
        seen::kept_name,
        task::{AdoptTask, AdoptWork},
        transaction::{Track, TransactionPart},
        verdict::Limits,
    },
    resp::name::Name,
};

use super::desk::Desk;

/// What is looked at on one connection.
pub(super) struct Audit {
    adoption: Arc<Adoption>,
    limits: Limits,
    /// The client's name, if it has given one.
    client: Option<Arc<str>>,
    track: Track,
    /// How the last command begins, if such are not looked at.
    last: Alike,
    /// The beginning of a command of which more is to come.
    begun: Option<Begun>,
    /// The log has told of a command of this connection that was refused.
    is_refusal_told: bool,
}

/// Fate of a command that may be about an adopted key.
pub(super) enum Adopting {
    /// Judged as any other command.
    Pass,
    /// Kept back until more of it is here.
    More,
    /// Forwarded once the lock nodes have done the same.
    Beside(Box<AdoptTask>),
    /// Dropped, and this is forwarded in its place.
    Instead(Vec<u8>),
    /// Answered by the proxy. The number is the command's length; 0: it is too long to be kept.
    Stop(Box<AdoptTask>, usize),
}

struct Begun {
    part: TransactionPart,
    bytes: Vec<u8>,
    /// How many bytes are needed to look again.
    least: usize,
}

impl Audit {
    /// Returns `None` if there are no rules.
    pub(super) fn of(desk: &Desk) -> Option<Box<Audit>> {
        let adoption = desk.shared.adoption.clone()?;
        let locks = &desk.config.locks;
        Some(Box::new(Audit {
            limits: Limits { max_token: locks.max_token, max_ttl: locks.max_ttl },
            client: None,
            track: Track::default(),
            last: Alike::NONE,
            begun: None,
            is_refusal_told: false,
            adoption,
        }))
    }

    /// How the command seen last begins: those that begin alike need not be shown.
    #[inline]
    pub(super) fn last(&self) -> Alike {
        self.last
    }

    /// Looks at a command before anything is done with it. `in_transaction`: a transaction about an
    /// adopted lock is open, which takes some that would be carried out at once elsewhere.
    #[inline]
    pub(super) fn judge(&mut self, name: Name, bytes: &[u8], in_transaction: bool) -> Adopting {
        if !self.adoption.attends() || !matches!(name, Name::Other | Name::Watch) {
            return Adopting::Pass;
        }
        if name == Name::Other {
            if self.last.is(bytes) {
                return Adopting::Pass;
            }
            if let Some(alike) = self.adoption.glance(bytes) {
                if !self.track.is_under_way() {
                    self.last = alike;
                }
                return Adopting::Pass;
            }
        }
        self.judge_closely(name, bytes, in_transaction)
    }

    #[cold]
    fn judge_closely(&mut self, name: Name, bytes: &[u8], in_transaction: bool) -> Adopting {
        let look = match self.adoption.look(bytes, &self.limits) {
            AdoptLook::More(_) => return Adopting::More,
            AdoptLook::Exists(instead) if !in_transaction => return Adopting::Instead(instead),
            look @ AdoptLook::Found(Found { task: Some(_), .. }) => look,
            // It is told of once it passes.
            AdoptLook::Found(Found { beside: Some(task), .. }) if !in_transaction => {
                return Adopting::Beside(task);
            }
            _ => return Adopting::Pass,
        };
        let is_watch = name == Name::Watch;
        let part = if is_watch { TransactionPart::Watch } else { TransactionPart::Other };
        self.take_in(part, &look);
        let AdoptLook::Found(Found { task: Some(mut task), queued, length, sighting, .. }) = look
        else {
            return Adopting::Pass;
        };
        if let Some(work) = queued.filter(|_| in_transaction) {
            task.work = AdoptWork::Queue(work);
        }
        if matches!(task.work, AdoptWork::Refuse(_)) {
            let (client, is_told) = (self.client.as_ref(), self.is_refusal_told);
            self.is_refusal_told = self.adoption.note_refused(&sighting, client, is_told);
        }
        Adopting::Stop(task, length)
    }

    /// Notes that the transaction under way has a command that it does not take.
    pub(super) fn spoil(&mut self) {
        self.track.spoil();
    }

    /// Looks at a command that is forwarded, of which more than `bytes` may come.
    #[inline]
    pub(super) fn see(&mut self, name: Name, bytes: &[u8]) {
        let part = match name {
            Name::Other => {
                if self.last.is(bytes) {
                    return;
                }
                if !self.track.is_under_way()
                    && let Some(alike) = self.adoption.glance(bytes)
                {
                    self.last = alike;
                    return;
                }
                TransactionPart::Other
            }
            Name::Watch => TransactionPart::Watch,
            Name::Hello | Name::SetName | Name::Topology(_) => TransactionPart::Other,
            Name::Multi => TransactionPart::Multi,
            Name::Exec => TransactionPart::Exec,
            Name::Discard | Name::Reset => TransactionPart::Discard,
            Name::Unwatch => TransactionPart::Unwatch,
            _ => return,
        };
        // A transaction may begin here, in which every command is looked at.
        self.last = Alike::NONE;
        self.look(part, bytes);
    }

    fn look(&mut self, part: TransactionPart, bytes: &[u8]) {
        match self.adoption.look(bytes, &self.limits) {
            AdoptLook::More(least) => {
                self.begun = Some(Begun { part, bytes: bytes.to_vec(), least });
            }
            look => self.take_in(part, &look),
        }
    }

    /// Takes in bytes that pass behind those of the command before.
    #[inline]
    pub(super) fn see_more(&mut self, bytes: &[u8]) {
        if self.begun.is_some() {
            self.look_again(bytes);
        }
    }

    #[cold]
    fn look_again(&mut self, bytes: &[u8]) {
        let Some(mut begun) = self.begun.take() else { return };
        let room = MAX_LOOK.saturating_sub(begun.bytes.len());
        begun.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if begun.bytes.len() < begun.least {
            self.begun = Some(begun);
            return;
        }
        let Begun { part, bytes, .. } = begun;
        match self.adoption.look(&bytes, &self.limits) {
            AdoptLook::More(least) => self.begun = Some(Begun { part, bytes, least }),
            look => self.take_in(part, &look),
        }
    }

    fn take_in(&mut self, part: TransactionPart, look: &AdoptLook) {
        if let AdoptLook::Introduced(name) = look {
            self.client = kept_name(name);
        }
        for sighting in self.track.step(part, look) {
            self.adoption.note(sighting, self.client.as_ref());
        }
    }
}
