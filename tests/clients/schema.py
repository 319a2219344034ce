"""The JSON Schema of the configuration beside `lockgate check`: what one takes, the other takes, and what an editor is
to mark, both refuse. The annotated file passes both.

    schema.py LOCKGATE
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import fastjsonschema
import yaml

LOCKGATE = sys.argv[1]
ANNOTATED = pathlib.Path(__file__).parents[2] / "config/lockgate.yaml"
LOCKS = "locks: {nodes: ['redis://a:1', 'redis://b:1', 'redis://c:1']"
GOOD = [
    "",
    "listen: [127.0.0.1:6380, '[::1]:7100-7105', {address: 127.0.0.1:1, proxy_protocol: yes}]",
    "share: 'yes'",
    "admin: off",
    "admin: {listen: 127.0.0.1:9380, token: 0123456789abcdef01234, hosts: '*.example.com', peers: 'http://a:1'}",
    "data: unix:///run/redis.sock",
    "data: {sentinels: [a, b, c], master: m, password: x, sentinel_tls: no}",
    "data: {primary: 'redis://user:word@name:6379'}",
    "data: {url: 'redis://10.0.0.1:6379/', username: u, password: x}",
    "listen: 127.0.0.1:7100-7105\ndata: {cluster: [a, b], announce: auto, fronts: {}}",
    "maxclients: 5k\nfirst_byte_timeout: 3s\nio_threads: 2\nbarrier_buffer: 1048576",
    "upgrade_socket: /run/lockgate.sock\nupgrade_grace: off",
    "log: {level: warn, locks: all}\nmetrics: {keys: 'a:*'}",
    LOCKS + ", drift_factor: 0.02, max_hold: off, notify: pubsub, on_lost: push, on_disconnect: release}",
    "locks: {nodes: [redis://a:1, redis://b:1, {sentinels: [d, e, f], master: m}]}",
    "locks: {nodes: [redis://a:1, redis://b:1, {cluster: [d, e], shards: 3}]}",
    LOCKS.replace("redis:", "rediss:") + ", permits: {keys: 'gpu', n: 4}, tls: {ca_cert_file: '${CA}'}}",
    "guards: {keys: 'account:*', lock: 'account:{1}', policy: audit}",
    "guards: {rules: [{keys: 'account:*', lock: 'account:{1}'}], flush: allow, wait_at: lock}",
    "adopt: [{keys: 'job:*', mode: enforce, blind: own-only, no_ttl: 30s, long_ttl: cap, no_quorum: close}]",
    "adopt: {keys: 'job:*', scripts: [{digest: c3f8721cbb97f72bc19e972846bd7aaf91901658, op: extend, token: 1, ttl: 2,"
    " unit: ms, replies: [0, 1, 1, 0]}]}",
]
BAD = [
    "lisen: 127.0.0.1:6380",
    "listen: {tls: {cert_file: a}}",
    "listen: {address: 127.0.0.1:1, protocol: yes}",
    "share: maybe",
    "admin: {listen: 127.0.0.1:9380, tokens: x}",
    "data: http://a",
    "data: {url: http://a}",
    "data: {sentinel: [a]}",
    "data: {cluster: ['redis://a:1']}",
    "connect_timeout: 5",
    "maxclients: -1",
    "maxclients: many",
    "first_byte_timeout: never",
    "io_threads: all",
    "upgrade_socket: lockgate.sock",
    "log: {level: [info]}",
    "log: {colour: red}",
    "locks: {max_tll: 5s}",
    "locks: {max_ttl: 1.5s}",
    "locks: {drift_factor: little}",
    "locks: {notify: mail}",
    "locks: {on_lost: panic}",
    "locks: {on_disconnect: keep}",
    "locks: {nodes: [{sentinels: [a], master: m, shard: 2}]}",
    "locks: {permits: {keys: a}}",
    "tls: {cert: a}",
    "guards: {keys: 'account:*'}",
    "guards: {keys: a, lock: b, policy: maybe}",
    "guards: {rules: [], flush: perhaps}",
    "adopt: {lock: a}",
    "adopt: {keys: a, mode: on}",
    "adopt: {keys: a, blind: never}",
    "adopt: {keys: a, scripts: {digest: abc, op: extend, token: 1, ttl: 1, replies: [0, 1, 1, 0]}}",
    "adopt: {keys: a, scripts: {digest: c3f8721cbb97f72bc19e972846bd7aaf91901658, op: steal, token: 1, ttl: 1,"
    " replies: [0, 1, 1, 0]}}",
]


class Words(yaml.SafeLoader):
    """YAML 1.2, as the proxy and editors read it: only true and false are no text."""


Words.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in all_of if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, all_of in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def told_by_check(text):
    """What `lockgate check` has against the file; none if it takes it."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        pathlib.Path(file.name).chmod(0o600)
        environment = {"CA": "/etc/ssl/certs/ca-certificates.crt"}
        ran = subprocess.run([LOCKGATE, "check", file.name], capture_output=True, text=True, env=environment)
    return ran.stderr if ran.returncode else None


def told_by_schema(valid, text):
    """What the schema has against the file; none if it takes it."""
    try:
        valid(yaml.load(text, Words) or {})
    except fastjsonschema.JsonSchemaValueException as wrong:
        return wrong.message
    return None


def main():
    printed = subprocess.run([LOCKGATE, "manual", "--schema"], check=True, capture_output=True).stdout
    valid = fastjsonschema.compile(json.loads(printed))
    rows = [(ANNOTATED.read_text(), True), *((text, True) for text in GOOD), *((text, False) for text in BAD)]
    wrong = [
        f"{judge} {'refused' if is_good else 'took'} {text[:200]}\n{told}"
        for text, is_good in rows
        for judge, told in [("check", told_by_check(text)), ("schema", told_by_schema(valid, text))]
        if (told is None) != is_good
    ]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(rows)} configurations: lockgate check and the schema agree")


main()
