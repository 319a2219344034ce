//! Upstream connections that many clients share, with `share: yes`.
//!
//! ```text
//! session ─ SharedUpstream ─┬─ SharedLink ── data node      whole commands of many clients, in order
//!                           ├─ greeter ── data node   AUTH, HELLO and the like, one at a time
//!                           └─ a connection of its own, for good, once the client leaves state in it
//! ```
//!
//! To a session, a [`SharedUpstream`] is a connection to the data node like any other. It finds the commands in what
//! the session writes, and decides for each whether it may go on a link.
//!
//! - [`upstream`]: one session's part. [`mailbox`]: the replies that it is owed, and those that have come.
//! - [`shared_link`]: a connection on which many clients' commands go. [`patience`]: how long they wait for one that does
//!   not read. [`opening`]: how a link is opened. [`link_pools`]: which links there are. A thread has links of its own.
//!   [`unblock`]: what becomes of a command that blocks for nobody.
//! - [`treatment`]: which commands share. [`greeting`]: who a client has said that it is. [`greeter`]: asks the data
//!   node whether it may be that.
//! - [`sharing`]: what all threads know of one data node. [`share_metrics`]: counters. [`sharers`]: what operators are
//!   told of the clients; [`pinned`]: of those that got a connection of their own.

mod greeter;
mod greeting;
mod link_pools;
mod mailbox;
mod opening;
mod patience;
mod pinned;
mod share_metrics;
mod shared_link;
mod sharers;
mod sharing;
mod treatment;
mod unblock;
mod upstream;

pub(crate) use self::{
    share_metrics::describe,
    sharers::{Sharers, SharersNow},
    sharing::{Connecting, Sharing},
    upstream::SharedUpstream,
};
