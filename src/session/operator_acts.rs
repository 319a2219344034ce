//! What an operator has the proxy do, by LOCKGATE or at the admin address.
//!
//! **UNLOCK.** The lock nodes say which grant has the lock, and the proxy compares it with the fence that the
//! operator has named. If guards need the lock, the data node then learns a larger fence: from there on it refuses
//! the holder's writes, and so does any replica that may be promoted (`guards.replicas`). Only behind that is the
//! grant released on the lock nodes. So no client is granted the lock while its last holder may still write. A step
//! that fails leaves the lock with its holder, whose writes may be refused by then; the operator repeats the command.
//!
//! The data node is told over a connection of the proxy's own, as the proxy's user. An operator at the admin address
//! has no other, and one at a front of a cluster may be connected to a node that does not have the fence's slot.
//!
//! **NODE, PAUSE.** Both end with the process: a restart makes up for an operator who forgets them.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bb8_redis::redis::{self, Cmd, ErrorKind, RedisError, aio::MultiplexedConnection};
use thiserror::Error;
use tokio::time::timeout;
use tracing::warn;

pub(crate) use crate::command::act::MeantGrant;

use super::{
    planted::{self, PlantedFault},
    session_metrics::{Maintenance, Metrics, TakenBack},
    shared::Shared,
};
use crate::{
    command::{self, BadRequest, shown},
    guard::{
        fences,
        replicas::{Replicas, Unacknowledged},
    },
    key::{Key, Token},
    lock::{FoundGrant, NoQuorum, NotPaused},
    net::redis_client,
};

/// The largest fence that the data node is told.
const LAST_FENCE: u64 = (1 << 53) - 2;
/// How long a data node may take to learn a fence from the proxy itself.
const LIMIT: Duration = Duration::from_secs(5);

/// Why a lock was not taken back. Its text is the error that a client is told.
#[derive(Debug, Error)]
pub(crate) enum NotTakenBack {
    /// Nobody holds it, or not by that fence.
    #[error("ERR nobody holds the lock, or not by that fence")]
    NotHeld,
    #[error("{0}")]
    BadRequest(BadRequest),
    #[error("NOQUORUM {0}")]
    NoQuorum(NoQuorum),
    /// It cannot be said whether the grant that has the lock is the one meant.
    #[error(
        "NOQUORUM the lock nodes that answer do not tell whether the holder's fence is {meant}: it is \
         one of {least} to {most}"
    )]
    Unclear { meant: u64, least: u64, most: u64 },
    #[error(
        "ERR what lies at the lock's key on the lock nodes is no token: nobody was granted it, delete \
         it there"
    )]
    NoToken,
    /// The data node refuses a larger fence, in its own words.
    #[error("{0}")]
    Refused(String),
    /// The data node did not take a larger fence, or too few replicas did.
    #[error("{0}")]
    NotFenced(String),
}

impl NotTakenBack {
    fn not_fenced(why: &str) -> NotTakenBack {
        NotTakenBack::NotFenced(format!("ERR {why}"))
    }

    /// Makes the error of what a data node answered in place of a fence.
    fn unanswered(error: &RedisError) -> NotTakenBack {
        match (error.code(), error.kind()) {
            // An operator's client must not follow it, past the proxy.
            (Some("ASK"), _) => {
                NotTakenBack::Refused(String::from_utf8_lossy(fences::MOVING).into_owned())
            }
            // It is the proxy that is to send AUTH, and not the operator's client.
            (None | Some("NOAUTH"), kind) if kind != ErrorKind::UnexpectedReturnType => {
                NotTakenBack::not_fenced(&format!("the data node: {}", words_of(error)))
            }
            (Some(_), _) => NotTakenBack::Refused(words_of(error)),
            (None, _) => NotTakenBack::not_fenced("the data node did not take a larger fence"),
        }
    }

    /// Returns the metric label. `None` for a malformed request, which is not counted.
    pub(crate) fn result(&self) -> Option<TakenBack> {
        match self {
            NotTakenBack::NotHeld => Some(TakenBack::NotHeld),
            NotTakenBack::NoQuorum(_) | NotTakenBack::Unclear { .. } => Some(TakenBack::NoQuorum),
            NotTakenBack::NoToken | NotTakenBack::Refused(_) | NotTakenBack::NotFenced(_) => {
                Some(TakenBack::Failed)
            }
            NotTakenBack::BadRequest(_) => None,
        }
    }
}

/// Returns the grant that was found, if it is the one meant.
///
/// # Errors
/// If it is not, or cannot be taken back.
fn meant(
    said: Result<Option<FoundGrant>, NoQuorum>,
    grant: MeantGrant,
) -> Result<FoundGrant, NotTakenBack> {
    let found = said.map_err(NotTakenBack::NoQuorum)?.ok_or(NotTakenBack::NotHeld)?;
    if found.token.is_empty() {
        return Err(NotTakenBack::NoToken);
    }
    match (grant, found.fences) {
        (MeantGrant::Any, _) => Ok(found),
        (MeantGrant::Fence(meant), Some((least, most))) if least == most && meant == least => {
            Ok(found)
        }
        (MeantGrant::Fence(meant), Some((least, most)))
            if least < most && (least..=most).contains(&meant) =>
        {
            Err(NotTakenBack::Unclear { meant, least, most })
        }
        _ => Err(NotTakenBack::NotHeld),
    }
}

/// A larger fence that the data node is told, and what its answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outbid {
    /// The fence that the data node is told.
    fence: u64,
    /// Whether it is certainly larger than the holder's.
    is_larger: bool,
}

impl Outbid {
    /// Returns a fence larger than the holder's. Where no quorum of the lock nodes stores the holder's, it is the
    /// time of day, from which fences are made.
    fn of(found: &FoundGrant) -> Outbid {
        let (fence, is_larger) = match found.fences {
            Some((_, most)) => (most + 1, true),
            None => (now_as_fence(), false),
        };
        Outbid { fence: fence.min(LAST_FENCE), is_larger }
    }

    /// Takes in the largest fence that the data node has seen. `Some`: that may be the holder's, made by a clock that
    /// is ahead, or a next holder's. So the data node is to be told this one too, once the lock nodes have confirmed
    /// that the same grant still has the lock. Then the next holder's fence will be larger still, as it is raised
    /// beyond what the data node has seen.
    fn again(self, seen: u64) -> Option<Outbid> {
        let is_enough = self.is_larger || seen <= self.fence;
        (!is_enough).then(|| Outbid { fence: (seen + 1).min(LAST_FENCE), is_larger: true })
    }
}

/// Returns the fence that a proxy would propose now.
fn now_as_fence() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(LAST_FENCE)
}

/// One UNLOCK by an operator. It is logged before anything is done to the holder, and at its end, whatever that is.
/// Dropped before its end, as the proxy ends, it counts as aborted.
struct ForcedUnlock {
    metrics: Arc<Metrics>,
    by: String,
    /// The lock as operators name it.
    lock: String,
    /// The grant, once it was logged.
    begun: Option<FoundGrant>,
    is_over: bool,
}

impl ForcedUnlock {
    /// Begins an UNLOCK. `lock`: as operators name it; `by`: who the operator is.
    fn new(shared: &Shared, lock: &[u8], by: String) -> ForcedUnlock {
        let (metrics, lock) = (shared.metrics.clone(), shown(lock));
        ForcedUnlock { metrics, by, lock, begun: None, is_over: false }
    }

    /// Logs that this grant is taken back from here on.
    fn begins(&mut self, found: &FoundGrant) {
        let (lock, (address, name)) = (&self.lock, found.client());
        warn!(
            lock, fence = found.fence(), address, %name, by = self.by,
            "an operator takes a lock back (LOCKGATE UNLOCK)"
        );
        self.begun = Some(found.clone());
    }

    /// Counts and logs the end, unless the request was malformed.
    fn ends(mut self, done: Result<(), NotTakenBack>) -> Result<(), NotTakenBack> {
        self.is_over = true;
        let result = done.as_ref().err().map_or(Some(TakenBack::Ok), NotTakenBack::result);
        let Some(result) = result else { return done };
        self.metrics.taken_back(result);
        let ForcedUnlock { lock, by, .. } = &self;
        let fence = self.begun.as_ref().map(FoundGrant::fence);
        match (&done, &self.begun) {
            (Ok(()), Some(found)) => {
                let (address, name) = found.client();
                warn!(
                    lock, fence, address, %name, by,
                    "an operator has taken a lock back (LOCKGATE UNLOCK)"
                );
            }
            (Err(error), _) => warn!(
                lock, fence, by, %error,
                "an operator has not taken a lock back (LOCKGATE UNLOCK)"
            ),
            (Ok(()), None) => {}
        }
        done
    }
}

impl Drop for ForcedUnlock {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.metrics.taken_back(TakenBack::Aborted);
        if let Some(found) = &self.begun {
            warn!(
                lock = self.lock,
                fence = found.fence(),
                by = self.by,
                "the proxy ends while an operator takes a lock back: its holder may have it still, and be \
                 refused to write (LOCKGATE UNLOCK)"
            );
        }
    }
}

/// Takes a lock back. `name`: as clients name it; `grant`: which one is meant; `by`: who the operator is. It goes on even if its caller has gone: half done, it would leave the lock with a
/// holder that may not write.
///
/// # Errors
/// If it was not taken back.
pub(crate) async fn unlock(
    shared: Arc<Shared>,
    name: Vec<u8>,
    grant: MeantGrant,
    by: String,
) -> Result<(), NotTakenBack> {
    let unlocking = tokio::spawn(async move {
        let mut unlocking = ForcedUnlock::new(&shared, &name, by);
        let done = carry_out(&shared, &name, grant, &mut unlocking).await;
        unlocking.ends(done)
    });
    // A task ends early only with its runtime.
    unlocking.await.unwrap_or_else(|_| Err(NotTakenBack::NoQuorum(NoQuorum::default())))
}

/// Finds the grant that is meant, has the data node refuse its holder's writes, has the lock nodes release it, and
/// frees a bridged lock's key behind that.
///
/// # Errors
/// If it was not taken back.
async fn carry_out(
    shared: &Shared,
    name: &[u8],
    grant: MeantGrant,
    unlocking: &mut ForcedUnlock,
) -> Result<(), NotTakenBack> {
    let config = shared.config.load_full();
    let key = Key::new(config.locks.prefix.as_bytes(), name);
    command::check_key(name, &key, &config.locks).map_err(NotTakenBack::BadRequest)?;
    if let MeantGrant::Reader(number) = grant {
        return end_reader(shared, &key, number, unlocking).await;
    }
    let found = shared.engine.find(key.clone()).await;
    if let Ok(Some(shared_lock)) = &found
        && *shared_lock.token == *Token::OF_READERS
        && grant == MeantGrant::Any
    {
        unlocking.begins(shared_lock);
        let ended = shared.engine.end_readers(key, unlocking.by.clone()).await;
        return match ended.map_err(NotTakenBack::NoQuorum)? {
            true => Ok(()),
            false => Err(NotTakenBack::NotHeld),
        };
    }
    let found = meant(found, grant)?;
    unlocking.begins(&found);
    if shared.is_guard_lock(&key) {
        let outbid = Outbid::of(&found);
        let seen = tell(shared, &key, outbid.fence).await?;
        if let Some(outbid) = outbid.again(seen) {
            still(shared.engine.find(key.clone()).await, &found)?;
            tell(shared, &key, outbid.fence).await?;
        }
    }
    let release = shared.engine.take_back(key.clone(), &found, &unlocking.by);
    if !release.await.map_err(NotTakenBack::NoQuorum)? {
        return Err(NotTakenBack::NotHeld);
    }
    shared.free_keys(&key, &found.token);
    Ok(())
}

/// Takes a lock back from one of its readers. A reader has no fence, so the data node has nothing to be told.
///
/// # Errors
/// If it was not taken back.
async fn end_reader(
    shared: &Shared,
    key: &Key,
    number: u64,
    unlocking: &mut ForcedUnlock,
) -> Result<(), NotTakenBack> {
    let reader = shared.engine.reader(key, number);
    let (reader, found) = reader.ok_or(NotTakenBack::NotHeld)?;
    unlocking.begins(&found);
    let release = shared.engine.take_back(reader, &found, &unlocking.by);
    match release.await.map_err(NotTakenBack::NoQuorum)? {
        true => Ok(()),
        false => Err(NotTakenBack::NotHeld),
    }
}

/// Tells the data node a larger fence; in a cluster, the node that has the fence's slot. Returns the largest that it
/// has seen, once replicas have acknowledged that if they must (`guards.replicas`).
async fn tell(shared: &Shared, key: &Key, fence: u64) -> Result<u64, NotTakenBack> {
    let replicas = shared.replicas();
    let limit = LIMIT + replicas.map(|replicas| replicas.timeout).unwrap_or_default();
    let telling = tell_any(shared, key, fence, replicas);
    let told = timeout(limit, telling).await;
    told.unwrap_or_else(|_| Err(NotTakenBack::not_fenced("the data node did not answer in time")))
}

async fn tell_any(
    shared: &Shared,
    key: &Key,
    fence: u64,
    replicas: Option<Replicas>,
) -> Result<u64, NotTakenBack> {
    let place = shared.guards.as_ref().map(|guards| guards.place).unwrap_or_default();
    let ttl = shared.config.load().locks.fence_ttl;
    let mut announcing = redis::cmd("EVAL");
    announcing.arg(&fences::announcement(place, key, fence, ttl)[..]);
    let mut last = NotTakenBack::not_fenced("there is no data node now, or none that has the slot");
    for tenure in shared.data.all() {
        let connecting = redis_client::connect(&tenure.url, shared.data.connector());
        let mut connection = match connecting.await {
            Ok(connection) => connection,
            Err(error) => {
                let error = words_of(&error);
                last = NotTakenBack::not_fenced(&format!("the data node: {error}"));
                continue;
            }
        };
        match tell_one(&mut connection.redis, &announcing, replicas).await {
            // The Redis that is the data node now has not heard of the fence.
            Ok(_) if tenure.has_ended() => {
                return Err(NotTakenBack::not_fenced("the data node has changed meanwhile"));
            }
            Ok((seen, acknowledged)) => {
                if let Some(replicas) = &replicas {
                    take_in(shared, replicas, acknowledged)?;
                }
                return Ok(seen);
            }
            // Another node has the slot.
            Err(error) if error.code() == Some("MOVED") => {}
            Err(error) => last = NotTakenBack::unanswered(&error),
        }
    }
    Err(last)
}

/// Tells one Redis a fence. Returns the largest that it has seen, and whether replicas have acknowledged that.
async fn tell_one(
    redis: &mut MultiplexedConnection,
    announcing: &Cmd,
    replicas: Option<Replicas>,
) -> Result<(u64, Result<(), Unacknowledged>), RedisError> {
    let seen = announcing.query_async(redis).await?;
    let Some(replicas) = replicas else { return Ok((seen, Ok(()))) };
    // WAIT counts the replicas that have what this connection has written.
    let (count, most_ms) = replicas.wait(None);
    let mut waiting = redis::cmd("WAIT");
    waiting.arg(count).arg(most_ms);
    let acknowledged = match waiting.query_async(redis).await {
        Ok(count) => replicas.are_enough(count),
        Err(error) if error.code().is_some() => {
            Err(Unacknowledged::Refused(words_of(&error).into_bytes()))
        }
        Err(error) => return Err(error),
    };
    Ok((seen, acknowledged))
}

/// Takes in whether replicas have acknowledged a fence, and counts it.
///
/// # Errors
/// If too few have.
fn take_in(
    shared: &Shared,
    replicas: &Replicas,
    acknowledged: Result<(), Unacknowledged>,
) -> Result<(), NotTakenBack> {
    match acknowledged {
        Err(why) if !planted::has(PlantedFault::NoReplicas) => {
            shared.lacks_replicas();
            let told = replicas.refuse_fence(&why, None);
            Err(NotTakenBack::NotFenced(String::from_utf8_lossy(&told).into_owned()))
        }
        _ => {
            if let Some(guards) = &shared.guards {
                guards.note_replicas();
            }
            Ok(())
        }
    }
}

/// Checks that the grant that was found before still has the lock.
///
/// # Errors
/// If it has not, or that cannot be told.
fn still(
    said: Result<Option<FoundGrant>, NoQuorum>,
    before: &FoundGrant,
) -> Result<(), NotTakenBack> {
    // Where the nodes store no claim for the lock, each find gives it another one.
    let is_same = |now: &FoundGrant| {
        now.token == before.token && (now.claim == before.claim || now.fences.is_none())
    };
    match said.map_err(NotTakenBack::NoQuorum)? {
        Some(now) if is_same(&now) => Ok(()),
        _ => Err(NotTakenBack::NotHeld),
    }
}

/// Returns what a Redis has answered, in its own words.
fn words_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Stops asking a lock node for new locks, or asks it again, as `how` says. Logs and counts it.
///
/// # Errors
/// The error that the operator is told.
pub(crate) fn pause_node(
    shared: &Shared,
    address: &[u8],
    how: NodePause,
    by: &(dyn fmt::Display + Sync),
) -> Result<(), NodeNotPaused> {
    let done = match how {
        NodePause::Pause { force } => shared.engine.pause_node(address, force),
        NodePause::Resume => shared.engine.resume_node(address),
    };
    let node = shown(address);
    let action = match how {
        NodePause::Pause { .. } => Maintenance::PauseNode,
        NodePause::Resume => Maintenance::ResumeNode,
    };
    shared.metrics.maintained(action, done.is_ok());
    match how {
        _ if done.is_err() => {}
        NodePause::Pause { force } => {
            warn!(node, force, %by, "an operator has paused a lock node (LOCKGATE NODE)");
        }
        NodePause::Resume => {
            warn!(node, %by, "an operator has resumed a lock node (LOCKGATE NODE)")
        }
    }
    done.map_err(|why| NodeNotPaused { node, why })
}

/// What an operator wants of a lock node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePause {
    /// It is asked for no new locks. `force`: also where too few others vote.
    Pause { force: bool },
    /// It is asked again.
    Resume,
}

/// A lock node that was not paused or resumed.
#[derive(Debug)]
pub(crate) struct NodeNotPaused {
    node: String,
    pub(crate) why: NotPaused,
}

impl NodeNotPaused {
    /// Returns the error for the operator. `forced`: what an operator adds to force the pause.
    pub(crate) fn told(&self, forced: &str) -> String {
        match self.why {
            NotPaused::Unknown => {
                format!("ERR no lock node has the address '{}' (LOCKGATE NODES)", self.node)
            }
            NotPaused::TooFew { voting, quorum } => format!(
                "ERR {voting} other lock nodes vote, and {quorum} are needed; with {forced} it is paused \
                 all the same"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Token, lock::Claim};

    fn grant(token: &str, claim: Claim, fences: Option<(u64, u64)>) -> FoundGrant {
        FoundGrant { token: Token::from(token), claim, fences, holder: None }
    }

    #[test]
    fn a_fence_that_the_data_node_has_seen_is_outbid_where_the_holders_is_not_known() {
        let known = Outbid::of(&grant("a", Claim::new(), Some((33, 34))));
        assert_eq!((known.fence, known.again(35), known.again(99)), (35, None, None));
        let guessed = Outbid::of(&grant("a", Claim::new(), None));
        assert_eq!(guessed.again(guessed.fence), None);
        let second = guessed.again(guessed.fence + 7).unwrap();
        // A fence that the data node has learned since is beyond the holder's too.
        assert_eq!((second.fence, second.again(second.fence + 9)), (guessed.fence + 8, None));
    }

    #[test]
    fn a_grant_is_known_again_by_its_claim_or_by_its_token_where_no_claim_is_stored() {
        let (claim, other) = (Claim::new(), Claim::new());
        let before = grant("a", claim, None);
        for (now, is_same) in [
            (Some(grant("a", claim, Some((1, 1)))), true),
            (Some(grant("a", other, None)), true),
            (Some(grant("a", other, Some((1, 1)))), false),
            (Some(grant("b", other, None)), false),
            (None, false),
        ] {
            assert_eq!(still(Ok(now.clone()), &before).is_ok(), is_same, "{now:?}");
        }
    }
}
