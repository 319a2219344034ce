//! The lock algorithm, looked at in every order in which things can happen.
//!
//! A model of three lock nodes, two proxies and up to three clients, which a checker
//! takes through all its states. Each run bounds what may happen and go wrong in it
//! (see `model/setup.rs`); within those bounds nothing is left out. A run that
//! `holds` has looked at every state; one that `breaks` has a fault planted, so that
//! no property is believed that could not fail. `MODEL_PATHS=1` prints the paths.
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

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use model::{
    properties::*,
    setup::{Clocks, Fault, Quarantine, Raise, Setup},
};

/// Looks at every state there is: what must never be is in none of them, and what
/// must be possible is in some.
fn holds(name: &str, setup: Setup) {
    let (started, properties) = (Instant::now(), setup.properties);
    let checker = Locks(setup).checker().threads(1).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: holds in {states} states, depth {depth}, {:.1?}", started.elapsed());
    for property in properties {
        let found = checker.discovery(property).map(|path| path.into_actions());
        let is_wanted = !ALWAYS.contains(property);
        assert_eq!(found.is_some(), is_wanted, "{name}: {property}: {found:?}");
    }
}

/// Finds a state in which `property` does not hold. Nothing else is looked for, so
/// that the path there is the shortest.
fn breaks(name: &str, property: &'static [&'static str; 1], setup: Setup) {
    let (started, property_name) = (Instant::now(), property[0]);
    assert!(ALWAYS.contains(&property_name));
    let model = Locks(Setup { properties: property, ..setup });
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(found) = checker.discovery(property_name) else {
        panic!("{name}: nothing found in {states} states");
    };
    let steps = found.into_actions();
    let (length, time) = (steps.len(), started.elapsed());
    println!("{name}: not {property_name}: {length} steps, {states} states, {time:.1?}");
    if std::env::var_os("MODEL_PATHS").is_some() {
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
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
