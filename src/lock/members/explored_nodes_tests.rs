//! The nodes and proxies of an exploration: proxies do as `shared_members.rs`, `round.rs` and `connect.rs`, nodes as
//! the scripts.

use super::*;

/// Makes the report of a server.
pub(super) fn node(name: &str, marker: MarkerFound) -> SelfReport {
    let ballot = if marker == MarkerFound::Nothing { "" } else { "000" };
    SelfReport {
        run_id: Some(name.into()),
        replication_id: Some("f0".into()),
        is_master: true,
        marker,
        promised: ballot.into(),
        accepted: ballot.into(),
        ..SelfReport::default()
    }
}

/// Makes a deployment whose nodes are named by its id and their seats.
pub(super) fn deployment(id: &str, seats: usize) -> Deployment {
    let who = |seat| node(&format!("{id}{seat}"), MarkerFound::Nothing).identity().unwrap();
    Deployment {
        id: id.into(),
        epoch: 7,
        prefix: "lock:".into(),
        shape: Voters::with_seats(std::iter::repeat_n(1, seats)).shape(),
        seats: (0..seats).map(|seat| Seat::Filled(who(seat))).collect(),
        set: 0,
        phase: Phase::Stands,
    }
}

pub(super) fn marker(deployment: Deployment, seat: usize) -> MarkerFound {
    MarkerFound::Marker(Marker { deployment, seat, longest: STORED })
}

impl ExploredCase {
    pub(super) fn seats(&self) -> std::ops::Range<usize> {
        0..self.seats
    }

    /// Returns how long a memory waits whose locks all other nodes know.
    pub(super) fn wait(&self) -> Duration {
        (STORED + self.confirm).mul_f64(1.0 + DRIFT) + ROUNDING
    }

    /// Makes what a proxy knows as it starts.
    pub(super) fn members(&self, id: &str) -> Members {
        let seats = vec![Seat::Blank(0); self.seats];
        let rules = MemberRules {
            quarantine: true,
            allow_shared_instance: false,
            drift_factor: DRIFT,
            prefix: "lock:".into(),
            voters: Voters::with_seats(std::iter::repeat_n(1, self.seats)),
            blank: Deployment { epoch: 0, seats, ..deployment(id, self.seats) },
        };
        let heard = Arc::new(LongestGrant::new(MAX_TTL));
        let mut members = Members::new(Arc::new(rules), heard, |pause| pause, true);
        members.confirms_within(std::iter::repeat(self.confirm));
        members
    }
}

/// Proxies and nodes.
impl Explored {
    pub(super) fn new(case: &'static ExploredCase) -> Explored {
        let proxy = |id| ExploredProxy {
            members: case.members(id),
            generation: 0,
            leads: case.seats().collect(),
            cut: vec![false; case.seats],
            links: vec![None; case.seats],
            told: vec![(String::new(), false); case.seats],
            due: None,
        };
        let mut all = Explored {
            case,
            begin: Instant::now(),
            now: Duration::ZERO,
            servers: vec![],
            proxies: ["p", "q"][..case.proxies].iter().map(|id| proxy(id)).collect(),
            is_paused: false,
            is_sealed: false,
            mishaps: 0,
            failed: 0,
            memories: 0,
            rounds: 0,
            grants: vec![],
            chosen: vec![],
            broken: None,
        };
        for seat in case.seats() {
            let found = marker(deployment("d", case.seats), seat);
            let found = if case.is_blank { MarkerFound::Nothing } else { found };
            let server = all.add(node(&format!("d{seat}"), found));
            let server = Arc::make_mut(&mut all.servers[server]);
            server.alone_at = Duration::ZERO;
            // Where no node knows of a grant, one as long as is allowed may be held.
            server.whole_at = if case.is_blank { MAX_TTL.mul_f64(1.0 + DRIFT) } else { all.now };
        }
        (0..case.proxies).for_each(|proxy| all.round(proxy));
        (0..case.proxies).for_each(|proxy| all.look(proxy));
        all.observe();
        all
    }

    /// Adds a server whose memory lacks all locks.
    pub(super) fn add(&mut self, look: SelfReport) -> usize {
        let (is_up, memory, whole_at) = (true, 0, Duration::MAX);
        let server = ExploredServer { look, is_up, memory, whole_at, alone_at: whole_at };
        self.servers.push(Arc::new(server));
        self.forgets(self.servers.len() - 1);
        self.servers.len() - 1
    }

    pub(super) fn forgets(&mut self, server: usize) {
        self.memories += 1;
        let server = Arc::make_mut(&mut self.servers[server]);
        server.memory = self.memories;
        server.whole_at = self.now + self.case.wait();
        server.alone_at = self.now + self.case.confirm.mul_f64(1.0 + DRIFT);
    }

    /// Has a proxy's members act, and carries out the effects.
    fn with<T>(&mut self, proxy: usize, act: impl FnOnce(&mut Members, Instant) -> T) -> T {
        let this = &mut self.proxies[proxy];
        let result = act(&mut this.members, self.begin + self.now);
        for effect in this.members.take_effects() {
            match effect {
                Effect::Tell { seat, marker, waits, .. } => this.told[seat] = (marker, waits),
                Effect::TellNothing(seat) => this.told[seat].0.clear(),
                Effect::EndConnections(before) => this.generation = before,
                Effect::Learned { accepted, before, .. } => {
                    let now = &accepted.deployment;
                    let keeps_right = |seat: usize| {
                        let (server, generation) = this.links[seat]?;
                        let is_told =
                            !this.told[seat].0.is_empty() || generation == this.generation;
                        let who = self.servers[server].look.identity()?;
                        Some(is_told && !is_seated(now, seat, &who))
                    };
                    if self.case.seats().any(|seat| keeps_right(seat) == Some(true)) {
                        self.broken =
                            Some("who loses its seat is told nothing, and its connection ends");
                    }
                    let before = before.as_ref().map(|before| &before.deployment);
                    if before.is_some_and(|it| it.id == now.id && it.epoch >= now.epoch) {
                        self.broken = Some("epochs go on");
                    }
                    let mut of_epoch = self.chosen.iter().map(|it| &it.deployment);
                    if of_epoch.any(|it| it.id == now.id && it.epoch == now.epoch && it != now) {
                        self.broken = Some("an epoch is one thing");
                    }
                    self.chosen.push(accepted);
                }
                Effect::Noted { .. } | Effect::Move { .. } | Effect::GivenUp => {}
            }
        }
        result
    }

    /// Returns the server that answers a proxy on a seat, and its report.
    fn ask(&self, proxy: usize, seat: usize) -> Option<(usize, SelfReport)> {
        let server = self.proxies[proxy].leads[seat];
        let is_there = self.servers[server].is_up && !self.proxies[proxy].cut[seat];
        let time = Some(self.time());
        is_there.then(|| (server, SelfReport { time, ..self.servers[server].look.clone() }))
    }

    /// Returns the time by the nodes' clocks.
    fn time(&self) -> u64 {
        1_000_000 + self.now.as_micros() as u64
    }

    pub(super) fn end(&mut self, proxy: usize, seat: usize) {
        if self.proxies[proxy].links[seat].take().is_some() {
            let voted = !self.proxies[proxy].told[seat].1;
            self.with(proxy, |members, now| members.gone(seat, voted, now));
        }
    }

    pub(super) fn look(&mut self, proxy: usize) {
        for seat in self.case.seats() {
            let link = self.proxies[proxy].links[seat];
            let is_old = link.is_some_and(|link| link.1 < self.proxies[proxy].generation);
            if is_old || self.right(proxy, seat).is_none() {
                self.end(proxy, seat);
            }
        }
        for seat in self.case.seats() {
            if self.right(proxy, seat).is_none() {
                self.connect(proxy, seat);
            }
        }
    }

    /// Does as `admit` in `connect.rs`, until there is nothing to do at once.
    fn connect(&mut self, proxy: usize, seat: usize) {
        for _ in 0..3 {
            let Some((server, look)) = self.ask(proxy, seat) else { return };
            match self.with(proxy, |members, now| members.reported(seat, &look, now)) {
                Judgement::Admitted(generation) => {
                    return self.proxies[proxy].links[seat] = Some((server, generation));
                }
                Judgement::Behind(write) => _ = self.accept(server, &look, &write),
                Judgement::Note(epoch) => self.note(server, epoch),
                Judgement::Refused(..) => {
                    return self.with(proxy, |members, now| members.gone(seat, false, now));
                }
                Judgement::Ask | Judgement::Waits(_) => return,
            }
        }
    }

    fn note(&mut self, server: usize, epoch: u64) {
        let time = self.time();
        let look = &mut Arc::make_mut(&mut self.servers[server]).look;
        look.note = format!("{} {epoch} {time}", look.identity().unwrap().text());
    }

    pub(super) fn survey(&mut self, proxy: usize) {
        let asked: AskedServers = self.case.seats().map(|seat| self.ask(proxy, seat)).collect();
        let found = |one: &Option<(usize, SelfReport)>| SeatFound {
            look: one.as_ref().map(|(_, look)| look.clone()),
            is_absent: false,
            gone_for: Duration::ZERO,
        };
        let found: Vec<SeatFound> = asked.iter().map(found).collect();
        let due = self.with(proxy, |members, now| members.surveyed(&members.asking(), &found, now));
        self.proxies[proxy].due = due.map(|due| Arc::new((due, asked)));
    }

    pub(super) fn round(&mut self, proxy: usize) {
        self.survey(proxy);
        self.write(proxy, None);
    }

    /// Does as `round::carry_out`. `lost`: the seat whose connection ends behind the promise.
    pub(super) fn write(&mut self, proxy: usize, lost: Option<usize>) {
        let Some(due) = self.proxies[proxy].due.take() else { return };
        let (RoundToMake { plan, promised, longest }, asked) = &*due;
        self.rounds += 1;
        let number = promised.get(..1).map_or(0, |digit| digit.parse::<u64>().unwrap());
        let ballot = format!("{}{:02}", number + 1, self.rounds);
        let accepted = Accepted { ballot: ballot.clone(), deployment: plan.next.clone() };
        let step = |all: &mut Explored, seat: &usize, accepts: bool| {
            let Some((server, look)) = &asked[*seat] else { return false };
            let write = MarkerWrite {
                accepted: accepted.clone(),
                seat: *seat,
                longest: *longest,
                is_admitted: plan.admitted.contains(seat),
                joins: plan.joining.contains(seat),
                note: NOTE,
            };
            if accepts {
                return lost != Some(*seat) && all.accept(*server, look, &write);
            }
            let may = all.is_as_seen(*server, look, &write)
                && all.servers[*server].look.promised < ballot;
            if may {
                Arc::make_mut(&mut all.servers[*server]).look.promised.clone_from(&ballot);
            }
            may
        };
        let (mut admitted, rest): (Vec<usize>, Vec<usize>) =
            plan.acceptors.iter().partition(|seat| plan.admitted.contains(seat));
        let count = admitted.len();
        admitted.retain(|seat| step(self, seat, false));
        let mut done: Vec<usize> =
            rest.into_iter().filter(|seat| step(self, seat, false)).collect();
        let voters = self.proxies[proxy].members.rules.voters.clone();
        if admitted.len() < count || !plan.is_quorum(&voters, &[&admitted[..], &done].concat()) {
            return;
        }
        admitted.retain(|seat| step(self, seat, true));
        if admitted.len() == count {
            done.retain(|seat| step(self, seat, true));
            if plan.is_quorum(&voters, &[admitted, done].concat()) {
                plan.joining.iter().for_each(|seat| _ = step(self, seat, true));
                self.with(proxy, |members, _| members.wrote(&due.0, &accepted));
            }
        }
    }

    /// Compares as `promise.lua` and `accept.lua` do.
    fn is_as_seen(&self, server: usize, seen: &SelfReport, write: &MarkerWrite) -> bool {
        let ExploredServer { look, is_up, .. } = &*self.servers[server];
        let place = |look: &SelfReport| look.marker().map(|it| (it.deployment.clone(), it.seat));
        *is_up && place(look) == place(seen) && (!write.is_admitted || look.note == seen.note)
    }

    /// Does as `accept.lua`.
    fn accept(&mut self, server: usize, seen: &SelfReport, write: &MarkerWrite) -> bool {
        let (Accepted { ballot, deployment }, seat) = (write.accepted.clone(), write.seat);
        if !self.is_as_seen(server, seen, write) || self.servers[server].look.promised > ballot {
            return false;
        }
        let look = &mut Arc::make_mut(&mut self.servers[server]).look;
        let longest = look.marker().map_or(write.longest, |it| it.longest.max(write.longest));
        let epoch = deployment.epoch;
        look.marker = MarkerFound::Marker(Marker { deployment, seat, longest });
        (look.promised, look.accepted) = (ballot.clone(), ballot);
        if write.is_admitted {
            look.note.clear();
        }
        if write.joins {
            self.note(server, epoch);
        }
        true
    }
}
