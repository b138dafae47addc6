"""The judge's demands on items of which new sales begin, and which are removed, while buyers buy.

When a sale began, nobody knows: between the operator's request and the answer to it. So what is told in between may be
of either sale, and only what was asked for and answered within one is held against it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lab.torture.history import UNKNOWN, Delivery, Entry, History, HttpCall
from lab.torture.judge_money import MEMORY_S, SOLD, SOLD_OUT

_FOR_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class SaleSpan:
    """A sale of `units`, or none (None). It began from `begins` to `began`, and is over from `ends` to `ended`."""

    units: int | None
    begins: float
    began: float
    ends: float
    ended: float

    def surely(self, since: float, until: float) -> bool:
        """Return whether all from one moment to another was in this sale."""
        return self.began <= since and until <= self.ends


@dataclass(slots=True)
class ToldOrder:
    """An order that was told to its buyer: first asked for at `asked`, first told at `told`."""

    quantity: int
    asked: float
    told: float = _FOR_EVER
    heard: list[HttpCall] = field(default_factory=list)


class Drop:
    """The story of an item: its sales, what was asked for, and the orders that were told."""

    def __init__(self, history: History, sku: str, units: int) -> None:
        turns = [one for one in history.sales if one.sku == sku]
        begins = [(units, 0.0, 0.0), *((one.units, one.asked_at, one.done_at) for one in turns)]
        ends = [*((one.asked_at, one.done_at) for one in turns), (_FOR_EVER, _FOR_EVER)]
        self.sales = [SaleSpan(*begin, *end) for begin, end in zip(begins, ends, strict=True)]
        self.bids = sorted((one for one in history.bids if one.sku == sku), key=lambda one: one.sent_at)
        self.looks = [one for one in history.seen if one.sku == sku]
        self.first: dict[str, float] = {}
        self.orders: dict[str, ToldOrder] = {}
        for one in self.bids:
            asked = self.first.setdefault(one.wish, one.sent_at)
            if one.status == 200 and one.outcome == SOLD and one.told is not None:
                order = self.orders.setdefault(one.told, ToldOrder(one.quantity, asked))
                order.told = min(order.told, one.done_at)
                order.heard.append(one)
        end = history.end
        self.left = next((one for one in end.left if one.sku == sku), None) if end else None
        self.kept: Sequence[Entry] = [one for one in end.journal if one.sku == sku] if end else ()

    def sold_at_most(self, sale: SaleSpan, by: float, besides: str) -> int:
        """Return how many units may have been sold in a sale by a moment, to others than one buyer."""
        sold = sum(
            one.quantity
            for one in self.orders.values()
            if one.asked <= by and one.told >= sale.begins and all(bid.wish != besides for bid in one.heard)
        )
        unknown = [one for one in self.bids if one.status == 0 or one.error == UNKNOWN]
        return sold + sum(one.quantity for one in unknown if one.sent_at <= by and one.wish != besides)


def _drops(history: History) -> Iterator[tuple[str, Drop]]:
    for item in history.setup.drops:
        yield item.sku, Drop(history, item.sku, item.initial)


def units_kept(history: History) -> Iterator[str]:
    """No sale sells more units than it has, and none refuses units that are there; in the end all add up."""
    for sku, drop in _drops(history):
        for sale in drop.sales:
            sold = sum(one.quantity for one in drop.orders.values() if sale.surely(one.asked, one.told))
            if sold > (sale.units or 0):
                yield f"{sku}: {sold} units were sold in the sale of {sale.units} that began at {sale.began:.2f} s"
            for look in drop.looks:
                if sale.surely(look.asked_at, look.at) and (look.stock + look.lucky != sale.units or look.stock < 0):
                    seen = f"stock {look.stock}, lucky {look.lucky}"
                    yield f"{sku} at {look.at:.2f} s: {seen}, in a sale of {sale.units}"
        for bid in drop.bids:
            if bid.outcome != SOLD_OUT or bid.key is None or bid.replayed:
                continue
            for sale in [one for one in drop.sales if one.units is not None and one.surely(bid.sent_at, bid.done_at)]:
                if (least := (sale.units or 0) - drop.sold_at_most(sale, bid.done_at, bid.wish)) >= bid.quantity:
                    yield f"{bid.buyer} was refused {bid.quantity} of {sku} at {bid.done_at:.2f} s, of {least} left"
        last = drop.sales[-1]
        if drop.left is None:
            continue
        units = sum(one.quantity for one in drop.kept)
        if (drop.left.lucky, drop.left.stock + drop.left.lucky) != (units, last.units):
            yield f"{sku} at the end: stock {drop.left.stock}, lucky {drop.left.lucky}, orders {units}, of {last.units}"


def forgotten(history: History) -> Iterator[str]:
    """An order is there until the next sale begins, and then nowhere: no answer speaks of it, and no key is used up."""
    for sku, drop in _drops(history):
        last, kept = drop.sales[-1], {one.order: one for one in drop.kept}
        for name, order in drop.orders.items():
            gone = next((one for one in drop.sales[1:] if order.told <= one.begins), None)
            for bid in order.heard:
                if gone is not None and bid.sent_at >= gone.began:
                    yield f"{bid.buyer} was told at {bid.done_at:.2f} s of {name}, which a new sale had forgotten"
            if gone is not None and name in kept:
                yield f"{name} of {sku} is there at the end, and a new sale had forgotten it"
            if drop.left is not None and order.asked >= last.began and name not in kept:
                yield f"{name} of {sku} was told to its buyer, and is not there"
        wishes = {one.wish for one in drop.bids}
        for name, kept_order in kept.items():
            if (kept_order.key or kept_order.buyer) not in wishes:
                yield f"{name} of {sku} is there, and nobody has asked for it"


def removed(history: History) -> Iterator[str]:
    """Nothing is sold of an item that was removed, and one that is on sale is not said to be unknown."""
    for sku, drop in _drops(history):
        for bid in drop.bids:
            for sale in drop.sales:
                if not sale.surely(bid.sent_at, bid.done_at):
                    continue
                from_memory = bid.key is None and bid.outcome == SOLD_OUT and bid.sent_at < sale.began + MEMORY_S
                if sale.units is None and bid.status == 200 and not from_memory:
                    yield f"{bid.buyer} was told {bid.outcome} at {bid.done_at:.2f} s of {sku}, which was removed"
                if sale.units is not None and bid.status == 404:
                    yield f"{bid.buyer} was told at {bid.done_at:.2f} s that there is no {sku}"
                if bid.status not in (0, 200, 404, 503):
                    yield f"{bid.buyer} was answered {bid.status} ({bid.error}) at {bid.done_at:.2f} s"


def events_named_once(history: History) -> Iterator[str]:
    """A webhook's id is that of one event, also of sales that came after each other; the last one's are all told."""
    told: dict[str, Delivery] = {}
    for one in history.announced:
        if not one.wrong and told.setdefault(one.id, one).body != one.body:
            yield f"{one.id} was the name of {told[one.id].order}, and at {one.at:.2f} s that of {one.order}"
    taken = {one.order for one in history.announced if one.status == 200}
    if history.announced and history.end is not None:
        for entry in history.end.journal:
            if entry.sku in history.drops and entry.order not in taken:
                yield f"{entry.order} is there at the end, and was never told to the shop"
