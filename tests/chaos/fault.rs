//! What goes wrong, how it is undone, and what may be expected while it lasts.
//!
//! What is survivable decides what is here. A node that forgets is: quarantine keeps it
//! out for as long as it could do harm. Clocks of running nodes go wrong by a constant, by
//! a rate within `drift_factor`, and backward; forward with a restart, and in directed.rs. Proxies' clocks propose fences: while nodes forget fences, they are apart
//! by less than `max_ttl`; by hours only when no node forgets. The data node forgets
//! nothing: it is the resource, and what it would lose no proxy could give back.

use std::{collections::BTreeSet, time::Duration};

use rustix::process::Signal;

use crate::{
    deployment::{DATA, Deployment, GROUPS, NODES, PROXIES, group_host, proxy_host},
    network::{Wire, Wires},
};

/// The node with an append-only file that is written before each answer.
const ALWAYS: usize = 0;
/// The one whose file is written every second.
const EVERY_SECOND: usize = 1;
/// The node whose clock jumps.
const JUMPS: usize = 4;
/// The proxy whose clock does.
const PROXY_JUMPS: usize = 0;

/// Noted where a node has ended of a full disk.
pub(crate) const ENDED: &str = "ended by itself: node";

/// How long after its end a fault may still be felt: connections are made anew, TCP
/// sends again what was lost.
pub(crate) const AFTER: Duration = Duration::from_secs(4);

/// The same of a process that was only stopped, and of one that starts in a moment.
const BACK: Duration = Duration::from_secs(1);
const RESTARTED: Duration = Duration::from_secs(2);

/// Which way nothing passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    To,
    From,
    Both,
}

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// Killed, and started without its memory.
    NodeForgets(usize),
    /// Killed, and started with its memory.
    NodeRestarts(usize),
    /// Three nodes are killed at once and forget.
    QuorumForgets,
    NodeStopped(usize),
    /// Three nodes are stopped.
    QuorumStopped,
    ProxyKilled(usize),
    ProxyStopped(usize),
    ClientKilled(usize),
    ClientStopped(usize),
    /// Nothing passes to or from a node.
    NodeCut(usize, Way),
    /// One proxy reaches two nodes only, or hears two only.
    ProxyCut(usize, Way),
    /// A group of clients and a proxy.
    ClientsCut(usize, usize, Way),
    /// Late packets that overtake each other, to and from one host.
    HostSlow(usize),
    /// The same everywhere.
    AllSlow,
    /// A share of the packets to and from one host is lost.
    HostLossy(usize, f64),
    /// The same everywhere.
    AllLossy(f64),
    /// A running node's clock steps back by so many seconds, for good.
    ClockBack(u64),
    /// A node is started again with a clock that is wrong by so many seconds.
    ClockAtStart(i64),
    /// A proxy's clock is wrong by so many ms for a while.
    ProxyClock(i64),
    /// The disk of a node is full.
    DiskFull(usize),
    /// A proxy has no file descriptor left.
    NoDescriptors(usize),
    DataStopped,
    /// Killed, and started with its append-only file.
    DataKilled,
    /// Nothing passes between the data node and one proxy, or all; `To` is the data node.
    DataCut(Option<usize>, Way),
}

/// What a fault keeps from working.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Impaired {
    pub(crate) nodes: BTreeSet<usize>,
    pub(crate) proxies: BTreeSet<usize>,
    /// All of it.
    pub(crate) everything: bool,
    /// For so long after its end.
    pub(crate) after: Duration,
}

/// A random choice below a number.
pub(crate) type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

/// How many kinds there are.
pub(crate) const KINDS: usize = 31;

impl Fault {
    /// One of a kind, from 0 to [`KINDS`]; `wild` is when no node forgets, so that
    /// the proxies' clocks may say anything: none of a kind that cannot be then.
    pub(crate) fn of_kind(kind: usize, wild: bool, choose: Choose<'_>) -> Option<Fault> {
        let ways = [Way::To, Way::From, Way::Both];
        let forgetful = 2 + choose(NODES - 2);
        Some(match kind {
            0 | 2 | 13 | 15 | 16 | 20 if wild => return None,
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
            _ => return None,
        })
    }

    /// Its name in the table; those that differ in what they meet have the same.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::NodeForgets(_) => "node killed, restarted empty",
            Fault::NodeRestarts(_) => "node killed, restarted with its append-only file",
            Fault::QuorumForgets => "three nodes killed at once, restarted empty",
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

    /// Which processes and hosts it is about; two faults at once are about different
    /// ones, so that each can be undone without the other.
    pub(crate) fn targets(self) -> Vec<usize> {
        match self {
            Fault::NodeForgets(node)
            | Fault::NodeRestarts(node)
            | Fault::NodeStopped(node)
            | Fault::NodeCut(node, _)
            | Fault::DiskFull(node) => vec![node],
            Fault::QuorumForgets | Fault::QuorumStopped => forgetful().collect(),
            Fault::ClockBack(_) | Fault::ClockAtStart(_) => vec![JUMPS],
            Fault::ProxyKilled(proxy)
            | Fault::ProxyStopped(proxy)
            | Fault::ProxyCut(proxy, _)
            | Fault::NoDescriptors(proxy) => vec![proxy_host(proxy)],
            Fault::ProxyClock(_) => vec![proxy_host(PROXY_JUMPS)],
            Fault::HostSlow(host) | Fault::HostLossy(host, _) => vec![host],
            Fault::ClientsCut(group, proxy, _) => vec![group_host(group), proxy_host(proxy)],
            Fault::ClientKilled(_) | Fault::ClientStopped(_) => vec![usize::MAX],
            Fault::AllSlow | Fault::AllLossy(_) => vec![usize::MAX - 1],
            Fault::DataStopped | Fault::DataKilled | Fault::DataCut(None, _) => vec![DATA],
            Fault::DataCut(Some(proxy), _) => vec![DATA, proxy_host(proxy)],
        }
    }

    /// What may not be expected to work, until some time after its end.
    pub(crate) fn impaired(self, max_ttl: Duration) -> Impaired {
        // A node that was restarted is back after quarantine, in whole seconds.
        let forgotten = max_ttl + Duration::from_secs(2) + AFTER;
        let some = |nodes: BTreeSet<usize>, after| Impaired { nodes, after, ..Impaired::default() };
        let proxies =
            |proxy| Impaired { proxies: [proxy].into(), after: AFTER, ..Impaired::default() };
        let everything = |after| Impaired { everything: true, after, ..Impaired::default() };
        match self {
            Fault::NodeForgets(node) | Fault::NodeRestarts(node) | Fault::DiskFull(node) => {
                some([node].into(), forgotten)
            }
            Fault::ClockAtStart(_) => some([JUMPS].into(), forgotten),
            // Its locks stay for so much longer.
            Fault::ClockBack(seconds) => {
                some([JUMPS].into(), max_ttl + AFTER + Duration::from_secs(seconds))
            }
            Fault::QuorumForgets => some(forgetful().collect(), forgotten),
            Fault::QuorumStopped => some(forgetful().collect(), AFTER),
            Fault::NodeStopped(node) | Fault::NodeCut(node, _) => some([node].into(), AFTER),
            Fault::HostSlow(host) | Fault::HostLossy(host, _) if host < NODES => {
                some([host].into(), AFTER)
            }
            // Late, but not away.
            Fault::HostSlow(DATA) | Fault::HostLossy(DATA, _) => Impaired::default(),
            Fault::HostSlow(host) | Fault::HostLossy(host, _) => proxies(host - NODES),
            Fault::DataCut(Some(proxy), _)
            | Fault::ProxyKilled(proxy)
            | Fault::ProxyStopped(proxy)
            | Fault::ProxyCut(proxy, _)
            | Fault::ClientsCut(_, proxy, _)
            | Fault::NoDescriptors(proxy) => proxies(proxy),
            // Without the data node no lock of a guard is granted, and no connection made.
            Fault::DataStopped => everything(BACK),
            Fault::DataKilled => everything(RESTARTED),
            Fault::AllSlow | Fault::AllLossy(_) | Fault::DataCut(None, _) => everything(AFTER),
            Fault::ProxyClock(_) | Fault::ClientKilled(_) | Fault::ClientStopped(_) => {
                Impaired::default()
            }
        }
    }

    /// Lets it happen; what it does to the wires is up to [`Fault::change`].
    pub(crate) fn begin(self, deployment: &mut Deployment) {
        match self {
            Fault::NodeForgets(node) | Fault::NodeRestarts(node) => deployment.kill_node(node),
            Fault::QuorumForgets => forgetful().for_each(|node| deployment.kill_node(node)),
            Fault::NodeStopped(node) => deployment.signal_node(node, Signal::STOP),
            Fault::QuorumStopped => {
                forgetful().for_each(|node| deployment.signal_node(node, Signal::STOP));
            }
            Fault::ProxyKilled(proxy) => deployment.kill_proxy(proxy),
            Fault::ProxyStopped(proxy) => deployment.signal_proxy(proxy, Signal::STOP),
            Fault::ClientKilled(any) => deployment.kill_client(any % deployment.options().clients),
            Fault::ClientStopped(any) => {
                deployment.signal_client(any % deployment.options().clients, Signal::STOP);
            }
            Fault::ClockBack(seconds) => deployment.step_node_clock(JUMPS, seconds),
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

    /// Undoes it.
    pub(crate) fn end(self, deployment: &mut Deployment) {
        match self {
            Fault::NodeForgets(node) | Fault::NodeRestarts(node) => deployment.start_node(node),
            Fault::QuorumForgets => forgetful().for_each(|node| deployment.start_node(node)),
            Fault::NodeStopped(node) => deployment.signal_node(node, Signal::CONT),
            Fault::QuorumStopped => {
                forgetful().for_each(|node| deployment.signal_node(node, Signal::CONT));
            }
            Fault::ProxyKilled(proxy) => deployment.start_proxy(proxy),
            Fault::ProxyStopped(proxy) => deployment.signal_proxy(proxy, Signal::CONT),
            Fault::ClientStopped(any) => {
                deployment.signal_client(any % deployment.options().clients, Signal::CONT);
            }
            Fault::ClockAtStart(seconds) => {
                deployment.set_node_clock(JUMPS, seconds);
                deployment.start_node(JUMPS);
            }
            Fault::ProxyClock(_) => deployment.set_proxy_clock(PROXY_JUMPS, "+0"),
            Fault::DiskFull(node) => {
                deployment.free_disk(node);
                // As a supervisor would.
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

    /// What it does to the wires.
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
                // Of two proxies that are cut off, each reaches others.
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

/// Nodes that keep nothing on a disk: a quorum.
fn forgetful() -> impl Iterator<Item = usize> {
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
