"""The same random sale on several stores, step by step: they must answer alike, and keep the same.

What differs by nature is left out of the comparison: the numbers of orders (each is known by its place), and moments.
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
    decide,
)
from app.sale import batch as batches
from app.sale.batch import ask, decide_part
from app.sale.queue import Queue
from app.stock import Fence, Note, StockStore
from app.telemetry.observer import Observer

SKU: Final = "tv"
_BUYERS: Final = ("ann", "bob", "änn", "a b'\"\\", None)
_KEYS: Final = (None, None, None, *(f"key {number}" for number in range(12)))
_PAYMENTS: Final = tuple(f"pay_{number}" for number in range(9))
_TERMS: Final[dict[str, list[Any]]] = {
    "limit_per_buyer": [0, 2, None],
    "starts_at": [0, 1_790_000_000.5, None],
    "ends_at": [4_000_000_000.25, None],
    "price": [500, None],
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
    """A store, and the orders that it has begun, in the journal's order."""

    store: StockStore
    orders: list[Order] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)  # of the journal
    token: int = 0

    def fence(self) -> Fence:
        """The next grant."""
        self.token += 1
        return Fence(self.token, "etcd:1")

    def plain(self, value: Any) -> Any:
        """A value without what differs by nature."""
        places = {entry: f"entry {place}" for place, entry in enumerate(self.entries)}
        places |= {one.record.number: f"#{place}" for place, one in enumerate(self.orders)}
        return _plain(value, places)


def _plain(value: Any, places: dict[str, str]) -> Any:  # noqa: PLR0911 - a case each
    if isinstance(value, BaseException):
        text = re.sub(r"the key '[^']*'|token \w+|ours is \d+", "", str(value))
        if isinstance(value, FenceRefused | StockChanged):  # by whichever guard
            return "refused"
        return type(value).__name__, None if isinstance(value, StockError) else text
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
        kinds: list[Callable[[Side, random.Random, int], Any]] = [self._batch] * 8 + [
            self._restock,
            self._erase,
            self._operator,
        ]
        do = choice.choice(kinds)
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
            return decide(*args, **more, fresh=lambda: f"{number:010x}{next(count):010x}")

        self._monkeypatch.setattr(batches, "decide", named)

    async def _apart(self, side: Side, do: Any, choice: random.Random, number: int) -> Any:
        try:
            return await do(side, choice, number)
        except (SeckillError, ValueError) as error:
            return error

    async def compare(self, when: str, told: dict[str, Any]) -> None:
        """Compare the answers, then levels, journals, orders, histories, counts and logs."""
        kept: dict[str, Any] = {}
        for name, side in self.sides.items():
            side.orders = await side.store.orders(SKU, limit=10_000)
            level = (await side.store.levels([SKU]))[SKU]
            journal = await side.store.journal(SKU, limit=10_000)
            side.entries = [one.entry for one in journal]
            log = await side.store.log(SKU, limit=30)
            kept[name] = side.plain(
                {
                    "told": told[name],
                    "level": {
                        **asdict(level),
                        "due_in_s": None,
                        "now": None,
                        "sale": bool(level.sale),
                        "last_entry": None,
                    }
                    if not isinstance(level, StockError)
                    else level,
                    "journal": [(one.order.number, one) for one in journal],
                    "orders": side.orders,
                    "history": await side.store.history(SKU, side.orders[-1].record.number) if side.orders else [],
                    "paid": [await side.store.paid_with(ref, [SKU]) for ref in _PAYMENTS[:3]],
                    "places": [await side.store.before(one) for one in side.orders],
                    "entries": len(journal),
                    "log": [(one.by, one.what, _of_log(one.before), _of_log(one.after)) for one in log],
                }
            )
        (first, one), *others = kept.items()
        for name, other in others:
            for what in one:
                found = difference(one[what], other[what])
                assert found is None, f"{when}: {what} of {first} and {name}: {found}"

    # -- what happens ----------------------------------------------------------------------------------------------

    async def _batch(self, side: Side, choice: random.Random, number: int) -> Any:
        commands = [self._command(side, choice) for _ in range(choice.randint(1, 5))]
        loop = asyncio.get_running_loop()
        queue = Queue(limit=100, observer=Observer(), on_work=lambda: None)
        waiting = [queue.join(command, loop.time() + 60) for command in commands]
        entries = queue.take(100)
        fence, batch_id = side.fence(), f"b{number}"
        try:
            seen = (await side.store.prepare(fence, batch_id, {SKU: ask(entries)}))[SKU]
            if not isinstance(seen, Snapshot):
                return seen
            part = decide_part(entries[0].item, batch_id, seen, entries, everywhere=Terms(), grace_s=_GRACE_S)
            fate = choice.choice(["once"] * 6 + ["twice", "lost", "in doubt", "late"])
            write = {SKU: part.write}
            if not part.changes_something:
                numbers: Any = []
            elif fate == "lost":
                return await side.store.resolve(side.fence(), write), await side.store.commit(fence, write)
            elif fate == "late" and self._all_register:
                await side.store.prepare(side.fence(), f"{batch_id} other", {SKU: Ask()})
                return await side.store.commit(fence, write)
            else:
                numbers = (await side.store.commit(fence, write))[SKU]
                if fate == "twice":
                    assert (await side.store.commit(fence, write))[SKU] == numbers
                if fate == "in doubt":
                    assert (await side.store.resolve(side.fence(), write))[SKU] == numbers
            if isinstance(numbers, StockError):
                return numbers
            answers = [answer for _, answer in part.answers(numbers)]
            places = {entry: f"new {place}" for place, entry in enumerate(numbers)}
            return side.plain([seen, _plain([_answer(one) for one in answers], places)])
        finally:
            queue.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _command(self, side: Side, choice: random.Random) -> Command:
        buyer, key = choice.choice(_BUYERS), choice.choice(_KEYS if not self.few else _KEYS[:4])
        kind, units = choice.random(), 1 if self.few else choice.randint(1, 3)
        orders = side.orders[-8:]
        place, ref = choice.random(), choice.choice(_PAYMENTS)
        amount, drop = choice.choice([None, 500, 1000, 1500, 700]), choice.random()
        if kind < (0.05 if self.few else 0.3) or not orders:
            return Purchase(units, SKU, buyer, key, request_id="r" if drop < 0.2 else None)
        if kind < 0.55:
            return Hold(units, SKU, buyer, key, ref=ref, proven=drop < 0.5, wait=int(drop * 100) % 3 > 0)
        order = orders[int(place * len(orders))]
        of = (SKU, order.record.number, order.record.secret if drop > 0.05 else "0" * 32)
        if kind < 0.75:
            return Confirm(*of, ref, amount, "EUR", key)
        if kind < 0.8:
            return Extend(*of, key)
        if kind < 0.9:
            return Cancel(*of, by="olga" if drop < 0.3 else "", key=key, units=units if drop < 0.5 else None)
        return Refund(*of, drop < 0.5, by="olga", amount=amount if drop < 0.3 else None)

    async def _restock(self, side: Side, choice: random.Random, number: int) -> Any:
        how: dict[str, Any] = {"by": "olga"}
        some = [0, 1, 2, 3] if self.few else [0, 3, 9, 20, 10**15 - 1, -1, 10**15]
        stock, kind = choice.choice(some), choice.random()
        if kind < 0.4:
            how["add"] = True
        elif kind < 0.55:
            how |= {"new_sale": True}
            if choice.random() < 0.5:
                how["forget_orders"] = len(side.orders) + choice.randint(0, 1)
        terms: dict[str, Any] = {}
        for name, values in _TERMS.items():
            if choice.random() < 0.25 and not (self.few and name in ("paused", "price")):
                terms[name] = choice.choice(values)
        if "price" in terms:
            terms["currency"] = "EUR" if terms["price"] else None
        how["terms"] = terms
        if choice.random() < 0.2:
            how["if_match"] = (choice.randint(0, 9), choice.randint(0, 3))
        if choice.random() < 0.1:
            how["if_initial"] = choice.choice([9, 20])
        return await side.store.set_stock(SKU, side.fence(), stock, **how)

    async def _erase(self, side: Side, choice: random.Random, number: int) -> Any:
        @asynccontextmanager
        async def under() -> Any:
            yield side.fence()

        return await side.store.erase(SKU, choice.choice(["ann", "bob", "änn", "a b'\"\\", "nobody"]), under, by="olga")

    async def _operator(  # noqa: PLR0911 - a case each
        self, side: Side, choice: random.Random, number: int
    ) -> Any:
        kind = choice.randrange(7)
        store = side.store
        if kind == 0:
            return await store.remove(SKU, side.fence(), by="olga")
        if kind == 1:
            return await store.accept_loss(SKU, by="olga")
        if kind == 2:
            return await store.unfence(SKU, by="olga")
        if kind == 3:
            return await store.note(SKU, Note("olga", "replay", {}, {"events": "all"}))
        if kind == 4:
            asks = {SKU: Ask(), "nothing": Ask(["ann"], ["k"], holds=True), "a/b": Ask()}
            found = await store.prepare(side.fence(), "odd", asks)
            return {sku: type(one).__name__ for sku, one in found.items()}
        if kind == 5:
            return await store.prepare(side.fence(), "odd", {SKU: Ask(["x" * 1021])})
        return [await store.count_orders(SKU), await store.count_entries(SKU), await store.order(SKU, "no number")]


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
