//! MLOCK's question: all of several locks, or none.
//!
//! The lock nodes are asked for all of them side by side. If one is refused, those that were granted are given back, and
//! a client that waits stands in the line of the refused lock without any of the others. So no client that waits for one
//! of them holds up another client, and MLOCKs cannot wait for one another. Once it has that lock, the others are asked
//! for again at once.
//!
//! Two MLOCKs may still refuse each other again and again, each with the lock that the other one wants. So each rests
//! for a random time before it stands in line again, longer from try to try.

use std::{
    future::{self, Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::sleep;

use super::{
    attempts::InTheWay,
    claims::Granted,
    jobs::Undo,
    planted::{self, PlantedFault},
    shared::Shared,
};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{Grant, NotGranted, jittered},
};

/// The longest rest after the second try that was refused, and after any; it doubles from try to try. A try takes about
/// as long as the shortest.
const RESTS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// What a MLOCK asks for.
pub(super) struct AllWanted {
    pub(super) keys: Vec<Key>,
    pub(super) token: Token,
    pub(super) ttl: Duration,
    /// `None`: not at all.
    pub(super) wait: Option<Duration>,
}

/// A lock that was granted, and what gives it back unless its client is told.
pub(super) type NewGrant = (Grant, Undo);

/// All locks in the order of their keys, or why there is none.
pub(super) type AllOrNone = Result<Vec<NewGrant>, NoneGranted>;

/// A MLOCK that was not granted.
pub(super) struct NoneGranted {
    /// The answer about the lock that was refused.
    pub(super) why: NotGranted,
    /// For each lock, the grants of its token that stood in the way. Empty: that is not known.
    pub(super) in_the_way: Vec<InTheWay>,
}

impl NoneGranted {
    fn unknown(why: NotGranted) -> NoneGranted {
        NoneGranted { why, in_the_way: Vec::new() }
    }

    /// Gives back what was granted. The refused lock is named by its place.
    fn of(tried: Vec<Result<NewGrant, NotGranted>>) -> Result<Vec<NewGrant>, (usize, NoneGranted)> {
        let Some(at) = tried.iter().position(Result::is_err) else {
            return Ok(tried.into_iter().flatten().collect());
        };
        let now = Instant::now();
        let in_the_way = tried.iter().map(|tried| match tried {
            Ok((grant, _)) => InTheWay::GivenBack(grant.claim),
            Err(NotGranted::Held { same_token, .. }) => InTheWay::of(same_token.clone(), now),
            Err(_) => InTheWay::Unknown(now),
        });
        let in_the_way = in_the_way.collect();
        let (granted, refused): (Vec<_>, Vec<_>) = tried.into_iter().partition(Result::is_ok);
        if planted::has(PlantedFault::SomeKept) {
            granted.into_iter().flatten().for_each(|(_, undo)| undo.disarm());
        }
        let why = refused.into_iter().find_map(Result::err).unwrap_or(NotGranted::held(false));
        Err((at, NoneGranted { why, in_the_way }))
    }
}

/// One lock that is asked for.
type AskedLock = Pin<Box<dyn Future<Output = Result<NewGrant, NotGranted>> + Send>>;

/// A MLOCK under way. Dropped before it is ready, it is undone on every node.
struct TakingAll<A> {
    shared: Arc<Shared>,
    wanted: AllWanted,
    /// Asks for one lock, and waits for it in line for so long.
    ask: A,
}

/// Takes all of these locks, or none. `ask` asks for one of them, and waits in line for so long if a time is given.
pub(super) async fn take_all<A, F>(shared: Arc<Shared>, wanted: AllWanted, ask: A) -> AllOrNone
where
    A: Fn(Key, Option<Duration>) -> F + Send + 'static,
    F: Future<Output = Result<Grant, NotGranted>> + Send + 'static,
{
    TakingAll { shared, wanted, ask }.run().await
}

impl<A, F> TakingAll<A>
where
    A: Fn(Key, Option<Duration>) -> F + Send + 'static,
    F: Future<Output = Result<Grant, NotGranted>> + Send + 'static,
{
    async fn run(self) -> AllOrNone {
        let until = self.wanted.wait.map(|wait| Instant::now() + wait);
        let left = || until.map(|until| until - Instant::now());
        // The lock for which the client stood in line, once it has that.
        let mut first: Option<(usize, NewGrant)> = None;
        let mut rests = 0;
        loop {
            if first.is_none() {
                self.room(left()).await.map_err(NoneGranted::unknown)?;
            }
            let (at, none) = match NoneGranted::of(self.try_all(first.take()).await) {
                Ok(all) => return Ok(all),
                Err(refused) => refused,
            };
            if rests > 0 {
                let rest = (RESTS.0 * (1 << (rests - 1).min(16))).min(RESTS.1);
                sleep(jittered(rest).min(left().unwrap_or_default())).await;
            }
            rests += 1;
            let Some(left) = left().filter(|left| !left.is_zero()) else { return Err(none) };
            let Some(key) = self.wanted.keys.get(at) else { return Err(none) };
            self.room(Some(left)).await.map_err(NoneGranted::unknown)?;
            match self.asked(key.clone(), Some(left)).await {
                Ok(new) => first = Some((at, new)),
                // Asked for again, as its rule was bridged meanwhile.
                Err(NotGranted::Held { .. })
                    if until.is_some_and(|until| Instant::now() < until) => {}
                Err(why) => return Err(NoneGranted::unknown(why)),
            }
        }
    }

    /// Waits for room in the audit trail for the records of the grants. The client must have none of the locks
    /// meanwhile.
    async fn room(&self, wait: Option<Duration>) -> Result<(), NotGranted> {
        match self.shared.engine.audit_trail_is_full() {
            true => self.shared.engine.audit_trail_room(wait).await.map_err(NotGranted::NoQuorum),
            false => Ok(()),
        }
    }

    /// Asks for all locks but `first`, side by side.
    async fn try_all(&self, first: Option<(usize, NewGrant)>) -> Vec<Result<NewGrant, NotGranted>> {
        let (had, mut new) = first.unzip();
        let asked = self.wanted.keys.iter().enumerate().map(|(at, key)| -> AskedLock {
            match new.take_if(|_| had == Some(at)) {
                Some(new) => Box::pin(future::ready(Ok(new))),
                None => Box::pin(self.asked(key.clone(), None)),
            }
        });
        side_by_side(asked.collect()).await
    }

    /// Asks for one lock.
    fn asked(
        &self,
        key: Key,
        wait: Option<Duration>,
    ) -> impl Future<Output = Result<NewGrant, NotGranted>> + Send + use<A, F> {
        let (shared, token) = (self.shared.clone(), self.wanted.token.clone());
        let was_bridged = shared.is_bridged(&key);
        let asking = (self.ask)(key.clone(), wait);
        async move {
            let grant = asking.await?;
            let lock = Granted::here(&key, &token, &grant, None);
            let new = (grant, Undo::new(shared.clone(), &lock));
            // If its rule was bridged meanwhile, the lock has to be taken with its keys on the data node.
            match !was_bridged && shared.is_bridged(&key) {
                true => Err(NotGranted::held(true)),
                false => Ok(new),
            }
        }
    }
}

/// Waits until each of these is ready.
pub(super) async fn side_by_side<T>(asked: Vec<Pin<Box<dyn Future<Output = T> + Send>>>) -> Vec<T> {
    let mut said: Vec<Option<T>> = asked.iter().map(|_| None).collect();
    let mut asked: Vec<_> = asked.into_iter().map(Some).collect();
    poll_fn(|cx| {
        for (asked, said) in asked.iter_mut().zip(&mut said) {
            if let Some(one) = asked
                && let Poll::Ready(ready) = one.as_mut().poll(cx)
            {
                (*asked, *said) = (None, Some(ready));
            }
        }
        match asked.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    said.into_iter().flatten().collect()
}
