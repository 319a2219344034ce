//! What the proxies that share the lock nodes tell each other, and where they differ.
//!
//! Each proxy keeps one record on the lock nodes and reads those of the others. Nothing here has a
//! connection: [`crate::server`] writes the records and reads them.
//!
//! - [`record`]: what one proxy says of itself, as a line.
//! - [`difference`]: what two records do not agree upon.
//! - [`known`]: what this proxy knows of the others, told in the log and by metrics.

pub(crate) mod difference;
pub(crate) mod known;
pub(crate) mod record;
