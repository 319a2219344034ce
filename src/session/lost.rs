//! What a client is told when its session lock is lost.

use std::task::{Context, Poll};

use super::{Session, Step};
use crate::{
    config::OnLost,
    metrics::CloseReason,
    resp::{encode, name::ReplyMode},
};

impl Session {
    /// Takes what the watchdog has told, and does as `locks.on_lost` says.
    #[inline]
    pub(super) fn take_losses(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let Some(losses) = &self.losses else { return Ok(()) };
        if losses.is_check_due() {
            if let Some(first) = self.tokens.valid_until() {
                losses.check_by(first);
            }
            losses.settle();
        }
        if !losses.any() {
            return Ok(());
        }
        self.note_losses(cx)
    }

    #[cold]
    fn note_losses(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let all = self.losses.as_ref().map(|losses| losses.take()).unwrap_or_default();
        let prefix = self.config.locks.prefix.len();
        for (key, token) in &all {
            self.tokens.remove(key, token);
            if self.state.resp3 && !self.relay {
                encode::push(&mut self.pushes, 3);
                encode::bulk(&mut self.pushes, b"lock-lost");
                encode::bulk(&mut self.pushes, &key[prefix.min(key.len())..]);
                encode::bulk(&mut self.pushes, token);
            }
        }
        let told = self.state.resp3 && !self.relay;
        let close = match self.config.locks.on_lost {
            OnLost::Ignore => false,
            OnLost::Close => true,
            // Who gets no replies, or those that cannot be told apart, cannot be
            // told: it must not go on as if nothing had happened.
            OnLost::Error => !told && (self.relay || self.reply_mode != ReplyMode::On),
        };
        if close {
            let _ = self.push_losses(cx)?;
            return Err(CloseReason::LockLost);
        }
        if self.config.locks.on_lost == OnLost::Error
            && !told
            && let Some((key, _)) = all.last()
        {
            let key = String::from_utf8_lossy(&key[prefix.min(key.len())..]);
            let others = match all.len() {
                1 => String::new(),
                more => format!(" and {} more", more - 1),
            };
            self.lost = Some(format!(
                "LOCKLOST the lock '{key}'{others} was lost, this command was not executed"
            ));
        }
        Ok(())
    }

    /// Writes pushes between two frames.
    #[inline]
    pub(super) fn push_losses(&mut self, cx: &mut Context<'_>) -> Step {
        if self.pushes.is_empty() { Ok(false) } else { self.push_between_frames(cx) }
    }

    #[cold]
    fn push_between_frames(&mut self, cx: &mut Context<'_>) -> Step {
        if !self.replies.between_frames() || self.relay {
            return Ok(false);
        }
        let pushes = std::mem::take(&mut self.pushes);
        self.to_client.push(&pushes);
        match self.to_client.poll_flush(&mut self.client, cx) {
            Poll::Ready(Err(_)) => Err(CloseReason::Client),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(true),
        }
    }
}
