"""Starts redis-servers and a proxy on free ports of loopback, and speaks to them.

A deployment is one data node, some lock nodes and the proxy, all real processes, which `close` ends
by their process ids. `Client` is just enough of the protocol to look at what other programs did.
"""

import pathlib
import socket
import subprocess
import time
import urllib.request

# How long anything may take that works at once on an idle machine.
PATIENCE = 60


class Fault(Exception):
    """What was looked for is not so."""


class Client:
    """One connection, in RESP2. An error of the server is returned, as an ErrorReply."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.lines = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"*%d\r\n%s" % (len(words), b"".join(parts)))

    def read(self):
        line = self.lines.readline()
        if not line.endswith(b"\r\n"):
            raise Fault("the server has closed the connection")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"+":
            return rest
        if kind == b"-":
            return ErrorReply(rest)
        if kind == b":":
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b"$":
            return self.lines.read(int(rest) + 2)[:-2].decode(errors="replace")
        return [self.read() for _ in range(int(rest))]

    def __call__(self, *words):
        self.send(*words)
        return self.read()

    def close(self):
        self.lines.close()
        self.socket.close()


class ErrorReply(str):
    pass


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(what, is_so):
    """Waits until `is_so` returns something, and returns that."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := is_so():
            return found
        time.sleep(0.05)
    raise Fault(f"not within {PATIENCE} s: {what}")


def answers(port):
    try:
        client = Client(port)
        try:
            return client("PING") == "PONG"
        finally:
            client.close()
    except (OSError, Fault):
        return False


class Deployment:
    """`rules` are the lines of the configuration beside listen, data and locks."""

    def __init__(self, binary, directory, name, nodes, rules):
        self.name, self.running = name, []
        self.directory = pathlib.Path(directory, name)
        self.directory.mkdir()
        try:
            self.nodes = [self.start_redis(f"node{n}") for n in range(nodes)]
            self.data = self.start_redis("data")
            self.port, self.admin = free_port(), free_port()
            urls = ", ".join(f"redis://127.0.0.1:{port}" for port in self.nodes)
            file = self.directory / "lockgate.yaml"
            # A machine that builds beside this test votes late; programs wait longer than the default max_wait.
            file.write_text(
                f"listen: 127.0.0.1:{self.port}\nadmin: 127.0.0.1:{self.admin}\ndata: redis://127.0.0.1:{self.data}\n"
                f"locks: {{nodes: [{urls}], node_timeout: 250ms, max_wait: 2m}}\n{rules}"
            )
            subprocess.run([binary, "init", file], check=True, stdout=subprocess.DEVNULL)
            self.start([binary, "--config", file], "proxy")
            eventually(f"the proxy answers ({self.directory}/proxy.log)", lambda: answers(self.port))
        except BaseException:
            self.close()
            raise

    def start(self, command, name):
        with open(self.directory / f"{name}.log", "w") as log:
            out = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.running.append(subprocess.Popen(command, **out))

    def start_redis(self, name):
        port = free_port()
        place = self.directory / name
        place.mkdir()
        self.start(["redis-server", "--port", str(port), "--save", "", "--dir", place], name)
        eventually(f"{name} answers", lambda: answers(port))
        return port

    def ask(self, *words):
        """Asks the proxy, over a connection for this alone."""
        return self.ask_at(self.port, *words)

    def ask_data(self, *words):
        return self.ask_at(self.data, *words)

    @staticmethod
    def ask_at(port, *words):
        client = Client(port)
        try:
            return client(*words)
        finally:
            client.close()

    def connections(self):
        """Returns the data node's connections by their ids: the proxy's own, and one for each client."""
        lines = self.ask_data("CLIENT", "LIST").splitlines()
        return {line.split()[0].removeprefix("id=") for line in lines}

    def break_connections(self, spared):
        """Ends all connections at the data node but these, and so the clients' connections to the proxy."""
        for connection in self.connections() - spared:
            self.ask_data("CLIENT", "KILL", "ID", connection)

    def entries(self, *words):
        """Returns the entries of a LOCKGATE command, each with its fields by name."""
        return [dict(zip(entry[::2], entry[1::2])) for entry in self.ask("LOCKGATE", *words)]

    def metric(self, series):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=PATIENCE) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f"{series} "):
                    return float(line.split()[-1])
        return 0.0

    def nodes_with(self, lock):
        """Returns how many lock nodes have the lock."""
        return sum(self.ask_at(port, "EXISTS", f"lock:{lock}") for port in self.nodes)

    def close(self):
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
