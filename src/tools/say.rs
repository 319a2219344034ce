//! Prints what commands have to say. A server's errors may hold characters that a terminal obeys, so all output
//! goes through here.

use std::fmt::Display;

use crate::log_text::plain;

/// Prints a line on stdout.
pub fn say(line: impl Display) {
    println!("{}", plain(&line.to_string()));
}

/// Prints a line on stderr.
pub fn complain(line: impl Display) {
    eprintln!("{}", plain(&line.to_string()));
}
