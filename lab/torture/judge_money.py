"""The judge's demands on orders: where each unit and each payment is, from entry to entry. A purchase is one, too.

The journal of an item is taken as the order of all events, and everything else is compared with it: what buyers and
payers were told, how the store says that orders stand, what was seen at any time. Moments of the run and entries are
compared by causality alone: an event comes after all that were answered before it was asked for.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Final, cast

from app.cashier.cashier import BY as CASHIER
from app.orders import EventKind, OrderState, life
from app.orders.facts import Facts
from lab.torture import judge_events
from lab.torture.history import UNKNOWN, Entry, FinalState, Flow, History, HttpCall, Look, UnitsAdded
from lab.torture.judge_service import peace
from lab.torture.standing import CONFIRMED, MISMATCH, REFUND_DUE, standings, state_after

SOLD: Final = "sold"
SOLD_OUT: Final = "sold_out"
LIMIT_REACHED: Final = "limit_reached"
# How long an instance may give buyers without a key an answer from memory (SECKILL_SOLD_OUT_TTL_MS).
MEMORY_S: Final = 1.0
# The events of which an answer speaks: one of them must be there.
_SPEAKS_OF: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("buy", "sold"): ("sold",),
    ("hold", "held"): ("held",),
    ("hold", "already_held"): ("held", "offered"),
    ("hold", "waiting"): ("waiting",),
    ("hold", "already_waiting"): ("waiting",),
    ("look", "waiting"): ("waiting",),
    ("look", "held"): ("held", "offered"),
    **{("look", kind): (kind,) for kind in ("confirmed", "expired", "cancelled", "refunded")},
    ("confirm", "confirmed"): ("confirmed",),
    ("confirm", "already_confirmed"): ("confirmed",),
    ("confirm", "refund_due"): ("refund_due",),
    ("confirm", "duplicate_payment"): ("refund_due",),
    ("confirm", "amount_mismatch"): ("amount_mismatch",),
    ("extend", "extended"): ("extended",),
    ("extend", "already_extended"): ("extended",),
    ("extend", "confirmed"): ("confirmed",),
    ("extend", "expired"): ("expired", "confirmed", "amount_mismatch"),  # or time was up, with a payment in the batch
    ("extend", "cancelled"): ("cancelled",),
    ("extend", "refunded"): ("refunded",),
    ("cancel", "cancelled"): ("cancelled",),
    ("cancel", "already_cancelled"): ("cancelled",),
    ("cancel", "confirmed"): ("confirmed",),
    ("cancel", "expired"): ("expired",),
    ("cancel", "refunded"): ("refunded",),
    ("refund", "refunded"): ("refunded",),
    ("refund", "already_refunded"): ("refunded",),
    ("refund", "partly_refunded"): ("refund_due", "refunded"),
    ("cancel", "partly_cancelled"): ("cancelled",),
}
_CLOSED: Final = ("paused", "ended", "not_started")
_NOTHING: Final = {(verb, outcome) for verb in ("hold", "buy") for outcome in ("sold_out", "limit_reached", *_CLOSED)}
_HOLD_REQUIRED: Final = ("buy", "hold_required")  # the items of the flow have a price
_NOT_TAKEN: Final = {"not_found", "payment_ref_in_use", "amount_mismatch"}
_NEVER: Final = float("inf")
_ROUNDED_S: Final = 0.01  # the moments of a run
_MANY: Final = 60  # orders, of which some are paid with a wrong amount
_TO_GIVE_BACK: Final = ("refund_due", "duplicate_payment")
_NO_MORE: Final = ("ended", "sold_out")  # why a place in line is cancelled by nobody
_BEGINS: Final = ("held", "waiting")  # the events of a hold that is asked for
_PARTS: Final = ("cancelled", "refunded")
_ABOUT_A_PAYMENT: Final = (CONFIRMED, REFUND_DUE, MISMATCH)


class Money:
    """The history of all items but drops, sorted for the checks. An item that is sold at once is a flow without times.

    `journal`: the entries of each item; `of`: those of each order; `places`: the orders and the ways in which they have
    each payment; `stood`: how each order stood after each of its entries; `since`: a moment before each entry;
    `purchases`: the calls of each wish to buy, in their order. A line of a basket is an order of its own here, by the
    journal of its item; `named`: the orders, by their names.
    """

    def __init__(self, history: History, end: FinalState) -> None:
        self.history, self.end = history, end
        self.flows = (*history.setup.flows, *(Flow(item, 0, 0, 0, 0) for item in history.setup.items))
        self.journal: dict[str, list[Entry]] = {flow.item.sku: [] for flow in self.flows}
        self.entries = [one for one in end.journal if one.sku in self.journal]
        self.kept = [one for one in end.kept if one.order.partition("~")[0] in self.journal]
        self.of: dict[str, list[Entry]] = defaultdict(list)
        self.places: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for entry in self.entries:
            self.journal[entry.sku].append(entry)
            self.of[entry.order].append(entry)
            if (entry.kind == CONFIRMED and not _is_line(entry)) or (
                entry.kind == REFUND_DUE and "why" in entry.facts
            ):  # else of one that counts
                self.places[entry.facts.get("payment_ref", "")].append((entry.order, entry.kind))
        self.named = {order.rpartition("~")[0]: order for order in self.of}
        self.stood = {order: standings(entries) for order, entries in self.of.items()}
        self.calls = [*history.attempts, *history.calls]
        self.told = [call for call in self.calls if call.status == 200]
        self.purchases: dict[str, list[HttpCall]] = defaultdict(list)
        for call in sorted(self.calls, key=lambda one: one.sent_at):
            if call.verb == "buy":
                self.purchases[call.wish].append(call)
        self.asked: dict[tuple[str, str, str | None, str | None], float] = {}  # when each thing was first asked for
        for call in self.calls:
            self.asked[_what(call)] = min(call.sent_at, self.asked.get(_what(call), call.sent_at))
        self.since: dict[tuple[str, str], float] = {}  # what an entry was asked for by, comes before those behind it
        for sku, journal in self.journal.items():
            causes = accumulate((self.asked.get(self.cause(one) or ("",) * 4, 0.0) for one in journal), max)
            self.since |= {(sku, one.entry): cause for one, cause in zip(journal, causes, strict=True)}

    def costs(self, entry: Entry) -> int | None:
        """Return what an order had to pay, all its lines together, when an event of it came."""
        before = self.stood[entry.order][: max(1, entry.number - 1)]
        cost: int | None = before[-1].shown["to_pay"]
        return cost

    def whole(self, one: Entry) -> Entry:
        """Return the event of the order that a line's event follows; of an order itself the event."""
        entries = self.of.get(self.named.get(one.facts.get("part_of", ""), ""), ())
        return next((its for its in entries if (its.batch, its.kind) == (one.batch, one.kind)), one)

    def cause(self, one: Entry) -> tuple[str, str, str | None, str | None] | None:
        """Return the request that must have come before this could happen; None if none is needed."""
        return _asked_for(self.whole(one))

    @cached_property
    def moments(self) -> "dict[str, _Moments]":
        """The entries of each item beside the moments of the run."""
        return {flow.item.sku: _Moments(self, flow) for flow in self.flows}

    def flows_of(self, order: str) -> list[Flow]:
        """Return the items of an order, as it began."""
        first = self.of[order][0]
        skus = {first.sku, *(line["sku"] for line in first.facts.get("lines", ()))}
        return [flow for flow in self.flows if flow.item.sku in skus]

    def restocks(
        self, sku: str, done_by: float = _NEVER, *, since: float = -1.0, until: float = _NEVER
    ) -> list[UnitsAdded]:
        """Return the restocks of an item that were done by a moment, and may have taken place between two others."""
        own = [one for one in self.history.restocks if one.sku == sku and one.done_at <= done_by]
        return [one for one in own if since < one.done_at and one.asked_at < until]


def _what(call: HttpCall) -> tuple[str, str, str | None, str | None]:
    payment = call.payment if call.verb == "confirm" else None
    return call.verb, call.wish if call.verb in ("hold", "buy") else "", call.order, payment


def _name(call: HttpCall) -> str:
    return f"{call.verb} of {call.payment or call.wish} at {call.done_at:.2f} s"


def _is_line(one: Entry) -> bool:
    return "part_of" in one.facts


# -- the journal -------------------------------------------------------------------------------------------------------


def units_in_one_place(money: Money) -> Iterator[str]:
    """No unit is in two places: after each entry as many are left, held and sold as there are, and none is less than 0.

    Those that were sold had been added by the time when it was told.
    """
    for flow in money.flows:
        sku, moments = flow.item.sku, money.moments[flow.item.sku]
        told = {n: at for at, n in reversed(moments.done)}
        for n, (one, (stock, held, lucky)) in enumerate(zip(money.journal[sku], moments.levels[1:], strict=True), 1):
            gone = -one.stock - one.held - one.lucky
            if gone:
                yield f"{sku}, entry {one.entry}: {one.kind} of {one.order} makes {gone} units disappear"
            added = sum(it.added for it in money.restocks(sku, until=told.get(n, _NEVER)))
            if min(stock + added, held, lucky) < 0:
                yield f"{sku}, entry {one.entry}: after {one.kind} of {one.order} the units are {stock, held, lucky}"


def seen_as_it_was(money: Money) -> Iterator[str]:
    """What was seen is what the journal says of some moment of the look, and no look goes back behind the one before.

    When units were added is not in the journal: so many may have been there more.
    """
    for flow in money.flows:
        sku, moments = flow.item.sku, money.moments[flow.item.sku]
        least = 0
        for look in sorted((one for one in money.history.looks if one.sku == sku), key=lambda one: one.asked_at):
            first = max(least, moments.after(look.asked_at))
            possible = _possible(money, look)
            so = range(first, max(first, moments.before(look.at)) + 1)
            found = next((n for n in so if _seen(look, moments.levels[n]) in possible), None)
            if found is None:
                seen = look.stock, look.held, look.lucky
                yield f"{sku} at {look.at:.2f} s: {seen} were left, held and sold, as not by the journal then"
            least = least if found is None else found
        units = sum(one.added for one in money.restocks(sku))
        for left in [one for one in money.end.left if one.sku == sku]:
            has, (stock, held, lucky) = (left.stock, left.held, left.lucky), moments.levels[-1]
            if has != (stock + units, held, lucky):
                yield f"{sku} at the end: {has} are left, held and sold, not {stock + units, held, lucky}"
            if left.initial != flow.item.initial + units:
                yield f"{sku}: the store says that there have been {left.initial} units, but {units} were added"
    yield from money.end.unreadable


def _seen(look: Look, level: tuple[int, int, int]) -> int | None:
    """Return how many units must have been added, if a look has seen this level; None if it has not."""
    return look.stock - level[0] if (look.held, look.lucky) == level[1:] else None


def _possible(money: Money, look: Look) -> set[int]:
    """Return how many units may have been added when a look was taken: each restock under way may be done, or not."""
    possible = {sum(one.added for one in money.restocks(look.sku, look.asked_at))}
    for one in money.restocks(look.sku, since=look.asked_at, until=look.at):
        possible |= {units + one.added for units in possible}
    return possible


def orders_live_once(money: Money) -> Iterator[str]:
    """Each order's events are a path from held to its end, numbered without a gap, and move the right units."""
    for order, entries in money.of.items():
        state: OrderState | None = None
        for number, one in enumerate(entries, 1):
            if one.number != number:
                yield f"{order}: event {one.kind} has number {one.number}, and is its event {number}"
            found = life.step(state, EventKind(one.kind), one.quantity, cast(Facts, one.facts))
            if found is None:
                yield f"{order}: {one.kind} after it was {state or 'nothing'}"
                break
            state, should = found.state, found.units
            if (one.stock, one.held, one.lucky) != should:
                yield f"{order}: {one.kind} moves {(one.stock, one.held, one.lucky)} units, not {tuple(should)}"


def records_agree(money: Money) -> Iterator[str]:
    """How an order stands is what its events say, and each of them how it stood then."""
    kept = {one.order: one for one in money.kept}
    for order in kept.keys() - money.of.keys():
        yield f"{order} is there, and has no event"
    for order, entries in money.of.items():
        one = kept.get(order)
        if one is None:
            yield f"{order} has events, and is not there"
            continue
        should = money.stood[order][-1].shown | {"events": len(entries)}
        found = one.shown | {"events": one.events}
        for name in _others(found, should):
            yield f"{order}: {name} is {found.get(name)!r} by its record, and {should.get(name)!r} by its events"
        for entry, stood in zip(entries, money.stood[order], strict=True):
            if wrong := _others({name: entry.facts.get(name) for name in stood.said}, stood.said):
                yield f"{order}: its event {entry.number} says {wrong}, and it should be {stood.said}"


def lines_stand_together(money: Money) -> Iterator[str]:
    """Each line of a basket has the events of its order, in the same batches, and none is without its order."""
    known = set[str]()
    for order, entries in money.of.items():
        for line in entries[0].facts.get("lines", ()):
            name = f"{line['sku']}~{line['number']}"
            known.add(name)
            found = [(one.kind, one.batch, one.quantity) for one in money.of.get(money.named.get(name, ""), ())]
            if found != (should := list(_of_line(line["sku"], entries))):
                n = next((n for n, one in enumerate(should) if found[n : n + 1] != [one]), len(should))
                yield f"{order}: its line {name} has {found[n : n + 1]} where it should have {should[n : n + 1]}"
    for order, entries in money.of.items():
        if _is_line(entries[0]) and order.rpartition("~")[0] not in known:
            yield f"{order} is a line of {entries[0].facts['part_of']}, which does not have it"


def _of_line(sku: str, entries: Sequence[Entry]) -> Iterator[tuple[str, str, int]]:
    """Yield the events that a line must have: each with its batch, and the units of the line after it."""
    quantity = 0
    for one in entries:
        now = next((line["quantity"] for line in one.facts.get("lines", ()) if line["sku"] == sku), 0)
        about = one.facts.get("about", "order")
        if about == "order" and now:
            yield one.kind, one.batch, now
        elif about == "units" and one.facts.get("line") == sku:  # a line that is gone has had its last units back
            yield one.kind, one.batch, now or quantity
        quantity = now


def limits_kept(money: Money) -> Iterator[str]:
    """Nobody has more than the limit after any entry, held units included; nor after any batch than that of a group."""
    for flow in money.flows:
        units: Counter[str] = Counter()
        group = [money.journal[one.item.sku] for one in money.flows if one.group == flow.group != 0]
        for one in money.journal[flow.item.sku]:
            if one.buyer is None:
                continue
            units[one.buyer] += _bought(one)
            if _bought(one) > 0 and flow.item.limit and units[one.buyer] > flow.item.limit:
                yield f"{one.buyer} has {units[one.buyer]} of {one.sku} after entry {one.entry}"
            if _bought(one) > 0 and (had := sum(_fewest(journal, one) for journal in group)) > flow.group:
                yield f"{one.buyer} has {had} units of a group after entry {one.entry} of {one.sku}, a {one.kind} one"


def _around(entries: Sequence[Entry], one: Entry) -> tuple[int, int]:
    """Return between how many entries an item can have had just after the batch of an entry, perhaps of another item.

    Items of one lock have their batches in the order of their tokens.
    """
    if within := [n for n, its in enumerate(entries, 1) if its.batch == one.batch]:
        return within[-1], within[-1]
    tokens = [(its.epoch, its.token) for its in entries]
    return bisect_left(tokens, (one.epoch, one.token)), bisect_right(tokens, (one.epoch, one.token))


def _fewest(entries: Sequence[Entry], about: Entry) -> int:
    """Return the fewest units that the buyer of an entry can have had of an item just after its batch."""
    first, last = _around(entries, about)
    had = list(accumulate((_bought(one) * (one.buyer == about.buyer) for one in entries), initial=0))
    return min(had[first : last + 1])


def _bought(one: Entry) -> int:
    if "line" in one.facts:
        return 0  # another item's, whose journal says it
    if one.kind in ("offered", "waiting") or (one.kind == "cancelled" and not one.held):
        return {"offered": 0, "waiting": 1, "cancelled": -1}[one.kind] * one.quantity  # a place in line counts, too
    return -one.facts.get("units", one.quantity) if "restock" in one.facts else one.held + one.lucky


# -- the line ----------------------------------------------------------------------------------------------------------


def nobody_is_overtaken(money: Money) -> Iterator[str]:
    """While somebody waits nobody gets units but the first in line, once, and not while the item is closed.

    Within a batch those who are served stand before those who come, and lines of baskets behind them, wherever they
    came; at the end nobody waits for units that are there.
    """
    for flow in money.flows:
        sku, line, held = flow.item.sku, dict[str, Entry](), 0
        left = flow.item.initial + sum(one.added for one in money.restocks(sku))
        heard = _heard(money, sku)
        pauses = [one for one in money.history.pauses if one.sku == sku]
        for one, by in zip(money.journal[sku], heard, strict=True):
            left, held = left + one.stock, held + one.held
            since = money.since[sku, one.entry]
            first = next((its for its, at in line.items() if not _is_line(one) or at.batch != one.batch), None)
            gets = (one.kind in ("held", "sold") and one.number == 1) or one.kind == "offered"
            if gets and first not in (None, one.order):
                yield f"{sku}, entry {one.entry}: {one.kind} of {one.order}, while {first} waits"
            if one.kind == "offered" and one.order not in line:
                yield f"{sku}, entry {one.entry}: {one.order} is offered units, and does not wait"
            if one.kind == "offered":
                for closed in pauses:
                    if (
                        closed.done_at is not None
                        and closed.done_at <= (at := one.at - closed.from_1970) <= closed.until
                    ):
                        yield f"{one.order} is offered units at {at:.2f} s: it is {closed.how}"
            why = one.facts.get("why") if one.kind == "cancelled" else None
            later = sum(it.added for it in money.restocks(sku)) - sum(it.added for it in money.restocks(sku, since))
            if why == "sold_out" and (first != one.order or one.quantity <= left - later + held):
                yield f"{one.order} is sent away, and its wish could be met"
            if why == "ended" and not any(
                its.how == "ended" and its.asked_at <= by and since <= its.resumed_at for its in pauses
            ):
                yield f"{one.order} is cancelled at the end of the sale, which has not ended"
            if one.kind == "waiting":
                line[one.order] = one
            elif state_after(OrderState.WAITING, one) is not OrderState.WAITING:
                line.pop(one.order, None)
        if line and left >= next(iter(line.values())).quantity:
            yield f"{sku}: {next(iter(line))} waits at the end, and {left} units are left"


def _heard(money: Money, sku: str) -> list[float]:
    """Return a moment after each entry of an item: when it, or one behind it, was delivered."""
    came: dict[str, float] = {}
    for one in money.history.deliveries:
        came[one.id] = min(one.at, came.get(one.id, one.at))
    at = [came.get(f"{sku}~{one.entry}", float("inf")) for one in money.journal[sku]]
    return list(accumulate(reversed(at), min))[::-1]


# -- the ends of holds -------------------------------------------------------------------------------------------------


def nobody_is_cut_short(money: Money) -> Iterator[str]:
    """A hold expires only after its deadline and the grace, as they were at that time, by the store's clock."""
    flows = {flow.item.sku: flow for flow in money.flows}
    for one in money.kept:
        entries = money.of.get(one.order)
        if not entries:
            continue
        flow, due = flows[entries[0].sku], 0.0
        for entry in entries:
            if entry.kind in ("held", "offered", "extended"):
                due = max(due, entry.facts.get("pay_by", 0.0) + flow.grace_s)
            elif entry.kind == "expired" and entry.at < due - 0.001:
                yield f"{one.order} has expired {due - entry.at:.3f} s before its end"


def everybody_has_their_time(money: Money) -> Iterator[str]:
    """Nobody hears that a hold has expired before its time has passed, by our own clock: whatever the store's says."""
    told: dict[str, float] = {}
    for one in money.history.deliveries:
        if one.event == "expired":
            told[one.order] = min(one.at, told.get(one.order, one.at))
    for order, heard_at in told.items():
        due = 0.0
        for entry in money.of.get(order, ()):
            flows = money.flows_of(order)
            flow, hold_s = flows[0], min(one.hold_s for one in flows)
            pay_s = min(max(one.hold_s, one.pay_s) for one in flows)
            windows = {"held": hold_s, "offered": hold_s, "extended": pay_s}
            asked = money.asked.get(money.cause(entry) or ("",) * 4)
            begins = money.since[entry.sku, entry.entry] if entry.kind == "offered" else asked
            if entry.kind in windows and begins is not None:
                due = max(due, begins + windows[entry.kind] + flow.grace_s)
        if heard_at < due - _ROUNDED_S:
            yield f"{order} was told to have expired at {heard_at:.2f} s, and had {due - heard_at:.2f} s more"


def every_hold_ends(money: Money) -> Iterator[str]:
    """Holds that have run out are given back soon, in peace, and in the end none of them is left."""
    calm, limit_s = peace(money.history), money.history.setup.recovery_s
    looks = [look for look in money.history.looks if look.sku in money.journal]
    last = {look.sku: look for look in looks}
    for look in looks:
        late_s = -(look.due_in_s or 0.0)
        in_peace = any(begin <= look.asked_at - late_s and look.at <= end for begin, end in calm)
        if late_s > limit_s and (in_peace or look is last[look.sku]):
            yield f"{look.sku} at {look.at:.2f} s: a hold has run out {late_s:.1f} s ago, and is still there"
    ended_at = max((entry.at for entry in money.entries), default=0.0)
    for one in money.kept:
        if one.shown["state"] == "held" and one.shown["pay_by"] < ended_at - limit_s:
            yield f"{one.order} is held at the end"


# -- what was told -----------------------------------------------------------------------------------------------------


def answers_true(money: Money) -> Iterator[str]:  # noqa: PLR0912 - a case each
    """Each answer has its event; nobody is told of an order, or changes one, without its whole id."""
    for call in money.told:
        key, about = (call.verb, call.outcome or ""), call.told if call.verb in ("hold", "buy") else call.order
        if call.outcome == "already_waiting" and about is None:  # who has not proved who they are is shown nothing
            about = next((one.order for one in money.journal[call.sku] if _is_place_of(one, call.buyer)), None)
        entries = money.of.get(about or "", [])
        if key in _NOTHING or key == _HOLD_REQUIRED:
            continue
        if call.outcome == "not_found":
            if entries:
                yield f"{_name(call)}: told that there is no {about}, which is there"
            continue
        if not entries:
            yield f"{_name(call)}: told {call.outcome!r} about {about}, which is not there"
            continue
        if call.verb in ("hold", "buy") and call.buyer != entries[0].buyer:
            yield f"{_name(call)}: told of {about}, which is {entries[0].buyer}'s, and not {call.buyer}'s"
        if call.verb not in ("hold", "buy") and call.told not in (None, about):
            yield f"{_name(call)}: about {about}, and was told of {call.told}"
        if call.outcome == "payment_ref_in_use":
            if not any(order != about for order, _ in money.places.get(call.payment or "", ())):
                yield f"{_name(call)}: told that the payment is another order's, and it is none's"
            continue
        if call.outcome == "too_much":
            items = money.stood[about or ""][-1].shown["items"]  # there never are more of a line
            if any(one["sku"] == call.line and one["quantity"] >= (call.units or 1) for one in items):
                yield f"{_name(call)}: told that it is too much, and it isn't"
            continue
        kinds = _SPEAKS_OF.get(key)
        if kinds is None or (key == ("hold", "waiting") and not call.wait):
            yield f"{_name(call)}: told {call.outcome!r}"
        elif not any(_fits(call, entry) for entry in entries if entry.kind in kinds):
            yield f"{_name(call)}: told {call.outcome!r} about {about}, which has {[one.kind for one in entries]}"


def _is_place_of(one: Entry, buyer: str) -> bool:
    return one.kind == "waiting" and one.buyer == buyer


def _fits(call: HttpCall, entry: Entry) -> bool:
    any_payment = call.verb != "confirm" and call.payment is None
    return any_payment or call.verb not in ("confirm", "refund") or entry.facts.get("payment_ref") == call.payment


def facts_told(money: Money) -> Iterator[str]:
    """What was said with a request, and told in its answer, is what its events have: amounts and refunds."""
    amounts: dict[tuple[str | None, str | None], set[int | None]] = defaultdict(set)
    wishes: dict[str | None, set[bool | None]] = defaultdict(set)
    for call in money.history.calls:
        if call.verb == "confirm":
            amounts[call.order, call.payment].add(call.amount)
        if call.verb == "refund":
            wishes[call.order].add(call.restock)
    for entry in money.entries:
        said = amounts[entry.order, entry.facts.get("payment_ref")]
        if entry.kind in _ABOUT_A_PAYMENT and said and entry.facts.get("amount") not in said:
            yield f"{entry.order}: {entry.kind} has the amount {entry.facts.get('amount')}, and {said} was announced"
        if "restock" in entry.facts and wishes[entry.order] and entry.facts["restock"] not in wishes[entry.order]:
            yield f"{entry.order}: refunded with restock {entry.facts['restock']}, as nobody has wished"
    for call in money.told:
        yield from _facts_told(money, call)


def _facts_told(money: Money, call: HttpCall) -> Iterator[str]:
    entries = money.of.get((call.told if call.verb in ("hold", "buy") else call.order) or "", [])
    flow = next((one for one in money.flows if one.item.sku == call.sku), None)
    if flow is not None and entries and call.verb == "confirm" and call.amount is not None:
        costs = {stood.shown["to_pay"] for stood in money.stood[entries[0].order]}
        wrong = call.outcome == CONFIRMED and call.amount not in costs
        if wrong or (call.outcome == "amount_mismatch" and {call.amount} == costs):
            yield f"{_name(call)}: told {call.outcome!r} for {call.amount}, and {entries[0].order} costs otherwise"
    back = [one for one in money.history.calls if one.verb == "refund" and one.order == call.order]
    given_back = call.refund is None and any(one.sent_at <= call.done_at for one in back)
    if call.outcome in _TO_GIVE_BACK and call.refund != call.payment and not given_back:
        yield f"{_name(call)}: told to give back {call.refund}"


def shown_as_it_stood(money: Money) -> Iterator[str]:
    """All that an answer shows of an order is how it stood after one of its events: that of which it speaks, or later.

    A field of which the events say nothing is one that nobody should see.
    """
    for call in money.told:
        new = call.verb in ("hold", "buy")
        stood = money.stood.get((call.told if new else call.order) or "", [])
        if not stood:
            if new and (call.shown.get("quantity"), call.shown.get("sku", call.sku)) != (call.quantity, call.sku):
                yield f"{_name(call)}: shown {call.shown}, which was not asked for"
            continue
        kinds = _SPEAKS_OF.get((call.verb, call.outcome or ""), ())
        entries = money.of[(call.told if new else call.order) or ""]
        first = next((n for n, one in enumerate(entries) if one.kind in kinds and _fits(call, one)), 0)
        part = call.verb in ("buy", "refund")  # their answers show a part of the order
        wrong = [
            _others(call.shown, {n: v for n, v in one.shown.items() if n in call.shown or not part})
            for one in stood[first:]
        ]
        if all(wrong):
            yield f"{_name(call)}: shown {min(wrong, key=len)}, and so it never stood"


def _others(found: Mapping[str, Any], should: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is another than it should be; the id of an order is beside what is shown of it."""
    names = sorted((found.keys() | should.keys()) - {"id"})
    return {name: found.get(name) for name in names if found.get(name) != should.get(name)}


def payments_kept(money: Money) -> Iterator[str]:
    """Each payment that was announced and answered counts for one order, or is owed by one, or was not taken."""
    announced = {(call.payment, call.order): call for call in money.history.calls if call.verb == "confirm"}
    for payment, places in money.places.items():
        if len(places) > 1:
            yield f"payment {payment} is in {len(places)} places: {places}"
        for order, kind in places:
            if (payment, order) not in announced:
                yield f"payment {payment} is {kind} of {order}, for which it was never announced"
    for call in money.told:
        if call.verb == "confirm" and call.outcome not in _NOT_TAKEN and call.payment not in money.places:
            yield f"{_name(call)}: told {call.outcome!r}, and the payment is nowhere: no unit, and nothing to give back"
    yield from _given_back(money)
    yield from _kept_for_nothing(money)
    for entry in money.entries:
        paid, price = entry.facts.get("amount"), money.costs(entry)
        if entry.kind == CONFIRMED and paid is not None and paid != price:
            yield f"{entry.order} is paid with {paid}, and costs {price}"
        if entry.kind == MISMATCH and paid == price:
            yield f"{entry.order} costs {price}, and {paid} was refused"


def _kept_for_nothing(money: Money) -> Iterator[str]:
    """A payment of a wrong amount is owed as soon as its order waits for no money any more."""
    for order, entries in money.of.items():
        if any(one.kind in ("confirmed", "expired", "cancelled") for one in entries):
            for ref in [one.facts["payment_ref"] for one in entries if one.kind == MISMATCH]:
                if all(place != order for place, _ in money.places.get(ref, ())):
                    yield f"payment {ref} has a wrong amount, and {order} keeps it without need"


def _given_back(money: Money) -> Iterator[str]:
    """No more is given back of a payment, and is to be, than was paid, and by the order that has it.

    Of the payment that counts the price of what the order has is kept: all that parts gave back is the price of theirs.
    """
    for order, entries in money.of.items():
        last = money.stood[order][-1].shown
        for one in last["payments"]:
            kept = one["amount"] and one["amount"] - one["given_back"] - one["owed"]
            right = last["to_pay"] if last["state"] == CONFIRMED else 0
            if one["state"] == "counts" and kept not in (None, right):
                yield f"{order} keeps {kept} of payment {one['ref']}, and {right} is the price of what it has"
        for one in money.stood[order][-1].shown["payments"]:
            if one["amount"] is not None and one["given_back"] + one["owed"] > one["amount"]:
                back = f"{one['given_back']} are given back, and {one['owed']} are to be"
                yield f"payment {one['ref']} of {order} is of {one['amount']}, of which {back}"
        paid = {one.facts.get("payment_ref") for one in entries if one.kind in _ABOUT_A_PAYMENT}
        for entry in entries:
            if (ref := entry.facts.get("payment_ref")) not in (None, *paid):
                yield f"payment {ref} is given back by {order}, which never had it"
    for order, times in Counter(
        call.order or ""  # a part that is asked for again is answered as before
        for call in money.told
        if (call.verb, call.outcome, call.line, call.units) == ("refund", "refunded", None, None)
    ).items():
        if times > (events := sum(one.kind == "refunded" for one in money.of.get(order, ()))):
            yield f"{order}: {times} were told that they have refunded it, and {events} have"


def first_come(money: Money) -> Iterator[str]:
    """Nobody was refused units that were there, or for a limit that they had not reached; an event follows its cause.

    A refusal is true if it was at some moment between all that was answered before it was asked for, and all that was
    asked for after it was told. Within a batch the order is another, so its lowest possible stock is what counts.
    """
    for flow in money.flows:
        yield from money.moments[flow.item.sku].refusals()


class _Moments:
    """An item's entries beside the moments of the run: an entry was asked for before it, and answered behind it.

    `levels`: the units left, held and sold after so many entries, without those that were added; `done`: when there
    were so many at least.
    """

    def __init__(self, money: Money, flow: Flow) -> None:
        self._money, self._flow = money, flow
        self._entries = entries = money.journal[flow.item.sku]
        self.levels = [(flow.item.initial, 0, 0)]
        for one in entries:
            stock, held, lucky = self.levels[-1]
            self.levels.append((stock + one.stock, held + one.held, lucky + one.lucky))
        self._low = _lowest(entries, [stock for stock, *_ in self.levels])
        self._queued = _queued(entries)
        done, begun = list[tuple[float, int]](), list[tuple[float, int]]()
        at: dict[tuple[str, str, str | None], int] = {}
        for n, one in enumerate(entries, 1):  # the first, if a wrong amount was noted twice
            its = money.whole(one)
            at.setdefault((its.order, its.kind, its.facts.get("payment_ref")), n)
        for call in money.told:
            if call.line not in (None, flow.item.sku):
                continue  # a part of another line
            for kind in _SPEAKS_OF.get((call.verb, call.outcome or ""), ()):
                order = call.told if call.verb in ("hold", "buy") else call.order
                ref = call.payment if kind in _ABOUT_A_PAYMENT else None
                if (order or "", kind, ref) in at:
                    done.append((call.done_at, at[order or "", kind, ref]))
                    break
        for n, one in enumerate(entries, 1):
            if (what := money.cause(one)) is not None and what in money.asked:
                begun.append((money.asked[what], n))
        self.done = sorted(done)
        self._done = _running(self.done, max)
        self._begun = _running(sorted(begun, reverse=True), min)[::-1]
        self._first_done, self._first_begun = [t for t, _ in self._done], [t for t, _ in self._begun]
        self._begun_of = {n: t for t, n in begun}

    def refusals(self) -> Iterator[str]:
        flow, money = self._flow, self._money
        for n, since in sorted(self._begun_of.items()):
            if (least := self.after(since)) >= n:
                yield (
                    f"{flow.item.sku}: entry {n} ({self._entries[n - 1].kind}) is before entry {least}, which was "
                    "answered before it was asked for"
                )
        for call in money.told:
            if (call.refused or call.sku) != flow.item.sku or (call.verb, call.outcome or "") not in _NOTHING:
                continue
            quantity = call.items.get(flow.item.sku, call.quantity)
            since = money.asked[_what(call)] if call.replayed else call.sent_at
            first = self.after(since - (MEMORY_S if call.key is None else 0))
            last = max(first, self.before(call.done_at))
            if call.outcome == SOLD_OUT:
                there = sum(one.added for one in money.restocks(flow.item.sku, since))
                left = min(self._low[first : last + 1]) + there
                if left >= quantity and not any(self._queued[first : last + 1]):
                    yield f"{_name(call)}: refused {quantity} of {flow.item.sku}, and {left} were left"
            elif call.outcome == LIMIT_REACHED:
                most, limit = self._most(call.buyer, first, last), flow.item.limit
                if (not limit or most + quantity <= limit) and not self._is_over_the_group(call, since, most):
                    yield f"{_name(call)}: refused for the limit, and had {most} of {flow.item.sku}"
        yield from self._owed_for_nothing()

    def _is_over_the_group(self, call: HttpCall, since: float, most: int) -> bool:
        """Return whether a buyer may have had too many units of the items that have a limit together."""
        wanted = call.items or {call.sku: call.quantity}
        for sku, one in self._money.moments.items():
            if one._flow.group == self._flow.group:
                first = one.after(since)
                most += wanted.get(sku, 0)
                most += one._most(call.buyer, first, max(first, one.before(call.done_at))) if one is not self else 0
        return bool(self._flow.group) and most > self._flow.group

    def _had_units(self, line: Mapping[str, Any], at: Entry) -> bool:
        """Return whether there surely were units for a line of an order, when another item's entry was written."""
        first, last = _around(self._entries, at)
        left = min(self._low[max(0, first - 1) : last + 1])
        return not self._flow.item.limit and left >= int(line["quantity"])

    def _fills_the_group(self, one: Entry, had: int) -> bool:
        """Return whether a buyer may have had too many of other items for an order that is paid late."""
        lines = {
            self._flow.item.sku: one.quantity,
            **{its["sku"]: its["quantity"] for its in one.facts.get("lines", ())},
        }
        for sku, other in self._money.moments.items():
            if other._flow.group == self._flow.group:
                had += lines.get(sku, 0)
                if other is not self:
                    first, last = _around(other._entries, one)
                    had += other._most(one.buyer or "", max(0, first - 1), last)
        return bool(self._flow.group) and had > self._flow.group

    def _owed_for_nothing(self) -> Iterator[str]:
        """A late payment is given back only if there was no unit for it."""
        states: dict[str, OrderState | None] = {}
        for n, one in enumerate(self._entries, 1):
            state = states.get(one.order)
            right = one.facts.get("amount") in (None, self._money.costs(one))
            if one.kind == REFUND_DUE and right and state == "expired" and self._low[n] >= one.quantity:
                had = self._most(one.buyer or "", n - 1, n)
                within = not self._flow.item.limit or had + one.quantity <= self._flow.item.limit
                within &= not self._fills_the_group(one, had)
                if within and all(
                    self._money.moments[its["sku"]]._had_units(its, one) for its in one.facts.get("lines", ())
                ):
                    yield f"{one.order}: a late payment is given back, and {self._low[n]} units were left"
            states[one.order] = state_after(state, one)

    def after(self, moment: float) -> int:
        """Return how many entries there were at least at a moment."""
        found = bisect_left(self._first_done, moment)
        return self._done[found - 1][1] if found else 0

    def before(self, moment: float) -> int:
        """Return how many entries there can have been at most."""
        found = bisect_right(self._first_begun, moment)
        return self._begun[found][1] - 1 if found < len(self._begun) else len(self._entries)

    def _most(self, buyer: str, first: int, last: int) -> int:
        """Return the most units that a buyer may have had between two entries, and in the batch of the second one."""
        units = most = 0
        batch = ""
        for n, one in enumerate(self._entries, 1):
            if n > last and one.batch != batch:
                break
            if n == last:
                batch = one.batch
            if one.buyer == buyer:
                # In its batch what a buyer gives up may come after what they were refused.
                most = max(most, units + max(0, _bought(one))) if n > first else most
                units += _bought(one)
            if n <= first:
                most = units
        return max(most, units)


def _lowest(entries: Sequence[Entry], stock: Sequence[int]) -> list[int]:
    """Return the fewest units that may have been left at each entry: in a batch, all takes may have come first."""
    found, begin = list(stock), 0
    while begin < len(entries):
        end = begin
        while end < len(entries) and entries[end].batch == entries[begin].batch:
            end += 1
        low = stock[begin] + sum(min(0, one.stock) for one in entries[begin:end])
        for n in range(begin, end + 1):
            found[n] = min(found[n], low)
        begin = end
    return found


def _queued(entries: Sequence[Entry]) -> list[bool]:
    """Return whether somebody may have waited at each entry: in a batch, all who get in line may have come first."""
    line, found = set[str](), [False]
    for _, ones in groupby(entries, key=lambda one: one.batch):
        batch = list(ones)
        joined = any(one.kind == "waiting" for one in batch)
        found[-1] |= joined
        found += [bool(line) or joined] * len(batch)
        for one in batch:
            (line.add if one.kind == "waiting" else line.discard)(one.order)
    return found


def _running(pairs: Sequence[tuple[float, int]], choose: Callable[[int, int], int]) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    for moment, n in pairs:
        found.append((moment, choose(found[-1][1], n) if found else n))
    return found


def _asked_for(one: Entry) -> tuple[str, str, str | None, str | None] | None:
    """Return the request that must have come before this could happen; None if none is needed."""
    if one.facts.get("by") == CASHIER or (one.kind == "cancelled" and one.facts.get("why") in _NO_MORE):
        return None  # what it does was asked for by a refund that is due; and a wish that can't be met any more ends
    match one.kind:
        case "held" | "waiting":
            return "hold", one.facts.get("ref", ""), None, None
        case "sold":
            return "buy", one.key or one.buyer or "", None, None
        case _ if one.kind in _ABOUT_A_PAYMENT:
            return "confirm", "", one.order, one.facts.get("payment_ref")
        case "extended" | "cancelled" | "refunded":
            return {"extended": "extend", "cancelled": "cancel", "refunded": "refund"}[one.kind], "", one.order, None
    return None


def pauses_kept(money: Money) -> Iterator[str]:
    """What is asked for and answered while an item is closed begins nothing; nobody is told that it is, if it isn't."""
    asked: dict[str | None, float] = {}
    for call in money.told:
        if call.told is not None:
            asked[call.told] = min(call.sent_at, asked.get(call.told, call.sent_at))
    first = dict[str | None, float]()  # an answer that its key has kept may be that to a request without one
    for call in money.calls:
        first[call.key] = min(call.sent_at, first.get(call.key, call.sent_at))
    for call in money.told:
        if call.verb not in ("hold", "buy"):
            continue
        if call.outcome in _CLOSED:
            sku = call.refused or call.sku
            so = [one for one in money.history.pauses if (one.sku, one.how) == (sku, call.outcome)]
            since = first.get(call.key, call.sent_at) if call.replayed else call.sent_at
            if not any(one.asked_at <= call.done_at and one.resumed_at >= since for one in so):
                yield f"{_name(call)}: told that {sku} is {call.outcome}, which it was not"
            continue
        for one in (one for one in money.history.pauses if one.sku in (call.items or (call.sku,))):
            within = one.done_at is not None and one.done_at <= call.sent_at and call.done_at <= one.until
            asked_at = first[call.key] if call.replayed and call.key else asked.get(call.told, call.sent_at)
            if within and call.outcome in _BEGINS and asked_at >= (one.done_at or 0.0):
                yield f"{_name(call)}: held {call.told}, and {one.sku} was {one.how} from {one.done_at:.2f} s on"


def prices_kept(money: Money) -> Iterator[str]:
    """A hold begins at a price that was in force at some moment between its first request and its first answer."""
    told: dict[str | None, float] = {}
    for call in money.told:
        if call.verb == "hold":
            told[call.told] = min(call.done_at, told.get(call.told, call.done_at))
    for flow in money.flows:
        # From when on each price may have been in force, and until when.
        set_at = [one for one in money.history.prices if one.sku == flow.item.sku]
        begins = [(0.0, flow.price), *((one.asked_at, one.price) for one in set_at)]
        ends = [*(one.done_at for one in set_at), float("inf")]
        for one in money.journal[flow.item.sku]:
            if one.kind not in _BEGINS or (what := money.cause(one)) not in money.asked:
                continue
            first, last = money.asked[what], told.get(money.whole(one).order, float("inf"))
            possible = {
                price for (since, price), until in zip(begins, ends, strict=True) if since <= last and until >= first
            }
            if one.facts.get("price") not in possible:
                yield f"{one.order} began at the price {one.facts.get('price')}, and {sorted(possible)} were in force"


def wanted(money: Money) -> Iterator[str]:
    """Nothing happens to an order that nobody has asked for; each visit has one order, as it has asked, and where."""
    visits: Counter[str] = Counter()
    wishes: dict[str, list[tuple[str | None, str, str, dict[str, int]]]] = defaultdict(list)
    for call in money.calls:
        if call.verb in ("hold", "buy"):
            items = call.items or {call.sku: call.quantity}
            wishes[call.wish].append((call.key, call.buyer, call.instance, items))
    for one in money.entries:
        if (what := money.cause(one)) is not None and what not in money.asked:
            yield f"{one.order}: {one.kind}, and nobody has asked for that"
        if one.kind in (*_BEGINS, SOLD) and not _is_line(one):
            wish = one.facts.get("ref") or one.key or one.buyer or ""
            visits[wish] += 1
            items = {one.sku: one.quantity} | {line["sku"]: line["quantity"] for line in one.facts.get("lines", ())}
            if (own := (one.key, one.buyer, one.instance, items)) not in (asked := wishes.get(wish, [])) and asked:
                yield f"{one.order}: {one.kind} as {own}, and {asked} was asked for"
    for wish, count in visits.items():
        if count > 1:
            yield f"visit {wish} has {count} orders"


def asked_again(money: Money) -> Iterator[str]:
    """Who asks again for a purchase hears the same, and no answer was untrue: who is told of no order has none."""
    orders = {one.key or one.buyer: one for one in money.entries if one.kind == SOLD}
    for wish, calls in money.purchases.items():
        first: HttpCall | None = None
        maybe = False  # whether something may have been sold to it by now, as far as its answers say
        given_up = any(one.status == 0 or one.error == UNKNOWN for one in calls)
        until = _NEVER if given_up else calls[-1].done_at
        for one in calls:
            if one.status == 200:
                if one.replayed and not maybe:
                    yield f"{wish} hears again what it was never told: each answer before was that nothing was sold"
                renewed = one.outcome == SOLD_OUT and money.restocks(one.sku, since=one.sent_at, until=until)
                if one.told is None and wish in orders and not renewed:
                    yield f"{_name(one)}: told {one.outcome!r}, and has order {orders[wish].order}"
                if first is not None:
                    anew = first.outcome == SOLD_OUT and money.restocks(one.sku, since=first.sent_at, until=one.done_at)
                    if first.outcome == SOLD and not one.replayed:
                        yield f"{wish} was told {first.outcome} and then {one.outcome} as if it had not asked before"
                    if (one.outcome, one.told) != (first.outcome, first.told) and not anew:
                        yield f"{wish} was told {first.outcome} {first.told}, and then {one.outcome} {one.told}"
                if first is None or first.outcome == SOLD_OUT:
                    first = one
            maybe = maybe or one.status in (0, 200) or one.error == UNKNOWN
        if wish in orders and not given_up and not any(one.told for one in calls):
            yield f"{_name(calls[-1])}: told that nothing was decided, and has order {orders[wish].order}"


def keys_are_their_buyers(history: History) -> Iterator[str]:
    """The key of an order reveals it to its buyer only."""
    for theft in history.thefts:
        if theft.status not in (0, 503) and not (theft.status == 422 and "key-reused" in (theft.said or "")):
            yield (
                f"another buyer sent key {theft.key} of {theft.sku} to {theft.instance} at {theft.at:.2f} s, and was "
                f"answered {theft.status} {theft.said}"
            )


def decided(money: Money) -> Iterator[str]:
    """Answers are 200, or 503 with Retry-After; all who can ask again, and each payment, have one in the end."""
    answered = {_what(call) for call in money.told}
    for call in money.calls:
        if call.status == 503 and call.retry_after is None:
            yield f"{_name(call)}: a 503 without Retry-After from {call.instance}"
        elif call.status not in (0, 200, 503):
            yield f"{_name(call)}: status {call.status} ({call.error}) from {call.instance}"
        if _what(call) not in answered and (call.key is not None or call.verb not in ("hold", "buy", "look")):
            answered.add(_what(call))
            yield f"{_name(call)} was never decided"


def tested(money: Money) -> Iterator[str]:
    """The run has tried each kind of event that it is about."""
    counted, holds = Counter(ways(money)), sum(one.kind in _BEGINS for one in money.entries)
    for name, of in (("baskets", holds), *((f"parts {done}", counted["baskets"]) for done in _PARTS)):
        if any(flow.basket for flow in money.flows) and of >= _MANY and not counted[name]:
            yield f"there were no {name}"
    seen = {(one.kind, bool(one.facts.get("late"))) for one in money.entries}
    for what, name in (
        (("confirmed", False), "nobody paid"),
        (("expired", False), "no hold has run out"),
        (("cancelled", False), "nobody cancelled"),
        (("extended", False), "nobody extended"),
        (("refund_due", False), "no payment had to be given back"),
        (("refunded", False), "nothing was refunded"),
        (("amount_mismatch", False), "nobody paid a wrong amount"),
        (("offered", False), "nobody got units by waiting for them"),
    ):
        rare = what[0] in ("amount_mismatch", "offered") and holds < _MANY
        if what not in seen and not rare:
            yield name
    if not any(call.outcome == "hold_required" for call in money.told):
        yield "nobody tried to buy what has a price at once"
    if not judge_events.ways(money.history)["events sent again"]:
        yield "no event was sent again"


def ways(money: Money) -> dict[str, int]:
    """Count the events and the outcomes of the run, by their kind."""
    if not money.history.setup.flows:
        return {}
    kinds = Counter(one.kind for one in money.entries)
    outcomes = Counter(call.outcome for call in money.told if call.verb == "confirm")
    return {
        "held": kinds["held"],
        "got in line": kinds["waiting"],
        "offered": kinds["offered"],
        "paid": kinds["confirmed"],
        "paid late": sum(bool(one.facts.get("late")) for one in money.entries if one.kind == CONFIRMED),
        "run out": kinds["expired"],
        "cancelled": kinds["cancelled"],
        "extended": kinds["extended"],
        "to be given back": kinds["refund_due"],
        "refunded": kinds["refunded"],
        "paid again": outcomes["already_confirmed"],
        "baskets": sum("lines" in one.facts and one.number == 1 for one in money.entries),
        "baskets refused": sum(call.refused is not None for call in money.told),
        "parts cancelled": sum(call.outcome == "partly_cancelled" for call in money.told if call.units or call.line),
        "parts refunded": sum(call.outcome == "partly_refunded" for call in money.told if call.units or call.line),
        "another's payment": outcomes["payment_ref_in_use"],
        "paid for nothing": outcomes["not_found"],
        **judge_events.ways(money.history),
    }
