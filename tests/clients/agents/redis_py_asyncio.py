"""redis-py's asyncio client as it comes, at the command of tests/clients/stock.rs.

As redis_py.py, with a task for each request.
"""

import asyncio
import json
import sys

import redis.asyncio

clients = {}


def plain(reply):
    if isinstance(reply, Exception):
        return {"error": f"{type(reply).__name__}: {reply}"}
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return reply


async def carry_out(do, client, port=None, commands=None):
    if do in ("open", "pool"):
        clients[client] = redis.asyncio.Redis(port=port)  # a pool in any case
        return []
    if do == "call":
        return [await clients[client].execute_command(*commands[0])]
    async with clients[client].pipeline(transaction=False) as pipe:
        for words in commands:
            pipe.execute_command(*words)
        return await pipe.execute(raise_on_error=False)


async def answer(id, **request):
    try:
        replies = await carry_out(**request)
    except Exception as error:
        replies = [error] * len(request.get("commands", []))
    print(json.dumps({"id": id, "replies": plain(replies)}), flush=True)


async def main():
    tasks = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        tasks.add(asyncio.create_task(answer(**json.loads(line))))


asyncio.run(main())
