//! Log lines about locks, and the audit trail.

use std::{
    collections::HashSet,
    fs,
    io::Read,
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::who::{address_of, named};
use crate::support::{Proxy, Reply, encode, eventually, pipeline};

/// Returns the lines of the log that have all of these words.
pub(crate) fn lines(proxy: &Proxy, words: &[&str]) -> Vec<String> {
    let log = proxy.log();
    let is_one = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(is_one).map(str::to_owned).collect()
}

/// Returns the number under this name in a line of JSON.
fn number(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{line}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{name} in {line}"))
}

#[test]
fn a_lost_lock_and_a_lease_that_ran_out_are_told_with_their_client() {
    let proxy = Proxy::with().nodes(3).locks("default_ttl: 1s").start();
    let mut holder = named(&proxy, "worker");
    let lost = holder.cmd(&["LOCK", "lost"]).grant();
    let lease = holder.cmd(&["LOCK", "lease\r\n", "PX", "500"]).grant();
    holder.cmd(&["LOCK", "given:back", "PX", "500"]).grant();
    assert_eq!(holder.cmd(&["UNLOCK", "given:back"]), Reply::Int(1));
    for node in 0..3 {
        assert_eq!(proxy.node_client(node).cmd(&["DEL", "lock:lost"]), Reply::Int(1));
    }
    let client = format!("\"address\":\"{}\",\"name\":\"worker\"", address_of(&holder));
    let told = || lines(&proxy, &["a session lock was lost", "\"lock\":\"lost\"", &client]);
    eventually("the loss is told", || !told().is_empty());
    let votes = ["\"reason\":\"not_held\"", "\"votes\":\"0 yes, 3 no, 0 missing of 3\""];
    assert!(votes.iter().all(|word| told()[0].contains(word)), "{:?}", told());
    assert!(told()[0].contains("\"level\":\"WARN\""));
    let told = || lines(&proxy, &["a lease ran out", &client]);
    eventually("the end of the lease is told", || !told().is_empty());
    assert!(told()[0].contains(r#""lock":"lease\\r\\n""#), "{:?}", told());
    assert_eq!(number(&told()[0], "fence"), u64::try_from(lease.fence).unwrap());
    // The time until its end, though it is told later.
    assert!(number(&told()[0], "held_ms") <= 500, "{:?}", told());
    assert_eq!(lines(&proxy, &["given:back"]), Vec::<String>::new());
    assert!(!proxy.log().contains(&lost.token) && !proxy.log().contains(&lease.token));
}

#[test]
fn the_end_of_the_quorum_and_its_return_have_one_line_each() {
    let mut proxy = Proxy::with().nodes(3).start();
    proxy.node(0).freeze().unwrap();
    eventually("it is seen", || proxy.nodes_up() == 2);
    assert_eq!(lines(&proxy, &["the quorum is"]), Vec::<String>::new());
    proxy.node(1).freeze().unwrap();
    eventually("its end is told", || !lines(&proxy, &["the quorum is lost"]).is_empty());
    let line = &lines(&proxy, &["the quorum is lost", "\"voting\":1", "\"needed\":2"])[0];
    for node in 0..2 {
        let port = proxy.node(node).port();
        assert!(line.contains(&format!("127.0.0.1:{port} (")), "{line}");
    }
    proxy.node(0).thaw().unwrap();
    eventually("its return is told", || !lines(&proxy, &["the quorum is back"]).is_empty());
    assert_eq!(lines(&proxy, &["the quorum is"]).len(), 2);
    proxy.node(1).thaw().unwrap();
}

#[test]
fn refused_writes_are_told_with_client_and_command_and_few_of_them() {
    let guards = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let proxy = Proxy::with().nodes(3).top(guards).start();
    let (mut careless, mut slept) = (named(&proxy, "careless"), named(&proxy, "slept"));
    let told = |words: &[&str]| lines(&proxy, &[&["guards: "], words].concat());
    let secret = "a-value-of-the-client";
    assert!(careless.cmd(&["set", "account:7", secret]).error().starts_with("NOTHELD"));
    let client = format!("\"address\":\"{}\",\"name\":\"careless\"", address_of(&careless));
    let line = &told(&["NOTHELD 'account:7'"])[0];
    assert!(line.contains("\"command\":\"SET\"") && line.contains(&client), "{line}");

    let fence = slept.cmd(&["LOCK", "account:8", "PX", "30000"]).grant().fence;
    assert_eq!(slept.cmd(&["SET", "account:8", "1"]), Reply::ok());
    let other = proxy.client().cmd(&["RENEW", "account:8", "x"]);
    assert_eq!(other, Reply::Int(0));
    let mut data = proxy.data_client();
    let newer = (fence + 1000).to_string();
    assert_eq!(data.cmd(&["SET", "lockgate:guard:lock:account:8", &newer]), Reply::ok());
    assert!(slept.cmd(&["INCR", "account:8"]).error().starts_with("FENCED"));
    let line = &told(&["FENCED 'account:8'"])[0];
    assert!(line.contains("\"command\":\"INCR\"") && line.contains("\"name\":\"slept\""), "{line}");

    for _ in 0..200 {
        careless.cmd(&["set", "account:9", secret]);
    }
    let all = || told(&["NOTHELD 'account:9'"]);
    eventually("it is told that lines were left out", || {
        let left_out = lines(&proxy, &["guards: ", "\"left_out\""]);
        let left_out: u64 = left_out.iter().map(|line| number(line, "left_out")).sum();
        left_out + all().len() as u64 >= 200
    });
    assert!(all().len() < 100, "{}", all().len());
    assert!(!proxy.log().contains(secret));
}

#[test]
fn the_audit_trail_has_a_line_for_each_grant_and_its_end() {
    let settings = Proxy::with().nodes(3).environment("LOCKGATE_LOG", "");
    let mut proxy = settings.top("log: {level: info}").start();
    let (mut first, mut second) = (named(&proxy, "first"), named(&proxy, "second"));
    first.cmd(&["LOCK", "before"]).grant();
    let file = proxy.config_file();
    let text = fs::read_to_string(&file).unwrap();
    // The trail does not depend on the log's level.
    fs::write(&file, text.replace("{level: info}", "{level: 'off', locks: all}")).unwrap();
    proxy.reload();
    eventually("it is on", || {
        first.cmd(&["LOCK", "probe", "PX", "1000"]).grant();
        first.cmd(&["UNLOCK", "probe"]);
        !lines(&proxy, &["\"audit\"", "probe"]).is_empty()
    });
    let granted = first.cmd(&["LOCK", "job", "PX", "30000"]).grant();
    second.send(&encode(&["LOCK", "job", "my-own-token", "WAIT", "60000"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(first.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    let handed = second.reply().grant();
    second.hang_up();
    let of = |event: &str, name: &str| {
        let event = format!("\"audit\":\"{event}\"");
        lines(&proxy, &[&event, "\"lock\":\"job\"", &format!("\"name\":\"{name}\"")])
    };
    eventually("the last end is told", || !of("released", "second").is_empty());
    for (name, fence, kind, address) in [
        ("first", granted.fence, "lease", address_of(&first)),
        ("second", handed.fence, "session", address_of(&second)),
    ] {
        for event in ["granted", "released"] {
            let [line] = &of(event, name)[..] else { panic!("{event} {name}: {}", proxy.log()) };
            assert_eq!(number(line, "fence"), u64::try_from(fence).unwrap());
            assert!(line.contains(&format!("\"address\":\"{address}\"")), "{line}");
            assert!(line.contains(&format!("pid {}\"", proxy.pid())), "{line}");
            let told = if event == "granted" { "null".into() } else { format!("\"{kind}\"") };
            assert!(line.contains(&format!("\"kind\":{told},")), "{line}");
            assert_eq!(line.contains("\"held_ms\":null"), event == "granted", "{line}");
            assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
        }
    }
    // A holder that locks again gets a new grant with a new fence.
    let again = [0; 2].map(|_| first.cmd(&["LOCK", "again", "t", "PX", "30000"]).grant().fence);
    assert_eq!(first.cmd(&["UNLOCK", "again", "t"]), Reply::Int(1));
    for (event, fence) in [("replaced", again[0]), ("released", again[1])] {
        let words = [&format!("\"audit\":\"{event}\""), "\"lock\":\"again\""];
        eventually("its end is told", || !lines(&proxy, &words).is_empty());
        let [line] = &lines(&proxy, &words)[..] else { panic!("{event}: {}", proxy.log()) };
        assert_eq!(number(line, "fence"), u64::try_from(fence).unwrap());
    }
    first.cmd(&["LOCK", "forgotten", "PX", "500"]).grant();
    let ran_out = ["\"audit\":\"ran_out\"", "\"lock\":\"forgotten\""];
    eventually("the end of the lease is told", || !lines(&proxy, &ran_out).is_empty());
    assert!(!proxy.log().contains(&granted.token) && !proxy.log().contains("my-own-token"));
    fs::write(&file, text).unwrap();
    proxy.reload();
    eventually("it is off again", || {
        let before = proxy.log().len();
        first.cmd(&["LOCK", "probe", "PX", "1000"]).grant();
        first.cmd(&["UNLOCK", "probe"]);
        proxy.log().len() == before
    });
    proxy.terminate();
    proxy.wait();
}

#[test]
#[ignore = "takes long: make long"]
fn each_lease_that_nobody_gives_back_has_an_end_in_the_audit_trail() {
    let proxy = Proxy::with().nodes(1).top("log: {level: 'off', locks: all}").start();
    let mut client = proxy.client();
    // More leases than the look-around that comes now and then would find.
    let keys: Vec<String> = (0..10_000).map(|n| format!("k{n}")).collect();
    let mut granted = 0;
    for some in keys.chunks(100) {
        let words: Vec<[&str; 4]> = some.iter().map(|key| ["LOCK", key, "PX", "100"]).collect();
        let all: Vec<&[&str]> = words.iter().map(|words| &words[..]).collect();
        let replies = client.pipe(&all);
        granted += replies.iter().filter(|reply| matches!(reply, Reply::Array(_))).count();
    }
    let told = |event: &str| proxy.log().matches(&format!("\"audit\":\"{event}\"")).count();
    assert!(granted > 5000, "{granted}");
    eventually("each has its end", || {
        let ended = told("ran_out");
        ended >= granted && ended == told("granted")
    });
}

/// A proxy with the audit trail whose log goes into a pipe. It has the place of a proxy that has ended.
struct Piped {
    place: Proxy,
    child: Child,
}

impl Piped {
    fn start() -> Piped {
        Piped::start_into("", Stdio::piped())
    }

    /// Starts it. `top`: further lines of its configuration.
    fn start_into(top: &str, log: Stdio) -> Piped {
        let mut place = Proxy::with().top(&format!("log: {{locks: all}}\n{top}")).start();
        place.terminate();
        place.wait();
        let mut child = Command::new("setpriv");
        child.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--config"]);
        child.arg(place.config_file()).env("LOCKGATE_LOG", "info");
        let child = child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let piped = Piped { place, child: child.unwrap() };
        eventually("it is ready", || {
            let admin = ("127.0.0.1", piped.place.admin_port());
            std::net::TcpStream::connect(admin).is_ok()
                && piped.place.http("/readyz").starts_with("HTTP/1.1 200")
        });
        piped
    }

    /// Asks for these locks. Returns those that are granted.
    fn lock(&self, names: Vec<String>) -> Vec<String> {
        let mut client = self.place.client();
        let mut granted = Vec::new();
        for some in names.chunks(50) {
            let words = |name| ["LOCK", name, "the-token", "PX", "60000"];
            let commands: Vec<_> = some.iter().map(|name| words(name.as_str())).collect();
            client.send(&pipeline(&commands.iter().map(|words| &words[..]).collect::<Vec<_>>()));
            for name in some {
                match client.reply() {
                    Reply::Array(_) => granted.push(name.clone()),
                    refused => assert!(refused.error().starts_with(UNWRITTEN), "{refused:?}"),
                }
            }
        }
        granted
    }

    fn dropped(&self) -> usize {
        self.place.metric("lockgate_log_lines_dropped_total", "") as usize
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The reply to a LOCK while the audit trail cannot be written.
const UNWRITTEN: &str = "TRYAGAIN the audit trail cannot be written (log.locks): ";

/// Returns names whose lines in the trail are as long as possible.
fn long_names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:08}{}", "\u{1}".repeat(120))).collect()
}

/// Returns the locks for which the audit trail has this event. Each line must be whole.
fn told_of(log: &str, event: &str) -> Vec<String> {
    let lock = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        (line["audit"] == event).then(|| line["lock"].as_str().unwrap().to_owned())
    };
    log.lines().filter_map(lock).collect()
}

/// Reads the log to its end: at most `bytes` at once, with this pause in between until it must hurry.
fn read_slowly(
    mut from: ChildStderr,
    (bytes, pause): (usize, Duration),
    hurries: Arc<AtomicBool>,
) -> JoinHandle<String> {
    thread::spawn(move || {
        let (mut log, mut buffer) = (Vec::new(), vec![0; bytes]);
        loop {
            match from.read(&mut buffer).unwrap() {
                0 => return String::from_utf8(log).unwrap(),
                read => log.extend_from_slice(&buffer[..read]),
            }
            if !hurries.load(Ordering::Relaxed) {
                thread::sleep(pause);
            }
        }
    })
}

/// Sets the flag when dropped.
struct SetAtLast<'a>(&'a AtomicBool);

impl Drop for SetAtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "takes long: make long"]
fn the_audit_trail_is_complete_though_nobody_reads_it_for_a_while() {
    let rules = "adopt:\n  - {keys: 'own:*', mode: enforce}\n  - {keys: 'both:*', mode: bridge}";
    let mut proxy = Piped::start_into(rules, Stdio::piped());
    let (mut client, mut other) = (proxy.place.client(), proxy.place.client());
    client.cmd(&["LOCK", "mine", "t", "PX", "60000"]).grant();
    let mut past = proxy.place.data_client();
    for key in ["both:old", "both:older"] {
        assert_eq!(past.cmd(&["SET", key, "t", "PX", "60000"]), Reply::ok());
    }
    let granted = proxy.lock(long_names(5000));
    assert!((1000..5000).contains(&granted.len()), "{}", granted.len());

    // It does not matter how a lock is asked for.
    for words in [
        &["LOCK", "new"][..],
        &["LOCK", "new", "WAIT", "100"],
        &["LOCK", "mine", "t", "PX", "60000"],
        &["SET", "own:new", "t", "NX", "PX", "60000"],
        &["SET", "both:new", "t", "NX", "PX", "60000"],
        &["LOCK", "both:new"],
        &["PEXPIRE", "both:old", "60000"],
        &["DEL", "both:older"],
    ] {
        let refused = client.cmd(words);
        assert!(
            refused.error().contains("the audit trail cannot be written"),
            "{words:?}: {refused:?}"
        );
    }
    // A transaction does not go on without its lock.
    let queued = Reply::simple("QUEUED");
    assert_eq!(client.cmd(&["MULTI"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "own:new", "t", "NX", "PX", "60000"]), queued);
    assert_eq!(client.cmd(&["SET", "done", "x"]), queued);
    let refused = client.cmd(&["EXEC"]);
    assert!(matches!(&refused, Reply::Error(error) if error.starts_with(UNWRITTEN)), "{refused:?}");
    assert_eq!(client.cmd(&["GET", "done"]), Reply::NullBulk);
    let kept = other.cmd(&["RENEW", "mine", "t"]);
    assert!(kept.error().starts_with(UNWRITTEN), "its keeper would be another: {kept:?}");
    let unwritten = |name: &str| proxy.place.metric(name, "result=\"unwritten\"");
    assert!(unwritten("lockgate_lock_requests_total") > 1000.0);
    assert!(proxy.place.metric("lockgate_audit_trail_stalled_seconds", "") > 0.0);
    // Clients find a proxy that grants.
    let page = proxy.place.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 503") && page.contains("\nlog: nothing "), "{page}");
    assert!(page.contains("the disk is full; locks are refused (TRYAGAIN)\n"), "{page}");

    // Commands that need no line are carried out, and so are those that end a lock.
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    let renewed = client.cmd(&["RENEW", "mine", "t", "PX", "60000"]);
    assert!(matches!(renewed, Reply::Int(1..)), "{renewed:?}");
    for some in granted.chunks(50) {
        let words: Vec<[&str; 3]> = some.iter().map(|name| ["UNLOCK", name, "the-token"]).collect();
        let replies = client.pipe(&words.iter().map(|words| &words[..]).collect::<Vec<_>>());
        assert!(replies.iter().all(|reply| *reply == Reply::Int(1)), "{replies:?}");
    }
    // There is no room left for the log's own lines.
    eventually("one is dropped", || {
        assert_eq!(client.cmd(&["LOCKGATE", "UNPAUSE"]), Reply::ok());
        proxy.dropped() > 0
    });
    let dropped = proxy.dropped();
    let stderr = proxy.child.stderr.take().unwrap();
    let log = read_slowly(stderr, (1 << 16, Duration::ZERO), Arc::default());
    client.cmd(&["LOCK", "both:new", "WAIT", "60000"]).grant();
    eventually("it is ready again", || proxy.place.http("/readyz").starts_with("HTTP/1.1 200"));
    proxy.terminate();
    assert!(proxy.child.wait().unwrap().success());
    let log = log.join().unwrap();
    let (lines, own): (Vec<&str>, Vec<&str>) =
        log.lines().partition(|line| line.contains("\"audit\":"));
    let lines = lines.join("\n");
    let shown = |name: &String| name.replace('\u{1}', "\\x01");
    let granted: HashSet<String> = granted.iter().map(shown).collect();
    for (event, more) in [("granted", &["mine", "both:new"][..]), ("released", &["both:new"][..])] {
        let mut told = told_of(&lines, event);
        told.retain(|lock| !more.contains(&lock.as_str()));
        assert_eq!(told.len(), granted.len(), "{event}");
        assert_eq!(told.into_iter().collect::<HashSet<_>>(), granted, "{event}");
    }
    let told = own.iter().filter(|line| line.contains("\"dropped\":"));
    let told: u64 = told.map(|line| number(line, "dropped")).sum();
    assert!(told >= dropped as u64, "{told} of {dropped}: {own:?}");
}

#[test]
#[ignore = "takes long: make long"]
fn no_grant_is_missing_in_the_audit_trail_that_is_read_more_slowly_than_a_client_takes_locks() {
    let mut proxy = Piped::start();
    let granted = AtomicUsize::new(proxy.lock(long_names(8000)).len());
    let (hurries, is_over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let pace = (16 * 1024, Duration::from_millis(20));
    let log = read_slowly(proxy.child.stderr.take().unwrap(), pace, hurries.clone());
    let flood = &|letter: &str| {
        let mut client = proxy.place.client();
        for name in long_names(100_000) {
            let name = name.replacen('0', letter, 1);
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            client
                .send(&pipeline(&[&["LOCK", &name, "u", "PX", "60000"], &["UNLOCK", &name, "u"]]));
            let was_granted = matches!(client.reply(), Reply::Array(_));
            granted.fetch_add(usize::from(was_granted), Ordering::Relaxed);
            client.reply();
        }
    };
    thread::scope(|scope| {
        // Set however the scope ends.
        let over = SetAtLast(&is_over);
        for letter in ["a", "b", "c", "d"] {
            scope.spawn(move || flood(letter));
        }
        let mut victim = proxy.place.client();
        for number in 0..50 {
            victim.cmd(&["LOCK", &format!("victim-{number}"), "PX", "60000"]).grant();
        }
        drop(over);
    });
    hurries.store(true, Ordering::Relaxed);
    proxy.terminate();
    assert!(proxy.child.wait().unwrap().success());
    let log = log.join().unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"audit\":")).collect();
    let told = told_of(&lines.join("\n"), "granted");
    let of_victim = told.iter().filter(|lock| lock.starts_with("victim-")).count();
    assert_eq!((of_victim, told.len() - of_victim), (50, granted.into_inner()));
}

#[test]
fn what_a_full_disk_does_not_take_is_told_where_it_can_be() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let proxy = Piped::start_into("", full.into());
    eventually("the log's lines are counted", || proxy.dropped() > 0);
    let page = proxy.place.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(
        page.contains("\nlog: ") && page.contains(" lines were lost since the start"),
        "{page}"
    );
    // Lines of the trail wait until the disk has room.
    assert_eq!(proxy.lock(long_names(50)).len(), 50);
    eventually("it is told", || {
        let page = proxy.place.http("/readyz");
        page.contains("\nlog: nothing ") && page.contains("the audit trail's lines among them")
    });
}

#[test]
fn the_last_lines_are_written_if_somebody_reads_them_and_the_end_waits_for_nobody() {
    let mut proxy = Piped::start();
    assert_eq!(proxy.lock(long_names(200)).len(), 200);
    proxy.terminate();
    let mut log = String::new();
    proxy.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let audit: Vec<&str> = log.lines().filter(|line| line.contains("\"audit\":")).collect();
    assert_eq!(told_of(&audit.join("\n"), "granted").len(), 200);
    assert!(proxy.child.wait().unwrap().success());
    let mut proxy = Piped::start();
    proxy.lock(long_names(200));
    proxy.terminate();
    let mut status = None;
    eventually("it has ended", || {
        status = proxy.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
}
