"""A worker that does its job under a lock of redis-py, and knows one Redis.

    redis_py.py NAME PORT

Prints when it begins and ends. The job takes until a line comes in.
"""

import sys
import time

import redis

name, port = sys.argv[1], int(sys.argv[2])
client = redis.Redis(port=port, client_name=name)
lock = client.lock("lock:invoices", timeout=120)


def note(what):
    print(name, what, flush=True)


def taken():
    try:
        if lock.acquire(blocking=False):
            return True
        note("waits")
    except redis.ConnectionError:
        note("has no connection")
    return False


while not taken():
    time.sleep(0.1)
note("begins")
sys.stdin.readline()
note("ends")
try:
    lock.release()
    note("has released the lock")
except redis.exceptions.LockError:
    note("finds that it has lost the lock")
