//! Lines in the log that speak of locks, and the audit trail.

use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::who::{address_of, named};
use crate::support::{Proxy, Reply, encode, eventually, pipeline};

/// The lines of the log that have all of these words.
pub(crate) fn lines(proxy: &Proxy, words: &[&str]) -> Vec<String> {
    let log = proxy.log();
    let is_one = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(is_one).map(str::to_owned).collect()
}

/// The number that a line of JSON has under this name.
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
    let lease = holder.cmd(&["LOCK", "lease\r\n", "PX", "100"]).grant();
    holder.cmd(&["LOCK", "given:back", "PX", "100"]).grant();
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
    // Up to its end, though it is told later.
    assert!(number(&told()[0], "held_ms") <= 100, "{:?}", told());
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
    // Whatever the level.
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
    first.cmd(&["LOCK", "forgotten", "PX", "100"]).grant();
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
fn each_lease_that_nobody_gives_back_has_an_end_in_the_audit_trail() {
    let proxy = Proxy::with().nodes(1).top("log: {level: 'off', locks: all}").start();
    let mut client = proxy.client();
    // More than are found by looking around now and then.
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

/// A proxy with the audit trail whose log goes into a pipe, in the place of one that has ended.
struct Piped {
    place: Proxy,
    child: Child,
}

impl Piped {
    fn start() -> Piped {
        Piped::start_into(Stdio::piped())
    }

    fn start_into(log: Stdio) -> Piped {
        let mut place = Proxy::with().top("log: {locks: all}\n").start();
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

    /// Takes so many locks, whose names have 4,000 bytes each.
    fn lock(&self, count: usize) {
        let mut client = self.place.client();
        let names: Vec<String> = (0..count).map(|number| format!("{number:04000}")).collect();
        for some in names.chunks(50) {
            let commands: Vec<[&str; 4]> =
                some.iter().map(|name| ["LOCK", name, "PX", "60000"]).collect();
            client.send(&pipeline(&commands.iter().map(|words| &words[..]).collect::<Vec<_>>()));
            for _ in some {
                client.reply().grant();
            }
        }
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

/// How many grants these lines of the audit trail have. Each line must be whole.
fn grants_in(log: &str) -> usize {
    let audit = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        line["audit"] == "granted"
    };
    log.lines().filter(|line| audit(line)).count()
}

#[test]
fn nobody_waits_for_who_reads_the_log_and_what_is_dropped_is_told() {
    let mut proxy = Piped::start();
    // Twice what waits at most, and some.
    proxy.lock(2500);
    let dropped = proxy.dropped();
    assert!((1..1500).contains(&dropped), "{dropped}");
    let mut log = String::new();
    let mut stderr = proxy.child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        stderr.read_to_string(&mut log).unwrap();
        log
    });
    eventually("there is room again", || {
        proxy.place.client().cmd(&["LOCK", "more", "PX", "60000"]);
        proxy.place.client().cmd(&["LOCKGATE", "UNLOCK", "more", "ANY"]);
        proxy.dropped() == dropped
    });
    proxy.terminate();
    assert!(proxy.child.wait().unwrap().success());
    let log = reader.join().unwrap();
    let long = |line: &&str| line.len() > 4000;
    let long: Vec<&str> = log.lines().filter(long).collect();
    assert_eq!(grants_in(&long.join("\n")) + dropped, 2500);
    assert!(log.contains(&format!("\"dropped\":{dropped}")), "{dropped}");
}

#[test]
fn lines_that_a_full_disk_does_not_take_are_told_where_they_can_be() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let proxy = Piped::start_into(full.into());
    proxy.lock(50);
    eventually("they are counted", || proxy.dropped() >= 50);
    let page = proxy.place.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("\nlog: "), "{page}");
    assert!(page.contains(" lines were lost since the start, the audit trail's too"), "{page}");
}

#[test]
fn the_last_lines_are_written_if_somebody_reads_them_and_the_end_waits_for_nobody() {
    let mut proxy = Piped::start();
    proxy.lock(200);
    proxy.terminate();
    let mut log = String::new();
    proxy.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(grants_in(&log), 200);
    assert!(proxy.child.wait().unwrap().success());
    let mut proxy = Piped::start();
    proxy.lock(200);
    proxy.terminate();
    let mut status = None;
    eventually("it has ended", || {
        status = proxy.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
}
