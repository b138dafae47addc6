"""The fence in Valkey and Redis keeps the contract, with both kinds of client; further tests cover Lua and Cluster."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ResponseError

from fencelock.fence import FENCE_LUA, AsyncRedisFence, FenceRefused, Fencing, RedisFence, fencing
from lab.servers import Valkey
from lab.servers.process import free_port
from tests.contract.fence_contract import OTHER, OURS, FenceContract, FencedThing
from tests.harness.servers import optional_server
from tests.harness.waiting import eventually

LONG_S = 60.0


class InRedis(FencedThing):
    def __init__(self, client: redis.Redis) -> None:
        self.fence = RedisFence(client, "thing")

    def read(self, token: int, source: str = OURS, *, instead_of: str | None = None) -> str | None:
        value = self.fence.read(Fencing(token, source), instead_of=instead_of)
        assert value is None or isinstance(value, bytes)
        return None if value is None else value.decode()

    def write(self, token: int, value: str, source: str = OURS) -> None:
        self.fence.write(Fencing(token, source), value)


class InAsyncRedis(FencedThing):
    """A value in Redis through the asynchronous client, with an event loop for each call."""

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self, token: int, source: str = OURS, *, instead_of: str | None = None) -> str | None:
        async def read() -> str | None:
            async with AsyncRedis.from_url(self.url, decode_responses=True) as client:
                value = await AsyncRedisFence(client, "thing").read(Fencing(token, source), instead_of=instead_of)
                assert not isinstance(value, bytes)
                return value

        return asyncio.run(read())

    def write(self, token: int, value: str, source: str = OURS) -> None:
        async def write() -> None:
            async with AsyncRedis.from_url(self.url) as client:
                await AsyncRedisFence(client, "thing").write(Fencing(token, source), value.encode())

        asyncio.run(write())


def connected(url: str) -> closing[redis.Redis]:
    return closing(redis.Redis.from_url(url))


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with connected(valkey.url) as client:
        yield client


@pytest.fixture(scope="module")
def redis_7_0() -> Iterator[Valkey]:
    with Valkey(binary=optional_server("redis-server", "redis-server")) as server:
        yield server


class TestValkey(FenceContract):
    @pytest.fixture
    def thing(self, client: redis.Redis) -> FencedThing:
        return InRedis(client)


class TestAsync(FenceContract):
    @pytest.fixture
    def thing(self, valkey: Valkey) -> FencedThing:
        return InAsyncRedis(valkey.url)


@pytest.mark.slow
class TestRedis(FenceContract):
    @pytest.fixture
    def thing(self, redis_7_0: Valkey) -> Iterator[FencedThing]:
        with connected(redis_7_0.url) as client:
            client.flushall()
            yield InRedis(client)


def test_the_refusal_has_what_was_seen(client: redis.Redis) -> None:
    InRedis(client).write(8, "b")
    with pytest.raises(FenceRefused) as late:
        InRedis(client).write(7, "a")
    assert late.value.args == (7, OURS, 8, OURS)
    with pytest.raises(FenceRefused) as foreign:
        InRedis(client).read(9, OTHER)
    assert foreign.value.args == (9, OTHER, 8, OURS)


def test_any_bytes_are_a_value_and_none_is_no_value(client: redis.Redis) -> None:
    """Any bytes are a value, and a deleted value leaves the fence behind."""
    fence = RedisFence(client, "thing")
    for value in (b"", bytes(range(256))):
        fence.write(Fencing(7, OURS), value)
        assert fence.read(Fencing(7, OURS)) == value
    fence.write(Fencing(8, OURS), None)
    assert fence.read(Fencing(8, OURS)) is None
    with pytest.raises(FenceRefused):
        fence.write(Fencing(7, OURS), "late")


def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(client: redis.Redis) -> None:
    thing = InRedis(client)
    thing.write(7, "a")
    client.script_flush()
    assert thing.read(7) == "a"
    client.script_flush()
    thing.write(7, "b")
    assert thing.read(7) == "b"


def test_a_key_of_somebody_else_is_left_alone(client: redis.Redis) -> None:
    """An unrelated key raises the server's error, not a refusal."""
    client.set("thing", "theirs")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        InRedis(client).write(7, "a")
    assert client.get("thing") == b"theirs"


@pytest.fixture
def take(client: redis.Redis) -> Callable[[Fencing, int], int]:
    """Run a user's script, which takes some from a number behind a fence."""
    script = client.register_script(
        FENCE_LUA
        + """
        local refused = fence_check(KEYS[1], ARGV[1], ARGV[2])
        if refused then return refused end
        return redis.call("DECRBY", KEYS[2], ARGV[3])
        """
    )

    def take(grant: Fencing, units: int) -> int:
        with fencing(grant) as (token, source):
            return int(script(keys=["{phone}:fence", "{phone}:units"], args=[token, source, units]))

    return take


def test_a_script_of_ones_own(client: redis.Redis, take: Callable[[Fencing, int], int]) -> None:
    """The fence's function refuses before the user's script writes."""
    client.set("{phone}:units", 10)
    assert take(Fencing(7, OURS), 1) == 9
    assert take(Fencing(8, OURS), 2) == 7
    with pytest.raises(FenceRefused, match="has seen token 8"):
        take(Fencing(7, OURS), 3)
    with pytest.raises(FenceRefused, match="two sources"):
        take(Fencing(9, OTHER), 3)
    with pytest.raises(ValueError, match="not 0"):
        take(Fencing(0, OURS), 3)
    assert client.get("{phone}:units") == b"7"


@pytest.mark.parametrize("token", ["0", "-1", "07", "1.5", "1e3", "nan", "", "9" * 20])
@pytest.mark.parametrize("source", [OURS, ""])
def test_the_function_looks_at_what_it_is_given(client: redis.Redis, token: str, source: str) -> None:
    """The function checks its arguments, as a script may be called without `fencing`."""
    script = client.register_script(FENCE_LUA + "return fence_check(KEYS[1], ARGV[1], ARGV[2])")
    with pytest.raises(ResponseError, match="FENCETOKEN"):
        script(keys=["fence"], args=[token, source])
    with pytest.raises(ResponseError, match="FENCETOKEN"):
        script(keys=["fence"], args=["7", ""])
    assert not client.exists("fence")


def test_in_a_cluster() -> None:
    """In a Cluster the value is in the fence's own key, and the keys of a user's script have the fence's hash tag."""
    with Valkey(options=["--cluster-enabled", "yes", "--cluster-port", str(free_port())]) as node:
        with connected(node.url) as client:
            command: Any = client.execute_command  # which has no types
            command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            ask = partial(command, "CLUSTER", "INFO")
            eventually(lambda: "cluster_state:ok" in str(ask()), "it is formed", LONG_S)
        with closing(redis.RedisCluster.from_url(node.url.removesuffix("/0"))) as cluster:
            fence = RedisFence(cluster, "thing")
            assert fence.read(Fencing(8, OURS)) is None
            with pytest.raises(FenceRefused):
                fence.write(Fencing(7, OURS), "late")
            fence.write(Fencing(8, OURS), "b")
            assert fence.read(Fencing(8, OURS)) == b"b"
            script = cluster.register_script(FENCE_LUA + "return fence_check(KEYS[1], ARGV[1], KEYS[2])")
            assert script(keys=["{phone}:fence", "{phone}:units"], args=[7]) is None
