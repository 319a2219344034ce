"""Stands for the package of this name, with the Redis that runs."""

import redis


class FakeServer:
    connected = True


class FakeRedis(redis.Redis):
    def __init__(self, *, server, **options):
        super().__init__(**options)
