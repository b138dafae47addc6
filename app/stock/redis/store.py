"""The stock in Redis or Valkey: two Lua scripts, a fence between them, orders in a stream beside the stock."""

import asyncio
import contextlib
import re
import secrets
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from app.errors import (
    ConfigurationError,
    FenceRefused,
    ForeignFence,
    ItemNotPossible,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockError,
    StockUnavailable,
    UnknownItem,
)
from app.stock.known import Known
from app.stock.redis.client import RedisClient, Script
from app.stock.redis.keys import (
    ORDER_ID,
    Keys,
    Place,
    flat,
    keys_of,
    level_of,
    mark_of,
    order_of,
    pack,
    pack_sold,
    place_of,
    snapshot_of,
    unknown,
)
from app.stock.store import (
    DEFAULT_SKU,
    SKU_PATTERN,
    Ask,
    Batch,
    Fence,
    Level,
    Order,
    Snapshot,
    Sold,
    StockStore,
    behind,
    changed,
    foreign,
    outbid,
)

Answer = TypeVar("Answer")

_LARGEST_TOKEN: Final = 2**53
_PAGE: Final = 1000
_NOTICES: Final = "seckill:notices"


class _Part(NamedTuple):
    """What a script is told of one item. `places`: the orders that it is told of."""

    keys: Sequence[str]
    args: list[str | int]
    places: tuple[Place, ...]


class RedisStockStore(StockStore):
    """The guarded store: every write is checked against the fence by the script that makes it.

    `refusal_ttl_s`: how long a refusal is remembered for its idempotency key (an order's key is remembered for good).
    `wait_replicas`: what was written counts only when that many replicas have it, too; until then it is "not known".
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 2.0,
        connections: int = 16,
        instance: str = "python",
        refusal_ttl_s: float = 3600,
        wait_replicas: int = 0,
    ) -> None:
        self._client = RedisClient(url, timeout_s=timeout_s, connections=connections, wait_replicas=wait_replicas)
        if wait_replicas and self._client.clustered:
            raise ConfigurationError("to wait for replicas is not possible in a Redis Cluster")
        self._instance = instance
        self._refusal_ttl_ms = max(1, int(refusal_ttl_s * 1000))
        self._read, self._commit, self._set = Script("read.lua"), Script("commit.lua"), Script("set.lua")
        self._level, self._look, self._accept = Script("level.lua"), Script("look.lua"), Script("accept.lua")
        self._known: defaultdict[str, Known[Place]] = defaultdict(lambda: Known(mark_of))

    def check(self, sku: str) -> None:
        """See `StockStore.check`."""
        self._keys(sku)

    def _keys(self, sku: str) -> Keys:
        if sku == DEFAULT_SKU and self._client.clustered:
            raise ItemNotPossible(
                "the default item's keys 'stock' and 'lucky' lie in two hash slots, which no script can write "
                "together in a Redis Cluster; use an item with a name (sku)"
            )
        return keys_of(sku)

    @property
    def scattered(self) -> bool:
        """See `StockStore.scattered`."""
        return self._client.clustered

    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """See `StockStore.read_many`."""
        args: list[str | int] = [fence.source, _token(fence), batch_id]
        parts: dict[str, _Part] = {}
        for sku, ask in asks.items():
            at, known = self._keys(sku), self._known[sku]
            places = known.places
            own: list[str | int] = [len(places), *flat(places), len(ask.buyers), *ask.buyers, len(ask.keys), *ask.keys]
            parts[sku] = _Part([*at.all, *at.refused(ask.keys)], own, places)
            known.announced = fence.token, batch_id

        def snapshot(sku: str, answer: Sequence[Any]) -> Snapshot:
            stock, lucky, bought, settled, last_entry, sale, era = answer
            known = self._known[sku]
            known.found(parts[sku].places, (sale, last_entry) if last_entry else None)
            known.era = era
            return snapshot_of(sku, int(stock), int(lucky), bought, settled, asks[sku], last_entry)

        return await self._run_many(self._read, fence, args, parts, snapshot)

    def suppose(self, sku: str, fence: Fence, batch_id: str, sold: Sequence[Sold], ask: Ask) -> Batch | None:
        """See `StockStore.suppose`."""
        known = self._known[sku]
        if known.era is None:
            return None  # not looked at yet
        last = known.last
        after = last[1] if last else None  # what is known by now comes before it: that is supposed, too
        version = f"{known.era} {known.announced_under(fence.token)}"
        return Batch(batch_id, sum([one.quantity for one in sold]), sold, after=after, version=version, supposing=ask)

    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """See `StockStore.commit_many`."""
        (batch_id,) = {batch.batch_id for batch in batches.values()}
        args: list[str | int] = [fence.source, _token(fence), batch_id, self._instance, self._refusal_ttl_ms]
        parts: dict[str, _Part] = {}
        for sku, batch in batches.items():
            at, known = self._keys(sku), self._known[sku]
            own: list[str | int] = [batch.expected_stock, len(batch.sold)]
            for sold in batch.sold:
                own += (sold.quantity, sold.buyer or "", sold.key or "", sold.secret, pack_sold(sold))
            own += (len(batch.refused), *[pack(refused.settled) for refused in batch.refused])
            if batch.supposing is None:
                own.append(0)
                keys: Sequence[str] = [refused.key for refused in batch.refused]
                places: tuple[Place, ...] = ()
            else:
                keys, buyers = batch.supposing.keys, batch.supposing.buyers
                places = known.places
                era, _, before = (batch.version or "").partition(" ")
                own.append(4 + len(keys) + len(buyers) + 2 * len(places))
                own += (era, before, len(keys), *keys, len(buyers), *buyers, *flat(places))
                known.announced = fence.token, batch_id
            parts[sku] = _Part([*at.all, *at.refused(keys)] if keys else at.all, own, places)

        def ids(sku: str, answer: Sequence[Any]) -> list[str]:
            first, sale, era = answer
            sold = batches[sku].sold
            if not sold:
                return []
            ms, _, seq = first.partition("-")
            number = int(seq)
            known = self._known[sku]
            known.found(parts[sku].places, (sale, f"{ms}-{number + len(sold) - 1}"))
            known.era = era
            return [f"{sku}~{ms}-{number + place}~{one.secret}" for place, one in enumerate(sold)]

        return await self._run_many(self._commit, fence, args, parts, ids)

    async def _run_many(
        self,
        script: Script,
        fence: Fence | None,
        args: Sequence[str | int],
        parts: "Mapping[str, _Part]",
        made: "Callable[[str, Sequence[Any]], Answer]",
    ) -> "dict[str, Answer | StockError]":
        """Run a script for some items, in one call where one server has them all; `made` turns an answer into ours."""
        calls = [[sku] for sku in parts] if self._client.clustered else [list(parts)]
        found: dict[str, Answer | StockError] = {}

        async def run(skus: Sequence[str]) -> None:
            keys: list[str] = []
            own = list(args)
            for sku in skus:
                keys += parts[sku].keys
                own += parts[sku].args
            try:
                # Durable: what a read tells of earlier sales is told to their buyers, too.
                answers = await self._client.run(script, keys, own, durable=True)
            except StockError as error:
                # The server's own error, not an answer of the script's: who knows how far it came?
                unknown = error if isinstance(error, StockUnavailable) else StockUnavailable(str(error))
                found.update(dict.fromkeys(skus, unknown))
                return
            for sku, answer in zip(skus, answers, strict=True):
                try:
                    found[sku] = made(sku, answer[1:]) if answer[0] == "ok" else _refusal(sku, fence, answer)
                except StockCorrupt as error:
                    found[sku] = error

        if len(calls) == 1:
            await run(calls[0])
        else:
            await asyncio.gather(*map(run, calls))
        return found

    async def settle(self, sku: str, fence: Fence, batch: Batch) -> list[str] | None:
        """See `StockStore.settle`."""
        # Announcing another batch stops this one for good. And when the replicas have that, they have what came before.
        with contextlib.suppress(UnknownItem):
            await self.read(sku, fence, uuid.uuid4().hex)
        return await self._find(sku, batch)

    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        at = self._keys(sku)
        begin = f"({batch.after}" if batch.after else "-"
        found: list[str] = []
        while batch.sold:
            async with self._client.commands() as redis:
                page = await redis.xrange(at.orders, min=begin, count=_PAGE)
            found += [order_of(sku, *entry).id for entry in page if entry[1].get("batch") == batch.batch_id]
            if len(found) == len(batch.sold):
                return found
            if len(page) < _PAGE:
                break
            begin = f"({page[-1][0]}"
        return None

    async def set_stock(self, sku: str, fence: Fence, stock: int, *, new_sale: bool = False) -> Level:
        """See `StockStore.set_stock`."""
        at = self._keys(sku)
        answer = await self._client.run(
            self._set,
            at.all,
            [fence.source, _token(fence), stock, "new" if new_sale else "restock", *flat(self._known[sku].places)],
            durable=True,
        )
        if answer[0] != "ok":
            raise _refusal(sku, fence, answer)
        return level_of(sku, *answer[1:])

    async def unfence(self, sku: str) -> None:
        """See `StockStore.unfence`."""
        async with self._client.commands() as redis:
            # In this order: an era more than needed does no harm.
            await redis.hincrby(self._keys(sku).fence, "era", 1)
            await redis.hdel(self._keys(sku).fence, "source", "token")

    def marks(self) -> dict[str, str]:
        """See `StockStore.marks`."""
        return {sku: mark_of(last) for sku, known in self._known.items() if (last := known.last)}

    def unseen(self, skus: Iterable[str]) -> list[str]:
        """See `StockStore.unseen`."""
        return [sku for sku in skus if self._known[sku].told]

    def expect(self, sku: str, mark: str) -> None:
        """See `StockStore.expect`."""
        self._known[sku].told |= {place_of(mark)}

    async def fences(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """See `StockStore.fences`."""
        parts: dict[str, _Part] = {}
        for sku in skus:
            at, places = self._keys(sku), self._known[sku].places
            parts[sku] = _Part([at.fence, at.orders], [len(places), *flat(places)], places)

        def seen(sku: str, answer: Sequence[Any]) -> Fence | None:
            source, token = answer
            self._known[sku].found(parts[sku].places)
            return None if source is None else Fence(int(token), source)

        return await self._run_many(self._look, None, [], parts, seen)

    async def accept_loss(self, sku: str) -> None:
        """See `StockStore.accept_loss`."""
        await self._client.run(self._accept, [self._keys(sku).fence], flat(self._known[sku].places))

    async def level(self, sku: str) -> Level:
        """See `StockStore.level`."""
        at = self._keys(sku)
        return level_of(sku, *await self._client.run(self._level, [at.stock, at.lucky, at.fence, at.orders], []))

    async def items(self) -> list[str]:
        """See `StockStore.items`."""
        found: set[str] = set()
        async with self._client.commands() as redis:
            if not self._client.clustered and await redis.exists(Keys(DEFAULT_SKU).stock):
                found.add(DEFAULT_SKU)
            async for key in redis.scan_iter(match="seckill:{*}:stock", count=_PAGE):
                name = key.removeprefix("seckill:{").removesuffix("}:stock")
                if re.fullmatch(SKU_PATTERN, name):  # a buyer's idempotency key may look similar
                    found.add(name)
        return sorted(found)

    async def order(self, order_id: str) -> Order | None:
        """See `StockStore.order`."""
        match = ORDER_ID.fullmatch(order_id)
        if match is None:
            return None
        sku, entry_id, secret = match.groups()
        async with self._client.commands() as redis:
            entries = await redis.xrange(self._keys(sku).orders, min=entry_id, max=entry_id)
        if not entries or not secrets.compare_digest(entries[0][1].get("secret", ""), secret):
            return None
        return order_of(sku, *entries[0])

    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        """See `StockStore.orders`."""
        at = self._keys(sku)
        match = ORDER_ID.fullmatch(after) if after is not None else None
        if after is not None and (match is None or match[1] != sku):
            raise ValueError(f"not an order of item {sku!r}: {after!r}")
        begin = f"({match[2]}" if match else "-"
        async with self._client.commands() as redis:
            entries = await redis.xrange(at.orders, min=begin, max=until or "+", count=limit)
        return [order_of(sku, entry_id, fields) for entry_id, fields in entries]

    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """See `StockStore.notices`."""
        async with self._client.commands() as redis, redis.pipeline(transaction=False) as pipe:
            if put:
                pipe.hset(_NOTICES, mapping=dict(put))
            if drop:
                pipe.hdel(_NOTICES, *drop)
            pipe.hgetall(_NOTICES)
            found: dict[str, str] = (await pipe.execute())[-1]
        return found

    async def ping(self, *, timeout_s: float | None = None) -> None:
        """See `StockStore.ping`."""
        # A write: a replica, or a server without memory, answers a PING as if all were well.
        await self._client.write("SET", "seckill:ping", self._instance, "EX", 60, timeout_s=timeout_s)

    async def close(self) -> None:
        """See `StockStore.close`."""
        await self._client.close()


class ComparingStockStore(RedisStockStore):
    """Guarded without tokens, for locks that give none: written is what was decided on what is still there.

    Every grant counts alike, so one who comes late is not told from one whose turn it is: it can make the other read
    once more, but not sell what was sold.
    """

    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """See `StockStore.read_many`."""
        return await super().read_many(_ANY, batch_id, asks)

    def suppose(self, sku: str, fence: Fence, batch_id: str, sold: Sequence[Sold], ask: Ask) -> Batch | None:
        """What was read is compared, so there must be something."""
        return None

    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """See `StockStore.commit_many`."""
        return await super().commit_many(_ANY, batches)

    async def set_stock(self, sku: str, fence: Fence, stock: int, *, new_sale: bool = False) -> Level:
        """See `StockStore.set_stock`."""
        return await super().set_stock(sku, _ANY, stock, new_sale=new_sale)

    async def fences(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """Whether orders are missing; there is no fence that could have seen anything."""
        seen = await super().fences(skus)
        return {sku: answer if isinstance(answer, StockError) else None for sku, answer in seen.items()}


_ANY: Final = Fence(1, "compare")


def _token(fence: Fence) -> int:
    if not 0 < fence.token < _LARGEST_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")
    return fence.token


def _refusal(sku: str, fence: Fence | None, answer: Sequence[Any]) -> StockError:  # noqa: PLR0911 - a return a reason
    reason, *details = answer
    match reason:
        case "unknown":
            return unknown(sku)
        case "foreign" if fence is not None:
            return ForeignFence(foreign(sku, Fence(int(details[1]), details[0]), fence))
        case "behind":
            entry, *lost = details
            return StockBehind(behind(sku, entry), missing=map(mark_of, zip(lost[::2], lost[1::2], strict=True)))
        case "stale" if fence is not None:
            return FenceRefused(outbid(sku, details[0], fence))
        case "changed":
            return StockChanged(changed(sku, details[0]))
        case "otherwise":
            return StockChanged(f"what is there of {sku!r} is not what was supposed")
        case "no number" | "corrupt":
            what = "is not a whole number of 0 or more" if reason == "no number" else "holds something that is not ours"
            return StockCorrupt(f"the key {details[0]!r} of item {sku!r} {what}")
        case _:
            raise AssertionError(f"the script answered {answer!r}")
