//! Readers of an adopted lock: a library's clients that share the lock while nobody has it alone.
//!
//! A library names a reader by its token, over whichever connection and through whichever proxy. Where this connection
//! does not know the reader, the lock nodes are asked by which claim the token reads.
//!
//! No reader becomes a writer: a quorum cannot change both at once, so the lock counts as another's. A client that has
//! the lock alone and asks to read keeps it alone, which is more than it asks for.

use super::{
    super::{
        claims::{Granted, Held},
        desk::Desk,
        session_metrics::Outcome,
    },
    Job, Ours, Progress, Question,
    adopted_lock::{OneLock, RELEASE_UNDER_WAY, TOO_SLOW, encode_reply, held_for, tell},
    announce, unexpected, unlock,
    unsettled::{unsettled, unsettled_as},
};
use crate::{
    adopt::{
        by_holder::{Act, Acts},
        task::WorkOnReaders,
    },
    bridge::Asker,
    clock::Instant,
    command::{BadRequest, shown},
    key::Key,
    lock::{Claim, Grant, Holding, NoQuorum, NotGranted, Renewed, SameToken},
};

/// A command about the part that its token has as a reader.
pub(super) struct OnReader {
    lock: OneLock,
    /// The key of the part.
    reader: Key,
    claim: Claim,
    /// The lock nodes have told it: otherwise this connection remembers it, and it may have ended.
    is_told: bool,
}

/// Returns the error for a command that cannot take a reader's part, if it would.
pub(super) fn obstacle(lock: &OneLock, desk: &Desk) -> Option<BadRequest> {
    let OneLock { key, readers, .. } = lock;
    match () {
        () if *readers != WorkOnReaders::Takes => None,
        () if !desk.config.locks.shared => Some(BadRequest::SharedOff),
        () if desk.shared.is_bridged(key) => Some(BadRequest::SharedBridged),
        // A reader has no fence, by which the data node would refuse what the writer before sent late.
        () if desk.is_guard_lock(key) => Some(BadRequest::SharedGuard),
        () if !desk.shared.fleet.all_know_readers() => Some(BadRequest::SharedUnknown),
        () => None,
    }
}

/// Whether what this command does to the lock is done to a reader's part if the token has that.
pub(super) fn may_be_on_reader(lock: &OneLock, desk: &Desk) -> bool {
    let takes_alone = lock.acts.absent == Act::Take && lock.readers != WorkOnReaders::Takes;
    lock.readers != WorkOnReaders::None
        && !takes_alone
        && desk.may_be_readers(&lock.key)
        && !desk.shared.is_bridged(&lock.key)
}

/// Returns the key and the claim of the part that this command is about, if this connection remembers it.
pub(super) fn remembered(lock: &OneLock, desk: &Desk) -> Option<(Key, Claim)> {
    // Whether the part is still there, only the lock nodes know.
    if lock.acts.own == Act::Nothing || !may_be_on_reader(lock, desk) {
        return None;
    }
    let reader = desk.tokens.reader_with(&lock.key, &lock.token)?;
    let claim = desk.tokens.claim_of(&reader, &lock.token)?;
    Some((reader, claim))
}

/// Goes on with a part that this connection remembers.
pub(super) fn go_on(lock: OneLock, (reader, claim): (Key, Claim), desk: &mut Desk) -> Progress {
    OnReader { lock, reader, claim, is_told: false }.act(desk)
}

/// Asks the lock nodes by which claim the token reads.
pub(super) fn find(lock: OneLock) -> Progress {
    let question = Question::reader(lock.key.clone(), lock.token.clone());
    Progress::ask(lock, question, found)
}

fn found(lock: OneLock, said: Result<Option<Holding>, NoQuorum>, desk: &mut Desk) -> Progress {
    match said {
        Ok(Some(Holding { token, .. })) if token.is_empty() => {
            let error = BadRequest::SeveralReaders(shown(desk.name(&lock.key)));
            lock.ours.refuse(&error.to_string(), Outcome::NotHeld, desk)
        }
        Ok(Some(Holding { claim: Some(claim), .. })) => {
            let reader = claim.key_of_reader(&lock.key);
            OnReader { lock, reader, claim, is_told: true }.act(desk)
        }
        Ok(_) => nobodys(lock, desk),
        Err(error) => unsettled(lock.ours, &error, desk, |_| find(lock)),
    }
}

/// Goes on where the token reads nothing.
fn nobodys(lock: OneLock, desk: &mut Desk) -> Progress {
    match lock.readers {
        WorkOnReaders::Takes => share(lock, desk),
        WorkOnReaders::May | WorkOnReaders::None => lock.nobodys(desk),
    }
}

/// Asks the lock nodes for a reader's part.
fn share(lock: OneLock, desk: &Desk) -> Progress {
    let ttl = held_for(lock.ttl.unwrap_or_default(), desk);
    let (key, token, claim) = (lock.key.clone(), lock.token.clone(), Claim::adopted());
    Progress::ask(lock, Question::adopt_shared(key, token, ttl, claim), shared)
}

/// Takes in whether the lock nodes have granted a reader's part.
fn shared(lock: OneLock, said: Result<Grant, NotGranted>, desk: &mut Desk) -> Progress {
    match said {
        Ok(grant) => granted(lock, grant, desk),
        Err(NotGranted::Held { same_token, .. }) => match same_token {
            SameToken::Grants(grants) if grants.is_empty() => {
                lock.tell(lock.replies.other, Outcome::Busy, desk)
            }
            // The token may have the lock alone.
            SameToken::Grants(_) | SameToken::Unknown => keep_alone(lock, desk),
        },
        Err(NotGranted::QueueFull { .. } | NotGranted::Deadlock { .. }) => unexpected(),
        Err(NotGranted::NoQuorum(error)) => {
            unsettled(lock.ours, &error, desk, |desk| share(lock, desk))
        }
    }
}

fn granted(lock: OneLock, grant: Grant, desk: &mut Desk) -> Progress {
    let Some(claim) = grant.claim else { return unexpected() };
    let reader = claim.key_of_reader(&lock.key);
    if lock.outlasts(grant.validity) {
        desk.shared.give_back(reader, lock.token.clone(), grant.claim);
        return unsettled_as(lock.ours, TOO_SLOW, desk, |desk| share(lock, desk));
    }
    let OneLock { ours, sender, key, token, ttl, replies, .. } = lock;
    let ttl = ttl.unwrap_or_default();
    desk.shared.engine.name_adopted(&reader, &token, sender.name());
    desk.shared.metrics.granted(false);
    let granted = Granted::adopted(&reader, &token, &grant, ttl);
    let held = Held::granted(token, ttl, &grant, None);
    desk.tokens.granted_shared(&key, reader, held, Instant::now());
    ours.count(Outcome::Ok, desk);
    let mut answer = Vec::new();
    encode_reply(&mut answer, replies.absent, desk.conn.state.resp3);
    announce::granted(ours, granted, answer, desk)
}

/// Gives the lock, if the token has it alone, the command's TTL.
fn keep_alone(mut lock: OneLock, desk: &mut Desk) -> Progress {
    (lock.acts, lock.readers) = (Acts::RENEW, WorkOnReaders::None);
    lock.replies.absent = lock.replies.other;
    lock.begin(desk)
}

impl OnReader {
    fn act(self, desk: &mut Desk) -> Progress {
        let OneLock { acts, replies, .. } = self.lock;
        match acts.own {
            Act::Renew => self.renew(desk),
            Act::Free => self.release(desk),
            _ => tell(self.lock.ours, replies.own, Outcome::NotHeld, desk),
        }
    }

    fn renew(self, desk: &mut Desk) -> Progress {
        let OneLock { ours, token, ttl, .. } = &self.lock;
        let is_released = desk.tokens.is_given_back(&self.reader, token)
            || desk.shared.engine.must_release(&self.reader);
        if is_released {
            return unsettled_as(*ours, RELEASE_UNDER_WAY, desk, |desk| self.renew(desk));
        }
        let ttl = held_for(ttl.unwrap_or_default(), desk);
        let (reader, token) = (self.reader.clone(), token.clone());
        let question = Question::renew(reader, token, ttl, Some(self.claim), Asker::Adopted);
        Progress::ask(self, question, OnReader::renewed)
    }

    fn renewed(self, said: Result<Option<Renewed>, NoQuorum>, desk: &mut Desk) -> Progress {
        let OneLock { ours, token, ttl, replies, .. } = &self.lock;
        let renewed = match said {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return self.ended(desk),
            Err(error) => return unsettled(*ours, &error, desk, |desk| self.renew(desk)),
        };
        desk.tokens.renewed(&self.reader, token, ttl.unwrap_or_default(), renewed.until);
        if self.lock.outlasts(renewed.validity) {
            return unsettled_as(*ours, TOO_SLOW, desk, |desk| self.renew(desk));
        }
        tell(*ours, replies.own, Outcome::Ok, desk)
    }

    fn release(self, desk: &mut Desk) -> Progress {
        let (reader, token) = (self.reader.clone(), self.lock.token.clone());
        unlock::gives_back(&reader, &token, desk);
        let question = Question::unlock(reader, token, Some(self.claim), Asker::Adopted);
        Progress::ask(self, question, OnReader::released)
    }

    fn released(mut self, said: Result<bool, NoQuorum>, desk: &mut Desk) -> Progress {
        match said {
            Ok(released) if released || self.lock.was_held => {
                desk.tokens.remove(&self.reader, &self.lock.token);
                tell(self.lock.ours, self.lock.replies.own, Outcome::Ok, desk)
            }
            Ok(_) => self.ended(desk),
            Err(error) => {
                // The lock nodes may have carried the release out all the same.
                self.lock.was_held |= error.was_held;
                unsettled(self.lock.ours, &error, desk, |desk| self.release(desk))
            }
        }
    }

    /// Goes on where the part has ended: the token may have another one, or the lock alone, if only this connection
    /// knew of this part.
    fn ended(self, desk: &mut Desk) -> Progress {
        desk.tokens.remove(&self.reader, &self.lock.token);
        match self.is_told {
            true => nobodys(self.lock, desk),
            false => self.lock.begin(desk),
        }
    }
}

impl Job for OnReader {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.lock.ours)
    }
}
