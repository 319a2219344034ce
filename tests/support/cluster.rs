//! A real Redis Cluster on loopback.

use lockgate::tools::{
    redis_cluster::{self, all_know, form, meet, slots},
    redis_server::RedisServer,
};

use super::{Client, Proxy, Reply, Setup, eventually, pipeline, replicates};

/// Masters, and then a replica for each.
pub struct Cluster {
    pub nodes: Vec<RedisServer>,
    masters: usize,
}

/// Starts a node that has met no other. Its time-out is so long that a busy machine does not make it look dead.
pub fn node(arguments: &[&str]) -> RedisServer {
    redis_cluster::node(10_000, arguments).expect("node of a cluster")
}

/// Starts a node without slots, and has it meet these nodes.
pub fn join(nodes: &[RedisServer]) -> RedisServer {
    let new = node(&[]);
    for other in nodes {
        meet(&new, other).expect("met");
    }
    all_know(&nodes.iter().chain([&new]).collect::<Vec<_>>()).expect("all know each other");
    new
}

impl Cluster {
    /// Starts a cluster with `masters` masters, which share the slots, and a replica for each.
    pub fn start(masters: usize) -> Cluster {
        let nodes: Vec<RedisServer> = (0..2 * masters).map(|_| node(&[])).collect();
        form(&nodes).expect("a cluster");
        let cluster = Cluster { nodes, masters };
        for index in 0..masters {
            replicates(cluster.nodes[index].port(), &cluster.key(index, "seen"));
        }
        cluster
    }

    /// Sets after how many milliseconds of silence a node counts as dead.
    pub fn node_timeout(self, millis: u32) -> Cluster {
        self.set("cluster-node-timeout", &millis.to_string());
        self
    }

    /// Moves the slot of `key` from one master to another, with everything in it. Calls `between` while the slot is
    /// moving.
    pub fn move_slot(&self, key: &str, from: usize, to: usize, between: impl FnOnce(&Cluster)) {
        let slot = self.slot(key);
        self.begin_move(&slot, from, to);
        let mut at = self.client(from);
        while let Reply::Array(keys) = at.cmd(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"])
            && !keys.is_empty()
        {
            keys.iter().for_each(|key| self.migrate(&text(key), from, to));
        }
        between(self);
        for index in [to, from] {
            self.set_slot(index, &slot, &["NODE", &self.id(to)]);
        }
    }

    /// Returns the slot of a key.
    pub fn slot(&self, key: &str) -> String {
        match self.client(self.nodes.len() - 1).cmd(&["CLUSTER", "KEYSLOT", key]) {
            Reply::Int(slot) => slot.to_string(),
            other => panic!("no slot: {other:?}"),
        }
    }

    /// Returns a key of this slot.
    pub fn key_of_slot(&self, slot: usize) -> String {
        let (mut asked, slot) = (self.client(0), Reply::Int(slot as i64));
        (0..200_000)
            .map(|number| number.to_string())
            .find(|key| asked.cmd(&["CLUSTER", "KEYSLOT", key]) == slot)
            .expect("a key")
    }

    /// Tells both masters that a slot is moving from one to the other.
    pub fn begin_move(&self, slot: &str, from: usize, to: usize) {
        self.set_slot(to, slot, &["IMPORTING", &self.id(from)]);
        self.set_slot(from, slot, &["MIGRATING", &self.id(to)]);
    }

    /// Moves one key of a slot that is moving.
    pub fn migrate(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port().to_string();
        let mut at = self.client(from);
        // A node that has just joined may not accept keys yet.
        eventually("the key is moved", || {
            let moved = at.cmd(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            matches!(&moved, Reply::Simple(text) if text == "OK" || text == "NOKEY")
        });
    }

    fn set_slot(&self, index: usize, slot: &str, words: &[&str]) {
        let set = self.client(index).cmd(&[&["CLUSTER", "SETSLOT", slot], words].concat());
        // A master that hears that another master has its last slot becomes a replica of that one.
        let is_emptied = matches!(&set, Reply::Error(text) if text.contains("only with masters"));
        assert!(set == Reply::ok() || is_emptied, "{set:?}");
    }

    /// Moves all slots that a master had at the start to another one, with everything in them, the lowest first.
    pub fn give_all(&self, from: usize, to: usize) {
        let (first, last) = self.slots(from);
        let all: Vec<String> = (first..=last).map(|slot| slot.to_string()).collect();
        let ask: Vec<Vec<&str>> =
            all.iter().map(|slot| vec!["CLUSTER", "COUNTKEYSINSLOT", slot]).collect();
        let asked: Vec<&[&str]> = ask.iter().map(Vec::as_slice).collect();
        let counts = self.client(from).pipe(&asked);
        let (empty, full): (Vec<_>, Vec<_>) =
            all.iter().zip(counts).partition(|(_, count)| *count == Reply::Int(0));
        // The new claims must be newer than the old ones.
        self.text(to, &["CLUSTER", "BUMPEPOCH"]);
        let target = self.id(to);
        let set: Vec<[&str; 5]> = empty
            .iter()
            .map(|(slot, _)| ["CLUSTER", "SETSLOT", slot.as_str(), "NODE", &target])
            .collect();
        let set: Vec<&[&str]> = set.iter().map(<[&str; 5]>::as_slice).collect();
        for index in [to, from] {
            assert!(self.client(index).pipe(&set).iter().all(|reply| *reply == Reply::ok()));
        }
        for (slot, _) in full {
            self.begin_move(slot, from, to);
            let keys = self.client(from).cmd(&["CLUSTER", "GETKEYSINSLOT", slot, "1000"]);
            let Reply::Array(keys) = keys else { panic!("{keys:?}") };
            keys.iter().for_each(|key| self.migrate(&text(key), from, to));
            [to, from].iter().for_each(|index| self.set_slot(*index, slot, &["NODE", &target]));
        }
    }

    /// Takes a slot from its master, so that no node has it.
    pub fn uncover(&self, slot: &str) {
        eventually("nobody has the slot", || {
            (0..self.nodes.len()).fold(true, |all, index| {
                // A message that was under way may have told a node of the slot again.
                self.client(index).cmd(&["CLUSTER", "DELSLOTS", slot]);
                let told = self.text(index, &["CLUSTER", "INFO"]);
                all && told.contains("cluster_slots_assigned:16383")
            })
        });
    }

    /// Sets a configuration value on all nodes.
    pub fn set(&self, name: &str, value: &str) {
        for index in 0..self.nodes.len() {
            let words = ["CONFIG", "SET", name, value];
            assert_eq!(self.client(index).cmd(&words), Reply::ok());
        }
    }

    /// Returns the slots that a master had at the start.
    pub fn slots(&self, index: usize) -> (usize, usize) {
        slots(self.masters, index)
    }

    /// Returns the addresses of all nodes as `data.cluster` has them, with these other keys behind.
    pub fn data(&self, others: &str) -> String {
        let all: Vec<String> =
            self.nodes.iter().map(|node| format!("'127.0.0.1:{}'", node.port())).collect();
        format!("{{cluster: [{}]{others}}}", all.join(", "))
    }

    /// Sets up a proxy with a front for each node.
    pub fn proxy(&self, others: &str) -> Setup {
        Proxy::with().data_url(&self.data(others)).fronts(self.nodes.len())
    }

    pub fn client(&self, index: usize) -> Client {
        Client::connect(self.nodes[index].port())
    }

    /// Returns the addresses of all nodes as an entry of `locks.nodes` has them.
    pub fn voter(&self) -> String {
        self.data(", shards: 6")
    }

    /// Returns a node's reply as text.
    pub fn text(&self, index: usize, words: &[&str]) -> String {
        text(&self.client(index).cmd(words))
    }

    pub fn id(&self, index: usize) -> String {
        self.text(index, &["CLUSTER", "MYID"])
    }

    /// Returns the port of each node's front, in the order of the nodes, once all have one.
    pub fn fronts(&self, proxy: &Proxy) -> Vec<u16> {
        ready(proxy);
        let mut ports = Vec::new();
        eventually("each node has a front", || {
            let ids: Vec<(String, u16)> = proxy
                .fronts()
                .iter()
                .filter_map(|port| Some((answer(*port, &["CLUSTER", "MYID"])?, *port)))
                .filter(|(id, _)| matches!(id, Reply::Bulk(_)))
                .map(|(id, port)| (text(&id), port))
                .collect();
            let front = |index: usize| {
                let id = self.id(index);
                ids.iter().find(|(other, _)| *other == id).map(|(_, port)| *port)
            };
            ports = (0..self.nodes.len()).filter_map(front).collect();
            ports.len() == self.nodes.len()
        });
        ports
    }

    /// Returns a key of a master, made from this name.
    pub fn key(&self, index: usize, name: &str) -> String {
        let (first, last) = self.slots(index);
        let mut client = self.client(0);
        (0..10_000)
            .map(|number| format!("{{{name}-{number}}}"))
            .find(|key| match client.cmd(&["CLUSTER", "KEYSLOT", key]) {
                Reply::Int(slot) => (first..=last).contains(&(slot as usize)),
                other => panic!("{other:?}"),
            })
            .expect("a key")
    }
}

/// Returns the text of a reply; for an array, that of its last element.
pub fn text(reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) => text.clone(),
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Array(all) => text(all.last().expect("an element")),
        other => panic!("no text: {other:?}"),
    }
}

/// Waits until the proxy is ready.
pub fn ready(proxy: &Proxy) {
    eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
}

/// Returns the reply at a front, or `None` if the front closes because its node is away.
pub fn answer(front: u16, words: &[&str]) -> Option<Reply> {
    let mut client = Client::connect(front);
    client.send(&pipeline(&[words]));
    (!client.is_at_end()).then(|| client.reply())
}
