//! An adopted command about one lock: a look, if that decides what is done, the act, and the client's reply.
//!
//! Libraries count the whole TTL from the reply on, so the lock nodes hold the lock for longer
//! ([`crate::lock::padded`]). A grant that comes too late for that is given back.

use std::time::Duration;

use super::{
    super::{
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        planted::{self, PlantedFault},
        session_metrics::Outcome,
    },
    Job, Ours, Progress, Question, adopted_kept, adopted_shared, announce, unexpected, unlock,
    unsettled::{unsettled, unsettled_as},
};
use crate::{
    adopt::{
        by_holder::{Act, Acts, LockReply, Replies},
        task::{LockWork, SentBy, WorkOnReaders},
    },
    bridge::Asker,
    clock::{Instant, millis},
    command::BadRequest,
    config::{AdoptOptions, BlindPolicy, LongTtlPolicy, NoTtlPolicy},
    key::{Key, Token},
    lock::{Claim, Grant, Holding, NoQuorum, NotGranted, Renewed, SameToken, padded},
    resp::{encode, expected::Expected},
};

/// An adopted command about one lock. The lock nodes are asked who holds the lock, if what is to be done depends on
/// that, then to do it; and the client is told.
pub(super) struct OneLock {
    pub(super) ours: Ours,
    pub(super) sender: SentBy,
    pub(super) key: Key,
    /// The command's token; of a command that names none, the holder's once the lock nodes have told it.
    pub(super) token: Token,
    names_token: bool,
    /// How long the client will count on the lock. `None`: the lock is to have no TTL, and is kept for as long as the
    /// connection lives.
    pub(super) ttl: Option<Duration>,
    pub(super) acts: Acts,
    pub(super) replies: Replies,
    pub(super) options: AdoptOptions,
    /// Commands for the data node once the lock is released.
    pub(super) aside: Vec<Vec<Vec<u8>>>,
    /// Set for a command that takes the first free one of several locks, of which this is one.
    pub(super) otherwise: Option<Otherwise>,
    pub(super) readers: WorkOnReaders,
    /// The holder's claim, if the lock nodes have told it or this proxy knows it.
    pub(super) claim: Option<Claim>,
    /// The count of the lock's releases from before it was asked for.
    releases: u32,
    /// An earlier release, which too few lock nodes answered, was of a grant that was valid.
    pub(super) was_held: bool,
}

/// What becomes of a command that takes the first free one of several locks.
pub(super) struct Otherwise {
    /// The answer if this lock is granted.
    pub(super) granted: Vec<u8>,
    /// Takes the command on if this lock is held.
    pub(super) held: Box<dyn FnOnce(&mut Desk) -> Progress + Send>,
}

impl OneLock {
    pub(super) fn new(ours: Ours, key: Key, work: LockWork) -> OneLock {
        let LockWork { token, ttl, acts, replies, readers, .. } = work;
        OneLock {
            ours,
            sender: SentBy::default(),
            key,
            names_token: token.is_some(),
            token: token.unwrap_or_else(|| Token::from(b"")),
            ttl,
            acts,
            replies,
            options: AdoptOptions::default(),
            aside: Vec::new(),
            otherwise: None,
            readers,
            claim: None,
            releases: 0,
            was_held: false,
        }
    }

    /// Begins the command.
    pub(super) fn begin(self, desk: &mut Desk) -> Progress {
        if let Some(error) = adopted_shared::obstacle(&self, desk) {
            return self.ours.refuse(&error.to_string(), Outcome::BadRequest, desk);
        }
        if let Some(part) = adopted_shared::remembered(&self, desk) {
            return adopted_shared::go_on(self, part, desk);
        }
        match self.readers {
            WorkOnReaders::Takes => adopted_shared::find(self),
            WorkOnReaders::May | WorkOnReaders::None => self.begin_alone(desk),
        }
    }

    /// Begins the command with the lock as one client has it alone.
    fn begin_alone(self, desk: &mut Desk) -> Progress {
        // A script may answer otherwise where its lock has no TTL, which only the lock nodes know.
        let may_be_endless = self.options.no_ttl == NoTtlPolicy::Session;
        match (self.acts.absent, self.acts.own) {
            _ if !self.names_token || self.has_passed() => self.look(),
            (Act::Take, Act::Nothing) => self.take(desk),
            (_, Act::Renew) if !may_be_endless => self.renew(desk),
            (_, Act::Free) => self.release(desk),
            _ => self.look(),
        }
    }

    /// Whether the lock is to be taken until a time that has passed: the client is only told whether it could be.
    fn has_passed(&self) -> bool {
        self.acts.absent == Act::Take && self.ttl == Some(Duration::ZERO)
    }

    /// Whether the lock must be one that this connection was granted or has attached to.
    fn is_own_only(&self) -> bool {
        !self.names_token && self.options.blind == BlindPolicy::OwnOnly
    }

    /// Whether the lock is the command's own by its holder.
    fn is_own(&self, Holding { token, claim, .. }: &Holding) -> bool {
        match self.names_token {
            true => *token == self.token,
            // A LOCK client's lock is its own: a blind command changes nothing.
            false => {
                claim.is_some_and(Claim::is_adopted) || planted::has(PlantedFault::BlindForAll)
            }
        }
    }

    /// Asks the lock nodes who holds the lock.
    fn look(self) -> Progress {
        let question = Question::look(self.key.clone());
        Progress::ask(self, question, OneLock::holder_told)
    }

    /// Takes in who holds the lock.
    fn holder_told(self, said: Result<Option<Holding>, NoQuorum>, desk: &mut Desk) -> Progress {
        let error = match said {
            Ok(holding) => return self.looked(holding, desk),
            Err(error) => error,
        };
        let is_last = !self.names_token && self.acts.own == Act::Free && !self.ours.may_ask_again();
        match is_last.then(|| desk.known_adopted(&self.key, self.is_own_only())).flatten() {
            // The grant that this proxy knows is released all the same. Only if enough lock nodes answer that is the
            // client told the outcome.
            Some((token, claim)) => OneLock { token, claim: Some(claim), ..self }.release(desk),
            None => unsettled(self.ours, &error, desk, |_| self.look()),
        }
    }

    /// Does what is to be done, as the lock nodes have told who holds the lock.
    fn looked(mut self, holding: Option<Holding>, desk: &mut Desk) -> Progress {
        let (acts, replies) = (self.acts, self.replies);
        let holding = holding.filter(|Holding { token, claim, .. }| {
            !self.is_own_only() || desk.tokens.has_grant(&self.key, token, *claim)
        });
        let is_own = holding.as_ref().is_some_and(|holding| self.is_own(holding));
        if !is_own && acts.own == Act::Renew {
            desk.tokens.remove(&self.key, &self.token);
        }
        let Some(holding) = holding else {
            return match acts.absent {
                Act::Take if self.has_passed() => self.tell(replies.absent, Outcome::Ok, desk),
                Act::Take => self.take(desk),
                _ => self.tell(replies.absent, Outcome::NotHeld, desk),
            };
        };
        let has_readers = *holding.token == *Token::OF_READERS;
        if has_readers && adopted_shared::may_be_on_reader(&self, desk) {
            return adopted_shared::find(self);
        }
        let refused = if acts.absent == Act::Take { Outcome::Busy } else { Outcome::NotHeld };
        if !is_own {
            if (acts.absent, acts.own) == (Act::Take, Act::Renew) {
                desk.tokens.refused_adopted(&self.key, &self.token, SameToken::Unknown);
            }
            return self.tell(replies.other, refused, desk);
        }
        let left = left(&holding, desk);
        (self.token, self.claim) = (holding.token, holding.claim);
        match (if left.is_some() { acts.own } else { acts.endless }, left) {
            (Act::Renew, _) => self.renew(desk),
            (Act::Free, _) => self.release(desk),
            (Act::AddTo, Some(left)) => self.add_to(left, desk),
            (_, None) if acts.own == Act::Renew => {
                let is_done = self.ttl.is_none() && replies.own == replies.endless;
                let outcome = if is_done { Outcome::Ok } else { Outcome::NotHeld };
                self.tell(replies.endless, outcome, desk)
            }
            (_, None) => self.tell(replies.endless, refused, desk),
            (_, Some(left)) => self.tell(replies.own.with_left(left), refused, desk),
        }
    }

    pub(super) fn tell(&self, reply: LockReply, outcome: Outcome, desk: &Desk) -> Progress {
        tell(self.ours, reply, outcome, desk)
    }

    /// Returns how long the lock nodes are to hold the lock, and the claim of a new grant.
    pub(super) fn terms(&self, desk: &Desk) -> (Duration, Claim) {
        match self.ttl {
            Some(ttl) => (held_for(ttl, desk), Claim::adopted()),
            None => (desk.config.locks.default_ttl, Claim::endless()),
        }
    }

    /// Refuses a lock without a TTL that the connection has no room to keep.
    pub(super) fn refused(&self, desk: &mut Desk) -> Option<Progress> {
        let is_refused = self.ttl.is_none() && !desk.tokens.make_room(&self.key, self.ours.since);
        let error = || BadRequest::TooManySessionLocks(MAX_TOKENS).to_string();
        is_refused.then(|| self.ours.refuse(&error(), Outcome::BadRequest, desk))
    }

    /// Whether the client would count on a grant for longer than it is valid. A lock without a TTL is renewed, so
    /// never.
    pub(super) fn outlasts(&self, validity: Duration) -> bool {
        self.ttl.is_some_and(|ttl| validity < ttl) && !planted::has(PlantedFault::ShortHold)
    }

    /// Asks the lock nodes for the lock.
    fn take(mut self, desk: &mut Desk) -> Progress {
        if let Some(refused) = self.refused(desk) {
            return refused;
        }
        // Of several locks, the lock nodes have just told that this one is free.
        let may_be_known = self.otherwise.is_none();
        if may_be_known && desk.shared.engine.take_known_as_held(&self.key, self.ours.since) {
            // Which grant has the lock is unknown if it was made through another proxy.
            let same_token = match desk.shared.engine.claim_of(&self.key, &self.token) {
                Some((claim, _)) => SameToken::Grants(std::iter::once(claim).collect()),
                None => SameToken::Unknown,
            };
            desk.tokens.refused_adopted(&self.key, &self.token, same_token);
            return self.tell(self.replies.other, Outcome::Busy, desk);
        }
        let (ttl, claim) = self.terms(desk);
        let (key, token) = (self.key.clone(), self.token.clone());
        self.releases = desk.shared.engine.releases(&key);
        Progress::ask(self, Question::adopt(key, token, ttl, claim), OneLock::taken)
    }

    /// Takes in whether the lock nodes have granted the lock.
    fn taken(self, said: Result<Grant, NotGranted>, desk: &mut Desk) -> Progress {
        let grant = match said {
            Ok(grant) => grant,
            Err(NotGranted::Held { remaining, may_be_free, same_token }) => {
                desk.tokens.refused_adopted(&self.key, &self.token, same_token);
                // Split votes say that several clients ask, and not that one holds the lock.
                if !may_be_free && desk.shared.engine.releases(&self.key) == self.releases {
                    desk.shared.engine.note_held(&self.key, remaining, self.ours.since);
                }
                if let Some(Otherwise { held, .. }) = self.otherwise {
                    return held(desk);
                }
                return self.tell(self.replies.other, Outcome::Busy, desk);
            }
            Err(NotGranted::QueueFull { .. } | NotGranted::Deadlock { .. }) => return unexpected(),
            Err(NotGranted::NoQuorum(error)) => {
                return unsettled(self.ours, &error, desk, |desk| self.take(desk));
            }
        };
        if self.outlasts(grant.validity) {
            let (key, token) = (self.key.clone(), self.token.clone());
            desk.shared.give_back(key, token, grant.claim);
            return unsettled_as(self.ours, TOO_SLOW, desk, |desk| self.take(desk));
        }
        let OneLock { ours, sender, key, token, ttl, replies, otherwise, .. } = self;
        desk.shared.engine.name_adopted(&key, &token, sender.name());
        desk.shared.metrics.granted(ttl.is_none());
        let granted = Granted::adopted(&key, &token, &grant, ttl.unwrap_or_default());
        let now = Instant::now();
        let (ttl, keep) = match ttl {
            Some(ttl) => (ttl, None),
            None => {
                let ttl = desk.config.locks.default_ttl;
                (ttl, desk.keep(&key, &token, ttl, &grant))
            }
        };
        desk.tokens.insert(key, Held::granted(token, ttl, &grant, keep), now);
        ours.count(Outcome::Ok, desk);
        let answer = otherwise.map(|otherwise| otherwise.granted).unwrap_or_else(|| {
            let mut answer = Vec::new();
            encode_reply(&mut answer, replies.absent, desk.conn.state.resp3);
            answer
        });
        announce::granted(ours, granted, answer, desk)
    }

    /// Asks the lock nodes to renew the lock. It counts whichever connection of the client was granted the lock, as
    /// libraries know no claims.
    pub(super) fn renew(self, desk: &mut Desk) -> Progress {
        if desk.tokens.is_given_back(&self.key, &self.token) {
            return self.missed(desk);
        }
        if desk.shared.engine.must_release(&self.key) {
            let ours = self.ours;
            return unsettled_as(ours, RELEASE_UNDER_WAY, desk, |desk| self.renew(desk));
        }
        let Some(ttl) = self.ttl.filter(|_| !self.claim.is_some_and(Claim::is_endless)) else {
            return adopted_kept::convert(self, desk);
        };
        let (key, token, claim) = (self.key.clone(), self.token.clone(), self.claim);
        let (ttl, asker) = (held_for(ttl, desk), Asker::Adopted);
        Progress::ask(self, Question::renew(key, token, ttl, claim, asker), OneLock::renewed)
    }

    /// Takes in whether the lock nodes have renewed the lock.
    fn renewed(self, said: Result<Option<Renewed>, NoQuorum>, desk: &mut Desk) -> Progress {
        let (ours, reply) = (self.ours, self.replies.own);
        let renewed = match said {
            Ok(Some(renewed)) => renewed,
            Ok(None) if self.acts.absent == Act::Take => return self.take(desk),
            Ok(None) if planted::has(PlantedFault::ExtendedAnyway) => {
                return self.tell(reply, Outcome::Ok, desk);
            }
            Ok(None) => return self.not_held(desk),
            Err(error) => return unsettled(ours, &error, desk, |desk| self.renew(desk)),
        };
        let OneLock { key, token, ttl, sender, .. } = &self;
        desk.tokens.renewed(key, token, ttl.unwrap_or_default(), renewed.until);
        if !sender.library.is_empty() {
            desk.shared.engine.name_adopted(key, token, sender.library);
        }
        if self.outlasts(renewed.validity) {
            return unsettled_as(ours, TOO_SLOW, desk, |desk| self.renew(desk));
        }
        self.tell(reply, Outcome::Ok, desk)
    }

    /// Adds the command's TTL to what is left of the lock's, in milliseconds.
    fn add_to(mut self, left: i64, desk: &mut Desk) -> Progress {
        let is_capped = self.options.long_ttl == LongTtlPolicy::Cap;
        let ttl = self.ttl.unwrap_or_default() + Duration::from_millis(left.unsigned_abs());
        let most = desk.config.locks.max_ttl;
        let ttl = if is_capped { ttl.min(most) } else { ttl };
        if ttl > most {
            let error = "ERR the TTL would be longer than locks.max_ttl";
            return self.ours.refuse(error, Outcome::BadRequest, desk);
        }
        self.ttl = Some(ttl);
        self.renew(desk)
    }

    /// Asks the lock nodes to release the lock.
    fn release(self, desk: &mut Desk) -> Progress {
        let (key, token, claim) = (self.key.clone(), self.token.clone(), self.claim);
        unlock::gives_back(&key, &token, desk);
        let question = Question::unlock(key, token, claim, Asker::Adopted);
        Progress::ask(self, question, OneLock::released)
    }

    /// Takes in whether the lock nodes have released the lock.
    fn released(mut self, said: Result<bool, NoQuorum>, desk: &mut Desk) -> Progress {
        match said {
            Ok(released) if released || self.was_held => {
                desk.tokens.remove(&self.key, &self.token);
                wake(self.ours, self.replies.own, &self.aside, desk)
            }
            Ok(_) => self.not_held(desk),
            Err(error) => {
                // The lock nodes may have carried the release out all the same.
                self.was_held |= error.was_held;
                unsettled(self.ours, &error, desk, |desk| self.release(desk))
            }
        }
    }

    /// Forgets the lock, which the token does not hold, and tells the client.
    pub(super) fn not_held(self, desk: &mut Desk) -> Progress {
        desk.tokens.remove(&self.key, &self.token);
        self.missed(desk)
    }

    /// Takes the lock, which the token does not hold, or tells the client. Where Redis would tell whether another
    /// token holds it, the lock nodes are asked.
    fn missed(self, desk: &mut Desk) -> Progress {
        match () {
            () if self.acts.absent == Act::Take => self.take(desk),
            () if adopted_shared::may_be_on_reader(&self, desk) => adopted_shared::find(self),
            () => self.nobodys(desk),
        }
    }

    /// Tells the client that the token does not hold the lock, by the reply for whoever has it instead.
    pub(super) fn nobodys(mut self, desk: &mut Desk) -> Progress {
        let Replies { absent, other, .. } = self.replies;
        if absent == other {
            return self.tell(absent, Outcome::NotHeld, desk);
        }
        (self.acts, self.readers) = (Acts::LOOK, WorkOnReaders::None);
        self.replies = Replies { own: other, endless: other, ..self.replies };
        self.look()
    }
}

impl Job for OneLock {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl Desk {
    /// Returns the adopted grant that a blind release is about, if it was made through this proxy. `is_own_only`: on
    /// this connection.
    pub(super) fn known_adopted(&self, key: &Key, is_own_only: bool) -> Option<(Token, Claim)> {
        let holder = self.shared.engine.adopted_holder(key);
        holder.filter(|(token, claim)| {
            !is_own_only || self.tokens.has_grant(key, token, Some(*claim))
        })
    }
}

/// Error where the client would count on the lock for longer than the lock nodes hold it. By `no_quorum` they may be
/// asked again first.
pub(super) const TOO_SLOW: &str =
    "NOQUORUM the lock nodes answered too late for this TTL, try again";
/// Error while a release of the lock is under way: the lock nodes carry it out sooner or later, and would end what is
/// renewed now.
pub(super) const RELEASE_UNDER_WAY: &str =
    "NOQUORUM a release of this lock is still under way, try again";

/// Returns how long the lock nodes are to hold a lock on which a client counts for `ttl`.
pub(super) fn held_for(ttl: Duration, desk: &Desk) -> Duration {
    match planted::has(PlantedFault::ShortHold) {
        true => ttl,
        false => padded(ttl, &desk.config.locks),
    }
}

/// Returns how many milliseconds a holder can count on, as PTTL tells them. `None`: no TTL.
pub(super) fn left(holding: &Holding, desk: &Desk) -> Option<i64> {
    let left = holding.left?.saturating_sub(2 * desk.config.locks.node_timeout);
    Some(i64::try_from(millis(left)).unwrap_or(i64::MAX).max(1))
}

/// Has the data node wake the clients that wait for a released lock, and answers.
fn wake(ours: Ours, reply: LockReply, aside: &[Vec<Vec<u8>>], desk: &mut Desk) -> Progress {
    if aside.is_empty() {
        return tell(ours, reply, Outcome::Ok, desk);
    }
    desk.speak_up();
    for command in aside {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        desk.ask(Expected::Done, |out| encode::command(out, &words));
    }
    // The lock stays released even if the data node does not carry them out.
    Progress::await_replies(ours, move |ours, _, desk| {
        desk.hush_again();
        tell(ours, reply, Outcome::Ok, desk)
    })
}

/// Answers with this reply.
pub(super) fn tell(ours: Ours, reply: LockReply, outcome: Outcome, desk: &Desk) -> Progress {
    ours.count(outcome, desk);
    let mut answer = Vec::new();
    encode_reply(&mut answer, reply, desk.conn.state.resp3);
    ours.answer(answer, None)
}

pub(super) fn encode_reply(out: &mut Vec<u8>, reply: LockReply, resp3: bool) {
    match reply {
        LockReply::Nil => encode::null(out, resp3),
        LockReply::Ok => encode::simple(out, "OK"),
        LockReply::Number(number) => encode::integer(out, number),
        LockReply::True => encode::bulk(out, b"true"),
        LockReply::False => encode::bulk(out, b"false"),
        LockReply::Error => encode::error(out, "ERR ERROR"),
        LockReply::Queued => encode::simple(out, "QUEUED"),
        LockReply::NullArray => encode::null_array(out, resp3),
        LockReply::Empty => encode::array(out, 0),
        LockReply::OneNumber(number) => {
            encode::array(out, 1);
            encode::integer(out, number);
        }
        // What is left of the TTL was put in before, so was a lock's place, and commands with pairs are refused.
        LockReply::Place
        | LockReply::Millis
        | LockReply::Seconds
        | LockReply::AbsentPair
        | LockReply::TimedPair
        | LockReply::EndlessPair => encode::integer(out, 0),
    }
}
