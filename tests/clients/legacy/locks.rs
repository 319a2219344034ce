//! Lock libraries for Rust, used by their public interfaces; each is compared with what it does on Redis.
//!
//! ```text
//! legacy_locks PORT [--expect plain|enforce] [--tries N]
//! ```
//!
//! Like `locks.py` for Python, it prints a line for each row: "ok" or what differed. All rows must give the same
//! result where the proxy answers adopted keys from the lock nodes. A row that differs is tried again, as often as
//! `--tries` says, unless it differs by a lock too many.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that fails says why"
)]

use std::{
    env, panic,
    process::exit,
    thread,
    time::{Duration, Instant},
};

/// TTLs of locks, and the longest wait for one that runs out.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(20);

/// One client of a library.
trait Client {
    /// Asks for the lock for `time`. Returns whether it was granted.
    fn take(&mut self, time: Duration) -> bool;
    /// Gives back the last grant; the library does not say what became of it.
    fn release(&mut self);
    /// Makes the lock last for `_time` from now on. `None`: the library cannot.
    fn extend(&mut self, _time: Duration) -> Option<bool> {
        None
    }
    /// Whether this client has the lock. `None`: the library cannot tell.
    fn owned(&self) -> Option<bool> {
        None
    }
}

struct Rslock {
    key: String,
    locks: rslock::LockManager,
    lock: Option<rslock::Lock>,
    runtime: tokio::runtime::Runtime,
}

impl Rslock {
    fn open(url: &str, key: &str) -> Box<dyn Client> {
        let mut locks = rslock::LockManager::new(vec![url]);
        locks.set_retry(1, Duration::from_millis(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        Box::new(Rslock { key: key.to_owned(), locks, lock: None, runtime })
    }
}

impl Client for Rslock {
    fn take(&mut self, time: Duration) -> bool {
        match self.runtime.block_on(self.locks.lock(self.key.as_bytes(), time)) {
            Ok(lock) => {
                self.lock = Some(lock);
                true
            }
            Err(rslock::LockError::Unavailable) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn release(&mut self) {
        let lock = self.lock.as_ref().expect("a lock");
        self.runtime.block_on(self.locks.unlock(lock));
    }

    fn extend(&mut self, time: Duration) -> Option<bool> {
        let lock = self.lock.as_ref().expect("a lock");
        match self.runtime.block_on(self.locks.extend(lock, time)) {
            Ok(lock) => {
                self.lock = Some(lock);
                Some(true)
            }
            Err(rslock::LockError::Unavailable) => Some(false),
            Err(error) => panic!("{error}"),
        }
    }

    fn owned(&self) -> Option<bool> {
        use rslock::LockError::{RedisKeyMismatch, RedisKeyNotFound};
        let lock = self.lock.as_ref().expect("a lock");
        match self.runtime.block_on(self.locks.is_freed(lock)) {
            Ok(freed) => Some(!freed),
            Err(RedisKeyMismatch | RedisKeyNotFound) => Some(false),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A client of the crate `redlock`. Its manager lives as long as the process, because a lock borrows it.
struct Redlock {
    key: String,
    locks: &'static redlock::RedLock,
    lock: Option<redlock::Lock<'static>>,
}

impl Redlock {
    fn open(url: &str, key: &str) -> Box<dyn Client> {
        let mut locks = redlock::RedLock::new(vec![url]);
        locks.set_retry(1, 1);
        Box::new(Redlock { key: key.to_owned(), locks: Box::leak(Box::new(locks)), lock: None })
    }
}

impl Client for Redlock {
    fn take(&mut self, time: Duration) -> bool {
        let lock = self.locks.lock(self.key.as_bytes(), time.as_millis() as usize);
        let lock = lock.unwrap_or_else(|error| panic!("{error}"));
        let is_granted = lock.is_some();
        self.lock = lock.or(self.lock.take());
        is_granted
    }

    fn release(&mut self) {
        self.locks.unlock(self.lock.as_ref().expect("a lock"));
    }
}

/// What differed, and whether a client believes that it has a lock too many.
type Differs = (String, bool);

fn expect(step: &str, got: bool, wanted: bool) -> Result<(), Differs> {
    match got == wanted {
        true => Ok(()),
        false => Err((format!("{step}: {got:?} instead of {wanted:?}"), got)),
    }
}

fn judge([first, second, third]: &mut [Box<dyn Client>; 3]) -> Result<(), Differs> {
    let owned =
        |who: &dyn Client, is: bool| who.owned().map_or(Ok(()), |owned| expect("owned", owned, is));
    expect("take", first.take(LONG), true)?;
    owned(&**first, true)?;
    expect("another's take", second.take(LONG), false)?;
    first.release();
    owned(&**first, false)?;
    expect("take after the release", second.take(LONG), true)?;
    expect("take by who has released", first.take(LONG), false)?;
    second.release();

    let mut since = Instant::now();
    expect("a short take", first.take(SHORT), true)?;
    thread::sleep(SHORT / 2);
    let (began, before) = (Instant::now(), since);
    if let Some(extended) = first.extend(SHORT) {
        expect("extend", extended, true)?;
        since = began;
        thread::sleep((before + SHORT + Duration::from_millis(200)).duration_since(Instant::now()));
        // A busy machine may have used up the time.
        if since.elapsed() < SHORT - Duration::from_millis(100) {
            expect("take past the first TTL", second.take(LONG), false)?;
        }
    }
    while !second.take(LONG) {
        expect("the lock runs out", since.elapsed() < SHORT + PATIENCE, true)?;
        thread::sleep(Duration::from_millis(100));
    }
    let early = since.elapsed() + Duration::from_millis(10) < SHORT;
    expect("the lock ran out before its time", early, false)?;
    owned(&**first, false)?;
    if let Some(extended) = first.extend(SHORT) {
        expect("extend of a lost lock", extended, false)?;
    }
    first.release();
    expect("take after a late release", third.take(LONG), false)?;
    second.release();
    expect("take after the last release", third.take(LONG), true)?;
    third.release();
    Ok(())
}

fn main() {
    let port = env::args().nth(1).expect("a port");
    let tries: usize = env::args().nth(5).map_or(1, |tries| tries.parse().expect("a number"));
    let url = format!("redis://127.0.0.1:{port}/");
    type Open = fn(&str, &str) -> Box<dyn Client>;
    let rows: [(&str, Open); 2] =
        [("rslock 0.10.0", Rslock::open), ("redlock 2.0.0", Redlock::open)];
    let running = rows.map(|(name, open)| {
        let (url, key) = (url.clone(), format!("legacy:{name}:{}", std::process::id()));
        let row = move |left| {
            let key = format!("{key}:{left}");
            let judged = panic::catch_unwind(|| judge(&mut [0, 1, 2].map(|_| open(&url, &key))));
            judged.unwrap_or_else(|_| Err(("it panicked".to_owned(), false)))
        };
        let running = thread::spawn(move || {
            let mut said = row(0);
            for left in 1..tries {
                if !matches!(said, Err((_, false))) {
                    break;
                }
                thread::sleep(Duration::from_secs(1));
                said = row(left);
            }
            said
        });
        (name, running)
    });
    let mut is_good = true;
    for (name, row) in running {
        let said = row.join().expect("a row that ends");
        is_good &= said.is_ok();
        println!("{name}: {}", said.err().map_or("ok".to_owned(), |(differs, _)| differs));
    }
    exit(i32::from(!is_good));
}
