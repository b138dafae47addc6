"""The operators' log: each change with the operator's name, before and after."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from app import money
from app.orders import DEFAULT, NONE, TERMS, EventKind, OrderChange, Record, RefundState, Sums, Terms


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the operators' log."""

    at: float  # in seconds since 1970, by the store's clock
    by: str  # the operator
    what: str
    sku: str
    before: Mapping[str, Any]  # facts of the item
    after: Mapping[str, Any]  # likewise

    @property
    def difference(self) -> str:
        """The facts that have changed, for people; and of which order, if they are one's."""
        before, after = _said(self.before), _said(self.after)
        order = f"{self.after['order']}: " if "order" in self.after else ""
        return order + ", ".join(
            f"{_NAMES.get(name, name)} {before.get(name, _missing(name))} -> {after.get(name, _missing(name))}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        )


def _missing(name: str) -> str:
    return DEFAULT if name in TERMS and TERMS[name].has_default else NONE


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an item for people: times as times, and its price with its currency."""
    terms = {name: value for name, value in facts.items() if name in TERMS and TERMS[name].may_be_kept(value)}
    amounts = {name: money.written(facts[name], terms.get("currency")) for name in _AMOUNTS if name in facts}
    for currency, sums in facts.get(_OTHERS, {}).items():
        for name, amount in sums.items():
            amounts[f"{_NAMES.get(name, name)} in {currency}"] = money.written(amount, currency or None)
    others = {name: value for name, value in facts.items() if name not in TERMS and name != _OTHERS}
    return others | amounts | Terms(**terms).written


class LogNote(NamedTuple):
    """A line for the operators' log, without its time and its item."""

    by: str
    what: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


_WORDS: Final = {EventKind.CANCELLED: "cancel", EventKind.REFUND_DUE: "refund", EventKind.REFUNDED: "refund"}
_AMOUNTS: Final = ("paid", "given_back", "owed")
_OTHERS: Final = "other_currencies"
_NAMES: Final = {"given_back": "given back", "failed": "failed refunds"}


def note_of(sku: str, change: OrderChange) -> LogNote | None:
    """The line for a change of an order, if it is an operator's."""
    by, what = change.own_facts.get("by"), _WORDS.get(change.kind)
    if not by or what is None or " " in by:  # the cashier, and the provider
        return None
    return LogNote(by, what, _standing_of(sku, change.before), _standing_of(sku, change.after))


def _standing_of(sku: str, record: Record) -> dict[str, Any]:
    own: dict[str, Any] = _amounts(record.own_sums)
    others = {one.currency or "": _amounts(one) for key, one in record.sums.items() if key != record.currency}
    own[_OTHERS] = {currency: amounts for currency, amounts in others.items() if amounts}
    own["failed"] = sum(one.state is RefundState.FAILED for _, one in record.refunds)
    own |= {"currency": record.currency} if record.currency else {}
    about = {"order": record.id_of(sku).name, "state": str(record.state), "units": record.quantity}
    return about | {name: value for name, value in own.items() if value}


def _amounts(sums: Sums) -> dict[str, int]:
    return {name: amount for name in _AMOUNTS if (amount := getattr(sums, name))}
