"""The end of it all: what each buyer's money has come to, and whether the provider's books and ours say the same."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from app.orders import Order, OrderState
from app.payments.reconcile import Movement, MovementKind, Reconciliation
from app.sale import EVERYTHING
from app.wiring import Sale
from lab.bank import BAD_DAYS, Bank
from lab.cents.payers import CURRENCY, PRICE, SKU, WICK, CentsPayers, Fate
from lab.torture.books import journal_of
from lab.torture.buyers import Visitors
from lab.torture.history import Cents, Entry

_BAD: Final = 0.35  # share of the bank's answers
_LATE_S: Final = 1.5
_SETTLED_WITHIN_S: Final = 60.0
_ANEW_WITHIN_S: Final = 10.0  # what was settled may be looked at once more after a power cut


def bank_of(seed: int) -> Bank:
    """Return a bank that has bad days."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    return Bank(lambda: dice.choice(list(BAD_DAYS)) if dice.random() < _BAD else "", late_s=_LATE_S)


async def settled(sale: Sale, payers: Visitors) -> None:
    """Wait until nothing is owed any more, of a bank whose bad days are over."""
    if isinstance(payers, CentsPayers):
        await payers.tell_what_was_asked_for()
        payers.bank.manner = lambda: ""
        await _orders(sale, _SETTLED_WITHIN_S)


async def _orders(sale: Sale, within_s: float) -> list[Order]:
    """All orders, as soon as nothing is owed and nothing is held any more, or the time is over."""
    deadline = time.monotonic() + within_s
    while True:
        orders = [order async for page in sale.orders.pages(SKU, EVERYTHING) for order in page.orders]
        open_ = [one for one in orders if one.record.needs_attention or one.state is OrderState.HELD]
        if not open_ or time.monotonic() > deadline:
            return orders
        await asyncio.sleep(0.5)


async def closed(sale: Sale, payers: Visitors) -> list[Cents]:
    """Close the books of a bank, if there is one."""
    if not isinstance(payers, CentsPayers):
        return []
    bank, orders, told = payers.bank, await _orders(sale, _ANEW_WITHIN_S), await journal_of(sale.store, SKU)
    books = _books(bank, orders)
    audited = [one for sku in (SKU, WICK) for one in (await sale.audit(sku)).violations]
    wrong = [*map(str, books.differences()), *_added_up(books, told), *audited]
    return [Cents(len(bank.payments), len(bank.asked), list(_verdict(bank, payers.fates, orders)), wrong)]


def _verdict(bank: Bank, fates: list[Fate], orders: list[Order]) -> Iterator[str]:
    """Yield what is wrong: of each buyer's money as much is left as should be, and both books say the same."""
    by_id = {str(order.id): order for order in orders}
    for fate in fates:
        order, paid = by_id.get(fate.hold), [bank.payments[ref] for ref in fate.refs]
        net = sum(one.amount - one.given_back for one in paid)
        if order is None:
            yield f"{fate.way}: hold {fate.hold} is gone"
            continue
        right = fate.net if not fate.either or order.state is OrderState.CONFIRMED else 0
        name = order.id.name
        if fate.way == "pays wrongly" and order.state is OrderState.CONFIRMED:
            right = PRICE * order.quantity
        if net != right:
            yield f"{fate.way}: {net} cents of order {name} are kept, and {right} should be"
        if order.record.needs_attention:
            yield f"{fate.way}: order {name} still needs an operator"
        for one in paid:
            if one.given_back > one.amount:
                yield f"{fate.way}: {one.ref} was given back {one.given_back} of {one.amount}"


def _books(bank: Bank, orders: list[Order]) -> Reconciliation:
    books = Reconciliation()
    for payment in bank.payments.values():
        about = payment.ref, MovementKind.CHARGE, payment.amount, payment.currency, payment.ref
        books.add_movement(Movement(*about))
        for refund in payment.refunds:
            if refund["status"] != "failed":
                line = payment.ref, MovementKind.REFUND, refund["amount"], payment.currency, refund["id"]
                books.add_movement(Movement(*line))
    for order in orders:
        books.add_order(order)
    return books


def _added_up(books: Reconciliation, told: list[Entry]) -> Iterator[str]:
    """Yield what is otherwise by the changes that the events tell than by the orders, and by the bank."""
    moved = Counter[str]()
    for change in itertools.chain.from_iterable(one.facts.get("changes", ()) for one in told):
        moved.update({name: one for name, one in change.items() if name != "currency"})  # there is only one
    totals = books.totals[CURRENCY]
    there = {"paid": totals.charged, "given_back": totals.refunded, "owed": 0, "disputed": 0}
    here = {name: getattr(totals.here, name) for name in there}
    added = {name: moved[name] for name in there}  # a sum that never moved is in no change
    if not added == here == there:
        yield f"the events add up to {added}, the orders to {here}, and the bank has {there}"
