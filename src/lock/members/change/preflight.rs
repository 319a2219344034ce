//! Trials before any lock node is sealed: whether the next nodes are fit, whether nodes can be read and written, and
//! how long no node will vote.

use std::{collections::BTreeMap, time::Duration};

use bb8_redis::redis::RedisError;

use super::{
    super::{marker::Deployment, round::Answered},
    change_error::ChangeError,
    copier::{AT_ONCE, Copier},
    copying::{connect, each, seats_of},
    misfit::misfit,
    sets::{LookedAt, NodeSet, Trouble, joined, silent},
};

/// More keys than this take so long to copy that the operator is told beforehand.
const MANY_KEYS: u64 = 50_000;
/// The approximate time to read a key on one node, or to write it there: a release build took 4.3 s for 100,000 keys
/// from three nodes to three, on two cores.
const PER_KEY: Duration = Duration::from_nanos(7_200);
/// How many times the copying time should fit into the TTL of session locks, which are not renewed meanwhile.
const WELL_ABOVE: u32 = 3;
/// How often a node that answers late is asked: a busy machine makes single answers late.
const TIMES: usize = 5;

/// Checks whether the next set can begin, before anything is written.
pub(super) fn fit(to: &NodeSet, of_to: &LookedAt, ours: &Deployment) -> Result<(), ChangeError> {
    let mut there = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (seat, asked) in of_to.all.iter().enumerate() {
        let address = &to.ways[seat].address;
        let Ok(Answered { look, .. }) = asked else { continue };
        let run_id = look.run_id.as_deref().unwrap_or_default();
        if let Some(why) = misfit(look, ours) {
            return Err(ChangeError::Unfit(format!("lock node {address} {why}")));
        }
        if seen.contains(&run_id) && !to.config.allow_shared_instance {
            let why = format!("lock node {address} is the same instance as another one");
            return Err(ChangeError::Unfit(why));
        }
        seen.push(run_id);
        there.push(seat);
    }
    match to.is_quorum(&there) {
        true => Ok(()),
        false => Err(ChangeError::Unfit(joined(&silent(to, of_to)))),
    }
}

/// The results of the trials.
pub(super) struct Tried {
    /// Nodes that cannot be read or written.
    troubles: Vec<Trouble>,
    /// Nodes that can, but took longer than `locks.node_timeout`.
    slow: Vec<(String, Duration)>,
    /// The longest that a node took to answer.
    took: Duration,
    /// The most keys on any node.
    keys: u64,
    /// Nodes of the next set that already have keys, though they were no lock nodes yet, with how many.
    used: Vec<(String, u64)>,
}

impl Tried {
    /// Estimates how long it takes to copy all keys.
    pub(super) fn copying(&self, (from, to): (&NodeSet, &NodeSet)) -> Duration {
        let nodes = u32::try_from(from.ways.len() + to.ways.len()).unwrap_or(u32::MAX);
        let keys = u32::try_from(self.keys).unwrap_or(u32::MAX);
        let exchanges = u32::try_from(self.keys / AT_ONCE as u64).unwrap_or(u32::MAX);
        // Each part is read in one exchange, and written in another.
        let ways = self.took.saturating_mul(2).saturating_mul(exchanges);
        PER_KEY.saturating_mul(nodes).saturating_mul(keys).saturating_add(ways)
    }
}

/// Tries whether locks can be read and written, before anything is sealed.
pub(super) async fn try_out(
    from: &NodeSet,
    of_from: &LookedAt,
    to: &NodeSet,
    of_to: &LookedAt,
    ours: &Deployment,
) -> Result<Tried, ChangeError> {
    let intact = (0..from.ways.len()).filter(|seat| of_from.survey.intact[*seat]);
    let is_fit =
        |seat: &usize| of_to.looks[*seat].as_ref().is_some_and(|look| misfit(look, ours).is_none());
    let fit = (0..to.ways.len()).filter(is_fit);
    let mut troubles = Vec::new();
    let readers = connect(from, &intact.collect::<Vec<_>>(), &mut troubles).await;
    let mut readers = each(readers, from, &mut troubles, |mut reader| async move {
        let done = reader.try_to_read().await;
        (reader, done)
    })
    .await;
    let writers = connect(to, &fit.collect::<Vec<_>>(), &mut troubles).await;
    let limit = to.config.node_timeout;
    let mut writers = each(writers, to, &mut troubles, |mut writer| async move {
        let done = try_to_write_within(limit, &mut writer).await;
        (writer, done)
    })
    .await;
    if !from.is_quorum(&seats_of(&readers)) || !to.is_quorum(&seats_of(&writers)) {
        troubles.extend(silent(from, of_from));
        troubles.extend(silent(to, of_to));
        return Err(ChangeError::Unfit(joined(&troubles)));
    }
    let mut slow = BTreeMap::new();
    for (set, all) in [(from, &readers), (to, &writers)] {
        for one in all.iter().filter(|one| one.took > set.config.node_timeout) {
            slow.insert(set.ways[one.seat].address.to_string(), one.took);
        }
    }
    // Votes that come later than that count for nothing.
    let in_time: Vec<usize> =
        writers.iter().filter(|one| one.took <= limit).map(|one| one.seat).collect();
    if !to.is_quorum(&in_time) {
        let late = writers.iter().filter(|one| one.took > limit);
        let late = late.map(|one| {
            let (address, took) = (&to.ways[one.seat].address, one.took.as_millis());
            format!("lock node {address} takes {took} ms to answer")
        });
        let late = late.collect::<Vec<_>>().join("; ");
        return Err(ChangeError::Unfit(format!(
            "{late}; a vote counts only within locks.node_timeout ({limit:?}), so no lock could be had"
        )));
    }
    let took = readers.iter().chain(&writers).map(|one| one.took).max().unwrap_or_default();
    let mut keys = 0;
    for reader in &mut readers {
        keys = keys.max(reader.keys().await);
    }
    let mut used = Vec::new();
    for writer in &mut writers {
        let is_new = of_to.looks[writer.seat].as_ref().is_some_and(|look| look.marker().is_none())
            && writer.note().await.is_ok_and(|note| note.is_none());
        let there = if is_new { writer.foreign_keys().await } else { 0 };
        if there > 0 {
            used.push((to.ways[writer.seat].address.to_string(), there));
        }
    }
    Ok(Tried { troubles, slow: slow.into_iter().collect(), took, keys, used })
}

/// Tries whether a node takes writes, and again while it takes longer than `limit`. Notes the shortest time.
async fn try_to_write_within(limit: Duration, writer: &mut Copier) -> Result<(), RedisError> {
    let mut done = writer.try_to_write().await;
    let mut least = writer.took;
    for _ in 1..TIMES {
        if done.is_err() || least <= limit {
            break;
        }
        done = writer.try_to_write().await;
        least = least.min(writer.took);
    }
    writer.took = least;
    done
}

/// Reports what makes the time long in which no node votes, and which nodes will have no part in the change.
pub(super) fn warn(
    tried: &Tried,
    (from, of_from): (&NodeSet, &LookedAt),
    (to, of_to): (&NodeSet, &LookedAt),
    tell: &mut impl FnMut(&str),
) {
    let mut lost: BTreeMap<String, &str> = BTreeMap::new();
    let (before, next) = (silent(from, of_from), silent(to, of_to));
    for Trouble { address, why } in before.iter().chain(&next).chain(&tried.troubles) {
        lost.insert(address.clone(), why);
    }
    for (address, why) in lost {
        tell(&format!(
            "warning: lock node {address} has no part in it, and nobody waits for it: {why}"
        ));
    }
    for (address, took) in &tried.slow {
        let (took, limit) = (took.as_millis(), from.config.node_timeout);
        tell(&format!(
            "warning: lock node {address} takes {took} ms to answer, more than locks.node_timeout ({limit:?}): \
             nobody votes while it is waited for"
        ));
    }
    for (address, keys) in &tried.used {
        tell(&format!(
            "warning: lock node {address} has keys already ({keys}), and may store nothing else: a key under \
             locks.prefix is a lock that somebody holds, until it is deleted"
        ));
    }
    let long = tried.copying((from, to));
    let ttl = from.config.default_ttl;
    let is_risky = long.saturating_mul(WELL_ABOVE) > ttl;
    if tried.keys > MANY_KEYS || is_risky {
        let about = if tried.keys < 10_000 { tried.keys } else { (tried.keys + 500) / 1000 * 1000 };
        let seconds = long.as_secs_f64();
        tell(&format!(
            "about {about} fences and locks are to be copied: nobody votes for about {seconds:.1} s"
        ));
    }
    if is_risky {
        tell(&format!(
            "warning: locks.default_ttl ({ttl:?}) is not well above that, and no lock is renewed meanwhile: \
             session locks may be lost"
        ));
    }
}
