//! Reads the configuration again (SIGHUP). Takes over what can change in a running proxy, and
//! logs what cannot.
//!
//! The table in `config/settings.rs` says which keys are which.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process},
};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::{
    adopt::{Adoption, verdict::AdoptVerdict},
    config::{Config, ConfigErrors, LockNode, OTHER_NODES},
    log_text::shown,
    server::{
        admin::PageSource,
        entry::{admission::Admission, descriptors},
        logging::Level,
        server_metrics::ReloadMetrics,
        systemd,
    },
    session::Shared,
};

/// Why the listed lock nodes are not asked yet.
const AHEAD: &str = "this proxy asks others still, and goes over to those of the file once they have taken their place \
    (lockgate nodes --change, which needs them as locks.next_nodes first: docs/changing-lock-nodes.md). Do not restart it with \
    this file before: it would ask the new ones beside proxies that ask the others";

/// Most log lines about what a rule refuses from now on.
const MOST_REFUSED: usize = 16;

/// The outcome of reading the configuration again.
#[derive(Debug, PartialEq)]
struct Merged {
    /// The configuration from now on.
    config: Config,
    /// Keys that have changed in the running proxy.
    taken: Vec<&'static str>,
    /// Keys that have changed in the file only, each with the reason.
    left: Vec<(&'static str, &'static str)>,
}

/// Merges what was read into the running configuration. `is_alone`: no process from before an upgrade, or from behind
/// one, has clients too. `serving`: the lock nodes that are asked.
fn merge(running: &Config, read: &Config, is_alone: bool, serving: &[LockNode]) -> Merged {
    let has_served = read.locks.nodes == serving;
    // The nodes that are asked stay in one of the two lists of the file.
    let is_listed =
        has_served || read.locks.nodes == running.locks.nodes && read.locks.next_nodes == serving;
    let is_fixed = |node: &LockNode| matches!(node, LockNode::Fixed(_));
    let may_go_over = running.locks.quarantine
        && read.locks.quarantine
        && read.locks.nodes.iter().chain(serving).all(is_fixed);
    let (mut config, mut taken, mut left) = (running.clone(), Vec::new(), Vec::new());
    config.take(read, &mut |key, is_live| {
        let why = match key {
            "locks.nodes" if has_served => {
                taken.push(key);
                return true;
            }
            "locks.next_nodes" if is_listed => {
                taken.push(key);
                return true;
            }
            "locks.nodes" if may_go_over => AHEAD,
            "locks.next_nodes" if may_go_over => "waits until this proxy asks those of locks.nodes",
            "locks.next_nodes" => {
                "the lock nodes that vote now are to be locks.nodes, or to stay locks.next_nodes"
            }
            "locks.nodes" | "locks.prefix" => OTHER_NODES,
            "adopt" => match running.adopt.stepped_to(&read.adopt) {
                Ok(()) if !is_alone => {
                    "waits until the clients of the process before the upgrade have gone, whose \
                     mode stays; then reload again"
                }
                Ok(()) => {
                    taken.push(key);
                    return true;
                }
                Err(why) => why,
            },
            // An upgrade would ask at the file's socket, where no process listens.
            "upgrade_socket" => "needs a restart",
            _ if !is_live => "needs a restart or an upgrade",
            // A value that fits the file need not fit the running proxy's fixed values.
            "locks.default_ttl"
                if read.locks.default_ttl > running.locks.max_ttl
                    || running.locks.max_hold.is_some_and(|h| h < read.locks.default_ttl) =>
            {
                "does not fit locks.max_ttl or locks.max_hold as they run now"
            }
            _ => {
                taken.push(key);
                return true;
            }
        };
        left.push((key, why));
        false
    });
    let locks = &config.locks;
    debug_assert!(locks.default_ttl <= locks.max_ttl, "what runs has been checked");
    debug_assert!(locks.max_hold.is_none_or(|most| locks.default_ttl <= most), "and so has this");
    Merged { config, taken, left }
}

/// Reads the configuration again whenever it is told to.
pub(super) struct Reloader {
    /// `None` if there is no file and all keys have their defaults.
    pub file: Option<PathBuf>,
    pub log: Option<Level>,
    /// Holds the configuration that sessions use.
    pub shared: Arc<Shared>,
    /// Shows the configuration to operators.
    pub state: Arc<PageSource>,
    /// Holds the limits of clients.
    pub admission: Arc<Admission>,
    pub metrics: ReloadMetrics,
    /// The process that this one has replaced.
    pub earlier: Option<ReplacedProcess>,
    /// Whether another process has replaced this one.
    pub replaced: Arc<AtomicBool>,
}

/// A process that this one has replaced.
pub(super) struct ReplacedProcess {
    pid: Pid,
    /// Names the process even if its id is given to another one. `None` before Linux 5.3.
    handle: Option<OwnedFd>,
}

impl ReplacedProcess {
    /// Takes hold of the process with this id, which still runs.
    pub(super) fn of(pid: i32) -> Option<ReplacedProcess> {
        let pid = Pid::from_raw(pid)?;
        Some(ReplacedProcess { pid, handle: pidfd_open(pid, PidfdFlags::empty()).ok() })
    }

    fn has_ended(&self) -> bool {
        test_kill_process(self.pid) == Err(Errno::SRCH)
    }

    /// Has the process read its configuration again, too: its clients' locks lie on the same lock nodes.
    fn pass_on(&self) {
        let Some(handle) = &self.handle else { return };
        match pidfd_send_signal(handle, Signal::HUP) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => {
                let pid = self.pid.as_raw_nonzero();
                warn!(%error, pid, "the process before the upgrade is not told, send it SIGHUP");
            }
        }
    }
}

impl Reloader {
    /// Reads the file again at each notification.
    pub(super) async fn run(self, asked: Arc<Notify>) {
        loop {
            asked.notified().await;
            if self.is_replaced() {
                // The service manager asks its successor.
                self.reload().await;
            } else {
                systemd::reloading().await;
                self.reload().await;
                systemd::reloaded().await;
            }
            if let Some(earlier) = &self.earlier {
                earlier.pass_on();
            }
        }
    }

    /// Reads the file and takes over the keys that can change.
    async fn reload(&self) {
        let Some(file) = self.file.clone() else {
            warn!("there is no configuration file to read again");
            return self.metrics.failed.increment(1);
        };
        match read(&file).await {
            Ok(read) => {
                self.apply(&read);
                self.metrics.ok.increment(1);
                self.metrics.succeeded_now();
            }
            Err(errors) => {
                for problem in &errors.problems {
                    let (line, key, what) = (problem.line, &problem.key, &problem.what);
                    error!(file = errors.file, line, key, "{what}");
                }
                error!("the configuration cannot be used; nothing has changed");
                self.metrics.failed.increment(1);
            }
        }
    }

    fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Whether this process alone has clients: neither the one that it has replaced, nor one that has replaced it.
    fn is_alone(&self) -> bool {
        !self.is_replaced() && self.earlier.as_ref().is_none_or(ReplacedProcess::has_ended)
    }

    fn apply(&self, read: &Config) {
        let serving = self.shared.engine.serving();
        let running = self.shared.config.load_full();
        let Merged { mut config, mut taken, mut left } =
            merge(&running, read, self.is_alone(), &serving);
        // The file may list nodes that do not vote yet: this proxy switches to them once they do.
        self.shared.engine.set_listed_nodes(&read.locks.nodes, &read.locks.next_nodes);
        let room = descriptors::make_room(config.maxclients, config.locks.listed());
        self.admission.set_limits(&Config { maxclients: room, ..config.clone() }, Instant::now());
        self.shared.engine.set_limits(&config.locks);
        if taken.contains(&"log.level")
            && let Some(log) = &self.log
        {
            let why = match log.set(&config.log.level) {
                Ok(true) => None,
                Ok(false) => Some("LOCKGATE_LOG goes before it"),
                Err(error) => {
                    error!(%error, "log.level cannot be changed");
                    Some("the log does not take it")
                }
            };
            if let Some(why) = why {
                config.log.level.clone_from(&running.log.level);
                taken.retain(|key| *key != "log.level");
                left.push(("log.level", why));
            }
        }
        self.shared.engine.set_audit_trail(config.log.locks == "all", &self.shared.name);
        if let Some(adoption) = self.shared.adoption.as_ref().filter(|_| taken.contains(&"adopt")) {
            adoption.step_to(&config.adopt.rules);
            tell_refused(adoption, &running);
            tell_untaken(adoption, &running);
            for rule in &config.adopt.rules {
                info!(
                    keys = rule.keys.as_str(),
                    mode = rule.mode.as_str(),
                    "adopt: the mode from now on"
                );
            }
        }
        self.state.runs_with(&config);
        self.shared.config.store(Arc::new(config));
        self.state.note_not_taken(left.clone());
        // Has the new record written at once, for the other proxies.
        if !taken.is_empty() {
            self.shared.fleet.stepped.notify_one();
        }
        for key in &taken {
            info!(key, "changed");
        }
        for (key, why) in &left {
            warn!(key, "not changed in the running proxy: {why}");
        }
        info!(changed = taken.len(), not_changed = left.len(), "read the configuration again");
    }
}

/// Whether the rule on these keys has moved up, to bridge or enforce.
fn has_stepped_up(keys: &str, adoption: &Adoption, before: &Config) -> bool {
    let now = adoption.rules().find(|(rule, _)| rule.keys.as_str() == keys);
    let before = before.adopt.rules.iter().find(|rule| rule.keys.as_str() == keys);
    now.zip(before).is_some_and(|((_, now), before)| now as u8 > before.mode as u8)
}

/// Warns of rules that are bridged or enforced from now on, and on whose keys commands were seen but none that takes
/// a lock: the keys may be no locks, or be taken in a way that is not known.
fn tell_untaken(adoption: &Adoption, before: &Config) {
    let (seen, _) = adoption.seen();
    for (rule, _) in adoption.rules() {
        let keys = rule.keys.as_str();
        let of_rule = || seen.iter().filter(|(sighting, ..)| adoption.pattern(sighting) == keys);
        let is_taken = of_rule().any(|(sighting, ..)| sighting.op.takes());
        let times: u64 = of_rule().map(|(.., times)| times).sum();
        if times > 0 && !is_taken && has_stepped_up(keys, adoption, before) {
            warn!(
                keys,
                times,
                "adopt: no command that takes a lock was seen on these keys (LOCKGATE ADOPTED)"
            );
        }
    }
}

/// Warns of commands that were seen on keys whose rule is bridged or enforced from now on, and that are refused there.
/// The step is taken all the same: the programs that sent them may have been changed since.
fn tell_refused(adoption: &Adoption, before: &Config) {
    let refused = adoption.seen().0.into_iter().filter(|(sighting, ..)| {
        let keys = adoption.pattern(sighting);
        sighting.verdict == AdoptVerdict::Refused && has_stepped_up(keys, adoption, before)
    });
    for (sighting, client, times) in refused.take(MOST_REFUSED) {
        let (keys, idiom) = (adoption.pattern(&sighting), sighting.op.as_str());
        warn!(
            keys,
            idiom,
            client = &*shown(client.as_bytes()),
            because = sighting.because,
            times,
            "adopt: what is seen on these keys is refused from now on (LOCKGATE ADOPTED)"
        );
    }
}

/// Reads the file on a thread that may block: files are read, and certificates tried.
async fn read(file: &Path) -> Result<Config, ConfigErrors> {
    let (path, name) = (file.to_owned(), file.display().to_string());
    let read = tokio::task::spawn_blocking(move || Config::load(&path)).await;
    read.unwrap_or_else(|error| Err(ConfigErrors::unread(&name, error.to_string())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_can_change_is_taken_and_the_rest_is_left() {
        // Each value differs from its default.
        let taken = [
            ("maxclients", "maxclients: 7"),
            ("upgrade_grace", "upgrade_grace: off"),
            ("log.level", "log: {level: debug}"),
            ("log.locks", "log: {locks: all}"),
            ("locks.default_ttl", "locks: {default_ttl: 7s}"),
            ("locks.on_disconnect", "locks: {on_disconnect: expire}"),
            ("locks.next_nodes", "locks: {next_nodes: redis://127.0.0.1:7001}"),
        ];
        let left = [
            ("listen", "listen: 127.0.0.1:7000"),
            ("admin", "admin: {peers: 'http://10.0.0.2:9380'}"),
            ("log.format", "log: {format: json}"),
            ("locks.nodes", "locks: {nodes: redis://127.0.0.1:7001}"),
            ("locks.max_hold", "locks: {max_hold: 77s}"),
            ("guards", "guards: {flush: allow}"),
            ("adopt", "adopt: {keys: 'lock:*'}"),
        ];
        let running = Config::default();
        let merged = |text: &str| {
            let read = Config::parse(text, "f", &|_| None).unwrap();
            (merge(&running, &read, true, &running.locks.nodes), read)
        };
        for (key, text) in taken {
            let (merged, read) = merged(text);
            assert_eq!((merged.taken, merged.left), (vec![key], vec![]), "{key}");
            assert_eq!(merged.config, read, "{key}");
        }
        for (key, text) in left {
            let (merged, _) = merged(text);
            assert_eq!((merged.taken, merged.left.len(), merged.left[0].0), (vec![], 1, key));
            assert_eq!(merged.config, running, "{key}");
        }
    }

    #[test]
    fn the_nodes_that_vote_stay_listed() {
        let file = |nodes: u16, next: Option<u16>| {
            let next = next.map_or(String::new(), |next| {
                format!(", next_nodes: ['redis://127.0.0.1:{next}']")
            });
            let text = format!("locks: {{nodes: ['redis://127.0.0.1:{nodes}']{next}}}");
            Config::parse(&text, "f", &|_| None).unwrap()
        };
        let taken = |running: &Config, read: &Config, serving: &Config| {
            let merged = merge(running, read, true, &serving.locks.nodes);
            merged.config.locks == read.locks && merged.left.is_empty()
        };
        let (first, second) = (file(1, None), file(2, None));
        assert!(taken(&first, &file(1, Some(2)), &first));
        assert!(taken(&file(1, Some(2)), &first, &first), "not to come any more");
        assert!(taken(&file(1, Some(2)), &second, &second), "they have taken the place");
        assert!(taken(&file(1, Some(2)), &file(2, Some(3)), &second), "and others are to come");
        assert!(!taken(&file(1, Some(2)), &first, &second), "those that vote would be in no list");
        assert!(!taken(&file(1, Some(2)), &file(1, Some(3)), &second));
        assert!(!taken(&first, &second, &first), "nothing was changed");
    }

    #[test]
    fn modes_go_one_step_at_a_time_and_not_beside_another_process() {
        let in_mode = |keys: &str, mode: &str| {
            let text = format!("adopt: {{keys: '{keys}', mode: {mode}}}");
            Config::parse(&text, "f", &|_| None).unwrap()
        };
        let [audit, bridge, enforce] =
            ["audit", "bridge", "enforce"].map(|mode| in_mode("lock:*", mode));
        let other = in_mode("mutex:*", "bridge");
        for (running, read, is_alone, is_taken) in [
            (&audit, &bridge, true, true),
            (&bridge, &enforce, true, true),
            (&enforce, &bridge, true, true),
            (&bridge, &audit, true, true),
            (&audit, &enforce, true, false),
            (&enforce, &audit, true, false),
            (&bridge, &other, true, false),
            (&audit, &bridge, false, false),
        ] {
            let merged = merge(running, read, is_alone, &running.locks.nodes);
            assert_eq!(merged.config == *read, is_taken, "{:?}", merged.left);
            assert_eq!(merged.left.is_empty(), is_taken, "{:?}", merged.left);
        }
    }

    #[test]
    fn a_ttl_that_fits_only_the_file_waits_for_the_restart() {
        let secs = Duration::from_secs;
        let config = |default_ttl, max_ttl, max_hold| {
            let mut config = Config::default();
            config.locks.default_ttl = secs(default_ttl);
            config.locks.max_ttl = secs(max_ttl);
            config.locks.max_hold = max_hold;
            config
        };
        let left = |running: &Config, read: &Config| {
            let merged = merge(running, read, true, &running.locks.nodes);
            assert_eq!(merged.config.locks.max_ttl, running.locks.max_ttl);
            merged.left.iter().any(|(key, _)| *key == "locks.default_ttl")
        };
        assert!(left(&config(10, 60, None), &config(90, 120, None)));
        assert!(!left(&config(10, 60, None), &config(50, 120, None)));
        assert!(left(&config(10, 60, Some(secs(20))), &config(30, 60, Some(secs(40)))));
        assert!(!left(&config(10, 60, Some(secs(20))), &config(20, 60, Some(secs(20)))));
    }
}
