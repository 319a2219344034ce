//! A command of ours whose turn has come: asks whether the client has permission, and then carries the command out.

use std::{borrow::Cow, slice, sync::atomic::Ordering};

use super::{
    super::{desk::Desk, notes::Noted, rare::Rare, session_metrics::Outcome},
    Answering, Job, Ours, Pass, Progress, Waits, When, acting, adopted, adopted_multi, attaching,
    authorize::{self, Permission, Permissions},
    lock, lock_all, lock_shared, permit, renewing, unexpected, unlock, unlock_all,
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
    lock::permit as lock_permit,
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
    /// The token that a malformed LOCK or MLOCK seems to name.
    named: Option<Token>,
    /// Number of unsent bytes that are its own.
    length: usize,
}

/// The request of a command of ours. A wrong option is told only to a client that may make the request.
enum OwnRequest {
    /// A request about one lock.
    Lock { key: Key, request: Result<Request, BadRequest> },
    /// A malformed request for a permit of a family.
    BadPermit { first: Key, error: BadRequest },
    /// A request about several locks.
    Locks { keys: Vec<Key>, request: Result<Request, BadRequest> },
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
        let asked = command::check_arity(own, words.len() + 1).and_then(|()| {
            Ok(match own {
                Own::Lockgate => match command::act::read(words) {
                    Some(act) => OwnRequest::Act(act),
                    None => OwnRequest::Inquiry(operator::lockgate(words)),
                },
                // A COMMAND that also names commands of Redis has been forwarded.
                Own::Command => {
                    OwnRequest::Inquiry(operator::command(words).unwrap_or(Err(BadRequest::Syntax)))
                }
                Own::Lock | Own::Unlock | Own::Renew | Own::Attach | Own::Detach => {
                    let key = command::full_key(&words[0], locks);
                    let request = command::parse(own, &key, words, locks);
                    match request {
                        Err(error) if command::wants_permit(own, words) => {
                            OwnRequest::BadPermit { first: lock_permit(&key, 0), error }
                        }
                        request => {
                            let wrong = request.is_err();
                            named = wrong.then(|| command::named_token(&words[1..])).flatten();
                            OwnRequest::Lock { key, request }
                        }
                    }
                }
                Own::Mlock | Own::Munlock => {
                    let (keys, rest) = command::divide(words)?;
                    let full_keys: Vec<Key> =
                        keys.iter().map(|key| command::full_key(key, locks)).collect();
                    let request = command::parse_many(own, (&full_keys, keys), rest, locks);
                    named = request.is_err().then(|| command::named_token(rest)).flatten();
                    OwnRequest::Locks { keys: full_keys, request }
                }
            })
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

    /// Remembers the connection's last LOCK or MLOCK if it was refused, and notes that this one begins.
    pub(in crate::session) fn note_attempt(&self, now: Instant, desk: &mut Desk) {
        desk.tokens.shares = desk.config.locks.shared;
        desk.tokens.settle_attempt();
        if !self.own.takes_locks() {
            return;
        }
        match &self.asked {
            // Whoever names a permit was told of it by a grant, so no UNLOCK stands behind a refusal.
            Ok(OwnRequest::Lock { request: Ok(Request::Permit { .. }), .. }) => {
                desk.tokens.begin_attempts(&[], None, now);
            }
            Ok(OwnRequest::Lock { key, request }) => {
                let token = self.token_of(request).cloned();
                desk.tokens.begin_attempt(key.clone(), token, now);
            }
            Ok(OwnRequest::Locks { keys, request }) => {
                desk.tokens.begin_attempts(keys, self.token_of(request), now);
            }
            _ => {}
        }
    }

    /// Returns the token that this request for locks names.
    fn token_of<'s>(&'s self, request: &'s Result<Request, BadRequest>) -> Option<&'s Token> {
        match request {
            Ok(
                Request::Lock { token, .. }
                | Request::Shared { token, .. }
                | Request::Permit { token, .. },
            ) => token.as_ref(),
            Ok(_) => None,
            Err(_) => self.named.as_ref(),
        }
    }

    /// Returns the locks that an UNLOCK, MUNLOCK or RENEW is for, and the token if it names one.
    fn gives_back(&self) -> Option<(&[Key], Option<&[u8]>)> {
        let (keys, request) = match &self.asked {
            Ok(OwnRequest::Lock { key, request }) => (slice::from_ref(key), request),
            Ok(OwnRequest::Locks { keys, request }) => (&keys[..], request),
            _ => return None,
        };
        match request {
            Ok(Request::Unlock { token } | Request::Renew { token, .. }) => {
                Some((keys, token.as_deref()))
            }
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
        self.gives_back()
            .is_some_and(|(keys, token)| keys.iter().any(|key| desk.was_lost(key, token)))
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
        let remembered = asked.has_permission(&desk.conn.permissions, now, is_silent);
        let fence = asked.fence(desk);
        if !ask && remembered && fence.is_none() {
            return asked.carry_out(ours, now, desk);
        }
        desk.speak_up();
        asked.probe(ours.own, desk);
        if let Some(fence) = &fence {
            desk.ask(Expected::Set, |out| authorize::probe(out, fence));
        }
        let asks_slot = fence.is_some();
        Progress::Wait(Box::new(Probing { ours, asked, asks_slot, refused: None }))
    }
}

/// A request for which the data node was asked whether the client has permission.
struct Probing {
    ours: Ours,
    asked: OwnRequest,
    /// Whether the node was also asked whether it has the slot of the locks' fences. Its answer is the last reply.
    asks_slot: bool,
    /// The error of the first probe that was refused.
    refused: Option<String>,
}

impl Probing {
    /// Takes in the reply to a probe.
    fn probed(&mut self, reply: &[u8], desk: &mut Desk) {
        let question = match &self.asked {
            OwnRequest::Act(_) => authorize::Probe::Act,
            OwnRequest::Inquiry(_) if self.ours.own == Own::Command => authorize::Probe::Commands,
            OwnRequest::Inquiry(_) => authorize::Probe::Operator,
            OwnRequest::Adopted(task) => authorize::Probe::Adopted(adopted::permits(task)),
            OwnRequest::Lock { .. } | OwnRequest::BadPermit { .. } | OwnRequest::Locks { .. } => {
                authorize::Probe::Lock
            }
        };
        match authorize::read(question, reply) {
            Permission::Refused(error) => drop(self.refused.get_or_insert(error)),
            Permission::Granted => {
                desk.conn.state.known = true;
                if let Some(error) = reply.strip_prefix(b"-") {
                    desk.shared.metrics.refusals.told(error);
                }
            }
        }
    }
}

impl Job for Probing {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        let missing = desk.owed.len();
        let elsewhere = match self.asks_slot && missing == 0 {
            true => fences::read_elsewhere(reply),
            false => {
                // The reply to turning replies on comes before those to the probes.
                if missing - usize::from(self.asks_slot) < self.asked.probes() {
                    self.probed(reply, desk);
                }
                None
            }
        };
        if missing > 0 {
            return Progress::Wait(self);
        }
        desk.hush_again();
        if let Some(error) = &self.refused {
            return self.ours.refuse(error, Outcome::Denied, desk);
        }
        if let Some(error) = elsewhere {
            return self.ours.refuse(&error, Outcome::Elsewhere, desk);
        }
        let now = Instant::now();
        let until = now + desk.config.locks.authorize_cache;
        self.asked.note_permission(&mut desk.conn.permissions, until);
        self.asked.carry_out(self.ours, now, desk)
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl OwnRequest {
    /// Returns the family of which the request is for a permit, and the number of its permits.
    fn family(&self) -> Option<(&Key, usize)> {
        match self {
            OwnRequest::Lock { key, request: Ok(Request::Permit { n, .. }) } => Some((key, *n)),
            _ => None,
        }
    }

    /// Returns the locks of which the request is about one or all.
    fn locks(&self) -> Vec<Key> {
        match (self, self.family()) {
            (_, Some((family, n))) => (0..n).map(|at| lock_permit(family, at)).collect(),
            (OwnRequest::Lock { key, .. } | OwnRequest::BadPermit { first: key, .. }, _) => {
                vec![key.clone()]
            }
            (OwnRequest::Locks { keys, .. }, _) => keys.clone(),
            _ => Vec::new(),
        }
    }

    /// Whether the client may make the request, as far as is remembered.
    fn has_permission(&self, known: &Permissions, now: Instant, is_silent: bool) -> bool {
        match (self, self.family()) {
            (_, Some((family, n))) => known.remembered_family(family, n, now, is_silent),
            (OwnRequest::Lock { key, .. } | OwnRequest::BadPermit { first: key, .. }, _) => {
                known.remembered(key, now, is_silent)
            }
            (OwnRequest::Locks { keys, .. }, _) => {
                keys.iter().all(|key| known.remembered(key, now, is_silent))
            }
            (OwnRequest::Inquiry(_) | OwnRequest::Act(_), _) => false,
            (OwnRequest::Adopted(task), _) => {
                known.remembered(&adopted::permission(task), now, is_silent)
            }
        }
    }

    /// Remembers until then that the client may make the request.
    fn note_permission(&self, known: &mut Rare<Permissions>, until: Instant) {
        match (self, self.family()) {
            (_, Some((family, n))) => known.remember_family(family, n, until),
            (OwnRequest::Lock { key, .. } | OwnRequest::BadPermit { first: key, .. }, _) => {
                known.remember(key, until);
            }
            (OwnRequest::Locks { keys, .. }, _) => {
                keys.iter().for_each(|key| known.remember(key, until));
            }
            (OwnRequest::Adopted(task), _) => known.remember(&adopted::permission(task), until),
            (OwnRequest::Inquiry(_) | OwnRequest::Act(_), _) => {}
        }
    }

    /// Returns the key of the lock's fence, if the client's node must be known to have that key's slot before the
    /// lock is taken. The fences of several locks are in one slot.
    fn fence(&self, desk: &Desk) -> Option<Vec<u8>> {
        let (OwnRequest::Lock { request, .. } | OwnRequest::Locks { request, .. }) = self else {
            return None;
        };
        let is_taken = matches!(
            request,
            Ok(Request::Lock { .. } | Request::Permit { .. } | Request::Attach { .. })
        );
        if !is_taken || !desk.has_slots() {
            return None;
        }
        let key = self.locks().into_iter().find(|key| desk.is_guard_lock(key))?;
        Some(desk.fence_place().fence_key(&key))
    }

    /// Returns how many probes [`OwnRequest::probe`] sends.
    fn probes(&self) -> usize {
        match (self, self.family()) {
            (_, Some((_, n))) => n,
            (OwnRequest::Locks { keys, .. }, _) => keys.len(),
            _ => 1,
        }
    }

    /// Asks the data node whether the client may make the request.
    fn probe(&self, own: Own, desk: &mut Desk) {
        match self {
            OwnRequest::Lock { .. } | OwnRequest::BadPermit { .. } | OwnRequest::Locks { .. } => {
                self.locks().iter().for_each(|key| probe_key(key, desk));
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
        let of_several = matches!(self, OwnRequest::Locks { .. }) || self.family().is_some();
        let in_several_slots = of_several && desk.is_of_cluster() && {
            // Clients route a family's permits by its own name.
            let family = self.family().map(|(family, _)| family.clone());
            let keys: Vec<Key> = family.into_iter().chain(self.locks()).collect();
            desk.are_in_several_slots(&keys)
        };
        let cross_slot = || in_several_slots.then_some(BadRequest::CrossSlot).map_or(Ok(()), Err);
        let begun = match self {
            OwnRequest::Inquiry(inquiry) => inquiry.map(|inquiry| desk.tell(ours, &inquiry)),
            OwnRequest::Act(act) => act.map(|act| acting::begin(ours, act, desk)),
            OwnRequest::Adopted(task) => {
                return adopted::begin(Ours { since: now, ..ours }, *task, desk);
            }
            OwnRequest::BadPermit { error, .. } => Err(error),
            OwnRequest::Lock { key, request } => request.and_then(|request| {
                cross_slot()?;
                // The recorded time of a request leaves out the wait before it.
                let ours = Ours { since: now, ..ours };
                match request {
                    Request::Lock { token, ttl, wait } => {
                        lock::begin(ours, key, token, (ttl, wait), desk)
                    }
                    Request::Shared { token, ttl, wait } => {
                        lock_shared::begin(ours, key, token, (ttl, wait), desk)
                    }
                    Request::Permit { n, token, ttl, wait } => {
                        permit::begin(ours, (key, n), token, (ttl, wait), desk)
                    }
                    Request::Unlock { token } => unlock::begin(ours, key, token, desk),
                    Request::Renew { token, ttl } => renewing::begin(ours, key, token, ttl, desk),
                    Request::Attach { token } => attaching::begin(ours, key, token, desk),
                    Request::Detach => Ok(attaching::detach(ours, &key, desk)),
                }
            }),
            OwnRequest::Locks { keys, request } => request.and_then(|request| {
                cross_slot()?;
                let ours = Ours { since: now, ..ours };
                match request {
                    Request::Lock { token, ttl, wait } => {
                        lock_all::begin(ours, keys, token, (ttl, wait), desk)
                    }
                    Request::Unlock { token } => unlock_all::begin(ours, &keys, token, desk),
                    Request::Permit { .. }
                    | Request::Shared { .. }
                    | Request::Renew { .. }
                    | Request::Attach { .. }
                    | Request::Detach => Ok(unexpected()),
                }
            }),
        };
        begun.unwrap_or_else(|error| ours.refuse(&error.to_string(), Outcome::BadRequest, desk))
    }
}

/// Asks the data node whether the client may lock this key.
fn probe_key(key: &Key, desk: &mut Desk) {
    let probed = desk.shared.set_key(key);
    desk.ask(Expected::Set, |out| authorize::probe(out, &probed));
}
