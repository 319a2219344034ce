//! Transactions that release or extend an adopted lock (StackExchange.Redis's LockRelease and LockExtend): the lock
//! nodes decide, the data node sees nothing of them, and the replies are those of Redis.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline};

const RULES: &str = "adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: enforce";
const TAKE: [&str; 6] = ["SET", "lock:job", "t", "NX", "PX", "20000"];
const BEGIN: [&[&str]; 3] = [&["WATCH", "lock:job"], &["GET", "lock:job"], &["MULTI"]];
const DEL: &[&str] = &["DEL", "lock:job"];
const EXEC: &[&str] = &["EXEC"];
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn enforced() -> Proxy {
    Proxy::with().nodes(3).top(RULES).start()
}

/// Runs a transaction with one command. Returns the reply to EXEC.
fn transaction(client: &mut Client, inside: &[&str]) -> Reply {
    let mut said = client.pipe(&[&BEGIN[..], &[inside, EXEC]].concat());
    said.pop().unwrap()
}

/// Commands of a client; `K` and `L` stand for keys.
fn all_kinds() -> Vec<Vec<&'static str>> {
    [
        // Taken, and released.
        "SET K t NX PX 20000",
        "WATCH K",
        "GET K",
        "MULTI",
        "DEL K",
        "EXEC",
        "GET K",
        "SET K t EX 20 NX",
        "WATCH K",
        "GET K",
        "MULTI",
        "UNLINK K",
        "EXEC",
        "EXISTS K",
        // Prolonged.
        "SET K t NX PX 20000",
        "WATCH K",
        "GET K",
        "MULTI",
        "PEXPIRE K 25000",
        "EXEC",
        "TTL K",
        "WATCH K",
        "GET K",
        "MULTI",
        "EXPIRE K 30",
        "EXEC",
        "TTL K",
        "watch K",
        "get K",
        "multi",
        "expire K 0",
        "exec",
        "GET K",
        // The lock of another client, which the client reads and leaves.
        "SET K u NX PX 20000",
        "WATCH K",
        "GET K",
        "UNWATCH",
        "WATCH K",
        "GET K",
        "MULTI",
        "DISCARD",
        "GET K",
        "WATCH K",
        "GET K",
        "MULTI",
        "DEL K",
        "DISCARD",
        "GET K",
        // A transaction with nothing in it, one begun twice, and one ended twice.
        "WATCH K",
        "GET K",
        "MULTI",
        "EXEC",
        "WATCH K",
        "WATCH K",
        "GET K",
        "MULTI",
        "MULTI",
        "WATCH L",
        "DEL K",
        "EXEC",
        "EXEC",
        "DISCARD",
        "UNWATCH",
        "WATCH K",
        "GET K",
        "EXEC",
        "DISCARD",
        "MULTI",
        "EXEC x",
        "EXEC",
        // No client holds the lock.
        "WATCH K",
        "GET K",
        "MULTI",
        "DEL K",
        "EXEC",
        "WATCH K",
        "GET K",
        "MULTI",
        "PEXPIRE K 1000",
        "EXEC",
        "WATCH K",
        "GET K",
        "MULTI",
        "EXEC",
        // A lock that the same connection takes, or frees, in between.
        "WATCH K",
        "GET K",
        "SET K t NX PX 20000",
        "MULTI",
        "DEL K",
        "EXEC",
        "GET K",
        "WATCH K",
        "GET K",
        "DEL K",
        "MULTI",
        "DEL K",
        "EXEC",
        "EXISTS K",
        "SET K t NX PX 20000",
        "WATCH K",
        "GET K",
        "DEL K",
        "SET K t NX PX 20000",
        "MULTI",
        "PEXPIRE K 30000",
        "EXEC",
        "TTL K",
        // A refused SET NX changes nothing. Commands of other callers come in between.
        "WATCH K",
        "SET K u NX PX 20000",
        "SET L 1",
        "GET K",
        "GET L",
        "SET K v NX EX 9",
        "MULTI",
        "DEL K",
        "EXEC",
        "DEL L",
        // Other callers' transactions work as ever.
        "WATCH L",
        "GET L",
        "MULTI",
        "SET L 1",
        "GET L",
        "EXEC",
        "DEL L",
        "WATCH K",
        "GET K",
        "MULTI",
        "QUIT",
    ]
    .iter()
    .map(|line| line.split(' ').collect())
    .collect()
}

fn of_keys(words: &[&'static str], keys: [&'static str; 2]) -> Vec<&'static str> {
    let word = |word: &&'static str| match *word {
        "K" => keys[0],
        "L" => keys[1],
        word => word,
    };
    words.iter().map(word).collect()
}

#[test]
fn a_transaction_is_answered_as_redis_does_in_whichever_pieces_it_comes() {
    let proxy = enforced();
    let mut redis = proxy.data_client();
    for version in ["2", "3"] {
        // Redis itself carries out the same commands on keys that no rule covers.
        let mut expected: Vec<Reply> = Vec::new();
        let mut peer = proxy.data_client();
        peer.cmd(&["HELLO", version]);
        for words in all_kinds() {
            expected.push(peer.cmd(&of_keys(&words, ["other:job", "other:x"])));
        }
        let commands: Vec<Vec<&str>> =
            all_kinds().iter().map(|words| of_keys(words, ["lock:job", "x"])).collect();
        // One by one.
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        for (words, expected) in commands.iter().zip(&expected) {
            assert_eq!(client.cmd(words), *expected, "{words:?}");
            assert_eq!(redis.cmd(&["EXISTS", "lock:job"]), Reply::Int(0), "{words:?}");
        }
        // All at once, and in pieces.
        let bytes: Vec<u8> = commands.iter().flat_map(|words| encode(words)).collect();
        for piece in [bytes.len(), 100, 1] {
            let mut client = proxy.client();
            client.cmd(&["HELLO", version]);
            for bytes in bytes.chunks(piece) {
                client.send(bytes);
            }
            for (words, expected) in commands.iter().zip(&expected) {
                assert_eq!(client.reply(), *expected, "{words:?} in pieces of {piece}");
            }
        }
        // As inline commands.
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        client.send(
            commands.iter().map(|words| words.join(" ") + "\r\n").collect::<String>().as_bytes(),
        );
        for (words, expected) in commands.iter().zip(&expected) {
            assert_eq!(client.reply(), *expected, "{words:?}");
        }
        proxy.assert_on_nodes("lock:job", 0);
    }
}

#[test]
fn the_data_node_sees_nothing_of_it() {
    let proxy = enforced();
    let (mut client, mut monitor) = (proxy.client(), proxy.data_client());
    assert_eq!(monitor.cmd(&["MONITOR"]), Reply::ok());
    for inside in [&["PEXPIRE", "lock:job", "30000"][..], DEL] {
        client.cmd(&TAKE);
        let done = Reply::Array(vec![Reply::Int(1)]);
        assert_eq!(transaction(&mut client, inside), done);
    }
    client.cmd(&["ECHO", "end"]);
    let mut seen = String::new();
    while !seen.contains("\"ECHO\" \"end\"") {
        let Reply::Simple(line) = monitor.reply() else { panic!() };
        seen += &line;
        seen += "\n";
    }
    for word in ["\"MULTI\"", "\"EXEC\"", "\"WATCH\"", "\"DEL\"", "\"PEXPIRE\""] {
        assert!(!seen.contains(word), "{seen}");
    }
}

#[test]
fn what_others_do_in_between_decides() {
    let proxy = enforced();
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    let one = Reply::Array(vec![Reply::Int(1)]);
    // A refused SET NX or LOCK leaves the holder's transaction valid.
    assert_eq!(holder.cmd(&TAKE), Reply::ok());
    holder.pipe(&BEGIN);
    assert_eq!(other.cmd(&["SET", "lock:job", "u", "NX", "PX", "20000"]), Reply::NullBulk);
    assert_eq!(other.cmd(&["LOCK", "job", "PX", "1000"]), Reply::NullArray);
    assert_eq!(holder.pipe(&[DEL, EXEC])[1], one);
    // So does an extension by the same token, though for Redis it would touch the key.
    assert_eq!(holder.cmd(&TAKE), Reply::ok());
    holder.pipe(&BEGIN);
    assert_eq!(other.cmd(&["EVAL", EXTEND, "1", "lock:job", "t", "30000"]), Reply::Int(1));
    assert_eq!(holder.pipe(&[DEL, EXEC])[1], one);
    // A client that has the lock by then keeps it, whatever its token.
    for token in ["u", "t"] {
        assert_eq!(holder.cmd(&TAKE), Reply::ok());
        holder.pipe(&BEGIN);
        holder.cmd(DEL);
        assert_eq!(other.cmd(DEL), Reply::Int(1));
        let again = ["SET", "lock:job", token, "NX", "PX", "20000"];
        assert_eq!(other.cmd(&again), Reply::ok());
        assert_eq!(holder.cmd(EXEC), Reply::NullArray);
        assert_eq!(other.cmd(&["GET", "lock:job"]), Reply::bulk(token));
        assert_eq!(other.cmd(DEL), Reply::Int(1));
    }
    // A lock that has run out is not released.
    assert_eq!(holder.cmd(&["SET", "lock:job", "t", "NX", "PX", "300"]), Reply::ok());
    holder.pipe(&BEGIN);
    holder.cmd(DEL);
    eventually("it has run out", || proxy.nodes_with("lock:job") == 0);
    assert_eq!(holder.cmd(EXEC), Reply::NullArray);
    // A LOCK client's lock is left alone.
    other.cmd(&["LOCK", "job", "t", "PX", "20000"]).grant();
    let said = holder.pipe(&[&BEGIN[..], &[DEL, EXEC]].concat());
    let refused = "ERR the adopted lock 'job' was taken by LOCK, and no transaction ends or \
                   prolongs such (adopt)";
    assert_eq!(said[3].error(), refused);
    assert!(said[4].error().starts_with("EXECABORT"), "{said:?}");
    assert_eq!(other.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    // The release wakes a waiter.
    assert_eq!(holder.cmd(&TAKE), Reply::ok());
    other.send(&encode(&["LOCK", "job", "PX", "1000", "WAIT", "10000"]));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(transaction(&mut holder, DEL), one);
    other.reply().grant();
}

#[test]
fn another_transaction_with_an_adopted_lock_fails_and_does_nothing() {
    let proxy = Proxy::with().nodes(3).top(&format!("{RULES}\n    no_quorum: error")).start();
    let mut client = proxy.client();
    let mut redis = proxy.data_client();
    assert_eq!(client.cmd(&TAKE), Reply::ok());
    let large = "x".repeat(100_000);
    for inside in [
        &[&["SET", "x", "1"][..]][..],
        &[DEL, &["SET", "x", "1"]],
        &[&["SET", "x", "1"], DEL],
        &[&["SET", "x", &large], DEL],
        &[DEL, &["DEL", "lock:other"]],
        &[&["SET", "lock:job", "v", "XX", "PX", "1000"]],
        &[&["EVAL", EXTEND, "1", "lock:job", "t", "1"]],
        &[&["PEXPIRE", "lock:job", "60001"]],
        &[&["LOCK", "job", "PX", "1000"], DEL],
    ] {
        let said = client.pipe(&[&BEGIN[..], inside, &[EXEC, &["PING"]]].concat());
        let inner = &said[3..said.len() - 2];
        assert!(inner.iter().any(|reply| matches!(reply, Reply::Error(_))), "{said:?}");
        assert!(said[said.len() - 2].error().starts_with("EXECABORT"), "{said:?}");
        assert_eq!(said[said.len() - 1], Reply::simple("PONG"));
        assert_eq!(redis.cmd(&["EXISTS", "x", "lock:job"]), Reply::Int(0));
        assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
        let Reply::Int(left) = client.cmd(&["PTTL", "lock:job"]) else { panic!() };
        assert!(left > 10_000, "{left}");
    }
    let refused = client.cmd(&["WATCH", "lock:job", "lock:other"]);
    assert!(refused.error().starts_with("ERR 'lock:job' is an adopted lock: "), "{refused:?}");
    // A client that hangs up midway has changed nothing.
    for commands in [&BEGIN[..], &[&BEGIN[..], &[DEL]].concat()] {
        let mut gone = proxy.client();
        gone.send(&pipeline(commands));
        gone.reply();
        gone.hang_up();
        gone.rest();
    }
    assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    // With too few lock nodes the reply is an error that no library takes for an answer.
    let mut proxy = proxy;
    client.pipe(&BEGIN);
    client.cmd(DEL);
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    assert!(client.cmd(EXEC).error().starts_with("NOQUORUM"));
    let said = client.pipe(&[&BEGIN[..], &[DEL, EXEC]].concat());
    assert!(said[1].error().starts_with("NOQUORUM"), "{said:?}");
    assert!(said[4].error().starts_with("EXECABORT"), "{said:?}");
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
}

#[test]
fn a_transaction_is_about_the_key_in_its_database_and_for_who_may() {
    let proxy = enforced();
    let (mut zero, mut one) = (proxy.client(), proxy.client());
    assert_eq!(zero.cmd(&TAKE), Reply::ok());
    assert_eq!(one.cmd(&["SELECT", "1"]), Reply::ok());
    let take = ["SET", "lock:job", "u", "NX", "PX", "20000"];
    assert_eq!(one.cmd(&take), Reply::ok());
    // On a shared connection another caller selects another database in between.
    let said = one.pipe(&[
        BEGIN[0],
        &["SELECT", "0"],
        BEGIN[1],
        &["SELECT", "1"],
        BEGIN[1],
        BEGIN[2],
        DEL,
        EXEC,
    ]);
    assert_eq!((&said[2], &said[4]), (&Reply::bulk("t"), &Reply::bulk("u")));
    assert_eq!(said[7], Reply::Array(vec![Reply::Int(1)]));
    assert_eq!(zero.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    let mut redis = proxy.data_client();
    redis.cmd(&["ACL", "SETUSER", "reader", "on", ">p", "+@all", "%R~lock:*"]);
    let mut client = proxy.client();
    client.cmd(&["AUTH", "reader", "p"]);
    let said = client.pipe(&[&BEGIN[..], &[DEL, EXEC]].concat());
    assert_eq!(said[1], Reply::bulk("t"));
    assert!(said[3].error().starts_with("NOPERM"), "{said:?}");
    assert!(said[4].error().starts_with("EXECABORT"), "{said:?}");
    redis.cmd(&["ACL", "SETUSER", "reader", "resetkeys", "~other:*"]);
    let mut client = proxy.client();
    client.cmd(&["AUTH", "reader", "p"]);
    assert!(client.cmd(BEGIN[0]).error().starts_with("NOPERM"));
}

#[test]
fn replies_that_are_off_change_nothing() {
    let proxy = enforced();
    let mut client = proxy.client();
    assert_eq!(client.cmd(&TAKE), Reply::ok());
    client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
    client.send(&pipeline(&[&BEGIN[..], &[DEL, EXEC]].concat()));
    client.send(&encode(&["CLIENT", "REPLY", "ON"]));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    proxy.assert_on_nodes("lock:job", 0);
}

#[test]
fn the_operator_is_told_that_the_quorum_carries_it_out() {
    let proxy = enforced();
    let mut client = proxy.client();
    client.cmd(&["CLIENT", "SETNAME", "net"]);
    let text = |client: &mut Client| format!("{:?}", client.cmd(&["LOCKGATE", "ADOPTED"]));
    client.cmd(&TAKE);
    for inside in [&["PEXPIRE", "lock:job", "30000"][..], DEL] {
        transaction(&mut client, inside);
    }
    let metric = |labels: &str| proxy.metric("lockgate_adopt_seen_total", labels);
    for idiom in ["release", "extend"] {
        assert_eq!(metric(&format!("idiom=\"{idiom}\",verdict=\"quorum\"")), 1.0);
    }
    assert!(!text(&mut client).contains("watch"), "{}", text(&mut client));
    // Any other transaction is named by its commands.
    client.pipe(&[&BEGIN[..], &[DEL, &["SET", "x", "1"], EXEC]].concat());
    assert_eq!(metric("idiom=\"watch\",verdict=\"refused\""), 1.0);
    assert_eq!(metric("idiom=\"blind_release\",verdict=\"refused\""), 1.0);
}

/// One connection that all callers of a process share, as with StackExchange.Redis: a transaction is written as a
/// whole; between any other two commands there may be other callers' commands.
struct Multiplexer(Mutex<Client>);

impl Multiplexer {
    fn cmd(&self, words: &[&str]) -> Reply {
        self.0.lock().unwrap().cmd(words)
    }

    /// Whether the key has this value, and `command` was carried out under that condition.
    fn execute(&self, key: &str, value: &str, command: &[&str]) -> bool {
        // Others' commands may come between WATCH and MULTI too.
        assert_eq!(self.cmd(&["WATCH", key]), Reply::ok());
        let is_equal = self.cmd(&["GET", key]) == Reply::bulk(value);
        if !is_equal {
            assert_eq!(self.cmd(&["UNWATCH"]), Reply::ok());
            return false;
        }
        let said = self.0.lock().unwrap().pipe(&[&["MULTI"], command, &["EXEC"]]);
        assert_eq!(said[..2], [Reply::ok(), Reply::simple("QUEUED")]);
        match &said[2] {
            Reply::Array(done) => {
                assert_eq!(done[..], [Reply::Int(1)]);
                true
            }
            null => {
                assert_eq!(*null, Reply::NullArray);
                false
            }
        }
    }
}

#[test]
fn callers_that_share_a_connection_exclude_one_another() {
    let proxy = enforced();
    let inside = Arc::new(AtomicUsize::new(0));
    let entered = Arc::new(AtomicUsize::new(0));
    let until = Instant::now() + Duration::from_secs(3);
    let mut callers = Vec::new();
    for process in 0..2 {
        let shared = Arc::new(Multiplexer(Mutex::new(proxy.client())));
        // Only one transaction is written at a time.
        let writer = Arc::new(Mutex::new(()));
        for caller in 0..3 {
            let (shared, writer) = (shared.clone(), writer.clone());
            let (inside, entered) = (inside.clone(), entered.clone());
            callers.push(thread::spawn(move || {
                let token = format!("{process}:{caller}");
                while Instant::now() < until {
                    let take = ["SET", "lock:job", &token, "EX", "20", "NX"];
                    if shared.cmd(&take) != Reply::ok() {
                        assert_ne!(shared.cmd(&["GET", "x"]), Reply::ok());
                        // A caller cannot release or prolong another's lock.
                        let _writes = writer.lock().unwrap();
                        assert!(!shared.execute("lock:job", &token, &["UNLINK", "lock:job"]));
                        continue;
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    entered.fetch_add(1, Ordering::SeqCst);
                    let extend = ["EXPIRE", "lock:job", "30"];
                    let extended = {
                        let _writes = writer.lock().unwrap();
                        shared.execute("lock:job", &token, &extend)
                    };
                    assert!(extended);
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    let _writes = writer.lock().unwrap();
                    assert!(shared.execute("lock:job", &token, &["UNLINK", "lock:job"]));
                }
            }));
        }
    }
    for caller in callers {
        caller.join().unwrap();
    }
    assert!(entered.load(Ordering::SeqCst) > 10, "{entered:?}");
    proxy.assert_on_nodes("lock:job", 0);
    let mut redis = proxy.data_client();
    assert_eq!(redis.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
}

/// Random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Whether Redis may drop a transaction that succeeds here: the key was touched since WATCH, but what GET told is
/// still true.
#[derive(Default)]
struct Touched {
    is_watched: bool,
    is_read: bool,
    is_forgiven: bool,
}

impl Touched {
    fn note(&mut self, who: usize, words: &[&str], said: &Reply) {
        match (who, words[0]) {
            (0, "WATCH") if *said == Reply::ok() && !self.is_watched => {
                *self = Touched { is_watched: true, ..Touched::default() };
            }
            (0, "UNWATCH" | "DISCARD" | "EXEC") if !matches!(said, Reply::Error(_)) => {
                *self = Touched::default();
            }
            // The lock is free again, however often it was taken meanwhile.
            (0, "GET") if self.is_watched => self.is_read = !matches!(said, Reply::NullBulk),
            (_, "PEXPIRE") if *said == Reply::Int(1) => self.is_forgiven |= self.is_watched,
            (_, "SET" | "DEL") if matches!(said, Reply::Simple(_) | Reply::Int(1)) => {
                // Once GET has been answered, its value is compared.
                self.is_forgiven |= self.is_watched && !self.is_read;
            }
            _ => {}
        }
    }
}

#[test]
fn any_order_of_commands_is_answered_as_redis_does_or_refused() {
    let proxy = enforced();
    let kinds: [&[&str]; 12] = [
        &["WATCH", "K"],
        &["GET", "K"],
        &["MULTI"],
        &["DEL", "K"],
        &["EXEC"],
        &["PEXPIRE", "K", "30000"],
        &["SET", "K", "a", "NX", "PX", "30000"],
        &["SET", "K", "b", "NX", "PX", "30000"],
        &["UNWATCH"],
        &["DISCARD"],
        &["EXISTS", "K"],
        &["SET", "x", "1"],
    ];
    let (mut whole, mut refused, mut forgiven, mut done) = (0, 0, 0, 0);
    for seed in 1..=200_u64 {
        let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut ours = [proxy.client(), proxy.client()];
        let mut peers = [proxy.data_client(), proxy.data_client()];
        let mut touched = Touched::default();
        let mut log: Vec<(usize, Vec<&str>, Reply)> = Vec::new();
        let mut ended = false;
        for _ in 0..40 {
            // Mostly in order, since otherwise no transaction would reach its end.
            let who = usize::from(chance.below(5) == 0);
            let at = match (who, chance.below(6)) {
                (0, 0) => chance.below(kinds.len()),
                (0, _) => {
                    let last = log.iter().rev().find(|(who, ..)| *who == 0);
                    match last.map(|(_, words, _)| words[0]) {
                        Some("WATCH") => 1,
                        Some("GET") => 2,
                        Some("MULTI") => [3, 5][chance.below(2)],
                        Some("DEL" | "PEXPIRE") => 4,
                        _ => [0, 6][chance.below(2)],
                    }
                }
                _ => [3, 5, 6, 7][chance.below(4)],
            };
            let words = |key: &'static str| -> Vec<&'static str> {
                kinds[at].iter().map(|word| if *word == "K" { key } else { word }).collect()
            };
            let said = ours[who].cmd(&words("lock:k"));
            let expected = peers[who].cmd(&words("other:k"));
            let may_differ = touched.is_forgiven;
            touched.note(who, kinds[at], &said);
            log.push((who, words("lock:k"), said.clone()));
            if said == expected {
                if at == 4 && said == Reply::Array(vec![Reply::Int(1)]) {
                    done += 1;
                }
                continue;
            }
            ended = true;
            match &said {
                Reply::Error(error) if error.contains("(adopt)") => {
                    refused += 1;
                    // Nothing was done, and the transaction ends as a failed one does.
                    let exec = ours[0].cmd(&["EXEC"]);
                    let is_told = matches!(&exec, Reply::Error(error)
                        if error.starts_with("EXECABORT") || error == "ERR EXEC without MULTI");
                    assert!(is_told, "{exec:?} {log:?}");
                }
                Reply::Array(_) if expected == Reply::NullArray && may_differ => {
                    forgiven += 1;
                    if said == Reply::Array(vec![Reply::Int(0)]) {
                        assert_eq!(ours[1].cmd(&["GET", "lock:k"]), Reply::NullBulk, "{log:?}");
                    }
                }
                _ => panic!("{said:?} in place of {expected:?}: {log:?}"),
            }
            break;
        }
        whole += usize::from(!ended);
        drop(ours);
        for key in ["lock:k", "other:k", "x"] {
            peers[0] = proxy.data_client();
            peers[0].cmd(&["DEL", key]);
            proxy.client().cmd(&["DEL", key]);
        }
    }
    let counts = [whole, refused, forgiven, done];
    assert!(counts.iter().all(|count| *count > 5), "all of it happens: {counts:?}");
}
