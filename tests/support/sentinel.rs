//! Real Sentinels with a real master, on loopback.

use std::{io::Write as _, net::TcpListener, thread, time::Duration};

use lockgate::tools::{redis_server::RedisServer, sentinel_server::SentinelServer};

use super::{Client, LIMIT, Reply, eventually, replicates};

/// The Sentinels' name for their master.
pub const MASTER: &str = "mymaster";

/// A running Sentinel. A test that fails prints its log.
pub struct Sentinel(SentinelServer);

impl Sentinel {
    /// Starts a Sentinel that watches the Redis at this port as [`MASTER`], with these lines in its file. `quorum`
    /// Sentinels must agree that the Redis is down.
    pub fn start(master: u16, quorum: usize, lines: &str) -> Sentinel {
        let watch = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {master} {quorum}\n\
             sentinel down-after-milliseconds {MASTER} 1000\n\
             sentinel failover-timeout {MASTER} 10000\n{lines}\n"
        );
        Sentinel::idle(&watch)
    }

    /// Starts a Sentinel that watches only what `lines` say.
    pub fn idle(lines: &str) -> Sentinel {
        Sentinel(SentinelServer::start(lines).expect("Sentinel"))
    }

    pub fn address(&self) -> String {
        self.0.addr().to_string()
    }

    pub fn port(&self) -> u16 {
        self.0.port()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.port())
    }

    /// Returns the port of the master that this Sentinel names.
    pub fn names(&self) -> u16 {
        match self.client().cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]) {
            Reply::Array(address) => match &address[1] {
                Reply::Bulk(port) => String::from_utf8_lossy(port).parse().expect("port"),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().expect("kill");
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of the Sentinel at {}:\n{}", self.0.addr(), self.0.log());
        }
    }
}

/// A master, a replica and three Sentinels that know each other.
pub struct Watched {
    pub master: RedisServer,
    pub replica: RedisServer,
    pub sentinels: Vec<Sentinel>,
}

impl Watched {
    /// Starts everything, and waits until the Sentinels can promote the replica. They do so by themselves once the
    /// master has been silent for two seconds, which a busy machine does not cause.
    pub fn start(arguments: &[&str]) -> Watched {
        Watched::start_with(arguments, 2000)
    }

    /// Starts everything, with Sentinels that do nothing by themselves.
    pub fn steady() -> Watched {
        Watched::start_with(&[], 600_000)
    }

    fn start_with(arguments: &[&str], down_after: u32) -> Watched {
        let master = RedisServer::start(arguments).expect("master");
        let port = master.port().to_string();
        let of_master = [arguments, &["--replicaof", "127.0.0.1", &port]].concat();
        let replica = RedisServer::start(&of_master).expect("replica");
        let silence = format!("sentinel down-after-milliseconds {MASTER} {down_after}");
        let sentinels: Vec<Sentinel> =
            (0..3).map(|_| Sentinel::start(master.port(), 2, &silence)).collect();
        let watched = Watched { master, replica, sentinels };
        // Otherwise Sentinels hear of a replica only within ten seconds, and of each other within two.
        watched.set_periods("200");
        for sentinel in &watched.sentinels {
            let mut client = sentinel.client();
            eventually("the Sentinel knows the replica and the other Sentinels", || {
                client.send(b"INFO sentinel\r\n");
                let Reply::Bulk(info) = client.reply() else { panic!("no INFO") };
                let info = String::from_utf8_lossy(&info).into_owned();
                info.contains("status=ok") && info.contains("slaves=1,sentinels=3")
            });
        }
        // A Sentinel takes a replica that calls itself a master for a former master, and makes it a replica again, if
        // it hears of no failover within four such periods.
        watched.set_periods("2000");
        replicates(watched.master.port(), "seen");
        watched
    }

    /// Sets how often the Sentinels announce themselves to each other, in ms.
    fn set_periods(&self, publish: &str) {
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "DEBUG", "info-period", "200", "publish-period", publish];
            assert_eq!(sentinel.client().cmd(&words), Reply::ok());
        }
    }

    /// Returns the Sentinels' addresses and [`MASTER`] as `data` has them, with these other keys in front.
    pub fn data(&self, others: &str) -> String {
        let all: Vec<String> = self.sentinels.iter().map(Sentinel::address).collect();
        format!("{{{others}sentinels: ['{}'], master: {MASTER}}}", all.join("', '"))
    }

    /// Connects a client to the Redis that was the replica at first.
    pub fn replica_client(&self) -> Client {
        Client::connect(self.replica.port())
    }

    /// Stops the replication, as on a busy network: the replica gets none of the master's further writes.
    pub fn hold_replication(&self) {
        let mut replica = self.replica_client();
        let nobody = ["CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing"];
        assert_eq!(replica.cmd(&nobody), Reply::ok());
        let mut master = Client::connect(self.master.port());
        assert!(matches!(master.cmd(&["CLIENT", "KILL", "TYPE", "replica"]), Reply::Int(1..)));
        master.cmd(&["SET", "marked", "1"]);
        assert_eq!(replica.cmd(&["GET", "marked"]), Reply::NullBulk);
    }

    /// Makes the first Sentinel promote the replica, once that has all that the master has.
    pub fn fail_over(&self) {
        replicates(self.master.port(), "seen");
        let (mut client, mut replica) = (self.sentinels[0].client(), self.replica_client());
        // It is given up where the Sentinel has not heard of the replica in time, as on a busy machine.
        eventually("the failover goes on", || {
            client.cmd(&["SENTINEL", "FAILOVER", MASTER]);
            loop {
                match failover_state(&mut client).as_deref() {
                    Some(b"wait_start" | b"select_slave") => {
                        thread::sleep(Duration::from_millis(5))
                    }
                    Some(_) => return true,
                    None => {
                        let Reply::Array(role) = replica.cmd(&["ROLE"]) else { panic!("a role") };
                        return role[0] == Reply::bulk("master");
                    }
                }
            }
        });
    }
}

/// How far a Sentinel has come with a failover. `None`: there is none.
fn failover_state(sentinel: &mut Client) -> Option<Vec<u8>> {
    let Reply::Array(fields) = sentinel.cmd(&["SENTINEL", "MASTER", MASTER]) else {
        panic!("a master")
    };
    fields.chunks(2).find_map(|field| match field {
        [name, Reply::Bulk(state)] if *name == Reply::bulk("failover-state") => Some(state.clone()),
        _ => None,
    })
}

/// Starts a server that answers everything with these bytes. Returns its port.
pub fn answering(bytes: &'static [u8]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("listener");
    let port = listener.local_addr().expect("address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(LIMIT));
                let mut read = [0; 1024];
                while std::io::Read::read(&mut stream, &mut read).is_ok_and(|length| length > 0) {
                    if stream.write_all(bytes).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}
