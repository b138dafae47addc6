"""Orders are found among others: each, once, in order, page by page, whatever is asked."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from app.errors import StockCorrupt
from app.orders import Answer, Cancel, Command, Confirm, Hold, Order, OrderId, Purchase
from app.sale import ATTENTION, FoundOrders, Rules, Wanted, find
from app.sale.worker import Worker
from app.stock import Fence
from app.telemetry.observer import Observer
from tests.harness.memory_store import MemoryServer, MemoryStockStore
from tests.harness.virtual import VirtualLock

AT_A, AT_B = ["ann", "bob", "cid"], ["dan", "eve", "fay"]  # `cid` has a line at the other item, behind `eve`
AS_AT_B = ["dan", "eve", "cid", "fay"]  # as this item alone shows them


class Damaged(MemoryStockStore):
    """A store in which an item can't be read."""

    odd = "odd"

    async def orders(self, sku: str, **how: Any) -> list[Order]:
        if sku == self.odd:
            raise StockCorrupt(sku)
        return await super().orders(sku, **how)

    async def paid_with(self, payment_ref: str, skus: Any) -> list[Order]:
        if self.odd in skus:
            raise StockCorrupt(self.odd)
        return await super().paid_with(payment_ref, skus)


class Desk:
    """A store with some orders, which have the names of their buyers, or of who was to be one."""

    def __init__(self) -> None:
        self.now = 1e9
        self.store = Damaged(MemoryServer(lambda: self.now))
        self.ids = dict[str, OrderId]()

    async def fill(self) -> "Desk":
        lock = VirtualLock()
        worker = Worker(cast(Any, lock), self.store, Rules(), Observer())

        async def do(command: Command) -> Answer:
            self.now += 1
            return await worker.queue.join(command, asyncio.get_running_loop().time() + 60)

        async def pay(name: str, ref: str) -> None:
            await do(Confirm(*self.ids[name], ref, 5, "EUR"))

        for sku in ("a", "b"):
            await self.store.set_stock(sku, Fence(1, "virtual"), 50)
        lock.token = 1
        wishes: dict[str, Command] = {
            "ann": Hold(1, "a", "Ann", ref="R-1"),
            "dan": Hold(1, "b", "dan", ref="r-2"),
            "bob": Purchase(1, "a", "Bob C7-55"),
            "eve": Hold(1, "b", "c77"),
            "cid": Hold(1, "a", "cid", ref="C7", lines=(("b", 2),)),
            "fay": Purchase(1, "b"),
        }
        for name, wish in wishes.items():
            self.ids[name] = cast(OrderId, (await do(wish)).order)
        await do(Cancel(*self.ids["dan"]))
        await pay("ann", "pi_A1")
        await pay("dan", "pi_D")
        await asyncio.gather(*worker._tasks)
        return self

    def names(self, orders: list[Order]) -> list[str]:
        """Return the names of orders."""
        by_id = {order: name for name, order in self.ids.items()}
        return [by_id[order.id] for order in orders]

    async def all_pages(self, page: Callable[[str | None], Any]) -> tuple[list[str], list[FoundOrders]]:
        """Return the names of the orders of all pages, and the pages."""
        pages = [await page(None)]
        while (after := pages[-1].next) is not None:
            pages.append(await page(after))
        return self.names([order for one in pages for order in one.orders]), pages


@pytest.fixture
async def desk() -> Desk:
    return await Desk().fill()


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, AT_A + AT_B),
        ({"state": "held"}, ["cid", "eve"]),
        ({"state": "confirmed"}, ["ann"]),
        ({"state": "sold"}, ["bob", "fay"]),
        ({"state": ATTENTION}, ["dan"]),
        ({"buyer": "Ann"}, ["ann"]),
        ({"buyer": "ann"}, []),
        ({"ref": "C7"}, ["cid"]),
        ({"ref": "C7", "state": "sold"}, []),
        ({"ref": "C7", "buyer": "cid"}, ["cid"]),
        ({"text": "c7"}, ["cid", "bob", "eve"]),  # what is just that comes first
        ({"text": "C77"}, ["eve"]),
        ({"text": "r-"}, ["ann", "dan"]),
        ({"text": "R-", "state": "confirmed"}, ["ann"]),
        ({"text": "PI_"}, ["ann", "dan"]),
        ({"text": "pi_D"}, ["dan"]),
        ({"text": "pi_D", "state": "held"}, []),
        ({"text": "55"}, ["bob"]),
        ({"text": "nobody"}, []),
    ],
)
async def test_what_is_asked_for_is_found(desk: Desk, wanted: dict[str, Any], names: list[str]) -> None:
    """All that is asked of it must be so; letters are the same in a text, large or small."""
    found = await find.find(desk.store, ["b", "a"], Wanted(**wanted))
    assert (desk.names(found.orders), found.next) == (names, None)


@pytest.mark.parametrize("skus", [["a", "b"], ["b"], ["a"]])
async def test_each_order_is_found_by_its_names(desk: Desk, skus: list[str]) -> None:
    """By its name, id, number, the head of its secret, and the names of its lines; not with a wrong secret."""
    lines = {
        name: cast(Order, await find.named(desk.store, order.name)).record.lines for name, order in desk.ids.items()
    }
    for name, order in desk.ids.items():
        here = [name] if order.sku in skus or any(line.sku in skus for line in lines[name]) else []
        head = f"{order.secret[:4]}-{order.secret[4:8]}".upper()
        texts = [order.name, str(order), order.number, order.secret[:8], head]
        texts += [OrderId(line.sku, line.number).name for line in lines[name]]
        for text in texts:
            found = await find.find(desk.store, skus, Wanted(text=text))
            assert desk.names(found.orders) == here, text
        for text in (order.name, str(order)):
            assert desk.names((await find.find(desk.store, skus, Wanted(number=text))).orders) == here
        wrong = f"{order.name}~{'0' * 32}"
        assert (await find.find(desk.store, skus, Wanted(number=wrong))).orders == []
        assert (await find.find(desk.store, skus, Wanted(text=wrong))).orders == []
        assert (await find.find(desk.store, skus, Wanted(text=order.secret[4:12]))).orders == []
        assert (await find.find(desk.store, skus, Wanted(number=order.name, buyer="?"))).orders == []


@pytest.mark.parametrize(("skus", "names"), [(["a", "b"], AT_A + AT_B), (["b"], AS_AT_B), (["a"], AT_A)])
async def test_pages_have_each_order_once(
    desk: Desk, skus: list[str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short they are, and however little a request looks at, none is left out, and each page says how far."""
    monkeypatch.setattr(find, "_PAGE", 1)
    some = Wanted(buyer="Bob C7-55")
    for of, expected in ((Wanted(), names), (some, [one for one in names if one == "bob"])):
        for limit in range(1, 6):
            for look_max in range(1, 7):
                page = partial(find.find, desk.store, skus, of, limit=limit, look_max=look_max)
                found, pages = await desk.all_pages(lambda after, page=page: page(after=after))  # type: ignore[misc]
                assert found == expected, (limit, look_max)
                assert max(len(one.orders) for one in pages) <= limit
                assert sum(one.looked for one in pages) == len(names)
                assert of is not some or max(one.looked for one in pages) <= look_max
                for one in pages:
                    assert (one.until is None) == (one.looked == 0)
    for odd in ("nonsense", f"other~{desk.ids['ann'].number}"):
        with pytest.raises(ValueError, match="not an order of item"):
            await find.find(desk.store, skus, Wanted(), after=odd)


async def test_the_last_page_says_so(desk: Desk) -> None:
    """Also if it is full; and items without orders cost as much as orders to look at."""
    assert (await find.find(desk.store, ["b"], Wanted(), limit=len(AS_AT_B) + 1)).next is None
    (full, rest) = (await desk.all_pages(lambda after: find.find(desk.store, ["a"], Wanted(), after=after, limit=3)))[1]
    assert (len(full.orders), rest.orders) == (3, [])
    assert (await find.find(desk.store, ["a", "none"], Wanted())).until == 1e9 + 5  # as `cid` came
    empty = [f"none-{number}" for number in range(9)]
    _, pages = await desk.all_pages(lambda after: find.find(desk.store, empty, Wanted(), after=after, look_max=3))
    assert len(pages) == 3


@pytest.mark.parametrize("limit", range(1, 8))
async def test_newest_first(desk: Desk, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all items; a page begins behind the last order of the one before, also if others have come meanwhile."""
    skus = ["a", "b", "none"]
    newest = list(reversed(desk.ids))
    found, pages = await desk.all_pages(lambda after: find.newest(desk.store, skus, Wanted(), after=after, limit=limit))
    assert found == newest
    assert [len(one.orders) for one in pages] == [len(newest[at : at + limit]) for at in range(0, 6, limit)]
    assert all(find.is_newest(one.next) for one in pages[:-1])
    texts = await desk.all_pages(
        lambda after: find.newest(desk.store, skus, Wanted(text="c7"), after=after, limit=limit)
    )
    assert texts[0] == ["cid", "eve", "bob"]
    with pytest.raises(ValueError, match="not an order of items here"):
        await find.newest(desk.store, skus, Wanted(), after="newest a~1")
    for most, there in ((10, True), (9, False)):  # six orders, a line, and a look at each item
        monkeypatch.setattr(find, "LOOK_MAX", most)
        assert (await find.newest(desk.store, skus, Wanted()) is not None) == there


async def test_an_item_that_cannot_be_read_hides_no_other(desk: Desk) -> None:
    """It is named, also among the newest; alone it is an error, and a file has all orders or none."""
    skus = ["a", "odd", "b"]
    await desk.store.set_stock("odd", Fence(1, "virtual"), 1)
    page = await find.find(desk.store, skus, Wanted())
    assert (desk.names(page.orders), page.unread) == (AT_A + AT_B, ["odd"])
    latest = await find.newest(desk.store, skus, Wanted())
    assert latest is not None
    assert (desk.names(latest.orders), latest.unread) == (list(reversed(desk.ids)), ["odd"])
    assert desk.names((await find.find(desk.store, skus, Wanted(text="55"))).orders) == ["bob"]
    with pytest.raises(StockCorrupt):
        await find.find(desk.store, ["odd"], Wanted())
    with pytest.raises(StockCorrupt, match="odd"):
        find.refuse_gaps(page)
    find.refuse_gaps(await find.find(desk.store, ["a"], Wanted()))


async def test_a_payment_among_many_items(desk: Desk) -> None:
    """It is looked for at all of them."""
    many = [*(f"0-{number}" for number in range(250)), "b"]
    found = await find.find(desk.store, many, Wanted(text="pi_D"), look_max=1)
    assert desk.names(found.orders) == ["dan"]
    assert (await find.find(desk.store, ["a", "b"], Wanted(text="pi_D"), after=desk.ids["fay"].name)).orders == []
