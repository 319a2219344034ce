"""What locks and grants of threads and of tasks have in common."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from typing import Any, Callable, Dict, Generic, List, Optional, Tuple, TypeVar

from . import _owner
from ._errors import LockgateError, LockLost
from ._session import Key, Keys, Session, Step, listed, log, spelled

G = TypeVar("G", bound="GrantBase")


class GrantBase:
    """A lock that is held."""

    def __init__(self, session: Session, pool: Any, names: Tuple[Key, ...] = ()) -> None:
        self._session = session
        self._pool = pool
        # An inner block may have asked for some of what its caller holds.
        self._names = names or session.names
        # The block is left, or was never counted.
        self._left = True
        # By a `with`, whose end has come.
        self._entered = self._exited = False

    @property
    def names(self) -> Tuple[Key, ...]:
        """The locks that are held; of a permit, its own name."""
        return self._names

    @property
    def name(self) -> Key:
        """The lock that is held, where it is one."""
        if len(self._names) > 1:
            raise LockgateError(f"the lock {self._session} is several: `names` and `fences` have all of them")
        return self._names[0]

    @property
    def token(self) -> str:
        """Who holds the lock, as LOCK.ATTACH and UNLOCK want to know."""
        return self._session.token

    @property
    def fence(self) -> int:
        """The number that grows with each grant, where the lock is one. Of a reader it is 0."""
        return self.fences[self.name]

    @property
    def fences(self) -> Dict[Key, int]:
        """The fence of each lock."""
        all_of_them = {spelled(name): fence for name, fence in zip(self._session.names, self._session.fences)}
        return {name: all_of_them[spelled(name)] for name in self._names}

    def remaining(self) -> float:
        """For how many seconds the lock surely holds, if nothing more is heard of it. 0: it is not held."""
        return self._session.remaining()

    def check(self) -> None:
        """Raises LockLost if the lock is lost, or not known to be held any more."""
        self._session.check()

    def _leave(self) -> bool:
        """Notes that the block is left. Returns whether the lock is to be released."""
        if os.getpid() != self._session.pid:
            self._session.check()
        if self._left:  # An outer block may hold the lock still, and must not lose it by that.
            if not self._session.released:
                self._session.check()
            return False
        if _owner.leave(self._session, self):
            return True
        self._session.check()
        return False

    def _attaching(self, pipeline: Any) -> List[Step]:
        # Of a client, `transaction` is a method.
        is_transaction = getattr(pipeline, "is_transaction", getattr(pipeline, "transaction", True))
        if is_transaction and not getattr(pipeline, "watching", False):
            raise ValueError("attach() needs a pipeline made with transaction=False, or one that WATCHes")
        return self._session.attaching()

    def __del__(self) -> None:
        if not getattr(self, "_left", True):
            _owner.dropped(self._session, self._pool, self._entered)


class LockBase(Generic[G]):
    """A lock as it is to be taken. May be used by several threads or tasks, and again."""

    _lease: Optional[float] = None

    def __init__(
        self,
        redis: Any,
        key: Keys,
        *,
        wait: Optional[float] = None,
        permits: Optional[int] = None,
        shared: bool = False,
    ) -> None:
        self._redis = redis
        self._terms = (listed(key), wait, permits, shared)
        self._entered: List[Tuple[Any, G]] = []
        self._entering = threading.Lock()
        self._prepare()  # a wrong argument is told here

    def _prepare(self) -> Tuple[Session, Any]:
        raise NotImplementedError

    def _enter(self, grant: G) -> G:
        with self._entering:
            self._entered.append((_owner.owner(), grant))
            grant._entered = True
        return grant

    def _innermost(self) -> G:
        """Returns the grant of the innermost block that the caller is about to leave."""
        owner = _owner.owner()
        with self._entering:
            entered = [entry for entry in self._entered if not entry[1]._exited]
            mine = [entry for entry in entered if entry[0] is owner]
            # A block may be left by another task than the one that entered it.
            return (mine or entered or self._entered)[-1][1]

    def _exit(self, grant: G) -> None:
        grant._exited = True
        with self._entering:
            self._entered = [entry for entry in self._entered if not entry[1]._exited]


def runs_later(function: Callable[..., Any], is_wanted: bool) -> None:
    """Raises where what a call returns runs only later, without the lock; or not, if `is_wanted`."""
    call = getattr(function, "__call__", None)
    is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator or is_coroutine != is_wanted:
        kind = "a generator" if is_generator else "a coroutine function" if is_coroutine else "no coroutine function"
        other = "" if is_generator else "; see " + ("lockgate.once" if is_wanted else "lockgate.asyncio.once")
        raise TypeError(f"once() cannot decorate {function!r}, which is {kind}{other}")


@contextlib.contextmanager
def loss_behind(error: Optional[BaseException]) -> Any:
    """Lets the body's own error pass where leaving the block finds a loss, with the loss as its context."""
    try:
        yield
    except LockLost as lost:
        if error is None:
            raise
        if isinstance(error, LockLost):
            return
        log.warning("%s", lost)
        while error.__context__ is not None:
            error = error.__context__
        error.__context__ = lost
