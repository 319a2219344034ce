//! The configuration: any text is accepted or refused. Errors name lines that exist and show no secret; an accepted
//! text makes sense.

use std::time::Duration;

use lockgate::config::{Config, Endpoint, LockNode, RedisUrl};

/// A text that is part of every password and of some variables.
const SECRET: &str = "hunter2";

/// Returns a variable's value. It follows from the first letter of the name, so that any text can have variables.
fn environment(name: &str) -> Option<String> {
    Some(match name.as_bytes().first()? {
        b'U' => format!("redis://me:{SECRET}@127.0.0.1:7000"),
        b'D' => "5s".into(),
        b'N' => "7".into(),
        b'A' => "127.0.0.1:7001".into(),
        b'S' => SECRET.into(),
        b'B' => format!("redis://{SECRET}"),
        _ => return None,
    })
}

/// Checks the text of a configuration.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    // A text that can name a file can name one that never ends.
    if text.contains("file") || text.to_lowercase().contains(SECRET) {
        return;
    }
    // Reading the system's certificates for each input would take all of the time.
    if text.contains("rediss:") {
        let _ = text.parse::<RedisUrl>();
        return;
    }
    if let Ok(url) = text.parse::<RedisUrl>() {
        is_the_same_when_shown(&url);
    }
    match Config::parse(&text, "a.yaml", &environment) {
        Ok(config) => is_sensible(&config),
        Err(errors) => {
            assert!(!errors.problems.is_empty());
            // YAML has several line ends.
            let breaks = text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
            let lines = 1 + breaks - text.matches("\r\n").count();
            let mut before = 0;
            for problem in &errors.problems {
                let line = problem.line.expect("a text has lines");
                assert!((1..=lines).contains(&line), "{lines} lines, {problem:?}");
                assert!(line >= before, "{errors:?}");
                assert!(!problem.what.is_empty());
                before = line;
            }
            let shown = errors.to_string();
            assert_eq!(shown.lines().count(), errors.problems.len(), "{shown}");
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}

fn is_the_same_when_shown(url: &RedisUrl) {
    if let Endpoint::Tcp { .. } = url.endpoint {
        let again: RedisUrl = format!("redis://{url}").parse().unwrap();
        assert_eq!((&again.endpoint, again.db), (&url.endpoint, url.db));
    }
}

/// Checks what the rest of the program relies on.
fn is_sensible(config: &Config) {
    assert!(!config.listen.is_empty());
    assert!(config.maxclients > 0);
    assert!(config.barrier_buffer >= 1024);
    assert!(config.data.fixed().is_none_or(|data| data.db == 0));
    assert!(!config.connect_timeout.is_zero());
    assert!(config.tcp_keepalive >= Duration::from_secs(1));
    assert!(config.tcp_keepalive < Duration::from_secs(32_768));
    assert!(config.io_threads.is_none_or(|threads| (1..=128).contains(&threads)));
    let locks = &config.locks;
    assert!(locks.nodes.len() % 2 == 1);
    assert!((0.0..0.5).contains(&locks.drift_factor));
    assert!(locks.default_ttl <= locks.max_ttl && !locks.default_ttl.is_zero());
    assert!(locks.fence_ttl >= locks.max_ttl);
    assert!(locks.node_timeout <= locks.max_ttl && !locks.node_timeout.is_zero());
    assert!(locks.node_silence >= locks.node_timeout);
    assert!(!locks.max_wait.is_zero() && locks.max_waiters > 0 && locks.node_queue > 0);
    assert!(locks.max_key > 0 && locks.max_token >= 32);
    // Redis's own limit for times, in ms, to which the clock is added.
    for time in [locks.max_ttl, locks.fence_ttl, locks.max_wait] {
        assert!(i64::try_from(time.as_millis()).is_ok(), "{time:?}");
    }
    for url in config.data.fixed().into_iter().chain(locks.nodes.iter().filter_map(LockNode::fixed))
    {
        is_the_same_when_shown(url);
        assert!(!format!("{config:?}").contains("me:hunter2"), "{url}");
    }
}
