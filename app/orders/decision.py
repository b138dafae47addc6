"""The one rule of the sale, as a pure function: it decides the commands of a batch."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from app.errors import (
    AmountRequired,
    BasketNotPossible,
    BuyerRequired,
    KeyReused,
    SeckillError,
    StockCorrupt,
    UnknownItem,
)
from app.orders.account import Payment, PaymentState
from app.orders.commands import (
    AnyOutcome,
    Cancel,
    CancelOutcome,
    Command,
    Confirm,
    ConfirmOutcome,
    Expire,
    ExpiryOutcome,
    Extend,
    ExtendOutcome,
    GivenBack,
    Hold,
    HoldOutcome,
    Incident,
    IncidentOutcome,
    OrderCommand,
    Outcome,
    Place,
    Purchase,
    Refund,
    RefundOutcome,
    RequestOutcome,
    RequestRefund,
    basket_of,
    fingerprint,
    key_of,
)
from app.orders.facts import NO_FACTS, Facts, known
from app.orders.id import OrderId, new_name
from app.orders.life import changed, of_line
from app.orders.record import ERASED, EventKind, Line, OrderChange, OrderState, Record
from app.orders.refunds import owe, ruling
from app.orders.settle import Names
from app.orders.snapshot import Settled, Snapshot
from app.orders.terms import NO_TERMS, Terms


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a command: new, settled before, a repeat within the batch, or an error."""

    outcome: AnyOutcome | None = None  # of a new decision
    settled: Settled | None = None  # the answer that this key got before
    # the index of the earlier command of this batch; with an `outcome` a hold of the same buyer is shown
    repeats: int | None = None
    error: SeckillError | None = None  # no decision is possible
    begins: Record | None = None  # the new order, if it begins with a record
    record: Record | None = None  # the order of the command, in its new state
    refund: str | None = None  # the payment to give back
    place: Place | None = None  # of an order that waits
    line: str | None = None  # see `Answer`
    basket: str | None = None  # a name of the new order for its lines, until it has a number


LINE_MAX: Final = 10_000  # places in the line of an item
_HOLD_S: Final = 600.0
_PAY_S: Final = 900.0


class Windows(NamedTuple):
    """How long units are held, and their price, in the minor unit of the currency."""

    hold_ms: int = 600_000
    pay_ms: int = 900_000
    grace_ms: int = 60_000
    price: int | None = None
    currency: str | None = None
    offer_ms: int = 600_000
    smaller_first: bool = False

    @property
    def lasting_s(self) -> float:
        """The longest time of a hold, which may be extended as late as in its grace."""
        return (max(self.hold_ms, self.offer_ms) + self.pay_ms + 2 * self.grace_ms) / 1000

    @classmethod
    def of(cls, terms: Terms, grace_s: float) -> "Windows":
        """Return the windows of an item on these terms; the second one is not shorter than the first."""
        hold_ms = round((terms.hold_s or _HOLD_S) * 1000)
        pay_ms = max(hold_ms, round((terms.pay_s or _PAY_S) * 1000))
        line = round((terms.offer_s or 0) * 1000) or hold_ms, bool(terms.smaller_first)
        return cls(hold_ms, pay_ms, round(grace_s * 1000), terms.price, terms.currency, *line)


_BY_DEFAULT: Final = Windows()
NO_ERRORS: Final[Mapping[str, SeckillError]] = {}


class Decided(NamedTuple):
    """The decisions on a batch, in its order, and the changes of orders that they need."""

    decisions: list[Decision]
    changes: list[OrderChange]
    wants: int = 0  # the units that the next order in line waits for, 0: nobody waits
    lines: Sequence[tuple[str, Record]] = ()  # new lines of baskets, each with its order's name in `Decision.basket`


SELL: Final = Decision(Outcome.SOLD)  # the one of most buyers
_HOLD_REQUIRED: Final = Decision(Outcome.HOLD_REQUIRED)
_BUYER_REQUIRED: Final = "each buyer may have a limited number of units: say who is buying"
OUTCOMES: Final[dict[type[Any], type[Any]]] = {
    Purchase: Outcome,
    Hold: HoldOutcome,
    Confirm: ConfirmOutcome,
    Extend: ExtendOutcome,
    Cancel: CancelOutcome,
    Refund: RefundOutcome,
    GivenBack: RefundOutcome,
    RequestRefund: RequestOutcome,
    Incident: IncidentOutcome,
}


def outside(terms: Terms, at: float) -> Outcome | None:
    """The outcome of a purchase outside of the hours, or in a pause; None within. Times are in seconds since 1970."""
    if terms.starts_at and at < terms.starts_at:
        return Outcome.NOT_STARTED
    if terms.ends_at and at >= terms.ends_at:
        return Outcome.ENDED
    return Outcome.PAUSED if terms.paused else None


def decide(
    snapshot: Snapshot,
    commands: Sequence[Command],
    *,
    limit_per_buyer: int = 0,
    closed: Sequence[Outcome | None] = (),
    windows: Windows = _BY_DEFAULT,
    due_by_ms: int | None = None,
    now_closed: Outcome | None = None,
    fresh: Names = new_name,
) -> Decided:
    """Decide the commands of a single item: see `decide_together`.

    `closed`: the outcome of each command that came outside of the hours; empty if none did.
    """
    of = Basis(snapshot, limit_per_buyer, windows, due_by_ms, now_closed)
    sku = commands[0].sku if commands else ""
    return decide_together({sku: of}, commands, closed, fresh=fresh)[sku]


@dataclass(frozen=True, slots=True)
class Basis:
    """The basis of decisions about an item.

    `limit_per_buyer` is in units, 0 for none. `due_by_ms`: a hold that is due later does not go back, even if the
    store's clock has passed its end. `closed`: the outcome of a command that would come now, outside of the hours;
    `terms`: with the hours, for lines of baskets, and the limit of a group.
    """

    snapshot: Snapshot
    limit_per_buyer: int = 0
    windows: Windows = _BY_DEFAULT
    due_by_ms: int | None = None
    closed: Outcome | None = None
    terms: Terms = NO_TERMS


def decide_together(  # noqa: PLR0912 - a case each
    items: Mapping[str, Basis],
    commands: Sequence[Command],
    closed: Sequence[Outcome | None] = (),
    *,
    came_at: Sequence[float] = (),
    errors: Mapping[str, SeckillError] = NO_ERRORS,
    fresh: Names = new_name,
) -> dict[str, Decided]:
    """Give each command its outcome, in order: first come, first served, as far as the units go.

    A buyer gets all the units that they want or none; a purchase that is too large does not close the sale to smaller
    ones behind it. Expired holds go back first, unless their payment is in this very batch. Units that come back go to
    the orders that wait, in their order, before anybody else gets any.

    `closed`: the outcome of each command that came outside of its item's hours, unless it is a repeat; empty if none
    did. `came_at`: when each came, in seconds since 1970, for the hours of a basket's other items. `errors`: of items
    that can't be read. `fresh` makes unique names of refunds.
    """
    nows = dict[str, _Now]()
    for sku, of in items.items():
        nows[sku] = _Now(sku, of, nows, errors, fresh)
    being_paid = {(command.sku, command.number) for command in commands if isinstance(command, Confirm)}
    for now in nows.values():
        if now.snapshot.due:
            now.give_back(being_paid)
    for now in nows.values():
        now.serve_the_line()
    only = now if len(nows) == 1 else None
    for index, command in enumerate(commands):
        now = only or nows[command.sku]
        at = len(now.decisions)
        key = command.key if type(command) is Purchase else key_of(command)
        decision = _repeat(now, command, key) if key is not None else None
        if decision is None:
            outside_hours = closed[index] if closed else None
            if isinstance(command, Purchase):
                decision = now.buy(command, outside_hours)
            elif isinstance(command, Hold):
                if command.lines:
                    decision = now.hold_basket(command, outside_hours, at, came_at[index] if came_at else 0.0)
                else:
                    decision = now.hold(command, outside_hours, at)
            elif isinstance(command, Expire):
                # Once more, unless nothing could be given back: a due order may be odd.
                more = (now.more_due or now.line_goes_on) and bool(now.changes)
                decision = Decision(ExpiryOutcome.MORE if more else ExpiryOutcome.DONE)
            else:
                decision = now.change(command)
                for one in nows.values():
                    one.serve_the_line()
            if key is not None and decision.error is None:
                now.seen[key] = at, command
        elif decision.settled is not None and type(command) is not Purchase:
            decision = now.again(command, decision.settled)
        now.decisions.append(decision)
    for now in nows.values():
        now.serve_newcomers()
    return {sku: Decided(now.decisions, now.changes, now.wants, now.lines) for sku, now in nows.items()}


class _Now:
    """The state of an item in the middle of a batch. `beside`: the items on which the batch is decided, itself too."""

    __slots__ = (
        *(
            "_closed",
            "_due_by_ms",
            "_errors",
            "_fresh",
            "_group",
            "_limit",
            "_line",
            "_newcomers",
            "_terms",
            "_windows",
        ),
        *(
            "at_ms",
            "begun",
            "beside",
            "bought",
            "changes",
            "decisions",
            "held",
            "left",
            "lines",
            "more_due",
            "payments",
        ),
        *("records", "seen", "sku", "snapshot", "waiting"),
    )

    def __init__(
        self, sku: str, of: Basis, beside: Mapping[str, "_Now"], errors: Mapping[str, SeckillError], fresh: Names
    ) -> None:
        snapshot = self.snapshot = of.snapshot
        self.sku, self.beside, self._errors = sku, beside, errors
        self.held = snapshot.held
        self.waiting = snapshot.waiting
        self._line = list(snapshot.line)  # the first of those who wait
        self._newcomers: list[tuple[int, Record]] = []  # that wait since this batch, by their commands
        self._closed, self._due_by_ms, self._windows = of.closed, of.due_by_ms, of.windows
        self._limit, self._terms, self._group = of.limit_per_buyer, of.terms, of.terms.group
        self.more_due = snapshot.more_due
        self.left = snapshot.stock
        self.bought = dict(snapshot.bought)
        self.records = dict(snapshot.records)
        self.begun: dict[str, int] = {}  # by buyer, the command of this batch that began their last hold
        self.payments = dict(snapshot.payments)
        self.changes: list[OrderChange] = []
        self.lines: list[tuple[str, Record]] = []
        self.decisions: list[Decision] = []
        self.seen: dict[str, tuple[int, Command]] = {}  # by key, the first command with it, and its place
        self.at_ms = snapshot.now_ms
        self._fresh = fresh

    # -- new orders --------------------------------------------------------------------------------------------------

    def buy(self, wish: Purchase, closed: Outcome | None) -> Decision:
        """Sell at once. An item with a price is held, as nobody has paid for it yet."""
        if closed is None and self._windows.price is not None:
            return _HOLD_REQUIRED
        return self._take(wish, closed)

    def _take(self, wish: Purchase, closed: Outcome | None) -> Decision:
        refused = self._refusal(wish, closed)
        if refused is not None:
            return refused
        self._give(wish.buyer, wish.quantity)
        return SELL if wish.request_id is None else Decision(Outcome.SOLD, begins=self._begin(wish, OrderState.SOLD))

    def _give(self, buyer: str | None, quantity: int) -> None:
        self.left -= quantity
        if buyer:
            self.bought[buyer] = self.bought.get(buyer, 0) + quantity

    def _refusal(self, wish: Purchase | Hold, closed: Outcome | None) -> Decision | None:
        """The decision on a wish that can't be had; None if it can."""
        if closed is not None:
            return Decision(closed)
        limited = self._limit or self._group
        if limited and wish.buyer is None:
            return Decision(error=BuyerRequired(_BUYER_REQUIRED))
        if not self.left or self.waiting:
            # Before the limit is checked: this answer may not be recorded, and a repeat must get the same one again.
            return Decision(Outcome.SOLD_OUT)
        if limited and (refused := self._over_a_limit(wish.buyer, wish.quantity)):
            return refused
        return Decision(Outcome.SOLD_OUT) if wish.quantity > self.left else None

    def _over_a_limit(self, buyer: str | None, quantity: int) -> Decision | None:
        """The decision on units that are more than a buyer may have, of this item or of several together."""
        wanted = self.bought.get(buyer or "", 0) + quantity
        if self._limit and wanted > self._limit:
            return Decision(Outcome.LIMIT_REACHED)
        if self._group is None:
            return None
        most, others = self._group
        for sku in {*others} - {self.sku}:
            if sku in self.beside:
                wanted += self.beside[sku].bought.get(buyer or "", 0)
            elif not isinstance(error := self._errors.get(sku), UnknownItem):  # one that isn't on sale yet
                return Decision(error=error or BasketNotPossible(f"the limit needs {sku}, which can't be read"))
        return Decision(Outcome.LIMIT_REACHED) if wanted > most else None

    def hold(self, wish: Hold, closed: Outcome | None, index: int) -> Decision:
        """Hold units; show a buyer who can't have them the hold that they have already.

        The hold is shown only to a proven buyer, and only if a proven buyer began it: else it may be a stranger's in
        their name.
        """
        found = self._take(Purchase(wish.quantity, wish.sku, wish.buyer), closed)
        if found is not SELL:
            if found.outcome is None:
                return found
            return self._own(wish) or self._wait(wish, found, index) or Decision(HoldOutcome(found.outcome))
        pay_by_ms = self.at_ms + self._windows.hold_ms
        due_ms = pay_by_ms + self._windows.grace_ms
        record = self._begin(wish, OrderState.HELD, pay_by_ms=pay_by_ms, due_ms=due_ms)
        self.held += wish.quantity
        if wish.buyer is not None and wish.proven:
            self.begun[wish.buyer] = index
        return Decision(HoldOutcome.HELD, begins=record)

    def hold_basket(self, wish: Hold, closed: Outcome | None, index: int, came_at: float) -> Decision:
        """Hold the units of all lines, or none. The answer to a refusal names the first line that can't be had."""
        lines, taken = [(self.sku, wish.quantity), *wish.lines], list[tuple[_Now, Purchase]]()
        for sku, quantity in lines:
            there = self.beside.get(sku)
            if there is None:
                return self._without(taken, Decision(error=_unreadable(sku, self._errors)))
            line = Purchase(quantity, sku, wish.buyer)
            refused = there._refusal(line, closed if there is self else outside(there._terms, came_at))
            if refused is not None and refused.outcome is None:
                return self._without(taken, refused)
            if refused is not None:
                own = self._own(wish)
                shown = None if own is None else own.record or self.decisions[own.repeats or 0].begins
                if own is None or shown is None or shown.units_by(self.sku) != dict(lines):
                    own = Decision(HoldOutcome(str(refused.outcome)), line=sku)
                return self._without(taken, own)
            there._give(wish.buyer, quantity)  # so that the limit of a group sees the lines before
            taken.append((there, line))
        currencies = {there._windows.currency if there._windows.price is not None else None for there, _ in taken}
        if len(currencies) > 1:
            said = ", ".join(f"{there.sku} {_priced_in(there._windows)}" for there, _ in taken)
            return self._without(taken, Decision(error=BasketNotPossible(f"items: they can't be paid at once: {said}")))
        windows = [there._windows for there, _ in taken]
        pay_by_ms = self.at_ms + min(one.hold_ms for one in windows)
        window = {"pay_by_ms": pay_by_ms, "due_ms": pay_by_ms + self._windows.grace_ms}
        basket = f"{self.sku}/{index}"
        for there, line in taken:
            there.held += line.quantity
            if there is not self:
                own_line = there._begin(wish._replace(quantity=line.quantity, ref=None), OrderState.HELD, **window)
                there.lines.append((basket, own_line._replace(part_of=basket)))
        told = tuple(Line(there.sku, line.quantity, there._windows.price) for there, line in taken[1:])
        record = self._begin(wish, OrderState.HELD, **window, lines=told)
        if wish.buyer is not None and wish.proven:
            self.begun[wish.buyer] = index
        return Decision(HoldOutcome.HELD, begins=record, basket=basket)

    def _without(self, taken: Sequence[tuple["_Now", Purchase]], decision: Decision) -> Decision:
        """A decision that gives nothing, so that the lines that were taken before go back."""
        for there, line in taken:
            there.left += line.quantity
            if line.buyer:
                there.bought[line.buyer] -= line.quantity
        return decision

    def _own(self, wish: Hold) -> Decision | None:
        """The buyer's own order, if they hold units or wait already, and may see it."""
        if wish.proven and wish.buyer in self.begun:
            # No key remembers this answer, as the order has no number yet; the next try will find it.
            waits = any(index == self.begun[wish.buyer] for index, _ in self._newcomers)
            outcome = HoldOutcome.ALREADY_WAITING if waits else HoldOutcome.ALREADY_HELD
            return Decision(outcome, repeats=self.begun[wish.buyer])
        own = self._open_of(wish.buyer)
        if own is None:
            return None
        waits = own.state is OrderState.WAITING
        if wish.proven and own.proven and (waits or own.state is OrderState.HELD):
            outcome = HoldOutcome.ALREADY_WAITING if waits else HoldOutcome.ALREADY_HELD
            return Decision(outcome, record=own, place=self._place_of(own))
        if waits and wish.wait and not (wish.proven or own.proven):  # one place a name
            return Decision(HoldOutcome.ALREADY_WAITING)
        return None

    def _open_of(self, buyer: str | None) -> Record | None:
        """The order that a buyer held, or had in line, before this batch."""
        return self.records.get(self.snapshot.open.get(buyer, "")) if buyer else None

    # -- the line ----------------------------------------------------------------------------------------------------

    def _wait(self, wish: Hold, found: Decision, index: int) -> Decision | None:
        """Give a buyer who comes too late a place in line, if others hold as many units as they want.

        A name that a proven buyer has in line already gets a stranger none; a stranger's place in a proven buyer's
        name does not keep that buyer out.
        """
        if not wish.wait or wish.buyer is None or found.outcome is not Outcome.SOLD_OUT:
            return None
        own = self._open_of(wish.buyer)
        if own is not None and own.state is OrderState.WAITING and not wish.proven:
            return None
        if refused := self._over_a_limit(wish.buyer, wish.quantity):
            return replace(refused, outcome=HoldOutcome.LIMIT_REACHED if refused.error is None else None)
        proven = {record.proven for _, record in self._newcomers if record.buyer == wish.buyer}
        if wish.proven in proven:
            return Decision(HoldOutcome.ALREADY_WAITING)
        stranger = bool(proven) and not wish.proven
        if stranger or wish.quantity > self.left + self.held or self.waiting >= LINE_MAX:
            return None
        record = self._begin(wish, OrderState.WAITING)
        self._newcomers.append((index, record))
        self.waiting += 1
        self.bought[wish.buyer] = self.bought.get(wish.buyer, 0) + wish.quantity
        if wish.proven:
            self.begun[wish.buyer] = index
        return Decision(HoldOutcome.WAITING, begins=record, place=self._place(self.waiting))

    def _place(self, number: int) -> Place:
        first_due_ms = self.snapshot.first_due_ms
        return Place(number, self.held, first_due_ms / 1000 if first_due_ms else None)

    def _place_of(self, order: Record) -> Place | None:
        """The place of an order, if it is known."""
        return self._place(self._line.index(order.number) + 1) if order.number in self._line else None

    @property
    def _unseen(self) -> int:
        """How many of those who wait are behind the ones that were read."""
        return self.snapshot.waiting - len(self.snapshot.line)

    @property
    def line_goes_on(self) -> bool:
        """Whether the next batch can serve some more of those who wait."""
        if self._closed is not None:
            return self._closed is Outcome.ENDED and self.waiting > 0
        return bool(self.snapshot.line) and not self._line and self._unseen > 0 and self.left > 0

    @property
    def wants(self) -> int:
        """See `Decided`."""
        looked = bool(self.snapshot.line) or not self.snapshot.waiting
        wanted = [self.records[number].quantity for number in self._line] if looked else [self.snapshot.wants]
        wanted += (record.quantity for _, record in self._newcomers)
        if looked and self._unseen and not self._line:
            return 1  # the next batch looks at those that nobody has seen
        return min(wanted, default=0) if self._windows.smaller_first else next(iter(wanted), 0)

    def serve_the_line(self) -> None:
        """Give units that are left to those who wait, in their order; at the end of the sale end the line.

        A wish for more than is left and held can't be met any more. It ends where it would keep the units that are
        left from everybody else.
        """
        if not self._line:
            return
        stays = list[str]()
        for number in self._line:
            order = self.records.get(number)
            if order is None or order.state is not OrderState.WAITING:
                continue
            if self._closed is Outcome.ENDED:
                self._release(order, EventKind.CANCELLED, {"why": str(Outcome.ENDED)})
            elif self._may_have(order.quantity, bool(stays)):
                pay_by_ms = self.at_ms + self._windows.offer_ms
                due_ms = pay_by_ms + self._windows.grace_ms
                facts: Facts = {"pay_by": pay_by_ms / 1000, "goes_back_at": due_ms / 1000}
                self._write(order, EventKind.OFFERED, facts)
            elif self._closed is None and not stays and self.left and order.quantity > self.left + self.held:
                self._release(order, EventKind.CANCELLED, {"why": str(Outcome.SOLD_OUT)})
            else:
                stays.append(number)
        self._line = stays

    def _may_have(self, quantity: int, passes: bool) -> bool:
        return self._closed is None and quantity <= self.left and (not passes or self._windows.smaller_first)

    def serve_newcomers(self) -> None:
        """Give units that came back in this very batch to those who got in line in it."""
        if self._unseen:
            return
        passes, decisions = bool(self._line), self.decisions
        for index, record in self._newcomers:
            if not self._may_have(record.quantity, passes):
                passes = True
                continue
            pay_by_ms = self.at_ms + self._windows.offer_ms
            due_ms = pay_by_ms + self._windows.grace_ms
            held = record._replace(state=OrderState.HELD, pay_by_ms=pay_by_ms, due_ms=due_ms)
            decisions[index] = Decision(HoldOutcome.HELD, begins=held)
            self.left -= record.quantity
            for again, one in enumerate(decisions):
                if one.repeats == index and one.outcome is HoldOutcome.ALREADY_WAITING:
                    decisions[again] = replace(one, outcome=HoldOutcome.ALREADY_HELD)
        self._newcomers = [one for one in self._newcomers if decisions[one[0]].outcome is HoldOutcome.WAITING]

    def _begin(self, wish: Purchase | Hold, state: OrderState, **more: Any) -> Record:
        if isinstance(wish, Hold):
            more |= {"ref": wish.ref, "proven": wish.proven}
            more |= {"price": self._windows.price, "currency": self._windows.currency}
        more |= {"request_id": wish.request_id, "traceparent": wish.traceparent}
        return Record("", "", state, wish.quantity, wish.buyer, **more)

    # -- orders that are there ---------------------------------------------------------------------------------------

    def give_back(self, being_paid: set[tuple[str, str]]) -> None:
        """Give back the units of expired holds, the oldest first, and of the whole order where one is a line."""
        for number in self.snapshot.due:
            there, order = self._whole(self.records.get(number))
            if order is None or there._unread_line(order) is not None:
                self.more_due |= order is None or order.state is OrderState.HELD  # for a batch that reads all of it
                continue
            if order.state is not OrderState.HELD or (there.sku, order.number) in being_paid:
                continue
            if there is not self and order.due_ms > there.at_ms:  # which was read a moment earlier
                continue
            if self._due_by_ms is not None and order.due_ms > self._due_by_ms:
                self.more_due = False
                return
            there._release(order, EventKind.EXPIRED)

    def _whole(self, order: Record | None) -> tuple["_Now", Record | None]:
        """The order of which this one is a line, with its item, and None if it was not read; else the order itself.

        A line whose order a new sale has forgotten is on its own.
        """
        if order is None or not order.part_of or (name := OrderId.parse_name(order.part_of)) is None:
            return self, order
        if self._is_forgotten(name.sku, name.number):
            return self, order
        there = self.beside.get(name.sku, self)
        return there, there.records.get(name.number) if there is not self else None

    def _is_forgotten(self, sku: str, number: str) -> bool:
        there = self.beside.get(sku)
        return isinstance(self._errors.get(sku), UnknownItem) if there is None else number in there.snapshot.absent

    def _line_there(self, line: Line) -> tuple["_Now", Record] | None:
        """A line of an order, with its item; None if it was not read, or a new sale of its item has forgotten it."""
        there = self.beside.get(line.sku)
        record = there.records.get(line.number) if there else None
        return (there, record) if there and record else None

    def _unread_line(self, order: Record) -> str | None:
        """The first item of an order's lines that could not be read."""
        lines = (one for one in order.lines if self._line_there(one) is None)
        return next((one.sku for one in lines if not self._is_forgotten(one.sku, one.number)), None)

    def again(self, command: Command, settled: Settled) -> Decision:
        """Answer a settled command once more, with the present state of its order."""
        order = self.records.get(settled.order.number) if settled.order is not None else None
        began = settled.outcome in (HoldOutcome.HELD, HoldOutcome.WAITING)
        if began and order is not None and isinstance(command, Hold) and order.ref != command.ref:
            return Decision(error=_reused())  # the `ref` is in the order, and not in the key's fingerprint
        refund = _owed(order, command.payment_ref) if order is not None and isinstance(command, Confirm) else None
        place = self._place_of(order) if order is not None and isinstance(command, Hold) else None
        return Decision(settled=settled, record=order, refund=refund, place=place)

    def change(self, command: OrderCommand) -> Decision:
        """Change an order."""
        order = self.records.get(command.number)
        if order is None or order.part_of or not hmac.compare_digest(order.secret, command.secret):
            return Decision(OUTCOMES[type(command)].NOT_FOUND)
        if (sku := self._unread_line(order)) is not None:
            return Decision(error=_unreadable(sku, self._errors))
        match command:
            case Confirm():
                return self._confirm(order, command)
            case Extend():
                return self._extend(order)
            case Cancel():
                return self._cancel(order, command)
            case Refund() | GivenBack() | RequestRefund() | Incident():
                return self._refund(order, command)

    def _confirm(self, order: Record, paid: Confirm) -> Decision:  # noqa: PLR0911 - a case each
        ref, outcome = paid.payment_ref, ConfirmOutcome
        if order.state is OrderState.SOLD:  # it was sold at once, and is not waiting for any payment
            return Decision(outcome.NOT_FOUND)
        owner = self.payments.get(ref)
        if owner is not None and owner != order.number:
            return Decision(outcome.PAYMENT_REF_IN_USE, record=order)
        if ref == order.payment_ref:
            return Decision(outcome.ALREADY_CONFIRMED, record=order)
        known = order.payment(ref)
        if known is not None and (known.refunds or known.state is not PaymentState.WRONG):
            return Decision(_not_needed(order), record=order, refund=_owed(order, ref))  # this notice has come before
        if paid.reported and paid.amount is None and order.price is not None:
            return Decision(error=AmountRequired("amount: what has a price wants a payment of that amount"))
        waits = order.state in (OrderState.HELD, OrderState.EXPIRED)
        amount = order.to_pay if paid.amount is None and waits else paid.amount
        told = Payment(ref, amount, paid.currency or order.currency)
        payment = ref if owner is None else None  # else the order has this payment already, as one of a wrong amount
        mismatch = _mismatch(order, told, paid.subtotal)
        gone = any(self._line_there(one) is None for one in order.lines)  # all units or none
        if not waits or gone or (mismatch and order.state is OrderState.EXPIRED):
            return self._decline(order, paid, told, payment)
        if mismatch:
            if known is None or (known.amount, known.currency) != (told.amount, told.currency):
                order = self._write(order, EventKind.AMOUNT_MISMATCH, mismatch, payment)
            return Decision(outcome.AMOUNT_MISMATCH, record=order)
        facts = _said(told) | Facts(subtotal=paid.subtotal, paid_at=paid.paid_at)
        if order.state is OrderState.EXPIRED:
            late = self._late(order)
            if late is not None:
                return late if late.error is not None else self._decline(order, paid, told, payment)
            facts["late"] = True
        order = self._write(order, EventKind.CONFIRMED, facts, payment)
        return Decision(outcome.CONFIRMED, record=self._owe_wrong_payments(order))

    def _late(self, order: Record) -> Decision | None:
        """The decision on an expired order that can't have its units again: they are gone, or over a limit by now."""
        buyer = None if order.buyer == ERASED else order.buyer  # those names share one count
        found, taken = None, list[tuple[_Now, int]]()
        for one in (Line(self.sku, order.quantity), *order.lines):
            there = self.beside[one.sku]
            found = Decision(Outcome.SOLD_OUT) if there.left < one.quantity else None
            if found is None and buyer is not None:
                found = there._over_a_limit(buyer, one.quantity)
            if found is not None:
                break
            there._give(buyer, one.quantity)  # so that the limit of a group sees the lines before
            taken.append((there, one.quantity))
        for there, count in taken:
            there._give(buyer, -count)
        return found

    def _decline(self, order: Record, paid: Confirm, told: Payment, payment: str | None) -> Decision:
        if order.payment(told.ref) is not None:  # it was of a wrong amount, and nothing of it is to go back
            return Decision(_not_needed(order), record=order)
        facts = owe(order, told, str(_not_needed(order)), self._fresh) | Facts(paid_at=paid.paid_at)
        if paid.paid_at is not None and order.state is OrderState.EXPIRED:
            facts["in_time"] = paid.paid_at * 1000 <= order.due_ms  # and its report came too late
        order = self._write(order, EventKind.REFUND_DUE, facts, payment)
        return Decision(_not_needed(order), record=order, refund=_owed(order, told.ref))

    def _owe_wrong_payments(self, order: Record) -> Record:
        """Owe the payments of a wrong amount, as the order does not wait for money any more."""
        for wrong in order.payments:
            if wrong.waits:
                facts = owe(order, wrong, str(_not_needed(order)), self._fresh)
                order = self._write(order, EventKind.REFUND_DUE, facts)
        return order

    def _extend(self, order: Record) -> Decision:
        if order.state is not OrderState.HELD:
            return Decision(ExtendOutcome(order.state), record=order) if order.state is not OrderState.SOLD else _LOST
        if order.extended:
            return Decision(ExtendOutcome.ALREADY_EXTENDED, record=order)
        if order.due_ms <= (self.at_ms if self._due_by_ms is None else self._due_by_ms):
            return Decision(ExtendOutcome.EXPIRED, record=order)
        windows = [self._windows, *(found[0]._windows for one in order.lines if (found := self._line_there(one)))]
        pay_by_ms = max(order.pay_by_ms, self.at_ms + min(one.pay_ms for one in windows))
        due_ms = pay_by_ms + self._windows.grace_ms
        facts: Facts = {"pay_by": pay_by_ms / 1000, "goes_back_at": due_ms / 1000}
        order = self._write(order, EventKind.EXTENDED, facts)
        return Decision(ExtendOutcome.EXTENDED, record=order)

    def _cancel(self, order: Record, wish: Cancel) -> Decision:  # noqa: PLR0911 - a case each
        outcome, facts = CancelOutcome, Facts(by=wish.by) if wish.by else NO_FACTS
        if (known := order.answered(wish.message)) is not None:
            return Decision(outcome(known), record=order)
        if order.state is OrderState.CANCELLED:
            return Decision(outcome.ALREADY_CANCELLED, record=order)
        if order.state not in (OrderState.HELD, OrderState.WAITING):
            sold = order.state is OrderState.SOLD
            return Decision(outcome.CONFIRMED if sold else outcome(order.state), record=order)
        line = order.line(wish.line if wish.line != wish.sku else None)
        if line is None:
            return Decision(outcome.TOO_MUCH, record=order)
        whole = wish.units is None and wish.line is None
        count = order.units_in_all if whole else line.quantity if wish.units is None else wish.units
        if not whole and not 0 < count <= line.quantity:
            return Decision(outcome.TOO_MUCH, record=order)
        if count != order.units_in_all:
            return self._cancel_some(order, count, wish, facts)
        return Decision(outcome.CANCELLED, record=self._release(order, EventKind.CANCELLED, facts))

    def _cancel_some(self, order: Record, count: int, wish: Cancel, facts: Facts) -> Decision:
        outcome, message = CancelOutcome.PARTLY_CANCELLED, wish.message
        own: Facts = {**facts, "about": "units", "units": count}
        own |= {"line": wish.line} if wish.line not in (None, wish.sku) else {}
        own |= {"message": message, "outcome": str(outcome)} if message is not None else {}
        return Decision(outcome, record=self._write(order, EventKind.CANCELLED, own))

    def _refund(self, order: Record, command: Refund | GivenBack | RequestRefund | Incident) -> Decision:
        found = ruling(order, command, self._fresh, self.at_ms / 1000)
        for kind, facts in found.events:
            order = self._write(order, kind, facts)
        return Decision(found.outcome, record=order)

    def _release(self, order: Record, kind: EventKind, facts: Facts = NO_FACTS) -> Record:
        """Give held units, or a place in line, back."""
        return self._owe_wrong_payments(self._write(order, kind, facts))

    def _write(self, order: Record, kind: EventKind, facts: Facts, payment: str | None = None) -> Record:
        """Write an event and its consequences. `payment`: its name, if it belongs to no order yet."""
        change = changed(order, kind, known(facts), payment)
        self.left += change.units.stock
        self.held += change.units.held
        self.waiting -= order.state is OrderState.WAITING and change.after.state is not OrderState.WAITING
        if change.bought and order.buyer:
            self.bought[order.buyer] = max(0, self.bought.get(order.buyer, 0) + change.bought)
        self.changes.append(change)
        self.records[order.number] = change.after
        for line in order.lines:
            if (found := self._line_there(line)) is not None and (said := of_line(kind, facts, line)) is not None:
                there, own = found
                there._write(own, kind, said)
        if payment is not None:
            self.payments[payment] = order.number
        return change.after


def _priced_in(windows: Windows) -> str:
    return "has no price" if windows.price is None else f"is paid in {windows.currency}"


_LOST: Final = Decision(ExtendOutcome.NOT_FOUND)


def _unreadable(sku: str, errors: Mapping[str, SeckillError]) -> SeckillError:
    error = errors.get(sku) or BasketNotPossible(f"items: {sku} can't be read together with the others")
    return BasketNotPossible(f"items: {error}") if isinstance(error, UnknownItem) else error


def _not_needed(order: Record) -> ConfirmOutcome:
    """Return the outcome for a payment that has to be given back."""
    return ConfirmOutcome.DUPLICATE_PAYMENT if order.payment_ref is not None else ConfirmOutcome.REFUND_DUE


def _owed(order: Record, ref: str) -> str | None:
    """Return a payment if it is still to be given back."""
    payment = order.payment(ref)
    return ref if payment is not None and payment.open else None


def _said(told: Payment) -> Facts:
    return {"payment_ref": told.ref, "amount": told.amount, "currency": told.currency}


def _mismatch(order: Record, told: Payment, subtotal: int | None) -> Facts | None:
    """Return the facts of a payment whose amount or currency is wrong; None if both are right.

    If there is a subtotal, that is compared, as the amount includes tax, shipping or a discount.
    """
    of_units = told.amount if subtotal is None else subtotal
    wrong = of_units is not None and order.to_pay is not None and of_units != order.to_pay
    foreign = order.currency is not None and told.currency != order.currency
    if not wrong and not foreign:
        return None
    return {"about": "payment"} | _said(told) | {"expected": order.to_pay, "subtotal": subtotal}


def _repeat(now: _Now, command: Command, key: str) -> Decision | None:
    """Return the decision on a command whose key was seen before; None if it is new."""
    settled, basket = now.snapshot.settled.get(key), basket_of(command)
    if settled is not None:
        if (settled.quantity, settled.buyer, settled.basket) != (*fingerprint(command), basket):
            return Decision(error=_reused())
        if settled.outcome not in OUTCOMES[type(command)].__members__.values():
            return Decision(error=StockCorrupt("this idempotency key has an outcome that we don't know"))
        return Decision(settled=settled)
    if key not in now.seen:
        return None
    at, first = now.seen[key]
    same = fingerprint(first) == fingerprint(command) and basket_of(first) == basket
    same &= getattr(first, "ref", None) == getattr(command, "ref", None)
    return Decision(repeats=at) if same else Decision(error=_reused())


def _reused() -> KeyReused:
    return KeyReused("this idempotency key belongs to a request that says something else")
