"""How an order stands after each of its events, by the journal alone: what an answer or a webhook must say of it.

The sums are made here, from what each event says of its payment's refunds and disputes: the program's own account has
no part in this.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from app.orders import EventKind, OrderState, life
from app.orders.facts import Facts
from lab.torture.history import Entry

CONFIRMED: Final = "confirmed"
REFUND_DUE: Final = "refund_due"
MISMATCH: Final = "amount_mismatch"
_AS_IT_BEGAN: Final = ("ref", "price", "currency", "request_id")
_OWED: Final = ("due", "asked", "failed")
_REFUND: Final = {"id": None, "way": "provider", "by": "", "why": "", "at": None, "units": 0, "currency": None}
_HIDDEN: Final = {"by": "", "why": ""}  # from buyers
_MOVED: Final = ("paid", "given_back", "owed", "disputed")
Sums: TypeAlias = dict[str | None, dict[str, Any]]


class Stood(NamedTuple):
    """How an order stood after an event.

    `shown`: to its buyer, by the names of `app.orders.view`; `said`: by the event itself; `sums`: in the minor unit of
    each currency; `attention`: whether an operator has to look.
    """

    shown: dict[str, Any]
    said: dict[str, Any]
    sums: Sums
    attention: bool


def state_after(state: OrderState | None, entry: Entry) -> OrderState | None:
    """Return the state after an event; the one before it if no such event may come then."""
    found = life.step(state, EventKind(entry.kind), entry.quantity, cast(Facts, entry.facts))
    return found.state if found else state


def standings(entries: Sequence[Entry]) -> list[Stood]:
    """Return how an order must stand after each of its events."""
    found, payments, sums = list[Stood](), dict[str, dict[str, Any]](), Sums()
    own: dict[str, Any] = dict.fromkeys((*_AS_IT_BEGAN, "pay_by", "payment_ref")) | {"extended": False}
    state: OrderState | None = None
    for one in entries:
        facts, before, state = one.facts, sums, state_after(state, one)
        said: dict[str, Any] = {"state": state} if one.number > 1 else {}
        if one.number == 1:
            own |= {name: facts.get(name) for name in _AS_IT_BEGAN}
        if "pay_by" in facts:
            own |= {"pay_by": facts["pay_by"], "extended": one.kind == "extended"}
        if one.kind == CONFIRMED:
            own["payment_ref"] = facts.get("payment_ref")
        currency = own["currency"]
        if "payment_ref" in facts:
            _pay(payments, one)
            sums = _sums(payments.values(), currency)
            said |= {"sums": list(sums.values()), "changes": _changes(before, sums)}
        price, total = own["price"], sums.get(currency) or _nothing(currency)
        own |= {"id": one.order, "sku": one.sku, "state": state, "quantity": one.quantity, "buyer": one.buyer}
        lines = [{name: line.get(name) for name in ("sku", "quantity", "price")} for line in facts.get("lines", ())]
        lines.insert(0, {"sku": one.sku, "quantity": one.quantity, "price": price})
        to_pay = None if price is None else sum(line["price"] * line["quantity"] for line in lines)
        own |= {"items": lines, "to_pay": to_pay} | {name: total[name] for name in total if name != "currency"}
        own |= {"other_currencies": [its for name, its in sums.items() if name != currency]}
        own |= {"payments": list(map(_shown, payments.values()))}
        found.append(Stood(dict(own), said, sums, any(map(_needs_attention, payments.values()))))
    return found


def _pay(payments: dict[str, dict[str, Any]], one: Entry) -> None:
    """Note what an event says of a payment."""
    facts, ref = one.facts, one.facts["payment_ref"]
    is_new, second = ref not in payments, any(its["state"] == "counts" for its in payments.values())
    nothing = {"ref": ref, "amount": None, "currency": None, "state": "counts", "refunds": {}, "disputes": {}}
    its = payments.setdefault(ref, nothing)
    if is_new or one.kind in (CONFIRMED, MISMATCH):
        its |= {name: facts[name] for name in ("amount", "currency") if name in facts}
    if one.kind in (CONFIRMED, MISMATCH):
        its["state"] = "counts" if one.kind == CONFIRMED else "wrong"
    elif is_new and one.kind == REFUND_DUE:
        its["state"] = "second" if second else "late"
    for refund in facts.get("refunds", ()):
        if refund["state"] == "settled":
            its["refunds"].pop(refund["name"], None)
        else:
            its["refunds"][refund["name"]] = _REFUND | refund
    if "disputes" in facts:
        its["disputes"] = {dispute["name"]: dispute for dispute in facts["disputes"]}


def _of(its: Mapping[str, Any], what: str, *states: str) -> list[dict[str, Any]]:
    """Return the refunds or disputes of a payment that are in one of these states, and in its own currency."""
    return [one for one in its[what].values() if one["state"] in states and one.get("currency") is None]


def _total(those: Iterable[Mapping[str, Any]]) -> int:
    return sum(one["amount"] or 0 for one in those)


def _sums(payments: Iterable[Mapping[str, Any]], currency: str | None) -> Sums:
    found: Sums = {currency: _nothing(currency)}
    for its in payments:
        own = found.setdefault(its["currency"], _nothing(its["currency"]))
        back = [*_of(its, "refunds", "given"), *_of(its, "disputes", "lost")]
        owed, disputed = _of(its, "refunds", *_OWED), _of(its, "disputes", "open")
        gone = _total(back)
        paid = gone if its["amount"] is None else its["amount"]  # so much at least
        own["paid"] += paid
        own["given_back"] += gone
        own["owed"] += _total(owed)
        own["disputed"] += sum(max(0, paid - gone) if one["amount"] is None else one["amount"] for one in disputed)
        own["unknown"] |= any(one["amount"] is None for one in (its, *back, *owed) if one.get("state") != "lost")
        for one in its["refunds"].values():
            where = {"given": "given_back", **dict.fromkeys(_OWED, "owed")}.get(one["state"])
            if one["currency"] is not None and where is not None:
                found.setdefault(one["currency"], _nothing(one["currency"]))[where] += one["amount"]
    for one in found.values():
        one["kept"] = one["paid"] - one["given_back"]
    some = {name: one for name, one in found.items() if one["unknown"] or any(map(one.get, _MOVED))}
    return some or dict(list(found.items())[:1])


def _nothing(currency: str | None) -> dict[str, Any]:
    return {"currency": currency, **dict.fromkeys(_MOVED, 0), "unknown": False, "kept": 0}


def _changes(before: Sums, after: Sums) -> list[dict[str, Any]]:
    """Return by how much the sums are others now."""
    found = list[dict[str, Any]]()
    for name in {**after, **before}:
        was, now = before.get(name, _nothing(name)), after.get(name, _nothing(name))
        moved = {of: now[of] - was[of] for of in _MOVED if now[of] != was[of]}
        found += [{"currency": name} | moved] if moved else []
    return found


def _waits(its: Mapping[str, Any]) -> bool:
    """Whether a payment of a wrong amount waits for an operator."""
    gone = [*_of(its, "refunds", "given", *_OWED), *_of(its, "disputes", "lost")]
    left = its["amount"] - _total(gone) if its["amount"] is not None else all(one["amount"] for one in gone)
    return bool(its["state"] == "wrong" and left > 0)


def _needs_attention(its: Mapping[str, Any]) -> bool:
    owed = any(one["state"] in _OWED for one in its["refunds"].values())
    return _waits(its) or owed or bool(_of(its, "disputes", "open"))


def _shown(its: Mapping[str, Any]) -> dict[str, Any]:
    back = [*_of(its, "refunds", "given"), *_of(its, "disputes", "lost")]
    own = {"given_back": _total(back), "owed": _total(_of(its, "refunds", *_OWED)), "waits": _waits(its)}
    refunds = [one | _HIDDEN for one in its["refunds"].values()]
    return {**its, **own, "refunds": refunds, "disputes": list(its["disputes"].values())}


def announced(one: Entry, stood: Stood) -> dict[str, Any]:
    """Return all that the webhook of an event must say beside the order's own numbers. `stood`: the order after it."""
    about = {"about": one.facts.get("about") or "order", "sku": one.sku, "ref": stood.shown["ref"]}
    items = [dict(line) for line in stood.shown["items"]]
    items[0]["price"] = one.facts.get("price")  # the event by which the order began says it
    facts = {name: fact for name, fact in one.facts.items() if name != "lines"}
    return {**facts, **stood.said, "state": stood.shown["state"], **about, "items": items}
