//! Lines and sockets between two processes of one user on one machine.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
    process::geteuid,
};
use tokio::{io::Interest, net::UnixStream};

/// Most listening sockets that are passed on: far more than any proxy has.
pub(super) const MAX_SOCKETS: usize = 128;
/// The longest line: a few words and an address.
const MAX_LINE: usize = 256;

/// One side of a conversation.
pub(super) struct Wire {
    stream: UnixStream,
    unread: Vec<u8>,
    /// Received sockets that are not taken yet. Each comes with a line of its own.
    sockets: VecDeque<OwnedFd>,
}

impl Wire {
    /// Begins a conversation with another process of the same user, or of root.
    ///
    /// # Errors
    /// If it is another user's.
    pub(super) fn new(stream: UnixStream) -> io::Result<Wire> {
        let peer = stream.peer_cred()?.uid();
        if peer != 0 && peer != geteuid().as_raw() {
            let what = format!("the other process is user {peer}'s, which is not this one's");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(Wire { stream, unread: Vec::new(), sockets: VecDeque::new() })
    }

    /// Returns the other process's id, if the system knows it.
    pub(super) fn peer(&self) -> Option<i32> {
        self.stream.peer_cred().ok()?.pid()
    }

    /// Sends a line, and a socket with it if there is one.
    pub(super) async fn send(&self, line: &str, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let line = format!("{line}\n");
        let (mut rest, mut socket) = (line.as_bytes(), socket);
        while !rest.is_empty() {
            let once = || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if let Some(socket) = &socket {
                    control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(socket)));
                }
                let sent =
                    sendmsg(&self.stream, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL);
                sent.map_err(io::Error::from)
            };
            let sent = self.stream.async_io(Interest::WRITABLE, once).await?;
            rest = &rest[sent..];
            // The socket goes with the first byte.
            socket = None;
        }
        Ok(())
    }

    /// Reads the next line. Returns `None` once the other side has closed.
    ///
    /// # Errors
    /// If the line is no text, too long, or comes with too many sockets.
    pub(super) async fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let line = String::from_utf8(line[..end].to_vec());
                return line.map(Some).map_err(|_| bad("what came is not text"));
            }
            if self.unread.len() > MAX_LINE {
                return Err(bad("a line that came is too long"));
            }
            if self.receive().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Takes the oldest received socket that is not taken yet.
    pub(super) fn socket(&mut self) -> Option<OwnedFd> {
        self.sockets.pop_front()
    }

    /// Reads once. The kernel never joins bytes sent with one socket and bytes sent with
    /// another.
    async fn receive(&mut self) -> io::Result<usize> {
        let (stream, mut bytes) = (&self.stream, [0; MAX_LINE]);
        let mut came = None;
        let once = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                stream,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            let received = received.map_err(|error: Errno| io::Error::from(error))?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(mut sockets) = message {
                    came = sockets.next();
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(bad("several sockets came at once"));
            }
            Ok(received.bytes)
        };
        let length = stream.async_io(Interest::READABLE, once).await?;
        self.unread.extend_from_slice(&bytes[..length]);
        self.sockets.extend(came);
        if self.sockets.len() > MAX_SOCKETS {
            return Err(bad("too many sockets came"));
        }
        Ok(length)
    }
}

/// Makes the error about a process that does not keep to the protocol.
pub(super) fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
