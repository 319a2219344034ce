//! `lockgate init`: declares a deployment new, so that its nodes vote at once.

use std::path::Path;

use anyhow::bail;

use super::say::say;
use crate::{
    config::Config,
    lock::{InitError, initialise},
};

/// Writes the first markers on all lock nodes of `file`, or of the default configuration. With `if_new`, finding
/// nodes that have markers is no error, and changes nothing.
///
/// # Errors
/// The configuration's; also if a node cannot be reached, must not vote, or has a marker.
pub fn run(file: Option<&Path>, if_new: bool) -> anyhow::Result<()> {
    let config = file.map_or_else(|| Ok(Config::default()), Config::load)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(initialise(&config.locks));
    runtime.shutdown_background();
    let nodes = config.locks.nodes.len();
    match done {
        Ok(id) => say(format_args!(
            "deployment {id}: the markers are written, {nodes} lock nodes may vote; \
             proxies that run already take it over by themselves after the longest TTL, or at once when restarted"
        )),
        Err(InitError::Found { markers, .. }) if if_new => {
            say(format_args!("nothing to do: {}", markers.join("; ")));
        }
        Err(error) => bail!(error),
    }
    Ok(())
}
