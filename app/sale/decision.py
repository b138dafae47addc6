"""The one rule of the sale, as a pure function: which buyers of a batch get a unit."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from app.errors import BuyerRequired, KeyReused, SeckillError, StockCorrupt
from app.stock import DEFAULT_SKU, Settled, Snapshot, Terms


class Outcome(StrEnum):
    """The outcome of a purchase."""

    SOLD = "sold"
    SOLD_OUT = "sold_out"
    LIMIT_REACHED = "limit_reached"
    NOT_STARTED = "not_started"
    ENDED = "ended"
    PAUSED = "paused"


# Each buyer has one of these two: named tuples, as they are made in half the time.
class Purchase(NamedTuple):
    """A buyer's request. Two purchases of one item with the same `key` are one."""

    quantity: int = 1
    sku: str = DEFAULT_SKU
    buyer: str | None = None
    key: str | None = None


class Answer(NamedTuple):
    """The answer to a buyer. `replayed`: the same idempotency key got it before."""

    outcome: Outcome
    quantity: int
    order_id: str | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a purchase.

    It is one of these: a new decision (`outcome` alone); the repeat of a purchase that was settled before (`settled`);
    the repeat of an earlier one of the same batch (`repeats`, its index); `error` if no decision is possible.
    """

    outcome: Outcome | None = None
    settled: Settled | None = None
    repeats: int | None = None
    error: SeckillError | None = None


_SELL: Final = Decision(Outcome.SOLD)


def outside(terms: Terms, at: float) -> Outcome | None:
    """The outcome of a purchase outside of the hours, or in a pause; None within. Times are in seconds since 1970."""
    if terms.starts_at and at < terms.starts_at:
        return Outcome.NOT_STARTED
    if terms.ends_at and at >= terms.ends_at:
        return Outcome.ENDED
    return Outcome.PAUSED if terms.paused else None


def decide(
    snapshot: Snapshot,
    purchases: Sequence[Purchase],
    *,
    limit_per_buyer: int = 0,
    closed: Sequence[Outcome | None] = (),
) -> list[Decision]:
    """Give each purchase its outcome, in order: first come, first served, as far as the units go.

    A purchase gets all the units that it wants or none; one that is too large does not close the sale to smaller ones
    behind it. `limit_per_buyer` is in units, 0 for none. `closed`: the outcome of each that came outside of the
    hours, unless it is a repeat; empty if none did.
    """
    left = snapshot.stock
    bought = dict(snapshot.bought)
    seen: dict[str, int] = {}
    decisions: list[Decision] = []
    for index, purchase in enumerate(purchases):
        decision = _repeat(snapshot, purchases, seen, purchase) if purchase.key is not None else None
        if decision is None:
            had = bought.get(purchase.buyer, 0) if purchase.buyer else 0
            if closed and (refusal := closed[index]):
                decision = Decision(refusal)
            elif limit_per_buyer and purchase.buyer is None:
                decision = Decision(
                    error=BuyerRequired("each buyer may have a limited number of units: say who is buying")
                )
            elif (
                not left
            ):  # before the limit is checked: this answer is not recorded, and a repeat must get the same one again
                decision = Decision(Outcome.SOLD_OUT)
            elif limit_per_buyer and had + purchase.quantity > limit_per_buyer:
                decision = Decision(Outcome.LIMIT_REACHED)
            elif purchase.quantity > left:
                decision = Decision(Outcome.SOLD_OUT)
            else:
                decision = _SELL
                left -= purchase.quantity
                if purchase.buyer:
                    bought[purchase.buyer] = had + purchase.quantity
            if purchase.key is not None and decision.error is None:
                seen[purchase.key] = index
        decisions.append(decision)
    return decisions


def _repeat(
    snapshot: Snapshot, purchases: Sequence[Purchase], seen: dict[str, int], purchase: Purchase
) -> Decision | None:
    """Return the decision on a purchase whose key was seen before; None if it is new."""
    if purchase.key is None:
        return None
    settled = snapshot.settled.get(purchase.key)
    if settled is not None:
        if (settled.quantity, settled.buyer) != (purchase.quantity, purchase.buyer):
            return Decision(error=_reused())
        if settled.outcome not in Outcome.__members__.values():
            return Decision(error=StockCorrupt("this idempotency key has an outcome that we don't know"))
        return Decision(settled=settled)
    first = seen.get(purchase.key)
    if first is None:
        return None
    same = (purchases[first].quantity, purchases[first].buyer) == (purchase.quantity, purchase.buyer)
    return Decision(repeats=first) if same else Decision(error=_reused())


def _reused() -> KeyReused:
    return KeyReused("this idempotency key belongs to a purchase with another quantity or buyer")
