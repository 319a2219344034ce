//! Promises to clients that take locks, over real lock nodes that fail, restart and have wrong
//! clocks.

mod attach;
mod clocks;
mod engine;
mod failover;
mod locking;
mod seats;
mod session_locks;
mod shards;
mod unfit_nodes;
mod waiting;
mod wake_ups;
