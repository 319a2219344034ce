//! What clients that share connections are told where the data node refuses or ends a connection: an error in place of
//! a reply says that the command was not carried out.

use std::{
    io::Read,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::shared::{sharing, sharing_guarded};
use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline};

/// Makes a user of the data node, and a client of it that shares.
fn worker(proxy: &Proxy, data: &mut Client) -> Client {
    let user = ["ACL", "SETUSER", "worker", "on", "resetpass", ">secret", "allkeys", "+@all"];
    assert_eq!(data.cmd(&user), Reply::ok());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "worker", "secret"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "n", "0"]), Reply::ok());
    client
}

#[test]
fn a_client_that_is_refused_a_connection_of_its_own_is_told_so_behind_earlier_replies() {
    let proxy = sharing().start();
    let mut data = proxy.data_client();
    for is_lost in [false, true] {
        let mut client = worker(&proxy, &mut data);
        data.cmd(&["ACL", "SETUSER", "worker", "resetpass", ">other"]);
        data.cmd(&["ACL", "LOG", "RESET"]);
        // The reply to INCR is owed for as long as this takes.
        assert_eq!(data.cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]), Reply::ok());
        client.send(&pipeline(&[&["INCR", "n"], &["MULTI"]]));
        let is_refused = |data: &mut Client| match data.cmd(&["ACL", "LOG"]) {
            Reply::Array(entries) => !entries.is_empty(),
            other => panic!("{other:?}"),
        };
        eventually("the connection of its own is refused", || is_refused(&mut data));
        if is_lost {
            // Among them may be the one over which AUTH was checked.
            let killed = data.cmd(&["CLIENT", "KILL", "USER", "worker"]);
            assert!(matches!(killed, Reply::Int(1..)), "{killed:?}");
            assert_eq!(client.rest().0, b"", "nobody knows whether INCR was carried out");
        }
        assert_eq!(data.cmd(&["CLIENT", "UNPAUSE"]), Reply::ok());
        if !is_lost {
            assert_eq!(client.reply(), Reply::Int(1));
            assert!(client.reply().error_text().starts_with("WRONGPASS"));
            assert_eq!(client.rest().0, b"");
        }
    }
}

/// What a client sends, and which reply it waits for.
#[derive(Clone, Copy)]
enum Sent {
    Auth,
    Incr,
    /// INCR within MULTI and EXEC.
    Transaction,
    /// A command that gets the client a connection of its own, by this name, and the line that answers it.
    Pin(&'static [&'static str], &'static str),
}

impl Sent {
    fn encode(self, key: &str, password: &str) -> Vec<u8> {
        match self {
            Sent::Auth => encode(&["AUTH", "worker", password]),
            Sent::Incr => encode(&["INCR", key]),
            Sent::Transaction => pipeline(&[&["MULTI"], &["INCR", key], &["EXEC"]]),
            Sent::Pin(words, _) => encode(words),
        }
    }

    /// Takes the lines of the reply. Counts on, or returns the line that came instead; empty if none came.
    fn take<'l>(
        self,
        lines: &mut impl Iterator<Item = &'l str>,
        count: &mut i64,
    ) -> Result<(), &'l str> {
        let mut next = |wanted: &str| match lines.next() {
            Some(line) if line == wanted => Ok(()),
            line => Err(line.unwrap_or_default()),
        };
        let counted = format!(":{}", *count + 1);
        match self {
            // A wrong password leaves it the default user.
            Sent::Auth => next("+OK").or_else(|line| match line.starts_with("-WRONGPASS") {
                true => Ok(()),
                false => Err(line),
            })?,
            Sent::Incr => next(&counted)?,
            Sent::Transaction => {
                ["+OK", "+QUEUED", "*1", &counted].into_iter().try_for_each(next)?;
            }
            Sent::Pin(_, answer) => next(answer)?,
        }
        *count += i64::from(matches!(self, Sent::Incr | Sent::Transaction));
        Ok(())
    }
}

/// Sends random commands over a new connection and reads all that comes. Returns what came in place of a reply.
fn converse(
    port: u16,
    (key, password): (&str, &str),
    count: &mut i64,
    random: &mut StdRng,
) -> String {
    let mut all = vec![Sent::Auth];
    for _ in 0..random.random_range(1..4) {
        all.extend(vec![Sent::Incr; random.random_range(0..60)]);
        all.push(match random.random_range(0..4) {
            0 => Sent::Auth,
            1 => Sent::Transaction,
            2 => Sent::Pin(&["BLPOP", "none", "0.001"], "*-1"),
            _ => Sent::Pin(&["CLIENT", "GETNAME"], "$-1"),
        });
    }
    let mut bytes = Vec::new();
    all.iter().for_each(|sent| bytes.append(&mut sent.encode(key, password)));
    bytes.append(&mut encode(&["QUIT"]));
    let mut client = Client::connect(port);
    let cut = random.random_range(0..bytes.len());
    for part in [&bytes[..cut], &bytes[cut..]] {
        // It may be closed already.
        let _ = std::io::Write::write_all(&mut client.socket(), part);
        thread::sleep(Duration::from_millis(random.random_range(0..3)));
    }
    let mut came = Vec::new();
    // All that came before a reset counts.
    let _ = client.reader().read_to_end(&mut came);
    let came = String::from_utf8(came).expect("text");
    let mut lines = came.lines();
    for sent in all {
        if let Err(line) = sent.take(&mut lines, count) {
            assert_eq!(lines.next(), None, "the connection has ended behind {line:?}");
            return line.to_owned();
        }
    }
    String::new()
}

/// Changes passwords, deletes the user, kills connections, lets none in, and pauses writes, again and again.
fn disturb(data: &mut Client, password: &AtomicU64, random: &mut StdRng) {
    let change = |data: &mut Client| {
        let word = format!(">{}", password.fetch_add(1, Ordering::Relaxed) + 1);
        data.cmd(&["ACL", "SETUSER", "worker", "on", "resetpass", &word, "allkeys", "+@all"]);
    };
    match random.random_range(0..5) {
        0 => change(data),
        1 => _ = data.cmd(&["CLIENT", "KILL", "USER", "worker"]),
        2 => {
            data.cmd(&["CONFIG", "SET", "maxclients", "1"]);
            thread::sleep(Duration::from_millis(random.random_range(0..20)));
            data.cmd(&["CONFIG", "SET", "maxclients", "1000"]);
        }
        3 => _ = data.cmd(&["CLIENT", "PAUSE", "20", "WRITE"]),
        _ => {
            data.cmd(&["ACL", "DELUSER", "worker"]);
            change(data);
        }
    }
    thread::sleep(Duration::from_millis(random.random_range(0..20)));
}

/// Sends commands as one client after another, until `is_done`. Returns how many of them were told an error, of which
/// none was carried out.
fn converse_again_and_again(
    port: u16,
    (mut data, key): (Client, &str),
    (password, is_done): (&AtomicU64, &AtomicBool),
    seed: u64,
) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut count, mut told) = (0, 0);
    while !is_done.load(Ordering::Relaxed) {
        let word = password.load(Ordering::Relaxed).to_string();
        let line = converse(port, (key, &word), &mut count, &mut random);
        let reached = match data.cmd(&["GET", key]) {
            Reply::Bulk(value) => String::from_utf8(value).unwrap().parse().unwrap(),
            _ => 0,
        };
        if line.is_empty() {
            assert!(reached >= count, "what was answered is so");
            count = reached;
        } else {
            assert_eq!(reached, count, "{line}");
            told += 1;
        }
    }
    told
}

#[test]
fn an_error_in_place_of_a_reply_says_that_the_command_was_not_carried_out() {
    let seed: u64 = std::env::var("LOCKGATE_SEED")
        .map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    println!("LOCKGATE_SEED={seed}");
    for is_guarded in [false, true] {
        let proxy = sharing_guarded(is_guarded);
        let (password, is_done) = (&AtomicU64::new(0), &AtomicBool::new(false));
        let told = thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|n| {
                    let (port, seed) = (proxy.port(), seed.wrapping_mul(31) + n);
                    // Connected before the data node lets none in.
                    let own = (proxy.data_client(), format!("n{n}"));
                    scope.spawn(move || {
                        converse_again_and_again(port, (own.0, &own.1), (password, is_done), seed)
                    })
                })
                .collect();
            let (mut data, begun) = (proxy.data_client(), Instant::now());
            let mut random = StdRng::seed_from_u64(seed);
            while begun.elapsed() < Duration::from_secs(3) {
                disturb(&mut data, password, &mut random);
            }
            is_done.store(true, Ordering::Relaxed);
            clients
                .into_iter()
                .map(|client| client.join().expect("no error was wrong"))
                .sum::<u64>()
        });
        println!("{told} were told an error");
        assert!(told > 0, "the data node has refused some");
    }
}
