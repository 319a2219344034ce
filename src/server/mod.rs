//! One process: [`run`] is its life, in six steps.
//!
//! Each accepted connection becomes one task with one [`session::Session`] on one of the
//! [`workers`]; nothing is shared between sessions but the lock engine and the
//! counters.
//!
//! - [`opened`]: what it must have before anything runs.
//! - [`proxy`]: what runs before the first client is let in, and how the doors are opened.
//! - [`serving`]: with open doors, until the end.
//! - [`entry`]: whom this process lets in, and how many.
//! - [`door`]: a listener's clients, from accept to session.
//! - [`workers`]: a thread for each core, to which sessions are dealt.
//! - [`admin`]: `/metrics`, `/healthz`, `/readyz` over HTTP.
//! - [`upgrade`]: one process takes another's place.
//! - [`reload`]: the configuration read again, and what of it can change.
//! - [`systemd`]: what a service manager is told.
//! - [`metrics`]: what is counted of clients' coming and going and of the configuration.
//! - [`logging`]: tracing's output, human on a terminal and JSON otherwise.

mod admin;
mod door;
mod entry;
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

use std::{path::PathBuf, sync::Arc};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{logging::Level, opened::Opened, proxy::Proxy};
use crate::{config::Config, lock, metrics::Recorder, net, session};

/// How a proxy is started and what reaches it from outside while it runs.
#[derive(Default)]
pub struct Control {
    /// Cancelled when it is to end.
    pub shutdown: CancellationToken,
    /// Told when the configuration is to be read again.
    pub reload: Arc<Notify>,
    /// Told when a process is to be started that takes this one's place.
    pub upgrade: Arc<Notify>,
    /// Where the configuration was read.
    pub file: Option<PathBuf>,
    /// The running log.
    pub log: Option<Level>,
    /// Sockets that are open already.
    pub listeners: Listeners,
    /// It is to take the place of a proxy that runs, if one does.
    pub take_over: bool,
}

/// Runs the proxy until it is to end, or another has taken its place, and what was in
/// flight is done.
///
/// # Errors
/// If an address cannot be listened on, strangers would come to a data node that is open
/// to them, the metrics cannot be set up, or a running proxy's place cannot be taken.
pub async fn run(config: Config, mut control: Control) -> anyhow::Result<()> {
    let recorder = start_counting()?;
    let (opened, succession) = Opened::open(&config, &mut control).await?;
    let proxy = Proxy::build(config, control, &opened, recorder)?;
    let Some(standing) = proxy.take_over(succession).await? else { return Ok(()) };
    let mut serving = proxy.open_doors(opened, standing).await;
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
    Ok(recorder)
}
