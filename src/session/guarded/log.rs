//! Log lines about guarded writes that were refused, with the client and the command's name. The command's other
//! words are not logged, as they are the client's data.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::warn;

use super::super::{desk::Desk, session_metrics::GuardedWrite};
use crate::{
    log_text::{FewLines, shown},
    resp::words::{Walk, WordStep},
};

/// The bytes of an EXEC.
pub(in crate::session) const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// How often to look for lines that were left out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lines of this process, about all its clients.
static REFUSED: FewLines = FewLines::new();

/// Logs that a write was refused because its lock is not held, or was granted again since. `command`: its bytes; none
/// if they were dropped.
#[cold]
pub(in crate::session) fn tell_refused(
    result: GuardedWrite,
    command: &[u8],
    error: &[u8],
    desk: &Desk,
) {
    if !matches!(result, GuardedWrite::NotHeld | GuardedWrite::Fenced) {
        return;
    }
    let Some(left_out) = REFUSED.next(Instant::now()) else { return };
    let command = first_word(command);
    let (address, name) = (desk.card.address(), desk.card.name());
    warn!(
        command = &*shown(&command).to_ascii_uppercase(),
        address,
        name = &*name,
        left_out,
        "guards: {}",
        String::from_utf8_lossy(error)
    );
}

impl Desk {
    /// Returns the command of this length at the beginning of the unsent bytes.
    pub(super) fn unsent_command(&self, length: usize) -> &[u8] {
        &self.unsent[..length.min(self.unsent.len())]
    }
}

/// Logs how many lines were left out since the last line, for as long as the process runs.
pub(crate) async fn tell_left_out() {
    loop {
        sleep(LOOK_EVERY).await;
        if let Some(left_out) = REFUSED.left_out(Instant::now()) {
            warn!(left_out, "guards: more writes were refused");
        }
    }
}

/// Returns the name of the command in these bytes.
pub(super) fn first_word(bytes: &[u8]) -> Vec<u8> {
    match Walk::default().step(bytes) {
        WordStep::Word(range) => bytes[range].to_vec(),
        _ => Vec::new(),
    }
}
