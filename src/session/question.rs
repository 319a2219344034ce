//! A session's questions under way: to the lock nodes, and to the data node about commands.

use std::{
    future::{self, Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::sleep;

use super::{
    all_or_none::{AllWanted, side_by_side, take_all},
    jobs::{Answer, Attached, Question, Typed},
    operator_acts,
    shared::Shared,
};
use crate::{
    bridge::{Asker, Crossing, FollowingKeys},
    card::ClientCard,
    clock::Instant,
    key::{Key, Token},
    lock::{
        Acquire, Alarm, Attach, Claim, Grant, NoQuorum, NotGranted, PermitWanted, Release, Renew,
        Waiter, jittered,
    },
};

/// A question, until it is answered. A LOCK whose question is dropped before that is undone on every node.
pub(super) enum Asked {
    Grant(Acquire),
    Wait(Box<Waiter>),
    Release(Release),
    Renew(Renew),
    /// Asked seldom, in several steps, or of the data node over a connection of the proxy's own.
    Boxed(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

impl Asked {
    /// Asks the question for the client with this card. `alarm` is the last question's, for reuse.
    pub(super) fn ask(
        question: Question,
        shared: &Arc<Shared>,
        card: &Arc<ClientCard>,
        alarm: &mut Alarm,
    ) -> Asked {
        let client = AskingClient { shared, card };
        if asks_for_grant(&question) && shared.engine.audit_trail_is_full() {
            let asking = once_there_is_room(question, shared.clone(), card.clone());
            return Asked::Boxed(Box::pin(asking));
        }
        let mut asked = client.ask(question);
        asked.give_back(alarm);
        asked
    }

    /// Asks by `asking`, whose outcome is the content of this kind of answer.
    fn boxed<A: 'static>(
        asking: impl Future<Output = A> + Send + 'static,
        answer: fn(A) -> Answer,
    ) -> Asked {
        Asked::Boxed(Box::pin(async move { answer(asking.await) }))
    }

    /// Swaps the question's alarm with `alarm`.
    pub(super) fn give_back(&mut self, alarm: &mut Alarm) {
        let own = match self {
            Asked::Grant(asked) => Some(asked.alarm()),
            Asked::Release(asked) => asked.alarm(),
            Asked::Renew(asked) => Some(asked.alarm()),
            // A LOCK that waits in line has more than one thing to time.
            Asked::Wait(_) | Asked::Boxed(_) => None,
        };
        if let Some(own) = own {
            std::mem::swap(own, alarm);
        }
    }

    /// Polls for the answer.
    pub(super) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        Poll::Ready(match self {
            Asked::Grant(asked) => Answer::Grant(ready!(Pin::new(asked).poll(cx))),
            Asked::Wait(asked) => Answer::Grant(ready!(Pin::new(asked).poll(cx))),
            Asked::Release(asked) => Answer::Unlock(ready!(Pin::new(asked).poll(cx))),
            Asked::Renew(asked) => Answer::Renew(ready!(Pin::new(asked).poll(cx))),
            Asked::Boxed(asked) => ready!(asked.as_mut().poll(cx)),
        })
    }
}

/// Whether this question asks for a grant, and not only for what the nodes know.
fn asks_for_grant(question: &Question) -> bool {
    matches!(
        question,
        Question::Lock { .. }
            | Question::Read { .. }
            | Question::Permit { .. }
            | Question::Adopt { .. }
            | Question::AdoptShared { .. }
            | Question::TakeOver { .. }
    )
}

/// Asks the question once there is room in the audit trail for the records of the grant. The WAIT of a LOCK covers
/// that time too.
#[cold]
async fn once_there_is_room(
    mut question: Question,
    shared: Arc<Shared>,
    card: Arc<ClientCard>,
) -> Answer {
    let since = Instant::now();
    let mut none = None;
    let wait = match &mut question {
        Question::Lock { wait, .. }
        | Question::Read { wait, .. }
        | Question::Permit { wanted: PermitWanted { wait, .. } } => wait,
        _ => &mut none,
    };
    if let Err(error) = shared.engine.audit_trail_room(*wait).await {
        let error = NotGranted::NoQuorum(error);
        return match question {
            Question::Permit { .. } => Answer::Permit(Err(error)),
            _ => Answer::Grant(Err(error)),
        };
    }
    if let Some(wait) = wait {
        *wait = wait.saturating_sub(Instant::now().saturating_duration_since(since));
    }
    let mut asked = AskingClient { shared: &shared, card: &card }.ask(question);
    poll_fn(|cx| asked.poll_answer(cx)).await
}

/// The client for which a question is asked. A question about a lock of a rule that is bridged *now* is asked on both
/// sides.
#[derive(Clone, Copy)]
struct AskingClient<'s> {
    shared: &'s Arc<Shared>,
    card: &'s Arc<ClientCard>,
}

impl AskingClient<'_> {
    fn ask(self, question: Question) -> Asked {
        let engine = &self.shared.engine;
        match question {
            Question::Lock { key, token, ttl, again, wait } => {
                self.lock(key, token, ttl, again, wait)
            }
            Question::Read { key, token, ttl, again, wait } => {
                self.read(&key, token, ttl, again, wait)
            }
            Question::Reader { key, token } => {
                Asked::boxed(engine.reader_of(key, &token), Answer::Look)
            }
            Question::Adopt { key, token, ttl, claim } => self.adopt(key, token, ttl, claim),
            Question::AdoptShared { key, token, ttl, claim } => {
                self.adopt_shared(&key, token, ttl, claim)
            }
            Question::TakeOver { key, token, ttl, claim } => self.take_over(key, token, ttl, claim),
            Question::Unlock { key, token, claim, asker } => self.unlock(key, token, claim, asker),
            Question::Renew { key, token, ttl, claim, asker } => {
                self.renew(key, token, ttl, claim, asker)
            }
            Question::LockAll { wanted } => self.lock_all(wanted),
            Question::Permit { wanted } => self.permit(wanted),
            Question::UnlockAll { grants } => self.unlock_all(grants),
            Question::Attached { locks } => Asked::boxed(self.attached(locks), Answer::Attached),
            Question::Look { key } => self.look(key),
            Question::LookAll { keys } => self.look_all(keys),
            Question::ClaimOf { key, token } => {
                Asked::boxed(engine.claim_held(key, token), Answer::ClaimOf)
            }
            Question::Raise { key, token, claim, fence } => {
                Asked::boxed(engine.raise(key, token, claim, fence), Answer::Raise)
            }
            Question::TakeBack { name, grant, by } => {
                let taking = operator_acts::unlock(self.shared.clone(), name, grant, by);
                Asked::boxed(taking, Answer::TakenBack)
            }
            Question::Free { grants } => {
                let shared = self.shared.clone();
                Asked::boxed(async move { shared.free(grants).await }, Answer::Done)
            }
            Question::Keys { guards, command } => {
                Asked::boxed(async move { guards.catalog.keys(command).await }, Answer::Keys)
            }
            Question::Commands { guards, name } => {
                Asked::boxed(async move { guards.catalog.again(name).await }, Answer::Commands)
            }
            // Commands that wait must not all ask at once.
            Question::Rest { time } => Asked::boxed(sleep(jittered(time)), Answer::Done),
        }
    }

    fn lock(
        self,
        key: Key,
        token: Token,
        ttl: Duration,
        again: Option<Claim>,
        wait: Option<Duration>,
    ) -> Asked {
        let engine = &self.shared.engine;
        if let Some(crossing) = self.crossing(&key, &token, Asker::Ours) {
            return Asked::boxed(crossing.acquire(ttl, again, wait), Answer::Grant);
        }
        match wait {
            Some(wait) => {
                Asked::Wait(Box::new(engine.wait(key, token, ttl, wait, again).by(self.card)))
            }
            None if again.is_none() && engine.paused_for().is_some() => refused(),
            None => Asked::Grant(engine.acquire(key, token, ttl, again).by(self.card)),
        }
    }

    fn read(
        self,
        key: &Key,
        token: Token,
        ttl: Duration,
        again: Option<Claim>,
        wait: Option<Duration>,
    ) -> Asked {
        let engine = &self.shared.engine;
        match (again, wait) {
            (Some(claim), _) => {
                let reader = claim.key_of_reader(key);
                Asked::Grant(engine.acquire(reader, token, ttl, again).by(self.card))
            }
            (None, Some(wait)) => {
                let waiter = engine.wait_shared(key.clone(), token, ttl, wait);
                Asked::Wait(Box::new(waiter.by(self.card)))
            }
            (None, None) if engine.paused_for().is_some() => refused(),
            (None, None) => Asked::Grant(engine.acquire_shared(key, token, ttl).by(self.card)),
        }
    }

    fn lock_all(self, wanted: AllWanted) -> Asked {
        let (shared, card) = (self.shared.clone(), self.card.clone());
        let (token, ttl) = (wanted.token.clone(), wanted.ttl);
        let ask = move |key: Key, wait: Option<Duration>| {
            let client = AskingClient { shared: &shared, card: &card };
            let asking = client.hear(Question::lock(key, token.clone(), ttl, None, wait));
            async move { asking.await.unwrap_or_else(|| Err(NotGranted::held(true))) }
        };
        Asked::boxed(take_all(self.shared.clone(), wanted, ask), Answer::LockAll)
    }

    fn permit(self, wanted: PermitWanted) -> Asked {
        let engine = &self.shared.engine;
        if wanted.wait.is_none() && wanted.again.is_empty() && engine.paused_for().is_some() {
            return Asked::boxed(future::ready(Err(NotGranted::held(true))), Answer::Permit);
        }
        Asked::boxed(engine.permit(wanted, self.card), Answer::Permit)
    }

    fn unlock_all(self, grants: Vec<(Key, Token, Option<Claim>, Asker)>) -> Asked {
        let release = |(key, token, claim, asker)| {
            let asking = self.hear(Question::unlock(key, token, claim, asker));
            let said = async move { asking.await.unwrap_or_else(|| Err(NoQuorum::default())) };
            Box::pin(said) as Pin<Box<dyn Future<Output = _> + Send>>
        };
        let all = grants.into_iter().map(release).collect();
        Asked::boxed(side_by_side(all), Answer::UnlockAll)
    }

    /// Asks this question now. The answer is `None` only to another question.
    fn hear<A>(self, question: Typed<A>) -> impl Future<Output = Option<A>> + Send + use<A> {
        let (question, read) = question.parts();
        let mut asked = self.ask(question.into());
        async move { read(poll_fn(|cx| asked.poll_answer(cx)).await) }
    }

    fn adopt(self, key: Key, token: Token, ttl: Duration, claim: Claim) -> Asked {
        let engine = &self.shared.engine;
        if let Some(crossing) = self.crossing(&key, &token, Asker::Adopted) {
            return Asked::boxed(crossing.adopt(ttl, claim), Answer::Grant);
        }
        match self.leaves(&key) || engine.paused_for().is_some() {
            true => refused(),
            false => Asked::Grant(engine.adopt(key, token, ttl, claim).by(self.card)),
        }
    }

    fn adopt_shared(self, key: &Key, token: Token, ttl: Duration, claim: Claim) -> Asked {
        let engine = &self.shared.engine;
        match self.leaves(key) || engine.paused_for().is_some() {
            true => refused(),
            false => Asked::Grant(engine.adopt_shared(key, token, ttl, claim).by(self.card)),
        }
    }

    fn take_over(self, key: Key, token: Token, ttl: Duration, claim: Claim) -> Asked {
        if claim.is_adopted() {
            if let Some(crossing) = self.crossing(&key, &token, Asker::Adopted) {
                return Asked::boxed(crossing.convert(ttl, claim), Answer::Grant);
            }
            if self.leaves(&key) {
                return refused();
            }
        }
        Asked::Grant(self.shared.engine.take_over(key, token, ttl, claim).by(self.card))
    }

    fn unlock(self, key: Key, token: Token, claim: Option<Claim>, asker: Asker) -> Asked {
        if let Some(crossing) = self.crossing(&key, &token, asker) {
            return Asked::boxed(crossing.release(claim), Answer::Unlock);
        }
        if let Some(following) = self.following(&key, &token, asker) {
            return Asked::boxed(following.release(claim), Answer::Unlock);
        }
        let engine = &self.shared.engine;
        Asked::Release(match claim {
            // Adopted commands know a claim only from the nodes.
            Some(claim) if asker != Asker::Ours => engine.release_found(key, token, claim),
            claim => engine.release(key, token, claim),
        })
    }

    fn renew(
        self,
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Option<Claim>,
        asker: Asker,
    ) -> Asked {
        if let Some(crossing) = self.crossing(&key, &token, asker) {
            return Asked::boxed(crossing.renew(ttl, claim), Answer::Renew);
        }
        if let Some(following) = self.following(&key, &token, asker) {
            return Asked::boxed(following.renew(ttl, claim), Answer::Renew);
        }
        if asker == Asker::Adopted && self.leaves(&key) {
            return Asked::boxed(future::ready(Ok(None)), Answer::Renew);
        }
        Asked::Renew(self.shared.engine.renew(key, token, ttl, claim))
    }

    /// Asks about all locks at once, so waiting for one after the other takes no longer.
    fn attached(
        self,
        locks: Vec<(Key, Token)>,
    ) -> impl Future<Output = Vec<Attached>> + Send + 'static {
        let attach = |(key, token)| self.shared.engine.attach(key, token);
        let all: Vec<Attach> = locks.into_iter().map(attach).collect();
        async move {
            let mut said = Vec::with_capacity(all.len());
            for one in all {
                said.push(one.await);
            }
            said
        }
    }

    fn look(self, key: Key) -> Asked {
        match self.crossing(&key, &Token::from(b""), Asker::Adopted) {
            Some(crossing) => Asked::boxed(crossing.look(), Answer::Look),
            None => Asked::boxed(self.shared.engine.look(key), Answer::Look),
        }
    }

    /// Asks about all of these locks side by side.
    fn look_all(self, keys: Vec<Key>) -> Asked {
        let look = |key| {
            let asking = self.hear(Question::look(key));
            let said = async move { asking.await.unwrap_or_else(|| Err(NoQuorum::default())) };
            Box::pin(said) as Pin<Box<dyn Future<Output = _> + Send>>
        };
        let all = keys.into_iter().map(look).collect();
        Asked::boxed(side_by_side(all), Answer::LookAll)
    }

    /// Returns what asks about a bridged lock on both sides.
    fn crossing(self, key: &Key, token: &Token, asker: Asker) -> Option<Crossing> {
        let bridge = self.shared.bridge.as_ref().filter(|_| asker != Asker::BesideDataNode);
        Crossing::of(bridge, (key, token), asker, self.card)
    }

    /// Returns what gives back or extends, on both sides, a lock that another proxy may have taken on both.
    fn following(self, key: &Key, token: &Token, asker: Asker) -> Option<FollowingKeys> {
        let bridge = self.shared.bridge.as_ref().filter(|_| asker != Asker::BesideDataNode);
        FollowingKeys::of(bridge, (key, token), asker)
    }

    /// Whether an adopted command that takes or extends this lock is refused, as it was judged before its rule stepped
    /// to audit. By now the data node decides, and may have granted to another client what the lock nodes would grant
    /// to this one.
    fn leaves(self, key: &Key) -> bool {
        self.shared.bridge.as_ref().is_some_and(|bridge| bridge.leaves(key))
    }
}

/// Refuses a lock of which no node was asked.
fn refused() -> Asked {
    let refused: Result<Grant, _> = Err(NotGranted::held(true));
    Asked::boxed(future::ready(refused), Answer::Grant)
}
