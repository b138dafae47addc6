"""A restock: an operator sets the units of an item, or adds some, or begins a new sale, on some conditions."""

import json
from collections.abc import Sequence
from typing import Final, TypedDict

from app.errors import HasOrders, StockNotAsExpected
from app.orders import NO_TERMS, TERMS, Terms, TermsChange
from app.stock.batch import LAYOUT
from app.stock.level import Level, facts
from app.stock.log import LogNote
from app.stock.puts import next_generation
from app.stock.refusals import not_as_expected
from app.stock.storage import Found, Put, Storage, Value

UNITS_MAX: Final = 10**15 - 1  # units of an item at most, as a script of Redis counts in doubles


class Restock(TypedDict, total=False):
    """The options of a restock. Sold units stay sold, unless a new sale begins."""

    new_sale: bool  # forget orders, buyers and keys
    forget_orders: int | None  # change nothing unless there are just so many orders
    add: bool  # add the units to those that are left
    if_match: tuple[int, int] | None  # change nothing unless so many units are left and sold
    if_initial: int | None  # change nothing unless so many were there at the start
    terms: TermsChange  # changes of the item's own
    by: str  # the operator, for the log


def what_is_changed(stock: int, how: Restock) -> str:
    """Name such a restock in the words of the log."""
    if how.get("new_sale"):
        return "new sale"
    if stock or not how.get("add"):
        return "stock"
    change = how.get("terms", {})
    of_pause = "paused" in change and change.keys() <= {"paused", "paused_texts"}
    return "terms" if not of_pause else "pause" if change["paused"] else "resume"


def put_of(
    storage: Storage,
    sku: str,
    found: Found,
    stock: int,
    how: Restock,
    *,
    orders: int | None,
    expect: dict[str, Value],
    generations: Sequence[int],
) -> tuple[Put, Level]:
    """The writes of a restock, and the level that it makes.

    `orders`: their number, if a condition needs it; `generations`: of the expected orders. Raises `UnknownItem`,
    `StockNotAsExpected`, `HasOrders` or `StockCorrupt` if it is not possible.
    """
    head, new_sale, if_match = found.head, how.get("new_sale", False), how.get("if_match")
    if how.get("add") and head.stock is None:
        raise storage.unknown(sku)
    there = head.stock or 0, head.lucky
    if (if_match is not None and if_match != there) or how.get("if_initial") not in (None, head.initial):
        raise StockNotAsExpected(not_as_expected(sku, *there))
    if orders is not None and orders != how.get("forget_orders"):
        raise HasOrders(sku, orders)
    own, change = terms_of(storage, sku, head.terms, how), how.get("terms", {})
    units = stock + there[0] if how.get("add") else stock
    held, lucky = (0, 0) if new_sale else (head.held, head.lucky)
    waiting = 0 if new_sale else head.waiting
    level = Level(sku, units, lucky, units + held + lucky, terms=own.changed(change), held=held, waiting=waiting)
    if units + held + lucky > UNITS_MAX:
        raise StockNotAsExpected(f"item {sku!r} can't have that many units")
    put = Put(found, expect, clear=new_sale)
    put.head = {
        "stock": units,
        "lucky": lucky,
        "held": held,
        "initial": level.initial,
        "terms": level.terms.to_text(),
        "prepared": None,  # a batch that is prepared was decided on another stock
    }
    if new_sale or not head.generation:
        generation = next_generation(head.generation, head.now_us, generations)
        put.head |= {
            "generation": generation,
            "sale": generation,
            "layout": LAYOUT,
            "tag": "",
            "changes": 0,
            "waiting": 0,
            "wants": 0,
            "batch": None,
        }
    before = Level(sku, *there, None, terms=own, held=head.held)
    was = facts(before) if head.stock is not None else {}
    put.notes.append(LogNote(how.get("by", ""), what_is_changed(stock, how), was, facts(level)))
    return put, level


def terms_of(storage: Storage, sku: str, text: str, how: Restock) -> Terms:
    """The terms before a restock; a change may replace some that can't be read. Raises `StockCorrupt`."""
    change = how.get("terms", {})
    try:
        return Terms.from_text(text)
    except ValueError:
        if how.get("new_sale") or change.keys() == TERMS.keys():
            return NO_TERMS
    try:
        return Terms.from_text(
            json.dumps({name: one for name, one in dict(json.loads(text)).items() if name not in change})
        )
    except (ValueError, TypeError):
        raise storage.corrupt(sku, "terms") from None
