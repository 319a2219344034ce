//! Names of commands, as far as the proxy treats them differently.

/// The length of the longest name in [`Name`] (`PUNSUBSCRIBE`).
pub(super) const NAME_LIMIT: usize = 12;
/// How many bytes of a longer name are searched for a zero byte. One matters only behind the name of a command,
/// and every such name is shorter than this.
pub(super) const LOOKED_AT: usize = 64;

/// The kind of channels of a pub/sub command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// SUBSCRIBE, UNSUBSCRIBE.
    Plain,
    /// PSUBSCRIBE, PUNSUBSCRIBE.
    Pattern,
    /// SSUBSCRIBE, SUNSUBSCRIBE.
    Shard,
}

/// The argument of CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are sent.
    On,
    /// No replies are sent.
    Off,
    /// The next command's reply is not sent.
    Skip,
}

/// The kind of list or count of all commands that COMMAND gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// COMMAND and COMMAND INFO: an array with an entry for each command.
    Info,
    /// COMMAND DOCS: a map from names to entries.
    Docs,
    /// COMMAND COUNT: how many there are.
    Count,
    /// COMMAND LIST: an array (a set in RESP3) of names, those of subcommands included.
    List,
}

/// The kind of reply in which a node of a Redis Cluster names the addresses of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// CLUSTER SLOTS: an array of ranges of slots.
    Slots,
    /// CLUSTER SHARDS: an array of maps.
    Shards,
    /// CLUSTER NODES: a text with a line for each node.
    Nodes,
    /// CLUSTER REPLICAS and SLAVES: an array of such lines.
    Replicas,
}

/// A command's name, as far as the proxy treats it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// A command that the proxy may answer.
    Own(Own),
    /// An empty line, `*0` or `*-1`: no command at all, and no reply.
    Blank,
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// WATCH.
    Watch,
    /// UNWATCH.
    Unwatch,
    /// DISCARD.
    Discard,
    /// SELECT.
    Select,
    /// SUBSCRIBE, PSUBSCRIBE or SSUBSCRIBE.
    Subscribe(Channels),
    /// UNSUBSCRIBE, PUNSUBSCRIBE or SUNSUBSCRIBE.
    Unsubscribe(Channels),
    /// CLIENT REPLY with a valid argument.
    ClientReply(ReplyMode),
    /// COMMAND, or COMMAND INFO, DOCS, COUNT or LIST without further words.
    Listing(Listing),
    /// CLUSTER SLOTS, SHARDS, NODES, REPLICAS or SLAVES.
    Topology(Topology),
    /// CLIENT CACHING: a flag for the next command only.
    NextOnly,
    /// ASKING: also a flag for the next command only.
    Asking,
    /// AUTH.
    Auth,
    /// HELLO.
    Hello,
    /// CLIENT SETNAME.
    SetName,
    /// RESET.
    Reset,
    /// QUIT: Redis carries out no command behind it.
    Quit,
    /// MONITOR.
    Monitor,
    /// SYNC or PSYNC.
    Sync,
    /// REPLCONF: a replica's command, which may have no reply.
    Replconf,
    /// A name with a zero byte, or CLIENT, COMMAND or CLUSTER with such a subcommand. Redis has no such command,
    /// but takes it for another one where it compares names only up to that byte.
    ZeroByte,
    /// Any other command; it has one reply.
    Other,
}

/// The commands that the proxy answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// LOCK.
    Lock,
    /// UNLOCK.
    Unlock,
    /// RENEW.
    Renew,
    /// MLOCK.
    Mlock,
    /// MUNLOCK.
    Munlock,
    /// LOCK.ATTACH.
    Attach,
    /// LOCK.DETACH.
    Detach,
    /// LOCKGATE.
    Lockgate,
    /// COMMAND INFO, DOCS, GETKEYS or GETKEYSANDFLAGS whose first name is one of these.
    Command,
}

impl Own {
    /// Whether the command takes locks. It is given up if its client hangs up, with all behind it.
    pub(crate) fn takes_locks(self) -> bool {
        matches!(self, Own::Lock | Own::Mlock)
    }
}

/// Returns the proxy's own command with this name, in any case.
pub fn own_by_name(name: &[u8]) -> Option<Own> {
    match name_of(name) {
        ParsedName::Name(Name::Own(own)) => Some(own),
        _ => None,
    }
}

/// The result of reading a command's first word.
pub(super) enum ParsedName {
    /// The first word is the whole name.
    Name(Name),
    /// The next two words and the number of words decide.
    Container(Container),
}

/// A command named by more than its first word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Client,
    Command,
    Cluster,
}

/// Names a command by its first word, in any case.
#[inline]
pub(super) fn name_of(text: &[u8]) -> ParsedName {
    let is = |name: &str| text.eq_ignore_ascii_case(name.as_bytes());
    // Looking at length and first letter keeps ordinary commands cheap.
    let name = match (text.len(), text.first().map(u8::to_ascii_uppercase)) {
        (4, Some(b'L')) if is("LOCK") => Name::Own(Own::Lock),
        (6, Some(b'U')) if is("UNLOCK") => Name::Own(Own::Unlock),
        (5, Some(b'R')) if is("RENEW") => Name::Own(Own::Renew),
        (5, Some(b'M')) if is("MLOCK") => Name::Own(Own::Mlock),
        (7, Some(b'M')) if is("MUNLOCK") => Name::Own(Own::Munlock),
        (11, Some(b'L')) if is("LOCK.ATTACH") => Name::Own(Own::Attach),
        (11, Some(b'L')) if is("LOCK.DETACH") => Name::Own(Own::Detach),
        (5, Some(b'M')) if is("MULTI") => Name::Multi,
        (4, Some(b'E')) if is("EXEC") => Name::Exec,
        (5, Some(b'W')) if is("WATCH") => Name::Watch,
        (7, Some(b'U')) if is("UNWATCH") => Name::Unwatch,
        (7, Some(b'D')) if is("DISCARD") => Name::Discard,
        (6, Some(b'S')) if is("SELECT") => Name::Select,
        (9, Some(b'S')) if is("SUBSCRIBE") => Name::Subscribe(Channels::Plain),
        (10, Some(b'P')) if is("PSUBSCRIBE") => Name::Subscribe(Channels::Pattern),
        (10, Some(b'S')) if is("SSUBSCRIBE") => Name::Subscribe(Channels::Shard),
        (11, Some(b'U')) if is("UNSUBSCRIBE") => Name::Unsubscribe(Channels::Plain),
        (12, Some(b'P')) if is("PUNSUBSCRIBE") => Name::Unsubscribe(Channels::Pattern),
        (12, Some(b'S')) if is("SUNSUBSCRIBE") => Name::Unsubscribe(Channels::Shard),
        (6, Some(b'C')) if is("CLIENT") => return ParsedName::Container(Container::Client),
        (7, Some(b'C')) if is("COMMAND") => return ParsedName::Container(Container::Command),
        (7, Some(b'C')) if is("CLUSTER") => return ParsedName::Container(Container::Cluster),
        (8, Some(b'L')) if is("LOCKGATE") => Name::Own(Own::Lockgate),
        (6, Some(b'A')) if is("ASKING") => Name::Asking,
        (4, Some(b'A')) if is("AUTH") => Name::Auth,
        (5, Some(b'H')) if is("HELLO") => Name::Hello,
        (5, Some(b'R')) if is("RESET") => Name::Reset,
        (4, Some(b'Q')) if is("QUIT") => Name::Quit,
        (7, Some(b'M')) if is("MONITOR") => Name::Monitor,
        (4, Some(b'S')) if is("SYNC") => Name::Sync,
        (5, Some(b'P')) if is("PSYNC") => Name::Sync,
        (8, Some(b'R')) if is("REPLCONF") => Name::Replconf,
        _ if text.contains(&0) => Name::ZeroByte,
        _ => Name::Other,
    };
    ParsedName::Name(name)
}

/// Names a container command of `words` words by its second and third word.
pub(super) fn container_name(
    container: Container,
    second: Option<&[u8]>,
    third: Option<&[u8]>,
    words: usize,
) -> Name {
    if second.is_some_and(|second| second.contains(&0)) {
        return Name::ZeroByte;
    }
    match (container, second, third) {
        (Container::Client, Some(sub), Some(argument)) if words == 3 => client_name(sub, argument),
        (Container::Client, ..) => Name::Other,
        (Container::Command, None, _) => Name::Listing(Listing::Info),
        (Container::Command, Some(sub), argument) => command_name(sub, argument),
        (Container::Cluster, sub, _) => cluster_name(sub.unwrap_or_default()),
    }
}

fn cluster_name(sub: &[u8]) -> Name {
    match sub.to_ascii_uppercase().as_slice() {
        b"SLOTS" => Name::Topology(Topology::Slots),
        b"SHARDS" => Name::Topology(Topology::Shards),
        b"NODES" => Name::Topology(Topology::Nodes),
        b"REPLICAS" | b"SLAVES" => Name::Topology(Topology::Replicas),
        _ => Name::Other,
    }
}

/// Names a COMMAND by its subcommand and the first command name behind it: only if this is the proxy's own can
/// all of the names be ([`Own::Command`]).
fn command_name(sub: &[u8], name: Option<&[u8]>) -> Name {
    let is_ours = name.is_some_and(|name| own_by_name(name).is_some());
    let listing = match sub.to_ascii_uppercase().as_slice() {
        b"INFO" => Listing::Info,
        b"DOCS" => Listing::Docs,
        b"GETKEYS" | b"GETKEYSANDFLAGS" if is_ours => return Name::Own(Own::Command),
        b"COUNT" if name.is_none() => Listing::Count,
        b"LIST" if name.is_none() => Listing::List,
        _ => return Name::Other,
    };
    match name {
        None => Name::Listing(listing),
        Some(_) if is_ours => Name::Own(Own::Command),
        Some(_) => Name::Other,
    }
}

fn client_name(sub: &[u8], argument: &[u8]) -> Name {
    // Redis compares up to the first zero byte.
    let argument = argument.split(|byte| *byte == 0).next().unwrap_or_default();
    if sub.eq_ignore_ascii_case(b"CACHING") {
        // Redis refuses any other word and sets no flag.
        let is = |word: &[u8]| argument.eq_ignore_ascii_case(word);
        return if is(b"YES") || is(b"NO") { Name::NextOnly } else { Name::Other };
    }
    if sub.eq_ignore_ascii_case(b"SETNAME") {
        return Name::SetName;
    }
    if !sub.eq_ignore_ascii_case(b"REPLY") {
        return Name::Other;
    }
    match argument.to_ascii_uppercase().as_slice() {
        b"ON" => Name::ClientReply(ReplyMode::On),
        b"OFF" => Name::ClientReply(ReplyMode::Off),
        b"SKIP" => Name::ClientReply(ReplyMode::Skip),
        _ => Name::Other,
    }
}

/// Returns the name that a client gives itself by these words: CLIENT SETNAME, or HELLO with SETNAME. An empty
/// one removes its name. `None` if the words give no name.
pub(crate) fn given_name<Word: AsRef<[u8]>>(words: &[Word]) -> Option<&[u8]> {
    let is = |word: &Word, name: &str| word.as_ref().eq_ignore_ascii_case(name.as_bytes());
    match words {
        [client, sub, name] if is(client, "CLIENT") && is(sub, "SETNAME") => Some(name.as_ref()),
        [hello, _version, options @ ..] if is(hello, "HELLO") => {
            let mut options = options.iter();
            loop {
                match options.next()? {
                    word if is(word, "SETNAME") => break options.next().map(AsRef::as_ref),
                    // Skips a user and a password, which may be called SETNAME.
                    word if is(word, "AUTH") => drop(options.nth(1)),
                    _ => {}
                }
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_give_their_names() {
        for (words, name) in [
            (&["client", "SetName", "worker"][..], Some("worker")),
            (&["CLIENT", "SETNAME", ""], Some("")),
            (&["HELLO", "3", "setname", "worker"], Some("worker")),
            (&["HELLO", "3", "AUTH", "SETNAME", "secret", "SETNAME", "worker"], Some("worker")),
            (&["CLIENT", "ID"], None),
            (&["CLIENT", "SETNAME"], None),
            (&["CLIENT", "SETNAME", "a", "b"], None),
            (&["HELLO"], None),
            (&["HELLO", "3", "SETNAME"], None),
            (&["HELLO", "3", "AUTH", "SETNAME", "x"], None),
            (&["RESET"], None),
        ] {
            assert_eq!(given_name(words), name.map(str::as_bytes), "{words:?}");
        }
    }
}
