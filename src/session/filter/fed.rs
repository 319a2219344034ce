//! Result of filtering a piece of a reply, and what the reply has told.

/// Result of filtering a piece of a reply.
#[derive(Default)]
pub(in crate::session) struct Fed {
    /// Number of bytes at the piece's beginning that do not pass.
    pub(in crate::session) taken: usize,
    /// Bytes that pass in their place.
    pub(in crate::session) instead: Vec<u8>,
    /// Bytes that pass behind the piece.
    pub(in crate::session) behind: Vec<u8>,
    /// Facts that the reply has told with this piece.
    pub(in crate::session) heard: Heard,
}

/// Facts that a filtered reply tells.
#[derive(Default)]
pub(in crate::session) enum Heard {
    /// Nothing: the reply is not at its end, or has passed.
    #[default]
    Nothing,
    /// The whole reply to a question of the proxy's.
    Reply(Vec<u8>),
    /// Something else stands where the reply to a question of the proxy's is awaited.
    Unexpected(Vec<u8>),
    /// The length of the script's array: this many replies come out of it.
    Elements(usize),
    /// The guarded write was made, and its reply has passed.
    Made,
    /// So many guarded writes were made, and these are their replies, which nobody was told yet.
    Held(usize, Vec<u8>),
    /// The guarded write was not made; the reply to EXEC or to the script.
    NotMade(Vec<u8>),
    /// The client's transaction was dropped because of a fence; the client is told so.
    Dropped,
    /// The reply cannot be told: the client's ACL may let it write a number that it may not read, or
    /// the reply is too large to be held.
    Unreadable,
    /// Nothing can be added to this list.
    NoList,
    /// The reply is longer than what is held of it.
    TooLong,
}
