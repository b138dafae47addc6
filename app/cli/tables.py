"""The output of the operator's commands for people: stock, audits, lock queues."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table

from app import moments
from app.audit import Audit
from app.stock import Change, Level
from app.telemetry.logs import printable
from fencelock import Contender

_SHOWN_MAX: Final = 200
_INDENT: Final = 4


def print_levels(levels: list[Level]) -> None:
    """Print units left and sold of each item."""
    held, waiting = any(level.held for level in levels), any(level.waiting for level in levels)
    extra = [*(["held"] if held else []), *(["in line"] if waiting else [])]
    table = Table("item", "stock", *extra, "sold", "at the start", "own terms")
    for level in levels:
        table.add_row(
            level.sku,
            str(level.stock),
            *([str(level.held)] if held else []),
            *([str(level.waiting)] if waiting else []),
            str(level.lucky),
            "not recorded" if level.initial is None else str(level.initial),
            foreign(level.terms.said),
        )
    Console().print(table)


def print_log(changes: list[Change]) -> None:
    """Print a line for each change."""
    if not changes:
        Console().print("No operator has changed anything yet.")
        return
    table = Table(Column("when", no_wrap=True), "who", "what", "item", Column("change", overflow="fold"))
    for one in changes:
        texts = (moments.written(one.at), one.by, one.what, one.sku, one.difference)
        table.add_row(*map(foreign, texts))
    Console().print(table)


def print_audits(audits: list[Audit]) -> None:
    """Print each item's numbers, and its violations below; of very many items only the violated ones."""
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
            console.print(f"[red]{foreign(f'{one.sku}: {violation}')}[/]")
        if one.initial is None:
            console.print(f"{one.sku}: the stock was not set with `seckill stock set`, so its sum can't be checked")


def print_paragraphs(found: Iterable[list[str]]) -> None:
    """Print titles with lines below each, in which a narrow terminal cuts nothing."""
    console = Console(highlight=False)
    for title, *lines in found:
        console.print(foreign(title))
        for line in filter(None, lines):
            console.print(Padding(foreign(line), (0, 0, 0, _INDENT), expand=False))


def foreign(text: str) -> str:
    """Escape text that others have written, so that neither our markup nor a terminal obeys it."""
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
            foreign(contender.key),
            str(contender.token),
            foreign(who),
            "?" if contender.waited_s is None else f"{contender.waited_s:.1f} s",
            "none" if contender.ttl_left_s is None else f"{contender.ttl_left_s:.0f} s",
        )
    Console().print(table)
