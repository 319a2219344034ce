//! Lock idioms of existing libraries on keys whose rule is enforced: the lock nodes decide, the data node sees
//! nothing of them, and the replies are those of Redis.

use std::{thread, time::Duration};

use crate::support::{Client, Proxy, Reply, encode, eventually};

const RULES: &str = "adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: enforce\n  - keys: \
                     'seen:*'\n    mode: audit";
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
/// redis-py's scripts, by their digests.
const REDIS_PY_RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const REDIS_PY_EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
/// aioredlock's scripts, which tell an absent key from another's.
const AIOREDLOCK_LOCK: &str = "c75a9bf1538efcdb1f383acc3e273c5089d57e58";
const AIOREDLOCK_UNLOCK: &str = "241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5";

fn enforced() -> Proxy {
    Proxy::with().nodes(3).top(RULES).start()
}

/// Starts a proxy with a rule for the keys `lock:*` with these options.
fn enforced_with(options: &str) -> Proxy {
    let rule =
        format!("adopt:\n  - keys: 'lock:*'\n    lock: '{{1}}'\n    mode: enforce\n    {options}");
    Proxy::with().nodes(3).top(&rule).start()
}

fn data(proxy: &mut Proxy) -> Client {
    Client::connect(proxy.data().port())
}

#[test]
fn replies_are_those_of_redis() {
    let mut proxy = enforced();
    let mut redis = data(&mut proxy);
    for version in ["2", "3"] {
        let mut client = proxy.client();
        for one in [&mut client, &mut redis] {
            one.cmd(&["HELLO", version]);
        }
        // Redis itself carries out the same commands on a key that no rule covers.
        for words in [
            &["GET", "K"][..],
            &["EXISTS", "K"],
            &["TTL", "K"],
            &["PTTL", "K"],
            &["TYPE", "K"],
            &["STRLEN", "K"],
            &["DEL", "K"],
            &["EXPIRE", "K", "10"],
            &["EVAL", RELEASE, "1", "K", "t"],
            &["EVAL", RELEASE, "1", "K", ""],
            &["EVAL", EXTEND, "1", "K", "t", "10000"],
            &["SET", "K", "t", "XX", "PX", "10000"],
            &["SET", "K", "t", "NX", "PX", "20000"],
            &["SET", "K", "t", "NX", "PX", "20000"],
            &["set", "K", "u", "px", "20000", "nx"],
            &["GET", "K"],
            &["EXISTS", "K"],
            &["TTL", "K"],
            &["TYPE", "K"],
            &["STRLEN", "K"],
            &["EVAL", RELEASE, "1", "K", "u"],
            &["EVAL", RELEASE, "1", "K", ""],
            &["EVAL", EXTEND, "1", "K", "u", "10000"],
            &["EVAL", EXTEND, "1", "K", "t", "10000"],
            &["TTL", "K"],
            &["SET", "K", "t", "XX", "EX", "30"],
            &["TTL", "K"],
            &["EXPIRE", "K", "15"],
            &["TTL", "K"],
            &["PEXPIRE", "K", "25000"],
            &["TTL", "K"],
            &["EVAL", RELEASE, "1", "K", "t"],
            &["EVAL", RELEASE, "1", "K", "t"],
            &["SET", "K", "with\0zero\r\n", "NX", "EX", "10"],
            &["GET", "K"],
            &["UNLINK", "K"],
            &["EXISTS", "K"],
            &["SET", "K", "t", "NX", "EX", "10"],
            &["PEXPIRE", "K", "-1"],
            &["EXISTS", "K"],
            &["SET", "K", "t", "NX", "EX", "10"],
            &["EVAL", EXTEND, "1", "K", "t", "0"],
            &["EXISTS", "K"],
            &["SET", "K", "t", "NX", "XX"],
            // Programs that free by DEL give their locks no value.
            &["SET", "K", "", "NX", "EX", "20"],
            &["SET", "K", "", "NX", "EX", "20"],
            &["SET", "K", "t", "NX", "EX", "20"],
            &["GET", "K"],
            &["STRLEN", "K"],
            &["EXISTS", "K"],
            &["TYPE", "K"],
            &["EVAL", RELEASE, "1", "K", "t"],
            &["EVAL", EXTEND, "1", "K", "", "10000"],
            &["SET", "K", "", "XX", "EX", "30"],
            &["TTL", "K"],
            &["EVAL", RELEASE, "1", "K", ""],
            &["EVAL", RELEASE, "1", "K", ""],
            &["SET", "K", "", "NX", "EX", "20"],
            &["EXPIRE", "K", "15"],
            &["DEL", "K"],
            &["GET", "K"],
        ] {
            let with = |key: &str| -> Vec<String> {
                words.iter().map(|word| if *word == "K" { key } else { word }.to_owned()).collect()
            };
            let [here, there] = [with("lock:job"), with("other:job")];
            let words = |words: &[String]| -> Vec<u8> {
                encode(&words.iter().map(String::as_str).collect::<Vec<_>>())
            };
            client.send(&words(&here));
            redis.send(&words(&there));
            let (said, expected) = (client.reply(), redis.reply());
            assert_eq!(said, expected, "{here:?}");
            // Nothing of it has reached the data node.
            assert_eq!(redis.cmd(&["EXISTS", "lock:job"]), Reply::Int(0), "{here:?}");
        }
    }
}

#[test]
fn scripts_that_a_client_has_not_shown_are_asked_for() {
    let proxy = enforced();
    let mut client = proxy.client();
    client.cmd(&["SET", "lock:job", "t", "NX", "PX", "20000"]);
    // Scripts of known libraries need no body.
    assert_eq!(client.cmd(&["EVALSHA", REDIS_PY_RELEASE, "1", "lock:job", "u"]), Reply::Int(0));
    let extend = ["EVALSHA", REDIS_PY_EXTEND, "1", "lock:job", "t", "10000"];
    assert_eq!(client.cmd(&[&extend[..], &["0"]].concat()), Reply::Int(1));
    let Reply::Int(left) = client.cmd(&["PTTL", "lock:job"]) else { panic!() };
    assert!((28_000..=30_000).contains(&left), "{left}");
    assert_eq!(client.cmd(&[&extend[..], &["1"]].concat()), Reply::Int(1));
    let Reply::Int(left) = client.cmd(&["PTTL", "lock:job"]) else { panic!() };
    assert!((9_000..=10_000).contains(&left), "{left}");
    assert_eq!(client.cmd(&["EVALSHA", REDIS_PY_RELEASE, "1", "lock:job", "t"]), Reply::Int(1));
    // Any other script is asked for, once.
    let body = RELEASE.replace("get", "GET");
    let sha = "0123456789012345678901234567890123456789";
    let refused = client.cmd(&["EVALSHA", sha, "1", "lock:job", "t"]);
    assert_eq!(refused.error(), "NOSCRIPT No matching script. Please use EVAL.");
    let Reply::Bulk(sha) = client.cmd(&["SCRIPT", "LOAD", &body]) else { panic!() };
    let sha = String::from_utf8(sha).unwrap();
    assert_eq!(client.cmd(&["EVALSHA", &sha, "1", "lock:job", "t"]), Reply::Int(0));
    let unknown = client.cmd(&["EVAL", "return 1", "1", "lock:job"]);
    let expected = "ERR 'lock:job' is an adopted lock: the script is none that is known (LOCKGATE \
                    ADOPTED)";
    assert_eq!(unknown.error(), expected);
}

#[test]
fn a_library_that_takes_again_what_it_has_is_told_what_it_expects() {
    let proxy = enforced();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let lock = |client: &mut Client, token: &str| {
        client.cmd(&["EVALSHA", AIOREDLOCK_LOCK, "1", "lock:job", token, "20000"])
    };
    let unlock = |client: &mut Client, token: &str| {
        client.cmd(&["EVALSHA", AIOREDLOCK_UNLOCK, "1", "lock:job", token])
    };
    assert_eq!(unlock(&mut a, "a"), Reply::ok());
    assert_eq!(lock(&mut a, "a"), Reply::ok());
    assert_eq!(lock(&mut b, "a"), Reply::ok(), "from any connection");
    assert_eq!(lock(&mut b, "b").error(), "ERR ERROR");
    assert_eq!(unlock(&mut b, "b").error(), "ERR ERROR");
    assert_eq!(unlock(&mut b, "a"), Reply::Int(1));
    assert_eq!(lock(&mut b, "b"), Reply::ok());
}

#[test]
fn three_ways_in_are_one_lock() {
    let proxy = enforced();
    let (mut old, mut new) = (proxy.client(), proxy.client());
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    assert_eq!(old.cmd(&take), Reply::ok());
    assert_eq!(new.cmd(&["LOCK", "job", "PX", "1000"]), Reply::NullArray);
    assert_eq!(new.cmd(&["LOCK", "job", "t", "PX", "1000"]), Reply::NullArray, "any token");
    for node in 0..3 {
        let mut node = proxy.node_client(node);
        assert_eq!(node.cmd(&["SET", "lock:job", "x", "NX", "PX", "1000"]), Reply::NullBulk);
        // The nodes hold the lock for as long as the client counts on it, and a little longer.
        let Reply::Int(left) = node.cmd(&["PTTL", "lock:job"]) else { panic!() };
        assert!((19_900..=30_000).contains(&left), "{left}");
    }
    assert_eq!(old.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    let grant = new.cmd(&["LOCK", "job", "mine", "PX", "20000"]).grant();
    assert_eq!(old.cmd(&take), Reply::NullBulk);
    assert_eq!(old.cmd(&["SET", "lock:job", "mine", "NX", "PX", "20000"]), Reply::NullBulk);
    assert_eq!(old.cmd(&["GET", "lock:job"]), Reply::bulk(&grant.token));
    // Blind commands do not endanger a LOCK client.
    assert_eq!(old.cmd(&["DEL", "lock:job"]), Reply::Int(0));
    assert_eq!(old.cmd(&["EXPIRE", "lock:job", "0"]), Reply::Int(0));
    // On this connection a LOCK without a token was refused before, and no UNLOCK has followed.
    assert!(new.cmd(&["RENEW", "job", "PX", "20000"]).error().starts_with("NOTOKEN several "));
    assert!(matches!(new.cmd(&["RENEW", "job", "mine", "PX", "20000"]), Reply::Int(1..)));
    assert_eq!(new.cmd(&["UNLOCK", "job", "mine"]), Reply::Int(1));
    // An adopted release wakes its waiter.
    assert_eq!(old.cmd(&take), Reply::ok());
    new.send(&encode(&["LOCK", "job", "PX", "1000", "WAIT", "10000"]));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(old.cmd(&["EVAL", RELEASE, "1", "lock:job", "t"]), Reply::Int(1));
    new.reply().grant();
}

#[test]
fn a_lock_runs_out_when_its_client_thinks_so_and_not_before() {
    let proxy = enforced();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let began = std::time::Instant::now();
    assert_eq!(a.cmd(&["SET", "lock:job", "a", "NX", "PX", "500"]), Reply::ok());
    let told = std::time::Instant::now();
    let take = ["SET", "lock:job", "b", "NX", "PX", "500"];
    let mut granted = None;
    eventually("it runs out", || {
        granted = (b.cmd(&take) == Reply::ok()).then(std::time::Instant::now);
        granted.is_some()
    });
    let granted = granted.unwrap();
    assert!(granted - began >= Duration::from_millis(500), "{:?}", granted - told);
}

#[test]
fn an_adopted_lock_is_watched_alone_and_not_for_subscribers() {
    let mut proxy = enforced();
    let mut client = proxy.client();
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    for words in [&["WATCH", "lock:job", "x"][..], &["WATCH", "x", "lock:job"]] {
        let watched = client.cmd(words);
        assert!(watched.error().starts_with("ERR 'lock:job' is an adopted lock: "), "{watched:?}");
    }
    let mut redis = data(&mut proxy);
    assert_eq!(redis.cmd(&["EXISTS", "x", "lock:job"]), Reply::Int(0));
    client.cmd(&["SUBSCRIBE", "c"]);
    let expected = "ERR an adopted lock is not for subscribers, nor after MONITOR (adopt)";
    assert_eq!(client.cmd(&take).error(), expected);
}

#[test]
fn what_is_no_lock_idiom_is_refused_and_harms_nobody() {
    let mut proxy = enforced();
    let mut client = proxy.client();
    for words in [
        &["SET", "lock:job", "v"][..],
        &["SET", "lock:job", "t", "NX"],
        &["SETNX", "lock:job", "t"],
        &["SET", "lock:job", "t", "NX", "GET", "PX", "1000"],
        &["SET", "lock:job", "t", "NX", "PX", "60001"],
        &["HSET", "lock:job", "f", "v"],
        &["INCR", "lock:job"],
        &["DEL", "lock:job", "cache"],
        &["MSET", "cache", "v", "lock:job", "v"],
        &["EXPIREAT", "lock:job", "9999999999"],
        &["PERSIST", "lock:job"],
    ] {
        let said = client.cmd(words);
        assert!(said.error().starts_with("ERR 'lock:job' is an adopted lock: "), "{said:?}");
    }
    // A value that is too long for a token passes by in pieces.
    let long = "x".repeat(1_000_000);
    client.send(&encode(&["SET", "lock:job", &long, "NX", "PX", "1000"]));
    client.send(&encode(&["PING"]));
    assert!(client.reply().error().contains("on an adopted lock is refused"));
    assert_eq!(client.reply(), Reply::simple("PONG"));
    // A line is judged by its words, however long it is.
    client.send(format!("SET lock:job {} NX PX 20000\r\nPING\r\n", &long[..20_000]).as_bytes());
    assert!(client.reply().error().contains("on an adopted lock is refused"));
    assert_eq!(client.reply(), Reply::simple("PONG"));
    for (blanks, said) in
        [(16_300, Reply::ok()), (16_384, Reply::NullBulk), (40_000, Reply::NullBulk)]
    {
        let line = format!("SET{}lock:job t NX PX 20000\r\nPING\r\n", " ".repeat(blanks));
        client.send(line.as_bytes());
        assert_eq!(client.reply(), said, "{blanks}");
        assert_eq!(client.reply(), Reply::simple("PONG"));
    }
    // Keys that no rule enforces pass.
    assert_eq!(client.cmd(&["SET", "key", &long]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "seen:job", "t", "NX", "PX", "20000"]), Reply::ok());
    let mut redis = data(&mut proxy);
    assert_eq!(redis.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    assert_eq!(redis.cmd(&["GET", "seen:job"]), Reply::bulk("t"));
}

#[test]
fn commands_may_come_in_any_pieces_inline_and_in_pipelines() {
    let mut proxy = enforced();
    let (mut client, mut redis) = (proxy.client(), data(&mut proxy));
    let take = encode(&["SET", "lock:job", "t", "NX", "PX", "20000"]);
    let release = encode(&["EVAL", RELEASE, "1", "lock:job", "t"]);
    for cut in (1..take.len() - 1).step_by(3) {
        client.send(&take[..cut]);
        thread::sleep(Duration::from_millis(1));
        client.send(&[&take[cut..], &release[..cut]].concat());
        thread::sleep(Duration::from_millis(1));
        client.send(&release[cut..]);
        assert_eq!(client.reply(), Reply::ok(), "{cut}");
        assert_eq!(client.reply(), Reply::Int(1), "{cut}");
        // On the data node another client has the key, which does not affect the proxy's answer.
        redis.cmd(&["SET", "lock:job", "another's"]);
    }
    client.send(b"SET lock:job t NX PX 20000\r\nGET lock:job\r\nDEL lock:job\r\nPING\r\n");
    let said: Vec<Reply> = (0..4).map(|_| client.reply()).collect();
    assert_eq!(said, [Reply::ok(), Reply::bulk("t"), Reply::Int(1), Reply::simple("PONG")]);
    // Pipelines of commands that begin alike.
    let many: Vec<Vec<u8>> = (0..200)
        .map(|n| {
            let key = if n % 7 == 0 { format!("lock:{n}") } else { format!("like:{n}") };
            encode(&["SET", &key, "t", "NX", "PX", "20000"])
        })
        .collect();
    client.send(&many.concat());
    assert!((0..200).all(|_| client.reply() == Reply::ok()));
    client.send(&many.concat());
    assert!((0..200).all(|_| client.reply() == Reply::NullBulk));
}

#[test]
fn replies_that_are_off_or_skipped_change_nothing() {
    let proxy = enforced();
    let mut client = proxy.client();
    client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
    client.send(&encode(&["SET", "lock:off", "t", "NX", "PX", "20000"]));
    client.send(&encode(&["CLIENT", "REPLY", "ON"]));
    assert_eq!(client.reply(), Reply::ok());
    client.send(&encode(&["CLIENT", "REPLY", "SKIP"]));
    client.send(&encode(&["SET", "lock:skip", "t", "NX", "PX", "20000"]));
    assert_eq!(client.cmd(&["GET", "lock:off"]), Reply::bulk("t"));
    assert_eq!(client.cmd(&["GET", "lock:skip"]), Reply::bulk("t"));
}

#[test]
fn the_same_name_in_another_database_is_another_lock() {
    let proxy = enforced();
    let (mut zero, mut one) = (proxy.client(), proxy.client());
    assert_eq!(one.cmd(&["SELECT", "1"]), Reply::ok());
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    assert_eq!(one.cmd(&take), Reply::ok());
    assert_eq!(zero.cmd(&take), Reply::ok());
    assert_eq!(one.cmd(&take), Reply::NullBulk);
    assert_eq!(zero.cmd(&["LOCK", "1:job", "PX", "1000"]), Reply::NullArray);
    assert_eq!(one.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    assert_eq!(zero.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
}

#[test]
fn who_may_not_set_the_key_may_not_lock_it() {
    let mut proxy = enforced();
    let mut redis = data(&mut proxy);
    redis.cmd(&["ACL", "SETUSER", "reader", "on", ">p", "+@all", "%R~lock:*", "~own:*"]);
    let mut client = proxy.client();
    client.cmd(&["AUTH", "reader", "p"]);
    let refused = client.cmd(&["SET", "lock:job", "t", "NX", "PX", "20000"]);
    assert!(refused.error().starts_with("NOPERM"), "{refused:?}");
    assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::NullBulk);
    assert!(client.cmd(&["DEL", "lock:job"]).error().starts_with("NOPERM"));
    // The data node is asked about each of several keys.
    redis.cmd(&["ACL", "SETUSER", "reader", "~lock:mine"]);
    const TAKE: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    let both = client.cmd(&["EVALSHA", TAKE, "2", "lock:mine", "lock:job", "t", "20000"]);
    assert!(both.error().starts_with("NOPERM"), "{both:?}");
    let mine = client.cmd(&["EVALSHA", TAKE, "1", "lock:mine", "t", "20000"]);
    assert_eq!(mine, Reply::Int(1));
    assert_eq!(proxy.nodes_with("lock:job"), 0);
}

#[test]
fn without_a_quorum_nothing_is_told_that_is_not_known() {
    let mut proxy = enforced_with("no_quorum: error");
    let mut client = proxy.client();
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    assert_eq!(client.cmd(&take), Reply::ok());
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    for words in [
        &take[..],
        &["SET", "lock:other", "t", "NX", "PX", "20000"],
        &["GET", "lock:job"],
        &["EVAL", EXTEND, "1", "lock:job", "t", "10000"],
        &["EVAL", RELEASE, "1", "lock:job", "t"],
        &["DEL", "lock:job"],
    ] {
        assert!(client.cmd(words).error().starts_with("NOQUORUM"), "{words:?}");
    }
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn the_holder_of_an_adopted_lock_may_write_what_it_guards() {
    let rules = format!("{RULES}\nguards:\n  - keys: 'job:*'\n    lock: '{{1}}'");
    let mut proxy = Proxy::with().nodes(3).top(&rules).start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let write = ["SET", "job:1", "x"];
    assert!(client.cmd(&write).error().starts_with("NOTHELD"));
    assert_eq!(client.cmd(&["SET", "lock:1", "t", "NX", "PX", "20000"]), Reply::ok());
    assert_eq!(client.cmd(&write), Reply::ok());
    assert!(other.cmd(&write).error().starts_with("NOTHELD"));
    other.cmd(&["LOCK.ATTACH", "1", "t"]).grant();
    assert_eq!(other.cmd(&write), Reply::ok());
    assert_eq!(other.cmd(&["EVAL", RELEASE, "1", "lock:1", "t"]), Reply::Int(1));
    let mut third = proxy.client();
    assert_eq!(third.cmd(&["SET", "lock:1", "u", "NX", "PX", "20000"]), Reply::ok());
    assert!(client.cmd(&write).error().starts_with("FENCED"), "told at the grant");
    assert_eq!(data(&mut proxy).cmd(&["GET", "job:1"]), Reply::bulk("x"));
}

#[test]
fn clients_that_poll_cost_the_lock_nodes_little_and_learn_of_a_release() {
    let proxy = enforced();
    let elsewhere = Proxy::beside(&proxy).top(RULES).start();
    let (mut holder, mut remote) = (proxy.client(), elsewhere.client());
    let take = ["SET", "lock:job", "t", "NX", "PX", "30000"];
    let release = ["EVAL", RELEASE, "1", "lock:job", "t"];
    let calls = |proxy: &Proxy| {
        let Reply::Bulk(info) = proxy.node_client(0).cmd(&["INFO", "commandstats"]) else {
            panic!()
        };
        let info = String::from_utf8(info).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    // The calls at the beginning of each connection would be counted too.
    eventually("both proxies ask all", || [&proxy, &elsewhere].iter().all(|it| it.nodes_up() == 3));
    assert_eq!(holder.cmd(&take), Reply::ok());
    // A vote still in flight would be counted.
    eventually("all have it", || proxy.nodes_with("lock:job") == 3);
    let mut pollers: Vec<Client> = (0..20).map(|_| proxy.client()).collect();
    let before = calls(&proxy);
    let (mut polls, began) = (0, std::time::Instant::now());
    for _ in 0..20 {
        for poller in &mut pollers {
            assert_eq!(poller.cmd(&take), Reply::NullBulk);
            polls += 1;
        }
    }
    // A poll's question and its undo are counted once for each 250 ms that have passed.
    let asked = calls(&proxy) - before;
    let passed = began.elapsed().as_millis() as u64;
    // Each proxy also looks at its nodes and at the fleet's records, and writes its own, by scripts: a few a second.
    // If each poll were asked about, there would be 800 calls.
    let looks = 2 * 5 * (1 + passed / 1000);
    let most = 2 * (1 + passed / 250) + 2 + looks;
    assert!(asked <= most, "{asked} for {polls} polls in {passed} ms");
    // A release through this proxy is known at once, one through another proxy a moment later.
    assert_eq!(holder.cmd(&release), Reply::Int(1));
    assert_eq!(pollers[0].cmd(&take), Reply::ok());
    assert_eq!(pollers[1].cmd(&take), Reply::NullBulk);
    assert_eq!(remote.cmd(&release), Reply::Int(1));
    eventually("it is learned", || pollers[1].cmd(&take) == Reply::ok());
}

#[test]
fn a_script_that_is_said_to_exist_can_be_called() {
    let proxy = enforced();
    let elsewhere = Proxy::beside(&proxy).top(RULES).start();
    let own = format!("-- of our own\n{RELEASE}");
    let (mut first, mut second) = (proxy.client(), elsewhere.client());
    let Reply::Bulk(digest) = first.cmd(&["SCRIPT", "LOAD", &own]) else { panic!("no digest") };
    let digest = String::from_utf8(digest).unwrap();
    let Reply::Bulk(plain) = first.cmd(&["SCRIPT", "LOAD", "return 1"]) else {
        panic!("no digest")
    };
    let (plain, nobodys) = (String::from_utf8(plain).unwrap(), "f".repeat(40));
    let exists: [&str; 6] = ["script", "Exists", &digest, "none", &plain, &nobodys];
    let said = |known: i64| Reply::Array([known, 0, known, 0].map(Reply::Int).to_vec());
    let call = ["EVALSHA", &digest, "1", "lock:job", "t"];
    assert_eq!((first.cmd(&exists), first.cmd(&call)), (said(1), Reply::Int(0)));
    // The other proxy does not know the script's text, so a client that asks first shows it there too.
    assert_eq!(second.cmd(&exists), said(0));
    assert!(second.cmd(&call).error().starts_with("NOSCRIPT "));
    let replies = second.pipe(&[&["MULTI"], &exists, &["PING"], &["EXEC"], &["PING"]]);
    assert_eq!(replies[1], Reply::simple("QUEUED"));
    assert_eq!(replies[3], Reply::Array(vec![said(0), Reply::simple("PONG")]));
    assert_eq!(replies[4], Reply::simple("PONG"));
    second.send(format!("SCRIPT EXISTS {digest}\r\n").as_bytes());
    assert_eq!(second.reply(), Reply::Array(vec![Reply::Int(0)]));
    for text in [&own, "return 1"] {
        second.cmd(&["SCRIPT", "LOAD", text]);
    }
    assert_eq!((second.cmd(&exists), second.cmd(&call)), (said(1), Reply::Int(0)));
    // Scripts of libraries are known everywhere, so the data node's answer counts.
    let library = ["SCRIPT", "EXISTS", REDIS_PY_RELEASE];
    assert_eq!(second.cmd(&library), Reply::Array(vec![Reply::Int(0)]));
    assert_eq!(second.cmd(&["SCRIPT", "EXISTS"]), first.cmd(&["SCRIPT", "EXISTS"]));
}

#[test]
fn who_is_told_that_a_lock_is_free_is_not_refused_from_memory() {
    let proxy = enforced();
    let elsewhere = Proxy::beside(&proxy).top(RULES).start();
    let (mut holder, mut client) = (proxy.client(), elsewhere.client());
    let mut number = 0;
    for (ask, free) in [
        (&["GET", "K"][..], Reply::NullBulk),
        (&["EXISTS", "K"], Reply::Int(0)),
        (&["TTL", "K"], Reply::Int(-2)),
        (&["PTTL", "K"], Reply::Int(-2)),
        (&["TYPE", "K"], Reply::simple("none")),
        (&["STRLEN", "K"], Reply::Int(0)),
        (&["DEL", "K"], Reply::Int(0)),
        (&["PEXPIRE", "K", "1000"], Reply::Int(0)),
        (&["EVAL", RELEASE, "1", "K", "u"], Reply::Int(0)),
        (&["EVAL", EXTEND, "1", "K", "u", "1000"], Reply::Int(0)),
        (&["SET", "K", "u", "XX", "PX", "1000"], Reply::NullBulk),
        (&["LOCKGATE", "LOCK", "L"], Reply::NullBulk),
        (&["UNLOCK", "L", "u"], Reply::Int(0)),
        (&["RENEW", "L", "u", "PX", "1000"], Reply::Int(0)),
        (&["LOCK.ATTACH", "L", "u"], Reply::NullArray),
    ] {
        // About one client in a hundred would ask early by itself.
        for _ in 0..5 {
            number += 1;
            let (lock, key) = (format!("job:{number}"), format!("lock:job:{number}"));
            assert_eq!(holder.cmd(&["SET", &key, "t", "NX", "PX", "30000"]), Reply::ok());
            let take = ["SET", &key, "u", "NX", "PX", "30000"];
            assert_eq!(client.cmd(&take), Reply::NullBulk);
            assert_eq!(holder.cmd(&["DEL", &key]), Reply::Int(1));
            let word = |word: &&str| match *word {
                "K" => key.clone(),
                "L" => lock.clone(),
                word => word.to_owned(),
            };
            let words: Vec<String> = ask.iter().map(word).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_eq!(client.cmd(&words), free, "{ask:?}");
            assert_eq!(client.cmd(&take), Reply::ok(), "behind {ask:?}");
        }
    }
}

#[test]
fn several_locks_are_taken_all_or_none() {
    let proxy = enforced();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    // node-redlock's scripts.
    const TAKE: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    const RELEASE: &str = "e4612211c9f8f51c257e26e056b0a654b3187242";
    const EXTEND: &str = "aed6f382e410db8ba7926d4e5e9aab410bf2a78a";
    let take = |client: &mut Client, keys: &[&str], token: &str| {
        let count = keys.len().to_string();
        let words = [&["EVALSHA", TAKE, &count][..], keys, &[token, "20000"]].concat();
        client.cmd(&words)
    };
    let two = ["lock:a", "lock:b"];
    assert_eq!(take(&mut a, &two, "a"), Reply::Int(2));
    proxy.assert_on_nodes("lock:a", 3);
    proxy.assert_on_nodes("lock:b", 3);
    let twice = take(&mut b, &["lock:c", "lock:c"], "b");
    assert!(twice.error().contains("one adopted lock"), "{twice:?}");
    // A refused take leaves nothing.
    assert_eq!(take(&mut b, &["lock:c", "lock:b", "lock:d"], "b"), Reply::Int(0));
    eventually("it is given back", || proxy.nodes_with("lock:c") == 0);
    assert_eq!(take(&mut b, &["lock:c"], "b"), Reply::Int(1));
    assert_eq!(b.cmd(&["LOCK", "a", "PX", "1000"]), Reply::NullArray);
    let extend = |client: &mut Client, keys: &[&str], token: &str| {
        let count = keys.len().to_string();
        client.cmd(&[&["EVALSHA", EXTEND, &count][..], keys, &[token, "30000"]].concat())
    };
    assert_eq!(extend(&mut b, &two, "a"), Reply::Int(2), "from any connection");
    assert_eq!(extend(&mut a, &["lock:a", "lock:c"], "a"), Reply::Int(0));
    let Reply::Int(left) = b.cmd(&["PTTL", "lock:b"]) else { panic!() };
    assert!(left > 20_000, "{left}");
    let released = b.cmd(&["EVALSHA", RELEASE, "3", "lock:a", "lock:c", "lock:b", "a"]);
    assert_eq!(released, Reply::Int(2));
    assert_eq!(take(&mut b, &two, "b"), Reply::Int(2));
    let mixed = take(&mut a, &["lock:x", "other:y"], "a");
    assert!(mixed.error().contains("some of its keys are adopted"), "{mixed:?}");
}

#[test]
fn a_lock_is_a_lock_clients_even_by_a_token_that_was_adopted() {
    let proxy = enforced();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    assert_eq!(client.cmd(&take), Reply::ok());
    assert_eq!(client.cmd(&["LOCK", "job", "t", "PX", "1000"]), Reply::NullArray);
    assert_eq!(other.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    let grant = client.cmd(&["LOCK", "job", "t", "PX", "10000"]).grant();
    assert!(grant.validity <= 10_000, "{grant:?}");
    assert_eq!(other.cmd(&["DEL", "lock:job"]), Reply::Int(0));
    assert_eq!(other.cmd(&["PEXPIRE", "lock:job", "20"]), Reply::Int(0));
    assert_eq!(client.cmd(&["UNLOCK", "job"]), Reply::Int(1));
}

/// Returns the field `adopted` of LOCKGATE LOCK, if the lock is held.
fn adopted(operator: &mut Client, lock: &str) -> Option<Reply> {
    match operator.cmd(&["LOCKGATE", "LOCK", lock]) {
        Reply::Array(fields) => {
            let at = fields.iter().position(|field| *field == Reply::bulk("adopted"));
            Some(fields[at.expect("a field") + 1].clone())
        }
        Reply::NullBulk => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operators_see_which_library_has_taken_a_lock() {
    let proxy = enforced();
    let (mut client, mut operator) = (proxy.client(), proxy.client());
    let mut adopted = |lock: &str| adopted(&mut operator, lock);
    assert_eq!(client.cmd(&["SET", "lock:job", "t", "NX", "PX", "20000"]), Reply::ok());
    assert_eq!(adopted("job"), Some(Reply::bulk("SET NX with a TTL")));
    // A body of no known library does not change what is told, one of redis-py's does.
    assert_eq!(client.cmd(&["EVAL", EXTEND, "1", "lock:job", "t", "20000"]), Reply::Int(1));
    assert_eq!(adopted("job"), Some(Reply::bulk("SET NX with a TTL")));
    for (switch, token, extended) in [("1", "u", 0), ("0", "t", 1)] {
        let extend = ["EVALSHA", REDIS_PY_EXTEND, "1", "lock:job", token, "1000", switch];
        assert_eq!(client.cmd(&extend), Reply::Int(extended));
        let name = if extended == 1 { "redis-py" } else { "SET NX with a TTL" };
        assert_eq!(adopted("job"), Some(Reply::bulk(name)));
    }
    let take = ["EVALSHA", AIOREDLOCK_LOCK, "1", "lock:other", "t", "20000"];
    assert_eq!(client.cmd(&take), Reply::ok());
    assert_eq!(adopted("other"), Some(Reply::bulk("aioredlock")));
    const TAKE: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    let both = ["EVALSHA", TAKE, "2", "lock:a", "lock:b", "t", "20000"];
    assert_eq!(client.cmd(&both), Reply::Int(2));
    for lock in ["a", "b"] {
        assert_eq!(adopted(lock), Some(Reply::bulk("node-redlock 5")));
    }
    // A LOCK client's lock is not adopted, even with the token of an adopted one.
    assert_eq!(client.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    assert_eq!(adopted("job"), None);
    client.cmd(&["LOCK", "job", "t", "PX", "20000"]).grant();
    assert_eq!(adopted("job"), Some(Reply::bulk("")));
    assert_eq!(client.cmd(&["EVAL", EXTEND, "1", "lock:job", "t", "20000"]), Reply::Int(1));
    assert_eq!(adopted("job"), Some(Reply::bulk("")));
    let Reply::Bulk(info) = client.cmd(&["LOCKGATE", "INFO"]) else { panic!() };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("held:4\r\nsession_locks:0\r\nadopted_locks:3\r\n"), "{info}");
    eventually("they are counted", || proxy.metric("lockgate_adopted_locks", "") == 3.0);
}

#[test]
fn a_token_is_the_clients_on_all_its_connections() {
    let proxy = enforced();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    let release = ["EVAL", RELEASE, "1", "lock:job", "t"];
    assert_eq!(a.cmd(&take), Reply::ok());
    assert_eq!(b.cmd(&release), Reply::Int(1));
    assert_eq!(b.cmd(&take), Reply::ok());
    // The first connection knows an earlier grant of this token.
    assert_eq!(a.cmd(&["EVAL", EXTEND, "1", "lock:job", "t", "10000"]), Reply::Int(1));
    assert_eq!(a.cmd(&release), Reply::Int(1));
}

#[test]
fn what_was_released_late_is_not_taken_for_held() {
    let proxy = enforced_with("no_quorum: error");
    let mut client = proxy.client();
    let refuse = |count: &str| {
        for node in 0..3 {
            proxy.node_client(node).cmd(&["CONFIG", "SET", "min-replicas-to-write", count]);
        }
    };
    let take = ["EVALSHA", AIOREDLOCK_LOCK, "1", "lock:job", "t", "20000"];
    let extend = ["EVAL", EXTEND, "1", "lock:job", "t", "20000"];
    for _ in 0..3 {
        assert_eq!(client.cmd(&take), Reply::ok());
        eventually("all have it", || proxy.nodes_with("lock:job") == 3);
        refuse("1");
        let refused = client.cmd(&["EVAL", RELEASE, "1", "lock:job", "t"]);
        assert!(refused.error().starts_with("NOQUORUM"), "{refused:?}");
        refuse("0");
        // Every node carries the release out, so an extension is refused meanwhile.
        for _ in 0..3 {
            assert_eq!(client.cmd(&extend), Reply::Int(0));
        }
        let other = proxy.client().cmd(&extend);
        let is_true = matches!(&other, Reply::Error(error) if error.starts_with("NOQUORUM"))
            || other == Reply::Int(0);
        assert!(is_true, "{other:?}");
        // A lock that is told as taken is taken.
        eventually("it is taken anew", || client.cmd(&take) == Reply::ok());
        thread::sleep(Duration::from_millis(250));
        assert!(proxy.nodes_with("lock:job") >= 2);
        assert_eq!(client.cmd(&["EVAL", RELEASE, "1", "lock:job", "t"]), Reply::Int(1));
        eventually("it is free", || proxy.nodes_with("lock:job") == 0);
    }
}

#[test]
fn a_blind_command_frees_what_its_rule_lets_it() {
    let proxy = enforced_with("blind: own-only");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    assert_eq!(a.cmd(&["DEL", "lock:job"]), Reply::Int(0));
    assert_eq!(a.cmd(&take), Reply::ok());
    assert_eq!(b.cmd(&["DEL", "lock:job"]), Reply::Int(0));
    assert_eq!(b.cmd(&["EXPIRE", "lock:job", "0"]), Reply::Int(0));
    assert_eq!(a.cmd(&["EXPIRE", "lock:job", "30"]), Reply::Int(1));
    assert_eq!(a.cmd(&["TTL", "lock:job"]), Reply::Int(30));
    // The lock has moved on to another client with the same token.
    assert_eq!(b.cmd(&["EVAL", RELEASE, "1", "lock:job", "t"]), Reply::Int(1));
    assert_eq!(b.cmd(&take), Reply::ok());
    assert_eq!(a.cmd(&["UNLINK", "lock:job"]), Reply::Int(0));
    assert_eq!(b.cmd(&["UNLINK", "lock:job"]), Reply::Int(1));
    // An attachment counts like a grant.
    assert_eq!(a.cmd(&take), Reply::ok());
    b.cmd(&["LOCK.ATTACH", "job", "t"]).grant();
    assert_eq!(b.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    // A blind command never frees a LOCK client's lock.
    a.cmd(&["LOCK", "job", "t", "PX", "20000"]).grant();
    assert_eq!(a.cmd(&["DEL", "lock:job"]), Reply::Int(0));

    let proxy = enforced_with("blind: refuse");
    let mut client = proxy.client();
    assert_eq!(client.cmd(&take), Reply::ok());
    for words in [&["DEL", "lock:job"][..], &["EXPIRE", "lock:job", "5"]] {
        let expected = "ERR 'lock:job' is an adopted lock: it names no token, which the rule \
                        refuses (blind) (LOCKGATE ADOPTED)";
        assert_eq!(client.cmd(words).error(), expected);
    }
    assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    assert_eq!(proxy.metric("lockgate_adopt_refused_total", "reason=\"blind\""), 2.0);
    let told = || proxy.log().matches("a command was refused").count();
    eventually("it is told of", || told() > 0);
    assert_eq!(told(), 1, "once for a connection");
    proxy.client().cmd(&["DEL", "lock:job"]);
    eventually("it is told of", || told() == 2);
}

#[test]
fn what_is_no_lock_idiom_may_go_to_the_data_node() {
    let mut proxy = enforced_with("unknown: forward");
    let mut client = proxy.client();
    let large = "x".repeat(100_000);
    assert_eq!(client.cmd(&["HSET", "lock:h", "f", "v"]), Reply::Int(1));
    assert_eq!(client.cmd(&["HSET", "lock:h", "g", &large]), Reply::Int(1));
    let script = "return redis.call('hget', KEYS[1], 'f')";
    assert_eq!(client.cmd(&["EVAL", script, "1", "lock:h"]), Reply::bulk("v"));
    let said = client.pipe(&[&["MULTI"], &["INCR", "lock:n"], &["INCR", "lock:n"], &["EXEC"]]);
    assert_eq!(said[3], Reply::Array(vec![Reply::Int(1), Reply::Int(2)]));
    let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
    assert_eq!(client.cmd(&take), Reply::ok());
    for words in [
        &["SET", "lock:job", "t", "NX"][..],
        &["SETNX", "lock:job", "t"],
        &["SET", "lock:job", "t"],
        &["SET", "lock:job", "t", "NX", "GET", "PX", "1000"],
        &["PERSIST", "lock:job"],
    ] {
        let said = client.cmd(words);
        assert!(said.error().starts_with("ERR 'lock:job' is an adopted lock: "), "{said:?}");
    }
    let mut redis = data(&mut proxy);
    assert_eq!(redis.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    assert_eq!(redis.cmd(&["HLEN", "lock:h"]), Reply::Int(2));
    let seen = |labels: &str| proxy.metric("lockgate_adopt_seen_total", labels);
    assert_eq!(seen("idiom=\"other\",verdict=\"forwarded\""), 4.0);
    assert_eq!(seen("idiom=\"unknown_script\",verdict=\"forwarded\""), 1.0);
}

#[test]
fn errors_name_the_kind_of_lock_that_no_quorum_keeps() {
    let proxy = enforced();
    let mut client = proxy.client();
    for (words, named) in [
        (&["HSET", "lock:job", "f", "v"][..], "Redisson"),
        (&["EVAL", "return redis.call('hexists', KEYS[1], 'f')", "1", "lock:job"], "Redisson"),
        (&["ZADD", "lock:job", "1", "v"], "Symfony"),
        (&["EVAL", "return redis.call('ZCARD', KEYS[1])", "1", "lock:job"], "Symfony"),
        (&["EVALSHA", "7ece82993bd7604131328c7d69ae15c31b8e237e", "1", "lock:job", "t"], "BullMQ"),
    ] {
        let said = client.cmd(words);
        assert!(said.error().contains(named), "{said:?}");
    }
    let refused = |reason: &str| {
        proxy.metric("lockgate_adopt_refused_total", &format!("reason=\"{reason}\""))
    };
    assert_eq!([refused("hash"), refused("sorted_set"), refused("job")], [2.0, 2.0, 1.0]);
}

#[test]
fn locks_without_a_ttl_last_as_long_as_the_rule_says() {
    let proxy = enforced_with("no_ttl: 500ms");
    let mut client = proxy.client();
    for (take, taken, refused) in [
        (&["SETNX", "lock:job", "t"][..], Reply::Int(1), Reply::Int(0)),
        (&["SET", "lock:job", "t", "NX"], Reply::ok(), Reply::NullBulk),
    ] {
        let began = std::time::Instant::now();
        assert_eq!(client.cmd(take), taken);
        assert_eq!(client.cmd(take), refused);
        let Reply::Int(left) = client.cmd(&["PTTL", "lock:job"]) else { panic!() };
        assert!((1..=500).contains(&left), "{left}");
        eventually("it runs out", || client.cmd(&["EXISTS", "lock:job"]) == Reply::Int(0));
        assert!(began.elapsed() >= Duration::from_millis(500));
    }
    // SETNX, and then EXPIRE, unless EXPIRE comes too late.
    eventually("it is prolonged", || {
        client.cmd(&["SETNX", "lock:job", "t"]);
        client.cmd(&["EXPIRE", "lock:job", "20"]) == Reply::Int(1)
    });
    assert_eq!(client.cmd(&["TTL", "lock:job"]), Reply::Int(20));
    assert_eq!(client.cmd(&["DEL", "lock:job"]), Reply::Int(1));
}

#[test]
fn a_ttl_that_is_too_long_is_cut_and_told_of() {
    let proxy = enforced_with("long_ttl: cap");
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["SET", "lock:job", "t", "NX", "EX", "86400"]), Reply::ok());
    let Reply::Int(left) = client.cmd(&["TTL", "lock:job"]) else { panic!() };
    assert!((58..=60).contains(&left), "{left}");
    assert_eq!(client.cmd(&["PEXPIRE", "lock:job", "86400000"]), Reply::Int(1));
    let extend = ["EVALSHA", REDIS_PY_EXTEND, "1", "lock:job", "t", "50000", "0"];
    assert_eq!(client.cmd(&extend), Reply::Int(1), "what is added is cut too");
    let Reply::Int(left) = client.cmd(&["TTL", "lock:job"]) else { panic!() };
    assert!((58..=60).contains(&left), "{left}");
    eventually("it is told of", || proxy.log().contains("is cut to that"));
}

#[test]
fn several_locks_are_deleted_each_by_itself() {
    let proxy = enforced();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let take = |client: &mut Client, name: &str| {
        let key = format!("lock:{name}");
        assert_eq!(client.cmd(&["SET", &key, name, "NX", "PX", "20000"]), Reply::ok());
    };
    take(&mut a, "one");
    take(&mut b, "two");
    b.cmd(&["LOCK", "three", "PX", "20000"]).grant();
    let del = ["DEL", "lock:one", "lock:two", "lock:one", "lock:three", "lock:four"];
    assert_eq!(a.cmd(&del), Reply::Int(2));
    proxy.assert_on_nodes("lock:three", 3);
    take(&mut a, "two");
    assert_eq!(a.cmd(&["UNLINK", "lock:one", "lock:two"]), Reply::Int(1));
    assert_eq!(a.cmd(&["UNLINK", "lock:one", "lock:two"]), Reply::Int(0));
    let proxy = enforced_with("blind: own-only");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    take(&mut a, "one");
    take(&mut b, "two");
    assert_eq!(a.cmd(&["DEL", "lock:one", "lock:two"]), Reply::Int(1));
    assert_eq!(b.cmd(&["DEL", "lock:one", "lock:two"]), Reply::Int(1));
}

#[test]
fn times_of_day_are_told_as_redis_tells_them() {
    let mut proxy = enforced();
    let (mut client, mut redis) = (proxy.client(), data(&mut proxy));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seconds = |more: u64| (now.as_secs() + more).to_string();
    let millis = |more: u128| (now.as_millis() + more).to_string();
    let (soon, later) = (seconds(20), seconds(50));
    for words in [
        &["SET", "K", "t", "NX", "EXAT", "1000"][..],
        &["EXISTS", "K"],
        &["SET", "K", "t", "XX", "EXAT", &soon],
        &["EXPIREAT", "K", &soon],
        &["SET", "K", "t", "NX", "PXAT", &millis(30_000)],
        &["SET", "K", "u", "NX", "EXAT", &soon],
        &["SET", "K", "u", "NX", "EXAT", "1000"],
        &["GET", "K"],
        &["EXPIREAT", "K", &later],
        &["TTL", "K"],
        &["PEXPIREAT", "K", &millis(10_000)],
        &["TTL", "K"],
        &["SET", "K", "t", "XX", "EXAT", &later],
        &["TTL", "K"],
        &["SET", "K", "t", "XX", "EXAT", "1000"],
        &["EXISTS", "K"],
        &["SET", "K", "t", "EXAT", &soon, "NX"],
        &["EXPIREAT", "K", "0"],
        &["EXISTS", "K"],
        &["SET", "K", "t", "EXAT", &soon, "NX"],
        &["PEXPIREAT", "K", "-1"],
        &["EXISTS", "K"],
    ] {
        let with = |client: &mut Client, key: &str| {
            let named =
                |word: &&str| if *word == "K" { key.to_owned() } else { (*word).to_owned() };
            let words: Vec<String> = words.iter().map(named).collect();
            let said = client.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>());
            match said {
                // The two servers are asked one after the other.
                Reply::Int(left @ 5..) => Reply::Int((left + 1) / 5),
                said => said,
            }
        };
        let (said, expected) = (with(&mut client, "lock:job"), with(&mut redis, "other:job"));
        assert_eq!(said, expected, "{words:?}");
    }
    let far = client.cmd(&["EXPIREAT", "lock:job", "9999999999"]);
    assert!(far.error().contains("longer than locks.max_ttl"), "{far:?}");
}

#[test]
fn a_release_wakes_subscribers_by_the_message_of_its_library() {
    let proxy = enforced();
    let (mut client, mut waiter) = (proxy.client(), proxy.client());
    let spring = "7a71e9443a2a41539fb115a5a27d5a748a871aed";
    let mutex = "02718596825c5bf6c57af391b4dc01a6d2d9d88a";
    for (digest, keys, arguments, said, message) in [
        (spring, &["lock:job"][..], &["t", "woken"][..], Reply::Int(1), "lock:job"),
        (
            mutex,
            &["lock:job", "woken"],
            &["t"],
            Reply::NullBulk,
            r#"{ "key": "lock:job", "value": "t" }"#,
        ),
    ] {
        waiter.cmd(&["SUBSCRIBE", "woken"]);
        let count = keys.len().to_string();
        let release = [&["EVALSHA", digest, &count][..], keys, arguments].concat();
        // A release that frees nothing sends no message.
        assert_eq!(client.cmd(&release), Reply::NullBulk);
        assert_eq!(client.cmd(&["SET", "lock:job", "t", "NX", "PX", "20000"]), Reply::ok());
        assert_eq!(client.cmd(&release), said);
        assert_eq!(client.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
        let expected = ["message", "woken", message].map(Reply::bulk);
        assert_eq!(waiter.reply(), Reply::Array(expected.to_vec()));
        waiter.cmd(&["UNSUBSCRIBE", "woken"]);
    }
}

#[test]
fn a_deployments_own_scripts_are_carried_out_as_it_describes_them() {
    // Redis would carry these bodies out; the proxy knows them only by their digests.
    let acquire = "if redis.call('exists', KEYS[1]) == 1 then return 'no' end \
                   redis.call('setex', KEYS[1], ARGV[1], ARGV[2]) return -1";
    let release = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 'no' end return \
                   redis.call('del', KEYS[1]) + 1";
    let digest = |body: &str| sha1_smol::Sha1::from(body).digest().to_string();
    let proxy = enforced_with(&format!(
        "scripts:\n      - digest: '{}'\n        op: acquire\n        token: 2\n        ttl: 1\n        \
         unit: s\n        replies: [-1, nil, nil, nil]\n      - digest: '{}'\n        op: release\n        \
         token: 1\n        replies: [nil, 2, 2, nil]",
        digest(acquire),
        digest(release)
    ));
    let mut client = proxy.client();
    let mut take =
        |token: &str| client.cmd(&["EVALSHA", &digest(acquire), "1", "lock:job", "20", token]);
    assert_eq!(
        [take("a"), take("a"), take("b")],
        [Reply::Int(-1), Reply::NullBulk, Reply::NullBulk]
    );
    assert_eq!(client.cmd(&["TTL", "lock:job"]), Reply::Int(20));
    let mut free = |token: &str| client.cmd(&["EVAL", release, "1", "lock:job", token]);
    assert_eq!(
        [free("b"), free("a"), free("a")],
        [Reply::NullBulk, Reply::Int(2), Reply::NullBulk]
    );
}
