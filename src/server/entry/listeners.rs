//! Listening sockets: opened here, or inherited from a service manager (LISTEN_FDS) or from the
//! process whose place this one takes.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    time::Duration,
};

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use tokio::net::{TcpListener, TcpSocket};
use tracing::{info, warn};

/// Connections that the kernel may complete before they are accepted (`tcp-backlog` in
/// redis.conf).
const BACKLOG: u32 = 511;
/// Pause after accept has failed, as for want of file descriptors: trying again at once would
/// only burn the processor.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A socket that another process has opened.
pub(crate) struct Inherited {
    /// The socket's address, as the configuration names it.
    pub address: SocketAddr,
    /// The listening socket.
    pub socket: StdListener,
}

/// Inherited sockets that are not used yet.
#[derive(Default)]
pub struct Listeners(Vec<Inherited>);

impl Listeners {
    /// Takes the sockets of a service manager. Must be called before other threads are started,
    /// as it removes the variables from the environment.
    pub fn of_environment() -> Listeners {
        let mut passed = ListenFd::from_env();
        let mut all = Vec::new();
        for index in 0..passed.len() {
            let taken = passed.take_tcp_listener(index).and_then(|taken| match taken {
                Some(socket) if socket_acceptconn(&socket)? => {
                    Ok(Some(Inherited { address: socket.local_addr()?, socket }))
                }
                Some(_) => Err(io::Error::other("it does not listen")),
                None => Ok(None),
            });
            match taken {
                Ok(inherited) => all.extend(inherited),
                // The log has not started yet.
                Err(error) => eprintln!("lockgate: LISTEN_FDS: socket {index}: {error}"),
            }
        }
        Listeners(all)
    }

    /// Adds the sockets of another process.
    pub(crate) fn add(&mut self, sockets: Vec<Inherited>) {
        self.0.extend(sockets);
    }

    /// Returns a socket that listens on `address`: an inherited one if there is one, else a new
    /// one.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub(crate) fn open(&mut self, address: SocketAddr) -> io::Result<TcpListener> {
        let Some(index) = self.0.iter().position(|inherited| inherited.address == address) else {
            return open(address);
        };
        let socket = self.0.swap_remove(index).socket;
        socket.set_nonblocking(true)?;
        info!(addr = %address, "this socket was open already");
        TcpListener::from_std(socket)
    }

    /// Closes the sockets that are still unused.
    pub(crate) fn close_others(&mut self) {
        for Inherited { address, .. } in self.0.drain(..) {
            warn!(addr = %address, "this socket was open, but is not configured; closed");
        }
    }
}

fn open(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}
