//! Sends the same bytes to a real Redis directly, and to its twin through the proxy, cut at random places. Compares
//! replies, closing and effects.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use lockgate::{
    config::Config,
    lock::initialise,
    server::{self, Control},
    tools::{free_port::free_port, redis_server::RedisServer},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    pieces::pieces,
    script::{Part, Script},
};

/// The longest time for what should happen at once.
const LIMIT: Duration = Duration::from_secs(20);
/// The most bytes that Redis reads at a time.
const READ: usize = 16 * 1024;
/// A number of bytes that any socket holds.
const LARGE: usize = 32 * 1024;
/// The servers' arguments. Clients may run commands that affect only themselves and depend on nothing else; both
/// servers refuse the rest. DEBUG is for the test.
const ARGUMENTS: [&str; 35] = [
    "--enable-debug-command",
    "yes",
    "--user",
    "admin",
    "on",
    "nopass",
    "~*",
    "&*",
    "+@all",
    "--user",
    "default",
    "on",
    "nopass",
    "~*",
    "&*",
    "+@all",
    "-@dangerous",
    "-@blocking",
    "+info",
    "-time",
    "-wait",
    "-client",
    "+client|reply",
    "+client|caching",
    "+client|tracking",
    "-scan",
    "-sscan",
    "-hscan",
    "-zscan",
    "-randomkey",
    "-xadd",
    "-object",
    "-command",
    "-function",
    "-memory",
];

/// A Redis, and another one behind a proxy in this process.
pub struct Twins {
    direct: Twin,
    behind: Twin,
    proxy: u16,
    scripts: u64,
    _locks: RedisServer,
}

struct Twin {
    /// A connection straight to the Redis.
    admin: TcpStream,
    server: RedisServer,
}

/// One client, and the bytes that it has seen so far.
struct Side {
    stream: TcpStream,
    bytes: Vec<u8>,
    closed: bool,
}

impl Twin {
    fn start() -> Twin {
        let server = RedisServer::start(&ARGUMENTS).unwrap();
        let admin = TcpStream::connect(server.addr()).unwrap();
        admin.set_nodelay(true).unwrap();
        admin.set_read_timeout(Some(LIMIT)).unwrap();
        let mut twin = Twin { admin, server };
        assert_eq!(twin.run(&["AUTH", "admin", "x"]), "+OK\r\n");
        twin
    }

    /// Runs a command that is answered with one line.
    fn run(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut command = Vec::new();
        lockgate::resp::encode::command(&mut command, &words);
        self.admin.write_all(&command).unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut some = [0; 256];
            let length = match self.admin.read(&mut some) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.expect("a twin answers"),
            };
            assert!(length > 0, "a twin has ended");
            line.extend_from_slice(&some[..length]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Waits until the server has read and answered `bytes` bytes that are at its socket: in each round it serves
    /// every client that has sent something, and reads once.
    fn settle(&mut self, bytes: usize) {
        for _ in 0..3 + bytes / READ {
            self.run(&["PING"]);
        }
    }
}

impl Side {
    fn connect(port: u16) -> Side {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Side { stream, bytes: Vec::new(), closed: false }
    }

    fn send(&mut self, bytes: &[u8], rng: &mut StdRng) {
        for piece in pieces(bytes, rng) {
            // Redis may have closed already; only its replies count.
            let _ = self.stream.write_all(piece);
            match rng.random_range(0..12) {
                0 => thread::yield_now(),
                1 => thread::sleep(Duration::from_micros(100)),
                _ => {}
            }
        }
    }

    /// Reads once. Returns false if nothing has arrived.
    fn read(&mut self) -> bool {
        let mut some = [0; 65_536];
        match self.stream.read(&mut some) {
            Ok(0) => self.closed = true,
            Ok(length) => self.bytes.extend_from_slice(&some[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.closed = true,
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.closed = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            // The fuzzer's timer interrupts.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
        true
    }

    /// Reads all that is there. Returns its length.
    fn drain(&mut self) -> usize {
        let before = self.bytes.len();
        self.stream.set_nonblocking(true).unwrap();
        while !self.closed && self.read() {}
        self.stream.set_nonblocking(false).unwrap();
        self.bytes.len() - before
    }

    /// Sends FIN, and reads until the other side closes.
    fn hang_up(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        while !self.closed && self.read() {}
    }
}

impl Twins {
    /// Starts the servers, and the proxy in a thread of its own.
    pub fn start() -> Twins {
        let (direct, behind) = (Twin::start(), Twin::start());
        let locks = RedisServer::start(&[]).unwrap();
        let proxy = free_port().unwrap();
        let text = format!(
            "listen: 127.0.0.1:{proxy}\nadmin: off\nio_threads: 1\ndata: {}\nlocks:\n  \
             node_timeout: 2s\n  nodes: {}\n",
            behind.server.url(),
            locks.url(),
        );
        let config = Config::parse(&text, "twins", &|_| None).unwrap();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(initialise(&config.locks)).unwrap();
            runtime.block_on(server::run(config, Control::default())).unwrap();
        });
        let mut twins = Twins { direct, behind, proxy, scripts: 0, _locks: locks };
        twins.wait_for_a_lock();
        twins
    }

    fn wait_for_a_lock(&mut self) {
        for _ in 0..2000 {
            thread::sleep(Duration::from_millis(5));
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.proxy)) else { continue };
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(b"LOCK ready PX 100\r\n").unwrap();
            let mut answer = [0; 1];
            if stream.read(&mut answer).is_ok_and(|length| length == 1) && answer[0] == b'*' {
                return;
            }
        }
        panic!("the proxy does not answer");
    }

    /// Plays a script; see [`Script::read`].
    pub fn check(&mut self, input: &[u8]) {
        self.scripts += 1;
        let Some(script) = Script::read(input, self.scripts) else { return };
        let mut direct = Side::connect(self.direct.server.port());
        let mut proxied = Side::connect(self.proxy);
        for (number, part) in script.parts.iter().enumerate() {
            match part {
                Part::Other(words) => {
                    for twin in [&mut self.direct, &mut self.behind] {
                        twin.run(words);
                    }
                }
                Part::Send(bytes, others) => {
                    direct.send(bytes, &mut StdRng::seed_from_u64(script.seed));
                    self.direct.settle(bytes.len());
                    proxied.send(others, &mut StdRng::seed_from_u64(script.seed + 1));
                }
            }
            // Redis writes replies that no socket holds only as they are read.
            while direct.drain() > LARGE {
                self.direct.settle(0);
            }
            let expected = normalised(&direct.bytes);
            loop {
                let seen = normalised(&proxied.bytes);
                let enough = seen.len() >= expected.len() && proxied.closed == direct.closed;
                if enough || proxied.closed || seen.len() > expected.len() {
                    break;
                }
                assert!(proxied.read(), "{}", differ(&script, number, &direct, &proxied));
            }
            assert!(is_same(&direct, &proxied), "{}", differ(&script, number, &direct, &proxied));
            if direct.closed {
                break;
            }
        }
        let last = script.parts.len();
        direct.hang_up();
        proxied.hang_up();
        assert!(is_same(&direct, &proxied), "{}", differ(&script, last, &direct, &proxied));
        // The proxy closes after Redis has closed, so Redis is done.
        let digests =
            [&mut self.direct, &mut self.behind].map(|twin| twin.run(&["DEBUG", "DIGEST"]));
        assert_eq!(
            digests[0],
            digests[1],
            "other effects: {}",
            differ(&script, last, &direct, &proxied)
        );
        if !digests[0].starts_with("+00000000") {
            for twin in [&mut self.direct, &mut self.behind] {
                twin.run(&["FLUSHALL"]);
            }
        }
    }
}

fn is_same(direct: &Side, proxied: &Side) -> bool {
    direct.closed == proxied.closed && normalised(&direct.bytes) == normalised(&proxied.bytes)
}

fn differ(script: &Script, part: usize, direct: &Side, proxied: &Side) -> String {
    let shown = |bytes: &[u8]| {
        let text = bytes.escape_ascii().to_string();
        if text.len() > 3000 {
            format!("{}… ({} bytes)", &text[..3000], bytes.len())
        } else {
            text
        }
    };
    let parts = script.parts.iter().map(|part| match part {
        Part::Send(direct, proxied) if direct == proxied => format!("  send {}\n", shown(direct)),
        Part::Send(direct, proxied) => {
            format!("  send {}\n  that is {}\n", shown(direct), shown(proxied))
        }
        Part::Other(words) => format!("  another client: {words:?}\n"),
    });
    format!(
        "different at part {part} of\n{}  Redis: closed {} {}\n  proxy: closed {} {}",
        parts.collect::<String>(),
        direct.closed,
        shown(&normalised(&direct.bytes)),
        proxied.closed,
        shown(&normalised(&proxied.bytes)),
    )
}

/// Blanks what differs between any two connections and grants: HELLO's id, fences and validities.
fn normalised(bytes: &[u8]) -> Vec<u8> {
    const ID: &[u8] = b"$2\r\nid\r\n";
    const GRANT: &[u8] = b"*3\r\n$4\r\ntokn\r\n";
    let (mut out, mut blank) = (Vec::with_capacity(bytes.len()), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if blank > 0 && line.starts_with(b":") && line.ends_with(b"\n") {
            out.extend_from_slice(b":N\r\n");
            blank -= 1;
            continue;
        }
        out.extend_from_slice(line);
        blank = if out.ends_with(ID) {
            1
        } else if out.ends_with(GRANT) {
            2
        } else {
            0
        };
    }
    out
}
