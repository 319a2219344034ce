//! Lines in the log about guarded writes that were refused, with the client and the command. The
//! words of the command are not told: they are the client's.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::warn;

use super::super::{desk::Desk, metrics::GuardedWrite};
use crate::{
    resp::words::{Walk, WordStep},
    told::{FewLines, shown},
};

/// The bytes of a command that ends a client's transaction.
pub(in crate::session) const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// How often it is looked whether lines were left out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Lines of this process, and of all its clients.
static REFUSED: FewLines = FewLines::new();

/// Tells that a write was refused because its lock is not held, or was granted again since. `command`:
/// its bytes; none if they were dropped.
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
    /// The bytes of a command of this length at the beginning of the unsent ones.
    pub(super) fn unsent_command(&self, length: usize) -> &[u8] {
        &self.unsent[..length.min(self.unsent.len())]
    }
}

/// Tells how many lines were left out, if that was not told yet, for as long as the process runs.
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
