//! Properties that must hold in every state, and others that must hold in at least one, so that the first do not hold
//! merely because nothing happens.

use stateright::{Model, Property};

use super::{
    link::{NUMBERS, Request},
    node::Node,
    quorum::quorum,
    setup::{NODES, Setup},
    state::{State, What},
    steps::Step,
};

/// At most one client may count on the lock at any instant.
pub(crate) const ONE_HOLDER: &str = "one valid holder at the most";
/// Fences grow in the order in which grants are told.
pub(crate) const FENCES_GROW: &str = "fences grow from grant to grant";
/// Once all is done, a node holds the lock only for a client that was told so and has not given it back.
pub(crate) const NO_GHOST: &str = "no node holds the lock for nobody";
/// Once all is done, no quorum of nodes holds the lock without such a client.
pub(crate) const FEW_GHOSTS: &str = "no quorum holds the lock for nobody";

/// A lock that is renewed is never lost.
pub(crate) const KEPT: &str = "a lock that is renewed is kept";

/// Properties that must hold in every state.
pub(crate) const ALWAYS: &[&str] = &[ONE_HOLDER, FENCES_GROW, NO_GHOST, FEW_GHOSTS, KEPT];

/// A client is granted the lock.
pub(crate) const GRANTED: &str = "a grant";
/// A grant comes while the request to one node is still on its way.
pub(crate) const EARLY: &str = "a grant before every node was asked";
/// A grant comes after another client's validity has ended.
pub(crate) const EXPIRED: &str = "a grant after another has expired";
/// A grant comes by a hand-over.
pub(crate) const HANDED_OVER: &str = "a hand-over";
/// A lock is valid though its first TTL has run out.
pub(crate) const OUTLIVED: &str = "a lock that outlives its first TTL";
/// Nodes gave different fences.
pub(crate) const SECOND_ROUND: &str = "a second round for the fence";
/// A lock is granted while a node is kept from voting.
pub(crate) const QUARANTINED: &str = "a grant while a node is in quarantine";
/// Two attempts have got a node each, and one will be undone.
pub(crate) const CLASH: &str = "two attempts of which each has a node";

/// A lock is put back on a node that had lost it.
pub(crate) const HEALED: &str = "a lock that is put back";
/// A lock is renewed while a quorum of nodes waits.
pub(crate) const WAITED_OUT: &str = "a lock outlives its first TTL while two nodes wait";
/// A lock is given back through a proxy that has not granted it.
pub(crate) const UNLOCKED: &str = "a lock that is unlocked elsewhere";
/// A client holds the lock, and another one with the same token has asked for it.
pub(crate) const SAME_TOKEN: &str = "a grant after another of the same token";

/// One run of the checker.
pub(crate) struct Locks(pub Setup);

impl Model for Locks {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        State::first(&self.0)
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        state.steps(&self.0, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(state.after(step, &self.0))
    }

    fn properties(&self) -> Vec<Property<Locks>> {
        let all: [Property<Locks>; 17] = [
            Property::always(ONE_HOLDER, |_, state: &State| state.valid_holders() <= 1),
            Property::always(FENCES_GROW, |_, state: &State| !state.fence_went_back),
            Property::always(NO_GHOST, |_, state: &State| ghosts(state) == 0),
            Property::always(FEW_GHOSTS, |_, state: &State| ghosts(state) < quorum(NODES)),
            Property::sometimes(UNLOCKED, |_, state: &State| {
                state.held().any(|held| held.unlocked)
            }),
            Property::always(KEPT, |_, state: &State| !state.lost),
            Property::sometimes(HEALED, |_, state: &State| {
                let has = |claim| state.columns.iter().filter(|c| c.node.claim == claim).count();
                state.held().any(|held| held.healed && held.valid > 0 && has(held.claim) == NODES)
            }),
            Property::sometimes(WAITED_OUT, |_, state: &State| {
                let waits = state.columns.iter().filter(|column| column.node.quarantine > 0);
                waits.count() > 1 && state.held().any(|held| held.valid > 0 && held.first == 0)
            }),
            Property::sometimes(SAME_TOKEN, |model, state: &State| {
                let tokens = model.0.token_of;
                let asked = |client: usize| state.clients[client].number > 0;
                let held = |client: usize| state.clients[client].held.is_some_and(|h| h.valid > 0);
                let pairs = (0..tokens.len()).flat_map(|a| (0..tokens.len()).map(move |b| (a, b)));
                pairs
                    .into_iter()
                    .any(|(a, b)| a != b && tokens[a] == tokens[b] && held(a) && asked(b))
            }),
            Property::sometimes(GRANTED, |_, state: &State| state.valid_holders() > 0),
            Property::sometimes(EARLY, is_early),
            Property::sometimes(EXPIRED, |_, state: &State| {
                state.valid_holders() > 0 && state.held().any(|held| held.valid == 0)
            }),
            Property::sometimes(HANDED_OVER, |_, state: &State| {
                state.held().any(|held| held.handed && held.valid > 0)
            }),
            Property::sometimes(OUTLIVED, |_, state: &State| {
                state.held().any(|held| held.valid > 0 && held.first == 0)
            }),
            Property::sometimes(SECOND_ROUND, |_, state: &State| {
                let asking = state.clients.iter().filter_map(|client| client.asking);
                asking.into_iter().any(|asking| matches!(asking.what, What::Raise { .. }))
            }),
            Property::sometimes(QUARANTINED, |_, state: &State| {
                let waits = state.columns.iter().any(|column| column.node.quarantine > 0);
                waits && state.valid_holders() > 0
            }),
            Property::sometimes(CLASH, |_, state: &State| {
                let has = |by: u8| {
                    state.columns.iter().any(|column| {
                        column.node.holder.is_some() && column.node.claim / NUMBERS == by
                    })
                };
                state.held().count() == 0 && has(0) && has(1)
            }),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}

/// Returns the number of nodes that hold the lock for no client; zero until all is done.
fn ghosts(state: &State) -> usize {
    let is_held = |claim: u8| state.held().any(|held| held.claim == claim && !held.unlocked);
    let is_ghost = |node: &Node| node.holder.is_some() && !is_held(node.claim);
    let ghosts = state.columns.iter().filter(|column| is_ghost(&column.node)).count();
    if state.is_quiet() { ghosts } else { 0 }
}

fn is_early(model: &Locks, state: &State) -> bool {
    state.clients.iter().enumerate().any(|(client, one)| {
        let Some(proxy) = model.0.proxy_of.get(client) else { return false };
        one.held.is_some_and(|held| held.valid > 0)
            && state.columns.iter().any(|column| {
                column.links[*proxy].requests.iter().any(|request| {
                    matches!(request, Request::Acquire { by, .. } if usize::from(*by) == client)
                })
            })
    })
}
