//! The reply scanner finds the same frames at every split, and the same as a plain recursive reading and
//! redis-protocol.

use lockgate::resp::reply::{NextReply, ReplyScanner};
use rand::{RngExt, rngs::StdRng};
use redis_protocol::resp3::decode::complete::decode;

use super::pieces::{seeded, ways};

/// The depth from which frames are kept from readers that need a stack.
const DEPTH: usize = 16;

/// The result of a scan.
#[derive(Debug, PartialEq)]
struct Scanned {
    /// For each frame its end, its head and its last integer.
    frames: Vec<(usize, Vec<u8>, i64)>,
    /// The position behind the first byte that is not RESP.
    broken: Option<usize>,
    between_frames: bool,
}

fn scan(pieces: &[&[u8]]) -> Scanned {
    let mut scanner = ReplyScanner::default();
    let (mut frames, mut before) = (Vec::new(), 0);
    for piece in pieces {
        let mut pos = 0;
        loop {
            let from = pos;
            let next = scanner.next(piece, &mut pos);
            assert!((from..=piece.len()).contains(&pos));
            match next {
                NextReply::Frame(frame) => {
                    let _ = (frame.first_element(), frame.is_push());
                    frames.push((before + pos, frame.head.to_vec(), frame.last_integer));
                }
                NextReply::End => {
                    assert_eq!(pos, piece.len());
                    break;
                }
                NextReply::Broken => {
                    let broken = Some(before + pos);
                    return Scanned { frames, broken, between_frames: false };
                }
            }
        }
        before += piece.len();
    }
    Scanned { frames, broken: None, between_frames: scanner.between_frames() }
}

/// Counts frames as a session does when only their number matters. Returns also whether the bytes are broken.
fn count(pieces: &[&[u8]], rng: &mut StdRng) -> (usize, bool) {
    let (mut scanner, mut count) = (ReplyScanner::default(), 0);
    for piece in pieces {
        let mut pos = 0;
        loop {
            let most = rng.random_range(0..4);
            count += scanner.skip_flat(piece, &mut pos, most) as usize;
            assert!(pos <= piece.len());
            match scanner.next(piece, &mut pos) {
                NextReply::Frame(_) => count += 1,
                NextReply::End => break,
                NextReply::Broken => return (count, true),
            }
        }
    }
    (count, false)
}

/// Checks an input: two bytes of seed, then the bytes of a data node.
pub fn check(input: &[u8]) {
    let (mut rng, bytes) = seeded(input);
    let whole = scan(&[bytes]);
    let counted = (whole.frames.len(), whole.broken.is_some());
    assert_eq!(count(&[bytes], &mut rng), counted, "skipping");
    for pieces in ways(bytes, &mut rng) {
        assert_eq!(scan(&pieces), whole, "cut into {pieces:?}");
        assert_eq!(count(&pieces, &mut rng), counted, "skipping, cut into {pieces:?}");
    }
    let mut from = 0;
    for (end, ..) in &whole.frames {
        let frame = &bytes[from..*end];
        match read(frame, 0, false) {
            Read::Whole(length) => {
                assert_eq!(length, frame.len());
                agree_with_redis_protocol(frame);
            }
            Read::Odd => {}
            Read::Incomplete => panic!("too short: {:?}", frame.escape_ascii().to_string()),
        }
        from = *end;
    }
    if whole.broken.is_none() && !whole.between_frames {
        let rest = read(&bytes[from..], 0, false);
        assert!(matches!(rest, Read::Incomplete | Read::Odd), "its end was missed: {rest:?}");
    }
}

/// Checks that a frame ends where redis-protocol says, if that reads it as a whole one.
fn agree_with_redis_protocol(frame: &[u8]) {
    // redis-protocol misreads RESP2's nulls, and counts pushes as elements.
    let odd = frame.windows(2).any(|two| two == b"-1") || frame.contains(&b'|');
    if !odd
        && !frame[1..].contains(&b'>')
        && let Ok(Some((_, used))) = decode(frame)
    {
        assert_eq!(used, frame.len(), "redis-protocol");
    }
}

/// The result of a plain reading.
#[derive(Debug)]
enum Read {
    Whole(usize),
    Incomplete,
    /// A frame that Redis does not write, or one that is too deep.
    Odd,
}

/// Reads one frame as Redis writes it. `inside`: the frame is in an aggregate, where pushes may stand before an
/// element.
fn read(bytes: &[u8], depth: usize, inside: bool) -> Read {
    let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
        return if bytes.contains(&b'\n') { Read::Odd } else { Read::Incomplete };
    };
    let (line, header) = (&bytes[1..end], end + 2);
    if line.contains(&b'\n') || line.contains(&b'\r') || depth > DEPTH {
        return Read::Odd;
    }
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    let (elements, behind) = match bytes[0] {
        b'+' | b'-' | b'_' | b'#' | b',' | b'(' => return Read::Whole(header),
        b':' if number().is_some() => return Read::Whole(header),
        b'$' | b'=' | b'!' => match number() {
            Some(0..) => {
                let length = header.saturating_add(number().unwrap() as usize).saturating_add(2);
                let ends = bytes.get(length - 2..length).is_none_or(|end| end == b"\r\n");
                return match ends {
                    _ if length > bytes.len() => Read::Incomplete,
                    true => Read::Whole(length),
                    false => Read::Odd,
                };
            }
            Some(-1) => return Read::Whole(header),
            _ => return Read::Odd,
        },
        b'*' | b'~' | b'>' | b'%' => match number() {
            Some(-1) => return Read::Whole(header),
            Some(count @ 0..) => (count, if bytes[0] == b'%' { 2 } else { 1 }),
            _ => return Read::Odd,
        },
        // An attribute. It ends with the element behind it.
        b'|' if !inside => match number() {
            Some(count @ 0..=1000) => {
                let mut at = header;
                for _ in 0..=2 * count {
                    match bytes.get(at) {
                        None => return Read::Incomplete,
                        Some(b'|' | b'>' | b'*' | b'~' | b'%') => return Read::Odd,
                        Some(_) => {}
                    }
                    match read(&bytes[at..], depth + 1, false) {
                        Read::Whole(length) => at += length,
                        other => return other,
                    }
                }
                return Read::Whole(at);
            }
            _ => return Read::Odd,
        },
        _ => return Read::Odd,
    };
    let mut left = elements.saturating_mul(behind);
    let mut at = header;
    while left > 0 {
        let rest = &bytes[at..];
        match rest.first() {
            None => return Read::Incomplete,
            Some(b'>') => {}
            Some(_) => left -= 1,
        }
        match read(rest, depth + 1, true) {
            Read::Whole(length) => at += length,
            other => return other,
        }
    }
    Read::Whole(at)
}
