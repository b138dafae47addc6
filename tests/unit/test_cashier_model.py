"""The cashier beside a provider's books: no cent goes back twice, none that is owed stays, and the orders say the same.

The cashier is the program's, on a store in memory, with a provider that has bad days, on a clock that skips waits.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cashier import Cashier
from app.cashier.provider import Became, RefundWish, Result, Unanswered
from app.journals import Journals
from app.orders import Cancel, Command, Confirm, Hold, OrderId, Refund, RefundState, RequestRefund
from app.pace import Pace
from app.payments import Kind, Report
from app.payments.shares import commands
from app.telemetry.observer import Observer
from tests.harness.memory_store import MemoryServer
from tests.harness.till import Till
from tests.harness.virtual import VirtualLoop

START_S, PRICE, PER_MINUTE, LATE_S = 1_700_000_000.0, 5, 6, 5.0
PRICED, UNPRICED = "lamp", "zoo"


@dataclass(eq=False)
class Made:
    """A refund at the provider. `state`: done, waits (for its payer), or failed: it came back."""

    id: str
    name: str | None  # None: made by hand, in the provider's dashboard
    amount: int
    at: float
    state: str = "done"


@dataclass(eq=False)
class Payment:
    """Money that the provider took, and the sum that was ever to go back."""

    amount: int
    owed: int = 0
    made: list[Made] = field(default_factory=list)

    @property
    def given(self) -> int:
        return sum(one.amount for one in self.made if one.state != "failed")


class Bank:
    """A provider with a day of its own for all requests, and books. `lists`: it tells which refunds it has made."""

    where = "the bank"

    def __init__(self, loop: VirtualLoop, *, lists: bool) -> None:
        self.loop, self.lists, self.day, self.refuses = loop, lists, "", set[str]()
        self.payments: defaultdict[str, Payment] = defaultdict(lambda: Payment(0))
        self.answers: dict[str, tuple[float, Result]] = {}  # by key, and when
        self.asked: dict[str, RefundWish] = {}  # by key
        self.most, self.under_way, self.times, self.wrong = 0, set[str](), list[float](), list[str]()
        self.count = 0  # of requests

    def now(self) -> float:
        return START_S + self.loop.time()

    async def refund(self, wish: RefundWish) -> Result:
        now, self.count = self.loop.time(), self.count + 1
        self.times = [*(one for one in self.times if one > now - 59.9), now]
        self.ensure(len(self.times) <= self.most, "too many in a minute")
        self.ensure(self.asked.setdefault(wish.key, wish) == wish, f"one key is one request: {wish}")
        await asyncio.sleep(0.1)
        day = self.day
        if day == "lost" or wish.key in self.under_way:
            return Result(Became.UNKNOWN, "no answer")
        if day == "closed":
            return Result(Became.UNKNOWN, "the key is wrong", closed=True)
        if day == "late":
            self.under_way.add(wish.key)
            self.loop.call_later(LATE_S, self.serve, wish)
            return Result(Became.UNKNOWN, "no answer in time")
        result = self.serve(wish)
        return Result(Became.UNKNOWN, "no answer") if day == "answer lost" else result

    def serve(self, wish: RefundWish) -> Result:
        """Make the refund once by its key, while that is known."""
        self.under_way.discard(wish.key)
        _, known = self.answers.get(wish.key, (0.0, None))
        if known is not None:
            return known
        payment = self.payments[wish.payment_ref]
        amount = payment.amount - payment.given if wish.amount is None else wish.amount
        if wish.payment_ref in self.refuses or not 0 < amount <= payment.amount - payment.given:
            result = Result(Became.REFUSED, "disputed, or all of it went back")
            self.answers[wish.key] = self.loop.time(), result
            return result
        made = self.make(wish.payment_ref, amount, wish.name, "waits" if self.day == "waits" else "done")
        own = {"refund_id": made.id, "amount": amount} if self.lists else {}
        result = Result(Became.ACCEPTED if made.state == "waits" else Became.DONE, **own)  # type: ignore[arg-type]
        self.answers[wish.key] = self.loop.time(), result
        return result

    def forgets(self) -> None:
        """A day is over for all keys, but those of a moment ago."""
        self.answers = {key: one for key, one in self.answers.items() if one[0] > self.loop.time() - 1}

    def make(self, ref: str, amount: int, name: str | None = None, state: str = "done") -> Made:
        payment = self.payments[ref]
        number = sum(len(one.made) for one in self.payments.values())
        payment.made.append(Made(f"re_{number}", name, amount, self.now(), state))
        self.ensure(payment.given <= payment.owed, f"{payment.given} of {payment.owed} have gone back of {ref}")
        return payment.made[-1]

    def ensure(self, right: bool, what: str) -> None:
        """Note what is wrong, as the cashier goes on whatever is raised here."""
        self.wrong += [] if right else [what]

    def told(self, ref: str, one: Made) -> Report:
        kind = Kind.REFUND_FAILED if one.state == "failed" else Kind.REFUNDED
        own = (one.id, one.name) if self.lists else (None, one.name)
        about: dict[str, Any] = {"payment_ref": ref, "amount": one.amount, "currency": "EUR", "at": one.at}
        return Report(kind=kind, message=f"{one.id} {one.state}", refund_id=own[0], refund_name=own[1], **about)

    async def made(self, payment_ref: str) -> list[Report] | None:
        if not self.lists:
            return None
        await asyncio.sleep(0.1)
        if self.day in ("lost", "closed"):
            raise Unanswered(Result(Became.UNKNOWN, "no answer", closed=self.day == "closed"))
        made = self.payments[payment_ref].made
        if any(one.state == "waits" for one in made):
            raise Unanswered(Result(Became.ACCEPTED, "it waits for its payer"))
        return [self.told(payment_ref, one) for one in made]

    async def close(self) -> None:
        pass


class House:
    """The shop with its cashiers, its buyers, and an operator."""

    def __init__(self, loop: VirtualLoop, *, lists: bool) -> None:
        self.loop, self.bank = loop, Bank(loop, lists=lists)
        self.server = MemoryServer(self.bank.now)
        self.till = self.opened()
        self.orders: list[tuple[OrderId, str]] = []  # with a payment of each
        self.told: list[Command] = []  # by others than the cashier
        self.terms: list[tuple[Any, asyncio.Task[None], Journals]] = []
        self.backup: tuple[int, Callable[[], None]] | None = None

    def opened(self) -> Till:
        till = Till(self.server)
        till.store.storage.look_every_s = 1.0  # type: ignore[attr-defined]
        return till

    def begins(self) -> None:
        """A cashier is elected; one who was it before may still be at work."""
        nobody: Any = None
        journals, grant = Journals(self.till.store, Pace(lambda: False)), SimpleNamespace(lost=False)
        journals.start()
        more: Any = {"provider": self.bank, "per_minute": PER_MINUTE}
        cashier = Cashier(nobody, "cashier", self.till, journals, Observer(), **more)  # type: ignore[arg-type]
        work = cashier.work = cashier.begin(grant)  # type: ignore[arg-type]
        self.cashier, self.grant = cashier, grant
        self.terms.append((work, self.loop.create_task(work.run()), journals))
        self.bank.most = PER_MINUTE * len([one for _, one, _ in self.terms if not one.done()])

    async def ends(self) -> None:
        """The cashier dies, whatever it does."""
        for _, task, journals in self.terms:
            task.cancel()
            await asyncio.wait([task])
            await journals.close()
        self.bank.times.clear()

    async def tell(self, command: Command) -> str:
        self.told.append(command)
        return str((await self.till.submit(command)).outcome)

    async def holds(self, units: int, sku: str = PRICED) -> OrderId:
        order = (await self.till.submit(Hold(units, sku, f"b{len(self.orders)}"))).order
        assert order is not None
        return order

    async def pays(self, order: OrderId, ref: str, amount: int, *, owed: bool, said: int | None = -1) -> None:
        self.bank.payments[ref].amount += amount
        self.bank.payments[ref].owed += amount if owed else 0
        self.orders.append((order, ref))
        own = (amount, "EUR") if said == -1 else (None, None)
        await self.tell(Confirm(*order, ref, *own))

    async def owes(self, kind: str, units: int) -> None:
        """Money is owed: of a late payment of one order or two, of an amount that nobody has said, or of a second."""
        ref = f"pi_{len(self.orders)}"
        if kind == "second":
            order = await self.holds(units)
            await self.pays(order, ref, PRICE * units, owed=False)
            await self.pays(order, f"{ref}b", PRICE * units, owed=True)
        elif kind == "unknown":
            order = await self.holds(1, UNPRICED)
            await self.tell(Cancel(*order))
            await self.pays(order, ref, PRICE, owed=True, said=None)
        else:
            for sku in (PRICED, UNPRICED)[: 1 + (kind == "joint")]:
                order = await self.holds(units, sku)
                await self.tell(Cancel(*order))
                await self.pays(order, ref, PRICE * units, owed=True)

    async def refunds(self, kind: str, units: int, pick: int) -> None:
        """An operator wants an order's money to go back, all of it or a part, or some units."""
        if kind == "new" or not self.orders:
            order, ref = await self.holds(3), f"pi_{len(self.orders)}"
            await self.pays(order, ref, 3 * PRICE, owed=False)
        order, ref = self.orders[-1 - pick % len(self.orders)]
        found = await self.till.order(order)
        payment = found.record.counted if found is not None else None
        if payment is None:
            return
        own = self.bank.payments[payment.ref]
        wish: dict[str, Any] = {"later": True, "by": "ann", "message": f"m{len(self.told)}"}
        wish |= ({"units": units}, {"amount": units + 1, "payment_ref": payment.ref}, {})[pick % 3]
        # By the account, which has a model of its own, so much more is to go back.
        before = payment.given_back + payment.owed
        await self.tell(Refund(*order, False, **wish))
        after = await self.till.order(order)
        now = after.record.payment(payment.ref) if after is not None else None
        assert now is not None
        own.owed += now.given_back + now.owed - before

    async def retries(self) -> None:
        """An operator has everything tried again that has failed."""
        for order in dict(self.orders):
            found = await self.till.order(order)
            for _, one in found.record.refunds if found is not None else ():
                if one.state is RefundState.FAILED:
                    await self.till.submit(RequestRefund(*order, one.name, "ann", again=True))

    async def reports(self, ref: str, one: Made) -> None:
        """The provider's notice comes."""
        orders = sorted(await self.till.paid_with(ref), key=lambda one: one.id)
        for command in commands(orders, self.bank.told(ref, one)):
            await self.till.submit(command)

    async def ends_waiting(self, *, well: bool) -> None:
        """The payers of refunds that waited have answered; without a list nothing else tells of them."""
        for ref, payment in self.bank.payments.items():
            for one in payment.made:
                if one.state == "waits":
                    one.state = "done" if well else "failed"
                    await self.reports(ref, one)

    async def bounces(self, pick: int) -> None:
        """A refund comes back from the payer's bank."""
        done = [(ref, one) for ref, own in self.bank.payments.items() for one in own.made if one.state == "done"]
        if done:
            ref, one = done[pick % len(done)]
            one.state = "failed"
            await self.reports(ref, one)

    async def restores(self) -> None:
        """The store comes back older, and everybody says again what they said since; the provider has no keys."""
        if self.backup is not None and self.bank.lists and not self.bank.under_way:
            count, put_back = self.backup
            await self.ends()
            put_back()
            self.bank.answers.clear()
            self.till = self.opened()
            for command in self.told[count:]:
                if await self.till.order(OrderId(*command[:3])) is not None:
                    await self.till.submit(command)
            for ref, payment in self.bank.payments.items():
                for one in payment.made:
                    if one.state == "failed":  # nobody looks for those while nothing is owed
                        await self.reports(ref, one)
            self.begins()


PICK = st.integers(0, 9)
DAYS = st.sampled_from(["", "lost", "answer lost", "answer lost", "late", "closed", "waits"])
ACTS = st.one_of(
    *[st.tuples(st.just("owes"), st.sampled_from(["late", "second", "unknown", "joint"]), st.integers(1, 3))] * 2,
    *[st.tuples(st.just("refunds"), st.sampled_from(["new", "", ""]), st.integers(1, 3), PICK)] * 2,
    *[st.tuples(st.just("day"), DAYS)] * 3,
    st.tuples(st.just("refuses"), PICK),
    st.tuples(st.just("retries")),
    st.tuples(st.just("cashier"), st.sampled_from(["dies", "dies", "beside"])),
    st.tuples(st.just("waiting"), st.booleans()),
    st.tuples(st.just("bounces"), PICK),
    *[st.tuples(st.just("forgets"))] * 2,
    *[st.tuples(st.just("backup"))] * 2,
)
WAITS_S = st.sampled_from([0.0, 0.05, 0.15, 1.0, 3.0, 10.0, 70.0])


def test_what_is_owed_goes_back_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever becomes of the answers, of the cashier, of the store, and of the provider's memory."""
    acts = st.lists(st.tuples(ACTS, WAITS_S), min_size=6, max_size=18)
    with caplog.at_level(logging.ERROR):
        settings(max_examples=60)(given(acts, st.sampled_from([True, True, False]))(played))()
    assert "unexpected" not in caplog.text


def test_a_provider_that_refuses_everybody() -> None:
    """One of them is tried now and then, the operator is told, and all go back when it is well."""

    async def closed(house: House) -> None:
        house.bank.day = "closed"
        for _ in range(5):
            await house.owes("late", 1)
        await asyncio.sleep(8)
        cashier = house.cashier
        assert 2 <= house.bank.count <= 4
        assert cashier.warnings == ["no refund gets through: the key is wrong"]
        assert cashier.figures == {"in_office": True, "waiting": 5, "failed": 0}
        house.bank.day = ""
        await asyncio.sleep(60)
        assert (cashier.warnings, cashier.figures["waiting"], await owing(house)) == ([], 0, [])

    play(closed, lists=False)


def test_a_provider_that_says_nothing() -> None:
    """It is asked less and less, and some time again; and not at all by a cashier that has lost its grant."""

    async def silent(house: House) -> None:
        house.bank.day = "lost"
        await house.owes("late", 1)
        await asyncio.sleep(2000)
        assert 9 <= house.bank.count <= 14
        house.grant.lost, house.bank.day = True, ""
        before = house.bank.count
        await house.owes("late", 1)
        await asyncio.sleep(700)
        assert house.bank.count == before
        house.grant.lost = False
        await asyncio.sleep(700)
        assert not await owing(house)

    play(silent, lists=False)


def test_what_was_accepted_is_not_asked_for_again() -> None:
    """Not when something else of the order becomes owed, and not before an hour is over."""

    async def accepted(house: House) -> None:
        house.bank.day = "waits"
        await house.refunds("new", 1, 1)
        await asyncio.sleep(5)
        await house.refunds("", 2, 1)
        await asyncio.sleep(5)
        assert (len(house.bank.asked), len(house.bank.times)) == (2, 2)
        await asyncio.sleep(3500)
        await house.refunds("new", 1, 1)
        await asyncio.sleep(50)
        assert (len(house.bank.asked), len(house.bank.times)) == (3, 1)
        await asyncio.sleep(60)
        assert (len(house.bank.asked), len(house.bank.times)) == (3, 2)

    play(accepted, lists=False)


def test_a_refund_that_failed() -> None:
    """It is counted and told until an operator has it tried again; and who closes the office lets the provider go."""

    async def failed(house: House) -> None:
        house.bank.refuses = {"pi_0"}
        await house.owes("late", 1)
        await asyncio.sleep(60)
        cashier = house.cashier
        assert cashier.warnings == ["1 refunds didn't work: `seckill orders list --state attention`"]
        assert (cashier.figures["failed"], len(house.bank.times)) == (1, 1)
        house.bank.refuses = set()
        await house.retries()
        await asyncio.sleep(5)
        assert (cashier.warnings, cashier.figures["failed"], await owing(house)) == ([], 0, [])
        with patch.object(house.bank, "close", AsyncMock()) as close:
            await cashier.close()
        close.assert_awaited_once()

    play(failed)


def played(acts: list[Any], lists: bool) -> None:
    play(partial(story, acts=acts), lists=lists)


def play(story: Callable[[House], Coroutine[Any, Any, None]], *, lists: bool = True) -> None:
    loop = VirtualLoop()
    house = House(loop, lists=lists)

    async def all_of_it() -> None:
        await house.till.set_stock(PRICED, terms={"price": PRICE, "currency": "EUR"})
        await house.till.set_stock(UNPRICED)
        house.begins()
        await story(house)
        assert not house.bank.wrong

    with patch("time.time", house.bank.now), patch("time.monotonic", lambda: 1000.0 + loop.time()):
        try:
            loop.play(all_of_it())
        finally:
            loop.play(house.ends())
            loop.close()


async def story(house: House, acts: list[Any]) -> None:  # noqa: PLR0912 - an act each
    for (act, *about), wait_s in acts:
        match act:
            case "owes":
                await house.owes(*about)
            case "refunds":
                await house.refunds(*about)
            case "day":
                [house.bank.day] = about
            case "refuses" if house.orders:
                house.bank.refuses ^= {house.orders[about[0] % len(house.orders)][1]}
            case "retries":
                await house.retries()
            case "cashier":
                if about[0] == "dies":
                    await house.ends()
                house.begins()
            case "waiting":
                await house.ends_waiting(well=about[0])
            case "bounces":
                await house.bounces(about[0])
            case "forgets" if house.bank.lists:
                house.bank.forgets()
            case "backup":
                if house.backup is None:
                    house.backup = len(house.told), house.server.copy()
                else:
                    await house.restores()
                    house.backup = None
        await asyncio.sleep(wait_s)
        assert not house.bank.wrong
    await gets_well(house)


async def gets_well(house: House) -> None:
    """The provider is well again, and operators look: nothing is owed any more, and the books agree."""
    house.bank.day = ""
    house.bank.refuses.clear()
    until = house.loop.time() * 3 + 4000  # of a joint payment the other order may wait for an hour
    while left := await owing(house):
        assert house.loop.time() < until, left
        await house.ends_waiting(well=True)
        await house.retries()
        await asyncio.sleep(10)
    there = {ref: [one for one in own.made if one.state != "failed"] for ref, own in house.bank.payments.items()}
    for ref, made in there.items():
        orders = await house.till.paid_with(ref)
        given = [one for order in orders for one in order.record.payment(ref).refunds if one.state is RefundState.GIVEN]  # type: ignore[union-attr]
        if orders and house.bank.lists:
            assert sorted((str(one.id), one.amount) for one in given) == sorted((one.id, one.amount) for one in made)
        elif orders:
            assert len(given) == len(made)


async def owing(house: House) -> list[Any]:
    found = [await house.till.order(order) for order in dict(house.orders)]
    return [tuple(one.record.refunds) for one in found if one is not None and one.record.needs_attention]
