"""redis-py's RedisCluster through fronts.

    redis_py.py PORT 2|3

Each line that is read asks for a round: every key is written and read back, and a lock is taken.
Failures are tried again, as an application would, until a whole round has had none. At the end of the
input the addresses are printed that the client knows.
"""

import sys
import time

from redis.cluster import ClusterNode, RedisCluster

port, protocol = (int(word) for word in sys.argv[1:])
# Seconds: a round that takes longer has failed.
LIMIT = 40
KEYS = 64

cluster = RedisCluster(
    startup_nodes=[ClusterNode("127.0.0.1", port)], protocol=protocol, socket_timeout=5
)


def round_of(number):
    for key in range(KEYS):
        cluster.set(f"py{protocol}:{key}", number)
        assert int(cluster.get(f"py{protocol}:{key}")) == number
    pipe = cluster.pipeline()
    for key in range(KEYS):
        pipe.incr(f"py{protocol}:{key}")
    assert pipe.execute() == [number + 1] * KEYS
    # Any node will do: a lock lies on none of them.
    lock = f"py{protocol}:lock:{time.monotonic_ns()}"
    grant = cluster.execute_command("LOCK", lock, "PX", 30000, target_nodes=RedisCluster.RANDOM)
    token = grant[0]
    held = cluster.execute_command("LOCK", lock, "PX", 30000, target_nodes=RedisCluster.RANDOM)
    assert held is None, held
    freed = cluster.execute_command("UNLOCK", lock, token, target_nodes=RedisCluster.RANDOM)
    assert freed == 1, freed


for number, _ in enumerate(sys.stdin):
    end, last = time.monotonic() + LIMIT, None
    while True:
        try:
            round_of(number)
            break
        except AssertionError:
            raise
        except Exception as error:
            last = error
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    print("round", last or "", flush=True)

print("nodes", *(f"{node.host}:{node.port}" for node in cluster.get_nodes()), flush=True)
