//! Finds where a reply ends: an incremental span scanner for RESP2 and RESP3.
//!
//! [`ReplyScanner::next`] gets the bytes as they arrive, keeps at most the beginning of a frame, and reports
//! each top-level frame once its last byte has arrived. Nesting needs no stack: a count of the elements still
//! to come is enough, so that no depth can hurt. A push inside an aggregate (Redis 7.0 does that in EXEC) does
//! not count as one of its elements.

/// How many bytes of a frame's beginning are kept for [`Frame::head`] when the frame arrives in pieces. Enough
/// for `*4\r\n$12\r\npunsubscribe\r\n`, for `-ERR unknown command` and for MONITOR's time stamp.
const HEAD: usize = 32;

/// The beginnings of the errors by which a Redis refuses writes because it is a replica: for a write, and for
/// a transaction with one.
const REFUSED_WRITE: [&[u8]; 2] =
    [b"-READONLY ", b"-EXECABORT Transaction discarded because of: READONLY "];

/// The beginnings of the errors by which a node of a cluster redirects a client to another.
const REDIRECTIONS: [&[u8]; 2] = [b"-MOVED ", b"-ASK "];

/// The reply to a GET of a missing key.
const NULL_BULK: &[u8] = b"$-1\r\n";

/// A whole top-level frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The frame's first bytes, with the first element's text or a line's beginning.
    pub head: &'a [u8],
    /// The last integer in the frame; in a pub/sub confirmation the number of subscriptions.
    pub last_integer: i64,
}

impl Frame<'_> {
    /// Returns the type byte.
    pub fn kind(&self) -> u8 {
        self.head.first().copied().unwrap_or_default()
    }

    /// Whether the frame is a push, which answers no command.
    pub fn is_push(&self) -> bool {
        self.kind() == b'>'
    }

    /// Returns the text of an aggregate's first element, if that is a bulk string that fits into the head.
    pub fn first_element(&self) -> Option<&[u8]> {
        let mut lines = self.head.split(|b| *b == b'\n');
        let (_, length) = (lines.next()?, lines.next()?);
        if length.first() != Some(&b'$') {
            return None;
        }
        lines.next()?.strip_suffix(b"\r")
    }
}

/// Result of a scan.
#[derive(Debug, PartialEq, Eq)]
pub enum NextReply<'a> {
    /// A frame ends just before the position.
    Frame(Frame<'a>),
    /// All bytes were scanned.
    End,
    /// The bytes are not RESP.
    Broken,
}

/// Finds replies in a stream of bytes. Knows nothing of connections.
#[derive(Debug, Default)]
pub struct ReplyScanner {
    phase: ReplyPhase,
    /// Elements still to come of the current top-level frame; 0 between frames.
    remaining: u64,
    /// Whether the current frame's aggregate has been entered.
    inside: bool,
    last_integer: i64,
    errors: ErrorNotes,
    head: [u8; HEAD],
    /// Bytes of the current frame kept in `head` from earlier calls.
    head_len: usize,
    /// Bytes of the current frame that came in earlier calls.
    begun: usize,
}

/// What the scanner looks for in errors.
#[derive(Debug, Default)]
struct ErrorNotes {
    /// Whether an error was one of [`REFUSED_WRITE`].
    refused_write: bool,
    /// Whether [`ReplyScanner::skip_flat`] leaves [`REDIRECTIONS`] to [`ReplyScanner::next`].
    stop_at_redirections: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ReplyPhase {
    /// Before a type byte.
    #[default]
    Type,
    /// Inside a line whose text does not matter.
    Text,
    /// Inside an error whose first `seen` bytes are those of one of [`REFUSED_WRITE`].
    Error { which: u8, seen: u8 },
    /// Inside the number of a line of the given type.
    Number { kind: u8, value: i64, negative: bool },
    /// Inside a bulk string with its line end.
    Bulk { left: u64 },
}

impl ReplyScanner {
    /// Whether the scanner is between frames, and has nothing to tell of earlier ones.
    pub(crate) fn is_as_new(&self) -> bool {
        let ErrorNotes { refused_write, stop_at_redirections } = self.errors;
        self.between_frames() && !refused_write && !stop_at_redirections
    }

    /// Whether the last byte scanned was the last of a frame.
    pub fn between_frames(&self) -> bool {
        self.remaining == 0
    }

    /// Returns how many bytes of an incomplete frame were scanned; 0 between frames.
    pub(crate) fn begun(&self) -> usize {
        if self.between_frames() { 0 } else { self.begun }
    }

    /// Whether an error since the last call said that the Redis refuses writes because it is a replica.
    #[inline]
    pub(crate) fn take_refused_write(&mut self) -> bool {
        std::mem::take(&mut self.errors.refused_write)
    }

    /// Has [`ReplyScanner::skip_flat`] stop at redirections from now on.
    pub(crate) fn stop_at_redirections(&mut self) {
        self.errors.stop_at_redirections = true;
    }

    /// Has the elements of the aggregate whose head was just scanned count as frames.
    pub(crate) fn enter(&mut self) {
        self.remaining = 0;
    }

    /// Skips at most `most` frames of the common, flat kinds that are whole in these bytes, and returns their
    /// number. Stops at any other frame, which is for [`ReplyScanner::next`].
    #[inline]
    pub fn skip_flat(&mut self, buf: &[u8], pos: &mut usize, most: u32) -> u32 {
        let mut count = 0;
        while self.remaining == 0 && count < most {
            let Some(length) = flat_length(&buf[*pos..], &mut self.errors) else { break };
            *pos += length;
            count += 1;
        }
        count
    }

    /// Scans from `*pos` and moves it behind the bytes scanned.
    #[inline]
    pub fn next<'a>(&'a mut self, buf: &'a [u8], pos: &mut usize) -> NextReply<'a> {
        let from = *pos;
        if self.remaining == 0 {
            if from == buf.len() {
                return NextReply::End;
            }
            self.head_len = 0;
            self.inside = false;
            self.remaining = 1;
        }
        if !self.scan(buf, pos) {
            return NextReply::Broken;
        }
        if self.remaining == 0 && self.head_len == 0 {
            // The usual case: the whole frame is in these bytes.
            let head = &buf[from..(*pos).min(from + HEAD)];
            return NextReply::Frame(Frame { head, last_integer: self.last_integer });
        }
        // While nothing is kept, these are the frame's first bytes.
        self.begun = if self.head_len == 0 { 0 } else { self.begun } + (*pos - from);
        let more = (*pos - from).min(HEAD - self.head_len);
        self.head[self.head_len..self.head_len + more].copy_from_slice(&buf[from..from + more]);
        self.head_len += more;
        if self.remaining == 0 {
            let head = &self.head[..self.head_len];
            return NextReply::Frame(Frame { head, last_integer: self.last_integer });
        }
        NextReply::End
    }

    /// Moves on to the end of the frame or of the bytes. Returns `false` if they are not RESP.
    #[inline]
    fn scan(&mut self, buf: &[u8], pos: &mut usize) -> bool {
        while self.remaining > 0 && *pos < buf.len() {
            match self.phase {
                ReplyPhase::Type => {
                    // Most elements of a large aggregate are short bulk strings.
                    if self.inside
                        && let Some(length) = bulk_length(&buf[*pos..])
                    {
                        *pos += length;
                        self.remaining -= 1;
                        continue;
                    }
                    let kind = buf[*pos];
                    *pos += 1;
                    self.phase = match kind {
                        b'+' | b'_' | b'#' | b',' | b'(' => ReplyPhase::Text,
                        b'-' => ReplyPhase::Error { which: 0, seen: 1 },
                        b':' | b'$' | b'=' | b'!' | b'*' | b'~' | b'%' | b'>' | b'|' => {
                            ReplyPhase::Number { kind, value: 0, negative: false }
                        }
                        _ => return false,
                    };
                }
                ReplyPhase::Text => match memchr::memchr(b'\n', &buf[*pos..]) {
                    Some(end) => {
                        *pos += end + 1;
                        self.element_done();
                    }
                    None => *pos = buf.len(),
                },
                ReplyPhase::Error { which, seen } => {
                    self.phase = self.error_byte(buf[*pos], which, seen);
                    // A byte of the text may end the line, so it is not skipped here.
                    *pos += usize::from(self.phase != ReplyPhase::Text);
                }
                ReplyPhase::Number { kind, mut value, mut negative } => {
                    let mut ended = false;
                    for byte in &buf[*pos..] {
                        *pos += 1;
                        match byte {
                            b'0'..=b'9' => {
                                value = value.wrapping_mul(10).wrapping_add(i64::from(byte - b'0'));
                            }
                            b'-' => negative = true,
                            b'\r' => {}
                            b'\n' => {
                                ended = true;
                                break;
                            }
                            _ => return false,
                        }
                    }
                    if ended {
                        self.number_done(kind, if negative { value.wrapping_neg() } else { value });
                    } else {
                        self.phase = ReplyPhase::Number { kind, value, negative };
                    }
                }
                ReplyPhase::Bulk { left } => {
                    let here = (buf.len() - *pos) as u64;
                    if here < left {
                        *pos = buf.len();
                        self.phase = ReplyPhase::Bulk { left: left - here };
                    } else {
                        *pos += left as usize;
                        self.element_done();
                    }
                }
            }
        }
        true
    }

    /// Compares the next byte of an error and returns the next phase. That is [`ReplyPhase::Text`], from this
    /// byte on, once it is known whether the error is one of [`REFUSED_WRITE`].
    #[cold]
    fn error_byte(&mut self, byte: u8, which: u8, seen: u8) -> ReplyPhase {
        // The two differ in their first byte behind `-`.
        let which = if seen == 1 && byte == REFUSED_WRITE[1][1] { 1 } else { which };
        let wanted = REFUSED_WRITE[usize::from(which)];
        if wanted.get(usize::from(seen)) == Some(&byte) {
            return ReplyPhase::Error { which, seen: seen + 1 };
        }
        self.errors.refused_write |= usize::from(seen) == wanted.len();
        ReplyPhase::Text
    }

    fn element_done(&mut self) {
        self.phase = ReplyPhase::Type;
        self.remaining -= 1;
    }

    fn number_done(&mut self, kind: u8, value: i64) {
        let elements = value.max(0) as u64;
        match kind {
            b':' => {
                self.last_integer = value;
                self.element_done();
            }
            b'$' | b'=' | b'!' if value >= 0 => {
                self.phase = ReplyPhase::Bulk { left: elements.saturating_add(2) };
            }
            b'*' | b'~' | b'>' | b'%' => {
                // A push inside an aggregate is not one of its elements. A push at the top is inside nothing.
                let nested_push = kind == b'>' && self.inside;
                let elements = if kind == b'%' { elements.saturating_mul(2) } else { elements };
                self.phase = ReplyPhase::Type;
                self.inside = true;
                self.remaining = self.remaining.saturating_add(elements) - u64::from(!nested_push);
            }
            // An attribute comes before the element that it describes.
            b'|' => {
                self.phase = ReplyPhase::Type;
                self.remaining = self.remaining.saturating_add(elements.saturating_mul(2));
            }
            // This is a null bulk string.
            _ => self.element_done(),
        }
    }
}

/// Returns the length of the flat frame at the beginning of `buf`, if it is whole and of a usual form. Notes in
/// `errors` an error that is one of [`REFUSED_WRITE`].
#[inline]
fn flat_length(buf: &[u8], errors: &mut ErrorNotes) -> Option<usize> {
    match *buf.first()? {
        b'+' => Some(memchr::memchr(b'\n', buf)? + 1),
        b'-' => {
            let end = memchr::memchr(b'\n', buf)?;
            if errors.stop_at_redirections && REDIRECTIONS.iter().any(|code| buf.starts_with(code))
            {
                return None;
            }
            errors.refused_write |= REFUSED_WRITE.iter().any(|error| buf.starts_with(error));
            Some(end + 1)
        }
        b':' => {
            let end = memchr::memchr(b'\n', buf)?;
            // A number with any other byte is malformed, which `next` reports.
            let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'\r');
            buf[1..end].iter().all(is_number).then_some(end + 1)
        }
        b'$' if buf.starts_with(NULL_BULK) => Some(NULL_BULK.len()),
        b'$' => bulk_length(buf),
        _ => None,
    }
}

/// Returns the length of the bulk string at the beginning of `buf`, if there is one, which is whole and not null.
#[inline]
fn bulk_length(buf: &[u8]) -> Option<usize> {
    if buf.first() != Some(&b'$') {
        return None;
    }
    let mut value = 0;
    for (at, byte) in buf.iter().enumerate().take(8).skip(1) {
        match byte {
            b'0'..=b'9' => value = value * 10 + usize::from(byte - b'0'),
            b'\r' if buf.get(at + 1) == Some(&b'\n') => {
                return Some(at + 2 + value + 2).filter(|length| *length <= buf.len());
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
