//! Why lock nodes were not changed, for operators.

use thiserror::Error;

/// Why the lock nodes were not changed.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// The file does not say what to change, or how it cannot be.
    #[error("{0}; nothing was changed")]
    Impossible(String),
    /// Nodes are missing, or are not fit.
    #[error("{0}; nothing was changed")]
    Unfit(String),
    /// It was begun, and taken back.
    #[error("{0}; it was begun, and was taken back: locks.nodes vote again")]
    TakenBack(String),
    /// It was begun, and did not come to its end.
    #[error(
        "{0}. No locks are granted until it is done or taken back: run lockgate nodes --change again, or \
         --back-out"
    )]
    HalfWay(String),
    /// It is decided, and the next set has not begun.
    #[error(
        "it is decided that locks.next_nodes vote, and it cannot be taken back: run lockgate nodes \
         --change, so that they begin"
    )]
    Decided,
    /// The next set has begun.
    #[error(
        "the lock nodes have been changed already. Another change, be it back, needs those that vote as \
         locks.nodes, and those to come as locks.next_nodes"
    )]
    Done,
}
