"""Calls to Redis or Valkey for locks: blocking, each with a deadline, with errors of ours; and a listener for releases.

In `fencelock` only this file imports redis.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from .. import fork
from ..errors import ConfigurationError, LockError, LockUnavailable
from ..per_loop import PerLoop
from ..steps import Step
from ..waiting import Wake

_log = logging.getLogger(__name__)

_AWAY_PAUSE_S: Final = 0.1
_LISTEN_S: Final = 1.0  # after at most so long the listening thread looks whether it is wanted
_IDLE_MAX: Final = 100  # patterns: a program may have a lock for each of its orders


class NoLock(LockError):
    """Something else uses a lock's name."""


class Script:
    """A Lua script that lies beside this file, in one piece or several."""

    def __init__(self, *names: str) -> None:
        self.source = "\n".join(files(__package__ or "").joinpath(name).read_text() for name in names)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """A connection pool to one server, and one connection that listens, for all threads; a pool for each loop.

    All methods may be called from any thread and on any loop; those that ask the server are steps.

    `redis://`, `rediss://` and `unix://` are redis-py's. A call that isn't answered within `timeout_s` raises
    `LockUnavailable`; nothing is repeated here. `brief_s` is the deadline of calls that others wait behind.
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0, brief_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self._brief_s = brief_s
        self._url = url
        self._closed = False
        self._on_loops = PerLoop(lambda _: _connect(url, timeout_s, redis.asyncio))
        try:
            self._begin()
        except (ValueError, RedisError):
            # Neither the URL nor the error: a part of the password may be in both.
            raise ConfigurationError(
                "not the URL of a server for locks: say redis://host:6379/0, rediss://... or unix://... (with "
                "user:password@ before the host; '/', ':' and '@' in them written as %2F, %3A and %40)"
            ) from None
        fork.in_child(self._begin)

    def _begin(self) -> None:
        url, timeout_s = self._url, self.timeout_s
        self._id = uuid.uuid4()
        self._owners = itertools.count(1)
        self._redis = _connect(url, timeout_s)
        self._brief = self._redis if self._brief_s is None else _connect(url, min(self._brief_s, timeout_s))
        self._pings: dict[float, Any] = {}  # a client for each deadline that pings were asked with
        self._listener = _Listener(_connect(url, timeout_s))

    def new_owner(self) -> str:
        """A name for one attempt, as Redisson has it: a client, and a number that is one thread's there."""
        return f"{self._id}:{next(self._owners)}"

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | int], *, brief: bool = False) -> Any:
        """Run a script; a server that has forgotten it is told it again."""
        try:
            return await self._ask(_Raw(self, ("EVALSHA", script.sha, len(keys), *keys, *args), brief=brief))
        except NoScriptError:
            return await self._ask(_Raw(self, ("EVAL", script.source, len(keys), *keys, *args), brief=brief))

    async def do(self, command: str, *arguments: Any, brief: bool = False, **options: Any) -> Any:
        """A method of redis-py's client, with the deadline."""
        return await self._ask(_Command(self, command, arguments, options, brief=brief))

    async def _ask(self, step: Step[Any]) -> Any:
        if self._closed:
            raise LockUnavailable("the connection to Redis is closed")
        try:
            return await step
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            if "WRONGTYPE" in str(error):
                raise NoLock("something else uses that name in Redis: its key is no lock of this kind") from error
            raise LockUnavailable(f"Redis can't be asked: {error}") from error

    def client(self, *, brief: bool) -> Any:
        """redis-py's client for threads."""
        return self._brief if brief else self._redis

    def client_on_loop(self) -> Any:
        """redis-py's client for the running loop, which has no deadline of its own for an answer."""
        return self._on_loops.here()

    def deadline_s(self, *, brief: bool) -> float:
        """How long a call may take, in seconds."""
        return self.timeout_s if self._brief_s is None or not brief else min(self._brief_s, self.timeout_s)

    async def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the server answers within `timeout_s` seconds."""
        timeout_s = min(timeout_s, self.timeout_s)
        if self._closed:
            raise LockUnavailable("the connection to Redis is closed")
        try:
            await _Ping(self, timeout_s)
        except (RedisError, OSError) as error:
            raise LockUnavailable(f"Redis can't be asked: {error}") from error

    def ping_client(self, timeout_s: float) -> Any:
        """A client for pings with this deadline, for threads: redis-py has one for a connection, not for a call."""
        if timeout_s not in self._pings:
            self._pings[timeout_s] = _connect(self._url, timeout_s / 2)  # to connect, and to answer
        return self._pings[timeout_s]

    async def listen(self, pattern: str, wake: Callable[[], None], *, only: str = "") -> Callable[[], None]:
        """Have `wake` called at each message of such channels, and when the connection is lost; the answer ends that.

        `only`: one of these channels, if the others are none of its business. What was published before this returns
        must be found by looking. Raises `LockUnavailable`.
        """
        heard = Wake()
        try:
            if not self._listener.add(pattern, wake, heard, only):
                # So that it looks what is wanted.
                await self.do("publish", self._listener.control, "")
                if not await heard.wait(self.timeout_s) or not self._listener.hears(pattern):
                    raise LockUnavailable(f"Redis did not take a subscription within {self.timeout_s:g} s")
        except BaseException:
            self._listener.remove(pattern, wake, only)
            raise
        return lambda: self._listener.remove(pattern, wake, only)

    async def close_on_loop(self) -> None:
        """Close the connections of the running loop."""
        client = self._on_loops.pop()
        if client is not None:
            await client.aclose()

    def close(self) -> None:
        """Close the connections. Calls under way end with `LockUnavailable`."""
        self._closed = True
        self._listener.closed = True
        with contextlib.suppress(RedisError, OSError):
            self._brief.publish(self._listener.control, "")
        self._listener.join()
        for client in (self._redis, self._brief, *self._pings.values()):
            client.close()
        for loop, client in self._on_loops.clear():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio.run_coroutine_threadsafe(client.aclose(), loop)


class _Command(Step[Any]):
    """A command, over the client of the threads or that of a loop."""

    def __init__(
        self, client: RedisClient, command: str, arguments: Sequence[Any], options: dict[str, Any], *, brief: bool
    ) -> None:
        self._client = client
        self._command = command
        self._arguments = arguments
        self._options = options
        self._brief = brief

    def _begin(self, redis: Any) -> Any:
        return getattr(redis, self._command)(*self._arguments, **self._options)

    def in_thread(self) -> Any:
        """Block."""
        return self._begin(self._client.client(brief=self._brief))

    async def on_loop(self) -> Any:
        """Let others go on."""
        async with asyncio.timeout(self._client.deadline_s(brief=self._brief)):
            return await self._begin(self._client.client_on_loop())


class _Raw(Step[Any]):
    """A command as it is sent, and the answer as it comes: what redis-py does besides costs as much as these."""

    def __init__(self, client: RedisClient, words: tuple[str | int, ...], *, brief: bool) -> None:
        self._client = client
        self._words = words
        self._brief = brief

    def in_thread(self) -> Any:
        """Block."""
        pool = self._client.client(brief=self._brief).connection_pool
        connection = pool.get_connection()
        try:
            connection.send_command(*self._words)
            return connection.read_response()
        finally:
            pool.release(connection)  # which an error has closed

    async def on_loop(self) -> Any:
        """Let others go on."""
        async with asyncio.timeout(self._client.deadline_s(brief=self._brief)):
            pool = self._client.client_on_loop().connection_pool
            connection = await pool.get_connection()
            try:
                await connection.send_packed_command(hiredis.pack_command(self._words))  # type: ignore[arg-type]
                return await connection.read_response()
            finally:
                await pool.release(connection)


class _Ping(Step[None]):
    """A command that has a deadline of its own."""

    def __init__(self, client: RedisClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    def in_thread(self) -> None:
        """Block."""
        self._client.ping_client(self._timeout_s).ping()

    async def on_loop(self) -> None:
        """Let others go on."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.client_on_loop().ping()
        except TimeoutError as error:
            raise RedisError(f"no answer within {self._timeout_s:g} s") from error


class _Listener:
    """One connection and one thread, for all patterns. Patterns without a listener stay for the next one.

    The thread hears of a new one through a channel of its own: redis-py's subscriptions belong to one thread.
    """

    def __init__(self, client: Any) -> None:
        self.control = f"fencelock:listener:{uuid.uuid4().hex}"
        self.closed = False
        self._said = ""  # why it hears nothing
        self.client = client
        self._mutex = threading.Lock()
        self._wakes: dict[str, list[tuple[str, Callable[[], None]]]] = {}  # with the one channel that wakes, or ""
        self._heard: dict[str, list[Wake]] = {}  # who waits for a subscription
        self._subscribed: set[str] = set()
        self._thread: threading.Thread | None = None

    def add(self, pattern: str, wake: Callable[[], None], heard: Wake, only: str) -> bool:
        """Whether it is subscribed to already; else `heard` is set when it is."""
        with self._mutex:
            self._wakes.setdefault(pattern, []).append((only, wake))
            subscribed = pattern in self._subscribed
            if not subscribed:
                self._heard.setdefault(pattern, []).append(heard)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fencelock-listener", daemon=True)
                self._thread.start()
        return subscribed

    def remove(self, pattern: str, wake: Callable[[], None], only: str) -> None:
        with self._mutex:
            self._wakes[pattern].remove((only, wake))

    def hears(self, pattern: str) -> bool:
        return pattern in self._subscribed

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(2 * _LISTEN_S)

    def _run(self) -> None:
        while not self.closed:
            try:
                with self.client.pubsub() as channels:
                    self._listen(channels)
            except (RedisError, OSError, ValueError) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    _log.warning("Redis tells of no releases, waiters look by themselves: %s", error)
                with self._mutex:
                    self._subscribed.clear()
                    wakes = [wake for one in self._wakes.values() for _, wake in one]
                for wake in wakes:
                    wake()  # no message comes any more: they look by themselves
                time.sleep(_AWAY_PAUSE_S)
        self.client.close()

    def _listen(self, channels: Any) -> None:
        asked: set[str] = set()
        channels.subscribe(self.control)
        while not self.closed:
            with self._mutex:
                idle = [pattern for pattern in asked if not self._wakes.get(pattern)]
                idle = idle if len(idle) > _IDLE_MAX else []
                for pattern in idle:
                    self._wakes.pop(pattern, None)
                    self._subscribed.discard(pattern)
                wanted = set(self._wakes) - asked
            if idle:
                channels.punsubscribe(*idle)
                asked -= set(idle)
            if wanted:
                channels.psubscribe(*wanted)
                asked |= wanted
            message = channels.get_message(timeout=_LISTEN_S)
            self._said = ""
            if message is None:
                continue
            heard: list[Wake] = []
            with self._mutex:
                if message["type"] == "psubscribe" and message["channel"] in asked:
                    self._subscribed.add(message["channel"])
                    heard = self._heard.pop(message["channel"], [])
                told = self._wakes.get(message["pattern"], ())
                wakes = [wake for only, wake in told if only in ("", message["channel"])]
            for one in heard:
                one.set()
            for wake in wakes:
                wake()


def _connect(url: str, timeout_s: float, made_by: Any = redis) -> Any:
    if "+cluster" in url.partition("://")[0]:
        raise ConfigurationError(
            "the locks can't be in a Redis Cluster: a lock and the counter of its tokens would have to be in one slot"
        )
    on_loop = made_by is redis.asyncio
    return made_by.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=None if on_loop else timeout_s,  # a task for each call: the whole of it has a deadline there
        socket_connect_timeout=timeout_s,
        retry=(AsyncRetry if on_loop else Retry)(NoBackoff(), 0),
        protocol=2,
        max_connections=1024,
    )
