//! Replies that name nodes of a cluster, with the fronts in place of the nodes. A node without a front
//! is left out: no client is led past the proxy.

use std::{borrow::Cow, net::IpAddr};

use super::{
    cluster_node::NodePlace,
    table::{FrontTable, ShownAs},
};
use crate::resp::{
    encode,
    name::Topology,
    number,
    reply::{NextReply, ReplyScanner},
};

/// The error in place of a redirection to a node without a front. Client libraries try again after a pause.
const NO_FRONT: &str = "TRYAGAIN the proxy has no front for the node at";
/// The error in place of a reply that cannot be read.
const UNREAD: &str = "CLUSTERDOWN the proxy cannot read what the node tells of its cluster";
/// The deepest nesting of a reply about a cluster; CLUSTER SHARDS has four levels.
const DEEPEST: usize = 8;

/// How the nodes are shown to one client.
pub(crate) struct Face<'a> {
    pub(crate) table: &'a FrontTable,
    /// The host of all fronts.
    pub(crate) host: &'a str,
    /// Whether the client's listener speaks TLS.
    pub(crate) tls: bool,
    /// The host of the node that answers.
    pub(crate) asked: &'a str,
}

/// Whether an error may be a redirection.
#[inline]
pub(crate) fn may_redirect(error: &[u8]) -> bool {
    let is = |code: &[u8]| error.iter().zip(code).all(|(byte, wanted)| byte == wanted);
    is(b"-MOVED ") || is(b"-ASK ")
}

/// What becomes of an error line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redirected {
    /// The line is no redirection, or names a front already.
    AsItIs,
    /// The line with the front.
    Front(Vec<u8>),
    /// An error: the node has no front.
    Nowhere(Vec<u8>),
}

impl Face<'_> {
    /// Puts the front into `-MOVED slot host:port` or `-ASK slot host:port`.
    pub(crate) fn redirect(&self, line: &[u8]) -> Redirected {
        let text = line.strip_suffix(b"\r\n").and_then(|line| str::from_utf8(line).ok());
        let words: Vec<&str> = text.unwrap_or_default().split(' ').collect();
        let [code @ ("-MOVED" | "-ASK"), slot, place] = words[..] else {
            return Redirected::AsItIs;
        };
        let parsed =
            place.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = parsed.filter(|_| slot.parse::<u16>().is_ok()) else {
            return Redirected::AsItIs;
        };
        match self.table.address(host, port, self.asked) {
            ShownAs::AsItIs => Redirected::AsItIs,
            ShownAs::Front(port) => {
                Redirected::Front(format!("{code} {slot} {}:{port}\r\n", self.host).into_bytes())
            }
            ShownAs::Nothing => {
                let mut error = Vec::new();
                encode::error(&mut error, &format!("{NO_FRONT} {place} (slot {slot})"));
                Redirected::Nowhere(error)
            }
        }
    }

    /// Puts the fronts into a whole reply about the cluster. Returns `None` if the reply stays as it
    /// is: an error, `+QUEUED` or a null.
    pub(crate) fn topology(&self, reply: &[u8], kind: Topology) -> Option<Vec<u8>> {
        if matches!(reply.first(), None | Some(b'-' | b'+' | b'_')) {
            return None;
        }
        let mut pos = 0;
        let changed = part(reply, &mut pos, 0).and_then(|reply| match kind {
            Topology::Slots => self.slots(reply),
            Topology::Shards => self.shards(reply),
            Topology::Nodes => self.text(reply),
            Topology::Replicas => {
                let ReplyPart::List { kind, parts } = reply else { return None };
                let lines =
                    parts.into_iter().map(|line| self.text(line)).collect::<Option<Vec<_>>>()?;
                let is_there =
                    |line: &ReplyPart<'_>| !matches!(line, ReplyPart::Text { text, .. } if text.is_empty());
                Some(ReplyPart::List { kind, parts: lines.into_iter().filter(is_there).collect() })
            }
        });
        let mut out = Vec::with_capacity(reply.len());
        match changed {
            Some(changed) => changed.write(&mut out),
            None => encode::error(&mut out, UNREAD),
        }
        Some(out)
    }

    /// Puts the fronts into EXEC's whole reply, in which the elements with these indexes are about the
    /// cluster. Returns `None` if the reply stays as it is.
    pub(crate) fn exec(&self, reply: &[u8], asked: &[(usize, Topology)]) -> Option<Vec<u8>> {
        let head = memchr::memchr(b'\n', reply)? + 1;
        if reply[0] != b'*' || reply.starts_with(b"*-") {
            return None;
        }
        let mut out = reply[..head].to_vec();
        let (mut pos, mut index) = (head, 0);
        while pos < reply.len() {
            let begin = pos;
            let mut scanner = ReplyScanner::default();
            let NextReply::Frame(frame) = scanner.next(reply, &mut pos) else { return None };
            let element = &reply[begin..pos];
            // A push inside EXEC's reply is not one of its elements.
            let is_push = frame.is_push();
            let about = asked.iter().find(|(at, _)| *at == index && !is_push);
            match about.and_then(|(_, kind)| self.topology(element, *kind)) {
                Some(changed) => out.extend_from_slice(&changed),
                None => out.extend_from_slice(element),
            }
            index += usize::from(!is_push);
        }
        Some(out)
    }

    /// Rewrites CLUSTER SLOTS: each range is its ends and its nodes, the master first.
    fn slots<'a>(&self, reply: ReplyPart<'a>) -> Option<ReplyPart<'a>> {
        let ReplyPart::List { kind, parts } = reply else { return None };
        let mut ranges = Vec::with_capacity(parts.len());
        for range in parts {
            let ReplyPart::List { kind, parts } = range else { return None };
            let mut parts = parts.into_iter();
            let mut shown = vec![parts.next()?, parts.next()?];
            for (index, node) in parts.enumerate() {
                match self.slots_node(node)? {
                    Some(node) => shown.push(node),
                    // The next node is no master, but would be taken for one.
                    None if index == 0 => break,
                    None => {}
                }
            }
            if shown.len() > 2 {
                ranges.push(ReplyPart::List { kind, parts: shown });
            }
        }
        Some(ReplyPart::List { kind, parts: ranges })
    }

    /// Rewrites a node in CLUSTER SLOTS: host, port, and in later versions its id and more about the host. Returns
    /// `Some(None)` if the node has no front.
    fn slots_node<'a>(&self, node: ReplyPart<'a>) -> Option<Option<ReplyPart<'a>>> {
        let ReplyPart::List { kind, mut parts } = node else { return None };
        let port = u16::try_from(parts.get(1)?.number()?).ok()?;
        let shown = match parts.get(2).and_then(ReplyPart::text) {
            Some(id) => self.table.node(id),
            None => self.table.address(parts[0].text().unwrap_or_default(), port, self.asked),
        };
        match shown {
            ShownAs::Nothing => return Some(None),
            ShownAs::AsItIs => {}
            ShownAs::Front(port) => {
                parts[0] = ReplyPart::bulk(self.host);
                parts[1] = ReplyPart::integer(port);
                if let Some(ReplyPart::List { parts: more, .. }) = parts.get_mut(3) {
                    more.clear();
                }
            }
        }
        Some(Some(ReplyPart::List { kind, parts }))
    }

    /// Rewrites CLUSTER SHARDS: a map for each shard, with its nodes.
    fn shards<'a>(&self, reply: ReplyPart<'a>) -> Option<ReplyPart<'a>> {
        let ReplyPart::List { kind, mut parts } = reply else { return None };
        for shard in &mut parts {
            let ReplyPart::List { parts: fields, .. } = shard else { return None };
            let at = fields.iter().step_by(2).position(|key| key.text() == Some("nodes"))? * 2 + 1;
            let ReplyPart::List { parts: nodes, .. } = fields.get_mut(at)? else { return None };
            let told = std::mem::take(nodes);
            for node in told {
                nodes.extend(self.shard_node(node)?);
            }
        }
        Some(ReplyPart::List { kind, parts })
    }

    /// Rewrites a node in CLUSTER SHARDS. Returns `Some(None)` if the node has no front.
    fn shard_node<'a>(&self, node: ReplyPart<'a>) -> Option<Option<ReplyPart<'a>>> {
        let ReplyPart::List { kind, parts } = node else { return None };
        let id = parts.chunks_exact(2).find(|pair| pair[0].text() == Some("id"))?;
        let port = match self.table.node(id[1].text()?) {
            ShownAs::Nothing => return Some(None),
            ShownAs::AsItIs => return Some(Some(ReplyPart::List { kind, parts })),
            ShownAs::Front(port) => port,
        };
        let mut fields = Vec::with_capacity(parts.len());
        let (mut has_port, is_name) = (false, self.host.parse::<IpAddr>().is_err());
        let mut parts = parts.into_iter();
        while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
            let value = match key.text()? {
                "port" | "tls-port" if has_port => continue,
                "port" | "tls-port" => {
                    has_port = true;
                    fields.push(ReplyPart::bulk(if self.tls { "tls-port" } else { "port" }));
                    fields.push(ReplyPart::integer(port));
                    continue;
                }
                "hostname" if !is_name => continue,
                "ip" | "endpoint" | "hostname" => ReplyPart::bulk(self.host),
                _ => value,
            };
            fields.push(key);
            fields.push(value);
        }
        Some(Some(ReplyPart::List { kind, parts: fields }))
    }

    /// Rewrites a text with lines as in CLUSTER NODES.
    fn text<'a>(&self, text: ReplyPart<'a>) -> Option<ReplyPart<'a>> {
        let ReplyPart::Text { kind, text } = text else { return None };
        // A verbatim string begins with its format.
        let (format, lines) = match kind {
            b'=' => text.split_at_checked(4)?,
            _ => text.split_at(0),
        };
        let mut out = format.to_vec();
        for line in str::from_utf8(lines).ok()?.split_inclusive('\n') {
            if line.trim_end().is_empty() {
                out.extend_from_slice(line.as_bytes());
            } else if let Some(line) = self.line(line)? {
                out.extend_from_slice(line.as_bytes());
            }
        }
        Some(ReplyPart::Text { kind, text: out.into() })
    }

    /// Rewrites a line of CLUSTER NODES. Returns `Some(None)` if the node has no front.
    fn line<'a>(&self, line: &'a str) -> Option<Option<Cow<'a, str>>> {
        let (id, rest) = line.split_once(' ')?;
        let (address, rest) = rest.split_once(' ')?;
        let NodePlace { bus, hostname, more, .. } = NodePlace::read(address)?;
        Some(match self.table.node(id) {
            ShownAs::Nothing => None,
            ShownAs::AsItIs => Some(line.into()),
            ShownAs::Front(port) => {
                let comma = if hostname.is_some() { "," } else { "" };
                // A front has no bus. Redis writes 0 for a bus port that is not known.
                let bus = if bus.is_empty() { "" } else { "@0" };
                Some(format!("{id} {}:{port}{bus}{comma}{more} {rest}", self.host).into())
            }
        })
    }
}

/// A part of a reply.
#[derive(Debug, Clone)]
enum ReplyPart<'a> {
    /// A number, a null or another part that is one line, with its line end.
    Line(Cow<'a, [u8]>),
    /// A bulk or verbatim string.
    Text { kind: u8, text: Cow<'a, [u8]> },
    /// An array, a set, or a map: keys and values in turn.
    List { kind: u8, parts: Vec<ReplyPart<'a>> },
}

/// Reads the part at `*pos`. Returns `None` if there is none.
fn part<'a>(reply: &'a [u8], pos: &mut usize, depth: usize) -> Option<ReplyPart<'a>> {
    let rest = reply.get(*pos..)?;
    let end = memchr::memchr(b'\n', rest)? + 1;
    let line = &rest[..end];
    *pos += end;
    let kind = line[0];
    let length = || number::integer(line.get(1..)?.strip_suffix(b"\r\n")?);
    match kind {
        b'$' | b'=' => {
            let Ok(length) = usize::try_from(length()?) else {
                return Some(ReplyPart::Line(line.into()));
            };
            let text = reply.get(*pos..pos.checked_add(length)?)?;
            *pos += length + 2;
            Some(ReplyPart::Text { kind, text: text.into() })
        }
        b'*' | b'~' | b'%' if depth < DEEPEST => {
            let Ok(length) = usize::try_from(length()?) else {
                return Some(ReplyPart::Line(line.into()));
            };
            let length = if kind == b'%' { length.checked_mul(2)? } else { length };
            // Reserves no more than there are bytes: a length may say anything.
            let mut parts = Vec::with_capacity(length.min(reply.len() - *pos));
            for _ in 0..length {
                parts.push(part(reply, pos, depth + 1)?);
            }
            Some(ReplyPart::List { kind, parts })
        }
        b':' | b'_' | b'#' | b',' | b'+' | b'(' => Some(ReplyPart::Line(line.into())),
        _ => None,
    }
}

impl ReplyPart<'_> {
    fn bulk(text: &str) -> ReplyPart<'static> {
        ReplyPart::Text { kind: b'$', text: text.as_bytes().to_vec().into() }
    }

    fn integer(value: u16) -> ReplyPart<'static> {
        ReplyPart::Line(format!(":{value}\r\n").into_bytes().into())
    }

    fn text(&self) -> Option<&str> {
        match self {
            ReplyPart::Text { text, .. } => str::from_utf8(text).ok(),
            _ => None,
        }
    }

    fn number(&self) -> Option<i64> {
        match self {
            ReplyPart::Line(line) => {
                number::integer(line.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
            }
            _ => None,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, kind: u8, length: usize| {
            out.push(kind);
            out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            out.extend_from_slice(b"\r\n");
        };
        match self {
            ReplyPart::Line(line) => out.extend_from_slice(line),
            ReplyPart::Text { kind, text } => {
                head(out, *kind, text.len());
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            ReplyPart::List { kind, parts } => {
                let pairs = if *kind == b'%' { 2 } else { 1 };
                head(out, *kind, parts.len() / pairs);
                parts.iter().for_each(|part| part.write(out));
            }
        }
    }
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
