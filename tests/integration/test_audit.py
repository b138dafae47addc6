"""An audit reads the journal, the numbers and the records of a real store: see tests/unit/test_ledger.py."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis

from app.audit import Audit, audit
from app.orders import Ask, EventKind, OrderChange, OrderState, Record, Units
from app.orders.facts import NO_FACTS, Facts
from app.stock import Batch, Begun, Fence, StockStore, registry
from lab.servers import MariaDB, Valkey
from tests.harness.servers import ask, optional

HELD, _, EXPIRED, _, REFUNDED = list(OrderState)[2:]
LOST = "is held, and the store has lost its end: nobody will give its units back"


@pytest.fixture(scope="module", params=[Valkey, pytest.param(MariaDB, marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Valkey | MariaDB]:
    with optional(request.param) as one:
        yield one


class Books:
    """Writes what a decision never would: three holds of two units each, and then changes of them."""

    token = 1  # grows from test to test, as the store remembers it

    def __init__(self, server: Any, store: StockStore) -> None:
        self.server, self.store = server, store
        self.orders: list[Record] = []

    @property
    def _fence(self) -> Fence:
        return Fence(self.token, "test")

    async def begin(self) -> None:
        await self.store.set_stock("tv", self._fence, 10, new_sale=True)
        now_ms = (await self._prepare()).now_ms
        held = [
            Record("", f"{n}" * 32, HELD, 2, f"buyer {n}", pay_by_ms=now_ms + 60_000 + n, due_ms=now_ms + 90_000 + n)
            for n in range(3)
        ]
        numbers = await self._commit(begun=[Begun(one) for one in held])
        self.orders = [one._replace(number=number) for one, number in zip(held, numbers, strict=True)]

    async def write(
        self,
        at: int,
        kind: EventKind,
        units: tuple[int, int, int] = (0, 0, 0),
        facts: Facts = NO_FACTS,
        **fields: Any,
    ) -> None:
        """Write one change of an order."""
        before = self.orders[at]
        self.orders[at] = after = before._replace(events=before.events + 1, **fields)
        await self._commit(changes=[OrderChange(before, after, kind, facts, Units(*units))])

    async def _prepare(self) -> Any:
        Books.token += 1
        buyers = [one.buyer for one in self.orders if one.buyer]
        asks = {"tv": Ask(buyers, orders=[one.number for one in self.orders], holds=True)}
        return (await self.store.prepare(self._fence, f"b{self.token}", asks))["tv"]

    async def _commit(self, **what: Any) -> list[str]:
        seen = await self._prepare()
        batch = Batch(f"b{self.token}", seen, **what)
        answer = (await self.store.commit(self._fence, {"tv": batch}))["tv"]
        assert isinstance(answer, list), answer
        return answer

    async def audit(self) -> Audit:
        return await audit(await self.store.level("tv"), self.store)

    def name(self, at: int) -> str:
        return f"order {self.orders[at].id_of('tv').name}"

    def by_hand(self, in_redis: Callable[[Any], object], in_sql: str, *args: Any) -> None:
        if isinstance(self.server, MariaDB):
            ask(self.server, in_sql, args=args)
            return
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            in_redis(client)


@pytest.fixture
async def books(server: Valkey | MariaDB) -> AsyncIterator[Books]:
    store = registry.connect(server.url, "fence")
    try:
        one = Books(server, store)
        await one.begin()
        assert (await one.audit()).violations == []
        yield one
    finally:
        await store.close()


async def test_an_order_that_never_began(books: Books) -> None:
    """Its first event is gone: what comes then comes of nothing."""
    await books.write(0, EventKind.EXPIRED, (2, -2, 0), state=EXPIRED)
    number = books.orders[0].number
    gone = "DELETE FROM seckill_journal WHERE entry = %s"
    books.by_hand(lambda client: client.xdel("seckill:{tv}:orders", number), gone, number)
    found = (await books.audit()).violations
    assert f"{books.name(0)}: expired is its event 2, and event 1 is missing" in found
    assert f"{books.name(0)}: expired, which can't come when it is nothing yet" in found


async def test_a_hold_whose_end_is_lost(books: Books) -> None:
    """The store forgets when units go back: of a hold beside others that are to end later, and of the last one."""
    await books.write(0, EventKind.EXTENDED, facts={"pay_by": 1.0}, pay_by_ms=1_000, due_ms=2_000)
    assert (await books.audit()).violations == []  # it is given back by the next batch
    first, due = books.orders[0].number, "seckill:{tv}:due"
    in_sql = "UPDATE seckill_records SET due_ms = %s WHERE number = %s"
    books.by_hand(lambda client: client.zrem(due, first), in_sql, 10**15, first)
    assert (await books.audit()).violations == [f"{books.name(0)} {LOST}"]
    if isinstance(books.server, Valkey):  # MariaDB lets no hold be without an end
        books.by_hand(lambda client: client.delete(due), "")
        assert (await books.audit()).violations == [f"{books.name(0)} {LOST}"]


async def test_a_hold_that_is_none_by_its_record(books: Books) -> None:
    """The event by which it ended is gone, or never came."""
    await books.write(0, EventKind.EXTENDED, facts={"pay_by": 1.0}, pay_by_ms=1_000, due_ms=2_000)
    first, text = books.orders[0], books.orders[0]._replace(state=REFUNDED).to_text()

    def in_redis(client: Any) -> None:
        client.hset("seckill:{tv}:records", first.number, text)
        client.zrem("seckill:{tv}:due", first.number)

    in_sql = "UPDATE seckill_records SET record = %s, state = 'refunded', due_ms = NULL WHERE number = %s"
    books.by_hand(in_redis, in_sql, text, first.number)
    assert (await books.audit()).violations == [f"{books.name(0)} is refunded, and held by its events"]
