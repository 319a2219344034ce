//! Settings that follow their files.
//!
//! The files are looked at every second. Once they have changed, and then stayed the same for one look, they
//! are read again. If they cannot be used, that is logged and counted, and the old settings stay. Connections
//! keep the settings they were made with.

use std::{
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{task::spawn_blocking, time::sleep};
use tracing::{error, info};

use super::tls_metrics::TlsMetrics;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The last usable settings, or why there have been none.
pub(super) struct Reloading<T> {
    current: ArcSwap<Result<Arc<T>, String>>,
}

/// Distinguishes one version of a file from another; `None` if there is no file.
type Version = Option<[i128; 5]>;

fn versions(files: &[PathBuf]) -> Vec<Version> {
    let version = |file: &PathBuf| {
        // The metadata of a link's target. Unlike the modification time, the change time cannot be set back.
        let of = std::fs::metadata(file).ok()?;
        Some([
            of.dev().into(),
            of.ino().into(),
            of.size().into(),
            of.ctime().into(),
            of.ctime_nsec().into(),
        ])
    };
    files.iter().map(version).collect()
}

impl<T: Send + Sync + 'static> Reloading<T> {
    /// Loads once, and again whenever one of `files` changes. `name` is for the log.
    pub(super) fn start(
        name: String,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<Arc<T>, String> + Send + Sync + 'static,
        metrics: TlsMetrics,
    ) -> Arc<Reloading<T>> {
        // Taken before the files are read, so that a change in between is noticed.
        let loaded = versions(&files);
        let this = Arc::new(Reloading { current: ArcSwap::from_pointee(load()) });
        if !files.is_empty() {
            tokio::spawn(follow(Arc::downgrade(&this), name, files, load, loaded, metrics));
        }
        this
    }

    /// The settings for a new connection.
    pub(super) fn now(&self) -> Result<Arc<T>, String> {
        self.current.load().as_ref().clone()
    }
}

async fn follow<T: Send + Sync + 'static>(
    settings: Weak<Reloading<T>>,
    name: String,
    files: Vec<PathBuf>,
    load: impl Fn() -> Result<Arc<T>, String> + Send + Sync + 'static,
    mut loaded: Vec<Version>,
    metrics: TlsMetrics,
) {
    let (files, load) = (Arc::new(files), Arc::new(load));
    let mut seen = loaded.clone();
    loop {
        sleep(LOOK_EVERY).await;
        if settings.strong_count() == 0 {
            return;
        }
        // The files may be on a network, so looking can block.
        let looking = files.clone();
        let Ok(now) = spawn_blocking(move || versions(&looking)).await else { return };
        // A certificate and its key are not replaced at one instant.
        let rest = now == seen;
        seen = now;
        if !rest || seen == loaded {
            continue;
        }
        loaded = seen.clone();
        let loading = load.clone();
        let Ok(read) = spawn_blocking(move || loading()).await else { return };
        let Some(settings) = settings.upgrade() else { return };
        match read {
            Ok(new) => {
                settings.current.store(Arc::new(Ok(new)));
                metrics.reloads_ok.increment(1);
                info!(%name, "certificates reloaded");
            }
            Err(error) => {
                metrics.reloads_failed.increment(1);
                error!(%name, %error, "certificates cannot be reloaded; those before stay in use");
            }
        }
    }
}
