//! The proxy as a client meets it that takes no lock: its bytes in order, and nothing of other
//! clients, whatever these send.

mod bad_input;
mod hostile;
mod memory;
mod ordering;
mod proxy_protocol;
mod tls;
mod whole_pipelines;
mod word_ends;
