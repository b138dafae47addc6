"""The queue: all buyers of one lock's items in this instance who are not answered, in the order of their arrival."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Final

from app.errors import ItemBlocked, NotDecided, OutcomeUnknown, QueueFull, SaleError
from app.orders import Answer, Command, Hold, Outcome, Purchase
from app.orders.commands import VERBS, in_doubt, not_done
from app.telemetry.observer import Observer
from fencelock.kit import Backoff

_ITEMS_KEPT: Final = 10_000  # items that nobody waits for, but whose state may be known
_SHOWN_MAX: Final = 1000
_NEXT_MAX: Final = 5
_SWEEP_S: Final = 0.01
_TURNS_FIRST: Final = 4  # turns of the loop before buyers are answered, so that the release of the lock is sent first
_ERROR_COUNTS_S: Final = 5.0


def _never() -> bool:
    return False


class EntryState(Enum):
    """The state of a request."""

    WAITING = auto()  # for its turn
    TAKEN = auto()  # the entry is in a batch, of which nothing was sent
    SENT = auto()  # its commit is under way, or in doubt: from here on "nothing was sold" may be untrue


class Item:
    """An item, as this instance knows it.

    `waiting`: buyers who are not answered; `parked`: its buyers are passed over for a while; `error`: why nothing of it
    could be sold, and when; `blocked`: only an operator can change that; `sells`: the last try could decide on it.
    Times are by the loop's clock.
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
        """Answer all purchases with this outcome until then, except nameless ones if there is a limit."""
        self._refusal, self._until, self._limited = outcome, until, limited

    def refusal(self, purchase: Purchase, now: float) -> Outcome | None:
        """The outcome of a purchase without a key, if it is known from a moment ago."""
        if self._refusal is None or now >= self._until:
            return None
        return None if self._limited and purchase.buyer is None else self._refusal

    def is_well(self) -> None:
        """Note that the item was sold, or had nothing left to sell."""
        self.error, self.blocked, self.sells = None, False, True
        self.backoff.reset()
        self.conflicts.reset()


class Entry:
    """A buyer who is in the queue. `deadline`: by the loop's clock; `came_at`: in seconds since 1970.

    `answered`: it has left the queue, and the buyer has the answer or gets it in a moment.
    """

    __slots__ = ("answered", "came_at", "command", "deadline", "future", "gone", "item", "state")

    def __init__(
        self,
        command: Command,
        item: Item,
        future: "asyncio.Future[Answer]",
        deadline: float,
        gone: Callable[[], bool],
    ) -> None:
        self.command = command
        self.item = item
        self.future = future
        self.deadline = deadline
        self.came_at = time.time()
        # A command about an existing order is done all the same: money has come, or the buyer wants it no more.
        self.gone = gone if isinstance(command, Purchase | Hold) else _never
        self.state = EntryState.WAITING
        self.answered = False

    @property
    def wanted(self) -> bool:
        """True if the buyer still waits for the answer; with a key they may ask again."""
        if self.answered or self.future.done():
            return False
        return getattr(self.command, "key", None) is not None or not self.gone()

    def too_late(self, reason: str) -> SaleError:
        """The error for a buyer whose time is up."""
        if self.state is EntryState.SENT:
            return OutcomeUnknown(f"{reason}, while it was being written; {in_doubt(self.command)}")
        return NotDecided(f"{reason}; {not_done(self.command)}")


class Queue:
    """A queue of buyers of all items of a lock: first come, first served. It lives on one event loop.

    Nobody leaves it before they are answered; a buyer who is being served keeps their place, and simply waits again if
    that fails. `limit`: buyers at most; `on_work` is called when there may be somebody to serve.
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
        """The number of buyers not answered, by item: a thousand items at most, items with buyers first."""
        items = sorted(self._items.values(), key=lambda item: not item.waiting)
        return {item.sku: item.waiting for item in items[:_SHOWN_MAX]}

    @property
    def errors(self) -> dict[str, Exception]:
        """The errors of items that can't be sold. An item nobody wants is not tried again: its error is forgotten."""
        since = asyncio.get_running_loop().time() - _ERROR_COUNTS_S
        return {sku: item.error[0] for sku, item in self._items.items() if item.error and item.error[1] > since}

    @property
    def selling(self) -> Iterator[str]:
        """The items that were decided on when they were last tried."""
        return (sku for sku, item in self._items.items() if item.sells)

    def join(
        self, command: Command, deadline: float, *, gone: Callable[[], bool] = lambda: False
    ) -> "asyncio.Future[Answer]":
        """Join the queue; the future gets the answer or the error, at `deadline` at the latest.

        Raises `QueueFull` or `ItemBlocked` at once. Deadlines must come in ascending order.
        """
        if len(self._entries) >= self._limit:
            self._observer.answered(QueueFull.__name__)
            raise QueueFull(f"{self._limit} buyers are waiting already; {not_done(command)}")
        loop = asyncio.get_running_loop()
        item = self.item(command.sku)
        if item.blocked and item.parked is not None:  # when the item's pause is over, the next buyer tries it again
            self._observer.answered(ItemBlocked.__name__)
            raise _blocked(item, command)
        entry = Entry(command, item, loop.create_future(), deadline, gone)
        self._entries[entry] = None
        item.waiting += 1
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._sweep)
        if item.parked is None:
            self._on_work()
        return entry.future

    @property
    def has_work(self) -> bool:
        """True if somebody waits for their turn."""
        return any(entry.state is EntryState.WAITING and entry.item.parked is None for entry in self._entries)

    @property
    def next_skus(self) -> list[str]:
        """The items of the next buyers, five at most."""
        waiting = (e.item for e in self._entries if e.state is EntryState.WAITING and e.item.parked is None)
        return list(dict.fromkeys(item.sku for item in waiting))[:_NEXT_MAX]

    def take(self, most: int) -> list[Entry]:
        """Take the next buyers to serve."""
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
        """Put the buyers back into the queue who were neither answered nor sent."""
        for entry in entries:
            if entry.state is EntryState.TAKEN:
                entry.state = EntryState.WAITING

    def answer(self, entry: Entry, answer: Answer | Exception) -> None:
        """Answer a buyer who has no answer yet, a few turns of the loop later.

        To answer a batch takes longer than to commit it, and nobody else can sell before the lock is released.
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
        for answer in told:  # last, so that an error in counting can't keep an answer back
            if isinstance(answer, Exception):
                self._observer.answered(type(answer).__name__)
            elif type(answer.outcome) is Outcome:
                self._observer.answered(answer.outcome)
            else:
                self._observer.changed(VERBS[type(answer.outcome)], answer.outcome)

    def _remove(self, entry: Entry) -> None:
        if self._entries.pop(entry, entry) is None:
            entry.item.waiting -= 1

    def park(self, item: Item, pause_s: float) -> None:
        """Pass over the buyers of an item for some seconds; the others don't wait for them."""
        if item.parked is None:
            item.parked = asyncio.get_running_loop().call_later(pause_s, self._unpark, item)

    def block(self, item: Item) -> None:
        """Block an item until an operator acts: refuse its buyers whose purchase is not being written."""
        item.blocked = True
        for entry in [entry for entry in self._entries if entry.item is item and entry.state is not EntryState.SENT]:
            self.answer(entry, _blocked(item, entry.command))

    def _unpark(self, item: Item) -> None:
        item.parked = None
        self._on_work()

    def _sweep(self) -> None:
        """Answer the buyers whose deadline has passed. A single timer is enough, as they are in order of deadline."""
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

    def item(self, sku: str) -> Item:
        """An item, whether anybody waits for it or not."""
        return self._items.get(sku) or self._new_item(sku)

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
        """Return whether the item was asked for, and not forgotten since."""
        return sku in self._items

    def refusal(self, purchase: Purchase, now: float) -> Outcome | None:
        """The outcome of a purchase that need not wait, cached a moment ago; `now`: by the loop's clock.

        None for a purchase with a key: it must be looked up all the same, as it may repeat one that was sold.
        """
        item = self._items.get(purchase.sku) if purchase.key is None else None
        return item.refusal(purchase, now) if item is not None else None

    def look_again(self, sku: str) -> None:
        """Forget the refusal of an item whose stock was changed."""
        if sku in self._items:
            self._items[sku].refuse(None, 0.0, limited=False)
            self._items[sku].blocked = False

    def close(self) -> None:
        """Answer everybody who is left."""
        for entry in list(self._entries):
            self.answer(entry, entry.too_late("this instance is shutting down"))
        self._tell_all(0)
        for timer in (self._timer, *(item.parked for item in self._items.values())):
            if timer is not None:
                timer.cancel()


def _blocked(item: Item, command: Command) -> ItemBlocked:
    return ItemBlocked(f"{item.sku} can't be sold at the moment, the operator is told why; {not_done(command)}")


def _told(future: "asyncio.Future[Answer]", answer: Answer | Exception) -> bool:
    """Answer a buyer; False if they have gone."""
    if future.done():
        return False
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return True
