//! Checks that every command is found at every split, as redis-protocol finds it.

use std::borrow::Cow;

use proptest::prelude::*;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame};

use super::{
    super::{
        name::{Channels, Listing, Own, ReplyMode},
        split::{Split, split},
    },
    *,
};

/// Commands with the offset of their first byte and their number of words, where `Broken` began, and whether
/// everything was whole.
type Scanned = (Vec<(usize, Name, usize)>, Option<usize>, bool);

/// Plays `pieces` as a session does: undecided bytes are shown again with more behind them.
fn scan(pieces: &[&[u8]]) -> Scanned {
    let mut scanner = RequestScanner::default();
    let (mut found, mut kept, mut kept_at) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        kept.extend_from_slice(piece);
        let mut pos = 0;
        loop {
            match scanner.next(&kept, &mut pos) {
                NextRequest::Command { name, arguments, at, .. } => {
                    found.push((kept_at + at, name, arguments));
                }
                NextRequest::End => {
                    assert_eq!(pos, kept.len());
                    break;
                }
                NextRequest::Undecided => break,
                NextRequest::Broken => return (found, Some(kept_at + pos), false),
            }
        }
        kept_at += pos;
        kept.drain(..pos);
    }
    let done = scanner.between_commands() && kept.is_empty();
    (found, None, done)
}

fn names(input: &[u8]) -> Vec<(Name, usize)> {
    let whole = scan(&[input]);
    let what = |result: &Scanned| (result.0.clone(), result.1.is_some(), result.2);
    for cut in 0..=input.len() {
        assert_eq!(what(&scan(&[&input[..cut], &input[cut..]])), what(&whole), "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(what(&scan(&bytes)), what(&whole), "byte by byte");
    assert!(whole.2, "the end of {input:?} was not found");
    what(&whole).0.iter().map(|c| (c.1, c.2)).collect()
}

#[test]
fn a_command_that_begins_as_the_one_before_is_known_again() {
    let cases: [(&[&[u8]], bool); 14] = [
        (&[b"GET", b"k"], false),
        (&[b"GET", b"k"], true),
        (&[b"GET", b"another"], true),
        // These have another number of words, another case, or another name of the same length.
        (&[b"GET"], false),
        (&[b"get"], false),
        (&[b"PUT"], false),
        (&[b"PUTS"], false),
        (&[b"PUTS"], true),
        // This name is too long to be remembered, and the one before is forgotten.
        (&[b"SUBSCRIBE", b"k"], false),
        (&[b"SUBSCRIBE", b"k"], false),
        (&[b"PUTS"], false),
        // These are named by their second word.
        (&[b"CLIENT", b"REPLY", b"ON"], false),
        (&[b"CLIENT", b"REPLY", b"OFF"], false),
        (&[b"GET", b"k"], false),
    ];
    let (mut bytes, mut begins) = (Vec::new(), Vec::new());
    for (words, _) in cases {
        begins.push(bytes.len());
        super::super::encode::command(&mut bytes, words);
    }
    // Behind the last command, so that sixteen bytes can be read from the beginning of each.
    bytes.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$1\r\n");
    let (mut scanner, mut pos) = (RequestScanner::default(), 0);
    for ((words, expected), begin) in cases.into_iter().zip(begins) {
        let repeated = scanner.last.again(&bytes[begin..]).is_some();
        let NextRequest::Command { arguments, .. } = scanner.next(&bytes, &mut pos) else {
            panic!("{words:?}");
        };
        assert_eq!((arguments, repeated), (words.len(), expected), "{words:?}");
    }
}

#[test]
fn names_are_known_in_any_case_at_every_split() {
    let cases: [(&str, Name); 37] = [
        ("LOCK", Name::Own(Own::Lock)),
        ("lock", Name::Own(Own::Lock)),
        ("uNlOcK", Name::Own(Own::Unlock)),
        ("RENEW", Name::Own(Own::Renew)),
        ("mLock", Name::Own(Own::Mlock)),
        ("MUNLOCK", Name::Own(Own::Munlock)),
        ("MUNLOCKS", Name::Other),
        ("LOCK.ATTACH", Name::Own(Own::Attach)),
        ("lock.Detach", Name::Own(Own::Detach)),
        ("LOCK.ATTACK", Name::Other),
        ("LOCKX", Name::Other),
        ("LOC", Name::Other),
        ("GET", Name::Other),
        ("", Name::Other),
        ("MULTI", Name::Multi),
        ("EXEC", Name::Exec),
        ("discard", Name::Discard),
        ("Select", Name::Select),
        ("SUBSCRIBE", Name::Subscribe(Channels::Plain)),
        ("PSUBSCRIBE", Name::Subscribe(Channels::Pattern)),
        ("SSUBSCRIBE", Name::Subscribe(Channels::Shard)),
        ("UNSUBSCRIBE", Name::Unsubscribe(Channels::Plain)),
        ("PUNSUBSCRIBE", Name::Unsubscribe(Channels::Pattern)),
        ("SUNSUBSCRIBE", Name::Unsubscribe(Channels::Shard)),
        ("ASKING", Name::Asking),
        ("AUTH", Name::Auth),
        ("HELLO", Name::Hello),
        ("RESET", Name::Reset),
        ("QUIT", Name::Quit),
        ("MONITOR", Name::Monitor),
        ("SYNC", Name::Sync),
        ("PSYNC", Name::Sync),
        ("REPLCONF", Name::Replconf),
        ("CLIENT", Name::Other),
        ("COMMAND", Name::Other),
        ("PUNSUBSCRIBEX", Name::Other),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", Name::Other),
    ];
    for (word, name) in cases {
        let input = format!("*2\r\n${}\r\n{word}\r\n$2\r\n\r\n\r\n", word.len());
        assert_eq!(names(input.as_bytes()), vec![(name, 2)], "{word}");
        if !word.is_empty() {
            assert_eq!(names(format!("{word} x\r\n").as_bytes()), vec![(name, 2)], "{word}");
            assert_eq!(names(format!(" \"{word}\" 'x'\n").as_bytes()), vec![(name, 2)], "{word}");
        }
    }
}

#[test]
fn client_is_told_apart_by_its_next_words() {
    let cases: [(&[&str], Name); 11] = [
        (&["CLIENT", "REPLY", "OFF"], Name::ClientReply(ReplyMode::Off)),
        (&["client", "reply", "on"], Name::ClientReply(ReplyMode::On)),
        (&["CLIENT", "REPLY", "sKip"], Name::ClientReply(ReplyMode::Skip)),
        (&["CLIENT", "REPLY", "X"], Name::Other),
        (&["CLIENT", "REPLY", "ON", "ON"], Name::Other),
        (&["CLIENT", "CACHING", "YES"], Name::NextOnly),
        (&["client", "caching", "no"], Name::NextOnly),
        (&["CLIENT", "CACHING", "longer-than-ours"], Name::Other),
        (&["CLIENT", "SETNAME", "REPLY"], Name::SetName),
        (&["CLIENT", "SETINFO", "a-longer-argument"], Name::Other),
        (&["CLIENT", "ID"], Name::Other),
    ];
    for (words, name) in cases {
        let mut input = Vec::new();
        let bytes: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        crate::resp::encode::command(&mut input, &bytes);
        assert_eq!(names(&input), vec![(name, words.len())], "{words:?}");
        let line = words.join(" ") + "\r\n";
        assert_eq!(names(line.as_bytes()), vec![(name, words.len())], "{words:?}");
    }
}

#[test]
fn a_mode_ends_at_a_zero_byte() {
    let long = b"OFF\0and then a lot more".as_slice();
    for (word, name) in [
        (b"OFF\0".as_slice(), Name::ClientReply(ReplyMode::Off)),
        (long, Name::ClientReply(ReplyMode::Off)),
        (b"skip\0x", Name::ClientReply(ReplyMode::Skip)),
        (b"\0OFF", Name::Other),
        (b"OFFOFFOFFOFFOFF", Name::Other),
    ] {
        let mut input = Vec::new();
        crate::resp::encode::command(&mut input, &[b"CLIENT", b"REPLY", word]);
        assert_eq!(names(&input), vec![(name, 3)], "{}", word.escape_ascii());
    }
    let mut input = Vec::new();
    crate::resp::encode::command(&mut input, &[b"CLIENT", b"CACHING", b"yes\0no"]);
    assert_eq!(names(&input), vec![(Name::NextOnly, 3)]);
    assert_eq!(
        names(b"CLIENT REPLY \"off\\x00 on\"\r\n"),
        vec![(Name::ClientReply(ReplyMode::Off), 3)]
    );
}

#[test]
fn command_is_told_apart_by_its_next_words() {
    let cases: [(&[&str], Name); 17] = [
        (&["COMMAND"], Name::Listing(Listing::Info)),
        (&["command", "info"], Name::Listing(Listing::Info)),
        (&["COMMAND", "Docs"], Name::Listing(Listing::Docs)),
        (&["COMMAND", "INFO", "lock"], Name::Own(Own::Command)),
        (&["COMMAND", "INFO", "lock.attach"], Name::Own(Own::Command)),
        (&["COMMAND", "DOCS", "LOCKGATE", "get"], Name::Own(Own::Command)),
        (&["COMMAND", "DOCS", "get"], Name::Other),
        (&["COMMAND", "DOCS", "get", "lock"], Name::Other),
        (&["COMMAND", "DOCS", "georadiusbymember"], Name::Other),
        (&["COMMAND", "COUNT"], Name::Listing(Listing::Count)),
        (&["COMMAND", "List"], Name::Listing(Listing::List)),
        (&["COMMAND", "GETKEYSANDFLAGS", "lock"], Name::Own(Own::Command)),
        (&["COMMAND", "GetKeys", "mlock", "2", "a", "b"], Name::Own(Own::Command)),
        (&["COMMAND", "GETKEYS", "get", "lock"], Name::Other),
        (&["COMMAND", "GETKEYSANDFLAGS"], Name::Other),
        (&["COMMAND", "INFOS"], Name::Other),
        (&["COMMAND", "LIST", "lock"], Name::Other),
    ];
    for (words, name) in cases {
        let mut input = Vec::new();
        let bytes: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        crate::resp::encode::command(&mut input, &bytes);
        assert_eq!(names(&input), vec![(name, words.len())], "{words:?}");
        let line = words.join(" ") + "\r\n";
        assert_eq!(names(line.as_bytes()), vec![(name, words.len())], "{words:?}");
        // A line that is cut is kept back until its name is clear.
        for cut in 0..input.len() {
            let (mut scanner, mut pos) = (RequestScanner::default(), 0);
            match scanner.next(&input[..cut], &mut pos) {
                NextRequest::Command { name: early, .. } => {
                    assert_eq!(early, name, "{words:?} {cut}")
                }
                NextRequest::Undecided | NextRequest::End => {}
                NextRequest::Broken => panic!("{words:?} {cut}"),
            }
        }
    }
}

#[test]
fn commands_without_words_have_no_reply() {
    assert_eq!(names(b"\r\n*0\r\n*-1\r\n  \n*-7\rX"), vec![(Name::Blank, 0); 5]);
}

#[test]
fn line_ends_are_as_careless_as_in_redis() {
    assert_eq!(names(b"*1\rX$4\r?PINGabPING\n"), vec![(Name::Other, 1), (Name::Other, 1)]);
}

#[test]
fn what_redis_refuses_is_broken_where_it_begins() {
    let head = b"*1\r\n$4\r\nPING\r\n";
    for bad in [
        "*01\r\n",
        "*+1\r\n",
        "*1 \r\n",
        "*-0\r\n",
        "*2147483648\r\n",
        "*x\r\n",
        "*\r\n",
        "*11111111111111111111111111",
        "*1\r\n:4\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$+4\r\n",
        "*1\r\n$04\r\nPING\r\n",
        "*1\r\n$x\r\n",
        "a \"b\r\n",
        "a\0b\r\n",
    ] {
        let input = [head, bad.as_bytes()].concat();
        let (found, broken, _) = scan(&[&input]);
        assert_eq!((found.len(), broken), (1, Some(head.len())), "{bad:?}");
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(scan(&bytes).1, Some(head.len()), "{bad:?} byte by byte");
    }
    // This command breaks behind its name, at the bad argument.
    let (found, broken, _) = scan(&[b"*2\r\n$3\r\nGET\r\n$-1\r\n"]);
    assert_eq!((found.len(), broken.is_some()), (1, true));
}

/// Cuts right behind the `\r` of the longest line that is kept, where it once ran over its buffer.
#[test]
fn a_length_with_too_many_digits_is_broken_wherever_it_is_cut() {
    for digits in 20..30 {
        for number in ["9".repeat(digits), format!("-{}", "9".repeat(digits))] {
            let input = format!("*2\r\n$3\r\nGET\r\n${number}\r\nabc");
            for cut in 0..input.len() {
                let (one, two) = input.as_bytes().split_at(cut);
                let (found, broken, _) = scan(&[one, two]);
                assert_eq!((found.len(), broken.is_some()), (1, true), "{number} cut at {cut}");
            }
            let bytes: Vec<&[u8]> = input.as_bytes().chunks(1).collect();
            assert!(scan(&bytes).1.is_some(), "{number} byte by byte");
        }
    }
}

#[test]
fn an_endless_line_is_broken_and_not_kept_for_ever() {
    let line = vec![b'a'; INLINE_LIMIT + 1];
    assert_eq!(scan(&[&line]).1, Some(0));
    assert_eq!(scan(&[&line[..INLINE_LIMIT]]).1, None);
}

#[test]
fn a_command_is_known_before_its_values_arrive() {
    let (found, broken, done) = scan(&[b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc"]);
    assert_eq!(found, vec![(0, Name::Other, 3)]);
    assert_eq!((broken, done), (None, false));
}

#[test]
fn nesting_is_only_a_broken_command() {
    let nested = b"*1\r\n".repeat(100_000);
    assert_eq!(scan(&[&nested]), (vec![], Some(0), false));
}

#[test]
fn split_takes_a_whole_command_apart_at_no_split_too_early() {
    let input = b"*3\r\n$4\r\nLOCK\r\n$3\r\na\r\n\r\n$0\r\n\r\nmore";
    let length = input.len() - 4;
    for cut in 0..length {
        assert_eq!(split(&input[..cut], 8, 100), Split::Incomplete, "cut at {cut}");
    }
    let copied = |words: &[&'static [u8]]| words.iter().map(|word| Cow::Borrowed(*word)).collect();
    let words = copied(&[b"LOCK", b"a\r\n", b""]);
    assert_eq!(split(input, 8, 100), Split::Whole { words, length });
    assert_eq!(split(input, 2, 100), Split::TooLong);
    assert_eq!(split(input, 8, 20), Split::TooLong);
    assert_eq!(split(b"*2\r\n$4\r\nLOCK\r\n$9223372036854775807\r\n", 8, 100), Split::TooLong);
    let words = copied(&[b"lock", b"a b"]);
    assert_eq!(split(b"lock 'a b'\r\nx", 8, 100), Split::Whole { words, length: 12 });
}

proptest! {
    #[test]
    fn agrees_with_redis_protocol_at_every_split(
        commands in proptest::collection::vec(
            proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..20),
                    prop::sample::select(vec!["LOCK", "CLIENT", "REPLY", "OFF", "EXEC", "*1\r\n"])
                        .prop_map(|s| s.as_bytes().to_vec()),
                ],
                1..6,
            ),
            1..4,
        )
    ) {
        let mut input = Vec::new();
        for words in &commands {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            crate::resp::encode::command(&mut input, &words);
        }
        let mut at = 0;
        for words in &commands {
            let (frame, used) = decode(&input[at..]).unwrap().unwrap();
            let expected = words.iter().cloned().map(OwnedFrame::BulkString).collect();
            prop_assert_eq!(frame, OwnedFrame::Array(expected));
            let same = words.iter().map(|word| Cow::Borrowed(word.as_slice())).collect();
            let whole = Split::Whole { words: same, length: used };
            prop_assert_eq!(split(&input[at..], 8, 1000), whole);
            at += used;
        }
        let counts: Vec<usize> = names(&input).into_iter().map(|(_, n)| n).collect();
        prop_assert_eq!(counts, commands.iter().map(Vec::len).collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_are_scanned_alike_however_they_are_split(
        input in proptest::collection::vec(
            prop::sample::select(b"*$12\r\nA\" -+0x".to_vec()), 0..60),
        cut in 0usize..60,
    ) {
        let cut = cut.min(input.len());
        let (whole, split) = (scan(&[&input]), scan(&[&input[..cut], &input[cut..]]));
        let what = |r: &Scanned| {
            (r.0.clone(), r.1.is_some(), r.2)
        };
        prop_assert_eq!(what(&whole), what(&split));
    }
}
