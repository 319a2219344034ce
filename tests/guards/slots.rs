//! Guards at the fronts of a Redis Cluster: a fence lies in the slot of what it protects, wherever that slot moves.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::account::SCRIPT;
use crate::support::{
    Client, LIMIT, Proxy, Reply, Setup,
    cluster::{Cluster, text},
    eventually,
    relay::Relay,
};

/// Keys with a hash tag, and keys with the names of their locks.
const RULES: &str = "  rules:\n    - {keys: 'account:{*}:*', lock: 'account:{{1}}'}\n    - {keys: \
                     'plain:*', lock: 'plain:{1}'}";

fn guards(others: &str) -> String {
    format!("guards:\n{others}{RULES}")
}

fn proxy(cluster: &Cluster) -> Setup {
    cluster.proxy("").nodes(3).top(&guards(""))
}

/// Writes a key in this way: by the proxy's script, in a transaction of the proxy, or in one of the client. Returns
/// an error if a reply is one, else the last reply.
fn write(client: &mut Client, way: &str, key: &str, value: &str) -> Reply {
    let replies = match way {
        "short" => client.pipe(&[&["SET", key, value]]),
        "long" => client.pipe(&[&["EVAL", SCRIPT, "1", key, value]]),
        _ => client.pipe(&[&["MULTI"], &["SET", key, value], &["EXEC"]]),
    };
    let error = replies.iter().find(|reply| matches!(reply, Reply::Error(_)));
    error.or(replies.last()).cloned().expect("a reply")
}

const WAYS: [&str; 3] = ["short", "long", "transaction"];

fn is_written(reply: &Reply) -> bool {
    [Reply::ok(), Reply::Array(vec![Reply::ok()])].contains(reply)
}

/// Returns an account on the master with this number: a key, and its lock.
fn account(cluster: &Cluster, master: usize, name: &str) -> (String, String) {
    let tag = cluster.key(master, name);
    (format!("account:{tag}:balance"), format!("account:{tag}"))
}

fn slot(cluster: &Cluster, key: &str) -> i64 {
    match cluster.client(0).cmd(&["CLUSTER", "KEYSLOT", key]) {
        Reply::Int(slot) => slot,
        other => panic!("{other:?}"),
    }
}

/// Returns the key of a lock's fence on a node, and the fence.
fn fence(cluster: &Cluster, node: usize, lock: &str) -> Option<(String, String)> {
    let mut client = cluster.client(node);
    let Reply::Array(keys) = client.cmd(&["KEYS", "lockgate:guard:*"]) else { return None };
    let key = keys.iter().map(text).find(|key| key.ends_with(&format!("}}:lock:{lock}")))?;
    let fence = text(&client.cmd(&["GET", &key]));
    Some((key, fence))
}

/// Deletes a lock on the lock nodes without telling the proxy.
fn take_away(proxy: &Proxy, lock: &str) {
    for node in 0..3 {
        proxy.node_client(node).cmd(&["DEL", &format!("lock:{lock}")]);
    }
}

/// Whether some lock node has the lock.
fn is_taken(proxy: &Proxy, lock: &str) -> bool {
    proxy.on_nodes(&format!("lock:{lock}")).iter().any(|value| *value != Reply::NullBulk)
}

/// Tells a node the new state of a slot.
fn set_slot(cluster: &Cluster, node: usize, slot: i64, words: &[&str]) {
    let slot = slot.to_string();
    let words = [&["CLUSTER", "SETSLOT", &slot], words].concat();
    assert_eq!(cluster.client(node).cmd(&words), Reply::ok(), "{words:?}");
}

/// Begins to move a slot from one master to another.
fn begin_to_move(cluster: &Cluster, slot: i64, from: usize, to: usize) {
    set_slot(cluster, to, slot, &["IMPORTING", &cluster.id(from)]);
    set_slot(cluster, from, slot, &["MIGRATING", &cluster.id(to)]);
}

/// Moves one key.
fn carry(cluster: &Cluster, key: &str, from: usize, to: usize) {
    let port = cluster.nodes[to].port().to_string();
    let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
    assert_eq!(cluster.client(from).cmd(&words), Reply::ok(), "{key}");
}

/// Ends the move of a slot.
fn end_to_move(cluster: &Cluster, slot: i64, to: usize) {
    let id = cluster.id(to);
    // A node that has not heard of the largest epoch might take that epoch too, and lose the slot again.
    let epoch = |node: usize, name: &str| {
        let info = cluster.text(node, &["CLUSTER", "INFO"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("the field");
        line.trim().parse::<u64>().expect("a number")
    };
    eventually("all epochs are known there", || {
        let largest = (0..3).map(|node| epoch(node, "cluster_my_epoch:")).max();
        largest <= Some(epoch(to, "cluster_current_epoch:"))
    });
    for node in [to].into_iter().chain((0..3).filter(|node| *node != to)) {
        set_slot(cluster, node, slot, &["NODE", &id]);
    }
}

#[test]
fn a_lock_is_granted_at_the_front_of_its_slot_and_fenced_there() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    let odd = ["plain:x", "plain:a}b", "plain:{x", "plain:{}y", "plain:}{z}", "plain:{t}}:{u"];
    let mut pairs: Vec<(String, String)> =
        odd.iter().map(|key| ((*key).to_owned(), (*key).to_owned())).collect();
    pairs.extend((0..3).map(|master| account(&cluster, master, "a")));
    for (key, lock) in &pairs {
        let slot = slot(&cluster, key);
        let master = (0..3)
            .find(|master| {
                let (first, last) = cluster.slots(*master);
                (first..=last).contains(&(slot as usize))
            })
            .unwrap();
        let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[master]));
        for (index, front) in fronts.iter().enumerate().filter(|(index, _)| *index != master) {
            let mut client = Client::connect(*front);
            let take: [&[&str]; 3] = [
                &["LOCK", lock, "PX", "30000"],
                &["LOCK", lock, "PX", "30000", "WAIT", "1000"],
                &["LOCK.ATTACH", lock, "t"],
            ];
            for words in take {
                assert_eq!(client.cmd(words), moved, "{key} at {index}");
            }
            // A replica serves its master's keys to a client that only reads.
            assert_eq!(client.cmd(&["READONLY"]), Reply::ok());
            assert_eq!(client.cmd(take[0]), moved, "{key} at {index}");
            for way in ["short", "long"] {
                assert_eq!(write(&mut client, way, key, "x"), moved, "{key} {way} at {index}");
            }
            let refused = write(&mut client, "transaction", key, "x");
            assert!(refused.error_text().starts_with("NOTHELD"), "{refused:?}");
        }
        assert!(!is_taken(&proxy, lock), "{lock}");
        let (mut late, mut client) =
            (Client::connect(fronts[master]), Client::connect(fronts[master]));
        let granted = late.cmd(&["LOCK", lock, "PX", "30000"]).grant();
        let (fence_key, told) = fence(&cluster, master, lock).expect("a fence");
        assert_eq!((self::slot(&cluster, &fence_key), told), (slot, granted.fence.to_string()));
        for way in WAYS {
            let refused = write(&mut client, way, key, "x");
            assert!(refused.error_text().starts_with("NOTHELD"), "{key} {way}: {refused:?}");
            let written = write(&mut late, way, key, way);
            assert!(is_written(&written), "{key} {way}: {written:?}");
        }
        take_away(&proxy, lock);
        client.cmd(&["LOCK", lock, "PX", "30000"]).grant();
        for way in WAYS {
            let refused = write(&mut late, way, key, "late");
            assert!(matches!(refused, Reply::Error(_)), "{key} {way}: {refused:?}");
        }
        assert_eq!(client.cmd(&["GET", key]), Reply::bulk("transaction"));
    }
    // Locks that no guard needs are granted anywhere.
    for (index, front) in fronts.iter().enumerate() {
        Client::connect(*front).cmd(&["LOCK", &format!("free-{index}"), "PX", "30000"]).grant();
    }
    // Between these braces is no tag, so the key and its lock are in different slots.
    let mut client = Client::connect(fronts[0]);
    let refused = write(&mut client, "short", "account:{}:1", "x");
    assert!(refused.error_text().starts_with("CROSSSLOT 'account:{}:1'"), "{refused:?}");
}

#[test]
fn an_operator_frees_a_lock_of_whichever_slot_at_any_front_or_at_the_admin_address() {
    const TOKEN: &str = "0123456789abcdef-secret";
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).admin_token(TOKEN).start();
    let fronts = cluster.fronts(&proxy);
    let headers = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
    let mut operator = Client::connect(fronts[0]);
    for (round, over_http) in [false, true].into_iter().enumerate() {
        for (master, front) in fronts.iter().take(3).enumerate() {
            let (key, lock) = account(&cluster, master, &format!("a{round}"));
            let mut holder = Client::connect(*front);
            holder.cmd(&["LOCK", &lock, "PX", "60000"]).grant();
            assert!(is_written(&write(&mut holder, "short", &key, "1")));
            let (_, before) = fence(&cluster, master, &lock).unwrap();
            if over_http {
                let body = format!(r#"{{"key": "{lock}", "any": true}}"#);
                let answer = proxy.http_post("/api/locks/unlock", &headers, &body);
                assert!(answer.ends_with(r#"{"freed":true}"#), "{answer}");
            } else {
                let freed = operator.cmd(&["LOCKGATE", "UNLOCK", &lock, "ANY"]);
                assert_eq!(freed, Reply::Int(1), "{lock}");
            }
            let (_, after) = fence(&cluster, master, &lock).unwrap();
            let [before, after] = [before, after].map(|fence| fence.parse::<u64>().unwrap());
            assert!(after > before, "{before} {after}");
            let refused = write(&mut holder, WAYS[master], &key, "2");
            assert!(refused.error_text().starts_with("FENCED"), "{refused:?}");
            assert!(!is_taken(&proxy, &lock));
        }
    }

    // While the slot moves, no node can be told, and the operator's client is not led past the proxy.
    let (_, lock) = account(&cluster, 0, "moving");
    Client::connect(fronts[0]).cmd(&["LOCK", &lock, "PX", "60000"]).grant();
    let (fence_key, _) = fence(&cluster, 0, &lock).unwrap();
    begin_to_move(&cluster, slot(&cluster, &lock), 0, 1);
    carry(&cluster, &fence_key, 0, 1);
    let refused = operator.cmd(&["LOCKGATE", "UNLOCK", &lock, "ANY"]);
    assert!(refused.error().starts_with("TRYAGAIN the slot may be on its way"), "{refused:?}");
    assert!(is_taken(&proxy, &lock));
}

#[test]
fn locks_of_several_slots_serve_each_their_transactions_and_pipelines() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    let mut client = Client::connect(fronts[0]);
    let accounts: Vec<(String, String)> =
        ["a", "b", "c"].map(|name| account(&cluster, 0, name)).into();
    for (_, lock) in &accounts {
        client.cmd(&["LOCK", lock, "PX", "30000"]).grant();
    }
    let writes: Vec<Vec<&str>> = accounts
        .iter()
        .flat_map(|(key, _)| [vec!["INCR", key], vec!["INCR", key], vec!["APPEND", key, "0"]])
        .collect();
    let replies = client.pipe(&writes.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let expected: Vec<Reply> = (0..3).flat_map(|_| [1, 2, 2].map(Reply::Int)).collect();
    assert_eq!(replies, expected);
    for (key, _) in &accounts {
        assert!(is_written(&write(&mut client, "transaction", key, "x")));
        assert!(is_written(&write(&mut client, "long", key, "x")));
    }
    // As with Redis, all keys of a command are in one slot.
    let [(one, _), (two, _), _] = &accounts[..] else { panic!("three") };
    let refused = client.cmd(&["MSET", one, "1", two, "2"]);
    assert!(refused.error_text().starts_with("CROSSSLOT"), "{refused:?}");
    // One of the slots moves away; under the other locks, writes go on as before.
    let (gone, lock) = &accounts[2];
    let slot = slot(&cluster, gone);
    begin_to_move(&cluster, slot, 0, 1);
    carry(&cluster, gone, 0, 1);
    carry(&cluster, &fence(&cluster, 0, lock).unwrap().0, 0, 1);
    end_to_move(&cluster, slot, 1);
    assert!(is_written(&write(&mut client, "transaction", one, "y")));
    let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[1]));
    for way in WAYS {
        assert_eq!(write(&mut client, way, gone, "y"), moved, "{way}");
    }
    assert!(is_written(&write(&mut client, "transaction", two, "y")));
}

#[test]
fn a_slot_that_moves_carries_its_fences_and_nobody_writes_past_them() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    for way in WAYS {
        let (key, lock) = &account(&cluster, 0, way);
        let slot = slot(&cluster, key);
        let lease = &["LOCK", lock, "mine", "PX", "30000"];
        let mut holder = Client::connect(fronts[0]);
        let first = holder.cmd(lease).grant();
        assert!(is_written(&write(&mut holder, way, key, "early")));
        let other = &key.replace("balance", "other");
        assert!(is_written(&write(&mut holder, way, other, "early")));
        begin_to_move(&cluster, slot, 0, 1);
        // The key and the fence are both still there.
        assert!(is_written(&write(&mut holder, way, key, "still")));
        // The key has moved, the fence has not.
        carry(&cluster, other, 0, 1);
        let is_refused = |reply: &Reply| reply.error_text().starts_with("TRYAGAIN");
        let refused = write(&mut holder, way, other, "between");
        // In a transaction Redis itself refuses the write, and EXEC.
        let is_asked = refused == Reply::Error(format!("ASK {slot} 127.0.0.1:{}", fronts[1]));
        let is_expected = if way == "transaction" { is_asked } else { is_refused(&refused) };
        assert!(is_expected, "{way}: {refused:?}");
        assert!(is_written(&write(&mut holder, way, key, "still")));
        // The fence has moved, the key has not.
        let (fence_key, _) = fence(&cluster, 0, lock).unwrap();
        carry(&cluster, &fence_key, 0, 1);
        let refused = write(&mut holder, way, key, "between");
        assert!(is_refused(&refused), "{way}: {refused:?}");
        take_away(&proxy, lock);
        let refused = Client::connect(fronts[0]).cmd(lease);
        assert!(is_refused(&refused) && !is_taken(&proxy, lock), "{way}: {refused:?}");
        let mut asking = Client::connect(fronts[1]);
        let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[0]));
        let asked =
            asking.pipe(&[&["ASKING"], lease, &["ASKING"], &["SET", key, "x"], &["GET", key]]);
        assert_eq!((&asked[1], &asked[4]), (&moved, &moved), "{way}");
        assert!(is_refused(&asked[3]), "{asked:?}");
        assert!(!is_taken(&proxy, lock));
        assert_eq!(cluster.client(0).cmd(&["GET", key]), Reply::bulk("still"));
        assert_eq!(cluster.client(1).pipe(&[&["ASKING"], &["EXISTS", key]])[1], Reply::Int(0));
        carry(&cluster, key, 0, 1);
        end_to_move(&cluster, slot, 1);
        let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[1]));
        // Both replies are right: MOVED comes from the data node, NOTHELD from the lock nodes while the proxy has not
        // seen the move.
        let elsewhere = write(&mut holder, way, key, "elsewhere");
        let is_lost = elsewhere.error_text().starts_with("NOTHELD");
        assert!(elsewhere == moved || is_lost, "{way}: {elsewhere:?}");
        assert_eq!(fence(&cluster, 1, lock).unwrap().1, first.fence.to_string());
        // The next holder's fence is announced where the slot is now.
        let mut next = Client::connect(fronts[1]);
        let second = next.cmd(&["LOCK", lock, "next", "PX", "30000"]).grant();
        assert!(is_written(&write(&mut next, way, key, "next")));
        // The slot comes back with the fence, so the first holder is late.
        begin_to_move(&cluster, slot, 1, 0);
        for key in [key, other, &fence_key] {
            carry(&cluster, key, 1, 0);
        }
        end_to_move(&cluster, slot, 0);
        let late = write(&mut holder, way, key, "late");
        // NOTHELD comes from the lock nodes, once the proxy has seen that the slot came back.
        let is_late = ["FENCED", "NOTHELD"].iter().any(|word| late.error_text().starts_with(word));
        assert!(is_late, "{way}: {late:?}");
        assert_eq!(holder.cmd(&["GET", key]), Reply::bulk("next"));
        assert_eq!(fence(&cluster, 0, lock).unwrap().1, second.fence.to_string());
        // Where the fence was left behind, the lock nodes are asked.
        let mut again = Client::connect(fronts[0]);
        again.cmd(&["LOCK.ATTACH", lock, "next"]).grant();
        assert!(is_written(&write(&mut again, way, key, "again")));
        cluster.client(0).cmd(&["DEL", &fence_key]);
        let announced = write(&mut again, way, key, "announced");
        assert!(is_written(&announced), "{way}: {announced:?}");
        take_away(&proxy, lock);
        cluster.client(0).cmd(&["DEL", &fence_key]);
        let late = write(&mut again, way, key, "late");
        assert!(late.error_text().starts_with("NOTHELD"), "{way}: {late:?}");
    }
}

#[test]
fn nothing_is_wrong_where_the_nodes_were_not_asked_yet() {
    let cluster = Cluster::start(3);
    let rules = guards("").replace("'}", "', policy: audit}");
    // The first look at the nodes takes some time.
    let way = Relay::to(cluster.nodes[0].port());
    way.delay_replies(Duration::from_millis(100));
    let data = format!("{{cluster: ['127.0.0.1:{}']}}", way.port());
    let proxy = Proxy::with().data_url(&data).fronts(6).nodes(3).top(&rules).start();
    let log = || proxy.log();
    eventually("the commands are known", || log().contains("the data node's commands are known"));
    assert!(!log().contains("cannot read"), "{}", log());
}

#[test]
fn a_clients_transaction_that_is_led_after_a_key_writes_nothing() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    let (key, lock) = &account(&cluster, 0, "a");
    let slot = slot(&cluster, key);
    let mut holder = Client::connect(fronts[0]);
    holder.cmd(&["LOCK", lock, "PX", "30000"]).grant();
    let [first, second] = &["first", "second"].map(|name| key.replace("balance", name));
    for key in [key, first, second] {
        assert!(is_written(&write(&mut holder, "short", key, "early")));
    }
    begin_to_move(&cluster, slot, 0, 1);
    let ask = Reply::Error(format!("ASK {slot} 127.0.0.1:{}", fronts[1]));
    let set = |key: &str| ["SET".to_owned(), key.to_owned(), "late".to_owned()];
    // A key moves before it is written.
    carry(&cluster, first, 0, 1);
    let [one, two] = [set(key), set(first)];
    let [one, two] = [&one, &two].map(|words| words.each_ref().map(String::as_str));
    let replies = holder.pipe(&[&["MULTI"], &one, &two, &["EXEC"]]);
    assert_eq!(replies[..3], [Reply::ok(), Reply::simple("QUEUED"), ask.clone()]);
    assert!(replies[3].error_text().starts_with("EXECABORT"), "{replies:?}");
    assert_eq!(cluster.client(0).cmd(&["GET", key]), Reply::bulk("early"));
    // A key moves while its write is queued.
    let three = set(second);
    let three = three.each_ref().map(String::as_str);
    let replies = holder.pipe(&[&["MULTI"], &three]);
    assert_eq!(replies, [Reply::ok(), Reply::simple("QUEUED")]);
    carry(&cluster, second, 0, 1);
    assert_eq!(holder.cmd(&["EXEC"]), ask);
    // The transaction has ended, and the connection still works.
    assert!(holder.cmd(&["EXEC"]).error_text().starts_with("ERR EXEC without MULTI"));
    assert!(is_written(&write(&mut holder, "transaction", key, "still")));
    // A client that follows the key holds no lock there.
    let mut asking = Client::connect(fronts[1]);
    for other in [first, second] {
        let words = set(other);
        let words = words.each_ref().map(String::as_str);
        let replies = asking.pipe(&[&["ASKING"], &["MULTI"], &words, &["EXEC"]]);
        assert!(replies[2].error_text().starts_with("NOTHELD"), "{replies:?}");
        assert!(replies[3].error_text().starts_with("EXECABORT"), "{replies:?}");
        let there = cluster.client(1).pipe(&[&["ASKING"], &["GET", other]]);
        assert_eq!(there[1], Reply::bulk("early"));
    }
    // Keys that no guard covers are written there as without the proxy, whatever locks the connection has.
    let free = &format!("free:{}", &lock["account:".len()..]);
    let (_, its) = &account(&cluster, 1, "b");
    asking.cmd(&["LOCK", its, "PX", "30000"]).grant();
    for _ in 0..2 {
        let replies = asking.pipe(&[&["ASKING"], &["MULTI"], &["SET", free, "x"], &["EXEC"]]);
        assert_eq!(replies[3], Reply::Array(vec![Reply::ok()]), "{replies:?}");
    }
}

#[test]
fn the_user_of_the_acl_writes_its_own_fences_and_no_others() {
    let cluster = Cluster::start(3);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/moving-data-node.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let keys = page.lines().map(str::trim).find(|line| line.starts_with("~account:*"));
    let keys: Vec<&str> = keys.expect("the keys").split(' ').collect();
    let rights = "on >secret -@all +get +set +eval +evalsha +script|load +watch +unwatch +multi +exec \
                  +discard";
    let words: Vec<&str> =
        ["ACL", "SETUSER", "bank"].into_iter().chain(rights.split(' ')).chain(keys).collect();
    for node in 0..6 {
        assert_eq!(cluster.client(node).cmd(&words), Reply::ok());
    }
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    for (key, lock) in [account(&cluster, 1, "acl"), account(&cluster, 1, "acl2")] {
        let mut client = Client::connect(fronts[1]);
        assert_eq!(client.cmd(&["AUTH", "bank", "secret"]), Reply::ok());
        client.cmd(&["LOCK", &lock, "PX", "30000"]).grant();
        for way in WAYS {
            let written = write(&mut client, way, &key, way);
            assert!(is_written(&written), "{way}: {written:?}");
        }
        // A script that declares no key can write everything that its user may.
        let (own, _) = fence(&cluster, 1, &lock).unwrap();
        for other in
            ["lockgate:guard:{aaaa}:lock:order:1", "lockgate:guard:{a}:lock:x}:lock:account:1"]
        {
            let script = format!("return redis.call('SET', '{other}', '9')");
            let refused = client.cmd(&["EVAL", &script, "0"]);
            assert!(refused.error_text().contains("can't access"), "{refused:?}");
        }
        let script = format!("return redis.call('SET', '{own}', '9')");
        assert_eq!(client.cmd(&["EVAL", &script, "0"]), Reply::ok());
    }
}

/// The program around what docs/moving-data-node.md shows: the lines before, and those behind.
const PROGRAM: (&str, &str) = (
    "import sys, redis\n\
     from redis.cluster import RedisCluster\n\
     cluster = RedisCluster(host='127.0.0.1', port=int(sys.argv[1]))\n",
    "bank.set('account:{7}:balance', 100)\n\
     print(cluster.get('account:{7}:balance').decode())\n\
     # A library that follows -MOVED comes to the front of the lock by itself.\n\
     for front in cluster.get_primaries():\n\
     \x20   told = cluster.execute_command('LOCK', 'account:{8}', 'mine', 'PX', 10000, target_nodes=front)\n\
     \x20   print(told[0].decode() if told else told)\n\
     try:\n\
     \x20   cluster.set('account:{9}:balance', 1)\n\
     except redis.ResponseError as error:\n\
     \x20   print(str(error).split(' ')[0])\n",
);

#[test]
fn redis_py_is_led_to_the_front_of_a_lock() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/moving-data-node.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let shown: String = page
        .lines()
        .skip_while(|line| !line.starts_with("    node = cluster."))
        .take_while(|line| line.starts_with("    "))
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    assert_eq!(shown.lines().count(), 4, "{shown}");
    let program = format!("{}{shown}{}", PROGRAM.0, PROGRAM.1);
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/.venv/bin/python");
    assert!(python.exists(), "{python:?} is missing: run \"make test\", which installs it");
    let run = Command::new("timeout")
        .arg("60")
        .arg(python)
        .args(["-c", &program, &fronts[0].to_string()])
        .output()
        .expect("timeout");
    let said = String::from_utf8_lossy(&run.stdout);
    let error = String::from_utf8_lossy(&run.stderr);
    // The connection that was first has the lock, and the others do not.
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"100"), Some(&"NOTHELD")), "{said}{error}");
    assert_eq!(lines.len(), 5, "{said}{error}");
    assert!(lines[1..4].contains(&"mine"), "{said}{error}");
}

/// Sends a command to the front that has the slot of its key, and repeats it while the slot moves.
fn led(client: &mut Client, fronts: &[u16], words: &[&str]) -> Reply {
    for _ in 0..1000 {
        let reply = client.cmd(words);
        let Reply::Error(error) = &reply else { return reply };
        if let Some(place) = error.strip_prefix("MOVED ") {
            let port: u16 = place.rsplit(':').next().unwrap().parse().unwrap();
            assert!(fronts.contains(&port), "past the fronts: {error}");
            *client = Client::connect(port);
        } else if error.starts_with("TRYAGAIN") {
            thread::sleep(Duration::from_millis(5));
        } else {
            return reply;
        }
    }
    panic!("led in circles by {words:?}");
}

#[test]
#[ignore = "takes long: make long"]
fn no_counter_loses_a_count_while_slots_are_moved_under_it() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    // Accounts in the slots that are moved first.
    let accounts: Vec<(String, String)> = (0..)
        .map(|number| (format!("account:{{{number}}}:balance"), format!("account:{{{number}}}")))
        .filter(|(key, _)| {
            let slot = slot(&cluster, key) as usize;
            (0..2).any(|master| (cluster.slots(master).0..).take(100).any(|other| other == slot))
        })
        .take(6)
        .collect();
    let stop = AtomicBool::new(false);
    let counted: Vec<AtomicCount> = accounts.iter().map(|_| AtomicCount::default()).collect();
    thread::scope(|scope| {
        for worker in 0..3 {
            let (accounts, counted, stop, fronts) = (&accounts, &counted, &stop, &fronts);
            scope.spawn(move || {
                let mut client = Client::connect(fronts[worker % 3]);
                let mut round = worker;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let at = round % accounts.len();
                    let (key, lock) = &accounts[at];
                    let granted =
                        led(&mut client, fronts, &["LOCK", lock, "PX", "10000", "WAIT", "2000"]);
                    if !matches!(granted, Reply::Array(_)) {
                        continue;
                    }
                    let before = match client.cmd(&["GET", key]) {
                        Reply::NullBulk => 0,
                        Reply::Bulk(text) => String::from_utf8(text).unwrap().parse().unwrap(),
                        // The slot has moved meanwhile: start again with LOCK.
                        _ => {
                            client.cmd(&["UNLOCK", lock]);
                            continue;
                        }
                    };
                    let next = (before + 1).to_string();
                    let way = WAYS[round % WAYS.len()];
                    if is_written(&write(&mut client, way, key, &next)) {
                        counted[at].0.fetch_add(1, Ordering::Relaxed);
                    }
                    client.cmd(&["UNLOCK", lock]);
                }
            });
        }
        let node = cluster.nodes[2].port();
        let reshard = |from: usize, to: usize, slots: &str| {
            let run = Command::new("redis-cli")
                .args(["--cluster", "reshard", &format!("127.0.0.1:{node}")])
                .args(["--cluster-from", &cluster.id(from), "--cluster-to", &cluster.id(to)])
                .args(["--cluster-slots", slots, "--cluster-yes"])
                .output()
                .expect("redis-cli");
            run.status.success().then_some(()).ok_or(run.stdout)
        };
        for (from, to, slots) in [(0, 1, "100"), (1, 2, "200"), (2, 0, "200"), (0, 1, "100")] {
            // The nodes may not have heard of the whole previous move yet.
            let begun = Instant::now();
            while let Err(words) = reshard(from, to, slots) {
                if begun.elapsed() > LIMIT {
                    // Otherwise the workers would go on for ever.
                    stop.store(true, Ordering::Relaxed);
                    panic!("{}", String::from_utf8_lossy(&words));
                }
                thread::sleep(Duration::from_millis(200));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut total = 0;
    for ((key, _), count) in accounts.iter().zip(&counted) {
        let count = count.0.load(Ordering::Relaxed);
        let mut client = Client::connect(fronts[0]);
        assert_eq!(led(&mut client, &fronts, &["GET", key]), Reply::bulk(&count.to_string()));
        total += count;
    }
    assert!(total > 30, "{total}");
    assert!(proxy.metric("lockgate_lock_requests_total", "elsewhere") > 0.0);
}

#[derive(Default)]
struct AtomicCount(std::sync::atomic::AtomicU64);

#[test]
#[ignore = "takes long: make long"]
fn a_fence_that_comes_back_as_an_earlier_one_lets_no_late_holder_in() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    for way in WAYS {
        let (key, lock) = &account(&cluster, 0, &format!("e{way}"));
        let slot = slot(&cluster, key);
        let mut late = Client::connect(fronts[0]);
        let first = late.cmd(&["LOCK", lock, "PX", "60000"]).grant();
        assert!(is_written(&write(&mut late, way, key, "early")));
        let (fence_key, _) = fence(&cluster, 0, lock).unwrap();
        let go = |from: usize, to: usize| {
            begin_to_move(&cluster, slot, from, to);
            for key in [key, &fence_key] {
                carry(&cluster, key, from, to);
            }
            end_to_move(&cluster, slot, to);
        };
        go(0, 1);
        take_away(&proxy, lock);
        let mut holder = Client::connect(fronts[1]);
        holder.cmd(&["LOCK", lock, "PX", "60000"]).grant();
        // The proxy looks every two seconds which node has which slots.
        thread::sleep(Duration::from_secs(3));
        // As if that node had been replaced by one that had not heard of the fence.
        let set = cluster.client(1).cmd(&["SET", &fence_key, &first.fence.to_string()]);
        assert_eq!(set, Reply::ok());
        go(1, 0);
        thread::sleep(Duration::from_millis(3500));
        let refused = write(&mut late, way, key, "late");
        assert!(matches!(refused, Reply::Error(_)), "{way}: {refused:?}");
        assert_eq!(Client::connect(fronts[0]).cmd(&["GET", key]), Reply::bulk("early"));
    }
}

/// Promotes a replica by CLUSTER FAILOVER, and waits until all nodes know.
fn promote(cluster: &Cluster, node: usize, others: &[usize]) {
    let id = cluster.id(node);
    let is_known = |other: &usize| {
        let is_master = |line: &str| line.starts_with(&id) && line.contains("master");
        cluster.text(*other, &["CLUSTER", "NODES"]).lines().any(is_master)
    };
    // A node refuses as long as it is still a master.
    eventually("it is promoted", || {
        cluster.client(node).cmd(&["CLUSTER", "FAILOVER", "TAKEOVER"]) == Reply::ok()
    });
    eventually("all know the master", || others.iter().chain([&node]).all(is_known));
}

#[test]
fn a_node_that_was_a_replica_in_between_lets_no_late_holder_in() {
    let cluster = Cluster::start(3);
    let proxy = proxy(&cluster).start();
    let fronts = cluster.fronts(&proxy);
    let (key, lock) = &account(&cluster, 0, "f");
    let mut late = Client::connect(fronts[0]);
    let first = late.cmd(&["LOCK", lock, "PX", "60000"]).grant();
    assert!(is_written(&write(&mut late, "short", key, "early")));
    take_away(&proxy, lock);
    let mut holder = Client::connect(fronts[0]);
    holder.cmd(&["LOCK", lock, "PX", "60000"]).grant();
    promote(&cluster, 3, &[0, 1, 2]);
    let slot = slot(&cluster, key);
    let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[3]));
    for way in WAYS {
        assert_eq!(write(&mut holder, way, key, "elsewhere"), moved, "{way}");
    }
    promote(&cluster, 0, &[1, 2, 3]);
    eventually("it is a master for its clients", || {
        cluster.client(0).cmd(&["SET", key, "promoted"]) == Reply::ok()
    });
    // The proxy looks every second.
    let begun = Instant::now();
    eventually("the proxy has seen it", || {
        proxy.log().matches("its data has another history").count() >= 2
            || begun.elapsed() > Duration::from_secs(5)
    });
    thread::sleep(Duration::from_millis(1500));
    // As if the node had lost the last writes.
    let (fence_key, _) = fence(&cluster, 0, lock).unwrap();
    let set = cluster.client(0).cmd(&["SET", &fence_key, &first.fence.to_string()]);
    assert_eq!(set, Reply::ok());
    for way in WAYS {
        let refused = write(&mut late, way, key, "late");
        assert!(matches!(refused, Reply::Error(_)), "{way}: {refused:?}");
        let written = write(&mut holder, way, key, way);
        assert!(is_written(&written), "{way}: {written:?}");
        let set = cluster.client(0).cmd(&["SET", &fence_key, &first.fence.to_string()]);
        assert_eq!(set, Reply::ok());
    }
}

#[test]
fn a_replica_has_the_fence_before_its_lock_is_told() {
    let cluster = Cluster::start(3);
    let proxy = cluster
        .proxy("")
        .nodes(3)
        .top(&guards("  replicas: 1\n  replica_timeout: 2s\n  wait_at: write\n"))
        .start();
    let fronts = cluster.fronts(&proxy);
    let (key, lock) = &account(&cluster, 1, "r");
    let mut client = Client::connect(fronts[1]);
    let granted = client.cmd(&["LOCK", lock, "PX", "60000"]).grant();
    let (fence_key, _) = fence(&cluster, 1, lock).unwrap();
    let mut replica = cluster.client(4);
    replica.cmd(&["READONLY"]);
    assert_eq!(replica.cmd(&["GET", &fence_key]), Reply::bulk(&granted.fence.to_string()));
    for way in WAYS {
        assert!(is_written(&write(&mut client, way, key, way)));
        assert_eq!(replica.cmd(&["GET", key]), Reply::bulk(way));
    }
    // Redirections name fronts here too.
    let slot = slot(&cluster, key);
    let moving = &["MULTI"];
    assert_eq!(client.cmd(moving), Reply::ok());
    assert_eq!(client.cmd(&["SET", key, "queued"]), Reply::simple("QUEUED"));
    begin_to_move(&cluster, slot, 1, 0);
    carry(&cluster, key, 1, 0);
    carry(&cluster, &fence_key, 1, 0);
    end_to_move(&cluster, slot, 0);
    let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[0]));
    assert_eq!(client.cmd(&["EXEC"]), moved);
    for way in WAYS {
        assert_eq!(write(&mut client, way, key, "elsewhere"), moved, "{way}");
    }
    cluster.nodes[3].freeze().expect("stopped");
    let refused = Client::connect(fronts[0]).cmd(&["LOCK", "account:{x}", "PX", "60000"]);
    let (_, other) = account(&cluster, 0, "other");
    let refused_here = Client::connect(fronts[0]).cmd(&["LOCK", &other, "PX", "60000"]);
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    assert!(refused_here.error_text().starts_with("NOREPLICAS"), "{refused_here:?}");
}

#[test]
fn a_way_past_the_fronts_keeps_the_proxy_from_starting() {
    let cluster = Cluster::start(3);
    let data = cluster.data(", announce: off");
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = format!(
        "listen: 127.0.0.1:1-6\nadmin: off\ndata: {data}\nlocks: {{nodes: 'redis://127.0.0.1:9'}}\n{}\n",
        guards("")
    );
    std::fs::write(file.path(), config).unwrap();
    let run = |words: &[&str]| {
        let mut lockgate = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let lockgate = lockgate.args(words).arg(file.path());
        let lockgate = lockgate.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = lockgate.spawn().expect("lockgate");
        let begun = Instant::now();
        while child.try_wait().expect("status").is_none() {
            if begun.elapsed() > Duration::from_secs(20) {
                child.kill().expect("killed");
            }
            thread::sleep(Duration::from_millis(50));
        }
        let output = child.wait_with_output().expect("what it said");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    let (is_well, said) = run(&["--config"]);
    assert!(!is_well && said.contains("guards could be evaded"), "{said}");
    assert!(said.contains("announces no front"), "{said}");
    let (is_well, said) = run(&["doctor"]);
    assert!(!is_well && said.contains("!! the node"), "{said}");
    assert!(said.contains("announces no front"), "{said}");
    // Nodes that are seen only later cannot lead clients past the proxy either.
    for node in &cluster.nodes {
        node.freeze().expect("stopped");
    }
    let proxy = cluster.proxy(", announce: off").nodes(3).top(&guards("")).start();
    for node in &cluster.nodes {
        node.thaw().expect("going on");
    }
    let fronts = cluster.fronts(&proxy);
    eventually("it is told", || proxy.metric("lockgate_cluster_fault", "past") > 0.0);
    let mut client = Client::connect(fronts[0]);
    let led = client.cmd(&["GET", &cluster.key(1, "k")]);
    assert!(led.error_text().starts_with("TRYAGAIN the proxy has no front"), "{led:?}");
    assert_eq!(client.cmd(&["CLUSTER", "SLOTS"]), Reply::Array(Vec::new()));
}
