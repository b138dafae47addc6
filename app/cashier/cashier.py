"""The cashier: the one instance that asks the payment provider for the refunds that are owed."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from app.cashier.provider import Became, Provider, Result, Unanswered, Wish
from app.errors import EXPECTED
from app.forever import end, run_forever
from app.locks.fallback import degraded
from app.orders import (
    Event,
    EventKind,
    GivenBack,
    Incident,
    Order,
    PaymentRefund,
    RefundState,
    RequestRefund,
)
from app.payments import Kind
from app.payments.shares import commands
from app.sale import Shop
from app.stock import Level, StockStore
from app.telemetry.observer import Observer
from fencelock import AsyncLocks

_log = logging.getLogger(__name__)

BY: Final = "the cashier"  # no operator's name: theirs have no blanks
_AGAIN_S: Final = 1.0
_LOOK_EVERY_S: Final = 1.0
_PAGE: Final = 500
_SKUS_AT_ONCE: Final = 100
_REST: Final = 20  # times as long as it worked, while buyers wait here: as the auditor
_IDLE_REST: Final = 2
_REST_MAX_S: Final = 2.0
_FIRST_WAIT_S: Final = 2.0
_STUCK_WAIT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 600.0
_ASK_AGAIN_S: Final = 3600.0  # what the shop has accepted, and never reported
_MINUTE_S: Final = 60.0
_LOOKED_AT_ONCE: Final = 200  # orders of an item
_OPEN: Final = (RefundState.DUE, RefundState.ASKED, RefundState.FAILED)


@dataclass(slots=True)
class _Journal:
    """An item's journal, as far as it was read.

    `owing`: when to look at an order of which something is owed (monotonic), by its number; `failed`: how many of its
    refunds didn't work; `stuck`: why nothing can be done for an order.
    """

    last: Event | None = None
    owing: dict[str, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)


class Cashier:
    """A candidate for the cashier's office, and the cashier once it has the lock. Lives on one event loop.

    `lock`: the lock's name; `per_minute`: the most refunds in a minute; `busy`: whether buyers, who go first, wait
    here.
    """

    def __init__(
        self,
        locks: AsyncLocks,
        lock: str,
        shop: Shop,
        store: StockStore,
        observer: Observer,
        provider: Provider,
        *,
        per_minute: int,
        busy: Callable[[], bool],
    ) -> None:
        self._locks = locks
        self._lock = lock
        self.shop = shop
        self.store = store
        self.observer = observer
        self.provider = provider
        self.per_minute = per_minute
        self.busy = busy
        self._office: _Office | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Stand for the office."""
        standing = run_forever(self._stand, every_s=_AGAIN_S, log=_log, what="making refunds")
        self._task = asyncio.get_running_loop().create_task(standing, name="cashier")

    async def close(self) -> None:
        """Give the office up. A refund that is on its way is asked for again by the next cashier."""
        if self._task is not None:
            await end(self._task)
        await self.provider.close()

    @property
    def figures(self) -> dict[str, float]:
        """Figures for `/metrics`: whether this instance is the cashier, and what waits."""
        office = self._office
        waits = (office.waiting, office.failed) if office is not None else (0, 0)
        return {"in_office": office is not None, "waiting": waits[0], "failed": waits[1]}

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator, in sentences."""
        office, found = self._office, []
        if office is not None and office.failed:
            found.append(f"{office.failed} refunds didn't work: `seckill orders list --state attention`")
        if office is not None and office.stuck:
            found.append(f"refunds of {len(office.stuck)} orders can't be made: {office.stuck[0]}")
        if office is not None and office.closed:
            found.append(f"no refund gets through: {office.closed}")
        return found

    async def _stand(self) -> None:
        async with self._locks.lock(self._lock).holding(cancel_on_lost=True) as grant:
            if degraded(self._locks):
                return  # a fallback gives everybody a grant
            self._office = _Office(self, lambda: grant.lost)
            _log.info("this instance makes the refunds, at %s", self.provider.where)
            try:
                await run_forever(self._office.round, every_s=_LOOK_EVERY_S, log=_log, what="making refunds")
            finally:
                self._office = None


class _Office:
    """The cashier's work under one grant."""

    def __init__(self, cashier: Cashier, lost: Callable[[], bool]) -> None:
        self._cashier = cashier
        self._store, self._shop = cashier.store, cashier.shop
        self._lost = lost
        self._journals: dict[str, _Journal] = {}
        self._tries: dict[str, int] = {}  # by the key of a wish whose outcome is not known yet
        self._accepted: dict[str, float] = {}  # by the refund's name, when to ask again (monotonic)
        self._made: deque[float] = deque()  # when the last ones were asked for (monotonic)
        self._closed_until = 0.0
        self.closed = ""

    @property
    def waiting(self) -> int:
        """The number of orders of which something is owed."""
        return sum(len(one.owing) for one in self._journals.values())

    @property
    def failed(self) -> int:
        """The number of refunds that didn't work."""
        return sum(sum(one.failed.values()) for one in self._journals.values())

    @property
    def stuck(self) -> list[str]:
        """Why nothing can be done for some orders."""
        return [why for one in self._journals.values() for why in one.stuck.values()]

    async def round(self) -> None:
        """Read what has come to the journals, and do what is owed."""
        skus = await self._store.items()
        for sku in self._journals.keys() - set(skus):
            del self._journals[sku]
        for first in range(0, len(skus), _SKUS_AT_ONCE):
            began = time.monotonic()
            levels = await self._store.levels(skus[first : first + _SKUS_AT_ONCE])
            await self._rest(began)
            for sku, level in levels.items():
                if isinstance(level, Level):
                    try:
                        await self._serve(sku, level, self._journals.setdefault(sku, _Journal()))
                    except EXPECTED as error:
                        _log.debug("refunds of %s: %s", sku, error)

    async def _serve(self, sku: str, level: Level, journal: _Journal) -> None:
        """Make the refunds of an item."""
        await self._read(sku, level, journal)
        now = time.monotonic()
        for number in islice([number for number, due in journal.owing.items() if due <= now], _LOOKED_AT_ONCE):
            if self._lost():
                return
            try:
                wait_s, order = await self._look(sku, number, journal)
            except _StuckError:
                continue
            journal.failed.pop(number, None)
            states = [one.state for _, one in order.record.refunds] if order is not None else []
            if not states:
                journal.owing.pop(number, None)
                continue
            if failed := states.count(RefundState.FAILED):
                journal.failed[number] = failed
            del journal.owing[number]  # behind the others: those behind one that can't be helped have their turn
            journal.owing[number] = time.monotonic() + wait_s

    async def _look(self, sku: str, number: str, journal: _Journal) -> tuple[float, Order | None]:
        """Make the refunds of an order; one that can't be made stops no other. Returns when to look again."""
        try:
            order = await self._store.order(sku, number)
            wait_s = await self._order(order) if order is not None else 0.0
            journal.stuck.pop(number, None)
            return wait_s, await self._store.order(sku, number)
        except EXPECTED as error:
            journal.stuck[number] = str(error)
            _log.debug("refunds of order %s of %s: %s", number, sku, error)
        except Exception as error:
            journal.stuck[number] = f"unexpected {type(error).__name__}"
            _log.exception("unexpected error in the refunds of order %s of %s", number, sku)
        del journal.owing[number]
        journal.owing[number] = time.monotonic() + _STUCK_WAIT_S
        raise _StuckError

    async def _read(self, sku: str, level: Level, journal: _Journal) -> None:
        """Note the orders of which something may be owed, by what is new in the journal."""
        if journal.last is not None and level.last_entry != journal.last.entry:
            order = await self._store.order(sku, journal.last.order.number)
            if order is None or order.id != journal.last.order:
                journal.last = None  # a new sale
                for of_order in (journal.owing, journal.failed, journal.stuck):
                    of_order.clear()
        while level.last_entry is not None and level.last_entry != (journal.last and journal.last.entry):
            began = time.monotonic()
            after = journal.last.entry if journal.last else None
            page = await self._store.journal(sku, after=after, until=level.last_entry, limit=_PAGE)
            for event in page:
                if _is_news(event, journal):
                    journal.owing[event.order.number] = 0.0
                journal.last = event
            await self._rest(began)
            if not page:
                return

    async def _order(self, order: Order) -> float:
        """Request and make the refunds of an order, one by one. Returns for how long to leave it alone, in seconds."""
        waits_s = [_ASK_AGAIN_S]
        for ref in [payment.ref for payment in order.record.payments if any(map(_is_to_make, payment.open))]:
            if (wait_s := self._until_room_s()) > 0:
                return wait_s
            try:
                order = await self._compared(order, ref)
            except Unanswered as error:
                if error.result.became is not Became.ACCEPTED:
                    return self._put_off(Wish(order.id, ref, ref, None, None), error.result)
                continue  # one of this payment is under way there: a callback will tell
            payment = order.record.payment(ref)
            for one in filter(_is_to_make, payment.open if payment is not None else ()):
                if (wait_s := self._until_room_s()) > 0:
                    return wait_s
                if (wait_s := self._accepted.get(one.name, 0.0) - time.monotonic()) > 0:
                    waits_s.append(wait_s)  # the shop has it, and something else of the order is news
                    continue
                answer = await self._shop.submit(RequestRefund(*order.id, one.name, BY))
                now = answer.record.payment(ref) if answer.record else None
                found = now.find(one.name) if now is not None else None
                if found is None or found.state is not RefundState.ASKED:
                    if found != one:
                        waits_s.append(0.0)  # it has changed meanwhile; else others come first
                    continue
                currency = one.currency or (payment and payment.currency) or order.record.currency
                waits_s.append(await self._make(Wish(order.id, one.name, ref, one.amount, currency, order.record.ref)))
        return min(waits_s)

    async def _compared(self, order: Order, ref: str) -> Order:
        """Note what the provider has given back of a payment, and we don't know: of a store that came back older, or of
        a callback that is on its way. It may be of another order that has the payment, too.
        """
        made = await self._cashier.provider.made(ref)
        orders = sorted(await self._shop.paid_with(ref), key=lambda one: one.id) if made else []
        for told in made or ():
            known = (payment.find(None, told.refund_id) for some in orders for payment in some.record.payments)
            gone = [one.state is RefundState.BOUNCED for one in known if one is not None]
            if gone and all(one is (told.kind is Kind.REFUND_FAILED) for one in gone):
                continue
            for command in commands(orders, told):
                answer = await self._shop.submit(command)
                orders = [
                    replace(one, record=answer.record) if answer.record and one.id == answer.order else one
                    for one in orders
                ]
        return next((one for one in orders if one.id == order.id), order)

    def _until_room_s(self) -> float:
        """In how many seconds the next refund may be asked for."""
        now = time.monotonic()
        while self._made and self._made[0] <= now - _MINUTE_S:
            self._made.popleft()
        full = len(self._made) >= self._cashier.per_minute
        return max(self._closed_until - now, self._made[0] + _MINUTE_S - now if full else 0.0)

    async def _make(self, wish: Wish) -> float:
        """Ask the provider, and note what became of it. Returns after how many seconds to ask again."""
        self._made.append(time.monotonic())
        result = await self._cashier.provider.refund(wish)
        self._cashier.observer.refunded(str(result.became))
        order = wish.order
        about: dict[str, Any] = {"refund_id": result.refund_id, "name": wish.name}
        match result.became:
            case Became.DONE:
                amount = wish.amount if result.amount is None else result.amount
                await self._shop.submit(GivenBack(*order, wish.payment_ref, BY, amount, whole=amount is None, **about))
            case Became.REFUSED:
                _log.error("the refund of %s for order %s has failed: %s", wish.payment_ref, order.name, result.why)
                about |= {"why": result.why, "by": BY}
                await self._shop.submit(Incident(*order, EventKind.REFUND_FAILED, wish.payment_ref, **about))
            case Became.ACCEPTED:
                self._accepted[wish.name] = time.monotonic() + _ASK_AGAIN_S
                return _ASK_AGAIN_S
            case Became.UNKNOWN:
                return self._put_off(wish, result)
        self.closed = ""
        self._accepted.pop(wish.name, None)
        self._tries.pop(wish.key, None)
        self._tries.pop(wish._replace(name=wish.payment_ref).key, None)  # of the look before it
        return 0.0

    def _put_off(self, wish: Wish, result: Result) -> float:
        tries = self._tries[wish.key] = self._tries.get(wish.key, 0) + 1
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries - 1, 30))
        about = wish.payment_ref, wish.order.name, result.why, wait_s
        _log.warning("the refund of %s for order %s: %s; again in %.0f s", *about)
        if result.closed:
            self.closed, self._closed_until = result.why, time.monotonic() + wait_s
        return wait_s

    async def _rest(self, began: float) -> None:
        worked_s = time.monotonic() - began
        await asyncio.sleep(min(_REST_MAX_S, worked_s * (_REST if self._cashier.busy() else _IDLE_REST)))


class _StuckError(Exception):
    """Nothing can be done for an order at the moment."""


def _is_news(event: Event, journal: _Journal) -> bool:
    """Return whether an order is to be looked at, as something may be owed, or no more. Our own events are no news."""
    if event.facts.get("by") == BY:
        return False
    owing = any(one["state"] in _OPEN for one in event.facts.get("refunds", ()))
    return owing or event.order.number in journal.owing


def _is_to_make(one: PaymentRefund) -> bool:
    """Whether the provider is to be asked for a refund; one that has failed waits for an operator."""
    return one.state in (RefundState.DUE, RefundState.ASKED)
