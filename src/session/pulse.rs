//! Signs of life for the data node, which would close a client that it has not heard from for its `timeout`. A client
//! that waits for Lockgate, or holds a lock, is not silent by its own choice.
//!
//! A sign of life is an empty line. Redis counts the client as active, and neither answers nor counts a command,
//! whatever state the connection is in. So there is no reply to keep from the client, no permission is needed, and
//! MULTI queues nothing.

use std::{future::Future, task::Context, time::Duration};

use tokio::time::sleep;

use super::{core::Tracking, pump::Session};
use crate::{
    clock::Instant,
    resp::{encode, name::ReplyMode},
};

/// How often to look whether signs of life have become necessary.
const LOOK_EVERY: Duration = Duration::from_secs(10);

impl Session {
    /// Sends a sign of life when it is time, if this connection needs one.
    #[inline]
    pub(super) fn poll_pulse(&mut self, cx: &mut Context<'_>) {
        // The timer wakes this task by itself; polling it at each command would cost too much.
        if self.core.unheard && self.pulse.as_ref().is_none_or(|timer| timer.is_elapsed()) {
            self.poll_unheard(cx);
        }
    }

    #[cold]
    fn poll_unheard(&mut self, cx: &mut Context<'_>) {
        while self.core.unheard {
            let every = self.core.desk.shared.idle.every();
            let next = every.unwrap_or(LOOK_EVERY);
            let timer = self.pulse.get_or_insert_with(|| Box::pin(sleep(next)));
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.pulse = None;
            if every.is_some() {
                self.give_sign(cx);
            }
            self.core.unheard = self.is_kept();
        }
    }

    /// Whether the client waits for the lock nodes, or holds a lock.
    fn is_kept(&self) -> bool {
        let now = Instant::now();
        self.core.is_asking()
            || self
                .core
                .desk
                .tokens
                .held
                .values()
                .any(|held| held.keep.is_some() || held.until > now)
    }

    fn give_sign(&mut self, cx: &mut Context<'_>) {
        let conn = &self.core.desk.conn;
        let is_between = self.core.requests.between_commands()
            && self.core.desk.to_data.is_empty()
            && !self.upstream_is_shut()
            && self.core.tracking == Tracking::Matched;
        // An empty line would use up what ASKING or CLIENT CACHING has set for the next command.
        if !is_between || conn.next_only {
            return;
        }
        if conn.reply_mode == ReplyMode::Skip {
            // An empty line would use up SKIP too. Another CLIENT REPLY SKIP renews it, and has no
            // answer either.
            let mut again = Vec::new();
            encode::command(&mut again, &[b"CLIENT", b"REPLY", b"SKIP"]);
            self.forward(cx, &again);
        } else {
            self.forward(cx, b"\r\n");
        }
    }
}
