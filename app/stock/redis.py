"""The stock in Redis or Valkey: two Lua scripts, a fence between them, orders in a stream beside the stock."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NoReturn

from app.errors import (
    FenceRefused,
    ForeignFence,
    ItemNotPossible,
    StockChanged,
    StockCorrupt,
    UnknownItem,
)
from app.stock.redis_client import RedisClient, Script
from app.stock.store import DEFAULT_SKU, SKU_PATTERN, Batch, Fence, Level, Order, Settled, Snapshot, Sold, StockStore

_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")  # Lua counts in doubles, exact below 2**53
_ENTRY_ID: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
_ORDER_ID: Final = re.compile(rf"({SKU_PATTERN})~({_ENTRY_ID.pattern})~([0-9a-f]{{32}})")
_LARGEST_TOKEN: Final = 2**53
_PAGE: Final = 1000


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
        self._refused = f"{item}:refused:"

    def refused(self, keys: Sequence[str]) -> list[str]:
        """Where the refusals of these idempotency keys are remembered for a while."""
        return [self._refused + key for key in keys]


class RedisStockStore(StockStore):
    """The guarded store: every write is checked against the fence by the script that makes it.

    `refusal_ttl_s`: how long a refusal is remembered for its idempotency key (an order's key is remembered for good).
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 2.0,
        connections: int = 16,
        instance: str = "python",
        refusal_ttl_s: float = 3600,
    ) -> None:
        self._client = RedisClient(url, timeout_s=timeout_s, connections=connections)
        self._instance = instance
        self._refusal_ttl_ms = max(1, int(refusal_ttl_s * 1000))
        self._read, self._commit, self._set = Script("read.lua"), Script("commit.lua"), Script("set.lua")
        self._level = Script("level.lua")

    def check(self, sku: str) -> None:
        """See `StockStore.check`."""
        self._keys(sku)

    def _keys(self, sku: str) -> Keys:
        if not re.fullmatch(SKU_PATTERN, sku):
            raise ItemNotPossible(f"not an item's name: {sku!r} (letters, digits, '.', '_' and '-', 64 at most)")
        if sku == DEFAULT_SKU and self._client.clustered:
            raise ItemNotPossible(
                "the default item's keys 'stock' and 'lucky' lie in two hash slots, which no script can write "
                "together in a Redis Cluster; use an item with a name (sku)"
            )
        return Keys(sku)

    async def read(
        self,
        sku: str,
        fence: Fence,
        batch_id: str,
        *,
        buyers: Sequence[str] = (),
        keys: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Snapshot:
        """See `StockStore.read`."""
        at = self._keys(sku)
        answer = await self._client.run(
            self._read,
            [at.stock, at.lucky, at.fence, at.buyers, at.settled, at.orders, *at.refused(keys)],
            [fence.source, _token(fence), batch_id, len(buyers), *buyers, *keys],
            timeout_s,
        )
        if answer[0] != "ok":
            _refuse(sku, fence, answer)
        stock, lucky, bought, settled, last_entry = answer[1:]
        snapshot = _snapshot(sku, stock, lucky, bought, settled, buyers, keys)
        return replace(snapshot, last_entry=last_entry)

    async def commit(self, sku: str, fence: Fence, batch: Batch, *, timeout_s: float | None = None) -> list[str]:
        """See `StockStore.commit`."""
        at = self._keys(sku)
        args: list[str | int] = [fence.source, _token(fence), batch.batch_id, batch.expected_stock, self._instance]
        args += [self._refusal_ttl_ms, len(batch.sold)]
        for sold in batch.sold:
            args += [sold.quantity, sold.buyer or "", sold.key or "", sold.secret, _pack_sold(sold)]
        args += [_pack(refused.settled) for refused in batch.refused]
        keys = [at.stock, at.lucky, at.fence, at.buyers, at.settled, at.orders]
        answer = await self._client.run(
            self._commit,
            [*keys, *at.refused([refused.key for refused in batch.refused])],
            args,
            timeout_s,
        )
        if answer[0] != "ok":
            _refuse(sku, fence, answer)
        return _order_ids(sku, answer[1], batch.sold)

    async def find_batch(self, sku: str, batch: Batch) -> list[str] | None:
        """See `StockStore.find_batch`."""
        at = self._keys(sku)
        begin = f"({batch.after}" if batch.after else "-"
        while batch.sold:
            async with self._client.commands() as redis:
                page = await redis.xrange(at.orders, min=begin, count=_PAGE)
            for entry_id, fields in page:
                if fields.get("batch") == batch.batch_id:
                    return _order_ids(sku, entry_id, batch.sold)
            if len(page) < _PAGE:
                break
            begin = f"({page[-1][0]}"
        return None

    async def set_stock(self, sku: str, fence: Fence, stock: int, *, new_sale: bool = False) -> Level:
        """See `StockStore.set_stock`."""
        at = self._keys(sku)
        answer = await self._client.run(
            self._set,
            [at.stock, at.lucky, at.fence, at.buyers, at.settled, at.orders],
            [fence.source, _token(fence), stock, "new" if new_sale else "restock"],
        )
        if answer[0] != "ok":
            _refuse(sku, fence, answer)
        return _level(sku, *answer[1:])

    async def unfence(self, sku: str) -> None:
        """See `StockStore.unfence`."""
        async with self._client.commands() as redis:
            await redis.hdel(self._keys(sku).fence, "source", "token")

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

    async def ping(self, *, timeout_s: float | None = None) -> None:
        """See `StockStore.ping`."""
        async with self._client.commands(timeout_s) as redis:
            # A write: a replica, or a server without memory, answers a PING as if all were well.
            await redis.set("seckill:ping", self._instance, ex=60)

    async def close(self) -> None:
        """See `StockStore.close`."""
        await self._client.close()


class BareStockStore(RedisStockStore):
    """The articles' store: read, decrement, write, with nothing that checks. It holds while a lock holds, no longer.

    For `--guard none`: to see what the guard is for.
    """

    async def read(
        self,
        sku: str,
        fence: Fence,
        batch_id: str,
        *,
        buyers: Sequence[str] = (),
        keys: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Snapshot:
        """Plain reads; the fence is not looked at."""
        at = self._keys(sku)
        async with self._client.commands(timeout_s) as redis:
            stock = await redis.get(at.stock)
            lucky = await redis.get(at.lucky)
            bought = await redis.hmget(at.buyers, buyers) if buyers else []
            settled = await redis.hmget(at.settled, keys) if keys else []
        if stock is None:
            _refuse(sku, fence, ["unknown"])
        return _snapshot(sku, stock, lucky or "0", bought, settled, buyers, keys)

    async def commit(self, sku: str, fence: Fence, batch: Batch, *, timeout_s: float | None = None) -> list[str]:
        """Plain writes, one after the other, of the number that was computed from what was read."""
        at = self._keys(sku)
        ids = []
        async with self._client.commands(timeout_s) as redis:
            left = batch.expected_stock - sum(sold.quantity for sold in batch.sold)
            await redis.set(at.stock, left)
            for sold in batch.sold:
                await redis.incrby(at.lucky, sold.quantity)
                fields = {
                    "quantity": sold.quantity,
                    "buyer": sold.buyer or "",
                    "key": sold.key or "",
                    "secret": sold.secret,
                    "instance": self._instance,
                    "token": fence.token,
                    "batch": batch.batch_id,
                }
                entry_id = await redis.xadd(at.orders, fields)
                ids += _order_ids(sku, entry_id, [sold])
                if sold.buyer:
                    await redis.hincrby(at.buyers, sold.buyer, sold.quantity)
                if sold.key:
                    await redis.hset(at.settled, sold.key, f"{entry_id} {_pack_sold(sold)}")
        return ids

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


def _token(fence: Fence) -> int:
    if not 0 < fence.token < _LARGEST_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")
    return fence.token


def _refuse(sku: str, fence: Fence, answer: Sequence[Any]) -> NoReturn:
    reason, *details = answer
    match reason:
        case "unknown":
            raise _unknown(sku)
        case "foreign":
            raise ForeignFence(
                f"the stock of {sku!r} is fenced by {details[0]} (token {details[1]}), ours is from {fence.source}; "
                "tokens of two lock systems can't be compared. "
                f"If {details[0]} is gone for good: seckill stock unfence --sku {sku}"
            )
        case "stale":
            raise FenceRefused(
                f"the stock of {sku!r} has seen token {details[0]}, ours is {fence.token}: somebody had the lock after "
                "us (or, if the tokens are equal, another batch was announced). If every instance says so for long, "
                f"etcd was restored from an older backup: seckill stock unfence --sku {sku}"
            )
        case "changed":
            raise StockChanged(f"the stock of {sku!r} was changed to {details[0]} between our read and our write")
        case "corrupt":
            raise StockCorrupt(f"the key {details[0]!r} of item {sku!r} holds something that is not ours")
        case _:
            raise AssertionError(f"the script answered {answer!r}")


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
    stock: str,
    lucky: str,
    bought: Sequence[str | None],
    settled: Sequence[str | None],
    buyers: Sequence[str],
    keys: Sequence[str],
) -> Snapshot:
    at = Keys(sku)
    return Snapshot(
        stock=_whole(sku, at.stock, stock),
        lucky=_whole(sku, at.lucky, lucky),
        bought={buyer: _whole(sku, at.buyers, units) for buyer, units in zip(buyers, bought, strict=False) if units},
        settled={key: _unpack(sku, text) for key, text in zip(keys, settled, strict=False) if text},
    )


def _pack(settled: Settled, secret: str | None = None) -> str:
    fields = {name: value for name, value in asdict(settled).items() if value is not None}
    return json.dumps(fields | ({"secret": secret} if secret else {}), separators=(",", ":"))


def _pack_sold(sold: Sold) -> str:
    return _pack(Settled("sold", sold.quantity, sold.buyer), sold.secret)


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
            sold_at=int(entry_id.partition("-")[0]) / 1000,
        )
    except (KeyError, ValueError):
        raise StockCorrupt(f"the key {Keys(sku).orders!r} of item {sku!r} holds something that is not ours") from None


def _unknown(sku: str) -> UnknownItem:
    # The default item's key has a name that people know; the others' names are nobody's business.
    why = f": the key {Keys(sku).stock!r} is not there" if sku == DEFAULT_SKU else ""
    return UnknownItem(f"no item {sku!r}{why}")
