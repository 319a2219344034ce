//! Members: whether a lock node may vote, and what is wrong with it if not. docs/design/members.md has the same for
//! operators.
//!
//! **Seats.** All proxies agree upon a [`Deployment`](marker::Deployment): an id, an epoch, and which node sits on
//! each seat, the place of a node in `locks.nodes`. The agreement lies on the nodes themselves, as markers
//! ([`marker`]). Only a node on its seat votes: the script of each vote compares the epoch with the marker in the
//! memory that votes, and a node that has lost its memory has no marker. Any other node that a proxy meets at a seat
//! waits until all locks that its memory may lack have run out, and then gets the seat.
//!
//! ```text
//!   a votes ── b is met there, or a without its memory ──► b waits ── the longest grant has passed ──► b votes
//!              each arrow is a marker that a quorum accepts, in an epoch of its own
//! ```
//!
//! **One step at a time.** A seat passes from one identity to the next in two steps, each with its own epoch: first
//! the next node waits there, later it votes. Two quorums that grant have a seat in common. In neighbouring epochs,
//! that seat either has the same identity, or in one of them grants nothing and so is in none of its quorums. So votes
//! of both epochs may meet in one operation without harm. Another proxy may still reach the seat's earlier node (an
//! address that leads to another server now). But once a quorum has accepted the first step, every quorum with the
//! earlier node contains a node that refuses the earlier epoch. A grant made with the earlier node before that runs
//! out within the longest PX ever stored, so the wait begins after the first step. Meanwhile locks are put back on the
//! waiting node, and its votes on renewals count, proven like other votes: a quorum that keeps a lock with its help,
//! and any quorum that grants, have in common a node that has the lock. If fewer than a quorum have kept their memory,
//! there is no first step: each other node waits from when it was first seen, by a note on it, and those that have
//! waited count as consenting. If a single voter's node was promoted, and has waited for
//! [`CONFIRM`](crate::lock::address::CONFIRM), it keeps the locks that this proxy knows to be valid for the rest of
//! its wait: no other node could confirm them. (A gap remains if most addresses lead to other servers at once, the old
//! servers live on, and a proxy keeps its connections to them.)
//!
//! **Rounds.** Markers are written by [`round`]: Paxos over the seats, with the marker as its register. A proxy that
//! wants a change reads all nodes and takes the newest marker, that of the largest ballot, which contains all that was
//! committed. It gets promises for a larger ballot from a quorum, and writes its change of the marker there. A node
//! promises and accepts only while its marker is the one that was read. If two proxies do so at once, one of them
//! finds a larger ballot, or another marker, and reads again; two quorums never accept different markers of one epoch.
//! A proxy that dies in the middle leaves a newer marker on fewer than a quorum. The next proxy completes that change,
//! or overwrites it with a larger ballot. No proxy has used that marker meanwhile: proxies use only a marker that a
//! quorum has accepted under one ballot. A node that has lost its promises is no acceptor before it has waited for
//! longer than any round counts (`FLOOR` in [`membership`]).
//!
//! **In a proxy.** A proxy has one deployment at a time, and learns a newer one when a node refuses its epoch or shows
//! a newer one. Before any node gets requests of the new epoch, a node that has lost its seat in it gets only requests
//! with a marker that it cannot prove. If a connection to such a node was open, all connections end and are made anew
//! ([`SharedMembers::generation`](shared_members::SharedMembers::generation)), so that no operation has its vote and
//! one of the new epoch. If that connection had ended before, operations with its vote are no longer sent
//! ([`Told::seatings`](standing::Told::seatings)). A node that kept its memory and missed an epoch gets the marker
//! before it is admitted.
//!
//! **Files.** [`membership`] decides without input and output: reports go in, judgements and effects come out. Of
//! that, `seats` derives the next step from all reports, `seat_wait` counts how long a node has waited, [`refusal`]
//! says which markers keep a node out for good, [`right`] what may be asked of a node. [`shared_members`] asks the
//! nodes and carries the effects out. [`self_report`] is a node's report on itself, [`round`] writes a marker on a
//! quorum, [`first_markers`] the first markers. [`standing`] is the part of a node's right that its connection obeys.
//! [`change`] replaces the set of lock nodes while proxies run. [`clocks`] watches for nodes' clocks that jump.
//! [`fault`] lists the faults of nodes: [`inspect`] looks for them periodically, [`pace`] finds slow nodes.

pub(super) mod change;
pub(super) mod clocks;
pub(super) mod fault;
pub(super) mod first_markers;
pub(super) mod inspect;
pub(super) mod marker;
pub(super) mod membership;
pub(super) mod pace;
pub(super) mod refusal;
pub(super) mod right;
pub(super) mod round;
mod seat_wait;
mod seats;
pub(super) mod self_report;
pub(super) mod shared_members;
pub(super) mod standing;
