"""The interface of a stock store: prepare and commit, guarded by a fencing token."""

import json
import re
import secrets
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, TypedDict

from typing_extensions import Unpack

from app import money
from app.errors import ItemNotPossible, StockError, StockUnavailable, UnknownItem
from app.stock.orders import Event, EventKind, OrderChange, OrderState, Record, Units

DEFAULT_SKU: Final = "default"
SKU_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"
# Of all that is kept of an item, noted when its sale begins. A release whose data the one before could not read, or
# would spoil, has a higher one: the one before then refuses the item. So begin no sale until all are upgraded.
LAYOUT: Final = 1
_SECRET_BYTES: Final = 16
ERASED: Final = "erased"  # in the place of a buyer's name
_SEQ_MAX: Final = 10**16 - 1
_NUMBER: Final = re.compile(rf"({SKU_PATTERN})~([1-9][0-9]{{0,19}})(-(0|[1-9][0-9]{{0,15}}))?(~[0-9a-f]{{32}})?")


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant's fencing token, and its source. Give the same to `prepare` and to `commit`."""

    token: int
    source: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The questions of a batch: what these buyers have bought and hold, and what these idempotency keys stand for.

    `orders`: how these stand, by their numbers; `payments`: to which orders these belong; `holds`: something of this
    is asked for, or may be held, so that the snapshot must have the store's clock.
    """

    buyers: Sequence[str] = ()
    keys: Sequence[str] = ()
    orders: Sequence[str] = ()
    payments: Sequence[str] = ()
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The request that an idempotency key stands for, and its outcome."""

    outcome: str
    quantity: int
    buyer: str | None
    order_id: str | None = None


class TermsChange(TypedDict, total=False):
    """Terms of an item to set; None: as everywhere again. Terms that are not named stay."""

    limit_per_buyer: int | None
    starts_at: float | None
    ends_at: float | None
    paused: str | None
    hold_s: float | None
    pay_s: float | None
    price: int | None
    currency: str | None


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of an item: units a buyer may have, and when its sale starts and ends, in seconds since 1970.

    0: no limit, no start, no end; None: as everywhere, by the settings. `paused`: nothing is sold for now, and buyers
    are shown this text; None: it is not paused. `hold_s`: for how many seconds units are held; `pay_s`: for how many
    from when the buyer goes to pay; `price`: of a unit, in the minor unit of `currency` (ISO 4217), None: unknown.
    """

    limit_per_buyer: int | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    paused: str | None = None
    hold_s: float | None = None
    pay_s: float | None = None
    price: int | None = None
    currency: str | None = None

    def completed_by(self, everywhere: "Terms") -> "Terms":
        """These terms; where one is None, that of `everywhere`."""
        if self is NO_TERMS:
            return everywhere
        return Terms(
            everywhere.limit_per_buyer if self.limit_per_buyer is None else self.limit_per_buyer,
            everywhere.starts_at if self.starts_at is None else self.starts_at,
            everywhere.ends_at if self.ends_at is None else self.ends_at,
            self.paused,
            everywhere.hold_s if self.hold_s is None else self.hold_s,
            everywhere.pay_s if self.pay_s is None else self.pay_s,
            self.price,
            self.currency,
        )

    def changed(self, change: TermsChange) -> "Terms":
        """These terms with a change."""
        return replace(self, **change)

    def to_text(self) -> str:
        """The terms as the stores keep them: JSON; empty if there are none."""
        return json.dumps(own, separators=(",", ":"), ensure_ascii=False) if (own := self.named) else ""

    @property
    def named(self) -> dict[str, float | str]:
        """The terms that are not None, by their names."""
        return {name: value for name in _TERMS if (value := getattr(self, name)) is not None}

    @classmethod
    def from_text(cls, text: str) -> "Terms":
        """Parse the terms of `to_text`. Raises `ValueError` for anything else."""
        return _terms(text) if text else NO_TERMS


NO_TERMS: Final = Terms()
_TERMS: Final = tuple(TermsChange.__annotations__)
PAUSED_MAX: Final = 200  # characters
PAUSED_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"  # of one line
CURRENCY_PATTERN: Final = r"^[A-Z]{3}$"
LATEST: Final = 1e11  # in seconds since 1970: the year 5138


@lru_cache(1000)
def _terms(text: str) -> Terms:
    found = json.loads(text)
    if not isinstance(found, dict) or found.keys() - set(_TERMS):
        raise ValueError("not terms of ours")
    for name, value in found.items():
        if name == "paused":
            if not isinstance(value, str) or not 0 < len(value) <= PAUSED_MAX:
                raise ValueError("not terms of ours")
        elif name == "currency":
            if not isinstance(value, str) or not re.match(CURRENCY_PATTERN, value):
                raise ValueError("not terms of ours")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise ValueError("not terms of ours")
    if not all(isinstance(found.get(name, 0), int) for name in ("limit_per_buyer", "price")):
        raise ValueError("not terms of ours")
    return Terms(**found)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The basis of a decision: units left, what the buyers asked for have bought, what the keys stand for.

    `terms`: the item's own.

    `last_entry`: number of the last order at that moment; orders that are decided now can only be written behind it.
    `version`: the store's own name for the state that was read, to be given back with the batch.
    `held`: units held; `now_ms`: the store's clock, since 1970; `records`: how the orders stand that were asked for, by
    their numbers, with those that the buyers and keys asked for hold, and those that are due; `open`: the number of
    each buyer's last order that is held; `payments`: the number of the order that each payment belongs to; `due`:
    orders whose time is up, the oldest first, and `more_due`: whether there are others. `bought` has the buyers of the
    orders that were asked for, too.
    """

    stock: int
    lucky: int
    bought: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, Settled] = field(default_factory=dict)
    last_entry: str | None = None
    version: str | None = None
    terms: Terms = NO_TERMS
    held: int = 0
    now_ms: int = 0
    records: Mapping[str, Record] = field(default_factory=dict)
    open: Mapping[str, str] = field(default_factory=dict)
    payments: Mapping[str, str] = field(default_factory=dict)
    due: Sequence[str] = ()
    more_due: bool = False


def new_secrets(count: int) -> list[str]:
    """Make orders' secrets: 128 random bits each, in hex. A single call for all takes a tenth of the time."""
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
class Begun:
    """An order to write that is held, or of which more is kept than a sale: how it stands is in a record.

    `record` has the order's secret; only its number is still to come.
    """

    record: Record
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer to remember for a while, because its request came with an idempotency key."""

    key: str
    settled: Settled


@dataclass(frozen=True, slots=True)
class Batch:
    """The part of a commit that is about one item, written whole or not at all. `batch_id` makes it idempotent.

    `after`: the snapshot's `last_entry`, behind which its orders would be found; `version`: the snapshot's. In the
    journal `changes` come first, then those that have `begun` with a record, then what is just `sold`.
    """

    batch_id: str
    expected_stock: int
    sold: Sequence[Sold]
    refused: Sequence[Refused] = ()
    after: str | None = None
    version: str | None = None
    begun: Sequence[Begun] = ()
    changes: Sequence[OrderChange] = ()

    @property
    def entries(self) -> int:
        """How many entries of the journal it writes."""
        return len(self.changes) + len(self.begun) + len(self.sold)

    @property
    def secrets(self) -> list[str]:
        """The secrets of its new orders, in the order of the journal."""
        return [*(one.record.secret for one in self.begun), *(one.secret for one in self.sold)]


@dataclass(frozen=True, slots=True)
class Order:
    """An order, as it began and, unless it was just sold, how it stands.

    `id` can't be guessed; `sold_at` is when it began, in seconds since 1970, by the store's clock; `epoch` grows with
    each `unfence`: only tokens of one epoch can be compared.
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
    record: Record | None = None

    @property
    def state(self) -> OrderState:
        """How it stands."""
        return self.record.state if self.record is not None else OrderState.SOLD


@dataclass(frozen=True, slots=True)
class Level:
    """Units left and sold at one moment, and the last entry of the journal then (not an id, which has a secret).

    `initial`: the sum that `stock + held + lucky` must have, None if the stock was set by other means than ours;
    `terms`: the item's own; `held`: units held; `due_in_s`: in how many seconds the first of them go back, by the
    store's clock, None if none are held.
    """

    sku: str
    stock: int
    lucky: int
    initial: int | None
    last_entry: str | None = None
    terms: Terms = NO_TERMS
    held: int = 0
    due_in_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Outbox:
    """How far the events of an item have left: see `app.outbox`.

    `sale`: names the item's sale; `text`: what the sender has noted, "" if nothing; `wish`: what an operator asks the
    sender for, "" if nothing.
    """

    sale: str
    text: str = ""
    wish: str = ""


class Restock(TypedDict, total=False):
    """The options of a restock. Units that are sold stay sold, unless `new_sale` forgets orders, buyers and keys.

    `forget_orders`: how many orders that must be, or nothing is changed; `add`: the units are added to those that are
    left; `if_match`: units left and sold must be these, or nothing is changed; `terms`: the changes to the item's own;
    `by`: the operator, for the log.
    """

    new_sale: bool
    forget_orders: int | None
    add: bool
    if_match: tuple[int, int] | None
    terms: TermsChange
    by: str


def what_is_changed(stock: int, how: Restock) -> str:
    """Name such a restock in the words of the log."""
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
        """The facts that have changed, for people."""
        before, after = _said(self.before), _said(self.after)
        return ", ".join(
            f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        )


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an item for people: its price with its currency."""
    found = dict(facts)
    currency = found.pop("currency", None)
    if isinstance(found.get("price"), int):
        found["price"] = money.written(found["price"], currency)
    return found


def facts(level: Level) -> dict[str, Any]:
    """The facts of an item for the log."""
    held = {"held": level.held} if level.held else {}
    return {"stock": level.stock, **held, "sold": level.lucky, **level.terms.named}


class StockStore(ABC):
    """Keeps the stock, the sales and the orders of items.

    The rule of the store, a compare-and-set: **a batch is written only if it is the one that was prepared last.** To
    prepare registers it under a fencing token and reads what it will be decided on, in one atomic step.

    All methods raise `StockUnavailable` when the store can't be reached within its call's deadline, and `UnknownItem`,
    `ItemNotPossible` or `StockCorrupt` where an item is meant. Methods for several items return an error for each
    item that has one, so that it doesn't stop the others, and raise `StockUnavailable` only if none could be reached.
    `guarded`: whether a batch is refused that was decided on stale data; `holds`: whether orders can be held.
    """

    guarded: ClassVar[bool] = True
    holds: ClassVar[bool] = False

    @abstractmethod
    def check(self, sku: str) -> None:
        """Raise `ItemNotPossible` unless this store can hold an item of that name."""

    @abstractmethod
    def parts_of(self, order_id: str) -> tuple[str, str, str] | None:
        """The item, the number and the secret in an order's id; None if it is none."""

    # -- the sale ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def prepare(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Raise the fence of each item to our token, register the batch that may be written, and read.

        It is not enough to check tokens at the write. A (token 10) reads 5 and is paused; B (11) reads 5; A wakes and
        writes 4 with token 10, the highest so far; B writes 4: one unit sold twice. So the read advances the
        fence. An item's answer is `FenceRefused` if it has seen a higher token.

        From then on no other batch can be written, not even an older one of the same token that is still on its way.
        The answer is `StockBehind` if the store lacks an order that this process, or its `expect`, knows of.
        """

    @abstractmethod
    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the prepared batch: of each item its part, if nobody has prepared another and the stock is as it was.

        All parts have the prepared id. Returns the ids of each item's new orders, the held ones first. Sending the
        last batch again does nothing and returns the same. An item's answer is `FenceRefused` or `StockChanged` when
        nothing of it was written, and `StockUnavailable` when it is in doubt.
        """

    async def resolve(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError | None]:
        """Find out for good whether batches that are in doubt were written: the ids of their orders, None if not.

        If a commit is still on its way, it is refused from now on, as another batch is prepared in its place.
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
        """Find the ids of a batch's orders; None if there are none."""

    # -- orders that must be there -----------------------------------------------------------------------------------

    @abstractmethod
    def marks(self) -> dict[str, str]:
        """High-water marks: the last order of each item that this process knows of, as a text that grows."""

    @abstractmethod
    def expect(self, sku: str, mark: str) -> None:
        """Hold the store to an order that another process has seen. `ValueError`: not a mark."""

    @abstractmethod
    async def inspect(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """Return what each fence has seen, None if nothing; `StockBehind` if an order is missing. Changes nothing."""

    @abstractmethod
    async def accept_loss(self, sku: str, *, by: str = "") -> None:
        """Expect no order any more that the store has lost: an operator's word that these are gone for good."""

    # -- the operator ------------------------------------------------------------------------------------------------

    # An operator's change is written together with a line of the log: who (`by`), what, before and after.

    @abstractmethod
    async def set_stock(self, sku: str, fence: Fence, stock: int, **how: Unpack[Restock]) -> Level:
        """Set the units left; see `Restock`. Raises `StockNotAsExpected` if a condition is not met."""

    @abstractmethod
    async def remove(self, sku: str, fence: Fence, *, by: str = "") -> None:
        """Remove an item of which nothing was sold. Raises `HasOrders` if something was."""

    @abstractmethod
    async def unfence(self, sku: str, *, by: str = "") -> None:
        """Forget the fence: an operator's word that the tokens seen so far no longer count."""

    @abstractmethod
    async def log(self, sku: str | None = None, *, limit: int = 100) -> list[Change]:
        """The last changes that operators have made to an item, or to all, newest first."""

    @abstractmethod
    async def count_orders(self, sku: str) -> int:
        """Count the orders of an item."""

    async def level(self, sku: str) -> Level:
        """Units left and sold, read at one moment, so that they add up even during a sale."""
        level = (await self.levels([sku]))[sku]
        if isinstance(level, StockError):
            raise level
        return level

    @abstractmethod
    async def levels(self, skus: Sequence[str]) -> dict[str, Level | StockError]:
        """Units left and sold of some hundred items at most: each as of one moment, not all of the same one."""

    @abstractmethod
    async def items(self) -> list[str]:
        """The names of the items that have a stock."""

    @abstractmethod
    async def order(self, order_id: str) -> Order | None:
        """An order by its id."""

    async def numbered(self, number: str) -> Order | None:
        """An order by its number, which is its id without the secret: for operators. A secret must be the right one."""
        match = _NUMBER.fullmatch(number)
        if match is None:
            return None
        sku, ms, seq = match[1], int(match[2]), match[4]
        entry, before = (match[2], f"{ms - 1}") if seq is None else (f"{ms}-{seq}", f"{ms}-{int(seq) - 1}")
        if seq is not None and int(seq) == 0:
            before = f"{ms - 1}-{_SEQ_MAX}"
        try:
            found = await self.orders(sku, after=f"{sku}~{before}~{'0' * 2 * _SECRET_BYTES}", until=entry, limit=1)
        except ValueError:  # of another store
            return None
        right = match[5] is None or (found and secrets.compare_digest(found[0].id, number))
        return found[0] if found and right else None

    @abstractmethod
    async def paid_with(self, payment_ref: str, skus: Sequence[str]) -> list[Order]:
        """The orders that a payment belongs to, of some hundred items at most: one of each item, or none."""

    async def erase(
        self, sku: str, buyer: str, under: Callable[[], AbstractAsyncContextManager[Fence]], *, by: str = ""
    ) -> int:
        """Put `ERASED` in the place of a buyer's name in all that is kept of an item; the numbers stay.

        `under()` is a grant of the item's lock, which the last, short step needs. Returns how many entries of the
        journal had the name.
        """
        raise StockError("this store can't erase the names of buyers")

    @abstractmethod
    async def orders(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Order]:
        """Orders, oldest first, from behind the one with the id `after` up to `until`, a level's `last_entry`."""

    @abstractmethod
    async def journal(
        self, sku: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[Event]:
        """Events, oldest first, from behind the entry `after` up to the entry `until`."""

    # -- the sender of events ----------------------------------------------------------------------------------------

    @abstractmethod
    async def count_entries(self, sku: str) -> int:
        """Count the entries of an item's journal."""

    @abstractmethod
    async def outbox(self, skus: Sequence[str]) -> dict[str, Outbox | StockError]:
        """Read the sender's notes on some hundred items at most; a new sale forgets them."""

    @abstractmethod
    async def save_outbox(self, sku: str, fence: Fence, outbox: Outbox) -> None:
        """Note how far the events have left, and forget the wish that is granted.

        Raises `FenceRefused` if a later sender has been here, and `StockChanged` if another sale has begun.
        """

    @abstractmethod
    async def ask_sender(self, sku: str, wish: str) -> None:
        """Ask the sender, whichever instance that is, for something."""

    @abstractmethod
    async def notices(self, put: Mapping[str, str], *, drop: Sequence[str] = ()) -> dict[str, str]:
        """Put up texts under names, take some down, and read all that are there: a board for the instances.

        It is for what instances report to each other and to people; no sale depends on it.
        """

    @abstractmethod
    async def ping(self, *, timeout_s: float | None = None) -> None:
        """Raise `StockUnavailable` unless the store answers and can be written to."""

    async def ensure_lasting(self, *, timeout_s: float | None = None) -> None:  # noqa: B027 - some have nothing to ask
        """Raise `StockUnavailable` if the store is so configured that it may lose acknowledged writes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def sale_of(entry: str, order: Order) -> Event:
    """The event by which an order was sold at once."""
    return Event(
        entry=entry,
        kind=EventKind.SOLD,
        sku=order.sku,
        order_id=order.id,
        number=1,
        quantity=order.quantity,
        buyer=order.buyer,
        key=order.key,
        at=order.sold_at,
        instance=order.instance,
        token=order.token,
        batch_id=order.batch_id,
        epoch=order.epoch,
        units=Units(-order.quantity, 0, order.quantity),
    )


def raise_if_none_was_reached(answers: Mapping[str, object]) -> None:
    """Raise `StockUnavailable` if every item has that answer."""
    away = [answer for answer in answers.values() if isinstance(answer, StockUnavailable)]
    if away and len(away) == len(answers):
        raise StockUnavailable(str(away[0]), untouched=all(one.untouched for one in away)) from away[0]


def refuse_odd_name(sku: str) -> None:
    """Raise `ItemNotPossible` for a name that no store accepts."""
    if not re.fullmatch(SKU_PATTERN, sku):
        raise ItemNotPossible(f"not an item's name: {sku!r} (letters, digits, '.', '_' and '-', 64 at most)")
