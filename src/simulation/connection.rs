//! A client's connection to the data node: through a proxy, with the product's own session between them over streams
//! in memory, or past the proxy.

use std::{
    collections::VecDeque,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    memory::{DATA, OLD},
    network::Network,
};
use crate::{
    adopt::Adoption,
    bridge::Bridge,
    config::{
        AdoptMode, AdoptOptions, AdoptRule, Config, DataConfig, Endpoint, GuardRule, LocksConfig,
        NoTtlPolicy, Pattern, Policy, RedisUrl, Template,
    },
    data::DataNode,
    fleet::known::Fleet,
    guard::Guards,
    lock::Engine,
    net::Stream,
    resp::encode,
    session::{
        Session, Shared, Sleeper, Taken, UnreadReplies, idle::Idle, session_metrics::Metrics,
    },
};

/// The most bytes under way in one direction.
const PIPE: usize = 64 * 1024;
/// The longest time to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the adopt rule, in this mode.
pub(super) fn rules(mode: AdoptMode, no_ttl: NoTtlPolicy) -> [AdoptRule; 1] {
    [AdoptRule {
        keys: Pattern::new("old:*"),
        lock: Some(Template::new("{1}").unwrap()),
        mode,
        options: AdoptOptions { no_ttl, ..AdoptOptions::default() },
        scripts: Vec::new(),
    }]
}

/// Makes a proxy's way to bridged locks. `end`: the number of its connection to the data node.
pub(super) fn bridge(
    engine: &Arc<Engine>,
    adoption: &Arc<Adoption>,
    locks: LocksConfig,
    end: usize,
) -> Arc<Bridge> {
    let endpoint = Endpoint::Tcp { host: format!("simulated-data-{end}"), port: 1 };
    let data = DataConfig::Fixed(RedisUrl { endpoint, ..RedisUrl::local(1) });
    let config = Config { locks, data, ..Config::default() };
    Bridge::new(&config, adoption, engine, &DataNode::start(&config), &Handle::current())
}

/// Makes the state that all sessions of one proxy share.
pub(super) fn shared(
    engine: &Arc<Engine>,
    locks: LocksConfig,
    adoption: Option<Arc<Adoption>>,
    bridge: Option<Arc<Bridge>>,
) -> Arc<Shared> {
    let rule = GuardRule {
        keys: Pattern::new("data:lock:*"),
        lock: Template::new("{1}").unwrap(),
        policy: Policy::Enforce,
    };
    let mut config = Config { locks, ..Config::default() };
    // What a guard needs cannot be shared.
    if !config.locks.shared {
        config.guards.rules.push(rule);
    }
    Arc::new(Shared {
        engine: engine.clone(),
        data: DataNode::start(&config),
        metrics: Metrics::new(),
        guards: Some(Guards::of_few_commands(&config)),
        adoption,
        bridge,
        fleet: Arc::new(Fleet::new()),
        data_is_silent: Arc::default(),
        config: ArcSwap::from_pointee(config),
        idle: Arc::new(Idle::default()),
        ahead: Arc::new(Taken::default()),
        unread: Arc::new(UnreadReplies::default()),
        clients: AtomicUsize::new(0),
        started: Instant::now(),
        name: String::new(),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 6380))],
        draining: AtomicBool::new(false),
        drain: CancellationToken::new(),
        roll: Arc::default(),
        abort: CancellationToken::new(),
    })
}

/// A reply, or a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// A status, an error, or a number, with its first byte.
    Line(String),
    Bulk(Option<String>),
    /// An array, or a map's keys and values. `None`: null.
    Array(Option<Vec<Reply>>),
    Push(Vec<Reply>),
}

impl Reply {
    /// Returns the first reply in these bytes, and its length.
    fn read(bytes: &[u8]) -> Option<(Reply, usize)> {
        let end = memchr::memchr(b'\n', bytes)? + 1;
        let line = String::from_utf8_lossy(&bytes[..end - 2]).into_owned();
        let (kind, number) = (bytes[0], line[1..].parse::<i64>());
        if kind == b'$' {
            let Ok(length @ 0..) = number else { return Some((Reply::Bulk(None), end)) };
            let (length, rest) = (length as usize, &bytes[end..]);
            let bulk = String::from_utf8_lossy(rest.get(..length)?).into_owned();
            return (rest.len() >= length + 2)
                .then_some((Reply::Bulk(Some(bulk)), end + length + 2));
        }
        if !b"*%>".contains(&kind) {
            let is_null = kind == b'_';
            let reply = if is_null { Reply::Array(None) } else { Reply::Line(line) };
            return Some((reply, end));
        }
        let Ok(count @ 0..) = number else { return Some((Reply::Array(None), end)) };
        let (mut all, mut at) = (Vec::new(), end);
        for _ in 0..if kind == b'%' { 2 * count } else { count } {
            let (one, length) = Reply::read(&bytes[at..])?;
            all.push(one);
            at += length;
        }
        Some((if kind == b'>' { Reply::Push(all) } else { Reply::Array(Some(all)) }, at))
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Reply::Line(text) | Reply::Bulk(Some(text)) => text,
            _ => "",
        }
    }

    /// Returns the fence and the validity, in ms, of a LOCK that was granted.
    pub(super) fn grant(&self) -> Option<(u64, u64)> {
        match self {
            Reply::Array(Some(grant)) => Some((grant.get(1)?.number()?, grant.get(2)?.number()?)),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Reply::Line(line) => line.strip_prefix(':')?.parse().ok(),
            _ => None,
        }
    }
}

/// The outcome of a write, as its client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteReply {
    Done,
    /// Refused: a larger fence was seen.
    Fenced,
    /// Refused for another reason.
    Refused,
    /// No answer: the connection ended.
    Nothing,
}

/// The connection was ended by either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionEnded;

/// A function called with the name of each lock that the connection is told to have lost, and with
/// `None` at its end.
type OnLoss = Box<dyn FnMut(Option<&str>) + Send>;

pub(super) struct SessionUnderTest {
    shared: Arc<Shared>,
    data: Arc<Network>,
    /// The client's number.
    name: usize,
    /// Whether it goes to the data node past the proxy.
    is_past: bool,
    stream: Option<DuplexStream>,
    received: Vec<u8>,
    replies: VecDeque<Reply>,
    on_loss: Option<OnLoss>,
}

impl SessionUnderTest {
    pub(super) fn new(shared: Arc<Shared>, data: Arc<Network>, name: usize) -> SessionUnderTest {
        let (received, replies) = (Vec::new(), VecDeque::new());
        let (is_past, stream, on_loss) = (false, None, None);
        SessionUnderTest { shared, data, name, is_past, stream, received, replies, on_loss }
    }

    /// Makes it a connection to the data node, past the proxy.
    pub(super) fn past(self) -> SessionUnderTest {
        SessionUnderTest { is_past: true, ..self }
    }

    pub(super) fn is_past(&self) -> bool {
        self.is_past
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Connects, unless the connection is open.
    pub(super) async fn open(&mut self) {
        if self.is_open() {
            return;
        }
        let Ok(upstream) = self.data.connect(self.name, 0) else { return };
        self.received.clear();
        self.replies.clear();
        self.stream = Some(if self.is_past {
            upstream
        } else {
            let (here, there) = duplex(PIPE);
            let (client, upstream) = (Stream::Memory(there), Stream::Memory(upstream));
            let session = Session::new(client, upstream, self.shared.clone(), false);
            let mut session = Sleeper::of(session);
            tokio::spawn(async move { session.run().await });
            here
        });
        // RESP3 is needed to be told of losses at once.
        let _ = self.ask(&["HELLO", "3"]).await;
    }

    /// Hangs up.
    pub(super) fn close(&mut self) {
        self.on_loss = None;
        self.stream = None;
    }

    /// Cuts the session off from the data node for `time`, starting after `from`.
    pub(super) fn delay(&self, from: Duration, time: Duration) {
        let (data, name) = (self.data.clone(), self.name);
        tokio::spawn(async move {
            sleep(from).await;
            data.cut(name, time);
            // Data that arrives then may find the fence forgotten.
            sleep(time.mul_f64(0.9)).await;
            data.forget_now_and_then();
        });
    }

    /// Has `on_loss` called from now on.
    pub(super) fn tell(&mut self, on_loss: OnLoss) {
        self.on_loss = Some(on_loss);
    }

    pub(super) fn tell_nobody(&mut self) {
        self.on_loss = None;
    }

    /// Notes the end of the connection, by the session or the client.
    fn ended(&mut self) -> SessionEnded {
        self.stream = None;
        if let Some(on_loss) = &mut self.on_loss {
            on_loss(None);
        }
        SessionEnded
    }

    /// Waits for more bytes, and takes in all pushes and replies that are whole.
    async fn receive(&mut self) -> Result<(), SessionEnded> {
        let stream = self.stream.as_mut().ok_or(SessionEnded)?;
        if !matches!(stream.read_buf(&mut self.received).await, Ok(1..)) {
            return Err(self.ended());
        }
        while let Some((reply, length)) = Reply::read(&self.received) {
            self.received.drain(..length);
            match reply {
                Reply::Push(words) if words.first().is_some_and(|w| w.text() == "lock-lost") => {
                    if let Some(on_loss) = &mut self.on_loss {
                        on_loss(Some(words[1].text()));
                    }
                }
                Reply::Push(_) => {}
                reply => self.replies.push_back(reply),
            }
        }
        Ok(())
    }

    /// Listens for `time`, without sending.
    pub(super) async fn listen(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.is_open() && Instant::now() < until {
            let _ = tokio::time::timeout_at(until, self.receive()).await;
        }
        sleep_until(until).await;
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), SessionEnded> {
        let stream = self.stream.as_mut().ok_or(SessionEnded)?;
        if stream.write_all(bytes).await.is_err() {
            return Err(self.ended());
        }
        Ok(())
    }

    /// Sends these commands and waits for their replies, for as long as `patience`. Hangs up after
    /// that.
    pub(super) async fn pipeline(
        &mut self,
        commands: &[&[&str]],
        patience: Duration,
    ) -> Result<Vec<Reply>, SessionEnded> {
        let mut bytes = Vec::new();
        for words in commands {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode::command(&mut bytes, &words);
        }
        self.exchange(&bytes, commands.len(), patience).await
    }

    /// Sends one command as a line of text, and waits as [`SessionUnderTest::pipeline`] does.
    pub(super) async fn line(
        &mut self,
        line: &str,
        patience: Duration,
    ) -> Result<Vec<Reply>, SessionEnded> {
        self.exchange(line.as_bytes(), 1, patience).await
    }

    async fn exchange(
        &mut self,
        bytes: &[u8],
        replies: usize,
        patience: Duration,
    ) -> Result<Vec<Reply>, SessionEnded> {
        let asking = async {
            self.send(bytes).await?;
            while self.replies.len() < replies {
                self.receive().await?;
            }
            Ok(self.replies.drain(..replies).collect())
        };
        let answered = within(patience, asking).await;
        if answered.is_err() && self.is_open() {
            self.ended();
        }
        answered
    }

    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, SessionEnded> {
        Ok(self.pipeline(&[words], PATIENCE).await?.remove(0))
    }
}

async fn within<T>(
    patience: Duration,
    asking: impl Future<Output = Result<T, SessionEnded>>,
) -> Result<T, SessionEnded> {
    timeout(patience, asking).await.unwrap_or(Err(SessionEnded))
}

/// Returns the outcome of a write, by its reply.
pub(super) fn told(reply: Option<&Reply>) -> WriteReply {
    match reply {
        None => WriteReply::Nothing,
        Some(Reply::Array(Some(all))) => told(all.first()),
        Some(reply) if reply.text() == "+OK" => WriteReply::Done,
        Some(reply) if reply.text().starts_with("-FENCED") => WriteReply::Fenced,
        Some(_) => WriteReply::Refused,
    }
}

/// Returns the key that lock libraries take for the lock of this name.
pub(super) fn old(name: &str) -> String {
    format!("{}{name}", String::from_utf8_lossy(OLD))
}

/// Returns the key that is written under the lock of this name.
pub(super) fn data(name: &str) -> String {
    format!("{}lock:{name}", String::from_utf8_lossy(DATA))
}
