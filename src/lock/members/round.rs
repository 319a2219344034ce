//! Asks all nodes at once, and writes a marker on a quorum of them, over connections opened for that purpose.
//!
//! A round is one of Paxos, with compare-and-set: a promise from a quorum, then the marker. A node promises and
//! accepts only while its marker is the one that the proxy read there.

use std::{sync::Arc, time::Duration};

use redis_protocol::resp2::types::OwnedFrame;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

use super::{
    marker::{BALLOT, Deployment, LONGEST, MARKER, NOTE, SEATS},
    seats::{Accepted, Plan},
    self_report::{
        CONNECT_LIMIT, ConnectError, MarkerFound, SelfReport, encode_greeting, encode_look,
        find_station, look_again, read_look, read_reply, send, within_limit,
    },
};
use crate::{
    lock::{address::NodeAddress, jitter, scripts::MAX_TTL, stations::Station, voters::SeatPlace},
    net::{self, Connector, Stream},
    resp::{encode, flat},
};

/// A round that takes longer does not count: by then a node may have lost its promise and waited long enough to be
/// asked again.
const LIMIT: Duration = Duration::from_secs(1);
/// The longest idle time of a peer.
const KEEPALIVE: Duration = Duration::from_secs(3);

const PROMISE: &str = include_str!("../scripts/promise.lua");
const ACCEPT: &str = include_str!("../scripts/accept.lua");
const WRITE_NOTE: &str = include_str!("../scripts/since.lua");

/// How to connect to one node.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) address: Arc<NodeAddress>,
    pub(super) connector: Connector,
    pub(super) seat: SeatPlace,
}

/// A node that has answered, and the connection for its next step.
pub(super) struct Answered {
    stream: Stream,
    pub(super) look: SelfReport,
}

impl Way {
    pub(super) async fn ask(&self) -> Result<Answered, ConnectError> {
        let there = self.address.now()?;
        // Its Sentinels may have elected another master, and a proxy that knows of it gives that one the seat.
        if !self.address.is_confirmed(&there) {
            return Err(ConnectError::Elsewhere);
        }
        let url = &there.url;
        let mut stream = net::connect(url, &self.connector, CONNECT_LIMIT, KEEPALIVE).await?;
        let mut out = Vec::new();
        let asked = encode_greeting(&mut out, url)?;
        let is_plain = self.address.cluster().is_none();
        if is_plain {
            encode_look(&mut out, Station::Plain);
        }
        let asking = async {
            send(&mut stream, &out).await?;
            let mut received = Vec::new();
            for command in asked {
                if let OwnedFrame::Error(error) = read_reply(&mut stream, &mut received).await? {
                    return Err(ConnectError::Refused { command, error });
                }
            }
            if is_plain {
                return read_look(&mut stream, &mut received, Station::Plain).await;
            }
            let station = find_station(&mut stream, &self.address, &self.seat).await?;
            look_again(&mut stream, station).await
        };
        let look = within_limit(asking).await?.of(&there);
        Ok(Answered { stream, look })
    }
}

/// Asks all nodes. Returns once all have answered, the answers so far are `enough`, or [`LIMIT`] has passed.
pub(super) async fn ask_all(
    ways: &[Way],
    enough: impl Fn(&[Option<SelfReport>]) -> bool,
) -> Vec<Result<Answered, ConnectError>> {
    ask_for(ways, |_| LIMIT, enough).await
}

/// Asks as [`ask_all`] does, but waits for the node on each seat only as long as `patience` says.
pub(super) async fn ask_for(
    ways: &[Way],
    patience: impl Fn(usize) -> Duration,
    enough: impl Fn(&[Option<SelfReport>]) -> bool,
) -> Vec<Result<Answered, ConnectError>> {
    let mut asking = JoinSet::new();
    for (seat, way) in ways.iter().cloned().enumerate() {
        let patience = patience(seat);
        asking.spawn(async move {
            let asked = timeout(patience, way.ask()).await;
            (seat, asked.unwrap_or(Err(ConnectError::Silent)))
        });
    }
    let mut all: Vec<Result<Answered, ConnectError>> =
        ways.iter().map(|_| Err(ConnectError::Silent)).collect();
    // The answers count together, so they must come from about the same time.
    let deadline = Instant::now() + LIMIT;
    while let Ok(Some(Ok((seat, asked)))) = timeout_at(deadline, asking.join_next()).await {
        all[seat] = asked;
        if enough(&looks(&all)) {
            break;
        }
    }
    all
}

/// Returns the reports of the nodes that have answered.
pub(super) fn looks(all: &[Result<Answered, ConnectError>]) -> Vec<Option<SelfReport>> {
    all.iter().map(|asked| asked.as_ref().ok().map(|asked| asked.look.clone())).collect()
}

/// A node's answer to a step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Said {
    Yes,
    /// The node's marker has changed since it was read, or the node cannot be asked.
    Changed,
    /// The node has promised a larger ballot.
    Later,
}

/// A marker to write on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct MarkerWrite {
    pub(super) accepted: Accepted,
    pub(super) seat: usize,
    pub(super) longest: Duration,
    /// Whether this write admits the node after its wait; it succeeds only while the node's note is there.
    pub(super) is_admitted: bool,
    /// Whether the node waits from this write on.
    pub(super) joins: bool,
    /// The key of the note that admits the node.
    pub(super) note: &'static [u8],
}

/// Carries out a plan. `are_enough` says whether seats are those of a quorum. Returns the deployment once a quorum
/// has accepted it, and `None` otherwise: the next proxy that asks finds what was written.
pub(super) async fn carry_out(
    all: Vec<Result<Answered, ConnectError>>,
    plan: &Plan,
    promised: &str,
    longest: Duration,
    are_enough: impl Fn(&[usize]) -> bool,
) -> Option<Accepted> {
    carry_out_by(NOTE, all, plan, promised, longest, are_enough).await
}

/// Carries out a plan as [`carry_out`] does, with another key for the note by which nodes are admitted.
pub(super) async fn carry_out_by(
    note: &'static [u8],
    mut all: Vec<Result<Answered, ConnectError>>,
    plan: &Plan,
    promised: &str,
    longest: Duration,
    are_enough: impl Fn(&[usize]) -> bool,
) -> Option<Accepted> {
    debug_assert_eq!(plan.next.seats.len(), all.len(), "each lock node has a seat");
    debug_assert!(are_enough(&plan.acceptors), "a quorum may accept");
    debug_assert!(
        plan.admitted.iter().all(|seat| plan.acceptors.contains(seat)),
        "who is admitted accepts it"
    );
    debug_assert!(
        plan.joining.iter().all(|seat| !plan.acceptors.contains(seat)),
        "who waits from now on does not decide on it"
    );
    let begun = Instant::now();
    let accepted = Accepted { ballot: next_ballot(promised), deployment: plan.next.clone() };
    let write = |seat: usize| MarkerWrite {
        accepted: accepted.clone(),
        seat,
        longest,
        is_admitted: plan.admitted.contains(&seat),
        joins: plan.joining.contains(&seat),
        note,
    };
    let promises = step(&mut all, &plan.acceptors, PROMISE, write).await;
    if !are_enough(&promises) || plan.admitted.iter().any(|seat| !promises.contains(seat)) {
        return None;
    }
    // A node that is also of the set before loses, by beginning in the next set, the marker which says that the set
    // before was left, and under which seal. Such nodes come last, and only where they complete a quorum: until the
    // next set has begun, a coordinator that takes over finds the seal on one of them.
    let is_of_set_before = |seat: &usize| {
        let look = all[*seat].as_ref().ok().map(|answered| &answered.look);
        let marker = look.and_then(SelfReport::marker);
        marker.is_some_and(|it| {
            it.deployment.id == plan.next.id && it.deployment.set + 1 == plan.next.set
        })
    };
    let (last, first): (Vec<usize>, Vec<usize>) =
        plan.admitted.iter().copied().partition(is_of_set_before);
    let mut done = step(&mut all, &first, ACCEPT, write).await;
    if done.len() < first.len() {
        return None;
    }
    let rest: Vec<usize> =
        promises.into_iter().filter(|seat| !plan.admitted.contains(seat)).collect();
    done.extend(step(&mut all, &rest, ACCEPT, write).await);
    if !are_enough(&[&done[..], &last].concat()) {
        return None;
    }
    done.extend(step(&mut all, &last, ACCEPT, write).await);
    if !are_enough(&done) || begun.elapsed() >= LIMIT {
        return None;
    }
    // From here on, no quorum votes with the earlier node of a seat on which a new node waits: the wait begins.
    step(&mut all, &plan.joining, ACCEPT, write).await;
    Some(accepted)
}

/// Sends one step to these nodes at once. Returns those that say yes.
async fn step(
    all: &mut [Result<Answered, ConnectError>],
    seats: &[usize],
    script: &'static str,
    write: impl Fn(usize) -> MarkerWrite,
) -> Vec<usize> {
    let mut asking = JoinSet::new();
    for seat in seats.iter().copied() {
        let taken = std::mem::replace(&mut all[seat], Err(ConnectError::Unused));
        let (Ok(mut asked), write) = (taken, write(seat)) else { continue };
        asking.spawn(async move {
            let said = run(&mut asked.stream, script, &asked.look, &write).await;
            // The next step uses the same connection.
            (seat, said, asked)
        });
    }
    let mut yes = Vec::new();
    while let Some(joined) = asking.join_next().await {
        let Ok((seat, said, asked)) = joined else { continue };
        if matches!(said, Ok(Said::Yes)) {
            yes.push(seat);
        }
        all[seat] = Ok(asked);
    }
    yes
}

/// Writes the newest marker on a node that has kept its memory but missed that epoch.
pub(in crate::lock) async fn catch_up(
    stream: &mut Stream,
    look: &SelfReport,
    write: &MarkerWrite,
) -> Result<Said, ConnectError> {
    run(stream, ACCEPT, look, write).await
}

/// Notes on a waiting node how long grants may last. If `epoch` is given, also notes that the node waits in it, and
/// since when.
pub(in crate::lock) async fn write_note(
    stream: &mut Stream,
    look: &SelfReport,
    epoch: Option<u64>,
    longest: Duration,
) -> Result<(), ConnectError> {
    let Some(who) = look.identity() else { return Ok(()) };
    let words = epoch.map_or_else(String::new, |epoch| format!("{} {epoch}", who.text()));
    let (mut out, longest) = (Vec::new(), longest.as_millis().to_string());
    let digest = load(&mut out, WRITE_NOTE);
    let keys = [NOTE, MAX_TTL].map(|name| look.station.key(name));
    let arguments: [&[u8]; 8] = [
        b"EVALSHA",
        digest.as_bytes(),
        b"2",
        &keys[0],
        &keys[1],
        look.note.as_bytes(),
        words.as_bytes(),
        longest.as_bytes(),
    ];
    encode::command(&mut out, &arguments);
    within_limit(async {
        send(stream, &out).await?;
        match read_answer(stream).await? {
            OwnedFrame::Error(error) => {
                Err(ConnectError::Refused { command: "SET lockgate:since", error })
            }
            _ => Ok(()),
        }
    })
    .await
}

async fn run(
    stream: &mut Stream,
    script: &str,
    look: &SelfReport,
    write: &MarkerWrite,
) -> Result<Said, ConnectError> {
    let seen: Option<(&Deployment, usize)> =
        look.marker().map(|marker| (&marker.deployment, marker.seat));
    if look.marker == MarkerFound::Other {
        return Ok(Said::Changed);
    }
    let (first, seats) = seen.map_or((String::new(), String::new()), |(deployment, seat)| {
        (deployment.told(seat), deployment.seats_text())
    });
    let next = &write.accepted.deployment;
    let note = if write.is_admitted { look.note.as_str() } else { "" };
    let longest = write.longest.as_millis().to_string();
    let mut out = Vec::new();
    let (told, sitting) = (next.told(write.seat), next.seats_text());
    let joining = match look.identity().filter(|_| write.joins) {
        Some(who) => format!("{} {}", who.text(), next.epoch),
        None => String::new(),
    };
    let digest = load(&mut out, script);
    let keys = [MARKER, BALLOT, write.note, SEATS, LONGEST].map(|name| look.station.key(name));
    let words: [&[u8]; 16] = [
        b"EVALSHA",
        digest.as_bytes(),
        b"5",
        &keys[0],
        &keys[1],
        &keys[2],
        &keys[3],
        &keys[4],
        write.accepted.ballot.as_bytes(),
        first.as_bytes(),
        seats.as_bytes(),
        note.as_bytes(),
        told.as_bytes(),
        longest.as_bytes(),
        sitting.as_bytes(),
        joining.as_bytes(),
    ];
    encode::command(&mut out, &words);
    within_limit(async {
        send(stream, &out).await?;
        match read_answer(stream).await? {
            OwnedFrame::Array(said) => Ok(match said.as_slice() {
                [OwnedFrame::Integer(1)] => Said::Yes,
                [OwnedFrame::Integer(2)] => Said::Later,
                _ => Said::Changed,
            }),
            OwnedFrame::Error(error) => {
                Err(ConnectError::Refused { command: "SET lockgate:deployment", error })
            }
            _ => Err(flat::Garbage.into()),
        }
    })
    .await
}

/// Appends the command that loads a script, and returns the digest to call it by: an ACL that allows votes allows
/// this too.
fn load(out: &mut Vec<u8>, script: &str) -> String {
    encode::command(out, &[b"SCRIPT", b"LOAD", script.as_bytes()]);
    sha1_smol::Sha1::from(script).digest().to_string()
}

/// Reads the script's answer, which follows the answer to SCRIPT LOAD.
async fn read_answer(stream: &mut Stream) -> Result<OwnedFrame, ConnectError> {
    let mut received = Vec::new();
    match read_reply(stream, &mut received).await? {
        OwnedFrame::Error(error) => Err(ConnectError::Refused { command: "SCRIPT LOAD", error }),
        _ => read_reply(stream, &mut received).await,
    }
}

/// Makes a ballot that is larger than `promised`, and unique.
fn next_ballot(promised: &str) -> String {
    // The number has a fixed length, so that ballots sort as text.
    let round: u64 = promised.get(..10).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    format!("{:010}{:020}", round + 1, jitter::number())
}
