"""The cashier gives back what is owed: each refund once, whatever becomes of the provider's answers and of itself."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import standardwebhooks
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.cashier import Cashier
from app.orders import (
    Cancel,
    Confirm,
    GivenBack,
    Hold,
    Order,
    OrderId,
    OrderState,
    Record,
    Refund,
    RefundState,
    RequestOutcome,
)
from app.orders.account import PROVIDER
from app.wiring import open_sale
from lab.bank import BAD_DAYS, Bank
from lab.servers import EtcdMember, Valkey
from tests.harness.asgi import serving
from tests.harness.receiver import SECRET
from tests.harness.shop import Counter, settings
from tests.harness.waiting import eventually_async

PRICE = 500


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    one = Bank()
    await one.open()
    yield one
    await one.close()


@asynccontextmanager
async def selling(etcd: EtcdMember, valkey: Valkey, url: str, **others: Any) -> AsyncIterator[Counter]:
    """Open a sale with a candidate for cashier."""
    own = {"audit_interval_s": 0, "refunds": url, "webhook_timeout_ms": 500, "refunds_per_minute": 1000, **others}
    async with open_sale(settings(etcd.endpoint, valkey.url, **own), with_auditor=True) as sale:
        yield Counter(sale)


async def set_stock(shop: Counter, units: int = 1000) -> None:
    await shop.sale.stock.set_stock("default", units, terms={"price": PRICE, "currency": "EUR"})


async def owed(shop: Counter, bank: Bank, ref: str, units: int = 1) -> OrderId:
    """Hold, give up, and pay: the money is owed."""
    order: OrderId = (await shop.submit(Hold(units, buyer=ref))).order
    await shop.submit(Cancel(*order))
    bank.take(ref, PRICE * units)
    await shop.submit(Confirm(*order, ref, PRICE * units, "EUR"))
    return order


async def paid(shop: Counter, bank: Bank, ref: str, units: int = 1) -> OrderId:
    """Hold, and pay."""
    order: OrderId = (await shop.submit(Hold(units, buyer=ref))).order
    bank.take(ref, PRICE * units)
    await shop.submit(Confirm(*order, ref, PRICE * units, "EUR"))
    return order


async def look(shop: Counter, order: OrderId) -> Order:
    found = await shop.sale.shop.order(order)
    assert found is not None
    return found


def cashier_of(shop: Counter) -> Cashier:
    assert shop.sale.cashier is not None
    return shop.sale.cashier


def settled(shop: Counter, order: OrderId) -> Any:
    async def is_settled() -> bool:
        return not (await look(shop, order)).record.needs_attention

    return is_settled


async def kinds(shop: Counter, order: OrderId) -> list[str]:
    return [str(one.kind) for one in await shop.sale.orders.history(await look(shop, order))]


async def test_what_is_owed_is_given_back_once(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """A late payment, an order that an operator refunds later, a part and some units: each is one refund."""
    async with selling(etcd, valkey, bank.url) as shop:
        await set_stock(shop)
        late = await owed(shop, bank, "pi_late")
        whole, part, units = [await paid(shop, bank, f"pi_{name}", 3) for name in ("whole", "part", "units")]
        await shop.submit(Refund(*whole, True, later=True))
        await shop.submit(Refund(*part, False, "pi_part", amount=200, message="a", later=True))
        await shop.submit(Refund(*units, True, units=2, message="a", later=True))
        for order in (late, whole, part, units):
            await eventually_async(settled(shop, order), f"{order} settled")
        back = {ref: payment.given_back for ref, payment in bank.payments.items()}
        assert back == {"pi_late": 500, "pi_whole": 1500, "pi_part": 200, "pi_units": 1000}
        assert all(len(payment.refunds) == 1 for payment in bank.payments.values())
        assert (await look(shop, whole)).state is OrderState.REFUNDED
        assert (await look(shop, part)).state is OrderState.CONFIRMED
        assert (await kinds(shop, late))[-3:] == ["refund_due", "refund_requested", "refunded"]
        assert not (await shop.sale.audit("default")).violations


async def test_a_bad_day_makes_no_second_refund(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """Whatever one of its first answers is, each refund is made once in the end, with one key."""
    days = iter(BAD_DAYS)
    bank.manner = lambda: next(days, "")
    async with selling(etcd, valkey, bank.url) as shop:
        await set_stock(shop)
        for order in [await owed(shop, bank, f"pi_{n}") for n in range(len(BAD_DAYS))]:
            await eventually_async(settled(shop, order))
    assert [len(payment.refunds) for payment in bank.payments.values()] == [1] * len(BAD_DAYS)
    assert len(set(bank.asked)) == len(BAD_DAYS) < len(bank.asked)


async def failed(shop: Counter, order: OrderId) -> Record:
    """Wait until a refund of the order has failed."""

    async def look_at_it() -> Record:
        return (await look(shop, order)).record

    return await eventually_async(
        look_at_it,
        "one has failed",
        until=lambda record: any(one.state is RefundState.FAILED for _, one in record.refunds),
    )


async def test_what_is_refused_waits_for_an_operator(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """A disputed payment can't be given back: it is tried once, with the reason, and again when an operator says so."""
    async with selling(etcd, valkey, bank.url) as shop:
        await set_stock(shop)
        bank.refuses.add("pi_1")
        order = await owed(shop, bank, "pi_1")
        [(_, one)] = (await failed(shop, order)).refunds
        assert "charge_disputed" in one.why
        await eventually_async(lambda: "didn't work" in "".join(cashier_of(shop).warnings))
        bank.refuses.clear()
        assert len(bank.asked) == 1
        told = await shop.sale.orders.retry(await look(shop, order), by="ann")
        assert told == {one.name: RequestOutcome.REQUESTED}
        await eventually_async(settled(shop, order))
        assert len(set(bank.asked)) == 2
        await eventually_async(lambda: not cashier_of(shop).warnings)


@pytest.mark.parametrize("more", [True, False])
async def test_a_store_from_a_backup_gives_nothing_back_twice(
    etcd: EtcdMember, valkey: Valkey, bank: Bank, more: bool
) -> None:
    """It knows nothing of the refund that was made since, and the provider has forgotten the key.

    Before the cashier comes to it something else may happen to the order: a second part is owed, too.
    """
    with redis.Redis.from_url(valkey.url) as client:
        async with selling(etcd, valkey, "") as shop:
            await set_stock(shop)
            order = await paid(shop, bank, "pi_1")
            await shop.submit(Refund(*order, False, "pi_1", amount=100, message="a", later=True))
            backup = {key: client.dump(key) for key in client.keys("*")}
        async with selling(etcd, valkey, bank.url) as shop:
            await eventually_async(settled(shop, order))
        client.flushall()
        for key, value in backup.items():
            client.restore(key, 0, value)
    bank._answers.clear()
    if more:
        async with selling(etcd, valkey, "") as shop:
            await shop.submit(Refund(*order, False, "pi_1", amount=50, message="b", later=True))
    async with selling(etcd, valkey, bank.url) as shop:
        await eventually_async(settled(shop, order))
        assert (await look(shop, order)).record.own_sums.given_back == (150 if more else 100)
    assert [one["amount"] for one in bank.payments["pi_1"].refunds] == ([100, 50] if more else [100])


@asynccontextmanager
async def shops_own(
    etcd: EtcdMember, valkey: Valkey, answer: Callable[[dict[str, Any]], tuple[int, str]]
) -> AsyncIterator[tuple[Counter, list[tuple[str, dict[str, Any]]]]]:
    """A sale whose shop makes the refunds itself, with what it was asked for: keys, and bodies."""
    got: list[tuple[str, dict[str, Any]]] = []

    async def take(request: Asked) -> JSONResponse:
        body = standardwebhooks.Webhook(SECRET).verify(await request.body(), dict(request.headers))
        got.append((request.headers["webhook-id"], body))
        status, outcome = answer(body["data"])
        return JSONResponse({"outcome": outcome}, status)

    with serving(Starlette(routes=[Route("/refunds", take, methods=["POST"])])) as url:
        async with selling(etcd, valkey, f"{url}/refunds", webhook_secret=SECRET) as shop:
            await set_stock(shop)
            yield shop, got


async def test_a_shop_that_makes_its_refunds_itself(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """It gets a signed request under a key that stays the same, answers that it will, and calls back."""
    statuses = itertools.chain([503], itertools.repeat(200))
    answers: Any = lambda data: (next(statuses), "accepted" if data["payment_ref"] == "pi_1" else "refunded")  # noqa: E731
    async with shops_own(etcd, valkey, answers) as (shop, got):
        first = await owed(shop, bank, "pi_1")
        await eventually_async(lambda: len(got) == 2)
        second = await owed(shop, bank, "pi_2")
        await eventually_async(settled(shop, second))
        assert (await look(shop, first)).record.own_sums.owed == 500
        await shop.submit(GivenBack(*first, "pi_1", PROVIDER, name=got[0][1]["data"]["refund_name"]))
        await eventually_async(lambda: cashier_of(shop).figures["waiting"] == 0)
        assert (await look(shop, first)).record.own_sums.given_back == 500
    one, again, other = got
    assert one[0] == again[0] != other[0]
    assert one[1]["type"] == "refund.requested"
    assert one[1]["data"]["order"] == str(first)
    assert (one[1]["data"]["amount"], one[1]["data"]["currency"]) == (500, "EUR")
