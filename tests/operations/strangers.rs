//! Clients that the data node has not let in: nothing that they send is learned, counted or logged.

use lockgate::tools::redis_server::RedisServer;

use super::adopt::adopted;
use crate::support::{Client, Proxy, Reply, eventually, pipeline};

const RULES: &str = "guards: [{keys: 'account:*', lock: 'account:{1}', policy: audit}]\n\
                     adopt: [{keys: 'lock:*', lock: '{1}'}]";

const WRITTEN: &str = "guards: written without its lock";

/// Sends writes without a lock, lock idioms, and a name.
fn send_all(client: &mut Client, name: &str) -> Vec<Reply> {
    let all: [&[&str]; 4] = [
        &["CLIENT", "SETNAME", name],
        &["SET", "account:1", "x"],
        &["SET", "lock:job", "token", "NX", "PX", "60000"],
        &["EVAL", "return 1", "1", "lock:job"],
    ];
    client.send(&pipeline(&all));
    all.iter().map(|_| client.reply()).collect()
}

#[test]
fn a_stranger_leaves_no_trace() {
    let data = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    let url = format!("redis://:secret@127.0.0.1:{}", data.port());
    let proxy = Proxy::with().data_url(&url).top(RULES).start();
    eventually("commands are known", || proxy.log().contains("commands are known"));
    let counted = || proxy.metric("lockgate_guarded_writes_total", "\"audited\"");
    let mut client = proxy.client();
    let replies = send_all(&mut client, "forged");
    assert!(replies.iter().all(|reply| format!("{reply:?}").contains("NOAUTH")), "{replies:?}");
    assert_eq!(client.cmd(&["AUTH", "secret"]), Reply::ok());
    let seen = |client: &mut Client| {
        let all = adopted(client).into_iter();
        all.filter(|entry| entry["times"] != "0").collect::<Vec<_>>()
    };
    assert_eq!((seen(&mut client), counted()), (Vec::new(), 0.0));
    let log = proxy.log();
    assert!(!log.contains(WRITTEN) && !log.contains("idiom was seen"), "{log}");
    // The same commands of a client that may send them.
    send_all(&mut client, "worker");
    let all = seen(&mut client);
    assert_eq!((all.len(), counted()), (2, 1.0), "{all:?}");
    assert!(all.iter().all(|entry| entry["client"] == "worker"), "{all:?}");
    let log = proxy.log();
    assert!(log.contains("idiom was seen"), "{log}");
    // An operator finds the program by that.
    let line = log.lines().find(|line| line.contains(WRITTEN)).unwrap();
    let address = client.socket().local_addr().unwrap();
    for part in [format!("\"address\":\"{address}\""), "\"name\":\"worker\"".into()] {
        assert!(line.contains(&part), "{line}");
    }
}
