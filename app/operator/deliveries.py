"""The events that did not leave, for operators: what is parked or dead, and having it sent again."""

import contextlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from app import moments
from app.errors import StockError
from app.orders import OrderId
from app.outbox.state import State, Wish
from app.stock import StockStore
from app.stock.store import Note

_SKUS_AT_ONCE = 100


class Undelivered(NamedTuple):
    """An order that is parked, or an event that is dead: tried no more.

    `order`: its number, without the secret; `entry`: of the event that was refused; `events`: how many wait; `tries`:
    since it was refused first, and `since`: when that was, or when it was given up; `next`: when it is tried again. All
    in seconds since 1970.
    """

    state: Literal["parked", "dead"]
    order: str
    entry: str
    events: int
    tries: int | None
    since: float
    next: float | None
    why: str


async def states(store: StockStore, skus: Sequence[str]) -> dict[str, State]:
    """The sender's notes on each item of which it has any that can be read."""
    found = {}
    for first in range(0, len(skus), _SKUS_AT_ONCE):
        for sku, outbox in (await store.outbox(skus[first : first + _SKUS_AT_ONCE])).items():
            if not isinstance(outbox, StockError) and outbox.text:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a note that is not ours hides no other
                    found[sku] = State.from_text(outbox.text)
    return found


async def undelivered(store: StockStore, skus: Sequence[str]) -> list[Undelivered]:
    """What is parked or dead, as the sender has noted it within the last second."""
    found = []
    for sku, state in (await states(store, skus)).items():
        for parked in (one for one in state.parked.values() if one.places):
            about = OrderId(sku, parked.order).name, parked.places[0].entry, len(parked.places), parked.tries
            found.append(Undelivered("parked", *about, parked.since, parked.due, parked.why))
        for dead in state.dead:
            order = OrderId(sku, dead.order).name
            found.append(Undelivered("dead", order, dead.entry, 1, None, dead.at, None, dead.why))
    return found


async def note_replay(store: StockStore, skus: Sequence[str], wish: Wish, *, by: str) -> None:
    """Write down which events an operator, `by`, has asked for again."""
    if wish.at is not None:
        what = f"from {moments.written(wish.at)} on"
    else:
        what = "parked or dead" if wish.since is None else f"behind {wish.since}"
    for sku in skus:
        await store.note(sku, Note(by, "replay", {}, {"events": what}))


async def replay(store: StockStore, skus: Sequence[str], wish: Wish) -> list[str]:
    """Ask the sender to send events of these items again; returns those of which there are any."""
    if wish.since is None and wish.at is None:
        skus = [sku for sku, state in (await states(store, skus)).items() if state.dead or state.parked]
    for sku in skus:
        await wish.ask(store, sku)
    return list(skus)
