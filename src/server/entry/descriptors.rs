//! The number of files that this process may have open, and of clients that this allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors of a client: its own connection and one to the data node.
const EACH: u64 = 2;
/// Descriptors for listeners, threads' epolls, /metrics, name look-ups, and a little more.
const OTHERS: u64 = 64;
/// Most connections to one lock node at the same time.
const EACH_NODE: u64 = 5;

/// Makes room for `maxclients` as far as the system allows (`ulimit -Hn`), and returns how many
/// clients there is room for. Redis lowers its `maxclients` likewise: a client that is told that
/// the proxy is full knows more than one that is not accepted.
pub(crate) fn make_room(maxclients: usize, nodes: usize) -> usize {
    let others = OTHERS.saturating_add(EACH_NODE.saturating_mul(nodes as u64));
    let wanted = EACH.saturating_mul(maxclients as u64).saturating_add(others);
    let limit = getrlimit(Resource::Nofile);
    let mut allowed = limit.current.unwrap_or(u64::MAX);
    if allowed < wanted {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let raised = Rlimit { current: Some(current), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            allowed = current;
        }
    }
    if allowed >= wanted {
        return maxclients;
    }
    let room = usize::try_from(allowed.saturating_sub(others) / EACH).unwrap_or(maxclients).max(1);
    warn!(
        maxclients,
        lowered_to = room,
        open_files = allowed,
        needed = wanted,
        "too few file descriptors (ulimit -n) for maxclients"
    );
    room
}
