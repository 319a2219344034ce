//! Replies that the data node still owes, in order, and what each will tell.
//!
//! The queue has one entry for each command whose reply matters, and one counter for each run of
//! other commands. Frames that answer nothing (pushes, messages to a RESP2 subscriber, MONITOR's
//! lines) are told from replies by their shape.

use std::collections::VecDeque;

use super::{conn::State, short_queue::ShortQueue};
use crate::resp::{
    expected::Expected,
    name::{Channels, Listing, Topology},
    reply::Frame,
};

/// Most entries before exact counting is given up. A client gets there only by pipelining as many
/// state-changing commands (MULTI, SUBSCRIBE, …) without reading; at 24 bytes an entry that stays
/// under 2 MB.
const MAX_ENTRIES: usize = 65_536;
/// Most names that wait for replies.
const MAX_NAMES: usize = 64;

/// Replies owed for one or several commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// This many plain replies, of which only the number matters.
    Plain(u32),
    /// One plain reply, which settles this many sights.
    Seen(u8),
    /// The reply to a command whose effects inside EXEC could not be followed: MULTI must not queue
    /// it.
    Unqueued,
    Multi,
    Exec,
    /// EXEC of a client's transaction for which fences are watched.
    ArmedExec,
    /// The proxy's own EXEC around one write of the client's, or its script.
    Guarded,
    Watch,
    Unwatch,
    Discard,
    /// A confirmation for each of this many channels, or one error.
    Subscribe(Channels, usize),
    /// A confirmation for each of this many channels, or one error. `None`: no channels were named, so there is a
    /// confirmation for each subscription of the kind, or one if there is none.
    Unsubscribe(Channels, Option<usize>),
    Hello,
    /// CLIENT SETNAME.
    SetName,
    Reset,
    Quit,
    Monitor,
    /// SYNC or PSYNC.
    Sync,
    /// A list of commands, to which ours are added.
    Listing(Listing),
    /// A reply about the cluster, to a client that came through a front.
    Topology(Topology),
    /// The reply to a command that the proxy sent for itself.
    Ours(Expected),
}

impl Entry {
    /// Whether Redis can answer the command with this frame; checked only where the session acts on the answer.
    fn may_be_answered_by(self, frame: Frame<'_>) -> bool {
        match self {
            Entry::Multi
            | Entry::Watch
            | Entry::Unwatch
            | Entry::Discard
            | Entry::SetName
            | Entry::Reset
            | Entry::Quit
            | Entry::Monitor => matches!(frame.kind(), b'+' | b'-'),
            Entry::Exec | Entry::ArmedExec => matches!(frame.kind(), b'*' | b'_' | b'-'),
            Entry::Hello => match frame.kind() {
                b'%' | b'-' => true,
                b'*' => !is_message(frame),
                _ => frame.head.starts_with(b"+QUEUED"),
            },
            _ => true,
        }
    }
}

/// Treatment of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Passes the frame on.
    Pass,
    /// Passes the frame on: the data node has accepted a command that may have given a name.
    Named,
    /// Passes the frame on, which settles this many sights.
    Seen {
        count: u8,
        /// The data node refuses the client.
        is_refused: bool,
    },
    /// Passes the frame on: the connection is as new.
    Reset,
    /// Passes the frame and all behind it on untouched: it was not expected, or nothing behind it
    /// can be predicted.
    Lost,
}

/// The names that commands give; none: the command gives none, or one too many.
type OwedNames = VecDeque<Option<Box<[u8]>>>;

/// The replies owed on one connection.
#[derive(Debug, Default)]
pub(super) struct Owed {
    queue: ShortQueue<Entry>,
    /// What the client's transaction has queued: counted at a front, and where the proxy answers adopted commands.
    queued: Option<Box<QueuedCommands>>,
    /// The names that the commands of [`Entry::Hello`] and [`Entry::SetName`] give, in order.
    names: Option<Box<OwedNames>>,
}

/// What the client's transaction has queued.
#[derive(Debug, Default)]
struct QueuedCommands {
    count: usize,
    /// Which of them are about the cluster.
    topologies: Vec<(usize, Topology)>,
}

impl Owed {
    /// Notes a command that was forwarded. Returns `false` if there are too many to follow.
    #[must_use]
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) -> bool {
        if let (Some(Entry::Plain(run)), Entry::Plain(more)) = (self.queue.back_mut(), entry)
            && let Some(sum) = run.checked_add(more)
        {
            *run = sum;
            return true;
        }
        if self.queue.len() >= MAX_ENTRIES {
            return false;
        }
        self.queue.push_back(entry);
        true
    }

    /// Has the reply that was noted last settle this many sights more. Returns `false` if it cannot: it is no plain
    /// reply, or there are too many to follow.
    #[must_use]
    pub(super) fn mark_last(&mut self, sights: usize) -> bool {
        let Ok(sights) = u8::try_from(sights) else { return false };
        let is_full = self.queue.len() >= MAX_ENTRIES;
        match self.queue.back_mut() {
            Some(Entry::Plain(run)) if *run > 1 && !is_full => {
                *run -= 1;
                self.queue.push_back(Entry::Seen(sights));
            }
            Some(last @ Entry::Plain(1)) => *last = Entry::Seen(sights),
            // More of the same command has been looked at.
            Some(Entry::Seen(before)) if before.checked_add(sights).is_some() => *before += sights,
            _ => return false,
        }
        true
    }

    /// Notes the name that the next pushed command gives.
    pub(super) fn expect_name(&mut self, name: Option<Box<[u8]>>) {
        // No client gives itself so many names.
        let names = self.names.get_or_insert_default();
        let name = name.filter(|_| names.len() < MAX_NAMES);
        names.push_back(name);
    }

    /// Takes the name given by the command whose reply came last, if it gave one.
    pub(super) fn next_name(&mut self) -> Option<Box<[u8]>> {
        let names = self.names.as_mut()?;
        let name = names.pop_front().flatten();
        if names.is_empty() {
            self.names = None;
        }
        name
    }

    /// Counts from now on what the client's transactions queue, and notes what of it is about the
    /// cluster.
    pub(super) fn look_into_transactions(&mut self) {
        self.queued.get_or_insert_default();
    }

    /// Whether what is queued is counted.
    pub(super) fn counts_queued(&self) -> bool {
        self.queued.is_some()
    }

    /// Returns the place in EXEC's reply of what was queued last.
    pub(super) fn last_queued(&self) -> Option<usize> {
        self.queued.as_ref()?.count.checked_sub(1)
    }

    /// Returns the elements about the cluster in EXEC's reply, which comes next.
    pub(super) fn topologies(&self) -> Vec<(usize, Topology)> {
        self.queued.as_ref().map(|queued| queued.topologies.clone()).unwrap_or_default()
    }

    /// Puts `count` plain replies before everything already owed.
    pub(super) fn push_before(&mut self, count: usize) {
        if let Ok(run @ 1..) = u32::try_from(count) {
            self.queue.push_front(Entry::Plain(run));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether every reply has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether nothing is owed, nor followed.
    pub(super) fn is_as_new(&self) -> bool {
        self.queue.is_empty() && self.queued.is_none() && self.names.is_none()
    }

    /// Returns the next entry if its reply must be looked at before it passes: the proxy's own, a
    /// possible replication stream, or a reply that is changed on its way.
    pub(super) fn next_special(&self) -> Option<Entry> {
        let special = |entry: &&Entry| {
            use Entry::{ArmedExec, Exec, Guarded, Listing, Ours, Sync, Topology};
            let has_topologies =
                || self.queued.as_ref().is_some_and(|queued| !queued.topologies.is_empty());
            matches!(entry, Ours(_) | Sync | Listing(_) | Topology(_) | ArmedExec | Guarded)
                || matches!(entry, Exec) && has_topologies()
        };
        self.queue.front().filter(special).copied()
    }

    /// Forgets all replies owed and all names, and frees their memory.
    pub(super) fn clear(&mut self) {
        self.queue = ShortQueue::default();
        self.names = None;
    }

    /// Returns how many plain replies come next.
    #[inline]
    pub(super) fn plain_run(&self, state: &State) -> u32 {
        match self.queue.front() {
            // What is queued must be counted reply by reply.
            Some(Entry::Plain(run))
                if state.is_plain() && !(state.multi && self.queued.is_some()) =>
            {
                *run
            }
            _ => 0,
        }
    }

    /// Takes in `count` replies of [`Owed::plain_run`], pushes not counted.
    #[inline]
    pub(super) fn plain(&mut self, count: u32, state: &State) {
        if let Some(Entry::Plain(run)) = self.queue.front_mut() {
            *run -= count;
            if *run == 0 {
                self.pop(state);
            }
        }
    }

    /// Takes in one whole frame, and decides whether it passes.
    pub(super) fn frame(&mut self, frame: Frame<'_>, state: &mut State) -> Verdict {
        if self.confirmation(frame, state) {
            return Verdict::Pass;
        }
        if frame.is_push()
            || (state.monitor && is_monitor_line(frame.head))
            || (state.is_resp2_subscriber() && is_message(frame))
        {
            return Verdict::Pass;
        }
        let Some(front) = self.queue.front_mut() else { return Verdict::Lost };
        let queued = frame.head.starts_with(b"+QUEUED");
        let ok = frame.head.starts_with(b"+OK");
        let mut verdict = Verdict::Pass;
        if let Some(counted) = &mut self.queued {
            match front {
                // If the beginning of a transaction was not seen, its elements cannot be told apart.
                Entry::Topology(_) if queued && !state.multi => return Verdict::Lost,
                Entry::Topology(_) if queued && counted.topologies.len() >= MAX_ENTRIES => {
                    return Verdict::Lost;
                }
                Entry::Topology(kind) if queued => counted.topologies.push((counted.count, *kind)),
                // Redis takes no second MULTI, and goes on with the first.
                Entry::Multi if ok => **counted = QueuedCommands::default(),
                Entry::Exec | Entry::ArmedExec | Entry::Reset => {
                    **counted = QueuedCommands::default();
                }
                _ => {}
            }
            counted.count += usize::from(queued);
        }
        match front {
            Entry::Plain(run) if *run > 1 => {
                *run -= 1;
                return Verdict::Pass;
            }
            Entry::Plain(_) | Entry::Ours(_) => {}
            Entry::Seen(count) => {
                let is_refused = frame.kind() == b'-'
                    && (!state.known
                        || frame.head.starts_with(b"-NOAUTH")
                        || frame.head.starts_with(b"-NOPERM"));
                verdict = Verdict::Seen { count: *count, is_refused };
            }
            _ if !front.may_be_answered_by(frame) => return Verdict::Lost,
            Entry::Multi => state.multi |= ok,
            // Redis ends the transaction even if it refuses EXEC.
            Entry::Exec | Entry::ArmedExec => {
                state.watching &= !state.multi;
                state.multi = false;
            }
            Entry::Discard => {
                state.watching &= !ok;
                state.multi &= !ok;
            }
            Entry::Watch => state.watching |= ok,
            Entry::Unwatch => state.watching &= !ok,
            Entry::Reset if frame.head.starts_with(b"+RESET") => {
                *state = State::default();
                verdict = Verdict::Reset;
            }
            Entry::Hello if frame.kind() != b'-' && !queued => {
                state.resp3 = frame.kind() == b'%';
                verdict = Verdict::Named;
            }
            Entry::SetName if ok => verdict = Verdict::Named,
            Entry::Monitor if ok => state.monitor = true,
            Entry::Quit => state.quit = ok,
            // Inside EXEC's reply the frames of these commands cannot be told apart.
            Entry::Unqueued
            | Entry::Subscribe(..)
            | Entry::Unsubscribe(..)
            | Entry::Hello
            | Entry::Monitor
                if queued =>
            {
                return Verdict::Lost;
            }
            // Only an error answers the command as a whole.
            Entry::Subscribe(..) | Entry::Unsubscribe(..) if frame.kind() != b'-' => {
                return Verdict::Lost;
            }
            Entry::Hello | Entry::SetName => drop(self.next_name()),
            _ => {}
        }
        self.pop(state);
        verdict
    }

    /// Takes in a frame that confirms a subscription, or its end, for the first entry. Returns
    /// whether it does.
    fn confirmation(&mut self, frame: Frame<'_>, state: &mut State) -> bool {
        let Some(front) = self.queue.front_mut() else { return false };
        let left = match front {
            Entry::Subscribe(kind, left) if confirms(frame, "subscribe", *kind) => {
                state.set_subscriptions(*kind, frame.last_integer);
                left
            }
            Entry::Unsubscribe(kind, left) if confirms(frame, "unsubscribe", *kind) => {
                // Without channels, Redis confirms each subscription there is, or once if there is
                // none.
                let left = left.get_or_insert(state.subscriptions(*kind).max(1) as usize);
                state.set_subscriptions(*kind, frame.last_integer);
                left
            }
            _ => return false,
        };
        *left -= 1;
        if *left == 0 {
            self.pop(state);
        }
        true
    }

    /// Ends the first entry, and those behind it that Redis will not answer: after MONITOR, MONITOR
    /// and SYNC have no reply.
    fn pop(&mut self, state: &State) {
        self.queue.pop_front();
        while state.monitor && matches!(self.queue.front(), Some(Entry::Monitor | Entry::Sync)) {
            self.queue.pop_front();
        }
    }
}

fn confirms(frame: Frame<'_>, verb: &str, kind: Channels) -> bool {
    if !matches!(frame.kind(), b'*' | b'>') {
        return false;
    }
    let Some(name) = frame.first_element() else { return false };
    let letter: &[u8] = match kind {
        Channels::Plain => b"",
        Channels::Pattern => b"p",
        Channels::Shard => b"s",
    };
    name.strip_prefix(letter) == Some(verb.as_bytes())
}

fn is_message(frame: Frame<'_>) -> bool {
    frame.kind() == b'*'
        && matches!(frame.first_element(), Some(b"message" | b"pmessage" | b"smessage"))
}

/// Whether a line begins as `+1699999999.123456 [`. No command answers with such a status.
fn is_monitor_line(head: &[u8]) -> bool {
    let Some(text) = head.strip_prefix(b"+") else { return false };
    let seconds = text.iter().take_while(|b| b.is_ascii_digit()).count();
    match text.get(seconds..seconds + 9) {
        Some([b'.', micros @ .., b' ', b'[']) => {
            seconds > 0 && micros.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "owed_tests.rs"]
mod tests;
