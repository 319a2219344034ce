//! What LOCK with SHARED promises, with real nodes: many readers, or one client that has the lock alone.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::operations::who::field;
use crate::support::{Client, Proxy, Reply, Setup, eventually, relay::Relay, rounds};

/// Deployments on which locks may be shared.
fn setup() -> Setup {
    Proxy::with().nodes(3).locks("shared: yes")
}

/// Takes a reader's part of `k`, which must be granted, and returns its token.
fn read(client: &mut Client, words: &[&str]) -> String {
    let words = [&["LOCK", "k"], words, &["SHARED"]].concat();
    let granted = client.cmd(&words).grant();
    assert_eq!(granted.fence, 0, "a reader has no fence");
    assert!(granted.validity > 0);
    granted.token
}

/// Takes a reader's part with these words for 60 ms, within which lock nodes may not answer on a busy machine.
fn read_briefly(client: &mut Client, words: &[&str]) {
    let words = [&["LOCK"], words, &["SHARED", "PX", "60"]].concat();
    eventually("it reads", || matches!(client.cmd(&words), Reply::Array(_)));
}

/// Whether the lock can be had alone.
fn is_free(proxy: &Proxy) -> bool {
    let mut client = proxy.client();
    let granted = client.cmd(&["LOCK", "k", "probe", "PX", "60000"]);
    granted != Reply::NullArray && client.cmd(&["UNLOCK", "k", "probe"]) == Reply::Int(1)
}

#[test]
fn many_read_or_one_has_it_alone() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let (mut one, mut two) = (proxy.client(), other.client());
    let mine = read(&mut one, &[]);
    read(&mut two, &["yours", "PX", "60000"]);
    for proxy in [&proxy, &other] {
        assert_eq!(proxy.client().cmd(&["LOCK", "k"]), Reply::NullArray, "it has readers");
        assert_eq!(proxy.client().cmd(&["LOCK", "k", "yours"]), Reply::NullArray);
    }
    // Nor has it who asks the nodes past the proxies, as every lock library does.
    for node in 0..3 {
        let plain = proxy.node_client(node).cmd(&["SET", "lock:k", "me", "NX", "PX", "60000"]);
        assert_eq!(plain, Reply::NullBulk);
    }
    assert_eq!(one.cmd(&["UNLOCK", "k", &mine]), Reply::Int(1));
    assert_eq!(one.cmd(&["UNLOCK", "k", &mine]), Reply::Int(0));
    assert!(!is_free(&proxy), "a reader is left");
    assert_eq!(two.cmd(&["UNLOCK", "k"]), Reply::Int(1), "its only one needs no name");
    proxy.assert_on_nodes("lock:k", 0);
    let alone = one.cmd(&["LOCK", "k", "alone", "PX", "60000"]).grant();
    assert!(alone.fence > 0);
    for words in [&["LOCK", "k", "SHARED"][..], &["LOCK", "k", "alone", "SHARED", "PX", "9000"]] {
        assert_eq!(two.cmd(words), Reply::NullArray, "one has it alone");
    }
    assert_eq!(one.cmd(&["UNLOCK", "k", "alone"]), Reply::Int(1));
    read(&mut two, &[]);
}

#[test]
fn each_part_is_given_back_and_renewed_by_its_token() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let (mut one, mut two) = (proxy.client(), proxy.client());
    read(&mut one, &["a", "PX", "60000"]);
    read(&mut one, &["b", "PX", "60000"]);
    let several = "NOTOKEN several LOCKs of 'k' came over this connection; name the token";
    assert_eq!(one.cmd(&["UNLOCK", "k"]).error(), several);
    assert_eq!(one.cmd(&["RENEW", "k"]).error(), several);
    // On other connections, and through another proxy, the token tells.
    for client in [&mut one, &mut two, &mut other.client()] {
        let renewed = client.cmd(&["RENEW", "k", "a", "PX", "50000"]);
        assert!(matches!(renewed, Reply::Int(49_000..50_000)), "{renewed:?}");
        assert_eq!(client.cmd(&["RENEW", "k", "c", "PX", "50000"]), Reply::Int(0));
        assert_eq!(client.cmd(&["UNLOCK", "k", "c"]), Reply::Int(0));
        let attached = client.cmd(&["LOCK.ATTACH", "k", "b"]).grant();
        assert!(attached.fence == 0 && attached.validity > 50_000);
    }
    let kept = "ERR the lock 'k' is shared by this token on another connection, which keeps it; name a TTL";
    assert_eq!(two.cmd(&["RENEW", "k", "a"]).error(), kept);
    assert_eq!(other.client().cmd(&["UNLOCK", "k", "a"]), Reply::Int(1));
    assert_eq!(one.cmd(&["RENEW", "k", "a", "PX", "50000"]), Reply::Int(0), "it has ended");
    assert_eq!(two.cmd(&["UNLOCK", "k", "b"]), Reply::Int(1));
    assert!(is_free(&proxy));
    // Two connections may have chosen one token.
    read(&mut one, &["same", "PX", "60000"]);
    read(&mut two, &["same", "PX", "60000"]);
    let error =
        "ERR several readers of 'k' have this token; use the connection that was granted it";
    assert_eq!(proxy.client().cmd(&["UNLOCK", "k", "same"]).error(), error);
    assert_eq!(other.client().cmd(&["RENEW", "k", "same", "PX", "9000"]).error(), error);
    assert_eq!(one.cmd(&["UNLOCK", "k", "same"]), Reply::Int(1));
    assert!(!is_free(&proxy), "the other's part is left");
    assert_eq!(proxy.client().cmd(&["UNLOCK", "k", "same"]), Reply::Int(1), "there is one now");
    assert!(is_free(&proxy));
}

#[test]
fn who_had_it_alone_by_a_readers_token_neither_renews_nor_ends_the_readers_part() {
    let proxy = setup().start();
    let (mut first, mut second, mut reader) = (proxy.client(), proxy.client(), proxy.client());
    for client in [&mut first, &mut second] {
        client.cmd(&["LOCK", "k", "same", "PX", "300"]).grant();
        thread::sleep(Duration::from_millis(350));
    }
    read(&mut reader, &["same", "PX", "60000"]);
    assert_eq!(first.cmd(&["RENEW", "k", "PX", "50000"]), Reply::Int(0), "its lease has ended");
    assert_eq!(second.cmd(&["UNLOCK", "k"]), Reply::Int(0));
    assert!(!is_free(&proxy), "the reader's part is left");
    assert_eq!(reader.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

#[test]
fn a_session_part_lives_as_long_as_its_connection() {
    let proxy = setup().locks("default_ttl: 1s").start();
    let (mut one, mut two) = (proxy.client(), proxy.client());
    read(&mut one, &["a"]);
    read(&mut two, &["b"]);
    let renewed = proxy.metric("lockgate_renewals_total", "result=\"ok\"");
    eventually("both are renewed, again and again", || {
        proxy.metric("lockgate_renewals_total", "result=\"ok\"") > renewed + 8.0
    });
    assert!(!is_free(&proxy));
    // A repeated LOCK is the same part; with a TTL it is a lease from then on.
    read(&mut one, &["a", "PX", "500"]);
    two.hang_up();
    eventually("one has ended with its connection, and one by itself", || is_free(&proxy));
    assert_eq!(one.cmd(&["UNLOCK", "k", "a"]), Reply::Int(0));
    assert_eq!(one.cmd(&["PING"]), Reply::simple("PONG"), "a lease is not told of");
}

#[test]
fn a_part_that_a_minority_forgot_is_put_back_and_one_that_a_quorum_forgot_is_lost() {
    let proxy = setup().locks("default_ttl: 1s").start();
    let (mut one, mut two) = (proxy.client(), proxy.client());
    read(&mut one, &[]);
    read(&mut two, &["b"]);
    assert_eq!(proxy.node_client(0).cmd(&["DEL", "lock:k"]), Reply::Int(1));
    let both = || proxy.node_client(0).cmd(&["ZCARD", "lock:k"]) == Reply::Int(3);
    eventually("both are put back", both);
    for node in 0..2 {
        let mut node = proxy.node_client(node);
        let Reply::Array(members) = node.cmd(&["ZRANGE", "lock:k", "0", "-1"]) else { panic!() };
        let of_b = |member: &&Reply| matches!(member, Reply::Bulk(text) if text.ends_with(b" b"));
        let Some(Reply::Bulk(b)) = members.iter().find(of_b) else { panic!("{members:?}") };
        assert_eq!(node.cmd(&["ZREM", "lock:k", std::str::from_utf8(b).unwrap()]), Reply::Int(1));
    }
    eventually("it is lost", || {
        proxy.metric("lockgate_lost_locks_total", "reason=\"not_held\"") == 1.0
    });
    let error = "LOCKLOST the lock 'k' was lost, this command was not executed";
    assert_eq!(two.cmd(&["PING"]).error(), error);
    assert_eq!(two.cmd(&["UNLOCK", "k", "b"]), Reply::Int(0));
    assert_eq!(one.cmd(&["PING"]), Reply::simple("PONG"), "the other reader lost nothing");
    assert_eq!(one.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

/// The proxy of the first LOCK takes the lease for ended, as its client has renewed it through another one.
#[test]
fn an_attempt_to_prolong_ends_nothing_that_was_renewed_through_another_proxy() {
    let mut proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    for how in [&[][..], &["SHARED"]] {
        let (mut here, mut there) = (proxy.client(), other.client());
        let lock = |ttl| [&["LOCK", "k", "mine", "PX", ttl], how].concat();
        here.cmd(&lock("500")).grant();
        let renewed = there.cmd(&["RENEW", "k", "mine", "PX", "60000"]);
        assert!(matches!(renewed, Reply::Int(1..)), "{renewed:?}");
        thread::sleep(Duration::from_millis(500));
        // One node keeps it and answers.
        proxy.node(0).freeze().unwrap();
        assert_eq!(proxy.node_client(1).cmd(&["DEL", "lock:k"]), Reply::Int(1));
        let prolonged = here.cmd(&lock("60000"));
        proxy.node(0).thaw().unwrap();
        assert!(prolonged.error_text().starts_with("NOQUORUM"), "{how:?}: {prolonged:?}");
        eventually("all are back", || proxy.nodes_up() == 3 && other.nodes_up() == 3);
        let taken = there.cmd(&["LOCK", "k", "yours", "PX", "60000"]);
        assert_eq!(taken, Reply::NullArray, "{how:?}: a quorum keeps it");
        assert_eq!(there.cmd(&["UNLOCK", "k", "mine"]), Reply::Int(1), "{how:?}");
        proxy.assert_on_nodes("lock:k", 0);
    }
}

/// The proxy of the LOCK has lost sight of a node before that answered, and takes the lease for ended when it is back.
#[test]
fn a_proxy_that_comes_back_to_a_node_ends_nothing_that_was_renewed_through_another_proxy() {
    let mut other = setup().start();
    for how in [&[][..], &["SHARED"]] {
        let relay = Relay::to(other.node(2).port());
        let away = TcpListener::bind("127.0.0.1:0").unwrap();
        let nodes = [0, 1].map(|node| format!("redis://127.0.0.1:{}", other.node(node).port()));
        let through = format!("redis://127.0.0.1:{}", relay.port());
        let proxy = Proxy::with()
            .node_urls(&[&nodes[..], &[through]].concat())
            .locks("shared: yes")
            .locks("node_timeout: 400ms")
            .start();
        eventually("all are up", || proxy.nodes_up() == 3);
        let (mut here, mut there) = (proxy.client(), other.client());
        // The node has taken the lock, and its answer is lost with the connection.
        relay.hold_reply(if how.is_empty() { ":17" } else { ":0\r\n" });
        here.cmd(&[&["LOCK", "k", "mine", "PX", "1500"], how].concat()).grant();
        relay.wait_until_held();
        relay.lead_to(away.local_addr().unwrap().port());
        relay.cut();
        eventually("its proxy does not see it any more", || proxy.nodes_up() == 2);
        let renewed = there.cmd(&["RENEW", "k", "mine", "PX", "60000"]);
        assert!(matches!(renewed, Reply::Int(1..)), "{renewed:?}");
        assert_eq!(other.node_client(0).cmd(&["DEL", "lock:k"]), Reply::Int(1));
        thread::sleep(Duration::from_millis(1500));
        relay.move_to(other.node(2).port());
        eventually("its proxy sees it again", || proxy.nodes_up() == 3);
        let taken = there.cmd(&["LOCK", "k", "yours", "PX", "60000"]);
        assert_eq!(taken, Reply::NullArray, "{how:?}: a quorum keeps it");
        assert_eq!(there.cmd(&["UNLOCK", "k", "mine"]), Reply::Int(1), "{how:?}");
    }
}

#[test]
fn a_writer_that_waits_comes_before_new_readers() {
    // Intents bar for longer than the test takes.
    let proxy = setup().locks("default_ttl: 60s").start();
    let other = Proxy::beside(&proxy).start();
    let mut first = proxy.client();
    read(&mut first, &[]);
    let mut writer = proxy.in_line(&["LOCK", "k", "w", "WAIT", "60000"]);
    let mut late = other.client();
    eventually("its intent bars new readers", || {
        match late.cmd(&["LOCK", "k", "late", "SHARED", "PX", "60000"]) {
            Reply::NullArray => true,
            _ => late.cmd(&["UNLOCK", "k", "late"]) != Reply::Int(1),
        }
    });
    let mut behind: Vec<Client> = (0..3)
        .map(|n| proxy.in_line(&["LOCK", "k", &format!("r{n}"), "SHARED", "WAIT", "60000"]))
        .collect();
    assert_eq!(late.cmd(&["LOCK", "k", "late", "SHARED", "PX", "60000"]), Reply::NullArray);
    // What is granted already can be renewed, and repeated.
    assert!(matches!(first.cmd(&["RENEW", "k"]), Reply::Int(1..)));
    assert_eq!(first.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    assert_eq!(writer.reply().grant().token, "w");
    assert_eq!(proxy.waiters(), 3, "the readers came behind it");
    assert_eq!(writer.cmd(&["UNLOCK", "k", "w"]), Reply::Int(1));
    // They are let in together: none gives its part back.
    for reader in &mut behind {
        assert_eq!(reader.reply().grant().fence, 0);
    }
    assert!(!is_free(&proxy));
}

#[test]
fn neither_readers_nor_writers_keep_the_others_out_for_ever() {
    let proxy = setup().locks("default_ttl: 500ms").start();
    let other = Proxy::beside(&proxy).start();
    let (over, reads, writes) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let (readers, writers) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let again = |proxy: &Proxy, words: &[&str], mine: &AtomicUsize, done: &AtomicUsize| {
        let mut client = proxy.client();
        while !over.load(Ordering::Relaxed) {
            let Reply::Array(_) = client.cmd(words) else { continue };
            mine.fetch_add(1, Ordering::SeqCst);
            let (reading, writing) =
                (readers.load(Ordering::SeqCst), writers.load(Ordering::SeqCst));
            assert!(writing == 0 || writing == 1 && reading == 0, "{reading} and {writing}");
            thread::sleep(Duration::from_millis(5));
            mine.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let (again, readers, writers) = (&again, &readers, &writers);
        let (reads, writes) = (&reads, &writes);
        for proxy in [&proxy, &other, &proxy, &other] {
            let words = &["LOCK", "k", "SHARED", "PX", "60000", "WAIT", "60000"];
            scope.spawn(move || again(proxy, words, readers, reads));
        }
        for proxy in [&proxy, &other] {
            let words = &["LOCK", "k", "PX", "60000", "WAIT", "60000"];
            scope.spawn(move || again(proxy, words, writers, writes));
        }
        eventually("both have had it again and again", || {
            reads.load(Ordering::Relaxed) >= rounds(100)
                && writes.load(Ordering::Relaxed) >= rounds(20)
        });
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_connection_does_not_wait_for_itself() {
    let proxy = setup().start();
    let mut client = proxy.client();
    let error = "DEADLOCK this connection holds the lock and would wait for itself";
    read(&mut client, &["r"]);
    assert_eq!(client.cmd(&["LOCK", "k"]), Reply::NullArray);
    assert_eq!(client.cmd(&["LOCK", "k", "WAIT", "60000"]).error(), error);
    assert_eq!(client.cmd(&["UNLOCK", "k", "r"]), Reply::Int(1));
    client.cmd(&["LOCK", "k", "w"]).grant();
    assert_eq!(client.cmd(&["LOCK", "k", "SHARED"]), Reply::NullArray);
    assert_eq!(client.cmd(&["LOCK", "k", "SHARED", "WAIT", "60000"]).error(), error);
}

#[test]
fn what_guards_need_cannot_be_shared() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let proxy = setup().top(rules).start();
    let mut client = proxy.client();
    // It has no fence by which the data node could refuse what the writer before sent late.
    let error = "ERR no SHARED of a lock that a guard needs: a reader has no fence, and would read what a \
                 writer sends late";
    assert_eq!(client.cmd(&["LOCK", "account:7", "r", "SHARED"]).error(), error);
    assert!(client.cmd(&["LOCK", "account:7"]).grant().fence > 0);
    assert_eq!(client.cmd(&["SET", "account:7", "1"]), Reply::ok());
    client.cmd(&["LOCK", "another", "SHARED"]).grant();
}

#[test]
fn behind_the_end_of_a_reader_its_token_leaves_a_writer_alone() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let [unlock, renew, take_over] =
        [&["UNLOCK", "k", "t"][..], &["RENEW", "k", "t", "PX", "60000"], &["RENEW", "k", "t"]];
    for proxy_of_writer in [&proxy, &other] {
        for commands in [[unlock, unlock], [renew, unlock], [unlock, take_over]] {
            let (mut asker, mut writer) = (proxy.client(), proxy_of_writer.client());
            read_briefly(&mut asker, &["k", "t"]);
            writer.cmd(&["LOCK", "k", "t", "PX", "60000", "WAIT", "10000"]).grant();
            for words in commands {
                let said = asker.cmd(words);
                // Another proxy cannot tell when the writer began.
                let is_unsure = said.error_text().starts_with("UNSURE");
                assert!(said == Reply::Int(0) || is_unsure, "{words:?}: {said:?}");
            }
            assert_eq!(writer.cmd(unlock), Reply::Int(1), "the writer's lock stays");
            // What the connection is granted anew is its own again.
            asker.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
            assert_eq!(asker.cmd(unlock), Reply::Int(1));
        }
    }
}

/// Another client may have given the reader back: its end is not known here until the lock is granted.
#[test]
fn what_is_granted_alone_comes_before_a_reader_that_has_not_run_out() {
    let proxy = setup().start();
    let mut other = proxy.client();
    for words in [&["UNLOCK", "k"][..], &["UNLOCK", "k", "t"], &["MUNLOCK", "1", "k", "t"]] {
        let mut client = proxy.client();
        read(&mut client, &["t", "PX", "60000"]);
        assert_eq!(other.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
        client.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
        assert!(matches!(client.cmd(&["RENEW", "k", "PX", "50000"]), Reply::Int(40000..)));
        assert_eq!(client.cmd(words), Reply::Int(1), "{words:?}");
        assert!(is_free(&proxy));
    }
}

#[test]
fn an_unlock_by_a_token_never_frees_another_clients_reader() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let stays = || assert!(!is_free(&proxy), "the other client's reader stays");
    for proxy_of_asker in [&proxy, &other] {
        // Refused to have it alone.
        let (mut holder, mut asker) = (proxy.client(), proxy_of_asker.client());
        read(&mut holder, &["t"]);
        assert_eq!(asker.cmd(&["LOCK", "k", "t", "PX", "60000"]), Reply::NullArray);
        let said = asker.cmd(&["UNLOCK", "k", "t"]);
        // Another proxy cannot tell when the reader began.
        assert!(said == Reply::Int(0) || said.error_text().starts_with("UNSURE"), "{said:?}");
        stays();
        // Its own reader by the same token has ended.
        let mut second = proxy_of_asker.client();
        read(&mut second, &["t", "PX", "60000"]);
        assert_eq!(second.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
        let said = second.cmd(&["UNLOCK", "k", "t"]);
        assert!(said == Reply::Int(0) || said.error_text().starts_with("UNSURE"), "{said:?}");
        stays();
        assert_eq!(holder.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
        // A pool gives back on whichever connection it has at hand, also on one that was refused before.
        assert_eq!(holder.cmd(&["LOCK", "k", "w", "PX", "60000"]).grant().token, "w");
        let mut refused = proxy.client();
        assert_eq!(refused.cmd(&["LOCK", "k", "t", "SHARED", "PX", "60000"]), Reply::NullArray);
        assert_eq!(holder.cmd(&["UNLOCK", "k", "w"]), Reply::Int(1));
        read(&mut holder, &["t", "PX", "60000"]);
        assert_eq!(refused.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
        assert!(is_free(&proxy));
    }
}

/// A client that waited may not have been told of the grant that another one got meanwhile by its token.
#[test]
fn who_waited_in_vain_frees_no_grant_that_another_client_got_meanwhile() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let wait = |words: &[&'static str]| [words, &["WAIT", "300"]].concat();
    let several = ["MLOCK", "2", "j", "k", "mine"];
    for (lock, unlock) in [
        (wait(&["LOCK", "k", "mine"]), &["UNLOCK", "k", "mine"][..]),
        (wait(&["LOCK", "k", "mine", "SHARED"]), &["UNLOCK", "k", "mine"]),
        (wait(&["LOCK", "k", "mine", "SHARED"]), &["RENEW", "k", "mine", "PX", "50"]),
        (wait(&several), &["MUNLOCK", "2", "j", "k", "mine"]),
        (wait(&several), &["UNLOCK", "k", "mine"]),
    ] {
        for through in [&proxy, &other] {
            eventually("the other client comes first", || {
                let on_nodes = |words: &[&str]| {
                    (0..3).for_each(|node| drop(proxy.node_client(node).cmd(words)));
                };
                on_nodes(&["SET", "lock:k", "before", "PX", "60000"]);
                let mut in_vain = through.in_line(&lock);
                // Nobody who waits is told.
                on_nodes(&["DEL", "lock:k"]);
                let mut other = proxy.client();
                let granted = other.cmd(&["LOCK", "k", "mine", "PX", "60000"]);
                if in_vain.reply() != Reply::NullArray {
                    return false;
                }
                granted.grant();
                let freed = in_vain.cmd(unlock);
                let is_unsure = freed.error_text().starts_with("UNSURE ");
                assert!(freed == Reply::Int(0) || is_unsure, "{lock:?}, {unlock:?}: {freed:?}");
                assert!(!is_free(&proxy), "{lock:?}, {unlock:?}");
                assert_eq!(other.cmd(&["UNLOCK", "k", "mine"]), Reply::Int(1), "{lock:?}");
                true
            });
        }
    }
}

#[test]
fn a_reader_that_has_run_out_stands_in_the_way_of_no_later_grant() {
    let proxy = setup().start();
    let of_token = ["k", "mine"];
    for (name, then, unlock) in [
        (&["k"][..], &["LOCK", "k"][..], &["UNLOCK", "k"][..]),
        (&["k"], &["LOCK", "k", "SHARED", "PX", "60000"], &["UNLOCK", "k"]),
        (&of_token, &["LOCK", "k", "SHARED"], &["UNLOCK", "k"]),
        (&of_token, &["LOCK", "k", "mine"], &["UNLOCK", "k", "mine"]),
        (&of_token, &["LOCK", "k", "mine", "PX", "60000"], &["MUNLOCK", "1", "k", "mine"]),
        (&of_token, &["MLOCK", "1", "k", "mine"], &["UNLOCK", "k", "mine"]),
    ] {
        let mut client = proxy.client();
        read_briefly(&mut client, name);
        thread::sleep(Duration::from_millis(60));
        let granted = || client.cmd(then) != Reply::NullArray;
        eventually("the reader has ended on the nodes", granted);
        if unlock[0] == "UNLOCK" {
            let renew = [&["RENEW"], &unlock[1..], &["PX", "50000"]].concat();
            let renewed = client.cmd(&renew);
            assert!(matches!(renewed, Reply::Int(1..)), "{name:?}, {then:?}: {renewed:?}");
        }
        assert_eq!(client.cmd(unlock), Reply::Int(1), "{name:?}, {then:?}");
        assert!(is_free(&proxy), "{name:?}, {then:?}");
    }
}

#[test]
fn an_unlock_of_what_was_granted_since_does_not_tell_of_a_readers_loss() {
    let proxy = setup().locks("default_ttl: 5s").start();
    let other = Proxy::beside(&proxy).start();
    let (mut reader, mut same_token) = (proxy.client(), other.client());
    read(&mut reader, &["t"]);
    assert_eq!(same_token.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    reader.cmd(&["LOCK", "k", "t"]).grant();
    eventually("the reader is lost", || proxy.metric("lockgate_lost_locks_total", "") == 1.0);
    let told = reader.cmd(&["UNLOCK", "k", "t"]);
    assert!(told.error().starts_with("LOCKLOST the lock 'k' was lost"), "{told:?}");
    assert_eq!(reader.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
}

#[test]
fn readers_of_another_proxy_are_told_to_operators() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let mut reader = other.client();
    read(&mut reader, &["PX", "60000"]);
    let told = proxy.client().cmd(&["LOCKGATE", "LOCK", "k"]);
    assert_eq!(field(&told, "kind"), Reply::bulk("elsewhere"), "{told:?}");
}

#[test]
fn munlock_gives_back_a_connections_own_parts() {
    let proxy = setup().start();
    let mut client = proxy.client();
    read(&mut client, &["t"]);
    client.cmd(&["LOCK", "l", "t"]).grant();
    assert_eq!(client.cmd(&["MUNLOCK", "2", "k", "l", "t"]), Reply::Int(2));
    read(&mut client, &[]);
    assert_eq!(client.cmd(&["MUNLOCK", "1", "k"]), Reply::Int(1));
    assert!(is_free(&proxy));
}

#[test]
fn an_operator_takes_it_back_from_all_readers() {
    let proxy = setup().locks("default_ttl: 1s").start();
    let other = Proxy::beside(&proxy).start();
    let (mut one, mut two, mut lease) = (proxy.client(), other.client(), proxy.client());
    read(&mut one, &[]);
    read(&mut two, &[]);
    read(&mut lease, &["l", "PX", "60000"]);
    let mut operator = proxy.client();
    let Reply::Array(told) = operator.cmd(&["LOCKGATE", "LOCKS"]) else { panic!() };
    let [Reply::Array(lock)] = &told[..] else { panic!("one lock is one row: {told:?}") };
    let told = |name: &str| {
        let at = lock.iter().position(|word| *word == Reply::bulk(name)).unwrap();
        lock[at + 1].clone()
    };
    assert_eq!((told("kind"), told("readers")), (Reply::bulk("shared"), Reply::Int(2)));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "free", "ANY"]), Reply::Int(0));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "k", "ANY"]), Reply::Int(1));
    assert!(is_free(&proxy), "no reader is left");
    let error = "LOCKLOST the lock 'k' was lost, this command was not executed";
    assert_eq!(one.cmd(&["PING"]).error(), error);
    eventually("the other proxy learns of it", || {
        other.metric("lockgate_lost_locks_total", "reason=\"not_held\"") == 1.0
    });
    assert_eq!(two.cmd(&["PING"]).error(), error);
    assert_eq!(lease.cmd(&["RENEW", "k", "l", "PX", "9000"]), Reply::Int(0));
    assert!(is_free(&proxy), "none was put back");
}

#[test]
fn an_operator_takes_it_back_from_one_reader() {
    let proxy = setup().start();
    let other = Proxy::beside(&proxy).start();
    let (mut one, mut two, mut lease) = (proxy.client(), proxy.client(), other.client());
    one.cmd(&["CLIENT", "SETNAME", "one"]);
    read(&mut one, &["a"]);
    read(&mut two, &["b", "PX", "60000"]);
    read(&mut lease, &["l", "PX", "60000"]);
    let listed = |proxy: &Proxy| {
        let Reply::Array(told) = proxy.client().cmd(&["LOCKGATE", "READERS", "k"]) else {
            panic!()
        };
        let reader = |row: &Reply| {
            let Reply::Array(row) = row else { panic!("{row:?}") };
            let told = |name: &str| {
                let at = row.iter().position(|word| *word == Reply::bulk(name)).unwrap();
                row[at + 1].clone()
            };
            let Reply::Int(number) = told("reader") else { panic!("{row:?}") };
            assert_eq!(told("connected"), Reply::Int(1));
            assert!(matches!(told("remaining-ms"), Reply::Int(1..)), "{row:?}");
            (number.to_string(), told("kind"), told("name"))
        };
        told.iter().map(reader).collect::<Vec<_>>()
    };
    let here = listed(&proxy);
    let expected = [("session", "one"), ("lease", "")]
        .map(|(kind, name)| (Reply::bulk(kind), Reply::bulk(name)));
    assert!(
        here.iter().map(|reader| (reader.1.clone(), reader.2.clone())).eq(expected),
        "{here:?}"
    );
    let take_back = |proxy: &Proxy, number: &str| {
        proxy.client().cmd(&["LOCKGATE", "UNLOCK", "k", "READER", number])
    };
    assert_eq!(take_back(&proxy, "7"), Reply::Int(0), "none has this number");
    assert_eq!(take_back(&other, &here[0].0), Reply::Int(0), "another proxy has listed it");
    assert_eq!(take_back(&proxy, &here[0].0), Reply::Int(1));
    let error = "LOCKLOST the lock 'k' was lost, this command was not executed";
    assert_eq!(one.cmd(&["PING"]).error(), error);
    assert_eq!(take_back(&proxy, &here[0].0), Reply::Int(0));
    assert_eq!(take_back(&other, &listed(&other)[0].0), Reply::Int(1));
    assert_eq!(lease.cmd(&["RENEW", "k", "l", "PX", "9000"]), Reply::Int(0));
    assert!(!is_free(&proxy), "one is left");
    assert!(matches!(two.cmd(&["RENEW", "k", "b", "PX", "60000"]), Reply::Int(1..)));
    assert_eq!(take_back(&proxy, &here[1].0), Reply::Int(1));
    assert!(is_free(&proxy), "none is left");
    assert_eq!(listed(&proxy), []);
}

#[test]
fn it_is_refused_unless_the_file_allows_it() {
    let proxy = Proxy::start();
    let error = "ERR SHARED is off; it needs 'locks.shared: yes' in the file of every proxy";
    assert_eq!(proxy.client().cmd(&["LOCK", "k", "SHARED"]).error(), error);
    assert_eq!(proxy.client().cmd(&["LOCK", "k", "t", "PX", "900", "shared"]).error(), error);
}
