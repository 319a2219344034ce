//! A node's report on itself before it may vote, and the few commands that are sent to a node without a
//! [`Link`](crate::lock::node::link::Link).

use std::{future::Future, io, time::Duration};

use redis_protocol::resp2::types::OwnedFrame;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    fault::Fault,
    marker::{BALLOT, Identity, LONGEST, MARKER, Marker, NOTE, Note, SEATS, text_of},
};
use crate::{
    cluster::cluster_node,
    config::RedisUrl,
    lock::{
        address::NodeAddress,
        location::Location,
        node_reply,
        scripts::MAX_TTL,
        stations::{self, Station, StationText},
        voters::SeatPlace,
    },
    net::Stream,
    resp::{encode, flat},
};

/// The longest time for connecting, and for each exchange.
pub(in crate::lock) const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Why a node cannot be used.
#[derive(Debug, Error)]
pub(in crate::lock) enum ConnectError {
    /// The node cannot be reached, or closed the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The node did not finish the handshake in time.
    #[error("no answer to the handshake within {CONNECT_LIMIT:?}")]
    Silent,
    /// The node sent what Redis never sends.
    #[error("{0}")]
    Garbage(#[from] flat::Garbage),
    #[error("{command}: {error}")]
    Refused {
        /// The refused command.
        command: &'static str,
        /// The node's error message.
        error: String,
    },
    /// The node must not vote as it is.
    #[error("{1}")]
    Unfit(Fault, String),
    /// No slot of the node is free for its marker.
    #[error("it has no slot for its marker")]
    NoStation,
    /// The node's marker lies, or is to lie, in another slot.
    #[error("its marker is to lie in another slot now")]
    OtherStation,
    /// The Sentinels or the cluster now name another Redis as the master.
    #[error("its Sentinels, or its cluster, name another master")]
    Elsewhere,
    /// The engine was dropped.
    #[error("not needed any more")]
    Unused,
}

impl ConnectError {
    /// Returns the fault that the error shows, or `None` if it only shows that the node is away.
    pub(in crate::lock) fn fault(&self) -> Option<Fault> {
        match self {
            ConnectError::Garbage(_) => Some(Fault::Garbage),
            ConnectError::Unfit(fault, _) => Some(*fault),
            ConnectError::Elsewhere => Some(Fault::Unconfirmed),
            ConnectError::Refused { error, .. } => {
                let code = error.split(' ').next().unwrap_or_default();
                match code {
                    "DENIED" => Some(Fault::ProtectedMode),
                    "NOAUTH" | "WRONGPASS" | "NOPERM" => Some(Fault::Auth),
                    // Redis before 6 says ERR, and so does a Redis without a password.
                    "ERR" if error.contains("password") => Some(Fault::Auth),
                    _ => None,
                }
            }
            ConnectError::Io(_)
            | ConnectError::Silent
            | ConnectError::NoStation
            | ConnectError::OtherStation
            | ConnectError::Unused => None,
        }
    }
}

/// A node's report on itself before it is admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::lock) struct SelfReport {
    /// Where the node's marker lies, or is to lie.
    pub(in crate::lock) station: Station,
    /// The `run_id`, new with each start. `None`: the node does not report it.
    pub(in crate::lock) run_id: Option<String>,
    /// The `master_replid`, new if the node was a replica. `None`: the node does not report it.
    pub(in crate::lock) replication_id: Option<String>,
    /// The election by which the node's Sentinels made it the master.
    pub(in crate::lock) election: Option<u64>,
    /// Whether the node is not a replica.
    pub(in crate::lock) is_master: bool,
    /// The marker, or what lies in its place.
    pub(in crate::lock) marker: MarkerFound,
    /// The largest ballot that the node has promised, and the ballot of its marker; empty: none.
    pub(in crate::lock) promised: String,
    pub(in crate::lock) accepted: String,
    /// The note about a waiting node; empty: none.
    pub(in crate::lock) note: String,
    /// The largest `locks.max_ttl` of any proxy, as noted on the node.
    pub(in crate::lock) max_ttl: Duration,
    /// The node's clock, in µs since 1970, if the node tells it.
    pub(in crate::lock) time: Option<u64>,
}

/// The marker, or what lies in its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::lock) enum MarkerFound {
    #[default]
    Nothing,
    Marker(Marker),
    /// A text that is no marker of Lockgate.
    Other,
}

impl SelfReport {
    /// Whether nothing lies where the marker would.
    pub(in crate::lock) fn is_bare(&self) -> bool {
        self.marker == MarkerFound::Nothing
    }

    /// Reads a report from the answers to INFO server and INFO replication.
    pub(in crate::lock) fn of_info(server: &[u8], replication: &[u8]) -> SelfReport {
        SelfReport {
            run_id: info_field(server, "run_id"),
            is_master: info_field(replication, "role").is_none_or(|role| role == "master"),
            replication_id: info_field(replication, "master_replid"),
            ..SelfReport::default()
        }
    }

    /// Returns the node's identity, if the node reports its `run_id`.
    pub(in crate::lock) fn identity(&self) -> Option<Identity> {
        let replication_id = self.replication_id.clone().unwrap_or_else(|| "?".into());
        let election = self.election;
        Some(Identity { run_id: self.run_id.clone()?, replication_id, election })
    }

    /// Adds the election by which the node is the master.
    pub(in crate::lock) fn of(self, there: &Location) -> SelfReport {
        SelfReport { election: there.election, ..self }
    }

    /// Returns the node's marker, if it has a readable one.
    pub(in crate::lock) fn marker(&self) -> Option<&Marker> {
        match &self.marker {
            MarkerFound::Marker(marker) => Some(marker),
            MarkerFound::Nothing | MarkerFound::Other => None,
        }
    }

    /// Returns the longest that a grant may last, as far as the node knows: the longest PX stored there, or the
    /// longest that some proxy may ask for.
    pub(in crate::lock) fn longest(&self) -> Duration {
        self.marker().map_or(self.max_ttl, |marker| self.max_ttl.max(marker.longest))
    }

    /// Reads the note of which node waits there, and since when.
    pub(in crate::lock) fn note(&self) -> Option<Note> {
        Note::parse(&self.note)
    }
}

pub(in crate::lock) async fn within_limit<T>(
    asking: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    timeout(CONNECT_LIMIT, asking).await.unwrap_or(Err(ConnectError::Silent))
}

/// Appends the commands with which every connection to a node begins. Returns their names.
///
/// # Errors
/// If the password stands in a file that cannot be read.
pub(in crate::lock) fn encode_greeting(
    out: &mut Vec<u8>,
    url: &RedisUrl,
) -> io::Result<Vec<&'static str>> {
    let mut asked = Vec::new();
    if let Some(password) = &url.password {
        let password = password.get()?;
        match &url.username {
            Some(user) => encode::command(out, &[b"AUTH", user.as_bytes(), password.as_bytes()]),
            None => encode::command(out, &[b"AUTH", password.as_bytes()]),
        }
        asked.push("AUTH");
    }
    encode::command(out, &[b"SELECT", url.db.to_string().as_bytes()]);
    asked.push("SELECT");
    Ok(asked)
}

pub(in crate::lock) async fn look_again(
    stream: &mut Stream,
    station: Station,
) -> Result<SelfReport, ConnectError> {
    let mut out = Vec::new();
    encode_look(&mut out, station);
    send(stream, &out).await?;
    read_look(stream, &mut Vec::new(), station).await
}

pub(in crate::lock) async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<(), ConnectError> {
    stream.write_all(bytes).await?;
    Ok(stream.flush().await?)
}

/// Finds where the marker of the node on a seat lies, or is to lie.
pub(in crate::lock) async fn find_station(
    stream: &mut Stream,
    address: &NodeAddress,
    place: &SeatPlace,
) -> Result<Station, ConnectError> {
    if address.cluster().is_none() {
        return Ok(Station::Plain);
    }
    let (mut out, mut received) = (Vec::new(), Vec::new());
    encode::command(&mut out, &[b"CLUSTER", b"NODES"]);
    encode::command(&mut out, &[b"INFO", b"server"]);
    send(stream, &out).await?;
    let map = read_text(stream, &mut received, "CLUSTER NODES").await?.unwrap_or_default();
    let info = read_text(stream, &mut received, "INFO").await?.unwrap_or_default();
    let nodes = cluster_node::read(&map).unwrap_or_default();
    let own = nodes.into_iter().find(|node| node.is_myself).map(|node| node.slots);
    let among = stations::among(&own.unwrap_or_default());
    let mut out = Vec::new();
    for key in among.iter().flat_map(|station| stations::keys(*station)) {
        encode::command(&mut out, &[b"GET", &key]);
    }
    send(stream, &out).await?;
    let mut all = Vec::with_capacity(among.len());
    for station in among {
        let mut is_moving = false;
        let mut text = async || {
            let told = read_text(stream, &mut received, "GET lockgate:deployment").await;
            match told {
                Err(ConnectError::Refused { error, .. }) if is_elsewhere(&error) => {
                    is_moving = true;
                    Ok(None)
                }
                told => told,
            }
        };
        let found = StationText {
            marker: text().await?,
            seats: text().await?,
            ballot: text().await?,
            note: text().await?,
        };
        if !is_moving {
            all.push((station, found));
        }
    }
    let run_id = info_field(info.as_bytes(), "run_id").unwrap_or_default();
    stations::choose(&all, &run_id, place).ok_or(ConnectError::NoStation)
}

/// Whether the error says that the key's slot belongs to another node of the cluster, or is moving there.
fn is_elsewhere(error: &str) -> bool {
    ["ASK ", "MOVED ", "TRYAGAIN"].iter().any(|code| error.starts_with(code))
}

/// Appends the commands whose answers [`read_look`] reads. TIME comes before the note that it is compared with: an
/// older time makes a wait longer, never shorter. The marker lies under several keys, so the ballots are read before
/// and after it: each marker that is written has a ballot of its own, so one that is written between these commands
/// is noticed.
pub(in crate::lock) fn encode_look(out: &mut Vec<u8>, station: Station) {
    encode::command(out, &[b"INFO", b"server"]);
    encode::command(out, &[b"INFO", b"replication"]);
    encode::command(out, &[b"TIME"]);
    for key in [BALLOT, MARKER, LONGEST, SEATS, NOTE, BALLOT, MAX_TTL] {
        encode::command(out, &[b"GET", &station.key(key)]);
    }
}

/// Reads the report, and asks again while a marker is written in between: parts of two markers could make up one that
/// no node has accepted.
pub(in crate::lock) async fn read_look(
    stream: &mut Stream,
    received: &mut Vec<u8>,
    station: Station,
) -> Result<SelfReport, ConnectError> {
    loop {
        match read_one_look(stream, received).await {
            Ok(Some(look)) => return Ok(SelfReport { station, ..look }),
            Ok(None) => {}
            Err(ConnectError::Refused { error, .. })
                if station == Station::Plain && is_elsewhere(&error) =>
            {
                let fault = Fault::Cluster;
                return Err(ConnectError::Unfit(fault, fault.meaning().into()));
            }
            Err(error) => return Err(error),
        }
        let mut out = Vec::new();
        encode_look(&mut out, station);
        send(stream, &out).await?;
    }
}

/// Reads one report. Returns `None` if a marker was written in between.
async fn read_one_look(
    stream: &mut Stream,
    received: &mut Vec<u8>,
) -> Result<Option<SelfReport>, ConnectError> {
    let info = |reply| match reply {
        OwnedFrame::BulkString(info) => info,
        // An ACL may refuse INFO.
        _ => Vec::new(),
    };
    let server = info(read_reply(stream, received).await?);
    let mut look = SelfReport::of_info(&server, &info(read_reply(stream, received).await?));
    // An ACL may refuse TIME.
    if let OwnedFrame::Array(words) = read_reply(stream, received).await? {
        look.time = micros(&words);
    }
    let ballots = read_text(stream, received, "GET lockgate:ballot").await?;
    let first = read_text(stream, received, "GET lockgate:deployment").await?;
    let longest = read_text(stream, received, "GET lockgate:longest").await?;
    let seats = read_text(stream, received, "GET lockgate:seats").await?;
    if let Some(text) = text_of(first.as_deref(), longest.as_deref(), seats.as_deref()) {
        look.marker = Marker::parse(&text).map_or(MarkerFound::Other, MarkerFound::Marker);
    }
    look.note = read_text(stream, received, "GET lockgate:since").await?.unwrap_or_default();
    let is_whole = read_text(stream, received, "GET lockgate:ballot").await? == ballots;
    if let Some((promised, accepted)) = ballots.as_deref().and_then(|two| two.split_once(' ')) {
        (look.promised, look.accepted) = (promised.into(), accepted.into());
    }
    // An ACL may refuse this key: then the value comes from other nodes and proxies.
    if let OwnedFrame::BulkString(text) = read_reply(stream, received).await? {
        let millis = String::from_utf8_lossy(&text).parse().unwrap_or_default();
        look.max_ttl = Duration::from_millis(millis);
    }
    Ok(is_whole.then_some(look))
}

async fn read_text(
    stream: &mut Stream,
    received: &mut Vec<u8>,
    command: &'static str,
) -> Result<Option<String>, ConnectError> {
    match read_reply(stream, received).await? {
        OwnedFrame::BulkString(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        OwnedFrame::Error(error) => Err(ConnectError::Refused { command, error }),
        _ => Ok(None),
    }
}

fn micros(words: &[OwnedFrame]) -> Option<u64> {
    let number = |frame: &OwnedFrame| match frame {
        OwnedFrame::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = words else { return None };
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

/// Returns the value of one field of INFO.
fn info_field(info: &[u8], name: &str) -> Option<String> {
    String::from_utf8_lossy(info)
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
        .filter(|value| !value.is_empty())
}

pub(in crate::lock) async fn read_reply(
    stream: &mut Stream,
    received: &mut Vec<u8>,
) -> Result<OwnedFrame, ConnectError> {
    loop {
        if let Some((frame, length)) = node_reply::read(received)? {
            received.drain(..length);
            return Ok(frame);
        }
        if stream.read_buf(received).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the node").into());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::{
        config::Endpoint,
        net::{self, Connector, memory_stream::set_network},
    };
    use tokio::io::duplex;

    /// Encodes the answers of a node that has this marker, with the ballots before and after it.
    fn answer(before: &str, epoch: u64, behind: &str) -> Vec<u8> {
        let mut out = Vec::new();
        encode::bulk(&mut out, b"run_id:r\r\n");
        encode::bulk(&mut out, b"role:master\r\nmaster_replid:r\r\n");
        out.extend_from_slice(b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n");
        let marker = format!("d {epoch} 0/1 lock:");
        for text in [before, &marker, "1000", "+r.r", "", behind, "20000"] {
            encode::bulk(&mut out, text.as_bytes());
        }
        out
    }

    #[tokio::test]
    async fn a_marker_that_is_written_meanwhile_is_read_again() {
        let (here, mut node) = duplex(4096);
        let here = std::cell::RefCell::new(Some(here));
        set_network(Some(Box::new(move |_| Ok(here.take().unwrap()))));
        let host = "simulated-look".to_owned();
        let url = RedisUrl { endpoint: Endpoint::Tcp { host, port: 1 }, ..RedisUrl::local(1) };
        let connector = Connector::start("node", &Default::default(), &[]);
        let connected = net::connect(&url, &connector, CONNECT_LIMIT, CONNECT_LIMIT).await;
        set_network(None);
        let mut stream = connected.unwrap();
        let answers = [answer("1 1", 1, "2 2"), answer("2 2", 2, "2 2")];
        node.write_all(&answers.concat()).await.unwrap();
        let mut received = Vec::new();
        let look = read_look(&mut stream, &mut received, Station::Plain).await.unwrap();
        assert_eq!((look.promised.as_str(), look.accepted.as_str()), ("2", "2"));
        assert_eq!(look.longest(), Duration::from_secs(20), "what may be stored, not what was");
        assert!(received.is_empty(), "both answers were read");
    }
}
