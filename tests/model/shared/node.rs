//! One lock node with a set of readers, as `src/lock/scripts/readers.lua` and the scripts behind it keep it.

use super::{Fault, READERS, Setup, Vote, WRITERS, is_reader};

/// The most LOCKs of a client. Each has a claim of its own.
pub(crate) const CLAIMS: usize = 3;

/// A reader that has ended by the node's clock, and still stands in the set. One that has not ended has this and the
/// rest of its time.
const ENDED: u8 = 1;

/// A request to a node, of the client whose connection it comes on, by the number of its LOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Acquire(u8),
    Renew(u8),
    /// Put back what a quorum has confirmed.
    Heal(u8),
    /// Give back a grant, or what an attempt has taken.
    End(u8),
    /// Give back what an attempt has taken whose writer goes on asking.
    Undo(u8),
}

/// A node's memory, by its own clock. A string at the lock's key (`holder`) and a set (`key`) exclude each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    /// The writer that has the lock, plus 1, the number of its LOCK, and the rest of its TTL.
    pub(super) holder: u8,
    pub(super) claim: u8,
    pub(super) left: u8,
    /// The rest of the TTL of the set: it is there while this is not 0.
    pub(super) key: u8,
    /// For each reader and each of its LOCKs: 0, it is not in the set; else [`ENDED`] and the rest of its time.
    pub(super) members: [[u8; CLAIMS]; READERS],
    /// For each writer, for how long its intent stands.
    pub(super) intents: [u8; WRITERS],
    /// For how long intents bar readers by now, plus 1. 0: none has stood, or so long ago that it may bar anew.
    pub(super) since: u8,
    /// For how long it still grants nothing.
    pub(super) wait: u8,
    /// Whether it has lost its memory.
    pub(super) forgot: bool,
    /// By how much its clock ends a TTL too early.
    pub(super) fast: u8,
    /// Whether a planted fault is one of this node.
    pub(super) is_faulty: bool,
}

/// What a node did that properties are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// It took a new reader beside an intent that bars; beside one that does not, as intents had for long enough.
    pub(super) passed: bool,
    pub(super) let_in: bool,
    /// It refused a reader for an intent.
    pub(super) barred: bool,
    /// It renewed a reader though its time is over.
    pub(super) counted: bool,
    /// It put a reader back; it did not, though no writer has the lock.
    pub(super) healed: bool,
    pub(super) left_out: bool,
}

impl Node {
    /// Whether this client has the lock here by this LOCK.
    pub(super) fn has(&self, client: usize, number: u8) -> bool {
        match is_reader(client) {
            true => self.member(client, number) > ENDED,
            false => self.holder == client as u8 + 1 && self.claim == number,
        }
    }

    /// Whether there is anything of that LOCK, even if its time is over.
    pub(super) fn knows(&self, client: usize, number: u8) -> bool {
        self.has(client, number) || is_reader(client) && self.member(client, number) == ENDED
    }

    fn member(&self, client: usize, number: u8) -> u8 {
        self.members[client][usize::from(number) - 1]
    }

    fn member_mut(&mut self, client: usize, number: u8) -> &mut u8 {
        &mut self.members[client][usize::from(number) - 1]
    }

    /// Returns when the last member that has not ended does.
    pub(super) fn last(&self) -> u8 {
        let readers = self.members.as_flattened().iter().map(|member| member.saturating_sub(ENDED));
        readers.chain(self.intents).max().unwrap_or_default()
    }

    fn is_read(&self) -> bool {
        self.members.as_flattened().iter().any(|member| *member > ENDED)
    }

    fn has_intents(&self) -> bool {
        self.intents.iter().any(|left| *left > 0)
    }

    fn bars(&self, setup: &Setup) -> bool {
        let bars = setup.bars.is_none_or(|bars| self.since <= bars);
        self.has_intents() && self.since > 0 && bars
    }

    fn drop_ended(&mut self) {
        let ended = self.members.as_flattened_mut().iter_mut().filter(|member| **member == ENDED);
        ended.for_each(|member| *member = 0);
    }

    /// Ends the set.
    fn drop_set(&mut self) {
        (self.key, self.since) = (0, 0);
        (self.members, self.intents) = ([[0; CLAIMS]; READERS], [0; WRITERS]);
    }

    /// `settle` of readers.lua.
    fn settle(&mut self) -> bool {
        self.drop_ended();
        self.key = self.last();
        if self.key == 0 {
            self.drop_set();
        }
        self.is_read()
    }

    /// Carries a request out. Returns the vote, and what can be seen of it from outside.
    pub(super) fn carry_out(
        &mut self,
        client: usize,
        request: Request,
        setup: &Setup,
    ) -> (Vote, Told) {
        let before = *self;
        let vote = if self.wait > 0 && matches!(request, Request::Acquire(_)) {
            Vote::Missing
        } else if self.act(client, request, setup) {
            Vote::Yes
        } else {
            Vote::No
        };
        let had_ended = |number| before.knows(client, number) && !before.has(client, number);
        let mut told = Told::default();
        match request {
            Request::Acquire(_) if is_reader(client) => {
                let (bars, granted) = (before.bars(setup), vote == Vote::Yes);
                told.passed = bars && granted;
                told.barred = bars && !granted;
                told.let_in = before.has_intents() && granted && !bars;
            }
            Request::Renew(number) => told.counted = had_ended(number) && vote == Vote::Yes,
            Request::Heal(number) if is_reader(client) => {
                told.healed = vote == Vote::Yes;
                told.left_out = !self.has(client, number) && self.holder == 0;
            }
            _ => {}
        }
        (vote, told)
    }

    /// Does what the request's script does. Returns whether it is done.
    fn act(&mut self, client: usize, request: Request, setup: &Setup) -> bool {
        match (request, is_reader(client)) {
            (Request::Acquire(number), true) => self.acquire_shared(client, number, setup),
            (Request::Acquire(number), false) => self.acquire(client, number, setup),
            (Request::Renew(number), true) => self.renew_shared(client, number, setup),
            (Request::Renew(number), false) => {
                let held = self.has(client, number);
                if held {
                    self.left = setup.ttl - self.fast;
                }
                held
            }
            (Request::Heal(number), true) => self.heal_shared(client, number, setup),
            (Request::Heal(number), false) => self.heal(client, number, setup),
            (Request::End(number), true) => self.release_shared(client, number, setup),
            (Request::End(number) | Request::Undo(number), _) => {
                let held = self.has(client, number);
                if held {
                    (self.holder, self.claim, self.left) = (0, 0, 0);
                }
                if held && matches!(request, Request::Undo(_)) {
                    self.leave_intent(client, setup);
                }
                held
            }
        }
    }

    /// `acquire.lua`
    fn acquire(&mut self, client: usize, number: u8, setup: &Setup) -> bool {
        if self.holder > 0 {
            return false;
        }
        let passes = setup.has(Fault::ReaderBarsNoWriter) && self.is_faulty;
        if self.is_read() && !passes {
            self.leave_intent(client, setup);
            return false;
        }
        self.take(client, number, setup);
        true
    }

    /// Has a writer that waits bar readers, if it does so in this run.
    fn leave_intent(&mut self, client: usize, setup: &Setup) {
        if setup.intent > 0 {
            self.drop_ended();
            self.intents[client - READERS] = setup.intent;
            self.since = self.since.max(1);
            self.key = self.key.max(setup.intent);
        }
    }

    fn take(&mut self, client: usize, number: u8, setup: &Setup) {
        self.drop_set();
        (self.holder, self.claim) = (client as u8 + 1, number);
        self.left = setup.ttl - self.fast;
    }

    /// `acquire_shared.lua`
    fn acquire_shared(&mut self, client: usize, number: u8, setup: &Setup) -> bool {
        if self.holder > 0 || self.bars(setup) && !setup.has(Fault::IntentIgnored) {
            return false;
        }
        self.drop_ended();
        let left = setup.ttl - self.fast;
        *self.member_mut(client, number) = ENDED + left;
        self.key = self.key.max(left);
        true
    }

    /// `renew_shared.lua`
    fn renew_shared(&mut self, client: usize, number: u8, setup: &Setup) -> bool {
        let ended = self.member(client, number) == ENDED;
        if ended && setup.has(Fault::EndedCounts) {
            return true;
        }
        let renewed = self.has(client, number) || ended && setup.has(Fault::EndedIsRenewed);
        if !renewed {
            return false;
        }
        *self.member_mut(client, number) = ENDED + setup.ttl - self.fast;
        self.settle();
        true
    }

    /// `heal_shared.lua`. Nobody waits for the answer.
    fn heal_shared(&mut self, client: usize, number: u8, setup: &Setup) -> bool {
        let is_there = setup.has(Fault::EndedIsThere) && self.knows(client, number);
        let barred = setup.has(Fault::IntentBarsHeal) && self.bars(setup);
        if self.holder > 0 || self.has(client, number) || is_there || barred {
            return false;
        }
        *self.member_mut(client, number) = ENDED + setup.ttl - self.fast;
        self.settle();
        true
    }

    /// `heal.lua`. Nobody waits for the answer.
    fn heal(&mut self, client: usize, number: u8, setup: &Setup) -> bool {
        if self.holder > 0 {
            return false;
        }
        if self.key > 0 && self.settle() && !setup.has(Fault::HealDropsReaders) {
            return false;
        }
        self.take(client, number, setup);
        true
    }

    /// `release_shared.lua`
    fn release_shared(&mut self, client: usize, number: u8, setup: &Setup) -> bool {
        let held = self.has(client, number);
        let member = std::mem::take(self.member_mut(client, number));
        if self.key > 0 {
            self.settle();
        }
        if held && self.key > 0 && setup.has(Fault::EndOfReleased) {
            self.key = member - ENDED;
        }
        if held && setup.has(Fault::ReleaseEndsSet) {
            self.drop_set();
        }
        held
    }

    /// Lets one tick pass.
    pub(super) fn tick(&mut self, setup: &Setup) {
        self.wait = self.wait.saturating_sub(1);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            (self.holder, self.claim) = (0, 0);
        }
        self.key = self.key.saturating_sub(1);
        if self.key == 0 {
            return self.drop_set();
        }
        let running = self.members.as_flattened_mut().iter_mut().filter(|member| **member > ENDED);
        running.for_each(|member| *member -= 1);
        self.intents = self.intents.map(|left| left.saturating_sub(1));
        if let Some(bars) = setup.bars
            && self.since > 0
        {
            self.since = if self.since < 2 * bars { self.since + 1 } else { 0 };
        }
    }

    /// Returns the node with nothing in its memory.
    pub(super) fn emptied(self, wait: u8) -> Node {
        let Node { fast, is_faulty, .. } = self;
        // The node's own clock counts.
        let wait = wait.saturating_sub(fast);
        Node { fast, is_faulty, wait, forgot: true, ..Node::default() }
    }

    /// Gives two clients each other's names.
    pub(super) fn swap(&mut self, readers: bool) {
        if readers {
            return self.members.swap(0, 1);
        }
        self.intents.swap(0, 1);
        if self.holder > 0 {
            let (first, last) = (READERS as u8 + 1, (READERS + WRITERS) as u8);
            self.holder = first + last - self.holder;
        }
    }
}
