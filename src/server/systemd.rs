//! What a service manager is told (sd_notify), if there is one: NOTIFY_SOCKET.
//!
//! Ready means that clients are accepted. It does not wait for the data node or the
//! lock nodes: a proxy that is there before them serves as soon as they come, and one
//! that was restarted for want of them would not bring them back.

use std::{io, process, sync::Arc, time::Duration};

use sd_notify::NotifyState::{self, MainPid, Ready, Reloading, Status, Stopping, Watchdog};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::server::workers::Workers;

/// A service manager's watchdog is told twice in each of its periods, as it asks for.
const WATCHDOG_SHARE: u32 = 2;

/// Clients are accepted. `is_another`: by another process than before.
pub(super) async fn ready(is_another: bool) {
    tell(move || {
        // Inside a container it would be a number that nobody outside knows.
        let main = is_another.then(|| MainPid(process::id()));
        let states = [Ready, Status("Accepting clients")];
        sd_notify::notify(&main.into_iter().chain(states).collect::<Vec<_>>())
    })
    .await;
}

/// No more clients are accepted, by no process.
pub(super) async fn stopping() {
    tell(|| sd_notify::notify(&[Stopping, Status("Shutting down")])).await;
}

/// The configuration is being read again.
pub(super) async fn reloading() {
    tell(|| sd_notify::notify(&[Reloading, NotifyState::monotonic_usec_now()?])).await;
}

/// That is done, whatever came of it.
pub(super) async fn reloaded() {
    tell(|| sd_notify::notify(&[Ready])).await;
}

/// Shows that every thread still runs, if anybody wants to know (WATCHDOG_USEC).
pub(super) async fn watchdog(workers: Arc<Workers>) {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return;
    };
    let mut ticks = interval((period / WATCHDOG_SHARE).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        workers.answer().await;
        tell(|| sd_notify::notify(&[Watchdog])).await;
    }
}

/// A socket whose reader is behind makes the sender wait, so it has a thread of its own.
async fn tell(notify: impl FnOnce() -> io::Result<()> + Send + 'static) {
    if let Ok(Err(error)) = tokio::task::spawn_blocking(notify).await {
        warn!(%error, "cannot tell the service manager (NOTIFY_SOCKET)");
    }
}
