//! stub
use std::sync::Arc;
pub struct State;
impl State {
    pub fn new(
        _: crate::metrics::Recorder,
        _: Arc<crate::lock::Engine>,
        _: crate::config::RedisUrl,
    ) -> State {
        State
    }
}
pub async fn serve(
    _: tokio::net::TcpListener,
    _: Arc<State>,
    _: tokio_util::sync::CancellationToken,
) {
}
