"""A client of bench/lock-set, which adds to a set by read, change, write under a lock.

    lock_set.py LOCK NUMBER SEED TTL_MS DATA_PORT DIRECTORY PORT…

LOCK is set-nx (redis-py's Lock on the Redis that the file DIRECTORY/master names),
redlock (redlock-py over all ports), or lease or session (Lockgate, on the first port).
Each add that the data node has acknowledged is a line in DIRECTORY/acks.NUMBER, with
the time. DIRECTORY/holder says who has the lock, and until when.
"""

import logging
import os
import pathlib
import random
import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

KEY = "set:1"
# How long a client has the lock, s: most of them for a moment, some for half of its TTL and longer.
SHORT, LONG, SHARE_OF_LONG = 0.01, (0.8, 1.2), 0.02


# Nothing is sent twice, and a server that is gone is told of at once: the loop is there to try again.
ONCE = {"retry": Retry(NoBackoff(), 0)}


def connect(port):
    return redis.Redis(port=port, decode_responses=True, single_connection_client=True, socket_timeout=20, **ONCE)


class SetNx:
    """As redis-py's documentation has it, with the lock's Redis found anew for each lock."""

    def __init__(self, directory, _ports, data_port, ttl_ms):
        self.master, self.ttl_ms, self.data = directory / "master", ttl_ms, connect(data_port)

    def lock(self):
        client = redis.Redis(port=int(self.master.read_text()), socket_timeout=1, **ONCE)
        self.held = client.lock(KEY + ":lock", timeout=self.ttl_ms / 1000, blocking_timeout=5)
        return self.held.acquire()

    def unlock(self):
        self.held.release()


class RedlockPy:
    def __init__(self, _directory, ports, data_port, ttl_ms):
        from redlock import Redlock

        # It logs each node that does not answer, with its stack.
        logging.disable(logging.CRITICAL)
        nodes = [{"host": "127.0.0.1", "port": port, "socket_timeout": 1, **ONCE} for port in ports]
        self.library, self.ttl_ms, self.data = Redlock(nodes), ttl_ms, connect(data_port)

    def lock(self):
        self.held = self.library.lock(KEY + ":lock", self.ttl_ms)
        return bool(self.held)

    def unlock(self):
        self.library.unlock(self.held)


class Lockgate:
    """The lock and the data on one connection."""

    def __init__(self, _directory, ports, _data_port, ttl_ms):
        self.data, self.ttl = connect(ports[0]), ["PX", ttl_ms]

    def lock(self):
        return self.data.execute_command("LOCK", KEY, *self.ttl, "WAIT", 5000) is not None

    def unlock(self):
        self.data.execute_command("UNLOCK", KEY)


class LockgateSession(Lockgate):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ttl = []


LOCKS = {"set-nx": SetNx, "redlock": RedlockPy, "lease": Lockgate, "session": LockgateSession}


def main():
    kind, number, seed, ttl_ms, data_port, directory, *ports = sys.argv[1:]
    directory = pathlib.Path(directory)
    chance = random.Random(f"{seed} {number}")
    lock = LOCKS[kind](directory, list(map(int, ports)), int(data_port), int(ttl_ms))
    acks = os.open(directory / f"acks.{number}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    holder = os.open(directory / "holder", os.O_WRONLY)
    note = lambda what: os.write(acks, f"{time.time():.6f} {what}\n".encode())
    element = 0
    while not (directory / "end").exists():
        try:
            if not lock.lock():
                continue
        except Exception:  # whatever the library calls it: no lock
            note("no-lock")
            time.sleep(0.1)
            continue
        try:
            works = chance.uniform(*LONG) if chance.random() < SHARE_OF_LONG else SHORT
            os.pwrite(holder, f"{number:>4} {time.time():.6f} {time.time() + works:.6f}\n".encode(), 0)
            members = lock.data.get(KEY)
            time.sleep(works)
            element += 1
            mine = f"{number}.{element}"
            lock.data.set(KEY, f"{members},{mine}" if members else mine)
            note(mine)
        except redis.RedisError as error:
            note("refused" if str(error).startswith(("NOTHELD", "FENCED", "LOCKLOST")) else "error")
        finally:
            try:
                lock.unlock()
            except Exception:  # it is not this client's any more, or runs out
                note("no-unlock")


main()
