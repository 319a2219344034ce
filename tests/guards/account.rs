//! Account 1, which is guarded, and every way in which it can be written.

use crate::support::{Client, Proxy, Reply};

/// The guard of all accounts.
pub(crate) const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
/// A script that goes the long way.
pub(crate) const SCRIPT: &str = "return redis.call('SET', KEYS[1], ARGV[1])";

/// The ways in which a write reaches the data node: by the proxy's script, in a transaction of the proxy, and in one
/// of the client.
pub(crate) const WAYS: [&str; 3] = ["short", "long", "transaction"];

/// Writes account 1 in this way. Returns an error if a reply is one, else the last reply.
pub(crate) fn write(client: &mut Client, way: &str, value: &str) -> Reply {
    let replies = match way {
        "short" => client.pipe(&[&["SET", "account:1", value]]),
        "long" => client.pipe(&[&["EVAL", SCRIPT, "1", "account:1", value]]),
        _ => client.pipe(&[&["MULTI"], &["SET", "account:1", value], &["EXEC"]]),
    };
    let error = replies.iter().find(|reply| matches!(reply, Reply::Error(_)));
    error.or(replies.last()).cloned().expect("a reply")
}

/// Whether this reply to [`write`] says that the write was made.
pub(crate) fn is_written(reply: &Reply) -> bool {
    [Reply::ok(), Reply::Array(vec![Reply::ok()])].contains(reply)
}

/// Deletes the lock on the nodes without telling the proxy.
pub(crate) fn take_away(proxy: &Proxy) {
    for node in 0..proxy.nodes_up() {
        proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
    }
}
