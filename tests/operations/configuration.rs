//! The command line and its messages about configurations.

use std::{
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt as _, net::UnixStream},
    },
    process::{Command, Output, Stdio},
};

fn lockgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(arguments)
        .env("GATE_PASSWORD", "hunter2")
        .output()
        .unwrap()
}

fn check(text: &str) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    std::fs::write(&file, text).unwrap();
    let output = lockgate(&["check", file.to_str().unwrap()]);
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(dir.path().to_str().unwrap(), "");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_good_file_is_ok() {
    let nodes = "['redis://:${GATE_PASSWORD}@10.0.0.1', 'redis://10.0.0.2', 'redis://10.0.0.3']";
    let (status, out, _) = check(&format!("locks: {{nodes: {nodes}}}\n"));
    assert_eq!(
        (status, out.as_str()),
        (Some(0), "/f.yaml: ok, data node 127.0.0.1:6379, 3 lock nodes\n")
    );
}

#[test]
fn output_that_nobody_reads_ends_a_command_quietly() {
    let directory = tempfile::tempdir().unwrap();
    let pages = ["manual", directory.path().to_str().unwrap()];
    for arguments in [&["check", "/dev/null"][..], &["doctor", "/dev/null"], &pages] {
        let (own, other) = UnixStream::pair().unwrap();
        drop(other);
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        command.args(arguments).stdout(OwnedFd::from(own)).stderr(Stdio::piped());
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked"), "{arguments:?}: {error}");
        assert_ne!(output.status.code(), Some(101), "{arguments:?}");
    }
}

#[test]
fn one_lock_node_or_one_that_is_the_data_node_is_noted() {
    let notes = |text: &str| {
        let (status, out, error) = check(text);
        assert_eq!((status, error.as_str()), (Some(0), ""));
        let notes: Vec<String> = out.lines().skip(1).map(str::to_owned).collect();
        assert!(notes.iter().all(|note| note.starts_with("note: ")), "{out}");
        notes
    };
    for left_out in ["", "locks: {max_ttl: 30s}\n"] {
        let notes = notes(left_out);
        assert!(notes[0].contains("locks.nodes is left out, so that it is 127.0.0.1:6379 alone"));
        assert!(notes[1].contains("127.0.0.1:6379 (locks.nodes) is the data node too"));
        assert_eq!(notes.len(), 2, "{notes:?}");
    }
    let one = notes("locks: {nodes: 'redis://:${GATE_PASSWORD}@10.0.0.1'}\n");
    assert!(one[0].contains("when it fails or is restarted, locks stop"), "{one:?}");
    assert!(
        one.len() == 1 && !one[0].contains("hunter2") && !one[0].contains("left out"),
        "{one:?}"
    );
    let nodes = "['redis://10.0.0.1', 'redis://u:${GATE_PASSWORD}@10.0.0.2/1', 'redis://10.0.0.3']";
    let shared = notes(&format!("data: redis://10.0.0.2\nlocks: {{nodes: {nodes}}}\n"));
    assert!(shared[0].contains("10.0.0.2:6379/1 (locks.nodes) is the data node too"), "{shared:?}");
    assert_eq!(shared.len(), 1, "{shared:?}");
    // The next lock nodes.
    let next = "next_nodes: ['redis://10.0.0.5', 'redis://10.0.0.4', 'redis://10.0.0.3']";
    let both = format!("data: redis://10.0.0.4\nlocks: {{nodes: {nodes}, {next}}}\n");
    let coming = notes(&both);
    assert!(
        coming[0].contains("10.0.0.4:6379 (locks.next_nodes) is the data node too"),
        "{coming:?}"
    );
    assert_eq!(coming.len(), 1, "{coming:?}");
    let alone = notes(&format!("locks: {{nodes: {nodes}, next_nodes: 'redis://10.0.0.1'}}\n"));
    assert!(alone[0].contains("locks.next_nodes is 10.0.0.1:6379 alone"), "{alone:?}");
    assert_eq!(alone.len(), 1, "{alone:?}");
    let (status, _, error) = check(&format!("send_proxy_protocol: yes\n{both}"));
    let problem = "f.yaml:3: locks.next_nodes: 10.0.0.4:6379 is the data node too, which is sent a PROXY header";
    assert!(status == Some(1) && error.contains(problem), "{error}");
    // A proxy that starts logs the same.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    std::fs::write(&file, format!("listen: {}\nadmin: off\n", taken.local_addr().unwrap()))
        .unwrap();
    let started = lockgate(&["--config", file.to_str().unwrap()]);
    let log = String::from_utf8_lossy(&started.stderr).into_owned();
    assert_eq!(log.matches("\"level\":\"WARN\"").count(), 2, "{log}");
    assert!(log.contains("when it fails or is restarted, locks stop"), "{log}");
}

#[test]
fn what_is_easily_not_meant_is_noted() {
    let (status, out, _) = check("listen: {address: '0.0.0.0:6391', proxy_protocol: yes}\n");
    assert_eq!(status, Some(0));
    let note = out.lines().nth(1).unwrap();
    assert!(note.starts_with("note: 0.0.0.0:6391 (listen, proxy_protocol): whoever"), "{out}");
}

#[test]
fn a_file_with_passwords_that_everybody_may_read_is_noted() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let file = dir.path().join("f.yaml");
    let text = "admin: off\ndata: redis://:hunter2@127.0.0.1:6379\nlisten: ";
    std::fs::write(&file, format!("{text}{}\n", taken.local_addr().unwrap())).unwrap();
    let told = |folder: u32| {
        for (path, mode) in [(dir.path(), folder), (&file, 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let checked = lockgate(&["check", file.to_str().unwrap()]);
        let started = lockgate(&["--config", file.to_str().unwrap()]);
        [checked.stdout, started.stderr].map(|out| {
            let out = String::from_utf8(out).unwrap();
            assert!(!out.contains("hunter2"), "{out}");
            out.contains(
                "f.yaml is a file that every user of this machine may read though it has passwords",
            )
        })
    };
    assert_eq!(told(0o755), [true, true]);
    assert_eq!(told(0o700), [false, false], "nobody else gets there");
}

#[test]
fn a_bad_file_is_refused_with_every_problem_and_its_line() {
    let text = "lisen: 127.0.0.1:1\nlocks:\n  nodes:\n    - redis://a\n    - redis://:${GATE_PASSWORD}@b:x\n  \
                max_ttl: 60\n";
    let (status, out, error) = check(text);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    for line in [
        "/f.yaml:1: lisen: unknown key; did you mean listen?",
        "/f.yaml:5: locks.nodes[1]: the port is not a number from 1 to 65535",
        "/f.yaml:6: locks.max_ttl: 60 where a duration with its unit",
    ] {
        assert!(error.contains(line), "{line} is not in {error}");
    }
    assert!(!error.contains("hunter2"));
    // Editors and CI find a position only at the beginning of a line.
    assert!(error.lines().all(|line| line.starts_with("/f.yaml:")), "{error}");
}

#[test]
fn guards_that_contradict_are_refused_with_their_lines() {
    let good = "guards:\n  - keys: \"account:*\"\n    lock: \"account:{1}\"\n";
    let (status, _, error) = check(good);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let text = "locks:\n  prefix: \"l:\"\nguards:\n  max_command: 1kb\n  rules:\n    - keys: \"a:*\"\n      \
                lock: \"a:{2}\"\n    - keys: \"a:*\"\n      lock: \"b\"\n      policy: audit\n    - keys: \
                \"*\"\n      lock: \"all\"\n";
    let (status, out, error) = check(text);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    let expected = [
        "/f.yaml:4: guards.max_command: must be from 64kb to 512mb",
        "/f.yaml:7: guards.rules[0].lock: there is no {2}: keys has one '*'",
        "/f.yaml:8: guards.rules[1].keys: is there twice, as in guards.rules[0]; keep one rule",
        "/f.yaml:11: guards.rules[2].keys: also matches keys of locks themselves, 'l:a:*' \
         (locks.prefix and guards.rules[0].lock), and to take a lock must need none; narrow it, or \
         choose another lock or locks.prefix",
        "/f.yaml:11: guards.rules[2].keys: also matches Lockgate's own keys, 'lockgate:*'; narrow \
         it, as by '[^l]*' for a star at the beginning, which leaves out keys that begin with l",
    ];
    assert_eq!(error.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_log_filter_that_is_none_is_refused_by_its_name() {
    // If the filter is not refused, the process still ends, as its port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    std::fs::write(&file, format!("listen: {}\nadmin: off\n", taken.local_addr().unwrap()))
        .unwrap();
    // Elsewhere a word that is no level is a target, and nothing would ever be logged.
    for (asked, word) in
        [("inof", "inof"), ("info,hyper=debug", "hyper=debug"), ("lockgate=loud", "lockgate=loud")]
    {
        let refused = Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .arg("--config")
            .arg(&file)
            .env("LOCKGATE_LOG", asked)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("LOCKGATE_LOG: '{word}' is no level")), "{error}");
        let mut check = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let checked = check.arg("check").arg(&file).env("LOCKGATE_LOG", asked).output().unwrap();
        assert_eq!((checked.status.code(), checked.stdout.len()), (Some(1), 0));
        assert_eq!(String::from_utf8_lossy(&checked.stderr), error);
    }
    assert_eq!(check("log: {level: off}\n").0, Some(0));
    assert!(check("log: {level: inof}\n").2.contains("no level; use one of error, warn"));
}

/// Runs the command with this LOCKGATE_CONFIG. Returns the exit status and stderr.
fn with_config_variable(value: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(arguments)
        .env("LOCKGATE_CONFIG", value)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_environment_names_the_file_unless_it_is_empty_or_one_is_given() {
    let (status, error) = with_config_variable("/nowhere/e.yaml", &[]);
    assert_eq!(status, Some(1));
    assert!(error.contains("/nowhere/e.yaml: No such file"), "{error}");
    let (_, error) = with_config_variable("/nowhere/e.yaml", &["--config", "/nowhere/f.yaml"]);
    assert!(error.contains("/nowhere/f.yaml: No such file"), "{error}");
    for command in ["check", "doctor", "init", "health"] {
        let (status, error) = with_config_variable("/nowhere/e.yaml", &[command]);
        assert_eq!(status, Some(1), "{command}");
        assert!(error.contains("/nowhere/e.yaml: No such file"), "{command}: {error}");
        for file in [&["/nowhere/f.yaml"][..], &["--config", "/nowhere/f.yaml"]] {
            let (_, error) = with_config_variable("/nowhere/e.yaml", &[&[command], file].concat());
            assert!(error.contains("/nowhere/f.yaml: No such file"), "{command}: {error}");
        }
    }
    let (_, error) = with_config_variable("", &["/nowhere/f.yaml"]);
    assert!(error.contains("/nowhere/f.yaml: No such file"), "{error}");
    let (status, error) = with_config_variable("", &["chekc"]);
    assert_eq!(status, Some(1));
    assert_eq!(error, "lockgate: chekc is no file, and no command: see lockgate --help\n");
    for variable in ["", "/nowhere/e.yaml"] {
        let good = concat!(env!("CARGO_MANIFEST_DIR"), "/config/lockgate.yaml");
        let (status, error) = with_config_variable(variable, &["check", good]);
        assert_eq!((status, error.as_str()), (Some(0), ""), "{variable:?}");
    }
    // An empty variable is like none: no error is about it. The log filter ends the run before any port is opened.
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .env("LOCKGATE_CONFIG", "")
        .env("LOCKGATE_LOG", "lockgate=loud")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.starts_with("lockgate: LOCKGATE_LOG: "), "{error}");
}

#[test]
fn the_longest_keepalive_is_one_that_the_system_takes() {
    let (status, _, error) = check("tcp_keepalive: 32767s\n");
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        lockgate::tune(&stream, std::time::Duration::from_secs(32_767)).unwrap();
    });
}

#[test]
fn a_missing_file_is_named() {
    let output = lockgate(&["--config", "/nowhere/f.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/f.yaml: No such file"));
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    std::fs::write(&file, format!("listen: {addr}\nadmin: off\n")).unwrap();
    let output = lockgate(&["--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains(&format!("cannot listen on {addr} (listen): Address already in use")),
        "{error}"
    );
}

/// The build script, which names the commit in `--version` of a build that is no release.
#[allow(dead_code, reason = "its tests alone are run")]
#[path = "../../build.rs"]
mod build_script;

#[test]
fn help_and_version_are_there() {
    let help = lockgate(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.status.success());
    for word in ["--config", "check", "dev", "health", "LOCKGATE_CONFIG"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let version = lockgate(&["--version"]);
    let expected = format!("lockgate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&version.stdout), expected);
}
