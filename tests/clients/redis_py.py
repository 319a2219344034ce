"""Real work by redis-py through the proxy.

    redis_py.py PORT 2|3 [CA]

The second argument is the RESP version, the third a file with the CA to trust for TLS;
without it there is none. Every promise below is a function; the first that fails ends the
run with its traceback and status 1. It knows the proxy only as a Redis on that port.
"""

import asyncio
import contextlib
import hashlib
import os
import sys
import threading
import time

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import (
    LockError,
    LockNotOwnedError,
    NoScriptError,
    ResponseError,
    WatchError,
)
from redis.retry import Retry

PORT, PROTOCOL = int(sys.argv[1]), int(sys.argv[2])
# Seconds: nothing here may take longer, so that a lost reply is a failure.
LIMIT = 10
# A command is never sent twice: a connection that broke must show.
STRICT = {"host": "127.0.0.1", "port": PORT, "socket_timeout": LIMIT, "retry": Retry(NoBackoff(), 0)}
if len(sys.argv) > 3:
    # Of a hundred connections made at once, each first reads all of the system's CAs for
    # a twentieth of a second, and none is connected meanwhile.
    STRICT |= {"ssl": True, "ssl_ca_certs": sys.argv[3], "ssl_check_hostname": True,
               "socket_connect_timeout": 3 * LIMIT}


def client(**options):
    return redis.Redis(**{**STRICT, "protocol": PROTOCOL, **options})


@contextlib.contextmanager
def refused(error, words=""):
    """The block must fail with this error, and say these words."""
    try:
        yield
    except error as said:
        assert words in str(said), said
    else:
        raise AssertionError(f"no {error.__name__}")


def in_threads(count, work):
    """Runs work(number) in threads; fails if one of them failed."""
    failures = []

    def run(number):
        try:
            work(number)
        except BaseException as error:  # handed to the thread that joins
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * LIMIT)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def the_protocol_is_the_one_asked_for():
    hello = client().execute_command("HELLO")
    if isinstance(hello, list):
        hello = dict(zip(hello[::2], hello[1::2]))
    assert hello[b"proto"] == PROTOCOL


def every_type_comes_back_as_it_went():
    r = client()
    binary = bytes(range(256)) * 3 + b"\r\n*1\r\n$-1\r\n"
    assert r.set("s", binary) and r.get("s") == binary
    assert r.get("none") is None
    assert r.hset("h", mapping={"a": 1, "b": binary}) == 2
    assert r.hgetall("h") == {b"a": b"1", b"b": binary}
    assert r.rpush("l", *range(100)) == 100
    assert r.lrange("l", 0, -1) == [b"%d" % n for n in range(100)]
    assert r.sadd("set", "x", "y") == 2 and r.smembers("set") == {b"x", b"y"}
    assert r.zadd("z", {"one": 1, "half": 0.5}) == 2
    assert r.zscore("z", "half") == 0.5 and r.zrank("z", "one") == 1
    entry = r.xadd("x", {"f": "v"})
    assert r.xlen("x") == 1 and r.xrange("x")[0] == (entry, {b"f": b"v"})
    assert sorted(r.scan_iter(count=2)) == [b"h", b"l", b"s", b"set", b"x", b"z"]
    assert r.incr("n", 2**40) == 2**40
    with refused(ResponseError, "not an integer"):
        r.incr("s")
    assert r.info("server")["redis_version"] and r.config_get("maxmemory")


def a_long_pipeline_is_answered_in_order():
    r = client()
    with r.pipeline(transaction=False) as pipe:
        for n in range(5000):
            pipe.set(f"k{n}", "v" * (n % 700))
            pipe.get(f"k{n}")
        answers = pipe.execute()
    assert len(answers) == 10_000
    assert all(answers[2 * n + 1] == b"v" * (n % 700) for n in range(5000))


def errors_in_a_pipeline_stand_at_their_place():
    r = client()
    pipe = r.pipeline(transaction=False).set("a", "x").incr("a").get("a").execute_command("NOSUCH")
    ok, error, value, unknown = pipe.execute(raise_on_error=False)
    assert ok is True and value == b"x"
    assert isinstance(error, ResponseError) and isinstance(unknown, ResponseError)


def transactions_are_atomic_and_watched():
    r = client()
    r.set("balance", 0)

    def deposit(_):
        mine = client()
        for _ in range(10):
            while True:
                with mine.pipeline() as pipe:
                    try:
                        pipe.watch("balance")
                        seen = int(pipe.get("balance"))
                        pipe.multi()
                        pipe.set("balance", seen + 1)
                        assert pipe.execute() == [True]
                        break
                    except WatchError:
                        continue

    in_threads(5, deposit)
    assert r.get("balance") == b"50"
    with r.pipeline() as pipe:
        pipe.set("a", "x")
        pipe.incr("a")
        results = pipe.execute(raise_on_error=False)
    assert results[0] is True and isinstance(results[1], ResponseError)


def published_messages_arrive():
    r = client()
    pubsub = r.pubsub()
    pubsub.subscribe("news")
    pubsub.psubscribe("n?ws")
    kinds = [pubsub.get_message(timeout=LIMIT)["type"] for _ in range(2)]
    assert kinds == ["subscribe", "psubscribe"]
    for n in range(200):
        assert r.publish("news", n) == 2
    seen = [pubsub.get_message(timeout=LIMIT) for _ in range(400)]
    for kind in ("message", "pmessage"):
        assert [m["data"] for m in seen if m["type"] == kind] == [b"%d" % n for n in range(200)]
    pubsub.ping("still there")
    assert pubsub.get_message(timeout=LIMIT)["type"] == "pong"
    pubsub.unsubscribe()
    pubsub.punsubscribe()
    kinds = {pubsub.get_message(timeout=LIMIT)["type"] for _ in range(2)}
    assert kinds == {"unsubscribe", "punsubscribe"}
    pubsub.close()


def blocking_pops_wait_and_time_out():
    r = client()
    assert r.blpop("jobs", timeout=0.1) is None
    got = []

    def work(number):
        mine = client()
        if number == 0:
            for n in range(50):
                mine.rpush("jobs", n)
        else:
            while (job := mine.blpop("jobs", timeout=1)) is not None:
                got.append(int(job[1]))

    in_threads(4, work)
    assert sorted(got) == list(range(50))


def scripts_are_loaded_and_called_by_digest():
    r = client()
    r.script_flush()
    with refused(NoScriptError):
        r.evalsha("0" * 40, 0)
    add = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert [add(keys=["n"], args=[5]) for _ in range(3)] == [5, 10, 15]
    assert r.eval("return {1, {2, 'x', false}, redis.status_reply('S')}", 0) == [1, [2, b"x", None], b"S"]


def large_values_come_back_whole():
    r = client()
    value = os.urandom(1 << 20) * 24
    assert r.set("large", value) and r.strlen("large") == len(value)
    back = r.get("large")
    assert hashlib.sha256(back).digest() == hashlib.sha256(value).digest()
    r.delete("large")


def databases_belong_to_the_connection():
    first, second = client(db=1), client(db=2)
    first.set("k", "one")
    second.set("k", "two")
    assert (first.get("k"), second.get("k"), client().get("k")) == (b"one", b"two", None)
    names = client(client_name="me")
    assert names.client_getname() in ("me", b"me")


def monitor_sees_what_others_do():
    r = client()
    with r.monitor() as monitor:
        r.set("watched", "1")
        while True:
            seen = monitor.next_command()
            if seen["command"] == "SET watched 1":
                break


def the_asyncio_client_works_too():
    async def work():
        options = {**STRICT, "retry": None, "protocol": PROTOCOL}
        async with redis.asyncio.Redis(**options) as r:
            assert await asyncio.gather(*(r.incr("async") for _ in range(100)))
            assert await r.get("async") == b"100"
            async with r.pipeline(transaction=True) as pipe:
                assert await pipe.set("a", 1).incr("a").execute() == [True, 2]
            async with r.pubsub() as pubsub:
                await pubsub.subscribe("c")
                assert (await pubsub.get_message(timeout=LIMIT))["type"] == "subscribe"
                await r.publish("c", "hi")
                assert (await pubsub.get_message(timeout=LIMIT))["data"] == b"hi"

    asyncio.run(asyncio.wait_for(work(), 3 * LIMIT))


def the_librarys_own_lock_excludes():
    """redis.lock.Lock, unchanged: SET NX and scripts on the data node."""
    r = client()
    r.set("counter", 0)

    def work(_):
        mine = client()
        for _ in range(10):
            with mine.lock("own", timeout=LIMIT, sleep=0.005, blocking_timeout=2 * LIMIT):
                seen = int(mine.get("counter"))
                time.sleep(0.001)
                mine.set("counter", seen + 1)

    in_threads(5, work)
    assert r.get("counter") == b"50"
    assert r.exists("own") == 0


def the_librarys_own_lock_extends_and_expires():
    r = client()
    lock, rival = r.lock("own", timeout=LIMIT), r.lock("own", timeout=LIMIT)
    assert lock.acquire() and lock.locked() and lock.owned()
    assert not rival.acquire(blocking=False) and not rival.owned()
    assert lock.extend(LIMIT) and LIMIT * 1000 < r.pttl("own") <= 2 * LIMIT * 1000
    assert lock.extend(5, replace_ttl=True) and r.pttl("own") <= 5000
    assert lock.reacquire() and 5000 < r.pttl("own") <= LIMIT * 1000
    lock.release()
    assert rival.acquire(blocking=False)
    r.delete("own")
    with refused(LockNotOwnedError):
        rival.release()
    assert rival.acquire(blocking=False)
    r.set("own", "stolen")
    with refused(LockNotOwnedError):
        rival.extend(1)
    with refused(LockError, "unlocked"):
        lock.release()


def lock_unlock_and_renew_are_plain_commands():
    r = client()
    token, fence, validity = r.execute_command("LOCK", "job", "PX", 5000)
    assert len(token) >= 16 and fence > 0 and 0 < validity <= 5000
    assert r.execute_command("LOCK", "job", "other", "PX", 5000) is None
    assert r.execute_command("LOCK", "job", token, "PX", 5000)[1] >= fence
    assert 5000 < r.execute_command("RENEW", "job", token, "PX", 9000) <= 9000
    assert r.execute_command("RENEW", "job", "other", "PX", 9000) == 0
    assert r.execute_command("UNLOCK", "job", "other") == 0
    assert r.execute_command("UNLOCK", "job", token) == 1
    assert r.execute_command("UNLOCK", "job", token) == 0
    again = r.execute_command("LOCK", b"job", b"\x00\r\n\xff", "EX", 5)
    assert again[0] == b"\x00\r\n\xff" and again[1] > fence
    assert r.execute_command("UNLOCK", "job", b"\x00\r\n\xff") == 1
    for words, error in (
        (["LOCK"], "wrong number of arguments for 'lock' command"),
        (["LOCK", "job", "PX", "0"], "invalid expire time in 'lock' command"),
        (["LOCK", "job", "PX", "soon"], "value is not an integer or out of range"),
        (["LOCK", "job", "t", "PX"], "syntax error"),
    ):
        with refused(ResponseError, error):
            r.execute_command(*words)


def lock_keeps_its_place_in_a_pipeline():
    r = client()
    with r.pipeline(transaction=False) as pipe:
        for n in range(20):
            pipe.set("k", n)
            pipe.execute_command("LOCK", "job", f"t{n}", "PX", 5000)
            pipe.get("k")
            pipe.execute_command("UNLOCK", "job", f"t{n}")
        answers = pipe.execute()
    for n in range(20):
        stored, grant, value, released = answers[4 * n : 4 * n + 4]
        assert stored is True and grant[0] == b"t%d" % n and value == b"%d" % n and released == 1


def lock_spoils_a_transaction():
    r = client()
    pipe = r.pipeline(transaction=True)
    pipe.set("spoilt", 1).execute_command("LOCK", "job", "PX", 5000)
    with refused(ResponseError):
        pipe.execute()
    assert r.exists("spoilt") == 0


def lock_excludes_threads_and_its_fences_grow():
    r = client()
    r.set("counter", 0)
    fences = []

    def work(number):
        mine = client()
        for _ in range(10):
            while (grant := mine.execute_command("LOCK", "shared", "PX", 8000)) is None:
                time.sleep(0.002)
            seen = int(mine.get("counter"))
            fences.append(grant[1])
            time.sleep(0.001)
            mine.set("counter", seen + 1)
            assert mine.execute_command("UNLOCK", "shared", grant[0]) == 1

    in_threads(5, work)
    assert r.get("counter") == b"50"
    assert fences == sorted(set(fences)), "a later grant had no larger fence"


PROMISES = [
    the_protocol_is_the_one_asked_for,
    every_type_comes_back_as_it_went,
    a_long_pipeline_is_answered_in_order,
    errors_in_a_pipeline_stand_at_their_place,
    transactions_are_atomic_and_watched,
    published_messages_arrive,
    blocking_pops_wait_and_time_out,
    scripts_are_loaded_and_called_by_digest,
    large_values_come_back_whole,
    databases_belong_to_the_connection,
    monitor_sees_what_others_do,
    the_asyncio_client_works_too,
    the_librarys_own_lock_excludes,
    the_librarys_own_lock_extends_and_expires,
    lock_unlock_and_renew_are_plain_commands,
    lock_keeps_its_place_in_a_pipeline,
    lock_spoils_a_transaction,
    lock_excludes_threads_and_its_fences_grow,
]

for promise in PROMISES:
    client().flushall()
    started = time.monotonic()
    print(promise.__name__, end=" ", flush=True)
    promise()
    print(f"{time.monotonic() - started:.2f} s", flush=True)
print(f"redis-py {redis.__version__} RESP{PROTOCOL} ok")
