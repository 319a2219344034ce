//! Starts the process that is to take this one's place: the same program with the same arguments
//! and `--upgrade`, from the file at that path now.
//!
//! A child of this process belongs to the same service, so a service manager believes its
//! messages.

use std::{
    env,
    ffi::OsString,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::process::Command;
use tracing::{error, info, warn};

/// The argument that makes a process take another's place.
const UPGRADE: &str = "--upgrade";
/// Variables that a service manager sets for this process alone.
const NOT_PASSED_ON: [&str; 4] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Starts successors, at most one at a time.
#[derive(Default)]
pub(crate) struct Successor {
    is_starting: Arc<AtomicBool>,
}

impl Successor {
    /// Starts a successor, unless one is starting.
    pub(crate) fn start(&self) {
        if self.is_starting.swap(true, Ordering::Relaxed) {
            warn!("a process that is to take over is starting already");
            return;
        }
        // The path by which this process was called; the file there may have been replaced.
        let mut arguments = env::args_os();
        let program = arguments.next().unwrap_or_else(|| OsString::from("lockgate"));
        let arguments = arguments.filter(|argument| argument != UPGRADE);
        let mut command = Command::new(&program);
        command.args(arguments).arg(UPGRADE).stdin(Stdio::null());
        for name in NOT_PASSED_ON {
            command.env_remove(name);
        }
        match command.spawn() {
            Err(error) => {
                let program = &*program.to_string_lossy();
                error!(program, %error, "cannot start the process that is to take over");
                self.is_starting.store(false, Ordering::Relaxed);
            }
            Ok(mut child) => {
                info!(pid = child.id(), "started a process that is to take over");
                let is_starting = self.is_starting.clone();
                tokio::spawn(async move {
                    match child.wait().await {
                        // It has taken over, and another from it.
                        Ok(status) if status.success() => {
                            info!("the process started to take over has ended");
                        }
                        Ok(status) => warn!(%status, "the process started to take over has ended"),
                        Err(error) => {
                            warn!(%error, "cannot wait for the process started to take over")
                        }
                    }
                    is_starting.store(false, Ordering::Relaxed);
                });
            }
        }
    }
}
