//! Looks at each command for lock idioms on adopted keys.
//!
//! While all rules are in mode `audit`, nothing is held for that: of a command that comes in pieces, the first bytes
//! are copied as they pass. Once a rule is in mode `bridge` or `enforce`, or another proxy has bridged one, a command
//! is held until it is known which rule it is about, if any.

use std::sync::Arc;

use crate::{
    adopt::{
        AdoptLook, Adoption, FlushCommand, Found, MAX_LOOK, Sightings,
        glance::{Alike, has_body},
        task::{AdoptTask, AdoptWork},
        transaction::{Track, TransactionPart},
        verdict::Limits,
    },
    resp::{
        name::Name,
        words::{Walk, WordStep},
    },
};

use super::{desk::Desk, sights::SeenCommand};

/// The look at one connection's commands.
pub(super) struct IdiomLook {
    adoption: Arc<Adoption>,
    limits: Limits,
    track: Track,
    /// How the last command begins, if commands that begin alike need no look.
    last: Alike,
    /// The beginning of a command of which more is to come.
    begun: Option<Begun>,
}

/// Fate of a command that may be about an adopted key.
pub(super) enum Adopting {
    /// Judged as any other command.
    Pass,
    /// Kept back until more of it is here.
    More,
    /// Forwarded once the lock nodes, asked to do the same, have answered, whatever they answer.
    Beside(Box<AdoptTask>),
    /// Dropped, and this is forwarded in its place.
    Instead(Vec<u8>),
    /// Kept back until it is known whether the data node has let the client in.
    Unidentified,
    /// Forwarded, and then locks are freed.
    Flush(FlushCommand),
    /// Answered by the proxy. The number is the command's length; 0: it is too long to be kept.
    Stop(Box<AdoptTask>, usize),
}

struct Begun {
    part: TransactionPart,
    /// The command's reply is owed.
    is_answered: bool,
    bytes: Vec<u8>,
    /// How many bytes are needed to look again.
    least: usize,
}

impl IdiomLook {
    /// Returns `None` if there are no rules.
    pub(super) fn of(desk: &Desk) -> Option<Box<IdiomLook>> {
        let adoption = desk.shared.adoption.clone()?;
        let locks = &desk.config.locks;
        Some(Box::new(IdiomLook {
            limits: Limits {
                max_token: locks.max_token,
                max_ttl: locks.max_ttl,
                shared: locks.shared,
            },
            track: Track::default(),
            last: Alike::NONE,
            begun: None,
            adoption,
        }))
    }

    /// Returns how the command seen last begins: commands that begin alike need no look.
    #[inline]
    pub(super) fn last(&self) -> Alike {
        self.last
    }

    /// Judges a command before anything is done with it. `in_transaction`: a transaction about an adopted lock is
    /// open, which queues some commands that would be carried out at once elsewhere.
    #[inline]
    pub(super) fn judge(
        &mut self,
        name: Name,
        bytes: &[u8],
        in_transaction: bool,
        desk: &Desk,
    ) -> Adopting {
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
        if !desk.is_let_in() && has_body(bytes) {
            return Adopting::Unidentified;
        }
        self.judge_closely(name, bytes, in_transaction)
    }

    #[cold]
    fn judge_closely(&mut self, name: Name, bytes: &[u8], in_transaction: bool) -> Adopting {
        let look = match self.adoption.look(bytes, &self.limits) {
            AdoptLook::More(_) => return Adopting::More,
            AdoptLook::Exists(instead) if !in_transaction => return Adopting::Instead(instead),
            AdoptLook::Flush(flush) if !in_transaction => return Adopting::Flush(flush),
            look @ AdoptLook::Found(Found { task: Some(_), .. }) => look,
            // The idiom is noted once the command passes.
            AdoptLook::Found(Found { beside: Some(task), .. }) if !in_transaction => {
                return Adopting::Beside(task);
            }
            _ => return Adopting::Pass,
        };
        let is_watch = name == Name::Watch;
        let part = if is_watch { TransactionPart::Watch } else { TransactionPart::Other };
        let seen = self.track.step(part, &look);
        let AdoptLook::Found(Found { task: Some(mut task), queued, length, sighting, .. }) = look
        else {
            return Adopting::Pass;
        };
        // These count once it is known that the client may send the command.
        (task.seen, task.sighting) = (seen, Some(sighting));
        if let Some(work) = queued.filter(|_| in_transaction) {
            task.work = AdoptWork::Queue(work);
        }
        Adopting::Stop(task, length)
    }

    /// Notes that a command does not fit into the transaction under way.
    pub(super) fn spoil(&mut self) {
        self.track.spoil();
    }

    /// Looks at a command that is forwarded, which may go on behind `bytes`, and notes what is seen. `is_answered`:
    /// its reply is owed.
    #[inline]
    pub(super) fn see(&mut self, name: Name, bytes: &[u8], is_answered: bool, desk: &mut Desk) {
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
        // Here a transaction may begin, and in it each command is looked at.
        self.last = Alike::NONE;
        self.look(part, bytes, is_answered, desk);
    }

    fn look(&mut self, part: TransactionPart, bytes: &[u8], is_answered: bool, desk: &mut Desk) {
        let is_unread = !desk.is_let_in() && has_body(bytes);
        let look = match is_unread {
            false => self.adoption.look(bytes, &self.limits),
            true => match Walk::default().finish(bytes) {
                WordStep::End(length) if length <= MAX_LOOK => {
                    if desk.sights.has_room_for_body() {
                        desk.sights.fresh.push(SeenCommand::Body(part, bytes[..length].to_vec()));
                    }
                    return;
                }
                WordStep::More(least) if least <= MAX_LOOK => AdoptLook::More(least),
                // No library has such a script.
                _ => return,
            },
        };
        if let AdoptLook::More(least) = look {
            self.begun = Some(Begun { part, is_answered, bytes: bytes.to_vec(), least });
            return;
        }
        let seen = self.track.step(part, &look);
        desk.sights.fresh.extend(seen.into_iter().map(SeenCommand::Idiom));
    }

    /// Looks at a command with the body of a script, whose client the data node has let in.
    pub(super) fn look_at_body(&mut self, part: TransactionPart, bytes: &[u8]) -> Sightings {
        let look = self.adoption.look(bytes, &self.limits);
        self.track.step(part, &look)
    }

    /// Whether more is to come of a command that was looked at.
    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Takes in bytes that pass behind the beginning of a command that was looked at. Returns whether the reply to
    /// that command is owed.
    pub(super) fn see_more(&mut self, bytes: &[u8], desk: &mut Desk) -> bool {
        let Some(mut begun) = self.begun.take() else { return false };
        let room = MAX_LOOK.saturating_sub(begun.bytes.len());
        begun.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let Begun { part, is_answered, ref bytes, least } = begun;
        match bytes.len() < least {
            true => self.begun = Some(begun),
            false => self.look(part, &begun.bytes, is_answered, desk),
        }
        is_answered
    }
}
