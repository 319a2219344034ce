"""What a program is told when a lock is not to be had, or not held any more.

Each can be made of its words alone, as it is when it comes from another process (pickle).
"""

from __future__ import annotations

from typing import Optional

from redis.exceptions import ConnectionError, LockError, LockNotOwnedError, ResponseError


class LockgateError(LockError):
    """What all errors of this package have in common. redis-py's LockError is a ValueError, so these are too."""


class NotAcquired(LockgateError):
    """The lock was not to be had within `wait`. `reason` is one of the three below."""

    HELD = "held"
    NO_QUORUM = "no quorum"
    UNREACHABLE = "unreachable"

    def __init__(self, message: str, reason: str = HELD) -> None:
        super().__init__(message)
        self.reason = reason


class LockLost(LockgateError, LockNotOwnedError):
    """The lock is not held any more, or not known to be: another client may have it."""


class LostReply(LockLost, ResponseError):
    """A loss that the answer to a command told. redis-py's pipelines know it as an answer."""


class LostConnection(LockLost, ConnectionError):
    """A loss for which a command was not sent, or its answer not read. redis-py gives up a connection behind it."""


class NotLockgate(LockgateError):
    """The server is no Lockgate proxy, but answers as a Redis does."""


class Unsupported(LockgateError):
    """The proxy is of a version that does not have `option`."""

    def __init__(self, message: str, option: str = "", version: Optional[str] = None) -> None:
        super().__init__(message)
        self.option = option
        self.version = version
