//! `lockgate top` in a real terminal, by tmux, with real proxies.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::PathBuf,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::who::{address_of, named};
use crate::support::{Client, LIMIT, Proxy, Reply, encode, eventually, machine};

const LOCKGATE: &str = env!("CARGO_BIN_EXE_lockgate");
/// A name that would clear the screen and change the title if it reached a terminal.
const HOSTILE: &str = "evil\x1b[2J\x1b]0;owned\x07";
const SHOWN: &str = r"evil\u{1b}[2J\u{1b}]0;owned\u{7}";

/// A shell in a terminal.
struct Terminal {
    dir: tempfile::TempDir,
}

impl Terminal {
    fn start(width: u16, height: u16) -> Terminal {
        machine::has_terminals();
        let terminal = Terminal { dir: tempfile::tempdir().unwrap() };
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, "sh"]);
        terminal
    }

    /// Runs a command of tmux.
    fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.arg("-u").arg("-S").arg(self.dir.path().join("tmux")).args(arguments);
        // The test itself may run in tmux.
        tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("PS1", "$ ");
        let output = tmux.output().expect("tmux, which scripts/setup.sh test installs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a command. Its process id is in the file `pid`.
    fn run(&self, command: &str) {
        let script = self.dir.path().join("script");
        let pid = self.pid_file();
        fs::write(&script, format!("echo $$ > {}\nexec {command}\n", pid.display())).unwrap();
        self.keys(&[&format!("sh {}", script.display()), "Enter"]);
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.path().join("pid")
    }

    /// Waits for a screen.
    fn sees(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if is_there(&screen) {
                return;
            }
            assert!(Instant::now() < deadline, "not seen: {what}; but:\n{screen}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns what tmux knows of the terminal.
    fn is(&self, what: &str) -> String {
        self.tmux(&["display-message", "-p", &format!("#{{{what}}}")]).trim().to_owned()
    }

    /// Waits until the shell has the terminal back as it was.
    fn is_as_before(&self) {
        eventually("the other screen is left", || self.is("alternate_on") == "0");
        // The shell computes the number, so the typed text alone does not match.
        self.keys(&["echo back-$((40 + 2)); stty -a", "Enter"]);
        self.sees("the shell answers", |screen| {
            let words: Vec<_> = screen.split_whitespace().collect();
            ["back-42", "icanon", "echo", "isig", "opost"].iter().all(|word| words.contains(word))
        });
        assert_eq!(self.is("cursor_flag"), "1");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let socket = self.dir.path().join("tmux");
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

fn at(proxy: &Proxy) -> String {
    format!("127.0.0.1:{}", proxy.admin_port())
}

/// Whether a line of the screen has all these words.
fn line(screen: &str, words: &[&str]) -> bool {
    screen.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Returns the position of the first line with this word.
fn place(screen: &str, word: &str) -> Option<usize> {
    screen.lines().position(|line| line.contains(word))
}

fn waits(proxy: &Proxy, name: &str, key: &str) -> Client {
    let (before, mut waiter) = (proxy.waiters(), named(proxy, name));
    waiter.send(&encode(&["LOCK", key, "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() > before);
    waiter
}

#[test]
fn a_proxy_that_is_named_twice_is_counted_once() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut holder, here) = (proxy.client(), at(&proxy));
    holder.cmd(&["LOCK", "job"]).grant();
    let _waiter = waits(&proxy, "waiter", "job");
    let again = format!("localhost:{}", proxy.admin_port());
    let mut top = Command::new(LOCKGATE);
    top.args(["top", "--once", "--interval", "500ms", &here, &again]);
    let output = top.output().unwrap();
    let screen = String::from_utf8(output.stdout).unwrap();
    assert!(line(&screen, &["1 of 1 proxy ready", "1 held", "1 wait"]), "{screen}");
    assert!(line(&screen, &[&again, "same"]), "{screen}");
    let told = format!("the same proxy as {here}, and counted once");
    assert!(screen.contains(&told) && screen.contains("1/1"), "{screen}");
}

#[test]
fn two_proxies_their_nodes_and_a_line_are_one_screen() {
    let mut one = Proxy::with().nodes(3).start();
    let mut two = Proxy::beside(&one).start();
    let mut first = named(&one, "first-7");
    first.cmd(&["LOCK", "ancient"]).grant();
    first.cmd(&["LOCK", HOSTILE]).grant();
    let mut holder = named(&one, "holder-7");
    holder.cmd(&["LOCK", "busy"]).grant();
    let _here = waits(&one, "waiter-here", "busy");
    let _there = waits(&two, "waiter-there", "busy");

    let terminal = Terminal::start(150, 40);
    let title = terminal.is("pane_title");
    terminal.run(&format!("{LOCKGATE} top http://{}/ {} --interval 500ms", at(&one), at(&two)));
    terminal.sees("both proxies", |screen| {
        line(screen, &["2 of 2 proxies ready", "3 of 3 lock nodes vote"])
            && line(screen, &[&at(&one), "ready"])
            && line(screen, &[&at(&two), "ready"])
    });
    let (holders, granted_by) = (address_of(&holder), at(&one));
    terminal.sees("a lock with its holder and the line of both proxies", |screen| {
        line(screen, &["> busy", &holders, "holder-7", &granted_by, " 2 "])
    });
    terminal.sees("a hostile name as what it is", |screen| line(screen, &[SHOWN, "first-7"]));
    assert_eq!((terminal.is("pane_title"), terminal.is("alternate_on")), (title, "1".into()));

    terminal.keys(&["Enter"]);
    terminal.sees("who waits", |screen| {
        line(screen, &["held by", &holders, "holder-7", &granted_by])
            && line(screen, &["waiter-here", &at(&one)])
            && line(screen, &["waiter-there", &at(&two)])
    });
    // Keys right behind Escape would make one key with it.
    terminal.keys(&["Escape"]);
    terminal.sees("all locks again", |screen| line(screen, &["LOCK NODE"]));

    let comes_before = |first: &'static str, second: &'static str| {
        move |screen: &str| {
            place(screen, first).is_some() && place(screen, first) < place(screen, second)
        }
    };
    terminal.sees("by waiters", comes_before("busy", "ancient"));
    terminal.keys(&["2"]);
    terminal.sees("by age", comes_before("ancient", "busy"));
    terminal.keys(&["t"]);
    terminal.sees("by wait", comes_before("busy", "ancient"));
    terminal.keys(&["/", "cient", "Enter"]);
    terminal.sees("a filter", |screen| {
        place(screen, "ancient").is_some() && place(screen, "busy").is_none()
    });
    terminal.keys(&["Escape"]);
    terminal.sees("no filter", |screen| place(screen, "busy").is_some());

    two.freeze();
    terminal.sees("a proxy that says nothing", |screen| {
        line(screen, &[&at(&two), "unreachable"])
            && line(screen, &["    since", "no answer within"])
    });
    first.cmd(&["LOCK", "meanwhile"]).grant();
    terminal.sees("what is new at the other", |screen| line(screen, &["meanwhile", "first-7"]));
    two.thaw();
    terminal.sees("it speaks again", |screen| line(screen, &[&at(&two), " ready"]));

    terminal.keys(&["p"]);
    terminal.sees("a pause", |screen| screen.starts_with("PAUSED"));
    let paused = one.node_client(0).socket().peer_addr().unwrap().to_string();
    assert_eq!(first.cmd(&["LOCKGATE", "NODE", &paused, "PAUSE"]), Reply::ok());
    terminal.keys(&["p"]);
    terminal.sees("a node that the proxies see differently", |screen| {
        line(screen, &[&paused, "1/2", "seen differently", &format!("{}: ok", at(&two))])
    });

    let killed = one.node_client(1).socket().peer_addr().unwrap().to_string();
    one.node(1).kill().unwrap();
    terminal.sees("a node that is down", |screen| {
        line(screen, &[&killed, "0/2"]) && line(screen, &["    lock node", &killed])
    });

    two.kill();
    terminal.sees("a proxy that is away, and the other", |screen| {
        line(screen, &[&at(&two), "unreachable"])
            && line(screen, &["    since", "UTC", "refused"])
            && line(screen, &["busy", "holder-7", " 1 "])
    });

    terminal.tmux(&["resize-window", "-x", "60", "-y", "24"]);
    terminal.sees("a narrow screen", |screen| {
        line(screen, &["LOCK", "HELD", "WAITERS"]) && !line(screen, &["LOCK", "TTL"])
    });
    terminal.keys(&["?"]);
    terminal.sees("help", |screen| line(screen, &["q, Ctrl-C"]));
    terminal.keys(&["x", "q"]);
    terminal.is_as_before();
}

#[test]
fn the_permits_of_a_family_are_one_line_over_all_proxies() {
    let one = Proxy::with().nodes(3).start();
    let two = Proxy::beside(&one).start();
    let (mut here, mut there) = (named(&one, "here-7"), named(&two, "there-7"));
    for _ in 0..2 {
        let words = ["LOCK", "gpu", "PERMITS", "4", "PX", "60000"];
        assert!(matches!(here.cmd(&words), Reply::Array(_)));
    }
    here.cmd(&["LOCK", "build#12", "PX", "60000"]).grant();
    let screen = |addresses: &[&str]| String::from_utf8(once(addresses).stdout).unwrap();
    let folded = |screen: &str, held: &str| {
        let single = (0..4).any(|at| screen.contains(&format!("gpu#{at}")));
        line(screen, &["gpu#*", held]) && line(screen, &["build#12", "here-7"]) && !single
    };
    let text = screen(&[&at(&one)]);
    assert!(folded(&text, "2 of 4 held"), "{text}");
    // The other proxy knows of no family: its client names the locks.
    let names: Vec<String> = (0..4).map(|at| format!("gpu#{at}")).collect();
    let words = |name| ["LOCK", name, "PX", "60000"];
    let free = names.iter().filter(|name| matches!(there.cmd(&words(name)), Reply::Array(_)));
    assert_eq!(free.count(), 2);
    let text = screen(&[&at(&two)]);
    assert!(line(&text, &["gpu#", "there-7"]) && !text.contains("gpu#*"), "{text}");
    let mut waiter = named(&one, "waiter-here");
    waiter.send(&encode(&["LOCK", "gpu", "PERMITS", "4", "WAIT", "0"]));
    eventually("it waits", || one.waiters() == 1);
    let _there = waits(&two, "waiter-there", "gpu#1");
    let text = screen(&[&at(&one), &at(&two)]);
    assert!(folded(&text, "4 of 4 held") && line(&text, &["gpu#*", " 2 "]), "{text}");

    let terminal = Terminal::start(150, 40);
    terminal.run(&format!("{LOCKGATE} top {} {} --interval 500ms", at(&one), at(&two)));
    terminal.sees("one line", |screen| folded(screen, "4 of 4 held"));
    terminal.keys(&["Enter"]);
    terminal.sees("each permit, and who waits at both proxies", |screen| {
        let shown = names.iter().all(|name| line(screen, &[name, "127.0.0.1:"]));
        shown
            && line(screen, &["Permits gpu#*"])
            && line(screen, &["gpu#", "there-7", &at(&two)])
            && line(screen, &["waiter-here", &at(&one)])
            && line(screen, &["waiter-there", &at(&two)])
    });
    terminal.keys(&["Escape"]);
    terminal.sees("one line again", |screen| folded(screen, "4 of 4 held"));
    terminal.keys(&["/", "gpu#[0-9]", "Enter"]);
    terminal.sees("a row for each permit", |screen| {
        names.iter().all(|name| line(screen, &[name])) && !line(screen, &["gpu#*"])
    });
    terminal.keys(&["q"]);
    terminal.is_as_before();
}

#[test]
fn the_terminal_comes_back_however_it_ends() {
    let proxy = Proxy::start();
    let terminal = Terminal::start(120, 30);
    for signal in [None, Some(Signal::TERM), Some(Signal::INT), Some(Signal::HUP)] {
        terminal.run(&format!("{LOCKGATE} top {}", at(&proxy)));
        terminal.sees("the screen", |screen| line(screen, &[&at(&proxy), "ready"]));
        assert_eq!(terminal.is("alternate_on"), "1");
        match signal {
            None => terminal.keys(&["C-c"]),
            Some(signal) => {
                let pid = fs::read_to_string(terminal.pid_file()).unwrap();
                kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), signal).unwrap();
            }
        }
        terminal.is_as_before();
        terminal.keys(&["clear", "Enter"]);
        terminal.sees("an empty screen", |screen| place(screen, "back-42").is_none());
    }
}

fn once(addresses: &[&str]) -> Output {
    let mut top = Command::new(LOCKGATE);
    top.args(["top", "--interval", "500ms"]).args(addresses);
    top.env("COLUMNS", "150").output().unwrap()
}

/// Starts a server that plays a proxy with this status and these locks. Returns its address.
fn says(status: &'static str, locks: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or(0);
            let is_status = request[..length].starts_with(b"GET /api/status ");
            let document = if is_status { status } else { locks };
            let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{document}").as_bytes());
        }
    });
    address
}

#[test]
fn where_there_is_no_terminal_one_screen_is_written_as_text() {
    let proxy = Proxy::start();
    let mut client = named(&proxy, "worker-7");
    client.cmd(&["LOCK", HOSTILE]).grant();
    let ends = Arc::new(AtomicBool::new(false));
    let mut busy = proxy.client();
    let until = Arc::clone(&ends);
    let locking = thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            let token = busy.cmd(&["LOCK", "often", "PX", "30000"]).grant().token;
            busy.cmd(&["UNLOCK", "often", &token]);
        }
    });
    let nobody = "127.0.0.1:1";
    let hostile = says(
        r#"{"proxy": {"pid": 1, "uptime_ms": 1, "name": "\u001b[31mproxy\u0007"}, "problems": ["\u001bc"],
            "nodes": [{"address": "n\u009b2J", "state": "\u001b[1mwrong"}]}"#,
        r#"{"locks": [{"key": "k\u001b\n", "held_ms": 1, "holder": {"name": "\u001b[2Jw", "address": "\r"}}]}"#,
    );
    let output = once(&[&at(&proxy), nobody, &hostile]);
    ends.store(true, Ordering::Relaxed);
    locking.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    assert!(line(&text, &[r"k\u{1b}\n", r"\r (gone)", r"\u{1b}[2Jw", &hostile]), "{text}");
    assert!(line(&text, &[r"n\u{9b}2J", r"\u{1b}[1mwrong"]), "{text}");
    assert!(line(&text, &[nobody, "unreachable"]), "{text}");
    assert!(line(&text, &[SHOWN, "worker-7"]), "{text}");
    let row = text.lines().find(|line| line.starts_with(&at(&proxy))).unwrap();
    let grants = row.split_whitespace().rev().nth(1).unwrap();
    assert!(grants.parse::<f64>().is_ok_and(|rate| rate > 0.0), "{text}");
    let failed = once(&[nobody]);
    assert!(!failed.status.success() && !failed.stdout.is_empty(), "{failed:?}");
}

#[test]
fn clients_that_share_connections_are_a_line_below_their_proxy() {
    let proxy = Proxy::with().top("share: yes\nio_threads: 1").start();
    let (mut sharing, mut pinned) = (proxy.client(), proxy.client());
    assert_eq!(sharing.cmd(&["PING"]), Reply::simple("PONG"));
    pinned.cmd(&["SUBSCRIBE", "c"]);
    let plain = Proxy::with().top("share: no").start();
    let output = once(&[&at(&proxy), &at(&plain)]);
    let text = String::from_utf8(output.stdout).unwrap();
    let told = "    sharing: 1 on 1 link, 0 owed, 0 on one; own: 1 now, 1 of 2 in all (pubsub 1)";
    let row = place(&text, &at(&proxy)).unwrap();
    assert_eq!(text.lines().nth(row + 1), Some(told), "{text}");
    assert_eq!(text.matches("sharing: ").count(), 1, "{text}");
    let hostile = says(
        r#"{"proxy": {"pid": 1, "uptime_ms": 1}, "sharing": {"pinned": [{"by": "\u001b[2J", "clients": 1}]}}"#,
        r#"{"locks": []}"#,
    );
    let text = String::from_utf8(once(&[&hostile]).stdout).unwrap();
    assert!(text.contains(r"(\u{1b}[2J 1)") && !text.contains('\x1b'), "{text:?}");
}
