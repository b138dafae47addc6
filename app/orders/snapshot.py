"""What a decision is made on: the item and the orders in question, as the store read them at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.orders.id import OrderId
from app.orders.record import Record
from app.orders.terms import NO_TERMS, Terms


@dataclass(frozen=True, slots=True)
class Ask:
    """The questions of a batch: what these buyers have bought and hold, and what these idempotency keys stand for.

    `orders`: how these stand, by their numbers; `payments`: to which orders these belong; `holds`: something of this
    is asked for, or may be held, so that the snapshot must have the store's clock.
    """

    buyers: Sequence[str] = ()
    keys: Sequence[str] = ()
    orders: Sequence[str] = ()
    payments: Sequence[str] = ()
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The request that an idempotency key stands for, and its outcome; `order`: the one that it was about, or began."""

    outcome: str
    quantity: int
    buyer: str | None
    order: OrderId | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The basis of a decision: units left, what the buyers asked for have bought, what the keys stand for.

    `terms`: the item's own.

    `last_entry`: number of the last order at that moment; orders that are decided now can only be written behind it.
    `version`: the store's own name for the state that was read, to be given back with the batch.
    `held`: units held; `now_ms`: the store's clock, since 1970; `records`: how the orders stand that were asked for, by
    their numbers, with those that the buyers and keys asked for hold, and those that are due; `open`: the number of
    each buyer's last order that is held; `payments`: the number of the order that each payment belongs to; `due`:
    orders whose time is up, the oldest first, and `more_due`: whether there are others. `bought` has the buyers of the
    orders that were asked for, too.
    """

    stock: int
    lucky: int
    bought: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, Settled] = field(default_factory=dict)
    last_entry: str | None = None
    version: str | None = None
    terms: Terms = NO_TERMS
    held: int = 0
    now_ms: int = 0
    records: Mapping[str, Record] = field(default_factory=dict)
    open: Mapping[str, str] = field(default_factory=dict)
    payments: Mapping[str, str] = field(default_factory=dict)
    due: Sequence[str] = ()
    more_due: bool = False
