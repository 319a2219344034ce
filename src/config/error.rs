//! Everything that is wrong with a configuration, each with its place.

use std::fmt::{self, Write as _};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// The key, as `locks.node_timeout`; empty where it is the file as a whole.
    pub key: String,
    /// What is wrong and what would be right.
    pub what: String,
}

/// All that is wrong with one file. Displays as one line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file's name.
    pub file: String,
    /// In the order of their lines.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// That a file could not be read for a reason of our own.
    pub(crate) fn unread(file: &str, what: String) -> ConfigErrors {
        ConfigErrors::one(file, 1, String::new(), what)
    }

    /// The one thing that is wrong where it keeps the rest from being read.
    pub(super) fn one(file: &str, line: usize, key: String, what: String) -> ConfigErrors {
        ConfigErrors { file: file.to_owned(), problems: vec![Problem { line, key, what }] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { line, key, what }) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{line}: ", self.file)?;
            if !key.is_empty() {
                on_one_line(f, key)?;
                f.write_str(": ")?;
            }
            on_one_line(f, what)?;
        }
        Ok(())
    }
}

/// Writes a text that may repeat some of the file, where keys and values can have line
/// ends in them, or what a terminal obeys.
fn on_one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|c| match c.is_control() {
        true => write!(f, "{}", c.escape_default()),
        false => f.write_char(c),
    })
}

impl std::error::Error for ConfigErrors {}
