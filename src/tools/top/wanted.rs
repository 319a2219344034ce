//! What is to be asked of each proxy.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

/// The longest pattern that a proxy takes, in bytes.
pub(super) const LONGEST_PATTERN: usize = 256;
/// Most entries of a list that are asked for, and taken.
pub(super) const MOST_LISTED: usize = 1000;

/// Which locks come first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LockSort {
    /// Those that most clients wait for.
    #[default]
    Waiters,
    /// Those held for longest.
    Age,
    /// Those that a client has waited for longest.
    Wait,
    /// Those that clients have waited for longest, all of them together, lately.
    Hot,
}

impl LockSort {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            LockSort::Waiters => "waiters",
            LockSort::Age => "age",
            LockSort::Wait => "wait",
            LockSort::Hot => "hot",
        }
    }
}

/// What is to be asked of each proxy, beside how it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WantedLists {
    pub(super) sort: LockSort,
    /// The pattern of the locks; all, if it is none.
    pub(super) pattern: Option<Vec<u8>>,
    /// The lock whose line is shown, by its name.
    pub(super) open: Option<Vec<u8>>,
    /// Whether nothing is to be asked.
    pub(super) paused: bool,
}

impl WantedLists {
    /// Paths of the lists of locks that are wanted. A lock is held through one proxy and waited for
    /// at others; these list it only among those with waiters, so that list is always wanted.
    pub(super) fn lists(&self) -> Vec<String> {
        let matching = match &self.pattern {
            None => String::new(),
            Some(pattern) => format!("&match={}", percent_encode(pattern, NON_ALPHANUMERIC)),
        };
        let by = |sort: LockSort| {
            format!("/api/locks?by={}&count={MOST_LISTED}{matching}", sort.as_str())
        };
        let mut lists = vec![by(LockSort::Waiters)];
        match self.sort {
            LockSort::Waiters => {}
            LockSort::Hot => lists.push("/api/hot?count=100".into()),
            sort => lists.push(by(sort)),
        }
        // It may be far behind in all of them.
        if let Some(pattern) = self.open.as_deref().and_then(literal) {
            let pattern = percent_encode(&pattern, NON_ALPHANUMERIC);
            lists.push(format!("/api/locks?count=1&match={pattern}"));
        }
        lists
    }
}

/// The pattern that matches one name. Returns `None` if it is longer than a proxy takes.
fn literal(name: &[u8]) -> Option<Vec<u8>> {
    let mut pattern = Vec::with_capacity(name.len());
    for byte in name {
        if b"*?[\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    (pattern.len() <= LONGEST_PATTERN).then_some(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob;

    #[test]
    fn a_name_is_asked_for_as_itself() {
        let names: [&[u8]; 4] = [b"job:1", b"a*?[b]\\c", b"\xff \x1b&=+", b"^-"];
        for name in names {
            let pattern = literal(name).unwrap();
            assert!(glob::matches(&pattern, name));
            assert!(!glob::matches(&pattern, b"axx"), "{name:?}");
        }
        assert_eq!(literal(&[b'*'; 129]), None);
        let open = Some(b"a&*\xff".to_vec());
        let lists = WantedLists { sort: LockSort::Age, open, ..WantedLists::default() }.lists();
        assert_eq!(
            lists,
            [
                "/api/locks?by=waiters&count=1000",
                "/api/locks?by=age&count=1000",
                "/api/locks?count=1&match=a%26%5C%2A%FF"
            ]
        );
    }
}
