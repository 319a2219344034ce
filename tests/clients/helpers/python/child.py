"""Programs beside the tests: one that adds to a counter, one that forgets a grant, one that forks, and one that is
interrupted at any moment, as by Ctrl-C.
"""

import asyncio
import contextlib
import functools
import gc
import os
import random
import signal
import sys
import time
import warnings

import lockgate
import lockgate.asyncio
import redis
import redis.asyncio

what, port, *words = sys.argv[1:]


def add(kind, protocol, times):
    """Reads, thinks, and writes under the lock: without it updates are lost."""
    r = redis.Redis(port=int(port), protocol=int(protocol))

    def once():
        value = int(r.get("counter") or 0)
        time.sleep(0.002)
        r.set("counter", value + 1)

    async def tasks():
        async def one():
            # An UNLOCK that the proxy repeats, as lock nodes are late, may find the lock gone.
            with contextlib.suppress(lockgate.LockLost):
                async with lockgate.asyncio.lock(a, "counter"):
                    once()

        async with redis.asyncio.Redis(port=int(port), protocol=int(protocol)) as a:
            await asyncio.gather(*(one() for _ in range(int(times))))

    if kind == "tasks":
        return asyncio.run(tasks())
    for _ in range(int(times)):
        with contextlib.suppress(lockgate.LockLost), lockgate.lock(r, "counter"):
            once()


def forget():
    warnings.simplefilter("always")
    warnings.showwarning = lambda text, kind, *_: print(f"{kind.__name__}: {str(text).partition(';')[0]}", flush=True)
    lockgate.lock(redis.Redis(port=int(port)), "forgotten").acquire()
    gc.collect()
    sys.stdin.read()


def in_child(key, *steps):
    """Says what becomes of these steps in a fork, and of a lock of its own."""
    if os.fork():
        os.wait()
        return
    told = []
    try:
        for step in (*steps, lockgate.lock(redis.Redis(port=int(port)), key, wait=0).acquire):
            try:
                step()
                told.append("held")
            except BaseException as error:
                told.append(type(error).__name__)
        print("child: " + ", ".join(told), flush=True)
    finally:
        os._exit(0)


def stays():
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)


def fork(kind):
    key = f"fork:{kind}"

    async def tasks():
        a = redis.asyncio.Redis(port=int(port))
        async with lockgate.asyncio.lock(a, key) as grant:
            in_child(key, grant.check, lambda: grant.release().send(None))
            await asyncio.sleep(4.5)  # longer than the TTL
            grant.check()
            print("parent: held", flush=True)
            stays()
            await asyncio.sleep(60)

    if kind == "tasks":
        return asyncio.run(tasks())
    with lockgate.lock(redis.Redis(port=int(port)), key) as grant:
        in_child(key, grant.check, grant.release)
        time.sleep(4.5)
        grant.check()
        print("parent: held", flush=True)
        stays()
        time.sleep(60)


def interrupted(seconds, body):
    """Runs a function, and ends it by a KeyboardInterrupt at a random moment of this time, if it lasts as long."""
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, seconds))
        try:
            body()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    except (TypeError, RuntimeError, redis.RedisError):  # what an interrupt may become within redis-py
        pass


def is_free(q, key):
    return q.execute_command("LOCKGATE", "LOCK", key) is None


def interrupts(times):
    """Tells which locks stay behind blocks that were interrupted, and what was wrong in those that went on."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    r, q = redis.Redis(port=int(port)), redis.Redis(port=int(port))
    r.ping(), q.ping()
    left = [f"interrupted:{n}" for n in range(int(times))]

    def locks(key):
        with lockgate.lock(r, key), lockgate.lock(r, key):
            sum(range(random.randrange(3000)))

    for key in left:
        interrupted(0.006, functools.partial(locks, key))
    deadline = time.monotonic() + 20
    while (left := [key for key in left if not is_free(q, key)]) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.2)
    print(f"{len(left)} stay", flush=True)

    r.set("marker", "m")
    wrong, lost, went_on = [], 0, 0

    def increments(own):
        until = time.monotonic() + 0.05  # An interrupt amid a finaliser is lost.
        while time.monotonic() < until:
            own.incr("number")

    for n in range(int(times)):
        try:
            with lockgate.lock(r, f"goes on:{n}") as grant:
                # Its reply would be a validity of months, if it were taken for that.
                grant.redis.set("number", 9_000_000_000)
                interrupted(0.003, functools.partial(increments, grant.redis))
                told = grant.redis.get("marker")
                if told != b"m" or grant.remaining() > 60:
                    wrong.append((told, grant.remaining()))
                went_on += 1
        except (lockgate.LockLost, TypeError, RuntimeError, redis.RedisError):
            lost += 1
    print(f"wrong: {wrong[:3]}", flush=True)
    # An interrupt amid the sending of a command costs the lock.
    print("most go on" if went_on > lost else f"{went_on} went on, {lost} lost", flush=True)


globals()[what](*words)
