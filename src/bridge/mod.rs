//! Locks of bridged adopt rules: taken on the data node, as an old client would, and on the lock
//! nodes.
//!
//! During a migration three kinds of clients must exclude one another: instances that go to the data node past the
//! proxy and see only its key, adopted clients, and LOCK clients. So every grant of such a lock takes the key, and
//! then the quorum; a key whose quorum is refused is given back; a release frees the quorum, and then the key. The
//! key outlasts the lock, so that no client past the proxy takes it while its holder counts on it.
//!
//! A key is freed only by an operation that knows that it took it, or by a client's own release. Tokens of old
//! clients may not be unique, so a key that may or may not have been taken runs out by itself.
//!
//! - `data_key`: the key, over a connection of the proxy's own.
//! - `bridged_keys`: where a lock has its keys.
//! - `crossing`: one grant, renewal, release or look on both sides.
//! - `following`: giving back and extending where another proxy has bridged the rule, and this one has not.
//! - `keeping`: the keys of session locks.
//! - `trial`: whether the proxy's user may send what all this needs.

mod bridged_keys;
mod crossing;
mod data_key;
mod following;
mod keeping;
mod trial;

use std::sync::Arc;

use tokio::runtime::Handle;

pub(crate) use self::bridged_keys::Bridge;
pub(crate) use self::crossing::{Asker, Crossing};
use self::data_key::DataKeys;
pub(crate) use self::following::FollowingKeys;
pub(crate) use self::trial::{CommandFailure, NEEDED, try_commands};
use crate::{adopt::Adoption, config::Config, data::DataNode, lock::Engine};

impl Bridge {
    /// Makes the bridge, which asks nothing yet. Its connection to the data node will live on `runtime`, and so will
    /// the task that keeps the keys of session locks.
    pub(crate) fn new(
        config: &Config,
        adoption: &Arc<Adoption>,
        engine: &Arc<Engine>,
        data: &Arc<DataNode>,
        runtime: &Handle,
    ) -> Arc<Bridge> {
        let bridge = Arc::new(Bridge {
            adoption: adoption.clone(),
            engine: engine.clone(),
            keys: DataKeys::new(data.clone(), runtime.clone()),
            prefix: config.locks.prefix.len(),
            drift_factor: config.locks.drift_factor,
        });
        runtime.spawn(keeping::run(Arc::downgrade(&bridge)));
        bridge
    }
}
