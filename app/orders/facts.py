"""The facts that an event says beside its order, kind and units: the names of its own, and no others."""

from typing import Any, Final, TypedDict


class Facts(TypedDict, total=False):
    """The facts of an event; None and left out are the same. Amounts are in the minor unit of `currency`.

    Times are in seconds since 1970.
    """

    about: str  # "payment", "units" or "order", the usual one
    amount: int | None
    by: str
    changes: list[dict[str, Any]]  # of the order's sums, by currency
    currency: str | None
    disputes: list[dict[str, Any]]  # all of the payment, as they are now
    expected: int | None  # the amount that was to be paid
    goes_back_at: float
    in_time: bool  # whether a payment that was reported too late was made before the end
    keep: str | None  # the payment that counts, which is not to be given back
    late: bool  # the order had expired before
    line: str | None  # the item of a basket whose units these are
    lines: list[dict[str, Any]] | None
    message: str  # the name of a request or a notice that counts once
    outcome: str  # the answer to that
    paid_at: float | None
    part_of: str | None  # the order of which this is a line
    pay_by: float
    payment_ref: str
    price: int | None
    ref: str | None  # the shop's own number
    refunds: list[dict[str, Any]]  # of the payment, those that have changed
    request_id: str | None
    restock: bool  # the units are sold again
    state: str  # of the order after it
    subtotal: int | None
    sums: list[dict[str, Any]]  # of the order after it, by currency
    traceparent: str | None
    units: int
    why: str | None


NO_FACTS: Final[Facts] = {}


def known(facts: Facts) -> Facts:
    """These facts without None."""
    return {name: one for name, one in facts.items() if one is not None}  # type: ignore[return-value]
