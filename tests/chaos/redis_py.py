"""A stock redis-py, used as a naive user would: LOCK, read, compute, write, UNLOCK.

    redis_py.py SEED NUMBER PROXY HISTORY CONTROL KEYS MAX_TTL [PREFIX ASIDE]

With a prefix it locks by redis-py's own Lock, on keys that begin so: the proxies adopt them. Nothing is set but the address (and for some RESP2): RESP3, retries, time-outs and the pool
are the library's own. It writes down what it asks and is told, as history.rs has it, and judges nothing. It
ends when CONTROL is empty.
"""

import os
import random
import sys
import time

import redis
from redis.exceptions import LockNotOwnedError

seed, number, proxy, history, control, keys, max_ttl = sys.argv[1:8]
prefix, aside = sys.argv[8:] or (None, None)
number, keys, max_ttl = int(number), int(keys), int(max_ttl)
chance = random.Random(int(seed))
host, port = proxy.rsplit(":", 1)
# One in two as a pool, which in one thread is one connection too; and so with RESP2.
protocol = {"protocol": 2} if number % 4 > 1 else {}


def connected():
    """A client. One that is no pool connects at once, which may fail where everything does."""
    while True:
        try:
            is_single = number % 2 == 0
            return redis.Redis(host, int(port), decode_responses=True, single_connection_client=is_single, **protocol)
        except redis.ConnectionError:
            time.sleep(0.1)


client = connected()
lines = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
written = taken = 0


class Ended(Exception):
    """Nothing more can be done with this lock."""


def note(event):
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    os.write(lines, f"{now} {event}\n".encode())


def ask(event, talk, read):
    """Asks, and writes down both; anything else than an answer is the end."""
    note(event)
    try:
        reply = talk()
    except redis.TimeoutError:
        note("timeout")
    except redis.ConnectionError:
        note("ended")
    except redis.ResponseError as error:
        word = word_of(error)
        note("lost" if word == "LOCKLOST" else f"error {word}")
    else:
        answer, good = read(reply)
        note(answer)
        if good:
            return reply
    raise Ended


def word_of(error):
    """The first word; of an error that the library knows, its name there."""
    return str(error).split(" ")[0] if type(error) is redis.ResponseError else type(error).__name__


def number_of(reply):
    return f"number {reply}", reply > 0


def update(key, name, before):
    """Writes what comes after what was read, perhaps with more in the same pipeline."""
    global written
    written += 1
    value = f"{number}-{written}"
    if chance.random() < 0.7:
        ask(f"setting {key} {value} {before} 1", lambda: client.set(name, value), lambda _: ("set", True))
        return value
    parts = chance.randint(2, 4)

    def talk():
        pipeline = client.pipeline(transaction=False)
        for _ in range(parts):
            pipeline.set(name, value)
        return pipeline.execute(raise_on_error=False)

    def read(replies):
        errors = [word_of(reply) for reply in replies if isinstance(reply, Exception)]
        if not errors:
            return "set", True
        word = "LOCKLOST" if "LOCKLOST" in errors else errors[0]
        made = "".join("-" if isinstance(reply, Exception) else "+" for reply in replies)
        return f"partly {made} {word}", False

    ask(f"setting {key} {value} {before} {parts}", talk, read)
    return value


def work(key, renew):
    name = f"stock:{key}"
    for _ in range(chance.choice([1, 1, 1, 2])):
        value = ask(f"sent Get {key}", lambda: client.get(name), lambda value: (f"value {value or 'none'}", True))
        # Mostly in time. Sometimes up to the end of the lock, and beyond.
        time.sleep(chance.uniform(0.001, 0.1) if chance.random() < 0.7 else chance.uniform(0.1, max_ttl / 1000))
        if chance.random() < 0.1:
            renew()
        update(key, name, value or "none")


# The first locks, as trace.rs has it.
family, permits = "key-p", 3


def name_of(number_of_lock):
    if number_of_lock < permits:
        return f"{family}#{number_of_lock}"
    return f"{'free' if number_of_lock % 4 == 3 else 'key'}-{number_of_lock}"


def lock_and_work():
    key = name_of(chance.randrange(keys))
    ttl = chance.choice([None, None, None, chance.randint(400, max_ttl)])
    words = ["LOCK", key]
    # Any free permit, instead of this one by its name.
    if "#" in key and keys >= permits and chance.random() < 0.5:
        count = chance.randint(2, permits)
        key, words = ",".join(map(name_of, range(count))), ["LOCK", family, "PERMITS", count]
    words += ["PX", ttl] if ttl else []
    if chance.random() < 0.6:
        words += ["WAIT", chance.randint(50, 1500)]
    kind = "Lease" if ttl else "Session"
    got = ask(f"sent {kind} {key}", lambda: client.execute_command(*words),
              lambda got: (f"granted {' '.join(map(str, got))}", True) if got else ("held", False))
    token, key = got[0], (got[3:] or [key])[0]

    def renew():
        words = ["RENEW", key, token] + (["PX", ttl] if ttl else [])
        ask(f"sent Renew {key}", lambda: client.execute_command(*words), number_of)

    try:
        work(key, renew)
    finally:
        ask(f"sent Unlock {key}", lambda: client.execute_command("UNLOCK", key, token), number_of)


def owned(act):
    """What a method of the lock comes to, as a script's reply."""
    try:
        act()
    except LockNotOwnedError:
        return 0
    return 1


def poll(lock, key, token, ttl):
    """Acquires as the library does, but for its pause."""
    for _ in range(chance.randint(1, 20)):
        try:
            return ask(f"idiom Take {key} {token} {ttl} {aside}", lambda: lock.acquire(blocking=False, token=token),
                       lambda got: ("set", True) if got else ("held", False))
        except Ended:
            time.sleep(chance.uniform(0.005, 0.1))
    raise Ended


def adopted_lock_and_work():
    global taken
    # Nobody may delete these locks without asking whose they are.
    key = name_of(chance.choice([lock for lock in range(keys) if lock % 8 != 7]))
    # Times that are whole in ms as the library multiplies them.
    ttl = 125 * chance.randint(4, max_ttl // 125)
    taken += 1
    token = f"py-{number}-{taken}"
    lock = client.lock(prefix + key, timeout=ttl / 1000)
    poll(lock, key, token, ttl)

    def renew():
        if chance.random() < 0.5:
            ask(f"idiom Extend {key} {token} {ttl} {aside}", lambda: owned(lock.reacquire), number_of)
        else:
            more = 125 * chance.randint(1, 4)
            ask(f"idiom Add {key} {token} {more} {aside}", lambda: owned(lambda: lock.extend(more / 1000)), number_of)

    try:
        work(key, renew)
    finally:
        # After an error the library's lock has forgotten its token already.
        if lock.local.token:
            ask(f"idiom Release {key} {token} 0 {aside}", lambda: owned(lock.release), number_of)


while os.path.getsize(control) > 0:
    time.sleep(chance.uniform(0.002, 0.06))
    try:
        adopted_lock_and_work() if prefix else lock_and_work()
    except Ended:
        pass
note("over")
