"""The articles' store in Redis or Valkey, without any check."""

import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, TypeVar

from typing_extensions import Unpack, override

from app.errors import HasOrders, StockError, StockNotAsExpected
from app.orders import Ask, Snapshot
from app.stock.redis.client import Script
from app.stock.redis.keys import LOG_MAX, pack_sold, snapshot_of, terms_of, unknown, whole
from app.stock.redis.store import RedisStockStore
from app.stock.refusals import not_as_expected
from app.stock.store import Batch, Fence, Level, Restock, facts, raise_if_none_was_reached, what_is_changed

Answer = TypeVar("Answer")


class BareStockStore(RedisStockStore):
    """The articles' store: read, decrement, write, without any check. It is right only while the lock is held.

    It is for `--guard none`, which shows what the guard is for.
    """

    guarded = holds = False
    _write: Final = Script("bare.lua")

    @override
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Read plainly, without a look at the fence."""
        found = {sku: await _error_or(self._read_bare(sku, ask)) for sku, ask in asks.items()}
        raise_if_none_was_reached(found)
        return found

    async def _read_bare(self, sku: str, ask: Ask) -> Snapshot:
        keys = self._keys(sku)
        async with self._sale.commands() as redis:
            stock = await redis.get(keys.stock)
            lucky = await redis.get(keys.lucky)
            bought = await redis.hmget(keys.buyers, ask.buyers) if ask.buyers else []
            settled = await redis.hmget(keys.settled, ask.keys) if ask.keys else []
            terms = await redis.hget(keys.fence, "terms")
        if stock is None:
            raise unknown(sku)
        units, sold = whole(sku, keys.stock, stock), whole(sku, keys.lucky, lucky or "0")
        return snapshot_of(sku, units, sold, bought, settled, ask, terms=terms or "")

    @override
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the stock that was computed from an earlier read."""
        found = {sku: await _error_or(self._write_bare(sku, fence, batch)) for sku, batch in batches.items()}
        raise_if_none_was_reached(found)
        return found

    async def _write_bare(self, sku: str, fence: Fence, batch: Batch) -> list[str]:
        numbers: list[str] = await self._run(
            self._write,
            sku,
            stock=str(batch.expected_stock - sum(sold.quantity for sold in batch.sold)),
            instance=self._instance,
            token=str(fence.token),
            batch=batch.batch_id,
            sold=[pack_sold(sold) for sold in batch.sold],
        )
        return numbers

    @override
    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        """Look whether they seem to have been written; nothing stops a write that is still on its way."""
        found = {sku: await _error_or(self._find(sku, batch)) for sku, batch in batches.items()}
        raise_if_none_was_reached(found)
        return found

    @override
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        """Write plainly."""
        keys = self._keys(sku)
        async with self._sale.commands() as redis:
            before = int(await redis.get(keys.stock) or 0), int(await redis.get(keys.lucky) or 0)
            initial = await redis.hget(keys.fence, "initial")
            if (expected := how.get("if_match")) and before != expected:
                raise StockNotAsExpected(not_as_expected(sku, *before))
            if how.get("if_initial") is not None and initial != str(how["if_initial"]):
                raise StockNotAsExpected(not_as_expected(sku, *before))
            orders, forget = await redis.xlen(keys.orders), how.get("forget_orders")
            if how.get("new_sale") and forget not in (None, orders):
                raise HasOrders(sku, orders)
            what = what_is_changed(stock, how)
            if how.get("add"):
                stock += before[0]
            if how.get("new_sale"):
                await redis.delete(keys.buyers, keys.settled, keys.orders, keys.lucky, keys.outbox)
            lucky = int(await redis.get(keys.lucky) or 0)
            await redis.mset({keys.stock: stock, keys.lucky: lucky})
            old = terms_of(sku, await redis.hget(keys.fence, "terms") or "")
            level = Level(sku, stock, lucky, stock + lucky, terms=old.changed(how.get("terms", {})))
            await redis.hset(keys.fence, mapping={"initial": stock + lucky, "terms": level.terms.to_text()})
            was = facts(Level(sku, *before, None, terms=old))
            note = {"by": how.get("by", ""), "what": what, "before": json.dumps(was), "after": json.dumps(facts(level))}
            await redis.xadd(keys.log, note, maxlen=LOG_MAX)
        return level

    @override
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """Return None for each item: there are no fences."""
        return dict.fromkeys(skus)


async def _error_or(answer: Awaitable[Answer]) -> Answer | StockError:
    try:
        return await answer
    except StockError as error:
        return error
