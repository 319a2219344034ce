//! A command of ours whose turn has come: asks whether the client has permission, and then carries the command out.

use std::{borrow::Cow, sync::atomic::Ordering};

use super::{
    super::{desk::Desk, notes::Noted, session_metrics::Outcome},
    Answering, Job, Ours, Pass, Progress, Waits, When, acting, adopted, adopted_multi, attaching,
    authorize::{self, Permission},
    lock, renewing, unlock,
};
use crate::{
    adopt::task::AdoptTask,
    clock::Instant,
    command::{
        self, BadRequest, Request,
        act::OperatorAct,
        operator::{self, Inquiry},
    },
    config::{LocksConfig, NoQuorumPolicy},
    guard::fences,
    key::{Key, Token},
    resp::{
        encode,
        expected::Expected,
        name::{Name, Own, ReplyMode},
    },
};

/// A command of ours, parsed.
pub(in crate::session) struct OwnCommand {
    own: Own,
    /// The request, or the error that is told without asking for permission.
    asked: Result<OwnRequest, BadRequest>,
    /// The token that a malformed LOCK seems to name.
    named: Option<Token>,
    /// Number of unsent bytes that are its own.
    length: usize,
}

/// The request of a command of ours. A wrong option is told only to a client that may make the request.
enum OwnRequest {
    /// A request about one lock.
    Lock { key: Key, request: Result<Request, BadRequest> },
    /// LOCKGATE, or COMMAND about commands of ours.
    Inquiry(Result<Inquiry, BadRequest>),
    /// A LOCKGATE that makes the proxy do something.
    Act(Result<OperatorAct, BadRequest>),
    /// A lock idiom on an adopted key.
    Adopted(Box<AdoptTask>),
}

impl OwnCommand {
    /// Makes a command of ours of the words behind its name. `length`: its bytes.
    pub(in crate::session) fn new(
        own: Own,
        words: &[Cow<'_, [u8]>],
        length: usize,
        locks: &LocksConfig,
    ) -> OwnCommand {
        let mut named = None;
        let asked = command::check_arity(own, words.len() + 1).map(|()| match own {
            Own::Lockgate => match command::act::read(words) {
                Some(act) => OwnRequest::Act(act),
                None => OwnRequest::Inquiry(operator::lockgate(words)),
            },
            // A COMMAND that also names commands of Redis has been forwarded.
            Own::Command => OwnRequest::Inquiry(operator::command(words).ok_or(BadRequest::Syntax)),
            Own::Lock | Own::Unlock | Own::Renew | Own::Attach | Own::Detach => {
                let key = command::full_key(&words[0], locks);
                let request = command::parse(own, &key, words, locks);
                named = request.is_err().then(|| command::named_token(words)).flatten();
                OwnRequest::Lock { key, request }
            }
        });
        OwnCommand { own, asked, named, length }
    }

    /// Makes a command of ours of an idiom on an adopted key. `length`: its bytes; 0 if they were dropped.
    pub(in crate::session) fn adopted(task: Box<AdoptTask>, length: usize) -> OwnCommand {
        let (own, asked) = (adopted::verb(&task), Ok(OwnRequest::Adopted(task)));
        OwnCommand { own, asked, named: None, length }
    }

    /// Makes a command of ours whose bytes were dropped.
    pub(in crate::session) fn dropped(own: Own, error: BadRequest) -> OwnCommand {
        OwnCommand { own, asked: Err(error), named: None, length: 0 }
    }

    fn is_adopted(&self) -> bool {
        self.no_quorum().is_some()
    }

    /// Returns what an adopted command's rule says for too few lock nodes.
    fn no_quorum(&self) -> Option<NoQuorumPolicy> {
        match &self.asked {
            Ok(OwnRequest::Adopted(task)) => Some(task.options.no_quorum),
            _ => None,
        }
    }

    /// Remembers the connection's last LOCK if it was refused, and notes that this one begins.
    pub(in crate::session) fn note_attempt(&self, now: Instant, desk: &mut Desk) {
        desk.tokens.settle_attempt();
        if self.own == Own::Lock
            && let Ok(OwnRequest::Lock { key, request }) = &self.asked
        {
            let token = match request {
                Ok(Request::Lock { token, .. }) => token.clone(),
                Ok(_) => None,
                Err(_) => self.named.clone(),
            };
            desk.tokens.begin_attempt(key.clone(), token, now);
        }
    }

    /// Returns the lock that an UNLOCK or RENEW is for, and the token if it names one.
    fn gives_back(&self) -> Option<(&Key, Option<&[u8]>)> {
        match &self.asked {
            Ok(OwnRequest::Lock {
                key,
                request: Ok(Request::Unlock { token } | Request::Renew { token, .. }),
            }) => Some((key, token.as_deref())),
            _ => None,
        }
    }

    /// Forwards a command of ours, so that the data node refuses it in its place and in its own words, and marks a
    /// transaction as failed.
    fn refuse_by_forwarding(self, desk: &mut Desk) -> Progress {
        if self.length > 0 {
            return Progress::Pass(Pass::Counted);
        }
        // The bytes were dropped; the name alone will do.
        let mut bytes = Vec::new();
        encode::command(&mut bytes, &[command::name(self.own).as_bytes()]);
        desk.to_data.push(&bytes);
        match desk.note(Name::Own(self.own), 1) {
            Noted::Followed => Progress::Answer(Answering::new(Vec::new(), 0)),
            Noted::Lost | Noted::Quit => Progress::Relay,
        }
    }
}

impl Waits for OwnCommand {
    fn is_unsent(&self) -> bool {
        self.length > 0
    }

    fn tells_of_loss(&self, desk: &Desk) -> bool {
        self.gives_back().is_some_and(|(key, token)| desk.losing.was_lost(key, token))
    }

    fn own(&self) -> Option<(Own, usize)> {
        (!self.is_adopted()).then_some((self.own, self.length))
    }

    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress {
        if when.waited {
            let waited = when.since.elapsed().as_secs_f64();
            desk.shared.metrics.barrier_wait_seconds.record(waited);
        }
        // The clock is read once for all that begins now.
        let now = when.now();
        self.note_attempt(now, desk);
        let silent = desk.conn.reply_mode != ReplyMode::On;
        let is_adopted = self.is_adopted();
        let ours = Ours {
            own: self.own,
            length: self.length,
            silent,
            adopted: self.no_quorum(),
            since: when.since,
        };
        if desk.conn.refuses_ours() {
            return match self.asked {
                Ok(OwnRequest::Adopted(mut task)) => {
                    desk.count_task(&mut task);
                    adopted_multi::inside(ours, *task, desk)
                }
                _ => self.refuse_by_forwarding(desk),
            };
        }
        if desk.conn.reply_mode == ReplyMode::Skip {
            // The command uses up the SKIP flag, as any other would.
            let bytes = &desk.unsent[..self.length];
            let as_it_came = !bytes.is_empty() && !is_adopted;
            desk.to_data.push(if as_it_came { bytes } else { b"LOCK\r\n" });
            desk.conn.reply_mode = ReplyMode::On;
        }
        let asked = match self.asked {
            Ok(asked) => asked,
            Err(error) => return ours.refuse(&error.to_string(), Outcome::BadRequest, desk),
        };
        // A flag set for this command must be used up, and a silent command must learn that earlier commands are
        // done.
        let ask = silent || std::mem::take(&mut desk.conn.next_only);
        let is_silent = desk.shared.data_is_silent.load(Ordering::Relaxed);
        let remembered = match &asked {
            OwnRequest::Lock { key, .. } => desk.conn.permissions.remembered(key, now, is_silent),
            OwnRequest::Inquiry(_) | OwnRequest::Act(_) => false,
            OwnRequest::Adopted(task) => {
                desk.conn.permissions.remembered(&adopted::permission(task), now, is_silent)
            }
        };
        let fence = asked.fence(desk);
        if !ask && remembered && fence.is_none() {
            return asked.carry_out(ours, now, desk);
        }
        desk.speak_up();
        asked.probe(ours.own, desk);
        let slot = fence.map(|fence| {
            desk.ask(Expected::Set, |out| authorize::probe(out, &fence));
            SlotAnswer::Asked
        });
        Progress::Wait(Box::new(Probing { ours, asked, slot }))
    }
}

/// A request for which the data node was asked whether the client has permission.
struct Probing {
    ours: Ours,
    asked: OwnRequest,
    /// Whether the node has the slot of the lock's fence; `None` if that does not matter. If it is asked, its answer is
    /// the last reply, behind that to the probe.
    slot: Option<SlotAnswer>,
}

/// What is known of the slot of a fence.
enum SlotAnswer {
    /// The node was asked whether it has the slot.
    Asked,
    /// The reply to the probe; the one about the slot is still missing.
    Permitted(Vec<u8>),
}

impl Job for Probing {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        if !desk.owed.is_empty() {
            if desk.owed.len() == 1 && self.slot.is_some() {
                self.slot = Some(SlotAnswer::Permitted(reply.to_vec()));
            }
            return Progress::Wait(self);
        }
        desk.hush_again();
        let (permitted, slot) = match self.slot.take() {
            Some(SlotAnswer::Permitted(permitted)) => (permitted, Some(reply)),
            _ => (reply.to_vec(), None),
        };
        let question = match &self.asked {
            OwnRequest::Act(_) => authorize::Probe::Act,
            OwnRequest::Inquiry(_) if self.ours.own == Own::Command => authorize::Probe::Commands,
            OwnRequest::Inquiry(_) => authorize::Probe::Operator,
            OwnRequest::Adopted(task) => authorize::Probe::Adopted(adopted::permits(task)),
            OwnRequest::Lock { .. } => authorize::Probe::Lock,
        };
        match authorize::read(question, &permitted) {
            Permission::Refused(error) => self.ours.refuse(&error, Outcome::Denied, desk),
            Permission::Granted => {
                desk.conn.state.known = true;
                if let Some(error) = slot.and_then(fences::read_elsewhere) {
                    return self.ours.refuse(&error, Outcome::Elsewhere, desk);
                }
                if let Some(error) = permitted.strip_prefix(b"-") {
                    desk.shared.metrics.refusals.told(error);
                }
                let now = Instant::now();
                match &self.asked {
                    OwnRequest::Lock { key, .. } => desk.conn.permissions.remember(key, now),
                    OwnRequest::Adopted(task) => {
                        desk.conn.permissions.remember(&adopted::permission(task), now);
                    }
                    OwnRequest::Inquiry(_) | OwnRequest::Act(_) => {}
                }
                self.asked.carry_out(self.ours, now, desk)
            }
        }
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl OwnRequest {
    /// Returns the key of the lock's fence, if the client's node must be known to have that key's slot before the
    /// lock is taken.
    fn fence(&self, desk: &Desk) -> Option<Vec<u8>> {
        let OwnRequest::Lock { key, request } = self else { return None };
        let is_taken = matches!(request, Ok(Request::Lock { .. } | Request::Attach { .. }));
        let is_placed = is_taken && desk.has_slots() && desk.is_guard_lock(key);
        is_placed.then(|| desk.fence_place().fence_key(key))
    }

    /// Asks the data node whether the client may make the request.
    fn probe(&self, own: Own, desk: &mut Desk) {
        match self {
            OwnRequest::Lock { key, .. } => {
                let probed = desk.shared.set_key(key);
                desk.ask(Expected::Set, |out| authorize::probe(out, &probed));
            }
            OwnRequest::Inquiry(_) if own == Own::Command => {
                desk.ask(Expected::Number, |out| encode::command(out, &[b"COMMAND", b"COUNT"]));
            }
            OwnRequest::Inquiry(_) => desk.ask(Expected::Text, authorize::probe_operator),
            OwnRequest::Act(_) => desk.ask(Expected::Error, authorize::probe_act),
            OwnRequest::Adopted(task) => adopted::probe(task, desk),
        }
    }

    /// Carries out the request of a client that may make it: asks the lock nodes, or answers the
    /// inquiry.
    fn carry_out(self, ours: Ours, now: Instant, desk: &mut Desk) -> Progress {
        let begun = match self {
            OwnRequest::Inquiry(inquiry) => inquiry.map(|inquiry| desk.tell(ours, &inquiry)),
            OwnRequest::Act(act) => act.map(|act| acting::begin(ours, act, desk)),
            OwnRequest::Adopted(task) => {
                return adopted::begin(Ours { since: now, ..ours }, *task, desk);
            }
            OwnRequest::Lock { key, request } => request.and_then(|request| {
                // The recorded time of a request leaves out the wait before it.
                let ours = Ours { since: now, ..ours };
                match request {
                    Request::Lock { token, ttl, wait } => {
                        lock::begin(ours, key, token, (ttl, wait), desk)
                    }
                    Request::Unlock { token } => unlock::begin(ours, key, token, desk),
                    Request::Renew { token, ttl } => renewing::begin(ours, key, token, ttl, desk),
                    Request::Attach { token } => attaching::begin(ours, key, token, desk),
                    Request::Detach => Ok(attaching::detach(ours, &key, desk)),
                }
            }),
        };
        begun.unwrap_or_else(|error| ours.refuse(&error.to_string(), Outcome::BadRequest, desk))
    }
}
