"""A batch: the decisions of one grant about an item, to be written all or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.orders import OrderChange, Record, Settled, Snapshot, new_secrets

# The layout of an item's data, noted when its sale begins. A release gets a higher one if the release before could not
# read its data, or would spoil them, and so refuses the item. So begin no sale until all are upgraded. Smaller ones
# were never released: they are refused, too, and only a new sale can take their place.
LAYOUT: Final = 6


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant's fencing token, and its source. Give the same to `prepare` and to `commit`."""

    token: int
    source: str


@dataclass(slots=True)  # as `Event`
class Sold:
    """An order to write. `secret` makes its id impossible to guess, and is the same when the batch is sent again."""

    quantity: int
    buyer: str | None = None
    key: str | None = None
    secret: str = field(default_factory=lambda: new_secrets(1)[0])


@dataclass(frozen=True, slots=True)
class Begun:
    """A new order with a record: a hold, or a sale with more facts than a plain one.

    `record` has the order's secret; only its number is still to come.
    """

    record: Record
    key: str | None = None
    basket: str | None = None  # a name that an order and its lines have in common until they have numbers
    said: str | None = None  # see `Settled.basket`


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer to remember for a while, because its request came with an idempotency key."""

    key: str
    settled: Settled


@dataclass(slots=True)  # as `Event`
class Batch:
    """The part of a commit that is about one item, written whole or not at all."""

    batch_id: str  # known again, if it is sent twice
    seen: Snapshot  # the snapshot on which it was decided, from the same store
    sold: Sequence[Sold] = ()  # orders that are just sold; they come last in the journal
    refused: Sequence[Refused] = ()  # refusals to remember
    begun: Sequence[Begun] = ()  # orders that begin with a record; they come second
    changes: Sequence[OrderChange] = ()  # changes of existing orders; they come first
    wants: int = 0  # see `Head`

    @property
    def entries(self) -> int:
        """How many entries of the journal it writes."""
        return len(self.changes) + len(self.begun) + len(self.sold)

    @property
    def secrets(self) -> list[str]:
        """The secrets of its new orders, in the order of the journal."""
        return [*(one.record.secret for one in self.begun), *(one.secret for one in self.sold)]
