//! Proxies with the same lock nodes notice settings that differ between them, and rules whose modes are two steps
//! apart.

use std::{fs, process::Command};

use crate::support::{Client, Proxy, Reply, eventually};
use lockgate::tools::redis_server::RedisServer;

const CONFLICTS: &str = "lockgate_adopt_mode_conflicts";

fn rules(mode: &str) -> String {
    format!("adopt:\n  - keys: 'lock:*'\n    lock: '{{1}}'\n    mode: {mode}")
}

fn conflicts(proxy: &Proxy) -> f64 {
    proxy.metric(CONFLICTS, "")
}

fn info(proxy: &Proxy) -> String {
    let Reply::Bulk(info) = proxy.client().cmd(&["LOCKGATE", "INFO"]) else { panic!() };
    String::from_utf8(info).unwrap()
}

/// Returns doctor's report on this proxy's configuration, and its status.
fn examined(proxy: &Proxy) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("doctor")
        .arg(proxy.config_file())
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

/// Returns doctor's report on this proxy's configuration.
fn doctor(proxy: &Proxy) -> String {
    examined(proxy).0
}

/// Counts the log's lines about a proxy that is two steps away.
fn warned(proxy: &Proxy) -> usize {
    proxy.log().lines().filter(|line| line.contains("WARN") && line.contains("two steps")).count()
}

#[test]
fn proxies_two_steps_apart_are_noticed_by_both() {
    let first = Proxy::with().nodes(3).top(&rules("enforce")).start();
    let second = Proxy::beside(&first).top(&rules("audit")).start();
    eventually("both know", || conflicts(&first) == 1.0 && conflicts(&second) == 1.0);
    let (port, pid) = (format!(":{}, pid ", second.port()), second.pid());
    let log = first.log();
    let line = log.lines().find(|line| line.contains("two steps")).unwrap();
    assert!(line.contains("WARN") && line.contains("\"keys\":\"lock:*\""), "{line}");
    assert!(
        line.contains("\"here\":\"enforce\"") && line.contains("\"there\":\"audit\""),
        "{line}"
    );
    assert!(line.contains(&format!("{port}{pid}")), "{line}");
    let told = info(&first);
    assert!(told.contains("\r\nmode_conflicts:1\r\n"), "{told}");
    assert!(told.contains("0:keys=lock:*;here=enforce;there=audit;proxy="), "{told}");
    let page = second.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200"), "it serves all the same: {page}");
    assert!(
        page.contains("adopt: 'lock:*' is audit here and enforce in another proxy ("),
        "{page}"
    );
    let (report, status) = examined(&first);
    assert!(
        report.contains("  !! 'lock:*' is enforce in this configuration and audit in "),
        "{report}"
    );
    assert_eq!(status, Some(1), "a lock may be granted twice");
    assert!(report.contains("\nnot fit: adopt (!!)"), "{report}");
    assert!(report.contains(&format!("{port}{pid}")), "{report}");
    // The running proxy has the ports.
    assert!(!report.contains("in use"), "{report}");
    // Two sources tell it: the file with the records, and the running proxy.
    assert!(report.ends_with("to look at: 1 (-)\n"), "{report}");
    // A proxy without any rule forwards everything.
    let bare = Proxy::beside(&first).start();
    eventually("it is noticed", || conflicts(&first) == 2.0 && conflicts(&bare) == 1.0);
    assert_eq!(conflicts(&second), 1.0);
    drop(bare);
    // A step ends it: at once on this proxy, and on the other one at its next look.
    let text = fs::read_to_string(second.config_file()).unwrap();
    fs::write(second.config_file(), text.replace("mode: audit", "mode: bridge")).unwrap();
    second.reload();
    eventually("it is over", || conflicts(&second) == 0.0);
    assert!(!info(&second).contains("mode_conflict0"));
    assert_eq!(warned(&second), 1, "it is told once");
    let without = |page: String| !page.contains(&second.pid().to_string());
    eventually("the other knows", || without(first.http("/readyz")));
    assert!(first.log().contains("near again"));
}

#[test]
fn a_proxy_that_has_ended_is_told_of_no_more() {
    let guard = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let first = Proxy::with().nodes(3).top(&rules("enforce")).start();
    let mut second =
        Proxy::beside(&first).top(&rules("audit")).top(guard).locks("max_ttl: 90s").start();
    let differences = || {
        let of = |kind: &str| format!("kind=\"{kind}\"");
        let kinds = ["guards", "max_ttl"].map(of);
        kinds.iter().map(|kind| first.metric("lockgate_fleet_differences", kind)).sum::<f64>()
    };
    eventually("it is known", || conflicts(&first) == 1.0 && differences() == 2.0);
    second.terminate();
    assert!(second.wait().success());
    // Locks that it granted may last, so its record stays, marked as ended.
    for node in 0..3 {
        let record = first.node_client(node).cmd(&["GET", "lockgate:fleet"]);
        let Reply::Bulk(record) = record else { panic!("{record:?}") };
        let record = String::from_utf8(record).unwrap();
        let ended = |line: &str| {
            line.contains(&format!("pid%20{}", second.pid())) && line.contains(" e=ended")
        };
        assert!(record.lines().any(ended), "{record}");
    }
    eventually("it is no matter", || conflicts(&first) == 0.0 && differences() == 0.0);
    assert_eq!(first.metric("lockgate_fleet_proxies", ""), 1.0);
    let (report, status) = examined(&first);
    assert_eq!(status, Some(0), "{report}");
    assert!(!report.contains("granted twice"), "{report}");
}

#[test]
fn a_proxy_without_the_guards_of_another_is_named_by_both() {
    let guards = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let first = Proxy::with().nodes(3).top(guards).start();
    let second = Proxy::beside(&first).start();
    let of_kind = |proxy: &Proxy, kind: &str| {
        proxy.metric("lockgate_fleet_differences", &format!("kind=\"{kind}\""))
    };
    eventually("both know", || {
        of_kind(&first, "guards") == 1.0 && of_kind(&second, "guards") == 1.0
    });
    assert_eq!(
        of_kind(&first, "adopt") + of_kind(&first, "locks") + of_kind(&first, "max_ttl"),
        0.0
    );
    assert_eq!(first.metric("lockgate_fleet_proxies", ""), 2.0);
    let page = second.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200"), "it serves all the same: {page}");
    let told = format!(
        "fleet: the guard on 'account:*' is none in this proxy and enforce in {}, ",
        hostname()
    );
    assert!(page.contains(&told), "{page}");
    let log = first.log();
    let line = log.lines().find(|line| line.contains("another proxy has this otherwise")).unwrap();
    for part in ["WARN", "the guard on 'account:*'", "\"here\":\"enforce\"", "\"there\":\"none\""] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let told = info(&first);
    assert!(told.contains("\r\ndifferences:1\r\n"), "{told}");
    assert!(
        told.contains("0:kind=guards;what=the guard on 'account:*';here=enforce;there=none;proxy="),
        "{told}"
    );
    let report = doctor(&second);
    assert!(
        report.contains("the guard on 'account:*' is none in this configuration and enforce in")
    );
}

#[test]
fn proxies_with_other_settings_of_locks_are_named() {
    let first = Proxy::with().nodes(1).start();
    let second =
        Proxy::beside(&first).locks("max_ttl: 20s\n  drift_factor: 0.02\n  quarantine: no").start();
    eventually("it is known", || {
        first.http("/readyz").contains("locks.quarantine is yes in this proxy and no in")
    });
    let page = second.http("/readyz");
    for told in [
        "locks.max_ttl is 20s in this proxy and 60s in",
        "locks.drift_factor is 0.02 in this proxy and 0.01 in",
        "locks.quarantine is no in this proxy and yes in",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
}

fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn each_proxy_has_a_record_on_each_lock_node_for_a_while() {
    let bare = Proxy::with().nodes(3).start();
    eventually("it tells", || bare.nodes_with("lockgate:fleet") == 3);
    let Reply::Int(left) = bare.node_client(0).cmd(&["PTTL", "lockgate:fleet"]) else { panic!() };
    assert!((1..=35_000).contains(&left), "{left}");
    assert!(info(&bare).contains("mode_conflicts:0") && info(&bare).contains("differences:0"));
}

#[test]
fn records_of_others_take_bounded_room_whatever_they_are() {
    let nodes = [RedisServer::start(&[]).unwrap()];
    let mut node = Client::connect(nodes[0].port());
    let Reply::Array(time) = node.cmd(&["TIME"]) else { panic!() };
    let Reply::Bulk(seconds) = &time[0] else { panic!() };
    let now: u64 = String::from_utf8_lossy(seconds).parse().unwrap();
    let line = |till: u64, id: usize, rest: &str| format!("{}000 {id:x} {rest}\n", now + till);
    let mut text =
        line(30, 9999, "no record") + &line(9_999_999, 9998, "1 all 1 a b c") + "garbage\n\n";
    text +=
        &(0..500).map(|n| line(30, n, "1 all 1000 x d name a=audit=0=lock:*")).collect::<String>();
    node.cmd(&["SET", "lockgate:fleet", &text]);
    let proxy = Proxy::with().node_urls(&[nodes[0].url()]).top(&rules("enforce")).start();
    let mut kept = String::new();
    eventually("it has written", || {
        let Reply::Bulk(text) = node.cmd(&["GET", "lockgate:fleet"]) else { panic!() };
        kept = String::from_utf8(text).unwrap();
        kept.contains(" a=enforce=")
    });
    assert_eq!(kept.lines().count(), 1 + 128, "{kept}");
    assert!(kept.lines().next().unwrap().starts_with('='), "the version: {kept}");
    assert!(kept.lines().nth(1).unwrap().contains(" a=enforce="), "its own goes first: {kept}");
    assert!(!kept.contains("9998") && !kept.contains("garbage"), "{kept}");
    assert_eq!(conflicts(&proxy), 0.0, "they have another data node");
    node.cmd(&["DEL", "lockgate:fleet"]);
    node.cmd(&["HSET", "lockgate:fleet", "f", "v"]);
    eventually("it is told", || proxy.log().contains("this proxy is not compared"));
}

#[test]
fn without_the_permission_proxies_are_not_compared_and_locks_are_granted() {
    let node = RedisServer::start(&[]).unwrap();
    let user = "ACL SETUSER locker on >secret ~* -@all +evalsha +script|load +get +set +del +pttl \
                +pexpire +select +ping +info";
    let words: Vec<&str> = user.split_whitespace().collect();
    assert_eq!(Client::connect(node.port()).cmd(&words), Reply::ok());
    let urls = [format!("redis://locker:secret@127.0.0.1:{}", node.port())];
    let proxy = Proxy::with().node_urls(&urls).top(&rules("enforce")).start();
    eventually("it is told", || proxy.log().contains("this proxy is not compared"));
    eventually("it is up", || proxy.nodes_up() == 1);
    proxy.client().cmd(&["LOCK", "job", "t", "PX", "1000"]).grant();
    assert_eq!(Client::connect(node.port()).cmd(&["EXISTS", "lockgate:fleet"]), Reply::Int(0));
}

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn take(proxy: &Proxy, token: &str) -> Reply {
    proxy.client().cmd(&["SET", "lock:job", token, "NX", "PX", "20000"])
}

/// Returns the TTLs left on the data node and on the first lock node.
fn left(proxy: &Proxy) -> [i64; 2] {
    let mut both = [(proxy.data_client(), "lock:job"), (proxy.node_client(0), "lock:job")];
    both.each_mut().map(|(client, key)| match client.cmd(&["PTTL", key]) {
        Reply::Int(left) => left,
        other => panic!("{other:?}"),
    })
}

/// A pool reaches two proxies whose modes are one step apart. The second extends and gives back on both sides what
/// the first has taken there.
#[test]
fn a_bridged_lock_is_extended_and_given_back_on_both_sides_through_a_proxy_one_step_apart() {
    for mode in ["audit", "enforce"] {
        let bridge = Proxy::with().nodes(3).top(&rules("bridge")).start();
        let near = Proxy::beside(&bridge).top(&rules(mode)).start();
        let commands: [&[&str]; 7] = [
            &["EVAL", RELEASE, "1", "lock:job", "t"],
            &["DEL", "lock:job"],
            &["EVAL", EXTEND, "1", "lock:job", "t", "50000"],
            &["PEXPIRE", "lock:job", "50000"],
            &["UNLOCK", "job", "t"],
            &["RENEW", "job", "t", "PX", "50000"],
            // Not its own lock: nothing changes.
            &["EVAL", RELEASE, "1", "lock:job", "other"],
        ];
        for command in commands {
            let told = format!("{mode}: {command:?}");
            assert_eq!(take(&bridge, "t"), Reply::ok(), "{told}");
            let mut client = near.client();
            if !command.contains(&"t") && command.len() == 5 {
                assert_eq!(client.cmd(command), Reply::Int(0), "{told}");
                let left = left(&bridge);
                assert!(
                    left.iter().all(|left| (15_000..30_000).contains(left)),
                    "{told}: {left:?}"
                );
                assert_eq!(bridge.client().cmd(commands[0]), Reply::Int(1));
                continue;
            }
            let Reply::Int(1..) = client.cmd(command) else { panic!("{told}") };
            let gives_back = command.len() < 6 && command[0] != "PEXPIRE" && command[0] != "RENEW";
            match gives_back {
                true => eventually("it is free on both sides", || left(&bridge) == [-2, -2]),
                false => {
                    let longer = |left: [i64; 2]| left.iter().all(|left| *left > 40_000);
                    eventually("it lasts longer on both sides", || longer(left(&bridge)));
                    assert_eq!(bridge.client().cmd(commands[0]), Reply::Int(1), "{told}");
                }
            }
            assert_eq!(take(&bridge, "next"), Reply::ok(), "{told}: another gets it at once");
            assert_eq!(bridge.client().cmd(&["DEL", "lock:job"]), Reply::Int(1), "{told}");
        }
    }
}
