//! Nodes that may vote: markers, epochs, waiting (`membership.rs`, `seats.rs` and `round.rs` in
//! `src/lock/members`).
//!
//! Another model checks the locks themselves. Here a node carries out a request and answers it in one step, and locks
//! only run out. But nodes forget, an address may lead two proxies to different servers, and proxies then write new
//! epochs, with each write on each node as a step of its own.

use stateright::{Model, Property};

use super::quorum::quorum;

/// The numbers of seats, of proxies, and of servers for a seat.
const NODES: usize = 3;
const PROXIES: usize = 2;
const SERVERS: usize = 2;

/// Bounds of one run. Each proxy has one client. Times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The TTL of all locks, which is also how long a node waits. At the start the first client has just been granted
    /// the lock, by a quorum and no more.
    pub(crate) ttl: u8,
    /// Further LOCKs of each client; RENEWs of both.
    pub(crate) locks: [u8; PROXIES],
    pub(crate) renewals: u8,
    /// How often a node restarts with an empty memory, or with an old one that has the marker and no lock; how often
    /// one is flushed; how often an address begins to lead to another server, for the first proxy or for both.
    pub(crate) restarts: u8,
    pub(crate) restores: u8,
    pub(crate) flushes: u8,
    pub(crate) exchanges: u8,
    pub(crate) exchanges_for_all: u8,
    /// The only seat whose address leads elsewhere, if others must not.
    pub(crate) exchanged: Option<usize>,
    /// How often a proxy asks all nodes, after which it may write what is due.
    pub(crate) looks: [u8; PROXIES],
    /// Whether the second proxy starts later, and knows nothing.
    pub(crate) late: bool,
    /// The seat that the second proxy cannot reach.
    pub(crate) cut: Option<usize>,
    /// How many ticks a round may take and still count.
    pub(crate) round: u8,
    /// Whether each promise is a step of its own. Otherwise all come with the look.
    pub(crate) in_steps: bool,
    /// The state at the start.
    pub(crate) start: Start,
    /// Whether a look is two steps, between which markers may be written.
    pub(crate) glimpses: bool,
    /// The fault that is planted.
    pub(crate) fault: Option<Fault>,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// States at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// All nodes have the first epoch, and vote.
    Plain,
    /// The first proxy knows an epoch that the nodes have forgotten: two further on, with other servers.
    Forgotten,
    /// The last node has an old marker: of a smaller epoch and a larger ballot, for another server.
    OldBallot,
    /// No node has a marker, and no proxy knows of any.
    Blank,
}

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nodes of which none has a marker are taken for a new deployment. (H1)
    NewnessInferred,
    /// Scripts vote whatever the marker is.
    NoCompare,
    /// An epoch counts once it is written anywhere.
    EpochWithoutQuorum,
    /// A node counts as having waited for as long as it has been up. (H6)
    WaitFromStart,
    /// A node with a marker votes, whichever server it was written for.
    NoIdentity,
    /// A stranger's wait begins while the seat's earlier server may still vote.
    WaitWithoutSeat,
    /// A node that waits grants.
    WaitingGrants,
    /// A node accepts a marker though it has promised a larger ballot, or another lies there.
    NoBallots,
    /// A change that was begun must be completed, even if too few nodes have kept their memory.
    HeldUp,
    /// If too few nodes have kept their memory, others decide with them before they have waited.
    FewWithoutWait,
    /// No proxy writes an epoch beyond one that a proxy knows and no node knows any more.
    NotPassed,
    /// A proxy that knows such an epoch writes the one behind the nodes' smaller one.
    SmallerEpoch,
    /// The largest ballot is the newest, whatever a quorum has accepted.
    OldBallotIsNewest,
    /// Parts of two markers are taken for one.
    TornMarker,
    /// A node is asked again though the request has the vote of another node, which has lost its seat.
    MixedVotes,
}

/// The server on a seat. Each seat numbers its own servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Seat {
    Filled(u8),
    Waiting(u8, u8),
    Blank(u8),
}

/// The agreement of a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Deployment {
    id: u8,
    epoch: u8,
    seats: [Seat; NODES],
}

/// A deployment as a node stores it, with the ballot that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Marker {
    ballot: u8,
    deployment: Deployment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Note {
    who: u8,
    epoch: u8,
    waited: u8,
}

/// A server at a seat's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    who: u8,
    /// The lock's holder, and the rest of its TTL.
    lock: Option<(usize, u8)>,
    marker: Option<Marker>,
    promised: u8,
    note: Option<Note>,
    up: u8,
}

/// A proxy and its client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Proxy {
    current: Option<Marker>,
    /// The server to which each address leads.
    reach: [usize; NODES],
    links: [Option<Link>; NODES],
    round: Option<Round>,
    looks: u8,
    /// The markers, of which the first part was read.
    glimpse: Option<[Option<Server>; NODES]>,
    /// Another deployment that a quorum has now, and for how long this proxy has seen it there.
    other: Option<(u8, u8)>,
    locks: u8,
    asking: Option<Asking>,
    /// The rest of its client's validity, and where the lock may be put back.
    valid: u8,
    heals: [bool; NODES],
    /// Whether the lock was renewed while a node waited.
    renewed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Link {
    server: usize,
    waits: bool,
}

/// A LOCK or a RENEW under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Asking {
    renews: bool,
    elapsed: u8,
    votes: [Vote; NODES],
    /// The deployment that the proxy knew when it began to ask.
    known: Option<Deployment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Vote {
    Pending,
    /// The node had another marker, and is asked again once it is admitted.
    Again,
    Yes,
    No,
    Missing,
}

/// A marker that is being written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Round {
    age: u8,
    write: Marker,
    /// The server and the marker seen on each node.
    seen: [Option<(u8, Option<Deployment>)>; NODES],
    acceptors: [bool; NODES],
    admitted: [bool; NODES],
    joining: [bool; NODES],
    promises: [bool; NODES],
    accepted: [bool; NODES],
    /// Whether a quorum has accepted it. Nodes that join get it then.
    done: bool,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    servers: [[Server; SERVERS]; NODES],
    proxies: [Proxy; PROXIES],
    next: [u8; NODES],
    restarts: u8,
    restores: u8,
    flushes: u8,
    exchanges: u8,
    exchanges_for_all: u8,
    renewals: u8,
    /// Deployments that quorums have accepted.
    chosen: Vec<Deployment>,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes.
    Tick,
    /// A client sends LOCK or RENEW.
    Lock {
        proxy: usize,
    },
    Renew {
        proxy: usize,
    },
    /// A node votes.
    Vote {
        proxy: usize,
        seat: usize,
    },
    /// A lock is put back, or its request comes to nothing.
    Heal {
        proxy: usize,
        seat: usize,
    },
    /// The first part of all markers is read.
    Glimpse {
        proxy: usize,
    },
    /// All nodes are asked.
    Look {
        proxy: usize,
    },
    /// A node promises a ballot.
    Promise {
        proxy: usize,
        seat: usize,
    },
    /// A node accepts a marker.
    Accept {
        proxy: usize,
        seat: usize,
    },
    /// A fault of the servers.
    Restart {
        seat: usize,
        server: usize,
    },
    Restore {
        seat: usize,
        server: usize,
    },
    Flush {
        seat: usize,
        server: usize,
    },
    Exchange {
        seat: usize,
    },
    ExchangeForAll {
        seat: usize,
    },
}

/// At most one client may count on the lock at any instant.
pub(crate) const ONE_HOLDER: &str = "no two clients count on the lock";
/// Two quorums never accept different markers of one epoch.
pub(crate) const ONE_EPOCH: &str = "an epoch is one thing";
/// The epochs of one deployment that quorums accept grow.
pub(crate) const ONWARD: &str = "epochs go on";
/// Once nothing goes wrong any more, proxies that look often enough get a quorum that votes.
pub(crate) const NOT_STUCK: &str = "no proxy is stuck for good";
/// Properties that must hold in every state.
pub(crate) const EPOCHS_ALWAYS: &[&str] = &[ONE_HOLDER, ONE_EPOCH, ONWARD, NOT_STUCK];

/// The second proxy grants after another's lock has run out.
pub(crate) const GRANTED: &str = "a grant by the second proxy";
/// A seat has another server, which votes.
pub(crate) const ADMITTED: &str = "a stranger is given a seat";
/// A lock was renewed with the vote of a node that waits.
pub(crate) const RENEWED: &str = "a renewal that a waiting node has confirmed";

impl Deployment {
    fn names(&self, seat: usize, who: u8) -> bool {
        self.seats[seat] == Seat::Filled(who)
    }

    /// Returns the deployment with other servers from one seat on.
    fn of_others(mut self, from: usize, epoch: u8) -> Deployment {
        self.epoch = epoch;
        for seat in from..NODES {
            self.seats[seat] = Seat::Filled(SERVERS as u8);
        }
        self
    }

    fn since(&self, seat: usize) -> u8 {
        match self.seats[seat] {
            Seat::Blank(since) | Seat::Waiting(_, since) => since,
            Seat::Filled(_) => self.epoch,
        }
    }
}

impl Server {
    fn new(who: u8, marker: Option<Marker>, up: u8) -> Server {
        let promised = marker.map_or(0, |marker| marker.ballot);
        Server { who, lock: None, marker, promised, note: None, up }
    }

    fn theirs(&self) -> Option<Deployment> {
        self.marker.map(|marker| marker.deployment)
    }

    fn has_joined(&self, deployment: &Deployment, seat: usize) -> bool {
        let is_there = self.theirs().is_some_and(|theirs| {
            theirs.id == deployment.id && theirs.seats[seat] == deployment.seats[seat]
        });
        matches!(deployment.seats[seat], Seat::Waiting(who, _) if who == self.who) && is_there
    }
}

/// The outcome of the looks at all nodes, as in `Survey`.
struct Survey {
    looks: [Option<Server>; NODES],
    committed: Option<Marker>,
    newest: Option<Marker>,
    intact: [bool; NODES],
    /// The surveyed deployment.
    ours: Option<u8>,
}

fn count(which: &[bool; NODES]) -> usize {
    which.iter().filter(|one| **one).count()
}

impl Survey {
    fn new(looks: [Option<Server>; NODES], known: Option<u8>, fault: Option<Fault>) -> Survey {
        let markers = looks.map(|look| look.and_then(|look| look.marker));
        let ids = |id: u8| markers.iter().flatten().filter(|m| m.deployment.id == id).count();
        let all: Vec<u8> = (0..=PROXIES as u8).filter(|id| ids(*id) > 0).collect();
        let ours = all.iter().copied().find(|id| ids(*id) >= quorum(NODES));
        let ours = ours
            .or(known.filter(|known| all.contains(known)))
            .or(all.first().copied().filter(|_| all.len() == 1));
        let id = ours;
        let ours = markers.map(|marker| marker.filter(|m| Some(m.deployment.id) == id));
        let agree = |one: &Marker| ours.iter().flatten().filter(|other| *other == one).count();
        let committed = ours.iter().flatten().find(|one| agree(one) >= quorum(NODES)).copied();
        let may_follow = |one: &&Marker| {
            fault == Some(Fault::OldBallotIsNewest)
                || committed.is_none_or(|before| one.deployment.epoch >= before.deployment.epoch)
        };
        let newest = ours.iter().flatten().filter(may_follow);
        let newest = newest.max_by_key(|m| (m.ballot, m.deployment.epoch)).copied();
        let intact = std::array::from_fn(|seat| {
            let who = looks[seat].map(|look| look.who);
            let named = |marker: Option<Marker>| {
                who.is_some_and(|who| marker.is_some_and(|m| m.deployment.names(seat, who)))
            };
            named(ours[seat]) && named(newest)
        });
        Survey { looks, committed, newest, intact, ours: id }
    }

    fn is_covered(&self) -> bool {
        count(&self.intact) >= quorum(NODES)
    }

    /// Plans what is to be written: the marker, the nodes that may accept it, those that it admits
    /// and those that wait from then on. `over`: nodes that have waited; `foreign`: nodes that must
    /// not be given a seat.
    fn plan(
        &self,
        [over, foreign]: [[bool; NODES]; 2],
        known: Option<Deployment>,
        proxy: usize,
        fault: Option<Fault>,
    ) -> Option<(Deployment, [[bool; NODES]; 3])> {
        let none = [false; NODES];
        let acceptors = std::array::from_fn(|seat| self.intact[seat] || over[seat]);
        let who = |seat: usize| self.looks[seat].map(|look| look.who);
        let Some(newest) = self.newest else {
            let new =
                || Deployment { id: 1 + proxy as u8, epoch: 0, seats: [Seat::Blank(0); NODES] };
            let mut next = known.unwrap_or_else(new);
            next.epoch += 1;
            for (seat, over) in over.iter().enumerate() {
                let admitted = who(seat).filter(|_| *over);
                next.seats[seat] = admitted.map_or(Seat::Blank(next.epoch), Seat::Filled);
            }
            return (count(&acceptors) >= quorum(NODES))
                .then_some((next, [acceptors, acceptors, none]));
        };
        let base = newest.deployment;
        let held_up = self.committed.is_some_and(|committed| {
            (0..NODES).any(|seat| {
                self.intact[seat]
                    && self.looks[seat].is_some_and(|look| {
                        look.marker.map(|m| m.ballot) != Some(committed.ballot)
                            && look.promised > committed.ballot
                    })
            })
        });
        if self.is_covered() && (self.committed != Some(newest) || held_up) {
            return Some((base, [self.intact, none, none]));
        }
        if held_up && fault == Some(Fault::HeldUp) {
            return None;
        }
        let last = known.filter(|known| known.id == base.id).map_or(0, |known| known.epoch);
        let passed = match fault {
            Some(Fault::NotPassed | Fault::SmallerEpoch) => base.epoch,
            _ => base.epoch.max(last),
        };
        let mut next = Deployment { epoch: passed + 1, ..base };
        let (mut admitted, mut joining) = (none, none);
        for seat in 0..NODES {
            let Some(look) = self.looks[seat].filter(|_| !self.intact[seat]) else { continue };
            if foreign[seat] {
                continue;
            }
            let joined = look.has_joined(&base, seat);
            let without_seat = fault == Some(Fault::WaitWithoutSeat);
            if self.is_covered() && !joined && !without_seat {
                next.seats[seat] = Seat::Waiting(look.who, next.epoch);
                joining[seat] = true;
            } else if over[seat] {
                next.seats[seat] = Seat::Filled(look.who);
                admitted[seat] = true;
            }
        }
        let mut accepting = acceptors;
        if count(&joining) > 0 {
            for (seat, admitted) in admitted.iter_mut().enumerate() {
                if std::mem::take(admitted) {
                    next.seats[seat] = base.seats[seat];
                }
            }
            accepting = self.intact;
        }
        let is_overtaken =
            self.is_covered() && last > base.epoch && fault != Some(Fault::NotPassed);
        let is_change = count(&joining) + count(&admitted) > 0 || is_overtaken;
        let enough = count(&accepting) >= quorum(NODES);
        (is_change && enough).then_some((next, [accepting, admitted, joining]))
    }
}

/// One run of the checker.
pub(crate) struct Epochs(pub Setup);

impl Epochs {
    fn has(&self, fault: Fault) -> bool {
        self.0.fault == Some(fault)
    }

    fn reaches(&self, proxy: usize, seat: usize) -> bool {
        proxy == 0 || self.0.cut != Some(seat)
    }

    fn first(&self) -> State {
        let setup = &self.0;
        let deployment = Deployment { id: 0, epoch: 1, seats: [Seat::Filled(0); NODES] };
        let marker = Some(Marker { ballot: 2, deployment });
        let server = [Server::new(0, marker, setup.ttl), Server::new(1, None, setup.ttl)];
        let mut servers = [server; NODES];
        let mut chosen = vec![deployment];
        match setup.start {
            Start::Plain => {}
            Start::Forgotten => chosen = vec![deployment.of_others(0, 3)],
            Start::OldBallot => {
                let last = &mut servers[NODES - 1][0];
                last.marker =
                    Some(Marker { ballot: 4, deployment: deployment.of_others(NODES - 1, 0) });
                (last.promised, last.who) = (4, 1);
            }
            Start::Blank => {
                servers.iter_mut().for_each(|seat| seat[0] = Server::new(0, None, setup.ttl));
                chosen.clear();
            }
        }
        let has_lock = setup.locks[1] > 0 && setup.start == Start::Plain;
        for seat in servers.iter_mut().take(quorum(NODES)).filter(|_| has_lock) {
            seat[0].lock = Some((0, setup.ttl));
        }
        let proxy = |index: usize| {
            let knows = (index == 0 || !setup.late) && setup.start != Start::Blank;
            let remembers = index == 0 && setup.start == Start::Forgotten;
            let link = Some(Link { server: 0, waits: false }).filter(|_| !remembers);
            let forgotten = Marker { ballot: 6, deployment: deployment.of_others(0, 3) };
            let current = if remembers { Some(forgotten) } else { marker };
            Proxy {
                current: current.filter(|_| knows),
                reach: [0; NODES],
                links: std::array::from_fn(|seat| {
                    let is_named = servers[seat][0].who == 0;
                    link.filter(|_| knows && is_named && self.reaches(index, seat))
                }),
                round: None,
                glimpse: None,
                other: None,
                looks: setup.looks[index],
                locks: setup.locks[index],
                asking: None,
                valid: if index == 0 && has_lock { setup.ttl } else { 0 },
                heals: [false; NODES],
                renewed: false,
            }
        };
        State {
            servers,
            proxies: [proxy(0), proxy(1)],
            next: [2; NODES],
            restarts: setup.restarts,
            restores: setup.restores,
            flushes: setup.flushes,
            exchanges: setup.exchanges,
            exchanges_for_all: setup.exchanges_for_all,
            renewals: setup.renewals,
            chosen,
        }
    }
}

impl State {
    fn server(&self, proxy: usize, seat: usize) -> &Server {
        &self.servers[seat][self.proxies[proxy].reach[seat]]
    }

    fn unlink(&mut self, proxy: usize, seat: usize) {
        let proxy = &mut self.proxies[proxy];
        proxy.links[seat] = None;
        proxy.heals[seat] = false;
        if let Some(asking) = &mut proxy.asking
            && asking.votes[seat] == Vote::Pending
        {
            asking.votes[seat] = Vote::Missing;
        }
    }

    /// Ends all connections to a server that dies.
    fn end_links(&mut self, seat: usize, server: usize) {
        for proxy in 0..PROXIES {
            if self.proxies[proxy].links[seat].is_some_and(|link| link.server == server) {
                self.unlink(proxy, seat);
            }
        }
    }

    fn learn(&mut self, proxy: usize, accepted: Marker) {
        let (theirs, this) = (accepted.deployment, &mut self.proxies[proxy]);
        if let Some(current) = this.current {
            let known = current.deployment;
            if known.id != theirs.id || known.epoch > theirs.epoch {
                return;
            }
        }
        this.current = Some(accepted);
        let servers = &self.servers;
        let stays = |seat: usize, link: &Link| match theirs.seats[seat] {
            Seat::Filled(who) | Seat::Waiting(who, _) => servers[seat][link.server].who == who,
            Seat::Blank(_) => false,
        };
        let links = this.links.iter().enumerate();
        if links.into_iter().any(|(seat, link)| link.is_some_and(|link| !stays(seat, &link))) {
            // No operation may have both the vote of a server that goes and one of the new epoch.
            return (0..NODES).for_each(|seat| self.unlink(proxy, seat));
        }
        for (seat, link) in this.links.iter_mut().enumerate() {
            if let Some(link) = link {
                link.waits = !matches!(theirs.seats[seat], Seat::Filled(_));
            }
        }
    }

    /// Returns the rest of a stranger's wait, or `None` if its wait is not noted.
    fn remaining(
        &self,
        model: &Epochs,
        known: Option<Marker>,
        look: &Server,
        seat: usize,
    ) -> Option<u8> {
        if model.has(Fault::WaitFromStart) {
            return Some(model.0.ttl.saturating_sub(look.up));
        }
        let needed = known.map_or(0, |known| known.deployment.since(seat));
        let note = look.note.filter(|note| note.who == look.who && note.epoch >= needed)?;
        Some(model.0.ttl.saturating_sub(note.waited))
    }

    fn look(&mut self, proxy: usize, model: &Epochs) {
        self.proxies[proxy].looks -= 1;
        let mut looks = self.looks(proxy, model);
        // Otherwise the whole marker is read again.
        if let Some(glimpse) = self.proxies[proxy].glimpse.take()
            && model.has(Fault::TornMarker)
        {
            for (look, first) in looks.iter_mut().zip(glimpse) {
                if let Some(marker) = look.as_mut().and_then(|look| look.marker.as_mut())
                    && let Some(first) = first.and_then(|first| first.theirs())
                {
                    let seats = marker.deployment.seats;
                    marker.deployment = Deployment { seats, ..first };
                }
            }
        }
        let before = self.proxies[proxy].current;
        let fault = model.0.fault;
        let survey = Survey::new(looks, before.map(|current| current.deployment.id), fault);
        if let Some(committed) = survey.committed
            && self.is_ours(proxy, committed, model)
        {
            self.learn(proxy, committed);
        }
        let current = self.proxies[proxy].current;
        let id = |marker: Marker| marker.deployment.id;
        if current.is_some() && survey.ours.is_some() && current.map(id) != survey.ours {
            return;
        }
        let [mut over, mut foreign] = [[false; NODES]; 2];
        for (seat, is_over) in over.iter_mut().enumerate() {
            let Some(look) = &survey.looks[seat] else { continue };
            let known = current.or(survey.newest);
            foreign[seat] = look.marker.is_some_and(|marker| known.map(id) != Some(id(marker)));
            if foreign[seat] {
                continue;
            }
            match self.remaining(model, known, look, seat) {
                Some(left) => *is_over = left == 0,
                // A server that has kept its memory, or is given a place to wait first, needs no
                // note.
                None if survey.intact[seat]
                    || survey.is_covered() && !model.has(Fault::WaitWithoutSeat) => {}
                None => {
                    let epoch = known.map_or(0, |known| known.deployment.epoch);
                    let reach = self.proxies[proxy].reach[seat];
                    let note = Note { who: look.who, epoch, waited: 0 };
                    self.servers[seat][reach].note = Some(note);
                }
            }
        }
        let known = current.map(|current| current.deployment);
        let is_blank =
            survey.looks.iter().all(|look| look.is_some_and(|look| look.marker.is_none()));
        if model.has(Fault::NewnessInferred) && is_blank && known.is_none() {
            over = [true; NODES];
        }
        if model.has(Fault::FewWithoutWait) && !survey.is_covered() {
            over = survey.looks.map(|look| look.is_some());
        }
        let Some((next, [acceptors, admitted, joining])) =
            survey.plan([over, foreign], known, proxy, fault)
        else {
            return;
        };
        let promised = survey.looks.iter().flatten().map(|look| look.promised).max().unwrap_or(0);
        let write = Marker { ballot: (promised / 2 + 1) * 2 + proxy as u8, deployment: next };
        let seen = survey.looks.map(|look| look.map(|look| (look.who, look.theirs())));
        let [promises, accepted] = [[false; NODES]; 2];
        let (age, done) = (0, false);
        self.proxies[proxy].round = Some(Round {
            age,
            write,
            seen,
            acceptors,
            admitted,
            joining,
            promises,
            accepted,
            done,
        });
        for seat in (0..NODES).filter(|seat| acceptors[*seat] && !model.0.in_steps) {
            self.promise(proxy, seat, model);
        }
    }

    fn looks(&self, proxy: usize, model: &Epochs) -> [Option<Server>; NODES] {
        std::array::from_fn(|seat| model.reaches(proxy, seat).then(|| *self.server(proxy, seat)))
    }

    /// Whether the proxy takes this deployment for its own: one other than the known one only once all locks granted
    /// under the known one have run out.
    fn is_ours(&mut self, proxy: usize, committed: Marker, model: &Epochs) -> bool {
        let (this, id) = (&mut self.proxies[proxy], committed.deployment.id);
        if this.current.is_none_or(|current| current.deployment.id == id) {
            this.other = None;
            return true;
        }
        let (_, seen) =
            *this.other.insert(this.other.filter(|other| other.0 == id).unwrap_or((id, 0)));
        if seen < model.0.ttl {
            return false;
        }
        (this.current, this.other) = (None, None);
        (0..NODES).for_each(|seat| self.unlink(proxy, seat));
        true
    }

    /// Whether each proxy gets a quorum that votes, if from now on nothing goes wrong, all that is under way comes to
    /// nothing, and the proxies reach all nodes and look often, one after the other.
    fn gets_well(&self, model: &Epochs) -> bool {
        let model = &Epochs(Setup { cut: None, ..model.0.clone() });
        let mut state = self.clone();
        (0..PROXIES).for_each(|proxy| state.proxies[proxy].round = None);
        for _ in 0..8 {
            for proxy in 0..PROXIES {
                state.proxies[proxy].looks = 1;
                state.look(proxy, model);
                state.finish(proxy, model);
            }
            if (0..PROXIES).all(|proxy| state.has_quorum(proxy, model)) {
                return true;
            }
            (0..model.0.ttl).for_each(|_| state.tick(model));
        }
        false
    }

    /// Brings a round to its end.
    fn finish(&mut self, proxy: usize, model: &Epochs) {
        let mut steps = Vec::new();
        loop {
            steps.clear();
            self.steps_of(proxy, model, &mut steps);
            let of_round =
                |step: &&Step| matches!(step, Step::Promise { .. } | Step::Accept { .. });
            match steps.iter().find(of_round) {
                Some(Step::Promise { seat, .. }) => self.promise(proxy, *seat, model),
                Some(Step::Accept { seat, .. }) => self.accept(proxy, *seat, model),
                _ => break,
            }
        }
        self.proxies[proxy].round = None;
    }

    fn has_quorum(&self, proxy: usize, model: &Epochs) -> bool {
        let mut state = self.clone();
        // Connections that are open under another epoch are made anew.
        (0..NODES).for_each(|seat| state.unlink(proxy, seat));
        state.open_all(proxy, model);
        let grants = |link: &&Option<Link>| link.is_some_and(|link| !link.waits);
        state.proxies[proxy].links.iter().filter(grants).count() >= quorum(NODES)
    }

    /// Whether the marker on the node is still the one that was seen.
    fn is_as_seen(&self, proxy: usize, seat: usize, round: &Round) -> bool {
        let server = self.server(proxy, seat);
        round.seen[seat] == Some((server.who, server.theirs()))
    }

    fn promise(&mut self, proxy: usize, seat: usize, model: &Epochs) {
        let Some(mut round) = self.proxies[proxy].round.take() else { return };
        let as_seen = self.is_as_seen(proxy, seat, &round) || model.has(Fault::NoBallots);
        let reach = self.proxies[proxy].reach[seat];
        let server = &mut self.servers[seat][reach];
        if as_seen && server.promised < round.write.ballot {
            server.promised = round.write.ballot;
            round.promises[seat] = true;
        } else {
            round.acceptors[seat] = false;
        }
        self.proxies[proxy].round = Some(round);
    }

    fn accept(&mut self, proxy: usize, seat: usize, model: &Epochs) {
        let Some(mut round) = self.proxies[proxy].round.take() else { return };
        let reach = self.proxies[proxy].reach[seat];
        let (ttl, careless) = (model.0.ttl, model.has(Fault::NoBallots));
        let as_seen = self.is_as_seen(proxy, seat, &round) || careless;
        let server = &mut self.servers[seat][reach];
        let waited = server.note.is_some_and(|note| note.who == server.who && note.waited >= ttl)
            || model.has(Fault::WaitFromStart)
            || model.has(Fault::FewWithoutWait)
            || model.has(Fault::NewnessInferred);
        let is_due = !round.admitted[seat] || waited;
        if as_seen && is_due && (server.promised <= round.write.ballot || careless) {
            server.marker = Some(round.write);
            server.promised = round.write.ballot.max(server.promised);
            if round.admitted[seat] {
                server.note = None;
            }
            if round.joining[seat] {
                let epoch = round.write.deployment.epoch;
                server.note = Some(Note { who: server.who, epoch, waited: 0 });
            }
            round.accepted[seat] = true;
        } else if round.admitted[seat] {
            return;
        } else {
            round.promises[seat] = false;
        }
        let needed = if model.has(Fault::EpochWithoutQuorum) { 1 } else { quorum(NODES) };
        let admitted = (0..NODES).all(|seat| !round.admitted[seat] || round.accepted[seat]);
        if !round.done && admitted && count(&round.accepted) >= needed {
            round.done = true;
            self.learn(proxy, round.write);
        }
        self.note_chosen(round.write);
        self.proxies[proxy].round = Some(round);
    }

    fn note_chosen(&mut self, marker: Marker) {
        let has =
            |servers: &&[Server; SERVERS]| servers.iter().any(|one| one.marker == Some(marker));
        let is_new = !self.chosen.contains(&marker.deployment);
        if is_new && self.servers.iter().filter(has).count() >= quorum(NODES) {
            self.chosen.push(marker.deployment);
        }
    }

    /// Connects to nodes and brings them the epoch that they have missed, once the proxy has something to ask them.
    fn open_all(&mut self, proxy: usize, model: &Epochs) {
        for seat in (0..NODES).filter(|seat| model.reaches(proxy, *seat)) {
            if self.proxies[proxy].links[seat].is_none() {
                self.open(proxy, seat, model);
            }
        }
    }

    fn open(&mut self, proxy: usize, seat: usize, model: &Epochs) {
        let server = *self.server(proxy, seat);
        let reach = self.proxies[proxy].reach[seat];
        let (Some(current), Some(marker)) = (self.proxies[proxy].current, server.marker) else {
            return;
        };
        let (deployment, theirs) = (current.deployment, marker.deployment);
        let joined = server.has_joined(&deployment, seat);
        let anybody = model.has(Fault::NoIdentity);
        let named = deployment.names(seat, server.who) || anybody;
        let may_catch_up = joined || theirs.names(seat, server.who) || anybody;
        if deployment.id != theirs.id || !(joined || named) {
            return;
        }
        if theirs != deployment {
            if theirs.epoch > deployment.epoch || !may_catch_up || server.promised > current.ballot
            {
                return;
            }
            let server = &mut self.servers[seat][reach];
            (server.marker, server.promised) = (Some(current), current.ballot);
            self.note_chosen(current);
        }
        if joined && self.remaining(model, Some(current), &server, seat).is_none() {
            return;
        }
        let waits = !matches!(deployment.seats[seat], Seat::Filled(_));
        self.proxies[proxy].links[seat] = Some(Link { server: reach, waits });
    }

    /// Returns the server that a request reaches, if the server proves its vote.
    fn proven(&mut self, proxy: usize, seat: usize, model: &Epochs) -> Option<&mut Server> {
        let this = &self.proxies[proxy];
        let (link, current) = (this.links[seat]?, this.current?);
        let told = (current.deployment.id, current.deployment.epoch);
        let theirs =
            self.servers[seat][link.server].theirs().map(|theirs| (theirs.id, theirs.epoch));
        if theirs != Some(told) && !model.has(Fault::NoCompare) {
            // The node is looked at anew.
            self.unlink(proxy, seat);
            return None;
        }
        Some(&mut self.servers[seat][link.server])
    }

    fn vote(&mut self, proxy: usize, seat: usize, model: &Epochs) {
        let Some(asking) = self.proxies[proxy].asking else { return };
        let ttl = model.0.ttl;
        if asking.votes[seat] == Vote::Again {
            self.open(proxy, seat, model);
            if self.proxies[proxy].links[seat].is_none() {
                return;
            }
        }
        // An epoch may have begun since.
        if !self.may_be_asked_still(proxy, &asking) && !model.has(Fault::MixedVotes) {
            return self.count(proxy, seat, Vote::Missing, model);
        }
        let link = self.proxies[proxy].links[seat];
        let must_not = link.is_none_or(|link| link.waits && !model.has(Fault::WaitingGrants));
        let vote = if must_not && !asking.renews {
            Vote::Missing
        } else if let Some(server) = self.proven(proxy, seat, model) {
            let own = server.lock.is_some_and(|(holder, _)| holder == proxy);
            let free = server.lock.is_none() && !asking.renews;
            if own && asking.renews || free {
                server.lock = Some((proxy, ttl));
                Vote::Yes
            } else {
                Vote::No
            }
        } else {
            Vote::Again
        };
        self.count(proxy, seat, vote, model);
    }

    /// Whether the nodes that have granted or renewed the lock still have their seats.
    fn may_be_asked_still(&self, proxy: usize, asking: &Asking) -> bool {
        let (Some(known), Some(current)) = (asking.known, self.proxies[proxy].current) else {
            return false;
        };
        let stays = |seat: usize| match (known.seats[seat], current.deployment.seats[seat]) {
            (Seat::Waiting(was, _), Seat::Filled(is)) => was == is,
            (was, is) => was == is,
        };
        (0..NODES).all(|seat| asking.votes[seat] != Vote::Yes || stays(seat))
    }

    fn count(&mut self, proxy: usize, seat: usize, vote: Vote, model: &Epochs) {
        let ttl = model.0.ttl;
        let this = &mut self.proxies[proxy];
        let Some(mut asking) = this.asking else { return };
        asking.votes[seat] = vote;
        let yes = asking.votes.iter().filter(|vote| **vote == Vote::Yes).count();
        let pending = [Vote::Pending, Vote::Again].iter().any(|vote| asking.votes.contains(vote));
        // A renewal waits for all nodes.
        if yes >= quorum(NODES) && !(asking.renews && pending) {
            let valid = ttl.saturating_sub(asking.elapsed);
            if asking.renews && valid > 0 && this.valid > 0 {
                this.heals = asking.votes.map(|vote| vote == Vote::No);
                let waits = |(vote, link): (&Vote, &Option<Link>)| {
                    *vote == Vote::Yes && link.is_some_and(|link| link.waits)
                };
                this.renewed |= asking.votes.iter().zip(&this.links).any(waits);
            }
            if !asking.renews && valid > 0 {
                // The grant is put on nodes that must not grant themselves, now or later.
                let waits = |seat: usize| this.links[seat].is_some_and(|link| link.waits);
                this.heals =
                    std::array::from_fn(|seat| asking.votes[seat] == Vote::Missing && waits(seat));
            }
            if !asking.renews || this.valid > 0 {
                this.valid = valid;
            }
            this.asking = None;
        } else {
            this.asking = pending.then_some(asking);
        }
    }

    fn heal(&mut self, proxy: usize, seat: usize, model: &Epochs) {
        self.proxies[proxy].heals[seat] = false;
        let ttl = model.0.ttl;
        if let Some(server) = self.proven(proxy, seat, model)
            && server.lock.is_none()
        {
            server.lock = Some((proxy, ttl));
        }
    }

    fn tick(&mut self, model: &Epochs) {
        let ttl = model.0.ttl;
        for server in self.servers.iter_mut().flatten() {
            server.lock = server.lock.map(|(who, left)| (who, left - 1)).filter(|lock| lock.1 > 0);
            server.up = (server.up + 1).min(ttl);
            if let Some(note) = &mut server.note {
                note.waited = (note.waited + 1).min(ttl);
            }
        }
        for proxy in &mut self.proxies {
            proxy.valid = proxy.valid.saturating_sub(1);
            if proxy.valid == 0 {
                (proxy.heals, proxy.renewed) = ([false; NODES], false);
            }
            proxy.asking = proxy.asking.and_then(|mut asking| {
                asking.elapsed += 1;
                (asking.elapsed < ttl && !(asking.renews && proxy.valid == 0)).then_some(asking)
            });
            if let Some((_, seen)) = &mut proxy.other {
                *seen = (*seen + 1).min(ttl);
            }
            if let Some(round) = &mut proxy.round {
                round.age += 1;
            }
            proxy.round.take_if(|round| round.age > model.0.round);
        }
    }

    fn steps_of(&self, proxy: usize, model: &Epochs, steps: &mut Vec<Step>) {
        let this = &self.proxies[proxy];
        if this.asking.is_none() && this.current.is_some() {
            if this.locks > 0 && this.valid == 0 {
                steps.push(Step::Lock { proxy });
            }
            if self.renewals > 0 && this.valid > 0 {
                steps.push(Step::Renew { proxy });
            }
        }
        if this.looks > 0 && this.round.is_none() {
            let is_first = model.0.glimpses && this.glimpse.is_none();
            steps.push(if is_first { Step::Glimpse { proxy } } else { Step::Look { proxy } });
        }
        for seat in (0..NODES).filter(|seat| model.reaches(proxy, *seat)) {
            if this
                .asking
                .is_some_and(|asking| matches!(asking.votes[seat], Vote::Pending | Vote::Again))
            {
                steps.push(Step::Vote { proxy, seat });
            }
            if this.heals[seat] {
                steps.push(Step::Heal { proxy, seat });
            }
            if let Some(round) = &this.round {
                let promised = count(&round.promises);
                let all = (0..NODES).all(|one| !round.admitted[one] || round.promises[one]);
                let admitted = (0..NODES).all(|one| !round.admitted[one] || round.accepted[one]);
                let begun = count(&round.accepted) > 0;
                if round.acceptors[seat] && !round.promises[seat] && !begun && !round.done {
                    steps.push(Step::Promise { proxy, seat });
                }
                let needed = if model.has(Fault::EpochWithoutQuorum) { 1 } else { quorum(NODES) };
                let may = promised >= needed && all && (admitted || round.admitted[seat]);
                if !round.accepted[seat]
                    && (round.promises[seat] && may || round.done && round.joining[seat])
                {
                    steps.push(Step::Accept { proxy, seat });
                }
            }
        }
    }
}

impl Model for Epochs {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for proxy in 0..PROXIES {
            state.steps_of(proxy, self, steps);
        }
        for seat in 0..NODES {
            // The server at the address, and the earlier ones.
            for server in 0..=state.proxies[0].reach[seat] {
                if state.restarts > 0 {
                    steps.push(Step::Restart { seat, server });
                }
                if state.restores > 0 {
                    steps.push(Step::Restore { seat, server });
                }
                if state.flushes > 0 {
                    steps.push(Step::Flush { seat, server });
                }
            }
            let may_lead_elsewhere = self.0.exchanged.is_none_or(|only| only == seat);
            if state.exchanges > 0 && state.proxies[0].reach[seat] == 0 && may_lead_elsewhere {
                steps.push(Step::Exchange { seat });
            }
            let for_all = state.exchanges_for_all > 0 && may_lead_elsewhere;
            if for_all && state.proxies[1].reach[seat] == 0 {
                steps.push(Step::ExchangeForAll { seat });
            }
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        let asking = |renews: bool, this: &Proxy| {
            let known = this.current.map(|current| current.deployment);
            Some(Asking { renews, elapsed: 0, votes: [Vote::Pending; NODES], known })
        };
        match step {
            Step::Tick => next.tick(self),
            Step::Lock { proxy } => {
                next.open_all(proxy, self);
                next.proxies[proxy].locks -= 1;
                next.proxies[proxy].asking = asking(false, &state.proxies[proxy]);
            }
            Step::Renew { proxy } => {
                next.open_all(proxy, self);
                next.renewals -= 1;
                next.proxies[proxy].asking = asking(true, &state.proxies[proxy]);
            }
            Step::Vote { proxy, seat } => next.vote(proxy, seat, self),
            Step::Heal { proxy, seat } => next.heal(proxy, seat, self),
            Step::Glimpse { proxy } => next.proxies[proxy].glimpse = Some(next.looks(proxy, self)),
            Step::Look { proxy } => next.look(proxy, self),
            Step::Promise { proxy, seat } => {
                next.promise(proxy, seat, self);
            }
            Step::Accept { proxy, seat } => next.accept(proxy, seat, self),
            Step::Restart { seat, server } | Step::Restore { seat, server } => {
                let who = next.next[seat];
                next.next[seat] += 1;
                let one = &mut next.servers[seat][server];
                if let Step::Restart { .. } = step {
                    next.restarts -= 1;
                    *one = Server::new(who, None, 0);
                } else {
                    next.restores -= 1;
                    *one = Server { who, lock: None, up: 0, ..*one };
                }
                next.end_links(seat, server);
            }
            Step::Flush { seat, server } => {
                next.flushes -= 1;
                let one = &mut next.servers[seat][server];
                *one = Server::new(one.who, None, one.up);
            }
            Step::Exchange { seat } => {
                next.exchanges -= 1;
                next.proxies[0].reach[seat] = 1;
                next.unlink(0, seat);
            }
            Step::ExchangeForAll { seat } => {
                next.exchanges_for_all -= 1;
                for proxy in 0..PROXIES {
                    next.proxies[proxy].reach[seat] = 1;
                    next.unlink(proxy, seat);
                }
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Epochs>> {
        let all: [Property<Epochs>; 7] = [
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.proxies.iter().filter(|proxy| proxy.valid > 0).count() <= 1
            }),
            Property::always(ONE_EPOCH, |_, state: &State| {
                let same = |a: &Deployment, b: &Deployment| (a.id, a.epoch) == (b.id, b.epoch);
                let chosen = &state.chosen;
                (0..chosen.len()).all(|at| !chosen[..at].iter().any(|one| same(one, &chosen[at])))
            }),
            Property::always(ONWARD, |_, state: &State| {
                let chosen = &state.chosen;
                let goes_back = |at: usize| {
                    let of_one = chosen[..at].iter().filter(|one| one.id == chosen[at].id);
                    of_one.map(|one| one.epoch).max().is_some_and(|last| last > chosen[at].epoch)
                };
                !(0..chosen.len()).any(goes_back)
            }),
            Property::always(NOT_STUCK, |model: &Epochs, state: &State| {
                let goes_wrong = state.restarts + state.restores + state.flushes;
                goes_wrong + state.exchanges + state.exchanges_for_all > 0 || state.gets_well(model)
            }),
            Property::sometimes(GRANTED, |_, state: &State| state.proxies[1].valid > 0),
            Property::sometimes(ADMITTED, |_, state: &State| {
                let is_new = |seat: &Seat| matches!(seat, Seat::Filled(who) if *who > 0);
                state.chosen.iter().any(|chosen| chosen.seats.iter().any(is_new))
            }),
            Property::sometimes(RENEWED, |_, state: &State| {
                state.proxies.iter().any(|proxy| proxy.renewed)
            }),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}
