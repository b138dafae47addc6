"""The part of the rule that is about money which goes back: pure functions of an order and a command.

Of each payment the record knows what was given back in parts (`Back`), what is still to be (`refunds_due`, a whole
payment by its name; `parts`), and what was given back as a whole (`refunded`). A refund that has failed is due again,
under its own name, and is in `failed` until somebody has looked.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from app.orders.commands import Incident, IncidentOutcome, Refund, RefundOutcome, RequestOutcome, RequestRefund
from app.orders.record import (
    NO_FACTS,
    NO_UNITS,
    Back,
    Dispute,
    EventKind,
    Failure,
    OrderState,
    Part,
    Payment,
    Record,
    Request,
    Units,
)


class Ruling(NamedTuple):
    """What becomes of an order by a command: the event to write (`kind`; None for none), and the `fields` after it.

    `then`: what else does, by an event of its own.
    """

    outcome: RefundOutcome | RequestOutcome | IncidentOutcome
    kind: EventKind | None = None
    facts: Mapping[str, Any] = NO_FACTS
    fields: Mapping[str, Any] = NO_FACTS
    units: Units = NO_UNITS
    bought: int = 0
    then: "Ruling | None" = None


_PAID: Final = (OrderState.SOLD, OrderState.CONFIRMED)
_ANY: Final = 10**18  # more than any payment, where nobody has said how much it was


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


# -- refunds -----------------------------------------------------------------------------------------------------------


def _refund(order: Record, given: Refund) -> Ruling:  # noqa: PLR0911 - a case each
    """Give back an order, some units of it, a payment that is owed, or a part of one."""
    outcome, ref = RefundOutcome, given.payment_ref
    of_order = order.state in _PAID and ref in (None, order.payment_ref)
    if given.of_part is not None:
        return _give_due_part(order, given)
    if given.message is not None and given.message in order.notices:
        known = given.amount is not None or given.so_far is not None or given.units is not None
        return Ruling(outcome.PARTLY_REFUNDED if known else outcome.ALREADY_REFUNDED)
    if given.units is not None and (given.units != order.quantity or given.amount is not None):
        return _give_units(order, given) if of_order else _nothing(order, ref)
    wrong = (payment.ref for payment in order.wrong_payments)
    owed = tuple(one for one in (*order.refunds_due, *wrong) if ref in (None, one))
    about = ref or (order.payment_ref if of_order else owed[0] if len(owed) == 1 else None)
    if given.amount is not None or given.so_far is not None:
        if about is None or not (owed or of_order):
            return _nothing(order, ref) if about is not None else Ruling(outcome.TOO_MUCH)
        found = _give_part(order, about, given)
        if found is not None:
            return found
        owed = tuple(one for one in owed if one == about)
        of_order = order.state in _PAID and about == order.payment_ref
    if owed and (ref is not None or not of_order) and not given.later:
        return _give_owed(order, owed, given)
    return _give_order(order, given) if of_order else _nothing(order, ref)


def _give_owed(order: Record, owed: tuple[str, ...], given: Refund) -> Ruling:
    if any(_is_old_news(order, ref, given) for ref in owed):
        return Ruling(RefundOutcome.ALREADY_REFUNDED)
    facts = _by(given) | {"state": order.state, "about": "payment", "payment_refs": list(owed)} | _dropped(order, owed)
    due = tuple(one for one in order.refunds_due if one not in owed)
    fields: dict[str, Any] = {"refunds_due": due, "refunded": (*order.refunded, *owed)} | _rid(order, owed)
    return Ruling(RefundOutcome.REFUNDED, EventKind.REFUNDED, facts, fields | _noticed(order, given))


def _give_order(order: Record, given: Refund) -> Ruling:
    facts = _by(given) | {"state": OrderState.REFUNDED, "about": "order", "restock": given.restock}
    units = Units(stock=order.quantity, lucky=-order.quantity) if given.restock else NO_UNITS
    paid = (order.payment_ref,) if order.payment_ref else ()
    old = any(_is_old_news(order, ref, given) for ref in paid)
    later = given.later or old
    fields: dict[str, Any] = {"state": OrderState.REFUNDED} | _noticed(order, given)
    if later:  # what the provider is about to give back is not to be given back with the rest
        flying = {one.name for one in order.requested}
        dropped = [one for one in order.parts if one.ref in paid and one.name not in flying]
        facts |= {"parts": [one.name for one in dropped]} if dropped else {}
        fields["parts"] = tuple(one for one in order.parts if one not in dropped)
        fields["refunds_due"], facts["refunds_due"] = (*order.refunds_due, *paid), list(paid)
        if old:  # it has come back since
            names = {one.name for one in dropped}
            fields["failed"] = (*(one for one in order.failed if one not in names), *paid)
    else:
        facts |= _dropped(order, paid) | ({"payment_refs": list(paid)} if paid else {})
        fields |= {"refunded": (*order.refunded, *paid)} | _rid(order, paid)
    return Ruling(RefundOutcome.REFUNDED, EventKind.REFUNDED, facts, fields, units, -order.quantity)


def _give_units(order: Record, given: Refund) -> Ruling:
    """Give back some units, with their price or the amount that is said; or all, and not all of the money."""
    count, outcome, ref = given.units or 0, RefundOutcome, order.payment_ref
    amount = given.amount if given.amount is not None or order.price is None else order.price * count
    if not 0 < count <= order.quantity or (ref is not None and given.later and not amount):
        return Ruling(outcome.TOO_MUCH)
    ends = count == order.quantity
    state = OrderState.REFUNDED if ends else order.state
    facts = _by(given) | {"state": state, "about": "order" if ends else "units", "restock": given.restock}
    facts |= {} if ends else {"units": count}
    fields: dict[str, Any] = {"state": state} if ends else {"quantity": order.quantity - count}
    then = None
    if ref is not None and amount:
        if amount > _left(order, ref):
            return Ruling(outcome.TOO_MUCH)
        if order.payment(ref) is None or order.amount is None:  # what all of the units cost is known only now
            fields["payments"] = order.with_payment(Payment(ref, order.to_pay))
        part = Part(given.message or "", ref, amount)
        if given.later:
            then = _owe_part(order, part, _by(given) | {"state": state})
        else:
            after = _more(order, part)
            fields["back"], facts["given_back"] = order.with_back(after), after.amount
            facts |= {"amount": amount}
    units = Units(stock=count, lucky=-count) if given.restock else NO_UNITS
    told = outcome.REFUNDED if ends else outcome.PARTLY_REFUNDED
    return Ruling(told, EventKind.REFUNDED, facts, fields | _noticed(order, given), units, -count, then)


def _give_part(order: Record, ref: str, given: Refund) -> Ruling | None:  # noqa: PLR0911 - a case each
    """Note a part of a payment, or that one is due; None if with it all of the payment was given back."""
    outcome, currency = RefundOutcome, given.currency if is_foreign(order, given.currency) else None
    if given.later:
        part = Part(given.message or "", ref, given.amount or 0, currency)
        if part.amount <= 0 or part.amount > _left(order, ref, currency):
            return Ruling(outcome.TOO_MUCH)
        found = _owe_part(order, part, _by(given) | {"state": order.state})
        return found._replace(fields={**found.fields, **_noticed(order, given)})
    if _is_old_news(order, ref, given):
        return Ruling(outcome.PARTLY_REFUNDED)
    before, paid = order.back_of(ref, currency), _paid(order, ref, currency)
    if given.disputed:
        after = before._replace(disputed=before.disputed + (given.amount or 0))
    elif given.so_far is not None:
        after = before._replace(told=given.so_far)
    else:
        after = before._replace(noted=before.noted + (given.amount or 0))
    if not given.notice and paid is not None and after.amount > paid:
        return Ruling(outcome.TOO_MUCH)
    if not given.part and paid is not None and after.amount >= paid:
        return None
    if after.amount <= before.amount and given.so_far is not None:
        return Ruling(outcome.PARTLY_REFUNDED)  # it is known already
    facts = _given(order, given, ref, after, after.amount - before.amount)
    return Ruling(
        outcome.PARTLY_REFUNDED, EventKind.REFUNDED, facts, {"back": order.with_back(after)} | _noticed(order, given)
    )


def _owe_part(order: Record, part: Part, facts: Mapping[str, Any]) -> Ruling:
    own = {**facts, "about": "part", "payment_ref": part.ref, "amount": part.amount, "part": part.name, "why": "part"}
    own |= {"currency": part.currency} if part.currency else {}
    return Ruling(RefundOutcome.PARTLY_REFUNDED, EventKind.REFUND_DUE, own, {"parts": (*order.parts, part)})


def _give_due_part(order: Record, given: Refund) -> Ruling:
    """Note that a part which was due is given back; if it was less, the rest stays due."""
    part = next((one for one in order.parts if one.name == given.of_part), None)
    if part is None:
        known = given.of_part in order.notices
        return Ruling(RefundOutcome.PARTLY_REFUNDED if known else RefundOutcome.NOTHING_DUE)
    amount = part.amount if given.amount is None else min(given.amount, part.amount)
    before = order.back_of(part.ref, part.currency)
    after = before if part.ref in order.refunded else _more(order, part._replace(amount=amount))
    rest = part._replace(amount=part.amount - amount)
    fields: dict[str, Any] = {"back": order.with_back(after), "notices": _with(order, part.name)}
    fields |= _rid(order, (part.name,))
    facts = _given(order, given, part.ref, after, max(0, after.amount - before.amount) or amount)
    if rest.amount:
        fields["parts"], facts["part"] = (*fields["parts"], rest), part.name
    facts |= {"message": part.name} | ({"currency": part.currency} if part.currency else {})
    paid = _paid(order, part.ref, part.currency)
    done = paid is not None and after.amount >= paid and not rest.amount
    if done and order.state in _PAID and part.ref == order.payment_ref:  # it was the last of all that was paid
        facts |= {"state": OrderState.REFUNDED, "about": "order", "restock": False, "payment_refs": [part.ref]}
        fields |= {"state": OrderState.REFUNDED, "refunded": (*order.refunded, part.ref)}
        facts["parts"] = [part.name]
        return Ruling(RefundOutcome.REFUNDED, EventKind.REFUNDED, facts, fields, bought=-order.quantity)
    return Ruling(RefundOutcome.PARTLY_REFUNDED, EventKind.REFUNDED, facts, fields)


def _given(order: Record, given: Refund, ref: str, after: Back, amount: int) -> dict[str, Any]:
    facts = _by(given) | {"state": order.state, "about": "part", "payment_refs": [ref], "amount": amount}
    facts |= {"given_back": after.amount} | ({"currency": after.currency} if after.currency is not None else {})
    return facts | ({"message": given.message} if given.message is not None else {})


def _more(order: Record, part: Part) -> Back:
    before = order.back_of(part.ref, part.currency)
    return before._replace(noted=before.noted + part.amount)


def _left(order: Record, ref: str, currency: str | None = None) -> int:
    """What is left of a payment: neither given back, nor due."""
    if ref in order.refunded or ref in order.refunds_due:
        return 0
    paid = _paid(order, ref, currency)
    return _ANY if paid is None else paid - order.back_of(ref, currency).amount - _due(order, ref, currency)


def _due(order: Record, ref: str, currency: str | None) -> int:
    return sum(one.amount for one in order.parts if (one.ref, one.currency) == (ref, currency))


def _paid(order: Record, ref: str, currency: str | None = None) -> int | None:
    """What was paid with a payment in this currency (None: the order's); None if nobody has said it."""
    payment = order.payment(ref)
    if payment is not None and payment.currency != currency:
        return None
    amount = payment and payment.amount
    return order.to_pay if amount is None and ref == order.payment_ref and currency is None else amount


def _is_old_news(order: Record, ref: str, given: Refund) -> bool:
    """Return whether a notice may be of the very refund that came back: those come late, and in any order."""
    if not given.notice:
        return False
    failures = (one.at for one in order.failures if one.ref == ref)
    return any(None in (at, given.at) or (given.at or 0) <= (at or 0) for at in failures)


def _rid(order: Record, names: Iterable[str]) -> dict[str, Any]:
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


# -- requests of the cashier -------------------------------------------------------------------------------------------


def _request(order: Record, wish: RequestRefund) -> Ruling:
    """Note that the provider is about to be asked for a refund that is due."""
    outcome, name = RequestOutcome, wish.name
    part = next((one for one in order.parts if one.name == name), None)
    if part is None and (name not in order.refunds_due or any(one.ref == name for one in order.parts)):
        return Ruling(outcome.NOTHING_DUE)  # or not yet: its parts come first, then what is left
    if any(one.name == name for one in order.requested):
        return Ruling(outcome.ALREADY_REQUESTED)
    ref = part.ref if part else name
    amount, currency = (part.amount, part.currency or order.currency) if part else _rest(order, name)
    if amount == 0:  # such as of a payment that was free, or of which all parts were given back
        settled = {"state": order.state, "about": "payment", "payment_refs": [ref]}
        due = tuple(one for one in order.refunds_due if one != ref)
        fields = {"refunds_due": due, "refunded": (*order.refunded, ref)} | _rid(order, (ref,))
        return Ruling(outcome.NOTHING_DUE, EventKind.REFUNDED, settled | ({"by": wish.by} if wish.by else {}), fields)
    facts: dict[str, Any] = {"state": order.state, "about": "part" if part else "payment", "payment_ref": ref}
    said = {"part": name if part else None, "amount": amount, "currency": currency if amount is not None else None}
    facts |= {fact: one for fact, one in said.items() if one is not None}
    fields = {
        "requested": (*order.requested, Request(name, ref, order.events + 1, amount, currency)),
        "failed": tuple(one for one in order.failed if one != name),
    }
    return Ruling(outcome.REQUESTED, EventKind.REFUND_REQUESTED, facts | ({"by": wish.by} if wish.by else {}), fields)


def _rest(order: Record, ref: str) -> tuple[int | None, str | None]:
    """The amount of a payment without the parts that were given back, and its currency; None: all that is left."""
    payment = order.payment(ref)
    if payment is None or payment.amount is None:
        return None, order.currency
    currency = payment.currency
    return max(0, payment.amount - order.back_of(ref, currency).amount), currency or order.currency


# -- what happens to payments ------------------------------------------------------------------------------------------


def _incident(order: Record, told: Incident) -> Ruling:
    """Note a dispute, or a refund that has failed."""
    outcome, ref = IncidentOutcome, told.payment_ref
    if told.message and told.message in order.notices:
        return Ruling(outcome.ALREADY_NOTED)
    facts: dict[str, Any] = {"state": order.state, "about": "payment", "payment_ref": ref}
    said: dict[str, Any] = {"amount": told.amount, "why": told.why or None, "by": told.by or None}
    said["currency"] = told.currency if is_foreign(order, told.currency) else None
    facts |= {name: one for name, one in said.items() if one is not None}
    notices = {"notices": _with(order, told.message)} if told.message else {}
    match told.kind:
        case EventKind.DISPUTED:
            if any(one.name == (told.message or ref) for one in order.disputes):
                return Ruling(outcome.ALREADY_NOTED)
            begun = Dispute(told.message or ref, ref)
            return Ruling(outcome.NOTED, told.kind, facts, {"disputes": (*order.disputes, begun)})
        case EventKind.DISPUTE_WON | EventKind.DISPUTE_LOST:
            # By its name, where the provider gives it one; else all of the payment.
            named = [one for one in order.disputes if one.name == told.message]
            over = named or [one for one in order.disputes if one.ref == ref]
            left = tuple(one for one in order.disputes if one not in over)
            # A dispute that is over is not begun by a late notice.
            return Ruling(outcome.NOTED, told.kind, facts, {"disputes": left} | notices)
    found = _failed(order, told)
    if found is None:
        return Ruling(outcome.ALREADY_NOTED)
    name, fields = found
    facts |= {"part": name} if name != ref else {}
    return Ruling(outcome.NOTED, told.kind, facts, fields | notices)


def _failed(order: Record, told: Incident) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the refund that has failed, which is due (again), and the fields; None if it is known."""
    ref, name = told.payment_ref, told.name or told.payment_ref
    if told.request is not None and not any(one.event == told.request for one in order.requested):
        return None  # it was noted otherwise meanwhile
    currency = told.currency if is_foreign(order, told.currency) else None
    before, paid = order.back_of(ref, currency), _paid(order, ref, currency)
    amount = told.amount or before.amount
    fields: dict[str, Any] = {}
    came_back = told.request is None and told.name is None and 0 < amount <= before.amount
    less = before._replace(noted=max(0, before.noted - amount), told=max(0, before.told - amount))
    if any(one.name == name for one in order.parts) or (name in order.refunds_due and not came_back):
        pass  # it was under way
    elif ref in order.refunds_due:
        fields["back"], name = order.with_back(less), ref  # so much more of it is due
    elif ref in order.refunded and (told.amount is None or paid is None or told.amount >= paid):
        name = ref
        fields["refunded"] = tuple(one for one in order.refunded if one != ref)
        fields["refunds_due"] = (*order.refunds_due, ref)
    elif (flying := _under_way(order, ref, amount)) is not None and not came_back:
        name = flying.name
    elif amount:  # a part of it was given back, and is due again
        name = told.name or told.message or f"{ref} again"
        if ref not in order.refunded:
            fields["back"] = order.with_back(less)
        part = Part(name, ref, min(amount, paid if paid is not None else _ANY), currency)
        fields["parts"] = (*order.parts, part)
    if told.request is None:
        ats = [told.at, *(one.at for one in order.failures if one.ref == ref)]
        last = Failure(ref, None if None in ats else max(at for at in ats if at is not None))
        if last not in order.failures:
            fields["failures"] = (*(one for one in order.failures if one.ref != ref), last)
    if name in order.failed and not fields:
        return None
    fields["requested"] = tuple(one for one in order.requested if one.name != name)
    fields["failed"] = (*(one for one in order.failed if one != name), name)
    return name, fields


def _under_way(order: Record, ref: str, amount: int) -> Part | None:
    """A part of that amount which the provider was asked for."""
    asked = {*(one.name for one in order.requested), *order.failed}
    return next((one for one in order.parts if (one.ref, one.amount) == (ref, amount) and one.name in asked), None)


def _by(given: Refund) -> dict[str, Any]:
    return {"by": given.by} if given.by else {}


def _noticed(order: Record, given: Refund) -> dict[str, Any]:
    return {"notices": _with(order, given.message)} if given.message else {}


def _with(order: Record, message: str | None) -> tuple[str, ...]:
    return order.notices if message is None or message in order.notices else (*order.notices, message)
