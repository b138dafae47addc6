"""The auditor's record: the last order of each item, kept where the locks live, so that it outlives all instances."""

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from app.stock import StockStore

if TYPE_CHECKING:
    from fencelock import AsyncElection, AsyncLeadership

_log = logging.getLogger(__name__)

# A value in etcd has 1.5 MiB at most: the items that were sold last are kept.
_ITEMS_MAX: Final = 10_000


async def read_record(election: "AsyncElection", store: StockStore) -> None:
    """Refuse the store if it lacks orders that auditors have seen there. Raises `LockUnavailable`."""
    text = await election.recorded()
    odd: Exception | None = None
    try:
        marks: dict[Any, Any] = dict(json.loads(text) if text else {})
    except (ValueError, TypeError) as error:
        marks, odd = {}, error
    for sku, mark in marks.items():
        try:
            store.expect(str(sku), str(mark))
        except ValueError as error:  # the other orders of the record must be there all the same
            odd = error
    if odd is not None:
        # The record is of another store or program, and is replaced once an auditor has seen an order.
        _log.warning("the auditor's record is not about this store: %s", odd)


class AuditRecord:
    """Writes the marks that have changed. `leadership`: of the auditor that writes."""

    def __init__(self, leadership: "AsyncLeadership") -> None:
        self._leadership = leadership
        self._marks: dict[str, str] = {}  # ordered by their last change, the latest last
        self._written = ""

    async def write(self, marks: dict[str, str]) -> None:
        """Record the last orders. Raises `LockLost` and `LockUnavailable`."""
        for sku, mark in marks.items():
            if self._marks.get(sku) != mark:
                self._marks.pop(sku, None)
                self._marks[sku] = mark
        newest = list(self._marks.items())[-_ITEMS_MAX:]
        text = json.dumps(dict(sorted(newest)), separators=(",", ":"))
        if text != self._written:
            await self._leadership.record(text)
            self._written = text
