//! What commands print. Servers choose the words of their errors, and a terminal obeys what stands in them: all
//! of it goes through here.

use std::fmt::Display;

use crate::told::plain;

/// Prints a line on stdout.
pub fn say(line: impl Display) {
    println!("{}", plain(&line.to_string()));
}

/// Prints a line on stderr.
pub fn complain(line: impl Display) {
    eprintln!("{}", plain(&line.to_string()));
}
