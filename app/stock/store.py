"""The interface of a stock store: prepare and commit, guarded by a fencing token."""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, TypedDict

from typing_extensions import Unpack

from app import money
from app.errors import ItemNotPossible, StockError, StockUnavailable, UnknownItem
from app.orders import (
    DEFAULT,
    NO_TERMS,
    NONE,
    SKU_PATTERN,
    TERMS,
    Ask,
    Event,
    EventKind,
    Order,
    OrderChange,
    Record,
    RefundState,
    Settled,
    Snapshot,
    Sums,
    Terms,
    TermsChange,
    new_secrets,
)

# Of all that is kept of an item, noted when its sale begins. A release whose data the one before could not read, or
# would spoil, has a higher one: the one before then refuses the item. So begin no sale until all are upgraded. Smaller
# ones were never released: they are refused, too, and only a new sale can take their place.
LAYOUT: Final = 3
DEFAULT_RECEIVER: Final = "default"  # of events, whose URL names none


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant's fencing token, and its source. Give the same to `prepare` and to `commit`."""

    token: int
    source: str


@dataclass(frozen=True, slots=True)
class Sold:
    """An order to write. `secret` makes its id impossible to guess, and is the same when the batch is sent again."""

    quantity: int
    buyer: str | None = None
    key: str | None = None
    secret: str = field(default_factory=lambda: new_secrets(1)[0])


@dataclass(frozen=True, slots=True)
class Begun:
    """An order to write that is held, or of which more is kept than a sale: how it stands is in a record.

    `record` has the order's secret; only its number is still to come.
    """

    record: Record
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer to remember for a while, because its request came with an idempotency key."""

    key: str
    settled: Settled


@dataclass(frozen=True, slots=True)
class Batch:
    """The part of a commit that is about one item, written whole or not at all. `batch_id` makes it idempotent.

    `after`: the snapshot's `last_entry`, behind which its orders would be found; `version`: the snapshot's. In the
    journal `changes` come first, then those that have `begun` with a record, then what is just `sold`.
    """

    batch_id: str
    expected_stock: int
    sold: Sequence[Sold]
    refused: Sequence[Refused] = ()
    after: str | None = None
    version: str | None = None
    begun: Sequence[Begun] = ()
    changes: Sequence[OrderChange] = ()

    @property
    def entries(self) -> int:
        """How many entries of the journal it writes."""
        return len(self.changes) + len(self.begun) + len(self.sold)

    @property
    def secrets(self) -> list[str]:
        """The secrets of its new orders, in the order of the journal."""
        return [*(one.record.secret for one in self.begun), *(one.secret for one in self.sold)]


@dataclass(frozen=True, slots=True)
class Level:
    """Units left and sold at one moment, and the last entry of the journal then (not an id, which has a secret).

    `initial`: the sum that `stock + held + lucky` must have, None if the stock was set by other means than ours;
    `terms`: the item's own; `held`: units held; `due_in_s`: in how many seconds the first of them go back, by the
    store's clock, None if none are held; `now`: what that clock said, in seconds since 1970, None if nobody asked;
    `sale`: names the item's sale, "" if nobody knows.
    """

    sku: str
    stock: int
    lucky: int
    initial: int | None
    last_entry: str | None = None
    terms: Terms = NO_TERMS
    held: int = 0
    due_in_s: float | None = field(default=None, compare=False)
    now: float | None = field(default=None, compare=False)
    sale: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Outbox:
    """How far the events of an item have left to a receiver: see `app.outbox`.

    `sale`: names the item's sale; `text`: what the sender has noted, "" if nothing; `wish`: what an operator asks the
    sender for, "" if nothing; `number`: of the note, which grows.
    """

    sale: str
    text: str = ""
    wish: str = ""
    number: int = 0


class Restock(TypedDict, total=False):
    """The options of a restock. Units that are sold stay sold, unless `new_sale` forgets orders, buyers and keys.

    `forget_orders`: how many orders that must be, or nothing is changed; `add`: the units are added to those that are
    left; `if_match`: units left and sold must be these, or nothing is changed; `if_initial`: there must be
    as many units at the start, which only a restock changes; `terms`: the changes to the item's own; `by`: the
    operator, for the log.
    """

    new_sale: bool
    forget_orders: int | None
    add: bool
    if_match: tuple[int, int] | None
    if_initial: int | None
    terms: TermsChange
    by: str


def what_is_changed(stock: int, how: Restock) -> str:
    """Name such a restock in the words of the log."""
    if how.get("new_sale"):
        return "new sale"
    if stock or not how.get("add"):
        return "stock"
    change = how.get("terms", {})
    of_pause = "paused" in change and change.keys() <= {"paused", "paused_zh"}
    return "terms" if not of_pause else "pause" if change["paused"] else "resume"


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the operators' log. `at`: in seconds since 1970, by the store's clock; `before` and `after`: facts."""

    at: float
    by: str
    what: str
    sku: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def difference(self) -> str:
        """The facts that have changed, for people; and of which order, if they are one's."""
        before, after = _said(self.before), _said(self.after)
        order = f"{self.after['order']}: " if "order" in self.after else ""
        return order + ", ".join(
            f"{_NAMES.get(name, name)} {before.get(name, _missing(name))} -> {after.get(name, _missing(name))}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        )


def _missing(name: str) -> str:
    return DEFAULT if name in TERMS and TERMS[name].has_default else NONE


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an item for people: times as times, and its price with its currency."""
    terms = {name: value for name, value in facts.items() if name in TERMS and TERMS[name].may_be_kept(value)}
    amounts = {name: money.written(facts[name], terms.get("currency")) for name in _AMOUNTS if name in facts}
    for currency, sums in facts.get(_OTHERS, {}).items():
        for name, amount in sums.items():
            amounts[f"{_NAMES.get(name, name)} in {currency}"] = money.written(amount, currency or None)
    others = {name: value for name, value in facts.items() if name not in TERMS and name != _OTHERS}
    return others | amounts | Terms(**terms).written


class Note(NamedTuple):
    """A line for the operators' log, without its time and its item."""

    by: str
    what: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


_WORDS: Final = {
    EventKind.CANCELLED: "cancel",
    EventKind.REFUND_DUE: "refund",
    EventKind.REFUNDED: "refund",
}
_AMOUNTS: Final = ("paid", "given_back", "owed")
_OTHERS: Final = "other_currencies"
_NAMES: Final = {"given_back": "given back", "failed": "failed refunds"}


def note_of(sku: str, change: OrderChange) -> Note | None:
    """The line for a change of an order, if it is an operator's."""
    by, what = change.own_facts.get("by"), _WORDS.get(change.kind)
    if not by or what is None or " " in by:  # the cashier, and the provider
        return None
    return Note(by, what, _standing_of(sku, change.before), _standing_of(sku, change.after))


def _standing_of(sku: str, record: Record) -> dict[str, Any]:
    own: dict[str, Any] = _amounts(record.own_sums)
    others = {one.currency or "": _amounts(one) for key, one in record.sums.items() if key != record.currency}
    own[_OTHERS] = {currency: amounts for currency, amounts in others.items() if amounts}
    own["failed"] = sum(one.state is RefundState.FAILED for _, one in record.refunds)
    own |= {"currency": record.currency} if record.currency else {}
    about = {"order": record.id_of(sku).name, "state": str(record.state), "units": record.quantity}
    return about | {name: value for name, value in own.items() if value}


def _amounts(sums: Sums) -> dict[str, int]:
    return {name: amount for name in _AMOUNTS if (amount := getattr(sums, name))}


def facts(level: Level) -> dict[str, Any]:
    """The facts of an item for the log."""
    held = {"held": level.held} if level.held else {}
    return {"stock": level.stock, **held, "sold": level.lucky, **level.terms.named}


class StockStore(ABC):
    """Keeps the stock, the sales and the orders of items.

    The rule of the store, a compare-and-set: **a batch is written only if it is the one that was prepared last.** To
    prepare registers it under a fencing token and reads what it will be decided on, in one atomic step.

    All methods raise `StockUnavailable` when the store can't be reached within its call's deadline, and `UnknownItem`,
    `ItemNotPossible` or `StockCorrupt` where an item is meant. Methods for several items return an error for each
    item that has one, so that it doesn't stop the others, and raise `StockUnavailable` only if none could be reached.
    `guarded`: whether a batch is refused that was decided on stale data; `holds`: whether orders can be held.
    """

    guarded: ClassVar[bool] = True
    holds: ClassVar[bool] = False

    @abstractmethod
    def check(self, sku: str) -> None:
        """Raise `ItemNotPossible` unless this store can hold an item of that name."""

    # -- the sale ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Raise the fence of each item to our token, register the batch that may be written, and read.

        It is not enough to check tokens at the write. A (token 10) reads 5 and is paused; B (11) reads 5; A wakes and
        writes 4 with token 10, the highest so far; B writes 4: one unit sold twice. So the read advances the
        fence. An item's answer is `FenceRefused` if it has seen a higher token.

        From then on no other batch can be written, not even an older one of the same token that is still on its way.
        The answer is `StockBehind` if the store lacks an order that this process, or its `expect`, knows of.
        """

    @abstractmethod
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the prepared batch: of each item its part, if nobody has prepared another and the stock is as it was.

        All parts have the prepared id. Returns the numbers of each item's new orders, in the order of `Batch.secrets`.
        Sending the last batch again does nothing and returns the same. An item's answer is `FenceRefused` or
        `StockChanged` when nothing of it was written, and `StockUnavailable` when it is in doubt.
        """

    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        """Find out for good whether batches that are in doubt were written: the numbers of their orders, None if not.

        If a commit is still on its way, it is refused from now on, as another batch is prepared in its place.
        """
        prepared = await self.prepare(fence, uuid.uuid4().hex, {sku: Ask() for sku in batches})
        found: dict[str, list[str] | StockError | None] = {}
        for sku, batch in batches.items():
            answer = prepared[sku]
            if isinstance(answer, StockError) and not isinstance(answer, UnknownItem):
                found[sku] = answer
                continue
            try:
                found[sku] = await self._find(sku, batch)
            except StockError as error:
                found[sku] = error
        return found

    @abstractmethod
    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        """Find the numbers of a batch's new orders, as `commit` returns them; None if it was not written."""

    # -- orders that must be there -----------------------------------------------------------------------------------

    @abstractmethod
    def marks(self) -> dict[str, str]:
        """High-water marks: the last order of each item that this process knows of, as a text that grows."""

    @abstractmethod
    def expect(self, sku: str, mark: str) -> None:
        """Hold the store to an order that another process has seen. `ValueError`: not a mark."""

    @abstractmethod
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """Return what each fence has seen, None if nothing; `StockBehind` if an order is missing. Changes nothing."""

    @abstractmethod
    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        """Expect no order any more that the store has lost: an operator's word that these are gone for good.

        It is the same sale as before, also for those who follow its journal.
        """

    # -- the operator ------------------------------------------------------------------------------------------------

    # An operator's change is written together with a line of the log: who (`by`), what, before and after.

    @abstractmethod
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        """Set the units left; see `Restock`. Raises `StockNotAsExpected` if a condition is not met."""

    @abstractmethod
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        """Remove an item of which nothing was sold. Raises `HasOrders` if something was."""

    @abstractmethod
    async def unfence(self, sku: str, *, by: str = "") -> None:
        """Forget the fence: an operator's word that the tokens seen so far no longer count."""

    @abstractmethod
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        """The last changes that operators have made to an item, or to all, newest first."""

    @abstractmethod
    async def note(self, sku: str, note: Note) -> None:
        """Write a line of the log about what changes nothing here, such as events that are sent again."""

    @abstractmethod
    async def count_orders(self, sku: str) -> int:
        """Count the orders of an item."""

    async def level(self, sku: str) -> Level:
        """Units left and sold, read at one moment, so that they add up even during a sale."""
        level = (await self.levels([sku]))[sku]
        if isinstance(level, StockError):
            raise level
        return level

    @abstractmethod
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """Units left and sold of some hundred items at most: each as of one moment, not all of the same one."""

    @abstractmethod
    async def items(self) -> list[str]:
        """The names of the items that have a stock."""

    @abstractmethod
    async def order(self, sku: str, number: str) -> Order | None:
        """An order by its number; None if it is none."""

    @abstractmethod
    async def history(self, sku: str, number: str) -> list[Event]:
        """All events of an order, oldest first."""

    @abstractmethod
    async def paid_with(self, payment_ref: str, skus: Sequence[str]) -> list[Order]:
        """The orders that a payment belongs to, of some hundred items at most: one of each item, or none."""

    async def erase(
        self, sku: str, buyer: str, under: Callable[[], AbstractAsyncContextManager[Fence]], *, by: str = ""
    ) -> int:
        """Put `ERASED` in the place of a buyer's name in all that is kept of an item; the numbers stay.

        `under()` is a grant of the item's lock, which the last, short step needs. Returns how many entries of the
        journal had the name.
        """
        raise StockError("this store can't erase the names of buyers")

    @abstractmethod
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        """Orders, oldest first, from behind the number `after` up to `until`, a level's `last_entry`.

        Raises `ValueError` for a number that is none of this store's.
        """

    @abstractmethod
    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        """Events, oldest first, from behind the entry `after` up to the entry `until`."""

    # -- the sender of events ----------------------------------------------------------------------------------------

    @abstractmethod
    async def count_entries(self, sku: str) -> int:
        """Count the entries of an item's journal."""

    @abstractmethod
    async def receivers(self, skus: Sequence[str]) -> list[str]:
        """The receivers of which there are notes on any of these items, some hundred at most; the default one always.

        A receiver's notes stay when the settings name it no more, until the item's next sale.
        """

    @abstractmethod
    async def outbox(self, skus: Sequence[str], receiver: str = DEFAULT_RECEIVER) -> dict[str, Outbox | StockError]:
        """Read the notes of a receiver's sender on some hundred items at most; a new sale forgets them."""

    @abstractmethod
    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox, receiver: str = DEFAULT_RECEIVER) -> None:
        """Note how far the events have left, and forget the wish that is granted.

        A note that comes late, behind one of the same grant with a higher number, changes nothing.
        Raises `FenceRefused` if a later sender has been here, and `StockChanged` if another sale has begun.
        """

    @abstractmethod
    async def ask_sender(self, sku: str, wish: str, receiver: str = DEFAULT_RECEIVER, *, instead_of: str = "") -> bool:
        """Ask a receiver's sender, whichever instance that is, for something.

        False if another wish than `instead_of` waits.
        """

    @abstractmethod
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """Put up texts under names, take some down, and read all that are there: a board for the instances.

        It is for what instances report to each other and to people; no sale depends on it.
        """

    @abstractmethod
    async def clocks_ms(self, *, timeout_s: float | None = None) -> dict[str, int]:
        """The clocks of the store's servers that answer, in ms since 1970, by the names of `server_of`."""

    def server_of(self, sku: str) -> str:
        """The name of the server that has an item, of several; "" if there is one."""
        return ""

    @abstractmethod
    async def ping(self, skus: Sequence[str] = (), *, timeout_s: float | None = None) -> None:
        """Raise `StockUnavailable` unless the store answers and can be written to.

        Where items lie on several servers, that of one of these items will do.
        """

    async def ensure_lasting(self, *, timeout_s: float | None = None) -> None:  # noqa: B027 - some have nothing to ask
        """Raise `StockUnavailable` if the store is so configured that it may lose acknowledged writes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def raise_if_none_was_reached(answers: Mapping[str, object]) -> None:
    """Raise `StockUnavailable` if every item has that answer."""
    away = [answer for answer in answers.values() if isinstance(answer, StockUnavailable)]
    if away and len(away) == len(answers):
        raise StockUnavailable(str(away[0]), untouched=all(one.untouched for one in away)) from away[0]


def refuse_odd_name(sku: str) -> None:
    """Raise `ItemNotPossible` for a name that no store accepts."""
    if not re.fullmatch(SKU_PATTERN, sku):
        raise ItemNotPossible(f"not an item's name: {sku!r} (letters, digits, '.', '_' and '-', 64 at most)")
