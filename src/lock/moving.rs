//! The set of lock nodes that this proxy asks, and its switch to another set.
//!
//! While `locks.next_nodes` are listed, the proxy looks at both sets now and then ([`SetPair`]). Once the next set
//! votes, the proxy asks that one, over connections and subscriptions of its own. Grants, lines and the watchdog
//! stay. Operations under way on the previous nodes end there, by the votes of those nodes alone.
//!
//! The file may run ahead of this proxy: it may list as `locks.nodes` a set that this proxy has not switched to yet,
//! perhaps after changes that it has missed. The proxy then looks at that set as the next one. Nodes that have begun
//! as a later set of the same deployment vote, however many sets were between.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::{
    WallClock,
    address::{NodeAddress, connector_to_nodes},
    line::{
        streams,
        subscribe::{self, ListeningSeat},
    },
    locks::Locks,
    members::{
        change::{FoundSet, SetNow, SetPair, votes_anew},
        marker::KnownSet,
    },
    node::nodes::Nodes,
    release,
    voters::Voters,
};
use crate::{
    config::{LockNode, LockNotify, LocksConfig},
    net::Connector,
    sync::Mutex,
};

/// How often the proxy looks at both sets, while nothing announces a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it looks while no set votes.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// How long the proxy waits for connections to the next nodes, before it asks them all the same.
const CONNECTED_IN: Duration = Duration::from_millis(500);
/// How long the previous nodes are kept: undos of attempts are on their way to them.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// What the log calls the next nodes.
const NEXT: &str = "locks.next_nodes";
/// What the log calls nodes that vote again.
const ANEW: &str = "locks.nodes, as a later set,";
/// How often the log says that no set votes.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// How nodes are connected to, and which sets are listed.
pub(super) struct Moving {
    runtime: Handle,
    wall_clock: WallClock,
    /// The configuration, with the nodes that are asked as its `nodes`.
    config: watch::Sender<LocksConfig>,
    /// `locks.nodes` and `locks.next_nodes` as the file has them.
    listed: Mutex<(Vec<LockNode>, Vec<LockNode>)>,
    /// The tasks that listen for releases.
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// A set of lock nodes, and the way to them.
pub(super) struct NodesAt {
    pub(super) addresses: Vec<Arc<NodeAddress>>,
    pub(super) connector: Connector,
}

impl NodesAt {
    pub(super) fn new(config: &LocksConfig) -> NodesAt {
        let (connector, addresses) = (connector_to_nodes(config), NodeAddress::all(config));
        NodesAt { addresses, connector }
    }
}

impl Moving {
    pub(super) fn new(config: &LocksConfig, runtime: &Handle, wall_clock: WallClock) -> Moving {
        Moving {
            runtime: runtime.clone(),
            wall_clock,
            config: watch::Sender::new(config.clone()),
            listed: Mutex::new((config.nodes.clone(), config.next_nodes.clone())),
            listeners: Mutex::default(),
        }
    }

    /// Returns the nodes that are asked.
    pub(super) fn serving(&self) -> Vec<LockNode> {
        self.config.borrow().nodes.clone()
    }

    /// Sets what the file has as `locks.nodes` and `locks.next_nodes`.
    pub(super) fn set_listed(&self, nodes: &[LockNode], next_nodes: &[LockNode]) {
        let mut listed = self.listed.lock();
        let before = std::mem::replace(&mut *listed, (nodes.to_vec(), next_nodes.to_vec()));
        self.config.send_if_modified(|config| {
            config.next_nodes = next_of(&config.nodes, &listed);
            before != *listed
        });
    }

    /// Returns the configuration with the second set as the next one, if the file runs ahead of this proxy by two
    /// sets.
    fn after_next(&self, config: &LocksConfig) -> Option<LocksConfig> {
        let (nodes, next) = &*self.listed.lock();
        let is_ahead = config.nodes != *nodes && config.next_nodes == *nodes && !next.is_empty();
        is_ahead.then(|| LocksConfig { next_nodes: next.clone(), ..config.clone() })
    }

    /// Notes that these are the nodes that are asked.
    fn ask_those(&self, config: LocksConfig) {
        let listed = self.listed.lock();
        let next_nodes = next_of(&config.nodes, &listed);
        self.config.send_replace(LocksConfig { next_nodes, ..config });
    }

    /// Starts to listen for releases through other proxies, and to inspect the nodes.
    pub(super) fn listen(&self, locks: &Arc<Locks>, at: NodesAt) {
        let config = self.config.borrow().clone();
        locks.grants.nodes().inspect(&self.runtime);
        let voters = Voters::new(&config);
        let mut listeners = Vec::new();
        for (seat, address) in at.addresses.into_iter().enumerate() {
            let (voter, connector) = (voters.of(seat), at.connector.clone());
            let listener = ListeningSeat { seat, voter, address, connector };
            let locks = Arc::downgrade(locks);
            listeners.push(match config.notify {
                LockNotify::PubSub => tokio::spawn(subscribe::run(locks, listener)),
                LockNotify::Stream => tokio::spawn(streams::run(locks, listener)),
            });
        }
        *self.listeners.lock() = listeners;
    }

    /// Starts to connect to a set of nodes, which take the place of those of `before`.
    pub(super) fn connect(
        &self,
        config: &LocksConfig,
        at: &NodesAt,
        before: Option<&Nodes>,
    ) -> Nodes {
        let clock = self.wall_clock.clone();
        Nodes::start(config, (&self.runtime, clock), &at.addresses, &at.connector, before)
    }
}

/// Returns the nodes that may take the place of those that are asked, as the file lists them; empty if no others may.
fn next_of(asked: &[LockNode], (nodes, next): &(Vec<LockNode>, Vec<LockNode>)) -> Vec<LockNode> {
    match (asked == nodes, asked == next) {
        (true, _) => next.clone(),
        (false, true) => Vec::new(),
        // This proxy has missed the change to these nodes.
        (false, false) => nodes.clone(),
    }
}

/// Has the nodes tell the watchdog when they can be asked again, and undo there what was granted once it has ended.
pub(super) fn tell(locks: &Arc<Locks>, nodes: &Nodes) {
    let (watched, held) = (Arc::downgrade(&locks.grants), Arc::downgrade(&locks.grants));
    nodes.tell(
        move || {
            if let Some(grants) = watched.upgrade() {
                grants.schedule.came_back();
            }
        },
        move |voter, undo| {
            if let Some(grants) = held.upgrade() {
                tokio::spawn(release::undo_if_ended(grants, voter, undo));
            }
        },
    );
}

/// Switches to the next set of nodes whenever that one votes, for as long as there are locks.
pub(super) async fn run(locks: Weak<Locks>, moving: Arc<Moving>) {
    let Some(gone) = locks.upgrade().map(|locks| locks.queues.gone.clone()) else { return };
    let _: Option<Option<()>> = gone.run_until_cancelled(follow(locks, moving)).await;
}

/// Follows the configuration: one set of nodes, or two of which one votes.
async fn follow(locks: Weak<Locks>, moving: Arc<Moving>) -> Option<()> {
    let mut changes = moving.config.subscribe();
    let mut last_told: Option<Instant> = None;
    let mut were_listed = false;
    loop {
        let config = changes.borrow_and_update().clone();
        let nodes = Arc::clone(&locks.upgrade()?.grants.nodes());
        let members = nodes.members().clone();
        nodes.note_releases(!config.next_nodes.is_empty());
        drop(nodes);
        let Some(pair) = SetPair::new(&config).await else {
            if std::mem::take(&mut were_listed) {
                members.note_kept();
            }
            members.allow_writes(true, true);
            tokio::select! {
                changed = changes.changed() => changed.ok()?,
                () = members.given_up.notified() => match members.set() {
                    // The nodes may have been given up, and have taken the place of the other set again.
                    Some(known) if votes_anew(&config, &known).await => {
                        move_on(&locks.upgrade()?, &moving, config, ANEW).await;
                    }
                    _ => sleep(LOOK_EVERY).await,
                }
            }
            continue;
        };
        were_listed = true;
        info!(
            "locks.next_nodes are looked at: they are asked once they have taken the place of locks.nodes"
        );
        let after = match moving.after_next(&config) {
            Some(after) => SetPair::new(&after).await.map(|pair| (after, pair)),
            None => None,
        };
        // Until a look shows that its own set votes, this proxy writes only if it knows that set.
        members.allow_writes(members.set().is_some(), false);
        while !changes.has_changed().ok()? {
            let (now, other) = look(members.set().as_ref(), (&config, &pair), after.as_ref()).await;
            if let Some((next, named)) = other {
                move_on(&locks.upgrade()?, &moving, next, named).await;
                break;
            }
            if now == SetNow::Nodes {
                members.allow_writes(true, false);
            }
            if matches!(now, SetNow::Sealed | SetNow::Decided | SetNow::Others)
                && last_told.is_none_or(|at| at.elapsed() >= TOLD_EVERY)
            {
                last_told = Some(Instant::now());
                warn!("no lock is granted or renewed: {now}");
            }
            tokio::select! {
                biased;
                () = sleep(pause_after(now)) => {}
                () = members.given_up.notified(), if !matches!(now, SetNow::Sealed | SetNow::Decided) => {}
                changed = changes.changed() => {
                    changed.ok()?;
                    changes.mark_changed();
                }
            }
        }
    }
}

/// Returns how long the proxy waits after a look that found this.
fn pause_after(now: SetNow) -> Duration {
    match now {
        SetNow::Sealed | SetNow::Decided => LOOK_SOON,
        // A proxy that asked these nodes would have them vote beside the set that votes.
        SetNow::Others => LOOK_EVERY,
        SetNow::Unknown => LOOK_EVERY / 4,
        SetNow::Nodes | SetNow::NextNodes => LOOK_EVERY,
    }
}

/// Looks which of the listed sets votes, `known` being the one that is asked. Returns that, and the set to switch to
/// with its name in the log, if another is to be asked. `after`: the two sets of a file that is ahead by two sets.
async fn look(
    known: Option<&KnownSet>,
    (config, pair): (&LocksConfig, &SetPair),
    after: Option<&(LocksConfig, SetPair)>,
) -> (SetNow, Option<(LocksConfig, &'static str)>) {
    let FoundSet { now, is_anew } = pair.find(known).await;
    if now != SetNow::NextNodes
        && let Some((after, pair)) = after
        && pair.find(known).await.now == SetNow::NextNodes
    {
        return (now, after.next().map(|next| (next, NEXT)));
    }
    let other = match now {
        SetNow::NextNodes => config.next().map(|next| (next, NEXT)),
        SetNow::Nodes if is_anew => {
            Some((LocksConfig { next_nodes: Vec::new(), ..config.clone() }, ANEW))
        }
        _ => None,
    };
    (now, other)
}

/// Switches to this set of nodes. `named`: what the log calls it.
async fn move_on(locks: &Arc<Locks>, moving: &Arc<Moving>, config: LocksConfig, named: &str) {
    let listeners = std::mem::take(&mut *moving.listeners.lock());
    let listens = !listeners.is_empty();
    for listener in listeners {
        listener.abort();
        let _ = listener.await;
    }
    let at = NodesAt::new(&config);
    let before = Arc::clone(&locks.grants.nodes());
    let nodes = Arc::new(moving.connect(&config, &at, Some(&before)));
    tell(locks, &nodes);
    before.members().allow_writes(false, false);
    let until = Instant::now() + CONNECTED_IN;
    while nodes.status().iter().filter(|node| node.up).count() < nodes.quorum()
        && Instant::now() < until
    {
        sleep(Duration::from_millis(2)).await;
    }
    locks.grants.move_to(nodes.clone());
    locks.queues.moved(&config);
    nodes.repeat_releases(&before);
    moving.ask_those(config);
    // An engine that has not listened before still does not.
    if listens {
        moving.listen(locks, at);
    }
    info!(nodes = nodes.status().len(), "the lock nodes are {named} from now on");
    // Attempts that were given up are still being undone on the previous nodes.
    tokio::spawn(async move {
        sleep(KEPT_FOR).await;
        drop(before);
    });
}
