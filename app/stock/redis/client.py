"""Calls to Redis or Valkey, each with a deadline and our own errors. Only this file and `connect` import redis."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from app.errors import ConfigurationError, StockCorrupt, StockUnavailable
from app.stock.bulkhead import Bulkhead
from app.stock.redis.connect import connect

_WAIT_PART: Final = 0.8  # the part of a call's deadline for the replicas
_NOT_CONNECTED: Final = re.compile(r"Error -?[0-9]+ connecting to ")  # the error of redis-py when nothing was sent


_NOT_OUR_DATA: Final = {
    "unauthenticated": "wants a password",
    "DB index is out of range": "has no database of that number",
    "unknown command": "knows no scripts",
}


class Script:
    """A Lua script beside this file, with `common.lua` put before it.

    `sha`: the digest by which a server knows a script that it has loaded.
    """

    def __init__(self, name: str) -> None:
        self.source = "".join(files("app.stock.redis").joinpath(part).read_text() for part in ("common.lua", name))
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        self.known = False


class RedisClient:
    """A connection pool to the server that a URL names.

    `redis://`, `rediss://` and `unix://` are redis-py's; besides them `redis+sentinel://host:26379,host:26379/master/0`
    and `redis+cluster://host:6379` (`rediss+...` for TLS). A call that isn't answered within `timeout_s` raises
    `StockUnavailable`. Nothing is retried here: only the caller knows which calls may be repeated. With `wait_replicas`
    a durable call raises it, too, when fewer replicas acknowledge its writes in time.
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0, connections: int = 16, wait_replicas: int = 0) -> None:
        self.timeout_s = timeout_s
        self._wait_replicas = wait_replicas
        options: dict[str, Any] = {
            "decode_responses": True,
            # With RESP3, its default since 8.0, redis-py does not notice that the server closed an idle connection.
            "protocol": 2,
            "socket_timeout": None,  # the bulkhead has the deadline
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        try:
            self._redis, *self._helpers = connect(url, options, connections)
        except (ValueError, RedisError):
            # The message quotes neither the URL nor the error: both may contain a part of the password.
            raise ConfigurationError(
                "not a store's URL: say redis://host:6379/0, rediss://..., unix://..., "
                "redis+sentinel://host:26379,host:26379/master/0 or redis+cluster://host:6379 "
                "(with user:password@ before the host; '/', ':' and '@' in them written as %2F, %3A and %40)"
            ) from None
        # A rush of 500 must not open 500 connections; the other calls wait, within their deadline.
        self._bulkhead = Bulkhead(connections)
        self.clustered = isinstance(self._redis, redis.asyncio.RedisCluster)

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        argument: str | bytes,
        *,
        durable: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Run a script; load it again into a server that has lost it (by a restart or a failover)."""
        async with self._call(timeout_s) as limit_s:
            if script.known:
                try:
                    return await self._send(durable, limit_s, "EVALSHA", script.sha, len(keys), *keys, argument)
                except NoScriptError:
                    pass
            answer = await self._send(durable, limit_s, "EVAL", script.source, len(keys), *keys, argument)
            script.known = True
            return answer

    async def _send(self, durable: bool, limit_s: float, *command: str | bytes | int) -> Any:
        if not (durable and self._wait_replicas):
            return await self._redis.execute_command(*command)
        # WAIT is about the writes of its own connection, so both use the same one. 0 ms would mean: wait for ever.
        wait_ms = max(1, int(limit_s * 1000 * _WAIT_PART))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.execute_command(*command)
            pipe.execute_command("WAIT", self._wait_replicas, wait_ms)
            try:
                answer, replicas = await pipe.execute(raise_on_error=False)
            except (ReadOnlyError, BusyLoadingError) as error:
                # One of the two commands was refused, not necessarily the first.
                raise StockUnavailable(f"the store takes no writes: {error}") from error
        if isinstance(answer, Exception):
            raise answer
        if isinstance(replicas, Exception) or replicas < self._wait_replicas:
            # The write was made, but may be lost in a failover.
            raise StockUnavailable(
                f"{self._wait_replicas} replicas must acknowledge the write within {wait_ms} ms, and did: {replicas}"
            )
        return answer

    async def ensure_lasting(self, timeout_s: float | None) -> None:
        """Raise `StockUnavailable` if the server may forget acknowledged writes although nothing breaks.

        It may evict keys when its memory is full, or a failover may promote replicas that are not waited for.
        """
        async with self._call(timeout_s):
            try:
                memory = await self._redis.info("memory")
                copies = await self._redis.info("replication") if self._wait_replicas else {}
            except ResponseError:  # INFO may be forbidden
                return
        for server in memory.values() if isinstance(next(iter(memory.values()), None), dict) else [memory]:
            if (policy := server.get("maxmemory_policy", "noeviction")) != "noeviction":
                raise StockUnavailable(
                    f"the store's maxmemory-policy is {policy}: it may drop orders and idempotency keys; it must be "
                    "noeviction"
                )
        replicas = int(copies.get("connected_slaves", 0))
        if replicas > self._wait_replicas:
            raise StockUnavailable(
                f"the store has {replicas} replicas and a sale waits for {self._wait_replicas} of them: a failover may "
                "promote one that lacks it"
            )

    @asynccontextmanager
    async def commands(self, timeout_s: float | None = None) -> AsyncIterator[Any]:
        """Yield redis-py's own client, for a block of commands with one deadline."""
        async with self._call(timeout_s):
            yield self._redis

    async def times(self, timeout_s: float | None) -> dict[str, Any]:
        """Ask each server for its time, by the names of `server_of`; of a Cluster, the servers that answer."""

        async def ask(server: Any) -> Any:
            async with self._call(timeout_s):
                return await server.execute_command("TIME")

        if not self.clustered:
            return {"": await ask(self._redis)}
        servers = await self._primaries(timeout_s)
        said = await asyncio.gather(*map(ask, servers), return_exceptions=True)
        return {server.name: time for server, time in zip(servers, said, strict=True) if isinstance(time, tuple)}

    def server_of(self, key: str) -> str:
        """Name the Cluster's server that has a key, as far as is known."""
        found = self._redis.nodes_manager.slots_cache.get(self._redis.keyslot(key))
        return found[0].name if found else ""

    async def scan(self, pattern: str, page: int) -> AsyncIterator[str]:
        """Yield the keys that match, some more than once. Each page of keys is a call with its own deadline."""
        for node in await self._primaries() if self.clustered else [None]:
            of_node = {"target_nodes": node} if node else {}
            cursor: Any = 0
            while True:
                async with self._call(None):
                    cursor, keys = await self._redis.scan(cursor, match=pattern, count=page, **of_node)
                if isinstance(cursor, dict):  # a Cluster's, by node
                    (cursor,) = cursor.values()
                for key in keys:
                    yield key
                if not cursor:
                    break

    async def _primaries(self, timeout_s: float | None = None) -> list[Any]:
        async with self._call(timeout_s):
            await self._redis.initialize()  # before its first command a client knows none
        return list(self._redis.get_primaries())

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._redis, *self._helpers):
            await client.aclose()

    @asynccontextmanager
    async def _call(self, timeout_s: float | None) -> AsyncIterator[float]:
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        with _translated(limit_s):
            async with self._bulkhead.call(limit_s):
                yield limit_s


@contextmanager
def _translated(limit_s: float) -> Iterator[None]:
    """Translate redis-py's errors into ours; nothing else knows them."""
    try:
        yield
    except TimeoutError as error:
        raise StockUnavailable(f"the store did not answer within {limit_s:.2g} s") from error
    except (ReadOnlyError, BusyLoadingError) as error:  # at the first write of a script, or before it
        raise StockUnavailable(f"the store takes no writes: {error}", untouched=True) from error
    except (
        OutOfMemoryError,
        ClusterDownError,
        MasterDownError,
        NoPermissionError,
        RedisClusterException,
    ) as error:
        raise StockUnavailable(f"the store takes no writes: {error}") from error
    except AuthenticationError as error:
        said = str(error)
        wrong = "wants a password" if "required" in said else "refuses the user or the password"
        raise StockUnavailable(f"the store {wrong}: {said}", untouched=True) from error
    except UnicodeDecodeError as error:
        raise StockCorrupt("a key of ours holds something that is not text") from error
    except ResponseError as error:
        # An inability of the server has a code word (NOREPLICAS, MISCONF, NOPERM, ...); the rest is about our data.
        for said, wrong in _NOT_OUR_DATA.items():
            if said in str(error):
                raise StockUnavailable(f"the store {wrong}: {error}", untouched=True) from error
        code = re.match(r"[A-Z]{4,}\b", str(error))
        if code is None or code[0] == "WRONGTYPE":
            raise StockCorrupt(f"a key of ours holds something that is not ours: {error}") from error
        raise StockUnavailable(f"the store refuses: {error}") from error
    except (RedisError, OSError, RuntimeError) as error:  # RuntimeError: uvloop's, of a connection that was reset
        # Only its text says at which step the error occurred.
        nobody_there = _NOT_CONNECTED.match(str(error)) is not None
        raise StockUnavailable(f"the store can't be reached: {error}", untouched=nobody_there) from error
