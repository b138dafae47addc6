"""`seckill orders events | replay`: the events that leave about orders."""

import contextlib
import json
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app.cli.common import By, Json, name_of, with_sale
from app.errors import ConfigurationError, StockError
from app.journals import EntryMissing, pages, rank
from app.operator import deliveries
from app.orders import DEFAULT_SKU, Event, OrderId
from app.outbox.state import State, Wish
from app.sale.find import named
from app.stock import DEFAULT_RECEIVER, StockStore
from app.wiring import Sale

OneReceiver = Annotated[
    str | None, typer.Option("--receiver", metavar="NAME", help="One receiver of events; all of them without.")
]


def add_to(orders: typer.Typer) -> None:
    """Add the commands to `seckill orders`."""

    @orders.command("events")
    def orders_events(
        number: Annotated[
            str | None, typer.Argument(metavar="[ORDER]", help="An order's number, with its item, or its id.")
        ] = None,
        receiver: OneReceiver = None,
        as_json: Json = False,
    ) -> None:
        """List the events that are parked or dead; with an order's number, all of its events."""
        if number is not None:
            rows = with_sale(lambda sale: _of_order(sale.store, number, receiver))
        else:
            rows = with_sale(lambda sale: _not_delivered(sale.store, receiver))
        if as_json:
            print(json.dumps(rows, indent=2))  # noqa: T201
            return
        table = Table(box=None)
        for name in rows[0] if rows else ():
            table.add_column(name.replace("_", " "), no_wrap=name == "order")
        for row in rows:
            table.add_row(*(_shown(value) for value in row.values()))
        Console().print(table if rows else "no event is parked or dead")

    @orders.command("replay")
    def orders_replay(
        sku: Annotated[str | None, typer.Option(help="The item; with --dead, all of them without.")] = None,
        since: Annotated[
            str | None, typer.Option(metavar="ENTRY", help="Send all events behind this entry again; 0: all.")
        ] = None,
        dead: Annotated[bool, typer.Option("--dead", help="Try the dead letters, and what is parked, again.")] = False,
        receiver: OneReceiver = None,
        by: By = "",
    ) -> None:
        """Have events sent again. The sender does so within some seconds, once there is a sender."""
        if (since is not None) == dead:
            raise typer.BadParameter("say either --since ENTRY or --dead")

        async def ask(sale: Sale) -> list[str]:
            if sku is not None:
                await sale.orders.named(sku)
            if since is not None:
                skus = [sku or DEFAULT_SKU]
                _check_since(since, (await sale.store.level(skus[0])).last_entry or "0")
            else:
                skus = [sku] if sku is not None else await sale.store.items()
            to = await deliveries.receivers(sale.store, skus, receiver)
            wish, operator = Wish(since, dead), name_of(by)
            asked = await deliveries.replay(sale.store, skus, wish, to)
            await deliveries.note_replay(sale.store, asked, wish, by=operator)
            return asked

        asked = with_sale(ask)
        print(f"the sender is asked: {', '.join(asked)}" if asked else "nothing is parked or dead")  # noqa: T201


def _check_since(since: str, last: str) -> None:
    with contextlib.suppress(ValueError):
        if since == "0" or (since and len(rank(since)) == len(rank(last)) and rank(since) <= rank(last)):
            return
    what = f"an entry of the item's journal, up to {last}, as `seckill orders events` shows it, or 0"
    raise typer.BadParameter(what, param_hint="--since")


def _shown(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


async def undelivered(store: StockStore, sku: str) -> dict[str, int]:
    """How many of an item's events wait, are parked or dead, by receiver; none if no sender has ever looked at it."""
    found = {}
    for receiver in await store.receivers([sku]):
        outbox = (await store.outbox([sku], receiver))[sku]
        if not isinstance(outbox, StockError) and outbox.text:
            found[receiver] = await _behind(store, sku, State.from_text(outbox.text))
    return found


async def _behind(store: StockStore, sku: str, state: State) -> int:
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
        how = {name: _delivery(event, states.get(order.sku, State())) for name, states in to.items()}
        found.append(own | how | {"facts": dict(event.facts)})
    return found


def _delivery(event: Event, state: State) -> str:
    if any(event.entry == place.entry for one in state.parked.values() for place in one.places):
        return "parked"
    if any(event.entry == dead.entry for dead in state.dead):
        return "dead"
    if not state.wants(event):
        return "not wanted"
    return "waits" if rank(event.entry) > rank(state.cursor) else "delivered"
