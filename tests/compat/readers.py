"""LOCK with SHARED is refused while a proxy of a version without it runs, and such a proxy takes nothing from readers.

    readers.py BEFORE NOW

BEFORE is a lockgate binary without readers. Run by `make compat`.
"""

import tempfile
import time

import redis
from both_ways import BEFORE, NOW, Deployment, free_ports

REFUSED = "SHARED is refused while another proxy of this deployment is of a version without it"


def answer(client, *words):
    try:
        return client.execute_command(*words)
    except redis.ResponseError as error:
        return str(error)


def until(what, asked, wanted):
    deadline = time.monotonic() + 120
    while not wanted(answered := asked()):
        assert time.monotonic() < deadline, f"{what}: {answered}"
        time.sleep(0.5)
    return answered


def beside(deployment):
    """Starts a proxy of the version before, from a file without its setting, and returns a client of it."""
    port, admin = free_ports(2)
    with open(deployment.file) as file:
        text = file.read().replace(", shared: yes", "").replace("upgrade.sock", "other.sock")
    text = text.replace(f":{deployment.port}\n", f":{port}\n").replace(f":{deployment.admin}\n", f":{admin}\n")
    other = f"{deployment.file}.before"
    with open(other, "w") as file:
        file.write(text)
    process = deployment.start([BEFORE, "--config", other], stderr=open(deployment.log, "a"))
    client = redis.Redis(port=port, single_connection_client=True, socket_timeout=30)
    until("it serves", lambda: granted(client), lambda served: served)
    return process, client


def granted(client):
    try:
        return client.execute_command("LOCK", "ready", "PX", "1000")
    except redis.RedisError:
        return None


def main():
    with tempfile.TemporaryDirectory() as directory:
        deployment = Deployment(directory)
        with open(deployment.file) as file:
            text = file.read().replace("max_ttl: 20s", "max_ttl: 20s, shared: yes")
        with open(deployment.file, "w") as file:
            file.write(text)
        try:
            deployment.proxy(NOW)
            deployment.wait()
            client = deployment.client()
            share = ("LOCK", "k", "t", "SHARED", "PX", "20000")
            before, other = beside(deployment)
            until("it is refused", lambda: answer(client, *share), lambda told: told == REFUSED)
            before.kill()
            before.wait()
            until("it is granted", lambda: answer(client, *share), lambda told: isinstance(told, list))
            _, other = beside(deployment)
            for wait in ([], ["WAIT", "500"]):
                assert other.execute_command("LOCK", "k", "x", "PX", "9000", *wait) is None, "it has a reader"
            assert client.execute_command("RENEW", "k", "t", "PX", "9000") > 0
            assert client.execute_command("UNLOCK", "k", "t") == 1
            assert other.execute_command("LOCK", "k", "x", "PX", "9000"), "no reader is left"
            print("readers: nothing is wrong")
        finally:
            deployment.stop()


main()
