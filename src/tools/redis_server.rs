//! Real `redis-server` children on free loopback ports, for `lockgate dev` and for tests.
//!
//! A child never outlives the process that started it. Dropping a [`RedisServer`] kills it. If this process is
//! killed first, the kernel kills the child (`PR_SET_PDEATHSIG`, set by util-linux's `setpriv`, so that no
//! unsafe code is needed here).

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use bb8_redis::redis::{Client, Connection, RedisResult};
use rustix::process::{Pid, Signal, kill_process};

use super::free_port::at_a_free_port;

/// How long a new server may take to answer PING.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take to answer a question.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A running `redis-server`, with its own temporary directory and no persistence.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    arguments: Vec<String>,
    dir: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server on a free loopback port.
    ///
    /// `arguments` are added to the command line, as in `["--maxmemory", "10mb"]`. Must be called from a thread
    /// that lives as long as the server is wanted: the kernel ends the child with the thread that started it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] with a hint if `redis-server` or `setpriv` is missing;
    /// [`io::ErrorKind::Other`] with the server's log if it does not come up.
    pub fn start(arguments: &[&str]) -> io::Result<RedisServer> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let dir = tempfile::Builder::new().prefix("lockgate-redis-").tempdir()?;
        let (child, port) =
            at_a_free_port(|port| Ok((spawn(port, dir.path(), &arguments)?, port)))?;
        Ok(RedisServer { child, port, arguments, dir })
    }

    /// The server's loopback port; unchanged by [`RedisServer::restart`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// 127.0.0.1 and the port.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// The path of the server's Unix socket.
    pub fn unix_socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Connects the client library to the server.
    ///
    /// # Errors
    /// The client library's.
    pub(super) fn connect(&self) -> RedisResult<Connection> {
        let client = Client::open((self.addr().ip().to_string(), self.port))?;
        let connection = client.get_connection_with_timeout(CONNECT_LIMIT)?;
        connection.set_read_timeout(Some(CONNECT_LIMIT))?;
        Ok(connection)
    }

    /// Sends SIGKILL, and waits until the process is gone.
    ///
    /// # Errors
    /// The operating system's.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Sends SIGSTOP: the process keeps its connections and answers nothing.
    ///
    /// # Errors
    /// The operating system's.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Sends SIGCONT, after [`RedisServer::freeze`].
    ///
    /// # Errors
    /// The operating system's.
    pub fn thaw(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the server if it runs, and starts it again on the same port, empty.
    ///
    /// # Errors
    /// The errors of [`RedisServer::start`].
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        self.child = spawn(self.port, self.dir.path(), &self.arguments)?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The server may be gone already, and other errors cannot be reported here.
        let _ = self.kill();
    }
}

fn spawn(port: u16, dir: &Path, arguments: &[String]) -> io::Result<Child> {
    let log = dir.join("redis.log");
    let mut command = bound_to_this_process();
    let child = command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .arg("--dir")
        .arg(dir)
        .arg("--unixsocket")
        .arg(dir.join("redis.sock"))
        .arg("--logfile")
        .arg(&log)
        .args(arguments);
    until_up(child, &log, || answers(&dir.join("redis.sock")))
}

/// Returns a command for a `redis-server` that ends with this process.
pub(super) fn bound_to_this_process() -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "redis-server"])
        // A Ctrl-C in the terminal then reaches only the parent, which ends its children.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Starts the command, and waits until the server is up.
///
/// # Errors
/// The errors of [`RedisServer::start`].
pub(super) fn until_up(
    command: &mut Command,
    log: &Path,
    is_up: impl Fn() -> bool,
) -> io::Result<Child> {
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing("setpriv (package util-linux)"),
        _ => error,
    })?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            // setpriv ends with 127 if it cannot find the program.
            if status.code() == Some(127) {
                return Err(missing("redis-server (apt-get install redis-server)"));
            }
            let words = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("redis-server ended with {status}: {words}")));
        }
        if is_up() {
            return Ok(child);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("redis-server does not answer PING"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("not found: {what}"))
}

/// Whether the server answers PING at all; `-NOAUTH` counts. Asks at its Unix socket, which the server opens
/// last and no other process has.
fn answers(socket: &Path) -> bool {
    let ping = || -> io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut first = [0; 1];
        stream.read_exact(&mut first)?;
        Ok(matches!(first[0], b'+' | b'-'))
    };
    ping().unwrap_or(false)
}
