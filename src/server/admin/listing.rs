//! Makes the lists of locks, clients and idioms.

use std::{collections::HashMap, sync::Arc};

use crate::{
    adopt::{rows::hexadecimal, verdict::danger},
    card::ClientCard,
    clock::millis,
    key::Key,
    lock::{FamiliesWanted, FamilyStatus, LockStatus, LocksWanted, family_of},
    report::{
        lists::{
            AdoptedList, AdoptedPart, BusyClientPart, ClientList, ClientPart, FamilyPart,
            HolderPart, HotList, HotPart, InLinePart, LockList, LockPart, PinnedList, PinnedPart,
        },
        lock_name::LockName,
    },
    session::Shared,
    share::Sharers,
};

/// The kind of what is no lock, but the line of a family. No one client holds it.
const PERMITS: &str = "permits";
/// Most waiters of one hot lock that are told.
const MOST_IN_LINE: usize = 8;

/// An entry whose lock another proxy may have granted.
pub(super) trait GrantedElsewhere {
    /// Returns the lock's name, if the lock was not granted here.
    fn name_elsewhere(&self) -> Option<&[u8]>;

    /// Takes in what the proxy tells that granted the lock.
    fn told_by_peer(&mut self, told: HolderPart);
}

impl LockName {
    /// Returns the name of the lock that has this key on the nodes.
    fn of(key: &[u8], shared: &Shared) -> LockName {
        LockName(key.get(prefix(shared)..).unwrap_or_default().to_vec())
    }
}

impl ClientPart {
    fn of(card: &Arc<ClientCard>) -> ClientPart {
        let (address, name) = (card.address(), card.name().to_string());
        ClientPart { address, name, connected: card.is_here() }
    }
}

/// Returns the wanted locks, or `None` if comparing them with the pattern would take too long.
pub(super) fn locks(shared: &Shared, wanted: &LocksWanted) -> Option<LockList> {
    let found = shared.engine.list(wanted, prefix(shared))?;
    let names = found.iter().filter_map(LockStatus::family);
    let families = families(names, wanted.pattern.as_deref(), shared);
    let lines: HashMap<&[u8], &Key> =
        families.iter().filter_map(|told| Some((family_of(&told.line)?, &told.line))).collect();
    let locks = found.iter().map(|lock| {
        let line = lock.family().and_then(|family| lines.get(family));
        LockPart { family: line.map(|line| LockName::of(line, shared)), ..part(lock, shared) }
    });
    Some(LockList { locks: locks.collect(), families: parts(&families, shared) })
}

fn parts(families: &[FamilyStatus], shared: &Shared) -> Vec<FamilyPart> {
    families.iter().map(|family| FamilyPart::of(family, shared)).collect()
}

/// Returns the families among these whose lines match the pattern. `names`: their keys.
fn families<'k>(
    names: impl Iterator<Item = &'k [u8]>,
    pattern: Option<&[u8]>,
    shared: &Shared,
) -> Vec<FamilyStatus> {
    let locks = &shared.config.load().locks;
    let wanted = FamiliesWanted { rules: &locks.permits, prefix: locks.prefix.len(), pattern };
    shared.engine.families(names, &wanted)
}

impl FamilyPart {
    fn of(family: &FamilyStatus, shared: &Shared) -> FamilyPart {
        FamilyPart {
            name: LockName::of(&family.line, shared),
            n: family.n,
            held: family.held.clone(),
            held_ms: family.held_for.map(millis),
            remaining_ms: family.remaining.map(millis),
            waiters: family.waiters,
            longest_wait_ms: millis(family.longest_wait),
        }
    }
}

fn part(lock: &LockStatus, shared: &Shared) -> LockPart {
    let grant = lock.grant.as_ref();
    LockPart {
        name: LockName::of(&lock.key, shared),
        kind: lock.kind().into(),
        fence: grant.map(|grant| grant.fence),
        held_ms: grant.map(|grant| millis(grant.held_for)),
        remaining_ms: grant.map(|grant| millis(grant.remaining)),
        waiters: lock.waiters,
        longest_wait_ms: millis(lock.longest_wait),
        readers: grant.map_or(0, |grant| grant.readers),
        adopted: grant.and_then(|grant| grant.adopted).map(Into::into),
        holder: grant.and_then(|grant| grant.holder.as_ref()).map(ClientPart::of),
        proxy: None,
        family: None,
    }
}

impl GrantedElsewhere for LockPart {
    fn name_elsewhere(&self) -> Option<&[u8]> {
        (self.fence.is_none() && self.kind != PERMITS).then_some(&self.name.0)
    }

    fn told_by_peer(&mut self, told: HolderPart) {
        self.kind = "elsewhere".into();
        (self.fence, self.held_ms) = (told.fence, told.held_ms);
        (self.remaining_ms, self.holder) = (told.remaining_ms, told.holder);
        self.proxy = Some(told.proxy);
    }
}

impl GrantedElsewhere for HotPart {
    fn name_elsewhere(&self) -> Option<&[u8]> {
        let is_lock = self.kind.as_ref().is_some_and(|kind| kind != PERMITS);
        (self.fence.is_none() && is_lock).then_some(&self.name.0)
    }

    fn told_by_peer(&mut self, told: HolderPart) {
        self.kind = Some("elsewhere".into());
        (self.fence, self.held_ms, self.holder) = (told.fence, told.held_ms, told.holder);
        self.proxy = Some(told.proxy);
    }
}

/// Returns the holder of a lock that was granted here. `name` is the lock's name as clients know it.
pub(super) fn holder(shared: &Shared, name: &[u8]) -> Option<HolderPart> {
    let key = Key::from(&*[shared.config.load().locks.prefix.as_bytes(), name].concat());
    let lock = shared.engine.lock(&key)?;
    let grant = lock.grant.as_ref()?;
    Some(HolderPart {
        kind: lock.kind().into(),
        fence: Some(grant.fence),
        held_ms: Some(millis(grant.held_for)),
        remaining_ms: Some(millis(grant.remaining)),
        holder: grant.holder.as_ref().map(ClientPart::of),
        proxy: shared.name.clone(),
    })
}

/// Returns the locks that were waited for longest, at most `most`.
pub(super) fn hot(shared: &Shared, most: usize) -> HotList {
    let engine = &shared.engine;
    let hot = engine.hot(most);
    let families = families(hot.iter().filter_map(|hot| family_of(&hot.key)), None, shared);
    let hot = hot.into_iter().map(|hot| {
        let grant = engine.lock(&hot.key).and_then(|lock| lock.grant);
        let line = match hot.waiters {
            0 => Vec::new(),
            _ => engine.waiters(&hot.key),
        };
        HotPart {
            name: LockName::of(&hot.key, shared),
            waited_ms: millis(hot.waited),
            excess_ms: millis(hot.excess),
            waits: hot.waits,
            longest_ms: millis(hot.longest),
            waiters: hot.waiters,
            kind: Some(hot.kind.into()).filter(|kind: &String| !kind.is_empty()),
            fence: grant.as_ref().map(|grant| grant.fence),
            held_ms: grant.as_ref().map(|grant| millis(grant.held_for)),
            holder: hot.holder.as_ref().map(ClientPart::of),
            proxy: None,
            line: line
                .iter()
                .take(MOST_IN_LINE)
                .map(|waiter| InLinePart {
                    client: waiter.card.as_ref().map(ClientPart::of),
                    waited_ms: millis(waiter.waited),
                    ttl_ms: millis(waiter.ttl),
                })
                .collect(),
        }
    });
    HotList { hot: hot.collect(), families: parts(&families, shared) }
}

/// Returns the clients that hold locks or wait, at most `most`.
pub(super) fn clients(shared: &Shared, most: usize) -> ClientList {
    let clients = shared.engine.clients(most).into_iter().map(|client| {
        let keys = client.keys.iter().map(|key| LockName::of(key, shared)).collect();
        let waits_for = client.waits_for.as_ref().map(|(key, _)| LockName::of(key, shared));
        let waited = client.waits_for.map(|(_, waited)| waited).unwrap_or_default();
        BusyClientPart {
            client: ClientPart::of(&client.card),
            locks: client.held,
            keys,
            longest_hold_ms: millis(client.longest_hold),
            waits_for,
            waited_ms: millis(waited),
        }
    });
    ClientList { clients: clients.collect() }
}

/// Returns the lock idioms that were seen, the unsafe first, at most `most`.
pub(super) fn adopted(shared: &Shared, most: usize) -> AdoptedList {
    let Some(adoption) = &shared.adoption else {
        return AdoptedList { adopted: Vec::new(), left_out: 0 };
    };
    let (seen, left_out) = adoption.seen();
    let seen = seen.into_iter().take(most).map(|(sighting, client, times)| AdoptedPart {
        times,
        keys: adoption.pattern(&sighting).into(),
        lock: adoption.lock(&sighting).into(),
        client: client.to_string(),
        idiom: sighting.op.as_str().into(),
        form: sighting.form.into(),
        library: sighting.library.into(),
        script: sighting.digest.map(|digest| hexadecimal(&digest)),
        danger: danger(sighting.op).into(),
        verdict: sighting.verdict.as_str().into(),
        because: sighting.because.into(),
        mode: adoption.mode_of(&sighting).into(),
        longest_ttl_ms: sighting.ttl.map(millis),
    });
    AdoptedList { adopted: seen.collect(), left_out }
}

/// Returns which clients got a connection of their own, the most frequent kinds first, at most `most`.
pub(super) fn pinned(sharers: Option<&Sharers>, most: usize) -> PinnedList {
    let kinds = sharers.map(Sharers::pinned).unwrap_or_default();
    let pinned = kinds.into_iter().take(most).map(|(kind, clients)| PinnedPart {
        clients,
        by: kind.by().into(),
        client: kind.client,
        command: kind.command,
    });
    PinnedList { pinned: pinned.collect() }
}

/// Returns the length of what comes before a lock's name in its key on the nodes.
fn prefix(shared: &Shared) -> usize {
    shared.config.load().locks.prefix.len()
}
