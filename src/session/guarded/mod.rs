//! Writes to guarded keys: forwarded only under the lock, and only while the data node has seen no larger fence of
//! that lock.
//!
//! The check and the write are one step on the data node: the fence's key is WATCHed before it is read, and the write
//! runs in a transaction, which Redis drops if another fence was written in between. The write passes unchanged, and
//! its reply is the only element of EXEC's, so both are exact, whatever the command. Common commands are first tried
//! by one script that does all this in one round trip ([`mod@crate::guard::write`]), for several writes that have
//! arrived at once. If the script fails, the long way finds out why.
//!
//! ```text
//! Guarded ─ which locks? Learning, Verifying ─┬─ not held: -NOTHELD
//!           ├─ Locating: behind SELECT, which database that was ─┐
//!           ├────────────────────────────────────────────────────┘
//!           ├─ Short: the script ─ its reply, or Telling: that of each write
//!           │    ↓ any error
//!           └─ Fencing ─┬─ a larger one was seen: Undoing, -FENCED
//!                 ↑     ├─ Checking: the data node knows none: is the lock still held?
//!                 │     └─ Committing: the write, EXEC ─ its reply
//!                 └── dropped, as a fence was written ──┘
//! ```
//!
//! - `needs`: which locks a command needs, and whether the connection holds them. `verify`: whether it still holds
//!   those that another connection keeps.
//! - `refuse`: refuses a write that the connection may not make.
//! - `short`, `batch`, `limit`: the script, and the writes that share a call of it.
//! - `long`: the question about the fences, the write, and the commands that undo the question.
//! - `database`: the database that the write is for.
//! - `forgotten`: fences that the data node has forgotten, and how they are announced again.
//! - `log`: lines about refused writes.
//! - `arm`, `armed`: the client's own transactions.
//! - `acknowledged`: replicas that must acknowledge a write before its client is told.
//!
//! A transaction of the client is armed at its MULTI: the fences of all locks that the connection holds are WATCHed
//! before MULTI is passed on, and a guarded write in the transaction needs only locks whose fences are among them.

pub(super) mod acknowledged;
pub(super) mod arm;
pub(super) mod armed;
mod batch;
pub(super) mod database;
mod forgotten;
pub(super) mod limit;
pub(super) mod log;
mod long;
pub(super) mod needs;
mod refuse;
mod short;
mod subject;
mod verify;
