"""What becomes of a lock when its proxy hangs, ends, comes back or is replaced, and when lock nodes go away."""

import asyncio
import signal
import time

import lockgate
import lockgate.asyncio
import redis
import redis.asyncio
from deployment import LIMIT, eventually
from lockgate import LockLost, NotAcquired
from threads import TTL, raises, refused


def test_a_proxy_that_hangs_is_told_by_the_clock(deployment):
    proxy = deployment.proxy("hangs")
    r = redis.Redis(port=proxy.port)
    with raises(LockLost, "confirmed"):
        with lockgate.lock(r, "hangs") as grant:
            proxy.send(signal.SIGSTOP)
            try:
                begun = time.monotonic()
                assert grant.lost.wait(LIMIT)
                # Nobody else has it before: the validity that was told is over, and the next is not granted.
                assert grant.remaining() == 0 and time.monotonic() - begun <= LIMIT
                with raises(LockLost):
                    grant.redis.set("x", 1)
            finally:
                proxy.send(signal.SIGCONT)


def test_a_proxy_that_is_killed_is_told_by_the_clock(deployment):
    proxy = deployment.proxy("dies")
    r = redis.Redis(port=proxy.port)
    with raises(LockLost, "confirmed"):
        with lockgate.lock(r, "dies") as grant:
            proxy.stop()
            # Until the validity is over nobody else can have it, and it is not told as lost.
            others = redis.Redis(port=deployment.calm.port)
            while not grant.lost.is_set():
                assert refused(others, "dies") or grant.remaining() == 0
            with raises(LockLost):
                grant.check()


def test_a_proxy_that_comes_back_in_time_ends_nothing(deployment):
    proxy = deployment.proxy("back", default_ttl="20s")
    for protocol in (2, 3):
        r = redis.Redis(port=proxy.port, protocol=protocol)
        key = f"account:back:{protocol}"
        with lockgate.lock(r, key) as grant:
            grant.redis.set(key, 1)
            fence = grant.fence
            proxy.stop()
            with raises(redis.ConnectionError):
                while True:
                    grant.redis.ping()
            proxy = deployment.proxy("back", port=proxy.port, default_ttl="20s")

            def written():
                try:
                    return grant.redis.incr(key)
                except redis.ConnectionError:
                    return None

            assert eventually("it is held through the new process", written) == 2
            assert grant.fence == fence and not grant.lost.is_set() and refused(r, key)
        assert not refused(r, key)


def test_an_upgrade_ends_nothing(deployment):
    proxy = deployment.proxy("upgraded")
    r = redis.Redis(port=proxy.port)
    with lockgate.lock(r, "upgraded") as grant:
        command = [deployment.binary, "--config", deployment.path("upgraded.yaml"), "--upgrade"]
        deployment.server("upgrade", command)

        def serves():
            with redis.Redis(port=proxy.port) as fresh:
                return b"earlier_process0" in fresh.execute_command("LOCKGATE", "INFO")

        eventually("the new process serves", serves)
        assert not grant.lost.wait(TTL * 1.2) and refused(r, "upgraded")
        with lockgate.lock(r, "another"):
            pass
    assert not refused(r, "upgraded")


def test_too_few_lock_nodes_are_told(deployment):
    nodes = [deployment.redis(name) for name in ("d", "e", "f")]
    proxy = deployment.proxy("few", nodes="def")
    r = redis.Redis(port=proxy.port)
    with raises(LockLost):
        with lockgate.lock(r, "few") as grant:
            for node in nodes[:2]:
                node.send(signal.SIGSTOP)
            assert grant.lost.wait(LIMIT)
            with raises(NotAcquired, "lock nodes") as _:
                lockgate.lock(r, "other", wait=0).acquire()
            # Who waits gets it as soon as they are back.
            for node in nodes[:2]:
                node.send(signal.SIGCONT)
            with lockgate.lock(r, "other", wait=LIMIT):
                pass


def test_a_lock_that_is_to_be_given_back_to_nobody_is_no_loss(deployment):
    proxy = deployment.proxy("gone", default_ttl="20s")
    with lockgate.lock(redis.Redis(port=proxy.port), "gone"):
        proxy.stop()
    # The same while a question hangs.
    proxy = deployment.proxy("silent", default_ttl="20s")
    with lockgate.lock(redis.Redis(port=proxy.port), "silent"):
        proxy.send(signal.SIGSTOP)


def test_a_task_is_told_of_a_proxy_that_hangs_and_keeps_its_lock_when_one_comes_back(deployment):
    proxy = deployment.proxy("task", default_ttl="20s")
    hangs = deployment.proxy("task-hangs")

    async def told():
        async with redis.asyncio.Redis(port=hangs.port) as r:
            with raises(LockLost, "confirmed"):
                async with lockgate.asyncio.lock(r, "task:hangs") as grant:
                    hangs.send(signal.SIGSTOP)
                    try:
                        await asyncio.wait_for(grant.lost.wait(), LIMIT)
                        with raises(LockLost):
                            await grant.redis.set("x", 1)
                    finally:
                        hangs.send(signal.SIGCONT)

    async def kept():
        async with redis.asyncio.Redis(port=proxy.port) as r:
            async with lockgate.asyncio.lock(r, "account:task") as grant:
                proxy.stop()
                await asyncio.to_thread(deployment.proxy, "task", port=proxy.port, default_ttl="20s")
                while True:
                    try:
                        await grant.redis.set("account:task", 1)
                        break
                    except redis.ConnectionError:
                        grant.check()
                        await asyncio.sleep(0.05)

    async def both():
        await asyncio.gather(told(), kept())

    asyncio.run(both())
