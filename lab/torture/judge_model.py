"""The judge's demand on the program as a whole: the journal of an item is a run of the model of money.

The model says what a command does to an order; the journal, what one has done. So each command that the journal speaks
of is given to the model, and the changes must be the same: which orders, by which events, with which units and
payments. What nobody can see is free: that a deadline has passed, that somebody has paid, when an instance has read. A
batch is several commands, of which those that begin orders are written behind the others, so their order among each
other is looked for. The model knows no baskets and no parts: what such orders do to the units of an item is done to the
model, too, and what becomes of all others is judged. The first entry that has no explanation is told, and those behind
it prove nothing. In the model an offer is a command of its own: that units are offered in the batch in which they come
back is no demand of this judge.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, groupby
from typing import Any, Final, NamedTuple

from app.orders import OrderState
from lab.model.money import NOT_YET, Change, Life, ModelWish, Money, MoneyScope, MoneyState, Order
from lab.torture.history import Entry, Flow, History, Kept
from lab.torture.standing import state_after

_BEYOND: Final = frozenset(("lines", "part_of"))
_FEW: Final = 3  # entries of a batch that are shown


class _ToldEvent(NamedTuple):
    """An event, as both sides say it. `units`: what it adds to those left, held and sold."""

    order: int
    number: int
    kind: str
    units: tuple[int, int, int]
    payments: frozenset[int]


class _Standing(NamedTuple):
    state: str
    events: int
    owed: list[str]
    back: list[str]


class ModelFollower:
    """The model, on the heels of an item's journal. `added`: the units that operators have added, in their order."""

    def __init__(self, flow: Flow, without: frozenset[str] = frozenset(), added: Sequence[int] = ()) -> None:
        scope = MoneyScope(units=flow.item.initial, limit=flow.item.limit)
        self._model = Money(scope, without={one for one in Money.mechanisms if one in without})
        self._price, self._group = flow.price, flow.group
        self._state = self._model.start
        self._added = list(accumulate(added))
        self._prices: dict[str, int] = {}  # of each order, as it began
        self._orders: dict[str, int] = {}
        self._payments: dict[str, int] = {}
        self._buyers: dict[str, int] = {}
        self._beyond: set[str] = set()  # orders that the model does not know: see above

    def follow(self, journal: Sequence[Entry], kept: Sequence[Kept]) -> Iterator[str]:
        """Yield what has no explanation: an entry, or how an order stands at the end."""
        self._beyond = {one.order for one in journal if _BEYOND & one.facts.keys() or one.facts.get("about") == "units"}
        if self._group:  # a late payment is given back for what the buyer has of other items
            self._beyond |= {one.order for one in journal if one.kind == "refund_due"}
        for _, batch in groupby(journal, key=lambda one: (one.token, one.batch)):
            if wrong := self.take(list(batch)):
                yield wrong
                return
        for one in kept:
            if one.order not in self._beyond:
                yield from self._stands(one)
        if wrong := self._model.violation(self._state):
            yield f"the model itself breaks a promise: {wrong}"

    def take(self, batch: Sequence[Entry]) -> str:
        """Explain a batch, and go on from there; return what is wrong with it, which is empty if nothing is."""
        changed = [one for one in batch if one.number != 1]
        begun = [one for one in batch if one.number == 1 and "part_of" not in one.facts]
        # They stand behind the others, wherever they came.
        lines = [one for one in batch if one.number == 1 and "part_of" in one.facts]
        for one in batch:
            self._buyers.setdefault(one.buyer or one.order, len(self._buyers))
        # All are known by a number, whichever comes first; those that the model doesn't know have a place before.
        beyond = [one for one in (*lines, *begun) if one.order in self._beyond]
        for one in (*beyond, *begun):
            self._orders.setdefault(one.order, len(self._orders))
            self._prices[one.order] = one.facts.get("price", self._price)
        places = tuple(Order(self._buyers[one.buyer or one.order], Life.CANCELLED, events=0) for one in beyond)
        store = self._state.store
        self._state = self._state._replace(store=store._replace(orders=(*store.orders, *places)))
        unknown = next((one for one in changed if one.order not in self._orders), None)
        if unknown is not None:
            return f"{_named(unknown)}: it has had no first event"
        tried: set[tuple[int, tuple[int, ...]]] = set()
        paths: list[tuple[int, int, MoneyState, tuple[int, ...]]] = []
        older = count(0, -1)  # of those with as few restocks the last one goes on

        def go_on(state: MoneyState, at: tuple[int, ...]) -> None:
            heapq.heappush(paths, (state.added, next(older), state, at))

        streams = lines, begun, changed
        go_on(self._state, (0, 0, 0))
        best: tuple[int, ...] = (-1,)
        why = ""
        while paths:  # fewest restocks first: a unit that is not there yet explains no late payment that found none
            *_, state, at = heapq.heappop(paths)
            if at == tuple(map(len, streams)):
                self._state = state
                return ""
            if (state.added, at) in tried:
                continue
            tried.add((state.added, at))
            if (units := next((one for one in self._added if one > state.added), None)) is not None:
                go_on(self._model.restocked(state, units - state.added), at)
            for n, stream in enumerate(streams):
                if not (ahead := stream[at[n] :]):
                    continue
                after, many, wrong = self._explain(state, ahead)
                if after is not None:
                    go_on(after, (*at[:n], at[n] + many, *at[n + 1 :]))
                elif at[::-1] > best:
                    best, why = at[::-1], wrong
        return why

    def has_nothing_to_write(self, entry: Entry) -> bool:
        """Return whether the command that an entry would speak of changes nothing."""
        prepared = self._wish(self._state, entry)
        return not isinstance(prepared, str) and not self._model.does(*prepared)[0]

    def _explain(self, state: MoneyState, ahead: Sequence[Entry]) -> tuple[MoneyState | None, int, str]:
        """Have the model do what the first entry speaks of; return the state after it, and how many entries it took."""
        entry = ahead[0]
        if entry.order in self._beyond:
            return self._beside(state, entry), 1, f"{_named(entry)}: there are no units for it"
        prepared = self._wish(state, entry)
        if isinstance(prepared, str):
            return None, 0, f"{_named(entry)}: {prepared}"
        before, wish = prepared
        changes, after = self._model.does(before, wish)
        should = list(_events(before.store.orders, changes))
        found = [self._event(one) for one in ahead[: len(should)]]
        if not should or found != should:
            said = ", ".join(_in_words(one) for one in should[:_FEW]) or "nothing"
            return None, 0, f"{_named(entry)}: the model does {said}; here is {_in_words(self._event(entry))}"
        return after, len(should), ""

    def _beside(self, state: MoneyState, entry: Entry) -> MoneyState | None:
        """Return the state after an event of an order that the model does not know; None if there are no units."""
        store, number = state.store, self._orders[entry.order]
        orders, stock = list(store.orders), store.stock + entry.stock
        before = orders[number]
        after = state_after(OrderState(before.life) if before.events else None, entry)
        units = before.held + before.sold + entry.held + entry.lucky  # those that stay sold when they are refunded
        own: dict[str, Any] = {"life": Life(after or before.life), "quantity": units, "events": before.events + 1}
        orders[number] = before._replace(**own, out=after is OrderState.REFUNDED and units > 0)
        after_it = store._replace(stock=stock, orders=tuple(orders), registered=-1)
        return state._replace(store=after_it) if stock >= 0 else None

    def _wish(self, state: MoneyState, entry: Entry) -> tuple[MoneyState, ModelWish] | str:  # noqa: PLR0911 - a case each
        """Return the command that an entry speaks of, and the state in which all that nobody sees has happened."""
        order, facts = self._orders.get(entry.order, -1), entry.facts
        refs = self._refs(entry)
        if facts.get("about") == "units" or (entry.kind == "refund_due" and "why" not in facts):
            return "the model knows no parts"
        match entry.kind:
            case "held" | "waiting":
                buyer = self._buyers.setdefault(entry.buyer or entry.order, len(self._buyers))
                return state, ModelWish({"held": "hold", "waiting": "wait"}[entry.kind], buyer, entry.quantity)
            case "offered":
                return state, ModelWish("offer")
            case "extended" | "cancelled":
                return state, ModelWish({"extended": "extend", "cancelled": "cancel"}[entry.kind], order)
            case "expired":
                return self._model.passed(state, order), ModelWish("look")
            case "refunded":
                about = -1 if "restock" in facts or not refs else refs[0]
                return state, ModelWish("refund", order, restock=bool(facts.get("restock")), payment=about)
            case "confirmed" | "amount_mismatch" | "refund_due":
                (payment,) = refs or (-1,)
                if payment < 0:
                    return "it names no payment"
                right = facts.get("amount") in (None, self._prices[entry.order] * state.store.orders[order].quantity)
                made = state.payments[payment] if payment < len(state.payments) else NOT_YET
                # Or it was made, and is told with the right amount only now.
                if made == NOT_YET or (right and made.order == order and not made.right):
                    state = self._model.paid(state, order, right=right, number=payment)
                return state, ModelWish("pay", payment)
        return f"the model has no step {entry.kind!r}"

    def _refs(self, entry: Entry) -> list[int]:
        names = [entry.facts["payment_ref"]] if "payment_ref" in entry.facts else []
        return [self._payments.setdefault(name, len(self._payments)) for name in names]

    def _event(self, entry: Entry) -> _ToldEvent:
        units = (entry.stock, entry.held, entry.lucky)
        return _ToldEvent(self._orders[entry.order], entry.number, entry.kind, units, frozenset(self._refs(entry)))

    def _stands(self, kept: Kept) -> Iterator[str]:
        """Compare how an order stands, by the store, with the model."""
        if kept.order not in self._orders:
            yield f"{kept.order} is there, and has no event"
            return
        order = self._state.store.orders[self._orders[kept.order]]
        names = {number: name for name, number in self._payments.items()}
        owed, back, paid = ([names[one] for one in ones] for ones in (order.owed, order.back, order.paid))
        should = _Standing(order.life.value, order.events, sorted(owed), sorted(back))
        of = kept.shown["payments"]
        due = sorted(one["ref"] for one in of if one["owed"] and one["owed"] == one["amount"])
        gone = sorted(one["ref"] for one in of if one["given_back"] and one["given_back"] == one["amount"])
        found = _Standing(kept.shown["state"], kept.events, due, gone)
        if found != should:
            yield f"{kept.order} is {found} by its record, and {should} by the model"
        elif (counts := kept.shown["payment_ref"]) not in (
            paid or back if order.life in (Life.CONFIRMED, Life.REFUNDED) else [None]
        ):
            yield f"{kept.order} counts payment {counts} by its record, and {paid or back} by the model"


def _events(orders: Sequence[Order], changes: Sequence[Change]) -> Iterator[_ToldEvent]:
    """Name the model's changes as the journal does."""
    now = list(orders)
    for place, events, after in changes:
        if place < 0:
            now.append(after)
            yield _ToldEvent(len(now) - 1, 1, after.life.value, (-after.held, after.held, 0), frozenset())
            continue
        before, now[place] = now[place], after
        held, sold = after.held - before.held, after.sold - before.sold
        kind, payments = _kind(before, after)
        yield _ToldEvent(place, events + 1, kind, (-held - sold, held, sold), payments)


def _kind(before: Order, after: Order) -> tuple[str, frozenset[int]]:
    given, owed, wrong = (
        frozenset(new) - frozenset(old)
        for new, old in ((after.back, before.back), (after.owed, before.owed), (after.wrong, before.wrong))
    )
    if before.life is Life.WAITING and after.life is Life.HELD:
        return "offered", frozenset()
    if after.life is not before.life:
        return after.life.value, given or frozenset(after.paid) - frozenset(before.paid)
    if given:
        return "refunded", given
    if owed:
        return "refund_due", owed
    return ("amount_mismatch", wrong) if wrong else ("extended", frozenset())


def _named(entry: Entry) -> str:
    return f"{entry.sku}, entry {entry.entry}: {entry.kind} of {entry.order}"


def _in_words(event: _ToldEvent) -> str:
    stock, held, sold = event.units
    units = f"{stock:+} left, {held:+} held, {sold:+} sold"
    return f"{event.kind} of order {event.order + 1} (its event {event.number}; {units})"


def is_a_run(history: History) -> Iterator[str]:
    """Each journal is a run of the model."""
    end = history.end
    assert end is not None  # noqa: S101 - see `judge`
    for flow in history.setup.flows:
        sku = flow.item.sku
        journal = [one for one in end.journal if one.sku == sku]
        added = [one.added for one in history.restocks if one.sku == sku]
        kept = [one for one in end.kept if one.order.startswith(f"{sku}~")]
        yield from ModelFollower(flow, added=added).follow(journal, kept)
