//! The lock algorithm, looked at in every order in which things can happen.
//!
//! A model of three lock nodes, two proxies and up to three clients, which a checker
//! takes through all its states. Each run bounds what may happen and go wrong in it
//! (see `model/setup.rs`); within those bounds nothing is left out. A run that
//! `holds` has looked at every state; one that `breaks` has a fault planted, so that
//! no property is believed that could not fail. `MODEL_PATHS=1` prints the paths.
//!
//! Guarded writes have a model of their own (`model/guards.rs`), in which the lock nodes
//! are somebody who grants.
//!
//! What the model says about a step is what the code does there: the scripts of the
//! nodes (`model/node.rs`), the connections to them (`model/link.rs`), the proxies
//! (`model/steps.rs`), and votes are counted by `src/lock/quorum.rs` itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

/// The specification.
mod model {
    pub(crate) mod guards;
    pub(crate) mod link;
    pub(crate) mod node;
    pub(crate) mod properties;
    pub(crate) mod setup;
    pub(crate) mod state;
    pub(crate) mod steps;

    /// Lockgate's own rules by which votes are counted.
    #[path = "../../src/lock/quorum.rs"]
    #[allow(dead_code, reason = "not all of it is asked here")]
    mod quorum;
}

use std::{fmt::Debug, hash::Hash, time::Instant};

use stateright::{Checker, HasDiscoveries, Model};

use model::{
    guards::{self, *},
    properties::*,
    setup::{Clocks, Fault, Quarantine, Raise, Setup},
};

/// Looks at every state there is: what must `always` be is in all of them, and what
/// else there is among the properties is in some.
fn every_state<M>(name: &str, model: M, always: &[&str])
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Clone + PartialEq,
{
    let (started, properties) = (Instant::now(), model.properties());
    let checker = model.checker().threads(1).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: holds in {states} states, depth {depth}, {:.1?}", started.elapsed());
    for property in properties {
        let found = checker.discovery(property.name).map(|path| path.into_actions());
        let is_wanted = !always.contains(&property.name);
        assert_eq!(found.is_some(), is_wanted, "{name}: {}: {found:?}", property.name);
    }
}

/// Finds a state in which the model's only property does not hold, so that the path
/// there is the shortest.
fn shortest_break<M>(name: &str, model: M, always: &[&str])
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Clone + PartialEq,
{
    let (started, properties) = (Instant::now(), model.properties());
    let [property] = &properties[..] else { panic!("{name}: {} properties", properties.len()) };
    assert!(always.contains(&property.name));
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(found) = checker.discovery(property.name) else {
        panic!("{name}: nothing found in {states} states");
    };
    let steps = found.into_actions();
    let (length, time) = (steps.len(), started.elapsed());
    println!("{name}: not {}: {length} steps, {states} states, {time:.1?}", property.name);
    if std::env::var_os("MODEL_PATHS").is_some() {
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
}

fn holds(name: &str, setup: Setup) {
    every_state(name, Locks(setup), ALWAYS);
}

fn breaks(name: &str, property: &'static [&'static str; 1], setup: Setup) {
    shortest_break(name, Locks(Setup { properties: property, ..setup }), ALWAYS);
}

const HOLDER: &[&str; 1] = &[ONE_HOLDER];
const FENCE: &[&str; 1] = &[FENCES_GROW];
const GHOST: &[&str; 1] = &[NO_GHOST];

fn planted(fault: Fault, setup: Setup) -> Setup {
    Setup { fault: Some(fault), ..setup }
}

/// Two proxies with a client each, whose clocks disagree. Nothing breaks.
fn plain() -> Setup {
    Setup {
        proxy_of: &[0, 1],
        ttl: 2,
        ttl_again: 2,
        drift: 0,
        fastest: 0,
        timeout: 1,
        patience: 1,
        clocks: Clocks::Apart(8),
        raise: Raise::WhereHeld,
        quarantine: Quarantine::On,
        locks: [1, 1, 0],
        gives_back: true,
        locks_again: false,
        renewals: 0,
        hand_overs: 0,
        breaks: 0,
        breaks_at: 0,
        restarts: 0,
        late_looks: false,
        fault: None,
        properties: &[
            ONE_HOLDER,
            FENCES_GROW,
            NO_GHOST,
            GRANTED,
            EARLY,
            EXPIRED,
            CLASH,
            SECOND_ROUND,
        ],
    }
}

/// One client may LOCK twice, and both share one connection to each node, which
/// leaves fewer orders to look at.
fn one_proxy() -> Setup {
    Setup { proxy_of: &[0, 0], locks: [2, 1, 0], patience: 0, ..plain() }
}

/// Nodes' clocks run faster than those of the proxies, each as it likes, but not by
/// more than is set aside.
fn drift() -> Setup {
    Setup { clocks: Clocks::Stopped, ttl: 3, drift: 1, fastest: 1, patience: 0, ..plain() }
}

/// A connection of the proxy whose clock is ahead breaks, at any moment.
fn loss() -> Setup {
    Setup { breaks: 1, patience: 0, ..plain() }
}

/// The same while requests take as long as half a TTL. Locks only expire.
fn slow_loss() -> Setup {
    let properties = &[ONE_HOLDER, FENCES_GROW, NO_GHOST, SECOND_ROUND];
    Setup { breaks: 1, timeout: 2, gives_back: false, properties, ..plain() }
}

/// A node restarts with an empty memory, at any moment. Locks only expire. With clocks that do not
/// tell the time, fences may then go back; see below.
fn amnesia() -> Setup {
    let properties = &[ONE_HOLDER, NO_GHOST, QUARANTINED];
    Setup {
        restarts: 1,
        gives_back: false,
        clocks: Clocks::Stopped,
        patience: 0,
        properties,
        ..plain()
    }
}

/// The same with clocks that do, and one proxy.
fn amnesia_and_clocks() -> Setup {
    let properties = &[ONE_HOLDER, FENCES_GROW, NO_GHOST, QUARANTINED];
    let (proxy_of, clocks) = (&[0, 0], Clocks::Right(3));
    Setup { proxy_of, clocks, properties, ..amnesia() }
}

/// The first client may hand the lock to the second, which has no other way to it;
/// the third asks through another proxy.
fn hand_over() -> Setup {
    let properties = &[ONE_HOLDER, FENCES_GROW, NO_GHOST, HANDED_OVER, EXPIRED];
    let (proxy_of, locks) = (&[0, 0, 1], [1, 0, 1]);
    Setup { proxy_of, locks, hand_overs: 1, patience: 0, properties, ..plain() }
}

/// A lock is renewed.
fn renewal() -> Setup {
    let properties = &[ONE_HOLDER, FENCES_GROW, NO_GHOST, OUTLIVED, EXPIRED];
    Setup { clocks: Clocks::Stopped, renewals: 1, patience: 0, properties, ..plain() }
}

/// Who has the lock may LOCK it again by the same token, and fail.
fn again() -> Setup {
    Setup { locks_again: true, gives_back: false, ..one_proxy() }
}

#[test]
fn locks_hold_in_every_order() {
    holds("hang-ups", Setup { timeout: 0, late_looks: true, ..plain() });
}

#[test]
fn locks_hold_while_clocks_drift_within_the_allowance() {
    holds("drift", drift());
}

#[test]
fn locks_hold_when_a_connection_breaks() {
    holds("loss", loss());
}

#[test]
fn locks_hold_when_a_node_forgets_everything() {
    holds("amnesia", amnesia());
}

#[test]
fn fences_grow_over_what_a_node_forgets_where_clocks_tell_the_time() {
    holds("amnesia and clocks", amnesia_and_clocks());
}

#[test]
fn locks_hold_when_handed_over() {
    holds("hand-over", hand_over());
}

#[test]
fn locks_hold_when_renewed() {
    holds("renewal", renewal());
}

#[test]
fn locks_hold_when_locked_again() {
    holds("again", again());
}

/// Two things at once, of what the others have one at a time.
#[test]
#[ignore = "takes minutes"]
fn locks_hold_in_wider_bounds() {
    let properties = ALWAYS;
    let base = Setup { locks: [1, 1, 0], properties, ..one_proxy() };
    holds("hand-over and loss", Setup { hand_overs: 1, breaks: 1, ..base.clone() });
    holds("renewal and loss", Setup { renewals: 1, breaks: 1, ..base.clone() });
    let right = Setup { clocks: Clocks::Right(4), restarts: 1, ..base.clone() };
    holds("hand-over and amnesia", Setup { hand_overs: 1, locks: [1, 0, 0], ..right.clone() });
    holds("renewal and amnesia", Setup { renewals: 1, ..right.clone() });
    let drift = Setup { ttl: 3, drift: 1, fastest: 1, ..base };
    holds("renewal and drift", Setup { renewals: 1, ..drift.clone() });
    holds("amnesia and drift", Setup { clocks: Clocks::Right(4), restarts: 1, ..drift });
}

#[test]
fn a_quorum_and_what_it_compares_are_needed() {
    breaks("quorum too small", HOLDER, planted(Fault::QuorumTooSmall, plain()));
    let fault = Fault::ReleaseWithoutCompare;
    breaks("release without compare", HOLDER, planted(fault, one_proxy()));
    let fault = Fault::RenewWithoutCompare;
    breaks("renewal without compare", HOLDER, planted(fault, Setup { renewals: 1, ..one_proxy() }));
    let fault = Fault::HandOverWithoutCompare;
    breaks("hand-over without compare", HOLDER, planted(fault, hand_over()));
    breaks("undo by token", HOLDER, planted(Fault::UndoByToken, again()));
}

#[test]
fn validity_needs_all_that_is_taken_from_it() {
    breaks("no allowance", HOLDER, planted(Fault::NoDriftAllowance, drift()));
    breaks("drift beyond the allowance", HOLDER, Setup { fastest: 2, ..drift() });
    breaks("time spent forgotten", HOLDER, planted(Fault::TimeSpentForgotten, plain()));
}

#[test]
fn a_node_that_forgot_everything_must_not_vote() {
    let setup = Setup { quarantine: Quarantine::Off, ..amnesia() };
    breaks("quarantine off", HOLDER, setup);
}

#[test]
fn fences_need_the_nodes_and_the_second_round() {
    breaks("nodes do not raise", FENCE, planted(Fault::NodesDoNotRaise, plain()));
    let setup = Setup { locks: [2, 1, 0], gives_back: false, patience: 0, ..plain() };
    breaks("no second round", FENCE, planted(Fault::NoSecondRound, setup));
}

#[test]
fn ghosts_are_kept_away_by_order_and_cleaning_up() {
    breaks("overtaking", GHOST, planted(Fault::Overtaking, plain()));
    breaks("no clean-up", GHOST, planted(Fault::NoCleanUp, loss()));
}

// What follows is not planted: here the model shows where the algorithm ends.

/// Fences survive a node's loss of memory by the proxies' clocks alone.
#[test]
fn limit_fences_go_back_where_a_node_forgets_and_clocks_are_wrong() {
    breaks("amnesia and stopped clocks", FENCE, amnesia());
}

/// "If no node has a marker, the deployment is new" is also true of nodes that have
/// all lost their memory while somebody counts on a lock.
#[test]
fn limit_nodes_that_all_forget_are_not_a_new_deployment() {
    let quarantine = Quarantine::UnlessAllAreNew;
    let setup = Setup { quarantine, restarts: 3, ..amnesia() };
    let setup = Setup { proxy_of: &[0, 0], ..setup };
    breaks("all nodes forget", HOLDER, setup.clone());
    // One more must remember, or all wait.
    holds("two nodes forget", Setup { restarts: 2, ..setup });
}

/// A LOCK again with a shorter TTL that fails leaves the grant before it as long as
/// its holder counts on it.
#[test]
fn a_shorter_lock_that_fails_leaves_the_grant_before_it() {
    let shorter = Setup { ttl_again: 1, ..again() };
    breaks("again shortens", HOLDER, planted(Fault::AgainShortens, shorter.clone()));
    holds("shorter again", shorter);
}

/// A second round that counted a node on which another attempt has the lock would
/// not be seen by that one, which was given its fence there before.
#[test]
fn a_fence_is_raised_where_its_attempt_has_the_lock() {
    breaks("raised anywhere", FENCE, Setup { raise: Raise::Anywhere, ..slow_loss() });
    holds("raised where held", slow_loss());
}

// Guarded writes.

/// Three holders one after the other, with a write each.
fn guarded() -> guards::Setup {
    guards::Setup {
        locks: [1, 1, 1],
        writes: 1,
        stops: 0,
        forgets: 0,
        forgets_all: false,
        fault: None,
        properties: &[
            NONE_BELOW,
            NONE_OVERWRITTEN,
            NO_LOST_UPDATE,
            TOLD,
            SECOND_HOLDER,
            FENCED,
            DROPPED,
            GIVEN_BACK,
            LATE,
        ],
    }
}

/// Two, of whom one may lock again, with two writes each.
fn guarded_again() -> guards::Setup {
    guards::Setup { locks: [2, 1, 0], writes: 2, ..guarded() }
}

fn guards_hold(name: &str, setup: guards::Setup) {
    every_state(name, Guarded(setup), GUARDS_ALWAYS);
}

fn guards_break(name: &str, fault: guards::Fault, property: &'static [&'static str; 1]) {
    let setup = guards::Setup { fault: Some(fault), properties: property, ..guarded() };
    shortest_break(name, Guarded(setup), GUARDS_ALWAYS);
}

#[test]
fn guarded_writes_hold_in_every_order() {
    guards_hold("guarded writes", guarded());
    guards_hold("guarded writes of one who locks again", guarded_again());
}

#[test]
fn guarded_writes_hold_when_connections_end() {
    guards_hold("guarded writes and ends", guards::Setup { stops: 1, ..guarded() });
}

/// What is in order is in order since the data node forgot: it cannot know better.
#[test]
fn guarded_writes_are_in_order_again_after_the_data_node_forgot() {
    let properties = &[NONE_BELOW, NONE_OVERWRITTEN, TOLD, FENCED, RAISED_AGAIN];
    let setup = guards::Setup { locks: [1, 1, 0], forgets: 1, properties, ..guarded() };
    guards_hold("guarded writes and forgetting", setup);
}

#[test]
#[ignore = "takes minutes"]
fn guarded_writes_hold_in_wider_bounds() {
    let setup = guards::Setup { locks: [2, 1, 1], writes: 2, stops: 1, ..guarded() };
    guards_hold("more guarded writes and ends", setup);
    let properties = &[NONE_BELOW, NONE_OVERWRITTEN, TOLD];
    let setup = guards::Setup { forgets: 1, stops: 1, properties, ..guarded() };
    guards_hold("guarded writes, ends and forgetting", setup);
}

const BELOW: &[&str; 1] = &[NONE_BELOW];
const OVERWRITTEN: &[&str; 1] = &[NONE_OVERWRITTEN];
const LOST: &[&str; 1] = &[NO_LOST_UPDATE];
const WRITE_TOLD: &[&str; 1] = &[TOLD];

#[test]
fn lock_must_tell_the_data_node_before_the_client() {
    guards_break("no raise at LOCK", guards::Fault::NoRaiseAtLock, LOST);
    guards_break("raise behind the answer", guards::Fault::RaiseBehindAnswer, LOST);
    guards_break("fence not larger", guards::Fault::FenceNotLarger, LOST);
}

#[test]
fn the_data_node_must_compare_and_write_at_once() {
    for property in [BELOW, OVERWRITTEN, LOST] {
        guards_break("raise lowers", guards::Fault::RaiseLowers, property);
        guards_break("no compare in the script", guards::Fault::NoCompareInScript, property);
        guards_break("no compare in the proxy", guards::Fault::NoCompareInProxy, property);
        guards_break("no WATCH", guards::Fault::NoWatch, property);
        guards_break("WATCH behind GET", guards::Fault::WatchBehindGet, property);
    }
}

#[test]
fn a_fence_that_was_forgotten_must_be_told_again() {
    let fault = Some(guards::Fault::SmallerIsEnough);
    let setup = guards::Setup { forgets: 1, fault, properties: BELOW, ..guarded() };
    shortest_break("smaller is enough", Guarded(setup), GUARDS_ALWAYS);
}

#[test]
fn the_lock_nodes_must_be_asked_before_a_forgotten_fence_is_told_again() {
    let setup = guards::Setup { forgets: 1, forgets_all: true, ..guarded() };
    let holds = guards::Setup { properties: &[NO_LOST_UPDATE, TOLD, RAISED_AGAIN], ..setup };
    guards_hold("guarded writes and all forgotten", holds);
    let fault = Some(guards::Fault::NoAsking);
    let setup = guards::Setup { forgets: 1, forgets_all: true, ..guarded() };
    let breaks = guards::Setup { fault, properties: LOST, ..setup };
    shortest_break("no asking", Guarded(breaks), GUARDS_ALWAYS);
}

#[test]
fn clients_are_told_what_became_of_their_writes() {
    guards_break("dropped is done", guards::Fault::DroppedIsDone, WRITE_TOLD);
    guards_break("compare behind the write", guards::Fault::CompareBehindWrite, WRITE_TOLD);
}

/// A data node that goes back to the fence of a holder whose time is over lets that one
/// write, as long as nobody has told it a larger one.
#[test]
fn limit_a_data_node_that_goes_back_lets_a_late_holder_in() {
    let setup = guards::Setup { forgets: 1, properties: LOST, ..guarded() };
    shortest_break("data node goes back", Guarded(setup), GUARDS_ALWAYS);
}
