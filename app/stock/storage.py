"""The interface of a storage: it keeps named things of items, and knows no rule of the sale.

    look --> what was found, with the head of each item --> (a rule decides) --> put

A storage reads named things at one moment, under a fence that the read raises, and writes named things all or nothing,
if the head of their item is still as it was found. Each rule is in Python, once: see `store`, `puts` and `values`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from app.errors import StockCorrupt, StockError, StockUnavailable, UnknownItem
from app.orders import NO_UNITS, Event, Record, Units
from app.stock.batch import Fence
from app.stock.log import Change, LogNote

DUE_MAX: Final = 200  # orders that a batch gives back at most
LINE_MAX: Final = 100  # orders in line that a batch looks at
Value = str | int | None


class Head(NamedTuple):
    """An item's own fields. Numbers and texts that are not there are 0, "" or None."""

    stock: int | None = None  # units left; None: there is no such item
    lucky: int = 0  # units sold
    held: int = 0
    waiting: int = 0  # orders in line
    wants: int = 0  # the units that the next of them waits for
    initial: int | None = None  # units at the start
    terms: str = ""  # the item's own, in JSON
    generation: int = 0  # grows with each sale, and with each loss that an operator accepts; in ms since 1970
    sale: int = 0  # the generation with which the sale began
    epoch: int = 0  # grows with each `unfence`, which resets the tokens
    source: str | None = None  # the source of the highest token that was seen
    token: int | None = None
    prepared: str | None = None  # the batch that may be written
    batch: str | None = None  # the last one that was
    last: str = ""  # the last entry of the journal, of earlier sales, too
    tag: str = ""  # the tag of its order's secret; "" if this sale has no entry
    changes: int = 0  # entries of this sale that begin no order
    erasures: int = 0  # buyers whose names were removed
    layout: int = 0
    version: int = 0  # grows with each write
    changed_at: int = 0  # when that was, in seconds since 1970
    half: bool = False  # the last write ended half-way
    swept: int = 0  # the sale before which no rows are left
    now_us: int = 0  # the storage's clock, since 1970
    first_due_ms: int | None = None  # when the first held units go back

    @property
    def last_entry(self) -> str | None:
        """The last entry of this sale."""
        return self.last if self.tag else None


@dataclass(slots=True)
class Names:
    """The things to look up of an item. A name that isn't there is not in the answer."""

    buyers: Sequence[str] = ()
    keys: Sequence[str] = ()
    payments: Sequence[str] = ()
    numbers: Sequence[str] = ()  # of orders: their records, or the entries of orders without a record
    entries: Sequence[str] = ()
    marks: Sequence[str] = ()  # entries of which only the tag is asked for
    holds: bool = False  # also the buyers' holds, the overdue holds, and each order that a named thing points to
    due: bool = False  # `first_due_ms`
    line: bool = False  # also the first of those who wait; they are read as well if there are units for them


@dataclass(slots=True)
class Found:
    """The things that were found of an item, at one moment."""

    head: Head
    bought: dict[str, int] = field(default_factory=dict)  # by buyer; also of those whose records were found
    keys: dict[str, str] = field(default_factory=dict)  # orders' keys
    refused: dict[str, str] = field(default_factory=dict)  # refusals' keys
    holders: dict[str, str] = field(default_factory=dict)
    payments: dict[str, str] = field(default_factory=dict)
    due: list[str] = field(default_factory=list)  # the oldest first, `DUE_MAX` and one at most
    line: list[str] = field(default_factory=list)  # of those who wait, the oldest first, `LINE_MAX` at most
    records: dict[str, str] = field(default_factory=dict)
    sales: dict[str, Event] = field(default_factory=dict)  # entries, by numbers of orders that have no record
    entries: dict[str, Event] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)  # of the marks


@dataclass(slots=True)
class Put:
    """The things to write of an item, if its head has not changed. Its buyers and keys must have been looked up."""

    found: Found
    expect: Mapping[str, Value]  # the fields of the head that must still have these values
    batch_id: str | None = None  # noted in the head; a put is not made again if the head has its batch
    units: Units = NO_UNITS  # to add
    head: dict[str, Value] = field(default_factory=dict)  # the fields of the head to change
    entries: list[Event] = field(default_factory=list)  # of the journal
    bought: dict[str, int] = field(default_factory=dict)  # by buyer, the units to add
    keys: dict[str, str] = field(default_factory=dict)  # by key, its answer as text
    refused: dict[str, str] = field(default_factory=dict)  # by key, its refusal as text
    records: dict[str, tuple[str, Record]] = field(default_factory=dict)  # by number, the record as text, and itself
    payments: dict[str, str] = field(default_factory=dict)  # by payment, its order's number
    holders: dict[str, str | None] = field(default_factory=dict)  # by buyer, the number of the last hold; None: ended
    notes: list[LogNote] = field(default_factory=list)  # of senders
    clear: bool = False  # forget all named things of the item, for a new sale
    remove: bool = False  # forget the item, too
    erased: "Erased | None" = None


@dataclass(slots=True)
class Erased:
    """A buyer's name that is replaced in the journal, and in refusals: see `Storage.copy`."""

    buyer: str
    entries: list[Event] = field(default_factory=list)  # that have the name
    refused: list[tuple[str, str, str]] = field(default_factory=list)  # the place, the key, and the new text
    state: Any = None  # the storage's own


class Storage(ABC):
    """The named things of all items. Methods raise `StockUnavailable`; those for several items return errors."""

    def check(self, sku: str) -> None:  # noqa: B027 - most can hold any name
        """Raise `ItemNotPossible` unless an item of that name can be held."""

    def unknown(self, sku: str) -> UnknownItem:
        """The error for an item that does not exist."""
        return UnknownItem(f"no item {sku!r}")

    @abstractmethod
    def corrupt(self, sku: str, what: str) -> StockCorrupt:
        """The error for damaged data: "keys", "records", "orders" or "terms"."""

    # -- the journal's numbers ---------------------------------------------------------------------------------------

    @abstractmethod
    def numbers(self, head: Head, count: int) -> list[str]:
        """Name the next entries of a journal: later than its last one, and by the storage's clock."""

    @abstractmethod
    def is_number(self, text: str) -> bool:
        """Return whether this may be an entry of the journal."""

    @abstractmethod
    def mark(self, number: str) -> str:
        """Write a number so that the texts of later ones are greater."""

    @abstractmethod
    def unmark(self, text: str) -> str:
        """Read the text of `mark`. Raises `ValueError`."""

    # -- named things ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def look(
        self,
        names: Mapping[str, Names],
        fence: Fence | None = None,
        batch_id: str = "",
        *,
        any_layout: bool = False,
        durable: bool = False,
    ) -> dict[str, Found | StockError]:
        """Read the head of each item and the named things, for each item at one moment.

        With a fence, the same step first raises it to our token and registers the batch. It doesn't if the fence has
        seen a higher token or another source, or if the item has another layout (unless `any_layout`). `token`,
        `source` and `prepared` of the head show whether that was done.
        """

    def apart(self, skus: Sequence[str]) -> str:
        """See `StockStore.apart`."""
        return ""

    @abstractmethod
    async def put(
        self, puts: Mapping[str, Put], together: Sequence[set[str]] = ()
    ) -> dict[str, Head | StockError | None]:
        """Write the things of each item, all or nothing; None: they are written; else the present head.

        `together`: groups of items, each of which is written as a whole or not at all.

        `StockUnavailable` leaves open whether it was written, unless it is `untouched`.
        """

    @abstractmethod
    async def before(self, sku: str, number: str) -> int | None:
        """Count the orders in line before this one; None if it isn't in line."""

    @abstractmethod
    async def page(self, sku: str, after: str | None, until: str | None, limit: int) -> list[Event]:
        """Read the journal of the current sale, oldest first, from behind `after` up to `until`."""

    @abstractmethod
    async def count(self, sku: str) -> int:
        """Count the entries of the current sale."""

    @abstractmethod
    async def scan(self) -> list[str]:
        """Find the names of the items that have a stock."""

    @abstractmethod
    async def moved(self, after: Mapping[str, str], wait_s: float) -> set[str]:
        """See `StockStore.moved`."""

    # -- to erase a name ---------------------------------------------------------------------------------------------

    @abstractmethod
    async def copy(self, sku: str, erased: Erased, *, last: bool) -> None:
        """Search the next entries for a name, and copy the entries that have it.

        `last`: search to the end, under the item's grant; else until few entries are left. `state` keeps the data that
        a `Put` needs to replace them in the journal.
        """

    @abstractmethod
    def refusals(self, sku: str) -> AsyncIterator[tuple[str, str, str]]:
        """Read all refusals of an item: where each is, its key, and its text."""

    async def sweep(self, sku: str) -> None:  # noqa: B027 - most have nothing to sweep
        """Delete all that is left of earlier sales."""

    # -- beside the sale ---------------------------------------------------------------------------------------------

    @abstractmethod
    async def senders(self, skus: Sequence[str]) -> list[str]:
        """Find the receivers of which there are notes."""

    @abstractmethod
    async def notes(self, skus: Sequence[str], receiver: str) -> dict[str, tuple[int, str] | StockError]:
        """Read the sale of each item that is there, and a receiver's note on it, "" if there is none."""

    @abstractmethod
    async def swap_note(self, sku: str, receiver: str, old: str, new: str) -> bool:
        """Replace a receiver's note; False if it is not the old one."""

    @abstractmethod
    async def log(self, sku: str | None, limit: int) -> list[Change]:
        """Read the log, newest first."""

    @abstractmethod
    async def add_to_log(self, sku: str, note: LogNote) -> None:
        """Write a line of the log."""

    @abstractmethod
    async def board(self, put: Mapping[str, str], drop: Sequence[str]) -> dict[str, str]:
        """See `StockStore.notices`."""

    @abstractmethod
    async def clocks_ms(self, timeout_s: float | None) -> dict[str, int]:
        """See `StockStore.clocks_ms`."""

    def server_of(self, sku: str) -> str:
        """See `StockStore.server_of`."""
        return ""

    @abstractmethod
    async def ping(self, skus: Sequence[str], timeout_s: float | None) -> None:
        """See `StockStore.ping`."""

    async def ensure_lasting(self, timeout_s: float | None) -> None:  # noqa: B027 - some have nothing to ask
        """See `StockStore.ensure_lasting`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def raise_if_none_was_reached(answers: Mapping[str, object]) -> None:
    """Raise `StockUnavailable` if every item has that answer."""
    away = [answer for answer in answers.values() if isinstance(answer, StockUnavailable)]
    if away and len(away) == len(answers):
        raise StockUnavailable(str(away[0]), untouched=all(one.untouched for one in away)) from away[0]
