//! The result of filtering a piece of a reply, and what the reply tells.

/// The result of filtering a piece of a reply.
#[derive(Default)]
pub(in crate::session) struct Fed {
    /// Number of bytes at the beginning of the piece that do not pass.
    pub(in crate::session) taken: usize,
    /// Bytes that pass in their place.
    pub(in crate::session) instead: Vec<u8>,
    /// Bytes that pass behind the piece.
    pub(in crate::session) behind: Vec<u8>,
    /// What the reply tells with this piece.
    pub(in crate::session) heard: Heard,
}

/// What a filtered reply tells.
#[derive(Default)]
pub(in crate::session) enum Heard {
    /// Nothing: the reply has not ended yet, or has passed.
    #[default]
    Nothing,
    /// The whole reply to a question of the proxy.
    Reply(Vec<u8>),
    /// Something else in place of the expected reply to a question of the proxy.
    Unexpected(Vec<u8>),
    /// The length of the script's array: each element is one reply to the client.
    Elements(usize),
    /// The guarded write was made, and its reply has passed.
    Made,
    /// The number of guarded writes that were made, 1 for the client's EXEC, and the replies, which the client has not
    /// been told yet.
    Held(usize, Vec<u8>),
    /// The guarded write was not made, as this reply to EXEC or to the script says.
    NotMade(Vec<u8>),
    /// The client's transaction was dropped because of a fence, and the client is told so.
    Dropped,
    /// The reply cannot be told: it is a number that the client's ACL may let it write but not read, or it is too
    /// large to be held.
    Unreadable,
    /// Nothing can be added to this list.
    NoList,
    /// The reply is longer than the filter may hold.
    TooLong,
}
