"""Programs of other languages as processes, and how those in Go are built."""

import os
import pathlib
import subprocess
import threading

from deployment import Fault

HERE = pathlib.Path(__file__).resolve().parent
# How long any program may take: some wait until those of all other languages are done.
LIMIT = 900


class Program:
    """A process of a language, with its output. None runs for longer than LIMIT, nor after the run."""

    running = []

    def __init__(self, command, **options):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.name = " ".join(pathlib.Path(str(word)).name for word in command[:4])
        # What it does not say or do in time fails where that is waited for.
        self.limit = threading.Timer(LIMIT, self.process.kill)
        self.limit.daemon = True
        self.limit.start()
        Program.running.append(self)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise Fault(f"{self.name} said nothing: {self.process.stderr.read()[-500:]}")
        return line.rstrip("\n")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def runs(self):
        return self.process.poll() is None

    def end(self):
        """Waits for its end, and returns what it printed."""
        said, problems = self.process.communicate()
        if self.process.returncode != 0:
            raise Fault(f"{self.name} ended with {self.process.returncode}: {problems[-500:]}")
        return said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.limit.cancel()
        self.process.kill()
        self.process.wait()


def all_end(programs):
    """Waits until all have ended, and returns what each printed."""
    return [program.end() for program in programs]


def build(file, directory):
    """Compiles a program in Go with the libraries of Debian, offline, and returns the binary."""
    binary = directory / pathlib.Path(file).stem
    cache = HERE.parents[2] / "target" / "languages"
    environment = os.environ | {"GOPATH": "/usr/share/gocode", "GO111MODULE": "off", "GOFLAGS": ""}
    environment |= {"GOCACHE": str(cache), "GOPROXY": "off", "CGO_ENABLED": "0"}
    built = subprocess.run(
        ["go", "build", "-o", binary, file], env=environment, capture_output=True, text=True
    )
    if built.returncode != 0:
        raise Fault(f"{file}: {built.stderr}")
    return binary
