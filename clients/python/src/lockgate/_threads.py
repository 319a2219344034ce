"""Locks for threads: on redis.Redis, each with a connection and a keeper, a thread, of its own."""

from __future__ import annotations

import functools
import math
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type, TypeVar, Union

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import _own, _owner
from ._errors import LockgateError, LostConnection, NotAcquired
from ._session import AGAIN, ANSWER, Key, Session, Step, Steps, now
from ._shared import GrantBase, LockBase, loss_behind, runs_later

T = TypeVar("T")


class _Connection(_own.OwnConnection):
    # Replies that nobody has read, or so many at least: an interrupt may come between a command and its reply.
    owed = 0
    # How many commands the next bytes are.
    packed = 1
    # An interrupt has ended the sending: nobody knows how much was sent.
    half_sent = False

    def _connect(self) -> Any:
        self.begin()
        return super()._connect()  # type: ignore[misc]

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.ended = True
        super().disconnect(*args, **kwargs)  # type: ignore[misc]

    def pack_commands(self, commands: Any) -> Any:
        commands = list(commands)
        self.packed = len(commands)
        return super().pack_commands(commands)  # type: ignore[misc]

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        self.session.sends()
        packed, self.packed = self.packed, 1
        self.half_sent = True
        try:
            super().send_packed_command(*args, **kwargs)  # type: ignore[misc]
        except (exceptions.RedisError, OSError):
            raise
        except BaseException as error:
            self.interrupted(error)
            raise
        self.owed += packed
        self.half_sent = False

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["disconnect_on_error"] = False
        try:
            while True:
                reply = super().read_response(*args, **kwargs)  # type: ignore[misc]
                if not _own.is_push(reply):
                    self.owed = max(0, self.owed - 1)
                    return reply
        except exceptions.ResponseError as error:
            self.owed = max(0, self.owed - 1)
            raise self.answered(error) from error.__cause__
        except (exceptions.RedisError, OSError) as error:
            self.disconnect()
            raise self.answered(error) from error.__cause__

    def interrupted(self, error: BaseException) -> None:
        """Closes the connection, and notes that the lock has ended with it."""
        self.session.lose(f"{type(error).__name__} has interrupted a command on its connection")
        self.disconnect()

    def catch_up(self, seconds: float) -> None:
        """Reads what interrupted commands have left unread, so that none of it is taken for the reply to the next."""
        if not self.owed and not self.half_sent:
            return
        mark, until = uuid.uuid4().hex, now() + seconds
        try:
            if self.half_sent:
                raise exceptions.ConnectionError("nobody knows how much of a command was sent")
            # How much of a reply was read is not known either: only the reply to another command tells its place.
            self.send_packed_command(self.pack_commands([("ECHO", mark)]))
            while self.can_read(timeout=max(0.0, until - now())):  # type: ignore[attr-defined]
                try:
                    reply = self.read_response()
                except exceptions.ResponseError as error:
                    reply = mark if "echo" in str(error).lower() else None  # The user may not ECHO.
                if reply in (mark, mark.encode()):
                    self.owed = 0
                    return
            raise exceptions.TimeoutError(f"no answer within {seconds:.3g} s")
        except (exceptions.RedisError, OSError, ValueError) as error:  # ValueError: the keeper has closed it meanwhile
            # The lock ends with the connection.
            self.disconnect()
            loss = self.session.lose(f"an interrupted command has left its connection unusable ({error})")
            raise LostConnection(str(loss)) from error


@functools.lru_cache(maxsize=None)
def _connection_class(kind: type) -> type:
    return type("LockConnection", (_Connection, kind), {})


class _Pool(redis.ConnectionPool):
    """A pool of the one connection that has the lock. Its keeper and the program's commands use it in turn."""

    connection: Any = None

    def __init__(self, client: Any) -> None:
        self.where, kind, arguments = _own.settings(client, redis.ConnectionPool, Retry(NoBackoff(), 0))
        super().__init__(connection_class=_connection_class(kind), **arguments)
        self.turn = threading.Lock()
        self.stop = threading.Event()
        # Nobody counts on the lock any more, though an interrupt may have kept the block from its end.
        self.abandoned = False
        self.session: Session

    def carry_out(self, steps: Steps) -> None:
        """Does what an operation asks for."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = getattr(self, f"do_{step[0]}")(*step[1:])
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration:
            pass

    def do_ask(self, commands: List[Step], seconds: float) -> List[Any]:
        try:
            if self.connection is None or self.connection.ended:
                _owner.opens(self)
                self.connection = self.make_connection()
                self.connection.session = self.session
                self.connection.connect()
            connection = self.connection
            connection.catch_up(seconds)
            connection.send_packed_command(connection.pack_commands(commands))
            until = now() + seconds
            replies: List[Any] = []
            for _ in commands:
                # Not by the time-out of the connection, which is for the program's commands.
                if not connection.can_read(timeout=max(0.0, until - now())):
                    raise exceptions.TimeoutError(f"no answer within {seconds:.3g} s")
                try:
                    replies.append(connection.read_response())
                except exceptions.ResponseError as error:
                    replies.append(error)
            return replies
        except (exceptions.RedisError, OSError):  # an answer may be on its way, and is not for the next question
            self.do_close()
            raise
        except BaseException as error:
            if self.connection is not None:
                self.connection.interrupted(error)
            raise

    def do_close(self) -> None:
        if self.connection is not None:
            self.connection.disconnect()

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def keep(self) -> None:
        """Has the lock confirmed every third of its validity, until it is released or lost."""
        session = self.session
        pause = session.validity / 3
        while not self.stop.wait(min(pause, session.remaining())) and not session.lost.is_set():
            if self.abandoned:
                break
            if not self.turn.acquire(timeout=session.remaining()):
                continue
            try:
                if not self.stop.is_set():
                    self.carry_out(session.confirming())
                pause = session.validity / 3
            except Exception as error:  # the clock goes on
                session.trouble = error
                pause = AGAIN
            finally:
                self.turn.release()
        # Even if a command is under way, or a question hangs.
        self.do_close()
        if self.abandoned:
            _owner.forget(session)

    def descriptor(self) -> Optional[int]:
        socket = getattr(self.connection, "_sock", None)
        return None if socket is None or socket.fileno() < 0 else socket.fileno()

    # What redis.Redis asks of its pool.

    def get_connection(self, *_: Any, **__: Any) -> Any:
        self.session.check()
        if not self.turn.acquire(timeout=self.session.remaining()):
            self.session.check()
            raise exceptions.ConnectionError("another command uses the connection that has the lock")
        try:
            if not self.connection.ended:
                self.connection.catch_up(self.session.remaining())
            if self.connection.ended:
                self.carry_out(self.session.confirming())
            self.session.check()
        except BaseException:
            self.turn.release()
            raise
        return self.connection

    def release(self, connection: Any) -> None:
        self.turn.release()

    def disconnect(self, *_: Any, **__: Any) -> None:
        """Leaves the connection alone: it has the lock."""


class _Lost(threading.Event):
    """Is set when the lock is lost: by the clock as well, even if no thread has had time to look at that."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def is_set(self) -> bool:
        return super().is_set() or self._session.is_over()

    def wait(self, timeout: Optional[float] = None) -> bool:
        end = math.inf if timeout is None else now() + timeout
        while not self.is_set() and (left := end - now()) > 0:
            if not self._session.released:
                left = min(left, self._session.until - now())
            super().wait(min(max(left, 0.001), threading.TIMEOUT_MAX))
        return self.is_set()


class Grant(GrantBase):
    """A lock that a thread holds, on a connection of its own."""

    def __init__(self, session: Session, pool: _Pool, names: Tuple[Key, ...] = ()) -> None:
        super().__init__(session, pool, names)
        # Commands on the connection that has the lock. None is sent once the lock is lost.
        self.redis: redis.Redis = redis.Redis(connection_pool=pool)

    @property
    def lost(self) -> threading.Event:
        """Set as soon as the lock is lost, or not known to be held any more."""
        return self._session.lost  # type: ignore[no-any-return]

    def execute(self, *command: Any) -> Any:
        """Sends a command on the connection that has the lock."""
        return self.redis.execute_command(*command)  # type: ignore[no-untyped-call,unused-ignore]

    def attach(self, pipeline: Any) -> None:
        """Has what follows in this pipeline written under the lock: adds LOCK.ATTACH for each of its names."""
        for command in self._attaching(pipeline):
            pipeline.execute_command(*command)

    def release(self) -> None:
        """Gives the lock back. Raises LockLost if it was not held all the time."""
        session, pool = self._session, self._pool
        has_turn = False
        try:
            if self._leave():
                has_turn = pool.turn.acquire(timeout=min(ANSWER, session.remaining()))
                if has_turn:
                    pool.carry_out(session.releasing())
                else:  # a question hangs, or another thread's command is under way
                    session.check()
        except LockgateError:
            raise
        except BaseException:  # The end of the connection frees the lock.
            _owner.leave(session, self)
            raise
        finally:
            if self._left and session.count == 0:
                # The keeper ends it if an interrupt comes behind this.
                pool.abandoned, session.released = True, session.why is None
                pool.stop.set()
                pool.do_close()
                if has_turn:
                    pool.turn.release()
                _owner.forget(session)

    def __enter__(self) -> Grant:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with loss_behind(error):
            self.release()


class Lock(LockBase[Grant]):
    """A lock as it is to be taken: `with lock as grant`, or `acquire()`.

    redis    a redis.Redis that leads to a Lockgate proxy. The lock gets a connection of its own, made alike
    key      the lock's name, or a list of names, which are taken all or none
    wait     for how many seconds to wait in line; 0 asks once; None waits as long as it takes
    permits  takes a free one of so many permits of the key; `grant.name` tells which
    shared   shares the lock with other readers
    """

    def _prepare(self) -> Tuple[Session, _Pool]:
        pool = _Pool(self._redis)
        pool.session = Session(pool.where, *self._terms, self._lease, _Lost)
        return pool.session, pool

    def acquire(self) -> Grant:
        """Takes the lock. Raises NotAcquired if it was not to be had within `wait`."""
        session, pool = self._prepare()
        mine = _owner.again(session)
        if mine is not None:
            return _owner.joined(mine[0], Grant(*mine))
        try:
            pool.carry_out(session.acquiring())
            threading.Thread(target=pool.keep, name=f"lockgate {session}", daemon=True).start()
            grant = Grant(session, pool)
            _owner.keep(session, pool, grant)
            return grant
        except BaseException:  # It may have been granted.
            pool.abandoned = True
            pool.stop.set()
            pool.do_close()
            _owner.forget(session)
            raise

    def __enter__(self) -> Grant:
        grant = self.acquire()
        try:
            return self._enter(grant)
        except BaseException:
            self._exit(grant)
            grant.release()
            raise

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        interrupt: Optional[BaseException] = None
        try:
            grant = self._innermost()
        except BaseException as caught:
            interrupt, grant = caught, self._innermost()
        try:
            grant.__exit__(kind, error, trace)
        finally:
            self._exit(grant)
        if interrupt is not None:
            raise interrupt


lock = Lock


class _Lease(Lock):
    def __init__(self, redis: Any, key: Key, at_least: float) -> None:
        self._lease = at_least
        super().__init__(redis, key, wait=0)


def once(
    redis: Any, key: Union[Key, Callable[..., Key]], *, at_least: float
) -> Callable[[Callable[..., T]], Callable[..., Optional[T]]]:
    """Decorates a function that one caller of all runs, while the others' calls return None.

    The lock is held for `at_least` seconds, even if the function ends sooner, and for as long as the function runs.
    `key` may be a function of the arguments. Raises LockLost behind a function that ran without the lock.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., Optional[T]]:
        runs_later(function, False)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Optional[T]:
            lease = _Lease(redis, key(*args, **kwargs) if callable(key) else key, at_least)
            try:
                grant = lease.acquire()
            except NotAcquired as error:
                if error.reason == NotAcquired.HELD:
                    return None
                raise
            with grant:
                return function(*args, **kwargs)

        return run

    return decorate
