#!/usr/bin/env python3
"""Drives libraries for Go, Ruby, Perl, PHP and Lua through a proxy, as Debian packages them.

    run.py target/release/lockgate [go|ruby|perl|php|lua ...]

It starts redis-servers and two proxies: one with five lock nodes, guards and enforced adopt rules, and
one that audits. Each library's programs (README.md) and those of its page in docs/clients/ run as
processes of their own; what they did is looked at on the servers. It prints a table of which program
was run with which version, and ends with 1 if any did not do what it should.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from deployment import Client, Deployment, Fault, eventually
from libraries import LANGUAGES, version_of
from programs import HERE, Program, all_end, build

PAGES = HERE.parents[2] / "docs" / "clients"
RULES = """
guards:
  - {keys: "account:*", lock: "account:{1}"}
adopt:
  - {keys: "lock:*", lock: "{1}", mode: enforce}
  - {keys: "PHPREDIS_SESSION:*_LOCK", mode: enforce}
"""
AUDIT = 'adopt: [{keys: "lock:*", lock: "{1}", mode: audit}]'
# phpredis's settings for sessions that wait for their lock, however long that takes.
SESSIONS = ["session.save_handler=redis", "redis.session.locking_enabled=1", "session.use_cookies=0"]
SESSIONS += ["session.cache_limiter=", "redis.session.lock_retries=-1", "redis.session.lock_expire=30"]


class Run:
    """One run of the programs of some languages."""

    def __init__(self, binary, directory):
        self.binary, self.directory, self.deployments = binary, pathlib.Path(directory), []
        self.rows, self.failed, self.names = [], False, 0

    def __enter__(self):
        try:
            self.proxy = self.deploy("enforce", 5, RULES)
            self.audit = self.deploy("audit", 1, AUDIT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def deploy(self, name, nodes, rules):
        deployment = Deployment(self.binary, self.directory, name, nodes, rules)
        self.deployments.append(deployment)
        return deployment

    def __exit__(self, *_):
        for program in Program.running:
            program.__exit__()
        for deployment in self.deployments:
            deployment.close()

    def name(self):
        """Returns a name for keys that nobody has used."""
        self.names += 1
        return f"name{self.names}"

    def row(self, language, library, version, program, check):
        try:
            result = check()
        except (Fault, OSError) as fault:
            self.failed = True
            result = f"FAILED: {fault}"
        row = (language, library, version, program, result)
        self.rows.append(row)
        print(" | ".join(row), flush=True)

    def command(self, words):
        """Returns a program's command, with the places of files that this run has made."""
        return [word.format(go=self.directory) if "{go}" in word else word for word in words]

    # Locks of one Redis, through adopt rules.

    def adopted_count(self, command):
        """Four processes at once lose no update, and the lock is on the lock nodes, not on the data node."""
        name, times = self.name(), 10
        programs = [Program([*command, "count", self.proxy.port, name, times]) for _ in range(4)]
        nodes, on_data = 0, 0
        while any(program.runs() for program in programs):
            nodes = max(nodes, self.proxy.nodes_with(name))
            on_data += self.proxy.ask_data("EXISTS", f"lock:{name}")
            time.sleep(0.01)
        all_end(programs)
        self.counted(name, 4 * times)
        if nodes < 3 or on_data:
            raise Fault(f"the lock was seen on {nodes} lock nodes, and {on_data} times on the data node")
        self.only_quorum(self.proxy)
        return f"4 processes, {4 * times} added, none lost; the lock on {nodes} lock nodes"

    def counted(self, name, wanted):
        count = self.proxy.ask_data("GET", f"{name}:count")
        if count != str(wanted):
            raise Fault(f"lost updates: {count} of {wanted}")

    @staticmethod
    def only_quorum(deployment):
        """Lock nodes answered each adopted command, or would have."""
        for entry in deployment.entries("ADOPTED"):
            if entry["times"] and entry["verdict"] not in ("quorum", "noscript"):
                raise Fault(f"an adopted command was not for the lock nodes: {entry}")

    def adopted_death(self, command, has_watchdog):
        """The lock of a holder that is killed is free once its TTL is over, and no sooner."""
        name = self.name()

        def take():
            return self.proxy.ask("SET", f"lock:{name}", "other", "NX", "PX", 1000) == "OK"

        with Program([*command, "hold", self.proxy.port, name]) as holder:
            holder.line()
            # Longer than the TTL, if the holder prolongs it.
            end = time.monotonic() + (8 if has_watchdog else 1)
            while time.monotonic() < end:
                if take():
                    raise Fault("another client was granted the lock beside its holder")
                time.sleep(0.1)
        killed = time.monotonic()
        if take():
            raise Fault("the lock was free at once")
        eventually("the lock is free", take)
        kept = "kept for 8 s by its watchdog, " if has_watchdog else ""
        return f"{kept}free {time.monotonic() - killed:.1f} s after its holder was killed (TTL 5 s)"

    def adopted_audit(self, command):
        """Audit says beforehand that the lock nodes would answer."""
        name = self.name()
        with Program([*command, "count", self.audit.port, name, 3]) as program:
            program.end()
        self.only_quorum(self.audit)
        idioms = {entry["idiom"] for entry in self.audit.entries("ADOPTED") if entry["times"]}
        if not {"acquire", "release"} <= idioms:
            raise Fault(f"audit has seen only {idioms}")
        return "audit: all of it would be answered by the lock nodes"

    # Commands through the proxy.

    def data(self, command):
        name = self.name()
        with Program([*command, "data", self.proxy.port, name]) as program:
            proxy = self.proxy

            def blocked():
                if not program.runs():
                    program.end()
                return "cmd=blpop" in proxy.ask_data("CLIENT", "LIST")

            def heard():
                if not program.runs():
                    program.end()
                return proxy.ask_data("PUBLISH", name, "said") == 1

            eventually("it waits for the list", blocked)
            proxy.ask("RPUSH", f"{name}:list", "pushed")
            eventually("it has subscribed", heard)
            program.end()
        return "pipeline, MULTI, BLPOP, 8 MB, all bytes, SUBSCRIBE: as on Redis"

    def loss(self, command):
        name = self.name()
        with Program([*command, "loss", self.proxy.port, name]) as program:
            if program.line() != "held" or self.proxy.ask("LOCK", name, "other") is not None:
                raise Fault("the session lock is not held")
            if self.proxy.ask("LOCKGATE", "UNLOCK", name, "ANY") != 1:
                raise Fault("LOCKGATE UNLOCK has found no lock")
            program.go_on()
            first, second = program.line(), program.line()
            if "LOCKLOST" not in first or not first.startswith("error") or second != "null":
                raise Fault(f"after the loss: {first}, {second}")
        with Program([*command, "loss", self.proxy.port, name]) as program:
            program.line()
        eventually("the lock ends with its process", lambda: self.proxy.nodes_with(name) == 0)
        return "LOCKLOST is told once, and the lock ends with its process"

    # What the library does by default.

    def gives_up(self, command, seconds):
        """Starts a LOCK that waits longer than the library; returns what tells the end of it."""
        name = self.name()
        self.audit.ask("LOCK", name, "holder", "EX", 60)
        wait = 1000 * (seconds + 6 if seconds else 15)
        # A lease of the holder may end before that.
        holder = Client(self.audit.port)
        holder("RENEW", name, "holder")
        program = Program([*command, "ask", self.audit.port, name, int(wait)])

        def told():
            took, said = program.end().rstrip("\n").split(" ", 1)
            holder.close()
            took = float(took)
            if seconds is None and said != "null":
                raise Fault(f"it gave up after {took} s: {said}")
            if seconds and (not said.startswith("error") or took < seconds - 0.5):
                raise Fault(f"after {took} s: {said}")
            return f"gave up after {took:.0f} s" if seconds else f"waited {took:.0f} s for a reply"

        return told

    def unanswered(self, command, wanted):
        name, proxy = self.name(), self.proxy
        proxy.ask("LOCK", name, "holder", "EX", 60)

        def waits():
            return [entry["address"] for entry in proxy.entries("WAITERS", name)]

        spared = proxy.connections()
        with Program([*command, "ask", proxy.port, name, "30000"]) as program:
            first = eventually("it waits for the lock", waits)
            proxy.break_connections(spared)
            eventually("it notices", lambda: not program.runs() or waits() not in ([], first))
            is_repeated = program.runs()
            proxy.ask("LOCKGATE", "UNLOCK", name, "ANY")
            said = program.end().split(" ", 1)[1].rstrip("\n")
        if ("repeated" if is_repeated else said.split(":")[0]) != wanted:
            raise Fault(f"{'repeated' if is_repeated else 'not repeated'}: {said}")
        return "sent it again" if is_repeated else f"did not send it again ({said[:70]})"

    def idle(self, command, wanted):
        spared = self.proxy.connections()
        with Program([*command, "idle", self.proxy.port, self.name()]) as program:
            program.line()
            if "resp=3" in self.proxy.ask_data("CLIENT", "LIST"):
                raise Fault("it speaks RESP3")
            self.proxy.break_connections(spared)
            program.go_on()
            said = [program.line(), program.line()]
        if [line.split(":")[0] for line in said] != wanted:
            raise Fault(f"the next two commands: {said}")
        return f"RESP2; after a broken connection: {', '.join(line.split(':')[0] for line in said)}"

    # Programs of the pages.

    def write(self, language, text, number):
        """Puts a program of a page into a file, and returns how it is started."""
        file = self.directory / f"page{number}.{language}"
        file.write_text(text)
        if language == "go":
            return [build(file, self.directory)]
        return [*LANGUAGES[language].start, str(file)]

    def short(self, language, text, number):
        """Starts it while too few lock nodes vote, on servers of its own; returns what tells the end of it.

        A LOCK that waits is told of NOQUORUM when its WAIT is over.
        """
        proxy = self.deploy(f"short-{language}{number}", 1, "")
        node = proxy.entries("NODES")[0]["address"]
        proxy.ask("LOCKGATE", "NODE", node, "PAUSE", "FORCE")
        proxy.ask_data("SET", "reports", 7)
        command = self.write(language, text.replace("6380", str(proxy.port)), number)
        program = Program(command)

        def told():
            self.asks_again(proxy, program)
            if proxy.ask_data("GET", "reports") != "7":
                raise Fault("it goes on without the lock")
            proxy.ask("LOCKGATE", "NODE", node, "RESUME")
            program.end()
            holder = Client(proxy.port)
            eventually("the lock is free", lambda: isinstance(holder("LOCK", "report"), list))
            programs = [Program(command) for _ in range(2)]
            eventually("both wait", lambda: len(proxy.entries("WAITERS", "report")) == 2)
            if proxy.ask_data("GET", "reports") != "8":
                raise Fault("it goes on without the lock")
            if holder("UNLOCK", "report") != 1:
                raise Fault("the lock was taken from its holder")
            holder.close()
            all_end(programs)
            if proxy.ask_data("GET", "reports") != "10":
                raise Fault(f"{proxy.ask_data('GET', 'reports')} of 10 reports")
            eventually("the lock is given back", lambda: proxy.nodes_with("report") == 0)
            return "asks again after NOQUORUM, waits while another has the lock, adds one"

        return told

    @staticmethod
    def asks_again(proxy, program):
        refused = 'lockgate_lock_requests_total{operation="lock",result="no_quorum"}'

        def is_so():
            if not program.runs():
                program.end()
                raise Fault("it has ended without the lock")
            # Refused, and in line again.
            return proxy.metric(refused) >= 1 and proxy.entries("WAITERS", "report")

        eventually("it asks again after NOQUORUM", is_so)

    def long(self, command, kind):
        """Three processes lose no update while their locks are taken away and their connections break."""
        proxy, times = self.proxy, 300
        # Under the lock, as the key is guarded.
        setter = Client(proxy.port)
        eventually("the lock is free", lambda: isinstance(setter("LOCK", "account:1"), list))
        setter("SET", "account:1", 0)
        setter.close()
        # The proxy's own connections stay: without them it cannot check guarded writes, and says so by an error.
        spared = proxy.connections()
        programs = [Program([*command, proxy.port, times, kind]) for _ in range(3)]
        kills, taken = 0, 0
        last = time.monotonic()
        while any(program.runs() for program in programs):
            time.sleep(0.01)
            taken += proxy.ask("LOCKGATE", "UNLOCK", "account:1", "ANY") == 1
            if kills < 4 and time.monotonic() > last + 0.2:
                proxy.break_connections(spared)
                kills, last = kills + 1, time.monotonic()
        all_end(programs)
        added = int(proxy.ask_data("GET", "account:1"))
        if added < 3 * times or added > 3 * times + 3 * kills:
            raise Fault(f"{added} instead of {3 * times}")
        beyond = f", and {added - 3 * times} of unknown outcome" if added > 3 * times else ""
        if not taken or not kills:
            raise Fault(f"too fast: the lock taken away {taken} times, {kills} times all connections")
        return f"{kind}: {3 * times} added{beyond}; the lock taken away {taken} times, {kills} times all connections"

    # What there is in one language alone.

    def sidekiq(self):
        """Jobs are queued once each, and the real Sidekiq runs them through the proxy."""
        name = self.name()
        environment = os.environ | {"REDIS_URL": f"redis://127.0.0.1:{self.proxy.port}"}
        worker = HERE / "ruby" / "worker.rb"
        with Program(["ruby", worker, "push", name], env=environment) as push:
            pushed = push.end().strip()
        if pushed != "10":
            raise Fault(f"{pushed} of 10 different jobs are queued")
        # Its log may not fill a pipe that nobody reads.
        with open(self.directory / "sidekiq.log", "w") as log:
            command = ["sidekiq", "-c", "3", "-r", worker]
            out = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            sidekiq = subprocess.Popen(command, env=environment, **out)
            try:
                eventually("the jobs are done", lambda: self.proxy.ask_data("GET", f"{name}:count") == "10")
                unique = [f"{name}:unique:{n}" for n in range(10)]
                eventually("the locks are free", lambda: not any(map(self.proxy.nodes_with, unique)))
            finally:
                sidekiq.terminate()
                try:
                    sidekiq.wait(30)
                except subprocess.TimeoutExpired:
                    sidekiq.kill()
                    sidekiq.wait()
        with Program(["ruby", worker, "push", name], env=environment) as push:
            if push.end().strip() != "10":
                raise Fault("jobs that are done cannot be queued again")
        self.only_quorum(self.proxy)
        return "30 pushes of 10 jobs queue 10, and each runs once"

    def sessions(self):
        """Processes with one session wait for its lock, which the lock nodes hold, and lose no update."""
        name, times = self.name(), 10
        settings = [*SESSIONS, f"session.save_path=tcp://127.0.0.1:{self.proxy.port}"]
        command = ["php"] + [word for setting in settings for word in ("-d", setting)]
        script = HERE / "php" / "session.php"
        programs = [Program([*command, script, name, times]) for _ in range(4)]
        lock, nodes = f"PHPREDIS_SESSION:{name}_LOCK", 0
        while any(program.runs() for program in programs):
            nodes = max(nodes, self.proxy.nodes_with(lock))
            time.sleep(0.01)
        counts = [int(said) for said in all_end(programs)]
        if max(counts) != 4 * times or nodes < 3:
            raise Fault(f"lost updates: {max(counts)} of {4 * times}; the lock on {nodes} lock nodes")
        self.only_quorum(self.proxy)
        return f"4 processes, {4 * times} added to one session, none lost; its lock on {nodes} lock nodes"

    def impatient_sessions(self):
        """With the default of lock_retries, phpredis goes on without the lock, with a notice."""
        name = self.name()
        self.proxy.ask("LOCK", f"PHPREDIS_SESSION:{name}_LOCK", "other", "EX", 60)
        settings = [*SESSIONS, f"session.save_path=tcp://127.0.0.1:{self.proxy.port}"]
        settings = [setting for setting in settings if "lock_retries" not in setting]
        command = ["php"] + [word for setting in settings for word in ("-d", setting)]
        with Program([*command, HERE / "php" / "session.php", name, 1]) as program:
            _, problems = program.process.communicate()
        if "Acquire of session lock was not successful" not in problems:
            raise Fault(f"no notice: {problems}")
        if self.proxy.ask_data("EXISTS", f"PHPREDIS_SESSION:{name}"):
            raise Fault("it has written the session without the lock")
        return "by default it soon goes on without the lock, with a notice, and writes nothing"

    def language(self, language):
        """Runs all of a language but what takes long, which it starts: returns the rows that are still to tell."""
        about = LANGUAGES[language]
        waiting = self.page(language, about, is_long=False)
        for name, library in about.libraries.items():
            version, command = version_of(library.package), self.command(library.commands)
            told = self.gives_up(command, library.gives_up)
            waiting.append((language, name, version, "defaults, LOCK for longer", told))

            def row(program, check, *arguments):
                self.row(language, name, version, program, lambda: check(*arguments))

            for words in library.adopted:
                adopted = self.command(words)
                kind = " of redlock-rb" if "redlock" in words else ""
                row(f"SET NX{kind}", self.adopted_count, adopted)
                row(f"SET NX{kind}, killed", self.adopted_death, adopted, library.has_watchdog)
                # Without an enforced rule Redis answers digests, and knows none of redlock-rb's.
                if not kind:
                    row("SET NX, audited", self.adopted_audit, adopted)
            row("data", self.data, command)
            row("loss", self.loss, command)
            row("defaults", self.idle, command, library.idle)
            row("defaults, LOCK unanswered", self.unanswered, command, library.unanswered)
        self.page(language, about, is_long=True)
        if language == "ruby":
            self.row(language, "Sidekiq", version_of("ruby-sidekiq"), "jobs queued once", self.sidekiq)
        if language == "php":
            version = version_of("php-redis")
            self.row(language, "phpredis", version, "sessions", self.sessions)
            self.row(language, "phpredis", version, "sessions, defaults", self.impatient_sessions)
        return waiting

    def page(self, language, about, is_long):
        """Runs the page's programs as they stand there: those that take arguments, or starts the rest."""
        blocks = (PAGES / about.page).read_text().split(f"```{about.block}\n")[1:]
        if len(blocks) != len(about.programs):
            sys.exit(f"docs/clients/{about.page} has {len(blocks)} programs, not {len(about.programs)}")
        waiting = []
        for number, (block, name) in enumerate(zip(blocks, about.programs), 1):
            text = block.split("```")[0]
            if is_long != bool(re.search(r"argv|ARGV|os\.Args", text)):
                continue
            if name is None:
                waiting.append((language, "go-redis", "9", f"{about.page} {number}", self.not_run))
                continue
            # Perl's two modules have the same methods.
            for module in about.libraries if language == "perl" else [name]:
                here = text.replace("Redis->new", f"{module}->new").replace("use Redis;", f"use {module};")
                program = (language, module, version_of(about.libraries[module].package), f"{about.page} {number}")
                place = f"{number}{re.sub('[^A-Za-z]', '', module)}"
                if not is_long:
                    waiting.append((*program, self.short(language, here, place)))
                    continue
                command = self.write(language, here, place)
                for kind in ["lease", "session"]:
                    self.row(*program, lambda: self.long(command, kind))  # noqa: B023
        return waiting

    @staticmethod
    def not_run():
        return "not run: Debian has no go-redis 9"


def main():
    # Ended by a signal, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    languages = sys.argv[2:] or list(LANGUAGES)
    if len(sys.argv) < 2 or not set(languages) <= set(LANGUAGES):
        sys.exit(f"usage: run.py path/to/lockgate [{'|'.join(LANGUAGES)} ...]")
    binary = os.path.abspath(sys.argv[1])
    for tool in ["redis-server", binary]:
        if not shutil.which(tool):
            sys.exit(f"Missing: {tool}")
    for language in languages:
        for tool in LANGUAGES[language].tools:
            if not shutil.which(tool):
                sys.exit(f"Missing: {tool}. scripts/setup.sh languages installs it")
        for library in LANGUAGES[language].libraries.values():
            version_of(library.package)
    with tempfile.TemporaryDirectory() as directory:
        if "go" in languages:
            for file in (HERE / "go").glob("*.go"):
                build(file, pathlib.Path(directory))
        with Run(binary, directory) as run:
            for row in [row for language in languages for row in run.language(language)]:
                run.row(*row)
        print()
        rows = [("language", "library", "version", "program", "result"), *sorted(run.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)), row[4], sep="  ")
    return int(run.failed)


if __name__ == "__main__":
    sys.exit(main())
