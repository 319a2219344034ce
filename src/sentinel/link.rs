//! One connection to one Sentinel: questions, or a subscription.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    majority::MasterAddress,
    reply::{self, LONGEST, SentinelReply},
    trouble::{SentinelFault, SentinelTrouble},
};
use crate::{
    clock::Instant,
    config::RedisUrl,
    net::{self, Connector, Stream},
    resp::encode,
};

/// How long connecting may take, and one answer.
const LIMIT: Duration = Duration::from_secs(1);
/// Idle time after which the Sentinel is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// The channel on which a Sentinel tells of a new master.
const SWITCHES: &[u8] = b"+switch-master";
/// The longest name of a host, in bytes.
const LONGEST_HOST: usize = 255;

/// A connection to one Sentinel.
pub(super) struct SentinelLink {
    stream: Stream,
    /// Bytes received that are no whole reply yet.
    received: Vec<u8>,
}

impl SentinelLink {
    /// Connects, and authenticates if the URL has a password.
    pub(super) async fn connect(
        url: &RedisUrl,
        connector: &Connector,
    ) -> Result<SentinelLink, SentinelTrouble> {
        let stream = net::connect(url, connector, LIMIT, KEEPALIVE).await?;
        let mut link = SentinelLink { stream, received: Vec::new() };
        if let Some(password) = &url.password {
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            words.extend(url.username.as_ref().map(|user| user.as_bytes()));
            words.push(password.as_bytes());
            if let SentinelReply::Error(error) = link.ask(&words).await? {
                return Err(SentinelTrouble::of_error(&error));
            }
        }
        Ok(link)
    }

    /// Asks which master has this name. Returns its address, and when the question was sent.
    pub(super) async fn master(
        &mut self,
        name: &str,
    ) -> Result<(MasterAddress, Instant), SentinelTrouble> {
        let asked = Instant::now();
        let question: [&[u8]; 3] = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.as_bytes()];
        match self.ask(&question).await? {
            SentinelReply::Texts(texts) => Ok((address(&texts)?, asked)),
            SentinelReply::Nothing => {
                let what = format!("it watches no master '{name}'");
                Err(SentinelTrouble::new(SentinelFault::UnknownMaster, what))
            }
            SentinelReply::Error(error) => Err(SentinelTrouble::of_error(&error)),
            SentinelReply::Text(_) => Err(reply::Garbled.into()),
        }
    }

    /// Subscribes to news of new masters. Returns `false` if the Sentinel refuses that.
    pub(super) async fn subscribe(&mut self) -> Result<bool, SentinelTrouble> {
        match self.ask(&[b"SUBSCRIBE", SWITCHES]).await? {
            SentinelReply::Texts(_) => Ok(true),
            SentinelReply::Error(_) => Ok(false),
            SentinelReply::Text(_) | SentinelReply::Nothing => Err(reply::Garbled.into()),
        }
    }

    /// Returns once the Sentinel has sent something.
    pub(super) async fn news(&mut self) -> Result<(), SentinelTrouble> {
        self.reply().await.map(drop)
    }

    async fn ask(&mut self, words: &[&[u8]]) -> Result<SentinelReply, SentinelTrouble> {
        let mut request = Vec::new();
        encode::command(&mut request, words);
        let asking = async {
            self.stream.write_all(&request).await?;
            self.stream.flush().await?;
            self.reply().await
        };
        match timeout(LIMIT, asking).await {
            Ok(reply) => reply,
            Err(_) => {
                let what = format!("no answer within {LIMIT:?}");
                Err(SentinelTrouble::new(SentinelFault::Unreachable, what))
            }
        }
    }

    /// The next reply. Nothing of it is lost if this is dropped before its end.
    async fn reply(&mut self) -> Result<SentinelReply, SentinelTrouble> {
        loop {
            if let Some((reply, length)) = reply::read(&self.received)? {
                self.received.drain(..length);
                return Ok(reply);
            }
            let mut bytes = [0; 512];
            let room = LONGEST.saturating_sub(self.received.len()).clamp(1, bytes.len());
            let length = self.stream.read(&mut bytes[..room]).await?;
            if length == 0 {
                return Err(io::Error::other("it closed the connection").into());
            }
            self.received.extend_from_slice(&bytes[..length]);
        }
    }
}

/// Reads a host and a port.
fn address(texts: &[Vec<u8>]) -> Result<MasterAddress, SentinelTrouble> {
    let [host, port] = texts else { return Err(reply::Garbled.into()) };
    let is_host = |host: &&str| {
        (1..=LONGEST_HOST).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-_%".contains(&byte))
    };
    let host = std::str::from_utf8(host).ok().filter(is_host).ok_or(reply::Garbled)?;
    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
    let port: u16 = port.filter(|port| *port != 0).ok_or(reply::Garbled)?;
    Ok(MasterAddress { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let read = |host: &str, port: &str| {
            address(&[host.as_bytes().to_vec(), port.as_bytes().to_vec()]).ok()
        };
        for host in ["10.0.0.1", "fe80::1%eth0", "redis-1.internal"] {
            assert_eq!(read(host, "6379"), Some(MasterAddress { host: host.into(), port: 6379 }));
        }
        let long = "x".repeat(LONGEST_HOST + 1);
        for (host, port) in [
            ("", "1"),
            ("a b", "1"),
            ("a", "0"),
            ("a", "65536"),
            ("a", "x"),
            ("a\u{7}", "1"),
            (&long, "1"),
        ] {
            assert_eq!(read(host, port), None, "{host:?} {port:?}");
        }
        assert!(address(&[b"a".to_vec()]).is_err());
    }
}
