//! The JSON Schema of the configuration, by which editors complete keys and mark mistakes (`lockgate manual --schema`).
//!
//! The sections of `settings` make theirs from their tables of keys; here are the types of their values. A schema
//! cannot say what values mean together, nor what a URL or a pattern may be: `lockgate check` does.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::{
    AdminConfig, AdoptConfig, AdoptMode, AuthClients, BlindPolicy, ClientTls, Config, DataConfig,
    FlushPolicy, GuardsConfig, LISTENER_KEYS, Listener, LockNode, LongTtlPolicy, NoQuorumPolicy,
    ScriptOp, ScriptUnit, SocketPath, UnknownPolicy, admin, adopt, adopt_scripts, data, guards,
    lock_node,
    permits::{self, PermitRule},
    tls_files::{CLIENT_KEYS, SERVER_KEYS},
};

/// The dialect of JSON Schema that YAML language servers read.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";
/// What stands in the annotated file is what a key has by default.
const ANNOTATED: &str = include_str!("../../config/lockgate.yaml");
const DURATION: &str = "[0-9]+(us|ms|s|m|h|d)";
const SIZE: &str = "[0-9]+([kKmMgG]?[bB]?)";
const REDIS_URL: &str = "(rediss?|unix|redis\\+unix)://.+";
const ADDRESS: &str = ".+:[0-9]+(-[0-9]+)?";
const DIGEST: &str = "[0-9a-fA-F]{40}";

/// A type of values in the file, as JSON Schema describes it.
pub(super) trait ValueShape {
    fn shape() -> Json;
}

/// Returns the schema of the whole file, with each key's default.
pub fn schema() -> Json {
    let mut all = Config::shape();
    let file = serde_yaml::from_str::<Json>(ANNOTATED).unwrap_or_default();
    defaults(&mut all, &file);
    if let Some(top) = all.as_object_mut() {
        top.insert("$schema".into(), DIALECT.into());
        top.insert("title".into(), "The configuration of Lockgate".into());
    }
    all
}

/// Adds the value that each key has in `file`. A section has none of its own: its keys have.
fn defaults(shape: &mut Json, file: &Json) {
    let (Some(properties), Some(values)) =
        (shape.get_mut("properties").and_then(Json::as_object_mut), file.as_object())
    else {
        return;
    };
    for (key, property) in properties {
        let Some(value) = values.get(key) else { continue };
        match property.get("properties") {
            Some(_) if value.as_object().is_some_and(|keys| !keys.is_empty()) => {
                defaults(property, value);
            }
            _ => property["default"] = value.clone(),
        }
    }
}

/// The schema of a mapping that has only these keys.
pub(super) fn object(properties: Map<String, Json>, required: &[&str]) -> Json {
    let mut shape = json!({ "type": "object", "additionalProperties": false });
    shape["properties"] = Json::Object(properties);
    if !required.is_empty() {
        shape["required"] = json!(required);
    }
    shape
}

/// The schema of one of these words.
pub(super) fn words(words: &[&str]) -> Json {
    any([json!({ "enum": words }), variable()])
}

fn mapping(keys: &[&str], required: &[&str], shape: impl Fn(&str) -> Json) -> Json {
    object(keys.iter().map(|key| ((*key).to_owned(), shape(key))).collect(), required)
}

fn any(shapes: impl Into<Vec<Json>>) -> Json {
    json!({ "anyOf": shapes.into() })
}

/// Text that is all of `pattern`, or has a variable of the environment, which may stand for anything.
fn text(pattern: &str) -> Json {
    json!({ "type": "string", "pattern": format!("^({pattern})$|\\$\\{{") })
}

fn variable() -> Json {
    json!({ "type": "string", "pattern": "\\$\\{" })
}

fn or_off(shape: Json) -> Json {
    any([shape, json!({ "enum": ["off", false] })])
}

/// One, or a list: a list of one may be written as its element.
fn list_of(shape: Json) -> Json {
    any([shape.clone(), json!({ "type": "array", "items": shape })])
}

impl ValueShape for bool {
    fn shape() -> Json {
        any([json!({ "type": "boolean" }), words(&["yes", "no", "true", "false"])])
    }
}

impl ValueShape for usize {
    fn shape() -> Json {
        any([json!({ "type": "integer", "minimum": 0 }), text(SIZE)])
    }
}

impl ValueShape for Option<usize> {
    fn shape() -> Json {
        any([usize::shape(), json!({ "const": "auto" })])
    }
}

impl ValueShape for f64 {
    fn shape() -> Json {
        any([json!({ "type": "number" }), text("[0-9.eE+-]+")])
    }
}

impl ValueShape for String {
    fn shape() -> Json {
        json!({ "type": "string" })
    }
}

impl ValueShape for Duration {
    fn shape() -> Json {
        text(DURATION)
    }
}

impl ValueShape for Option<Duration> {
    fn shape() -> Json {
        or_off(Duration::shape())
    }
}

impl ValueShape for Option<SocketPath> {
    fn shape() -> Json {
        or_off(text("/.*"))
    }
}

impl<T: ValueShape> ValueShape for Vec<T> {
    fn shape() -> Json {
        list_of(T::shape())
    }
}

impl ValueShape for Option<AuthClients> {
    fn shape() -> Json {
        any([json!({ "type": "boolean" }), words(&["yes", "no", "optional"])])
    }
}

impl ValueShape for ClientTls {
    fn shape() -> Json {
        mapping(CLIENT_KEYS, &[], |_| String::shape())
    }
}

impl ValueShape for Listener {
    fn shape() -> Json {
        let tls = mapping(SERVER_KEYS, &["cert_file", "key_file"], |key| match key {
            "auth_clients" => <Option<AuthClients>>::shape(),
            _ => String::shape(),
        });
        let with_more = mapping(LISTENER_KEYS, &["address"], |key| match key {
            "tls" => tls.clone(),
            "proxy_protocol" | "share" => bool::shape(),
            _ => text(ADDRESS),
        });
        any([text(ADDRESS), with_more])
    }
}

impl ValueShape for AdminConfig {
    fn shape() -> Json {
        let listen = || or_off(text(ADDRESS));
        let with_more = mapping(admin::KEYS, &[], |key| match key {
            "listen" => listen(),
            "peers" => list_of(text("http://.+")),
            "hosts" => <Vec<String>>::shape(),
            _ => String::shape(),
        });
        any([listen(), with_more])
    }
}

/// The schema of a key of a Redis that Sentinels, a name or a cluster lead to.
fn of_redis(key: &str) -> Json {
    match key {
        "cluster" | "sentinels" => list_of(text("[^/@]+")),
        "tls" | "sentinel_tls" => bool::shape(),
        "url" | "primary" => text(REDIS_URL),
        "announce" => or_off(String::shape()),
        "fronts" => json!({
            "type": "object",
            "additionalProperties": { "type": "integer", "minimum": 0, "maximum": 65_535 },
        }),
        "shards" => usize::shape(),
        _ => String::shape(),
    }
}

impl ValueShape for DataConfig {
    fn shape() -> Json {
        any([text(REDIS_URL), mapping(data::DATA_KEYS, &[], of_redis)])
    }
}

impl ValueShape for LockNode {
    fn shape() -> Json {
        any([text(REDIS_URL), mapping(lock_node::KEYS, &[], of_redis)])
    }
}

impl ValueShape for PermitRule {
    fn shape() -> Json {
        mapping(permits::RULE_KEYS, &["keys", "n"], |key| match key {
            "n" => usize::shape(),
            _ => String::shape(),
        })
    }
}

impl ValueShape for GuardsConfig {
    fn shape() -> Json {
        let rule = mapping(guards::RULE_KEYS, &["keys", "lock"], |key| match key {
            "policy" => guards::Policy::shape(),
            _ => String::shape(),
        });
        let rules = list_of(rule);
        let with_more = mapping(guards::KEYS, &[], |key| match key {
            "rules" => rules.clone(),
            "flush" => guards::Flush::shape(),
            "wait_at" => guards::WaitAt::shape(),
            "replica_timeout" => Duration::shape(),
            _ => usize::shape(),
        });
        any([rules, with_more])
    }
}

impl ValueShape for AdoptConfig {
    fn shape() -> Json {
        let script =
            mapping(adopt_scripts::SCRIPT_KEYS, &["digest", "op", "token", "replies"], |key| {
                match key {
                    "digest" => text(DIGEST),
                    "op" => <Option<ScriptOp>>::shape(),
                    "unit" => ScriptUnit::shape(),
                    "replies" => json!({ "type": "array", "minItems": 4, "maxItems": 4 }),
                    _ => usize::shape(),
                }
            });
        list_of(mapping(adopt::RULE_KEYS, &["keys"], |key| match key {
            "mode" => AdoptMode::shape(),
            "blind" => BlindPolicy::shape(),
            "unknown" => UnknownPolicy::shape(),
            "no_ttl" => any([words(&["refuse", "session"]), text(DURATION)]),
            "long_ttl" => LongTtlPolicy::shape(),
            "no_quorum" => NoQuorumPolicy::shape(),
            "flush" => FlushPolicy::shape(),
            "scripts" => list_of(script.clone()),
            _ => String::shape(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each value that is no mapping, with the path to it.
    fn leaves(shape: &Json, path: &str, all: &mut Vec<(String, Json)>) {
        for branch in shape.get("anyOf").and_then(Json::as_array).into_iter().flatten() {
            leaves(branch, path, all);
        }
        if let Some(items) = shape.get("items") {
            leaves(items, path, all);
        }
        for (key, property) in
            shape.get("properties").and_then(Json::as_object).into_iter().flatten()
        {
            all.push((format!("{path}{key}"), property.clone()));
            leaves(property, &format!("{path}{key}."), all);
        }
    }

    #[test]
    fn each_key_of_the_schema_says_what_it_may_be_and_what_it_is_by_default() {
        let mut all = Vec::new();
        leaves(&schema(), "", &mut all);
        assert!(all.len() > 120, "{}", all.len());
        for (path, shape) in &all {
            let says = |word| shape.get(word).is_some();
            assert!(["type", "enum", "anyOf"].into_iter().any(says), "{path}: {shape}");
        }
        let of = |path: &str| &all.iter().find(|(it, _)| it == path).unwrap().1;
        assert_eq!(of("locks.max_ttl")["default"], "60s");
        assert_eq!(of("maxclients")["default"], 10_000);
        let told = of("locks.max_ttl")["description"].as_str().unwrap();
        assert!(told.starts_with("The longest TTL that a client may ask for. Other"), "{told}");
        for (path, shape) in all.iter().filter(|(path, _)| path.starts_with("locks.")) {
            let is_key = path.matches('.').count() == 1;
            let has = shape["description"].as_str().is_some_and(|told| !told.contains(['[', '`']));
            assert!(!is_key || has, "{path}: {shape}");
        }
    }
}
