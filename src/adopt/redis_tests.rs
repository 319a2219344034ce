//! A real Redis, for tests of what must be as in Redis.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::resp::encode;

/// A Redis of its own, and a connection to it.
pub(super) struct RealRedis {
    child: Child,
    stream: BufReader<UnixStream>,
    _dir: tempfile::TempDir,
}

impl RealRedis {
    pub(super) fn start() -> RealRedis {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("redis");
        // The kernel ends it with this thread, should it not be dropped.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "redis-server", "--port", "0", "--save", "", "--dir"])
            .arg(dir.path())
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let connected = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(20));
            UnixStream::connect(&socket).ok()
        });
        RealRedis { child, stream: BufReader::new(connected.unwrap()), _dir: dir }
    }

    /// Sends commands and returns the replies as text; arrays are not read.
    pub(super) fn all(&mut self, commands: &[Vec<&[u8]>]) -> Vec<String> {
        let mut bytes = Vec::new();
        for words in commands {
            encode::command(&mut bytes, words);
        }
        self.stream.get_mut().write_all(&bytes).unwrap();
        commands.iter().map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let line = line.trim_end().to_owned();
        match line.strip_prefix('$').map(|length| length.parse::<usize>()) {
            Some(Ok(length)) => {
                let mut value = vec![0; length + 2];
                self.stream.read_exact(&mut value).unwrap();
                String::from_utf8(value[..length].to_vec()).unwrap()
            }
            _ => line,
        }
    }
}

impl Drop for RealRedis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
