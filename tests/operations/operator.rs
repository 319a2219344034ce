//! What an operator learns with redis-cli alone, and what libraries learn about Lockgate's commands.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::support::{self, Client, Proxy, Reply, eventually, machine};

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        Reply::Simple(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

fn elements(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(all) | Reply::Set(all) | Reply::Map(all) => all,
        other => panic!("no elements: {other:?}"),
    }
}

/// Returns the value of one field of a map, or of an array that stands for a map.
fn field(map: &Reply, name: &str) -> Reply {
    let all = elements(map.clone());
    let at = all.iter().step_by(2).position(|key| text(key) == name);
    all[2 * at.unwrap_or_else(|| panic!("no {name} in {all:?}")) + 1].clone()
}

#[test]
fn a_whole_proxy_is_told_in_its_place_of_a_pipeline() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let replies = client.pipe(&[
        &["ECHO", "before"],
        &["LOCKGATE", "version"],
        &["lockgate", "HELP"],
        &["LOCKGATE", "INFO"],
        &["ECHO", "behind"],
    ]);
    assert_eq!(replies[0], Reply::bulk("before"));
    assert_eq!(replies[1], Reply::bulk(env!("CARGO_PKG_VERSION")));
    let help = elements(replies[2].clone());
    assert!(text(&help[0]).starts_with("LOCKGATE <subcommand>"));
    let info = text(&replies[3]);
    for line in [
        "process_id:",
        "nodes:3\r\n",
        "connected_clients:1\r\n",
        "nodes_up:3\r\n",
        "quorum:2\r\n",
        "held:0\r\n",
    ] {
        assert!(info.contains(line), "{line} in {info}");
    }
    assert!(info.contains(&format!("listen:127.0.0.1:{}\r\n", proxy.port())));
    assert_eq!(replies[4], Reply::bulk("behind"));
}

#[test]
fn nodes_are_told_with_the_reason_where_one_is_down() {
    let mut proxy = Proxy::with().nodes(3).start();
    proxy.node(1).kill().unwrap();
    eventually("it is seen", || proxy.nodes_up() == 2);
    for version in ["2", "3"] {
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        let nodes = elements(client.cmd(&["LOCKGATE", "NODES"]));
        let up: Vec<Reply> = nodes.iter().map(|node| field(node, "up")).collect();
        assert_eq!(up, [Reply::Int(1), Reply::Int(0), Reply::Int(1)]);
        assert_ne!(field(&nodes[1], "reason"), Reply::bulk(""));
        assert_eq!(field(&nodes[2], "reason"), Reply::bulk(""));
        assert!(text(&field(&nodes[0], "address")).starts_with("127.0.0.1:"));
        assert_eq!(matches!(nodes[0], Reply::Map(_)), version == "3");
    }
}

#[test]
fn locks_are_told_without_their_tokens() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job:1", "secret-token", "PX", "30000"]).grant();
    let session = holder.cmd(&["LOCK", "job:2"]).grant();
    holder.cmd(&["LOCK", "other", "PX", "30000"]).grant();
    let mut waiter = proxy.client();
    waiter.send(&support::encode(&["LOCK", "job:1", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);

    let locks = elements(operator.cmd(&["LOCKGATE", "LOCKS", "job:*"]));
    let keys: Vec<String> = locks.iter().map(|lock| text(&field(lock, "key"))).collect();
    assert_eq!(keys, ["job:1", "job:2"]);
    assert_eq!(field(&locks[0], "kind"), Reply::bulk("lease"));
    assert_eq!(field(&locks[0], "waiters"), Reply::Int(1));
    assert_eq!(field(&locks[0], "adopted"), Reply::bulk(""));
    assert_eq!(field(&locks[1], "kind"), Reply::bulk("session"));
    assert_eq!(field(&locks[1], "fence"), Reply::Int(session.fence));
    assert_eq!(elements(operator.cmd(&["LOCKGATE", "LOCKS"])).len(), 3);
    assert!(elements(operator.cmd(&["LOCKGATE", "LOCKS", "nothing*"])).is_empty());
    let all = format!("{:?}", operator.cmd(&["LOCKGATE", "LOCKS"]));
    let shown = format!("{:?}", Reply::bulk("secret-token"));
    assert!(!all.contains(&shown) && !all.contains(&format!("{:?}", Reply::bulk(&session.token))));

    let one = operator.cmd(&["LOCKGATE", "LOCK", "job:2"]);
    let Reply::Int(remaining) = field(&one, "remaining-ms") else { panic!("{one:?}") };
    assert!((1..=10_000).contains(&remaining));
    assert_eq!(operator.cmd(&["LOCKGATE", "LOCK", "none"]), Reply::NullBulk);
    assert_eq!(holder.cmd(&["UNLOCK", "job:2"]), Reply::Int(1));
    assert_eq!(operator.cmd(&["LOCKGATE", "LOCK", "job:2"]), Reply::NullBulk);
    let info = text(&operator.cmd(&["LOCKGATE", "INFO"]));
    assert!(
        info.contains("held:2\r\nsession_locks:0\r\nadopted_locks:0\r\nwaiters:1\r\n"),
        "{info}"
    );
    operator.cmd(&["HELLO", "3"]);
    assert_eq!(operator.cmd(&["LOCKGATE", "LOCK", "none"]), Reply::Null);
    assert!(matches!(operator.cmd(&["LOCKGATE", "LOCK", "job:1"]), Reply::Map(_)));
}

#[test]
fn an_answer_is_bounded_whatever_there_is() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    for key in 0..1100 {
        client.cmd(&["LOCK", &format!("k{key}"), "PX", "60000"]).grant();
    }
    assert_eq!(elements(client.cmd(&["LOCKGATE", "LOCKS"])).len(), 1000);
    assert_eq!(elements(client.cmd(&["LOCKGATE", "LOCKS", "k10?9"])).len(), 10);
}

#[test]
fn who_may_not_ask_redis_for_info_may_not_ask_lockgate() {
    let proxy = Proxy::with().data_arguments(&["--requirepass", "secret"]).start();
    let mut client = proxy.client();
    for words in [
        &["LOCKGATE", "INFO"][..],
        &["COMMAND", "DOCS", "lock"],
        &["COMMAND", "GETKEYS", "lock", "a"],
        &["COMMAND", "GETKEYS", "mlock", "1"],
    ] {
        assert_eq!(client.cmd(words).error(), "NOAUTH Authentication required.", "{words:?}");
    }
    client.cmd(&["AUTH", "secret"]);
    let user = ["ACL", "SETUSER", "app", "on", ">app", "~*", "+@all", "-info"];
    assert_eq!(client.cmd(&user), Reply::ok());
    assert!(matches!(client.cmd(&["LOCKGATE", "INFO"]), Reply::Bulk(_)));
    client.cmd(&["AUTH", "app", "app"]);
    assert!(client.cmd(&["LOCKGATE", "LOCKS"]).error().starts_with("NOPERM"));
    assert!(matches!(client.cmd(&["COMMAND", "DOCS", "lock"]), Reply::Array(_)));
}

#[test]
fn bad_words_and_wrong_places_are_refused() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    for (words, error) in [
        (&["LOCKGATE"][..], "ERR wrong number of arguments for 'lockgate' command"),
        (&["LOCKGATE", "FOO"], "ERR unknown subcommand 'FOO'. Try LOCKGATE HELP."),
        (&["LOCKGATE", "LOCK"], "ERR wrong number of arguments for 'lockgate|lock' command"),
        (
            &["LOCKGATE", "1", "2", "3", "4", "5", "6", "7", "8"],
            "ERR wrong number of arguments for 'lockgate' command",
        ),
    ] {
        assert_eq!(client.cmd(words).error(), error);
    }
    let replies = client.pipe(&[&["MULTI"], &["LOCKGATE", "INFO"], &["EXEC"]]);
    assert!(replies[1].error().starts_with("ERR unknown command 'LOCKGATE'"));
    assert!(replies[2].error().starts_with("EXECABORT"));
    client.cmd(&["SUBSCRIBE", "c"]);
    assert!(client.cmd(&["LOCKGATE", "INFO"]).error().starts_with("ERR"));
    client.cmd(&["UNSUBSCRIBE", "c"]);
    client.send(&support::encode(&["CLIENT", "REPLY", "OFF"]));
    client.send(&support::encode(&["LOCKGATE", "INFO"]));
    client.send(&support::encode(&["CLIENT", "REPLY", "ON"]));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

/// Returns the shape of a reply: its types without their values.
fn shape(reply: &Reply) -> String {
    match reply {
        Reply::Array(all) => format!("[{}]", all.first().map(shape).unwrap_or_default()),
        Reply::Set(all) => format!("~{}", all.first().map(shape).unwrap_or_default()),
        Reply::Map(all) => format!("%{}", all.first().map(shape).unwrap_or_default()),
        Reply::Simple(_) => "+".into(),
        Reply::Bulk(_) => "$".into(),
        Reply::Int(_) => ":".into(),
        other => format!("{other:?}"),
    }
}

/// Returns the names of a map's fields.
fn names_of(map: &Reply) -> Vec<String> {
    elements(map.clone()).iter().step_by(2).map(text).collect()
}

#[test]
fn command_tells_of_ours_as_redis_tells_of_its_own() {
    let proxy = Proxy::start();
    for version in ["2", "3"] {
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        let ours = elements(client.cmd(&[
            "COMMAND",
            "INFO",
            "lock",
            "UNLOCK",
            "renew",
            "lockgate",
            "lock.attach",
        ]));
        let redis = elements(client.cmd(&["COMMAND", "INFO", "set"]));
        let names: Vec<String> = ours.iter().map(|one| text(&elements(one.clone())[0])).collect();
        assert_eq!(names, ["lock", "unlock", "renew", "lockgate", "lock.attach"]);
        let (lock, set) = (elements(ours[0].clone()), elements(redis[0].clone()));
        assert_eq!(lock.len(), set.len());
        for (ours, redis) in lock.iter().zip(&set) {
            assert_eq!(shape(ours), shape(redis), "{ours:?} {redis:?}");
        }
        for part in ["flags", "begin_search", "find_keys"] {
            let of = |entry: &[Reply]| field(&elements(entry[8].clone())[0], part);
            assert_eq!(shape(&of(&lock)), shape(&of(&set)), "{part}");
        }
        // Of commands about several keys it tells as Redis of one that pops from several lists.
        let several = elements(client.cmd(&["COMMAND", "INFO", "mlock"]));
        let redis = elements(client.cmd(&["COMMAND", "INFO", "lmpop"]));
        let (mlock, lmpop) = (elements(several[0].clone()), elements(redis[0].clone()));
        let keys = |entry: &[Reply]| field(&elements(entry[8].clone())[0], "find_keys");
        assert_eq!(keys(&mlock), keys(&lmpop));
        assert_eq!(mlock[3..6], lmpop[3..6], "no key has a fixed place");
        let docs = field(&client.cmd(&["COMMAND", "DOCS", "mlock"]), "mlock");
        let redis = field(&client.cmd(&["COMMAND", "DOCS", "lmpop"]), "lmpop");
        let arguments = |docs: &Reply| elements(field(docs, "arguments"));
        for (of_mlock, of_lmpop) in arguments(&docs).iter().zip(&arguments(&redis)).take(2) {
            assert_eq!(names_of(of_mlock), names_of(of_lmpop));
            assert_eq!(shape(of_mlock), shape(of_lmpop));
        }
        let container = elements(client.cmd(&["COMMAND", "INFO", "client"]));
        let (lockgate, redis) = (elements(ours[3].clone()), elements(container[0].clone()));
        for (ours, redis) in lockgate.iter().zip(&redis) {
            assert_eq!(shape(ours), shape(redis), "{ours:?} {redis:?}");
        }
        let docs = client.cmd(&["COMMAND", "DOCS", "lock"]);
        let redis = client.cmd(&["COMMAND", "DOCS", "set"]);
        let (docs, redis) = (field(&docs, "lock"), field(&redis, "set"));
        for name in ["summary", "since", "group", "arguments"] {
            assert_eq!(shape(&field(&docs, name)), shape(&field(&redis, name)), "{name}");
        }
        let arguments = elements(field(&docs, "arguments"));
        assert_eq!(field(&arguments[3], "token"), Reply::bulk("WAIT"));
        assert_eq!(field(&arguments[4], "token"), Reply::bulk("PERMITS"));
        let of_set = elements(field(&redis, "arguments"));
        for (ours, redis) in [(&arguments[0], &of_set[0]), (&arguments[2], &of_set[4])] {
            assert_eq!(names_of(ours), names_of(redis));
            assert_eq!(shape(ours), shape(redis));
        }
        for name in ["flags", "arguments"] {
            assert_eq!(shape(&field(&arguments[2], name)), shape(&field(&of_set[4], name)));
        }
        let docs = field(&client.cmd(&["COMMAND", "DOCS", "lockgate"]), "lockgate");
        let redis = field(&client.cmd(&["COMMAND", "DOCS", "client"]), "client");
        let mut fields = names_of(&redis);
        fields.retain(|name| name != "complexity");
        assert_eq!(names_of(&docs), fields);
        let (docs, redis) = (field(&docs, "subcommands"), field(&redis, "subcommands"));
        assert_eq!(shape(&docs), shape(&redis));
        let locks = elements(field(&field(&docs, "lockgate|locks"), "arguments"));
        assert_eq!(field(&locks[0], "name"), Reply::bulk("pattern"));
    }
}

#[test]
fn command_tells_the_keys_of_ours_as_redis_those_of_its_own() {
    let proxy = Proxy::start();
    for version in ["2", "3"] {
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        let mut ask = |subcommand, command: &str| {
            let words = command.split(' ');
            client.cmd(&["COMMAND", subcommand].into_iter().chain(words).collect::<Vec<_>>())
        };
        for (command, keys) in [
            ("LOCK a", "a"),
            ("lock a t PX 5 WAIT", "a"),
            ("UNLOCK a t", "a"),
            ("RENEW a PX 5", "a"),
            ("LOCK.ATTACH a t", "a"),
            ("LOCK.DETACH a", "a"),
            ("MLOCK 2 a b", "a b"),
            ("mlock 3 a b a t PX 5 WAIT 5", "a b a"),
            ("MUNLOCK 1 a t", "a"),
        ] {
            let count = keys.split(' ').count();
            let eval = format!("EVAL script {count} {keys}");
            assert_eq!(ask("GETKEYS", command), ask("getkeys", &eval), "{command}");
            let with_flags = ask("GETKEYSANDFLAGS", command);
            assert_eq!(shape(&with_flags), shape(&ask("GETKEYSANDFLAGS", &eval)), "{command}");
            // INCR uses its key as they do: it reads and changes what is there.
            let of_incr = keys
                .split(' ')
                .flat_map(|key| elements(ask("getKeysAndFlags", &format!("INCR {key}"))));
            assert_eq!(elements(with_flags), of_incr.collect::<Vec<_>>(), "{command}");
        }
        for (command, like) in [
            ("LOCK", "GET"),
            ("UNLOCK", "GET"),
            ("RENEW", "GET"),
            ("LOCK.ATTACH a", "SET a"),
            ("LOCK.ATTACH a t x", "GET a b c"),
            ("LOCK.DETACH a x", "GET a b"),
            ("MLOCK 1", "EVAL script"),
            ("MUNLOCK", "EVAL"),
            ("MLOCK 0 a", "ZUNION 0 a"),
            ("MLOCK -1 a", "ZUNION -1 a"),
            ("MLOCK 3 a b", "ZUNION 3 a b"),
            ("MUNLOCK x a", "ZUNION x a"),
            ("LOCKGATE", "PING"),
            ("LOCKGATE INFO", "PING a"),
            ("LOCKGATE LOCK a", "PING a"),
            ("LOCKGATE FOO a", "CLIENT FOO a"),
        ] {
            for subcommand in ["GETKEYS", "GETKEYSANDFLAGS"] {
                let error = ask(subcommand, command);
                assert_eq!(error, ask(subcommand, like), "{command}");
                assert!(error.error().starts_with("ERR "), "{command}: {error:?}");
            }
        }
    }
    // As many keys as MLOCK takes. In a transaction Redis answers, as it does about INFO.
    let mut client = proxy.client();
    let keys: Vec<String> = (0..128).map(|n| format!("k{n}")).collect();
    let keys = keys.iter().map(String::as_str);
    let all = ["COMMAND", "GETKEYS", "MLOCK", "128"].into_iter().chain(keys);
    let all: Vec<&str> = all.chain(["t", "PX", "5", "WAIT", "5"]).collect();
    assert_eq!(elements(client.cmd(&all)).len(), 128);
    let about = &["COMMAND", "GETKEYS", "LOCK", "a"][..];
    let queued = client.pipe(&[&["MULTI"], about, &["EXEC"], about]);
    assert_eq!(queued[1], Reply::simple("QUEUED"));
    let Reply::Array(of_redis) = &queued[2] else { panic!("{queued:?}") };
    assert_eq!(of_redis[0].error(), "ERR Invalid command specified");
    assert_eq!(queued[3], Reply::Array(vec![Reply::bulk("a")]));
}

#[test]
fn what_command_says_of_others_is_redis_own() {
    let mut proxy = Proxy::start();
    let mut direct = Client::connect(proxy.data().port());
    let mut client = proxy.client();
    for words in [
        &["COMMAND", "INFO", "lock", "get"][..],
        &["COMMAND", "INFO", "get", "lock"],
        &["COMMAND", "DOCS", "get"],
        &["COMMAND", "GETKEYS", "set", "lock", "a"],
        &["COMMAND", "GETKEYS"],
        &["COMMAND", "GETKEYSANDFLAGS"],
        &["COMMAND", "HELP"],
        &["COMMAND", "FOO"],
        &["COMMAND", ""],
    ] {
        assert_eq!(client.cmd(words), direct.cmd(words), "{words:?}");
    }
    // However the bytes are cut, the replies are the same.
    let bytes =
        support::pipeline(&[&["COMMAND", "INFO", "lock", "get"], &["COMMAND", "DOCS", "lock"]]);
    let whole = client.pipe(&[&["COMMAND", "INFO", "lock", "get"], &["COMMAND", "DOCS", "lock"]]);
    for cut in (1..bytes.len()).step_by(3) {
        client.send(&bytes[..cut]);
        thread::sleep(Duration::from_millis(1));
        client.send(&bytes[cut..]);
        assert_eq!([client.reply(), client.reply()], *whole, "cut at {cut}");
    }
}

#[test]
fn command_about_more_than_ours_is_forwarded_untouched() {
    let mut proxy = Proxy::start();
    let mut direct = Client::connect(proxy.data().port());
    let mut client = proxy.client();
    let many: Vec<&str> = ["COMMAND", "INFO", "lock"].into_iter().chain(["get"; 40]).collect();
    let (long, nothing) = ("x".repeat(200_000), "");
    for words in [
        &many[..],
        &["COMMAND", "DOCS", "lock", "get", "set", "del", "type", "ttl", "pttl", "copy"],
        &["COMMAND", "INFO", "unlock", &long],
        &["COMMAND", "DOCS", "renew", nothing],
    ] {
        assert_eq!(client.cmd(words), direct.cmd(words), "{} words", words.len());
    }
    assert_eq!(
        client.cmd(&["COMMAND", "INFO", "lock", "get"]),
        direct.cmd(&["COMMAND", "INFO", "lock", "get"])
    );
}

#[test]
fn a_skipped_reply_is_that_of_the_command_behind_skip() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    for words in [
        &["COMMAND", "INFO", "lock"][..],
        &["COMMAND", "INFO", "lock", "get"],
        &["COMMAND", "DOCS"],
        &["LOCKGATE", "VERSION"],
        &["LOCKGATE", "FOO"],
    ] {
        client.send(&support::pipeline(&[
            &["CLIENT", "REPLY", "SKIP"],
            words,
            &["ECHO", "behind"],
            &["ECHO", "again"],
        ]));
        assert_eq!(client.reply(), Reply::bulk("behind"), "{words:?}");
        assert_eq!(client.reply(), Reply::bulk("again"), "{words:?}");
    }
}

/// Makes a Redis list its commands in the same order each time: a new one is still rehashing its tables, by a step with
/// each look-up.
fn settled(mut redis: Client) -> Client {
    redis.pipe(&[&["COMMAND", "COUNT"][..]; 300]);
    redis
}

const LISTINGS: [&[&str]; 4] =
    [&["COMMAND"], &["COMMAND", "INFO"], &["command", "Info"], &["COMMAND", "DOCS"]];

#[test]
fn command_without_names_lists_ours_behind_redis_own() {
    let mut proxy = Proxy::start();
    let mut direct = settled(Client::connect(proxy.data().port()));
    let mut client = proxy.client();
    for version in ["2", "3", "2"] {
        for client in [&mut direct, &mut client] {
            client.cmd(&["HELLO", version]);
        }
        for listing in LISTINGS {
            let (redis, [before, ours, behind]) = (
                direct.cmd(listing),
                client
                    .pipe(&[&["ECHO", "a"], listing, &["LOCKGATE", "VERSION"]])
                    .try_into()
                    .unwrap(),
            );
            assert_eq!(before, Reply::bulk("a"));
            assert_eq!(behind, Reply::bulk(env!("CARGO_PKG_VERSION")));
            // Arrays or a map, as Redis sends it.
            assert_eq!(std::mem::discriminant(&ours), std::mem::discriminant(&redis));
            let (ours, redis) = (elements(ours), elements(redis));
            let (same, added) = ours.split_at(redis.len());
            assert!(same == redis, "RESP{version} {listing:?}");
            let subcommand = listing.get(1).unwrap_or(&"INFO");
            let by_name: Vec<&str> = ["COMMAND", subcommand].into_iter().chain(OURS).collect();
            assert_eq!(added, elements(client.cmd(&by_name)), "RESP{version} {listing:?}");
        }
    }
}

#[test]
fn command_counts_and_lists_ours_too() {
    let mut proxy = Proxy::start();
    let mut direct = settled(Client::connect(proxy.data().port()));
    let mut client = proxy.client();
    for version in ["2", "3"] {
        for client in [&mut direct, &mut client] {
            client.cmd(&["HELLO", version]);
        }
        let Reply::Int(of_redis) = direct.cmd(&["COMMAND", "COUNT"]) else { panic!("no count") };
        assert_eq!(client.cmd(&["COMMAND", "COUNT"]), Reply::Int(of_redis + 8));
        let of_redis = direct.cmd(&["command", "list"]);
        let all = client.cmd(&["command", "list"]);
        assert_eq!(std::mem::discriminant(&all), std::mem::discriminant(&of_redis));
        let names = |reply| match reply {
            Reply::Array(names) | Reply::Set(names) => names,
            other => panic!("{other:?}"),
        };
        let (all, of_redis) = (names(all), names(of_redis));
        let (same, added) = all.split_at(of_redis.len());
        assert!(same == of_redis, "RESP{version}");
        let added: Vec<String> = added.iter().map(text).collect();
        assert_eq!(added[..8], OURS);
        assert_eq!(added[8], "lockgate|help");
        // Filtered lists and errors come from Redis alone.
        let filtered = ["COMMAND", "LIST", "FILTERBY", "PATTERN", "get*"];
        assert_eq!(client.cmd(&filtered), direct.cmd(&filtered));
        assert_eq!(client.cmd(&["COMMAND", "COUNT", "x"]), direct.cmd(&["COMMAND", "COUNT", "x"]));
    }
}

#[test]
fn a_list_is_only_added_to_where_redis_gives_one() {
    let mut proxy = Proxy::start();
    let mut direct = settled(Client::connect(proxy.data().port()));
    let mut client = proxy.client();
    let mut same = |what: &[&[&str]]| {
        let (redis, seen) = (direct.pipe(what), client.pipe(what));
        assert!(redis == seen, "{what:?}");
    };
    for listing in LISTINGS.into_iter().chain([&["COMMAND", "COUNT"][..], &["COMMAND", "LIST"]]) {
        same(&[&["MULTI"], listing, &["ECHO", "a"], &["EXEC"]]);
        same(&[&["SUBSCRIBE", "c"], listing, &["UNSUBSCRIBE", "c"], &["PING"]]);
    }
    let user = ["ACL", "SETUSER", "app", "on", "nopass", "+@all", "-command"];
    direct.cmd(&user);
    for client in [&mut direct, &mut client] {
        client.cmd(&["AUTH", "app", "x"]);
    }
    for listing in LISTINGS {
        let (redis, seen) = (direct.cmd(listing), client.cmd(listing));
        assert!(redis.error().starts_with("NOPERM") && redis == seen, "{listing:?}");
    }
}

/// Starts a server that plays the data node: it waits for a word, then sends pieces with pauses between them, and
/// closes. Health checks get no answer. Returns its port.
fn scripted(word: &'static str, pieces: Vec<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, pieces) = (stream.unwrap(), pieces.clone());
            thread::spawn(move || {
                if !read_until(&mut stream, word) {
                    return;
                }
                stream.set_nodelay(true).unwrap();
                for piece in pieces {
                    if piece.is_empty() {
                        // Before this piece it waits for the next word.
                        read_until(&mut stream, "REPLCONF");
                    }
                    stream.write_all(&piece).unwrap();
                    thread::sleep(Duration::from_millis(2));
                }
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

fn read_until(stream: &mut TcpStream, word: &str) -> bool {
    let (mut seen, mut space) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains(word) {
        match stream.read(&mut space) {
            Ok(n) if n > 0 => seen.extend_from_slice(&space[..n]),
            _ => return false,
        }
    }
    true
}

/// Lockgate's commands, in the order of the list.
const OURS: [&str; 8] =
    ["lock", "unlock", "renew", "mlock", "munlock", "lock.attach", "lock.detach", "lockgate"];
/// The beginning of Lockgate's entries, behind the list's head.
const FIRST_OF_OURS: &str = "*10\r\n$4\r\nlock\r\n";

/// Returns the bytes that a client of such a data node gets for COMMAND.
fn listed(pieces: Vec<Vec<u8>>, then: &[u8]) -> String {
    let proxy = Proxy::with().data_port(scripted("COMMAND", pieces)).start();
    let mut client = proxy.client();
    client.send(b"COMMAND\r\n");
    if !then.is_empty() {
        // The list must have begun.
        let mut begun = [0; 4];
        client.socket().read_exact(&mut begun).unwrap();
        assert_eq!(&begun, b"*9\r\n");
        client.send(then);
    }
    String::from_utf8(client.rest().0).unwrap()
}

#[test]
fn a_list_in_pieces_is_added_to_as_a_whole_one() {
    let reply = b"*1\r\n*2\r\n$3\r\nget\r\n:2\r\n+NEXT\r\n".to_vec();
    let bytes: Vec<Vec<u8>> = reply.chunks(1).map(<[u8]>::to_vec).collect();
    let (whole, pieces) = (listed(vec![reply.clone()], b""), listed(bytes, b""));
    assert_eq!(whole, pieces);
    let head = "*9\r\n*2\r\n$3\r\nget\r\n:2\r\n".to_owned() + FIRST_OF_OURS;
    assert!(whole.starts_with(&head) && whole.ends_with("\r\n+NEXT\r\n"), "{whole}");
    // An empty list, a head that never ends, and heads that are not those of a list.
    assert!(listed(vec![b"*0\r\n".to_vec()], b"").starts_with(&format!("*8\r\n{FIRST_OF_OURS}")));
    for odd in ["*24", "*", "*-1\r\n", "*1x\r\n", "$-1\r\n", "%1\r\n+a\r\n+b\r\n"] {
        assert_eq!(listed(vec![odd.into()], b""), odd);
    }
    let endless = format!("*{}\r\n", "1".repeat(50));
    assert_eq!(listed(endless.bytes().map(|byte| vec![byte]).collect(), b""), endless);
}

#[test]
fn a_message_to_a_subscriber_is_no_list() {
    // The message was under way when COMMAND was sent, which Redis refuses to a subscriber.
    let redis = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n\
                 *3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n-ERR Can't execute\r\n";
    let port = scripted("COMMAND", vec![redis.into()]);
    let proxy = Proxy::with().data_port(port).start();
    let mut client = proxy.client();
    client.send(b"SUBSCRIBE c\r\nCOMMAND\r\n");
    assert_eq!(String::from_utf8(client.rest().0).unwrap(), redis);
}

#[test]
fn a_list_that_was_begun_is_ended_even_where_replies_are_no_longer_followed() {
    let pieces = [&b"*1\r\n"[..], b"", b"$3\r\nget", b"\r\n", b"+OK\r\n"];
    let seen = listed(pieces.map(<[u8]>::to_vec).into(), b"REPLCONF x\r\n");
    assert!(seen.starts_with(&format!("$3\r\nget\r\n{FIRST_OF_OURS}")), "{seen}");
    assert!(seen.ends_with("\r\n+OK\r\n"), "{seen}");
}

#[test]
#[ignore = "takes long: make long"]
fn lists_pass_without_being_held() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    client.cmd(&["COMMAND", "DOCS"]);
    let before = proxy.memory("VmHWM");
    // 50 MB of replies, with which Redis waits until the client reads.
    client.send(&b"COMMAND DOCS\r\n".repeat(300));
    thread::sleep(Duration::from_millis(500));
    for _ in 0..300 {
        assert!(elements(client.reply()).len() > 400);
    }
    let growth = proxy.memory("VmHWM") - before;
    assert!(growth < 8 << 20, "{} KB more", growth >> 10);
}

/// Types into redis-cli in a terminal 150 columns wide. Returns what it has printed.
fn typed(port: u16, keys: &[&str]) -> String {
    machine::has_terminals();
    let mut child = Command::new("timeout")
        .args(["20", "script", "--quiet", "--return", "--command"])
        .arg(format!("stty cols 150; exec redis-cli -p {port}"))
        .arg("/dev/null")
        .env("TERM", "xterm")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let reader = thread::spawn(move || {
        let mut seen = Vec::new();
        let _ = output.read_to_end(&mut seen);
        String::from_utf8_lossy(&seen).into_owned()
    });
    // redis-cli reads keys one by one once it has asked for the commands.
    thread::sleep(Duration::from_millis(2000));
    for key in keys {
        input.write_all(key.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(400));
    }
    child.wait().unwrap();
    reader.join().unwrap()
}

#[test]
fn redis_cli_gives_hints_and_help() {
    let proxy = Proxy::start();
    let seen = typed(proxy.port(), &["lock ", "job ", "\r", "lockgate locks ", "\r", "exit\r"]);
    for hint in [
        "key [token] [PX milliseconds|EX seconds] [WAIT milliseconds] [PERMITS n] [SHARED]",
        "[token] [PX milliseconds|EX seconds] [WAIT milliseconds] [PERMITS n] [SHARED]\u{1b}",
        "[pattern] [COUNT count] [BY WAITERS|AGE|WAIT]\u{1b}",
    ] {
        assert!(seen.contains(hint), "no {hint:?} in {seen:?}");
    }
    let seen = typed(proxy.port(), &["help unlock\r", "help lockgate nodes\r", "exit\r"]);
    for line in ["Gives a lock back, or hands it over", "Lists the lock nodes."] {
        assert!(seen.contains(line), "no {line:?} in {seen:?}");
    }
}
