"""An order: its parts, its changes, and the rules.

    purchase --> sold ------------------------------------------+
                                                                |  refund
    hold -----> held --- confirm (paid, in time) --> confirmed -+-------> refunded
                 |  \\                                    ^
                 |   +-- deadline and grace --> expired -+ confirm (paid late, and units are left)
                 |                                 |
                 +------ cancel --> cancelled      +---> a payment that can't be had is owed: `refund_due`

Each arrow is an event, an entry in the journal of the item, written together with the numbers that it changes. Beside
the journal the store keeps how each order stands: its record. A payment that is of a wrong amount, late or one too many
changes no state; it is an event, and waits until an operator has given it back.

`id` knows how an order is called, `account` where each cent of its money is, `settle` where it goes,
`record` how it stands, `life` which event
may come next and the record that it makes, `terms` on what conditions an item is sold, `commands` what may be asked,
`snapshot` on what is decided, `decision` the rule, `refunds` the part of it that is about money that goes back, and
`view` how people and programs are shown an order.
"""

from app.orders.account import Payment, PaymentRefund, PaymentState, RefundState, Sums, Way
from app.orders.commands import (
    Answer,
    Cancel,
    CancelOutcome,
    Command,
    Confirm,
    ConfirmOutcome,
    Expire,
    ExpiryOutcome,
    Extend,
    ExtendOutcome,
    GivenBack,
    Hold,
    HoldOutcome,
    Incident,
    IncidentOutcome,
    NoticeOutcome,
    OrderCommand,
    Outcome,
    Place,
    Purchase,
    Refund,
    RefundOutcome,
    RequestOutcome,
    RequestRefund,
)
from app.orders.decision import decide
from app.orders.id import DEFAULT_SKU, SKU_PATTERN, OrderId, new_secrets
from app.orders.record import (
    ERASED,
    NO_UNITS,
    OPEN,
    Event,
    EventKind,
    Order,
    OrderChange,
    OrderState,
    Record,
    Units,
    sale_of,
    to_json,
)
from app.orders.snapshot import Ask, Settled, Snapshot
from app.orders.terms import CURRENCY_PATTERN, DEFAULT, LATEST, NO_TERMS, NONE, TERMS, Terms, TermsChange

__all__ = [
    "CURRENCY_PATTERN",
    "DEFAULT",
    "DEFAULT_SKU",
    "ERASED",
    "LATEST",
    "NONE",
    "NO_TERMS",
    "NO_UNITS",
    "OPEN",
    "SKU_PATTERN",
    "TERMS",
    "Answer",
    "Ask",
    "Cancel",
    "CancelOutcome",
    "Command",
    "Confirm",
    "ConfirmOutcome",
    "Event",
    "EventKind",
    "Expire",
    "ExpiryOutcome",
    "Extend",
    "ExtendOutcome",
    "GivenBack",
    "Hold",
    "HoldOutcome",
    "Incident",
    "IncidentOutcome",
    "NoticeOutcome",
    "Order",
    "OrderChange",
    "OrderCommand",
    "OrderId",
    "OrderState",
    "Outcome",
    "Payment",
    "PaymentRefund",
    "PaymentState",
    "Place",
    "Purchase",
    "Record",
    "Refund",
    "RefundOutcome",
    "RefundState",
    "RequestOutcome",
    "RequestRefund",
    "Settled",
    "Snapshot",
    "Sums",
    "Terms",
    "TermsChange",
    "Units",
    "Way",
    "decide",
    "new_secrets",
    "sale_of",
    "to_json",
]
