//! Clients that all use one token, and send LOCK, UNLOCK and RENEW in any order: none of them ends or prolongs a grant
//! that stood in its way.
//!
//! One task plays all clients of a token, one command after the other, so that it knows which grant has the lock and to
//! whom it stood in the way. Another task contends for the lock by a token of its own.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::{Instant, sleep};

use super::{
    Planted,
    client::ms,
    connection::Reply,
    hold,
    pools::{Play, deploy},
    seeds, simulate_by,
    world::RunOutcome,
};

/// The clients that use one token, at two proxies in turn.
const CLIENTS: usize = 3;
/// How many commands are sent by one token.
const COMMANDS: u64 = 16;
/// The seeds tried.
const SEEDS: u64 = 4;

/// The grant that has the lock, as far as the clients have been told.
struct Having {
    number: usize,
    /// Whose it is: of the client that was granted it, or that has taken it over.
    owner: usize,
    is_reader: bool,
    fence: u64,
    /// The end of the first half of its validity: until then no node has ended it, however fast its clock.
    surely_until: Instant,
}

/// All clients of one token.
struct OneToken {
    play: Play<CLIENTS>,
    token: String,
    having: Option<Having>,
    /// How many grants were made.
    grants: usize,
    /// The number of the grant that last stood in each client's way.
    in_the_way: [Option<usize>; CLIENTS],
}

/// The answers to a command that leave unknown what has the lock.
struct Unclear;

impl OneToken {
    /// Returns the name under which the checker knows the grant that has the lock.
    fn name(&self, having: &Having) -> String {
        format!("{}#{}", self.token, having.number)
    }

    async fn step(&mut self) -> Result<(), Unclear> {
        let client = self.play.network.below(CLIENTS as u64) as usize;
        match self.play.network.below(16) {
            0 => self.hang_up(client).await,
            1..9 => self.lock(client).await?,
            9..13 => self.unlock(client).await?,
            _ => self.renew(client).await?,
        }
        sleep(ms(self.play.network.below(3).pow(2) * 150)).await;
        Ok(())
    }

    /// Ends a client's connection, and with it what the proxy knows of the client.
    async fn hang_up(&mut self, client: usize) {
        if let Some(having) = self.having.take_if(|having| having.owner == client) {
            self.play.checker.ended(self.play.key, &self.name(&having), "hung up");
        }
        self.play.connections[client].close();
        self.play.connections[client].open().await;
        self.in_the_way[client] = None;
    }

    async fn lock(&mut self, client: usize) -> Result<(), Unclear> {
        let (key, token, ttl) = (self.play.key, self.token.clone(), self.play.ttl());
        let lease = ["LOCK", key, &token, "PX", &ttl];
        let is_reader = self.play.network.below(5) == 0;
        let words = match self.play.network.below(4) {
            // Two readers with one token are two grants.
            _ if is_reader && self.having.as_ref().is_some_and(|having| having.is_reader) => {
                return Ok(());
            }
            _ if is_reader => vec!["LOCK", key, &token, "SHARED", "PX", &ttl],
            0 => lease[..3].to_vec(),
            1 => [&lease[..], &["WAIT", "30"]].concat(),
            _ => lease.to_vec(),
        };
        let reply = self.play.ask(client, &words).await.ok_or(Unclear)?;
        let (now, having) = (Instant::now(), self.having.take());
        let surely = having.as_ref().filter(|having| now < having.surely_until);
        let Some((fence, left)) = reply.grant() else {
            if reply == Reply::Array(None)
                && let Some(having) = surely
                && having.owner != client
            {
                self.in_the_way[client] = Some(having.number);
            }
            self.having = having;
            // It may have been granted, or prolonged.
            return if reply.text().contains("NOQUORUM") { Err(Unclear) } else { Ok(()) };
        };
        // A grant that may have run out may have been made anew.
        let is_again = surely.is_some_and(|having| having.owner == client);
        let is_beside = surely.is_some_and(|having| !is_again && (is_reader || having.is_reader));
        self.play.checker.must(!is_beside, &format!("{words:?} is granted beside a reader"));
        if let Some(having) = having.filter(|_| !is_again) {
            self.play.checker.ended(key, &self.name(&having), "ended");
        }
        self.grants += usize::from(!is_again);
        let surely_until = now + ms(left / 2);
        let having = Having { number: self.grants, owner: client, is_reader, fence, surely_until };
        if !is_reader {
            self.play.checker.granted(key, &self.name(&having), fence, Some(ms(left)));
        }
        (self.having, self.in_the_way[client]) = (Some(having), None);
        Ok(())
    }

    /// Whether the grant that has the lock is another client's than this one's.
    fn is_anothers(&self, client: usize) -> bool {
        let number = self.having.as_ref().map(|having| having.number);
        number.is_some() && number == self.in_the_way[client]
    }

    /// Whether this client's own lease surely has the lock.
    fn is_own(&self, client: usize) -> bool {
        self.having.as_ref().is_some_and(|having| {
            let is_known = self.play.knows(client, &self.token, having.fence);
            having.owner == client && is_known && Instant::now() < having.surely_until
        })
    }

    async fn unlock(&mut self, client: usize) -> Result<(), Unclear> {
        let (key, token, is_anothers) =
            (self.play.key, self.token.clone(), self.is_anothers(client));
        let words = match self.play.network.below(3) {
            0 => vec!["MUNLOCK", "1", key, &token],
            _ => vec!["UNLOCK", key, &token],
        };
        let is_own = self.is_own(client);
        if let Some(having) = self.having.as_ref().filter(|_| !is_anothers) {
            self.play.checker.ended(key, &self.name(having), "unlocked");
        }
        let reply = self.play.ask(client, &words).await.ok_or(Unclear)?;
        self.judge(&words, &reply, is_anothers);
        match (reply.number(), is_anothers) {
            (_, true) => Ok(()),
            (Some(0), _) if is_own => {
                self.play.checker.must(false, &format!("{words:?} of its own lock: {reply:?}"));
                Err(Unclear)
            }
            (Some(1..), _) => {
                self.having = None;
                Ok(())
            }
            _ => Err(Unclear),
        }
    }

    async fn renew(&mut self, client: usize) -> Result<(), Unclear> {
        let (key, token, is_anothers) =
            (self.play.key, self.token.clone(), self.is_anothers(client));
        let ttl = self.play.ttl();
        let words = match self.play.network.below(2) {
            0 => vec!["RENEW", key, &token],
            _ => vec!["RENEW", key, &token, "PX", &ttl],
        };
        if let Some(having) = self.having.as_ref().filter(|_| !is_anothers) {
            self.play.checker.ended(key, &self.name(having), "to be renewed");
        }
        let reply = self.play.ask(client, &words).await.ok_or(Unclear)?;
        self.judge(&words, &reply, is_anothers);
        if is_anothers {
            return Ok(());
        }
        let Some(left @ 1..) = reply.number() else { return Err(Unclear) };
        let Some(mut having) = self.having.take() else { return Err(Unclear) };
        having.surely_until = Instant::now() + ms(left / 2);
        if words.len() == 3 {
            having.owner = client;
        }
        if !having.is_reader {
            self.play.checker.renewed(key, &self.name(&having), ms(left));
        }
        self.having = Some(having);
        Ok(())
    }

    /// Checks that a command has met no grant that stood in its client's way.
    fn judge(&self, words: &[&str], reply: &Reply, is_anothers: bool) {
        let is_met = is_anothers && reply.number().is_some_and(|number| number > 0);
        self.play.checker.must(!is_met, &format!("{words:?} meets another's grant: {reply:?}"));
    }
}

async fn run(play: Play<CLIENTS>, is_over: Arc<AtomicBool>) {
    let (token, having, grants, in_the_way) = (String::new(), None, 0, [None; CLIENTS]);
    let mut one = OneToken { play, token, having, grants, in_the_way };
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        one.token = format!("t{}.{round}", one.play.name);
        one.in_the_way = [None; CLIENTS];
        for connection in &mut one.play.connections {
            connection.open().await;
        }
        for _ in 0..COMMANDS {
            if one.step().await.is_err() {
                break;
            }
        }
        if let Some(having) = one.having.take() {
            one.play.checker.ended(one.play.key, &one.name(&having), "over");
        }
        one.play.connections.iter_mut().for_each(super::connection::SessionUnderTest::close);
        sleep(ms(one.play.network.below(300))).await;
    }
}

async fn live(seed: u64, _planted: Planted) -> RunOutcome {
    deploy(seed, true, run).await
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn no_command_by_a_shared_token_meets_a_grant_that_stood_in_its_way() {
    let seeds = seeds(SEEDS);
    let tried = seeds.end - seeds.start;
    let grants = hold(seeds, simulate).grants as u64;
    assert!(grants > 50 * tried, "hardly anything happened");
}

/// Checks that some seed finds it.
fn is_found(planted: Planted, what: &str) {
    let is_said = |seed| simulate(seed, planted).faults.iter().any(|fault| fault.contains(what));
    let found = (0..50).find(|seed| is_said(*seed));
    println!("{planted:?} is found by seed {found:?}");
    assert!(found.is_some(), "{planted:?} is not found");
}

#[test]
fn a_refusal_of_a_shared_token_that_is_forgotten_is_found() {
    is_found(Planted::ForgottenRefusal, "meets another's grant");
}
