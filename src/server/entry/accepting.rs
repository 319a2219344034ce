//! Accepts the clients of one listener, and sets the options of their sockets with few system calls.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    task::yield_now,
};

use crate::net;

/// On Linux a socket inherits the options of the listening one: they need not be set for each client.
const INHERITS: bool = cfg!(target_os = "linux");

/// How many clients are accepted before the other tasks of the thread have a turn.
const AT_ONCE: u32 = 16;

/// The clients that come to one listening socket.
pub(crate) struct Accepting {
    listener: Arc<TcpListener>,
    /// How many clients came since the other tasks had a turn.
    in_turn: u32,
    /// The keepalive of the options that the listening socket has, if it has them.
    tuned: Option<Duration>,
}

impl Accepting {
    pub(crate) fn new(listener: Arc<TcpListener>) -> Accepting {
        Accepting { listener, in_turn: 0, tuned: None }
    }

    /// Waits for the next client, and gives its socket the options of [`net::tune`] with this keepalive.
    ///
    /// # Errors
    /// The operating system's, as for want of descriptors; another try may succeed.
    pub(crate) async fn next(
        &mut self,
        keepalive: impl Fn() -> Duration,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            if self.in_turn == AT_ONCE {
                self.in_turn = 0;
                yield_now().await;
            }
            let (client, peer) = self.listener.accept().await?;
            self.in_turn += 1;
            // The socket of a client that has gone may take no options.
            if self.tune(&client, keepalive()).is_ok() {
                return Ok((client, peer));
            }
        }
    }

    /// Sets the options of a client's socket, unless it has inherited them.
    fn tune(&mut self, client: &TcpStream, keepalive: Duration) -> io::Result<()> {
        if INHERITS && self.tuned == Some(keepalive) {
            return Ok(());
        }
        self.tuned = net::tune(&self.listener, keepalive).is_ok().then_some(keepalive);
        net::tune(client, keepalive)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Error,
        net,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::*;

    const KEEPALIVE: Duration = Duration::from_secs(300);

    /// On a thread with one task for all who come, those who are there already would wait until nobody comes.
    #[tokio::test]
    async fn the_other_tasks_have_their_turns_while_many_clients_come() -> Result<(), Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let many = 0..4 * AT_ONCE;
        let clients: Vec<_> = many.map(|_| net::TcpStream::connect(address)).collect();
        let turns = Arc::new(AtomicU32::new(0));
        let another = turns.clone();
        tokio::spawn(async move {
            loop {
                another.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
        let mut accepting = Accepting::new(Arc::new(listener));
        accepting.next(|| KEEPALIVE).await?;
        let before = turns.load(Ordering::Relaxed);
        for client in &clients[1..] {
            assert!(client.is_ok(), "{client:?}");
            accepting.next(|| KEEPALIVE).await?;
        }
        assert!(turns.load(Ordering::Relaxed) - before >= 3);
        Ok(())
    }
}
