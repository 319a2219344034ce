//! A client's connection and its upstream connection, for their whole life.
//!
//! ```text
//! sockets ─ pump ─ core ─┬─ requests: which commands pass, and which must wait
//!                        ├─ replies, filter: which replies pass, and what they tell
//!                        └─ jobs, guarded: the command that has the floor, stage by stage
//! ```
//!
//! - [`pump`]: sockets, timers and questions; the place to see a byte pass. [`question`]: questions under way;
//!   [`all_or_none`]: MLOCK's. [`ahead`]: bytes behind a LOCK that waits, read so that the client's end is seen. [`pulse`]: signs of life while
//!   a client waits for Lockgate or holds a lock. [`unread`]: how much is held for a client that does not read.
//!   [`parting`]: the end of a client that reads nothing. [`asleep`]: what is kept of a session while nothing is under way.
//! - [`core`]: a session without its sockets: what has the floor, and what a step leads to.
//! - [`requests`]: client → data node. [`screen`]: which commands guards are about. [`gather`]: large commands, until
//!   they are whole. [`dropping`]: commands whose bytes are dropped as they arrive. [`idiom_look`]: a look at lock idioms
//!   of existing libraries as they pass. [`sights`]: what was seen, until the data node has answered; [`settling`]
//!   counts it then. [`transact`]: which commands fit into a transaction about an adopted lock.
//! - [`replies`]: data node → client. [`filter`]: replies that are changed on their way.
//! - [`jobs`]: commands that have the floor. [`guarded`]: writes that guards are about.
//! - [`desk`]: the parts of a session that a job may use: [`conn`], the state of the connection on the data node;
//!   [`owed`] and [`notes`], which replies are owed; [`attempts`], the LOCKs refused; [`claims`], the locks held or
//!   attached to; [`loss_news`], what the client is told when a session lock is lost; [`lock_transaction`], how far a
//!   transaction about an adopted lock has come; [`queued_lock`], an adopted command in the client's own transaction;
//!   [`rare`], room for what most sessions never have; [`short_queue`], a queue that rarely has more than one element.
//! - [`operator_acts`]: what an operator has the proxy do, by LOCKGATE or at the admin address.
//! - [`shared`]: what all sessions share. [`roll`]: their tasks, which all wake up when the proxy ends. [`idle`]: how long the data node lets clients be idle.
//! - [`earlier`]: processes from before upgrades that still have clients.
//! - [`naming`]: the name that a client gives itself.
//! - [`planted`]: faults that tests put in on purpose.
//! - [`session_metrics`]: counters of commands, and the labels for outcomes.

mod ahead;
mod all_or_none;
mod asleep;
mod attempts;
mod claims;
mod conn;
mod core;
mod desk;
mod dropping;
pub(crate) mod earlier;
mod filter;
mod gather;
mod guarded;
mod idiom_look;
pub(crate) mod idle;
mod jobs;
mod lock_transaction;
mod loss_news;
mod naming;
mod notes;
pub(crate) mod operator_acts;
mod owed;
#[cfg(test)]
mod pair;
mod parting;
pub(crate) mod planted;
mod pulse;
mod pump;
mod question;
mod queued_lock;
mod rare;
mod replies;
mod requests;
mod roll;
mod screen;
pub(crate) mod session_metrics;
mod settling;
mod shared;
mod short_queue;
mod sights;
mod transact;
mod unread;

#[cfg(test)]
pub(crate) use self::{ahead::Taken, unread::UnreadReplies};
pub(crate) use self::{
    asleep::Sleeper, guarded::log::tell_left_out, pump::Session, shared::Shared,
};
