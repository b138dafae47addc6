"""The output of the operator's commands for people: stock, audits, lock queues."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from app import moments, money
from app.audit import Audit
from app.orders import Event, Order, Record
from app.orders.view import step
from app.stock import Change, Level
from fencelock import Contender
from fencelock.contender import printable

_SHOWN_MAX: Final = 200
_AMOUNTS: Final = ("price", "amount", "expected", "subtotal", "given_back")  # facts of events


def print_levels(levels: list[Level]) -> None:
    """Print units left and sold of each item."""
    held = any(level.held for level in levels)
    table = Table("item", "stock", *(["held"] if held else []), "sold", "at the start", "own terms")
    for level in levels:
        table.add_row(
            level.sku,
            str(level.stock),
            *([str(level.held)] if held else []),
            str(level.lucky),
            "not recorded" if level.initial is None else str(level.initial),
            _foreign(level.terms.said),
        )
    Console().print(table)


def print_log(changes: list[Change]) -> None:
    """Print a line for each change."""
    if not changes:
        Console().print("No operator has changed anything yet.")
        return
    table = Table("when", "who", "what", "item", Column("change", overflow="fold"))
    for one in changes:
        texts = (moments.written(one.at), one.by, one.what, one.sku, one.difference)
        table.add_row(*map(_foreign, texts))
    Console().print(table)


def print_audits(audits: list[Audit]) -> None:
    """Print the numbers of each item, and under them its violations; of very many items only those that have some."""
    console = Console()
    if len(audits) > _SHOWN_MAX:
        wrong = [one for one in audits if not one.consistent]
        console.print(
            f"{len(audits):,} items, {sum(one.orders for one in audits):,} orders: {len(wrong):,} NOT consistent"
        )
        if not wrong:
            return
        audits = wrong
    held = any(one.held for one in audits)
    columns = ("item", "stock", *(["held"] if held else []), "sold", "at the start", "orders", "units ordered", "")
    table = Table(*columns, title="Audit")
    for one in audits:
        start = "not recorded" if one.initial is None else str(one.initial)
        verdict = "[green]consistent[/]" if one.consistent else "[red]NOT consistent[/]"
        units = (one.stock, *([one.held] if held else []), one.lucky, start, one.orders, one.units_ordered)
        table.add_row(one.sku, *map(str, units), verdict)
    console.print(table if audits else "There is no item; set one's stock with: seckill stock set 300")
    for one in audits:
        for violation in one.violations:
            console.print(f"[red]{_foreign(f'{one.sku}: {violation}')}[/]")
        if one.initial is None:
            console.print(f"{one.sku}: the stock was not set with `seckill stock set`, so its sum can't be checked")


def _foreign(text: str) -> str:
    """Escape text of others, so that it is no markup of ours, and no command to a terminal."""
    return escape(printable(text))


def print_queues(contenders: list[Contender]) -> None:
    """Print the holder of each lock, and its waiters in their order."""
    if not contenders:
        Console().print("Nobody holds a lock or waits for one.")
        return
    table = Table("", Column("key", overflow="fold"), "token", "owner", "for", "TTL left", title="Lock queues")
    for contender in contenders:
        owner = contender.owner
        who = (
            f"{owner.get('instance', '?')} pid {owner.get('pid', '?')} {owner.get('thread', '')}"
            if owner
            else "not one of ours"
        )
        table.add_row(
            "holds" if contender.holds else "waits",
            _foreign(contender.key),
            str(contender.token),
            _foreign(who),
            "?" if contender.waited_s is None else f"{contender.waited_s:.1f} s",
            "none" if contender.ttl_left_s is None else f"{contender.ttl_left_s:.0f} s",
        )
    Console().print(table)


def print_orders(orders: list[Order]) -> None:
    """Print a line for each order."""
    if not orders:
        Console().print("There is no such order.")
        return
    names = (
        "began",
        Column("number", overflow="fold"),
        "state",
        "units",
        "buyer",
        "ref",
        "to pay",
        "payment",
        "due back",
    )
    table = Table(*names)
    for one in orders:
        record = one.record
        texts = (record.ref or "", _money(record), record.payment_ref or "", " ".join(record.refunds_due))
        own = (moments.written(one.sold_at), one.id.name, one.state, str(one.quantity), one.buyer or "")
        table.add_row(*map(_foreign, (*own, *texts)))
    Console().print(table)


def print_life(order: Order, events: list[Event]) -> None:
    """Print an order, and a line for each of its events."""
    print_orders([order])
    table = Table("when", "event", "token", Column("batch", overflow="fold"), Column("facts", overflow="fold"))
    for one in events:
        facts = step(order, one)["facts"]
        said = ", ".join(_fact(name, facts, order.record) for name in facts)
        table.add_row(*map(_foreign, (moments.written(one.at), one.kind, str(one.token), one.batch_id, said)))
    Console().print(table)


def _money(record: Record) -> str:
    """The amount of an order."""
    return "" if record.to_pay is None else money.written(record.to_pay, record.currency)


def _fact(name: str, facts: Mapping[str, Any], record: Record) -> str:
    """A fact of an event; amounts are in the currency of the order, or in that of the payment."""
    value = facts[name]
    if name == "pay_by":
        value = moments.written(value)
    if name in _AMOUNTS and isinstance(value, int):
        value = money.written(value, facts.get("currency", record.currency) if name == "amount" else record.currency)
    return f"{name} {value}"
