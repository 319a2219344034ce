//! The side of the process that is replaced: passes its listening sockets on to a process that
//! may have them, and serves on until that process is ready.

use std::{future::pending, io, net::SocketAddr, os::fd::AsFd, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    net::{TcpListener, UnixListener},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    hello::{CLUSTER_HELLO, Common, DONE, READY, REFUSED, encode_front},
    remains,
    wire::{Wire, bad},
};
use crate::{
    config::Config,
    data::DataNode,
    server::entry::listeners::ACCEPT_PAUSE,
    session::earlier::{EarlierProcesses, WhatIsLeft},
};

/// How long the other process may take to say what it wants, and to read the answer.
const TALK_LIMIT: Duration = Duration::from_secs(3);
/// How long a new process may take until it can serve: it asks the data node and waits for the
/// lock nodes, some seconds each.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Listening sockets, with their addresses as configured.
pub(crate) type Sockets = [(SocketAddr, Arc<TcpListener>)];

/// The connection to a process that has taken over. That process must be told when this one accepts no more.
pub(crate) struct Replaced(Wire);

impl Replaced {
    /// Returns the other process's id, if the system knows it.
    pub(crate) fn by(&self) -> Option<i32> {
        self.0.peer()
    }

    /// Tells the other process that this one accepts no more.
    pub(crate) async fn done(&self) {
        // The other process goes on without this word too.
        let _ = timeout(TALK_LIMIT, self.0.send(DONE, None)).await;
    }

    /// Tells the other process what this one and those before it still have, for as long as this is polled.
    pub(crate) async fn tell(&self, own: impl Fn() -> WhatIsLeft, earlier: &EarlierProcesses) {
        remains::tell(&self.0, own, earlier).await;
        pending().await
    }
}

/// Waits until another process has taken over, one conversation at a time. `is_ready` tells
/// whether this process could serve.
pub(super) async fn serve<F: Future<Output = bool>>(
    rendezvous: &UnixListener,
    sockets: &Sockets,
    (config, data): (&ArcSwap<Config>, &DataNode),
    is_ready: impl Fn() -> F,
) -> Replaced {
    loop {
        let stream = match rendezvous.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept on upgrade_socket; trying again");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let mut peer = None;
        let talked = async {
            let mut wire = Wire::new(stream)?;
            peer = wire.peer();
            talk(&mut wire, sockets, (config, data), &is_ready).await.map(|()| wire)
        };
        match talked.await {
            Ok(wire) => return Replaced(wire),
            Err(error) => warn!(
                pid = peer, %error,
                "a process that came to upgrade_socket did not take over; going on"
            ),
        }
    }
}

async fn talk<F: Future<Output = bool>>(
    wire: &mut Wire,
    sockets: &Sockets,
    (config, data): (&ArcSwap<Config>, &DataNode),
    is_ready: impl Fn() -> F,
) -> io::Result<()> {
    let begin = async {
        let hello = wire.line().await?.ok_or_else(gone)?;
        let differences = Common::of(&config.load())
            .differences(&hello)
            .ok_or_else(|| bad("it does not speak this version's language"))?;
        if !differences.is_empty() {
            let differences = differences.join(" ");
            wire.send(&format!("{REFUSED} {differences}"), None).await?;
            return Err(bad(&format!("it has another {differences}")));
        }
        let ready = if is_ready().await { "yes" } else { "no" };
        wire.send(&format!("sockets {} ready {ready}", sockets.len()), None).await?;
        for (address, socket) in sockets {
            wire.send(&address.to_string(), Some(socket.as_fd())).await?;
        }
        if hello.starts_with(CLUSTER_HELLO) {
            let fronts = data.fronts();
            wire.send(&format!("fronts {}", fronts.len()), None).await?;
            for front in &fronts {
                wire.send(&encode_front(front), None).await?;
            }
        }
        io::Result::Ok(())
    };
    timeout(TALK_LIMIT, begin).await.map_err(|_| late("said nothing"))??;
    info!(pid = wire.peer(), "passed the listening sockets on; waiting until that is ready");
    timeout(READY_LIMIT, expect(wire, READY)).await.map_err(|_| late("was not ready"))?
}

async fn expect(wire: &mut Wire, word: &str) -> io::Result<()> {
    match wire.line().await? {
        Some(line) if line == word => Ok(()),
        Some(_) => Err(bad("it does not speak this version's language")),
        None => Err(gone()),
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it has gone")
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it {what} in time"))
}
