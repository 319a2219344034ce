//! The answer to a client whose connection to the data node could not be made. For a moment
//! every command is answered with the reason, then the connection is closed.
//!
//! Every command, as libraries begin with commands of their own (HELLO, CLIENT SETINFO) and
//! ignore some of their errors. A client that sends nothing is told nothing: unasked words would
//! be taken for the reply to something else.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    net::Stream,
    resp::{
        encode,
        name::Name,
        request::{NextRequest, RequestScanner},
    },
};

/// How long a client is answered; no longer, as it has a place among `maxclients`.
const MOMENT: Duration = Duration::from_secs(1);
/// Bytes read at a time. An answer can be some thirty times as long as its command.
const READ: usize = 4 * 1024;

/// The error for a client: `ERR data node 10.0.0.1:6379: connection refused`.
pub(crate) fn words(data: &str, error: &io::Error) -> String {
    // The system's own texts would end with the error's number.
    let why = match error.kind() {
        kind if error.get_ref().is_none() && error.raw_os_error().is_some() => kind.to_string(),
        _ => error.to_string(),
    };
    format!("ERR data node {data}: {why}")
}

/// Answers whatever `client` sends with `error`.
pub(crate) async fn tell(mut client: Stream, error: &str) {
    let mut line = Vec::new();
    encode::error(&mut line, error);
    // Errors are ignored: the client is closed in any case.
    let _ = timeout(MOMENT, answer(&mut client, &line)).await;
    let _ = timeout(MOMENT, client.shutdown()).await;
}

async fn answer(client: &mut Stream, line: &[u8]) -> io::Result<()> {
    let mut scanner = RequestScanner::default();
    let (mut held, mut out, mut bytes) = (Vec::new(), Vec::new(), vec![0; READ]);
    // Commands that have begun, and commands answered.
    let (mut begun, mut answered) = (0u64, 0u64);
    loop {
        let length = client.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        held.extend_from_slice(&bytes[..length]);
        let mut at = 0;
        let broken = loop {
            match scanner.next(&held, &mut at) {
                // An empty line is no command.
                NextRequest::Command { name: Name::Blank, .. } => {}
                NextRequest::Command { .. } => begun += 1,
                NextRequest::End | NextRequest::Undecided => break false,
                NextRequest::Broken => break true,
            }
        };
        held.drain(..at.min(held.len()));
        let whole = begun - u64::from(!scanner.between_commands()) + u64::from(broken);
        while answered < whole {
            out.extend_from_slice(line);
            answered += 1;
        }
        client.write_all(&out).await?;
        client.flush().await?;
        out.clear();
        if broken {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_have_neither_numbers_of_errors_nor_credentials() {
        let config = crate::config::Config::parse(
            "data: 'redis://user:secret@10.0.0.1:7000'\n",
            "f",
            &|_| None,
        );
        let data = config.unwrap().data.to_string();
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(words(&data, &refused), "ERR data node 10.0.0.1:7000: connection refused");
        let silent = io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
        assert_eq!(words(&data, &silent), "ERR data node 10.0.0.1:7000: connection timed out");
    }
}
