"""Payment providers: each is a reader of its notices, which come as HTTP requests.

`report` has the report of a notice and the interface of readers; `registry` has all readers by their names. A provider
is its module, of less than a hundred lines, and a line there; one of a shop's own is a module that `SECKILL_PROVIDERS`
names. None of them knows HTTP, beyond a body and headers, or orders: `app.web.payments` makes a command of a report.
"""

from app.payments.report import Kind, Reader, Report

__all__ = ["Kind", "Reader", "Report"]
