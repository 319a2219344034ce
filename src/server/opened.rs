//! Everything that a process must have before anything runs in it.

use std::{io, mem, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use tokio::{net::TcpListener, runtime::Handle};

use crate::{
    config::{Announce, Config, Listener},
    data::DataNode,
    net::Acceptor,
    server::{
        Control,
        entry::{exposure::Exposure, listeners::Listeners},
        upgrade::{self, Predecessor, Prepared},
    },
};

/// How long a cluster may take to name its nodes.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// Everything that a process must have before anything runs in it. A process that cannot have
/// all of it ends.
pub(super) struct Opened {
    pub(super) data: Arc<DataNode>,
    pub(super) exposure: Arc<Exposure>,
    /// The sockets of `listen`, one for each entry.
    pub(super) listeners: Vec<(TcpListener, Option<Acceptor>)>,
    /// `admin`, unless it is off.
    pub(super) admin: Option<(SocketAddr, Arc<TcpListener>)>,
}

/// The process that this one replaces, and the socket at which this one can be replaced.
pub(super) struct Succession {
    pub(super) predecessor: Option<Predecessor>,
    pub(super) rendezvous: Option<Prepared>,
}

impl Opened {
    /// Asks a running proxy for its sockets, asks the data node whether strangers may come,
    /// and opens the sockets that are still missing.
    pub(super) async fn open(
        config: &Config,
        control: &mut Control,
    ) -> anyhow::Result<(Opened, Succession)> {
        let predecessor = upgrade::predecessor(config, control.take_over).await?;
        let mut predecessor = predecessor.map(|(predecessor, sockets)| {
            control.listeners.add(sockets);
            predecessor
        });
        // Both processes lead their clients to the same nodes.
        let fronts = predecessor.as_mut().map(Predecessor::take_fronts).unwrap_or_default();
        let data = DataNode::take_over(config, fronts);
        refuse_ways_past(config, &data).await?;
        let exposure = Exposure::find_out(config, data.clone()).await?;
        let open = |listener| open(listener, &mut control.listeners);
        let listeners = config.listen.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let admin = match config.admin.listen {
            Some(addr) => {
                let listener = control.listeners.open(addr);
                let listener =
                    listener.with_context(|| format!("cannot listen on {addr} (admin)"))?;
                Some((addr, Arc::new(listener)))
            }
            None => None,
        };
        control.listeners.close_others();
        let rendezvous = upgrade::prepare(config)?;
        Ok((Opened { data, exposure, listeners, admin }, Succession { predecessor, rendezvous }))
    }

    /// Has `runtime` watch the sockets of those entries of `listen` whose clients share connections.
    ///
    /// # Errors
    /// If it cannot.
    pub(super) fn watch_sharers(&mut self, config: &Config, runtime: &Handle) -> io::Result<()> {
        let _entered = runtime.enter();
        let all = mem::take(&mut self.listeners).into_iter().zip(&config.listen);
        let watched = all.map(|((listener, tls), settings)| match config.shares(settings) {
            true => Ok((TcpListener::from_std(listener.into_std()?)?, tls)),
            false => Ok((listener, tls)),
        });
        self.listeners = watched.collect::<io::Result<_>>()?;
        Ok(())
    }
}

/// Makes sure that a cluster's nodes lead no client past the fronts, where it would evade guards. While the nodes are
/// not known none is led there: a front tells no address that is not a front's.
///
/// # Errors
/// If guards are enforced and a node announces an address that is no front's.
async fn refuse_ways_past(config: &Config, data: &DataNode) -> anyhow::Result<()> {
    let leads = config.data.cluster().is_some_and(|cluster| cluster.announce == Announce::Nodes);
    if !leads || !config.guards.enforces() || data.found(ASK_LIMIT).await.is_none() {
        return Ok(());
    }
    match data.way_past() {
        Some(trouble) => bail!("guards could be evaded: {trouble}"),
        None => Ok(()),
    }
}

/// Opens the socket of one entry of `listen`.
fn open(
    listener: &Listener,
    sockets: &mut Listeners,
) -> anyhow::Result<(TcpListener, Option<Acceptor>)> {
    let Listener { address, tls, .. } = listener;
    let cannot = || format!("cannot listen on {address} (listen)");
    let socket = sockets.open(*address).with_context(cannot)?;
    let acceptor = tls.as_ref().map(|tls| Acceptor::start(*address, tls)).transpose();
    Ok((socket, acceptor.map_err(anyhow::Error::msg).with_context(cannot)?))
}
