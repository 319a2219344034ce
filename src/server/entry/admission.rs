//! Decides which clients are let in, before one costs a task or a connection to the data node.
//!
//! Runs once for each connection, never for a command. Knows nothing of listeners, and time is
//! an argument.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, Write},
    mem,
    net::{IpAddr, Ipv6Addr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::error;

use crate::{config::Config, server::server_metrics::Refusal, sync::Mutex};

/// How far an address may run ahead of its rate: after a quiet second it may open a second's worth of connections at
/// once.
const BURST: Duration = Duration::from_secs(1);
/// Addresses whose rate is remembered for each [`BURST`]: 4 MB at most. More in one second is a flood that no limit
/// for each address would stop. Addresses beyond it are let in unmeasured, rather than all kept out.
const MAX_ADDRESSES: usize = 32 * 1024;
/// How often an event that can happen at any rate is logged.
const TELL_EVERY: Duration = Duration::from_secs(10);

impl Refusal {
    /// Returns the message to the client before its connection is closed.
    pub(crate) fn words(self) -> &'static [u8] {
        match self {
            // Redis's own words, which libraries know: redis-py connects again, as after a lost connection.
            Refusal::MaxClients | Refusal::PerAddress | Refusal::ConnectRate => {
                b"-ERR max number of clients reached\r\n"
            }
            Refusal::ProxyHeader => {
                b"-ERR this port is for a balancer, which must send a PROXY protocol header first\r\n"
            }
            Refusal::Open => {
                b"-DENIED Lockgate can be reached from other machines, and the Redis behind it is \
                  not known to ask for a password, so nobody is let in here. Give that Redis one \
                  (requirepass, or an ACL); or have Lockgate listen on 127.0.0.1; or, if whoever \
                  reaches it may do as they like with the data, set allow_open: true in its \
                  configuration.\r\n"
            }
        }
    }

    /// Sends as much of the message as the socket takes at once. Nothing is kept for a client that does not read.
    pub(crate) fn tell(self, mut client: &TcpStream) {
        let _ = client.write(self.words());
    }
}

/// Counts and limits the clients that are in.
pub(crate) struct Admission {
    max_clients: AtomicUsize,
    /// 0 if there is no limit.
    max_per_address: AtomicUsize,
    /// Clients that hold a [`Permit`].
    clients: AtomicUsize,
    /// The number of clients of each address that has any. Counted without a limit too: a reload may set one. Changed
    /// when a client comes and when it goes.
    addresses: Mutex<HashMap<IpAddr, usize>>,
    /// `None` if there is no limit.
    rates: Mutex<Option<Rates>>,
}

/// A client's permit. Dropping it makes room for another.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    /// The address that the permit is counted for, if any.
    address: Option<IpAddr>,
}

impl Admission {
    /// Makes an admission with the limits of `config`.
    pub(crate) fn new(config: &Config) -> Arc<Admission> {
        let admission = Admission {
            max_clients: AtomicUsize::new(0),
            max_per_address: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            addresses: Mutex::default(),
            rates: Mutex::new(None),
        };
        admission.set_limits(config, Instant::now());
        Arc::new(admission)
    }

    /// Sets new limits; clients that are in stay.
    pub(crate) fn set_limits(&self, config: &Config, now: Instant) {
        self.max_clients.store(config.maxclients, Ordering::Relaxed);
        self.max_per_address.store(config.max_clients_per_address, Ordering::Relaxed);
        let rate = u32::try_from(config.max_connect_rate).unwrap_or(u32::MAX);
        let spacing = (rate > 0).then(|| BURST / rate);
        let mut rates = self.rates.lock();
        if rates.as_ref().map(|rates| rates.spacing) != spacing {
            *rates = spacing.map(|spacing| Rates::new(spacing, now));
        }
    }

    /// Gives a permit to a client from `peer`.
    ///
    /// # Errors
    /// The reason why there is none. A refused client does not count for its rate either.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr, now: Instant) -> Result<Permit, Refusal> {
        let mut permit = self.enter()?;
        permit.belongs_to(peer, now)?;
        Ok(permit)
    }

    /// Gives a permit to a client whose address is not known yet.
    ///
    /// # Errors
    /// [`Refusal::MaxClients`] if all places are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Permit, Refusal> {
        // Counted first: two listeners must not both give the last permit away. Dropping `permit`
        // takes the count back.
        let before = self.clients.fetch_add(1, Ordering::Relaxed);
        let permit = Permit { admission: self.clone(), address: None };
        let full = before >= self.max_clients.load(Ordering::Relaxed);
        if full { Err(Refusal::MaxClients) } else { Ok(permit) }
    }
}

impl Permit {
    /// Counts the permit for the address of its client, once.
    ///
    /// # Errors
    /// The reason why the client may not have it; drop the permit then.
    pub(crate) fn belongs_to(&mut self, peer: IpAddr, now: Instant) -> Result<(), Refusal> {
        debug_assert!(self.address.is_none(), "a client is counted for one address, once");
        let admission = &self.admission;
        let peer = host(peer);
        let most = admission.max_per_address.load(Ordering::Relaxed);
        let mut addresses = admission.addresses.lock();
        let clients = addresses.entry(peer).or_default();
        if most > 0 && *clients >= most {
            return Err(Refusal::PerAddress);
        }
        *clients += 1;
        drop(addresses);
        self.address = Some(peer);
        let mut rates = admission.rates.lock();
        let admitted = rates.as_mut().is_none_or(|rates| rates.admit(peer, now));
        if admitted { Ok(()) } else { Err(Refusal::ConnectRate) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let clients = self.admission.clients.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(clients > 0, "who goes had a permit");
        let Some(address) = self.address else { return };
        let mut addresses = self.admission.addresses.lock();
        let entry = addresses.entry(address);
        debug_assert!(matches!(&entry, Entry::Occupied(clients) if *clients.get() > 0));
        if let Entry::Occupied(mut clients) = entry {
            match clients.get() {
                0 | 1 => drop(clients.remove()),
                _ => *clients.get_mut() -= 1,
            }
        }
    }
}

/// Returns the address that limits count for. An IPv6 host usually has all 2^64 addresses that share their first
/// half.
fn host(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// Limits how often each address may connect: a token bucket, kept as the time when it is full again.
struct Rates {
    /// Time between two connections of an address at exactly the allowed rate.
    spacing: Duration,
    /// For each address that came since `turned`, when its bucket is full again.
    recent: HashMap<IpAddr, Instant>,
    /// The same for each address that came in the [`BURST`] before that. An address in neither map has been away for
    /// at least one [`BURST`], so its bucket is full and may be forgotten.
    older: HashMap<IpAddr, Instant>,
    turned: Instant,
}

impl Rates {
    fn new(spacing: Duration, now: Instant) -> Rates {
        let (recent, older) = (HashMap::new(), HashMap::new());
        Rates { spacing, recent, older, turned: now }
    }

    fn admit(&mut self, peer: IpAddr, now: Instant) -> bool {
        if now.duration_since(self.turned) >= BURST {
            self.older = mem::take(&mut self.recent);
            self.turned = now;
        }
        let known = self.recent.get(&peer).or_else(|| self.older.get(&peer));
        let full_again = known.map_or(now, |full| now.max(*full)) + self.spacing;
        if full_again > now + BURST {
            return false;
        }
        if self.recent.len() < MAX_ADDRESSES || self.recent.contains_key(&peer) {
            self.recent.insert(peer, full_again);
        }
        true
    }
}

/// Limits how often an event that can happen at any rate is logged.
#[derive(Default)]
pub(crate) struct Seldom {
    told: Option<Instant>,
    /// The number of events since then.
    untold: u64,
}

impl Seldom {
    /// Counts an event. Returns the number of events since the last logged one if this one is to
    /// be logged, otherwise `None`.
    pub(crate) fn note(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        let due = self.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY);
        due.then(|| {
            self.told = Some(now);
            mem::take(&mut self.untold)
        })
    }
}

/// Decides what to do about failures of accept.
#[derive(Default)]
pub(crate) struct AcceptTrouble(Seldom);

impl AcceptTrouble {
    /// Notes a failure, and logs one now and then. Returns true if accept would fail again at once, as for want of
    /// file descriptors; false if only this one connection failed.
    pub(crate) fn note(&mut self, error: &io::Error, now: Instant) -> bool {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
            return false;
        }
        if let Some(times) = self.0.note(now) {
            error!(%error, times, "cannot accept connections; trying again");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn admission(maxclients: usize, per_address: usize, rate: usize) -> Arc<Admission> {
        Admission::new(&Config {
            maxclients,
            max_clients_per_address: per_address,
            max_connect_rate: rate,
            ..Config::default()
        })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_place_is_free_again_when_its_client_goes() {
        let (door, now) = (admission(2, 0, 0), Instant::now());
        let one = door.admit(ip("10.0.0.1"), now);
        let _two = door.admit(ip("10.0.0.1"), now).unwrap();
        for _ in 0..3 {
            assert_eq!(door.admit(ip("10.0.0.2"), now).err(), Some(Refusal::MaxClients));
        }
        drop(one);
        assert!(door.admit(ip("10.0.0.2"), now).is_ok());
    }

    #[test]
    fn each_address_has_its_own_limit_and_leaves_nothing_behind() {
        let (door, now) = (admission(100, 2, 0), Instant::now());
        let same = ["10.0.0.1", "::ffff:10.0.0.1"].map(|peer| door.admit(ip(peer), now).unwrap());
        assert_eq!(door.admit(ip("10.0.0.1"), now).err(), Some(Refusal::PerAddress));
        let net =
            ["2001:db8::1", "2001:db8::2:0:0:1"].map(|peer| door.admit(ip(peer), now).unwrap());
        assert_eq!(door.admit(ip("2001:db8::3"), now).err(), Some(Refusal::PerAddress));
        let other = door.admit(ip("2001:db8:0:1::1"), now).unwrap();
        drop((same, net, other));
        assert!(door.addresses.lock().is_empty());
        assert_eq!(door.clients.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn limits_that_come_later_count_who_is_in_already() {
        let (door, now) = (admission(100, 0, 0), Instant::now());
        let places = [(); 2].map(|()| door.admit(ip("10.0.0.1"), now).unwrap());
        let limits = |maxclients, max_clients_per_address, max_connect_rate| Config {
            maxclients,
            max_clients_per_address,
            max_connect_rate,
            ..Config::default()
        };
        door.set_limits(&limits(100, 2, 0), now);
        assert_eq!(door.admit(ip("10.0.0.1"), now).err(), Some(Refusal::PerAddress));
        door.set_limits(&limits(2, 0, 0), now);
        assert_eq!(door.admit(ip("10.0.0.2"), now).err(), Some(Refusal::MaxClients));
        door.set_limits(&limits(100, 0, 1), now);
        let third = door.admit(ip("10.0.0.1"), now).unwrap();
        assert_eq!(door.admit(ip("10.0.0.1"), now).err(), Some(Refusal::ConnectRate));
        door.set_limits(&limits(100, 2, 1), now);
        drop(places);
        door.set_limits(&limits(100, 2, 0), now);
        let fourth = door.admit(ip("10.0.0.1"), now).unwrap();
        assert_eq!(door.admit(ip("10.0.0.1"), now).err(), Some(Refusal::PerAddress));
        drop((third, fourth));
        assert!(door.addresses.lock().is_empty());
    }

    #[test]
    fn a_refused_client_is_not_counted_against_its_address() {
        let (door, now) = (admission(100, 1, 1), Instant::now());
        drop(door.admit(ip("10.0.0.1"), now).unwrap());
        assert_eq!(door.admit(ip("10.0.0.1"), now).err(), Some(Refusal::ConnectRate));
        assert!(door.addresses.lock().is_empty());
        assert!(door.admit(ip("10.0.0.1"), now + BURST).is_ok());
    }

    #[test]
    fn rates_of_old_addresses_are_forgotten_and_those_kept_are_bounded() {
        let now = Instant::now();
        let mut rates = Rates::new(BURST, now);
        for n in 0..100_000u32 {
            assert!(rates.admit(IpAddr::from(n.to_be_bytes()), now));
        }
        assert_eq!(rates.recent.len(), MAX_ADDRESSES);
        assert!(!rates.admit(IpAddr::from(7u32.to_be_bytes()), now));
        for seconds in 1..=2 {
            assert!(rates.admit(ip("10.0.0.1"), now + seconds * BURST));
        }
        assert_eq!((rates.recent.len(), rates.older.len()), (1, 1));
    }

    proptest! {
        /// Compares with buckets that are never forgotten.
        #[test]
        fn forgetting_changes_nothing(
            rate in 1u32..50,
            steps in prop::collection::vec((0u64..300, 0u8..3), 1..300),
        ) {
            let mut now = Instant::now();
            let mut rates = Rates::new(BURST / rate, now);
            let mut plain: HashMap<IpAddr, Instant> = HashMap::new();
            for (millis, peer) in steps {
                now += Duration::from_millis(millis);
                let peer = IpAddr::from([10, 0, 0, peer]);
                let after = plain.get(&peer).map_or(now, |full| now.max(*full)) + BURST / rate;
                let expected = after <= now + BURST;
                if expected {
                    plain.insert(peer, after);
                }
                prop_assert_eq!(rates.admit(peer, now), expected);
            }
        }
    }

    #[test]
    fn failures_to_accept_are_told_now_and_then() {
        let (mut trouble, now) = (AcceptTrouble::default(), Instant::now());
        let full = || io::Error::from_raw_os_error(24);
        assert!(trouble.note(&full(), now) && trouble.note(&full(), now));
        assert_eq!(trouble.0.untold, 1);
        assert!(trouble.note(&full(), now + TELL_EVERY));
        assert_eq!(trouble.0.untold, 0);
        assert!(!trouble.note(&io::ErrorKind::ConnectionAborted.into(), now));
    }
}
