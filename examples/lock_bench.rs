//! Load for `bench/locks`: many clients of a proxy, or the limit of what nodes can do.
//!
//!     lock_bench pairs   CLIENTS SECONDS PORT     LOCK and UNLOCK through a proxy
//!     lock_bench contend CLIENTS SECONDS PORT     the same, all on one lock, WAIT
//!     lock_bench limit   CLIENTS SECONDS PORT…    a bare client of the nodes
//!     lock_bench mlock   CLIENTS SECONDS PORT     MLOCK and MUNLOCK of two locks through a proxy
//!     lock_bench two     CLIENTS SECONDS PORT     LOCK and UNLOCK of both, one command after the other
//!     lock_bench piped   CLIENTS SECONDS PORT     the same with both LOCKs in one packet, and both UNLOCKs
//!
//! The limit is the best that a library could reach: one process with one pipelined connection to each node runs the
//! proxy's own scripts for CLIENTS clients, which exist only as numbers, and goes on with each as soon as a quorum
//! has answered. Prints one line of JSON.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that fails must not go on")]

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lockgate::resp::encode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Barrier, Notify},
    task::{LocalSet, spawn_local},
    time::timeout,
};

const ACQUIRE: &str = include_str!("../src/lock/scripts/acquire.lua");
const RELEASE: &str = include_str!("../src/lock/scripts/release.lua");
/// The marker for a node that no proxy has marked: as long as a real one, so that it costs as much.
const MARKER: &str = "0013c2bde46dd83000131fe704e28795 1 1/5 lock:\n";

/// What all clients together have seen.
#[derive(Default)]
struct Seen {
    grants: Vec<u64>,
    /// Times from a release to the grant of another client.
    gaps: Vec<Duration>,
    released: Option<Instant>,
    last: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, clients, seconds, ports @ ..] = arguments.as_slice() else {
        panic!("lock_bench pairs|contend|limit|mlock|two|piped CLIENTS SECONDS PORT…")
    };
    let clients: usize = clients.parse().unwrap();
    let seconds = Duration::from_secs_f64(seconds.parse().unwrap());
    let ports: Vec<u16> = ports.iter().map(|port| port.parse().unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen = Rc::new(RefCell::new(Seen { grants: vec![0; clients], ..Seen::default() }));
    LocalSet::new().block_on(&runtime, async {
        if mode == "limit" {
            limit(&ports, seconds, &seen).await;
            return;
        }
        let contended = mode == "contend";
        let connected = Rc::new(Barrier::new(clients));
        let all: Vec<_> = (0..clients)
            .map(|client| {
                let (connected, seen) = (connected.clone(), seen.clone());
                match both_locks(mode, client) {
                    Some(steps) => {
                        spawn_local(take_both(ports[0], client, steps, seconds, connected, seen))
                    }
                    None => spawn_local(through_proxy(
                        ports[0], client, contended, seconds, connected, seen,
                    )),
                }
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
    });
    let mut seen = seen.borrow_mut();
    seen.gaps.sort();
    let gap = |share: f64| {
        let at = (share * seen.gaps.len().saturating_sub(1) as f64) as usize;
        seen.gaps.get(at).map_or(0, Duration::as_micros)
    };
    println!(
        "{{\"seconds\":{},\"grants\":{:?},\"handovers\":{},\"gap_us\":[{},{}]}}",
        seconds.as_secs_f64(),
        seen.grants,
        seen.gaps.len(),
        gap(0.5),
        gap(0.99)
    );
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    encode::command(&mut out, &words);
    out
}

async fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn through_proxy(
    port: u16,
    client: usize,
    contended: bool,
    seconds: Duration,
    connected: Rc<Barrier>,
    seen: Rc<RefCell<Seen>>,
) {
    let mut stream = connect(port).await;
    let key = if contended { "contended".to_owned() } else { format!("pairs:{client}") };
    let wait: &[&str] = if contended { &["WAIT", "30000"] } else { &[] };
    let lock = command(&[&["LOCK", &key, "PX", "10000"], wait].concat());
    let unlock = command(&["UNLOCK", &key]);
    let mut reply = [0; 512];
    // All connections, including the proxy's own, are made before the time begins.
    stream.write_all(&command(&["PING"])).await.unwrap();
    let length = stream.read(&mut reply).await.unwrap();
    assert_eq!(&reply[..length], b"+PONG\r\n");
    connected.wait().await;
    let until = Instant::now() + seconds;
    while Instant::now() < until {
        stream.write_all(&lock).await.unwrap();
        let length = stream.read(&mut reply).await.unwrap();
        assert!(reply.starts_with(b"*3\r\n"), "{:?}", String::from_utf8_lossy(&reply[..length]));
        {
            let mut seen = seen.borrow_mut();
            if let Some(released) = seen.released.filter(|_| contended && seen.last != client) {
                seen.gaps.push(released.elapsed());
            }
            seen.last = client;
            seen.grants[client] += 1;
            seen.released = Some(Instant::now());
        }
        stream.write_all(&unlock).await.unwrap();
        let length = stream.read(&mut reply).await.unwrap();
        assert_eq!(&reply[..length], b":1\r\n");
    }
}

/// What is sent at once, and the number of lines of its replies.
type Step = (Vec<u8>, usize);

/// Returns how a client takes two locks of its own and gives them back. `None`: not in this mode.
fn both_locks(mode: &str, client: usize) -> Option<Vec<Step>> {
    let keys = [format!("one:{client}"), format!("other:{client}")];
    let lock = |key: &String| (command(&["LOCK", key, "PX", "10000"]), 5);
    let unlock = |key: &String| (command(&["UNLOCK", key]), 1);
    let [one, other] = &keys;
    match mode {
        "mlock" => Some(vec![
            (command(&["MLOCK", "2", one, other, "PX", "10000"]), 7),
            (command(&["MUNLOCK", "2", one, other]), 1),
        ]),
        "two" => Some(keys.iter().map(lock).chain(keys.iter().map(unlock)).collect()),
        "piped" => {
            let both =
                |of: [Step; 2]| (of.each_ref().map(|step| &step.0[..]).concat(), 2 * of[0].1);
            Some(vec![both([lock(one), lock(other)]), both([unlock(one), unlock(other)])])
        }
        _ => None,
    }
}

/// Takes two locks and gives them back, again and again.
async fn take_both(
    port: u16,
    client: usize,
    steps: Vec<Step>,
    seconds: Duration,
    connected: Rc<Barrier>,
    seen: Rc<RefCell<Seen>>,
) {
    let mut stream = connect(port).await;
    let mut reply = Vec::with_capacity(1024);
    stream.write_all(&command(&["PING"])).await.unwrap();
    stream.read_buf(&mut reply).await.unwrap();
    assert_eq!(reply, b"+PONG\r\n");
    connected.wait().await;
    let until = Instant::now() + seconds;
    while Instant::now() < until {
        for (bytes, lines) in &steps {
            stream.write_all(bytes).await.unwrap();
            reply.clear();
            while reply.iter().filter(|byte| **byte == b'\n').count() < *lines {
                stream.read_buf(&mut reply).await.unwrap();
                let is_good = reply.starts_with(b"*3\r\n") || reply.starts_with(b":");
                assert!(is_good, "{:?}", String::from_utf8_lossy(&reply));
            }
            let is_held = reply.windows(2).any(|two| two == b":0" || two == b"*-");
            assert!(!is_held, "{:?}", String::from_utf8_lossy(&reply));
        }
        seen.borrow_mut().grants[client] += 1;
    }
}

/// The state of the bare client.
struct Limit {
    scripts: [String; 2],
    /// By node: its marker, which the scripts compare.
    markers: Vec<Vec<u8>>,
    /// By client: whether it holds its lock, the number of its request, and the votes for it.
    clients: Vec<(bool, u32, usize)>,
    /// By node: the bytes to send, and the requests in flight.
    out: Vec<Vec<u8>>,
    in_flight: Vec<VecDeque<(usize, u32)>>,
}

impl Limit {
    fn ask(&mut self, client: usize) {
        let (held, request, votes) = &mut self.clients[client];
        *request += 1;
        *votes = 0;
        let (key, token) = (format!("lock:limit:{client}"), format!("{client:032x}"));
        let fence_key = format!("lockgate:fence:{key}");
        let claim = format!("{:016}", 1_000_000_000_000_000 + client);
        let taking = !*held;
        let bytes = if *held {
            let words = ["EVALSHA", &self.scripts[1], "2", &key, &fence_key, &token];
            command(&[&words[..], &["0123456789abcdef", &format!(" {claim}")]].concat())
        } else {
            let fence =
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().to_string();
            let words: [&str; 11] = [
                "EVALSHA",
                &self.scripts[0],
                "2",
                &key,
                &fence_key,
                &token,
                "10000",
                &fence,
                "604800000",
                &claim,
                "",
            ];
            // The node's own marker follows as the last word.
            let mut bytes = Vec::new();
            encode::array(&mut bytes, words.len() + 1);
            words.iter().for_each(|word| encode::bulk(&mut bytes, word.as_bytes()));
            bytes
        };
        let nodes = self.out.iter_mut().zip(&mut self.in_flight).zip(&self.markers);
        for ((out, in_flight), marker) in nodes {
            out.extend_from_slice(&bytes);
            if taking {
                out.extend_from_slice(marker);
            }
            in_flight.push_back((client, *request));
        }
    }

    /// Counts a yes from one node. Returns whether there is something new to send.
    fn voted(&mut self, node: usize, until: Instant, seen: &mut Seen) -> bool {
        let (client, asked) = self.in_flight[node].pop_front().unwrap();
        let quorum = self.out.len() / 2 + 1;
        let (held, request, votes) = &mut self.clients[client];
        if *request != asked {
            return false;
        }
        *votes += 1;
        if *votes != quorum {
            return false;
        }
        seen.grants[client] += u64::from(*held);
        *held = !*held;
        if !*held && Instant::now() >= until {
            return false;
        }
        self.ask(client);
        true
    }
}

/// Returns the length of the flat array of numbers at the beginning of `buf`, if it is whole.
fn reply_length(buf: &[u8]) -> Option<usize> {
    let lines = 1 + usize::from(buf.get(1)? - b'0');
    let mut at = 0;
    for _ in 0..lines {
        at += 1 + buf[at..].iter().position(|byte| *byte == b'\n')?;
    }
    Some(at)
}

/// Whether the replies to SET and to GET are here.
fn is_whole(replies: &str) -> bool {
    let mut parts = replies.splitn(3, "\r\n");
    let (Some(_), Some(head), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let length = head.strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
    length.is_none_or(|length| value.len() >= length + 2)
}

async fn limit(ports: &[u16], seconds: Duration, seen: &Rc<RefCell<Seen>>) {
    let digest = |body: &str| sha1_smol::Sha1::from(body).digest().to_string();
    let clients = seen.borrow().grants.len();
    let state = Rc::new(RefCell::new(Limit {
        scripts: [digest(ACQUIRE), digest(RELEASE)],
        markers: Vec::new(),
        clients: vec![(false, 0, 0); clients],
        out: vec![Vec::new(); ports.len()],
        in_flight: vec![VecDeque::new(); ports.len()],
    }));
    let changed: Rc<Vec<Notify>> = Rc::new(ports.iter().map(|_| Notify::new()).collect());
    let mut tasks = Vec::new();
    let mut streams = Vec::new();
    let mut buffer = [0; 512];
    for port in ports {
        let mut stream = connect(*port).await;
        let load = [command(&["SCRIPT", "LOAD", ACQUIRE]), command(&["SCRIPT", "LOAD", RELEASE])];
        stream.write_all(&load.concat()).await.unwrap();
        // Two digests of 40 bytes with their lengths.
        stream.read_exact(&mut [0; 94]).await.unwrap();
        let marker =
            [&["SET", "lockgate:deployment", MARKER, "NX"][..], &["GET", "lockgate:deployment"]];
        stream.write_all(&marker.map(command).concat()).await.unwrap();
        let mut reply = String::new();
        while !is_whole(&reply) {
            let length = stream.read(&mut buffer).await.unwrap();
            reply.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        // SET has answered "$-1" if the node had a marker.
        let at = reply.find("\r\n").unwrap() + 2;
        state.borrow_mut().markers.push(reply[at..].into());
        streams.push(stream.into_split());
    }
    let until = Instant::now() + seconds;
    (0..clients).for_each(|client| state.borrow_mut().ask(client));
    for (node, (mut reader, mut writer)) in streams.into_iter().enumerate() {
        let (writing, wake) = (state.clone(), changed.clone());
        spawn_local(async move {
            loop {
                let out = std::mem::take(&mut writing.borrow_mut().out[node]);
                if out.is_empty() {
                    wake[node].notified().await;
                } else {
                    writer.write_all(&out).await.unwrap();
                }
            }
        });
        let (reading, wake, seen) = (state.clone(), changed.clone(), seen.clone());
        tasks.push(spawn_local(async move {
            let mut received = Vec::with_capacity(64 * 1024);
            loop {
                reader.read_buf(&mut received).await.unwrap();
                let (mut at, mut more) = (0, false);
                let idle = {
                    let mut state = reading.borrow_mut();
                    let mut seen = seen.borrow_mut();
                    while let Some(length) = reply_length(&received[at..]) {
                        assert_eq!(received[at + 5], b'1', "not granted");
                        at += length;
                        more |= state.voted(node, until, &mut seen);
                    }
                    state.in_flight[node].is_empty()
                };
                received.drain(..at);
                if more {
                    wake.iter().for_each(Notify::notify_one);
                }
                if idle && Instant::now() >= until {
                    return;
                }
            }
        }));
    }
    for task in tasks {
        let _ = timeout(Duration::from_secs(5), task).await;
    }
}
