//! The reply to EXEC where the proxy has a part in the transaction: a guarded write's
//! reply is taken out of it, and one that was dropped because of a fence is said to be.

use std::ops::Range;

use super::Session;
use crate::{metrics::GuardedWrite, resp::encode};

/// Longest first line that is looked at: the head of an array, or a null.
const LINE: usize = 16;
/// How much of a reply that is not passed on is kept: an error line.
const KEEP: usize = 1024;

/// Whose transaction it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The proxy's, around one write of the client's.
    Ours,
    /// The same, but the client gets no replies.
    OursInSilence,
    /// The client's, with fences watched for it.
    Clients,
}

/// Such a reply, as far as it has come.
#[derive(Debug)]
pub(super) struct Unwrap {
    whose: Whose,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The first line is not all there.
    Line(Vec<u8>),
    /// What comes is passed on.
    Passing,
    /// What comes is dropped.
    Dropping,
    /// What comes is not for the client.
    Keeping(Vec<u8>),
}

impl Unwrap {
    pub(super) fn new(whose: Whose) -> Unwrap {
        Unwrap { whose, stage: Stage::Line(Vec::new()) }
    }

    /// Whether it is decided that the client gets it, and it is only a matter of
    /// its taking it.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self.stage, Stage::Passing)
    }
}

/// Whether the line is null: the transaction was dropped.
fn is_null(line: &[u8]) -> bool {
    line.starts_with(b"*-1") || line.starts_with(b"_")
}

impl Session {
    /// Passes on what has come of the reply: `here` of `bytes`, with the bytes from
    /// `from` on before it. Returns from where on bytes are still to be passed on.
    /// With `ended`, this is the last of it.
    #[cold]
    pub(super) fn unwrap_reply(
        &mut self,
        bytes: &[u8],
        mut from: usize,
        here: Range<usize>,
        ended: bool,
    ) -> usize {
        let Some(mut unwrap) = self.unwrap.take() else { return from };
        let mut at = here.start;
        if let Stage::Line(line) = &mut unwrap.stage {
            self.to_client.push(&bytes[from..at]);
            let piece = &bytes[here.clone()];
            let end = memchr::memchr(b'\n', piece).map_or(piece.len(), |end| end + 1);
            let end = end.min(LINE.saturating_sub(line.len()));
            line.extend_from_slice(&piece[..end]);
            at += end;
            from = at;
            if line.ends_with(b"\n") || line.len() >= LINE || ended {
                let line = std::mem::take(line);
                unwrap.stage = match unwrap.whose {
                    Whose::Ours if line == b"*1\r\n" => Stage::Passing,
                    Whose::OursInSilence if line == b"*1\r\n" => Stage::Dropping,
                    Whose::Clients if !is_null(&line) => {
                        self.to_client.push(&line);
                        Stage::Passing
                    }
                    _ => Stage::Keeping(line),
                };
            }
        }
        match &mut unwrap.stage {
            Stage::Passing => {}
            Stage::Dropping | Stage::Line(_) => from = here.end,
            Stage::Keeping(kept) => {
                let room = KEEP.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[at..here.end.min(at + room)]);
                from = here.end;
            }
        }
        if !ended {
            self.unwrap = Some(unwrap);
            return from;
        }
        match (unwrap.whose, unwrap.stage) {
            (Whose::Clients, Stage::Keeping(_)) => {
                // The client had nothing watched itself, so it was a fence.
                self.shared.metrics.guarded(GuardedWrite::Fenced);
                let mut error = Vec::new();
                let text = "FENCED a lock of this transaction was granted again, nothing in it was executed";
                encode::error(&mut error, text);
                self.to_client.push(&error);
            }
            (Whose::Clients, _) => {}
            (_, Stage::Keeping(reply)) => self.write_was_dropped(&reply),
            _ => self.write_is_done(),
        }
        from
    }
}
