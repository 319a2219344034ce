//! `lockgate dev`: everything comes up, and goes down however it ends.

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
};

use crate::support::{Client, Reply, cluster::answer, eventually, pipeline, shape};
use lockgate::tools::free_port::free_port;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const README: &str = include_str!("../../README.md");

struct Dev {
    child: Child,
    port: u16,
    /// The pids that `lockgate dev` prints.
    servers: Vec<i32>,
    printed: String,
}

impl Dev {
    /// Runs the line with `printf` in a shell as it is printed, but for the key, and expects that it writes.
    fn tries_printf_with(&self, key: &str) {
        let printf = self.printed.lines().find(|line| line.contains("printf")).unwrap();
        let line = printf.trim().split("      (").next().unwrap().replace("account:1", key);
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("OK\n"), "{line}: {output:?}");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command, in a process group of its own, as a shell starts it.
fn command(port: u16, admin: u16) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    command
        .args(["dev", "--port", &port.to_string(), "--admin-port", &admin.to_string()])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

fn start() -> Dev {
    start_with(&[]).expect("it ended")
}

/// Returns the first of as many ports in a row as `lockgate dev` may need. No other test gets one of them.
fn row_of_ports() -> u16 {
    loop {
        let ports: Vec<u16> = (0..6).map(|_| free_port().unwrap()).collect();
        if ports.windows(2).all(|two| two[1] == two[0] + 1) {
            return ports[0];
        }
    }
}

/// Starts `lockgate dev` with these arguments. Returns `None` if it ends, for example because a port is taken.
fn start_with(arguments: &[&str]) -> Option<Dev> {
    let (admin, port) = (free_port().unwrap(), row_of_ports());
    let mut child = command(port, admin).args(arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut servers, mut printed) = (Vec::new(), String::new());
    while !printed.contains("UNLOCK job") {
        let Some(line) = lines.next() else {
            child.wait().unwrap();
            return None;
        };
        let line = line.unwrap();
        if let Some((_, pid)) = line.split_once("(pid ") {
            servers.push(pid.trim_end_matches(')').parse().unwrap());
        }
        printed += &line;
        printed.push('\n');
    }
    thread::spawn(move || lines.for_each(drop));
    Some(Dev { child, port, servers, printed })
}

fn runs(pid: i32) -> bool {
    // A zombie that init has not reaped yet is dead all the same.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn end(signal: Signal) -> Option<i32> {
    let mut dev = start();
    assert_eq!(dev.servers.len(), 6, "{}", dev.printed);
    assert!(dev.servers.iter().all(|pid| runs(*pid)));
    let mut client = Client::connect(dev.port);
    assert_eq!(client.cmd(&["SET", "x", "1"]), Reply::ok());
    eventually("a quorum is there", || {
        matches!(client.cmd(&["LOCK", "job", "t", "PX", "30000"]), Reply::Array(_))
    });
    assert_eq!(client.cmd(&["UNLOCK", "job", "t"]), Reply::Int(1));
    assert!(matches!(client.cmd(&["LOCK", "read", "SHARED"]), Reply::Array(_)));
    kill_process(Pid::from_child(&dev.child), signal).unwrap();
    let status = dev.child.wait().unwrap();
    eventually("its servers are gone", || !dev.servers.iter().any(|pid| runs(*pid)));
    status.code()
}

#[test]
fn guards_and_adopted_locks_can_be_tried() {
    let rules = ["--guard", "account:*", "--guard", "stock:*", "--adopt", "lock:*", "--nodes", "3"];
    let dev = start_with(&rules).expect("it ended");
    let tried = |words: &str| format!("redis-cli -p {} {words}", dev.port);
    for words in ["SET account:1 100 ", "SET lock:1 me NX PX 30000 ", "LOCKGATE ADOPTED "] {
        assert!(dev.printed.contains(&tried(words)), "{words} is not in {}", dev.printed);
    }
    let mut client = Client::connect(dev.port);
    eventually("a quorum is there", || {
        matches!(client.cmd(&["LOCK", "other", "t", "PX", "30000"]), Reply::Array(_))
    });
    for key in ["account:1", "stock:1"] {
        let refused = client.cmd(&["SET", key, "100"]);
        assert!(refused.error().starts_with("NOTHELD"), "{refused:?}");
        client.cmd(&["LOCK", key]).grant();
        assert_eq!(client.cmd(&["SET", key, "100"]), Reply::ok());
    }
    dev.tries_printf_with("account:2");
    assert_eq!(client.cmd(&["SET", "lock:1", "me", "NX", "PX", "30000"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "lock:1", "you", "NX", "PX", "30000"]), Reply::NullBulk);
    let lock = format!("{:?}", client.cmd(&["LOCKGATE", "LOCK", "lock:1"]));
    assert!(lock.contains(&format!("{:?}", Reply::bulk("lease"))), "{lock}");

    let mut wrong = command(free_port().unwrap(), free_port().unwrap());
    let output = wrong.args(["--guard", ""]).stderr(Stdio::piped()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("lockgate dev --guard"), "{error}");
}

/// Returns each command of README's "Try it", with the lines that it should print.
fn try_it() -> Vec<(&'static str, Vec<&'static str>)> {
    let (_, section) = README.split_once("\n## Try it\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in section.lines().filter_map(|line| line.strip_prefix("    ")) {
        match (line.strip_prefix("$ redis-cli -p 6380 "), steps.last_mut()) {
            (Some(words), _) => steps.push((words, Vec::new())),
            // The text behind two blanks explains the line.
            (None, Some((_, shown))) => shown.push(line.split("  ").next().unwrap()),
            (None, None) => {}
        }
    }
    steps
}

#[test]
fn what_readme_has_one_try_is_answered_as_it_shows() {
    let dev = start();
    let mut client = Client::connect(dev.port);
    eventually("a quorum is there", || {
        matches!(client.cmd(&["LOCK", "other", "PX", "30000"]), Reply::Array(_))
    });
    // The token in README, and the one that was granted here.
    let mut tokens: Option<(String, String)> = None;
    let steps = try_it();
    assert!(steps.len() >= 3, "they are not found: {steps:?}");
    for (words, shown) in &steps {
        let words = tokens
            .iter()
            .fold((*words).to_owned(), |words, (readmes, ours)| words.replace(readmes, ours));
        let cli = Command::new("timeout")
            .args(["60", "redis-cli", "--no-raw", "-p", &dev.port.to_string()])
            .args(words.split(' '))
            .output()
            .unwrap();
        let printed = String::from_utf8(cli.stdout).unwrap();
        let shapes = |lines: &[&str]| lines.iter().map(|line| shape(line)).collect::<Vec<_>>();
        let seen: Vec<&str> = printed.lines().collect();
        assert_eq!(shapes(&seen), shapes(shown), "after {words}");
        for (shown, seen) in shown.iter().zip(seen) {
            if shape(seen).contains("TOKEN") {
                let token = |line: &str| line.split('"').nth(1).unwrap().to_owned();
                tokens = Some((token(shown), token(seen)));
            }
        }
    }
    assert!(tokens.is_some(), "no token is shown");
}

#[test]
fn a_master_can_be_killed() {
    let dev = start_with(&["--sentinel"]).expect("it ended");
    assert_eq!(dev.servers.len(), 11, "{}", dev.printed);
    let mut client = Client::connect(dev.port);
    assert_eq!(client.cmd(&["SET", "x", "1"]), Reply::ok());
    assert_eq!(client.cmd(&["WAIT", "2", "25000"]), Reply::Int(2));
    let (_, command) = dev.printed.split_once("kill -9 ").unwrap();
    let pid: i32 = command.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(pid, dev.servers[0], "the master comes first");
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("it is gone", || !runs(pid));
    // A new client waits for the next master, but no longer than connect_timeout.
    eventually("there is another master", || {
        answer(dev.port, &["GET", "x"]) == Some(Reply::bulk("1"))
    });
    assert_eq!(Client::connect(dev.port).cmd(&["SET", "x", "2"]), Reply::ok());
}

#[test]
fn sigterm_takes_everything_down() {
    assert_eq!(end(Signal::TERM), Some(0));
}

#[test]
fn ctrl_c_takes_everything_down() {
    assert_eq!(end(Signal::INT), Some(0));
}

#[test]
fn sigkill_takes_everything_down() {
    assert_eq!(end(Signal::KILL), None);
}

#[test]
fn a_master_of_its_cluster_may_be_killed() {
    let works_at = |first: u16, words: &[&str], wanted: fn(&Reply) -> bool| {
        (first..first + 6).any(|port| {
            // The proxy listens a moment after its servers are printed.
            if TcpStream::connect(("127.0.0.1", port)).is_err() {
                return false;
            }
            let mut client = Client::connect(port);
            // A front whose node is down closes.
            client.send(&pipeline(&[words]));
            if client.is_at_end() {
                return false;
            }
            let reply = client.reply();
            let is_wanted = wanted(&reply);
            if !is_wanted {
                println!("{port}: {words:?} is answered {reply:?}");
            }
            is_wanted
        })
    };
    let is_granted = |reply: &Reply| matches!(reply, Reply::Array(_));
    // Another program may take one of the ports before the proxy does, which then ends. A front may close behind a grant
    // while its node is not up yet; such a lock runs out.
    let serving = |mut dev: Dev| {
        let mut ended = false;
        eventually("there are locks, or it has ended", || {
            ended = dev.child.try_wait().unwrap().is_some();
            ended || works_at(dev.port, &["LOCK", "job", "PX", "5000"], is_granted)
        });
        (!ended).then_some(dev)
    };
    let cluster = ["--cluster", "--guard", "account:*", "--adopt", "lock:*"];
    let begun = (0..10).find_map(|_| start_with(&cluster).and_then(serving));
    let mut dev = begun.expect("six ports in a row");
    assert_eq!(dev.servers.len(), 11, "{}", dev.printed);
    let first = dev.port;
    let works = |words: &[&str], wanted| works_at(first, words, wanted);
    let is_ok = |reply: &Reply| *reply == Reply::ok();
    // A key of slot 449, which the first master has.
    let key = "k2";
    eventually("it serves", || works(&["SET", key, "1"], is_ok));
    let mut tried = dev.printed.lines().filter(|line| line.contains("redis-cli"));
    let follows = |line: &str| line.contains("redis-cli -c -p") || line.contains("CLUSTER NODES");
    assert!(tried.all(follows), "{}", dev.printed);
    // Not all of these keys are on one node.
    for key in ["account:1", "account:2", "account:3", "account:4"] {
        dev.tries_printf_with(key);
    }
    assert!(works(&["LOCK", "job", "PX", "5000"], |reply| *reply == Reply::NullArray));
    kill_process(Pid::from_raw(dev.servers[0]).unwrap(), Signal::KILL).unwrap();
    eventually("the replica takes over", || works(&["SET", key, "2"], is_ok));
    kill_process(Pid::from_child(&dev.child), Signal::TERM).unwrap();
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
    eventually("its servers are gone", || !dev.servers.iter().any(|pid| runs(*pid)));
}

#[test]
fn ctrl_c_lets_a_command_in_flight_finish_before_the_servers_go() {
    let mut dev = start();
    let mut client = Client::connect(dev.port);
    // In one packet: once PING is answered, BLPOP is under way too. A Redis that got the signal itself would drop it.
    client.send(&pipeline(&[&["PING"], &["BLPOP", "nothing", "1"]]));
    assert_eq!(client.reply(), Reply::simple("PONG"));
    // A terminal sends the signal to the whole process group.
    kill_process_group(Pid::from_child(&dev.child), Signal::INT).unwrap();
    assert_eq!(client.reply(), Reply::NullArray);
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
}

#[test]
fn it_runs_on_when_nobody_reads_what_it_says() {
    let (port, admin) = (free_port().unwrap(), free_port().unwrap());
    let mut child = command(port, admin).spawn().unwrap();
    drop(child.stdout.take());
    let mut dev = Dev { child, port, servers: Vec::new(), printed: String::new() };
    eventually("it accepts", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    // `lockgate dev` prints once it accepts; by the end of this wait it has.
    let mut client = Client::connect(dev.port);
    assert_eq!(client.cmd(&["BLPOP", "nothing", "1"]), Reply::NullArray);
    kill_process(Pid::from_child(&dev.child), Signal::TERM).unwrap();
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
}

#[test]
fn it_is_said_which_numbers_of_lock_nodes_are_sensible() {
    for (nodes, what) in [
        ("0", "no lock node; give 1, 3, 5 or 7"),
        ("4", "4 nodes bear no more failures than 3; give 3 or 5"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .args(["dev", "--nodes", nodes])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error, format!("lockgate: --nodes: {what}\n"));
    }
}

#[test]
fn a_taken_port_is_said_in_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["dev", "--port", &addr.port().to_string()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error, format!("lockgate: {addr} is in use; choose another port with --port\n"));
}
