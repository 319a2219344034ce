//! Clients that leave amid anything: random pipelines, behind whose WAIT nothing may be carried out, hang up by any way
//! and at any time. Those which stay are answered, locks of those which have left are free, and no connection to the
//! data node stays blocked.
//!
//! `LOCKGATE_SEED=n` plays the pipelines of another seed, `LOCKGATE_ROUNDS=n` n times as many.

use std::{
    io::{Read, Write},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::shared::warm;
use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline, relay::Relay, rounds};
use lockgate::tools::redis_server::RedisServer;

/// What a client sends before it leaves.
struct Script {
    greeting: Vec<u8>,
    bytes: Vec<u8>,
    /// Keys that only what stands behind the WAIT writes.
    late: Vec<String>,
    /// The names of the commands, for the report.
    words: String,
}

impl Script {
    fn new(own: &str, random: &mut StdRng) -> Script {
        let [greeting, bytes] = [Vec::new(), Vec::new()];
        let mut script = Script { greeting, bytes, late: Vec::new(), words: String::new() };
        for (one_in, words) in [
            (5, &["HELLO", "3"][..]),
            (10, &["CLIENT", "SETNAME", "leaves"]),
            (7, &["SELECT", "1"]),
            (10, &["CLIENT", "MAINT_NOTIFICATIONS", "ON"]),
        ] {
            if random.random_ratio(1, one_in) {
                script.greeting.append(&mut encode(words));
                script.words += &format!("{words:?} ");
            }
        }
        let before = [0, 0, 1, 3, 70][random.random_range(0..5)];
        for n in 0..before {
            script.plain(&format!("{own}:before{n}"), random);
        }
        // Without a replica, no number is ever reached: the second ends when all is over.
        let time = ["0", "0", "0", "60000"][random.random_range(0..4)];
        script.add(&[&["WAIT", "1", time]]);
        let behind = [0, 1, 2, 5, 65, 66, 130, 300][random.random_range(0..8)];
        for n in 0..behind {
            script.behind(&format!("{own}:late{n}"), random);
        }
        script
    }

    fn add(&mut self, commands: &[&[&str]]) {
        self.bytes.append(&mut pipeline(commands));
        self.words += &format!("{} ", commands[0][0]);
    }

    /// A command that leaves no state in the connection. It may write the key.
    fn plain(&mut self, key: &str, random: &mut StdRng) {
        match random.random_range(0..200) {
            0..100 => self.add(&[&["INCR", key]]),
            100..110 => self.add(&[&["GET", "30k"]]),
            110..116 => self.add(&[&["GET", "200k"]]),
            116 => self.add(&[&["GET", "5m"]]),
            117..160 => self.add(&[&["ECHO", key]]),
            _ => self.add(&[&["GET", "none"]]),
        }
    }

    /// A command of any kind, behind the WAIT.
    fn behind(&mut self, key: &str, random: &mut StdRng) {
        match random.random_range(0..100) {
            0..8 => self.add(&[&["MULTI"], &["INCR", key], &["EXEC"]]),
            8..10 => self.add(&[&["AUTH", "wrong"]]),
            10..12 => self.add(&[&["HELLO", "3"]]),
            12..14 => self.add(&[&["CLIENT", "SETNAME", "late"]]),
            14..16 => self.add(&[&["CLIENT", "MAINT_NOTIFICATIONS", "ON"]]),
            16 => self.add(&[&["SELECT", "1"]]),
            17 => self.add(&[&["WAIT", "1", "20"]]),
            18 => self.add(&[&["BLPOP", "none", "0.05"]]),
            19 => self.add(&[&["SUBSCRIBE", key], &["UNSUBSCRIBE", key]]),
            20 => self.add(&[&["SET", key, &"v".repeat(70_000)]]),
            21 => self.add(&[&["WATCH", "none"]]),
            22 => self.add(&[&["LOCK", key]]),
            _ => self.plain(key, random),
        }
        self.late.push(key.to_owned());
    }
}

/// The ways to leave.
#[derive(Clone, Copy, Debug)]
enum Way {
    Close,
    Reset,
    /// Sends FIN and reads on.
    HalfClose,
    /// Reads nothing for a while before it closes.
    Silent,
}

/// Plays a client that leaves. Returns the keys which nobody may have written.
fn leave(proxy: &Proxy, own: &str, random: &mut StdRng) -> Vec<String> {
    let script = Script::new(own, random);
    let way = [Way::Close, Way::Reset, Way::HalfClose, Way::Silent][random.random_range(0..4)];
    let lock = format!("lock:{own}");
    let is_locked = random.random_ratio(3, 5);
    let mut client = proxy.client();
    client.send(&script.greeting);
    if is_locked {
        client.send(&encode(&["LOCK", &lock]));
    }
    client.send(&encode(&["ECHO", "greeted"]));
    while !matches!(client.reply(), Reply::Bulk(said) if said == b"greeted") {}

    let most = [script.bytes.len(), 2000, 20][random.random_range(0..3)].max(1);
    let mut rest = &script.bytes[..];
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(random.random_range(1..=most.min(rest.len())));
        client.send(piece);
        rest = more;
        if random.random_ratio(1, 20) {
            thread::sleep(Duration::from_millis(random.random_range(0..5)));
        }
    }
    thread::sleep(Duration::from_millis([0, 5, 50, 300][random.random_range(0..4)]));
    if random.random_ratio(2, 5) {
        let time = Some(Duration::from_millis(30));
        client.socket().set_read_timeout(time).unwrap();
        let mut some = vec![0; 1 << random.random_range(4..20)];
        let _ = client.socket().read(&mut some);
    }
    match way {
        Way::Close => drop(client),
        Way::Reset => client.reset(),
        Way::HalfClose => {
            client.hang_up();
            client.socket().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            client.rest();
        }
        Way::Silent => {
            thread::sleep(Duration::from_millis(random.random_range(100..1500)));
            drop(client);
        }
    }
    if is_locked {
        let said = proxy.client().cmd(&["LOCK", &lock, "WAIT", "8000"]);
        assert!(matches!(said, Reply::Array(_)), "{own} {way:?}: {said:?} behind {}", script.words);
    }
    script.late
}

/// Plays a client that stays: whatever others do, it gets its own replies. `is_new` connects anew each time.
fn stay(proxy: &Proxy, n: usize, is_new: bool, is_over: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(n as u64);
    let mut client = proxy.client();
    let lock = format!("stays:{n}");
    client.cmd(&["LOCK", &lock]).grant();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        if is_new {
            client = proxy.client();
        }
        let mut sent = Vec::new();
        let mut wanted = Vec::new();
        for _ in 0..[1, 1, 3, 20][random.random_range(0..4)] {
            number += 1;
            let own = format!("stays{n}.{number}");
            sent.append(&mut pipeline(&[&["ECHO", &own], &["GET", "none"]]));
            write!(wanted, "${}\r\n{own}\r\n$-1\r\n", own.len()).unwrap();
        }
        client.send(&sent);
        let mut got = vec![0; wanted.len()];
        client.reader().read_exact(&mut got).unwrap();
        assert_eq!(got.escape_ascii().to_string(), wanted.escape_ascii().to_string());
        thread::sleep(Duration::from_millis(10));
    }
    if !is_new {
        assert!(
            matches!(client.cmd(&["RENEW", &lock]), Reply::Int(1..)),
            "it stayed, and has its lock"
        );
    }
}

/// How many clients of the data node are blocked.
fn blocked(data: &mut Client) -> usize {
    let Reply::Bulk(list) = data.cmd(&["CLIENT", "LIST"]) else { panic!("a list") };
    String::from_utf8(list).unwrap().matches(" flags=b ").count()
}

/// Starts a proxy whose clients share a connection, or do not, with a guard or without.
fn start(share: &str, is_guarded: bool) -> Proxy {
    let guards = if is_guarded { "guards: [{keys: 'g:*', lock: 'g:{1}'}]" } else { "" };
    let proxy = Proxy::with().top(&format!("io_threads: 1\nshare: {share}\n{guards}")).start();
    if is_guarded {
        eventually("commands are known", || proxy.log().contains("commands are known"));
    }
    proxy
}

/// Plays all of them at a proxy with these settings.
fn clients_leave(share: &str, is_guarded: bool) {
    let seed = std::env::var("LOCKGATE_SEED")
        .map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    let proxy = start(share, is_guarded);
    let mut data = proxy.data_client();
    for (key, size) in [("30k", "30000"), ("200k", "200000"), ("5m", "5000000")] {
        data.cmd(&["SETRANGE", key, size, "x"]);
    }
    let is_over = AtomicBool::new(false);
    let late = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for n in 0..5 {
            let (proxy, is_over) = (&proxy, &is_over);
            scope.spawn(move || stay(proxy, n, n == 4, is_over));
        }
        let leaving = [0, 1, 2, 3].map(|n| {
            let (proxy, late) = (&proxy, &late);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(u64::wrapping_mul(seed, 31) + n);
                for round in 0..rounds(12) {
                    let keys = leave(proxy, &format!("{n}:{round}"), &mut random);
                    late.lock().unwrap().extend(keys);
                }
            })
        });
        let ends = leaving.map(thread::ScopedJoinHandle::join);
        is_over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "LOCKGATE_SEED={seed}");
    });
    eventually("no connection is left blocked", || blocked(&mut data) == 0);
    for database in ["0", "1"] {
        data.cmd(&["SELECT", database]);
        for key in late.lock().unwrap().iter() {
            let said = data.cmd(&["EXISTS", key]);
            assert_eq!(said, Reply::Int(0), "{key} behind a WAIT, LOCKGATE_SEED={seed}");
        }
    }
}

#[test]
fn clients_of_one_link_leave() {
    clients_leave("yes", false);
}

#[test]
fn clients_of_one_link_leave_under_guards() {
    clients_leave("yes", true);
}

#[test]
fn clients_with_connections_of_their_own_leave_under_guards() {
    clients_leave("no", true);
}

/// What stands behind a command that blocks is not carried out once its client has hung up, however much it is.
#[test]
fn a_client_that_hangs_up_behind_a_wait_leaves_neither_lock_nor_late_write() {
    for (share, is_guarded) in [("yes", false), ("yes", true), ("no", false)] {
        let proxy = start(share, is_guarded);
        let mut stay = Vec::new();
        // LOCK waits until every earlier reply has come.
        let held =
            [encode(&["LOCK", "other"]), encode(&["SET", "late", "1"]).repeat(20_000)].concat();
        let set = encode(&["SET", "late", "1"]);
        let (half, rest) = set.split_at(set.len() / 2);
        for behind in
            [&[][..], &set, half, &set.repeat(300), &set.repeat(20_000), &encode(&["MULTI"]), &held]
        {
            for (round, is_reset) in [(0, false), (1, true), (2, false)] {
                // With guards it keeps the link.
                stay.push(warm(&proxy));
                let mut leaves = warm(&proxy);
                // The holder before may just have gone.
                leaves.cmd(&["LOCK", "job", "WAIT", "8000"]).grant();
                let wait = encode(&["WAIT", "1", "12000"]);
                leaves.send(&[&wait[..], behind].concat());
                thread::sleep(Duration::from_millis(30));
                if behind == half && round > 0 {
                    leaves.send(rest);
                    thread::sleep(Duration::from_millis(30));
                }
                if is_reset {
                    leaves.reset();
                } else {
                    drop(leaves);
                }
                let mut next = proxy.client();
                next.cmd(&["LOCK", "job", "WAIT", "8000"]).grant();
            }
        }
        thread::sleep(Duration::from_millis(12_100));
        let said = proxy.client().cmd(&["EXISTS", "late"]);
        assert_eq!(said, Reply::Int(0), "share: {share}, guarded: {is_guarded}");
        // Whoever waits for the end gets it all.
        let mut stays = warm(&proxy);
        let all = stays.pipe(&[&["WAIT", "1", "300"], &["SET", "k", "1"], &["GET", "k"]]);
        assert_eq!(all, [Reply::Int(0), Reply::ok(), Reply::bulk("1")]);
    }
}

#[test]
fn a_session_lock_is_released_behind_what_its_client_has_sent() {
    for share in ["yes", "no"] {
        let data = RedisServer::start(&[]).unwrap();
        let relay = Relay::to(data.port());
        let proxy = Proxy::with()
            .top(&format!("share: {share}"))
            .data_url(&format!("redis://127.0.0.1:{}", relay.port()))
            .start();
        for is_reset in [false, true] {
            let mut holder = proxy.client();
            holder.cmd(&["LOCK", "job"]).grant();
            relay.hold_request("late-write");
            holder.send(&encode(&["SET", "late-write", "1"]));
            relay.wait_until_held();
            if is_reset {
                holder.reset();
            } else {
                drop(holder);
            }
            thread::sleep(Duration::from_millis(300));
            let nodes = proxy.nodes_with("lock:job");
            assert_eq!(nodes, 1, "its write may come yet; share: {share}, {is_reset}");
            relay.release();
            eventually("it is released", || proxy.nodes_with("lock:job") == 0);
        }
    }
}

/// Redis closes the connection of a client that ends its half of it. Behind replies that the client does not take, the
/// proxy does not see that; and a shared connection goes on.
#[test]
fn a_client_that_ends_its_half_and_reads_nothing_keeps_no_lock() {
    for (share, is_guarded) in [("yes", false), ("yes", true), ("no", false)] {
        let proxy = start(share, is_guarded);
        let large = "x".repeat(20 << 20);
        assert_eq!(proxy.data_client().cmd(&["SET", "large", &large]), Reply::ok());
        for large_ones in [1, 3] {
            let mut holder = Client::connect_narrow(proxy.port(), 64 * 1024);
            holder.cmd(&["LOCK", "job", "WAIT", "30000"]).grant();
            holder.send(&encode(&["GET", "large"]).repeat(large_ones));
            holder.hang_up();
            let next = proxy.client().cmd(&["LOCK", "job", "WAIT", "30000"]);
            assert!(matches!(next, Reply::Array(_)), "{share} {is_guarded} {large_ones}: {next:?}");
        }
        if share == "yes" {
            // One that reads has everything.
            let mut reads = proxy.client();
            reads.send(&encode(&["GET", "large"]));
            reads.hang_up();
            thread::sleep(Duration::from_millis(300));
            assert!(reads.reply() == Reply::bulk(&large), "{is_guarded}");
        }
    }
}

/// With guards, a link that ends takes its clients along: so it must not end because others hang up.
#[test]
fn any_number_that_hang_up_in_a_wait_close_nobody() {
    let proxy = start("yes", true);
    let mut data = proxy.data_client();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stay = [0, 1, 2, 3].map(|n| {
            let (proxy, is_over) = (&proxy, &is_over);
            scope.spawn(move || stay(proxy, n, false, is_over))
        });
        for _ in 0..150 {
            let mut leaves = proxy.client();
            assert_eq!(leaves.cmd(&["SET", "k", "1"]), Reply::ok());
            // Those which stay come to use the link, too.
            thread::sleep(Duration::from_millis(20));
            leaves.send(&encode(&["WAIT", "9", "0"]));
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(Duration::from_millis(500));
        is_over.store(true, Ordering::Relaxed);
        assert!(stay.map(thread::ScopedJoinHandle::join).iter().all(Result::is_ok));
    });
    eventually("no connection is left blocked", || blocked(&mut data) == 0);
    assert_eq!(proxy.metric("lockgate_link_ends_total", ""), 0.0, "none by the data node");
}
