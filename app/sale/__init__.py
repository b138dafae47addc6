"""The flash sale: the pure decision who gets a unit, and the cashiers that serve buyers under a lock."""

from app.audit.auditor import Auditor, AuditVerdict
from app.audit.ledger import Audit
from app.dashboard.room import ControlRoom, Picture
from app.sale.cashier import Rules, Stats
from app.sale.decision import Answer, Outcome, Purchase, decide
from app.sale.shop import Shop

__all__ = [
    "Answer",
    "Audit",
    "AuditVerdict",
    "Auditor",
    "ControlRoom",
    "Outcome",
    "Picture",
    "Purchase",
    "Rules",
    "Shop",
    "Stats",
    "decide",
]
