//! Asks another proxy at its admin address, over plain HTTP. The length of the answer is bounded here; the
//! caller bounds the time.

use std::{borrow::Cow, io};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, ToSocketAddrs},
};

/// A whole answer.
pub(crate) struct HttpAnswer {
    /// The status code, of three digits.
    pub(crate) status: u16,
    /// The bytes behind the head.
    pub(crate) body: Vec<u8>,
}

/// Asks `address` for `path`, with `host` as the request's Host. Neither text may have a character that ends a
/// line. Sends nothing secret, and follows no redirection.
///
/// # Errors
/// The operating system's; also if the answer is not HTTP, or has more than `longest` bytes with its head.
pub(crate) async fn get(
    address: impl ToSocketAddrs,
    host: &str,
    path: &str,
    longest: u64,
) -> io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(longest + 1).read_to_end(&mut answer).await?;
    if answer.len() as u64 > longest {
        return Err(io::Error::other(format!("its answer is longer than {longest} bytes")));
    }
    let (status, body) = cut(&answer).ok_or_else(|| io::Error::other("its answer is no HTTP"))?;
    Ok(HttpAnswer { status, body: body.into_owned() })
}

/// Splits an answer into its status and its body. Returns `None` if it is not HTTP.
fn cut(answer: &[u8]) -> Option<(u16, Cow<'_, [u8]>)> {
    let end = memchr::memmem::find(answer, b"\r\n\r\n")?;
    let (head, body) = (str::from_utf8(&answer[..end]).ok()?, &answer[end + 4..]);
    let mut words = head.strip_prefix("HTTP/1.")?.split_ascii_whitespace().skip(1);
    let status = words.next()?;
    let is_status = status.len() == 3 && status.bytes().all(|digit| digit.is_ascii_digit());
    let in_chunks = head.lines().filter_map(|line| line.split_once(':')).any(|(name, value)| {
        name.eq_ignore_ascii_case("transfer-encoding") && !value.trim().is_empty()
    });
    let body = if in_chunks { Cow::Owned(joined(body)?) } else { Cow::Borrowed(body) };
    is_status.then_some((status.parse().ok()?, body))
}

/// Joins a body that came in chunks, as an intermediary may send it. Returns `None` if it is cut off.
fn joined(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = memchr::memmem::find(body, b"\r\n")?;
        let size = str::from_utf8(&body[..end]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        let (chunk, rest) = body[end + 2..].split_at_checked(size)?;
        whole.extend_from_slice(chunk);
        body = rest.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_and_what_is_none_is_told() {
        let whole = |body: &'static [u8]| Cow::Borrowed(body);
        assert_eq!(cut(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}"), Some((200, whole(b"{}"))));
        assert_eq!(cut(b"HTTP/1.0 404\r\n\r\n"), Some((404, whole(b""))));
        let head = b"HTTP/1.1 200 OK\r\ntransfer-Encoding: chunked\r\n\r\n";
        let answer = |body: &[u8]| [&head[..], body].concat();
        let chunks = answer(b"3;a=b\r\n{\"a\r\nB\r\n\": \"\r\n0\r\n\"}\r\n0\r\n\r\n");
        assert_eq!(cut(&chunks), Some((200, whole(b"{\"a\": \"\r\n0\r\n\"}"))));
        for wrong in ["", "5\r\nabc", "3\r\nabcd\r\n0\r\n", "-1\r\n", "ffffffffffffffff\r\n", "x"] {
            assert_eq!(cut(&answer(wrong.as_bytes())), None, "{wrong:?}");
        }
        let wrong: [&[u8]; 5] =
            [b"", b"-ERR wrong\r\n\r\n", b"HTTP/1.1 200", b"HTTP/1.1 \x1b[2\r\n\r\n", b"\r\n\r\n"];
        for wrong in wrong {
            assert_eq!(cut(wrong), None, "{wrong:?}");
        }
    }
}
