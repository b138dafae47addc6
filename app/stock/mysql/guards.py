"""The stock in MySQL or MariaDB: read, decide, write in a transaction, if nothing has changed since the read.

These stores differ only in how they detect a change: by a fencing token, a version, or a timestamp.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from app.errors import FenceRefused, ForeignFence, StockError
from app.stock.mysql import tables
from app.stock.mysql.store import LARGEST, TransactionalStockStore
from app.stock.mysql.tables import ItemRow
from app.stock.refusals import foreign, superseded
from app.stock.store import Batch, Fence
from fencelock.mysql import Call


class MySqlStockStore(TransactionalStockStore):
    """Guarded by fencing tokens: a write demands that nobody has read since, and that the stock is what was read.

    Each read raises the item's fence to its token and registers the batch that may be written. So a paused holder
    writes nothing, even if the stock looks the same. A stock that was changed by hand, in SQL, is noticed.
    """

    @override
    async def _register(self, call: Call, skus: Iterable[str], fence: Fence, batch_id: str | None) -> None:
        await call.begin()
        for sku in skus:
            await tables.prepare(call, sku, fence, batch_id)

    @override
    def _refusal(self, item: ItemRow, fence: Fence, batch_id: str | None) -> FenceRefused | None:
        if item.source not in (None, fence.source):
            return ForeignFence(foreign(item.sku, Fence(item.token or 0, item.source), fence))
        if (item.token, item.prepared) != (fence.token, batch_id):
            return FenceRefused(superseded(item.sku, item.token, fence))
        return None

    @override
    def _version(self, item: ItemRow) -> None:
        return None

    @override
    def _unless_changed(self, fence: Fence, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        condition = "source = %s AND token = %s AND prepared = %s AND stock = %s"
        return condition, (fence.source, fence.token, batch.batch_id, batch.expected_stock)

    @override
    def _token(self, fence: Fence) -> int:
        if not 0 < fence.token <= LARGEST:
            raise ValueError(f"a fencing token must be from 1 to 2**63 - 1, not {fence.token}")
        return fence.token

    @override
    def _fence(self, item: ItemRow | None) -> Fence | None:
        return None if item is None or item.source is None else Fence(item.token or 0, item.source)


class _OptimisticStockStore(TransactionalStockStore):
    """Guarded without tokens: a row has a version, and a write demands that it is still the one that was read.

    Any grant will do, or none: fences are ignored, and orders have token 0. Of several concurrent decisions one is
    written, the others read again. A write takes its units from the current stock, if it has as many, so nothing is
    ever oversold. After a switch from `fence` in mid-sale run `seckill stock unfence`: a new epoch of tokens begins.
    """

    _word: ClassVar[str]  # the column

    @override
    async def _register(self, call: Call, skus: Iterable[str], fence: Fence, batch_id: str | None) -> None:
        pass

    @override
    def _refusal(self, item: ItemRow, fence: Fence, batch_id: str | None) -> None:
        return None

    @override
    def _version(self, item: ItemRow) -> str:
        return str(getattr(item, self._word))

    @override
    def _unless_changed(self, fence: Fence, batch: Batch) -> tuple[str, tuple[Any, ...]]:
        return f"{self._word} = %s", (batch.version,)

    @override
    def _token(self, fence: Fence) -> int:
        return 0

    @override
    def _fence(self, item: ItemRow | None) -> None:
        return None

    @override
    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        for sku in sorted(batches):
            await self._run(self._sale, partial(tables.move_on, sku=sku))
        return await super().resolve(fence, batches)


class VersionedStockStore(_OptimisticStockStore):
    """Guarded by a number that each write increments: a write needs the number that was read.

    A change of the stock by hand must increment it, too, else a sale that was decided before may be written after it:
    `UPDATE seckill_items SET stock = 25, version = version + 1 WHERE sku = 'default'`.
    """

    _word = "version"


class TimestampedStockStore(_OptimisticStockStore):
    """Guarded by the time of the last write, in whole seconds: a common practice, and not enough.

    Two writes within one tick of the clock look alike. The second was decided on stale data, and passes: a buyer may
    get more than the limit, an item may be sold to a later buyer. The separate checks still hold: no unit is sold
    that isn't there, no idempotency key gets two orders. `VersionedStockStore` has no such gap.

    A change of the stock by hand must set `changed_at`, too: `changed_at = changed_at + INTERVAL 1 SECOND`.
    """

    _word = "changed_at"
