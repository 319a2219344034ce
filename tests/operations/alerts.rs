//! Alerts, recorded rules and the board, as a real Prometheus sees them.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockgate::{lock::Fault, tools::free_port::free_port};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_yaml::Value;

use crate::support::{
    LIMIT, Proxy, Reply, cluster::Cluster, encode, eventually, sentinel::Watched,
};

/// The unit tests of the rules, for promtool.
const UNIT_TESTS: &str = "tests/operations/alerts/rules_test.yml";
/// Metrics that a proxy has only where it follows Sentinels or a cluster, or with TLS.
const NOT_HERE: [&str; 6] = [
    "lockgate_cluster_fault",
    "lockgate_data_switches_total",
    "lockgate_lock_cluster_fault",
    "lockgate_sentinel_fault",
    "lockgate_tls_certificate_not_after_timestamp_seconds",
    "lockgate_tls_reloads_total",
];
/// The rows of the board.
const ROWS: [&str; 6] = ["Health", "Locks", "Waiting", "Guards", "Nodes", "Adoption"];

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Reads YAML, or JSON, which is YAML too.
fn parsed(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_sequence().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns all rules of a file.
fn rules(path: &str) -> Vec<Value> {
    let file = parsed(&text(path));
    list(&file["groups"]).iter().flat_map(|group| list(&group["rules"]).to_vec()).collect()
}

fn board() -> Value {
    parsed(&text("config/grafana/lockgate.json"))
}

/// Returns the board's queries, for all proxies and with a time in place of Grafana's own.
fn queries(board: &Value) -> Vec<String> {
    let targets = list(&board["panels"]).iter().flat_map(|panel| list(&panel["targets"]));
    targets
        .map(|target| {
            word(&target["expr"]).replace("$instance", ".+").replace("$__rate_interval", "1m")
        })
        .collect()
}

/// Returns the metrics of an expression with their labels, except those that Prometheus itself has recorded.
fn selectors(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (start, _) in expression.match_indices("lockgate_") {
        let rest = &expression[start..];
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let name = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if expression[..start].ends_with(':') || rest[name..].starts_with(':') {
            continue;
        }
        let labels = match rest[name..].starts_with('{') {
            true => rest[name..].find('}').unwrap() + 1,
            false => 0,
        };
        found.push(&rest[..name + labels]);
    }
    found
}

/// Returns all expressions of the rules and of the board.
fn expressions() -> Vec<String> {
    let rules = ["config/alerts.yml", "config/rules.yml"].into_iter().flat_map(rules);
    rules.map(|rule| word(&rule["expr"]).to_owned()).chain(queries(&board())).collect()
}

/// Runs promtool, and checks that it finds no fault.
fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (package prometheus)");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{arguments:?}: {}", said.concat());
}

/// A real Prometheus that scrapes one proxy, with the files of config/.
struct Prometheus {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Prometheus {
    /// Starts Prometheus, which scrapes twice a second. Alerts fire at once: the times for which a condition must
    /// last (`for`) are left to promtool.
    fn start(proxy: &Proxy) -> Prometheus {
        let mut dir = tempfile::tempdir().unwrap();
        for name in ["alerts.yml", "rules.yml"] {
            let hasty = |line: &str| match line.trim().starts_with("for: ") {
                true => "        for: 0s\n".to_owned(),
                false => format!("{line}\n"),
            };
            let rules: String = text(&format!("config/{name}")).lines().map(hasty).collect();
            fs::write(dir.path().join(name), rules).unwrap();
        }
        let admin = format!("127.0.0.1:{}", proxy.admin_port());
        let config = text("config/prometheus.yml");
        let config = config.replace("127.0.0.1:9380", &admin).replace(": 15s", ": 500ms");
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        loop {
            let port = free_port().unwrap();
            let child = Prometheus::spawn(dir.path(), port);
            let mut prometheus = Prometheus { child, port, dir };
            let mut has_ended = false;
            eventually("Prometheus is ready", || {
                has_ended = prometheus.child.try_wait().unwrap().is_some();
                has_ended || prometheus.get("/-/ready").starts_with("HTTP/1.0 200")
            });
            if !has_ended {
                return prometheus;
            }
            // Another process has taken the port.
            let said = prometheus.log();
            assert!(said.contains("address already in use"), "{said}");
            dir = std::mem::replace(&mut prometheus.dir, tempfile::tempdir().unwrap());
        }
    }

    fn spawn(dir: &Path, port: u16) -> Child {
        let argument = |name: &str, value: &Path| format!("--{name}={}", value.display());
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "prometheus", "--log.level=warn"])
            .arg(argument("config.file", &dir.join("prometheus.yml")))
            .arg(argument("storage.tsdb.path", &dir.join("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("log")).unwrap())
            .spawn()
            .expect("prometheus (package prometheus)")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Returns a page with its head, or an empty text while it cannot be fetched.
    fn get(&self, path: &str) -> String {
        let mut page = String::new();
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return page };
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // With HTTP/1.0 the answer comes in one piece.
        let sent = stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        if sent.is_err() || stream.read_to_string(&mut page).is_err() {
            page.clear();
        }
        page
    }

    /// Returns the data of an answer of the API, or null while there is none.
    fn data(&self, path: &str) -> Value {
        let page = self.get(path);
        let body = page.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert!(!body.contains("\"status\":\"error\""), "{path}: {body}");
        parsed(body)["data"].clone()
    }

    /// Counts the samples of a query, without those that are not a number.
    fn samples(&self, query: &str) -> usize {
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let data = self.data(&format!("/api/v1/query?query={query}"));
        let samples = list(&data["result"]).iter();
        samples.filter(|sample| word(&sample["value"][1]) != "NaN").count()
    }

    /// Returns the names of the alerts that fire now.
    fn firing(&self) -> BTreeSet<String> {
        let data = self.data("/api/v1/alerts");
        let firing = list(&data["alerts"]).iter().filter(|alert| word(&alert["state"]) == "firing");
        firing
            .map(|alert| {
                for told in ["summary", "description"] {
                    let told = word(&alert["annotations"][told]);
                    assert!(!told.is_empty() && !told.contains(['<', '{']), "{told}");
                }
                word(&alert["labels"]["alertname"]).to_owned()
            })
            .collect()
    }

    /// Waits until these alerts fire and no others.
    fn fires(&self, expected: &[&str]) {
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        let deadline = Instant::now() + LIMIT;
        loop {
            let firing = self.firing();
            if firing == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{firing:?} and not {expected:?}\n{}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether the alert has ever fired.
    fn has_fired(&self, alert: &str) -> bool {
        let seen = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
        self.samples(&format!("max_over_time({seen}[10m])")) > 0
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a proxy with three lock nodes, a guard and an adopt rule. A lock node that has lost its memory waits for 6
/// s.
fn deployment() -> Proxy {
    Proxy::with()
        .nodes(3)
        .locks("max_ttl: 6s")
        .locks("default_ttl: 5s")
        .locks("node_timeout: 600ms")
        .top("guards: [{keys: 'account:*', lock: 'account:{1}'}]")
        .top("adopt: [{keys: 'mutex:*', mode: enforce}]")
        .start()
}

/// Makes clients lock in all ways, wait, write under a lock, and lock as a library does.
fn traffic(proxy: &Proxy) {
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    let grant = holder.cmd(&["LOCK", "job", "PX", "5000"]).grant();
    assert_eq!(waiter.cmd(&["LOCK", "job", "PX", "5000"]), Reply::NullArray);
    waiter.cmd(&["LOCK.ATTACH", "job", &grant.token]).grant();
    holder.cmd(&["RENEW", "job"]);
    let mut next = proxy.client();
    next.send(&encode(&["LOCK", "job", "PX", "5000", "WAIT", "5000"]));
    eventually("somebody waits", || proxy.waiters() == 1);
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    next.reply().grant();
    assert_eq!(next.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    let kept = holder.cmd(&["LOCK", "kept"]).grant();
    assert_eq!(holder.cmd(&["UNLOCK", "kept", &kept.token]), Reply::Int(1));
    holder.cmd(&["LOCK", "account:1", "PX", "5000"]).grant();
    assert_eq!(holder.cmd(&["SET", "account:1", "100"]), Reply::ok());
    assert_eq!(holder.cmd(&["UNLOCK", "account:1"]), Reply::Int(1));
    assert_eq!(holder.cmd(&["SET", "mutex:1", "me", "NX", "PX", "5000"]), Reply::ok());
    assert_eq!(holder.cmd(&["DEL", "mutex:1"]), Reply::Int(1));
}

#[test]
fn each_fault_of_a_lock_node_has_a_row_in_the_runbook() {
    let rules = rules("config/alerts.yml");
    let unfit = rules.iter().find(|rule| word(&rule["alert"]) == "LockgateNodeUnfit").unwrap();
    // These faults have alerts of their own.
    let others = word(&unfit["expr"]).split("fault!~\"").nth(1).unwrap().split('"').next().unwrap();
    let runbook = text("docs/alerts.md");
    let section = runbook.split("### LockgateNodeUnfit\n").nth(1).unwrap();
    let section = section.split("\n### ").next().unwrap();
    for fault in Fault::ALL.map(Fault::as_str) {
        let is_there = section.contains(&format!("\n| `{fault}` | "));
        assert_ne!(is_there, others.split('|').any(|other| other == fault), "{fault}");
    }
}

#[test]
fn the_right_alerts_fire_while_something_fails_and_resolve_after() {
    let mut proxy = deployment();
    let prometheus = Prometheus::start(&proxy);
    traffic(&proxy);
    eventually("it is scraped", || prometheus.samples("lockgate_ready") == 1);
    prometheus.fires(&[]);
    proxy.node(0).kill().unwrap();
    prometheus.fires(&["LockgateNodeDown", "LockgateNoSpareNode"]);
    proxy.node(1).kill().unwrap();
    prometheus.fires(&["LockgateNodeDown", "LockgateNotReady", "LockgateQuorumLost"]);
    proxy.node(0).restart().unwrap();
    proxy.node(1).restart().unwrap();
    prometheus.fires(&[]);
    assert!(prometheus.has_fired("LockgateNodeWaits"));
    traffic(&proxy);
    proxy.data().kill().unwrap();
    prometheus.fires(&["LockgateDataNodeDown", "LockgateNotReady"]);
    proxy.data().restart().unwrap();
    prometheus.fires(&[]);
    proxy.kill();
    prometheus.fires(&["LockgateProxyGone"]);
    proxy.start_again();
    prometheus.fires(&[]);
    let refused = proxy.client().cmd(&["SET", "account:1", "0"]);
    assert!(refused.error().starts_with("NOTHELD"), "{refused:?}");
    prometheus.fires(&["LockgateWritesRefused"]);
}

#[test]
fn the_boards_queries_and_the_rules_find_what_they_ask_for() {
    let proxy = deployment();
    let prometheus = Prometheus::start(&proxy);
    let mut asked = queries(&board());
    assert!(asked.len() > 20, "{asked:?}");
    for expression in expressions() {
        for selector in selectors(&expression) {
            let name = selector.split('{').next().unwrap();
            if !NOT_HERE.contains(&name) && !selector.contains('$') {
                asked.push(selector.to_owned());
            }
        }
    }
    asked.sort();
    asked.dedup();
    let deadline = Instant::now() + LIMIT;
    while !asked.is_empty() {
        assert!(Instant::now() < deadline, "nothing is found by {asked:#?}");
        // A rate needs a change between two scrapes, and round trips are measured on idle nodes.
        traffic(&proxy);
        thread::sleep(Duration::from_secs(1));
        asked.retain(|query| prometheus.samples(query) == 0);
    }
}

#[test]
#[ignore = "takes long: make long"]
fn promtool_is_content_with_rules_configuration_and_metrics() {
    promtool(&["check", "rules", "config/alerts.yml", "config/rules.yml"], "");
    promtool(&["check", "config", "config/prometheus.yml"], "");
    promtool(&["test", "rules", UNIT_TESTS], "");
    let proxy = deployment();
    traffic(&proxy);
    let page = proxy.http("/metrics");
    promtool(&["check", "metrics"], page.split_once("\r\n\r\n").unwrap().1);
}

#[test]
fn promtool_is_content_with_metrics_of_tls_and_of_what_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [cert, key] = [("crt", made.cert.pem()), ("key", made.signing_key.serialize_pem())].map(
        |(name, content)| {
            fs::write(dir.path().join(name), content).unwrap();
            dir.path().join(name).display().to_string()
        },
    );
    let (watched, data, voter) = (Watched::steady(), Cluster::start(3), Cluster::start(3));
    let followed = Proxy::with().nodes(3).data_url(&watched.data(""));
    let followed = followed.tls(&format!("{{cert_file: {cert}, key_file: {key}}}")).start();
    let clusters = data.proxy("").node_urls(&[voter.voter()]).start();
    let pages = || [&followed, &clusters].map(|proxy| proxy.http("/metrics"));
    eventually("all that the other tests have not is here", || {
        let pages = pages();
        NOT_HERE.iter().all(|name| pages.iter().any(|page| page.contains(&format!("\n{name}"))))
    });
    for page in pages() {
        promtool(&["check", "metrics"], page.split_once("\r\n\r\n").unwrap().1);
    }
}

#[test]
fn each_alert_is_tested_and_has_a_place_in_the_runbook() {
    let (page, tests) = (text("docs/alerts.md"), text(UNIT_TESTS));
    let alerts = rules("config/alerts.yml");
    assert!(alerts.len() >= 15);
    for alert in &alerts {
        let name = word(&alert["alert"]);
        assert!(["critical", "warning"].contains(&word(&alert["labels"]["severity"])), "{name}");
        let annotations = &alert["annotations"];
        assert!(word(&annotations["summary"]).len() > 10, "{name}");
        assert!(word(&annotations["description"]).len() > 60, "{name}");
        let place = format!("docs/alerts.md#{}", name.to_lowercase());
        assert_eq!(word(&annotations["runbook_url"]), place);
        assert!(page.contains(&format!("\n### {name}\n")), "{name} is not in docs/alerts.md");
        let mut of_it = tests.split("\n  - name: ").filter(|test| test.starts_with(name));
        let seen = |test: &str| {
            test.contains(&format!("alertname=\"{name}\"")) && test.contains("exp_samples: []")
        };
        assert!(of_it.any(seen), "{name} is not seen to fire, or not to fire");
    }
    let told = page.matches("\n### Lockgate").count();
    assert_eq!(told, alerts.len(), "docs/alerts.md tells of alerts that are none");
    for rule in rules("config/rules.yml") {
        let name = word(&rule["record"]);
        assert!(tests.contains(&format!("expr: {name}")), "{name} is not tested");
    }
}

/// Finds everything that the sources have between quotation marks.
fn quoted(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            quoted(&path, found);
        } else {
            let source = fs::read_to_string(&path).unwrap();
            found.extend(source.split('"').map(str::to_owned));
        }
    }
}

#[test]
fn rules_and_board_name_metrics_and_labels_that_there_are() {
    let mut there = BTreeSet::new();
    quoted(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut there);
    let mut count = 0;
    for expression in expressions() {
        for selector in selectors(&expression) {
            let (name, labels) = selector.split_once('{').unwrap_or((selector, ""));
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert!(there.contains(name), "{name} in {expression}");
            let values = labels.split('"').skip(1).step_by(2).flat_map(|value| value.split('|'));
            for value in values.filter(|value| *value != ".+") {
                assert!(there.contains(value), "{value} in {expression}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn texts_of_alerts_name_labels_that_these_have() {
    let mut there = BTreeSet::new();
    quoted(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut there);
    // Prometheus adds this label.
    there.insert("instance".to_owned());
    for alert in rules("config/alerts.yml") {
        let (name, expression) = (word(&alert["alert"]), word(&alert["expr"]));
        // A sum has only these labels.
        let kept = expression.split("by (").nth(1).and_then(|rest| rest.split(')').next());
        for text in ["summary", "description"] {
            for told in word(&alert["annotations"][text]).split("{{ ").skip(1) {
                if told.starts_with("$value }}") || told.starts_with("$value | humanize") {
                    continue;
                }
                let label = told.strip_prefix("$labels.").and_then(|rest| rest.split(" }}").next());
                let label = label.unwrap_or_else(|| panic!("{name}: {told}"));
                let has = kept.is_none_or(|kept| kept.split(", ").any(|one| one == label));
                assert!(has && there.contains(label), "{name} has no {label}");
            }
        }
    }
}

#[test]
fn the_board_has_its_rows_and_asks_the_data_source_that_is_chosen() {
    let board = board();
    let variables = list(&board["templating"]["list"]);
    assert!(variables.iter().any(|one| one["type"] == "datasource" && one["name"] == "datasource"));
    assert!(board["schemaVersion"].as_u64().unwrap() >= 38, "Grafana 10");
    let panels = list(&board["panels"]);
    let is_row = |panel: &&Value| panel["type"] == "row";
    let rows: Vec<&str> = panels.iter().filter(is_row).map(|row| word(&row["title"])).collect();
    assert_eq!(rows, ROWS);
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = word(&panel["title"]);
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(place.0 < 24 && taken.insert(place), "{title} lies over another");
        }
        if panel["type"] != "row" {
            assert_eq!(word(&panel["datasource"]["uid"]), "${datasource}", "{title}");
            assert!(word(&panel["description"]).len() > 20, "{title}");
            assert!(!list(&panel["targets"]).is_empty(), "{title}");
        }
    }
}
