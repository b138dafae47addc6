"""The stock store: prepare and commit, guarded by a fencing token; and the calls of operators, readers and senders.

Each rule is here and in the modules beside it, once; a `Storage` keeps named things and knows none of them.
"""

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from typing_extensions import Unpack

from app.errors import (
    FenceRefused,
    ForeignFence,
    HasOrders,
    ItemNotPossible,
    StockBehind,
    StockChanged,
    StockCorrupt,
    StockError,
)
from app.orders import ERASED, SKU_PATTERN, Ask, Event, Order, Record, Settled, Snapshot, Terms
from app.stock import refusals, restock, values
from app.stock.batch import LAYOUT, Batch, Fence
from app.stock.level import Level
from app.stock.log import Change, LogNote
from app.stock.outbox import DEFAULT_RECEIVER, Outbox, Slip
from app.stock.puts import next_generation, numbers_of, put_of, with_lines
from app.stock.restock import UNITS_MAX, Restock
from app.stock.storage import DUE_MAX, Erased, Found, Head, Names, Put, Storage, Value, raise_if_none_was_reached
from app.stock.watermark import Position, Watermark

Under = Callable[[], AbstractAsyncContextManager[Fence]]

NAME_BYTES: Final = 1020  # the name of a buyer, a key, a payment: 255 characters of UTF-8
_TOKEN_MAX: Final = 2**53  # scripts of Redis count in doubles
_TRIES: Final = 5  # tries of an operator's change, while others change the same item
_PAGE: Final = 1000
_ANY: Final = Fence(1, "compare")  # for guards without tokens: all grants are alike
_MARK: Final = re.compile(r"([0-9]{16})/([0-9-]{20,33})(?:/([0-9a-f]{8}))?")  # of an order's position


class StockStore:
    """Keeps the stock, the sales and the orders of items.

    The rule of the store, a compare-and-set: **a batch is written only if it is the one that was prepared last.** To
    prepare registers it under a fencing token and reads the data for its decision, in one atomic step.

    `guard`: the way in which a change since the read is noticed. "fence": by the token and the batch that was
    registered at the read; "compare": likewise without tokens, for locks that give none; "version": by a number that
    each write increments; "timestamp": by the time of the last write, in whole seconds, which is not enough; "none":
    not at all.

    All methods raise `StockUnavailable` when the store can't be reached within its call's deadline, and `UnknownItem`,
    `ItemNotPossible` or `StockCorrupt` where an item is meant. Methods for several items return an error for each
    item that has one, so that it doesn't stop the others, and raise `StockUnavailable` only if none could be reached.
    """

    def __init__(
        self, storage: Storage, guard: str = "fence", *, instance: str = "python", refusal_ttl_s: float = 3600
    ) -> None:
        """Take `refusal_ttl_s`: how many seconds a refusal is remembered for its idempotency key."""
        self.storage = storage
        self.guard = guard
        self._instance = instance
        self._refusal_ttl_ms = max(1, int(refusal_ttl_s * 1000))
        self._watermarks: defaultdict[str, Watermark[Position]] = defaultdict(lambda: Watermark(self._mark))
        self._slips: dict[tuple[str, str], tuple[int | str, str, Slip]] = {}  # the senders' notes that we wrote last

    @property
    def guarded(self) -> bool:
        """Whether a batch is refused that was decided on stale data."""
        return self.guard != "none"

    @property
    def holds(self) -> bool:
        """Whether orders can be held."""
        return self.guarded

    def check(self, sku: str) -> None:
        """Raise `ItemNotPossible` unless this store can hold an item of that name."""
        if not re.fullmatch(SKU_PATTERN, sku):
            raise ItemNotPossible(f"not an item's name: {sku!r} (letters, digits, '.', '_' and '-', 64 at most)")
        self.storage.check(sku)

    def apart(self, skus: Sequence[str]) -> str:
        """The reason why these items can't be written together, as a sentence; "": they can."""
        return self.storage.apart(skus)

    # -- the guard ---------------------------------------------------------------------------------------------------

    def _own(self, fence: Fence) -> Fence | None:
        """The fence that counts here; None if tokens do not. Raises `ValueError` for one that can't be compared."""
        if self.guard in ("version", "timestamp", "none"):
            return None
        if self.guard == "compare":
            return _ANY
        if not 0 < fence.token < _TOKEN_MAX:
            raise ValueError(f"a fencing token must be from 1 to 2**53, not {fence.token}")
        return fence

    def _expect(self, head: Head) -> dict[str, Value]:
        """The fields of a head that must be as they were read."""
        match self.guard:
            case "version":
                return {"version": head.version}
            case "timestamp":
                return {"changed_at": head.changed_at}
            case "none":
                return {}
        units = {"stock": head.stock, "lucky": head.lucky}  # which people may change by hand
        return {"source": head.source, "token": head.token, "prepared": head.prepared, **units}

    def _refusal(
        self, sku: str, head: Head, own: Fence | None, batch_id: str | None, *, new_sale: bool = False
    ) -> StockError | None:
        """The reason why a grant may not write a batch, or, without one, change an item."""
        layout = head.layout if head.generation else LAYOUT  # nothing has begun without a generation
        if layout > LAYOUT or (layout < LAYOUT and not new_sale):  # a new sale reads nothing of the earlier one
            return StockCorrupt(refusals.other_layout(sku, layout))
        if own is None or head.source is None:
            return None
        if head.source != own.source:
            return ForeignFence(refusals.foreign(sku, Fence(head.token or 0, head.source), own))
        if (head.token or 0) > own.token or (
            batch_id is not None and (head.token, head.prepared) != (own.token, batch_id)
        ):
            return FenceRefused(refusals.superseded(sku, head.token, own))
        return None

    # -- the sale ----------------------------------------------------------------------------------------------------

    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Raise the fence of each item to our token, register the batch that may be written, and read.

        It is not enough to check tokens at the write. A (token 10) reads 5 and is paused; B (11) reads 5; A wakes and
        writes 4 with token 10, the highest so far; B writes 4: one unit sold twice. So the read advances the
        fence. An item's answer is `FenceRefused` if it has seen a higher token.

        From then on no other batch can be written, not even an older one of the same token that is still on its way.
        The answer is `StockBehind` if the store lacks an order that this process, or its `expect`, knows of.
        """
        own = self._own(fence)
        answers: dict[str, Snapshot | StockError] = {}
        names: dict[str, Names] = {}
        expected: dict[str, tuple[Position, ...]] = {}
        for sku, ask in asks.items():
            try:
                self.check(sku)
            except ItemNotPossible as error:
                answers[sku] = error
                continue
            for some in (ask.buyers, ask.keys, ask.payments):
                _refuse_long(some)
            expected[sku] = self._positions(sku)
            numbers = [one for one in ask.orders if self.storage.is_number(one)]
            marks = [entry for _, entry, _ in expected[sku]]
            names[sku] = Names(ask.buyers, ask.keys, ask.payments, numbers, marks=marks, holds=ask.holds)
            names[sku].line, names[sku].due = ask.line, ask.first_due
        found = await self.storage.look(names, own, batch_id, durable=True) if names else {}
        for sku, one in found.items():
            try:
                if isinstance(one, StockError):
                    raise one
                answers[sku] = self._snapshot(sku, one, asks[sku], own, batch_id, expected[sku])
            except StockError as error:
                answers[sku] = error
        raise_if_none_was_reached(answers)
        return answers

    def _snapshot(
        self, sku: str, found: Found, ask: Ask, own: Fence | None, batch_id: str, expected: Sequence[Position]
    ) -> Snapshot:
        head = found.head
        if head.stock is None and own is not None and head.prepared != batch_id:  # it was not registered either
            own = None
        if refusal := self._refusal(sku, head, own, batch_id if own else None):
            raise refusal
        self._ensure_there(sku, found, expected)
        if head.stock is None:
            raise self.storage.unknown(sku)
        if head.half:
            raise StockCorrupt(refusals.half(sku, head.lucky))
        about: dict[str, Any] = {}
        if ask.holds or head.held or head.waiting:
            about = {"now_ms": head.now_us // 1000, "held": head.held, "waiting": head.waiting, "wants": head.wants}
            about["line"] = found.line
        if ask.first_due:
            about["first_due_ms"] = head.first_due_ms
        if ask.holds or found.due or found.line:
            records = self._records(sku, found)
            about |= {
                "records": records,
                "absent": {number for number in ask.orders if number not in records},
                "open": {buyer: found.holders[buyer] for buyer in ask.buyers if buyer in found.holders},
                "payments": found.payments,
                "due": found.due[:DUE_MAX],
                "more_due": len(found.due) > DUE_MAX,
            }
        return Snapshot(
            head.stock,
            head.lucky,
            found.bought,
            self._settled(sku, found),
            last_entry=head.last_entry,
            basis=found,
            terms=self._terms(sku, head),
            **about,
        )

    def _settled(self, sku: str, found: Found) -> dict[str, Settled]:
        if not (found.keys or found.refused):
            return {}
        since_ms, generation = found.head.now_us // 1000 - self._refusal_ttl_ms, found.head.generation
        try:
            settled = {key: values.key_of(sku, text) for key, text in found.keys.items()}
            for key, text in found.refused.items():
                one = None if key in settled else values.refusal_of(sku, text, generation, since_ms)
                if one is not None:
                    settled[key] = one
        except values.Odd:
            raise self.storage.corrupt(sku, "keys") from None
        return settled

    def _records(self, sku: str, found: Found) -> dict[str, Record]:
        try:
            records = {number: values.record_of(number, text) for number, text in found.records.items()}
        except values.Odd:
            raise self.storage.corrupt(sku, "records") from None
        return records | {number: values.sale_record(one) for number, one in found.sales.items() if _is_sale(one)}

    def _terms(self, sku: str, head: Head) -> Terms:
        try:
            return Terms.from_text(head.terms)
        except ValueError:
            raise self.storage.corrupt(sku, "terms") from None

    async def commit(
        self, fence: Fence, batches: Mapping[str, Batch], together: Sequence[set[str]] = ()
    ) -> dict[str, list[str] | StockError]:
        """Write the part of each item, if nobody has prepared another batch and the stock has not changed.

        All parts have the prepared id. `together`: items of which all are written, or none. Returns the numbers of each
        item's new orders, in the order of `Batch.secrets`. Sending the last batch again does nothing and returns the
        same. An item's answer is `FenceRefused` or `StockChanged` when nothing of it was written, and
        `StockUnavailable` when it is in doubt.
        """
        own = self._own(fence)
        numbers = {sku: self.storage.numbers(one.seen.basis.head, one.entries) for sku, one in batches.items()}
        puts = {sku: self._put(sku, batch, own) for sku, batch in with_lines(batches, numbers).items()}
        answers: dict[str, list[str] | StockError] = {}
        groups = [group & puts.keys() for group in together]
        for sku, head in (await self.storage.put(puts, [one for one in groups if len(one) > 1])).items():
            batch, put = batches[sku], puts[sku]
            why = head if isinstance(head, StockError) else head and self._why_not(sku, head, own, batch)
            if why is not None:
                answers[sku] = why
                continue
            answers[sku] = list(numbers_of(put))
            if put.entries:
                generation = put.head.get("generation") or put.found.head.generation
                self._watermarks[sku].found((), (int(generation), str(put.head["last"]), str(put.head["tag"])))
        raise_if_none_was_reached(answers)
        return answers

    def _put(self, sku: str, batch: Batch, own: Fence | None) -> Put:
        head = batch.seen.basis.head
        expect = self._expect(head)
        if own is not None:
            expect |= {"source": own.source, "token": own.token, "prepared": batch.batch_id}
        numbers = self.storage.numbers(head, batch.entries)
        return put_of(sku, batch, numbers, expect, instance=self._instance, token=own.token if own else 0)

    def _why_not(self, sku: str, head: Head, own: Fence | None, batch: Batch) -> StockError:
        """The reason why a batch was not written, and had not been before."""
        if head.stock is None:
            return self.storage.unknown(sku)
        refusal = self._refusal(sku, head, own, batch.batch_id)
        if refusal is None and head.half:
            refusal = StockCorrupt(refusals.half(sku, head.lucky))
        if refusal is None and own is not None and head.prepared != batch.batch_id:
            refusal = FenceRefused(refusals.superseded(sku, head.token or "none", own))
        return refusal or StockChanged(refusals.changed(sku, head.stock))

    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        """Find out for good whether batches that are in doubt were written: the numbers of their orders, None if not.

        If a commit is still on its way, it is refused from now on, as another batch is prepared in its place.
        """
        own = self._own(fence)
        if own is None and self.guarded:
            await self._move_on(batches)
        puts = {sku: self._put(sku, batch, own) for sku, batch in batches.items()}
        marks = {sku: [entry for _, entry, _ in self._positions(sku)] for sku in batches}
        names = {
            sku: Names(entries=[one.entry for one in put.entries[:1]], marks=marks[sku]) for sku, put in puts.items()
        }
        found: dict[str, list[str] | StockError | None] = {}
        for sku, one in (await self.storage.look(names, own, uuid.uuid4().hex, durable=True)).items():
            if isinstance(one, StockError):
                found[sku] = one
                continue
            refused = own is not None and one.head.stock is not None and self._refusal(sku, one.head, own, None)
            lost = self._lost(sku, one, self._positions(sku)) if one.head.stock is not None else None
            if refused or lost:
                found[sku] = refused or lost
                continue
            batch, put = batches[sku], puts[sku]
            entry = one.entries.get(put.entries[0].entry) if put.entries else None
            written = entry.batch_id == batch.batch_id if entry else one.head.batch == batch.batch_id
            found[sku] = list(numbers_of(put)) if written else None
        raise_if_none_was_reached(found)
        return found

    async def _move_on(self, batches: Mapping[str, Batch]) -> None:
        """Make the store refuse all writes that were decided before, for a guard that registers nothing at the read."""
        heads = await self.storage.look(dict.fromkeys(batches, Names()))
        puts = {sku: Put(one, {}) for sku, one in heads.items() if isinstance(one, Found)}
        await self.storage.put(puts)

    # -- orders that must be there -----------------------------------------------------------------------------------

    def marks(self) -> dict[str, str]:
        """High-water marks: each item's last order that this process knows, as a text that grows."""
        return {sku: mark for sku, watermark in self._watermarks.items() if (mark := watermark.mark)}

    def expect(self, sku: str, mark: str) -> None:
        """Refuse the store if it lacks an order that another process has seen. `ValueError`: not a mark."""
        self._watermarks[sku].expect(self._unmark(mark))

    def _mark(self, position: Position) -> str:
        generation, number, tag = position
        return f"{generation:016}/{self.storage.mark(number)}" + (f"/{tag}" if tag else "")

    def _unmark(self, mark: str) -> Position:
        match = _MARK.fullmatch(mark)
        if match is None:
            raise ValueError(f"not a mark of ours: {mark[:100]!r}")
        return int(match[1]), self.storage.unmark(match[2]), match[3] or ""

    def _positions(self, sku: str) -> tuple[Position, ...]:
        """The orders of an item that must be there.

        A name is not kept only because somebody asked for it: it may be anything.
        """
        watermark = self._watermarks.get(sku)
        return watermark.positions if watermark is not None else ()

    def _lost(self, sku: str, found: Found, expected: Sequence[Position]) -> StockBehind | None:
        """The error for an expected order that is not there, unless a later generation has begun."""
        head = found.head
        for generation, number, tag in sorted(expected, reverse=True):
            if head.generation > generation:
                continue
            there = found.tags.get(number)
            if head.generation < generation or there is None or tag not in ("", there):
                return StockBehind(refusals.behind(sku, number))
        return None

    def _ensure_there(self, sku: str, found: Found, expected: Sequence[Position]) -> None:
        """Raise `StockBehind` if an expected order is not there, else note the last one."""
        if lost := self._lost(sku, found, expected):
            raise lost
        head = found.head
        if head.last_entry is not None or expected:
            last = (head.generation, head.last, head.tag) if head.last_entry is not None else None
            self._watermarks[sku].found(expected, last)

    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """Return the highest token of each fence, None if there is none; `StockBehind` if an order is missing.

        Changes nothing.
        """
        for sku in skus:
            self.check(sku)
        expected = {sku: self._positions(sku) for sku in skus}
        names = {sku: Names(marks=[entry for _, entry, _ in expected[sku]]) for sku in skus}
        answers: dict[str, Fence | StockError | None] = {}
        for sku, found in (await self.storage.look(names)).items():
            try:
                if isinstance(found, StockError):
                    raise found
                self._ensure_there(sku, found, expected[sku])
                seen = None if found.head.source is None else Fence(found.head.token or 0, found.head.source)
                answers[sku] = seen if self.guard == "fence" else None
            except StockError as error:
                answers[sku] = error
        raise_if_none_was_reached(answers)
        return answers

    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        """Expect no order any more that the store has lost: an operator's word that these are gone for good.

        It is the same sale as before, also for the followers of its journal.
        """

        async def decide(found: Found) -> Put:
            head = found.head
            generation = next_generation(head.generation, head.now_us, self._generations(sku))
            put = Put(found, {"generation": head.generation})
            put.head = {"generation": generation, "sale": head.sale or generation}
            if not head.generation:
                put.head["layout"] = LAYOUT
            was = {"generation": str(head.generation)} if head.generation else {}
            put.notes.append(LogNote(by, "accept loss", was, {"generation": str(generation)}))
            return put

        await self._change(sku, decide)

    def _generations(self, sku: str) -> list[int]:
        return [generation for generation, _, _ in self._positions(sku)]

    # -- the operator ------------------------------------------------------------------------------------------------

    # An operator's change is written together with a line of the log: the name (`by`), the change, before and after.

    async def _change(
        self,
        sku: str,
        decide: Callable[[Found], Any],
        fence: Fence | None = None,
        *,
        marks: Sequence[str] = (),
        new_sale: bool = False,
    ) -> Found:
        """Look at an item, decide, and write; once more if somebody else has written meanwhile.

        With a fence it is one write under the grant, as a batch is.
        """
        self.check(sku)
        own = None if fence is None else self._own(fence)
        stock: int | None = None
        for _ in range(_TRIES):
            looked = await self.storage.look(
                {sku: Names(marks=marks)}, own, uuid.uuid4().hex, any_layout=new_sale, durable=True
            )
            found = looked[sku]
            if isinstance(found, StockError):
                raise found
            if fence is not None and (refusal := self._refusal(sku, found.head, own, None, new_sale=new_sale)):
                raise refusal
            put = await decide(found)
            if own is not None:
                put.head |= {"source": own.source, "token": own.token}
            done = (await self.storage.put({sku: put}))[sku]
            if done is None:
                return found
            if isinstance(done, StockError):
                raise done
            if own is not None and (refusal := self._refusal(sku, done, own, found.head.prepared, new_sale=new_sale)):
                raise refusal
            stock = done.stock
        raise StockChanged(refusals.changed(sku, stock))

    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        """Set the units left; see `Restock`. Raises `StockNotAsExpected` if a condition is not met."""
        if not 0 <= stock <= UNITS_MAX:
            raise ValueError(f"a stock must be from 0 to {UNITS_MAX}, not {stock}")
        new_sale, forget = how.get("new_sale", False), how.get("forget_orders")
        expected, level = self._positions(sku), Level(sku, 0, 0, None)

        async def decide(found: Found) -> Put:
            nonlocal level
            # A store without any history, or a new sale, begins anew.
            if found.head.generation and not new_sale and (lost := self._lost(sku, found, expected)):
                raise lost
            orders = None
            if new_sale and forget is not None:
                orders = await self.storage.count(sku) - found.head.changes
            expect = self._expect(found.head)
            if new_sale:
                expect.pop("lucky", None)  # the stock is set to 0, whatever its value is
            put, level = restock.put_of(
                self.storage, sku, found, stock, how, orders=orders, expect=expect, generations=self._generations(sku)
            )
            return put

        await self._change(sku, decide, fence, marks=[entry for _, entry, _ in expected], new_sale=new_sale)
        return level

    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        """Remove an item of which nothing was sold. Raises `HasOrders` if something was."""
        self.check(sku)
        await self.storage.sweep(sku)

        async def decide(found: Found) -> Put:
            head = found.head
            if head.stock is None:
                raise self.storage.unknown(sku)
            if (orders := await self.storage.count(sku) - head.changes) or head.lucky:
                raise HasOrders(sku, orders)
            put = Put(found, self._expect(head), remove=True)
            put.head = {
                "stock": None,
                "lucky": 0,
                "held": 0,
                "waiting": 0,
                "wants": 0,
                "initial": None,
                "terms": "",
                "prepared": None,
            }
            put.head |= {"batch": None, "tag": "", "changes": 0}
            put.notes.append(LogNote(by, "remove", {"stock": head.stock}, {}))
            return put

        await self._change(sku, decide, fence)

    async def unfence(self, sku: str, *, by: str = "") -> None:
        """Forget the fence: an operator's word that the tokens seen so far no longer count.

        Raises `StockCorrupt`, when all else is done, for a note of a sender that can't be read.
        """

        async def decide(found: Found) -> Put:
            head = found.head
            put = Put(found, {"source": head.source, "token": head.token, "epoch": head.epoch})
            put.head = {"epoch": head.epoch + 1, "source": None, "token": None, "prepared": None}
            was = {} if head.source is None else {"source": head.source, "token": str(head.token)}
            put.notes.append(LogNote(by, "unfence", was, {}))
            return put

        await self._change(sku, decide)
        odd = dict[str, str]()
        for receiver in await self.receivers([sku]):
            try:
                while (seen := await self._slip(sku, receiver))[1]:
                    if await self.storage.swap_note(sku, receiver, seen[1], seen[2].unfenced.to_text()):
                        break
            except StockCorrupt as error:
                odd[receiver] = str(error)
        if odd:
            then = f"delete the sender's note of {' and of '.join(odd)} there; all events are then sent again"
            raise StockCorrupt(f"the fence of {sku!r} is forgotten, but {', '.join(set(odd.values()))}: {then}")

    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        """The last changes that operators have made to an item, or to all, newest first."""
        if sku is not None:
            self.check(sku)
        return await self.storage.log(sku, limit)

    async def note(self, sku: str, note: LogNote) -> None:
        """Write a line of the log about an act that changes no stock, such as events that are sent again."""
        await self.storage.add_to_log(sku, note)

    async def erase(self, sku: str, buyer: str, under: Under, *, by: str = "") -> int:
        """Put `ERASED` in the place of a buyer's name in all that is kept of an item; the numbers stay.

        `under()` is a grant of the item's lock, which the last, short step needs. Returns how many entries of the
        journal had the name.
        """
        self.check(sku)
        await self.storage.sweep(sku)
        names = Names(buyers=[buyer], holds=True)
        for last in (*(False,) * (_TRIES - 1), True):
            erased = Erased(buyer)
            looked = (await self.storage.look({sku: names}))[sku]
            if isinstance(looked, StockError):
                raise looked
            refused = [one async for one in self.storage.refusals(sku) if values.has_buyer(one[2], buyer)]
            if buyer not in looked.bought and buyer not in looked.holders and not refused:
                return 0
            await self.storage.copy(sku, erased, last=False)
            basis = looked.head.generation, looked.head.erasures
            try:
                async with under() as fence:
                    return await self._erase(sku, erased, fence, basis, by)
            except StockChanged:  # a new sale may begin meanwhile, or another name be erased
                if last:
                    raise
        raise AssertionError

    async def _erase(self, sku: str, erased: Erased, fence: Fence, basis: tuple[int, int], by: str) -> int:
        buyer, own, batch_id = erased.buyer, self._own(fence), uuid.uuid4().hex
        first = (await self.storage.look({sku: Names()}, own, batch_id, durable=True))[sku]
        if isinstance(first, StockError):
            raise first
        if refusal := self._refusal(sku, first.head, own, batch_id):
            raise refusal
        if (first.head.generation, first.head.erasures) != basis:
            raise StockChanged(refusals.changed(sku, first.head.stock))
        await self.storage.copy(sku, erased, last=True)
        refused = [one async for one in self.storage.refusals(sku) if values.has_buyer(one[2], buyer)]
        numbers = list(dict.fromkeys(event.order.number for event in erased.entries))
        keys = [event.key for event in erased.entries if event.key is not None]
        names = Names(buyers=[buyer, ERASED], keys=keys, numbers=numbers, holds=True)
        found = (await self.storage.look({sku: names}, own, batch_id, durable=True))[sku]
        if isinstance(found, StockError):
            raise found
        put = Put(found, self._expect(first.head), erased=erased)
        for number, record in self._records(sku, found).items():
            if record.buyer == buyer and number in found.records:
                after = record._replace(buyer=ERASED)
                put.records[number] = values.of_record(values.entries_in(found.records[number]), after), after
        put.keys = {key: values.without(text, buyer, ERASED) for key, text in found.keys.items()}
        erased.refused = [(where, key, values.without(text, buyer, ERASED)) for where, key, text in refused]
        if units := found.bought.get(buyer):
            put.bought = {ERASED: units}
        put.holders = {buyer: None}
        put.head = {"erasures": found.head.erasures + 1, "prepared": None}  # a prepared batch may still write it
        put.notes.append(LogNote(by, "erase a buyer", {}, {"erased": len(erased.entries)}))
        done = (await self.storage.put({sku: put}))[sku]
        if done is not None:
            raise done if isinstance(done, StockError) else StockChanged(refusals.changed(sku, done.stock))
        return len(erased.entries)

    # -- reads -------------------------------------------------------------------------------------------------------

    async def count_orders(self, sku: str) -> int:
        """Count the orders of an item, and the lines of other orders."""
        found = await self._found(sku, Names())
        return await self.storage.count(sku) - found.head.changes

    async def count_entries(self, sku: str) -> int:
        """Count the entries of an item's journal."""
        return await self.storage.count(sku)

    async def level(self, sku: str) -> Level:
        """Units left and sold, read at one moment, so that they add up even during a sale."""
        level = (await self.levels([sku]))[sku]
        if isinstance(level, StockError):
            raise level
        return level

    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """Units left and sold of some hundred items at most: each as of one moment, not all of the same one."""
        answers: dict[str, Level | StockError] = {}
        names: dict[str, Names] = {}
        for sku in skus:
            try:
                self.check(sku)
                names[sku] = Names(due=True)
            except ItemNotPossible as error:
                answers[sku] = error
        for sku, found in (await self.storage.look(names)).items() if names else ():
            try:
                answers[sku] = found if isinstance(found, StockError) else self._level(sku, found.head)
            except StockError as error:
                answers[sku] = error
        raise_if_none_was_reached(answers)
        return answers

    def _level(self, sku: str, head: Head) -> Level:
        if head.stock is None:
            raise self.storage.unknown(sku)
        due_in_s = None if head.first_due_ms is None else head.first_due_ms / 1000 - head.now_us / 1_000_000
        own = (head.stock, head.lucky, head.initial, head.last_entry, self._terms(sku, head), head.held)
        return Level(sku, *own, due_in_s, head.now_us / 1_000_000, str(head.sale or ""), head.waiting, head.wants)

    async def items(self) -> list[str]:
        """The names of the items that have a stock."""
        return await self.storage.scan()

    async def _found(self, sku: str, names: Names) -> Found:
        self.check(sku)
        found = (await self.storage.look({sku: names}))[sku]
        if isinstance(found, StockError):
            raise found
        return found

    async def order(self, sku: str, number: str) -> Order | None:
        """An order by its number; None if it is none."""
        if not self.storage.is_number(number):
            return None
        found = await self._found(sku, Names(numbers=[number], entries=[number], holds=True))
        return self._order(sku, found, number)

    def _order(self, sku: str, found: Found, number: str) -> Order | None:
        event = found.entries.get(number)
        if event is None or not values.begins(event):
            return None
        text = found.records.get(number)
        try:
            record = values.record_of(number, text) if text else None
        except values.Odd:
            raise self.storage.corrupt(sku, "records") from None
        return None if values.is_gone(event, record) else values.order_of(event, record)

    async def before(self, order: Order) -> int | None:
        """How many orders are in line before this one; None if it isn't in line."""
        return await self.storage.before(order.sku, order.record.number)

    async def history(self, sku: str, number: str) -> list[Event]:
        """All events of an order, oldest first."""
        if not self.storage.is_number(number):
            return []
        found = await self._found(sku, Names(numbers=[number], holds=True))
        entries = [number, *values.entries_in(found.records.get(number)).split()]
        events = (await self._found(sku, Names(entries=entries))).entries
        return [events[entry] for entry in entries if entry in events]

    async def paid_with(self, payment_ref: str, skus: Sequence[str]) -> list[Order]:
        """The orders that a payment belongs to, of some hundred items at most: one of each item, or none."""
        asked = dict.fromkeys(skus, Names(payments=[payment_ref], holds=True))
        found = await self.storage.look(asked) if asked else {}
        raise_if_none_was_reached(found)
        numbers = {
            sku: number
            for sku, one in found.items()
            if isinstance(one, Found) and (number := one.payments.get(payment_ref))
        }
        orders = [await self.order(sku, number) for sku, number in numbers.items()]
        return [order for order in orders if order is not None]

    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100, lines: bool = False
    ) -> list[Order]:
        """Orders, oldest first, from behind the number `after` up to `until`, a level's `last_entry`.

        `lines`: also the lines of orders that stand at another item, as orders of their own. Raises `ValueError` for a
        number that is none of this store's.
        """
        self.check(sku)
        found: list[Order] = []
        begin, size = self._place(after), limit
        while len(found) < limit:
            page = await self.storage.page(sku, begin, self._place(until), size)
            began = [event.entry for event in page if values.begins(event)]
            events = {event.entry: event for event in page}
            while began and len(found) < limit:
                some, began = began[:_PAGE], began[_PAGE:]
                looked = await self._found(sku, Names(numbers=some))
                looked.entries = events
                orders = (self._order(sku, looked, number) for number in some)
                found += [order for order in orders if order is not None and (lines or not order.record.part_of)]
            if len(page) < size:
                break
            begin, size = page[-1].entry, max(limit, _PAGE)  # many entries may begin no order
        return found[:limit]

    def _place(self, entry: str | None) -> str | None:
        if entry is not None and not self.storage.is_number(entry):
            raise ValueError(f"not the number of an order: {entry!r}")
        return entry

    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        """Events, oldest first, from behind the entry `after` up to the entry `until`.

        Raises `ValueError` for an entry that is none of this store's.
        """
        self.check(sku)
        if until == "0":  # before all entries, in each store's numbers
            return []
        after = None if after in ("", "0") else after
        return await self.storage.page(sku, self._place(after), self._place(until), limit)

    async def moved(self, after: Mapping[str, str], wait_s: float) -> set[str]:
        """Wait until some item's journal has an entry behind the given one ("" for none); return all such items.

        It gives up after `wait_s` seconds, or a little earlier; with 0 it just looks. An item whose journal can't be
        read may be among them, or be the error.
        """
        return await self.storage.moved(after, wait_s)

    # -- the sender of events ----------------------------------------------------------------------------------------

    async def receivers(self, skus: Sequence[str]) -> list[str]:
        """The receivers of which there are notes on any of these items, some hundred at most; the default one always.

        A receiver's notes stay when the settings name it no more, until the item's next sale.
        """
        found = set(await self.storage.senders(skus)) if skus else set()
        return [DEFAULT_RECEIVER, *sorted(found - {DEFAULT_RECEIVER})]

    async def outbox(self, skus: Sequence[str], receiver: str = DEFAULT_RECEIVER) -> dict[str, Outbox | StockError]:
        """Read the notes of a receiver's sender on some hundred items at most; a new sale forgets them."""
        found = await self.storage.notes(skus, receiver) if skus else {}
        answers: dict[str, Outbox | StockError] = {}
        for sku in skus:
            one = found.get(sku) or self.storage.unknown(sku)
            try:
                answers[sku] = one if isinstance(one, StockError) else Slip.from_text(one[1]).of_sale(one[0])
            except values.Odd:
                answers[sku] = self.storage.corrupt(sku, "outbox")
        return answers

    async def _slip(self, sku: str, receiver: str) -> tuple[int, str, Slip]:
        found = (await self.storage.notes([sku], receiver)).get(sku) or (0, "")
        if isinstance(found, StockError):
            raise found
        try:
            return *found, Slip.from_text(found[1])
        except values.Odd:
            raise self.storage.corrupt(sku, "outbox") from None

    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox, receiver: str = DEFAULT_RECEIVER) -> None:
        """Note how far the events have left, and forget the wish that is granted.

        A late note, which arrives after a later one of the same grant, changes nothing. Raises `FenceRefused` if a
        later sender has been here, and `StockChanged` if another sale has begun.
        """
        known = self._slips.get((sku, receiver))
        if known is not None and known[0] != outbox.sale:
            known = None
        while True:
            sale, text, seen = known or await self._slip(sku, receiver)
            if str(sale or "") != outbox.sale:
                raise StockChanged(f"another sale of {sku!r} has begun")
            try:
                slip = seen.saved(sku, fence, outbox)
            except FenceRefused:
                if known is None:
                    raise
                known = None  # it may have been unfenced
                continue
            if slip is None:
                return
            if await self.storage.swap_note(sku, receiver, text, slip.to_text()):
                self._slips[sku, receiver] = outbox.sale, slip.to_text(), slip
                return
            known = None  # another sender, a wish, or a new sale

    async def ask_sender(self, sku: str, wish: str, receiver: str = DEFAULT_RECEIVER, *, instead_of: str = "") -> bool:
        """Ask a receiver's sender, whichever instance that is, for something.

        False if another wish than `instead_of` waits.
        """
        while True:
            sale, text, slip = await self._slip(sku, receiver)
            slip = slip.current(sale)
            if slip.wish != instead_of:
                return False
            if await self.storage.swap_note(sku, receiver, text, slip.wishing(wish).to_text()):
                return True

    # -- beside the sale ---------------------------------------------------------------------------------------------

    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """Put up texts under names, take some down, and read all that are there: a board for the instances.

        It is for reports of instances to each other and to people; no sale depends on it.
        """
        return await self.storage.board(put, drop)

    async def clocks_ms(self, *, timeout_s: float | None = None) -> dict[str, int]:
        """The clocks of the store's servers that answer, in ms since 1970, by the names of `server_of`."""
        return await self.storage.clocks_ms(timeout_s)

    def server_of(self, sku: str) -> str:
        """The name of the server that has an item, of several; "" if there is one."""
        return self.storage.server_of(sku)

    async def ping(self, skus: Sequence[str] = (), *, timeout_s: float | None = None) -> None:
        """Raise `StockUnavailable` unless the store answers and can be written to.

        In a cluster it asks the server of one of these items.
        """
        await self.storage.ping(skus, timeout_s)

    async def ensure_lasting(self, *, timeout_s: float | None = None) -> None:
        """Raise `StockUnavailable` if the store is so configured that it may lose acknowledged writes."""
        await self.storage.ensure_lasting(timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self.storage.close()


def _is_sale(event: Event) -> bool:
    return values.begins(event) and event.units.lucky == event.quantity


def _refuse_long(names: Sequence[str]) -> None:
    for name in names:
        if len(name.encode()) > NAME_BYTES or "\0" in name:
            raise ValueError(
                f"buyers, idempotency keys and payments have at most {NAME_BYTES} bytes, and no NUL: {name[:40]!r}..."
            )
