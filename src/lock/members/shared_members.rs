//! What one proxy knows of its lock nodes, shared by the nodes' tasks: asks the nodes, has [`Members`] decide, and
//! carries its effects out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::{info, warn};

use super::{
    marker::{Identity, KnownSet, Seat},
    membership::{Effect, Judgement, MemberRules, Members, SeatFound, Wait},
    round::{self, Way},
    seats::Accepted,
    self_report::SelfReport,
    standing::{NodeStanding, Told},
};
use crate::{
    clock::millis,
    config::LocksConfig,
    lock::{
        address::NodeAddress, jitter::jittered, longest::LongestGrant, scripts::Dialect,
        voters::SeatPlace,
    },
    net::Connector,
    sync::Mutex,
};

/// A text with which no marker begins.
const NOTHING: &[u8] = b"-";

/// What one proxy knows of all nodes, shared by the nodes' tasks: asks the nodes, and carries out what
/// [`Members`] decides.
pub(in crate::lock) struct SharedMembers {
    rules: Arc<MemberRules>,
    longest: Arc<LongestGrant>,
    ways: Vec<Way>,
    standings: Vec<Arc<NodeStanding>>,
    members: Mutex<Members>,
    generation: AtomicU64,
    learned: AtomicU64,
    changed: watch::Sender<()>,
    /// Notified when a node's marker says that its set is sealed or left, or is another set than this proxy's.
    pub(in crate::lock) given_up: Notify,
    /// Locked while one task asks all nodes, on behalf of all tasks.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl SharedMembers {
    pub(in crate::lock) fn new(
        config: &LocksConfig,
        addresses: &[Arc<NodeAddress>],
        connector: &Connector,
        longest: Arc<LongestGrant>,
    ) -> SharedMembers {
        let dialect = Dialect::of(config);
        let rules = Arc::new(MemberRules::new(config));
        let way = |(seat, address): (usize, &Arc<NodeAddress>)| Way {
            address: address.clone(),
            connector: connector.clone(),
            seat: rules.voters.place(seat),
        };
        let may_write = config.next_nodes.is_empty();
        let members = Members::new(rules.clone(), longest.clone(), jittered, may_write);
        SharedMembers {
            longest,
            ways: addresses.iter().enumerate().map(way).collect(),
            members: Mutex::new(members),
            standings: addresses.iter().map(|_| Arc::new(NodeStanding::new(dialect))).collect(),
            generation: AtomicU64::new(0),
            learned: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            given_up: Notify::new(),
            asking: Arc::default(),
            rules,
        }
    }

    /// Returns the standing that the connection to node `index` obeys.
    pub(in crate::lock) fn standing(&self, index: usize) -> Arc<NodeStanding> {
        self.standings[index].clone()
    }

    /// Returns the place of a seat among those of its voter.
    pub(in crate::lock) fn place(&self, seat: usize) -> &SeatPlace {
        &self.ways[seat].seat
    }

    /// Returns the voter to which a seat belongs.
    pub(in crate::lock) fn voter(&self, seat: usize) -> usize {
        self.rules.voters.of(seat)
    }

    /// Whether there is only one voter, so that no other could give a successor a place to wait.
    pub(in crate::lock) fn is_alone(&self) -> bool {
        self.rules.is_alone()
    }

    /// Returns the generation of connections: those of an earlier generation must end.
    pub(in crate::lock) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns how many times this proxy has learned a deployment.
    pub(in crate::lock) fn learned(&self) -> u64 {
        self.learned.load(Ordering::Acquire)
    }

    /// Returns a receiver that is notified when the deployment changes.
    pub(in crate::lock) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the longest that any grant may last. If all nodes forget it, this proxy remembers.
    pub(in crate::lock) fn longest(&self) -> &LongestGrant {
        &self.longest
    }

    /// Returns the set of nodes that votes here, or `None` if it is unknown.
    pub(in crate::lock) fn set(&self) -> Option<KnownSet> {
        self.with(|members| members.set())
    }

    /// Returns the identity that votes or waits over the connection to node `index`, or `None` if identities are not
    /// compared.
    pub(in crate::lock) fn linked(&self, index: usize) -> Option<Identity> {
        self.with(|members| members.linked(index))
    }

    /// Returns the marker that node `index` must have, or `None` if markers are not compared.
    pub(in crate::lock) fn told(&self, index: usize) -> Option<String> {
        self.with(|members| members.told(index))
    }

    /// Returns why node `index`, which is connected, does not vote yet.
    pub(in crate::lock) fn wait(&self, index: usize) -> Option<Wait> {
        self.with(|members| members.wait(index))
    }

    /// Returns the time after which no lock is held any more that any node may have forgotten.
    pub(in crate::lock) fn longest_wait(&self) -> Duration {
        self.with(|members| members.enough(None))
    }

    /// Sets whether this proxy may write that nodes sit on other seats, and that a deployment is new.
    pub(in crate::lock) fn allow_writes(&self, writes: bool, begins: bool) {
        self.with(|members| members.allow_writes(writes, begins));
    }

    /// Forgets that this set was to be given up, as the operator no longer lists another. If it was, the nodes'
    /// markers say so again.
    pub(in crate::lock) fn note_kept(&self) {
        self.with(Members::note_kept);
    }

    /// Notes that the connection to node `index` has ended; `voted`: whether it could vote.
    pub(in crate::lock) fn left(&self, index: usize, voted: bool) {
        self.with(|members| members.gone(index, voted, Instant::now()));
    }

    /// Judges whether node `index` may vote, by its report on itself.
    pub(in crate::lock) fn judge(&self, index: usize, look: &SelfReport) -> Judgement {
        self.with(|members| members.reported(index, look, Instant::now()))
    }

    /// Asks all nodes, learns the deployment that a quorum has accepted, and writes the change that is due. If
    /// another task is doing so, only waits until it has.
    ///
    /// The round goes on if the caller is dropped: a node on which it has written votes only once the others have
    /// accepted that, too. The first such write ends the connection for whose sake the round was begun.
    pub(in crate::lock) async fn ask(self: &Arc<Self>) {
        let Ok(asking) = self.asking.clone().try_lock_owned() else {
            drop(self.asking.lock().await);
            return;
        };
        let this = self.clone();
        let round = tokio::spawn(async move {
            this.carry_out_round().await;
            drop(asking);
        });
        // It is not aborted, and a panic in it has been reported.
        let _ = round.await;
    }

    async fn carry_out_round(&self) {
        let asking = self.with(|members| members.asking());
        let all = round::ask_all(&self.ways, |looks| asking.is_enough(looks)).await;
        let looks = round::looks(&all).into_iter();
        let found = looks.zip(&self.ways).map(|(look, way)| SeatFound {
            look,
            is_absent: way.address.is_absent(),
            gone_for: way.address.gone_for(),
        });
        let found: Vec<SeatFound> = found.collect();
        let due = self.with(|members| members.surveyed(&asking, &found, Instant::now()));
        let Some(due) = due else { return };
        let are_enough = |seats: &[usize]| due.plan.is_quorum(&self.rules.voters, seats);
        let done = round::carry_out(all, &due.plan, &due.promised, due.longest, are_enough).await;
        if let Some(accepted) = done {
            self.with(|members| members.wrote(&due, &accepted));
        }
    }

    /// Has `act` ask the members, or tell them of an event, and carries out the effects before anything else happens.
    fn with<T>(&self, act: impl FnOnce(&mut Members) -> T) -> T {
        let mut members = self.members.lock();
        members.confirms_within(self.ways.iter().map(|way| way.address.confirm()));
        let result = act(&mut members);
        for effect in members.take_effects() {
            self.carry_out(effect);
        }
        result
    }

    fn carry_out(&self, effect: Effect) {
        match effect {
            Effect::Tell { seat, marker, waits, learned, seatings } => {
                let standing = &self.standings[seat];
                if waits {
                    standing.waits.store(true, Ordering::Release);
                }
                let marker = standing.encode(marker.as_bytes());
                standing.told.store(Arc::new(Told { marker, learned, seatings }));
                if !waits {
                    standing.waits.store(false, Ordering::Release);
                }
            }
            Effect::TellNothing(seat) => self.standings[seat].tell_alone(NOTHING),
            Effect::EndConnections(before) => self.generation.store(before, Ordering::Release),
            Effect::Learned { learned, accepted, before } => {
                log_learned(&accepted, before.as_deref());
                self.learned.store(learned, Ordering::Release);
                self.changed.send_replace(());
            }
            Effect::Noted { seat, longest } => {
                self.standings[seat].longest.store(millis(longest), Ordering::Relaxed);
            }
            Effect::Move { seat, home } => self.ways[seat].address.move_to(home),
            Effect::GivenUp => self.given_up.notify_one(),
        }
    }
}

fn log_learned(accepted: &Accepted, before: Option<&Accepted>) {
    let deployment = &accepted.deployment;
    if let Some(before) = before.filter(|before| before.deployment.id != deployment.id) {
        let before = &before.deployment.id;
        warn!(before, now = deployment.id, "the lock nodes are another deployment");
    }
    let filled = |seat: &&Seat| matches!(seat, Seat::Filled(_));
    info!(
        deployment = deployment.id,
        epoch = deployment.epoch,
        seats = deployment.seats.len(),
        filled = deployment.seats.iter().filter(filled).count(),
        "the lock nodes' epoch"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, lock::address::connector_to_nodes};

    #[tokio::test]
    async fn a_round_goes_on_without_who_has_begun_it() {
        // It accepts connections, and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        let text = format!("data: redis://127.0.0.1:1\nlocks: {{nodes: ['{url}']}}\n");
        let config = Config::parse(&text, "f", &|_| None).unwrap().locks;
        let (addresses, connector) = (NodeAddress::all(&config), connector_to_nodes(&config));
        let longest = Arc::new(LongestGrant::new(config.max_ttl));
        let members = Arc::new(SharedMembers::new(&config, &addresses, &connector, longest));
        let begun = tokio::time::timeout(Duration::from_millis(1), members.ask());
        assert!(begun.await.is_err(), "the node does not answer");
        assert!(members.asking.try_lock().is_err(), "the round goes on");
        members.ask().await;
        assert!(members.asking.try_lock().is_ok(), "it has ended");
    }
}
