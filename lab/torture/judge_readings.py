"""The judge's demand on what each instance tells its readers in the end: the numbers of buyers and of operators."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.orders import OrderState
from lab.torture.history import Entry, FinalState, Flow, History, Item
from lab.torture.judge_money import Money

_MONEY: Final = ("paid", "given_back", "owed", "kept", "disputed")


def are_right(history: History, end: FinalState) -> Iterator[str]:
    """Each number is what the journal and the orders add up to."""
    money = Money(history, end)
    should: dict[str, dict[str, Any]] = {}
    for flow in money.flows:
        should[flow.item.sku] = _of_flow(money, flow, money.journal[flow.item.sku])
    for one in history.readings:
        told, right = one.level | one.sums, should[one.sku]
        if wrong := {name: told.get(name) for name, value in right.items() if told.get(name) != value}:
            yield f"{one.instance} tells of {one.sku} {wrong}, and it is { {name: right[name] for name in wrong} }"


def _of_flow(money: Money, flow: Flow, journal: Sequence[Entry]) -> dict[str, Any]:
    sku = flow.item.sku
    orders = {one.order: money.stood[one.order][-1] for one in journal if "part_of" not in one.facts}
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    units = Counter[str]()
    for whole in (stood[-1].shown for order, stood in money.stood.items() if "part_of" not in money.of[order][0].facts):
        units[str(whole["state"])] += sum(line["quantity"] for line in whole["items"] if line["sku"] == sku)
    for one in orders.values():
        for currency, its in one.sums.items():
            sums[currency or ""].update({name: its[name] for name in _MONEY})
    there = flow.item.initial + sum(one.added for one in money.restocks(sku))
    held, lucky = sum(one.held for one in journal), sum(one.lucky for one in journal)
    prices = [flow.price or None, *(one.price for one in money.history.prices if one.sku == sku)]
    return _level(flow.item, there, there - held - lucky, held, lucky) | {
        "price": prices[-1],
        "orders": _by_state(**Counter(str(one.shown["state"]) for one in orders.values())),
        "units": _by_state(**units),
        "to_ship": units["sold"] + units["confirmed"],
        "attention": sum(one.attention for one in orders.values()),
        "money": {currency: dict(its) for currency, its in sums.items()},
    }


def _level(item: Item, there: int, stock: int, held: int, lucky: int) -> dict[str, Any]:
    numbers = {"stock": stock, "held": held, "lucky": lucky, "initial": there}
    return numbers | {"limit_per_buyer": item.limit, "starts_at": None, "ends_at": None, "paused": ""}


def _by_state(**counts: int) -> Mapping[str, int]:
    return {str(state): counts.get(str(state), 0) for state in OrderState}
