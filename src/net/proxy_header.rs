//! The PROXY protocol's header, by which a balancer tells whose connection it
//! passes on: <https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt>.
//!
//! What it means is the crate's affair; here is how it is taken from a socket, of
//! which not one byte more may be read, and what is sent.

use std::{io, net::SocketAddr};

use proxy_header::{Error, ParseConfig, ProxiedAddress, ProxyHeader};
use tokio::{io::AsyncReadExt, net::TcpStream};

/// The longest header that is read: as many bytes as nginx takes
/// (`NGX_PROXY_PROTOCOL_MAX_HEADER`). Addresses need 232 at the most, the rest is for
/// what balancers add (TLVs), which is skipped.
pub const LONGEST: usize = 4096;
/// Room for a header without much added; more is made for one that needs it.
const USUAL: usize = 256;
/// What a header begins with: version 2, version 1.
const SIGNATURES: [&[u8]; 2] = [b"\r\n\r\n\0\r\nQUIT\n", b"PROXY "];
/// Where version 2 says what the header is for.
const COMMAND: usize = 12;
/// Where it says of which family its addresses are.
const FAMILY: usize = 13;
/// The command of a connection that a balancer makes for itself.
const LOCAL: u8 = 0x20;
/// No family.
const UNSPEC: u8 = 0;

/// Both ends of a client's connection, of one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Where the client is.
    pub source: SocketAddr,
    /// What it has connected to.
    pub destination: SocketAddr,
}

impl Ends {
    /// Of a connection that nobody passes on.
    ///
    /// # Errors
    /// If it is no longer there.
    pub fn of(client: &TcpStream) -> io::Result<Ends> {
        Ok(Ends { source: client.peer_addr()?, destination: client.local_addr()? })
    }
}

/// Why a connection does not begin with a header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The peer left before it said anything, as one that only looks who listens.
    #[error("the peer has said nothing and left")]
    Silent,
    /// Something else came.
    #[error("what came is no PROXY header")]
    Other,
    /// It began as one.
    #[error("the PROXY header makes no sense")]
    Malformed,
    /// Longer than [`LONGEST`].
    #[error("the PROXY header is longer than {LONGEST} bytes")]
    TooLong,
    /// The peer left before its end.
    #[error("the PROXY header ends too early")]
    Cut,
}

/// Takes the header from a connection and leaves what is behind it. None: the
/// balancer speaks for itself, or does not know whose connection it is. May take
/// for ever, and only once: what it has read is gone with it.
///
/// # Errors
/// If there is none.
pub async fn receive(client: &mut TcpStream) -> Result<Option<Ends>, Missing> {
    let (mut bytes, mut taken) = (vec![0; USUAL], 0);
    loop {
        if taken == bytes.len() {
            if taken == LONGEST {
                return Err(Missing::TooLong);
            }
            bytes.resize(LONGEST.min(2 * taken), 0);
        }
        let seen = match client.peek(&mut bytes[taken..]).await {
            Ok(seen @ 1..) => taken + seen,
            _ if taken == 0 => return Err(Missing::Silent),
            _ => return Err(Missing::Cut),
        };
        // Only what belongs to the header may leave the socket: all of it while the
        // header goes on, so that the next look waits for more.
        let header = parse(&mut bytes[..seen])?;
        let end = header.map_or(seen, |(_, end)| end);
        if client.read_exact(&mut bytes[taken..end]).await.is_err() {
            return Err(Missing::Cut);
        }
        match header {
            Some((ends, _)) => return Ok(ends),
            None => taken = end,
        }
    }
}

/// What a header says and where it ends; none while it goes on.
fn parse(bytes: &mut [u8]) -> Result<Option<(Option<Ends>, usize)>, Missing> {
    let begins = |signature: &&[u8]| bytes.iter().zip(*signature).all(|(byte, sign)| byte == sign);
    if !SIGNATURES.iter().any(begins) {
        return Err(Missing::Other);
    }
    // The addresses of such a header are to be ignored, whatever their family, which
    // the crate would look at. Version 1 is text and has no such byte.
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
        Err(_) => Err(Missing::Malformed),
    }
}

/// The header, version 2, of a connection made on behalf of a client; of none: for
/// the sender's own purposes (LOCAL).
///
/// # Errors
/// If the ends are of two families.
pub fn encode(client: Option<Ends>) -> io::Result<Vec<u8>> {
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

/// As IPv4 if it is that in IPv6's clothes on both sides, as at a listener on `[::]`.
fn plain(Ends { source, destination }: Ends) -> Ends {
    let plain = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let canonical = Ends { source: plain(source), destination: plain(destination) };
    let same = canonical.source.is_ipv4() == canonical.destination.is_ipv4();
    if same { canonical } else { Ends { source, destination } }
}

#[cfg(test)]
#[path = "proxy_header_tests.rs"]
mod tests;
