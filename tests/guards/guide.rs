//! Checks that docs/guards.md tells the truth: its configuration, its session, its program and its ACL user.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::support::{Client, Proxy, Reply, eventually, pipeline, relay::Relay, shape};

const GUIDE: &str = include_str!("../../docs/guards.md");

/// Returns the first block of code in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = GUIDE.split_once(&format!("```{language}\n")).expect("a block");
    rest.split_once("```").expect("its end").0
}

/// Returns the guards of the guide's configuration.
fn guards() -> String {
    let yaml = block("yaml");
    yaml[yaml.find("guards:\n").expect("guards")..].to_owned()
}

fn deployment() -> Proxy {
    Proxy::with().nodes(3).top(&guards()).start()
}

fn in_directory(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join(name);
    std::fs::write(&file, text).expect("file");
    (dir, file)
}

#[test]
fn the_configuration_has_no_mistake() {
    let (_dir, file) = in_directory("guards.yaml", block("yaml"));
    let check = Command::new(env!("CARGO_BIN_EXE_lockgate")).arg("check").arg(&file).output();
    let check = check.expect("lockgate check");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

/// Returns the next line that is not empty.
fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    while line.trim().is_empty() {
        line.clear();
        assert_ne!(from.read_line(&mut line).expect("output"), 0, "it ended");
    }
    line
}

#[test]
fn the_session_with_redis_cli_is_as_shown() {
    let mut proxy = deployment();
    let nodes: Vec<String> = (0..3).map(|node| proxy.node(node).port().to_string()).collect();
    let port = proxy.port().to_string();
    let mut cli = Command::new("timeout")
        .args(["60", "redis-cli", "--no-raw", "-p", &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli");
    let mut input = cli.stdin.take().expect("input");
    let mut output = BufReader::new(cli.stdout.take().expect("output"));
    // Output of the other terminal that is not compared yet.
    let mut other: Option<BufReader<&[u8]>>;
    let mut printed = Vec::new();
    let mut lines = block("console").lines().peekable();
    let mut steps = 0;
    while let Some(typed) = lines.next() {
        if let Some(command) = typed.strip_prefix("127.0.0.1:6380> ") {
            writeln!(input, "{command}").expect("input");
            other = None;
        } else {
            let command = typed.strip_prefix("$ ").expect("something typed");
            let command = command.replace("7001 7002 7003", &nodes.join(" "));
            let command = command.replace("redis-cli -p 6380", &format!("redis-cli -p {port}"));
            let command = command.replace("redis-cli", "redis-cli --no-raw");
            let shell = Command::new("timeout").args(["60", "sh", "-c", &command]).output();
            printed = shell.expect("sh").stdout;
            other = Some(BufReader::new(&printed));
        }
        let is_typed = |line: &&str| line.starts_with("127.0.0.1:6380> ") || line.starts_with("$ ");
        while let Some(shown) = lines.next_if(|line| !is_typed(line)) {
            let seen = match &mut other {
                Some(other) => line(other),
                None => line(&mut output),
            };
            assert_eq!(shape(&seen), shape(shown), "after {typed}");
        }
        steps += 1;
    }
    assert!(steps >= 8);
    drop((input, printed));
    cli.wait().expect("its end");
}

/// Starts the guide's program, which makes `transfers` transfers.
fn start_program(file: &Path, port: u16, transfers: usize) -> Child {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/.venv/bin/python");
    assert!(python.exists(), "{python:?} is missing: run \"make test\", which installs it");
    Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(python)
        .arg(file)
        .args([port.to_string(), transfers.to_string()])
        .spawn()
        .expect("timeout")
}

#[test]
#[ignore = "takes long: make long"]
fn the_program_keeps_the_sum_of_all_balances_though_its_locks_are_taken_away() {
    let (_dir, file) = in_directory("transfer.py", block("python"));
    let mut first = deployment();
    let second = Proxy::beside(&first).top(&guards()).start();
    eventually("it is ready", || second.http("/readyz").starts_with("HTTP/1.1 200"));
    let mut data = Client::connect(first.data().port());
    let accounts: Vec<String> = (0..4).map(|n| format!("account:{n}")).collect();
    for account in &accounts {
        assert_eq!(data.cmd(&["SET", account, "100"]), Reply::ok());
    }
    let fenced = || {
        let label = "result=\"fenced\"";
        let of = |proxy: &Proxy| proxy.metric("lockgate_guarded_writes_total", label);
        of(&first) + of(&second)
    };
    let mut rounds = 0;
    while rounds == 0 || fenced() == 0.0 {
        assert!(rounds < 20, "no transfer ever came too late");
        rounds += 1;
        let mut programs: Vec<Child> = [&first, &second, &first, &second]
            .map(|proxy| start_program(&file, proxy.port(), 100))
            .into();
        let mut nodes: Vec<Client> = (0..3).map(|node| first.node_client(node)).collect();
        let mut turn = 0;
        while programs.iter_mut().any(|program| program.try_wait().expect("status").is_none()) {
            // The lock is deleted on the nodes, and its waiters are told.
            let lock = format!("lock:{}", accounts[turn % 4]);
            for node in &mut nodes {
                node.cmd(&["DEL", &lock]);
                node.cmd(&["PUBLISH", &format!("lockgate:free:{lock}"), ""]);
            }
            turn += 1;
            thread::sleep(Duration::from_millis(7));
        }
        for mut program in programs {
            assert!(program.wait().expect("status").success());
        }
        let balance = |account: &String| match data.cmd(&["GET", account]) {
            Reply::Bulk(digits) => String::from_utf8_lossy(&digits).parse::<i64>().expect("number"),
            other => panic!("{other:?}"),
        };
        let balances: Vec<i64> = accounts.iter().map(balance).collect();
        assert_eq!(balances.iter().sum::<i64>(), 400, "{balances:?}");
        assert!(balances.iter().all(|balance| *balance >= 0), "{balances:?}");
    }
    println!("{} refused as too late in {rounds} rounds", fenced());
}

#[test]
fn the_program_repeats_no_transfer_whose_reply_was_lost() {
    let (_dir, file) = in_directory("transfer.py", block("python"));
    let mut proxy = deployment();
    let mut data = Client::connect(proxy.data().port());
    for n in 0..4 {
        assert_eq!(data.cmd(&["SET", &format!("account:{n}"), "100"]), Reply::ok());
    }
    let relay = Relay::to(proxy.port());
    relay.hold_reply("*2\r\n+OK\r\n+OK\r\n");
    let mut program = start_program(&file, relay.port(), 1);
    relay.wait_until_held();
    relay.cut();
    assert!(!program.wait().expect("status").success());
    let Reply::Bulk(info) = data.cmd(&["INFO", "commandstats"]) else { panic!("no INFO") };
    assert!(String::from_utf8_lossy(&info).contains("cmdstat_exec:calls=1,"), "not once");
}

#[test]
fn the_user_of_the_acl_may_do_what_the_guide_does_and_needs_what_it_says() {
    let mut proxy = deployment();
    let [mut data, mut direct] = [(); 2].map(|()| Client::connect(proxy.data().port()));
    let line = GUIDE.lines().find_map(|line| line.trim().strip_prefix("ACL SETUSER bank "));
    let rules: Vec<&str> = line.expect("the user").split(' ').collect();
    let mut user = |change: &[&str]| {
        let words = [&["ACL", "SETUSER", "bank"], change].concat();
        assert_eq!(data.cmd(&words), Reply::ok(), "{change:?}");
    };
    user(&rules);
    let logged_in = "max_connections=1, username='bank', password='secret'";
    let program = block("python").replace("max_connections=1", logged_in);
    let (_dir, file) = in_directory("transfer.py", &program);
    for n in 0..4 {
        assert_eq!(direct.cmd(&["SET", &format!("account:{n}"), "100"]), Reply::ok());
    }
    assert!(start_program(&file, proxy.port(), 5).wait().expect("status").success());
    let passed = proxy.metric("lockgate_guarded_writes_total", "result=\"passed\"");
    assert_eq!(passed, 10.0);
    let log_in = || {
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["AUTH", "bank", "secret"]), Reply::ok());
        client
    };
    let mut client = log_in();
    let holder = |client: &mut Client| {
        for node in 0..3 {
            proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
        }
        client.cmd(&["LOCK", "account:1", "PX", "30000"])
    };
    holder(&mut client).grant();
    let script = "return redis.call('SET', KEYS[1], ARGV[1])";
    for value in ["1", "2"] {
        assert_eq!(client.cmd(&["SET", "account:1", value]), Reply::ok());
    }
    assert_eq!(client.cmd(&["EVAL", script, "1", "account:1", "3"]), Reply::ok());
    let replies = client.pipe(&[&["MULTI"], &["SET", "account:1", "4"], &["EXEC"]]);
    assert_eq!(replies[2], Reply::Array(vec![Reply::ok()]));
    assert_eq!(client.cmd(&["SET", "account:1", "5", "x"]).error(), "ERR syntax error");
    // Refused, by a transaction that must be undone.
    for words in [&["SET", "account:1", "6"][..], &["EVAL", script, "1", "account:1", "6"]] {
        let mut next = log_in();
        holder(&mut next).grant();
        assert!(client.cmd(words).error().starts_with("FENCED"));
        assert_eq!(client.cmd(&["GET", "account:1"]), Reply::bulk("4"));
        client = next;
    }
    assert!(client.cmd(&["SET", "other", "1"]).error().starts_with("NOPERM"));
    assert!(client.cmd(&["SET", "lockgate:guard:x", "1"]).error().starts_with("ERR keys"));
    // A script that names no keys can write only fences of locks that its user may take anyway.
    for (lock, may) in [("other", false), ("accounts", false), ("account:9", true)] {
        let spoil = format!("return redis.call('SET', 'lockgate:guard:lock:{lock}', '1')");
        let said = client.cmd(&["EVAL", &spoil, "0"]);
        assert_eq!(said == Reply::ok(), may, "{lock}: {said:?}");
    }

    // Without any one of these permissions nothing is written unchecked.
    for missing in rules.iter().filter_map(|rule| rule.strip_prefix('+')) {
        user(&[&format!("-{missing}")]);
        // Without these, only what they are for is impossible.
        let optional = ["evalsha", "script|load", "unwatch", "discard"].contains(&missing);
        let short = optional || ["watch", "multi", "exec"].contains(&missing);
        for (words, possible) in [
            (&["SET", "account:1", "7"][..], short),
            (&["EVAL", script, "1", "account:1", "8"], optional),
        ] {
            assert_eq!(direct.cmd(&["SET", "account:1", "before"]), Reply::ok());
            let mut client = log_in();
            holder(&mut client);
            let (written, value) = (client.cmd(words), direct.cmd(&["GET", "account:1"]));
            assert_eq!(written == Reply::ok(), possible, "-{missing} {words:?}: {written:?}");
            assert_eq!(value == Reply::bulk("before"), !possible, "-{missing} {words:?}");
        }
        user(&[&format!("+{missing}")]);
    }

    // A user that sends SELECT needs these in addition.
    let besides = ["select", "client|info"];
    let named: Vec<String> = besides.iter().map(|name| format!("+{name}")).collect();
    assert!(
        GUIDE.contains(&format!("A user that sends SELECT needs `{}` besides", named.join(" ")))
    );
    let all: Vec<&str> = named.iter().map(String::as_str).collect();
    direct.cmd(&["SELECT", "1"]);
    for missing in [None, Some("select"), Some("client|info")] {
        for words in [&["SET", "account:1", "9"][..], &["EVAL", script, "1", "account:1", "9"]] {
            user(&all);
            let mut client = log_in();
            assert_eq!(client.cmd(&["SELECT", "1"]), Reply::ok());
            if let Some(missing) = missing {
                user(&[&format!("-{missing}")]);
            }
            assert_eq!(direct.cmd(&["SET", "account:1", "before"]), Reply::ok());
            let locked = holder(&mut client);
            assert_eq!(locked.error_text().is_empty(), missing != Some("select"), "{locked:?}");
            let (written, value) = (client.cmd(words), direct.cmd(&["GET", "account:1"]));
            assert_eq!(written == Reply::ok(), missing.is_none(), "-{missing:?}: {written:?}");
            assert_eq!(value == Reply::bulk("before"), missing.is_some(), "-{missing:?}");
        }
    }
}

/// An error that cannot be undone must not be hidden from the client.
#[test]
fn a_user_who_may_not_discard_is_told_and_closed() {
    let mut proxy = deployment();
    let mut data = Client::connect(proxy.data().port());
    let user = ["ACL", "SETUSER", "bank", "on", ">secret", "~*", "+@all", "-discard"];
    assert_eq!(data.cmd(&user), Reply::ok());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "bank", "secret"]), Reply::ok());
    // A lease: its loss is not told before.
    client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
    for node in 0..3 {
        proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
    }
    proxy.client().cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
    client.send(&pipeline(&[&["SET", "account:1", "x"], &["SET", "free", "y"]]));
    assert!(client.reply().error().starts_with("FENCED"));
    client.rest();
    assert_eq!(data.cmd(&["EXISTS", "account:1", "free"]), Reply::Int(0));
    eventually("it is counted", || proxy.metric("lockgate_closes_total", "unguarded") == 1.0);
}
