//! Takes the replies to guarded writes out of the replies to the script and to EXEC. A client whose transaction was
//! dropped because of a fence is told so in place of EXEC's reply.

use super::fed::{Fed, Heard};
use crate::{
    guard::write,
    resp::{encode, number},
};

/// Error for a client whose transaction was dropped. The client itself watched nothing, so a fence was the reason.
pub(in crate::session) const DROPPED: &str =
    "FENCED a lock of this transaction was granted again, nothing in it was executed";

/// Most bytes of the first line that are looked at: the head of an array, a null, or a large integer.
const LINE: usize = 32;
/// Most bytes kept of a reply that does not pass: enough for an error line.
const KEEP: usize = 1024;

/// The command whose reply is unwrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Whose {
    /// The script: the reply to a single write, or to the last of several.
    Script,
    /// The script with several writes: its reply is an array whose elements are the client's replies.
    Batch,
    /// The proxy's EXEC around one write of the client.
    Exec,
    /// The client's EXEC, where the proxy watches fences.
    Clients,
}

/// A reply being unwrapped.
#[derive(Debug)]
pub(in crate::session) struct Unwrap {
    whose: Whose,
    /// The client gets no replies.
    silent: bool,
    stage: UnwrapStage,
}

#[derive(Debug)]
enum UnwrapStage {
    /// The first line is not whole yet.
    Line(Vec<u8>),
    /// All further bytes pass.
    Passing,
    /// All further bytes are dropped.
    Dropping,
    /// All further bytes are kept, as they are not for the client.
    Keeping(Vec<u8>),
}

impl Unwrap {
    pub(super) fn new(whose: Whose, silent: bool) -> Unwrap {
        Unwrap { whose, silent, stage: UnwrapStage::Line(Vec::new()) }
    }

    /// Whether the first line must be looked at by itself first.
    pub(super) fn awaits_head(&self) -> bool {
        self.whose == Whose::Batch && matches!(self.stage, UnwrapStage::Line(_))
    }
}

/// Returns the length of the array whose head is `line`; 0 for any other line.
pub(super) fn elements(line: &[u8]) -> usize {
    let digits = line.strip_prefix(b"*").and_then(|rest| rest.strip_suffix(b"\r\n"));
    digits.and_then(number::integer).and_then(|count| count.try_into().ok()).unwrap_or_default()
}

/// Whether the line is null, which says that the transaction was dropped.
pub(in crate::session) fn is_null(line: &[u8]) -> bool {
    line.starts_with(b"*-1") || line.starts_with(b"_")
}

impl Unwrap {
    /// Filters a piece of the reply. `ended`: the reply ends with it.
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
        // An unreadable number closes the connection, so nothing else needs to be said.
        if ended && matches!(fed.heard, Heard::Nothing) {
            self.end(&mut fed);
        }
        fed
    }

    /// Decides what becomes of the reply once its first line is whole.
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
