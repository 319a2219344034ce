//! Opens a connection to a lock node, behind bb8's interface.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use redis_protocol::resp2::types::OwnedFrame;
use tokio::time::sleep;

use super::{
    link::Link,
    node::Node,
    pipeline::{self, NodeSide},
};
use crate::{
    clock::Instant,
    config::RedisUrl,
    lock::{
        location::Location,
        members::{
            fault::Fault,
            membership::Judgement,
            round::{catch_up, write_note},
            self_report::{
                CONNECT_LIMIT, ConnectError, SelfReport, encode_greeting, encode_look,
                find_station, look_again, read_look, read_reply, send, within_limit,
            },
        },
        operation::Absence,
        scripts,
        stations::Station,
    },
    net::{self, Stream},
    resp::{encode, flat},
};

/// The pause between two looks at a node that may not vote yet.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The pause between the first few looks, which are not logged.
const LOOK_SOON: Duration = Duration::from_millis(20);
const FIRST_LOOKS: usize = 10;
/// The number of looks at a waiting node after which the proxy searches anew for the place of its marker.
const FIND_EVERY: usize = 8;

/// The maker of [`Link`]s to one node.
pub(super) struct LinkManager {
    pub(super) node: Weak<Node>,
}

impl ManageConnection for LinkManager {
    type Connection = Link;
    type Error = ConnectError;

    async fn connect(&self) -> Result<Link, ConnectError> {
        let node = self.node.upgrade().ok_or(ConnectError::Unused)?;
        let there = node.address.now()?;
        let url = &there.url;
        node.leads_to(there.clone());
        let mut stream = net::connect(url, &node.connector, CONNECT_LIMIT, node.keepalive).await?;
        let sent = Instant::now();
        let mut greeting = within_limit(greet(&mut stream, url, &node)).await?;
        greeting.look = greeting.look.of(&there);
        let station = greeting.look.station;
        *node.standing.station.lock() = station;
        node.saw_look(sent, &greeting.look);
        let run_id = greeting.look.run_id.clone();
        let (weak, address) = (Arc::downgrade(&node), node.address.clone());
        drop(node);
        let admitting = async {
            tokio::select! {
                admitted = admit(&weak, &mut stream, greeting.look, &there) => admitted,
                // The proxy gives up a waiting node once another is the master.
                () = address.left(&there) => Err(ConnectError::Elsewhere),
            }
        };
        let (node, generation) = match admitting.await {
            Ok(admitted) => admitted,
            Err(error) => {
                if let Some(node) = weak.upgrade() {
                    node.members.left(node.index, false);
                }
                return Err(error);
            }
        };
        let side = side_of(&node, station);
        let link = pipeline::start(stream, side, greeting.client_id, run_id, move |leftover| {
            if let Some(node) = weak.upgrade() {
                node.connection_ended(leftover);
            }
        });
        if node.members.generation() != generation {
            link.end();
        }
        Ok(link)
    }

    async fn is_valid(&self, link: &mut Link) -> Result<(), ConnectError> {
        if link.is_closed() { Err(ConnectError::Unused) } else { Ok(()) }
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.is_closed()
    }
}

/// Makes what the connection knows of its node, and tells it.
fn side_of(node: &Arc<Node>, station: Station) -> NodeSide {
    let weak = Arc::downgrade(node);
    let (failing, watching, moving) = (weak.clone(), weak.clone(), weak.clone());
    NodeSide {
        node: node.voter,
        station,
        silence: node.silence,
        metrics: node.metrics.clone(),
        standing: node.standing.clone(),
        drift_factor: node.drift_factor,
        dialect: node.dialect,
        may_lack: Box::new(move |key| match weak.upgrade() {
            Some(node) => node.may_lack(key),
            None => Some(Absence::Down),
        }),
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
        on_moved: Box::new(move |operation| {
            if let Some(node) = moving.upgrade() {
                node.answered_elsewhere(operation);
            }
        }),
    }
}

/// Waits until the node may vote.
async fn admit(
    weak: &Weak<Node>,
    stream: &mut Stream,
    mut look: SelfReport,
    there: &Location,
) -> Result<(Arc<Node>, u64), ConnectError> {
    for looks in 1.. {
        let node = weak.upgrade().ok_or(ConnectError::Unused)?;
        let mut pause = if looks < FIRST_LOOKS { LOOK_SOON } else { LOOK_EVERY };
        if look.is_master {
            node.is_no_replica();
        }
        match node.members.judge(node.index, &look) {
            Judgement::Admitted(generation) => {
                return Ok((node, generation));
            }
            Judgement::Refused(fault, why) => return Err(ConnectError::Unfit(fault, why)),
            Judgement::Ask => {
                node.members.ask().await;
                // The result is wanted at once: locks may wait for the node.
                pause = Duration::ZERO;
            }
            Judgement::Behind(write) => {
                catch_up(stream, &look, &write).await?;
                pause = LOOK_SOON;
            }
            Judgement::Note(epoch) => {
                note_waiting(&node, stream, &look, Some(epoch)).await?;
                pause = LOOK_SOON;
            }
            // A proxy that has just started merely waits for the other nodes to answer, which is no news.
            Judgement::Waits(wait) if looks < FIRST_LOOKS && wait.until.is_none() => {}
            Judgement::Waits(wait) => {
                note_waiting(&node, stream, &look, None).await?;
                node.mark_down(wait.why, wait.until, Some(Fault::Quarantined));
            }
        }
        drop(node);
        if !pause.is_zero() {
            sleep(pause).await;
        }
        if looks % FIND_EVERY == 0 {
            // If slots have come meanwhile, another proxy may have noted the wait, or begun a round, in one of them.
            let node = weak.upgrade().ok_or(ConnectError::Unused)?;
            let place = node.members.place(node.index);
            let station = within_limit(find_station(stream, &node.address, place)).await?;
            if station != look.station {
                return Err(ConnectError::OtherStation);
            }
        }
        let sent = Instant::now();
        look = within_limit(look_again(stream, look.station)).await?.of(there);
        weak.upgrade().ok_or(ConnectError::Unused)?.saw_look(sent, &look);
    }
    Err(ConnectError::Unused)
}

/// Notes on a node since when it waits, if `epoch` is given, and how long grants may last, if the node knows only of
/// shorter ones: the proxy that meets it next may know only of shorter ones, too.
async fn note_waiting(
    node: &Node,
    stream: &mut Stream,
    look: &SelfReport,
    epoch: Option<u64>,
) -> Result<(), ConnectError> {
    let longest = node.members.longest().get();
    if epoch.is_none() && look.max_ttl >= longest {
        return Ok(());
    }
    write_note(stream, look, epoch, longest).await
}

/// A node's answers to the handshake.
struct Greeting {
    client_id: Option<i64>,
    look: SelfReport,
}

/// Authenticates, selects the database and loads the scripts, all in one round trip, and reads the node's report.
async fn greet(stream: &mut Stream, url: &RedisUrl, node: &Node) -> Result<Greeting, ConnectError> {
    let mut out = Vec::new();
    let mut asked = encode_greeting(&mut out, url)?;
    scripts::load(node.dialect, &mut out);
    asked.extend(["SCRIPT LOAD"; scripts::LOADS]);
    // The next two commands help but are not needed; an ACL may refuse them.
    encode::command(&mut out, &[b"CLIENT", b"SETNAME", b"lockgate"]);
    encode::command(&mut out, &[b"CLIENT", b"ID"]);
    let is_plain = node.address.cluster().is_none();
    if is_plain {
        encode_look(&mut out, Station::Plain);
    }
    send(stream, &out).await?;

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
    if !is_plain {
        let place = node.members.place(node.index);
        let station = find_station(stream, &node.address, place).await?;
        let look = look_again(stream, station).await?;
        return Ok(Greeting { client_id, look });
    }
    let look = read_look(stream, &mut received, Station::Plain).await?;
    if !received.is_empty() {
        return Err(flat::Garbage.into());
    }
    Ok(Greeting { client_id, look })
}
