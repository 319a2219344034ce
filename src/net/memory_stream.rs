//! Connections inside this process, for simulated networks.

use std::{cell::RefCell, io};

use tokio::io::DuplexStream;

/// A function that connects to the host of this name.
pub(crate) type Dial = Box<dyn Fn(&str) -> io::Result<DuplexStream>>;

thread_local! {
    static DIAL: RefCell<Option<Dial>> = const { RefCell::new(None) };
}

/// Has `dial` connect to simulated hosts on this thread from now on. With `None` they are unreachable.
pub(crate) fn set_network(dial: Option<Dial>) {
    DIAL.set(dial);
}

/// Connects to `host`. Returns `None` if it is not a simulated one.
pub(super) fn connect(host: &str) -> Option<io::Result<DuplexStream>> {
    let is_simulated = host.starts_with("simulated-");
    is_simulated.then(|| {
        DIAL.with_borrow(|dial| match dial {
            Some(dial) => dial(host),
            None => Err(io::ErrorKind::NetworkUnreachable.into()),
        })
    })
}
