"""What tasks of asyncio get of the helper, and what a cancelled task and a blocked event loop mean for a lock."""

import asyncio
import functools
import time
import uuid

import lockgate
import lockgate.asyncio
import redis
import redis.asyncio
from deployment import LIMIT
from lockgate import LockLost, NotAcquired
from threads import TTL, raises

LIMIT = 40


def in_tasks(function):
    """Makes a test of a coroutine function, which is run with clients of both protocols."""

    @functools.wraps(function)
    def test(deployment):
        async def run(protocol):
            async with redis.asyncio.Redis(port=deployment.calm.port, protocol=protocol) as r:
                await function(r, f"{function.__name__}:{protocol}")

        for protocol in (2, 3):
            asyncio.run(run(protocol))

    return test


async def refused(r, key, **options):
    """Whether another task is refused the lock."""

    async def try_it():
        async with lockgate.asyncio.lock(r, key, wait=0, **options):
            return False

    try:
        return await asyncio.create_task(try_it())
    except NotAcquired as error:
        if error.reason != NotAcquired.HELD:
            raise
        return True


async def is_free(r, key):
    async def poll():
        while await refused(r, key):
            await asyncio.sleep(0.05)

    await asyncio.wait_for(poll(), LIMIT)


async def take_back(r, key):
    assert await r.execute_command("LOCKGATE", "UNLOCK", key, "ANY") == 1


@in_tasks
async def test_a_task_holds_what_it_has_and_gets_it_again(r, key):
    lock = lockgate.asyncio.lock(r, key, wait=0)
    async with lock as outer:
        async with lock as inner:
            await (again := await lock.acquire()).release()
            await again.release()
            assert inner.token == outer.token and await inner.execute("PING") in (b"PONG", True, "PONG")
        assert await refused(r, key), "another task has none of it"
        # A lock of threads, in this task's thread, is not the task's.
        with raises(NotAcquired):
            await asyncio.to_thread(lockgate.lock(redis.Redis(**connection(r)), key, wait=0).acquire)
        assert not await asyncio.wait_for(no(outer.lost, TTL * 1.2), LIMIT), "it is prolonged"
        assert outer.remaining() > 0
    assert not await refused(r, key) and outer.remaining() == 0


def connection(r):
    return {"port": r.connection_pool.connection_kwargs["port"]}


async def no(event, seconds):
    """Whether an event is set within this time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
        return True
    except asyncio.TimeoutError:
        return False


@in_tasks
async def test_a_threads_lock_is_not_that_of_another_task_of_the_thread(r, key):
    sync = redis.Redis(**connection(r))

    async def other():
        with raises(NotAcquired), lockgate.lock(sync, key, wait=0):
            pass

    with lockgate.lock(sync, key):
        await asyncio.create_task(other())


@in_tasks
async def test_a_waiting_task_gets_the_lock(r, key):
    grant = await lockgate.asyncio.lock(r, key).acquire()
    waiter = asyncio.create_task(lockgate.asyncio.lock(r, key, wait=LIMIT).acquire())
    await asyncio.sleep(1.5)  # longer than one WAIT may be here
    assert not waiter.done()
    async with grant:
        pass
    async with await waiter as next_one:
        assert next_one.fence > grant.fence and next_one.remaining() > 0


@in_tasks
async def test_a_task_cancelled_while_it_waits_leaves_nothing(r, key):
    async with lockgate.asyncio.lock(r, key):
        waiting = [asyncio.create_task(lockgate.asyncio.lock(r, key).acquire()) for _ in range(3)]
        await asyncio.sleep(0.3)
        for task in waiting:
            task.cancel()
    # Some are cancelled at the moment of their grant.
    waiting += [asyncio.create_task(lockgate.asyncio.lock(r, key).acquire()) for _ in range(3)]
    for task in waiting:
        await asyncio.sleep(0.003)
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    for grant in results:
        if isinstance(grant, lockgate.asyncio.Grant):
            await grant.release()
    begun = time.monotonic()
    await is_free(r, key)
    assert time.monotonic() - begun < TTL / 2, "it was left to run out"


@in_tasks
async def test_a_task_cancelled_in_its_block_gives_the_lock_back(r, key):
    entered = asyncio.Event()

    async def hold():
        async with lockgate.asyncio.lock(r, key):
            entered.set()
            await asyncio.sleep(LIMIT)

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with raises(asyncio.CancelledError):
        await task
    assert not await refused(r, key)


@in_tasks
async def test_a_command_that_is_cancelled_ends_the_connection_and_the_loss_is_told(r, key):
    with raises(LockLost):
        async with lockgate.asyncio.lock(r, key) as grant:
            command = asyncio.create_task(grant.execute("BLPOP", "nothing", 20))
            await asyncio.sleep(0.2)
            command.cancel()
            assert await no(grant.lost, LIMIT)
    assert not await refused(r, key)


@in_tasks
async def test_a_blocked_event_loop_finds_the_lock_lost_first(r, key):
    with raises(LockLost, "confirmed"):
        async with lockgate.asyncio.lock(r, key) as grant:
            time.sleep(TTL + 0.2)
            assert grant.lost.is_set() and grant.remaining() == 0
            with raises(LockLost):
                grant.check()
            with raises(LockLost):
                await grant.redis.set("x", 1)
            with raises(LockLost):
                await grant.attach(r.pipeline(transaction=False))
    assert not await refused(r, key)


@in_tasks
async def test_a_loss_is_told_to_a_task(r, key):
    with raises(LockLost, key):
        async with lockgate.asyncio.lock(r, key) as grant:
            await take_back(r, key)
            assert await no(grant.lost, TTL + 20)
            with raises(LockLost):
                await grant.redis.ping()
            grant.check()
    with raises(LockLost, key):
        async with lockgate.asyncio.lock(r, key) as grant:
            await take_back(r, key)
            with raises(lockgate._errors.LostReply):
                await grant.redis.set("x", 1)
    try:
        async with lockgate.asyncio.lock(r, key):
            await take_back(r, key)
            raise KeyError("mine")
    except KeyError as error:
        assert isinstance(error.__context__, LockLost)
    assert not await refused(r, key)


@in_tasks
async def test_guarded_writes_of_a_task(r, key):
    key = f"account:{key}"
    async with lockgate.asyncio.lock(r, key) as grant:
        await grant.redis.set(key, 1)
        async with grant.redis.pipeline() as transaction:
            assert await transaction.incr(key).execute() == [2]
        async with r.pipeline(transaction=False) as pipeline:
            await grant.attach(pipeline)
            assert (await pipeline.incr(key).execute())[-1] == 3
        async with r.pipeline() as transaction:
            await transaction.watch(key)
            await grant.attach(transaction)
            transaction.multi()
            assert await transaction.incr(key).execute() == [4]
        with raises(ValueError):
            await grant.attach(r.pipeline())
        # Where it is another connection by then, none is killed.
        while not await r.client_kill_filter(_id=await grant.redis.client_id()):
            pass
        end = time.monotonic() + LIMIT
        with raises(redis.ConnectionError):
            while time.monotonic() < end:
                await grant.redis.ping()
        await grant.redis.set(key, 5)  # the next connection has taken the lock over


@in_tasks
async def test_permits_readers_and_several_locks_of_tasks(r, key):
    permit = lockgate.asyncio.lock(r, key, permits=2, wait=0)
    async with permit as first, permit as second:
        assert {first.name, second.name} == {f"{key}#0", f"{key}#1"} and await refused(r, key, permits=2)
    async with lockgate.asyncio.lock(r, key, shared=True):
        assert not await refused(r, key, shared=True) and await refused(r, key)
    async with lockgate.asyncio.lock(r, [key, f"{key}:b"]) as grant:
        assert len(grant.fences) == 2 and await refused(r, f"{key}:b")


@in_tasks
async def test_once_runs_one_task_of_all(r, key):
    key = f"{key}:{uuid.uuid4().hex}"

    @lockgate.asyncio.once(r, key, at_least=4)
    async def report(value):
        await asyncio.sleep(0.1)
        return value

    assert sorted(await asyncio.gather(report(1), report(1), report(1)), key=str) == [1, None, None]
    assert await report(2) is None
    await is_free(r, key)


@in_tasks
async def test_an_event_loop_that_ends_ends_the_lock(r, key):
    async def inner():
        own = redis.asyncio.Redis(**connection(r))
        grant = await lockgate.asyncio.lock(own, key).acquire()
        grant._left = True  # without the warning that a test of its own is about
        return grant

    grant = await asyncio.to_thread(lambda: asyncio.run(inner()))
    assert grant.lost.is_set()
    with raises(LockLost, "event loop"):
        grant.check()
    assert not await refused(r, key)
