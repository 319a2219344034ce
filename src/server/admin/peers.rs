//! `/api/proxies`: how this proxy and its peers (`admin.peers`) are, a row for each.
//!
//! Peers are asked for `/api/status` only while an operator asks here, and each at most once in [`EVERY`] for all
//! askers together. Nothing that a peer says is relied on; it is only shown. Its answer is bounded in time and size,
//! and so is what is kept of it.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinSet, spawn_blocking},
    time::timeout,
};

use crate::{
    clock::millis,
    config::PeerUrl,
    net::http_client::{self, HttpAnswer},
    report::{ErrorDocument, document::StatusDocument},
    sync::Mutex,
};

/// The least time between two requests to one peer.
const EVERY: Duration = Duration::from_secs(2);
/// How long a peer may take from its name to the end of its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The longest answer, in bytes. That of a proxy has about 2 kB, 200 bytes for each lock node, and 100 for
/// each rule.
const LONGEST_ANSWER: u64 = 256 * 1024;
/// Most lines that are kept of what is not well with a peer.
const MOST_PROBLEMS: usize = 8;
/// The longest text that is kept of a peer, in characters.
const LONGEST_TEXT: usize = 256;

/// The other proxies of `admin.peers`.
pub(super) struct Peers {
    all: Arc<[Peer]>,
    begun: Mutex<BegunRound>,
    /// The number of the last round that has ended.
    ended: watch::Sender<u64>,
}

/// When the peers were asked last, and how often so far.
#[derive(Default)]
struct BegunRound {
    at: Option<Instant>,
    number: u64,
}

/// One of the other proxies.
pub(super) struct Peer {
    url: PeerUrl,
    /// Allows one look-up of its name at a time: a look-up cannot be given up.
    looking_up: Arc<Semaphore>,
    heard: Mutex<HeardPeer>,
}

/// What was heard of a peer.
#[derive(Debug, Clone, Default)]
struct HeardPeer {
    /// Its last answer.
    last: Option<(Instant, PeerStatus)>,
    /// Since when it has not answered, and why.
    silent: Option<(Instant, String)>,
}

/// `/api/proxies`.
#[derive(Debug, Serialize)]
pub(super) struct ProxyList {
    every_ms: u64,
    /// This one first, then the others in the order of the configuration.
    proxies: Vec<ProxyRow>,
}

#[derive(Debug, Serialize)]
struct ProxyRow {
    /// Its admin address as this proxy knows it.
    url: Option<String>,
    /// Whether it is the proxy that tells this.
    here: bool,
    answers: bool,
    /// Why it does not answer.
    error: Option<String>,
    /// How long it has not answered.
    silent_ms: Option<u64>,
    /// How long ago it answered last.
    answered_ms: Option<u64>,
    /// What it told last.
    told: Option<PeerStatus>,
}

/// What is shown of a proxy's `/api/status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PeerStatus {
    name: String,
    version: String,
    uptime_ms: u64,
    ready: bool,
    draining: bool,
    problems: Vec<String>,
    connections: usize,
    held: usize,
    waiters: usize,
    nodes: usize,
    nodes_up: usize,
    nodes_voting: usize,
    data_up: bool,
}

impl Peers {
    pub(super) fn new(urls: &[PeerUrl]) -> Peers {
        let peer = |url: &PeerUrl| Peer {
            url: url.clone(),
            looking_up: Arc::new(Semaphore::new(1)),
            heard: Mutex::default(),
        };
        Peers {
            all: urls.iter().map(peer).collect(),
            begun: Mutex::default(),
            ended: watch::Sender::new(0),
        }
    }

    /// Returns all of them.
    pub(super) fn all(&self) -> Arc<[Peer]> {
        self.all.clone()
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns this proxy, whose status is `here`, and all others as they are now, or were a moment ago.
    pub(super) async fn list(&self, here: StatusDocument) -> ProxyList {
        self.ask().await;
        self.rows(PeerStatus::of(here))
    }

    /// Asks all peers, unless that was done just now, and waits until it is done.
    async fn ask(&self) {
        if self.all.is_empty() {
            return;
        }
        let mut ended = self.ended.subscribe();
        let round = {
            let mut begun = self.begun.lock();
            if begun.at.is_none_or(|at| at.elapsed() >= EVERY) {
                *begun = BegunRound { at: Some(Instant::now()), number: begun.number + 1 };
                // Goes on even if the asker hangs up: others may wait for it.
                tokio::spawn(round(self.all.clone(), begun.number, self.ended.clone()));
            }
            begun.number
        };
        let _ = timeout(2 * ANSWER_LIMIT, ended.wait_for(|last| *last >= round)).await;
    }

    fn rows(&self, here: PeerStatus) -> ProxyList {
        let mut proxies = vec![ProxyRow {
            url: None,
            here: true,
            answers: true,
            error: None,
            silent_ms: None,
            answered_ms: Some(0),
            told: Some(here),
        }];
        for peer in &*self.all {
            let HeardPeer { last, silent } = peer.heard.lock().clone();
            let told = last.as_ref().map(|(_, told)| told);
            // All proxies may share one list, which then names this one too.
            let own = proxies.first_mut().filter(|own| {
                own.told.as_ref().zip(told).is_some_and(|(own, told)| own.name == told.name)
            });
            if let Some(own) = own {
                own.url = Some(peer.url.to_string());
                continue;
            }
            proxies.push(ProxyRow {
                url: Some(peer.url.to_string()),
                here: false,
                answers: silent.is_none() && last.is_some(),
                silent_ms: silent.as_ref().map(|(since, _)| millis(since.elapsed())),
                error: silent.map(|(_, why)| why),
                answered_ms: last.as_ref().map(|(at, _)| millis(at.elapsed())),
                told: last.map(|(_, told)| told),
            });
        }
        ProxyList { every_ms: millis(EVERY), proxies }
    }
}

/// Asks all peers at once.
async fn round(all: Arc<[Peer]>, number: u64, ended: watch::Sender<u64>) {
    let mut asked = JoinSet::new();
    for place in 0..all.len() {
        let all = all.clone();
        asked.spawn(async move {
            if let Some(peer) = all.get(place) {
                peer.ask().await;
            }
        });
    }
    while asked.join_next().await.is_some() {}
    ended.send_modify(|last| *last = number.max(*last));
}

impl Peer {
    async fn ask(&self) {
        let said = timeout(ANSWER_LIMIT, self.status()).await;
        let said = said.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_LIMIT:?}")));
        let (now, mut heard) = (Instant::now(), self.heard.lock());
        match said {
            Ok(told) => *heard = HeardPeer { last: Some((now, told)), silent: None },
            Err(why) => {
                let since = heard.silent.as_ref().map_or(now, |(since, _)| *since);
                heard.silent = Some((since, short(why)));
            }
        }
    }

    /// Asks for the status once.
    ///
    /// # Errors
    /// Why there is no status, for people.
    async fn status(&self) -> Result<PeerStatus, String> {
        let answer = self.get("/api/status", LONGEST_ANSWER).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            let error = serde_json::from_slice(&answer.body);
            let error = error.map(|ErrorDocument { error }| format!(": {}", short(error)));
            return Err(format!("HTTP {}{}", answer.status, error.unwrap_or_default()));
        }
        PeerStatus::read(&answer.body)
    }

    /// Asks for a page of at most `longest` bytes. The caller bounds the time.
    ///
    /// # Errors
    /// Those of the network, and of an answer that cannot be read.
    pub(super) async fn get(&self, path: &str, longest: u64) -> io::Result<HttpAnswer> {
        let addresses = self.addresses().await?;
        http_client::get(&addresses[..], &self.url.authority(), path, longest).await
    }

    async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = (self.url.host().to_owned(), self.url.port());
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        // A look-up that gets no answer holds its thread for long.
        let only = self.looking_up.clone().try_acquire_owned();
        let only = only.map_err(|_| io::Error::other("its name is being looked up still"))?;
        let found = spawn_blocking(move || {
            let _only = only;
            (&*host, port).to_socket_addrs().map(Iterator::collect)
        });
        found.await.map_err(io::Error::other)?
    }
}

impl PeerStatus {
    /// Reads `/api/status`.
    ///
    /// # Errors
    /// Why the text cannot be read as that, for people.
    fn read(text: &[u8]) -> Result<PeerStatus, String> {
        let document = serde_json::from_slice(text).map(PeerStatus::of);
        document.map_err(|_| "/api/status is not what Lockgate tells there".to_owned())
    }

    fn of(status: StatusDocument) -> PeerStatus {
        let StatusDocument { proxy, problems, data, nodes, locks, .. } = status;
        PeerStatus {
            name: short(proxy.name),
            version: short(proxy.version),
            uptime_ms: proxy.uptime_ms,
            ready: proxy.ready,
            draining: proxy.draining,
            problems: problems.into_iter().take(MOST_PROBLEMS).map(short).collect(),
            connections: proxy.connections,
            held: locks.held,
            waiters: locks.waiters,
            nodes: nodes.len(),
            nodes_up: nodes.iter().filter(|node| node.up).count(),
            nodes_voting: nodes.iter().filter(|node| node.votes).count(),
            data_up: data.up,
        }
    }
}

/// Cuts a text of another process.
pub(super) fn short(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_TEXT) {
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const STATUS: &str = r#"{"proxy": {"name": "there, pid 7", "version": "0.1.0", "uptime_ms": 5, "ready": true},
        "problems": [], "data": {"up": true}, "nodes": [{"up": true, "votes": true}, {"up": true}, {}],
        "locks": {"held": 3, "waiters": 1}}"#;

    /// Starts a server that answers each request with this, and then with blanks if `endless`. Returns its URL, and
    /// how often it was asked.
    async fn server(answer: String, endless: bool) -> (PeerUrl, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let times = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                times.fetch_add(1, Ordering::Relaxed);
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                while endless && stream.write_all(&[b' '; 65536]).await.is_ok() {}
            }
        });
        (url, asked)
    }

    fn here() -> PeerStatus {
        PeerStatus::read(STATUS.replace("there", "here").as_bytes()).unwrap()
    }

    async fn only_row(answer: String, endless: bool) -> ProxyRow {
        let (url, _) = server(answer, endless).await;
        let peers = Peers::new(&[url]);
        peers.ask().await;
        peers.rows(here()).proxies.pop().unwrap()
    }

    #[tokio::test]
    async fn what_a_stranger_answers_is_bounded_and_breaks_nothing() {
        let ok = "HTTP/1.1 200 OK\r\n\r\n";
        let row = only_row(format!("{ok}{STATUS}"), false).await;
        let told = row.told.unwrap();
        assert!(row.answers && row.silent_ms.is_none() && row.error.is_none());
        assert_eq!((told.held, told.nodes, told.nodes_up, told.nodes_voting), (3, 3, 2, 1));
        let error = async |answer: String, endless| {
            let row = only_row(answer, endless).await;
            assert!(!row.answers && row.told.is_none() && row.silent_ms.is_some(), "{row:?}");
            row.error.unwrap()
        };
        let longer = error(ok.to_owned(), true).await;
        assert_eq!(longer, format!("its answer is longer than {LONGEST_ANSWER} bytes"));
        let no_status = "/api/status is not what Lockgate tells there";
        for body in ["", "{}", "[]", "null", r#"{"proxy": {"uptime_ms": -1, "ready": true}}"#] {
            assert_eq!(error(format!("{ok}{body}"), false).await, no_status, "{body}");
        }
        assert_eq!(error(format!("{ok}{}", "[".repeat(100_000)), false).await, no_status);
        assert_eq!(error("+PONG\r\n".into(), false).await, "its answer is no HTTP");
        let redirected = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n";
        assert_eq!(error(redirected.into(), false).await, "HTTP 302");
        let long = format!(r#"HTTP/1.1 421 No{}{{"error": "{}"}}"#, "\r\n\r\n", "x".repeat(5000));
        assert_eq!(error(long, false).await.chars().count(), LONGEST_TEXT + 1);
    }

    #[tokio::test]
    async fn no_more_of_an_answer_is_kept_than_is_shown() {
        let lines = vec![format!("\"{}\"", "ä".repeat(2000)); 60].join(",");
        let status = STATUS.replace(r#""problems": []"#, &format!(r#""problems": [{lines}]"#));
        let told = only_row(format!("HTTP/1.1 200 OK\r\n\r\n{status}"), false).await.told.unwrap();
        assert_eq!(told.problems.len(), MOST_PROBLEMS);
        assert_eq!(told.problems[0].chars().count(), LONGEST_TEXT + 1);
    }

    #[tokio::test]
    async fn a_peer_is_asked_once_for_all_who_ask_at_a_time() {
        let (url, asked) = server(format!("HTTP/1.1 200 OK\r\n\r\n{STATUS}"), false).await;
        let peers = Peers::new(&[url]);
        assert_eq!(asked.load(Ordering::Relaxed), 0, "nobody has asked");
        tokio::join!(peers.ask(), peers.ask(), peers.ask());
        peers.ask().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(peers.rows(here()).proxies[1].answers);
        peers.begun.lock().at = Instant::now().checked_sub(EVERY);
        peers.ask().await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_peer_that_stops_answering_is_told_since_when_with_what_it_told_last() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: PeerUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let peers = Peers::new(&[url]);
        let again = async || {
            peers.begun.lock().at = None;
            peers.ask().await;
            peers.rows(here()).proxies.pop().unwrap()
        };
        // It accepts the connection, and says nothing.
        let row = again().await;
        assert_eq!(row.error.unwrap(), "no answer within 1s");
        assert!(row.answered_ms.is_none() && row.told.is_none());
        let told = PeerStatus::read(STATUS.as_bytes()).unwrap();
        let before = Instant::now();
        *peers.all[0].heard.lock() = HeardPeer { last: Some((before, told.clone())), silent: None };
        drop(listener);
        let first = again().await;
        assert!(!first.answers && first.error.unwrap().contains("refused"));
        let since = peers.all[0].heard.lock().silent.clone().unwrap().0;
        assert!(since >= before);
        let row = again().await;
        assert_eq!(row.told, Some(told));
        assert_eq!(
            peers.all[0].heard.lock().silent.clone().unwrap().0,
            since,
            "since the first time"
        );
    }

    #[tokio::test]
    async fn a_list_that_names_this_proxy_too_has_it_once() {
        let own = STATUS.replace("there", "here");
        let (url, _) = server(format!("HTTP/1.1 200 OK\r\n\r\n{own}"), false).await;
        let peers = Peers::new(std::slice::from_ref(&url));
        peers.ask().await;
        let rows = peers.rows(here()).proxies;
        assert_eq!((rows.len(), rows[0].here, &rows[0].url), (1, true, &Some(url.to_string())));
    }
}
