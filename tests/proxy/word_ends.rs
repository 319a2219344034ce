//! Where a word of a line ends: as in a real Redis, for every byte in, before and behind a word, escaped and in
//! quotes.

use lockgate::resp::inline;

use crate::support::{Client, Proxy, Reply};

/// A script that answers with its words, which makes them visible.
const SHOW: &[u8] = b"EVAL return(ARGV) 0 ";

/// The shapes of lines, with `@` in place of the byte.
const SHAPES: [&str; 26] = [
    "@",
    "a@",
    "@a",
    "a@b",
    "a @ b",
    "a@@b",
    "a @b",
    "a@ b",
    "'a@b'",
    "'@'",
    "'a'@b",
    "'a'@",
    "'a@",
    "'a\\@b'",
    "\"a@b\"",
    "\"@\"",
    "\"a\"@b",
    "\"a\"@",
    "\"a@",
    "\"a\\@b\"",
    "\"\\x@1\"",
    "\"\\x4@\"",
    "a@\"b\"",
    "a\"b@\"",
    "a\\@b",
    "@'a' @\"b\"",
];

/// Returns all lines that show their words.
fn lines() -> impl Iterator<Item = Vec<u8>> {
    // Zero and `\n` are left out: they end a line wherever they stand.
    let bytes = (1..=255).filter(|byte| *byte != b'\n');
    bytes.flat_map(|byte: u8| {
        SHAPES.iter().map(move |shape| {
            let shape = shape.bytes().map(|it| if it == b'@' { byte } else { it });
            SHOW.iter().copied().chain(shape).collect()
        })
    })
}

/// Encodes these words as an array.
fn array(words: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Returns the reply to a line that ends the connection.
fn last_words(mut client: Client, line: &[u8]) -> String {
    client.send(line);
    String::from_utf8_lossy(&client.rest().0).into_owned()
}

#[test]
fn a_line_has_the_words_that_redis_reads() {
    let rules =
        "guards:\n  - keys: 'g:*'\n    lock: 'l:{1}'\nadopt:\n  - keys: 'a:*'\n    mode: enforce";
    let proxy = Proxy::with().top(rules).start();
    let (mut as_line, mut as_array) = (proxy.data_client(), proxy.data_client());
    let mut through = proxy.client();
    let (mut read, mut unbalanced) = (0, 0);
    for line in lines() {
        let shown = line.escape_ascii().to_string();
        let ended = [&line[..], b"\r\n"].concat();
        match inline::split(&line) {
            Some(words) => {
                as_line.send(&ended);
                as_array.send(&array(&words));
                through.send(&ended);
                let expected = as_line.reply();
                assert!(matches!(expected, Reply::Array(_)), "{shown}: {expected:?}");
                assert_eq!(as_array.reply(), expected, "{shown}");
                assert_eq!(through.reply(), expected, "{shown}, through the proxy");
                read += 1;
            }
            None => {
                let expected = "-ERR Protocol error: unbalanced quotes in request\r\n";
                assert_eq!(last_words(proxy.data_client(), &ended), expected, "{shown}");
                // All bytes but quotes behave alike here.
                if unbalanced % 8 == 0 {
                    assert_eq!(last_words(proxy.client(), &ended), expected, "{shown}");
                }
                unbalanced += 1;
            }
        }
    }
    assert!(read > 4000 && unbalanced > 500, "{read} {unbalanced}");
    // The first word ends in the same way.
    for byte in (1..=255).filter(|byte| !b"\n*\"'".contains(byte)) {
        for line in [[b"PING", &[byte][..]].concat(), [&[byte][..], b"PING"].concat()] {
            let words = inline::split(&line).unwrap();
            as_line.send(&[&line[..], b"\r\n"].concat());
            as_array.send(&array(&words));
            assert_eq!(as_line.reply(), as_array.reply(), "{}", line.escape_ascii());
        }
    }
}
