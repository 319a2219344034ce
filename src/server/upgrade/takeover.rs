//! The side of the process that takes another's place: gets the listening sockets, and says when
//! it can serve.

use std::{
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::net::sockopt::socket_acceptconn;
use tokio::{
    net::UnixStream,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    hello::{CLUSTER_HELLO, Common, DONE, READY, REFUSED, read_front},
    remains,
    rendezvous::{Rendezvous, is_nobody},
    wire::{MAX_SOCKETS, Wire, bad},
};
use crate::{
    config::OTHER_NODES,
    data::FrontOfNode,
    server::{admin::PageSource, entry::listeners::Inherited},
    session::earlier::EarlierProcesses,
};

/// How long the running process may take to hand its sockets over. It takes part in one
/// conversation at a time, and each may keep it for some seconds.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(10);
/// How long this process may take to reach the data node and a quorum of lock nodes. They
/// answer within milliseconds if they ever do.
const WARM_UP_LIMIT: Duration = Duration::from_secs(5);
/// How often this process looks whether it can serve.
const WARM_UP_EVERY: Duration = Duration::from_millis(10);
/// How long the other process may take to stop accepting.
const DONE_LIMIT: Duration = Duration::from_secs(5);

/// How often this process looks whether a silent predecessor has gone, and the time between.
const LAST_LOOKS: usize = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The process whose place is to be taken.
pub(crate) struct Predecessor {
    wire: Wire,
    path: PathBuf,
    /// Whether the process could serve when it was asked.
    is_ready: bool,
    /// The fronts of a cluster as the process had them.
    fronts: Vec<FrontOfNode>,
}

impl Predecessor {
    /// Asks the process at `path` for its sockets. Returns `None` if none answers.
    ///
    /// # Errors
    /// If the process does not give its sockets, or must not be trusted.
    pub(crate) async fn find(
        path: &Path,
        common: &Common,
    ) -> anyhow::Result<Option<(Predecessor, Vec<Inherited>)>> {
        let mut asked = None;
        for hello in common.hellos() {
            let stream = match UnixStream::connect(path).await {
                Ok(stream) => stream,
                Err(error) if is_nobody(&error) => return Ok(None),
                Err(error) => return Err(error).context("cannot connect"),
            };
            let mut wire = Wire::new(stream)?;
            let answer = timeout(HAND_OVER_LIMIT, ask(&mut wire, &hello)).await;
            let answer =
                answer.context("it does not answer; perhaps another upgrade is under way")?;
            // Earlier versions hang up on unknown words.
            let is_old = answer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof);
            asked = Some((answer, wire));
            if !is_old {
                break;
            }
        }
        let (answer, wire) = asked.context("it was not asked")?;
        let Handed { is_ready, sockets, fronts } =
            answer.context("it does not hand its sockets over")?;
        info!(pid = wire.peer(), sockets = sockets.len(), "taking over from a running proxy");
        Ok(Some((Predecessor { wire, path: path.to_owned(), is_ready, fronts }, sockets)))
    }

    /// Takes the fronts of a cluster that the process handed over.
    pub(crate) fn take_fronts(&mut self) -> Vec<FrontOfNode> {
        std::mem::take(&mut self.fronts)
    }

    /// Returns the process's id, if the system knows it.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.wire.peer()
    }

    /// Waits until this process can serve clients as well as the running one: its first client may send LOCK.
    ///
    /// # Errors
    /// If the running process can serve clients and this one cannot.
    pub(crate) async fn warm_up(&self, state: &PageSource) -> anyhow::Result<()> {
        let deadline = Instant::now() + WARM_UP_LIMIT;
        while let Err(reason) = state.is_ready_now().await {
            if Instant::now() < deadline {
                sleep(WARM_UP_EVERY).await;
            } else if self.is_ready {
                bail!("the running proxy goes on, as it is ready and this one is not: {reason}");
            } else {
                warn!(%reason, "taking over from a proxy that is not ready either");
                break;
            }
        }
        Ok(())
    }

    /// Says that this process can serve, and waits until the other accepts no more.
    ///
    /// # Errors
    /// If the other process has given this upgrade up and goes on.
    pub(crate) async fn replace(mut self) -> anyhow::Result<Replacing> {
        let told = self.wire.send(READY, None).await;
        let answer = match told {
            Ok(()) => timeout(DONE_LIMIT, self.wire.line()).await,
            Err(error) => Ok(Err(error)),
        };
        match answer {
            Ok(Ok(Some(line))) if line == DONE => info!("the other process accepts no more"),
            // Connections in the kernel's queue wait for both processes, so nothing is lost meanwhile. The other
            // process will still read `ready`.
            Err(_) => warn!("the other process does not answer; it will stop when it does"),
            Ok(_) if self.has_gone().await => warn!("the other process has gone"),
            Ok(_) => bail!("the running proxy has given this upgrade up and goes on"),
        }
        Ok(Replacing(self.wire))
    }
}

/// The connection to a replaced process, which tells what it still has.
pub(crate) struct Replacing(Wire);

impl Replacing {
    /// Takes in what the process tells, until it and those before it have ended.
    pub(crate) async fn follow(self, earlier: Arc<EarlierProcesses>) {
        remains::follow(self.0, earlier).await;
    }
}

impl Predecessor {
    /// Whether the other process has gone. A process that ends closes one socket after the other, so this looks
    /// several times.
    async fn has_gone(&self) -> bool {
        for _ in 0..LAST_LOOKS {
            if Rendezvous::is_free(&self.path).unwrap_or(false) {
                return true;
            }
            sleep(BETWEEN_LOOKS).await;
        }
        false
    }
}

/// What the process whose place is taken hands over.
struct Handed {
    /// Whether it could serve.
    is_ready: bool,
    sockets: Vec<Inherited>,
    /// The fronts of a cluster.
    fronts: Vec<FrontOfNode>,
}

async fn ask(wire: &mut Wire, hello: &str) -> io::Result<Handed> {
    wire.send(hello, None).await?;
    let head = next(wire).await?;
    if let Some(differences) = head.strip_prefix(REFUSED) {
        let what_to_do = match differences.trim() {
            "adopt" => "For another mode or other enforced rules: stop it, and start the new one",
            _ => OTHER_NODES,
        };
        return Err(bad(&format!(
            "the running proxy has another{differences}, and clients of both could hold one lock. \
             {what_to_do}"
        )));
    }
    let words: Vec<&str> = head.split(' ').collect();
    let (count, is_ready) = match words.as_slice() {
        ["sockets", count, "ready", ready @ ("yes" | "no")] => {
            (count.parse::<usize>().ok(), *ready == "yes")
        }
        _ => (None, false),
    };
    let count = count.filter(|count| *count <= MAX_SOCKETS);
    let count = count.ok_or_else(|| bad("it does not speak this version's language"))?;
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let address = next(wire).await?.parse().map_err(|_| bad("it sent no address"))?;
        let socket = wire.socket().ok_or_else(|| bad("it sent an address without a socket"))?;
        let socket = TcpListener::from(socket);
        if !socket_acceptconn(&socket)? || socket.local_addr().is_err() {
            return Err(bad("it sent a socket that does not listen"));
        }
        sockets.push(Inherited { address, socket });
    }
    let fronts = if hello.starts_with(CLUSTER_HELLO) { fronts(wire).await? } else { Vec::new() };
    Ok(Handed { is_ready, sockets, fronts })
}

/// Reads which nodes the fronts lead to.
async fn fronts(wire: &mut Wire) -> io::Result<Vec<FrontOfNode>> {
    let head = next(wire).await?;
    let count = head.strip_prefix("fronts ").and_then(|count| count.parse::<usize>().ok());
    let count = count.filter(|count| *count <= MAX_SOCKETS);
    let count = count.ok_or_else(|| bad("it does not speak this version's language"))?;
    let mut fronts = Vec::with_capacity(count);
    for _ in 0..count {
        let line = next(wire).await?;
        fronts.push(read_front(&line).ok_or_else(|| bad("it sent no front"))?);
    }
    Ok(fronts)
}

async fn next(wire: &mut Wire) -> io::Result<String> {
    let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "it has gone");
    wire.line().await?.ok_or_else(gone)
}
