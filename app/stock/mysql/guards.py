"""The stock in MySQL or MariaDB: read, decide, write in a transaction, if nothing has changed since the read.

What tells that is the one thing in which these stores differ: a fencing token, a version, or a timestamp.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from app.common.mysql import Call
from app.errors import FenceRefused, ForeignFence
from app.stock.mysql import tables
from app.stock.mysql.store import LARGEST, TransactionalStockStore
from app.stock.mysql.tables import Item
from app.stock.store import Batch, Fence, foreign, outbid


class MySqlStockStore(TransactionalStockStore):
    """Guarded by fencing tokens: a write demands that nobody has read since, and that the stock is what was read.

    Whoever reads raises the item's fence to its token and announces what it may write. So of a holder that was paused
    nothing is written, however well its stock may fit. A stock that was changed by hand, in SQL, is noticed.
    """

    def _announce(self, call: Call, skus: Iterable[str], fence: Fence, batch_id: str | None) -> None:
        call.begin()
        for sku in skus:
            tables.announce(call, sku, fence, batch_id)

    def _refusal(self, item: Item, fence: Fence, batch_id: str | None) -> FenceRefused | None:
        if item.source not in (None, fence.source):
            return ForeignFence(foreign(item.sku, Fence(item.token or 0, item.source), fence))
        if (item.token, item.announced) != (fence.token, batch_id):
            return FenceRefused(outbid(item.sku, item.token, fence))
        return None

    def _version(self, item: Item) -> None:
        return None

    def _unless_changed(self, fence: Fence, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        condition = "source = %s AND token = %s AND announced = %s AND stock = %s"
        return condition, (fence.source, fence.token, batch.batch_id, batch.expected_stock)

    def _token(self, fence: Fence) -> int:
        if not 0 < fence.token <= LARGEST:
            raise ValueError(f"a fencing token must be from 1 to 2**63 - 1, not {fence.token}")
        return fence.token

    def _fence(self, item: Item | None) -> Fence | None:
        return None if item is None or item.source is None else Fence(item.token or 0, item.source)


class _OptimisticStockStore(TransactionalStockStore):
    """Guarded without tokens: a row says when it was written, and a write demands that it still says what was read.

    Any grant will do, or none: fences are not looked at, and orders have token 0. Of several who decide at once one
    writes, the others read again. A write takes its units from what is there, if there are as many, so nothing is ever
    oversold. Coming from the fence in mid-sale, `seckill stock unfence` begins a new era of tokens.
    """

    _word: ClassVar[str]  # the column

    def _announce(self, call: Call, skus: Iterable[str], fence: Fence, batch_id: str | None) -> None:
        pass

    def _refusal(self, item: Item, fence: Fence, batch_id: str | None) -> None:
        return None

    def _version(self, item: Item) -> str:
        return str(getattr(item, self._word))

    def _unless_changed(self, fence: Fence, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        return f"{self._word} = %s", (batch.version,)

    def _token(self, fence: Fence) -> int:
        return 0

    def _fence(self, item: Item | None) -> None:
        return None

    async def settle(self, sku: str, fence: Fence, batch: Batch) -> list[str] | None:
        """See `StockStore.settle`."""
        await self._run(lambda call: tables.move_on(call, sku))
        return await super().settle(sku, fence, batch)


class VersionedStockStore(_OptimisticStockStore):
    """Guarded by a number that each write counts up: written is what was decided on what is still there.

    Who changes a stock by hand has to count, too, else a sale that was decided before may be written after it:
    `UPDATE seckill_items SET stock = 25, version = version + 1 WHERE sku = 'default'`.
    """

    _word = "version"


class TimestampedStockStore(_OptimisticStockStore):
    """Guarded by the time of the last write, in whole seconds: how it is often done, and not enough.

    Two writes within one tick of the clock look alike. The second was decided on what is no longer there, and passes:
    a buyer may get more than the limit, an item may be sold to somebody who came later. What is checked by itself still
    holds: no unit is sold that isn't there, no idempotency key gets two orders. `VersionedStockStore` has no such gap.

    Who changes a stock by hand has to set `changed_at`, too: `changed_at = changed_at + INTERVAL 1 SECOND`.
    """

    _word = "changed_at"
