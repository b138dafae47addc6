"""The part of the rule that is about money which goes back: pure functions of an order and a command."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from app.orders.commands import Incident, IncidentOutcome, Refund, RefundOutcome, RequestOutcome, RequestRefund
from app.orders.record import NO_FACTS, NO_UNITS, Back, EventKind, OrderState, Part, Record, Request, Units


class Ruling(NamedTuple):
    """What becomes of an order by a command: the event to write (`kind`; None for none), and the `fields` after it."""

    outcome: RefundOutcome | RequestOutcome | IncidentOutcome
    kind: EventKind | None = None
    facts: Mapping[str, Any] = NO_FACTS
    fields: Mapping[str, Any] = NO_FACTS
    units: Units = NO_UNITS
    bought: int = 0


_PAID: Final = (OrderState.SOLD, OrderState.CONFIRMED)


def is_foreign(order: Record, currency: str | None) -> bool:
    """Return whether an amount is said in another currency than the order's."""
    return None not in (currency, order.currency) and currency != order.currency


def needs_layout_2(command: Refund | RequestRefund | Incident) -> bool:
    """Return whether a command leaves something that the release before layout 2 can't read."""
    return not isinstance(command, Refund) or command.later or command.units is not None


def ruling(order: Record, command: Refund | RequestRefund | Incident) -> Ruling:
    """Return what becomes of an order."""
    match command:
        case Refund():
            return _refund(order, command)
        case RequestRefund():
            return _request(order, command)
        case Incident():
            return _incident(order, command)


def _refund(order: Record, given: Refund) -> Ruling:
    """Give back an order, some units of it, a payment that is owed, or a part of one."""
    outcome, ref = RefundOutcome, given.payment_ref
    of_order = order.state in _PAID and ref in (None, order.payment_ref)
    is_wish = given.later or given.units is not None
    if given.message in order.notices and (is_wish or given.message not in _names(order.parts)):
        return Ruling(outcome.PARTLY_REFUNDED)
    if given.units is not None and given.units != order.quantity:
        return _some_units(order, given) if of_order else _nothing(order, ref)
    wrong = (payment.ref for payment in order.wrong_payments)
    owed = tuple(one for one in (*order.refunds_due, *wrong) if ref in (None, one))
    about = ref if ref is not None or given.amount is None else order.payment_ref
    if about is not None and (owed or of_order or any(one.ref == about for one in order.parts)):
        part = _part(order, about, given)
        if part is not None:
            return _give_part(order, about, part, given)
    if owed and (ref is not None or not of_order) and not given.later:
        facts = _by(given) | {"state": order.state, "about": "payment", "payment_refs": list(owed)}
        facts |= _dropped(order, owed)
        refunded = (*order.refunded, *owed)
        due = tuple(one for one in order.refunds_due if one not in owed)
        return Ruling(
            outcome.REFUNDED, EventKind.REFUNDED, facts, {"refunds_due": due, "refunded": refunded} | _rid(order, owed)
        )
    return _whole(order, given) if of_order else _nothing(order, ref)


def _whole(order: Record, given: Refund) -> Ruling:
    facts = _by(given) | {"state": OrderState.REFUNDED, "about": "order", "restock": given.restock}
    units = Units(stock=order.quantity, lucky=-order.quantity) if given.restock else NO_UNITS
    paid = (order.payment_ref,) if order.payment_ref else ()
    facts |= _dropped(order, paid)
    fields: dict[str, Any] = {"state": OrderState.REFUNDED} | _rid(order, paid)
    if paid:
        facts["refunds_due" if given.later else "payment_refs"] = list(paid)
        name = "refunds_due" if given.later else "refunded"
        fields[name] = (*getattr(order, name), *paid)
    return Ruling(RefundOutcome.REFUNDED, EventKind.REFUNDED, facts, fields, units, -order.quantity)


def _some_units(order: Record, given: Refund) -> Ruling:
    count, outcome, ref = given.units or 0, RefundOutcome, order.payment_ref
    if not 0 < count < order.quantity:
        return Ruling(outcome.TOO_MUCH)
    amount = given.amount if given.amount is not None or order.price is None else order.price * count
    facts = _by(given) | {"state": order.state, "about": "units", "units": count, "restock": given.restock}
    fields: dict[str, Any] = {"quantity": order.quantity - count, "notices": _with(order, given.message)}
    if ref is not None and amount:
        if amount > _left(order, ref):
            return Ruling(outcome.TOO_MUCH)
        facts |= {"amount": amount}
        money, own = _money(order, Part(given.message or "", ref, amount), later=given.later)
        facts, fields = facts | own, fields | money
    units = Units(stock=count, lucky=-count) if given.restock else NO_UNITS
    return Ruling(outcome.PARTLY_REFUNDED, EventKind.REFUNDED, facts, fields, units, -count)


def _part(order: Record, ref: str, given: Refund) -> int | None:
    """How much of a payment was given back in all, with this part; None if that is all of it."""
    if given.amount is None and given.so_far is None:
        return None
    foreign = is_foreign(order, given.currency)
    before = order.back_of(ref, given.currency if foreign else None)
    total = given.so_far if given.so_far is not None else before.noted + (given.amount or 0)
    paid = _paid(order, ref)
    whole = not given.part and not foreign and paid is not None and max(total, before.told) >= paid
    return None if whole and given.message not in _names(order.parts) else total


def _give_part(order: Record, ref: str, total: int, given: Refund) -> Ruling:
    """Note a part of a payment, or that one is due. `total`: what was given back of it with this one."""
    outcome, currency = RefundOutcome.PARTLY_REFUNDED, given.currency if is_foreign(order, given.currency) else None
    facts = _by(given) | {"state": order.state, "about": "part"}
    if given.later:
        part = Part(given.message or "", ref, given.amount or 0, currency)
        if part.amount <= 0 or (currency is None and part.amount > _left(order, ref)):
            return Ruling(RefundOutcome.TOO_MUCH)
        money, own = _money(order, part, later=True)
        return Ruling(outcome, EventKind.REFUND_DUE, facts | own, money | {"notices": _with(order, given.message)})
    before = order.back_of(ref, currency)
    after = before._replace(told=total) if given.so_far is not None else before._replace(noted=total)
    done = given.message in _names(order.parts)
    if after.amount <= before.amount and not done and given.so_far is not None:
        return Ruling(outcome)  # it is known already
    facts |= {"payment_refs": [ref], "amount": max(0, after.amount - before.amount), "given_back": after.amount}
    facts |= {"currency": currency} if currency is not None else {}
    facts |= {"message": given.message} if given.message is not None else {}
    fields: dict[str, Any] = {"back": order.with_back(after), "notices": _with(order, given.message)}
    if done:
        fields |= _rid(order, (given.message,))
    return Ruling(outcome, EventKind.REFUNDED, facts, fields)


def _money(order: Record, part: Part, *, later: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields, and the facts, of a part that is given back, or is still to be."""
    if later:
        facts = {"payment_ref": part.ref, "amount": part.amount, "part": part.name, "why": "part"}
        return {"parts": (*order.parts, part)}, facts
    before = order.back_of(part.ref, part.currency)
    after = before._replace(noted=before.noted + part.amount)
    facts = {"payment_refs": [part.ref], "given_back": after.amount}
    return {"back": order.with_back(after)}, facts


def _left(order: Record, ref: str) -> int:
    """What is left of a payment: neither given back, nor due."""
    if ref in order.refunded or ref in order.refunds_due:
        return 0
    due = sum(one.amount for one in order.parts if one.ref == ref and one.currency is None)
    paid = _paid(order, ref)
    return 10**18 if paid is None else paid - order.back_of(ref).amount - due


def _rest(order: Record, ref: str) -> tuple[int | None, str | None]:
    """The amount of a payment without the parts that were given back, and its currency; None: all that is left."""
    payment = order.payment(ref)
    if payment is None or payment.amount is None:
        return None, order.currency
    currency = payment.currency
    return payment.amount - order.back_of(ref, currency).amount, currency or order.currency


def _paid(order: Record, ref: str) -> int | None:
    payment = order.payment(ref)
    if payment is not None and payment.currency is not None:
        return None
    amount = payment and payment.amount
    return order.to_pay if amount is None and ref == order.payment_ref else amount


def _rid(order: Record, names: Iterable[str | None]) -> dict[str, Any]:
    """Return the fields without what was to be done for some payments, or for parts."""
    gone = set(names)
    gone |= {one.name for one in order.parts if one.ref in gone}
    return {
        "parts": tuple(one for one in order.parts if one.name not in gone),
        "requested": tuple(one for one in order.requested if one.name not in gone),
        "failed": tuple(one for one in order.failed if one not in gone),
    }


def _dropped(order: Record, refs: Iterable[str]) -> dict[str, Any]:
    """The parts that were due of payments, as a fact of an event by which all of them are given back."""
    parts = [one.name for one in order.parts if one.ref in refs]
    return {"parts": parts} if parts else {}


def _nothing(order: Record, ref: str | None) -> Ruling:
    again = ref in order.refunded if ref is not None else bool(order.refunded) or order.state is OrderState.REFUNDED
    return Ruling(RefundOutcome.ALREADY_REFUNDED if again else RefundOutcome.NOTHING_DUE)


def _request(order: Record, wish: RequestRefund) -> Ruling:
    """Note that the provider is about to be asked for a refund that is due."""
    outcome, name = RequestOutcome, wish.name
    part = next((one for one in order.parts if one.name == name), None)
    if part is None and name not in order.refunds_due:
        return Ruling(outcome.NOTHING_DUE)
    if name in _names(order.requested):
        return Ruling(outcome.ALREADY_REQUESTED)
    ref = part.ref if part else name
    amount, currency = (part.amount, part.currency or order.currency) if part else _rest(order, name)
    facts: dict[str, Any] = {"state": order.state, "about": "part" if part else "payment", "payment_ref": ref}
    said = {"part": name if part else None, "amount": amount, "currency": currency if amount is not None else None}
    facts |= {fact: one for fact, one in said.items() if one is not None}
    fields = {
        "requested": (*order.requested, Request(name, ref, order.events + 1, amount, currency)),
        "failed": tuple(one for one in order.failed if one != name),
    }
    return Ruling(outcome.REQUESTED, EventKind.REFUND_REQUESTED, facts | ({"by": wish.by} if wish.by else {}), fields)


def _incident(order: Record, told: Incident) -> Ruling:
    """Note a dispute, or a refund that has failed."""
    outcome, ref, fields = IncidentOutcome, told.payment_ref, dict[str, Any]()
    if told.message is not None and told.message in order.notices:
        return Ruling(outcome.ALREADY_NOTED)
    facts: dict[str, Any] = {"state": order.state, "about": "payment", "payment_ref": ref}
    said = {"amount": told.amount, "part": told.name, "why": told.why or None, "by": told.by or None}
    said["currency"] = told.currency if is_foreign(order, told.currency) else None
    facts |= {name: one for name, one in said.items() if one is not None}
    match told.kind:
        case EventKind.DISPUTED:
            if ref in order.disputed:
                return Ruling(outcome.ALREADY_NOTED)
            fields["disputed"] = (*order.disputed, ref)
        case EventKind.DISPUTE_WON | EventKind.DISPUTE_LOST:
            fields["disputed"] = tuple(one for one in order.disputed if one != ref)
            fields["notices"] = _with(order, told.message)  # a dispute that is over is not begun by a late notice
        case _:
            name = told.name or ref
            if name in order.failed:
                return Ruling(outcome.ALREADY_NOTED)
            fields = {"notices": _with(order, told.message), "failed": (*order.failed, name)}
            fields["requested"] = tuple(one for one in order.requested if one.name != name)
            if ref in order.refunded:  # it is owed again
                fields["refunded"] = tuple(one for one in order.refunded if one != ref)
                fields["refunds_due"] = (*order.refunds_due, ref)
            elif told.name is None and told.amount is not None and ref not in order.refunds_due:
                before = order.back_of(ref)
                after = Back(ref, max(0, before.noted - told.amount), max(0, before.told - told.amount))
                part = Part(told.message or ref, ref, told.amount)
                fields |= {"back": order.with_back(after), "parts": (*order.parts, part)}
                fields["failed"], facts["part"] = (*order.failed, part.name), part.name
    return Ruling(outcome.NOTED, told.kind, facts, fields)


def _by(given: Refund) -> dict[str, Any]:
    return {"by": given.by} if given.by else {}


def _names(those: Iterable[Part | Request]) -> set[str]:
    return {one.name for one in those}


def _with(order: Record, message: str | None) -> tuple[str, ...]:
    return order.notices if message is None or message in order.notices else (*order.notices, message)
