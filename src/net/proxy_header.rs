//! The PROXY protocol's header, by which a balancer names the client of a connection that it passes on:
//! <https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt>.
//!
//! The crate decodes and encodes headers. This file takes a header from a socket without a byte beyond it, and
//! makes the header that is sent.

use std::{io, net::SocketAddr};

use proxy_header::{Error, ParseConfig, ProxiedAddress, ProxyHeader};
use tokio::{io::AsyncReadExt, net::TcpStream};

/// The longest header accepted, in bytes, as in nginx (`NGX_PROXY_PROTOCOL_MAX_HEADER`). Addresses need 232 at
/// most; the rest is for balancers' additions (TLVs), which are skipped.
pub(crate) const LONGEST: usize = 4096;
/// Room for a header with few additions, in bytes. It grows if needed.
const USUAL: usize = 256;
/// First bytes of a header: version 2, version 1.
const SIGNATURES: [&[u8]; 2] = [b"\r\n\r\n\0\r\nQUIT\n", b"PROXY "];
/// Offset of version 2's command.
const COMMAND: usize = 12;
/// Offset of version 2's address family.
const FAMILY: usize = 13;
/// The command of a connection that a balancer makes for itself.
const LOCAL: u8 = 0x20;
/// The family of a header without addresses.
const UNSPEC: u8 = 0;

/// Both ends of a client's connection, of one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The client's address.
    pub source: SocketAddr,
    /// The address that the client has connected to.
    pub destination: SocketAddr,
}

impl Ends {
    /// Reads both ends of a connection that comes through no balancer.
    ///
    /// # Errors
    /// If the connection has gone.
    pub(crate) fn of(client: &TcpStream) -> io::Result<Ends> {
        Ok(Ends { source: client.peer_addr()?, destination: client.local_addr()? })
    }
}

/// Reason why a connection does not begin with a usable header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderMissing {
    /// The peer left before it sent anything, as a port scan does.
    #[error("the peer has said nothing and left")]
    Silent,
    /// Bytes that begin no header.
    #[error("what came is no PROXY header")]
    Other,
    /// Bytes that begin like a header, but are none.
    #[error("the PROXY header makes no sense")]
    Malformed,
    /// A header longer than [`LONGEST`].
    #[error("the PROXY header is longer than {LONGEST} bytes")]
    TooLong,
    /// The peer left before the header's end.
    #[error("the PROXY header ends too early")]
    Cut,
}

/// Takes the header from a connection and leaves the bytes behind it. Returns `None` if the balancer speaks
/// for itself, or does not know the client. Has no time limit. Must not be called again once its future was
/// dropped: the bytes read by then are gone.
///
/// # Errors
/// If there is no header.
pub(crate) async fn receive(client: &mut TcpStream) -> Result<Option<Ends>, HeaderMissing> {
    let (mut bytes, mut taken) = (vec![0; USUAL], 0);
    loop {
        if taken == bytes.len() {
            if taken == LONGEST {
                return Err(HeaderMissing::TooLong);
            }
            bytes.resize(LONGEST.min(2 * taken), 0);
        }
        let seen = match client.peek(&mut bytes[taken..]).await {
            Ok(seen @ 1..) => taken + seen,
            _ if taken == 0 => return Err(HeaderMissing::Silent),
            _ => return Err(HeaderMissing::Cut),
        };
        // Only the header's bytes may leave the socket. While the header goes on, all bytes seen are taken, so
        // that the next peek waits for more.
        let header = parse(&mut bytes[..seen])?;
        let end = header.map_or(seen, |(_, end)| end);
        if client.read_exact(&mut bytes[taken..end]).await.is_err() {
            return Err(HeaderMissing::Cut);
        }
        match header {
            Some((ends, _)) => return Ok(ends),
            None => taken = end,
        }
    }
}

/// Reads the ends that a header names, and its length. Returns `None` while the header is incomplete.
pub(crate) fn parse(bytes: &mut [u8]) -> Result<Option<(Option<Ends>, usize)>, HeaderMissing> {
    let begins = |signature: &&[u8]| bytes.iter().zip(*signature).all(|(byte, sign)| byte == sign);
    if !SIGNATURES.iter().any(begins) {
        return Err(HeaderMissing::Other);
    }
    // The addresses of a LOCAL header must be ignored, whatever their family, but the crate would read them.
    // Version 1 is text and has no such byte.
    if bytes.len() > FAMILY && bytes[COMMAND] == LOCAL && bytes[0] == SIGNATURES[0][0] {
        bytes[FAMILY] = UNSPEC;
    }
    let config = ParseConfig { include_tlvs: false, allow_v1: true, allow_v2: true };
    match ProxyHeader::parse(bytes, config) {
        Ok((header, end)) => {
            let ends = header
                .proxied_address()
                .map(|told| Ends { source: told.source, destination: told.destination });
            Ok(Some((ends, end)))
        }
        Err(Error::BufferTooShort) => Ok(None),
        Err(_) => Err(HeaderMissing::Malformed),
    }
}

/// Makes the header (version 2) of a connection on behalf of `client`, or for the proxy's own purposes
/// (LOCAL).
///
/// # Errors
/// If the two ends are of different address families.
pub(crate) fn encode(client: Option<Ends>) -> io::Result<Vec<u8>> {
    let header = match client.map(plain) {
        Some(Ends { source, destination }) => {
            ProxyHeader::with_address(ProxiedAddress::stream(source, destination))
        }
        None => ProxyHeader::with_local(),
    };
    let mut bytes = Vec::with_capacity(USUAL);
    header.encode_v2(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Makes both ends IPv4 if both are IPv4-mapped IPv6 addresses, as at a listener on `[::]`.
fn plain(Ends { source, destination }: Ends) -> Ends {
    let plain = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let canonical = Ends { source: plain(source), destination: plain(destination) };
    let same = canonical.source.is_ipv4() == canonical.destination.is_ipv4();
    if same { canonical } else { Ends { source, destination } }
}

#[cfg(test)]
#[path = "proxy_header_tests.rs"]
mod tests;
