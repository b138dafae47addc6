"""What the doors of holds and of callbacks make of a request: which command, or which refusal, without a sale."""

import json
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fastapi.exceptions import RequestValidationError

from app.errors import AmountRequired
from app.orders import (
    Answer,
    Cancel,
    Confirm,
    ConfirmOutcome,
    Extend,
    GivenBack,
    Hold,
    Order,
    OrderId,
    OrderState,
    Payment,
    Place,
    Record,
    Refund,
    RefundOutcome,
)
from app.payments import Reader, Report
from app.payments.tally import Tally
from app.web import call, holds, orders, payments, purchase, request_ids
from app.web.auth import AdminAuth
from app.web.purchase import name_of_part

ORDER = OrderId("lamp", "1-0", "a" * 32)
SHOP, OPERATOR = {"Authorization": "Bearer of-the-shop"}, {"Authorization": "Bearer of-ann-herself"}
KEY = {"Idempotency-Key": '"k-1"'}


class Stripes(Reader):
    """A provider that calls sessions by another name."""

    other_names: ClassVar = {"cs_": "of a session"}

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        pass

    def read(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        told = json.loads(body)
        return Report(**told) if told else None


class Signed:
    """Tokens of buyers."""

    def read(self, token: str) -> str:
        return token.removeprefix("token of ")


class Shop:
    """A shop that answers all commands alike, and remembers them."""

    def __init__(self, *orders: Order, answer: Any = ConfirmOutcome.CONFIRMED) -> None:
        self.orders, self.answer, self.asked = orders, answer, list[Any]()

    async def submit(self, command: Any) -> Answer:
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Answer(self.answer, len(self.asked))

    async def paid_with(self, ref: str) -> list[Order]:
        return [one for one in self.orders if one.record.payment(ref)]


def state(**own: Any) -> Any:
    auth = AdminAuth({"ann": "of-ann-herself"}, shop_tokens=["of-the-shop"])
    clocks = SimpleNamespace(of=lambda sku: SimpleNamespace(now={"lamp": 5.0}.get(sku, 7.0)))
    parts: dict[str, Any] = {"auth": auth, "quantity_max": 10, "signed": None, "only_shop_holds": False}
    parts |= {"callbacks": {"stripe": Stripes()}, "instance": "i", "request_ids": False, "shop": Shop()}
    return SimpleNamespace(**parts | {"readiness": SimpleNamespace(clocks=clocks)} | own)


def request(route: Any, path: str, body: Any, headers: Mapping[str, str] | None = None, **own: Any) -> Any:
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    text = b"" if body is None else json.dumps(body).encode()
    return call.Call(route, state(**own), "POST", path, b"", raw, None, text)


def command(path: str, body: Any, headers: Mapping[str, str] | None = None, **own: Any) -> Any:
    """What is asked of holds; or the field of a refusal, or its status."""
    made = request(holds.ROUTE, path, body, headers, **own)
    try:
        made.read()
    except Exception as error:
        status, _, answer = made.refused(error)
        return json.loads(answer)["errors"][0]["field"] if status == 422 else status
    found = made._asked.command
    return found._replace(request_id=None) if isinstance(found, Hold) else found


BASKET = [{"sku": "tea", "quantity": 2}, {"sku": "cup"}, {"sku": "tea", "quantity": 3}]


@pytest.mark.parametrize(
    ("body", "headers", "own", "asked"),
    [
        ({"buyer": "ann"}, {}, {}, Hold(1, "default", "ann")),
        ({"buyer": "ann", "sku": "lamp", "quantity": 10.0, "ref": "r", "wait": True}, KEY, {}, None),
        ({"buyer": "ann", "quantity": 11}, {}, {}, "quantity"),
        ({"buyer": "ann"}, SHOP, {"only_shop_holds": True}, Hold(1, "default", "ann", proven=True)),
        ({"buyer": "ann"}, OPERATOR, {"only_shop_holds": True}, Hold(1, "default", "ann", proven=True)),
        ({"buyer": "ann"}, {}, {"only_shop_holds": True}, 401),
        ({"buyer": "token of bob"}, {}, {"signed": Signed()}, Hold(1, "default", "bob", proven=True)),
        ({"buyer": "token of bob"}, SHOP, {"signed": Signed()}, Hold(1, "default", "token of bob", proven=True)),
        ({"buyer": "erased"}, SHOP, {}, "buyer"),
        ({"buyer": "ann", "items": BASKET}, {}, {}, Hold(1, "cup", "ann", lines=(("tea", 5),))),
        ({"buyer": "ann", "items": BASKET}, {}, {"quantity_max": 4}, "items.2.quantity"),
        ({"buyer": "ann", "items": BASKET, "quantity": 2}, {}, {}, "quantity"),
        ({"buyer": "ann", "items": BASKET, "sku": "tea"}, {}, {}, "sku"),
        ({"buyer": "ann", "items": BASKET, "wait": True}, {}, {}, "wait"),
        ({"buyer": "ann", "items": BASKET[:1], "wait": True}, {}, {}, Hold(2, "tea", "ann", wait=True)),
        ({"buyer": "ann", "items": []}, {}, {}, "items"),
    ],
)
def test_what_is_held(body: Any, headers: Any, own: Any, asked: Any) -> None:
    """By whom and how many; only the shop's word, or its signature, is a proof of who the buyer is."""
    whole = Hold(10, "lamp", "ann", "k-1", "r", wait=True)
    assert command("/holds", body, headers, **own) == (asked or whole)


PAID = {"payment_ref": "pi_1", "amount": 599, "currency": "EUR", "subtotal": 499, "paid_at": 12.5}


@pytest.mark.parametrize(
    ("verb", "body", "headers", "asked"),
    [
        ("confirm", PAID, SHOP | KEY, Confirm(*ORDER, "pi_1", 599, "EUR", "k-1", 499, 12.5)),
        ("confirm", {"payment_ref": "pi_1"}, OPERATOR, Confirm(*ORDER, "pi_1")),
        ("confirm", PAID, {}, 401),
        ("confirm", PAID | {"payment_ref": "cs_1"}, SHOP, "payment_ref"),
        ("confirm", None, SHOP, "body"),
        ("extend", None, KEY, Extend(*ORDER, "k-1")),
        ("extend", {"units": 1}, {}, "units"),
        ("cancel", None, KEY, Cancel(*ORDER, key="k-1")),
        ("cancel", {"units": 2}, KEY, Cancel(*ORDER, key="k-1", units=2, message=name_of_part("cancel", "k-1"))),
        ("cancel", {"sku": "cup"}, KEY, Cancel(*ORDER, key="k-1", message=name_of_part("cancel", "k-1"), line="cup")),
        ("cancel", {"units": 2}, {}, "units"),
        ("cancel", {"sku": "cup"}, {}, "sku"),
    ],
)
def test_what_becomes_of_a_hold(verb: str, body: Any, headers: Any, asked: Any) -> None:
    """A payment is the shop's word; a part has a name, which the order keeps."""
    assert command(f"/holds/{ORDER}/{verb}", body, headers, only_shop_holds=True) == asked


def test_a_part_of_a_refund_is_no_part_of_a_cancellation() -> None:
    """One key may name both."""
    assert name_of_part("cancel", "k-1") != name_of_part("refund", "k-1")


TRACE = f"00-{32 * 'a'}-{16 * 'b'}-01"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"x-request-id", b"r-1"), (b"traceparent", TRACE.encode())], ("r-1", TRACE)),
        ([(b"x-request-id", b"x" * 100), (b"traceparent", b"00-1-2-01")], ("x" * 100, None)),
        ([(b"x-request-id", b"r-1"), (b"traceparent", TRACE.encode() + b"-more")], ("r-1", None)),
        ([(b"traceparent", TRACE.encode())], (None, TRACE)),
        *(([(b"x-request-id", odd)], None) for odd in (b"", b"a b", b"x" * 101, b"\xe9")),
        ([(b"x-request-id", b"r-1"), (b"x-request-id", b"r-2")], None),
    ],
)
def test_a_request_has_an_id(headers: Any, found: tuple[str | None, str | None] | None) -> None:
    """Its own or a new one; a malformed one is refused, or replaced where no request is to be refused for it."""
    wish = call.Call(purchase.ROUTE, state(request_ids=True, buyer_max=100), "POST", purchase.PATH, b"", headers, None)
    report = call.Call(payments.ROUTE, state(request_ids=True), "POST", "/payments/webhook", b"", headers, None)
    if found is None:
        with pytest.raises(RequestValidationError):
            wish.read()
    else:
        wish.read()
        asked: Any = wish._asked.command
        assert (asked.request_id, asked.traceparent) == (wish.request_id, wish.traceparent)
        assert wish.traceparent == found[1]
        assert found[0] == wish.request_id if found[0] else len(wish.request_id or "") == 16
    own, trace = request_ids.read(report.headers, strict=report.route.strict)
    assert (own, trace) == found if found and found[0] else len(own) == 16


def test_an_answer_of_a_hold() -> None:
    """It says how the order stands by its item's clock, and whether the answer is an old one."""
    record = Record("1-0", "a" * 32, OrderState.WAITING, 2, "ann")
    place = Place(3, 4, None)
    told = holds.view(state(), "lamp", ORDER, record, Answer("waiting", 2, ORDER, True, record, place=place))  # type: ignore[arg-type]
    assert (told["id"], told["replayed"], told["now"], told["place"]) == (
        str(ORDER),
        True,
        5.0,
        {"number": 3, "held": 4},
    )
    assert "refund" not in told


# -- callbacks ---------------------------------------------------------------------------------------------------------


def order(*refs: str, number: str = "1-0") -> Order:
    paid = tuple(Payment(ref, 500, "EUR") for ref in refs)
    return Order("lamp", Record(number, "a" * 32, OrderState.CONFIRMED, 1, payments=paid), None, "i", 1, "b", 1.0)


async def reported(shop: Shop, **about: Any) -> tuple[Any, list[tuple[str, str]]]:
    """The outcome of a callback, or the status of its refusal; and how it was counted."""
    counted, unclaimed = list[tuple[str, str]](), list[int]()
    tally = Tally(lambda *one: counted.append(one))
    told = {"payment_ref": "pi_1", "message": "m"} | about if about else None
    own: dict[str, Any] = {"shop": shop, "tally": tally, "unclaimed": lambda: unclaimed.append(1)}
    made = request(payments.ROUTE, "/payments/stripe", told, **own)
    status, headers, _ = await made.serve(call.never)
    outcome = dict(headers).get(b"x-seckill-outcome", b"").decode()
    return (f"{outcome}{' unclaimed' * len(unclaimed)}" if status == 200 else status), counted


@pytest.mark.parametrize(
    ("orders", "about", "told"),
    [
        ([order("pi_1")], {"kind": "failed"}, "ignored"),
        ([order("pi_1")], {"kind": "canceled"}, "ignored"),
        ([], {"kind": "succeeded", "hold": "user_42"}, "ignored"),
        ([], {"kind": "refunded", "hold": "user_42", "age_s": 9}, "ignored"),  # it is somebody else's
        ([], {"kind": "refunded", "age_s": 3500}, 409),
        ([], {"kind": "refunded", "age_s": 3700}, "ignored"),
        ([], {"kind": "refunded"}, "ignored"),
        ([], {"kind": "refunded", "age_s": 9, "stranger": True}, "ignored"),
        ([], {"kind": "refunded", "hold": str(ORDER)}, 409),
        ([], {"kind": "refunded", "hold": str(ORDER), "age_s": 3500}, 409),
        ([], {"kind": "refunded", "hold": str(ORDER), "age_s": 3700}, "ignored unclaimed"),
        ([order("pi_1")], {"kind": "refunded", "amount": 200}, "confirmed"),
        ([order("pi_2")], {"kind": "refunded", "amount": 200, "age_s": 9}, 409),
        ([order("pi_1")], {"kind": "refunded", "so_far": 0}, "confirmed"),
        ([order("pi_1"), order("pi_1", number="2-0")], {"kind": "refunded", "so_far": 0}, "already_refunded"),
        ([], {"kind": "refunded", "payment_ref": "p\x00"}, 422),
        ([], {"kind": "refunded", "refund_id": "\u202er"}, 422),
    ],
)
async def test_what_a_report_comes_to(orders: list[Order], about: dict[str, Any], told: Any) -> None:
    """What is not here may come within an hour; then it is a stranger's, or money that nobody claims."""
    if (age_s := about.pop("age_s", None)) is not None:
        about["at"] = time.time() - age_s
    found, counted = await reported(Shop(*orders), **about)
    assert found == told
    assert [outcome for _, outcome in counted] == [{409: "again", 422: "invalid"}.get(found, "taken")]


async def test_a_payment_is_a_providers_word() -> None:
    """All that it says goes along; without an amount of what has a price it is refused, and counts as invalid."""
    shop = Shop()
    sums: dict[str, Any] = {"amount": 599, "currency": "EUR", "subtotal": 499, "paid_at": 12.5}
    assert (await reported(shop, kind="succeeded", hold=str(ORDER), **sums))[0] == "confirmed"
    assert shop.asked == [Confirm(*ORDER, "pi_1", 599, "EUR", None, 499, 12.5, reported=True)]
    late = Shop(answer=ConfirmOutcome.NOT_FOUND)
    assert (await reported(late, kind="succeeded", hold=str(ORDER), paid_at=time.time() - 3500))[0] == 409
    assert (await reported(late, kind="succeeded", hold=str(ORDER), **sums))[0] == "ignored unclaimed"
    assert await reported(Shop(answer=AmountRequired("how much?")), kind="succeeded", hold=str(ORDER)) == (
        422,
        [("stripe", "invalid")],
    )


@pytest.mark.parametrize(
    ("about", "numbers"),
    [
        ({"amount": 500, "hold": f"lamp~2-0~{32 * 'a'}"}, ["2-0"]),
        ({"amount": 500, "hold": f"lamp~3-0~{32 * 'a'}"}, ["1-0"]),  # which has not this payment
        ({"amount": 500}, ["1-0"]),
        ({"hold": f"lamp~2-0~{32 * 'a'}"}, ["1-0", "2-0"]),  # all of the payment
    ],
)
async def test_a_refund_of_several_orders(about: dict[str, Any], numbers: list[str]) -> None:
    """A sum is of the order that is named, if it has the payment; the whole payment is of all, in their order."""
    shop = Shop(order("pi_1", number="2-0"), order("pi_1"))
    found, _ = await reported(shop, kind="refunded", refund_id="re_1", **about)
    assert found == "confirmed"
    assert [one.number for one in shop.asked] == numbers
    assert all(isinstance(one, GivenBack) for one in shop.asked)


async def test_what_comes_to_nobody_is_logged_without_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """What looks like a callback may be an order's address behind a prefix."""
    tally = Tally(lambda *_: None)
    made = request(payments.ROUTE, f"/shop/payments/{ORDER}", {}, tally=tally)
    assert (await made.serve(call.never))[0] == 404
    assert ORDER.name in caplog.text
    assert ORDER.secret not in caplog.text


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature", "stripe-signature"])
async def test_a_header_of_a_signature_comes_once(name: str) -> None:
    """Even if both say the same: which one would the sender have meant?"""
    tally = Tally(lambda *_: None)
    made = request(payments.ROUTE, "/payments/stripe", {}, {name: "v1"}, tally=tally)
    assert (await made.serve(call.never))[0] == 200
    made.headers *= 2
    status, _, told = await made.serve(call.never)
    assert (status, json.loads(told)["detail"]) == (400, f"one {name} header is taken, not several")


@pytest.mark.parametrize(
    ("path", "is_callback"),
    [
        ("/payments/stripe", True),
        ("/shop/payments/stripe", True),
        ("/holds/payments/x", False),
        ("/orders/payments/refund", False),
    ],
)
def test_what_looks_like_a_callback(path: str, is_callback: bool) -> None:
    """Also behind a prefix; what is behind `/holds/` and `/orders/` is an id."""
    assert payments.is_route("POST", path) is is_callback
    assert not payments.is_route("GET", path)


# -- an operator's refund ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "key", "message"),
    [
        ({}, None, None),
        *((part, "k-1", name_of_part("refund", "k-1")) for part in ({"amount": 5}, {"units": 1}, {"sku": "pen"})),
        *((part, None, "refused") for part in ({"amount": 5}, {"units": 1}, {"sku": "pen"})),
        ({"amount": 5, "name": "n4m3"}, None, None),  # it has a name already
    ],
)
async def test_a_part_of_a_refund_needs_a_key(part: dict[str, Any], key: str | None, message: str | None) -> None:
    """By which it is known when it is sent again; the answer has the sums of the order's own currency."""
    there, asked = order("pi_1"), list[Refund]()
    paid = (Payment("yen", 100, "JPY"),)
    record = Record("1-0", "a" * 32, OrderState.CONFIRMED, 1, currency="EUR", payments=paid)

    class Admin:
        async def numbered(self, _: str) -> Order:
            return there

        async def refund(self, _: Order, wish: Refund, currency: str | None) -> Answer:
            assert currency is None
            asked.append(wish)
            return Answer(RefundOutcome.PARTLY_REFUNDED, 1, there.id, record=record)

    behind: Any = SimpleNamespace(state=SimpleNamespace(seckill=SimpleNamespace(orders=Admin(), cashier=None)))
    given = orders.RefundRequest(restock=False, **part)
    if message == "refused":
        with pytest.raises(RequestValidationError):
            await orders.refund(behind, given, "ann", "lamp~1-0", key)
        return
    view = await orders.refund(behind, given, "ann", "lamp~1-0", key)
    assert (asked[0].message, asked[0].by, asked[0].line) == (message, "ann", part.get("sku"))
    assert (view.paid, view.order) == (0, str(there.id))
