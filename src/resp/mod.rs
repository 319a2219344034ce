//! RESP: where commands and replies end, and what a command is called. Imports nothing else of the
//! crate.
//!
//! Forwarded bytes are never decoded: [`request`] and [`reply`] find where commands and replies end
//! while the bytes pass, without holding or copying them. Only our own commands are taken apart
//! ([`split`], [`inline`]), and only our own replies are made ([`encode`]).

pub mod encode;
pub(crate) mod expected;
pub mod inline;
pub mod name;
pub(crate) mod number;
mod repeat;
pub mod reply;
pub mod request;
pub mod split;
pub(crate) mod words;
