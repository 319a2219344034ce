//! What is kept of a session between two commands of its client, so that an idle client on shared connections costs
//! little: most of a session is only there while something is under way.
//!
//! Whatever wakes the session's task wakes the session, which then looks for itself what has come. A session over a
//! connection of its own stays awake: its commands should not pay for it.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    claims::Tokens,
    conn::{Conn, State},
    core::{Asking, Core, Tracking, Turn},
    desk::Desk,
    guarded::limit::ShortWay,
    idiom_look::IdiomLook,
    jobs::authorize::Permissions,
    loss_news::Losing,
    pump::{Session, Upstream},
    rare::Rare,
    roll::Enrolled,
    session_metrics::CloseReason,
    shared::Shared,
    sights::Sights,
};
use crate::{
    card::OwnCard,
    config::Config,
    data::Tenure,
    guard::history::DataHistory,
    lock::{Alarm, Losses},
    net::{SharedPart, Stream},
    resp::name::ReplyMode,
};

/// How many places for sessions a thread keeps, so that waking up allocates nothing.
const PLACES: usize = 64;

type SessionPlace = Box<Option<Session>>;

thread_local! {
    /// Places that no session has.
    static FREE: RefCell<Vec<SessionPlace>> = const { RefCell::new(Vec::new()) };
}

/// A session, awake or asleep.
pub(crate) struct Sleeper {
    awake: Option<SessionPlace>,
    /// Kept once the session has slept, for the next time.
    asleep: Option<Box<Option<Asleep>>>,
    enrolled: Option<Enrolled>,
    /// The end of the tenure of the Redis to which the upstream connection leads, which wakes the task.
    tenure_ends: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// What is kept of a session that sleeps.
struct Asleep {
    client: Stream,
    part: Box<dyn SharedPart>,
    tenure: Option<Arc<Tenure>>,
    alarm: Alarm,
    shared: Arc<Shared>,
    config: Arc<Config>,
    card: OwnCard,
    tokens: Rare<Tokens>,
    losses: Option<Arc<Losses>>,
    history: Option<Arc<DataHistory>>,
    history_changes: u64,
    sights: Rare<Sights>,
    short_way: ShortWay,
    permissions: Rare<Permissions>,
    database: Option<u64>,
    idiom_look: Option<Box<IdiomLook>>,
    read: u64,
    resp3: bool,
    known: bool,
    auth_queued: bool,
    balanced: bool,
    unheard: bool,
    measures: bool,
}

impl Sleeper {
    pub(crate) fn of(session: Session) -> Sleeper {
        Sleeper {
            awake: Some(Box::new(Some(session))),
            asleep: None,
            enrolled: None,
            tenure_ends: None,
        }
    }

    /// Moves bytes until either side is gone or the proxy shuts down. Both connections are closed when this is dropped,
    /// and a LOCK under way is undone. Session locks are released if the client has sent QUIT, or has hung up and
    /// `locks.on_disconnect` says so. If the data node or the proxy ended the connection, they run out: the client may
    /// go on as its validity allows.
    pub(crate) async fn run(&mut self) -> CloseReason {
        let reason = poll_fn(|cx| self.poll_awake(cx)).await;
        if let Some(session) = self.session() {
            session.end(reason).await;
        }
        reason
    }

    /// Moves bytes until there is a reason to close the connection.
    fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        self.enrol(cx);
        let Some(session) = self.awake(cx.waker()) else {
            return Poll::Ready(CloseReason::Shutdown);
        };
        let polled = session.poll(cx);
        if polled.is_pending() {
            self.sleep();
        }
        polled
    }

    /// Has this task woken by all that may end the session. Once is enough: the task's waker stays the same, and flags
    /// are cheaper to look at.
    fn enrol(&mut self, cx: &mut Context<'_>) {
        if self.enrolled.is_some() {
            return;
        }
        let Some(session) = self.session() else { return };
        session.core.desk.waker = cx.waker().clone();
        let (shared, tenure) = (session.core.desk.shared.clone(), session.tenure.clone());
        self.enrolled = Some(Enrolled::new(shared.roll.clone(), cx.waker().clone()));
        if let Some(tenure) = tenure {
            let ends = self.tenure_ends.insert(Box::pin(async move { tenure.ended().await }));
            let _ = ends.as_mut().poll(cx);
        }
    }

    /// Returns the session unless it sleeps.
    fn session(&mut self) -> Option<&mut Session> {
        self.awake.as_deref_mut().and_then(Option::as_mut)
    }

    /// Returns the session, which wakes up if it sleeps, in a task with this waker.
    fn awake(&mut self, waker: &Waker) -> Option<&mut Session> {
        if let Some(asleep) = self.asleep.as_deref_mut().and_then(Option::take) {
            let mut place = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
            *place = Some(asleep.wake(waker.clone()));
            self.awake = Some(place);
        }
        self.session()
    }

    /// Lets the session sleep if it shares connections and nothing is under way.
    fn sleep(&mut self) {
        if !self.session().is_some_and(|session| session.may_sleep()) {
            return;
        }
        let Some(mut place) = self.awake.take() else { return };
        if let Some(asleep) = place.take().and_then(Session::sleep) {
            **self.asleep.get_or_insert_default() = Some(asleep);
        }
        FREE.with_borrow_mut(|free| {
            if free.len() < PLACES {
                free.push(place);
            }
        });
    }
}

impl Session {
    /// Whether nothing of the session would be lost by sleep. Names every field: a new one must be thought of here.
    fn may_sleep(&self) -> bool {
        let Session {
            core,
            client: _,
            upstream,
            upstream_state,
            hung_up,
            balanced: _,
            tenure: _,
            ahead,
            asked,
            alarm: _,
            untaken,
            look,
            pulse,
            linger,
        } = self;
        upstream.is_shared()
            && core.may_sleep()
            && upstream_state.is_open()
            && !hung_up
            && ahead.is_none()
            && asked.is_none()
            && untaken.is_none()
            && look.is_none()
            && pulse.is_none()
            && linger.is_none()
    }

    fn sleep(self) -> Option<Asleep> {
        let Session { core, client, upstream, upstream_state, balanced, tenure, alarm, .. } = self;
        let Stream::Shared(part) = upstream else { return None };
        let Core { desk, idiom_look, read, unheard, .. } = core;
        let Desk { shared, config, conn, card, tokens, losing, short_way, sights, .. } = desk;
        let (history, history_changes) = (desk.history, desk.history_changes);
        let Conn { permissions, database, auth_queued, state: State { resp3, known, .. }, .. } =
            conn;
        let losses = losing.losses;
        Some(Asleep {
            client,
            part,
            tenure,
            alarm,
            shared,
            config,
            card,
            tokens,
            losses,
            history,
            history_changes,
            sights,
            short_way,
            permissions,
            database,
            idiom_look,
            read,
            resp3,
            known,
            auth_queued,
            balanced,
            unheard,
            measures: upstream_state.measures,
        })
    }
}

impl Asleep {
    fn wake(self, waker: Waker) -> Session {
        let state = State { resp3: self.resp3, known: self.known, ..State::default() };
        let conn = Conn {
            state,
            permissions: self.permissions,
            database: self.database,
            auth_queued: self.auth_queued,
            ..Conn::default()
        };
        let desk = Desk {
            conn,
            tokens: self.tokens,
            losing: Losing { losses: self.losses, ..Losing::default() },
            short_way: self.short_way,
            history: self.history,
            history_changes: self.history_changes,
            sights: self.sights,
            waker,
            ..Desk::with(self.shared, self.config, self.card)
        };
        let core =
            Core { read: self.read, unheard: self.unheard, ..Core::with(desk, self.idiom_look) };
        let upstream_state = Upstream::open(self.measures);
        let (tenure, alarm) = (self.tenure, self.alarm);
        Session {
            upstream_state,
            tenure,
            alarm,
            ..Session::with(core, self.client, Stream::Shared(self.part), self.balanced)
        }
    }
}

impl Core {
    fn may_sleep(&self) -> bool {
        let Core {
            desk,
            turn,
            question,
            tracking,
            closing: _,
            requests,
            idiom_look: _,
            read: _,
            client_done,
            replies,
            filter,
            to_client,
            unread,
            linger,
            unheard: _,
        } = self;
        desk.may_sleep()
            && matches!(turn, Turn::Client)
            && matches!(question, Asking::Nothing)
            && *tracking == Tracking::Matched
            && requests.between_commands()
            && !client_done
            && replies.is_as_new()
            && filter.is_none()
            && to_client.is_empty()
            && unread.is_none()
            && linger.is_none()
    }
}

impl Desk {
    fn may_sleep(&self) -> bool {
        let Desk {
            shared: _,
            config: _,
            conn,
            card: _,
            tokens: _,
            losing,
            owed,
            unsent,
            to_data,
            short_way: _,
            history: _,
            history_changes: _,
            transaction,
            sights: _,
            view,
            room,
            waker: _,
        } = self;
        let Losing { losses: _, pushes, news } = losing;
        conn.may_sleep()
            && pushes.is_empty()
            && news.is_none()
            && owed.is_as_new()
            && unsent.is_empty()
            && to_data.is_empty()
            && transaction.is_none()
            && view.is_none()
            && room.is_none()
    }
}

impl Conn {
    fn may_sleep(&self) -> bool {
        let Conn {
            state:
                State { resp3: _, known: _, multi, watching, monitor, quit, channels, patterns, shards },
            reply_mode,
            next_only,
            asking,
            blind_multi,
            blind_watch,
            // HELLO or AUTH leaves it set.
            auth_queued: _,
            database: _,
            refusal,
            is_replica,
            armed,
            lost_watch,
            locks,
            permissions: _,
        } = self;
        let flags = [multi, watching, monitor, quit, next_only, asking, blind_multi, blind_watch];
        let is_set = flags.into_iter().chain([is_replica, lost_watch]).any(|flag| *flag);
        !is_set
            && [channels, patterns, shards] == [&0; 3]
            && *reply_mode == ReplyMode::On
            && refusal.is_empty()
            && armed.is_none()
            && locks.is_empty()
    }
}
