//! Answers LOCKGATE for operators, and COMMAND about our own commands.

use std::{fmt::Write as _, sync::atomic::Ordering};

use super::super::desk::Desk;
use crate::{
    adopt::{fleet::ModeConflict, rows::hexadecimal, verdict::danger},
    clock::millis,
    command::{docs, operator::Inquiry},
    glob::{self, Budget},
    lock::LockStatus,
    resp::encode,
};

/// Most locks in one answer to LOCKGATE LOCKS.
const MAX_LOCKS: usize = 1000;
/// Most rules in one answer whose modes are two steps apart; their number is told whole.
const MAX_CONFLICTS: usize = 16;
/// Most bytes of keys in one answer.
const MAX_KEY_BYTES: usize = 1024 * 1024;
/// Steps that comparing keys with the pattern of one LOCKGATE LOCKS may take: some ten
/// milliseconds, in which the thread that renews locks does nothing else.
const MAX_STEPS: usize = 10_000_000;

/// The fields of an entry of LOCKGATE ADOPTED behind its `times`. New ones go behind all others, so
/// that whoever reads them by place still finds them.
const ADOPTED_FIELDS: [&str; 12] = [
    "keys", "lock", "client", "idiom", "form", "library", "script", "replies", "unsafe", "verdict",
    "because", "mode",
];

const TOO_MANY_STEPS: &str = "ERR comparing all keys with this pattern would take too long, \
     give one with fewer stars, or that begins as the keys do";

const HELP: [&str; 33] = [
    "LOCKGATE <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "INFO",
    "    Tell of this proxy: version, uptime, lock nodes, locks and waiters, and adopt rules that",
    "    another proxy has in a mode two steps away.",
    "NODES",
    "    List the lock nodes, with the reason where one is down, and what is wrong with it.",
    "LOCKS [<pattern>]",
    "    List the locks granted through this proxy and held now, at most 1000 with 1 MB of",
    "    keys, whose key matches the glob-style pattern. An adopted one is told with the library",
    "    that took it, or the command.",
    "LOCK <key>",
    "    Tell of one of these locks; null if it is not held through this proxy.",
    "ADOPTED",
    "    List the lock idioms of existing libraries that were seen on keys of adopt rules, the",
    "    unsafe first, with what would become of each if its lock were taken on the lock nodes,",
    "    and the mode of its rule now. Rules of which nothing was seen come last.",
    "UNLOCK <key> FENCE <fence> | ANY",
    "    Take a lock back: from the grant with this fence, or from whoever holds it, through whichever",
    "    proxy. Answers 1, or 0 where that grant does not hold it. Only who may CLIENT KILL may.",
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
    "LOCK, UNLOCK, RENEW, LOCK.ATTACH and LOCK.DETACH have help of their own:",
    "    COMMAND DOCS LOCK.",
];

impl Desk {
    pub(super) fn tell(&self, inquiry: &Inquiry) -> Vec<u8> {
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
            Inquiry::Locks { pattern } => self.tell_locks(&mut out, pattern.as_deref()),
            Inquiry::Lock { key } => {
                let key = [self.config.locks.prefix.as_bytes(), key].concat();
                match self.shared.engine.lock(&key) {
                    Some(lock) => self.tell_lock(&mut out, &lock),
                    None => encode::null(&mut out, resp3),
                }
            }
            Inquiry::CommandInfo(all) => {
                encode::array(&mut out, all.len());
                all.iter().for_each(|own| docs::info(&mut out, *own, resp3));
            }
            Inquiry::CommandDocs(all) => {
                encode::map(&mut out, all.len(), resp3);
                all.iter().for_each(|own| docs::docs(&mut out, *own, resp3));
            }
        }
        out
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
    }

    /// The section of LOCKGATE INFO about adopt rules whose modes are two steps apart.
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

    fn tell_nodes(&self, out: &mut Vec<u8>) {
        let nodes = self.shared.engine.status();
        encode::array(out, nodes.len());
        for node in nodes {
            encode::map(out, 4, self.conn.state.resp3);
            encode::bulk(out, b"address");
            encode::bulk(out, node.address.as_bytes());
            encode::bulk(out, b"up");
            encode::integer(out, i64::from(node.up));
            encode::bulk(out, b"reason");
            encode::bulk(out, node.reason.unwrap_or_default().as_bytes());
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
            let replies = sighting.replies.map_or(String::new(), |replies| replies.join(" "));
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
            tell_entry(out, *times, values, resp3);
        }
        for (rule, mode) in unseen {
            let mut values = [""; ADOPTED_FIELDS.len()];
            values[0] = rule.keys.as_str();
            values[1] = rule.lock.as_ref().map_or("", |lock| lock.as_str());
            values[ADOPTED_FIELDS.len() - 1] = mode.as_str();
            tell_entry(out, 0, values, resp3);
        }
        if left_out > 0 {
            encode::map(out, 2, resp3);
            encode::bulk(out, b"times");
            encode::integer(out, i64::try_from(left_out).unwrap_or(i64::MAX));
            encode::bulk(out, b"because");
            encode::bulk(out, b"of these kinds no more are kept");
        }
    }

    fn tell_locks(&self, out: &mut Vec<u8>, pattern: Option<&[u8]>) {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let (mut budget, mut is_enough) = (Budget::of(MAX_STEPS), true);
        let prefix = self.config.locks.prefix.len();
        self.shared.engine.locks(&mut |key| {
            let key = &key[prefix.min(key.len())..];
            let matches = match pattern {
                None => Some(true),
                Some(pattern) => glob::matches_within(pattern, key, &mut budget),
            };
            is_enough = matches.is_some();
            if matches == Some(true) {
                bytes += key.len();
                found.push(key.to_vec());
            }
            is_enough && found.len() < MAX_LOCKS && bytes < MAX_KEY_BYTES
        });
        if !is_enough {
            // An answer with some of the locks would look as if they were all.
            return encode::error(out, TOO_MANY_STEPS);
        }
        found.sort();
        let full = |key: &Vec<u8>| [self.config.locks.prefix.as_bytes(), key].concat();
        // A lock may have been given back meanwhile.
        let found: Vec<LockStatus> =
            found.iter().filter_map(|key| self.shared.engine.lock(&full(key))).collect();
        encode::array(out, found.len());
        found.iter().for_each(|lock| self.tell_lock(out, lock));
    }

    fn tell_lock(&self, out: &mut Vec<u8>, lock: &LockStatus) {
        encode::map(out, 7, self.conn.state.resp3);
        encode::bulk(out, b"key");
        encode::bulk(out, &lock.key[self.config.locks.prefix.len().min(lock.key.len())..]);
        encode::bulk(out, b"kind");
        encode::bulk(out, if lock.session { b"session" } else { b"lease" });
        for (field, value) in [
            ("fence", lock.fence),
            ("held-ms", millis(lock.held_for)),
            ("remaining-ms", millis(lock.remaining)),
            ("waiters", lock.waiters as u64),
        ] {
            encode::bulk(out, field.as_bytes());
            encode::integer(out, i64::try_from(value).unwrap_or(i64::MAX));
        }
        encode::bulk(out, b"adopted");
        encode::bulk(out, lock.adopted.unwrap_or_default().as_bytes());
    }
}

/// Tells one entry of LOCKGATE ADOPTED.
fn tell_entry(out: &mut Vec<u8>, times: u64, values: [&str; ADOPTED_FIELDS.len()], resp3: bool) {
    encode::map(out, 1 + values.len(), resp3);
    encode::bulk(out, b"times");
    encode::integer(out, i64::try_from(times).unwrap_or(i64::MAX));
    for (field, value) in ADOPTED_FIELDS.into_iter().zip(values) {
        encode::bulk(out, field.as_bytes());
        encode::bulk(out, value.as_bytes());
    }
}
