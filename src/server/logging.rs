//! Tracing's output: human on a terminal and JSON otherwise, always on stderr, by the log's own thread.

use std::{
    fmt::{Debug, Result as FmtResult},
    io::{self, IsTerminal, Write, stderr},
};

use anyhow::bail;
use tracing::field::Field;
use tracing_subscriber::{
    Registry,
    field::MakeExt,
    filter::Targets,
    fmt::{
        self,
        format::{Writer, debug_fn},
    },
    layer::SubscriberExt,
    registry, reload,
    util::SubscriberInitExt,
};

use crate::{
    config::LOG_LEVELS,
    log_text::{plain, plain_line},
    log_writer,
};

/// The environment variable that overrides `log.level`.
pub(crate) const FILTER_VARIABLE: &str = "LOCKGATE_LOG";

/// Changes the least severe level of a running log.
#[derive(Clone)]
pub struct Level(reload::Handle<Targets, Registry>);

impl Level {
    /// Writes lines of at least `level` from now on. Returns false, and changes nothing, if
    /// LOCKGATE_LOG overrides it.
    ///
    /// # Errors
    /// If `level` is no level, or the log has ended.
    pub(crate) fn set(&self, level: &str) -> anyhow::Result<bool> {
        if asked().is_some() {
            return Ok(false);
        }
        self.0.reload(level.parse::<Targets>()?)?;
        Ok(true)
    }
}

/// Waits for the last lines to be written, at the end of the process: for ten seconds at most, and for a second if
/// nothing is read.
pub fn flush() {
    log_writer::flush();
}

/// Starts writing logs of at least `level`, in `format` (`auto`, `human` or `json`).
///
/// # Errors
/// If LOCKGATE_LOG is no filter, logs are written already, or the thread that writes them cannot be started.
pub fn start(level: &str, format: &str) -> anyhow::Result<Level> {
    let filter = filter(asked().as_deref(), level)?;
    let (filter, handle) = reload::Layer::new(filter);
    let all = registry().with(filter);
    let output = fmt::layer().with_writer(|| LogLines).with_target(false);
    let human = match format {
        "human" => true,
        "json" => false,
        _ => stderr().is_terminal(),
    };
    if human {
        let fields = debug_fn(write_field).delimited(" ");
        all.with(output.with_ansi(stderr().is_terminal()).fmt_fields(fields)).try_init()?;
    } else {
        let output = output.with_writer(|| JsonLines).json().flatten_event(true);
        all.with(output).try_init()?;
    }
    log_writer::start()?;
    Ok(Level(handle))
}

/// Takes lines from tracing, each in one piece.
struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        log_writer::write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes lines of JSON from tracing, each in one piece. JSON leaves some characters unescaped on which terminals act.
struct JsonLines;

impl Write for JsonLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        log_writer::write(plain(&String::from_utf8_lossy(line)).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the message, or a field, for people. Either may hold foreign text.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> FmtResult {
    let value = format!("{value:?}");
    let value = plain_line(&value);
    match (field.name(), writer.has_ansi_escapes()) {
        ("message", _) => write!(writer, "{value}"),
        (name, true) => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        (name, false) => write!(writer, "{name}={value}"),
    }
}

/// Returns the filter that the environment asks for. An empty variable asks for none: compose files pass on an unset
/// one like that.
fn asked() -> Option<String> {
    std::env::var(FILTER_VARIABLE).ok().filter(|asked| !asked.is_empty())
}

/// Checks that the filter of the environment, if there is one, names levels.
///
/// # Errors
/// If it names something that is no level.
pub fn check() -> anyhow::Result<()> {
    filter(asked().as_deref(), "info").map(drop)
}

/// Makes the filter of the environment, or else of `level`.
fn filter(asked: Option<&str>, level: &str) -> anyhow::Result<Targets> {
    match asked.filter(|asked| !asked.is_empty()) {
        // Any other word would be taken for the name of a target that has no lines: nothing
        // would be written at all.
        Some(asked) => {
            let words: Vec<&str> = asked.split(',').map(str::trim).collect();
            match words.iter().find(|word| !is_directive(word)) {
                Some(word) => bail!(
                    "{FILTER_VARIABLE}: '{word}' is no level; use one of {} (or lockgate=LEVEL)",
                    LOG_LEVELS.join(", ")
                ),
                None => Ok(words.join(",").parse()?),
            }
        }
        None => Ok(level.parse()?),
    }
}

/// Whether the word is a level, or sets one for a part of this program.
fn is_directive(word: &str) -> bool {
    let is_level = |level: &str| LOG_LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level));
    match word.split_once('=') {
        None => is_level(word),
        Some((target, level)) => {
            (target == "lockgate" || target.starts_with("lockgate::")) && is_level(level)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_goes_before_the_file_unless_it_is_empty() {
        let chosen = |asked| filter(asked, "info").unwrap().to_string();
        assert_eq!(chosen(None), "info");
        assert_eq!(chosen(Some("")), "info");
        assert_eq!(chosen(Some("debug")), "debug");
        assert_eq!(chosen(Some("off")), "off");
        assert!(chosen(Some("warn, lockgate::lock=DEBUG")).contains("lockgate::lock=debug"));
        for (asked, word) in [
            ("inof", "'inof'"),
            ("a=info", "'a=info'"),
            ("info,lockgate=loud", "'lockgate=loud'"),
            ("info,", "''"),
            ("lockgatesque::a=info", "'lockgatesque::a=info'"),
        ] {
            let error = filter(Some(asked), "info").unwrap_err().to_string();
            assert!(error.starts_with(&format!("LOCKGATE_LOG: {word} is no level")), "{error}");
        }
    }
}
