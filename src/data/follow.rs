//! Follows the data node from one Redis to the next: asks the Sentinels or looks the name up, asks each Redis for its
//! ROLE, and ends the tenure of a Redis that is no longer the data node.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::lookup_host,
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    data_metrics::{FollowMetrics, SwitchReason},
    role::{Role, RoleAsker},
    tenure::Tenure,
};
use crate::{
    config::{Endpoint, RedisUrl, SentinelMaster},
    net::Connector,
    sentinel::Sentinels,
    sync::Mutex,
};

/// How often the data node is asked for its ROLE, and a name is looked up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between two looks while there is no data node.
pub(super) const RETRY: Duration = Duration::from_millis(200);
/// Least time between two looks, however often one is wanted.
const GAP: Duration = Duration::from_millis(50);
/// How long looking a name up may take: the system asks a second server after five seconds.
const LOOKUP_LIMIT: Duration = Duration::from_secs(8);
/// Most addresses of one name that are tried.
const MOST_ADDRESSES: usize = 16;

/// What decides which Redis is the data node.
pub(super) enum Authority {
    /// A majority of these Sentinels.
    Sentinels(Sentinels, SentinelMaster),
    /// The name in this URL.
    Name(RedisUrl),
}

/// What is known of a followed data node.
pub(super) struct Following {
    /// Its name in the configuration.
    pub(super) name: String,
    pub(super) authority: Authority,
    pub(super) connector: Connector,
    /// The Redis that is the data node now.
    pub(super) tenure: watch::Sender<Option<Arc<Tenure>>>,
    /// Why there is no data node, or why it does not answer; `None` if it answers.
    pub(super) problem: Mutex<Option<String>>,
    /// Notified when a look is wanted now.
    pub(super) wanted: Arc<Notify>,
    pub(super) metrics: FollowMetrics,
}

impl Following {
    /// Looks again and again, for as long as the runtime runs.
    pub(super) async fn run(self: Arc<Following>) {
        let mut asker = None;
        let mut changes = match &self.authority {
            Authority::Sentinels(sentinels, _) => Some(sentinels.changes()),
            Authority::Name(_) => None,
        };
        loop {
            tokio::select! {
                () = self.look(&mut asker) => {}
                // No need to wait for the answer of a Redis that is no longer the data node.
                () = changed(&mut changes) => continue,
            }
            sleep(GAP).await;
            let there = self.tenure.borrow().is_some();
            tokio::select! {
                () = sleep(if there { LOOK_EVERY } else { RETRY }) => {}
                () = self.wanted.notified() => {}
                () = changed(&mut changes) => {}
            }
        }
    }

    /// Looks once. `asker` asks the Redis that is the data node now.
    async fn look(&self, asker: &mut Option<RoleAsker>) {
        let now = self.tenure.borrow().clone();
        if let Some(tenure) = &now {
            if let Some(other) = self.named().filter(|url| *url != tenure.url) {
                self.end(tenure, SwitchReason::Sentinels, &sentinels_name(&other));
            } else {
                // Asked before the name is looked up, which may take long.
                match ask(asker, &tenure.url, &self.connector).await {
                    Ok(Role::Master) => *self.problem.lock() = None,
                    Ok(Role::Replica | Role::Other) => {
                        self.end(tenure, SwitchReason::Replica, "it says that it is no master");
                    }
                    Err(error) => {
                        *self.problem.lock() = Some(error);
                        self.ask_again();
                    }
                }
            }
        }
        let found = self.candidates().await;
        let stays = now.is_some_and(|tenure| {
            !tenure.has_ended() && !matches!(&found, Ok(urls) if !urls.contains(&tenure.url))
        });
        if !stays {
            self.find(found, asker).await;
        }
    }

    /// Makes a data node of the first Redis in `found` that calls itself a master.
    async fn find(&self, found: Result<Vec<RedisUrl>, String>, asker: &mut Option<RoleAsker>) {
        let mut problem = String::new();
        match found {
            Err(error) => problem = error,
            Ok(urls) => {
                for url in urls {
                    let mut one = RoleAsker::new(url, &self.connector);
                    match one.ask().await {
                        Ok(Role::Master) => {
                            self.begin(one.url());
                            *asker = Some(one);
                            return;
                        }
                        Ok(Role::Replica) => {
                            problem = format!("{} says that it is a replica", one.url());
                        }
                        Ok(Role::Other) => problem = format!("{} is no master", one.url()),
                        Err(error) => problem = format!("{}: {error}", one.url()),
                    }
                }
            }
        }
        if self.tenure.borrow().is_none() {
            *self.problem.lock() = Some(problem);
        }
        self.ask_again();
    }

    /// Has the Sentinels asked again, as their answer leads to no master.
    fn ask_again(&self) {
        if let Authority::Sentinels(sentinels, _) = &self.authority {
            sentinels.ask_now();
        }
    }

    /// Returns each Redis that may be the data node, best first; at least one.
    async fn candidates(&self) -> Result<Vec<RedisUrl>, String> {
        match &self.authority {
            Authority::Sentinels(sentinels, _) => match self.named() {
                Some(url) => Ok(vec![url]),
                None => Err(sentinels.problem().unwrap_or_else(|| "not asked yet".into())),
            },
            Authority::Name(url) => {
                addresses(url).await.map_err(|error| format!("its name is not known now: {error}"))
            }
        }
    }

    /// Returns the Redis that a majority of the Sentinels last named, if there are Sentinels.
    fn named(&self) -> Option<RedisUrl> {
        let Authority::Sentinels(sentinels, master) = &self.authority else { return None };
        let address = sentinels.named()?.address;
        Some(master.at(&address.host, address.port))
    }

    fn begin(&self, url: &RedisUrl) {
        let before = self.tenure.borrow().clone();
        if let Some(before) = before.filter(|before| before.url != *url) {
            let (reason, why) = match &self.authority {
                Authority::Sentinels(..) => (SwitchReason::Sentinels, sentinels_name(url)),
                Authority::Name(_) => {
                    let why = format!("its name leads to {url}, which says that it is a master");
                    (SwitchReason::Name, why)
                }
            };
            self.end(&before, reason, &why);
        }
        info!(data = %self.name, master = %url, "this Redis is the data node from now on");
        *self.problem.lock() = None;
        let tenure = Tenure::new(url.clone(), self.wanted.clone(), self.metrics.doubts.clone());
        self.tenure.send_replace(Some(Arc::new(tenure)));
    }

    fn end(&self, tenure: &Tenure, reason: SwitchReason, why: &str) {
        warn!(
            data = %self.name, master = %tenure.url, reason = why,
            "this Redis is not the data node any more; all sessions on it end"
        );
        self.metrics.switched(reason);
        *self.problem.lock() = Some(format!("{} is not the data node any more: {why}", tenure.url));
        // In this order: once the sessions on it end, no new one may find it.
        self.tenure.send_replace(None);
        tenure.finish();
    }
}

async fn changed<T>(changes: &mut Option<watch::Receiver<T>>) {
    let is_changed = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !is_changed {
        std::future::pending().await
    }
}

/// Asks the Redis at `url`, over the previous connection if that leads to the same one.
async fn ask(
    asker: &mut Option<RoleAsker>,
    url: &RedisUrl,
    connector: &Connector,
) -> Result<Role, String> {
    if asker.as_ref().is_some_and(|asker| asker.url() != url) {
        *asker = None;
    }
    asker.get_or_insert_with(|| RoleAsker::new(url.clone(), connector)).ask().await
}

/// Returns the URL once for each address of its name.
pub(super) async fn addresses(url: &RedisUrl) -> io::Result<Vec<RedisUrl>> {
    let Endpoint::Tcp { host, port } = &url.endpoint else { return Ok(vec![url.clone()]) };
    let looking = lookup_host((host.as_str(), *port));
    let found = timeout(LOOKUP_LIMIT, looking).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let at = |address| RedisUrl { found: Some(address), ..url.clone() };
    let urls: Vec<RedisUrl> = found.take(MOST_ADDRESSES).map(at).collect();
    if urls.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it leads to no address"));
    }
    Ok(urls)
}

fn sentinels_name(url: &RedisUrl) -> String {
    format!("a majority of the Sentinels names {url}")
}
