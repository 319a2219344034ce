//! Client → data node: forward runs of commands, stop at those that must wait.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncWrite, ReadBuf},
    time::sleep,
};

use super::{
    READ, Session, Step, ahead::Read, barrier::Barrier, gather::Guarding, guarded::Guarded,
    intercept::Intercepted, owed::Entry,
};
use crate::{
    net::Outbox,
    resp::{
        name::{Name, ReplyMode},
        request::Next,
    },
};

/// Bytes read ahead during a barrier, so that a client's FIN behind them is seen.
pub(super) const READ_AHEAD: usize = 64 * 1024;
/// How often a client that sends more than that behind a LOCK is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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
            if self.gather.is_some() {
                self.look_after_gather();
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
                if self.barrier.as_ref().is_some_and(|barrier| barrier.waits_in_line()) {
                    match self.read_ahead(cx, buffer)? {
                        Read::Some => {
                            moved = true;
                            continue;
                        }
                        Read::Nothing => return Ok(moved),
                        Read::NoRoom => {}
                        Read::End => {
                            (self.client_done, self.hung_up) = (true, true);
                            self.client_hung_up();
                            continue;
                        }
                    }
                }
                if self.flood_has_ended(cx) {
                    if let Some(error) = self.client.take_error() {
                        return Err(self.client_failed(&error));
                    }
                    (self.client_done, self.hung_up) = (true, true);
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
            match self.poll_read_client(cx, &mut read) {
                Poll::Pending => {
                    self.note_all_read();
                    return Ok(moved);
                }
                Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
                Poll::Ready(Ok(())) => moved = true,
            }
            let end = kept + read.filled().len();
            self.read += (end - kept) as u64;
            if end == kept {
                (self.client_done, self.hung_up) = (true, true);
                self.client_hung_up();
                continue;
            }
            self.shared.metrics.bytes_from_clients.increment((end - kept) as u64);
            // Only now: this process may have stood still since it last looked.
            self.take_losses(cx)?;
            if apart {
                self.held.extend_from_slice(&buffer[..end]);
                self.rescan = !gathering || self.is_gathered(cx);
            } else {
                self.held.clear();
                self.scan(cx, &buffer[..end]);
            }
        }
    }

    /// Forwards the commands in `bytes` up to the first that must wait.
    fn scan(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
        let (mut from, mut pos, mut others) = (0, 0, 0);
        let mut lost = self.news.is_some();
        // Where `bytes` begin in all that the client has sent.
        let begin = self.read - bytes.len() as u64;
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
                    if lost && self.drop_too(name, begin + at as u64) {
                        continue;
                    }
                    if self.answer_dropped() {
                        from = at;
                        break at;
                    }
                    if lost && name != Name::Blank && self.pass_next.is_none() {
                        lost = self.is_refused_at(begin + at as u64);
                        let goes_on = match name {
                            Name::Own(own) => self.is_about_lost(own, &bytes[at..]),
                            _ => false,
                        };
                        if lost && !goes_on {
                            self.drop_for_the_news(cx, name, &bytes[from..at]);
                            from = at;
                            continue;
                        }
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
                            match self.guard(cx, commands, &bytes[at..]) {
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
                self.ahead = None;
            }
            Some(_) => self.start_linger(),
            None => {}
        }
    }
}
