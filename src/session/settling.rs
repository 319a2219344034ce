//! Counts what was seen of commands ([`Sights`]) once it is known that the data node lets the client send
//! them.

use super::{
    core::Core,
    desk::Desk,
    session_metrics::GuardedWrite,
    sights::{MOST, SeenCommand, Sights},
};
use crate::{
    adopt::{
        Sighting,
        task::{AdoptTask, AdoptWork},
    },
    clock::Instant,
    guard::Need,
    resp::name::{Name, ReplyMode},
};

/// Most bytes kept of a key and of a lock's name, for a line of the log.
const LONGEST: usize = 256;

impl Desk {
    /// Whether the data node has let the client in, as far as it is known.
    pub(super) fn is_let_in(&self) -> bool {
        // Replies are off only once CLIENT REPLY was obeyed.
        self.conn.state.known || !self.is_answered()
    }

    /// Whether the data node answers the next command.
    pub(super) fn is_answered(&self) -> bool {
        self.conn.reply_mode == ReplyMode::On
    }

    /// Notes a write that passes whether its locks are held or not.
    pub(super) fn audit(&mut self, needs: &[Need]) {
        let now = Instant::now();
        let missing = needs.iter().find(|need| {
            let key = self.key(&need.lock);
            self.tokens.claim(&key, now).is_none() && !self.tokens.is_attached(&key)
        });
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(LONGEST)].to_vec();
        let missing = missing.map(|Need { lock, key }| Need { lock: cut(lock), key: cut(key) });
        self.sights.fresh.push(SeenCommand::Write(missing));
    }

    /// Counts an idiom under the name that the client has now.
    fn count_idiom(&self, sighting: Sighting) {
        if let Some(adoption) = &self.shared.adoption {
            let name = self.card.name();
            adoption.note(sighting, (!name.is_empty()).then_some(&name));
        }
    }

    /// Counts an adopted command that the proxy answers, from a client that may send it.
    pub(super) fn count_task(&mut self, task: &mut AdoptTask) {
        for sighting in std::mem::take(&mut task.seen) {
            self.count_idiom(sighting);
        }
        if let (AdoptWork::Refuse(_), Some(sighting), Some(adoption)) =
            (&task.work, &task.sighting, &self.shared.adoption)
        {
            let (name, is_told) = (self.card.name(), self.sights.is_refusal_told);
            let name = (!name.is_empty()).then_some(&name);
            self.sights.is_refusal_told = adoption.note_refused(sighting, name, is_told);
        }
    }

    /// Counts a write that passes whether its locks are held or not, and logs it if one is not held.
    fn count_write(&self, missing: Option<&Need>) {
        match missing {
            None => self.shared.metrics.guarded(GuardedWrite::Passed),
            Some(need) => {
                self.shared.metrics.guarded(GuardedWrite::Audited);
                if let Some(guards) = &self.shared.guards {
                    guards.tell_of_audited(need, || (self.card.address(), self.card.name()));
                }
            }
        }
    }
}

impl Core {
    /// Looks at a command that is forwarded. `is_answered`: its reply is owed, behind all others.
    #[inline]
    pub(super) fn see(&mut self, name: Name, bytes: &[u8], is_answered: bool) {
        if let Some(look) = &mut self.idiom_look {
            look.see(name, bytes, is_answered, &mut self.desk);
        }
        if !self.desk.sights.fresh.is_empty() {
            self.keep_sights(is_answered);
        }
    }

    /// Takes in bytes that pass behind those of a command that was looked at in part.
    #[cold]
    pub(super) fn see_more(&mut self, bytes: &[u8]) {
        if let Some(look) = &mut self.idiom_look {
            let is_answered = look.see_more(bytes, &mut self.desk);
            self.keep_sights(is_answered);
        }
    }

    /// Keeps what was seen of the last command until its reply comes.
    #[cold]
    fn keep_sights(&mut self, is_answered: bool) {
        let Sights { fresh, waiting, .. } = &mut *self.desk.sights;
        if fresh.is_empty() {
            return;
        }
        let has_room = waiting.len() + fresh.len() <= MOST;
        if is_answered && has_room && self.desk.owed.mark_last(fresh.len()) {
            waiting.extend(fresh.drain(..));
            return;
        }
        for sight in std::mem::take(fresh) {
            if self.desk.is_let_in() {
                self.count_sight(sight);
            }
        }
    }

    /// Takes in the reply to a command of which `count` sights are kept.
    #[cold]
    pub(super) fn settle_sights(&mut self, count: usize, is_refused: bool) {
        for _ in 0..count {
            let Some(sight) = self.desk.sights.waiting.pop_front() else { return };
            if !is_refused {
                self.count_sight(sight);
            }
        }
    }

    fn count_sight(&mut self, sight: SeenCommand) {
        match sight {
            SeenCommand::Idiom(sighting) => self.desk.count_idiom(sighting),
            SeenCommand::Write(missing) => self.desk.count_write(missing.as_ref()),
            SeenCommand::Body(part, bytes) => {
                let seen = self.idiom_look.as_mut().map(|look| look.look_at_body(part, &bytes));
                for sighting in seen.into_iter().flatten() {
                    self.desk.count_idiom(sighting);
                }
            }
        }
    }
}
