//! A client cannot tell the proxy from Redis: the same bytes, sent in the same pieces to a real Redis directly and to
//! its twin through the proxy, get the same bytes and the same closing in return.
//!
//! `LOCKGATE_TEST_SEED=n` plays other random sequences.
//!
//! These tests have a binary of their own: after 120 ms of silence Redis counts as done, which could be too short on
//! a machine that is busy with other tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cases;
#[path = "../support/mod.rs"]
mod support;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cases::{commands, corner_cases, damaged_case, random_case, send};
use lockgate::tools::redis_server::RedisServer;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::{Client, LIMIT, Proxy};

/// One step of a client.
#[derive(Clone, Debug)]
enum Step {
    /// Sends these bytes, in pieces that the case's seed chooses.
    Send(Vec<u8>),
    /// Reads until nothing more comes.
    Read,
    /// Makes another client, past the proxy, run a command.
    Other(Vec<&'static str>),
    /// Sends FIN.
    HangUp,
}

#[derive(Clone, Debug)]
struct Case {
    name: String,
    seed: u64,
    steps: Vec<Step>,
}

/// The state of a connection at the end. FIN and RST are not told apart: which of them Redis's close becomes depends
/// on what had arrived at Redis by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Closed,
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    end: End,
}

/// The silence after which Redis has no more to say: its replies come at once, and a BLPOP in these cases times out
/// within half of it.
const SILENCE: Duration = Duration::from_millis(120);
/// The silence to wait for if nothing more is expected.
const SHORT_SILENCE: Duration = Duration::from_millis(25);

/// The number of bytes received when a reading was over, and the state of the connection.
type Mark = (usize, End);

/// Plays a case. Waits for what is `expected`, and beyond that only for a short silence.
fn play(port: u16, direct_port: u16, case: &Case, expected: Option<&[Mark]>) -> (Seen, Vec<Mark>) {
    let mut rng = StdRng::seed_from_u64(case.seed);
    let mut other = Client::connect(direct_port);
    other.cmd(&["FLUSHALL"]);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    let mut seen = Seen { bytes: Vec::new(), end: End::Open };
    let mut marks = Vec::new();
    for step in case.steps.iter().chain([&Step::Read]) {
        match step {
            Step::Send(bytes) => {
                for piece in pieces(bytes, &mut rng) {
                    // Redis may have closed already; only its replies count.
                    let _ = stream.write_all(piece);
                    if rng.random_bool(0.2) {
                        thread::sleep(Duration::from_millis(rng.random_range(0..3)));
                    }
                }
            }
            Step::Read => {
                // A second time once Redis has answered another client: until then it may have been kept from
                // running.
                for patience in [SILENCE, SHORT_SILENCE] {
                    let goal = expected.and_then(|marks_of| marks_of.get(marks.len()).copied());
                    read(&mut stream, &mut seen, goal, patience);
                    marks.push((seen.bytes.len(), seen.end));
                    other.cmd(&["PING"]);
                }
            }
            Step::Other(words) => drop(other.cmd(words)),
            Step::HangUp => drop(stream.shutdown(Shutdown::Write)),
        }
    }
    (seen, marks)
}

/// Cuts at random places, or not at all, or byte by byte.
fn pieces<'a>(bytes: &'a [u8], rng: &mut StdRng) -> Vec<&'a [u8]> {
    match rng.random_range(0..4) {
        0 => vec![bytes],
        1 if bytes.len() < 300 => bytes.chunks(1).collect(),
        _ => {
            let (mut all, mut rest) = (Vec::new(), bytes);
            for _ in 0..rng.random_range(1..4) {
                let (piece, after) = rest.split_at(rng.random_range(0..=rest.len()));
                all.push(piece);
                rest = after;
            }
            all.push(rest);
            all
        }
    }
}

/// Reads up to the goal, or, from Redis itself, until `silence`.
fn read(stream: &mut TcpStream, seen: &mut Seen, goal: Option<Mark>, silence: Duration) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut space = vec![0; 65_536];
    loop {
        let missing = goal.is_some_and(|(bytes, end)| seen.bytes.len() < bytes || end != seen.end);
        let patience = match goal {
            None => silence,
            Some(_) if missing => Duration::from_secs(5),
            Some(_) => SHORT_SILENCE,
        };
        stream.set_read_timeout(Some(patience)).unwrap();
        match stream.read(&mut space) {
            Ok(0) => return seen.end = End::Closed,
            Ok(n) => seen.bytes.extend_from_slice(&space[..n]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return seen.end = End::Closed;
            }
            Err(_) => return,
        }
        assert!(Instant::now() < deadline, "it never ends");
    }
}

/// Blanks what differs between any two connections: HELLO's id, and MONITOR's time and address.
fn normalised(bytes: &[u8]) -> Vec<u8> {
    let text: Vec<char> = bytes.iter().map(|b| char::from(*b)).collect();
    let text: String = text.into_iter().collect();
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let monitor = line.starts_with('+') && line.contains(" [0 127.0.0.1:");
        // The readiness check is another client of the data node: a PING, and a SET that changes nothing.
        let is_check =
            line.ends_with("] \"PING\"\r\n") || line.contains("] \"SET\" \"lockgate:probe\" ");
        if monitor && is_check {
            continue;
        }
        match line.split_once("] ") {
            Some((_, command)) if monitor => out += &format!("+TIME [ADDRESS] {command}"),
            _ if out.ends_with("$2\r\nid\r\n") => out += ":ID\r\n",
            _ => out += line,
        }
    }
    out.chars().map(|c| c as u8).collect()
}

fn escaped(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() > 9000 { format!("{}… ({} bytes)", &text[..9000], bytes.len()) } else { text }
}

/// Plays every case to both, sixteen at a time; each worker has twins of its own.
fn compare(cases: &[Case], arguments: &[&'static str]) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let direct = RedisServer::start(arguments).unwrap();
                let mut proxy = Proxy::with().data_arguments(arguments).start();
                let behind = proxy.data().port();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (expected, marks) = play(direct.port(), direct.port(), case, None);
                    let (seen, _) = play(proxy.port(), behind, case, Some(&marks));
                    if normalised(&seen.bytes) != normalised(&expected.bytes)
                        || seen.end != expected.end
                    {
                        failures.lock().unwrap().push(format!(
                            "{} (seed {}): {:?}\n  Redis: {:?} {}\n  proxy: {:?} {}",
                            case.name,
                            case.seed,
                            case.steps
                                .iter()
                                .map(|step| match step {
                                    Step::Send(bytes) => format!("send {}", escaped(bytes)),
                                    other => format!("{other:?}"),
                                })
                                .collect::<Vec<_>>(),
                            expected.end,
                            escaped(&expected.bytes),
                            seen.end,
                            escaped(&seen.bytes),
                        ));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} cases differ:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

/// Returns the first seed of random sequences.
fn first_seed() -> u64 {
    std::env::var("LOCKGATE_TEST_SEED").map_or(1, |seed| seed.parse().unwrap())
}

#[test]
fn corner_cases_are_answered_as_by_redis() {
    compare(&corner_cases(), &[]);
}

#[test]
fn random_sequences_are_answered_as_by_redis() {
    let cases: Vec<Case> = (first_seed()..).take(300).map(random_case).collect();
    compare(&cases, &[]);
}

#[test]
fn damaged_sequences_are_answered_as_by_redis() {
    let cases: Vec<Case> = (first_seed()..).take(300).map(damaged_case).collect();
    compare(&cases, &[]);
}

#[test]
fn strangers_are_answered_as_by_redis() {
    let all = [
        commands(&[&["PING"], &["GET", "a"], &["AUTH", "wrong"], &["AUTH", "pw"], &["GET", "a"]]),
        commands(&[&["HELLO", "3"], &["HELLO", "3", "AUTH", "default", "pw"], &["GET", "a"]]),
        commands(&[&["NOSUCH"], &["CLIENT", "REPLY", "OFF"], &["MULTI"], &["QUIT"]]),
        commands(&[&["AUTH", "default", "pw"], &["RESET"], &["GET", "a"]]),
        send("*11\r\n$4\r\nPING\r\n"),
        send("*2\r\n$4\r\nECHO\r\n$16385\r\n"),
        commands(&[&["SUBSCRIBE", "a"], &["MONITOR"], &["SYNC"], &["PING"]]),
    ];
    let cases: Vec<Case> = all
        .into_iter()
        .flat_map(|step| {
            (0..4).map(move |seed| Case {
                name: "stranger".into(),
                seed,
                steps: vec![step.clone()],
            })
        })
        .collect();
    compare(&cases, &["--requirepass", "pw"]);
}

/// If an earlier reply is still to be written, Redis closes once it is.
#[test]
fn an_error_or_quit_while_mute_closes_behind_earlier_replies() {
    let mut proxy = Proxy::start();
    let data = proxy.data().port();
    for port in [data, proxy.port()] {
        for mute in ["OFF", "SKIP"] {
            for end in ["QUIT", "*x", "*1\r\n$x", "SET a \"b"] {
                let mut client = Client::connect(port);
                client.send(format!("PING\r\nCLIENT REPLY {mute}\r\n{end}\r\n").as_bytes());
                // SKIP alone lets a reply through, as it has skipped its own.
                let (bytes, closed) = client.rest();
                assert!(bytes.starts_with(b"+PONG\r\n") && closed, "{mute} {end}: {bytes:?}");
            }
        }
    }
}
