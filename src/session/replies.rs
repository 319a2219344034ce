//! Data node → client: pass the replies on and follow what they tell.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, ReadBuf};

use super::{
    READ, Session, Step,
    listing::Addition,
    metrics::CloseReason,
    owed::{Entry, Verdict},
    unwrap::{Unwrap, Whose},
};
use crate::resp::reply::Next;

/// How much of the reply to a command of the proxy's own is kept: an error line.
const OWN_REPLY_LIMIT: usize = 1024;

impl Session {
    /// Sends what waits for the client, then reads from the data node as long
    /// as the client takes it. While a barrier needs the replies before it, they
    /// are read even if the client does not, up to `barrier_buffer`.
    pub(super) fn poll_replies(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Step {
        let mut moved = false;
        loop {
            if !self.to_client.is_empty() {
                match self.to_client.poll_flush(&mut self.client, cx) {
                    Poll::Ready(Ok(())) => moved = true,
                    Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
                    Poll::Pending if !self.barrier_needs_replies() => return Ok(moved),
                    Poll::Pending if self.to_client.len() >= self.config.barrier_buffer => {
                        return Err(CloseReason::BarrierBuffer);
                    }
                    Poll::Pending => {}
                }
            }
            if self.upstream_done {
                return Ok(moved);
            }
            let mut read = ReadBuf::new(&mut buffer[..READ]);
            match Pin::new(&mut self.upstream).poll_read(cx, &mut read) {
                Poll::Pending => return Ok(moved),
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {}
                // Whatever it said before it went has been read.
                Poll::Ready(_) => {
                    self.upstream_done = true;
                    moved = true;
                    if let Some(addition) = self.addition.take() {
                        self.to_client.push(addition.head());
                    }
                    continue;
                }
            }
            moved = true;
            let end = read.filled().len();
            self.shared.metrics.bytes_from_data.increment(end as u64);
            if let Err(error) = self.pass(cx, &buffer[..end]) {
                return Err(self.client_failed(&error));
            }
        }
    }

    /// Passes replies on, but for those to commands of the proxy's own.
    fn pass(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> std::io::Result<()> {
        let (mut from, mut pos) = (0, 0);
        let is_watched = self.shared.guards.is_some();
        // A list that was begun must be ended, as its length has been changed.
        while !self.relay || self.addition.is_some() {
            let run = self.owed.plain_run(&self.state);
            if run > 0 && (self.state.known || !is_watched) {
                let count = self.replies.skip_flat(bytes, &mut pos, run);
                self.owed.plain(count, &self.state);
            }
            if self.replies.between_frames()
                && pos < bytes.len()
                && let Some(special) = self.owed.next_special()
                && !self.begin_special(special, bytes[pos])
            {
                break;
            }
            let begin = pos;
            // Of an array whose elements the client gets the head comes first, by itself.
            let alone = self.unwrap.as_ref().is_some_and(|unwrap| unwrap.awaits_head());
            let line = if alone { memchr::memchr(b'\n', &bytes[pos..]) } else { None };
            let end = line.map_or(bytes.len(), |end| pos + end + 1);
            let next = self.replies.next(&bytes[..end], &mut pos);
            let whole = matches!(next, Next::Frame(_));
            let verdict = match next {
                Next::Frame(_) if self.relay => Some(Verdict::Pass),
                Next::Frame(frame) => {
                    let verdict = self.owed.frame(frame, &mut self.state);
                    if !self.state.known {
                        // RESET makes a stranger of anybody, and needs no introduction.
                        self.state.known = !matches!(frame.kind(), b'-' | b'>')
                            && !frame.head.starts_with(b"+RESET");
                    }
                    Some(verdict)
                }
                Next::End => None,
                Next::Broken => Some(Verdict::Lost),
            };
            if let Some(reply) = &mut self.own_reply {
                let room = OWN_REPLY_LIMIT.saturating_sub(reply.len());
                reply.extend_from_slice(&bytes[begin..pos.min(begin + room)]);
                self.to_client.push(&bytes[from..begin]);
                from = pos;
            }
            if self.unwrap.is_some() {
                from = self.unwrap_reply(bytes, from, begin..pos, verdict.is_some());
            }
            if self.addition.is_some() {
                from = self.add_to_listing(bytes, from, begin..pos, verdict.is_some(), whole);
            }
            match verdict {
                None if pos < bytes.len() => {}
                None => break,
                Some(Verdict::Lost) => self.relay_from_here(),
                // As if the connection had ended and another begun.
                Some(Verdict::Reset) => self.tokens.give_back(),
                Some(Verdict::Pass) => {
                    if let Some(reply) = self.own_reply.take() {
                        self.probe_answered(&reply);
                    }
                }
            }
        }
        self.to_client.send(&mut self.client, cx, &bytes[from..])
    }

    /// Looks at the first byte of a reply that is more than a reply.
    /// False: from here on everything only passes.
    fn begin_special(&mut self, special: Entry, first: u8) -> bool {
        match special {
            // An error is an ordinary reply; anything else begins a replication
            // stream, which is not RESP.
            Entry::Sync if first != b'-' => {
                self.relay_from_here();
                return false;
            }
            Entry::Ours if first != b'>' => self.own_reply = Some(Vec::new()),
            Entry::Guarded if first != b'>' => {
                if let Some(barrier) = &mut self.barrier {
                    let (whose, silent) = (barrier.whose(), barrier.is_silent());
                    self.unwrap = Some(Box::new(Unwrap::new(whose, silent)));
                }
            }
            Entry::ArmedExec if first != b'>' && !self.state.watching => {
                self.unwrap = Some(Box::new(Unwrap::new(Whose::Clients, false)));
            }
            // A RESP2 subscriber may not ask for it, so that is a message.
            Entry::Listing(listing) if !self.state.is_resp2_subscriber() => {
                self.addition = Addition::begin(listing, first);
            }
            _ => {}
        }
        true
    }
}
