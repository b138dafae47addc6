"""A run: servers, two instances of which one is killed now and then, the bank, the payers; and the verdict."""

import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from app.orders import Order, OrderState
from app.payments.reconcile import Movement, MovementKind, Reconciliation
from app.sale import EVERYTHING
from app.settings import PREFIX, Settings
from app.stock.registry import MYSQL, REDIS
from app.wiring import Sale, open_sale
from lab.cents.bank import BAD_DAYS, Bank
from lab.cents.payers import CURRENCY, PRICE, SECRET, TOKEN, Fate, Payers
from lab.demo.stage import Instance
from lab.servers import EtcdMember, MariaDB, Postgres, Valkey
from lab.servers.process import free_port
from lab.torture.books import journal_of
from lab.torture.history import Entry

_HOLD_S: Final = 6.0
_BAD: Final = 0.35  # share of the bank's answers
_AT_ONCE: Final = 40
_KILL_EVERY_S: Final = (3.0, 6.0)
SETTLED_WITHIN_S: Final = 60.0
_SHOWN_MAX: Final = 10


class _Planted(Instance):
    """An instance with a bug."""

    def __init__(self, port: int, env: dict[str, str], bug: str) -> None:
        super().__init__(port, env)
        self._argv = lambda _: [sys.executable, "-m", "lab.cents", "serve", bug, str(port)]


def _settings(etcd: EtcdMember, store_url: str, bank: Bank) -> dict[str, str]:
    return {
        "LOCK": f"etcd://{etcd.endpoint.removeprefix('http://')}",
        "LOCK_TTL_S": "3",
        "STORE": store_url,
        "ADMIN_TOKEN": TOKEN,
        "PAYMENTS_SECRET": SECRET,
        "REFUNDS": bank.url,
        "REFUNDS_PER_MINUTE": "100000",
        "WEBHOOK_TIMEOUT_MS": "1000",
        "GRACE_S": "0",
        "AUDIT_INTERVAL_S": "1",
        "LOG_LEVEL": "error",
    }


def _store_server(name: str) -> Valkey | MariaDB | Postgres:
    if name == REDIS:
        return Valkey()
    return MariaDB(durable=True) if name == MYSQL else Postgres(durable=True)


async def run(payments: int, seed: int, bug: str = "", store_name: str = REDIS) -> list[str]:
    """Return what is wrong with the books in the end."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    bank = Bank(lambda: dice.choice(list(BAD_DAYS)) if dice.random() < _BAD else "", late_s=1.5)
    await bank.open()
    with ExitStack() as stack:
        etcd, store = EtcdMember(), _store_server(store_name)
        for server in (etcd, store):
            await asyncio.to_thread(stack.enter_context, server)
        variables = _settings(etcd, store.url, bank)
        env = {PREFIX + name: value for name, value in variables.items()}
        own: dict[str, Any] = {name.lower(): value for name, value in variables.items() if name != "REFUNDS"}
        instances = [_Planted(free_port(), env, bug) for _ in range(2)]
        async with open_sale(Settings(_env_file=None, instance="judge", port=free_port(), **own)) as sale:
            terms: Any = {"price": PRICE, "currency": CURRENCY, "hold_s": _HOLD_S, "pay_s": _HOLD_S}
            await sale.stock.set_stock("lamp", payments * 6, terms=terms)
            for one in instances:
                await asyncio.to_thread(stack.enter_context, one)
            payers = Payers([one.url for one in instances], bank, seed, _HOLD_S)
            over = asyncio.Event()
            killing = asyncio.create_task(_kill(instances, dice, over))
            try:
                await _visit(payers, payments)
                await payers.tell_what_was_asked_for()
            finally:
                over.set()
                await killing
                await payers.close()
            bank.manner = lambda: ""
            orders = await _settled(sale)
            books, told = _books(bank, orders), await journal_of(sale.store, "lamp")
            found = [*_verdict(bank, payers.fates, orders), *map(str, books.differences()), *_added_up(books, told)]
            found += (await sale.audit("lamp")).violations
    await bank.close()
    return found


async def _visit(payers: Payers, count: int) -> None:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one() -> None:
        async with room:
            await payers.visit()

    await asyncio.gather(*(one() for _ in range(count)))


async def _kill(instances: list[_Planted], dice: random.Random, over: asyncio.Event) -> None:
    """Kill an instance now and then, whatever it does just then, and start it again; until it is over."""
    for one in itertools.cycle(instances):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), dice.uniform(*_KILL_EVERY_S))
        if over.is_set():
            return
        await asyncio.to_thread(one.kill)
        await asyncio.sleep(dice.uniform(0, 1))
        await asyncio.to_thread(one.start)


async def _settled(sale: Sale) -> list[Order]:
    """All orders, as soon as nothing is owed and nothing is held any more, or the time is over."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        orders = [order async for page in sale.orders.pages(None, EVERYTHING) for order in page.orders]
        open_ = [one for one in orders if one.record.needs_attention or one.state is OrderState.HELD]
        if not open_ or time.monotonic() > deadline:
            return orders
        await asyncio.sleep(0.5)


def _verdict(bank: Bank, fates: list[Fate], orders: list[Order]) -> Iterator[str]:
    """Yield what is wrong: of each buyer's money as much is left as should be, and both books say the same."""
    by_id = {str(order.id): order for order in orders}
    for fate in fates:
        order, paid = by_id.get(fate.hold), [bank.payments[ref] for ref in fate.refs]
        net = sum(one.amount - one.given_back for one in paid)
        if order is None:
            yield f"{fate.way}: hold {fate.hold} is gone"
            continue
        right = fate.net if not fate.either or order.state is OrderState.CONFIRMED else 0
        name = order.id.name
        if fate.way == "pays wrongly" and order.state is OrderState.CONFIRMED:
            right = PRICE * order.quantity
        if net != right:
            yield f"{fate.way}: {net} cents of order {name} are kept, and {right} should be"
        if order.record.needs_attention:
            yield f"{fate.way}: order {name} still needs an operator"
        for one in paid:
            if one.given_back > one.amount:
                yield f"{fate.way}: {one.ref} was given back {one.given_back} of {one.amount}"


def _books(bank: Bank, orders: list[Order]) -> Reconciliation:
    books = Reconciliation()
    for payment in bank.payments.values():
        about = payment.ref, MovementKind.CHARGE, payment.amount, payment.currency, payment.ref
        books.add_movement(Movement(*about))
        for refund in payment.refunds:
            if refund["status"] != "failed":
                line = payment.ref, MovementKind.REFUND, refund["amount"], payment.currency, refund["id"]
                books.add_movement(Movement(*line))
    for order in orders:
        books.add_order(order)
    return books


def _added_up(books: Reconciliation, told: list[Entry]) -> Iterator[str]:
    """Yield what is otherwise by the changes that the events tell than by the orders, and by the bank."""
    moved = Counter[str]()
    for change in itertools.chain.from_iterable(one.facts.get("changes", ()) for one in told):
        moved.update({name: one for name, one in change.items() if name != "currency"})  # there is only one
    totals = books.totals[CURRENCY]
    there = {"paid": totals.charged, "given_back": totals.refunded, "owed": 0, "disputed": 0}
    here = {name: getattr(totals.here, name) for name in there}
    if not moved == here == there:
        yield f"the events add up to {dict(moved)}, the orders to {here}, and the bank has {there}"


def shown(found: list[str]) -> list[str]:
    """The first lines of a verdict."""
    more = len(found) - _SHOWN_MAX
    return [*found[:_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]
