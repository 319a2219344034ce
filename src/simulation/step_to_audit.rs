//! A rule that steps from bridge to audit while commands are under way.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Planted,
    bridged::Modes,
    checker::Checker,
    client::ms,
    clock, config,
    connection::{Reply, SessionUnderTest, bridge, old, rules, shared},
    engine_config,
    library_client::EXTEND,
    network::Network,
    simulate_by,
    world::{RunOutcome, dial},
};
use crate::{
    config::{AdoptMode, LocksConfig, NoTtlPolicy},
    lock::{Engine, initialise},
};

/// Steps the rule from bridge to audit while an adopted client takes or extends its lock: the seed says which and
/// when. Then another client takes the lock on the data node, past the proxy.
async fn across_a_step(seed: u64, planted: Planted) -> RunOutcome {
    const NODES: usize = 3;
    let (network, data) = (
        Network::new(seed, NODES, 1.0, ms(5)),
        Network::of_data(seed, ms(5), 1.0, false, false, false),
    );
    network.heal();
    data.heal();
    dial(&network, Some(&data));
    let (checker, begun) = (Checker::new(), Instant::now());
    initialise(&config(0, NODES, planted)).await.unwrap();
    // A lock may last for longer than a key that was not extended.
    let lasting = |locks| LocksConfig { max_ttl: ms(10_000), ..locks };
    let locks = lasting(config(0, NODES, planted));
    let of_engine = lasting(engine_config(0, NODES, planted, true));
    let engine = Engine::start_alone(&of_engine, clock(0, begun));
    sleep(Duration::from_secs(2)).await;
    let adoption = Modes::new(AdoptMode::Bridge, NoTtlPolicy::Refuse).start();
    let bridge = bridge(&engine, &adoption, locks.clone(), 2);
    let state = shared(&engine, locks, Some(adoption.clone()), Some(bridge));
    let client = |name| SessionUnderTest::new(state.clone(), data.clone(), name);
    let (mut adopted, mut taker, mut past) = (client(0), client(3), client(1).past());
    for connection in [&mut adopted, &mut taker, &mut past] {
        connection.open().await;
    }
    let key = old("a");
    let extends = seed % 2 == 1;
    if extends {
        // A connection that has sent no command about the key asks first whether its client may.
        let taken = taker.ask(&["SET", &key, "one", "NX", "PX", "100"]).await;
        checker.must(is_yes(taken.ok()), "the lock is not to be had");
    }
    let asking = async {
        let words: &[&str] = match extends {
            true => &["EVAL", EXTEND, "1", &key, "one", "4000"],
            false => &["SET", &key, "one", "NX", "PX", "4000"],
        };
        is_yes(adopted.ask(words).await.ok())
    };
    let stepping = async {
        sleep(ms(seed / 2)).await;
        adoption.step_to(&rules(AdoptMode::Audit, NoTtlPolicy::Refuse));
    };
    let (has_it, ()) = tokio::join!(asking, stepping);
    // By then a key that was not extended has run out.
    sleep(ms(2500)).await;
    let is_others = is_yes(past.ask(&["SET", &key, "other", "NX", "PX", "4000"]).await.ok());
    checker.happened(&format!("it has the lock: {has_it}, another: {is_others}"));
    checker.must(!(has_it && is_others), "two clients have the lock");
    RunOutcome::of(&checker)
}

fn is_yes(reply: Option<Reply>) -> bool {
    reply.is_some_and(|reply| reply.text() == "+OK" || reply.number() == Some(1))
}

#[test]
fn a_command_judged_before_its_rule_was_audited_takes_no_lock_from_the_data_node() {
    let mut granted = 0;
    for seed in 0..160 {
        let outcome = simulate_by(seed, Planted::Nothing, across_a_step);
        let RunOutcome { faults, history, .. } = outcome;
        assert!(faults.is_empty(), "seed {seed}: {faults:?}\n{history}");
        granted += usize::from(history.contains("it has the lock: true"));
    }
    assert!(granted > 80, "hardly anybody was granted the lock: {granted}");
}
