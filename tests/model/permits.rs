//! At most k holders at once, over a quorum: by counting on each node, and by names.
//!
//! Two quorums share a node, so whatever each node enforces between any two grants, a quorum enforces between all. "At
//! most k here" is no such rule: n nodes with a quorum of q admit ⌊n·k/q⌋ holders. So Lockgate's permits have names,
//! and permit i is a lock of its own (src/lock/line/permit_taker.rs).
//!
//! Nodes and messages are perfect here: what breaks is the rule.

use stateright::{Model, Property};

/// The most clients and nodes of a run.
const CLIENTS: usize = 3;
const NODES: usize = 5;

/// No more clients have a quorum than there are permits.
pub(crate) const AT_MOST_K: &str = "no more holders than permits";
/// As many clients have a quorum as there are permits.
pub(crate) const ALL_TAKEN: &str = "all permits are taken";

/// Properties that must hold in every state.
pub(crate) const PERMITS_ALWAYS: &[&str] = &[AT_MOST_K];

/// One run of the checker: each client asks each node once, in any order.
#[derive(Clone)]
pub(crate) struct Permits {
    pub(crate) nodes: usize,
    pub(crate) permits: u8,
    /// Whether a node counts its holders, as libraries do. Otherwise each client asks for one permit by its name, and a
    /// node grants each name once.
    pub(crate) counts: bool,
    pub(crate) properties: &'static [&'static str],
}

/// What a client knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Asked {
    NotYet,
    Granted,
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Nodes {
    /// For each client, its answers.
    answers: [[Asked; NODES]; CLIENTS],
    /// For each client, the permit for which it asks.
    names: [u8; CLIENTS],
}

/// A client asks a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    client: usize,
    node: usize,
}

impl Permits {
    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn holders(&self, state: &Nodes) -> usize {
        let granted = |answers: &[Asked; NODES]| {
            answers.iter().filter(|answer| **answer == Asked::Granted).count()
        };
        state.answers.iter().filter(|answers| granted(answers) >= self.quorum()).count()
    }

    fn grants(&self, state: &Nodes, Ask { client, node }: Ask) -> bool {
        let holders = (0..CLIENTS).filter(|other| state.answers[*other][node] == Asked::Granted);
        match self.counts {
            true => holders.count() < usize::from(self.permits),
            false => !holders.into_iter().any(|other| state.names[other] == state.names[client]),
        }
    }
}

impl Model for Permits {
    type State = Nodes;
    type Action = Ask;

    fn init_states(&self) -> Vec<Nodes> {
        let answers = [[Asked::NotYet; NODES]; CLIENTS];
        let choices = if self.counts { 1 } else { self.permits };
        let mut all = vec![Nodes { answers, names: [0; CLIENTS] }];
        for client in 0..CLIENTS {
            let chosen = |state: Nodes| {
                (0..choices).map(move |name| {
                    let mut state = state.clone();
                    state.names[client] = name;
                    state
                })
            };
            all = all.into_iter().flat_map(chosen).collect();
        }
        all
    }

    fn actions(&self, state: &Nodes, asks: &mut Vec<Ask>) {
        let all = (0..CLIENTS).flat_map(|client| (0..self.nodes).map(move |node| (client, node)));
        let open = all.filter(|(client, node)| state.answers[*client][*node] == Asked::NotYet);
        asks.extend(open.map(|(client, node)| Ask { client, node }));
    }

    fn next_state(&self, state: &Nodes, ask: Ask) -> Option<Nodes> {
        let mut next = state.clone();
        let answer = if self.grants(state, ask) { Asked::Granted } else { Asked::Refused };
        next.answers[ask.client][ask.node] = answer;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Permits>> {
        let all: [Property<Permits>; 2] = [
            Property::always(AT_MOST_K, |run: &Permits, state| {
                run.holders(state) <= usize::from(run.permits)
            }),
            Property::sometimes(ALL_TAKEN, |run: &Permits, state| {
                run.holders(state) == usize::from(run.permits)
            }),
        ];
        all.into_iter().filter(|one| self.properties.contains(&one.name)).collect()
    }
}
