//! Kleppmann's scenario, with real processes: A locks and is stopped past its TTL, B locks and writes, A wakes and
//! writes. Whether the client, its proxy or a packet is stopped, A's write is refused, and the data is B's.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Client, Proxy, Reply, Setup, encode, eventually, freeze, pipeline, relay::Relay,
};
use rustix::process::{Pid, Signal, kill_process};

const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
/// The TTL of session locks here: short, so that those of a stopped proxy run out soon.
const SESSION_TTL: &str = "default_ttl: 2s";

/// Starts a deployment with guarded accounts.
fn accounts() -> Proxy {
    Proxy::with().nodes(3).top(ACCOUNTS).locks(SESSION_TTL).start()
}

/// Starts another proxy with the same nodes, perhaps with another way to the data node.
fn beside(proxy: &Proxy, change: impl FnOnce(Setup) -> Setup) -> Proxy {
    let other = change(Proxy::beside(proxy).top(ACCOUNTS)).start();
    eventually("the other proxy is ready", || other.http("/readyz").starts_with("HTTP/1.1 200"));
    other
}

/// Starts B's proxy, A's proxy, and A's way to the data node.
fn with_relay() -> (Proxy, Proxy, Relay) {
    let mut b = accounts();
    let relay = Relay::to(b.data().port());
    let a = beside(&b, |setup| setup.data_port(relay.port()));
    (b, a, relay)
}

/// Returns B, which has taken the lock as soon as A's has run out.
fn next_holder(proxy: &Proxy) -> Client {
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1", "PX", "30000", "WAIT", "30000"]).grant();
    client
}

/// The ways in which a guarded write reaches the data node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A script that compares the fence and writes.
    Short,
    /// A transaction of the proxy, which has asked for the fence before; the data node drops it if the fence is
    /// written in between.
    Long,
    /// Two writes in one call of that script.
    Together,
    /// A transaction of the client.
    Transaction,
}

impl Way {
    const ALL: [Way; 4] = [Way::Short, Way::Together, Way::Long, Way::Transaction];

    /// Sends a write in this way; its key is the second word.
    fn send(self, client: &mut Client, words: &[&str]) {
        let script = "return redis.call(unpack(ARGV))";
        match self {
            Way::Short => client.send(&encode(words)),
            Way::Together => client.send(&pipeline(&[words, words])),
            Way::Long => client.send(&encode(&[&["EVAL", script, "1", words[1]], words].concat())),
            Way::Transaction => client.send(&pipeline(&[&["MULTI"], words, &["EXEC"]])),
        }
    }

    /// Returns an error if a reply to the write is one, else the last reply.
    fn outcome(self, client: &mut Client) -> Reply {
        let count = match self {
            Way::Short | Way::Long => 1,
            Way::Together => 2,
            Way::Transaction => 3,
        };
        let replies: Vec<Reply> = (0..count).map(|_| client.reply()).collect();
        let error = replies.iter().find(|reply| matches!(reply, Reply::Error(_)));
        error.or(replies.last()).expect("a reply").clone()
    }
}

fn assert_refused(reply: &Reply, words: &[&str]) {
    let word = reply.error_text().split(' ').next().unwrap_or_default();
    assert!(words.contains(&word), "{reply:?} instead of {words:?}");
}

/// A client in a process of its own.
struct RedisCli {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl RedisCli {
    fn start(proxy: &Proxy) -> RedisCli {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "redis-cli", "-p", &proxy.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli");
        let stdin = child.stdin.take().expect("input");
        let stdout = BufReader::new(child.stdout.take().expect("output"));
        RedisCli { child, stdin, stdout }
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("input");
    }

    /// Returns the next line that is not empty.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while line.trim().is_empty() {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).expect("output"), 0, "it ended");
        }
        line.trim().to_owned()
    }

    fn lock(&mut self, words: &str) {
        self.type_line(words);
        let [token, fence, validity] = [(); 3].map(|()| self.line());
        assert_eq!(token.len(), 32, "{token}");
        assert!(fence.parse::<u64>().is_ok() && validity.parse::<u64>().is_ok(), "{fence}");
    }

    fn freeze(&self) {
        freeze(&self.child);
    }

    fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("signal");
    }
}

impl Drop for RedisCli {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_client_stopped_past_its_ttl_writes_nothing_when_it_wakes() {
    let first = accounts();
    let second = beside(&first, |setup| setup);
    for proxy in [&first, &second] {
        let mut a = RedisCli::start(&first);
        a.lock("LOCK account:1 PX 3000");
        a.type_line("SET account:1 early");
        assert_eq!(a.line(), "OK");
        a.freeze();
        // The stopped client reads this once it goes on, when it still believes that it has its lock.
        a.type_line("SET account:1 late");
        let mut b = next_holder(proxy);
        assert_eq!(b.cmd(&["GET", "account:1"]), Reply::bulk("early"));
        assert_eq!(b.cmd(&["SET", "account:1", "b"]), Reply::ok());
        a.thaw();
        let refused = a.line();
        assert!(refused.starts_with("NOTHELD") || refused.starts_with("FENCED"), "{refused}");
        assert_eq!(b.cmd(&["GET", "account:1"]), Reply::bulk("b"));
        assert_eq!(b.cmd(&["UNLOCK", "account:1"]), Reply::Int(1));
    }
}

#[test]
fn without_guards_the_same_client_overwrites_the_next_holder() {
    let proxy = Proxy::with().nodes(3).start();
    let mut a = RedisCli::start(&proxy);
    a.lock("LOCK account:1 PX 3000");
    a.freeze();
    a.type_line("SET account:1 late");
    let mut b = next_holder(&proxy);
    assert_eq!(b.cmd(&["SET", "account:1", "b"]), Reply::ok());
    a.thaw();
    assert_eq!(a.line(), "OK");
    assert_eq!(b.cmd(&["GET", "account:1"]), Reply::bulk("late"));
}

#[test]
fn a_client_stopped_with_a_session_lock_keeps_it_as_its_proxy_renews_it() {
    let first = accounts();
    let second = beside(&first, |setup| setup);
    let mut a = RedisCli::start(&first);
    a.lock("LOCK account:1");
    a.freeze();
    a.type_line("SET account:1 late");
    // WAIT is more than twice the session lock's TTL.
    let mut b = second.client();
    let held = b.cmd(&["LOCK", "account:1", "PX", "30000", "WAIT", "5000"]);
    assert_eq!(held, Reply::NullArray);
    assert_refused(&b.cmd(&["SET", "account:1", "b"]), &["NOTHELD"]);
    a.thaw();
    assert_eq!(a.line(), "OK");
    assert_eq!(b.cmd(&["GET", "account:1"]), Reply::bulk("late"));
}

/// The number of clients of [`stop_the_proxy`].
const CLIENTS: usize = 16;

/// Appends an `a` to a list again and again, until a write is refused, or until a round of writes after the proxy has
/// woken succeeds. Returns the first word of the refusal, or `OK`.
fn writer(
    mut client: Client,
    (name, way): (String, Way),
    started: mpsc::Sender<()>,
    awake: Arc<AtomicBool>,
) -> String {
    // Once all writers have dropped their sender, each has written once.
    let mut started = Some(started);
    loop {
        let last = awake.load(Ordering::Relaxed);
        // Several at a time, so that some are in flight whenever the proxy is stopped.
        (0..4).for_each(|_| way.send(&mut client, &["RPUSH", &name, "a"]));
        let replies = [(); 4].map(|()| way.outcome(&mut client));
        let is_error = |reply: &Reply| matches!(reply, Reply::Error(_));
        if let Some(first) = replies.iter().position(is_error) {
            // No later write is made either.
            assert!(replies[first..].iter().all(is_error), "{replies:?}");
            return replies[first].error().split(' ').next().unwrap_or_default().to_owned();
        }
        if last {
            return "OK".into();
        }
        started.take();
    }
}

/// Stops A's proxy at another moment each time, under clients of which each writes to its own account without pause.
/// B locks the accounts through another proxy and writes; then A's proxy goes on. Every write is an entry in its
/// account's list, so that the lists tell the order. Returns the first words of the refusals to A's clients, and how
/// many lists have an entry of A's behind B's.
fn stop_the_proxy(b: &Proxy, a: &Proxy, lock: &[&str], stops: usize) -> (Vec<String>, usize) {
    let (mut told, mut lost) = (Vec::new(), 0);
    for stop in 0..stops {
        let (started, all_started) = mpsc::channel();
        let awake = Arc::new(AtomicBool::new(false));
        let names: Vec<String> = (0..CLIENTS).map(|n| format!("account:{stop}-{n}")).collect();
        let writers: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (mut client, of) =
                    (a.client(), (names[n].clone(), Way::ALL[n % Way::ALL.len()]));
                client.cmd(&[&["LOCK", &of.0], lock].concat()).grant();
                let (started, awake) = (started.clone(), awake.clone());
                thread::spawn(move || writer(client, of, started, awake))
            })
            .collect();
        drop(started);
        assert!(all_started.recv().is_err());
        thread::sleep(Duration::from_micros(rand::random_range(0..20_000)));
        a.freeze();
        let mut holders: Vec<Client> = names.iter().map(|_| b.client()).collect();
        for (holder, name) in holders.iter_mut().zip(&names) {
            holder.send(&encode(&["LOCK", name, "PX", "30000", "WAIT", "30000"]));
        }
        for (holder, name) in holders.iter_mut().zip(&names) {
            holder.reply().grant();
            let Reply::Int(before) = holder.cmd(&["LLEN", name]) else { panic!("no length") };
            assert_eq!(holder.cmd(&["RPUSH", name, "b"]), Reply::Int(before + 1));
        }
        a.thaw();
        awake.store(true, Ordering::Relaxed);
        told.extend(writers.into_iter().map(|writer| writer.join().expect("a reply to each")));
        for (mut holder, name) in holders.into_iter().zip(&names) {
            lost += usize::from(holder.cmd(&["LINDEX", name, "-1"]) != Reply::bulk("b"));
        }
    }
    (told, lost)
}

#[test]
fn a_proxy_stopped_at_any_moment_past_its_session_locks_writes_nothing_when_it_wakes() {
    let b = accounts();
    let a = beside(&b, |setup| setup);
    let (told, lost) = stop_the_proxy(&b, &a, &[], 4);
    let counts =
        ["FENCED", "NOTHELD", "LOCKLOST"].map(|word| told.iter().filter(|t| *t == word).count());
    println!("FENCED, NOTHELD, LOCKLOST: {counts:?}");
    assert_eq!(lost, 0, "{told:?}");
    assert_eq!(counts.iter().sum::<usize>(), told.len(), "{told:?}");
}

#[test]
fn without_guards_a_proxy_that_was_stopped_overwrites_the_next_holder() {
    let b = Proxy::with().nodes(3).start();
    let a = Proxy::beside(&b).start();
    eventually("the other proxy is ready", || a.http("/readyz").starts_with("HTTP/1.1 200"));
    let (told, lost) = stop_the_proxy(&b, &a, &["PX", "3000"], 1);
    assert_eq!((lost, told), (CLIENTS, vec!["OK".to_owned(); CLIENTS]));
}

/// Where A's write is delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Late {
    /// The packet with the write is on its way to the data node.
    Write,
    /// The data node's answer about the fence is on its way back.
    Check,
    /// The data node's answer has arrived, but the proxy is stopped and reads it only when it wakes.
    CheckUnread,
}

/// Makes A write in this way, late: only after B has taken the lock and `b_does` has run.
fn a_is_late(late: Late, way: Way, lock: &[&str], b_does: impl FnOnce(&mut Client)) -> Reply {
    let (b, a, relay) = with_relay();
    let mut client = a.client();
    let fence = client.cmd(&[&["LOCK", "account:1"], lock].concat()).grant().fence.to_string();
    // From here on the data node knows the script.
    assert_eq!(client.cmd(&["SET", "account:1", "100"]), Reply::ok());
    match late {
        Late::Write => relay.hold_request("late"),
        Late::Check | Late::CheckUnread => relay.hold_reply(&fence),
    }
    way.send(&mut client, &["SET", "account:1", "late"]);
    relay.wait_until_held();
    if late == Late::CheckUnread || lock.is_empty() {
        // A running proxy would renew its session lock.
        a.freeze();
    }
    if late == Late::CheckUnread {
        relay.release();
    }
    let mut next = next_holder(&b);
    assert_eq!(next.cmd(&["GET", "account:1"]), Reply::bulk("100"));
    b_does(&mut next);
    relay.release();
    a.thaw();
    let told = way.outcome(&mut client);
    // The connection keeps no right to write either.
    assert_refused(&client.cmd(&["SET", "account:1", "later"]), &["NOTHELD", "LOCKLOST"]);
    assert_eq!(next.cmd(&["INCR", "account:1"]), Reply::Int(102));
    told
}

#[test]
fn a_late_packet_is_refused_by_the_data_node_once_the_next_holder_has_written() {
    for way in Way::ALL {
        let told = a_is_late(Late::Write, way, &["PX", "3000"], |b| {
            assert_eq!(b.cmd(&["SET", "account:1", "101"]), Reply::ok());
        });
        assert_refused(&told, &["FENCED"]);
    }
}

/// The next holder's LOCK alone is enough, so that it can change the value that it reads from then on.
#[test]
fn a_late_packet_is_refused_once_the_next_holder_has_locked() {
    Way::ALL.into_iter().for_each(|way| assert_late_packet_refused(way, ["0", "0"]));
}

/// Late packets are refused too where the clients have selected several databases: fences live in one.
#[test]
fn a_late_packet_is_refused_in_another_database_than_the_next_holders() {
    for (way, databases) in Way::ALL.into_iter().zip([["1", "0"], ["1", "2"], ["0", "1"]]) {
        assert_late_packet_refused(way, databases);
    }
}

fn assert_late_packet_refused(way: Way, [of_late, of_next]: [&str; 2]) {
    let (b, a, relay) = with_relay();
    let (mut late, mut next) = (a.client(), b.client());
    if [of_late, of_next] != ["0", "0"] {
        assert_eq!(late.cmd(&["SELECT", of_late]), Reply::ok());
        assert_eq!(next.cmd(&["SELECT", of_next]), Reply::ok());
    }
    late.cmd(&["LOCK", "account:1", "PX", "3000"]).grant();
    assert_eq!(late.cmd(&["SET", "account:1", "100"]), Reply::ok());
    relay.hold_request("150");
    way.send(&mut late, &["SET", "account:1", "150"]);
    relay.wait_until_held();
    next.cmd(&["LOCK", "account:1", "PX", "30000", "WAIT", "30000"]).grant();
    let mut reader = b.client();
    reader.cmd(&["SELECT", of_late]);
    assert_eq!(reader.cmd(&["GET", "account:1"]), Reply::bulk("100"));
    relay.release();
    assert_refused(&way.outcome(&mut late), &["FENCED"]);
    // The next holder changes the very value that it has read.
    assert_eq!(reader.cmd(&["GET", "account:1"]), Reply::bulk("100"), "{way:?}");
    assert_eq!(next.cmd(&["SET", "account:1", "101"]), Reply::ok());
}

#[test]
fn a_proxy_late_between_its_check_and_its_write_is_refused() {
    for late in [Late::Check, Late::CheckUnread] {
        for lock in [&["PX", "3000"][..], &[]] {
            let told = a_is_late(late, Way::Long, lock, |b| {
                assert_eq!(b.cmd(&["SET", "account:1", "101"]), Reply::ok());
            });
            assert_refused(&told, &["FENCED"]);
        }
    }
}

/// A lock is not granted while the data node cannot be told of it, so that what was sent first is carried out first.
#[test]
fn a_data_node_stopped_past_the_ttl_lets_the_next_holder_read_what_was_written() {
    for way in Way::ALL {
        let mut b = accounts();
        let a = beside(&b, |setup| setup);
        let mut late = a.client();
        late.cmd(&["LOCK", "account:1", "PX", "3000"]).grant();
        assert_eq!(late.cmd(&["SET", "account:1", "100"]), Reply::ok());
        let mut next = b.client();
        assert_eq!(next.cmd(&["PING"]), Reply::simple("PONG"));
        b.data().freeze().expect("stopped");
        way.send(&mut late, &["SET", "account:1", "150"]);
        next.send(&encode(&["LOCK", "account:1", "PX", "30000", "WAIT", "30000"]));
        eventually("its lock has run out", || b.nodes_with("lock:account:1") == 0);
        b.data().thaw().expect("goes on");
        next.reply().grant();
        let seen = next.cmd(&["GET", "account:1"]);
        let told = way.outcome(&mut late);
        let written = !matches!(told, Reply::Error(_));
        assert_eq!(seen, Reply::bulk(if written { "150" } else { "100" }), "{way:?} {told:?}");
        assert_eq!(next.cmd(&["GET", "account:1"]), seen);
    }
}

/// A client that is told of a lock is told how long it holds from then on, or that it does not hold.
#[test]
fn a_lock_whose_fence_the_data_node_learns_late_is_granted_for_what_is_left() {
    let (b, a, relay) = with_relay();
    let mut client = a.client();
    relay.hold_request("lockgate:guard:");
    client.send(&encode(&["LOCK", "account:1", "PX", "10000"]));
    relay.wait_until_held();
    let since = Instant::now();
    thread::sleep(Duration::from_millis(300));
    let late = i64::try_from(since.elapsed().as_millis()).expect("a short time");
    relay.release();
    let granted = client.reply().grant();
    assert!(granted.validity <= 10_000 - late, "{granted:?} after {late} ms");
    assert_eq!(client.cmd(&["SET", "account:1", "100"]), Reply::ok());
    assert_eq!(client.cmd(&["UNLOCK", "account:1"]), Reply::Int(1));

    relay.hold_request("lockgate:guard:");
    client.send(&encode(&["LOCK", "account:1", "PX", "1000"]));
    relay.wait_until_held();
    eventually("it has run out", || b.nodes_with("lock:account:1") == 0);
    relay.release();
    assert_refused(&client.reply(), &["NOTHELD"]);
    assert_refused(&client.cmd(&["SET", "account:1", "150"]), &["NOTHELD"]);
    // Meanwhile the lock was granted to another client.
    relay.hold_request("lockgate:guard:");
    client.send(&encode(&["LOCK", "account:1", "PX", "1000"]));
    relay.wait_until_held();
    let mut next = next_holder(&b);
    relay.release();
    assert_refused(&client.reply(), &["NOTHELD"]);
    assert_eq!(next.cmd(&["SET", "account:1", "101"]), Reply::ok());
    // One node may have had the earlier grant for longer than the others, and was not needed.
    let nodes = b.nodes_with("lock:account:1");
    assert!(nodes >= 2, "{nodes}");
}

/// A proxy whose clock was ahead has left a large fence on the data node, and the lock nodes have forgotten it since.
#[test]
fn a_fence_that_the_data_node_has_seen_is_outbid_for_that_lock_alone() {
    let mut proxy = accounts();
    let mut data = Client::connect(proxy.data().port());
    let mut client = proxy.client();
    let usual = client.cmd(&["LOCK", "account:2", "PX", "30000"]).grant().fence;
    // Two days ahead: more than a proxy accepts for other locks.
    let ahead = usual + 2 * 24 * 60 * 60 * 1_000_000;
    data.cmd(&["SET", "lockgate:guard:lock:account:1", &ahead.to_string()]);
    let mut last = ahead;
    for lock in [&["LOCK", "account:1", "PX", "30000"][..], &["LOCK", "account:1"]] {
        let fence = client.cmd(lock).grant().fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(client.cmd(&["SET", "account:1", "100"]), Reply::ok());
        assert_eq!(client.cmd(&["UNLOCK", "account:1"]), Reply::Int(1));
    }
    let other = client.cmd(&["LOCK", "account:3", "PX", "30000"]).grant().fence;
    assert!(other < ahead, "{other} has learned from {ahead}");
    // The last fence that the range of numbers allows.
    data.cmd(&["SET", "lockgate:guard:lock:account:4", "9007199254740990"]);
    let refused = client.cmd(&["LOCK", "account:4", "PX", "30000"]);
    assert!(refused.error_text().starts_with("FENCED the data node"), "{refused:?}");
    assert!(refused.error_text().contains("the last there is"), "{refused:?}");
    eventually("it is given back", || proxy.nodes_with("lock:account:4") == 0);
}

/// LOCK again with the token of the holder gets a larger fence; on any other connection it is refused.
#[test]
fn a_lock_is_taken_again_on_its_own_connection_alone() {
    let proxy = accounts();
    let [mut first, mut second] = [(); 2].map(|()| proxy.client());
    let lock: &[&str] = &["LOCK", "account:1", "mine", "PX", "30000"];
    let before = first.cmd(lock).grant();
    assert_eq!(second.cmd(lock), Reply::NullArray);
    assert_refused(&second.cmd(&["SET", "account:1", "150"]), &["NOTHELD"]);
    assert!(first.cmd(lock).grant().fence > before.fence);
    assert_eq!(first.cmd(&["SET", "account:1", "100"]), Reply::ok());
}

/// A holds a session lock, and a relay holds its write on the way to the data node.
struct UnderWay {
    b: Proxy,
    a: Proxy,
    relay: Relay,
    client: Client,
    /// The id of A's connection to the data node, as in CLIENT LIST.
    upstream: String,
    fence: String,
}

fn under_way(way: Way) -> UnderWay {
    let (b, a, relay) = with_relay();
    let mut client = a.client();
    let fence = client.cmd(&["LOCK", "account:1"]).grant().fence.to_string();
    assert_eq!(client.cmd(&["SET", "account:1", "100"]), Reply::ok());
    let Reply::Int(id) = client.cmd(&["CLIENT", "ID"]) else { panic!("no id") };
    relay.hold_request("late");
    way.send(&mut client, &["SET", "account:1", "late"]);
    relay.wait_until_held();
    UnderWay { b, a, relay, client, upstream: id.to_string(), fence }
}

impl UnderWay {
    fn data(&mut self) -> Client {
        Client::connect(self.b.data().port())
    }

    /// Whether the data node still has A's connection, with the keys it watches and the commands it queues.
    fn is_connected(&mut self) -> bool {
        let Reply::Bulk(list) = self.data().cmd(&["CLIENT", "LIST"]) else { panic!("no list") };
        let id = format!("id={} ", self.upstream);
        String::from_utf8_lossy(&list).lines().any(|line| line.starts_with(&id))
    }

    /// Checks that A's lock is given back and that its connection to the data node ends. Nothing has been written,
    /// and nothing will be, though the packet may still arrive.
    fn assert_nothing_done(&mut self) {
        let b = &self.b;
        eventually("the lock is given back", || b.nodes_with("lock:account:1") == 0);
        self.assert_nothing_done_after_the_next();
    }

    fn assert_nothing_done_after_the_next(&mut self) {
        let mut next = next_holder(&self.b);
        assert_eq!(next.cmd(&["INCR", "account:1"]), Reply::Int(101));
        self.relay.release();
        eventually("its connection ends", || !self.is_connected());
        assert_eq!(next.cmd(&["GET", "account:1"]), Reply::bulk("101"));
        assert_eq!(next.cmd(&["INCR", "account:1"]), Reply::Int(102));
    }
}

#[test]
fn the_data_node_dies_between_the_check_and_the_write() {
    for way in Way::ALL {
        let mut it = under_way(way);
        it.b.data().kill().expect("killed");
        let (_, _) = it.client.rest();
        let b = &it.b;
        eventually("the lock is given back", || b.nodes_with("lock:account:1") == 0);
        it.b.data().restart().expect("restarted");
        // The data node has forgotten everything, and no later connection carries out what was in flight.
        it.relay.release();
        let mut next = next_holder(&it.a);
        assert_eq!(next.cmd(&["GET", "account:1"]), Reply::NullBulk);
        assert_eq!(next.cmd(&["INCR", "account:1"]), Reply::Int(1));
    }
}

#[test]
fn the_way_to_the_data_node_is_cut_between_the_check_and_the_write() {
    for way in Way::ALL {
        let mut it = under_way(way);
        it.relay.cut();
        assert_no_reply(way, &mut it.client);
        it.assert_nothing_done();
    }
}

#[test]
fn the_data_node_ends_the_connection_between_the_check_and_the_write() {
    for way in Way::ALL {
        let mut it = under_way(way);
        let id = it.upstream.clone();
        assert_eq!(it.data().cmd(&["CLIENT", "KILL", "ID", &id]), Reply::Int(1));
        assert_no_reply(way, &mut it.client);
        it.assert_nothing_done();
    }
}

/// Checks that the connection ends without a reply to the write: at most MULTI is answered.
fn assert_no_reply(way: Way, client: &mut Client) {
    let (said, _) = client.rest();
    let multi: &[u8] = if way == Way::Transaction { b"+OK\r\n" } else { b"" };
    assert_eq!(String::from_utf8_lossy(&said), String::from_utf8_lossy(multi), "{way:?}");
}

#[test]
fn the_client_goes_between_the_check_and_the_write() {
    for way in Way::ALL {
        let mut it = under_way(way);
        std::mem::replace(&mut it.client, it.b.client()).reset();
        // A's lock is kept until nothing of what it has sent can be carried out any more.
        let mut other = it.b.client();
        let held = other.cmd(&["LOCK", "account:1", "PX", "30000", "WAIT", "300"]);
        assert_eq!(held, Reply::NullArray, "{way:?}");
        it.relay.release();
        let mut next = next_holder(&it.b);
        assert!(!it.is_connected(), "{way:?}");
        assert_eq!(next.cmd(&["SET", "account:1", "next"]), Reply::ok());
        thread::sleep(Duration::from_millis(100));
        assert_eq!(next.cmd(&["GET", "account:1"]), Reply::bulk("next"), "{way:?}");
    }
}

#[test]
fn a_client_that_only_stops_sending_has_its_reply() {
    for way in Way::ALL {
        let mut it = under_way(way);
        it.client.hang_up();
        // A's lock is kept until the write that it has sent is done.
        let mut other = it.b.client();
        let held = other.cmd(&["LOCK", "account:1", "PX", "30000", "WAIT", "300"]);
        assert_eq!(held, Reply::NullArray, "{way:?}");
        it.relay.release();
        let told = way.outcome(&mut it.client);
        assert!(matches!(told, Reply::Simple(_) | Reply::Array(_)), "{way:?}: {told:?}");
        assert_eq!(it.client.rest(), (Vec::new(), true));
        let mut next = next_holder(&it.b);
        assert_eq!(next.cmd(&["GET", "account:1"]), Reply::bulk("late"));
    }
}

#[test]
fn the_proxy_is_killed_between_the_check_and_the_write() {
    for way in Way::ALL {
        let mut it = under_way(way);
        it.a.kill();
        // A killed proxy gives no lock back: the lock runs out.
        it.assert_nothing_done_after_the_next();
    }
}

#[test]
fn fences_and_scripts_that_an_operator_deletes_meanwhile_are_written_again() {
    for way in Way::ALL {
        let mut it = under_way(way);
        let mut data = it.data();
        assert_eq!(data.cmd(&["FLUSHALL"]), Reply::ok());
        assert_eq!(data.cmd(&["SCRIPT", "FLUSH"]), Reply::ok());
        it.relay.release();
        let told = way.outcome(&mut it.client);
        if way == Way::Transaction {
            // The proxy does not repeat a transaction of the client.
            assert_refused(&told, &["FENCED"]);
            way.send(&mut it.client, &["SET", "account:1", "again"]);
            assert_eq!(way.outcome(&mut it.client), Reply::Array(vec![Reply::ok()]));
        } else {
            assert_eq!(told, Reply::ok());
            assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("late"));
        }
        let fence = data.cmd(&["GET", "lockgate:guard:lock:account:1"]);
        assert_eq!(fence, Reply::bulk(&it.fence), "{way:?}");
    }
}

#[test]
fn a_clients_own_watch_outlives_a_fence_that_is_written_again() {
    let mut proxy = accounts();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1"]).grant();
    let mut data = Client::connect(proxy.data().port());
    assert_eq!(data.cmd(&["FLUSHALL"]), Reply::ok());
    assert_eq!(client.cmd(&["WATCH", "free"]), Reply::ok());
    assert_eq!(data.cmd(&["SET", "free", "1"]), Reply::ok());
    Way::Transaction.send(&mut client, &["SET", "account:1", "x"]);
    assert_eq!(Way::Transaction.outcome(&mut client), Reply::NullArray);
    Way::Transaction.send(&mut client, &["SET", "account:1", "x"]);
    assert_eq!(Way::Transaction.outcome(&mut client), Reply::Array(vec![Reply::ok()]));
}

#[test]
fn a_proxy_told_to_end_ends_with_the_reply_to_the_write_under_way() {
    for way in Way::ALL {
        let mut it = under_way(way);
        it.a.terminate();
        let a = &it.a;
        eventually("it drains", || TcpStream::connect(("127.0.0.1", a.port())).is_err());
        it.relay.release();
        let told = way.outcome(&mut it.client);
        assert!(matches!(told, Reply::Simple(_) | Reply::Array(_)), "{way:?}: {told:?}");
        assert_eq!(it.client.rest(), (Vec::new(), true));
        assert!(it.a.wait().success());
        let mut next = next_holder(&it.b);
        assert_eq!(next.cmd(&["GET", "account:1"]), Reply::bulk("late"));
    }
}

#[test]
fn a_command_is_looked_up_again_where_the_connection_ends_meanwhile() {
    let (_b, a, relay) = with_relay();
    let mut client = a.client();
    for _ in 0..2 {
        relay.hold_request("COMMAND");
        client.send(&encode(&["NO-SUCH-COMMAND", "a"]));
        relay.wait_until_held();
        relay.cut();
        let reply = client.reply();
        assert!(reply.error().contains("unknown command"), "{reply:?}");
    }
}
