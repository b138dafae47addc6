"""`seckill orders events | replay`: the events that leave about orders."""

import contextlib
from datetime import datetime
from typing import Any

import typer

from app.cli import tables
from app.cli.common import counted, print_json, with_sale
from app.errors import ConfigurationError, StockError
from app.journals import EntryMissing, pages, rank
from app.operator import deliveries
from app.orders import DEFAULT_SKU, Event, OrderId
from app.outbox.state import DeliveryState, Wish
from app.sale.find import named
from app.stock import DEFAULT_RECEIVER, StockStore
from app.wiring import Sale


def show(number: str | None, receiver: str | None, as_json: bool) -> None:
    """Print the events that are parked or dead, or all of an order."""
    if number is not None:
        rows = with_sale(lambda sale: _of_order(sale.store, number, receiver))
    else:
        rows = with_sale(lambda sale: _not_delivered(sale.store, receiver))
    if as_json:
        print_json(rows)
    else:
        tables.print_paragraphs(map(_about, rows) if rows else [["no event is parked or dead"]])


def replay(sku: str | None, since: str | None, number: str | None, receiver: str | None, operator: str) -> None:
    """Ask the senders for events again: those behind an entry, or else what is dead or parked, of an order or all."""
    try:
        order = None if number is None else deliveries.order_of(number, sku)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--order") from None
    wish, sku = Wish(since, since is None, orders=[order.number] if order else None), order.sku if order else sku

    async def ask(sale: Sale) -> list[str]:
        if sku is not None:
            await sale.orders.named(sku)
        if since is not None:
            skus = [sku or DEFAULT_SKU]
            _check_since(since, (await sale.store.level(skus[0])).last_entry or "0")
        else:
            skus = [sku] if sku is not None else await sale.store.items()
        to = await deliveries.receivers(sale.store, skus, receiver)
        return await deliveries.replay(sale.store, skus, wish, to, by=operator)

    asked = with_sale(ask)
    typer.echo(f"the sender is asked: {', '.join(asked)}" if asked else "nothing is parked or dead")


def _check_since(since: str, last: str) -> None:
    with contextlib.suppress(ValueError):
        if since == "0" or (since and len(rank(since)) == len(rank(last)) and rank(since) <= rank(last)):
            return
    what = f"an entry of the item's journal, up to {last}, as `seckill orders events` shows it, or 0"
    raise typer.BadParameter(what, param_hint="--since")


def _about(row: dict[str, Any]) -> list[str]:
    """What people read about an event that is parked or dead, or about one of an order."""
    if "facts" in row:
        to = (f"{name}: {how}" for name, how in row.items() if name.startswith("delivery"))
        return [f"{row['at']}  {row['kind']}", f"entry {row['entry']}, {', '.join(to)}"]
    if row["next"] is None:
        how, when = "dead", f"given up {row['since']}"
    else:
        how = f"parked, {counted(row['events'], 'event')} waiting"
        when = f"{row['tries']} tries since {row['since']}, next {row['next']}"
    return [f"{row['order']}  {how}, for receiver {row['receiver']}", when, f"entry {row['entry']}: {row['why']}"]


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


async def undelivered(store: StockStore, sku: str) -> dict[str, int]:
    """How many of an item's events wait, are parked or dead, by receiver; none if no sender has ever looked at it."""
    found = {}
    for receiver in await store.receivers([sku]):
        outbox = (await store.outbox([sku], receiver))[sku]
        if not isinstance(outbox, StockError) and outbox.text:
            found[receiver] = await _behind(store, sku, DeliveryState.from_text(outbox.text))
    return found


async def _behind(store: StockStore, sku: str, state: DeliveryState) -> int:
    apart = [place.entry for one in state.parked.values() for place in one.places] + [one.entry for one in state.dead]
    # Dead and parked events behind the cursor are counted there.
    found = sum(rank(entry) <= rank(state.cursor) for entry in apart)
    with contextlib.suppress(EntryMissing):  # the sender says that
        async for some in pages(store, sku, state.cursor):
            found += sum(map(state.wants, some))
    return found


async def _not_delivered(store: StockStore, only: str | None) -> list[dict[str, Any]]:
    skus = await store.items()
    found = await deliveries.undelivered(store, skus, await deliveries.receivers(store, skus, only))
    return [
        one._asdict() | {"since": _moment(one.since), "next": None if one.next is None else _moment(one.next)}
        for one in found
    ]


async def _of_order(store: StockStore, given: str, only: str | None) -> list[dict[str, Any]]:
    wanted = OrderId.parse_name(given)
    if wanted is None:
        raise ConfigurationError(f"not an order's number: {given!r}; it is `{OrderId('item', 'number')}`")
    store.check(wanted.sku)
    found_order = await named(store, given)
    if found_order is None:
        raise ConfigurationError(f"no order {wanted.name}")
    order = found_order.id
    to = {
        f"delivery to {name}" if name != DEFAULT_RECEIVER else "delivery": await deliveries.states(
            store, [order.sku], name
        )
        for name in await deliveries.receivers(store, [order.sku], only)
    }
    found = []
    for event in await store.history(order.sku, order.number):
        own = {"entry": event.entry, "number": event.number, "kind": str(event.kind), "at": _moment(event.at)}
        how = {name: _delivery(event, states.get(order.sku, DeliveryState())) for name, states in to.items()}
        found.append(own | how | {"facts": dict(event.facts)})
    return found


def _delivery(event: Event, state: DeliveryState) -> str:
    if any(event.entry == place.entry for one in state.parked.values() for place in one.places):
        return "parked"
    if any(event.entry == dead.entry for dead in state.dead):
        return "dead"
    if not state.wants(event):
        return "not wanted"
    return "waits" if rank(event.entry) > rank(state.cursor) else "delivered"
