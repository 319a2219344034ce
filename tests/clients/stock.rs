//! Faults as holders of locks see them through stock client libraries, all with default settings: these reconnect and
//! repeat silently, and speak RESP3.
//!
//! Each scenario runs with all libraries at once, each under locks of its own. For each lock a rival polls a second
//! proxy, and once it has the lock it changes what the lock protects.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use bb8_redis::redis::{self, Connection, Value};

use super::agents::{Library, from_value, libraries};
use crate::support::{LIMIT, Proxy, Reply, eventually};

/// The TTL of session locks: longer than a library needs to reconnect.
const TTL: &str = "default_ttl: 6s";
const GUARDS: &str = "guards:
  - {keys: 'account:*', lock: 'account:{1}'}
  - {keys: 'kept:*', lock: 'kept:{1}'}";
/// Errors for a client that no longer holds the lock.
const TOLD: [&str; 4] = ["LOCKLOST", "NOTHELD", "FENCED", "NOTOKEN"];

fn told(reply: &Reply) -> bool {
    TOLD.iter().any(|word| reply.error_text().contains(word))
}

/// Asks until there is an answer, as a program that has lost its connection does.
fn settled(mut ask: impl FnMut() -> Reply) -> Reply {
    let mut answer = ask();
    eventually("an answer", || {
        let settled = answer.error_text().is_empty() || told(&answer);
        if !settled {
            thread::sleep(Duration::from_millis(20));
            answer = ask();
        }
        settled
    });
    answer
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Bulk(digits) => String::from_utf8_lossy(digits).parse().unwrap(),
        Reply::Int(number) => *number,
        other => panic!("not a number: {other:?}"),
    }
}

/// Returns a new token, one for each attempt.
fn token() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("attempt-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

type Libraries = [Box<dyn Library>];

/// Does `work` with all libraries at once.
fn each<'a, T: Send>(
    libraries: &'a Libraries,
    work: impl Fn(&'a dyn Library) -> T + Sync,
) -> Vec<T> {
    all_at_once(libraries, |library| work(library.as_ref()))
}

/// Does `work` with all of them at once.
fn all_at_once<'a, S: Sync, T: Send>(all: &'a [S], work: impl Fn(&'a S) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = all.iter().map(|one| scope.spawn(move || work(one))).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// The proxy of the holders and the proxy of their rivals.
struct Scene {
    proxy: Proxy,
    other: Proxy,
}

impl Scene {
    fn start() -> Scene {
        let proxy = Proxy::with().nodes(3).top(GUARDS).locks(TTL).start();
        let other = Proxy::beside(&proxy).top(GUARDS).start();
        eventually("it is ready", || other.http("/readyz").starts_with("HTTP/1.1 200"));
        Scene { proxy, other }
    }

    /// Takes a session lock `kind:LIBRARY` with a client of its own, and reads what it protects.
    fn hold<'a>(&self, library: &'a dyn Library, kind: &str) -> Hold<'a> {
        let name = format!("{kind}:{}", library.name());
        library.open(&name, self.proxy.port(), false);
        // redis-rs gives up after half a second; on the same connection the token may be sent again.
        let (token, mut asked) = (token(), Instant::now());
        let granted = settled(|| {
            asked = Instant::now();
            library.call(&name, &["LOCK", &name, &token])
        })
        .grant();
        let read = match settled(|| library.call(&name, &["GET", &name])) {
            Reply::Null => 0,
            value => number(&value),
        };
        let promised = asked + Duration::from_millis(granted.validity.try_into().unwrap());
        Hold { library, name, token, promised, read }
    }

    /// Takes two locks with each library, one with a guard and one without.
    fn hold_pairs<'a>(&self, libraries: &'a Libraries) -> Vec<Hold<'a>> {
        let pair = |library| ["account", "free"].map(|kind| self.hold(library, kind));
        each(libraries, pair).into_iter().flatten().collect()
    }

    /// Whether no lock node has the lock any more, which would keep others out.
    fn is_free(&self, lock: &str) -> bool {
        self.proxy.nodes_with(&format!("lock:{lock}")) == 0
    }

    /// Deletes the locks on every node without telling their holders.
    fn delete<'a>(&self, holds: impl IntoIterator<Item = &'a Hold<'a>>) {
        for hold in holds {
            for node in 0..3 {
                let lock = format!("lock:{}", hold.name);
                // A quorum makes the grant; the other nodes follow.
                eventually("the node has it", || {
                    self.proxy.node_client(node).cmd(&["DEL", &lock]) == Reply::Int(1)
                });
            }
        }
    }

    /// Waits until the proxy of the holders knows that none of them holds a lock any more.
    fn noticed(&self) {
        eventually("the losses are noticed", || {
            self.proxy.metric("lockgate_session_locks", "") == 0.0
        });
    }
}

/// A lock, its key on the data node and its client, all with one name.
struct Hold<'a> {
    library: &'a dyn Library,
    name: String,
    token: String,
    /// The time before which no other client may be granted the lock.
    promised: Instant,
    read: i64,
}

impl Hold<'_> {
    fn send(&self, words: &[&str]) -> Reply {
        self.library.call(&self.name, words)
    }

    /// Writes a value that follows from what was read.
    fn write(&self, more: i64) -> Reply {
        let value = (self.read + more).to_string();
        settled(|| self.send(&["SET", &self.name, &value]))
    }

    /// Gives up the lost lock: the client is told that it has none, and frees no other client's.
    fn gives_up(&self, rival: &mut Rival) {
        let name = &self.name;
        let renewed = settled(|| self.send(&["RENEW", name, &self.token]));
        assert_eq!(renewed, Reply::Int(0), "{name}");
        assert_eq!(settled(|| self.send(&["UNLOCK", name, &self.token])), Reply::Int(0), "{name}");
        let unlocked = settled(|| self.send(&["UNLOCK", name]));
        assert!(unlocked == Reply::Int(0) || told(&unlocked), "{name}: {unlocked:?}");
        rival.still_holds();
    }
}

/// A client that also wants the lock.
struct Rival {
    connection: Connection,
    name: String,
    token: String,
    granted: Instant,
    /// The value that it found, and raised by one.
    found: i64,
}

impl Rival {
    /// Asks until the lock is granted, then adds one to what the lock protects.
    fn of(name: &str, port: u16) -> Rival {
        let url = format!("redis://127.0.0.1:{port}");
        let deadline = Instant::now() + 2 * LIMIT;
        let token = token();
        loop {
            assert!(Instant::now() < deadline, "{name}: the rival was never granted it");
            thread::sleep(Duration::from_millis(20));
            let Ok(mut connection) = redis::Client::open(url.as_str()).unwrap().get_connection()
            else {
                continue;
            };
            let lock = redis::cmd("LOCK").arg(&[name, &token, "PX", "60000"]).clone();
            let granted = loop {
                match lock.query::<Value>(&mut connection) {
                    Ok(Value::Nil) => thread::sleep(Duration::from_millis(10)),
                    Ok(Value::Array(_)) => break true,
                    // The data node or the proxy is away, or the proxy does not know its nodes yet.
                    _ => break false,
                }
            };
            if granted {
                let granted = Instant::now();
                let mut rival =
                    Rival { connection, name: name.to_owned(), token, granted, found: 0 };
                rival.found = match rival.cmd(&["GET", name]) {
                    Reply::Null => 0,
                    value => number(&value),
                };
                let more = (rival.found + 1).to_string();
                assert_eq!(rival.cmd(&["SET", name, &more]), Reply::ok(), "{name}");
                return rival;
            }
        }
    }

    fn cmd(&mut self, words: &[&str]) -> Reply {
        let reply = redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut self.connection);
        from_value(reply.unwrap_or_else(|error| panic!("{}: {words:?}: {error}", self.name)))
    }

    /// Checks that neither its lock nor its update is gone.
    fn still_holds(&mut self) {
        let (name, token) = (self.name.clone(), self.token.clone());
        assert_eq!(number(&self.cmd(&["GET", &name])), self.found + 1, "{name}: lost update");
        let renewed = number(&self.cmd(&["RENEW", &name, &token, "PX", "60000"]));
        assert!(renewed > 0, "{name}: the rival's lock was released");
    }

    fn releases(&mut self) {
        let (name, token) = (self.name.clone(), self.token.clone());
        assert_eq!(self.cmd(&["UNLOCK", &name, &token]), Reply::Int(1), "{name}");
    }
}

/// Breaks the holder's connection; the holder reconnects and goes on as if nothing had happened.
fn a_broken_connection(fault: impl FnOnce(&mut Proxy)) {
    let (mut scene, libraries) = (Scene::start(), libraries());
    let others = scene.other.port();
    // By kind, the holder goes on, takes its lock over, or does nothing for longer than its validity.
    let kinds = ["account", "kept", "idle"];
    let holds = each(&libraries, |library| kinds.map(|kind| scene.hold(library, kind)));
    let holds: Vec<_> = holds.into_iter().flatten().collect();
    thread::scope(|scope| {
        let holds: Vec<_> = holds
            .iter()
            .map(|hold| (hold, scope.spawn(|| Rival::of(&hold.name, others))))
            .collect();
        fault(&mut scene.proxy);
        for (hold, rival) in holds {
            scope.spawn(move || match hold.name.split(':').next().unwrap() {
                "account" => goes_on(hold, || rival.join().unwrap()),
                "kept" => takes_over(hold, || rival.join().unwrap()),
                _ => sleeps(hold, || rival.join().unwrap()),
            });
        }
    });
}

/// Goes on with a guarded key: writes made before another client has the lock count, later ones are refused.
fn goes_on(hold: &Hold<'_>, rival: impl FnOnce() -> Rival) {
    let name = &hold.name;
    let written = hold.write(50);
    assert!(written == Reply::ok() || told(&written), "{name}: {written:?}");
    let mut rival = rival();
    assert!(rival.granted >= hold.promised, "{name}: granted within the validity told");
    let expected = hold.read + if written == Reply::ok() { 50 } else { 0 };
    assert_eq!(rival.found, expected, "{name}: lost update ({written:?})");
    let late = hold.write(100);
    assert!(told(&late), "{name}: {late:?}");
    hold.gives_up(&mut rival);
}

/// Takes the lock over: the guard tells the client that it is on another connection, which keeps the lock once it
/// sends RENEW with the token.
fn takes_over(hold: &Hold<'_>, rival: impl FnOnce() -> Rival) {
    let name = &hold.name;
    eventually("it has reconnected", || told(&hold.write(25)));
    let renewed = settled(|| hold.send(&["RENEW", name, &hold.token]));
    if renewed == Reply::Int(0) {
        assert!(Instant::now() >= hold.promised, "{name}: lost within the validity told");
        println!("{name}: too late to take it over");
        return hold.gives_up(&mut rival());
    }
    assert!(number(&renewed) > 0, "{name}");
    thread::sleep(hold.promised.saturating_duration_since(Instant::now()));
    thread::sleep(Duration::from_secs(1));
    assert_eq!(hold.write(50), Reply::ok(), "{name}");
    let released = Instant::now();
    // Without the token, which the new connection knows.
    assert_eq!(settled(|| hold.send(&["UNLOCK", name])), Reply::Int(1), "{name}");
    let mut rival = rival();
    assert!(rival.granted >= released, "{name}: granted to two");
    assert_eq!(rival.found, hold.read + 50, "{name}: lost update");
    hold.gives_up(&mut rival);
}

/// Sleeps without a guard: writes within the validity count; after that the client is told of the loss, if it asks.
fn sleeps(hold: &Hold<'_>, rival: impl FnOnce() -> Rival) {
    let name = &hold.name;
    let written = hold.write(50);
    let in_time = Instant::now() < hold.promised;
    let mut rival = rival();
    assert!(rival.granted >= hold.promised, "{name}: granted within the validity told");
    if in_time {
        assert_eq!((written, rival.found), (Reply::ok(), hold.read + 50), "{name}: lost update");
        hold.gives_up(&mut rival);
    } else {
        println!("{name}: wrote too late to be judged");
    }
}

#[test]
fn no_update_is_lost_when_the_data_node_ends_connections() {
    a_broken_connection(|proxy| {
        let killed = proxy.data_client().cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        // With `share: yes` most clients have no connection of their own.
        let least = if std::env::var_os("LOCKGATE_TEST_SHARE").is_some() { 3 } else { 15 };
        assert!(number(&killed) >= least, "{killed:?}");
    });
}

#[test]
fn no_update_is_lost_when_the_proxy_is_restarted() {
    a_broken_connection(|proxy| {
        proxy.terminate();
        proxy.wait();
        proxy.start_again();
    });
}

#[test]
#[ignore = "takes long: make long"]
fn no_update_is_lost_when_the_data_node_is_restarted() {
    a_broken_connection(|proxy| proxy.data().restart().unwrap());
}

/// While the data node is away, clients get no error reply: libraries would take it for an answer, and many programs
/// would end. Libraries repeat here what they repeat without a proxy.
#[test]
fn a_data_node_that_is_away_for_a_moment_is_waited_for_as_without_a_proxy() {
    let (mut scene, libraries) = (Scene::start(), libraries());
    let ways = [("through", scene.proxy.port()), ("direct", scene.proxy.data().port())];
    let clients: Vec<_> = libraries
        .iter()
        .flat_map(|library| ways.map(|(way, port)| (library.as_ref(), way, port)))
        .collect();
    all_at_once(&clients, |(library, way, port)| {
        library.open(way, *port, false);
        assert_eq!(settled(|| library.call(way, &["SET", way, "0"])), Reply::ok());
    });
    scene.proxy.data().kill().unwrap();
    // Commands sent on the lost connection and not yet answered would be another matter.
    thread::sleep(Duration::from_millis(300));
    let answered = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let ask = |way: &str, library: &dyn Library| library.call(way, &["SET", way, "1"]);
            all_at_once(&clients, |(library, way, _)| ask(way, *library))
        });
        thread::sleep(Duration::from_millis(1500));
        scene.proxy.data().restart().unwrap();
        asking.join().unwrap()
    });
    for (library, both) in libraries.iter().zip(answered.chunks(2)) {
        let (name, [through, direct]) = (library.name(), both) else { unreachable!() };
        println!("{name}: {through:?}, direct {direct:?}");
        match name {
            "redis-rs" => {
                assert!(direct.error_text().contains("broken pipe"), "it does not repeat")
            }
            _ => assert_eq!(*direct, Reply::ok(), "{name}"),
        }
        // On reconnecting, node-redis sends what waits, and reports it as failed if that connection fails.
        match name {
            "redis-rs" => assert_eq!(through, direct),
            "node-redis" if *through != Reply::ok() => {
                assert_eq!(through.error_text(), "Socket closed unexpectedly");
            }
            _ => assert_eq!(*through, Reply::ok(), "{name}"),
        }
    }
}

/// The lock is deleted on its nodes and granted to another client at once. The guard refuses the holder's next write
/// at once; without a guard the proxy does, as soon as it knows.
#[test]
fn a_holder_whose_lock_was_deleted_is_refused() {
    let (scene, libraries) = (Scene::start(), libraries());
    let holds = scene.hold_pairs(&libraries);
    scene.delete(&holds);
    all_at_once(&holds, |hold| {
        let mut rival = Rival::of(&hold.name, scene.other.port());
        if hold.name.starts_with("free") {
            scene.noticed();
        }
        let late = hold.write(100);
        assert!(told(&late), "{}: {late:?}", hold.name);
        hold.gives_up(&mut rival);
    });
}

/// A pipeline that was sent under a lost lock changes nothing.
#[test]
fn a_pipeline_under_a_lost_lock_does_nothing() {
    let (scene, libraries) = (Scene::start(), libraries());
    let holds = scene.hold_pairs(&libraries);
    scene.delete(&holds);
    all_at_once(&holds, |hold| {
        let (library, name) = (hold.library, hold.name.as_str());
        let mut rival = Rival::of(name, scene.other.port());
        scene.noticed();
        let [second, third] = [2, 3].map(|n| format!("{name}:{n}"));
        let writes: [&[&str]; 3] =
            [&["SET", name, "100"], &["SET", &second, "x"], &["INCR", &third]];
        for reply in library.pipe(name, &writes) {
            assert!(told(&reply), "{name}: {reply:?}");
        }
        let data = [&second, &third].map(|key| rival.cmd(&["EXISTS", key]));
        assert_eq!(data, [Reply::Int(0), Reply::Int(0)], "{name}");
        // The LOCK stands in one pipeline with the write that needs it. Without a guard the write behind a refused
        // LOCK would be carried out.
        if name.starts_with("account") {
            let token = token();
            let replies = library.pipe(
                name,
                &[
                    &["LOCK", name, &token, "PX", "5000"],
                    &["SET", name, "100"],
                    &["UNLOCK", name, &token],
                ],
            );
            assert_eq!((&replies[0], &replies[2]), (&Reply::Null, &Reply::Int(0)), "{name}");
            assert!(told(&replies[1]), "{name}: {replies:?}");
        }
        hold.gives_up(&mut rival);
    });
}

/// Several workers share a client: a pool, or one connection if the library has no pool.
#[test]
fn workers_that_share_a_pool_lose_nothing() {
    const WORKERS: usize = 4;
    const ROUNDS: usize = 5;
    let (scene, libraries) = (Scene::start(), libraries());
    each(&libraries, |library| {
        let name = format!("account:{}", library.name());
        let name = name.as_str();
        library.open(name, scene.proxy.port(), true);
        let attempt = |token: &str| {
            // A lease. Its LOCK waits a little, even on the connection by which another worker holds the lock.
            let lock = ["LOCK", name, token, "PX", "20000", "WAIT", "100"];
            let reply = library.call(name, &lock);
            if let Reply::Array(_) = reply {
                return true;
            }
            let has_more_behind = reply.error_text().contains("DEADLOCK");
            let is_shared = ["ioredis", "redis-rs"].contains(&library.name());
            assert!(is_shared || !has_more_behind, "{name}: a pool sends nothing behind it");
            let busy = reply == Reply::Null || has_more_behind;
            // redis-rs gives up after half a second, and bb8 gives such connections out again.
            assert!(busy || reply.error_text().contains("timed out"), "{name}: {reply:?}");
            // As in a "finally": whatever became of the LOCK, it frees only its own lock.
            let freed = settled(|| library.call(name, &["UNLOCK", name, token]));
            assert!(freed == Reply::Int(0) || !busy, "{name}: another's lock was released");
            false
        };
        all_at_once(&[(); WORKERS], |()| {
            for _ in 0..ROUNDS {
                let token = loop {
                    let token = token();
                    if attempt(&token) {
                        break token;
                    }
                    thread::sleep(Duration::from_millis(10));
                };
                let read = match settled(|| library.call(name, &["GET", name])) {
                    Reply::Null => 0,
                    value => number(&value),
                };
                // The pool may give out another connection than the one that holds the lock.
                let more = (read + 1).to_string();
                let attach = ["LOCK.ATTACH", name, &token];
                let detach = ["LOCK.DETACH", name];
                let write = [&attach[..], &["SET", name, &more], &detach];
                let written = settled(|| library.pipe(name, &write).remove(1));
                assert_eq!(written, Reply::ok(), "{name}");
                let released = settled(|| library.call(name, &["UNLOCK", name, &token]));
                assert_eq!(released, Reply::Int(1), "{name}");
            }
        });
        let done = settled(|| library.call(name, &["GET", name]));
        assert_eq!(number(&done), (WORKERS * ROUNDS) as i64, "{name}: lost update");
    });
    // A session lock that one worker took is lost: the writes of all workers are refused.
    let holds = each(&libraries, |library| {
        let name = format!("account:{}", library.name());
        let token = token();
        settled(|| library.call(&name, &["LOCK", &name, &token])).grant();
        let read = number(&settled(|| library.call(&name, &["GET", &name])));
        Hold { library, name, token, promised: Instant::now(), read }
    });
    scene.delete(&holds);
    all_at_once(&holds, |hold| {
        let mut rival = Rival::of(&hold.name, scene.other.port());
        all_at_once(&[(); WORKERS], |()| {
            let late = hold.write(100);
            assert!(told(&late), "{}: {late:?}", hold.name);
        });
        hold.gives_up(&mut rival);
    });
}

/// The wait is longer than redis-py and node-redis wait for a reply; redis-rs gives up long before.
#[test]
fn a_wait_beyond_the_librarys_time_out_leaves_nobody_with_the_lock() {
    let (scene, libraries) = (Scene::start(), libraries());
    let held = AtomicUsize::new(0);
    each(&libraries, |library| {
        let name = format!("account:{}", library.name());
        let name = name.as_str();
        library.open(name, scene.proxy.port(), false);
        let mut rival = Rival::of(name, scene.other.port());
        held.fetch_add(1, Ordering::Relaxed);
        eventually("all are held", || held.load(Ordering::Relaxed) == libraries.len());
        let token = token();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                let reply = library.call(name, &["LOCK", name, &token, "WAIT", "30000"]);
                println!("{name}: LOCK … WAIT after {:?}: {reply:?}", begun.elapsed());
                let granted = matches!(reply, Reply::Array(_));
                if granted {
                    let read = number(&settled(|| library.call(name, &["GET", name])));
                    let more = (read + 1).to_string();
                    let written = settled(|| library.call(name, &["SET", name, &more]));
                    assert_eq!(written, Reply::ok(), "{name}");
                }
                // As in a "finally", after a time-out too: UNLOCK stands behind the LOCK.
                let released = library.call(name, &["UNLOCK", name, &token]);
                println!("{name}: UNLOCK: {released:?}");
                assert!(!granted || released == Reply::Int(1), "{name}: {released:?}");
                granted
            });
            thread::sleep(Duration::from_millis(6500));
            rival.still_holds();
            rival.releases();
            let granted = waiting.join().unwrap();
            eventually("nobody has it", || scene.is_free(name));
            let mut next = Rival::of(name, scene.other.port());
            assert_eq!(next.found, 1 + i64::from(granted), "{name}: lost update");
            next.releases();
        });
    });
}

#[test]
fn they_speak_the_protocol_that_is_their_default() {
    let (scene, libraries) = (Scene::start(), libraries());
    let spoken = each(&libraries, |library| {
        library.open("info", scene.proxy.port(), false);
        let Reply::Bulk(info) = settled(|| library.call("info", &["CLIENT", "INFO"])) else {
            panic!("no CLIENT INFO")
        };
        let info = String::from_utf8(info).unwrap();
        let resp = info.split_whitespace().find_map(|field| field.strip_prefix("resp="));
        (library.name(), resp.unwrap().to_owned())
    });
    let spoken: Vec<_> = spoken.iter().map(|(name, resp)| (*name, resp.as_str())).collect();
    let expected = [
        ("redis-py", "3"),
        ("redis-py-asyncio", "3"),
        ("ioredis", "3"),
        ("node-redis", "3"),
        ("redis-rs", "2"),
    ];
    assert_eq!(spoken, expected);
}
