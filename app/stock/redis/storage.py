"""The storage in Redis or Valkey: two scripts that look and put, and the orders in a stream beside the stock."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

from pydantic_core import to_json
from typing_extensions import override

from app.errors import (
    ConfigurationError,
    ItemNotPossible,
    StockChanged,
    StockCorrupt,
    StockError,
    StockUnavailable,
    UnknownItem,
)
from app.orders import DEFAULT_SKU, SKU_PATTERN, Event, OrderState
from app.stock.batch import LAYOUT, Fence
from app.stock.bulkhead import halves
from app.stock.log import Change, LogNote
from app.stock.redis.client import RedisClient, Script
from app.stock.redis.keys import LOG_MAX, Keys, change_of, event_of, fields_of, keys_of, pack_note, pairs
from app.stock.storage import (
    DUE_MAX,
    LINE_MAX,
    Erased,
    Found,
    Head,
    Names,
    Put,
    Storage,
    Value,
    raise_if_none_was_reached,
)
from app.stock.values import tag_of

Answer = TypeVar("Answer")
Commands = list[list[str]]

_PAGE: Final = 1000
_COPY: Final = 500  # entries that a call copies
_AT_ONCE: Final = 500  # values of a command: Lua unpacks some thousands at most
_LOOKS_PER_S: Final = 1000  # at journals of a Cluster, which can't be waited for together
_LOOK_EVERY_S: Final = 0.1  # at most
_NOTICES: Final = "seckill:notices"
_ASKED: Final = ("buyers", "keys", "payments", "numbers", "marks", "holds", "due", "line")
_NUMBER: Final = re.compile(
    "(?:0|[1-9][0-9]{0,15})-(?:0|[1-9][0-9]{0,15}|18446744073709551615)"
)  # the last possible entry of its millisecond
_MARK: Final = re.compile("([0-9]{16})-([0-9]{16})")
_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")
_HALF: Final = re.compile("([0-9]+) (.*)")
_NUMBERS: Final = ("generation", "epoch")  # where 0 is not kept
_NUMBER_MAX: Final = 16  # digits


class RedisStorage(Storage):
    """All items on one server, or on those of a Cluster, where the keys of an item lie in one hash slot.

    `wait_replicas`: a write is in doubt until that many replicas have acknowledged it; `refusal_ttl_s`: how long a
    refusal is kept.
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
        self._follower = RedisClient(url, timeout_s=timeout_s, connections=1)  # whose calls wait for news
        self._clustered = self._sale.clustered
        if wait_replicas and self._clustered:
            raise ConfigurationError("to wait for replicas is not possible in a Redis Cluster")
        self._connections = connections
        self._instance = instance
        self._refusal_ttl_ms = str(max(1, int(refusal_ttl_s * 1000)))
        self._look, self._put = Script("look.lua"), Script("put.lua")
        self._copy, self._swap, self._ping = Script("copy.lua"), Script("swap.lua"), Script("ping.lua")

    @override
    def check(self, sku: str) -> None:
        if sku == DEFAULT_SKU and self._clustered:
            raise ItemNotPossible(
                "the default item's keys 'stock' and 'lucky' lie in two hash slots, which no script can write "
                "together in a Redis Cluster; use an item with a name (sku)"
            )

    @override
    def unknown(self, sku: str) -> UnknownItem:
        # The default item's key has a name that people know; the others' names are internal.
        why = f": the key {Keys(sku).stock!r} is not there" if sku == DEFAULT_SKU else ""
        return UnknownItem(f"no item {sku!r}{why}")

    @override
    def corrupt(self, sku: str, what: str) -> StockCorrupt:
        keys = keys_of(sku)
        if what == "terms":
            return StockCorrupt(f"the field `terms` of the key {keys.fence!r} is not what we write")
        name = {"keys": keys.settled, "records": keys.records, "orders": keys.orders, "outbox": keys.outbox}[what]
        return _odd(sku, name)

    # -- the journal's numbers: its ids, "milliseconds-sequence" -----------------------------------------------------

    @override
    def numbers(self, head: Head, count: int) -> list[str]:
        ms, seq = map(int, (head.last or "0-0").split("-"))
        ms, seq = (now_ms, 0) if (now_ms := head.now_us // 1000) > ms else (ms, seq + 1)
        return [f"{ms}-{seq + place}" for place in range(count)]

    @override
    def is_number(self, text: str) -> bool:
        return _NUMBER.fullmatch(text) is not None

    @override
    def mark(self, number: str) -> str:
        ms, _, seq = number.partition("-")
        return f"{ms:0>16}-{seq:0>16}"

    @override
    def unmark(self, text: str) -> str:
        match = _MARK.fullmatch(text)
        if match is None:
            raise ValueError(f"not a mark of ours: {text!r}")
        return f"{int(match[1])}-{int(match[2])}"

    # -- named things ------------------------------------------------------------------------------------------------

    @override
    async def look(
        self,
        names: Mapping[str, Names],
        fence: Fence | None = None,
        batch_id: str = "",
        *,
        any_layout: bool = False,
        durable: bool = False,
    ) -> dict[str, Found | StockError]:
        # Buyers also get answers from earlier purchases that are read, so these must be durable as well.
        client = self._sale if durable else self._readers
        request: dict[str, object] = {"due_max": DUE_MAX, "line_max": LINE_MAX}
        if fence is not None:
            request |= {"source": fence.source, "token": str(fence.token), "batch": batch_id}
            if not any_layout:
                request["layout"] = str(LAYOUT)
        items = {sku: _asked(one, self.is_number) for sku, one in names.items()}
        return await self._run_many(
            client,
            self._look,
            request,
            items,
            lambda sku, answer: self._found(sku, names[sku], answer, any_layout),
            durable=durable,
        )

    def _found(self, sku: str, names: Names, answer: Sequence[Any], lenient: bool) -> Found:
        _, fence, stock, lucky, now_us, buyers, keys, refused, before, holders, payments, due, first_due = answer[:13]
        line, records, about, sales, entries, secrets = answer[13:]
        if lenient and not _WHOLE.fullmatch(lucky or "0"):
            lucky = None  # a new sale sets the units to 0, whatever the value is
        head = self._head(sku, fence, stock, lucky, now_us, first_due)
        found = Found(head, due=due, line=line)
        at = keys_of(sku)
        if about:
            for buyer, units, holder in zip(about[::3], about[1::3], about[2::3], strict=True):
                found.bought[buyer] = _whole(sku, at.buyers, units)
                if holder:
                    found.holders[buyer] = holder
        if buyers:
            for name, one in _there(names.buyers, buyers):
                found.bought[name] = _whole(sku, at.buyers, one)
        if keys:
            found.keys = dict(_there(names.keys, keys))
            found.refused = dict(_there(names.keys, before)) | dict(_there(names.keys, refused))
        if holders:
            found.holders |= dict(_there(names.buyers, holders))
        if payments:
            found.payments = dict(_there(names.payments, payments))
        if records or sales or entries:
            found.records = pairs(records)
            found.sales, found.entries = _events(sku, sales), _events(sku, entries)
        if secrets:
            found.tags = {entry: tag_of(secret) for entry, secret in pairs(secrets).items()}
        return found

    def _head(
        self,
        sku: str,
        values: Sequence[str | None],
        stock: str | None,
        lucky: str | None,
        now_us: str,
        first_due: str | None = None,
    ) -> Head:
        at = keys_of(sku)
        source, token, prepared, batch, last, tag, terms, generation, sale, *more, written = values
        epoch, initial, held, changes, erasures, layout, waiting, wants = more
        sold = _whole(sku, at.lucky, lucky or "0")
        half = _HALF.fullmatch(written) if written else None
        began = int(generation or 0)
        return Head(
            stock=None if stock is None else _whole(sku, at.stock, stock),
            lucky=sold,
            held=int(held or 0),
            waiting=int(waiting or 0),
            wants=int(wants or 0),
            initial=None if initial is None else _whole(sku, f"{at.fence} initial", initial),
            terms=terms or "",
            generation=began,
            sale=int(sale or began),
            epoch=int(epoch or 0),
            source=source,
            token=None if token is None else int(token),
            prepared=prepared,
            batch=batch,
            last=last or "",
            tag=tag or "",
            changes=int(changes or 0),
            erasures=int(erasures or 0),
            layout=int(layout or 0),
            half=half is not None and half[2] == (batch or "") and sold > int(half[1]),
            now_us=int(now_us),
            first_due_ms=int(float(first_due)) if first_due else None,
        )

    @override
    def apart(self, skus: Sequence[str]) -> str:
        where = "a Redis Cluster keeps each item in a hash slot of its own, and no script can write two"
        return f"{where}; use a single server, or Sentinel" if self._clustered and len(skus) > 1 else ""

    @override
    async def put(
        self, puts: Mapping[str, Put], together: Sequence[set[str]] = ()
    ) -> dict[str, Head | StockError | None]:
        in_groups = {sku: puts[sku] for group in together for sku in sorted(group)}
        parts = {sku: self._part(sku, put) for sku, put in (in_groups | dict(puts)).items()}
        for group in together:
            parts[min(group)]["together"] = str(len(group))

        def done(sku: str, answer: Sequence[Any]) -> Head | StockError | None:
            match answer[0]:
                case "ok" | "again":
                    return None
                case "not":
                    return self._head(sku, *answer[1:])
                case "forbidden":
                    return StockUnavailable(f"the store's user may not {answer[1]}", untouched=True)
                case "gone":
                    return StockChanged("the copy of the journal has expired")
            raise ValueError

        return await self._run_many(self._sale, self._put, {}, parts, done, durable=True)

    async def run(self, script: Script, keys: Keys, argument: str) -> Any:
        """Run a script of one item, for a store that needs another than these."""
        return await self._sale.run(script, keys.all, argument)

    def _part(self, sku: str, put: Put) -> dict[str, object]:
        at, head = keys_of(sku), put.head
        writes = list(self._writes(at, put))
        fence: list[str] = []
        forgotten: list[str] = []
        for name, value in head.items():
            if name == "sale" and value == head["generation"]:  # the sale's number is the same as the generation
                forgotten.append(name)
            elif value is None or value == "":
                forgotten += () if name in ("stock", "lucky", "last") else (name,)
            elif name == "lucky":
                fence += ("sold", f"{value} {head.get('batch', put.found.head.batch) or ''}")
            elif name != "stock":
                fence += (name, str(value))
        if put.units.held:
            fence += ("held", str(max(0, put.found.head.held + put.units.held)))
        if forgotten:
            writes.append(["HDEL", at.fence, *forgotten])
        part: dict[str, object] = {
            "expect": {name: _text(value or None if name in _NUMBERS else value) for name, value in put.expect.items()},
            "batch": put.batch_id or "",
            "lucky": str(put.units.lucky),
            "writes": writes,
            "fence": fence,
        }
        if put.refused:
            part["refused"] = [text for pair in put.refused.items() for text in pair]
            part |= {"now_ms": str(put.found.head.now_us // 1000), "refusal_ttl_ms": self._refusal_ttl_ms}
        return part

    def _writes(self, at: Keys, put: Put) -> Iterator[list[str]]:
        """The commands of a put; rare parts cost nothing if they are absent, as a batch may have some hundred puts."""
        head, found = put.head, put.found
        for note in put.notes:
            fields = (text for pair in pack_note(note).items() for text in pair)
            yield ["XADD", at.log, "MAXLEN", "~", str(LOG_MAX), "*", *fields]
        if put.clear or put.remove:
            # Not DEL: to free some million orders takes seconds, and blocks the server.
            yield ["UNLINK", *at.of_sale, *((at.stock, at.lucky) if put.remove else ())]
        if put.clear:
            # An empty stream keeps its last id: no number is used again, also if the clock was set back.
            yield ["UNLINK", at.orders]
            if found.head.last not in ("", "0-0"):
                yield ["XADD", at.orders, "MAXLEN", "0", found.head.last, "sale", "over"]
        if not put.remove and "stock" in head:
            yield ["SET", at.stock, str(head["stock"])]
            yield ["SET", at.lucky, str(head["lucky"])]
        elif put.units.stock:
            yield ["SET", at.stock, str((found.head.stock or 0) + put.units.stock)]
        for event in put.entries:
            yield ["XADD", at.orders, event.entry, *fields_of(event)]
        if put.erased is not None:
            yield from self._replacing(at, put, put.erased)
        if put.bought:
            had = found.bought.get
            yield from _set(at.buyers, {name: str(max(0, had(name, 0) + units)) for name, units in put.bought.items()})
        yield from _set(at.settled, put.keys)
        yield from _set(at.payments, put.payments)
        if put.holders:
            yield from _set(at.holders, {name: number for name, number in put.holders.items() if number is not None})
            yield from _some("HDEL", at.holders, [name for name, number in put.holders.items() if number is None])
        if put.records:
            yield from _set(at.records, {number: text for number, (text, _) in put.records.items()})
            records = {number: record for number, (_, record) in put.records.items()}
            held = {number: str(one.due_ms) for number, one in records.items() if one.state is OrderState.HELD}
            yield from _some("ZADD", at.due, [text for number, due_ms in held.items() for text in (due_ms, number)])
            over = [number for number in records if number not in held and number in found.records]
            yield from _some("ZREM", at.due, over)
            waits = [number for number, one in records.items() if one.state is OrderState.WAITING]
            yield from _some("ZADD", at.waiting, [text for number in waits for text in ("0", self.mark(number))])
            if found.head.waiting:
                gone = [self.mark(number) for number in records if number not in waits and number in found.records]
                yield from _some("ZREM", at.waiting, gone)

    async def _run_many(
        self,
        client: RedisClient,
        script: Script,
        request: Mapping[str, object],
        parts: Mapping[str, Mapping[str, object]],
        made: Callable[[str, Sequence[Any]], Answer],
        *,
        durable: bool,
    ) -> dict[str, Answer | StockError]:
        """Run a script for some items, in one call where one server has them all; `made` turns an answer into ours."""
        run = partial(self._run_together, client, script, request, made, durable)
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
        request: Mapping[str, object],
        made: Callable[[str, Sequence[Any]], Answer],
        durable: bool,
        parts: Mapping[str, Mapping[str, object]],
    ) -> dict[str, Answer | StockError]:
        # A recursive closure would keep the whole batch until the next garbage collection.
        keys = [key for sku in parts for key in keys_of(sku).all]
        argument = to_json({**request, "items": list(parts.values())})  # in half the time
        try:
            answers = await client.run(script, keys, argument, durable=durable)
            if not isinstance(answers, list) or len(answers) != len(parts):
                raise _nonsense(answers)
        except StockError as error:
            if durable:
                # This is the server's own error, not the script's answer: how far the script came is unknown.
                unknown = error if isinstance(error, StockUnavailable) else StockUnavailable(str(error))
                return dict.fromkeys(parts, unknown)
            if len(parts) == 1:
                return dict.fromkeys(parts, error)
            raise
        found: dict[str, Answer | StockError] = {}
        for sku, answer in zip(parts, answers, strict=True):
            try:
                found[sku] = _odd(sku, answer[1]) if answer[0] == "corrupt" else made(sku, answer)
            except StockError as error:
                found[sku] = error
            except (TypeError, ValueError, LookupError):
                found[sku] = _nonsense(answer)
        return found

    async def _one_by_one(
        self,
        run: Callable[[Mapping[str, Mapping[str, object]]], Awaitable[dict[str, Answer | StockError]]],
        parts: Mapping[str, Mapping[str, object]],
    ) -> dict[str, Answer | StockError]:
        at_once = asyncio.Semaphore(self._connections)

        async def run_one(sku: str, part: Mapping[str, object]) -> dict[str, Answer | StockError]:
            async with at_once:
                return await run({sku: part})

        found: dict[str, Answer | StockError] = {}
        for one in await asyncio.gather(*(run_one(sku, part) for sku, part in parts.items())):
            found |= one
        return found

    @override
    async def before(self, sku: str, number: str) -> int | None:
        async with self._readers.commands() as redis:
            rank = await redis.zrank(keys_of(sku).waiting, self.mark(number))
        return None if rank is None else int(rank)

    @override
    async def page(self, sku: str, after: str | None, until: str | None, limit: int) -> list[Event]:
        async with self._readers.commands() as redis:
            begin, end = f"({after}" if after else "-", until or "+"
            found = await redis.xrange(keys_of(sku).orders, min=begin, max=end, count=limit)
        return [event_of(sku, entry, fields) for entry, fields in found]

    @override
    async def count(self, sku: str) -> int:
        async with self._readers.commands() as redis:
            return int(await redis.xlen(keys_of(sku).orders))

    @override
    async def scan(self) -> list[str]:
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
    async def moved(self, after: Mapping[str, str], wait_s: float) -> set[str]:
        skus = {keys_of(sku).orders: sku for sku in after}
        if self._clustered or not after:
            return await self._moved_one_by_one(after, wait_s)
        wait_ms = int(min(wait_s, self._follower.timeout_s / 2) * 1000)
        async with self._follower.commands() as redis:
            places = {key: after[sku] or "0-0" for key, sku in skus.items()}
            found = await redis.xread(places, count=1, block=wait_ms or None)
        return {skus[key] for key, _ in found}

    async def _moved_one_by_one(self, after: Mapping[str, str], wait_s: float) -> set[str]:
        until, pause_s = time.monotonic() + wait_s, max(_LOOK_EVERY_S, len(after) / _LOOKS_PER_S)
        while True:
            async with self._follower.commands() as redis, redis.pipeline(transaction=False) as pipe:
                for sku, entry in after.items():
                    pipe.xrange(keys_of(sku).orders, min=f"({entry}" if entry else "-", count=1)
                pages = await pipe.execute(raise_on_error=False)
            found = {sku for sku, page in zip(after, pages, strict=True) if page}  # an error is news, too
            if found or time.monotonic() + pause_s > until:
                await asyncio.sleep(0 if found else max(0.0, until - time.monotonic()))
                return found
            await asyncio.sleep(pause_s)

    # -- to erase a name: the journal is copied in parts, without a lock, as entries are only ever added -------------

    @override
    async def copy(self, sku: str, erased: Erased, *, last: bool) -> None:
        keys = keys_of(sku)
        # Two names may be erased at once; the rest of a copy expires.
        name, after = erased.state or (f"{keys.orders}-copy-{uuid4().hex}", "")
        count, copied = 0 if last else _COPY, _COPY
        while copied == _COPY:
            request = {"buyer": erased.buyer, "after": after, "count": str(count)}
            answer = await self._sale.run(self._copy, (*keys.all, name), json.dumps(request), durable=last)
            after, copied, found = answer
            erased.entries += _events(sku, found).values()
            erased.state = name, after
            if last:
                break
        if last and after:
            await self._trim(keys, name)

    async def _trim(self, keys: Keys, name: str) -> None:
        """Delete entries from the copy that the stream has lost meanwhile, and keep its last id."""
        async with self._sale.commands() as redis:
            first = await redis.xrange(keys.orders, count=1)
            if first:
                await redis.xtrim(name, minid=first[0][0], approximate=False)
                about = await redis.xinfo_stream(keys.orders)
                await redis.execute_command("XSETID", name, about["last-generated-id"])
            if await redis.xlen(name) != await redis.xlen(keys.orders):
                raise StockChanged("the journal was changed by other means while it was copied")

    def _replacing(self, at: Keys, put: Put, erased: Erased) -> Iterator[list[str]]:
        name, after = erased.state
        if after:
            yield ["PERSIST", name]
            yield ["RENAME", name, at.orders]
        for where, key, text in erased.refused:
            yield ["HSET", where, key, text]
        if erased.buyer in put.found.bought:
            yield ["HDEL", at.buyers, erased.buyer]

    @override
    async def refusals(self, sku: str) -> AsyncIterator[tuple[str, str, str]]:
        keys = keys_of(sku)
        for name in (keys.refused, keys.refused_before):
            async with self._readers.commands() as redis:
                found = await redis.hgetall(name)
            for key, text in found.items():
                if key:  # "" has the time
                    yield name, key, text

    # -- beside the sale ---------------------------------------------------------------------------------------------

    @override
    async def senders(self, skus: Sequence[str]) -> list[str]:
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.hkeys(keys_of(sku).outbox)
            answers = await pipe.execute(raise_on_error=False)
        return [name for names in answers if not isinstance(names, Exception) for name in names]

    @override
    async def notes(self, skus: Sequence[str], receiver: str) -> dict[str, tuple[int, str] | StockError]:
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            for sku in skus:
                pipe.hmget(keys_of(sku).fence, "sale", "generation")
                pipe.hget(keys_of(sku).outbox, receiver)
            answers = await pipe.execute(raise_on_error=False)
        found: dict[str, tuple[int, str] | StockError] = {}
        for sku, began, note in zip(skus, answers[::2], answers[1::2], strict=True):
            if isinstance(began, Exception) or isinstance(note, Exception):
                found[sku] = self.corrupt(sku, "outbox")
            else:
                sale = began[0] or began[1] or "0"
                found[sku] = (int(sale), note or "") if sale.isdecimal() else _odd(sku, keys_of(sku).fence)
        return found

    @override
    async def swap_note(self, sku: str, receiver: str, old: str, new: str) -> bool:
        request = json.dumps({"field": receiver, "old": old, "new": new})
        return bool(await self._readers.run(self._swap, (keys_of(sku).outbox,), request, durable=True))

    @override
    async def log(self, sku: str | None, limit: int) -> list[Change]:
        skus = [sku] if sku is not None else await self._named("log")
        found: list[Change] = []
        async with self._readers.commands() as redis:
            for one in skus:
                entries = await redis.xrevrange(keys_of(one).log, count=limit)
                found += [change_of(one, entry_id, fields) for entry_id, fields in entries]
        return sorted(found, key=lambda change: change.at, reverse=True)[:limit]

    @override
    async def add_to_log(self, sku: str, note: LogNote) -> None:
        async with self._readers.commands() as redis:
            await redis.xadd(keys_of(sku).log, pack_note(note), maxlen=LOG_MAX)

    @override
    async def board(self, put: Mapping[str, str], drop: Sequence[str]) -> dict[str, str]:
        async with self._readers.commands() as redis, redis.pipeline(transaction=False) as pipe:
            if put:
                pipe.hset(_NOTICES, mapping=dict(put))
            if drop:
                pipe.hdel(_NOTICES, *drop)
            pipe.hgetall(_NOTICES)
            found: dict[str, str] = (await pipe.execute())[-1]
        return found

    @override
    async def clocks_ms(self, timeout_s: float | None) -> dict[str, int]:
        said = await self._readers.times(timeout_s)
        return {server: int(seconds) * 1000 + int(us) // 1000 for server, (seconds, us) in said.items()}

    @override
    def server_of(self, sku: str) -> str:
        return self._sale.server_of(keys_of(sku).fence) if self._clustered else ""

    @override
    async def ping(self, skus: Sequence[str], timeout_s: float | None) -> None:
        if not self._clustered:
            await self._ping_at(DEFAULT_SKU, "seckill:ping", timeout_s)
            return
        named = [sku for sku in skus if sku != DEFAULT_SKU] or ["ping"]
        pings = [self._ping_at(sku, f"seckill:{{{sku}}}:written", timeout_s) for sku in named]
        said = await asyncio.gather(*pings, return_exceptions=True)
        if None not in said:
            raise next(error for error in said if error is not None)

    async def _ping_at(self, sku: str, written: str, timeout_s: float | None) -> None:
        keys = keys_of(sku)
        request = json.dumps({"instance": self._instance, "commands": _of_a_sale(keys)})
        answer = await self._readers.run(self._ping, (*keys.all, written), request, durable=True, timeout_s=timeout_s)
        if answer != "ok":
            forbidden = isinstance(answer, list) and answer[:1] == ["forbidden"]
            raise StockUnavailable(f"the store's user may not {answer[1]}") if forbidden else _nonsense(answer)

    @override
    async def ensure_lasting(self, timeout_s: float | None) -> None:
        await self._readers.ensure_lasting(timeout_s)

    @override
    async def close(self) -> None:
        for client in (self._sale, self._readers, self._follower):
            await client.close()


def _asked(names: Names, is_number: Callable[[str], bool]) -> dict[str, object]:
    """The arguments of a script, without absent ones."""
    own: dict[str, object] = {name: value for name in _ASKED if (value := getattr(names, name))}
    if names.entries:
        own["entries"] = [one for one in names.entries if is_number(one)]
    return own


def _there(names: Sequence[str], values: Sequence[str | None]) -> Iterator[tuple[str, str]]:
    """The names of which there is a value."""
    return ((name, value) for name, value in zip(names, values, strict=False) if value is not None)


def _events(sku: str, flat: Sequence[Any]) -> dict[str, Event]:
    """The entries that a script has written one behind the other, each with its fields."""
    return {entry: event_of(sku, entry, pairs(own)) for entry, own in zip(flat[::2], flat[1::2], strict=True)}


def _set(key: str, values: Mapping[str, str]) -> Commands:
    return _some("HSET", key, [text for pair in values.items() for text in pair]) if values else []


def _some(command: str, key: str, values: Sequence[str]) -> Commands:
    return [[command, key, *values[at : at + _AT_ONCE]] for at in range(0, len(values), _AT_ONCE)]


def _text(value: Value) -> str:
    return "" if value is None else str(value)


def _whole(sku: str, name: str, text: str) -> int:
    """Parse a number of units. Raises `StockCorrupt`, with the name of the key, for anything else."""
    if not _WHOLE.fullmatch(text):
        raise StockCorrupt(f"the key {name!r} of item {sku!r} is not a whole number of 0 or more")
    return int(text)


def _odd(sku: str, name: str) -> StockCorrupt:
    return StockCorrupt(f"the key {name!r} of item {sku!r} holds something that is not ours")


def _nonsense(answer: object) -> StockUnavailable:
    """The error for an answer that no script of ours gives: the request may or may not have been carried out."""
    return StockUnavailable(f"the store gives an answer that is none: {str(answer)[:80]!r}")


def _of_a_sale(at: Keys) -> Commands:
    """The commands that a sale needs, for the check of our rights."""
    return [
        *(["MGET", at.stock, at.lucky], ["GET", at.stock], ["SET", at.stock, "0"], ["INCRBY", at.lucky, "1"]),
        *(
            ["HMGET", at.fence, "a"],
            ["HSET", at.fence, "a", "b"],
            ["HDEL", at.fence, "a"],
            ["HSET", at.buyers, "a", "1"],
        ),
        *(["HMGET", at.settled, "a"], ["HGET", at.refused, ""], ["HLEN", at.refused], ["TIME"]),
        ["XADD", at.orders, "*", "a", "b"],
        *(
            ["XDEL", at.orders, "1-1"],
            ["XRANGE", at.orders, "-", "+"],
            ["TYPE", at.orders],
            ["UNLINK", at.orders],
            ["HDEL", at.holders, "a"],
        ),
        *(["RENAME", at.refused, at.refused_before], ["PEXPIRE", at.refused, "1"], ["HSET", at.records, "a", "b"]),
        *(["ZADD", at.due, "1", "a"], ["ZREM", at.due, "a"], ["ZRANGEBYSCORE", at.due, "0", "1"]),
        *(
            ["ZRANGE", at.waiting, "0", "1"],
            ["ZADD", at.waiting, "0", "a"],
            ["ZREM", at.waiting, "a"],
            ["ZRANK", at.waiting, "a"],
        ),
    ]
