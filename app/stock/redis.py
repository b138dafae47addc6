"""The stock in Redis or Valkey: two Lua scripts, a fence between them, orders in a stream beside the stock."""

import asyncio
import contextlib
import json
import re
import secrets
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
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
from app.stock.redis_client import RedisClient, Script
from app.stock.store import (
    DEFAULT_SKU,
    SKU_PATTERN,
    Ask,
    Batch,
    Fence,
    Level,
    Order,
    Settled,
    Snapshot,
    Sold,
    StockStore,
    behind,
    changed,
    foreign,
    outbid,
    refuse_odd_name,
)

Answer = TypeVar("Answer")

_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")  # Lua counts in doubles, exact below 2**53
_ENTRY_ID: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
_MARK: Final = re.compile(r"([0-9]{16})/([0-9]{16})-([0-9]{16})")  # sale, and an order's entry; with leading zeros
_ORDER_ID: Final = re.compile(rf"({SKU_PATTERN})~({_ENTRY_ID.pattern})~([0-9a-f]{{32}})")
_LARGEST_TOKEN: Final = 2**53
_PAGE: Final = 1000
_NOTICES: Final = "seckill:notices"


class Keys:
    """Where an item's data lies.

    The default item's `stock` and `lucky` are called just that, as the articles do and as people look for them with
    redis-cli. All keys of any other item lie in one hash slot, so that a Redis Cluster can hold it.
    """

    def __init__(self, sku: str) -> None:
        item = f"seckill:{{{sku}}}"
        default = sku == DEFAULT_SKU
        self.stock = "stock" if default else f"{item}:stock"
        self.lucky = "lucky" if default else f"{item}:lucky"
        self.fence = f"{item}:fence"
        self.buyers = f"{item}:buyers"
        self.settled = f"{item}:keys"
        self.orders = f"{item}:orders"
        self.all = (self.stock, self.lucky, self.fence, self.buyers, self.settled, self.orders)
        self._refused = f"{item}:refused:"

    def refused(self, keys: Sequence[str]) -> list[str]:
        """Where the refusals of these idempotency keys are remembered for a while."""
        return [self._refused + key for key in keys]


@lru_cache(10_000)
def _keys(sku: str) -> Keys:
    refuse_odd_name(sku)
    return Keys(sku)


class _Part(NamedTuple):
    """What a script is told of one item."""

    keys: list[str]
    args: list[str | int]


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
        self._known: defaultdict[str, Known] = defaultdict(Known)

    def check(self, sku: str) -> None:
        """See `StockStore.check`."""
        self._keys(sku)

    def _keys(self, sku: str) -> Keys:
        if sku == DEFAULT_SKU and self._client.clustered:
            raise ItemNotPossible(
                "the default item's keys 'stock' and 'lucky' lie in two hash slots, which no script can write "
                "together in a Redis Cluster; use an item with a name (sku)"
            )
        return _keys(sku)

    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """See `StockStore.read_many`."""
        args: list[str | int] = [fence.source, _token(fence), batch_id]
        parts: dict[str, _Part] = {}
        marks: dict[str, frozenset[str]] = {}
        for sku, ask in asks.items():
            at = self._keys(sku)
            marks[sku] = self._known[sku].marks
            known = _unmark(marks[sku])
            own: list[str | int] = [len(known) // 2, *known, len(ask.buyers), *ask.buyers, len(ask.keys), *ask.keys]
            parts[sku] = _Part([*at.all, *at.refused(ask.keys)], own)

        def snapshot(sku: str, answer: Sequence[Any]) -> Snapshot:
            stock, lucky, bought, settled, last_entry, sale = answer
            self._known[sku].found(marks[sku], _mark(sale, last_entry) if last_entry else None)
            return _snapshot(sku, int(stock), int(lucky), bought, settled, asks[sku], last_entry)

        return await self._run_many(self._read, fence, args, parts, snapshot)

    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """See `StockStore.commit_many`."""
        (batch_id,) = {batch.batch_id for batch in batches.values()}
        args: list[str | int] = [fence.source, _token(fence), batch_id, self._instance, self._refusal_ttl_ms]
        parts: dict[str, _Part] = {}
        for sku, batch in batches.items():
            at = self._keys(sku)
            own: list[str | int] = [batch.expected_stock, len(batch.sold)]
            for sold in batch.sold:
                own += [sold.quantity, sold.buyer or "", sold.key or "", sold.secret, _pack_sold(sold)]
            own += [len(batch.refused), *(_pack(refused.settled) for refused in batch.refused)]
            parts[sku] = _Part([*at.all, *at.refused([refused.key for refused in batch.refused])], own)

        def ids(sku: str, answer: Sequence[Any]) -> list[str]:
            first, sale = answer
            found = _order_ids(sku, first, batches[sku].sold)
            if found:
                self._known[sku].found(frozenset(), _mark(sale, found[-1].split("~")[1]))
            return found

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
            keys = [key for sku in skus for key in parts[sku].keys]
            own = [arg for sku in skus for arg in parts[sku].args]
            try:
                # Durable: what a read tells of earlier sales is told to their buyers, too.
                answers = await self._client.run(script, keys, [*args, *own], durable=True)
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
            found += [_order(sku, *entry).id for entry in page if entry[1].get("batch") == batch.batch_id]
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
            [fence.source, _token(fence), stock, "new" if new_sale else "restock", *_unmark(self._known[sku].marks)],
            durable=True,
        )
        if answer[0] != "ok":
            raise _refusal(sku, fence, answer)
        return _level(sku, *answer[1:])

    async def unfence(self, sku: str) -> None:
        """See `StockStore.unfence`."""
        async with self._client.commands() as redis:
            # In this order: an era more than needed does no harm.
            await redis.hincrby(self._keys(sku).fence, "era", 1)
            await redis.hdel(self._keys(sku).fence, "source", "token")

    def marks(self) -> dict[str, str]:
        """See `StockStore.marks`."""
        return {sku: mark for sku, known in self._known.items() if (mark := known.last)}

    def expect(self, sku: str, mark: str) -> None:
        """See `StockStore.expect`."""
        if not _MARK.fullmatch(mark):
            raise ValueError(f"not a mark of ours: {mark[:100]!r}")
        self._known[sku].told |= {mark}

    async def fences(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """See `StockStore.fences`."""
        parts: dict[str, _Part] = {}
        marks: dict[str, frozenset[str]] = {}
        for sku in skus:
            at = self._keys(sku)
            marks[sku] = self._known[sku].marks
            known = _unmark(marks[sku])
            parts[sku] = _Part([at.fence, at.orders], [len(known) // 2, *known])

        def seen(sku: str, answer: Sequence[Any]) -> Fence | None:
            source, token = answer
            self._known[sku].found(marks[sku])
            return None if source is None else Fence(int(token), source)

        return await self._run_many(self._look, None, [], parts, seen)

    async def accept_loss(self, sku: str) -> None:
        """See `StockStore.accept_loss`."""
        await self._client.run(self._accept, [self._keys(sku).fence], _unmark(self._known[sku].marks))

    async def level(self, sku: str) -> Level:
        """See `StockStore.level`."""
        at = self._keys(sku)
        return _level(sku, *await self._client.run(self._level, [at.stock, at.lucky, at.fence, at.orders], []))

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
        match = _ORDER_ID.fullmatch(order_id)
        if match is None:
            return None
        sku, entry_id, secret = match.groups()
        async with self._client.commands() as redis:
            entries = await redis.xrange(self._keys(sku).orders, min=entry_id, max=entry_id)
        if not entries or not secrets.compare_digest(entries[0][1].get("secret", ""), secret):
            return None
        return _order(sku, *entries[0])

    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        """See `StockStore.orders`."""
        at = self._keys(sku)
        match = _ORDER_ID.fullmatch(after) if after is not None else None
        if after is not None and (match is None or match[1] != sku):
            raise ValueError(f"not an order of item {sku!r}: {after!r}")
        begin = f"({match[2]}" if match else "-"
        async with self._client.commands() as redis:
            entries = await redis.xrange(at.orders, min=begin, max=until or "+", count=limit)
        return [_order(sku, entry_id, fields) for entry_id, fields in entries]

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


class BareStockStore(RedisStockStore):
    """The articles' store: read, decrement, write, with nothing that checks. It holds while a lock holds, no longer.

    For `--guard none`: to see what the guard is for.
    """

    guarded = False
    _write: Final = Script("bare.lua")

    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Plain reads; the fence is not looked at."""
        return {sku: await _error_or(self._read_bare(sku, ask)) for sku, ask in asks.items()}

    async def _read_bare(self, sku: str, ask: Ask) -> Snapshot:
        at = self._keys(sku)
        async with self._client.commands() as redis:
            stock = await redis.get(at.stock)
            lucky = await redis.get(at.lucky)
            bought = await redis.hmget(at.buyers, ask.buyers) if ask.buyers else []
            settled = await redis.hmget(at.settled, ask.keys) if ask.keys else []
        if stock is None:
            raise _unknown(sku)
        units, sold = _whole(sku, at.stock, stock), _whole(sku, at.lucky, lucky or "0")
        return _snapshot(sku, units, sold, bought, settled, ask)

    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the number that was computed from what was read some time ago."""
        return {sku: await _error_or(self._write_bare(sku, fence, batch)) for sku, batch in batches.items()}

    async def _write_bare(self, sku: str, fence: Fence, batch: Batch) -> list[str]:
        at = self._keys(sku)
        left = batch.expected_stock - sum(sold.quantity for sold in batch.sold)
        args: list[str | int] = [left, self._instance, fence.token, batch.batch_id]
        for sold in batch.sold:
            args += [sold.quantity, sold.buyer or "", sold.key or "", sold.secret, _pack_sold(sold)]
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


def _token(fence: Fence) -> int:
    if not 0 < fence.token < _LARGEST_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")
    return fence.token


async def _error_or(answer: Awaitable[Answer]) -> Answer | StockError:
    try:
        return await answer
    except StockError as error:
        return error


def _refusal(sku: str, fence: Fence | None, answer: Sequence[Any]) -> StockError:
    reason, *details = answer
    match reason:
        case "unknown":
            return _unknown(sku)
        case "foreign" if fence is not None:
            return ForeignFence(foreign(sku, Fence(int(details[1]), details[0]), fence))
        case "behind":
            return StockBehind(behind(sku, details[0]))
        case "stale" if fence is not None:
            return FenceRefused(outbid(sku, details[0], fence))
        case "changed":
            return StockChanged(changed(sku, details[0]))
        case "no number" | "corrupt":
            what = "is not a whole number of 0 or more" if reason == "no number" else "holds something that is not ours"
            return StockCorrupt(f"the key {details[0]!r} of item {sku!r} {what}")
        case _:
            raise AssertionError(f"the script answered {answer!r}")


def _mark(sale: str, entry_id: str) -> str:
    ms, seq = entry_id.split("-")
    return f"{sale:0>16}/{ms:0>16}-{seq:0>16}"


def _unmark(marks: Iterable[str]) -> list[str]:
    """For each mark its sale, and its order's entry, as the store writes them: arguments of the scripts."""
    args = []
    for mark in marks:
        sale, _, entry = mark.partition("/")
        ms, _, seq = entry.partition("-")
        args += [str(int(sale)), f"{int(ms)}-{int(seq)}"]
    return args


def _whole(sku: str, name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise StockCorrupt(f"the key {name!r} of item {sku!r} is not a whole number of 0 or more")
    return int(text)


def _level(sku: str, stock: str | None, lucky: str | None, initial: str | None, last_entry: str | None = None) -> Level:
    at = Keys(sku)
    if stock is None:
        raise _unknown(sku)
    whole = None if initial is None else _whole(sku, f"{at.fence} initial", initial)
    return Level(sku, _whole(sku, at.stock, stock), _whole(sku, at.lucky, lucky or "0"), whole, last_entry)


def _snapshot(
    sku: str,
    stock: int,
    lucky: int,
    bought: Sequence[str | None],
    settled: Sequence[str | None],
    ask: Ask,
    last_entry: str | None = None,
) -> Snapshot:
    if not (ask.buyers or ask.keys):
        return Snapshot(stock, lucky, last_entry=last_entry)
    return Snapshot(
        stock=stock,
        lucky=lucky,
        bought={
            buyer: _whole(sku, _keys(sku).buyers, units)
            for buyer, units in zip(ask.buyers, bought, strict=False)
            if units
        },
        settled={key: _unpack(sku, text) for key, text in zip(ask.keys, settled, strict=False) if text},
        last_entry=last_entry,
    )


def _pack(settled: Settled, secret: str | None = None) -> str:
    fields = {name: value for name, value in asdict(settled).items() if value is not None}
    return json.dumps(fields | ({"secret": secret} if secret else {}), separators=(",", ":"))


def _pack_sold(sold: Sold) -> str:
    """What the order's key stands for; nobody asks without a key."""
    return _pack(Settled("sold", sold.quantity, sold.buyer), sold.secret) if sold.key is not None else ""


def _unpack(sku: str, text: str) -> Settled:
    entry_id, _, packed = text.partition(" ")
    try:
        fields = json.loads(packed)
        secret = fields.pop("secret", None)
        order_id = f"{sku}~{entry_id}~{secret}" if secret else None
        return Settled(fields["outcome"], fields["quantity"], fields.get("buyer"), order_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StockCorrupt(f"the key {Keys(sku).settled!r} of item {sku!r} holds something that is not ours") from None


def _order_ids(sku: str, first: str, sold: Sequence[Sold]) -> list[str]:
    if not sold:
        return []
    ms, seq = first.split("-")
    return [f"{sku}~{ms}-{int(seq) + number}~{one.secret}" for number, one in enumerate(sold)]


def _order(sku: str, entry_id: str, fields: dict[str, str]) -> Order:
    try:
        return Order(
            id=f"{sku}~{entry_id}~{fields['secret']}",
            sku=sku,
            quantity=int(fields["quantity"]),
            buyer=fields["buyer"] or None,
            key=fields["key"] or None,
            instance=fields["instance"],
            token=int(fields["token"]),
            batch_id=fields["batch"],
            era=int(fields.get("era", "0")),
            sold_at=int(entry_id.partition("-")[0]) / 1000,
        )
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).orders!r} of item {sku!r} holds something that is not ours") from None


def _unknown(sku: str) -> UnknownItem:
    # The default item's key has a name that people know; the others' names are nobody's business.
    why = f": the key {Keys(sku).stock!r} is not there" if sku == DEFAULT_SKU else ""
    return UnknownItem(f"no item {sku!r}{why}")
