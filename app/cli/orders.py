"""`seckill orders` and `seckill buyers`: an operator finds an order, and answers its buyer."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from app import money
from app.cli.common import By, Json, Yes, name_of, print_json, say, with_sale
from app.errors import SeckillError
from app.orders import DEFAULT_SKU, Answer, Event, Order, OrderId, OrderState, Refund, RequestOutcome
from app.orders.account import Sums, add_up

if TYPE_CHECKING:
    from app.sale import FoundOrders, Wanted, WantedState
    from app.sale.export import Format
    from app.wiring import Sale

orders = typer.Typer(
    name="orders", help="Find orders, look at one's life, cancel, refund and export them.", no_args_is_help=True
)
buyers = typer.Typer(name="buyers", help="What is kept of buyers.", no_args_is_help=True)

_NAME_BYTES: Final = 8  # of a part that is given back
_STATES: Final = (*(str(state) for state in OrderState), "attention")
Sku = Annotated[str | None, typer.Option(help="The item; all of them without.")]
Of = Annotated[str | None, typer.Option("--item", help="Of this item of a basket; without --units all of that line.")]
Some = Annotated[int | None, typer.Option(min=1, help="Only so many of its units.")]
Receiver = Annotated[
    str | None, typer.Option("--receiver", metavar="NAME", help="One receiver of events; all of them without.")
]
Number = Annotated[str | None, typer.Argument(help="The order's number: its id, or the part of it before the secret.")]
Ref = Annotated[str | None, typer.Option(help="The shop's own number, in the place of the order's: looks through all.")]


def _state(text: str | None) -> "WantedState | None":
    if text is not None and text not in _STATES:
        raise typer.BadParameter(f"one of {', '.join(_STATES)}")
    return "attention" if text == "attention" else OrderState(text) if text else None


State = Annotated[
    Any,
    typer.Option(
        parser=_state, metavar="STATE", help=f"Only those: {', '.join(_STATES)} (a payment to give back, or wrong)."
    ),
]


@orders.command("list")
def orders_list(
    sku: Sku = None,
    state: State = None,
    after: Annotated[str | None, typer.Option(help="Go on behind the order of this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 100,
    as_json: Json = False,
) -> None:
    """List the orders of an item, or of all: one item after the other, oldest first."""
    from app.sale import FoundOrders, Wanted

    wanted = Wanted(_state(state))

    async def look(sale: "Sale") -> "FoundOrders":
        found, unread = list[Order](), list[str]()
        on = after
        while True:
            try:
                page = await sale.orders.find(sku, wanted, after=on, limit=limit - len(found))
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--after") from None
            found, on = found + page.orders, page.next
            unread += page.unread
            if on is None or len(found) == limit:
                return FoundOrders(found, on, page.looked, page.until, unread)

    page = with_sale(look)
    _print(page.orders, as_json)
    _warn(page.unread)
    if page.next is not None and not as_json:
        typer.echo(f"There are more: --after {page.next}", err=True)


def _warn(unread: Sequence[str]) -> None:
    if unread:
        said = f"the orders of {', '.join(unread)} can't be read, and are missing here"
        typer.echo(said, err=True)


@orders.command("show")
def orders_show(number: Number = None, ref: Ref = None, as_json: Json = False) -> None:
    """Show an order, and all its events."""

    async def look(sale: "Sale") -> tuple[Order, list[Event]]:
        order = await _chosen(sale, number, ref)
        return order, await sale.orders.history(order)

    order, events = with_sale(look)
    if as_json:
        from app.orders.view import row, step

        print_json(row(order) | {"steps": [step(order, event) for event in events]})
    else:
        from app.cli import order_tables

        order_tables.print_life(order, events)


@orders.command("find")
def orders_find(
    text: Annotated[
        str | None,
        typer.Argument(
            help="What is known of it: a number, also that which the shop's page gave; or a part of a name."
        ),
    ] = None,
    number: Annotated[str | None, typer.Option(help="The order's number, with or without the secret.")] = None,
    buyer: Annotated[str | None, typer.Option(help="The buyer's name.")] = None,
    ref: Annotated[str | None, typer.Option(help="The shop's own number.")] = None,
    sku: Sku = None,
    as_json: Json = False,
) -> None:
    """Find orders among any number: by any of their numbers, their buyer, or a payment. Exit status 1: none."""
    if not (text or number or buyer or ref):
        raise typer.BadParameter("say what is known of it, or --number, --buyer or --ref", param_hint="TEXT")
    from app.sale import Wanted

    wanted = Wanted(None, buyer, ref, text=text and text.strip())

    async def look(sale: "Sale") -> tuple[list[Order], list[str]]:
        if not number:
            return await _looked_through(sale, sku, wanted)
        one = await sale.orders.numbered(number)
        return [one] if one is not None and wanted.has(one) and sku in (None, one.sku) else [], []

    found, unread = with_sale(look)
    _print(sorted(found, key=lambda order: text is not None and not wanted.is_just(order)), as_json)
    _warn(unread)
    raise typer.Exit(0 if found else 1)


@orders.command("export")
def orders_export(
    sku: Sku = None,
    state: State = None,
    as_: Annotated[str, typer.Option("--format", metavar="csv|jsonl", help="For spreadsheets, or programs.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="A new file; standard output without.")] = None,
) -> None:
    """Write the orders of an item, or of all, to a file, page by page, without the secrets in their ids."""
    if as_ not in ("csv", "jsonl"):
        raise typer.BadParameter("csv or jsonl", param_hint="--format")
    import asyncio

    from app.cli.progress import progress
    from app.cli.questions import whole_file
    from app.sale import Wanted
    from app.sale.export import head, lines
    from app.sale.find import refuse_gaps

    form: Format = "csv" if as_ == "csv" else "jsonl"
    wanted, totals = Wanted(_state(state)), dict[str, Sums]()

    async def write(sale: "Sale", file: TextIO) -> int:
        count = 0
        async with progress(sale, sku) as advance:
            file.write(head(form))
            async for page in sale.orders.pages(sku, wanted):
                refuse_gaps(page)
                await asyncio.to_thread(file.write, lines(page.orders, form))
                for order in page.orders:
                    add_up(totals, order.record.sums.values())
                count += len(page.orders)
                advance(page.looked)
        file.flush()
        return count

    if out is None:
        with_sale(lambda sale: write(sale, typer.get_text_stream("stdout")))
        _say_totals(totals)
        return
    with whole_file(out, "--out") as file:
        count = with_sale(lambda sale: write(sale, file))
    typer.echo(f"{count:,} orders{f' of {sku}' if sku else ''} in {out}", err=True)
    _say_totals(totals)


def _say_totals(totals: dict[str, Sums]) -> None:
    """Print the sums of the orders, which `seckill payments reconcile` has, too."""
    for currency, total in sorted(totals.items()):
        sums = (("paid", total.paid), ("given back", total.given_back), ("owed", total.owed), ("kept", total.kept))
        said = ", ".join(f"{name} {money.written(amount, currency or None)}" for name, amount in sums)
        typer.echo(said, err=True)


@orders.command("cancel")
def orders_cancel(
    number: Number = None,
    ref: Ref = None,
    units: Some = None,
    item: Of = None,
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Give back the units that an order holds. A paid order is a case for `refund`. Exit status 1: not done."""
    message = secrets.token_hex(_NAME_BYTES) if units or item else None

    async def cancel(sale: "Sale") -> tuple[Answer, Order]:
        order = await _chosen(sale, number, ref)
        if not yes:
            what = _part_of(order, units, item)
            typer.confirm(f"Cancel {what}?", abort=True, err=True)
        answer = await sale.orders.cancel(order, by=name_of(by), units=units, message=message, line=item)
        return answer, await _numbered(sale, order.id.name)

    _done(*with_sale(cancel), as_json, ("cancelled", "partly_cancelled", "already_cancelled"))


@orders.command("refund")
def orders_refund(
    number: Number = None,
    ref: Ref = None,
    restock: Annotated[bool | None, typer.Option("--restock/--no-restock", help="Sell the units again.")] = None,
    payment: Annotated[
        str | None, typer.Option(help="Which payment; the order's own without, or all that are due.")
    ] = None,
    amount: Annotated[str | None, typer.Option(help="A part of the payment only, such as 5.00EUR.")] = None,
    units: Some = None,
    item: Of = None,
    name: Annotated[
        str | None, typer.Option(help="Which refund that is owed was given back, by its name in `orders show`.")
    ] = None,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="It went back in another way, such as by bank: not at the provider.")
    ] = False,
    later: Annotated[bool, typer.Option("--later", help="The money is still to be given back: it is owed.")] = False,
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Note that money was given back; with `--later` a cashier (SECKILL_REFUNDS) does it. Exit status 1: not done.

    Parts add up, and end the order when all of the payment was given back.
    """
    if later and (elsewhere or name):
        raise typer.BadParameter("what is still to be given back has no such thing", param_hint="--later")
    sum_, currency = None, None
    if amount is not None:
        try:
            sum_, currency = money.read(amount)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--amount") from None
    is_part = (amount is not None or units or item) and name is None
    message = secrets.token_hex(_NAME_BYTES) if is_part else None

    async def refund(sale: "Sale") -> tuple[Answer, Order]:
        order = await _chosen(sale, number, ref)
        again = False if restock is None and amount is not None and not (units or item) else restock
        if again is None:
            if yes:
                raise typer.BadParameter("say --restock or --no-restock", param_hint="--yes")
            again = typer.confirm("Are its units to be sold again?", err=True)
        if sale.gives_back and not (yes or later or elsewhere or name):
            say("this notes what was given back by hand; with --later the cashier gives it back at the provider")
        if not yes:
            what = _part_of(order, units, item)
            sum_of = _sum(order, payment, name, amount, units, item)
            asked = f"Is {sum_of} to be given back" if later else f"Was {sum_of} given back"
            typer.confirm(f"{asked} for {what}?", abort=True, err=True)
        wish = Refund(
            *(*order.id, again, payment, name_of(by), sum_, units, message),
            later=later,
            name=name,
            elsewhere=elsewhere,
            line=item,
        )
        try:
            answer = await sale.orders.refund(order, wish, currency)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--amount") from None
        return answer, await _numbered(sale, order.id.name)

    _done(*with_sale(refund), as_json, ("refunded", "partly_refunded", "already_refunded"))


@orders.command("retry")
def orders_retry(
    number: Number = None,
    ref: Ref = None,
    name: Annotated[str | None, typer.Option(help="Which of its refunds; all that didn't work without.")] = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Have the cashier try refunds again that didn't work. Exit status 1: there is nothing to try."""

    async def retry(sale: "Sale") -> dict[str, RequestOutcome]:
        return await sale.orders.retry(await _chosen(sale, number, ref), name, by=name_of(by))

    found = with_sale(retry)
    if as_json:
        print_json(found)
    else:
        for one, outcome in found.items():
            typer.echo(f"{one}: {outcome}")
    well = (RequestOutcome.REQUESTED, RequestOutcome.ALREADY_REQUESTED)
    raise typer.Exit(0 if any(one in well for one in found.values()) else 1)


@orders.command("events")
def orders_events(number: Number = None, receiver: Receiver = None, as_json: Json = False) -> None:
    """List the events that are parked or dead; with an order's number, all of its events."""
    from app.cli import events

    events.show(number, receiver, as_json)


@orders.command("replay")
def orders_replay(
    sku: Annotated[str | None, typer.Option(help="The item; with --dead, all of them without.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="ENTRY", help="Send all events behind this entry again; 0: all.")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Try the dead letters, and what is parked, again.")] = False,
    order: Annotated[
        str | None, typer.Option(metavar="ID", help="Try only those of this order, by its id or its number.")
    ] = None,
    receiver: Receiver = None,
    by: By = "",
) -> None:
    """Have events sent again. The sender does so within some seconds, or when there is one."""
    if (since is not None) == (dead or order is not None):
        raise typer.BadParameter("say either --since ENTRY, or --dead or --order ID")
    from app.cli import events

    events.replay(sku, since, order, receiver, name_of(by))


@buyers.command("erase")
def buyers_erase(
    name: Annotated[str, typer.Argument(help="The buyer's name, as it was given with the purchase.")],
    yes: Yes = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Remove a buyer's name from all items; orders, units and money stay. Goes on beside a sale.

    A later request with one of this buyer's idempotency keys is refused.
    """
    if not yes:
        typer.confirm(f"Remove the name {name!r} for good?", abort=True, err=True)

    async def erase(sale: "Sale") -> dict[str, int]:
        skus = await sale.stock.items()
        return {sku: count for sku in skus if (count := await sale.orders.erase(sku, name, by=name_of(by)))}

    found = with_sale(erase)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{sum(found.values()):,} entries of {len(found):,} items no longer have the name.")


async def _chosen(sale: "Sale", number: str | None, ref: str | None) -> Order:
    """The order of this number, or the only one with the shop's own number."""
    if (number is None) == (ref is None):
        raise typer.BadParameter("say the order's number, or --ref", param_hint="NUMBER")
    if number is not None:
        return await _numbered(sale, number)
    from app.sale import Wanted

    found, unread = await _looked_through(sale, None, Wanted(ref=ref))
    _warn(unread)
    if not found:
        raise SeckillError(f"there is no order with --ref {ref!r}")
    if len(found) > 1:
        which = "\n".join(f"  {_told(one)}" for one in found)
        raise SeckillError(f"{len(found)} orders have --ref {ref!r}; say the number of one of them:\n{which}")
    return found[0]


async def _looked_through(sale: "Sale", sku: str | None, wanted: "Wanted") -> tuple[list[Order], list[str]]:
    """The orders that are wanted of all, or of an item; and the items whose orders can't be read."""
    from app.cli.progress import progress

    found, unread = list[Order](), list[str]()
    async with progress(sale, sku) as advance:
        async for page in sale.orders.pages(sku, wanted):
            found += page.orders
            unread.extend(page.unread)
            advance(page.looked)
    return found, unread


async def _numbered(sale: "Sale", number: str) -> Order:
    order = await sale.orders.numbered(number)
    if order is None:
        shape = "" if OrderId.sku_of(number) != number else f"; one is written as {OrderId(DEFAULT_SKU, number)}"
        raise SeckillError(f"there is no order {number!r}{shape}")
    return order


def _part_of(order: Order, units: int | None, item: str | None) -> str:
    """An order, or a part of it, for a question."""
    which = " ".join(filter(None, (str(units) if units else "all" if item else "", item)))
    return f"{which} of {_told(order)}" if which else _told(order)


def _sum(order: Order, ref: str | None, name: str | None, said: str | None, units: int | None, item: str | None) -> str:
    """How much a refund is about, and of which payment."""
    of_name = next((payment for payment, one in order.record.refunds if one.name == name), order.record.counted)
    payment = order.record.payment(ref) if ref is not None else of_name
    if payment is None:
        return said or "the money"
    refund, price, left = payment.find(name), order.record.price, (payment.amount or 0) - payment.given_back
    amount = (refund.amount or 0) if refund is not None else price * units if price and units else left
    if payment.amount is None or (units and price is None):
        said = said or "the money"
    return f"{said or money.written(amount, payment.currency)} of payment {payment.ref}"


def _told(order: Order) -> str:
    ref = f", {order.record.ref}" if order.record.ref else ""
    return f"{order.id.name} ({order.state}, {order.quantity} for {order.buyer or 'nobody'}{ref})"


def _done(answer: Answer, order: Order, as_json: bool, well: tuple[str, ...]) -> None:
    if as_json:
        from app.orders.view import row

        print_json({"outcome": answer.outcome, **row(order)})
    else:
        typer.echo(f"{answer.outcome}: {_told(order)}")
    raise typer.Exit(0 if answer.outcome in well else 1)


def _print(found: list[Order], as_json: bool) -> None:
    if as_json:
        from app.orders.view import row

        print_json([row(order) for order in found])
    else:
        from app.cli import order_tables

        order_tables.print_orders(found)
