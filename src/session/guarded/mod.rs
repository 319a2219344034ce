//! Writes to guarded keys: forwarded only under the lock, and only while the data node has seen no
//! larger fence of it.
//!
//! The check and the write are one step on the data node: the fence's key is WATCHed before it is
//! read, and the write runs in a transaction, which Redis drops if another fence was written in
//! between. The write passes unchanged, and its reply is the only element of EXEC's, so both are
//! exact, whatever the command. Common commands are first tried by one script that does all this in
//! one round trip ([`mod@crate::guard::write`]), for several writes that have arrived at once. If
//! the script fails, the long way finds out why.
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
//! - `needs`: which locks a command needs, and whether the connection holds them. `verify`: whether
//!   it still does, if another connection keeps them.
//! - `refuse`: refuses a write that the connection may not make.
//! - `short`, `batch`, `limit`: the script, and the writes that share a call of it.
//! - `long`: the question about the fences, the write, and what undoes the question.
//! - `database`: in which database the write is to be made.
//! - `forgotten`: announces again fences that the data node has forgotten.
//! - `log`: lines about refused writes.
//! - `arm`, `armed`: the client's own transactions.
//! - `acknowledged`: replicas that must acknowledge a write before its client is told.
//!
//! A transaction of the client's own is armed at its MULTI: the fences of all locks
//! that the connection holds are WATCHed before it is passed on, and the writes in it
//! are only compared with those.

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
