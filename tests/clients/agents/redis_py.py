"""redis-py as it comes, at the command of tests/clients/stock.rs.

Each line of standard input is a request in JSON: id, do, client, port, commands. It is
carried out in a thread of its own; a line with its id and the replies is the answer.
"""

import json
import sys
import threading

import redis

clients = {}
writing = threading.Lock()


def plain(reply):
    if isinstance(reply, Exception):
        return {"error": f"{type(reply).__name__}: {reply}"}
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return reply


def carry_out(do, client, port=None, commands=None):
    if do in ("open", "pool"):
        clients[client] = redis.Redis(port=port)  # a pool in any case
        return []
    if do == "call":
        return [clients[client].execute_command(*commands[0])]
    with clients[client].pipeline(transaction=False) as pipe:
        for words in commands:
            pipe.execute_command(*words)
        return pipe.execute(raise_on_error=False)


def answer(id, **request):
    try:
        replies = carry_out(**request)
    except Exception as error:
        replies = [error] * len(request.get("commands", []))
    with writing:
        print(json.dumps({"id": id, "replies": plain(replies)}), flush=True)


for line in sys.stdin:
    threading.Thread(target=answer, kwargs=json.loads(line), daemon=True).start()
