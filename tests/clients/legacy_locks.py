"""Lock libraries as they are, on one Redis.

    legacy_locks.py PORT

redis-py's Lock, redlock-py and pottery, each taking, prolonging and releasing lock:… keys, and
what is unsafe about locks by hand.
"""

import sys

import pottery
import redis
import redlock

PORT = int(sys.argv[1])


def of_redis_py():
    client = redis.Redis(port=PORT, client_name="redis-py")
    lock = client.lock("lock:py", timeout=30)
    assert lock.acquire(blocking=False)
    assert not client.lock("lock:py", timeout=30).acquire(blocking=False)
    assert lock.owned() and lock.locked()
    lock.extend(5)
    lock.extend(7, replace_ttl=True)
    lock.reacquire()
    lock.release()
    # One without a TTL.
    lock = client.lock("lock:ever")
    assert lock.acquire(blocking=False)
    lock.release()


def of_redlock_py():
    locks = redlock.Redlock([{"host": "127.0.0.1", "port": PORT}], retry_count=1)
    lock = locks.lock("lock:redlock-py", 10_000)
    assert lock
    assert not locks.lock("lock:redlock-py", 10_000)
    locks.unlock(lock)


def of_pottery():
    client = redis.Redis(port=PORT, client_name="pottery")
    lock = pottery.Redlock(key="lock", masters={client}, auto_release_time=10)
    assert lock.acquire(blocking=False)
    assert lock.locked() > 0
    lock.extend()
    lock.release()


def by_hand():
    client = redis.Redis(port=PORT, client_name="by-hand")
    assert client.setnx("lock:hand", "1")
    client.expire("lock:hand", 30)
    client.set("lock:hand", "2")
    assert client.delete("lock:hand") == 1
    # Two that are no locks.
    client.set("cache:1", "x", nx=True)
    client.hset("lock:hash", "thread", 1)
    client.delete("lock:hash")


of_redis_py()
of_redlock_py()
of_pottery()
by_hand()
print("ok")
