"""Session locks of a Lockgate proxy for redis-py: held on a connection of their own, watched, and told of when lost.

    with lockgate.lock(redis.Redis(port=6380), "report", wait=10) as grant:
        build_report(grant.fence)

`lockgate.asyncio` has the same for redis.asyncio.
"""

from ._errors import LockgateError, LockLost, NotAcquired, NotLockgate, Unsupported
from ._threads import Grant, Lock, lock, once

__all__ = [
    "Grant",
    "Lock",
    "LockLost",
    "LockgateError",
    "NotAcquired",
    "NotLockgate",
    "Unsupported",
    "lock",
    "once",
]
