"""redis-py at work while one proxy process takes another's place.

    redis_py_upgrade.py PORT 2|3

Does the same round again and again, with a line for each, until its standard input ends:
on a connection of its own, on one that stays, and through a pool. A connection that is
refused or breaks ends it with a traceback and status 1.
"""

import sys
import threading

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PORT, PROTOCOL = int(sys.argv[1]), int(sys.argv[2])
# Nothing is sent twice: a connection that broke must show.
STRICT = {"host": "127.0.0.1", "port": PORT, "protocol": PROTOCOL, "socket_timeout": 30,
          "retry": Retry(NoBackoff(), 0), "decode_responses": True}

done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()

staying = redis.Redis(single_connection_client=True, **STRICT)
pool = redis.Redis(connection_pool=redis.ConnectionPool(max_connections=4, **STRICT))
kept = staying.execute_command("LOCK", "kept")[0]
rounds = 0
while not done.is_set():
    rounds += 1
    with redis.Redis(**STRICT) as fresh:
        assert fresh.set("fresh", rounds)
        assert fresh.get("fresh") == str(rounds)
        token, fence, _ = fresh.execute_command("LOCK", "job", "PX", 30000)
        assert fence > 0
        assert fresh.execute_command("LOCK", "kept", "PX", 10000) is None
        assert fresh.execute_command("UNLOCK", "job", token) == 1
    with staying.pipeline() as pipeline:
        for _ in range(10):
            pipeline.incr("count")
        assert pipeline.execute()[-1] == 10 * rounds
    assert pool.lpush("list", rounds) == rounds
    print(rounds, flush=True)
assert staying.execute_command("UNLOCK", "kept", kept) == 1
print("ok", flush=True)
