"""The sale's commands and their answers. All commands go through one queue and are decided under one grant."""

import hashlib
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from app.orders.id import DEFAULT_SKU, OrderId
from app.orders.record import EventKind, Record


class Outcome(StrEnum):
    """The outcome of a purchase. `hold_required`: the item has a price, so it is held until it is paid."""

    SOLD = "sold"
    SOLD_OUT = "sold_out"
    LIMIT_REACHED = "limit_reached"
    NOT_STARTED = "not_started"
    ENDED = "ended"
    PAUSED = "paused"
    HOLD_REQUIRED = "hold_required"


class HoldOutcome(StrEnum):
    """The outcome of a hold: its units, or why there are none.

    `already_held`: this request has held nothing; the buyer can't have more, and the answer shows the hold that they
    have. `waiting`: others hold the units, and the buyer has a place in line; `already_waiting`: they have had one.
    """

    HELD = "held"
    WAITING = "waiting"
    ALREADY_HELD = "already_held"
    ALREADY_WAITING = "already_waiting"
    SOLD_OUT = "sold_out"
    LIMIT_REACHED = "limit_reached"
    NOT_STARTED = "not_started"
    ENDED = "ended"
    PAUSED = "paused"


class ConfirmOutcome(StrEnum):
    """The outcome of a payment.

    `duplicate_payment`: another payment counts, and this one is owed to the buyer; `payment_ref_in_use`: it belongs to
    another order; `refund_due`: it came too late, and is owed; `amount_mismatch`: an operator has to look.
    """

    CONFIRMED = "confirmed"
    ALREADY_CONFIRMED = "already_confirmed"
    DUPLICATE_PAYMENT = "duplicate_payment"
    PAYMENT_REF_IN_USE = "payment_ref_in_use"
    REFUND_DUE = "refund_due"
    AMOUNT_MISMATCH = "amount_mismatch"
    NOT_FOUND = "not_found"


class ExtendOutcome(StrEnum):
    """The outcome of an extension: the longer window, or how the order stands."""

    EXTENDED = "extended"
    ALREADY_EXTENDED = "already_extended"
    WAITING = "waiting"
    CONFIRMED = "confirmed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUNDED = "refunded"
    NOT_FOUND = "not_found"


class CancelOutcome(StrEnum):
    """The outcome of a cancellation. A confirmed order stays: its money has to be given back first (a refund).

    `partly_cancelled`: some of the units; `too_much`: more than there are, so that nothing was done.
    """

    CANCELLED = "cancelled"
    PARTLY_CANCELLED = "partly_cancelled"
    TOO_MUCH = "too_much"
    ALREADY_CANCELLED = "already_cancelled"
    CONFIRMED = "confirmed"
    EXPIRED = "expired"
    REFUNDED = "refunded"
    NOT_FOUND = "not_found"


class RefundOutcome(StrEnum):
    """The outcome of a refund. `partly_refunded`: a part of a payment, or some of the units, which ends nothing;
    `too_much`: more than is left of the payment, or more units than there are, so that nothing was noted;
    `nothing_due`: nothing was paid that could be given back.
    """

    REFUNDED = "refunded"
    PARTLY_REFUNDED = "partly_refunded"
    TOO_MUCH = "too_much"
    ALREADY_REFUNDED = "already_refunded"
    NOTHING_DUE = "nothing_due"
    NOT_FOUND = "not_found"


class RequestOutcome(StrEnum):
    """The outcome of a wish that the provider is asked for a refund."""

    REQUESTED = "requested"
    ALREADY_REQUESTED = "already_requested"
    NOTHING_DUE = "nothing_due"
    NOT_FOUND = "not_found"


class IncidentOutcome(StrEnum):
    """The outcome of a report on a payment that changes no units."""

    NOTED = "noted"
    ALREADY_NOTED = "already_noted"
    NOT_FOUND = "not_found"


class ExpiryOutcome(StrEnum):
    """The outcome of an expiry: all expired holds were given back, or there are more."""

    DONE = "done"
    MORE = "more"


class NoticeOutcome(StrEnum):
    """The outcome of a notice that asks for nothing."""

    IGNORED = "ignored"


AnyOutcome: TypeAlias = (
    Outcome
    | HoldOutcome
    | ConfirmOutcome
    | ExtendOutcome
    | CancelOutcome
    | RefundOutcome
    | RequestOutcome
    | IncidentOutcome
    | ExpiryOutcome
    | NoticeOutcome
)


class Place(NamedTuple):
    """The place of an order in line, and what stands before it."""

    number: int  # 1: the next one
    held: int  # units that others hold, and may give back
    first_ends_at: float | None = None  # when the first of these holds ends, in seconds since 1970


# Each buyer has one of these: named tuples, as they are made in half the time.
class Purchase(NamedTuple):
    """A buyer's request for units that are sold at once."""

    quantity: int = 1
    sku: str = DEFAULT_SKU
    buyer: str | None = None
    key: str | None = None  # the idempotency key: two purchases of an item with the same one are one
    request_id: str | None = None  # if there is a request id, the order keeps it in a record
    traceparent: str | None = None  # W3C's trace context, kept beside the request's id


class Hold(NamedTuple):
    """A request for units that are paid later."""

    quantity: int = 1
    sku: str = DEFAULT_SKU
    buyer: str | None = None
    key: str | None = None  # as a purchase's
    ref: str | None = None  # the shop's own number
    request_id: str | None = None
    traceparent: str | None = None
    # the shop asks, or has signed the buyer: only then is the buyer shown a hold that they have already
    proven: bool = False
    wait: bool = False  # get in line where others hold the units
    lines: tuple[tuple[str, int], ...] = ()  # other items and their quantities: all units, or none


class Confirm(NamedTuple):
    """A payment for an order has come."""

    sku: str
    number: str
    secret: str
    payment_ref: str
    amount: int | None = None  # in the minor unit of `currency`; None: not reported
    currency: str | None = None
    key: str | None = None
    # the part for the units, without tax, shipping and discounts; it is compared with the price
    subtotal: int | None = None
    paid_at: float | None = None  # by the provider's clock, in seconds since 1970
    # by a provider, which must report the amount if there is a price; the shop itself need not, and means the price
    reported: bool = False


class Extend(NamedTuple):
    """The buyer goes to pay, and gets a second, longer window."""

    sku: str
    number: str
    secret: str
    key: str | None = None


class Cancel(NamedTuple):
    """The buyer wants the units no more."""

    sku: str
    number: str
    secret: str
    by: str = ""  # the operator's name, if not the buyer cancels
    key: str | None = None
    units: int | None = None  # only so many of them; None: all
    message: str | None = None  # its name: a request with the same name is the same
    line: str | None = None  # the item of these units, if it isn't the order's own; without units all of that line


class Refund(NamedTuple):
    """An operator's note about money: it was given back, or has to be given back (`later`)."""

    sku: str
    number: str
    secret: str
    restock: bool  # the units are sold again; else they are gone
    payment_ref: str | None = None  # None: the order's payment, or all that are owed
    by: str = ""  # the operator
    amount: int | None = None  # in the minor unit of the payment's currency; None: all, or the price of the units
    units: int | None = None  # only so many of the order's units
    message: str | None = None  # its name: a request with the same name is the same
    later: bool = False  # the money is owed from now on, and was not given back yet
    name: str | None = None  # the name of the owed refund that was given back; None: the first one that fits
    elsewhere: bool = False  # the money went back in another way, which the provider will never report
    line: str | None = None  # as a cancellation's


class GivenBack(NamedTuple):
    """The provider's word on money that went back. Amounts are in the minor unit of `currency`."""

    sku: str
    number: str
    secret: str
    payment_ref: str
    by: str  # the provider, or the cashier
    amount: int | None = None  # of this refund
    so_far: int | None = None  # the sum of all refunds until `at`; if neither is there, all of the payment went back
    whole: bool = False  # all of the payment went back, whatever the currency of the amount
    currency: str | None = None  # None: the payment's
    refund_id: str | None = None  # the provider's own
    name: str | None = None  # our name of the refund, if the provider repeats it
    notice: str | None = None  # the notice's name, where the refund has none
    at: float | None = None  # by the provider's clock, in seconds since 1970


class RequestRefund(NamedTuple):
    """The cashier is about to ask the provider for a refund that is due."""

    sku: str
    number: str
    secret: str
    name: str  # the refund's
    by: str = ""
    again: bool = False  # an operator wants a failed one to be tried anew


class Incident(NamedTuple):
    """A payment was disputed, or a refund has failed."""

    sku: str
    number: str
    secret: str
    kind: EventKind  # which of these
    payment_ref: str
    amount: int | None = None  # in the minor unit of `currency`
    refund_id: str | None = None  # the provider's own name of the refund or the dispute
    name: str | None = None  # ours, of the refund
    message: str | None = None  # the notice's name, if nothing else distinguishes it from another one
    why: str = ""  # the reason, for people
    by: str = ""
    at: float | None = None  # by the provider's clock, in seconds since 1970
    currency: str | None = None  # None: the payment's


class Expire(NamedTuple):
    """Give back the units of holds that have expired. Every batch does so, too; this is for an item without buyers."""

    sku: str


# About an order that is there already.
OrderCommand: TypeAlias = Confirm | Extend | Cancel | Refund | GivenBack | RequestRefund | Incident
Command: TypeAlias = Purchase | Hold | OrderCommand | Expire

VERBS: Final[dict[type[StrEnum], str]] = {
    HoldOutcome: "hold",
    ConfirmOutcome: "confirm",
    ExtendOutcome: "extend",
    CancelOutcome: "cancel",
    RefundOutcome: "refund",
    RequestOutcome: "request",
    IncidentOutcome: "incident",
    ExpiryOutcome: "expire",
}


# The sentence for a command that was not decided: its request does nothing later, either.
_NOT_DONE: Final[dict[type[Command], str]] = {
    Purchase: "nothing was sold",
    Hold: "nothing was held",
    Confirm: "the payment was not noted",
    Extend: "the hold was not extended",
    Cancel: "nothing was cancelled",
    Refund: "the refund was not noted",
    GivenBack: "the refund was not noted",
    RequestRefund: "no refund was requested",
    Incident: "the report was not noted",
    Expire: "nothing was given back",
}


def not_done(command: Command) -> str:
    """Return the text for a command that was not decided: what has not happened."""
    return _NOT_DONE[type(command)]


def in_doubt(command: Command) -> str:
    """Return the text for a command that was being written: how the client learns its outcome."""
    if getattr(command, "key", None) is not None:
        return "the same idempotency key will tell"
    if isinstance(command, Purchase | Hold):
        return "it may count; with an idempotency key the same request would tell"
    return "the same request again will tell"


def key_of(command: Command) -> str | None:
    """The name under which the store remembers a command's idempotency key: each kind has keys of its own.

    A purchase's is the key itself. Other names begin with a blank, which no key has.
    """
    if type(command) is Purchase:
        return command.key
    key: str | None = getattr(command, "key", None)
    return None if key is None else f" {type(command).__name__.lower()} {key}"


def own_key(kept: str | None) -> str | None:
    """The idempotency key as the client sent it: see `key_of`."""
    return kept and kept.rpartition(" ")[2]


def fingerprint(command: Command) -> tuple[int, str | None]:
    """Return the part that commands with one key must share: quantity and buyer, or a digest of all fields."""
    if isinstance(command, Purchase | Hold):
        return command.quantity, command.buyer
    said = {name: value for name, value in command._asdict().items() if name != "key" and value is not None}
    return 0, hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def basket_of(command: Command) -> str | None:
    """A digest of the other lines of a hold, for its key; None if there are none."""
    lines = command.lines if isinstance(command, Hold) else ()
    return hashlib.sha256(repr(lines).encode()).hexdigest()[:16] if lines else None


class Answer(NamedTuple):
    """The answer to a command."""

    outcome: AnyOutcome
    quantity: int
    order: OrderId | None = None
    replayed: bool = False  # the same idempotency key got it before
    record: Record | None = None  # the order's state afterwards; None for purchases
    refund: str | None = None  # the payment that has to be given back
    place: Place | None = None  # of an order that waits
    line: str | None = None  # of a refused basket, the first item that could not be had
