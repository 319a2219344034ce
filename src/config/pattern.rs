//! Patterns for the keys of guards and adopt rules: Redis globs whose stars capture.

use smallvec::SmallVec;

use crate::glob::{self, Budget, Element};

/// A Redis glob pattern (`*`, `?`, `[abc]`, `[^abc]`, `[a-z]`, `\x`) whose `*`s capture. As in Redis, several
/// `*`s in a row are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// The literal bytes with which every matching text begins.
    prefix: Vec<u8>,
    /// The offset in `text` of the rest of the pattern.
    rest: usize,
    stars: usize,
}

impl Pattern {
    /// Makes a pattern; every text is one.
    pub fn new(text: &str) -> Pattern {
        let mut prefix = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((Element::Literal(byte), behind)) = Element::first(rest) {
            prefix.push(byte);
            rest = behind;
        }
        let stars = Element::all(rest).filter(|element| matches!(element, Element::Star)).count();
        Pattern { prefix, rest: text.len() - rest.len(), stars, text: text.to_owned() }
    }

    /// The text as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of captures of a matching text.
    pub fn stars(&self) -> usize {
        self.stars
    }

    /// Whether all of `text` matches. Takes at most as many steps as the product of both
    /// lengths.
    pub fn matches(&self, text: &[u8]) -> bool {
        text.strip_prefix(&*self.prefix).is_some_and(|text| glob::matches(self.rest(), text))
    }

    /// [`Pattern::matches`] within a budget. Returns `None` if the budget does not suffice.
    pub(crate) fn matches_within(&self, text: &[u8], budget: &mut Budget) -> Option<bool> {
        match text.strip_prefix(&*self.prefix) {
            Some(text) => glob::matches_within(self.rest(), text, budget),
            None => Some(false),
        }
    }

    /// Returns the bytes that each `*` took, from the left, or `None` if `text` does not match. The first star
    /// takes as little as possible, then the second, and so on, so that all proxies agree.
    pub fn captures<'t>(&self, text: &'t [u8]) -> Option<SmallVec<[&'t [u8]; 4]>> {
        self.captures_within(text, &mut Budget::of(usize::MAX)).flatten()
    }

    /// [`Pattern::captures`] within a budget. Returns `None` if the budget does not suffice.
    #[allow(clippy::type_complexity, reason = "whether there were steps enough, and what it took")]
    pub(crate) fn captures_within<'t>(
        &self,
        text: &'t [u8],
        budget: &mut Budget,
    ) -> Option<Option<SmallVec<[&'t [u8]; 4]>>> {
        let Some(text) = text.strip_prefix(&*self.prefix) else { return Some(None) };
        let mut captures = SmallVec::new();
        let matches = glob::captures(self.rest(), text, budget, |took| captures.push(took))?;
        Some(matches.then_some(captures))
    }

    /// Whether some text matches both. Takes at most as many steps as the product of both
    /// lengths.
    pub(crate) fn overlaps(&self, other: &Pattern) -> bool {
        let common = self.prefix.len().min(other.prefix.len());
        if self.prefix[..common] != other.prefix[..common] {
            return false;
        }
        let a: Vec<_> = Element::all(self.text.as_bytes()).collect();
        let b: Vec<_> = Element::all(other.text.as_bytes()).collect();
        // `row[j]`: whether some text matches the first `i` elements of `a` and the first `j` of `b`.
        let mut row = vec![false; b.len() + 1];
        for i in 0..=a.len() {
            // `row[j - 1]` as it was for `i - 1`.
            let mut diagonal = false;
            for j in 0..=b.len() {
                let above = row[j];
                let mut there = i == 0 && j == 0;
                if i > 0 {
                    there |= above && passes(a[i - 1], b.get(j));
                }
                if j > 0 {
                    there |= row[j - 1] && passes(b[j - 1], a.get(i));
                }
                if i > 0 && j > 0 {
                    there |= diagonal && meet(a[i - 1], b[j - 1]);
                }
                diagonal = above;
                row[j] = there;
            }
        }
        row[b.len()]
    }

    /// The texts before and behind the star, if the pattern is one star and literal text.
    pub(super) fn around_star(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut texts = (Vec::new(), Vec::new());
        let mut stars = 0;
        for element in Element::all(self.text.as_bytes()) {
            match element {
                Element::Literal(byte) if stars == 0 => texts.0.push(byte),
                Element::Literal(byte) => texts.1.push(byte),
                Element::Star => stars += 1,
                _ => return None,
            }
        }
        (stars == 1).then_some(texts)
    }

    /// The pieces that make every matching text.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut stars = 0;
        let piece = |element: Element<'_>| match element {
            Element::Literal(byte) => Piece::Byte(byte),
            Element::Star => {
                stars += 1;
                Piece::Star(stars)
            }
            Element::Any | Element::Class(_) => Piece::Any,
        };
        Element::all(self.text.as_bytes()).map(piece).collect()
    }

    /// Returns a text that matches, with `filler` for each star. `None` if no text does: a class can be empty.
    pub(crate) fn example(&self, filler: &str) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        for element in Element::all(self.text.as_bytes()) {
            match element {
                Element::Star => text.extend_from_slice(filler.as_bytes()),
                _ => text.push((b'0'..=u8::MAX).chain(0..b'0').find(|byte| element.has(*byte))?),
            }
        }
        Some(text)
    }

    /// Whether the pattern's literal beginning shows that every matching text begins with `text`.
    pub(super) fn begins_with(&self, text: &str) -> bool {
        self.prefix.starts_with(text.as_bytes())
    }

    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.rest..]
    }
}

/// A piece of the texts that a pattern matches or a template makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// This byte.
    Byte(u8),
    /// What the star of this number takes, from 1.
    Star(usize),
    /// One byte of a set: `?` or a class.
    Any,
}

/// Whether a text can pass `element` while the other pattern stays at `other`: `element` is a star that takes
/// nothing, or `other` is a star that takes the byte too.
fn passes(element: Element<'_>, other: Option<&Element<'_>>) -> bool {
    match (element, other) {
        (Element::Star, _) => true,
        (element, Some(star @ Element::Star)) => meet(element, *star),
        _ => false,
    }
}

/// Whether both elements can take the same byte. A class can be empty.
fn meet(a: Element<'_>, b: Element<'_>) -> bool {
    match (a, b) {
        (Element::Literal(byte), other) | (other, Element::Literal(byte)) => other.has(byte),
        _ => (0..=u8::MAX).any(|byte| a.has(byte) && b.has(byte)),
    }
}

/// Makes a pattern that matches `text` alone.
pub(super) fn escape(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | '\\');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
