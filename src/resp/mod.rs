//! RESP: finds where commands and replies end, and the names of commands. It imports nothing else of the
//! crate.
//!
//! Forwarded bytes are never decoded: [`request`] and [`reply`] find where commands and replies end while the
//! bytes pass, without holding or copying them. Only commands whose words matter to the proxy are split
//! ([`split`], [`inline`], `words`), and only its own replies are encoded ([`encode`]). Replies to the proxy's own questions, where the client library does not
//! ask them, are decoded ([`flat`]).

pub mod encode;
pub(crate) mod expected;
pub(crate) mod flat;
pub mod inline;
pub mod name;
pub(crate) mod number;
mod repeat;
pub mod reply;
pub mod request;
pub mod split;
pub(crate) mod words;
