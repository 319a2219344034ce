//! Whether the data node and a quorum of lock nodes are there.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::data_check::{self, CHECK_LIMIT};
use crate::{
    config::{CertificateTrouble, Config},
    data::{
        DataNode,
        write_refusals::{DataRefusals, WriteRefusal},
    },
    fleet::{difference::ModeConflict, known::Fleet},
    guard::Guards,
    lock::{Engine, Fault, NoQuorum, NodeStatus},
    log_text::plain_line,
    log_writer,
    metrics::Recorder,
    net::tls::certificates,
    server::{entry::exposure::Exposure, server_metrics::StateMetrics},
    session::earlier::{EarlierProcess, EarlierProcesses, WhatIsLeft},
    sync::Mutex,
};

/// How often the data node is asked. A scrape never asks it.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How many checks ask for no write once the data node has said that the proxy's user may make none.
const FORBIDDEN_FOR: u32 = 60;
/// How long nothing of the audit trail is written before that is reported.
const STALLED: Duration = Duration::from_secs(2);
/// How long a health check may take.
const HEALTH_LIMIT: Duration = Duration::from_secs(3);

/// Whether traffic should be sent here, and what matters for that.
pub(super) struct Readiness {
    /// Whether traffic should be sent here.
    pub(super) is_ready: bool,
    /// Whether lock nodes that wait are all that keeps the proxy from being ready: that ends by itself.
    pub(super) only_waits: bool,
    /// Whether the process is to end.
    pub(super) is_draining: bool,
    /// Why the data node is not reachable.
    pub(super) data_problem: Option<String>,
    /// The lock nodes, in the order of the configuration.
    pub(super) nodes: Vec<NodeStatus>,
    /// How many of them vote.
    pub(super) voting: usize,
    /// How many must vote.
    pub(super) quorum: usize,
    /// How long new LOCKs still wait.
    pub(super) paused: Option<Duration>,
    /// A line for each thing that matters.
    pub(super) lines: ReadinessLines,
}

/// The lines of /readyz, each with whether all is well there.
#[derive(Default)]
pub(super) struct ReadinessLines(Vec<(bool, String)>);

impl ReadinessLines {
    fn push(&mut self, fine: bool, line: String) {
        // Servers choose the words of their errors.
        self.0.push((fine, plain_line(&line).into_owned()));
    }

    fn fine(&mut self, line: String) {
        self.push(true, line);
    }

    fn problem(&mut self, line: String) {
        self.push(false, line);
    }

    /// Joins all lines, with this between them.
    pub(super) fn join(&self, between: &str) -> String {
        self.0.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(between)
    }

    /// Returns the lines about what is not well.
    pub(super) fn problems(&self) -> Vec<&str> {
        self.0.iter().filter(|(fine, _)| !fine).map(|(_, line)| line.as_str()).collect()
    }
}

/// Adds the lines about the lock nodes: a summary, and one for each.
fn tell_of_nodes(nodes: &[NodeStatus], quorum: usize, lines: &mut ReadinessLines) {
    let count = |is_one: fn(&NodeStatus) -> bool| nodes.iter().filter(|node| is_one(node)).count();
    let mut summary = format!("lock nodes: {} of {} up, ", count(|node| node.up), nodes.len());
    let (too_slow, refusing) = (count(|node| node.too_slow), count(NodeStatus::refuses));
    // Writing to a String cannot fail.
    if too_slow > 0 {
        let _ = write!(summary, "{too_slow} of them too slow, ");
    }
    if refusing > 0 {
        let _ = write!(summary, "{refusing} of them refusing locks, ");
    }
    let _ = write!(summary, "{quorum} needed");
    lines.push(count(NodeStatus::votes) >= quorum, summary);
    for node in nodes {
        lines.push(is_well(node), format!("lock node {}: {}", node.address, state_of(node)));
    }
}

/// Whether nothing is wrong with a lock node.
fn is_well(node: &NodeStatus) -> bool {
    node.votes() && node.reason.is_none() && node.found.is_empty()
}

/// Describes the state of a lock node: `ok`, or why it does not vote, and what else is wrong.
pub(super) fn state_of(node: &NodeStatus) -> String {
    let reason = node.reason.as_deref().unwrap_or("ok");
    node.found.iter().fold(reason.to_owned(), |state, fault| state + "; " + fault.meaning())
}

/// Everything that the pages are made from.
pub(crate) struct PageSource {
    recorder: Recorder,
    engine: Arc<Engine>,
    data: Arc<DataNode>,
    exposure: Arc<Exposure>,
    guards: Option<Arc<Guards>>,
    fleet: Arc<Fleet>,
    /// Whether the data node accepts a connection and does not answer.
    data_is_silent: Arc<AtomicBool>,
    refusals: Arc<DataRefusals>,
    /// Processes from before upgrades that still have clients.
    pub(super) earlier: Arc<EarlierProcesses>,
    /// How many more checks do not ask the data node for a write.
    checks_without_writes: AtomicU32,
    /// Settings that weaken a promise.
    weakened: Mutex<Vec<String>>,
    /// Keys whose values in the file the running proxy has not taken over, each with the reason.
    not_taken: Mutex<Vec<(&'static str, &'static str)>>,
    /// Why the data node is not reachable; `None` if it is. Changed by [`PageSource::check`].
    data_problem: Mutex<Option<String>>,
    /// Whether the process is to end.
    draining: AtomicBool,
    gauges: StateMetrics,
}

impl PageSource {
    /// Makes a source that is ready only once the data node has answered.
    pub(crate) fn new(
        recorder: Recorder,
        engine: Arc<Engine>,
        data: Arc<DataNode>,
        exposure: Arc<Exposure>,
        guards: Option<Arc<Guards>>,
        fleet: Arc<Fleet>,
        (refusals, earlier): (Arc<DataRefusals>, Arc<EarlierProcesses>),
    ) -> PageSource {
        let data_problem = Mutex::new(Some("not asked yet".into()));
        let (draining, gauges) = (AtomicBool::new(false), StateMetrics::new());
        let state = PageSource {
            recorder,
            engine,
            data,
            exposure,
            guards,
            fleet,
            data_is_silent: Arc::default(),
            refusals,
            earlier,
            checks_without_writes: AtomicU32::new(0),
            weakened: Mutex::default(),
            not_taken: Mutex::default(),
            data_problem,
            draining,
            gauges,
        };
        // Sets the gauges: a scrape may come before the first check.
        state.readiness();
        state
    }

    /// Returns the flag whether the data node accepts a connection and does not answer.
    pub(crate) fn data_is_silent(&self) -> Arc<AtomicBool> {
        self.data_is_silent.clone()
    }

    /// Notes which settings weaken a promise.
    pub(crate) fn runs_with(&self, config: &Config) {
        *self.weakened.lock() = config.weakened();
    }

    /// Notes which keys of the file the running proxy has not taken over, and why.
    pub(crate) fn note_not_taken(&self, keys: Vec<(&'static str, &'static str)>) {
        *self.not_taken.lock() = keys;
    }

    /// Reports from now on that no traffic should be sent here, as the process is to end.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.gauges.ready.set(0.0);
    }

    /// Returns the data node's name in the configuration, and the Redis that it is now if that can change.
    pub(super) fn data_names(&self) -> (String, Option<String>) {
        let tenure = self.data.tenure().filter(|_| self.data.is_followed());
        (self.data.to_string(), tenure.map(|tenure| tenure.url.to_string()))
    }

    /// Renders the metrics in Prometheus's text format.
    pub(super) fn metrics(&self) -> String {
        self.recorder.render()
    }

    /// Tells whether traffic should be sent here, with a line for each thing that matters. Sets the gauges.
    pub(super) fn readiness(&self) -> Readiness {
        let nodes = self.engine.status();
        let voting = nodes.iter().filter(|node| node.votes()).count();
        let quorum = self.engine.quorum();
        let is_draining = self.draining.load(Ordering::Relaxed);
        let data_problem = self.data_problem.lock().clone();
        let mut lines = ReadinessLines::default();
        if is_draining {
            lines.problem("draining: this process is to end".into());
        }
        self.tell_of_data(data_problem.as_deref(), &mut lines);
        tell_of_nodes(&nodes, quorum, &mut lines);
        let outage = self.engine.outage();
        let paused = self.engine.paused_for();
        self.tell_of_locks(outage.as_ref(), paused, &mut lines);
        let safe = self.exposure.is_safe();
        if !safe {
            lines.problem(
                "listen: clients from elsewhere are refused: the data node is not known to ask \
                 for a password (allow_open)"
                    .into(),
            );
        }
        let informed = self.guards.as_ref().is_none_or(|guards| guards.catalog.table().is_some());
        self.tell_of_rules(informed, &mut lines);
        for CertificateTrouble { what, .. } in certificates::troubles() {
            lines.problem(format!("certificate: {what}"));
        }
        self.tell_of_earlier(&mut lines);
        let unwritable = self.tell_of_log(&mut lines);
        self.tell_of_settings(&mut lines);
        let votes = voting >= quorum && outage.is_none();
        let served = !is_draining && data_problem.is_none() && safe && informed && !unwritable;
        let is_ready = served && votes;
        let waiting = nodes.iter().filter(|node| node.unfit == Some(Fault::Quarantined)).count();
        let will_vote = voting < quorum && voting + waiting >= quorum;
        let only_waits = will_vote && served;
        let one_if = |holds: bool| f64::from(u8::from(holds));
        self.gauges.ready.set(one_if(is_ready));
        self.gauges.data_up.set(one_if(data_problem.is_none()));
        self.gauges.paused.set(one_if(paused.is_some()));
        self.gauges.nodes.set(as_gauge(nodes.len()));
        self.gauges.quorum.set(as_gauge(quorum));
        self.gauges.quorum_slack.set(as_gauge(voting) - as_gauge(quorum));
        Readiness {
            is_ready,
            only_waits,
            is_draining,
            data_problem,
            nodes,
            voting,
            quorum,
            paused,
            lines,
        }
    }

    /// Adds the lines about the data node, its cluster and its Sentinels.
    fn tell_of_data(&self, problem: Option<&str>, lines: &mut ReadinessLines) {
        let tenure = self.data.tenure().filter(|_| self.data.is_followed());
        match (problem, tenure) {
            (None, Some(tenure)) => {
                lines.fine(format!("data node {}: {}: ok", self.data, tenure.url));
            }
            (None, None) => lines.fine(format!("data node {}: ok", self.data)),
            (Some(problem), _) => lines.problem(format!("data node {}: {problem}", self.data)),
        }
        if let (None, Some((refusal, words))) = (problem, self.refusals.now()) {
            lines.problem(format!(
                "data node {}: refuses writes ({words}): LOCK of guards' locks and their writes fail; {}",
                self.data,
                refusal.advice()
            ));
        }
        if let Some((summary, troubles)) = self.data.cluster() {
            lines.fine(summary);
            for trouble in troubles {
                lines.problem(format!("cluster: {trouble}"));
            }
        }
        self.data.sentinel_problems().into_iter().for_each(|problem| lines.problem(problem));
    }

    /// Adds the lines about locks that cannot be had, or not now.
    fn tell_of_locks(
        &self,
        outage: Option<&(u64, NoQuorum)>,
        paused: Option<Duration>,
        lines: &mut ReadinessLines,
    ) {
        if let Some((failed, error)) = outage {
            lines.problem(format!("locks: NOQUORUM {failed} times in a row: {error}"));
        } else if let Some(line) = self.engine.no_quorum_line() {
            lines.problem(format!("locks: {line}"));
        }
        if let Some(left) = paused {
            lines.problem(format!(
                "locks: new ones wait for {} s more (LOCKGATE PAUSE)",
                left.as_secs_f64().ceil()
            ));
        }
    }

    /// Adds the lines about guards and adopt rules. `informed`: the commands are known by which guards judge.
    fn tell_of_rules(&self, informed: bool, lines: &mut ReadinessLines) {
        if !informed {
            lines.problem(
                "guards: clients' commands are refused: the data node has not told which commands \
                 it has (COMMAND)"
                    .into(),
            );
        }
        if let Some(times) = self.guards.as_ref().and_then(|guards| guards.unacknowledged()) {
            lines.problem(format!(
                "guards: locks are refused (NOREPLICAS), {times} times in a row: too few replicas \
                 acknowledge fences (guards.replicas)"
            ));
        }
        for ModeConflict { keys, here, there, name, .. } in self.fleet.conflicts() {
            let (here, there) = (here.as_str(), there.as_str());
            lines.problem(format!(
                "adopt: '{keys}' is {here} here and {there} in another proxy ({name}): a lock may be \
                 granted twice"
            ));
        }
    }

    /// Adds a line for each process from before an upgrade that may have clients still.
    fn tell_of_earlier(&self, lines: &mut ReadinessLines) {
        for EarlierProcess { pid, left } in self.earlier.all() {
            let left = match left {
                None => "may have clients".to_owned(),
                Some(WhatIsLeft { connections, held, waiters }) => {
                    format!("has {connections} connections, {held} locks and {waiters} waiters")
                }
            };
            lines.problem(format!(
                "upgrade: the process before (pid {pid}) {left} still, which are shown nowhere else \
                 (upgrade_grace)"
            ));
        }
    }

    /// Adds the lines about log lines that were lost or cannot be written. Sets the gauge of the audit trail. Returns
    /// whether LOCK is refused because the audit trail cannot be written.
    fn tell_of_log(&self, lines: &mut ReadinessLines) -> bool {
        if let Some(lost) = log_writer::lost_lately() {
            lines.problem(format!(
                "log: {lost} lines were lost since the start, the last one within ten minutes: nobody \
                 reads them, or the disk is full"
            ));
        }
        let stalled = log_writer::audit_trail_stalled();
        self.gauges.audit_trail_stalled.set(stalled.map_or(0.0, |(time, _)| time.as_secs_f64()));
        let Some((time, bytes)) = stalled.filter(|(time, _)| *time >= STALLED) else {
            return false;
        };
        let refuses = match (self.engine.audit_trail_is_on(), self.engine.audit_trail_is_full()) {
            (true, true) => "; locks are refused (TRYAGAIN)",
            (true, false) => "; locks are refused (TRYAGAIN) once 4 MB wait",
            (false, _) => "",
        };
        lines.problem(format!(
            "log: nothing could be written for {} s, {bytes} bytes wait, the audit trail's lines among \
             them: nobody reads them, or the disk is full{refuses}",
            time.as_secs()
        ));
        self.engine.audit_trail_is_full()
    }

    /// Adds the lines about settings: those that differ in the fleet, those of the file that were not taken over, and
    /// those that weaken a promise.
    fn tell_of_settings(&self, lines: &mut ReadinessLines) {
        for difference in self.fleet.differences() {
            lines.problem(format!("fleet: {}", difference.sentence("this proxy")));
        }
        for (key, why) in self.not_taken.lock().iter() {
            lines.problem(format!(
                "configuration: {key} in the file, as it was read last, is not what this process goes by: {why}"
            ));
        }
        for weakened in self.weakened.lock().iter() {
            lines.fine(format!("weakened: {weakened}"));
        }
    }

    /// Asks the data node now, and tells whether traffic should be sent here.
    ///
    /// # Errors
    /// The text of /readyz.
    pub(crate) async fn is_ready_now(&self) -> Result<(), String> {
        self.check().await;
        let readiness = self.readiness();
        if readiness.is_ready { Ok(()) } else { Err(readiness.lines.join("; ")) }
    }

    /// Asks the data node once a second.
    pub(super) async fn watch(&self) {
        let mut ticks = interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check().await;
            self.readiness();
            // Counted here and not for each scrape: this looks at every lock.
            let counts = self.engine.counts();
            self.gauges.leases.set(as_gauge(counts.held - counts.session_locks));
            self.gauges.adopted_locks.set(as_gauge(counts.adopted));
            self.gauges.oldest_hold.set(counts.oldest_hold.as_secs_f64());
            self.gauges.longest_wait.set(counts.longest_wait.as_secs_f64());
        }
    }

    /// Asks the data node, and logs when the answer has changed.
    async fn check(&self) {
        let Some(tenure) = self.data.tenure() else {
            self.refusals.asked(None);
            return self.note(Some(self.data.problem().unwrap_or_default()));
        };
        let (url, connector) = (&tenure.url, self.data.connector());
        let asking = data_check::ask(url, connector, self.next_check_may_write());
        let answer = timeout(CHECK_LIMIT, asking).await;
        self.data_is_silent.store(answer.is_err(), Ordering::Relaxed);
        let (writes, problem) = match answer {
            Ok(Ok(answer)) => {
                if answer.is_forbidden {
                    self.checks_without_writes.store(FORBIDDEN_FOR, Ordering::Relaxed);
                }
                (answer.writes, None)
            }
            Ok(Err(error)) => {
                let error = error.to_string();
                // PING is refused too while a disk is full, a script runs or the data is loading.
                let refusal = WriteRefusal::of(error.as_bytes());
                (refusal.map(|refusal| Err((refusal, error.clone()))), Some(error))
            }
            Err(_) => (None, Some(format!("no answer within {CHECK_LIMIT:?}"))),
        };
        self.note(problem);
        self.refusals.asked(writes);
        self.refusals.tell(&self.data.to_string());
    }

    /// Counts a check, and returns whether it asks the data node for a write: after the proxy's user was not
    /// allowed to write, the next [`FORBIDDEN_FOR`] checks ask for none, as the data node logs what it forbids.
    fn next_check_may_write(&self) -> bool {
        let left = self.checks_without_writes.load(Ordering::Relaxed);
        self.checks_without_writes.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn note(&self, problem: Option<String>) {
        let mut known = self.data_problem.lock();
        if *known != problem {
            match &problem {
                None => info!(data = %self.data, "data node is reachable"),
                Some(reason) => warn!(data = %self.data, %reason, "data node is not reachable"),
            }
            *known = problem;
        }
    }
}

/// Converts a count; below 2^32 exactly.
fn as_gauge(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

/// Asks the proxy whose admin address is `admin` for /healthz. Tries all addresses of a name: `localhost` may be
/// `::1` first, where nothing listens.
///
/// # Errors
/// If no address answers with 200 within three seconds altogether.
pub fn health_check(admin: &str) -> anyhow::Result<()> {
    let found = admin.to_socket_addrs().with_context(|| format!("no address: {admin}"))?;
    let addresses: Vec<SocketAddr> = found.collect();
    let until = Instant::now() + HEALTH_LIMIT;
    let mut told = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        // An address that does not answer leaves the others their share of the time.
        let share = left(until) / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        match ask_for_health(admin, *address, Instant::now() + share) {
            Ok(()) => return Ok(()),
            Err(error) => told.push(error),
        }
    }
    bail!("{}", told.join("; "))
}

/// Asks at one address.
///
/// # Errors
/// Why the proxy is not known to be healthy.
fn ask_for_health(admin: &str, address: SocketAddr, until: Instant) -> Result<(), String> {
    let stream = TcpStream::connect_timeout(&address, left(until));
    let mut stream = stream.map_err(|error| format!("cannot connect to {address}: {error}"))?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    let mut status = [0; 12];
    let mut ask = || {
        stream.set_write_timeout(Some(left(until)))?;
        stream.write_all(request.as_bytes())?;
        stream.set_read_timeout(Some(left(until)))?;
        stream.read_exact(&mut status)
    };
    ask().map_err(|error| match error.kind() {
        // A Redis closes such a connection.
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            format!("{address} does not answer as an admin address")
        }
        _ => format!("{address}: {error}"),
    })?;
    match &status {
        b"HTTP/1.1 200" => Ok(()),
        answer if !answer.starts_with(b"HTTP/") => {
            Err(format!("{address} does not answer as an admin address"))
        }
        _ => Err(format!("{address} says {}", String::from_utf8_lossy(&status))),
    }
}

/// Returns the time until then; at least 1 ms, as the system refuses a time limit of zero.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
