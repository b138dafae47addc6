"""Undelivered events, for operators: list the parked and dead ones, and send them again."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from app import moments
from app.errors import ConfigurationError, StockCorrupt, StockError
from app.journals import in_pages
from app.orders import OrderId
from app.outbox.state import DeliveryState, Wish
from app.stock import LogNote, StockStore


class Undelivered(NamedTuple):
    """An order that is parked, or an event that is dead (not tried any more). Times are seconds since 1970."""

    state: Literal["parked", "dead"]
    order: str  # its number, without the secret
    entry: str  # the entry of the refused event
    events: int  # that wait
    tries: int | None  # since the first refusal
    since: float  # the first refusal, or the moment when the event was given up
    next: float | None  # the next try
    why: str
    receiver: str


async def receivers(
    store: StockStore, skus: Sequence[str], only: str | None = None, *, configured: Iterable[str] = ()
) -> list[str]:
    """The `configured` receivers, and the receivers with notes on these items; or `only` this one, if it is among them.

    Raises `ConfigurationError`.
    """
    found = dict.fromkeys(configured)
    for some in in_pages(skus):
        found |= dict.fromkeys(await store.receivers(some))
    if only is not None and only not in found:
        raise ConfigurationError(f"no receiver {only!r}; there is {', '.join(found)}")
    return list(found) if only is None else [only]


async def states(store: StockStore, skus: Sequence[str], receiver: str) -> dict[str, DeliveryState]:
    """The readable notes of a receiver's sender, by item."""
    found = {}
    for some in in_pages(skus):
        for sku, outbox in (await store.outbox(some, receiver)).items():
            if not isinstance(outbox, StockError) and outbox.text:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a note that we can't read hides no other
                    found[sku] = DeliveryState.from_text(outbox.text)
    return found


async def undelivered(store: StockStore, skus: Sequence[str], to: Sequence[str]) -> list[Undelivered]:
    """The parked and dead events of these receivers, as their senders have noted them within the last second."""
    found = []
    for receiver in to:
        for sku, state in (await states(store, skus, receiver)).items():
            for parked in (one for one in state.parked.values() if one.places):
                about = OrderId(sku, parked.order).name, parked.places[0].entry, len(parked.places), parked.tries
                found.append(Undelivered("parked", *about, parked.since, parked.due, parked.why, receiver))
            for dead in state.dead:
                order = OrderId(sku, dead.order).name
                found.append(Undelivered("dead", order, dead.entry, 1, None, dead.at, None, dead.why, receiver))
    return found


def order_of(number: str, sku: str | None) -> OrderId:
    """The order of a number. Raises `ValueError` if it is none, or of another item than the one that is named."""
    order = OrderId.parse_name(number)
    if order is None:
        raise ValueError(f"not an order's number, such as `{OrderId('item', 'number').name}`")
    if sku not in (None, order.sku):
        raise ValueError(f"this order is of the item {order.sku!r}, and `sku` names {sku!r}")
    return order


async def replay(store: StockStore, skus: Sequence[str], wish: Wish, to: Sequence[str], *, by: str) -> list[str]:
    """Ask these receivers' senders to send events of these items again; returns the items that have any.

    The log has each item before its senders are asked. Raises `StockCorrupt`, after all others, for unreadable notes.
    """
    what = "parked or dead" if wish.since is None else f"behind {wish.since}"
    if wish.at is not None:
        what = f"from {moments.written(wish.at)} on"
    asked, odd = dict[str, list[str]](), list[str]()
    for receiver in to:
        some: Iterable[str] = skus
        if wish.since is None and wish.at is None:
            found = await states(store, skus, receiver)
            apart = {sku: {*state.parked, *(one.order for one in state.dead)} for sku, state in found.items()}
            some = [sku for sku, there in apart.items() if (there if wish.orders is None else there & {*wish.orders})]
        asked |= {sku: [*asked.get(sku, ()), receiver] for sku in some}
    for sku, names in asked.items():
        about = {} if wish.orders is None else {"order": OrderId(sku, ", ".join(wish.orders)).name}
        await store.note(sku, LogNote(by, "replay", about, about | {"events": what}))
        for receiver in names:
            try:
                await wish.ask(store, sku, receiver)
            except StockCorrupt as error:
                odd.append(str(error))
    if odd:
        raise StockCorrupt(f"{'; '.join(odd)}; the others are asked")
    return [sku for sku in skus if sku in asked]
