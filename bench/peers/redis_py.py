"""redis-py's Lock on one lock node: `redis_py.py pairs|contend CLIENTS SECONDS PORT`"""

import asyncio
import json
import os
import sys
import time

import redis.asyncio as redis

mode, clients, seconds, port = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
counts = [0] * clients
gaps = []
released = 0.0
last = -1


async def run(client, connection, until):
    global released, last
    # Its default: who waits asks again every 0.1 s. POLL_MS has it ask more often.
    poll = int(os.environ.get("POLL_MS", 100)) / 1000
    lock = connection.lock(f"pairs:{client}" if mode == "pairs" else "contended", timeout=10, sleep=poll)
    while time.monotonic() < until:
        await lock.acquire()
        # Who takes it again at once, past all who wait, has been handed nothing.
        if last != client and released:
            gaps.append((time.monotonic() - released) * 1e6)
        last = client
        counts[client] += 1
        released = time.monotonic()
        await lock.release()
    await connection.aclose()


async def main():
    connections = [redis.Redis(port=port) for _ in range(clients)]
    # Connections are made before the time begins.
    await asyncio.gather(*(connection.ping() for connection in connections))
    begun = time.monotonic()
    tasks = [asyncio.ensure_future(run(client, connection, begun + seconds))
             for client, connection in enumerate(connections)]
    await asyncio.wait(tasks, timeout=seconds + 0.5)
    for task in tasks:
        task.cancel()
    took = min(time.monotonic() - begun, seconds)
    gaps.sort()
    gap = [gaps[int(share * (len(gaps) - 1))] if gaps else 0 for share in (0.5, 0.99)]
    print(json.dumps({"grants": counts, "handovers": len(gaps), "seconds": took, "gap_us": gap}))


asyncio.run(main())
