//! Votes in the replies of a lock node, which are read as [`flat`] ones.

use redis_protocol::resp2::types::OwnedFrame;

use super::{
    Claim,
    operation::{Absence, Kind, Vote},
};
use crate::resp::{
    flat::{self, FlatLimits, Garbage},
    number,
};

/// INFO of one section at the handshake is the longest reply that is asked for.
const LIMITS: FlatLimits = FlatLimits { string: 64 * 1024, elements: 16 };

/// Reads the reply that `buf` begins with. Returns it and its length, or `None` if it is not all there.
pub(super) fn read(buf: &[u8]) -> Result<Option<(OwnedFrame, usize)>, Garbage> {
    flat::read(buf, LIMITS)
}

/// Stands for the first number of an answer that is a single number: a yes of acquire.lua or release.lua.
const PLAIN: i64 = i64::MIN;

/// Reads a flat array of two or three numbers or a single one, as the scripts answer, and its length.
/// Returns `None` if the bytes are anything else or not yet whole: a decoder for all that Redis can
/// say costs ten times as much.
#[inline]
pub(super) fn numbers(buf: &[u8]) -> Option<(Numbers, usize)> {
    let (count, mut rest) = match buf {
        [b':', ..] => {
            let (number, rest) = short_integer(buf)?;
            return Some(([PLAIN, number, 0], buf.len() - rest.len()));
        }
        [b'*', count @ b'2'..=b'3', b'\r', b'\n', rest @ ..] => (usize::from(count - b'0'), rest),
        _ => return None,
    };
    let mut numbers = Numbers::default();
    for number in &mut numbers[..count] {
        (*number, rest) = short_integer(rest)?;
    }
    Some((numbers, buf.len() - rest.len()))
}

/// Reads the answer to TIME as Redis writes it until the year 2286, in microseconds since 1970, and
/// its length. Returns `None` if the bytes are anything else or not yet whole.
#[inline]
pub(super) fn time(buf: &[u8]) -> Option<(i64, usize)> {
    let (seconds, rest) = buf.strip_prefix(b"*2\r\n$10\r\n")?.split_at_checked(10)?;
    let [b'\r', b'\n', b'$', length, b'\r', b'\n', rest @ ..] = rest else { return None };
    let length = usize::from(length.checked_sub(b'0').filter(|length| (1..=6).contains(length))?);
    let (micros, rest) = rest.split_at_checked(length)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    Some((1_000_000 * all_digits(seconds)? + all_digits(micros)?, buf.len() - rest.len()))
}

/// Returns the number that `text` writes. Returns `None` if a byte is no digit.
fn all_digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |value, digit| {
        Some(10 * value + i64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?))
    })
}

/// Reads the decoded answer to TIME, in any year, in microseconds since 1970.
pub(super) fn time_of(frame: &OwnedFrame) -> Result<i64, Garbage> {
    let OwnedFrame::Array(parts) = frame else { return Err(Garbage) };
    let [OwnedFrame::BulkString(seconds), OwnedFrame::BulkString(micros)] = &parts[..] else {
        return Err(Garbage);
    };
    let whole = number::integer(seconds).and_then(|seconds| seconds.checked_mul(1_000_000));
    let time = whole.zip(number::integer(micros)).and_then(|(a, b)| a.checked_add(b));
    time.ok_or(Garbage)
}

/// The most digits that cannot overflow.
const MOST: usize = 18;

/// Reads a whole `:` line of at most [`MOST`] digits. Returns the number and the bytes behind the
/// line.
#[inline]
fn short_integer(buf: &[u8]) -> Option<(i64, &[u8])> {
    match buf {
        // Fast path for one digit: most numbers are a yes, a no or a zero.
        [b':', digit @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
            Some((i64::from(digit - b'0'), rest))
        }
        [b':', b'-', rest @ ..] => digits(rest).map(|(value, rest)| (-value, rest)),
        [b':', rest @ ..] => digits(rest),
        _ => None,
    }
}

/// Reads digits and the line's end. Returns the number and the bytes behind the line.
fn digits(buf: &[u8]) -> Option<(i64, &[u8])> {
    let (mut value, mut rest) = (0, buf);
    while let [digit @ b'0'..=b'9', behind @ ..] = rest {
        if buf.len() - rest.len() == MOST {
            return None;
        }
        (value, rest) = (10 * value + i64::from(digit - b'0'), behind);
    }
    let behind = rest.strip_prefix(b"\r\n")?;
    // A single digit was read on the fast path, and no longer number begins with a zero.
    (rest.len() < buf.len() && buf[0] != b'0').then_some((value, behind))
}

/// A script's answer, padded with zeros: its vote, or [`PLAIN`] (see the heads of `scripts/*.lua`); a fence, a
/// sum or a TTL; listeners, a claim or a TTL.
pub(super) type Numbers = [i64; 3];

/// The first number of acquire.lua's answer where a lock has readers.
const READ: i64 = 5;

/// Returns the vote in these numbers, and the number of subscribers of the lock's channel; of a LOCK, 1 if it is
/// refused as there are readers.
pub(super) fn vote_of_numbers(
    kind: Kind,
    [said, value, more]: Numbers,
) -> Result<(Vote, i64), Garbage> {
    let listeners = match kind {
        Kind::Release if said == PLAIN => value,
        Kind::Release | Kind::HandOver { .. } => more,
        Kind::Acquire { .. } if said == READ => 1,
        _ => 0,
    };
    let vote = match (said, kind) {
        (_, Kind::Flush | Kind::Look) => return Err(Garbage),
        (PLAIN, Kind::Acquire { .. }) => Vote::Yes(value),
        (PLAIN, Kind::Release) => Vote::Yes(0),
        (1, Kind::Attach) => {
            // A negative number: the lock has no TTL.
            Vote::Held { fence: value, left: u32::try_from(more).unwrap_or(u32::MAX) }
        }
        (1, Kind::Renew) => Vote::Kept { fence: value, claim: more },
        (1, _) => Vote::Yes(value),
        (READ, Kind::Acquire { .. }) => Vote::No(value),
        (0, Kind::Acquire { .. }) if more != 0 => Vote::Same { left: value, claim: more },
        (0, _) => Vote::No(value),
        (2, Kind::HandOver { .. }) => Vote::Taken(value),
        (3, kind) if kind.is_proven() => Vote::Missing(Absence::Unproven),
        (4, kind) if kind.grants() => Vote::Missing(Absence::FenceEnd),
        _ => return Err(Garbage),
    };
    Ok((vote, listeners))
}

/// Returns the vote in the answer to an operation of this kind: PING has a status, scripts have numbers.
pub(super) fn vote(kind: Kind, frame: &OwnedFrame) -> Result<(Vote, i64), Garbage> {
    match frame {
        OwnedFrame::Array(_) if kind == Kind::Look => look(frame).map(|(vote, _)| (vote, 0)),
        OwnedFrame::Array(all) => {
            let mut numbers = Numbers::default();
            if !(2..=numbers.len()).contains(&all.len()) {
                return Err(Garbage);
            }
            for (number, element) in numbers.iter_mut().zip(all) {
                let OwnedFrame::Integer(value) = element else { return Err(Garbage) };
                *number = *value;
            }
            vote_of_numbers(kind, numbers)
        }
        OwnedFrame::Integer(number) => vote_of_numbers(kind, [PLAIN, *number, 0]),
        OwnedFrame::SimpleString(_) if kind == Kind::Flush => Ok((Vote::Yes(0), 0)),
        OwnedFrame::Error(_) => Ok((Vote::Missing(Absence::Error), 0)),
        _ => Err(Garbage),
    }
}

/// Returns why a node of a cluster does not carry an operation out. Returns `None` if it is another error.
pub(super) fn elsewhere(kind: Kind, error: &str) -> Option<Absence> {
    // An error within a script has a beginning of its own.
    let is = |what: &str| error.starts_with(what) || error.contains(what);
    if error.contains("a non local key") && kind.is_proven() {
        // The slot of the marker has gone: scripts look there first, and change nothing.
        Some(Absence::Unproven)
    } else if error.starts_with("MOVED ")
        || error.starts_with("ASK ")
        || error.starts_with("TRYAGAIN")
        || error.contains("a non local key")
    {
        Some(Absence::Moved)
    } else if is("CLUSTERDOWN") || is("while the cluster is down") {
        Some(Absence::ClusterDown)
    } else {
        None
    }
}

/// Returns the vote in the answer to the question which token holds a lock, and that token.
pub(super) fn look(frame: &OwnedFrame) -> Result<(Vote, &[u8]), Garbage> {
    let OwnedFrame::Array(all) = frame else { return Err(Garbage) };
    use OwnedFrame::{BulkString, Integer};
    let [Integer(said), Integer(left), Integer(claim), BulkString(token)] = &all[..] else {
        return Err(Garbage);
    };
    let vote = match said {
        0 => Vote::No(0),
        1 => Vote::Found { left: *left, claim: *claim },
        3 => Vote::Missing(Absence::Unproven),
        _ => return Err(Garbage),
    };
    Ok((vote, token))
}

/// The replies found in a node's bytes. For the fuzzer, from which votes are hidden.
#[doc(hidden)]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VotesRead {
    /// For each whole reply and each kind of operation the vote, read twice: as plain numbers, if that is possible,
    /// and decoded.
    pub votes: Vec<[String; 2]>,
    /// Bytes of whole replies.
    pub used: usize,
    /// Whether the bytes behind them are no reply.
    pub garbage: bool,
}

/// Reads bytes as a node's connection does; a reply that can be read in two ways is read in both.
#[doc(hidden)]
pub fn read_votes(received: &[u8]) -> VotesRead {
    let kinds = [Kind::HandOver { claim: Claim::new() }, Kind::Release, Kind::Flush, Kind::Look];
    let mut all = VotesRead::default();
    loop {
        let rest = &received[all.used..];
        let by_numbers = numbers(rest).map(|(numbers, length)| {
            (format!("{:?}", kinds.map(|kind| vote_of_numbers(kind, numbers))), length)
        });
        let decoded = read(rest).map(|whole| {
            let (frame, length) = whole?;
            Some((format!("{:?}", kinds.map(|kind| vote(kind, &frame))), length))
        });
        let (by_numbers, decoded) = match (by_numbers, decoded) {
            (None, Ok(None)) => return all,
            (None, Ok(Some(decoded))) => (decoded.clone(), decoded),
            (Some(by_numbers), Ok(Some(decoded))) => (by_numbers, decoded),
            (Some(by_numbers), _) => (by_numbers, ("not decoded".into(), 0)),
            (None, Err(Garbage)) => return VotesRead { garbage: true, ..all },
        };
        all.used += by_numbers.1;
        all.votes.push([by_numbers.0, decoded.0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(reply: &[u8]) -> OwnedFrame {
        read(reply).unwrap().unwrap().0
    }

    #[test]
    fn errors_of_a_cluster_say_what_became_of_a_slot() {
        for (error, why) in [
            ("MOVED 12182 127.0.0.1:7001", Some(Absence::Moved)),
            ("ASK 12182 127.0.0.1:7001", Some(Absence::Moved)),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Some(Absence::Moved)),
            ("CLUSTERDOWN Hash slot not served", Some(Absence::ClusterDown)),
            (
                "ERR Script attempted to access a non local key in a cluster node script: f, on @user_script:1.",
                Some(Absence::Unproven),
            ),
            ("OOM command not allowed", None),
            ("ERR MOVED is a word", None),
        ] {
            assert_eq!(elsewhere(Kind::Renew, error), why, "{error}");
        }
        let released = elsewhere(Kind::Release, "ERR Script attempted to access a non local key");
        assert_eq!(released, Some(Absence::Moved), "it proves nothing, and is sent again");
    }

    #[test]
    fn numbers_are_read_as_the_decoder_reads_them() {
        for reply in
            ["*2\r\n:1\r\n:-1\r\n", "*3\r\n:1\r\n:1795238030796546\r\n:2\r\n", ":7\r\n", ":-1\r\n"]
        {
            let (read, at) = numbers(reply.as_bytes()).unwrap();
            assert_eq!(at, reply.len());
            let frame = whole(reply.as_bytes());
            assert_eq!(vote_of_numbers(Kind::Release, read), vote(Kind::Release, &frame));
            for cut in 0..reply.len() {
                assert_eq!(numbers(&reply.as_bytes()[..cut]), None, "{reply:?} cut at {cut}");
            }
        }
        for other in [
            "*1\r\n:1\r\n",
            "*2\r\n:1\r\n:1234567890123456789\r\n",
            "*2\r\n:\r\n:1\r\n",
            "*2\r\n:01\r\n:1\r\n",
            "*2\r\n:1\r\n:-0\r\n",
            "*2\r\n:1\r\n:00000000000000001\r\n",
            "*2\r\n:1\r\n$1\r\na\r\n",
            "*2\r\n:x\r\n:1\r\n",
            ":x\r\n",
        ] {
            assert_eq!(numbers(other.as_bytes()), None, "{other:?}");
        }
        let plain = numbers(b":7\r\n").unwrap().0;
        assert_eq!(vote_of_numbers(Kind::Release, plain), Ok((Vote::Yes(0), 7)));
        assert_eq!(vote_of_numbers(Kind::Renew, plain), Err(Garbage), "no answer of that script");
    }

    #[test]
    fn numbers_of_any_length_are_read() {
        for length in 1..=MOST as u32 {
            let (least, most) = (10_i64.pow(length - 1), 10_i64.pow(length) - 1);
            for number in [least, most, (least + most) / 7 * 5, -most] {
                let reply = format!("*2\r\n:{number}\r\n:7\r\n");
                assert_eq!(numbers(reply.as_bytes()), Some(([number, 7, 0], reply.len())));
                for at in 5..reply.len() - 7 {
                    for other in [b'/', b':', b'?', 0, 0xb0, 0xff] {
                        let mut reply = reply.clone().into_bytes();
                        reply[at] = other;
                        assert_eq!(numbers(&reply), None, "{number} with {other} at {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_time_is_read_as_the_decoder_reads_it() {
        let text = |seconds: &str, micros: &str| {
            let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
            format!("*2\r\n{}{}", bulk(seconds), bulk(micros))
        };
        for (seconds, micros) in
            [("1763777054", "0"), ("1763777054", "999999"), ("9999999999", "7")]
        {
            let reply = text(seconds, micros);
            let expected =
                1_000_000 * seconds.parse::<i64>().unwrap() + micros.parse::<i64>().unwrap();
            assert_eq!(time(reply.as_bytes()), Some((expected, reply.len())));
            assert_eq!(time(format!("{reply}:1").as_bytes()), Some((expected, reply.len())));
            assert_eq!(time_of(&whole(reply.as_bytes())), Ok(expected));
            for cut in 0..reply.len() {
                assert_eq!(time(&reply.as_bytes()[..cut]), None, "{cut}");
            }
        }
        for (seconds, micros) in [("0", "0"), ("-1", "5"), ("999999999", "1"), ("10000000000", "1")]
        {
            let reply = text(seconds, micros);
            assert_eq!(time(reply.as_bytes()), None);
            let expected =
                1_000_000 * seconds.parse::<i64>().unwrap() + micros.parse::<i64>().unwrap();
            assert_eq!(time_of(&whole(reply.as_bytes())), Ok(expected));
        }
        for (seconds, micros) in [("17637770x4", "0"), ("1763777054", "1x"), ("x763777054", "0")] {
            let reply = text(seconds, micros);
            assert_eq!(time(reply.as_bytes()), None);
            assert_eq!(time_of(&whole(reply.as_bytes())), Err(Garbage));
        }
        let far = whole(text("9223372036854775807", "0").as_bytes());
        assert_eq!(time_of(&far), Err(Garbage));
    }

    #[test]
    fn votes_are_short_arrays() {
        let vote_of = |text: &str| vote(Kind::Release, &whole(text.as_bytes()));
        assert_eq!(vote_of("*2\r\n:1\r\n:7\r\n"), Ok((Vote::Yes(7), 0)));
        assert_eq!(vote_of("*3\r\n:1\r\n:7\r\n:2\r\n"), Ok((Vote::Yes(7), 2)));
        assert_eq!(vote_of("*2\r\n:0\r\n:-1\r\n"), Ok((Vote::No(-1), 0)));
        assert_eq!(vote_of("-ERR x\r\n"), Ok((Vote::Missing(Absence::Error), 0)));
        let acquire = Kind::Acquire { claim: Claim::new(), again: false };
        let passed_on = whole(b"*3\r\n:2\r\n:7\r\n:-1\r\n");
        assert_eq!(
            vote(Kind::HandOver { claim: Claim::new() }, &passed_on),
            Ok((Vote::Taken(7), -1))
        );
        assert_eq!(vote(acquire, &passed_on), Err(Garbage));
        for (text, left) in [(":300", 300), (":-1", u32::MAX), (":5000000000", u32::MAX)] {
            let held = whole(format!("*3\r\n:1\r\n:7\r\n{text}\r\n").as_bytes());
            assert_eq!(vote(Kind::Attach, &held), Ok((Vote::Held { fence: 7, left }, 0)));
        }
        let look = |text: &str| {
            let frame = whole(text.as_bytes());
            let said = super::look(&frame).map(|(said, token)| (said, token.to_vec()));
            if let Ok((said, _)) = said {
                assert_eq!(vote(Kind::Look, &frame), Ok((said, 0)));
            } else {
                assert_eq!(vote(Kind::Look, &frame), Err(Garbage));
            }
            said
        };
        assert_eq!(
            look("*4\r\n:1\r\n:300\r\n:7\r\n$4\r\n\0\r\na\r\n"),
            Ok((Vote::Found { left: 300, claim: 7 }, b"\0\r\na".to_vec()))
        );
        assert_eq!(look("*4\r\n:0\r\n:0\r\n:0\r\n$0\r\n\r\n"), Ok((Vote::No(0), Vec::new())));
        assert_eq!(
            look("*4\r\n:3\r\n:0\r\n:0\r\n$0\r\n\r\n"),
            Ok((Vote::Missing(Absence::Unproven), Vec::new()))
        );
        for bad in [
            "*4\r\n:1\r\n:300\r\n:7\r\n:7\r\n",
            "*4\r\n:1\r\n:300\r\n:7\r\n$-1\r\n",
            "*4\r\n:2\r\n:0\r\n:0\r\n$0\r\n\r\n",
            "*3\r\n:1\r\n:300\r\n$1\r\na\r\n",
            "*2\r\n:1\r\n:300\r\n",
        ] {
            assert_eq!(look(bad), Err(Garbage), "{bad:?}");
        }
        let held = whole(b"*4\r\n:1\r\n:300\r\n:7\r\n$1\r\na\r\n");
        assert_eq!(vote(Kind::Attach, &held), Err(Garbage));
        for bad in ["*2\r\n:2\r\n:7\r\n", "*1\r\n:1\r\n", "$-1\r\n", "+OK\r\n"] {
            assert_eq!(vote_of(bad), Err(Garbage), "{bad:?}");
        }
        let pong = whole(b"+PONG\r\n");
        assert_eq!(vote(Kind::Flush, &pong), Ok((Vote::Yes(0), 0)));
        assert_eq!(vote(acquire, &pong), Err(Garbage));
    }
}
