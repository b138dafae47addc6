"""The flash sale: the pure decision about it, the queue of the buyers, and the worker that serves it."""

from app.orders import (
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
    Hold,
    HoldOutcome,
    Notice,
    OrderCommand,
    Outcome,
    Purchase,
    Refund,
    RefundOutcome,
    decide,
)
from app.sale.admin import Admin
from app.sale.find import ATTENTION, EVERYTHING, Found, Wanted, WantedState
from app.sale.rules import Rules
from app.sale.shop import Shop

__all__ = [
    "ATTENTION",
    "EVERYTHING",
    "Admin",
    "Answer",
    "Cancel",
    "CancelOutcome",
    "Command",
    "Confirm",
    "ConfirmOutcome",
    "Expire",
    "ExpiryOutcome",
    "Extend",
    "ExtendOutcome",
    "Found",
    "Hold",
    "HoldOutcome",
    "Notice",
    "OrderCommand",
    "Outcome",
    "Purchase",
    "Refund",
    "RefundOutcome",
    "Rules",
    "Shop",
    "Wanted",
    "WantedState",
    "decide",
]
