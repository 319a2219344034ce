//! Tracing's output: human on a terminal and JSON otherwise, always on stderr.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

/// The environment variable that goes before `log.level`.
pub const FILTER_VARIABLE: &str = "LOCKGATE_LOG";

/// Starts writing logs of at least `level`, in `format` (`auto`, `human` or `json`).
///
/// # Errors
/// If LOCKGATE_LOG is no filter, or logs are written already.
pub fn start(level: &str, format: &str) -> anyhow::Result<()> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(filter) => EnvFilter::try_new(filter)?,
        Err(_) => EnvFilter::try_new(level)?,
    };
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
