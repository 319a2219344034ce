//! Redis Clusters as lock nodes: the shard that has a lock's slot votes on it, and a shard that fails over or gives
//! slots away stops no other.

use std::{
    thread,
    time::{Duration, Instant},
};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{
    Client, Proxy, Reply, Setup,
    cluster::{Cluster, join, text},
    eventually,
};

/// Sets up a proxy with these lock nodes.
fn before(nodes: &[String]) -> Setup {
    Proxy::with().node_urls(nodes).locks("node_timeout: 400ms").locks("shared: yes")
}

fn all_up(proxy: &Proxy, count: usize) {
    let all = format!("{count} of {count} up");
    eventually("all voters are up, with all shards", || {
        let page = proxy.http("/readyz");
        let mut nodes = page.lines().filter(|line| line.starts_with("lock node "));
        page.contains(&all) && nodes.all(|line| line.ends_with(": ok"))
    });
}

/// Takes, asks for, renews and gives back locks with all kinds of keys.
fn lock_all(proxy: &Proxy) {
    let (mut one, mut other) = (proxy.client(), proxy.client());
    let mut keys: Vec<String> = (0..30).map(|number| format!("job-{number}")).collect();
    let braces = ["{a}", "{", "}", "{}", "}{a", "a{}b{c}", "{{a}}", "x}{y}z", "{orders}:7"];
    keys.extend(braces.map(str::to_owned));
    for key in &keys {
        let grant = one.cmd(&["LOCK", key, "PX", "20000"]).grant();
        assert_eq!(other.cmd(&["LOCK", key, "PX", "20000"]), Reply::NullArray, "{key}");
        let attached = other.cmd(&["LOCK.ATTACH", key, &grant.token]);
        assert!(matches!(attached, Reply::Array(_)), "{key}: {attached:?}");
        let renewed = one.cmd(&["RENEW", key, &grant.token, "PX", "30000"]);
        assert!(matches!(renewed, Reply::Int(1..)), "{key}: {renewed:?}");
        assert_eq!(other.cmd(&["UNLOCK", key, "wrong"]), Reply::Int(0), "{key}");
        assert_eq!(one.cmd(&["UNLOCK", key, &grant.token]), Reply::Int(1), "{key}");
        let next = other.cmd(&["LOCK", key, "PX", "20000"]).grant();
        assert!(next.fence > grant.fence, "{key}");
        assert_eq!(other.cmd(&["UNLOCK", key]), Reply::Int(1), "{key}");
        let reader = one.cmd(&["LOCK", key, "SHARED", "PX", "20000"]).grant();
        other.cmd(&["LOCK", key, "r", "SHARED", "PX", "20000"]).grant();
        assert_eq!(
            other.cmd(&["LOCK", key, "w", "PX", "20000", "WAIT", "1"]),
            Reply::NullArray,
            "{key}"
        );
        let renewed = other.cmd(&["RENEW", key, &reader.token, "PX", "30000"]);
        assert!(matches!(renewed, Reply::Int(1..)), "{key}: {renewed:?}");
        assert_eq!(other.cmd(&["UNLOCK", key, &reader.token]), Reply::Int(1), "{key}");
        assert_eq!(one.cmd(&["RENEW", key, &reader.token, "PX", "30000"]), Reply::Int(0), "{key}");
        assert_eq!(one.cmd(&["LOCKGATE", "UNLOCK", key, "ANY"]), Reply::Int(1), "{key}");
        assert_eq!(other.cmd(&["UNLOCK", key, "r"]), Reply::Int(0), "{key}");
        one.cmd(&["LOCK", key, "PX", "20000", "WAIT", "10000"]).grant();
        assert_eq!(one.cmd(&["UNLOCK", key]), Reply::Int(1), "{key}");
    }
}

#[test]
fn one_cluster_votes_by_the_shard_of_each_lock() {
    let cluster = Cluster::start(3);
    let proxy = before(&[cluster.voter()]).locks("default_ttl: 1500ms").start();
    all_up(&proxy, 1);
    lock_all(&proxy);
    // Session locks on all shards are renewed.
    let mut holder = proxy.client();
    let keys: Vec<String> =
        (0..3).flat_map(|index| [cluster.key(index, "a"), cluster.key(index, "b")]).collect();
    for key in &keys {
        holder.cmd(&["LOCK", key]).grant();
    }
    for (index, key) in keys.iter().enumerate() {
        let stored = cluster.client(index / 2).cmd(&["EXISTS", &format!("lock:{key}")]);
        assert_eq!(stored, Reply::Int(1), "{key}");
    }
    thread::sleep(Duration::from_secs(4));
    let mut other = proxy.client();
    for key in &keys {
        assert_eq!(other.cmd(&["LOCK", key]), Reply::NullArray, "{key}");
    }
    // A waiter is woken by a release through another proxy.
    let beside = before(&[cluster.voter()]).start();
    all_up(&beside, 1);
    let mut waiting = beside.client();
    waiting.send(&crate::support::encode(&["LOCK", &keys[0], "WAIT", "10000"]));
    thread::sleep(Duration::from_millis(500));
    let since = Instant::now();
    assert_eq!(holder.cmd(&["UNLOCK", &keys[0]]), Reply::Int(1));
    assert!(matches!(waiting.reply(), Reply::Array(_)));
    assert!(since.elapsed() < Duration::from_millis(1500));
}

#[test]
fn a_cluster_is_one_of_three_voters() {
    let cluster = Cluster::start(3);
    let mut others = [RedisServer::start(&[]).unwrap(), RedisServer::start(&[]).unwrap()];
    let nodes = [others[0].url(), cluster.voter(), others[1].url()];
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    lock_all(&proxy);
    others[0].kill().unwrap();
    eventually("locks are granted", || {
        matches!(proxy.client().cmd(&["LOCK", "x", "PX", "1000"]), Reply::Array(_))
    });
    lock_all(&proxy);
}

#[test]
#[ignore = "takes long: make long"]
fn three_clusters_make_a_quorum() {
    let clusters = [Cluster::start(1), Cluster::start(2), Cluster::start(1)];
    let nodes: Vec<String> = clusters.iter().map(Cluster::voter).collect();
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    lock_all(&proxy);
}

/// Asks for a lock until it is granted. Returns the time.
fn granted_at(client: &mut Client, key: &str) -> Instant {
    let begun = Instant::now();
    loop {
        let reply = client.cmd(&["LOCK", key, "PX", "1000"]);
        if matches!(reply, Reply::Array(_)) {
            return Instant::now();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{reply:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_shard_that_fails_over_grants_nothing_twice_and_stops_no_other() {
    let mut cluster = Cluster::start(3).node_timeout(2000);
    let proxy = before(&[cluster.voter()]).locks("max_ttl: 10s").locks("default_ttl: 9s").start();
    all_up(&proxy, 1);
    let [lost, kept, free] =
        [(0, "lost"), (1, "kept"), (2, "free")].map(|(index, name)| cluster.key(index, name));
    let mut sessions = proxy.client();
    sessions.cmd(&["LOCK", &kept]).grant();
    // The replica may lack the next lock, as replication is asynchronous.
    let replica = cluster.nodes[3].port();
    Client::connect(replica).cmd(&["CONFIG", "SET", "repl-timeout", "3600"]);
    let mut holder = proxy.client();
    let grant = holder.cmd(&["LOCK", &lost, "PX", "10000"]).grant();
    let until = Instant::now() + Duration::from_millis(grant.validity.unsigned_abs());
    cluster.nodes[0].kill().unwrap();
    let dead = Instant::now();
    let mut other = proxy.client();
    thread::sleep(Duration::from_millis(500));
    // The cluster refuses everything until the replica is promoted; then the other shards go on.
    granted_at(&mut other, &free);
    let others_at = dead.elapsed();
    // The lock may have been replicated. It must not be this copy that prevents a second grant.
    eventually("the replica is promoted", || {
        cluster.text(3, &["INFO", "replication"]).contains("role:master")
    });
    Client::connect(replica).cmd(&["DEL", &format!("lock:{lost}")]);
    let again = granted_at(&mut other, &lost);
    eprintln!("others after {others_at:?}, the lock after {:?}\n{}", again - dead, proxy.log());
    assert!(again >= until, "granted twice: {:?} too early", until - again);
    assert!(others_at < again - dead, "the other shards did not wait");
    assert_eq!(sessions.cmd(&["UNLOCK", &kept]), Reply::Int(1), "it was renewed all the time");
}

#[test]
fn what_is_no_cluster_or_only_a_part_of_one_is_named() {
    let cluster = Cluster::start(1);
    let alone = RedisServer::start(&[]).unwrap();
    let off = format!("{{cluster: ['{}']}}", alone.addr());
    for (node, what) in [
        (off, "cluster support disabled"),
        (cluster.nodes[0].url(), "it is a node of a cluster"),
        (
            cluster.voter().replace("shards: 6", "shards: 6, password: x"),
            "Password authentication failed",
        ),
    ] {
        let proxy = before(std::slice::from_ref(&node)).start();
        eventually(&format!("'{what}' is told: {}", proxy.http("/readyz")), || {
            proxy.http("/readyz").contains(what)
        });
        let refused = proxy.client().cmd(&["LOCK", "k"]);
        assert!(refused.error_text().starts_with("NOQUORUM"), "{node}: {refused:?}");
    }
}

#[test]
fn what_is_given_back_while_its_slot_is_moved_is_free_behind_it() {
    let cluster = Cluster::start(3);
    let proxy = before(&[cluster.voter()]).start();
    all_up(&proxy, 1);
    let key = cluster.key(0, "k");
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", &key, "a", "PX", "60000"]).grant();
    cluster.move_slot(&format!("lock:{key}"), 0, 1, |cluster| {
        let told = holder.cmd(&["UNLOCK", &key, "a"]);
        assert!(told.error_text().contains("(slot moves)"), "{told:?}");
        let stored = cluster.client(1).pipe(&[&["ASKING"], &["EXISTS", &format!("lock:{key}")]]);
        assert_eq!(stored[1], Reply::Int(1), "it is there already");
    });
    let since = Instant::now();
    granted_at(&mut other, &key);
    assert!(since.elapsed() < Duration::from_secs(10), "it was given back where it is now");
}

#[test]
fn a_new_shard_keeps_what_is_moved_to_it_and_waits_before_it_grants() {
    let mut cluster = Cluster::start(3);
    let proxy = before(&[cluster.voter()]).locks("max_ttl: 6s").locks("default_ttl: 4s").start();
    all_up(&proxy, 1);
    let (held, new) = ("{moving}-held", "{moving}-new");
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", held]).grant();
    let Reply::Int(slot) = cluster.client(0).cmd(&["CLUSTER", "KEYSLOT", held]) else { panic!() };
    let from = (0..3).find(|index| {
        let (first, last) = cluster.slots(*index);
        (first..=last).contains(&(slot as usize))
    });
    cluster.nodes.push(join(&cluster.nodes));
    // The slot where its marker will lie: a new shard has it before others come.
    let station = cluster.key_of_slot(slot as usize / 16 * 16);
    cluster.move_slot(&station, from.unwrap(), 6, |_| {});
    cluster.move_slot(held, from.unwrap(), 6, |_| {});
    let mut other = proxy.client();
    let begun = Instant::now();
    eventually("it waits", || {
        other.cmd(&["LOCK", new, "PX", "1000"]).error_text().contains("locks that are still held")
    });
    while begun.elapsed() < Duration::from_secs(8) {
        let reply = other.cmd(&["LOCK", held, "PX", "1000"]);
        assert!(!matches!(reply, Reply::Array(_)), "it is held");
        thread::sleep(Duration::from_millis(100));
    }
    granted_at(&mut other, new);
    assert_eq!(other.cmd(&["LOCK", held]), Reply::NullArray);
    assert_eq!(holder.cmd(&["UNLOCK", held]), Reply::Int(1), "it was never lost");
}

/// The shard still answers, but another master may have been promoted.
#[test]
fn a_proxy_that_hears_of_no_majority_of_the_masters_grants_and_renews_nothing() {
    let cluster = Cluster::start(3).node_timeout(60_000);
    let proxy = before(&[cluster.voter()]).locks("default_ttl: 30s").start();
    all_up(&proxy, 1);
    let (key, other) = (cluster.key(0, "k"), cluster.key(0, "l"));
    let mut client = proxy.client();
    client.cmd(&["LOCK", &key, "a", "PX", "60000"]).grant();
    for index in [1, 2] {
        cluster.nodes[index].freeze().unwrap();
    }
    let reason = "not confirmed by its cluster: 1 of its 3 masters answer";
    eventually("nothing is granted", || {
        client.cmd(&["LOCK", &other, "PX", "1000"]).error_text().contains(reason)
    });
    for command in [&["RENEW", &key, "a", "PX", "50000"][..], &["LOCK", &key, "a", "PX", "5000"]] {
        let reply = client.cmd(command);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{command:?}: {reply:?}");
    }
    assert_eq!(client.cmd(&["UNLOCK", &key, "a"]), Reply::Int(1), "what is given back is");
    // Nor does a proxy that starts now and knows nothing of before.
    let started = before(&[cluster.voter()]).start();
    eventually("it tells why", || {
        let refused = started.client().cmd(&["LOCK", &other, "PX", "1000"]);
        refused.error_text().contains("1 of its 3 masters answer")
    });
    for index in [1, 2] {
        cluster.nodes[index].thaw().unwrap();
    }
    eventually("locks are granted again", || {
        matches!(client.cmd(&["LOCK", &other, "PX", "1000"]), Reply::Array(_))
    });
}

#[test]
fn what_is_held_stays_held_while_its_slot_is_moved() {
    let cluster = Cluster::start(3);
    let proxy = before(&[cluster.voter()]).locks("default_ttl: 3s").start();
    all_up(&proxy, 1);
    let keys: Vec<String> = (0..3).map(|number| cluster.key(0, &format!("k{number}"))).collect();
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    for key in &keys {
        holder.cmd(&["LOCK", key]).grant();
    }
    for key in &keys {
        cluster.move_slot(&format!("lock:{key}"), 0, 1, |_| {
            let reply = other.cmd(&["LOCK", key, "PX", "1000"]);
            let is_told =
                matches!(&reply, Reply::NullArray) || reply.error_text().contains("slot moves");
            assert!(is_told, "{reply:?}");
        });
        let stored = cluster.client(1).cmd(&["EXISTS", &format!("lock:{key}")]);
        assert_eq!(stored, Reply::Int(1), "it has moved");
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        for key in &keys {
            let reply = other.cmd(&["LOCK", key, "PX", "1000"]);
            assert!(!matches!(reply, Reply::Array(_)), "{key} is held");
        }
        thread::sleep(Duration::from_millis(100));
    }
    for key in &keys {
        assert_eq!(holder.cmd(&["UNLOCK", key]), Reply::Int(1), "{key} was never lost");
        other.cmd(&["LOCK", key, "PX", "1000"]).grant();
    }
}

/// While a lock's keys are on both sides, its scripts are answered TRYAGAIN, then ASK, and in the end MOVED.
#[test]
fn a_lock_whose_keys_lie_on_both_sides_is_nobody_elses_and_its_move_is_told() {
    let cluster = Cluster::start(3);
    let proxy = before(&[cluster.voter()]).start();
    let beside = before(&[cluster.voter()]).start();
    all_up(&proxy, 1);
    all_up(&beside, 1);
    let (key, given_back) = (cluster.key(0, "k"), cluster.key(0, "l"));
    let (mut holder, mut other) = (proxy.client(), beside.client());
    for key in [&key, &given_back] {
        holder.cmd(&["LOCK", key, "a", "PX", "60000"]).grant();
    }
    let all = [
        &["LOCK", &key, "PX", "1000"][..],
        &["RENEW", &key, "a", "PX", "50000"],
        &["LOCK.ATTACH", &key, "a"],
        &["UNLOCK", &key, "b"],
    ];
    for key in [&key, &given_back] {
        let locked = format!("lock:{key}");
        let slot = cluster.slot(&locked);
        cluster.begin_move(&slot, 0, 1);
        cluster.migrate(&locked, 0, 1);
        let rest = cluster.client(0).cmd(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
        let Reply::Array(rest) = rest else { panic!("{rest:?}") };
        let rest: Vec<String> = rest.iter().map(text).collect();
        let asked = cluster.client(0).cmd(&["EXISTS", &locked, &rest[0]]);
        assert!(asked.error_text().starts_with("TRYAGAIN"), "{asked:?}");
        if *key == given_back {
            let told = holder.cmd(&["UNLOCK", key, "a"]);
            assert!(told.error_text().contains("(slot moves)"), "{told:?}");
        } else {
            for words in all {
                let told = other.cmd(words);
                assert!(told.error_text().contains("(slot moves)"), "{words:?}: {told:?}");
            }
        }
        rest.iter().for_each(|key| cluster.migrate(key, 0, 1));
        let asked = cluster.client(0).cmd(&["EXISTS", &locked]);
        assert!(asked.error_text().starts_with("ASK"), "{asked:?}");
        if *key != given_back {
            for words in all {
                let told = other.cmd(words);
                assert!(told.error_text().contains("(slot moves)"), "{words:?}: {told:?}");
            }
        }
        cluster.move_slot(&locked, 0, 1, |_| {});
        let asked = cluster.client(0).cmd(&["EXISTS", &locked]);
        assert!(asked.error_text().starts_with("MOVED"), "{asked:?}");
    }
    // The map may be old once more, or the shard that got the slot is not confirmed yet.
    eventually("it is known where the lock is", || match other.cmd(&["LOCK", &key]) {
        Reply::NullArray => true,
        told => {
            let why = told.error_text();
            let is_known = ["(slot moves)", "(not confirmed by its cluster"];
            assert!(is_known.iter().any(|words| why.contains(words)), "{told:?}");
            false
        }
    });
    granted_at(&mut other, &given_back);
    assert_eq!(holder.cmd(&["UNLOCK", &key, "a"]), Reply::Int(1));
}

#[test]
#[ignore = "takes long: make long"]
fn a_slot_that_no_shard_has_stops_its_own_locks_or_all_and_is_told() {
    for (coverage, stops_all) in [("no", false), ("yes", true)] {
        let cluster = Cluster::start(3).node_timeout(2000);
        cluster.set("cluster-require-full-coverage", coverage);
        let proxy = before(&[cluster.voter()]).locks("default_ttl: 12s").locks("max_ttl: 12s");
        let proxy = proxy.start();
        all_up(&proxy, 1);
        let (lost, same_shard, free) =
            (cluster.key(0, "lost"), cluster.key(0, "same"), cluster.key(1, "free"));
        let (mut holder, mut client) = (proxy.client(), proxy.client());
        holder.cmd(&["LOCK", &same_shard]).grant();
        let slot = cluster.slot(&format!("lock:{lost}"));
        cluster.uncover(&slot);
        let is_told = |reply: &Reply| reply.error_text().contains("(no shard serves its slot)");
        eventually("the lock is refused", || is_told(&client.cmd(&["LOCK", &lost])));
        let what = "1 of 16384 slots have no master";
        eventually("it is told", || proxy.http("/readyz").contains(what));
        if stops_all {
            eventually("all are refused", || is_told(&client.cmd(&["LOCK", &free])));
            eventually("it is not ready", || {
                is_told(&client.cmd(&["LOCK", &free]))
                    && proxy.http("/readyz").starts_with("HTTP/1.1 503")
            });
        } else {
            for _ in 0..20 {
                client.cmd(&["LOCK", &free, "PX", "1000"]).grant();
                assert_eq!(client.cmd(&["UNLOCK", &free]), Reply::Int(1));
                assert_eq!(client.cmd(&["LOCK", &same_shard]), Reply::NullArray);
            }
            assert!(proxy.http("/readyz").starts_with("HTTP/1.1 200"), "{}", proxy.http("/readyz"));
        }
        let covered = cluster.client(0).cmd(&["CLUSTER", "ADDSLOTS", &slot]);
        assert_eq!(covered, Reply::ok());
        // The slot may have been elsewhere, so it is in doubt at first, unless a note says otherwise.
        granted_at(&mut client, &lost);
        granted_at(&mut client, &free);
        assert!(!proxy.http("/readyz").contains(what));
        assert_eq!(holder.cmd(&["UNLOCK", &same_shard]), Reply::Int(1), "it was never lost");
    }
}

#[test]
#[ignore = "takes long: make long"]
fn a_shard_that_is_merged_away_leaves_its_seat_to_a_later_one() {
    let mut cluster = Cluster::start(3).node_timeout(2000);
    // As many seats as shards.
    let voter = cluster.data(", shards: 3");
    let proxy = before(&[voter]).locks("max_ttl: 6s").locks("default_ttl: 4s").start();
    all_up(&proxy, 1);
    let key = cluster.key(2, "k");
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", &key]).grant();
    cluster.give_all(2, 1);
    granted_at(&mut other, &cluster.key(2, "free"));
    // The proxy looks twice.
    thread::sleep(Duration::from_secs(3));
    assert!(!proxy.log().contains("in doubt"), "{}", proxy.log());
    // Once the grants of that shard have run out, the others agree upon a failover without it.
    let promoted = cluster.client(3).cmd(&["CLUSTER", "FAILOVER"]);
    assert_eq!(promoted, Reply::ok());
    let filled = |seats: u8| proxy.log().matches(&format!("\"filled\":{seats}")).count();
    let lost = cluster.key(0, "lost");
    eventually("the promoted one waits", || {
        other.cmd(&["LOCK", &lost]).error_text().contains("locks that are still held")
    });
    granted_at(&mut other, &lost);
    assert_eq!((filled(2), filled(3)), (1, 1), "its seat is blank");
    let new = join(&cluster.nodes);
    cluster.nodes.push(new);
    // First a slot for its marker.
    let (first, _) = cluster.slots(2);
    let station = cluster.key_of_slot(first.div_ceil(16) * 16);
    let mine = cluster.key(2, "mine");
    cluster.move_slot(&station, 1, 6, |_| {});
    cluster.move_slot(&mine, 1, 6, |_| {});
    granted_at(&mut other, &mine);
    assert_eq!(filled(3), 2, "it has the seat");
    assert_eq!(holder.cmd(&["UNLOCK", &key]), Reply::Int(1), "it was never lost");
}

/// Promotes a shard's replica that lacks these locks. Returns the time until which all of them are held.
fn promote_without(cluster: &mut Cluster, proxy: &Proxy, keys: &[&str]) -> Instant {
    // Replication stands still.
    let replica = cluster.nodes[3].port();
    let nobody = ["CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing"];
    Client::connect(replica).cmd(&nobody);
    cluster.client(0).cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    let mut holder = proxy.client();
    let held = keys.iter().map(|key| {
        let grant = holder.cmd(&["LOCK", key, "PX", "20000"]).grant();
        Instant::now() + Duration::from_millis(grant.validity.unsigned_abs())
    });
    let until = held.min().unwrap();
    cluster.nodes[0].kill().unwrap();
    eventually("the replica is promoted", || {
        cluster.text(3, &["INFO", "replication"]).contains("role:master")
            && cluster.text(1, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    eventually("it waits", || {
        proxy.client().cmd(&["LOCK", keys[0], "PX", "1000"]).error_text().contains("still held")
    });
    until
}

/// The replica lacks the locks, and waits; the shard to which their slots are moved need not wait. One slot is moved
/// while a proxy sees it, one while no proxy runs.
#[test]
#[ignore = "takes long: make long"]
fn a_slot_moved_away_from_a_promoted_shard_is_not_granted_before_its_wait_is_over() {
    let mut cluster = Cluster::start(3).node_timeout(2000);
    let voter = cluster.voter();
    let start = || before(std::slice::from_ref(&voter)).locks("max_ttl: 20s").start();
    let proxy = start();
    all_up(&proxy, 1);
    let [seen, unseen, there] =
        [cluster.key(0, "seen"), cluster.key(0, "unseen"), cluster.key(1, "there")];
    let until = promote_without(&mut cluster, &proxy, &[&seen, &unseen]);
    cluster.move_slot(&format!("lock:{seen}"), 3, 1, |_| {});
    eventually("the proxy has noted which slots are not in doubt", || {
        let info = cluster.text(1, &["CLUSTER", "INFO"]);
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_my_epoch:")).unwrap();
        let Reply::Array(keys) = cluster.client(1).cmd(&["KEYS", "lockgate:custody*"]) else {
            panic!("no keys")
        };
        let note = cluster.text(1, &["GET", &text(&keys[0])]);
        note.split(' ').nth(1) == Some(epoch.trim())
    });
    drop(proxy);
    cluster.move_slot(&format!("lock:{unseen}"), 3, 1, |_| {});
    let late = start();
    eventually("others are granted by the shard", || {
        matches!(late.client().cmd(&["LOCK", &there, "PX", "1000"]), Reply::Array(_))
    });
    assert!(Instant::now() < until, "that was to be seen while the locks are held");
    let is_told = || late.http("/readyz").contains("2 slots are in doubt");
    eventually("it is told", is_told);
    for key in [&seen, &unseen] {
        let who = late.client().cmd(&["LOCKGATE", "LOCK", key]);
        assert!(
            is_told() && who.error_text().contains("quarantined"),
            "{key} is not free: {who:?}"
        );
    }
    for key in [&seen, &unseen] {
        let again = granted_at(&mut late.client(), key);
        assert!(again >= until, "{key} granted twice: {:?} too early", until - again);
    }
    eventually("it is over", || !is_told());
}

/// Where the cluster is the only voter, its other shards need no consent.
#[test]
#[ignore = "takes long: make long"]
fn a_proxy_that_is_started_while_a_shard_is_away_or_waits_grants_on_the_others() {
    let mut cluster = Cluster::start(3).node_timeout(2000);
    let voter = cluster.voter();
    let start = || before(std::slice::from_ref(&voter)).locks("max_ttl: 20s").start();
    let proxy = start();
    all_up(&proxy, 1);
    let (lost, there) = (cluster.key(0, "lost"), cluster.key(1, "there"));
    let until = promote_without(&mut cluster, &proxy, &[&lost]);
    drop(proxy);
    let grants = |late: &Proxy, key: &str| {
        matches!(late.client().cmd(&["LOCK", key, "PX", "1000"]), Reply::Array(_))
    };
    let late = start();
    eventually("others are granted while a shard waits", || grants(&late, &there));
    assert!(Instant::now() < until, "that was to be seen while the lock is held");
    let again = granted_at(&mut late.client(), &lost);
    assert!(again >= until, "granted twice: {:?} too early", until - again);
    drop(late);
    // The cluster goes on without the shard.
    for node in [1, 2, 4, 5] {
        cluster.client(node).cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    cluster.nodes[3].kill().unwrap();
    let late = start();
    eventually("others are granted while a shard is away", || grants(&late, &there));
}
