//! Libraries with their cluster clients, and redis-cli, work through the fronts of a real cluster while slots move
//! and a master dies.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use redis::{RedisError, Value, cluster::ClusterClient, cluster::ClusterConnection};

use super::{MACHINE, file, redis_cli};
use crate::support::{Client, Proxy, Reply, cluster::Cluster, eventually};

/// How long a round may take.
const LIMIT: Duration = Duration::from_secs(40);
const KEYS: usize = 64;

/// A library at work in a process of its own.
struct Script {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Script {
    fn start(program: &str, script: &str, port: u16, version: &str) -> Script {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", program])
            .arg(file("cluster").join(script))
            .args([&port.to_string(), version])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Script { name: format!("{script} {version}"), child, input, output }
    }

    fn ask(&mut self) {
        writeln!(self.input.as_mut().unwrap(), "round").unwrap();
    }

    /// Waits for a line that begins with `word`, and returns the rest.
    fn wait(&mut self, word: &str) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let rest = line.trim_end().strip_prefix(word);
        rest.unwrap_or_else(|| panic!("{}: {line:?}", self.name)).trim().to_owned()
    }

    /// Ends the library, and returns the addresses that it knows.
    fn end(mut self) -> String {
        self.input = None;
        let nodes = self.wait("nodes");
        assert!(self.child.wait().unwrap().success(), "{}", self.name);
        nodes
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does a round with redis-rs in this process, and repeats it until nothing fails. A connection asks for the slots
/// again only when it is redirected, not when a node is down. So each attempt takes a new connection, as from a pool.
fn redis_rs(client: &ClusterClient, connection: &mut ClusterConnection, number: usize) {
    let end = Instant::now() + LIMIT;
    while let Err(error) = redis_rs_once(connection, number) {
        assert!(Instant::now() < end, "redis-rs: {error}");
        thread::sleep(Duration::from_millis(100));
        if let Ok(new) = client.get_connection() {
            *connection = new;
        }
    }
}

fn redis_rs_once(connection: &mut ClusterConnection, number: usize) -> Result<(), RedisError> {
    for key in 0..KEYS {
        let key = format!("rs:{key}");
        redis::cmd("SET").arg(&key).arg(number).exec(connection)?;
        let got: usize = redis::cmd("GET").arg(&key).query(connection)?;
        assert_eq!(got, number);
    }
    let lock = format!("rs:lock:{:?}", Instant::now());
    let words = |verb: &str| redis::cmd(verb).arg(&lock).clone();
    let take = words("LOCK").arg("PX").arg(30_000).clone();
    let (token, _, _): (String, u64, u64) = take.query(connection)?;
    assert_eq!(take.query::<Value>(connection)?, Value::Nil);
    assert_eq!(words("UNLOCK").arg(token).query::<u8>(connection)?, 1);
    Ok(())
}

/// Makes all libraries do a round.
fn round(
    scripts: &mut [Script],
    (client, connection): (&ClusterClient, &mut ClusterConnection),
    number: usize,
) {
    scripts.iter_mut().for_each(Script::ask);
    redis_rs(client, connection, number);
    for script in scripts {
        let failed = script.wait("round");
        if !failed.is_empty() {
            println!("round {number}: {} went on after: {failed}", script.name);
        }
    }
}

/// Checks that a redis-cli that follows redirections sets and reads all keys.
fn redis_cli_works(port: u16) {
    let session: String =
        (0..KEYS).map(|key| format!("SET cli:{key} 1\nGET cli:{key}\n")).collect();
    let said = redis_cli(port, &["-c"], &session);
    assert_eq!(said.matches("OK").count(), KEYS, "{said}");
    assert_eq!(said.lines().filter(|line| *line == "1").count(), KEYS, "{said}");
}

#[test]
#[ignore = "takes long: make long"]
fn cluster_clients_stay_at_the_fronts_while_slots_move_and_a_master_dies() {
    let _share = MACHINE.read();
    let mut cluster = Cluster::start(3);
    let proxy: Proxy = cluster.proxy("").locks("node_timeout: 2s").start();
    let fronts = cluster.fronts(&proxy);
    let python = file(".venv/bin/python").display().to_string();
    let mut scripts: Vec<Script> = ["2", "3"]
        .iter()
        .flat_map(|version| {
            [
                Script::start(&python, "redis_py.py", fronts[0], version),
                Script::start("node", "ioredis.js", fronts[1], version),
                Script::start("node", "node_redis.js", fronts[2], version),
            ]
        })
        .collect();
    let client = ClusterClient::builder([format!("redis://127.0.0.1:{}", fronts[0])])
        .connection_timeout(Duration::from_secs(5))
        .response_timeout(Duration::from_secs(5))
        .build()
        .unwrap();
    let mut connection = client.get_connection().unwrap();
    round(&mut scripts, (&client, &mut connection), 0);
    redis_cli_works(fronts[0]);

    // redis-cli moves slots with their keys while all libraries work. It knows only the fronts.
    let (from, to) = (cluster.id(0), cluster.id(1));
    let front = format!("127.0.0.1:{}", fronts[0]);
    let reshard = thread::spawn(move || {
        let arguments = [
            &["--cluster", "reshard", &front, "--cluster-yes"][..],
            &["--cluster-from", &from, "--cluster-to", &to, "--cluster-slots", "300"],
        ];
        redis_cli(1, &arguments.concat(), "")
    });
    round(&mut scripts, (&client, &mut connection), 1);
    let said = reshard.join().unwrap();
    assert!(said.contains("Moving slot"), "{said}");
    // redis-cli complains that the nodes disagree until all of them have heard of the move.
    let mut check = String::new();
    eventually("the nodes agree", || {
        let at = format!("127.0.0.1:{}", fronts[4]);
        let output = Command::new("redis-cli").args(["--cluster", "check", &at]).output().unwrap();
        check = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    assert!(check.contains("[OK] All 16384 slots covered."), "{check}");
    for node in &cluster.nodes {
        assert!(!check.contains(&format!(":{}", node.port())), "{check}");
    }
    round(&mut scripts, (&client, &mut connection), 2);

    cluster.nodes[1].kill().unwrap();
    let mut replica = cluster.client(4);
    assert_eq!(replica.cmd(&["CLUSTER", "FAILOVER", "TAKEOVER"]), Reply::ok());
    round(&mut scripts, (&client, &mut connection), 3);
    redis_cli_works(fronts[0]);
    cluster.nodes[1].restart().unwrap();
    eventually("the node is back", || {
        Client::connect(fronts[1]).cmd(&["CLUSTER", "MYID"]) == replica_of(&cluster)
    });
    round(&mut scripts, (&client, &mut connection), 4);

    for script in scripts {
        let name = script.name.clone();
        let nodes = script.end();
        let known = |front: &&u16| nodes.contains(&format!(":{front}"));
        assert!(fronts.iter().filter(known).count() >= 3, "{name}: {nodes}");
        for node in &cluster.nodes {
            assert!(!nodes.contains(&format!(":{}", node.port())), "{name}: {nodes}");
        }
    }
    assert!(proxy.metric("lockgate_cluster_redirects_total", "result=\"front\"") > 0.0);
    assert_eq!(proxy.metric("lockgate_cluster_redirects_total", "result=\"nowhere\""), 0.0);
}

/// The id of the node that was killed.
fn replica_of(cluster: &Cluster) -> Reply {
    cluster.client(1).cmd(&["CLUSTER", "MYID"])
}
