//! Redis's glob patterns, as KEYS has them: `*`, `?`, `[abc]`, `[^abc]`, `[a-z]`, `\x`.
//!
//! A pattern is a row of elements. Each takes one byte of the text or, for a `*`, any number of them. This file knows
//! nothing of what patterns are for.

/// An element of a pattern.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Element<'p> {
    /// Any bytes. Several `*`s in a row are one, as in Redis.
    Star,
    /// Any byte.
    Any,
    /// This byte.
    Literal(u8),
    /// A byte between `[` and `]`, or with `^` one that is not.
    Class(&'p [u8]),
}

impl<'p> Element<'p> {
    /// Returns the first element of a pattern, and the rest of the pattern. Returns `None` if the pattern is empty.
    pub(crate) fn first(pattern: &'p [u8]) -> Option<(Element<'p>, &'p [u8])> {
        Some(match pattern {
            [] => return None,
            [b'*', rest @ ..] => {
                let more = rest.iter().take_while(|byte| **byte == b'*').count();
                (Element::Star, &rest[more..])
            }
            [b'?', rest @ ..] => (Element::Any, rest),
            [b'\\', literal, rest @ ..] => (Element::Literal(*literal), rest),
            [b'[', class @ ..] => {
                let length = members(class, |_, _| ());
                (Element::Class(&class[..length]), &class[length..])
            }
            [literal, rest @ ..] => (Element::Literal(*literal), rest),
        })
    }

    /// Iterates over all elements of a pattern.
    pub(crate) fn all(mut pattern: &'p [u8]) -> impl Iterator<Item = Element<'p>> {
        std::iter::from_fn(move || {
            let (element, rest) = Element::first(pattern)?;
            pattern = rest;
            Some(element)
        })
    }

    /// Whether the element can take this byte.
    pub(crate) fn has(self, byte: u8) -> bool {
        match self {
            Element::Star | Element::Any => true,
            Element::Literal(literal) => literal == byte,
            Element::Class(class) => {
                let mut found = false;
                members(class, |low, high| found |= (low..=high).contains(&byte));
                found != (class.first() == Some(&b'^'))
            }
        }
    }
}

/// Passes the first and the last byte of each range of a class to `range`. `class` begins behind the `[`. Returns the
/// length including the `]`; a class that is not closed ends with the pattern.
fn members(class: &[u8], mut range: impl FnMut(u8, u8)) -> usize {
    let mut at = usize::from(class.first() == Some(&b'^'));
    loop {
        match &class[at..] {
            [] => return at,
            [b']', ..] => return at + 1,
            [b'\\', literal, ..] => {
                range(*literal, *literal);
                at += 2;
            }
            [low, b'-', high, ..] => {
                range(*low.min(high), *low.max(high));
                at += 3;
            }
            [literal, ..] => {
                range(*literal, *literal);
                at += 1;
            }
        }
    }
}

/// The number of matching steps that are still allowed. A match takes at most the product of both lengths, which is a
/// lot if strangers choose text and pattern.
#[derive(Debug)]
pub(crate) struct Budget(usize);

impl Budget {
    /// Makes a budget of `steps`.
    pub(crate) fn of(steps: usize) -> Budget {
        Budget(steps)
    }

    /// Takes `steps` of the budget. Returns `None` if fewer are left, and then leaves none.
    #[inline]
    pub(crate) fn take(&mut self, steps: usize) -> Option<()> {
        let left = self.0.checked_sub(steps);
        self.0 = left.unwrap_or(0);
        left.map(|_| ())
    }
}

/// Whether all of `text` matches `pattern`. Takes at most as many steps as the product of both lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_within(pattern, text, &mut Budget::of(usize::MAX)).unwrap_or(false)
}

/// [`matches()`] within a budget. Returns `None` if the budget does not suffice.
pub(crate) fn matches_within(pattern: &[u8], text: &[u8], budget: &mut Budget) -> Option<bool> {
    captures(pattern, text, budget, |_| ())
}

/// Like [`matches_within`], but also passes the bytes of each `*` to `took`, from the left: the first takes as little
/// as possible, then the second, and so on. They count only if the text matches.
///
/// Two stars have a fixed number of bytes between them. The first place where these are found leaves the most to the
/// rest of the pattern, so only the last star is ever tried again.
pub(crate) fn captures<'t>(
    pattern: &[u8],
    text: &'t [u8],
    budget: &mut Budget,
    mut took: impl FnMut(&'t [u8]),
) -> Option<bool> {
    let (mut pattern, mut from) = (pattern, 0);
    // The pattern behind the last `*`, and the range that this `*` has taken.
    let mut star = None;
    loop {
        let element = Element::first(pattern);
        // A class is read byte by byte, twice.
        let class = if let Some((Element::Class(class), _)) = element { class.len() } else { 0 };
        budget.take(1 + class)?;
        match (element, text.get(from)) {
            (Some((Element::Star, behind)), _) => {
                if let Some((_, start, end)) = star {
                    took(&text[start..end]);
                }
                if behind.is_empty() {
                    took(&text[from..]);
                    return Some(true);
                }
                star = Some((behind, from, from));
                pattern = behind;
                continue;
            }
            (None, None) => {
                if let Some((_, start, end)) = star {
                    took(&text[start..end]);
                }
                return Some(true);
            }
            // Whatever the star takes, too little text is left.
            (Some(_), None) => return Some(false),
            (Some((element, behind)), Some(byte)) if element.has(*byte) => {
                pattern = behind;
                from += 1;
                continue;
            }
            _ => {}
        }
        // The last `*` takes one byte more.
        let Some((behind, start, end)) = star else { return Some(false) };
        star = Some((behind, start, end + 1));
        (pattern, from) = (behind, end + 1);
    }
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
        assert!(!matches(&b"*[^b-z]?".repeat(500), &[&[b'a'; 4096][..], b"zz"].concat()[1..999]));
    }

    #[test]
    fn a_budget_ends_what_takes_longer() {
        let (pattern, text) = (b"*[a-c]a", [b'a'; 1000]);
        let mut budget = Budget::of(100_000);
        assert_eq!(matches_within(pattern, &text, &mut budget), Some(true));
        let mut budget = Budget::of(1000);
        assert_eq!(matches_within(b"*[a-c]b", &text, &mut budget), None);
        assert_eq!(matches_within(b"a", b"a", &mut budget), None, "nothing is left");
        assert!(matches_within(b"", b"", &mut Budget::of(1)).is_some_and(|matches| matches));
    }
}
