//! A session's questions under way: to the lock nodes, and to the data node about commands.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::sleep;

use super::{
    jobs::{Answer, Attached, Question},
    operator_acts,
    shared::Shared,
};
use crate::{
    bridge::{Asker, Bridge, Crossing, FollowingKeys},
    card::ClientCard,
    clock::Instant,
    key::Token,
    lock::{
        Acquire, Alarm, Attach, LookUp, NotGranted, Raise, Release, Renew, SameToken, Waiter,
        jittered,
    },
};

/// A question, until it is answered. A LOCK whose question is dropped before that is undone on every node.
pub(super) enum Asked {
    Lock(Acquire),
    Wait(Box<Waiter>),
    Unlock(Release),
    Renew(Renew),
    TakeOver(Acquire),
    /// All are asked at once, so waiting for one after the other takes no longer.
    Attached(Vec<Attach>, Vec<Attached>),
    Look(LookUp),
    Raise(Raise),
    /// Asked in several steps, or of the data node over a connection of the proxy's own.
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
        if asks_for_grant(&question) && shared.engine.audit_trail_is_full() {
            let asking = once_there_is_room(question, shared.clone(), card.clone());
            return Asked::Boxed(Box::pin(asking));
        }
        Asked::ask_now(question, shared, card, alarm)
    }

    fn ask_now(
        question: Question,
        shared: &Arc<Shared>,
        card: &Arc<ClientCard>,
        alarm: &mut Alarm,
    ) -> Asked {
        let question = match bridged(question, shared, card) {
            Ok(asked) => return asked,
            Err(question) => question,
        };
        let question = match left(question, shared) {
            Ok(asked) => return asked,
            Err(question) => question,
        };
        let engine = &shared.engine;
        if takes_at_once(&question) && engine.paused_for().is_some() {
            let held = NotGranted::Held {
                remaining: None,
                contested: false,
                same_token: SameToken::Unknown,
            };
            return Asked::Boxed(Box::pin(async { Answer::Lock(Err(held)) }));
        }
        let mut asked =
            match question {
                Question::Lock { key, token, ttl, again, wait: None } => {
                    Asked::Lock(engine.acquire(key, token, ttl, again).by(card))
                }
                Question::Lock { key, token, ttl, again, wait: Some(wait) } => {
                    Asked::Wait(Box::new(engine.wait(key, token, ttl, wait, again).by(card)))
                }
                Question::Adopt { key, token, ttl, claim } => {
                    Asked::Lock(engine.adopt(key, token, ttl, claim).by(card))
                }
                // Adopted commands know a claim only from the nodes.
                Question::Unlock {
                    key,
                    token,
                    claim: Some(claim),
                    asker: Asker::Adopted | Asker::Told | Asker::BesideDataNode,
                } => Asked::Unlock(engine.release_found(key, token, claim)),
                Question::Unlock { key, token, claim, .. } => {
                    Asked::Unlock(engine.release(key, token, claim))
                }
                Question::Renew { key, token, ttl, claim, .. } => {
                    Asked::Renew(engine.renew(key, token, ttl, claim))
                }
                Question::TakeOver { key, token, ttl, claim } => {
                    Asked::TakeOver(engine.take_over(key, token, ttl, claim).by(card))
                }
                Question::Attached(locks) => {
                    let attach = |(key, token)| engine.attach(key, token);
                    Asked::Attached(locks.into_iter().map(attach).collect(), Vec::new())
                }
                Question::Look(key) => Asked::Look(engine.look(key)),
                Question::ClaimOf(key, token) => {
                    let asking = engine.claim_held(key, token);
                    Asked::Boxed(Box::pin(async move { Answer::ClaimOf(asking.await) }))
                }
                Question::TakeBack { name, fence, by } => {
                    let taking = operator_acts::unlock(shared.clone(), name, fence, by);
                    Asked::Boxed(Box::pin(async move { Answer::TakenBack(taking.await) }))
                }
                Question::Free(grants) => {
                    let shared = shared.clone();
                    Asked::Boxed(Box::pin(async move {
                        shared.free(grants).await;
                        Answer::Freed
                    }))
                }
                Question::Raise { key, token, claim, fence } => {
                    Asked::Raise(engine.raise(key, token, claim, fence))
                }
                Question::Keys(guards, command) => Asked::Boxed(Box::pin(async move {
                    Answer::Keys(guards.catalog.keys(command).await)
                })),
                Question::Commands(guards, name) => Asked::Boxed(Box::pin(async move {
                    Answer::Commands(guards.catalog.again(name).await)
                })),
                Question::Rest(time) => Asked::Boxed(Box::pin(async move {
                    // Commands that wait must not all ask at once.
                    sleep(jittered(time)).await;
                    Answer::Rested
                })),
            };
        asked.give_back(alarm);
        asked
    }

    /// Swaps the question's alarm with `alarm`.
    pub(super) fn give_back(&mut self, alarm: &mut Alarm) {
        let own = match self {
            Asked::Lock(asked) | Asked::TakeOver(asked) => asked.alarm(),
            Asked::Unlock(asked) => match asked.alarm() {
                Some(own) => own,
                None => return,
            },
            Asked::Renew(asked) => asked.alarm(),
            // A LOCK that waits in line has more than one thing to time.
            Asked::Wait(_)
            | Asked::Attached(..)
            | Asked::Look(_)
            | Asked::Raise(_)
            | Asked::Boxed(_) => return,
        };
        std::mem::swap(own, alarm);
    }

    /// Polls for the answer.
    pub(super) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        Poll::Ready(match self {
            Asked::Lock(asked) => Answer::Lock(ready!(Pin::new(asked).poll(cx))),
            Asked::Wait(asked) => Answer::Lock(ready!(Pin::new(asked).poll(cx))),
            Asked::Unlock(asked) => Answer::Unlock(ready!(Pin::new(asked).poll(cx))),
            Asked::Renew(asked) => Answer::Renew(ready!(Pin::new(asked).poll(cx))),
            Asked::TakeOver(asked) => Answer::TakeOver(ready!(Pin::new(asked).poll(cx))),
            Asked::Attached(asked, said) => {
                while let Some(next) = asked.get_mut(said.len()) {
                    said.push(ready!(Pin::new(next).poll(cx)));
                }
                Answer::Attached(std::mem::take(said))
            }
            Asked::Look(asked) => Answer::Look(ready!(Pin::new(asked).poll(cx))),
            Asked::Raise(asked) => Answer::Raise(ready!(Pin::new(asked).poll(cx))),
            Asked::Boxed(asked) => ready!(asked.as_mut().poll(cx)),
        })
    }
}

/// Whether this question asks for a grant, and not only for what the nodes know.
fn asks_for_grant(question: &Question) -> bool {
    matches!(question, Question::Lock { .. } | Question::Adopt { .. } | Question::TakeOver { .. })
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
    let wait = match &question {
        Question::Lock { wait, .. } => *wait,
        _ => None,
    };
    if let Err(error) = shared.engine.audit_trail_room(wait).await {
        let refused = Err(NotGranted::NoQuorum(error));
        return match question {
            Question::TakeOver { .. } => Answer::TakeOver(refused),
            _ => Answer::Lock(refused),
        };
    }
    if let Question::Lock { wait: Some(wait), .. } = &mut question {
        *wait = wait.saturating_sub(Instant::now().saturating_duration_since(since));
    }
    let mut asked = Asked::ask_now(question, &shared, &card, &mut Alarm::default());
    poll_fn(|cx| asked.poll_answer(cx)).await
}

/// Whether this asks for a lock that its client does not have, without waiting in line.
fn takes_at_once(question: &Question) -> bool {
    matches!(question, Question::Lock { again: None, wait: None, .. } | Question::Adopt { .. })
}

/// Asks about a bridged lock on both sides. Returns any other question as it was.
fn bridged(
    question: Question,
    shared: &Arc<Shared>,
    card: &Arc<ClientCard>,
) -> Result<Asked, Question> {
    let bridge = shared.bridge.as_ref();
    let nobody = Token::from(b"");
    let (key, token, asker) = match &question {
        Question::Lock { key, token, .. } => (key, token, Asker::Ours),
        Question::Adopt { key, token, .. } => (key, token, Asker::Adopted),
        Question::TakeOver { key, token, claim, .. } if claim.is_adopted() => {
            (key, token, Asker::Adopted)
        }
        Question::Unlock { asker: Asker::BesideDataNode, .. }
        | Question::Renew { asker: Asker::BesideDataNode, .. } => return Err(question),
        Question::Unlock { key, token, asker, .. } | Question::Renew { key, token, asker, .. } => {
            (key, token, *asker)
        }
        Question::Look(key) => (key, &nobody, Asker::Adopted),
        Question::TakeOver { .. }
        | Question::Attached(_)
        | Question::ClaimOf(..)
        | Question::TakeBack { .. }
        | Question::Free(_)
        | Question::Raise { .. }
        | Question::Keys(..)
        | Question::Commands(..)
        | Question::Rest(_) => return Err(question),
    };
    let Some(crossing) = Crossing::of(bridge, (key, token), asker, card) else {
        return followed(question, bridge);
    };
    Ok(Asked::Boxed(match question {
        Question::Lock { ttl, again, wait, .. } => {
            Box::pin(async move { Answer::Lock(crossing.acquire(ttl, again, wait).await) })
        }
        Question::Adopt { ttl, claim, .. } => {
            Box::pin(async move { Answer::Lock(crossing.adopt(ttl, claim).await) })
        }
        Question::TakeOver { ttl, claim, .. } => {
            Box::pin(async move { Answer::TakeOver(crossing.convert(ttl, claim).await) })
        }
        Question::Unlock { claim, .. } => {
            Box::pin(async move { Answer::Unlock(crossing.release(claim).await) })
        }
        Question::Renew { ttl, claim, .. } => {
            Box::pin(async move { Answer::Renew(crossing.renew(ttl, claim).await) })
        }
        _ => Box::pin(async move { Answer::Look(crossing.look().await) }),
    }))
}

/// Refuses an adopted command that takes or extends a lock and was judged before its rule stepped to audit. By now
/// the data node decides, and may have granted to another client what the lock nodes would grant to this one. Returns
/// any other question as it was.
fn left(question: Question, shared: &Arc<Shared>) -> Result<Asked, Question> {
    let key = match &question {
        Question::Adopt { key, .. } | Question::Renew { key, asker: Asker::Adopted, .. } => key,
        Question::TakeOver { key, claim, .. } if claim.is_adopted() => key,
        _ => return Err(question),
    };
    if !shared.bridge.as_ref().is_some_and(|bridge| bridge.leaves(key)) {
        return Err(question);
    }
    // `contested`, as the lock may be free: so it is not remembered as held, which would refuse later commands.
    let held = || {
        let (remaining, contested, same_token) = (None, true, SameToken::Unknown);
        Err(NotGranted::Held { remaining, contested, same_token })
    };
    let answer = match question {
        Question::Renew { .. } => Answer::Renew(Ok(None)),
        Question::TakeOver { .. } => Answer::TakeOver(held()),
        _ => Answer::Lock(held()),
    };
    Ok(Asked::Boxed(Box::pin(async move { answer })))
}

/// Gives back or extends, on both sides, a lock that another proxy may have taken on both. Returns any other question
/// as it was.
fn followed(question: Question, bridge: Option<&Arc<Bridge>>) -> Result<Asked, Question> {
    let following = match &question {
        Question::Unlock { key, token, asker, .. } | Question::Renew { key, token, asker, .. } => {
            FollowingKeys::of(bridge, (key, token), *asker)
        }
        _ => None,
    };
    Ok(Asked::Boxed(match (following, question) {
        (Some(following), Question::Unlock { claim, .. }) => {
            Box::pin(async move { Answer::Unlock(following.release(claim).await) })
        }
        (Some(following), Question::Renew { ttl, claim, .. }) => {
            Box::pin(async move { Answer::Renew(following.renew(ttl, claim).await) })
        }
        (_, question) => return Err(question),
    }))
}
