//! The replies that Redis can give to a question of the proxy's own.
//!
//! Questions go over connections that belong to clients. If anything but such a reply comes in its place (a
//! message of a subscription, a line of MONITOR, the reply to another command), replies and commands can no
//! longer be matched, and the question proves nothing.

/// The kind of reply that answers a question, besides an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// An error alone.
    Error,
    /// `+OK`.
    Ok,
    /// `+QUEUED`.
    Queued,
    /// `+OK` or null: SET with a condition.
    Set,
    /// A bulk or verbatim string, or null.
    Text,
    /// An integer.
    Number,
    /// A type's name, as TYPE returns it.
    Type,
    /// PING's reply, which is an array to a subscriber in RESP2.
    Pong,
    /// The reply to a command that pushes, publishes or sets: an integer, a string, null or `+OK`.
    Done,
}

impl Expected {
    /// Whether `reply` may answer the question. The beginning of a long reply is enough.
    pub(crate) fn takes(self, reply: &[u8]) -> bool {
        let end = memchr::memchr(b'\n', reply).map_or(reply.len(), |end| end + 1);
        let line = reply[..end].trim_ascii_end();
        match (self, line) {
            (_, [b'-' | b'!', ..]) => true,
            (Expected::Error, _) => false,
            (Expected::Ok, line) => line == b"+OK",
            (Expected::Queued, line) => line == b"+QUEUED",
            (Expected::Set, line) => is_ok_or_null(line),
            (Expected::Text, line) => is_null(line) || is_headed(line, b"$="),
            (Expected::Number, line) => is_headed(line, b":"),
            (Expected::Type, [b'+', name @ ..]) => {
                name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
                    && line != b"+QUEUED"
            }
            (Expected::Type, _) => false,
            (Expected::Pong, line) => {
                line == b"+PONG" || reply.starts_with(b"*2\r\n$4\r\npong\r\n")
            }
            (Expected::Done, line) => is_ok_or_null(line) || is_headed(line, b":$="),
        }
    }
}

fn is_null(line: &[u8]) -> bool {
    matches!(line, b"$-1" | b"_")
}

fn is_ok_or_null(line: &[u8]) -> bool {
    is_null(line) || matches!(line, b"+OK" | b"*-1")
}

/// Whether the line is one of these type bytes and a number.
fn is_headed(line: &[u8], types: &[u8]) -> bool {
    let [kind, rest @ ..] = line else { return false };
    let digits = rest.strip_prefix(b"-").filter(|_| *kind == b':').unwrap_or(rest);
    types.contains(kind) && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_takes_its_own_replies_alone() {
        use Expected::{Done, Error, Number, Ok, Pong, Queued, Set, Text, Type};
        let all = [Error, Ok, Queued, Set, Text, Number, Type, Pong, Done];
        let cases: [(&str, &[Expected]); 18] = [
            ("-ERR syntax error\r\n", &all),
            ("!9\r\nERR wrong\r\n", &all),
            ("+OK\r\n", &[Ok, Set, Done, Type]),
            ("+QUEUED\r\n", &[Queued]),
            ("$-1\r\n", &[Set, Text, Done]),
            ("_\r\n", &[Set, Text, Done]),
            ("*-1\r\n", &[Set, Done]),
            ("$3\r\nabc\r\n", &[Text, Done]),
            ("=7\r\ntxt:abc\r\n", &[Text, Done]),
            (":-2\r\n", &[Number, Done]),
            ("+string\r\n", &[Type]),
            ("+PONG\r\n", &[Pong, Type]),
            ("*2\r\n$4\r\npong\r\n$0\r\n\r\n", &[Pong]),
            // A message, a confirmation, MONITOR's line, a list, a push, a stream of replication.
            ("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", &[]),
            ("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", &[]),
            ("+1699999999.123456 [0 127.0.0.1:1] \"PING\"\r\n", &[]),
            (">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", &[]),
            ("+FULLRESYNC 8a 0\r\n", &[]),
        ];
        for (reply, takes) in cases {
            for expected in all {
                let does = expected.takes(reply.as_bytes());
                assert_eq!(does, takes.contains(&expected), "{expected:?} {reply:?}");
            }
        }
        for nothing in ["", "+", ":", "$", "$x\r\n", ":1x\r\n", "$-2\r\n", "#t\r\n", "%1\r\n"] {
            let takes = |expected: &Expected| expected.takes(nothing.as_bytes());
            assert!(!all.iter().any(|it| takes(it) && *it != Type), "{nothing:?}");
        }
    }
}
