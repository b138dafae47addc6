"""The SQL stores have features of their own: guards without tokens, lost commits, row locks, rights, connections."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pymysql
import pytest
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import (
    ConfigurationError,
    StockBehind,
    StockChanged,
    StockNotAsExpected,
    StockUnavailable,
    UnknownItem,
)
from app.orders import Answer, Ask, Outcome, Purchase, Settled
from app.stock import Level, Refused, Sold, StockStore, registry
from app.stock.bulkhead import Bulkhead
from app.stock.sql.schema import METADATA
from app.stock.sql.storage import SqlStorage
from app.stock.sql.sweeper import Sweeper
from fencelock.mysql import client as mysql_client
from lab.servers import EtcdMember, MariaDB, Postgres
from lab.torture.proxy import Proxy
from tests.contract.store_contract import commit, decided, fence, held_for, paid, prepare, resolve, run_out, sell
from tests.harness.servers import ask, connected, optional
from tests.harness.shop import shop
from tests.harness.waiting import WITHIN_S, eventually_async

OPTIMISTIC = ["version", "timestamp"]
GUARDS = ["fence", *(pytest.param(one, marks=pytest.mark.slow) for one in OPTIMISTIC)]
# How statements are recognized on the wire: the command's number before a query, which COMMITTED lacks.
COMMIT = b"\x03COMMIT"
TAKE = b"UPDATE seckill_items SET stock"
WRITE_ORDERS = b"INSERT INTO seckill_journal"


@pytest.fixture
def server(mariadb: MariaDB) -> MariaDB:
    return mariadb


@pytest.fixture
def own_server() -> Iterator[MariaDB]:
    """Start a server that a test may harm."""
    with optional(MariaDB) as server:
        yield server


@asynccontextmanager
async def opened(
    server: MariaDB, guard: str = "fence", *, port: int | None = None, login: str | None = None, **options: Any
) -> AsyncIterator[StockStore]:
    """Open a store; `port`: of a proxy; `login`: "user:password" of another user."""
    login = login or f"{server.user}:{server.password}"
    url = f"mysql://{login}@127.0.0.1:{port or server.port}/{server.database}"
    store = registry.connect(url, guard, **options)
    try:
        yield store
    finally:
        await store.close()


def count(server: MariaDB, what: str) -> int:
    """Return a counter of the server."""
    [(_, number)] = ask(server, "SHOW GLOBAL STATUS LIKE %s", args=(what,))
    return int(number)


async def until_one_waits(server: MariaDB) -> None:
    """Wait until a session waits for a row lock."""
    await eventually_async(lambda: count(server, "Innodb_row_lock_current_waits") == 1)


@asynccontextmanager
async def transaction(server: MariaDB) -> AsyncIterator[Callable[[str], Coroutine[Any, Any, None]]]:
    """Run statements in another session's transaction, and roll back at the end."""
    connection = connected(server)

    async def run(statement: str) -> None:
        with connection.cursor() as cursor:
            await asyncio.to_thread(cursor.execute, statement)

    with contextlib.closing(connection):
        yield run


# -- what the guards see ---------------------------------------------------------------------------------------------


async def two_decide_at_once(store: StockStore, first: Sold, second: Sold, *, stock: int = 5) -> bool:
    """Commit two batches that were decided on the same snapshot; return whether the second was written, too."""
    await store.set_stock("default", fence(1), stock, new_sale=True)
    seen = [await prepare(store, "default", fence(2), batch_id) for batch_id in ("a", "b")]
    assert seen[0] == seen[1]
    await commit(store, "default", fence(2), decided(seen[0], first, batch_id="a"))
    try:
        await commit(store, "default", fence(2), decided(seen[1], second, batch_id="b"))
    except StockChanged:
        return False
    return True


@pytest.mark.parametrize("guard", OPTIMISTIC)
async def test_within_a_tick_a_timestamp_does_not_see_a_write(server: MariaDB, guard: str) -> None:
    """Ann gets two units with a limit of one: both were decided when she had none. A version refuses the second."""
    async with opened(server, guard) as store:
        both = Sold(1, "ann"), Sold(1, "ann")
        if guard == "version":
            assert not await two_decide_at_once(store, *both)
            units = 1
        else:
            await eventually_async(lambda: two_decide_at_once(store, *both), "both fall into one second")
            units = 2
        assert (await prepare(store, "default", fence(3), "c", buyers=["ann"])).bought == {"ann": units}
        level = await store.level("default")
        assert (level.stock, level.lucky, level.initial) == (5 - units, units, 5)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE seckill_items SET stock = stock - 10",
        "UPDATE seckill_items SET held = held - 3",
        "UPDATE seckill_journal SET stock = stock + 1",
        "UPDATE seckill_journal SET quantity = -1",
        "UPDATE seckill_records SET state = 'payed'",
        "UPDATE seckill_records SET state = 'confirmed'",  # with the deadline of a hold
        "UPDATE seckill_records SET due_ms = NULL",
    ],
)
async def test_the_tables_are_the_last_defence(server: MariaDB, statement: str) -> None:
    """No statement, of whatever program, makes a number fall below 0, an event that loses a unit, or an odd state."""
    async with opened(server) as store:
        await store.set_stock("default", fence(1), 9)
        seen = await prepare(store, "default", fence(2), "b", holds=True)
        await commit(store, "default", fence(2), decided(seen, held=[held_for(seen, "ann", 2)]))
        with pytest.raises((pymysql.err.DataError, pymysql.err.IntegrityError, pymysql.err.OperationalError)):
            ask(server, statement)
        level = await store.level("default")
        assert (level.stock, level.held) == (7, 2)


async def test_within_a_tick_an_order_is_compared_all_the_same(server: MariaDB) -> None:
    """A change of an order is written only if that has the events that it had, and a payment belongs to one order."""
    async with opened(server, "timestamp") as store:
        await store.set_stock("default", fence(1), 9)
        seen = await prepare(store, "default", fence(2), "b", holds=True)
        held = [held_for(seen, "ann", 2), held_for(seen, "bob", 3)]
        ids = await commit(store, "default", fence(2), decided(seen, held=held))
        ann, bob = (one.record._replace(number=number) for one, number in zip(held, ids, strict=True))
        asked: dict[str, Any] = {"orders": ids, "holds": True}
        seen = await prepare(store, "default", fence(3), "c", **asked)
        await commit(store, "default", fence(3), decided(seen, batch_id="c", changes=[paid(ann, "p")]))
        before, journal = await store.level("default"), await store.journal("default")
        for changes in ([run_out(ann)], [paid(bob, "p")], [run_out(bob), paid(bob, "q")]):
            now = await prepare(store, "default", fence(4), "d", **asked)
            basis = replace(now.basis, records=seen.basis.records)  # as an earlier read had them
            write = decided(replace(now, basis=basis), Sold(1, "cid"), batch_id="d", changes=changes)
            with pytest.raises(StockChanged):
                await commit(store, "default", fence(4), write)
        assert (await store.level("default"), await store.journal("default")) == (before, journal)


async def test_within_a_tick_nothing_is_oversold_all_the_same(server: MariaDB) -> None:
    """Units are subtracted from the current stock: none that is gone is sold, whatever the clock says."""
    async with opened(server, "timestamp") as store:
        assert not await two_decide_at_once(store, Sold(3), Sold(3))
        assert (await store.level("default")).lucky == 3
        await eventually_async(lambda: two_decide_at_once(store, Sold(3), Sold(2)), "both fall into one second")
        level = await store.level("default")
        assert (level.stock, level.lucky) == (0, 5)
        assert sum(order.quantity for order in await store.orders("default")) == 5


async def test_within_a_tick_a_key_gets_one_order_all_the_same(server: MariaDB) -> None:
    """A unique key refuses the second order of an idempotency key, and nothing of its batch is written."""
    async with opened(server, "timestamp") as store:
        assert not await two_decide_at_once(store, Sold(1, "ann", "k"), Sold(2, "ann", "k"))
        (order,) = await store.orders("default")
        assert (order.quantity, order.key) == (1, "k")
        seen = await prepare(store, "default", fence(3), "c", buyers=["ann"], keys=["k"])
        assert (seen.stock, seen.bought, seen.settled["k"].order) == (4, {"ann": 1}, order.id)


@pytest.mark.parametrize("guard", OPTIMISTIC)
async def test_a_hand_that_counts_is_noticed(server: MariaDB, guard: str) -> None:
    """An operator's change is noticed if the guard's column changed, too; else units are subtracted from it."""
    counting = {"version": "version = version + 1", "timestamp": "changed_at = changed_at + 1"}
    async with opened(server, guard) as store:
        await store.set_stock("default", fence(1), 10)
        seen = await prepare(store, "default", fence(2), "b")
        ask(server, f"UPDATE seckill_items SET stock = 25, {counting[guard]}")
        with pytest.raises(StockChanged, match="changed to 25"):
            await commit(store, "default", fence(2), decided(seen, 1))
        seen = await prepare(store, "default", fence(2), "b")
        ask(server, "UPDATE seckill_items SET stock = 20")
        await commit(store, "default", fence(2), decided(seen, 1))
        assert (await store.level("default")).stock == 19


@pytest.mark.parametrize("guard", OPTIMISTIC)
async def test_any_grant_will_do_without_tokens(server: MariaDB, guard: str) -> None:
    """Without tokens fences are neither checked nor written; after the fence, `unfence` begins a new epoch."""
    async with opened(server) as fenced, opened(server, guard) as store:
        await fenced.set_stock("default", fence(1), 10)
        await sell(fenced, 41, 1)
        await store.unfence("default")
        for token, source in ((0, "none"), (7, "redlock"), (-1, "x")):
            seen = await prepare(store, "default", fence(token, source), "b")
            await commit(store, "default", fence(token, source), decided(seen, 1, batch_id=f"b{token}"))
        assert await store.inspect(["default", "other"]) == {"default": None, "other": None}
        orders = await store.orders("default")
        assert [(order.token, order.epoch) for order in orders] == [(41, 0), (0, 1), (0, 1), (0, 1)]


async def test_an_item_that_was_put_there_by_hand(server: MariaDB) -> None:
    """A name and a stock are enough for an item; the sum at the start is not known, then."""
    async with opened(server) as store:
        assert await store.items() == []
        ask(server, "INSERT INTO seckill_items (sku, stock) VALUES ('phone', 3)")
        assert len(await sell(store, 1, 1, 1, sku="phone")) == 2
        level = await store.level("phone")
        assert (level.stock, level.lucky, level.initial) == (1, 2, None)


async def test_a_clock_that_was_set_back(server: MariaDB) -> None:
    """Orders keep the order of their writes, and a later sale is later, whatever the server's clock says."""
    async with opened(server) as store:
        await store.set_stock("default", fence(1), 10)
        before = await sell(store, 2, 1)
        first = store.marks()["default"]
        ask(server, "UPDATE seckill_items SET generation = 2 * generation, last_entry = 2 * last_entry")
        ask(server, "UPDATE seckill_journal SET entry = 2 * entry")
        after = await sell(store, 3, 1, 1)
        assert [one.record.number for one in await store.orders("default")][1:] == after
        assert before[0] < after[0] < after[1]
        second = store.marks()["default"]
        await store.set_stock("default", fence(4), 10, new_sale=True)
        await sell(store, 4, 1)
        assert first < second < store.marks()["default"]


async def test_numbers_and_names_beyond_the_columns(server: MariaDB) -> None:
    """A value that doesn't fit its column raises a clear error, before anything is sent."""
    async with opened(server) as store:
        most = 10**15 - 1
        for stock in (-1, most + 1):
            with pytest.raises(ValueError, match=f"a stock must be from 0 to .*, not {stock}"):
                await store.set_stock("default", fence(1), stock)
        assert (await store.set_stock("default", fence(1), most)).initial == most
        await sell(store, 2, 5)
        for units, add in ((most, False), (5, True)):
            with pytest.raises(StockNotAsExpected, match="item 'default' can't have that many units"):
                await store.set_stock("default", fence(3), units, add=add)
        assert (await store.set_stock("default", fence(3), most - 5)).initial == most
        assert (await store.set_stock("default", fence(3), most, new_sale=True)).initial == most
        for names in ({"buyers": ["ä" * 511]}, {"keys": ["k" * 1021]}, {"payments": ["p" * 1021]}):
            with pytest.raises(ValueError, match="1020 bytes"):
                await prepare(store, "default", fence(4), "b", **names)


async def test_forgotten_refusals_are_removed(server: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired refusals are deleted in the background, once a minute at most, after others are written."""
    monkeypatch.setattr("app.stock.sql.sweeper._KEYS_EVERY_S", 0.0)
    async with opened(server, refusal_ttl_s=0.001) as store:
        await store.set_stock("default", fence(1), 0)
        tokens = itertools.count(2)

        async def refuse() -> int:
            number = next(tokens)
            seen = await prepare(store, "default", fence(number), f"b{number}", keys=[f"{number}"])
            refused = (Refused(f"{number}", Settled("sold_out", 1, None)),)
            await commit(store, "default", fence(number), decided(seen, batch_id=f"b{number}", refused=refused))
            return int(ask(server, "SELECT COUNT(*) FROM seckill_keys")[0][0])

        for _ in range(10):
            await refuse()
        await eventually_async(refuse, "they are deleted", until=lambda left: left < 5)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("lost", ["answer", "request"])
async def test_a_batch_in_doubt_with_holds_is_resolved(server: MariaDB, guard: str, lost: str) -> None:
    """A batch of holds and changes whose answer is lost is found by its events; one that never came never is."""
    with Proxy(server.port) as proxy:
        async with opened(server, guard, port=proxy.port) as store:
            await store.set_stock("default", fence(1), 9)
            seen = await prepare(store, "default", fence(2), "b", holds=True)
            new = [held_for(seen, "ann", 2), held_for(seen, "bob")]
            ids = await commit(store, "default", fence(2), decided(seen, held=new))
            numbers = ids
            seen = await prepare(store, "default", fence(3), "c", orders=numbers, holds=True)
            ann, bob = (seen.records[number] for number in numbers)
            batches = {
                "c": decided(seen, 1, batch_id="c", held=[held_for(seen, "cid")], changes=[paid(ann, "p")]),
                "d": decided(seen, batch_id="d", changes=[run_out(bob)]),
            }
            for batch_id, batch in batches.items():
                seen = await prepare(store, "default", fence(3), batch_id)
                write = replace(batch, seen=replace(seen, basis=replace(batch.seen.basis, head=seen.basis.head)))
                (proxy.lose_answer_to if lost == "answer" else proxy.lose_request)(COMMIT)
                with pytest.raises(StockUnavailable):
                    await commit(store, "default", fence(3), write)
                assert await asyncio.to_thread(proxy.struck.wait, WITHIN_S)
                with pytest.raises(StockUnavailable):
                    await resolve(store, "default", fence(3), write)
                proxy.restore()
                found = await resolve(store, "default", fence(3), write)
                if lost == "answer":
                    assert found is not None
                    assert [
                        one.record.number for one in await store.orders("default") if one.batch_id == batch_id
                    ] == found
                    assert len(found) == len(batch.begun) + len(batch.sold)
                    assert await commit(store, "default", fence(3), write) == found
                else:
                    assert found is None
                    answer = await store.commit(fence(3), {"default": write})
                    assert not isinstance(answer["default"], list)
            level = await store.level("default")
            assert (level.stock, level.held, level.lucky) == ((5, 1, 3) if lost == "answer" else (6, 3, 0))


# -- a new sale ------------------------------------------------------------------------------------------------------

SOLD = ("seckill_journal", "seckill_buyers", "seckill_keys")
HOLDS = ("seckill_records", "seckill_payments", "seckill_holders")


def sell_long_ago(server: MariaDB, orders: int) -> None:
    """Insert so many orders of the item "default", each with its buyer and its key."""
    numbers = f"FROM seq_1_to_{orders}"
    ask(
        server,
        "DO 0",
        "INSERT INTO seckill_journal SELECT 'default', sale, seq, seq, 1, 'sold', 1, seq, NULL, MD5(seq), -1, 0, 1, "
        f"NULL, 'one', 1, 0, 'old' {numbers}, seckill_items WHERE sku = 'default'",
        f"INSERT INTO seckill_buyers SELECT 'default', sale, seq, 1 {numbers}, seckill_items WHERE sku = 'default'",
        'INSERT INTO seckill_keys SELECT \'default\', sale, seq, CONCAT(seq, \' {"outcome":"sold","quantity":1}\'), '
        f"NULL {numbers}, seckill_items WHERE sku = 'default'",
        f"UPDATE seckill_items SET last_entry = {orders}, lucky = {orders} WHERE sku = 'default'",
    )


def rows(server: MariaDB) -> int:
    return sum(ask(server, f"SELECT COUNT(*) FROM {table} WHERE sku = 'default'")[0][0] for table in (*SOLD, *HOLDS))


async def test_a_new_sale_waits_for_no_order_to_be_deleted(server: MariaDB) -> None:
    """A new sale forgets all orders at once, even while one is locked; the old rows are deleted later."""
    async with opened(server) as store:
        await store.set_stock("default", fence(1), 5)
        sell_long_ago(server, 5000)
        [(sale,)] = ask(server, "SELECT sale FROM seckill_items WHERE sku = 'default'")
        old = (await store.orders("default", limit=1))[0]
        async with transaction(server) as run:
            await run(f"SELECT * FROM seckill_journal WHERE sku = 'default' AND sale = {sale} AND entry = 7 FOR UPDATE")
            await store.set_stock("default", fence(2), 3, new_sale=True)
            assert await store.level("default") == Level("default", 3, 0, 3)
            assert await store.orders("default") == []
            assert await store.order(old.sku, old.record.number) is None
            seen = await prepare(store, "default", fence(3), "b", buyers=["7"], keys=["7"])
            assert (seen.bought, seen.settled) == ({}, {})
            await commit(store, "default", fence(3), decided(seen, Sold(1, "7", "7")))
            assert rows(server) > 5000

        async def swept() -> bool:
            await prepare(store, "default", fence(4), "look")  # a delayed sweeper begins with the next batch
            return rows(server) == 3

        await eventually_async(swept)
        assert [one.buyer for one in await store.orders("default")] == ["7"]


@pytest.mark.slow
async def test_what_a_sweeper_left_the_next_one_sweeps(server: MariaDB) -> None:
    """An operator's command that begins a new sale ends at once; an instance that sells deletes the old rows."""
    async with opened(server) as command:
        await command.set_stock("default", fence(1), 5)
        seen = await prepare(command, "default", fence(1), "a")
        held = held_for(seen, "ann")
        (number,) = await commit(command, "default", fence(1), decided(seen, batch_id="a", held=[held]))
        record = held.record._replace(number=number)
        seen = await prepare(command, "default", fence(1), "b")
        await commit(
            command, "default", fence(1), decided(seen, held=[held_for(seen, "bob")], changes=[paid(record, "p")])
        )
        assert all(ask(server, f"SELECT 1 FROM {table}") for table in HOLDS)
        sell_long_ago(server, 20_000)
        await command.set_stock("default", fence(2), 3, new_sale=True)
    assert rows(server) > 0
    async with opened(server) as store:
        assert rows(server) > 0
        await prepare(store, "default", fence(3), "b")

        async def swept() -> bool:
            return rows(server) == 0

        await eventually_async(swept)


async def test_rows_of_earlier_sales_are_removed_in_parts(server: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item is removed whatever its earlier sales have left: no statement deletes more than a thousand rows."""
    async with opened(server) as command:
        await command.set_stock("default", fence(1), 5)
        sell_long_ago(server, 3000)
        await command.set_stock("default", fence(2), 3, new_sale=True)
    async with opened(server) as store:
        some, calls = Sweeper.sweep_some, itertools.count(1)

        async def counted(self: Sweeper, *args: Any, **more: Any) -> bool:
            next(calls)
            return await some(self, *args, **more)

        monkeypatch.setattr(Sweeper, "sweep_some", counted)
        await store.remove("default", fence(3))
        assert rows(server) == 0
        assert next(calls) > 9000 // 1000


@pytest.mark.parametrize("by_hand", [False, True], ids=["removed", "by hand"])
async def test_a_sweeper_that_comes_late_spares_the_current_sale(server: MariaDB, by_hand: bool) -> None:
    """It may have noted an item long ago, which was removed and is on sale again."""
    async with opened(server, timeout_s=WITHIN_S) as store:
        for sku in ("default", "x", "last"):
            await store.set_stock(sku, fence(1), 5)
        sell_long_ago(server, 10)
        [(sale,)] = ask(server, "SELECT sale FROM seckill_items WHERE sku = 'default'")
        async with transaction(server) as run:
            await run(f"SELECT * FROM seckill_journal WHERE sku = 'default' AND sale = {sale} AND entry = 7 FOR UPDATE")
            for sku in ("default", "x", "last"):  # swept in this order
                await store.set_stock(sku, fence(1), 5, new_sale=True)
            await until_one_waits(server)
            if by_hand:
                ask(server, "DELETE FROM seckill_items WHERE sku = 'x'")
            else:
                await store.remove("x", fence(1))
            await store.set_stock("x", fence(1), 5)
            await sell(store, 2, Sold(1, "ann", "k"), sku="x")

        async def swept() -> bool:
            return bool(ask(server, "SELECT 1 FROM seckill_items WHERE sku = 'last' AND swept = sale"))

        await eventually_async(swept)
        assert [one.buyer for one in await store.orders("x")] == ["ann"]
        seen = await prepare(store, "x", fence(3), "c", buyers=["ann"], keys=["k"])
        assert (seen.bought, list(seen.settled)) == ({"ann": 1}, ["k"])


async def test_an_order_with_the_number_of_a_lost_one_is_another(server: MariaDB) -> None:
    """A restored store gives a new order the number of a lost one: the difference is noticed."""
    async with opened(server) as store, opened(server) as another:
        await store.set_stock("default", fence(1), 5)
        for token in (2, 3):
            await sell(store, token, 1)
            another.expect("default", store.marks()["default"])
        await prepare(store, "default", fence(4), "b")
        for order in await store.orders("default"):
            _, number, secret = order.id

            def replace(by: str, entry: str = number) -> None:
                args = (by, entry)
                ask(server, "UPDATE seckill_journal SET secret = %s WHERE entry = %s", args=args)
                ask(server, "UPDATE seckill_items SET last_tag = LEFT(SHA1(%s), 8) WHERE last_entry = %s", args=args)

            replace(32 * "0")
            with pytest.raises(StockBehind):
                await prepare(another, "default", fence(5), "b")
            replace(secret)
        await prepare(another, "default", fence(6), "b")


# -- answers that get lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", GUARDS)
async def test_a_commit_that_arrives_late_is_waited_for(server: MariaDB, guard: str) -> None:
    """A batch stays in doubt while its transaction has the row lock, and is resolved once that has ended."""
    with Proxy(server.port) as proxy:
        async with opened(server, guard, port=proxy.port, timeout_s=1.5) as slow, opened(server, guard) as other:
            await other.set_stock("default", fence(1), 5)
            write = decided(await prepare(slow, "default", fence(2), "b"), 1)
            proxy.stall_at(COMMIT)
            with pytest.raises(StockUnavailable, match=r"did not answer within 1\.5 s|timed out"):
                await commit(slow, "default", fence(2), write)
            with pytest.raises(StockUnavailable, match="Lock wait timeout|did not answer"):
                await resolve(other, "default", fence(3), write)
            proxy.restore()
            found = await eventually_async(lambda: resolve(other, "default", fence(3), write), despite=StockUnavailable)
            assert found == [order.record.number for order in await other.orders("default")]
            assert len(found) == 1


@pytest.mark.parametrize("guard", GUARDS)
async def test_a_write_that_arrives_late_does_nothing(server: MariaDB, guard: str) -> None:
    """A batch was resolved as not written before its first statement arrived: the late write is refused."""
    with Proxy(server.port) as proxy:
        async with opened(server, guard, port=proxy.port, timeout_s=5) as slow, opened(server, guard) as other:
            await slow.set_stock("default", fence(1), 5)
            write = decided(await prepare(slow, "default", fence(2), "b"), 1)
            proxy.stall_at(TAKE)
            committing = asyncio.create_task(slow.commit(fence(2), {"default": write}))
            assert await asyncio.to_thread(proxy.struck.wait, WITHIN_S)
            assert await resolve(other, "default", fence(3), write) is None
            proxy.restore()
            assert not isinstance((await committing)["default"], list)
            assert await other.orders("default") == []
            level = await other.level("default")
            assert (level.stock, level.lucky) == (5, 0)


# -- rows that others have -------------------------------------------------------------------------------------------


async def test_a_row_that_stays_locked_is_an_error_in_time(server: MariaDB) -> None:
    """A call that waits too long for a row lock fails; when the row is free, the same connections work."""
    async with opened(server, "version") as store:
        await store.set_stock("default", fence(1), 5)
        seen = await prepare(store, "default", fence(2), "b")
        async with transaction(server) as run:
            await run("SELECT * FROM seckill_items FOR UPDATE")
            began = time.monotonic()
            with pytest.raises(StockUnavailable, match="Lock wait timeout"):
                await commit(store, "default", fence(2), decided(seen, 1))
            assert time.monotonic() - began < WITHIN_S
            assert (await store.level("default")).stock == 5
        await commit(store, "default", fence(2), decided(seen, 1))


async def test_a_member_of_a_cluster_is_not_ready() -> None:
    """Galera certifies writes by row and not by read: a decrement by one member overwrites another's."""
    options = ["--wsrep-on=ON", "--wsrep-provider=none", "--binlog-format=ROW"]  # alone, but says that it is a member
    with optional(lambda: MariaDB(options=options)) as member:
        async with opened(member) as store:
            await store.ping()
            with pytest.raises(StockUnavailable, match=r"a member of a cluster \(Galera\)"):
                await store.ensure_lasting()


async def test_a_probe_does_not_wait_for_others(server: MariaDB) -> None:
    """With all connections in use `ping` reports at its own deadline that the store is unavailable."""
    async with opened(server, connections=1, timeout_s=60) as store:
        await store.set_stock("default", fence(1), 5)
        await store.ask_sender("default", "a wish")
        async with transaction(server) as run:
            await run("SELECT * FROM seckill_outbox FOR UPDATE")
            asking = asyncio.create_task(store.ask_sender("default", "another", instead_of="a wish"))
            await until_one_waits(server)
            with pytest.raises(StockUnavailable, match=r"no connection .* was free within 0\.2 s"):
                await store.ping(timeout_s=0.2)
            assert not asking.done()
        assert await asking
        await store.ping()


async def test_readers_do_not_stop_the_sale(server: MariaDB) -> None:
    """Nor does the sale stop them: each has connections of its own."""
    async with opened(server, connections=2) as store:
        assert isinstance(store.storage, SqlStorage)
        await store.set_stock("default", fence(1), 5)
        async with store.storage._readers.call(5):
            await sell(store, 2, 1)
        async with store.storage._sale.call(5):
            assert (await store.level("default")).lucky == 1


async def test_the_victim_of_a_deadlock_writes_all_the_same(server: MariaDB) -> None:
    """The victim of a deadlock has written nothing, so the batch is written again."""
    async with opened(server, "version", timeout_s=60) as store:
        seen = {}
        for sku in ("a", "b"):
            await store.set_stock(sku, fence(1), 5)
            seen[sku] = await prepare(store, sku, fence(2), "x")
        # Nothing is left to be swept, which may be what waits.
        await eventually_async(lambda: not ask(server, "SELECT sku FROM seckill_items WHERE swept < sale"))
        ask(server, "CREATE TABLE ballast (number INT PRIMARY KEY)")
        async with transaction(server) as run:
            await run("SELECT * FROM seckill_items WHERE sku = 'b' FOR UPDATE")
            # The server spares the transaction that has written more; nobody else waits for a row of this table.
            await run("INSERT INTO ballast VALUES " + ", ".join(f"({number})" for number in range(100)))
            write = {sku: decided(one, 1, batch_id="x") for sku, one in seen.items()}
            committing = asyncio.create_task(store.commit(fence(2), write))
            await until_one_waits(server)  # this session has a, and waits for b
            before = count(server, "Innodb_deadlocks")
            await run("SELECT * FROM seckill_items WHERE sku = 'a' FOR UPDATE")
            assert count(server, "Innodb_deadlocks") == before + 1
            assert not committing.done()
        assert [len(ids) for ids in (await committing).values() if isinstance(ids, list)] == [1, 1]
        assert [(await store.level(sku)).lucky for sku in ("a", "b")] == [1, 1]


async def test_names_that_nobody_sells_cost_a_statement(server: MariaDB) -> None:
    """A batch of 500 items that strangers have invented is an UPDATE and a SELECT, as one of a single item is."""
    async with opened(server, timeout_s=30) as store:
        await store.set_stock("default", fence(1), 5)
        asks = {f"zz{number}": Ask(["ann"], ["k"], holds=True) for number in range(500)}
        before = [count(server, f"Com_{what}") for what in ("update", "select")]
        found = await store.prepare(fence(2), "b", asks)
        after = [count(server, f"Com_{what}") for what in ("update", "select")]
        assert {type(one) for one in found.values()} == {UnknownItem}
        assert [more - less for more, less in zip(after, before, strict=True)] == [1, 1]


# -- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_answer_that_does_not_come_is_an_error_in_time(own_server: MariaDB) -> None:
    """A frozen server ends a call at its deadline; afterwards calls succeed again."""
    async with opened(own_server) as patient, opened(own_server, timeout_s=0.3, connections=2) as store:
        await patient.set_stock("default", fence(1), 5)
        own_server.pause()

        async def is_silent() -> bool:
            with contextlib.suppress(StockUnavailable):
                await store.ping(timeout_s=0.2)
                return False
            return True

        await eventually_async(is_silent)  # not all of its threads stop at once
        try:
            calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                lambda: store.level("default"),
                lambda: store.ping(timeout_s=0.2),
                lambda: prepare(store, "default", fence(2), "b"),
            ]
            began = time.monotonic()
            answers = await asyncio.gather(*(call() for call in calls * 3), return_exceptions=True)
            assert time.monotonic() - began < WITHIN_S
            assert {type(answer) for answer in answers} == {StockUnavailable}
        finally:
            own_server.resume()
        level = await eventually_async(lambda: store.level("default"), despite=StockUnavailable)
        assert level.stock == 5


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("marker", [COMMIT, WRITE_ORDERS], ids=["commit", "orders"])
async def test_a_connection_that_goes_silent_in_a_transaction(server: MariaDB, guard: str, marker: bytes) -> None:
    """The silent connection's rows stay locked: others sell within a TTL (twice a call's time) and 2 s."""
    timeout_s = 2.0
    async with opened(server, guard, timeout_s=60) as patient:
        await patient.set_stock("default", fence(1), 50)  # it makes the tables
    with Proxy(server.port) as proxy:
        async with (
            opened(server, guard, timeout_s=timeout_s) as other,
            opened(server, guard, port=proxy.port, timeout_s=timeout_s) as store,
        ):
            await sell(other, 2, 1)
            snapshot = await prepare(store, "default", fence(3), "silent")
            proxy.swallow_at(marker)
            silent = time.monotonic()
            with pytest.raises(StockUnavailable):
                await commit(store, "default", fence(3), decided(snapshot, Sold(1), batch_id="silent"))
            assert proxy.struck.is_set()
            tokens = itertools.count(4)
            await eventually_async(lambda: sell(other, next(tokens), 1), "others sell", despite=StockUnavailable)
            assert time.monotonic() < silent + 2 * timeout_s + 4 * WITHIN_S
            # The same store works over another connection.
            await eventually_async(lambda: sell(store, next(tokens), 1), "it sells", despite=StockUnavailable)


async def test_a_table_that_is_lost_is_not_made_anew(server: MariaDB) -> None:
    """A table lost in mid-sale raises an error with its name: an empty one in its place would lose the sale."""
    async with opened(server) as store:
        await store.set_stock("default", fence(1), 5)
        await sell(store, 2, 1)
        tables = ask(server, "SHOW TABLES")
        for (table,) in tables:
            ask(server, f"RENAME TABLE {table} TO elsewhere")
            with pytest.raises(StockUnavailable, match=table):
                await store.ping()
            if table in ("seckill_items", "seckill_records", *SOLD):
                with pytest.raises(StockUnavailable, match=table):
                    await sell(store, 3, Sold(1, buyer="ann", key="k"))
            else:  # without holds a sale costs no statement about them
                seen = await prepare(store, "default", fence(3), "b3", buyers=["ann"], keys=["k"])
                assert seen.held == 0
            assert len(ask(server, "SHOW TABLES")) == len(tables)
            ask(server, f"RENAME TABLE elsewhere TO {table}")
            await store.ping()
        await sell(store, 4, 1)
        assert (await store.level("default")).stock == 3


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS)
async def test_a_read_only_server_is_not_ready(own_server: MariaDB, guard: str) -> None:
    """A read-only server answers, but can't sell; `ping` reports that. The same holds without the right to write."""
    ask(
        own_server,
        "CREATE USER clerk@'127.0.0.1' IDENTIFIED BY 'x'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON seckill.* TO clerk@'127.0.0.1'",
        "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'x'",
        "GRANT SELECT ON seckill.* TO reader@'127.0.0.1'",
    )
    async with opened(own_server, guard, login="clerk:x") as store:
        await store.set_stock("default", fence(1), 5)
        await store.ping()
        ask(own_server, "SET GLOBAL read_only = 1")
        with pytest.raises(StockUnavailable, match="read-only"):
            await store.ping()
        with pytest.raises(StockUnavailable, match="read-only"):
            await store.set_stock("default", fence(2), 5)
        assert (await store.level("default")).stock == 5
        ask(own_server, "SET GLOBAL read_only = 0")
        await store.ping()
    async with opened(own_server, guard, login="reader:x") as store:
        assert (await store.level("default")).stock == 5
        with pytest.raises(StockUnavailable, match="INSERT.* denied to user 'reader'"):
            await store.ping()


async def test_without_the_right_to_create_tables(server: MariaDB) -> None:
    """The error names the missing right while there are no tables; tables that another user made are used."""
    ask(
        server,
        "CREATE OR REPLACE USER clerk@'127.0.0.1' IDENTIFIED BY 'x'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON seckill.* TO clerk@'127.0.0.1'",
    )
    async with opened(server, login="clerk:x") as clerk, opened(server) as store:
        for attempt in (clerk.level("default"), clerk.ping(), clerk.set_stock("default", fence(1), 5)):
            with pytest.raises(StockUnavailable, match="CREATE command denied to user 'clerk'"):
                await attempt
        await store.ping()
        await clerk.set_stock("default", fence(1), 5)
        await sell(clerk, 2, 1)


async def test_concurrent_first_users_make_the_tables(server: MariaDB) -> None:
    """Eight stores begin at once on an empty database, and make the tables."""
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(server, timeout_s=60)) for _ in range(8)]
        await asyncio.gather(*(store.set_stock(f"item-{n}", fence(1), n) for n, store in enumerate(stores)))
        assert [(await stores[0].level(sku)).stock for sku in await stores[1].items()] == list(range(8))


@pytest.mark.parametrize("start", [pytest.param(MariaDB, marks=pytest.mark.slow), Postgres])
async def test_a_start_that_was_cut_is_made_up_for(start: Callable[[], MariaDB | Postgres]) -> None:
    """An index whose statement was lost is made at the next start."""
    with optional(start) as server, Proxy(server.port) as path:
        path.lose_request(b"CREATE INDEX")
        cut = registry.connect(server.url.replace(f":{server.port}", f":{path.port}"), "fence")
        with pytest.raises(StockUnavailable):
            await cut.set_stock("default", fence(1), 5)
        await cut.close()
        store = registry.connect(server.url, "fence")
        await store.set_stock("default", fence(1), 5)
        assert isinstance(store.storage, SqlStorage)

        async def indexes(connection: AsyncConnection) -> set[str | None]:
            return await connection.run_sync(
                lambda sync: {i["name"] for t in METADATA.tables for i in inspect(sync).get_indexes(t)}
            )

        wanted = {index.name for table in METADATA.tables.values() for index in table.indexes}
        assert wanted <= await store.storage.server.call(indexes, Bulkhead(1))
        await store.close()


async def test_close_leaves_no_connection(server: MariaDB) -> None:
    """`close` closes the connections in use and the pooled ones; a later call fails with the reason."""
    [(first,)] = ask(server, "SELECT CONNECTION_ID()")

    def connections() -> int:
        """Return how many connections have been opened since, without this query's, and are still open."""
        since = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID > %s AND ID <> CONNECTION_ID()"
        [(count,)] = ask(server, since, args=(first,))
        return int(count)

    async with opened(server, connections=3, timeout_s=60) as store:
        await store.set_stock("default", fence(1), 5)
        await asyncio.gather(*(store.level("default") for _ in range(20)))
        assert 0 < connections() <= 3
        async with transaction(server) as run:
            await run("SELECT * FROM seckill_items FOR UPDATE")
            reading = asyncio.create_task(prepare(store, "default", fence(2), "b"))
            await until_one_waits(server)
            await store.close()
            with pytest.raises(StockUnavailable):
                await reading
    with pytest.raises(StockUnavailable, match="closed"):
        await store.level("default")
    await eventually_async(lambda: connections() == 0)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://host/db",
        "postgres://host/db",
        "postgres://user:hun/ter2@host/db",
        "mysql://user:hun/ter2@host/db",
        "mysql://user:hunter2@host/db?colour=red",
    ],
)
def test_an_odd_url_is_refused_without_being_quoted(url: str) -> None:
    """Any part of a malformed URL could be the password."""
    with pytest.raises(ConfigurationError, match="not a (MySQL|PostgreSQL|store's) URL") as refusal:
        registry.connect(url, "fence")
    assert "ter2" not in str(refusal.value)


def test_a_missing_driver_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    monkeypatch.setattr(mysql_client, "asyncmy", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sqlalchemy\[asyncio\]' asyncmy"):
        registry.connect("mysql://user:password@host/database", "version")


# -- the sale ----------------------------------------------------------------------------------------------------------


def counted(answers: list[Any]) -> Counter[str]:
    return Counter(answer.outcome.value if isinstance(answer, Answer) else repr(answer) for answer in answers)


PATIENT: dict[str, Any] = {"purchase_timeout_ms": 60_000}


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["fence", "version"])
async def test_a_server_that_is_killed_keeps_what_buyers_were_told(
    etcd: EtcdMember, own_server: MariaDB, guard: str
) -> None:
    """The server is killed and restarted in mid-sale: buyers wait, and every buyer who heard "sold" has an order."""
    async with shop(etcd.endpoint, own_server.url, guard=guard, **PATIENT) as one:
        await one.set_stock("default", 10_000)
        told: list[str] = []
        done = False

        async def keep_buying(number: int) -> None:
            while not done:
                answer = await one.submit(Purchase(buyer=f"b{number}"))
                assert answer.outcome is Outcome.SOLD
                told.append(answer.order)

        async def sold_more_than(count: int) -> None:
            await eventually_async(lambda: len(told) > count, "they sell", 8 * WITHIN_S)

        buying = asyncio.gather(*(keep_buying(number) for number in range(20)))
        for _ in range(3):
            await sold_more_than(len(told) + 50)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
        await sold_more_than(len(told) + 50)
        done = True
        await buying
        audit = await one.audit("default")
        assert (audit.lucky, audit.orders, audit.violations) == (len(told), len(told), [])
        assert {order.id for order in await one.orders("default", limit=100_000)} == set(told)
