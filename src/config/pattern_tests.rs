//! Compares patterns with a slow, plain search through every way to match.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

/// The fragments that patterns are made of in these tests. An unclosed class swallows the rest.
const FRAGMENTS: &[&str] = &[
    "a", "b", "*", "*", "**", "?", "[ab]", "[^a]", "[a-c]", "[c-b]", "[]", "[^]", "[^", "[b",
    "\\*", "\\a", "[*\\]]", "-", "\\",
];
/// The fragments that are never more than one element: all but the last, which changes the meaning of what
/// follows it.
const ELEMENTS: &[&str] = FRAGMENTS.split_at(FRAGMENTS.len() - 1).0;
/// The bytes that the fragments tell apart, and one that is in none of them.
const ALPHABET: &[u8] = b"abcd*]-\\[^?";

fn pattern(among: &'static [&'static str], most: usize) -> impl Strategy<Value = Pattern> {
    let fragment = proptest::sample::select(among);
    proptest::collection::vec(fragment, 0..=most)
        .prop_map(|fragments| Pattern::new(&fragments.concat()))
}

fn text(length: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(&ALPHABET[..5]), 0..=length)
}

/// Every possible list of captures, by trying everything; the shortest for the first star first.
fn every_way<'t>(elements: &[Element<'_>], text: &'t [u8]) -> Vec<Vec<&'t [u8]>> {
    match (elements, text) {
        ([], []) => vec![vec![]],
        ([Element::Star, behind @ ..], _) => (0..=text.len())
            .flat_map(|end| {
                every_way(behind, &text[end..])
                    .into_iter()
                    .map(move |rest| [vec![&text[..end]], rest].concat())
            })
            .collect(),
        ([element, behind @ ..], [byte, rest @ ..]) if element.has(*byte) => {
            every_way(behind, rest)
        }
        _ => vec![],
    }
}

/// All texts up to a length.
fn texts(length: usize) -> Vec<Vec<u8>> {
    let mut all = vec![vec![]];
    let mut from = 0;
    for _ in 0..length {
        let shorter = all[from..].to_vec();
        from = all.len();
        for text in shorter {
            all.extend(ALPHABET.iter().map(|byte| [&*text, &[*byte]].concat()));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn captures_are_the_least_of_every_way_to_match(pattern in pattern(FRAGMENTS, 7), text in text(9)) {
        let elements: Vec<_> = Element::all(pattern.as_str().as_bytes()).collect();
        let ways = every_way(&elements, &text);
        prop_assert_eq!(pattern.matches(&text), !ways.is_empty());
        let captures = pattern.captures(&text).map(|captures| captures.to_vec());
        prop_assert_eq!(captures.as_ref(), ways.first());
        prop_assert!(captures.is_none_or(|captures| captures.len() == pattern.stars()));
    }

    #[test]
    fn captures_in_the_place_of_stars_give_the_text(
        pieces in proptest::collection::vec("[a-c:]{0,3}", 1..6),
        took in proptest::collection::vec("[a-c:]{0,3}", 5)
    ) {
        let pattern = Pattern::new(&pieces.join("*"));
        let mut text = pieces[0].clone();
        for (piece, took) in pieces[1..].iter().zip(&took) {
            text += took;
            text += piece;
        }
        let captures = pattern.captures(text.as_bytes()).unwrap();
        // Several stars in a row are one.
        let mut captures = captures.iter();
        let mut rebuilt = Vec::new();
        for element in Element::all(pattern.as_str().as_bytes()) {
            match element {
                Element::Literal(byte) => rebuilt.push(byte),
                _ => rebuilt.extend_from_slice(captures.next().unwrap()),
            }
        }
        prop_assert_eq!(rebuilt, text.as_bytes());
        prop_assert!(captures.next().is_none());
    }

    #[test]
    fn what_is_escaped_matches_itself_alone(one in "\\PC{0,8}", other in "\\PC{0,8}") {
        let pattern = Pattern::new(&escape(&one));
        prop_assert!(pattern.matches(one.as_bytes()));
        prop_assert_eq!(pattern.matches(other.as_bytes()), one == other);
        prop_assert_eq!(pattern.stars(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// With three elements each, the shortest text that both match has at most four bytes: two for each
    /// pattern beside its star.
    #[test]
    fn patterns_overlap_where_a_text_matches_both(one in pattern(ELEMENTS, 3), other in pattern(ELEMENTS, 3)) {
        static TEXTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| texts(4));
        let both = TEXTS.iter().find(|text| one.matches(text) && other.matches(text));
        prop_assert_eq!(one.overlaps(&other), both.is_some(), "{:?}", both);
        prop_assert_eq!(other.overlaps(&one), both.is_some(), "{:?}", both);
    }
}

#[test]
fn overlaps_by_example() {
    for (one, other, expected) in [
        ("account:*", "lock:account:*", false),
        ("*", "lock:*", true),
        ("*:balance", "lock:*", true),
        ("*:balance", "lock:*:lock", false),
        ("[^l]*:balance", "lock:*", false),
        ("a*c", "ab*", true),
        ("a*c", "*d", false),
        ("*a*", "*b*", true),
        ("", "*", true),
        ("", "?", false),
        ("x[]", "*", false),
        ("x[]", "x[]", false),
        ("\\*", "*", true),
        ("\\*", "a", false),
    ] {
        let (one, other) = (Pattern::new(one), Pattern::new(other));
        assert_eq!(one.overlaps(&other), expected, "{one:?} {other:?}");
        assert_eq!(other.overlaps(&one), expected, "{other:?} {one:?}");
    }
}

#[test]
fn captures_by_example() {
    for (pattern, text, expected) in [
        ("account:*", "account:42", Some(&["42"][..])),
        ("account:*", "account:", Some(&[""])),
        ("account:*", "accounts:42", None),
        ("*:*", "a:b:c", Some(&["a", "b:c"])),
        ("*:*:*", "a:b", None),
        ("a**b", "axyb", Some(&["xy"])),
        ("{*}:*", "{u1}:x}:y", Some(&["u1", "x}:y"])),
        ("\\**", "*x", Some(&["x"])),
        ("plain", "plain", Some(&[])),
        ("?[ab]*", "xay", Some(&["y"])),
    ] {
        let expected = expected.map(|all| all.iter().map(|one| one.as_bytes()).collect());
        assert_eq!(Pattern::new(pattern).captures(text.as_bytes()), expected, "{pattern}");
    }
}

#[test]
fn an_example_matches() {
    for pattern in ["lock:*", "*", "m:[0-9]", "[^0-z]?*:l", "a[b]", "\\*x\\", "plain", "[a-", ""] {
        let pattern = Pattern::new(pattern);
        let example = pattern.example("x:y").unwrap();
        assert!(pattern.matches(&example), "{} {example:?}", pattern.as_str());
    }
    assert_eq!(Pattern::new("a:*:?").example("x"), Some(b"a:x:0".to_vec()));
    assert_eq!(Pattern::new("a[]").example("x"), None);
}

#[test]
fn hostile_patterns_take_no_exponential_time() {
    let pattern = Pattern::new(&"*a".repeat(500));
    assert!(pattern.captures(&[b'a'; 499]).is_none());
    assert!(pattern.captures(&b"ab".repeat(2000)).is_none());
    assert!(!pattern.overlaps(&Pattern::new(&"*b".repeat(500))));
    assert!(pattern.overlaps(&Pattern::new(&"*?".repeat(500))));
}
