"""What the benchmarks share: processes of their own on free ports, and their CPU time."""

import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def free_port():
    # Below those that the kernel gives to outgoing connections, of which one could
    # take it before it is listened on.
    for _ in range(1000):
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    sys.exit("no free port")


class Processes:
    """Children that are stopped, by their own ids, however this ends."""

    def __init__(self):
        self.running = []

    def start(self, arguments, port):
        if arguments[1:2] == ["--config"]:
            # Nodes of these measurements are new. A build from before knows no init.
            subprocess.run([arguments[0], "init", "--if-new", arguments[2]], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        child = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.running.append(child)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if child.poll() is not None:
                sys.exit(f"{arguments[0]} ended with {child.returncode}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return child.pid
            except OSError:
                time.sleep(0.02)
        sys.exit(f"{arguments[0]} does not listen")

    def redis(self, directory):
        """A redis-server without persistence: its port and process id."""
        port = free_port()
        arguments = [program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                     "--dir", str(directory)]
        return port, self.start(arguments, port)

    def stop(self):
        for child in self.running:
            child.kill()
        for child in self.running:
            child.wait()


def cpu_ns(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except FileNotFoundError:
            pass
    return total


def memory_mb(pid, field):
    """A field of /proc/PID/status: VmRSS now, VmHWM at the most."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def program(name):
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    return found or sys.exit(f"{name} is missing; scripts/setup.sh installs it")


def lockgate(processes, directory, name, data, nodes, rules, binary=None):
    """A proxy of the release build, or of another, before these ports: its port and process id."""
    port = free_port()
    file = directory / f"{name}.yaml"
    nodes = ", ".join(f"redis://127.0.0.1:{node}" for node in nodes)
    file.write_text(f"listen: 127.0.0.1:{port}\nadmin: off\ndata: redis://127.0.0.1:{data}\n"
                    f"locks:\n  nodes: [{nodes}]\n{rules}")
    binary = binary or str(ROOT / "target/release/lockgate")
    return port, processes.start([binary, "--config", str(file)], port)


def haproxy(processes, directory, data, threads, more=None):
    """HAProxy as a TCP relay to the data node: its port and process id. `more`: what else it binds."""
    port, file = free_port(), directory / "haproxy.cfg"
    file.write_text(
        f"global\n  nbthread {threads}\n  maxconn 4000\ndefaults\n  mode tcp\n"
        "  timeout connect 1s\n  timeout client 1h\n  timeout server 1h\n"
        f"listen bench\n  bind 127.0.0.1:{port}\n" + (f"  bind {more}\n" if more else "")
        + f"  server data 127.0.0.1:{data}\n")
    return port, processes.start([program("haproxy"), "-f", str(file)], port)


def twemproxy(processes, directory, data):
    """twemproxy before the data node: its port and process id."""
    port, file = free_port(), directory / "nutcracker.yml"
    file.write_text(
        f"bench:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n"
        f"  distribution: ketama\n  servers:\n    - 127.0.0.1:{data}:1\n")
    stats = str(free_port())
    return port, processes.start([program("nutcracker"), "-c", str(file), "-s", stats, "-m", "65536"], port)


def forward(port, pid, clients, options, commands):
    """CPU of the process for each command of redis-benchmark, in µs."""
    arguments = [program("redis-benchmark"), "-p", str(port), "-c", str(clients), "-q", "-n", str(commands)]
    before = cpu_ns(pid)
    done = subprocess.run(arguments + options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0 or b"requests per second" not in done.stdout:
        sys.exit(f"redis-benchmark failed: {done.stdout.decode()[-500:]}")
    return (cpu_ns(pid) - before) / commands / 1000
