//! Proxies over the same lock nodes notice rules whose modes are two steps apart.

use std::{fs, process::Command, thread, time::Duration};

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

/// The report of doctor on this proxy's configuration.
fn doctor(proxy: &Proxy) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("doctor")
        .arg(proxy.config_file())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of the log about a proxy that is two steps away.
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
    let report = doctor(&first);
    assert!(
        report.contains("   - 'lock:*' is enforce in this configuration and audit in "),
        "{report}"
    );
    assert!(report.contains(&format!("{port}{pid}")), "{report}");
    // The proxy that runs has the ports.
    assert!(report.contains("   - in use: "), "{report}");
    assert!(report.ends_with("to look at: 3 (-)\n"), "{report}");
    // One without any rule forwards all of it.
    let bare = Proxy::beside(&first).start();
    eventually("it is noticed", || conflicts(&first) == 2.0 && conflicts(&bare) == 1.0);
    assert_eq!(conflicts(&second), 1.0);
    drop(bare);
    // A step ends it: at once here, and there with the next look.
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
fn lock_nodes_of_proxies_that_adopt_nothing_have_no_record() {
    let (bare, near) =
        (Proxy::with().nodes(3).start(), Proxy::with().nodes(1).top(&rules("bridge")).start());
    eventually("it tells", || near.nodes_with("lockgate:modes") == 1);
    let Reply::Int(left) = near.node_client(0).cmd(&["PTTL", "lockgate:modes"]) else { panic!() };
    assert!((1..=35_000).contains(&left), "{left}");
    thread::sleep(Duration::from_secs(1));
    assert_eq!(bare.nodes_with("lockgate:modes"), 0);
    assert!(info(&bare).contains("mode_conflicts:0"));
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
        line(30, 9999, "no record") + &line(9_999_999, 9998, "1 all a b c") + "garbage\n\n";
    text += &(0..500).map(|n| line(30, n, "1 all x d name audit=lock:*")).collect::<String>();
    node.cmd(&["SET", "lockgate:modes", &text]);
    let proxy = Proxy::with().node_urls(&[nodes[0].url()]).top(&rules("enforce")).start();
    let mut kept = String::new();
    eventually("it has written", || {
        let Reply::Bulk(text) = node.cmd(&["GET", "lockgate:modes"]) else { panic!() };
        kept = String::from_utf8(text).unwrap();
        kept.contains("enforce=lock:*")
    });
    assert_eq!(kept.lines().count(), 128, "{kept}");
    assert!(kept.lines().next().unwrap().contains("enforce=lock:*"), "its own goes first: {kept}");
    assert!(!kept.contains("9998") && !kept.contains("garbage"), "{kept}");
    assert_eq!(conflicts(&proxy), 0.0, "they have another data node");
    node.cmd(&["DEL", "lockgate:modes"]);
    node.cmd(&["HSET", "lockgate:modes", "f", "v"]);
    eventually("it is told", || proxy.log().contains("modes are not compared"));
}

#[test]
fn without_the_permission_modes_are_not_compared_and_locks_are_granted() {
    let node = RedisServer::start(&[]).unwrap();
    let user = "ACL SETUSER locker on >secret ~* -@all +evalsha +script|load +get +set +del +pttl \
                +pexpire +select +ping +info";
    let words: Vec<&str> = user.split_whitespace().collect();
    assert_eq!(Client::connect(node.port()).cmd(&words), Reply::ok());
    let urls = [format!("redis://locker:secret@127.0.0.1:{}", node.port())];
    let proxy = Proxy::with().node_urls(&urls).top(&rules("enforce")).start();
    eventually("it is told", || proxy.log().contains("modes are not compared"));
    eventually("it is up", || proxy.nodes_up() == 1);
    proxy.client().cmd(&["LOCK", "job", "t", "PX", "1000"]).grant();
    assert_eq!(Client::connect(node.port()).cmd(&["EXISTS", "lockgate:modes"]), Reply::Int(0));
    // One without rules has nothing to compare, though another has a record there.
    drop(proxy);
    let admin = &mut Client::connect(node.port());
    admin.cmd(&["SET", "lockgate:modes", "1 a 1 all x d name audit=lock:*\n"]);
    let bare = Proxy::with().node_urls(&urls).start();
    eventually("it was refused", || bare.log().contains("the modes of proxies are not known"));
    assert!(!bare.log().contains("modes are not compared"));
}
