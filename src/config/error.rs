//! Everything that is wrong with a configuration, each with its place.

use std::fmt::{self, Write as _};

/// A problem and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1. `None` if the file could not be read, so that it has no line.
    pub line: Option<usize>,
    /// The key, as `locks.node_timeout`; empty if the problem is the file as a whole.
    pub key: String,
    /// The message: what is wrong and what would be right.
    pub what: String,
}

/// All problems of one file. Displays as one line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file's name.
    pub file: String,
    /// The problems, in the order of their lines.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// Makes the error of a file that could not be read for a reason other than its text.
    pub(crate) fn unread(file: &str, what: String) -> ConfigErrors {
        let problems = vec![Problem { line: None, key: String::new(), what }];
        ConfigErrors { file: file.to_owned(), problems }
    }

    /// Makes an error of the one problem that keeps the rest of the file from being read.
    pub(super) fn one(file: &str, line: usize, key: String, what: String) -> ConfigErrors {
        ConfigErrors {
            file: file.to_owned(),
            problems: vec![Problem { line: Some(line), key, what }],
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { line, key, what }) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            f.write_str(&self.file)?;
            if let Some(line) = line {
                write!(f, ":{line}")?;
            }
            f.write_str(": ")?;
            if !key.is_empty() {
                on_one_line(f, key)?;
                f.write_str(": ")?;
            }
            on_one_line(f, what)?;
        }
        Ok(())
    }
}

/// Writes a text that may repeat parts of the file, with control characters escaped: keys and values can
/// contain line ends, or bytes that a terminal obeys.
fn on_one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|c| match c.is_control() {
        true => write!(f, "{}", c.escape_default()),
        false => f.write_char(c),
    })
}

impl std::error::Error for ConfigErrors {}
