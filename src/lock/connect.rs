//! Opening a connection to a lock node, as bb8 wants it.

use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use redis_protocol::resp2::types::OwnedFrame;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    link::{self, Link},
    node::Node,
    reply, scripts,
};
use crate::{
    net::{self, Stream},
    resp::encode,
};

/// How long connecting and the handshake may take, each.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Why a node cannot be used.
#[derive(Debug, Error)]
pub(super) enum ConnectError {
    /// It cannot be reached, or closed the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It did not finish the handshake in time.
    #[error("no answer to the handshake within {CONNECT_LIMIT:?}")]
    Silent,
    /// It said something that Redis does not say.
    #[error("{0}")]
    Garbage(#[from] reply::Garbage),
    /// It said no.
    #[error("{command}: {error}")]
    Refused {
        /// What it was asked.
        command: &'static str,
        /// Its own words.
        error: String,
    },
    /// The engine has gone.
    #[error("not needed any more")]
    Unused,
}

/// Makes [`Link`]s to one node.
pub(super) struct LinkManager {
    pub(super) node: Weak<Node>,
}

impl ManageConnection for LinkManager {
    type Connection = Link;
    type Error = ConnectError;

    async fn connect(&self) -> Result<Link, ConnectError> {
        let node = self.node.upgrade().ok_or(ConnectError::Unused)?;
        let mut stream =
            net::connect(&node.url, &node.connector, CONNECT_LIMIT, node.keepalive).await?;
        let greeting = match timeout(CONNECT_LIMIT, greet(&mut stream, &node)).await {
            Ok(greeting) => greeting?,
            Err(_) => return Err(ConnectError::Silent),
        };
        let weak = Arc::downgrade(&node);
        Ok(link::start(
            stream,
            node.index,
            node.silence,
            node.metrics.clone(),
            greeting.client_id,
            greeting.run_id,
            move |leftover| {
                if let Some(node) = weak.upgrade() {
                    node.connection_ended(leftover);
                }
            },
        ))
    }

    async fn is_valid(&self, link: &mut Link) -> Result<(), ConnectError> {
        if link.is_closed() { Err(ConnectError::Unused) } else { Ok(()) }
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_closed()
    }
}

/// What a node says of itself.
struct Greeting {
    client_id: Option<i64>,
    run_id: Option<String>,
}

/// Authenticates, selects the database, loads the scripts, all in one round trip.
async fn greet(stream: &mut Stream, node: &Node) -> Result<Greeting, ConnectError> {
    let mut out = Vec::new();
    let mut asked = Vec::new();
    let url = &node.url;
    if let Some(password) = &url.password {
        match &url.username {
            Some(user) => {
                encode::command(&mut out, &[b"AUTH", user.as_bytes(), password.as_bytes()])
            }
            None => encode::command(&mut out, &[b"AUTH", password.as_bytes()]),
        }
        asked.push("AUTH");
    }
    encode::command(&mut out, &[b"SELECT", url.db.to_string().as_bytes()]);
    asked.push("SELECT");
    scripts::load(&mut out);
    asked.extend(["SCRIPT LOAD"; scripts::LOADS]);
    // These three help but are not needed; an ACL may refuse them.
    encode::command(&mut out, &[b"CLIENT", b"SETNAME", b"lockgate"]);
    encode::command(&mut out, &[b"CLIENT", b"ID"]);
    encode::command(&mut out, &[b"INFO", b"server"]);
    stream.write_all(&out).await?;
    stream.flush().await?;

    let mut received = Vec::new();
    for command in asked {
        if let OwnedFrame::Error(error) = read_reply(stream, &mut received).await? {
            return Err(ConnectError::Refused { command, error });
        }
    }
    read_reply(stream, &mut received).await?;
    let client_id = match read_reply(stream, &mut received).await? {
        OwnedFrame::Integer(id) => Some(id),
        _ => None,
    };
    let run_id = match read_reply(stream, &mut received).await? {
        OwnedFrame::BulkString(info) => info_field(&info, "run_id"),
        _ => None,
    };
    if !received.is_empty() {
        return Err(reply::Garbage.into());
    }
    Ok(Greeting { client_id, run_id })
}

/// The value of one field in what INFO says.
fn info_field(info: &[u8], name: &str) -> Option<String> {
    String::from_utf8_lossy(info)
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
}

async fn read_reply(
    stream: &mut Stream,
    received: &mut Vec<u8>,
) -> Result<OwnedFrame, ConnectError> {
    loop {
        if let Some(length) = reply::length(received)? {
            let frame = reply::read(&received[..length])?;
            received.drain(..length);
            return Ok(frame);
        }
        if stream.read_buf(received).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the node").into());
        }
    }
}
