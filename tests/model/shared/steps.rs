//! The steps from a state, and the states after them: `src/lock/acquire.rs`, `release.rs` and `renew.rs`, with one
//! connection from each client to each node.

use super::{
    super::quorum::{Decision, Rule, Votes},
    Asking, BARRED_IS_BARRED, CLIENTS, Client, Column, ENDED_IS_GONE, Fault, INTENT_HELPS,
    INTENT_YIELDS, PUT_BACK_ANYWAY, READER_HEALED, READERS, Setup, State, Step, Vote, WRITES_AFTER,
    is_reader,
    node::{Request, Told},
};

impl Request {
    /// Packs a request into one byte, which is not 0.
    fn packed(self) -> u64 {
        let (kind, number) = match self {
            Request::Acquire(number) => (0, number),
            Request::Renew(number) => (1, number),
            Request::Heal(number) => (2, number),
            Request::End(number) => (3, number),
            Request::Undo(number) => (4, number),
        };
        (kind + 1) << 4 | u64::from(number)
    }

    fn unpacked(byte: u64) -> Request {
        let number = (byte & 0xf) as u8;
        match byte >> 4 {
            1 => Request::Acquire(number),
            2 => Request::Renew(number),
            3 => Request::Heal(number),
            4 => Request::End(number),
            _ => Request::Undo(number),
        }
    }
}

impl Column {
    fn send(&mut self, client: usize, request: Request) {
        let link = &mut self.links[client];
        let used = u64::BITS - link.leading_zeros();
        assert!(used <= u64::BITS - 8, "bounds are too wide");
        *link |= request.packed() << used.next_multiple_of(8);
    }

    fn first(&self, client: usize) -> Option<Request> {
        let byte = self.links[client] & 0xff;
        (byte > 0).then(|| Request::unpacked(byte))
    }

    /// The request that a client waits for is not carried out any more.
    fn call_back(&mut self, client: usize) {
        if self.votes[client] != Vote::Pending {
            return;
        }
        self.votes[client] = Vote::Missing;
        let all = std::mem::take(&mut self.links[client]).to_le_bytes();
        let asks = |byte: &u64| {
            matches!(Request::unpacked(*byte), Request::Acquire(_) | Request::Renew(_))
        };
        let all: Vec<u64> = all.into_iter().map(u64::from).filter(|byte| *byte > 0).collect();
        // What is waited for is the last that was asked.
        let last = all.iter().rposition(asks);
        for (at, byte) in all.into_iter().enumerate() {
            if Some(at) != last {
                self.send(client, Request::unpacked(byte));
            }
        }
    }

    /// Whether the same request is on its way.
    fn has_behind(&self, client: usize, request: Request) -> bool {
        self.links[client].to_le_bytes().iter().any(|byte| u64::from(*byte) == request.packed())
    }

    /// Drops the requests that change nothing, now or later, and that nobody waits for.
    fn drop_idle(&mut self) {
        for client in 0..CLIENTS {
            while let Some(Request::End(number) | Request::Undo(number) | Request::Renew(number)) =
                self.first(client)
            {
                let waits = self.votes[client] == Vote::Pending
                    && matches!(self.first(client), Some(Request::Renew(_)));
                if waits || self.node.knows(client, number) {
                    break;
                }
                self.links[client] >>= 8;
            }
        }
    }
}

impl<const NODES: usize> State<NODES> {
    /// Adds all steps that may come next.
    pub(super) fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        let is_busy = || self.columns.iter().any(|column| column.links != [0; CLIENTS]);
        if !(setup.prompt && is_busy()) {
            steps.push(Step::Tick);
        }
        for (client, one) in self.clients.iter().enumerate() {
            match one.asking {
                Some(asking) => {
                    if setup.late_looks && self.decision(client, asking, setup) != Decision::Open {
                        steps.push(Step::Look(client));
                    }
                    if asking.elapsed >= setup.timeout {
                        steps.push(Step::GiveUp(client));
                    }
                }
                // It asks by itself.
                None if self.waits(client, setup) => {}
                None if one.locks > 0 && !one.holds => steps.push(Step::Lock(client)),
                None if one.holds && self.renewals > 0 => steps.push(Step::Renew(client)),
                None => {}
            }
            if one.holds && setup.gives_back {
                steps.push(Step::Unlock(client));
            }
        }
        for (node, column) in self.columns.iter().enumerate() {
            let asked = (0..CLIENTS).filter(|client| column.links[*client] > 0);
            steps.extend(asked.map(|client| Step::CarryOut { node, client }));
            if self.exchanges > 0 {
                steps.push(Step::Exchange(node));
            }
        }
    }

    /// Returns the state after this step.
    pub(super) fn after(&self, step: Step, setup: &Setup) -> Self {
        let mut next = self.clone();
        match step {
            Step::Tick => next.tick(setup),
            Step::Lock(client) => next.lock(client),
            Step::Renew(client) => {
                next.renewals -= 1;
                next.ask(client, true);
            }
            Step::Unlock(client) => next.end(client),
            Step::GiveUp(client) => next.give_up(client, setup),
            Step::Look(client) => next.look(client, setup),
            Step::CarryOut { node, client } => next.carry_out(node, client, setup),
            Step::Exchange(node) => next.exchange(node, setup),
        }
        next.in_order()
    }

    /// Whether this is a writer that was refused, and goes on asking.
    fn waits(&self, client: usize, setup: &Setup) -> bool {
        let one = &self.clients[client];
        setup.prompt && !is_reader(client) && one.number > 0 && one.locks > 0
    }

    fn lock(&mut self, client: usize) {
        let one = &mut self.clients[client];
        (one.locks, one.number) = (one.locks - 1, one.number + 1);
        self.ask(client, false);
    }

    fn tick(&mut self, setup: &Setup) {
        self.columns.iter_mut().for_each(|column| column.node.tick(setup));
        for client in 0..CLIENTS {
            let one = &mut self.clients[client];
            one.valid = one.valid.saturating_sub(1);
            if let Some(asking) = &mut one.asking {
                asking.elapsed += 1;
                if asking.elapsed > setup.patience {
                    self.give_up(client, setup);
                }
            }
            // What a client gives back then it may as well have given back before, by a request that is late.
            let one = &mut self.clients[client];
            one.holds &= one.valid > 0 || one.asking.is_some();
            if self.waits(client, setup) {
                self.waited += 1;
                self.lock(client);
            }
        }
    }

    /// Asks all nodes, and waits for their votes.
    fn ask(&mut self, client: usize, renews: bool) {
        let one = &mut self.clients[client];
        one.asking = Some(Asking { renews, elapsed: 0 });
        let number = one.number;
        let request = if renews { Request::Renew(number) } else { Request::Acquire(number) };
        for column in &mut self.columns {
            column.send(client, request);
            column.votes[client] = Vote::Pending;
        }
    }

    /// Gives back a grant, or undoes an attempt.
    fn end(&mut self, client: usize) {
        self.end_asking(client);
        let one = &mut self.clients[client];
        (one.holds, one.valid) = (false, 0);
        let request = Request::End(one.number);
        self.columns.iter_mut().for_each(|column| column.send(client, request));
    }

    fn end_asking(&mut self, client: usize) {
        self.clients[client].asking = None;
        for column in &mut self.columns {
            column.votes[client] = Vote::None;
        }
    }

    /// Ends a command whose time is up.
    fn give_up(&mut self, client: usize, setup: &Setup) {
        if !self.clients[client].asking.is_some_and(|asking| asking.renews) {
            return self.end(client);
        }
        for column in &mut self.columns {
            if column.votes[client] == Vote::Pending {
                column.votes[client] = Vote::Missing;
            }
        }
        self.look(client, setup);
        if self.clients[client].asking.is_some() {
            self.end_asking(client);
        }
    }

    /// An empty node takes a seat, and waits. All nodes are of the next epoch, in which `epochs.rs` goes into detail:
    /// an operation that has the vote of the node that leaves gets no more votes.
    fn exchange(&mut self, node: usize, setup: &Setup) {
        self.exchanges -= 1;
        let wait = if setup.has(Fault::SeatWithoutWait) { 0 } else { setup.ttl };
        let column = &mut self.columns[node];
        column.node = column.node.emptied(wait);
        column.links = [0; CLIENTS];
        for client in 0..CLIENTS {
            let is_over = self.columns[node].votes[client] == Vote::Yes;
            if is_over && !setup.has(Fault::MixedVotes) {
                self.columns.iter_mut().for_each(|column| column.call_back(client));
            } else {
                self.columns[node].call_back(client);
            }
            self.vote_came(client, setup);
        }
    }

    fn carry_out(&mut self, node: usize, client: usize, setup: &Setup) {
        let column = &mut self.columns[node];
        let Some(request) = column.first(client) else { return };
        column.links[client] >>= 8;
        let (vote, told) = column.node.carry_out(client, request, setup);
        let (number, asking) = (self.clients[client].number, self.clients[client].asking);
        let waits = match request {
            Request::Acquire(of) => of == number && asking.is_some_and(|asking| !asking.renews),
            // Not an earlier renewal's.
            Request::Renew(of) => {
                let renews = asking.is_some_and(|asking| asking.renews);
                of == number && renews && !column.has_behind(client, request)
            }
            Request::Heal(_) | Request::End(_) | Request::Undo(_) => false,
        };
        if waits {
            column.votes[client] = vote;
            self.vote_came(client, setup);
        }
        self.note(told, setup);
    }

    /// Notes what properties of this run ask for.
    fn note(&mut self, told: Told, setup: &Setup) {
        let noted = |name: &str| setup.properties.contains(&name);
        let seen = &mut self.seen;
        seen.barred |= told.barred && noted(INTENT_HELPS);
        seen.let_in |= told.let_in && noted(INTENT_YIELDS);
        seen.healed |= told.healed && noted(READER_HEALED);
        seen.passed |= told.passed && noted(BARRED_IS_BARRED);
        seen.counted |= told.counted && noted(ENDED_IS_GONE);
        seen.left_out |= told.left_out && noted(PUT_BACK_ANYWAY);
    }

    fn vote_came(&mut self, client: usize, setup: &Setup) {
        if !setup.late_looks {
            self.look(client, setup);
        }
    }

    /// Returns the outcome of the votes, by Lockgate's own rules.
    fn decision(&self, client: usize, asking: Asking, setup: &Setup) -> Decision {
        let of = |vote| self.columns.iter().filter(|column| column.votes[client] == vote).count();
        let (yes, no, missing) = (of(Vote::Yes), of(Vote::No), of(Vote::Missing));
        // A renewal that may put the lock back waits for all nodes.
        if asking.renews && setup.heals && yes + no + missing < NODES {
            return Decision::Open;
        }
        let votes = Votes { nodes: NODES, yes, no, missing, ..Votes::default() };
        votes.decide(if asking.renews { Rule::Renewal } else { Rule::Grant })
    }

    /// Looks at the votes.
    fn look(&mut self, client: usize, setup: &Setup) {
        let Some(asking) = self.clients[client].asking else { return };
        match self.decision(client, asking, setup) {
            Decision::Open => {}
            Decision::Yes => self.confirmed(client, asking, setup),
            Decision::NoQuorum if asking.renews => self.end_asking(client),
            Decision::No | Decision::NoQuorum => self.refused(client, setup),
        }
    }

    /// Too few nodes grant the lock, or have it.
    fn refused(&mut self, client: usize, setup: &Setup) {
        let number = self.clients[client].number;
        let goes_on = self.waits(client, setup) && setup.undo_leaves;
        if !goes_on {
            return self.end(client);
        }
        self.end_asking(client);
        self.columns.iter_mut().for_each(|column| column.send(client, Request::Undo(number)));
    }

    /// A quorum has granted or renewed the lock.
    fn confirmed(&mut self, client: usize, asking: Asking, setup: &Setup) {
        let valid = setup.ttl.saturating_sub(asking.elapsed).saturating_sub(setup.drift);
        if valid == 0 {
            return if asking.renews { self.end_asking(client) } else { self.end(client) };
        }
        if setup.heals {
            let number = self.clients[client].number;
            // A grant goes to nodes that must not grant themselves; a renewal to those that lack it.
            let lacking = if asking.renews { Vote::No } else { Vote::Missing };
            let lack = self.columns.iter_mut().filter(|column| column.votes[client] == lacking);
            lack.for_each(|column| column.send(client, Request::Heal(number)));
        }
        self.end_asking(client);
        let one = &mut self.clients[client];
        (one.holds, one.valid) = (true, valid);
        if setup.prompt && !is_reader(client) {
            one.locks = 0;
        }
        self.seen.read |= is_reader(client) && setup.properties.contains(&WRITES_AFTER);
    }

    /// Maps all states that differ only in the names of nodes and clients, or in what can have no effect any more, to
    /// one.
    pub(super) fn in_order(mut self) -> Self {
        self.columns.iter_mut().for_each(Column::drop_idle);
        self.columns.sort_unstable();
        for readers in [true, false] {
            let first = if readers { 0 } else { READERS };
            let mut other = self.clone();
            other.clients.swap(first, first + 1);
            for column in &mut other.columns {
                column.node.swap(readers);
                column.links.swap(first, first + 1);
                column.votes.swap(first, first + 1);
            }
            other.columns.sort_unstable();
            let key = |state: &Self| -> ([Client; CLIENTS], [Column; NODES]) {
                (state.clients, state.columns)
            };
            if key(&other) < key(&self) {
                self = other;
            }
        }
        self
    }
}
