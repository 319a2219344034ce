//! The end of a connection whose client reads no replies while it waits for this proxy to read its commands.
//!
//! The client is told why. One that writes everything before it reads can see that only once everything is written,
//! so its bytes are read and dropped.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::AsyncWrite,
    time::{Instant, sleep},
};
use tracing::warn;

use super::{
    core::Tracking,
    pump::{Session, with_buffer},
};
use crate::{
    log_text::FewLines,
    resp::{encode, name::ReplyMode},
};

/// How long such a client may still move nothing, and how long it may take in all.
const QUIET: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Answer in place of the first reply that was not kept.
const UNREAD: &str = "ERR closed: this client has taken none of its replies for 5s, and no more of them are held \
     (barrier_buffer); read replies while you send commands";

/// Bounds the log lines, of this process and all its clients together.
static CLOSED: FewLines = FewLines::new();
static GIVEN_UP: FewLines = FewLines::new();

impl Session {
    /// Logs that the client has read too slowly for those behind it on a shared connection.
    #[cold]
    pub(super) fn note_slow_reader(&self) {
        if let Some(left_out) = GIVEN_UP.next(std::time::Instant::now()) {
            let card = &self.core.desk.card;
            warn!(
                address = card.address(),
                name = &*card.name(),
                left_out,
                "a client is closed: it has taken a large reply too slowly, while others behind it on a shared \
                 connection waited for theirs (share)"
            );
        }
    }

    /// Tells the client that it is closed, and lets it read what is held for it.
    pub(super) async fn part(&mut self) {
        if let Some(left_out) = CLOSED.next(std::time::Instant::now()) {
            let (card, held) = (&self.core.desk.card, self.core.to_client.len());
            warn!(
                address = card.address(),
                name = &*card.name(),
                held,
                left_out,
                "a client is closed: it has taken none of its replies for 5s, while a command of its \
                 own waited for them (barrier_buffer)"
            );
        }
        self.tell_of_unread();
        let abort = self.core.desk.shared.abort.clone();
        let (mut abort, mut limit) = (pin!(abort.cancelled()), pin!(sleep(LONGEST)));
        let mut quiet = pin!(sleep(QUIET));
        poll_fn(|cx| {
            if abort.as_mut().poll(cx).is_ready() || limit.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            match self.move_last_bytes(cx) {
                None => return Poll::Ready(()),
                Some(true) => quiet.as_mut().reset(Instant::now() + QUIET),
                Some(false) => {}
            }
            quiet.as_mut().poll(cx)
        })
        .await;
    }

    /// Puts the error behind the last whole reply, unless some of the reply behind that was sent already.
    fn tell_of_unread(&mut self) {
        let core = &mut self.core;
        let is_followed = core.tracking == Tracking::Matched
            && core.filter.is_none()
            && core.desk.conn.reply_mode == ReplyMode::On;
        if is_followed && core.to_client.take_back(core.replies.begun()) {
            let mut error = Vec::new();
            encode::error(&mut error, UNREAD);
            core.to_client.push(&error);
        }
    }

    /// Reads and drops what the client sends, and sends what is held for it. Returns whether
    /// anything moved; `None` once the client has gone, or has ended and all was sent.
    fn move_last_bytes(&mut self, cx: &mut Context<'_>) -> Option<bool> {
        let read = with_buffer(|buffer| self.drop_requests(cx, buffer)).ok()?;
        let held = self.core.to_client.len();
        match self.core.to_client.poll_flush(&mut self.client, cx) {
            Poll::Ready(Err(_)) => None,
            Poll::Ready(Ok(())) if self.core.client_done => None,
            Poll::Ready(Ok(())) => {
                // The client's next bytes must not reset the connection before it has read the error.
                let _ = Pin::new(&mut self.client).poll_shutdown(cx);
                Some(read)
            }
            Poll::Pending => Some(read || self.core.to_client.len() < held),
        }
    }
}
