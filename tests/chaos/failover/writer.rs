//! A client process that writes to the data node through one proxy, and notes which Redis has
//! acknowledged each write.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{
    history::{Time, now},
    support::encode,
};

/// The environment variable that contains a writer's instructions.
pub(super) const VARIABLE: &str = "LOCKGATE_CHAOS_WRITER";
/// The longest time for an answer: longer than a proxy waits for a data node.
const PATIENCE: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(30);

/// The instructions of a writer.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    pub(super) number: usize,
    pub(super) proxy: SocketAddr,
    pub(super) notes: PathBuf,
    /// The writer ends when this file is empty.
    pub(super) control: PathBuf,
}

/// A write that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Acknowledged {
    pub(super) key: String,
    pub(super) sent: Time,
    pub(super) told: Time,
    /// The directory of the Redis that the connection leads to.
    pub(super) directory: PathBuf,
}

impl Orders {
    pub(super) fn encode(&self) -> String {
        let Orders { number, proxy, notes, control } = self;
        format!("{number};{proxy};{};{}", notes.display(), control.display())
    }

    fn decode(text: &str) -> Orders {
        let words: Vec<&str> = text.split(';').collect();
        let [number, proxy, notes, control] = words[..] else { panic!("no orders: {text}") };
        Orders {
            number: number.parse().expect("number"),
            proxy: proxy.parse().expect("address"),
            notes: notes.into(),
            control: control.into(),
        }
    }
}

/// Runs the writer to its end.
pub(super) fn run(orders: &str) {
    let orders = Orders::decode(orders);
    let mut notes = File::create(&orders.notes).expect("a file for notes");
    let goes_on = || fs::read(&orders.control).is_ok_and(|word| !word.is_empty());
    let mut written = 0;
    while goes_on() {
        // A connection leads to one Redis for as long as it lives.
        let _ = over_one_connection(&orders, &mut notes, &mut written, goes_on);
        thread::sleep(PAUSE);
    }
}

fn over_one_connection(
    orders: &Orders,
    notes: &mut File,
    written: &mut u64,
    goes_on: impl Fn() -> bool,
) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&orders.proxy, CONNECT_LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut replies = BufReader::new(stream.try_clone()?);
    let mut line = || -> io::Result<String> {
        let mut line = String::new();
        match replies.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ if line.starts_with('-') => Err(io::Error::other(line)),
            _ => Ok(line.trim_end().to_owned()),
        }
    };
    stream.write_all(&encode(&["CONFIG", "GET", "dir"]))?;
    // An array of two; the name's length, the name, the directory's length, the directory.
    let mut directory = String::new();
    for _ in 0..5 {
        directory = line()?;
    }
    while goes_on() {
        *written += 1;
        let key = format!("written:{}:{written}", orders.number);
        let sent = now();
        stream.write_all(&encode(&["SET", &key, "1"]))?;
        if line()? == "+OK" {
            notes.write_all(format!("{sent} {} {key} {directory}\n", now()).as_bytes())?;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Reads what a writer has noted.
pub(super) fn read(notes: &Path) -> Vec<Acknowledged> {
    let text = fs::read_to_string(notes).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let note = |line: &str| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [sent, told, key, directory] = words[..] else { panic!("no note: {line}") };
        Acknowledged {
            key: key.to_owned(),
            sent: sent.parse().expect("a time"),
            told: told.parse().expect("a time"),
            directory: directory.into(),
        }
    };
    lines.map(note).collect()
}
