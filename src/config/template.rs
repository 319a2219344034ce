//! The lock's key in a guard or adopt rule: a text with places for the pattern's captures.

use super::pattern::{Pattern, Piece, escape};

/// A lock's key in which `{1}` stands for the bytes that the pattern's first `*` took.
///
/// Other braces stand for themselves if they are paired, so Redis's hash tags are written as usual: `{user}`,
/// and `{{1}}` around a capture. As in patterns, `\x` is x: `\{1}` is no capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    /// The capture of this number, from 1.
    Capture(usize),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong, without the text.
    pub(crate) fn new(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        // Open braces that need a partner, and those behind a '\', which may have one.
        let (mut open, mut escaped) = (0_usize, 0_usize);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if let Some((number, behind)) = braced_number(rest) {
                // `{01}` and `{}` are more likely slips than hash tags.
                let number = number.parse().ok().filter(|n| *n > 0 && !number.starts_with('0'));
                let number = number.ok_or(
                    "braces around a number take the pattern's stars, from {1}; write '\\{' for \
                     a brace as such",
                )?;
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(Part::Capture(number));
                rest = behind;
                continue;
            }
            rest = &rest[c.len_utf8()..];
            match c {
                '\\' => {
                    let c = rest.chars().next().ok_or(
                        "a '\\' at the end takes nothing; write '\\\\' for a backslash as such",
                    )?;
                    escaped += usize::from(c == '{');
                    literal.push(c);
                    rest = &rest[c.len_utf8()..];
                    continue;
                }
                '{' => open += 1,
                '}' if open > 0 => open -= 1,
                '}' if escaped > 0 => escaped -= 1,
                '}' => {
                    let what = "a '}' without its '{'; write '\\}' for a brace that stands alone";
                    return Err(what.into());
                }
                _ => {}
            }
            literal.push(c);
        }
        if open > 0 {
            return Err("a '{' without its '}'; write '\\{' for a brace that stands alone".into());
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Template { text: text.to_owned(), parts })
    }

    /// The text as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends the key to `out`. `captures` are the pattern's; a missing one is empty.
    pub(crate) fn fill(&self, captures: &[&[u8]], out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Part::Capture(number) => {
                    out.extend_from_slice(captures.get(number - 1).copied().unwrap_or_default());
                }
            }
        }
    }

    /// The pieces that make every key of the template.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => pieces.extend(text.bytes().map(Piece::Byte)),
                Part::Capture(number) => pieces.push(Piece::Star(*number)),
            }
        }
        pieces
    }

    /// The texts before and behind `{1}`, if the template has that capture once and no other.
    pub(super) fn around_one(&self) -> Option<(&str, &str)> {
        match &self.parts[..] {
            [Part::Capture(1)] => Some(("", "")),
            [Part::Literal(before), Part::Capture(1)] => Some((before, "")),
            [Part::Capture(1), Part::Literal(behind)] => Some(("", behind)),
            [Part::Literal(before), Part::Capture(1), Part::Literal(behind)] => {
                Some((before, behind))
            }
            _ => None,
        }
    }

    /// The largest capture in use; 0 if there is none.
    pub(crate) fn largest(&self) -> usize {
        let number = |part: &Part| match part {
            Part::Literal(_) => 0,
            Part::Capture(number) => *number,
        };
        self.parts.iter().map(number).max().unwrap_or(0)
    }

    /// A pattern that matches every key that the template can make.
    pub(crate) fn as_pattern(&self) -> Pattern {
        self.behind("")
    }

    /// [`Template::as_pattern`] behind a prefix.
    pub(super) fn behind(&self, prefix: &str) -> Pattern {
        let part = |part: &Part| match part {
            Part::Literal(text) => escape(text),
            Part::Capture(_) => "*".to_owned(),
        };
        let parts: String = self.parts.iter().map(part).collect();
        Pattern::new(&(escape(prefix) + &parts))
    }
}

/// Splits `{1}…` or `{}…` into the digits, if any, and the text behind the brace. Returns `None` if the text
/// does not begin like that.
fn braced_number(text: &str) -> Option<(&str, &str)> {
    let (number, behind) = text.strip_prefix('{')?.split_once('}')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some((number, behind))
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
