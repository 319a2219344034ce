//! Session locks of a bridged rule, while the data node stands still again and again and holders change their TTLs.
//!
//! A client past the proxy takes a key as soon as it has run out. By then the lock's holder must know of its loss. While
//! the data node answers, no lock is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    Planted,
    bridged::BridgedProxy,
    checker::Checker,
    client::ms,
    connection::{SessionUnderTest, old},
    hold,
    library_client::RELEASE,
    network::Network,
    seeds, simulate_by,
    world::{RunOutcome, must_end},
};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// For how long one deployment is played.
const PLAYED: Duration = Duration::from_secs(60);
/// The seeds tried.
const SEEDS: u64 = 12;

/// One deployment's parts, and the end of its time.
#[derive(Clone)]
struct KeptKeysStage {
    network: Arc<Network>,
    data: Arc<Network>,
    checker: Arc<Checker>,
    is_over: Arc<AtomicBool>,
    /// Whether the data node is stopped now and then.
    stops: bool,
}

impl KeptKeysStage {
    fn below(&self, limit: u64) -> u64 {
        self.network.below(limit)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Holds the lock, gives it other TTLs, and takes it again once it is lost.
async fn keep(mut client: SessionUnderTest, key: &'static str, stage: KeptKeysStage) {
    for round in 0.. {
        if stage.is_over() {
            return;
        }
        client.open().await;
        let token = format!("kept.{round}");
        let granted = client.ask(&["LOCK", key, &token]).await.ok();
        let Some((fence, _)) = granted.and_then(|reply| reply.grant()) else {
            client.listen(ms(10 + stage.below(100))).await;
            continue;
        };
        stage.checker.granted(key, &token, fence, None);
        let is_lost = Arc::new(AtomicBool::new(false));
        let (its, name, lost) = (stage.clone(), token.clone(), is_lost.clone());
        client.tell(Box::new(move |_| {
            lost.store(true, Ordering::Relaxed);
            its.checker.ended(key, &name, "lost");
            its.checker.must(its.stops, &format!("{key}: {name} is lost, though all nodes answer"));
        }));
        for _ in 0..stage.below(4) {
            client.listen(ms(stage.below(2500))).await;
            if is_lost.load(Ordering::Relaxed) {
                break;
            }
            let ttl = (200 + stage.below(4000)).to_string();
            stage.checker.happened(&format!("{key}: {token} asks for {ttl} ms"));
            let renewed = client.ask(&["RENEW", key, &token, "PX", &ttl]).await.ok();
            if renewed.is_some_and(|reply| reply.number() == Some(0)) {
                is_lost.store(true, Ordering::Relaxed);
                stage.checker.ended(key, &token, "not renewed");
            }
        }
        client.listen(ms(stage.below(2500))).await;
        client.tell_nobody();
        if !is_lost.load(Ordering::Relaxed) {
            stage.checker.ended(key, &token, "unlocked");
            let _ = client.ask(&["UNLOCK", key, &token]).await;
        }
    }
}

/// Takes the key on the data node, past the proxy, whenever it is free.
async fn go_past(mut client: SessionUnderTest, key: &'static str, stage: KeptKeysStage) {
    let place = old(key);
    for round in 0.. {
        if stage.is_over() {
            return;
        }
        client.open().await;
        let (name, asked) = (format!("past.{round}"), Instant::now());
        let taken = client.ask(&["SET", &place, &name, "NX", "PX", "500"]).await;
        if taken.is_ok_and(|reply| reply.text() == "+OK") {
            stage.checker.taken(key, &name, None, ms(400), asked);
            sleep(ms(stage.below(100))).await;
            stage.checker.ended(key, &name, "released");
            let _ = client.ask(&["EVAL", RELEASE, "1", &place, &name]).await;
            sleep(ms(stage.below(1500))).await;
        }
        sleep(ms(5 + stage.below(20))).await;
    }
}

/// Stops the data node again and again.
async fn stop(stage: KeptKeysStage) {
    loop {
        sleep(ms(stage.below(4000))).await;
        let time = ms(stage.below(4500));
        stage.checker.happened(&format!("the data node is stopped for {time:?}"));
        stage.data.stop(0, time);
        sleep(time).await;
    }
}

async fn live(seed: u64, planted: Planted) -> RunOutcome {
    let proxy = BridgedProxy::start(seed, planted, 2 * KEYS.len()).await;
    let stage = KeptKeysStage {
        network: proxy.network.clone(),
        data: proxy.data.clone(),
        checker: Arc::new(Checker::new()),
        is_over: Arc::default(),
        stops: !seed.is_multiple_of(4),
    };
    let mut clients = Vec::new();
    for (number, key) in KEYS.into_iter().enumerate() {
        clients.push(tokio::spawn(keep(proxy.client(2 * number), key, stage.clone())));
        clients.push(tokio::spawn(go_past(
            proxy.client(2 * number + 1).past(),
            key,
            stage.clone(),
        )));
    }
    let stopping = stage.stops.then(|| tokio::spawn(stop(stage.clone())));
    sleep(PLAYED).await;
    stopping.inspect(|stopping| stopping.abort());
    stage.is_over.store(true, Ordering::Relaxed);
    must_end(clients, Duration::from_secs(60), ("a client never ends", &stage.checker)).await;
    RunOutcome::of(&stage.checker)
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn no_key_runs_out_under_a_holder() {
    let seeds = seeds(SEEDS);
    let tried = seeds.end - seeds.start;
    let counts = hold(seeds, simulate);
    assert!(counts.grants as u64 > 20 * tried, "{counts:?}");
    assert!(tried < 4 || counts.past as u64 > 20 * tried, "{counts:?}");
}
