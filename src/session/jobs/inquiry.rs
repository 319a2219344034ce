//! Answers LOCKGATE for operators, and COMMAND about our own commands.

use std::{fmt::Write as _, sync::atomic::Ordering, time::Duration};

use super::{
    super::{
        desk::Desk,
        earlier::{EarlierProcess, WhatIsLeft},
    },
    Ours, Progress,
    inquiry_locks::{count, duration, field},
};
use crate::{
    adopt::{rows::hexadecimal, verdict::danger},
    clock::millis,
    command::{docs, operator::Inquiry},
    fleet::difference::{FleetDifference, ModeConflict},
    resp::encode,
};

/// Most lines in one answer about where other proxies differ; their full number is told.
const MAX_CONFLICTS: usize = 16;

/// The fields of an entry of LOCKGATE ADOPTED between `times` and `longest_ttl_ms`. New ones go last, so that clients
/// that read fields by position still find them.
const ADOPTED_FIELDS: [&str; 12] = [
    "keys", "lock", "client", "idiom", "form", "library", "script", "replies", "unsafe", "verdict",
    "because", "mode",
];

const HELP: [&str; 53] = [
    "LOCKGATE <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "INFO",
    "    Tell of this proxy: version, uptime, lock nodes, locks and waiters, and adopt rules that",
    "    another proxy has in a mode two steps away.",
    "NODES",
    "    List the lock nodes, with the reason where one is down, and what is wrong with it.",
    "LOCKS [<pattern>] [COUNT <count>] [BY WAITERS|AGE|WAIT]",
    "    List the locks granted through this proxy and held now, at most 1000 with 1 MB of",
    "    keys, whose key matches the glob-style pattern, with the address and the name of the",
    "    client that took each. An adopted one is told with the library that took it, or the",
    "    command. BY lists the largest first: by clients that wait, by time held, or by the",
    "    longest wait. BY WAITERS and BY WAIT list locks too that clients here wait for and that",
    "    were granted elsewhere; of these -1 stands for what is not known.",
    "LOCK <key>",
    "    Tell of one lock. The lock nodes are asked about one that was not granted through this",
    "    proxy: its kind is then elsewhere. Null if nobody holds it.",
    "READERS <key>",
    "    List the readers of a lock that were granted their parts through this proxy: the number of",
    "    each, its kind, for how long it has read and still reads, and its client's address and name.",
    "WAITERS <key>",
    "    List the clients of this proxy that wait for a lock, in line: address, name, how long",
    "    each has waited, and the TTL that it asks for.",
    "CLIENTS",
    "    List the clients of this proxy that hold locks or wait, at most 1000, those first that",
    "    wait longest: address, name, number of locks with some of their keys, and the lock",
    "    waited for. One that has gone and whose leases last is told as not connected.",
    "HOT [<count>]",
    "    List the locks for which clients of this proxy have waited longest, all waits together,",
    "    10 unless told. All numbers are halved every ten minutes. excess-ms is the part of",
    "    waited-ms that may have been for other locks. kind is elsewhere if clients here wait for what",
    "    another proxy has granted, and empty if nobody here holds the lock or waits.",
    "ADOPTED",
    "    List the lock idioms of existing libraries that were seen on keys of adopt rules, the",
    "    unsafe first, with what would become of each if its lock were taken on the lock nodes,",
    "    and the mode of its rule now. Rules of which nothing was seen come last.",
    "UNLOCK <key> FENCE <fence> | READER <reader> | ANY",
    "    Take a lock back: from the grant with this fence, or from whoever holds it, through whichever",
    "    proxy; or from one reader, through the proxy whose READERS lists it. Answers 1, or 0 where",
    "    that grant does not hold it. Only who may CLIENT KILL may.",
    "NODE <address> PAUSE [FORCE] | RESUME",
    "    Have a lock node asked for no new locks, for maintenance, or asked again. It keeps those that",
    "    it has. Refused if too few others vote, but with FORCE. Only who may CLIENT KILL may.",
    "PAUSE <milliseconds>",
    "    Have new LOCKs wait, as long as their WAIT allows; who holds a lock goes on. Only who may",
    "    CLIENT KILL may.",
    "UNPAUSE",
    "    End that; PAUSE 0 does too.",
    "VERSION",
    "    Tell the version.",
    "HELP",
    "    Print this help.",
    "LOCK, UNLOCK, RENEW, MLOCK, MUNLOCK, LOCK.ATTACH and LOCK.DETACH have help of their own:",
    "    COMMAND DOCS LOCK.",
];

impl Desk {
    /// Answers an inquiry.
    pub(super) fn tell(&self, ours: Ours, inquiry: &Inquiry) -> Progress {
        let mut out = Vec::new();
        let resp3 = self.conn.state.resp3;
        match inquiry {
            Inquiry::Help => {
                encode::array(&mut out, HELP.len());
                HELP.iter().for_each(|line| encode::simple(&mut out, line));
            }
            Inquiry::Version => encode::bulk(&mut out, env!("CARGO_PKG_VERSION").as_bytes()),
            Inquiry::Info => encode::bulk(&mut out, self.info().as_bytes()),
            Inquiry::Nodes => self.tell_nodes(&mut out),
            Inquiry::Adopted => self.tell_adopted(&mut out),
            Inquiry::Locks(wanted) => self.tell_locks(&mut out, wanted),
            // The lock nodes may have to be asked.
            Inquiry::Lock { key } => return self.tell_one_lock(ours, key),
            Inquiry::Readers { key } => self.tell_readers(&mut out, key),
            Inquiry::Waiters { key } => self.tell_waiters(&mut out, key),
            Inquiry::Clients => self.tell_clients(&mut out),
            Inquiry::Hot { most } => self.tell_hot(&mut out, *most),
            Inquiry::CommandInfo(all) => {
                encode::array(&mut out, all.len());
                all.iter().for_each(|own| docs::info(&mut out, *own, resp3));
            }
            Inquiry::CommandDocs(all) => {
                encode::map(&mut out, all.len(), resp3);
                all.iter().for_each(|own| docs::docs(&mut out, *own, resp3));
            }
            Inquiry::CommandKeys { keys, with_flags } => {
                docs::keys(&mut out, keys, *with_flags, resp3);
            }
        }
        ours.answer(out, None)
    }

    fn info(&self) -> String {
        let engine = &self.shared.engine;
        let (nodes, counts) = (engine.status(), engine.counts());
        let listen: Vec<String> = self.shared.listen.iter().map(ToString::to_string).collect();
        format!(
            "# Server\r\nlockgate_version:{}\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\n\
             listen:{}\r\n\r\n# Clients\r\nconnected_clients:{}\r\n\r\n# Nodes\r\nnodes:{}\r\nnodes_up:{}\r\nquorum:{}\r\n\r\n\
             # Locks\r\nheld:{}\r\nsession_locks:{}\r\nadopted_locks:{}\r\nwaiters:{}\r\npaused_ms:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.shared.started.elapsed().as_secs(),
            listen.join(","),
            self.shared.clients.load(Ordering::Relaxed),
            nodes.len(),
            nodes.iter().filter(|node| node.up).count(),
            engine.quorum(),
            counts.held,
            counts.session_locks,
            counts.adopted,
            counts.waiters,
            millis(engine.paused_for().unwrap_or_default()),
        ) + &self.conflicts()
            + &self.earlier()
            + &self.differences()
    }

    /// Returns the section of LOCKGATE INFO about adopt rules whose modes are two steps apart.
    fn conflicts(&self) -> String {
        let conflicts = self.shared.fleet.conflicts();
        let mut text = format!("\r\n# Adopt\r\nmode_conflicts:{}\r\n", conflicts.len());
        for (number, conflict) in conflicts.iter().take(MAX_CONFLICTS).enumerate() {
            let ModeConflict { keys, here, there, name, .. } = conflict;
            let (here, there) = (here.as_str(), there.as_str());
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "mode_conflict{number}:keys={keys};here={here};there={there};proxy={name}\r\n"
            );
        }
        text
    }

    /// Returns the section of LOCKGATE INFO about processes from before upgrades that still have clients.
    fn earlier(&self) -> String {
        let all = self.shared.metrics.earlier.all();
        let mut text = format!("\r\n# Upgrade\r\nearlier_processes:{}\r\n", all.len());
        for (number, EarlierProcess { pid, left }) in all.iter().enumerate() {
            let WhatIsLeft { connections, held, waiters } = left.unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "earlier_process{number}:pid={pid};connections={connections};held={held};waiters={waiters}\r\n"
            );
        }
        text
    }

    /// Returns the section of LOCKGATE INFO about where other proxies over the same lock nodes differ.
    fn differences(&self) -> String {
        let differences = self.shared.fleet.differences();
        let mut text = format!("\r\n# Fleet\r\ndifferences:{}\r\n", differences.len());
        for (number, difference) in differences.iter().take(MAX_CONFLICTS).enumerate() {
            let FleetDifference { kind, what, here, there, name, .. } = difference;
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "difference{number}:kind={};what={what};here={here};there={there};proxy={name}\r\n",
                kind.as_str()
            );
        }
        text
    }

    fn tell_nodes(&self, out: &mut Vec<u8>) {
        let nodes = self.shared.engine.status();
        encode::array(out, nodes.len());
        for node in nodes {
            encode::map(out, 4, self.conn.state.resp3);
            field(out, "address", node.address.as_bytes());
            count(out, "up", u64::from(node.up));
            field(out, "reason", node.reason.unwrap_or_default().as_bytes());
            encode::bulk(out, b"faults");
            let faults: Vec<_> = node.unfit.into_iter().chain(node.found).collect();
            encode::array(out, faults.len());
            faults.iter().for_each(|fault| encode::bulk(out, fault.as_str().as_bytes()));
        }
    }

    fn tell_adopted(&self, out: &mut Vec<u8>) {
        let Some(adoption) = &self.shared.adoption else { return encode::array(out, 0) };
        let resp3 = self.conn.state.resp3;
        let (seen, left_out) = adoption.seen();
        let unseen: Vec<_> = adoption.unseen(&seen).collect();
        encode::array(out, seen.len() + unseen.len() + usize::from(left_out > 0));
        for (sighting, client, times) in &seen {
            let replies = sighting.replies.map_or(String::new(), |replies| replies.to_string());
            let digest = sighting.digest.map_or(String::new(), |digest| hexadecimal(&digest));
            let values = [
                adoption.pattern(sighting),
                adoption.lock(sighting),
                client,
                sighting.op.as_str(),
                sighting.form,
                sighting.library,
                &digest,
                &replies,
                danger(sighting.op),
                sighting.verdict.as_str(),
                sighting.because,
                adoption.mode_of(sighting),
            ];
            tell_entry(out, *times, values, sighting.ttl, resp3);
        }
        for (rule, mode) in unseen {
            let mut values = [""; ADOPTED_FIELDS.len()];
            values[0] = rule.keys.as_str();
            values[1] = rule.lock.as_ref().map_or("", |lock| lock.as_str());
            values[ADOPTED_FIELDS.len() - 1] = mode.as_str();
            tell_entry(out, 0, values, None, resp3);
        }
        if left_out > 0 {
            encode::map(out, 2, resp3);
            count(out, "times", left_out);
            field(out, "because", b"of these kinds no more are kept");
        }
    }
}

/// Encodes one entry of LOCKGATE ADOPTED.
fn tell_entry(
    out: &mut Vec<u8>,
    times: u64,
    values: [&str; ADOPTED_FIELDS.len()],
    longest_ttl: Option<Duration>,
    resp3: bool,
) {
    encode::map(out, 2 + values.len(), resp3);
    count(out, "times", times);
    for (name, value) in ADOPTED_FIELDS.into_iter().zip(values) {
        field(out, name, value.as_bytes());
    }
    duration(out, "longest_ttl_ms", longest_ttl.unwrap_or_default());
}
