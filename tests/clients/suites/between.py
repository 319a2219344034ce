"""Pytest's part: what each test came to, and no lock of one test left to the next.

Tests clear their Redis with FLUSHDB, which is for the data node. So the locks that a test left are
deleted between tests, through the proxy. Fixtures at the end stand for those of suites whose packages
have none.
"""

import os

import pytest
import redis as redis_py

NODE = 42001


def forget_locks():
    if os.environ["SUITES_WAY"] != "proxy":
        return
    with redis_py.Redis(port=NODE) as node:
        names = [key.removeprefix(b"lock:") for key in node.keys("lock:*") if node.type(key) == b"string"]
    for name in names:
        number, _, rest = name.partition(b":")
        inside = number.isdigit()
        with redis_py.Redis(db=int(number) if inside else 0) as client:
            try:
                client.delete(rest if inside else name)
            except redis_py.ResponseError:
                pass


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    forget_locks()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        said = str(report.longrepr or "").strip().splitlines() or [""]
        why = next((line for line in reversed(said) if line.startswith("E ")), said[-1]).replace("\t", " ")
        with open(os.environ["SUITES_RESULTS"], "a") as results:
            results.write(f"{report.nodeid}\t{report.outcome}\t{why}\n")


# pottery


@pytest.fixture
def redis():
    with redis_py.Redis(socket_timeout=1) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
async def aioredis():
    async with redis_py.asyncio.Redis(socket_timeout=1) as client:
        await client.flushdb()
        yield client
        await client.flushdb()


# cashews


@pytest.fixture
async def cache():
    from cashews import Cache

    cache = Cache()
    cache.setup("redis://127.0.0.1:6379/3", suppress=False)
    await cache.clear()
    yield cache
    await cache.close()
