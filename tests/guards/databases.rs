//! Fences live in one database, whichever one clients have selected: a lock covers its keys in all of them.

use super::account::{ACCOUNTS, SCRIPT, WAYS, is_written, take_away, write};
use crate::support::{Client, Proxy, Reply, eventually, pipeline};

/// Starts a deployment with guarded accounts.
fn accounts() -> Proxy {
    Proxy::with().top(ACCOUNTS).start()
}

fn lock(client: &mut Client) {
    client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
}

fn data(proxy: &mut Proxy) -> Client {
    Client::connect(proxy.data().port())
}

/// Returns the values of a key in the first eight databases.
fn values(data: &mut Client, key: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for database in 0..8 {
        data.cmd(&["SELECT", &database.to_string()]);
        if let Reply::Bulk(value) = data.cmd(&["GET", key]) {
            all.push((database, String::from_utf8(value).expect("text")));
        }
    }
    all
}

/// Returns how often the data node has run this command.
fn calls(data: &mut Client, command: &str) -> usize {
    let Reply::Bulk(info) = data.cmd(&["INFO", "commandstats"]) else { panic!("no INFO") };
    let info = String::from_utf8_lossy(&info).into_owned();
    let field = format!("cmdstat_{command}:calls=");
    let rest = info.split(&field).nth(1).unwrap_or("0,");
    rest.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number")
}

#[test]
fn an_earlier_holder_is_refused_in_every_database_once_the_next_has_locked_in_any() {
    for [of_slow, of_quick] in [["1", "0"], ["0", "1"], ["1", "2"]] {
        for way in WAYS {
            let mut proxy = accounts();
            let (mut slow, mut quick) = (proxy.client(), proxy.client());
            assert_eq!(slow.cmd(&["SELECT", of_slow]), Reply::ok());
            lock(&mut slow);
            assert!(is_written(&write(&mut slow, way, "early")));
            take_away(&proxy);
            assert_eq!(quick.cmd(&["SELECT", of_quick]), Reply::ok());
            lock(&mut quick);
            let refused = write(&mut slow, way, "late");
            assert!(refused.error_text().starts_with("FENCED"), "{way}: {refused:?}");
            let database = of_slow.parse().expect("a number");
            let early = [(database, "early".to_owned())];
            assert_eq!(values(&mut data(&mut proxy), "account:1"), early, "{way}");
            // The next holder may write in any database.
            for database in ["0", "1", "5"] {
                assert_eq!(quick.cmd(&["SELECT", database]), Reply::ok());
                assert!(is_written(&write(&mut quick, way, "quick")), "{way} {database}");
            }
            // The fence is in database 0 alone.
            let fences = values(&mut data(&mut proxy), "lockgate:guard:lock:account:1");
            assert_eq!(fences.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0]);
        }
    }
}

#[test]
fn a_write_lands_in_the_database_that_is_selected_and_is_asked_for_once() {
    for protocol in ["2", "3"] {
        let mut proxy = accounts();
        let mut data = data(&mut proxy);
        let mut client = proxy.client();
        client.cmd(&["HELLO", protocol]);
        lock(&mut client);
        for way in WAYS {
            assert!(is_written(&write(&mut client, way, "zero")), "{way}");
        }
        assert_eq!((calls(&mut data, "client|info"), calls(&mut data, "select")), (0, 0));
        let mut expected = vec![(0, "zero".to_owned())];
        for (database, way) in [3, 4, 5].into_iter().zip(WAYS) {
            assert_eq!(client.cmd(&["SELECT", &database.to_string()]), Reply::ok());
            for _ in 0..3 {
                assert!(is_written(&write(&mut client, way, way)), "{way}");
            }
            expected.push((database, way.to_owned()));
            assert_eq!(values(&mut data, "account:1"), expected);
            assert_eq!(calls(&mut data, "client|info"), database - 2);
        }
        // Common writes go by the script there too, and numbers are read back exactly.
        assert_eq!(client.cmd(&["SET", "account:1", "9007199254740993"]), Reply::ok());
        let transactions = calls(&mut data, "multi");
        assert_eq!(client.cmd(&["INCR", "account:1"]), Reply::Int(9_007_199_254_740_994));
        assert_eq!(calls(&mut data, "multi"), transactions);
        assert!(client.cmd(&["INCR", "account:1", "x"]).error().starts_with("ERR wrong number"));
        assert_eq!(client.cmd(&["GET", "account:1"]), Reply::bulk("9007199254740994"));
    }
}

#[test]
fn a_select_is_seen_however_it_comes() {
    let mut proxy = accounts();
    let mut data = data(&mut proxy);
    let mut client = proxy.client();
    lock(&mut client);
    let set = |value: &'static str| ["SET", "account:1", value];
    // In one packet.
    let replies = client.pipe(&[
        &["SELECT", "1"],
        &set("one"),
        &["select", "2"],
        &set("two"),
        &["SELECT", "x"],
        &set("two"),
        &["SELECT", "99"],
        &["SELECT"],
        &["APPEND", "account:1", "!"],
    ]);
    assert_eq!([&replies[1], &replies[3], &replies[5]], [&Reply::ok(); 3]);
    assert_eq!(replies[8], Reply::Int(4));
    let mut expected = vec![(1, "one".to_owned()), (2, "two!".to_owned())];
    assert_eq!(values(&mut data, "account:1"), expected);
    // As a line.
    client.send(b"\"sel\\x65ct\" 3\r\nSET account:1 three\r\n");
    assert_eq!([client.reply(), client.reply()], [Reply::ok(), Reply::ok()]);
    expected.push((3, "three".to_owned()));
    assert_eq!(values(&mut data, "account:1"), expected);
    // In a transaction that runs, where it counts at once, and in two that do not run.
    let replies =
        client.pipe(&[&["MULTI"], &["SELECT", "4"], &set("four"), &["EXEC"], &set("four!")]);
    assert_eq!(replies[3], Reply::Array(vec![Reply::ok(), Reply::ok()]));
    assert_eq!(replies[4], Reply::ok());
    client.pipe(&[&["MULTI"], &["SELECT", "5"], &["DISCARD"]]);
    assert_eq!(client.cmd(&["APPEND", "account:1", "!"]), Reply::Int(6));
    let replies = client.pipe(&[&["MULTI"], &["SELECT", "5"], &["NOSUCH"], &["EXEC"]]);
    assert!(replies[3].error().starts_with("EXECABORT"));
    assert_eq!(client.cmd(&["APPEND", "account:1", "!"]), Reply::Int(7));
    expected.push((4, "four!!!".to_owned()));
    assert_eq!(values(&mut data, "account:1"), expected);
    // SELECT while replies are off or skipped.
    client.send(&pipeline(&[
        &["CLIENT", "REPLY", "OFF"],
        &["SELECT", "5"],
        &set("five"),
        &["CLIENT", "REPLY", "ON"],
        &["CLIENT", "REPLY", "SKIP"],
        &["SELECT", "6"],
        &["CLIENT", "REPLY", "SKIP"],
        &set("six"),
        &["PING"],
    ]));
    assert_eq!([client.reply(), client.reply()], [Reply::ok(), Reply::simple("PONG")]);
    expected.extend([(5, "five".to_owned()), (6, "six".to_owned())]);
    assert_eq!(values(&mut data, "account:1"), expected);
    // RESET selects database 0 again.
    assert_eq!(client.cmd(&["RESET"]), Reply::simple("RESET"));
    assert!(is_written(&write(&mut client, "transaction", "zero")));
    expected.insert(0, (0, "zero".to_owned()));
    assert_eq!(values(&mut data, "account:1"), expected);
}

#[test]
fn what_writes_to_another_database_is_a_write_as_any_other() {
    let mut proxy = accounts();
    let mut data = data(&mut proxy);
    let mut slow = proxy.client();
    slow.cmd(&["LOCK", "account:2", "PX", "30000"]).grant();
    lock(&mut slow);
    assert_eq!(slow.cmd(&["SELECT", "1"]), Reply::ok());
    assert_eq!(slow.cmd(&["SET", "account:1", "x"]), Reply::ok());
    assert_eq!(slow.cmd(&["COPY", "account:1", "account:2", "DB", "3"]), Reply::Int(1));
    assert_eq!(slow.cmd(&["MOVE", "account:1", "2"]), Reply::Int(1));
    assert_eq!(values(&mut data, "account:1"), [(2, "x".to_owned())]);
    assert_eq!(values(&mut data, "account:2"), [(3, "x".to_owned())]);
    assert_eq!(slow.cmd(&["SET", "account:1", "y"]), Reply::ok());
    take_away(&proxy);
    lock(&mut proxy.client());
    for words in [
        &["COPY", "free", "account:1", "DB", "3"][..],
        &["COPY", "account:2", "account:1", "DB", "0", "REPLACE"],
        &["MOVE", "account:1", "3"],
    ] {
        lock_again(&mut slow, &proxy);
        let refused = slow.cmd(words);
        assert!(refused.error_text().starts_with("FENCED 'account:1'"), "{words:?}: {refused:?}");
    }
    assert_eq!(values(&mut data, "account:1"), [(1, "y".to_owned()), (2, "x".to_owned())]);
}

/// Makes the client take the lock again, and then another client.
fn lock_again(client: &mut Client, proxy: &Proxy) {
    take_away(proxy);
    lock(client);
    take_away(proxy);
    lock(&mut proxy.client());
}

#[test]
fn who_is_attached_writes_in_any_database() {
    let mut proxy = accounts();
    let mut data = data(&mut proxy);
    let mut owner = proxy.client();
    let token = owner.cmd(&["LOCK", "account:1", "PX", "30000"]).grant().token;
    let mut other = proxy.client();
    assert_eq!(other.cmd(&["SELECT", "3"]), Reply::ok());
    other.cmd(&["LOCK.ATTACH", "account:1", &token]).grant();
    for way in WAYS {
        assert!(is_written(&write(&mut other, way, "attached")), "{way}");
        assert!(is_written(&write(&mut owner, way, "owner")), "{way}");
    }
    let expected = [(0, "owner".to_owned()), (3, "attached".to_owned())];
    assert_eq!(values(&mut data, "account:1"), expected);
    take_away(&proxy);
    let mut next = proxy.client();
    assert_eq!(next.cmd(&["SELECT", "7"]), Reply::ok());
    lock(&mut next);
    for client in [&mut other, &mut owner] {
        assert!(write(client, "short", "late").error_text().starts_with("FENCED"));
    }
    assert_eq!(values(&mut data, "account:1"), expected);
}

/// Returns a client with the rights of this user of the data node.
fn user(proxy: &Proxy, data: &mut Client, rules: &[&str]) -> Client {
    let words = [&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*"], rules].concat();
    assert_eq!(data.cmd(&words), Reply::ok());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "app", "pw"]), Reply::ok());
    client
}

#[test]
fn who_may_not_ask_for_its_database_is_refused_behind_select() {
    let mut proxy = accounts();
    let mut data = data(&mut proxy);
    let mut client = user(&proxy, &mut data, &["+@all", "-client|info"]);
    lock(&mut client);
    for way in WAYS {
        assert!(is_written(&write(&mut client, way, "zero")), "{way}");
    }
    assert_eq!(client.cmd(&["SELECT", "1"]), Reply::ok());
    let needs = "NOPERM a guarded write behind SELECT needs CLIENT INFO: ";
    for way in WAYS {
        let refused = write(&mut client, way, "one");
        assert!(refused.error_text().starts_with(needs), "{way}: {refused:?}");
    }
    client.send(&pipeline(&[
        &["CLIENT", "REPLY", "OFF"],
        &["SET", "account:1", "one"],
        &["PING"],
        &["CLIENT", "REPLY", "ON"],
        &["SET", "free", "one"],
    ]));
    assert_eq!([client.reply(), client.reply()], [Reply::ok(), Reply::ok()]);
    assert_eq!(values(&mut data, "account:1"), [(0, "zero".to_owned())]);
    assert_eq!(values(&mut data, "free"), [(1, "one".to_owned())]);
    // A user that may not SELECT is still in database 0.
    let mut client = user(&proxy, &mut data, &["+client|info", "-select"]);
    take_away(&proxy);
    lock(&mut client);
    assert!(client.cmd(&["SELECT", "1"]).error().starts_with("NOPERM"));
    for way in WAYS {
        assert!(is_written(&write(&mut client, way, way)), "{way}");
    }
    assert_eq!(values(&mut data, "account:1"), [(0, "transaction".to_owned())]);
}

#[test]
fn a_connection_that_may_be_in_another_database_than_its_client_believes_is_closed() {
    let mut proxy = accounts();
    let mut data = data(&mut proxy);
    for (closes, way) in WAYS.into_iter().enumerate() {
        let mut client = user(&proxy, &mut data, &["+@all"]);
        lock(&mut client);
        assert_eq!(client.cmd(&["SELECT", "1"]), Reply::ok());
        assert!(is_written(&write(&mut client, way, "one")));
        // A session that may not SELECT stays in its database.
        assert_eq!(data.cmd(&["ACL", "SETUSER", "app", "-select"]), Reply::ok());
        let refused = write(&mut client, way, "never");
        assert!(refused.error_text().starts_with("NOPERM"), "{way}: {refused:?}");
        assert!(client.cmd(&["LOCK", "account:2", "PX", "9000"]).error_text().contains("NOPERM"));
        assert_eq!(client.cmd(&["SET", "free", "one"]), Reply::ok());
        assert_eq!(
            client.cmd(&["SET", "account:2", "x"]).error().split(' ').next(),
            Some("NOTHELD")
        );
        // The session may go to database 0, but not come back.
        assert_eq!(data.cmd(&["ACL", "SETUSER", "app", "+select|0"]), Reply::ok());
        let write: &[&str] = match way {
            "long" => &["EVAL", SCRIPT, "1", "account:1", "never"],
            _ => &["SET", "account:1", "never"],
        };
        let all: &[&[&str]] = match way {
            "transaction" => &[&["MULTI"], write, &["SET", "free", "x"], &["EXEC"]],
            _ => &[write, &["SET", "free", "x"]],
        };
        client.send(&pipeline(all));
        let told = client.reply();
        assert!(told.error_text().starts_with("NOPERM"), "{way}: {told:?}");
        assert_eq!(client.rest().0, b"", "{way}");
        let closed = || proxy.metric("lockgate_closes_total", "unguarded");
        eventually("it is counted", || closed() == (closes + 1) as f64);
        assert_eq!(values(&mut data, "account:1"), [(1, "one".to_owned())], "{way}");
        assert_eq!(values(&mut data, "free"), [(1, "one".to_owned())], "{way}");
        eventually("the lock of account 2 is free", || proxy.nodes_with("lock:account:2") == 0);
        take_away(&proxy);
    }
}

/// `select` in scripts and functions changes nothing for their client: the proxy counts on that.
#[test]
fn scripts_and_functions_select_nothing_for_their_client() {
    let mut proxy = accounts();
    let mut data = data(&mut proxy);
    let mut client = proxy.client();
    lock(&mut client);
    let library = "#!lua name=l\nredis.register_function('f', function(keys, args) \
                   return redis.call('SELECT', 5) end)";
    assert_eq!(client.cmd(&["FUNCTION", "LOAD", library]), Reply::bulk("l"));
    for words in [&["EVAL", "return redis.call('SELECT', 5)", "0"][..], &["FCALL", "f", "0"]] {
        assert_eq!(client.cmd(words), Reply::ok(), "{words:?}");
        let replies = client.pipe(&[&["MULTI"], words, &["EXEC"]]);
        assert_eq!(replies[2], Reply::Array(vec![Reply::ok()]), "{words:?}");
        for way in WAYS {
            assert!(is_written(&write(&mut client, way, way)), "{way}");
        }
        assert_eq!(values(&mut data, "account:1"), [(0, "transaction".to_owned())]);
    }
    assert_eq!(calls(&mut data, "client|info"), 0);
}
