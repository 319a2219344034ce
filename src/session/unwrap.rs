//! The replies in which those of guarded writes are: the script's, and EXEC's, out of
//! which they are taken. EXEC's to a client whose transaction was dropped because of a
//! fence says so.

use std::ops::Range;

use super::{Session, metrics::GuardedWrite};
use crate::{
    guard::write,
    resp::{encode, number},
};

/// Longest first line that is looked at: the head of an array, a null, or a large integer.
const LINE: usize = 32;
/// How much of a reply that is not passed on is kept: an error line.
const KEEP: usize = 1024;

/// What was sent to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The script's to one write of the client's, or to the last one of several.
    Script,
    /// The script's to several: an array, whose elements the client gets.
    Batch,
    /// EXEC's, around one write of the client's.
    Exec,
    /// EXEC's, of the client, with fences watched for it.
    Clients,
}

/// Such a reply, as far as it has come.
#[derive(Debug)]
pub(super) struct Unwrap {
    whose: Whose,
    /// The client gets no replies.
    silent: bool,
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
    pub(super) fn new(whose: Whose, silent: bool) -> Unwrap {
        Unwrap { whose, silent, stage: Stage::Line(Vec::new()) }
    }

    /// Whether its first line is to be looked at before anything behind it.
    pub(super) fn awaits_head(&self) -> bool {
        self.whose == Whose::Batch && matches!(self.stage, Stage::Line(_))
    }

    /// Whether it is decided that the client gets it, and it is only a matter of
    /// its taking it.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self.stage, Stage::Passing)
    }
}

/// The length of the array that the line is the head of; otherwise 0.
fn elements(line: &[u8]) -> usize {
    let digits = line.strip_prefix(b"*").and_then(|rest| rest.strip_suffix(b"\r\n"));
    digits.and_then(number::integer).and_then(|count| count.try_into().ok()).unwrap_or_default()
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
                    Whose::Exec if line != b"*1\r\n" => Stage::Keeping(line),
                    Whose::Script | Whose::Batch if line.starts_with(b"-") => Stage::Keeping(line),
                    Whose::Batch => {
                        // Each element is a reply of its own, the last one Guarded again.
                        if self.writes_are_told(elements(&line)) {
                            self.replies.enter();
                            return from;
                        }
                        self.relay_from_here();
                        return bytes.len();
                    }
                    Whose::Clients if is_null(&line) => Stage::Keeping(line),
                    _ if unwrap.silent => Stage::Dropping,
                    whose => {
                        match line.strip_prefix(write::INTEGER) {
                            _ if whose == Whose::Exec => {}
                            // It is not known what was made of the number: the user of
                            // an ACL may not read what it may write.
                            Some(b"\r\n") if whose == Whose::Script => self.unguarded = true,
                            Some(digits) if whose == Whose::Script => {
                                self.to_client.push(b":");
                                self.to_client.push(digits);
                            }
                            _ => self.to_client.push(&line),
                        }
                        Stage::Passing
                    }
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
