//! What a proxy tells of itself in JSON at its admin address. The server writes these documents; other proxies, `lockgate
//! top` and `lockgate doctor` read them.
//!
//! Readers bound what they keep: of a list the first [`few::MOST_READ`] entries, of a text what its type `T` keeps. What a
//! proxy of another version leaves out is empty.
//!
//! - [`document`]: the whole proxy in one document; [`lists`]: locks, clients and idioms; [`lock_name`]: a lock's name.
//! - [`few`]: bounds the lists that are read.

pub(crate) mod document;
pub(crate) mod few;
pub(crate) mod lists;
pub(crate) mod lock_name;

use serde::{Deserialize, Serialize};

/// The document of an answer other than 200.
#[derive(Serialize, Deserialize)]
pub(crate) struct ErrorDocument<T = String> {
    pub(crate) error: T,
}
