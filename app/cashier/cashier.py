"""The cashier: the one instance that asks the payment provider for the refunds that are owed.

    journals --> orders that owe --> compare with the provider --> `refund_requested` --> ask it --> note the result

A refund's way through one round (`app.orders.account` has its states):

    due --noted in the journal--> asked --done--------> given
     ^                              |---accepted------> asked: a callback, or the shop, reports it later
     |                              |---no answer-----> asked: the same request again, after 2 s to ten minutes
     +---- an operator's retry -----+---refused-------> failed: it waits for an operator

Trust: the lock `!cashier` only keeps two cashiers from working side by side. Exactly-once rests on the refund's name,
which is in the journal before the provider is asked, and is the key of every request: a cashier that was paused and the
next one ask for one refund. Before each request the provider is asked for its refunds of the payment, as it may forget
keys, and as the store may be older than the provider.

Failures: after a death the next cashier reads the journals, and begins at the comparison. An order that can't be helped
stops no other one; a provider that refuses everybody closes the office for a while. `per_minute` bounds a mistake.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from typing_extensions import override

from app.cashier.provider import Became, Provider, RefundWish, Result, Unanswered
from app.errors import EXPECTED
from app.journals import EntryMissing, Journals, pages
from app.office import Office, holding
from app.orders import Event, EventKind, GivenBack, Incident, Order, PaymentRefund, RefundState, RequestRefund
from app.payments import Kind
from app.payments.shares import commands
from app.sale import Shop
from app.stock import Level
from app.telemetry.observer import Observer
from fencelock import AsyncLocks, Grant

_log = logging.getLogger(__name__)

BY: Final = "the cashier"  # unlike any operator's name, which has no blanks
_FIRST_WAIT_S: Final = 2.0
_STUCK_WAIT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 600.0
_ASK_AGAIN_S: Final = 3600.0  # a refund that the shop has accepted, and never reported
_MINUTE_S: Final = 60.0
_LOOKED_AT_ONCE: Final = 200  # orders of an item
_OPEN: Final = (RefundState.DUE, RefundState.ASKED, RefundState.FAILED)


@dataclass(slots=True)
class _Owing:
    """An order of which something is owed: when to look at it (monotonic), how many of its refunds have failed, and why
    nothing can be done for it, "" if it can.
    """

    due: float = 0.0
    failed: int = 0
    stuck: str = ""


@dataclass(slots=True)
class _Journal:
    """An item's journal, as far as it was read. `last`: the last entry; `owing`: the orders, by their numbers."""

    last: str = ""
    owing: dict[str, _Owing] = field(default_factory=dict)


class Cashier(Office[Grant, "_Refunding"]):
    """A candidate for the cashier's office, and the cashier once it has the lock.

    `lock`: the lock's name; `per_minute`: the most refunds in a minute.
    """

    def __init__(
        self,
        locks: AsyncLocks,
        lock: str,
        shop: Shop,
        journals: Journals,
        observer: Observer,
        provider: Provider,
        *,
        per_minute: int,
    ) -> None:
        super().__init__("cashier", lambda: holding(locks, lock))
        self.shop = shop
        self.journals = journals
        self.observer = observer
        self.provider = provider
        self.per_minute = per_minute

    @override
    def begin(self, grant: Grant) -> "_Refunding":
        return _Refunding(self, grant)

    @override
    async def close(self) -> None:
        """Give the office up. A refund that is on its way is asked for again by the next cashier."""
        await super().close()
        await self.provider.close()

    @property
    @override
    def figures(self) -> dict[str, float]:
        owing = self.work.owing if self.work is not None else []
        failed = sum(one.failed for one in owing)
        return {"in_office": self.work is not None, "waiting": len(owing), "failed": failed}

    @property
    @override
    def warnings(self) -> list[str]:
        if self.work is None:
            return []
        found, owing = list[str](), self.work.owing
        if failed := sum(one.failed for one in owing):
            found.append(f"{failed} refunds didn't work: `seckill orders list --state attention`")
        if stuck := [one.stuck for one in owing if one.stuck]:
            found.append(f"refunds of {len(stuck)} orders can't be made: {stuck[0]}")
        if self.work.closed:
            found.append(f"no refund gets through: {self.work.closed}")
        return found


class _Refunding:
    """The cashier's work under one grant."""

    def __init__(self, cashier: Cashier, grant: Grant) -> None:
        self._cashier = cashier
        self._all, self._store, self._shop = cashier.journals, cashier.journals.store, cashier.shop
        self._grant = grant
        self._unread: set[str] = set()
        self._journals: dict[str, _Journal] = {}
        self._tries: dict[str, int] = {}  # tries, by the key of a refund whose outcome is not known yet
        self._accepted: dict[str, float] = {}  # by the refund's name, when to ask again (monotonic)
        self._made: deque[float] = deque()  # when the last refunds were requested (monotonic)
        self._closed_until = 0.0
        self.closed = ""

    @property
    def owing(self) -> list[_Owing]:
        """The orders of which something is owed."""
        return [one for journal in self._journals.values() for one in journal.owing.values()]

    async def run(self) -> None:
        """Read new entries of the journals, and make the refunds that are owed."""
        _log.info("refunds are made at %s", self._cashier.provider.where)
        with self._all.followed() as follower:
            while True:
                self._unread |= await follower.moved()
                for sku in list(self._unread):
                    if isinstance(level := self._all.levels.get(sku), Level):
                        with self._logged(sku):
                            await self._read(sku, level.last_entry, self._journals.setdefault(sku, _Journal()))
                            self._unread.discard(sku)
                    elif level is None:
                        self._journals.pop(sku, None)
                        self._unread.discard(sku)
                for sku, journal in list(self._journals.items()):
                    with self._logged(sku):
                        await self._serve(sku, journal.owing)

    @contextlib.contextmanager
    def _logged(self, sku: str) -> Iterator[None]:
        """Log an item's error, so that it doesn't stop the others."""
        try:
            yield
        except EXPECTED as error:
            _log.debug("refunds of %s: %s", sku, error)
        except Exception:
            _log.exception("unexpected error in the refunds of %s", sku)

    async def _serve(self, sku: str, owing: dict[str, _Owing]) -> None:
        """Make the refunds of an item that are due; an order for which none can be made stops no other."""
        now = time.monotonic()
        for number in islice([number for number, one in owing.items() if one.due <= now], _LOOKED_AT_ONCE):
            if self._grant.lost:
                return
            one = owing[number]
            try:
                order = await self._store.order(sku, number)
                wait_s = await self._order(order) if order is not None else 0.0
                order = await self._store.order(sku, number)
                states = [refund.state for _, refund in order.record.refunds] if order is not None else []
                one.failed, one.stuck = states.count(RefundState.FAILED), ""
            except EXPECTED as error:
                wait_s, states, one.stuck = _STUCK_WAIT_S, None, str(error)
                _log.debug("refunds of order %s of %s: %s", number, sku, error)
            except Exception as error:
                wait_s, states, one.stuck = _STUCK_WAIT_S, None, f"unexpected {type(error).__name__}"
                _log.exception("unexpected error in the refunds of order %s of %s", number, sku)
            one.due = time.monotonic() + wait_s
            del owing[number]
            if states != []:
                owing[number] = one  # behind the others, so that an order that can't be helped blocks none of them

    async def _read(self, sku: str, until: str | None, journal: _Journal) -> None:
        """Note the orders that may owe money, by the journal's new entries."""
        if journal.last == (until or ""):
            return
        try:
            async for some in pages(self._store, sku, journal.last, until=until, pace=self._all.pace):
                for event in some:
                    if _is_news(event, journal):
                        journal.owing.setdefault(event.order.number, _Owing()).due = 0.0
                    journal.last = event.entry
        except EntryMissing:  # a new sale, or a store that has come back older
            journal = self._journals[sku] = _Journal()
            await self._read(sku, until, journal)

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
                    return self._put_off(RefundWish(order.id, ref, ref, None, None), error.result)
                continue  # another refund of this payment is under way there: a callback will report it
            payment = order.record.payment(ref)
            for one in filter(_is_to_make, payment.open if payment is not None else ()):
                if (wait_s := self._until_room_s()) > 0:
                    return wait_s
                if (wait_s := self._accepted.get(one.name, 0.0) - time.monotonic()) > 0:
                    waits_s.append(wait_s)  # the shop has this request, and another part of the order has changed
                    continue
                answer = await self._shop.submit(RequestRefund(*order.id, one.name, BY))
                now = answer.record.payment(ref) if answer.record else None
                found = now.find(one.name) if now is not None else None
                if found is None or found.state is not RefundState.ASKED:
                    if found != one:
                        waits_s.append(0.0)  # the order has changed meanwhile; else others come first
                    continue
                currency = one.currency or (payment and payment.currency) or order.record.currency
                wish = RefundWish(order.id, one.name, ref, one.amount, currency, order.record.ref)
                waits_s.append(await self._make(wish))
        return min(waits_s)

    async def _compared(self, order: Order, ref: str) -> Order:
        """Note refunds of a payment that only the provider knows: after a restore, or before a callback arrives.

        They may belong to another order that has the payment, too.
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

    async def _make(self, wish: RefundWish) -> float:
        """Ask the provider for the refund, and note the result. Returns after how many seconds to ask again."""
        self._made.append(time.monotonic())
        result = await self._cashier.provider.refund(wish)
        self._cashier.observer.refunded(str(result.became))
        order, ref, refund_id, name = wish.order, wish.payment_ref, result.refund_id, wish.name
        match result.became:
            case Became.DONE:
                amount = wish.amount if result.amount is None else result.amount
                whole = amount is None
                await self._shop.submit(GivenBack(*order, ref, BY, amount, refund_id=refund_id, name=name, whole=whole))
            case Became.REFUSED:
                _log.error("the refund of %s for order %s has failed: %s", ref, order.name, result.why)
                failed = Incident(*order, EventKind.REFUND_FAILED, ref, refund_id=refund_id, name=name, by=BY)
                await self._shop.submit(failed._replace(why=result.why))
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

    def _put_off(self, wish: RefundWish, result: Result) -> float:
        tries = self._tries[wish.key] = self._tries.get(wish.key, 0) + 1
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries - 1, 30))
        about = wish.payment_ref, wish.order.name, result.why, wait_s
        _log.warning("the refund of %s for order %s: %s; again in %.0f s", *about)
        if result.closed:
            self.closed, self._closed_until = result.why, time.monotonic() + wait_s
        return wait_s


def _is_news(event: Event, journal: _Journal) -> bool:
    """Return whether the event may have changed the order's debts, so that the order must be read.

    Our own events are no news.
    """
    if event.facts.get("by") == BY:
        return False
    owing = any(one["state"] in _OPEN for one in event.facts.get("refunds", ()))
    return owing or event.order.number in journal.owing


def _is_to_make(one: PaymentRefund) -> bool:
    """Whether to ask the provider for a refund; a failed one waits for an operator."""
    return one.state in (RefundState.DUE, RefundState.ASKED)
