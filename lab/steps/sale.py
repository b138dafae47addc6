"""Operations of the sale, and what must hold after each: the books add up, and say what everybody was told."""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from app.errors import EXPECTED, FenceRefused, NotDecided, OutcomeUnknown, StockError, UnknownItem
from app.journals import rank
from app.orders import ERASED, Answer, Cancel, Command, Confirm, Extend, Hold, OrderId, OrderState, Purchase, Refund
from app.orders.offer import Offer
from app.outbox.state import Wish
from app.settings import Settings, load
from app.stock import Level, Outbox
from app.stock.redis import storage as redis_storage
from app.stock.sql import storage as sql_storage
from app.wiring import Sale, open_sale
from fencelock import LockError
from lab.bank import KEY, Bank, Payment
from lab.steps.play import BETWEEN as BETWEEN_ANY
from lab.steps.play import PATIENCE_S, TIMEOUT_S, TTL_S, Play
from lab.steps.protocols import Http
from lab.steps.systems import ACTOR
from lab.torture import judge_events, judge_money
from lab.torture.books import journal_of, kept_of
from lab.torture.history import UNKNOWN, Delivery, Entry, FinalState, Flow, History, HttpCall, Item, Kept, Left, Setup
from lab.torture.judge_money import Money
from lab.torture.receiver import SECRET, EventReceiver
from lab.torture.run import is_sent

PRICE: Final = 499
_UNITS: Final = 5
_OFFER: Final = Offer(_UNITS + 1, {"limit_per_buyer": 9})
_EVENTS: Final = 3  # of an order that is paid twice
_OFFICES: Final = ("sender", "auditor", "cashier")
_OWED: Final = {"pi_part": 100, "pi_second": 2 * PRICE}  # in the operation that gives back
_LOOK_EVERY_S: Final = 0.05
_EXPIRY_S: Final = 1.0  # between two looks at holds that have run out
_SETTLED_S: Final = 0.3
_PURCHASE_S: Final = 4.0
_DIRECT_S: Final = 5.0  # of a call without a wire
_LATE_S: Final = 3.0  # on a busy machine
NOT_DECIDED: Final = "urn:seckill:not-decided"
_VERBS: Final[dict[type[Any], str]] = {
    Purchase: "buy",
    Hold: "hold",
    Confirm: "confirm",
    Extend: "extend",
    Cancel: "cancel",
    Refund: "refund",
}
# What is wrong in the books of any sale; and what is wrong with what was told of this one.
_OF_BOOKS: Final = (
    judge_money.units_in_one_place,
    judge_money.seen_as_it_was,
    judge_money.orders_live_once,
    judge_money.records_agree,
    judge_money.lines_stand_together,
)
_OF_ANSWERS: Final = (
    judge_money.answers_true,
    judge_money.payments_kept,
    judge_money.first_come,
    judge_money.wanted,
    judge_money.nobody_is_cut_short,
    judge_money.limits_kept,
    judge_money.nobody_is_overtaken,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """What the actor does, behind what was there before.

    `anew`: it begins another sale, which knows no answers; `hooks`: events are sent to a receiver; `bank`: refunds are
    made at a provider; `office`: the actor stands for offices, and does in them what concerns all items; `basket`: it
    is about two items; `long`: it has so many steps that not all faults are tried; `patience_s`: for how long a request
    may wait; `look`: what must be so in the end, if that can be said.
    """

    act: "Callable[[SalePlay], Awaitable[None]]"
    before: "Callable[[SalePlay], Awaitable[None]]"
    anew: bool = False
    hooks: bool = False
    bank: bool = False
    office: bool = False
    basket: bool = False
    long: bool = False
    patience_s: float = _PURCHASE_S
    between: tuple[str, ...] = ("hold", "restock", "new sale")
    look: "Callable[[SalePlay], Awaitable[None]] | None" = None

    @property
    def wants_own(self) -> bool:
        """Whether it needs servers of its own, as it is about all items that are on them."""
        return self.hooks or self.bank or self.office


@dataclass(slots=True)
class Known:
    """What the actor and its forerunners know: answers, orders, and what is to be asked again."""

    calls: list[HttpCall] = field(default_factory=list)
    orders: list[OrderId] = field(default_factory=list)
    asked: list[Command] = field(default_factory=list)
    anew: bool = False
    done: bool = False
    added: int = 0
    adds: bool = False  # one more, perhaps
    noted: int = 0  # the number of the sender's last note
    wishes: list[str] = field(default_factory=list)  # behind which entries events were wished for again
    deliveries: list[Delivery] = field(default_factory=list)
    payments: dict[str, Payment] = field(default_factory=dict)  # at the bank


class SalePlay(Play):
    """A run of an operation of the sale: A, the actor's instance, goes through the wire, and B's does not."""

    allowed = EXPECTED
    outlives_its_loop = True  # nobody closes the sale of a loop that was closed under it

    @property
    def wants_own(self) -> bool:  # type: ignore[override]
        """See `Play`."""
        return OPERATIONS[self.case.operation].wants_own

    @property
    def sku(self) -> str:
        """The item."""
        return "item" + self.name.replace("/", "-")

    @property
    def skus(self) -> list[str]:
        """The item, and the other one of a basket."""
        return [self.sku, self.other] if self.operation.basket else [self.sku]

    @property
    def other(self) -> str:
        """The other item of a basket, whose name comes later."""
        return f"{self.sku}-too"

    async def set_up(self) -> None:
        """See `Play`."""
        self.known = Known()
        self.operation = OPERATIONS[self.case.operation]
        lock, store = self.systems["lock"], self.systems["store"]
        self.url = await lock.tapped(self.wire, "lock"), await store.tapped(self.wire, "store")
        await self._open_others()
        if self.operation.hooks:
            self.tapped_hook = await self.wire.tap("hook", Http, self.hook)
        if self.operation.bank:
            self.tapped_bank = await self.wire.tap("bank", Http, int(self.bank.url.rpartition(":")[2]))
        await self.operation.before(self)

    async def _open_others(self) -> None:
        """Open all but the actor: the receiver of events, the bank with the payments that it knows, and B."""
        receiver = EventReceiver((), 0, time.monotonic, self.known.deliveries.append, self._answers)
        self.hook = await receiver.open(["127.0.0.1"])
        if self.operation.bank:
            self.bank = Bank(late_s=2 * TIMEOUT_S)
            self.bank.payments = self.known.payments
            await self.bank.open()
        self._b = AsyncExitStack()
        settings = self._settings("b", self.systems["lock"].direct, self.systems["store"].direct)
        self.b = await self._b.enter_async_context(open_sale(settings))

    def _settings(
        self, who: str, lock: str, store: str, hook: int | None = None, bank: int | None = None, *, audits: bool = False
    ) -> Settings:
        """Return the settings of an instance; with a `hook` it sends events to that port, with a `bank` refunds."""
        refunds = {} if bank is None else {"refunds": f"stripe://{KEY}@127.0.0.1:{bank}", "refunds_per_minute": 100_000}
        sends: dict[str, Any] = (
            refunds if hook is None else {"webhook_url": f"http://127.0.0.1:{hook}/", "webhook_secret": SECRET}
        )
        return load(
            **sends,
            webhook_timeout_ms=int(TIMEOUT_S * 1000),
            webhook_retry_s=0.1,
            lock=lock,
            store=store.replace("redis+fair", "redis"),
            instance=who,
            lock_prefix=self.name,
            lock_ttl_s=TTL_S,
            lock_timeout_ms=int((TIMEOUT_S if who == ACTOR else _DIRECT_S) * 1000),
            store_timeout_ms=int((TIMEOUT_S if who == ACTOR else _DIRECT_S) * 1000),
            purchase_timeout_ms=int((self.operation.patience_s if who == ACTOR else _PURCHASE_S) * 1000),
            drain_timeout_s=1,
            audit_interval_s=0 if hook is None and not audits else 1,
            grace_s=0,
            sold_out_ttl_ms=0,
        )

    async def open(self) -> None:
        """See `Play`."""
        self._a = AsyncExitStack()
        self.a = await self._a.enter_async_context(open_sale(self._settings(ACTOR, *self.url)))

    async def operate(self) -> None:
        """See `Play`."""
        await self.operation.act(self)
        self.known.done = True

    async def shut(self) -> None:
        """See `Play`."""
        await self._a.aclose()

    async def end_leases(self) -> None:
        """See `Play`."""
        for name in (self.b.shop.lock_name(self.sku), *(f"{self.name}/!{one}" for one in _OFFICES)):
            await self.systems["lock"].end_leases(self.wire, name)

    async def between(self, what: str) -> None:
        """See `Play`: B's lock is free, as A's lease is over."""
        await self.end_leases()
        with contextlib.suppress(*EXPECTED):
            await BETWEEN[what](self)

    def remember(self) -> Any:
        """See `Play`."""
        return self.known

    def recall(self, known: Any) -> None:
        """See `Play`."""
        self.known = known
        self.operation = OPERATIONS[self.case.operation]

    # -- what is asked -------------------------------------------------------------------------------------------------

    async def ask(self, sale: Sale, command: Command, *, gone: bool = False) -> Answer:
        """Ask an instance, and note what it says. Raises what `Shop.submit` raises."""
        sent_at = time.monotonic()

        def told(status: int, **fields: Any) -> None:
            about: dict[str, Any] = {"order": None, "wish": "", "buyer": "", "quantity": 1}
            if isinstance(command, Purchase | Hold):
                wish = getattr(command, "ref", None) or command.key or command.buyer or ""
                about |= {"wish": wish, "buyer": command.buyer, "quantity": command.quantity}
                if lines := dict(getattr(command, "lines", ())):
                    about["items"] = {command.sku: command.quantity, **lines}
            else:
                about["order"] = str(OrderId(command.sku, command.number, command.secret))  # type: ignore[union-attr]
            about |= {name: getattr(command, name, None) for name in ("key", "amount", "restock", "line", "units")}
            about["wait"] = getattr(command, "wait", False)
            about["payment"] = getattr(command, "payment_ref", None)
            who = ACTOR if sale is not self.b else "b"
            at = {"sent_at": sent_at, "done_at": time.monotonic(), "instance": who, "status": status}
            call = HttpCall(**{"verb": _VERBS[type(command)], "sku": command.sku} | about | at | fields)
            self.known.calls.append(call)

        told(0, error="not answered yet")
        try:
            answer = await sale.shop.submit(command, gone=lambda: gone)
        except OutcomeUnknown:
            told(503, retry_after="1", error=UNKNOWN)
            raise
        except EXPECTED:
            told(503, retry_after="1", error=NOT_DECIDED)
            raise
        except BaseException:
            told(0, error="cancelled")
            raise
        told(
            200,
            outcome=str(answer.outcome),
            told=str(answer.order) if answer.order else None,
            refund=answer.refund,
            refused=answer.line,
            replayed=answer.replayed,
        )
        return answer

    async def do(self, command: Command) -> None:
        """Ask the actor's instance for what the operation is about."""
        self.known.asked.append(command)
        await self.ask(self.a, command)

    async def until_decided(self, sale: Sale, command: Command, what: str) -> Answer | None:
        """Ask again and again until there is an answer; that none comes is a violation."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.ask(sale, command)
            except NotDecided as error:
                last: Exception = error
            except EXPECTED as error:
                last = error
                await asyncio.sleep(_LOOK_EVERY_S)
            if time.monotonic() > until:
                self.violated(f"{what}: {last!r}")
                return None

    # -- the judge -----------------------------------------------------------------------------------------------------

    async def judge(self) -> None:  # noqa: PLR0912 - a promise each
        """See `Play`."""
        self.wire.heal()
        if self.killed:
            await self._open_others()
        if self.operation.look is not None:
            await self.operation.look(self)
        lives = True
        try:
            await self.b.store.level(self.sku)
        except StockError:
            lives = False  # it was removed
        if lives:
            await self.until_decided(self.b, self._another("b"), "another instance can't sell")
        self.let_go.set()
        if any(fault in ("late", "after the lease") for _, fault in self._strikes):
            await asyncio.sleep(_SETTLED_S)
        if lives and not (self.operation.anew or self.known.anew):
            await self._the_same_again()
        if lives and self.alive:

            async def again() -> None:
                await self.until_decided(self.a, self._another("a"), "the instance itself can't sell any more")

            if self.closed:
                await self._reopen()
            try:
                await self.on_actor(again, 2 * PATIENCE_S)
            except TimeoutError:
                self.violated("the instance itself hangs")
        await self._expire()
        if self.operation.hooks:
            await self._stays_noted()
            await self.send_the_rest()
        if self.operation.office:
            await self.audit_the_rest()
        if self.operation.bank:
            await self.give_back_the_rest()
            self._each_once()
        await self._books()
        if self.alive:
            await self.close_actor()
        await self._b.aclose()
        if not any(fault in ("late", "after the lease") for _, fault in self._strikes):
            # Else: a place that came late into a queue is thrown out by the next one who comes.
            await self.nothing_is_left(self.systems["lock"])

    @property
    def undisturbed(self) -> bool:
        """Whether the operation was done, and no other instance or operator came between."""
        return self.known.done and not any(fault.startswith(BETWEEN_ANY) for _, fault in self._strikes)

    async def is_gone(self) -> None:
        """Look whether the item is unknown."""
        if not self.undisturbed:
            return
        try:
            found = await self.b.store.level(self.sku)
        except UnknownItem:
            return
        self.violated(f"the item was removed, and has {found.stock} units")

    def _another(self, who: str) -> Command:
        if self.operation.before is _unpriced:
            return Purchase(1, self.sku, f"another {who}", f"another-{who}")
        return Hold(1, self.sku, f"another {who}", f"another-{who}", f"another {who}")

    async def _reopen(self) -> None:
        self._a = AsyncExitStack()

        async def reopen() -> None:
            self.a = await self._a.enter_async_context(open_sale(self._settings(ACTOR, *self.url)))

        await self.on_actor(reopen)

    async def _the_same_again(self) -> None:
        for command in self.known.asked:
            key = getattr(command, "key", None)
            told = [one for one in self.known.calls if (one.status, one.instance, one.key) == (200, ACTOR, key)]
            before = told[0] if told else None
            by = self.b
            keyed = getattr(command, "key", None) is not None
            if not keyed and isinstance(command, Purchase | Hold):
                continue
            answer = await self.until_decided(by, command, "the same again is never decided")
            if answer is None or before is None or not keyed or before.outcome == "paused":
                continue  # nothing was decided: see docs/http.md
            order = str(answer.order) if answer.order else None
            if (str(answer.outcome), order) != (before.outcome, before.told):
                self.violated(
                    f"told {before.outcome} {before.told}, and with the same key {answer.outcome} {answer.order}"
                )

    async def _expire(self) -> None:
        """Nothing stays held whose time is up, and who waits is next."""
        for sku in self.skus:
            with contextlib.suppress(*EXPECTED):
                level = await self.b.store.level(sku)
                due = level.due_in_s is not None and level.due_in_s <= 0
                if due or 0 < level.wants <= level.stock:
                    await self.b.shop.give_back(sku)
                    level = await self.b.store.level(sku)
                    if level.due_in_s is not None and level.due_in_s <= 0:
                        self.violated("a hold that has run out is not given back")

    async def _books(self) -> None:
        store, levels = self.b.store, dict[str, Level]()
        journal, kept = list[Entry](), list[Kept]()
        anew = self.operation.anew or self.known.anew
        for sku in self.skus:
            try:
                levels[sku] = await store.level(sku)
            except StockError as error:
                if not anew:
                    self.violated(f"the item can't be read: {error}")
                return
            journal += await journal_of(store, sku)
            kept += await kept_of(store, sku, journal)
        flows = tuple(Flow(Item(sku, level.initial or 0), 0, 0, 0, PRICE) for sku, level in levels.items())
        calls = [call for call in self.known.calls if call.sku in self.skus]
        setup = Setup((), 2, TTL_S, PATIENCE_S, "", "", "fence", 0, (), flows=flows)
        history = History(setup, calls=[] if anew else calls, deliveries=self.known.deliveries)
        left = [Left(sku, one.stock, one.held, one.lucky, one.initial) for sku, one in levels.items()]
        end = FinalState(tuple(left), journal=tuple(journal), kept=tuple(kept))
        if self.operation.hooks and not anew:
            for violation in chain(judge_events.all_delivered(history, end), judge_events.in_order(history)):
                self.violated(violation.replace(self.sku, "ITEM"))
        money = Money(history, end)
        for rule in _OF_BOOKS if anew else (*_OF_BOOKS, *_OF_ANSWERS):
            for violation in rule(money):
                self.violated(violation.replace(self.sku, "ITEM"))
        for violation in () if anew else _undecided(calls, journal):
            self.violated(violation)
        for sku, level in levels.items():
            due = None if level.due_in_s is None else round((level.now or 0.0) + level.due_in_s, 3)
            held = [one.shown for one in kept if one.order.startswith(f"{sku}~") and one.shown["state"] == "held"]
            if due != (ends := min((round(one["pay_by"], 3) for one in held), default=None)):
                self.violated(f"the first hold runs out at {ends}, and the store has {due}")
        initial = levels[self.sku].initial
        units = {_UNITS + self.known.added, _UNITS + self.known.added + self.known.adds}
        if not anew and initial not in units:
            self.violated(f"there are {initial} units, and {units} should be")

    def forget(self) -> None:
        """See `Play`."""
        del self.a, self._a

    # -- events --------------------------------------------------------------------------------------------------------

    def _answers(self) -> int:
        """Refuse the second event, which then comes again."""
        return 500 if len(self.known.deliveries) == 1 else 200

    @property
    def taken(self) -> set[str]:
        """The events that were delivered."""
        return {one.id for one in self.known.deliveries if one.status == 200}

    async def send_the_rest(self) -> None:
        """Another instance sends what is left, and all has come in the end."""
        settings = self._settings("c", self.systems["lock"].direct, self.systems["store"].direct, self.hook)
        async with open_sale(settings, with_auditor=True) as sale:
            await self.until_sent(sale)

    async def until_sent(self, sale: Sale) -> None:
        """Wait until all events were delivered, and noted as such; that they never are is a violation."""
        until = time.monotonic() + TTL_S + PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(*EXPECTED):
                if await is_sent(sale, [self.sku]):
                    return
            await asyncio.sleep(_LOOK_EVERY_S)
        self.violated("events are never delivered")

    async def _stays_noted(self) -> None:
        """A note of the sender that was long on its way takes the place of no later one."""
        with contextlib.suppress(StockError):
            number = (await self.outbox()).number
            if number < self.known.noted and not self.known.anew:
                self.violated(f"the sender's note {number} has come after its note {self.known.noted}")

    async def outbox(self) -> Outbox:
        """Return the sender's last note, and what it is asked for."""
        found = (await self.b.store.outbox([self.sku]))[self.sku]
        if isinstance(found, StockError):
            raise found
        return found

    async def audit_the_rest(self) -> None:
        """Another instance stands for the offices, and finds that all is well."""
        settings = self._settings("c", self.systems["lock"].direct, self.systems["store"].direct, audits=True)
        async with open_sale(settings, with_auditor=True) as sale:
            await self.until_audited(sale, "c")

    async def until_audited(self, sale: Sale, auditor: str) -> None:
        """Wait for the verdict of an auditor, who must be content; that none comes is a violation."""
        assert sale.auditor is not None  # noqa: S101 - the settings want one
        until = time.monotonic() + TTL_S + PATIENCE_S
        while (told := sale.auditor.verdict) is None or told.auditor != auditor:
            if time.monotonic() > until:
                self.violated(f"{auditor} never audits")
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        if told.violations or told.missing:
            self.violated(f"the auditor finds {told.violations}, and misses {told.missing}")

    async def until_given_back(self) -> None:
        """Wait until nothing is held any more; that it stays so is a violation."""
        until = time.monotonic() + TTL_S + PATIENCE_S
        while (await self.b.store.level(self.sku)).held:
            if time.monotonic() > until:
                self.violated("a hold that has run out is not given back, and nobody buys")
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def give_back_the_rest(self) -> None:
        """Another instance gives back what is left; that it never does is a violation."""
        port = int(self.bank.url.rpartition(":")[2])
        settings = self._settings("c", self.systems["lock"].direct, self.systems["store"].direct, bank=port)
        async with open_sale(settings, with_auditor=True) as sale:
            until = time.monotonic() + TTL_S + 2 * PATIENCE_S
            while not (settled := await self.is_settled(sale)) and time.monotonic() < until:  # noqa: ASYNC110 - the store
                await asyncio.sleep(_LOOK_EVERY_S)
        if not settled:
            self.violated("what is owed is never given back")

    def _each_once(self) -> None:
        for ref, payment in self.bank.payments.items():
            if (given := [one["amount"] for one in payment.refunds]) != [_OWED[ref]]:
                self.violated(f"{ref} was given back by {given}")

    async def is_settled(self, sale: Sale) -> bool:
        """Return whether nothing of this item is owed any more."""
        with contextlib.suppress(*EXPECTED):
            found = await sale.store.orders(self.sku, after=None, limit=100)
            return all(not one.record.needs_attention for one in found)
        return False

    # -- what the operations are made of -------------------------------------------------------------------------------

    @property
    def order(self) -> OrderId:
        """The order that was there before."""
        return self.known.orders[0]

    async def stock(self, **terms: Any) -> None:
        """Put the item on sale; both, if there are two."""
        for sku in self.skus:
            await self.b.stock.set_stock(sku, _UNITS, new_sale=True, terms=terms)

    async def hold(self, ref: str = "first") -> None:
        """Have a hold."""
        lines = ((self.other, 1),) if self.operation.basket else ()
        answer = await self.ask(self.b, Hold(2, self.sku, "ann", f"key-{ref}", ref, proven=True, lines=lines))
        assert answer.order is not None  # noqa: S101 - it was held
        self.known.orders.append(answer.order)

    def confirm(self, payment: str = "payment", key: str | None = None) -> Confirm:
        """Pay the order."""
        return Confirm(*self.order, payment, (2 + self.operation.basket) * PRICE, "EUR", key)


def _undecided(calls: list[HttpCall], journal: list[Entry]) -> Iterator[str]:
    """Nobody who was told that nothing was decided has anything, unless they have asked again."""
    bought = Counter(one.buyer for one in journal if one.number == 1)
    for call in calls:
        if call.verb in ("buy", "hold") and call.status == 503:
            took_s = call.done_at - call.sent_at
            if took_s > _PURCHASE_S + _LATE_S:
                yield f"{call.buyer} was told nothing for {took_s:.1f} s"
            again = [one for one in calls if one.buyer == call.buyer and one.sent_at > call.sent_at]
            if call.error == NOT_DECIDED and not again and bought[call.buyer]:
                yield f"{call.buyer} was told that nothing was decided, and has an order"
    if bought["gone"]:
        yield "somebody who had hung up, and could never know, was sold to"


# -- what was there before ---------------------------------------------------------------------------------------------

_PRICED: Final = {"price": PRICE, "currency": "EUR", "hold_s": 60.0, "pay_s": 60.0}
_BRIEF: Final = _PRICED | {"hold_s": 1.0, "pay_s": 1.0}


async def _unpriced(play: SalePlay) -> None:
    await play.stock()


async def _priced(play: SalePlay) -> None:
    await play.stock(**_PRICED)


async def _held(play: SalePlay) -> None:
    await _priced(play)
    await play.hold()


async def _run_out(play: SalePlay) -> None:
    await play.stock(**_BRIEF)
    await play.hold()
    while ((await play.b.store.level(play.sku)).due_in_s or 0) > 0:  # noqa: ASYNC110 - by the store's clock
        await asyncio.sleep(_LOOK_EVERY_S)


async def _expired(play: SalePlay) -> None:
    await _run_out(play)
    await play.b.shop.give_back(play.sku)


async def _none_left(play: SalePlay) -> None:
    await _expired(play)
    await play.ask(play.b, Hold(_UNITS, play.sku, "all", "key-all", "all", proven=True))


async def _paid(play: SalePlay) -> None:
    await _held(play)
    await play.ask(play.b, play.confirm())


async def _paid_by_some(play: SalePlay) -> None:
    """More than one part of an erasure: of two entries each, lest there have to be thousands."""
    vars(redis_storage)["_COPY"] = vars(sql_storage)["_PAGE"] = 2
    await _paid(play)
    for number, buyer in enumerate(("ann", "ann", "bea")):
        await play.ask(play.b, Hold(1, play.sku, buyer, f"key-{number}", f"ref-{number}"))


async def _owed(play: SalePlay) -> None:
    await _paid(play)
    await play.ask(play.b, play.confirm("second"))


async def _beside(play: SalePlay) -> None:
    """Somebody holds one of the items, and not the other."""
    await _priced(play)
    await play.ask(play.b, Hold(2, play.other, "cy", "key-cy", "cy", proven=True))


async def _in_line(play: SalePlay) -> None:
    """All units are held, two of them by Ann, and two buyers wait."""
    await _held(play)
    await play.ask(play.b, Hold(_UNITS - 2, play.sku, "all", "key-all", "all", proven=True))
    for buyer, units in (("wil", 1), ("xia", 2)):
        wait = Hold(units, play.sku, buyer, f"key-{buyer}", buyer, proven=True, wait=True)
        answer = await play.ask(play.b, wait)
        assert answer.order is not None  # noqa: S101 - it waits
        play.known.orders.append(answer.order)


async def _in_line_behind_what_ran_out(play: SalePlay) -> None:
    """Both units that Ann held have run out, and were not given back; two buyers wait for them."""
    await play.stock(**_BRIEF)
    await play.ask(play.b, Hold(_UNITS - 2, play.sku, "all", "key-all", "all", proven=True))
    await play.ask(play.b, Confirm(*(await _order_of(play, "all")), "all", (_UNITS - 2) * PRICE, "EUR"))
    await play.hold()
    for buyer, units in (("wil", 1), ("xia", 2)):
        await play.ask(play.b, Hold(units, play.sku, buyer, f"key-{buyer}", buyer, proven=True, wait=True))
    while ((await play.b.store.level(play.sku)).due_in_s or 0) > 0:  # noqa: ASYNC110 - by the store's clock
        await asyncio.sleep(_LOOK_EVERY_S)


async def _order_of(play: SalePlay, buyer: str) -> OrderId:
    return next(one.id for one in await play.b.store.orders(play.sku, limit=100) if one.buyer == buyer)


async def _owed_in_two_ways(play: SalePlay) -> None:
    """A second payment, and a part of the first one."""
    await play.stock(price=PRICE, currency="EUR")
    await play.hold()
    for ref in _OWED:
        play.bank.take(ref, 2 * PRICE)
        await play.ask(play.b, play.confirm(ref))
    part = Refund(*play.order, restock=False, payment_ref="pi_part", amount=100, message="part", later=True)
    await play.ask(play.b, part)


# -- what is done ------------------------------------------------------------------------------------------------------


async def _purchase(play: SalePlay) -> None:
    """Buy a unit, with a key."""
    await play.do(Purchase(1, play.sku, "bob", "bobs-key"))


async def _purchase_keyless(play: SalePlay) -> None:
    """Buy a unit, without a key."""
    await play.do(Purchase(1, play.sku, "bob"))


async def _two_buyers(play: SalePlay) -> None:
    """Two buy, the second one while the first one is served; both are in one batch, or in two."""
    await asyncio.gather(
        play.do(Purchase(1, play.sku, "bob", "bobs-key")), play.do(Purchase(2, play.sku, "cy", "cys-key"))
    )


async def _impatient(play: SalePlay) -> None:
    """Two buy without a key, and can't wait for an answer of the store that is late."""

    async def later() -> None:
        await asyncio.sleep(play.operation.patience_s / 3)
        await play.do(Purchase(1, play.sku, "cy"))

    ends = await asyncio.gather(play.do(Purchase(1, play.sku, "bob")), later(), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _hang_up(play: SalePlay) -> None:
    """One buys without a key, and hangs up at once; another one waits behind them."""
    gone = asyncio.create_task(play.ask(play.a, Purchase(1, play.sku, "gone"), gone=True))
    try:
        await play.do(Purchase(1, play.sku, "bob", "bobs-key"))
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def _stop(play: SalePlay) -> None:
    """Stop an instance while it sells."""
    async with open_sale(play._settings(ACTOR, *play.url)) as sale:
        command = Purchase(1, play.sku, "bob", "bobs-key")
        play.known.asked.append(command)
        asked = asyncio.create_task(play.ask(sale, command))
        await asyncio.sleep(0)
    with contextlib.suppress(*EXPECTED):
        await asked


async def _hold(play: SalePlay) -> None:
    """Hold two units."""
    await play.do(Hold(2, play.sku, "bob", "bobs-key", "bobs", proven=True))


async def _hold_basket(play: SalePlay) -> None:
    """Hold two items in one order."""
    lines = ((play.other, 2),)
    await play.do(Hold(2, play.sku, "bob", "bobs-key", "bobs", proven=True, lines=lines))


async def _cancel_line(play: SalePlay) -> None:
    """Give back the second line, and then the rest."""
    await play.do(Cancel(*play.order, key="lines-key", message="line", line=play.other))
    await play.do(Cancel(*play.order, key="cancels-key"))


async def _cancel_first_line(play: SalePlay) -> None:
    """Give back the first line, of which the order keeps no units."""
    await play.do(Cancel(*play.order, key="lines-key", message="line", line=play.sku))


async def _refund_line(play: SalePlay) -> None:
    """Give back the money for the second line, and sell its unit again."""
    await play.do(Refund(*play.order, restock=True, message="line", line=play.other))


async def _wait(play: SalePlay) -> None:
    """Get in line, behind two others."""
    await play.do(Hold(1, play.sku, "bob", "bobs-key", "bobs", proven=True, wait=True))


async def _leave(play: SalePlay) -> None:
    """Give up the first place in line."""
    await play.do(Cancel(*play.known.orders[1], key="cancels-key"))


async def _extend(play: SalePlay) -> None:
    """Go to pay."""
    await play.do(Extend(*play.order))


async def _confirm(play: SalePlay) -> None:
    """Pay."""
    await play.do(play.confirm(key="payments-key"))


async def _wrong_amount(play: SalePlay) -> None:
    """Pay too little, and give up what is held: the money is owed."""
    await play.do(Confirm(*play.order, "too-little", 1, "EUR", "little-key"))
    await play.do(Cancel(*play.order, key="cancels-key"))


async def _cancel(play: SalePlay) -> None:
    """Give back what is held."""
    await play.do(Cancel(*play.order, key="cancels-key"))


async def _refund(play: SalePlay) -> None:
    """Give the money back, and sell the units again."""
    await play.do(Refund(*play.order, restock=True))


async def _refund_owed(play: SalePlay) -> None:
    """Give back a second payment."""
    await play.do(Refund(*play.order, restock=False, payment_ref="second"))


async def _expire(play: SalePlay) -> None:
    """Give back what has run out."""
    await play.a.shop.give_back(play.sku)


async def _erase(play: SalePlay) -> None:
    """Remove a buyer's name."""
    play.known.anew = True  # of an erased name no answer can be judged
    await play.a.orders.erase(play.sku, "ann", by="operator", wait_s=_PURCHASE_S)


async def _restock(play: SalePlay) -> None:
    """Add a unit."""
    play.known.adds = True
    try:
        await play.a.stock.set_stock(play.sku, 1, terms={"limit_per_buyer": 9}, add=True, wait_s=_PURCHASE_S)
    except (LockError, FenceRefused):  # so it is said not to be done
        play.known.adds = False
        raise
    play.known.added, play.known.adds = play.known.added + 1, False


async def _load(play: SalePlay) -> None:
    """Put on sale what a file says: a unit more."""
    play.known.adds = True
    await play.a.stock.put_on_sale(play.sku, _OFFER, by="operator")
    play.known.added, play.known.adds = 1, False


async def _new_sale(play: SalePlay) -> None:
    """Forget all orders, and begin anew."""
    await play.a.stock.set_stock(play.sku, 3, new_sale=True, wait_s=_PURCHASE_S)


async def _sweep(play: SalePlay) -> None:
    """Begin anew, and wait until the store has deleted what there was."""
    await _new_sale(play)
    until = time.monotonic() + TTL_S
    while "ann" in await play.systems["store"].all_of(play.sku) and time.monotonic() < until:  # noqa: ASYNC110 - the store
        await asyncio.sleep(_LOOK_EVERY_S)


async def _remove(play: SalePlay) -> None:
    """Remove the item."""
    await play.a.stock.remove(play.sku, wait_s=_PURCHASE_S)


async def _remove_and_set(play: SalePlay) -> None:
    """Remove the item, and set it again."""
    await _remove(play)
    await play.a.stock.set_stock(play.sku, 3, wait_s=_PURCHASE_S)


async def _look(play: SalePlay) -> None:
    """Audit the item, look at an order and its life."""
    audit = await play.a.audit(play.sku)
    if audit.violations:
        play.violated(f"the audit finds {audit.violations}")
    found = [await play.a.shop.order(play.order), *await play.a.store.orders(play.sku, limit=_UNITS)]
    if odd := [one for one in found if one is not None and one.state is OrderState.SOLD]:
        play.violated(f"what is held, and paid then, is told as {odd[0].state}")


async def _ask_again(play: SalePlay) -> None:
    """Wish for the events behind the last one, of which none was sent; then send."""
    wishes = play.known.wishes
    wishes.append((await play.on_stage(lambda: play.b.store.level(play.sku))).last_entry or "")
    await Wish(wishes[0]).ask(play.a.store, play.sku)
    wish = (await play.on_stage(play.outbox)).wish  # nothing, if it was granted, or another sale has begun
    if wish and (since := Wish.from_text(wish).since) != min(wishes, key=rank):
        play.violated(f"of the wishes {wishes} only {since!r} is known")
    await _deliver(play)


async def _deliver(play: SalePlay) -> None:
    """Start an instance that sends events and audits; stop it when all were sent."""
    async with open_sale(play._settings(ACTOR, *play.url, play.tapped_hook), with_auditor=True):
        until = time.monotonic() + TTL_S + PATIENCE_S  # then the judge says what is missing
        while len(play.taken) < _EVENTS and not play.known.anew and time.monotonic() < until:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(_LOOK_EVERY_S)
    with contextlib.suppress(StockError):
        play.known.noted = (await play.on_stage(play.outbox)).number


async def _audit(play: SalePlay) -> None:
    """Start an instance that audits; stop it when it has."""
    async with open_sale(play._settings(ACTOR, *play.url, audits=True), with_auditor=True) as sale:
        await play.until_audited(sale, ACTOR)


async def _run_holds_out(play: SalePlay) -> None:
    """Start an instance that gives back what has run out; stop it when it has done so twice, while nobody buys."""
    async with open_sale(play._settings(ACTOR, *play.url), with_auditor=True):
        await play.on_stage(play.until_given_back)
        await asyncio.sleep(2 * _EXPIRY_S)  # it has seen then that nothing is held
        await play.on_stage(lambda: play.hold("second"))
        await play.on_stage(play.until_given_back)


async def _give_back(play: SalePlay) -> None:
    """Start an instance that makes the refunds; stop it when all were made."""
    settings = play._settings(ACTOR, *play.url, bank=play.tapped_bank)
    async with open_sale(settings, with_auditor=True) as sale:
        while not play.known.anew and not await play.is_settled(sale):  # noqa: ASYNC110 - the store
            await asyncio.sleep(_LOOK_EVERY_S)


# -- what is so then ---------------------------------------------------------------------------------------------------


async def _is_erased(play: SalePlay) -> None:
    """The name is nowhere any more, and the others are; an erasure that was not done can be done again."""
    play.known.anew = True
    if not play.known.done:
        await play.b.orders.erase(play.sku, "ann", by="b", wait_s=_PURCHASE_S)
    stored = await play.systems["store"].all_of(play.sku)
    if found := re.search(r".{0,80}\bann\b", stored):
        play.violated(f"the name is still there: {found[0]}")
    found_in = {event.buyer for event in await journal_of(play.b.store, play.sku)}
    if "ann" in found_in or (play.undisturbed and not {ERASED, "bea"} <= found_in):
        play.violated(f"the events are of {found_in}")


async def _is_loaded(play: SalePlay) -> None:
    """A load that was not done can be done again."""
    if not play.known.done:
        await play.b.stock.put_on_sale(play.sku, _OFFER, by="b")
    play.known.added, play.known.adds = 1, False


async def _is_swept(play: SalePlay) -> None:
    """A name can be erased, however far the sweeper has come."""
    with contextlib.suppress(UnknownItem):
        await play.b.orders.erase(play.sku, "ann", by="b", wait_s=_PURCHASE_S)
    if found := re.search(r".{0,80}\bann\b", await play.systems["store"].all_of(play.sku)):
        play.violated(f"the name is still there: {found[0]}")


async def _is_anew(play: SalePlay) -> None:
    """All units are there, and an old key begins a new order."""
    if not play.undisturbed:
        return
    level = await play.b.store.level(play.sku)
    if (has := (level.stock, level.held, level.lucky)) != (3, 0, 0):
        play.violated(f"the new sale begins with {has}")
    old = Hold(2, play.sku, "ann", "key-first", "first", proven=True)
    answer = await play.until_decided(play.b, old, "nothing is decided in the new sale")
    if answer is not None and (answer.replayed or answer.order in (None, play.order)):
        play.violated(f"an old key is answered with {answer.outcome} {answer.order}")


_OF_BASKETS: Final = ("hold", "hold the other", "cancel", "confirm", "expire", "restock")
_ORDERS: Final = ("hold", "cancel", "confirm", "expire", "new sale", "erase", "restock")
OPERATIONS: Final[dict[str, Operation]] = {
    "purchase": Operation(_purchase, _unpriced, between=("buy", "restock", "new sale", "pause")),
    "purchase without a key": Operation(_purchase_keyless, _unpriced, between=("buy", "new sale")),
    "two buyers": Operation(_two_buyers, _unpriced, between=("buy", "new sale")),
    "impatient": Operation(_impatient, _unpriced, patience_s=TIMEOUT_S / 2, between=("buy",)),
    "hang up": Operation(_hang_up, _unpriced, between=("buy",)),
    "stop": Operation(_stop, _unpriced, between=("buy", "new sale")),
    "hold": Operation(_hold, _priced, between=("hold", "restock", "new sale")),
    "extend": Operation(_extend, _held, between=_ORDERS),
    "confirm": Operation(_confirm, _held, between=(*_ORDERS, "the same payment")),
    "pay late": Operation(_confirm, _expired, between=("hold", "new sale", "confirm")),
    "pay when none is left": Operation(_confirm, _none_left, between=("confirm", "restock")),
    "pay a wrong amount": Operation(_wrong_amount, _held, between=("confirm", "expire")),
    "cancel": Operation(_cancel, _held, between=_ORDERS),
    "refund": Operation(_refund, _paid, between=("hold", "refund", "new sale", "erase")),
    "refund what is owed": Operation(_refund_owed, _owed, between=("refund", "new sale")),
    "expire": Operation(_expire, _run_out, between=("confirm", "cancel", "expire", "new sale")),
    "erase": Operation(
        _erase, _paid_by_some, between=("hold", "ann holds", "new sale", "erase", "erase bea"), look=_is_erased
    ),
    "hold a basket": Operation(_hold_basket, _beside, basket=True, between=("hold", "hold the other", "restock")),
    "pay for a basket": Operation(_confirm, _held, basket=True, between=_OF_BASKETS),
    "cancel a line": Operation(_cancel_line, _held, basket=True, between=_OF_BASKETS),
    "cancel the first line": Operation(_cancel_first_line, _held, basket=True, between=("confirm", "expire")),
    "refund a line": Operation(_refund_line, _paid, basket=True, between=("hold the other", "refund")),
    "expire a basket": Operation(
        _expire, _run_out, basket=True, between=("confirm", "cancel", "expire", "expire the other")
    ),
    "get in line": Operation(_wait, _in_line, between=("cancel", "hold", "wait", "restock")),
    "who waits is next": Operation(_cancel, _in_line, between=("hold", "wait", "leave", "restock", "confirm")),
    "leave the line": Operation(_leave, _in_line, between=("cancel", "wait", "restock", "leave")),
    "expire, and who waits is next": Operation(
        _expire, _in_line_behind_what_ran_out, between=("hold", "wait", "confirm", "expire")
    ),
    "restock": Operation(_restock, _held, between=("hold", "new sale", "restock")),
    "load": Operation(_load, _held, between=("hold", "load", "new sale"), look=_is_loaded),
    "sweep": Operation(
        _sweep, _paid, anew=True, long=True, between=("new sale", "remove and set again", "erase"), look=_is_swept
    ),
    "new sale": Operation(
        _new_sale, _paid, anew=True, between=("hold", "new sale", "confirm", "refund"), look=_is_anew
    ),
    "remove": Operation(_remove, _unpriced, anew=True, between=("buy", "remove", "new sale"), look=SalePlay.is_gone),
    "remove and set again": Operation(_remove_and_set, _unpriced, anew=True, between=("buy", "remove", "new sale")),
    "deliver": Operation(_deliver, _owed, hooks=True, between=("hold", "refund", "new sale", "erase", "send")),
    "give back": Operation(_give_back, _owed_in_two_ways, bank=True, between=("hold", "give back")),
    "send again": Operation(_ask_again, _owed, hooks=True, between=("send again", "send", "new sale")),
    "audit": Operation(_audit, _owed, office=True, between=("hold", "refund", "new sale", "erase", "audit")),
    "run out": Operation(_run_holds_out, _run_out, office=True, between=("confirm", "hold", "audit")),
    "look": Operation(_look, _paid, between=("new sale", "refund")),
}


async def _b_buys(play: SalePlay) -> None:
    await play.ask(play.b, Purchase(1, play.sku, "eve", "eves-key"))


async def _b_holds(play: SalePlay) -> None:
    await play.ask(play.b, Hold(1, play.sku, "eve", "eves-key", "eves", proven=True))


async def _b_holds_the_other(play: SalePlay) -> None:
    await play.ask(play.b, Hold(_UNITS - 2, play.other, "eve", "eves-key", "eves", proven=True))


async def _b_waits(play: SalePlay) -> None:
    await play.ask(play.b, Hold(1, play.sku, "eve", "eves-key", "eves", proven=True, wait=True))


async def _b_leaves(play: SalePlay) -> None:
    await play.ask(play.b, Cancel(*play.known.orders[1]))


async def _b_expires_the_other(play: SalePlay) -> None:
    await play.b.shop.give_back(play.other)


async def _b_confirms(play: SalePlay) -> None:
    await play.ask(play.b, play.confirm("another"))


async def _b_hears_it_too(play: SalePlay) -> None:
    await play.ask(play.b, play.confirm())


async def _b_cancels(play: SalePlay) -> None:
    await play.ask(play.b, Cancel(*play.order))


async def _b_refunds(play: SalePlay) -> None:
    await play.ask(play.b, Refund(*play.order, restock=True))


async def _b_expires(play: SalePlay) -> None:
    await play.b.shop.give_back(play.sku)


async def _b_erases(play: SalePlay) -> None:
    play.known.anew = True
    await play.b.orders.erase(play.sku, "ann", by="b", wait_s=_PURCHASE_S)


async def _b_restocks(play: SalePlay) -> None:
    await play.b.stock.set_stock(play.sku, 1, add=True, wait_s=_PURCHASE_S)
    play.known.added += 1


async def _b_pauses(play: SalePlay) -> None:
    for text in ("a moment", ""):
        await play.b.stock.set_stock(play.sku, 0, add=True, terms={"paused": text or None}, wait_s=_PURCHASE_S)


async def _b_sells_anew(play: SalePlay) -> None:
    play.known.anew = True
    await play.b.stock.set_stock(play.sku, 4, new_sale=True, wait_s=_PURCHASE_S)


async def _b_erases_bea(play: SalePlay) -> None:
    await play.b.orders.erase(play.sku, "bea", by="b", wait_s=_PURCHASE_S)


async def _b_holds_for_ann(play: SalePlay) -> None:
    await play.ask(play.b, Hold(1, play.sku, "ann", "anns-last", "anns-last"))


async def _b_loads(play: SalePlay) -> None:
    await play.b.stock.put_on_sale(play.sku, _OFFER, by="b")
    play.known.added = 1


async def _b_asks_again(play: SalePlay) -> None:
    await Wish("").ask(play.b.store, play.sku)
    play.known.wishes.append("")


async def _b_sets_again(play: SalePlay) -> None:
    play.known.anew = True
    await play.b.stock.remove(play.sku, wait_s=_PURCHASE_S)
    await play.b.stock.set_stock(play.sku, 4, wait_s=_PURCHASE_S)
    await play.ask(play.b, Purchase(1, play.sku, "eve", "eves-key"))


async def _b_removes(play: SalePlay) -> None:
    play.known.anew = True
    await play.b.stock.remove(play.sku, wait_s=_PURCHASE_S)


BETWEEN: Final[dict[str, Callable[[SalePlay], Awaitable[None]]]] = {
    "buy": _b_buys,
    "hold": _b_holds,
    "hold the other": _b_holds_the_other,
    "wait": _b_waits,
    "leave": _b_leaves,
    "expire the other": _b_expires_the_other,
    "confirm": _b_confirms,
    "cancel": _b_cancels,
    "refund": _b_refunds,
    "expire": _b_expires,
    "erase": _b_erases,
    "restock": _b_restocks,
    "pause": _b_pauses,
    "new sale": _b_sells_anew,
    "remove": _b_removes,
    "remove and set again": _b_sets_again,
    "the same payment": _b_hears_it_too,
    "erase bea": _b_erases_bea,
    "ann holds": _b_holds_for_ann,
    "load": _b_loads,
    "send again": _b_asks_again,
    "audit": SalePlay.audit_the_rest,
    "send": SalePlay.send_the_rest,
    "give back": SalePlay.give_back_the_rest,
}
