//! Whether the data node accepts writes, and in which words it refuses them.
//!
//! A data node that has used up its memory, or lacks the replicas that it wants, still answers PING. So the proxy
//! asks it for a write that changes nothing, and counts the errors that refuse clients' locks and guarded writes: a
//! proxy without credentials has only these to go by.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{metrics::labels, sync::Mutex};

/// How long a refusal told to a client counts, if the proxy cannot ask itself.
const RECENT: Duration = Duration::from_secs(10);

labels! {
    /// The first word of an error with which Redis refuses a write from any client; the label `error` of
    /// `lockgate_data_refusals_total` and `lockgate_data_refuses_writes`.
    pub(crate) enum WriteRefusal {
        /// `maxmemory` is used up.
        Memory = "OOM",
        /// Its disk is full, or cannot be written.
        Disk = "MISCONF",
        /// Fewer replicas than `min-replicas-to-write`.
        Replicas = "NOREPLICAS",
        /// It is a replica.
        ReadOnly = "READONLY",
        /// It is loading its data.
        Loading = "LOADING",
        /// A script is running.
        Busy = "BUSY",
        /// It is a replica that has lost its master.
        MasterDown = "MASTERDOWN",
    }
}

labels! {
    /// What the data node has refused; the label `of` of `lockgate_data_refusals_total`.
    pub(crate) enum RefusedByData {
        /// A LOCK, LOCK.ATTACH or adopted command: the node did not take the lock's fence, so the lock was
        /// given back.
        Lock = "lock",
        /// A write under the locks of its guards.
        Write = "write",
    }
}

impl WriteRefusal {
    /// Reads an error, without `-` in front of it. Returns `None` if the error says nothing of other writes.
    pub(crate) fn of(error: &[u8]) -> Option<WriteRefusal> {
        let word = error.split(|byte| *byte == b' ').next()?;
        WriteRefusal::ALL.into_iter().find(|refusal| refusal.as_str().as_bytes() == word)
    }

    /// Returns what to do about it, in half a sentence.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            WriteRefusal::Memory => "raise its maxmemory, or delete keys that no guard covers",
            WriteRefusal::Disk => "make room on its disk",
            WriteRefusal::Replicas => "bring its replicas back (min-replicas-to-write)",
            WriteRefusal::ReadOnly => "it is a replica: have data name the master",
            WriteRefusal::Loading => "wait until it has read its data",
            WriteRefusal::Busy => "SCRIPT KILL there, or wait until the script has ended",
            WriteRefusal::MasterDown => "bring its master back, or have data name another Redis",
        }
    }
}

/// Gives each metric its help text. Install the recorder first.
pub(super) fn describe() {
    describe_counter!(
        "lockgate_data_refusals_total",
        "Locks given back (of=\"lock\") and guarded writes not made (of=\"write\"), as the data node refuses \
         writes, by the first word of its error."
    );
    describe_gauge!(
        "lockgate_data_refuses_writes",
        "1 while the data node refuses writes, by the first word of its error."
    );
}

/// What is known of the data node's refusals.
pub(crate) struct DataRefusals {
    /// By [`RefusedByData`], then [`WriteRefusal`].
    counters: Vec<Vec<Counter>>,
    /// By [`WriteRefusal`].
    gauges: Vec<Gauge>,
    known: Mutex<KnownRefusals>,
}

#[derive(Default)]
struct KnownRefusals {
    /// The last answer to the proxy's own question, if it was one of these errors, with its words.
    asked: Option<(WriteRefusal, String)>,
    /// The last refusal told to a client.
    told: Option<(WriteRefusal, Instant)>,
    /// The refusal that was last logged.
    logged: Option<WriteRefusal>,
}

impl DataRefusals {
    /// Makes the handles. Install the recorder first: handles made before count nothing.
    pub(crate) fn new() -> DataRefusals {
        let count = |of: RefusedByData| {
            let counter = |error: WriteRefusal| {
                counter!("lockgate_data_refusals_total",
                    "of" => of.as_str(), "error" => error.as_str())
            };
            WriteRefusal::ALL.map(counter).into()
        };
        let gauge =
            |error: WriteRefusal| gauge!("lockgate_data_refuses_writes", "error" => error.as_str());
        DataRefusals {
            counters: RefusedByData::ALL.map(count).into(),
            gauges: WriteRefusal::ALL.map(gauge).into(),
            known: Mutex::default(),
        }
    }

    /// Counts a lock or a write that the data node has refused with this error, if the error refuses any write.
    pub(crate) fn count(&self, of: RefusedByData, error: &[u8]) {
        if let Some(refusal) = WriteRefusal::of(error) {
            self.counters[of as usize][refusal as usize].increment(1);
            self.known.lock().told = Some((refusal, Instant::now()));
        }
    }

    /// Notes an error with which the data node has answered a client's probe, which writes nothing.
    pub(crate) fn told(&self, error: &[u8]) {
        if let Some(refusal) = WriteRefusal::of(error) {
            self.known.lock().told = Some((refusal, Instant::now()));
        }
    }

    /// Notes the data node's answer to the proxy's own question. `None` if it did not tell.
    pub(crate) fn asked(&self, answer: Option<Result<(), (WriteRefusal, String)>>) {
        let mut known = self.known.lock();
        known.asked = match answer {
            // Refusals that clients were told before are over.
            Some(Ok(())) => {
                known.told = None;
                None
            }
            Some(Err(refusal)) => Some(refusal),
            None => None,
        };
    }

    /// Returns the error with which the data node refuses writes now, and its words.
    pub(crate) fn now(&self) -> Option<(WriteRefusal, String)> {
        let known = self.known.lock();
        let told = || {
            let (refusal, at) = known.told?;
            let words = format!("{}, as clients were told", refusal.as_str());
            (at.elapsed() < RECENT).then_some((refusal, words))
        };
        known.asked.clone().or_else(told)
    }

    /// Sets the gauges, and logs when the data node begins to refuse writes, or stops.
    pub(crate) fn tell(&self, data: &str) {
        let now = self.now();
        let refusal = now.as_ref().map(|(refusal, _)| *refusal);
        for (of, gauge) in WriteRefusal::ALL.into_iter().zip(&self.gauges) {
            gauge.set(f64::from(u8::from(Some(of) == refusal)));
        }
        let before = std::mem::replace(&mut self.known.lock().logged, refusal);
        match now {
            Some((refusal, error)) if before != Some(refusal) => warn!(
                %data, %error,
                "the data node refuses writes, and locks of guards: {}", refusal.advice()
            ),
            None if before.is_some() => info!(%data, "the data node takes writes again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_all_writers_get_is_a_refusal() {
        for refusal in WriteRefusal::ALL {
            let error = format!("{} some words", refusal.as_str());
            assert_eq!(WriteRefusal::of(error.as_bytes()), Some(refusal));
            assert!(!refusal.advice().is_empty());
        }
        for error in ["", "ERR syntax error", "NOPERM x", "OOMPH", "oom x", " OOM", "FENCED x"] {
            assert_eq!(WriteRefusal::of(error.as_bytes()), None, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_proxys_own_question_counts_and_without_it_what_clients_were_told_lately() {
        let refusals = DataRefusals::new();
        assert_eq!(refusals.now(), None);
        refusals.count(RefusedByData::Lock, b"NOPERM this user has no permissions");
        assert_eq!(refusals.now(), None, "that is about one user");
        refusals.count(RefusedByData::Write, b"OOM command not allowed");
        assert_eq!(refusals.now().unwrap().0, WriteRefusal::Memory);
        refusals.asked(None);
        assert!(refusals.now().is_some(), "it did not tell");
        tokio::time::advance(RECENT).await;
        assert_eq!(refusals.now(), None);
        let words = (WriteRefusal::ReadOnly, "READONLY You can't write".to_owned());
        refusals.asked(Some(Err(words.clone())));
        assert_eq!(refusals.now(), Some(words));
        refusals.count(RefusedByData::Lock, b"READONLY x");
        refusals.asked(Some(Ok(())));
        assert_eq!(refusals.now(), None);
    }
}
