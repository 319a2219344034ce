//! Opening a connection to a lock node, as bb8 wants it.

use std::{
    future::Future,
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use redis_protocol::resp2::types::OwnedFrame;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use super::{
    fault::Fault,
    link::{self, Ends, Link},
    node::Node,
    quarantine::{Look, MARKER, Verdict},
    reply, scripts,
};
use crate::{
    net::{self, Stream},
    resp::encode,
};

/// How long connecting and the handshake may take, each.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How often a node that may not vote yet is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The first few times it is looked at again sooner, and nothing is said.
const LOOK_SOON: Duration = Duration::from_millis(20);
const FIRST_LOOKS: usize = 10;

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
    /// It must not vote as it is.
    #[error("{1}")]
    Unfit(Fault, String),
    /// The engine has gone.
    #[error("not needed any more")]
    Unused,
}

impl ConnectError {
    /// What this makes of the node, where it is more than that it is away.
    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            ConnectError::Garbage(_) => Some(Fault::Garbage),
            ConnectError::Unfit(fault, _) => Some(*fault),
            ConnectError::Refused { error, .. } => {
                let code = error.split(' ').next().unwrap_or_default();
                match code {
                    "DENIED" => Some(Fault::ProtectedMode),
                    "NOAUTH" | "WRONGPASS" | "NOPERM" => Some(Fault::Auth),
                    // Redis before 6, and where no password is set.
                    "ERR" if error.contains("password") => Some(Fault::Auth),
                    _ => None,
                }
            }
            ConnectError::Io(_) | ConnectError::Silent | ConnectError::Unused => None,
        }
    }
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
        let greeting = within_limit(greet(&mut stream, &node)).await?;
        let run_id = greeting.look.run_id.clone();
        let weak = Arc::downgrade(&node);
        drop(node);
        let node = match admit(&weak, &mut stream, greeting.look).await {
            Ok(node) => node,
            Err(error) => {
                if let Some(node) = weak.upgrade() {
                    node.admissions.left(node.index);
                }
                return Err(error);
            }
        };
        let (failing, watching) = (weak.clone(), weak.clone());
        let ends = Ends {
            node: node.index,
            silence: node.silence,
            metrics: node.metrics.clone(),
            standing: node.standing.clone(),
            drift_factor: node.drift_factor,
            on_clock: Box::new(move |sight| {
                if let Some(node) = watching.upgrade() {
                    node.saw_clock(sight);
                }
            }),
            on_error: Box::new(move |operation| {
                if let Some(node) = failing.upgrade() {
                    node.answered_with_error(operation);
                }
            }),
        };
        Ok(link::start(stream, ends, greeting.client_id, run_id, move |leftover| {
            if let Some(node) = weak.upgrade() {
                node.connection_ended(leftover);
            }
        }))
    }

    async fn is_valid(&self, link: &mut Link) -> Result<(), ConnectError> {
        if link.is_closed() { Err(ConnectError::Unused) } else { Ok(()) }
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_closed()
    }
}

async fn within_limit<T>(
    asking: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    timeout(CONNECT_LIMIT, asking).await.unwrap_or(Err(ConnectError::Silent))
}

/// Waits until the node may vote.
async fn admit(
    weak: &Weak<Node>,
    stream: &mut Stream,
    mut look: Look,
) -> Result<Arc<Node>, ConnectError> {
    for looks in 1.. {
        let node = weak.upgrade().ok_or(ConnectError::Unused)?;
        match node.admissions.judge(node.index, &look) {
            Verdict::Admitted => {
                if let Some(run_id) =
                    look.run_id.filter(|run_id| Some(run_id) != look.marker.as_ref())
                {
                    within_limit(mark(stream, &run_id)).await?;
                }
                return Ok(node);
            }
            Verdict::Refused(fault, why) => return Err(ConnectError::Unfit(fault, why)),
            // Of a new deployment, the first to answer only waits for the others.
            Verdict::Quarantined(_) if looks < FIRST_LOOKS => {}
            Verdict::Quarantined(why) => node.is_down(why, Some(Fault::Quarantined)),
        }
        drop(node);
        sleep(if looks < FIRST_LOOKS { LOOK_SOON } else { LOOK_EVERY }).await;
        look = within_limit(look_again(stream)).await?;
    }
    Err(ConnectError::Unused)
}

/// Notes on the node that it was admitted.
async fn mark(stream: &mut Stream, run_id: &str) -> Result<(), ConnectError> {
    let mut out = Vec::new();
    encode::command(&mut out, &[b"SET", MARKER, run_id.as_bytes()]);
    stream.write_all(&out).await?;
    stream.flush().await?;
    match read_reply(stream, &mut Vec::new()).await? {
        OwnedFrame::Error(error) => {
            Err(ConnectError::Refused { command: "SET lockgate:node", error })
        }
        _ => Ok(()),
    }
}

async fn look_again(stream: &mut Stream) -> Result<Look, ConnectError> {
    let mut out = Vec::new();
    encode_look(&mut out);
    stream.write_all(&out).await?;
    stream.flush().await?;
    read_look(stream, &mut Vec::new()).await
}

/// Asks for what [`read_look`] reads.
fn encode_look(out: &mut Vec<u8>) {
    encode::command(out, &[b"INFO", b"server"]);
    encode::command(out, &[b"INFO", b"replication"]);
    encode::command(out, &[b"GET", MARKER]);
}

async fn read_look(stream: &mut Stream, received: &mut Vec<u8>) -> Result<Look, ConnectError> {
    let mut look = Look { is_master: true, ..Look::default() };
    // An ACL may keep INFO from us.
    if let OwnedFrame::BulkString(info) = read_reply(stream, received).await? {
        look.run_id = info_field(&info, "run_id");
        let seconds = info_field(&info, "uptime_in_seconds");
        look.uptime = Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(0));
    }
    if let OwnedFrame::BulkString(info) = read_reply(stream, received).await? {
        look.is_master = info_field(&info, "role").is_none_or(|role| role == "master");
    }
    match read_reply(stream, received).await? {
        OwnedFrame::BulkString(marker) => {
            look.marker = Some(String::from_utf8_lossy(&marker).into_owned());
        }
        OwnedFrame::Error(error) if error.starts_with("NOPERM") => {
            return Err(ConnectError::Refused { command: "GET lockgate:node", error });
        }
        _ => {}
    }
    Ok(look)
}

/// What a node says of itself.
struct Greeting {
    client_id: Option<i64>,
    look: Look,
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
    // These two help but are not needed; an ACL may refuse them.
    encode::command(&mut out, &[b"CLIENT", b"SETNAME", b"lockgate"]);
    encode::command(&mut out, &[b"CLIENT", b"ID"]);
    encode_look(&mut out);
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
    let look = read_look(stream, &mut received).await?;
    if !received.is_empty() {
        return Err(reply::Garbage.into());
    }
    Ok(Greeting { client_id, look })
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
