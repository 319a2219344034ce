//! Ends a command that blocks a link whose client has left. Redis does so by itself where a client has a connection of
//! its own; on a link, others have used the same one, and with guards must end with it.

use std::{sync::Arc, time::Duration};

use bb8_redis::redis;
use tokio::time::timeout;

use crate::data::{DataNode, Tenure};

/// How long the data node may take, each time.
const LIMIT: Duration = Duration::from_secs(3);

/// Asks the data node to end what blocks on the connection that it knows by this number, if it lets the proxy do so.
/// `tenure`: that of the Redis to which the connection leads.
pub(super) async fn unblock(data: Arc<DataNode>, tenure: Option<Arc<Tenure>>, id: u64) {
    if let Ok(Ok((reached, mut connection))) = timeout(LIMIT, data.ask()).await
        && tenure.is_none_or(|own| Arc::ptr_eq(&own, &reached))
    {
        let mut command = redis::cmd("CLIENT");
        command.arg("UNBLOCK").arg(id);
        let _ = timeout(LIMIT, command.query_async::<i64>(&mut connection.redis)).await;
    }
}
