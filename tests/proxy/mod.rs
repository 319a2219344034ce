//! The proxy for clients that take no lock: their bytes pass in order, and other clients do not affect them, whatever
//! these send.

mod bad_input;
mod hostile;
mod leaving;
mod memory;
mod ordering;
mod proxy_protocol;
mod refused;
mod shared;
mod slow_sharers;
mod tls;
mod whole_pipelines;
mod word_ends;
