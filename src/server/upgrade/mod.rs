//! One process takes another's place, and no client notices.
//!
//! The listening sockets are passed on, not opened anew: what waits in the kernel to be
//! accepted waits for whichever process accepts next. Connections that are open stay
//! with the process that accepted them, with their locks, until they end.
//!
//! ```text
//! new → old   lockgate-upgrade 2 3f… 9a…         asks, with digests of its lock nodes and prefix;
//!                                                each side checks the other's user
//! old → new   sockets 2 ready yes                how many come, and whether old can serve
//! old → new   127.0.0.1:6380            + socket each with its address
//! new → old   ready                              from here on the new one has taken over
//! old → new   done                               the old one accepts no more
//! old → new   left 612 3 2 0                     each second: process 612 has 3 connections, 2 locks, 0 waiters
//! ```
//!
//! A process with other lock nodes or another prefix is answered `refused`, with what differs: clients of both could
//! hold one lock. If the data node is a Redis Cluster, the new process says `lockgate-upgrade 3`, and behind the
//! sockets the old one says which fronts lead to which nodes:
//!
//! ```text
//! old → new   fronts 6                           how many come
//! old → new   10.0.0.1:7100 07c37df…             each with the id of its node
//! old → new   10.0.0.1:7101 67ed2db… gone 12000  which the cluster has not had for so many ms
//! ```
//!
//! So both processes lead their clients alike. A process that hangs up on `lockgate-upgrade 3` is asked once more with
//! `lockgate-upgrade 2`.
//!
//! Until `ready` the old process goes on as if it had not been asked, whatever becomes of the new one.
//!
//! - `hello`: the words of both sides, and what they must have in common.
//! - `wire`: lines and sockets, and which processes may send them.
//! - `rendezvous`: the socket in the file system over which all this goes.
//! - `handover`: the side of the process that is replaced.
//! - `takeover`: the side of the process that takes its place.
//! - `remains`: what a replaced process still has.
//! - `successor`: starts the new process (SIGUSR2).

mod handover;
mod hello;
mod remains;
mod rendezvous;
mod successor;
mod takeover;
mod wire;

pub(super) use handover::Replaced;
pub(super) use rendezvous::{Prepared, Rendezvous};
pub(super) use takeover::{Predecessor, Replacing};

/// Reads a line of another process, for a test.
#[cfg(test)]
pub(super) fn read_line(line: &str) {
    let common = hello::Common::of(&Config::default());
    std::hint::black_box((hello::read_front(line).is_some(), common.differences(line)));
}

use std::{
    future::{Future, pending},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tracing::{error, info, warn};

use self::{handover::Sockets, hello::Common, successor::Successor};
use crate::{
    config::{Config, SocketPath},
    data::DataNode,
    server::entry::listeners::Inherited,
};

/// Asks the proxy at `upgrade_socket` for its listening sockets, if `take_over`. Returns
/// `None` if no proxy runs there.
///
/// # Errors
/// If that proxy does not give its sockets, or runs although this process is not to take over.
pub(super) async fn predecessor(
    config: &Config,
    take_over: bool,
) -> anyhow::Result<Option<(Predecessor, Vec<Inherited>)>> {
    let Some(SocketPath(path)) = &config.upgrade_socket else {
        if take_over {
            bail!("--upgrade needs an upgrade_socket in the configuration");
        }
        return Ok(None);
    };
    let where_it_is = || format!("upgrade_socket {}", path.display());
    if take_over {
        let found = Predecessor::find(path, &Common::of(config)).await.with_context(where_it_is)?;
        if found.is_none() {
            info!(path = %path.display(), "no proxy runs there; starting as without --upgrade");
        }
        return Ok(found);
    }
    if !Rendezvous::is_free(path).with_context(where_it_is)? {
        bail!("{}: a proxy runs there; --upgrade takes its place", where_it_is());
    }
    Ok(None)
}

/// Checks that `upgrade_socket` can be made here, as far as can be told without making it.
///
/// # Errors
/// If it cannot.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    let Some(SocketPath(path)) = &config.upgrade_socket else { return Ok(()) };
    let cannot = || format!("cannot make upgrade_socket {}", path.display());
    Prepared::check(path).with_context(cannot)
}

/// Makes the socket at which this process can be replaced, under a temporary name.
///
/// # Errors
/// If the socket cannot be made.
pub(super) fn prepare(config: &Config) -> anyhow::Result<Option<Prepared>> {
    let Some(SocketPath(path)) = &config.upgrade_socket else { return Ok(None) };
    let made = Prepared::new(path);
    made.map(Some).with_context(|| format!("cannot make upgrade_socket {}", path.display()))
}

/// Moves the socket to its path. With `go_on` a failure is only logged: a process that has already taken over goes on
/// without the socket.
///
/// # Errors
/// If the socket cannot be moved there.
pub(super) fn install(
    prepared: Option<Prepared>,
    go_on: bool,
) -> anyhow::Result<Option<Rendezvous>> {
    match prepared.map(Prepared::install).transpose() {
        Err(error) if go_on => {
            error!(%error, "upgrade_socket cannot be made; this process cannot be replaced");
            Ok(None)
        }
        installed => installed.context("cannot make upgrade_socket"),
    }
}

/// Waits until another process has taken over; for ever if there is no socket.
pub(super) async fn wait<F: Future<Output = bool>>(
    rendezvous: Option<&Rendezvous>,
    sockets: &Sockets,
    (config, data): (&ArcSwap<Config>, &DataNode),
    is_ready: impl Fn() -> F,
) -> Replaced {
    match rendezvous {
        Some(rendezvous) => {
            let listener = &rendezvous.listener;
            handover::serve(listener, sockets, (config, data), is_ready).await
        }
        None => pending().await,
    }
}

/// Removes the socket: no process can take over any more.
pub(super) fn leave(rendezvous: Option<Rendezvous>) {
    if let Some(rendezvous) = rendezvous {
        rendezvous.leave();
    }
}

/// Starts a process that takes over, at each notification.
pub(super) async fn start_successors(asked: Arc<Notify>, is_possible: bool) {
    let successor = Successor::default();
    loop {
        asked.notified().await;
        if is_possible {
            successor.start();
        } else {
            warn!("there is no upgrade_socket, over which another process could take over");
        }
    }
}
