//! Client → data node: forward runs of commands, stop at those that must wait.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::sleep,
};

use super::{
    READ, Session, Step, barrier::Barrier, gather::Guarding, guarded::Guarded, owed::Entry,
};
use crate::{
    command::{BadRequest, MAX_WORDS, operator},
    guard::Stop,
    metrics::CloseReason,
    net::Outbox,
    resp::{
        name::{Name, Own, ReplyMode},
        request::Next,
        split::{Split, split},
    },
};

/// Bytes read ahead during a barrier, so that a client's FIN behind them is seen.
pub(super) const READ_AHEAD: usize = 64 * 1024;
/// How often a client that sends more than that behind a LOCK is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bytes of a command of ours beside its key and token: lengths, options, numbers.
const WORDS_SLACK: usize = 512;
/// Forwarded in place of a dropped command whose bytes turned out to be
/// malformed, so that Redis answers with its protocol error: the beginning of a
/// command, and a length that is none.
const BEGINNING: &[u8] = b"*1\r\n";
const BAD_LENGTH: &[u8] = b"$-1\r\n";

/// How the command at the beginning of what is held goes on after its barrier.
#[derive(Debug, Clone, Copy)]
pub enum Pass {
    /// It is forwarded and answered as any other.
    Counted,
    /// It is a CLIENT REPLY that will be obeyed without an answer.
    Unanswered(ReplyMode),
}

/// A command whose bytes are dropped as they come, and that is answered then.
#[derive(Debug, Clone, Copy)]
pub enum Dropping {
    /// One of ours, too long to be one.
    TooLong {
        /// Which.
        own: Own,
        /// How many words it has, the name included.
        words: usize,
    },
    /// Any: the client must first be told that its lock is lost.
    Lost,
    /// A write that cannot be checked against the guards: too large, or no room for it.
    Unguardable {
        /// It is larger than `guards.max_command`.
        too_large: bool,
    },
}

/// What becomes of a command of ours when it begins.
enum Intercepted {
    /// It waits for its turn, or for the rest of itself.
    Kept,
    /// It is too long to be one: its bytes are dropped as they come.
    Dropping,
    /// It is about commands of Redis too, which answers.
    Redis,
}

impl Session {
    /// Sends what waits for the data node, then reads from the client as long
    /// as the data node takes it.
    pub(super) fn poll_requests(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Step {
        let mut moved = false;
        loop {
            if self.unguarded {
                // What is held was never looked at, and the connection ends.
                return Ok(moved);
            }
            if !self.to_upstream.is_empty() {
                match self.to_upstream.poll_flush(&mut self.upstream, cx) {
                    Poll::Ready(Ok(())) => moved = true,
                    Poll::Ready(Err(_)) => self.upstream_is_dead(),
                    Poll::Pending => return Ok(moved),
                }
            }
            if self.upstream_dead {
                return Ok(moved);
            }
            if self.rescan && self.barrier.is_none() {
                self.rescan = false;
                moved = true;
                let held = std::mem::take(&mut self.held);
                self.take_losses(cx)?;
                self.scan(cx, &held);
                continue;
            }
            if self.client_done {
                if !self.pass_fin(cx) {
                    return Ok(moved);
                }
                moved = true;
                continue;
            }
            let waiting = self.barrier.is_some();
            let draining = self.shared.draining.load(Ordering::Relaxed);
            if draining && self.is_at_rest() {
                return Ok(moved);
            }
            if waiting && self.held.len() >= READ_AHEAD {
                if self.flood_has_ended(cx) {
                    self.client_done = true;
                    self.client_hung_up();
                    continue;
                }
                return Ok(moved);
            }
            // Bytes held back are shown again with the new ones behind them, in
            // front of the buffer unless they are too many.
            let gathering = self.gather.is_some();
            let apart = waiting || gathering || self.held.len() > buffer.len() - READ;
            let kept = if apart { 0 } else { self.held.len() };
            if kept > 0 {
                buffer[..kept].copy_from_slice(&self.held);
            }
            let mut read = ReadBuf::new(&mut buffer[kept..kept + READ]);
            match Pin::new(&mut self.client).poll_read(cx, &mut read) {
                Poll::Pending => return Ok(moved),
                Poll::Ready(Err(_)) => return Err(CloseReason::Client),
                Poll::Ready(Ok(())) => moved = true,
            }
            let end = kept + read.filled().len();
            if end == kept {
                self.client_done = true;
                self.client_hung_up();
                continue;
            }
            self.shared.metrics.bytes_from_clients.increment((end - kept) as u64);
            // Only now: this process may have stood still since it last looked.
            self.take_losses(cx)?;
            if apart {
                self.held.extend_from_slice(&buffer[..end]);
                self.rescan = !gathering || self.is_gathered();
            } else {
                self.held.clear();
                self.scan(cx, &buffer[..end]);
            }
        }
    }

    /// Forwards the commands in `bytes` up to the first that must wait.
    fn scan(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
        let (mut from, mut pos, mut others) = (0, 0, 0);
        let lost = self.lost.is_some();
        let commands = self.shared.guards.as_ref().map(|guards| guards.catalog.table());
        let is_guarded = commands.is_some();
        let commands = commands.as_ref().and_then(|table| table.as_deref());
        // What is known of the last command, and so of one that begins as it.
        let mut glance = None;
        // Bytes from here on are kept back.
        let keep = loop {
            if self.relay {
                if self.broken {
                    from = bytes.len();
                }
                break if self.unguarded { from } else { bytes.len() };
            }
            match self.requests.next(bytes, &mut pos) {
                Next::End => {
                    if self.dropping.is_some() {
                        from = bytes.len();
                        if self.requests.between_commands() {
                            self.answer_dropped();
                        }
                    }
                    break bytes.len();
                }
                Next::Undecided => {
                    if self.answer_dropped() {
                        from = pos;
                    }
                    break pos;
                }
                Next::Broken => {
                    self.shared.metrics.protocol_errors.increment(1);
                    if self.dropping.take().is_some() {
                        // What is no length at all is named in the error.
                        let offending = bytes[pos..].iter().take(1).find(|byte| **byte != b'$');
                        self.forward(cx, BEGINNING);
                        self.forward(cx, offending.map_or(BAD_LENGTH, std::slice::from_ref));
                        self.forward(cx, b"\r\n");
                        from = bytes.len();
                    }
                    if self.reply_mode != ReplyMode::On {
                        // Redis closes once replies that were pending are out. Here
                        // they are out already, and it would forget to.
                        self.start_linger();
                    }
                    self.relay_from_here();
                    if std::mem::take(&mut self.unguarded) {
                        // Redis is to word the error, and to see nothing behind it.
                        from = self.forward_broken(cx, bytes, from, pos);
                    }
                    break bytes.len();
                }
                Next::Command { name, arguments, at, repeated } => {
                    if !repeated {
                        glance = None;
                    }
                    if self.answer_dropped() {
                        from = at;
                        break at;
                    }
                    if lost && name != Name::Blank && self.pass_next.is_none() {
                        self.drop_for_the_news(cx, &bytes[from..at]);
                        from = at;
                        continue;
                    }
                    match (self.pass_next.take(), name) {
                        (Some(Pass::Counted), _) => self.note(name, arguments),
                        (Some(Pass::Unanswered(mode)), _) => {
                            self.next_only = false;
                            self.reply_mode = mode;
                        }
                        (None, Name::Own(own)) => {
                            match self.intercept(own, arguments, &bytes[at..]) {
                                Intercepted::Kept => break at,
                                Intercepted::Dropping => {
                                    self.forward(cx, &bytes[from..at]);
                                    from = at;
                                    continue;
                                }
                                Intercepted::Redis => self.note(Name::Other, arguments),
                            }
                        }
                        // SELECT too, as `rename-command` may give its name to another.
                        (None, Name::Other | Name::Select)
                            if is_guarded
                                && !commands.is_some_and(|known| {
                                    let here = &bytes[at..];
                                    let glance = glance.get_or_insert_with(|| known.glance(here));
                                    known.is_free(*glance, here)
                                }) =>
                        {
                            match self.guard(commands, &bytes[at..]) {
                                Guarding::Pass => self.note(name, arguments),
                                Guarding::Kept => break at,
                                Guarding::Dropping(dropping) => {
                                    self.dropping = Some(dropping);
                                    self.forward(cx, &bytes[from..at]);
                                    from = at;
                                    continue;
                                }
                            }
                        }
                        (None, Name::Multi) if is_guarded && self.must_arm() => {
                            self.wait(Barrier::of(Guarded::multi()));
                            break at;
                        }
                        (None, _) if self.must_wait(name) => {
                            self.wait(Barrier::pass(name));
                            break at;
                        }
                        (None, _) => self.note(name, arguments),
                    }
                    others += 1;
                    if name == Name::Other
                        && !lost
                        && self.reply_mode == ReplyMode::On
                        && !self.relay
                    {
                        let alike = self.requests.skip_alike(bytes, &mut pos, |command| {
                            !is_guarded
                                || glance
                                    .zip(commands)
                                    .is_some_and(|(glance, known)| known.is_free(glance, command))
                        });
                        others += u64::from(alike);
                        if alike > 0 && !self.owed.push(Entry::Plain(alike)) {
                            self.relay_from_here();
                        }
                    }
                }
            }
        };
        self.forward(cx, &bytes[from.min(keep)..keep]);
        if others > 0 {
            self.shared.metrics.commands_other.increment(others);
        }
        if keep < bytes.len() {
            self.requests.restart();
            self.held.extend_from_slice(&bytes[keep..]);
        }
    }

    /// Begins to drop a command, because the client must first be told that its
    /// lock is lost. What stands before it is forwarded.
    #[cold]
    fn drop_for_the_news(&mut self, cx: &mut Context<'_>, before: &[u8]) {
        self.dropping = Some(Dropping::Lost);
        self.forward(cx, before);
    }

    /// Forwards what there is from `from` up to the end of the line at `pos`, which is
    /// none that Redis reads, and nothing from there on. Returns where that is.
    ///
    /// What Redis makes of such a line depends on how it came: a line of text that is
    /// too long is a command all the same if its end arrives soon enough.
    #[cold]
    fn forward_broken(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        from: usize,
        pos: usize,
    ) -> usize {
        self.broken = true;
        if from > pos {
            // It was dropped, and is told of already.
            return bytes.len();
        }
        let (before, rest) = bytes.split_at(pos);
        let end = memchr::memchr(b'\n', rest).map(|end| end + 1);
        let line = &rest[..end.unwrap_or(rest.len())];
        self.forward(cx, &before[from..]);
        if rest.first() == Some(&b'*') || !self.requests.between_commands() {
            self.forward(cx, line);
            if end.is_none() {
                self.forward(cx, b"\r\n");
            }
        } else if memchr::memchr(0, line).is_none() {
            // One with a zero byte is waited for in vain by Redis 7, but not by all.
            self.forward(cx, line);
        }
        bytes.len()
    }

    /// Begins a command of ours if all of it is there.
    fn intercept(&mut self, own: Own, arguments: usize, bytes: &[u8]) -> Intercepted {
        let locks = &self.config.locks;
        let limit = locks.max_key + locks.max_token + WORDS_SLACK;
        match split(bytes, MAX_WORDS, limit) {
            Split::Whole { words, .. }
                if own == Own::Command && operator::command(&words[1..]).is_none() =>
            {
                Intercepted::Redis
            }
            Split::Whole { words, length } => {
                let barrier = Barrier::own(own, &words[1..], length, locks);
                self.wait(barrier);
                Intercepted::Kept
            }
            Split::Incomplete => Intercepted::Kept,
            // More names than we have.
            Split::TooLong if own == Own::Command => Intercepted::Redis,
            Split::TooLong => {
                self.dropping = Some(Dropping::TooLong { own, words: arguments });
                Intercepted::Dropping
            }
        }
    }

    /// The last byte of a command being dropped has been seen: answers it.
    /// False: none was being dropped.
    #[inline]
    fn answer_dropped(&mut self) -> bool {
        match self.dropping.take() {
            Some(dropping) => self.answer_instead(dropping),
            None => return false,
        }
        true
    }

    #[cold]
    fn answer_instead(&mut self, dropping: Dropping) {
        self.wait(match dropping {
            Dropping::Lost => Barrier::lost(),
            Dropping::Unguardable { too_large } => {
                let stop = if too_large { Stop::TooLarge } else { Stop::NoRoom };
                Barrier::of(Guarded::write(0, stop, None))
            }
            Dropping::TooLong { own, words } => {
                let error = match own {
                    _ if words <= MAX_WORDS => BadRequest::TooLong,
                    Own::Unlock | Own::Attach | Own::Detach => BadRequest::Arity(own),
                    Own::Lock | Own::Renew => BadRequest::Syntax,
                    Own::Lockgate | Own::Command => BadRequest::Arity(own),
                };
                Barrier::refused(own, error)
            }
        });
    }

    /// Whether this command may only be sent once every earlier reply is in:
    /// CLIENT REPLY, because only then is it known whether it will be obeyed;
    /// AUTH and HELLO, because Redis 7.4 to 8 may drop the reply to a failing
    /// one behind other output.
    fn must_wait(&self, name: Name) -> bool {
        match name {
            Name::ClientReply(_) => true,
            Name::Auth | Name::Hello => !self.owed.is_empty(),
            _ => false,
        }
    }

    /// Notes what the data node will answer to a command that is forwarded.
    #[inline]
    pub(super) fn note(&mut self, name: Name, arguments: usize) {
        self.next_only = name == Name::NextOnly;
        if name == Name::Other && self.reply_mode == ReplyMode::On {
            if !self.owed.push(Entry::Plain(1)) {
                self.relay_from_here();
            }
        } else {
            self.note_special(name, arguments);
        }
    }

    fn note_special(&mut self, name: Name, arguments: usize) {
        let mut armed = false;
        if matches!(name, Name::Select | Name::Reset) {
            self.database = None;
        }
        match name {
            Name::Exec | Name::Discard | Name::Reset => {
                armed = self.armed.take().is_some();
                self.blind_multi = false;
                if std::mem::take(&mut self.auth_queued) || name == Name::Reset {
                    self.permissions.forget();
                }
            }
            Name::Auth | Name::Hello => {
                self.permissions.forget();
                self.auth_queued = true;
            }
            _ => {}
        }
        if self.reply_mode != ReplyMode::On {
            return self.note_unanswered(name);
        }
        let entry = match name {
            Name::Blank => return,
            // A second one is not answered. Where it is not yet known to be
            // the second, the tracker finds out.
            Name::Monitor | Name::Sync if self.state.monitor && self.owed.is_empty() => return,
            Name::Replconf => return self.relay_from_here(),
            Name::Multi => Entry::Multi,
            Name::Exec if armed => Entry::ArmedExec,
            Name::Exec => Entry::Exec,
            Name::Watch => Entry::Watch,
            Name::Unwatch => Entry::Unwatch,
            Name::Discard => Entry::Discard,
            Name::Subscribe(kind) if arguments > 1 => Entry::Subscribe(kind, arguments - 1),
            Name::Unsubscribe(kind) => {
                Entry::Unsubscribe(kind, (arguments > 1).then(|| arguments - 1))
            }
            Name::Hello => Entry::Hello,
            Name::Reset => Entry::Reset,
            Name::Monitor => Entry::Monitor,
            Name::Sync => Entry::Sync,
            Name::ClientReply(_) => Entry::Unqueued,
            Name::Listing(listing) => Entry::Listing(listing),
            _ => Entry::Plain(1),
        };
        if !self.owed.push(entry) {
            self.relay_from_here();
        }
    }

    /// Notes a command to which CLIENT REPLY OFF or SKIP allows no reply.
    fn note_unanswered(&mut self, name: Name) {
        let skipped = self.reply_mode == ReplyMode::Skip;
        if skipped {
            self.reply_mode = ReplyMode::On;
        }
        match name {
            Name::Multi => self.blind_multi = true,
            Name::Quit => self.start_linger(),
            // Shown even while replies are off, and turns them on.
            Name::Reset if !skipped => {
                self.reply_mode = ReplyMode::On;
                if !self.owed.push(Entry::Reset) {
                    self.relay_from_here();
                }
            }
            // Nobody will tell how these ended.
            Name::Reset
            | Name::Subscribe(_)
            | Name::Unsubscribe(_)
            | Name::Hello
            | Name::Monitor
            | Name::Sync
            | Name::Replconf => self.relay_from_here(),
            _ => {}
        }
    }

    /// Sends bytes to the data node, or drops them where it takes no more.
    pub(super) fn forward(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
        if !bytes.is_empty()
            && !self.upstream_dead
            && self.to_upstream.send(&mut self.upstream, cx, bytes).is_err()
        {
            self.upstream_is_dead();
        }
    }

    /// The data node has closed, but what it said before may still be on its way.
    fn upstream_is_dead(&mut self) {
        self.upstream_dead = true;
        self.to_upstream = Outbox::default();
    }

    /// Passes the client's FIN on, once everything before it is sent.
    fn pass_fin(&mut self, cx: &mut Context<'_>) -> bool {
        if self.barrier.is_some() || self.upstream_shut {
            return false;
        }
        if !self.held.is_empty() {
            // The beginning of a command that will never be whole.
            let held = std::mem::take(&mut self.held);
            self.forward(cx, &held);
            return true;
        }
        match Pin::new(&mut self.upstream).poll_shutdown(cx) {
            Poll::Pending => false,
            Poll::Ready(_) => {
                self.upstream_shut = true;
                true
            }
        }
    }

    /// Whether the client has hung up behind more bytes than are read ahead, so
    /// that reading does not show it. Asked now and then, and only for a LOCK.
    fn flood_has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.barrier.as_ref().is_some_and(|barrier| barrier.is_lock()) {
            return false;
        }
        loop {
            let timer = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.look = None;
            if self.client.has_hung_up() {
                return true;
            }
        }
    }

    /// The client has sent FIN: a LOCK is not wanted any more, nor is what was
    /// to run under it. Anything else may finish, within a limit.
    fn client_hung_up(&mut self) {
        match &self.barrier {
            Some(barrier) if barrier.is_lock() => {
                self.abort_barrier();
                self.held.clear();
            }
            Some(_) => self.start_linger(),
            None => {}
        }
    }
}
