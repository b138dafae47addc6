"""The cashier gives back what is owed: each refund once, whatever becomes of the provider's answers and of itself."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import standardwebhooks
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.cashier import Cashier, connect
from app.cashier.provider import Became, Wish
from app.errors import ConfigurationError
from app.orders import Cancel, Confirm, EventKind, Hold, Order, OrderId, OrderState, Refund, RequestOutcome
from app.orders.record import Request
from app.payments.reconcile import MovementKind
from app.wiring import open_sale
from lab.cents.bank import BAD_DAYS, Bank
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


async def test_a_second_cashier_makes_no_second_refund(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """The first one has asked, and is gone before it notes the answer; the next one asks for the same refund."""
    asked = asyncio.Event()

    def manner() -> str:
        if not asked.is_set():
            asked.set()
            return "late"
        return ""

    bank.manner = manner
    async with selling(etcd, valkey, bank.url) as shop:
        await set_stock(shop)
        order = await owed(shop, bank, "pi_1")
        await asyncio.wait_for(asked.wait(), 20)
    async with selling(etcd, valkey, bank.url) as shop:
        await eventually_async(settled(shop, order))
        assert await kinds(shop, order) == ["held", "cancelled", "refund_due", "refund_requested", "refunded"]
    assert len(bank.payments["pi_1"].refunds) == 1


@pytest.mark.parametrize("then", ["waits", "closes"])
async def test_an_answer_that_breaks_off_keeps_no_connection(then: str) -> None:
    """Its outcome is unknown, and the connection is closed at once: a hundred of them would be all that there are."""
    ended = asyncio.Event()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        if then == "closes":
            writer.write_eof()
        while await reader.read(1024):
            pass
        writer.close()
        ended.set()

    async with await asyncio.start_server(half, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider = connect(f"stripe://sk_test_bank@127.0.0.1:{port}", secrets=(), timeout_s=0.5)
        wish = Wish(OrderId("default", "1-0", "s" * 32), Request("pi_1", "pi_1", 3, None, "EUR"))
        assert (await provider.refund(wish, again=False)).became is Became.UNKNOWN
        await asyncio.wait_for(ended.wait(), 20)
        await provider.close()


async def test_stripe_may_have_forgotten_the_key(bank: Bank) -> None:
    """A cashier that takes over looks for the refund first: after a day its key is no longer known."""
    bank.take("pi_1", 500)
    wish = Wish(OrderId("default", "1-0", "s" * 32), Request("pi_1", "pi_1", 3, 200, "EUR"))
    provider = connect(bank.url, secrets=(), timeout_s=5)
    assert (await provider.refund(wish, again=False)).became is Became.DONE
    bank._answers.clear()
    assert (await provider.refund(wish, again=True)).became is Became.DONE
    await provider.close()
    assert len(bank.payments["pi_1"].refunds) == 1


async def test_stripes_list_is_read_to_its_end(bank: Bank) -> None:
    """Page by page, each charge and each refund once, in the minor unit of its currency; what failed is not there."""
    for n in range(5):
        bank.take(f"pi_{n}", 500 + n, "JPY" if n == 4 else "EUR")
    for n in range(3):
        bank.give_back(f"pi_{n}", 100)
    bank.fail("pi_2")
    provider: Any = connect(bank.url, secrets=(), timeout_s=5)
    found = [line async for line in provider.movements(0.0)]
    await provider.close()
    charges = [(one.payment_ref, one.amount, one.currency) for one in found if one.kind is MovementKind.CHARGE]
    assert charges == [(f"pi_{n}", 500 + n, "JPY" if n == 4 else "EUR") for n in range(5)]
    assert [(one.payment_ref, one.amount) for one in found if one.kind is MovementKind.REFUND] == [
        ("pi_0", 100),
        ("pi_1", 100),
    ]


async def test_what_is_refused_waits_for_an_operator(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """A disputed payment can't be given back: it is tried once, with the reason, and again when an operator says so."""
    async with selling(etcd, valkey, bank.url) as shop:
        await set_stock(shop)
        bank.refuses.add("pi_1")
        order = await owed(shop, bank, "pi_1")

        async def failed() -> bool:
            return (await look(shop, order)).record.failed == ("pi_1",)

        await eventually_async(failed)
        events = await shop.sale.orders.history(await look(shop, order))
        assert "charge_disputed" in events[-1].facts["why"]
        await eventually_async(lambda: "didn't work" in "".join(cashier_of(shop).warnings))
        bank.refuses.clear()
        assert len(bank.asked) == 1
        assert await shop.sale.orders.retry(await look(shop, order), by="ann") == {"pi_1": RequestOutcome.REQUESTED}
        await eventually_async(settled(shop, order))
        assert len(set(bank.asked)) == 2
        await eventually_async(lambda: not cashier_of(shop).warnings)


async def test_a_wrong_key_is_nobody_elses_fault(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """No refund fails for it: they wait, and the operator is told."""
    async with selling(etcd, valkey, bank.url.replace("sk_test_bank", "sk_test_other")) as shop:
        await set_stock(shop)
        order = await owed(shop, bank, "pi_1")
        await eventually_async(lambda: "is the key" in "".join(cashier_of(shop).warnings))
        assert (await look(shop, order)).record.failed == ()


async def test_no_more_than_so_many_a_minute(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """The limit holds; what is beyond it waits."""
    async with selling(etcd, valkey, bank.url, refunds_per_minute=2) as shop:
        await set_stock(shop)
        orders = [await owed(shop, bank, f"pi_{n}") for n in range(4)]
        await eventually_async(lambda: len(bank.asked) == 2)
        later = await owed(shop, bank, "pi_later")
        await eventually_async(lambda: cashier_of(shop).figures["waiting"] == 3)
        assert len(bank.asked) == 2

        async def wait() -> int:
            return sum([(await look(shop, order)).record.needs_attention for order in (*orders, later)])

        await eventually_async(wait, until=lambda count: count == 3)
        assert len(bank.asked) == 2


async def test_a_shop_that_makes_its_refunds_itself(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """It gets a signed request under a key that stays the same, answers that it will, and calls back."""
    got: list[tuple[str, dict[str, Any]]] = []
    answers = itertools.chain([503], itertools.repeat(200))

    async def take(request: Asked) -> JSONResponse:
        body = standardwebhooks.Webhook(SECRET).verify(await request.body(), dict(request.headers))
        got.append((request.headers["webhook-id"], body))
        status, data = next(answers), body["data"]
        return JSONResponse({"outcome": "accepted" if data["payment_ref"] == "pi_1" else "refunded"}, status)

    with serving(Starlette(routes=[Route("/refunds", take, methods=["POST"])])) as url:
        async with selling(etcd, valkey, f"{url}/refunds", webhook_secret=SECRET) as shop:
            await set_stock(shop)
            first = await owed(shop, bank, "pi_1")
            await eventually_async(lambda: len(got) == 2)
            second = await owed(shop, bank, "pi_2")
            await eventually_async(settled(shop, second))
            assert (await look(shop, first)).record.refunds_due == ("pi_1",)
            await shop.submit(Refund(*first, False, "pi_1", "payment provider"))
            await eventually_async(lambda: cashier_of(shop).figures["waiting"] == 0)
    one, again, other = got
    assert one[0] == again[0] != other[0]
    assert one[1]["type"] == "refund.requested"
    assert one[1]["data"]["order"] == str(first)
    assert (one[1]["data"]["amount"], one[1]["data"]["currency"]) == (500, "EUR")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("stripe://", "key"),
        ("stripe://pk_live_1", "key"),
        ("stripe://sk_live", "key"),
        ("ftp://shop", "not stripe"),
        ("https://a/b", "SECRET"),
    ],
)
def test_bad_settings_are_named(url: str, why: str) -> None:
    """What is no provider is refused at the start."""
    with pytest.raises(ConfigurationError, match=why):
        connect(url, secrets=(), timeout_s=1)


async def test_the_books_close_on_a_bad_day(etcd: EtcdMember, valkey: Valkey, bank: Bank) -> None:
    """Two hundred refunds, half of the answers bad, three cashiers one after the other: to the cent, each once."""
    dice = random.Random(7)
    bank.manner = lambda: dice.choice(["", "", *(day for day in BAD_DAYS if day != "late")])
    orders: list[OrderId] = []
    for turn in range(3):
        async with selling(etcd, valkey, bank.url) as shop:
            if not orders:
                await set_stock(shop)
                orders = await asyncio.gather(*(owed(shop, bank, f"pi_{n}") for n in range(60)))
            if turn < 2:
                seen = len(bank.asked)
                await eventually_async(lambda seen=seen: len(bank.asked) >= seen + 20)
                continue
            bank.manner = lambda: ""
            for order in orders:
                await eventually_async(settled(shop, order), within_s=60)
            requested = [(await kinds(shop, order)).count(EventKind.REFUND_REQUESTED) for order in orders]
            assert requested == [1] * len(orders)
    assert [len(payment.refunds) for payment in bank.payments.values()] == [1] * len(orders)
    assert all(payment.given_back == payment.amount for payment in bank.payments.values())
