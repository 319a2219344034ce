//! Copies all locks of a sealed set of lock nodes to the next set, under one seal.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bb8_redis::redis::RedisError;
use tokio::task::JoinSet;

use super::{
    super::{
        marker::{Deployment, Identity},
        self_report::SelfReport,
    },
    anew::is_rest,
    copier::{Copier, CopyNote},
    found::{FoundLocks, LockCopy},
    misfit::misfit,
    sets::{LookedAt, NodeSet, Trouble, joined, silent},
};

/// The outcome of copying.
pub(super) struct Copied {
    /// How many of the copied locks may be held.
    pub(super) held: usize,
    /// The seats whose copies are whole, at least a quorum's, and the node on each, which may be another than the one
    /// that answered the look before.
    pub(super) seats: BTreeMap<usize, Identity>,
    /// Nodes that were not read or not written.
    pub(super) troubles: Vec<Trouble>,
}

/// Copies the locks.
pub(super) async fn copy(
    (from, of_from): (&NodeSet, &LookedAt),
    (to, of_to): (&NodeSet, &LookedAt),
    joint: &Deployment,
    seal: u64,
) -> Result<Copied, String> {
    let sealed: Vec<usize> =
        (0..from.ways.len()).filter(|at| is_sealed(of_from, *at, joint)).collect();
    let fit: Vec<usize> = (0..to.ways.len()).filter(|at| takes_copy(of_to, *at, joint)).collect();
    let mut troubles = Vec::new();
    let prefix: Arc<str> = from.config.prefix.as_str().into();
    let note = Arc::new(CopyNote::new(&joint.id, seal));
    let writing = CopyWriting { to, of_to, joint, note, fence_ttl: from.config.fence_ttl };

    // Notes are remembered before the locks are read under this seal: a later note may be about a copy by another
    // coordinator that has been decided upon.
    let writers = connect(to, &fit, &mut troubles).await;
    let writers = each(writers, to, &mut troubles, |mut writer| async move {
        let done = writer.remember_note().await;
        (writer, done)
    })
    .await;

    let readers = connect(from, &sealed, &mut troubles).await;
    let (read, found) = read_at_once(readers, from, &mut troubles, |mut reader, mut found| {
        let (told, prefix) = (joint.told(reader.seat), prefix.clone());
        async move {
            let done = reader.read_all(&told, &prefix, &mut found).await;
            (reader, found, done)
        }
    })
    .await;
    if !from.is_quorum(&seats_of(&read)) {
        return Err(format!("too few of locks.nodes could be read: {}", joined(&troubles)));
    }
    let copies: Arc<[LockCopy]> = found.copies(read.len(), from.ways.len()).into();
    let held: Vec<&LockCopy> = copies.iter().filter(|lock| lock.may_be_held()).collect();
    let keys: Arc<BTreeSet<Vec<u8>>> = Arc::new(held.iter().map(|lock| lock.key.clone()).collect());

    let writers = writing.write(writers, &copies, (&keys, &prefix), &mut troubles).await;

    // Sealed nodes still carry out releases, some perhaps after the locks were read.
    let keys: Arc<[Vec<u8>]> = keys.iter().cloned().collect();
    let (read_again, again) = read_at_once(read, from, &mut troubles, |mut reader, mut found| {
        let (told, prefix, keys) = (joint.told(reader.seat), prefix.clone(), keys.clone());
        async move {
            let done = reader.read_these(&told, &prefix, &keys, &mut found).await;
            (reader, found, done)
        }
    })
    .await;
    let over: Arc<[LockCopy]> =
        again.over(held.iter().copied(), read_again.len(), from.ways.len()).into();
    // Of a lock that has other readers, those that gave it back are over.
    let readers: BTreeMap<&[u8], usize> =
        over.iter().map(|lock| (&lock.key[..], lock.readers.len())).collect();
    let is_held = |lock: &&&LockCopy| readers.get(&lock.key[..]) != Some(&lock.readers.len());
    let count = held.iter().filter(is_held).count();
    let writers = writing.end(writers, &over, &mut troubles).await;
    match to.is_quorum(&seats_of(&writers)) {
        true => {
            let seats = writers.into_iter().filter_map(|writer| Some((writer.seat, writer.who?)));
            Ok(Copied { held: count, seats: seats.collect(), troubles })
        }
        false => {
            troubles.extend(silent(to, of_to));
            Err(format!("too few of locks.next_nodes took a copy: {}", joined(&troubles)))
        }
    }
}

/// Whether a node of the set before can be read: it is sealed, and lacks no lock.
fn is_sealed(looked: &LookedAt, seat: usize, joint: &Deployment) -> bool {
    // A node that waits may lack locks, so it counts as not read.
    looked.survey.intact[seat] && deployment_on(looked, seat) == Some(joint)
}

/// Whether a node of the next set may take a copy.
fn takes_copy(looked: &LookedAt, seat: usize, joint: &Deployment) -> bool {
    looked.looks[seat].as_ref().is_some_and(|look| misfit(look, joint).is_none())
        // A node of both sets that is not sealed still votes in the set before.
        && deployment_on(looked, seat).is_none_or(|theirs| {
            theirs == joint || theirs.set < joint.set || is_rest(theirs, joint)
        })
}

/// Returns the deployment on a node's marker.
fn deployment_on(looked: &LookedAt, seat: usize) -> Option<&Deployment> {
    let marker = looked.looks[seat].as_ref().and_then(SelfReport::marker);
    marker.map(|marker| &marker.deployment)
}

/// Writes copies on nodes of the next set.
struct CopyWriting<'a> {
    to: &'a NodeSet,
    of_to: &'a LookedAt,
    /// The deployment under whose seal the locks are copied.
    joint: &'a Deployment,
    note: Arc<CopyNote>,
    fence_ttl: Duration,
}

impl CopyWriting<'_> {
    /// Returns the marker that a script must find on the node; empty: none.
    fn told(&self, seat: usize) -> String {
        let marker = self.of_to.looks[seat].as_ref().and_then(SelfReport::marker);
        marker.map(|marker| marker.deployment.told(marker.seat)).unwrap_or_default()
    }

    /// Writes all copies. `keys`: those of the locks that may be held. Returns the nodes that took all.
    async fn write(
        &self,
        writers: Vec<Copier>,
        copies: &Arc<[LockCopy]>,
        (keys, prefix): (&Arc<BTreeSet<Vec<u8>>>, &Arc<str>),
        troubles: &mut Vec<Trouble>,
    ) -> Vec<Copier> {
        let fence_ttl = self.fence_ttl;
        each(writers, self.to, troubles, |mut writer| {
            let is_sealed = deployment_on(self.of_to, writer.seat) == Some(self.joint);
            let (told, note) = (self.told(writer.seat), self.note.clone());
            let (copies, keys, prefix) = (copies.clone(), keys.clone(), prefix.clone());
            async move {
                let done = async {
                    writer.begin(&note, &told).await?;
                    // A sealed node keeps its own locks: it needs them to vote, should the set before stand again.
                    if !is_sealed {
                        let mut own = FoundLocks::default();
                        writer.read_all(&told, &prefix, &mut own).await?;
                        writer.write((&note, &told), &own.others(&keys), fence_ttl).await?;
                    }
                    writer.write((&note, &told), &copies, fence_ttl).await
                };
                let done = done.await;
                (writer, done)
            }
        })
        .await
    }

    /// Ends the copies of locks that were released meanwhile, and the copying. Returns the nodes that took all.
    async fn end(
        &self,
        writers: Vec<Copier>,
        ended: &Arc<[LockCopy]>,
        troubles: &mut Vec<Trouble>,
    ) -> Vec<Copier> {
        let fence_ttl = self.fence_ttl;
        each(writers, self.to, troubles, |mut writer| {
            let (told, note) = (self.told(writer.seat), self.note.clone());
            let ended = ended.clone();
            async move {
                let done = async {
                    writer.write((&note, &told), &ended, fence_ttl).await?;
                    writer.end(&note).await
                };
                let done = done.await;
                (writer, done)
            }
        })
        .await
    }
}

pub(super) fn seats_of(all: &[Copier]) -> Vec<usize> {
    all.iter().map(|one| one.seat).collect()
}

/// Connects to the nodes on these seats, all at once.
pub(super) async fn connect(
    set: &NodeSet,
    seats: &[usize],
    troubles: &mut Vec<Trouble>,
) -> Vec<Copier> {
    let mut connecting = JoinSet::new();
    for seat in seats.iter().copied() {
        let way = set.ways[seat].clone();
        connecting.spawn(async move { (seat, Copier::connect(&way).await) });
    }
    let mut all = Vec::new();
    while let Some(Ok((seat, connected))) = connecting.join_next().await {
        match connected {
            Ok(copier) => all.push(copier),
            Err(error) => troubles.push(Trouble::of(set, seat, &error)),
        }
    }
    all
}

/// Has each connection read something, all at once. Returns those that succeeded, and what was read. A node that
/// failed half-way counts as not read, but what it reported is kept.
async fn read_at_once<D>(
    readers: Vec<Copier>,
    set: &NodeSet,
    troubles: &mut Vec<Trouble>,
    what: impl Fn(Copier, FoundLocks) -> D,
) -> (Vec<Copier>, FoundLocks)
where
    D: Future<Output = (Copier, FoundLocks, Result<(), RedisError>)> + Send + 'static,
{
    let mut reading: JoinSet<_> =
        readers.into_iter().map(|reader| what(reader, FoundLocks::default())).collect();
    let (mut read, mut found) = (Vec::new(), FoundLocks::default());
    while let Some(Ok((reader, own, done))) = reading.join_next().await {
        found.merge(own);
        match done {
            Ok(()) => read.push(reader),
            Err(error) => troubles.push(Trouble::of(set, reader.seat, &error)),
        }
    }
    (read, found)
}

/// Has each connection do something, all at once. Returns those that succeeded.
pub(super) async fn each<D>(
    all: Vec<Copier>,
    set: &NodeSet,
    troubles: &mut Vec<Trouble>,
    what: impl Fn(Copier) -> D,
) -> Vec<Copier>
where
    D: Future<Output = (Copier, Result<(), RedisError>)> + Send + 'static,
{
    let mut doing: JoinSet<_> = all.into_iter().map(what).collect();
    let mut well = Vec::new();
    while let Some(Ok((copier, done))) = doing.join_next().await {
        match done {
            Ok(()) => well.push(copier),
            Err(error) => troubles.push(Trouble::of(set, copier.seat, &error)),
        }
    }
    well
}
