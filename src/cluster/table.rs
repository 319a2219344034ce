//! Which front stands for an id or an address in a reply.

use std::collections::HashMap;

/// What a reply says in place of a node's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownAs {
    /// The port of the node's front.
    Front(u16),
    /// The address itself: it is that of the front already.
    AsItIs,
    /// Nothing: the node has no front, or is not known.
    Nothing,
}

/// The nodes that have a front.
#[derive(Debug, Default)]
pub(crate) struct FrontTable {
    by_id: HashMap<String, ShownAs>,
    by_address: HashMap<(String, u16), ShownAs>,
    /// [`ShownAs::Nothing`] for a port that several nodes have.
    by_port: HashMap<u16, ShownAs>,
}

impl FrontTable {
    /// Adds a node by its id and the hosts by which replies name it.
    pub(crate) fn add(&mut self, id: &str, hosts: &[&str], port: u16, shown: ShownAs) {
        self.by_id.insert(id.to_owned(), shown);
        for host in hosts.iter().filter(|host| !host.is_empty()) {
            self.by_address.insert(((*host).to_owned(), port), shown);
        }
        self.by_port.entry(port).and_modify(|other| *other = ShownAs::Nothing).or_insert(shown);
    }

    /// Whether nodes announce fronts, so that replicas may come through them.
    pub(crate) fn has_fronts_announced(&self) -> bool {
        self.by_id.values().any(|shown| *shown == ShownAs::AsItIs)
    }

    /// Returns how the node with this id is shown.
    pub(crate) fn node(&self, id: &str) -> ShownAs {
        self.by_id.get(id).copied().unwrap_or(ShownAs::Nothing)
    }

    /// Returns how the node at this address is shown. A node that does not tell its host
    /// (`cluster-preferred-endpoint-type unknown-endpoint`) is at `asked`, the host of the node that answers, or else
    /// is the only one with that port.
    pub(crate) fn address(&self, host: &str, port: u16, asked: &str) -> ShownAs {
        let is_untold = host.is_empty() || host == "?";
        let host = if is_untold { asked } else { host };
        let found = self.by_address.get(&(host.to_owned(), port)).copied();
        let found = found.or_else(|| self.by_port.get(&port).copied().filter(|_| is_untold));
        found.unwrap_or(ShownAs::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_all_that_it_is_told_with() {
        let mut table = FrontTable::default();
        table.add("a", &["10.0.0.1", "host-a"], 7000, ShownAs::Front(1));
        table.add("b", &["10.0.0.2"], 7000, ShownAs::Front(2));
        table.add("c", &["10.0.0.2"], 7001, ShownAs::AsItIs);
        assert_eq!(table.node("a"), ShownAs::Front(1));
        assert_eq!(table.node("z"), ShownAs::Nothing);
        assert_eq!(table.address("host-a", 7000, ""), ShownAs::Front(1));
        assert_eq!(table.address("10.0.0.2", 7001, ""), ShownAs::AsItIs);
        assert_eq!(table.address("", 7000, "10.0.0.2"), ShownAs::Front(2));
        assert_eq!(table.address("?", 7001, "elsewhere"), ShownAs::AsItIs, "the only one there");
        assert_eq!(table.address("", 7000, "elsewhere"), ShownAs::Nothing, "one of two");
        assert_eq!(table.address("elsewhere", 7001, "10.0.0.2"), ShownAs::Nothing);
    }
}
