//! Too few lock nodes look to adopted programs like a Redis that is away for a moment.

use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline};

const TAKE: [&str; 5] = ["SET", "lock:job", "t", "NX", "EX"];
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn start(mode: &str, options: &str) -> Proxy {
    let rule = format!("adopt: {{keys: 'lock:*', lock: '{{1}}', mode: {mode}, {options}}}");
    Proxy::with().nodes(3).top(&rule).start()
}

/// Stops two of three lock nodes, or lets them go on.
fn freeze(proxy: &mut Proxy, are_away: bool) {
    for node in 0..2 {
        let node = proxy.node(node);
        if are_away { node.freeze() } else { node.thaw() }.expect("a lock node");
    }
}

fn retries(proxy: &Proxy) -> f64 {
    proxy.metric("lockgate_adopt_retries_total", "")
}

/// Sends a command while too few lock nodes answer, and brings the nodes back once they were asked again.
fn meanwhile(proxy: &mut Proxy, client: &mut Client, words: &[&str]) -> Reply {
    let before = retries(proxy);
    freeze(proxy, true);
    client.send(&encode(words));
    eventually("they are asked again", || retries(proxy) > before);
    freeze(proxy, false);
    client.reply()
}

#[test]
fn a_short_outage_is_waited_for_by_each_kind_of_command() {
    for mode in ["enforce", "bridge"] {
        let mut proxy = start(mode, "no_ttl: refuse");
        let mut client = proxy.client();
        let release = ["EVAL", RELEASE, "1", "lock:job", "t"];
        for (words, expected) in [
            (&["SET", "lock:job", "t", "NX", "PX", "30000"][..], Reply::ok()),
            (&["SET", "lock:job", "u", "NX", "PX", "30000"], Reply::NullBulk),
            (&["GET", "lock:job"], Reply::bulk("t")),
            (&["EXISTS", "lock:job"], Reply::Int(1)),
            (&["EVAL", EXTEND, "1", "lock:job", "t", "30000"], Reply::Int(1)),
            (&["PEXPIRE", "lock:job", "30000"], Reply::Int(1)),
            (&release, Reply::Int(1)),
            (&release, Reply::Int(0)),
            (&["DEL", "lock:job", "lock:other"], Reply::Int(0)),
        ] {
            // If the data node has the lock, it refuses it without the lock nodes.
            let said = match mode == "bridge" && expected == Reply::NullBulk {
                true => client.cmd(words),
                false => meanwhile(&mut proxy, &mut client, words),
            };
            assert_eq!(said, expected, "{mode}: {words:?}");
        }
    }
    // The transaction of StackExchange.Redis.
    let mut proxy = start("enforce", "no_ttl: refuse");
    let mut client = proxy.client();
    assert_eq!(client.cmd(&[&TAKE[..], &["30"]].concat()), Reply::ok());
    client.pipe(&[&["WATCH", "lock:job"], &["GET", "lock:job"], &["MULTI"], &["DEL", "lock:job"]]);
    let said = meanwhile(&mut proxy, &mut client, &["EXEC"]);
    assert_eq!(said, Reply::Array(vec![Reply::Int(1)]));
}

#[test]
fn a_long_outage_closes_the_connection_as_a_redis_that_went_away() {
    for options in ["no_quorum: wait", "no_quorum: close"] {
        let mut proxy = start("enforce", options);
        freeze(&mut proxy, true);
        let mut client = proxy.client();
        client.send(&encode(&[&TAKE[..], &["30"]].concat()));
        // The command behind it is not carried out.
        client.send(&encode(&["SET", "behind", "1"]));
        assert_eq!(client.rest().0, b"", "{options}");
        let closes = || proxy.metric("lockgate_closes_total", "{reason=\"no_quorum\"}");
        eventually("it is counted", || closes() == 1.0);
        assert_eq!(retries(&proxy) > 0.0, options.ends_with("wait"));
        freeze(&mut proxy, false);
        // With `close`, an attempt before that would be closed too.
        eventually("they are up", || proxy.nodes_up() == 3);
        let mut again = proxy.client();
        assert_eq!(again.cmd(&["GET", "behind"]), Reply::NullBulk);
        // The next connection takes the lock: nothing is left of the attempt.
        eventually("it is free", || again.cmd(&[&TAKE[..], &["30"]].concat()) == Reply::ok());
    }
}

#[test]
fn a_client_that_hangs_up_ends_the_wait() {
    let mut proxy = start("enforce", "no_quorum: wait");
    freeze(&mut proxy, true);
    let mut client = proxy.client();
    client.send(&encode(&[&TAKE[..], &["30"]].concat()));
    eventually("they are asked again", || retries(&proxy) > 0.0);
    client.hang_up();
    assert_eq!(client.rest().0, b"");
    eventually("it has gone", || {
        proxy.metric("lockgate_closes_total", "{reason=\"client\"}") == 1.0
    });
    freeze(&mut proxy, false);
    eventually("nothing is left of it", || proxy.nodes_with("lock:job") == 0);
    assert_eq!(proxy.client().cmd(&["GET", "lock:job"]), Reply::NullBulk);
}

/// A blind release, which names no token, takes effect after the outage: once the lock nodes are back, the lock of
/// this proxy's own client is freed.
#[test]
fn a_blind_release_goes_on_behind_an_outage() {
    for options in ["no_quorum: wait", "no_quorum: close", "no_quorum: error"] {
        let mut proxy = start("enforce", options);
        let mut client = proxy.client();
        for key in ["lock:a", "lock:b", "lock:c", "lock:d"] {
            assert_eq!(client.cmd(&["SET", key, "t", "NX", "PX", "60000"]), Reply::ok());
        }
        freeze(&mut proxy, true);
        for words in [&["DEL", "lock:a"][..], &["UNLINK", "lock:b"], &["DEL", "lock:c", "lock:d"]] {
            let mut client = proxy.client();
            client.send(&encode(words));
            match options.ends_with("error") {
                true => assert!(client.reply().error().starts_with("NOQUORUM ")),
                false => assert_eq!(client.rest().0, b""),
            }
        }
        freeze(&mut proxy, false);
        for lock in ["a", "b", "c", "d"] {
            let key = format!("lock:{lock}");
            eventually(&format!("{key} is free, {options}"), || proxy.nodes_with(&key) == 0);
        }
    }
}

/// A client repeats a transaction whose connection was closed, so the commands beside the release must not be
/// executed each time.
#[test]
fn a_transaction_that_frees_a_lock_executes_nothing_in_an_outage() {
    for options in ["no_quorum: close", "no_quorum: error"] {
        let mut proxy = start("enforce", options);
        assert_eq!(proxy.client().cmd(&[&TAKE[..], &["60"]].concat()), Reply::ok());
        let release = ["EVAL", RELEASE, "1", "lock:job", "t"];
        let transaction =
            |words: &[&str]| pipeline(&[&["MULTI"], &["INCR", "count"], words, &["EXEC"]]);
        freeze(&mut proxy, true);
        for words in [&["DEL", "lock:job"][..], &release] {
            let mut client = proxy.client();
            client.send(&transaction(words));
            (0..3).for_each(|_| drop(client.reply()));
            match options.ends_with("error") {
                true => assert!(client.reply().error().starts_with("NOQUORUM ")),
                false => assert_eq!(client.rest().0, b""),
            }
        }
        freeze(&mut proxy, false);
        eventually("they are up", || proxy.nodes_up() == 3);
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["GET", "count"]), Reply::NullBulk, "{options}");
        proxy.assert_on_nodes("lock:job", 3);
        client.send(&transaction(&release));
        (0..3).for_each(|_| drop(client.reply()));
        assert_eq!(client.reply(), Reply::Array(vec![Reply::Int(1), Reply::Int(1)]));
        proxy.assert_on_nodes("lock:job", 0);
    }
}
