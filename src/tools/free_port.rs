//! Free loopback ports for the servers of `lockgate dev` and of the tests.
//!
//! A killed server leaves its port free until it is started again. So that no other process gets the port
//! meanwhile, each process has a part of the ports to itself.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
};

/// The ports to choose from. Linux gives outgoing connections those from 32768 on.
const PORTS: Range<u16> = 10_000..32_000;
/// How many processes may have a part of them.
const PARTS: u16 = 8;
/// How many ports are tried, as another process may take the first ones.
const ATTEMPTS: usize = 10;

/// The ports of one process.
#[derive(Debug)]
struct PortShare {
    ports: Range<u16>,
    /// How many of them were handed out.
    given: AtomicU16,
    /// The claim to the part: no other process of this network namespace can bind this name meanwhile.
    _claim: Option<UnixListener>,
}

impl PortShare {
    /// Claims a part that no process has: the kernel gives an abstract socket's name once, and frees it when the
    /// process ends. If every part is taken, the share is all ports, beginning at a random one.
    fn claim(name: &str) -> PortShare {
        let size = (PORTS.end - PORTS.start) / PARTS;
        let first = rand::random_range(0..PARTS);
        for part in (first..PARTS).chain(0..first) {
            let address = SocketAddr::from_abstract_name(format!("{name}-{part}"));
            if let Ok(claim) = address.and_then(|address| UnixListener::bind_addr(&address)) {
                let start = PORTS.start + part * size;
                let ports = start..start + size;
                return PortShare { ports, given: AtomicU16::new(0), _claim: Some(claim) };
            }
        }
        let given = AtomicU16::new(rand::random_range(0..PORTS.end - PORTS.start));
        PortShare { ports: PORTS, given, _claim: None }
    }

    fn next(&self) -> u16 {
        let count = self.ports.end - self.ports.start;
        self.ports.start + self.given.fetch_add(1, Ordering::Relaxed) % count
    }
}

/// Finds a port that was free a moment ago, a different one each time.
///
/// The port is below those that the kernel gives to outgoing connections, so none of these can take it first.
/// Another program may: a caller that finds the address in use asks again.
///
/// # Errors
/// If none of 1,000 ports is free.
pub fn free_port() -> io::Result<u16> {
    static PART: LazyLock<PortShare> = LazyLock::new(|| PortShare::claim("lockgate-ports"));
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (0..1000).map(|_| PART.next()).find(free).ok_or_else(|| io::Error::other("no free port"))
}

/// Starts a server at a free port, and at another one if that fails, as when another process has taken the port.
///
/// # Errors
/// The last attempt's, or that the program is missing.
pub(super) fn at_a_free_port<T>(start: impl Fn(u16) -> io::Result<T>) -> io::Result<T> {
    let mut last = io::Error::other("no free port");
    for _ in 0..ATTEMPTS {
        match start(free_port()?) {
            Ok(started) => return Ok(started),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_have_a_port_in_common() {
        // A name of its own, as other processes of this machine claim parts too.
        let name = format!("lockgate-ports-test-{}", std::process::id());
        let mut parts: Vec<PortShare> = (0..PARTS).map(|_| PortShare::claim(&name)).collect();
        for (index, part) in parts.iter().enumerate() {
            let mine: Vec<u16> = (0..3000).map(|_| part.next()).collect();
            for other in &parts[index + 1..] {
                assert!(!mine.iter().any(|port| other.ports.contains(port)), "{part:?} {other:?}");
            }
        }
        assert_eq!(PortShare::claim(&name).ports, PORTS, "where all are taken, any port");
        let left = parts.remove(3).ports;
        assert_eq!(PortShare::claim(&name).ports, left, "what a process that has ended had");
    }
}
