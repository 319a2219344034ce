"""Installs charts/lockgate by Helm's own code in a cluster that is none, and looks at what it makes.

    chart.py LOCKGATE [CHART]

LOCKGATE is a binary, which checks the configuration that the chart writes. CHART may be an archive of the chart.
Helm is the Go library in helm-sdkpy; it installs in an API server in this file, which keeps what it is sent. Run
by `make chart-test`.
"""

import asyncio
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import tomllib
import urllib.parse

import helm_sdkpy
import kubernetes_validate
import yaml

LOCKGATE = sys.argv[1]
ROOT = pathlib.Path(__file__).parents[2]
CHART = (sys.argv[2:] or [str(ROOT / "charts/lockgate")])[0]
# What the server knows: the kinds of each group.
KINDS = {
    "v1": ["ConfigMap", "Secret", "Service"],
    "apps/v1": ["Deployment", "DaemonSet", "StatefulSet"],
    "batch/v1": ["Job"],
    "policy/v1": ["PodDisruptionBudget"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "monitoring.coreos.com/v1": ["ServiceMonitor", "PrometheusRule"],
}


def plural(kind):
    return kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"


class Cluster(http.server.ThreadingHTTPServer):
    """As much of an API server as Helm asks for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        # What is there, and whatever was: a hook goes when it has succeeded.
        self.objects, self.made = {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """Helm leaves when it knows enough."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def config(self):
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, what, status=200):
        text = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status, reason):
        self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                     "message": reason, "code": status}, status)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        path, query = url.path.rstrip("/"), urllib.parse.parse_qs(url.query)
        group = path.removeprefix("/apis/").removeprefix("/api/")
        if path == "/version":
            self.answer({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif path == "/api":
            self.answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            versions = {name: {"groupVersion": name, "version": "v1"} for name in KINDS if "/" in name}
            self.answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": name.split("/")[0], "versions": [one], "preferredVersion": one}
                for name, one in versions.items()]})
        elif group in KINDS and path.startswith("/api"):
            verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
            self.answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": [
                {"name": plural(kind), "kind": kind, "namespaced": True, "verbs": verbs} for kind in KINDS[group]]})
        elif path == "/openapi/v3":
            self.answer({"paths": {"apis/batch/v1": {"serverRelativeURL": "/openapi/v3/apis/batch/v1"}}})
        elif path == "/openapi/v3/apis/batch/v1":
            # Says that the server itself looks whether a hook is well-formed; the schemas below do.
            job = {"group": "batch", "version": "v1", "kind": "Job"}
            self.answer({"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": {"/jobs/{name}": {
                "patch": {"x-kubernetes-group-version-kind": job, "responses": {},
                          "parameters": [{"name": "fieldValidation", "in": "query"}]}}}})
        elif path in self.server.objects:
            self.answer(self.server.objects[path])
        elif "watch" in query:
            # Has Helm ask for the whole list instead.
            self.refuse(*((422, "Invalid") if "sendInitialEvents" in query else (410, "Expired")))
        elif self.kind_of(path):
            kind, version = self.kind_of(path)
            inside = [one for at, one in self.server.objects.items() if at.rsplit("/", 1)[0] == path]
            self.answer({"kind": kind + "List", "apiVersion": version, "metadata": {"resourceVersion": "1"},
                         "items": inside})
        else:
            self.refuse(404, "NotFound")

    def kind_of(self, path):
        last = path.rsplit("/", 1)[1]
        found = [(kind, version) for version, kinds in KINDS.items() for kind in kinds if plural(kind) == last]
        return found[0] if found else None

    def body(self):
        """What was sent; None where it is no JSON: Helm's own record of the release, which is sent back."""
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "json" in (self.headers["Content-Type"] or "json"):
            return json.loads(text) if text else {}
        self.send_response(201 if self.command == "POST" else 200)
        self.send_header("Content-Type", self.headers["Content-Type"])
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        return None

    def do_POST(self):
        path, one = urllib.parse.urlsplit(self.path).path, self.body()
        if one is None:
            return
        self.server.made.append(json.loads(json.dumps(one)))
        self.server.objects[f"{path}/{one['metadata']['name']}"] = one
        one["metadata"].update({"uid": "1", "resourceVersion": "1", "generation": 1})
        if one["kind"] == "Job":
            done = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
            one["status"] = {"conditions": done, "succeeded": 1}
        self.answer(one, 201)

    def do_PUT(self):
        one = self.body()
        if one is not None:
            self.answer(one)

    def do_DELETE(self):
        self.body()
        self.server.objects.pop(urllib.parse.urlsplit(self.path).path, None)
        self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})


def install(values):
    """What the chart makes of values, by kind and name."""
    cluster = Cluster()
    config = helm_sdkpy.Configuration(namespace="locks", kubeconfig=cluster.config())
    asyncio.run(helm_sdkpy.Install(config).run("lockgate", CHART, values=values, wait=False, timeout=30))
    cluster.shutdown()
    return {(one["kind"], one["metadata"]["name"]): one for one in cluster.made}


def refused(values, reason):
    """The chart says what is wrong with values."""
    try:
        install(values)
    except helm_sdkpy.HelmError as error:
        assert reason in str(error), f"{error} does not name {reason}"
    else:
        raise AssertionError(f"{values} was installed")


def fits_schemas(made):
    for (kind, name), one in made.items():
        if one["apiVersion"].startswith("monitoring"):
            continue
        kubernetes_validate.validate(one, "1.34", strict=True)


def pods(made):
    """The labels of all pods by what makes them."""
    return {key: one["spec"]["template"]["metadata"]["labels"] for key, one in made.items()
            if "template" in one.get("spec", {})}


def chosen(made, labels):
    return {key for key, pod in pods(made).items() if labels.items() <= pod.items()}


def selectors_find_their_pods(made, proxy):
    nodes = {key for key in pods(made) if key[0] == "StatefulSet"}
    wanted = {"lockgate": {proxy}, "lockgate-admin": {proxy}, "lockgate-nodes": nodes}
    for (kind, name), one in made.items():
        if kind == "Service":
            assert chosen(made, one["spec"]["selector"]) == wanted[name], f"{kind} {name}"
        if kind == "PodDisruptionBudget":
            assert chosen(made, one["spec"]["selector"]["matchLabels"]) == wanted[name], f"{kind} {name}"
        if kind == "NetworkPolicy":
            assert chosen(made, one["spec"]["podSelector"]["matchLabels"]) == wanted[name], f"{kind} {name}"
    for key in nodes | {proxy}:
        assert chosen(made, made[key]["spec"]["selector"]["matchLabels"]) == {key}, f"{key} chooses others' pods"


def check_config(made):
    """The proxy's own word on the configuration, and the configuration."""
    text = made["ConfigMap", "lockgate"]["data"]["lockgate.yaml"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        secrets = {**os.environ, "REDIS_PASSWORD": "secret", "LOCK_PASSWORD": "secret",
                   "LOCKGATE_ADMIN_TOKEN": "token-of-20-bytes-or-more"}
        checked = subprocess.run([LOCKGATE, "check", file.name], env=secrets, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr + text
    return yaml.safe_load(text)


def seconds(duration):
    """A duration as the configuration has it, in whole seconds or minutes."""
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


def pod(made, *key):
    return made[key]["spec"]["template"]["spec"]


def has_version_of_cargo(made, proxy):
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    labels = made[proxy]["metadata"]["labels"]
    assert labels["helm.sh/chart"] == f"lockgate-{version}", f"the chart's version is not {version}: {labels}"
    assert labels["app.kubernetes.io/version"] == version, f"the chart's appVersion is not {version}: {labels}"
    assert pod(made, *proxy)["containers"][0]["image"] == f"lockgate:{version}", "the image is of another version"


def pods_have_no_rights(made):
    for key in pods(made):
        spec = pod(made, *key)
        assert spec["automountServiceAccountToken"] is False, f"{key} is given a token of the API server"
        user = spec["securityContext"]
        assert user["runAsNonRoot"] is True and user["runAsUser"] > 0, f"{key} may be root"
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}, f"{key} may call the whole kernel"
        for container in spec["containers"]:
            rights = container["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]}, f"{key} keeps capabilities"
            assert rights["allowPrivilegeEscalation"] is False, f"{key} may gain rights"
            assert rights["readOnlyRootFilesystem"] is True, f"{key} may write into its image"


def proxies_come_and_go_unseen(made, proxy, config):
    spec = pod(made, *proxy)
    container, = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name in ("listen", "admin"):
        address = config[name]["listen"] if isinstance(config[name], dict) else config[name]
        port = ports[{"listen": "redis", "admin": "admin"}[name]]
        assert address == f"0.0.0.0:{port}", f"{name} is {address}, the pod's port is {port}"
    alive, ready = container["livenessProbe"], container["readinessProbe"]
    assert alive["httpGet"] == {"path": "/healthz", "port": "admin"}, f"would be restarted by {alive}"
    assert ready["httpGet"] == {"path": "/readyz", "port": "admin"}, f"would be sent clients by {ready}"
    delay = seconds(config.get("shutdown_delay", "0s"))
    noticed = ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
    assert delay > noticed, f"refuses clients after {delay} s, and the probe notices within {noticed} s"
    # shutdown_grace is 10 s.
    killed = spec["terminationGracePeriodSeconds"]
    assert killed > delay + 10, f"would be killed after {killed} s"
    assert made["PodDisruptionBudget", "lockgate"]["spec"]["maxUnavailable"] == 1, "drained all at once"


def spread_over(made, key, *places):
    there = [rule["topologyKey"] for rule in pod(made, *key).get("topologySpreadConstraints", [])]
    assert there == list(places), f"{key} is spread over {there}"


def lock_nodes_keep_locks(made, config, password):
    nodes = [key for key in made if key[0] == "StatefulSet"]
    assert len(nodes) == 5, nodes
    for key in nodes:
        assert made[key]["spec"]["replicas"] == 1, key
        assert made[key]["spec"]["updateStrategy"] == {"type": "OnDelete"}, "an upgrade would restart all at once"
        spread_over(made, key, "topology.kubernetes.io/zone")
        redis, = pod(made, *key)["containers"]
        ready = redis["readinessProbe"]
        waits = seconds(config["locks"].get("max_ttl", "60s"))
        # Redis needs a moment to start, and the proxies to notice it: only then the wait begins.
        assert ready["initialDelaySeconds"] >= waits + 5, f"ready before it votes again: {ready}"
        assert (redis["args"][0], len(redis["args"]) % 2) == ("redis-server", 1), redis["args"]
        options = dict(zip(redis["args"][1::2], redis["args"][2::2]))
        assert options["--maxmemory-policy"] == "noeviction", f"locks are evicted: {options}"
        bound, limit = options["--maxmemory"], redis["resources"]["limits"]["memory"]
        assert int(bound.removesuffix("mb")) <= int(limit.removesuffix("Mi")) * 3 / 4, f"killed at {limit}: {bound}"
        # A file would bring back locks that have ended, and lack those of the last second.
        assert (options["--save"], options["--appendonly"]) == ("", "no"), options
        if password:
            assert options["--requirepass"] == "$(PASSWORD)", f"asks nobody for a password: {options}"
            source = {"secretKeyRef": {"name": "passwords", "key": password}}
            assert redis["env"] == [{"name": "PASSWORD", "valueFrom": source}], redis["env"]
        else:
            assert options["--protected-mode"] == "no" and "--requirepass" not in options, options
    budget = made["PodDisruptionBudget", "lockgate-nodes"]["spec"]
    assert budget["maxUnavailable"] == 1, f"drained all at once: {budget}"
    peers, = made["NetworkPolicy", "lockgate-nodes"]["spec"]["ingress"]
    assert peers["ports"] == [{"port": "redis"}], peers
    assert all(list(peer) == ["podSelector"] for peer in peers["from"]), f"more than pods reach nodes: {peers}"
    let_in = [chosen(made, peer["podSelector"]["matchLabels"]) for peer in peers["from"]]
    wanted = {key for key in pods(made) if key[0] in ("Deployment", "DaemonSet", "Job")}
    assert set().union(*let_in) == wanted, f"nodes let in {let_in}"


def init_is_for_new_deployments(made):
    job = made["Job", "lockgate-init"]
    hooks = job["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == "post-install", "init after an upgrade would free locks that are held"
    container, = pod(made, "Job", "lockgate-init")["containers"]
    assert container["args"] == ["init", "--if-new"], "init fails where a node is set up already"


def prometheus_finds_proxies(made):
    monitor = made["ServiceMonitor", "lockgate"]
    assert monitor["metadata"]["labels"]["release"] == "p", "Prometheus's operator does not choose it"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [one for (kind, _), one in made.items()
                if kind == "Service" and wanted <= one["metadata"]["labels"].items()]
    assert [one["metadata"]["name"] for one in services] == ["lockgate-admin"], services
    there, = monitor["spec"]["endpoints"]
    assert there["port"] in [port["name"] for port in services[0]["spec"]["ports"]], f"no port {there['port']}"
    assert there["path"] == "/metrics", there
    assert {"targetLabel": "job", "replacement": "lockgate"} in there["relabelings"], "LockgateProxyGone goes by it"


print("== lint")
lint = asyncio.run(helm_sdkpy.Lint(helm_sdkpy.Configuration()).run(CHART))
assert not [one for one in lint.get("Messages") or [] if one.get("Severity", 0) > 2], lint
assert not lint.get("Errors"), lint

print("== two proxies before lock nodes of one's own")
data = "redis://:${REDIS_PASSWORD}@redis:6379"
made = install({"config": {"data": data, "locks": {"nodes": ["redis://a", "redis://b", "redis://c"]}}})
fits_schemas(made)
selectors_find_their_pods(made, ("Deployment", "lockgate"))
config = check_config(made)
assert (config["listen"], config["admin"]) == ("0.0.0.0:6380", "0.0.0.0:9380"), config
assert config["locks"]["nodes"] == ["redis://a", "redis://b", "redis://c"], config
kinds = sorted(kind for kind, _ in made)
assert kinds == ["ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service"], kinds
deployment = ("Deployment", "lockgate")
has_version_of_cargo(made, deployment)
pods_have_no_rights(made)
proxies_come_and_go_unseen(made, deployment, config)
spread_over(made, deployment, "topology.kubernetes.io/zone", "kubernetes.io/hostname")
init_is_for_new_deployments(made)
rules = made["NetworkPolicy", "lockgate"]["spec"]["ingress"]
assert [rule["ports"] for rule in rules] == [[{"port": "redis"}]], f"the status page is open to {rules}"
assert rules[0]["from"] == [{"podSelector": {}}], f"clients come from {rules}"
assert "internalTrafficPolicy" not in made["Service", "lockgate"]["spec"], "one machine's proxies alone"
assert "envFrom" not in pod(made, *deployment)["containers"][0], "reads a Secret that nobody has named"

print("== everything that can be switched on")
prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
made = install({
    "kind": "DaemonSet", "secret": "passwords", "nodes": {"enabled": True, "passwordKey": "LOCK_PASSWORD"},
    "network": {"monitoring": prometheus}, "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
    "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    "monitor": {"enabled": True, "labels": {"release": "p"}}, "rules": {"enabled": True},
    "board": {"enabled": True},
    "config": {"data": data, "locks": {"max_ttl": "30s"}, "admin": {"token": "${LOCKGATE_ADMIN_TOKEN}"}},
    "service": {"annotations": {"a": "b"}},
    "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}], "imagePullSecrets": [{"name": "p"}],
    "podAnnotations": {"a": "b"},
})
fits_schemas(made)
selectors_find_their_pods(made, ("DaemonSet", "lockgate"))
config = check_config(made)
assert config["locks"]["max_ttl"] == "30s", config
pods_have_no_rights(made)
proxies_come_and_go_unseen(made, ("DaemonSet", "lockgate"), config)
lock_nodes_keep_locks(made, config, "LOCK_PASSWORD")
init_is_for_new_deployments(made)
prometheus_finds_proxies(made)
assert made["Service", "lockgate"]["spec"]["internalTrafficPolicy"] == "Local", "led to another machine's proxy"
assert config["admin"]["token"] == "${LOCKGATE_ADMIN_TOKEN}", config["admin"]
rules = made["NetworkPolicy", "lockgate"]["spec"]["ingress"]
assert [rule["from"] for rule in rules if rule["ports"] == [{"port": "admin"}]] == [prometheus], rules
for key in (("DaemonSet", "lockgate"), ("Job", "lockgate-init")):
    volumes = [volume["name"] for volume in pod(made, *key)["volumes"]]
    mounts = [mount["name"] for mount in pod(made, *key)["containers"][0]["volumeMounts"]]
    assert volumes == mounts == ["config", "tls"], f"{key} has {volumes} and mounts {mounts}"
    source = pod(made, *key)["containers"][0].get("envFrom")
    assert source == [{"secretRef": {"name": "passwords"}}], f"{key} has no passwords: {source}"
hosts = [node.split("@")[1] for node in config["locks"]["nodes"]]
names = [f"{name}-0.lockgate-nodes.locks.svc:6379" for kind, name in sorted(made) if kind == "StatefulSet"]
assert hosts == names and len(hosts) == 5, f"{hosts} are not {names}"
groups = made["PrometheusRule", "lockgate"]["spec"]["groups"]
ours = [yaml.safe_load((ROOT / f"config/{file}.yml").read_text())["groups"] for file in ("alerts", "rules")]
assert groups == ours[0] + ours[1], "the rules are not those of config/"
board = json.loads(made["ConfigMap", "lockgate-board"]["data"]["lockgate.json"])
assert board == json.loads((ROOT / "config/grafana/lockgate.json").read_text()), "the board is not that of config/"

print("== lock nodes of the chart's own, without a password")
made = install({"config": {"data": data}, "nodes": {"enabled": True}})
fits_schemas(made)
lock_nodes_keep_locks(made, check_config(made), "")

print("== more lock nodes of the chart's own take the place of fewer")
for count, following in ((3, 5), (5, 3)):
    made = install({"config": {"data": data}, "nodes": {"enabled": True, "count": count, "nextCount": following}})
    fits_schemas(made)
    lock_nodes_keep_locks(made, config := check_config(made), "")
    names = [f"redis://{name}-0.lockgate-nodes.locks.svc:6379" for kind, name in sorted(made) if kind == "StatefulSet"]
    assert config["locks"]["nodes"] == names[:count], config["locks"]
    assert config["locks"]["next_nodes"] == names[:following], config["locks"]

print("== TLS for clients, at the chart's address")
# The files are not here, so the configuration is not checked.
tls = {"cert_file": "/tls/tls.crt", "key_file": "/tls/tls.key"}
made = install({"config": {"data": data, "listen": {"tls": tls}, "locks": {"nodes": ["redis://a"]}}})
config = yaml.safe_load(made["ConfigMap", "lockgate"]["data"]["lockgate.yaml"])
assert config["listen"] == {"address": "0.0.0.0:6380", "tls": tls}, config["listen"]

print("== runbooks at an address of one's own")
base = "https://git.example.org/lockgate/blob/main/"
nodes = {"nodes": ["redis://a"]}
made = install({"config": {"data": data, "locks": nodes}, "rules": {"enabled": True, "runbookBase": base}})
there = made["PrometheusRule", "lockgate"]["spec"]["groups"]
links = [rule["annotations"] for group in there for rule in group["rules"] if "alert" in rule]
assert links and all(one["runbook_url"].startswith(base + "docs/alerts.md#") for one in links), links
for one in links:
    one["runbook_url"] = one["runbook_url"].removeprefix(base)
assert there == groups, "more than the addresses has changed"

print("== what is wrong is said")
refused({}, "config.data")
refused({"config": {"data": data}, "nodes": {"enabled": True, "count": 4}}, "nodes.count")
# values.schema.json says these: a name that is none, and values of another kind.
for values, name in (({"kind": "Pod"}, "kind"), ({"replica": 3}, "replica"), ({"replicas": "3"}, "replicas"),
                     ({"nodes": {"cuont": 5}}, "cuont"), ({"image": {"tag": 1.5}}, "tag"),
                     ({"service": {"port": 0}}, "port"), ({"network": {"clients": {}}}, "clients")):
    refused({"config": {"data": data, "locks": nodes}, **values}, name)
refused({"config": {"data": data}}, "config.locks.nodes: the lock nodes")
refused({"config": {"data": data, "locks": nodes}, "nodes": {"enabled": True}}, "config.locks.nodes: with nodes.enabled")
for key, given in (("listen", "127.0.0.1:1"), ("listen", ["0.0.0.0:1"]), ("listen", {"address": "0.0.0.0:1"}),
                   ("admin", "0.0.0.0:1"), ("admin", False), ("admin", {"listen": "0.0.0.0:1", "token": "${T}"})):
    refused({"config": {"data": data, "locks": nodes, key: given}}, f"config.{key}: the chart sets the address")
for time, wait, is_enough in (("60s", 64, False), ("1m", 65, True), ("59500ms", 64, False), ("59500ms", 65, True),
                              ("2m", 124, False), ("1h", 3605, True)):
    values = {"config": {"data": data, "locks": {"max_ttl": time}}, "nodes": {"enabled": True, "waitSeconds": wait}}
    if is_enough:
        install(values)
    else:
        refused(values, "nodes.waitSeconds")
values = {"config": {"data": data, "locks": {"max_ttl": "${TTL}"}}, "nodes": {"enabled": True}}
refused(values, "config.locks.max_ttl: ${TTL} must be written as 30s")
refused({"config": {"data": data}, "nodes": {"enabled": True, "nextCount": 2}}, "nodes.nextCount")
refused({"config": {"data": data, "locks": {"next_nodes": ["redis://b"]}}, "nodes": {"enabled": True, "nextCount": 3}},
        "config.locks.next_nodes")
refused({"config": {"data": data, "locks": nodes}, "monitor": {"enabled": True}}, "network.monitoring")
print("== all well")
