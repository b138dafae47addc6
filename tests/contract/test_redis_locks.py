"""The Redis locks keep the contract; and what is theirs alone: Redisson's layout, and servers that forget."""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from fencelock import (
    Cancel,
    DistributedLock,
    Grant,
    LockBackend,
    LockCancelled,
    LockError,
    LockLost,
    LockTimeout,
    LockUnavailable,
    connect,
)
from fencelock.errors import ConfigurationError
from fencelock.redis import connect as redis_connect
from fencelock.redis import lock as redis_lock
from fencelock.redis import redlock
from fencelock.redis.backend import RedisBackend
from fencelock.redis.fair import RedisFairBackend, RedisFairConnection
from fencelock.redis.redlock import RedlockBackend
from fencelock.url import LockUrl
from lab.servers import Valkey
from lab.servers.redis_cluster import RedisCluster
from lab.servers.sentinel import SentinelSet
from lab.torture.proxy import Proxy
from tests.contract.core_contract import CoreContract
from tests.contract.lock_contract import CALM_S, TTL_S, InThread, LockContract, LockSystem
from tests.harness.inside import of_threads
from tests.harness.waiting import WITHIN_S, eventually, eventually_async
from tests.harness.worker import Worker


class RedisSystem(LockSystem):
    def __init__(self, server: Valkey, backend: type[RedisBackend]) -> None:
        self.server = server
        self.kind = backend
        self.backend = f"{backend.__module__}:{backend.__name__}"
        self.client: Any = redis.Redis.from_url(server.url, decode_responses=True)

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"url": self.server.url, "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return self.kind(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        """A mark, or a contender's `<name>/<owner>`."""
        name, _, owner = key.rpartition("/")
        queue, scores = f"redisson_lock_queue:{{{name}}}", f"redisson_lock_timeout:{{{name}}}"
        found = self.client.delete(key), self.client.hdel(name, owner), self.client.lrem(queue, 0, owner)
        self.client.zrem(scores, owner)
        assert sum(found) == 1

    def end_lease(self, grant: Grant) -> None:
        self.client.delete(grant.key.rpartition("/")[0])

    def leftovers(self) -> list[str]:
        return [key for key in self.client.keys("*") if not key.startswith("fencelock_tokens")]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Valkey]:
    with Valkey(durable=True) as server:
        yield server


class _RedisContract(LockContract):
    kind: type[RedisBackend]

    @pytest.fixture
    def system(self, shared_server: Valkey) -> LockSystem:
        return RedisSystem(shared_server, self.kind)


class TestRedisLock(_RedisContract):
    kind = RedisBackend
    guarantees = RedisBackend.guarantees


class TestRedisFairLock(_RedisContract, CoreContract):
    kind = RedisFairBackend
    returns_by_its_key = True
    guarantees = RedisFairBackend.guarantees


class RedlockSystem(LockSystem):
    """Redlock on three servers. A fault of "the server" strikes two of them, a majority."""

    backend = "fencelock.redis.redlock:RedlockBackend"
    ttl_s = 1.2  # each of its calls has a sixth of that

    def __init__(self, servers: list[Valkey]) -> None:
        self.servers = servers
        self.clients: list[Any] = [redis.Redis.from_url(server.url, decode_responses=True) for server in servers]

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"urls": [server.url for server in self.servers], "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return RedlockBackend(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        assert sum(client.delete(key.rpartition("/")[0]) for client in self.clients) >= 2

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        return sorted({key for client in self.clients for key in client.keys("*")})

    def restart(self) -> None:
        for server in self.servers[:2]:
            server.kill()
        for server in self.servers[:2]:
            server.start()

    def pause(self) -> None:
        for server in self.servers[:2]:
            server.pause()

    def resume(self) -> None:
        for server in self.servers[:2]:
            server.resume()


@pytest.fixture(scope="module")
def three_servers() -> Iterator[list[Valkey]]:
    with ExitStack() as servers:
        yield [servers.enter_context(Valkey(f"valkey-{number}", durable=True)) for number in range(3)]


class TestRedlock(LockContract):
    guarantees = RedlockBackend.guarantees

    @pytest.fixture
    def system(self, three_servers: list[Valkey]) -> LockSystem:
        return RedlockSystem(three_servers)


async def test_many_tasks_ask_each_of_redlocks_servers_a_few_at_a_time(three_servers: list[Valkey]) -> None:
    """Tasks that come at once share some connections to a server, so that all are made in time."""
    before = [server.ask("CLIENT", "LIST").count("\n") for server in three_servers]
    async with RedlockBackend([server.url for server in three_servers], ttl_s=10).aio as locks:
        lock = locks.lock("/test/crowd")
        async with lock:
            waiting = [asyncio.create_task(lock.acquire(wait_s=1)) for _ in range(60)]
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(one) for one in ended} <= {LockTimeout, LockUnavailable}  # an answer came too late
            after = [server.ask("CLIENT", "LIST").count("\n") for server in three_servers]
        # 16, and some in the place of those whose answer came too late; without a limit there would be 60.
        assert all(now - was < 45 for was, now in zip(before, after, strict=True)), (before, after)


# -- Redisson's layout -------------------------------------------------------------------------------------------------


@pytest.fixture
def raw(shared_server: Valkey) -> Iterator[Any]:
    """A client that does by hand what Redisson does."""
    with redis.Redis.from_url(shared_server.url, decode_responses=True) as client:
        yield client
        client.flushall()


@pytest.fixture(params=[RedisBackend, RedisFairBackend])
def backend(request: pytest.FixtureRequest, shared_server: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # So a waiter is woken by a message, and not by looking again.
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 600.0)
    backend = request.param(shared_server.url, ttl_s=60)
    yield backend
    backend.close()


THEIRS = "0d5a2f9e-9f0c-4a65-b6a5-2b7f4f1c2d3e:1"


def theirs(raw: Any, name: str) -> None:
    """Have Redisson hold a lock for ten minutes."""
    raw.hset(name, THEIRS, 1)
    raw.pexpire(name, 600_000)


def test_a_lock_that_redisson_holds_is_taken(raw: Any, shared_server: Valkey, backend: RedisBackend) -> None:
    """Its hash keeps us out; its message on release lets us in at once."""
    lock = backend.lock("/test/shared")
    theirs(raw, "/test/shared")
    assert lock.try_acquire() is None
    assert [(one.key, one.owner) for one in lock.contenders()] == [(f"/test/shared/{THEIRS}", {})]
    waiting = InThread(lambda: lock.acquire(owner="me"))
    channel = "redisson_lock__channel:{/test/shared}"
    fair = isinstance(backend, RedisFairBackend)
    eventually(lambda: not fair or raw.llen("redisson_lock_queue:{/test/shared}") == 1, "we wait")
    told = f"{channel}:{raw.lindex('redisson_lock_queue:{/test/shared}', 0)}" if fair else channel

    def release() -> bool:
        raw.delete("/test/shared")
        raw.publish(told, "0")
        return not waiting.thread.is_alive()

    eventually(release, "we are woken")
    assert waiting.result().token > 0
    lock.release(owner="me")


def test_what_redisson_sees_of_a_lock_of_ours(raw: Any, backend: RedisBackend) -> None:
    """A hash with one field, a client and a number, held once, with a TTL; and a "0" when it is free."""
    fair = isinstance(backend, RedisFairBackend)
    queue, scores = "redisson_lock_queue:{/test/shared}", "redisson_lock_timeout:{/test/shared}"
    channel = "redisson_lock__channel:{/test/shared}" + (f":{THEIRS}" if fair else "")
    with raw.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe(channel)
        lock = backend.lock("/test/shared")
        with lock:
            ((field, count),) = raw.hgetall("/test/shared").items()
            assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+", field)
            assert count == "1"
            assert 0 < raw.pttl("/test/shared") <= 60_000
            if fair:  # one of theirs waits
                raw.rpush(queue, THEIRS)
                raw.zadd(scores, {THEIRS: time.time() * 1000 + 600_000})
        message = eventually(lambda: listening.get_message(timeout=0.1), "a message")
        assert message["data"] == "0"
        assert raw.exists("/test/shared") == 0
        # It is their turn, although the lock is free.
        assert (lock.try_acquire() is None) == fair


def test_a_waiter_of_theirs_that_is_dead_is_passed_over(raw: Any, backend: RedisBackend) -> None:
    """When its time is over it is no longer waited for."""
    if isinstance(backend, RedisFairBackend):
        raw.rpush("redisson_lock_queue:{/test/shared}", THEIRS)
        raw.zadd("redisson_lock_timeout:{/test/shared}", {THEIRS: time.time() * 1000 - 1})
    with backend.lock("/test/shared") as grant:
        assert grant.token > 0


@pytest.mark.slow
def test_those_who_left_and_the_dead_cost_a_ttl_together(raw: Any, shared_server: Valkey) -> None:
    """However many there were. The holder is theirs and has ten minutes, so nothing else is waited for."""
    name, ttl_s = "/test/dead", 5 * TTL_S
    queue, scores = f"redisson_lock_queue:{{{name}}}", f"redisson_lock_timeout:{{{name}}}"
    system = RedisSystem(shared_server, RedisFairBackend)
    theirs(raw, name)
    with ExitStack() as stack:
        backend = stack.enter_context(system.open(ttl_s))
        dead = [stack.enter_context(Worker(system.backend, system.options(ttl_s), name)) for _ in range(3)]
        calm, cancel = [], Cancel()
        for number in range(8):
            calm.append(InThread(lambda: backend.lock(name).acquire(owner="calm", cancel=cancel)))
            eventually(lambda number=number: raw.llen(queue) == number + 1, "it waits")
        for number, one in enumerate(dead):
            one.tell("acquire")
            eventually(lambda number=number: raw.llen(queue) == number + 9, "it waits")
        lock = backend.lock(name)
        behind = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: raw.llen(queue) == 12, "we are behind them")
        cancel.set()
        for living in calm:
            with pytest.raises(LockCancelled):
                living.result()
        for one in dead:
            one.kill()
        killed = time.monotonic()
        # That is how long it stands in Redisson's way, too.
        first = raw.lindex(queue, 0)
        assert raw.zscore(scores, first) / 1000 <= time.time() + ttl_s
        raw.delete(name)
        assert behind.result().token > 0
        assert time.monotonic() - killed < 4 * ttl_s
        lock.release(owner="me")


@pytest.mark.parametrize(("option", "wait_s"), [("", 300), ("?redisson_wait_s=1.5", 1.5)])
def test_what_redisson_takes_off_our_time_was_added(
    raw: Any, shared_server: Valkey, option: str, wait_s: float
) -> None:
    """A wait for each of theirs that is ahead, however old; so ours live for a TTL when theirs have gone."""
    name, ttl_s = "/test/behind", 60
    queue, scores = f"redisson_lock_queue:{{{name}}}", f"redisson_lock_timeout:{{{name}}}"
    before = time.time()
    raw.hset(name, THEIRS, 1)
    raw.rpush(queue, "theirs:1", "theirs:2")
    raw.zadd(scores, {"theirs:1": (before + 20) * 1000, "theirs:2": (before + 20 + wait_s) * 1000})
    with connect(f"{shared_server.url.replace('redis:', 'redis+fair:')}{option}", ttl_s=ttl_s) as backend:
        lock, cancel = backend.lock(name), Cancel()
        waiting = [InThread(lambda number=number: lock.acquire(owner=number, cancel=cancel)) for number in range(2)]
        eventually(lambda: raw.llen(queue) == 4, "we wait")
        assert all(0 < (one.ttl_left_s or 0) <= ttl_s + 1 for one in lock.contenders()[-2:])
        for ours in raw.lrange(queue, 2, 3):
            lives_until = raw.zscore(scores, ours) / 1000 - 2 * wait_s
            assert before + ttl_s - 1 <= lives_until <= time.time() + ttl_s
        cancel.set()
        for one in waiting:
            with pytest.raises(LockCancelled):
                one.result()


def test_redis_py_is_told_its_own_options_only() -> None:
    """Our option is kept from redis-py, which gets all others and refuses those that it does not know."""
    for query in ("redisson_wait_s=30&health_check_interval=7", "health_check_interval=7&redisson_wait_s=30"):
        with RedisFairBackend.from_url(LockUrl.parse(f"redis+fair://:secret@localhost/3?{query}")) as backend:
            asked = of_threads(backend).client.redis.connection_pool.connection_kwargs
            assert (backend.redisson_wait_s, asked["db"], asked["health_check_interval"]) == (30, 3, 7)


@pytest.mark.parametrize("wait", ["soon", "0", "-1", "nan", "1e999"])
def test_a_wait_that_can_not_be_is_named(wait: str) -> None:
    """`connect` refuses it at once."""
    with pytest.raises(ConfigurationError, match="redisson_wait_s"):
        connect(f"redis+fair://localhost?redisson_wait_s={wait}")


def test_a_name_that_something_else_uses_is_said(raw: Any, backend: RedisBackend) -> None:
    """A string under the lock's name, as redis-py's own lock leaves one: at once an error that says so, and no wait."""
    with raw.lock("/test/shared", timeout=60):
        lock = backend.lock("/test/shared")
        began = time.monotonic()
        with pytest.raises(LockError, match="something else uses that name") as error:
            lock.acquire(wait_s=600)
        with pytest.raises(LockError, match="something else uses that name"):
            lock.try_acquire()
        with pytest.raises(LockError, match="something else uses that name"):
            lock.contenders()
        assert time.monotonic() - began < 4 * WITHIN_S
        assert not isinstance(error.value, LockUnavailable)
        assert raw.keys("*") == ["/test/shared"]  # nothing of ours beside it
    with lock as grant:
        assert grant.token > 0


def test_a_lock_that_something_else_wrote_over(
    raw: Any, shared_server: Valkey, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder hears of the loss, waiters are told why, and the other value stays."""
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 0.1)  # no message tells of it
    brief = type(backend)(shared_server.url, ttl_s=60, renew_ratio=0.01)
    lock = brief.lock("/test/shared")
    grant = lock.acquire()
    waiting = InThread(lambda: brief.lock("/test/shared").acquire())
    fair = isinstance(backend, RedisFairBackend)
    eventually(lambda: raw.pubsub_numpat() >= 1 and (not fair or len(lock.contenders()) == 2), "it waits")
    raw.set("/test/shared", "a text")
    eventually(lambda: grant.lost, "its holder is told")
    with pytest.raises(LockLost):
        lock.release()
    with pytest.raises(LockError, match="something else uses that name"):
        waiting.result()
    assert raw.get("/test/shared") == "a text"
    assert raw.exists("redisson_lock_queue:{/test/shared}") == 0
    brief.close()


def test_a_lock_that_was_unlocked_by_force(raw: Any, backend: RedisBackend) -> None:
    """Redisson's `forceUnlock` deletes the lock, and not what we say of its holder: that is said of nobody else."""
    lock = backend.lock("/test/shared")
    grant = lock.acquire(owner="me")
    assert [one.owner["pid"] for one in lock.contenders()] == [os.getpid()]
    raw.delete("/test/shared")
    assert lock.contenders() == []
    theirs(raw, "/test/shared")
    for queue in (lock.contenders(), backend.contenders("/test/")):
        assert [(one.key, one.owner, one.token, one.holds) for one in queue] == [
            (f"/test/shared/{THEIRS}", {}, 0, True)
        ]
    taken = backend.force_release("/test/shared")
    assert taken is not None
    assert (taken.key, taken.owner, taken.token) == (f"/test/shared/{THEIRS}", {}, 0)
    with backend.lock("/test/shared") as next_one:
        assert next_one.token > grant.token
        assert [one.token for one in lock.contenders()] == [next_one.token]


@pytest.mark.parametrize("kind", [RedisBackend, RedisFairBackend])
def test_a_try_whose_answer_was_lost_is_not_in_our_own_way(
    kind: type[RedisBackend], shared_server: Valkey, raw: Any
) -> None:
    """We may have the lock without knowing it: the next try finds that out, with one token and one owner."""
    with Proxy(shared_server.port) as proxy:
        backend = kind(f"redis://127.0.0.1:{proxy.port}", ttl_s=60)
        lock = backend.lock("/test/lost")
        theirs(raw, "/test/lost")
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: raw.pubsub_numpat() >= 1, "we wait")
        proxy.lose_answer_to(b"/test/lost")
        raw.delete("/test/lost")
        assert proxy.struck.wait(15)
        proxy.restore()
        grant = waiting.result()
        assert raw.hlen("/test/lost") == 1
        assert grant.token == int(raw.hget("fencelock_tokens", "token"))
        lock.release(owner="me")
        assert raw.exists("/test/lost") == 0
        backend.close()


@pytest.mark.parametrize("kind", [RedisBackend, RedisFairBackend])
def test_a_late_release_of_a_lost_place_spares_the_next_one(
    kind: type[RedisBackend], shared_server: Valkey, raw: Any
) -> None:
    """A grant was answered later than its TTL: it is given back, however late, and the one after that is not."""
    with Proxy(shared_server.port) as proxy, kind(f"redis://127.0.0.1:{proxy.port}", ttl_s=1.0) as backend:
        with backend.lock("/test/warm"):
            pass  # the scripts are known
        proxy.answer_delay_s = 1.3
        lock = backend.lock("/test/lost")
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: raw.exists("/test/lost"), "the first one is granted")
        proxy.hold_at(of_threads(backend).release.sha.encode())
        assert proxy.struck.wait(WITHIN_S)
        proxy.answer_delay_s = 0
        grant = waiting.result()
        eventually(lambda: list(of_threads(backend).renewer._jobs) == [grant.lease], "the lost one is given back")
        proxy.restore()
        assert not grant.lost
        assert raw.hkeys("/test/lost") == [grant.key.rpartition("/")[2]]
        lock.release(owner="me")


async def test_only_the_first_of_a_process_is_woken(raw: Any, shared_server: Valkey) -> None:
    """A hundred tasks in line cost a few calls a grant, and not one for each of them; each is woken in its turn."""
    many = 100
    raw.config_resetstat()
    async with RedisFairBackend(shared_server.url, ttl_s=60).aio as locks:

        async def once() -> None:
            async with locks.lock("/test/crowd"):
                pass

        async with locks.lock("/test/crowd"):
            waiting = [asyncio.create_task(once()) for _ in range(many)]
            await eventually_async(lambda: raw.llen("redisson_lock_queue:{/test/crowd}") == many, "all wait")
            # Each looks once more when it listens, and then sleeps.
            await eventually_async(lambda: calls(raw) >= 2 * many, "all sleep")
            before = calls(raw)
        async with asyncio.timeout(4 * WITHIN_S):  # less than they would need that look by themselves
            await asyncio.gather(*waiting)
        assert calls(raw) - before < 5 * many


async def test_few_connections_serve_all_that_is_asked(valkey: Valkey) -> None:
    """Those that locks were taken with serve the other commands afterwards, and the listener."""
    backend = RedisBackend(f"{valkey.url}?max_connections=2", ttl_s=TTL_S)
    async with backend.aio as locks:

        async def hold(name: str) -> None:
            async with locks.lock(name):
                await asyncio.sleep(0)

        await asyncio.gather(hold("/test/few-1"), hold("/test/few-2"))
        assert await locks.contenders("/test/few") == []
        await asyncio.gather(hold("/test/few-1"), hold("/test/few-2"))
        async with locks.lock("/test/few-1"):
            waiting = asyncio.create_task(hold("/test/few-1"))
            here: Any = backend.here()
            channels = here.client.listener._channels
            await eventually_async(lambda: any(one.heard for one in channels.values()), "it listens")
        await waiting


def calls(raw: Any, command: str = "evalsha") -> int:
    """How many scripts the server has been asked for, or other commands of one kind."""
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.slow
def test_names_that_nobody_waits_for_are_listened_to_no_more(raw: Any, backend: RedisBackend) -> None:
    """A program with a lock for each of its orders leaves no subscription for each."""
    for number in range(150):
        name = f"/test/order-{number}"
        theirs(raw, name)
        assert backend.lock(name).try_acquire() is None
        with pytest.raises(LockTimeout):
            backend.lock(name).acquire(wait_s=0.01)
        assert raw.pubsub_numpat() <= 102
    # A forgotten channel is listened to again.
    waiting = InThread(lambda: backend.lock("/test/order-0").acquire(owner="me"))
    told = "redisson_lock__channel:{/test/order-0}"
    queue = "redisson_lock_queue:{/test/order-0}"
    if isinstance(backend, RedisFairBackend):
        told = f"{told}:{eventually(lambda: raw.lindex(queue, 0), 'it waits')}"
    raw.delete("/test/order-0")

    def woken() -> bool:
        raw.publish(told, "0")
        return not waiting.thread.is_alive()

    eventually(woken, "it is woken")
    assert waiting.result().token > 0


def test_who_may_not_listen_looks(raw: Any, shared_server: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """A user without a right to Redisson's channels gets the lock all the same, and the log says what is missing."""
    raw.execute_command("ACL", "SETUSER", "mute", "on", ">secret-1", "~*", "+@all", "resetchannels")
    theirs(raw, "/test/shared")
    backend = RedisBackend(f"redis://mute:secret-1@127.0.0.1:{shared_server.port}", ttl_s=1, timeout_s=0.5)
    waiting = InThread(lambda: backend.lock("/test/shared").acquire(owner="me"))
    said = "Redis tells of no releases"
    eventually(lambda: any(said in line and "permission" in line for line in caplog.messages), "it is said")
    raw.delete("/test/shared")
    assert waiting.result().token > 0
    assert sum(said in line for line in caplog.messages) == 1
    assert not any("secret-1" in line for line in caplog.messages)
    backend.close()
    raw.execute_command("ACL", "DELUSER", "mute")


def test_a_connection_that_confirms_no_subscription_is_replaced(
    raw: Any, shared_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be half-open for ever: all that wait hear again, of what they missed, too."""
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 600.0)
    with Proxy(shared_server.port) as proxy, RedisBackend(f"redis://127.0.0.1:{proxy.port}", ttl_s=600) as backend:
        for name in ("/test/heard", "/test/other"):
            raw.hset(name, THEIRS, 1)
        lock, before = backend.lock("/test/heard"), calls(raw)
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: calls(raw) >= before + 2, "it looks again, and then sleeps")
        proxy.swallow()
        raw.delete("/test/heard")

        def come_and_go() -> bool:
            with contextlib.suppress(LockTimeout, LockUnavailable):
                backend.lock("/test/other").acquire(wait_s=0.01)
            return not waiting.thread.is_alive()

        eventually(come_and_go, "it looks again")
        waiting.result()
        lock.release(owner="me")


def test_a_listening_connection_that_falls_silent_is_replaced(
    raw: Any, shared_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked now and then whether it is there, and all that wait look again."""
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 600.0)
    with (
        Proxy(shared_server.port) as proxy,
        RedisBackend(f"redis://127.0.0.1:{proxy.port}", ttl_s=600, timeout_s=0.5) as backend,
    ):
        raw.hset("/test/silent", THEIRS, 1)
        lock, before = backend.lock("/test/silent"), calls(raw)
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: calls(raw) >= before + 2, "it looks again, and then sleeps")
        pings = calls(raw, "ping")
        eventually(lambda: calls(raw, "ping") > pings + 1, "it is asked, and again, as it has answered", WITHIN_S)
        proxy.swallow()
        raw.delete("/test/silent")
        waiting.result()  # long before it would look by itself
        lock.release(owner="me")


def test_text_that_is_no_utf_8_is_borne(raw: Any, shared_server: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may write it into keys and messages: the queues can be seen, and the waiters hear."""
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 600.0)
    with RedisBackend(shared_server.url, ttl_s=600) as backend:
        raw.hset("/test/odd", b"\xff", 1)
        raw.hset(b"/test/\xff", "a", 1)
        assert [one.key for one in backend.contenders("")] == ["/test/odd/\ufffd"]
        lock = backend.lock("/test/odd")
        waiting = InThread(lambda: lock.acquire(owner="me"))
        eventually(lambda: raw.pubsub_numpat() == 1, "it waits")
        raw.publish("redisson_lock__channel:{/test/odd}", b"\xff")
        raw.delete("/test/odd")
        raw.publish("redisson_lock__channel:{/test/odd}", "0")
        waiting.result()
        lock.release(owner="me")
        with backend.lock("/test/ours"):  # beside which is its owner's name
            assert [one.key.rpartition("/")[0] for one in backend.contenders("")] == ["/test/ours"]


async def test_who_leaves_before_it_listens_keeps_nobody_listening(raw: Any, shared_server: Valkey) -> None:
    """An observer of an election is cancelled while its subscription is on the way."""
    with Proxy(shared_server.port) as proxy:
        async with RedisFairBackend(f"redis://127.0.0.1:{proxy.port}", ttl_s=60).aio as locks:
            election = locks.election("/test/observed")
            await election.leader()
            listener = locks.backend.here().client.listener  # type: ignore[attr-defined]
            proxy.stall()
            observing = asyncio.create_task(anext(election.observe()))
            await eventually_async(lambda: listener._channels, "it subscribes")
            observing.cancel()
            await asyncio.wait({observing})
            proxy.restore()
            await eventually_async(lambda: not listener._channels and listener._task is None, "nobody listens")


def test_what_is_given_back_after_the_end_leaves_no_connection(raw: Any, shared_server: Valkey) -> None:
    """A lock can still be released when its backend is closed."""
    backend = RedisBackend(f"{shared_server.url}?client_name=closing", ttl_s=600)
    lock = backend.lock("/test/closed")
    lock.acquire()
    backend.close()
    lock.release()
    assert not raw.exists("/test/closed")
    eventually(lambda: "closing" not in [one["name"] for one in raw.client_list()], "it is disconnected")


def test_a_server_that_forgot_its_tokens_says_so(raw: Any, backend: RedisBackend) -> None:
    """Numbers that begin anew are another source's: a store that has seen the old ones refuses them with the reason."""
    with backend.lock("/test/shared") as before:
        pass
    raw.flushall()
    with backend.lock("/test/shared") as after:
        assert after.source != before.source


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://:hunter2@localhost:6379/1",
        "redis+sentinel://:hunter2@localhost",
        "http://:hunter2@localhost",
        "nonsense",
    ],
)
def test_a_url_that_can_not_be_is_named(url: str) -> None:
    """At once, without the password."""
    with pytest.raises(ConfigurationError) as error:
        RedisBackend(url)
    assert "hunter2" not in str(error.value)


def test_a_waiter_in_a_crowd_gives_signs_of_life(shared_server: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """However seldom each of them looks by itself: without a sign it would lose its place after a TTL."""
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 600.0)
    with RedisFairBackend(shared_server.url, ttl_s=6) as backend, backend.lock("/test/crowded", ttl_s=600):
        lock, cancel = backend.lock("/test/crowded"), Cancel()
        waiting = InThread(lambda: lock.acquire(cancel=cancel))

        def left_s() -> float:
            return sum(one.ttl_left_s or 0 for one in lock.contenders() if not one.holds)

        whole = eventually(left_s, "it waits")
        left = eventually(lambda: (now := left_s()) < whole - 0.5 and now, "its time runs")
        eventually(lambda: left_s() > left, "it has given a sign", WITHIN_S)
        cancel.set()
        with pytest.raises(LockCancelled):
            waiting.result()


def test_redlock_needs_a_majority_that_can_be_lost() -> None:
    """Two servers are no better than one, and of three, two that are the same would be a majority by themselves."""
    urls = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]
    with pytest.raises(ConfigurationError, match="3 servers"):
        RedlockBackend(urls)
    for again in ("redis://127.0.0.1:1/2", "redis://:password@127.0.0.1:1"):
        with pytest.raises(ConfigurationError, match="different"):
            RedlockBackend([*urls, again])
    RedlockBackend([*urls, "unix:///a", "unix:///b"])


def test_redlock_allows_for_clocks_that_drift(three_servers: list[Valkey]) -> None:
    """A server whose clock runs faster by a hundredth still has the lock when its holder trusts it no more, whether it
    was just granted or renewed."""
    clients: list[Any] = [redis.Redis.from_url(server.url) for server in three_servers]
    with RedlockBackend([server.url for server in three_servers], ttl_s=60, renew_ratio=0.01) as backend:
        lock = backend.lock("/test/drift")
        grant = lock.acquire()
        for _ in range(2):
            left_s = [left_ms / 1000 for one in clients if (left_ms := one.pttl("/test/drift")) > 0]
            assert len(left_s) >= 2
            assert grant.lease.ttl_s <= 60 / 1.01
            assert grant.trusted_s <= max(left_s) / 1.01
            until = grant.deadline
            eventually(lambda until=until: grant.deadline > until, "it is renewed")
        lock.release()


def test_redlock_goes_on_without_a_minority(three_servers: list[Valkey]) -> None:
    """With one of three servers frozen, the lock is got, renewed and given back all the same; so is one whose TTL is as
    short as the longest call.
    """
    urls = [server.url for server in three_servers]
    with RedlockBackend(urls, ttl_s=TTL_S) as backend, RedlockBackend(urls, ttl_s=10 * TTL_S) as slower:
        three_servers[0].pause()
        try:
            with backend.lock("/test/minority") as grant:
                until = grant.deadline
                eventually(lambda: grant.deadline > until + TTL_S, "it was renewed more than once")
            with slower.lock("/test/brief", ttl_s=0.5).holding(wait_s=WITHIN_S) as brief:
                assert brief.key
            assert backend.contenders("/test/") == []
        finally:
            three_servers[0].resume()
        eventually(lambda: not RedlockSystem(three_servers).leftovers(), "nothing is left on the server")


def test_redlock_gives_back_what_a_server_grants_later(
    three_servers: list[Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is still being asked for a lock when that is given back: it is told after it has answered."""
    monkeypatch.setattr(redlock, "_LONGEST_CALL_S", 60)
    with Proxy(three_servers[2].port) as path:
        urls = [three_servers[0].url, three_servers[1].url, f"redis://127.0.0.1:{path.port}"]
        with RedlockBackend(urls, ttl_s=600, timeout_s=60) as backend:
            path.hold_at(b"/test/late")
            with backend.lock("/test/late"):
                assert path.struck.wait(WITHIN_S)
            with backend.lock("/test/other"):  # what that server is told at once has come by then
                eventually(lambda: three_servers[2].ask("EXISTS", "/test/other"), "it grants another lock")
            path.restore()
    assert not RedlockSystem(three_servers).leftovers()


def test_redlock_tells_the_slowest_server_too_before_it_closes(three_servers: list[Valkey]) -> None:
    """More locks are given back than calls can be under way: a process that then ends leaves none of them behind."""
    with RedlockBackend([server.url for server in three_servers], ttl_s=10 * TTL_S) as backend:
        locks = [backend.lock(f"/test/closing/{number}") for number in range(20)]
        for lock in locks:
            lock.acquire()
        with redis.Redis.from_url(three_servers[2].url) as slowest:
            slowest.client_pause(200)
        for lock in locks:
            lock.release()
    assert not RedlockSystem(three_servers).leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("late", [(2,), (1, 2)])
def test_redlock_leaves_nothing_of_a_try_that_was_not_answered(three_servers: list[Valkey], late: list[int]) -> None:
    """Each try has a value of its own, so one that is still there would be in the way of the next for a TTL."""
    name = "/test/unanswered"
    with ExitStack() as stack:
        paths = [stack.enter_context(Proxy(server.port)) for server in three_servers]
        backend = stack.enter_context(RedlockBackend([f"redis://127.0.0.1:{path.port}" for path in paths], ttl_s=600))
        for server in three_servers:
            server.ask("SET", name, "theirs")
        lock = backend.lock(name)
        waiting = InThread(lambda: lock.acquire(owner="me"))

        def tries(number: int) -> int:
            found = re.search(r"cmdstat_set:calls=(\d+)", three_servers[number].ask("INFO", "commandstats"))
            return int(found[1]) if found else 0

        def a_try_has_these() -> bool:
            """Free the late servers for the next try; begin anew if it was halved: later ones can't connect in time."""
            before = {number: tries(number) for number in late}
            eventually(lambda: all(tries(number) > before[number] for number in late), "it tries again")
            for number in late:
                paths[number].answer_delay_s = 2 * redlock._LONGEST_CALL_S
            for number in late:
                three_servers[number].ask("DEL", name)
            until = time.monotonic() + redlock._LONGEST_CALL_S
            while not (caught := all(three_servers[number].ask("EXISTS", name) for number in late)):
                if time.monotonic() > until:
                    break
            if not caught:
                for number in late:
                    three_servers[number].ask("SET", name, "theirs")
                    paths[number].restore()
            return caught

        eventually(a_try_has_these, "a try has these")
        for path in paths:
            path.restore()
        for number in {0, 1, 2}.difference(late):
            three_servers[number].ask("DEL", name)
        waiting.result()
        lock.release(owner="me")
        eventually(lambda: not RedlockSystem(three_servers).leftovers(), "nothing is left on the servers")


@pytest.mark.slow
@pytest.mark.parametrize("others", [8, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_redlock_keeps_what_is_held_while_others_come_and_go(three_servers: list[Valkey], others: int) -> None:
    """With one of three servers frozen, a process that takes and gives back all the time renews what it holds."""
    ttl_s, over = 5 * TTL_S, threading.Event()

    def come_and_go(lock: DistributedLock) -> int:
        turns = 0
        while not over.is_set():
            with contextlib.suppress(LockUnavailable, LockLost), lock:
                turns += 1
        return turns

    with RedlockBackend([server.url for server in three_servers], ttl_s=ttl_s) as backend:
        held = [backend.lock(f"/test/held/{number}").acquire(owner="me") for number in range(4)]
        until = min(grant.deadline for grant in held) + ttl_s
        three_servers[0].pause()
        crowd = [InThread(partial(come_and_go, backend.lock(f"/test/other/{number}"))) for number in range(others)]
        try:
            # For a TTL longer than without a renewal; one that is lost stays as it is.
            eventually(
                lambda: all(grant.lost or grant.deadline > until for grant in held), "they were renewed, or lost"
            )
            assert [grant.key for grant in held if grant.lost] == []
            over.set()
            assert all(thread.result() > 0 for thread in crowd)
        finally:
            over.set()
            three_servers[0].resume()
            for thread in crowd:
                thread.thread.join(WITHIN_S)
    eventually(lambda: not RedlockSystem(three_servers).leftovers(), "nothing is left on the server")


async def test_a_release_wakes_one_of_a_process(shared_server: Valkey) -> None:
    """However many wait, each grant costs a few scripts; and with the last waiter goes the subscription."""
    many = 60

    def scripts() -> int:
        stats = shared_server.ask("INFO", "commandstats")
        return sum(map(int, re.findall(r"cmdstat_(?:eval|evalsha):calls=(\d+)", stats)))

    async def once() -> None:
        async with lock:
            pass

    async with RedisBackend(shared_server.url, ttl_s=60).aio as locks:
        lock = locks.lock("/test/crowd")
        async with lock:
            waiting = [asyncio.create_task(once()) for _ in range(many)]
            listener = locks.backend.here().client.listener  # type: ignore[attr-defined]
            await eventually_async(
                lambda: sum(len(one.line) for one in listener._channels.values()) == many, "all wait"
            )
            before = scripts()
        await asyncio.gather(*waiting)
        assert scripts() - before < 4 * many
        await eventually_async(lambda: shared_server.ask("PUBSUB", "NUMPAT") == 0, "nobody listens")


async def test_those_who_wait_hear_again_after_a_cut(shared_server: Valkey, backend: RedisBackend) -> None:
    """A waiter, and an observer of an election: of what they missed meanwhile, and of each release after that."""

    def subscribed() -> Any:
        return shared_server.ask("PUBSUB", "NUMPAT")

    lock = backend.aio.lock("/test/cut")

    async def once() -> None:
        async with lock:
            pass

    async with lock:
        waiting = [asyncio.create_task(once()) for _ in range(3)]
        listener = backend.here().client.listener  # type: ignore[attr-defined]
        await eventually_async(lambda: sum(len(one.line) for one in listener._channels.values()) == 3, "all wait")
        await eventually_async(lambda: subscribed() == 1, "they are told of releases")
        shared_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await eventually_async(lambda: subscribed() == 1, "they are told again")
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*waiting)
    await backend.leave_loop()


async def test_a_release_that_is_told_while_a_look_is_unanswered(
    shared_server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the waiter that looks then leaves, the next one is woken."""
    monkeypatch.setattr(redis_lock, "_LOOK_AGAIN_S", 600.0)
    ask, looks, late = redis_lock.RedisAttempt._ask, Counter[Any](), asyncio.Event()

    async def ask_slowly(self: Any, *arguments: Any) -> Any:
        answer = await ask(self, *arguments)
        looks[self] += 1
        if len(looks) == 2 and looks[self] == 2:  # the first waiter's, which listens by now
            await late.wait()
        return answer

    monkeypatch.setattr(redis_lock.RedisAttempt, "_ask", ask_slowly)
    async with RedisBackend(shared_server.url, ttl_s=60).aio as locks:
        lock = locks.lock("/test/late")
        listener = locks.backend.here().client.listener  # type: ignore[attr-defined]
        async with lock:
            first = asyncio.create_task(lock.acquire(owner="first"))
            await eventually_async(lambda: sum(looks.values()) == 3, "the first one looks again")
            second = asyncio.create_task(lock.acquire(owner="second"))
            await eventually_async(lambda: sum(looks.values()) == 5, "the second one has looked twice")
        (channel,) = listener._channels.values()
        await eventually_async(lambda: channel.line[-1].woken, "the first one is told")
        first.cancel()
        late.set()
        await asyncio.wait_for(second, WITHIN_S)
        await lock.release(owner="second")
        assert first.cancelled()


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_given_back_as_its_loop_ends_is_given_back(shared_server: Valkey, raw: Any, waits: bool) -> None:
    """`asyncio.run` cancels all tasks in the end, a release that is under way and a waiter that leaves among them."""
    others = asyncio.all_tasks()
    with Proxy(shared_server.port) as proxy:
        async with RedisFairBackend(f"redis://127.0.0.1:{proxy.port}", ttl_s=600).aio as locks:

            async def work() -> None:
                async with locks.lock("/test/end"):
                    pass

            await work()  # the scripts are known
            raw.hset("/test/end", THEIRS, 1)
            working = asyncio.create_task(work())
            await eventually_async(lambda: raw.llen("redisson_lock_queue:{/test/end}"), "it waits")
            proxy.hold_at(RedisFairConnection.release.sha.encode())
            if waits:
                working.cancel()
            else:
                raw.delete("/test/end")
            await eventually_async(proxy.struck.is_set, "it is being given back")
            tasks = asyncio.all_tasks() - others
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raw.hdel("/test/end", THEIRS)
            assert not raw.exists("/test/end", "redisson_lock_queue:{/test/end}")


def test_a_forced_release_wakes_the_next_one(raw: Any, backend: RedisBackend) -> None:
    """At once, as its own release does."""
    lock = backend.lock("/test/forced")
    lock.acquire(owner="one")
    before = calls(raw)
    waiting = InThread(lambda: lock.acquire(owner="other"))
    eventually(lambda: calls(raw) >= before + 2, "it looks again, and then sleeps")
    assert backend.force_release("/test/forced") is not None
    waiting.thread.join(WITHIN_S)  # less than until its next sign of life
    assert not waiting.thread.is_alive()
    lock.release(owner="other")


# -- servers that forget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru"])
@pytest.mark.parametrize("scheme", ["redis", "redis+fair", "redlock"])
def test_a_server_that_evicts_is_refused(valkey: Valkey, scheme: str, policy: str) -> None:
    """With a full memory it would drop a lock that is held, which is a key with a TTL, or the counter of the tokens."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as raw:
        raw.config_set("maxmemory-policy", policy)
        try:
            hosts = [f"localhost:{valkey.port}", f"127.0.0.1:{valkey.port}", f"127.0.0.2:{valkey.port}"]
            url = f"{scheme}://{','.join(hosts) if scheme == 'redlock' else hosts[1]}"
            with connect(url) as locks, pytest.raises(LockUnavailable, match=f"maxmemory-policy is {policy}"):
                locks.lock("/test/evicted").acquire(wait_s=0)
            assert not raw.keys("*")
        finally:
            raw.config_set("maxmemory-policy", "noeviction")


RIGHTS = (
    "+info +eval +evalsha +scan +time +ping +publish +psubscribe +punsubscribe +set +get +del +exists +pexpire +pttl "
    "+hset +hsetnx +hget +hmget +hdel +hexists +hkeys +hincrby "
    "+lindex +lrange +lpop +lrem +rpush +zadd +zrem +zscore"
)


def test_the_rights_of_the_page_are_enough(raw: Any, backend: RedisBackend, shared_server: Valkey) -> None:
    """To lock, to wait, to look and to elect."""
    page = (Path(__file__).parents[2] / "fencelock/README.md").read_text()
    assert f"ACL SETUSER locks on >password ~* &* {RIGHTS}" in page
    raw.execute_command("ACL", "SETUSER", "locks", "on", ">password", "~*", "&*", *RIGHTS.split())
    url = f"redis://locks:password@127.0.0.1:{shared_server.port}"
    try:
        with type(backend)(url) as locks:
            with locks.lock("/test/rights") as grant:
                waiting = InThread(lambda: locks.lock("/test/rights").acquire(owner="me"))
                assert [one.token for one in locks.contenders("/test/rights") if one.holds] == [grant.token]
            assert waiting.result().token > grant.token
            assert locks.force_release("/test/rights") is not None
            with locks.election("/test/rights").campaign("me") as leadership:
                leadership.record("done")
                assert locks.election("/test/rights").recorded() == "done"
    finally:
        raw.execute_command("ACL", "DELUSER", "locks")


def test_who_may_not_tell_gives_back(raw: Any, shared_server: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """A user without channels, as Redis 7 makes them, gives a lock back; what can't be asked is said once."""
    raw.execute_command("ACL", "SETUSER", "mute", "on", ">secret-1", "~*", "+@all", "-info", "resetchannels")
    try:
        with RedisBackend(f"redis://mute:secret-1@127.0.0.1:{shared_server.port}") as backend:
            for _ in range(2):
                with backend.lock("/test/mute"), backend.lock("/test/mute-too"):
                    pass
            assert not raw.exists("/test/mute", "/test/mute-too")
        assert [line for line in caplog.messages if "evicts" in line or "back" in line] == [
            "Redis does not say whether it evicts keys (INFO memory): its policy must be noeviction"
        ]
    finally:
        raw.execute_command("ACL", "DELUSER", "mute")


@pytest.mark.parametrize("name", ["fencelock_tokens", "fencelock_owner:/a", "fencelock_waiting:/a", "/a!record"])
def test_our_own_keys_are_no_locks(backend: RedisBackend, name: str) -> None:
    """They would be waited for without end."""
    with pytest.raises(ValueError, match="a lock's name in Redis can't"):
        backend.lock(name)


# -- a Cluster, and Sentinels ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "redis+fair"])
def test_a_lock_in_a_cluster(cluster: RedisCluster, kind: str) -> None:
    """Each name is in one slot with all that belongs to it: its tokens, which are a source of its own, its waiters and
    its record. It moves with its slot, also while it is held."""
    url = cluster.url.replace("redis", kind, 1)
    names = [f"/{kind}/{number}" for number in range(6)] + [f"/{kind}/{{tag}}/6"]
    with connect(url, ttl_s=CALM_S) as locks, connect(url, ttl_s=CALM_S) as others:
        grants = {name: locks.lock(name).acquire(owner="me") for name in names}
        assert len({grant.source for grant in grants.values()}) == len(names)
        assert [one.key.rpartition("/")[0] for one in others.contenders(f"/{kind}/")] == sorted(names)
        assert len({cluster.owner_of(cluster.slot_of(name)).port for name in names}) > 1
        for name, grant in grants.items():
            waiting = InThread(lambda name=name: others.lock(name).acquire(owner="you", wait_s=WITHIN_S))
            if others.guarantees.shows_queue:
                eventually(lambda name=name: len(locks.lock(name).contenders()) == 2, "it waits")
            source = cluster.owner_of(slot := cluster.slot_of(name))
            cluster.move(slot, source, next(node for node in cluster.nodes if node is not source))
            until = grant.deadline
            eventually(lambda g=grant, until=until: g.lost or g.deadline > until, "it is renewed", CALM_S)
            assert not grant.lost
            assert locks.force_release(name) is not None
            second = waiting.result()
            assert (second.source, second.token > grant.token) == (grant.source, True)
            assert locks.force_release(name) is not None
        with locks.once(f"/{kind}/once", slot="1") as start:
            assert start is not None
        with others.once(f"/{kind}/once", slot="1") as start:
            assert start is None


def test_a_url_of_several_servers_has_their_options() -> None:
    """Those of redis-py, and a log-in for the Sentinels, which get the same certificates."""
    url = "rediss+sentinel://u:p%40@a,b:26380/shop/2?ssl_ca_certs=@ca.pem&sentinel_password=q"
    pool = redis_connect.connect(url, 2).connection_pool
    known = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in known] == [("a", 26379), ("b", 26380)]
    assert {(one["password"], one["ssl_ca_certs"]) for one in known} == {("q", "@ca.pem")}
    kwargs = pool.connection_kwargs
    assert (pool.service_name, kwargs["db"], kwargs["username"], kwargs["password"]) == ("shop", 2, "u", "p@")
    with pytest.raises(ConfigurationError, match="an option that redis-py does not know: 'colour'"):
        connect("redis+cluster://a,b?colour=red")


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_servers_that_are_away_are_an_error(kind: str) -> None:
    """In time, whichever of redis-py's errors it is."""
    url = f"redis+{kind}://127.0.0.1:1,127.0.0.1:2/{'shop' if kind == 'sentinel' else ''}"
    with connect(url, timeout_s=1) as locks:
        for ask in (lambda: locks.ping(1), locks.lock("/test/away").acquire, lambda: locks.contenders("/")):
            with pytest.raises(LockUnavailable, match="Redis can't be asked"):
                ask()


@pytest.mark.parametrize("name", ["/a{b", "/a}b", "/{a}{b}", "/{}a"])
def test_a_name_that_is_in_two_slots_is_refused(name: str) -> None:
    """What belongs to it could not be changed with it."""
    with connect("redis+cluster://127.0.0.1:1") as locks, pytest.raises(ValueError, match="one {tag}"):
        locks.lock(name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "redis+fair"])
def test_a_lock_behind_sentinels(kind: str) -> None:
    """It is on the primary of the moment. When that one dies, who has the lock is told, or has it on the next one."""
    with SentinelSet() as servers, connect(servers.url.replace("redis", kind, 1), ttl_s=CALM_S) as locks:
        lock = locks.lock("/test/sentinel")
        grant = lock.acquire()
        servers.primary.ask("WAIT", "2", "5000")
        servers.fail_over()
        until = grant.deadline
        eventually(lambda: grant.lost or grant.deadline > until, "it is renewed on the next one, or lost", 2 * CALM_S)
        with contextlib.suppress(LockLost):
            lock.release()
        with locks.lock("/test/sentinel").holding(wait_s=2 * CALM_S) as second:
            assert second.token > grant.token
