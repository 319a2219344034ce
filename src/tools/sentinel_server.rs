//! Real Sentinels on free loopback ports, for `lockgate dev --sentinel` and for tests.
//!
//! A Sentinel ends with the process that started it, as a
//! [`RedisServer`](super::redis_server::RedisServer) does.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::Child,
};

use super::{
    free_port::at_a_free_port,
    redis_server::{bound_to_this_process, until_up},
};

/// A running `redis-server --sentinel`, with its own temporary directory.
#[derive(Debug)]
pub struct SentinelServer {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl SentinelServer {
    /// Starts a Sentinel with these lines in its file. Must be called from a thread that lives as long as the
    /// Sentinel is wanted.
    ///
    /// # Errors
    /// The errors of [`RedisServer::start`](super::redis_server::RedisServer::start).
    pub fn start(lines: &str) -> io::Result<SentinelServer> {
        at_a_free_port(|port| spawn(port, lines))
    }

    /// The Sentinel's loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// 127.0.0.1 and the port.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The Sentinel's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the Sentinel has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGKILL, and waits until the process is gone.
    ///
    /// # Errors
    /// The operating system's.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for SentinelServer {
    fn drop(&mut self) {
        // The Sentinel may be gone already, and other errors cannot be reported here.
        let _ = self.kill();
    }
}

fn spawn(port: u16, lines: &str) -> io::Result<SentinelServer> {
    let dir = tempfile::Builder::new().prefix("lockgate-sentinel-").tempdir()?;
    // A Sentinel writes what it learns into its file.
    let (file, log) = (dir.path().join("sentinel.conf"), dir.path().join("log"));
    let (path, log_path) = (dir.path().display(), log.display());
    let text = format!("port {port}\nbind 127.0.0.1\ndir {path}\nlogfile {log_path}\n{lines}\n");
    std::fs::write(&file, text)?;
    let mut command = bound_to_this_process();
    let child = until_up(command.arg(&file).arg("--sentinel"), &log, || {
        // Its own log counts, as another process could answer at the port.
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("Sentinel ID is"))
            && TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
    })?;
    Ok(SentinelServer { child, port, dir })
}
