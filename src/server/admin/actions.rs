//! What operators do at the admin address: free a lock, pause or resume a lock node, or have their token checked.
//!
//! A request may do this if it has `admin.token` in a header, and has JSON. A page of another site can make a browser
//! send requests here, but such a request only after a preflight request, which is never allowed. Besides, a request
//! with the `Origin` of another site is refused.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Request, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, ORIGIN},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::{
    config::AdminToken,
    lock::NotPaused,
    log_text::FewLines,
    server::server_metrics::{ActionMetrics, ActionResult, AdminAction},
    session::{
        Shared,
        operator_acts::{self, MeantGrant, NodePause, NotTakenBack},
        session_metrics::TakenBack,
    },
};

/// The longest body: a lock's name in hexadecimal, and more.
const MAX_BODY: usize = 64 * 1024;
/// How long a body may take to arrive.
const BODY_LIMIT: Duration = Duration::from_secs(5);
/// How long the sender of a wrong token waits for the answer.
const WRONG_TOKEN: Duration = Duration::from_secs(1);

/// The field of a forced pause.
const FORCED: &str = r#""force": true"#;

/// How the errors about a body begin that name a field and nothing else.
const OF_FIELDS: [&str; 3] = ["missing field", "unknown field", "duplicate field"];

/// The status of an answer that is not 200, and its reason for people.
pub(super) type NotActed = (StatusCode, String);

/// What actions of operators need.
pub(super) struct Actions {
    shared: Arc<Shared>,
    /// `None` if no action is allowed.
    token: Option<AdminToken>,
    metrics: ActionMetrics,
}

/// The body of a request for an action.
trait ActionBody: DeserializeOwned {
    /// How it is written, for people.
    const WRITTEN: &'static str;
}

impl ActionBody for UnlockBody {
    const WRITTEN: &'static str = r#"{"key": text, or "key_hex": hexadecimal text, "fence": number of 0 or more, or "reader": number of 0 or more, or "any": true or false}"#;
}

impl ActionBody for NodeBody {
    const WRITTEN: &'static str = r#"{"address": text, "force": true or false}"#;
}

impl ActionBody for TokenBody {
    const WRITTEN: &'static str = "{}";
}

/// The body of `/api/locks/unlock`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnlockBody {
    key: Option<String>,
    key_hex: Option<String>,
    fence: Option<u64>,
    reader: Option<u64>,
    #[serde(default)]
    any: bool,
}

/// The body of `/api/nodes/pause` and `/api/nodes/resume`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeBody {
    address: String,
    #[serde(default)]
    force: bool,
}

/// The body of `/api/token`, which only asks whether the token is right.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {}

/// The operator who acts, as far as known.
struct AtThePage(Option<SocketAddr>);

impl fmt::Display for AtThePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address} admin page"),
            None => f.write_str("? admin page"),
        }
    }
}

/// Returns the action of a path, if it has one.
pub(super) fn action(path: &str) -> Option<AdminAction> {
    match path {
        "/api/token" => Some(AdminAction::Token),
        "/api/locks/unlock" => Some(AdminAction::Unlock),
        "/api/nodes/pause" => Some(AdminAction::Pause),
        "/api/nodes/resume" => Some(AdminAction::Resume),
        _ => None,
    }
}

impl Actions {
    pub(super) fn new(shared: Arc<Shared>, token: Option<AdminToken>) -> Actions {
        Actions { shared, token, metrics: ActionMetrics::new() }
    }

    /// Whether any action is allowed.
    pub(super) fn are_possible(&self) -> bool {
        self.token.is_some()
    }

    /// Carries out an action that a request from `peer` asks for. Returns the answer in JSON.
    ///
    /// # Errors
    /// Why it was not done.
    pub(super) async fn act(
        &self,
        action: AdminAction,
        request: Request<Incoming>,
        peer: Option<SocketAddr>,
    ) -> Result<String, NotActed> {
        let done = match self.check(request.headers()) {
            Ok(()) => self.carry_out(action, request.into_body(), peer).await,
            Err(refused) => {
                if refused.0 == StatusCode::UNAUTHORIZED {
                    static LINES: FewLines = FewLines::new();
                    if let Some(left_out) = LINES.next(std::time::Instant::now()) {
                        let by = AtThePage(peer);
                        warn!(%by, left_out, "a request without the right admin.token was refused");
                    }
                }
                Err(refused)
            }
        };
        let result = match &done {
            Ok(_) => ActionResult::Ok,
            Err((StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => ActionResult::Denied,
            Err((status, _)) if status.is_server_error() => ActionResult::Failed,
            Err(_) => ActionResult::Refused,
        };
        self.metrics.count(action, result);
        if matches!(done, Err((StatusCode::UNAUTHORIZED, _))) {
            // It is counted before, as its sender may not wait.
            sleep(WRONG_TOKEN).await;
        }
        done
    }

    /// Checks that the sender may act.
    fn check(&self, headers: &HeaderMap) -> Result<(), NotActed> {
        let Some(token) = &self.token else {
            let why = "read only: no admin.token is in the configuration";
            return Err((StatusCode::FORBIDDEN, why.into()));
        };
        if !is_from_here(headers) {
            return Err((StatusCode::FORBIDDEN, "a page of another site has sent this".into()));
        }
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        // RFC 9110, 11.1: the scheme in any case.
        let is_bearer = |scheme: &&[u8]| scheme.eq_ignore_ascii_case(b"Bearer ");
        let bearer = given.and_then(|value| value.split_at_checked(7));
        let bearer = bearer.filter(|(scheme, _)| is_bearer(scheme)).map(|(_, token)| token);
        if !bearer.is_some_and(|given| token.is(given)) {
            let why = "send admin.token as Authorization: Bearer";
            return Err((StatusCode::UNAUTHORIZED, why.into()));
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        if kind.is_none_or(|kind| !kind.eq_ignore_ascii_case("application/json")) {
            let why = "send JSON, with Content-Type: application/json";
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why.into()));
        }
        Ok(())
    }

    async fn carry_out(
        &self,
        action: AdminAction,
        body: Incoming,
        peer: Option<SocketAddr>,
    ) -> Result<String, NotActed> {
        let body = timeout(BODY_LIMIT, Limited::new(body, MAX_BODY).collect()).await;
        let body = body.map_err(|_| {
            (StatusCode::REQUEST_TIMEOUT, "the body did not come in time".to_owned())
        })?;
        let body = body.map_err(|_| {
            (StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {MAX_BODY} bytes"))
        })?;
        let (body, by) = (body.to_bytes(), AtThePage(peer));
        match action {
            AdminAction::Token => {
                let TokenBody {} = read(&body)?;
                Ok(r#"{"accepted":true}"#.into())
            }
            AdminAction::Unlock => self.unlock(read(&body)?, by).await,
            AdminAction::Pause => {
                let NodeBody { address, force } = read(&body)?;
                self.pause(&address, NodePause::Pause { force }, &by)
            }
            AdminAction::Resume => {
                let NodeBody { address, force: _ } = read(&body)?;
                self.pause(&address, NodePause::Resume, &by)
            }
        }
    }

    async fn unlock(&self, body: UnlockBody, by: AtThePage) -> Result<String, NotActed> {
        let wrong = |what: &str| (StatusCode::BAD_REQUEST, what.to_owned());
        let name = match (body.key, body.key_hex) {
            (None, Some(hex)) => {
                bytes_of(&hex).ok_or_else(|| wrong("'key_hex' is not hexadecimal"))?
            }
            (Some(key), None) => key.into_bytes(),
            _ => return Err(wrong("give the lock's 'key', or its 'key_hex'")),
        };
        let grant = match (body.fence, body.reader, body.any) {
            (Some(fence), None, false) => MeantGrant::Fence(fence),
            (None, Some(reader), false) => MeantGrant::Reader(reader),
            (None, None, true) => MeantGrant::Any,
            _ => {
                return Err(wrong(
                    "give the 'fence' of the grant that is meant, the number of the 'reader', or 'any': true",
                ));
            }
        };
        let (shared, by) = (self.shared.clone(), by.to_string());
        let why = match operator_acts::unlock(shared, name, grant, by).await {
            Ok(()) => return Ok(r#"{"freed":true}"#.into()),
            Err(NotTakenBack::NotHeld) => return Ok(r#"{"freed":false}"#.into()),
            Err(why) => why,
        };
        let status = match (why.result(), &why) {
            (None, _) => StatusCode::BAD_REQUEST,
            (_, NotTakenBack::NoToken) => StatusCode::CONFLICT,
            (Some(TakenBack::NoQuorum), _) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        let words = match why {
            NotTakenBack::Refused(words) => format!("the data node: {words}"),
            why => plain(&why),
        };
        Err((status, words))
    }

    fn pause(&self, address: &str, how: NodePause, by: &AtThePage) -> Result<String, NotActed> {
        let done = operator_acts::pause_node(&self.shared, address.as_bytes(), how, by);
        done.map_err(|error| {
            let status = match error.why {
                NotPaused::Unknown => StatusCode::NOT_FOUND,
                NotPaused::TooFew { .. } => StatusCode::CONFLICT,
            };
            (status, plain(&error.told(FORCED)))
        })?;
        let paused = matches!(how, NodePause::Pause { .. });
        Ok(format!(r#"{{"paused":{paused}}}"#))
    }
}

/// Whether no other site's page has sent this: browsers name the page's site.
fn is_from_here(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let there = origin.as_bytes().splitn(2, |byte| *byte == b'/').nth(1);
    let there = there.and_then(|rest| rest.strip_prefix(b"/"));
    headers.get(HOST).is_some_and(|here| there.is_some_and(|it| it == here.as_bytes()))
}

/// Reads a body.
///
/// # Errors
/// What is wrong with it, for people, who do not know the types here.
fn read<T: ActionBody>(body: &[u8]) -> Result<T, NotActed> {
    let written = format!("the body is to be one JSON object: {}", T::WRITTEN);
    // A list of the values would be accepted as well.
    let is_object = body.trim_ascii_start().first() == Some(&b'{');
    let why = match serde_json::from_slice(body) {
        Ok(body) if is_object => return Ok(body),
        Err(error) if !error.is_data() => format!("the body is not JSON: {error}"),
        Err(error) if is_object => {
            let text = error.to_string();
            let what = text
                .split(" at line")
                .next()
                .filter(|what| OF_FIELDS.iter().any(|kind| what.starts_with(kind)));
            format!("{}; {written}", what.unwrap_or("a value is of another kind"))
        }
        _ => written,
    };
    Err((StatusCode::BAD_REQUEST, why))
}

/// Returns the text of an error without its `ERR `, which is for clients that speak Redis.
fn plain(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    text.strip_prefix("ERR ").unwrap_or(&text).to_owned()
}

/// Decodes hexadecimal digits.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let (pairs, []) = hex.as_bytes().as_chunks() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_hexadecimal_is_read_whole_or_not_at_all() {
        assert_eq!(bytes_of("61fF00"), Some(b"a\xff\0".to_vec()));
        assert_eq!(bytes_of(""), Some(Vec::new()));
        for wrong in ["6", "6g", "616", "é0"] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_another_site_has_sent_is_known_by_its_origin() {
        let from_here = |origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "127.0.0.1:9380".parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(ORIGIN, origin.parse().unwrap());
            }
            is_from_here(&headers)
        };
        assert!(from_here(None) && from_here(Some("http://127.0.0.1:9380")));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:9381", "", "127.0.0.1:9380"]
        {
            assert!(!from_here(Some(origin)), "{origin}");
        }
    }
}
