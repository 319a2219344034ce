"""One lock, from its LOCK to its end: what is asked of the proxy, in which order, and what the answers mean.

Does no I/O. Each operation is a generator of steps, which the threads of `_threads` and the tasks of `asyncio` carry
out alike: `("ask", commands, seconds)` is answered with their replies, errors among them; `("close",)` ends the
connection, and the next "ask" opens another; `("sleep", seconds)` waits.
"""

from __future__ import annotations

import logging
import math
import os
import random
import ssl
import time
import uuid
from typing import Any, Dict, Generator, List, Optional, Sequence, Tuple, Union

from redis import exceptions

from ._errors import LockgateError, LockLost, LostConnection, LostReply, NotAcquired, NotLockgate, Unsupported

log = logging.getLogger("lockgate")

Key = Union[str, bytes]
Keys = Union[Key, Sequence[Key]]
Step = Tuple[Any, ...]
Steps = Generator[Step, Any, Any]

# How long an answer may take, beyond the WAIT of a LOCK.
ANSWER = 5.0
# The pause before a question without an answer is asked again.
AGAIN = 0.25
# The longest WAIT that is asked for at once: the default of locks.max_wait. The proxy says where it is less.
LONGEST_WAIT = 60.0

# Errors that end by themselves. redis-py takes the first word off those that it knows by class.
_PASSING = {
    "NOQUORUM": NotAcquired.NO_QUORUM,
    "NOREPLICAS": NotAcquired.NO_QUORUM,
    "FENCED": NotAcquired.NO_QUORUM,
    "NOTHELD": NotAcquired.NO_QUORUM,
    "QUEUEFULL": NotAcquired.HELD,
    "BUSY": NotAcquired.UNREACHABLE,
}
_PASSING_CLASSES = (
    (exceptions.TryAgainError, NotAcquired.NO_QUORUM),
    ((exceptions.AuthenticationError, exceptions.AuthorizationError), None),
    ((exceptions.ConnectionError, exceptions.TimeoutError, OSError), NotAcquired.UNREACHABLE),
    ((exceptions.ClusterDownError, exceptions.MasterDownError, exceptions.ReadOnlyError), NotAcquired.UNREACHABLE),
)


def now() -> float:
    """A clock that never goes back, and goes on while the machine is suspended, where there is one."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def _passing(error: BaseException) -> Optional[str]:
    """Returns why a lock is not to be had for now; None for an error that does not end by itself."""
    origin = error.__cause__ or error.__context__
    if isinstance(origin, ssl.SSLError) and not isinstance(origin, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    for classes, reason in _PASSING_CLASSES:
        if isinstance(error, classes):
            return reason
    return _PASSING.get(str(error).partition(" ")[0])


def _milliseconds(seconds: float) -> int:
    # WAIT 0 would wait for the longest.
    return max(1, math.ceil(seconds * 1000))


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _text(word: Any) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)


def listed(keys: Keys) -> Union[Key, Tuple[Key, ...]]:
    """Returns a key as it is, and several as a tuple. Anything else is a TypeError."""
    if isinstance(keys, (str, bytes)):
        return keys
    try:
        several = tuple(keys)
    except TypeError:
        several = ()
    if not several or not all(isinstance(key, (str, bytes)) for key in several):
        raise TypeError("a key is a str or bytes; for several locks give a sequence of keys, at least one")
    return several


class Session:
    """A lock that is asked for, held, lost or released. `lost` is the event of the thread's or the task's kind."""

    def __init__(
        self,
        where: str,
        keys: Keys,
        wait: Optional[float],
        permits: Optional[int],
        shared: bool,
        lease: Optional[float],
        event: type,
    ) -> None:
        self.where = where
        self.single = isinstance(keys, (str, bytes))
        named = listed(keys)
        self.keys: Tuple[Key, ...] = (named,) if isinstance(named, (str, bytes)) else named
        if wait is not None and not (isinstance(wait, (int, float)) and wait >= 0):
            raise ValueError("wait should be a number of seconds from 0 on, or None: as long as it takes")
        if permits is not None and not 1 <= permits <= 256:
            raise ValueError(f"permits should be between 1 and 256, {permits} is not")
        if (permits is not None) + shared + (not self.single) > 1:
            raise ValueError("permits, shared and several keys exclude one another")
        if lease is not None and not lease > 0:
            raise ValueError("at_least should be a number of seconds above 0")
        self.wait = math.inf if wait is None else wait
        self.permits = permits
        self.shared = shared
        self.lease = lease
        # What is held: of a permit, its own name.
        self.names = self.keys
        self.token = ""
        self.fences: Tuple[int, ...] = ()
        self.since = 0.0
        self.validity = 0.0
        self.until = 0.0
        self.why: Optional[str] = None
        self.trouble: Optional[BaseException] = None
        self.pid = os.getpid()
        # Blocks that the lock protects, as a thread or a task may take what it has once more.
        self.count = 0
        self.owned: Dict[Any, Session] = {}
        self.dropped = False
        self.released = False
        self.lost = event(self)

    def __str__(self) -> str:
        return ", ".join(repr(_text(name)) for name in self.names)

    # What is known without asking.

    def remaining(self) -> float:
        """Returns for how many seconds the lock surely holds."""
        if self.why or self.released or os.getpid() != self.pid:
            return 0.0
        return max(0.0, self.until - now())

    def is_over(self) -> bool:
        """Whether the lock may be another's, as far as the clock tells. An event that is asked notes it."""
        if os.getpid() != self.pid:
            return True
        if not self.released and not self.why and now() >= self.until:
            trouble = f", as the last question failed ({_words(self.trouble)})" if self.trouble else ""
            self.lose("no answer has confirmed it in time" + trouble)
        return self.why is not None

    def lose(self, why: str) -> LockLost:
        """Notes that the lock is lost; the first reason counts."""
        if self.why is None and not self.released:
            self.why = why
            self.lost.set()
        return self.loss()

    def loss(self) -> LockLost:
        if os.getpid() != self.pid:
            return LockLost(f"the lock {self} is held by process {self.pid}, and not by its fork {os.getpid()}")
        return LockLost(f"the lock {self} is lost: {self.why}")

    def check(self) -> None:
        """Raises unless the lock is held."""
        if self.lost.is_set():
            raise self.loss()
        if self.released:
            raise LockgateError(f"the lock {self} has been released")

    def sends(self) -> None:
        """Raises if a command on the lock's own connection comes too late, as behind a long WATCH."""
        if self.count and self.lost.is_set():
            raise LostConnection(str(self.loss()))

    def answered(self, error: Exception) -> Exception:
        """Returns what to raise for an error of a command on the lock's own connection."""
        if not isinstance(error, exceptions.ResponseError):
            return LostConnection(str(self.loss())) if self.why else error
        if self.token and str(error).partition(" ")[0] in ("LOCKLOST", "FENCED"):
            self.lose(str(error))
            return LostReply(str(error))
        return error

    # What is asked.

    def acquiring(self) -> Steps:
        """Takes the lock, and waits for it in line, from piece to piece."""
        deadline = now() + self.wait
        longest = LONGEST_WAIT
        failures = 0
        while True:
            wait = max(0.0, min(deadline - now(), longest))
            token = uuid.uuid4().hex
            error: Optional[BaseException] = None
            reason: Optional[str]
            sent = now()
            try:
                (reply,) = yield ("ask", [self._lock(token, wait)], wait + ANSWER)
            except (exceptions.RedisError, OSError) as failed:
                reply = failed
            if isinstance(reply, list):
                self._granted(token, sent, reply)
                # When the validity of a LOCK that has waited began, only RENEW tells.
                if now() - sent > AGAIN:
                    try:
                        yield from self.confirming()
                    except (exceptions.RedisError, OSError) as failed:
                        self.trouble = failed
                if not self.is_over():
                    return
                self.why, self.token, self.names = None, "", self.keys
                self.lost.clear()
                error, reason = self.trouble, NotAcquired.NO_QUORUM
                yield ("close",)
            elif reply is None:
                reason = NotAcquired.HELD
            elif (limit := _longest_wait(reply)) and limit < wait:
                longest = limit
                continue
            else:
                error = reply
                reason = _passing(error)
                if reason is None:
                    raise (yield from self._explained(error)) from None
                yield ("close",)
            if now() >= deadline:
                raise self._not_acquired(reason, error) from error
            # A proxy that answers before WAIT is over is asked again later.
            if error or now() - sent < wait * 0.9:
                failures += 1
                if error and failures == 1:
                    log.warning("%s; asking again", self._not_acquired(reason, error))
                pause = min(2.0, 0.1 * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0)
                yield ("sleep", max(0.0, min(pause, deadline - now())))
            else:
                failures = 0

    def confirming(self) -> Steps:
        """Asks whether the lock is held, and prolongs it. On a new connection, takes it over if nobody had it since."""
        sent = now()
        ttl = () if self.lease is None else ("PX", _milliseconds(self.lease))
        renewals = [("RENEW", name, self.token, *ttl) for name in self.names]
        replies = yield ("ask", renewals, max(0.0, self.until - sent) or ANSWER)
        for name, reply in zip(self.names, replies):
            if reply == 0:
                raise self.lose(f"{_text(name)!r} is not held any more")
            if isinstance(reply, LockLost):
                raise reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        self.until = sent + min(replies) / 1000
        self.trouble = None

    def releasing(self) -> Steps:
        """Gives the lock back. Raises LockLost if it was not held any more."""
        self.check()
        left = 0.0 if self.lease is None else self.since + self.lease - now()
        if left > 0 and self.until <= now() + left:
            self.released = True
            return
        release: Step
        if left > 0:  # it was prolonged, and lasts too long
            release = ("RENEW", self.names[0], self.token, "PX", max(4, _milliseconds(left)))
        elif self.single:
            release = ("UNLOCK", self.names[0], self.token)
        else:
            release = ("MUNLOCK", len(self.names), *self.names, self.token)
        try:
            (reply,) = yield ("ask", [release], ANSWER)
        except (exceptions.RedisError, OSError) as error:
            reply = error
        if isinstance(reply, LockLost):
            raise reply
        if isinstance(reply, Exception):
            # Not known: the end of the connection frees the lock, or it runs out. It was held until here.
            self.trouble = reply
            self.check()
        elif reply == 0 or (release[0] == "MUNLOCK" and reply < len(self.names)):
            raise self.lose("UNLOCK found that it was not held any more")
        self.released = True

    def attaching(self) -> List[Step]:
        """Returns the commands by which another connection writes under this lock."""
        self.check()
        if self.shared:
            raise ValueError("a reader's lock lets nobody write")
        return [("LOCK.ATTACH", name, self.token) for name in self.names]

    def _lock(self, token: str, wait: float) -> Step:
        words: Step = ("LOCK",) if self.single else ("MLOCK", len(self.keys))
        words += (*self.keys, token)
        if self.permits is not None:
            words += ("PERMITS", self.permits)
        if self.shared:
            words += ("SHARED",)
        if self.lease is not None:
            words += ("PX", _milliseconds(self.lease))
        if wait > 0:
            words += ("WAIT", _milliseconds(wait))
        return words

    def _granted(self, token: str, sent: float, reply: List[Any]) -> None:
        if self.single:
            self.fences, validity = (int(reply[1]),), reply[2]
        else:
            validity, self.fences = reply[1], tuple(int(fence) for fence in reply[2])
        if self.permits is not None:
            name = reply[3]
            if isinstance(self.keys[0], str):
                name = _text(name)
            self.names = (name,)
        self.token, self.since, self.validity = token, sent, validity / 1000
        self.until = sent + self.validity

    def _not_acquired(self, reason: str, error: Optional[BaseException]) -> NotAcquired:
        words = {
            NotAcquired.HELD: "other clients hold it" if self.permits is None else "other clients hold all permits",
            NotAcquired.NO_QUORUM: "too few lock nodes have granted it in time",
            NotAcquired.UNREACHABLE: f"{self.where} cannot be reached, or answers no LOCK",
        }
        detail = f" ({_words(error)})" if error else ""
        return NotAcquired(f"the lock {self} was not acquired: {words[reason]}{detail}", reason)

    def _explained(self, error: BaseException) -> Steps:
        """Returns what to raise for an error of LOCK: what the server is, if it does not know the command."""
        text = str(error).lower()
        if not text.startswith(("unknown command", "syntax error", "wrong number of arguments")):
            return error
        try:
            (version,) = yield ("ask", [("LOCKGATE", "VERSION")], ANSWER)
        except (exceptions.RedisError, OSError):
            return error
        if isinstance(version, Exception):
            if str(version).lower().startswith("unknown command"):
                return NotLockgate(f"{self.where} is no Lockgate proxy, and knows no LOCK ({error})")
            version = None
        option = "PERMITS" if self.permits is not None else "SHARED" if self.shared else self._lock("", 0)[0]
        version = _text(version) if version is not None else None
        of = f"version {version}" if version else "a version that does not tell its number"
        message = f"the Lockgate proxy {self.where} is of {of}, which does not know {option} ({error})"
        return Unsupported(message, option, version)


def spelled(name: Key) -> bytes:
    """The name as the proxy gets it."""
    return name.encode() if isinstance(name, str) else name


def _longest_wait(error: Any) -> Optional[float]:
    """Returns the longest WAIT that the proxy allows, from its error for a longer one."""
    _, found, rest = str(error).partition("the longest is ")
    number, found, _ = rest.partition(" ms (locks.max_wait)")
    return int(number) / 1000 if found and number.isdigit() else None
