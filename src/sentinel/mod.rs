//! Which Redis a deployment's Sentinels name as the master.
//!
//! The proxy asks each Sentinel of the configuration every [`POLL`], and at once when that Sentinel publishes a new
//! master (`+switch-master`). A master is named once a majority of *all* Sentinels names it, not only of those that
//! answer. It stays named until a majority names another; [`NamedMaster::asked`] says how fresh that is. The caller
//! must ask whether the master agrees (ROLE).
//!
//! - `sentinel_link`: one connection to one Sentinel.
//! - `majority`: which master a majority names.
//! - `sentinel_trouble`: what can be wrong with a Sentinel.

mod majority;
mod sentinel_link;
mod sentinel_trouble;

use std::{fmt::Write as _, sync::Arc, time::Duration};

use metrics::{Gauge, describe_gauge, gauge};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::sleep,
};
use tracing::{info, warn};

use self::{
    majority::{LastAnswer, majority_of},
    sentinel_link::SentinelLink,
};
pub(crate) use self::{
    majority::{MasterAddress, NamedMaster},
    sentinel_trouble::{SentinelFault, SentinelTrouble},
};
use crate::{
    clock::Instant,
    config::{RedisUrl, SentinelMaster},
    net::Connector,
    sync::Mutex,
};

/// The time between two questions to a Sentinel that publishes nothing by itself.
const POLL: Duration = Duration::from_secs(2);
/// The least time between two questions to one Sentinel.
const GAP: Duration = Duration::from_millis(50);
/// The pause after a failure, unless the answer is wanted sooner.
const PAUSE: Duration = Duration::from_secs(1);

/// Gives each metric its help text. Install the recorder first.
pub(crate) fn describe() {
    describe_gauge!(
        "lockgate_sentinel_fault",
        "1 for each thing that is wrong with a Sentinel of a master, by name."
    );
    describe_gauge!("lockgate_sentinels", "Sentinels there are, by the name of their master.");
    describe_gauge!(
        "lockgate_sentinels_agreeing",
        "Sentinels that name the master which a majority names, at their last answer."
    );
}

/// The Sentinels of one master, asked again and again until this is dropped.
pub(crate) struct Sentinels {
    known: Arc<KnownAnswers>,
    /// One for each Sentinel.
    _tasks: JoinSet<()>,
}

/// A Sentinel's own id, if it tells it.
type SentinelId = Option<Vec<u8>>;

/// What the Sentinels have said.
struct KnownAnswers {
    urls: Vec<RedisUrl>,
    /// Whether the Sentinels are also asked which election made the master.
    elected: bool,
    answers: Mutex<Vec<LastAnswer>>,
    /// The id of each Sentinel at its last answer.
    ids: Mutex<Vec<SentinelId>>,
    /// The last master that a majority has named.
    named: watch::Sender<Option<NamedMaster>>,
    /// Notified when an answer is wanted now.
    wanted: Notify,
    /// By Sentinel, then [`SentinelFault`].
    faults: Vec<Vec<Gauge>>,
    agreeing: Gauge,
}

impl Sentinels {
    /// Starts asking, in the current runtime, over connections by `connector`. `elected`: the Sentinels are also
    /// asked which election made the master, for which their user needs `+sentinel|master`.
    pub(crate) fn start(
        master: &SentinelMaster,
        connector: &Connector,
        elected: bool,
    ) -> Sentinels {
        let urls = master.sentinels.clone();
        let fault = |url: &RedisUrl, fault: SentinelFault| {
            gauge!("lockgate_sentinel_fault", "master" => master.master.clone(),
                "sentinel" => url.to_string(), "fault" => fault.as_str())
        };
        let known = Arc::new(KnownAnswers {
            answers: Mutex::new(vec![None; urls.len()]),
            ids: Mutex::new(vec![None; urls.len()]),
            named: watch::Sender::new(None),
            wanted: Notify::new(),
            faults: urls
                .iter()
                .map(|url| SentinelFault::ALL.map(|of| fault(url, of)).into())
                .collect(),
            agreeing: gauge!("lockgate_sentinels_agreeing", "master" => master.master.clone()),
            elected,
            urls,
        });
        gauge!("lockgate_sentinels", "master" => master.master.clone())
            .set(as_gauge(known.urls.len()));
        let mut tasks = JoinSet::new();
        for index in 0..known.urls.len() {
            tasks.spawn(keep_asking(
                known.clone(),
                index,
                master.master.clone(),
                connector.clone(),
            ));
        }
        Sentinels { known, _tasks: tasks }
    }

    /// Returns the last master that a majority has named; `None` if there was none yet.
    pub(crate) fn named(&self) -> Option<NamedMaster> {
        self.known.named.borrow().clone()
    }

    /// Returns a receiver that follows [`Sentinels::named`]. It changes when the address changes, and not when the
    /// same address is named again.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<NamedMaster>> {
        self.known.named.subscribe()
    }

    /// Asks each Sentinel now, instead of at the time of its next question. A Sentinel that is being asked, or whose
    /// last answer or failure is less than [`GAP`] old, is left out.
    pub(crate) fn ask_now(&self) {
        self.known.wanted.notify_waiters();
    }

    /// Returns why no majority names a master now; `None` if one does.
    pub(crate) fn problem(&self) -> Option<String> {
        no_majority(&self.known.urls, &self.known.answers.lock())
    }

    /// Returns what is wrong with each Sentinel that has a fault.
    pub(crate) fn troubles(&self) -> Vec<(RedisUrl, SentinelTrouble)> {
        troubles(&self.known.urls, &self.known.answers.lock())
    }
}

/// Asks each Sentinel once. Returns the master that a majority names, or why there is none, and what is wrong with
/// each Sentinel.
pub(crate) async fn ask_once(
    master: &SentinelMaster,
    connector: &Connector,
    elected: bool,
) -> (Result<NamedMaster, String>, Vec<(RedisUrl, SentinelTrouble)>) {
    let asking: Vec<_> = master
        .sentinels
        .iter()
        .map(|url| (url.clone(), connector.clone(), master.master.clone()))
        .map(|(url, connector, name)| {
            tokio::spawn(async move {
                let mut link = match SentinelLink::connect(&url, &connector).await {
                    Ok(link) => link,
                    Err(trouble) => return (None, Err(trouble)),
                };
                match link.id().await {
                    Ok(id) => (id, link.master(&name, elected).await),
                    Err(trouble) => (None, Err(trouble)),
                }
            })
        })
        .collect();
    let (mut ids, mut answers) = (Vec::new(), Vec::<LastAnswer>::new());
    for asked in asking {
        let (id, answer) = asked.await.map_or((None, None), |(id, answer)| (id, Some(answer)));
        ids.push(id);
        answers.push(answer);
    }
    let urls = &master.sentinels;
    silence_twins(urls, &ids, &mut answers);
    let named = majority::named(&answers);
    let named = named.ok_or_else(|| no_majority(urls, &answers).unwrap_or_default());
    (named, troubles(urls, &answers))
}

/// Counts a Sentinel that is listed twice only once: the first entry speaks for both, whichever answers first.
fn silence_twins(urls: &[RedisUrl], ids: &[SentinelId], answers: &mut [LastAnswer]) {
    for (index, answer) in answers.iter_mut().enumerate() {
        let Some(id) = &ids[index] else { continue };
        let first = ids[..index].iter().position(|other| other.as_ref() == Some(id));
        if let (Some(first), Some(Ok(_))) = (first, &answer) {
            *answer = Some(Err(SentinelTrouble::twice(&urls[first])));
        }
    }
}

fn troubles(urls: &[RedisUrl], answers: &[LastAnswer]) -> Vec<(RedisUrl, SentinelTrouble)> {
    let named = majority::named(answers);
    let trouble = |answer: &LastAnswer| match (answer, &named) {
        (Some(Err(trouble)), _) => Some(trouble.clone()),
        (Some(Ok((address, _))), Some(named)) if *address != named.address => {
            let what = format!("it names {address}, and a majority {}", named.address);
            Some(SentinelTrouble::new(SentinelFault::Disagrees, what))
        }
        _ => None,
    };
    urls.iter()
        .zip(answers)
        .filter_map(|(url, answer)| Some((url.clone(), trouble(answer)?)))
        .collect()
}

/// Returns a text that says why no majority names one master, with the answer of each Sentinel.
fn no_majority(urls: &[RedisUrl], answers: &[LastAnswer]) -> Option<String> {
    if majority::named(answers).is_some() {
        return None;
    }
    let mut text =
        format!("{} of {} Sentinels must name one master", majority_of(urls.len()), urls.len());
    for (url, answer) in urls.iter().zip(answers) {
        // Writing to a String cannot fail.
        let _ = match answer {
            None => write!(text, "; {url}: no answer yet"),
            Some(Ok((address, _))) => write!(text, "; {url}: it names {address}"),
            Some(Err(trouble)) => write!(text, "; {url}: {}", trouble.what),
        };
    }
    Some(text)
}

impl KnownAnswers {
    /// Takes in an answer of one Sentinel. Logs each fault that begins or ends, and a new master that a majority
    /// names.
    fn take(&self, index: usize, answer: Result<(MasterAddress, Instant), SentinelTrouble>) {
        let mut answers = self.answers.lock();
        let before = troubles(&self.urls, &answers);
        answers[index] = Some(answer);
        silence_twins(&self.urls, &self.ids.lock(), &mut answers);
        let now = troubles(&self.urls, &answers);
        for (url, faults) in self.urls.iter().zip(&self.faults) {
            let of = |all: &[(RedisUrl, SentinelTrouble)]| {
                all.iter().find(|(other, _)| other == url).map(|(_, trouble)| trouble.clone())
            };
            match (of(&before), of(&now)) {
                (before, now) if before == now => continue,
                (_, None) => info!(sentinel = %url, "the Sentinel answers as it should"),
                (_, Some(trouble)) => warn!(
                    sentinel = %url, reason = trouble.what, "{}", trouble.fault.advice()
                ),
            }
            let fault = of(&now).map(|trouble| trouble.fault);
            for (gauge, one) in faults.iter().zip(SentinelFault::ALL) {
                gauge.set(if fault == Some(one) { 1.0 } else { 0.0 });
            }
        }
        let named = majority::named(&answers);
        let agree = |address: &MasterAddress| {
            answers.iter().flatten().flatten().filter(|(other, _)| other == address).count()
        };
        self.agreeing.set(named.as_ref().map_or(0.0, |named| as_gauge(agree(&named.address))));
        let Some(named) = named else { return };
        self.named.send_if_modified(|last| match last {
            Some(last) if last.address == named.address => {
                last.asked = last.asked.max(named.asked);
                false
            }
            last => {
                info!(master = %named.address, "a majority of the Sentinels names this master");
                *last = Some(named);
                true
            }
        });
    }
}

/// Asks one Sentinel until the task is aborted, with a new connection after each failure.
async fn keep_asking(known: Arc<KnownAnswers>, index: usize, name: String, connector: Connector) {
    loop {
        let Err(trouble) = follow(&known, index, &name, &connector).await;
        known.take(index, Err(trouble));
        sleep(GAP).await;
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = known.wanted.notified() => {}
        }
    }
}

/// Asks one Sentinel over one connection, and receives its messages over another, until one of them ends.
async fn follow(
    known: &KnownAnswers,
    index: usize,
    name: &str,
    connector: &Connector,
) -> Result<std::convert::Infallible, SentinelTrouble> {
    let url = &known.urls[index];
    let mut questions = SentinelLink::connect(url, connector).await?;
    let id = questions.id().await?;
    known.ids.lock()[index] = id;
    known.take(index, Ok(questions.master(name, known.elected).await?));
    let mut news = SentinelLink::connect(url, connector).await?;
    // A Sentinel whose user may not subscribe is only asked.
    let tells = news.subscribe().await?;
    loop {
        // The master may have changed before the subscription.
        known.take(index, Ok(questions.master(name, known.elected).await?));
        sleep(GAP).await;
        tokio::select! {
            () = sleep(POLL) => {}
            () = known.wanted.notified() => {}
            told = news.news(), if tells => told?,
        }
    }
}

/// Converts a count; below 2^32 exactly.
fn as_gauge(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod sentinel_tests;
