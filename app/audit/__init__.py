"""Audits check that the numbers and the orders agree, and that no known order is missing."""

from app.audit.auditor import Auditor, AuditVerdict, audit, audit_items
from app.audit.ledger import Audit

__all__ = ["Audit", "AuditVerdict", "Auditor", "audit", "audit_items"]
