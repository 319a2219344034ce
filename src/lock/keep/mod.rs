//! Session locks: renewed for as long as a connection keeps them; the connection is told of their loss.
//!
//! - `watch`: one session lock; `schedule`: when each is to be renewed.
//! - `keeper`: the handle by which a connection keeps one, and ends it.
//! - `watchdog`: renews them; `lose`: ends a lost one; `losses`: what a connection is told of.
//! - `leases`: puts leases back on nodes that have come back.

pub(super) mod keeper;
pub(super) mod leases;
pub(super) mod lose;
pub(super) mod losses;
pub(super) mod schedule;
pub(super) mod watch;
pub(super) mod watchdog;
