//! Tests of names with a zero byte: the data node gets other names in their place, which it does not know either.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_name_with_a_zero_byte_hides_no_command() {
    let cases: [(&[&str], &[&str]); 6] = [
        (&["SUBSCRIBE\x0012", "c"], &["SUBSCRIBE\\012"]),
        (&["CLIENT", "REPLY\0x", "SKIP"], &["CLIENT", "REPLY\\0x"]),
        (&["CLUSTER", "NODES\0"], &["CLUSTER", "NODES\\0"]),
        (&["command", "docs\x001"], &["command", "docs\\01"]),
        (&["RESET\0 a longer name than Redis has"], &["RESET\\0 a longer name than Redis has"]),
        (&["QUIT\0"], &["QUIT\\0"]),
    ];
    for (words, instead) in cases {
        let bytes = [command(words), command(&["GET", "k\0"])].concat();
        for cut in 0..bytes.len() {
            for mut pair in [Pair::new(), Pair::guarded()] {
                pair.send(&bytes[..cut]);
                pair.send(&bytes[cut..]);
                let get = text(&["GET", "k\0"]);
                assert_eq!(pair.at_data(), text(instead) + &get, "{words:?} {cut}");
                pair.reply("-ERR unknown\r\n$-1\r\n");
                assert_eq!(pair.at_client(), "-ERR unknown\r\n$-1\r\n");
                assert!(pair.core.is_at_rest());
            }
        }
    }
    // The reply is waited for as any other, and a key may contain such a byte.
    let mut pair = Pair::new();
    pair.send(b"\"MONITOR\\x00\" a\r\n\"GET\" \"a\\x00\"\r\n");
    assert_eq!(pair.at_data(), text(&["MONITOR\\0"]) + "\"GET\" \"a\\x00\"\r\n");
    // In a transaction the data node counts this as an error.
    let mut pair = Pair::new();
    pair.commands(&[&["MULTI"], &["WATCH\0", "a"], &["EXEC"]]);
    assert_eq!(pair.at_data(), text(&["MULTI"]));
    pair.reply("+OK\r\n");
    assert_eq!(pair.at_data(), text(&["WATCH\\0"]) + &text(&["EXEC"]));
    // Without rules, a name passes as it is if Redis cannot take it for a command whose replies are counted otherwise.
    let mut pair = Pair::new();
    pair.commands(&[&["SET\0", "a"]]);
    assert_eq!(pair.at_data(), text(&["SET\0", "a"]));
    let mut pair = Pair::guarded();
    pair.commands(&[&["SET\0", "a"]]);
    assert_eq!(pair.at_data(), text(&["SET\\0"]));
}
