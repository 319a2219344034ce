//! Templates that are filled, and those that are refused.

use proptest::prelude::*;

use super::*;

fn filled(template: &str, captures: &[&str]) -> String {
    let mut out = b">".to_vec();
    let captures: Vec<_> = captures.iter().map(|capture| capture.as_bytes()).collect();
    Template::new(template).unwrap().fill(&captures, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn captures_stand_in_their_places() {
    for (template, expected) in [
        ("account:{1}", ">account:a"),
        ("{2}:{1}:{2}", ">b:a:b"),
        ("plain", ">plain"),
        ("", ">"),
        ("{user}:{1}", ">{user}:a"),
        ("{{1}}:x", ">{a}:x"),
        ("{u:{1}}", ">{u:a}"),
        ("{u{1}{2}}é{1}", ">{uab}éa"),
        ("\\{1}", ">{1}"),
        ("\\{1\\}{1}", ">{1}a"),
        ("{a\\{1}}", ">{a{1}}"),
        ("a\\\\{1}", ">a\\a"),
        ("\\é\\{", ">é{"),
        ("{1 }{-1}", ">{1 }{-1}"),
        ("{3}", ">"),
    ] {
        assert_eq!(filled(template, &["a", "b"]), expected, "{template}");
    }
    assert_eq!(Template::new("x").unwrap().largest(), 0);
    assert_eq!(Template::new("{2}{11}{3}").unwrap().largest(), 11);
}

#[test]
fn slips_are_refused() {
    for (template, expected) in [
        ("{0}", "from {1}"),
        ("{}", "from {1}"),
        ("{01}", "from {1}"),
        ("{99999999999999999999999}", "from {1}"),
        ("account:{1", "a '{' without its '}'"),
        ("account:1}", "a '}' without its '{'"),
        ("}{", "a '}' without its '{'"),
        ("{u:{1}", "a '{' without its '}'"),
        ("\\{1}}", "a '}' without its '{'"),
        ("x\\", "at the end"),
    ] {
        let error = Template::new(template).unwrap_err();
        assert!(error.contains(expected), "{template}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_it_makes_matches_its_pattern(
        template in "([a*?\\[^-]|\\]|\\{1\\}|\\{2\\}|\\{u\\}|\\\\\\\\|\\\\\\*){0,6}",
        first in "\\PC{0,4}", second in "\\PC{0,4}", prefix in "\\PC{0,4}"
    ) {
        let key = prefix.clone() + &filled(&template, &[&first, &second])[1..];
        let template = Template::new(&template).unwrap();
        prop_assert!(template.behind(&prefix).matches(key.as_bytes()));
        prop_assert_eq!(template.as_pattern(), template.behind(""));
        prop_assert!(template.largest() <= 2);
        // A template without captures matches only its own key.
        prop_assert!(template.largest() > 0 || template.as_pattern().stars() == 0);
    }

    #[test]
    fn no_text_breaks_it(text in "[{}0-2a\\\\é]{0,12}") {
        if let Ok(template) = Template::new(&text) {
            let mut out = Vec::new();
            template.fill(&[b"x"], &mut out);
            prop_assert!(template.as_pattern().matches(&out));
        }
    }
}
