//! Which clients of the running proxy got a connection of their own, where clients share connections to the data node
//! (`share: yes`), and what can be done about that.

use super::report::{Examined, Finding, printable};
use crate::report::{
    document::{PinnedByPart, SharingPart},
    lists::PinnedPart,
};

/// Most kinds of clients that are named for one cause.
const MOST_NAMED: usize = 8;
/// Most causes that are told; a proxy knows a dozen.
const MOST_CAUSES: usize = 32;

/// What a cause means, and what to do about it, by its name in `lockgate_pinned_total`.
const CAUSES: [(&str, &str); 12] = [
    (
        "transaction",
        "MULTI and WATCH leave state in a connection; a script shares. The first guarded write after the data node has \
         started sends WATCH too.",
    ),
    ("pubsub", "Nothing to do: a subscription needs a connection of its own, as does MONITOR."),
    ("blocking", "Nothing to do: whoever waits on a link would keep the others waiting."),
    (
        "client",
        "Only CLIENT SETNAME and SETINFO share. Where a library sends others as it connects (ID, TRACKING, NO-EVICT), \
         see whether it needs to.",
    ),
    ("select", "Have SELECT sent before all else, as where the client's URL names the database."),
    (
        "large",
        "Nothing to do: a command of more than 64 KB costs less over a connection of its own.",
    ),
    (
        "replies",
        "Nothing to do: replies of more than 16 KB cost less over a connection of its own.",
    ),
    (
        "inline",
        "A plain line comes from telnet, or from a health check: have that speak as redis-cli does.",
    ),
    ("broken", "What came is no command: is that a client of Redis?"),
    (
        "stranger",
        "Have it send AUTH before all else: without, the data node closes its connection.",
    ),
    ("names", "Have it give itself shorter names (CLIENT SETNAME, SETINFO): 1 KB is kept of them."),
    (
        "other",
        "That command is not known to leave nothing behind in its connection: docs/sharing.md.",
    ),
];

/// Examines the clients of a proxy. `pinned`: which of them got a connection of their own, the most frequent first.
pub(super) fn clients(sharing: &SharingPart, pinned: &[PinnedPart]) -> Examined {
    let SharingPart { shared, links, come, pinned: by_cause, .. } = sharing;
    let all: u64 = by_cause.iter().map(|cause| cause.clients).fold(0, u64::saturating_add);
    let percent = all.saturating_mul(100) / (*come).max(1);
    let plural = if *links == 1 { "link" } else { "links" };
    let summary = format!(
        "{shared} share {links} {plural}; {all} of {come} since the start ({percent} %) got a connection of their own"
    );
    let told = by_cause.iter().take(MOST_CAUSES);
    let findings = told.map(|cause| finding(cause, *come, pinned)).collect();
    Examined::other("clients", summary, findings)
}

fn finding(
    PinnedByPart { by, clients }: &PinnedByPart,
    come: u64,
    pinned: &[PinnedPart],
) -> Finding {
    let mut kinds = pinned.iter().filter(|kind| kind.by == *by);
    let named: Vec<String> = kinds.by_ref().take(MOST_NAMED).map(name).collect();
    let left = kinds.count();
    let more = if left > 0 { format!(", and {left} more (/api/pinned)") } else { String::new() };
    let what = format!("{by}: {clients} of {come} clients: {}{more}", named.join(", "));
    let known = CAUSES.iter().find(|(cause, _)| cause == by);
    let advice = known.map_or("docs/sharing.md tells of it.", |(_, advice)| advice);
    Finding::minor(printable(&what), advice)
}

fn name(PinnedPart { client, command, clients, .. }: &PinnedPart) -> String {
    let times = if *clients == 1 { String::new() } else { format!(", {clients} times") };
    let with = if command.is_empty() { String::new() } else { format!(" with {command}") };
    format!("'{client}'{with}{times}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_that_the_page_has_is_told_with_advice() {
        let page = include_str!("../../../docs/sharing.md");
        let rows = page.split("| `by` |").nth(1).unwrap().lines().skip(2);
        let causes: Vec<&str> = rows
            .take_while(|row| row.starts_with("| `"))
            .map(|row| row.split('`').nth(1).unwrap())
            .collect();
        assert_eq!(causes, CAUSES.map(|(cause, _)| cause));
    }

    #[test]
    fn what_a_proxy_tells_of_is_bounded_and_printable() {
        let part = |n: usize| PinnedPart {
            client: format!("w{n}\x1b[2J"),
            by: "client".into(),
            command: "CLIENT ID".into(),
            clients: 2,
        };
        let pinned: Vec<PinnedPart> = (0..10).map(part).collect();
        let cause = PinnedByPart { by: "client".into(), clients: 20 };
        let unknown = PinnedByPart { by: "new".into(), clients: 5 };
        let pinned_by = vec![cause, unknown];
        let sharing = SharingPart {
            shared: 7,
            links: 2,
            come: 50,
            pinned: pinned_by,
            ..SharingPart::default()
        };
        let told = clients(&sharing, &pinned);
        assert_eq!(
            told.summary,
            "7 share 2 links; 25 of 50 since the start (50 %) got a connection of their own"
        );
        let what = &told.findings[0].what;
        assert!(
            what.starts_with("client: 20 of 50 clients: 'w0[2J' with CLIENT ID, 2 times, 'w1"),
            "{what}"
        );
        assert!(what.ends_with(", and 2 more (/api/pinned)"), "{what}");
        assert!(told.is_fit() && told.findings[1].advice.contains("docs/sharing.md"));
    }
}
