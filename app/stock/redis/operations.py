"""The stock in Redis or Valkey, for operators, readers and the auditor. The sale is in `store`."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from pydantic_core import to_json
from typing_extensions import Unpack, override

from app.errors import ConfigurationError, ItemNotPossible, StockCorrupt, StockError, StockUnavailable
from app.orders import DEFAULT_SKU, SKU_PATTERN, TERMS, Event, Order
from app.stock.bulkhead import halves
from app.stock.redis.client import RedisClient, Script
from app.stock.redis.erase import Under, erase
from app.stock.redis.keys import (
    LOG_MAX,
    Keys,
    Position,
    change_of,
    entries_of,
    event_of,
    is_gone,
    is_number,
    keys_of,
    level_of,
    mark_of,
    nonsense,
    order_of,
    pack_note,
    refusal_of,
    suffix_of,
    token_of,
)
from app.stock.store import (
    DEFAULT_RECEIVER,
    Change,
    Fence,
    Level,
    Note,
    Outbox,
    Restock,
    StockStore,
    raise_if_none_was_reached,
    what_is_changed,
)
from app.stock.watermark import Watermark

Answer = TypeVar("Answer")

_PAGE: Final = 1000
_NOTICES: Final = "seckill:notices"


class ItemRequest(NamedTuple):
    """The part of a script's request that is about one item. `positions`: the orders that it expects."""

    keys: Sequence[str]
    request: Mapping[str, object]
    positions: tuple[Position, ...] = ()


class RedisOperations(StockStore):
    """All operations of a stock store but the sale.

    `refusal_ttl_s`: how many seconds a refusal is remembered for its idempotency key (an order's key is remembered for
    good). `wait_replicas`: a write is in doubt until that many replicas have acknowledged it.
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
        self._sale, self._readers = (
            RedisClient(url, timeout_s=timeout_s, connections=half, wait_replicas=wait_replicas)
            for half in halves(connections)
        )
        self._clustered = self._sale.clustered
        if wait_replicas and self._clustered:
            raise ConfigurationError("to wait for replicas is not possible in a Redis Cluster")
        self._connections = connections
        self._instance = instance
        self._refusal_ttl_ms = max(1, int(refusal_ttl_s * 1000))
        self._set, self._level, self._accept = Script("set.lua"), Script("level.lua"), Script("accept.lua")
        self._remove, self._unfence = Script("remove.lua"), Script("unfence.lua")
        self._ping, self._save_outbox = Script("ping.lua"), Script("outbox.lua")
        self._ask_sender = Script("wish.lua")
        self._watermarks: defaultdict[str, Watermark[Position]] = defaultdict(lambda: Watermark(mark_of))

    @override
    def check(self, sku: str) -> None:
        self._keys(sku)

    def _keys(self, sku: str) -> Keys:
        if sku == DEFAULT_SKU and self._clustered:
            raise ItemNotPossible(
                "the default item's keys 'stock' and 'lucky' lie in two hash slots, which no script can write "
                "together in a Redis Cluster; use an item with a name (sku)"
            )
        return keys_of(sku)

    def _expected(self, sku: str) -> tuple[Position, ...]:
        """The orders of an item that must be there. A name that is only asked for is not kept."""
        watermark = self._watermarks.get(sku)
        return watermark.positions if watermark is not None else ()

    async def _run(self, script: Script, sku: str, *, durable: bool = False, **request: object) -> Any:
        keys = self._keys(sku)
        return await self._sale.run(script, (*keys.all, keys.log, keys.outbox), json.dumps(request), durable=durable)

    async def _run_many(
        self,
        client: RedisClient,
        script: Script,
        fence: Fence | None,
        request: Mapping[str, object],
        parts: Mapping[str, ItemRequest],
        made: "Callable[[str, Sequence[Any]], Answer]",
        *,
        writes: bool = True,
    ) -> "dict[str, Answer | StockError]":
        """Run a script for some items, in one call where one server has them all; `made` turns an answer into ours."""
        run = partial(self._run_together, client, script, fence, request, made, writes)
        found: dict[str, Answer | StockError] = {}
        if self._clustered:  # no script can reach two hash slots
            found = await self._one_by_one(run, parts)
        elif parts:
            try:
                found = await run(parts)
            except StockError:  # an item that can't be read at all would hide the others
                found = await self._one_by_one(run, parts)
        raise_if_none_was_reached(found)
        return found

    async def _run_together(
        self,
        client: RedisClient,
        script: Script,
        fence: Fence | None,
        request: Mapping[str, object],
        made: "Callable[[str, Sequence[Any]], Answer]",
        writes: bool,
        parts: Mapping[str, ItemRequest],
    ) -> "dict[str, Answer | StockError]":
        # A recursive closure would keep the whole batch until the next garbage collection.
        keys = [key for part in parts.values() for key in part.keys]
        argument = to_json({**request, "items": [part.request for part in parts.values()]})  # in half the time
        try:
            # Buyers also get answers from what is read of earlier purchases, so that must be durable as well.
            answers = await client.run(script, keys, argument, durable=writes)
            if not isinstance(answers, list) or len(answers) != len(parts):
                raise nonsense(answers)
        except StockError as error:
            if writes:
                # This is the server's own error, not the script's answer: how far the script came is unknown.
                unknown = error if isinstance(error, StockUnavailable) else StockUnavailable(str(error))
                return dict.fromkeys(parts, unknown)
            if len(parts) == 1:
                return dict.fromkeys(parts, error)
            raise
        found: dict[str, Answer | StockError] = {}
        for sku, answer in zip(parts, answers, strict=True):
            try:
                found[sku] = made(sku, answer[1:]) if answer[:1] == ["ok"] else refusal_of(sku, fence, answer)
            except StockError as error:
                found[sku] = error
            except (TypeError, ValueError, LookupError):
                found[sku] = nonsense(answer)
        return found

    async def _one_by_one(
        self,
        run: "Callable[[Mapping[str, ItemRequest]], Awaitable[dict[str, Answer | StockError]]]",
        parts: Mapping[str, ItemRequest],
    ) -> "dict[str, Answer | StockError]":
        at_once = asyncio.Semaphore(self._connections)

        async def run_one(sku: str, part: ItemRequest) -> dict[str, Answer | StockError]:
            async with at_once:
                return await run({sku: part})

        found: dict[str, Answer | StockError] = {}
        for one in await asyncio.gather(*(run_one(sku, part) for sku, part in parts.items())):
            found |= one
        return found

    @override
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        if_match, if_initial = how.get("if_match"), how.get("if_initial")
        answer = await self._run(
            self._set,
            sku,
            durable=True,
            source=fence.source,
            token=token_of(fence),
            stock=str(stock),
            new_sale=how.get("new_sale", False),
            forget_orders=False if how.get("forget_orders") is None else how["forget_orders"],
            add=how.get("add", False),
            if_match=[str(units) for units in if_match] if if_match else False,
            if_initial=False if if_initial is None else str(if_initial),
            terms=how.get("terms", {}),
            kinds={name: "string" if term.kind is str else "number" for name, term in TERMS.items()},
            expected=self._expected(sku),
            by=how.get("by", ""),
            what=what_is_changed(stock, how),
        )
        if answer[0] != "ok":
            raise refusal_of(sku, fence, answer)
        return level_of(sku, *answer[1:])

    @override
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        token = token_of(fence)
        answer = await self._run(
            self._remove, sku, durable=True, source=fence.source, token=token, by=by, what="remove"
        )
        if answer[0] != "ok":
            raise refusal_of(sku, fence, answer)

    @override
    async def unfence(self, sku: str, *, by: str = "") -> None:
        await self._run(self._unfence, sku, by=by, what="unfence")

    @override
    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        await self._run(self._accept, sku, expected=self._expected(sku), by=by, what="accept loss")

    @override
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        skus = [sku] if sku is not None else await self._named("log")
        found: list[Change] = []
        async with self._readers.commands() as redis:
            for one in skus:
                entries = await redis.xrevrange(self._keys(one).log, count=limit)
                found += [change_of(one, entry_id, fields) for entry_id, fields in entries]
        return sorted(found, key=lambda change: change.at, reverse=True)[:limit]

    @override
    async def note(self, sku: str, note: Note) -> None:
        async with self._readers.commands() as redis:
            await redis.xadd(self._keys(sku).log, pack_note(note), maxlen=LOG_MAX)

    @override
    async def count_orders(self, sku: str) -> int:
        async with self._readers.commands() as redis:
            entries = int(await redis.xlen(self._keys(sku).orders))
            return entries - int(await redis.hget(self._keys(sku).fence, "changes") or "0")

    @override
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        parts: dict[str, ItemRequest] = {}
        impossible: dict[str, Level | StockError] = {}
        for sku in skus:
            try:
                parts[sku] = ItemRequest(self._keys(sku).all, {})
            except ItemNotPossible as error:
                impossible[sku] = error
        return impossible | await self._run_many(
            self._readers, self._level, None, {}, parts, lambda sku, answer: level_of(sku, *answer), writes=False
        )

    @override
    async def items(self) -> list[str]:
        found = set(await self._named("stock"))
        async with self._readers.commands() as redis:
            if not self._clustered and await redis.exists(Keys(DEFAULT_SKU).stock):
                found.add(DEFAULT_SKU)
        return sorted(found)

    async def _named(self, what: str) -> list[str]:
        """Find the items that have such a key."""
        found = set()
        async for key in self._readers.scan(f"seckill:{{*}}:{what}", _PAGE):
            name = key.removeprefix("seckill:{").removesuffix(f"}}:{what}")
            if re.fullmatch(SKU_PATTERN, name):  # a stranger's key may look similar
                found.add(name)
        return list(found)

    @override
    async def order(self, sku: str, number: str) -> Order | None:
        if not is_number(number):
            return None
        async with self._readers.commands() as redis:
            entries = await redis.xrange(self._keys(sku).orders, min=number, max=number)
            record = await redis.hget(self._keys(sku).records, number)
        if not entries or "order" in entries[0][1] or is_gone(entries[0][1], record):
            return None
        return order_of(sku, number, entries[0][1], record)

    @override
    async def history(self, sku: str, number: str) -> list[Event]:
        if not is_number(number):
            return []
        keys = self._keys(sku)
        async with self._readers.commands() as redis:
            later = entries_of(await redis.hget(keys.records, number))
            async with redis.pipeline(transaction=False) as pipe:
                for entry in (number, *later):
                    pipe.xrange(keys.orders, min=entry, max=entry)
                return [event_of(sku, *entry) for page in await pipe.execute() for entry in page]

    @override
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        if after is not None and not is_number(after):
            raise ValueError(f"not the number of an order: {after!r}")
        begin, size = after, limit
        found: list[Order] = []
        while len(found) < limit:
            page = await self._entries(sku, begin, until, size)
            began = [entry for entry in page if "order" not in entry[1]][: limit - len(found)]
            records: list[str | None] = []
            if began:
                async with self._readers.commands() as redis:
                    records = await redis.hmget(self._keys(sku).records, [entry_id for entry_id, _ in began])
            there = [(*one, record) for one, record in zip(began, records, strict=True) if not is_gone(one[1], record)]
            found += [order_of(sku, *one) for one in there]
            if len(page) < size:
                break
            begin, size = page[-1][0], max(limit, _PAGE)  # many entries may begin no order
        return found

    @override
    async def paid_with(self, payment_ref: str, skus: Sequence[str]) -> list[Order]:
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.hget(self._keys(sku).payments, payment_ref)
            numbers = await pipe.execute()
        found = [await self.order(sku, number) for sku, number in zip(skus, numbers, strict=True) if number]
        return [order for order in found if order is not None]

    @override
    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        return [event_of(sku, *entry) for entry in await self._entries(sku, after, until, limit)]

    async def _entries(
        self, sku: str, after: str | None, until: str | None, limit: int
    ) -> list[tuple[str, dict[str, str]]]:
        async with self._readers.commands() as redis:
            found: list[tuple[str, dict[str, str]]] = await redis.xrange(
                self._keys(sku).orders, min=f"({after}" if after else "-", max=until or "+", count=limit
            )
        return found

    @override
    async def count_entries(self, sku: str) -> int:
        async with self._readers.commands() as redis:
            return int(await redis.xlen(self._keys(sku).orders))

    @override
    async def receivers(self, skus: Sequence[str]) -> list[str]:
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.hkeys(self._keys(sku).outbox)
            answers = await pipe.execute(raise_on_error=False)
        fields = {field for names in answers if not isinstance(names, Exception) for field in names}
        return [DEFAULT_RECEIVER, *sorted({name for field in fields if (name := field.partition(":")[2])})]

    @override
    async def outbox(self, skus: Sequence[str], receiver: str = DEFAULT_RECEIVER) -> dict[str, Outbox | StockError]:
        fields = [f"{name}{suffix_of(receiver)}" for name in ("text", "wish", "number")]
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.hmget(self._keys(sku).fence, "sale", "generation")  # as `sale_of` has it
                pipe.hmget(self._keys(sku).outbox, fields)
            answers = await pipe.execute(raise_on_error=False)
        found: dict[str, Outbox | StockError] = {}
        for sku, began, noted in zip(skus, answers[::2], answers[1::2], strict=True):
            if isinstance(began, Exception) or isinstance(noted, Exception):
                found[sku] = StockCorrupt(f"the key {self._keys(sku).outbox!r} holds something that is not ours")
            else:
                text, wish, number = (one or "" for one in noted)
                found[sku] = Outbox(began[0] or began[1] or "", text, wish, int(number) if number.isdecimal() else 0)
        return found

    @override
    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox, receiver: str = DEFAULT_RECEIVER) -> None:
        keys, request = self._keys(sku), {"source": fence.source, "token": str(fence.token)}
        request["suffix"] = suffix_of(receiver)
        request |= {"sale": outbox.sale, "text": outbox.text, "wish": outbox.wish, "number": str(outbox.number)}
        argument = json.dumps(request)
        answer = await self._readers.run(self._save_outbox, (keys.fence, keys.outbox), argument, durable=True)
        if answer[0] != "ok":
            raise refusal_of(sku, fence, answer)

    @override
    async def ask_sender(self, sku: str, wish: str, receiver: str = DEFAULT_RECEIVER, *, instead_of: str = "") -> bool:
        argument = json.dumps({"wish": wish, "instead_of": instead_of, "field": f"wish{suffix_of(receiver)}"})
        answer: str = await self._readers.run(self._ask_sender, (self._keys(sku).outbox,), argument, durable=True)
        return answer == "ok"

    @override
    async def erase(self, sku: str, buyer: str, under: Under, *, by: str = "") -> int:
        return await erase(self._sale, self._keys(sku), sku, buyer, under, by)

    @override
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            if put:
                pipe.hset(_NOTICES, mapping=dict(put))
            if drop:
                pipe.hdel(_NOTICES, *drop)
            pipe.hgetall(_NOTICES)
            found: dict[str, str] = (await pipe.execute())[-1]
        return found

    @override
    async def clocks_ms(self, *, timeout_s: float | None = None) -> dict[str, int]:
        said = await self._readers.times(timeout_s)
        return {server: int(seconds) * 1000 + int(us) // 1000 for server, (seconds, us) in said.items()}

    @override
    def server_of(self, sku: str) -> str:
        return self._sale.server_of(keys_of(sku).fence) if self._clustered else ""

    @override
    async def ping(self, skus: Sequence[str] = (), *, timeout_s: float | None = None) -> None:
        if not self._clustered:
            await self._ping_at(DEFAULT_SKU, "seckill:ping", timeout_s)
            return
        named = [sku for sku in skus if sku != DEFAULT_SKU] or ["ping"]
        pings = [self._ping_at(sku, f"seckill:{{{sku}}}:written", timeout_s) for sku in named]
        said = await asyncio.gather(*pings, return_exceptions=True)
        if None not in said:
            raise next(error for error in said if error is not None)

    async def _ping_at(self, sku: str, written: str, timeout_s: float | None) -> None:
        request = json.dumps({"instance": self._instance})
        keys = [*keys_of(sku).all, written]
        answer = await self._readers.run(self._ping, keys, request, durable=True, timeout_s=timeout_s)
        if answer != "ok":
            raise refusal_of(sku, None, answer)

    @override
    async def ensure_lasting(self, *, timeout_s: float | None = None) -> None:
        await self._readers.ensure_lasting(timeout_s)

    @override
    async def close(self) -> None:
        await self._sale.close()
        await self._readers.close()
