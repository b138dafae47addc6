"""The life of an order that ends with money: hold, payment, expiry, and the events that tell of it.

It stands on the protocol of a sale (`protocol.py`): lock, lease and messages are not in it. An instance reads and
registers in one step, and decides; it writes in a later step, with the answer. Any time may pass between the two. A
batch is one command, and holds that have run out go back with it. The provider takes money whenever a buyer pays, also
a wrong amount, or when the hold has run out, and calls until it is told 200, at any instance, perhaps once more.
Operators refund, and add units. A single sender brings the journal to a receiver. Faults: an instance or the sender
crashes; the store comes back without its last write.

A buyer may wait for units that others hold; whoever is first in line is offered those that come back. That is not
explored, as no option asks for it: it is here for the journals.

The journal of a real sale is a run of this model: the judge of a torture follows it, by `Money.does`.
"""

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from typing_extensions import override

from lab.model.protocol import STORE, at, name_of
from lab.model.search import Model, Note


class Safeguard(StrEnum):
    """A mechanism on which money and units rest. The text is its name on the command line."""

    FENCE = "fence"
    EVENTS_COMPARED = "events-compared"
    STILL_HELD = "still-held"
    MOVED_DEADLINE = "moved-deadline"
    EXPIRY_BY_ORDER = "expiry-by-order"
    EXPIRY_LOOKS = "expiry-looks"
    PAYMENT_BY_ORDER = "payment-by-order"
    PAID_ONCE = "paid-once"
    REFERENCE = "reference"
    LATE_UNIT = "late-unit"
    LATE_REFUND = "late-refund"
    AMOUNT = "amount"
    WRONG_OWED = "wrong-owed"
    GIVEN_BACK = "given-back"
    JOURNAL = "journal"
    SENT_FIRST = "sent-first"
    IN_ORDER = "in-order"
    MARKS_OF_CHANGES = "marks-of-changes"


MEANING: Final[dict[Safeguard, str]] = {
    Safeguard.FENCE: "the store writes only the batch that was registered last; without: it compares what was read",
    Safeguard.EVENTS_COMPARED: "where there is no fence, an order is changed only if it has the events that were read",
    Safeguard.STILL_HELD: "an expiry looks whether the order is still held",
    Safeguard.MOVED_DEADLINE: "an expiry looks whether the deadline was moved",
    Safeguard.EXPIRY_BY_ORDER: "a deadline is that of an order; without: of its buyer's latest hold",
    Safeguard.EXPIRY_LOOKS: "somebody looks for what has run out; without: it goes back when others come",
    Safeguard.PAYMENT_BY_ORDER: "a payment names its order; without: it is for its buyer's latest hold",
    Safeguard.PAID_ONCE: "a payment for an order that is paid is to be refunded; without: it counts, too",
    Safeguard.REFERENCE: "a payment that is known changes nothing",
    Safeguard.LATE_UNIT: "a payment that comes too late takes a unit only if one is left",
    Safeguard.LATE_REFUND: "one that gets no unit is to be refunded, which is written; without: it is only answered",
    Safeguard.AMOUNT: "a payment of another amount than the price does not count",
    Safeguard.WRONG_OWED: "a payment of a wrong amount is to be refunded as soon as its order needs no money any more",
    Safeguard.GIVEN_BACK: "an order that was refunded is not refunded once more",
    Safeguard.JOURNAL: "the event is written with the change; without: in a step of its own",
    Safeguard.SENT_FIRST: "the sender notes an event after it was sent; without: before",
    Safeguard.IN_ORDER: "the sender sends the events of an order one after the other",
    Safeguard.MARKS_OF_CHANGES: "the marks know of each change of an order; without: of new orders only",
}
# The promise that breaks without each of them, as the shortest history shows.
BREAKS: Final[dict[Safeguard, str]] = {
    Safeguard.FENCE: "Bob has 2 units, and may have 1",
    Safeguard.EVENTS_COMPARED: "Ann's hold is given back before its deadline",
    Safeguard.STILL_HELD: "Ann was told “confirmed”, and has no unit",
    Safeguard.MOVED_DEADLINE: "Ann's hold is given back before its deadline",
    Safeguard.EXPIRY_BY_ORDER: "Ann's hold is given back before its deadline",
    Safeguard.EXPIRY_LOOKS: "Ann's hold has run out, and nothing gives it back",
    Safeguard.PAYMENT_BY_ORDER: "payment 1 counts for an order that it is not for",
    Safeguard.PAID_ONCE: "two payments count for one order of Ann",
    Safeguard.REFERENCE: "payment 1 counts and is to be refunded",
    Safeguard.LATE_UNIT: "stock -1 + held 1 + sold 1 is not 1",
    Safeguard.LATE_REFUND: "payment 1 was taken, counts for nothing, and nobody will refund it",
    Safeguard.AMOUNT: "payment 1 is of a wrong amount, and counts",
    Safeguard.WRONG_OWED: "payment 1 is of a wrong amount, and Ann's order keeps it for nothing",
    Safeguard.GIVEN_BACK: "stock 2 + held 0 + sold 0 is not 1",
    Safeguard.JOURNAL: "an event of Ann's order was never written",
    Safeguard.SENT_FIRST: "an event of Ann's order never reaches the receiver",
    Safeguard.IN_ORDER: "the receiver hears of event 2 of an order before event 1",
    Safeguard.MARKS_OF_CHANGES: "Ann was told “confirmed”, and has no unit",
}


class MoneyScope(NamedTuple):
    """The size that is explored. `asks` for a hold, and `payments`: of all buyers; `faults`: of any kind.

    `wrong`: how many of the payments may be of a wrong amount; `refunds` and `restocks`: of operators; `limit`: how
    many units a buyer may have, 0 for any number. `fenced`: whether the store has a fence, or only compares; `sends`:
    whether the events are looked at.
    """

    buyers: int = 1
    units: int = 1
    asks: int = 1
    payments: int = 1
    faults: int = 0
    fenced: bool = True
    sends: bool = False
    wrong: int = 0
    refunds: int = 0
    restocks: int = 0
    limit: int = 1

    @override
    def __str__(self) -> str:
        names = {"buyer": self.buyers, "unit": self.units, "hold": self.asks, "payment": self.payments}
        names |= {"fault": self.faults}
        own = {"wrong amount": self.wrong, "refund": self.refunds, "restock": self.restocks}
        names |= {name: count for name, count in own.items() if count}
        sizes = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in names.items())
        return sizes + ", no fence" * (not self.fenced) + ", and the events" * self.sends


# The scopes in which all of it is explored, and the smallest one in which a mechanism is missed.
SCOPES: Final = (
    MoneyScope(buyers=2, asks=2, payments=2),
    MoneyScope(buyers=2, asks=2, units=2),
    MoneyScope(payments=2, wrong=1, refunds=2, restocks=1),
    MoneyScope(payments=2, faults=1, sends=True),
    MoneyScope(buyers=2, asks=2, faults=1),
    MoneyScope(buyers=2, asks=2, sends=True),
)
SMALLEST: Final[dict[Safeguard, MoneyScope]] = {one: MoneyScope() for one in Safeguard} | {
    Safeguard.FENCE: MoneyScope(buyers=2, units=2, asks=3, payments=0),
    Safeguard.EVENTS_COMPARED: MoneyScope(fenced=False),
    Safeguard.EXPIRY_BY_ORDER: MoneyScope(asks=2),
    Safeguard.PAYMENT_BY_ORDER: MoneyScope(asks=2),
    Safeguard.PAID_ONCE: MoneyScope(payments=2),
    Safeguard.LATE_UNIT: MoneyScope(buyers=2, asks=2),
    Safeguard.AMOUNT: MoneyScope(wrong=1),
    Safeguard.WRONG_OWED: MoneyScope(wrong=1),
    Safeguard.GIVEN_BACK: MoneyScope(refunds=2),
    Safeguard.JOURNAL: MoneyScope(faults=1, sends=True),
    Safeguard.SENT_FIRST: MoneyScope(faults=1, sends=True),
    Safeguard.IN_ORDER: MoneyScope(sends=True),
    Safeguard.MARKS_OF_CHANGES: MoneyScope(faults=1),
}


class Life(StrEnum):
    """The state of an order."""

    WAITING = "waiting"
    HELD = "held"
    CONFIRMED = "confirmed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"


LIVE: Final = (Life.HELD, Life.CONFIRMED)


class Order(NamedTuple):
    """An order. `passed`: how many of its deadlines have passed; `paid`: the payments that count; `owed`: to refund.

    `wrong`: those of a wrong amount, while it may still be paid; `back`: those that were refunded. `events`: how many
    it has; `out`: whether its units stay sold, although it was refunded.
    """

    buyer: int
    life: Life = Life.HELD
    extended: bool = False
    passed: int = 0
    paid: tuple[int, ...] = ()
    owed: tuple[int, ...] = ()
    events: int = 1
    quantity: int = 1
    wrong: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    out: bool = False

    @property
    def word(self) -> str:
        """Its state, in words."""
        owes = ", and has a payment to be refunded" * bool(self.owed) + ", and one of a wrong amount" * bool(self.wrong)
        return ("extended" if self.extended else self.life) + owes

    @property
    def held(self) -> int:
        """How many units it holds."""
        return self.quantity if self.life is Life.HELD else 0

    @property
    def sold(self) -> int:
        """How many units it has for good."""
        return self.quantity if self.life is Life.CONFIRMED or self.out else 0


class Store(NamedTuple):
    """`journal`: the order of each event; `noted`: how many were sent; `registered`: the instance that read last."""

    stock: int
    orders: tuple[Order, ...] = ()
    journal: tuple[int, ...] = ()
    noted: int = 0
    registered: int = -1


class Change(NamedTuple):
    """A change of an order that had so many events `before`; `order` is -1 for a new one."""

    order: int
    before: int
    after: Order


class ModelWish(NamedTuple):
    """A command, `about` a buyer ("hold", "wait"), a payment ("pay"), or an order ("extend", "cancel", "refund").

    Or a "look" at what has run out, or an "offer" of units to the first in line. A refund is of the order, or else of
    all that it owes; `payment`: or of that payment.
    """

    command: str
    about: int = -1
    quantity: int = 1
    restock: bool = False
    payment: int = -1


class ModelWork(NamedTuple):
    """A batch of an instance. `stock`: as it was read; `units`: how many go back to it.

    `payment`: the one that it is about; `told`: the order whose buyer then hears "confirmed"; `events`: the events that
    are still to be written, if that is a step of its own.
    """

    stock: int
    units: int
    changes: tuple[Change, ...]
    payment: int = -1
    told: int = -1
    events: tuple[int, ...] = ()


class Payment(NamedTuple):
    """Money that was taken, for an order. `heard`: how often the provider was told 200; `right`: the amount is."""

    order: int
    heard: int = 0
    right: bool = True


NOT_YET: Final = Payment(-1)


class MoneyState(NamedTuple):
    """The whole state. `told`: orders whose buyers were told "confirmed"; `received`: events of each order.

    `memory`: what the sender has sent and not noted; `older`: the state to which the store may go back; `halted`: it
    went back, which was noticed; `refunds` and `added`: how many refunds operators have asked for, and units they have
    added; `broken`: a promise that a step has broken.
    """

    store: Store
    works: tuple[ModelWork | None, ...] = (None, None)
    payments: tuple[Payment, ...] = ()
    told: frozenset[int] = frozenset()
    asks: int = 0
    memory: frozenset[int] = frozenset()
    received: tuple[int, ...] = ()
    faults: int = 0
    older: Store | None = None
    halted: bool = False
    refunds: int = 0
    added: int = 0
    broken: str = ""


Step = tuple[Note, MoneyState]
PROVIDER: Final = "provider"
SENDER: Final = "sender"
RECEIVER: Final = "receiver"


class Money(Model[MoneyState]):
    """The steps from a state. `without`: the mechanisms that are switched off."""

    mechanisms, meaning, breaks, scopes, smallest = Safeguard, MEANING, BREAKS, SCOPES, SMALLEST

    def __init__(self, scope: MoneyScope, *, without: Collection[StrEnum] = ()) -> None:
        super().__init__(scope, without=without)
        self._fenced = scope.fenced and self.has(Safeguard.FENCE)
        self.start = MoneyState(Store(scope.units), faults=scope.faults)
        self.lanes = (*map(name_of, range(scope.buyers)), PROVIDER, at(0), at(1), STORE, SENDER, RECEIVER)

    # -- what must hold ----------------------------------------------------------------------------------------------

    @override
    def violation(self, state: MoneyState) -> str:
        """Return the promise that a state breaks; empty if it keeps all."""
        store = state.store
        if state.broken or state.halted:
            return state.broken
        held, sold = sum(order.held for order in store.orders), sum(order.sold for order in store.orders)
        if store.stock < 0 or store.stock + held + sold != self.scope.units + state.added:
            return f"stock {store.stock} + held {held} + sold {sold} is not {self.scope.units + state.added}"
        for buyer in {order.buyer for order in store.orders if self.scope.limit}:
            if (units := _units_of(store.orders, buyer)) > self.scope.limit:
                return f"{name_of(buyer)} has {units} units, and may have {self.scope.limit}"
        for number in state.told:
            if store.orders[number].life not in (Life.CONFIRMED, Life.REFUNDED):
                return f"{name_of(store.orders[number].buyer)} was told “confirmed”, and has no unit"
        return self._wrong_with_money(state)

    def _wrong_with_money(self, state: MoneyState) -> str:  # noqa: PLR0911 - one promise after the other
        for order in state.store.orders:
            if len(order.paid) > 1:
                return f"two payments count for one order of {name_of(order.buyer)}"
            if order.life is not Life.HELD and order.wrong:
                return (
                    f"payment {order.wrong[0] + 1} is of a wrong amount, and {name_of(order.buyer)}'s order keeps it "
                    "for nothing"
                )
        for number, payment in enumerate(state.payments):
            counts = [place for place, order in enumerate(state.store.orders) if number in order.paid]
            owed = sum((*order.owed, *order.back).count(number) for order in state.store.orders)
            kept = any(number in order.wrong for order in state.store.orders)
            if counts and not payment.right:
                return f"payment {number + 1} is of a wrong amount, and counts"
            if counts not in ([], [payment.order]):
                return f"payment {number + 1} counts for an order that it is not for"
            if len(counts) + owed > 1:
                return f"payment {number + 1} {'counts and is' if counts else 'is twice'} to be refunded"
            if payment.heard and not counts and not owed and not kept:
                return f"payment {number + 1} was taken, counts for nothing, and nobody will refund it"
        return ""

    @override
    def stuck(self, state: MoneyState) -> str:
        """Return what is wrong in a state that has no next step; empty if nothing is."""
        for number, order in enumerate(() if state.halted else state.store.orders):
            name = name_of(order.buyer)
            if order.life is Life.HELD:
                return f"{name}'s hold has run out, and nothing gives it back"
            if self.scope.sends and state.store.journal.count(number) != order.events:
                return f"an event of {name}'s order was never written"
            if self.scope.sends and state.received[number : number + 1] != (order.events,):
                return f"an event of {name}'s order never reaches the receiver"
        return ""

    # -- the steps ---------------------------------------------------------------------------------------------------

    @override
    def steps(self, state: MoneyState) -> Iterator[Step]:
        """Yield the steps that must happen eventually."""
        if state.halted:
            return
        for number, order in enumerate(state.store.orders):
            if order.life is Life.HELD and order.passed <= order.extended:
                passed = order._replace(passed=order.passed + 1)
                yield (
                    Note(f"the deadline of {name_of(order.buyer)}'s hold passes", STORE),
                    state._replace(store=_with_order(state.store, number, passed)),
                )
        for number, payment in enumerate(state.payments):
            if not payment.heard:
                yield from self._reads(state, f"payment {number + 1} was made", ModelWish("pay", number))
        if self.has(Safeguard.EXPIRY_LOOKS) and self._run_out(state.store):
            yield from self._reads(state, "something has run out", ModelWish("look"))
        for number, work in enumerate(state.works):
            if work is not None:
                yield self._writes(state, number, work)
        if self.scope.sends:
            yield from self._sends(state)

    @override
    def options(self, state: MoneyState) -> Iterator[Step]:
        """Yield what buyers, the provider and an operator may do, and need not."""
        if state.halted:
            return
        for number, payment in enumerate(state.payments):
            if payment.heard == 1:
                yield from self._reads(state, f"payment {number + 1} was made, once more", ModelWish("pay", number))
        for buyer in range(self.scope.buyers if state.asks < self.scope.asks else 0):
            asked = state._replace(asks=state.asks + 1)
            yield from self._reads(asked, f"{name_of(buyer)} wants a unit", ModelWish("hold", buyer))
        for number, order in enumerate(state.store.orders):
            if order.life is Life.HELD:
                yield from self._reads(state, f"{name_of(order.buyer)} goes to pay", ModelWish("extend", number))
                yield from self._reads(state, f"{_name(number, order)} is to be cancelled", ModelWish("cancel", number))
            if len(state.payments) < self.scope.payments:
                yield from self._pays(state, number, order)
            if state.refunds < self.scope.refunds:
                asked = state._replace(refunds=state.refunds + 1)
                for restock, word in ((True, " and sold again"), (False, "")):
                    wish = ModelWish("refund", number, restock=restock)
                    yield from self._reads(asked, f"{_name(number, order)} is to be refunded{word}", wish)
        if state.added < self.scope.restocks:
            yield Note("an operator adds a unit", STORE), self.restocked(state, 1)

    def _pays(self, state: MoneyState, number: int, order: Order) -> Iterator[Step]:
        wrong = sum(not one.right for one in state.payments) < self.scope.wrong
        for right, word in ((True, ""), (False, ", a wrong amount"))[: 1 + wrong]:
            note = Note(f"pays for {_name(number, order)}{word}", name_of(order.buyer), PROVIDER)
            yield note, self.paid(state, number, right=right)

    def paid(self, state: MoneyState, order: int, *, right: bool = True, number: int | None = None) -> MoneyState:
        """Return the state after somebody has paid for an order. `number`: of the payment, if others come before it."""
        payments = list(state.payments)
        number = len(payments) if number is None else number
        payments += [NOT_YET] * (number + 1 - len(payments))
        payments[number] = Payment(order, right=right)
        return state._replace(payments=tuple(payments))

    def passed(self, state: MoneyState, number: int) -> MoneyState:
        """Return the state after the last deadline of an order has passed."""
        order = state.store.orders[number]
        over = order._replace(passed=order.extended + 1)
        return state._replace(store=_with_order(state.store, number, over))

    def restocked(self, state: MoneyState, units: int) -> MoneyState:
        """Return the state after an operator has added units."""
        store = state.store._replace(stock=state.store.stock + units, registered=-1)
        return state._replace(store=store, added=state.added + units)

    def does(self, state: MoneyState, wish: ModelWish) -> tuple[tuple[Change, ...], MoneyState]:
        """Return the changes of a command, and the state after it: an instance reads and writes, and nobody in between.

        A write after another one's read is refused, and nobody sees it: so each visible run is made of such steps.
        """
        for _, read in self._reads(state, "", wish):
            work = read.works[0]
            return (work.changes, self._writes(read, 0, work)[1]) if work is not None else ((), read)
        return (), state

    @override
    def mishaps(self, state: MoneyState) -> Iterator[Step]:
        """Yield the faults."""
        if not state.faults or state.halted:
            return
        hurt = state._replace(faults=state.faults - 1, older=None)
        for number, work in enumerate(state.works):
            if work is not None:
                yield Note("crashes", at(number)), _with_work(hurt, number, None)
        if state.memory:
            yield Note("crashes", SENDER), hurt._replace(memory=frozenset())
        if state.older is not None:
            new = len(state.older.orders) < len(state.store.orders)
            back = hurt._replace(
                store=state.older._replace(registered=-1),
                memory=frozenset(),
                halted=new or self.has(Safeguard.MARKS_OF_CHANGES),
            )
            yield Note("comes back older: its last change is gone", STORE), back

    # -- at the instances --------------------------------------------------------------------------------------------

    def _reads(self, state: MoneyState, text: str, wish: ModelWish) -> Iterator[Step]:
        work = self._decide(state, wish)
        if None not in state.works or not (work.changes or wish.command == "pay"):
            return
        number = state.works.index(None)  # they are alike
        registered = state._replace(store=state.store._replace(registered=number))
        if work.changes:
            yield Note(f"reads: {text}", at(number), STORE), _with_work(registered, number, work)
        else:
            yield Note(f"reads: {text}; nothing is to be written", at(number), STORE), self._answer(registered, work)

    def _run_out(self, store: Store) -> set[int]:
        """Return the orders that an expiry gives back."""
        found = set()
        for number, order in enumerate(store.orders):
            if order.passed > (order.extended if self.has(Safeguard.MOVED_DEADLINE) else 0):
                found.add(number if self.has(Safeguard.EXPIRY_BY_ORDER) else _latest(store, order.buyer))
        lives = (Life.HELD,) if self.has(Safeguard.STILL_HELD) else LIVE
        return {number for number in found if store.orders[number].life in lives}

    def _decide(self, state: MoneyState, wish: ModelWish) -> ModelWork:
        """Return the changes that a command needs."""
        command, about = wish.command, wish.about
        store, changes, order, told = state.store, list[Change](), about, -1
        orders, left = list(store.orders), store.stock

        def change(number: int, **fields: Any) -> None:
            before = orders[number]
            orders[number] = before._replace(events=before.events + 1, **fields)
            changes.append(Change(number, before.events, orders[number]))
            if fields.get("life", Life.HELD) is not Life.HELD and self.has(Safeguard.WRONG_OWED):
                for wrong in orders[number].wrong:  # it needs no money any more
                    kept = tuple(one for one in orders[number].wrong if one != wrong)
                    change(number, owed=(*orders[number].owed, wrong), wrong=kept)

        if command == "pay":
            order = state.payments[about].order
            if not self.has(Safeguard.PAYMENT_BY_ORDER):
                order = _latest(store, orders[order].buyer)
        for expired in self._run_out(store):
            if command != "pay" or expired != order:
                left += orders[expired].quantity
                change(expired, life=Life.EXPIRED)
        line = [number for number, one in enumerate(orders) if one.life is Life.WAITING]
        waits = (line or left < wish.quantity) and wish.quantity <= left + sum(one.held for one in orders)
        match command:
            case "wait" if waits and not self._over(orders, about, wish.quantity):
                changes.append(Change(-1, 0, Order(about, Life.WAITING, quantity=wish.quantity)))
            case "offer" if line and left >= orders[line[0]].quantity:
                left -= orders[line[0]].quantity
                change(line[0], life=Life.HELD)
            case "hold" if not line and left >= wish.quantity and not self._over(orders, about, wish.quantity):
                changes.append(Change(-1, 0, Order(about, quantity=wish.quantity)))
                left -= wish.quantity
            case "extend" if orders[order].life is Life.HELD and not (orders[order].passed or orders[order].extended):
                change(order, extended=True)
            case "cancel" if orders[order].life in (Life.WAITING, Life.HELD):
                left += orders[order].held
                change(order, life=Life.CANCELLED)
            case "refund":
                left += self._refunds(orders, order, wish, change)
            case "pay":
                right = state.payments[about].right or not self.has(Safeguard.AMOUNT)
                # One of a wrong amount may be told once more, with the right one.
                known = any(about in one.paid + one.owed + one.back + one.wrong * (not right) for one in orders)
                if not (self.has(Safeguard.REFERENCE) and known):
                    left -= self._counts(orders, order, about, left, change, right=right)
                told = order if about in orders[order].paid else -1
        return ModelWork(store.stock, left - store.stock, tuple(changes), about if command == "pay" else -1, told)

    def _over(self, orders: Collection[Order], buyer: int, more: int) -> bool:
        return bool(self.scope.limit) and _units_of(orders, buyer) + more > self.scope.limit

    def _refunds(self, orders: list[Order], number: int, wish: ModelWish, change: Callable[..., None]) -> int:
        """Give back an order, or payments that it owes; return how many units come back."""
        order = orders[number]
        again = order.life is Life.REFUNDED and not self.has(Safeguard.GIVEN_BACK)
        if (order.life is Life.CONFIRMED or again) and wish.payment in (-1, *order.paid):
            change(number, life=Life.REFUNDED, paid=(), back=(*order.back, *order.paid), out=not wish.restock)
            return order.quantity if wish.restock else 0
        for payment in [one for one in (*order.owed, *order.wrong) if wish.payment in (-1, one)]:
            now = orders[number]
            owed, wrong = (tuple(one for one in ones if one != payment) for ones in (now.owed, now.wrong))
            change(number, owed=owed, wrong=wrong, back=(*now.back, payment))
        return 0

    def _counts(
        self, orders: list[Order], number: int, payment: int, left: int, change: Callable[..., None], *, right: bool
    ) -> int:
        """Have a payment count, or be kept, or refunded; return how many units it takes."""
        order = orders[number]
        late = order.life is Life.EXPIRED
        there = left >= order.quantity or not self.has(Safeguard.LATE_UNIT)
        gets = not late or (not self._over(orders, order.buyer, order.quantity) and there)
        waits = order.life in (Life.HELD, Life.EXPIRED)
        if right and gets and (waits or (order.life is Life.CONFIRMED and not self.has(Safeguard.PAID_ONCE))):
            wrong = tuple(one for one in order.wrong if one != payment)
            change(number, life=Life.CONFIRMED, paid=(*order.paid, payment), wrong=wrong)
            return order.quantity if late else 0
        if not right and order.life is Life.HELD:
            change(number, wrong=(*order.wrong, payment))
            return 0
        if self.has(Safeguard.LATE_REFUND):
            change(number, owed=(*order.owed, payment))
        return 0

    def _writes(self, state: MoneyState, number: int, work: ModelWork) -> Step:
        store = state.store
        if work.events:  # the second step, without `journal`
            told = state._replace(store=store._replace(journal=store.journal + work.events))
            return Note("writes the event", at(number), STORE), _with_work(told, number, None)
        state = _with_work(state, number, None)
        if why := self._refusal(store, number, work):
            return Note(f"its write is refused: {why}", at(number), STORE), state
        orders, events = list(store.orders), list[int]()
        for place, _, after in work.changes:
            if place < 0:
                orders.append(after)
                events.append(len(orders) - 1)
                continue
            now = orders[place]
            if after.life is Life.EXPIRED and now.life is Life.HELD and now.passed <= now.extended:
                state = state._replace(broken=f"{name_of(now.buyer)}'s hold is given back before its deadline")
            over = (
                after.life is not Life.HELD and self.has(Safeguard.STILL_HELD) and self.has(Safeguard.EXPIRY_BY_ORDER)
            )
            orders[place] = after._replace(passed=0, extended=False) if over else after._replace(passed=now.passed)
            events.append(place)
        written = store._replace(stock=store.stock + work.units, orders=tuple(orders))
        if not self.scope.sends:
            pass
        elif self.has(Safeguard.JOURNAL):
            written = written._replace(journal=store.journal + tuple(events))
        else:
            state = _with_work(state, number, work._replace(events=tuple(events)))
        older = store if state.faults == self.scope.faults > 0 else None
        done = [f"{_name(place, orders[place])} is {orders[place].word}" for place in dict.fromkeys(events)]
        note = Note(f"writes: {', '.join(done)}; {written.stock} left", at(number), STORE)
        return note, self._answer(state._replace(store=written, older=older), work)

    def _refusal(self, store: Store, number: int, work: ModelWork) -> str:
        if self._fenced and store.registered != number:
            return "another one was registered since"
        if store.stock != work.stock:
            return f"{store.stock} are left, not {work.stock}"
        read = {change.order: change.before for change in reversed(work.changes) if change.order >= 0}
        for place, events in read.items():
            there = store.orders[place].events if place < len(store.orders) else 0
            if there != events and self.has(Safeguard.EVENTS_COMPARED):
                return f"order {place + 1} has {there} events, not {events}"
        return ""

    def _answer(self, state: MoneyState, work: ModelWork) -> MoneyState:
        if work.payment < 0:
            return state
        payment = state.payments[work.payment]
        payments = list(state.payments)
        payments[work.payment] = payment._replace(heard=min(2, payment.heard + 1))
        return state._replace(payments=tuple(payments), told=state.told | ({work.told} - {-1}))

    # -- the sender --------------------------------------------------------------------------------------------------

    def _sends(self, state: MoneyState) -> Iterator[Step]:
        store, memory = state.store, state.memory
        ahead = range(store.noted, len(store.journal))
        if not self.has(Safeguard.SENT_FIRST):
            if ahead and not memory:
                noted = state._replace(store=store._replace(noted=ahead[0] + 1), memory=memory | {ahead[0]})
                yield Note("notes that an event is sent", SENDER, STORE), noted
            for entry in memory:
                yield self._delivers(state._replace(memory=memory - {entry}), entry)
            return
        for entry in ahead:
            waits = [one for one in ahead if one < entry and store.journal[one] == store.journal[entry]]
            if entry not in memory and (memory.issuperset(waits) or not self.has(Safeguard.IN_ORDER)):
                yield self._delivers(state._replace(memory=memory | {entry}), entry)
        if ahead and ahead[0] in memory:
            noted = state._replace(store=store._replace(noted=ahead[0] + 1), memory=memory - {ahead[0]})
            yield Note("notes that an event is sent", SENDER, STORE), noted

    def _delivers(self, state: MoneyState, entry: int) -> Step:
        order = state.store.journal[entry]
        number = state.store.journal[: entry + 1].count(order)
        received = list(state.received) + [0] * (order + 1 - len(state.received))
        note = Note(f"event {number} of order {order + 1}", SENDER, RECEIVER)
        if number > received[order] + 1:
            state = state._replace(broken=f"the receiver hears of event {number} of an order before event {number - 1}")
        received[order] = max(received[order], number)
        return note, state._replace(received=tuple(received))

    @override
    def canonical(self, state: MoneyState) -> MoneyState:
        """Return the same state without a batch that the fence will refuse: that changes nothing."""
        store, works = state.store, state.works
        if self._fenced:
            works = tuple(
                work if number == store.registered or (work and work.events) else None
                for number, work in enumerate(works)
            )
        if works == (None, None):
            store = store._replace(registered=-1)
        return state if store is state.store and works == state.works else state._replace(store=store, works=works)


def _name(number: int, order: Order) -> str:
    return f"{name_of(order.buyer)}'s order {number + 1}"


def _latest(store: Store, buyer: int) -> int:
    return max(number for number, order in enumerate(store.orders) if order.buyer == buyer)


def _units_of(orders: Collection[Order], buyer: int) -> int:
    return sum(order.quantity for order in orders if order.buyer == buyer and order.life in (Life.WAITING, *LIVE))


def _with_order(store: Store, number: int, order: Order) -> Store:
    return store._replace(orders=(*store.orders[:number], order, *store.orders[number + 1 :]))


def _with_work(state: MoneyState, number: int, work: ModelWork | None) -> MoneyState:
    return state._replace(works=(*state.works[:number], work, *state.works[number + 1 :]))
