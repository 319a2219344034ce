//! A fence that the data node has forgotten is announced again under a lock that is still held, and under no other.

use super::account::{ACCOUNTS, WAYS, is_written, take_away, write};
use crate::support::{Client, Proxy, Reply, eventually};

const FENCE: &str = "lockgate:guard:lock:account:1";

/// Starts a deployment with guarded accounts.
fn accounts() -> Proxy {
    Proxy::with().nodes(3).top(ACCOUNTS).start()
}

fn data(proxy: &mut Proxy) -> Client {
    Client::connect(proxy.data().port())
}

#[test]
fn an_earlier_holder_cannot_raise_its_fence_again() {
    for way in WAYS {
        for (lock, forgets) in [
            (&["LOCK", "account:1", "PX", "30000"][..], &["DEL", FENCE][..]),
            (&["LOCK", "account:1", "PX", "30000"], &["SET", FENCE, "5"]),
            (&["LOCK", "account:1"], &["DEL", FENCE]),
        ] {
            let mut proxy = accounts();
            let mut data = data(&mut proxy);
            let (mut slow, mut quick) = (proxy.client(), proxy.client());
            let granted = slow.cmd(lock).grant();
            let mut attached = proxy.client();
            attached.cmd(&["LOCK.ATTACH", "account:1", &granted.token]).grant();
            assert!(is_written(&write(&mut slow, way, "early")));
            take_away(&proxy);
            let newer = quick.cmd(&["LOCK", "account:1", "PX", "30000"]).grant().fence;
            data.cmd(forgets);
            let before = data.cmd(&["GET", FENCE]);
            for client in [&mut slow, &mut attached] {
                let refused = write(client, way, "late");
                let text = refused.error_text();
                // Unless the watchdog has noticed it first.
                let lost = lock.len() == 2 && text.starts_with("LOCKLOST");
                assert!(lost || text.starts_with("NOTHELD"), "{way} {lock:?}: {refused:?}");
                assert_eq!(data.cmd(&["GET", FENCE]), before, "{way} {lock:?}");
                // A later write is refused too: the session has given up its claim, whatever the data node knows by
                // then. The claim of a session lock goes with the news of its loss.
                if lock.len() > 2 {
                    data.cmd(&["SET", FENCE, &granted.fence.to_string()]);
                }
                let refused = write(client, way, "later");
                assert!(matches!(refused, Reply::Error(_)), "{way} {lock:?}: {refused:?}");
                data.cmd(forgets);
            }
            assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("early"));
            // The lock's holder need not know that the data node has forgotten its fence.
            assert!(is_written(&write(&mut quick, way, "quick")), "{way} {lock:?}");
            assert_eq!(data.cmd(&["GET", FENCE]), Reply::bulk(&newer.to_string()));
            if lock.len() == 2 {
                // The news of a session lock's loss comes all the same, if it has not come before.
                let told = || proxy.metric("lockgate_session_locks", "") == 0.0;
                eventually("it is lost", told);
            }
            assert!(write(&mut slow, way, "late").error_text().contains("account:1"));
        }
    }
}

#[test]
fn a_lock_that_was_granted_anew_to_the_same_token_fences_the_first() {
    for way in WAYS {
        let mut proxy = accounts();
        let mut data = data(&mut proxy);
        let (mut first, mut second) = (proxy.client(), proxy.client());
        for client in [&mut first, &mut second] {
            // The lock is deleted on the nodes, as if the first holder's time were over.
            for node in 0..3 {
                proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
            }
            client.cmd(&["LOCK", "account:1", "mine", "PX", "30000"]).grant();
            eventually("all have it", || proxy.nodes_with("lock:account:1") == 3);
        }
        data.cmd(&["DEL", FENCE]);
        let refused = write(&mut first, way, "late");
        assert!(refused.error_text().starts_with("FENCED"), "{way}: {refused:?}");
        assert!(is_written(&write(&mut second, way, "second")), "{way}");
    }
}

#[test]
fn the_holder_of_a_session_lock_that_is_fenced_is_told_of_its_loss() {
    for way in WAYS {
        for forgotten in [false, true] {
            let mut proxy = accounts();
            let mut data = data(&mut proxy);
            let mut first = proxy.client();
            let fence = first.cmd(&["LOCK", "account:1", "mine"]).grant().fence;
            let newer = fence + 1;
            if forgotten {
                assert!(is_written(&write(&mut first, way, "early")));
                // The fence is set on the nodes as if another proxy had granted the lock to the same token.
                let grant = format!("{newer} 1234567890123456");
                for node in 0..3 {
                    proxy.node_client(node).cmd(&["SET", "lockgate:fence:lock:account:1", &grant]);
                }
                data.cmd(&["DEL", FENCE]);
            } else {
                data.cmd(&["SET", FENCE, &newer.to_string()]);
            }
            let refused = write(&mut first, way, "late");
            // In a transaction the news of the loss already refuses the rest of the pipeline.
            let mut told = refused.error_text().to_owned();
            if way != "transaction" {
                assert!(told.starts_with("FENCED"), "{way}: {told}");
                told = first.cmd(&["PING"]).error_text().to_owned();
            }
            assert!(told.starts_with("LOCKLOST"), "{way}: {told}");
            assert_eq!(first.cmd(&["PING"]), Reply::simple("PONG"));
            let lost = proxy.metric("lockgate_lost_locks_total", "replaced");
            assert_eq!(lost, 1.0, "{way}");
        }
    }
}

#[test]
fn nothing_is_written_while_the_lock_nodes_cannot_say() {
    for way in WAYS {
        let mut proxy = accounts();
        let mut data = data(&mut proxy);
        let mut client = proxy.client();
        client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
        client.cmd(&["LOCK", "account:2", "PX", "30000"]).grant();
        assert!(is_written(&write(&mut client, way, "early")));
        data.cmd(&["DEL", FENCE]);
        for node in 0..2 {
            proxy.node(node).freeze().expect("stopped");
        }
        let refused = write(&mut client, way, "never");
        // The other lock lets a transaction go on.
        let word = if way == "transaction" { "NOTHELD" } else { "NOQUORUM" };
        assert!(refused.error_text().starts_with(word), "{way}: {refused:?}");
        let other = client.pipe(&[&["MULTI"], &["SET", "account:2", "x"], &["EXEC"]]);
        assert_eq!(other[2], Reply::Array(vec![Reply::ok()]), "{way}");
        assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("early"));
        assert_eq!(data.cmd(&["EXISTS", FENCE]), Reply::Int(0));
        for node in 0..2 {
            proxy.node(node).thaw().expect("goes on");
        }
        // The session has not given up its claim.
        eventually("it may write again", || is_written(&write(&mut client, way, "again")));
    }
}

#[test]
fn who_has_its_fence_in_place_asks_no_lock_node() {
    let proxy = accounts();
    let asked = || -> usize {
        let calls = |node| {
            let Reply::Bulk(info) = proxy.node_client(node).cmd(&["INFO", "commandstats"]) else {
                panic!("no INFO")
            };
            let info = String::from_utf8_lossy(&info).into_owned();
            let rest = info.split("cmdstat_evalsha:calls=").nth(1).unwrap_or("0,").to_owned();
            rest.split(',').next().and_then(|calls| calls.parse::<usize>().ok()).expect("a number")
        };
        (0..3).map(calls).sum()
    };
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
    eventually("all nodes were asked", || proxy.nodes_with("lock:account:1") == 3);
    // A lock node that connects a little late has the lease put back, which takes calls too.
    eventually("nobody was asked", || {
        let before = asked();
        for way in WAYS {
            for database in ["0", "1"] {
                assert_eq!(client.cmd(&["SELECT", database]), Reply::ok());
                (0..3).for_each(|_| assert!(is_written(&write(&mut client, way, "x")), "{way}"));
            }
        }
        asked() == before
    });
}
