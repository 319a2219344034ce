#!/usr/bin/env python3
"""Runs lock libraries' own tests, on Redis and through a proxy that adopts their locks.

    run.py target/debug/lockgate [SUITE...]

A suite is what a library's package has of its tests, got by pip or npm into target/suites. Each is
run twice: on a Redis, and through a proxy with five lock nodes, a data node and enforced adopt rules.
Whatever passes on Redis should pass through the proxy; what does not is told, and the exit code
is 1 if it is not among the differences that are known (KNOWN). Each run has a network namespace of
its own, as most suites want their Redis at port 6379.

Lock nodes hold a lock for twice NODE_TIMEOUT longer than its TTL. Suites try TTLs of 100 ms, so it is 10 ms
for most; with the default of 50 ms tests that wait for just the TTL differ.
"""

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PLACE = HERE.parents[2] / "target" / "suites"
NODES = range(42001, 42006)
DATA = 42006
PORT = 6379
# Differences that are known, by a part of the test's name or of the error, and what the test did.
KNOWN = {
    "it sets the key whoever holds the lock": "the test writes over the lock by SET, as if another had it",
    "reset_all": "the script finds locks by KEYS on the data node, where none is",
}


@dataclasses.dataclass
class Suite:
    """Tests of one package, and the keys that they lock."""

    package: str
    arguments: list
    keys: list
    npm: bool = False
    # Packages that tests written in JavaScript need; those for Python are in requirements.txt.
    needs: list = dataclasses.field(default_factory=list)
    node_timeout: str = "10ms"
    # A redis-server that the tests start themselves is replaced by a way to the one that runs.
    starts_redis: bool = False
    # A folder that has the tests already, in place of the package's.
    source: pathlib.Path | None = None


SUITES = {
    "redis-py": Suite(
        "redis==8.1.0",
        ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"],
        ["foo", "bar", "lock", "lock_*", "test_*"],
    ),
    "python-redis-lock": Suite(
        "python-redis-lock==4.0.1",
        ["tests/test_redis_lock.py", "-p", "no:django"],
        ["lock:*"],
        # 125 processes lock at once.
        node_timeout="250ms",
        starts_redis=True,
    ),
    "pottery": Suite(
        "pottery==3.0.1",
        ["tests/test_redlock.py", "tests/test_aioredlock.py"],
        ["redlock:*"],
    ),
    "redlock-py": Suite("redlock-py==1.0.8", ["tests/test_redlock.py"], ["pants"]),
    "walrus": Suite("walrus==0.9.8", ["walrus/tests/lock.py"], ["lock:*"]),
    "django-redis": Suite(
        "django-redis==7.0.0",
        ["tests/test_backend.py", "-k", "test_lock and not sentinel and not usock", "-p", "no:django"],
        ["*foobar*"],
    ),
    "celery-redbeat": Suite(
        "celery-redbeat==2.4.2",
        ["tests/test_scheduler.py"],
        ["*redbeat*lock", "rb-tests:*lock", "lock-key"],
    ),
    "aiocache": Suite(
        "aiocache==0.12.3",
        ["tests/acceptance/test_lock.py", "-k", "redlock and redis", "-o", "xfail_strict=false"],
        ["*-lock", "custom_key"],
    ),
    "cashews": Suite(
        "cashews==7.6.0",
        ["tests/test_lock_decorator.py", "tests/test_backend_commands.py", "-k", "lock"],
        ["lock", "*lock*", "key*"],
    ),
    "node-redlock 4": Suite(
        "redlock@4.2.0",
        ["test.js"],
        ["Redlock:test:resource*"],
        npm=True,
        needs=["mocha@8", "chai@4", "redis@3", "ioredis@4", "bluebird@3"],
    ),
}


def fetched(name, suite):
    """Returns the folder with the package's source, got from its registry once."""
    if suite.source:
        return suite.source
    place = PLACE / suite.package.replace("/", "_")
    if (place / "complete").exists():
        return next(path for path in place.iterdir() if path.is_dir())
    place.mkdir(parents=True, exist_ok=True)
    if suite.npm:
        get = ["npm", "pack", "--silent", suite.package]
    else:
        get = [python(), "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        get += ["--no-deps", "--no-binary", suite.package.split("==")[0], suite.package]
    subprocess.run(get, cwd=place, check=True, stdout=subprocess.DEVNULL)
    for archive in [*place.glob("*.tar.gz"), *place.glob("*.tgz")]:
        with tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")
    source = next(path for path in place.iterdir() if path.is_dir())
    if suite.needs:
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save"]
        subprocess.run([*install, *suite.needs], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (place / "complete").touch()
    return source


def python():
    """Returns a Python that has the libraries and pytest."""
    environment = PLACE / "venv"
    wanted = [HERE.parent / "legacy" / "requirements.txt", HERE / "requirements.txt"]
    text = "".join(path.read_text() for path in wanted)
    installed = environment / "installed"
    if not installed.exists() or installed.read_text() != text:
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip = [environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", wanted[0], "-r", wanted[1]], check=True)
        installed.write_text(text)
    return str(environment / "bin" / "python")


def wait_for(port):
    for _ in range(400):
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(5) == b"+PONG":
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"nothing answers at port {port}")


def adopted():
    """Returns how many commands the lock nodes answered, as the proxy tells it."""
    told = subprocess.run(
        ["redis-cli", "-p", str(PORT), "--json", "LOCKGATE", "ADOPTED"], capture_output=True
    )
    # A proxy that has died has answered nothing, which fails the run.
    if told.returncode != 0:
        return 0
    return sum(entry["times"] for entry in json.loads(told.stdout) if entry["verdict"] == "quorum")


def serve(way, suite, directory):
    """Starts what is to answer at PORT, and returns the processes."""
    redis = ["redis-server", "--save", "", "--dir", directory, "--port"]
    quiet = {"stdout": subprocess.DEVNULL}
    if way == "redis":
        running = [subprocess.Popen([*redis, str(PORT)], **quiet)]
    else:
        running = [subprocess.Popen([*redis, str(port)], **quiet) for port in [*NODES, DATA]]
        for port in [*NODES, DATA]:
            wait_for(port)
        rules = "".join(
            f"  - keys: {json.dumps(key)}\n    mode: enforce\n    no_ttl: session\n" for key in suite.keys
        )
        node_timeout = os.environ.get("NODE_TIMEOUT", suite.node_timeout)
        urls = ", ".join(f"redis://127.0.0.1:{port}" for port in NODES)
        file = os.path.join(directory, "lockgate.yaml")
        pathlib.Path(file).write_text(
            f"listen: 127.0.0.1:{PORT}\nadmin: off\ndata: redis://127.0.0.1:{DATA}\n"
            f"locks: {{nodes: [{urls}], max_ttl: 1h, node_timeout: {node_timeout}}}\nadopt:\n{rules}"
        )
        binary = os.environ["LOCKGATE"]
        subprocess.run([binary, "init", file], check=True, **quiet)
        log = open(os.path.join(directory, "log"), "w")
        running.append(subprocess.Popen([binary, "--config", file], stderr=log, **quiet))
    wait_for(PORT)
    return running


def run_here(name, way, source, lines):
    """Runs one suite in this network namespace, and writes a line for each test."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as directory:
        running = serve(way, suite, directory)
        environment = os.environ | {"SUITES_RESULTS": lines, "SUITES_WAY": way}
        environment["PYTHONPATH"] = f"{HERE}:{HERE / 'stand_ins'}:{source}"
        if suite.starts_redis:
            environment["PATH"] = f"{HERE / 'stand_ins'}:{PLACE / 'venv/bin'}:{environment['PATH']}"
        if suite.npm:
            command = ["node_modules/.bin/mocha", "--exit", *suite.arguments]
            command += ["--reporter", HERE / "reporter.cjs"]
        else:
            command = [python(), "-m", "pytest", "-p", "between", "-q", "--timeout=120"]
            # Not every suite was written for warnings of this year's pytest.
            command += ["-o", "filterwarnings=default", "-o", "asyncio_default_fixture_loop_scope=function"]
            command += ["-o", "asyncio_mode=auto", "-p", "no:cacheprovider", *suite.arguments]
        try:
            with open(lines + ".log", "w") as log:
                out = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
                subprocess.run(command, cwd=source, env=environment, timeout=1800, **out)
        except subprocess.TimeoutExpired:
            print(f"{name}, {way}: not done after 30 minutes", file=sys.stderr)
        finally:
            if way == "proxy":
                pathlib.Path(lines + ".adopted").write_text(str(adopted()))
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait()
            if way == "proxy":
                text = pathlib.Path(directory, "log").read_text()
                pathlib.Path(lines + ".proxy").write_text(text)


def results(name, way):
    """Returns the file that has a line for each test; beside it are what was printed, and the log."""
    return PLACE / f"{name.replace(' ', '-')}.{way}"


def run(name, way):
    """Returns the outcome of each test: its name, and what it said."""
    source = fetched(name, SUITES[name])
    lines = results(name, way)
    lines.write_text("")
    command = ["unshare", "--map-root-user", "--net", sys.executable, sys.argv[0]]
    subprocess.run([*command, "--here", name, way, str(source), str(lines)], check=True)
    lines = lines.read_text().splitlines()
    return {test: (outcome, why) for test, outcome, why in (line.split("\t") for line in lines)}


def main():
    if sys.argv[1:2] == ["--here"]:
        return run_here(*sys.argv[2:])
    os.environ["LOCKGATE"] = os.path.abspath(sys.argv[1])
    python()
    unknown = 0
    for name in sys.argv[2:] or SUITES:
        suite = SUITES[name]
        plain, proxied = run(name, "redis"), run(name, "proxy")
        passed = [test for test, (outcome, _) in plain.items() if outcome == "passed"]
        differ = [test for test in passed if proxied.get(test, ("lost", ""))[0] != "passed"]
        quorum = int(results(name, "proxy").with_suffix(".proxy.adopted").read_text())
        print(
            f"{name} ({suite.package}): {len(passed)} of {len(plain)} tests pass on Redis,"
            f" {len(passed) - len(differ)} of these through the proxy;"
            f" {quorum} commands answered by the lock nodes"
        )
        if not passed or quorum == 0:
            unknown += 1
        for test in differ:
            said = proxied.get(test, ("lost", "it was not run"))[1]
            why = next((why for part, why in KNOWN.items() if part in test + said), None)
            unknown += why is None
            print(f"  {test}: {why or said}")
        sys.stdout.flush()
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
