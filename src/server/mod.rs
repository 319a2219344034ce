//! One process: [`run`] is its life, step by step.
//!
//! Each accepted connection becomes one task with one [`session::Session`] on one of the [`workers`]. What sessions
//! share is in [`session::Shared`]: the lock engine, the counters, the rules, the configuration.
//!
//! - [`opened`]: everything that a process must have before it runs.
//! - [`proxy`]: the parts that run before the first client is let in, and the opening of the
//!   doors.
//! - [`serving`]: a process with open doors, until its end.
//! - [`entry`]: which clients this process lets in, and how many.
//! - [`door`]: a listener's clients, from accept to session.
//! - [`workers`]: a thread for each core, to which sessions are dealt; those that share connections, so that many are
//!   together.
//! - [`admin`]: the status page, its JSON, `/metrics`, `/healthz`, `/readyz` over HTTP.
//! - [`upgrade`]: one process takes another's place.
//! - [`reload`]: reads the configuration again, and takes over what can change.
//! - [`fleet`]: writes this proxy's record on the lock nodes, and reads those of the others.
//! - [`systemd`]: messages to a service manager.
//! - [`server_metrics`]: counters of client connections and of reloads of the configuration.
//! - [`logging`]: tracing's output, human on a terminal and JSON otherwise.

mod admin;
mod door;
mod entry;
mod fleet;
pub mod logging;
mod opened;
mod proxy;
mod reload;
mod server_metrics;
mod serving;
mod systemd;
mod upgrade;
mod workers;

pub use admin::health_check;
pub(crate) use entry::exposure::Exposure;
pub use entry::listeners::Listeners;
pub(crate) use upgrade::check as check_upgrade_socket;

/// Readers for the test of all readers.
#[cfg(test)]
pub(crate) mod seams {
    /// Reads a line of another process, or a query string.
    pub(crate) fn read_lines(text: &str) {
        super::upgrade::read_line(text);
        super::admin::read_query(text);
    }
}

use std::{path::PathBuf, sync::Arc};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{logging::Level, opened::Opened, proxy::Proxy};
use crate::{config::Config, data, lock, log_writer, metrics::Recorder, net, session, share};

/// Settings of a proxy's start, and the signals that reach it while it runs.
#[derive(Default)]
pub struct Control {
    /// Cancelled when the proxy is to end.
    pub shutdown: CancellationToken,
    /// Notified when the configuration is to be read again.
    pub reload: Arc<Notify>,
    /// Notified when a process that takes this one's place is to be started.
    pub upgrade: Arc<Notify>,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// The running log.
    pub log: Option<Level>,
    /// Sockets that are already open.
    pub listeners: Listeners,
    /// Whether to take the place of a running proxy, if there is one.
    pub take_over: bool,
}

/// Runs the proxy until it is told to end or another has taken its place, and commands in flight
/// are done.
///
/// # Errors
/// If an address cannot be listened on, the data node is open and strangers could reach it, the
/// metrics cannot be set up, or a running proxy's place cannot be taken.
pub async fn run(config: Config, mut control: Control) -> anyhow::Result<()> {
    let recorder = start_counting()?;
    let (mut opened, succession) = Opened::open(&config, &mut control).await?;
    let proxy = Proxy::build(config, control, &mut opened, recorder)?;
    // Comes before the running process gives way: no client is to wait for it.
    let joined = proxy.join_fleet().await;
    let Some(standing) = proxy.take_over(succession).await? else { return Ok(()) };
    let mut serving = proxy.open_doors(opened, joined, standing).await;
    let end = serving.until_end().await;
    serving.end(end).await;
    Ok(())
}

/// Installs the recorder, and gives each metric its help text.
fn start_counting() -> anyhow::Result<Recorder> {
    let recorder = crate::metrics::install()?;
    server_metrics::describe();
    session::session_metrics::describe();
    lock::lock_metrics::describe();
    net::tls::tls_metrics::describe();
    log_writer::describe();
    data::describe();
    share::describe();
    Ok(recorder)
}
