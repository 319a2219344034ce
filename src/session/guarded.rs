//! Writes to guarded keys: forwarded only under the lock, and only while the data
//! node has seen no larger fence of it.
//!
//! The check and the write are one step on the data node: the fence's key is WATCHed
//! before it is read, and the write runs in a transaction, which Redis drops if
//! another fence was written in between. The write itself passes as it came, and its
//! reply is the only element of EXEC's, so both are exact, whatever the command.
//! Common commands are first tried by one script that does the same in one round trip
//! ([`mod@crate::guard::write`]), for several that are here at once; whatever error comes of
//! it, the long way says what it is.
//!
//! ```text
//! Start ─ which locks? ─┬─ not held: -NOTHELD
//!                       ├─ Database: behind SELECT, which one that was ─┐
//!                       ├───────────────────────────────────────────────┘
//!                       ├─ Short: the script ─ its reply, or Telling: that of each write
//!                       │    ↓ any error
//!                       └─ Fences ─┬─ a larger one was seen: DISCARD, -FENCED
//!                            ↑     └─ Commit: the write, EXEC ─ its reply
//!                            └── dropped, as a fence was written ──┘
//! ```
//!
//! - `ways`: the short and the long way, once the locks are known to be held.
//! - `batch`: the writes that go the short way together.
//! - `armed`: the client's own transactions.
//! - `database`: in which database the write is to be made.
//! - `forgotten`: what becomes of fences that the data node knows no longer.
//!
//! A transaction of the client's own is armed at its MULTI: the fences of all locks
//! that the connection holds are WATCHed before it is passed on, and the writes in it
//! are only compared with those.

mod armed;
mod batch;
mod database;
mod forgotten;
mod ways;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    Session, attached::Verified, barrier::Barrier, metrics::GuardedWrite, requests::Pass,
    unwrap::Whose,
};
use crate::{
    clock::Instant,
    guard::{
        Look, MAX_LOCKS, Need, Needs, Room, Stop,
        fences::{Claim, Fences},
        learn::AskError,
        shown,
    },
    key::Key,
    resp::{
        encode, inline,
        name::ReplyMode,
        words::{Step, Walk},
    },
};

use self::forgotten::Held;
pub(super) use self::{armed::Armed, batch::Limit};

/// A write on its way, or a MULTI behind which there may be some.
pub struct Guarded {
    /// A MULTI; else a write, and what stops it.
    is_multi: bool,
    stop: Option<Stop>,
    /// How many bytes of what is held are its own.
    length: usize,
    stage: Stage,
    claims: Vec<Claim>,
    /// Its share of what may be held.
    room: Option<Room>,
    tries: usize,
    /// Replies are off or skipped: it runs, but says nothing.
    silent: bool,
    /// They are off, and were turned on for what is asked.
    turned_on: bool,
    /// The lock nodes were asked about locks that the connection is attached to.
    verified: bool,
    /// To the data node the connection is in another database than to its client.
    astray: bool,
}

enum Stage {
    /// Nothing is asked.
    Start,
    /// The data node is asked about the command, over a connection of the proxy's own.
    Asking(Pin<Box<dyn Future<Output = Told> + Send>>),
    /// The script was sent that compares and makes so many writes, of so many bytes.
    Short { writes: usize, length: usize },
    /// It has made several, and their replies are coming.
    Telling,
    /// It is asked which database is selected; so many replies are missing.
    Database { missing: usize },
    /// It is asked about the fences.
    Fences(Fences),
    /// The write and EXEC are sent; with the error to the write, if there was one.
    Commit(Option<Vec<u8>>),
    /// What undoes the question is sent, and then this is the answer.
    GivingUp(Vec<u8>),
    /// A command is sent that makes the client's transaction fail, and then the same.
    Failing(Vec<u8>),
}

/// What the data node has said about a command.
pub(super) enum Told {
    /// Its commands were read again; false: they could not be.
    Commands(bool),
    /// The keys that it writes.
    Keys(Result<Vec<Vec<u8>>, AskError>),
    /// Not the data node but the lock nodes, about locks the connection is attached to.
    Verified(Verified),
    /// The same, about locks whose fences the data node has forgotten.
    Held(Held),
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guarded({:?})", self.claims)
    }
}

impl Guarded {
    fn new(length: usize, stop: Option<Stop>, room: Option<Room>) -> Guarded {
        Guarded {
            is_multi: stop.is_none(),
            stop,
            length,
            stage: Stage::Start,
            claims: Vec::new(),
            room,
            tries: 0,
            silent: false,
            turned_on: false,
            verified: false,
            astray: false,
        }
    }

    /// A write.
    pub(super) fn write(length: usize, stop: Stop, room: Option<Room>) -> Guarded {
        Guarded::new(length, Some(stop), room)
    }

    /// The client's MULTI.
    pub(super) fn multi() -> Guarded {
        Guarded::new(0, None, None)
    }

    /// Whose reply comes next.
    pub(super) fn whose(&self) -> Whose {
        match self.stage {
            Stage::Short { writes: 2.., .. } => Whose::Batch,
            Stage::Short { .. } | Stage::Telling => Whose::Script,
            _ => Whose::Exec,
        }
    }

    /// Whether all that is missing are replies for the client.
    pub(super) fn is_telling(&self) -> bool {
        matches!(self.stage, Stage::Telling)
    }

    /// Whether its bytes are at the beginning of what is held.
    pub(super) fn is_held(&self) -> bool {
        self.is_multi || self.length > 0
    }

    /// Bytes of what is held that are its own.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether the client is told nothing.
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Whether the lock nodes were asked already.
    pub(super) fn is_verified(&self) -> bool {
        self.verified
    }

    /// Waits for what is being asked.
    pub(super) fn wait_for(&mut self, asking: impl Future<Output = Told> + Send + 'static) {
        self.stage = Stage::Asking(Box::pin(asking));
    }

    /// Ready once it has answered.
    pub(super) fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
        match &mut self.stage {
            Stage::Asking(asking) => asking.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }
}

impl Session {
    /// All earlier replies are in: finds out which locks it needs.
    pub(super) fn begin_guarded(&mut self, mut barrier: Box<Barrier>) {
        let Some(guarded) = barrier.guarded() else { return };
        // One whose bytes were dropped is not here: the next would go in its place.
        let is_here = guarded.is_multi || guarded.length > 0;
        let is_known = !matches!(guarded.stop, Some(Stop::Unknown(_) | Stop::ZeroInName));
        if is_here && is_known && (self.state.is_resp2_subscriber() || self.state.monitor) {
            if guarded.is_multi || !self.guards_are_enforced() {
                return self.pass_held(Pass::Counted);
            }
            return self.refuse_where_redis_would(barrier);
        }
        if guarded.is_multi {
            return self.begin_multi(barrier);
        }
        let Some(guards) = self.shared.guards.clone() else { return };
        match guarded.stop.take() {
            Some(Stop::Needs(needs)) => self.begin_write(barrier, &needs),
            Some(Stop::Ask(words)) => {
                let asking = async move { Told::Keys(guards.catalog.keys(words).await) };
                guarded.stage = Stage::Asking(Box::pin(asking));
                self.barrier = Some(barrier.goes_on());
            }
            Some(Stop::Unknown(name)) => {
                let asking = async move { Told::Commands(guards.catalog.again(name).await) };
                guarded.stage = Stage::Asking(Box::pin(asking));
                self.barrier = Some(barrier.goes_on());
            }
            Some(Stop::Databases(name)) => {
                let error = format!(
                    "NOTHELD {} would touch guarded keys without their locks (guards.flush)",
                    shown(&name)
                );
                self.refuse_write(barrier, error.into_bytes(), GuardedWrite::NotHeld);
            }
            Some(Stop::Reserved) => {
                let error = "ERR keys that begin with 'lockgate:guard:' are Lockgate's own";
                self.refuse_write(barrier, error.into(), GuardedWrite::NotHeld);
            }
            Some(Stop::ZeroInName) => {
                let error = "ERR unknown command, there is a zero byte in its name";
                self.refuse_write(barrier, error.into(), GuardedWrite::Refused);
            }
            Some(Stop::TooLarge) => {
                let limit = guards.max_command;
                let error = format!(
                    "ERR command too large to be checked against the guards, more than {limit} bytes (guards.max_command)"
                );
                self.refuse_write(barrier, error.into_bytes(), GuardedWrite::Refused);
            }
            Some(Stop::NoRoom) => {
                let error =
                    "ERR too many large commands are being checked against the guards, try again";
                self.refuse_write(barrier, error.into(), GuardedWrite::Refused);
            }
            Some(Stop::TooMuch) => {
                let error = "ERR too much in one command to be checked against the guards";
                self.refuse_write(barrier, error.into(), GuardedWrite::Refused);
            }
            Some(Stop::TooMany) => {
                let error = format!("ERR one command may write under at most {MAX_LOCKS} locks");
                self.refuse_write(barrier, error.into_bytes(), GuardedWrite::NotHeld);
            }
            None => {}
        }
    }

    fn guards_are_enforced(&self) -> bool {
        self.shared.guards.as_ref().is_some_and(|guards| guards.enforces())
    }

    /// A subscriber of RESP2 may not write, nor who monitors, and Redis says so. It is
    /// said here in its words instead: nothing that guards stop is ever forwarded
    /// because of what the connection is believed to be. After MONITOR, besides, Redis
    /// itself would run scripts and DEBUG.
    fn refuse_where_redis_would(&mut self, mut barrier: Box<Barrier>) {
        if self.state.multi || self.blind_multi {
            // Replies to the proxy's own commands could not be told from others.
            return self.relay_from_here();
        }
        let error = if self.state.monitor {
            "ERR Replica can't interact with the keyspace".to_owned()
        } else {
            let length = barrier.guarded().map_or(0, |guarded| guarded.length);
            let name = first_word(&self.held[..length.min(self.held.len())]).to_ascii_lowercase();
            let allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET";
            let name = shown(&name);
            format!("ERR Can't execute '{name}': only {allowed} are allowed in this context")
        };
        self.refuse_write(barrier, error.into_bytes(), GuardedWrite::Refused);
    }

    /// The data node has told about the command.
    pub(super) fn guard_was_told(&mut self, mut barrier: Box<Barrier>, told: Told) {
        let (Some(guarded), Some(guards)) = (barrier.guarded(), self.shared.guards.clone()) else {
            return;
        };
        guarded.stage = Stage::Start;
        let unknown =
            |why: &str| format!("ERR the command could not be checked against the guards: {why}");
        match told {
            Told::Verified(verified) => {
                guarded.verified = true;
                self.goes_on_verified(barrier, verified);
            }
            Told::Held(held) => self.goes_on_held(barrier, held),
            Told::Keys(Err(error)) => {
                let error = unknown(&error.to_string());
                self.refuse_write(barrier, error.into_bytes(), GuardedWrite::NotHeld);
            }
            Told::Keys(Ok(keys)) => match guards.needs(keys.iter().map(Vec::as_slice)) {
                Needs::Locks(needs) if needs.is_empty() => self.pass_held(Pass::Counted),
                Needs::Locks(needs) => self.begin_write(barrier, &needs),
                Needs::Audited(needs) => {
                    self.audit(&needs);
                    self.pass_held(Pass::Counted);
                }
                Needs::Reserved => self.begin_with(barrier, Stop::Reserved),
                Needs::TooMany => self.begin_with(barrier, Stop::TooMany),
                Needs::TooMuch => self.begin_with(barrier, Stop::TooMuch),
            },
            Told::Commands(was_read) => {
                let table = guards.catalog.table();
                match guards.look(table.as_deref(), &self.held[..guarded.length]) {
                    // What is known of them may be older than the command.
                    Look::Stop(_, Stop::Unknown(_)) if table.is_none() || !was_read => {
                        let error = unknown("the data node's commands cannot be read");
                        self.refuse_write(barrier, error.into_bytes(), GuardedWrite::NotHeld);
                    }
                    // Redis does not know it either, and says so.
                    Look::Stop(_, Stop::Unknown(_)) => self.pass_held(Pass::Counted),
                    Look::Stop(_, stop) => self.begin_with(barrier, stop),
                    Look::Audited(needs) => {
                        self.audit(&needs);
                        self.pass_held(Pass::Counted);
                    }
                    Look::Free | Look::More(..) | Look::TooLarge => self.pass_held(Pass::Counted),
                }
            }
        }
    }

    fn begin_with(&mut self, mut barrier: Box<Barrier>, stop: Stop) {
        if let Some(guarded) = barrier.guarded() {
            guarded.stop = Some(stop);
        }
        self.begin_guarded(barrier);
    }

    /// Goes on with a write if the connection holds these locks.
    pub(super) fn begin_write(&mut self, mut barrier: Box<Barrier>, needs: &[Need]) {
        let (now, in_multi) = (Instant::now(), self.state.multi || self.blind_multi);
        if !in_multi && self.verify_for(&mut barrier, needs, now) {
            return self.barrier = Some(barrier.goes_on());
        }
        let mut claims = Vec::with_capacity(needs.len());
        for need in needs {
            let key = Key::new(self.config.locks.prefix.as_bytes(), &need.lock);
            let claim = self.tokens.claim(&key, now).map(|(fence, raised)| Claim {
                key: key.clone(),
                fence,
                raised,
                wanted_for: need.key.clone(),
            });
            let armed = self.armed.as_deref().filter(|_| in_multi);
            match claim {
                Some(claim) if !in_multi || armed.is_some_and(|armed| armed.watches(&claim)) => {
                    claims.push(claim);
                }
                _ => {
                    let why = armed.and_then(|armed| armed.refused(&key));
                    let error = why.unwrap_or_else(|| not_held(need).into_bytes());
                    return self.refuse_write(barrier, error, GuardedWrite::NotHeld);
                }
            }
        }
        if in_multi {
            self.shared.metrics.guarded(GuardedWrite::Passed);
            return self.pass_held(Pass::Counted);
        }
        if self.state.watching {
            let error = "ERR a guarded write between WATCH and MULTI is not supported; write before \
                         WATCH, or in the transaction";
            return self.refuse_write(barrier, error.into(), GuardedWrite::NotHeld);
        }
        let Some(guarded) = barrier.guarded() else { return };
        guarded.claims = claims;
        self.turn_replies_on(&mut barrier);
        match self.database {
            Some(_) => self.write_by_script(barrier),
            None => self.ask_for_database(barrier),
        }
    }

    /// Answers with an error without having asked about fences. A transaction must
    /// not go on without the write.
    pub(super) fn refuse_write(
        &mut self,
        mut barrier: Box<Barrier>,
        error: Vec<u8>,
        result: GuardedWrite,
    ) {
        self.shared.metrics.guarded(result);
        let Some(guarded) = barrier.guarded() else { return };
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, &error);
        let in_multi = self.state.multi || self.blind_multi;
        match self.reply_mode {
            ReplyMode::On if in_multi => {
                // Redis knows no such command, so EXEC will fail.
                self.ask(|out| encode::command(out, &[b"LOCK"]));
                guarded.stage = Stage::Failing(answer);
                self.barrier = Some(barrier.goes_on());
            }
            ReplyMode::On => self.answer(barrier, answer),
            ReplyMode::Off | ReplyMode::Skip => {
                guarded.silent = true;
                if self.reply_mode == ReplyMode::Skip || in_multi {
                    self.to_upstream.push(b"LOCK\r\n");
                }
                if self.reply_mode == ReplyMode::Skip {
                    self.reply_mode = ReplyMode::On;
                }
                self.answer(barrier, answer);
            }
        }
    }

    /// Notes writes that are let through whether the locks are held or not.
    pub(super) fn audit(&self, needs: &[Need]) {
        let (now, prefix) = (Instant::now(), self.config.locks.prefix.as_bytes());
        let missing =
            needs.iter().find(|need| !self.counts_as_held(&Key::new(prefix, &need.lock), now));
        match missing {
            None => self.shared.metrics.guarded(GuardedWrite::Passed),
            Some(need) => {
                self.shared.metrics.guarded(GuardedWrite::Audited);
                if let Some(guards) = &self.shared.guards {
                    guards.tell_of_audited(need);
                }
            }
        }
    }
}

/// The name of the command in these bytes.
fn first_word(bytes: &[u8]) -> Vec<u8> {
    if bytes.first() == Some(&b'*') {
        return match Walk::default().step(bytes) {
            Step::Word(range) => bytes[range].to_vec(),
            _ => Vec::new(),
        };
    }
    inline::split(bytes).and_then(|words| words.into_iter().next()).unwrap_or_default()
}

fn not_held(Need { lock, key }: &Need) -> String {
    let (lock, key) = (shown(lock), shown(key));
    format!(
        "NOTHELD '{key}' may only be written under the lock '{lock}', which this connection does not hold"
    )
}

fn fenced(claim: &Claim, seen: u64, prefix: usize) -> String {
    let lock = shown(claim.key.get(prefix..).unwrap_or_default());
    let (key, fence) = (shown(&claim.wanted_for), claim.fence);
    let what = if key.is_empty() { String::new() } else { format!("'{key}' was not written: ") };
    format!(
        "FENCED {what}the lock '{lock}' was granted again since, with fence {seen} after {fence}"
    )
}
