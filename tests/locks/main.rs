//! What those who take locks are promised, over real lock nodes that fail, restart and have
//! wrong clocks.

mod attach;
mod clocks;
mod engine;
mod locking;
mod session_locks;
#[path = "../support/mod.rs"]
mod support;
mod unfit_nodes;
mod waiting;
