"""One worker at a time books payments; others wait in line, and one goes on when this one ends or fails.

    python worker.py redis://127.0.0.1:6380

The list `payments:7` has amounts, and `account:7` their sum. A guard of the proxy, keys "account:*" and lock
"account:{1}", refuses every write to the account that is not the holder's. Needs redis and the package lockgate.
"""

import sys

import lockgate
import redis


def book(r, grant):
    """Books one payment. Returns whether there was any."""
    amount = r.lindex("payments:7", 0)
    if amount is None:
        return False
    # On the lock's own connection, so that the guard knows the holder. In one transaction, so that a payment is
    # booked and taken from the list, or neither.
    with grant.redis.pipeline() as both:
        both.incrby("account:7", int(amount)).lpop("payments:7").execute()
    return True


def main():
    r = redis.Redis.from_url(sys.argv[1])
    try:
        with lockgate.lock(r, "account:7", wait=60) as grant:
            while book(r, grant):
                # Raises LockLost, so that no work goes on without the lock.
                grant.check()
    except lockgate.LockgateError as error:
        sys.exit(f"worker: {error}")


main()
