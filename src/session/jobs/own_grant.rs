//! Which grant an UNLOCK or RENEW is about: one that its sender can have.
//!
//! On the connection that holds the lock, it is that grant. Without a token, it is the grant of the connection's last
//! LOCK without one. By a token on another connection, it is whichever grant has the token, unless that grant stood
//! in the way when this connection was refused the lock by the same token: then it is another client's.

use tracing::info;

use super::{
    super::{
        attempts::InTheWay,
        claims::Meant,
        desk::Desk,
        session_metrics::{LeftAlone, Outcome},
    },
    Ours, Progress, Question,
    lock::no_quorum,
};
use crate::{
    clock::Instant,
    command::{BadRequest, shown as shown_in_error},
    key::{Key, Token},
    lock::{Claim, NoQuorum},
    log_text::{FewLines, shown},
    resp::encode,
};

/// An UNLOCK or RENEW by a token with which its connection was refused a LOCK.
pub(super) struct GrantOfToken {
    pub(super) ours: Ours,
    pub(super) key: Key,
    pub(super) token: Token,
    /// What stood in the way of the refused LOCK.
    pub(super) in_the_way: InTheWay,
    /// Whether it is an UNLOCK.
    pub(super) unlocks: bool,
}

/// Why an UNLOCK or RENEW is about no grant.
pub(super) enum NoGrant {
    /// The lock has ended, which the client knows or is told now.
    Ended { is_named: bool },
    /// The LOCK that it belongs to was refused, though the connection holds the lock.
    Refused,
    /// It names no token, though it must.
    NotNamed(BadRequest),
}

/// Returns the key of what an UNLOCK or RENEW is about: of this connection's reader of the lock, if it has one by that
/// token or, without a token, has only one; otherwise of the lock itself. A reader whose lease has run out counts only
/// where the connection has nothing of the lock by now.
///
/// # Errors
/// If the token must be named.
pub(super) fn key_of(key: Key, token: Option<&Token>, desk: &Desk) -> Result<Key, BadRequest> {
    let now = Instant::now();
    let lasts = |reader: &&Key| desk.tokens.holds(reader, now);
    let has_alone = desk
        .tokens
        .held_here(&key, now)
        .is_some_and(|(held, _)| token.is_none_or(|token| held == token));
    let mut readers: Vec<&Key> = desk.tokens.readers(&key, token).collect();
    if has_alone || readers.iter().any(lasts) {
        readers.retain(lasts);
    }
    let (reader, other) = (readers.first().map(|reader| (*reader).clone()), readers.len() > 1);
    match (reader, other) {
        (None, _) => Ok(key),
        (Some(reader), false) => Ok(reader),
        (Some(_), true) => Err(BadRequest::MustName(shown_in_error(desk.name(&key)))),
    }
}

/// Returns the token that is named or, if none is, that of the grant that is meant.
pub(super) fn token_of(key: &Key, token: Option<Token>, desk: &Desk) -> Result<Token, NoGrant> {
    let name = || shown_in_error(desk.name(key));
    let is_named = token.is_some();
    let (token, none) = match token {
        Some(token) => (Some(token), NoGrant::Ended { is_named }),
        None => match desk.tokens.meant(key) {
            Meant::Grant(token) => (Some(token), NoGrant::Ended { is_named }),
            Meant::Refused => (None, NoGrant::Refused),
            Meant::Ended => (None, NoGrant::Ended { is_named }),
            Meant::MustName => (None, NoGrant::NotNamed(BadRequest::MustName(name()))),
            Meant::Nothing => (None, NoGrant::NotNamed(BadRequest::NoToken(name()))),
        },
    };
    if desk.was_lost(key, token.as_deref()) {
        return Err(NoGrant::Ended { is_named });
    }
    token.ok_or(none)
}

impl NoGrant {
    /// Answers without asking the lock nodes.
    ///
    /// # Errors
    /// If the token must be named.
    pub(super) fn answer(
        self,
        ours: Ours,
        key: &Key,
        unlocks: bool,
        desk: &mut Desk,
    ) -> Result<Progress, BadRequest> {
        self.note(key, unlocks, desk)?;
        Ok(tell_not_held(ours, desk))
    }

    /// Notes that it is answered without asking the lock nodes.
    ///
    /// # Errors
    /// If the token must be named.
    pub(super) fn note(self, key: &Key, unlocks: bool, desk: &mut Desk) -> Result<(), BadRequest> {
        let is_named = match self {
            NoGrant::Ended { is_named } => is_named,
            NoGrant::Refused => {
                leave_alone(key, LeftAlone::Unnamed, desk);
                false
            }
            NoGrant::NotNamed(error) => return Err(error),
        };
        if unlocks && !is_named {
            desk.tokens.unnamed_answered(key);
        }
        note_not_held(key, unlocks, desk);
        Ok(())
    }
}

/// The grant that a token has, which its sender may not have.
pub(super) enum TokensGrant {
    /// The sender can have it.
    Its(Claim),
    /// There is none, or it is another client's.
    Nobodys,
    /// It may be another client's.
    Unsure,
    /// Too few lock nodes have answered.
    Unknown(NoQuorum),
}

impl GrantOfToken {
    /// Asks the lock nodes which grant the token has, and goes on with that grant if the sender can have it.
    pub(super) fn find(
        self,
        go_on: impl FnOnce(Ours, Key, Token, Claim) -> Progress + Send + 'static,
    ) -> Progress {
        let question = Question::claim_of(self.key.clone(), self.token.clone());
        Progress::ask(self.ours, question, |_, said, desk| self.found(said, go_on, desk))
    }

    fn found(
        self,
        said: Result<Option<Claim>, NoQuorum>,
        go_on: impl FnOnce(Ours, Key, Token, Claim) -> Progress,
        desk: &mut Desk,
    ) -> Progress {
        let judged = self.judge(said, desk);
        let GrantOfToken { ours, key, token, unlocks, .. } = self;
        match judged {
            TokensGrant::Its(claim) => go_on(ours, key, token, claim),
            TokensGrant::Nobodys => not_held(ours, &key, unlocks, desk),
            TokensGrant::Unsure => {
                let error = BadRequest::Unsure(shown_in_error(desk.name(&key)));
                ours.refuse(&error.to_string(), Outcome::NotHeld, desk)
            }
            TokensGrant::Unknown(error) => no_quorum(ours, &error, desk),
        }
    }

    /// Returns whether the sender can have the grant that the lock nodes have told.
    pub(super) fn judge(
        &self,
        said: Result<Option<Claim>, NoQuorum>,
        desk: &mut Desk,
    ) -> TokensGrant {
        let GrantOfToken { key, token, in_the_way, .. } = self;
        let claim = match said {
            Ok(Some(claim)) => claim,
            Ok(None) => {
                desk.tokens.refused_no_more(key, token);
                return TokensGrant::Nobodys;
            }
            Err(error) => return TokensGrant::Unknown(error),
        };
        match in_the_way.has(claim, desk.shared.engine.granted_at(key, claim)) {
            Some(false) => {
                desk.tokens.refused_no_more(key, token);
                TokensGrant::Its(claim)
            }
            Some(true) => {
                leave_alone(key, LeftAlone::Refused, desk);
                TokensGrant::Nobodys
            }
            None => {
                leave_alone(key, LeftAlone::Unsure, desk);
                TokensGrant::Unsure
            }
        }
    }
}

/// Answers that the connection does not hold the lock, without asking the lock nodes. If the lock was lost, this
/// tells the client of the loss.
pub(super) fn not_held(ours: Ours, key: &Key, unlocks: bool, desk: &mut Desk) -> Progress {
    note_not_held(key, unlocks, desk);
    tell_not_held(ours, desk)
}

/// Notes that the client is being told that the connection does not hold the lock.
pub(super) fn note_not_held(key: &Key, unlocks: bool, desk: &mut Desk) {
    let prefix = desk.config.locks.prefix.len();
    desk.losing.tells_of(key, unlocks, prefix);
}

fn tell_not_held(ours: Ours, desk: &Desk) -> Progress {
    let mut out = Vec::new();
    encode::integer(&mut out, 0);
    ours.count(Outcome::NotHeld, desk);
    ours.answer(out, None)
}

/// Counts an UNLOCK or RENEW that leaves a lock to its holder, and logs it.
pub(super) fn leave_alone(key: &Key, why: LeftAlone, desk: &Desk) {
    static LINES: FewLines = FewLines::new();
    desk.shared.metrics.left_alone(why);
    if let Some(left_out) = LINES.next(std::time::Instant::now()) {
        let (address, name) = (desk.card.address(), desk.card.name());
        info!(
            lock = &*shown(desk.name(key)),
            why = why.as_str(),
            address,
            name = &*name,
            left_out,
            "an UNLOCK or RENEW behind a refused LOCK leaves the lock to its holder"
        );
    }
}
