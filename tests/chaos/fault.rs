//! Faults: how each begins and ends, and what may be expected while it lasts.
//!
//! Only faults that can be survived are here. A node may forget, as it is restarted, flushed, exchanged, or made a
//! replica and a master again, alone or with all others: it waits for as long as it could do harm. The clock of a
//! node, or of a quorum, may step forward while proxies run that have seen it before: such a node waits as long. But
//! a proxy that starts within that time cannot know of the jump, and a wait in quarantine goes by the node's clock.
//! So no proxy starts and no node waits meanwhile ([`Fault::jumps`]). Otherwise clocks go wrong by a constant, by a
//! rate within `drift_factor`, and backward. Proxies' clocks propose fences: while nodes forget fences, the clocks
//! differ by less than `max_ttl`; by hours only when no node forgets. The data node forgets nothing: it is the
//! resource, and no proxy could restore what it would lose.

use std::{collections::BTreeSet, time::Duration};

use rustix::process::Signal;

use crate::{
    deployment::{
        DATA, Deployment, GROUPS, NODES, PROXIES, SPARE_PORT, Settings, group_host, proxy_host,
        redis_address,
    },
    network::{Wire, Wires},
};

/// The node with an append-only file that is written before each answer.
const ALWAYS: usize = 0;
/// The node whose file is written every second.
const EVERY_SECOND: usize = 1;
/// The node whose clock jumps.
const JUMPS: usize = 4;
/// The proxy whose clock jumps.
const PROXY_JUMPS: usize = 0;

/// The note about a node that has ended of a full disk.
pub(crate) const ENDED: &str = "ended by itself: node";

/// The time for which a fault may still be felt after its end: connections are made anew, and TCP repeats what was
/// lost.
pub(crate) const AFTER: Duration = Duration::from_secs(4);

/// The time for which a short stop, or a quick start, may still be felt after its end.
const BACK: Duration = Duration::from_secs(1);
const RESTARTED: Duration = Duration::from_secs(2);
/// The time in ms without answers while all clients are paused, which cannot be ended earlier.
const PAUSE: u64 = 1200;
const PAUSE_WORD: &str = "1200";

/// The direction in which nothing passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    To,
    From,
    Both,
}

/// An action of another client on a Redis, lock node or data node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meddling {
    /// SCRIPT FLUSH.
    Scripts,
    /// CLIENT KILL TYPE normal.
    Clients,
    /// CLIENT KILL TYPE pubsub.
    Subscribers,
    /// CLIENT PAUSE of all commands.
    Pause,
    /// CLIENT PAUSE of writes.
    PauseWrites,
    /// A script that does not end: -BUSY.
    Busy,
    /// No memory: -OOM.
    Full,
    /// Fewer replicas than it wants: -NOREPLICAS.
    NoReplicas,
}

/// The master of a node that becomes a replica for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Master {
    /// A master that cannot be reached: the node keeps its memory.
    Nobody,
    /// An empty master.
    Empty,
    /// Another node, whose memory it then has.
    Node(usize),
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The node is killed, and started without its memory.
    NodeForgets(usize),
    /// The node is killed, and started with its memory.
    NodeRestarts(usize),
    /// Three nodes are killed at once and forget.
    QuorumForgets,
    /// All nodes are killed and forget; a proxy starts, or takes another's place, while they wait.
    AllForget {
        proxy: usize,
        upgraded: bool,
    },
    /// The node gets FLUSHALL.
    NodeFlushed(usize),
    QuorumFlushed,
    /// Another server, which is up and knows nothing, takes the node's address.
    NodeExchanged(usize),
    QuorumExchanged,
    /// The node becomes a replica, and then a master again: -READONLY.
    NodeReplica(usize, Master),
    /// Another client meddles with the node.
    NodeMeddled(usize, Meddling),
    NodeStopped(usize),
    /// Three nodes are stopped.
    QuorumStopped,
    ProxyKilled(usize),
    ProxyStopped(usize),
    /// The proxy gets SIGTERM, and is started again.
    ProxyTerminated(usize),
    /// The proxy gets SIGUSR2: another process takes its place.
    ProxyUpgraded(usize),
    /// The proxy gets SIGHUP, with a configuration that it can take or not.
    ProxyReloaded(usize, Settings),
    ClientKilled(usize),
    ClientStopped(usize),
    /// Nothing passes to or from a node.
    NodeCut(usize, Way),
    /// One proxy reaches two nodes only, or hears two only.
    ProxyCut(usize, Way),
    /// Nothing passes between a group of clients and a proxy.
    ClientsCut(usize, usize, Way),
    /// Late packets that overtake each other, to and from one host.
    HostSlow(usize),
    /// Packets everywhere are late and overtake each other.
    AllSlow,
    /// A share of the packets to and from one host is lost.
    HostLossy(usize, f64),
    /// A share of the packets everywhere is lost.
    AllLossy(f64),
    /// A running node's clock steps back by this many seconds, for good.
    ClockBack(u64),
    /// A running node's clock steps forward by this many seconds.
    ClockForward(u64),
    /// The clocks of three running nodes step forward alike.
    QuorumForward(u64),
    /// A node is started again with a clock that is wrong by this many seconds.
    ClockAtStart(i64),
    /// A proxy's clock is wrong by this many ms for a while.
    ProxyClock(i64),
    /// The disk of a node is full.
    DiskFull(usize),
    /// A proxy has no file descriptor left.
    NoDescriptors(usize),
    DataStopped,
    /// The data node is killed, and started with its append-only file.
    DataKilled,
    /// Nothing passes between the data node and one proxy, or all; `To` is the data node.
    DataCut(Option<usize>, Way),
    DataMeddled(Meddling),
    /// The data node's fences are deleted.
    FencesDeleted,
}

/// The parts that a fault keeps from working.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Impaired {
    pub(crate) nodes: BTreeSet<usize>,
    pub(crate) proxies: BTreeSet<usize>,
    /// Whether nothing may work.
    pub(crate) everything: bool,
    /// The time for which that goes on after the fault's end.
    pub(crate) after: Duration,
}

/// A random choice below a number.
pub(crate) type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

/// The number of kinds of faults that last.
pub(crate) const KINDS: usize = 49;
/// The number of kinds of faults that are over at once.
pub(crate) const SUDDEN: usize = 12;

impl Fault {
    /// Returns a fault of a kind from 0 to [`KINDS`], or `None` for a kind that is not possible. `wild`: no node
    /// forgets, so the proxies' clocks may say anything.
    pub(crate) fn of_kind(kind: usize, wild: bool, choose: Choose<'_>) -> Option<Fault> {
        let ways = [Way::To, Way::From, Way::Both];
        let forgetful = 2 + choose(NODES - 2);
        Some(match kind {
            0 | 2 | 13 | 15 | 16 | 20 | 31..=35 | 47..=48 if wild => return None,
            0 => Fault::NodeForgets(forgetful),
            1 => Fault::NodeRestarts(ALWAYS),
            2 => Fault::QuorumForgets,
            3 => Fault::NodeStopped(choose(NODES)),
            4 => Fault::QuorumStopped,
            5 => Fault::ProxyKilled(choose(PROXIES)),
            6 => Fault::ProxyStopped(choose(PROXIES)),
            7 => Fault::ClientKilled(choose(usize::MAX)),
            8 => Fault::ClientStopped(choose(usize::MAX)),
            9 => Fault::NodeCut(choose(NODES), Way::To),
            10 => Fault::NodeCut(choose(NODES), Way::From),
            11 => Fault::NodeCut(choose(NODES), Way::Both),
            12 => Fault::ProxyCut(choose(PROXIES), ways[choose(3)]),
            13 => Fault::ClockAtStart([-86_400, -7, 5, 3600, 864_000][choose(5)]),
            14 => Fault::ClientsCut(choose(GROUPS), choose(PROXIES), ways[choose(3)]),
            15 => Fault::ClockBack(1 + choose(5) as u64),
            16 => Fault::DiskFull(EVERY_SECOND),
            17 => Fault::HostSlow(choose(NODES + PROXIES)),
            18 => Fault::AllSlow,
            19 => Fault::HostLossy(choose(NODES + PROXIES), 0.1 + choose(21) as f64 / 100.0),
            20 => Fault::NodeRestarts(EVERY_SECOND),
            21 => Fault::AllLossy(0.1 + choose(21) as f64 / 100.0),
            22 if wild => Fault::ProxyClock([-7_200_000, -9000, 8000, 3_600_000][choose(4)]),
            22 => Fault::ProxyClock([-1000, -400, 300, 900][choose(4)]),
            23 => Fault::DiskFull(ALWAYS),
            24 => Fault::NoDescriptors(choose(PROXIES)),
            25 => Fault::DataStopped,
            26 => Fault::DataKilled,
            27 => Fault::DataCut(None, ways[choose(3)]),
            28 => Fault::DataCut(Some(choose(PROXIES)), ways[choose(3)]),
            29 => Fault::HostSlow(DATA),
            30 => Fault::HostLossy(DATA, 0.1 + choose(21) as f64 / 100.0),
            31 => Fault::AllForget { proxy: choose(PROXIES), upgraded: choose(2) == 0 },
            32 => Fault::NodeExchanged(forgetful),
            33 => Fault::QuorumExchanged,
            34 => Fault::NodeReplica(forgetful, Master::Empty),
            35 => Fault::NodeReplica(forgetful, Master::Node(choose(2))),
            36 => Fault::NodeReplica(choose(NODES), Master::Nobody),
            37 => Fault::NodeMeddled(choose(NODES), Meddling::Pause),
            38 => Fault::NodeMeddled(choose(NODES), Meddling::PauseWrites),
            39 => Fault::NodeMeddled(choose(NODES), Meddling::Busy),
            40 => Fault::NodeMeddled(choose(NODES), Meddling::Full),
            41 => Fault::ProxyTerminated(choose(PROXIES)),
            42 => Fault::DataMeddled(Meddling::Pause),
            43 => Fault::DataMeddled(Meddling::PauseWrites),
            44 => Fault::DataMeddled(Meddling::Busy),
            45 => Fault::DataMeddled(Meddling::Full),
            46 => Fault::NodeMeddled(choose(NODES), Meddling::NoReplicas),
            47 => Fault::ClockForward([5, 3600, 864_000][choose(3)]),
            48 => Fault::QuorumForward([5, 3600, 864_000][choose(3)]),
            _ => return None,
        })
    }

    /// Returns a fault of a kind from 0 to [`SUDDEN`], which is over at once.
    pub(crate) fn sudden(kind: usize, wild: bool, choose: Choose<'_>) -> Option<Fault> {
        Some(match kind {
            0 | 1 if wild => return None,
            0 => Fault::NodeFlushed(choose(NODES)),
            1 => Fault::QuorumFlushed,
            2 => Fault::NodeMeddled(choose(NODES), Meddling::Scripts),
            3 => Fault::NodeMeddled(choose(NODES), Meddling::Clients),
            4 => Fault::NodeMeddled(choose(NODES), Meddling::Subscribers),
            5 | 6 => Fault::ProxyUpgraded(choose(PROXIES)),
            7 => Fault::ProxyReloaded(choose(PROXIES), Settings::Other),
            8 => Fault::ProxyReloaded(choose(PROXIES), Settings::Wrong),
            9 => Fault::DataMeddled(Meddling::Scripts),
            10 => Fault::DataMeddled(Meddling::Clients),
            11 => Fault::FencesDeleted,
            _ => return None,
        })
    }

    /// Returns the fault's name in the table; faults that differ only in their targets share one.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::NodeForgets(_) => "node killed, restarted empty",
            Fault::NodeRestarts(_) => "node killed, restarted with its append-only file",
            Fault::QuorumForgets => "three nodes killed at once, restarted empty",
            Fault::AllForget { .. } => "all nodes restarted empty, a proxy started meanwhile",
            Fault::NodeFlushed(_) => "FLUSHALL on a node",
            Fault::QuorumFlushed => "FLUSHALL on three nodes at once",
            Fault::NodeExchanged(_) => "node exchanged for one that is up and empty",
            Fault::QuorumExchanged => "three nodes exchanged at once for such ones",
            Fault::NodeReplica(_, Master::Nobody) => {
                "node a replica of nobody, and back (READONLY)"
            }
            Fault::NodeReplica(_, Master::Empty) => "node a replica of an empty one, and back",
            Fault::NodeReplica(_, Master::Node(_)) => "node a replica of another, and back",
            Fault::NodeMeddled(_, what) => match what {
                Meddling::Scripts => "SCRIPT FLUSH on a node",
                Meddling::Clients => "CLIENT KILL TYPE normal on a node",
                Meddling::Subscribers => "CLIENT KILL TYPE pubsub on a node",
                Meddling::Pause => "CLIENT PAUSE on a node",
                Meddling::PauseWrites => "CLIENT PAUSE WRITE on a node",
                Meddling::Busy => "BUSY on a node",
                Meddling::Full => "OOM on a node",
                Meddling::NoReplicas => "NOREPLICAS on a node",
            },
            Fault::DataMeddled(what) => match what {
                Meddling::Scripts => "SCRIPT FLUSH on the data node",
                Meddling::Clients => "CLIENT KILL TYPE normal on the data node",
                Meddling::Subscribers => "CLIENT KILL TYPE pubsub on the data node",
                Meddling::Pause => "CLIENT PAUSE on the data node",
                Meddling::PauseWrites => "CLIENT PAUSE WRITE on the data node",
                Meddling::Busy => "BUSY on the data node",
                Meddling::Full => "OOM on the data node",
                Meddling::NoReplicas => "NOREPLICAS on the data node",
            },
            Fault::FencesDeleted => "fences deleted on the data node",
            Fault::ProxyTerminated(_) => "proxy terminated (SIGTERM), restarted",
            Fault::ProxyUpgraded(_) => "proxy upgraded (SIGUSR2)",
            Fault::ProxyReloaded(_, Settings::Wrong) => "proxy reloaded (SIGHUP), file wrong",
            Fault::ProxyReloaded(..) => "proxy reloaded (SIGHUP)",
            Fault::NodeStopped(_) => "node stopped (SIGSTOP)",
            Fault::QuorumStopped => "three nodes stopped",
            Fault::ProxyKilled(_) => "proxy killed, restarted",
            Fault::ProxyStopped(_) => "proxy stopped",
            Fault::ClientKilled(_) => "client killed",
            Fault::ClientStopped(_) => "client stopped",
            Fault::NodeCut(_, Way::To) => "node hears nothing",
            Fault::NodeCut(_, Way::From) => "node is not heard",
            Fault::NodeCut(_, Way::Both) => "node cut off",
            Fault::ProxyCut(_, Way::To) => "proxy not heard by three nodes",
            Fault::ProxyCut(_, Way::From) => "proxy hears nothing from three nodes",
            Fault::ProxyCut(_, Way::Both) => "proxy cut off from three nodes",
            Fault::ClientsCut(_, _, Way::To) => "clients not heard by a proxy",
            Fault::ClientsCut(_, _, Way::From) => "clients hear nothing from a proxy",
            Fault::ClientsCut(_, _, Way::Both) => "clients cut off from a proxy",
            Fault::HostSlow(DATA) => "delay, jitter, reordering at the data node",
            Fault::HostLossy(DATA, _) => "10 to 30 % loss at the data node",
            Fault::HostSlow(_) => "delay, jitter, reordering at a host",
            Fault::AllSlow => "delay, jitter, reordering everywhere",
            Fault::HostLossy(..) => "10 to 30 % loss at a host",
            Fault::AllLossy(_) => "10 to 30 % loss everywhere",
            Fault::ClockBack(_) => "node's clock steps back by seconds",
            Fault::ClockForward(_) => "node's clock jumps forward by up to days",
            Fault::QuorumForward(_) => "clocks of three nodes jump forward by up to days",
            Fault::ClockAtStart(_) => "node restarted with a clock wrong by up to days",
            Fault::ProxyClock(ms) if ms.abs() > 1000 => "proxy's clock jumps by up to hours",
            Fault::ProxyClock(_) => "proxy's clock jumps by up to a second",
            Fault::DiskFull(ALWAYS) => "disk full, appendfsync always (node ends)",
            Fault::DiskFull(_) => "disk full, appendfsync everysec (node refuses)",
            Fault::NoDescriptors(_) => "proxy without file descriptors",
            Fault::DataStopped => "data node stopped",
            Fault::DataKilled => "data node killed, restarted with its append-only file",
            Fault::DataCut(None, _) => "data node cut off, one way or both",
            Fault::DataCut(Some(_), _) => "data node cut off from a proxy, one way or both",
        }
    }

    /// Returns the processes and hosts that the fault hits. Two faults at once hit different ones, so that each can
    /// be undone without the other.
    pub(crate) fn targets(self) -> Vec<usize> {
        match self {
            Fault::NodeForgets(node)
            | Fault::NodeRestarts(node)
            | Fault::NodeStopped(node)
            | Fault::NodeCut(node, _)
            | Fault::NodeFlushed(node)
            | Fault::NodeExchanged(node)
            | Fault::NodeReplica(node, Master::Nobody | Master::Empty)
            | Fault::NodeMeddled(node, _)
            | Fault::DiskFull(node) => vec![node],
            Fault::NodeReplica(node, Master::Node(other)) => vec![node, other],
            Fault::QuorumForgets
            | Fault::QuorumStopped
            | Fault::QuorumFlushed
            | Fault::QuorumExchanged => forgetful().collect(),
            Fault::AllForget { proxy, .. } => (0..NODES).chain([proxy_host(proxy)]).collect(),
            Fault::ClockBack(_) | Fault::ClockAtStart(_) => vec![JUMPS],
            Fault::ClockForward(_) | Fault::QuorumForward(_) => (0..NODES + PROXIES).collect(),
            Fault::ProxyKilled(proxy)
            | Fault::ProxyStopped(proxy)
            | Fault::ProxyTerminated(proxy)
            | Fault::ProxyUpgraded(proxy)
            | Fault::ProxyReloaded(proxy, _)
            | Fault::ProxyCut(proxy, _)
            | Fault::NoDescriptors(proxy) => vec![proxy_host(proxy)],
            Fault::ProxyClock(_) => vec![proxy_host(PROXY_JUMPS)],
            Fault::HostSlow(host) | Fault::HostLossy(host, _) => vec![host],
            Fault::ClientsCut(group, proxy, _) => vec![group_host(group), proxy_host(proxy)],
            Fault::ClientKilled(_) | Fault::ClientStopped(_) => vec![usize::MAX],
            Fault::AllSlow | Fault::AllLossy(_) => vec![usize::MAX - 1],
            Fault::DataStopped
            | Fault::DataKilled
            | Fault::DataCut(None, _)
            | Fault::DataMeddled(_)
            | Fault::FencesDeleted => vec![DATA],
            Fault::DataCut(Some(proxy), _) => vec![DATA, proxy_host(proxy)],
        }
    }

    /// Whether clocks of running nodes jump forward: nodes must not be waiting then.
    pub(crate) fn jumps(self) -> bool {
        matches!(self, Fault::ClockForward(_) | Fault::QuorumForward(_))
    }

    /// Whether a proxy starts, which knows nothing of clocks that jumped before.
    pub(crate) fn starts_proxy(self) -> bool {
        matches!(
            self,
            Fault::AllForget { .. }
                | Fault::ProxyKilled(_)
                | Fault::ProxyTerminated(_)
                | Fault::ProxyUpgraded(_)
        )
    }

    /// Returns the parts that need not work, until some time after the fault's end.
    pub(crate) fn impaired(self, max_ttl: Duration) -> Impaired {
        // A node that was restarted is back after quarantine, in whole seconds.
        let forgotten = max_ttl + Duration::from_secs(2) + AFTER;
        let some = |nodes: BTreeSet<usize>, after| Impaired { nodes, after, ..Impaired::default() };
        let proxies =
            |proxy| Impaired { proxies: [proxy].into(), after: AFTER, ..Impaired::default() };
        let everything = |after| Impaired { everything: true, after, ..Impaired::default() };
        match self {
            Fault::NodeForgets(node)
            | Fault::NodeRestarts(node)
            | Fault::DiskFull(node)
            | Fault::NodeFlushed(node)
            | Fault::NodeExchanged(node)
            | Fault::NodeReplica(node, _) => some([node].into(), forgotten),
            Fault::AllForget { .. } => everything(forgotten),
            // A node whose clock has jumped grants nothing for max_ttl and the drift.
            Fault::ClockAtStart(_) | Fault::ClockForward(_) => some([JUMPS].into(), forgotten),
            // The node's locks stay for so much longer.
            Fault::ClockBack(seconds) => {
                some([JUMPS].into(), max_ttl + AFTER + Duration::from_secs(seconds))
            }
            Fault::QuorumForgets
            | Fault::QuorumFlushed
            | Fault::QuorumExchanged
            | Fault::QuorumForward(_) => some(forgetful().collect(), forgotten),
            Fault::NodeMeddled(_, Meddling::Scripts | Meddling::Subscribers) => Impaired::default(),
            Fault::NodeMeddled(node, Meddling::Pause) => {
                some([node].into(), AFTER + Duration::from_millis(PAUSE))
            }
            Fault::NodeMeddled(node, _) => some([node].into(), AFTER),
            Fault::QuorumStopped => some(forgetful().collect(), AFTER),
            Fault::NodeStopped(node) | Fault::NodeCut(node, _) => some([node].into(), AFTER),
            Fault::HostSlow(host) | Fault::HostLossy(host, _) if host < NODES => {
                some([host].into(), AFTER)
            }
            // The data node is late, but not away.
            Fault::HostSlow(DATA) | Fault::HostLossy(DATA, _) => Impaired::default(),
            Fault::HostSlow(host) | Fault::HostLossy(host, _) => proxies(host - NODES),
            Fault::DataCut(Some(proxy), _)
            | Fault::ProxyKilled(proxy)
            | Fault::ProxyStopped(proxy)
            | Fault::ProxyTerminated(proxy)
            | Fault::ProxyCut(proxy, _)
            | Fault::ClientsCut(_, proxy, _)
            | Fault::NoDescriptors(proxy) => proxies(proxy),
            // Without the data node no lock that guards need is granted, and no connection is made.
            Fault::DataStopped => everything(BACK),
            Fault::DataKilled => everything(RESTARTED),
            Fault::DataMeddled(Meddling::Scripts | Meddling::Subscribers) => Impaired::default(),
            Fault::DataMeddled(Meddling::Pause) => everything(BACK + Duration::from_millis(PAUSE)),
            Fault::DataMeddled(_) => everything(BACK),
            Fault::AllSlow | Fault::AllLossy(_) | Fault::DataCut(None, _) => everything(AFTER),
            // An upgrade must not be felt, nor the end of the process that was replaced.
            Fault::ProxyUpgraded(_)
            | Fault::ProxyReloaded(..)
            | Fault::FencesDeleted
            | Fault::ProxyClock(_)
            | Fault::ClientKilled(_)
            | Fault::ClientStopped(_) => Impaired::default(),
        }
    }

    /// Begins the fault; its effect on the wires is up to [`Fault::change`].
    pub(crate) fn begin(self, deployment: &mut Deployment) {
        match self {
            Fault::NodeForgets(node) | Fault::NodeRestarts(node) => deployment.kill_node(node),
            Fault::QuorumForgets => forgetful().for_each(|node| deployment.kill_node(node)),
            Fault::AllForget { .. } => {
                (0..NODES).for_each(|node| deployment.kill_node(node));
                for node in 0..NODES {
                    deployment.clear_node(node);
                    deployment.start_node(node);
                }
            }
            Fault::NodeFlushed(node) => deployment.tell_node(node, &["FLUSHALL"]),
            Fault::QuorumFlushed => {
                forgetful().for_each(|node| deployment.tell_node(node, &["FLUSHALL"]));
            }
            Fault::NodeExchanged(node) => deployment.exchange_node(node),
            Fault::QuorumExchanged => forgetful().for_each(|node| deployment.exchange_node(node)),
            Fault::NodeReplica(node, master) => {
                // No server listens at port 1.
                let (host, port) = match master {
                    Master::Nobody => ("127.0.0.1".to_owned(), "1".to_owned()),
                    Master::Empty => ("127.0.0.1".to_owned(), SPARE_PORT.to_string()),
                    Master::Node(other) => {
                        let address = redis_address(other);
                        (address.ip().to_string(), address.port().to_string())
                    }
                };
                deployment.tell_node(node, &["REPLICAOF", &host, &port]);
            }
            Fault::NodeMeddled(node, Meddling::Busy) => deployment.keep_node_busy(node),
            Fault::NodeMeddled(node, what) => {
                what.begins().iter().for_each(|words| deployment.tell_node(node, words));
            }
            Fault::DataMeddled(Meddling::Busy) => deployment.keep_data_busy(),
            Fault::DataMeddled(what) => {
                what.begins().iter().for_each(|words| _ = deployment.tell_data(words));
            }
            Fault::FencesDeleted => deployment.delete_fences(),
            Fault::ProxyTerminated(proxy) => deployment.signal_proxy(proxy, Signal::TERM),
            Fault::ProxyUpgraded(proxy) => deployment.signal_newest(proxy, Signal::USR2),
            Fault::ProxyReloaded(proxy, settings) => {
                deployment.configure(proxy, settings);
                deployment.signal_newest(proxy, Signal::HUP);
            }
            Fault::NodeStopped(node) => deployment.signal_node(node, Signal::STOP),
            Fault::QuorumStopped => {
                forgetful().for_each(|node| deployment.signal_node(node, Signal::STOP));
            }
            Fault::ProxyKilled(proxy) => deployment.kill_proxy(proxy),
            Fault::ProxyStopped(proxy) => deployment.signal_proxy(proxy, Signal::STOP),
            Fault::ClientKilled(any) => deployment.kill_client(any % deployment.running_clients()),
            Fault::ClientStopped(any) => {
                deployment.signal_client(any % deployment.running_clients(), Signal::STOP);
            }
            Fault::ClockBack(seconds) => {
                deployment.step_node_clock(JUMPS, -seconds.cast_signed());
            }
            Fault::ClockForward(seconds) => {
                deployment.step_node_clock(JUMPS, seconds.cast_signed());
            }
            Fault::QuorumForward(seconds) => {
                forgetful()
                    .for_each(|node| deployment.step_node_clock(node, seconds.cast_signed()));
            }
            Fault::ClockAtStart(_) => deployment.kill_node(JUMPS),
            Fault::ProxyClock(ms) => {
                deployment.set_proxy_clock(PROXY_JUMPS, &format!("{:+}", ms as f64 / 1000.0));
            }
            Fault::DiskFull(node) => deployment.fill_disk(node),
            Fault::NoDescriptors(proxy) => deployment.limit_descriptors(proxy, true),
            Fault::DataStopped => deployment.signal_data(Signal::STOP),
            Fault::DataKilled => deployment.kill_data(),
            _ => {}
        }
    }

    /// Ends the fault.
    pub(crate) fn end(self, deployment: &mut Deployment) {
        match self {
            Fault::NodeForgets(node) | Fault::NodeRestarts(node) => deployment.start_node(node),
            Fault::QuorumForgets => forgetful().for_each(|node| deployment.start_node(node)),
            Fault::NodeStopped(node) => deployment.signal_node(node, Signal::CONT),
            Fault::QuorumStopped => {
                forgetful().for_each(|node| deployment.signal_node(node, Signal::CONT));
            }
            Fault::ProxyKilled(proxy) => deployment.start_proxy(proxy),
            Fault::AllForget { proxy, upgraded: true } => {
                deployment.signal_newest(proxy, Signal::USR2);
            }
            Fault::AllForget { proxy, upgraded: false } | Fault::ProxyTerminated(proxy) => {
                // The proxy may not have ended in time.
                deployment.kill_proxy(proxy);
                deployment.start_proxy(proxy);
            }
            Fault::ProxyReloaded(proxy, _) => {
                deployment.configure(proxy, Settings::Right);
                deployment.signal_newest(proxy, Signal::HUP);
            }
            // The next exchange needs the spare.
            Fault::NodeExchanged(node) => deployment.start_spare(node),
            Fault::QuorumExchanged => forgetful().for_each(|node| deployment.start_spare(node)),
            Fault::NodeReplica(node, _) => deployment.tell_node(node, &["REPLICAOF", "NO", "ONE"]),
            Fault::NodeMeddled(node, Meddling::Busy) => deployment.end_node_script(node),
            Fault::NodeMeddled(node, what) => {
                what.ends().iter().for_each(|words| deployment.tell_node(node, words));
            }
            Fault::DataMeddled(Meddling::Busy) => deployment.end_data_script(),
            Fault::DataMeddled(what) => {
                what.ends().iter().for_each(|words| _ = deployment.tell_data(words));
            }
            Fault::ProxyStopped(proxy) => deployment.signal_proxy(proxy, Signal::CONT),
            Fault::ClientStopped(any) => {
                deployment.signal_client(any % deployment.running_clients(), Signal::CONT);
            }
            Fault::ClockAtStart(seconds) => {
                deployment.set_node_clock(JUMPS, seconds);
                deployment.start_node(JUMPS);
            }
            Fault::ProxyClock(_) => deployment.set_proxy_clock(PROXY_JUMPS, "+0"),
            Fault::DiskFull(node) => {
                deployment.free_disk(node);
                // A supervisor would restart the node too.
                if !deployment.node_runs(node) {
                    deployment.note(format!("{ENDED} {node}"));
                    deployment.start_node(node);
                }
            }
            Fault::NoDescriptors(proxy) => deployment.limit_descriptors(proxy, false),
            Fault::DataStopped => deployment.signal_data(Signal::CONT),
            Fault::DataKilled => deployment.start_data(),
            _ => {}
        }
    }

    /// Changes the wires as the fault does.
    pub(crate) fn change(self, wires: &mut Wires) {
        let ms = Duration::from_millis;
        let slow = |wire: &mut Wire| {
            (wire.delay, wire.jitter, wire.reorder) = (ms(5), ms(25), 0.2);
        };
        let cut = |wire: &mut Wire| wire.cut = true;
        let nodes = || 0..NODES;
        let all = || 0..NODES + PROXIES + 1 + GROUPS;
        match self {
            Fault::NodeCut(node, way) => between(wires, all(), [node], way, cut),
            Fault::ProxyCut(proxy, way) => {
                // Two proxies that are cut off reach different nodes.
                let reached = |node: &usize| (node + proxy) % NODES < 2;
                let others = nodes().filter(|node| !reached(node));
                let from_proxy = match way {
                    Way::To => Way::From,
                    Way::From => Way::To,
                    Way::Both => Way::Both,
                };
                between(wires, others, [proxy_host(proxy)], from_proxy, cut);
            }
            Fault::DataCut(proxy, way) => {
                let proxies = match proxy {
                    Some(proxy) => proxy..proxy + 1,
                    None => 0..PROXIES,
                };
                between(wires, proxies.map(proxy_host), [DATA], way, cut);
            }
            Fault::ClientsCut(group, proxy, way) => {
                between(wires, [group_host(group)], [proxy_host(proxy)], way, cut);
            }
            Fault::HostSlow(host) => between(wires, all(), [host], Way::Both, slow),
            Fault::AllSlow => all().for_each(|host| between(wires, all(), [host], Way::To, slow)),
            Fault::HostLossy(host, loss) => {
                between(wires, all(), [host], Way::Both, |wire| wire.loss = loss);
            }
            Fault::AllLossy(loss) => {
                let lossy = |wire: &mut Wire| wire.loss = loss;
                all().for_each(|host| between(wires, all(), [host], Way::To, lossy));
            }
            _ => {}
        }
    }
}

impl Meddling {
    /// Returns the command that begins the meddling, unless it is a script.
    fn begins(self) -> Option<&'static [&'static str]> {
        Some(match self {
            Meddling::Scripts => &["SCRIPT", "FLUSH"],
            Meddling::Clients => &["CLIENT", "KILL", "TYPE", "normal"],
            Meddling::Subscribers => &["CLIENT", "KILL", "TYPE", "pubsub"],
            Meddling::Pause => &["CLIENT", "PAUSE", PAUSE_WORD, "ALL"],
            Meddling::PauseWrites => &["CLIENT", "PAUSE", "600000", "WRITE"],
            Meddling::Full => &["CONFIG", "SET", "maxmemory", "1"],
            Meddling::NoReplicas => &["CONFIG", "SET", "min-replicas-to-write", "1"],
            Meddling::Busy => return None,
        })
    }

    /// Returns the command that ends the meddling, unless it ends by itself.
    fn ends(self) -> Option<&'static [&'static str]> {
        match self {
            Meddling::PauseWrites => Some(&["CLIENT", "UNPAUSE"]),
            Meddling::Full => Some(&["CONFIG", "SET", "maxmemory", "0"]),
            Meddling::NoReplicas => Some(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
            _ => None,
        }
    }
}

/// Returns the nodes that keep nothing on a disk: a quorum.
pub(crate) fn forgetful() -> impl Iterator<Item = usize> {
    2..NODES
}

/// Changes the wires from `these` to `those`, back, or both.
fn between<T: IntoIterator<Item = usize> + Clone>(
    wires: &mut Wires,
    these: impl IntoIterator<Item = usize>,
    those: T,
    way: Way,
    change: impl Fn(&mut Wire),
) {
    for this in these {
        for that in those.clone() {
            if way != Way::From {
                change(&mut wires[this][that]);
            }
            if way != Way::To {
                change(&mut wires[that][this]);
            }
        }
    }
}
