//! Clients that share connections to the data node (`share: yes`): each trap of sharing has a test of its own, and
//! random commands of several clients at once are compared with what a Redis of their own replies.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::support::{
    Client, Proxy, Reply, Setup, encode, eventually, pipeline, relay::Relay, replicates,
};
use lockgate::tools::redis_server::RedisServer;

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A proxy all of whose clients are on one link.
pub(super) fn sharing() -> Setup {
    Proxy::with().top("share: yes\nio_threads: 1")
}

/// Starts such a proxy, with a guard or without.
pub(super) fn sharing_guarded(is_guarded: bool) -> Proxy {
    if !is_guarded {
        return sharing().start();
    }
    let proxy = sharing().top("guards: [{keys: 'g:*', lock: 'g:{1}'}]").start();
    eventually("commands are known", || proxy.log().contains("commands are known"));
    proxy
}

/// How many connections of clients the data node has, besides this question's.
fn connections(proxy: &Proxy) -> usize {
    let Reply::Bulk(list) = proxy.data_client().cmd(&["CLIENT", "LIST", "TYPE", "normal"]) else {
        panic!("a list")
    };
    let lines = String::from_utf8(list).unwrap();
    // The proxy's own questions, and this one.
    lines.lines().filter(|line| !line.contains("cmd=client|list")).count()
}

fn pinned(proxy: &Proxy, by: &str) -> f64 {
    proxy.metric("lockgate_pinned_total", by)
}

/// Waits until the link is there, so that a test is about what comes behind.
pub(super) fn warm(proxy: &Proxy) -> Client {
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    client
}

#[test]
fn clients_share_a_connection_until_one_leaves_state_in_it() {
    let proxy = sharing().start();
    let before = connections(&proxy);
    let mut clients: Vec<Client> = (0..50).map(|_| proxy.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let (key, value) = (format!("k{n}"), format!("v{n}"));
        assert_eq!(client.cmd(&["SET", &key, &value]), Reply::ok());
        assert_eq!(client.cmd(&["GET", &key]), Reply::bulk(&value));
    }
    // The link, and the connection for greetings.
    assert!(connections(&proxy) <= before + 2, "{} and {before}", connections(&proxy));
    assert_eq!(proxy.metric("lockgate_links", ""), 1.0);
    for (client, (words, by)) in clients.iter_mut().zip([
        (&["MULTI"][..], "transaction"),
        (&["WATCH", "k1"], "transaction"),
        (&["SUBSCRIBE", "c"], "pubsub"),
        (&["BLPOP", "none", "0.01"], "blocking"),
        (&["CLIENT", "ID"], "client"),
        (&["SELECT", "1"], "select"),
        (&["RESET"], "other"),
        (&["NOSUCHCOMMAND"], "other"),
    ]) {
        let count = pinned(&proxy, by);
        client.cmd(words);
        assert_eq!(pinned(&proxy, by), count + 1.0, "{words:?}");
        client.cmd(&["PING"]);
        assert_eq!(pinned(&proxy, by), count + 1.0, "once: {words:?}");
    }
    // In the transaction, and behind it.
    let [first, second, ..] = &mut clients[..] else { unreachable!() };
    assert_eq!(first.cmd(&["EXEC"]), Reply::Array(vec![Reply::simple("PONG")]));
    assert_eq!(proxy.data_client().cmd(&["SET", "k1", "changed"]), Reply::ok());
    assert_eq!(second.pipe(&[&["MULTI"], &["EXEC"]])[1], Reply::NullArray, "it was watched");
    assert_eq!(clients[49].cmd(&["GET", "k0"]), Reply::bulk("v0"));
    assert!(connections(&proxy) <= before + 2 + 8);
    // As greetings, with words that are not remembered.
    for (words, by) in [(&["SELECT", "x"][..], "select"), (&["HELLO", "3", "AUTH", "u"], "other")] {
        let count = pinned(&proxy, by);
        proxy.client().cmd(words).error_text();
        assert_eq!(pinned(&proxy, by), count + 1.0, "{words:?}");
    }
}

#[test]
fn few_clients_share_one_link_and_many_use_every_thread() {
    let proxy = Proxy::with().top("share: yes\nio_threads: 4").start();
    let mut clients: Vec<Client> = Vec::new();
    for (all, links) in [(50, 1.0), (4 * 150, 4.0)] {
        clients.resize_with(all, || proxy.client());
        for client in &mut clients {
            assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
        }
        assert_eq!(proxy.metric("lockgate_links", ""), links, "{all} clients");
    }
}

#[test]
fn a_listener_may_have_its_clients_share_or_not_whatever_others_do() {
    for (all, some) in [("yes", "no"), ("no", "yes")] {
        let listener = format!(", share: {some}");
        let setup = Proxy::with().behind_balancer(&listener).top("allow_open: yes");
        let proxy = setup.top(&format!("share: {all}\nio_threads: 1")).start();
        let before = connections(&proxy);
        let own = |shares: &str, count: usize| if shares == "yes" { 0 } else { count };
        let mut clients: Vec<Client> = (0..10).map(|_| proxy.client()).collect();
        let balanced = (0..5).map(|_| {
            let mut client = Client::connect(proxy.balancer_port());
            client.send(b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n");
            client
        });
        clients.extend(balanced);
        for client in &mut clients {
            assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
        }
        // Beside them, the link and the connection for greetings.
        let least = before + own(all, 10) + own(some, 5);
        let now = connections(&proxy);
        assert!((least + 1..=least + 2).contains(&now), "{now}, not {least} and the link");
    }
}

#[test]
fn a_command_of_a_clients_own_comes_behind_all_that_the_client_sent() {
    let proxy = sharing().start();
    for round in 0..50 {
        let mut busy = proxy.client();
        busy.send(&encode(&["INCR", "busy"]).repeat(300));
        let mut client = proxy.client();
        let (key, mut commands) = (format!("x{round}"), encode(&["PING"]).repeat(round));
        let words: [&[&str]; 6] = [
            &["SET", &key, "1"],
            &["MULTI"],
            &["SET", &key, "2"],
            &["EXEC"],
            &["SETRANGE", &key, "70000", "3"],
            &["GETRANGE", &key, "0", "0"],
        ];
        commands.append(&mut pipeline(&words));
        // In two pieces, cut anywhere.
        let (one, other) = commands.split_at(commands.len() * round / 50);
        client.send(one);
        client.send(other);
        let replies: Vec<Reply> = (0..round + 6).map(|_| client.reply()).collect();
        assert_eq!(replies[round + 3], Reply::Array(vec![Reply::ok()]));
        assert_eq!(replies[round + 5], Reply::bulk("2"));
        assert_eq!((0..300).filter(|_| matches!(busy.reply(), Reply::Int(_))).count(), 300);
    }
}

#[test]
fn greetings_do_not_wait_for_one_another() {
    let data = RedisServer::start(&["--requirepass", "right"]).unwrap();
    let relay = Relay::to(data.port());
    let url = format!("redis://:right@127.0.0.1:{}", relay.port());
    let proxy = sharing().data_url(&url).start();
    relay.hold_request("far-away");
    let mut slow = Client::connect(proxy.port());
    slow.send(&encode(&["AUTH", "far-away"]));
    relay.wait_until_held();
    for (password, is_right) in [("right", true), ("wrong", false), ("right", true)] {
        let reply = Client::connect(proxy.port()).cmd(&["AUTH", password]);
        assert_eq!(reply == Reply::ok(), is_right, "{reply:?}");
    }
    slow.socket().set_nonblocking(true).unwrap();
    assert!(slow.socket().peek(&mut [0]).is_err(), "it was answered before them");
    slow.socket().set_nonblocking(false).unwrap();
    relay.release();
    assert!(slow.reply().error().starts_with("WRONGPASS"));
}

#[test]
fn the_number_that_hello_tells_is_nobodys() {
    let proxy = sharing().start();
    for version in ["2", "3"] {
        let mut client = proxy.client();
        let (Reply::Map(all) | Reply::Array(all)) = client.cmd(&["HELLO", version]) else {
            panic!()
        };
        let at = all.iter().position(|name| *name == Reply::bulk("id")).unwrap();
        let told = all.get(at + 1);
        let Some(Reply::Int(id)) = told else { panic!("{told:?}") };
        let id = id.to_string();
        assert_eq!(client.cmd(&["CLIENT", "KILL", "ID", &id]), Reply::Int(0));
        assert_eq!(client.cmd(&["CLIENT", "UNBLOCK", &id]), Reply::Int(0));
        let tracking = client.cmd(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]);
        assert!(tracking.error().contains("does not exist"), "{tracking:?}");
        // With a connection of its own, the client is told the truth.
        let Reply::Int(own) = client.cmd(&["CLIENT", "ID"]) else { panic!() };
        assert_eq!(client.cmd(&["CLIENT", "UNBLOCK", &own.to_string()]), Reply::Int(0));
        assert_ne!(own.to_string(), id);
    }
}

#[test]
fn passwords_are_asked_about_apart_and_harm_nobody() {
    let data = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    let url = format!("redis://:secret@127.0.0.1:{}", data.port());
    let proxy = sharing().data_url(&url).start();
    let mut right = proxy.client();
    assert_eq!(right.cmd(&["GET", "a"]).error_text(), "NOAUTH Authentication required.");
    assert_eq!(right.cmd(&["AUTH", "secret"]), Reply::ok());
    let mut other = proxy.client();
    assert!(matches!(other.cmd(&["HELLO", "3", "AUTH", "default", "secret"]), Reply::Map(_)));
    for round in 0..100 {
        let mut wrong = proxy.client();
        wrong.send(&pipeline(&[
            &["GET", "a"],
            &["AUTH", "wrong"],
            &["SET", "a", "wrong"],
            &["HELLO", "3", "AUTH", "default", "wrong"],
            &["GET", "a"],
        ]));
        let value = format!("v{round}");
        assert_eq!(right.cmd(&["SET", "a", &value]), Reply::ok());
        assert_eq!(other.cmd(&["GET", "a"]), Reply::bulk(&value));
        for wanted in ["NOAUTH", "WRONGPASS", "NOAUTH", "WRONGPASS", "NOAUTH"] {
            let reply = wrong.reply();
            assert!(reply.error().starts_with(wanted), "{reply:?} for {wanted}");
        }
    }
    // Commands for which Redis closes a stranger's connection end nobody else's.
    let mut stranger = warm_stranger(&proxy);
    let mut large = proxy.client();
    let words = [&["MGET"][..], &["k"; 11]].concat();
    large.send(&encode(&words));
    let (told, _) = large.rest();
    assert!(told.starts_with(b"-ERR Protocol error: unauthenticated multibulk length"), "{told:?}");
    let mut begun = proxy.client();
    begun.send(b"*2\r\n$4\r\nECHO\r\n$16385\r\n");
    let (told, _) = begun.rest();
    assert!(told.starts_with(b"-ERR Protocol error: unauthenticated bulk length"), "{told:?}");
    assert!(stranger.cmd(&["GET", "a"]).error().starts_with("NOAUTH"));
}

fn warm_stranger(proxy: &Proxy) -> Client {
    let mut stranger = proxy.client();
    assert!(stranger.cmd(&["PING"]).error().starts_with("NOAUTH"));
    stranger
}

#[test]
fn users_do_not_share_and_end_by_themselves() {
    let proxy = sharing().start();
    let mut admin = proxy.data_client();
    for user in ["a", "b"] {
        let keys = format!("~{user}:*");
        let words = ["ACL", "SETUSER", user, "on", ">p", &keys, "+@all"];
        assert_eq!(admin.cmd(&words), Reply::ok());
    }
    let login = |user: &str| {
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["AUTH", user, "p"]), Reply::ok());
        client
    };
    let (mut a, mut b) = (login("a"), login("b"));
    for _ in 0..20 {
        a.send(&pipeline(&[&["SET", "a:1", "x"], &["GET", "b:1"]]));
        b.send(&pipeline(&[&["GET", "a:1"], &["SET", "b:1", "y"]]));
        assert_eq!(a.reply(), Reply::ok());
        assert!(a.reply().error().starts_with("NOPERM"));
        assert!(b.reply().error().starts_with("NOPERM"));
        assert_eq!(b.reply(), Reply::ok());
    }
    assert_eq!(a.cmd(&["ACL", "WHOAMI"]), Reply::bulk("a"));
    // A lock's permission is asked for with the client's own user.
    a.cmd(&["LOCK", "lock", "PX", "5000"]).error();
    // Redis closes the connections of a user that is deleted.
    assert_eq!(admin.cmd(&["ACL", "DELUSER", "a"]), Reply::Int(1));
    a.send(&encode(&["GET", "a:1"]));
    let (told, _) = a.rest();
    assert!(told.is_empty() || told.starts_with(b"-WRONGPASS"), "{told:?}");
    assert_eq!(b.cmd(&["GET", "b:1"]), Reply::bulk("y"));
}

#[test]
fn who_a_client_is_goes_with_it_to_a_connection_of_its_own() {
    let proxy = sharing().start();
    let mut client = proxy.client();
    assert!(matches!(client.cmd(&["HELLO", "3", "SETNAME", "first"]), Reply::Map(_)));
    assert_eq!(client.cmd(&["CLIENT", "SETNAME", "worker"]), Reply::ok());
    assert_eq!(client.cmd(&["SELECT", "2"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "k", "two"]), Reply::ok());
    assert_eq!(client.cmd(&["SELECT", "2"]), Reply::ok(), "the one that it has");
    assert_eq!(pinned(&proxy, "select"), 0.0);
    assert_eq!(client.cmd(&["GET", "none"]), Reply::Null, "RESP3");
    assert_eq!(client.cmd(&["CLIENT", "GETNAME"]), Reply::bulk("worker"));
    assert_eq!(client.cmd(&["GET", "k"]), Reply::bulk("two"));
    assert_eq!(proxy.client().cmd(&["GET", "k"]), Reply::NullBulk, "another database");
    assert_eq!(
        proxy.client().cmd(&["CLIENT", "SETNAME", "a b"]).error_text(),
        "ERR Client names cannot contain spaces, newlines or special characters."
    );
    let mut quitting = proxy.client();
    quitting.send(&pipeline(&[&["GET", "none"], &["QUIT"], &["GET", "k"]]));
    assert_eq!(quitting.rest().0, b"$-1\r\n+OK\r\n");
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_client_that_hangs_up_amid_a_large_reply_leaves_neither_lock_nor_link() {
    let proxy = sharing().start();
    let mut data = proxy.data_client();
    assert_eq!(data.cmd(&["SETRANGE", "big", "20000000", "x"]), Reply::Int(20_000_001));
    for round in 0..12 {
        let mut holder = proxy.client();
        // The client of the round before may only just have gone.
        holder.cmd(&["LOCK", "job", "WAIT", "20000"]).grant();
        holder.send(&pipeline(&[&["GET", "big"], &["SET", "late", &round.to_string()]]));
        let mut some = vec![0; if round % 3 == 0 { 0 } else { 100_000 }];
        holder.reader().read_exact(&mut some).unwrap();
        thread::sleep(ms(50));
        match round % 2 {
            0 => holder.reset(),
            _ => drop(holder),
        }
        let mut next = proxy.client();
        next.cmd(&["LOCK", "job", "WAIT", "20000"]).grant();
        assert_eq!(next.cmd(&["GET", "late"]), Reply::bulk(&round.to_string()), "it came before");
        drop(next);
    }
    eventually("the links are closed", || proxy.metric("lockgate_links", "") <= 2.0);
    assert!(connections(&proxy) <= 6, "{}", connections(&proxy));
}

/// A client gets a connection of its own when all that it was owed has come, which it may not have taken yet.
#[test]
fn a_link_serves_others_once_its_owner_has_gone_to_a_connection_of_its_own() {
    let mut proxy = sharing().start();
    let large = "x".repeat(1_000_000);
    assert_eq!(proxy.data_client().cmd(&["SET", "large", &large]), Reply::ok());
    for round in 1..=10 {
        let mut owner = Client::connect_narrow(proxy.port(), 4096);
        assert_eq!(owner.cmd(&["PING"]), Reply::simple("PONG"));
        let mut behind = warm(&proxy);
        proxy.data().freeze().unwrap();
        owner.send(&encode(&["GET", "large"]).repeat(4));
        thread::sleep(ms(100));
        behind.send(&encode(&["PING"]));
        thread::sleep(ms(100));
        proxy.data().thaw().unwrap();
        assert_eq!(behind.reply(), Reply::simple("PONG"), "all that the owner is owed has come");
        owner.send(&encode(&["GET", "small"]));
        eventually("it has a connection of its own", || {
            pinned(&proxy, "\"replies\"") == f64::from(round)
        });
        if round % 2 == 0 {
            (0..4).for_each(|_| assert!(owner.reply() == Reply::bulk(&large)));
            assert_eq!(owner.reply(), Reply::NullBulk);
        }
        drop(owner);
        assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
    }
    let links = proxy.metric("lockgate_links", "");
    assert!(links <= 2.0, "{links} links");
}

#[test]
fn clients_that_leave_or_send_half_a_command_harm_nobody() {
    let proxy = sharing().start();
    let mut stays = warm(&proxy);
    let mut half = proxy.client();
    half.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nab");
    for round in 0..30 {
        let mut leaves = proxy.client();
        leaves.send(&encode(&["INCR", "left"]).repeat(100));
        let value = round.to_string();
        stays.send(&pipeline(&[&["SET", "k", &value], &["GET", "k"]]));
        if round % 2 == 0 {
            leaves.reset();
        } else {
            drop(leaves);
        }
        assert_eq!(stays.reply(), Reply::ok());
        assert_eq!(stays.reply(), Reply::bulk(&value));
    }
    assert_eq!(stays.cmd(&["EXISTS", "half"]), Reply::Int(0));
    half.send(b"cde\r\n");
    assert_eq!(half.reply(), Reply::ok());
    assert_eq!(stays.cmd(&["GET", "half"]), Reply::bulk("abcde"));
    // All that a client sent before its FIN is carried out and answered.
    let mut last = proxy.client();
    last.send(&encode(&["INCR", "last"]).repeat(2000));
    last.hang_up();
    assert!(last.rest().0.ends_with(b":2000\r\n"));
    assert_eq!(proxy.metric("lockgate_links", ""), 1.0);
}

#[test]
fn a_link_that_breaks_ends_those_with_commands_on_it_and_nobody_else() {
    let data = RedisServer::start(&[]).unwrap();
    let relay = Relay::to(data.port());
    let proxy = sharing().data_url(&format!("redis://127.0.0.1:{}", relay.port())).start();
    let (mut idle, mut busy) = (warm(&proxy), warm(&proxy));
    relay.hold_request("unknown-outcome");
    busy.send(&encode(&["SET", "unknown-outcome", "1"]));
    relay.wait_until_held();
    relay.cut();
    assert!(busy.rest().0.is_empty(), "no answer, and no second try");
    assert_eq!(idle.cmd(&["EXISTS", "unknown-outcome"]), Reply::Int(0));
    assert_eq!(proxy.metric("lockgate_link_ends_total", ""), 1.0);
}

#[test]
fn with_guards_a_link_takes_its_clients_along() {
    let mut proxy = sharing()
        .top("guards: [{keys: 'account:*', lock: 'account:{1}'}]")
        .data_arguments(&["--save", ""])
        .start();
    eventually("commands are known", || proxy.log().contains("commands are known"));
    // The first write of all brings the script to the data node, and needs WATCH for that.
    let mut first = proxy.client();
    first.cmd(&["LOCK", "account:0", "PX", "60000"]).grant();
    assert_eq!(first.cmd(&["SET", "account:0", "x"]), Reply::ok());
    let before = pinned(&proxy, "");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    for _ in 0..5 {
        assert_eq!(client.cmd(&["SET", "account:1", "x"]), Reply::ok());
        assert!(client.cmd(&["SET", "account:2", "x"]).error().starts_with("NOTHELD"));
    }
    assert_eq!(pinned(&proxy, ""), before);
    let killed = proxy.data_client().cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(matches!(killed, Reply::Int(1..)), "{killed:?}");
    assert!(client.is_at_end(), "the data node may have restarted");
    proxy.data().kill().unwrap();
}

#[test]
fn wait_is_about_what_its_client_has_written() {
    let proxy = sharing().start();
    let replica =
        RedisServer::start(&["--replicaof", "127.0.0.1", &proxy.data_client_port().to_string()])
            .unwrap();
    replicates(proxy.data_client_port(), "probe");
    let mut client = warm(&proxy);
    assert_eq!(client.pipe(&[&["SET", "k", "1"], &["WAIT", "1", "5000"]])[1], Reply::Int(1));
    replica.freeze().unwrap();
    let replies = client.pipe(&[&["SET", "k", "2"], &["WAIT", "1", "300"]]);
    assert_eq!(replies, [Reply::ok(), Reply::Int(0)], "no replica has the second write");
    // Others do not wait as long, and nobody can keep connections that wait for ever.
    let mut forever: Vec<Client> = (0..20).map(|_| warm(&proxy)).collect();
    for client in &mut forever {
        client.send(&pipeline(&[&["SET", "k", "3"], &["WAIT", "1", "0"]]));
        assert_eq!(client.reply(), Reply::ok());
    }
    let mut other = proxy.client();
    assert_eq!(other.cmd(&["GET", "k"]), Reply::bulk("3"));
    drop(forever);
    eventually("their links are closed", || proxy.metric("lockgate_links", "") <= 2.0);
    replica.thaw().unwrap();
}

/// What a client leaves behind that has hung up: commands that block, with others before and behind them, and large
/// replies.
#[test]
fn who_hangs_up_amid_what_takes_long_keeps_nobody_waiting_and_ends_nobody() {
    for is_guarded in [false, true] {
        let proxy = sharing_guarded(is_guarded);
        let mut data = proxy.data_client();
        assert_eq!(data.cmd(&["SETRANGE", "big", "20000000", "x"]), Reply::Int(20_000_001));
        let [get, wait, big] = [&["GET", "k"][..], &["WAIT", "1", "0"], &["GET", "big"]];
        for sent in [
            &[wait][..],
            &[get, wait],
            &[wait, get],
            &[get, wait, get],
            &[get, wait, get, get, wait, get],
            &[big],
            &[big, wait],
            &[big, wait, get],
        ] {
            let mut others: Vec<Client> = (0..3).map(|_| warm(&proxy)).collect();
            for is_reset in [false, true] {
                let mut leaves = warm(&proxy);
                leaves.send(&pipeline(sent));
                thread::sleep(ms(50));
                if is_reset {
                    leaves.reset();
                } else {
                    drop(leaves);
                }
                others.push(proxy.client());
                for _ in 0..3 {
                    for other in &mut others {
                        let said = other.cmd(&["ECHO", "here"]);
                        assert_eq!(said, Reply::bulk("here"), "{sent:?}, guarded: {is_guarded}");
                    }
                    thread::sleep(ms(20));
                }
            }
        }
        eventually("the links are closed", || proxy.metric("lockgate_links", "") <= 2.0);
    }
}

/// Starts a relay to a server on this port which says that the server accepts CLIENT MAINT_NOTIFICATIONS, as that of some
/// providers does. Returns its port.
fn accepting_maint_notifications(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (server, client);
            thread::spawn(move || {
                let mut bytes = [0; 64 * 1024];
                while let Ok(length @ 1..) = from.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    let is_refused = text.contains("MAINT_NOTIFICATIONS");
                    let said = if is_refused { "+OK\r\n" } else { &text };
                    if to.write_all(said.as_bytes()).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

#[test]
fn what_the_data_node_refuses_leaves_its_client_sharing() {
    let data =
        RedisServer::start(&["--user", "worker", "on", ">secret", "allkeys", "+@all"]).unwrap();
    let accepting = accepting_maint_notifications(data.port());
    let words = ["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"];
    for (port, is_accepted) in [(data.port(), false), (accepting, true)] {
        let proxy = sharing().data_url(&format!("redis://127.0.0.1:{port}")).start();
        let auth = ["AUTH", "worker", "secret"];
        for (pinned_so_far, first) in [(0.0, ["HELLO", "3", "", ""]), (1.0, ["PING", "", "", ""])] {
            let first: Vec<&str> = first.into_iter().filter(|word| !word.is_empty()).collect();
            let mut client = proxy.client();
            client.send(&pipeline(&[&first, &auth, &["SET", "k", "v"], &words, &["GET", "k"]]));
            client.reply();
            assert_eq!((client.reply(), client.reply()), (Reply::ok(), Reply::ok()));
            let said = client.reply();
            match is_accepted {
                true => assert_eq!(said, Reply::ok()),
                false => assert!(said.error_text().contains("unknown subcommand"), "{said:?}"),
            }
            assert_eq!(client.reply(), Reply::bulk("v"));
            assert_eq!(client.cmd(&["ACL", "WHOAMI"]), Reply::bulk("worker"));
            let wanted = if is_accepted { pinned_so_far + 1.0 } else { 0.0 };
            assert_eq!(pinned(&proxy, ""), wanted, "{said:?}");
        }
    }
}

#[test]
fn a_data_node_that_lets_no_more_in_tells_its_own_words() {
    let proxy = sharing().start();
    let mut data = proxy.data_client();
    let mut client = warm(&proxy);
    let Reply::Bulk(info) = data.cmd(&["INFO", "clients"]) else { panic!("INFO") };
    let info = String::from_utf8(info).unwrap();
    let limit = info.lines().find_map(|line| line.strip_prefix("connected_clients:")).unwrap();
    assert_eq!(data.cmd(&["CONFIG", "SET", "maxclients", limit]), Reply::ok());
    let mut own = proxy.client();
    own.send(&encode(&["MULTI"]));
    let (told, _) = own.rest();
    assert!(told.is_empty() || told.starts_with(b"-ERR max number of clients"), "{told:?}");
    let mut resp3 = proxy.client();
    resp3.send(&pipeline(&[&["HELLO", "3"], &["GET", "k"]]));
    assert!(matches!(resp3.reply(), Reply::Map(_)));
    let (told, _) = resp3.rest();
    assert!(told.is_empty() || told.starts_with(b"-ERR max number of clients"), "{told:?}");
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"), "nobody else is harmed");
}

/// What the data node asks for of clients that come from now on.
fn set_password(data: &mut Client, password: &str) {
    assert_eq!(data.cmd(&["CONFIG", "SET", "requirepass", password]), Reply::ok());
}

#[test]
fn a_password_that_is_set_meets_every_client_that_comes_later_and_no_other() {
    let guards = "share: yes\nio_threads: 2\nguards: [{keys: 'g:*', lock: 'g:{1}'}]";
    for setup in [sharing(), Proxy::with().top(guards)] {
        let proxy = setup.start();
        let mut data = proxy.data_client();
        let mut old: Vec<Client> = (0..6).map(|_| warm(&proxy)).collect();
        set_password(&mut data, "s3");
        for words in [
            &["GET", "k"][..],
            &["SET", "k", "stolen"],
            &["SET", "g:1", "stolen"],
            &["LOCK", "g:1", "PX", "1000"],
            &["MULTI"],
            &["CLIENT", "SETNAME", "n"],
            &["HELLO", "3"],
            &["SELECT", "1"],
        ] {
            for _ in 0..4 {
                let mut new = proxy.client();
                let told = new.cmd(words);
                assert!(told.error().starts_with("NOAUTH"), "{told:?} to {words:?}");
                assert!(new.cmd(&["GET", "k"]).error().starts_with("NOAUTH"), "as before");
                assert_eq!(new.cmd(&["AUTH", "s3"]), Reply::ok());
                assert_eq!(new.cmd(&["GET", "k"]), Reply::NullBulk);
            }
        }
        for old in &mut old {
            assert_eq!(old.cmd(&["GET", "k"]), Reply::NullBulk, "as a connection of its own");
        }
        // Once it is gone, clients may come as ever; and a user that is switched off is one that may not.
        set_password(&mut data, "");
        assert_eq!(warm(&proxy).cmd(&["GET", "k"]), Reply::NullBulk);
        assert_eq!(data.cmd(&["ACL", "SETUSER", "default", "off"]), Reply::ok());
        assert!(proxy.client().cmd(&["GET", "k"]).error().starts_with("NOAUTH"));
        assert_eq!(old[0].cmd(&["GET", "k"]), Reply::NullBulk);
        assert_eq!(data.cmd(&["ACL", "SETUSER", "default", "on"]), Reply::ok());
    }
}

#[test]
fn a_client_whose_user_may_come_no_more_is_told_so_and_closed_where_it_needs_a_connection() {
    let proxy = sharing().start();
    let mut data = proxy.data_client();
    let rules = ["ACL", "SETUSER", "pw", "reset", "on", "+@all", "~*", "&*"];
    for words in [&["MULTI"][..], &["CLIENT", "ID"], &["HELLO", "3"], &["BLPOP", "q", "0.01"]] {
        let mut of_default = warm(&proxy);
        data.cmd(&rules);
        data.cmd(&["ACL", "SETUSER", "pw", ">one"]);
        let mut named = proxy.client();
        assert_eq!(named.cmd(&["AUTH", "pw", "one"]), Reply::ok());
        let mut renews = proxy.client();
        assert_eq!(renews.cmd(&["AUTH", "pw", "one"]), Reply::ok());
        set_password(&mut data, "s3");
        data.cmd(&["ACL", "SETUSER", "pw", "resetpass", ">two"]);
        of_default.send(&encode(words));
        let (told, _) = of_default.rest();
        assert!(told.starts_with(b"-NOAUTH"), "{words:?}: {}", String::from_utf8_lossy(&told));
        named.send(&encode(words));
        let (told, _) = named.rest();
        assert!(told.starts_with(b"-WRONGPASS"), "{words:?}: {}", String::from_utf8_lossy(&told));
        assert_eq!(renews.cmd(&["AUTH", "pw", "two"]), Reply::ok(), "it knows the new password");
        assert_eq!(renews.cmd(&["ACL", "WHOAMI"]), Reply::bulk("pw"));
        set_password(&mut data, "");
    }
}

#[test]
fn a_client_of_another_database_or_with_a_name_can_end_a_script() {
    let proxy = sharing().start();
    let mut data = proxy.data_client();
    assert_eq!(data.cmd(&["CONFIG", "SET", "busy-reply-threshold", "100"]), Reply::ok());
    let states: [&[&[&str]]; 4] = [
        &[],
        &[&["SELECT", "2"]],
        &[&["CLIENT", "SETNAME", "ops"]],
        &[&["HELLO", "3"], &["SELECT", "2"], &["CLIENT", "SETNAME", "ops"]],
    ];
    for state in states {
        let mut killer = warm(&proxy);
        let mut begins = warm(&proxy);
        for words in state {
            assert!(!matches!(killer.cmd(words), Reply::Error(_)));
            assert!(!matches!(begins.cmd(words), Reply::Error(_)));
        }
        let mut busy = warm(&proxy);
        busy.send(&encode(&["EVAL", "while true do end", "0"]));
        eventually("the script is slow", || data.cmd(&["PING"]).error_text().starts_with("BUSY"));
        // Its transaction begins once Redis takes its database and its name again.
        begins.send(&encode(&["MULTI"]));
        thread::sleep(ms(100));
        if state.len() == 1 {
            let told = killer.cmd(&["CLIENT", "SETNAME", "other"]);
            assert!(told.error().starts_with("BUSY"), "{told:?}");
        }
        assert_eq!(killer.cmd(&["SCRIPT", "KILL"]), Reply::ok(), "{state:?}");
        assert!(busy.reply().error().contains("killed"));
        assert_eq!(begins.reply(), Reply::ok(), "{state:?}");
        let found = killer.pipe(&[&["CLIENT", "INFO"], &["SCRIPT", "KILL"], &["FUNCTION", "KILL"]]);
        let Reply::Bulk(info) = &found[0] else { panic!("{found:?}") };
        let info = String::from_utf8_lossy(info);
        let has = |words: &[&str]| state.contains(&words);
        assert_eq!(info.contains("db=2"), has(&["SELECT", "2"]), "{info}");
        assert_eq!(info.contains("name=ops"), has(&["CLIENT", "SETNAME", "ops"]), "{info}");
        assert!(found[1].error().starts_with("NOTBUSY"), "{found:?}");
        assert!(found[2].error().starts_with("NOTBUSY"), "{found:?}");
        assert_eq!(begins.cmd(&["EXEC"]), Reply::Array(vec![]));
    }
}

#[test]
fn a_long_pipeline_of_slow_commands_holds_others_for_a_part_of_it() {
    let proxy = sharing().start();
    let (mut other, long) = (warm(&proxy), warm(&proxy));
    let script = "local t = redis.call('time') local s = t[1] * 1e6 + t[2] \
        repeat t = redis.call('time') until t[1] * 1e6 + t[2] - s > 1000 return 1";
    let one = encode(&["EVAL", script, "0"]);
    let count = 3000;
    let all = one.repeat(count);
    let mut writer = long.socket().try_clone().unwrap();
    let writing = thread::spawn(move || writer.write_all(&all).unwrap());
    let mut replies = long.socket().try_clone().unwrap();
    let reading = thread::spawn(move || {
        let begun = Instant::now();
        replies.read_exact(&mut vec![0; 4 * count]).unwrap();
        begun.elapsed()
    });
    let mut worst = Duration::ZERO;
    while !reading.is_finished() {
        let asked = Instant::now();
        other.cmd(&["GET", "k"]);
        worst = worst.max(asked.elapsed());
        thread::sleep(ms(20));
    }
    writing.join().unwrap();
    let whole = reading.join().unwrap();
    println!("the worst of {whole:?} was {worst:?}");
    assert!(whole > Duration::from_secs(3) && worst < whole / 4, "{worst:?} of {whole:?}");
}

/// A random command on keys that begin with `own`.
fn random_command(own: &str, random: &mut StdRng) -> Vec<u8> {
    let key = format!("{own}:{}", random.random_range(0..4));
    let number = random.random_range(0..9).to_string();
    let large = "v".repeat(random.random_range(0..80_000));
    let words: &[&str] = match random.random_range(0..29) {
        0 => &["SET", &key, &number],
        1 => &["GET", &key],
        2 => &["INCR", &key],
        3 => &["RPUSH", &key, &number, "x"],
        4 => &["LRANGE", &key, "0", "-1"],
        5 => &["DEL", &key],
        6 => &["SET", &key, &large],
        7 => &["MULTI"],
        8 => &["EXEC"],
        9 => &["SELECT", "1"],
        10 => &["SELECT", "0"],
        11 => &["HSET", &key, "f", &number],
        12 => &["HGETALL", &key],
        13 => &["NOSUCH", &key],
        14 => &["GET"],
        15 => &["EVAL", "return {KEYS[1], redis.call('get', KEYS[1]), {1, {2}}}", "1", &key],
        16 => &["WATCH", &key],
        17 => &["CLIENT", "SETNAME", &number],
        18 => &["CLIENT", "GETNAME"],
        19 => &["HELLO", "3"],
        20 => &["HELLO", "4"],
        21 => &["AUTH", "nobody", "wrong"],
        22 => &["BLPOP", &key, "0.001"],
        23 => &["CLIENT", "REPLY", "SKIP"],
        24 => return format!("GET {key}\r\n").into_bytes(),
        25 => return b"\r\n*0\r\n".to_vec(),
        26 => &["XREAD", "COUNT", "1", "STREAMS", &key, "0"],
        27 => &["OBJECT", "ENCODING", &key],
        _ => &["APPEND", &key, "abc"],
    };
    encode(words)
}

/// Sends the commands in pieces cut anywhere, with the last word QUIT, and returns all that comes.
fn converse(port: u16, commands: &[u8], random: &mut StdRng) -> Vec<u8> {
    let client = Client::connect(port);
    let mut reader = client.socket().try_clone().unwrap();
    let reading = thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).map(|_| all).unwrap_or_default()
    });
    let mut rest = commands;
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(random.random_range(1..=rest.len().min(5000)));
        if client.socket().write_all(piece).is_err() {
            break;
        }
        rest = more;
    }
    reading.join().unwrap()
}

/// Takes out what differs by design: the number that HELLO calls a connection by.
fn without_ids(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split("$2\r\nid\r\n");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        all.push_str(part.split_once("\r\n").map_or("", |(_, rest)| rest));
    }
    all
}

#[test]
fn random_commands_of_several_clients_are_answered_as_by_a_redis_of_their_own() {
    let seed = std::env::var("LOCKGATE_SEED")
        .map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    let proxy = sharing().start();
    let begun = Instant::now();
    let mut round: u64 = seed;
    while begun.elapsed() < Duration::from_secs(5) {
        let own = RedisServer::start(&[]).unwrap();
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (shared, own) = (proxy.port(), own.port());
                thread::spawn(move || {
                    let mut random = StdRng::seed_from_u64(round.wrapping_mul(31) + n);
                    let name = format!("{round}:{n}");
                    let mut commands = Vec::new();
                    for _ in 0..60 {
                        commands.append(&mut random_command(&name, &mut random));
                    }
                    // Behind CLIENT REPLY SKIP, Redis closes at QUIT only if other replies are still to be written.
                    commands.append(&mut encode(&["PING"]));
                    commands.append(&mut encode(&["QUIT"]));
                    let wanted = converse(own, &commands, &mut random);
                    let got = converse(shared, &commands, &mut random);
                    assert_eq!(
                        without_ids(&got),
                        without_ids(&wanted),
                        "LOCKGATE_SEED={round}, client {n}: {}",
                        String::from_utf8_lossy(&commands[..commands.len().min(4000)])
                    );
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        round = round.wrapping_add(1);
    }
    println!("{} rounds", round.wrapping_sub(seed));
}

/// Most of a session is only there while something is under way. After a LOCK it is for ten seconds.
#[test]
fn a_client_is_after_a_rest_who_it_was_before() {
    let proxy = sharing().start();
    let (mut holder, mut earlier) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "taken", "theirs", "PX", "60000"]).grant();
    earlier.cmd(&["LOCK", "brief", "PX", "50"]).grant();
    let name = format!("{:?}", Reply::bulk("robinson"));
    for rest in [0, 1, 50] {
        let come = || {
            let mut client = proxy.client();
            assert!(matches!(client.cmd(&["HELLO", "3", "SETNAME", "robinson"]), Reply::Map(_)));
            thread::sleep(ms(rest));
            client
        };
        assert_eq!(come().cmd(&["LOCK", "taken", "PX", "60000"]), Reply::Null, "in RESP3");
        let mut client = come();
        client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
        let shown = client.cmd(&["LOCKGATE", "LOCK", "k"]);
        assert!(format!("{shown:?}").contains(&name), "its name: {shown:?}");
        assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1), "it knows the token");
        let mut slow = come();
        for part in [&b"*2\r\n$"[..], b"3\r\nGE", b"T\r\n$4\r\nno", b"ne\r\n"] {
            slow.send(part);
            thread::sleep(ms(rest));
        }
        assert_eq!(slow.reply(), Reply::Null);
    }
    thread::sleep(ms(11_000));
    assert_eq!(earlier.cmd(&["UNLOCK", "brief"]), Reply::Int(0), "it once had the lock");
    assert_eq!(proxy.metric("lockgate_pinned_total", ""), 0.0, "all share");
}

#[test]
fn a_client_that_rests_is_told_of_the_end_of_the_proxy_and_its_leases_stay() {
    let proxy = sharing().start();
    let (mut holder, mut resting, mut waiting) = (proxy.client(), proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
    resting.cmd(&["PING"]);
    waiting.send(&encode(&["LOCK", "k", "u", "PX", "60000", "WAIT", "0"]));
    eventually("it stands in line", || proxy.waiters() == 1);
    thread::sleep(ms(20));
    proxy.terminate();
    assert_eq!(resting.rest().0, b"");
    assert_eq!(holder.rest().0, b"");
    assert_eq!(waiting.rest().0, b"");
    eventually("it has ended", || proxy.log().contains("shutting down"));
    assert!(!proxy.log().contains("closed with commands still in flight"), "in time");
    assert_eq!(proxy.nodes_with("lock:k"), 1);
}
