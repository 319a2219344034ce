//! Hosts in network namespaces, and the wires between them.
//!
//! Every host has a namespace with a TUN device as its only way out. The packets it sends come
//! here, as whole IP packets, and are passed on to their host, or not, or later: loss, delay,
//! jitter, reordering and cuts, for each pair of hosts and each direction. The kernel's own netem
//! can do no more, and many kernels come without it.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs,
    net::Ipv4Addr,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Condvar, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tun_rs::{DeviceBuilder, SyncDevice};

/// The prefix of every namespace, directory and mount; the process's id follows.
pub(crate) const PREFIX: &str = "lockgate-chaos-";
/// The hosts' network, which is not visible outside of the namespaces.
const NETWORK: [u8; 3] = [10, 213, 7];
/// The first host's last byte.
const FIRST: u8 = 10;
/// The most late packets under way; any more are lost.
const LATE_LIMIT: usize = 50_000;
/// The size in bytes of a buffer that no packet fills.
const PACKET: usize = 2048;

/// The treatment of packets from one host to another.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct Wire {
    /// Whether nothing passes.
    pub(crate) cut: bool,
    /// The share of packets that is lost.
    pub(crate) loss: f64,
    /// The delay of all packets; each has up to `jitter` more.
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// The share of packets that is not late, and overtakes.
    pub(crate) reorder: f64,
}

/// The wires from each host (first index) to each other.
pub(crate) type Wires = Vec<Vec<Wire>>;

/// Counts of packets by their treatment.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) passed: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) cut: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) overtook: AtomicU64,
}

/// All hosts. Dropping the network removes their namespaces.
pub(crate) struct Network {
    prefix: String,
    hosts: usize,
    switch: Arc<Switch>,
}

struct Switch {
    devices: Vec<SyncDevice>,
    wires: RwLock<Wires>,
    late: Mutex<Late>,
    woken: Condvar,
    counts: Counts,
}

/// The due time of a late packet, its number, its host, and its bytes.
type Packet = (Instant, u64, usize, Vec<u8>);

#[derive(Default)]
struct Late {
    /// Late packets; the next one that is due comes first.
    packets: BinaryHeap<Reverse<Packet>>,
    number: u64,
    over: bool,
}

impl Network {
    /// Makes `hosts` hosts that reach each other. `name` is unique on this machine.
    pub(crate) fn new(name: &str, hosts: usize) -> Network {
        let prefix = format!("{PREFIX}{name}-");
        let mut devices = Vec::new();
        // The guard removes whatever is made from here on, should the next step fail.
        let guard = Namespaces { prefix: prefix.clone() };
        for host in 0..hosts {
            let namespace = format!("{prefix}{host}");
            ip(&["netns", "add", &namespace]);
            let device = DeviceBuilder::new()
                .name(format!("lg{name}.{host}"))
                .build_sync()
                .unwrap_or_else(|error| panic!("no TUN device (root, /dev/net/tun): {error}"));
            let name = device.name().expect("its name");
            ip(&["link", "set", &name, "netns", &namespace]);
            let address = format!("{}/24", address(host));
            ip(&["-n", &namespace, "link", "set", "lo", "up"]);
            ip(&["-n", &namespace, "address", "add", &address, "dev", &name]);
            ip(&["-n", &namespace, "link", "set", &name, "up"]);
            devices.push(device);
        }
        std::mem::forget(guard);
        let switch = Arc::new(Switch {
            devices,
            wires: RwLock::new(vec![vec![Wire::default(); hosts]; hosts]),
            late: Mutex::default(),
            woken: Condvar::new(),
            counts: Counts::default(),
        });
        for host in 0..hosts {
            let switch = Arc::clone(&switch);
            thread::spawn(move || switch.pass_on(host));
        }
        let late = Arc::clone(&switch);
        thread::spawn(move || late.pass_on_late());
        Network { prefix, hosts, switch }
    }

    /// Returns the path at which `ip netns` and `nsenter --net` find a host.
    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("/run/netns/{}{host}", self.prefix)
    }

    /// Returns a command on a host, which ends with the thread that starts it.
    pub(crate) fn command(&self, host: usize) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace(host)))
            .args(["setpriv", "--pdeathsig", "KILL", "env"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Returns the processes on a host, the newest last.
    pub(crate) fn processes(&self, host: usize) -> Vec<Pid> {
        processes_of(&self.namespace(host))
    }

    /// Kills all that is left on any host.
    pub(crate) fn end_processes(&self) {
        for pid in (0..self.hosts).flat_map(|host| self.processes(host)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Returns wires on which everything passes.
    pub(crate) fn all_well(&self) -> Wires {
        vec![vec![Wire::default(); self.hosts]; self.hosts]
    }

    /// Sets the wires from now on.
    pub(crate) fn set(&self, wires: Wires) {
        assert_eq!(wires.len(), self.hosts);
        *self.switch.wires.write().unwrap() = wires;
    }

    /// Returns the counts of packets.
    pub(crate) fn counts(&self) -> &Counts {
        &self.switch.counts
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.switch.late.lock().unwrap().over = true;
        self.switch.woken.notify_all();
        // The devices go with their namespaces, and so do the threads that read from them.
        drop(Namespaces { prefix: self.prefix.clone() });
    }
}

/// Namespaces that end when this is dropped.
struct Namespaces {
    prefix: String,
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in names("/run/netns").filter(|name| name.starts_with(&self.prefix)) {
            let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        }
    }
}

impl Switch {
    /// Passes on the packets of a host, until it is gone.
    fn pass_on(&self, from: usize) {
        let mut packet = [0; PACKET];
        while let Ok(length) = self.devices[from].recv(&mut packet) {
            // The address is the last field of an IPv4 header without options.
            let [a, b, c, d] = match &packet[..length] {
                [0x40..=0x4f, rest @ ..] if length >= 20 => {
                    [rest[15], rest[16], rest[17], rest[18]]
                }
                _ => continue,
            };
            let to = usize::from(d.wrapping_sub(FIRST));
            if [a, b, c] == NETWORK && to < self.devices.len() {
                self.send(from, to, &packet[..length]);
            }
        }
    }

    fn send(&self, from: usize, to: usize, packet: &[u8]) {
        let wire = self.wires.read().unwrap()[from][to];
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let counts = &self.counts;
        if wire.cut {
            count(&counts.cut);
            return;
        }
        if rand::random_bool(wire.loss) {
            count(&counts.lost);
            return;
        }
        count(&counts.passed);
        if wire.delay.is_zero() && wire.jitter.is_zero() {
            // A host that is gone, or whose queue is full, loses the packet.
            let _ = self.devices[to].send(packet);
        } else if rand::random_bool(wire.reorder) {
            count(&counts.overtook);
            let _ = self.devices[to].send(packet);
        } else {
            count(&counts.late);
            let due = Instant::now() + wire.delay + wire.jitter.mul_f64(rand::random::<f64>());
            let mut late = self.late.lock().unwrap();
            if late.packets.len() < LATE_LIMIT {
                late.number += 1;
                let number = late.number;
                late.packets.push(Reverse((due, number, to, packet.to_vec())));
                self.woken.notify_one();
            }
        }
    }

    /// Passes on late packets when they are due.
    fn pass_on_late(&self) {
        let mut late = self.late.lock().unwrap();
        while !late.over {
            let now = Instant::now();
            let next = late.packets.peek().map(|Reverse((due, ..))| *due);
            late = match next {
                None => self.woken.wait(late).unwrap(),
                Some(due) if due > now => self.woken.wait_timeout(late, due - now).unwrap().0,
                Some(_) => {
                    let packet = late.packets.pop();
                    drop(late);
                    if let Some(Reverse((_, _, to, packet))) = packet {
                        let _ = self.devices[to].send(&packet);
                    }
                    self.late.lock().unwrap()
                }
            };
        }
    }
}

/// Returns the address of a host.
pub(crate) fn address(host: usize) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, FIRST + u8::try_from(host).expect("a small number"))
}

/// Removes namespaces, directories and mounts left by processes that were killed.
pub(crate) fn sweep() {
    let is_stale = |name: &str| {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split(['-', '.']).next());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    for name in names("/run/netns").filter(|name| is_stale(name)) {
        for pid in processes_of(&format!("/run/netns/{name}")) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = Command::new("ip").args(["netns", "delete", &name]).status();
    }
    let directory = std::env::temp_dir();
    for name in names(&directory.to_string_lossy()).filter(|name| is_stale(name)) {
        unmount_below(&directory.join(&name));
        let _ = fs::remove_dir_all(directory.join(name));
    }
    // libfaketime cleans up only after processes that end by themselves.
    for name in names("/dev/shm").filter(|name| name.contains("faketime_s")) {
        let pid = name.rsplit('_').next().unwrap_or_default();
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

/// Unmounts everything below a directory.
pub(crate) fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for path in below.filter(|path| Path::new(path).starts_with(directory)) {
        let _ = Command::new("umount").args(["--lazy", path]).status();
    }
}

/// Returns the processes in a namespace, in the order in which they were started.
fn processes_of(namespace: &str) -> Vec<Pid> {
    let inode = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let Some(wanted) = inode(Path::new(namespace)) else { return Vec::new() };
    let mut found: Vec<(u64, Pid)> = names("/proc")
        .filter_map(|name| Pid::from_raw(name.parse().ok()?))
        .filter_map(|pid| {
            let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
            (inode(&process.join("ns/net"))? == wanted).then_some(())?;
            // The start time is the 20th word after the name, which is in brackets.
            let stat = fs::read_to_string(process.join("stat")).ok()?;
            let started = stat.rsplit(')').next()?.split_whitespace().nth(19)?;
            Some((started.parse().ok()?, pid))
        })
        .collect();
    found.sort_by_key(|(started, pid)| (*started, pid.as_raw_nonzero()));
    found.into_iter().map(|(_, pid)| pid).collect()
}

fn names(directory: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("no ip (package iproute2): {error}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {} failed: {words}Network namespaces need root and CAP_SYS_ADMIN.",
        arguments.join(" ")
    );
}
