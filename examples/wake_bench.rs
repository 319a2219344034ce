//! Load for `bench/wakeups`: clients of several proxies that pass locks around.
//!
//!     wake_bench LOCKS CLIENTS HOLD SECONDS PORT…
//!
//! At each proxy, CLIENTS clients want each lock. Each holds it for HOLD ms, gives it back and asks again. Prints one
//! line of JSON: all grants, those that went to a client of another proxy than the grant before, and the time from
//! such a lock's UNLOCK to its grant (median and 99th percentile).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that fails must not go on")]

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use lockgate::resp::encode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Barrier,
    task::{LocalSet, spawn_local},
    time::sleep,
};

/// What all clients together have seen.
#[derive(Default)]
struct Seen {
    grants: u64,
    /// Times from an UNLOCK to the grant at another proxy.
    gaps: Vec<Duration>,
    /// By lock: the proxy of its last holder, and the time of that holder's UNLOCK.
    last: Vec<Option<(usize, Instant)>>,
}

struct Client {
    port: u16,
    proxy: usize,
    lock: usize,
    hold: Duration,
    seconds: Duration,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [locks, clients, hold, seconds, ports @ ..] = arguments.as_slice() else {
        panic!("wake_bench LOCKS CLIENTS HOLD SECONDS PORT…")
    };
    let (locks, clients): (usize, usize) = (locks.parse().unwrap(), clients.parse().unwrap());
    let hold = Duration::from_secs_f64(hold.parse::<f64>().unwrap() / 1000.0);
    let seconds = Duration::from_secs_f64(seconds.parse().unwrap());
    let ports: Vec<u16> = ports.iter().map(|port| port.parse().unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen = Rc::new(RefCell::new(Seen { last: vec![None; locks], ..Seen::default() }));
    LocalSet::new().block_on(&runtime, async {
        let connected = Rc::new(Barrier::new(locks * clients * ports.len()));
        let mut all = Vec::new();
        for lock in 0..locks {
            for number in 0..clients * ports.len() {
                let proxy = number % ports.len();
                let client = Client { port: ports[proxy], proxy, lock, hold, seconds };
                all.push(spawn_local(run(client, connected.clone(), seen.clone())));
            }
        }
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
        "{{\"seconds\":{},\"grants\":{},\"between\":{},\"gap_us\":[{},{}]}}",
        seconds.as_secs_f64(),
        seen.grants,
        seen.gaps.len(),
        gap(0.5),
        gap(0.99)
    );
}

async fn run(client: Client, connected: Rc<Barrier>, seen: Rc<RefCell<Seen>>) {
    let mut stream = TcpStream::connect(("127.0.0.1", client.port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let key = format!("wake:{}", client.lock);
    let (mut lock, mut unlock) = (Vec::new(), Vec::new());
    encode::command(&mut lock, &[b"LOCK", key.as_bytes(), b"PX", b"30000", b"WAIT", b"30000"]);
    encode::command(&mut unlock, &[b"UNLOCK", key.as_bytes()]);
    let mut reply = [0; 512];
    // All connections, including the proxy's own, are made before the time begins.
    stream.write_all(b"PING\r\n").await.unwrap();
    let length = stream.read(&mut reply).await.unwrap();
    assert_eq!(&reply[..length], b"+PONG\r\n");
    connected.wait().await;
    let until = Instant::now() + client.seconds;
    while Instant::now() < until {
        stream.write_all(&lock).await.unwrap();
        let length = stream.read(&mut reply).await.unwrap();
        assert!(reply.starts_with(b"*3\r\n"), "{:?}", String::from_utf8_lossy(&reply[..length]));
        {
            let seen = &mut *seen.borrow_mut();
            seen.grants += 1;
            if let Some((proxy, released)) = seen.last[client.lock]
                && proxy != client.proxy
            {
                seen.gaps.push(released.elapsed());
            }
        }
        if !client.hold.is_zero() {
            sleep(client.hold).await;
        }
        seen.borrow_mut().last[client.lock] = Some((client.proxy, Instant::now()));
        stream.write_all(&unlock).await.unwrap();
        let length = stream.read(&mut reply).await.unwrap();
        assert_eq!(&reply[..length], b":1\r\n");
    }
}
