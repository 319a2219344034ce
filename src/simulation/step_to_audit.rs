//! A rule that steps from bridge to audit while commands are under way.

use tokio::time::sleep;

use super::{
    Planted,
    bridged::BridgedProxy,
    checker::Checker,
    client::ms,
    connection::{Reply, old, rules},
    library_client::EXTEND,
    simulate_by,
    world::RunOutcome,
};
use crate::config::{AdoptMode, NoTtlPolicy};

/// Steps the rule from bridge to audit while an adopted client takes or extends its lock: the seed says which and
/// when. Then another client takes the lock on the data node, past the proxy.
async fn across_a_step(seed: u64, planted: Planted) -> RunOutcome {
    let proxy = BridgedProxy::start(seed, planted, 2).await;
    let checker = Checker::new();
    let client = |name| proxy.client(name);
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
        proxy.adoption.step_to(&rules(AdoptMode::Audit, NoTtlPolicy::Refuse));
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
