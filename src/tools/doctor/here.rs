//! Finds what would keep a proxy from starting on this machine, whatever the state of the servers.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};

use socket2::{Domain, Socket, Type};

use super::report::{Examined, Finding};
use crate::{
    config::{CertificateTrouble, Config, SocketPath},
    server::{check_upgrade_socket, logging},
};

/// Examines the proxy itself, as it would start here. Returns `None` if nothing is wrong with it. `runs`: a proxy answers
/// at the file's admin address, and so has its addresses.
pub(super) fn lockgate(config: &Config, runs: bool) -> Option<Examined> {
    let listens = config.listen.iter().map(|listener| ("listen", listener.address));
    let all = listens.chain(config.admin.listen.map(|addr| ("admin", addr)));
    let (mut reasons, mut in_use) = (Vec::new(), Vec::new());
    for (key, addr) in all {
        match bind(addr) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                in_use.push(format!("{addr} ({key})"));
            }
            Err(error) => reasons.push(format!("cannot listen on {addr} ({key}): {error}")),
        }
    }
    let mut findings = Vec::new();
    match check_upgrade_socket(config) {
        Err(error) if is_made_at_start(config, &error) => {
            let advice =
                "systemd makes it where the service's unit has RuntimeDirectory=; else make it.";
            findings.push(Finding::minor(format!("{error:#}"), advice));
        }
        checked => reasons.extend(checked.err().map(|error| format!("{error:#}"))),
    }
    reasons.extend(logging::check().err().map(|error| error.to_string()));
    let grave = |what| Finding::grave(what, "Until then Lockgate does not start here.");
    findings.extend(reasons.into_iter().map(grave));
    for CertificateTrouble { is_now, what } in config.certificate_troubles() {
        let advice = "A renewed file is read by itself, within some seconds.";
        findings.push(match is_now {
            true => Finding::grave(what, advice),
            false => Finding::minor(what, advice),
        });
    }
    if !in_use.is_empty() && !runs {
        let advice =
            "Lockgate does not start before that program has ended, or another address is given.";
        findings.push(Finding::minor(format!("in use: {}", in_use.join(", ")), advice));
    }
    (!findings.is_empty()).then(|| Examined::server("lockgate", "", "", findings))
}

/// Binds the address as a starting proxy does, but without listening, so that no client connects.
fn bind(addr: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())
}

/// Whether the upgrade socket only lacks a directory that a service manager makes when it starts the service.
fn is_made_at_start(config: &Config, error: &anyhow::Error) -> bool {
    let is_missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    let in_run = |SocketPath(path): &SocketPath| path.starts_with("/run");
    config.upgrade_socket.as_ref().is_some_and(in_run)
        && error.downcast_ref::<io::Error>().is_some_and(is_missing)
}
