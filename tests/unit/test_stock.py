"""Rules of the store that need a clock, or a hand, that no server offers: in memory."""

from typing import Any

import pytest

from app.errors import FenceRefused, HasOrders, StockChanged, StockCorrupt, StockNotAsExpected
from app.orders import TERMS, Ask, Settled, Snapshot, Terms
from app.stock import Batch, Fence, Refused, Sold
from app.stock.restock import UNITS_MAX, what_is_changed
from tests.harness.memory_store import MemoryServer, MemoryStockStore

OWN = Fence(5, "memory")
NO = Settled("limit_reached", 1, "ann")


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def look(store: MemoryStockStore, batch_id: str, **asked: Any) -> Snapshot:
    snapshot = (await store.prepare(OWN, batch_id, {"a": Ask(**asked)}))["a"]
    assert isinstance(snapshot, Snapshot)
    return snapshot


async def write(store: MemoryStockStore, seen: Snapshot, batch_id: str, **what: Any) -> Any:
    return (await store.commit(OWN, {"a": Batch(batch_id, seen, **what)}))["a"]


async def test_how_long_a_refusal_is_remembered(clock: Clock) -> None:
    """Just so long; and an order of that key counts for good, also if the store's clock is set back."""
    store = MemoryStockStore(MemoryServer(clock), refusal_ttl_s=60)
    await store.set_stock("a", OWN, 5)
    await write(store, await look(store, "1", keys=["k"]), "1", refused=[Refused("k", NO)])
    clock.now += 59.9
    assert (await look(store, "2", keys=["k"])).settled == {"k": NO}
    clock.now += 0.2
    seen = await look(store, "3", keys=["k"])
    assert seen.settled == {}
    await write(store, seen, "3", sold=[Sold(1, "ann", "k")])
    clock.now -= 30
    assert (await look(store, "4", keys=["k"])).settled["k"].outcome == "sold"
    await write(store, await look(store, "5", keys=["r"]), "5", refused=[Refused("r", NO)])
    await store.accept_loss("a")
    assert {*(await look(store, "6", keys=["k", "r"])).settled} == {"k"}


async def test_a_first_refusal_is_of_the_sale_that_begins_with_it(clock: Clock) -> None:
    """An item that was put on sale by hand has no generation until something is written."""
    server = MemoryServer(clock)
    store = MemoryStockStore(server)
    await store.set_stock("a", OWN, 5)
    server.items["a"].head = server.items["a"].head._replace(generation=0, sale=0)
    await write(store, await look(store, "1", keys=["k"]), "1", refused=[Refused("k", NO)])
    assert (await look(store, "2", keys=["k"])).settled == {"k": NO}


@pytest.mark.parametrize("guard", ["version", "compare"])
async def test_without_tokens_a_late_batch_is_refused_all_the_same(clock: Clock, guard: str) -> None:
    """Once it is known that it was not written; a fence has nothing to tell."""
    store = MemoryStockStore(MemoryServer(clock), guard)
    await store.set_stock("a", OWN, 5)
    batch = Batch("1", await look(store, "1"), [Sold(1)])
    assert await store.resolve(OWN, {"a": batch}) == {"a": None}
    assert isinstance((await store.commit(OWN, {"a": batch}))["a"], StockChanged | FenceRefused)
    assert (await store.inspect(["a"]))["a"] is None


async def test_units_that_were_sold_without_orders_keep_an_item(clock: Clock) -> None:
    """Somebody has set them by hand, and knows why."""
    server = MemoryServer(clock)
    store = MemoryStockStore(server)
    await store.set_stock("a", OWN, 5)
    server.items["a"].head = server.items["a"].head._replace(lucky=1)
    with pytest.raises(HasOrders):
        await store.remove("a", OWN)


async def test_an_operators_change_is_one_write_under_a_grant(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a batch is prepared between its read and its write, it is refused, and not tried again."""
    store = MemoryStockStore(MemoryServer(clock))
    await store.set_stock("a", OWN, 5)
    put = store.storage.put

    async def late(*what: Any) -> Any:
        monkeypatch.setattr(store.storage, "put", put)
        await look(store, "another")
        return await put(*what)

    monkeypatch.setattr(store.storage, "put", late)
    with pytest.raises(FenceRefused):
        await store.set_stock("a", OWN, 9)
    assert (await store.level("a")).stock == 5


@pytest.mark.parametrize("text", ['{"x":1}', '{"starts_at":"5"}', '{"ends_at":-1}', "[1]", "{", "5"])
@pytest.mark.parametrize("repair", [{"terms": dict.fromkeys(TERMS)}, {"new_sale": True}])
async def test_terms_that_are_not_ours(clock: Clock, text: str, repair: Any) -> None:
    """On foreign terms nothing is sold, and a restock keeps them; a new sale, or a full set of terms, replaces them."""
    server = MemoryServer(clock)
    store = MemoryStockStore(server)
    await store.set_stock("a", OWN, 5)
    server.items["a"].head = server.items["a"].head._replace(terms=text)
    assert isinstance((await store.prepare(OWN, "b", {"a": Ask()}))["a"], StockCorrupt)
    for how in ({}, {"add": True}, {"terms": {"limit_per_buyer": 2}}):
        with pytest.raises(StockCorrupt):
            await store.set_stock("a", OWN, 5, **how)
    assert server.items["a"].stock == 5
    assert (await store.set_stock("a", OWN, 5, **repair)).stock == 5
    assert (await look(store, "b")).terms == Terms()


@pytest.mark.parametrize("odd", ["-1", "[1e400]"])
@pytest.mark.parametrize("moment", [None, 2e9])
async def test_the_one_term_that_is_not_ours_is_replaced(clock: Clock, odd: str, moment: float | None) -> None:
    """A change of just that term is made, keeps the others, and the item sells on."""
    server = MemoryServer(clock)
    store = MemoryStockStore(server)
    await store.set_stock("a", OWN, 5)
    text = f'{{"ends_at":{odd},"limit_per_buyer":2}}'
    server.items["a"].head = server.items["a"].head._replace(terms=text)
    level = await store.set_stock("a", OWN, 0, add=True, terms={"ends_at": moment})
    assert (level.stock, level.terms) == (5, Terms(limit_per_buyer=2, ends_at=moment))
    assert (await store.log("a"))[0].before == {"stock": 5, "sold": 0, "limit_per_buyer": 2}
    await look(store, "b")


@pytest.mark.parametrize(
    ("stock", "how", "what"),
    [
        (0, {}, "stock"),
        (0, {"terms": {"paused": "tea"}}, "stock"),
        (3, {"add": True}, "stock"),
        (0, {"add": True, "terms": {"paused": "tea", "paused_texts": {}}}, "pause"),
        (0, {"add": True, "terms": {"paused": None}}, "resume"),
        (0, {"add": True, "terms": {"paused": None, "limit_per_buyer": 2}}, "terms"),
        (3, {"add": True, "new_sale": True}, "new sale"),
    ],
)
def test_a_restock_has_a_name_in_the_log(stock: int, how: Any, what: str) -> None:
    """That of what matters most."""
    assert what_is_changed(stock, how) == what


async def test_a_new_sale_forgets_as_many_orders_as_its_operator_has_seen(clock: Clock) -> None:
    """Neither more nor fewer; and no item has more units than a store can count, sold ones among them."""
    store = MemoryStockStore(MemoryServer(clock))
    await store.set_stock("a", OWN, 5)
    await write(store, await look(store, "1"), "1", sold=[Sold(1), Sold(1)])
    for orders in (0, 1, 3):
        with pytest.raises(HasOrders):
            await store.set_stock("a", OWN, 5, new_sale=True, forget_orders=orders)
    with pytest.raises(StockNotAsExpected):
        await store.set_stock("a", OWN, UNITS_MAX)
    assert (await store.set_stock("a", OWN, UNITS_MAX - 2)).initial == UNITS_MAX
    assert (await store.set_stock("a", OWN, 5, new_sale=True, forget_orders=2)).stock == 5
