//! Asks the nodes of a cluster which nodes it has.

use std::{collections::HashMap, time::Duration};

use bb8_redis::redis::{self, RedisError};
use tokio::{task::JoinSet, time::timeout};

use super::{
    cluster_node::{self, ClusterNode},
    trouble::{ClusterFault, ClusterTrouble},
    view::agree,
};
use crate::{
    config::RedisUrl,
    net::{
        Connector,
        redis_client::{self, Connection},
    },
};

/// How long connecting and an answer may take.
const LIMIT: Duration = Duration::from_secs(1);

/// The outcome of asking at one address.
pub(crate) struct ClusterAnswer {
    pub(crate) url: RedisUrl,
    pub(crate) told: Result<Vec<ClusterNode>, ClusterTrouble>,
}

impl ClusterAnswer {
    /// Returns the id of the node that answered.
    pub(crate) fn id(&self) -> Option<&str> {
        let nodes = self.told.as_ref().ok()?;
        nodes.iter().find(|node| node.is_myself).map(|node| &*node.id)
    }
}

/// Returns the nodes upon which the answers agree.
pub(crate) fn agreed(answers: &[ClusterAnswer]) -> Vec<ClusterNode> {
    let views: Vec<Vec<ClusterNode>> =
        answers.iter().filter_map(|answer| answer.told.clone().ok()).collect();
    agree(&views)
}

/// Turns each answer of another cluster into a trouble, and returns the troubles. An answer is of another cluster if it
/// names none of the `known` nodes or, if none is known, no node that the first answer names.
pub(crate) fn drop_foreign(
    answers: &mut [ClusterAnswer],
    known: &[ClusterNode],
) -> Vec<ClusterTrouble> {
    let first = answers.iter().find_map(|answer| answer.told.clone().ok()).unwrap_or_default();
    let known = if known.is_empty() { &first } else { known };
    let is_known = |node: &ClusterNode| known.iter().any(|other| other.id == node.id);
    let mut troubles = Vec::new();
    for answer in answers {
        if answer.told.as_ref().is_ok_and(|nodes| !nodes.iter().any(is_known)) {
            let what = format!("{} belongs to another cluster", answer.url);
            let trouble = ClusterTrouble::new(ClusterFault::Foreign, what);
            answer.told = Err(trouble.clone());
            troubles.push(trouble);
        }
    }
    troubles
}

/// Asks at all addresses at once, and keeps the connections by address for the next time. Returns the answers in the
/// order of the addresses, whichever came first.
pub(crate) async fn ask_all(
    urls: &[RedisUrl],
    connector: &Connector,
    connections: &mut HashMap<String, Connection>,
) -> Vec<ClusterAnswer> {
    let mut asking = JoinSet::new();
    for url in urls {
        let (url, connector) = (url.clone(), connector.clone());
        let kept = connections.remove(&url.to_string());
        asking.spawn(async move { ask(url, &connector, kept).await });
    }
    let mut answers = Vec::new();
    while let Some(asked) = asking.join_next().await {
        let Ok((answer, connection)) = asked else { continue };
        if let Some(connection) = connection {
            connections.insert(answer.url.to_string(), connection);
        }
        answers.push(answer);
    }
    answers.sort_by_key(|answer| urls.iter().position(|url| *url == answer.url));
    answers
}

/// Asks at one address, over the previous connection if that is still open.
async fn ask(
    url: RedisUrl,
    connector: &Connector,
    kept: Option<Connection>,
) -> (ClusterAnswer, Option<Connection>) {
    let asking = async {
        let mut connection = match kept.filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => redis_client::connect_for(&url, connector, redis_client::LARGE).await?,
        };
        let mut question = redis::cmd("CLUSTER");
        let text: String = question.arg("NODES").query_async(&mut connection.redis).await?;
        Ok::<_, RedisError>((text, connection))
    };
    let trouble = |fault, what: &str| Err(ClusterTrouble::new(fault, format!("{url}: {what}")));
    let (told, connection) = match timeout(LIMIT, asking).await {
        Ok(Ok((text, connection))) => match cluster_node::read(&text) {
            Some(nodes) => (Ok(nodes), Some(connection)),
            None => {
                (trouble(ClusterFault::Off, "what it tells of its cluster cannot be read"), None)
            }
        },
        Ok(Err(error)) => {
            let text = error.to_string();
            // The system's own texts end with the error's number.
            let text = text.split(" (os error").next().unwrap_or_default();
            (trouble(fault_of(&error), text), None)
        }
        Err(_) => {
            (trouble(ClusterFault::Unreachable, &format!("no answer within {LIMIT:?}")), None)
        }
    };
    (ClusterAnswer { url, told }, connection)
}

fn fault_of(error: &RedisError) -> ClusterFault {
    let (code, text) = (error.code().unwrap_or_default(), error.to_string());
    if matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM") || text.contains("assword") {
        ClusterFault::Auth
    } else if error.is_io_error() || error.is_timeout() {
        ClusterFault::Unreachable
    } else {
        ClusterFault::Off
    }
}
