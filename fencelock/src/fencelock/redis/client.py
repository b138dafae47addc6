"""The client of Redis or Valkey: calls with a deadline and our own errors, and a listener that hears of releases.

In `fencelock` only this file and `connect` import redis.
"""

import asyncio
import hashlib
import itertools
import logging
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final

import redis.asyncio
from hiredis import pack_command
from redis.exceptions import NoScriptError

from .. import clock
from ..errors import ConfigurationError, LockUnavailable, NoLock
from ..waiting import Wake, keep_task
from .connect import FAILURES, Evicts, connect, ensure_keeps

_log = logging.getLogger(__name__)

_AWAY_PAUSE_S: Final = 0.1
_LOOKED_S: Final = 10.0  # connections made at once share one check
_KEEP_S: Final = 1.0  # a subscription is kept this long for the next waiter


class Script:
    """A Lua script, made of one or several files beside this one."""

    def __init__(self, *names: str) -> None:
        self.source = "\n".join(files(__package__ or "").joinpath(name).read_text() for name in names)
        self.sha = hashlib.sha1(self.source.encode()).hexdigest()  # noqa: S324 - what Redis calls it


class RedisClient:
    """Connections to a server or a Cluster, and one that listens, for one event loop.

    `url`: see `connect`. A call that isn't answered within `timeout_s` raises `LockUnavailable`; nothing is repeated
    here. `clustered`: the keys of a call must be in one slot.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._closed = False
        self._owners = itertools.count(1)
        self.redis = connect(url, timeout_s, self._greet)
        self.clustered = isinstance(self.redis, redis.asyncio.RedisCluster)
        self._pool: Any = None if self.clustered else self.redis.connection_pool
        self._silent = f"it does not answer{' over TLS' if url.startswith('rediss') else ''}"
        self._looked_until: dict[object, float] = {}  # at whether a server evicts
        self._idle: list[Any] = []  # the pool's own methods to take and give back a connection cost more than a call
        self.listener = ReleaseListener(self, timeout_s)
        self.id = str(uuid.uuid4())

    @staticmethod
    def check(url: str) -> tuple[object, ...]:
        """Return where the server is. Raises `ConfigurationError`, also for options that redis-py doesn't know."""
        try:
            client = connect(url, 1.0)
            at = None if isinstance(client, redis.asyncio.RedisCluster) else client.connection_pool.make_connection()
            return tuple(getattr(at, name, None) for name in ("host", "port", "path"))
        except TypeError as error:
            option = str(error).rpartition(" ")[2]  # ... got an unexpected keyword argument 'nonsense'
            raise ConfigurationError(f"a lock's URL has an option that redis-py does not know: {option}") from None
        except (ValueError, *FAILURES, ConfigurationError):
            # Neither the URL nor the error: a part of the password may be in both.
            raise ConfigurationError(
                "not the URL of a server for locks: say redis://host:6379/0, rediss://..., unix://..., "
                "redis+sentinel://host:26379,host:26379/master/0 or redis+cluster://host:6379 (with user:password@ "
                "before the host; '/', ':' and '@' in them written as %2F, %3A and %40)"
            ) from None

    def new_owner(self) -> str:
        """Return a name for one attempt in Redisson's form: a client's id and a number (in Redisson, of a thread)."""
        return f"{self.id}:{next(self._owners)}"

    async def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | int], timeout_s: float | None = None
    ) -> Any:
        """Run a script, and send it again if the server has forgotten it."""
        words = (str(len(keys)), *keys, *map(str, args))
        try:
            return await self._ask(self._send("EVALSHA", script.sha, *words), timeout_s)
        except NoScriptError:
            return await self._ask(self._send("EVAL", script.source, *words), timeout_s)

    async def _greet(self, connection: Any) -> None:
        await connection.on_connect()
        at, now = (getattr(connection, "host", None), getattr(connection, "port", None)), clock.now()
        if now < self._looked_until.get(at, 0.0):
            return
        if not await ensure_keeps(connection) and not self._looked_until:
            _log.warning("Redis does not say whether it evicts keys (INFO memory): its policy must be noeviction")
        self._looked_until[at] = now + _LOOKED_S

    async def _send(self, *words: Any) -> Any:
        """Send a command as redis-py's `execute_command` does, without its extras, which cost as much as the rest."""
        if self.clustered:
            return await self.redis.execute_command(*words)
        connection = self._idle.pop() if self._idle else self._pool.get_available_connection()
        try:
            await self._pool.ensure_connection(connection)
            await connection.send_packed_command(pack_command(words))
            return await connection.read_response()
        finally:
            self._idle.append(connection)  # which an error has closed
            if self._closed:  # a release after the end has connected anew
                await connection.disconnect()

    async def spare(self) -> None:
        """Give idle connections to the pool, from which all calls but scripts take theirs."""
        while self._idle:
            await self._pool.release(self._idle.pop())

    async def do(self, command: str, *arguments: Any, timeout_s: float | None = None, **options: Any) -> Any:
        """Call a method of redis-py's client, with a deadline."""
        await self.spare()
        return await self._ask(getattr(self.redis, command)(*arguments, **options), timeout_s)

    async def _ask(self, answer: Awaitable[Any], timeout_s: float | None) -> Any:
        try:
            async with asyncio.timeout(self.timeout_s if timeout_s is None else timeout_s):
                return await answer
        except NoScriptError:
            raise
        except FAILURES as error:
            if self._closed:
                raise LockUnavailable("the connection to Redis is closed") from error
            if "WRONGTYPE" in str(error):
                raise NoLock("something else uses that name in Redis: its key is no lock of this kind") from error
            text = str(error) if isinstance(error, Evicts) else f"Redis can't be asked: {str(error) or self._silent}"
            raise LockUnavailable(text) from error
        finally:
            if self._closed:
                await (self._pool.disconnect(inuse_connections=False) if self._pool else self.redis.aclose())

    async def nodes(self) -> list[dict[str, Any]]:
        """Return the options of `do` for each server that has keys."""
        if not self.clustered:
            return [{}]
        await self._ask(self.redis.initialize(), None)
        return [{"target_nodes": node} for node in self.redis.get_primaries()]

    def at(self, key: str) -> dict[str, Any]:
        """Return the arguments of `do` that select the server of a key."""
        return {"target_nodes": self.redis.get_node_from_key(key)} if self.clustered else {}

    def pubsub(self) -> Any:
        """Return a connection that listens: in a Cluster each node passes all messages on."""
        if not self.clustered:
            return self.redis.pubsub()
        node = self.redis.get_random_node()
        pool = redis.asyncio.ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs)
        return redis.asyncio.Redis(connection_pool=pool).pubsub()

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the server answers within `timeout_s` seconds."""
        await self.do("ping", timeout_s=min(timeout_s, self.timeout_s))

    async def close(self) -> None:
        """Close the connections. Calls under way end with `LockUnavailable`."""
        self._closed = True
        await self.listener.close()
        for one in [self.redis, *getattr(getattr(self._pool, "sentinel_manager", None), "sentinels", ())]:
            await one.aclose()


class Ticket:
    """A waiter's place at a channel. `woken`: a release has woken it, and it has not tried since.

    `only`: its one channel, if any; `each`: it gets every message, even if others do, too.
    """

    __slots__ = ("each", "only", "wake", "woken")

    def __init__(self, wake: Wake, only: str, *, each: bool) -> None:
        self.wake = wake
        self.only = only
        self.each = each
        self.woken = False


class _Channel:
    """The waiters that listen by one pattern."""

    def __init__(self) -> None:
        self.line: deque[Ticket] = deque()
        self.heard = False  # whether the server has confirmed it
        self.confirmed: set[Wake] = set()  # the callers that wait for that
        self.deaf = False  # whether the connection was cut: messages may have been missed
        self.idle: asyncio.TimerHandle | None = None

    def wake_one(self, channel: str = "") -> None:
        """Wake the waiter that the message names, or the least recently woken one: only one can have the lock."""
        for ticket in self.line:
            if ticket.each:
                ticket.wake.set()
            elif not ticket.only or ticket.only == channel:
                ticket.woken = True
                ticket.wake.set()
                self.line.remove(ticket)
                self.line.append(ticket)
                return

    def cut(self) -> None:
        """Note that no messages come for now: the waiters look by themselves."""
        self.heard, self.deaf = False, True
        for wake in self.confirmed:
            wake.set()

    def confirm(self) -> None:
        """Note that messages come from now on. After a cut, all waiters look once."""
        missed, self.heard, self.deaf = self.deaf, True, False
        for wake in [*self.confirmed, *(ticket.wake for ticket in self.line if missed)]:
            wake.set()


class ReleaseListener:
    """Hears of releases, with one connection and one task, as long as somebody waits."""

    def __init__(self, client: RedisClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._channels: dict[str, _Channel] = {}
        self._pubsub: Any = None
        self._task: asyncio.Task[None] | None = None
        self._said = ""  # the last reason for hearing nothing that was logged

    async def listen(
        self, pattern: str, wake: Wake, only: str = "", *, each: bool = False, timeout_s: float | None = None
    ) -> Ticket:
        """Join the waiters at the channels of a pattern until `leave`: a message there may set `wake`.

        `only` and `each`: see `Ticket`. Look once after this returns, as earlier messages are not heard. Raises
        `LockUnavailable`; if there is no answer within `timeout_s`, all listen on a new connection from then on.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        channel = self._channels.setdefault(pattern, _Channel())
        ticket = Ticket(wake, only, each=each)
        channel.line.append(ticket)
        if channel.idle is not None:
            channel.idle.cancel()
            channel.idle = None
        if not channel.heard:
            confirmed = Wake()
            channel.confirmed.add(confirmed)
            pubsub = self._pubsub
            try:
                async with asyncio.timeout(timeout_s):
                    if self._task is None or self._task.done():  # a task cancelled before it began runs no `finally`
                        self._task = asyncio.get_running_loop().create_task(self._run())
                    elif pubsub is not None:  # else the task is about to subscribe for all
                        await pubsub.psubscribe(pattern)
                    await confirmed.wait(math.inf)
                if not channel.heard:
                    raise LockUnavailable("Redis did not take a subscription")
            except BaseException as error:
                self.leave(pattern, ticket)
                if isinstance(error, TimeoutError) and pubsub is not None and pubsub is self._pubsub:
                    await pubsub.connection.disconnect(nowait=True)
                if isinstance(error, FAILURES):
                    raise LockUnavailable(f"Redis takes no subscription: {error}") from error
                raise
            finally:
                channel.confirmed.discard(confirmed)
        return ticket

    def leave(self, pattern: str, ticket: Ticket) -> None:
        """Listen no longer. A waiter that was woken and has not tried wakes the next one."""
        channel = self._channels.get(pattern)
        if channel is None or ticket not in channel.line:
            return
        channel.line.remove(ticket)
        if ticket.woken and not (ticket.only or ticket.each):
            channel.wake_one()
        if not channel.line:
            loop = asyncio.get_running_loop()
            channel.idle = loop.call_later(_KEEP_S, lambda: keep_task(loop.create_task(self._unsubscribe(pattern))))

    async def _unsubscribe(self, pattern: str) -> None:
        channel = self._channels.get(pattern)
        if channel is None or channel.line:
            return
        del self._channels[pattern]
        if self._pubsub is not None:
            with suppress(*FAILURES):
                await self._pubsub.punsubscribe(pattern)

    async def _run(self) -> None:
        try:
            while any(channel.line for channel in self._channels.values()):
                await self._hear()
                await asyncio.sleep(_AWAY_PAUSE_S)
        finally:
            self._task = None

    async def _hear(self) -> None:
        """Subscribe to all channels, and hear of releases until the connection is cut or nobody waits any more."""
        await self._client.spare()
        pubsub = self._client.pubsub()
        try:
            async with asyncio.timeout(self._timeout_s):
                await pubsub.connect()
                self._pubsub = pubsub
                if self._channels:
                    await pubsub.psubscribe(*self._channels)
            asked = False  # whether it is alive, as nothing else shows that of a quiet connection
            while self._channels:
                message = await pubsub.get_message(timeout=self._timeout_s)
                if message is not None:
                    self._said, asked = "", False
                    self._take(message)
                elif asked:
                    raise TimeoutError("it does not answer")
                else:
                    await pubsub.ping()
                    asked = True
        except (*FAILURES, RuntimeError) as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("Redis tells of no releases, waiters look by themselves: %s", error)
        finally:
            self._pubsub = None
            for channel in self._channels.values():
                channel.cut()
            with suppress(*FAILURES):
                await pubsub.aclose()

    def _take(self, message: Any) -> None:
        pattern = message["channel"] if message["type"] == "psubscribe" else message["pattern"]
        channel = self._channels.get(pattern)
        if channel is None:
            return
        if message["type"] == "psubscribe":
            channel.confirm()
        elif message["type"] == "pmessage":
            channel.wake_one(message["channel"])

    async def close(self) -> None:
        """End the task and its connection."""
        task = self._task
        for channel in self._channels.values():
            if channel.idle is not None:
                channel.idle.cancel()
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
