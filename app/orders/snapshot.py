"""The basis of a decision: the item and its orders in question, as the store read them at one moment."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.orders.id import OrderId
from app.orders.record import Record
from app.orders.terms import NO_TERMS, Terms


@dataclass(frozen=True, slots=True)
class Ask:
    """The questions of a batch to the store."""

    buyers: Sequence[str] = ()  # how many units they have bought, and which orders they hold
    keys: Sequence[str] = ()  # the orders or refusals of these idempotency keys
    orders: Sequence[str] = ()  # the records of these orders, by their numbers
    payments: Sequence[str] = ()  # the orders that have these
    holds: bool = False  # the batch has holds, or may end some: the snapshot needs the store's clock
    line: bool = False  # units may come back, or somebody may leave the line
    first_due: bool = False  # somebody may get in line, and asks when the first hold ends


@dataclass(frozen=True, slots=True)
class Settled:
    """The request of an idempotency key, and its outcome; `order`: the order that it began, or was about."""

    outcome: str
    quantity: int
    buyer: str | None
    order: OrderId | None = None
    basket: str | None = None  # see `basket_of`
    line: str | None = None  # see `Answer`


@dataclass(slots=True)  # nobody changes one; frozen, it would take three times as long to make
class Snapshot:
    """The basis of a decision: an item at one moment."""

    stock: int  # units left
    lucky: int  # units sold
    # units by buyer, also for the buyers of the orders that were asked for
    bought: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, Settled] = field(default_factory=dict)  # by key
    last_entry: str | None = None  # the last entry of the journal; the orders of this batch are written behind it
    # everything that the store has read, for the write of the batch
    basis: Any = field(default=None, compare=False, repr=False)
    terms: Terms = NO_TERMS  # the item's own
    held: int = 0  # units held
    now_ms: int = 0  # the store's clock, since 1970
    # by number: orders that were asked for, or are due, or that these buyers and keys hold
    records: Mapping[str, Record] = field(default_factory=dict)
    absent: Collection[str] = ()  # the numbers that were asked for, and are no order's: a new sale has forgotten them
    open: Mapping[str, str] = field(default_factory=dict)  # by buyer, the number of the last order that is held
    payments: Mapping[str, str] = field(default_factory=dict)  # by payment, the number of its order
    due: Sequence[str] = ()  # orders whose time is up, the oldest first
    more_due: bool = False  # there are others
    waiting: int = 0  # orders in line
    wants: int = 0  # the units that the next of them waits for
    line: Sequence[str] = ()  # the first of them, in their order, if some may be offered units or may leave
    first_due_ms: int | None = None  # when the first hold ends, if that was asked for
