//! A client process: locks, writes, holds, renews, oversleeps, hangs up; writes down its requests
//! and the answers.

mod adopted;
mod connection;
mod several;
mod sharing;
mod writing;

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use crate::{
    history::{Event, Outcome, Time, Verb, Writer, now},
    trace::{self, PERMITS},
};
use connection::{Connection, Reply};
use writing::Attached;

/// The environment variable that contains a client's [`Plan`].
pub(crate) const VARIABLE: &str = "LOCKGATE_CHAOS_CLIENT";
/// The longest time for an answer, beyond the WAIT of a LOCK.
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);
/// The pause between a connection that failed and the next.
const PAUSE: Duration = Duration::from_millis(50);
/// The error of a client that ends its connection without an answer.
const BY_ITSELF: ErrorKind = ErrorKind::ConnectionAborted;

/// The behaviour of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// All that clients can do.
    Mixed,
    /// Leases of the longest TTL, held to their very end, and asked for in a loop.
    ToTheEnd,
    /// Session locks, held for seconds, with a PING or RENEW now and then.
    Sessions,
    /// Session locks, held for half a minute.
    Keepers,
    /// Short leases, and an UNLOCK after their end.
    Late,
    /// Short leases, and writes to their end and beyond.
    Writers,
    /// Leases of the longest TTL, waited for and given back soon. All clients use one proxy, as a lock is handed over
    /// only if no client waits elsewhere.
    Queue,
    /// Leases and session locks of readers, and of clients that take the same locks alone.
    Sharers,
    /// All that clients of lock libraries can do, on adopted keys.
    Adopted,
    /// Short adopted locks, held to their very end, and polled for.
    AdoptedToTheEnd,
}

/// The instructions of a client.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The number of the client's history.
    pub(crate) number: usize,
    pub(crate) style: Style,
    /// The addresses to connect to.
    pub(crate) proxies: Vec<SocketAddr>,
    /// The file of the client's history.
    pub(crate) history: PathBuf,
    /// The client ends when this file is empty.
    pub(crate) control: PathBuf,
    pub(crate) keys: usize,
    /// The longest TTL in ms.
    pub(crate) max_ttl: u64,
    /// Whether the client writes under the locks of guards.
    pub(crate) writes: bool,
    /// Whether the client of a lock library goes to the data node past the proxies.
    pub(crate) is_past: bool,
    /// See [`Idiom::aside`](crate::history::Idiom).
    pub(crate) aside: u64,
}

impl Plan {
    /// Encodes the plan for the environment.
    pub(crate) fn encode(&self) -> String {
        let proxies: Vec<String> = self.proxies.iter().map(SocketAddr::to_string).collect();
        [
            self.seed.to_string(),
            self.number.to_string(),
            format!("{:?}", self.style),
            proxies.join(","),
            self.history.display().to_string(),
            self.control.display().to_string(),
            self.keys.to_string(),
            self.max_ttl.to_string(),
            self.writes.to_string(),
            self.is_past.to_string(),
            self.aside.to_string(),
        ]
        .join(";")
    }

    /// Returns the arguments of a client of a library, which keeps to one proxy.
    pub(crate) fn arguments(&self) -> [String; 7] {
        [
            self.seed.to_string(),
            self.number.to_string(),
            self.proxies[self.number % self.proxies.len()].to_string(),
            self.history.display().to_string(),
            self.control.display().to_string(),
            self.keys.to_string(),
            self.max_ttl.to_string(),
        ]
    }

    /// Decodes a plan from the environment.
    pub(crate) fn decode(text: &str) -> Plan {
        let words: Vec<&str> = text.split(';').collect();
        let [seed, number, style, proxies, history, control, keys, max_ttl, writes, is_past, aside] =
            words[..]
        else {
            panic!("not a plan: {text}");
        };
        Plan {
            seed: seed.parse().expect("seed"),
            number: number.parse().expect("number"),
            style: match style {
                "Mixed" => Style::Mixed,
                "ToTheEnd" => Style::ToTheEnd,
                "Sessions" => Style::Sessions,
                "Keepers" => Style::Keepers,
                "Late" => Style::Late,
                "Writers" => Style::Writers,
                "Queue" => Style::Queue,
                "Sharers" => Style::Sharers,
                "Adopted" => Style::Adopted,
                "AdoptedToTheEnd" => Style::AdoptedToTheEnd,
                _ => panic!("not a style: {style}"),
            },
            proxies: proxies.split(',').map(|a| a.parse().expect("address")).collect(),
            history: history.into(),
            control: control.into(),
            keys: keys.parse().expect("keys"),
            max_ttl: max_ttl.parse().expect("TTL"),
            writes: writes.parse().expect("true or false"),
            is_past: is_past.parse().expect("true or false"),
            aside: aside.parse().expect("ms"),
        }
    }
}

/// Returns the interpreter that has redis-py, and the client that it runs.
pub(crate) fn python() -> [PathBuf; 2] {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    [tests.join("clients/.venv/bin/python"), tests.join("chaos/redis_py.py")]
}

/// Runs the client process to its end.
pub(crate) fn run(plan: Plan) {
    let history = Writer::new(&plan.history).expect("a file for the history");
    let random = StdRng::seed_from_u64(plan.seed);
    let mut client = Client { plan, random, history, connection: None, attached: None, written: 0 };
    while client.goes_on() {
        let key = trace::lock(client.random.random_range(0..client.plan.keys));
        client.write_late();
        // The history has the reason of an early end.
        let _ = match client.plan.style {
            Style::Sharers => {
                let done = client.sharing();
                if done.is_err() {
                    client.hang_up();
                }
                done
            }
            Style::Mixed if client.plan.keys > 2 && client.random.random_bool(0.2) => {
                let done = client.several();
                if done.is_err() {
                    client.hang_up();
                }
                done
            }
            style @ (Style::Mixed | Style::Sessions | Style::Keepers)
                if style != Style::Mixed || client.random.random_bool(0.4) =>
            {
                let done = client.session(&key);
                // An open connection would go on holding a lock that the client has given up.
                if done.is_err() {
                    client.hang_up();
                }
                done
            }
            Style::Mixed | Style::Sessions | Style::Keepers => client.lease(&key),
            Style::ToTheEnd => client.until_its_end(&key),
            Style::Late => client.late(&key),
            Style::Writers => client.writer(&key),
            Style::Queue => client.queue(&key),
            Style::Adopted | Style::AdoptedToTheEnd => client.adopted(&key),
        };
    }
    client.history.add(&Event::Over);
}

struct Client {
    plan: Plan,
    random: StdRng,
    history: Writer,
    connection: Option<Connection>,
    /// A second connection, by LOCK.ATTACH.
    attached: Option<Attached>,
    /// The number of writes sent.
    written: u64,
}

/// The end of a lock: the client can do no more with it.
struct Ended;

/// The connection of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Own,
    Attached,
}

/// A lock that was granted.
struct Grant {
    key: String,
    token: String,
    fence: u64,
    /// The time until which a careful client may count on the lock.
    until: Time,
}

impl Client {
    fn goes_on(&self) -> bool {
        std::fs::read(&self.plan.control).is_ok_and(|word| !word.is_empty())
    }

    fn lease(&mut self, key: &str) -> Result<(), Ended> {
        self.think(2, 40);
        let kind = self.random.random_range(0..100);
        // A client that does not give its lock back must not keep others away for long.
        let ttl = if kind < 20 {
            self.random.random_range(250..700)
        } else {
            self.random.random_range(400..=self.plan.max_ttl)
        };
        let mut grant = self.lock(key, Some(ttl))?;
        let key = &grant.key.clone();
        self.work(key, &grant)?;
        match kind {
            // Sleeps past the lock's end, writes all the same, and gives back a lock that may be another's by then.
            0..8 => {
                self.sleep_until(grant.until);
                self.think(1, 150);
                self.write(key, grant.fence)?;
            }
            // Hangs up; a lease lives on.
            8..14 => {
                self.hang_up();
                self.sleep_until(grant.until);
                return Ok(());
            }
            // Writes up to its end, and once more if it was late, or stopped, after it looked.
            14..20 => {
                while now() < grant.until {
                    self.think(5, 60);
                    self.write(key, grant.fence)?;
                }
                return Ok(());
            }
            20..45 => {
                for _ in 0..self.random.random_range(1..4) {
                    self.think(5, 200);
                    // Any proxy renews and releases a lease.
                    if self.random.random_bool(0.1) {
                        self.hang_up();
                    }
                    grant.until = self.renew(key, &grant.token, Some(ttl))?;
                }
            }
            // Repeats its LOCK.
            45..55 => {
                self.think(1, 50);
                let ttl = self.random.random_range(400..=self.plan.max_ttl).to_string();
                let again = ["LOCK", key, &grant.token, "PX", &ttl];
                // A connection attached to this token could be granted the new fence unawares.
                self.attached = None;
                let (_, outcome) = self.ask(Verb::Lease, key, &again, Duration::ZERO)?;
                if let Outcome::Granted { fence, .. } = outcome {
                    grant.fence = fence;
                }
                self.write(key, grant.fence)?;
                self.think(1, 50);
            }
            _ => self.think(0, 60),
        }
        self.ask(Verb::Unlock, key, &["UNLOCK", key, &grant.token], Duration::ZERO)?;
        if self.random.random_bool(0.05) {
            self.write(key, grant.fence)?;
        }
        if self.random.random_bool(0.05) {
            self.hang_up();
        }
        Ok(())
    }

    fn session(&mut self, key: &str) -> Result<(), Ended> {
        self.think(2, 40);
        let grant = self.lock(key, None)?;
        let key = &grant.key;
        self.work(key, &grant)?;
        let (signs, pause) = match self.plan.style {
            Style::Sessions => (8, 2500),
            Style::Keepers => (50, 1200),
            _ if self.random.random_bool(0.05) => (15, 400),
            _ if self.random.random_bool(0.05) => (3, 3000),
            _ => (self.random.random_range(0..5), 60),
        };
        for _ in 0..signs {
            self.think(1, pause);
            match self.random.random_range(0..10) {
                0..3 => _ = self.renew(key, &grant.token, None)?,
                // A refused write ends the lock, and what the client does under it.
                3..7 if self.writes_under(key) => match self.write(key, grant.fence)? {
                    Outcome::Written(_) => {}
                    _ => return Err(Ended),
                },
                _ => _ = self.ask(Verb::Ping, key, &["PING"], Duration::ZERO)?,
            }
        }
        if self.random.random_bool(0.7) {
            let words = ["UNLOCK", key];
            match self.ask(Verb::Unlock, key, &words, Duration::ZERO)? {
                (_, Outcome::Number(_)) => {}
                // NOQUORUM: the lock may still be held for as long as the connection lives.
                _ => return Err(Ended),
            }
        } else {
            self.hang_up();
        }
        Ok(())
    }

    fn until_its_end(&mut self, key: &str) -> Result<(), Ended> {
        self.think(1, 3);
        let ttl = self.plan.max_ttl.to_string();
        let words = ["LOCK", key, "PX", &ttl];
        let (sent, outcome) = self.ask(Verb::Lease, key, &words, Duration::ZERO)?;
        if let Outcome::Granted { validity, .. } = outcome {
            self.sleep_until(sent + validity * 1000);
        }
        Ok(())
    }

    fn late(&mut self, key: &str) -> Result<(), Ended> {
        self.think(1, 10);
        let ttl = self.random.random_range(200..600);
        let grant = self.lock(key, Some(ttl))?;
        self.sleep_until(grant.until);
        self.think(30, 200);
        self.ask(Verb::Unlock, key, &["UNLOCK", key, &grant.token], Duration::ZERO)?;
        Ok(())
    }

    fn writer(&mut self, key: &str) -> Result<(), Ended> {
        self.think(1, 10);
        let ttl = self.random.random_range(250..700);
        let grant = self.lock(key, Some(ttl))?;
        self.read(key)?;
        let end = grant.until + self.random.random_range(0..50_000);
        while now() < end {
            self.think(5, 60);
            self.write(key, grant.fence)?;
        }
        Ok(())
    }

    fn queue(&mut self, key: &str) -> Result<(), Ended> {
        self.think(1, 10);
        let ttl = self.plan.max_ttl.to_string();
        let words = ["LOCK", key, "PX", &ttl, "WAIT", "2000"];
        let (_, outcome) = self.ask(Verb::Lease, key, &words, Duration::from_secs(2))?;
        if let Outcome::Granted { token, .. } = outcome {
            self.think(10, 100);
            self.ask(Verb::Unlock, key, &["UNLOCK", key, &token], Duration::ZERO)?;
        }
        Ok(())
    }

    /// Returns the number of permits of which to take a free one, instead of this one by its name.
    fn permits(&mut self, key: &str) -> Option<usize> {
        let plan = &self.plan;
        let may = plan.style == Style::Mixed && plan.keys >= PERMITS && trace::is_permit(key);
        (may && self.random.random_bool(0.5)).then(|| self.random.random_range(2..=PERMITS))
    }

    /// Takes a lock, with PX or for the session, with WAIT or without; perhaps another permit than this one.
    fn lock(&mut self, key: &str, ttl: Option<u64>) -> Result<Grant, Ended> {
        let permits = self.permits(key);
        let asked = permits.map_or(key.to_owned(), trace::permits);
        let number = permits.map(|number| number.to_string());
        let own = self.random.random_bool(0.4).then(|| format!("own-{:x}", self.random.next_u64()));
        let ttl_words = ttl.map(|ttl| ttl.to_string());
        let wait = self.random.random_bool(0.6).then(|| self.random.random_range(50..1500));
        let wait_words = wait.map(|wait: u64| wait.to_string());
        let mut words = vec!["LOCK", permits.map_or(key, |_| trace::FAMILY)];
        words.extend(own.as_deref());
        words.extend(number.iter().flat_map(|number| ["PERMITS", number]));
        words.extend(ttl_words.iter().flat_map(|ttl| ["PX", ttl]));
        words.extend(wait_words.iter().flat_map(|wait| ["WAIT", wait]));
        let verb = if ttl.is_some() { Verb::Lease } else { Verb::Session };
        let wait = Duration::from_millis(wait.unwrap_or(0));
        let (sent, outcome) = self.ask(verb, &asked, &words, wait)?;
        if let (Outcome::Held, Some(_), Some(own)) = (&outcome, permits, &own) {
            self.probe(&asked, own)?;
        }
        let Outcome::Granted { token, fence, validity, name } = outcome else { return Err(Ended) };
        let key = name.unwrap_or(asked);
        let mut grant = Grant { key, token, fence, until: sent + validity * 1000 };
        if grant.until <= now() {
            // The client has waited for longer than the lock holds, and cannot know when the grant
            // was made. A renewal tells.
            grant.until = self.renew(&grant.key, &grant.token, ttl)?;
        }
        Ok(grant)
    }

    /// Renews the lock. Returns the time until which the client may count on it. A lease is never
    /// renewed for less than its first TTL.
    fn renew(&mut self, key: &str, token: &str, ttl: Option<u64>) -> Result<Time, Ended> {
        let ttl = ttl.map(|ttl| ttl.to_string());
        let mut words = vec!["RENEW", key, token];
        words.extend(ttl.iter().flat_map(|ttl| ["PX", ttl]));
        match self.ask(Verb::Renew, key, &words, Duration::ZERO)? {
            (sent, Outcome::Number(validity)) if validity > 0 => Ok(sent + validity * 1000),
            _ => Err(Ended),
        }
    }

    /// Asks on the open connection or on a new one, and writes down request and answer.
    fn ask(
        &mut self,
        verb: Verb,
        key: &str,
        words: &[&str],
        wait: Duration,
    ) -> Result<(Time, Outcome), Ended> {
        let event = Event::Sent { verb, key: key.to_owned() };
        let talk =
            |connection: &mut Connection, deadline| connection.ask(words, deadline).map(outcome);
        self.exchange(Line::Own, &event, wait, talk)
    }

    /// Asks as [`Client::ask`] does, for more than one command and its reply. The answer may take
    /// `longer` beyond [`PATIENCE`].
    fn exchange(
        &mut self,
        line: Line,
        event: &Event,
        longer: Duration,
        talk: impl FnOnce(&mut Connection, Instant) -> io::Result<Outcome>,
    ) -> Result<(Time, Outcome), Ended> {
        if line == Line::Own && self.connection.is_none() {
            self.connect()?;
        }
        let connection = match line {
            Line::Own => self.connection.as_mut(),
            Line::Attached => self.attached.as_mut().map(Attached::connection),
        };
        let Some(connection) = connection else { return Err(Ended) };
        let sent = now();
        self.history.add(event);
        let mut by_itself = false;
        let outcome = match talk(connection, Instant::now() + PATIENCE + longer) {
            Ok(outcome) => outcome,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Outcome::TimedOut
            }
            Err(error) => {
                by_itself = error.kind() == BY_ITSELF;
                Outcome::Closed
            }
        };
        for _ in 0..std::mem::take(&mut connection.pushes) {
            self.history.add(&Event::Pushed);
        }
        self.history.add(&Event::Answered(outcome.clone()));
        match (&outcome, line) {
            (Outcome::Closed | Outcome::TimedOut, Line::Attached) => self.attached = None,
            (Outcome::Closed, Line::Own) if !by_itself => self.connection = None,
            (Outcome::Closed | Outcome::TimedOut, Line::Own) => self.hang_up(),
            _ => {}
        }
        match outcome {
            Outcome::Closed | Outcome::TimedOut => Err(Ended),
            Outcome::Lost => Err(Ended),
            outcome => Ok((sent, outcome)),
        }
    }

    fn connect(&mut self) -> Result<(), Ended> {
        let proxies = match self.plan.style {
            Style::Queue => &self.plan.proxies[..1],
            _ => &self.plan.proxies[..],
        };
        let proxy = proxies[self.random.random_range(0..proxies.len())];
        let mut connection = Connection::new(proxy).map_err(|_| {
            thread::sleep(PAUSE);
            Ended
        })?;
        if self.random.random_bool(0.5) {
            let hello = connection.ask(&["HELLO", "3"], Instant::now() + PATIENCE);
            hello.map_err(|_| Ended)?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn hang_up(&mut self) {
        if self.connection.is_some() {
            self.history.add(&Event::Closed);
            self.connection = None;
        }
    }

    fn think(&mut self, least: u64, most: u64) {
        thread::sleep(Duration::from_millis(self.random.random_range(least..=most)));
    }

    fn sleep_until(&self, time: Time) {
        thread::sleep(Duration::from_micros(time.saturating_sub(now())));
    }
}

fn outcome(reply: Reply) -> Outcome {
    match reply {
        Reply::Null => Outcome::Held,
        Reply::Number(number) => Outcome::Number(number.unsigned_abs()),
        Reply::Text(text) if text == "PONG" => Outcome::Pong,
        Reply::Error(text) => match text.split(' ').next().unwrap_or_default() {
            "LOCKLOST" => Outcome::Lost,
            word => Outcome::Error(word.to_owned()),
        },
        Reply::All(all) => match &all[..] {
            [Reply::Text(token), Reply::Number(fence), Reply::Number(validity), name @ ..] => {
                Outcome::Granted {
                    token: token.clone(),
                    fence: fence.unsigned_abs(),
                    validity: validity.unsigned_abs(),
                    name: name.first().map(|name| match name {
                        Reply::Text(name) => name.clone(),
                        other => panic!("no name: {other:?}"),
                    }),
                }
            }
            [Reply::Text(token), Reply::Number(validity), Reply::All(fences)] => {
                let fence = |fence: &Reply| match fence {
                    Reply::Number(fence) => fence.unsigned_abs(),
                    other => panic!("no fence: {other:?}"),
                };
                Outcome::AllGranted {
                    token: token.clone(),
                    validity: validity.unsigned_abs(),
                    fences: fences.iter().map(fence).collect(),
                }
            }
            other => panic!("no answer of a lock: {other:?}"),
        },
        other => panic!("no answer of a lock: {other:?}"),
    }
}
