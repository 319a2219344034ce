//! `lockgate exec`: a command under a lock.

use std::{
    fs,
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Client, Proxy, Reply, eventually, relay::Relay};

/// `lockgate exec` with these arguments, at this server. It ignores no signal, even if the tests do.
fn exec_at(server: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_lockgate"), "exec"]);
    command.args(arguments).env("LOCKGATE_URL", server);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn exec(proxy: &Proxy, arguments: &[&str]) -> Command {
    exec_at(&format!("redis://127.0.0.1:{}", proxy.port()), arguments)
}

/// The exit status, and what was printed.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).expect("it runs");
}

fn is_free(proxy: &Proxy, lock: &str) -> bool {
    let mut client = proxy.client();
    let is_free = client.cmd(&["LOCK", lock, "other"]) != Reply::NullArray;
    // Where only the end of the connection gave it back, what comes next could be refused.
    client.cmd(&["UNLOCK", lock, "other"]);
    is_free
}

/// Starts exec with this script, and waits until the script has made its file.
fn started(command: &mut Command, file: &Path) -> Child {
    let child = command.env("FILE", file).spawn().expect("exec");
    eventually("the command runs", || file.exists());
    child
}

#[test]
fn the_command_runs_under_the_lock_and_ends_as_it_would_without() {
    let proxy = Proxy::with().nodes(3).start();
    let script = "echo $LOCKGATE_LOCK $LOCKGATE_TOKEN $LOCKGATE_FENCE; cat; exit 7";
    let mut running = exec(&proxy, &["job", "--", "sh", "-c", script]);
    let mut running = running.stdin(Stdio::piped()).spawn().expect("exec");
    let mut input = running.stdin.take().unwrap();
    eventually("the lock is taken", || proxy.nodes_with("lock:job") == 3);
    // Held, and told in one line; with --wait once it is free.
    let (status, _, error) = told(&exec(&proxy, &["job", "--", "true"]).output().unwrap());
    let held = "lockgate exec: 'job' is held by another client";
    assert_eq!((status, error.as_str()), (Some(1), held));
    let (status, _, error) =
        told(&exec(&proxy, &["job", "--wait", "300ms", "--", "true"]).output().unwrap());
    assert_eq!((status, error), (Some(1), format!("{held} (waited 300ms)")));
    let mut waiting = exec(&proxy, &["job", "--wait", "20s", "--", "echo", "next"]);
    let waiting = waiting.spawn().expect("exec");
    eventually("it waits", || proxy.waiters() == 1);
    input.write_all(b"from stdin").unwrap();
    drop(input);
    let (status, output, error) = told(&running.wait_with_output().unwrap());
    assert_eq!((status, error.as_str()), (Some(7), ""));
    let words: Vec<&str> = output.split_whitespace().collect();
    assert_eq!((words[0], words[1].len(), &words[3..]), ("job", 32, &["from", "stdin"][..]));
    assert!(words[2].parse::<u64>().unwrap() > 1_000_000_000_000_000, "{output}");
    let (status, output, _) = told(&waiting.wait_with_output().unwrap());
    assert_eq!((status, output.as_str()), (Some(0), "next"));
    assert!(is_free(&proxy, "job"));
    // A signal's end, and commands that cannot be run, as a shell tells them.
    let not_found = "lockgate exec: no-such-command: No such file or directory (os error 2)";
    let denied = "lockgate exec: /etc/passwd: Permission denied (os error 13)";
    for (command, status, error) in [
        (&["sh", "-c", "kill -9 $$"][..], 137, ""),
        (&["no-such-command"], 127, not_found),
        (&["/etc/passwd"], 126, denied),
    ] {
        let arguments = [&["job", "--"], command].concat();
        let (code, _, said) = told(&exec(&proxy, &arguments).output().unwrap());
        assert_eq!((code, said.as_str()), (Some(status), error), "{command:?}");
        assert!(is_free(&proxy, "job"), "{command:?}");
    }
}

#[test]
fn bad_input_is_told_and_nothing_is_run() {
    let mut proxy = Proxy::with().nodes(1).locks("max_ttl: 20s").top("maxclients: 2").start();
    let run = |server: &str, arguments: &[&str]| {
        let told = told(&exec_at(server, arguments).output().unwrap());
        assert_eq!(told.1, "", "{arguments:?}");
        (told.0, told.2)
    };
    let server = format!("redis://127.0.0.1:{}", proxy.port());
    let data = format!("redis://127.0.0.1:{}", proxy.data_client_port());
    let page = format!("redis://127.0.0.1:{}", proxy.admin_port());
    let secret = format!("redis://:secret@127.0.0.1:{}", proxy.port());
    let echo = ["--", "echo", "ran"];
    for (server, arguments, status, error) in [
        (&server, &["job"][..], 125, "required arguments were not provided"),
        (&server, &["--", "echo", "ran"], 125, "<KEY>"),
        (&server, &["job", "--wait", "5", "--", "echo", "ran"], 125, "a time is written as"),
        (&server, &["job", "--permits", "257", "--", "echo", "ran"], 125, "257 is not in 1..=256"),
        (&data, &[&["job"], &echo[..]].concat(), 125, "is no Lockgate: unknown command 'LOCK'"),
        (&page, &[&["job"], &echo[..]].concat(), 125, "does not speak Redis's protocol"),
        (&secret, &[&["job"], &echo[..]].concat(), 125, "or the data node asks for none"),
        (
            &"http://127.0.0.1".into(),
            &[&["job"], &echo[..]].concat(),
            125,
            "LOCKGATE_URL: unknown scheme",
        ),
        (
            &server,
            &[&["job", "--at-least", "21s"], &echo[..]].concat(),
            125,
            "the longest is 20000 ms (locks.max_ttl)",
        ),
        (&server, &[&["job", "--grace", "10s"], &echo[..]].concat(), 125, "times --grace"),
        (&server, &[&["", "--wait", "1s"], &echo[..]].concat(), 125, "ERR the key is empty"),
        (&server, &[&["job", "--cacert", "x"], &echo[..]].concat(), 125, "a server at rediss://"),
        (
            &"redis://127.0.0.1:1".into(),
            &[&["job", "--wait", "300ms"], &echo[..]].concat(),
            125,
            "Connection refused",
        ),
    ] {
        let (code, said) = run(server, arguments);
        assert_eq!(code, Some(status), "{arguments:?}: {said}");
        assert!(said.contains(error), "{arguments:?}: {said}");
        let is_of_options = said.starts_with("error: ");
        assert!(is_of_options || said.lines().count() == 1, "{said}");
    }
    assert!(is_free(&proxy, "job"));
    let mut all: Vec<Client> = Vec::new();
    eventually("the proxy is full", || {
        all.push(proxy.client());
        run(&server, &["job", "--", "true"]).1.ends_with("max number of clients reached")
    });
    drop(all);
    eventually("there is room", || run(&server, &["job", "--", "true"]).0 == Some(0));
    proxy.data().kill().unwrap();
    let (code, said) = run(&server, &["job", "--", "echo", "ran"]);
    assert!(code == Some(125) && said.contains("may lack its data node"), "{said}");
}

#[test]
fn at_most_as_many_commands_run_as_there_are_permits() {
    let proxy = Proxy::with().nodes(3).start();
    let begin = |script: &str| {
        let mut running = exec(&proxy, &["gpu", "--permits", "2", "--", "sh", "-c", script]);
        running.stdin(Stdio::piped()).spawn().expect("exec")
    };
    let mut running = [begin("echo $LOCKGATE_LOCK; cat"), begin("echo $LOCKGATE_LOCK; cat")];
    eventually("both permits are taken", || {
        (0..2).all(|at| proxy.nodes_with(&format!("lock:gpu#{at}")) == 3)
    });
    let third = &["gpu", "-E", "75", "--permits", "2", "--wait", "300ms", "--", "true"];
    let (status, _, error) = told(&exec(&proxy, third).output().unwrap());
    let held = "lockgate exec: 'gpu' has no free permit of 2 (waited 300ms)";
    assert_eq!((status, error.as_str()), (Some(75), held));
    // One that is taken back ends its own command alone, and goes to the next.
    let waiting =
        ["gpu", "--permits", "2", "--wait", "30s", "--", "sh", "-c", "echo $LOCKGATE_LOCK"];
    let waiting = exec(&proxy, &waiting).spawn().expect("exec");
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(proxy.client().cmd(&["LOCKGATE", "UNLOCK", "gpu#1", "ANY"]), Reply::Int(1));
    let (status, output, _) = told(&waiting.wait_with_output().unwrap());
    assert_eq!((status, output.as_str()), (Some(0), "gpu#1"));
    running.iter_mut().for_each(|running| drop(running.stdin.take()));
    let mut ended: Vec<_> =
        running.map(|running| told(&running.wait_with_output().unwrap())).into();
    ended.sort_by(|one, other| one.1.cmp(&other.1));
    let lost = "lockgate exec: the lock 'gpu#1' was lost";
    assert!(ended[0] == (Some(0), "gpu#0".into(), String::new()), "{ended:?}");
    assert!(ended[1].0 == Some(124) && ended[1].2.starts_with(lost), "{ended:?}");
    assert!((0..2).all(|at| is_free(&proxy, &format!("gpu#{at}"))));
}

#[test]
fn many_commands_share_a_lock_or_one_has_it_alone() {
    let proxy = Proxy::with().nodes(3).locks("shared: yes").start();
    let begin = || {
        let words = ["job", "--shared", "--", "sh", "-c", "echo $LOCKGATE_FENCE; cat"];
        exec(&proxy, &words).stdin(Stdio::piped()).spawn().expect("exec")
    };
    let mut running = [begin(), begin()];
    let readers = || proxy.node_client(0).cmd(&["ZCARD", "lock:job"]);
    eventually("both read", || readers() == Reply::Int(3));
    let (status, _, error) = told(&exec(&proxy, &["job", "--", "true"]).output().unwrap());
    let held = "lockgate exec: 'job' is held by another client";
    assert_eq!((status, error.as_str()), (Some(1), held));
    for one in &mut running {
        drop(one.stdin.take());
    }
    for one in running {
        let (status, output, error) = told(&one.wait_with_output().unwrap());
        assert_eq!((status, &output[..], &error[..]), (Some(0), "0", ""));
    }
    assert!(is_free(&proxy, "job"));
    let both = ["job", "--shared", "--permits", "2", "--", "true"];
    let (status, _, error) = told(&exec(&proxy, &both).output().unwrap());
    assert!(status == Some(125) && error.contains("cannot be used with"), "{status:?} {error}");
}

#[test]
fn killed_it_leaves_the_lock_to_the_command() {
    let proxy = Proxy::with().nodes(3).start();
    let dir = tempfile::tempdir().unwrap();
    // It ignores that exec has been killed.
    let file = dir.path().join("one");
    let script = "trap '' TERM; touch $FILE; while [ -e $FILE ]; do sleep 0.05; done";
    let mut child = started(&mut exec(&proxy, &["job", "--", "sh", "-c", script]), &file);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    thread::sleep(Duration::from_millis(500));
    assert!(!is_free(&proxy, "job"), "the command still runs");
    fs::remove_file(&file).unwrap();
    eventually("free at once when both are gone", || is_free(&proxy, "job"));
    // One that does not ends.
    let file = dir.path().join("two");
    let mut child =
        started(&mut exec(&proxy, &["job", "--", "sh", "-c", "touch $FILE; exec sleep 60"]), &file);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("it ends with exec", || is_free(&proxy, "job"));
}

#[test]
fn signals_go_on_to_the_command() {
    let proxy = Proxy::start();
    let dir = tempfile::tempdir().unwrap();
    let traps = "trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo int' INT; trap 'echo term; exit 3' TERM";
    let script = format!("{traps}; touch $FILE; while :; do sleep 0.05; done");
    let child =
        started(&mut exec(&proxy, &["job", "--", "sh", "-c", &script]), &dir.path().join("one"));
    for one in [Signal::USR1, Signal::HUP, Signal::INT, Signal::TERM] {
        signal(&child, one);
        thread::sleep(Duration::from_millis(200));
    }
    let (status, output, error) = told(&child.wait_with_output().unwrap());
    assert_eq!((status, output.as_str(), error.as_str()), (Some(3), "usr1\nhup\nint\nterm", ""));
    // What nohup has exec ignore, the command ignores too.
    let file = dir.path().join("two");
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let mut nohup = Command::new("nohup");
    nohup.args([env!("CARGO_BIN_EXE_lockgate"), "exec", "job", "--", "sh", "-c"]);
    nohup.arg("touch $FILE; sleep 0.5; exit 5").env("LOCKGATE_URL", url);
    nohup.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = started(&mut nohup, &file);
    signal(&child, Signal::HUP);
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

/// A command with a child of its own and an orphan, all of which ignore TERM. Each writes to the file as long as it
/// runs.
const STUBBORN: &str = "trap '' TERM; touch $FILE; (trap '' TERM; while :; do echo child >>$FILE; sleep 0.05; done) & \
     (setsid sh -c 'trap \"\" TERM; while :; do echo orphan >>$FILE; sleep 0.05; done' &); \
     while :; do echo command >>$FILE; sleep 0.05; done";

/// Asserts that nothing writes to the file any more.
fn assert_silent(file: &Path) {
    let length = fs::metadata(file).unwrap().len();
    assert!(length > 30, "all of them have run");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(fs::metadata(file).unwrap().len(), length, "something runs on");
}

#[test]
fn a_lost_lock_ends_the_command_and_all_that_it_has_started() {
    let proxy = Proxy::with().nodes(3).locks("default_ttl: 3s").start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    let arguments = ["job", "--grace", "500ms", "--", "sh", "-c", STUBBORN];
    let child = started(&mut exec(&proxy, &arguments), &file);
    let mut operator = proxy.client();
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "job", "ANY"]), Reply::Int(1));
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!(status, Some(124));
    assert_eq!(error, "lockgate exec: the lock 'job' was lost: the command must end");
    assert_silent(&file);
    // One that has ended by itself before anybody knew.
    let arguments = ["job", "--grace", "500ms", "--", "sh", "-c", "touch $FILE; sleep 0.6"];
    let child = started(&mut exec(&proxy, &arguments), &dir.path().join("two"));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "job", "ANY"]), Reply::Int(1));
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!(status, Some(124));
    assert_eq!(error, "lockgate exec: the lock 'job' was lost before the command had ended");
}

#[test]
fn a_lock_that_no_answer_confirms_ends_the_command_before_the_next_holder() {
    let mut proxy = Proxy::with().nodes(3).locks("default_ttl: 3s").start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    let arguments = ["job", "--grace", "800ms", "--", "sh", "-c", STUBBORN];
    let child = started(&mut exec(&proxy, &arguments), &file);
    proxy.kill();
    let killed = Instant::now();
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!(status, Some(124));
    let what = "lockgate exec: the lock 'job' is not confirmed (";
    assert!(error.starts_with(what) && error.ends_with("): the command must end"), "{error}");
    assert!(killed.elapsed() < Duration::from_secs(4));
    // The nodes have the lock still, or have just dropped it.
    assert_silent(&file);
}

#[test]
fn a_proxy_that_comes_back_in_time_ends_nothing() {
    let mut proxy = Proxy::with().nodes(3).locks("default_ttl: 4s").start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    let script = "touch $FILE; while [ -e $FILE ]; do sleep 0.05; done; exit 9";
    let arguments = ["job", "--grace", "500ms", "--", "sh", "-c", script];
    let child = started(&mut exec(&proxy, &arguments), &file);
    proxy.kill();
    thread::sleep(Duration::from_millis(300));
    proxy.start_again();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        assert!(!is_free(&proxy, "job"));
        thread::sleep(Duration::from_millis(200));
    }
    fs::remove_file(&file).unwrap();
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!((status, error.as_str()), (Some(9), ""));
    assert!(is_free(&proxy, "job"));
}

#[test]
fn at_least_keeps_the_lock_for_an_interval() {
    let proxy = Proxy::with().nodes(3).locks("default_ttl: 3s").start();
    let begun = Instant::now();
    let keeping = ["job", "--at-least", "4s", "--grace", "100ms", "--"];
    let with = |script| [&keeping[..], &["sh", "-c", script]].concat();
    assert_eq!(exec(&proxy, &with("exit 4")).output().unwrap().status.code(), Some(4));
    let (status, ..) = told(&exec(&proxy, &with("true")).output().unwrap());
    assert_eq!(status, Some(1), "once per interval");
    eventually("the interval is over", || is_free(&proxy, "job"));
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(3900), "{took:?}");
    // A command that ends after it was prolonged: the interval counts from the beginning.
    let begun = Instant::now();
    assert!(exec(&proxy, &with("sleep 2.5")).output().unwrap().status.success());
    assert!(!is_free(&proxy, "job"));
    eventually("the interval is over", || is_free(&proxy, "job"));
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(3900), "{took:?}");
    // What looked has taken the lock itself.
    eventually("that is given back", || proxy.nodes_with("lock:job") == 0);
    // One that takes longer has the lock for as long. Beside other tests a renewal may be seconds late.
    let ended = proxy.config_file().with_file_name("ended");
    let script = format!("sleep 7; : >'{}'", ended.display());
    let longer = ["job", "--at-least", "6s", "--grace", "100ms", "--", "sh", "-c", &script];
    let mut longer = exec(&proxy, &longer).spawn().expect("exec");
    eventually("it has begun", || proxy.nodes_with("lock:job") == 3);
    while !ended.exists() {
        assert!(proxy.nodes_with("lock:job") >= 2 || ended.exists());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(longer.wait().expect("status").success());
    assert!(is_free(&proxy, "job"));
}

#[test]
fn at_least_keeps_no_lock_if_nothing_is_run() {
    let proxy = Proxy::with().nodes(3).start();
    let grace = ["job", "--at-least", "30s", "--grace", "10s", "--", "true"];
    let (status, _, error) = told(&exec(&proxy, &grace).output().unwrap());
    assert_eq!(status, Some(125), "{error}");
    assert!(is_free(&proxy, "job"));
}

/// A server that says nothing more once it has been sent a LOCK.
#[test]
fn a_server_that_does_not_answer_is_not_waited_for_longer_than_is_said() {
    let proxy = Proxy::start();
    let silent = Relay::to(proxy.port());
    silent.hold_request("LOCK");
    let server = format!("redis://127.0.0.1:{}", silent.port());
    let (status, output, error) =
        told(&exec_at(&server, &["job", "--wait", "200ms", "--", "echo", "ran"]).output().unwrap());
    assert_eq!((status, output.as_str()), (Some(125), ""));
    assert!(error.ends_with("no answer to LOCK"), "{error}");
}

#[test]
fn a_wait_longer_than_the_proxys_longest_is_several() {
    let proxy = Proxy::with().nodes(1).locks("max_wait: 500ms").start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job"]).grant();
    let waiting = exec(&proxy, &["job", "--wait", "30s", "--", "echo", "ran"]).spawn().unwrap();
    thread::sleep(Duration::from_millis(1200));
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    let (status, output, error) = told(&waiting.wait_with_output().unwrap());
    assert_eq!((status, output.as_str(), error.as_str()), (Some(0), "ran", ""));
    holder.cmd(&["LOCK", "job"]).grant();
    let (status, _, error) =
        told(&exec(&proxy, &["job", "--wait", "1200ms", "--", "echo", "ran"]).output().unwrap());
    assert_eq!(status, Some(1), "{error}");
}

#[test]
fn scripts_that_lock_files_do_not_close_its_socket() {
    let proxy = Proxy::start();
    let dir = tempfile::tempdir().unwrap();
    // As the manual of flock has it, and as older ones had.
    let script = "exec 9>$FILE.9 200>$FILE.200; trap '' TERM; touch $FILE; sleep 1.5";
    let mut child =
        started(&mut exec(&proxy, &["job", "--", "bash", "-c", script]), &dir.path().join("one"));
    child.kill().unwrap();
    child.wait().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(!is_free(&proxy, "job"), "the command still runs");
    eventually("free once it has ended", || is_free(&proxy, "job"));
}

/// Each process of the chain ends as soon as it has made the next.
#[test]
fn a_chain_of_processes_ends_with_its_lock_and_leaves_no_zombies() {
    let proxy = Proxy::with().nodes(3).locks("default_ttl: 2s").start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    let script = "import os, sys, time
os.setsid() if os.fork() == 0 else time.sleep(40)
while True:
    if os.fork(): os._exit(0)
    with open(os.environ['FILE'], 'a') as out: out.write('chain\\n')
    time.sleep(0.03)
";
    let arguments = ["job", "--grace", "300ms", "--", "python3", "-c", script];
    let child = started(&mut exec(&proxy, &arguments), &file);
    thread::sleep(Duration::from_millis(700));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
    let children = children.unwrap();
    assert!(children.split_whitespace().count() < 4, "zombies: {children}");
    assert_eq!(proxy.client().cmd(&["LOCKGATE", "UNLOCK", "job", "ANY"]), Reply::Int(1));
    let (status, ..) = told(&child.wait_with_output().unwrap());
    assert_eq!(status, Some(124));
    assert_silent(&file);
}

#[test]
fn stopped_for_longer_than_its_ttl_it_asks_before_it_ends_the_command() {
    let proxy = Proxy::with().nodes(3).locks("default_ttl: 2s").start();
    let dir = tempfile::tempdir().unwrap();
    let script = "touch $FILE; sleep 3.5; exit 6";
    let arguments = ["job", "--grace", "200ms", "--", "sh", "-c", script];
    let child = started(&mut exec(&proxy, &arguments), &dir.path().join("one"));
    signal(&child, Signal::STOP);
    thread::sleep(Duration::from_millis(2500));
    assert!(!is_free(&proxy, "job"), "the proxy keeps it");
    signal(&child, Signal::CONT);
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!((status, error.as_str()), (Some(6), ""));
}
