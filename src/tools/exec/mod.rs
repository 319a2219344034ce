//! `lockgate exec`: runs a command under a lock, as flock(1) does, for many machines.
//!
//! The lock is a session lock of one connection, or with `--at-least` a lease ([`held_lock`]). The command
//! ([`child_command`]) inherits the connection's socket, as flock leaves its file open: if exec is killed, the proxy
//! keeps the lock until the last process that has the socket has ended.
//!
//! Every third of the lock's TTL exec asks for its lock itself. Where no answer confirms it, the command gets TERM
//! `--grace` before the last confirmed validity ends, and KILL at its end, with all its descendants. So nothing of it
//! runs beside the next holder.

mod child_command;
mod held_lock;

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::Args;
use tokio::{
    signal::unix::{self, SignalKind},
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

pub use self::child_command::{ExecStep, become_command};
use self::{
    child_command::{ChildCommand, LOOK_EVERY, Signals},
    held_lock::{GivenBack, HeldLock, LockStanding, NotLocked, Terms},
};
use super::{say::complain, time_argument};
use crate::{
    config::{ClientTls, RedisUrl, written},
    log_text::plain_line,
};

/// Exit status if the lock was lost before the command had ended.
const LOST: u8 = 124;
/// Exit status if exec itself fails, such as for a server that cannot be reached.
pub const FAILED: u8 = 125;

/// The environment variable that names the server.
const SERVER_VARIABLE: &str = "LOCKGATE_URL";
/// The server that is asked without one: that of `lockgate dev`.
const DEFAULT_SERVER: &str = "redis://127.0.0.1:6380";
/// How long the first answer may take once this process goes on after it was stopped.
const FIRST_ANSWER: Duration = Duration::from_millis(500);
/// How long giving the lock back may take.
const END_LIMIT: Duration = Duration::from_secs(2);

/// What to run, and under which lock.
#[derive(Debug, Args)]
pub struct ExecOptions {
    /// The lock.
    #[arg(value_name = "KEY")]
    lock: OsString,
    /// How long to wait while another client holds the lock, as 500ms, 30s or 2m; without it,
    /// not at all.
    #[arg(long, value_name = "TIME", value_parser = time_argument)]
    wait: Option<Duration>,
    /// Exit status if another client holds the lock, to tell that from the command's own 1.
    #[arg(short = 'E', long, value_name = "STATUS", default_value = "1")]
    conflict_exit_code: u8,
    /// Takes a free one of so many permits, KEY#0, KEY#1, and so on: at most so many commands run at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    permits: Option<u16>,
    /// Shares the lock: any number of such commands run at once, while none runs that has it alone.
    #[arg(long, conflicts_with = "permits")]
    shared: bool,
    /// Keeps the lock for at least this long, even if the command ends sooner: once per interval,
    /// although the clocks of machines differ. At most locks.max_ttl.
    #[arg(long, value_name = "TIME", value_parser = time_argument)]
    at_least: Option<Duration>,
    /// How long the command has to end after TERM, before the lock may be another client's.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time_argument)]
    grace: Duration,
    /// The proxy, as redis://host:6380, rediss:// for TLS; without it, the one that LOCKGATE_URL
    /// names, which `ps` does not show, or 127.0.0.1:6380.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The CAs that must have signed the proxy's certificate; without it, those that the system
    /// trusts.
    #[arg(long, value_name = "FILE")]
    cacert: Option<std::path::PathBuf>,
    /// The certificate that the proxy is shown.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<std::path::PathBuf>,
    /// The certificate's private key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<std::path::PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command under the lock. Returns its exit status, 128 and the signal's number if a signal ended it, or
/// one of exec's own, with a line on stderr.
pub fn run(options: &ExecOptions) -> ExitCode {
    // On one thread, as the kernel ends the command when the thread that has started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = match runtime {
        Ok(runtime) => {
            let status = runtime.block_on(under_lock(options));
            runtime.shutdown_background();
            status
        }
        Err(error) => Err(failed(error)),
    };
    ExitCode::from(status.unwrap_or_else(|Failed { status, what }| {
        complain(format_args!("lockgate exec: {what}"));
        status
    }))
}

/// Why exec ends otherwise than its command.
struct Failed {
    status: u8,
    what: String,
}

/// An error of the operating system's.
fn failed(error: impl ToString) -> Failed {
    Failed::with(FAILED, error.to_string())
}

impl Failed {
    fn with(status: u8, what: String) -> Failed {
        Failed { status, what }
    }
}

/// Returns the server's URL.
fn server(options: &ExecOptions) -> Result<RedisUrl, Failed> {
    let named = options.server.clone().map(|url| ("--server", url));
    let named = named.or_else(|| {
        let url = std::env::var(SERVER_VARIABLE).ok().filter(|url| !url.is_empty())?;
        Some((SERVER_VARIABLE, url))
    });
    let (place, url) = named.unwrap_or(("--server", DEFAULT_SERVER.into()));
    let url: RedisUrl =
        url.parse().map_err(|error| Failed::with(FAILED, format!("{place}: {error}")))?;
    if !url.tls && (options.cacert.is_some() || options.cert.is_some()) {
        let what = "--cacert, --cert and --key are for TLS: a server at rediss://";
        return Err(Failed::with(FAILED, what.into()));
    }
    Ok(url)
}

async fn under_lock(options: &ExecOptions) -> Result<u8, Failed> {
    let tls = ClientTls {
        ca_cert_file: options.cacert.clone(),
        cert_file: options.cert.clone(),
        key_file: options.key.clone(),
        server_name: None,
    };
    let ExecOptions { wait, at_least, permits, shared, .. } = *options;
    let terms = Terms { wait, at_least, permits, shared };
    let key = options.lock.as_encoded_bytes();
    let lock = match HeldLock::take(&server(options)?, &tls, key, terms).await {
        Ok(lock) => lock,
        Err(NotLocked::Held) => {
            let waited = options.wait.map(|wait| format!(" (waited {})", written(wait)));
            let held = permits.map_or("is held by another client".into(), |permits| {
                format!("has no free permit of {permits}")
            });
            let what = format!("{} {held}", shown(key));
            return Err(Failed::with(
                options.conflict_exit_code,
                what + &waited.unwrap_or_default(),
            ));
        }
        Err(NotLocked::Failed(what)) => return Err(Failed::with(FAILED, what)),
    };
    if lock.validity() <= 3 * options.grace {
        let what = format!(
            "the lock lasts {} ms, and must last longer than three times --grace: give less than {}, or more TTL \
             (locks.default_ttl, --at-least)",
            lock.validity().as_millis(),
            written(options.grace)
        );
        let _ = timeout(END_LIMIT, lock.give_back_unused()).await;
        return Err(Failed::with(FAILED, what));
    }
    let mut lock = lock;
    let child = match ChildCommand::start(&options.command, &lock.environment()) {
        Ok(child) => child,
        Err(error) => {
            let _ = timeout(END_LIMIT, lock.give_back_unused()).await;
            return Err(failed(error));
        }
    };
    lock.has_started();
    let name = shown(lock.name());
    let (told, standing) = watch::channel(lock.standing());
    let (stop, stopped) = oneshot::channel();
    let keeping = tokio::spawn(lock.keep(told, stopped));
    let watched = WatchedCommand { child, standing, grace: options.grace, lock: name.clone() };
    let ended = watched.until_ended().await?;
    drop(stop);
    let lock = keeping.await.map_err(failed)?;
    if ended.was_lost {
        return Ok(LOST);
    }
    give_back(lock, ended.status, name).await
}

/// Gives the lock back, and returns the command's status, unless the lock had been lost before.
async fn give_back(lock: HeldLock, status: u8, name: String) -> Result<u8, Failed> {
    match timeout(END_LIMIT, lock.give_back()).await {
        Ok(GivenBack::Done) => Ok(status),
        Ok(GivenBack::WasLost) => Err(Failed::with(
            LOST,
            format!("the lock {name} was lost before the command had ended"),
        )),
        Ok(GivenBack::Unknown(why)) => {
            complain(format_args!("lockgate exec: {name} ends by its TTL: {why}"));
            Ok(status)
        }
        Err(_) => {
            complain(format_args!("lockgate exec: {name} ends by its TTL: no answer to UNLOCK"));
            Ok(status)
        }
    }
}

/// A lock's name as messages have it.
fn shown(lock: &[u8]) -> String {
    format!("'{}'", plain_line(&String::from_utf8_lossy(lock)))
}

/// The running command, and how its lock is.
struct WatchedCommand {
    child: ChildCommand,
    standing: watch::Receiver<LockStanding>,
    grace: Duration,
    /// The lock's name as messages have it.
    lock: String,
}

/// The end of the command.
struct CommandEnd {
    status: u8,
    /// The lock was lost, or not confirmed any more, before that.
    was_lost: bool,
}

impl WatchedCommand {
    /// Passes signals on, and ends the command if its lock is not confirmed any more.
    async fn until_ended(mut self) -> Result<CommandEnd, Failed> {
        let mut signals = Signals::listen();
        let mut children = unix::signal(SignalKind::child()).map_err(failed)?;
        // When the command must have ended, once its lock is in doubt.
        let mut kill_at = None;
        loop {
            let standing = self.standing.borrow_and_update().clone();
            if standing.lost && kill_at.is_none() {
                kill_at = Some(standing.until.min(Instant::now() + self.grace));
                self.end("was lost");
            }
            tokio::select! {
                status = self.child.wait() => {
                    let status = status.map_err(failed)?;
                    if let Some(kill_at) = kill_at {
                        self.child.end_descendants(kill_at).await;
                    }
                    return Ok(CommandEnd { status, was_lost: kill_at.is_some() });
                }
                signal = signals.next() => self.child.pass_on(signal),
                _ = children.recv() => self.child.reap_orphans(),
                _ = self.standing.changed(), if kill_at.is_none() => {}
                () = sleep_until(standing.until - self.grace), if kill_at.is_none() => {
                    if self.was_asleep(&standing) {
                        // The question that is due is asked first, as the proxy may have kept the lock.
                        let _ = timeout(FIRST_ANSWER, self.standing.changed()).await;
                        if self.standing.borrow().until > standing.until {
                            continue;
                        }
                    }
                    kill_at = Some(standing.until);
                    let why = standing.trouble.unwrap_or_else(|| "no answer".into());
                    self.end(&format!("is not confirmed ({why})"));
                }
                () = sleep_until(kill_at.unwrap_or(standing.until)), if kill_at.is_some() => {
                    self.child.kill();
                    sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    /// Whether this process was stopped for so long that the lock could not be confirmed.
    fn was_asleep(&self, standing: &LockStanding) -> bool {
        standing.trouble.is_none() && Instant::now() > standing.until
    }

    /// Asks the command to end, and says why.
    fn end(&self, why: &str) {
        let WatchedCommand { lock, .. } = self;
        complain(format_args!("lockgate exec: the lock {lock} {why}: the command must end"));
        self.child.terminate();
    }
}
