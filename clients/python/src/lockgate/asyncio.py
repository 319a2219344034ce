"""Locks for asyncio: on redis.asyncio.Redis, each with a connection and a keeper, a task, of its own."""

from __future__ import annotations

import asyncio
import functools
import sys
from types import TracebackType
from typing import Any, Awaitable, Callable, List, Optional, Tuple, Type, TypeVar, Union

import redis.asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from . import _own, _owner
from ._errors import NotAcquired
from ._session import AGAIN, ANSWER, Key, Session, Step, Steps
from ._shared import GrantBase, LockBase, loss_behind, runs_later

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:  # redis-py brings it along
    from async_timeout import timeout

__all__ = ["Grant", "Lock", "lock", "once"]

T = TypeVar("T")


class _Connection(_own.OwnConnection):
    async def _connect(self) -> None:
        self.begin()
        await super()._connect()  # type: ignore[misc]

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.ended = True
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        self.session.sends()
        await super().send_packed_command(*args, **kwargs)  # type: ignore[misc]

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            while True:
                reply = await super().read_response(*args, **kwargs)  # type: ignore[misc]
                if not _own.is_push(reply):
                    return reply
        except Exception as error:
            raise self.answered(error) from error.__cause__


@functools.lru_cache(maxsize=None)
def _connection_class(kind: type) -> type:
    return type("LockConnection", (_Connection, kind), {})


class _Pool(redis.ConnectionPool):
    """A pool of the one connection that has the lock. Its keeper and the program's commands use it in turn."""

    connection: Any = None
    keeper: "Optional[asyncio.Task[None]]" = None

    def __init__(self, client: Any) -> None:
        self.where, kind, arguments = _own.settings(client, redis.ConnectionPool, Retry(NoBackoff(), 0))
        super().__init__(connection_class=_connection_class(kind), **arguments)
        self.session: Session

    async def carry_out(self, steps: Steps) -> None:
        """Does what an operation asks for."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await getattr(self, f"do_{step[0]}")(*step[1:])
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration:
            pass

    async def do_ask(self, commands: List[Step], seconds: float) -> List[Any]:
        # Not by the time-outs of redis-py's connections: before Python 3.12, wait_for may swallow a cancellation.
        try:
            if self.connection is None or self.connection.ended:
                _owner.opens(self)
                self.connection = self.make_connection()  # type: ignore[no-untyped-call,unused-ignore]
                self.connection.session = self.session
                self.connection.socket_timeout = None
                async with timeout(ANSWER):
                    await self.connection.connect()
            connection = self.connection
            connection.socket_timeout = None
            replies: List[Any] = []
            async with timeout(seconds):
                await connection.send_packed_command(connection.pack_commands(commands))
                for _ in commands:
                    try:
                        replies.append(await connection.read_response())
                    except exceptions.ResponseError as error:
                        replies.append(error)
            connection.socket_timeout = ANSWER
            return replies
        except BaseException as error:  # an answer may be on its way, and is not for the next question
            await self.do_close()
            if isinstance(error, asyncio.TimeoutError):
                raise exceptions.TimeoutError(f"no answer within {seconds:.3g} s") from error
            raise

    async def do_close(self) -> None:
        if self.connection is not None:
            await self.connection.disconnect(nowait=True)

    async def do_sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def start(self) -> None:
        """Has the lock kept by a task of its own."""
        self.turn = asyncio.Lock()
        self.stop = asyncio.Event()
        self.keeper = asyncio.create_task(self.keep(), name=f"lockgate {self.session}")

    async def confirm(self) -> None:
        async with self.turn:
            if not self.stop.is_set():
                await self.carry_out(self.session.confirming())

    async def keep(self) -> None:
        """Has the lock confirmed every third of its validity, until it is released or lost."""
        session = self.session
        pause = session.validity / 3
        try:
            while not self.stop.is_set() and not session.lost.is_set():
                try:
                    async with timeout(min(pause, session.remaining())):
                        await self.stop.wait()
                except asyncio.TimeoutError:
                    pass
                if self.stop.is_set() or session.lost.is_set():
                    continue
                try:
                    async with timeout(session.remaining()):
                        await self.confirm()
                    pause = session.validity / 3
                except Exception as error:  # the clock goes on
                    session.trouble = error
                    pause = AGAIN
        except asyncio.CancelledError:
            session.lose("the task that kept it was cancelled, as by the end of the event loop")
            raise
        finally:
            if session.why:  # nothing is sent under a lost lock
                await self.do_close()

    def descriptor(self) -> Optional[int]:
        writer = getattr(self.connection, "_writer", None)
        socket = writer and writer.get_extra_info("socket")
        return None if socket is None or socket.fileno() < 0 else int(socket.fileno())

    # What redis.asyncio.Redis asks of its pool.

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        self.session.check()
        try:
            async with timeout(self.session.remaining()):
                await self.turn.acquire()
        except asyncio.TimeoutError:
            self.session.check()
            raise exceptions.ConnectionError("another command uses the connection that has the lock") from None
        try:
            if self.connection.ended:
                await self.carry_out(self.session.confirming())
            self.session.check()
        except BaseException:
            self.turn.release()
            raise
        return self.connection

    async def release(self, connection: Any) -> None:
        self.turn.release()

    async def disconnect(self, *_: Any, **__: Any) -> None:
        """Leaves the connection alone: it has the lock."""


class _Lost(asyncio.Event):
    """Is set when the lock is lost: by the clock as well, even if the event loop has had no time to look at that."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def is_set(self) -> bool:
        return super().is_set() or self._session.is_over()

    async def wait(self) -> Any:
        return self.is_set() or await super().wait()


class Grant(GrantBase):
    """A lock that a task holds, on a connection of its own."""

    def __init__(self, session: Session, pool: _Pool, names: Tuple[Key, ...] = ()) -> None:
        super().__init__(session, pool, names)
        # Commands on the connection that has the lock. None is sent once the lock is lost.
        self.redis: redis.Redis = redis.Redis(connection_pool=pool)

    @property
    def lost(self) -> asyncio.Event:
        """Set as soon as the lock is lost, or not known to be held any more."""
        return self._session.lost  # type: ignore[no-any-return]

    async def execute(self, *command: Any) -> Any:
        """Sends a command on the connection that has the lock."""
        return await self.redis.execute_command(*command)  # type: ignore[no-untyped-call,unused-ignore]

    async def attach(self, pipeline: Any) -> None:
        """Has what follows in this pipeline written under the lock: adds LOCK.ATTACH for each of its names."""
        for command in self._attaching(pipeline):
            queued = pipeline.execute_command(*command)
            if queued is not pipeline:  # it WATCHes, and sends at once
                await queued

    async def release(self) -> None:
        """Gives the lock back. Raises LockLost if it was not held all the time."""
        if not self._leave():
            return
        session, pool = self._session, self._pool
        pool.stop.set()
        try:
            async with timeout(min(ANSWER, session.remaining())):
                await pool.turn.acquire()
            await pool.carry_out(session.releasing())
        except asyncio.TimeoutError:  # a question hangs, or another task's command is under way
            session.check()
        finally:
            session.released = session.why is None
            await pool.do_close()
            _owner.forget(session)

    async def __aenter__(self) -> Grant:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with loss_behind(error):
            await self.release()


class Lock(LockBase[Grant]):
    """A lock as it is to be taken: `async with lock as grant`, or `await lock.acquire()`.

    `redis` is a redis.asyncio.Redis that leads to a Lockgate proxy; all else is as in `lockgate.Lock`.
    """

    def _prepare(self) -> Tuple[Session, _Pool]:
        pool = _Pool(self._redis)
        pool.session = Session(pool.where, *self._terms, self._lease, _Lost)
        return pool.session, pool

    async def acquire(self) -> Grant:
        """Takes the lock. Raises NotAcquired if it was not to be had within `wait`."""
        session, pool = self._prepare()
        mine = _owner.again(session)
        if mine is not None:
            return _owner.joined(mine[0], Grant(*mine))
        try:
            await pool.carry_out(session.acquiring())
            pool.start()
        except BaseException:  # It may have been granted.
            await pool.do_close()
            raise
        grant = Grant(session, pool)
        _owner.keep(session, pool, grant)
        return grant

    async def __aenter__(self) -> Grant:
        return self._enter(await self.acquire())

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        grant = self._innermost()
        try:
            await grant.__aexit__(kind, error, trace)
        finally:
            self._exit(grant)


lock = Lock


class _Lease(Lock):
    def __init__(self, redis: Any, key: Key, at_least: float) -> None:
        self._lease = at_least
        super().__init__(redis, key, wait=0)


def once(
    redis: Any, key: Union[Key, Callable[..., Key]], *, at_least: float
) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Awaitable[Optional[T]]]]:
    """Decorates a coroutine function that one caller of all runs: `lockgate.once`, for a redis.asyncio.Redis."""

    def decorate(function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[Optional[T]]]:
        runs_later(function, True)

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Optional[T]:
            lease = _Lease(redis, key(*args, **kwargs) if callable(key) else key, at_least)
            try:
                grant = await lease.acquire()
            except NotAcquired as error:
                if error.reason == NotAcquired.HELD:
                    return None
                raise
            async with grant:
                return await function(*args, **kwargs)

        return run

    return decorate
