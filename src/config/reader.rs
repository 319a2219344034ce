//! Reads values from parsed YAML and collects everything that is wrong.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_yaml::{Mapping, Value};

use super::{
    LISTENER_KEYS, Listener, LockNotify, OnDisconnect, OnLost, SocketPath,
    error::{ConfigErrors, Problem},
    keys::words,
    locate::{self, PathStep},
    tls_files::{AuthClients, CLIENT_KEYS, ClientTls, SERVER_KEYS, ServerTls, TlsProblem},
    units,
    url::RedisUrl,
};

/// How similar (0 to 1) a known key must be to be suggested for an unknown one.
const ALIKE: f64 = 0.75;
/// The most problems that are reported of one file. Finding each one's line reads the file again: thousands
/// (say, of another program's file) would take minutes.
const MOST_PROBLEMS: usize = 100;
/// Bytes of the shortest value of a variable that no message repeats. Shorter ones are numbers and common words, of
/// which messages have others.
const SHORTEST_SECRET: usize = 6;

/// Looks a variable up in the environment.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Collects problems while values are read.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) file: &'a str,
    pub(super) environment: Environment<'a>,
    problems: Vec<Problem>,
    /// Whether there are more problems than `problems` has.
    more: bool,
    /// The variables of the environment that values had, and what they stand for.
    variables: Vec<(String, String)>,
}

/// A mapping and its path in the file.
pub(super) struct Section<'v> {
    mapping: Option<&'v Mapping>,
    path: Vec<PathStep>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, file: &'a str, environment: Environment<'a>) -> Reader<'a> {
        Reader { text, file, environment, problems: Vec::new(), more: false, variables: Vec::new() }
    }

    /// Returns all problems; `Ok` if there are none.
    pub(super) fn finish(mut self) -> Result<(), ConfigErrors> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.problems.sort_by_key(|problem| problem.line);
        if self.more {
            let line = self.problems.last().and_then(|last| last.line);
            let what = format!("these are {MOST_PROBLEMS} problems, and there are more");
            self.problems.push(Problem { line, key: String::new(), what });
        }
        // What a variable stands for may be a secret, wherever in a value it stands.
        for (name, stands_for) in &self.variables {
            for problem in &mut self.problems {
                problem.what = problem.what.replace(stands_for, &format!("${{{name}}}"));
            }
        }
        Err(ConfigErrors { file: self.file.to_owned(), problems: self.problems })
    }

    /// Adds a problem at `path`.
    pub(super) fn problem(&mut self, path: &[PathStep], what: impl Into<String>) {
        if self.problems.len() >= MOST_PROBLEMS {
            self.more = true;
            return;
        }
        // A missing key gets the line of its section.
        let line = (0..=path.len()).rev().find_map(|end| locate::line(self.text, &path[..end]));
        let key = locate::name(path);
        self.problems.push(Problem { line: line.or(Some(1)), key, what: what.into() });
    }

    /// Whether nothing is wrong so far at `keys` or inside them. A value that could not be read kept its
    /// default, and no other value may be checked against it.
    pub(super) fn sound(&self, section: &Section<'_>, keys: &[&str]) -> bool {
        keys.iter().all(|key| {
            let name = locate::name(&section.path(key));
            let about = |problem: &Problem| {
                problem.key.strip_prefix(&name).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('[') || rest.starts_with('.')
                })
            };
            !self.problems.iter().any(about)
        })
    }

    /// The top of the document.
    pub(super) fn top<'v>(&mut self, value: &'v Value, known: &[&str]) -> Section<'v> {
        self.mapping(value, Vec::new(), known)
    }

    /// Returns the mapping under `key`, which may have only `known` keys.
    pub(super) fn section<'v>(
        &mut self,
        parent: &Section<'v>,
        key: &str,
        known: &[&str],
    ) -> Section<'v> {
        let path = parent.path(key);
        match parent.get(key) {
            Some(value) => self.mapping(value, path, known),
            None => Section { mapping: None, path },
        }
    }

    /// Returns the mapping at `path`, which may have only `known` keys.
    pub(super) fn mapping<'v>(
        &mut self,
        value: &'v Value,
        path: Vec<PathStep>,
        known: &[&str],
    ) -> Section<'v> {
        let mapping = match value {
            Value::Mapping(mapping) => Some(mapping),
            Value::Null => None,
            other => {
                self.problem(&path, format!("{} where a mapping of keys is wanted", kind(other)));
                None
            }
        };
        for key in mapping.into_iter().flat_map(Mapping::keys) {
            let Some(name) = key.as_str() else {
                self.problem(&path, "a key that is not text");
                continue;
            };
            if !known.contains(&name) {
                let mut path = path.clone();
                path.push(PathStep::Key(name.to_owned()));
                self.problem(&path, unknown(name, known));
            }
        }
        Section { mapping, path }
    }

    /// Reads the value under `key` into `slot`, if there is one.
    pub(super) fn read<T: FromYaml>(&mut self, section: &Section<'_>, key: &str, slot: &mut T) {
        let path = section.path(key);
        if let Some(value) = section.get(key)
            && let Some(read) = self.value(value, &path)
        {
            *slot = read;
        }
    }

    /// Reads the `tls` of a listener and loads its files.
    fn server_tls(&mut self, section: &Section<'_>) -> Option<ServerTls> {
        let before = self.problems.len();
        let (mut cert, mut key, mut ca, mut auth) = (None, None, None, None);
        self.read(section, "cert_file", &mut cert);
        self.read(section, "key_file", &mut key);
        self.read(section, "ca_cert_file", &mut ca);
        self.read(section, "auth_clients", &mut auth);
        for (key, file) in [("cert_file", &cert), ("key_file", &key)] {
            if file.is_none() && section.get(key).is_none() {
                self.problem(&section.path(key), "is missing; clients must be shown a certificate");
            }
        }
        if ca.is_some() && auth == Some(AuthClients::No) {
            let what =
                "has no effect with auth_clients: no; leave it out, or write yes or optional";
            self.problem(&section.path("ca_cert_file"), what);
        }
        if self.problems.len() > before {
            return None;
        }
        let asked = if ca.is_some() { AuthClients::Yes } else { AuthClients::No };
        let tls = ServerTls {
            cert_file: cert?,
            key_file: key?,
            ca_cert_file: ca,
            auth_clients: auth.unwrap_or(asked),
        };
        if let Err(problems) = tls.load() {
            self.tls_problems(section, problems);
            return None;
        }
        Some(tls)
    }

    /// Adds the problems of the files of a `tls` section.
    pub(super) fn tls_problems(&mut self, section: &Section<'_>, problems: Vec<TlsProblem>) {
        for TlsProblem { key, what } in problems {
            self.problem(&section.path(key), what);
        }
    }

    fn value<T: FromYaml>(&mut self, value: &Value, path: &[PathStep]) -> Option<T> {
        let read = match self.expand(value) {
            Ok(expanded) => T::read(self, &expanded, path),
            Err(what) => Err(Wrong::Because(what)),
        };
        match read {
            Ok(read) => Some(read),
            Err(Wrong::Because(what)) => {
                self.problem(path, what);
                None
            }
            Err(Wrong::Told) => None,
            // The message shows the value as in the file: what ${NAME} stands for may be a secret.
            Err(Wrong::Wanted(wanted)) => {
                self.problem(path, format!("{} where {wanted} is wanted", shown(value)));
                None
            }
        }
    }

    /// Replaces each `${NAME}` by the environment's value, and `$$` by a dollar sign. This comes after parsing,
    /// so that no value can change the structure.
    fn expand(&mut self, value: &Value) -> Result<Value, String> {
        // The YAML crate would ignore the tag.
        if let Value::Tagged(_) = value {
            return Err("a tag (!…) has no meaning here; leave it out".into());
        }
        let Value::String(text) = value else { return Ok(value.clone()) };
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some((name, after)) =
                rest.strip_prefix('{').and_then(|rest| rest.split_once('}'))
            {
                let value = (self.environment)(name);
                let value = value.ok_or(format!("the environment has no variable {name}"))?;
                out += &value;
                if value.len() >= SHORTEST_SECRET {
                    self.variables.push((name.to_owned(), value));
                }
                rest = after;
            } else {
                return Err("a '$' that begins no ${NAME}; write '$$' for a dollar sign".into());
            }
        }
        out.push_str(rest);
        Ok(Value::String(out))
    }
}

impl<'v> Section<'v> {
    /// The value under `key`.
    pub(super) fn get(&self, key: &str) -> Option<&'v Value> {
        self.mapping?.get(key)
    }

    /// The mapping under `key`; an empty section if there is none.
    pub(super) fn inside(&self, key: &str) -> Section<'v> {
        let mapping = match self.get(key) {
            Some(Value::Mapping(mapping)) => Some(mapping),
            _ => None,
        };
        Section { mapping, path: self.path(key) }
    }

    /// Whether the section has any key.
    pub(super) fn is_there(&self) -> bool {
        self.mapping.is_some_and(|mapping| !mapping.is_empty())
    }

    /// The path to `key` in this section.
    pub(super) fn path(&self, key: &str) -> Vec<PathStep> {
        let mut path = self.path.clone();
        path.push(PathStep::Key(key.to_owned()));
        path
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    let closest = known
        .iter()
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match closest {
        Some((alike, known)) if alike >= ALIKE => {
            format!("unknown key; did you mean {known}?")
        }
        _ => format!("unknown key; known here are {}", known.join(", ")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a tagged value",
    }
}

/// Why a value cannot be read.
pub(super) enum Wrong {
    /// Names the values that would be right; the message adds the value in the file.
    Wanted(&'static str),
    /// The whole message; must not repeat the value.
    Because(String),
    /// The problems inside the value have been reported.
    Told,
}

/// A value that fills itself from a key of its section. It stays as it is if the key is left out or wrong.
pub(super) trait Fill {
    fn fill(&mut self, reader: &mut Reader<'_>, parent: &Section<'_>, key: &str);
}

impl<T: FromYaml> Fill for T {
    fn fill(&mut self, reader: &mut Reader<'_>, parent: &Section<'_>, key: &str) {
        reader.read(parent, key, self);
    }
}

impl Fill for ClientTls {
    fn fill(&mut self, reader: &mut Reader<'_>, parent: &Section<'_>, key: &str) {
        let section = reader.section(parent, key, CLIENT_KEYS);
        reader.read(&section, "ca_cert_file", &mut self.ca_cert_file);
        reader.read(&section, "cert_file", &mut self.cert_file);
        reader.read(&section, "key_file", &mut self.key_file);
        reader.read(&section, "server_name", &mut self.server_name);
    }
}

/// A type that can be read from a value.
pub(super) trait FromYaml: Sized {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong>;

    /// Reads an element of a list. It may stand for several values, if the type has such a form.
    fn read_several(
        reader: &mut Reader<'_>,
        value: &Value,
        path: &[PathStep],
    ) -> Result<Vec<Self>, Wrong> {
        Self::read(reader, value, path).map(|one| vec![one])
    }
}

/// The values of one element of a list.
struct Several<T>(Vec<T>);

impl<T: FromYaml> FromYaml for Several<T> {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        T::read_several(reader, value, path).map(Several)
    }
}

/// Shows the value in the file, for an error. A URL may hold a password, so it is not shown.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains("://") => "a URL".into(),
        Value::String(text) => format!("'{text}'"),
        Value::Number(number) => number.to_string(),
        other => kind(other).into(),
    }
}

impl FromYaml for Duration {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Duration, Wrong> {
        let wanted = "a duration with its unit, as 50ms, 10s, 5m or 7d,";
        value.as_str().and_then(units::duration).ok_or(Wrong::Wanted(wanted))
    }
}

/// A duration, or `off`.
impl FromYaml for Option<Duration> {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        let wanted = "a duration with its unit, as 50ms, 10s, 5m or 7d, or off,";
        match value {
            Value::Bool(false) => Ok(None),
            Value::String(text) if text == "off" => Ok(None),
            _ => Duration::read(reader, value, path).map(Some).map_err(|_| Wrong::Wanted(wanted)),
        }
    }
}

words! {
    LockNotify: "pubsub or stream",
    "pubsub" => LockNotify::PubSub,
    "stream" => LockNotify::Stream,
}

words! {
    OnLost: "error, close, push or ignore",
    "error" => OnLost::Error,
    "close" => OnLost::Close,
    "push" => OnLost::Push,
    "ignore" => OnLost::Ignore,
}

words! {
    Option<OnDisconnect>: "release or expire",
    "release" => Some(OnDisconnect::Release),
    "expire" => Some(OnDisconnect::Expire),
}

/// A size in bytes.
impl FromYaml for usize {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<usize, Wrong> {
        match value {
            Value::Number(number) => number.as_u64().and_then(|n| usize::try_from(n).ok()),
            Value::String(text) => units::size(text),
            _ => None,
        }
        .ok_or(Wrong::Wanted("a number or a size, as 512, 64kb or 1mb,"))
    }
}

/// A number, or `auto`.
impl FromYaml for Option<usize> {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        match value {
            Value::String(text) if text == "auto" => Ok(None),
            _ => usize::read(reader, value, path)
                .map(Some)
                .map_err(|_| Wrong::Wanted("a number, or auto,")),
        }
    }
}

impl FromYaml for f64 {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<f64, Wrong> {
        // A value from ${NAME} is text.
        let text = || value.as_str().and_then(|text| text.parse().ok());
        value.as_f64().or_else(text).ok_or(Wrong::Wanted("a number, as 0.01,"))
    }
}

impl FromYaml for bool {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<bool, Wrong> {
        // A value from ${NAME} is text, and so are redis.conf's yes and no.
        let text = || match value.as_str() {
            Some("true" | "yes") => Some(true),
            Some("false" | "no") => Some(false),
            _ => None,
        };
        value.as_bool().or_else(text).ok_or(Wrong::Wanted("true or false"))
    }
}

impl FromYaml for String {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<String, Wrong> {
        value.as_str().map(str::to_owned).ok_or(Wrong::Wanted("text"))
    }
}

/// The name of a file.
impl FromYaml for Option<PathBuf> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let name = value.as_str().filter(|name| !name.is_empty());
        name.map(|name| Some(name.into())).ok_or(Wrong::Wanted("the name of a file"))
    }
}

/// The path of a Unix socket, or `off`.
impl FromYaml for Option<SocketPath> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        match value {
            Value::Bool(false) => Ok(None),
            Value::String(text) if text == "off" => Ok(None),
            Value::String(text) if text.starts_with('/') => Ok(Some(SocketPath(text.into()))),
            _ => Err(Wrong::Wanted("the path of a socket, from /, or off,")),
        }
    }
}

/// The name that a server's certificate must be for.
impl FromYaml for Option<String> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let name = value.as_str().filter(|name| super::tls_files::server_name(name).is_some());
        name.map(|name| Some(name.into())).ok_or(Wrong::Wanted("a host name or an IP address"))
    }
}

/// The values of tls-auth-clients in redis.conf, and YAML's `true` and `false`.
impl FromYaml for Option<AuthClients> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        match value {
            Value::Bool(true) => Ok(Some(AuthClients::Yes)),
            Value::Bool(false) => Ok(Some(AuthClients::No)),
            _ => match value.as_str() {
                Some("yes") => Ok(Some(AuthClients::Yes)),
                Some("no") => Ok(Some(AuthClients::No)),
                Some("optional") => Ok(Some(AuthClients::Optional)),
                _ => Err(Wrong::Wanted("yes, no or optional")),
            },
        }
    }
}

/// Most ports of one range in `listen`.
const MOST_PORTS: u16 = 1000;

/// Reads `host:first-last` as the address with the first port, and the last port. Returns `None` for any
/// other text.
fn port_range(text: &str) -> Option<(SocketAddr, u16)> {
    let (first, last) = text.rsplit_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// The addresses of a range of ports.
fn addresses((first, last): (SocketAddr, u16)) -> Result<impl Iterator<Item = SocketAddr>, Wrong> {
    if first.port() == 0 || last < first.port() || last - first.port() >= MOST_PORTS {
        let what = format!(
            "is no range of ports: write the first, a dash and the last, {MOST_PORTS} of them at most"
        );
        return Err(Wrong::Because(what));
    }
    Ok((first.port()..=last).map(move |port| SocketAddr::new(first.ip(), port)))
}

/// An address, or a mapping with more settings.
///
/// `127.0.0.1:7100-7105` stands for six listeners.
impl FromYaml for Listener {
    fn read_several(
        reader: &mut Reader<'_>,
        value: &Value,
        path: &[PathStep],
    ) -> Result<Vec<Listener>, Wrong> {
        let Value::Mapping(mapping) = value else {
            let range = value.as_str().and_then(port_range);
            return match range {
                Some(range) => addresses(range).map(|all| all.map(Listener::plain).collect()),
                None => Listener::read(reader, value, path).map(|one| vec![one]),
            };
        };
        let range = mapping.get("address").and_then(Value::as_str).and_then(port_range);
        let Some(range) = range else {
            return Listener::read(reader, value, path).map(|one| vec![one]);
        };
        let all = addresses(range)?;
        let mut first = mapping.clone();
        first.insert("address".into(), range.0.to_string().into());
        let listener = Listener::read(reader, &Value::Mapping(first), path)?;
        Ok(all.map(|address| Listener { address, ..listener.clone() }).collect())
    }

    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Listener, Wrong> {
        let Value::Mapping(_) = value else {
            return SocketAddr::read(reader, value, path).map(Listener::plain);
        };
        let before = reader.problems.len();
        let section = reader.mapping(value, path.to_vec(), LISTENER_KEYS);
        let mut address = None::<SocketAddr>;
        if let Some(value) = section.get("address") {
            address = reader.value(value, &section.path("address"));
        } else {
            reader.problem(&section.path("address"), "is missing; write it as 127.0.0.1:6380");
        }
        let mut tls = None;
        if section.get("tls").is_some() {
            let section = reader.section(&section, "tls", SERVER_KEYS);
            tls = reader.server_tls(&section);
        }
        let mut proxy_protocol = false;
        reader.read(&section, "proxy_protocol", &mut proxy_protocol);
        let share = section.get("share");
        let share = share.and_then(|value| reader.value(value, &section.path("share")));
        match address {
            Some(address) if reader.problems.len() == before => {
                Ok(Listener { address, tls, proxy_protocol, share })
            }
            _ => Err(Wrong::Told),
        }
    }
}

impl FromYaml for SocketAddr {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<SocketAddr, Wrong> {
        value
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or(Wrong::Wanted("an address and a port, as 127.0.0.1:6380 or [::1]:6380,"))
    }
}

/// An address, or `off`.
impl FromYaml for Option<SocketAddr> {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        let wanted = "an address and a port, as 127.0.0.1:9380, or off,";
        match value {
            Value::Bool(false) => Ok(None),
            Value::String(text) if text == "off" => Ok(None),
            _ => SocketAddr::read(reader, value, path).map(Some).map_err(|_| Wrong::Wanted(wanted)),
        }
    }
}

/// The value may hold a password, so no error repeats it.
impl FromYaml for RedisUrl {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<RedisUrl, Wrong> {
        value.as_str().ok_or(Wrong::Wanted("a URL"))?.parse().map_err(Wrong::Because)
    }
}

/// A list. A single element counts as a list of one.
impl<T: FromYaml> FromYaml for Vec<T> {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Vec<T>, Wrong> {
        let Value::Sequence(elements) = value else {
            return T::read_several(reader, value, path);
        };
        let mut all = Vec::new();
        for (index, element) in elements.iter().enumerate() {
            let mut path = path.to_vec();
            path.push(PathStep::Index(index));
            let several = reader.value(element, &path);
            all.extend(several.into_iter().flat_map(|Several(some)| some));
        }
        Ok(all)
    }
}
