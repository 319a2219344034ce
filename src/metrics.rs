//! Recording and rendering of metrics.
//!
//! Names and handles live beside the code that counts: each such module explains its own metrics in
//! a function `describe`. Handles are made once, because looking one up costs ten times what
//! counting does. Labels never carry a key, a token or a user.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use metrics::{Counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;

/// Makes an enum of the values of a label, such as why a connection ended. A value's number is its index in `ALL`,
/// and among handles made from `ALL`.
macro_rules! labels {
    ($(#[$about:meta])* $vis:vis enum $name:ident {
        $($(#[$meaning:meta])* $value:ident = $label:literal,)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$meaning])* $value,)+ }

        impl $name {
            /// Every value, at the index of its number.
            $vis const ALL: [$name; [$($label),+].len()] = [$($name::$value),+];

            /// The value's name in the label.
            $vis fn as_str(self) -> &'static str {
                match self { $($name::$value => $label,)+ }
            }
        }
    };
}
pub(crate) use labels;

/// The time between two foldings of samples into buckets. Unfolded, samples pile up (110 MB after ten million).
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Buckets of durations in seconds: a loopback round trip to an hour in which a lock is
/// held.
const SECONDS: [f64; 20] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
];

/// Keeps the metrics and renders them.
#[derive(Clone)]
pub(crate) struct Recorder {
    handle: PrometheusHandle,
    /// Measures the process itself: CPU, memory, file descriptors, threads, start time.
    process: Collector,
}

impl Recorder {
    /// Renders all metrics in Prometheus's text format, except those of parts that are gone. Measures the process
    /// now.
    pub(crate) fn render(&self) -> String {
        self.process.collect();
        without(self.handle.render(), &gone())
    }
}

/// The number of owners of each set of labels.
static OWNERS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// A part of the proxy that has series of its own, such as a lock node. They are rendered while this exists. The
/// recorder itself keeps all series until the process ends, and an alert on a part that is gone would never resolve.
pub(crate) struct SeriesOwner(String);

impl SeriesOwner {
    /// Registers a part with these labels, which come first in each of its series.
    pub(crate) fn new(labels: &[(&str, String)]) -> SeriesOwner {
        let written = |(name, value): &(&str, String)| format!("{name}=\"{value}\"");
        let labels = labels.iter().map(written).collect::<Vec<_>>().join(",");
        *OWNERS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(labels.clone())
            .or_default() += 1;
        SeriesOwner(labels)
    }
}

impl Drop for SeriesOwner {
    fn drop(&mut self) {
        if let Some(owners) = OWNERS.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.0)
        {
            *owners -= 1;
        }
    }
}

/// Returns the labels whose parts are all gone.
fn gone() -> Vec<String> {
    let owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = owners.iter().filter(|(_, owners)| **owners == 0);
    gone.map(|(labels, _)| format!("{{{labels}")).collect()
}

/// Removes the series whose labels begin with one of `gone`.
fn without(text: String, gone: &[String]) -> String {
    if gone.is_empty() {
        return text;
    }
    let is_gone = |line: &str| gone.iter().any(|labels| line.contains(labels));
    text.split_inclusive('\n').filter(|line| !is_gone(line)).collect()
}

/// A counter that can be read back: [`Counter`] itself only counts up.
pub(crate) struct Tallied {
    counter: Counter,
    so_far: AtomicU64,
}

impl Tallied {
    /// Makes a counter that counts with this handle.
    pub(crate) fn new(counter: Counter) -> Tallied {
        Tallied { counter, so_far: AtomicU64::new(0) }
    }

    /// Counts one more.
    pub(crate) fn one_more(&self) {
        self.counter.increment(1);
        self.so_far.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count so far.
    pub(crate) fn so_far(&self) -> u64 {
        self.so_far.load(Ordering::Relaxed)
    }
}

/// Installs the recorder of this process, and bounds the memory of its samples. Further calls return the same
/// recorder.
///
/// # Errors
/// If another recorder was installed before, or no thread can be started.
pub(crate) fn install() -> anyhow::Result<Recorder> {
    // Locked while installing: the second caller must get the first one's recorder.
    static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
    let mut installed = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorder) = &*installed {
        return Ok(recorder.clone());
    }
    let handle = builder()?.install_recorder().context("cannot install the metrics recorder")?;
    keep_up(handle.clone()).context("cannot start the metrics thread")?;
    describe();
    gauge!("lockgate_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let process = Collector::default();
    process.describe();
    Ok(installed.insert(Recorder { handle, process }).clone())
}

fn builder() -> anyhow::Result<PrometheusBuilder> {
    let seconds = Matcher::Suffix("_seconds".into());
    Ok(PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS)?)
}

/// Runs `count` on this thread, and renders the metrics that it changed.
#[cfg(test)]
pub(crate) fn counted(count: impl FnOnce()) -> String {
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    let recorder = builder().unwrap().build_recorder();
    metrics::with_local_recorder(&recorder, count);
    recorder.handle().render()
}

/// Folds samples for as long as the process runs, scraped or not. Uses a thread, not a task: the recorder outlives
/// any one runtime.
fn keep_up(handle: PrometheusHandle) -> io::Result<()> {
    let run = move || {
        loop {
            thread::sleep(UPKEEP_EVERY);
            handle.run_upkeep();
        }
    };
    thread::Builder::new().name("metrics".into()).spawn(run).map(drop)
}

fn describe() {
    describe_gauge!("lockgate_build_info", "Always 1; the label tells the version.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_from_many_threads_gives_one_recorder() {
        let threads: Vec<_> = (0..8).map(|_| thread::spawn(install)).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        assert!(install().unwrap().render().contains("lockgate_build_info{"));
    }

    #[test]
    fn series_of_what_is_gone_are_not_told_until_it_is_back() {
        let labels = [("node", "1".to_owned()), ("address", "gone:1".to_owned())];
        let text = || {
            let line = "up{node=\"1\",address=\"gone:1\"} 0\n";
            without(format!("# TYPE up gauge\n{line}"), &gone())
        };
        let (one, another) = (SeriesOwner::new(&labels), SeriesOwner::new(&labels));
        drop(one);
        assert_eq!(text().lines().count(), 2);
        drop(another);
        assert_eq!(text(), "# TYPE up gauge\n");
        let _back = SeriesOwner::new(&labels);
        assert_eq!(text().lines().count(), 2);
    }

    labels! {
        /// A test's label.
        enum Side {
            /// Not right.
            Left = "left",
            /// Not left.
            Right = "right_hand",
        }
    }

    #[test]
    fn each_value_of_a_label_is_called_so_and_stands_at_its_number() {
        assert_eq!(Side::ALL.map(Side::as_str), ["left", "right_hand"]);
        assert_eq!(Side::ALL.map(|side| side as usize), [0, 1]);
    }
}
