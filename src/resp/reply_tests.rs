//! Checks that every frame is found at every split, as redis-protocol finds it.

use bytes::Bytes;
use proptest::prelude::*;
use redis_protocol::resp3::decode::complete::decode_bytes;

use super::*;

/// Returns where each frame ended, its head and last integer.
fn frames(pieces: &[&[u8]]) -> Option<Vec<(usize, Vec<u8>, i64)>> {
    let mut scanner = ReplyScanner::default();
    let mut found = Vec::new();
    let mut before = 0;
    for piece in pieces {
        let mut pos = 0;
        loop {
            match scanner.next(piece, &mut pos) {
                NextReply::Frame(frame) => {
                    found.push((before + pos, frame.head.to_vec(), frame.last_integer));
                }
                NextReply::End => break,
                NextReply::Broken => return None,
            }
        }
        before += piece.len();
    }
    Some(found)
}

/// Counts frames as a session does where only their number matters.
fn count_with_skipping(one: &[u8], two: &[u8]) -> usize {
    let (mut scanner, mut count) = (ReplyScanner::default(), 0);
    for piece in [one, two] {
        let mut pos = 0;
        loop {
            count += scanner.skip_flat(piece, &mut pos, 2) as usize;
            match scanner.next(piece, &mut pos) {
                NextReply::Frame(_) => count += 1,
                NextReply::End => break,
                NextReply::Broken => return usize::MAX,
            }
        }
    }
    count
}

fn ends(input: &[u8]) -> Vec<usize> {
    frames(&[input]).unwrap().into_iter().map(|(end, _, _)| end).collect()
}

#[test]
fn elements_of_an_array_that_is_entered_are_frames() {
    let bytes = b"*3\r\n+OK\r\n$-1\r\n$1\r\nx\r\n:1\r\n";
    for split in 0..=4 {
        let mut scanner = ReplyScanner::default();
        for piece in [&bytes[..split], &bytes[split..4]] {
            assert_eq!(scanner.next(piece, &mut 0), NextReply::End);
        }
        scanner.enter();
        assert!(scanner.between_frames());
        let mut pos = 4;
        assert_eq!(scanner.skip_flat(bytes, &mut pos, 1), 1);
        for head in [b"$-1\r\n".as_slice(), b"$1\r\nx\r\n", b":1\r\n"] {
            let NextReply::Frame(frame) = scanner.next(bytes, &mut pos) else { panic!("no frame") };
            assert_eq!(frame.head, head);
        }
    }
}

#[test]
fn finds_the_end_of_each_kind_of_frame() {
    for frame in [
        "+OK\r\n",
        "-ERR no\r\n",
        ":12\r\n",
        "$3\r\nabc\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n:1\r\n$1\r\na\r\n",
        "*2\r\n*1\r\n:1\r\n*0\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(123456789012345678901234567890\r\n",
        "=7\r\ntxt:abc\r\n",
        "!5\r\nERR x\r\n",
        "~1\r\n+a\r\n",
        "%1\r\n+a\r\n:1\r\n",
        "%0\r\n",
        ">2\r\n+a\r\n:1\r\n",
        "|1\r\n+a\r\n:1\r\n*1\r\n:5\r\n",
        "*1\r\n|1\r\n+a\r\n:1\r\n:5\r\n",
        "$4\r\n\r\n\r\n\r\n",
        // Redis 7.0 puts a push in the middle and at the end of EXEC's array.
        "*2\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n:1\r\n:2\r\n",
        "*2\r\n:1\r\n>2\r\n+a\r\n:9\r\n:2\r\n",
    ] {
        let twice = [frame.as_bytes(), frame.as_bytes()].concat();
        assert_eq!(ends(&twice), vec![frame.len(), frame.len() * 2], "{frame:?}");
    }
}

#[test]
fn keeps_the_head_and_the_last_integer_over_every_split() {
    let input =
        b"*3\r\n$12\r\npunsubscribe\r\n$3\r\nabc\r\n:7\r\n+1699999999.123456 [0 x] \"a\"\r\n";
    let whole = frames(&[input]).unwrap();
    assert_eq!(whole[0].2, 7);
    for cut in 0..=input.len() {
        assert_eq!(frames(&[&input[..cut], &input[cut..]]).unwrap(), whole, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(frames(&bytes).unwrap(), whole);
    let frame = Frame { head: &whole[0].1, last_integer: 7 };
    assert_eq!(frame.first_element(), Some(b"punsubscribe".as_slice()));
}

#[test]
fn the_bytes_of_a_frame_that_has_begun_are_counted_at_every_cut() {
    let input = b"$1\r\na\r\n*2\r\n$3\r\nabc\r\n:7\r\n+a long line, longer than what is kept of it\r\n:1\r\n";
    let ends = ends(input);
    for pieces in [1, 2, 5, 1000] {
        let (mut scanner, mut seen) = (ReplyScanner::default(), 0);
        for piece in input.chunks(pieces) {
            let mut pos = 0;
            while !matches!(scanner.next(piece, &mut pos), NextReply::End) {}
            seen += piece.len();
            let whole = ends.iter().filter(|end| **end <= seen).max().copied().unwrap_or_default();
            assert_eq!(scanner.begun(), seen - whole, "{seen} in pieces of {pieces}");
        }
    }
}

#[test]
fn skipping_takes_nothing_that_is_broken_in_pieces() {
    for bad in [":1x\r\n", ":\x1d\n", "$1\r2\r\n", "$1\rab\r\n", "$\rab\n"] {
        let whole = count_with_skipping(bad.as_bytes(), b"");
        for cut in 0..=bad.len() {
            let (one, two) = bad.as_bytes().split_at(cut);
            assert_eq!(count_with_skipping(one, two), whole, "{bad:?} cut at {cut}");
        }
    }
}

#[test]
fn depth_and_length_cost_nothing() {
    let nested = b"*1\r\n".repeat(100_000);
    assert_eq!(frames(&[&nested]), Some(vec![]));
    assert_eq!(frames(&[b"*9223372036854775807\r\n%9223372036854775807\r\n"]), Some(vec![]));
    assert!(frames(&[b"$99999999999999999999999\r\nabc"]).is_some());
}

#[test]
fn what_is_not_resp_is_broken() {
    for input in ["hello\r\n", "\n", "*x\r\n", "*1\r\nfoo", "$1a\r\n"] {
        assert_eq!(frames(&[input.as_bytes()]), None, "{input:?}");
    }
}

/// RESP3 as Redis writes it, without what redis-protocol misreads (`*-1`).
fn reply() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        "[ -~]{0,12}".prop_map(|s| format!("+{s}\r\n").into_bytes()),
        "ERR [ -~]{0,12}".prop_map(|s| format!("-{s}\r\n").into_bytes()),
        any::<i64>().prop_map(|n| format!(":{n}\r\n").into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(|v| [
            format!("${}\r\n", v.len()).as_bytes(),
            &v,
            b"\r\n"
        ]
        .concat()),
        Just(b"_\r\n".to_vec()),
        Just(b"#t\r\n".to_vec()),
        Just(b",3.5\r\n".to_vec()),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(|v| [
                format!("*{}\r\n", v.len()).into_bytes(),
                v.concat()
            ]
            .concat()),
            proptest::collection::vec((".{0,3}", inner), 0..4).prop_map(|pairs| {
                let mut out = Vec::new();
                for (number, (key, value)) in pairs.iter().enumerate() {
                    let key = format!("{number}{key}");
                    out.extend(format!("${}\r\n{key}\r\n", key.len()).into_bytes());
                    out.extend(value);
                }
                [format!("%{}\r\n", pairs.len()).into_bytes(), out].concat()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_redis_protocol_at_every_split(
        replies in proptest::collection::vec(reply(), 1..4)
    ) {
        let input = Bytes::from(replies.concat());
        let mut expected = Vec::new();
        let mut at = 0;
        while at < input.len() {
            let rest = input.slice(at..);
            let (_, used) = decode_bytes(&rest).unwrap().unwrap();
            at += used;
            expected.push(at);
        }
        let whole = frames(&[&input]).unwrap();
        prop_assert_eq!(whole.iter().map(|f| f.0).collect::<Vec<_>>(), expected);
        for cut in 0..=input.len() {
            prop_assert_eq!(&frames(&[&input[..cut], &input[cut..]]).unwrap(), &whole);
            prop_assert_eq!(count_with_skipping(&input[..cut], &input[cut..]), whole.len());
        }
    }
}

#[test]
fn a_refused_write_is_noticed_in_one_piece_and_in_many() {
    let refusals = [
        "-READONLY You can't write against a read only replica.\r\n",
        "-EXECABORT Transaction discarded because of: READONLY You can't write.\r\n",
        "*2\r\n+OK\r\n-READONLY You can't write against a read only replica.\r\n",
    ];
    let others = [
        "-READONLX You can't\r\n",
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
        "-ERR READONLY \r\n",
        "-READ\r\n",
        "-\r\n",
        "+READONLY \r\n",
        "$12\r\n-READONLY x\r\n\r\n",
    ];
    let cases = refusals.map(|text| (text, true)).into_iter();
    for (text, refuses) in cases.chain(others.map(|text| (text, false))) {
        let (bytes, mut pos) = (text.as_bytes(), 0);
        let mut scanner = ReplyScanner::default();
        if text.starts_with('-') {
            assert_eq!(scanner.skip_flat(bytes, &mut pos, 1), 1);
            assert_eq!(scanner.take_refused_write(), refuses, "at once: {text:?}");
            assert!(!scanner.take_refused_write(), "once");
        }
        for size in [1, 2, 7, bytes.len()] {
            let mut scanner = ReplyScanner::default();
            let mut frames = 0;
            for piece in bytes.chunks(size) {
                let mut pos = 0;
                while let NextReply::Frame(frame) = scanner.next(piece, &mut pos) {
                    assert!(bytes.starts_with(frame.head), "{text:?}");
                    frames += 1;
                }
                assert_eq!(pos, piece.len());
            }
            assert_eq!((frames, scanner.take_refused_write()), (1, refuses), "{size}: {text:?}");
        }
    }
}
