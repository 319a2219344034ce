"""Programs beside the tests: one that adds to a counter, one that forgets a grant, and one that forks."""

import asyncio
import contextlib
import gc
import os
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


globals()[what](*words)
