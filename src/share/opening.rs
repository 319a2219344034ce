//! The life of a link: it is opened, moves bytes, and ends.

use std::{
    future::{pending, poll_fn},
    io,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{
    greeter::{self, assume, check_let_in, exchange},
    greeting::ClientStanding,
    shared_link::{LinkPump, SharedLink},
    sharing::{Connecting, Sharing},
};
use crate::net::Stream;

/// How long a link may be unused before it is closed.
const UNUSED: Duration = Duration::from_secs(60);
const CLIENT_ID: &[u8] = b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n";

/// Opens a link for clients of this standing, and keeps it until it ends or is not used.
pub(super) async fn run(
    link: Arc<SharedLink>,
    sharing: &Arc<Sharing>,
    standing: &ClientStanding,
    connecting: Connecting,
) {
    // A data node that does not answer in time is tried again: it may be busy, and clients wait.
    let opened = loop {
        let opening = open(&link, sharing, standing, connecting);
        match timeout(connecting.limit, opening).await {
            Ok(opened) => break opened,
            Err(late) if !link.is_awaited() => break Err(late.into()),
            Err(_) => {}
        }
    };
    let words = match opened {
        Ok(opened) => {
            link.opened();
            serve(&link, sharing, opened).await;
            Vec::new()
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            format!("{error}\r\n").into_bytes()
        }
        Err(_) => Vec::new(),
    };
    link.end(&words);
}

/// Connects, and brings the connection into the clients' state. Returns what the data node knows it by, too, where it
/// says so and that is needed.
///
/// # Errors
/// The network's. With [`io::ErrorKind::PermissionDenied`] it is an error line of the data node, for the clients.
async fn open(
    link: &SharedLink,
    sharing: &Sharing,
    standing: &ClientStanding,
    connecting: Connecting,
) -> io::Result<(Stream, Option<u64>)> {
    let connected = greeter::connect(sharing, connecting).await?;
    if !link.is_of(connected.tenure.as_ref()) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let mut stream = connected.stream;
    assume(&mut stream, &standing.identity()).await?;
    assume(&mut stream, &standing.place()).await?;
    // An unwanted connection is told so unasked: whoever sends a command first must not take that for its reply.
    check_let_in(&mut stream).await?;
    // Only with guards a link stays whose client has left amid a command that blocks.
    let id = match sharing.is_strict {
        true => number(&exchange(&mut stream, CLIENT_ID).await?),
        false => None,
    };
    Ok((stream, id))
}

/// Returns the number in a reply. `None` if it is an error.
fn number(reply: &[u8]) -> Option<u64> {
    let digits = reply.strip_prefix(b":")?.trim_ascii_end();
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Moves the link's bytes until it ends, is not used, or leads to a Redis that is no longer the data node.
async fn serve(link: &Arc<SharedLink>, sharing: &Arc<Sharing>, opened: (Stream, Option<u64>)) {
    let mut pump = LinkPump::new(link.clone(), sharing.clone(), opened);
    let mut look = interval(UNUSED / 2);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut moved = pin!(async {
        match link.tenure() {
            Some(tenure) => tenure.ended().await,
            None => pending().await,
        }
    });
    loop {
        tokio::select! {
            biased;
            by_data_node = poll_fn(|cx| pump.poll(cx)) => {
                sharing.metrics.link_ends.increment(by_data_node.into());
                return;
            }
            () = &mut moved => return,
            _ = look.tick() => {
                if link.is_idle(UNUSED) {
                    return;
                }
            }
        }
    }
}
