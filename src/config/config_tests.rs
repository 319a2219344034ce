//! Examples of the configuration: what is read, and what is refused at which line.

use std::time::Duration;

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
    let mut expected = Config::default();
    expected.locks.nodes_left_out = false;
    assert_eq!(parse(ANNOTATED).unwrap(), expected);
    let sections = [
        Config::KEYS,
        LogConfig::KEYS,
        settings::MetricsConfig::KEYS,
        LocksConfig::KEYS,
        LISTENER_KEYS,
        tls_files::SERVER_KEYS,
        tls_files::CLIENT_KEYS,
        guards::KEYS,
        guards::RULE_KEYS,
        adopt::RULE_KEYS,
        adopt_scripts::SCRIPT_KEYS,
        permits::RULE_KEYS,
    ];
    for key in sections.concat() {
        // Keys without a default are in a comment.
        let stands =
            |line: &str| line.trim_start_matches([' ', '#', '-']).starts_with(&format!("{key}:"));
        assert!(ANNOTATED.lines().any(stands), "{key} is not in config/lockgate.yaml");
    }
}

#[test]
fn only_a_key_without_a_default_is_left_out_of_the_annotated_file() {
    let file: serde_yaml::Value = serde_yaml::from_str(ANNOTATED).unwrap();
    let left_out = |section: &serde_yaml::Value, keys: &[&'static str]| -> Vec<&str> {
        keys.iter().copied().filter(|key| section.get(key).is_none()).collect()
    };
    assert!(left_out(&file, Config::KEYS).is_empty());
    assert!(left_out(&file["log"], LogConfig::KEYS).is_empty());
    assert!(left_out(&file["metrics"], settings::MetricsConfig::KEYS).is_empty());
    assert_eq!(left_out(&file["locks"], LocksConfig::KEYS), ["on_disconnect"]);
}

#[test]
fn the_patterns_of_metrics_are_few() {
    let keys = |count| {
        let all: Vec<String> = (0..count).map(|n| format!("k{n}:*")).collect();
        parse(&format!("metrics: {{keys: {all:?}}}"))
    };
    assert_eq!(keys(32).unwrap().metrics.keys.len(), 32);
    assert!(keys(33).unwrap_err().contains("metrics.keys: has more than 32 patterns"));
    assert_eq!(parse("metrics: {keys: 'job:*'}").unwrap().metrics.keys, ["job:*"]);
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
    assert_eq!(config.locks.nodes[1].login().password, Some("p@:/s$".into()));
    assert_eq!((config.barrier_buffer, config.maxclients), (65_536, 7));
    assert_eq!((config.log.level.as_str(), config.log.format.as_str()), ("debug", "json"));
    let config = parse(
        "listen: [127.0.0.1:1, '[::1]:2']\nadmin: off\nlocks: {prefix: 'a$$b', node_timeout: 20ms}",
    )
    .unwrap();
    assert_eq!((config.listen.len(), config.admin.listen), (2, None));
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
            "f.yaml:12: zzz: unknown key; known here are listen, allow_open, admin, data, share, send_proxy_protocol, tls, connect_timeout, \
             tcp_keepalive, maxclients, max_clients_per_address, max_connect_rate, \
             first_byte_timeout, io_threads, barrier_buffer, shutdown_delay, shutdown_grace, upgrade_socket, \
             upgrade_grace, log, metrics, locks, guards, adopt",
        ]
    );
}

#[test]
fn guards_are_a_list_of_rules_or_stand_beside_settings() {
    let rule = |keys: &str, lock: &str, policy| GuardRule {
        keys: Pattern::new(keys),
        lock: Template::new(lock).unwrap(),
        policy,
    };
    let rules = vec![
        rule("account:*", "account:{1}", Policy::Enforce),
        rule("{u*}:[ab]$", "{{1}}", Policy::Audit),
    ];
    let list = "- {keys: 'account:*', lock: 'account:{1}'}\n- keys: '{u*}:[ab]$$'\n  lock: \
                '{{1}}'\n  policy: audit\n";
    let default = GuardsConfig { rules: rules.clone(), ..GuardsConfig::default() };
    assert_eq!((default.max_command, default.flush), (128 << 20, Flush::Refuse));
    assert_eq!(parse(&format!("guards:\n{list}")).unwrap().guards, default);
    let text = format!(
        "guards:\n  max_command: 64kb\n  flush: allow\n  replicas: 2\n  replica_timeout: 1s\n  \
         wait_at: write\n  rules:\n  {}",
        list.replace('\n', "\n  ")
    );
    let expected = GuardsConfig {
        rules,
        max_command: 64 << 10,
        flush: Flush::Allow,
        replicas: 2,
        replica_timeout: Duration::from_secs(1),
        wait_at: WaitAt::Write,
    };
    assert_eq!(parse(&text).unwrap().guards, expected);
    // A list of one may be written as its element.
    let one = [rule("a", "b", Policy::Enforce)];
    for text in ["guards: {keys: a, lock: b}", "guards: {rules: {keys: a, lock: b}}"] {
        assert_eq!(parse(text).unwrap().guards.rules, one, "{text}");
    }
    for none in ["guards:", "guards: []", "guards: {}", "guards: {rules: []}"] {
        assert_eq!(parse(none).unwrap(), Config::default(), "{none}");
    }
}

#[test]
fn guards_that_seem_alike_but_do_not_contradict_are_taken() {
    for text in [
        // A key that both rules match needs both locks.
        "guards: [{keys: 'a:*', lock: 'a:{1}'}, {keys: 'a:*:b', lock: all}]",
        "guards: [{keys: 'a:*', lock: a}, {keys: 'b:*', lock: a}]",
        "guards: [{keys: '[^l]*:balance', lock: '{1}'}]",
        "guards: [{keys: 'locks:*', lock: 'l{1}'}]",
        "guards: [{keys: 'lock:*:data', lock: '{1}:lock'}]",
        "guards: [{keys: 'a*', lock: '{1}'}, {keys: 'lockgate', lock: 'lockgate:x'}]",
        "{guards: [{keys: 'lock:*', lock: '{1}'}], locks: {prefix: 'l:'}}",
        "guards: {max_command: 512mb}",
    ] {
        assert!(parse(text).is_ok(), "{text}: {:?}", parse(text));
    }
}

#[test]
fn the_rule_that_is_wrong_is_named_with_its_line_in_either_form() {
    let rules = "- keys: a\n  lock: {}\n- keys: 'x*'\n  lock: '{1}'\n- keys: 'x*'\n  policy: maybe\n  \
                 lock: '{2}'\n- lock: '}'\n- keys: '*'\n  lock: y\n";
    let expected = [
        ("2", "[0].lock: a mapping where the key of a lock"),
        ("5", "[2].keys: is there twice, as in guards[1]; keep one rule"),
        ("6", "[2].policy: 'maybe' where"),
        ("7", "[2].lock: there is no {2}"),
        ("8", "[3].lock: a '}' without"),
        ("8", "[3].keys: is missing"),
        ("9", "[4].keys: also matches keys of locks themselves, 'lock:*'"),
        ("9", "[4].keys: also matches Lockgate's own keys"),
    ];
    for (before, name) in [("guards:\n", "guards"), ("guards:\n rules:\n", "guards.rules")] {
        let indent = |line: &str| format!("  {line}\n");
        let errors = errors(&(before.to_owned() + &rules.lines().map(indent).collect::<String>()));
        let lines = before.lines().count();
        let expected = expected.map(|(line, what)| {
            let line = line.parse::<usize>().unwrap() + lines;
            format!("f.yaml:{line}: {name}{}", what.replace("guards[", &format!("{name}[")))
        });
        assert_eq!(errors.len(), expected.len(), "{errors:#?}");
        for (error, expected) in errors.iter().zip(&expected) {
            assert!(error.starts_with(expected), "{error} does not begin with {expected}");
        }
    }
    // No other value is checked against one that could not be read.
    let errors = errors("{guards: [{keys: 'lock:*', lock: '{1}'}], locks: {prefix: 5}}");
    assert_eq!(errors.len(), 1, "{errors:?}");
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
        ("listen: ['0.0.0.0:1', '127.0.0.1:1']", "127.0.0.1:1 and 0.0.0.0:1 are one port"),
        ("listen: ['127.0.0.1:1', '0.0.0.0:1']", "0.0.0.0:1 and 127.0.0.1:1 are one port"),
        ("listen: ['[::]:1', '10.0.0.1:1']", "10.0.0.1:1 and [::]:1 are one port"),
        ("{listen: '0.0.0.0:1', admin: '127.0.0.1:1'}", "127.0.0.1:1 and 0.0.0.0:1 (listen)"),
        ("listen: '[::]:9380'", "127.0.0.1:9380 and [::]:9380 (listen) are one port"),
        ("maxclients: 0", "lets nobody in"),
        ("first_byte_timeout: 0s", "first_byte_timeout: must be longer than 0"),
        ("max_connect_rate: fast", "'fast' where a number"),
        ("upgrade_socket: run/x.sock", "'run/x.sock' where the path of a socket, from /, or off,"),
        ("upgrade_grace: 0", "0 where a duration with its unit"),
        ("io_threads: 0", "auto or from 1 to 128"),
        ("io_threads: many", "'many' where a number, or auto, is wanted"),
        ("tcp_keepalive: 1ms", "at least 1s"),
        ("tcp_keepalive: 32768s", "at most 9h"),
        ("locks: {node_silence: 1d}", "at most 9h"),
        ("locks: {max_key: 1gb}", "512mb"),
        ("locks: {max_token: 513mb}", "512mb"),
        ("data: redis://127.0.0.1:6380", "this proxy itself"),
        ("data: redis://localhost:6380", "this proxy itself"),
        ("data: redis://LocalHost:6380", "this proxy itself"),
        ("data: redis://[::ffff:127.0.0.1]:6380", "this proxy itself"),
        ("{listen: '0.0.0.0:1', data: 'redis://127.0.0.1:1'}", "this proxy itself"),
        ("{listen: '[::]:1', data: 'redis://[::1]:1'}", "this proxy itself"),
        ("locks: {nodes: [redis://a, redis://127.0.0.1:6380, redis://c]}", "this proxy itself"),
        ("data: !env redis://a", "a tag"),
        ("locks: {nodes: [!env redis://a]}", "a tag"),
        ("log: {level: loud}", "no level"),
        ("log: {format: xml}", "no format"),
        ("log: {locks: some}", "log.locks: neither off nor all"),
        ("metrics: {keys: ['a*', '']}", "metrics.keys: a pattern must have 1 to 256 bytes"),
        ("metrics: {keys: [other]}", "'other' stands for locks that no pattern matches"),
        ("metrics: {key: a}", "did you mean keys"),
        ("data: redis://a/3", "SELECT"),
        ("locks: {max_wait: 0s}", "locks.max_wait: must be longer than 0"),
        ("locks: {max_waiters: 0}", "locks.max_waiters: 0 lets nobody wait"),
        ("locks: {permits: 8}", "locks.permits: 8 where a rule with keys and n, as {keys:"),
        ("locks: {permits: {n: 8}}", "locks.permits.keys: is missing; which families"),
        ("locks: {permits: {keys: a}}", "locks.permits.n: is missing; how many permits"),
        ("locks: {permits: {keys: a, n: 0}}", "locks.permits.n: must be between 1 and 256"),
        ("locks: {permits: {keys: a, n: 257}}", "locks.permits.n: must be between 1 and 256"),
        ("locks: {permits: [{keys: a, n: 2}, {keys: a, n: 3}]}", "locks.permits: has 'a' twice"),
        (
            "locks: {permits: {keys: 'a:*', n: 2}}\ndata: {cluster: 'a:1'}",
            "locks.permits: of a cluster, all permits of a family must be in one slot: give 'a:*' a hash tag",
        ),
        ("locks: {max_hold: 1s}", "locks.max_hold: 1s is shorter than locks.default_ttl (10s)"),
        ("locks: {notify: shout}", "'shout' where pubsub or stream is wanted"),
        ("locks: {notify: stream}", "locks.notify: stream is for a Redis Cluster that is the only"),
        ("locks: {max_hold: soon}", "a duration with its unit, as 50ms, 10s, 5m or 7d, or off,"),
        ("locks: {on_lost: panic}", "'panic' where error, close, push or ignore is wanted"),
        ("locks: {on_disconnect: keep}", "'keep' where release or expire is wanted"),
        ("locks: {default_ttl: 99ms}", "locks.default_ttl: must be at least 100ms"),
        ("adopt: 5", "adopt: 5 where a rule with keys is wanted"),
        ("adopt: [{lock: a}]", "adopt[0].keys: is missing; which keys are locks?"),
        ("adopt: [{keys: ''}]", "adopt[0].keys: is empty; it must match keys"),
        (
            "adopt: {keys: a, mode: off}",
            "adopt.mode: 'off' where audit, bridge or enforce is wanted",
        ),
        ("adopt: {keys: a, blind: never}", "'never' where as-redis, own-only or refuse is wanted"),
        ("adopt: {keys: a, unknown: yes}", "adopt.unknown: 'yes' where refuse or forward is"),
        (
            "adopt: {keys: a, no_ttl: 30}",
            "30 where refuse, session, or a duration with its unit, as 10s,",
        ),
        ("adopt: {keys: a, no_ttl: 5ms}", "adopt.no_ttl: must be at least 10ms"),
        ("adopt: {keys: a, no_ttl: 2m}", "adopt.no_ttl: 120s is longer than locks.max_ttl (60s)"),
        ("adopt: {keys: a, long_ttl: cut}", "adopt.long_ttl: 'cut' where refuse or cap is wanted"),
        ("adopt: {keys: a, flush: yes}", "adopt.flush: 'yes' where keep or free is wanted"),
        (
            "adopt: [{keys: 'a:*', lock: '{1}', flush: free}, {keys: 'b:*'}]",
            "adopt[1].lock: can make the same lock as adopt[0], so that flush: free could not tell",
        ),
        (
            "adopt: {keys: '*:*', lock: 'x{1}', flush: free}",
            "adopt.lock: cannot be turned back into the key, as flush: free must",
        ),
        (
            "guards: {keys: 'a:*', lock: b}\nadopt: {keys: 'l:*', flush: free}",
            "adopt.flush: must be keep beside guards, which FLUSHDB would empty too",
        ),
        ("adopt: {keys: a, policy: audit}", "adopt.policy: unknown key"),
        ("adopt: {keys: 'a:*', lock: '{2}'}", "there is no {2}: keys has 1 '*' to take it from"),
        ("adopt: [{keys: a}, {keys: a}]", "adopt[1].keys: is there twice, as in adopt[0]"),
        ("adopt: [{keys: 'a[]'}]", "no key matches it"),
        (
            "guards: {keys: 'a:*', lock: b}\nadopt: {keys: '*:x'}",
            "adopt.keys: also matches keys that a guard is about ('a:*')",
        ),
        ("guards: 5", "guards: 5 where a rule with keys and lock is wanted"),
        ("guards: [x]", "guards[0]: 'x' where a rule with keys and lock is wanted"),
        ("guards: {rules: , flush: allow}", "guards.rules: nothing where a rule"),
        ("guards: {ruels: []}", "guards.ruels: unknown key; did you mean rules?"),
        ("guards: {max_command: 65535}", "guards.max_command: must be from 64kb to 512mb"),
        ("guards: {max_command: 513mb}", "guards.max_command: must be from 64kb to 512mb"),
        (
            "guards: {replicas: 17, rules: {keys: a, lock: b}}",
            "guards.replicas: must be from 0 to 16",
        ),
        (
            "guards: {replicas: 1}",
            "guards.replicas: there are no guards.rules: no LOCK has a fence that replicas could acknowledge",
        ),
        (
            "guards: {replicas: 1, replica_timeout: 0ms, rules: {keys: a, lock: b}}",
            "guards.replica_timeout: must be from 1ms to 1m",
        ),
        (
            "guards: {wait_at: write, rules: {keys: a, lock: b}}",
            "guards.wait_at: waits for no replica while guards.replicas is 0; how many are there?",
        ),
        ("guards: {flush: never}", "guards.flush: 'never' where refuse or allow is wanted"),
        ("guards: {flush: no}", "guards.flush: 'no' where refuse or allow is wanted"),
        ("guards: [{keys: a, lock: b, polcy: audit}]", "did you mean policy?"),
        ("guards: [{keys: a, lock: b, policy: off}]", "where enforce or audit is wanted"),
        ("guards: [{keys: a}]", "guards[0].lock: is missing"),
        ("guards: {lock: a}", "guards.keys: is missing"),
        ("guards: [{keys: [a], lock: b}]", "a list where a pattern of keys, as \"account:*\", is"),
        ("guards: [{keys: a, lock: 5}]", "5 where the key of a lock, as \"account:{1}\", is"),
        ("guards: [{keys: '', lock: b}]", "guards[0].keys: is empty"),
        ("guards: [{keys: a, lock: ''}]", "guards[0].lock: is empty"),
        ("guards: [{keys: 'a*', lock: '{0}'}]", "from {1}"),
        ("guards: [{keys: 'a*', lock: 'b{1'}]", "a '{' without its '}'"),
        ("guards: [{keys: 'a*', lock: '{2}'}]", "there is no {2}: keys has one '*'"),
        ("guards: [{keys: 'a**', lock: '{2}'}]", "there is no {2}: keys has one '*'"),
        ("guards: [{keys: 'a*b*', lock: '{1}{3}'}]", "there is no {3}: keys has 2 '*'"),
        ("guards: [{keys: 'a\\*[*]?', lock: '{1}'}]", "there is no {1}: keys has no '*'"),
        (
            "guards: [{keys: a, lock: b}, {keys: a, lock: c, policy: audit}]",
            "guards[1].keys: is there twice, as in guards[0]",
        ),
        ("guards: [{keys: 'a[]', lock: b}]", "guards[0].keys: no key matches it"),
        (
            "guards: [{keys: 'lock:*', lock: 'a\\*{1}'}]",
            "'lock:a\\**' (locks.prefix and guards[0].lock)",
        ),
        ("guards: [{keys: 'lock:a:5', lock: b}, {keys: c*, lock: 'a:{1}'}]", "guards[1].lock)"),
        ("{guards: [{keys: 'a*', lock: 'a{1}'}], locks: {prefix: ''}}", "'a*' (locks.prefix and"),
        ("guards: [{keys: 'lockgat*', lock: b}]", "Lockgate's own keys, 'lockgate:*'"),
        ("guards: [{keys: '*:guard:*', lock: b}]", "Lockgate's own keys, 'lockgate:*'"),
        (
            "{guards: [{keys: a, lock: 'gate:{x}'}], locks: {prefix: lock}}",
            "guards[0].lock: LOCK refuses keys that begin with 'lockgate:'",
        ),
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
        "{listen: ['127.0.0.1:0', '0.0.0.0:0', '127.0.0.2:1', '10.0.0.1:1'], admin: '0.0.0.0:2'}",
        "listen: ['0.0.0.0:1', '[::1]:1', '0.0.0.0:2']",
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
    for key in Config::KEYS.iter().filter(|key| !["log", "locks"].contains(key)) {
        refuses_without_repeating(&format!("{key}: '${{SECRET}}'"), &secret);
    }
    for key in LogConfig::KEYS {
        refuses_without_repeating(&format!("log: {{{key}: '${{SECRET}}'}}"), &secret);
    }
    for key in LocksConfig::KEYS.iter().filter(|key| **key != "prefix") {
        refuses_without_repeating(&format!("locks: {{{key}: '${{SECRET}}'}}"), &secret);
    }
    for key in guards::RULE_KEYS {
        refuses_without_repeating(&format!("guards: [{{{key}: '${{SECRET}}'}}]"), &secret);
    }
    for key in guards::KEYS {
        refuses_without_repeating(&format!("guards: {{{key}: '${{SECRET}}'}}"), &secret);
    }
    refuses_without_repeating("data: '${SECRET}://x'", &secret);
    refuses_without_repeating("listen: ['${SECRET}']", &secret);
    // Addresses, which errors repeat.
    refuses_without_repeating("data: {primary: 'unix:///${SECRET}'}", &secret);
    refuses_without_repeating("data: {cluster: ['${SECRET}:1', '${SECRET}:1']}", &secret);
    let nodes = "'redis://${SECRET}', 'redis://${SECRET}', 'redis://c'";
    refuses_without_repeating(&format!("locks: {{nodes: [{nodes}]}}"), &secret);
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

/// Certificates as files, made once for a test.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let dir = tempfile::tempdir().unwrap();
        let files = Files { dir };
        for name in ["a", "b"] {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
            files.write(&format!("{name}.crt"), &made.cert.pem());
            files.write(&format!("{name}.key"), &made.signing_key.serialize_pem());
        }
        files.write("garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        files.write("empty", "");
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// Parses a text in which `@/` stands for the directory.
    fn parse(&self, text: &str) -> Result<Config, String> {
        parse(&text.replace('@', self.dir.path().to_str().unwrap()))
    }

    fn errors(&self, text: &str) -> Vec<String> {
        self.parse(text).unwrap_err().lines().map(str::to_owned).collect()
    }
}

#[test]
fn listeners_with_and_without_tls_stand_side_by_side() {
    let files = Files::new();
    let config = files
        .parse(
            "listen:\n  - 127.0.0.1:1\n  - address: 127.0.0.1:2\n    tls:\n      cert_file: @/a.crt\n      \
             key_file: @/a.key\n  - address: 127.0.0.1:3\n    tls: {cert_file: @/a.crt, key_file: @/a.key, \
             ca_cert_file: @/b.crt}\n  - address: 127.0.0.1:4\n    tls: {cert_file: @/a.crt, key_file: \
             @/a.key, ca_cert_file: @/b.crt, auth_clients: optional}\n  - {address: '[::1]:5'}\n",
        )
        .unwrap();
    let asked = |index: usize| config.listen[index].tls.as_ref().map(|tls| tls.auth_clients);
    assert_eq!(config.listen.len(), 5);
    assert_eq!(asked(0), None);
    assert_eq!(asked(1), Some(AuthClients::No));
    assert_eq!(asked(2), Some(AuthClients::Yes), "who names a CA wants certificates");
    assert_eq!(asked(3), Some(AuthClients::Optional));
    assert_eq!(asked(4), None);
    let config = files.parse("listen: {address: 127.0.0.1:2}\n").unwrap();
    assert_eq!(config.listen, [Listener::plain("127.0.0.1:2".parse().unwrap())]);
}

#[test]
fn a_listener_may_share_or_not_whatever_others_do() {
    let all = |text: &str| {
        let config = parse(&format!("{text}\nlocks: {{nodes: ['redis://10.0.0.1']}}\n")).unwrap();
        let shares: Vec<bool> = config.listen.iter().map(|it| config.shares(it)).collect();
        assert_eq!(config.shares_any(), shares.contains(&true), "{text}");
        shares
    };
    let listen = "listen: [127.0.0.1:1, {address: '127.0.0.1:2', share: yes}, {address: '127.0.0.1:3', share: no}]";
    assert_eq!(all(listen), [false, true, false]);
    assert_eq!(all(&format!("{listen}\nshare: yes")), [true, true, false]);
    assert_eq!(all("listen: {address: '127.0.0.1:1', share: no}\nshare: yes"), [false]);
    assert_eq!(all("listen: {address: '127.0.0.1:1-3', share: yes}"), [true; 3]);
    assert_eq!(
        errors("listen: {address: '127.0.0.1:1', share: some}"),
        ["f.yaml:1: listen.share: 'some' where true or false is wanted"]
    );
    let told = errors("listen: {address: '127.0.0.1:1', share: yes}\nsend_proxy_protocol: yes");
    assert!(
        told[0].contains("send_proxy_protocol: clients with share: yes have no connection"),
        "{told:?}"
    );
    let none = "listen: {address: '127.0.0.1:1', share: no}\nshare: yes\nsend_proxy_protocol: yes";
    assert_eq!(all(none), [false]);
}

#[test]
fn a_balancer_is_expected_where_that_is_said() {
    let config = parse(
        "listen: [127.0.0.1:1, {address: '127.0.0.1:2', proxy_protocol: yes}, {address: '127.0.0.1:3', \
         proxy_protocol: no}]\nsend_proxy_protocol: yes\nlocks: {nodes: ['redis://10.0.0.1']}\n",
    )
    .unwrap();
    assert_eq!(
        config.listen.iter().map(|l| l.proxy_protocol).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert!(config.send_proxy_protocol);
    assert_eq!(
        errors("listen: {address: '127.0.0.1:1', proxy_protocol: v2}"),
        ["f.yaml:1: listen.proxy_protocol: 'v2' where true or false is wanted"]
    );
}

#[test]
fn a_listener_whose_header_anybody_could_forge_is_noted() {
    let notes = |address: &str, proxy_protocol: &str| {
        let listen = format!("listen: {{address: '{address}', proxy_protocol: {proxy_protocol}}}");
        let text = format!("{listen}\nlocks: {{nodes: ['redis://a', 'redis://b', 'redis://c']}}");
        parse(&text).unwrap().notes()
    };
    for (address, proxy_protocol) in
        [("127.0.0.1:1", "yes"), ("[::1]:1", "yes"), ("0.0.0.0:1", "no")]
    {
        assert!(notes(address, proxy_protocol).is_empty(), "{address}");
    }
    for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
        let [note] = <[String; 1]>::try_from(notes(address, "yes")).unwrap();
        assert!(note.starts_with(&format!("{address} (listen, proxy_protocol)")), "{note}");
    }
}

#[test]
fn a_lock_node_cannot_be_a_data_node_that_demands_a_header() {
    let problem = "127.0.0.1:6379 is the data node too, which is sent a PROXY header";
    assert!(errors("send_proxy_protocol: yes")[0].contains(problem));
    for fine in [
        "send_proxy_protocol: no",
        "send_proxy_protocol: yes\nlocks: {nodes: ['redis://127.0.0.1:6378']}",
    ] {
        parse(fine).unwrap();
    }
}

#[test]
fn a_lock_node_that_is_the_data_node_is_noted_whatever_both_are() {
    let sentinels = |name: &str| format!("{{sentinels: [s:1, t:2, u:3], master: {name}}}");
    let [one, other] = ["one", "other"].map(sentinels);
    for (data, node, is_noted) in [
        ("redis://a:1", "redis://a:1", true),
        ("redis://a:1", "redis://a:2", false),
        ("{primary: 'redis://a:1'}", "redis://a:1", true),
        ("{cluster: ['a:1', 'b:2']}", "{cluster: ['c:3', 'b:2']}", true),
        ("{cluster: ['a:1', 'b:2']}", "{cluster: ['c:3', 'b:4']}", false),
        ("{cluster: ['a:1', 'b:2']}", "redis://b:2", true),
        ("redis://a:1", "{cluster: ['a:1', 'b:2']}", true),
        (&one, &one, true),
        (&one, &other, false),
        (&one, "redis://s:1", false),
    ] {
        let listen = "listen: ['127.0.0.1:7100-7105']\n";
        let text = format!("{listen}data: {data}\nlocks: {{nodes: [{node}]}}\n");
        let notes = parse(&text).unwrap().notes();
        let noted = notes.iter().filter(|note| note.contains("is the data node too")).count();
        assert_eq!(noted, usize::from(is_noted), "{data} {node}: {notes:?}");
    }
}

#[test]
fn lock_nodes_are_trusted_as_the_data_node_unless_they_have_a_section_of_their_own() {
    let files = Files::new();
    let config = files
        .parse("tls: {ca_cert_file: @/a.crt}\ndata: rediss://a\nlocks: {nodes: [rediss://b:1]}\n")
        .unwrap();
    assert!(config.data.uses_tls() && config.locks.nodes[0].login().tls);
    assert_eq!(config.locks.tls, config.tls);
    let config = files
        .parse(
            "tls: {ca_cert_file: @/a.crt, server_name: r}\ndata: rediss://a\nlocks:\n  nodes: \
             [rediss://b:1]\n  tls: {ca_cert_file: @/b.crt, cert_file: @/a.crt, key_file: @/a.key}\n",
        )
        .unwrap();
    assert_eq!(config.tls.server_name.as_deref(), Some("r"));
    assert_eq!(config.locks.tls.server_name, None);
    assert!(config.locks.tls.cert_file.is_some());
}

#[test]
fn certificates_that_cannot_be_used_are_named_with_their_line() {
    let files = Files::new();
    let listener = |rest: &str| format!("listen:\n- address: 127.0.0.1:2\n  tls:\n{rest}");
    let cases = [
        (
            listener("    cert_file: @/none.crt\n    key_file: @/a.key\n"),
            "f.yaml:4: listen[0].tls.cert_file: cannot be read: No such file or directory",
        ),
        (
            listener("    cert_file: @/a.crt\n    key_file: @/empty\n"),
            "f.yaml:5: listen[0].tls.key_file: there is no private key in PEM in it",
        ),
        (
            listener("    cert_file: @/a.key\n    key_file: @/a.key\n"),
            "f.yaml:4: listen[0].tls.cert_file: there is no certificate in PEM in it",
        ),
        (
            listener("    cert_file: @/a.crt\n    key_file: @/b.key\n"),
            "f.yaml:5: listen[0].tls.key_file: is not the key of cert_file",
        ),
        (
            listener("    cert_file: @/garbage\n    key_file: @/a.key\n"),
            "f.yaml:4: listen[0].tls.cert_file: its first certificate cannot be used",
        ),
        (
            listener(
                "    cert_file: @/a.crt\n    key_file: @/a.key\n    ca_cert_file: @/garbage\n",
            ),
            "f.yaml:6: listen[0].tls.ca_cert_file: a certificate in it is damaged",
        ),
        (listener("    key_file: @/a.key\n"), "f.yaml:3: listen[0].tls.cert_file: is missing"),
        (
            listener("    cert_file: @/a.crt\n    key_file: @/a.key\n    auth_clients: yes\n"),
            "f.yaml:3: listen[0].tls.ca_cert_file: is missing",
        ),
        (
            listener("    cert_file: @/a.crt\n    key_file: @/a.key\n    auth_clients: never\n"),
            "f.yaml:6: listen[0].tls.auth_clients: 'never' where yes, no or optional is wanted",
        ),
        (
            listener(
                "    cert_file: @/a.crt\n    key_file: @/a.key\n    ca_cert_file: @/a.crt\n    \
                 auth_clients: no\n",
            ),
            "f.yaml:6: listen[0].tls.ca_cert_file: has no effect",
        ),
        (
            listener("    certfile: @/a.crt\n    cert_file: @/a.crt\n    key_file: @/a.key\n"),
            "f.yaml:4: listen[0].tls.certfile: unknown key; did you mean cert_file?",
        ),
        (listener("    {}\n"), "f.yaml:3: listen[0].tls.cert_file: is missing"),
        (
            "listen: [{tls: {cert_file: @/a.crt, key_file: @/a.key}}]".into(),
            "f.yaml:1: listen[0].address: is missing",
        ),
        ("listen: [{address: nowhere}]".into(), "f.yaml:1: listen[0].address: 'nowhere' where"),
        ("tls: {ca_cert_file: @/a.crt}".into(), "f.yaml:1: tls: has no effect"),
        ("locks: {tls: {ca_cert_file: @/a.crt}}".into(), "f.yaml:1: locks.tls: has no effect"),
        (
            "data: rediss://a\nlocks:\n  tls: {ca_cert_file: @/a.crt}\n".into(),
            "f.yaml:3: locks.tls: has no effect: no URL of locks.nodes",
        ),
        (
            "data: rediss://a\ntls:\n  ca_cert_file: @/none\n".into(),
            "f.yaml:3: tls.ca_cert_file: cannot be read: No such file or directory",
        ),
        (
            "data: rediss://a\ntls:\n  ca_cert_file: @/a.crt\n  cert_file: @/a.crt\n".into(),
            "f.yaml:2: tls.key_file: is missing",
        ),
        (
            "data: rediss://a\ntls:\n  ca_cert_file: @/a.crt\n  key_file: @/a.key\n".into(),
            "f.yaml:2: tls.cert_file: is missing",
        ),
        (
            "data: rediss://a\ntls: {ca_cert_file: @/a.crt, server_name: 'a b'}\n".into(),
            "f.yaml:2: tls.server_name: 'a b' where a host name or an IP address is wanted",
        ),
        ("data: rediss://a_b..c\n".into(), "f.yaml:1: data: no certificate can be for this host"),
    ];
    for (text, expected) in cases {
        let errors = files.errors(&text);
        let count = if text.contains("{}") { 2 } else { 1 };
        assert!(errors.len() == count && errors[0].starts_with(expected), "{text}: {errors:#?}");
    }
}

#[test]
fn a_file_named_by_the_environment_is_never_repeated() {
    let secret = |_: &str| Some("/hunter2".to_owned());
    for key in tls_files::SERVER_KEYS {
        let text = format!("listen: [{{address: '127.0.0.1:1', tls: {{{key}: '${{SECRET}}'}}}}]");
        refuses_without_repeating(&text, &secret);
    }
    for key in tls_files::CLIENT_KEYS.iter().filter(|key| **key != "server_name") {
        let text = format!("data: rediss://a\ntls: {{{key}: '${{SECRET}}'}}");
        refuses_without_repeating(&text, &secret);
    }
}

#[test]
fn an_error_at_the_end_is_on_a_line_that_is_there() {
    for text in ["a: [1", "\na: [1\n", "\r\na: [1\r\n", "# x\r  \ra: \"", "\u{feff}\nb: {"] {
        let errors = Config::parse(text, "a.yaml", &|_| None).unwrap_err();
        let last = locate::lines(text);
        let line = errors.problems[0].line;
        assert!(line.is_some_and(|line| (1..=last).contains(&line)), "{text:?} {errors}");
    }
}

#[test]
fn a_problem_takes_one_line_whatever_it_repeats() {
    let text = "\"a\\nb\": 1\nmaxclients: \"\\e[2J\n\n  x\"\nlisten: ['\r\n\r\n1']\n";
    let errors = Config::parse(text, "a.yaml", &|_| None).unwrap_err();
    let shown = errors.to_string();
    assert_eq!((shown.lines().count(), errors.problems.len()), (3, 3), "{shown}");
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
}

#[test]
fn of_thousands_of_problems_a_hundred_are_told() {
    let text: String = (0..1000).map(|n| format!("k{n}: 1\n")).collect();
    let errors = errors(&text);
    assert_eq!(errors.len(), 101);
    assert!(errors[100].ends_with("these are 100 problems, and there are more"), "{}", errors[100]);
}

#[test]
fn a_file_that_is_too_long_or_too_deep_is_refused_before_it_is_parsed() {
    let refused = |text: &str| parse(text).unwrap_err().to_string();
    let deep = "listen: a\n{a: ".to_owned() + &"{a: ".repeat(100_000);
    assert!(
        refused(&deep).contains(":2: brackets are nested deeper than 64"),
        "{}",
        refused(&deep)
    );
    assert!(refused(&"[".repeat(900_000)).contains("nested deeper"));
    assert!(!refused(&"[]{}".repeat(1000)).contains("nested deeper"));
    let long = "#".repeat(1 << 20);
    assert!(!parse(&long).is_err_and(|error| error.to_string().contains("is longer")));
    assert!(refused(&(long + "#")).contains(":1: is longer than 1048576 bytes"));
}

#[test]
fn scripts_of_adoption_are_read_and_checked() {
    let digest = "c3f8721CBB97f72bc19e972846bd7aaf91901658";
    let script =
        |keys: &str| format!("adopt: {{keys: a, scripts: [{{digest: '{digest}', {keys}}}]}}");
    let extend = script("op: extend, token: 2, ttl: 1, unit: s, replies: [0, 1, '1', nil]");
    let expected = AdoptScript {
        digest:
            *b"\xc3\xf8\x72\x1c\xbb\x97\xf7\x2b\xc1\x9e\x97\x28\x46\xbd\x7a\xaf\x91\x90\x16\x58",
        op: ScriptOp::Extend,
        token: 2,
        ttl: Some(1),
        unit: ScriptUnit::Seconds,
        replies: ["0", "1", "1", "nil"],
    };
    assert_eq!(parse(&extend).unwrap().adopt.rules[0].scripts, [expected]);
    let release = "op: release, token: 1, replies: [-1, +OK, +OK, 'false']";
    let [read] = parse(&script(release)).unwrap().adopt.rules[0].scripts[..] else { panic!() };
    assert_eq!((read.ttl, read.replies), (None, ["-1", "+OK", "+OK", "false"]));
    let short =
        "adopt: {keys: a, scripts: {digest: c3f8, op: release, token: 1, replies: [0,1,1,0]}}";
    let digits = short.replace("c3f8", &"1".repeat(40));
    let twice = format!(
        "adopt: {{keys: a, scripts: [{{digest: '{digest}', {release}}}, {{digest: \
         '{digest}', {release}}}]}}"
    );
    for (text, expected) in [
        (short, "'c3f8' where a digest, 40 hexadecimal digits in quotes, is wanted"),
        (&digits, "where a digest, 40 hexadecimal digits in quotes, is wanted"),
        (&twice, "adopt.scripts: the digest of number 2 is there twice"),
        ("adopt: {keys: a, scripts: [x]}", "'x' where a script with digest, op, token and replies"),
        (&script("op: take, token: 1, replies: [0, 1, 1, 0]"), "where acquire, acquire-reentrant"),
        (
            &script("op: release, replies: [0, 1, 1, 0]"),
            "token: is missing; where in ARGV does the",
        ),
        (&script("op: release, token: 0, replies: [0, 1, 1, 0]"), "places in ARGV count from 1"),
        (&script("op: release, token: 1"), "replies: is missing; what does the script answer?"),
        (
            &script("op: release, token: 1, replies: [0, 1, 1]"),
            "a list where a list of four replies",
        ),
        (
            &script("op: release, token: 1, replies: [0, 1, 1, true]"),
            "where a list of four replies",
        ),
        (&script("op: release, token: 1, ttl: 2, replies: [0, 1, 1, 0]"), "a release has no TTL"),
        (&script("op: extend, token: 1, replies: [0, 1, 1, 0]"), "ttl: is missing; where in ARGV"),
        (
            &script("op: extend, token: 1, ttl: 2, unit: min, replies: [0, 1, 1, 0]"),
            "'min' where ms or s is wanted",
        ),
        (
            &script("op: acquire, token: 1, ttl: 2, replies: [1, 1, 1, 0]"),
            "acquire refuses its own token as any other",
        ),
    ] {
        let errors = errors(text);
        assert!(errors.iter().any(|error| error.contains(expected)), "{text}: {errors:?}");
    }
}

#[test]
fn rules_of_adoption_are_read_and_wide_ones_noted() {
    let config = parse("adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: audit\n").unwrap();
    let [rule] = &config.adopt.rules[..] else { panic!("{:?}", config.adopt) };
    assert_eq!(rule.keys.as_str(), "lock:*");
    assert_eq!(rule.lock.as_ref().unwrap().as_str(), "{1}");
    assert_eq!(rule.options, AdoptOptions::default());
    let options = parse(
        "locks: {max_ttl: 2m}\nadopt: {keys: a, blind: own-only, unknown: forward, no_ttl: 2m, \
         long_ttl: cap, no_quorum: close, flush: free}",
    );
    let expected = AdoptOptions {
        blind: BlindPolicy::OwnOnly,
        unknown: UnknownPolicy::Forward,
        no_ttl: NoTtlPolicy::For(Duration::from_secs(120)),
        long_ttl: LongTtlPolicy::Cap,
        no_quorum: NoQuorumPolicy::Close,
        flush: FlushPolicy::Free,
    };
    assert_eq!(options.unwrap().adopt.rules[0].options, expected);
    let session = parse("adopt: {keys: 'a:*', no_ttl: session}").unwrap();
    assert_eq!(session.adopt.rules[0].options.no_ttl, NoTtlPolicy::Session);
    let is_noted = |note: &String| note.starts_with("adopt[0].no_ttl is session: ");
    assert!(session.notes().iter().any(is_noted), "{:?}", session.notes());
    let nodes = "locks: {nodes: ['redis://a', 'redis://b', 'redis://c']}";
    let notes = |keys: &str| parse(&format!("{nodes}\nadopt: {{keys: '{keys}'}}")).unwrap().notes();
    for narrow in ["lock:*", "redlock:*", "@simple-redis-mutex:lock-*", "*:mutex", "*_lock"] {
        assert!(notes(narrow).is_empty(), "{narrow}");
    }
    for (wide, expected) in [
        ("*", "'*', matches every key"),
        ("lock*", "also matches 'lock-signal:*', with which python-redis-lock"),
        ("lock.*", "also matches 'lock.event:*', with which walrus"),
        ("*lock*", "also matches 'lock.event:*', with which walrus"),
        ("@simple-redis-mutex:*", "'@simple-redis-mutex:locks-releases', with which simple-"),
    ] {
        assert!(notes(wide).iter().any(|note| note.contains(expected)), "{:?}", notes(wide));
    }
}

#[test]
fn a_bridged_rule_must_tell_the_key_of_each_lock() {
    let bridge = |rules: &str| errors(&format!("adopt: [{rules}]"));
    for fine in [
        "{keys: 'lock:*', mode: bridge}",
        "{keys: 'lock:*', lock: '{1}', mode: bridge}",
        "{keys: 'a:[0-9]', mode: bridge}, {keys: 'a:*', mode: bridge}",
        "{keys: 'a:*:b', lock: 'c:{1}:d', mode: bridge}, {keys: 'x:*', lock: 'y:{1}'}",
        "{keys: 'a:*', lock: 'same'}, {keys: 'b:*', lock: 'same', mode: enforce}",
    ] {
        assert_eq!(parse(&format!("adopt: [{fine}]")).map(drop), Ok(()), "{fine}");
    }
    let one_way = "cannot be turned back into the key, as mode bridge must";
    let same = "can make the same lock as adopt[0], so that mode bridge could not tell whose key";
    for (rules, expected) in [
        ("{keys: 'lock:*', lock: 'one', mode: bridge}", one_way),
        ("{keys: 'a:*:*', lock: '{1}', mode: bridge}", one_way),
        ("{keys: 'a:*', lock: '{1}{1}', mode: bridge}", one_way),
        ("{keys: 'a:*:*', lock: '{1}:{2}', mode: bridge}", one_way),
        ("{keys: 'a:?*', lock: '{1}', mode: bridge}", one_way),
        ("{keys: 'a:*', lock: '{1}', mode: bridge}, {keys: 'b:*', lock: '{1}'}", same),
        ("{keys: 'a:*', lock: '{1}'}, {keys: 'b:*', lock: '{1}', mode: bridge}", same),
        ("{keys: 'a:*', lock: 'b:{1}'}, {keys: 'b:*', mode: bridge}", same),
    ] {
        let errors = bridge(rules);
        assert!(errors.iter().any(|error| error.contains(expected)), "{rules}: {errors:?}");
    }
}

#[test]
fn a_data_node_that_may_be_another_is_noted_where_replicas_acknowledge_nothing() {
    let rules = "rules: {keys: 'a:*', lock: 'a:{1}'}";
    let notes = |text: &str| {
        let notes = parse(text).unwrap().notes();
        notes.into_iter().filter(|note| note.starts_with("guards.")).collect::<Vec<_>>()
    };
    let followed = "data: {primary: redis://p}\n";
    assert_eq!(notes(&format!("guards: {{{rules}}}")), [""; 0]);
    let [none] = &notes(&format!("{followed}guards: {{{rules}}}"))[..] else { panic!("one") };
    assert!(none.starts_with("guards.replicas is 0, and data may become another"), "{none}");
    let [one] = &notes(&format!("guards: {{replicas: 1, {rules}}}"))[..] else { panic!("one") };
    assert!(one.contains("must be the number of all replicas that may be promoted"), "{one}");
    let audited = "rules: {keys: 'a:*', lock: 'a:{1}', policy: audit}";
    assert_eq!(notes(&format!("{followed}guards: {{{audited}}}")), [""; 0]);
    let [idle] = &notes(&format!("guards: {{replicas: 1, {audited}}}"))[..] else { panic!("one") };
    assert!(idle.contains("waits for nothing"), "{idle}");
}

#[test]
fn admin_is_an_address_or_has_a_token_that_no_error_repeats() {
    let token = "0123456789abcdefghij";
    let environment = |name: &str| (name == "TOKEN").then(|| token.to_owned());
    let read = |text: &str| Config::parse(text, "f.yaml", &environment);
    assert_eq!(read("").unwrap().admin, AdminConfig::default());
    let plain = read("admin: 127.0.0.1:1").unwrap().admin;
    assert_eq!((plain.listen, plain.token), ("127.0.0.1:1".parse().ok(), None));
    assert_eq!(read("admin: off").unwrap().admin.listen, None);
    for text in
        ["{listen: 127.0.0.1:1, token: '${TOKEN}'}", "{listen: off, token: '0123456789abcdefghij'}"]
    {
        let admin = read(&format!("admin: {text}")).unwrap().admin;
        assert_eq!(admin.listen, if text.contains("off") { None } else { plain.listen });
        assert!(!format!("{admin:?}").contains(token), "{admin:?}");
        let read = admin.token.unwrap();
        assert!(read.is(token.as_bytes()) && !read.is(b"") && !read.is(&token.as_bytes()[1..]));
        assert!(!read.is(b"0123456789abcdefghiJ") && !read.is(b"0123456789abcdefghijk"));
    }
    assert_eq!(
        read("admin: {token: '${TOKEN}'}").unwrap().admin.listen,
        AdminConfig::default().listen
    );
    let peers = |text: &str| read(&format!("admin: {{peers: {text}}}")).unwrap().admin.peers;
    assert_eq!(peers("[]"), []);
    let [only] = &peers("http://10.0.0.2:9380")[..] else { panic!("one") };
    assert_eq!(only.to_string(), "http://10.0.0.2:9380");
    let nowhere = read("admin: {listen: off, peers: http://a:1}").unwrap().notes();
    assert!(
        nowhere.iter().any(|note| note.contains("admin.peers are shown nowhere")),
        "{nowhere:?}"
    );
    assert!(!read("admin: {peers: http://a:1}").unwrap().notes().concat().contains("admin"));
    let list = |count: u8| {
        (1..=count).map(|n| format!("http://10.0.0.{n}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(peers(&format!("[{}]", list(32))).len(), 32);
    let many = format!("{{peers: [{}]}}", list(33));
    for (text, error) in [
        ("{token: short-secret}", "f.yaml:1: admin.token: has 12 bytes; give 20 to 512"),
        ("{token: 'secret secret secret secret'}", "admin.token: has spaces"),
        ("{token: 12345678901234567890}", "admin.token: is not text; put it in quotes"),
        ("{token: '${MISSING}'}", "admin.token: the environment has no variable MISSING"),
        ("{listen: nowhere}", "admin.listen: 'nowhere' where an address and a port"),
        (
            "{adress: 127.0.0.1:1}",
            "admin.adress: unknown key; known here are listen, token, peers, hosts",
        ),
        (
            "{peers: [https://secret:1]}",
            "f.yaml:1: admin.peers[0]: an admin address speaks plain HTTP",
        ),
        ("{peers: {a: b}}", "admin.peers: a mapping where http://host:port is wanted"),
        (
            "{peers: ['http://a:1', 'http://b', 'http://a:1/']}",
            "admin.peers: http://a:1 is there twice",
        ),
        (
            "{peers: ['http://127.0.0.1', 'http://LOCALHOST:9380']}",
            "admin.peers: http://LOCALHOST:9380 is there twice",
        ),
        (&many, "admin.peers: names more than 32 proxies"),
        ("[127.0.0.1:1]", "admin: a list where an address and a port"),
    ] {
        let told = read(&format!("admin: {text}")).unwrap_err().to_string();
        assert!(told.contains(error), "{text}: {told}");
        assert!(!told.contains("secret") && !told.contains("1234567890"), "{told}");
    }
}

#[test]
fn one_redis_is_one_lock_node_however_it_is_spelled() {
    for (one, two) in [
        ("localhost", "127.0.0.1"),
        ("[::1]", "LocalHost:6379"),
        ("a", "A:6379"),
        ("[2001:db8::1]:7", "[2001:DB8:0:0::1]:7"),
        ("[::ffff:10.0.0.1]", "10.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
    ] {
        let text = format!("locks: {{nodes: ['redis://{one}', redis://z, 'redis://{two}']}}");
        let error = parse(&text).unwrap_err();
        assert!(error.contains("are one address; votes of one instance"), "{text}: {error}");
        let text = format!("{{data: 'redis://{one}', locks: {{nodes: ['redis://{two}']}}}}");
        let notes = parse(&text).unwrap().notes().join("\n");
        assert!(notes.contains("is the data node too"), "{text}: {notes}");
    }
    for (one, two) in [("a", "b"), ("localhost:1", "127.0.0.1:2"), ("127.0.0.1", "127.0.0.2")] {
        let text = format!("locks: {{nodes: ['redis://{one}', redis://z, 'redis://{two}']}}");
        parse(&text).unwrap();
    }
}

#[test]
fn nodes_to_come_are_as_independent_as_those_before() {
    let error = |text: &str| parse(&format!("locks: {{{text}}}")).unwrap_err();
    let one = "nodes: redis://127.0.0.1:1";
    for (list, words) in [
        ("redis://a:1, redis://b:1", "2 nodes; a majority of 2 is 2"),
        ("redis://a:1, redis://a:1, redis://b:1", "is there twice"),
        ("{sentinels: [a:1, b:1, c:1], master: m}", "from and to addresses of Redis servers alone"),
    ] {
        let found = error(&format!("{one}, next_nodes: [{list}]"));
        assert_eq!(found.lines().count(), 1, "{found}");
        assert!(found.contains("locks.next_nodes") && found.contains(words), "{found}");
    }
    let found = error(&format!("{one}, next_nodes: redis://a:1, quarantine: no"));
    assert!(found.contains("with quarantine"), "{found}");
    let next = parse(&format!("locks: {{{one}, next_nodes: redis://a:1}}")).unwrap().locks.next();
    let next = next.unwrap();
    assert_eq!(next.nodes[0].to_string(), "a:1");
    assert_eq!(next.next(), None);
}
