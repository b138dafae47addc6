"""An audit follows each order and each payment: histories that can't be are named, in Redis and in MariaDB."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import redis

from app.audit import Audit, audit
from app.orders import Ask, EventKind, OrderChange, OrderState, Record, Units
from app.stock import Batch, Begun, Fence, StockStore, registry
from lab.servers import MariaDB, Valkey
from tests.harness.servers import ask, optional

HELD, CONFIRMED, EXPIRED, CANCELLED, REFUNDED = list(OrderState)[2:]
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

    async def write(self, at: int, kind: EventKind, units: tuple[int, int, int] = (0, 0, 0), **more: Any) -> None:
        """Write one change of an order; `number`: of the event, if not the next one; `facts`."""
        await self.write_all((at, kind, units, more))

    async def write_all(self, *changes: tuple[int, EventKind, tuple[int, int, int], dict[str, Any]]) -> None:
        """Write changes in one batch."""
        made = list[OrderChange]()
        for at, kind, units, more in changes:
            fields = {"facts": {}, "number": None} | more
            facts, number = fields.pop("facts"), fields.pop("number")
            before = self.orders[at]
            after = before._replace(events=before.events + 1, **fields)
            one = OrderChange(before, after, kind, facts, Units(*units))
            if number is not None:
                one = one._replace(after=one.after._replace(events=number))
            made.append(one)
            self.orders[at] = one.after
        await self._commit(changes=made)

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


class Step(NamedTuple):
    """A change of an order: which of the three, its event, the units that move, and facts and fields."""

    at: int
    kind: EventKind
    units: tuple[int, int, int] = (0, 0, 0)
    more: Mapping[str, Any] = {}


def sums(paid: int = 0, given_back: int = 0, owed: int = 0) -> dict[str, Any]:
    return {"currency": None, "paid": paid, "given_back": given_back, "owed": owed, "disputed": 0}


def paid(at: int, ref: str) -> Step:
    facts = {"payment_ref": ref, "amount": 5, "changes": [{"currency": None, "paid": 5}], "sums": [sums(5)]}
    return Step(at, EventKind.CONFIRMED, (0, -2, 2), {"state": CONFIRMED, "facts": facts})


def refund(at: int, ref: str, state: str, kind: EventKind, **facts: Any) -> Step:
    """An event of the one refund of a payment."""
    one = {"name": f"of {ref}", "state": state, "amount": 5}
    about = {"about": "payment", "payment_ref": ref, "refunds": [one]}
    return Step(at, kind, more={"facts": about | facts})


def owed(at: int, ref: str) -> Step:
    """A second payment, which has to go back."""
    changes = [{"currency": None, "paid": 5, "owed": 5}]
    return refund(at, ref, "due", EventKind.REFUND_DUE, amount=5, changes=changes, sums=[sums(10, 0, 5)])


def given_back(at: int, ref: str, **facts: Any) -> Step:
    changes = [{"currency": None, "given_back": 5, "owed": -5}]
    about = {"amount": 5, "changes": changes, "sums": [sums(10, 5, 0)]} | facts
    return refund(at, ref, "given", EventKind.REFUNDED, **about)


EXPIRES = Step(0, EventKind.EXPIRED, (2, -2, 0), {"state": EXPIRED})
CANCELS = Step(0, EventKind.CANCELLED, (2, -2, 0), {"state": CANCELLED})
MISMATCH = {"payment_ref": "p", "amount": 1, "changes": [{"currency": None, "paid": 1}], "sums": [sums(1)]}
WRONG = Step(0, EventKind.AMOUNT_MISMATCH, more={"facts": MISMATCH})
EXTENDS = Step(0, EventKind.EXTENDED, more={"facts": {"pay_by": 9e9}})
PLANTED: dict[str, tuple[list[Step], str]] = {
    "expires twice": ([EXPIRES, EXPIRES], "expired, which can't come when it is expired"),
    "confirmed after it was cancelled": ([CANCELS, paid(0, "p")], "confirmed, which can't come when it is cancelled"),
    "extended after it was over": ([EXPIRES, EXTENDS], "extended, which can't come when it is expired"),
    "cancelled after it was paid": ([paid(0, "p"), CANCELS], "cancelled, which can't come when it is confirmed"),
    "an event is missing": (
        [Step(0, EventKind.EXTENDED, (0, 0, 0), dict(EXTENDS.more) | {"number": 4})],
        "event 2 is missing",
    ),
    "an event is there twice": (
        [EXTENDS, Step(0, EventKind.EXTENDED, (0, 0, 0), dict(EXTENDS.more) | {"number": 2})],
        "extended is its event 2, and it has had that one",
    ),
    "a payment of two orders": ([paid(1, "p"), paid(0, "p")], "payment 'p' is another order's"),
    "a payment is owed by two orders": ([paid(1, "p"), paid(0, "q"), owed(0, "p")], "payment 'p' is another order's"),
    "two payments count": ([paid(0, "p"), paid(0, "q")], "payment 'q' counts, and another one did"),
    "a refund is owed after it was given": (
        [
            *(paid(0, "p"), owed(0, "q"), given_back(0, "q")),
            refund(0, "q", "due", EventKind.REFUND_DUE, changes=[], sums=[sums(10, 5, 0)]),
        ],
        "refund 'of q' is due, and was given",
    ),
    "a refund was asked for and never owed": (
        [paid(0, "p"), refund(0, "p", "asked", EventKind.REFUND_REQUESTED, changes=[], sums=[sums(5)])],
        "refund 'of p' is asked, and was not there",
    ),
    "a payment is given back that nobody made": (
        [paid(0, "p"), given_back(0, "q")],
        "payment 'q' is in refunded, and was never announced",
    ),
    "a wrong payment is owed by nobody": ([WRONG, CANCELS], "payment 'p' is of a wrong amount, and owed by nobody"),
}


@pytest.mark.parametrize("what", PLANTED)
async def test_what_can_not_be_is_named(books: Books, what: str) -> None:
    """Numbers that add up do not hide it: the sentence has the order."""
    steps, said = PLANTED[what]
    for at, kind, units, more in steps:
        await books.write(at, kind, units, **more)
    found = (await books.audit()).violations
    assert [one for one in found if one.startswith(f"{books.name(0)}: ") and said in one], found
    assert not [one for one in found if "add up" in one or "at the start" in one]


async def test_money_that_does_not_add_up(books: Books) -> None:
    """An event tells sums to which what was told before does not add up: a refund that was told twice, say."""
    for one in (paid(0, "p"), owed(0, "q"), given_back(0, "q", sums=[sums(10, 10, 0)])):
        await books.write(*one[:3], **one.more)
    said = f"event 4 of {books.name(0)} tells sums to which its money does not add up"
    assert said in (await books.audit()).violations


async def test_units_that_a_late_payment_does_not_take(books: Books) -> None:
    """A late payment takes units that are left, and not those that the hold had."""
    await books.write(*EXPIRES[:3], **EXPIRES.more)
    await books.write(*paid(0, "p")[:3], **paid(0, "p").more)
    assert f"event 3 of {books.name(0)} moves other units than confirmed does" in (await books.audit()).violations


async def test_an_order_that_never_began(books: Books) -> None:
    """Its first event is gone: what comes then comes of nothing."""
    await books.write(*EXPIRES[:3], **EXPIRES.more)
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


async def test_facts_that_are_not_ours(books: Books) -> None:
    """An entry that nobody can make sense of is a violation, and no end of the audit."""
    await books.write(0, EventKind.EXTENDED, facts={"pay_by": "soon"})
    await books.write(0, EventKind.AMOUNT_MISMATCH, facts={"payment_ref": "p", "amount": 1})
    said = (await books.audit()).violations
    assert said == [f"event {n} of {books.name(0)} says what we don't write" for n in (2, 3)]
