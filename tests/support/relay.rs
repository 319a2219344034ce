//! A way between two programs on which a packet can be late.
//!
//! A [`Relay`] accepts connections for a server and passes everything on, until it sees
//! the bytes that it was told to hold: these and all behind them on that connection and
//! in that direction wait until they are let go or the connection is cut. What the other
//! connections and the other direction carry passes meanwhile.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use super::LIMIT;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    FromServer,
}

#[derive(Default)]
struct Held {
    /// What is to be held: the first packet that contains these bytes.
    wanted: Option<(Direction, Vec<u8>)>,
    /// It is here.
    is_here: bool,
    /// Its connection is to be cut, and what was held dropped.
    cut: bool,
}

#[derive(Default)]
struct Shared {
    held: Mutex<Held>,
    changed: Condvar,
    /// How late everything from the server is.
    delay: Mutex<Duration>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no thread panics with it")
    }

    /// Waits if these bytes are to be held. False: they are not to arrive at all.
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

/// See the module.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

impl Relay {
    /// Before the server on this loopback port.
    pub fn to(server: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("relay");
        let port = listener.local_addr().expect("address").port();
        let shared = Arc::new(Shared::default());
        let ours = shared.clone();
        // Ends with the test's process, as the threads of each connection do.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // As the server would be: not there.
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let twin = |stream: &TcpStream| stream.try_clone().expect("descriptor");
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

    /// Where it listens, on loopback.
    pub fn port(&self) -> u16 {
        self.port
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

    /// Makes everything from the server late by so much.
    pub fn delay_replies(&self, by: Duration) {
        *self.shared.delay.lock().expect("no thread panics with it") = by;
    }

    /// Waits until it is here.
    pub fn wait_until_held(&self) {
        let held = self.shared.lock();
        let wait = self.shared.changed.wait_timeout_while(held, LIMIT, |held| !held.is_here);
        assert!(!wait.expect("no thread panics with it").1.timed_out(), "nothing to hold came");
    }

    /// Lets it arrive.
    pub fn release(&self) {
        self.end(false);
    }

    /// Drops it and closes its connection on both sides.
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
        // A test that failed in between leaves no thread behind that waits for ever.
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
