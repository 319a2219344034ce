//! A command of which only the data node can tell which keys it writes.
//!
//! The question costs the proxy and the data node more than the command itself, and a client with
//! hardly any rights can cause it. So only commands of ordinary size are asked about.

use crate::resp::{
    encode,
    words::{Spans, Walk},
};

/// The most words of such a command, the name included.
pub(super) const MOST_WORDS: usize = 1000;
/// The most bytes of its words.
pub(super) const MOST_BYTES: usize = 64 * 1024;

/// Such a command, encoded as an array of words.
#[derive(Debug)]
pub(crate) struct AskedCommand(Box<[u8]>);

impl AskedCommand {
    /// Returns the command of these words, the name included, or `None` if it is too large to be
    /// asked about.
    pub(super) fn of(words: &[&[u8]]) -> Option<AskedCommand> {
        let bytes = words.iter().fold(0, |sum: usize, word| sum.saturating_add(word.len()));
        if words.len() > MOST_WORDS || bytes > MOST_BYTES {
            return None;
        }
        let mut command = Vec::new();
        encode::command(&mut command, words);
        Some(AskedCommand(command.into()))
    }

    /// Returns the words, the name included.
    pub(super) fn words(&self) -> Spans<'_> {
        let mut words = Spans::new();
        Walk::default().find(&self.0, &mut words, MOST_WORDS);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_ordinary_size_is_asked_about() {
        let long = vec![b'x'; MOST_BYTES - 4];
        let words: Vec<&[u8]> = vec![b"SORT", &long];
        assert_eq!(AskedCommand::of(&words).unwrap().words()[..], words);
        assert!(AskedCommand::of(&[b"SORTS", &long]).is_none());
        assert!(AskedCommand::of(&[&b"x"[..]; MOST_WORDS]).is_some());
        assert!(AskedCommand::of(&[&b""[..]; MOST_WORDS + 1]).is_none());
    }
}
