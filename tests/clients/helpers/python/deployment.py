"""Real servers for the tests of the helper: Redis servers on Unix sockets, and proxies on free ports of loopback."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

# A machine that is busy with other tests has this long for what usually takes a moment.
LIMIT = 40.0


def eventually(what, condition, limit=LIMIT):
    """Waits for a condition."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.02)
    return value


class Server:
    """A process that is ended with the program."""

    def __init__(self, command, log):
        self.command, self.log = command, log
        self.start()

    def start(self):
        # Ended with this program, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", *self.command]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def send(self, number):
        self.process.send_signal(number)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def said(self):
        with open(self.log) as log:
            return log.read()


class Deployment:
    """A data node, three lock nodes, and proxies that share them."""

    def __init__(self, binary):
        self.binary = binary
        self.directory = tempfile.mkdtemp(prefix="servers-")
        self.servers = []
        for tool in ("redis-server", "setpriv"):
            if shutil.which(tool) is None:
                raise SystemExit(f'{tool} is missing: run "scripts/setup.sh test", which installs it')

    def path(self, name):
        return os.path.join(self.directory, name)

    def server(self, name, command):
        server = Server(command, self.path(f"{name}.log"))
        self.servers.append(server)
        return server

    def redis(self, name):
        """Starts a Redis server at the socket of this name."""
        socket = self.path(name)
        command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", self.directory]
        server = self.server(name, command)
        eventually(f"{name} listens", lambda: os.path.exists(socket))
        return server

    def proxy(self, name, nodes="abc", port=0, **locks):
        """Starts a proxy. `port` names that of an earlier one, which it follows."""
        settings = {"quarantine": "no", "default_ttl": "4s", "node_timeout": "2s", "shared": "yes", **locks}
        urls = ", ".join(f'"unix://{self.path(node)}"' for node in nodes)
        with open(self.path(f"{name}.yaml"), "w") as file:
            file.write(
                f"listen: 127.0.0.1:{port}\nadmin: off\ndata: unix://{self.path('data')}\n"
                f"upgrade_socket: {self.path(name)}.sock\n"
                "guards:\n  - {keys: 'account:*', lock: 'account:{1}', policy: enforce}\n"
                f"locks:\n  nodes: [{urls}]\n"
                + "".join(f"  {key}: {value}\n" for key, value in settings.items() if value)
            )
        proxy = self.server(name, [self.binary, "--config", self.path(f"{name}.yaml")])
        listening = re.compile(r'"listening","addr":"127.0.0.1:(\d+)"')

        def listens():
            assert proxy.process.poll() is None, proxy.said()
            return listening.search(proxy.said())

        proxy.port = int(eventually(f"{name} listens", listens).group(1))
        return proxy

    def stop(self):
        for server in self.servers:
            if server.process.poll() is None:
                server.send(signal.SIGCONT)
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
