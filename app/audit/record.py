"""The auditor's record: the last order of each item, kept where the locks live, so that it outlives all instances."""

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from app.stock import StockStore

if TYPE_CHECKING:
    from fencelock.etcd.aio import AsyncElection, AsyncLeadership

_log = logging.getLogger(__name__)

# One value in etcd is 1.5 MiB at most: those items are kept that were sold last.
_ITEMS_MAX: Final = 10_000


async def read_record(election: "AsyncElection", store: StockStore) -> None:
    """Hold the store to the orders that auditors have seen there. Raises `LockUnavailable`."""
    text = await election.recorded()
    try:
        marks: Any = json.loads(text) if text else {}
        for sku, mark in marks.items():
            store.expect(str(sku), str(mark))
    except (ValueError, AttributeError) as error:
        # Of another store, or another program's: it is replaced when an auditor has seen an order.
        _log.warning("the auditor's record is not about this store: %s", error)


class Record:
    """Writes what has changed. `leadership`: of the auditor that writes."""

    def __init__(self, leadership: "AsyncLeadership") -> None:
        self._leadership = leadership
        self._marks: dict[str, str] = {}  # those that have changed last come last
        self._written = ""

    async def write(self, marks: dict[str, str]) -> None:
        """Write the last orders down. Raises `LockLost` and `LockUnavailable`."""
        for sku, mark in marks.items():
            if self._marks.get(sku) != mark:
                self._marks.pop(sku, None)
                self._marks[sku] = mark
        newest = list(self._marks.items())[-_ITEMS_MAX:]
        text = json.dumps(dict(sorted(newest)), separators=(",", ":"))
        if text != self._written:
            await self._leadership.record(text)
            self._written = text
