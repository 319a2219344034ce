//! Messages to a service manager (sd_notify), if NOTIFY_SOCKET names one.
//!
//! Ready means that clients are accepted. It does not wait for the data node or the lock nodes. A proxy that starts
//! before them serves as soon as they come, and restarting it for lack of them would not bring them back.

use std::{io, process, sync::Arc, time::Duration};

use sd_notify::NotifyState::{self, MainPid, Ready, Reloading, Status, Stopping, Watchdog};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::server::workers::Workers;

/// Messages to the watchdog in each of its periods: two, as sd_watchdog_enabled(3) recommends.
const WATCHDOG_SHARE: u32 = 2;

/// Says that clients are accepted; `is_another` if another process accepted them before.
pub(super) async fn ready(is_another: bool) {
    tell(move || {
        // Sent only in that case: inside a container the number would mean nothing outside.
        let main = is_another.then(|| MainPid(process::id()));
        let states = [Ready, Status("Accepting clients")];
        sd_notify::notify(&main.into_iter().chain(states).collect::<Vec<_>>())
    })
    .await;
}

/// Says that no process accepts clients any more.
pub(super) async fn stopping() {
    tell(|| sd_notify::notify(&[Stopping, Status("Shutting down")])).await;
}

/// Says that the configuration is being read again.
pub(super) async fn reloading() {
    tell(|| sd_notify::notify(&[Reloading, NotifyState::monotonic_usec_now()?])).await;
}

/// Says that the reading has ended, successfully or not.
pub(super) async fn reloaded() {
    tell(|| sd_notify::notify(&[Ready])).await;
}

/// Shows that every thread still runs, if the service manager wants to know (WATCHDOG_USEC).
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

/// Sends a message, on a thread of its own: a socket whose reader is slow makes the sender wait.
async fn tell(notify: impl FnOnce() -> io::Result<()> + Send + 'static) {
    if let Ok(Err(error)) = tokio::task::spawn_blocking(notify).await {
        warn!(%error, "cannot tell the service manager (NOTIFY_SOCKET)");
    }
}
