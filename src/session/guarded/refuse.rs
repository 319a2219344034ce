//! Refuses a guarded write that the connection may not make. A client's transaction is made to fail.

use super::{
    super::{
        desk::Desk,
        jobs::{Answering, Progress},
        session_metrics::GuardedWrite,
    },
    log::{first_word, tell_refused},
    subject::{GuardedCommand, error_reply},
};
use crate::{
    log_text::shown,
    resp::{encode, expected::Expected, name::ReplyMode},
};

/// Ends a write with this answer, or without one if it is empty.
pub(super) fn end(write: GuardedCommand, answer: Vec<u8>, desk: &mut Desk) -> Progress {
    if write.turned_on {
        desk.hush();
    }
    let answer = if write.silent { Vec::new() } else { answer };
    Progress::Answer(Answering::new(answer, write.length))
}

/// Refuses a write before its fences are asked about. A client's transaction is made to fail, as it must not go on
/// without the write.
pub(super) fn refuse(
    mut write: GuardedCommand,
    error: &[u8],
    result: GuardedWrite,
    desk: &mut Desk,
) -> Progress {
    desk.shared.metrics.guarded(result);
    tell_refused(result, desk.unsent_command(write.length), error, desk);
    let (answer, in_multi) = (error_reply(error), desk.conn.in_multi());
    match desk.conn.reply_mode {
        ReplyMode::On if in_multi => {
            // Redis knows no such command, so EXEC will fail.
            desk.ask(Expected::Error, |out| encode::command(out, &[b"LOCK"]));
            return Progress::await_replies(write, |write, _, desk| end(write, answer, desk));
        }
        // The flag for this command must not be left for the next one.
        ReplyMode::On if std::mem::take(&mut desk.conn.next_only) => {
            desk.ask(Expected::Pong, |out| encode::command(out, &[b"PING"]));
            return Progress::await_replies(write, |write, _, desk| end(write, answer, desk));
        }
        ReplyMode::On => {}
        ReplyMode::Off | ReplyMode::Skip => {
            write.silent = true;
            let is_flagged = std::mem::take(&mut desk.conn.next_only);
            if desk.conn.reply_mode == ReplyMode::Skip || in_multi || is_flagged {
                desk.to_data.push(b"LOCK\r\n");
            }
            if desk.conn.reply_mode == ReplyMode::Skip {
                desk.conn.reply_mode = ReplyMode::On;
            }
        }
    }
    end(write, answer, desk)
}

/// Refuses a write of a RESP2 subscriber, or after MONITOR, in Redis's own words. It is not left to Redis, as no
/// write that guards stop is forwarded on the strength of what the connection is believed to be. After MONITOR Redis
/// would also run scripts and DEBUG.
pub(super) fn refuse_where_redis_would(write: GuardedCommand, desk: &mut Desk) -> Progress {
    if desk.conn.in_multi() {
        // Replies to the proxy's own commands could not be told from other frames.
        return Progress::Relay;
    }
    let error = if desk.conn.state.monitor {
        "ERR Replica can't interact with the keyspace".to_owned()
    } else {
        let name = first_word(desk.unsent_command(write.length)).to_ascii_lowercase();
        let allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET";
        let name = shown(&name);
        format!("ERR Can't execute '{name}': only {allowed} are allowed in this context")
    };
    refuse(write, error.as_bytes(), GuardedWrite::Refused, desk)
}
