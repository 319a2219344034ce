//! Prints what commands have to say. A server's errors may hold characters that a terminal obeys, so all output
//! goes through here.

use std::{
    fmt::Display,
    io::{self, Write},
    process,
};

use crate::log_text::plain;

/// Ends as a program does that a closed pipe ends: 128 and SIGPIPE's number.
const NOBODY_READS: i32 = 141;

/// Prints a line on stdout. Ends the process if nobody reads it, as behind `| head`.
pub fn say(line: impl Display) {
    if writeln!(io::stdout(), "{}", plain(&line.to_string())).is_err() {
        process::exit(NOBODY_READS);
    }
}

/// Prints a line on stderr, if anybody reads it.
pub fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", plain(&line.to_string()));
}
