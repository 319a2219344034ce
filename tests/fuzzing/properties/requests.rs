//! The request scanner finds the same commands at every split, and the same as `split`, the inline grammar and
//! redis-protocol.

use arbitrary::{Result, Unstructured};
use lockgate::resp::{
    encode,
    name::{Name, Own, own_by_name},
    request::{NextRequest, RequestScanner},
    split::{Split, split},
};
use rand::RngExt;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame};

use super::pieces::{seeded, ways};

/// A limit that no input reaches.
const MUCH: usize = 1 << 40;

/// The result of a scan.
#[derive(Debug, PartialEq)]
struct Scanned {
    /// For each command its position, its name and its number of words.
    commands: Vec<(usize, Name, usize)>,
    broken: bool,
    /// Where the last command ends, if its end was seen.
    end: Option<usize>,
}

/// Plays `pieces` as a session does: undecided bytes are shown again with more behind them. With `alike`, commands
/// that begin like the one before are skipped in one go.
fn scan(pieces: &[&[u8]], alike: bool) -> Scanned {
    let mut scanner = RequestScanner::default();
    let (mut commands, mut kept, mut kept_at) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        kept.extend_from_slice(piece);
        let mut pos = 0;
        loop {
            let before = pos;
            let next = scanner.next(&kept, &mut pos);
            assert!((before..=kept.len()).contains(&pos), "{before} {pos} {}", kept.len());
            match next {
                NextRequest::Command { name, arguments, at } => {
                    assert!((before..pos).contains(&at));
                    commands.push((kept_at + at, name, arguments));
                    if alike {
                        let before = commands.len();
                        let count = scanner.skip_alike(&kept, &mut pos, |here| {
                            commands.push((kept_at + kept.len() - here.len(), name, arguments));
                            true
                        });
                        assert_eq!(before + count as usize, commands.len());
                        assert!(pos <= kept.len());
                    }
                }
                NextRequest::End => {
                    assert_eq!(pos, kept.len());
                    break;
                }
                NextRequest::Undecided => {
                    assert!(scanner.between_commands());
                    scanner.restart();
                    break;
                }
                NextRequest::Broken => {
                    let end = scanner.between_commands().then_some(kept_at + pos);
                    return Scanned { commands, broken: true, end };
                }
            }
        }
        kept_at += pos;
        kept.drain(..pos);
    }
    let end = scanner.between_commands().then_some(kept_at);
    Scanned { commands, broken: false, end }
}

/// All names that a rule knows, and others.
const VOCABULARY: [&str; 34] = [
    "LOCK",
    "UNLOCK",
    "RENEW",
    "LOCKGATE",
    "MULTI",
    "EXEC",
    "DISCARD",
    "SUBSCRIBE",
    "PSUBSCRIBE",
    "SSUBSCRIBE",
    "UNSUBSCRIBE",
    "PUNSUBSCRIBE",
    "SUNSUBSCRIBE",
    "CLIENT",
    "REPLY",
    "ON",
    "OFF",
    "SKIP",
    "CACHING",
    "YES",
    "COMMAND",
    "INFO",
    "DOCS",
    "ASKING",
    "AUTH",
    "HELLO",
    "RESET",
    "QUIT",
    "MONITOR",
    "SYNC",
    "REPLCONF",
    "GET",
    "",
    "a longer one",
];

/// Makes commands of known words, which mutating bytes would not produce.
fn commands(data: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    while !data.is_empty() {
        let begin: &[&str] = match data.int_in_range(0..=7)? {
            0 => &["CLIENT", "REPLY"],
            1 => &["CLIENT", "CACHING"],
            2 => &["COMMAND", "DOCS"],
            3 => &["COMMAND", "INFO"],
            _ => &[],
        };
        let mut words: Vec<String> = begin.iter().map(|word| (*word).to_owned()).collect();
        for _ in 0..data.int_in_range(1..=3)? {
            let word = *data.choose(&VOCABULARY)?;
            words.push(if data.arbitrary()? { word.to_owned() } else { word.to_lowercase() });
        }
        if data.ratio(1, 3)? {
            let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            out.extend_from_slice(format!("{}\r\n", quoted.join(" ")).as_bytes());
        } else {
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            for _ in 0..data.int_in_range(1..=3)? {
                encode::command(&mut out, &words);
            }
        }
    }
    Ok(out)
}

/// Checks an input: two bytes of seed, then the bytes of a client, or material for commands.
pub fn check(input: &[u8]) {
    let (mut rng, bytes) = seeded(input);
    let made;
    let bytes = match input.first() {
        Some(128..) => {
            made = commands(&mut Unstructured::new(bytes)).unwrap_or_default();
            &made
        }
        _ => bytes,
    };
    let whole = scan(&[bytes], false);
    for pieces in ways(bytes, &mut rng) {
        for alike in [false, true] {
            assert_eq!(scan(&pieces, alike), whole, "cut into {pieces:?}, {alike}");
        }
    }
    let ends = whole.commands.iter().skip(1).map(|next| Some(next.0)).chain([whole.end]);
    for (&(at, name, arguments), end) in whole.commands.iter().zip(ends) {
        let Some(end) = end else { continue };
        let command = &bytes[at..end];
        let Split::Whole { words, length } = split(&bytes[at..], MUCH, MUCH) else {
            panic!("not taken apart: {:?}", command.escape_ascii().to_string());
        };
        assert_eq!((words.len(), length), (arguments, command.len()));
        let cut = rng.random_range(0..command.len());
        assert_eq!(split(&command[..cut], MUCH, MUCH), Split::Incomplete, "cut at {cut}");
        if words.is_empty() {
            assert_eq!(name, Name::Blank);
            continue;
        }
        let own = own_by_name(&words[0]);
        assert_eq!(
            own,
            match name {
                Name::Own(own) if own != Own::Command => Some(own),
                _ => None,
            }
        );
        // Written as an array, it is the same command.
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut plain = Vec::new();
        encode::command(&mut plain, &words);
        let again = scan(&[&plain], false);
        let same =
            Scanned { commands: vec![(0, name, arguments)], broken: false, end: Some(plain.len()) };
        assert_eq!(again, same, "{:?}", plain.escape_ascii().to_string());
        if plain == command {
            let frame = words.iter().map(|word| OwnedFrame::BulkString(word.to_vec())).collect();
            let decoded = decode(command).unwrap();
            assert_eq!(decoded, Some((OwnedFrame::Array(frame), command.len())));
        }
    }
}
