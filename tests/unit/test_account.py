"""Whatever becomes of an order's money, and in whichever order it is told: the account is the provider's own books."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.ledger import Ledger
from app.cashier.cashier import BY
from app.orders import (
    Cancel,
    Confirm,
    Event,
    EventKind,
    GivenBack,
    Incident,
    OrderChange,
    OrderId,
    OrderState,
    Payment,
    Record,
    Refund,
    RefundOutcome,
    RefundState,
    RequestOutcome,
    RequestRefund,
    Snapshot,
    Units,
    Way,
    decide,
    life,
    settle,
)
from app.orders.account import NOTICE, PROVIDER, Dispute, DisputeState
from app.orders.facts import Facts
from app.orders.refunds import ruling
from app.orders.settle import Given
from app.stock import Level
from lab.model.bank import IDS, NOTICES, TOTALS, ModelBank, ProviderNotice

SECRET = "a" * 32
ORDER = OrderId("default", "1-0", SECRET)
PRICE, UNITS, LEFT = 500, 3, 5
_DISPUTES = {"disputed": EventKind.DISPUTED, "won": EventKind.DISPUTE_WON, "lost": EventKind.DISPUTE_LOST}
_SUMS = ("paid", "given_back", "owed", "disputed")
_DONE = (RefundOutcome.REFUNDED, RefundOutcome.PARTLY_REFUNDED)


def held() -> Record:
    """An order that waits for its payment."""
    times: dict[str, Any] = {"pay_by_ms": 1_000, "due_ms": 2_000}
    return Record("1-0", SECRET, OrderState.HELD, UNITS, "ann", price=PRICE, currency="EUR", **times)


@dataclass
class Desk:
    """An order, its provider, and all who have a word on its money. `elsewhere`: what went back in other ways."""

    bank: ModelBank
    record: Record = field(default_factory=held)
    left: int = LEFT
    changes: list[OrderChange] = field(default_factory=list)
    elsewhere: Counter[str] = field(default_factory=Counter)
    acts: int = 0
    saved: "tuple[Record, int, int, Counter[str]] | None" = None

    def tell(self, kind: Callable[..., Any], *about: Any, **more: Any) -> Any:
        """Have a command decided and written; each event must make the record that is written with it."""
        owners = dict.fromkeys((one.ref for one in self.record.payments), "1-0")
        snapshot = Snapshot(self.left, 0, records={"1-0": self.record}, now_ms=1_500, payments=owners)
        decisions, changes, *_ = decide(snapshot, [kind(*ORDER, *about, **more)])
        for change in changes:
            assert change.before == self.record
            assert change.after == life.apply(self.record, change.kind, change.own_facts)
            self.record = Record.from_text("1-0", change.after.to_text())
            assert self.record == change.after
            self.left += change.units.stock
            self.changes.append(change)
        return decisions[0].outcome

    # -- what may happen ---------------------------------------------------------------------------------------------

    def pays(self, ref: str, amount: int, currency: str = "EUR") -> None:
        """The buyer pays, and the callback is taken at once."""
        if ref not in self.bank.charges:
            self.bank.charge(ref, amount, currency)
            self.tell(Confirm, ref, amount, currency, reported=True)

    def cancels(self) -> None:
        """The buyer wants the units no more."""
        self.tell(Cancel)

    def owes(self, ref: str, amount: int | None, units: int | None) -> None:
        """An operator has money given back later: a part, some units, or all."""
        if amount is None and units is None:
            self.tell(Refund, True, ref, later=True)
        elif units is not None:
            self.tell(Refund, True, units=units, later=True, message=f"w{self.acts}")
        else:
            self.tell(Refund, False, ref, amount=amount, later=True, message=f"w{self.acts}")

    def dashboard(self, ref: str, amount: int | None) -> None:
        """Somebody gives money back in the provider's dashboard."""
        self.bank.refund(ref, amount)

    def notes(self, ref: str, amount: int, first: bool) -> None:
        """An operator gives a part back in the dashboard, and notes it: before or after the provider's notices."""
        if first:
            can = self.bank.charges.get(ref, (0, ""))[0] - self.bank.back(ref) >= amount
            quarrels = any(one.ref == ref and one.end != "won" for one in self.bank.quarrels)
            if can and not quarrels and self.tell(Refund, False, ref, amount=amount, message=f"w{self.acts}") in _DONE:
                self.bank.refund(ref, amount)
        elif self.bank.refund(ref, amount) is not None:
            self.tell(Refund, False, ref, amount=amount, message=f"w{self.acts}")

    def by_bank(self, ref: str, amount: int) -> None:
        """An operator notes money that went back by a bank transfer, of which the provider will never tell."""
        told = self.tell(Refund, False, ref, amount=amount, message=f"w{self.acts}", elsewhere=True)
        self.elsewhere[ref] += amount if told in _DONE else 0

    def works(self, *, loses_answer: bool = False) -> None:
        """The cashier has its turn: it asks the provider what it has, and then for what is owed."""
        for payment in [one for one in self.record.payments if any(map(_is_to_make, one.open))]:
            for made in self.bank.made(payment.ref) if self.bank.style == IDS else ():
                what = "refunded" if made.lasts else "failed"
                currency = self.bank.charges[made.ref][1]
                self.hears_of(ProviderNotice(what, made.ref, made.amount, made.id, made.key, self.bank.now, currency))
            now = self.record.payment(payment.ref)
            for one in now.open if now else ():
                if _is_to_make(one):
                    self.makes(payment.ref, one.name, one.state, one.amount, loses_answer=loses_answer)

    def makes(self, ref: str, name: str, state: RefundState, amount: int | None, *, loses_answer: bool) -> None:
        """The cashier asks for a refund."""
        if state is RefundState.DUE and self.tell(RequestRefund, name, BY) != RequestOutcome.REQUESTED:
            return
        made = self.bank.refund(ref, amount, name)
        about: dict[str, Any] = {"name": name}
        if made is not None and self.bank.style == IDS:
            about["refund_id"] = made.id
        if loses_answer:
            return
        if made is not None and made.lasts:
            self.tell(GivenBack, ref, BY, made.amount, **about)
        else:
            self.tell(Incident, EventKind.REFUND_FAILED, ref, by=BY, why="no", **about)

    def retries(self) -> None:
        """An operator has all that failed tried again."""
        for name in [one.name for _, one in self.record.refunds if one.state is RefundState.FAILED]:
            assert self.tell(RequestRefund, name, "ann", again=True) == RequestOutcome.REQUESTED

    def hears(self, which: int, again: bool) -> None:
        """One of the provider's notices comes, perhaps not for the last time."""
        if self.bank.notices:
            notice = self.bank.notices[which % len(self.bank.notices)]
            if not again:
                self.bank.notices.remove(notice)
            self.hears_of(notice)

    def hears_of(self, notice: ProviderNotice) -> None:
        """A notice is taken, as `app.web.payments` does it."""
        own = notice.id if self.bank.style == IDS else None
        about: dict[str, Any] = {"refund_id": own, "at": notice.at}
        message = f"{notice.what} {notice.id}" if own is None else None
        about["name"] = notice.key or None
        before = len(self.changes)
        match notice.what:
            case "total":
                whole = notice.amount >= self.bank.charges[notice.ref][0]
                more = {"so_far": notice.amount, "whole": whole, "currency": notice.currency, "at": notice.at}
                self.tell(GivenBack, notice.ref, PROVIDER, **more)
            case "refunded":
                self.tell(
                    GivenBack, notice.ref, PROVIDER, notice.amount, currency=notice.currency, notice=message, **about
                )
            case "failed":
                about |= {"message": message, "by": PROVIDER, "why": "returned"}
                self.tell(Incident, EventKind.REFUND_FAILED, notice.ref, notice.amount, **about)
            case ends:
                about |= {"message": message, "by": PROVIDER}
                self.tell(Incident, _DISPUTES[ends], notice.ref, notice.amount, **about)
                assert all(one.own_facts["amount"] == notice.amount for one in self.changes[before:])
        assert all((one.own_facts.get("amount") or 0) <= notice.amount for one in self.changes[before:])

    def saves(self) -> None:
        """The store is backed up."""
        self.saved = self.record, self.left, len(self.changes), Counter(self.elsewhere)

    def restores(self) -> None:
        """The store comes back older; the provider sends again what it has sent, as operations.md has it."""
        if self.saved is None:
            return
        self.record, self.left, count, self.elsewhere = (*self.saved[:3], Counter(self.saved[3]))
        del self.changes[count:]
        for ref, (amount, currency) in self.bank.charges.items():
            self.tell(Confirm, ref, amount, currency, reported=True)
        self.bank.tell_again()

    def ends(self) -> None:
        """All notices come, and the cashier has some more turns."""
        for turn in range(4):
            for _ in range(len(self.bank.notices)):
                self.hears(turn, again=False)
            self.works()
        while self.bank.notices:
            self.hears(0, again=False)

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The account has what the provider has, and the events say so."""
        for ref, (amount, currency) in self.bank.charges.items():
            payment = self.record.payment(ref)
            assert payment is not None and (payment.amount, payment.currency) == (amount, currency)
            assert payment.given_back == self.bank.back(ref) + self.elsewhere[ref], payment
            assert payment.owed <= max(0, amount - payment.given_back), payment
            assert self.bank.back(ref) <= amount
        self.check_events()

    def check_events(self) -> None:
        """Their changes add up to the sums, the last one tells these, and the auditor finds nothing wrong."""
        found: Counter[tuple[str | None, str]] = Counter()
        for change in self.changes:
            check_settled(change)
            for one in change.own_facts.get("changes", ()):
                found.update({(one["currency"], name): one.get(name, 0) for name in _SUMS})
        now = {(one.currency, name): getattr(one, name) for one in self.record.sums.values() for name in _SUMS}
        assert {key: one for key, one in found.items() if one} == {key: one for key, one in now.items() if one}
        told = [change.own_facts["sums"] for change in self.changes if "sums" in change.own_facts]
        assert (told[-1] if told else []) == [one.said() for one in self.record.sums.values()]
        ledger, level = audited(self.changes)
        assert not ledger.compare(level).violations
        assert bool(ledger.payments.owed) == any(one.open or one.waits for one in self.record.payments)


def check_settled(change: OrderChange) -> None:
    """What went back settles what was owed, no more than that, and no less while nobody works at it."""
    ref, kind = change.own_facts.get("payment_ref"), change.kind
    after = change.after.payment(ref)
    if after is None:
        return
    before = change.before.payment(ref) or after._replace(refunds=(), disputes=())
    given, owed = after.given_back - before.given_back, after.owed - before.owed
    at_rest = [one for one in after.open if one.state is not RefundState.ASKED]
    match kind:
        case EventKind.REFUNDED | EventKind.DISPUTE_LOST if given or owed < 0:
            was = {one.name: one.amount or 0 for one in before.refunds if one.state is RefundState.GIVEN}
            now = {one.name: one.amount or 0 for one in after.refunds if one.state is RefundState.GIVEN}
            settled = sum(max(0, now[name] - was.get(name, 0)) for name in now) + after.lost - before.lost
            assert given >= 0 and -settled <= owed <= 0
            assert owed == -settled or not at_rest or any(one.currency for one in after.refunds)
        case EventKind.REFUND_FAILED:
            assert given <= 0  # of one that was told before it was given, nothing had gone back
            assert owed >= -given or after.left == 0
        case EventKind.REFUND_REQUESTED | EventKind.REFUND_NAMED | EventKind.DISPUTED | EventKind.DISPUTE_WON:
            assert (given, owed) == (0, 0)
        case EventKind.REFUND_DUE:
            assert given == 0 and owed >= 0 and set(at_rest) - set(before.open)
        case _:
            assert given == 0 and owed >= 0
    assert all(one.amount is None or one.amount > 0 for one in after.open)
    if kind is EventKind.REFUND_FAILED:
        failed = [one for one in after.open if one.state is RefundState.FAILED and one not in before.open]
        assert all(one.why and one.by for one in failed) and len(failed) <= 1
        assert not failed or failed[0].amount == change.own_facts["amount"]


def audited(changes: list[OrderChange]) -> tuple[Ledger, Level]:
    """The ledger behind the events of an order, and the item's numbers after them."""
    own: dict[str, Any] = {"key": None, "at": 1.0, "instance": "i", "token": 1, "batch_id": "b", "epoch": 0}
    about: dict[str, Any] = {"order": ORDER, "buyer": "ann", **own}
    began = Units(-UNITS, UNITS, 0)
    events = [Event("0-1", EventKind.HELD, number=1, quantity=UNITS, units=began, facts={"pay_by": 1.0}, **about)]
    for number, one in enumerate(changes, 2):
        more: dict[str, Any] = {"quantity": one.after.quantity, "units": one.units, "facts": one.facts}
        events.append(Event(f"0-{number}", one.kind, number=number, **more, **about))
    ledger = Ledger()
    for event in events:
        ledger.add(event)
    stock, in_hold, lucky = (sum(each) for each in zip(*(event.units for event in events), strict=True))
    return ledger, Level("default", 9 + stock, lucky, 9, held=in_hold)


def _is_to_make(one: Any) -> bool:
    return one.state in (RefundState.DUE, RefundState.ASKED)


REFS = st.sampled_from(["p", "q", "w", "x"])
AMOUNTS = st.sampled_from([1, 300, 500, 700, 1_000, 1_500])
USUAL: list[st.SearchStrategy[tuple[Any, ...]]] = [
    st.tuples(st.just("pays"), st.sampled_from(["p", "q"]), st.just(PRICE * UNITS)),
    st.tuples(st.just("pays"), st.just("w"), st.sampled_from([1, 300, 2_000])),
    st.tuples(st.just("pays"), st.just("x"), st.just(PRICE * UNITS), st.just("USD")),
    st.tuples(st.just("cancels")),
    st.tuples(st.just("owes"), REFS, AMOUNTS, st.none()),
    st.tuples(st.just("owes"), REFS, st.none(), st.integers(1, UNITS) | st.none()),
    st.tuples(st.just("dashboard"), REFS, AMOUNTS | st.none()),
    st.tuples(st.just("notes"), REFS, AMOUNTS, st.booleans()),
    st.tuples(st.just("by_bank"), REFS, AMOUNTS),
    st.tuples(st.just("works")),
    st.tuples(st.just("loses")),
    st.tuples(st.just("hears"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("disputes"), REFS, AMOUNTS),
    st.tuples(st.just("closes"), st.sampled_from(["won", "lost"])),
]
FAILS = [st.tuples(st.just("bounces"), st.integers(0, 9)), st.tuples(st.just("retries"))]
BACKUPS = [st.tuples(st.just("saves")), st.tuples(st.just("restores"))]


def lived(bank: ModelBank, acts: list[tuple[Any, ...]]) -> Desk:
    """An order that was paid, unless it is not the first thing that is done with it, after all these acts."""
    desk = Desk(bank)
    if not acts or acts[0][0] not in ("pays", "cancels"):
        desk.pays("p", PRICE * UNITS)
    also: dict[str, Callable[..., object]] = {
        "bounces": bank.bounce,
        "disputes": bank.dispute,
        "closes": bank.close,
        "loses": lambda: desk.works(loses_answer=True),
    }
    for act, *about in acts:
        desk.acts += 1
        also.get(act, getattr(desk, act, None) or (lambda: None))(*about)
    desk.ends()
    return desk


@given(acts=st.lists(st.one_of(*USUAL, *FAILS), max_size=14), ticks=st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_account_is_the_providers_books(acts: list[Any], ticks: bool) -> None:
    """Refunds by all ways, failures, disputes, other currencies; notices late, twice, in any order, in one second."""
    desk = lived(ModelBank(IDS, ticks), acts)
    desk.check()
    assert not any(map(_is_to_make, (one for _, one in desk.record.refunds)))


@given(acts=st.lists(st.one_of(*USUAL, *FAILS, *BACKUPS, *BACKUPS), max_size=14))
@settings(max_examples=200, deadline=None)
def test_a_restore_makes_no_refund_twice(acts: list[Any]) -> None:
    """The store comes back older, once or more: what the provider has is found there, and given back once."""
    lived(ModelBank(IDS), [act for act in acts if act[0] not in ("by_bank", "notes")]).check()


@pytest.mark.parametrize("style", [NOTICES, TOTALS])
@given(acts=st.lists(st.one_of(*USUAL), max_size=14))
@settings(max_examples=150, deadline=None)
def test_a_provider_that_names_no_refund(style: str, acts: list[Any]) -> None:
    """One that tells movements without ids, or only totals: the sums are right as long as no refund comes back."""
    lived(ModelBank(style), acts).check()


@given(amount=AMOUNTS, so_far=AMOUNTS, at=st.integers(1, 9))
def test_a_word_that_was_heard_changes_nothing(amount: int, so_far: int, at: int) -> None:
    """The same report again, and a sum that is older than what is known, leave an account as it is."""
    names = iter(map(str, range(9)))
    paid = Payment("p", 1_500, "EUR")
    once = settle.give(paid, Given(amount, id="re", at=at), lambda: next(names))
    assert settle.give(once, Given(amount, id="re", at=at), str) == once
    told = settle.give(once, Given(so_far=so_far, at=at), lambda: next(names))
    assert told.given_back == max(amount, so_far)
    assert settle.give(told, Given(so_far=min(amount, so_far), at=at), str) == told


def owing(*amounts: int) -> Payment:
    """A payment of 15.00 EUR of which so much is owed."""
    payment = Payment("p", 1_500, "EUR")
    for number, amount in enumerate(amounts):
        payment = settle.owe(payment, f"n{number}", amount)
    return payment


def standing(payment: Payment) -> dict[str, tuple[str, int | None]]:
    """How each refund stands."""
    return {one.name: (one.state, one.amount) for one in payment.refunds}


def test_a_sum_settles_what_adds_up_to_it() -> None:
    """Equal amounts first, then some together, each under its own name; a refund with an id is one alone."""
    payment = owing(300, 700, 500)
    told = settle.give(payment, Given(so_far=800, by=PROVIDER), str)
    assert standing(told) == {"n0": ("given", 300), "n1": ("due", 700), "n2": ("given", 500)}
    told = settle.give(payment, Given(500, id="re_1", by=PROVIDER), str)
    assert standing(told) == {"n0": ("due", 300), "n1": ("due", 700), "n2": ("given", 500)}
    told = settle.give(payment, Given(800, id="re_1", by=PROVIDER), str)
    assert standing(told) == {"n1": ("due", 200), "n2": ("due", 500), "re_1": ("given", 800)}
    told = settle.give(owing(300, 700), Given(so_far=900, by=PROVIDER), lambda: "sum")
    assert standing(told) == {"n1": ("due", 100), "sum": ("given", 900)}
    told = settle.give(owing(300, 700), Given(by=PROVIDER), lambda: "rest")
    assert standing(told) == {"n0": ("given", 300), "n1": ("given", 700), "rest": ("given", 500)}


def test_of_a_refund_of_which_less_was_given_the_rest_is_due() -> None:
    """Under another name, and for the same reason."""
    payment = settle.owe(owing(), "n0", 500, by="ann", why="broken")
    told = settle.give(payment, Given(200, name="n0", id="re_1", by=BY), lambda: "rest")
    assert standing(told) == {"n0": ("given", 200), "rest": ("due", 300)}
    assert (told.open[0].by, told.open[0].why) == ("ann", "broken")


def test_what_is_asked_is_settled_before_what_is_due() -> None:
    """Of equal amounts that which the provider is asked for, then that which has failed, then the oldest."""
    payment = owing(500, 500, 500)
    first, second, third = payment.refunds
    states = first, second._replace(state=RefundState.FAILED), third._replace(state=RefundState.ASKED)
    payment = payment._replace(refunds=states)
    for name in ("n2", "n1", "n0"):
        payment = settle.give(payment, Given(500, id=f"re {name}", by=PROVIDER), str)
        assert payment.find(name) == payment.find(None, f"re {name}")


def test_money_that_went_elsewhere_is_not_what_the_provider_gives() -> None:
    """A bank transfer settles what is owed; the provider's refund under that name is one more."""
    payment = owing(500)
    noted = settle.give(payment, Given(500, way=Way.ELSEWHERE, by="ann"), lambda: "bank")
    assert standing(noted) == {"bank": ("given", 500)} and noted.given_elsewhere == 500
    both = settle.give(noted, Given(500, name="n0", id="re_1", by=BY), str)
    assert both.given_back == 1_000
    assert settle.give(both, Given(so_far=500, by=PROVIDER), str) == both


def test_nothing_is_owed_of_nothing() -> None:
    """What cost nothing, and what was given back whole, is not owed."""
    free = Payment("p", 0, "EUR")
    assert settle.owe(free, "n", None) == free
    whole = settle.give(owing(), Given(1_500, id="re_1", by=PROVIDER), str)
    assert settle.owe(whole, "n", None) == whole and whole.given_whole


def test_all_that_is_left_of_a_payment_that_nobody_knows() -> None:
    """Of a payment without an amount all is owed, and given back, whatever that is; its sums say so."""
    payment = settle.owe(Payment("p", None, "EUR"), "n", None)
    assert payment.open and payment.unknown and not payment.left
    given = settle.give(payment, Given(name="n", id="re_1", amount=900, by=BY), str)
    assert not given.open and given.given_back == 900
    told = settle.give(payment, Given(by=PROVIDER), str)
    assert told.given_whole and not told.open
    assert standing(settle.give(Payment("p"), Given(by=PROVIDER), lambda: "all")) == {"all": ("given", None)}
    some = settle.give(Payment("p"), Given(so_far=400, by=PROVIDER), lambda: "sum")
    assert settle.give(settle.owe(some, "n", None), Given(name="n", id="re_1", by=BY), str).given_back == 400
    assert [one.unknown for one in told.sums()] == [True]


def test_a_refund_in_another_currency_is_told_in_its_own() -> None:
    """A part that can't be compared settles nothing; a whole payment is whole in any currency."""
    payment = owing(1_500)
    part = settle.give(payment, Given(400, currency="USD", id="re_1", by=PROVIDER), str)
    assert [(one.currency, one.given_back, one.owed) for one in part.sums()] == [("EUR", 0, 1_500), ("USD", 400, 0)]
    assert settle.give(part, Given(400, currency="USD", id="re_1", by=PROVIDER), str) == part
    more = settle.give(part, Given(so_far=700, currency="USD", at=9, by=PROVIDER), lambda: "more")
    assert standing(more) == {"n0": ("due", 1_500), "re_1": ("given", 400), "more": ("given", 300)}
    whole = settle.give(payment, Given(so_far=1_650, whole=True, currency="USD", by=PROVIDER), str)
    assert standing(whole) == {"n0": ("given", 1_500)}


def test_a_refund_in_another_currency_comes_back_in_it() -> None:
    """It is owed again in its own currency, and settled there."""
    part = settle.give(owing(), Given(400, currency="USD", id="re_1", by=PROVIDER), str)
    back = settle.fail(part, Given(400, id="re_1", by=PROVIDER), "returned", lambda: "again")
    assert [(one.currency, one.given_back, one.owed) for one in back.sums()] == [("EUR", 0, 0), ("USD", 0, 400)]
    assert back.left == 1_500 and back.open
    given = settle.give(back, Given(400, currency="USD", id="re_2", by=PROVIDER), str)
    assert [(one.currency, one.given_back, one.owed) for one in given.sums()] == [("EUR", 0, 0), ("USD", 400, 0)]
    noted = settle.give(back, Given(way=Way.NOTED, by="ann"), lambda: "all")
    assert not noted.open and [one.given_back for one in noted.sums()] == [1_500, 400]
    told = settle.give(noted, Given(300, id="re_2", by=PROVIDER), str)
    assert [one.given_back for one in told.sums()] == [1_500, 400]
    both = settle.give(part, Given(400, id="re_2", by=PROVIDER), str)
    for more, sums in ((both, [(400, 0), (0, 400)]), (owing(), [(0, 0), (0, 400)])):  # before it was told, too
        back = settle.fail(more, Given(400, currency="USD", by=PROVIDER), "returned", iter("ab").__next__)
        assert [(one.given_back, one.owed) for one in back.sums()] == sums
    some = settle.fail(part, Given(300, currency="USD", id="re_1", by=PROVIDER), "returned", iter("ab").__next__)
    assert [(one.given_back, one.owed) for one in some.sums()] == [(0, 0), (100, 0), (0, 300)]
    euros = settle.fail(both, Given(100, currency="USD", id="re_2", by=PROVIDER), "returned", iter("ab").__next__)
    assert euros.owed == 400


def test_a_dispute_is_of_what_is_left() -> None:
    """Without an amount it is of all that has not gone back; each end is final."""
    part = settle.give(owing(300), Given(500, id="re_1", by=PROVIDER), str)
    begun = settle.dispute(part, Dispute("dp"))
    assert [one.disputed for one in begun.sums()] == [1_000]
    lost = settle.dispute(begun, Dispute("dp", state=DisputeState.LOST))
    assert lost.given_whole and not lost.open and lost.lost == 1_000
    assert settle.dispute(lost, Dispute("dp", state=DisputeState.WON)) == lost
    over, unknown = (settle.dispute(one, Dispute("dp 2", state=DisputeState.LOST)) for one in (lost, Payment("p")))
    assert over.given_back == 1_500 and unknown.given_whole


def test_a_failure_says_what_it_is_about() -> None:
    """A refund that was refused keeps its name, with the reason; one that the provider had made is another one."""
    asked = owing(500)
    asked = asked.having(asked.refunds[0]._replace(state=RefundState.ASKED))
    refused = settle.fail(asked, Given(name="n0", by=BY), "no money", lambda: "again")
    assert standing(refused) == {"n0": ("failed", 500)}
    assert [(one.why, one.by) for one in refused.open] == [("no money", BY)]
    made = settle.fail(asked, Given(500, name="n0", by=PROVIDER), "returned", lambda: "again")
    assert standing(made) == {"n0": ("bounced", 500), "again": ("failed", 500)}
    assert made.refunds[0].why == "returned"
    two = owing(300, 500)
    two = two.having(two.refunds[1]._replace(state=RefundState.ASKED))
    which = settle.fail(two, Given(by=PROVIDER), "returned", lambda: "again")
    assert standing(which) == {"n0": ("due", 300), "n1": ("bounced", 500), "again": ("failed", 500)}
    assert settle.fail(made, Given(500, name="n0", by=PROVIDER), "returned", lambda: "third") == made
    assert settle.fail(owing(500), Given(name="n0", by=BY), "no", str) == owing(500)  # it was not asked


def test_no_more_is_owed_again_than_is_left() -> None:
    """A refund that comes back when all was given back otherwise is owed no more; of part of it, only the rest."""
    payment = settle.give(owing(), Given(1_000, id="re_1", by=PROVIDER), str)
    payment = settle.give(payment, Given(1_200, id="re_2", by=PROVIDER), str)
    back = settle.fail(payment, Given(1_000, id="re_1", by=PROVIDER), "returned", lambda: "again")
    assert back.owed == 300 and back.given_back == 1_200
    unknown = settle.give(Payment("p"), Given(400, id="re_1", by=PROVIDER), str)
    assert settle.fail(unknown, Given(id="re_1", by=PROVIDER), "returned", lambda: "again").owed == 400


def test_a_notice_without_an_id_is_another_refund() -> None:
    """Two of one amount are two, unless an operator's note was one of them; the same notice again is none."""
    notice = Given(500, id=f"{NOTICE}1", by=PROVIDER, at=9)
    once = settle.give(owing(), notice, str)
    assert settle.give(once, notice, str) == once
    assert settle.give(once, notice._replace(id=f"{NOTICE}2"), str).given_back == 1_000
    noted = settle.give(owing(), Given(500, way=Way.NOTED, by="ann", at=5, units=2), lambda: "n")
    told = settle.give(noted, notice, str)
    assert (told.refunds[0].at, told.refunds[0].units) == (9, 2)
    assert told.given_back == 500 and told.find("n", notice.id) == told.refunds[0]
    assert settle.give(told, notice._replace(id=f"{NOTICE}2"), str).given_back == 1_000


def test_a_note_beside_what_the_provider_has_told() -> None:
    """An operator's note is what the provider has told already, once; the next one of that amount is another refund."""
    note = Given(500, way=Way.NOTED, by="ann", units=1)
    told = settle.give(owing(), Given(500, id="re_1", by=PROVIDER), str)
    noted = settle.give(told, note, str)
    assert noted.given_back == 500 and noted.refunds[0].units == 1
    assert settle.give(noted, note, lambda: "second").given_back == 1_000
    by_us = settle.give(owing(500), Given(500, id="re_1", name="n0", by=BY), str)
    assert settle.give(by_us, note, lambda: "second").given_back == 1_000


def test_a_sum_from_before_a_request_is_of_another_refund() -> None:
    """What the provider told as a sum long before it was asked is not what it gives now; a moment before it may be."""
    told = settle.give(owing(), Given(so_far=500, at=1_000, by=PROVIDER), lambda: "sum")
    for asked_at, given_back in ((1_010, 500), (1_060, 500), (1_061, 1_000)):
        asked = settle.owe(told, "n", 500)
        asked = asked.having(asked.refunds[-1]._replace(state=RefundState.ASKED, at=asked_at))
        assert settle.give(asked, Given(500, name="n", id="re_1", by=BY), str).given_back == given_back


def test_a_sum_is_the_refunds_that_it_names_later() -> None:
    """Of a sum that settled a debt each refund takes its own part, under its own name."""
    told = settle.give(owing(500), Given(so_far=500, at=1, by=PROVIDER), lambda: "sum")
    own = settle.give(told, Given(499, name="n0", id="re_1", by=PROVIDER), lambda: "sum")
    assert standing(own) == {"n0": ("given", 499), "sum": ("given", 1)}
    both = settle.give(own, Given(1, id="re_2", by=PROVIDER), str)
    assert standing(both) == {"n0": ("given", 499), "sum": ("given", 1)} and both.find(None, "re_2")
    larger = settle.give(told, Given(700, name="n0", id="re_1", by=PROVIDER), lambda: "sum")
    assert larger.given_back == 700
    told = settle.give(settle.owe(owing(), "n0", None), Given(so_far=299, by=PROVIDER), lambda: "sum")
    told = settle.give(told, Given(300, id="re_1", by=PROVIDER), str)
    assert standing(told) == {"n0": ("due", 1_200), "re_1": ("given", 300)}


def test_a_debt_that_a_sum_has_paid_is_settled_by_its_refund() -> None:
    """No more money went back than was known, and the order owes less: the event says so."""
    told = settle.give(owing(), Given(so_far=500, at=1, by=PROVIDER), lambda: "sum")
    order = held()._replace(state=OrderState.CONFIRMED, payments=(settle.owe(told, "n0", 500),))
    given = GivenBack(*ORDER, "p", BY, 500, name="n0", refund_id="re_1")
    (event,) = ruling(order, given, str, 1.0).events
    assert (event.kind, event.facts["amount"]) == (EventKind.REFUNDED, 0)


def test_an_extended_hold_has_the_moments_that_its_event_tells() -> None:
    """The record is made of the event: when the buyer is to pay, and when the units go back."""
    facts = Facts(pay_by=12.345, goes_back_at=13.345)
    after = life.apply(held(), EventKind.EXTENDED, facts)
    assert (after.extended, after.pay_by_ms, after.due_ms, after.events) == (True, 12_345, 13_345, 2)
    with pytest.raises(ValueError, match="can't come"):
        life.apply(after._replace(state=OrderState.SOLD), EventKind.EXTENDED, facts)


def test_a_failure_finds_what_it_is_about() -> None:
    """By its amount: a note, some that were noted in parts, a part of a sum; never money that went elsewhere."""
    fails = Given(500, id="re_1", by=PROVIDER)
    note = Given(way=Way.NOTED, by="ann")
    noted = settle.give(owing(), note._replace(amount=500), lambda: "n")
    elsewhere = settle.give(noted, Given(500, way=Way.ELSEWHERE, by="ann"), lambda: "bank")
    back = settle.fail(elsewhere, fails, "returned", lambda: "again")
    assert standing(back) == {"n": ("bounced", 500), "bank": ("given", 500), "again": ("failed", 500)}
    asked = owing(200, 300)
    asked = asked._replace(refunds=tuple(one._replace(state=RefundState.ASKED) for one in asked.refunds))
    parts = settle.give(asked, note._replace(amount=500), str)
    assert standing(parts) == {"n0": ("given", 200), "n1": ("given", 300)}
    assert standing(settle.fail(parts, fails, "returned", lambda: "again")) == {
        "n1": ("bounced", 500),
        "again": ("failed", 500),
    }
    told = settle.give(owing(), Given(so_far=800, at=5, by=PROVIDER), lambda: "sum")
    back = settle.fail(told, fails._replace(at=6), "returned", lambda: "again")
    assert standing(back) == {"sum": ("given", 300), "re_1": ("bounced", 500), "again": ("failed", 500)}
    back = settle.fail(told, fails._replace(at=4, id=None), "returned", lambda: "again")
    assert back.given_back == 800  # the sum was told after it
    larger = settle.give(owing(), Given(800, id="re_2", by=PROVIDER), str)
    back = settle.fail(larger, fails._replace(id=None), "returned", iter("ab").__next__)
    assert standing(back) == {"re_2": ("given", 800), "a": ("bounced", 500), "b": ("failed", 500)}


def test_a_notice_that_its_failure_has_overtaken() -> None:
    """The refund is told after it has come back: it is that one, once."""
    fails = Given(500, by=PROVIDER, at=6)
    back = settle.fail(owing(), fails, "returned", iter(["gone", "again"]).__next__)
    assert standing(back) == {"gone": ("bounced", 500), "again": ("failed", 500)}
    told = settle.give(back, Given(500, id=f"{NOTICE}1", by=PROVIDER, at=5), str)
    assert (told.given_back, told.owed) == (0, 500)
    assert settle.give(told, Given(500, id=f"{NOTICE}2", by=PROVIDER, at=7), str).given_back == 500


def test_a_refund_is_part_of_more_than_one_sum() -> None:
    """Two sums were told, and now one refund with an id that is as much as both and more."""
    told = settle.give(owing(), Given(so_far=300, at=1, by=PROVIDER), lambda: "one")
    told = settle.give(told, Given(so_far=500, at=2, by=PROVIDER), lambda: "two")
    assert standing(told) == {"one": ("given", 300), "two": ("given", 200)}
    assert standing(settle.give(told, Given(400, id="re_1", by=PROVIDER), str)) == {
        "two": ("given", 100),
        "re_1": ("given", 400),
    }
    assert standing(settle.give(told, Given(600, id="re_1", by=PROVIDER), str)) == {"re_1": ("given", 600)}


def test_a_note_of_several_refunds_is_one() -> None:
    """An operator notes what went back in two refunds as one sum, before or after the provider tells them."""
    note = Given(800, way=Way.NOTED, by="ann")
    noted = settle.give(owing(300, 500), note, lambda: "note")
    assert standing(noted) == {"note": ("given", 800)}
    for amounts in ((500, 300), (300, 500), (800,)):
        told = noted
        for amount in (*amounts, *amounts):
            told = settle.give(told, Given(amount, id=f"re_{amount}", by=PROVIDER), str)
            assert told.given_back == 800
    more = settle.give(noted, Given(900, id="re_1", by=PROVIDER), str)
    assert more.given_back == 1_700  # which is none of what was noted
    first = settle.give(owing(), Given(500, id="re_1", by=PROVIDER), str)
    both = settle.give(first, Given(300, id="re_2", by=PROVIDER), str)
    after = settle.give(both, note, str)
    assert standing(after) == standing(both) and all(one.way is Way.NOTED for one in after.refunds)
    assert settle.give(after, Given(300, id="re_2", by=PROVIDER), str) == after


def test_a_refund_that_is_asked_and_went_elsewhere() -> None:
    """Noted by its name as given elsewhere, it is owed no more; what the provider gives under that name is one more."""
    asked = owing(500)
    asked = asked.having(asked.refunds[0]._replace(state=RefundState.ASKED))
    noted = settle.give(asked, Given(name="n0", way=Way.ELSEWHERE, by="ann"), lambda: "bank")
    assert standing(noted) == {"bank": ("given", 500)}
    assert settle.give(noted, Given(500, name="n0", id="re_1", by=PROVIDER), str).given_back == 1_000
    part = settle.give(asked, Given(200, name="n0", way=Way.ELSEWHERE, by="ann"), lambda: "bank")
    assert standing(part) == {"n0": ("asked", 300), "bank": ("given", 200)}


def test_another_currency_under_our_name() -> None:
    """The refund that we asked for is told in the currency of the buyer's bank: it is that refund."""
    told = settle.give(owing(500), Given(80_000, currency="JPY", name="n0", id="re_1", by=PROVIDER), str)
    assert standing(told) == {"n0": ("given", 500)} and told.given_back == 500
    usd = settle.give(owing(), Given(so_far=400, currency="USD", by=PROVIDER, at=1), lambda: "usd")
    both = settle.give(usd, Given(400, id="re_2", by=PROVIDER, at=2), str)
    assert [(one.currency, one.given_back) for one in both.sums()] == [("EUR", 400), ("USD", 400)]


def test_the_end_of_a_dispute_is_of_that_dispute() -> None:
    """One with an id ends no other; one that was begun without an id has it from its end on."""
    begun = settle.dispute(owing(), Dispute("dp0", 300))
    lost = settle.dispute(begun, Dispute("dp1", 500, DisputeState.LOST))
    assert (lost.lost, [one.disputed for one in lost.sums()]) == (500, [300])
    assert settle.dispute(lost, Dispute("dp1", 500, DisputeState.LOST)) == lost
    unnamed = settle.dispute(owing(), Dispute(f"{NOTICE}1", 500))
    lost = settle.dispute(unnamed, Dispute("dp1", 500, DisputeState.LOST))
    assert (lost.lost, len(lost.disputes)) == (500, 1)
    assert settle.dispute(lost, Dispute("dp1", 500, DisputeState.LOST)) == lost


def test_a_failure_under_a_name_that_was_given_up() -> None:
    """A refund that was refused is tried again under another name: its failure, told late, owes nothing more."""
    late = Given(500, name="old", id="re_1", by=PROVIDER)
    after = settle.fail(owing(500), late, "returned", str)
    assert after.owed == 500 and after.find(None, "re_1")
