//! Which page answers which request.
//!
//! Pages that name locks or clients answer only requests that name this server by an allowed name ([`super::host`]).

use std::{net::SocketAddr, sync::Arc};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
        REFERRER_POLICY, WWW_AUTHENTICATE, X_FRAME_OPTIONS,
    },
};
use serde::Serialize;

use super::{
    actions::{self, Actions},
    elsewhere::{HoldersElsewhere, MOST_ASKED},
    health::PageSource,
    host::HostRule,
    listing, markup,
    peers::Peers,
    query,
    samples::StatusHistory,
};
use crate::{
    config::AdminConfig,
    log_text::plain,
    report::{
        ErrorDocument,
        document::StatusDocument,
        lists::{HolderList, HolderPart},
    },
    server::fleet::machine,
    session::Shared,
    share::Sharers,
};

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

const PAGES: &str = "there are the status page at /, /metrics, /healthz, /readyz, and as JSON /api/status, /api/locks, \
     /api/hot, /api/holders, /api/clients, /api/adopted, /api/pinned, /api/history, /api/proxies\n";
const TOO_MANY_STEPS: &str = "comparing all keys with this pattern would take too long, give one \
     with fewer stars, or that begins as the keys do";
const NOT_MEANT: &str = "this address is not known by that name: name it by an IP address or as localhost, or list \
     the name in admin.hosts";

/// Locks in `/api/hot` by default.
const HOT: usize = 10;
/// Entries of the other lists by default.
const LISTED: usize = 100;

/// All pages of a proxy.
pub(crate) struct AdminSite {
    state: Arc<PageSource>,
    shared: Arc<Shared>,
    sharers: Option<Arc<Sharers>>,
    history: StatusHistory,
    peers: Peers,
    elsewhere: HoldersElsewhere,
    actions: Actions,
    names: HostRule,
}

/// The two ends of a request's connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageEnds {
    /// Whether the request came to a loopback address.
    pub(super) is_local: bool,
    pub(super) peer: Option<SocketAddr>,
}

type Page = Response<Full<Bytes>>;

impl AdminSite {
    pub(crate) fn new(
        state: Arc<PageSource>,
        shared: Arc<Shared>,
        sharers: Option<Arc<Sharers>>,
        config: &AdminConfig,
    ) -> AdminSite {
        let actions = Actions::new(shared.clone(), config.token.clone());
        let (history, peers) = (StatusHistory::default(), Peers::new(&config.peers));
        let elsewhere = HoldersElsewhere::default();
        let names = HostRule::new(config, machine());
        AdminSite { state, shared, sharers, history, peers, elsewhere, actions, names }
    }

    /// Asks the data node now and then, and keeps the history.
    pub(super) async fn watch(&self) {
        tokio::join!(self.state.watch(), self.history.keep(&self.state, &self.shared));
    }

    /// Answers one request.
    pub(super) async fn answer(&self, request: Request<Incoming>, ends: PageEnds) -> Page {
        let action = actions::action(request.uri().path());
        let allowed = if action.is_some() { "POST" } else { "GET, HEAD" };
        let is_allowed = match *request.method() {
            Method::GET | Method::HEAD => action.is_none(),
            Method::POST => action.is_some(),
            _ => false,
        };
        if !is_allowed {
            let only = if action.is_some() { "only POST\n" } else { "only GET and HEAD\n" };
            let mut page = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, only);
            page.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return page;
        }
        let Some(action) = action else { return self.show(&request, ends).await };
        if !self.names.allows(request.headers(), ends.is_local) {
            return refusal(StatusCode::MISDIRECTED_REQUEST, NOT_MEANT);
        }
        match self.actions.act(action, request, ends.peer).await {
            Ok(done) => page(StatusCode::OK, JSON, plain(&done).into_owned()),
            Err((status, why)) => refused(status, &why),
        }
    }

    /// Answers a request that changes nothing.
    async fn show(&self, request: &Request<Incoming>, ends: PageEnds) -> Page {
        let path = request.uri().path();
        match path {
            "/metrics" => return page(StatusCode::OK, METRICS, self.state.metrics()),
            "/healthz" => return page(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => {
                let readiness = self.state.readiness();
                let status = match readiness.is_ready {
                    true => StatusCode::OK,
                    false => StatusCode::SERVICE_UNAVAILABLE,
                };
                return page(status, TEXT, readiness.lines.join("\n") + "\n");
            }
            path if path == "/" || path.starts_with("/api/") => {}
            _ => return page(StatusCode::NOT_FOUND, TEXT, PAGES),
        }
        if !self.names.allows(request.headers(), ends.is_local) {
            return refusal(StatusCode::MISDIRECTED_REQUEST, NOT_MEANT);
        }
        let query = request.uri().query().unwrap_or_default();
        let told = match path {
            "/api/proxies" => self.proxies(query).await,
            "/api/locks" => self.locks(query).await,
            "/api/hot" => self.hot(query).await,
            "/api/holders" => self.holders(query).await,
            _ => self.tell(path, query),
        };
        told.unwrap_or_else(|wrong| refusal(StatusCode::BAD_REQUEST, &wrong))
    }

    /// Returns how this proxy and its peers are.
    ///
    /// # Errors
    /// What is wrong with the query, for people.
    async fn proxies(&self, query: &str) -> Result<Page, String> {
        query::nothing(query)?;
        Ok(json(&self.peers.list(self.status()).await))
    }

    /// Returns the wanted locks.
    ///
    /// # Errors
    /// What is wrong with the query, for people.
    async fn locks(&self, query: &str) -> Result<Page, String> {
        let mut wanted = query::locks(query)?;
        wanted.most.get_or_insert(LISTED);
        let mut list = listing::locks(&self.shared, &wanted).ok_or(TOO_MANY_STEPS)?;
        self.elsewhere.fill(&self.peers, &mut list.locks).await;
        Ok(json(&list))
    }

    /// Returns the locks that were waited for longest.
    ///
    /// # Errors
    /// What is wrong with the query, for people.
    async fn hot(&self, query: &str) -> Result<Page, String> {
        let mut list = listing::hot(&self.shared, query::count(query, HOT)?);
        self.elsewhere.fill(&self.peers, &mut list.hot).await;
        Ok(json(&list))
    }

    /// Returns who holds these locks, through this proxy or another.
    ///
    /// # Errors
    /// What is wrong with the query, for people.
    async fn holders(&self, query: &str) -> Result<Page, String> {
        let (names, may_ask) = query::holders(query, MOST_ASKED)?;
        let mut holders: Vec<Option<HolderPart>> =
            names.iter().map(|name| listing::holder(&self.shared, name)).collect();
        if may_ask && holders.iter().any(Option::is_none) {
            let told = self.elsewhere.of(&self.peers, &names).await;
            for (holder, told) in holders.iter_mut().zip(told) {
                *holder = holder.take().or(told);
            }
        }
        Ok(json(&HolderList { holders }))
    }

    /// Returns the status of the whole proxy.
    fn status(&self) -> StatusDocument {
        let (actions, peers) = (self.actions.are_possible(), self.peers.count());
        let sharers = self.sharers.as_deref();
        StatusDocument::of(&self.state, &self.shared, sharers, actions, peers)
    }

    /// Answers the other requests whose pages name locks or clients.
    ///
    /// # Errors
    /// What is wrong with the query, for people.
    fn tell(&self, path: &str, query: &str) -> Result<Page, String> {
        let shared = &*self.shared;
        Ok(match path {
            "/" => status_page(),
            "/api/status" => {
                query::nothing(query)?;
                json(&self.status())
            }
            "/api/history" => {
                query::nothing(query)?;
                json(&self.history.document(&self.state))
            }
            "/api/clients" => json(&listing::clients(shared, query::count(query, LISTED)?)),
            "/api/adopted" => json(&listing::adopted(shared, query::count(query, LISTED)?)),
            "/api/pinned" => {
                let most = query::count(query, LISTED)?;
                json(&listing::pinned(self.sharers.as_deref(), most))
            }
            _ => page(StatusCode::NOT_FOUND, TEXT, PAGES),
        })
    }
}

fn json(document: &impl Serialize) -> Page {
    match serde_json::to_string(document) {
        Ok(text) => page(StatusCode::OK, JSON, plain(&text).into_owned()),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Makes the status page. Nothing from outside it may run there or be fetched from elsewhere, and no other page may
/// frame it.
fn status_page() -> Page {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let mut page = page(StatusCode::OK, HTML, markup::document(&nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'"
    );
    let headers = page.headers_mut();
    // Only hexadecimal digits are inserted.
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    page
}

/// Makes the answer to an action that was refused or not done.
fn refused(status: StatusCode, why: &str) -> Page {
    let mut page = refusal(status, why);
    if status == StatusCode::UNAUTHORIZED {
        page.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    page
}

/// Makes an error in JSON.
fn refusal(status: StatusCode, error: &str) -> Page {
    let text = serde_json::json!(ErrorDocument { error }).to_string();
    page(status, JSON, plain(&text).into_owned())
}

fn page(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Page {
    const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    const NO_OTHER_SITE: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
    let mut page = Response::new(Full::new(text.into()));
    *page.status_mut() = status;
    let headers = page.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    headers.insert(NO_OTHER_SITE, HeaderValue::from_static("same-origin"));
    page
}
