//! What to ask of each proxy.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

use crate::lock::ANY_PERMIT;

/// The longest pattern that a proxy takes, in bytes.
pub(super) const LONGEST_PATTERN: usize = 256;
/// Most entries of a list that are asked for and kept.
pub(super) const MOST_LISTED: usize = 1000;

/// The order of the locks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LockSort {
    /// Most waiters first.
    #[default]
    Waiters,
    /// Held for longest first.
    Age,
    /// Longest wait of one client first.
    Wait,
    /// Longest recent waits of all clients together first.
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

/// What to ask of each proxy, besides its status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WantedLists {
    pub(super) sort: LockSort,
    /// The pattern of the locks; none for all.
    pub(super) pattern: Option<Vec<u8>>,
    /// The name of the lock whose line is shown.
    pub(super) open: Option<Vec<u8>>,
    /// Whether to ask nothing.
    pub(super) paused: bool,
}

impl WantedLists {
    /// The paths of the wanted lists of locks. A lock may be held through one proxy and waited for at others, which
    /// list it only by waiters; so that list is always wanted.
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
        // The open lock may be too far behind to be in any of them.
        if let Some(name) = &self.open {
            // What is shown of a family are its permits.
            let (name, behind, count) = match name.ends_with(ANY_PERMIT) {
                true => (&name[..name.len() - 1], "*", MOST_LISTED),
                false => (&name[..], "", 1),
            };
            if let Some(pattern) = literal(name, behind) {
                let pattern = percent_encode(&pattern, NON_ALPHANUMERIC);
                lists.push(format!("/api/locks?count={count}&match={pattern}"));
            }
        }
        lists
    }
}

/// Returns the pattern that matches this name and what the pattern `behind` adds to it, or `None` if it is longer than
/// a proxy takes.
fn literal(name: &[u8], behind: &str) -> Option<Vec<u8>> {
    let mut pattern = Vec::with_capacity(name.len());
    for byte in name {
        if b"*?[\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.extend_from_slice(behind.as_bytes());
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
            let pattern = literal(name, "").unwrap();
            assert!(glob::matches(&pattern, name));
            assert!(!glob::matches(&pattern, b"axx"), "{name:?}");
        }
        assert_eq!(literal(&[b'*'; 129], ""), None);
        let family = WantedLists { open: Some(b"g[u#*".to_vec()), ..WantedLists::default() };
        assert_eq!(family.lists()[1], "/api/locks?count=1000&match=g%5C%5Bu%23%2A");
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
