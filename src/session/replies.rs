//! Data node → client: which bytes of the replies pass, and what the replies tell the session.

use tracing::warn;

use super::{
    core::{Core, Tracking},
    filter::{DROPPED, Filter, Heard, HeldTopology, REPLY_LIMIT, Whose},
    guarded::log::{EXEC, tell_refused},
    owed::{Entry, Verdict},
    session_metrics::GuardedWrite,
};
use crate::resp::reply::NextReply;

impl Core {
    /// Takes in bytes from the data node. Returns from where on they pass, behind the client's
    /// outbox.
    pub(super) fn data_sent(&mut self, bytes: &[u8]) -> usize {
        if self.hides() {
            return bytes.len();
        }
        let (mut from, mut pos) = (0, 0);
        let is_watched = self.desk.shared.guards.is_some() || self.idiom_look.is_some();
        // A list that was begun must be ended, as its announced length was changed.
        while self.tracking == Tracking::Matched || self.filter.is_some() {
            let desk = &mut self.desk;
            let run = desk.owed.plain_run(&desk.conn.state);
            if run > 0 && (desk.conn.state.known || !is_watched) {
                let count = self.replies.skip_flat(bytes, &mut pos, run);
                desk.owed.plain(count, &desk.conn.state);
            }
            if self.replies.between_frames()
                && pos < bytes.len()
                && let Some(special) = desk.owed.next_special()
                && !self.begin_special(special, bytes[pos])
            {
                if self.hides() {
                    self.to_client.push(&bytes[from..pos]);
                    from = bytes.len();
                }
                break;
            }
            if self.desk.view.is_some()
                && self.filter.is_none()
                && self.replies.between_frames()
                && bytes.get(pos) == Some(&b'-')
            {
                self.hold(HeldTopology::Error);
            }
            let begin = pos;
            // The head of an array whose elements the client gets is read by itself first.
            let alone = self.filter.as_ref().is_some_and(Filter::awaits_head);
            let line = if alone { memchr::memchr(b'\n', &bytes[pos..]) } else { None };
            let end = line.map_or(bytes.len(), |end| pos + end + 1);
            let next = self.replies.next(&bytes[..end], &mut pos);
            let whole = matches!(next, NextReply::Frame(_));
            let state = &mut self.desk.conn.state;
            let verdict = match next {
                NextReply::Frame(_) if self.tracking != Tracking::Matched => Some(Verdict::Pass),
                NextReply::Frame(frame) => {
                    let verdict = self.desk.owed.frame(frame, state);
                    if !state.known {
                        // RESET logs the client out, and is answered even to a client that never
                        // logged in.
                        state.known = !matches!(frame.kind(), b'-' | b'>')
                            && !frame.head.starts_with(b"+RESET");
                    }
                    Some(verdict)
                }
                NextReply::End => None,
                NextReply::Broken => Some(Verdict::Lost),
            };
            let heard = match self.filter {
                None => Heard::Nothing,
                Some(_) => {
                    self.pass_filter(bytes, (begin, pos), &mut from, (verdict.is_some(), whole))
                }
            };
            match verdict {
                Some(Verdict::Lost) => {
                    self.relay();
                    if self.hides() {
                        self.to_client.push(bytes.get(from..begin).unwrap_or_default());
                        return bytes.len();
                    }
                    continue;
                }
                Some(verdict @ (Verdict::Reset | Verdict::Named)) => self.become_another(verdict),
                Some(Verdict::Seen { count, is_refused }) => {
                    self.settle_sights(count.into(), is_refused);
                }
                Some(Verdict::Pass) | None => {}
            }
            if !self.hear(heard) || self.hides() {
                from = bytes.len();
            }
            if self.hides() {
                break;
            }
            if verdict.is_none() && pos >= bytes.len() {
                break;
            }
        }
        debug_assert!(from <= bytes.len());
        from
    }

    /// Has the filter see the bytes of a reply from `begin` to `pos`. Adds to the client's outbox what stands in their
    /// place, and all before them from `from` on, which then tells where the next bytes to pass begin. `ended` and
    /// `whole`: those of [`Filter::feed`].
    fn pass_filter(
        &mut self,
        bytes: &[u8],
        (begin, pos): (usize, usize),
        from: &mut usize,
        (ended, whole): (bool, bool),
    ) -> Heard {
        let Some(filter) = &mut self.filter else { return Heard::Nothing };
        let resp3 = self.desk.conn.state.resp3;
        let mut fed = filter.feed(&bytes[begin..pos], ended, whole, resp3);
        if let Some(held) = filter.holds()
            && !self.desk.reserve_room(self.desk.unsent.len() + held, true)
        {
            fed.heard = Heard::Unreadable;
        }
        if fed.taken > 0 || !fed.instead.is_empty() {
            self.to_client.push(&bytes[*from..begin]);
            self.to_client.push(&fed.instead);
            *from = begin + fed.taken;
        }
        if !fed.behind.is_empty() {
            self.to_client.push(&bytes[*from..pos]);
            self.to_client.push(&fed.behind);
            *from = pos;
        }
        if ended {
            self.filter = None;
        }
        fed.heard
    }

    /// Takes in that the client has another name, or none.
    // Rare, and kept out of the loop over replies, whose registers it would take.
    #[cold]
    fn become_another(&mut self, verdict: Verdict) {
        // RESET counts as the end of one connection and the beginning of another.
        if verdict == Verdict::Reset {
            let shared = self.desk.shared.clone();
            if let Some(tokens) = self.desk.tokens.changed() {
                tokens.give_back(|key, token| shared.free_keys(key, token));
            }
            self.desk.card.rename(b"");
        } else if let Some(name) = self.desk.owed.next_name() {
            self.desk.card.rename(&name);
        }
    }

    /// Whether nothing passes to the client any more: the connection is about to be closed, and what
    /// comes may name nodes of a cluster, or be taken for the reply to another command.
    fn hides(&self) -> bool {
        self.tracking == Tracking::Closing && self.desk.view.is_some()
    }

    /// Takes in what a filtered reply has told. Returns `false` if no more of the bytes received may pass.
    fn hear(&mut self, heard: Heard) -> bool {
        match heard {
            Heard::Nothing => {}
            Heard::Reply(reply) => self.step(|job, desk| job.reply(&reply, desk)),
            Heard::Unexpected(reply) => {
                // Nothing that rests on the question is carried out.
                self.relay();
                if self.tracking != Tracking::Relayed || reply.len() >= REPLY_LIMIT {
                    self.tracking = Tracking::Closing;
                    return false;
                }
                self.to_client.push(&reply);
            }
            Heard::Made => self.step(|job, desk| job.made(desk)),
            Heard::Held(made, reply) => self.step(|job, desk| job.held(made, reply, desk)),
            Heard::NotMade(reply) => self.step(|job, desk| job.not_made(&reply, desk)),
            Heard::Elements(made) => {
                // Each element is a reply of its own; the last one is `Guarded` again.
                self.filter = None;
                self.step(|job, desk| job.made_several(made, desk));
                if self.tracking != Tracking::Matched {
                    return false;
                }
                self.replies.enter();
            }
            Heard::Dropped => {
                self.desk.shared.metrics.guarded(GuardedWrite::Fenced);
                tell_refused(GuardedWrite::Fenced, EXEC, DROPPED.as_bytes(), &self.desk);
            }
            Heard::Unreadable => self.tracking = Tracking::Closing,
            Heard::NoList => self.filter = None,
            Heard::TooLong => {
                self.filter = None;
                self.tracking = Tracking::Closing;
                warn!("a reply about the cluster is too long to be told with the fronts; closed");
            }
        }
        true
    }

    /// Looks at the first byte of a reply that is handled specially. Returns `false` if all bytes
    /// only pass from here on.
    fn begin_special(&mut self, special: Entry, first: u8) -> bool {
        if matches!(special, Entry::ArmedExec)
            && first != b'>'
            && let Some(limit) = self.holds()
        {
            if first != b'-' && !self.desk.owed.topologies().is_empty() {
                // A reply that is held until replicas acknowledge passes unchanged, and so would name nodes.
                self.tracking = Tracking::Closing;
                return false;
            }
            self.filter = Some(Filter::held(Whose::Clients, limit));
            return true;
        }
        match special {
            // An error is an ordinary reply. Anything else begins a replication stream, which is
            // not RESP.
            Entry::Sync if first != b'-' => {
                self.relay();
                return false;
            }
            Entry::Ours(expected) if first != b'>' => self.filter = Some(Filter::ours(expected)),
            Entry::Guarded if first != b'>' => {
                if let Some((whose, silent)) = self.wraps() {
                    let held = self.holds().map(|limit| Filter::held(whose, limit));
                    self.filter = Some(held.unwrap_or_else(|| Filter::unwrap(whose, silent)));
                }
            }
            // An error may be a redirection.
            Entry::ArmedExec if first == b'-' && self.desk.view.is_some() => {}
            Entry::ArmedExec if first != b'>' && !self.desk.owed.topologies().is_empty() => {
                let topologies = self.desk.owed.topologies();
                self.hold(match self.desk.conn.state.watching {
                    true => HeldTopology::Exec(topologies),
                    false => HeldTopology::ArmedExec(topologies),
                });
            }
            Entry::ArmedExec if first != b'>' && !self.desk.conn.state.watching => {
                self.filter = Some(Filter::unwrap(Whose::Clients, false));
            }
            // An error may be a redirection.
            Entry::Topology(kind) if !matches!(first, b'>' | b'-') => {
                self.hold(HeldTopology::Topology(kind));
            }
            Entry::Exec if !matches!(first, b'>' | b'-') => {
                let topologies = self.desk.owed.topologies();
                self.hold(HeldTopology::Exec(topologies));
            }
            // A RESP2 subscriber may not ask for a list, so this is a message.
            Entry::Listing(listing) if !self.desk.conn.state.is_resp2_subscriber() => {
                self.filter = Filter::listing(listing, first);
            }
            _ => {}
        }
        true
    }

    /// Holds the reply that comes next until it is whole, as it may name nodes of a cluster.
    fn hold(&mut self, what: HeldTopology) {
        self.filter = self.desk.view.clone().map(|view| Filter::shown(view, what));
    }

    /// Takes in that the data node has closed: bytes kept back of a reply pass.
    pub(super) fn data_closed(&mut self) {
        if let Some(filter) = self.filter.take() {
            self.to_client.push(&filter.rest());
        }
    }
}
