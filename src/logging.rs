//! Tracing's output: human on a terminal and JSON otherwise, always on stderr.

use std::io::{IsTerminal, stderr};

use anyhow::anyhow;
use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

/// The environment variable that goes before `log.level`.
pub const FILTER_VARIABLE: &str = "LOCKGATE_LOG";

/// Starts writing logs of at least `level`, in `format` (`auto`, `human` or `json`).
///
/// # Errors
/// If LOCKGATE_LOG is no filter, or logs are written already.
pub fn start(level: &str, format: &str) -> anyhow::Result<()> {
    let filter = filter(std::env::var(FILTER_VARIABLE).ok().as_deref(), level)?;
    let output = fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
    let human = match format {
        "human" => true,
        "json" => false,
        _ => stderr().is_terminal(),
    };
    let started = if human {
        output.with_ansi(stderr().is_terminal()).finish().try_init()
    } else {
        output.json().flatten_event(true).finish().try_init()
    };
    started.map_err(Into::into)
}

/// What the environment asks for, or else `level`. An empty variable asks for
/// nothing: that is how compose files pass on one that is not set.
fn filter(asked: Option<&str>, level: &str) -> anyhow::Result<EnvFilter> {
    match asked.filter(|asked| !asked.is_empty()) {
        Some(asked) => EnvFilter::try_new(asked)
            .map_err(|error| anyhow!("{FILTER_VARIABLE}: {error}; write a level, as debug")),
        None => Ok(EnvFilter::try_new(level)?),
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
        assert!(filter(Some("a=loud"), "info").unwrap_err().to_string().contains("LOCKGATE_LOG"));
    }
}
