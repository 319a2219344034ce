//! Merges the reports of several proxies. It is pure: the time is an argument.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry, hash_map},
    time::{Duration, SystemTime},
};

use super::{documents::Round, plain::PlainText, wanted::LockSort};
use crate::{
    glob::{self, Budget},
    lock::{ANY_PERMIT, family_of, permit_of},
    report::{
        document::Totals,
        lists::{BusyClientPart, ClientPart, FamilyPart, LockPart},
        lock_name::LockName,
    },
};

/// The shortest time between the two samples of a rate. Rates of a shorter one would jump.
const LEAST_SPAN_MS: u64 = 400;
/// How many steps comparing all names with the pattern may take.
const MAX_STEPS: usize = 20_000_000;

/// One proxy, as far as it has been heard.
#[derive(Debug)]
pub(super) struct WatchedProxy {
    /// What the user calls it.
    pub(super) label: PlainText,
    /// Its last report; none if it cannot be reached.
    pub(super) round: Option<Round>,
    /// The proxy before it in the list that is the same process, if there is one: it is counted once.
    pub(super) same_as: Option<PlainText>,
    /// Since when it cannot be reached, and why.
    pub(super) trouble: Option<(SystemTime, PlainText)>,
    /// The sample from which the next rates count: process id, uptime in milliseconds, and totals.
    base: Option<(u32, u64, Totals)>,
    pub(super) rates: Option<Totals<f64>>,
}

/// A lock node as the proxies see it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NodeRow {
    pub(super) address: PlainText,
    /// How many proxies count on its votes, and how many have been heard.
    pub(super) votes: usize,
    pub(super) asked: usize,
    /// The longest round trip that a proxy reports.
    pub(super) round_trip_us: Option<u64>,
    /// Each state that proxies report, with these proxies.
    pub(super) states: Vec<(PlainText, Vec<PlainText>)>,
}

/// A lock as all proxies together know it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LockRow {
    pub(super) name: LockName,
    pub(super) fence: Option<u64>,
    pub(super) holder: Option<ClientPart<PlainText>>,
    /// The proxy that granted it; none if none of these proxies or their peers did.
    pub(super) proxy: Option<PlainText>,
    /// Its readers, all together; 0: the holder has it alone, as far as is known.
    pub(super) readers: usize,
    pub(super) held_ms: Option<u64>,
    pub(super) remaining_ms: Option<u64>,
    pub(super) waiters: usize,
    pub(super) longest_wait_ms: u64,
    pub(super) waited_ms: u64,
    /// Set if it is no lock, but the permits of a family: times are of the oldest grant, and of the first to end.
    pub(super) family: Option<FamilyRow>,
}

/// The permits of a family, as all proxies together know them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FamilyRow {
    /// How many permits the family has: where proxies differ, as many as the one says that says most.
    pub(super) n: usize,
    /// Which of them are held: one that two proxies hold to be theirs is one.
    pub(super) held: BTreeSet<usize>,
    /// Those of which more is known.
    pub(super) permits: Vec<LockRow>,
}

/// A client in line.
#[derive(Debug, PartialEq)]
pub(super) struct WaiterRow {
    pub(super) told: BusyClientPart<PlainText>,
    pub(super) proxy: PlainText,
}

impl WatchedProxy {
    pub(super) fn new(label: &str) -> WatchedProxy {
        let label = PlainText::of(label);
        let (round, same_as, trouble, base, rates) = (None, None, None, None, None);
        WatchedProxy { label, round, same_as, trouble, base, rates }
    }

    /// Takes the proxy's report, or why there is none.
    pub(super) fn hear(&mut self, heard: Result<Round, PlainText>, now: SystemTime) {
        match heard {
            Ok(round) => {
                self.measure(&round);
                (self.round, self.trouble) = (Some(round), None);
            }
            Err(reason) => {
                let since = self.trouble.take().map_or(now, |(since, _)| since);
                self.trouble = Some((since, reason));
                (self.round, self.base, self.rates) = (None, None, None);
            }
        }
    }

    fn measure(&mut self, round: &Round) {
        let proxy = &round.status.proxy;
        let sample = (proxy.pid, proxy.uptime_ms, round.status.totals);
        match self.base {
            Some((pid, uptime, totals)) if pid == proxy.pid && uptime <= proxy.uptime_ms => {
                let span = proxy.uptime_ms - uptime;
                if span >= LEAST_SPAN_MS {
                    self.rates = Some(sample.2.per_second(&totals, Duration::from_millis(span)));
                    self.base = Some(sample);
                }
            }
            // A new process counts from 0.
            _ => (self.base, self.rates) = (Some(sample), None),
        }
    }
}

impl LockRow {
    /// Adds what one proxy knows about the lock.
    fn add(&mut self, lock: &LockPart<PlainText>, proxy: &PlainText) {
        // The larger fence is the later grant's. The proxy of the earlier one has not heard of its end yet. Of one
        // grant, the proxy that granted it knows more than one that has asked it as a peer.
        let (order, is_own) = (lock.fence.cmp(&self.fence), lock.proxy.is_none());
        let is_better = order.is_gt() || order.is_eq() && is_own;
        if lock.held_ms.is_some() && (self.held_ms.is_none() || is_better) {
            self.fence = lock.fence;
            self.held_ms = lock.held_ms;
            self.remaining_ms = lock.remaining_ms;
            self.holder.clone_from(&lock.holder);
            self.proxy = Some(lock.proxy.as_ref().unwrap_or(proxy).clone());
        }
        self.readers = self.readers.saturating_add(lock.readers);
        self.waiters = self.waiters.saturating_add(lock.waiters);
        self.longest_wait_ms = self.longest_wait_ms.max(lock.longest_wait_ms);
    }

    /// Adds what one proxy tells of the family that this is. Who waits is told of the locks.
    fn add_family(&mut self, told: &FamilyPart) {
        let family = self.family.get_or_insert_default();
        family.n = family.n.max(told.n);
        family.held.extend(&told.held);
        self.held_ms = self.held_ms.max(told.held_ms);
        self.remaining_ms = sooner(self.remaining_ms, told.remaining_ms);
    }

    /// Adds a permit of the family that this is, or its line.
    fn fold(&mut self, lock: LockRow) {
        self.held_ms = self.held_ms.max(lock.held_ms);
        self.remaining_ms = sooner(self.remaining_ms, lock.remaining_ms);
        self.waiters = self.waiters.saturating_add(lock.waiters);
        self.longest_wait_ms = self.longest_wait_ms.max(lock.longest_wait_ms);
        self.waited_ms = self.waited_ms.saturating_add(lock.waited_ms);
        if let Some((_, at)) = permit_of(&lock.name.0) {
            let family = self.family.get_or_insert_default();
            family.held.extend(lock.held_ms.map(|_| at));
            family.permits.push(lock);
        }
    }

    /// Returns what `sort` compares first, and what it compares next where that is equal.
    fn rank(&self, sort: LockSort) -> (u64, u64) {
        match sort {
            LockSort::Waiters => (self.waiters as u64, self.longest_wait_ms),
            LockSort::Age => (self.held_ms.unwrap_or(0), self.waiters as u64),
            LockSort::Wait => (self.longest_wait_ms, self.waiters as u64),
            LockSort::Hot => (self.waited_ms, self.waiters as u64),
        }
    }
}

/// The lock nodes, in the order of the proxies' reports, each address once.
pub(super) fn nodes(proxies: &[WatchedProxy]) -> Vec<NodeRow> {
    let (mut rows, mut places): (Vec<NodeRow>, HashMap<&PlainText, usize>) = Default::default();
    for (proxy, round) in heard(proxies) {
        for node in &round.status.nodes {
            let place = *places.entry(&node.address).or_insert_with(|| {
                rows.push(NodeRow { address: node.address.clone(), ..NodeRow::default() });
                rows.len() - 1
            });
            let row = &mut rows[place];
            row.asked += 1;
            row.votes += usize::from(node.votes);
            row.round_trip_us = row.round_trip_us.max(node.round_trip_us);
            match row.states.iter_mut().find(|(state, _)| *state == node.state) {
                Some((_, by)) => by.push(proxy.label.clone()),
                None => row.states.push((node.state.clone(), vec![proxy.label.clone()])),
            }
        }
    }
    rows
}

/// The locks whose names match, in this order; of a family whose line matches, one row. [`LockSort::Age`] has only
/// locks that are held, [`LockSort::Hot`] only those that were waited for.
pub(super) fn locks(
    proxies: &[WatchedProxy],
    sort: LockSort,
    pattern: Option<&[u8]>,
) -> Vec<LockRow> {
    let mut budget = Budget::of(MAX_STEPS);
    let mut matches = |name: &[u8]| {
        let mut within = |pattern| glob::matches_within(pattern, name, &mut budget);
        pattern.is_none_or(|pattern| within(pattern) == Some(true))
    };
    // A proxy may have permits of a family of which only another one knows.
    let mut families: BTreeMap<&[u8], LockRow> = BTreeMap::new();
    let all_told = heard(proxies).flat_map(|(_, round)| &round.families);
    for told in all_told.filter(|told| matches(&told.name.0)) {
        if let Some(name) = told.name.0.strip_suffix(ANY_PERMIT) {
            let new = || LockRow { name: told.name.clone(), ..LockRow::default() };
            families.entry(name).or_insert_with(new).add_family(told);
        }
    }
    let mut rows: BTreeMap<&[u8], LockRow> = BTreeMap::new();
    for (proxy, round) in heard(proxies) {
        for lock in &round.locks {
            let row = match rows.entry(&lock.name.0) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if !matches(&lock.name.0) => continue,
                Entry::Vacant(place) => {
                    place.insert(LockRow { name: lock.name.clone(), ..LockRow::default() })
                }
            };
            row.add(lock, &proxy.label);
            let waited_ms = round.waited_ms.get(&lock.name).copied();
            row.waited_ms = row.waited_ms.saturating_add(waited_ms.unwrap_or(0));
        }
    }
    let mut rows = folded(rows.into_values(), families);
    rows.retain(|row| match sort {
        LockSort::Age => row.held_ms.is_some(),
        LockSort::Hot => row.waited_ms > 0,
        LockSort::Waiters | LockSort::Wait => true,
    });
    // The sort is stable: equal locks stay in the order of their names.
    rows.sort_by_key(|row| Reverse(row.rank(sort)));
    rows
}

/// Puts locks that belong to these families into their rows.
fn folded(
    locks: impl Iterator<Item = LockRow>,
    mut families: BTreeMap<&[u8], LockRow>,
) -> Vec<LockRow> {
    let mut rows = Vec::new();
    for lock in locks {
        // A lock may have the name of a family's line.
        let is_lock = lock.held_ms.is_some() && permit_of(&lock.name.0).is_none();
        let family = family_of(&lock.name.0).filter(|_| !is_lock);
        match family.and_then(|family| families.get_mut(family)) {
            Some(family) => family.fold(lock),
            None => rows.push(lock),
        }
    }
    rows.extend(families.into_values());
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    for family in rows.iter_mut().filter_map(|row| row.family.as_mut()) {
        family.permits.sort_by_key(|lock| permit_of(&lock.name.0).map(|(_, at)| at));
    }
    rows
}

/// Returns the shorter time of those that are known.
fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// The clients in line for the open lock, the longest wait first.
pub(super) fn line(proxies: &[WatchedProxy]) -> Vec<WaiterRow> {
    let mut line = Vec::new();
    for (proxy, round) in heard(proxies) {
        line.extend(
            round
                .line
                .iter()
                .map(|client| WaiterRow { told: client.clone(), proxy: proxy.label.clone() }),
        );
    }
    line.sort_by_key(|client| Reverse(client.told.waited_ms));
    line
}

/// The proxies that can be reached, each once, with their reports.
fn heard(proxies: &[WatchedProxy]) -> impl Iterator<Item = (&WatchedProxy, &Round)> {
    let once = proxies.iter().filter(|proxy| proxy.same_as.is_none());
    once.filter_map(|proxy| Some((proxy, proxy.round.as_ref()?)))
}

/// Finds the proxies that are named twice, by two addresses: their names, which have the process ids, are the same.
pub(super) fn find_same(proxies: &mut [WatchedProxy]) {
    let mut labels: HashMap<PlainText, PlainText> = HashMap::new();
    for proxy in proxies {
        let name = proxy.round.as_ref().map(|round| &round.status.proxy.name);
        // A proxy of another version may not tell its name.
        let name = name.filter(|name| !name.as_str().is_empty()).cloned();
        proxy.same_as = name.and_then(|name| match labels.entry(name) {
            hash_map::Entry::Occupied(known) => Some(known.get().clone()),
            hash_map::Entry::Vacant(place) => {
                place.insert(proxy.label.clone());
                None
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn round(uptime_ms: u64, grants: u64, nodes: &Value, locks: &Value) -> Round {
        let status = json!({
            "proxy": {"pid": 7, "uptime_ms": uptime_ms, "ready": true},
            "nodes": nodes, "totals": {"grants": grants, "busy": grants / 2},
        });
        let status = serde_json::from_value(status).unwrap();
        let mut round = Round { status, ..Round::default() };
        round.add(serde_json::from_value(locks.clone()).unwrap());
        let is_hot = |lock: &&Value| lock.get("waited_ms").is_some();
        let hot = locks.as_array().unwrap().iter().filter(is_hot);
        round.add_hot(hot.map(|lock| serde_json::from_value(lock.clone()).unwrap()).collect());
        round
    }

    fn watched(label: &str, nodes: &Value, locks: &Value) -> WatchedProxy {
        let mut proxy = WatchedProxy::new(label);
        proxy.hear(Ok(round(1000, 0, nodes, locks)), NOW);
        proxy
    }

    fn names(rows: &[LockRow]) -> Vec<&str> {
        rows.iter().map(|row| std::str::from_utf8(&row.name.0).unwrap()).collect()
    }

    fn states(row: &NodeRow) -> Vec<(&str, Vec<&str>)> {
        row.states
            .iter()
            .map(|(state, by)| (state.as_str(), by.iter().map(PlainText::as_str).collect()))
            .collect()
    }

    #[test]
    fn a_node_that_proxies_see_differently_is_told_so() {
        let node = |address: &str, votes: bool, state: &str, us: Option<u64>| json!({"address": address, "votes": votes, "state": state, "round_trip_us": us});
        let here = json!([node("n1", true, "ok", Some(200)), node("n2", true, "ok", Some(300))]);
        let there = json!([node("n1", true, "ok", Some(250)), node("n2", false, "refused", None)]);
        let mut gone = watched("c", &here, &json!([]));
        gone.hear(Err(PlainText::of("gone")), NOW);
        let all = [watched("a", &here, &json!([])), watched("b", &there, &json!([])), gone];
        let rows = nodes(&all);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].votes, rows[0].asked, rows[0].round_trip_us), (2, 2, Some(250)));
        assert_eq!(states(&rows[0]), [("ok", vec!["a", "b"])]);
        assert_eq!((rows[1].votes, rows[1].asked, rows[1].round_trip_us), (1, 2, Some(300)));
        assert_eq!(states(&rows[1]), [("ok", vec!["a"]), ("refused", vec!["b"])]);
    }

    #[test]
    fn a_lock_that_is_waited_for_elsewhere_is_one_with_its_holder() {
        let here = json!([{"key": "x", "held_ms": 50, "remaining_ms": 90, "fence": 3, "waiters": 1,
            "longest_wait_ms": 10, "holder": {"name": "w1", "address": "10.0.0.7:1"}}]);
        let there = json!([{"key": "x", "waiters": 2, "longest_wait_ms": 30},
            {"key": "y", "held_ms": 70, "waiters": 2, "longest_wait_ms": 20}]);
        for order in [[("a", &here), ("b", &there)], [("b", &there), ("a", &here)]] {
            let proxies = order.map(|(label, locks)| watched(label, &json!([]), locks));
            let rows = locks(&proxies, LockSort::Waiters, None);
            assert_eq!(names(&rows), ["x", "y"]);
            let x = &rows[0];
            assert_eq!((x.waiters, x.longest_wait_ms, x.held_ms), (3, 30, Some(50)));
            assert_eq!(x.holder.as_ref().unwrap().name.as_str(), "w1");
            assert_eq!(x.proxy.as_ref().unwrap().as_str(), "a");
        }
    }

    #[test]
    fn what_a_proxy_knows_of_a_lock_from_its_peer_is_not_its_own_grant() {
        let told = json!([{"key": "x", "kind": "elsewhere", "held_ms": 40, "fence": 3, "waiters": 1,
            "proxy": "there, pid 7"}]);
        let own = json!([{"key": "x", "kind": "session", "held_ms": 50, "fence": 3}]);
        for order in [[("a", &told), ("b", &own)], [("b", &own), ("a", &told)]] {
            let proxies = order.map(|(label, locks)| watched(label, &json!([]), locks));
            let rows = locks(&proxies, LockSort::Age, None);
            assert_eq!((rows.len(), rows[0].held_ms, rows[0].waiters), (1, Some(50), 1));
            assert_eq!(rows[0].proxy.as_ref().unwrap().as_str(), "b");
        }
        // The peer itself is not watched.
        let rows = locks(&[watched("a", &json!([]), &told)], LockSort::Age, None);
        assert_eq!(rows[0].proxy.as_ref().unwrap().as_str(), "there, pid 7");
    }

    #[test]
    fn the_later_grant_of_two_is_the_one() {
        let old = json!([{"key": "x", "held_ms": 900, "fence": 3}]);
        let new = json!([{"key": "x", "held_ms": 5, "fence": 4}]);
        for order in [[&old, &new], [&new, &old]] {
            let proxies = order.map(|locks| watched("p", &json!([]), locks));
            let rows = locks(&proxies, LockSort::Age, None);
            assert_eq!((rows.len(), rows[0].fence, rows[0].held_ms), (1, Some(4), Some(5)));
        }
    }

    #[test]
    fn locks_come_in_the_order_that_is_wanted_and_match() {
        let all = json!([
            {"key": "job:old", "held_ms": 900, "waiters": 1, "longest_wait_ms": 50},
            {"key": "job:busy", "held_ms": 10, "waiters": 9, "longest_wait_ms": 5, "waited_ms": 7},
            {"key": "else", "waiters": 2, "longest_wait_ms": 800, "waited_ms": 90}]);
        let proxies = [watched("a", &json!([]), &all)];
        let by = |sort, pattern: Option<&str>| {
            let rows = locks(&proxies, sort, pattern.map(str::as_bytes));
            names(&rows).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(by(LockSort::Waiters, None), ["job:busy", "else", "job:old"]);
        assert_eq!(by(LockSort::Age, None), ["job:old", "job:busy"]);
        assert_eq!(by(LockSort::Wait, None), ["else", "job:old", "job:busy"]);
        assert_eq!(by(LockSort::Hot, None), ["else", "job:busy"]);
        assert_eq!(by(LockSort::Wait, Some("job:*")), ["job:old", "job:busy"]);
    }

    #[test]
    fn permits_are_one_row_if_any_proxy_knows_their_family() {
        let told = |key: &str, n: usize, held: &[usize]| json!({"key": key, "n": n, "held": held, "held_ms": 90, "remaining_ms": 40});
        let here = json!([{"key": "g#10", "held_ms": 60, "remaining_ms": 50}, {"key": "g#2", "held_ms": 90, "waiters": 1},
            {"key": "g#*", "waiters": 3, "longest_wait_ms": 7, "waited_ms": 5}, {"key": "x#1", "held_ms": 5},
            {"key": "g#300", "held_ms": 1}]);
        let there = json!([{"key": "g#2", "held_ms": 10, "remaining_ms": 20, "fence": 1}, {"key": "g#3", "held_ms": 100},
            {"key": "h#*", "held_ms": 1, "waiters": 9}]);
        let mut proxies = [watched("a", &json!([]), &here), watched("b", &json!([]), &there)];
        let families = json!([told("g#*", 4, &[2, 7, 10]), told("h#*", 2, &[1])]);
        proxies[0].round.as_mut().unwrap().families = serde_json::from_value(families).unwrap();
        let rows = locks(&proxies, LockSort::Age, None);
        assert_eq!(names(&rows), ["g#*", "h#*", "x#1", "h#*", "g#300"]);
        let (row, family) = (&rows[0], rows[0].family.as_ref().unwrap());
        assert_eq!((row.held_ms, row.remaining_ms, row.waiters), (Some(100), Some(20), 4));
        assert_eq!((row.longest_wait_ms, row.waited_ms, family.n), (7, 5, 4));
        assert_eq!(family.held.iter().copied().collect::<Vec<_>>(), [2, 3, 7, 10]);
        assert_eq!(names(&family.permits), ["g#2", "g#3", "g#10"]);
        assert!(rows[3].family.is_none(), "a lock that has a family's name");
        let rows = locks(&proxies, LockSort::Age, Some(b"g#[0-9]"));
        assert_eq!(names(&rows), ["g#3", "g#2"]);
    }

    #[test]
    fn a_rate_is_what_one_process_counted_between_two_samples() {
        let mut proxy = watched("a", &json!([]), &json!([]));
        let rates =
            |proxy: &WatchedProxy| proxy.rates.map(|rates| (rates.grants, rates.refusals()));
        assert_eq!(rates(&proxy), None);
        let none = json!([]);
        proxy.hear(Ok(round(3000, 100, &none, &none)), NOW);
        assert_eq!(rates(&proxy), Some((50.0, 25.0)));
        // A sample that comes too soon changes no rate, and the next counts from the one before it.
        proxy.hear(Ok(round(3010, 110, &none, &none)), NOW);
        assert_eq!(rates(&proxy), Some((50.0, 25.0)));
        proxy.hear(Ok(round(4000, 120, &none, &none)), NOW);
        assert_eq!(rates(&proxy), Some((20.0, 10.0)));
        // Restarted.
        proxy.hear(Ok(round(50, 3, &none, &none)), NOW);
        assert_eq!(rates(&proxy), None);
    }

    #[test]
    fn a_proxy_is_away_since_it_was_first_missed() {
        let later = NOW + Duration::from_secs(60);
        let mut proxy = watched("a", &json!([]), &json!([{"key": "x", "held_ms": 5}]));
        proxy.hear(Err(PlainText::of("refused")), NOW);
        proxy.hear(Err(PlainText::of("no answer")), later);
        assert_eq!(proxy.trouble, Some((NOW, PlainText::of("no answer"))));
        assert_eq!(locks(std::slice::from_ref(&proxy), LockSort::Age, None), []);
        proxy.hear(Ok(round(1000, 0, &json!([]), &json!([]))), later);
        assert_eq!(proxy.trouble, None);
    }
}
