//! A node of a cluster, as described by a line of CLUSTER NODES.

/// Number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16384;

/// One node, as described by another one or by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterNode {
    pub(crate) id: String,
    /// The address that the node announces; empty while no node knows it.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `cluster-announce-hostname`.
    pub(crate) hostname: Option<String>,
    /// Whether the line is about the node that sends it.
    pub(crate) is_myself: bool,
    pub(crate) is_master: bool,
    /// Of a replica, the id of its master.
    pub(crate) master: Option<String>,
    /// Whether a majority of the masters has found that the node is down.
    pub(crate) has_failed: bool,
    /// The configuration epoch: of two that claim a slot, the larger one counts.
    pub(crate) epoch: u64,
    /// Ranges of slots, both ends included.
    pub(crate) slots: Vec<(u16, u16)>,
}

/// The parts of the second word of a line: `host:port@bus,hostname,shard-id=…`.
pub(super) struct NodePlace<'a> {
    pub(super) host: &'a str,
    pub(super) port: &'a str,
    /// From `@` to the comma.
    pub(super) bus: &'a str,
    /// `None`: there is no comma. Empty: the node has no name.
    pub(super) hostname: Option<&'a str>,
    /// From the second comma on.
    pub(super) more: &'a str,
}

impl<'a> NodePlace<'a> {
    /// Reads the word. Returns `None` if it is malformed.
    pub(super) fn read(word: &'a str) -> Option<NodePlace<'a>> {
        let comma = word.find(',').unwrap_or(word.len());
        let (place, rest) = word.split_at(comma);
        let bus = place.find('@').unwrap_or(place.len());
        let (place, bus) = place.split_at(bus);
        // An IPv6 address has colons of its own.
        let (host, port) = place.rsplit_once(':')?;
        let (hostname, more) = match rest.strip_prefix(',') {
            None => (None, ""),
            Some(rest) => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (hostname, more) = rest.split_at(end);
                (Some(hostname), more)
            }
        };
        Some(NodePlace { host, port, bus, hostname, more })
    }
}

impl ClusterNode {
    /// Whether this node may have gained slots since it was `other`: it has slots that it had not, or its epoch
    /// differs, as it does after an import or an election: a slot may have gone and come back in between.
    pub(crate) fn may_have_gained(&self, other: &ClusterNode) -> bool {
        self.epoch != other.epoch || self.has_slots_beyond(other)
    }

    /// Whether this node has slots that the other has not.
    fn has_slots_beyond(&self, other: &ClusterNode) -> bool {
        let has =
            |slot: u16| other.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot));
        self.slots.iter().any(|(first, last)| !(*first..=*last).all(has))
    }

    /// Reads a line. Returns `None` if it is malformed.
    fn read(line: &str) -> Option<ClusterNode> {
        let mut words = line.split(' ');
        let (id, address, flags) = (words.next()?, words.next()?, words.next()?);
        let address = NodePlace::read(address)?;
        let (master, _ping, _pong, epoch) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let _link = words.next()?;
        let is = |flag: &str| flags.split(',').any(|other| other == flag);
        // Slots on their way from or to another node are in brackets, and count where they are now.
        let slots = words.filter(|word| !word.starts_with('[') && !word.is_empty());
        let range = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let range: (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            (range.0 <= range.1 && range.1 < SLOTS).then_some(range)
        };
        Some(ClusterNode {
            id: id.to_owned(),
            host: address.host.to_owned(),
            port: address.port.parse().ok()?,
            hostname: address.hostname.filter(|name| !name.is_empty()).map(str::to_owned),
            is_myself: is("myself"),
            is_master: is("master"),
            master: Some(master).filter(|id| *id != "-").map(str::to_owned),
            has_failed: is("fail"),
            epoch: epoch.parse().ok()?,
            slots: slots.map(range).collect::<Option<_>>()?,
        })
        .filter(|node| !node.id.is_empty())
    }
}

/// Reads the reply to CLUSTER NODES. Leaves out nodes that are only being met, or have no address any more. Returns
/// `None` if the text is no such reply.
pub(crate) fn read(text: &str) -> Option<Vec<ClusterNode>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let known = |line: &&str| {
        let flags = line.split(' ').nth(2).unwrap_or_default();
        !flags.split(',').any(|flag| matches!(flag, "handshake" | "noaddr"))
    };
    lines.filter(known).map(ClusterNode::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_each_version_writes_it() {
        let text = "aa 10.0.0.1:7000@17000,host-a,shard-id=5 myself,master - 0 0 3 connected 0-5 7 [9->-bb]\n\
                    bb ::1:7001@17001 slave aa 0 1 3 connected\n\
                    cc 10.0.0.3:7002@17002, master,fail - 0 1 4 disconnected\n\
                    dd :0@0 master,noaddr - 0 1 4 disconnected\n\
                    ee 10.0.0.4:7003@17003 handshake - 0 0 0 disconnected\n";
        let nodes = read(text).unwrap();
        let ids: Vec<&str> = nodes.iter().map(|node| &*node.id).collect();
        assert_eq!(ids, ["aa", "bb", "cc"]);
        let [a, b, c] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!((&*a.host, a.port, a.hostname.as_deref()), ("10.0.0.1", 7000, Some("host-a")));
        assert!(a.is_myself && a.is_master && !a.has_failed);
        assert_eq!((a.epoch, &a.slots[..]), (3, &[(0, 5), (7, 7)][..]));
        assert_eq!((&*b.host, b.port, b.is_master), ("::1", 7001, false));
        assert!(c.has_failed && c.hostname.is_none());
        let with = |slots: &[(u16, u16)]| ClusterNode { slots: slots.to_vec(), ..a.clone() };
        assert!(!with(&[(1, 2), (7, 7)]).has_slots_beyond(a) && !with(&[]).has_slots_beyond(a));
        assert!(with(&[(0, 6)]).has_slots_beyond(a) && with(&[(8, 9)]).has_slots_beyond(a));
        assert!(!a.may_have_gained(a) && with(&[(0, 6)]).may_have_gained(a));
        assert!(ClusterNode { epoch: a.epoch + 1, ..a.clone() }.may_have_gained(a));
        assert_eq!((a.master.as_deref(), b.master.as_deref()), (None, Some("aa")));
        let old = "aa 10.0.0.1:7000 myself,master - 0 0 0 connected 0-16383";
        assert_eq!(read(old).unwrap()[0].port, 7000);
        for garbage in
            ["hello", "aa 10.0.0.1 master - 0 0 0 connected", "a b:1 c d e f g h 9-16384"]
        {
            assert_eq!(read(garbage), None, "{garbage}");
        }
    }
}
