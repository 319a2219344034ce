//! What a client sees that takes no lock: its bytes in order, and nothing of other clients,
//! whatever these send.

mod bad_input;
mod hostile;
mod memory;
mod ordering;
mod proxy_protocol;
#[path = "../support/mod.rs"]
mod support;
mod tls;
