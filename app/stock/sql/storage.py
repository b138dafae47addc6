"""The storage in SQL: named things in tables, looked up by their keys, and written in one transaction."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    Row,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from typing_extensions import override

from app.errors import StockCorrupt, StockError, StockUnavailable
from app.orders import ERASED, Event, EventKind, OrderId, OrderState, Units, to_json
from app.stock.batch import LAYOUT, Fence
from app.stock.bulkhead import Bulkhead, halves
from app.stock.log import Change, LogNote
from app.stock.sql.mysql import MySqlServer
from app.stock.sql.postgres import PostgresServer
from app.stock.sql.schema import (
    BUYERS,
    HOLDERS,
    ITEMS,
    JOURNAL,
    KEYS,
    LOG,
    METADATA,
    NOTICES,
    OF_SALES,
    OUTBOX,
    PAYMENTS,
    RECORDS,
    WAITING,
)
from app.stock.sql.server import Conflict, SqlServer, now_us
from app.stock.sql.sweeper import Sweeper
from app.stock.storage import DUE_MAX, LINE_MAX, Erased, Found, Head, Names, Put, Storage, Value
from app.stock.values import tag_of

Result = TypeVar("Result")
Rows = Sequence[Row[Any]]
Of = tuple[str, int]  # a sale of an item: the item, and the sale's number

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,18}")
_LARGEST: Final = 2**63 - 1
_PAGE: Final = 5000  # rows that a statement looks at
_AT_ONCE: Final = 500  # values of an IN
_LOOK_EVERY_S: Final = 0.1
_COLUMNS: Final = {"last": "last_entry", "tag": "last_tag"}  # columns with other names than the fields of `Head`

_FIRST_DUE: Final = (
    select(RECORDS.c.due_ms)
    .where(RECORDS.c.sku == ITEMS.c.sku, RECORDS.c.sale == ITEMS.c.sale, RECORDS.c.due_ms.is_not(None))
    .order_by(RECORDS.c.due_ms)
    .limit(1)
    .scalar_subquery()
)
_OF_SKUS: Final = ITEMS.c.sku.in_(bindparam("skus", expanding=True))
_HEADS: Final = select(ITEMS, now_us().label("now_us"), _FIRST_DUE.label("first_due_ms")).where(_OF_SKUS)
_RAISE: Final = (
    update(ITEMS)
    .values(source=bindparam("own_source"), token=bindparam("own_token"), prepared=bindparam("own_batch"))
    .where(_OF_SKUS)
    .where(or_(ITEMS.c.generation == 0, ITEMS.c.layout.between(bindparam("layout_from"), bindparam("layout_to"))))
    .where(or_(ITEMS.c.source.is_(None), ITEMS.c.source == bindparam("own_source")))
    .where(or_(ITEMS.c.token.is_(None), ITEMS.c.token <= bindparam("own_token")))
)
_DUE: Final = (
    select(RECORDS.c.number)
    .where(RECORDS.c.sku == bindparam("own_sku"), RECORDS.c.sale == bindparam("own_sale"))
    .where(RECORDS.c.due_ms <= bindparam("now_ms"))
    .order_by(RECORDS.c.due_ms, RECORDS.c.number)
    .limit(DUE_MAX + 1)
)

_LINE: Final = (
    select(WAITING.c.number)
    .where(WAITING.c.sku == bindparam("own_sku"), WAITING.c.sale == bindparam("own_sale"))
    .order_by(WAITING.c.number)
    .limit(LINE_MAX)
)


def _by_key(table: Table, key: str, *columns: ColumnElement[Any], joined: str | None = None) -> Any:
    """The statement that reads rows by the item, its sale and a key; `joined`: with the notes on that buyer."""
    of = table
    if joined is not None:
        same = (BUYERS.c.sku == table.c.sku, BUYERS.c.sale == table.c.sale, BUYERS.c.name == table.c[joined])
        held = (HOLDERS.c.sku == table.c.sku, HOLDERS.c.sale == table.c.sale, HOLDERS.c.buyer == table.c[joined])
        of = table.outerjoin(BUYERS, and_(*same)).outerjoin(HOLDERS, and_(*held))  # type: ignore[assignment]
        columns = (*columns, BUYERS.c.units, HOLDERS.c.number.label("holder"))
    wanted = tuple_(table.c.sku, table.c.sale, table.c[key]).in_(bindparam("wanted", expanding=True))
    return select(table.c.sku, table.c[key].label("key"), *columns).select_from(of).where(wanted)


_BOUGHT: Final = _by_key(BUYERS, "name", BUYERS.c.units)
_HOLDING: Final = _by_key(HOLDERS, "buyer", HOLDERS.c.number)
_KEYS: Final = _by_key(KEYS, "name", KEYS.c.body, KEYS.c.expires_ms)
_PAID: Final = _by_key(PAYMENTS, "payment_ref", PAYMENTS.c.number)
_STANDING: Final = _by_key(RECORDS, "number", RECORDS.c.record, RECORDS.c.buyer, joined="buyer")
_SALES: Final = _by_key(JOURNAL, "entry", *JOURNAL.c, joined="buyer")
_ENTRIES: Final = _by_key(JOURNAL, "entry", *JOURNAL.c)
_CURRENT: Final = select(ITEMS.c.sale).where(ITEMS.c.sku == bindparam("own_sku")).scalar_subquery()
_JOURNAL: Final = (
    select(JOURNAL)
    .where(JOURNAL.c.sku == bindparam("own_sku"), JOURNAL.c.sale == _CURRENT)
    .where(JOURNAL.c.entry > bindparam("after"), JOURNAL.c.entry <= bindparam("until"))
    .order_by(JOURNAL.c.entry)
    .limit(bindparam("most"))
)


class SqlStorage(Storage):
    """All items in one database.

    `url`: see `MySqlServer` and `PostgresServer`; `timeout_s`: deadline of a call, the wait for a connection included;
    `connections`: to the server at most; `refusal_ttl_s`: how long a refusal is kept. Tables are made at the first
    call, where they are missing; one that is missing later has been lost, and is an error.
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0, connections: int = 8, refusal_ttl_s: float = 3600) -> None:
        kind = PostgresServer if url.startswith("postgres") else MySqlServer
        self.server: SqlServer = kind(url, timeout_s)
        self._sale, self._readers = (Bulkhead(half) for half in halves(connections))
        self._refusal_ttl_ms = max(1, int(refusal_ttl_s * 1000))
        self._sweeper = Sweeper(self.server)

    @override
    def corrupt(self, sku: str, what: str) -> StockCorrupt:
        where = {"keys": "seckill_keys", "records": "seckill_records", "orders": "seckill_journal"}
        if what == "terms":
            return StockCorrupt(f"the column `terms` of item {sku!r} is not what we write")
        return StockCorrupt(f"a row of item {sku!r} in {where.get(what, 'seckill_outbox')} is not what we write")

    async def _read(
        self, work: Callable[[AsyncConnection], Awaitable[Result]], timeout_s: float | None = None
    ) -> Result:
        try:
            return await self.server.call(work, self._readers, timeout_s=timeout_s)
        except Conflict as error:
            raise StockUnavailable(f"{self.server.name} refuses a row: {error}") from error

    # -- the journal's numbers: the server's clock in µs, or one more than the one before ----------------------------

    @override
    def numbers(self, head: Head, count: int) -> list[str]:
        first = max(int(head.last or 0) + 1, head.now_us)
        return [str(first + place) for place in range(count)]

    @override
    def is_number(self, text: str) -> bool:
        return _NUMBER.fullmatch(text) is not None

    @override
    def mark(self, number: str) -> str:
        return f"{int(number):020}"

    @override
    def unmark(self, text: str) -> str:
        return str(int(text))

    # -- look --------------------------------------------------------------------------------------------------------

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
        async def read(connection: AsyncConnection) -> dict[str, Found | StockError]:
            if fence is not None:
                # Committed before anything is decided: what was decided earlier can't be written any more.
                own = {"own_source": fence.source, "own_token": fence.token, "own_batch": batch_id}
                layouts = (0, _LARGEST) if any_layout else (LAYOUT, LAYOUT)
                layout = dict(zip(("layout_from", "layout_to"), layouts, strict=True))
                await connection.execute(_RAISE, {"skus": sorted(names), **own, **layout})
            return await self._look(connection, names, line=durable)

        try:
            found = await self.server.call(read, self._sale if durable else self._readers)
        except Conflict as error:
            raise StockUnavailable(f"{self.server.name} refuses a row: {error}") from error
        if durable:
            heads = {sku: one.head for sku, one in found.items() if isinstance(one, Found)}
            self._sweeper.sweep((sku, head.sale) for sku, head in heads.items() if head.swept != head.sale)
        return found

    async def _look(
        self, connection: AsyncConnection, names: Mapping[str, Names], *, line: bool
    ) -> dict[str, Found | StockError]:
        found = {sku: Found(Head(layout=-1)) for sku in names}  # -1: there is no row
        # The items come first: all that is read after them is at least as new as their versions.
        for row in await _all(connection, _HEADS, skus=list(names)):
            found[row.sku].head = _head(row)
        sale = {sku: one.head.sale for sku, one in found.items()}

        async def look_up(statement: Any, wanted: Mapping[str, Iterable[Value]]) -> Rows:
            # Unknown names, which strangers may invent, cost nothing more.
            keys = [
                (sku, sale[sku], key) for sku, some in wanted.items() if found[sku].head.layout >= 0 for key in some
            ]
            return [
                row
                for at in range(0, len(keys), _AT_ONCE)
                for row in await _all(connection, statement, wanted=keys[at : at + _AT_ONCE])
            ]

        buyers = {sku: asked.buyers for sku, asked in names.items()}
        for row in await look_up(_BOUGHT, buyers):
            found[row.sku].bought[row.key] = row.units
        for row in await look_up(_KEYS, {sku: asked.keys for sku, asked in names.items()}):
            one = found[row.sku]
            (one.keys if row.expires_ms is None else one.refused)[row.key] = row.body
        for row in await look_up(_PAID, {sku: asked.payments for sku, asked in names.items()}):
            found[row.sku].payments[row.key] = str(row.number)
        for sku, one in found.items():
            await _see_who_is_next(connection, sku, one, line=names[sku].line if line else None)
        about = {sku for sku, asked in names.items() if asked.holds or found[sku].due}
        for row in await look_up(_HOLDING, {sku: buyers[sku] for sku in about}):
            found[row.sku].holders[row.key] = str(row.number)
        numbers = {
            sku: {*names[sku].numbers, *one.line, *(_numbers_in(one) if sku in about else ())}
            for sku, one in found.items()
        }
        whole = {sku: {int(number) for number in some if self.is_number(number)} for sku, some in numbers.items()}
        odd: dict[str, StockError] = {}
        for row in await look_up(_STANDING, whole):
            found[row.sku].records[str(row.key)] = row.record
            whole[row.sku].discard(row.key)
            _note_buyer(found[row.sku], row)
        for row in await look_up(_SALES, whole):
            self._add(odd, found[row.sku].sales, row)
            _note_buyer(found[row.sku], row)
        entries: dict[str, list[int]] = {}
        for sku, asked in names.items():
            head = found[sku].head
            if head.tag and head.last in asked.marks:  # the batch was written with its item's row, or not at all
                found[sku].tags[head.last] = head.tag
            wanted = (*asked.entries, *(one for one in asked.marks if one not in found[sku].tags))
            entries[sku] = [int(one) for one in wanted if self.is_number(one)]
        for row in await look_up(_ENTRIES, entries):
            self._add(odd, found[row.sku].entries, row)
            found[row.sku].tags[str(row.entry)] = tag_of(row.secret)
        return {**found, **odd}

    def _add(self, odd: dict[str, StockError], to: dict[str, Event], row: Row[Any]) -> None:
        try:
            to[str(row.entry)] = self._event(row)
        except StockCorrupt as error:
            odd[row.sku] = error

    def _event(self, row: Row[Any]) -> Event:
        try:
            return Event(
                entry=str(row.entry),
                kind=EventKind(row.kind),
                order=OrderId(row.sku, str(row.order_entry), row.secret),
                number=row.number,
                quantity=row.quantity,
                buyer=row.buyer,
                key=row.idempotency_key,
                at=row.entry / 1_000_000,
                instance=row.instance,
                token=row.token,
                batch_id=row.batch,
                epoch=row.epoch,
                units=Units(row.stock, row.held, row.lucky),
                facts=json.loads(row.facts) if row.facts else {},
            )
        except ValueError:
            raise self.corrupt(row.sku, "orders") from None

    # -- put ---------------------------------------------------------------------------------------------------------

    @override
    async def put(
        self, puts: Mapping[str, Put], together: Sequence[set[str]] = ()
    ) -> dict[str, Head | StockError | None]:
        """Write all items in one transaction; if one of them has changed, each group in a transaction of its own."""
        try:
            await self.server.call(partial(self._write, puts=puts), self._sale, whole=True)
            begun = {sku: put.head["sale"] for sku, put in puts.items() if put.clear}
            self._sweeper.sweep((sku, int(sale or 0)) for sku, sale in begun.items())
            return dict.fromkeys(puts)
        except (Conflict, _NotAsFoundError):
            pass
        groups = [*together, *({sku} for sku in puts if not any(sku in group for group in together))]
        if len(groups) > 1:
            found: dict[str, Head | StockError | None] = {}
            for group in groups:
                try:
                    found |= await self.put({sku: puts[sku] for sku in puts if sku in group}, [group])
                except StockError as error:
                    found |= dict.fromkeys(group, error)
            return found
        looked = await self.look(dict.fromkeys(puts, Names()), durable=True)
        heads = {sku: one.head for sku, one in looked.items() if isinstance(one, Found)}
        if any(_was_written(head, puts[sku]) for sku, head in heads.items()):
            return dict.fromkeys(puts)
        return {sku: one.head if isinstance(one, Found) else one for sku, one in looked.items()}

    async def _write(self, connection: AsyncConnection, puts: Mapping[str, Put]) -> None:
        of: dict[str, tuple[Put, int]] = {}
        for sku in sorted(puts):  # in one order, so that there is no deadlock
            put = puts[sku]
            if put.found.head.layout == -1:
                row = {"sku": sku, "stock": None, "version": put.found.head.now_us, "layout": LAYOUT}
                await connection.execute(insert(ITEMS), [row])
            statement = update(ITEMS).where(ITEMS.c.sku == sku, *_unchanged(put)).values(_columns(put))
            if (await connection.execute(statement)).rowcount != 1:
                raise _NotAsFoundError
            sale = put.head.get("sale")
            of[sku] = put, put.found.head.sale if sale is None else int(sale)
            if put.clear or put.remove:
                await connection.execute(delete(OUTBOX).where(OUTBOX.c.sku == sku))
            if put.remove:
                for table in OF_SALES:
                    await connection.execute(delete(table).where(table.c.sku == sku))

        await self._ensure_as_found(connection, of)

        async def write(statement: Any, rows: list[dict[str, Any]]) -> None:
            if rows:
                await connection.execute(statement, rows)

        def rows_of(made: Callable[[Put], Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
            return [{"sku": sku, "sale": sale, **row} for sku, (put, sale) in of.items() for row in made(put)]

        upsert = self.server.upsert
        await write(insert(JOURNAL), rows_of(lambda put: map(_row_of, put.entries)))
        await write(upsert(RECORDS), rows_of(_records_of))
        await write(
            insert(PAYMENTS),
            rows_of(lambda put: ({"payment_ref": r, "number": int(n)} for r, n in put.payments.items())),
        )
        held = rows_of(lambda put: ({"buyer": b, "number": int(n)} for b, n in put.holders.items() if n is not None))
        await write(upsert(HOLDERS), held)
        await write(self.server.insert_missing(WAITING), rows_of(_waiting_of))
        more = rows_of(lambda put: ({"name": b, "units": units} for b, units in put.bought.items() if units > 0))
        await write(upsert(BUYERS, add="units"), more)
        for sku, (put, sale) in of.items():
            await self._take_back(connection, sku, sale, put)
        await self._write_keys(connection, of, write)
        await write(
            insert(LOG),
            [_line_of(sku, put.found.head.now_us, one) for sku, (put, _) in of.items() for one in put.notes],
        )

    async def _ensure_as_found(self, connection: AsyncConnection, of: Mapping[str, tuple[Put, int]]) -> None:
        """Compare the changing orders with the orders that were read, for a guard that may miss a change."""
        puts = {sku: one for sku, one in of.items() if "changed_at" in one[0].expect and one[0].records}
        wanted = [(sku, sale, int(number)) for sku, (put, sale) in puts.items() for number in put.records]
        there = await _all(connection, _STANDING, wanted=wanted) if wanted else ()
        found = {(row.sku, str(row.key)): row.record for row in there}
        for sku, (put, _) in puts.items():
            if any(found.get((sku, number)) != put.found.records.get(number) for number in put.records):
                raise _NotAsFoundError

    async def _take_back(self, connection: AsyncConnection, sku: str, sale: int, put: Put) -> None:
        """Take units from buyers, and the orders that are no longer held from their holders; replace a name."""
        less = {buyer: -units for buyer, units in put.bought.items() if units < 0}
        if less:
            own = (BUYERS.c.sku == sku, BUYERS.c.sale == sale, BUYERS.c.name.in_(list(less)))
            left = BUYERS.c.units - case(less, value=BUYERS.c.name, else_=0)
            await connection.execute(update(BUYERS).where(*own).values(units=func.greatest(left, 0)))
        if gone := [buyer for buyer, number in put.holders.items() if number is None]:
            own = (HOLDERS.c.sku == sku, HOLDERS.c.sale == sale, HOLDERS.c.buyer.in_(gone))
            await connection.execute(delete(HOLDERS).where(*own))
        over = [int(n) for n, (_, one) in put.records.items() if one.state is not OrderState.WAITING]
        if put.found.head.waiting and over:
            own = (WAITING.c.sku == sku, WAITING.c.sale == sale, WAITING.c.number.in_(over))
            await connection.execute(delete(WAITING).where(*own))
        if put.erased is not None:
            own = (BUYERS.c.sku == sku, BUYERS.c.sale == sale, BUYERS.c.name == put.erased.buyer)
            await connection.execute(delete(BUYERS).where(*own))
            entries = [int(event.entry) for event in put.erased.entries]
            for at in range(0, len(entries), _AT_ONCE):
                some = JOURNAL.c.entry.in_(entries[at : at + _AT_ONCE])
                own = (JOURNAL.c.sku == sku, JOURNAL.c.sale == sale, some)
                await connection.execute(update(JOURNAL).where(*own).values(buyer=ERASED))

    async def _write_keys(self, connection: AsyncConnection, of: Mapping[str, tuple[Put, int]], write: Any) -> None:
        rows: list[dict[str, Any]] = []
        for sku, (put, sale) in of.items():
            expires_ms = put.found.head.now_us // 1000 + self._refusal_ttl_ms
            own = {"sku": sku, "sale": sale}
            if put.erased is not None:
                texts: list[tuple[str, str, int | None]] = [(key, text, None) for key, text in put.keys.items()]
                texts += [(key, text, expires_ms) for _, key, text in put.erased.refused]
                named = ("name", "body", "expires_ms")
                await write(self.server.upsert(KEYS), [own | dict(zip(named, one, strict=True)) for one in texts])
                continue
            rows += [{**own, "name": key, "body": text, "expires_ms": None} for key, text in put.keys.items()]
            rows += [{**own, "name": key, "body": text, "expires_ms": expires_ms} for key, text in put.refused.items()]
            expired = [key for key in (*put.keys, *put.refused) if key in put.found.refused]
            if expired:  # else the decision would have been different
                where = (
                    KEYS.c.sku == sku,
                    KEYS.c.sale == sale,
                    KEYS.c.name.in_(expired),
                    KEYS.c.expires_ms.is_not(None),
                )
                await connection.execute(delete(KEYS).where(*where))
            if put.refused:
                self._sweeper.sweep_keys(sku)
        await write(insert(KEYS), rows)  # not an upsert: no key gets two orders

    # -- reads -------------------------------------------------------------------------------------------------------

    @override
    async def before(self, sku: str, number: str) -> int | None:
        own = (WAITING.c.sku == sku, WAITING.c.sale == _CURRENT)
        first = select(func.count()).select_from(WAITING).where(*own, WAITING.c.number < int(number)).scalar_subquery()
        statement = select(first.label("before")).where(*own, WAITING.c.number == int(number))
        rows = await self._read(partial(_all, statement=statement, own_sku=sku))
        return int(rows[0].before) if rows else None

    @override
    async def page(self, sku: str, after: str | None, until: str | None, limit: int) -> list[Event]:
        last = _LARGEST if until is None else int(until)
        own: dict[str, Value] = {"own_sku": sku, "after": int(after or 0), "until": last, "most": limit}
        return [self._event(row) for row in await self._read(lambda connection: _all(connection, _JOURNAL, **own))]

    @override
    async def count(self, sku: str) -> int:
        statement = select(ITEMS.c.entries).where(ITEMS.c.sku == sku)
        return int(next((row.entries for row in await self._read(partial(_all, statement=statement))), 0))

    @override
    async def scan(self) -> list[str]:
        statement = select(ITEMS.c.sku).where(ITEMS.c.stock.is_not(None)).order_by(ITEMS.c.sku)
        return [row.sku for row in await self._read(partial(_all, statement=statement))]

    @override
    async def moved(self, after: Mapping[str, str], wait_s: float) -> set[str]:
        statement = select(ITEMS.c.sku, ITEMS.c.last_entry, ITEMS.c.last_tag).where(_OF_SKUS)
        until = time.monotonic() + wait_s
        while True:
            rows = await self._read(partial(_all, statement=statement, skus=list(after))) if after else ()
            found = {row.sku for row in rows if row.last_tag and row.last_entry > int(after[row.sku] or 0)}
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            await asyncio.sleep(min(left_s, _LOOK_EVERY_S))

    # -- to erase a name: no index has the names of buyers, as each would cost every sale ---------------------------

    @override
    async def copy(self, sku: str, erased: Erased, *, last: bool) -> None:
        rows: Rows = ()
        while not erased.state or len(rows) == _PAGE or last:
            rows = await self._read(
                partial(_all, statement=_JOURNAL, after=erased.state or 0, own_sku=sku, until=_LARGEST, most=_PAGE)
            )
            erased.entries += [self._event(row) for row in rows if row.buyer == erased.buyer]
            erased.state = rows[-1].entry if rows else erased.state or 0
            if len(rows) < _PAGE:
                break

    @override
    async def refusals(self, sku: str) -> AsyncIterator[tuple[str, str, str]]:
        after, rows = "", list[Row[Any]]()
        while not after or len(rows) == _PAGE:
            statement = (
                select(KEYS.c.name, KEYS.c.body)
                .where(KEYS.c.sku == sku, KEYS.c.sale == _CURRENT, KEYS.c.name > after, KEYS.c.expires_ms.is_not(None))
                .order_by(KEYS.c.name)
                .limit(_PAGE)
            )
            rows = list(await self._read(partial(_all, statement=statement, own_sku=sku)))
            for row in rows:
                yield "", row.name, row.body
            if not rows:
                break
            after = rows[-1].name

    @override
    async def sweep(self, sku: str) -> None:
        found = (await self.look({sku: Names()}))[sku]
        if isinstance(found, Found) and found.head.swept != found.head.sale:
            while await self._read(partial(self._sweeper.sweep_some, sku=sku, sale=found.head.sale)):
                pass  # of earlier sales there may be more rows than a call can delete

    # -- beside the sale ---------------------------------------------------------------------------------------------

    @override
    async def senders(self, skus: Sequence[str]) -> list[str]:
        statement = select(OUTBOX.c.receiver).distinct().where(OUTBOX.c.sku.in_(list(skus)))
        return [row.receiver for row in await self._read(partial(_all, statement=statement))]

    @override
    async def notes(self, skus: Sequence[str], receiver: str) -> dict[str, tuple[int, str] | StockError]:
        joined = ITEMS.outerjoin(OUTBOX, and_(OUTBOX.c.sku == ITEMS.c.sku, OUTBOX.c.receiver == receiver))
        statement = select(ITEMS.c.sku, ITEMS.c.sale, OUTBOX.c.body).select_from(joined).where(_OF_SKUS)
        rows = await self._read(partial(_all, statement=statement, skus=list(skus)))
        return {row.sku: (row.sale, row.body or "") for row in rows}

    @override
    async def swap_note(self, sku: str, receiver: str, old: str, new: str) -> bool:
        async def swap(connection: AsyncConnection) -> bool:
            if not old:
                row = {"sku": sku, "receiver": receiver, "body": ""}
                await connection.execute(self.server.insert_missing(OUTBOX), [row])
            own = (OUTBOX.c.sku == sku, OUTBOX.c.receiver == receiver, OUTBOX.c.body == old)
            return (await connection.execute(update(OUTBOX).where(*own).values(body=new))).rowcount == 1

        return await self._read(swap)

    @override
    async def log(self, sku: str | None, limit: int) -> list[Change]:
        statement = select(LOG).order_by(LOG.c.number.desc()).limit(limit)
        if sku is not None:
            statement = statement.where(LOG.c.sku == sku)
        rows = await self._read(partial(_all, statement=statement))
        try:
            return [
                Change(row.at / 1_000_000, row.operator, row.what, row.sku, json.loads(row.was), json.loads(row.became))
                for row in rows
            ]
        except ValueError:
            raise StockCorrupt("a row in seckill_log is not what we write") from None

    @override
    async def add_to_log(self, sku: str, note: LogNote) -> None:
        async def write(connection: AsyncConnection) -> None:
            now = await connection.scalar(select(now_us()))
            await connection.execute(insert(LOG), [_line_of(sku, int(now or 0), note)])

        await self._read(write)

    @override
    async def board(self, put: Mapping[str, str], drop: Sequence[str]) -> dict[str, str]:
        async def exchange(connection: AsyncConnection) -> dict[str, str]:
            if put:
                rows = [{"name": name, "body": body} for name, body in put.items()]
                await connection.execute(self.server.upsert(NOTICES), rows)
            if drop:
                await connection.execute(delete(NOTICES).where(NOTICES.c.name.in_(list(drop))))
            return {row.name: row.body for row in await _all(connection, select(NOTICES))}

        return await self._read(exchange)

    @override
    async def clocks_ms(self, timeout_s: float | None) -> dict[str, int]:
        now = await self._read(lambda connection: connection.scalar(select(now_us())), timeout_s)
        return {"": int(now or 0) // 1000}

    @override
    async def ping(self, skus: Sequence[str], timeout_s: float | None) -> None:
        # A write, as a replica, or a server that was made read-only, answers a SELECT as if all were well.
        tables = ", ".join(table.name for table in METADATA.sorted_tables)
        row = {"sku": "", "sale": 0, "name": "ping", "body": "", "expires_ms": 0}

        async def write(connection: AsyncConnection) -> None:
            await connection.execute(text(f"SELECT 1 FROM {tables} LIMIT 0"))  # noqa: S608 - constants
            await connection.execute(self.server.upsert(KEYS), [row])

        await self._read(write, timeout_s)

    @override
    async def ensure_lasting(self, timeout_s: float | None) -> None:
        await self.server.call(self.server.ensure_lasting, self._readers, timeout_s=timeout_s, bare=True)

    @override
    async def close(self) -> None:
        await self._sweeper.close()
        await self.server.close()


class _NotAsFoundError(Exception):
    """An item has changed since it was read: nothing is written."""


async def _all(connection: AsyncConnection, statement: Any, **own: Value | Sequence[object]) -> Rows:
    return (await connection.execute(statement, own)).all()


async def _see_who_is_next(connection: AsyncConnection, sku: str, found: Found, *, line: bool | None) -> None:
    """Read the orders that are due, and the first in line if there may be units for them."""
    head, now_ms = found.head, found.head.now_us // 1000
    own: dict[str, Value] = {"own_sku": sku, "own_sale": head.sale}
    if head.held and head.first_due_ms is not None and head.first_due_ms <= now_ms:
        found.due = [str(row.number) for row in await _all(connection, _DUE, **own, now_ms=now_ms)]
    if line is not None and head.waiting and (line or head.stock or found.due):
        found.line = [str(row.number) for row in await _all(connection, _LINE, **own)]


def _head(row: Row[Any]) -> Head:
    own = {name: getattr(row, _COLUMNS.get(name, name)) for name in Head._fields if name != "half"}
    return Head(**own | {"last": str(row.last_entry or "")})


def _numbers_in(found: Found) -> list[str]:
    """The numbers of all orders that the things found point to."""
    of_keys = [text.partition(" ")[0] for text in found.keys.values()]
    of_refusals = [text.split(" ", 3)[2] for text in found.refused.values()]
    return [*found.due[:DUE_MAX], *found.holders.values(), *found.payments.values(), *of_keys, *of_refusals]


def _note_buyer(found: Found, row: Row[Any]) -> None:
    """Note the units and the hold of an order's buyer."""
    if row.buyer is not None:
        found.bought.setdefault(row.buyer, row.units or 0)
        if row.holder is not None:
            found.holders[row.buyer] = str(row.holder)


def _unchanged(put: Put) -> list[ColumnElement[bool]]:
    """The conditions of a write: nothing has changed since the read."""
    conditions = []
    for name, value in put.expect.items():
        column = ITEMS.c[_COLUMNS.get(name, name)]
        conditions.append(column.is_(None) if value is None else column == value)
    if put.batch_id is not None:  # else the batch would be written twice
        conditions.append(or_(ITEMS.c.batch.is_(None), ITEMS.c.batch != put.batch_id))
    return conditions


def _was_written(head: Head, put: Put) -> bool:
    return put.batch_id is not None and head.batch == put.batch_id


def _columns(put: Put) -> dict[Any, Any]:
    """The columns to set in the row of an item.

    Units are added, so that a change that the guard has missed makes no units.
    """
    columns: dict[Any, Any] = {_COLUMNS.get(name, name): value for name, value in put.head.items()}
    if "last_entry" in columns:
        columns["last_entry"] = int(columns["last_entry"])
    for name, units in put.units._asdict().items():
        if units:
            columns[name] = ITEMS.c[name] + units
    if put.batch_id is not None:
        columns["batch"] = put.batch_id
    if put.entries:
        columns["entries"] = ITEMS.c.entries + len(put.entries)
    if put.clear or put.remove:
        columns["entries"] = 0
    if put.remove:
        columns["swept"] = ITEMS.c.sale
    # Both change at each write, whichever of them is compared; an operator's is later than any earlier one, even within
    # one second.
    columns["version"] = ITEMS.c.version + 1
    later = func.greatest(now_us() / 1_000_000, ITEMS.c.changed_at)
    columns["changed_at"] = later + (0 if put.batch_id is not None else 1)
    return columns


def _row_of(event: Event) -> dict[str, Any]:
    return {
        "entry": int(event.entry),
        "order_entry": int(event.order.number),
        "number": event.number,
        "kind": str(event.kind),
        "quantity": event.quantity,
        "buyer": event.buyer,
        "idempotency_key": event.key,
        "secret": event.order.secret,
        **event.units._asdict(),
        "facts": to_json(dict(event.facts)) if event.facts else None,
        "instance": event.instance,
        "token": event.token,
        "epoch": event.epoch,
        "batch": event.batch_id,
    }


def _records_of(put: Put) -> Iterable[dict[str, Any]]:
    for number, (body, record) in put.records.items():
        due_ms = record.due_ms if record.state is OrderState.HELD else None
        own = {"number": int(number), "record": body, "state": str(record.state), "steps": record.events}
        yield {**own, "due_ms": due_ms, "buyer": record.buyer}


def _waiting_of(put: Put) -> Iterable[dict[str, Any]]:
    return ({"number": int(n)} for n, (_, record) in put.records.items() if record.state is OrderState.WAITING)


def _line_of(sku: str, at: int, note: LogNote) -> dict[str, Any]:
    was, became = to_json(dict(note.before)), to_json(dict(note.after))
    return {"sku": sku, "at": at, "operator": note.by, "what": note.what, "was": was, "became": became}
