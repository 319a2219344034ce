//! The certificates in use, and warnings about them. If changed files cannot be used, the earlier certificates
//! stay in use: warnings are about these, and say why the files cannot be used.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::config::{CertificateTimes, CertificateTrouble, now_in_seconds};

/// How often [`watch`] looks for something to log.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the same warning is logged.
const TELL_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// All certificates in use in this process.
static ALL: Mutex<Vec<Weak<UsedCertificates>>> = Mutex::new(Vec::new());

/// The certificates in use for one place of the configuration, for as long as this exists.
pub(super) struct UsedCertificates {
    place: String,
    state: Mutex<FilesState>,
}

#[derive(Default)]
struct FilesState {
    times: Vec<CertificateTimes>,
    /// Why the files' present contents cannot be used.
    refused: Option<String>,
}

impl UsedCertificates {
    /// Makes an empty one. `place` is the name in the log.
    pub(super) fn new(place: &str) -> Arc<UsedCertificates> {
        let used = UsedCertificates { place: place.to_owned(), state: Mutex::default() };
        let used = Arc::new(used);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&used));
        used
    }

    /// Notes that the files were read: either with certificates that are in use from now on, or with the reason
    /// why they cannot be used.
    pub(super) fn read(&self, read: Result<Vec<CertificateTimes>, &str>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(times) => *state = FilesState { times, refused: None },
            Err(reason) => state.refused = Some(reason.to_owned()),
        }
    }

    fn troubles(&self, now: i64) -> Vec<CertificateTrouble> {
        let (state, place) =
            (self.state.lock().unwrap_or_else(PoisonError::into_inner), &self.place);
        let refused = state.refused.iter().map(|reason| {
            let before = if state.times.is_empty() { "" } else { "; those before stay in use" };
            let what = format!("{place} (files): they cannot be used: {reason}{before}");
            CertificateTrouble { is_now: true, what }
        });
        refused.chain(state.times.iter().filter_map(|times| times.trouble(place, now))).collect()
    }
}

/// Returns what is wrong now with the certificates in use.
pub(crate) fn troubles() -> Vec<CertificateTrouble> {
    let (now, mut troubles) = (now_in_seconds(), Vec::new());
    for used in ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade)
    {
        for trouble in used.troubles(now) {
            // Each lock node has its own connector, with the same files.
            if !troubles.contains(&trouble) {
                troubles.push(trouble);
            }
        }
    }
    troubles
}

/// Logs what is wrong with the certificates in use: when it begins, and once a day while it lasts.
pub(crate) async fn watch() {
    let mut told = BTreeMap::<String, (bool, Instant)>::new();
    loop {
        let (now, troubles) = (Instant::now(), troubles());
        // The words change from day to day, but the place does not.
        let place = |what: &str| what.split("): ").next().unwrap_or_default().to_owned();
        told.retain(|known, _| troubles.iter().any(|trouble| place(&trouble.what) == *known));
        for CertificateTrouble { is_now, what } in &troubles {
            let known = told.get(&place(what));
            if known.is_none_or(|(was, at)| was != is_now || now - *at >= TELL_EVERY) {
                warn!("certificate: {what}");
                told.insert(place(what), (*is_now, now));
            }
        }
        sleep(LOOK_EVERY).await;
    }
}
