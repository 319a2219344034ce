//! What the lock engine promises its callers, with real nodes.
//!
//! `locking.rs` has what clients see of it.

use std::{
    future::Future,
    io::{Read, Write},
    net::TcpListener,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::support::{Client, Reply, eventually};
use lockgate::{
    config::LocksConfig,
    lock::{Acquire, Engine, NotGranted},
    tools::redis_server::RedisServer,
};

const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Lock nodes, and engines on them.
struct Nodes(Vec<RedisServer>);

impl Nodes {
    fn start(count: usize) -> Nodes {
        let nodes = Nodes((0..count).map(|_| RedisServer::start(&[]).unwrap()).collect());
        let config = nodes.config();
        // In a thread apart from the test's own runtime.
        let init = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(lockgate::lock::initialise(&config)).unwrap();
        });
        init.join().unwrap();
        nodes
    }

    fn config(&self) -> LocksConfig {
        let nodes = self.0.iter().map(|node| node.url().parse().unwrap()).collect();
        LocksConfig { nodes, node_timeout: ms(300), ..LocksConfig::default() }
    }

    /// Starts an engine, and waits until it reaches all nodes.
    fn engine(&self, config: &LocksConfig) -> Arc<Engine> {
        let engine = Engine::start(config);
        all_up(&engine);
        engine
    }

    fn client(&self, node: usize) -> Client {
        Client::connect(self.0[node].port())
    }

    /// Returns the nodes that have this key.
    fn with(&self, key: &str) -> Vec<usize> {
        let has = |node: &usize| self.client(*node).cmd(&["EXISTS", key]) == Reply::Int(1);
        (0..self.0.len()).filter(has).collect()
    }

    /// Returns the locks on all nodes, without fences.
    fn locks(&self) -> Vec<Reply> {
        let keys = |node| match self.client(node).cmd(&["KEYS", "lock:*"]) {
            Reply::Array(keys) => keys,
            other => panic!("{other:?}"),
        };
        (0..self.0.len()).flat_map(keys).collect()
    }

    fn each(&self, what: fn(&RedisServer) -> std::io::Result<()>, nodes: &[usize]) {
        for node in nodes {
            what(&self.0[*node]).unwrap();
        }
    }
}

fn up(engine: &Engine) -> usize {
    engine.status().iter().filter(|node| node.up).count()
}

fn all_up(engine: &Engine) {
    eventually("all nodes are up", || up(engine) == engine.status().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_holds_whichever_engine_is_asked() {
    let nodes = Nodes::start(3);
    let config = nodes.config();
    let engines = [nodes.engine(&config), nodes.engine(&config)];
    let inside: Arc<[AtomicBool; 4]> = Arc::default();
    let grants = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let engine = engines[task % 2].clone();
            let (inside, grants) = (inside.clone(), grants.clone());
            tokio::spawn(async move {
                for round in 0..200 {
                    let lock = (task + round) % 4;
                    let key = format!("lock:{lock}");
                    let token = format!("{task}-{round}");
                    if engine.acquire(key.as_bytes(), token.as_bytes(), MINUTE, None).await.is_ok()
                    {
                        assert!(!inside[lock].swap(true, Ordering::SeqCst), "two hold {key}");
                        tokio::task::yield_now().await;
                        inside[lock].store(false, Ordering::SeqCst);
                        grants.fetch_add(1, Ordering::SeqCst);
                        let released = engine.release(key.as_bytes(), token.as_bytes(), None).await;
                        assert_eq!(released, Ok(true));
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(grants.load(Ordering::SeqCst) > 0);
    eventually("nothing is left", || nodes.locks().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_grow_across_engines_whose_clocks_disagree() {
    let nodes = Nodes::start(5);
    let config = nodes.config();
    let behind = Engine::start_with_clock(
        &config,
        Arc::new(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            u64::try_from((now - 60 * MINUTE).as_micros()).unwrap()
        }),
    );
    all_up(&behind);
    let engines = [nodes.engine(&config), behind];
    let mut last = 0;
    for round in 0..40 {
        let (engine, token) = (&engines[round % 2], format!("t{round}"));
        let grant = engine.acquire(b"lock:k", token.as_bytes(), MINUTE, None).await.unwrap();
        assert!(grant.fence > last, "{} after {last}", grant.fence);
        last = grant.fence;
        assert_eq!(engine.release(b"lock:k", token.as_bytes(), None).await, Ok(true));
        // Each quorum has another node to leave out.
        nodes.client(round % 5).cmd(&["DEL", "lock:k"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_too_few_could_answer_leaves_the_lock_alone() {
    let nodes = Nodes::start(5);
    let engine = nodes.engine(&nodes.config());
    engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 5);
    // One node has lost the lock, and two that have it are slow: four of five hold it.
    nodes.client(0).cmd(&["DEL", "lock:k"]);
    nodes.each(RedisServer::freeze, &[1, 2]);
    let error = engine.renew(b"lock:k", b"t", MINUTE, None).await.unwrap_err();
    assert_eq!(error.missing.len(), 2, "{error}");
    assert!(!error.to_string().contains("are needed"), "three did answer: {error}");
    nodes.each(RedisServer::thaw, &[1, 2]);
    engine.drain(MINUTE).await;
    // If a slow node answered again in time, the lock was put back on the first node.
    let with = nodes.with("lock:k");
    assert!([1, 2, 3, 4].iter().all(|node| with.contains(node)), "{with:?}");
    assert!(engine.renew(b"lock:k", b"t", MINUTE, None).await.unwrap().is_some());
    eventually("all have it again", || nodes.with("lock:k").len() == 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_told_that_it_holds_nothing_holds_nothing_anywhere() {
    let nodes = Nodes::start(5);
    let engine = nodes.engine(&nodes.config());
    engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 5);
    for node in 0..3 {
        nodes.client(node).cmd(&["DEL", "lock:k"]);
    }
    assert_eq!(engine.renew(b"lock:k", b"t", MINUTE, None).await, Ok(None));
    eventually("the others are free", || nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_lock_that_comes_to_nothing_does_not_end_the_first() {
    for count in [1, 5] {
        let nodes = Nodes::start(count);
        let engine = nodes.engine(&nodes.config());
        let all: Vec<usize> = (0..count).collect();
        let grant = engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
        eventually("all have it", || nodes.with("lock:k").len() == count);
        // No node says in time that the holder is the one that asks.
        nodes.each(RedisServer::freeze, &all);
        let again = engine.acquire(b"lock:k", b"t", MINUTE, grant.claim).await;
        assert!(matches!(again, Err(NotGranted::NoQuorum(_))), "{again:?}");
        drop(engine.acquire(b"lock:k", b"t", MINUTE, grant.claim));
        drop(engine.acquire(b"lock:k", b"t", MINUTE, None));
        nodes.each(RedisServer::thaw, &all);
        engine.drain(MINUTE).await;
        assert_eq!(nodes.with("lock:k").len(), count);
        // Where a new attempt alone has taken the lock, it is given back all the same.
        nodes.client(0).cmd(&["DEL", "lock:k"]);
        nodes.each(RedisServer::freeze, &all);
        assert!(engine.acquire(b"lock:k", b"t", MINUTE, None).await.is_err());
        nodes.each(RedisServer::thaw, &all);
        engine.drain(MINUTE).await;
        assert_eq!(nodes.with("lock:k"), all[1..]);
        // What the holder's own attempts took is given back with the lock.
        if count > 1 {
            assert!(engine.acquire(b"lock:k", b"t", MINUTE, grant.claim).await.is_ok());
            eventually("all have it again", || nodes.with("lock:k").len() == count);
            assert_eq!(engine.release(b"lock:k", b"t", grant.claim).await, Ok(true));
            eventually("it is given back", || nodes.with("lock:k").is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_nobody_waits_for_leaves_nothing() {
    let nodes = Nodes::start(3);
    let engine = nodes.engine(&nodes.config());
    for round in 0..200 {
        let key = format!("lock:{round}");
        let mut acquire = Box::pin(engine.acquire(key.as_bytes(), b"t", MINUTE, None));
        // Given up before, between and after its votes.
        for _ in 0..round {
            if is_done(&mut acquire).await {
                assert_eq!(engine.release(key.as_bytes(), b"t", None).await, Ok(true));
                break;
            }
        }
    }
    engine.drain(MINUTE).await;
    assert_eq!(nodes.locks(), []);
}

/// Polls the acquire once. Returns whether it is done.
async fn is_done(acquire: &mut Pin<Box<Acquire>>) -> bool {
    tokio::task::yield_now().await;
    std::future::poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx).is_ready())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_unread_for_longer_than_its_ttl_leaves_no_ghost() {
    let nodes = Nodes::start(3);
    let config = LocksConfig { node_silence: ms(200), ..nodes.config() };
    let engine = nodes.engine(&config);
    let ttl = ms(1500);
    nodes.each(RedisServer::freeze, &[0]);
    engine.acquire(b"lock:k", b"t", ttl, None).await.unwrap();
    eventually("the stopped node is cut off", || up(&engine) == 2);
    // The lock is not released: the question is only what becomes of the stopped node's TTL, which has not begun.
    tokio::time::sleep(ttl + ms(500)).await;
    nodes.each(RedisServer::thaw, &[0]);
    all_up(&engine);
    // The other nodes are asked first whether the client has renewed it through another proxy.
    tokio::time::sleep(ms(300)).await;
    engine.drain(MINUTE).await;
    assert!(nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_locks_do_not_crowd_out_a_release_that_a_node_has_missed() {
    let nodes = Nodes::start(3);
    let engine = nodes.engine(&LocksConfig { node_silence: ms(200), ..nodes.config() });
    engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    engine.acquire(b"lock:held", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    nodes.each(RedisServer::freeze, &[0]);
    engine.acquire(b"lock:other", b"t", MINUTE, None).await.unwrap();
    eventually("the stopped node is cut off", || up(&engine) == 2);
    assert_eq!(engine.release(b"lock:k", b"t", None).await, Ok(true));
    // More than a node's clean-up list has room for.
    for _ in 0..11 {
        let tries: Vec<_> =
            (0..1000).map(|_| engine.acquire(b"lock:held", b"another", MINUTE, None)).collect();
        for lock in tries {
            assert!(lock.await.is_err());
        }
    }
    nodes.each(RedisServer::thaw, &[0]);
    all_up(&engine);
    engine.drain(MINUTE).await;
    assert!(nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: make long"]
async fn scripts_flushed_under_load_by_two_engines_leave_nothing_behind() {
    let nodes = Nodes::start(3);
    let config = nodes.config();
    let engines = [nodes.engine(&config), nodes.engine(&config)];
    let flushing = Arc::new(AtomicBool::new(true));
    let ports: Vec<u16> = nodes.0.iter().map(RedisServer::port).collect();
    let flusher = {
        let flushing = flushing.clone();
        thread::spawn(move || {
            let mut clients: Vec<Client> =
                ports.iter().map(|port| Client::connect(*port)).collect();
            while flushing.load(Ordering::Relaxed) {
                for client in &mut clients {
                    client.cmd(&["SCRIPT", "FLUSH"]);
                }
                thread::sleep(ms(2));
            }
        })
    };
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let engine = engines[task % 2].clone();
            tokio::spawn(async move {
                let mut granted = 0;
                for round in 0..200 {
                    let key = format!("lock:{task}-{round}");
                    let token = format!("{task}-{round}");
                    granted += usize::from(
                        engine
                            .acquire(key.as_bytes(), token.as_bytes(), MINUTE, None)
                            .await
                            .is_ok(),
                    );
                    let _ = engine.release(key.as_bytes(), token.as_bytes(), None).await;
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.unwrap();
    }
    flushing.store(false, Ordering::Relaxed);
    flusher.join().unwrap();
    for engine in &engines {
        engine.drain(MINUTE).await;
    }
    assert!(granted > 32 * 200 / 2, "{granted} granted");
    let left = nodes.locks();
    assert!(left.is_empty(), "{} of {granted} left behind", left.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_greets_and_goes_is_not_up() {
    // No real Redis can be made to leave at that moment.
    let mut engines = Vec::new();
    for _ in 0..40 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap()).parse().unwrap();
        engines.push(Engine::start(&LocksConfig {
            nodes: vec![url],
            quarantine: false,
            ..LocksConfig::default()
        }));
        let (mut stream, _) = listener.accept().unwrap();
        greet(&mut stream);
    }
    tokio::time::sleep(ms(500)).await;
    for engine in engines {
        eventually("it is seen", || up(&engine) == 0);
        let status = &engine.status()[0];
        assert!(status.reason.as_ref().is_some_and(|why| !why.is_empty()), "{status:?}");
    }
}

/// Reads the handshake and answers it as a Redis would, except for `run_id`.
fn greet(stream: &mut std::net::TcpStream) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"lockgate:max_ttl\r\n") {
        let mut space = [0; 4096];
        let n = stream.read(&mut space).unwrap();
        assert_ne!(n, 0, "the handshake ended early");
        seen.extend_from_slice(&space[..n]);
    }
    let commands = seen.windows(3).filter(|bytes| bytes[0] == b'*' && bytes[2] == b'\r').count();
    let mut out = b"+OK\r\n".repeat(commands - 9);
    out.extend_from_slice(b":1\r\n");
    out.extend(b"$-1\r\n".repeat(8));
    stream.write_all(&out).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_no_vote() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap()).parse().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                greet(&mut stream);
                let mut space = [0; 4096];
                while matches!(stream.read(&mut space), Ok(1..)) {
                    let _ = stream.write_all(b"+OK\r\n");
                }
            });
        }
    });
    let engine = Engine::start(&LocksConfig {
        nodes: vec![url],
        node_timeout: ms(300),
        quarantine: false,
        ..LocksConfig::default()
    });
    eventually("it is up", || up(&engine) == 1);
    let answer = engine.acquire(b"lock:k", b"t", MINUTE, None).await;
    assert!(matches!(answer, Err(NotGranted::NoQuorum(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_not_needed_any_more_leaves_its_nodes() {
    let nodes = Nodes::start(1);
    let engine = nodes.engine(&nodes.config());
    engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    let connections = || match nodes.client(0).cmd(&["CLIENT", "LIST"]) {
        Reply::Bulk(list) => String::from_utf8_lossy(&list).matches("name=lockgate ").count(),
        other => panic!("{other:?}"),
    };
    assert_eq!(connections(), 1);
    drop(engine);
    eventually("it has left", || connections() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_too_late_for_its_ttl_says_so() {
    let nodes = Nodes::start(3);
    let engine = nodes.engine(&nodes.config());
    let Err(NotGranted::NoQuorum(error)) = engine.acquire(b"lock:k", b"t", ms(1), None).await
    else {
        panic!("1 ms is less than the drift");
    };
    let text = error.to_string();
    if error.answered >= error.quorum {
        assert!(!text.contains("are needed"), "{text}");
    }
    engine.drain(MINUTE).await;
    eventually("nothing is left", || nodes.locks().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_votes_again() {
    for count in [1, 3] {
        let mut nodes = Nodes::start(count);
        let engine = nodes.engine(&LocksConfig { quarantine: false, ..nodes.config() });
        nodes.0[0].kill().unwrap();
        eventually("it is seen", || up(&engine) == count - 1);
        nodes.0[0].restart().unwrap();
        all_up(&engine);
        engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
        eventually("all have it", || nodes.with("lock:k").len() == count);
        assert_eq!(engine.release(b"lock:k", b"t", None).await, Ok(true));
        engine.drain(MINUTE).await;
        assert!(nodes.with("lock:k").is_empty());
    }
}

/// An engine with a user of its own on the nodes, so that its connections to some of them can be cut.
impl Nodes {
    fn engine_that_can_be_cut(&self) -> Arc<Engine> {
        for node in 0..self.0.len() {
            self.client(node).cmd(&["ACL", "SETUSER", "cut", "on", ">x", "~*", "&*", "+@all"]);
        }
        let mut config = self.config();
        for node in &mut config.nodes {
            let mut url = node.fixed().unwrap().clone();
            (url.username, url.password) = (Some("cut".into()), Some("x".into()));
            *node = url.into();
        }
        self.engine(&config)
    }

    fn cut(&self, engine: &Engine, nodes: &[usize]) {
        for node in nodes {
            let mut client = self.client(*node);
            client.cmd(&["ACL", "SETUSER", "cut", "off"]);
            client.cmd(&["CLIENT", "KILL", "USER", "cut"]);
        }
        eventually("they are away", || up(engine) == self.0.len() - nodes.len());
    }

    fn mend(&self, engine: &Engine, nodes: &[usize]) {
        for node in nodes {
            self.client(*node).cmd(&["ACL", "SETUSER", "cut", "on"]);
        }
        all_up(engine);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_takes_nothing_newer_of_the_same_token() {
    let nodes = Nodes::start(5);
    let (first, second) = (nodes.engine_that_can_be_cut(), nodes.engine(&nodes.config()));
    // The giver knows the claim or, if another engine took the lock, does not.
    for knows in [true, false] {
        let grantor = if knows { &first } else { &second };
        let grant = grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
        eventually("all have it", || nodes.with("lock:k").len() == 5);
        nodes.cut(&first, &[3, 4]);
        assert_eq!(first.release(b"lock:k", b"worker-7", None).await, Ok(true));
        // There the lock runs out in the meantime.
        for node in [3, 4] {
            nodes.client(node).cmd(&["DEL", "lock:k"]);
        }
        let newer = second.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
        assert!(newer.fence > grant.fence);
        eventually("all have the newer one", || nodes.with("lock:k").len() == 5);
        nodes.mend(&first, &[3, 4]);
        first.drain(MINUTE).await;
        assert_eq!(nodes.with("lock:k").len(), 5, "{knows}");
        assert_eq!(second.release(b"lock:k", b"worker-7", newer.claim).await, Ok(true));
        second.drain(MINUTE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlock_elsewhere_under_way_to_a_slow_node_ends_no_newer_grant() {
    let nodes = Nodes::start(3);
    let config = nodes.config();
    let (grantor, releaser) = (nodes.engine(&config), nodes.engine(&config));
    let first = grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    // As if another client had had the slow node when the lock was granted.
    nodes.client(2).cmd(&["DEL", "lock:k"]);
    nodes.each(RedisServer::freeze, &[2]);
    // The node first serves the connection whose data came first, and reads all that it has sent.
    let other = grantor.acquire(b"lock:other", b"o", MINUTE, None).await.unwrap();
    assert_eq!(releaser.release(b"lock:k", b"worker-7", None).await, Ok(true));
    let newer = grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    assert!(newer.fence > first.fence);
    nodes.each(RedisServer::thaw, &[2]);
    grantor.drain(MINUTE).await;
    releaser.drain(MINUTE).await;
    assert_eq!(nodes.with("lock:k"), [0, 1, 2]);
    assert_eq!(grantor.release(b"lock:k", b"worker-7", newer.claim).await, Ok(true));
    assert_eq!(grantor.release(b"lock:other", b"o", other.claim).await, Ok(true));
    assert_eq!(releaser.release(b"lock:k", b"worker-7", None).await, Ok(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_unlocked_elsewhere_is_locked_again_by_a_new_claim() {
    let nodes = Nodes::start(3);
    let config = nodes.config();
    let (grantor, releaser) = (nodes.engine(&config), nodes.engine(&config));
    let first = grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    nodes.each(RedisServer::freeze, &[2]);
    grantor.acquire(b"lock:other", b"o", MINUTE, None).await.unwrap();
    assert_eq!(releaser.release(b"lock:k", b"worker-7", None).await, Ok(true));
    // The slow node still has the grant, and is about to release it.
    let again = grantor.acquire(b"lock:k", b"worker-7", MINUTE, first.claim).await.unwrap();
    assert!(again.fence > first.fence && again.claim != first.claim);
    nodes.each(RedisServer::thaw, &[2]);
    grantor.drain(MINUTE).await;
    releaser.drain(MINUTE).await;
    assert_eq!(nodes.with("lock:k"), [0, 1, 2]);
    let still = grantor.acquire(b"lock:k", b"worker-7", MINUTE, again.claim).await.unwrap();
    assert_eq!(still.claim, again.claim, "it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_unlocked_elsewhere_is_not_put_back() {
    let nodes = Nodes::start(3);
    let (releaser, grantor) = (nodes.engine_that_can_be_cut(), nodes.engine(&nodes.config()));
    let grant = grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    // By the time of the renewal the release has reached only the first node.
    nodes.cut(&releaser, &[1, 2]);
    let found = grant.claim.unwrap();
    assert!(releaser.release_found(b"lock:k", b"worker-7", found).await.is_err());
    assert_eq!(nodes.with("lock:k"), [1, 2]);
    let renewed = grantor.renew(b"lock:k", b"worker-7", MINUTE, grant.claim).await;
    assert!(matches!(renewed, Ok(Some(_))), "{renewed:?}");
    grantor.drain(MINUTE).await;
    assert_eq!(nodes.with("lock:k"), [1, 2]);
    nodes.mend(&releaser, &[1, 2]);
    releaser.drain(MINUTE).await;
    assert!(nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlock_elsewhere_that_too_few_nodes_can_answer_releases_nothing() {
    let nodes = Nodes::start(3);
    let (releaser, grantor) = (nodes.engine_that_can_be_cut(), nodes.engine(&nodes.config()));
    grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    nodes.cut(&releaser, &[1, 2]);
    assert!(releaser.release(b"lock:k", b"worker-7", None).await.is_err());
    assert_eq!(nodes.with("lock:k"), [0, 1, 2]);
    nodes.mend(&releaser, &[1, 2]);
    assert_eq!(releaser.release(b"lock:k", b"another", None).await, Ok(false));
    assert_eq!(nodes.with("lock:k"), [0, 1, 2]);
    // The caller does not wait for the answer.
    drop(releaser.release(b"lock:k", b"worker-7", None));
    eventually("all have given it back", || nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_unlocked_through_a_proxy_that_knows_only_an_earlier_grant_of_it() {
    let nodes = Nodes::start(3);
    let config = nodes.config();
    let (first, second) = (nodes.engine(&config), nodes.engine(&config));
    let earlier = first.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    // A release through another proxy may overtake a grant on its way to the slowest node.
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    assert_eq!(second.release(b"lock:k", b"worker-7", None).await, Ok(true));
    eventually("all have given it back", || nodes.with("lock:k").is_empty());
    let newer = second.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have the newer one", || nodes.with("lock:k").len() == 3);
    // A release that names the earlier grant affects no other.
    assert_eq!(first.release(b"lock:k", b"worker-7", earlier.claim).await, Ok(false));
    assert_eq!(nodes.with("lock:k").len(), 3);
    assert_eq!(second.release(b"lock:k", b"worker-7", newer.claim).await, Ok(true));
    first.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    assert_eq!(second.release(b"lock:k", b"worker-7", None).await, Ok(true));
    eventually("all have given it back", || nodes.with("lock:k").is_empty());
    second.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    assert_eq!(first.release(b"lock:k", b"worker-7", None).await, Ok(true));
    eventually("all have given it back", || nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn votes_of_two_grants_of_a_token_are_not_counted_together() {
    let nodes = Nodes::start(3);
    let config = nodes.config();
    let (grantor, other) = (nodes.engine(&config), nodes.engine(&config));
    let grant = grantor.acquire(b"lock:k", b"worker-7", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    nodes.client(2).cmd(&["DEL", "lock:k"]);
    let is_by = |claim: &str| {
        let value = format!("{} {claim}", grant.fence);
        nodes.client(1).cmd(&["SET", "lockgate:fence:lock:k", &value]);
    };
    is_by("1234567890123456");
    let renewed = other.renew(b"lock:k", b"worker-7", MINUTE, None).await;
    assert!(renewed.is_err(), "{renewed:?}");
    assert!(other.release(b"lock:k", b"worker-7", None).await.is_err());
    assert_eq!(nodes.with("lock:k"), [0, 1]);
    is_by(&grant.claim.unwrap().to_string());
    let renewed = other.renew(b"lock:k", b"worker-7", MINUTE, None).await;
    assert!(matches!(renewed, Ok(Some(_))), "{renewed:?}");
    assert_eq!(other.release(b"lock:k", b"worker-7", None).await, Ok(true));
    eventually("it is given back", || nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_node_refuses_arrives_all_the_same() {
    let nodes = Nodes::start(3);
    let engine = nodes.engine(&nodes.config());
    let grant = engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    let wants_replicas = |count| {
        nodes.client(0).cmd(&["CONFIG", "SET", "min-replicas-to-write", count]);
    };
    wants_replicas("1");
    assert_eq!(engine.release(b"lock:k", b"t", grant.claim).await, Ok(true));
    eventually("the others gave it back", || nodes.with("lock:k") == [0]);
    wants_replicas("0");
    eventually("so does the first", || nodes.with("lock:k").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_cannot_hand_a_lock_over_give_it_back() {
    let nodes = Nodes::start(3);
    let engine = nodes.engine(&nodes.config());
    let grant = engine.acquire(b"lock:k", b"a", MINUTE, None).await.unwrap();
    let waiter = tokio::spawn(engine.wait(b"lock:k", b"b", MINUTE, MINUTE, None));
    eventually("it waits", || engine.counts().waiters == 1);
    let memory = |limit| {
        for node in 0..3 {
            nodes.client(node).cmd(&["CONFIG", "SET", "maxmemory", limit]);
        }
    };
    memory("1");
    assert_eq!(engine.release(b"lock:k", b"a", grant.claim).await, Ok(true));
    eventually("it is free", || nodes.with("lock:k").is_empty());
    memory("0");
    assert!(waiter.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_shortens_nothing() {
    let nodes = Nodes::start(3);
    let engines = [nodes.engine(&nodes.config()), nodes.engine(&nodes.config())];
    let late = engines[0].acquire(b"lock:k", b"ta", MINUTE, None).await.unwrap();
    // A vote still in flight would arrive behind the DEL.
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    // The lock runs out, and another client takes it with the token of the waiter.
    for node in 0..3 {
        nodes.client(node).cmd(&["DEL", "lock:k"]);
    }
    engines[1].acquire(b"lock:k", b"tb", MINUTE, None).await.unwrap();
    eventually("all have the other's", || nodes.with("lock:k").len() == 3);
    let mut waiter = Box::pin(engines[0].wait(b"lock:k", b"tb", ms(1000), MINUTE, None));
    std::future::poll_fn(|cx| {
        assert!(waiter.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    tokio::time::sleep(ms(300)).await;
    assert_eq!(engines[0].release(b"lock:k", b"ta", late.claim).await, Ok(false));
    engines[0].drain(MINUTE).await;
    for node in 0..3 {
        let Reply::Int(left) = nodes.client(node).cmd(&["PTTL", "lock:k"]) else { panic!() };
        assert!(left > 1000, "{left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_puts_a_lock_back_where_it_was_lost() {
    let nodes = Nodes::start(5);
    let engine = nodes.engine(&nodes.config());
    let grant = engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 5);
    for lost in [[0, 1], [2, 3], [4, 0]] {
        for node in lost {
            nodes.client(node).cmd(&["DEL", "lock:k", "lockgate:fence:lock:k"]);
        }
        assert!(engine.renew(b"lock:k", b"t", MINUTE, grant.claim).await.unwrap().is_some());
        eventually("all have it again", || nodes.with("lock:k").len() == 5);
        let stored = nodes.client(lost[0]).cmd(&["GET", "lockgate:fence:lock:k"]);
        assert_eq!(stored, Reply::bulk(&format!("{} {}", grant.fence, grant.claim.unwrap())));
    }
    // Failed attempts of others may have left larger fences on the nodes that lose it in turn.
    let larger = grant.fence + 1_000_000_000;
    for lost in [[0, 1], [2, 3], [4, 0]] {
        for node in lost {
            let mut client = nodes.client(node);
            client.cmd(&["DEL", "lock:k"]);
            client.cmd(&["SET", "lockgate:fence:lock:k", &format!("{larger} 1234567890123456")]);
        }
        assert!(engine.renew(b"lock:k", b"t", MINUTE, grant.claim).await.unwrap().is_some());
        eventually("all have it again", || nodes.with("lock:k").len() == 5);
    }
    let attached = engine.attach(&b"lock:k"[..], &b"t"[..]).await.unwrap().unwrap();
    assert_eq!(attached.fence, grant.fence);
    // A connection that does not know the claim renews the lock and gives it back with the same fence.
    assert!(engine.renew(b"lock:k", b"t", MINUTE, None).await.unwrap().is_some());
    assert_eq!(engine.release(b"lock:k", b"t", None).await, Ok(true));
    engine.drain(MINUTE).await;
    assert_eq!(nodes.with("lock:k"), [0; 0]);
    // The next grant's fence exceeds every fence that a node has seen.
    let grant = engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    assert!(grant.fence > larger, "{} {larger}", grant.fence);
    eventually("all have it", || nodes.with("lock:k").len() == 5);
    // A lock that a quorum has lost is not put back: it is lost, and leaves every node.
    for node in [0, 1, 2] {
        nodes.client(node).cmd(&["DEL", "lock:k"]);
    }
    assert_eq!(engine.renew(b"lock:k", b"t", MINUTE, grant.claim).await, Ok(None));
    eventually("nothing is left", || nodes.with("lock:k").is_empty());
    // A lock that was given back is not put back either.
    let grant = engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    engine.drain(MINUTE).await;
    nodes.client(0).cmd(&["DEL", "lock:k"]);
    let renewal = engine.renew(b"lock:k", b"t", MINUTE, grant.claim);
    drop(engine.release(b"lock:k", b"t", grant.claim));
    drop(renewal.await);
    engine.drain(MINUTE).await;
    assert_eq!(nodes.with("lock:k"), [0; 0]);
}

/// Returns the holder's token and what is left of its TTL.
async fn looked(engine: &Engine) -> Option<(Vec<u8>, Option<Duration>)> {
    let held = engine.look(b"lock:k").await.unwrap()?;
    Some((held.token.to_vec(), held.left))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_lock_is_told_as_soon_as_a_quorum_settles_it() {
    let nodes = Nodes::start(5);
    let limit = ms(2000);
    // A frozen node stays connected.
    let config = LocksConfig { node_timeout: limit, node_silence: MINUTE, ..nodes.config() };
    let engine = nodes.engine(&config);
    let is_early = |since: Instant| assert!(since.elapsed() < limit, "{:?}", since.elapsed());
    assert_eq!(looked(&engine).await, None);
    // A token may have any bytes.
    let token = b"\0$1\r\n\r\n*\xff";
    engine.acquire(b"lock:k", token, MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 5);
    for node in 0..5 {
        nodes.client(node).cmd(&["SCRIPT", "FLUSH"]);
    }
    let (holder, left) = looked(&engine).await.unwrap();
    assert_eq!(holder, token);
    // The drift, one hundredth and 2 ms, is taken off.
    let (least, most) = (ms(50_000), MINUTE - MINUTE / 100 - ms(2));
    assert!(left.is_some_and(|left| least < left && left <= most), "{left:?}");
    assert_eq!(nodes.with("lock:k").len(), 5, "nothing is changed");
    nodes.each(RedisServer::freeze, &[1, 3]);
    let since = Instant::now();
    assert_eq!(looked(&engine).await.unwrap().0, token);
    is_early(since);
    nodes.each(RedisServer::freeze, &[0]);
    let error = engine.look(b"lock:k").await.unwrap_err();
    assert_eq!((error.answered, error.missing.len()), (2, 3), "{error}");
    nodes.each(RedisServer::thaw, &[0, 1, 3]);
    engine.drain(MINUTE).await;
    assert_eq!(engine.release(b"lock:k", token, None).await, Ok(true));
    eventually("it is free", || nodes.with("lock:k").is_empty());
    nodes.each(RedisServer::freeze, &[2, 4]);
    let since = Instant::now();
    assert_eq!(looked(&engine).await, None);
    is_early(since);
    nodes.each(RedisServer::freeze, &[0]);
    assert!(engine.look(b"lock:k").await.is_err(), "two do not know what three have");
    nodes.each(RedisServer::thaw, &[0, 2, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_holds_a_lock_that_no_token_can_have_on_a_quorum() {
    let nodes = Nodes::start(5);
    let engine = nodes.engine(&nodes.config());
    let set = |tokens: [&str; 5]| {
        for (node, token) in tokens.iter().enumerate() {
            let seconds = (10 * (node + 1)).to_string();
            nodes.client(node).cmd(&["SET", "lock:k", token, "EX", &seconds]);
        }
    };
    set(["a", "a", "b", "c", "c"]);
    assert_eq!(looked(&engine).await, None);
    nodes.each(RedisServer::freeze, &[4]);
    let error = engine.look(b"lock:k").await.unwrap_err();
    assert_eq!(error.missing.len(), 1, "the silent one may be c's third: {error}");
    nodes.each(RedisServer::thaw, &[4]);
    all_up(&engine);
    engine.drain(MINUTE).await;
    // A quorum has the lock for as long as the third-longest TTL.
    set(["a", "b", "a", "a", "a"]);
    let (holder, left) = looked(&engine).await.unwrap();
    assert_eq!(holder, b"a");
    assert!(left.is_some_and(|left| left <= ms(30_000)), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_token_holds_a_lock_and_breaks_no_connection() {
    let nodes = Nodes::start(5);
    let engine = nodes.engine(&nodes.config());
    let connections = || -> Vec<String> {
        let clients = |node| match nodes.client(node).cmd(&["CLIENT", "LIST"]) {
            Reply::Bulk(list) => String::from_utf8(list).unwrap(),
            other => panic!("{other:?}"),
        };
        let lists = (0..5).map(clients).collect::<String>();
        let ours = lists.lines().filter(|line| line.contains("name=lockgate "));
        ours.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let before = connections();
    let token = b"t".to_vec();
    engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 5);
    let large = "x".repeat(1_000_000);
    nodes.client(0).cmd(&["SET", "lock:k", &large]);
    assert_eq!(looked(&engine).await.unwrap().0, token);
    nodes.client(1).cmd(&["DEL", "lock:k"]);
    nodes.client(1).cmd(&["RPUSH", "lock:k", "t", "t"]);
    assert_eq!(looked(&engine).await.unwrap().0, token);
    let (_, left) = looked(&engine).await.unwrap();
    assert!(left.is_some(), "that of the token: {left:?}");
    nodes.client(2).cmd(&["SET", "lock:k", &large]);
    assert_eq!(looked(&engine).await, Some((Vec::new(), None)), "it is not free");
    nodes.client(2).cmd(&["DEL", "lock:k"]);
    assert_eq!(looked(&engine).await, None, "two and two, and it is free on one");
    let longest = "y".repeat(32 * 1024);
    for node in 0..3 {
        nodes.client(node).cmd(&["SET", "lock:k", &longest]);
    }
    assert_eq!(looked(&engine).await, Some((longest.into_bytes(), None)));
    assert_eq!(before.len(), 5);
    assert_eq!(connections(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_forgotten_is_not_believed_that_a_lock_is_free() {
    let mut nodes = Nodes::start(3);
    let engine = nodes.engine(&nodes.config());
    engine.acquire(b"lock:k", b"t", MINUTE, None).await.unwrap();
    eventually("all have it", || nodes.with("lock:k").len() == 3);
    nodes.client(0).cmd(&["DEL", "lock:k"]);
    nodes.0[1].restart().unwrap();
    let connected = || match nodes.client(1).cmd(&["CLIENT", "LIST"]) {
        Reply::Bulk(list) => String::from_utf8_lossy(&list).contains("name=lockgate "),
        other => panic!("{other:?}"),
    };
    eventually("it waits", || {
        let reason = engine.status()[1].reason.clone();
        connected() && reason.is_some_and(|why| why.starts_with("waits "))
    });
    let error = engine.look(b"lock:k").await.unwrap_err();
    assert!(error.to_string().contains("(waits "), "{error}");
    // The node is believed when it says that the lock is held.
    nodes.client(1).cmd(&["SET", "lock:k", "t"]);
    assert_eq!(looked(&engine).await.unwrap().0, b"t");
}
