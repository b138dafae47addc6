"""How an order stands after each of its events, by the journal alone: what an answer or a webhook must say of it."""

from collections.abc import Sequence
from typing import Any, Final

from app.orders import EventKind, OrderState, life
from lab.torture.history import Entry

CONFIRMED: Final = "confirmed"
REFUND_DUE: Final = "refund_due"
_AS_IT_BEGAN: Final = ("ref", "price", "currency", "request_id")
_OF_A_PAYMENT: Final = ("amount_mismatch", REFUND_DUE)


def state_after(state: OrderState | None, entry: Entry) -> OrderState | None:
    """Return the state after an event; the one before it if no such event may come then."""
    found = life.step(state, EventKind(entry.kind), entry.quantity, entry.facts)
    return found[0] if found else state


def standings(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return how an order must be shown after each of its events, by the names of `app.orders.view`."""
    found, amounts = list[dict[str, Any]](), dict[str, int]()
    own: dict[str, Any] = dict.fromkeys((*_AS_IT_BEGAN, "pay_by", "payment_ref")) | {"extended": False}
    state: OrderState | None = None
    owed, back = list[str](), list[str]()
    for one in entries:
        facts, state = one.facts, state_after(state, one)
        ref = facts.get("payment_ref", "")
        if one.number == 1:
            own |= {name: facts.get(name) for name in _AS_IT_BEGAN}
        if "pay_by" in facts:
            own |= {"pay_by": facts["pay_by"], "extended": one.kind == "extended"}
        if ref:
            amounts[ref] = facts.get("amount") or 0
        if one.kind == CONFIRMED:
            own["payment_ref"] = ref
        elif one.kind == REFUND_DUE and "part" not in facts:
            owed.append(ref)
        elif one.kind == "refunded" and facts.get("about") not in ("part", "units"):
            done = facts.get("payment_refs", ())
            owed = [name for name in owed if name not in done] + list(facts.get("refunds_due", ()))
            back += done
        elif one.kind == "refund_failed" and ref in back:
            back.remove(ref)
            owed.append(ref)
        price, counts = own.get("price"), own.get("payment_ref")
        own |= {"id": one.order, "sku": one.sku, "state": state, "quantity": one.quantity, "buyer": one.buyer}
        own |= {"to_pay": price and price * one.quantity, "amount": amounts.get(counts or "")}
        own |= {"amount_mismatch": bool(amounts.keys() - {counts, *owed, *back})}
        own |= {"refunds_due": [*owed], "amount_due": sum(amounts.get(name, 0) for name in owed)}
        own |= {"refunded": [*back], "amount_refunded": sum(amounts.get(name, 0) for name in back)}
        own |= {"parts_due": [], "disputed": [], "failed": []}  # nobody asks for them
        found.append(dict(own))
    return found


def announced(one: Entry, stood: dict[str, Any]) -> dict[str, Any]:
    """Return all that the webhook of an event must say beside the order's own numbers. `stood`: the order after it."""
    of_payment = one.kind in _OF_A_PAYMENT or (one.kind == "refunded" and "restock" not in one.facts)
    about = one.facts.get("about") or ("payment" if of_payment else "order")
    return one.facts | {"state": stood["state"], "about": about, "sku": one.sku, "ref": stood["ref"]}
