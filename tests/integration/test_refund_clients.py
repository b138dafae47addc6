"""The clients that ask for refunds: what they ask for, and what they make of the answers and of Stripe's lists."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
import standardwebhooks
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.cashier import connect
from app.cashier.provider import Became, RefundWish, Result, Unanswered
from app.errors import ConfigurationError, SeckillError
from app.orders import OrderId
from app.outbox.endpoint import Result as Answer
from app.outbox.endpoint import ShopEndpoint
from app.payments import Kind, Report
from app.payments.reconcile import Movement, MovementKind
from app.wiring import refunds_of
from lab.bank import Bank
from tests.harness.asgi import serving
from tests.harness.receiver import SECRET
from tests.harness.shop import settings

ORDER = OrderId("default", "1-0", "s" * 32)


def wish(ref: str = "pi_1", amount: int | None = None, currency: str | None = "EUR", name: str = "n4m3") -> RefundWish:
    return RefundWish(ORDER, name, ref, amount, currency)


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    one = Bank()
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def stripe(bank: Bank) -> AsyncIterator[Any]:
    """A client of the bank."""
    one: Any = connect(bank.url, secrets=(), timeout_s=5)
    yield one
    await one.close()


@pytest.mark.parametrize(
    ("currency", "amount", "theirs"),
    [
        ("EUR", 499, 499),
        ("HUF", 49_900, 49_900),
        ("JPY", 499, 499),
        ("UGX", 5_000, 500_000),
        ("ISK", 5, 500),
        ("MGA", 49_900, 499),
        ("KWD", 1_500, 1_500),
    ],
)
async def test_a_refund_is_asked_for_in_stripes_unit(
    bank: Bank, stripe: Any, currency: str, amount: int, theirs: int
) -> None:
    """And what was given back is told in that of ISO 4217, by its answer and by the list."""
    payment = bank.take("pi_1", 3 * theirs, currency)
    result = await stripe.refund(wish(amount=amount, currency=currency))
    assert payment.given_back == theirs
    assert result == Result(Became.DONE, refund_id="re_1", amount=amount)
    [made] = await stripe.made("pi_1")
    told = {"amount": amount, "currency": currency, "refund_id": "re_1", "refund_name": "n4m3", "at": made.at}
    assert made == Report(kind=Kind.REFUNDED, payment_ref="pi_1", message="re_1", **told)
    rest = await stripe.refund(wish(currency=currency, name="r3st"))
    assert (payment.given_back, rest.amount) == (3 * theirs, 2 * amount)


async def test_a_key_makes_one_refund(bank: Bank, stripe: Any) -> None:
    """However often it is asked for; the refund keeps the name, which outlives Stripe's memory of the key."""
    bank.take("pi_1", 500)
    first = await stripe.refund(wish(amount=200))
    assert await stripe.refund(wish(amount=200)) == first
    assert bank.asked == ["refund-n4m3"] * 2
    [made] = bank.payments["pi_1"].refunds
    assert made["metadata"] == {"seckill": "n4m3", "order": ORDER.name}
    bank._answers.clear()
    assert [one.refund_name for one in await stripe.made("pi_1")] == ["n4m3"]


async def test_all_refunds_of_a_payment(bank: Bank, stripe: Any) -> None:
    """Page by page, also those by hand and those that failed, and of no other payment."""
    bank.take("pi_1", 500)
    bank.take("pi_2", 500)
    for _ in range(5):
        bank.give_back("pi_1", 50)
    bank.fail("pi_1")
    await stripe.refund(wish(amount=20))
    bank.give_back("pi_1", 1, status="requires_action")
    bank.give_back("pi_1", 2, status="pending")
    bank.give_back("pi_2", 7)
    found = await stripe.made("pi_1")
    assert [(one.kind, one.refund_id, one.amount, one.refund_name) for one in found] == [
        *((Kind.REFUNDED, f"re_{n}", 50, None) for n in range(1, 5)),
        (Kind.REFUND_FAILED, "re_5", 50, None),
        (Kind.REFUNDED, "re_6", 20, "n4m3"),
        (Kind.REFUNDED, "re_8", 2, None),
    ]
    assert await stripe.made("cs_1") is None


async def test_a_refund_that_waits_for_its_payer_is_no_other_one(bank: Bank, stripe: Any) -> None:
    """Nothing is told of it yet, and after a day no key says any more that it was asked for."""
    bank.take("pi_1", 500)
    bank.give_back("pi_1", 200, status="requires_action", metadata={"seckill": "n4m3"})
    with pytest.raises(Unanswered) as waits:
        await stripe.made("pi_1")
    assert waits.value.result == Result(Became.ACCEPTED, "re_1 waits for its payer at Stripe", refund_id="re_1")


async def test_what_stripe_says_of_a_refund(bank: Bank, stripe: Any) -> None:
    """A refund that can't be made is refused with the reason; one that was made by others is to be looked for."""
    bank.take("pi_1", 500, "USD")
    bank.take("pi_2", 500)
    bank.refuses.add("pi_2")
    other = await stripe.refund(wish(amount=200))
    assert other == Result(Became.REFUSED, "pi_1 was charged in USD, and the order is in EUR")
    assert (await stripe.refund(wish("cs_1"))).why == "cs_1 is no payment of Stripe's"
    assert (await stripe.refund(wish(amount=200, currency=None, name="u"))).became is Became.DONE  # in its own currency
    assert (await stripe.refund(wish("pi_2"))).became is Became.REFUSED
    assert (await stripe.refund(wish("pi_3", name="c"))).became is Became.REFUSED
    assert (await stripe.refund(wish("pi_1", name="a"))).became is Became.DONE
    again = await stripe.refund(wish("pi_1", name="b"))
    assert again == Result(Became.UNKNOWN, "all of it was given back at Stripe")


@pytest.mark.parametrize(
    ("status", "became", "why"),
    [
        ("pending", Became.DONE, ""),
        ("requires_action", Became.ACCEPTED, "Stripe's refund re_1 is requires_action: no reason"),
        ("failed", Became.REFUSED, "Stripe's refund re_1 is failed: declined"),
        ("canceled", Became.REFUSED, "Stripe's refund re_1 is canceled: no reason"),
        ("odd", Became.UNKNOWN, "Stripe's refund re_1 is odd: no reason"),
    ],
)
async def test_how_a_refund_stands(status: str, became: Became, why: str) -> None:
    """Its status says what became of it."""
    made = {"id": "re_1", "object": "refund", "payment_intent": "pi_1", "amount": 500, "currency": "eur"}
    made |= {"status": status, "failure_reason": "declined" if status == "failed" else None}

    async def refunds(_: Asked) -> JSONResponse:
        return JSONResponse(made)

    with serving(Starlette(routes=[Route("/v1/refunds", refunds, methods=["POST"])])) as url:
        client = connect(url.replace("http://", "stripe://sk_test_bank@"), secrets=(), timeout_s=5)
        assert await client.refund(wish()) == Result(became, why, refund_id="re_1", amount=500)
        await client.close()


@pytest.mark.parametrize(
    ("status", "became"),
    [(400, Became.REFUSED), (404, Became.REFUSED), (409, Became.UNKNOWN), (429, Became.UNKNOWN), (500, Became.UNKNOWN)],
)
async def test_an_error_of_stripes(status: int, became: Became) -> None:
    """What it would refuse again is refused; it may be busy with the same request, or with too many."""
    error = {"error": {"type": "invalid_request_error", "message": "no"}}

    async def refunds(_: Asked) -> JSONResponse:
        return JSONResponse(error, status)

    with serving(Starlette(routes=[Route("/v1/refunds", refunds, methods=["POST"])])) as url:
        client = connect(url.replace("http://", "stripe://sk_test_bank@"), secrets=(), timeout_s=5)
        assert (await client.refund(wish())).became is became
        await client.close()


async def test_a_list_that_can_not_be_had(bank: Bank) -> None:
    """A wrong key closes the way for all; a payment that Stripe doesn't have was never given back."""
    wrong = connect(bank.url.replace("sk_test_bank", "sk_test_other"), secrets=(), timeout_s=5)
    with pytest.raises(Unanswered, match="is the key of SECKILL_REFUNDS right") as refused:
        await wrong.made("pi_1")
    assert refused.value.result.closed
    await wrong.close()
    answers = iter([(404, {"code": "resource_missing"}), (500, {})])

    async def refunds(_: Asked) -> JSONResponse:
        status, error = next(answers)
        return JSONResponse({"error": {"type": "invalid_request_error", "message": "no", **error}}, status)

    with serving(Starlette(routes=[Route("/v1/refunds", refunds)])) as url:
        client = connect(url.replace("http://", "stripe://sk_test_bank@"), secrets=(), timeout_s=5)
        assert await client.made("pi_1") == []
        with pytest.raises(Unanswered, match="500"):
            await client.made("pi_1")
        await client.close()


@pytest.mark.parametrize("then", ["waits", "closes"])
async def test_an_answer_that_breaks_off_keeps_no_connection(then: str) -> None:
    """Its outcome is unknown, and the connection is closed at once: a hundred of them would be all that there are."""
    ended = 0
    both = asyncio.Event()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        if then == "closes":
            writer.write_eof()
        while await reader.read(1024):
            pass
        writer.close()
        ended += 1
        if ended == 2:
            both.set()

    async with await asyncio.start_server(half, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider = connect(f"stripe://sk_test_bank@127.0.0.1:{port}", secrets=(), timeout_s=0.5)
        assert (await provider.refund(wish())).became is Became.UNKNOWN
        with pytest.raises(Unanswered):
            await provider.made("pi_1")
        await asyncio.wait_for(both.wait(), 20)
        await provider.close()


async def test_stripes_list_is_read_to_its_end(bank: Bank, stripe: Any) -> None:
    """Page by page, each charge and each refund once, in the minor unit of its currency; what failed is not there."""
    for n in range(5):
        bank.take(f"pi_{n}", 500 + n, "JPY" if n == 4 else "EUR")
    for n in range(3):
        bank.give_back(f"pi_{n}", 100)
    bank.fail("pi_2")
    bank.give_back("pi_3", 1, reason="expired_uncaptured_charge")
    found = [line async for line in stripe.movements(0.0)]
    charges = [(one.payment_ref, one.amount, one.currency) for one in found if one.kind is MovementKind.CHARGE]
    assert charges == [(f"pi_{n}", 500 + n, "JPY" if n == 4 else "EUR") for n in range(5)]
    assert [(one.payment_ref, one.amount) for one in found if one.kind is MovementKind.REFUND] == [
        ("pi_0", 100),
        ("pi_1", 100),
    ]


async def test_what_others_sell_is_not_in_the_list() -> None:
    """Where an account is shared, what has no hold is left out, with its refunds and disputes; else all is there."""
    common = {"currency": "ugx", "created": 1, "amount": 200}

    def charge(n: int, **metadata: str) -> dict[str, Any]:
        own = {"id": f"ch_{n}", "object": "charge", "payment_intent": f"pi_{n}", "captured": True}
        return common | own | {"amount_captured": 100, "metadata": metadata}

    charges = {one["id"]: one for one in (charge(1, hold="a~b"), charge(2), charge(3, hold=""))}
    lists: dict[str, list[dict[str, Any]]] = {
        "charges": list(charges.values()),
        "refunds": [common | {"id": f"re_{n}", "charge": f"ch_{n}", "status": "succeeded"} for n in (1, 2, 3)],
        "disputes": [common | {"id": f"du_{n}", "charge": f"ch_{n}", "status": "lost"} for n in (1, 2, 3)],
    }
    accounts: set[str | None] = set()

    async def listed(asked: Asked) -> JSONResponse:
        accounts.add(asked.headers.get("stripe-account"))
        those, after = lists[asked.path_params["name"]], asked.query_params.get("starting_after")
        begin = next((n for n, one in enumerate(those, 1) if one["id"] == after), 0)
        page = [dict(one) for one in those[begin : begin + 1]]
        if asked.query_params.get("expand[0]") == "data.charge":
            page = [one | {"charge": charges[one["charge"]]} for one in page]
        more = begin + 1 < len(those)
        return JSONResponse({"object": "list", "url": asked.url.path, "has_more": more, "data": page})

    async def of(address: str, **how: Any) -> list[Movement]:
        client: Any = connect(address, secrets=(), timeout_s=5, **how)
        try:
            return [line async for line in client.movements(0.0)]
        finally:
            await client.close()

    with serving(Starlette(routes=[Route("/v1/{name}", listed)])) as url:
        address = url.replace("http://", "stripe://sk_test_bank@")
        own = await of(address, shared=True)
        assert [(one.kind, one.payment_ref, one.amount) for one in own] == [
            (MovementKind.CHARGE, "pi_1", 1),
            (MovementKind.REFUND, "ch_1", 2),
            (MovementKind.DISPUTE, "ch_1", 2),
        ]
        assert len(await of(address)) == 9
        assert accounts == {None}
        await of(address, account="acct_1")
        assert accounts == {None, "acct_1"}
        lists["charges"][0]["amount_captured"] = 50
        with pytest.raises(SeckillError, match="no whole number of UGX's minor unit"):
            await of(address)


async def test_a_shop_is_asked_by_name() -> None:
    """The request has the refund's own name, the same each time; nobody can ask a shop for a list."""
    got: list[tuple[str, dict[str, Any]]] = []

    async def take(asked: Asked) -> JSONResponse:
        body = standardwebhooks.Webhook(SECRET).verify(await asked.body(), dict(asked.headers))
        got.append((asked.headers["webhook-id"], body["data"]))
        return JSONResponse({"outcome": "refunded" if len(got) == 1 else "accepted"})

    with serving(Starlette(routes=[Route("/refunds", take, methods=["POST"])])) as url:
        client = connect(f"{url}/refunds", secrets=[SECRET], timeout_s=5)
        asked = RefundWish(ORDER, "n4m3", "pi_1", 200, "EUR", "cart-17")
        assert [await client.refund(asked) for _ in range(2)] == [Result(Became.DONE), Result(Became.ACCEPTED)]
        assert await client.made("pi_1") is None
        await client.close()
    data = {"order": str(ORDER), "sku": "default", "ref": "cart-17", "payment_ref": "pi_1", "refund_name": "n4m3"}
    assert got == [("refund-n4m3", data | {"amount": 200, "currency": "EUR"})] * 2


@pytest.mark.parametrize(
    ("answers", "became", "closed"),
    [
        ([Answer(200, body=b'{"outcome": "refunded"}')], Became.DONE, False),
        ([Answer(202, body=one) for one in (b"", b"{", b"[" * 60_000, b'["refunded"]', b"{}")], Became.ACCEPTED, False),
        ([Answer(status, "no") for status in (400, 404, 405, 410, 422)], Became.REFUSED, False),
        ([Answer(status, "no") for status in (401, 403)], Became.UNKNOWN, True),
        ([Answer(status, "no") for status in (0, 307, 402, 408, 409, 425, 429, 500, 503)], Became.UNKNOWN, False),
    ],
)
async def test_what_a_shop_answers(answers: list[Answer], became: Became, closed: bool) -> None:
    """A refusal is one that would come again; with a wrong secret no other refund would get through either."""
    client = connect("https://shop.example/refunds", secrets=[SECRET], timeout_s=5)
    for answer in answers:
        with patch.object(ShopEndpoint, "post", AsyncMock(return_value=answer)):
            found = await client.refund(wish())
        assert (found.became, found.closed, bool(found.why)) == (became, closed, bool(answer.why)), answer


async def test_a_test_key_needs_its_setting() -> None:
    """The instance does not start without; with it the client is that of the account which the settings name."""
    secrets: dict[str, Any] = {
        "refunds": "stripe://sk_test_s3cret00",
        "stripe_account": "acct_1",
        "stripe_shared": True,
    }
    with pytest.raises(ConfigurationError, match=r"^SECKILL_REFUNDS: this test key .* SECKILL_STRIPE_TEST_MODE=true"):
        refunds_of(settings("http://127.0.0.1:1", "redis://127.0.0.1:1/0", **secrets))
    found: Any = refunds_of(settings("http://127.0.0.1:1", "redis://127.0.0.1:1/0", stripe_test_mode=True, **secrets))
    assert (found._client._requestor._options.stripe_account, found._shared) == ("acct_1", True)
    await found.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("stripe://", "needs a secret or restricted key"),
        ("stripe://pk_live_1", "needs a secret or restricted key"),
        ("stripe://sk_live", "needs a secret or restricted key"),
        ("stripe://sk_test_s3cret00", "SECKILL_STRIPE_TEST_MODE=true takes it$"),
        ("stripe://rk_test_s3cret00", "SECKILL_STRIPE_TEST_MODE=true takes it$"),
        ("stripe://sk_test_s3cret00@stripe.example", "SECKILL_STRIPE_TEST_MODE=true takes it$"),
        ("ftp://shop", "not stripe"),
        ("https://a/b", "SECRET"),
    ],
)
def test_bad_settings_are_named(url: str, why: str) -> None:
    """A URL of no provider is refused at the start, and its key is not shown."""
    with pytest.raises(ConfigurationError, match=why) as refused:
        connect(url, secrets=(), timeout_s=1)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "test_mode"),
    [
        ("stripe://sk_test_s3cret00", True),
        ("stripe://sk_live_s3cret00", True),
        ("stripe://rk_live_s3cret00", False),
        ("stripe://sk_test_s3cret00@127.0.0.1:1", False),
        ("stripe://sk_test_s3cret00@localhost:1", False),
    ],
)
async def test_keys_that_are_taken(url: str, test_mode: bool) -> None:
    """A test key is one where the test mode is wanted, or in a rehearsal on this machine."""
    await connect(url, secrets=(), timeout_s=1, test_mode=test_mode).close()
