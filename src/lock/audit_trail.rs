//! Lines in the log about locks: session locks that were lost, leases that ran out, the quorum; and the audit trail,
//! a line of JSON on stderr for each grant and each end of one (`log.locks: all`). No token is in any of them.

use std::{
    borrow::Cow,
    fmt::Write as _,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use sha1_smol::Sha1;
use tracing::{info, warn};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

use super::{holders::GrantTold, lock_metrics::LostReason, quorum::Votes};
use crate::{
    clock::millis,
    key::Key,
    log_text::{FewLines, LONGEST_SHOWN, shown},
    log_writer,
};

/// How a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantEnd {
    /// A client gave it back through this proxy, or ended the connection that kept it.
    Released,
    /// An operator took it back through this proxy.
    TakenBack,
    /// The session lock was lost, or the lease may have been, as the clocks of a quorum of nodes had jumped.
    Lost,
    /// It was not given back through this proxy in time.
    RanOut,
    /// The same lock was granted anew through this proxy, by another claim, or by a repeated LOCK with a larger
    /// fence.
    Replaced,
}

impl GrantEnd {
    /// Returns the word in the audit trail.
    fn as_str(self) -> &'static str {
        match self {
            GrantEnd::Released => "released",
            GrantEnd::TakenBack => "taken_back",
            GrantEnd::Lost => "lost",
            GrantEnd::RanOut => "ran_out",
            GrantEnd::Replaced => "replaced",
        }
    }
}

/// The log of locks, and the audit trail.
pub(super) struct AuditTrail {
    /// Whether the audit trail is written.
    is_whole: AtomicBool,
    /// The name of this proxy.
    proxy: OnceLock<String>,
    /// The length of `locks.prefix`.
    prefix: usize,
    lost: FewLines,
    ran_out: FewLines,
    quorum: FewLines,
}

impl AuditTrail {
    /// Starts without the audit trail. `prefix`: the length of `locks.prefix`.
    pub(super) fn new(prefix: usize) -> AuditTrail {
        AuditTrail {
            is_whole: AtomicBool::new(false),
            proxy: OnceLock::new(),
            prefix,
            lost: FewLines::new(),
            ran_out: FewLines::new(),
            quorum: FewLines::new(),
        }
    }

    /// Turns the audit trail on or off. `proxy`: the name of this proxy; the first one that is set stays.
    pub(super) fn set(&self, is_whole: bool, proxy: &str) {
        let _ = self.proxy.set(proxy.to_owned());
        self.is_whole.store(is_whole, Ordering::Relaxed);
    }

    /// Whether the audit trail is written.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    /// Whether a grant must wait for room in the audit trail.
    pub(super) fn is_full(&self) -> bool {
        self.is_whole() && !log_writer::has_room()
    }

    /// Waits until the audit trail has room for the lines of a grant: for `wait` at most; if that is `None`, for two
    /// seconds, or not at all while none of the trail gets written. Returns whether there is room.
    pub(super) async fn room(&self, wait: Option<Duration>) -> bool {
        !self.is_whole() || log_writer::room(wait).await
    }

    /// Writes a grant to the audit trail.
    #[cold]
    pub(super) fn granted(&self, key: &Key, grant: &GrantTold) {
        self.write("granted", key, grant, None);
    }

    /// Writes a grant's end to the audit trail, and to the log if a lease ran out that LOCK took.
    pub(super) fn ended(&self, key: &Key, grant: &GrantTold, how: GrantEnd) {
        if self.is_whole() {
            self.write(how.as_str(), key, grant, Some(grant.held_for));
        }
        if how == GrantEnd::RanOut
            && !grant.is_adopted
            && let Some(left_out) = self.ran_out.next(Instant::now())
        {
            let (address, name) = grant.client();
            info!(
                lock = &*self.shown(key),
                fence = grant.fence,
                address,
                name = &*name,
                held_ms = millis(grant.held_for),
                left_out,
                "a lease ran out that was not given back through this proxy"
            );
        }
    }

    /// Writes to the audit trail that this proxy is releasing another proxy's grant. `by`: the operator that takes it
    /// back.
    pub(super) fn released_elsewhere(&self, key: &Key, by: Option<&str>) {
        if self.is_whole() {
            let grant = GrantTold::default().by(by);
            self.write("released_elsewhere", key, &grant, None);
        }
    }

    /// Logs that a session lock was lost. `votes`: those of the last renewal, if there was one.
    pub(super) fn lost(
        &self,
        key: &Key,
        (address, name): (&str, &str),
        reason: LostReason,
        votes: Option<Votes>,
    ) {
        let Some(left_out) = self.lost.next(Instant::now()) else { return };
        let votes = votes.map(Votes::told);
        warn!(
            lock = &*self.shown(key),
            reason = reason.as_str(),
            address,
            name,
            votes,
            left_out,
            "a session lock was lost"
        );
    }

    /// Logs that fewer lock nodes than a quorum can vote now.
    pub(super) fn quorum_lost(&self, voting: usize, needed: usize, missing: &str) {
        if let Some(left_out) = self.quorum.next(Instant::now()) {
            warn!(voting, needed, missing, left_out, "the quorum is lost: locks cannot be had");
        }
    }

    /// Logs that a quorum can vote again.
    pub(super) fn quorum_back(&self, voting: usize, needed: usize, after: Duration) {
        if let Some(left_out) = self.quorum.next(Instant::now()) {
            info!(voting, needed, after_ms = millis(after), left_out, "the quorum is back");
        }
    }

    /// Logs how many lines were left out, if that was not said yet.
    pub(super) fn tell_left_out(&self) {
        let now = Instant::now();
        for (few, what) in [
            (&self.lost, "more session locks were lost"),
            (&self.ran_out, "more leases ran out that were not given back through this proxy"),
            (&self.quorum, "the quorum was lost, or came back, more often"),
        ] {
            if let Some(left_out) = few.left_out(now) {
                warn!(left_out, "{what}");
            }
        }
    }

    /// Returns the lock's name as clients know it, for the log.
    fn shown<'k>(&self, key: &'k Key) -> Cow<'k, str> {
        shown(key.get(self.prefix..).unwrap_or_default())
    }

    /// Writes one line of the audit trail.
    fn write(&self, event: &str, key: &Key, grant: &GrantTold, held_for: Option<Duration>) {
        let mut time = String::new();
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let name = key.get(self.prefix..).unwrap_or_default();
        let (address, client) = grant.client();
        let mut line = json!({
            "timestamp": time,
            "audit": event,
            "lock": shown(name),
            "fence": grant.fence,
            // A grant gets its keeper, if any, a moment later.
            "kind": held_for.map(|_| if grant.is_session_lock { "session" } else { "lease" }),
            "address": address,
            "name": shown(client.as_bytes()),
            "proxy": self.proxy.get(),
            "held_ms": held_for.map(millis),
        });
        if let Some((field, value)) = told_apart(name) {
            line[field] = value.into();
        }
        if let Some(by) = &grant.by {
            line["by"] = shown(by.as_bytes()).into();
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
        log_writer::write_trail(text.as_bytes());
    }
}

/// Returns the field that tells a lock's name from others that [`shown`] shows in the same way, and its value: all
/// bytes of the name, or a digest of them if they are many. `None`: the name is shown as it is.
fn told_apart(name: &[u8]) -> Option<(&'static str, String)> {
    if shown(name).as_bytes() == name {
        return None;
    }
    Some(match name.len() <= LONGEST_SHOWN {
        true => ("key_hex", name.iter().map(|byte| format!("{byte:02x}")).collect()),
        false => ("key_sha1", Sha1::from(name).digest().to_string()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_names_are_one_in_the_trail_and_all_are_short_and_printable() {
        let long = [b'x'; LONGEST_SHOWN];
        let names: [&[u8]; 12] = [
            b"",
            b"job",
            b"\xff",
            b"\xfe",
            "\u{fffd}".as_bytes(),
            br"\xff",
            "\u{9b}1m\u{202e}".as_bytes(),
            b"a\r\n\x1b[0m",
            &long,
            &[&long[..], b"y"].concat(),
            &[&long[..], b"z"].concat(),
            &[0; 1 << 16],
        ];
        let told = names.map(|name| (shown(name).into_owned(), told_apart(name)));
        assert_eq!(told[1], ("job".into(), None));
        assert_eq!(told[2], (r"\xff".into(), Some(("key_hex", "ff".into()))));
        assert_eq!(told[5], (r"\xff".into(), None));
        assert_eq!(told[8].1, None);
        let digest = Sha1::from(names[9]).digest().to_string();
        assert_eq!(told[9].1, Some(("key_sha1", digest)));
        for (shown, apart) in &told {
            let text = format!("{shown}{}", apart.as_ref().map_or("", |(_, text)| text));
            assert!(text.trim_end_matches('…').len() <= 6 * LONGEST_SHOWN, "{text}");
            assert!(text.chars().all(|c| c == '…' || c == ' ' || c.is_ascii_graphic()), "{text}");
        }
        assert_eq!(told.iter().collect::<HashSet<_>>().len(), names.len());
    }
}
