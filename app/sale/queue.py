"""The queue: all buyers of one lock's items in this instance who are not answered, in the order of their arrival."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Final

from app.errors import ItemBlocked, NotDecided, OutcomeUnknown, QueueFull, SaleError
from app.sale.decision import Answer, Outcome, Purchase
from app.telemetry.observer import Observer
from fencelock.backoff import Backoff

_ITEMS_KEPT: Final = 10_000  # items that nobody waits for, and of which something may be known
_SHOWN_MAX: Final = 1000
_SWEEP_S: Final = 0.01
_TURNS_FIRST: Final = 4  # of the loop, before buyers are told: in these, a lock that is given back gets on its way
_ERROR_COUNTS_S: Final = 5.0


class EntryState(Enum):
    """Where a buyer's purchase is."""

    WAITING = auto()  # for its turn
    TAKEN = auto()  # into a batch; nothing of it was sent
    SENT = auto()  # a commit with it is out, or in doubt: from here on "nothing was sold" may be untrue


class Item:
    """What is known of an item.

    `waiting`: buyers who are not answered; `parked`: its buyers are passed over for a while; `error`: why nothing of it
    could be sold, and when that was; `blocked`: only an operator can change that; `sells`: it was decided on when last
    tried. Times are by the loop's clock.
    """

    __slots__ = (
        *("_limited", "_refusal", "_until", "backoff", "blocked", "conflicts", "error", "parked", "sells", "sku"),
        "waiting",
    )

    def __init__(self, sku: str) -> None:
        self.sku = sku
        self.waiting = 0
        self.parked: asyncio.TimerHandle | None = None
        self.error: tuple[Exception, float] | None = None
        self.blocked = self.sells = False
        self._refusal: Outcome | None = None
        self._until = 0.0
        self._limited = False
        self.backoff = Backoff(0.02, 0.5)
        self.conflicts = Backoff(0.004, 0.1, jitter=True)

    def refuse(self, outcome: Outcome | None, until: float, *, limited: bool) -> None:
        """Until then all are told this outcome, if it is one; but not a nameless buyer, where there is a limit."""
        self._refusal, self._until, self._limited = outcome, until, limited

    def refusal(self, purchase: Purchase, now: float) -> Outcome | None:
        """What a purchase without a key is told, if that is known from a moment ago."""
        if self._refusal is None or now >= self._until:
            return None
        return None if self._limited and purchase.buyer is None else self._refusal

    def is_well(self) -> None:
        """It was sold, or there was nothing left to sell."""
        self.error, self.blocked, self.sells = None, False, True
        self.backoff.reset()
        self.conflicts.reset()


class Entry:
    """A buyer who is in the queue. `deadline`: by the loop's clock; `came_at`: in seconds since 1970.

    `answered`: it has left the queue, and is told in a moment if it has not been told yet.
    """

    __slots__ = ("answered", "came_at", "deadline", "future", "gone", "item", "purchase", "state")

    def __init__(
        self,
        purchase: Purchase,
        item: Item,
        future: "asyncio.Future[Answer]",
        deadline: float,
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.purchase = purchase
        self.item = item
        self.future = future
        self.deadline = deadline
        self.came_at = time.time()
        self.gone = gone
        self.state = EntryState.WAITING
        self.answered = False

    @property
    def wanted(self) -> bool:
        """Whether the buyer still waits to be told; with a key they may ask again."""
        return not (self.answered or self.future.done()) and (self.purchase.key is not None or not self.gone())

    def too_late(self, reason: str) -> SaleError:
        """The error for a buyer whose time is up."""
        if self.state is EntryState.SENT:
            return OutcomeUnknown(f"{reason}, while the purchase was being written; the same idempotency key will tell")
        return NotDecided(f"{reason}; nothing was sold")


class Queue:
    """First come, first served, whatever one wants to buy. Lives on one event loop.

    Nobody leaves it before they are answered; a buyer who is being served keeps their place, and simply waits again if
    that came to nothing. `limit`: buyers at most; `on_work` is called when there may be somebody to serve.
    """

    def __init__(self, *, limit: int, observer: Observer, on_work: Callable[[], None]) -> None:
        self._limit = limit
        self._observer = observer
        self._on_work = on_work
        self._entries: OrderedDict[Entry, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._to_tell: list[tuple[Entry, Answer | Exception]] = []
        self._items: dict[str, Item] = {}
        self._forget_at = _ITEMS_KEPT

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waiting_by_item(self) -> dict[str, int]:
        """Buyers who are not answered, by item: a thousand items at most, those that are waited for first."""
        items = sorted(self._items.values(), key=lambda item: not item.waiting)
        return {item.sku: item.waiting for item in items[:_SHOWN_MAX]}

    @property
    def errors(self) -> dict[str, Exception]:
        """Why nothing can be sold of some items. An item nobody wants is not tried again: its error is forgotten."""
        since = asyncio.get_running_loop().time() - _ERROR_COUNTS_S
        return {sku: item.error[0] for sku, item in self._items.items() if item.error and item.error[1] > since}

    @property
    def selling(self) -> Iterator[str]:
        """The items that were decided on when they were last tried."""
        return (sku for sku, item in self._items.items() if item.sells)

    def join(
        self, purchase: Purchase, deadline: float, *, gone: Callable[[], bool] = lambda: False
    ) -> "asyncio.Future[Answer]":
        """Queue; the future gets the answer or the error, at `deadline` at the latest.

        Raises `QueueFull` or `ItemBlocked` at once. Deadlines must come in ascending order.
        """
        if len(self._entries) >= self._limit:
            self._observer.answered(QueueFull.__name__)
            raise QueueFull(f"{self._limit} buyers are waiting already; nothing was sold")
        loop = asyncio.get_running_loop()
        item = self._items.get(purchase.sku) or self._new_item(purchase.sku)
        if item.blocked and item.parked is not None:  # when its pause is over, the next buyer tries it again
            self._observer.answered(ItemBlocked.__name__)
            raise _blocked(item)
        entry = Entry(purchase, item, loop.create_future(), deadline, gone)
        self._entries[entry] = None
        item.waiting += 1
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._sweep)
        if item.parked is None:
            self._on_work()
        return entry.future

    @property
    def has_work(self) -> bool:
        """Whether somebody waits for their turn."""
        return any(entry.state is EntryState.WAITING and entry.item.parked is None for entry in self._entries)

    def take(self, most: int) -> list[Entry]:
        """The next ones to serve."""
        taken: list[Entry] = []
        gone: list[Entry] = []
        for entry in self._entries:
            if entry.state is not EntryState.WAITING or entry.item.parked is not None:
                continue
            if entry.wanted:
                entry.state = EntryState.TAKEN
                taken.append(entry)
                if len(taken) == most:
                    break
            else:
                gone.append(entry)
        for entry in gone:
            self.answer(entry, entry.too_late("the buyer has hung up"))
        return taken

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Those of them who were not answered, nor sent, wait again."""
        for entry in entries:
            if entry.state is EntryState.TAKEN:
                entry.state = EntryState.WAITING

    def answer(self, entry: Entry, answer: Answer | Exception) -> None:
        """Tell a buyer, unless they have been told: a few turns of the loop later.

        To tell a batch takes longer than to commit it, and nobody else can sell before the lock is given back.
        """
        self._remove(entry)
        entry.answered = True
        if not self._to_tell:
            asyncio.get_running_loop().call_soon(self._tell_all, _TURNS_FIRST)
        self._to_tell.append((entry, answer))

    def _tell_all(self, turns_first: int) -> None:
        if turns_first:
            asyncio.get_running_loop().call_soon(self._tell_all, turns_first - 1)
            return
        to_tell, self._to_tell = self._to_tell, []
        told = [answer for entry, answer in to_tell if _told(entry.future, answer)]
        for answer in told:  # last: whatever goes wrong in counting them, they have been told
            self._observer.answered(type(answer).__name__ if isinstance(answer, Exception) else answer.outcome)

    def _remove(self, entry: Entry) -> None:
        if self._entries.pop(entry, entry) is None:
            entry.item.waiting -= 1

    def park(self, item: Item, pause_s: float) -> None:
        """Pass the buyers of an item over for some seconds; the others don't wait for them."""
        if item.parked is None:
            item.parked = asyncio.get_running_loop().call_later(pause_s, self._unpark, item)

    def block(self, item: Item) -> None:
        """Nothing of it can be sold until an operator acts: tell its buyers whose purchase is not being written."""
        item.blocked = True
        for entry in [entry for entry in self._entries if entry.item is item and entry.state is not EntryState.SENT]:
            self.answer(entry, _blocked(item))

    def _unpark(self, item: Item) -> None:
        item.parked = None
        self._on_work()

    def _sweep(self) -> None:
        """Tell those whose deadline has passed. One timer for all: they have come in the order of their deadlines."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = []
        for entry in self._entries:
            if entry.deadline > now:
                break
            late.append(entry)
        for entry in late:
            self.answer(entry, entry.too_late("it took too long"))
        first = next(iter(self._entries), None)
        self._timer = None if first is None else loop.call_at(max(first.deadline, now + _SWEEP_S), self._sweep)

    # -- items -------------------------------------------------------------------------------------------------------

    def _new_item(self, sku: str) -> Item:
        if len(self._items) >= self._forget_at:
            self._items = {sku: item for sku, item in self._items.items() if item.waiting or item.parked}
            self._forget_at = max(_ITEMS_KEPT, 2 * len(self._items))
        item = self._items[sku] = Item(sku)
        return item

    def forget(self, item: Item) -> None:
        """Forget an item that does not exist."""
        if self._items.get(item.sku) is item and not item.waiting:
            del self._items[item.sku]

    def knows(self, sku: str) -> bool:
        """Whether somebody has asked for that item, and it was not forgotten since."""
        return sku in self._items

    def refusal(self, purchase: Purchase, now: float) -> Outcome | None:
        """What a purchase is told without having to wait, as it is known from a moment ago; `now`: by the loop's clock.

        None for one with a key: it has to be looked up all the same, as it may be a repeat of one that was sold to.
        """
        item = self._items.get(purchase.sku) if purchase.key is None else None
        return item.refusal(purchase, now) if item is not None else None

    def look_again(self, sku: str) -> None:
        """An item's stock was changed: what was known of it is no longer true."""
        if sku in self._items:
            self._items[sku].refuse(None, 0.0, limited=False)
            self._items[sku].blocked = False

    def close(self) -> None:
        """Tell everybody who is left."""
        for entry in list(self._entries):
            self.answer(entry, entry.too_late("this instance is shutting down"))
        self._tell_all(0)
        for timer in (self._timer, *(item.parked for item in self._items.values())):
            if timer is not None:
                timer.cancel()


def _blocked(item: Item) -> ItemBlocked:
    return ItemBlocked(f"{item.sku} can't be sold at the moment, the operator is told why; nothing was sold")


def _told(future: "asyncio.Future[Answer]", answer: Answer | Exception) -> bool:
    """Tell a buyer; whether they were still there to be told."""
    if future.done():
        return False
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return True
