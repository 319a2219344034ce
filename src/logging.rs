//! Tracing's output: human on a terminal and JSON otherwise, always on stderr.

use std::io::{IsTerminal, stderr};

use anyhow::anyhow;
use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt, registry, reload, util::SubscriberInitExt,
};

/// The environment variable that goes before `log.level`.
pub const FILTER_VARIABLE: &str = "LOCKGATE_LOG";

/// Changes the least severe level of a running log.
#[derive(Clone)]
pub struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    /// Writes what is at least of `level` from now on, unless LOCKGATE_LOG goes before
    /// it: then false.
    ///
    /// # Errors
    /// If it is no level, or nobody writes logs any more.
    pub fn set(&self, level: &str) -> anyhow::Result<bool> {
        if asked().is_some() {
            return Ok(false);
        }
        self.0.reload(EnvFilter::try_new(level)?)?;
        Ok(true)
    }
}

/// Starts writing logs of at least `level`, in `format` (`auto`, `human` or `json`).
///
/// # Errors
/// If LOCKGATE_LOG is no filter, or logs are written already.
pub fn start(level: &str, format: &str) -> anyhow::Result<Level> {
    let filter = filter(asked().as_deref(), level)?;
    let (filter, handle) = reload::Layer::new(filter);
    let all = registry().with(filter);
    let output = fmt::layer().with_writer(stderr).with_target(false);
    let human = match format {
        "human" => true,
        "json" => false,
        _ => stderr().is_terminal(),
    };
    if human {
        all.with(output.with_ansi(stderr().is_terminal())).try_init()?;
    } else {
        all.with(output.json().flatten_event(true)).try_init()?;
    }
    Ok(Level(handle))
}

/// What the environment asks for. An empty variable asks for nothing: that is how
/// compose files pass on one that is not set.
fn asked() -> Option<String> {
    std::env::var(FILTER_VARIABLE).ok().filter(|asked| !asked.is_empty())
}

/// What the environment asks for, or else `level`.
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
