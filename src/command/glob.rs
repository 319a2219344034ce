//! Redis's glob patterns, as KEYS has them: `*`, `?`, `[abc]`, `[^abc]`, `[a-z]`, `\x`.

/// Whether all of `text` matches `pattern`. Takes at most as many steps as the one
/// is long times the other, whatever they are.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Behind the last `*`, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, from));
            continue;
        }
        match text.get(from) {
            None if at == pattern.len() => return true,
            Some(byte) if at < pattern.len() => {
                if let Some(length) = one(&pattern[at..], *byte) {
                    at += length;
                    from += 1;
                    continue;
                }
            }
            _ => {}
        }
        // The last `*` takes one byte more, if there is one.
        match star {
            Some((behind, taken)) if taken < text.len() => {
                star = Some((behind, taken + 1));
                (at, from) = (behind, taken + 1);
            }
            _ => return false,
        }
    }
}

/// How long the element at the beginning of the pattern is, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', class @ ..] => one_of(class, byte).map(|length| 1 + length),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// The same for a class, behind its `[`. One that is not closed ends with the pattern.
fn one_of(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    let length = loop {
        match &class[at..] {
            [] => break at,
            [b']', ..] => break at + 1,
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [low, b'-', high, ..] => {
                let (low, high) = (low.min(high), low.max(high));
                found |= (low..=high).contains(&&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    };
    (found != negated).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_redis_does() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("job:*", "job:1", true),
            ("job:*", "jobs", false),
            ("*:1", "job:1:1", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbX", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h[a-b]llo", "hcllo", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("a\\", "a\\", true),
            ("[abc", "b", true),
            ("a**", "a", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_exponential_time() {
        let pattern = b"*a".repeat(500);
        assert!(!matches(&pattern, &[b'a'; 499]));
        assert!(!matches(&[pattern, b"b".to_vec()].concat(), &b"a".repeat(4096)));
    }
}
