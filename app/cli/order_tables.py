"""Orders and their lives, for people."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from app import moments, money
from app.cli import tables
from app.orders import Event, Order, Record
from app.orders.account import DisputeState, Payment, Way
from app.orders.view import step

_AMOUNTS: Final = ("price", "amount", "expected", "subtotal")  # facts of events
_TIMES: Final = ("pay_by", "goes_back_at", "paid_at")
_ELSEWHERE: Final = ("about", "currency", "state", "message", "outcome", "refunds", "disputes", "changes", "sums")
_WORDS: Final = {"amount": "", "payment_ref": "payment"}
_DROPPED_FIRST: Final = ("ref", "to pay", "began", "payment")
_WHOLE: Final = ("number", "state", "units")
_EDGE: Final = 3  # of a cell


def print_orders(orders: list[Order]) -> None:
    """Print a line for each order, whose number can be copied; a narrow terminal lacks other columns."""
    console = Console()
    if not orders:
        console.print("There is no such order.")
        return
    columns: dict[str, list[str]] = {
        "began": [moments.written(one.sold_at) for one in orders],
        "number": [one.id.name for one in orders],
        "state": [one.state for one in orders],
        "units": [_units(one) for one in orders],
        "buyer": [one.buyer or "" for one in orders],
        "ref": [one.record.ref or "" for one in orders],
        "to pay": [_money(one.record) for one in orders],
        "payment": [one.record.payment_ref or "" for one in orders],
        "kept": [", ".join(_kept(one.record)) for one in orders],
        "owed": [_owed(one.record) for one in orders],
    }
    widths = {name: max(map(cell_len, (name, *cells))) + _EDGE for name, cells in columns.items()}
    dropped: list[str] = []
    while sum(widths[name] for name in columns) > console.width and len(dropped) < len(_DROPPED_FIRST):
        dropped.append(_DROPPED_FIRST[len(dropped)])
        del columns[dropped[-1]]
    table = Table(*(Column(name, no_wrap=name in _WHOLE, overflow="fold") for name in columns))
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(tables.foreign, cells))
    console.print(table)
    if dropped:
        console.print(f"Not shown here: {', '.join(dropped)}. A wider terminal has all, and so has --json.")


def print_life(order: Order, events: list[Event]) -> None:
    """Print an order, its payments with their refunds, and its events, without shortening any name."""
    print_orders([order])
    record = order.record
    found = [_payment(one) for one in record.payments]
    for one in events:
        facts = _facts(step(order, one)["facts"], record.currency)
        about = f"token {one.token}, batch {one.batch_id}"
        found.append([f"{moments.written(one.at)}  {one.kind}", *facts, about])
    tables.print_paragraphs(found)


def _payment(one: Payment) -> list[str]:
    """A payment with its refunds and disputes."""
    amount = "an unknown amount" if one.amount is None else money.written(one.amount, one.currency)
    parts = [part._asdict() for part in one.refunds] + [part._asdict() for part in one.disputes]
    return [f"payment {one.ref}: {amount}, {one.state}", *(_part(part, one.currency) for part in parts)]


def _facts(facts: Mapping[str, Any], currency: str | None) -> Iterator[str]:
    """The facts of an event in lines: its own, each refund and dispute, and the changed sums.

    Amounts are in the currency of the event, except for the expected price.
    """
    its = facts.get("currency", currency)
    yield ", ".join(
        _fact(name, value, currency if name in ("price", "expected") else its)
        for name, value in facts.items()
        if name not in _ELSEWHERE
    )
    for part in (*facts.get("refunds", ()), *facts.get("disputes", ())):
        yield _part({name: one for name, one in part.items() if name not in ("by", "why")}, its)
    changed = [one["currency"] for one in facts.get("changes", ())]
    yield from (_sums(one) for one in facts.get("sums", ()) if one["currency"] in changed)


def _fact(name: str, value: Any, currency: str | None) -> str:
    if name == "lines":
        value = ", ".join(f"{one['quantity']} {one['sku']}" for one in value)
    if name in _TIMES:
        value = moments.written(value)
    if name in _AMOUNTS and isinstance(value, int):
        value = money.written(value, currency)
    return f"{_WORDS.get(name, name.replace('_', ' '))} {value}".strip()


def _part(told: Mapping[str, Any], currency: str | None) -> str:
    """A refund or a dispute in one line."""
    amount = (
        "all that is left"
        if told.get("amount") is None
        else money.written(told["amount"], told.get("currency") or currency)
    )
    what = "dispute" if told["state"] in list(DisputeState) else "refund"
    own = (("by", told.get("by")), ("because of", told.get("why")), ("the provider's", told.get("id")))
    way = "" if told.get("way", Way.PROVIDER) == Way.PROVIDER else f", {told['way']}"
    return f"{what} {told['name']}: {amount}, {told['state']}{way}" + "".join(
        f", {name} {one}" for name, one in own if one
    )


def _sums(told: Mapping[str, Any]) -> str:
    """The sums after an event."""
    names = ("paid", "given_back", "owed", "kept")
    said = ", ".join(f"{name.replace('_', ' ')} {money.decimal(told[name], told['currency'])}" for name in names)
    return f"{told['currency'] or 'no currency'}: {said}"


def _units(order: Order) -> str:
    """The units of an order; of a basket those of each line."""
    lines = [(order.sku, order.quantity), *((one.sku, one.quantity) for one in order.record.lines)]
    some = ", ".join(f"{units} {sku}" for sku, units in lines if units) if len(lines) > 1 else ""
    return some or str(order.quantity)


def _money(record: Record) -> str:
    """The amount of an order."""
    return "" if record.to_pay is None else money.written(record.to_pay, record.currency)


def _kept(record: Record) -> Iterator[str]:
    return (money.written(one.kept, one.currency) for one in record.sums.values() if one.kept)


def _owed(record: Record) -> str:
    """The amounts that are owed, and which refunds have failed."""
    sums = (money.written(one.owed, one.currency) for one in record.sums.values() if one.owed)
    unknown = ("unknown" for _, one in record.refunds if one.amount is None)
    return ", ".join((*sums, *unknown))
