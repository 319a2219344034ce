//! What a proxy tells of itself in JSON at its admin address. The server writes these documents; other proxies, `lockgate
//! top` and `lockgate doctor` read them.
//!
//! - [`document`]: the whole proxy in one document; [`lists`]: locks, clients and idioms; [`lock_name`]: a lock's name.
//! - [`few`]: bounds the lists that are read.

pub(crate) mod document;
pub(crate) mod few;
pub(crate) mod lists;
pub(crate) mod lock_name;
