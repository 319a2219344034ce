//! MLOCK: all of several locks, or none. Each is an ordinary lock: it is renewed, released and lost by itself.

use std::{time::Duration, vec};

use super::{
    super::{
        all_or_none::{AllOrNone, AllWanted, NewGrant},
        attempts::InTheWay,
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        session_metrics::Outcome,
    },
    Attached, Job, Ours, Progress, Question, announce,
    lock::{encode_millis, new_token, no_quorum, not_granted},
    undo::Undo,
};
use crate::{
    clock::Instant,
    command::{BadRequest, shown},
    key::{Key, Token},
    lock::NotAttached,
    resp::encode,
};

/// The shortest validity that a client is told: it is told whole milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);

/// A MLOCK about which the lock nodes are asked.
struct LockingAll {
    ours: Ours,
    keys: Vec<Key>,
    token: Token,
    /// The client has named the token.
    named: bool,
    /// `None`: session locks.
    ttl: Option<Duration>,
    wait: Option<Duration>,
}

/// Asks the lock nodes.
///
/// # Errors
/// If the connection holds one of the locks already, or has too many to remember these too.
pub(super) fn begin(
    ours: Ours,
    keys: Vec<Key>,
    token: Option<Token>,
    (ttl, wait): (Option<Duration>, Option<Duration>),
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    if !desk.tokens.make_room_for(keys.len(), ours.since) {
        return Err(BadRequest::TooManyLocks(MAX_TOKENS));
    }
    let mut leases = Vec::new();
    for key in &keys {
        match desk.tokens.held_here(key, ours.since) {
            Some((_, true)) => return Err(held_already(key, desk)),
            Some((token, false)) => leases.push((key.clone(), token.clone())),
            None => {}
        }
    }
    let named = token.is_some();
    let token = token.unwrap_or_else(new_token);
    let locking = LockingAll { ours, keys, token, named, ttl, wait };
    if leases.is_empty() {
        return Ok(locking.ask(desk));
    }
    // A pool releases a lease on whichever connection it has at hand.
    let question = Question::attached(leases.clone());
    let doubted =
        move |locking: LockingAll, said, desk: &mut Desk| locking.doubted(&leases, said, desk);
    Ok(Progress::ask(locking, question, doubted))
}

fn held_already(key: &Key, desk: &Desk) -> BadRequest {
    BadRequest::HeldAlready(shown(desk.name(key)))
}

impl Job for LockingAll {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }

    fn waits_in_line(&self) -> bool {
        self.wait.is_some()
    }
}

impl LockingAll {
    /// Takes in which leases this connection still has.
    fn doubted(self, leases: &[(Key, Token)], said: Vec<Attached>, desk: &mut Desk) -> Progress {
        for ((key, token), said) in leases.iter().zip(said) {
            match said {
                Ok(None) => desk.tokens.not_held(key, token),
                Err(NotAttached::NoQuorum(error)) => return no_quorum(self.ours, &error, desk),
                Ok(Some(_)) | Err(NotAttached::FenceForgotten) => {
                    let error = held_already(key, desk).to_string();
                    return self.ours.refuse(&error, Outcome::BadRequest, desk);
                }
            }
        }
        self.ask(desk)
    }

    fn ask(self, desk: &Desk) -> Progress {
        let (keys, token, wait) = (self.keys.clone(), self.token.clone(), self.wait);
        let ttl = self.ttl.unwrap_or(desk.config.locks.default_ttl);
        let question = Question::lock_all(AllWanted { keys, token, ttl, wait });
        Progress::ask(self, question, move |locking, said, desk| locking.answered(ttl, said, desk))
    }

    /// Takes in whether the lock nodes have granted all of them for `ttl`.
    fn answered(self, ttl: Duration, said: AllOrNone, desk: &mut Desk) -> Progress {
        match said {
            Ok(new) => self.granted(ttl, new, desk),
            Err(none) => {
                // What is told of them, if anything, is from before the wait.
                let unknown = || InTheWay::Unknown(Instant::now());
                let told = match self.wait {
                    Some(_) => self.keys.iter().map(|_| unknown()).collect(),
                    None => none.in_the_way,
                };
                desk.tokens.stood_in_the_way_of_each(told.into_iter());
                not_granted(self.ours, &none.why, desk)
            }
        }
    }

    fn granted(self, ttl: Duration, new: Vec<NewGrant>, desk: &mut Desk) -> Progress {
        let LockingAll { ours, keys, token, named, ttl: named_ttl, .. } = self;
        let (is_session_lock, now) = (named_ttl.is_none(), Instant::now());
        desk.tokens.all_granted();
        let (mut locks, mut all): (_, Option<Undo>) = (Vec::with_capacity(keys.len()), None);
        for (key, (grant, undo)) in keys.iter().zip(new) {
            desk.shared.metrics.granted(is_session_lock);
            let keep = if is_session_lock { desk.keep(key, &token, ttl, &grant) } else { None };
            locks.push(Granted::here(key, &token, &grant, None));
            let held = Held::granted(token.clone(), ttl, &grant, keep);
            desk.tokens.granted_with_others(key.clone(), held, named, now);
            all = Some(match all {
                Some(all) => all.and(undo),
                None => undo,
            });
        }
        ours.count(Outcome::Ok, desk);
        AllGranted { ours, keys, token, unannounced: locks.into_iter() }.go_on(all, desk)
    }
}

/// Locks that were just granted, and that the client has not been told of.
struct AllGranted {
    ours: Ours,
    keys: Vec<Key>,
    token: Token,
    /// Those whose fences may still have to be announced.
    unannounced: vec::IntoIter<Granted>,
}

impl AllGranted {
    /// Announces the next fence that guards need, or tells the client once the data node has all of them.
    fn go_on(mut self, undo: Option<Undo>, desk: &mut Desk) -> Progress {
        let ours = self.ours;
        match self.unannounced.find(|lock| desk.is_guard_lock(&lock.key)) {
            Some(lock) => announce::one_of_several(
                ours,
                lock,
                undo,
                |undo, desk| self.go_on(undo, desk),
                desk,
            ),
            None => self.tell(undo, desk),
        }
    }

    fn tell(self, undo: Option<Undo>, desk: &mut Desk) -> Progress {
        let now = Instant::now();
        let left = |key: &Key| {
            // The fence may have been raised.
            let fence = desk.tokens.held.get(key)?.fence;
            let (_, left) = desk.tokens.left(key, fence, now)?;
            Some((fence, left.duration()))
        };
        let all: Option<Vec<(u64, Duration)>> = self.keys.iter().map(left).collect();
        let mut out = Vec::with_capacity(96 + 24 * self.keys.len());
        let validity = all.iter().flatten().map(|(_, left)| *left).min().unwrap_or_default();
        let Some(all) = all.filter(|_| validity >= SHORTEST) else {
            if let Some(undo) = undo {
                undo.undo(&mut desk.tokens);
            }
            let error = "NOTHELD the first of the locks had run out before the client could be told of all, \
                         try again with a longer TTL";
            encode::error(&mut out, error);
            return self.ours.answer(out, None);
        };
        encode::array(&mut out, 3);
        encode::bulk(&mut out, &self.token);
        encode_millis(&mut out, validity);
        encode::array(&mut out, all.len());
        for (fence, _) in all {
            encode::integer(&mut out, i64::try_from(fence).unwrap_or(i64::MAX));
        }
        self.ours.answer(out, undo)
    }
}
