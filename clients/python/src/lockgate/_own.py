"""The connection that has the lock: made as those of the client that the program gave, but never made twice."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from redis.exceptions import ConnectionError

from ._session import ANSWER, Session

try:
    from redis.maint_notifications import MaintNotificationsConfig

    _QUIET: Dict[str, Any] = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
except ImportError:  # before redis-py 6.4
    _QUIET = {}
# What would repeat a command, follow another server, or share state with the pool of the client.
_LEFT_OUT = ("retry", "maint", "orig_", "oss_", "himport_", "cache", "event_dispatcher")


def settings(client: Any, pool_class: Any, retry: Any) -> Tuple[str, type, Dict[str, Any]]:
    """Returns where the client connects, the class of its connections, and the arguments for one of the lock's own."""
    pool = getattr(client, "connection_pool", None)
    if not isinstance(pool, pool_class):
        kind = f"{type(client).__module__}.{type(client).__name__}"
        wanted = "redis.asyncio.Redis" if "asyncio" in pool_class.__module__ else "redis.Redis"
        raise TypeError(f"a lock needs a {wanted}, which leads to a Lockgate proxy, not a {kind}")
    # A pool of redis-py's Sentinels has no address of its own.
    where = getattr(pool, "service_name", None)
    given = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_LEFT_OUT)}
    where = where or given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
    given.update(_QUIET, retry=retry, socket_timeout=ANSWER, health_check_interval=0)
    if not given.get("socket_connect_timeout"):
        given["socket_connect_timeout"] = ANSWER
    if "path" not in given:
        given.setdefault("socket_keepalive", True)
    return where, pool.connection_class, given


def is_push(reply: Any) -> bool:
    """Whether it is no reply, but what the proxy sends besides: redis-py 5 with hiredis takes the one for the other."""
    return type(reply).__name__ == "PushNotification"


class OwnConnection:
    """What the lock's connection does besides: it tells its lock of a loss, and does not connect a second time."""

    session: Session
    ended = False
    began = False

    def begin(self) -> None:
        if self.began:
            raise ConnectionError("the connection that had the lock has ended")
        self.began = True

    def answered(self, error: Exception) -> Exception:
        return self.session.answered(error)
