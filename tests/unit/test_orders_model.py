"""Whatever buyers, the shop, the provider and operators ask of an item, in batches: a small book of the rules agrees.

The book says the outcome of each command, the events that it makes and how each order stands after it. The program is
the rule with the batch around it (`app.sale.batch`), on a store in memory.
"""

from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.ledger import Ledger
from app.cashier.cashier import BY
from app.errors import AmountRequired, BuyerRequired, KeyReused
from app.orders import (
    Answer,
    Cancel,
    Command,
    Confirm,
    EventKind,
    Expire,
    ExpiryOutcome,
    Extend,
    GivenBack,
    Hold,
    Incident,
    Purchase,
    Record,
    Refund,
    RequestRefund,
    Terms,
)
from app.orders.decision import OUTCOMES
from app.sale.batch import Clocked, ask, decide_parts
from app.sale.queue import Entry, Item
from app.stock import Fence
from tests.harness.memory_store import MemoryServer, MemoryStockStore

SKU, PRICE = "tv", 5
HOLD_MS, PAY_MS, GRACE_MS, OFFER_MS = 10_000, 30_000, 2_000, 7_000
OPEN, LIVE = ("due", "asked", "failed"), ("sold", "waiting", "held", "confirmed")
LASTING = ("limit_reached", "ended")

ERRORS: dict[type[Exception], str] = {
    KeyReused: "this idempotency key belongs to a request that says something else",
    AmountRequired: "amount: what has a price wants a payment of that amount",
    BuyerRequired: "each buyer may have a limited number of units: say who is buying",
}


@dataclass(eq=False)
class Owed:
    """Money that is to go back. `amount`: None: all that is left of a payment of which nobody knows how much it was."""

    amount: int | None
    state: str = "due"
    name: str = ""
    by: str = ""
    why: str = ""
    units: int = 0
    asked_ms: int = 0

    @property
    def shown(self) -> tuple[object, ...]:
        return self.amount or 0, self.state, self.by, self.why, self.units, self.asked_ms


@dataclass(eq=False)
class Money:
    """A payment, as the book has it. `whole`: all of it went back, however much it was."""

    ref: str
    amount: int | None
    currency: str | None
    kind: str
    given: int = 0
    owes: list[Owed] = field(default_factory=list)
    whole: bool = False
    was: dict[str, int | None] = field(default_factory=dict)  # what was given, by the provider's ids

    @property
    def owed(self) -> int:
        return sum(one.amount or 0 for one in self.owes)

    @property
    def left(self) -> int:
        if self.amount is None:
            return 0 if self.whole or any(one.amount is None for one in self.owes) else 10**18
        return self.amount - self.given - self.owed

    @property
    def given_whole(self) -> bool:
        return self.whole or (self.amount is not None and self.given >= self.amount)

    @property
    def waits(self) -> bool:
        return self.kind == "wrong" and self.left > 0

    def owe(self, amount: int | None, **about: Any) -> dict[str, Any]:
        """Owe so much more of it (None: all that is left), and return what the event says of that."""
        amount = self.left if amount is None and self.amount is not None else amount
        if amount != 0:
            self.owes.append(Owed(amount, **about))
        return {} if amount in (0, None) else {"amount": amount}

    def give_all(self) -> int:
        """All of it went back; return how much that was."""
        before, self.owes, self.whole = self.given, [], True
        self.given = self.amount if self.amount is not None else self.given
        return self.given - before

    def give(self, amount: int) -> None:
        """So much went back: it is what was owed, if some of that is just so much, or else lessens what is at rest."""
        parts = [one.amount for one in self.owes if one.amount is not None]
        exact = any(sum(some) == amount for n in range(1, len(parts) + 1) for some in combinations(parts, n))
        rest = sum(one.amount or 0 for one in self.owes if one.state != "asked")
        self.given += amount
        left = self.owed - (amount if exact else min(amount, rest))
        self.owes = [Owed(left, "?")] if parts and left else [] if parts else self.owes


@dataclass(eq=False)
class Known:
    """An order, as the book has it."""

    state: str
    quantity: int
    buyer: str | None
    price: int | None = None
    currency: str | None = None
    proven: bool = False
    pay_by_ms: int = 0
    due_ms: int = 0
    extended: bool = False
    at_once: bool = False
    number: str = ""
    secret: str = ""
    request_id: str | None = None
    ref: str | None = None
    money: dict[str, Money] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def to_pay(self) -> int | None:
        return None if self.price is None else self.price * self.quantity

    @property
    def counted(self) -> Money | None:
        return next((one for one in self.money.values() if one.kind == "counts"), None)

    @property
    def not_needed(self) -> str:
        return "duplicate_payment" if self.counted else "refund_due"

    def owing(self) -> Iterator[tuple[Money, Owed]]:
        return ((money, one) for money in self.money.values() for one in money.owes)


class Said(NamedTuple):
    """The answer that the book gives: `error`, or an outcome, and the order with it."""

    outcome: str
    quantity: int = 0
    order: Known | None = None
    replayed: bool = False
    refund: str | None = None
    error: type[Exception] | None = None
    place: int | None = None


class Remembered(NamedTuple):
    """An answer that is kept under a key, and all that the request has said."""

    asked: Command
    said: Said
    shown: bool


class Book:
    """The rules. Each method returns the outcome, and writes down the events that the command makes."""

    def __init__(self, stock: int, terms: Terms, now_ms: int) -> None:
        self.left, self.terms, self.now_ms, self.limit = stock, terms, now_ms, terms.limit_per_buyer or 0
        self.orders: list[Known] = []
        self.new: list[Known] = []
        self.events: list[tuple[str, Known, dict[str, Any]]] = []
        self.keys: dict[tuple[str, str], Remembered] = {}
        self.said_now, self.old, self.looks = set[str](), False, False
        self.open: dict[str, Known] = {}

    def had(self, buyer: str | None) -> int:
        theirs = [one for one in (*self.orders, *self.new) if one.buyer == buyer and one.state in LIVE]
        return sum(one.quantity for one in theirs) if buyer else 0

    def order(self, number: str) -> Known | None:
        return next((one for one in self.orders if one.number == number), None)

    def write(self, kind: str, order: Known, **facts: Any) -> None:
        self.events.append((kind, order, {name: one for name, one in facts.items() if one is not None}))
        if order.request_id is not None:
            self.events[-1][2].update(request_id=order.request_id, traceparent=f"trace {order.request_id}")

    # -- a batch -----------------------------------------------------------------------------------------------------

    def batch(self, commands: list[Command]) -> list[Said]:
        held_before = any(one.state == "held" for one in self.orders)
        self.new, self.events, self.said_now = [], [], set()
        # The last hold that each buyer began, while it is open.
        self.open = {one.buyer: one for one in self.orders if one.buyer and not one.at_once}
        self.open = {buyer: one for buyer, one in self.open.items() if one.state in ("held", "waiting")}
        being_paid = {one.number for one in commands if isinstance(one, Confirm)}
        due = any(one.state == "held" and one.due_ms <= self.now_ms for one in self.orders)
        # Else no batch looks at the line.
        self.looks = due or self.left > 0 or any(not isinstance(one, Purchase | Hold) for one in commands)
        for order in sorted(self.orders, key=lambda one: (one.due_ms, one.number)):
            if order.state == "held" and order.due_ms <= self.now_ms and order.number not in being_paid:
                self.ends(order, "expired")
        self.serve(self.orders)
        seen: dict[tuple[str, str], Remembered] = {}
        begun: dict[str, int] = {}
        told: list[Said] = []
        for command in commands:
            key = getattr(command, "key", None)
            name = (type(command).__name__, key or "")
            before = key and (self.keys.get(name) or seen.get(name))
            if before:
                told.append(self.repeat(command, before, settled=name in self.keys))
                continue
            said = self.answer(command, begun, told)
            if not isinstance(command, Purchase | Hold | Expire):
                self.serve(self.orders)
            # An order of this very batch: the next try will find it.
            shown = said.outcome in ("already_held", "already_waiting") and (
                said.order is None or said.order in self.new
            )
            told.append(said)
            if key and said.error is None:
                seen[name] = Remembered(command, said, shown)
        self.serve([*self.orders, *self.new])
        told = [self.served(one) for one in told]
        seen = {name: one._replace(said=self.served(one.said)) for name, one in seen.items()}
        may_return = held_before or any(one.state == "held" for one in self.new)
        for name, one in seen.items():
            final = one.said.outcome in LASTING or (one.said.outcome == "sold_out" and (self.left > 0 or may_return))
            new = name[0] in ("Purchase", "Hold") and one.said.order is None
            if one.said.outcome != "not_found" and not one.shown and (final or not new):
                self.keys[name] = one
        return told

    # -- the line ----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        return sum(one.quantity for one in (*self.orders, *self.new) if one.state == "held")

    def line(self, orders: Iterable[Known]) -> list[Known]:
        return [one for one in orders if one.state == "waiting"]

    def serve(self, orders: Iterable[Known]) -> None:
        """Whoever is next gets the units that are there; a larger wish is passed only if the terms say so."""
        closed, passed = self.closed(), False
        for order in self.line(orders) if self.looks or not self.line(self.orders) else ():
            if closed == "ended":
                self.ends(order, "cancelled", why="ended")
            elif not closed and not passed and order in self.orders and 0 < self.left < order.quantity - self.held:
                self.ends(order, "cancelled", why="sold_out")  # nobody can give it so many, and others want them
            elif closed or order.quantity > self.left or (passed and not self.terms.smaller_first):
                passed = True
            else:
                self.left -= order.quantity
                order.state, order.pay_by_ms = "held", self.now_ms + OFFER_MS
                order.due_ms = order.pay_by_ms + GRACE_MS
                if order in self.orders:
                    self.write("offered", order, pay_by=order.pay_by_ms / 1000, goes_back_at=order.due_ms / 1000)

    def served(self, said: Said) -> Said:
        """The answer to somebody who got in line, and has got units in the same batch."""
        if said.order not in self.new or said.order.state != "held":
            return said
        outcome = {"waiting": "held", "already_waiting": "already_held"}.get(said.outcome, said.outcome)
        return said._replace(outcome=outcome, place=None)

    def waits(self, wish: Hold) -> Said | None:
        """A place for a buyer who has none, and comes too late for units that others hold."""
        if not wish.wait or not wish.buyer:
            return None
        if self.limit and self.had(wish.buyer) + wish.quantity > self.limit:
            return Said("limit_reached", wish.quantity)
        own = self.open.get(wish.buyer)
        if own is not None and own.state == "waiting" and not wish.proven:
            return None  # a stranger gets no second place in a buyer's name
        there = [one.proven for one in self.line(self.new) if one.buyer == wish.buyer]
        if wish.proven in there:
            return Said("already_waiting", wish.quantity)
        if (there and not wish.proven) or wish.quantity > self.held + self.left:
            return None
        order = Known("waiting", wish.quantity, wish.buyer, request_id=wish.request_id, proven=wish.proven)
        order.price, order.currency, order.ref = self.terms.price, self.terms.currency, wish.ref
        self.new.append(order)
        return Said("waiting", wish.quantity, order, place=len(self.line([*self.orders, *self.new])))

    def repeat(self, command: Command, before: Remembered, *, settled: bool) -> Said:
        said, first = before.said, before.asked
        other = isinstance(command, Hold) and isinstance(first, Hold) and command.ref != first.ref
        if _without_key(first) != _without_key(command) or (
            other and (not settled or said.outcome in ("held", "waiting"))
        ):
            return Said("", error=KeyReused)
        if not settled:
            return said._replace(replayed=True)
        about = None if isinstance(command, Purchase) else said.order
        ref = command.payment_ref if isinstance(command, Confirm) else ""
        owed = ref if about and ref in about.money and about.money[ref].owes else None
        return said._replace(replayed=True, quantity=about.quantity if about else said.quantity, refund=owed)

    def answer(self, command: Command, begun: dict[str, int], told: list[Said]) -> Said:
        if isinstance(command, Purchase | Hold):
            return self.begins(command, begun, told)
        if isinstance(command, Expire):
            return Said("done")
        order = self.order(command.number)
        if order is None or order.secret != command.secret:
            return Said("not_found")
        said: str | tuple[str, str] | type[Exception] = getattr(self, type(command).__name__.lower())(order, command)
        if isinstance(said, type):
            return Said("", error=said)
        outcome, refund = said if isinstance(said, tuple) else (said, None)
        if outcome == "not_found":
            return Said(outcome)
        return Said(outcome, order.quantity, order, outcome == "partly_cancelled" and self.old, refund)

    # -- new orders --------------------------------------------------------------------------------------------------

    def closed(self) -> str | None:
        if self.now_ms / 1000 < (self.terms.starts_at or 0):
            return "not_started"
        if self.terms.ends_at and self.now_ms / 1000 >= self.terms.ends_at:
            return "ended"
        return "paused" if self.terms.paused else None

    def begins(self, wish: Purchase | Hold, begun: dict[str, int], told: list[Said]) -> Said:
        hold, buyer, outcome = isinstance(wish, Hold), wish.buyer, self.closed()
        if outcome is None and not hold and self.terms.price is not None:
            return Said("hold_required", wish.quantity)
        if outcome is None and self.limit and not buyer:
            return Said("", error=BuyerRequired)
        if outcome is None and (self.left == 0 or self.line([*self.orders, *self.new])):
            outcome = "sold_out"
        if outcome is None and self.limit and self.had(buyer) + wish.quantity > self.limit:
            outcome = "limit_reached"
        if outcome is None and wish.quantity > self.left:
            outcome = "sold_out"
        if outcome is not None:
            own = self.own(wish, begun, told) if isinstance(wish, Hold) and buyer else None
            if own is None and isinstance(wish, Hold) and outcome == "sold_out":
                own = self.waits(wish)
                if own and wish.proven and buyer and own.outcome == "waiting":
                    begun[buyer] = len(told)
            return own or Said(outcome, wish.quantity)
        self.left -= wish.quantity
        order = Known("held" if hold else "sold", wish.quantity, buyer, request_id=wish.request_id, at_once=not hold)
        if isinstance(wish, Hold):
            order.price, order.currency, order.proven = self.terms.price, self.terms.currency, wish.proven
            order.ref = wish.ref
            order.pay_by_ms = self.now_ms + HOLD_MS
            order.due_ms = order.pay_by_ms + GRACE_MS
            if wish.proven and buyer:
                begun[buyer] = len(told)
        self.new.append(order)
        return Said(order.state, wish.quantity, order)

    def own(self, wish: Hold, begun: dict[str, int], told: list[Said]) -> Said | None:
        """The order that the buyer has already."""
        assert wish.buyer
        if wish.proven and wish.buyer in begun:
            first = told[begun[wish.buyer]]
            return first._replace(outcome=f"already_{first.outcome}", place=None)
        own = self.open.get(wish.buyer)
        if own is None:
            return None
        if wish.proven and own.proven:
            outcome = {"waiting": "already_waiting", "held": "already_held"}.get(own.state)
            return Said(outcome, own.quantity, own) if outcome else None
        neither = not wish.proven and not own.proven
        return Said("already_waiting", wish.quantity) if own.state == "waiting" and wish.wait and neither else None

    # -- payments ----------------------------------------------------------------------------------------------------

    def confirm(self, order: Known, paid: Confirm) -> Any:  # noqa: PLR0911 - a case each
        ref = paid.payment_ref
        if order.state == "sold":
            return "not_found"
        if any(ref in other.money for other in self.orders if other is not order):
            return "payment_ref_in_use"
        if order.counted and order.counted.ref == ref:
            return "already_confirmed"
        known = order.money.get(ref)
        if known and (known.kind != "wrong" or known.owes or known.given or known.whole):
            return order.not_needed, ref if known.owes else None
        if paid.reported and paid.amount is None and order.price is not None:
            return AmountRequired
        waits = order.state in ("held", "expired")
        amount = order.to_pay if paid.amount is None and waits else paid.amount
        currency = paid.currency or order.currency
        compared = amount if paid.subtotal is None else paid.subtotal
        wrong = None not in (compared, order.to_pay) and compared != order.to_pay
        wrong = wrong or (order.currency is not None and currency != order.currency)
        room = self.left >= order.quantity and not (
            self.limit and order.buyer and self.had(order.buyer) + order.quantity > self.limit
        )
        if not waits or (order.state == "expired" and (wrong or not room)):
            money = Money(ref, amount, currency, "second" if order.counted else "late")
            return order.not_needed if known else self.declines(order, paid, money)
        said = {"payment_ref": ref, "amount": amount, "currency": currency, "subtotal": paid.subtotal}
        if wrong:
            if known is None or (known.amount, known.currency) != (amount, currency):
                self.write("amount_mismatch", order, about="payment", expected=order.to_pay, **said)
                order.money[ref] = Money(ref, amount, currency, "wrong")
            return "amount_mismatch"
        late = order.state == "expired" or None
        self.left -= order.quantity if late else 0
        order.state, order.money[ref] = "confirmed", Money(ref, amount, currency, "counts")
        self.open = {buyer: one for buyer, one in self.open.items() if one is not order}
        self.write("confirmed", order, late=late, paid_at=paid.paid_at, **said)
        self.owes_wrong(order)
        return "confirmed"

    def declines(self, order: Known, paid: Confirm, money: Money) -> Any:
        order.money[money.ref] = money
        in_time = None
        if paid.paid_at is not None and order.state == "expired":
            in_time = paid.paid_at * 1000 <= order.due_ms
        self.is_owed(order, money, paid_at=paid.paid_at, in_time=in_time)
        return order.not_needed, money.ref if money.owes else None

    def is_owed(self, order: Known, money: Money, **more: Any) -> None:
        money.owe(None, why=order.not_needed)
        keep = order.counted.ref if order.counted else None
        about = {"about": "payment", "why": order.not_needed, "payment_ref": money.ref, "amount": money.amount}
        self.write("refund_due", order, keep=keep, currency=money.currency, **about, **more)

    def owes_wrong(self, order: Known) -> None:
        for money in order.money.values():
            if money.waits:
                self.is_owed(order, money)

    # -- holds -------------------------------------------------------------------------------------------------------

    def ends(self, order: Known, state: str, **facts: Any) -> None:
        self.left += order.quantity if order.state == "held" else 0
        order.state = state
        self.open = {buyer: one for buyer, one in self.open.items() if one is not order}
        self.write(state, order, **facts)
        self.owes_wrong(order)

    def extend(self, order: Known, _: Extend) -> Any:
        if order.state != "held":
            return "not_found" if order.state == "sold" else order.state
        if order.extended:
            return "already_extended"
        if order.due_ms <= self.now_ms:
            return "expired"
        order.extended, order.pay_by_ms = True, max(order.pay_by_ms, self.now_ms + PAY_MS)
        order.due_ms = order.pay_by_ms + GRACE_MS
        self.write("extended", order, pay_by=order.pay_by_ms / 1000, goes_back_at=order.due_ms / 1000)
        return "extended"

    def cancel(self, order: Known, wish: Cancel) -> Any:
        self.old = wish.message in order.messages and wish.message not in self.said_now
        if wish.message in order.messages:
            return order.messages[wish.message]
        if order.state not in ("held", "waiting"):
            return {"sold": "confirmed", "cancelled": "already_cancelled"}.get(order.state, order.state)
        by = wish.by or None
        if wish.units is None or wish.units == order.quantity:
            self.ends(order, "cancelled", by=by)
            return "cancelled"
        if not 0 < wish.units < order.quantity:
            return "too_much"
        order.quantity -= wish.units
        self.left += wish.units if order.state == "held" else 0
        said = self.remembers(order, wish.message, "partly_cancelled")
        self.write("cancelled", order, about="units", units=wish.units, by=by, **said)
        return "partly_cancelled"

    def remembers(self, order: Known, message: str | None, outcome: str) -> dict[str, str]:
        if message is None:
            return {}
        self.said_now.add(message)
        order.messages[message] = outcome
        return {"message": message, "outcome": outcome}

    # -- money that goes back ----------------------------------------------------------------------------------------

    def refund(self, order: Known, wish: Refund) -> Any:
        ref, counted = wish.payment_ref, order.counted
        if wish.message in order.messages:
            return order.messages[wish.message]
        named = next(((money, one) for money, one in order.owing() if one.name == wish.name), None)
        if wish.name is not None:
            return "nothing_due" if named is None or wish.later else self.by_name(order, wish, *named)
        own = order.state in ("sold", "confirmed") and ref in (None, counted and counted.ref)
        if own and (wish.amount is None or wish.units is not None):
            return self.of_order(order, wish)
        owing = [one for one in order.money.values() if (one.owes or one.waits) and ref in (None, one.ref)]
        if own and counted:
            owing = [counted]
        owing = [one for one in owing if one.left or not wish.later]
        if not owing or wish.units is not None:
            whole = any(one.given_whole for one in order.money.values() if ref in (None, one.ref))
            return "already_refunded" if whole or (ref is None and order.state == "refunded") else "nothing_due"
        if wish.amount is not None and (len(owing) > 1 or not self.fits(owing[0], wish, wish.amount)):
            return "too_much"
        events = list[tuple[str, dict[str, Any]]]()
        for money in owing:
            facts = {"about": "payment", **self.moves(money, wish, wish.amount)}
            if own and money.given_whole:
                facts |= {"about": "order", "restock": wish.restock}
                self.is_refunded(order, restock=wish.restock)
            events.append(("refund_due" if wish.later else "refunded", facts))
        whole = not wish.later and all(one.given_whole for one in owing)
        outcome = "refunded" if whole else "partly_refunded"
        said = self.remembers(order, wish.message, outcome)
        for turn, (kind, facts) in enumerate(events):
            self.write(kind, order, by=wish.by or None, **facts, **({} if turn else said))
        return outcome

    def by_name(self, order: Known, wish: Refund, money: Money, one: Owed) -> Any:
        amount = one.amount if wish.amount is None else wish.amount
        if wish.amount is not None and (wish.amount <= 0 or (one.amount is not None and wish.amount > one.amount)):
            return "too_much"
        if wish.units is not None:
            return "already_refunded" if money.given_whole else "nothing_due"
        money.owes.remove(one)
        money.given += amount or 0
        if one.amount is None:
            money.owes, money.whole = [], amount is None
        elif amount is not None and amount < one.amount:
            rest = replace(one, amount=one.amount - amount)
            money.owes.append(rest if wish.elsewhere else Owed(rest.amount, by=one.by, why=one.why))
        facts = {"about": "payment", "payment_ref": money.ref, "currency": money.currency, "amount": amount or 0}
        if order.state == "confirmed" and money is order.counted and money.given_whole:
            facts |= {"about": "order", "restock": wish.restock}
            self.is_refunded(order, restock=wish.restock)
        outcome = "refunded" if money.given_whole else "partly_refunded"
        said = self.remembers(order, wish.message, outcome)
        self.write("refunded", order, by=wish.by or None, **facts, **said)
        return outcome

    def of_order(self, order: Known, wish: Refund) -> Any:
        units = wish.units or order.quantity
        if not 0 < units <= order.quantity:
            return "too_much"
        ends, amount, money = units == order.quantity, wish.amount, order.counted
        if amount is None and not ends and order.price is not None:
            amount = order.price * units
        facts: dict[str, Any] = {}
        if money and (ends or amount):
            if amount is not None and not self.fits(money, wish, amount):
                return "too_much"
            facts = self.moves(money, wish, amount, 0 if ends else units)
        elif money:
            facts = {"payment_ref": money.ref, "currency": money.currency}
        facts |= {"about": "order" if ends else "units", "restock": wish.restock, "units": None if ends else units}
        if ends:
            self.is_refunded(order, restock=wish.restock)
        else:
            order.quantity -= units
            self.left += units if wish.restock else 0
        if money and not ends and money.given_whole:  # the units are more than what was left of the money
            facts |= {"about": "units"}
        outcome = "refunded" if ends else "partly_refunded"
        said = self.remembers(order, wish.message, outcome)
        self.write("refunded", order, by=wish.by or None, **facts, **said)
        return outcome

    def fits(self, money: Money, wish: Refund, amount: int) -> bool:
        if wish.later:
            return 0 < amount <= money.left
        return amount > 0 and (money.amount is None or money.given + amount <= money.amount)

    def moves(self, money: Money, wish: Refund, amount: int | None, units: int = 0) -> dict[str, Any]:
        """Have a payment given back, or owed; and return the facts of that."""
        facts: dict[str, Any] = {"payment_ref": money.ref, "currency": money.currency}
        if wish.later:
            return facts | money.owe(amount, by=wish.by, units=units)
        if amount is None:
            moved = money.give_all()
            return facts | ({"amount": moved} if moved or money.amount is None else {})
        money.give(amount)
        return facts | {"amount": amount}

    def is_refunded(self, order: Known, *, restock: bool) -> None:
        order.state = "refunded"
        self.left += order.quantity if restock else 0

    def givenback(self, order: Known, told: GivenBack) -> Any:
        money = order.money.get(told.payment_ref)
        if money is None:
            return "nothing_due"
        if told.refund_id in money.was:
            return "already_refunded"
        one = next(one for one in money.owes if one.name == told.name)
        money.was[str(told.refund_id)] = one.amount
        money.owes.remove(one)
        money.given += one.amount or 0
        if one.amount is None:
            money.whole, money.owes = True, [other for other in money.owes if other.state == "asked"]
        facts = {"about": "payment", "payment_ref": money.ref, "currency": money.currency, "amount": one.amount or 0}
        if order.state == "confirmed" and money is order.counted and money.given_whole:
            facts |= {"about": "order", "restock": False}
            self.is_refunded(order, restock=False)
        self.write("refunded", order, by=told.by, **facts)
        return "refunded" if money.given_whole else "partly_refunded"

    def requestrefund(self, order: Known, wish: RequestRefund) -> Any:
        money, one = next(((money, one) for money, one in order.owing() if one.name == wish.name), (None, None))
        if money is None or one is None:
            return "nothing_due"
        if one.state != ("failed" if wish.again else "due"):
            return "already_requested" if one.state == "asked" else "nothing_due"
        if one.amount is None and not wish.again and any(o.state != "failed" for o in money.owes if o is not one):
            return "nothing_due"
        if wish.again:  # under another name
            money.owes[money.owes.index(one)] = Owed(one.amount, by=wish.by, units=one.units)
        else:
            one.state, one.asked_ms = "asked", self.now_ms
        about = {"about": "payment", "payment_ref": money.ref, "currency": money.currency, "amount": one.amount}
        self.write("refund_due" if wish.again else "refund_requested", order, by=wish.by or None, **about)
        return "requested"

    def incident(self, order: Known, told: Incident) -> Any:
        one = next((one for _, one in order.owing() if one.name == told.name), None)
        if one is None or one.state != "asked":
            return "already_noted"
        money = order.money[told.payment_ref]
        one.state, one.why, one.by = "failed", told.why, told.by
        about = {"about": "payment", "payment_ref": money.ref, "currency": money.currency, "amount": one.amount}
        self.write("refund_failed", order, why=told.why, by=told.by, **about)
        return "noted"


def _without_key(command: Command) -> Any:
    if isinstance(command, Purchase | Hold):
        return command.quantity, command.buyer
    return tuple(value for name, value in command._asdict().items() if name != "key")


class Sale:
    """The program's rule on a store in memory, beside the book."""

    def __init__(self, stock: int, terms: Terms) -> None:
        self.now_ms = 1_700_000_000_000
        self.store = MemoryStockStore(MemoryServer(lambda: self.now_ms / 1000))
        self.names, self.batches = count(1), count(1)
        self.book = Book(stock, terms, self.now_ms)
        self.run(self.store.set_stock(SKU, self.fence(), stock, terms=terms.named))
        self.ledger, self.read, self.paid = Ledger(), 0, set[str | None]()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The store in memory waits for nothing, and needs no loop."""
        try:
            work.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits")

    def fence(self) -> Fence:
        return Fence(1, "memory")

    def waits(self, wait_ms: int) -> None:
        if wait_ms < 0:
            ends = [one.due_ms for one in self.book.orders if one.state == "held" and one.due_ms > self.now_ms]
            wait_ms = min(ends, default=self.now_ms) - self.now_ms - (wait_ms == JUST_BEFORE)
        self.now_ms += max(0, wait_ms)

    def batch(self, commands: list[Command]) -> None:
        """Have a batch decided and written, and compare all that can be seen of it."""
        item, batch_id = Item(SKU), f"b{next(self.batches)}"
        unanswered: Any = Future()
        entries = [Entry(one, item, unanswered, 0.0, bool) for one in commands]
        for entry in entries:
            entry.came_at = self.now_ms / 1000
        [snapshot] = self.run(self.store.prepare(self.fence(), batch_id, {SKU: ask(entries)})).values()
        (part,) = decide_parts(batch_id, {item: snapshot}, entries, Clocked(Terms(), GRACE_MS / 1000))
        [numbers] = self.run(self.store.commit(self.fence(), {SKU: part.write})).values()
        assert not self.paid & {change.payment for change in part.write.changes}  # each belongs to its order once
        self.paid |= {change.payment for change in part.write.changes if change.payment is not None}
        answers = [answer for _, answer in part.answers(numbers)]
        self.book.now_ms = self.now_ms
        expected = self.book.batch(commands)
        at_once = [one for one in self.book.new if one.state == "sold"]
        kept = [one for one in self.book.new if one not in at_once or one.request_id]
        for order, number, secret in zip(
            [*kept, *(one for one in at_once if not one.request_id)], numbers, part.write.secrets, strict=True
        ):
            order.number, order.secret = number, secret
        self.book.orders += self.book.new
        for command, told, said in zip(commands, answers, expected, strict=True):
            check_answer(command, told, said)
        self.compare(commands)

    def compare(self, commands: list[Command]) -> None:
        """The store has what the book has, the journal tells it, and the auditor finds nothing wrong."""
        [level] = self.run(self.store.levels([SKU])).values()
        assert level.stock == self.book.left
        line = self.book.line(self.book.orders)
        wanted = [one.quantity for one in line]
        assert level.wants <= max(wanted, default=0)
        if line and self.book.closed() is None:  # nobody waits for units that are there
            assert (min(wanted) if self.book.terms.smaller_first else wanted[0]) > level.stock
            assert level.wants == wanted[0] or self.book.terms.smaller_first
        assert [self.run(self.store.before(self.run(self.store.order(SKU, one.number)))) for one in line] == [
            *range(len(line))
        ]
        journal = self.run(self.store.journal(SKU, limit=10_000))[self.read :]
        self.read += len(journal)
        changes = [one for one in journal if one.number > 1]
        assert [(str(one.kind), one.order.number) for one in changes] == [
            (kind, order.number) for kind, order, _ in self.book.events
        ], commands
        for event, (_, _, facts) in zip(changes, self.book.events, strict=True):
            own = {
                name: one for name, one in event.facts.items() if name not in ("changes", "sums", "state", "refunds")
            }
            assert own == facts, commands
            assert ("sums" in event.facts) == ("payment_ref" in facts), commands
        for event in journal:
            self.ledger.add(event)
        assert not self.ledger.compare(level).violations
        assert self.paid == {ref for order in self.book.orders for ref in order.money}
        for order in self.book.orders:
            record = self.run(self.store.order(SKU, order.number)).record
            check_record(record, order)


def check_answer(command: Command, told: Answer | Exception, said: Said) -> None:
    if said.error is not None:
        assert (type(told), str(told)) == (said.error, ERRORS[said.error]), command
        return
    assert isinstance(told, Answer) and type(told.outcome) is OUTCOMES.get(type(command), ExpiryOutcome), command
    number = said.order.number if said.order else None
    found = (str(told.outcome), told.quantity, told.order.number if told.order else None, told.replayed, told.refund)
    assert found == (said.outcome, said.quantity, number, said.replayed, said.refund), command
    if said.place is not None and not said.replayed:
        assert told.place is not None and told.place.number == said.place, command


def check_record(record: Record, order: Known) -> None:
    """An order stands as the book has it; the book takes the names of its refunds, which are made at random."""
    assert Record.from_text(record.number, record.to_text()) == record
    own = (record.state, record.quantity, record.buyer, record.ref, record.extended, record.pay_by_ms, record.due_ms)
    known = (order.state, order.quantity, order.buyer, order.ref, order.extended, order.pay_by_ms, order.due_ms)
    assert own == known
    assert {one.name: one.outcome for one in record.notices} == order.messages
    assert [one.ref for one in record.payments] == [*order.money]
    for payment in record.payments:
        money = order.money[payment.ref]
        assert (payment.amount, payment.currency, payment.state) == (money.amount, money.currency, money.kind)
        assert (payment.given_back, payment.given_whole, payment.owed) == (money.given, money.given_whole, money.owed)
        open_ = [
            Owed(one.amount, str(one.state), one.name, one.by, one.why, one.units, round((one.at or 0) * 1000))
            for one in payment.open
        ]
        if not any(one.state == "?" for one in money.owes):  # else parts were settled, which is `settle`'s to choose
            assert sorted(one.shown for one in open_) == sorted(one.shown for one in money.owes)
            named = {one.name for one in money.owes} - {""}
            assert named <= {one.name for one in open_}
        money.owes = open_


# -- whatever may be asked ---------------------------------------------------------------------------------------------

BUYERS = (None, "ann", "bob", "cid", "dee")
SMALL = st.integers(0, 5)
KINDS = (
    *("hold", "hold", "buy", "pay", "pay", "pay", "late", "extend", "cancel"),
    *("refund", "refund", "refund", "request", "request", "expire"),
)


def commands(  # noqa: PLR0911, PLR0912 - a case each
    sale: Sale, kind: str, pick: int, n: int, m: int, flag: bool, key: int
) -> list[Command]:
    """Make a command, or two, of some small numbers: most are about an order and a refund that are there."""
    own: dict[str, Any] = {"key": f"k{key}"} if key < 2 else {}
    book = sale.book
    more: dict[str, Any] = {"request_id": "r", "traceparent": "trace r"} if m > 3 else {}
    if kind == "buy" and (book.terms.price is None or key == 9):
        return [Purchase(1 + n % 3, SKU, BUYERS[m % 5], **own, **more)]
    if kind in ("buy", "hold"):
        ref = f"ref {m % 2}" if n > 2 else None
        wish = Hold(1 + n % 3, SKU, BUYERS[m % 5], **own, ref=ref, **more, proven=flag or m > 1, wait=pick % 2 == 0)
        return [wish, wish._replace(ref=None)] if key in (0, 9) else [wish]
    if kind == "expire" or not book.orders:
        return [Expire(SKU)]
    ended = [one for one in book.orders if one.state == "expired"] if kind == "late" else []
    order = (ended or book.orders)[-1 - pick % len(ended or book.orders)]
    about = SKU, order.number, "b" * 32 if pick == 5 and n == m else order.secret
    by = "zoe" if flag else ""
    if kind in ("pay", "late"):
        ref, to_pay = "joint" if m == 5 else f"{order.number} {m % 3}", order.to_pay or 7
        amount = (None, to_pay, to_pay, to_pay, to_pay + 1, 0)[n]
        subtotal = (to_pay, None, to_pay - 1, None, None, None)[(m + key) % 6]
        more = {**own, "subtotal": subtotal, "reported": flag}
        more["paid_at"] = (None, order.due_ms / 1000, order.due_ms / 1000 + 0.001)[key % 3]
        paid = Confirm(*about, ref, amount, ("EUR", "EUR", None, "USD")[max(0, key - 6)], **more)
        return [paid, Extend(*about)] if key == 7 else [paid]
    if kind == "extend":
        return [Extend(*about, **own)]
    if kind == "cancel":
        units = (None, 1, 2, 0, order.quantity, 9)[n]
        return [Cancel(*about, by, units=units, message=f"c{m}" if m < 3 else None, **own)]
    owing = list(order.owing())
    money, one = owing[m % len(owing)] if owing else (None, None)
    if kind == "request" and one is not None and money is not None:
        if one.state == "asked" and n < 4:
            if flag:
                why: dict[str, Any] = {"name": one.name, "why": "no", "by": BY}
                return [Incident(*about, EventKind.REFUND_FAILED, money.ref, **why)]
            return [GivenBack(*about, money.ref, BY, one.amount, refund_id=f"re_{next(sale.names)}", name=one.name)]
        return [RequestRefund(*about, one.name if n < 5 else "another", by, again=one.state == "failed" or n == 0)]
    if kind == "request":
        again = [(money.ref, own) for money in order.money.values() for own in money.was]
        ref, refund_id = again[0] if again else ("none", "re")
        return [GivenBack(*about, ref, BY, 1, refund_id=refund_id)]
    refund: dict[str, Any] = {"message": f"w{m}" if m < 3 and pick < 3 else None, "later": flag, "by": by}
    refund["elsewhere"] = pick % 2 == 1
    if n == 0:
        refund["units"] = 1 + m % 3
    elif n == 1:
        refund["units"], refund["amount"] = 1, m
    elif n in (2, 3) and order.money:
        refund["payment_ref"] = list(order.money)[m % len(order.money)]
        refund["amount"] = None if n == 3 and m < 3 else (2, 1, 5, 10, 0, 7)[m]
    elif n == 4 and one is not None:
        refund["name"], refund["later"] = one.name, m == 5
        refund["amount"] = None if m < 2 else (one.amount or 3) - 3 + m
    asked = Refund(*about, pick % 3 > 0, **refund)
    return [Expire(SKU) if is_chosen_by_settle(order, asked) else asked]


def is_chosen_by_settle(order: Known, wish: Refund) -> bool:
    """Some went back while more is on its way, or is to go back of what nobody has counted: that is `settle`'s."""
    if wish.later or wish.amount is None:
        return False
    if wish.name is not None:
        return any(one.name == wish.name and one.amount is None and len(money.owes) > 1 for money, one in order.owing())
    return any(one.state == "asked" or one.amount is None for _, one in order.owing())


def one_of_money_each(wishes: Iterable[Command]) -> Iterator[Command]:
    """Of several in a batch about money that goes back of one order the first: `settle` chooses among its refunds."""
    seen = set[str]()
    for one in wishes:
        if not isinstance(one, Refund | GivenBack | RequestRefund | Incident):
            yield one
        elif one.number not in seen:
            seen.add(one.number)
            yield one


WISHES = st.tuples(st.sampled_from(KINDS), SMALL, SMALL, SMALL, st.booleans(), st.integers(0, 9))
TO_THE_END, JUST_BEFORE = -1, -2  # of the hold that ends next
WAITS_MS = st.sampled_from([0, 0, 0, 0, 1, 1_000, 1_999, HOLD_MS, PAY_MS, TO_THE_END, TO_THE_END, JUST_BEFORE])
ACTS = st.lists(st.tuples(WAITS_MS, st.lists(WISHES, min_size=1, max_size=4)), min_size=6, max_size=14)
HOURS = st.sampled_from(
    [{}, {}, {}, {}, {"starts_at": 1_700_000_001.0}, {"ends_at": 1_700_000_012.0}, {"paused": "wait"}]
)
# An order is paid wrongly, then rightly, and owes a part: the provider is asked, which fails, and is tried again.
BEGUN: list[tuple[Any, ...]] = [
    *(("pay", 0, n, 0, False, 3) for n in (4, 4, 5, 0)),
    ("refund", 0, 2, 0, True, 3),
    ("request", 0, 1, 0, False, 3),
    ("request", 0, 1, 0, True, 3),
    ("request", 0, 1, 0, True, 3),
]


@pytest.mark.parametrize("examples", [200, pytest.param(600, marks=pytest.mark.slow)])
def test_the_rule_decides_as_the_book_does(examples: int) -> None:
    """All commands, several in a batch, at the very instants at which holds end, once more by their keys, and again."""
    kinds = {"stock": st.integers(4, 9), "limit": st.sampled_from([0, 0, 3, 4]), "priced": st.booleans()}
    kinds |= {"smaller_first": st.booleans(), "begun": st.sampled_from([0, 0, *range(len(BEGUN) + 1)])}
    settings(max_examples=examples)(given(acts=ACTS, hours=HOURS, **kinds)(play))()


def play(acts: Any, stock: int, limit: int, priced: bool, smaller_first: bool, begun: int, hours: Any) -> None:
    price: dict[str, Any] = {"price": PRICE, "currency": "EUR"} if priced else {}
    price |= {"offer_s": OFFER_MS / 1000, "smaller_first": smaller_first}
    sale = Sale(stock, Terms(limit_per_buyer=limit, hold_s=HOLD_MS / 1000, pay_s=PAY_MS / 1000, **price, **hours))
    sale.batch([Hold(3, SKU, "ann"), Hold(2, SKU, "bob", proven=True), Expire(SKU)])
    for wait_ms, wishes in [*((0, [wish]) for wish in BEGUN[:begun]), *acts]:
        sale.waits(wait_ms)
        sale.batch(list(one_of_money_each(one for wish in wishes for one in commands(sale, *wish))))
