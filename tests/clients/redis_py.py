"""redis-py doing real work through the proxy: python redis_py.py PORT PROTOCOL."""

import sys
import threading
import time

import redis

port, protocol = int(sys.argv[1]), int(sys.argv[2])


def connect(**options):
    return redis.Redis(port=port, protocol=protocol, decode_responses=True, **options)


client = connect()
client.flushall()

# Plain commands, pipelines, transactions.
assert client.set("a", "1") and client.get("a") == "1"
pipeline = client.pipeline(transaction=False)
for number in range(2000):
    pipeline.rpush("list", number)
assert pipeline.execute()[-1] == 2000
with client.pipeline() as transaction:
    transaction.watch("a")
    value = int(transaction.get("a"))
    transaction.multi()
    transaction.set("a", value + 1)
    transaction.incr("a")
    assert transaction.execute() == [True, 3]
try:
    with client.pipeline() as transaction:
        transaction.watch("a")
        connect().set("a", "9")
        transaction.multi()
        transaction.get("a")
        transaction.execute()
    raise AssertionError("WATCH did not notice")
except redis.WatchError:
    pass

# Large values, scripts, blocking pops, scans.
large = "x" * 5_000_000
client.set("large", large)
assert client.get("large") == large
script = client.register_script("return {KEYS[1], ARGV[1], redis.call('GET', 'a')}")
assert script(keys=["k"], args=["v"]) == ["k", "v", "9"]
threading.Timer(0.1, lambda: connect().rpush("queue", "job")).start()
assert list(client.blpop("queue", timeout=5)) == ["queue", "job"]
assert client.blpop("queue", timeout=0.1) is None
client.mset({f"scan:{n}": n for n in range(500)})
assert len(list(client.scan_iter("scan:*"))) == 500
client.hset("hash", mapping={"f": "1", "g": "2"})
assert client.hgetall("hash") == {"f": "1", "g": "2"}

# Publish and subscribe.
subscriber = connect().pubsub()
subscriber.subscribe("news")
subscriber.psubscribe("new*")
received = []
deadline = time.time() + 5
published = False
while len(received) < 2 and time.time() < deadline:
    message = subscriber.get_message(timeout=0.1)
    if message and message["type"] in ("message", "pmessage"):
        received.append(message["data"])
    elif not published and message is None:
        client.publish("news", "hello")
        published = True
assert received == ["hello", "hello"], received
subscriber.close()

# redis-py's own Lock, unchanged, contended.
counter = {"inside": 0, "done": 0}


def work():
    mine = connect()
    for _ in range(10):
        with mine.lock("py-lock", timeout=5, sleep=0.001) as lock:
            counter["inside"] += 1
            assert counter["inside"] == 1, "two holders"
            assert lock.owned() and lock.extend(5)
            counter["done"] += 1
            counter["inside"] -= 1


threads = [threading.Thread(target=work) for _ in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert counter["done"] == 50, counter
lock = client.lock("py-lock", timeout=5)
assert lock.acquire(blocking=False)
assert not connect().lock("py-lock", timeout=5).acquire(blocking=False)
lock.release()

# Lockgate's own commands, by execute_command as any client can.
token, fence, validity = client.execute_command("LOCK", "job", "PX", 10_000)
assert 0 < validity < 10_000 and fence > 0
assert connect().execute_command("LOCK", "job", "PX", 10_000) is None
assert client.execute_command("RENEW", "job", token, "EX", 20) > 10_000
assert client.execute_command("UNLOCK", "job", token) == 1
assert client.execute_command("UNLOCK", "job", token) == 0
try:
    client.execute_command("LOCK", "job", "PX", "soon")
    raise AssertionError("no error")
except redis.ResponseError as error:
    assert str(error) == "value is not an integer or out of range", error
pipeline = client.pipeline(transaction=False)
pipeline.set("x", 1)
pipeline.execute_command("LOCK", "job", "mine", "PX", 10_000)
pipeline.incr("x")
pipeline.execute_command("UNLOCK", "job", "mine")
results = pipeline.execute()
assert results[0] and results[1][0] == "mine" and results[2:] == [2, 1], results

print("redis-py", redis.__version__, "RESP", protocol, "ok")
