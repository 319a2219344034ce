//! A sorted set as Redis keeps it: members by their scores, and by their bytes where scores are the same.

/// What a key holds that is no string.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SortedSet(Vec<(f64, Vec<u8>)>);

/// An end of a range of scores.
#[derive(Debug, Clone, Copy)]
struct Bound {
    score: f64,
    is_excluded: bool,
}

impl Bound {
    fn read(text: &[u8]) -> Bound {
        let text = std::str::from_utf8(text).unwrap();
        let (is_excluded, number) = match text.strip_prefix('(') {
            Some(number) => (true, number),
            None => (false, text),
        };
        let score = match number {
            "+inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            number => number.parse().unwrap(),
        };
        Bound { score, is_excluded }
    }
}

impl SortedSet {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.0.iter().find(|(_, known)| known == member).map(|(score, _)| *score)
    }

    /// Returns scores and members, the lowest first.
    pub(super) fn all(&self) -> &[(f64, Vec<u8>)] {
        &self.0
    }

    /// Returns whether the member is new.
    pub(super) fn add(&mut self, score: f64, member: &[u8]) -> bool {
        let is_new = !self.remove(member);
        self.0.push((score, member.to_vec()));
        self.0.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        is_new
    }

    /// Returns whether the member was there.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|(_, known)| known != member);
        self.0.len() < before
    }

    /// Returns the members with scores from `least` to `most`, each of which a `(` before it excludes.
    pub(super) fn between(&self, least: &[u8], most: &[u8]) -> Vec<(f64, Vec<u8>)> {
        let (least, most) = (Bound::read(least), Bound::read(most));
        let is_in = |score: f64| {
            let above = score > least.score || score == least.score && !least.is_excluded;
            above && (score < most.score || score == most.score && !most.is_excluded)
        };
        self.0.iter().filter(|(score, _)| is_in(*score)).cloned().collect()
    }

    /// Returns the members at these places, counted from 0 and, where negative, from the end.
    pub(super) fn ranked(&self, from: i64, to: i64, is_reverse: bool) -> Vec<(f64, Vec<u8>)> {
        let length = i64::try_from(self.0.len()).unwrap();
        let place = |at: i64| if at < 0 { at + length } else { at };
        let (from, to) = (place(from).max(0), place(to));
        let mut all = self.0.clone();
        if is_reverse {
            all.reverse();
        }
        let mut at = 0..;
        all.retain(|_| at.next().is_some_and(|at| (from..=to).contains(&at)));
        all
    }
}

/// Returns a score as Redis writes it: those of the scripts are whole numbers.
pub(super) fn text(score: f64) -> Vec<u8> {
    assert!(score.fract() == 0.0 && score.abs() < 1e17, "{score}");
    score.to_string().into_bytes()
}
