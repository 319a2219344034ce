//! Asks one proxy again and again at its admin address, over HTTP. A proxy that does not answer, or never ends its
//! answer, neither delays the others nor takes more memory than the bound here.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use super::{
    documents::Round,
    plain::PlainText,
    wanted::{MOST_LISTED, WantedLists},
};
use crate::{
    net::http_client::{self, HttpAnswer},
    report::{
        ErrorDocument,
        lists::{ClientList, HotList, LockList},
    },
};

/// How long all documents of one round may take together.
const ROUND_LIMIT: Duration = Duration::from_secs(3);
/// The longest answer accepted, in bytes. The longest that a proxy gives has 1,000 clients and 1 MB of keys, each
/// byte of which may take 6 in JSON and 2 more in hexadecimal.
const LONGEST_ANSWER: u64 = 12 * 1024 * 1024;

/// The place of a proxy, and what was heard from it.
pub(super) type HeardRound = (usize, Result<Round, PlainText>);

/// Asks the proxy at `address` at intervals of `every`, and at once when something else is wanted. Ends when the
/// receiver of `told` or the sender of `wanted` is gone.
pub(super) async fn keep_asking(
    (place, address): (usize, String),
    every: Duration,
    mut wanted: watch::Receiver<WantedLists>,
    told: mpsc::Sender<HeardRound>,
) {
    loop {
        let wants = wanted.borrow_and_update().clone();
        if !wants.paused && told.send((place, ask(&address, &wants).await)).await.is_err() {
            return;
        }
        let changed = tokio::select! {
            changed = wanted.changed() => changed,
            () = sleep(every), if !wants.paused => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Asks the proxy at `address` once.
///
/// # Errors
/// Why its status could not be had.
pub(super) async fn ask(address: &str, wanted: &WantedLists) -> Result<Round, PlainText> {
    match timeout(ROUND_LIMIT, documents(address, wanted)).await {
        Ok(round) => round,
        Err(_) => Err(PlainText::of(&format!("no answer within {ROUND_LIMIT:?}"))),
    }
}

async fn documents(address: &str, wanted: &WantedLists) -> Result<Round, PlainText> {
    let status = get(address, "/api/status").await?;
    let mut round = Round { status, ..Round::default() };
    for path in wanted.lists() {
        let added = match path.starts_with("/api/hot") {
            true => get::<HotList<_>>(address, &path).await.map(|list| {
                round.add_hot(list.hot);
                list.families
            }),
            false => get::<LockList<_>>(address, &path).await.map(|list| {
                round.add(list.locks);
                list.families
            }),
        };
        match added {
            Ok(families) => round.families.extend(families),
            Err(complaint) => round.complaint = Some(complaint),
        }
    }
    if let Some(name) = &wanted.open {
        let path = format!("/api/clients?count={MOST_LISTED}");
        match get::<ClientList<_>>(address, &path).await {
            Ok(list) => round.keep_line(list.clients, name),
            Err(complaint) => round.complaint = Some(complaint),
        }
    }
    Ok(round)
}

/// Asks for one document.
///
/// # Errors
/// Why the document could not be had, in words for people.
async fn get<T: DeserializeOwned>(address: &str, path: &str) -> Result<T, PlainText> {
    let answer = http_client::get(address, address, path, LONGEST_ANSWER).await;
    let HttpAnswer { status, body } = answer.map_err(|error| PlainText::of(&error.to_string()))?;
    if status == 200 {
        let document = serde_json::from_slice(&body);
        return document.map_err(|error| {
            let path = path.split('?').next().unwrap_or_default();
            PlainText::of(&format!("{path} is not what Lockgate tells there: {error}"))
        });
    }
    let reason =
        serde_json::from_slice(&body).map(|ErrorDocument::<PlainText> { error }| error.to_string());
    let reason = reason.unwrap_or_else(|_| format!("no {path} there"));
    Err(PlainText::of(&format!("HTTP {status}: {reason}")))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Starts a server that sends `head` on each connection, then blanks without end if it is `endless`. Returns
    /// its address.
    async fn server(head: &'static [u8], endless: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(head).await;
                while endless && stream.write_all(&[b' '; 65536]).await.is_ok() {}
            }
        });
        address
    }

    #[tokio::test]
    async fn what_a_stranger_answers_is_bounded_and_plain() {
        let reason = async |head, endless| {
            let address = server(head, endless).await;
            ask(&address, &WantedLists::default()).await.unwrap_err().to_string()
        };
        let endless = reason(b"HTTP/1.0 200 OK\r\n\r\n", true).await;
        assert!(endless.starts_with("its answer is longer than"), "{endless}");
        assert_eq!(reason(b"+PONG\r\n", false).await, "its answer is no HTTP");
        let refused = b"HTTP/1.0 421 Misdirected\r\n\r\n{\"error\": \"\\u001b[2J\"}";
        assert!(!reason(refused, false).await.contains('\x1b'));
        let other = reason(b"HTTP/1.0 200 OK\r\n\r\n{}", false).await;
        assert!(other.starts_with("/api/status is not what Lockgate tells there"), "{other}");
        assert_eq!(
            reason(b"HTTP/1.0 404 Not\r\n\r\n", false).await,
            "HTTP 404: no /api/status there"
        );
    }
}
