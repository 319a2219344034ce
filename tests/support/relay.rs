//! A relay between two programs that can delay a packet.
//!
//! A [`Relay`] accepts connections for a server and passes everything on, until it sees the bytes that it must hold.
//! These, and everything behind them on that connection in that direction, wait until they are released or the
//! connection is cut. Other connections and the other direction go on meanwhile.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

use super::LIMIT;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    FromServer,
}

#[derive(Default)]
struct Held {
    /// The bytes to hold: the first packet that contains them is held.
    wanted: Option<(Direction, Vec<u8>)>,
    /// Whether the packet has come.
    is_here: bool,
    /// Whether to cut the connection and drop the packet.
    cut: bool,
}

#[derive(Default)]
struct Shared {
    held: Mutex<Held>,
    changed: Condvar,
    /// The delay of everything from the server.
    delay: Mutex<Duration>,
    /// The loopback port to which new connections go.
    server: AtomicU16,
    /// The client's side of each connection.
    clients: Mutex<Vec<TcpStream>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no thread panics with it")
    }

    /// Waits if these bytes must be held. Returns false if they must not arrive.
    fn pass(&self, direction: Direction, bytes: &[u8]) -> bool {
        let mut held = self.lock();
        let matches = |(wanted, pattern): &(Direction, Vec<u8>)| {
            *wanted == direction && bytes.windows(pattern.len()).any(|part| part == pattern)
        };
        if held.is_here || !held.wanted.as_ref().is_some_and(matches) {
            return true;
        }
        held.is_here = true;
        self.changed.notify_all();
        let held = self.changed.wait_while(held, |held| held.wanted.is_some());
        let mut held = held.expect("no thread panics with it");
        held.is_here = false;
        self.changed.notify_all();
        !held.cut
    }
}

/// A relay; see the module.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

impl Relay {
    /// Starts a relay to the server on this loopback port.
    pub fn to(server: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("relay");
        let port = listener.local_addr().expect("address").port();
        let shared = Arc::new(Shared { server: AtomicU16::new(server), ..Shared::default() });
        let ours = shared.clone();
        // The thread ends with the test's process, and so do those of the connections.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // If the server is away, it is also away for the relay's clients.
                let server = ours.server.load(Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let twin = |stream: &TcpStream| stream.try_clone().expect("descriptor");
                ours.clients.lock().expect("no thread panics with it").push(twin(&client));
                for (from, to, direction) in [
                    (twin(&client), twin(&server), Direction::ToServer),
                    (server, client, Direction::FromServer),
                ] {
                    let shared = ours.clone();
                    thread::spawn(move || pump(from, to, direction, &shared));
                }
            }
        });
        Relay { port, shared }
    }

    /// The relay's port, on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads new connections to another server, on this loopback port.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::Relaxed);
    }

    /// Leads new connections to another server, and closes the present ones.
    pub fn move_to(&self, server: u16) {
        self.lead_to(server);
        for client in self.shared.clients.lock().expect("no thread panics with it").drain(..) {
            // It may be closed already.
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Holds the next packet to the server that contains `pattern`.
    pub fn hold_request(&self, pattern: &str) {
        self.hold(Direction::ToServer, pattern);
    }

    /// Holds the next packet from the server that contains `pattern`.
    pub fn hold_reply(&self, pattern: &str) {
        self.hold(Direction::FromServer, pattern);
    }

    fn hold(&self, direction: Direction, pattern: &str) {
        let mut held = self.shared.lock();
        assert!(!held.is_here, "one at a time");
        (held.wanted, held.cut) = (Some((direction, pattern.into())), false);
    }

    /// Delays everything from the server by `by`.
    pub fn delay_replies(&self, by: Duration) {
        *self.shared.delay.lock().expect("no thread panics with it") = by;
    }

    /// Waits until the packet to hold has come.
    pub fn wait_until_held(&self) {
        let held = self.shared.lock();
        let wait = self.shared.changed.wait_timeout_while(held, LIMIT, |held| !held.is_here);
        assert!(!wait.expect("no thread panics with it").1.timed_out(), "nothing to hold came");
    }

    /// Lets the held packet pass.
    pub fn release(&self) {
        self.end(false);
    }

    /// Drops the held packet and closes its connection on both sides.
    pub fn cut(&self) {
        self.end(true);
    }

    fn end(&self, cut: bool) {
        let mut held = self.shared.lock();
        (held.wanted, held.cut) = (None, cut);
        self.shared.changed.notify_all();
        let wait = self.shared.changed.wait_timeout_while(held, LIMIT, |held| held.is_here);
        assert!(!wait.expect("no thread panics with it").1.timed_out(), "it is held still");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // If a test has failed, no thread must stay behind that waits for ever.
        if let Ok(mut held) = self.shared.held.lock() {
            (held.wanted, held.cut) = (None, true);
            self.shared.changed.notify_all();
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, direction: Direction, shared: &Shared) {
    let _ = to.set_nodelay(true);
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if direction == Direction::FromServer {
            let delay = *shared.delay.lock().expect("no thread panics with it");
            thread::sleep(delay);
        }
        if !shared.pass(direction, &buffer[..length]) {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
