//! The configuration by example: what is read, what is refused and where.

use super::*;

const ANNOTATED: &str = include_str!("../../config/lockgate.yaml");

fn parse(text: &str) -> Result<Config, String> {
    let environment = |name: &str| (name == "PASSWORD").then(|| "p@:/s$".to_owned());
    Config::parse(text, "f.yaml", &environment).map_err(|errors| errors.to_string())
}

fn errors(text: &str) -> Vec<String> {
    parse(text).unwrap_err().lines().map(str::to_owned).collect()
}

#[test]
fn the_annotated_file_says_every_key_and_every_default() {
    assert_eq!(parse(ANNOTATED).unwrap(), Config::default());
    for key in KEYS.iter().chain(LOG_KEYS).chain(LOCKS_KEYS) {
        let stands = |line: &str| line.trim_start().starts_with(&format!("{key}:"));
        assert!(ANNOTATED.lines().any(stands), "{key} is not in config/lockgate.yaml");
    }
}

#[test]
fn nothing_is_all_defaults() {
    for empty in ["", "# only a comment\n", "{}", "locks:\n"] {
        assert_eq!(parse(empty).unwrap(), Config::default(), "{empty:?}");
    }
}

#[test]
fn values_are_read() {
    let config = parse(
        "listen: [127.0.0.1:1, '[::1]:2']\nadmin: off\ndata: unix:///run/r.sock\nmaxclients: 7\n\
         barrier_buffer: 64kb\nlog: {level: debug, format: json}\nlocks:\n  nodes:\n    - redis://a\n    \
         - redis://u:${PASSWORD}@b:7/2\n    - redis://c\n  node_timeout: 20ms\n  prefix: ''\n",
    )
    .unwrap();
    assert_eq!(config.locks.nodes[1].password.as_deref(), Some("p@:/s$"));
    assert_eq!((config.barrier_buffer, config.maxclients), (65_536, 7));
    assert_eq!((config.log_level.as_str(), config.log_format.as_str()), ("debug", "json"));
    let config = parse(
        "listen: [127.0.0.1:1, '[::1]:2']\nadmin: off\nlocks: {prefix: 'a$$b', node_timeout: 20ms}",
    )
    .unwrap();
    assert_eq!((config.listen.len(), config.admin), (2, None));
    assert_eq!(config.locks.prefix, "a$b");
    assert_eq!(config.locks.node_timeout, Duration::from_millis(20));
}

#[test]
fn everything_wrong_is_said_at_once_with_its_line() {
    let text = "listne: 127.0.0.1:1\nadmin: nowhere\nmaxclients: many\nlocks:\n  nodes:\n    \
                - redis://a\n    - redis://u:hunter2@a:99999\n  node_timout: 5s\n  max_ttl: 60\n  \
                default_ttl: ${NOT_THERE}\n  drift_factor: 0.7\nzzz: []\n";
    assert_eq!(
        errors(text),
        [
            "f.yaml:1: listne: unknown key; did you mean listen?",
            "f.yaml:2: admin: 'nowhere' where an address and a port, as 127.0.0.1:9380, or off, is wanted",
            "f.yaml:3: maxclients: 'many' where a number or a size, as 512, 64kb or 1mb, is wanted",
            "f.yaml:7: locks.nodes[1]: the port is not a number from 1 to 65535",
            "f.yaml:8: locks.node_timout: unknown key; did you mean node_timeout?",
            "f.yaml:9: locks.max_ttl: 60 where a duration with its unit, as 50ms, 10s, 5m or 7d, is wanted",
            "f.yaml:10: locks.default_ttl: the environment has no variable NOT_THERE",
            "f.yaml:11: locks.drift_factor: 0.7 is not at least 0 and below 0.5",
            "f.yaml:12: zzz: unknown key; known here are listen, allow_open, admin, data, connect_timeout, \
             tcp_keepalive, maxclients, max_clients_per_address, max_connect_rate, \
             first_byte_timeout, io_threads, barrier_buffer, shutdown_grace, log, locks",
        ]
    );
}

#[test]
fn contradictions_are_refused_with_what_would_be_right() {
    let cases = [
        ("locks: {nodes: []}", "no lock node"),
        ("locks: {nodes: [redis://a, redis://b]}", "a majority of 2 is 2"),
        ("locks: {nodes: [redis://a, redis://b, redis://c, redis://d]}", "give 3 or 5"),
        ("locks: {nodes: [redis://a, redis://b, redis://a]}", "there twice"),
        ("locks: {default_ttl: 61s}", "longer than locks.max_ttl"),
        ("locks: {node_timeout: 7s, node_silence: 9s}", "more than a tenth"),
        ("locks: {node_timeout: 0s}", "longer than 0"),
        ("locks: {node_silence: 1ms}", "shorter than locks.node_timeout"),
        ("locks: {fence_ttl: 1s}", "a fence must be remembered longer"),
        ("locks: {drift_factor: -0.1}", "at least 0"),
        ("locks: {drift_factor: .nan}", "at least 0"),
        ("locks: {prefix: 'lockgate:x'}", "reserved"),
        ("locks: {max_token: 8}", "makes itself"),
        ("locks: {node_queue: 0}", "refuses every lock"),
        ("listen: []", "no address"),
        ("allow_open: perhaps", "'perhaps' where true or false is wanted"),
        ("allow_open: 1", "1 where true or false is wanted"),
        ("listen: [127.0.0.1:1, 127.0.0.1:1]", "twice"),
        ("listen: 127.0.0.1:9380", "two ports"),
        ("maxclients: 0", "lets nobody in"),
        ("first_byte_timeout: 0s", "first_byte_timeout: must be longer than 0"),
        ("max_connect_rate: fast", "'fast' where a number"),
        ("io_threads: 0", "auto or from 1 to 128"),
        ("io_threads: many", "'many' where a number, or auto, is wanted"),
        ("tcp_keepalive: 1ms", "at least 1s"),
        ("tcp_keepalive: 32768s", "at most 9h"),
        ("locks: {node_silence: 1d}", "at most 9h"),
        ("locks: {max_key: 1gb}", "512mb"),
        ("locks: {max_token: 513mb}", "512mb"),
        ("data: redis://127.0.0.1:6380", "this proxy itself"),
        ("data: redis://localhost:6380", "this proxy itself"),
        ("{listen: '0.0.0.0:1', data: 'redis://127.0.0.1:1'}", "this proxy itself"),
        ("{listen: '[::]:1', data: 'redis://[::1]:1'}", "this proxy itself"),
        ("locks: {nodes: [redis://a, redis://127.0.0.1:6380, redis://c]}", "this proxy itself"),
        ("data: !env redis://a", "a tag"),
        ("locks: {nodes: [!env redis://a]}", "a tag"),
        ("log: {level: loud}", "no level"),
        ("log: {format: xml}", "no format"),
        ("data: rediss://a", "TLS"),
        ("data: redis://a/3", "SELECT"),
        ("locks: {max_wait: 0s}", "locks.max_wait: must be longer than 0"),
        ("locks: {max_waiters: 0}", "locks.max_waiters: 0 lets nobody wait"),
        ("locks: {max_hold: 1s}", "locks.max_hold: 1s is shorter than locks.default_ttl (10s)"),
        ("locks: {max_hold: soon}", "a duration with its unit, as 50ms, 10s, 5m or 7d, or off,"),
        ("locks: {on_lost: panic}", "'panic' where error, close or ignore is wanted"),
        ("locks: {default_ttl: 99ms}", "locks.default_ttl: must be at least 100ms"),
        ("guards: []", "this version does not have it yet"),
        ("adopt: []", "this version does not have it yet"),
        ("tls: {}", "this version does not have it yet"),
    ];
    for (text, expected) in cases {
        let errors = errors(text);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{text}: {errors:?}");
    }
}

#[test]
fn a_redis_beside_the_proxy_is_not_the_proxy() {
    for text in [
        "data: redis://127.0.0.1:6381",
        "data: redis://127.0.0.2:6380",
        "data: redis://elsewhere:6380",
        "data: redis://[::1]:6380",
        "data: unix:///run/6380",
        "{listen: '127.0.0.2:6379', data: 'redis://localhost:6379'}",
        "{listen: '0.0.0.0:6380', data: 'redis://10.0.0.1:6380'}",
    ] {
        assert!(parse(text).is_ok(), "{text}: {:?}", parse(text));
    }
}

#[test]
fn a_mark_before_the_text_is_not_part_of_it() {
    for rest in ["maxclients: 7\n", "---\r\n# x\r\nmaxclients: 7\r\n"] {
        assert_eq!(parse(&format!("\u{feff}{rest}")).unwrap().maxclients, 7, "{rest:?}");
    }
}

#[test]
fn a_tab_that_indents_is_named() {
    for text in ["locks:\n\tmax_ttl: 5s\n", "locks:\n  max_ttl: 5s\n \tprefix: x\n"] {
        let errors = errors(text);
        assert!(errors[0].ends_with("indented with a tab: use spaces"), "{errors:?}");
    }
    assert!(!errors("listen: [\n")[0].contains("tab"));
}

#[test]
fn what_is_not_yaml_is_refused_with_its_line() {
    let broken =
        ["a: 1\n\tb: 2", "listen: [", "data: x\ndata: y", "- a", "locks: 5", "'", "a: b: c"];
    for text in broken {
        let errors = errors(text);
        assert!(errors[0].starts_with("f.yaml:"), "{text:?}: {errors:?}");
    }
}

#[test]
fn a_value_from_the_environment_is_never_repeated() {
    let secret = |_: &str| Some("hunter2".to_owned());
    for key in KEYS.iter().filter(|key| !["log", "locks"].contains(key)) {
        refuses_without_repeating(&format!("{key}: '${{SECRET}}'"), &secret);
    }
    for key in LOG_KEYS {
        refuses_without_repeating(&format!("log: {{{key}: '${{SECRET}}'}}"), &secret);
    }
    for key in LOCKS_KEYS.iter().filter(|key| **key != "prefix") {
        refuses_without_repeating(&format!("locks: {{{key}: '${{SECRET}}'}}"), &secret);
    }
    refuses_without_repeating("data: '${SECRET}://x'", &secret);
    refuses_without_repeating("listen: ['${SECRET}']", &secret);
}

fn refuses_without_repeating(text: &str, environment: Environment<'_>) {
    let error = Config::parse(text, "f.yaml", environment).unwrap_err().to_string();
    assert!(!error.contains("hunter2"), "{text}: {error}");
}

#[test]
fn a_url_at_the_wrong_key_does_not_show_its_password() {
    for key in ["listen", "admin", "connect_timeout", "maxclients"] {
        let error = errors(&format!("{key}: redis://me:hunter2@a:1")).join("");
        assert!(!error.contains("hunter2"), "{key}: {error}");
    }
    let url = "redis://me:hunter2@a:1";
    for text in [
        format!("{url}: 1"),
        format!("locks:\n  {url}:\n"),
        format!("locks:\n  nodes:\n    {url}:\n"),
        format!("{url}: 1\n{url}: 2\n"),
    ] {
        let error = errors(&text).join("");
        assert!(!error.contains("hunter2"), "{text}: {error}");
    }
}

#[test]
fn the_environment_may_give_numbers() {
    let environment = |name: &str| (name == "DRIFT").then(|| "0.02".to_owned());
    let config =
        Config::parse("locks: {drift_factor: '${DRIFT}'}", "f.yaml", &environment).unwrap();
    assert_eq!(config.locks.drift_factor, 0.02);
}

#[test]
fn what_cannot_be_read_is_not_held_against_anything_else() {
    let cases = [
        "locks: {nodes: [redis://a, redis://b:x, redis://c]}",
        "locks: {nodes: ['redis://b:x']}",
        "locks: {max_ttl: 60, default_ttl: 90s}",
        "locks: {max_ttl: 60, node_timeout: 7s, node_silence: 9s}",
        "locks: {max_ttl: 5s, default_ttl: 3}",
        "listen: [x]",
    ];
    for text in cases {
        let errors = errors(text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
    }
}

#[test]
fn a_key_given_twice_is_refused_on_its_second_line() {
    let cases = [
        ("data: redis://a\ndata: redis://b\n", "f.yaml:2: data: "),
        ("locks:\n  max_ttl: 5s\n  prefix: x\n  max_ttl: 6s\n", "f.yaml:4: locks.max_ttl: "),
        ("log: {level: info}\nlocks:\n  nodes: []\nlog:\n  level: warn\n", "f.yaml:4: log: "),
    ];
    for (text, expected) in cases {
        let errors = errors(text);
        assert!(errors[0].starts_with(expected) && errors[0].contains("twice"), "{errors:?}");
    }
}
