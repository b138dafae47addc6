"""Audits check that the numbers and the orders agree, and that no order that was seen is missing."""

from app.audit.auditor import Auditor, AuditVerdict, audit, audit_items
from app.audit.ledger import Audit

__all__ = ["Audit", "AuditVerdict", "Auditor", "audit", "audit_items"]
