"""The interface of a stock store: read and commit, guarded by a fencing token."""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeVar

from app.errors import ItemNotPossible, StockError

Answer = TypeVar("Answer")

DEFAULT_SKU: Final = "default"
SKU_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant's fencing token, and whose numbers it is one of. Give the same to `read` and to `commit`."""

    token: int
    source: str


def foreign(sku: str, seen: Fence, ours: Fence) -> str:
    """For the operator: the store is fenced by another lock system's tokens."""
    return (
        f"the stock of {sku!r} is fenced by {seen.source} (token {seen.token}), ours is from {ours.source}; tokens of "
        f"two lock systems can't be compared. If {seen.source} is gone for good: seckill stock unfence --sku {sku}"
    )


def outbid(sku: str, seen: object, ours: Fence) -> str:
    """For the operator: the store has seen another token than ours, or has had another batch announced."""
    return (
        f"the stock of {sku!r} has seen token {seen}, ours is {ours.token}: somebody had the lock after us (or, if the "
        "tokens are equal, another batch was announced). If every instance says so for long, etcd was restored from an "
        f"older backup: seckill stock unfence --sku {sku}"
    )


def behind(sku: str, entry: str) -> str:
    """For the operator: an order that is known is not there."""
    return (
        f"the store has lost orders of {sku!r}: {entry} was acknowledged and is not there; it was restored from an "
        "older copy, or a replica without its last writes was promoted. Put a complete copy in its place; if they are "
        f"gone for good: seckill stock accept-loss --sku {sku}; if the store was emptied on purpose: "
        f"seckill stock set N --new-sale --sku {sku}; if another deployment uses this etcd, it needs another "
        "SECKILL_LOCK_PREFIX"
    )


def changed(sku: str, stock: object) -> str:
    """For the operator: what was decided on is no longer there."""
    return f"the stock of {sku!r} was changed to {stock} between our read and our write"


def refuse_odd_name(sku: str) -> None:
    """Raise `ItemNotPossible` for what no store takes as an item's name."""
    if not re.fullmatch(SKU_PATTERN, sku):
        raise ItemNotPossible(f"not an item's name: {sku!r} (letters, digits, '.', '_' and '-', 64 at most)")


@dataclass(frozen=True, slots=True)
class Ask:
    """Of whom a batch needs to know: what these buyers have bought, what these idempotency keys stand for."""

    buyers: Sequence[str] = ()
    keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """What an idempotency key stands for: the purchase that came with it, and what became of it."""

    outcome: str
    quantity: int
    buyer: str | None
    order_id: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a decision needs to know: units left, what the buyers asked for have bought, what the keys stand for.

    `last_entry`: number of the last order at that moment. What is decided now can only be written behind it.
    `version`: the store's own word for what was read, to be given back with what was decided on it.
    """

    stock: int
    lucky: int
    bought: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, Settled] = field(default_factory=dict)
    last_entry: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Sold:
    """An order to write. `secret` makes its id impossible to guess, and is the same when the batch is sent again."""

    quantity: int
    buyer: str | None = None
    key: str | None = None
    secret: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal to remember, because its purchase came with an idempotency key."""

    key: str
    settled: Settled


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit writes of an item, all of it or nothing. `batch_id` is what makes it safe to send twice.

    `after`: the snapshot's `last_entry`, behind which its orders would be found; `version`: the snapshot's.

    `supposing`: it was decided without a snapshot, on what is likely: that at least `expected_stock` units are left,
    that these buyers have bought nothing, that these keys stand for nothing. Such a batch refuses nobody; `after` and
    `version` are what the process itself knows.
    """

    batch_id: str
    expected_stock: int
    sold: Sequence[Sold]
    refused: Sequence[Refused] = ()
    after: str | None = None
    version: str | None = None
    supposing: Ask | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """The record of a sale.

    `id` can't be guessed; `sold_at` is in seconds since 1970, by the store's clock; `era` grows with each `unfence`;
    only tokens of one era can be compared.
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
    era: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """Units left and sold at one moment, and the number of the last order then (not its id: that has a secret).

    `initial` is what `stock + lucky` must equal, None if the stock was set by other means than ours.
    """

    sku: str
    stock: int
    lucky: int
    initial: int | None
    last_entry: str | None = None


class StockStore(ABC):
    """Keeps the stock, the sales and the orders of items.

    All methods raise `StockUnavailable` when the store can't be reached within its call's deadline, and `UnknownItem`,
    `ItemNotPossible` or `StockCorrupt` where an item is meant. Those for several items answer an error for each item
    that has one, so that it doesn't stop the others. `guarded`: what is written was decided on what is still there,
    whoever else writes.
    """

    guarded: ClassVar[bool] = True

    @property
    def scattered(self) -> bool:
        """Whether items lie on servers of their own, so that one that is away says nothing of the others."""
        return False

    @abstractmethod
    def check(self, sku: str) -> None:
        """Raise `ItemNotPossible` unless this store can hold an item of that name."""

    @abstractmethod
    async def read_many(self, fence: Fence, batch_id: str, asks: Mapping[str, Ask]) -> dict[str, Snapshot | StockError]:
        """Raise the fence of each item to our token, announce the batch that will be written, and read.

        It is not enough to check tokens at the write. A (token 10) reads 5 and is paused; B (11) reads 5; A wakes and
        writes 4 with token 10, which nobody outbid yet; B writes 4: one unit sold twice. So the read advances the
        fence, and A's write finds it advanced. An item's answer is `FenceRefused` if a higher token was here before.

        From then on no other batch can be written, not even an older one of the same token that is still on its way.
        The answer is `StockBehind` if the store lacks an order that this process, or its `expect`, knows of.
        """

    async def read(
        self, sku: str, fence: Fence, batch_id: str, *, buyers: Sequence[str] = (), keys: Sequence[str] = ()
    ) -> Snapshot:
        """`read_many` of one item."""
        answers = await self.read_many(fence, batch_id, {sku: Ask(buyers, keys)})
        return _unless_error(answers[sku])

    def suppose(self, sku: str, fence: Fence, batch_id: str, sold: Sequence[Sold], ask: Ask) -> Batch | None:
        """A batch to be committed without a read before it (ADR 12); None in a store that wants a read.

        It supposes that there are units enough, that nothing is known of these buyers and keys, and that nothing has
        happened under our token but what has until now.
        """
        return None

    @abstractmethod
    async def commit_many(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """Write the announced batch, of each item its part if the fence is still ours and the stock what it was.

        All parts have the announced id. Answers the ids of an item's orders. Sending the last batch again does nothing
        and answers the same. An item's answer is `FenceRefused` or `StockChanged` when nothing of it was written, and
        `StockUnavailable` when that is not known.

        A part that supposes needs no read before it (ADR 12). It is written if what it supposes is so and no other
        token, nor another batch of ours, came first; it raises the fence and announces itself in the same step. If not
        so the answer is `StockChanged`, nothing has happened, and a read tells what is there instead.
        """

    async def commit(self, sku: str, fence: Fence, batch: Batch) -> list[str]:
        """`commit_many` of one item."""
        answers = await self.commit_many(fence, {sku: batch})
        return _unless_error(answers[sku])

    @abstractmethod
    async def settle(self, sku: str, fence: Fence, batch: Batch) -> list[str] | None:
        """Find out for good whether a batch was written: the ids of its orders, None if it was not.

        For a commit that was not answered. Whatever of it is still on its way is refused from now on.
        """

    @abstractmethod
    async def set_stock(self, sku: str, fence: Fence, stock: int, *, new_sale: bool = False) -> Level:
        """Set the units left. What was sold stays sold; only a `new_sale` forgets orders, buyers and keys."""

    @abstractmethod
    async def unfence(self, sku: str) -> None:
        """Forget the fence: an operator's word that the tokens seen so far no longer count."""

    @abstractmethod
    def marks(self) -> dict[str, str]:
        """The last order of each item that this process knows of, as a text; a later one's is greater among texts."""

    @abstractmethod
    def expect(self, sku: str, mark: str) -> None:
        """Hold the store to an order that somebody knows of: without it the store is behind. `ValueError`: no mark."""

    @abstractmethod
    def unseen(self, skus: Iterable[str]) -> list[str]:
        """Those of these items of which we were told an order (`expect`) that no call has found in the store yet."""

    @abstractmethod
    async def fences(self, skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
        """What the fences have seen, None if nothing yet; `StockBehind`, with all that is missing. Changes nothing."""

    async def fence(self, sku: str) -> Fence | None:
        """`fences` of one item."""
        answers = await self.fences([sku])
        return _unless_error(answers[sku])

    @abstractmethod
    async def accept_loss(self, sku: str) -> None:
        """Forgive the store what it has lost until now: an operator's word that those orders are gone for good."""

    @abstractmethod
    async def level(self, sku: str) -> Level:
        """Units left and sold, in one glance (so that they add up whatever is being sold)."""

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
        """Put up texts under names, take some down, and read all that are there.

        For what instances tell each other of themselves, and people like to see; nothing rests on it.
        """

    @abstractmethod
    async def ping(self, *, timeout_s: float | None = None) -> None:
        """Raise `StockUnavailable` unless the store answers and can be written to."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def _unless_error(answer: Answer | StockError) -> Answer:
    if isinstance(answer, StockError):
        raise answer
    return answer
