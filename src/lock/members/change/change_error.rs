//! Why the lock nodes were not changed, for operators.

use thiserror::Error;

/// Why the lock nodes were not changed.
#[derive(Debug, Error)]
pub(crate) enum ChangeError {
    /// The file asks for no change, or for one that is impossible.
    #[error("{0}; nothing was changed")]
    Impossible(String),
    /// Nodes are missing, or are not fit.
    #[error("{0}; nothing was changed")]
    Unfit(String),
    /// The change was begun, and taken back.
    #[error("{0}; it was begun, and was taken back: locks.nodes vote again")]
    TakenBack(String),
    /// The change was begun, and not completed.
    #[error(
        "{0}. No locks are granted until it is done or taken back: run lockgate nodes --change again, or \
         --back-out"
    )]
    HalfWay(String),
    /// The change was not taken back, as far as is known.
    #[error("{0}; nothing was taken back")]
    NotTakenBack(String),
    /// The change is decided, and the next set has not begun.
    #[error(
        "it is decided that locks.next_nodes vote, and it cannot be taken back: run lockgate nodes \
         --change, so that they begin"
    )]
    Decided,
    /// The change is decided, and the next set cannot begin.
    #[error(
        "it is decided that locks.next_nodes vote, and too few of them can begin: {0}. No locks are granted \
         until they do: run lockgate nodes --change again once they are there. Where they have lost what was \
         copied to them, it copies anew if it can; else a new deployment is needed (docs/changing-lock-nodes.md)"
    )]
    NotBegun(String),
    /// The change is decided, for other nodes than these.
    #[error(
        "it is decided that other nodes than locks.next_nodes vote, or too few of these have kept their memory \
         since; it cannot be taken back, and nothing was changed. List the nodes of that change as \
         locks.next_nodes, or, if they vote already, as locks.nodes. If these are they, run lockgate nodes \
         --change: where that says the same, a new deployment is needed (docs/changing-lock-nodes.md)"
    )]
    Others,
    /// The next set has begun.
    #[error(
        "the lock nodes have been changed already. Another change, be it back, needs those that vote as \
         locks.nodes, and those to come as locks.next_nodes"
    )]
    Done,
}
