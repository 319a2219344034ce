//! What becomes of a piece of a reply that is filtered, and what it has told.

/// What becomes of a piece of a reply.
#[derive(Default)]
pub(in crate::session) struct Fed {
    /// So many bytes at its beginning do not pass,
    pub(in crate::session) taken: usize,
    /// but these do in their place.
    pub(in crate::session) instead: Vec<u8>,
    /// These pass behind the piece.
    pub(in crate::session) behind: Vec<u8>,
    /// What it has told.
    pub(in crate::session) heard: Heard,
}

/// What a filtered reply has told.
#[derive(Default)]
pub(in crate::session) enum Heard {
    /// Nothing yet; there is more of it, or it has passed.
    #[default]
    Nothing,
    /// The reply to a question of the proxy's.
    Reply(Vec<u8>),
    /// The head of the script's array: so many replies come out of it.
    Elements(usize),
    /// The guarded write was made, and its reply has passed.
    Made,
    /// It was not made; the reply to EXEC or to the script.
    NotMade(Vec<u8>),
    /// The client's transaction was dropped because of a fence; it is told so.
    Dropped,
    /// It is not known what was made of a number: the user of an ACL may not read what it may
    /// write.
    Unreadable,
    /// There is nothing to be added to this list.
    NoList,
}
