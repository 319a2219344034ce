//! Asks the data node, on a fresh connection, whether it answers, and whether it accepts writes.

use std::{io, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    config::RedisUrl,
    data::write_refusals::WriteRefusal,
    net::{self, Connector},
    resp::encode,
};

/// How long the data node may take to answer.
pub(super) const CHECK_LIMIT: Duration = Duration::from_secs(1);
/// The key of the write that asks whether the data node accepts writes. It never has a value.
const PROBE: &[u8] = b"lockgate:probe";
/// Most bytes that are read of all answers together.
const MOST: usize = 4096;

/// What the data node has answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DataAnswer {
    /// Whether it accepts writes, or in which words it refuses them. `None` if it did not tell.
    pub(super) writes: Option<Result<(), (WriteRefusal, String)>>,
    /// Whether the proxy's user may not write. The data node may log each attempt.
    pub(super) is_forbidden: bool,
}

/// Sends PING, as a new client would, and if `writes` a SET that changes nothing.
///
/// # Errors
/// Those of the network, and the data node's to AUTH or PING.
pub(super) async fn ask(
    data: &RedisUrl,
    connector: &Connector,
    writes: bool,
) -> io::Result<DataAnswer> {
    let (mut request, mut answers) = (Vec::new(), 1 + usize::from(writes));
    if let Some(password) = &data.password {
        let user = data.username.as_deref().unwrap_or("default");
        let password = password.get()?;
        encode::command(&mut request, &[b"AUTH", user.as_bytes(), password.as_bytes()]);
        answers += 1;
    }
    encode::command(&mut request, &[b"PING"]);
    if writes {
        // The key does not exist, so this writes nothing. It is refused as any write is, for want of memory too.
        encode::command(&mut request, &[b"SET", PROBE, b"", b"XX", b"PX", b"1"]);
    }
    let mut stream =
        net::connect(data, connector, CHECK_LIMIT, net::KEEPALIVE_OF_QUESTIONS).await?;
    stream.write_all(&request).await?;
    stream.flush().await?;
    let (mut told, mut bytes) = (Vec::new(), [0; 512]);
    while memchr::memchr_iter(b'\n', &told).count() < answers && told.len() < MOST {
        match stream.read(&mut bytes).await? {
            0 => break,
            length => told.extend_from_slice(&bytes[..length]),
        }
    }
    let told = String::from_utf8_lossy(&told);
    read(&told.lines().collect::<Vec<_>>(), data.password.is_some(), writes)
}

/// Reads the answers, a line each.
///
/// # Errors
/// That of AUTH or PING, or that an answer is missing.
fn read(lines: &[&str], has_auth: bool, writes: bool) -> io::Result<DataAnswer> {
    let (auth, rest) = lines.split_at(lines.len().min(usize::from(has_auth)));
    if let Some(error) = auth.first().and_then(|line| line.strip_prefix('-')) {
        return Err(io::Error::other(error.to_owned()));
    }
    match rest.first() {
        // What an ACL denies the proxy's user does not concern clients.
        Some(line) if ["+", "-NOAUTH", "-NOPERM"].iter().any(|good| line.starts_with(good)) => {}
        Some(line) => return Err(io::Error::other(line.trim_start_matches('-').to_owned())),
        None => return Err(io::Error::other("closed the connection")),
    }
    let answer = rest.get(1).copied().filter(|_| writes).unwrap_or_default();
    let error = answer.strip_prefix('-');
    let is_forbidden = error.is_some_and(|error| error.starts_with("NOPERM"));
    let writes = match error {
        None if answer.is_empty() => None,
        None => Some(Ok(())),
        Some(error) => WriteRefusal::of(error.as_bytes()).map(|word| Err((word, error.to_owned()))),
    };
    Ok(DataAnswer { writes, is_forbidden })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_read_in_its_place() {
        let writes = |lines: &[&str], has_auth| read(lines, has_auth, true).unwrap().writes;
        assert_eq!(writes(&["+PONG", "$-1"], false), Some(Ok(())));
        assert_eq!(writes(&["+OK", "+PONG", "$-1"], true), Some(Ok(())));
        let full = Some(Err((WriteRefusal::Memory, "OOM not allowed".to_owned())));
        assert_eq!(writes(&["+OK", "+PONG", "-OOM not allowed"], true), full);
        for unclear in ["-NOAUTH x", "-NOPERM x", "-MOVED 1 a:1", "-ERR x"] {
            assert_eq!(writes(&["-NOAUTH x", unclear], false), None, "{unclear}");
        }
        assert_eq!(writes(&["+PONG"], false), None);
        assert!(read(&["+PONG", "-NOPERM x"], false, true).unwrap().is_forbidden);
        assert!(!read(&["+PONG"], false, false).unwrap().is_forbidden);
        for (lines, has_auth, error) in [
            (&["-MISCONF disk", "-MISCONF disk"][..], false, "MISCONF disk"),
            // AUTH succeeds even while the disk is full.
            (&["+OK", "-MISCONF disk"], true, "MISCONF disk"),
            (&["-WRONGPASS x", "-NOAUTH x"], true, "WRONGPASS x"),
            (&["+OK"], true, "closed the connection"),
            (&[], true, "closed the connection"),
            (&[], false, "closed the connection"),
        ] {
            let told = read(lines, has_auth, true).unwrap_err().to_string();
            assert_eq!(told, error, "{lines:?}");
        }
    }
}
