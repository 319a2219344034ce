//! Asks the data node whether a client may be who it says, or come without saying so, on a connection that carries
//! nothing else.
//!
//! A failed AUTH in a pipeline may drop its reply, so that on a link the replies would shift to other clients. Here a
//! connection has one client's greeting at a time, whose reply is read before anything else is sent.

use std::{cell::RefCell, collections::HashMap, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Mutex, Semaphore},
    time::{Instant, sleep, timeout},
};

use super::sharing::{Connecting, Sharing};
use crate::{
    data::{DataStream, Tenure},
    net::Stream,
    resp::reply::{NextReply, ReplyScanner},
    sync,
};

/// The longest reply to a greeting, in bytes. HELLO's names each loaded module.
const LONGEST: usize = 64 * 1024;

/// Makes a connection as fresh, from Redis 6.2 on.
const RESET: &[u8] = b"*1\r\n$5\r\nRESET\r\n";

/// What is sent to see whether a connection is let in.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The beginnings of errors that a Redis sends of itself, before it closes a connection that it does not want.
const UNWANTED: [&[u8]; 2] = [b"-ERR max number of clients", b"-DENIED"];

/// How long to wait until a step is tried again that a busy data node has refused.
const BUSY: Duration = Duration::from_millis(20);

/// How many greetings a thread asks about side by side.
const SIDE_BY_SIDE: usize = 8;

/// A thread's connections for greetings, and what they have told of clients that have not authenticated.
pub(super) struct Greeter {
    room: Semaphore,
    /// Connections that nobody uses: one, unless others wait for room.
    kept: sync::Mutex<Vec<DataStream>>,
    /// Held while the data node is asked whether it lets clients in that have not authenticated.
    entering: Mutex<()>,
    /// When the data node was asked last, and whether it lets them in.
    entry: sync::Mutex<Option<(Instant, bool)>>,
}

impl Default for Greeter {
    fn default() -> Greeter {
        Greeter {
            room: Semaphore::new(SIDE_BY_SIDE),
            kept: sync::Mutex::default(),
            entering: Mutex::default(),
            entry: sync::Mutex::default(),
        }
    }
}

thread_local! {
    static GREETERS: RefCell<HashMap<u64, Arc<Greeter>>> = RefCell::default();
}

impl Greeter {
    /// Returns this thread's greeter.
    pub(super) fn of(sharing: &Sharing) -> Arc<Greeter> {
        GREETERS.with_borrow_mut(|all| all.entry(sharing.number).or_default().clone())
    }

    /// Connects to the data node, keeps the connection for the next greeting, and returns its tenure.
    ///
    /// # Errors
    /// The last reason why there was no connection.
    pub(super) async fn reach(
        &self,
        sharing: &Sharing,
        connecting: Connecting,
    ) -> io::Result<Option<Arc<Tenure>>> {
        let fresh = connect(sharing, connecting).await?;
        let tenure = fresh.tenure.clone();
        self.keep(Some(fresh));
        Ok(tenure)
    }

    /// Returns the data node's reply to a greeting, behind steps that bring the connection into its client's state.
    /// `leaves`: an accepted one leaves what RESET may not undo.
    ///
    /// # Errors
    /// The network's; and if the data node refuses a step. The client's connection is to end.
    pub(super) async fn ask(
        &self,
        sharing: &Sharing,
        steps: Vec<Vec<u8>>,
        greeting: Vec<u8>,
        leaves: bool,
        connecting: Connecting,
    ) -> io::Result<Vec<u8>> {
        // Never closed.
        let _room = self.room.acquire().await;
        let mut used = self.kept.lock().pop();
        let reply = question(&mut used, sharing, &steps, &greeting, connecting).await;
        if !leaves || reply.as_ref().is_ok_and(|reply| reply.starts_with(b"-")) {
            self.keep(used);
        }
        reply
    }

    /// Keeps a connection for the next greeting, if none is kept or others wait for room.
    fn keep(&self, used: Option<DataStream>) {
        let mut kept = self.kept.lock();
        if kept.is_empty() || self.room.available_permits() == 0 {
            kept.extend(used);
        }
    }

    /// Whether the data node lets a client in that came at this time and has not authenticated. `None`: it must be
    /// asked first, as it may ask for a password by now.
    pub(super) fn known(&self, came: Instant) -> Option<bool> {
        let known = *self.entry.lock();
        known.and_then(|(asked, lets_in)| (asked >= came).then_some(lets_in))
    }

    /// Asks whether the data node lets a client in that came at this time and has not authenticated. Others that wait
    /// for that meanwhile get the same answer.
    ///
    /// # Errors
    /// The network's; and if the data node wants no connection.
    pub(super) async fn lets_in(
        &self,
        sharing: &Sharing,
        came: Instant,
        connecting: Connecting,
    ) -> io::Result<bool> {
        let _entering = self.entering.lock().await;
        if let Some(lets_in) = self.known(came) {
            return Ok(lets_in);
        }
        let asked = Instant::now();
        let used = self.kept.lock().pop();
        let again = match used {
            Some(used) => timeout(connecting.limit, ping_anew(used)).await.ok().flatten(),
            None => None,
        };
        let (used, reply) = match again {
            Some((used, reply)) => (Some(used), Ok(reply)),
            None => {
                let mut fresh = None;
                let reply = question(&mut fresh, sharing, &[], PING, connecting).await;
                (fresh, reply)
            }
        };
        self.keep(used);
        let reply = reply?;
        let lets_in = !reply.starts_with(b"-NOAUTH");
        *self.entry.lock() = Some((asked, lets_in));
        Ok(lets_in)
    }
}

/// Sends a command over a connection that is as fresh, behind steps, and returns its reply. A data node that does not
/// answer in time is asked over another connection: it may be busy, or the way to it cut.
///
/// # Errors
/// The network's; and if the data node refuses a step, or wants no connection.
async fn question(
    kept: &mut Option<DataStream>,
    sharing: &Sharing,
    steps: &[Vec<u8>],
    command: &[u8],
    connecting: Connecting,
) -> io::Result<Vec<u8>> {
    loop {
        let used = kept.take();
        let asking = async {
            let reset = match used {
                Some(used) => reset(used).await,
                None => None,
            };
            let mut fresh = match reset {
                Some(fresh) => fresh,
                None => connect(sharing, connecting).await?,
            };
            assume(&mut fresh.stream, steps).await?;
            let reply = exchange(&mut fresh.stream, command).await?;
            check_wanted(&reply)?;
            Ok::<_, io::Error>((fresh, reply))
        };
        if let Ok(answered) = timeout(connecting.limit, asking).await {
            let (used, reply) = answered?;
            *kept = Some(used);
            return Ok(reply);
        }
    }
}

/// Connects to the data node.
///
/// # Errors
/// The network's.
pub(super) async fn connect(sharing: &Sharing, connecting: Connecting) -> io::Result<DataStream> {
    sharing.data.connect_for(None, connecting.limit, connecting.keepalive).await
}

/// Brings a fresh connection into a client's state. A busy data node takes some steps only once it is not.
///
/// # Errors
/// The network's; and the data node's own error, as a line, if it does not accept the state any more.
pub(super) async fn assume(stream: &mut Stream, steps: &[Vec<u8>]) -> io::Result<()> {
    for step in steps {
        loop {
            let reply = exchange(stream, step).await?;
            match &reply[..] {
                [b'-', b'B', b'U', b'S', b'Y', b' ', ..] => sleep(BUSY).await,
                [b'-', ..] => return Err(refused(&reply)),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Checks that the data node carries out commands that come over this connection.
///
/// # Errors
/// The network's; and the data node's own error, as a line, if it asks for a password, or wants no connection.
pub(super) async fn check_let_in(stream: &mut Stream) -> io::Result<()> {
    let reply = exchange(stream, PING).await?;
    check_wanted(&reply)?;
    if reply.starts_with(b"-NOAUTH") { Err(refused(&reply)) } else { Ok(()) }
}

/// Checks that a reply is not what a Redis sends of itself before it closes a connection that it does not want.
///
/// # Errors
/// That line, if it is.
pub(super) fn check_wanted(reply: &[u8]) -> io::Result<()> {
    let is_unwanted = UNWANTED.iter().any(|error| reply.starts_with(error));
    if is_unwanted { Err(refused(reply)) } else { Ok(()) }
}

/// Makes an error of the data node's own line, which clients are told.
pub(super) fn refused(reply: &[u8]) -> io::Error {
    let line = String::from_utf8_lossy(reply).trim_end().to_owned();
    io::Error::new(io::ErrorKind::PermissionDenied, line)
}

/// Makes a connection forget whom it was used for. `None`: it cannot, or was closed meanwhile.
async fn reset(mut used: DataStream) -> Option<DataStream> {
    if used.tenure.as_ref().is_some_and(|tenure| tenure.has_ended()) {
        return None;
    }
    let reply = exchange(&mut used.stream, RESET).await.ok()?;
    reply.starts_with(b"+RESET").then_some(used)
}

/// Makes a connection forget whom it was used for, and returns what the data node then replies to PING. `None`: as
/// [`reset`] says.
async fn ping_anew(mut used: DataStream) -> Option<(DataStream, Vec<u8>)> {
    if used.tenure.as_ref().is_some_and(|tenure| tenure.has_ended()) {
        return None;
    }
    let mut replies = exchange_all(&mut used.stream, &[RESET, PING].concat(), 2).await.ok()?;
    let end = memchr::memchr(b'\n', &replies)? + 1;
    let pong = replies.split_off(end);
    replies.starts_with(b"+RESET").then_some((used, pong))
}

/// Sends a command and returns its reply, whole.
///
/// # Errors
/// The network's; and if what comes is not one reply of at most [`LONGEST`] bytes.
pub(super) async fn exchange(stream: &mut Stream, command: &[u8]) -> io::Result<Vec<u8>> {
    exchange_all(stream, command, 1).await
}

/// Sends commands and returns their replies, whole, which are so many.
///
/// # Errors
/// The network's; and if what comes are not that many replies of at most [`LONGEST`] bytes.
async fn exchange_all(
    stream: &mut Stream,
    commands: &[u8],
    mut missing: u32,
) -> io::Result<Vec<u8>> {
    stream.write_all(commands).await?;
    stream.flush().await?;
    let (mut replies, mut scanner, mut at) = (Vec::new(), ReplyScanner::default(), 0);
    loop {
        if replies.len() > LONGEST || stream.read_buf(&mut replies).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while missing > 0 {
            match scanner.next(&replies, &mut at) {
                NextReply::Frame(_) => missing -= 1,
                NextReply::End => break,
                NextReply::Broken => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        if missing == 0 {
            return match at == replies.len() {
                true => Ok(replies),
                false => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}
