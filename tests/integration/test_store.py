"""The Redis and Valkey stores have features of their own: keys, bad data, scripts, replicas, Cluster, Sentinel."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from app.errors import (
    ConfigurationError,
    FenceRefused,
    ItemNotPossible,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockNotAsExpected,
    StockUnavailable,
    UnknownItem,
)
from app.orders import Ask, OrderState, Record, Settled, Snapshot
from app.stock import Batch, Begun, Fence, Level, Refused, Sold, StockStore, registry
from app.stock.redis.storage import RedisStorage
from lab.servers import Valkey, valkey_binary
from lab.servers.process import free_port
from lab.torture.proxy import Proxy
from tests.contract.store_contract import commit, fence, fenced_at_the_read_too, prepare, sell
from tests.harness.sentinel import SentinelSet
from tests.harness.servers import optional_server
from tests.harness.waiting import WITHIN_S, eventually_async

LONG_S = 4 * WITHIN_S


def batch(seen: Snapshot, *quantities: int) -> Batch:
    return Batch("b", seen, [Sold(quantity) for quantity in quantities])


def open_redis(url: str, guard: str = "fence", **options: Any) -> StockStore:
    return registry.connect(url, guard, **options)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[tuple[StockStore, Any]]:
    """Open a store, and a plain client beside it."""
    store = open_redis(url, **options)
    client = redis.asyncio.Redis.from_url(url.replace("+cluster", ""), decode_responses=True)
    try:
        yield store, client
    finally:
        await store.close()
        await client.aclose()


@asynccontextmanager
async def closing(store: StockStore) -> AsyncIterator[StockStore]:
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis-7.0", marks=pytest.mark.exhaustive)])
def server(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    """Start the embedded Valkey, or Debian's Redis."""
    binary = valkey_binary() if request.param == "valkey" else optional_server("redis-server", "redis-server")
    with Valkey(binary=binary) as running:
        yield running


@pytest.fixture
async def client(server: Valkey) -> AsyncIterator[Any]:
    """Open a plain client of the server, and empty the server."""
    client = redis.asyncio.Redis.from_url(server.url, decode_responses=True)
    try:
        await client.flushall()
        yield client
    finally:
        await client.aclose()


@pytest.fixture
async def store(server: Valkey, client: Any) -> AsyncIterator[StockStore]:
    """Open a store on the same server."""
    async with closing(open_redis(server.url)) as store:
        yield store


# -- a write that dies half-way --------------------------------------------------------------------------------------


NEEDED = ["set", "incrby", "xadd", "hset", "hget", "hlen", "mget", "type", "rename", "unlink"]


@pytest.mark.parametrize("command", NEEDED)
async def test_a_right_that_is_missing_is_told_before_anything_is_written(
    server: Valkey, store: StockStore, client: Any, command: str
) -> None:
    """A forbidden command would end a script in the middle: nothing is sold, and `ping` names the command."""
    await store.set_stock("default", fence(1), 5)
    before = await client.get("stock"), await client.get("lucky"), await client.xlen("seckill:{default}:orders")
    await client.acl_setuser("half", enabled=True, reset=True, nopass=True, keys=["*"], categories=["+@all"])
    await client.execute_command("ACL", "SETUSER", "half", f"-{command}", "&*")
    url = server.url.replace("redis://", "redis://half:any@")
    async with opened(url) as (limited, _):
        with pytest.raises(StockUnavailable, match=command.upper()):
            await limited.ping()
        for token in (2, 3):
            with pytest.raises(StockUnavailable):
                seen = await prepare(limited, "default", fence(token), "b")
                refused = [Refused("r", Settled("sold_out", 9, None))]
                await commit(limited, "default", fence(token), Batch("b", seen, [Sold(1, "ann", "k")], refused))
        after = await client.get("stock"), await client.get("lucky"), await client.xlen("seckill:{default}:orders")
        assert after == before
        await client.execute_command("ACL", "SETUSER", "half", f"+{command}")
        await limited.ping()
        await sell(limited, 4, 1)


async def test_a_write_that_died_half_way_is_the_last_one(store: StockStore, client: Any) -> None:
    """A write that died half-way may have sold units without orders: nothing more is sold until a person looked."""
    await store.set_stock("default", fence(1), 5)
    await sell(store, 2, 1)
    seen = await prepare(store, "default", fence(3), "b")
    await client.incrby("lucky", 2)  # the first write of a commit
    with pytest.raises(StockCorrupt, match="half-way"):
        await commit(store, "default", fence(3), Batch("b", seen, [Sold(1)]))
    with pytest.raises(StockCorrupt, match="half-way"):
        await prepare(store, "default", fence(4), "c")
    await store.set_stock("default", fence(5), 3)
    await sell(store, 6, 1)


async def test_a_sale_that_is_begun_anew_by_hand(store: StockStore, client: Any) -> None:
    """A sale can begin as in the articles: `set stock`, `set lucky` with redis-cli."""
    await store.set_stock("default", fence(1), 2)
    await sell(store, 2, 2)
    await client.mset({"stock": 3, "lucky": 0})
    await sell(store, 3, 1)
    level = await store.level("default")
    assert (level.stock, level.lucky) == (2, 1)


async def test_an_entry_that_somebody_else_has_written(store: StockStore, client: Any) -> None:
    """Our next number is above it, whatever it is: a batch that was decided before is refused whole."""
    await store.set_stock("default", fence(1), 5)
    (number,) = await sell(store, 2, 1)
    seen = await prepare(store, "default", fence(3), "b")
    (_, fields) = (await client.xrange("seckill:{default}:orders", number, number))[0]
    await client.xadd("seckill:{default}:orders", fields, id="9999999999999-0")
    with pytest.raises(StockChanged):
        await commit(store, "default", fence(3), batch(seen, 1))
    assert await client.mget("stock", "lucky") == ["4", "1"]
    seen = await prepare(store, "default", fence(4), "c")
    await commit(store, "default", fence(4), Batch("c", seen, [], [Refused("r", Settled("sold_out", 9, None))]))
    assert await sell(store, 5, 1) == ["9999999999999-1"]
    assert isinstance((await store.inspect(["default"]))["default"], Fence)  # our last order is still known to be there


async def test_a_strangers_entry_beside_items_that_are_written_together(store: StockStore, client: Any) -> None:
    """Neither of them is written, nothing stays of the entry that was, and the next batch is written."""
    skus = ["case", "phone"]
    for sku in skus:
        await store.set_stock(sku, fence(1), 5)
        await sell(store, 2, 1, sku=sku)
    asked = await store.prepare(fence(3), "b", dict.fromkeys(skus, Ask()))
    (_, fields) = (await client.xrange("seckill:{phone}:orders", count=1))[0]
    await client.xadd("seckill:{phone}:orders", fields, id="9999999999999-0")
    write = {sku: batch(one, 1) for sku, one in asked.items() if isinstance(one, Snapshot)}
    done = await store.commit(fence(3), write, [set(skus)])
    assert [type(one) for one in done.values()] == [StockChanged, StockChanged]
    assert [(await store.level(sku)).stock for sku in skus] == [4, 4]
    assert await store.count_entries("case") == 1
    for sku in skus:
        assert len(await sell(store, 4, 1, sku=sku)) == 1


async def test_an_order_with_the_id_of_a_lost_one_is_another(server: Valkey, store: StockStore, client: Any) -> None:
    """A restored store gives a new order the id of a lost one: the difference is noticed."""
    await store.set_stock("phone", fence(1), 5)
    await sell(store, 2, 1, sku="phone")
    (lost,) = await sell(store, 3, 1, sku="phone")
    entry = lost
    orders = "seckill:{phone}:orders"
    (_, fields) = (await client.xrange(orders, entry, entry))[0]
    await client.delete(orders)
    await client.xadd(orders, fields | {"secret": 32 * "0"}, id=entry)
    with pytest.raises(StockBehind):
        await prepare(store, "phone", fence(4), "b")
    async with opened(server.url) as (another, _):
        another.expect("phone", store.marks()["phone"])
        with pytest.raises(StockBehind):
            await prepare(another, "phone", fence(5), "b")


async def test_refusals_are_bounded(store: StockStore, client: Any) -> None:
    """Many retries with new keys fill two hashes of an item, and then the oldest keys are forgotten."""
    await store.set_stock("default", fence(1), 5)
    refused = Settled("sold_out", 9, None)
    for number in range(30):
        seen = await prepare(store, "default", fence(2), f"b{number}")
        keys = [Refused(f"{number}-{one}", refused) for one in range(1000)]
        await commit(store, "default", fence(2), Batch(f"b{number}", seen, [], keys))
    counts = {key: await client.hlen(key) for key in await client.keys("*refused*")}
    assert len(counts) == 2
    assert sum(counts.values()) < 25_000
    seen = await prepare(store, "default", fence(3), "last", keys=["29-999", "0-0"])
    assert seen.settled == {"29-999": refused}
    assert 0 < await client.pttl("seckill:{default}:refused") <= 7_200_000
    assert len(await client.keys("*")) <= 9


async def test_readers_do_not_stop_the_sale(server: Valkey, client: Any) -> None:
    """Nor does the sale stop them: each has connections of its own."""
    async with opened(server.url, connections=2) as (store, _):
        assert isinstance(store.storage, RedisStorage)
        await store.set_stock("default", fence(1), 5)
        async with store.storage._readers.commands():
            await sell(store, 2, 1)
        async with store.storage._sale.commands():
            assert (await store.level("default")).lucky == 1


async def test_refusals_grow_old(server: Valkey, client: Any) -> None:
    """A hash of refusals gives way to a new one after their time, whether it is full or not, and is then forgotten."""
    at = "seckill:{default}:refused"
    async with opened(server.url, refusal_ttl_s=0.5) as (store, _):
        await store.set_stock("default", fence(1), 5)
        for number in range(2):
            seen = await prepare(store, "default", fence(2), f"b{number}")
            refused = Refused(f"k{number}", Settled("sold_out", 9, None))
            await commit(store, "default", fence(2), Batch(f"b{number}", seen, [], [refused]))
            await asyncio.sleep(0.6 * (1 - number))
        assert sorted(await client.hkeys(at)) == ["", "k1"]
        assert 0 < await client.pttl(at) <= 1000
        assert await client.pttl(f"{at}-before") in {-2, *range(501)}  # gone, or soon


@pytest.mark.slow
async def test_items_are_found_among_very_many_keys(server: Valkey, client: Any) -> None:
    """Each page of keys is a call with its own deadline: however many keys there are, the items are found."""
    for first in range(0, 50_000, 10_000):
        await client.mset({f"somebody:{number}": 1 for number in range(first, first + 10_000)})
    async with opened(server.url) as (store, _):
        await store.set_stock("phone", fence(1), 5)
        assert isinstance(store.storage, RedisStorage)
        readers = store.storage._readers
        calls, call = 0, readers._call

        def counted(timeout_s: float | None) -> Any:
            nonlocal calls
            calls += 1
            return call(timeout_s)

        readers._call = counted  # type: ignore[method-assign]
        assert await store.items() == ["phone"]
        assert calls > 20


@pytest.mark.parametrize("stands_in", ["MGET", "EXISTS"])
async def test_a_server_that_talks_nonsense_is_away(stands_in: str) -> None:
    """Any answer of another program at the address means that the store is away: no error of ours, and no sale."""
    renamed = [("EVALSHA", ""), ("EVAL", ""), (stands_in, "EVAL")]
    options = [word for names in renamed for word in ("--rename-command", *names)]
    with Valkey(options=options) as server:
        async with opened(server.url) as (store, _):
            for call in (
                lambda: store.prepare(fence(1), "b", {"a": Ask(), "c": Ask()}),
                lambda: store.levels(["a"]),
                lambda: store.inspect(["a"]),
                store.ping,
            ):
                with pytest.raises(StockUnavailable):
                    await call()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_not_ready(store: StockStore, client: Any, policy: str) -> None:
    """An evicting server would silently drop orders and idempotency keys when its memory is full."""
    await store.ensure_lasting()
    await client.config_set("maxmemory-policy", policy)
    try:
        with pytest.raises(StockUnavailable, match=f"maxmemory-policy is {policy}"):
            await store.ensure_lasting()
        await store.ping()
    finally:
        await client.config_set("maxmemory-policy", "noeviction")
    await store.ensure_lasting()


# -- the fence, and the keys -----------------------------------------------------------------------------------------


async def test_without_the_guard_that_unit_is_sold_twice(server: Valkey, client: Any) -> None:
    """Without the guard the same steps sell one unit twice, so it is the guard that prevents it."""
    async with closing(open_redis(server.url, "none")) as store:
        assert await fenced_at_the_read_too(store) == []
        level = await store.level("default")
        assert (level.stock, level.lucky, level.initial) == (4, 2, 5)


async def test_any_grant_removes_without_tokens(server: Valkey, client: Any) -> None:
    """The guard that compares has a fence of its own, which a lock's source must not replace."""
    async with closing(open_redis(server.url, "compare")) as store:
        for source in ("redis:1", "redis:2"):
            await store.set_stock("phone", fence(5, source), 3)
            await store.remove("phone", fence(2, source))
            assert await store.items() == []


async def test_an_item_that_goes_away_stops_what_was_prepared(store: StockStore, client: Any) -> None:
    """If the stock's key is gone when the next batch is prepared, the previous one is never written."""
    await store.set_stock("default", fence(1), 3)
    before = await prepare(store, "default", fence(1), "b")
    await client.delete("stock")
    with pytest.raises(UnknownItem):
        await prepare(store, "default", fence(1), "next")
    await client.set("stock", 3)
    with pytest.raises(FenceRefused):
        await commit(store, "default", fence(1), batch(before, 1))


async def test_items_lie_in_one_slot_and_apart(store: StockStore, client: Any) -> None:
    """Items don't see each other; all keys of an item but the default one have one hash tag."""
    for sku, units in (("default", 1), ("phone", 2), ("phone-2", 3)):
        await store.set_stock(sku, fence(1), units)
        seen = await prepare(store, sku, fence(2), sku, buyers=["ann"], keys=["k", "r"])
        refused = [Refused("r", Settled("sold_out", 9, None))]
        await commit(store, sku, fence(2), Batch(sku, seen, [Sold(1, "ann", "k")], refused))
    assert await store.items() == ["default", "phone", "phone-2"]
    assert [(await store.level(sku)).stock for sku in await store.items()] == [0, 1, 2]
    keys = {key async for key in client.scan_iter()}
    assert {"stock", "lucky"} < keys
    assert await client.mget("stock", "lucky") == ["0", "1"]
    for key in keys - {"stock", "lucky"}:
        assert key.startswith(("seckill:{default}:", "seckill:{phone}:", "seckill:{phone-2}:"))


# -- bad data and bad names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "abc", "-1", "1.5", "1e3", "007", " 5", "9" * 20])
async def test_a_stock_that_is_no_number_is_not_touched(store: StockStore, client: Any, value: str) -> None:
    """A stock that is no whole number of 0 or more gets a clear error, and stays as it is."""
    await client.set("stock", value)
    for attempt in (prepare(store, "default", fence(1), "b"), store.level("default")):
        with pytest.raises(StockCorrupt, match="'stock' of item 'default' is not a whole number"):
            await attempt
    assert await client.get("stock") == value


WRONG = [
    ("lucky", "many"),
    ("lucky", "007"),
    ("lucky", "9" * 19),
    ("lucky", "-1"),
    ("seckill:{default}:buyers", "x"),
    ("seckill:{default}:keys", "x"),
    ("seckill:{default}:orders", "x"),
]


async def dump(client: Any, of: str = "*") -> dict[str, bytes | None]:
    """Return all data under keys with that pattern, byte for byte."""
    raw = redis.asyncio.Redis(port=client.connection_pool.connection_kwargs["port"])
    try:
        return {name.decode(): await raw.dump(name) async for name in raw.scan_iter(match=of)}
    finally:
        await raw.aclose()


@pytest.mark.parametrize(("key", "value"), WRONG)
async def test_a_script_that_would_stumble_writes_nothing(store: StockStore, client: Any, key: str, value: str) -> None:
    """A wrong type under a key of ours is noticed before the first write, as a script is not undone."""
    await store.set_stock("default", fence(1), 5)
    seen = await prepare(store, "default", fence(2), "b", buyers=["ann"], keys=["k"])
    await client.set(key, value)
    before = await dump(client)
    with pytest.raises(StockCorrupt, match=key.replace("{", r"\{")):
        await commit(store, "default", fence(2), Batch("b", seen, [Sold(1), Sold(1, "ann", "k")]))
    assert await dump(client) == before


@pytest.mark.parametrize("add", [False, True])
async def test_a_sum_that_lua_could_mistake_is_refused(store: StockStore, client: Any, add: bool) -> None:
    """Units left, held and sold have 15 digits together, as a restock with more would be one that nobody can read."""
    most = 10**15 - 1
    await store.set_stock("default", fence(1), most)
    await sell(store, 2, 1)
    before, log = await store.level("default"), await store.log("default")
    with pytest.raises(StockNotAsExpected, match="item 'default' can't have that many units"):
        await store.set_stock("default", fence(3), 1 if add else most, add=add)
    assert (await store.level("default"), await store.log("default")) == (before, log)
    assert await store.set_stock("default", fence(3), most, new_sale=True) == Level("default", most, 0, most)


async def test_entries_that_begin_no_order_are_skipped_by_the_thousand(store: StockStore, client: Any) -> None:
    """A short page of orders behind very many changes takes few calls."""
    await store.set_stock("default", fence(1), 1)
    (number,) = await sell(store, 2, 1)
    (_, fields) = (await client.xrange("seckill:{default}:orders", number, number))[0]
    fields |= {"kind": "extended", "order": number, "n": "2", "units": "0 0 0", "facts": ""}
    async with client.pipeline() as pipe:
        for _ in range(3000):
            pipe.xadd("seckill:{default}:orders", fields)
        await pipe.execute()
    await client.config_resetstat()
    assert await store.orders("default", after=number, limit=1) == []
    assert (await client.info("commandstats"))["cmdstat_xrange"]["calls"] < 10


async def test_orders_by_the_thousand(store: StockStore, client: Any) -> None:
    """A page may have more orders than a script can look up at once."""
    await store.set_stock("default", fence(1), 1)
    (number,) = await sell(store, 2, 1)
    (_, fields) = (await client.xrange("seckill:{default}:orders", number, number))[0]
    async with client.pipeline() as pipe:
        for _ in range(9000):
            pipe.xadd("seckill:{default}:orders", fields)
        await pipe.execute()
    assert len(await store.orders("default", limit=10_000)) == 9001


async def test_a_name_of_very_many_orders_is_erased(store: StockStore, client: Any) -> None:
    """With their keys, in one step."""
    await store.set_stock("default", fence(1), 1)
    (number,) = await sell(store, 2, Sold(1, "ann", "k"))
    (_, fields) = (await client.xrange("seckill:{default}:orders", number, number))[0]
    settled = await client.hget("seckill:{default}:keys", "k")
    async with client.pipeline() as pipe:
        for one in range(9000):
            pipe.xadd("seckill:{default}:orders", fields | {"key": f"k{one}"})
            pipe.hset("seckill:{default}:keys", f"k{one}", settled)
        await pipe.execute()

    @asynccontextmanager
    async def under() -> AsyncIterator[Fence]:
        yield fence(3)

    assert await store.erase("default", "ann", under) == 9001
    assert {one.buyer for one in await store.orders("default", limit=10_000)} == {"erased"}
    assert not [text for text in await client.hvals("seckill:{default}:keys") if "ann" in text]


@pytest.mark.parametrize("units", ["05", "+5", "x", str(2**63 - 1)])
async def test_a_buyers_count_that_is_no_number_writes_nothing(store: StockStore, client: Any, units: str) -> None:
    """A buyer's invalid count stops the whole batch before anything is decided."""
    await store.set_stock("default", fence(1), 5)
    await client.hset("seckill:{default}:buyers", "bob", units)
    with pytest.raises(StockCorrupt, match="buyers"):
        await prepare(store, "default", fence(2), "b", buyers=["bob"])


@pytest.mark.parametrize("value", ["many", "1.5", "-5", "0x10", "nan", "007"])
async def test_setting_the_stock_beside_a_wrong_lucky_writes_nothing(
    store: StockStore, client: Any, value: str
) -> None:
    """A restock is refused if the number of units sold can't be read; a new sale sets it to 0 anyway."""
    await store.set_stock("default", fence(1), 5)
    await client.set("lucky", value)
    before = await dump(client, "*[^e]")  # but for the fence, which the look has raised
    with pytest.raises(StockCorrupt, match="lucky"):
        await store.set_stock("default", fence(2), 9)
    assert await dump(client, "*[^e]") == before
    assert await store.set_stock("default", fence(2), 9, new_sale=True) == Level("default", 9, 0, 9)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("stock", StockCorrupt),
        ("lucky", StockCorrupt),
        ("fence", StockCorrupt),
        ("buyers", StockCorrupt),
        ("keys", StockCorrupt),
        ("orders", StockCorrupt),
    ],
)
async def test_a_key_that_is_none_of_ours_stops_only_its_item(
    store: StockStore, client: Any, key: str, error: type[Exception]
) -> None:
    """A foreign value under one item's key is found before that item is written; the others are sold."""
    skus = ("a", "b", "c")
    for sku in skus:
        await store.set_stock(sku, fence(1), 5)
        await sell(store, 1, Sold(1, "bob", "other"), sku=sku)
    asks = {sku: Ask(["ann"], ["k"]) for sku in skus}
    snapshots = await store.prepare(fence(2), "s", asks)
    batches = {
        sku: Batch("s", one, [Sold(1, "ann", "k")]) for sku, one in snapshots.items() if isinstance(one, Snapshot)
    }
    assert [*batches] == [*skus]
    await client.delete(f"seckill:{{b}}:{key}")
    await client.sadd(f"seckill:{{b}}:{key}", "x")
    before = await dump(client, "seckill:{b}:*")
    answers = await store.commit(fence(2), batches)
    assert [type(answer) for answer in answers.values()] == [list, error, list]
    assert [(await store.level(sku)).lucky for sku in ("a", "c")] == [2, 2]
    seen = await store.prepare(fence(3), "r", asks)
    assert isinstance(seen["a"], Snapshot)
    assert isinstance(seen["c"], Snapshot)
    assert isinstance(seen["b"], StockCorrupt)
    assert f"seckill:{{b}}:{key}" in str(seen["b"])
    assert await dump(client, "seckill:{b}:*") == before


async def test_foreign_data_is_an_error_of_ours_not_of_python(store: StockStore, client: Any) -> None:
    """Bytes that are not text, and malformed orders and answers raise `StockCorrupt`."""
    await store.set_stock("default", fence(1), 5)
    await client.xadd("seckill:{default}:orders", {"something": "else"})
    with pytest.raises(StockCorrupt, match="orders"):
        await store.orders("default")
    for text in ("x", "1-1 x", "1-1 []", '1-1 {"outcome":"sold"}'):
        await client.hset("seckill:{default}:keys", "k", text)
        with pytest.raises(StockCorrupt, match="keys"):
            await prepare(store, "default", fence(1), "b", keys=["k"])
    await client.set("stock", b"\xff\xfe")
    with pytest.raises(StockCorrupt):
        await store.level("default")


async def test_a_buyers_key_is_never_taken_for_an_item(store: StockStore, client: Any) -> None:
    """An idempotency key that looks like a part of a key's name is not listed as an item."""
    await store.set_stock("phone", fence(1), 0)
    seen = await prepare(store, "phone", fence(1), "b")
    refused = Refused("x}:stock", Settled("sold_out", 1, None))
    await commit(store, "phone", fence(1), Batch("b", seen, [], [refused]))
    assert await store.items() == ["phone"]
    assert (await prepare(store, "phone", fence(1), "c", keys=["x}:stock"])).settled == {"x}:stock": refused.settled}


# -- the server --------------------------------------------------------------------------------------------------------


async def test_a_server_that_forgot_the_scripts(store: StockStore, client: Any) -> None:
    """A server forgets its scripts in a restart or a failover; that costs a second call and nothing else."""
    await store.set_stock("default", fence(1), 5)
    seen = await prepare(store, "default", fence(2), "b")
    await client.script_flush()
    await commit(store, "default", fence(2), batch(seen, 1))
    await client.script_flush()
    assert (await store.level("default")).stock == 4


async def test_a_connection_that_the_server_closed(store: StockStore, client: Any) -> None:
    """Connections that the server closed while they were idle (a restart, its `timeout`) are not used any more."""
    await store.set_stock("default", fence(1), 5)
    await asyncio.gather(*(store.level("default") for _ in range(8)))
    assert await client.client_kill_filter(_type="normal", skipme=True) > 1
    await eventually_async(client.client_list, "they are closed", until=lambda clients: len(clients) == 1)
    assert (await store.level("default")).stock == 5


async def test_a_server_without_memory_takes_nothing(store: StockStore, client: Any) -> None:
    """A server that is out of memory causes an error, and no batch is half-written."""
    await store.set_stock("default", fence(1), 5)
    seen = await prepare(store, "default", fence(2), "b")
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StockUnavailable, match="takes no writes"):
            await commit(store, "default", fence(2), batch(seen, 1))
        with pytest.raises(StockUnavailable):
            await store.ping()  # a plain PING succeeds
    finally:
        await client.config_set("maxmemory", "0")
    assert await store.level("default") == Level("default", 5, 0, 5)


async def test_a_replica_is_not_ready() -> None:
    """A read-only replica answers, but can't sell; `ping` reports that."""
    with Valkey() as primary, Valkey(options=["--replicaof", "127.0.0.1", str(primary.port)]) as replica:
        async with opened(primary.url) as (store, _):
            await store.set_stock("default", fence(1), 5)
            await store.ping()
        async with opened(replica.url) as (store, _):
            with pytest.raises(StockUnavailable, match="takes no writes"):
                await store.ping()
            with pytest.raises(StockUnavailable):
                await store.set_stock("default", fence(2), 5)


async def test_an_answer_that_does_not_come_is_an_error_in_time(valkey: Valkey) -> None:
    """A frozen store ends a call at its deadline, a lost connection at once; afterwards calls succeed again."""
    with Proxy(valkey.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}/0", timeout_s=1.5) as (store, _):
            await store.set_stock("default", fence(1), 5)
            valkey.pause()
            try:
                with pytest.raises(StockUnavailable, match="did not answer within 1.5 s"):
                    await store.level("default")
            finally:
                valkey.resume()
            proxy.cut()
            with pytest.raises(StockUnavailable, match="can't be reached"):
                await store.level("default")
            proxy.restore()
            assert (await store.level("default")).stock == 5


async def test_in_a_cluster(valkey_server: Valkey) -> None:
    """Items with a name sell in a Redis Cluster; the default item is refused there, with the reason."""
    with Valkey(options=["--cluster-enabled", "yes", "--cluster-port", str(free_port())]) as node:
        url = node.url.replace("redis://", "redis+cluster://").removesuffix("/0")
        async with opened(url) as (store, client):
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            ask = partial(client.execute_command, "CLUSTER", "INFO")
            await eventually_async(ask, "it is formed", LONG_S, until=lambda said: "cluster_state:ok" in str(said))
            with pytest.raises(ItemNotPossible, match="two hash slots"):
                await store.set_stock("default", fence(1), 5)
            await store.set_stock("phone", fence(1), 5)
            await store.set_stock("case", fence(1), 5)
            seen = await store.prepare(fence(2), "a", {sku: Ask() for sku in ("phone", "case", "nothing")})
            kinds = {sku: type(answer) for sku, answer in seen.items()}  # in any order
            assert kinds == {"phone": Snapshot, "case": Snapshot, "nothing": UnknownItem}
            both = {sku: Batch("a", one, [Sold(1)]) for sku, one in seen.items() if isinstance(one, Snapshot)}
            assert [type(ids) for ids in (await store.commit(fence(2), both)).values()] == [list, list]
            await client.delete("seckill:{case}:stock")
            await store.set_stock("phone", fence(2), 5, new_sale=True)
            of_one = await prepare(store, "phone", fence(2), "b", buyers=["ann"], keys=["k"])
            ids = await commit(store, "phone", fence(2), Batch("b", of_one, [Sold(2, "ann", "k")]))
            assert await store.level("phone") == Level("phone", 3, 2, 5, ids[0])
            assert [order.quantity for order in await store.orders("phone")] == [2]
            async with opened(url) as (other, _):  # as a command, whose first question this is
                assert await other.items() == ["phone"]
            await store.ping()


async def test_a_sale_without_a_layout_is_none_of_ours(store: StockStore, client: Any) -> None:
    """It was begun before there were layouts, so its records can't be read; an item that was put there by hand can."""
    await store.set_stock("default", fence(1), 5)
    await client.hdel("seckill:{default}:fence", "layout")
    with pytest.raises(StockCorrupt, match="unreleased.*layout 0"):
        await prepare(store, "default", fence(2), "b")
    await store.accept_loss("default")
    with pytest.raises(StockCorrupt, match="unreleased.*layout 0"):
        await prepare(store, "default", fence(2), "b")
    await client.set("seckill:{phone}:stock", 3)
    assert (await prepare(store, "phone", fence(2), "b")).stock == 3
    await client.set("seckill:{case}:stock", 3)
    await store.accept_loss("case")
    assert (await prepare(store, "case", fence(2), "b")).stock == 3


ODD = [("token", text) for text in ("odd", "5.5", "0x10", "1e400", "-1", " 5", "")]
ODD += [(field, text) for field in ("generation", "epoch", "last") for text in ("odd", "1.5")]


@pytest.mark.parametrize(("odd", "text"), [*ODD, ("source without a token", "another")])
async def test_an_odd_fence_is_its_items_trouble(store: StockStore, client: Any, odd: str, text: str) -> None:
    """An edited fence raises an error with its key; the other items of the same call are sold."""
    skus = ("bad", "good")
    asks = {sku: Ask() for sku in skus}
    for sku in skus:
        await store.set_stock(sku, fence(1), 10)
    decided_on = await store.prepare(fence(2), "b", asks)
    if odd == "source without a token":
        await client.hset("seckill:{bad}:fence", "source", text)
        await client.hdel("seckill:{bad}:fence", "token")
    else:
        await client.hset("seckill:{bad}:fence", odd, text)
    before = await client.hgetall("seckill:{bad}:fence")
    batches = {sku: batch(one, 1) for sku, one in decided_on.items() if isinstance(one, Snapshot)}
    written = await store.commit(fence(2), batches)
    assert isinstance(written["good"], list)
    seen = await store.prepare(fence(3), "r", asks)
    assert isinstance(seen["good"], Snapshot)
    fences = await store.inspect(skus)
    assert fences["good"] == fence(3)
    for answer in (written["bad"], seen["bad"], fences["bad"]):
        assert isinstance(answer, StockCorrupt)
        assert "seckill:{bad}:fence" in str(answer)
    with pytest.raises(StockCorrupt, match="fence"):
        await store.set_stock("bad", fence(4), 1)
    assert await client.hgetall("seckill:{bad}:fence") == before


async def test_an_odd_item_does_not_hide_that_orders_of_another_are_missing(store: StockStore, client: Any) -> None:
    """A call for several items answers each of them."""
    for sku in ("behind", "good", "odd"):
        await store.set_stock(sku, fence(1), 10)
        await sell(store, 2, 1, sku=sku)
    await client.xtrim("seckill:{behind}:orders", maxlen=0)
    await client.set("seckill:{odd}:orders", "not a stream")
    found = await store.inspect(["odd", "behind", "good"])
    assert {sku: type(answer) for sku, answer in found.items()} == {
        "odd": StockCorrupt,
        "behind": StockBehind,
        "good": Fence,
    }
    assert "seckill:{odd}:orders" in str(found["odd"])


@pytest.fixture
def sentinels() -> Iterator[SentinelSet]:
    with SentinelSet(valkey_binary()) as started:
        yield started


async def test_through_sentinel(sentinels: SentinelSet) -> None:
    """A Sentinel URL finds the primary, and the new one after a failover."""
    async with closing(open_redis(sentinels.url)) as store:
        await store.set_stock("phone", fence(1), 5)
        async with opened(sentinels.replicas[0].url) as (other, _):
            level = await eventually_async(lambda: other.level("phone"), "it is copied", LONG_S, despite=UnknownItem)
            assert level.stock == 5
        await asyncio.to_thread(sentinels.primary.kill)
        level = await eventually_async(
            lambda: store.set_stock("phone", fence(2), 4), "it failed over", LONG_S, despite=StockUnavailable
        )
        assert level.stock == 4


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
    """A URL that is no store's is a configuration error, at once."""
    with pytest.raises(ConfigurationError, match="not a store's URL"):
        open_redis(url)


async def test_a_new_sale_between_an_order_and_its_record(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is read first, and then how its orders stand: those that are gone by then were not sold."""
    async with opened(valkey.url) as (store, _):
        await store.set_stock("tv", fence(1), 9)
        seen = await prepare(store, "tv", fence(2), "b", holds=True)
        held = Begun(Record("", "a" * 32, OrderState.HELD, 1, "ann", due_ms=seen.now_ms + 9_000))
        await commit(store, "tv", fence(2), Batch("b", seen, begun=[held]))
        assert [one.state for one in await store.orders("tv")] == [OrderState.HELD]
        entries = await store.storage.page("tv", None, None, 10)
        await store.set_stock("tv", fence(3), 9, new_sale=True)
        monkeypatch.setattr(store.storage, "page", lambda *_: asyncio.sleep(0, entries))
        assert await store.orders("tv") == []
