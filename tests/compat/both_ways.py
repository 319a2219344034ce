"""A running proxy is replaced under load by another version, by the one before, and again.

    both_ways.py BEFORE NOW

Both are lockgate binaries. Clients lock all the time; nobody may be told of a lock while
another surely holds it, no request may fail, and a session lock stays its holder's. Run by
`make compat`, which builds the version before.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time

import redis

BEFORE, NOW = sys.argv[1:3]
NODES = 3
CLIENTS = 9


def free_ports(count):
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Deployment:
    """A data node, lock nodes, and whichever proxy serves at the moment."""

    def __init__(self, directory):
        self.processes = []
        self.log = os.path.join(directory, "log")
        self.port, self.admin, data, *nodes = free_ports(3 + NODES)
        for port in [data, *nodes]:
            self.start(["redis-server", "--port", str(port), "--save", "", "--dir", directory])
        urls = ", ".join(f"redis://127.0.0.1:{port}" for port in nodes)
        self.file = os.path.join(directory, "lockgate.yaml")
        with open(self.file, "w") as file:
            file.write(
                f"listen: 127.0.0.1:{self.port}\nadmin: 127.0.0.1:{self.admin}\n"
                f"data: redis://127.0.0.1:{data}\nupgrade_socket: {directory}/upgrade.sock\n"
                f"locks: {{nodes: [{urls}], max_ttl: 20s, node_timeout: 1s}}\n"
            )

    def start(self, words, **more):
        more.setdefault("stdout", subprocess.DEVNULL)
        self.processes.append(subprocess.Popen(words, **more))
        return self.processes[-1]

    def proxy(self, binary, *options):
        with open(self.log, "a") as log:
            return self.start([binary, "--config", self.file, *options], stderr=log)

    def client(self):
        return redis.Redis(port=self.port, single_connection_client=True, socket_timeout=30)

    def wait(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                if self.client().execute_command("LOCK", "ready", "PX", "1000"):
                    return
            except redis.RedisError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def stop(self):
        for process in self.processes:
            process.kill()


class Load:
    """Clients that lock, and what is wrong with what they were told."""

    def __init__(self, deployment):
        self.deployment, self.over, self.grants, self.wrong = deployment, False, 0, []
        self.holders, self.mutex = {}, threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, name):
        client = self.deployment.client()
        key = f"key{name % 3}"
        while not self.over:
            try:
                sent = time.monotonic()
                granted = client.execute_command("LOCK", key, "PX", "5000", "WAIT", "10000")
                if not granted:
                    continue
                with self.mutex:
                    other = self.holders.get(key)
                    if other and other[1] > time.monotonic():
                        self.wrong.append(f"{key}: {name} and {other[0]} hold it at once")
                    self.holders[key] = (name, sent + granted[2] / 1000)
                    self.grants += 1
                time.sleep(0.005)
                with self.mutex:
                    self.holders.pop(key)
                client.execute_command("UNLOCK", key, granted[0])
            except redis.RedisError as error:
                self.wrong.append(f"{name}: {error!r}")
                client = self.deployment.client()

    def end(self):
        self.over = True
        for thread in self.threads:
            thread.join()


def main():
    with tempfile.TemporaryDirectory() as directory:
        deployment = Deployment(directory)
        try:
            deployment.proxy(BEFORE)
            deployment.wait()
            holder = deployment.client()
            assert holder.execute_command("LOCK", "session")
            load = Load(deployment)
            for binary in [NOW, BEFORE, NOW]:
                time.sleep(3)
                before = load.grants
                successor = deployment.proxy(binary, "--upgrade")
                time.sleep(5)
                assert successor.poll() is None, open(deployment.log).read()
                assert load.grants > before, "nothing is granted any more"
                other = deployment.client().execute_command("LOCK", "session", "PX", "1000")
                assert other is None and holder.ping(), "the session lock is another's"
            load.end()
            assert holder.execute_command("UNLOCK", "session") == 1
            print(f"{load.grants} grants; wrong: {load.wrong or 'nothing'}")
            sys.exit(1 if load.wrong else 0)
        finally:
            deployment.stop()


if __name__ == "__main__":
    main()
