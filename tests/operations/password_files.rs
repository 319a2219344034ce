//! Passwords in files: a new one counts for the next connections of a running proxy, to the data node and the lock nodes.

use std::{fs, path::Path};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{Client, Proxy, Reply, eventually};

/// Gives the server another password, and ends the connections that are there.
fn rotate(server: &RedisServer, from: &str, to: &str) {
    let mut client = Client::connect(server.port());
    assert_eq!(client.cmd(&["AUTH", from]), Reply::ok());
    assert_eq!(client.cmd(&["CONFIG", "SET", "requirepass", to]), Reply::ok());
    client.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    client.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
}

fn at(server: &RedisServer, file: &Path) -> String {
    format!(
        "{{url: \"redis://127.0.0.1:{}\", password_file: \"{}\"}}",
        server.port(),
        file.display()
    )
}

#[test]
fn a_password_that_rotates_is_read_anew_for_each_connection() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "old\n").unwrap();
    let servers: Vec<RedisServer> =
        (0..4).map(|_| RedisServer::start(&["--requirepass", "old"]).unwrap()).collect();
    let nodes: Vec<String> = servers[1..].iter().map(|node| at(node, &file)).collect();
    let guards = "guards: {keys: \"account:*\", lock: \"account:{1}\"}";
    let proxy =
        Proxy::with().data_url(&at(&servers[0], &file)).node_urls(&nodes).top(guards).start();
    let works = |password: &str, key: &str| {
        let mut client = proxy.client();
        let lock = format!("account:{key}");
        let replies = [
            client.cmd(&["AUTH", password]),
            client.cmd(&["LOCK", &lock, "PX", "10000"]),
            // The proxy's own connection to the data node raises the fence.
            client.cmd(&["SET", &lock, "1"]),
        ];
        !replies.iter().any(|reply| matches!(reply, Reply::Error(_)))
    };
    eventually("it works", || works("old", "a"));
    fs::write(&file, "new\n").unwrap();
    for server in &servers {
        rotate(server, "old", "new");
    }
    eventually("it works by the new password", || works("new", "b"));
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    // Without the file connections that are open stay, and the log names what is missing once one ends.
    fs::remove_file(&file).unwrap();
    assert!(works("new", "c"));
    for server in &servers[1..] {
        rotate(server, "new", "new");
    }
    eventually("it is told", || proxy.log().contains("the password in"));
    fs::write(&file, "new").unwrap();
    eventually("it works again", || works("new", "d"));
}
