//! A Redis Cluster: what it says about itself, and how its nodes are shown to clients that come through fronts. Only
//! [`ask`] does I/O: `data` and `lock` decide when, and `session` passes the replies.
//!
//! - [`ask`]: the questions to its nodes.
//! - [`cluster_node`]: a line of CLUSTER NODES. [`view`]: one list from the answers of several nodes.
//! - [`fronts`]: which front leads to which node. [`table`]: which front stands for an id or an
//!   address in a reply.
//! - [`rewrite`]: replies that name nodes, with the fronts in place of the nodes.
//! - [`slot`]: the slot of a key, and tags that lead to slots.
//! - [`trouble`]: what can be wrong with a cluster, and what to do about it.

pub(crate) mod ask;
pub(crate) mod cluster_node;
pub(crate) mod fronts;
pub(crate) mod rewrite;
pub(crate) mod slot;
pub(crate) mod table;
pub(crate) mod trouble;
pub(crate) mod view;
