"""Two instances, and whatever operators and buyers may do in any order, against a small model of the books."""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.errors import HasOrders, UnknownItem
from app.orders import Cancel, Confirm, Expire, Extend, Hold, OrderId, Purchase, Refund, TermsChange
from app.orders.record import ERASED
from app.settings import load
from app.wiring import Sale, open_sale
from lab.servers import MariaDB, Valkey
from lab.torture import judge_money
from lab.torture.books import journal_of, kept_of
from lab.torture.history import FinalState, Flow, History, Item, Setup
from lab.torture.judge_money import Money
from tests.harness.servers import optional
from tests.harness.waiting import eventually

PRICE = 5
LIMIT = 3
BUYERS = st.sampled_from(("ann", "bob"))
UNITS = st.sampled_from((2, 1, 3))
WHICH = st.integers(0, 1)  # of the two instances
PICK = st.integers(0, 9)  # of the orders


@dataclass
class Known:
    """An order, as the model has it.

    `wrong`: payments of a wrong amount, as long as a right one may come; `owed`: payments that are to be given back.
    """

    state: str
    quantity: int
    buyer: str
    wrong: int = 0
    owed: int = 0
    given_back: bool = False
    priced: bool = True

    def ends(self, state: str) -> None:
        """What was paid wrongly is owed as soon as the order waits for no money any more."""
        self.state, self.owed, self.wrong = state, self.owed + self.wrong, 0


class Books(RuleBasedStateMachine):
    """The model: units left, and how each order stands. The program is two sales on one store."""

    store: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opened = [AsyncExitStack(), AsyncExitStack()]
        self.sku, self.prefix = f"item-{uuid.uuid4().hex[:8]}", f"/books/{uuid.uuid4().hex}"
        self.sales: list[Sale] = [self.open(0), self.open(1)]
        self.left: int | None = None  # no such item
        self.initial = self.count = 0
        self.came = 0  # all units that ever were there: some may have been taken away again
        self.priced = True
        self.orders: dict[OrderId, Known] = {}

    def open(self, which: int) -> Sale:
        own = load(lock="local://", store=self.store, guard="fence", instance=f"i{which}", lock_prefix=self.prefix)
        own = own.model_copy(update={"audit_interval_s": 0.0, "sold_out_ttl_ms": 0, "grace_s": 0.0})
        return self.run(self.opened[which].enter_async_context(open_sale(own)))

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        for one in self.opened:
            self.run(one.aclose())
        self.runner.close()

    def there(self) -> bool:
        return self.left is not None

    def rarely(self) -> bool:
        """Else nothing would live for long enough to have a story."""
        return self.left is not None and self.count % 6 == 5

    def had(self, buyer: str) -> int:
        """The units that count for a buyer's limit."""
        counted = ("sold", "held", "confirmed")
        return sum(one.quantity for one in self.orders.values() if one.buyer == buyer and one.state in counted)

    def order(self, pick: int) -> OrderId:
        """0 is the newest: those that have ended long ago have no story any more."""
        return list(reversed(self.orders))[pick % len(self.orders)]

    def several(self) -> list[OrderId]:
        """The orders of which some units may be given back."""
        live = ("held", "confirmed", "sold")
        return [order for order, one in self.orders.items() if one.quantity > 1 and one.state in live]

    def ask(self, which: int, command: Any) -> Any:
        return self.run(self.sales[which].shop.submit(command))

    # -- the operator --------------------------------------------------------------------------------------------------

    @initialize(units=st.integers(2, 7))
    def begin(self, units: int) -> None:
        self.sell_anew(0, units, priced=True)

    @precondition(lambda self: self.left is None or self.rarely())
    @rule(which=WHICH, units=st.integers(0, 7), priced=st.booleans())
    def sell_anew(self, which: int, units: int, priced: bool) -> None:
        price = {"price": PRICE, "currency": "EUR"} if priced else {"price": None, "currency": None}
        terms: TermsChange = {**price, "limit_per_buyer": LIMIT}
        self.run(self.sales[which].stock.set_stock(self.sku, units, new_sale=True, terms=terms))
        self.left = self.initial = self.came = units
        self.priced = priced
        self.orders = {}

    @precondition(there)
    @rule(which=WHICH, units=st.integers(1, 5), add=st.booleans())
    def restock(self, which: int, units: int, add: bool) -> None:
        """So many more, or so many from now on, whatever there was."""
        self.run(self.sales[which].stock.set_stock(self.sku, units, add=add))
        more = units if add else units - (self.left or 0)
        self.left, self.initial, self.came = (self.left or 0) + more, self.initial + more, self.came + max(0, more)

    @precondition(rarely)
    @rule(which=WHICH)
    def remove(self, which: int) -> None:
        try:
            self.run(self.sales[which].stock.remove(self.sku))
        except HasOrders:
            assert self.orders
            return
        assert not self.orders
        self.left = None

    @precondition(lambda self: self.count % 5 == 2)
    @rule(which=WHICH)
    def restart(self, which: int) -> None:
        self.run(self.opened[which].aclose())
        self.opened[which] = AsyncExitStack()
        self.sales[which] = self.open(which)

    @precondition(lambda self: self.left is not None and self.count % 4 == 3)
    @rule(which=WHICH, buyer=BUYERS)
    def erase(self, which: int, buyer: str) -> None:
        self.run(self.sales[which].orders.erase(self.sku, buyer))
        for order, one in self.orders.items():
            if one.buyer == buyer:
                self.orders[order] = replace(one, buyer=ERASED)

    # -- buyers and payers ---------------------------------------------------------------------------------------------

    @rule(which=WHICH, buyer=BUYERS, units=UNITS)
    def hold(self, which: int, buyer: str, units: int) -> None:
        self.count += 1
        command = Hold(units, self.sku, buyer, f"key-{self.count}", f"ref-{self.count}")
        if self.left is None:
            with pytest.raises(UnknownItem):
                self.ask(which, command)
            return
        told = self.ask(which, command)
        again = self.ask(1 - which, command)  # with the same key, elsewhere
        assert (again.outcome, again.order) == (told.outcome, told.order)
        if self.had(buyer) + units > LIMIT:
            assert told.outcome in ("limit_reached", "sold_out")
        elif units > self.left:
            assert told.outcome == "sold_out"
        else:
            assert told.outcome == "held"
            self.left -= units
            self.orders[told.order] = Known("held", units, buyer, priced=self.priced)

    @precondition(lambda self: self.left is not None and self.count % 6 == 2)
    @rule(which=WHICH)
    def run_out(self, which: int) -> None:
        """A hold of the shortest window runs out, by the clock, and goes back with what the other instance does."""
        terms = self.sales[which].stock
        self.run(terms.set_stock(self.sku, 0, add=True, terms={"hold_s": 1.0}))
        before = set(self.orders)
        self.hold(which, "ann", 1)
        self.run(terms.set_stock(self.sku, 0, add=True, terms={"hold_s": None}))
        for order in self.orders.keys() - before:
            eventually(lambda: self.expires(1 - which, 1))
            self.orders[order].ends("expired")
            self.left = (self.left or 0) + 1

    def expires(self, which: int, units: int) -> bool:
        """Whether so many units less are held than the model has."""
        self.ask(which, Expire(self.sku))
        held = sum(one.quantity for one in self.orders.values() if one.state == "held")
        return bool(self.run(self.sales[which].store.level(self.sku)).held == held - units)

    @precondition(lambda self: self.left is not None and (not self.priced or self.count % 8 == 1))
    @rule(which=WHICH, buyer=BUYERS)
    def buy_at_once(self, which: int, buyer: str) -> None:
        self.count += 1
        command = Purchase(1, self.sku, buyer, f"key-{self.count}")
        told, again = self.ask(which, command), self.ask(1 - which, command)
        assert (again.outcome, again.order) == (told.outcome, told.order)
        if self.priced:
            assert told.outcome == "hold_required"
        elif not self.left:
            assert told.outcome == "sold_out"
        elif self.had(buyer) + 1 > LIMIT:
            assert told.outcome == "limit_reached"
        else:
            assert told.outcome == "sold"
            self.left -= 1
            self.orders[told.order] = Known("sold", 1, buyer, priced=False)

    @precondition(lambda self: self.orders)
    @rule(which=WHICH, pick=PICK, right=st.sampled_from((True, True, False)))
    def confirm(self, which: int, pick: int, right: bool) -> None:
        order, one = self.order(pick), self.orders[self.order(pick)]
        self.count += 1
        told = self.ask(which, Confirm(*order, f"pay-{self.count}", PRICE * one.quantity - (not right), "EUR"))
        right |= not one.priced
        over = one.buyer != ERASED and self.had(one.buyer) + one.quantity > LIMIT
        if one.state == "sold":
            assert told.outcome == "not_found"
        elif one.state == "expired" and right and one.quantity <= (self.left or 0) and not over:
            assert told.outcome == "confirmed"
            one.ends("confirmed")
            self.left = (self.left or 0) - one.quantity
        elif one.state == "held":
            assert told.outcome == ("confirmed" if right else "amount_mismatch")
            if right:
                one.ends("confirmed")
            else:
                one.wrong += 1
        else:
            assert told.refund == f"pay-{self.count}"
            one.owed += 1

    @precondition(lambda self: self.orders)
    @rule(which=WHICH, pick=PICK)
    def extend(self, which: int, pick: int) -> None:
        one = self.orders[self.order(pick)]
        told = self.ask(which, Extend(*self.order(pick)))
        after = {"held": ("extended", "already_extended"), "sold": ("not_found",)}
        assert told.outcome in after.get(one.state, (one.state,))

    @precondition(lambda self: self.orders)
    @rule(which=WHICH, pick=PICK)
    def cancel(self, which: int, pick: int) -> None:
        one = self.orders[self.order(pick)]
        told = self.ask(which, Cancel(*self.order(pick)))
        if one.state == "held":
            assert told.outcome == "cancelled"
            one.ends("cancelled")
            self.left = (self.left or 0) + one.quantity
        else:
            assert told.outcome == {"cancelled": "already_cancelled", "sold": "confirmed"}.get(one.state, one.state)

    @precondition(lambda self: self.several())
    @rule(which=WHICH, pick=PICK, restock=st.booleans())
    def give_one_back(self, which: int, pick: int, restock: bool) -> None:
        """One unit of several: of a hold it goes back at once, of what was bought with its price."""
        order = self.several()[pick % len(self.several())]
        one = self.orders[order]
        self.count += 1
        held, name = one.state == "held", f"part-{self.count}"
        part = Cancel(*order, units=1, message=name) if held else Refund(*order, restock, units=1, message=name)
        told, again = self.ask(which, part), self.ask(1 - which, part)
        assert told.outcome == again.outcome == ("partly_cancelled" if held else "partly_refunded")
        one.quantity -= 1
        self.left = (self.left or 0) + (held or restock)

    @precondition(lambda self: self.orders)
    @rule(which=WHICH, pick=PICK, restock=st.booleans())
    def refund(self, which: int, pick: int, restock: bool) -> None:
        one = self.orders[self.order(pick)]
        told = self.ask(which, Refund(*self.order(pick), restock))
        if one.state in ("confirmed", "sold"):  # the order first, and then what else was paid
            assert told.outcome == "refunded"
            one.state, one.given_back = "refunded", True
            self.left = (self.left or 0) + (one.quantity if restock else 0)
        elif one.owed + one.wrong:
            assert told.outcome == "refunded"
            one.owed, one.wrong, one.given_back = 0, 0, True
        else:
            assert told.outcome == ("already_refunded" if one.given_back else "nothing_due")

    # -- the books -----------------------------------------------------------------------------------------------------

    @invariant()
    def the_numbers_are_right(self) -> None:
        if self.left is None:
            with pytest.raises(UnknownItem):
                self.run(self.sales[0].store.level(self.sku))
            return
        level = self.run(self.sales[0].store.level(self.sku))
        held = sum(one.quantity for one in self.orders.values() if one.state == "held")
        assert (level.stock, level.held, level.initial) == (self.left, held, self.initial)

    @invariant()
    def the_orders_are_right(self) -> None:
        if self.left is None:
            return
        store = self.sales[1].store
        journal = self.run(journal_of(store, self.sku))
        kept = self.run(kept_of(store, self.sku, journal))
        model = {str(order): (one.state, one.quantity, one.buyer, one.owed) for order, one in self.orders.items()}
        about = ("state", "quantity", "buyer")
        there = {
            one.order: (*(one.shown[name] for name in about), sum(map(is_owed, one.shown["payments"]))) for one in kept
        }
        assert there == model
        setup = Setup((), 2, 1, 1, "", "", "fence", 0, (), flows=(Flow(Item(self.sku, self.came), 0, 0, 0, PRICE),))
        books = Money(History(setup), FinalState(journal=tuple(journal), kept=tuple(kept)))
        for check in (judge_money.units_in_one_place, judge_money.orders_live_once, judge_money.records_agree):
            assert not list(check(books))
        assert not self.run(self.sales[1].audit(self.sku)).violations


def is_owed(payment: dict[str, Any]) -> bool:
    return payment["owed"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)  # shrinking takes minutes
@pytest.mark.parametrize(
    ("server", "stories"),
    [
        *((Valkey, 20), (MariaDB, 10)),  # its commands take ten times as long
        *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in ((Valkey, 60), (MariaDB, 40))),
    ],
)
def test_the_books_are_right_in_any_order_of_things(server: Callable[[], Any], stories: int) -> None:
    """A failure is shrunk to the shortest story that shows it."""
    with optional(server) as store:
        kind = type("OnThisStore", (Books,), {"store": store.url})
        run_state_machine_as_test(
            kind,
            settings=settings(
                max_examples=stories,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
