"""The level of an item: its units left, held and sold at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.orders import NO_TERMS, Terms


@dataclass(frozen=True, slots=True)
class Level:
    """Units left, held and sold at one moment, and the last entry of the journal then."""

    sku: str
    stock: int  # units left
    lucky: int  # units sold
    initial: int | None  # the sum that `stock + held + lucky` must have; None if it was set by other means than ours
    last_entry: str | None = None  # not an order's id, which has a secret
    terms: Terms = NO_TERMS  # the item's own
    held: int = 0
    due_in_s: float | None = field(default=None, compare=False)  # when the first held units go back; None if none are
    now: float | None = field(default=None, compare=False)  # the store's clock, in seconds since 1970
    sale: str = field(default="", compare=False)  # the name of the item's sale; "" if it has not begun
    waiting: int = field(default=0, compare=False)  # orders in line
    wants: int = field(default=0, compare=False)  # the units that the next of them waits for


def facts(level: Level) -> Mapping[str, Any]:
    """The facts of an item for the log."""
    held = {"held": level.held} if level.held else {}
    return {"stock": level.stock, **held, "sold": level.lucky, **level.terms.named}
