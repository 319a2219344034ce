//! What the user has chosen to see, and what each key changes. It draws nothing.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{
    merge::LockRow,
    wanted::{LONGEST_PATTERN, LockSort, WantedLists},
};

/// What the user has chosen to see.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) sort: LockSort,
    /// What was typed behind `/`; empty for all locks.
    pub(super) filter: String,
    /// The filter that is being typed.
    pub(super) typing: Option<String>,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The name of the open lock, whose line is shown.
    pub(super) open: Option<Vec<u8>>,
    /// The place of the marked lock in the list, and its name, by which it stays marked when it moves.
    pub(super) marked: usize,
    pub(super) marked_name: Option<Vec<u8>>,
    /// The place in the line of the first client that is shown.
    pub(super) scrolled: usize,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Onward {
    Stay,
    Quit,
}

/// The number of rows that a page key moves by.
const PAGE: usize = 10;

impl View {
    /// What to ask of each proxy.
    pub(super) fn wanted(&self) -> WantedLists {
        let (pattern, open) = (self.pattern(), self.open.clone());
        WantedLists { sort: self.sort, pattern, open, paused: self.paused }
    }

    /// The filter as a pattern. A word without special characters matches anywhere in a name.
    pub(super) fn pattern(&self) -> Option<Vec<u8>> {
        let filter = self.filter.as_str();
        match filter {
            "" => None,
            _ if filter.contains(['*', '?', '[', '\\']) => Some(filter.into()),
            _ => Some(format!("*{filter}*").into()),
        }
    }

    /// Finds the marked lock in a new list.
    pub(super) fn follow(&mut self, locks: &[LockRow]) {
        let is_marked = |lock: &LockRow| Some(&lock.name.0) == self.marked_name.as_ref();
        let place = locks.iter().position(is_marked).unwrap_or(self.marked);
        self.mark(place, locks);
    }

    fn mark(&mut self, place: usize, locks: &[LockRow]) {
        self.marked = place.min(locks.len().saturating_sub(1));
        // The first lock is marked by its place: a user who is there watches whatever comes first.
        let name = || Some(locks.get(self.marked)?.name.0.clone());
        self.marked_name = if self.marked == 0 { None } else { name() };
    }

    fn go(&mut self, by: isize, locks: &[LockRow]) {
        match self.open {
            Some(_) => self.scrolled = self.scrolled.saturating_add_signed(by),
            None => self.mark(self.marked.saturating_add_signed(by), locks),
        }
    }

    fn sort_by(&mut self, sort: LockSort, locks: &[LockRow]) {
        self.sort = sort;
        self.mark(0, locks);
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, key: KeyEvent, locks: &[LockRow]) -> Onward {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Onward::Quit,
                _ => Onward::Stay,
            };
        }
        if let Some(filter) = self.typing.take() {
            self.type_on(filter, key.code);
            return Onward::Stay;
        }
        if self.help {
            // Any key closes the help.
            self.help = false;
            return if key.code == KeyCode::Char('q') { Onward::Quit } else { Onward::Stay };
        }
        let page = PAGE.cast_signed();
        match key.code {
            KeyCode::Char('q') => return Onward::Quit,
            KeyCode::Char('j') | KeyCode::Down => self.go(1, locks),
            KeyCode::Char('k') | KeyCode::Up => self.go(-1, locks),
            KeyCode::PageDown => self.go(page, locks),
            KeyCode::PageUp => self.go(-page, locks),
            KeyCode::Char('g') | KeyCode::Home => self.go(isize::MIN, locks),
            KeyCode::Char('G') | KeyCode::End => self.go(isize::MAX, locks),
            KeyCode::Char('1' | 'w') => self.sort_by(LockSort::Waiters, locks),
            KeyCode::Char('2' | 'a') => self.sort_by(LockSort::Age, locks),
            KeyCode::Char('3' | 't') => self.sort_by(LockSort::Wait, locks),
            KeyCode::Char('4' | 'h') => self.sort_by(LockSort::Hot, locks),
            KeyCode::Char('/') => self.typing = Some(self.filter.clone()),
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Enter if self.open.is_none() => {
                self.open = locks.get(self.marked).map(|lock| lock.name.0.clone());
                self.scrolled = 0;
            }
            KeyCode::Enter | KeyCode::Esc | KeyCode::Backspace if self.open.is_some() => {
                self.open = None;
            }
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        Onward::Stay
    }

    fn type_on(&mut self, mut filter: String, key: KeyCode) {
        match key {
            KeyCode::Enter => {
                self.filter = filter;
                return;
            }
            KeyCode::Esc => return,
            KeyCode::Backspace => drop(filter.pop()),
            // Room for the two stars.
            KeyCode::Char(c) if filter.len() + c.len_utf8() + 2 <= LONGEST_PATTERN => {
                filter.push(c)
            }
            _ => {}
        }
        self.typing = Some(filter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::lock_name::LockName;

    fn locks(names: &[&str]) -> Vec<LockRow> {
        let row = |name: &&str| LockRow {
            name: LockName(name.as_bytes().to_vec()),
            ..LockRow::default()
        };
        names.iter().map(row).collect()
    }

    fn press(view: &mut View, keys: &str, locks: &[LockRow]) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            assert_eq!(view.press(KeyEvent::from(code), locks), Onward::Stay, "{c:?}");
        }
    }

    #[test]
    fn the_marked_lock_stays_marked_where_it_goes() {
        let (mut view, before) = (View::default(), locks(&["a", "b", "c"]));
        press(&mut view, "jk", &before);
        view.follow(&locks(&["c", "a"]));
        assert_eq!(view.marked, 0, "the first place, whatever is there");
        press(&mut view, "j", &before);
        view.follow(&locks(&["x", "y", "b"]));
        assert_eq!(view.marked, 2);
        view.follow(&locks(&["x"]));
        assert_eq!(view.marked, 0);
        view.follow(&[]);
        press(&mut view, "Gjk\n", &[]);
        assert_eq!((view.marked, &view.open), (0, &None));
    }

    #[test]
    fn a_filter_is_typed_and_bounded() {
        let mut view = View::default();
        press(&mut view, "/qj\x08p\n", &[]);
        assert_eq!((view.filter.as_str(), view.pattern()), ("qp", Some(b"*qp*".to_vec())));
        press(&mut view, "/:*\n", &[]);
        assert_eq!(view.pattern(), Some(b"qp:*".to_vec()));
        press(&mut view, "/x\x1b", &[]);
        assert_eq!(view.filter, "qp:*");
        press(&mut view, "\x1b", &[]);
        assert_eq!(view.pattern(), None);
        press(&mut view, &format!("/{}\n", "ä".repeat(300)), &[]);
        assert!(view.pattern().is_some_and(|pattern| pattern.len() <= LONGEST_PATTERN));
    }

    #[test]
    fn a_lock_is_opened_and_closed_and_keys_end_it() {
        let (mut view, locks) = (View::default(), locks(&["a", "b"]));
        press(&mut view, "j\n", &locks);
        assert_eq!(view.wanted().open, Some(b"b".to_vec()));
        press(&mut view, "jj", &locks);
        assert_eq!((view.scrolled, view.marked), (2, 1));
        press(&mut view, "\x1b3p?x", &locks);
        let wanted = view.wanted();
        assert_eq!((wanted.open, wanted.sort, wanted.paused), (None, LockSort::Wait, true));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut view, "/", &locks);
        assert_eq!(view.press(interrupt, &locks), Onward::Quit);
        press(&mut view, "\x1b", &locks);
        assert_eq!(view.press(KeyEvent::from(KeyCode::Char('q')), &locks), Onward::Quit);
    }
}
