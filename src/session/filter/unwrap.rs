//! The replies in which those of guarded writes are: the script's, and EXEC's, out of
//! which they are taken. EXEC's to a client whose transaction was dropped because of a
//! fence says so.

use super::fed::{Fed, Heard};
use crate::{
    guard::write,
    resp::{encode, number},
};

/// Told to the client whose transaction was dropped. It had nothing watched itself, so it was
/// a fence.
const DROPPED: &str =
    "FENCED a lock of this transaction was granted again, nothing in it was executed";

/// Longest first line that is looked at: the head of an array, a null, or a large integer.
const LINE: usize = 32;
/// How much of a reply that is not passed on is kept: an error line.
const KEEP: usize = 1024;

/// What was sent to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Whose {
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
pub(in crate::session) struct Unwrap {
    whose: Whose,
    /// The client gets no replies.
    silent: bool,
    stage: UnwrapStage,
}

#[derive(Debug)]
enum UnwrapStage {
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
        Unwrap { whose, silent, stage: UnwrapStage::Line(Vec::new()) }
    }

    /// Whether its first line is to be looked at before anything behind it.
    pub(super) fn awaits_head(&self) -> bool {
        self.whose == Whose::Batch && matches!(self.stage, UnwrapStage::Line(_))
    }

    /// Whether it is decided that the client gets it, and it is only a matter of
    /// its taking it.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self.stage, UnwrapStage::Passing)
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

impl Unwrap {
    /// Looks at a piece of the reply. With `ended`, this is the last of it.
    pub(super) fn feed(&mut self, piece: &[u8], ended: bool) -> Fed {
        let mut fed = Fed::default();
        if let UnwrapStage::Line(line) = &mut self.stage {
            let end = memchr::memchr(b'\n', piece).map_or(piece.len(), |end| end + 1);
            let end = end.min(LINE.saturating_sub(line.len()));
            line.extend_from_slice(&piece[..end]);
            fed.taken = end;
            if line.ends_with(b"\n") || line.len() >= LINE || ended {
                let line = std::mem::take(line);
                if self.whose == Whose::Batch && !line.starts_with(b"-") {
                    fed.heard = Heard::Elements(elements(&line));
                    return fed;
                }
                self.stage = self.decide(line, &mut fed);
            }
        }
        match &mut self.stage {
            UnwrapStage::Passing => {}
            UnwrapStage::Dropping | UnwrapStage::Line(_) => fed.taken = piece.len(),
            UnwrapStage::Keeping(kept) => {
                let room = KEEP.saturating_sub(kept.len());
                let rest = &piece[fed.taken..];
                kept.extend_from_slice(&rest[..rest.len().min(room)]);
                fed.taken = piece.len();
            }
        }
        // What is unreadable ends the connection, whatever else there is to say.
        if ended && matches!(fed.heard, Heard::Nothing) {
            self.end(&mut fed);
        }
        fed
    }

    /// The first line is all there: decides what becomes of the reply.
    fn decide(&self, line: Vec<u8>, fed: &mut Fed) -> UnwrapStage {
        match self.whose {
            Whose::Exec if line != b"*1\r\n" => return UnwrapStage::Keeping(line),
            Whose::Script | Whose::Batch if line.starts_with(b"-") => {
                return UnwrapStage::Keeping(line);
            }
            Whose::Clients if is_null(&line) => return UnwrapStage::Keeping(line),
            _ if self.silent => return UnwrapStage::Dropping,
            Whose::Exec => {}
            Whose::Script => match line.strip_prefix(write::INTEGER) {
                Some(b"\r\n") => fed.heard = Heard::Unreadable,
                Some(digits) => fed.instead = [b":", digits].concat(),
                None => fed.instead = line,
            },
            Whose::Clients | Whose::Batch => fed.instead = line,
        }
        UnwrapStage::Passing
    }

    fn end(&mut self, fed: &mut Fed) {
        fed.heard = match (self.whose, &mut self.stage) {
            (Whose::Clients, UnwrapStage::Keeping(_)) => {
                encode::error(&mut fed.behind, DROPPED);
                Heard::Dropped
            }
            (Whose::Clients, _) => Heard::Nothing,
            (_, UnwrapStage::Keeping(reply)) => Heard::NotMade(std::mem::take(reply)),
            _ => Heard::Made,
        };
    }
}
