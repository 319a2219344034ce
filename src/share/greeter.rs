//! Asks the data node whether a client may be who it says, on a connection that carries nothing else.
//!
//! A failed AUTH in a pipeline may drop its reply, so that on a link the replies would shift to other clients. Here one
//! client's greeting is asked about at a time, and its reply is read before anything else is sent.

use std::{cell::RefCell, collections::HashMap, io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Mutex,
    time::timeout,
};

use super::{
    greeting::ClientStanding,
    sharing::{Connecting, Sharing},
};
use crate::{
    data::{DataStream, Tenure},
    net::Stream,
    resp::reply::{NextReply, ReplyScanner},
};

/// The longest reply to a greeting, in bytes. HELLO's names each loaded module.
const LONGEST: usize = 64 * 1024;

/// The beginnings of errors that a Redis sends of itself, before it closes a connection that it does not want.
const UNWANTED: [&[u8]; 2] = [b"-ERR max number of clients", b"-DENIED"];

/// A thread's connection for greetings.
#[derive(Default)]
pub(super) struct Greeter(Mutex<Option<DataStream>>);

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
        if let Ok(mut kept) = self.0.try_lock() {
            *kept = Some(fresh);
        }
        Ok(tenure)
    }

    /// Returns the data node's reply to a greeting of a client that has this standing.
    ///
    /// # Errors
    /// The network's; and if the data node no longer accepts the standing. The client's connection is to end.
    pub(super) async fn ask(
        &self,
        sharing: &Sharing,
        standing: ClientStanding,
        command: Vec<u8>,
        connecting: Connecting,
    ) -> io::Result<Vec<u8>> {
        let mut kept = self.0.lock().await;
        let asking = async {
            let reset = match kept.take() {
                Some(used) if !used.tenure.as_ref().is_some_and(|t| t.has_ended()) => {
                    reset(used).await
                }
                _ => None,
            };
            let mut fresh = match reset {
                Some(fresh) => fresh,
                None => connect(sharing, connecting).await?,
            };
            assume(&mut fresh.stream, standing.commands()).await?;
            let reply = exchange(&mut fresh.stream, &command).await?;
            check_wanted(&reply)?;
            Ok::<_, io::Error>((fresh, reply))
        };
        let (used, reply) = timeout(connecting.limit, asking).await??;
        *kept = Some(used);
        Ok(reply)
    }
}

/// Connects to the data node.
///
/// # Errors
/// The network's.
pub(super) async fn connect(sharing: &Sharing, connecting: Connecting) -> io::Result<DataStream> {
    sharing.data.connect_for(None, connecting.limit, connecting.keepalive).await
}

/// Brings a fresh connection into a client's state.
///
/// # Errors
/// The network's; and the data node's own error, as a line, if it does not accept the state any more.
pub(super) async fn assume(stream: &mut Stream, commands: Vec<Vec<u8>>) -> io::Result<()> {
    for command in commands {
        let reply = exchange(stream, &command).await?;
        if reply.starts_with(b"-") {
            return Err(refused(&reply));
        }
    }
    Ok(())
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
fn refused(reply: &[u8]) -> io::Error {
    let line = String::from_utf8_lossy(reply).trim_end().to_owned();
    io::Error::new(io::ErrorKind::PermissionDenied, line)
}

/// Makes a connection forget whom it was used for. `None`: it cannot, or was closed meanwhile.
async fn reset(mut used: DataStream) -> Option<DataStream> {
    let reply = exchange(&mut used.stream, b"*1\r\n$5\r\nRESET\r\n").await.ok()?;
    reply.starts_with(b"+RESET").then_some(used)
}

/// Sends a command and returns its reply, whole.
///
/// # Errors
/// The network's; and if what comes is not one reply of at most [`LONGEST`] bytes.
pub(super) async fn exchange(stream: &mut Stream, command: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(command).await?;
    stream.flush().await?;
    let (mut reply, mut scanner, mut at) = (Vec::new(), ReplyScanner::default(), 0);
    loop {
        if reply.len() > LONGEST || stream.read_buf(&mut reply).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match scanner.next(&reply, &mut at) {
            NextReply::Frame(_) if at == reply.len() => return Ok(reply),
            NextReply::End => {}
            NextReply::Frame(_) | NextReply::Broken => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}
