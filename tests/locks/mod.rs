//! What clients that take locks are promised, with real lock nodes that fail, restart and have wrong clocks.

mod attach;
mod clocks;
mod engine;
mod failover;
mod locking;
mod mlock;
mod permits;
mod readers;
mod seats;
mod session_locks;
mod shards;
mod shared_scripts;
mod unfit_nodes;
mod waiting;
mod wake_ups;
