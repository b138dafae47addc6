"""What is Redis' own about the stock there: its keys, what bad data gets, scripts, replicas, Cluster and Sentinel."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio

from app.embedded import Valkey, valkey_binary
from app.embedded.process import free_port
from app.errors import (
    ConfigurationError,
    FenceRefused,
    ForeignFence,
    ItemNotPossible,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockUnavailable,
    UnknownItem,
)
from app.stock import Ask, Batch, Fence, Level, Refused, Settled, Snapshot, Sold, StockStore
from app.stock.known import Known
from app.stock.redis.bare import BareStockStore
from app.stock.redis.keys import mark_of
from app.stock.redis.store import RedisStockStore
from app.torture.proxy import Proxy
from tests.contract.store_contract import fence, fenced_at_the_read_too
from tests.harness.sentinel import SentinelSet
from tests.harness.servers import optional_server
from tests.harness.waiting import WITHIN_S, eventually_async

Scenario = Callable[[StockStore, Any], Coroutine[Any, Any, None]]


def batch(stock: int, *quantities: int) -> Batch:
    return Batch("b", stock, [Sold(quantity) for quantity in quantities])


@asynccontextmanager
async def opened(
    url: str, kind: type[RedisStockStore] = RedisStockStore, **options: Any
) -> AsyncIterator[tuple[RedisStockStore, Any]]:
    """A store, and a plain client beside it."""
    store = kind(url, **options)
    client = redis.asyncio.Redis.from_url(url.replace("+cluster", ""), decode_responses=True)
    try:
        yield store, client
    finally:
        await store.close()
        await client.aclose()


@asynccontextmanager
async def closing(store: RedisStockStore) -> AsyncIterator[RedisStockStore]:
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(scope="module", params=["valkey", "redis-7.0"])
def server(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    """The embedded Valkey, and the Redis of Debian."""
    binary = valkey_binary() if request.param == "valkey" else optional_server("redis-server", "redis-server")
    with Valkey(binary=binary) as running:
        yield running


@pytest.fixture
def play(server: Valkey) -> Callable[..., None]:
    """Runs a scenario against the empty server."""

    def run(scenario: Scenario, kind: type[RedisStockStore] = RedisStockStore) -> None:
        async def main() -> None:
            async with opened(server.url, kind) as (store, client):
                await client.flushall()
                await scenario(store, client)

        asyncio.run(main())

    return run


# -- the fence, and the keys -----------------------------------------------------------------------------------------


def test_without_the_guard_that_unit_is_sold_twice(play: Callable[..., None]) -> None:
    """The same steps without the guard: two are told "sold", one unit is gone. It is the guard that prevents it."""

    async def scenario(store: StockStore, client: Any) -> None:
        assert await fenced_at_the_read_too(store) == []
        level = await store.level("default")
        assert (level.stock, level.lucky, level.initial) == (4, 2, 5)

    play(scenario, BareStockStore)


def test_a_token_that_lua_could_mistake_is_refused(play: Callable[..., None]) -> None:
    """Lua compares doubles; beyond 2**53 two tokens could look alike."""

    async def scenario(store: StockStore, client: Any) -> None:
        with pytest.raises(ValueError, match="token"):
            await store.read("default", fence(2**53), "b")

    play(scenario)


def test_an_item_that_goes_away_stops_what_was_announced(play: Callable[..., None]) -> None:
    """When the stock's key is gone at the next read, a batch that is still on its way is stopped for good."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 3)
        await store.read("default", fence(1), "b")
        await client.delete("stock")
        with pytest.raises(UnknownItem):
            await store.read("default", fence(1), "next")
        await client.set("stock", 3)
        with pytest.raises(FenceRefused):
            await store.commit("default", fence(1), batch(3, 1))

    play(scenario)


def test_items_lie_in_one_slot_and_apart(play: Callable[..., None]) -> None:
    """Items don't see each other; all keys of an item but the default one have one hash tag."""

    async def scenario(store: StockStore, client: Any) -> None:
        for sku, units in (("default", 1), ("phone", 2), ("phone-2", 3)):
            await store.set_stock(sku, fence(1), units)
            await store.read(sku, fence(2), sku)
            await store.commit(
                sku, fence(2), Batch(sku, units, [Sold(1, "ann", "k")], [Refused("r", Settled("sold_out", 9, None))])
            )
        assert await store.items() == ["default", "phone", "phone-2"]
        assert [(await store.level(sku)).stock for sku in await store.items()] == [0, 1, 2]
        keys = {key async for key in client.scan_iter()}
        assert {"stock", "lucky"} < keys
        assert await client.mget("stock", "lucky") == ["0", "1"]
        for key in keys - {"stock", "lucky"}:
            assert key.startswith(("seckill:{default}:", "seckill:{phone}:", "seckill:{phone-2}:"))

    play(scenario)


# -- bad data and bad names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "abc", "-1", "1.5", "1e3", "007", " 5", "9" * 20])
def test_a_stock_that_is_no_number_is_not_touched(play: Callable[..., None], value: str) -> None:
    """What is not a whole number of 0 or more gets a clear error, and stays as it is."""

    async def scenario(store: StockStore, client: Any) -> None:
        await client.set("stock", value)
        for attempt in (store.read("default", fence(1), "b"), store.level("default")):
            with pytest.raises(StockCorrupt, match="'stock' of item 'default' is not a whole number"):
                await attempt
        assert await client.get("stock") == value

    play(scenario)


WRONG = [
    ("lucky", "many"),
    ("lucky", "007"),
    ("lucky", "9" * 19),
    ("lucky", "-1"),
    ("seckill:{default}:buyers", "x"),
    ("seckill:{default}:keys", "x"),
    ("seckill:{default}:orders", "x"),
]


async def dump(client: Any, of: str = "*") -> dict[str, bytes]:
    """All that is stored under keys like that, byte for byte."""
    raw = redis.asyncio.Redis(port=client.connection_pool.connection_kwargs["port"])
    try:
        return {name.decode(): await raw.dump(name) async for name in raw.scan_iter(match=of)}
    finally:
        await raw.aclose()


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_script_that_would_stumble_writes_nothing(play: Callable[..., None], key: str, value: str) -> None:
    """A key of ours that holds something else is noticed before the first write, as a script is not undone."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await store.read("default", fence(2), "b")
        await client.set(key, value)
        before = await dump(client)
        with pytest.raises(StockCorrupt, match=key.replace("{", r"\{")):
            await store.commit("default", fence(2), Batch("b", 5, [Sold(1), Sold(1, "ann", "k")]))
        assert await dump(client) == before

    play(scenario)


@pytest.mark.parametrize("units", ["05", "+5", "x", str(2**63 - 1)])
def test_a_buyers_count_that_is_no_number_writes_nothing(play: Callable[..., None], units: str) -> None:
    """One buyer's count that can't be added to stops the whole batch before its first order is written."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await store.read("default", fence(2), "b")
        await client.hset("seckill:{default}:buyers", "bob", units)
        before = await dump(client)
        with pytest.raises(StockCorrupt, match="buyers"):
            await store.commit("default", fence(2), Batch("b", 5, [Sold(1, "ann", "k"), Sold(1, "bob")]))
        with pytest.raises(StockCorrupt, match="buyers"):
            await store.read("default", fence(2), "b", buyers=["bob"])
        assert await dump(client) == before

    play(scenario)


@pytest.mark.parametrize("value", ["many", "1.5", "-5", "0x10", "nan", "007"])
def test_setting_the_stock_beside_a_wrong_lucky_writes_nothing(play: Callable[..., None], value: str) -> None:
    """A restock that can't say what there was at the start is refused; a new sale begins at 0 sold anyway."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await client.set("lucky", value)
        before = await dump(client)
        with pytest.raises(StockCorrupt, match="lucky"):
            await store.set_stock("default", fence(2), 9)
        assert await dump(client) == before
        assert await store.set_stock("default", fence(2), 9, new_sale=True) == Level("default", 9, 0, 9)

    play(scenario)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("stock", StockChanged),
        ("lucky", StockCorrupt),
        ("fence", StockCorrupt),
        ("buyers", StockChanged),
        ("keys", StockChanged),
        ("orders", StockChanged),
    ],
)
def test_a_key_that_is_none_of_ours_stops_only_its_item(
    play: Callable[..., None], key: str, error: type[Exception]
) -> None:
    """What has become of one item is found before anything of it is written, without a read, too; others are sold."""

    async def scenario(store: StockStore, client: Any) -> None:
        sold = [Sold(1, "ann", "k")]
        for sku in ("a", "b", "c"):
            await store.set_stock(sku, fence(1), 5)
            seen = await store.read(sku, fence(1), "look")
            await store.commit(sku, fence(1), Batch("look", seen.stock, [Sold(1, "bob", "other")]))
        await client.delete(f"seckill:{{b}}:{key}")
        await client.sadd(f"seckill:{{b}}:{key}", "x")
        before = await dump(client, "seckill:{b}:*")
        batches = {sku: store.suppose(sku, fence(2), "s", sold, Ask(["ann"], ["k"])) for sku in ("a", "b", "c")}
        answers = await store.commit_many(fence(2), {sku: batch for sku, batch in batches.items() if batch})
        assert [type(answer) for answer in answers.values()] == [list, error, list]
        assert [(await store.level(sku)).lucky for sku in ("a", "c")] == [2, 2]
        assert await dump(client, "seckill:{b}:*") == before
        with pytest.raises(StockCorrupt, match=key):  # what was supposed wrongly is told by a read
            seen = await store.read("b", fence(2), "r", buyers=["ann"], keys=["k"])
            await store.commit("b", fence(2), Batch("r", seen.stock, sold))

    play(scenario)


def test_foreign_data_is_an_error_of_ours_not_of_python(play: Callable[..., None]) -> None:
    """Bytes that are no text, entries that are no orders, keys that are no answers: all are said to be not ours."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await client.xadd("seckill:{default}:orders", {"something": "else"})
        with pytest.raises(StockCorrupt, match="orders"):
            await store.orders("default")
        for text in ("x", "1-1 x", "1-1 []", '1-1 {"outcome":"sold"}'):
            await client.hset("seckill:{default}:keys", "k", text)
            with pytest.raises(StockCorrupt, match="keys"):
                await store.read("default", fence(1), "b", keys=["k"])
        await client.set("stock", b"\xff\xfe")
        with pytest.raises(StockCorrupt):
            await store.level("default")

    play(scenario)


def test_a_buyers_key_is_never_taken_for_an_item(play: Callable[..., None]) -> None:
    """An idempotency key that looks like the rest of a key's name doesn't show up among the items."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("phone", fence(1), 0)
        await store.read("phone", fence(1), "b")
        refused = Refused("x}:stock", Settled("sold_out", 1, None))
        await store.commit("phone", fence(1), Batch("b", 0, [], [refused]))
        assert await store.items() == ["phone"]
        assert (await store.read("phone", fence(1), "c", keys=["x}:stock"])).settled == {"x}:stock": refused.settled}

    play(scenario)


# -- the server --------------------------------------------------------------------------------------------------------


def test_a_server_that_forgot_the_scripts(play: Callable[..., None]) -> None:
    """SCRIPT FLUSH, as after a restart or a failover, costs a second call and nothing else."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await store.read("default", fence(2), "b")
        await client.script_flush()
        await store.commit("default", fence(2), batch(5, 1))
        await client.script_flush()
        assert (await store.level("default")).stock == 4

    play(scenario)


def test_a_connection_that_the_server_closed(play: Callable[..., None]) -> None:
    """Connections that the server closed while they were idle (a restart, its `timeout`) are not used any more."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await asyncio.gather(*(store.level("default") for _ in range(8)))
        assert await client.client_kill_filter(_type="normal", skipme=True) > 1

        async def alone() -> bool:
            return len(await client.client_list()) == 1

        await eventually_async(alone, "they are closed")
        assert (await store.level("default")).stock == 5

    play(scenario)


def test_a_server_without_memory_takes_nothing(play: Callable[..., None]) -> None:
    """Out of memory: an error, and nothing half-written."""

    async def scenario(store: StockStore, client: Any) -> None:
        await store.set_stock("default", fence(1), 5)
        await store.read("default", fence(2), "b")
        await client.config_set("maxmemory", "1")
        try:
            with pytest.raises(StockUnavailable, match="takes no writes"):
                await store.commit("default", fence(2), batch(5, 1))
            with pytest.raises(StockUnavailable):
                await store.ping()  # it answers a plain PING
        finally:
            await client.config_set("maxmemory", "0")
        assert await store.level("default") == Level("default", 5, 0, 5)

    play(scenario)


def test_a_replica_is_not_ready() -> None:
    """A read-only replica answers, but can't be sold from; `ping` says so."""
    with Valkey() as primary, Valkey(options=["--replicaof", "127.0.0.1", str(primary.port)]) as replica:

        async def main() -> None:
            async with opened(primary.url) as (store, _):
                await store.set_stock("default", fence(1), 5)
                await store.ping()
            async with opened(replica.url) as (store, _):
                with pytest.raises(StockUnavailable, match="takes no writes"):
                    await store.ping()
                with pytest.raises(StockUnavailable):
                    await store.set_stock("default", fence(2), 5)

        asyncio.run(main())


def test_an_answer_that_does_not_come_is_an_error_in_time(valkey: Valkey) -> None:
    """A frozen store ends a call at its deadline, and a lost connection at once; afterwards all is well again."""
    with Proxy(valkey.port) as proxy:

        async def main() -> None:
            async with opened(f"redis://127.0.0.1:{proxy.port}/0", timeout_s=0.3) as (store, _):
                await store.set_stock("default", fence(1), 5)
                valkey.pause()
                try:
                    with pytest.raises(StockUnavailable, match="did not answer within 0.3 s"):
                        await store.level("default")
                finally:
                    valkey.resume()
                proxy.cut()
                with pytest.raises(StockUnavailable, match="can't be reached"):
                    await store.level("default")
                proxy.restore()
                assert (await store.level("default")).stock == 5

        asyncio.run(main())


def test_more_callers_than_connections(valkey: Valkey) -> None:
    """500 callers share a few connections."""

    async def main() -> None:
        async with opened(valkey.url, connections=4) as (store, client):
            await store.set_stock("default", fence(1), 5)
            levels = await asyncio.gather(*(store.level("default") for _ in range(500)))
            assert {level.stock for level in levels} == {5}
            assert len(await client.client_list()) <= 6

    asyncio.run(main())


def test_in_a_cluster(valkey_server: Valkey) -> None:
    """Items with a name sell in a Redis Cluster; the default item is refused there, with the reason."""
    with Valkey(options=["--cluster-enabled", "yes", "--cluster-port", str(free_port())]) as node:

        async def main() -> None:
            async with opened(node.url.replace("redis://", "redis+cluster://").removesuffix("/0")) as (store, client):
                await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

                async def formed() -> bool:
                    return "cluster_state:ok" in str(await client.execute_command("CLUSTER", "INFO"))

                await _until(formed)
                with pytest.raises(ItemNotPossible, match="two hash slots"):
                    await store.set_stock("default", fence(1), 5)
                await store.set_stock("phone", fence(1), 5)
                await store.set_stock("case", fence(1), 5)
                seen = await store.read_many(fence(2), "a", {sku: Ask() for sku in ("phone", "case", "nothing")})
                kinds = {sku: type(answer) for sku, answer in seen.items()}  # in any order
                assert kinds == {"phone": Snapshot, "case": Snapshot, "nothing": UnknownItem}
                both = {sku: Batch("a", 5, [Sold(0)]) for sku in ("phone", "case")}
                assert [type(ids) for ids in (await store.commit_many(fence(2), both)).values()] == [list, list]
                await client.delete("seckill:{case}:stock")
                await store.set_stock("phone", fence(2), 5, new_sale=True)
                await store.read("phone", fence(2), "b", buyers=["ann"], keys=["k"])
                ids = await store.commit("phone", fence(2), Batch("b", 5, [Sold(2, "ann", "k")]))
                assert await store.level("phone") == Level("phone", 3, 2, 5, ids[0].split("~")[1])
                assert [order.quantity for order in await store.orders("phone")] == [2]
                assert await store.items() == ["phone"]
                await store.ping()

        asyncio.run(main())


@pytest.mark.parametrize("odd", ["token", "sale", "era", "source without a token"])
def test_an_odd_fence_is_its_items_trouble(play: Callable[..., None], odd: str) -> None:
    """Somebody's hand was in it: the key is named, and the other items of the same call are sold."""

    async def scenario(store: StockStore, client: Any) -> None:
        skus = ("bad", "good")
        for sku in skus:
            await store.set_stock(sku, fence(1), 10)
            await store.read(sku, fence(2), "look")

        def supposed(token: int) -> dict[str, Batch]:
            made = {sku: store.suppose(sku, fence(token), f"b{token}", [Sold(1)], Ask()) for sku in skus}
            return {sku: one for sku, one in made.items() if one is not None}

        await store.commit_many(fence(3), supposed(3))
        if odd == "source without a token":
            await client.hset("seckill:{bad}:fence", "source", "another")
            await client.hdel("seckill:{bad}:fence", "token")
        else:
            await client.hset("seckill:{bad}:fence", odd, "odd")
        before = await client.hgetall("seckill:{bad}:fence")
        written = await store.commit_many(fence(4), supposed(4))
        assert isinstance(written["good"], list)
        seen = await store.read_many(fence(5), "r", {sku: Ask() for sku in skus})
        assert isinstance(seen["good"], Snapshot)
        fences = await store.fences(skus)
        assert fences["good"] == fence(5)
        for answer in (written["bad"], seen["bad"], fences["bad"]):
            assert isinstance(answer, StockCorrupt)
            assert "seckill:{bad}:fence" in str(answer)
        with pytest.raises(StockCorrupt, match="fence"):
            await store.set_stock("bad", fence(6), 1)
        assert await client.hgetall("seckill:{bad}:fence") == before

    play(scenario)


def test_an_odd_item_does_not_hide_that_orders_of_another_are_missing(play: Callable[..., None]) -> None:
    """Whoever looks at several fences is told of each."""

    async def scenario(store: StockStore, client: Any) -> None:
        for sku in ("behind", "good", "odd"):
            await store.set_stock(sku, fence(1), 10)
            seen = await store.read(sku, fence(2), "b")
            await store.commit(sku, fence(2), Batch("b", seen.stock, [Sold(1)]))
        await client.xtrim("seckill:{behind}:orders", maxlen=0)
        await client.set("seckill:{odd}:orders", "not a stream")
        found = await store.fences(["odd", "behind", "good"])
        assert {sku: type(answer) for sku, answer in found.items()} == {
            "odd": StockCorrupt,
            "behind": StockBehind,
            "good": Fence,
        }
        assert "seckill:{odd}:orders" in str(found["odd"])

    play(scenario)


def test_what_is_known_does_not_go_back() -> None:
    """The answer to an older question may come after that to a later one."""
    known = Known(mark_of)
    known.found((), ("1", "9-0"))
    known.found((), ("1", "5-0"))
    assert known.last == ("1", "9-0")
    known.found((), ("2", "3-0"))
    assert known.last == ("2", "3-0")


def test_several_items_in_a_call(valkey: Valkey) -> None:
    """Each is read and written by itself: what is wrong with one is its own answer, and does not stop the others."""

    async def main() -> None:
        async with opened(valkey.url) as (store, client):
            for sku in ("phone", "case", "foreign", "broken", "changed"):
                await store.set_stock(sku, fence(1), 5)
            await client.hset("seckill:{foreign}:fence", "source", "another")
            await client.delete("seckill:{broken}:orders")
            asks = {sku: Ask() for sku in ("case", "foreign", "nothing", "broken", "changed")}
            seen = await store.read_many(fence(2), "b", asks | {"phone": Ask(["ann"], ["k"])})
            assert {
                sku: answer.stock if isinstance(answer, Snapshot) else type(answer) for sku, answer in seen.items()
            } == {
                "phone": 5,
                "case": 5,
                "broken": 5,
                "changed": 5,
                "foreign": ForeignFence,
                "nothing": UnknownItem,
            }
            await client.set("seckill:{broken}:orders", "not a stream")
            await client.set("seckill:{changed}:stock", 4)
            refused = Refused("r", Settled("sold_out", 9, None))
            batches = {sku: Batch("b", 5, [Sold(2), Sold(1)], [refused]) for sku in ("case", "changed", "broken")}
            batches["phone"] = Batch("b", 5, [Sold(1, "ann", "k")])
            done = await store.commit_many(fence(2), batches)
            assert {sku: len(answer) if isinstance(answer, list) else type(answer) for sku, answer in done.items()} == {
                "phone": 1,
                "case": 2,
                "broken": StockCorrupt,
                "changed": StockChanged,
            }
            assert (await store.level("case")).stock == 2
            assert (await store.level("phone")).lucky == 1
            assert (await store.level("changed")).lucky == 0
            assert await client.get("seckill:{broken}:lucky") == "0"
            again = await store.commit_many(fence(2), {sku: batches[sku] for sku in ("case", "phone")})
            assert again == {sku: done[sku] for sku in ("case", "phone")}
            asked = await store.read_many(fence(3), "c", {"case": Ask([], ["r"]), "phone": Ask(["ann"], ["k"])})
            case, phone = asked["case"], asked["phone"]
            assert isinstance(case, Snapshot)
            assert case.settled == {"r": refused.settled}
            assert isinstance(phone, Snapshot)
            assert phone.bought == {"ann": 1}
            assert phone.settled["k"].order_id in (done["phone"] or [])

    asyncio.run(main())


def test_through_sentinel() -> None:
    """A Sentinel URL finds the primary, and the new one after a failover."""
    with SentinelSet(valkey_binary()) as sentinels:

        async def main() -> None:
            async with closing(RedisStockStore(sentinels.url)) as store:
                await store.set_stock("phone", fence(1), 5)

                async def copied() -> bool:
                    async with opened(sentinels.replicas[0].url) as (other, _):
                        try:
                            return (await other.level("phone")).stock == 5
                        except UnknownItem:
                            return False

                await _until(copied)
                await asyncio.to_thread(sentinels.primary.kill)

                async def failed_over() -> bool:
                    try:
                        return (await store.set_stock("phone", fence(2), 4)).stock == 4
                    except StockUnavailable:
                        return False

                await _until(failed_over)

        asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis+magic://host",
        "redis+sentinel://host:26379",
        "redis+sentinel:///shop",
        "redis://host:port/0",
    ],
)
def test_an_odd_url_is_refused(url: str) -> None:
    """What is no store's URL is a configuration error, at once."""
    with pytest.raises(ConfigurationError, match="not a store's URL"):
        RedisStockStore(url)


async def _until(look: Callable[[], Awaitable[bool]]) -> None:

    await eventually_async(look, within_s=2 * WITHIN_S)
