//! Which clients got a connection of their own, and by what: a table of bounded size, whatever clients send.

use super::share_metrics::PinCause;

/// Most kinds that are told, those of [`OTHERS`] among them, of which there is one for each cause.
const MOST_KINDS: usize = 64;
/// Most kinds that are told apart. Each takes some 200 bytes at most.
const MOST_APART: usize = MOST_KINDS - PinCause::ALL.len();
/// Most bytes that are told of a client's name, and of its library's.
const LONGEST_NAME: usize = 64;
/// Stands for all clients for which there was no room.
const OTHERS: &str = "(others)";

/// Clients that got a connection of their own in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinnedKind {
    /// The client's name; or its library's, with its address; or its address.
    pub(crate) client: String,
    pub(super) by: PinCause,
    /// The command's name; empty if there is none that could be one.
    pub(crate) command: String,
}

impl PinnedKind {
    /// What they sent, as in the label `by` of `lockgate_pinned_total`.
    pub(crate) fn by(&self) -> &'static str {
        self.by.as_str()
    }
}

/// Returns the beginning of a name that a client chose, fit for a log or a page.
pub(super) fn shown(name: &[u8]) -> String {
    let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
    name.iter().take(LONGEST_NAME).map(shown).collect()
}

/// The kinds, each with how many clients there were of it.
#[derive(Default)]
pub(super) struct PinnedKinds {
    /// The oldest first.
    apart: Vec<(PinnedKind, u64)>,
    /// Clients of the kinds that had to go, by [`PinCause`].
    others: [u64; PinCause::ALL.len()],
}

impl PinnedKinds {
    /// Counts a client. Where there is no room for its kind, the oldest of the least frequent ones goes.
    pub(super) fn note(&mut self, kind: PinnedKind) {
        if let Some((_, clients)) = self.apart.iter_mut().find(|(known, _)| *known == kind) {
            *clients += 1;
            return;
        }
        let least = self.apart.iter().enumerate().min_by_key(|(_, (_, clients))| *clients);
        if let Some((at, _)) = least
            && self.apart.len() >= MOST_APART
        {
            let (gone, clients) = self.apart.remove(at);
            self.others[gone.by as usize] += clients;
        }
        self.apart.push((kind, 1));
    }

    /// Returns all kinds, the most frequent first.
    pub(super) fn all(&self) -> Vec<(PinnedKind, u64)> {
        let others = PinCause::ALL.into_iter().zip(self.others).map(|(by, clients)| {
            (PinnedKind { client: OTHERS.into(), by, command: String::new() }, clients)
        });
        let others = others.filter(|(_, clients)| *clients > 0);
        let mut all: Vec<_> = self.apart.iter().cloned().chain(others).collect();
        all.sort_by_key(|(_, clients)| std::cmp::Reverse(*clients));
        all
    }

    /// Returns how many clients there were of each cause, the most frequent first.
    pub(super) fn by_cause(&self) -> Vec<(&'static str, u64)> {
        let mut sums = self.others;
        for (kind, clients) in &self.apart {
            sums[kind.by as usize] += clients;
        }
        let named = PinCause::ALL.map(PinCause::as_str).into_iter().zip(sums);
        let mut sums: Vec<_> = named.filter(|(_, clients)| *clients > 0).collect();
        sums.sort_by_key(|(_, clients)| std::cmp::Reverse(*clients));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(client: &str, by: PinCause) -> PinnedKind {
        PinnedKind { client: client.into(), by, command: "MULTI".into() }
    }

    #[test]
    fn names_that_clients_choose_take_bounded_room_and_each_client_is_counted() {
        let mut kinds = PinnedKinds::default();
        for n in 0..3000 {
            kinds.note(kind("often", PinCause::Transaction));
            kinds.note(kind(&n.to_string(), PinCause::ALL[n % PinCause::ALL.len()]));
        }
        let all = kinds.all();
        assert_eq!(all.len(), MOST_KINDS);
        assert_eq!(all.iter().map(|(_, clients)| clients).sum::<u64>(), 6000);
        assert_eq!((&*all[0].0.client, all[0].1), ("often", 3000));
        assert!(all.iter().any(|(kind, _)| kind.client == "2999"), "the latest are told");
        let by_cause = kinds.by_cause();
        assert_eq!(by_cause[0], ("transaction", 3250));
        assert_eq!(by_cause.iter().map(|(_, clients)| clients).sum::<u64>(), 6000);
    }

    #[test]
    fn a_name_is_short_and_printable() {
        assert_eq!(shown(b"a\r\nb\x1b[2J"), "a??b?[2J");
        assert_eq!(shown(&[b'x'; 1000]), "x".repeat(LONGEST_NAME));
    }
}
