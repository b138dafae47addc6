"""The stock in Redis or Valkey: Lua scripts, guarded by a fence, and the orders in a stream beside the stock."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from typing_extensions import Unpack, override

from app.errors import StockError
from app.orders import Ask, Snapshot
from app.stock.redis.client import Script
from app.stock.redis.erase import Under
from app.stock.redis.keys import (
    is_number,
    pack,
    pack_begun,
    pack_change,
    pack_note,
    pack_sold,
    position_of,
    snapshot_of,
    token_of,
)
from app.stock.redis.operations import ItemRequest, RedisOperations
from app.stock.store import Batch, Fence, Level, Restock, note_of
from app.stock.watermark import tag_of

Answer = TypeVar("Answer")

_PAGE: Final = 1000


class RedisStockStore(RedisOperations):
    """The guarded store: every write is checked against the fence by the script that makes it."""

    holds = True

    def __init__(self, url: str, **options: Any) -> None:
        """Take the arguments of `RedisOperations`."""
        super().__init__(url, **options)
        self._prepare, self._commit, self._inspect = Script("prepare.lua"), Script("commit.lua"), Script("inspect.lua")

    # -- the sale ----------------------------------------------------------------------------------------------------

    @override
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        parts: dict[str, ItemRequest] = {}
        for sku, ask in asks.items():
            keys, positions = self._keys(sku), self._expected(sku)
            own: dict[str, object] = {"expected": positions, "buyers": ask.buyers, "keys": ask.keys}
            if ask.holds:
                own |= {"orders": [one for one in ask.orders if is_number(one)], "payments": ask.payments}
            parts[sku] = ItemRequest(keys.all, own, positions)

        def snapshot(sku: str, answer: Sequence[Any]) -> Snapshot:
            stock, lucky, bought, settled, last_entry, tag, generation, terms, holds = answer
            self._watermarks[sku].found(parts[sku].positions, (generation, last_entry, tag) if last_entry else None)
            return snapshot_of(sku, int(stock), int(lucky), bought, settled, asks[sku], last_entry, terms, holds)

        request = {
            "source": fence.source,
            "token": token_of(fence),
            "batch": batch_id,
            "refusal_ttl_ms": str(self._refusal_ttl_ms),
        }
        return await self._run_many(self._sale, self._prepare, fence, request, parts, snapshot)

    @override
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        (batch_id,) = {batch.batch_id for batch in batches.values()}
        parts: dict[str, ItemRequest] = {}
        for sku, batch in batches.items():
            keys = self._keys(sku)
            names: tuple[str, ...] = keys.all
            own: dict[str, object] = {
                "stock": str(batch.expected_stock),
                "sold": [pack_sold(sold) for sold in batch.sold],
                "refused": [{"key": refused.key, "settled": pack(refused.settled)} for refused in batch.refused],
            }
            if batch.changes or batch.begun:
                own["changes"] = [pack_change(change) for change in batch.changes]
                own["begun"] = [pack_begun(begun) for begun in batch.begun]
            if notes := [pack_note(note) for change in batch.changes if (note := note_of(sku, change))]:
                own["notes"], names = notes, (*names, keys.log)
            parts[sku] = ItemRequest(names, own)

        def numbers(sku: str, answer: Sequence[Any]) -> list[str]:
            first, generation = answer
            batch = batches[sku]
            secrets = batch.secrets
            if not batch.entries:
                return []
            ms, _, seq = first.partition("-")
            number = int(seq) + len(batch.changes)
            last = secrets[-1] if secrets else batch.changes[-1].after.secret
            self._watermarks[sku].found((), (generation, f"{ms}-{number + len(secrets) - 1}", tag_of(last)))
            return [f"{ms}-{number + place}" for place in range(len(secrets))]

        request = {
            "source": fence.source,
            "token": token_of(fence),
            "batch": batch_id,
            "instance": self._instance,
            "refusal_ttl_ms": str(self._refusal_ttl_ms),
        }
        return await self._run_many(self._sale, self._commit, fence, request, parts, numbers)

    @override
    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        begin = f"({batch.after}" if batch.after else "-"
        found: list[str] = []
        while batch.entries:
            async with self._sale.commands() as redis:
                page = await redis.xrange(self._keys(sku).orders, min=begin, count=_PAGE)
            found += [number for number, entry in page if entry.get("batch") == batch.batch_id]
            if len(found) == batch.entries:
                return found[len(batch.changes) :]
            if len(page) < _PAGE:
                break
            begin = f"({page[-1][0]}"
        return None

    # -- orders that must be there -----------------------------------------------------------------------------------

    @override
    def marks(self) -> dict[str, str]:
        return {sku: mark for sku, watermark in self._watermarks.items() if (mark := watermark.mark)}

    @override
    def expect(self, sku: str, mark: str) -> None:
        self._watermarks[sku].expect(position_of(mark))

    @override
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        parts: dict[str, ItemRequest] = {}
        for sku in skus:
            positions = self._expected(sku)
            parts[sku] = ItemRequest(self._keys(sku).all, {"expected": positions}, positions)

        def seen(sku: str, answer: Sequence[Any]) -> Fence | None:
            source, token, last_entry, tag, generation = answer
            self._watermarks[sku].found(parts[sku].positions, (generation, last_entry, tag) if last_entry else None)
            return None if source is None else Fence(int(token), source)

        return await self._run_many(self._readers, self._inspect, None, {}, parts, seen)


class ComparingStockStore(RedisStockStore):
    """Guarded without tokens, for locks that give none: a batch is written if the data it was decided on is unchanged.

    All grants count alike, so a late holder is not distinguished from the current one: it can make the other read
    once more, but not sell units that are sold.
    """

    @override
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        return await super().prepare(_ANY, batch_id, asks)

    @override
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        return await super().commit(_ANY, batches)

    @override
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        return await super().set_stock(sku, _ANY, stock, **how)

    @override
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        await super().remove(sku, _ANY, by=by)

    @override
    async def erase(self, sku: str, buyer: str, under: Under, *, by: str = "") -> int:
        @asynccontextmanager
        async def under_any() -> AsyncIterator[Fence]:
            async with under():
                yield _ANY

        return await super().erase(sku, buyer, under_any, by=by)

    @override
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """Check the orders as in `StockStore`; there is no fence that could have seen a token."""
        seen = await super().inspect(skus)
        return {sku: answer if isinstance(answer, StockError) else None for sku, answer in seen.items()}


_ANY: Final = Fence(1, "compare")
