//! Load for `bench/guards`: each client writes to an account of its own, DEPTH writes at a time.
//!
//!     guard_bench plain   CLIENTS SECONDS PORT DEPTH    SET on keys that no guard covers
//!     guard_bench guarded CLIENTS SECONDS PORT DEPTH    SET on a guarded key, under its lock
//!     guard_bench careful CLIENTS SECONDS PORT DEPTH    what an application does without guards:
//!                                                       a script that compares its fence and
//!                                                       writes
//!     guard_bench lock    CLIENTS SECONDS PORT 1        LOCK and UNLOCK of a guard's lock
//!     guard_bench free    CLIENTS SECONDS PORT 1        LOCK and UNLOCK of a lock that no guard
//!                                                       needs
//!
//! The careful application keeps the fence beside the account, as Lockgate does, and calls its script by digest.
//! Prints the number of writes made, or of locks taken.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that fails must not go on")]

use std::time::{Duration, Instant};

use lockgate::resp::encode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// The least that a careful application must do.
const CAREFUL: &str = "if tonumber(redis.call('GET', KEYS[1]) or 0) > tonumber(ARGV[1]) then \
                       return redis.error_reply('FENCED') end \
                       redis.call('SET', KEYS[1], ARGV[1]) \
                       return redis.call('SET', KEYS[2], ARGV[2])";
const VALUE: &[u8] = b"100";
const OK: &[u8] = b"+OK\r\n";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, clients, seconds, port, depth] = arguments.as_slice() else {
        panic!("guard_bench plain|guarded|careful|lock|free CLIENTS SECONDS PORT DEPTH")
    };
    let depth: usize = depth.parse().unwrap();
    let (clients, port): (usize, u16) = (clients.parse().unwrap(), port.parse().unwrap());
    let seconds = Duration::from_secs_f64(seconds.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let writes = runtime.block_on(async {
        let mut all = JoinSet::new();
        for client in 0..clients {
            all.spawn(write(mode.clone(), client, seconds, port, depth));
        }
        all.join_all().await.into_iter().sum::<u64>()
    });
    println!("{writes}");
}

/// Returns how many writes one client makes.
async fn write(mode: String, client: usize, seconds: Duration, port: u16, depth: usize) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (account, free) = (format!("account:{client}"), format!("free:{client}"));
    let mut command = Vec::new();
    match mode.as_str() {
        "lock" => return lock(stream, &account, seconds).await,
        "free" => return lock(stream, &free, seconds).await,
        "plain" => encode::command(&mut command, &[b"SET", free.as_bytes(), VALUE]),
        "guarded" => {
            let mut take = Vec::new();
            encode::command(&mut take, &[b"LOCK", account.as_bytes(), b"WAIT", b"5000"]);
            assert!(ask(&mut stream, &take).await.starts_with(b"*3"));
            encode::command(&mut command, &[b"SET", account.as_bytes(), VALUE]);
        }
        "careful" => {
            let mut load = Vec::new();
            encode::command(&mut load, &[b"SCRIPT", b"LOAD", CAREFUL.as_bytes()]);
            assert_eq!(ask(&mut stream, &load).await[0], b'$');
            let digest = sha1_smol::Sha1::from(CAREFUL).digest().to_string();
            let fence = format!("fence:{client}");
            let keys = [b"2".as_slice(), fence.as_bytes(), free.as_bytes()];
            let mut words = vec![b"EVALSHA".as_slice(), digest.as_bytes()];
            words.extend(keys);
            words.extend([b"1763712000000000".as_slice(), VALUE]);
            encode::command(&mut command, &words);
        }
        other => panic!("no such mode: {other}"),
    }
    let (command, expected) = (command.repeat(depth), OK.repeat(depth));
    let mut replies = vec![0; expected.len()];
    let (until, mut writes) = (Instant::now() + seconds, 0);
    while Instant::now() < until {
        stream.write_all(&command).await.unwrap();
        // An error is longer.
        stream.read_exact(&mut replies).await.unwrap();
        assert_eq!(replies, expected, "{}", String::from_utf8_lossy(&replies));
        writes += depth as u64;
    }
    writes
}

/// Returns how many locks one client takes and gives back.
async fn lock(mut stream: TcpStream, name: &str, seconds: Duration) -> u64 {
    let (mut take, mut give) = (Vec::new(), Vec::new());
    encode::command(&mut take, &[b"LOCK", name.as_bytes(), b"PX", b"10000"]);
    encode::command(&mut give, &[b"UNLOCK", name.as_bytes()]);
    let (until, mut locks) = (Instant::now() + seconds, 0);
    while Instant::now() < until {
        assert!(ask(&mut stream, &take).await.starts_with(b"*3"));
        assert_eq!(ask(&mut stream, &give).await, b":1\r\n");
        locks += 1;
    }
    locks
}

/// Sends a command and returns its short reply.
async fn ask(stream: &mut TcpStream, command: &[u8]) -> Vec<u8> {
    stream.write_all(command).await.unwrap();
    let mut reply = vec![0; 512];
    let length = stream.read(&mut reply).await.unwrap();
    reply.truncate(length);
    reply
}
