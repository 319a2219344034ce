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

/// The packet to hold: one that contains these bytes.
struct Wanted {
    direction: Direction,
    pattern: Vec<u8>,
    /// How many such packets pass before it.
    passing: usize,
}

#[derive(Default)]
struct Held {
    wanted: Option<Wanted>,
    /// What is wanted once the held packet is released.
    next: Option<Wanted>,
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
        if held.is_here {
            return true;
        }
        let matches = |wanted: &&mut Wanted| {
            let contains = |part: &[u8]| part == wanted.pattern;
            wanted.direction == direction && bytes.windows(wanted.pattern.len()).any(contains)
        };
        let Some(wanted) = held.wanted.as_mut().filter(matches) else { return true };
        if let Some(passing) = wanted.passing.checked_sub(1) {
            wanted.passing = passing;
            return true;
        }
        held.is_here = true;
        self.changed.notify_all();
        let held = self.changed.wait_while(held, |held| held.wanted.is_some());
        let mut held = held.expect("no thread panics with it");
        (held.is_here, held.wanted) = (false, held.next.take());
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

    /// Once the held packet is released, holds a packet from the server that contains `pattern`, after letting so many
    /// such packets pass.
    pub fn then_hold_reply(&self, passing: usize, pattern: &str) {
        let direction = Direction::FromServer;
        self.shared.lock().next = Some(Wanted { direction, pattern: pattern.into(), passing });
    }

    fn hold(&self, direction: Direction, pattern: &str) {
        let mut held = self.shared.lock();
        assert!(!held.is_here, "one at a time");
        held.wanted = Some(Wanted { direction, pattern: pattern.into(), passing: 0 });
        held.cut = false;
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
            (held.wanted, held.next, held.cut) = (None, None, true);
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
