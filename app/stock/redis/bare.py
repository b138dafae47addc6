"""The articles' store in Redis or Valkey, with nothing that checks."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, TypeVar

from app.errors import StockError
from app.stock.redis.client import Script
from app.stock.redis.keys import pack_sold, snapshot_of, unknown, whole
from app.stock.redis.store import RedisStockStore
from app.stock.store import Ask, Batch, Fence, Level, Snapshot, Sold

Answer = TypeVar("Answer")


class BareStockStore(RedisStockStore):
    """The articles' store: read, decrement, write, with nothing that checks. It holds while a lock holds, no longer.

    For `--guard none`: to see what the guard is for.
    """

    guarded = False
    _write: Final = Script("bare.lua")

    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Plain reads; the fence is not looked at."""
        return {sku: await _error_or(self._read_bare(sku, ask)) for sku, ask in asks.items()}

    def suppose(self, sku: str, fence: Fence, batch_id: str, sold: Sequence[Sold], ask: Ask) -> Batch | None:
        """It checks nothing."""
        return None

    async def _read_bare(self, sku: str, ask: Ask) -> Snapshot:
        at = self._keys(sku)
        async with self._client.commands() as redis:
            stock = await redis.get(at.stock)
            lucky = await redis.get(at.lucky)
            bought = await redis.hmget(at.buyers, ask.buyers) if ask.buyers else []
            settled = await redis.hmget(at.settled, ask.keys) if ask.keys else []
        if stock is None:
            raise unknown(sku)
        units, sold = whole(sku, at.stock, stock), whole(sku, at.lucky, lucky or "0")
        return snapshot_of(sku, units, sold, bought, settled, ask)

    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the number that was computed from what was read some time ago."""
        return {sku: await _error_or(self._write_bare(sku, fence, batch)) for sku, batch in batches.items()}

    async def _write_bare(self, sku: str, fence: Fence, batch: Batch) -> list[str]:
        at = self._keys(sku)
        left = batch.expected_stock - sum(sold.quantity for sold in batch.sold)
        args: list[str | int] = [left, self._instance, fence.token, batch.batch_id]
        for sold in batch.sold:
            args += [sold.quantity, sold.buyer or "", sold.key or "", sold.secret, pack_sold(sold)]
        entries = await self._client.run(self._write, [at.stock, at.lucky, at.buyers, at.settled, at.orders], args)
        return [f"{sku}~{entry}~{sold.secret}" for entry, sold in zip(entries, batch.sold, strict=True)]

    async def settle(self, sku: str, fence: Fence, batch: Batch) -> list[str] | None:
        """Whether it seems to have been written; nothing stops what is still on its way."""
        return await self._find(sku, batch)

    async def set_stock(self, sku: str, fence: Fence, stock: int, *, new_sale: bool = False) -> Level:
        """Plain writes."""
        at = self._keys(sku)
        async with self._client.commands() as redis:
            if new_sale:
                await redis.delete(at.buyers, at.settled, at.orders, at.lucky)
            lucky = int(await redis.get(at.lucky) or 0)
            await redis.mset({at.stock: stock, at.lucky: lucky})
            await redis.hset(at.fence, "initial", stock + lucky)
        return Level(sku, stock, lucky, stock + lucky)

    async def fences(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """There are none."""
        return dict.fromkeys(skus)


async def _error_or(answer: Awaitable[Answer]) -> Answer | StockError:
    try:
        return await answer
    except StockError as error:
        return error
