"""What a till works on: the buyers who wait for an item, and what is decided of them in a batch."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.sale.decision import Answer, Outcome, Purchase, Verdict, decide
from app.stock import Ask, Batch, Fence, Refused, Settled, Snapshot, Sold, StockStore

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_FIRST_CONFLICT_S: Final = 0.004
_LONGEST_CONFLICT_S: Final = 0.1
_PLENTY: Final = Snapshot(stock=10**15, lucky=0)
_ABOUT_NOBODY: Final = Ask()


class Trouble:
    """How long to pause when something fails again and again, and how loudly to say it: once, not twice a second."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._last: type[Exception] | None = None

    def again(self, error: Exception) -> tuple[float, int]:
        """The pause in seconds, and the level for the log."""
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2 or _FIRST_PAUSE_S)
        level = logging.DEBUG if type(error) is self._last else logging.WARNING
        self._last = type(error)
        return self._pause_s, level

    def over(self) -> None:
        """It went well."""
        self._pause_s, self._last = 0.0, None


class Conflicts:
    """How long to keep away when others were faster again and again: longer each time, and by chance.

    All who were too late would come again at once, otherwise.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0

    def again(self) -> float:
        """The pause in seconds."""
        self._longest_s = min(_LONGEST_CONFLICT_S, self._longest_s * 2 or _FIRST_CONFLICT_S)
        return random.uniform(0, self._longest_s)  # noqa: S311 - not a secret

    def over(self) -> None:
        """We were the faster ones."""
        self._longest_s = 0.0


class Item:
    """What a cashier knows of an item."""

    __slots__ = ("aside", "conflicts", "left", "sku", "sold_out_until", "timer", "trouble")

    def __init__(self, sku: str) -> None:
        self.sku = sku
        self.sold_out_until = 0.0  # the loop's clock
        self.left = 0  # when we looked last, less what we sold since; 0 as well if it is to be looked at
        self.aside: deque[Pending] | None = None  # its buyers, while nothing can be sold of it and others go on
        self.timer: asyncio.TimerHandle | None = None
        self.trouble = Trouble()
        self.conflicts = Conflicts()


class Pending:
    """A purchase that is not answered yet."""

    __slots__ = ("deadline", "future", "item", "purchase", "sent")

    def __init__(self, purchase: Purchase, item: Item, future: "asyncio.Future[Answer]", deadline: float) -> None:
        self.purchase = purchase
        self.item = item
        self.future = future
        self.deadline = deadline
        self.sent = False  # a commit with it is out: from here on "nothing was sold" may be untrue

    def fail(self, error: Exception) -> None:
        """Tell the buyer, unless they have been told."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Part:
    """What was decided of one item in a batch; so many units are sold in it.

    Sent to the store and not answered it is unsettled: written, or not, or still on its way.
    """

    item: Item
    write: Batch
    units: int
    live: list[Pending]
    verdicts: list[Verdict]

    @property
    def sells_the_last(self) -> bool:
        """Whether nothing is left when this is written, so far as that is known."""
        return self.write.supposing is None and self.write.expected_stock == self.units

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits to be told."""
        return any(not pending.future.done() for pending in self.live)


def decided(item: Item, batch_id: str, snapshot: Snapshot, buyers: Sequence[Pending], limit_per_buyer: int) -> Part:
    """What to write of an item, by what there is; nothing if the batch of its part neither sells nor refuses."""
    live = [pending for pending in buyers if not pending.future.done()]
    purchases = [pending.purchase for pending in live]
    verdicts = decide(snapshot, purchases, limit_per_buyer=limit_per_buyer)
    write = _to_write(batch_id, snapshot, purchases, verdicts)
    units = sum(sold.quantity for sold in write.sold)
    # Where some come again others will, too.
    item.left = 0 if snapshot.settled or (limit_per_buyer and snapshot.bought) else snapshot.stock - units
    return Part(item, write, units, live, verdicts)


def supposed(
    item: Item, batch_id: str, fence: Fence, store: StockStore, buyers: Sequence[Pending], limit_per_buyer: int
) -> Part | None:
    """What to write of an item without a read before it, as there is plenty and nobody was here before (ADR 12).

    Decided by the same rule, on a snapshot as it would be then; whether it is so the store says as it writes. None if
    that isn't likely, or the store wants a read; also for the last unit, so that it is known to be the last.
    """
    if not item.left:
        return None
    live = [pending for pending in buyers if not pending.future.done()]
    purchases = [pending.purchase for pending in live]
    verdicts = decide(_PLENTY, purchases, limit_per_buyer=limit_per_buyer)
    sold = _sold(purchases, verdicts)
    units = sum(one.quantity for one in sold)
    if not sold or units >= item.left or any(verdict.refuses for verdict in verdicts):
        return None
    write = store.suppose(item.sku, fence, batch_id, sold, ask(live, limit_per_buyer))
    return None if write is None else Part(item, write, units, live, verdicts)


def by_item(batch: Iterable[Pending]) -> dict[Item, list[Pending]]:
    """The buyers of each item, in their order."""
    found: dict[Item, list[Pending]] = {}
    for pending in batch:
        found.setdefault(pending.item, []).append(pending)
    return found


def ask(buyers: Sequence[Pending], limit_per_buyer: int) -> Ask:
    """Of whom a decision needs to know."""
    keys = [pending.purchase.key for pending in buyers if pending.purchase.key is not None]
    if not (keys or limit_per_buyer):
        return _ABOUT_NOBODY
    names = [pending.purchase.buyer for pending in buyers if pending.purchase.buyer is not None]
    return Ask(list(dict.fromkeys(names)) if limit_per_buyer else (), list(dict.fromkeys(keys)))


def _to_write(batch_id: str, snapshot: Snapshot, purchases: Sequence[Purchase], verdicts: Sequence[Verdict]) -> Batch:
    refused = []
    for purchase, verdict in zip(purchases, verdicts, strict=True):
        # That it came too late is not remembered: the end may be put off.
        if verdict.refuses and verdict.outcome and purchase.key is not None and not purchase.late:
            refused.append(Refused(purchase.key, Settled(verdict.outcome, purchase.quantity, purchase.buyer)))
    sold = _sold(purchases, verdicts)
    return Batch(batch_id, snapshot.stock, sold, refused, snapshot.last_entry, snapshot.version)


def _sold(purchases: Sequence[Purchase], verdicts: Sequence[Verdict]) -> list[Sold]:
    return [
        Sold(purchase.quantity, purchase.buyer, purchase.key)
        for purchase, verdict in zip(purchases, verdicts, strict=True)
        if verdict.outcome is Outcome.SOLD
    ]
