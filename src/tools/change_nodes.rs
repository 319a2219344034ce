//! `lockgate nodes`: shows, makes or takes back a change of the lock nodes.

use std::time::Duration;

use anyhow::bail;
use bb8_redis::redis;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::say::say;
use crate::{
    config::{ClientTls, Config, LockNode, LocksConfig},
    fleet::record::{ProxyRecord, RECORDS},
    lock::{self, BackedOut, ChangeError, ChangeStatus, Changed, NodeOfSet, NodesNow, SetNow},
    net::{Connector, redis_client},
};

/// How long a lock node may take to give the proxies' records.
const RECORDS_LIMIT: Duration = Duration::from_secs(2);
/// How often, and after which pause, the records are read again while some do not list the nodes to come.
const LOOKS: usize = 5;
const AGAIN: Duration = Duration::from_millis(200);

/// What is said of a file that lists lock nodes from before a change.
const LEFT: &str = "locks.nodes were left for other lock nodes, which this file does not list: write those of the last \
                    change as locks.nodes, and send SIGHUP (LOCKGATE NODES of a ready proxy lists them). If that change \
                    was not completed, write them as locks.next_nodes, and run lockgate nodes --change";

/// What to do about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodesStep {
    /// The change is only shown.
    Show,
    /// The change is made, or completed.
    Change {
        /// How long no node may vote at most. `None`: half of `locks.default_ttl`.
        at_most: Option<Duration>,
    },
    /// The change is taken back.
    BackOut,
}

/// Shows which lock nodes of a configuration vote, and makes or takes back their change.
///
/// # Errors
/// If a change is to be made and the configuration has no `locks.next_nodes`, or nodes are missing or not
/// fit.
pub fn run(config: &Config, step: NodesStep) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(carry_out(config, step));
    runtime.shutdown_background();
    done
}

/// Makes the change. Takes it back if a signal ends this process meanwhile, as otherwise no client could lock.
async fn change(
    locks: &LocksConfig,
    at_most: Option<Duration>,
) -> anyhow::Result<Result<Changed, ChangeError>> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut ended = async || {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    };
    tokio::select! {
        changed = lock::change(locks, at_most, |step| say(step)) => return Ok(changed),
        () = ended() => say("ended by a signal: takes the change back"),
    }
    tokio::select! {
        backed_out = lock::back_out(locks) => match backed_out {
            Ok(BackedOut::TakenBack) => bail!("ended by a signal; the change was taken back: locks.nodes vote"),
            Ok(BackedOut::Nothing) => bail!("ended by a signal; nothing was changed"),
            Err(error) => bail!("ended by a signal; {error}"),
        },
        () = ended() => bail!("ended by a second signal: lockgate nodes FILE says how far the change is"),
    }
}

/// The proxies that serve clients and have not read `locks.next_nodes`, by their names.
async fn unaware(locks: &LocksConfig) -> Vec<String> {
    let way = lock::connector_to_nodes(locks);
    let mut asking = JoinSet::new();
    for node in locks.nodes.clone() {
        let (way, tls) = (way.clone(), locks.tls.clone());
        asking.spawn(timeout(RECORDS_LIMIT, async move { records_on(&node, &way, &tls).await }));
    }
    let told = asking.join_all().await.into_iter().filter_map(|told| told.ok().flatten());
    let records: Vec<ProxyRecord> = told.flatten().collect();
    let newest = ProxyRecord::newest(&records).into_iter();
    newest.filter(|it| it.lists_no_next_nodes()).map(|it| it.name.clone()).collect()
}

/// Reads the records that a lock node has. Returns `None` if it does not give them.
async fn records_on(node: &LockNode, way: &Connector, tls: &ClientTls) -> Option<Vec<ProxyRecord>> {
    let there = lock::locate(node, tls, RECORDS).await.ok()?;
    let connecting = redis_client::connect_for(&there.url, way, redis_client::LARGE);
    let mut connection = connecting.await.ok()?;
    let mut asking = redis::cmd("GET");
    let asked: Option<String> =
        asking.arg(RECORDS).query_async(&mut connection.redis).await.ok()?;
    Some(ProxyRecord::read_all(&asked.unwrap_or_default()))
}

/// Warns of proxies for which the change comes too early. Once the change is made there is no warning: proxies
/// whose `locks.nodes` are the new list have no `locks.next_nodes` either.
async fn warn_of_unaware(locks: &LocksConfig) {
    let mut names = unaware(locks).await;
    // A proxy that has just read its file is about to write its record.
    for _ in 0..LOOKS {
        if names.is_empty() {
            return;
        }
        sleep(AGAIN).await;
        names = unaware(locks).await;
    }
    if lock::status(locks).await.is_ok_and(|it| it.now != SetNow::Nodes) {
        return;
    }
    for proxy in names {
        say(format_args!(
            "warning: {proxy} has not read locks.next_nodes: once they vote, it grants and renews nothing until its \
             file has them and it gets SIGHUP"
        ));
    }
}

async fn carry_out(config: &Config, step: NodesStep) -> anyhow::Result<()> {
    let locks = &config.locks;
    if matches!(step, NodesStep::Change { .. }) && !locks.next_nodes.is_empty() {
        warn_of_unaware(locks).await;
    }
    match step {
        NodesStep::Show if locks.next_nodes.is_empty() => {
            let NodesNow { nodes, were_left } = lock::nodes_now(locks).await;
            match were_left {
                true => say(LEFT),
                false => say("no change is asked for: the file has no locks.next_nodes"),
            }
            show("locks.nodes", nodes);
            return Ok(());
        }
        NodesStep::Show => {}
        NodesStep::Change { at_most } => match change(locks, at_most).await? {
            Ok(changed) => {
                let copied = match changed.held {
                    Some(held) => format!("{held} held locks were copied"),
                    None => "another coordinator has copied the locks".into(),
                };
                let longer = match changed.taken_over {
                    true => ", nor before since it was begun by another command",
                    false => "",
                };
                say(format_args!(
                    "changed: {copied}, nobody could lock for {} ms{longer}",
                    changed.sealed.as_millis()
                ));
                for (node, why) in &changed.waiting {
                    say(format_args!(
                        "{node} has not begun with the others, and waits for the longest TTL before it votes: {why}"
                    ));
                }
            }
            // The change was made before; old lock nodes that had not heard of it have heard now.
            Err(done @ ChangeError::Done) => say(done),
            Err(error) => bail!(error),
        },
        NodesStep::BackOut => match lock::back_out(locks).await {
            Ok(BackedOut::TakenBack) => say("taken back: locks.nodes vote"),
            Ok(BackedOut::Nothing) => say("there is nothing to take back"),
            Err(error) => bail!(error),
        },
    }
    let ChangeStatus { now, without, behind, nodes, next_nodes } = lock::status(locks).await?;
    match without.is_empty() {
        true => say(now),
        false => say(format_args!("{now}, without {}", without.join(", "))),
    }
    for node in behind {
        say(format_args!(
            "warning: {node} has not heard that it was left. Restart and empty none of the nodes that were \
             left before lockgate nodes --change has told it"
        ));
    }
    show("locks.nodes", nodes);
    show("locks.next_nodes", next_nodes);
    if step == NodesStep::Show {
        warn_of_unaware(locks).await;
    }
    Ok(())
}

fn show(list: &str, nodes: Vec<NodeOfSet>) {
    say(format_args!("{list}:"));
    for NodeOfSet { address, what, .. } in nodes {
        say(format_args!("  {address}  {what}"));
    }
}
