"""Audits: do the numbers and the orders agree, and are the orders that were there still there?"""

from app.audit.auditor import Auditor, AuditVerdict, audit, audit_items
from app.audit.ledger import Audit

__all__ = ["Audit", "AuditVerdict", "Auditor", "audit", "audit_items"]
