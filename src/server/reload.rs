//! The configuration read again (SIGHUP): what can change in a running proxy does, and
//! the log names what cannot.
//!
//! `TABLE` is the one place that says which is which.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::{
    config::{Config, ConfigErrors, OTHER_NODES},
    server::{
        entry::{admission::Admission, descriptors},
        logging::Level,
        metrics::ReloadMetrics,
        systemd,
    },
    session::Shared,
};

/// One key of the configuration.
struct Row {
    /// As it is written: `locks.max_wait`.
    key: &'static str,
    /// Whether it says something else in the one than in the other.
    differs: fn(&Config, &Config) -> bool,
    /// Takes it over from the second. None: it can only be had by a restart or an upgrade.
    take: Option<fn(&mut Config, &Config)>,
}

/// A key that can change while the proxy runs.
macro_rules! live {
    ($key:literal, $($field:ident).+) => {
        Row {
            key: $key,
            differs: |a, b| a.$($field).+ != b.$($field).+,
            take: Some(|to, from| to.$($field).+ = from.$($field).+.clone()),
        }
    };
}

/// A key that cannot.
macro_rules! fixed {
    ($key:literal, $($field:ident).+) => {
        Row { key: $key, differs: |a, b| a.$($field).+ != b.$($field).+, take: None }
    };
}

/// Every key, in the order of the annotated file. Live are those that are read where a
/// connection begins, or are a number that can be exchanged; fixed are those from which
/// something was made: sockets, connections to Redis, threads, locks.
const TABLE: &[Row] = &[
    fixed!("listen", listen),
    fixed!("allow_open", allow_open),
    fixed!("admin", admin),
    fixed!("data", data),
    fixed!("send_proxy_protocol", send_proxy_protocol),
    // Files behind it are followed by themselves.
    fixed!("tls", tls),
    live!("connect_timeout", connect_timeout),
    live!("tcp_keepalive", tcp_keepalive),
    live!("maxclients", maxclients),
    live!("max_clients_per_address", max_clients_per_address),
    live!("max_connect_rate", max_connect_rate),
    live!("first_byte_timeout", first_byte_timeout),
    fixed!("io_threads", io_threads),
    live!("barrier_buffer", barrier_buffer),
    live!("shutdown_delay", shutdown_delay),
    live!("shutdown_grace", shutdown_grace),
    fixed!("upgrade_socket", upgrade_socket),
    live!("upgrade_grace", upgrade_grace),
    live!("log.level", log.level),
    fixed!("log.format", log.format),
    fixed!("locks.nodes", locks.nodes),
    fixed!("locks.tls", locks.tls),
    fixed!("locks.prefix", locks.prefix),
    live!("locks.default_ttl", locks.default_ttl),
    // Other proxies and quarantined nodes count on it.
    fixed!("locks.max_ttl", locks.max_ttl),
    fixed!("locks.node_timeout", locks.node_timeout),
    fixed!("locks.node_silence", locks.node_silence),
    fixed!("locks.node_queue", locks.node_queue),
    fixed!("locks.drift_factor", locks.drift_factor),
    fixed!("locks.fence_ttl", locks.fence_ttl),
    live!("locks.max_key", locks.max_key),
    live!("locks.max_token", locks.max_token),
    live!("locks.authorize_cache", locks.authorize_cache),
    live!("locks.max_wait", locks.max_wait),
    live!("locks.max_waiters", locks.max_waiters),
    live!("locks.max_handovers", locks.max_handovers),
    fixed!("locks.max_hold", locks.max_hold),
    live!("locks.on_lost", locks.on_lost),
    live!("locks.on_disconnect", locks.on_disconnect),
    fixed!("locks.quarantine", locks.quarantine),
    fixed!("locks.allow_shared_instance", locks.allow_shared_instance),
    // All proxies before the same data node need the same.
    fixed!("guards", guards),
];

/// What a newly read configuration comes to in a proxy that runs with another.
#[derive(Debug, PartialEq)]
struct Merged {
    /// What it runs with from now on.
    config: Config,
    /// Keys that have changed in it.
    taken: Vec<&'static str>,
    /// Keys that have changed in the file alone, each with the reason.
    left: Vec<(&'static str, &'static str)>,
}

fn merge(running: &Config, read: &Config) -> Merged {
    let (mut config, mut taken, mut left) = (running.clone(), Vec::new(), Vec::new());
    for Row { key, take, .. } in TABLE.iter().filter(|row| (row.differs)(running, read)) {
        match take {
            None if matches!(*key, "locks.nodes" | "locks.prefix") => {
                left.push((*key, OTHER_NODES));
            }
            None => left.push((*key, "needs a restart or an upgrade")),
            // What fits the file need not fit what stays of the running proxy.
            Some(_)
                if *key == "locks.default_ttl"
                    && (read.locks.default_ttl > running.locks.max_ttl
                        || running.locks.max_hold.is_some_and(|h| h < read.locks.default_ttl)) =>
            {
                left.push((*key, "does not fit locks.max_ttl or locks.max_hold as they run now"));
            }
            Some(take) => {
                take(&mut config, read);
                taken.push(*key);
            }
        }
    }
    Merged { config, taken, left }
}

/// Reads the configuration again.
pub struct Reloader {
    /// None: there is no file, all is as it is by default.
    pub file: Option<PathBuf>,
    /// The running log.
    pub log: Option<Level>,
    /// Where sessions find the configuration.
    pub shared: Arc<Shared>,
    /// Who is let in.
    pub admission: Arc<Admission>,
    /// What is counted.
    pub metrics: ReloadMetrics,
}

impl Reloader {
    /// Reads the file whenever it is asked to.
    pub async fn run(self, asked: Arc<Notify>) {
        loop {
            asked.notified().await;
            systemd::reloading().await;
            self.reload().await;
            systemd::reloaded().await;
        }
    }

    /// Reads the file and takes over what can be.
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

    fn apply(&self, read: &Config) {
        let Merged { config, taken, left } = merge(&self.shared.config.load(), read);
        let room = descriptors::make_room(config.maxclients, config.locks.nodes.len());
        self.admission.set_limits(&Config { maxclients: room, ..config.clone() }, Instant::now());
        self.shared.engine.set_limits(&config.locks);
        if taken.contains(&"log.level")
            && let Some(log) = &self.log
        {
            match log.set(&config.log.level) {
                Ok(true) => {}
                Ok(false) => warn!("LOCKGATE_LOG goes before log.level, so that has no effect"),
                Err(error) => error!(%error, "log.level cannot be changed"),
            }
        }
        self.shared.config.store(Arc::new(config));
        for key in &taken {
            info!(key, "changed");
        }
        for (key, why) in &left {
            warn!(key, "not changed in the running proxy: {why}");
        }
        info!(changed = taken.len(), not_changed = left.len(), "read the configuration again");
    }
}

/// Files are read, and certificates tried, where nobody has to wait for it.
async fn read(file: &Path) -> Result<Config, ConfigErrors> {
    let (path, name) = (file.to_owned(), file.display().to_string());
    let read = tokio::task::spawn_blocking(move || Config::load(&path)).await;
    read.unwrap_or_else(|error| Err(ConfigErrors::unread(&name, error.to_string())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{LocksConfig, LogConfig};

    /// Whoever adds a key must decide whether it can change in a running proxy.
    #[test]
    fn every_key_of_the_configuration_is_in_the_table_once() {
        let top = Config::KEYS
            .iter()
            .filter(|key| !["log", "locks"].contains(key))
            .map(|key| (*key).into());
        let log = LogConfig::KEYS.iter().map(|key| format!("log.{key}"));
        let locks = LocksConfig::KEYS.iter().map(|key| format!("locks.{key}"));
        let mut all: Vec<String> = top.chain(log).chain(locks).collect();
        let mut table: Vec<String> = TABLE.iter().map(|row| row.key.to_owned()).collect();
        all.sort();
        table.sort();
        assert_eq!(table, all);
    }

    /// Each value is another than the default, and the row of its key alone tells.
    #[test]
    fn each_row_is_about_its_own_key() {
        let values = [
            ("listen", "127.0.0.1:7000"),
            ("allow_open", "true"),
            ("send_proxy_protocol", "true"),
            ("admin", "off"),
            ("data", "redis://127.0.0.1:7001"),
            ("connect_timeout", "6s"),
            ("tcp_keepalive", "61s"),
            ("maxclients", "7"),
            ("max_clients_per_address", "7"),
            ("max_connect_rate", "7"),
            ("first_byte_timeout", "7s"),
            ("io_threads", "7"),
            ("barrier_buffer", "2mb"),
            ("shutdown_delay", "7s"),
            ("shutdown_grace", "7s"),
            ("upgrade_socket", "/x"),
            ("upgrade_grace", "7s"),
            ("log.level", "debug"),
            ("log.format", "json"),
            ("locks.nodes", "redis://127.0.0.1:7001"),
            ("locks.prefix", "x"),
            ("locks.default_ttl", "7s"),
            ("locks.max_ttl", "59s"),
            ("locks.node_timeout", "60ms"),
            ("locks.node_silence", "3s"),
            ("locks.node_queue", "7"),
            ("locks.drift_factor", "0.02"),
            ("locks.fence_ttl", "8d"),
            ("locks.max_key", "7"),
            ("locks.max_token", "77"),
            ("locks.authorize_cache", "7s"),
            ("locks.max_wait", "7s"),
            ("locks.max_waiters", "7"),
            ("locks.max_handovers", "7"),
            ("locks.max_hold", "77s"),
            ("locks.on_lost", "close"),
            ("locks.on_disconnect", "expire"),
            ("locks.quarantine", "no"),
            ("locks.allow_shared_instance", "yes"),
            ("guards.flush", "allow"),
        ];
        // Apart from the lock node, as send_proxy_protocol wants it.
        let apart = "data: redis://127.0.0.1:7002\n";
        let running = Config::parse(apart, "f", &|_| None).unwrap();
        for row in TABLE.iter().filter(|row| !row.key.ends_with("tls")) {
            let (key, value) = values
                .iter()
                .find(|(key, _)| *key == row.key || *key == format!("{}.flush", row.key))
                .unwrap();
            let text = match key.split_once('.') {
                Some((section, key)) => format!("{section}: {{{key}: '{value}'}}"),
                None => format!("{key}: '{value}'"),
            };
            let text = if *key == "data" { text } else { format!("{apart}{text}") };
            // Numbers are read from text, as from the environment.
            let read = Config::parse(&text, "f", &|_| None).unwrap();
            let merged = merge(&running, &read);
            match row.take {
                Some(_) => {
                    assert_eq!((merged.taken, merged.left), (vec![row.key], vec![]), "{key}");
                    assert_eq!(merged.config, read, "{key}");
                }
                None => {
                    let left: Vec<_> = merged.left.iter().map(|(key, _)| *key).collect();
                    assert_eq!((merged.taken, left), (vec![], vec![row.key]), "{key}");
                    assert_eq!(merged.config, running, "{key}");
                }
            }
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
            let merged = merge(running, read);
            assert_eq!(merged.config.locks.max_ttl, running.locks.max_ttl);
            merged.left.iter().any(|(key, _)| *key == "locks.default_ttl")
        };
        assert!(left(&config(10, 60, None), &config(90, 120, None)));
        assert!(!left(&config(10, 60, None), &config(50, 120, None)));
        assert!(left(&config(10, 60, Some(secs(20))), &config(30, 60, Some(secs(40)))));
        assert!(!left(&config(10, 60, Some(secs(20))), &config(20, 60, Some(secs(20)))));
    }
}
