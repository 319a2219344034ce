//! Decides whether strangers may come: clients at a listener that is not on loopback.
//!
//! Redis itself keeps strangers out while it has no password (protected-mode), and knows them by their address.
//! Behind a proxy on its machine all clients look local, so the proxy must check instead. A client that may PING
//! without a password may do anything.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::bail;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    config::{Config, Listener, RedisUrl},
    data::DataNode,
    net::{self, Connector},
};

/// How long the data node may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// How often the data node is asked until strangers may come.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How the data node treats a client without credentials.
#[derive(Debug, PartialEq, Eq)]
enum Manner {
    /// The data node asks for a password.
    Guarded,
    /// The data node serves the client.
    Open,
    /// The data node gave another answer, or none: the reason.
    Unclear(String),
}

/// Whether strangers may come, for all listeners.
pub(crate) struct Exposure {
    /// Kept up to date by [`Exposure::watch`].
    safe: AtomicBool,
    data: Arc<DataNode>,
    /// Whether the data node is never asked, as all clients are on this machine or may come anyway.
    is_unasked: bool,
}

/// Whether clients of `listener` may be on other machines. A balancer's clients may, wherever it connects from.
pub(crate) fn serves_strangers(listener: &Listener) -> bool {
    listener.proxy_protocol || !listener.address.ip().to_canonical().is_loopback()
}

impl Exposure {
    /// Asks the data node, if a listener is for strangers. While there is no clear answer
    /// strangers must wait: run [`Exposure::watch`] then.
    ///
    /// # Errors
    /// If the data node serves clients without a password.
    pub(crate) async fn find_out(
        config: &Config,
        data: Arc<DataNode>,
    ) -> anyhow::Result<Arc<Exposure>> {
        let strangers = config.listen.iter().find(|listener| serves_strangers(listener));
        let listener = strangers.filter(|_| !config.allow_open);
        let is_unasked = listener.is_none();
        let exposure = Arc::new(Exposure { safe: AtomicBool::new(is_unasked), data, is_unasked });
        let Some(listener) = listener else { return Ok(exposure) };
        match exposure.ask().await {
            Manner::Guarded => exposure.safe.store(true, Ordering::Relaxed),
            Manner::Open => bail!(
                "{} (listen{}) can be reached from other machines, and the data node {} asks \
                 nobody for a password: whoever comes could do as they like with it. Give it one \
                 (requirepass, or an ACL), listen on 127.0.0.1{}, or set allow_open: true",
                listener.address,
                if listener.proxy_protocol { ", through a balancer" } else { "" },
                exposure.data,
                if listener.proxy_protocol { " without proxy_protocol" } else { "" },
            ),
            Manner::Unclear(reason) => warn!(
                data = %exposure.data, %reason,
                "not known whether the data node asks for a password; clients are let in on \
                 loopback alone until it is (allow_open)"
            ),
        }
        Ok(exposure)
    }

    /// Whether strangers may come.
    pub(crate) fn is_safe(&self) -> bool {
        self.safe.load(Ordering::Relaxed)
    }

    /// Asks until strangers may come, and then asks each Redis that becomes the data node. Logs each change.
    pub(crate) async fn watch(self: Arc<Self>, shutdown: CancellationToken) {
        let data = &self.data;
        let mut changes = data.changes();
        // Whether the present data node is known to ask for a password.
        let (mut is_known, mut told_open) = (self.is_safe(), false);
        while !is_known || data.is_followed() && !self.is_unasked {
            tokio::select! {
                () = sleep(ASK_EVERY), if !is_known => {}
                Ok(()) = changes.changed() => {}
                () = shutdown.cancelled() => return,
            }
            let manner = self.ask().await;
            is_known = manner == Manner::Guarded;
            match manner {
                Manner::Guarded => {
                    told_open = false;
                    if !self.safe.swap(true, Ordering::Relaxed) {
                        info!(%data, "the data node asks for a password; clients are let in everywhere");
                    }
                }
                Manner::Open => {
                    self.safe.store(false, Ordering::Relaxed);
                    if !std::mem::replace(&mut told_open, true) {
                        error!(
                            %data,
                            "the data node asks nobody for a password; clients are let in on loopback \
                             alone until it does (allow_open)"
                        );
                    }
                }
                Manner::Unclear(_) => {}
            }
        }
    }

    /// Asks each Redis to which clients are led. One that is open decides. One that does not answer, such as a
    /// cluster node that is down, does not: clients cannot be led there either.
    async fn ask(&self) -> Manner {
        if self.data.found(ASK_LIMIT).await.is_none() {
            return Manner::Unclear(self.data.problem().unwrap_or_default());
        }
        let mut found = Manner::Unclear("no node is known".into());
        for tenure in self.data.all() {
            match self.ask_one(&tenure.url).await {
                Manner::Open => return Manner::Open,
                Manner::Unclear(_) if found == Manner::Guarded => {}
                manner => found = manner,
            }
        }
        found
    }

    /// Sends PING on a fresh connection, without credentials.
    async fn ask_one(&self, url: &RedisUrl) -> Manner {
        let asking = first_answer(url, self.data.connector(), b"PING\r\n");
        match timeout(ASK_LIMIT, asking).await {
            Ok(Ok(Some(answer))) => judge(&answer),
            Ok(Ok(None)) => Manner::Unclear(io::ErrorKind::UnexpectedEof.to_string()),
            Ok(Err(error)) => Manner::Unclear(error.to_string()),
            Err(_) => Manner::Unclear(format!("no answer within {ASK_LIMIT:?}")),
        }
    }
}

/// Returns the first line of the data node's answer to `request`, on a fresh connection, or `None` if the node closes
/// the connection first.
async fn first_answer(
    data: &RedisUrl,
    connector: &Connector,
    request: &[u8],
) -> io::Result<Option<String>> {
    let mut stream = net::connect(data, connector, ASK_LIMIT, net::KEEPALIVE_OF_QUESTIONS).await?;
    stream.write_all(request).await?;
    stream.flush().await?;
    let (mut line, mut bytes) = (Vec::new(), [0; 256]);
    while !line.contains(&b'\n') && line.len() < 1024 {
        match stream.read(&mut bytes).await? {
            0 => return Ok(None),
            length => line.extend_from_slice(&bytes[..length]),
        }
    }
    let text = String::from_utf8_lossy(&line);
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

fn judge(answer: &str) -> Manner {
    if answer.starts_with("-NOAUTH") {
        return Manner::Guarded;
    }
    // An ACL that forbids PING to clients without a password allows them other commands.
    if answer.starts_with('+') || answer.starts_with("-NOPERM") {
        return Manner::Open;
    }
    // For example -LOADING, or -DENIED by a Redis that takes the proxy for a stranger.
    Manner::Unclear(answer.trim_start_matches('-').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_demand_for_a_password_counts_as_one() {
        assert_eq!(judge("-NOAUTH Authentication required."), Manner::Guarded);
        for open in ["+PONG", "-NOPERM this user has no permissions to run the 'ping' command"] {
            assert_eq!(judge(open), Manner::Open);
        }
        for unclear in ["-LOADING Redis is loading", "-DENIED Redis is running", "", "$4"] {
            assert!(matches!(judge(unclear), Manner::Unclear(_)), "{unclear}");
        }
    }

    #[test]
    fn loopback_is_all_of_it_unless_a_balancer_connects_there() {
        let listener = |address: &str| Listener::plain(address.parse().unwrap());
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(!serves_strangers(&listener(local)), "{local}");
            let proxied = Listener { proxy_protocol: true, ..listener(local) };
            assert!(serves_strangers(&proxied), "{local}");
        }
        for stranger in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            assert!(serves_strangers(&listener(stranger)), "{stranger}");
        }
    }
}
