//! One process: [`run`] is its life, in six steps.
//!
//! Each accepted connection becomes one task with one [`session::Session`] on one of the
//! [`workers`]; nothing is shared between sessions but the lock engine and the
//! counters.
//!
//! - [`opened`]: everything that a process must have before it runs.
//! - [`proxy`]: the parts that run before the first client is let in, and the opening of the
//!   doors.
//! - [`serving`]: a process with open doors, until its end.
//! - [`entry`]: whom this process lets in, and how many.
//! - [`door`]: a listener's clients, from accept to session.
//! - [`workers`]: a thread for each core, to which sessions are dealt.
//! - [`admin`]: the status page, its JSON, `/metrics`, `/healthz`, `/readyz` over HTTP.
//! - [`upgrade`]: one process takes another's place.
//! - [`reload`]: reads the configuration again, and takes over what can change.
//! - [`fleet`]: what this proxy says of itself, told to the others over the lock nodes, and theirs.
//! - [`systemd`]: messages to a service manager.
//! - [`metrics`]: counters of clients' coming and going and of the configuration.
//! - [`logging`]: tracing's output, human on a terminal and JSON otherwise.

mod admin;
mod door;
mod entry;
mod fleet;
pub mod logging;
mod metrics;
mod opened;
mod proxy;
mod reload;
mod serving;
mod systemd;
mod upgrade;
mod workers;

pub use admin::health_check;
pub(crate) use entry::exposure::Exposure;
pub use entry::listeners::Listeners;
pub(crate) use upgrade::check as check_upgrade_socket;

/// What a test of all readers reads here.
#[cfg(test)]
pub(crate) mod seams {
    /// A line of another process, or what stands behind the `?` of a request.
    pub(crate) fn read_lines(text: &str) {
        super::upgrade::read_line(text);
        super::admin::read_query(text);
    }
}

use std::{path::PathBuf, sync::Arc};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{logging::Level, opened::Opened, proxy::Proxy};
use crate::{config::Config, data, lock, log_writer, metrics::Recorder, net, session};

/// Settings of a proxy's start, and the signals that reach it while it runs.
#[derive(Default)]
pub struct Control {
    /// Cancelled when the proxy is to end.
    pub shutdown: CancellationToken,
    /// Notified when the configuration is to be read again.
    pub reload: Arc<Notify>,
    /// Notified when a process that takes this one's place is to be started.
    pub upgrade: Arc<Notify>,
    /// The file that the configuration was read from.
    pub file: Option<PathBuf>,
    /// The running log.
    pub log: Option<Level>,
    /// Sockets that are open already.
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
    let (opened, succession) = Opened::open(&config, &mut control).await?;
    let proxy = Proxy::build(config, control, &opened, recorder)?;
    // Before the running process gives way: nobody is to wait for it.
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
    metrics::describe();
    session::metrics::describe();
    lock::metrics::describe();
    net::tls::metrics::describe();
    log_writer::describe();
    data::describe();
    Ok(recorder)
}
