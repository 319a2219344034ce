//! Asks the running proxy of this configuration what it sees. Doctor looks once and from outside; the proxy
//! also knows of a node that is late at times, or of a certificate that is still in use.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    pinning,
    report::{Examined, Finding, printable},
};
use crate::{
    config::{AdoptMode, AdoptRule, Config},
    net::http_client,
    report::{
        document::{ProxyPart, StatusDocument},
        lists::{AdoptedList, AdoptedPart, PinnedList},
    },
};

/// How long the proxy may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The longest answer, in bytes.
const LONGEST_ANSWER: u64 = 256 * 1024;
/// Most problems that are told.
const MOST_PROBLEMS: usize = 64;

/// Examines the proxy at the admin address and its clients, and returns the addresses of the lock nodes that it is to
/// leave alone (LOCKGATE NODE … PAUSE). Returns `None` if none answers there.
pub(super) async fn proxy(config: &Config) -> Option<(Vec<Examined>, Vec<String>)> {
    let address = reached(config.admin.listen?);
    let StatusDocument { proxy, problems, nodes, sharing, .. } =
        ask(address, "/api/status").await?;
    let paused = nodes.into_iter().filter(|node| node.paused).map(|node| node.address).collect();
    let mut examined = examined(&address.to_string(), &proxy, &problems, env!("CARGO_PKG_VERSION"));
    if config.adopt.rules.iter().any(|rule| rule.mode.is_answered())
        && let Some(AdoptedList { adopted, .. }) = ask(address, "/api/adopted?count=1000").await
    {
        examined.findings.extend(steps(&config.adopt.rules, &adopted));
    }
    let mut all = vec![examined];
    if let Some(sharing) = sharing
        && let Some(PinnedList { pinned }) = ask(address, "/api/pinned?count=1000").await
    {
        all.push(pinning::clients(&sharing, &pinned));
    }
    Some((all, paused))
}

async fn ask<T: DeserializeOwned>(address: SocketAddr, path: &str) -> Option<T> {
    let host = address.to_string();
    let asking = http_client::get(address, &host, path, LONGEST_ANSWER);
    let answer = timeout(ANSWER_LIMIT, asking).await.ok()?.ok()?;
    serde_json::from_slice(&answer.body).ok()
}

/// Findings about rules that this file bridges or enforces and the running proxy still audits: what it has seen
/// that the step would refuse, and rules on whose keys no lock is taken ([`untaken`]).
fn steps(rules: &[AdoptRule], seen: &[AdoptedPart]) -> Vec<Finding> {
    let refused = |idiom: &&AdoptedPart| {
        let rule = rules.iter().find(|rule| rule.keys.as_str() == idiom.keys);
        let is_to_come = rule.is_some_and(|rule| rule.mode.is_answered());
        idiom.verdict == "refused" && idiom.mode == AdoptMode::Audit.as_str() && is_to_come
    };
    let finding = |idiom: &AdoptedPart| {
        let AdoptedPart { times, keys, client, idiom, because, longest_ttl_ms, .. } = idiom;
        let longest = longest_ttl_ms.map(|ttl| format!(" (longest TTL {ttl} ms)"));
        let longest = longest.unwrap_or_default();
        let what = format!(
            "a step of '{keys}' from audit has {idiom} of '{client}' refused, seen {times} times: {because}{longest}"
        );
        Finding::minor(
            printable(&what),
            "Mend that program, or the rule: LOCKGATE ADOPTED has all.",
        )
    };
    let mut findings: Vec<Finding> = seen.iter().filter(refused).map(finding).collect();
    findings.extend(rules.iter().filter_map(|rule| untaken(rule, seen)));
    findings
}

/// Finding about a rule that this file bridges or enforces and the running proxy still audits, if commands were
/// seen on its keys, but none that takes a lock.
fn untaken(rule: &AdoptRule, seen: &[AdoptedPart]) -> Option<Finding> {
    let takes = |idiom: &AdoptedPart| idiom.idiom.starts_with("acquire");
    let of_rule = || {
        let is_audited = |idiom: &&AdoptedPart| idiom.mode == AdoptMode::Audit.as_str();
        seen.iter().filter(is_audited).filter(|idiom| idiom.keys == rule.keys.as_str())
    };
    let times: u64 = of_rule().map(|idiom| idiom.times).fold(0, u64::saturating_add);
    if !rule.mode.is_answered() || times == 0 || of_rule().any(takes) {
        return None;
    }
    let keys = rule.keys.as_str();
    let what = format!("no command that takes a lock was seen on '{keys}', but {times} others");
    Some(Finding::minor(
        printable(&what),
        "See with LOCKGATE ADOPTED whether these keys are locks, before a step from audit.",
    ))
}

fn examined(host: &str, proxy: &ProxyPart, problems: &[String], version: &str) -> Examined {
    let mut findings = Vec::new();
    for problem in problems.iter().take(MOST_PROBLEMS) {
        let problem = printable(problem);
        let advice = "The running proxy sees this: docs/operations.md has what to do.";
        // Waiting needs no repair, and the verdict counts the lock nodes that wait.
        findings.push(match proxy.ready || proxy.waits {
            true => Finding::minor(problem, advice),
            false => Finding::grave(problem, advice),
        });
    }
    if proxy.version != version {
        let what = format!("it runs version {}, and this is {version}", proxy.version);
        let advice = "Restart it, or send SIGUSR2, where the new version is meant to run.";
        findings.push(Finding::minor(what, advice));
    }
    let ready = match proxy {
        ProxyPart { ready: true, .. } => "ready",
        ProxyPart { waits: true, .. } => "not ready yet",
        _ => "not ready",
    };
    let summary = format!("{}, {ready}, version {}", proxy.name, proxy.version);
    Examined { address: host.to_owned(), ..Examined::other("running proxy", summary, findings) }
}

/// The address at which this machine reaches a listener.
fn reached(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_proxy_sees_is_grave_where_it_is_not_ready() {
        let of = |ready, waits| ProxyPart {
            name: "app, pid 7".into(),
            version: "1".into(),
            ready,
            waits,
            ..ProxyPart::default()
        };
        let proxy = |ready| of(ready, false);
        let problems = ["lock node a: slow".to_owned()];
        let told = examined("127.0.0.1:9380", &proxy(true), &problems, "1");
        assert!(told.is_fit() && told.findings.len() == 1);
        assert_eq!(told.summary, "app, pid 7, ready, version 1");
        let told = examined("127.0.0.1:9380", &proxy(false), &problems, "2");
        assert!(!told.is_fit() && told.findings.len() == 2);
        assert!(told.findings[1].what.contains("it runs version 1, and this is 2"));
        let told = examined("127.0.0.1:9380", &of(false, true), &problems, "1");
        assert!(told.is_fit(), "it needs no mending");
        assert_eq!(told.summary, "app, pid 7, not ready yet, version 1");
    }

    #[test]
    fn a_step_that_refuses_what_was_seen_is_told_before() {
        let text = "adopt: [{keys: 'a:*', mode: bridge}, {keys: 'b:*', mode: audit}]";
        let rules = Config::parse(text, "f", &|_| None).unwrap().adopt.rules;
        let of = |keys: &str, verdict: &str, mode: &str| AdoptedPart {
            times: 3,
            keys: keys.into(),
            client: "old\u{1b}[2J".into(),
            idiom: "overwrite".into(),
            verdict: verdict.into(),
            because: "it sets the key".into(),
            mode: mode.into(),
            longest_ttl_ms: Some(600_000),
            ..AdoptedPart::default()
        };
        let take = AdoptedPart { idiom: "acquire".into(), ..of("a:*", "quorum", "audit") };
        let seen = [
            take,
            of("a:*", "refused", "audit"),
            of("a:*", "quorum", "audit"),
            of("a:*", "refused", "bridge"),
            of("b:*", "refused", "audit"),
        ];
        let told = steps(&rules, &seen);
        assert_eq!(told.len(), 1);
        let untaken = steps(&rules, &seen[1..]);
        assert_eq!(untaken.len(), 2);
        assert_eq!(untaken[1].what, "no command that takes a lock was seen on 'a:*', but 6 others");
        assert_eq!(
            told[0].what,
            "a step of 'a:*' from audit has overwrite of 'old[2J' refused, seen 3 times: it sets the key (longest TTL 600000 ms)"
        );
    }

    #[test]
    fn an_address_for_all_is_reached_on_loopback() {
        for (listen, expected) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(reached(listen.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
