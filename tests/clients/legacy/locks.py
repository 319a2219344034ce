"""Lock libraries for Python by their public interfaces, each against what it does on Redis.

    locks.py PORT [--expect plain|enforce] [--tries N] [--only TEXT] [--rows]

Redis, or a proxy, listens at PORT of 127.0.0.1. Each row of ROWS is a library. All rows run side
by side, each with keys of its own. A row prints one line: "ok", or what differed; a difference
makes the exit code 1. --rows prints the table, and runs nothing.

A row's word says what it is to find where adopted keys are answered from the lock nodes
(--expect enforce): "works" is no difference from Redis. "refused" is an error, or "no" where
Redis says yes, and never a lock that two believe in. Where lock nodes die meanwhile (--tries above
1), a row that was refused something is tried again, and must work in the end.

Keys begin with legacy:, lock:, redlock:, :1:legacy:, qo_, SINGLETONLOCK_, redbeat::lock: or
rq:scheduler-lock:, and in locks.js with legacy: or mutex:.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import datetime
import importlib
import importlib.metadata
import inspect
import logging
import operator
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

# Lives of locks, in seconds. SHORT is whole: some libraries send EX. A busy machine does not use it up within
# a step.
LONG, SHORT = 30, 3
# The longest wait for a lock that runs out, in seconds: the machine may be busy.
PATIENCE = 20
# The longest time for all rows, in seconds.
LIMIT = 110

HERE = pathlib.Path(__file__).parent
BESIDE = HERE / ".venv/beside"


def beside(package):
    """The module redlock of one of the three packages that are called so."""
    for name in [name for name in sys.modules if name.split(".")[0] == "redlock"]:
        del sys.modules[name]
    sys.path.insert(0, str(BESIDE / package))
    try:
        return importlib.import_module("redlock")
    finally:
        sys.path.pop(0)


import celery  # noqa: E402
import celery.beat  # noqa: E402
import django.conf  # noqa: E402
import redis  # noqa: E402
import redis.asyncio  # noqa: E402

redlock_1 = beside("redlock")
redlock_ng = beside("redlock-ng")
redlock_py = beside("redlock-py")


class Differs(Exception):
    """A step that ended otherwise than on Redis. One that `believes` has a lock too many."""

    def __init__(self, step, wanted, got):
        super().__init__(f"{step}: {got!r} instead of {wanted!r}")
        self.believes = got in (True, "OK") and not wanted


class Absent(Exception):
    """A library that cannot run here."""


async def told(what):
    """What a library tells: its answer, or the name of its own exception.

    An error of the server's goes on: it is the proxy's word, not the library's.
    """
    try:
        answer = what() if callable(what) else what
        return await answer if inspect.isawaitable(answer) else answer
    except OWN_EXCEPTIONS as error:
        return type(error).__name__


async def step(name, what, wanted):
    got = await told(what)
    if got != wanted:
        raise Differs(name, wanted, got)


def ended(task):
    """Whether a task that waits for a lock has it. One that failed says why."""
    return task.done() and task.result()


class Library:
    """One client of a library: the part that is alike in most.

    A subclass has take(seconds), True if the lock was granted, and release(); extend(seconds)
    makes the lock last so long from now on. What is None is not there.
    """

    released = None  # release() of a lock that is held
    lost = None  # release() of one that ran out and is another's
    never = "skip"  # release() without a take
    frees = False  # whether a late release frees another's lock
    extend = locked = owned = None
    extended, extend_lost = True, False

    def __init__(self, port, key):
        self.port, self.key, self.lock = port, key, None
        self.url = f"redis://127.0.0.1:{port}"

    async def open(self):
        pass

    async def close(self):
        pass

    @classmethod
    async def row(cls, port, key):
        clients = [cls(port, key) for _ in range(3)]
        # coredis wants the last one that was opened to be closed first.
        async with contextlib.AsyncExitStack() as stack:
            for client in clients:
                await client.open()
                stack.push_async_callback(client.close)
            await cls.judge(*clients)

    @classmethod
    async def judge(cls, first, second, third):
        async def looks(who, locked, owned):
            if who.locked:
                await step("locked()", who.locked, locked)
            if who.owned:
                await step("owned()", who.owned, owned)

        await step("take", lambda: first.take(LONG), True)
        await looks(first, True, True)
        await step("another's take", lambda: second.take(LONG), False)
        await looks(second, True, False)
        if cls.never != "skip":
            await step("release without a take", second.release, cls.never)
            await step("take after another's release", lambda: third.take(LONG), False)
        await step("release", first.release, cls.released)
        await looks(first, False, False)
        await step("take after the release", lambda: second.take(LONG), True)
        await step("take by who has released", lambda: first.take(LONG), False)
        await step("the other's release", second.release, cls.released)

        since = time.monotonic()
        await step("a short take", lambda: first.take(SHORT), True)
        if cls.extend:
            await asyncio.sleep(SHORT / 2)
            began, since = since, time.monotonic()
            await step("extend", lambda: first.extend(SHORT), cls.extended)
            await asyncio.sleep(max(0, began + SHORT + 0.2 - time.monotonic()))
            # A busy machine may have taken all of the time.
            if time.monotonic() < since + SHORT - 0.1:
                await step("take past the first TTL", lambda: second.take(LONG), False)
        await cls.runs_out(since + SHORT, lambda: second.take(LONG))
        await looks(first, True, False)
        if cls.extend:
            await step("extend of a lost lock", lambda: first.extend(SHORT), cls.extend_lost)
        await step("release of a lost lock", first.release, cls.lost)
        await step("take after a late release", lambda: third.take(LONG), cls.frees)
        await step("the last release", (third if cls.frees else second).release, cls.released)
        await looks(third, False, False)

    @staticmethod
    async def runs_out(end, take, wanted=True):
        """Waits until `take` tells `wanted`: not before `end`, and not for ever."""
        while await told(take) != wanted:
            if time.monotonic() > end + PATIENCE:
                raise Differs("the lock runs out", True, False)
            await asyncio.sleep(0.1)
        if time.monotonic() < end - 0.01:
            raise Differs("the lock ran out before its time", False, True)


class RedisPy(Library):
    package = "redis"
    protocol, blocking = 2, False
    lost, never, extend_lost = "LockNotOwnedError", "LockError", "LockNotOwnedError"

    async def open(self):
        self.client = redis.Redis(port=self.port, protocol=self.protocol, client_name="redis-py")

    async def close(self):
        self.client.close()

    def take(self, seconds):
        self.lock = self.client.lock(self.key, timeout=seconds)
        return self.lock.acquire(blocking=False)

    def release(self):
        return self.lock.release()

    def extend(self, seconds):
        return self.lock.extend(seconds, replace_ttl=True)

    def locked(self):
        return self.lock.locked()

    def owned(self):
        return self.lock.owned()


class RedisPy3(RedisPy):
    protocol = 3


class RedisPyAsyncio(RedisPy):
    async def open(self):
        self.client = redis.asyncio.Redis(
            port=self.port, protocol=self.protocol, client_name="redis-py-asyncio"
        )

    async def close(self):
        await self.client.aclose()

    def extend(self, _seconds):
        return self.lock.reacquire()


class RedisPyAsyncio3(RedisPyAsyncio):
    protocol = 3


class RedisPyWaits(RedisPy):
    """acquire() that waits, for a release and for the end of a lock."""

    @classmethod
    async def judge(cls, first, second, third):
        def waits(seconds):
            lock = second.client.lock(first.key, timeout=LONG, blocking_timeout=seconds)
            return lock.acquire()

        await step("take", lambda: first.take(LONG), True)
        await step("a short wait", lambda: waits(0.3), False)
        first.client.delete(first.key)
        since = time.monotonic()
        await step("take", lambda: first.take(SHORT), True)
        await cls.runs_out(since + SHORT, lambda: waits(PATIENCE))
        first.client.delete(first.key)
        await step("take again", lambda: first.take(LONG), True)
        waiting = asyncio.create_task(asyncio.to_thread(waits, PATIENCE))
        await asyncio.sleep(0.3)
        await step("still waiting", lambda: ended(waiting), False)
        await step("release", first.release, None)
        await step("the end of the wait", waiting, True)
        first.client.delete(first.key)
        with first.client.lock(first.key, timeout=LONG):
            await step("take inside a with", lambda: second.take(LONG), False)
        await step("take behind a with", lambda: second.take(LONG), True)
        await step("the last release", second.release, None)


class RedisPyAsyncioWaits(RedisPyAsyncio3):
    @classmethod
    async def judge(cls, first, second, third):
        def waits(seconds):
            lock = second.client.lock(first.key, timeout=LONG, blocking_timeout=seconds)
            return lock.acquire()

        await step("take", lambda: first.take(LONG), True)
        await step("a short wait", lambda: waits(0.3), False)
        await first.client.delete(first.key)
        since = time.monotonic()
        await step("take", lambda: first.take(SHORT), True)
        await cls.runs_out(since + SHORT, lambda: waits(PATIENCE))
        await first.client.delete(first.key)
        async with first.client.lock(first.key, timeout=LONG):
            await step("take inside a with", lambda: second.take(LONG), False)
        await step("take behind a with", lambda: second.take(LONG), True)
        await step("the last release", second.release, None)


class RedisPyCommands(RedisPy3):
    """What applications send beside the lock: look-ups, a blind EXPIRE, a blind DEL."""

    @classmethod
    async def judge(cls, first, second, third):
        key, client = first.key, second.client
        await step("GET of nothing", lambda: client.get(key), None)
        await step("PTTL of nothing", lambda: client.pttl(key), -2)
        await step("TTL of nothing", lambda: client.ttl(key), -2)
        await step("EXISTS of nothing", lambda: client.exists(key), 0)
        await step("DEL of nothing", lambda: client.delete(key), 0)
        await step("PEXPIRE of nothing", lambda: client.pexpire(key, 10_000), 0)
        await step("take", lambda: first.take(LONG), True)
        await step("GET", lambda: client.get(key), first.lock.local.token)
        await step("EXISTS", lambda: client.exists(key), 1)
        within = 1000 * (LONG - PATIENCE)
        await step("PTTL", lambda: within < client.pttl(key) <= 1000 * LONG, True)
        await step("TTL", lambda: within / 1000 < client.ttl(key) <= LONG, True)
        await step("EXPIRE", lambda: client.expire(key, LONG + PATIENCE), 1)
        await step("PTTL after EXPIRE", lambda: client.pttl(key) > 1000 * LONG, True)
        await step("PEXPIRE", lambda: client.pexpire(key, 1000 * LONG), 1)
        await step("PTTL after PEXPIRE", lambda: within < client.pttl(key) <= 1000 * LONG, True)
        await step("owned()", first.owned, True)
        await step("DEL", lambda: client.delete(key), 1)
        await step("owned() after DEL", first.owned, False)
        await step("release after DEL", first.release, "LockNotOwnedError")
        await step("SET NX PX", lambda: client.set(key, b"\0a\r\n", px=10_000, nx=True), True)
        await step("SET NX PX again", lambda: client.set(key, b"\0a\r\n", px=10_000, nx=True), None)
        await step("GET of bytes", lambda: client.get(key), b"\0a\r\n")
        await step("SET NX EX", lambda: first.client.set(key, "b", ex=10, nx=True), None)
        await step("DEL by another", lambda: first.client.delete(key), 1)


class RedisPyAdds(RedisPy):
    """extend() adds to what is left."""

    @classmethod
    async def judge(cls, first, second, third):
        since = time.monotonic()
        await step("take", lambda: first.take(SHORT), True)
        await step("extend", lambda: first.lock.extend(1), True)
        await cls.runs_out(since + SHORT + 1, lambda: second.take(LONG))
        await step("extend of a lost lock", lambda: first.lock.extend(1), "LockNotOwnedError")
        await step("release", second.release, None)


class Transactions(RedisPy3):
    """StackExchange.Redis's LockTake, LockExtend and LockRelease, by redis-py's transactions."""

    released = True
    lost = never = extend_lost = False

    def take(self, seconds):
        self.token = os.urandom(16).hex().encode()
        return bool(self.client.set(self.key, self.token, ex=seconds, nx=True))

    def execute(self, command, *arguments):
        with self.client.pipeline() as pipe:
            pipe.watch(self.key)
            if pipe.get(self.key) != self.token:
                return False
            pipe.multi()
            pipe.execute_command(command, self.key, *arguments)
            try:
                return pipe.execute() == [1]
            except redis.WatchError:
                return False

    def release(self):
        return self.execute("UNLINK")

    def extend(self, seconds):
        return self.execute("PEXPIRE", 1000 * seconds)

    def locked(self):
        return bool(self.client.exists(self.key))

    def owned(self):
        return self.client.get(self.key) == self.token


class RedisPyForEver(RedisPy):
    """A lock without a timeout."""

    @classmethod
    async def judge(cls, first, second, third):
        await step("take", lambda: first.take(None), True)
        await step("another's take", lambda: second.take(None), False)
        await step("release", first.release, None)
        await step("take after the release", lambda: second.take(None), True)
        await step("the last release", second.release, None)


class DjangoRedis(RedisPy):
    package = "django-redis"

    async def open(self):
        from django_redis.cache import RedisCache

        self.client = RedisCache(f"{self.url}/1", {})

    def take(self, seconds):
        self.lock = self.client.lock(self.key, timeout=seconds)
        return self.lock.acquire(blocking=False)


class Redbeat(Library):
    """celery beat's own start, beat and stop. A start waits for the lock."""

    package = "celery-redbeat"

    def beat(self):
        from redbeat import RedBeatScheduler

        app = celery.Celery("legacy", broker="memory://", set_as_current=False)
        app.conf.update(
            redbeat_redis_url=self.url,
            redbeat_lock_key=f"redbeat::lock:{self.key}",
            redbeat_lock_timeout=SHORT,
            beat_max_loop_interval=0.1,
        )
        service = celery.beat.Service(app, scheduler_cls=RedBeatScheduler)
        return service.scheduler

    @staticmethod
    def start(scheduler):
        """What the signal beat_init runs. An error there leaves the scheduler without a lock."""
        from redbeat.schedulers import acquire_distributed_beat_lock

        class Service:
            pass

        Service.scheduler = scheduler
        acquire_distributed_beat_lock(sender=Service)
        return scheduler.lock is not None

    @classmethod
    async def judge(cls, first, second, third):
        # Each beat has a thread of its own, as the token is kept there.
        with contextlib.ExitStack() as stack:
            one, two, three = (cls.in_thread(stack, first.beat()) for _ in range(3))
            await step("the first start", one(cls.start), True)
            waiting = asyncio.ensure_future(two(cls.start))
            since = began = time.monotonic()
            while time.monotonic() < began + SHORT + 0.5:
                await asyncio.sleep(0.2)
                if time.monotonic() < since + SHORT - 0.1:
                    await step("the second start while the first beats", lambda: ended(waiting), False)
                since = time.monotonic()
                await one(lambda beat: beat.tick())
            await step("owned()", one(lambda beat: beat.lock.owned()), True)
            since = time.monotonic()
            await one(lambda beat: beat.close())
            await step("the second start after a stop", waiting, True)
            await step("the third start", three(cls.start), True)
            if time.monotonic() < since + SHORT - 0.01:
                raise Differs("the third start before the lock ran out", False, True)
            await step("a beat without the lock", two(lambda beat: beat.tick()), "LockNotOwnedError")
            await two(lambda beat: beat.close())
            await step("owned() after a late stop", three(lambda beat: beat.lock.owned()), True)
            await three(lambda beat: beat.close())

    @staticmethod
    def in_thread(stack, scheduler):
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        return lambda what: asyncio.get_running_loop().run_in_executor(pool, what, scheduler)


class CeleryOnce(Library):
    """delay() takes, and the task's end releases: by DEL."""

    package = "celery-once"
    frees = True

    async def open(self):
        from celery_once import QueueOnce

        app = celery.Celery("legacy", broker="memory://", set_as_current=False)
        app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": self.url}}

        @app.task(base=QueueOnce, name="legacy", once={"timeout": LONG})
        def task(name):
            return name

        self.task = task

    def take(self, seconds):
        from celery_once import AlreadyQueued

        try:
            self.task.apply_async([self.key], once={"timeout": seconds})
        except AlreadyQueued as error:
            # The lock may end between the SET and the PTTL.
            assert error.countdown <= LONG and error.countdown != -0.001, error.countdown
            return False
        return True

    def release(self):
        assert self.task.apply([self.key]).get() == self.key


class CelerySingleton(Library):
    """delay() takes, or answers with the task that is queued; the task's end releases: by DEL."""

    package = "celery-singleton"
    frees = True
    # The task that holds a lock, by the lock's key.
    queued = {}

    async def open(self):
        from celery_singleton import Singleton

        app = celery.Celery("legacy", broker="memory://", set_as_current=False)
        app.conf.singleton_backend_url = self.url

        @app.task(base=Singleton, name="legacy", raise_on_duplicate=False)
        def task(name):
            return name

        self.task = task

    def take(self, seconds):
        self.task.lock_expiry = seconds
        wanted = celery.utils.uuid()
        queued = self.task.apply_async([self.key], task_id=wanted).id
        if queued == wanted:
            self.queued[self.key] = wanted
            return True
        assert queued == self.queued[self.key], "the task that is queued"
        return False

    def release(self):
        assert self.task.apply([self.key]).get() == self.key


class Rq(Library):
    """Workers with their schedulers, which renew their lock in a transaction each second."""

    package = "rq"

    async def open(self):
        import rq

        self.client = redis.Redis(port=self.port)
        self.queue = rq.Queue(self.key, connection=self.client)

    async def close(self):
        self.client.close()

    @contextlib.asynccontextmanager
    async def works(self):
        """A worker, until it has ended as its operator ends it. What it says is told if that fails."""
        with tempfile.TemporaryFile() as said:
            command = [sys.executable, "-m", "rq.cli", "worker", "--with-scheduler"]
            worker = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command, "--url", self.url, self.key],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                yield
                worker.terminate()
                await step("the worker's end", lambda: asyncio.to_thread(worker.wait, PATIENCE), 0)
            except Differs as error:
                said.seek(0)
                raise Differs(f"{error}: {said.read().decode()[-3000:]}", True, False) from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()

    async def does_a_scheduled_job(self):
        job = self.queue.enqueue_in(datetime.timedelta(seconds=1), operator.add, 2, 3)
        end = time.monotonic() + PATIENCE
        while job.return_value(refresh=True) != 5:
            if time.monotonic() > end:
                raise Differs("a scheduled job", True, False)
            await asyncio.sleep(0.1)

    @classmethod
    async def judge(cls, first, second, third):
        from rq.scheduler import RQScheduler

        lock = RQScheduler.get_locking_key(first.key)
        another = RQScheduler([first.key], third.client, name="another")
        for who in (first, second):
            async with who.works():
                # The second time its lock has been renewed.
                for _ in range(2):
                    await who.does_a_scheduled_job()
                await step("another's acquire_locks()", another.acquire_locks, set())
                await step("the lock", lambda: third.client.exists(lock), 1)
            await step("the lock behind the end", lambda: third.client.exists(lock), 0)
        await step("acquire_locks() behind the end", another.acquire_locks, {first.key})
        await step("heartbeat()", another.heartbeat, None)
        await step("what a heartbeat has kept", lambda: another.acquired_locks, {first.key})
        await step("the lock's value", lambda: third.client.get(lock), b"another")
        await step("stop()", another.stop, None)
        await step("the lock behind stop()", lambda: third.client.exists(lock), 0)


class Pottery(Library):
    package = "pottery"
    lost, never = "ReleaseUnlockedLock", "ReleaseUnlockedLock"
    extended, extend_lost = None, "ExtendUnlockedLock"

    async def open(self):
        self.client = redis.Redis(port=self.port, client_name="pottery")

    def take(self, seconds):
        import pottery

        self.lock = pottery.Redlock(
            key=self.key, masters={self.client}, auto_release_time=seconds, raise_on_redis_errors=True
        )
        return self.lock.acquire(blocking=False)

    def release(self):
        return self.lock.release()

    def extend(self, _seconds):
        return self.lock.extend()

    def owned(self):
        return self.lock.locked() > 0


class RedlockPy(Library):
    package = "redlock-py"

    async def open(self):
        self.locks = redlock_py.Redlock([{"host": "127.0.0.1", "port": self.port}], retry_count=1)

    def take(self, seconds):
        lock = self.locks.lock(self.key, 1000 * seconds)
        self.lock = lock or self.lock
        return bool(lock)

    def release(self):
        return self.locks.unlock(self.lock)


class RedlockNg(Library):
    package = "redlock-ng"

    async def open(self):
        # It gives a node 100 ms otherwise.
        config = redlock_ng.RedlockConfig(
            masters=[self.url], socket_timeout=10, socket_connect_timeout=10
        )
        self.locks = redlock_ng.Redlock(config, retry_count=0)

    def take(self, seconds):
        lock = self.locks.acquire(self.key, 1000 * seconds)
        self.lock = lock or self.lock
        return bool(lock)

    def release(self):
        return self.locks.release(self.lock)

    def extend(self, seconds):
        return self.locks.extend(self.lock, 1000 * seconds)


class Redlock1(Library):
    package = "redlock"

    def take(self, seconds):
        node = {"host": "127.0.0.1", "port": self.port}
        lock = redlock_1.RedLock(self.key, [node], ttl=1000 * seconds, retry_times=1)
        granted = lock.acquire()
        self.lock = lock if granted else self.lock
        return granted

    def release(self):
        return self.lock.release()


class Aioredlock(Library):
    package = "aioredlock"
    lost, extend_lost, extended = "LockAcquiringError", "LockAcquiringError", None

    async def open(self):
        try:
            from aioredlock import Aioredlock as Locks
        except ImportError as error:
            raise Absent(f"it cannot be imported: {error}") from error
        self.locks = Locks([self.url], retry_count=1)

    async def close(self):
        await self.locks.destroy()

    async def take(self, seconds):
        from aioredlock import LockAcquiringError

        try:
            self.lock = await self.locks.lock(self.key, lock_timeout=seconds)
        except LockAcquiringError:
            return False
        return True

    def release(self):
        return self.locks.unlock(self.lock)

    def extend(self, seconds):
        # One that was refused makes the lock invalid.
        return self.locks.extend(self.lock, lock_timeout=seconds)

    def locked(self):
        return self.locks.is_locked(self.key)

    @classmethod
    async def judge(cls, first, second, third):
        await super().judge(first, second, third)
        await step("take", lambda: first.take(SHORT), True)
        # Who names the holder's token takes its lock too, and renews it.
        token = first.lock.id
        second.lock = await second.locks.lock(first.key, LONG, token)
        ttl = (await third.locks.get_lock(first.key, token)).lock_timeout
        if not SHORT < ttl <= LONG:
            raise Differs("get_lock()", LONG, ttl)
        await step("release by the other", second.release, None)
        # Nothing is there: to the library that is released too.
        await step("release of nothing", first.release, None)


class PythonRedisLock(Library):
    package = "python-redis-lock"
    lost, never = "NotAcquired", "NotAcquired"
    extended, extend_lost = None, "NotAcquired"

    async def open(self):
        self.client = redis.StrictRedis(port=self.port, client_name="python-redis-lock")

    def take(self, seconds):
        import redis_lock

        self.lock = redis_lock.Lock(self.client, self.key, expire=seconds)
        return self.lock.acquire(blocking=False)

    def release(self):
        return self.lock.release()

    def extend(self, seconds):
        return self.lock.extend(expire=seconds)

    def locked(self):
        return self.lock.locked()

    def owned(self):
        return self.lock.get_owner_id() == self.lock.id


class PythonRedisLockWaits(PythonRedisLock):
    """acquire() waits for the signal that a release leaves in a list."""

    @classmethod
    async def judge(cls, first, second, third):
        import redis_lock

        await step("take", lambda: first.take(LONG), True)
        lock = redis_lock.Lock(second.client, second.key, expire=LONG)
        await step("a short wait", lambda: lock.acquire(timeout=1), False)
        waiting = asyncio.create_task(asyncio.to_thread(lock.acquire, timeout=4))
        await asyncio.sleep(0.3)
        since = time.monotonic()
        await step("release", first.release, None)
        await step("the end of the wait", waiting, True)
        if time.monotonic() > since + 3:
            raise Differs("the signal", "at once", "late")
        await step("reset()", lock.reset, None)
        await step("take after reset()", lambda: third.take(LONG), True)
        await step("release after reset()", lock.release, "NotAcquired")
        await step("the last release", third.release, None)


class Sherlock(Library):
    package = "sherlock"
    lost, never = "LockException", "LockException"

    async def open(self):
        self.client = redis.Redis(port=self.port, client_name="sherlock")

    def take(self, seconds):
        import sherlock

        self.lock = sherlock.RedisLock(
            self.key, namespace="legacy:sherlock", client=self.client, expire=seconds
        )
        return self.lock.acquire(blocking=False)

    def release(self):
        return self.lock.release()

    def extend(self, _seconds):
        return self.lock.renew()

    def locked(self):
        return self.lock.locked()


class Coredis(Library):
    package = "coredis"
    lost, never = "LockReleaseError", "LockReleaseError"

    async def open(self):
        import coredis

        self.client = coredis.Redis(port=self.port, client_name="coredis")
        await self.client.__aenter__()

    async def close(self):
        await self.client.__aexit__(None, None, None)

    def take(self, seconds):
        from coredis.patterns.lock import Lock

        self.lock = Lock(self.client, self.key, timeout=seconds, blocking=False)
        return self.lock.acquire()

    def release(self):
        return self.lock.release()


class CoredisAdds(Coredis):
    """extend() adds to what is left."""

    @classmethod
    async def judge(cls, first, second, third):
        since = time.monotonic()
        await step("take", lambda: first.take(SHORT), True)
        await step("extend", lambda: first.lock.extend(1), True)
        await cls.runs_out(since + SHORT + 1, lambda: second.take(LONG))
        await step("extend of a lost lock", lambda: first.lock.extend(1), "LockExtensionError")
        await step("release", second.release, None)


class Aiocache(Library):
    """A lock that lets everybody in after the lease, and whose second client does not fail."""

    package = "aiocache"

    async def open(self):
        from aiocache import Cache

        self.cache = Cache(Cache.REDIS, endpoint="127.0.0.1", port=self.port)

    async def close(self):
        await self.cache.close()

    @classmethod
    async def judge(cls, first, second, third):
        from aiocache.lock import RedLock

        # RedLock adds it.
        key = f"{first.key}-lock"
        for lease in (SHORT, float(SHORT)):
            await step("exists() of nothing", lambda: third.cache.exists(key), False)
            async with RedLock(first.cache, first.key, lease=LONG):
                await step("exists()", lambda: third.cache.exists(key), True)
                since = time.monotonic()
                async with RedLock(second.cache, first.key, lease=0.5):
                    if time.monotonic() < since + 0.4:
                        raise Differs("a second lock does not wait", False, True)
                await step("exists() after another's end", lambda: third.cache.exists(key), True)
            await step("exists() after the end", lambda: third.cache.exists(key), False)
            since = time.monotonic()
            async with RedLock(first.cache, first.key, lease=lease):
                await step("exists() again", lambda: third.cache.exists(key), True)
                await cls.runs_out(since + lease, lambda: third.cache.exists(key), False)
                # The lock of another client, of which this process has no event.
                await step("add()", lambda: third.cache.add(key, "another's", ttl=LONG), True)
            await step("exists() after a late end", lambda: third.cache.exists(key), True)
            await step("delete()", lambda: third.cache.delete(key), 1)


class Cashews(Library):
    package = "cashews"
    released, lost, never = 1, 0, 0
    token = None

    async def open(self):
        from cashews import Cache

        self.cache = Cache()
        self.cache.setup(self.url, suppress=False)
        await self.cache.init()
        self.token = os.urandom(8).hex()

    async def close(self):
        await self.cache.close()

    def take(self, seconds):
        return self.cache.set_lock(self.key, self.token, expire=seconds)

    def release(self):
        return self.cache.unlock(self.key, self.token)

    def locked(self):
        return self.cache.is_locked(self.key)

    @classmethod
    async def judge(cls, first, second, third):
        await super().judge(first, second, third)
        other = second.cache.lock(first.key, expire=LONG, wait=False)
        async with first.cache.lock(first.key, expire=LONG, wait=False):
            await step("lock() inside another", other.__aenter__, "LockedError")
            await step("is_locked() with a wait", lambda: third.cache.is_locked(first.key, wait=0.2), True)
        await step("is_locked() behind it", lambda: third.cache.is_locked(first.key), False)


class Walrus(Library):
    package = "walrus"
    released, lost, never = True, False, False

    async def open(self):
        import walrus

        self.client = walrus.Database(port=self.port, client_name="walrus")

    def take(self, seconds):
        self.lock = self.client.lock(self.key, ttl=1000 * seconds)
        return self.lock.acquire(block=False)

    def release(self):
        return self.lock.release()


# What is run, and what is expected of it under enforce.
ROWS = [
    ("redis-py Lock, RESP2", RedisPy, "works"),
    ("redis-py Lock, RESP3", RedisPy3, "works"),
    ("redis-py asyncio Lock, RESP2", RedisPyAsyncio, "works"),
    ("redis-py asyncio Lock, RESP3", RedisPyAsyncio3, "works"),
    ("redis-py Lock that waits", RedisPyWaits, "works"),
    ("redis-py asyncio Lock that waits", RedisPyAsyncioWaits, "works"),
    ("redis-py look-ups, EXPIRE, DEL", RedisPyCommands, "works"),
    ("redis-py Lock.extend that adds", RedisPyAdds, "works"),
    ("redis-py transactions, as StackExchange.Redis's", Transactions, "works"),
    ("redis-py Lock without a timeout", RedisPyForEver, "refused"),
    ("django-redis cache.lock", DjangoRedis, "works"),
    ("celery-redbeat", Redbeat, "works"),
    ("celery-once", CeleryOnce, "works"),
    ("celery-singleton", CelerySingleton, "works"),
    ("rq worker --with-scheduler", Rq, "works"),
    ("pottery Redlock", Pottery, "works"),
    ("redlock-py", RedlockPy, "works"),
    ("redlock-ng", RedlockNg, "works"),
    ("redlock", Redlock1, "works"),
    ("aioredlock", Aioredlock, "works"),
    ("python-redis-lock", PythonRedisLock, "works"),
    ("python-redis-lock that waits", PythonRedisLockWaits, "works"),
    ("sherlock", Sherlock, "works"),
    ("coredis Lock", Coredis, "works"),
    ("coredis Lock.extend that adds", CoredisAdds, "works"),
    ("aiocache RedLock", Aiocache, "works"),
    ("cashews lock", Cashews, "works"),
    ("walrus lock", Walrus, "works"),
]


def own_exceptions():
    """Exceptions by which libraries tell the fate of a lock."""
    import cashews.exceptions
    import coredis.exceptions
    import pottery
    import redis_lock
    import sherlock

    found = [
        redis.exceptions.LockError,
        pottery.ReleaseUnlockedLock,
        pottery.ExtendUnlockedLock,
        redis_lock.NotAcquired,
        sherlock.LockException,
        coredis.exceptions.LockError,
        cashews.exceptions.LockedError,
    ]
    try:
        import aioredlock

        found.append(aioredlock.LockAcquiringError)
    except ImportError:
        pass
    return tuple(found)


OWN_EXCEPTIONS = own_exceptions()


def version(row):
    try:
        return importlib.metadata.version(row.package)
    except importlib.metadata.PackageNotFoundError:
        folder = next((BESIDE / row.package).glob("*.dist-info"))
        return folder.name.removesuffix(".dist-info").split("-")[1]


def judged(number, port, expect, tries):
    """The line of a row, and whether it is as expected."""
    _, row, word = ROWS[number]
    refusal = None

    def again():
        time.sleep(1)
        return judged(number, port, expect, tries - 1)

    try:
        asyncio.run(row.row(port, f"legacy:{number}:{tries}:{os.getpid()}"))
    except Absent as error:
        return f"not run: {error}", True
    except Differs as error:
        if tries > 1 and not error.believes:
            return again()
        if expect == "plain" or word == "works" or error.believes:
            return str(error), False
        refusal = str(error)
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        # One of Python's own is a fault of this program, or of the library. A connection that
        # ends is no refusal.
        fault = type(error).__module__ in ("builtins", __name__) or any(
            name in type(error).__name__ for name in ("Connection", "Timeout", "LockRuntimeError")
        )
        if tries > 1 and not fault:
            return again()
        if expect == "plain" or word == "works" or fault:
            return text, False
        refusal = text
    if expect == "enforce" and word == "refused" and refusal is None:
        return "it is not refused", False
    return "ok" if refusal is None else f"ok, refused ({refusal})", True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int, nargs="?")
    parser.add_argument("--expect", choices=["plain", "enforce"], default="plain")
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    numbers = [n for n, (name, _, _) in enumerate(ROWS) if options.only in name]
    if options.rows:
        for number in numbers:
            name, row, word = ROWS[number]
            print(f"{name} {version(row)}: {word}")
        return
    django.conf.settings.configure()
    importlib.import_module("django_redis.cache")
    importlib.import_module("redbeat")
    good, end = True, time.monotonic() + LIMIT
    pool = concurrent.futures.ThreadPoolExecutor(len(numbers))
    how = (options.port, options.expect, options.tries)
    rows = [(n, pool.submit(judged, n, *how)) for n in numbers]
    for number, row in rows:
        try:
            line, is_good = row.result(max(0, end - time.monotonic()))
        except concurrent.futures.TimeoutError:
            line, is_good = f"not within {LIMIT} s", False
        name, library, _ = ROWS[number]
        print(f"{name} {version(library)}: {line}", flush=True)
        good = good and is_good
    # A row that hangs has threads.
    os._exit(0 if good else 1)


if __name__ == "__main__":
    main()
