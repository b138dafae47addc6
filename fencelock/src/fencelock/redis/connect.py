"""Makes redis-py's client for a URL: of a server, of the primary that Sentinels know, or of a Cluster."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from ..url import LockUrl

FAILURES: Final = (RedisError, RedisClusterException, OSError)
_SENTINEL_PORT: Final = 26379
_POLICY: Final = re.compile(r"^maxmemory_policy:(\S+)", re.MULTILINE)


class Evicts(RedisError):
    """The server may drop a key that is needed."""


async def ensure_keeps(connection: Any) -> bool:
    """Check a new connection's server: False if it doesn't reveal its `maxmemory-policy`. Raises `Evicts`."""
    await connection.send_command("INFO", "memory")
    try:
        policy = _POLICY.search(await connection.read_response())
    except ResponseError:
        policy = None
    if policy is not None and policy[1] != "noeviction":
        raise Evicts(
            f"the locks can't be on this Redis: its maxmemory-policy is {policy[1]}, so it may drop a lock that is "
            "held, and the counter of the tokens; it must be noeviction"
        )
    return policy is not None


def connect(url: str, timeout_s: float, greet: Callable[[Any], Awaitable[None]] | None = None) -> Any:
    """Return the client. `greet`: is given each new connection. Raises redis-py's errors, and `ValueError`."""
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",  # others write what they like
        "socket_timeout": None,  # a call as a whole has a deadline
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "max_connections": 1024,
    }
    scheme, _, rest = url.partition("://")
    plain, _, kind = scheme.partition("+")
    if not kind:
        return redis.asyncio.Redis.from_url(url, redis_connect_func=greet, **options)
    parts = LockUrl.parse(url)
    service, _, db = parts.path.strip("/").rpartition("/") if kind == "cluster" else parts.path[1:].partition("/")
    if kind not in ("sentinel", "cluster") or not parts.hosts or bool(service) is (kind == "cluster"):
        raise ValueError(kind)
    place, _, query = rest.partition("?")
    login, at, _ = place.rpartition("@")
    # As redis-py reads the URL of one server.
    own: dict[str, Any] = {**parse_url(f"{plain}://{login}{at}{parts.hosts[0]}/{db}?{query}"), "ssl": plain == "rediss"}
    for name in ("host", "port", "connection_class"):
        own.pop(name, None)
    addresses = [(to.hostname, to.port) for to in (urlsplit(f"//{host}") for host in parts.hosts)]
    if kind == "cluster":
        nodes = [ClusterNode(host or "", port or 6379) for host, port in addresses]
        cluster: Any = redis.asyncio.RedisCluster(startup_nodes=nodes, **options, **own)
        cluster.connection_kwargs["redis_connect_func"] = greet
        return cluster
    of_sentinels = {name.removeprefix("sentinel_"): own.pop(name) for name in list(own) if name.startswith("sentinel_")}
    tls = {name: value for name, value in own.items() if name.startswith("ssl")}
    brief_s = timeout_s / (len(addresses) + 2)  # a frozen one leaves time for the next
    brief = {"socket_timeout": brief_s, "socket_connect_timeout": brief_s, "retry": Retry(NoBackoff(), 0)}
    finder: Any = Sentinel(  # type: ignore[no-untyped-call]
        [(host, port or _SENTINEL_PORT) for host, port in addresses], sentinel_kwargs={**brief, **tls, **of_sentinels}
    )
    return finder.master_for(service, redis_connect_func=greet, **options, **own)
