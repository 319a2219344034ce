"""Runs what stands in examples/, as a person would who copied it.

    examples.py LOCKGATE
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import redis

LOCKGATE = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
MODULES = ROOT / "tests/clients/node_modules"
PAYMENTS = 300
# For each program, in seconds: far more than any needs.
LIMIT = 90


def fail(what):
    sys.exit(f"examples: {what}")


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, **options)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def links():
    """Each file that the page names is there, and each file that is there is named."""
    page = (EXAMPLES / "README.md").read_text()
    named = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page)]
    for link in named:
        (EXAMPLES / link).exists() or fail(f"README.md names {link}, which is not there")
    for file in EXAMPLES.rglob("*"):
        name = str(file.relative_to(EXAMPLES))
        if file.is_file() and file.suffix != ".rs" and name not in (*named, "README.md"):
            fail(f"README.md does not name {name}")


def configuration(place):
    """The configuration passes the check, with files where it names some."""
    (place / "redis-password").write_text("secret\n")
    (place / "redis-password").chmod(0o600)
    made = run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=proxy", "-days", "30",
               "-keyout", str(place / "proxy.key"), "-out", str(place / "proxy.crt"))
    made.returncode and fail(made.stderr)
    file = place / "lockgate.yaml"
    file.write_text((EXAMPLES / "lockgate.yaml").read_text().replace("/etc/lockgate", str(place)))
    checked = run(str(LOCKGATE), "check", str(file))
    if checked.returncode or "3 lock nodes" not in checked.stdout:
        fail(f"lockgate.yaml: {checked.stdout}{checked.stderr}")


def service(place):
    """systemd knows every line of the drop-in."""
    analyze = shutil.which("systemd-analyze") or fail("systemd-analyze is missing")
    unit = place / "lockgate.service"
    unit.write_text((ROOT / "config/lockgate.service").read_text().replace("/usr/bin/lockgate", str(LOCKGATE)))
    dropin = place / "lockgate.service.d"
    dropin.mkdir()
    shutil.copy(EXAMPLES / "systemd/override.conf", dropin)
    told = run(analyze, "verify", "--man=no", str(unit))
    wrong = [line for line in told.stderr.splitlines() if "override.conf" in line]
    wrong and fail("\n".join(wrong))


def workers(url, r, place, command):
    """Several at once book each payment once. The guard refuses what others write."""
    try:
        r.set("account:7", 1)
        fail("a write without the lock passed the guard")
    except redis.ResponseError:
        pass
    before = int(r.get("account:7") or 0)
    r.rpush("payments:7", *range(1, PAYMENTS + 1))
    options = {"cwd": place, "env": os.environ | {"PYTHONPATH": str(ROOT / "clients/python/src")}}
    running = [subprocess.Popen([*command, url], stderr=subprocess.PIPE, text=True, **options) for _ in range(3)]
    for worker in running:
        _, told = worker.communicate(timeout=LIMIT)
        worker.returncode and fail(f"{command}: {told}")
    booked = int(r.get("account:7")) - before
    if booked != PAYMENTS * (PAYMENTS + 1) // 2 or r.exists("payments:7"):
        fail(f"{command}: {booked} is booked, {r.llen('payments:7')} payments are left")


def cron(url, place):
    """Of three hosts one runs the command, although their clocks differ."""
    job = place / "report"
    job.write_text(f"#!/bin/sh\necho ran >>'{place}/ran'\n")
    job.chmod(0o755)
    env = os.environ | {"LOCKGATE_URL": url, "PATH": f"{LOCKGATE.parent}:{os.environ['PATH']}"}
    for _ in range(3):
        host = run(EXAMPLES / "cron.sh", str(job), env=env)
        host.returncode and fail(f"cron.sh: {host.stderr}")
    ran = (place / "ran").read_text().count("ran")
    ran == 1 or fail(f"cron.sh: {ran} hosts ran the command")
    down = run(EXAMPLES / "cron.sh", str(job), env=env | {"LOCKGATE_URL": "redis://127.0.0.1:1"})
    down.returncode == 125 or fail("cron.sh succeeds without a proxy")


def main():
    links()
    ports = [free_port(), free_port()]
    url = f"redis://127.0.0.1:{ports[0]}"
    options = ["--port", str(ports[0]), "--admin-port", str(ports[1]), "--nodes", "3", "--guard", "account:*"]
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        configuration(place)
        service(place)
        (place / "node_modules").mkdir()
        for module, at in {"ioredis": MODULES / "ioredis", "lockgate": ROOT / "clients/node"}.items():
            at.exists() or fail(f"{at} is missing: \"make test\" installs it")
            (place / "node_modules" / module).symlink_to(at)
        shutil.copy(EXAMPLES / "worker.mjs", place)
        deployment = subprocess.Popen([LOCKGATE, "dev", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            r = redis.Redis.from_url(url)
            ends = time.monotonic() + LIMIT
            while run(str(LOCKGATE), "health", f"127.0.0.1:{ports[1]}").returncode:
                time.monotonic() < ends or fail("lockgate dev is not ready")
                time.sleep(0.1)
            workers(url, r, place, [sys.executable, str(EXAMPLES / "worker.py")])
            workers(url, r, place, ["node", "worker.mjs"])
            cron(url, place)
        finally:
            deployment.terminate()
            deployment.wait()
    print("examples ok")


main()
