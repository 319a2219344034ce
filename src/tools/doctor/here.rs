//! What would keep a proxy from starting on this machine, whatever the servers are like.

use std::net::{SocketAddr, TcpListener};

use super::report::{Examined, Finding};
use crate::{
    config::{Config, SocketPath},
    server::logging,
};

/// Examines the proxy itself, as it would start here. `None`: nothing is wrong with it.
pub(super) fn lockgate(config: &Config) -> Option<Examined> {
    let listens = config.listen.iter().map(|listener| ("listen", listener.address));
    let all = listens.chain(config.admin.listen.map(|addr| ("admin", addr)));
    let mut reasons: Vec<String> = all.filter_map(|(key, addr)| cannot_listen(key, addr)).collect();
    reasons.extend(config.upgrade_socket.as_ref().and_then(has_no_directory));
    reasons.extend(logging::check().err().map(|error| error.to_string()));
    let grave = |what| Finding::grave(what, "Until then Lockgate does not start here.");
    let findings: Vec<Finding> = reasons.into_iter().map(grave).collect();
    (!findings.is_empty()).then(|| Examined::server("lockgate", "", "", findings))
}

/// Whether this machine has the address. Its port may be in use: a proxy may be running.
fn cannot_listen(key: &str, addr: SocketAddr) -> Option<String> {
    let error = TcpListener::bind((addr.ip(), 0)).err()?;
    Some(format!("cannot listen on {addr} ({key}): {error}"))
}

fn has_no_directory(SocketPath(path): &SocketPath) -> Option<String> {
    let directory = path.parent()?;
    let error = match directory.metadata() {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => format!("{} is no directory", directory.display()),
        Err(error) => format!("{}: {error}", directory.display()),
    };
    Some(format!("cannot make upgrade_socket {}: {error}", path.display()))
}
