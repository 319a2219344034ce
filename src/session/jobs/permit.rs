//! LOCK with PERMITS: the first free lock of a family. It is an ordinary lock: it is renewed, released and lost by its
//! own name.

use std::time::Duration;

use super::{
    super::{
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        planted::{self, PlantedFault},
        session_metrics::Outcome,
    },
    Job, Ours, Progress, Question, announce,
    lock::{encode_millis, new_token, not_granted},
    undo::Undo,
};
use crate::{
    clock::Instant,
    command::{BadRequest, check_permits},
    key::{Key, Token},
    lock::{Claim, Grant, NotGranted, PermitGrant, PermitWanted, permit},
    resp::encode,
};

/// A LOCK for a permit about which the lock nodes are asked.
struct TakingPermit {
    ours: Ours,
    token: Token,
    /// The client has named the token.
    named: bool,
    /// `None`: a session lock.
    named_ttl: Option<Duration>,
    /// The TTL that the lock nodes are asked for: the default may change meanwhile.
    ttl: Duration,
    waits: bool,
    /// The permits that the connection has by this token, as far as it knows.
    again: Vec<Key>,
}

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has too many locks to keep one more, or would wait for its own session locks.
pub(super) fn begin(
    ours: Ours,
    (family, n): (Key, usize),
    token: Option<Token>,
    (named_ttl, wait): (Option<Duration>, Option<Duration>),
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    if !desk.tokens.make_room_for(1, ours.since) {
        return Err(BadRequest::TooManyLocks(MAX_TOKENS));
    }
    let rules = &desk.shared.config.load().locks.permits;
    check_permits(desk.name(&family), n, rules)?;
    let named = token.is_some();
    let token = token.unwrap_or_else(new_token);
    let again = if named { own_permits(&family, n, &token, ours.since, desk) } else { Vec::new() };
    if again.is_empty() && wait.is_some_and(|wait| has_all(&family, n, ours.since + wait, desk)) {
        return Err(BadRequest::Deadlock);
    }
    let ttl = named_ttl.unwrap_or(desk.config.locks.default_ttl);
    let question = Question::permit(PermitWanted {
        n,
        token: token.clone(),
        ttl,
        wait,
        again: again.clone(),
        is_named: named,
        family: family.clone(),
    });
    let again = again.iter().map(|(at, _)| permit(&family, *at)).collect();
    let taking = TakingPermit { ours, token, named, named_ttl, ttl, waits: wait.is_some(), again };
    Ok(Progress::ask(taking, question, TakingPermit::answered))
}

/// Returns the permits that the connection has by this token.
fn own_permits(
    family: &Key,
    n: usize,
    token: &Token,
    now: Instant,
    desk: &Desk,
) -> Vec<(usize, Claim)> {
    if desk.tokens.held.is_empty() {
        return Vec::new();
    }
    let own = |at: usize| {
        let key = permit(family, at);
        desk.tokens.before(&key, token, now)?;
        let claim = desk.tokens.claim_of(&key, token)?;
        (!claim.is_adopted()).then_some((at, claim))
    };
    (0..n).filter_map(own).collect()
}

/// Whether the connection holds all permits as session locks, at least until `until`.
fn has_all(family: &Key, n: usize, until: Instant, desk: &Desk) -> bool {
    let is_kept = |at: usize| {
        let held = desk.tokens.held_here(&permit(family, at), until);
        held.is_some_and(|(_, is_session_lock)| is_session_lock)
    };
    desk.tokens.held.len() >= n && (0..n).all(is_kept)
}

impl Job for TakingPermit {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }

    fn waits_in_line(&self) -> bool {
        self.waits
    }
}

impl TakingPermit {
    /// Takes in whether the lock nodes have granted a permit.
    fn answered(self, said: Result<PermitGrant, NotGranted>, desk: &mut Desk) -> Progress {
        match said {
            Ok(PermitGrant { key, grant }) if desk.shared.is_bridged(&key) => {
                self.ask_for_keys(key, &grant)
            }
            Ok(PermitGrant { key, grant }) => self.granted(key, &grant, desk),
            Err(why) => not_granted(self.ours, &why, desk),
        }
    }

    /// Asks for the permit once more, with its keys on the data node, as its rule is bridged.
    fn ask_for_keys(self, key: Key, grant: &Grant) -> Progress {
        let (token, before) = (self.token.clone(), grant.claim);
        let question = Question::lock(key.clone(), token, self.ttl, before, None);
        Progress::ask(self, question, move |taking, said, desk| match said {
            Ok(grant) => taking.granted(key, &grant, desk),
            Err(why) => {
                if !taking.again.contains(&key) {
                    desk.shared.give_back(key, taking.token, before);
                }
                not_granted(taking.ours, &why, desk)
            }
        })
    }

    fn granted(self, key: Key, grant: &Grant, desk: &mut Desk) -> Progress {
        let TakingPermit { ours, token, named, named_ttl, ttl, again, .. } = self;
        let (is_session_lock, now) = (named_ttl.is_none(), Instant::now());
        desk.shared.metrics.granted(is_session_lock);
        desk.tokens.all_granted();
        let is_again = again.contains(&key);
        let again = desk.tokens.before(&key, &token, now).filter(|_| is_again);
        let keep = if is_session_lock { desk.keep(&key, &token, ttl, grant) } else { None };
        let lock = Granted::here(&key, &token, grant, again);
        let undo = lock.is_new.then(|| Undo::new(desk.shared.clone(), &lock));
        let held = Held::granted(token, ttl, grant, keep);
        desk.tokens.granted_with_others(key.clone(), held, named, now);
        ours.count(Outcome::Ok, desk);
        let tell = move |undo, desk: &mut Desk| tell(ours, &key, undo, desk);
        match desk.is_guard_lock(&lock.key) {
            true => announce::one_of_several(ours, lock, undo, tell, desk),
            false => tell(undo, desk),
        }
    }
}

/// Tells the client of its permit.
fn tell(ours: Ours, key: &Key, undo: Option<Undo>, desk: &mut Desk) -> Progress {
    let now = Instant::now();
    // The fence may have been raised.
    let fence = desk.tokens.held.get(key).map(|held| held.fence);
    let left = fence.and_then(|fence| {
        let (token, left) = desk.tokens.left(key, fence, now)?;
        Some((fence, token.clone(), left.duration()))
    });
    let mut out = Vec::with_capacity(128);
    let Some((fence, token, validity)) = left else {
        if let Some(undo) = undo {
            undo.undo(&mut desk.tokens);
        }
        let error = "NOTHELD the lock had run out before the client could be told, try again with a longer TTL";
        encode::error(&mut out, error);
        return ours.answer(out, None);
    };
    encode::array(&mut out, 4);
    encode::bulk(&mut out, &token);
    encode::integer(&mut out, i64::try_from(fence).unwrap_or(i64::MAX));
    encode_millis(&mut out, validity);
    let name = desk.name(key);
    match planted::has(PlantedFault::OtherPermit) && name.ends_with(b"#0") {
        true => encode::bulk(&mut out, &[&name[..name.len() - 1], b"1"].concat()),
        false => encode::bulk(&mut out, name),
    }
    ours.answer(out, undo)
}
