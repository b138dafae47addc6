"""The commands that a provider's report makes for the orders with its payment: one, or one of each item."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from app.orders import (
    EventKind,
    GivenBack,
    Incident,
    Order,
    OrderCommand,
    Payment,
    PaymentRefund,
    RefundState,
    Way,
)
from app.orders.account import NOTICE, PROVIDER
from app.payments.report import Kind, Report

_MESSAGE_DIGITS: Final = 16


def commands(orders: Sequence[Order], report: Report) -> Iterator[OrderCommand]:
    """Yield the commands for these orders. A report by a name that one of them knows is for that one.

    Otherwise an order that is owed exactly this amount gets it, or each order takes up to the rest of its payment, in
    turn.
    """
    paid = [(order, one) for order in orders for one in order.record.payments if one.ref == report.payment_ref]
    message = None
    if report.refund_id is None and report.so_far is None:  # nothing else tells this notice from another one
        text = f"{report.message}\n{report.payment_ref}\n{report.amount}"
        message = hashlib.sha256(text.encode()).hexdigest()[:_MESSAGE_DIGITS]
    own = report.refund_id or (f"{NOTICE}{message}" if message is not None else None)
    known = [
        (order, one)
        for order, one in paid
        if one.find(report.refund_name, own) is not None or order.record.answered(message) is not None
    ]
    ref, said = report.payment_ref, (report.refund_id, report.refund_name, message)
    if report.kind is not Kind.REFUNDED:
        why = _plain(report.why)
        for order, amount in _shares(known or paid, report.amount, back=True):
            told = Incident(*order.id, EventKind(report.kind), ref, amount, *said, why, PROVIDER)
            yield told._replace(at=report.at, currency=report.currency)
        return
    whole = report.whole, report.currency
    if report.so_far is None or len(paid) == 1 or report.whole:
        for order, amount in _shares(known or paid, report.amount, named=report.so_far is None):
            yield GivenBack(*order.id, ref, PROVIDER, amount, report.so_far, *whole, *said, report.at)
        return
    there = {order.id: one.given_back - one.given_elsewhere - one.lost for order, one in paid}
    # A refund that we have asked for may be in the sum, and will be reported by its name.
    asked = sum(one.amount or 0 for _, paid_ in paid for one in paid_.open if one.state is RefundState.ASKED)
    for order, more in _shares(paid, max(0, report.so_far - sum(there.values()) - asked)):
        if more:
            yield GivenBack(*order.id, ref, PROVIDER, None, there[order.id] + more, *whole, *said, report.at)


def _shares(
    paid: Sequence[tuple[Order, Payment]], amount: int | None, *, back: bool = False, named: bool = False
) -> Iterator[tuple[Order, int | None]]:
    """Yield the orders with their shares of an amount (None: each has all).

    `back`: share by the sums that were given back; `named`: the amount may repeat a refund that was reported without a
    name.
    """
    if amount is None or len(paid) == 1:
        yield from ((order, amount) for order, _ in paid)
        return
    alike = [
        (order, [one for one in (*payment.open, *(_unnamed(payment) if named else ())) if one.amount == amount])
        for order, payment in paid
    ]
    if not back and (same := next((order for order, some in alike if some), None)) is not None:
        yield same, amount
        return
    shares = {order.id: 0 for order, _ in paid}
    if named:  # first come the refunds that were reported without a name
        for order, payment in paid:
            shares[order.id] = min(amount, sum(one.amount or 0 for one in _unnamed(payment)))
            amount -= shares[order.id]
    for number, (order, payment) in enumerate(sorted(paid, key=lambda one: not one[1].open), 1):
        left = max(0, (payment.amount or amount) - payment.given_back)
        part = min(amount, payment.given_back if back else left) if number < len(paid) else amount
        shares[order.id] += part
        amount -= part
    yield from ((order, shares[order.id]) for order, _ in paid if shares[order.id])


def _unnamed(payment: Payment) -> list[PaymentRefund]:
    """The given refunds without a provider's name, which the provider may report once more with one."""
    given = (one for one in payment.refunds if one.state is RefundState.GIVEN and one.id is None)
    return [one for one in given if one.way is Way.NOTED or one.by == PROVIDER]


def _plain(text: str) -> str:
    """A provider's words in one line, as people will read them."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
