//! One connection to one Sentinel: questions, or a subscription.

use std::{io, time::Duration};

use redis_protocol::resp2::types::OwnedFrame;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    majority::MasterAddress,
    sentinel_trouble::{SentinelFault, SentinelTrouble},
};
use crate::{
    clock::Instant,
    config::RedisUrl,
    net::{self, Connector, Stream},
    resp::{
        encode,
        flat::{self, FlatLimits, Garbage},
    },
};

/// How long connecting may take, and one answer.
const LIMIT: Duration = Duration::from_secs(1);
/// Idle time after which the Sentinel is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// The channel on which a Sentinel publishes a new master.
const SWITCHES: &[u8] = b"+switch-master";
/// The most bytes of one reply. The longest that is asked for has all fields of a master.
const LONGEST: usize = 4096;
/// A Sentinel tells some twenty fields of a master, with their names.
const LIMITS: FlatLimits = FlatLimits { string: LONGEST, elements: 128 };
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
            let password = password.get()?;
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            words.extend(url.username.as_ref().map(|user| user.as_bytes()));
            words.push(password.as_bytes());
            if let OwnedFrame::Error(error) = link.ask(&words).await? {
                return Err(SentinelTrouble::of_error(&error));
            }
        }
        Ok(link)
    }

    /// Asks for the Sentinel's own id. Returns `None` if the Sentinel does not tell it: before version 6.2, or by an
    /// ACL.
    pub(super) async fn id(&mut self) -> Result<Option<Vec<u8>>, SentinelTrouble> {
        match self.ask(&[b"SENTINEL", b"MYID"]).await? {
            OwnedFrame::BulkString(id) => Ok(Some(id)),
            _ => Ok(None),
        }
    }

    /// Asks which master has this name, and by which election if `elected`. Returns its address, and
    /// when the question was sent.
    pub(super) async fn master(
        &mut self,
        name: &str,
        elected: bool,
    ) -> Result<(MasterAddress, Instant), SentinelTrouble> {
        let asked = Instant::now();
        let question: [&[u8]; 3] = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.as_bytes()];
        if !elected {
            return Ok((self.address(&question, name).await?, asked));
        }
        // The address belongs to the election if that is the same before and after.
        loop {
            let before = self.election(name).await?;
            let address = self.address(&question, name).await?;
            if self.election(name).await? == before {
                return Ok((MasterAddress { election: Some(before), ..address }, asked));
            }
        }
    }

    async fn address(
        &mut self,
        question: &[&[u8]],
        name: &str,
    ) -> Result<MasterAddress, SentinelTrouble> {
        match self.ask(question).await? {
            OwnedFrame::Array(texts) => Ok(address(&texts)?),
            OwnedFrame::Null => Err(SentinelTrouble::unknown_master(name)),
            OwnedFrame::Error(error) => Err(SentinelTrouble::of_error(&error)),
            _ => Err(Garbage.into()),
        }
    }

    /// Asks by which election the Sentinel's master of this name is the master.
    async fn election(&mut self, name: &str) -> Result<u64, SentinelTrouble> {
        match self.ask(&[b"SENTINEL", b"MASTER", name.as_bytes()]).await? {
            OwnedFrame::Array(fields) => Ok(election(&fields).ok_or(Garbage)?),
            OwnedFrame::Error(error) if error.contains("No such master") => {
                Err(SentinelTrouble::unknown_master(name))
            }
            OwnedFrame::Error(error) => Err(SentinelTrouble::of_error(&error)),
            _ => Err(Garbage.into()),
        }
    }

    /// Subscribes to news of new masters. Returns `false` if the Sentinel refuses that.
    pub(super) async fn subscribe(&mut self) -> Result<bool, SentinelTrouble> {
        match self.ask(&[b"SUBSCRIBE", SWITCHES]).await? {
            OwnedFrame::Array(_) => Ok(true),
            OwnedFrame::Error(_) => Ok(false),
            _ => Err(Garbage.into()),
        }
    }

    /// Returns once the Sentinel has sent something.
    pub(super) async fn news(&mut self) -> Result<(), SentinelTrouble> {
        self.reply().await.map(drop)
    }

    async fn ask(&mut self, words: &[&[u8]]) -> Result<OwnedFrame, SentinelTrouble> {
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

    /// Reads the next reply. Dropped before it is ready, it loses no bytes.
    async fn reply(&mut self) -> Result<OwnedFrame, SentinelTrouble> {
        loop {
            if let Some((reply, length)) = flat::read(&self.received, LIMITS)? {
                self.received.drain(..length);
                return Ok(reply);
            }
            let mut bytes = [0; 512];
            let room = LONGEST.saturating_sub(self.received.len()).min(bytes.len());
            if room == 0 {
                return Err(Garbage.into());
            }
            let length = self.stream.read(&mut bytes[..room]).await?;
            if length == 0 {
                return Err(io::Error::other("it closed the connection").into());
            }
            self.received.extend_from_slice(&bytes[..length]);
        }
    }
}

/// Reads a host and a port.
fn address(texts: &[OwnedFrame]) -> Result<MasterAddress, Garbage> {
    let [OwnedFrame::BulkString(host), OwnedFrame::BulkString(port)] = texts else {
        return Err(Garbage);
    };
    let is_host = |host: &&str| {
        (1..=LONGEST_HOST).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-_%".contains(&byte))
    };
    let host = std::str::from_utf8(host).ok().filter(is_host).ok_or(Garbage)?;
    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
    let port: u16 = port.filter(|port| *port != 0).ok_or(Garbage)?;
    Ok(MasterAddress { host: host.to_owned(), port, election: None })
}

/// Reads the `config-epoch` among the fields that a Sentinel tells of a master.
fn election(fields: &[OwnedFrame]) -> Option<u64> {
    let (pairs, _) = fields.as_chunks::<2>();
    let value = pairs.iter().find_map(|pair| match pair {
        [OwnedFrame::BulkString(name), OwnedFrame::BulkString(value)] => {
            (name == b"config-epoch").then_some(value)
        }
        _ => None,
    });
    std::str::from_utf8(value?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> OwnedFrame {
        OwnedFrame::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let read = |host: &str, port: &str| address(&[bulk(host), bulk(port)]).ok();
        for host in ["10.0.0.1", "fe80::1%eth0", "redis-1.internal"] {
            let address = MasterAddress { host: host.into(), port: 6379, election: None };
            assert_eq!(read(host, "6379"), Some(address));
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
        assert!(address(&[bulk("a")]).is_err());
        assert!(address(&[bulk("a"), OwnedFrame::Integer(1)]).is_err());
        let fields = |all: &[&str]| -> Vec<OwnedFrame> { all.iter().copied().map(bulk).collect() };
        assert_eq!(election(&fields(&["name", "config-epoch", "config-epoch", "7"])), Some(7));
        for bad in [&["name", "m"][..], &["config-epoch"], &["config-epoch", "-1"], &[]] {
            assert_eq!(election(&fields(bad)), None, "{bad:?}");
        }
    }
}
