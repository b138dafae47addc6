"""The interface of a stock store: prepare and commit, guarded by a fencing token."""

import json
import re
import secrets
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, TypedDict

from typing_extensions import Unpack

from app.errors import ItemNotPossible, StockError, StockUnavailable, UnknownItem

DEFAULT_SKU: Final = "default"
SKU_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"
_SECRET_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant's fencing token, and whose numbers it is one of. Give the same to `prepare` and to `commit`."""

    token: int
    source: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a batch needs to know: what these buyers have bought, what these idempotency keys stand for."""

    buyers: Sequence[str] = ()
    keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """What an idempotency key stands for: the purchase that came with it, and what became of it."""

    outcome: str
    quantity: int
    buyer: str | None
    order_id: str | None = None


class TermsChange(TypedDict, total=False):
    """Terms of an item to set; None: as everywhere again. What is not named stays."""

    limit_per_buyer: int | None
    starts_at: float | None
    ends_at: float | None
    paused: str | None


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms an item is sold: units a buyer may have, and when its sale starts and ends, in seconds since 1970.

    0: no limit, no start, no end; None: as everywhere, by the settings. `paused`: nothing is sold for now, and this is
    what buyers are told of it; None: it is not paused.
    """

    limit_per_buyer: int | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    paused: str | None = None

    def completed_by(self, everywhere: "Terms") -> "Terms":
        """These terms, where an item has none of its own those that hold everywhere."""
        if self is NO_TERMS:
            return everywhere
        return Terms(
            everywhere.limit_per_buyer if self.limit_per_buyer is None else self.limit_per_buyer,
            everywhere.starts_at if self.starts_at is None else self.starts_at,
            everywhere.ends_at if self.ends_at is None else self.ends_at,
            self.paused,
        )

    def changed(self, change: TermsChange) -> "Terms":
        """These terms with some others."""
        return replace(self, **change)

    def to_text(self) -> str:
        """As the stores keep them: JSON; empty if there are none."""
        return json.dumps(own, separators=(",", ":"), ensure_ascii=False) if (own := self.named) else ""

    @property
    def named(self) -> dict[str, float | str]:
        """Those that an item has of its own, by their names."""
        return {name: value for name in _TERMS if (value := getattr(self, name)) is not None}

    @classmethod
    def from_text(cls, text: str) -> "Terms":
        """The same back. Raises `ValueError` for what is none of ours."""
        return _terms(text) if text else NO_TERMS


NO_TERMS: Final = Terms()
_TERMS: Final = tuple(TermsChange.__annotations__)
PAUSED_MAX: Final = 200  # characters
PAUSED_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"  # of one line


@lru_cache(1000)
def _terms(text: str) -> Terms:
    found = json.loads(text)
    if not isinstance(found, dict) or found.keys() - set(_TERMS):
        raise ValueError("not terms of ours")
    for name, value in found.items():
        if name == "paused":
            if not isinstance(value, str) or not 0 < len(value) <= PAUSED_MAX:
                raise ValueError("not terms of ours")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise ValueError("not terms of ours")
    if not isinstance(found.get("limit_per_buyer", 0), int):
        raise ValueError("not terms of ours")
    return Terms(**found)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a decision needs to know: units left, what the buyers asked for have bought, what the keys stand for.

    `terms`: the item's own.

    `last_entry`: number of the last order at that moment; orders that are decided now can only be written behind it.
    `version`: the store's own word for what was read, to be given back with what was decided on it.
    """

    stock: int
    lucky: int
    bought: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, Settled] = field(default_factory=dict)
    last_entry: str | None = None
    version: str | None = None
    terms: Terms = NO_TERMS


def new_secrets(count: int) -> list[str]:
    """Secrets of orders: 128 random bits each, in hex. To ask the system for all at once takes a tenth of the time."""
    digits = secrets.token_hex(_SECRET_BYTES * count)
    return [digits[at : at + 2 * _SECRET_BYTES] for at in range(0, len(digits), 2 * _SECRET_BYTES)]


@dataclass(frozen=True, slots=True)
class Sold:
    """An order to write. `secret` makes its id impossible to guess, and is the same when the batch is sent again."""

    quantity: int
    buyer: str | None = None
    key: str | None = None
    secret: str = field(default_factory=lambda: new_secrets(1)[0])


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal to remember, because its purchase came with an idempotency key."""

    key: str
    settled: Settled


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit writes of an item, all of it or nothing. `batch_id` is what makes it safe to send twice.

    `after`: the snapshot's `last_entry`, behind which its orders would be found; `version`: the snapshot's.
    """

    batch_id: str
    expected_stock: int
    sold: Sequence[Sold]
    refused: Sequence[Refused] = ()
    after: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """The record of a sale.

    `id` can't be guessed; `sold_at` is in seconds since 1970, by the store's clock; `epoch` grows with each `unfence`:
    only tokens of one epoch can be compared.
    """

    id: str
    sku: str
    quantity: int
    buyer: str | None
    key: str | None
    instance: str
    token: int
    batch_id: str
    sold_at: float
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """Units left and sold at one moment, and the number of the last order then (not its id, which has a secret).

    `initial` is what `stock + lucky` must equal, None if the stock was set by other means than ours; `terms`: the
    item's own.
    """

    sku: str
    stock: int
    lucky: int
    initial: int | None
    last_entry: str | None = None
    terms: Terms = NO_TERMS


class Restock(TypedDict, total=False):
    """How a stock is set. What was sold stays sold, unless `new_sale`: that forgets orders, buyers and keys.

    `forget_orders`: how many orders that forgets; if it were another number, nothing is changed; `add`: so many units
    are added to those that are left; `if_match`: units left and sold must be that, or nothing is changed; `terms`: what
    changes of the item's own; `by`: the operator, for the log.
    """

    new_sale: bool
    forget_orders: int | None
    add: bool
    if_match: tuple[int, int] | None
    terms: TermsChange
    by: str


def what_is_changed(stock: int, how: Restock) -> str:
    """What an operator does who sets a stock so, in the words of the log."""
    if how.get("new_sale"):
        return "new sale"
    if stock or not how.get("add"):
        return "stock"
    change = how.get("terms", {})
    return "terms" if change.keys() != {"paused"} else "pause" if change["paused"] else "resume"


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the operators' log. `at`: in seconds since 1970, by the store's clock; `before` and `after`: facts."""

    at: float
    by: str
    what: str
    sku: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def difference(self) -> str:
        """The facts that are not what they were, for people."""
        names = sorted({*self.before, *self.after})
        return ", ".join(
            f"{name} {self.before.get(name, 'none')} -> {self.after.get(name, 'none')}"
            for name in names
            if self.before.get(name) != self.after.get(name)
        )


def facts(level: Level) -> dict[str, Any]:
    """What the log says of an item."""
    return {"stock": level.stock, "sold": level.lucky, **level.terms.named}


class StockStore(ABC):
    """Keeps the stock, the sales and the orders of items.

    The rule of the store, a compare-and-set: **a batch is written only if it is the one that was prepared last.** To
    prepare registers it under a fencing token and reads what it will be decided on, in one atomic step.

    All methods raise `StockUnavailable` when the store can't be reached within its call's deadline, and `UnknownItem`,
    `ItemNotPossible` or `StockCorrupt` where an item is meant. Those for several items answer an error for each item
    that has one, so that it doesn't stop the others, and raise `StockUnavailable` only if none could be reached.
    `guarded`: whether a batch is refused that was decided on what is not there any more.
    """

    guarded: ClassVar[bool] = True

    @abstractmethod
    def check(self, sku: str) -> None:
        """Raise `ItemNotPossible` unless this store can hold an item of that name."""

    # -- the sale ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Raise the fence of each item to our token, register the batch that may be written, and read.

        It is not enough to check tokens at the write. A (token 10) reads 5 and is paused; B (11) reads 5; A wakes and
        writes 4 with token 10, the highest so far; B writes 4: one unit sold twice. So the read advances the
        fence. An item's answer is `FenceRefused` if a higher token was here before.

        From then on no other batch can be written, not even an older one of the same token that is still on its way.
        The answer is `StockBehind` if the store lacks an order that this process, or its `expect`, knows of.
        """

    @abstractmethod
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the prepared batch: of each item its part, if nobody has prepared another and the stock is as it was.

        All parts have the prepared id. Answers the ids of an item's orders. Sending the last batch again does nothing
        and answers the same. An item's answer is `FenceRefused` or `StockChanged` when nothing of it was written, and
        `StockUnavailable` when it is in doubt.
        """

    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        """Find out for good whether batches that are in doubt were written: the ids of their orders, None if not.

        For commits that were not answered. Whatever of them is still on its way is refused from now on: another batch
        is prepared in their place.
        """
        prepared = await self.prepare(fence, uuid.uuid4().hex, {sku: Ask() for sku in batches})
        found: dict[str, list[str] | StockError | None] = {}
        for sku, batch in batches.items():
            answer = prepared[sku]
            if isinstance(answer, StockError) and not isinstance(answer, UnknownItem):
                found[sku] = answer
                continue
            try:
                found[sku] = await self._find(sku, batch)
            except StockError as error:
                found[sku] = error
        return found

    @abstractmethod
    async def _find(self, sku: str, batch: Batch) -> list[str] | None:
        """The ids of a batch's orders, None if there are none."""

    # -- orders that must be there -----------------------------------------------------------------------------------

    @abstractmethod
    def marks(self) -> dict[str, str]:
        """High-water marks: the last order of each item that this process knows of, as a text that grows."""

    @abstractmethod
    def expect(self, sku: str, mark: str) -> None:
        """Hold the store to an order that another process has seen. `ValueError`: not a mark."""

    @abstractmethod
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """What the fences have seen, None if nothing yet; `StockBehind` if an order is missing. Changes nothing."""

    @abstractmethod
    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        """Forgive the store what it has lost until now: an operator's word that those orders are gone for good."""

    # -- the operator ------------------------------------------------------------------------------------------------

    # What an operator changes is written together with a line of the log: who it was (`by`), what, before and after.

    @abstractmethod
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        """Set the units left; see `Restock`. Raises `StockNotAsExpected` if it expects what is not there."""

    @abstractmethod
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        """Remove an item of which nothing was sold. Raises `HasOrders` if something was."""

    @abstractmethod
    async def unfence(self, sku: str, *, by: str = "") -> None:
        """Forget the fence: an operator's word that the tokens seen so far no longer count."""

    @abstractmethod
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        """What operators have changed of an item, or of all of them: the last changes, newest first."""

    @abstractmethod
    async def count_orders(self, sku: str) -> int:
        """How many orders of an item there are."""

    async def level(self, sku: str) -> Level:
        """Units left and sold, in one glance, so that they add up whatever is being sold."""
        level = (await self.levels([sku]))[sku]
        if isinstance(level, StockError):
            raise level
        return level

    @abstractmethod
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """The same of several items, some hundred at most: each as of one moment, not all of the same one."""

    @abstractmethod
    async def items(self) -> list[str]:
        """The names of the items that have a stock."""

    @abstractmethod
    async def order(self, order_id: str) -> Order | None:
        """An order by its id."""

    @abstractmethod
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        """Orders, oldest first, beginning behind the order with the id `after`, up to a level's `last_entry`."""

    @abstractmethod
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """Put up texts under names, take some down, and read all that are there: a board for the instances.

        For what they tell each other of themselves, and people like to see; nothing rests on it.
        """

    @abstractmethod
    async def ping(self, *, timeout_s: float | None = None) -> None:
        """Raise `StockUnavailable` unless the store answers and can be written to."""

    async def ensure_lasting(self, *, timeout_s: float | None = None) -> None:  # noqa: B027 - some have nothing to ask
        """Raise `StockUnavailable` if the store is so set up that it may forget what it has acknowledged."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def raise_if_none_was_reached(answers: Mapping[str, object]) -> None:
    """Raise `StockUnavailable` if that is the answer for every item."""
    away = [answer for answer in answers.values() if isinstance(answer, StockUnavailable)]
    if away and len(away) == len(answers):
        raise StockUnavailable(str(away[0]), untouched=all(one.untouched for one in away)) from away[0]


def refuse_odd_name(sku: str) -> None:
    """Raise `ItemNotPossible` for what no store takes as an item's name."""
    if not re.fullmatch(SKU_PATTERN, sku):
        raise ItemNotPossible(f"not an item's name: {sku!r} (letters, digits, '.', '_' and '-', 64 at most)")
