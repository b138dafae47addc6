"""The same random sale on several stores, step by step: they must answer alike, and keep the same.

It has two items, which baskets and a limit join. What differs by nature is left out of the comparison: the numbers of
orders (each is known by its place), and moments.
"""

import asyncio
import itertools
import random
import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from app.errors import FenceRefused, SeckillError, StockChanged, StockError
from app.orders import (
    Answer,
    Ask,
    Cancel,
    Command,
    Confirm,
    Extend,
    Hold,
    Order,
    Purchase,
    Refund,
    Snapshot,
    Terms,
)
from app.orders.decision import decide_together
from app.orders.record import Line
from app.sale import batch as batches
from app.sale.batch import Clocked, Part, ask_all, beyond, by_item, decide_parts, joined
from app.sale.queue import Queue
from app.stock import Fence, LogNote, StockStore
from app.telemetry.observer import Observer

SKU: Final = "tv"
SKUS: Final = ("case", SKU)
_BUYERS: Final = ("ann", "bob", "änn", "a b'\"\\", None)
_KEYS: Final = (None, None, None, *(f"key {number}" for number in range(40)))
_PAYMENTS: Final = tuple(f"pay_{number}" for number in range(9))
_TERMS: Final[dict[str, list[Any]]] = {
    "limit_per_buyer": [0, 2, None],
    "starts_at": [0, 1_790_000_000.5, None],
    "ends_at": [4_000_000_000.25, None],
    "price": [500, None],
    "limit_group": ["3 case tv", None],
    "offer_s": [30.0, None],
    "smaller_first": [True, False, None],
    "paused": ["tea", "暂停 \"'\\/ ü🛒" + "暂" * 180, None],
}
_GRACE_S: Final = 3600.0
_MOMENTS: Final = (
    "first_due_ms",
    "first_ends_at",
    "at",
    "pay_by",
    "pay_by_ms",
    "due_ms",
    "goes_back_at",
    "sold_at",
    "token",
    "epoch",
    "entry",
    "instance",
)


@dataclass
class Side:
    """A store, and the orders that it has begun, in the journal's order, by item."""

    store: StockStore
    orders: dict[str, list[Order]] = field(default_factory=dict)
    entries: dict[str, list[str]] = field(default_factory=dict)  # of the journals
    numbers: dict[str, list[str]] = field(default_factory=dict)  # of the orders in them, also of lines of baskets
    token: int = 0

    def fence(self) -> Fence:
        """The next grant."""
        self.token += 1
        return Fence(self.token, "etcd:1")

    def plain(self, value: Any, sku: str) -> Any:
        """A value of an item without what differs by nature. Two items may have orders of the same number."""
        places = {entry: f"entry {place}" for place, entry in enumerate(self.entries.get(sku, []))}
        places |= {number: f"#{place}" for place, number in enumerate(self.numbers.get(sku, []))}
        for other, numbers in self.numbers.items():
            places |= {f"{other}~{number}": f"{other} #{place}" for place, number in enumerate(numbers)}
        return _plain(value, places)


def _plain(value: Any, places: dict[str, str]) -> Any:  # noqa: PLR0911 - a case each
    if isinstance(value, BaseException):
        text = re.sub(r"the key '[^']*'|token \w+|ours is \d+", "", str(value))
        if isinstance(value, FenceRefused | StockChanged):  # by whichever guard
            return "refused"
        return type(value).__name__, None if isinstance(value, StockError) else text
    if isinstance(value, dict) and set(value) == set(Line._fields):  # among the facts of an event
        value = Line(**value)
    if isinstance(value, Line):
        return value.sku, value.quantity, value.price, places.get(f"{value.sku}~{value.number}")  # None: forgotten
    if isinstance(value, dict):
        return {str(places.get(name, name)): _plain(one, places) for name, one in value.items() if name not in _MOMENTS}
    if hasattr(value, "_asdict"):
        return {name: _plain(one, places) for name, one in value._asdict().items() if name not in _MOMENTS}
    if hasattr(value, "__dataclass_fields__"):
        own = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {name: _plain(one, places) for name, one in own.items() if name not in (*_MOMENTS, "basis", "now_ms")}
    if isinstance(value, list | tuple):
        return [_plain(one, places) for one in value]
    if isinstance(value, str) and re.fullmatch("(?!000000)[0-9a-f]{32}", value):
        return "digest"  # of a command, with its order's number
    return places.get(value, value) if isinstance(value, str) else value


class Play:
    """One random sale on all sides. `clear` empties their servers."""

    def __init__(self, sides: dict[str, Side], seed: int, monkeypatch: Any) -> None:
        self.sides = sides
        self.random = random.Random(seed)
        self.few = seed % 2 == 0  # in every second sale units are few, and buyers wait for them
        self._steps = itertools.count()
        self._secrets = itertools.count()
        self._monkeypatch = monkeypatch
        # The others don't notice that somebody has read since.
        self._all_register = all(side.store.guard in ("fence", "compare") for side in sides.values())

    async def step(self) -> None:
        """Do one thing on each side, and compare the answers and all that is kept."""
        choice = self.random
        number = next(self._steps)
        kinds: list[Callable[[Side, random.Random, int], Any]] = [self._batch] * 16 + [
            *(self._restock, self._restock, self._erase, self._operator),
        ]
        do = choice.choice(kinds) if number >= len(SKUS) else self._open
        seed = choice.random()
        told: dict[str, Any] = {}
        for name, side in self.sides.items():
            self._fix(number)
            told[name] = await self._apart(side, do, random.Random(seed), number)
        await self.compare(f"step {number}, {do.__name__}", told)

    def _fix(self, number: int) -> None:
        """Have each side draw the same secrets and names."""
        count = itertools.count()
        self._monkeypatch.setattr(
            batches, "new_secrets", lambda n: [f"{number:016x}{next(count):016x}" for _ in range(n)]
        )

        def named(*args: Any, **more: Any) -> Any:
            return decide_together(*args, **more, fresh=lambda: f"{number:010x}{next(count):010x}")

        self._monkeypatch.setattr(batches, "decide_together", named)

    async def _apart(self, side: Side, do: Any, choice: random.Random, number: int) -> Any:
        try:
            return await do(side, choice, number)
        except (SeckillError, ValueError) as error:
            return error

    async def compare(self, when: str, told: dict[str, Any]) -> None:
        """Compare the answers, then levels, journals, orders, histories, counts and logs."""
        kept: dict[str, Any] = {}
        for name, side in self.sides.items():
            journals = {sku: await side.store.journal(sku, limit=10_000) for sku in SKUS}
            side.orders = {sku: await side.store.orders(sku, limit=10_000) for sku in SKUS}
            side.entries = {sku: [one.entry for one in journal] for sku, journal in journals.items()}
            side.numbers = {
                sku: list(dict.fromkeys(one.order.number for one in journal)) for sku, journal in journals.items()
            }
            there = {f"{what} of {sku}": one for sku in SKUS for what, one in (await _kept(side, sku)).items()}
            kept[name] = {"told": side.plain(told[name], SKU)} | there
        (first, one), *others = kept.items()
        for name, other in others:
            for what in one:
                found = difference(one[what], other[what])
                assert found is None, f"{when}: {what}, {first} and {name}: {found}"

    # -- what happens ----------------------------------------------------------------------------------------------

    async def _batch(self, side: Side, choice: random.Random, number: int) -> Any:
        commands = [self._command(side, choice) for _ in range(choice.randint(1, 5))]
        loop = asyncio.get_running_loop()
        queue = Queue(limit=100, observer=Observer(), on_work=lambda: None)
        waiting = [queue.join(command, loop.time() + 60) for command in commands]
        entries = queue.take(100)
        fence, batch_id = side.fence(), f"b{number}"
        try:
            seen, asks, more = dict[str, Any](), dict[str, Ask](), ask_all(by_item(entries))
            while more:
                seen |= await side.store.prepare(fence, batch_id, more)
                if odd := [one for one in seen.values() if not isinstance(one, Snapshot)]:
                    return odd
                asks |= more
                more = beyond(seen, asks)
            parts, together = list[Part](), joined(seen, entries)
            for skus in [*together, *({sku} for sku in seen if not any(sku in one for one in together))]:
                of = {queue.item(sku): seen[sku] for sku in sorted(skus)}
                own = [one for one in entries if one.item in of]
                parts += decide_parts(batch_id, of, own, Clocked(Terms(), _GRACE_S))
            fate = choice.choice(["once"] * 6 + ["twice", "lost", "in doubt", "late"])
            changed = {part.item.sku for part in parts if part.changes_something}
            skus = changed.union(*(one for one in together if one & changed))
            write = {part.item.sku: part.write for part in parts if part.item.sku in skus}
            if not write:
                numbers: Any = {}
            elif fate == "lost":
                return await side.store.resolve(side.fence(), write), await side.store.commit(fence, write, together)
            elif fate == "late" and self._all_register:
                await side.store.prepare(side.fence(), f"{batch_id} other", dict.fromkeys(sorted(write), Ask()))
                return await side.store.commit(fence, write, together)
            else:
                numbers = await side.store.commit(fence, write, together)
                if fate == "twice":
                    assert await side.store.commit(fence, write, together) == numbers
                if fate == "in doubt":
                    assert await side.store.resolve(side.fence(), write) == numbers
            if odd := [one for one in numbers.values() if isinstance(one, StockError)]:
                return odd
            found = []
            for part in parts:
                new = numbers.get(part.item.sku, [])
                places = {entry: f"new {place}" for place, entry in enumerate(new)}
                found.append([_plain([_answer(one) for _, one in part.answers(new)], places), seen[part.item.sku]])
            return [side.plain(one, part.item.sku) for one, part in zip(found, parts, strict=True)]
        finally:
            queue.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _command(  # noqa: PLR0911 - a case each
        self, side: Side, choice: random.Random
    ) -> Command:
        buyer, key = choice.choice(_BUYERS), choice.choice(_KEYS if not self.few else (*_KEYS[:3] * 3, "key 0"))
        kind, units = choice.random(), 1 if self.few else choice.randint(1, 3)
        place, ref = choice.random(), choice.choice(_PAYMENTS)
        amount, drop = choice.choice([None, 500, 1000, 1500, 700]), choice.random()
        sku, orders = choice.choice(SKUS), [(sku, one.record) for sku in SKUS for one in side.orders.get(sku, [])[-8:]]
        if kind < (0.05 if self.few else 0.3) or not orders:
            return Purchase(units, sku, buyer, key, request_id="r" if drop < 0.2 else None)
        if kind < 0.4:
            lines = ((SKU, choice.randint(1, 2)),)
            return Hold(units, SKUS[0], buyer, key, ref=ref, proven=drop < 0.5, lines=lines)
        if kind < 0.55:
            return Hold(units, sku, buyer, key, ref=ref, proven=drop < 0.5, wait=int(drop * 100) % 3 > 0)
        of_item, order = orders[int(place * len(orders))]
        of = (of_item, order.number, order.secret if drop > 0.05 else "0" * 32)
        part: dict[str, Any] = {"units": units, "message": f"m {place}", "line": choice.choice([None, *SKUS])}
        if kind < 0.75:
            return Confirm(*of, ref, amount, "EUR", key)
        if kind < 0.8:
            return Extend(*of, key)
        if kind < 0.9:
            return Cancel(*of, by="olga" if drop < 0.3 else "", key=key, **(part if drop < 0.5 else {}))
        if kind < 0.95:
            return Refund(*of, drop < 0.5, by="olga", **part)
        return Refund(*of, drop < 0.5, by="olga", amount=amount if drop < 0.3 else None)

    async def _open(self, side: Side, choice: random.Random, number: int) -> Any:
        return await side.store.set_stock(SKUS[number], side.fence(), 2 if self.few else 20, new_sale=True)

    async def _restock(self, side: Side, choice: random.Random, number: int) -> Any:
        how: dict[str, Any] = {"by": "olga"}
        some = [0, 1, 2, 3] if self.few else [0, 3, 9, 20, 10**15 - 1, -1, 10**15]
        stock, kind = choice.choice(some), choice.random()
        if kind < 0.4:
            how["add"] = True
        elif kind < 0.55:
            how |= {"new_sale": True}
            if choice.random() < 0.5:
                how["forget_orders"] = len(side.orders.get(SKU, [])) + choice.randint(0, 1)
        terms: dict[str, Any] = {}
        for name, values in _TERMS.items():
            if choice.random() < (0.1 if name == "paused" else 0.25) and not (self.few and name in ("paused", "price")):
                terms[name] = choice.choice(values)
        if "price" in terms:
            terms["currency"] = "EUR" if terms["price"] else None
        how["terms"] = terms
        if choice.random() < 0.2:
            how["if_match"] = (choice.randint(0, 9), choice.randint(0, 3))
        if choice.random() < 0.1:
            how["if_initial"] = choice.choice([9, 20])
        return await side.store.set_stock(choice.choice(SKUS), side.fence(), stock, **how)

    async def _erase(self, side: Side, choice: random.Random, number: int) -> Any:
        @asynccontextmanager
        async def under() -> Any:
            yield side.fence()

        return await side.store.erase(SKU, choice.choice(["ann", "bob", "änn", "a b'\"\\", "nobody"]), under, by="olga")

    async def _operator(  # noqa: PLR0911 - a case each
        self, side: Side, choice: random.Random, number: int
    ) -> Any:
        kind = choice.randrange(9)
        store = side.store
        if kind == 0:
            return await store.remove(SKU, side.fence(), by="olga")
        if kind == 1:
            return await store.accept_loss(SKU, by="olga")
        if kind == 2:
            return await store.unfence(SKU, by="olga")
        if kind == 3:
            return await store.note(SKU, LogNote("olga", "replay", {}, {"events": "all"}))
        if kind in (4, 5):
            asks = {SKU: Ask(), "nothing": Ask(["ann"], ["k"], holds=True), "a/b": Ask()}
            found = await store.prepare(side.fence(), "odd", asks)
            return {sku: type(one).__name__ for sku, one in found.items()}
        if kind in (6, 7):
            return await store.prepare(side.fence(), "odd", {SKU: Ask(["x" * 1021])})
        return [await store.count_orders(SKU), await store.count_entries(SKU), await store.order(SKU, "no number")]


async def _kept(side: Side, sku: str) -> dict[str, Any]:
    """All that a store keeps of an item."""
    store, orders = side.store, side.orders[sku]
    level = (await store.levels([sku]))[sku]
    if not isinstance(level, StockError):
        own = {**asdict(level), "due_in_s": None, "now": None, "sale": bool(level.sale), "last_entry": None}
    found = {
        "level": level if isinstance(level, StockError) else own,
        "journal": [(one.order.number, one) for one in await store.journal(sku, limit=10_000)],
        "orders": orders,
        "history": await store.history(sku, orders[-1].record.number) if orders else [],
        "paid": [await store.paid_with(ref, [sku]) for ref in _PAYMENTS[:3]],
        "places": [await store.before(one) for one in orders],
        "entries": len(side.entries[sku]),
        "log": [(one.by, one.what, _of_log(one.before), _of_log(one.after)) for one in await store.log(sku, limit=30)],
    }
    return {what: side.plain(one, sku) for what, one in found.items()}


def difference(one: Any, other: Any, at: str = "") -> str | None:
    """Say where two values differ first, None if they don't."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{at}.{name}", (one.get(name), other.get(name))) for name in sorted({*one, *other})]
    elif isinstance(one, list) and isinstance(other, list):
        pairs = [(f"{at}[{place}]", two) for place, two in enumerate(itertools.zip_longest(one, other))]
    else:
        return None if one == other else f"{at}: {one!r} and {other!r}"
    return next((found for where, (mine, theirs) in pairs if (found := difference(mine, theirs, where))), None)


def _of_log(facts: Any) -> Any:
    return {name: value for name, value in facts.items() if name not in ("generation", "source", "token", "order")}


def _answer(one: Answer | Exception) -> Any:
    return one if isinstance(one, Exception) else {**one._asdict(), "order": one.order and one.order.number}
