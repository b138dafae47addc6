"""The rule about money that goes back: a command's events, by the account of a payment.

`account` knows the effect on the payment. Here is who may have it, its effect on the order, and the answer.
"""

from typing import Final, NamedTuple

from app.orders import account, life, settle
from app.orders.account import Payment, RefundState, Way
from app.orders.commands import (
    GivenBack,
    Incident,
    IncidentOutcome,
    Refund,
    RefundOutcome,
    RequestOutcome,
    RequestRefund,
)
from app.orders.facts import NO_FACTS, Facts, known
from app.orders.record import EventKind, OrderState, Record
from app.orders.settle import Given, Names


class Told(NamedTuple):
    """An event to write."""

    kind: EventKind
    facts: Facts


class Ruling(NamedTuple):
    """The answer to a command, and the events that it makes, in their order."""

    outcome: RefundOutcome | RequestOutcome | IncidentOutcome
    events: tuple[Told, ...] = ()


_SOLD: Final = (OrderState.SOLD, OrderState.CONFIRMED)


def ruling(order: Record, command: Refund | GivenBack | RequestRefund | Incident, fresh: Names, at_s: float) -> Ruling:
    """Return a command's answer and events. `fresh` makes names of refunds; `at_s`: the store's clock, since 1970."""
    match command:
        case Refund():
            return _refund(order, command, fresh)
        case GivenBack():
            return _given_back(order, command, fresh)
        case RequestRefund():
            return _request(order, command, fresh, at_s)
        case Incident():
            return _incident(order, command, fresh)


# -- refunds -----------------------------------------------------------------------------------------------------------


def _refund(order: Record, wish: Refund, fresh: Names) -> Ruling:  # noqa: PLR0911 - a case each
    """Give back an order, some units, owed payments, or a part of one; or note that they are owed."""
    outcome, ref = RefundOutcome, wish.payment_ref
    if known := order.answered(wish.message):
        return Ruling(outcome(known))
    if wish.name is not None:
        ref = next((payment.ref for payment, one in order.refunds if one.name == wish.name), None)
        if ref is None or wish.later:  # it is owed already
            return Ruling(outcome.NOTHING_DUE)
    of_order = order.state in _SOLD and ref in (None, order.payment_ref) and wish.name is None
    if of_order and (wish.amount is None or wish.units is not None or wish.line is not None):
        return _of_order(order, wish, fresh)
    owing = [one for one in order.payments if (one.open or one.waits) and ref in (None, one.ref)]
    if of_order and order.counted is not None:
        owing = [order.counted]
    if wish.later:
        owing = [one for one in owing if one.left]
    if not owing or wish.units is not None or wish.line is not None:
        return _nothing(order, ref)
    if wish.amount is not None and len(owing) > 1:  # nobody has named one
        return Ruling(outcome.TOO_MUCH)
    events, whole = list[Told](), not wish.later
    for payment in owing:
        if wish.amount is not None and not _fits(payment, wish, wish.amount):
            return Ruling(outcome.TOO_MUCH)
        after = _changed(payment, wish, wish.amount, fresh)
        events.append(_event(order, payment, after, wish, remembered=not events))
        whole &= after.given_whole
    return _answered(outcome.REFUNDED if whole else outcome.PARTLY_REFUNDED, events)


def meant(order: Record, ref: str | None, name: str | None = None) -> Payment | None:
    """The operator's payment, by its name, or by the name of its owed refund; None: several, or none."""
    if name is not None:
        return next((payment for payment, one in order.refunds if one.name == name), None)
    if ref is not None:
        return order.payment(ref)
    owing = [one for one in order.payments if one.open or one.waits]
    return order.counted if order.state in _SOLD else owing[0] if len(owing) == 1 else None


def _of_order(order: Record, wish: Refund, fresh: Names) -> Ruling:
    """Give back an order, or some units of a line, with their price or the given amount."""
    other = wish.line if wish.line != wish.sku else None
    outcome, line, payment = RefundOutcome, order.line(other), order.counted
    if line is None:
        return Ruling(outcome.TOO_MUCH)
    whole = wish.units is None and wish.line is None
    count = order.units_in_all if whole else wish.units or line.quantity
    if not whole and not 1 <= count <= line.quantity:
        return Ruling(outcome.TOO_MUCH)
    ends = count == order.units_in_all
    facts: Facts = {"about": "order" if ends else "units", "restock": wish.restock}
    if not ends:
        facts |= known({"units": count, "line": other})
    amount = wish.amount
    if amount is None and not ends and line.price is not None:
        amount = line.price * count
    after = payment
    if payment is not None and (ends or amount):
        if amount is not None and not _fits(payment, wish, amount):
            return Ruling(outcome.TOO_MUCH)
        after = _changed(payment, wish, amount, fresh, units=0 if ends else count)
    event = _event(order, payment, after, wish, EventKind.REFUNDED, facts)
    return _answered(outcome.REFUNDED if ends else outcome.PARTLY_REFUNDED, [event])


def _fits(payment: Payment, wish: Refund, amount: int) -> bool:
    """Whether this amount of a payment may be given back: at most the sum that has not gone back yet."""
    if amount <= 0:
        return False
    if wish.later:
        return amount <= payment.left
    if (one := payment.find(wish.name)) is not None:
        return one.amount is None or amount <= one.amount
    after = settle.give(payment, Given(amount, way=_way(wish)), str)
    return payment.amount is None or after.given_back <= payment.amount


def _changed(payment: Payment, wish: Refund, amount: int | None, fresh: Names, units: int = 0) -> Payment:
    if wish.later:
        return settle.owe(payment, fresh(), amount, by=wish.by, units=units)
    return settle.give(payment, Given(amount, name=wish.name, by=wish.by, way=_way(wish), units=units), fresh)


def _way(wish: Refund) -> Way:
    return Way.ELSEWHERE if wish.elsewhere else Way.NOTED


def _given_back(order: Record, told: GivenBack, fresh: Names) -> Ruling:
    """Note a provider's report of money that went back."""
    outcome, payment = RefundOutcome, order.payment(told.payment_ref)
    if payment is None:
        return Ruling(outcome.NOTHING_DUE)
    own = told.refund_id or (f"{account.NOTICE}{told.notice}" if told.notice is not None else None)
    given = Given(told.amount, told.so_far, told.whole, told.currency, own, told.name, told.at, told.by)
    after = settle.give(payment, given, fresh)
    if after == payment:  # it was reported before
        return Ruling(outcome.ALREADY_REFUNDED)
    event = _event(order, payment, after, told)
    return _answered(outcome.REFUNDED if after.given_whole else outcome.PARTLY_REFUNDED, [event])


def _event(
    order: Record,
    before: Payment | None,
    after: Payment | None,
    command: Refund | GivenBack,
    kind: EventKind | None = None,
    facts: Facts = NO_FACTS,
    *,
    remembered: bool = True,
) -> Told:
    """The event of money that went back, or is to; `kind` and `facts` if the order's state changes, too."""
    own: Facts = {"by": command.by} if command.by else {}
    if isinstance(command, Refund) and remembered and command.message is not None:
        own["message"] = command.message
    if before is None or after is None:  # nothing was paid
        return Told(EventKind.REFUNDED, {**own, **facts})
    own |= _about(before, after)
    went_back = after.went_back != before.went_back or after.owed < before.owed  # or a sum reported it before
    came = [one for one in account.differences(before.refunds, after.refunds) if one.state is RefundState.DUE]
    if went_back:
        was, now = (account.sums([one], before.currency) for one in (before, after))
        moved = [one for one in account.changes(was, now) if one.given_back]
        own["amount"] = moved[0].given_back if moved else 0
        own |= {"currency": moved[0].currency} if moved and moved[0].currency is not None else {}
        if order.state in _SOLD and after.given_whole and before.ref == order.payment_ref:
            own |= {"about": "order", "restock": isinstance(command, Refund) and command.restock}
    elif came and came[0].amount is not None:
        own["amount"] = came[0].amount
    usual = EventKind.REFUNDED if went_back else EventKind.REFUND_DUE if came else EventKind.REFUND_NAMED
    return Told(kind or usual, {**own, **facts})


def _about(before: Payment, after: Payment) -> Facts:
    """The facts of a payment after its change."""
    own = known({"about": "payment", "payment_ref": before.ref, "currency": before.currency})
    if refunds := account.differences(before.refunds, after.refunds):
        own["refunds"] = list(map(life.told, refunds))
    if after.disputes != before.disputes:
        own["disputes"] = [one._asdict() for one in after.disputes]
    return own


def _answered(outcome: RefundOutcome | IncidentOutcome, events: list[Told]) -> Ruling:
    """With the outcome beside the name under which it is remembered."""
    said = Facts(outcome=str(outcome))
    return Ruling(outcome, tuple(Told(kind, own | said if "message" in own else own) for kind, own in events))


def _nothing(order: Record, ref: str | None) -> Ruling:
    about = [one for one in order.payments if ref in (None, one.ref)]
    again = any(one.given_whole for one in about) or (ref is None and order.state is OrderState.REFUNDED)
    return Ruling(RefundOutcome.ALREADY_REFUNDED if again else RefundOutcome.NOTHING_DUE)


# -- requests of the cashier -------------------------------------------------------------------------------------------


def _request(order: Record, wish: RequestRefund, fresh: Names, at_s: float) -> Ruling:
    """Note that the cashier is about to ask the provider for a refund, or will try a failed one again."""
    outcome = RequestOutcome
    found = next(((payment, one) for payment, one in order.refunds if one.name == wish.name), None)
    if found is None:
        return Ruling(outcome.NOTHING_DUE)
    payment, one = found
    if one.state is not (RefundState.FAILED if wish.again else RefundState.DUE):
        return Ruling(outcome.ALREADY_REQUESTED if one.state is RefundState.ASKED else outcome.NOTHING_DUE)
    if wish.again:  # under another name: the provider may remember its refusal by the one before
        kind, after = (
            EventKind.REFUND_DUE,
            one._replace(name=fresh(), state=RefundState.DUE, why="", by=wish.by, at=None),
        )
    else:
        kind, after = EventKind.REFUND_REQUESTED, one._replace(state=RefundState.ASKED, at=at_s)
        if one.amount is None and any(other.state is not RefundState.FAILED for other in payment.open if other != one):
            return Ruling(outcome.NOTHING_DUE)  # not yet: it is the rest after the others
    refunds = tuple(after if other == one else other for other in payment.refunds)
    facts = _about(payment, payment._replace(refunds=refunds)) | known({"amount": one.amount})
    return Ruling(outcome.REQUESTED, (Told(kind, facts | (Facts(by=wish.by) if wish.by else {})),))


# -- what happens to payments ------------------------------------------------------------------------------------------


def _incident(order: Record, told: Incident, fresh: Names) -> Ruling:
    """Note a dispute, or a refund that has failed."""
    outcome, payment = IncidentOutcome, order.payment(told.payment_ref)
    if payment is None or order.answered(told.message):
        return Ruling(outcome.ALREADY_NOTED)
    if told.kind is EventKind.REFUND_FAILED:
        failed = Given(told.amount, currency=told.currency, id=told.refund_id, name=told.name, at=told.at, by=told.by)
        after = settle.fail(payment, failed, told.why, fresh)
    else:
        name = told.refund_id or f"{account.NOTICE}{told.message or told.payment_ref}"
        amount = None if settle.is_foreign(payment, told.currency) else told.amount
        after = settle.dispute(payment, account.Dispute(name, amount, _DISPUTES[told.kind]))
    if after == payment:
        return Ruling(outcome.ALREADY_NOTED)
    said: Facts = {"amount": _moved(payment, after, told) or None, "why": told.why or None}
    facts = _about(payment, after) | known(said)
    facts |= {"by": told.by} if told.by else {}
    facts |= {"message": told.message} if told.message else {}
    lost = told.kind is EventKind.DISPUTE_LOST
    if lost and order.state in _SOLD and after.given_whole and payment.ref == order.payment_ref:  # all of it
        facts |= {"about": "order", "restock": False}
    return _answered(outcome.NOTED, [Told(told.kind, facts)])


_DISPUTES: Final = {
    EventKind.DISPUTED: account.DisputeState.OPEN,
    EventKind.DISPUTE_WON: account.DisputeState.WON,
    EventKind.DISPUTE_LOST: account.DisputeState.LOST,
}


def _moved(before: Payment, after: Payment, told: Incident) -> int:
    """The amount of an incident: owed again, or disputed."""
    if told.kind is EventKind.REFUND_FAILED:
        failed = [one for one in after.open if one.state is RefundState.FAILED and one not in before.open]
        return sum(one.amount or 0 for one in failed) or told.amount or 0
    return sum(one.amount or 0 for one in after.disputes if one not in before.disputes)


def owe(order: Record, payment: Payment, why: str, fresh: Names) -> Facts:
    """The facts that make all of a payment owed, as the order does not need it."""
    after = settle.owe(payment, fresh(), None, why=why)
    said: Facts = {"why": why, "amount": payment.amount, "keep": order.payment_ref}
    return _about(payment, after) | known(said)
