"""The buyers: they come whether or not they are served, retry as a real client would, and ask again afterwards.

Three kinds come to three items. Most have an idempotency key. Some have none: they can't ask again when no answer came.
And some come again and again for the item of which each buyer may have only a few units.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import httpx

from lab.torture.history import UNKNOWN, HttpCall, Item, Theft

AGAIN_S: Final = 0.2  # after a connection that failed
_KEYLESS: Final = 0.25  # share of the buyers
_REGULARS: Final = 0.15
_REGULARS_AT_ONCE: Final = 8
_PURCHASES_OF_A_REGULAR: Final = 6
UNITS_PER_PURCHASE: Final = 1.75  # on average, see `Crowd.come`


class Seller(Protocol):
    """An instance of the service, or what stands in front of several."""

    @property
    def name(self) -> str:
        """Return its name in the history."""

    @property
    def url(self) -> str:
        """Return where it is."""


@dataclass(frozen=True, slots=True)
class BuyersWish:
    """A buyer's wish. A key makes it safe to ask again. `patience_s`: after that the buyer asks elsewhere."""

    name: str
    key: str | None
    buyer: str
    sku: str
    quantity: int
    patience_s: float


class Visitors:
    """Visitors of a sale, each a task that asks instances until it has an answer.

    `patience_s`: how long they wait for an answer. Some wait longer than an instance allows, others less.
    """

    def __init__(
        self, actors: Sequence[Seller], seed: int, clock: Callable[[], float], *, patience_s: tuple[float, ...]
    ) -> None:
        self._actors = actors
        self._wishes = random.Random(seed)  # noqa: S311 - what is wanted and when: the same for the same seed
        self._ways = random.Random(seed)  # noqa: S311 - whom they ask: that depends on the answers
        self._clock = clock
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=5), trust_env=False
        )
        self._busy: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._count = 0
        self._over = asyncio.Event()
        self._name = f"{self._wishes.getrandbits(32):08x}"

    def _begin(self, visit: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(visit)
        self._busy.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, visit: "asyncio.Task[None]") -> None:
        self._busy.discard(visit)
        if not visit.cancelled() and (failure := visit.exception()) is not None:
            self._failure = self._failure or failure

    async def all_told(self, within_s: float) -> None:
        """Wait until every visitor has an answer; the rest then give up. Raises errors of the visitors themselves."""
        self._over.set()
        if self._busy:
            await asyncio.wait(self._busy, timeout=within_s)
        late = list(self._busy)
        for visit in late:
            visit.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Cancel all visits."""
        try:
            await self.all_told(0)
        finally:
            await self._http.aclose()

    def _another(self, actor: Seller) -> Seller:
        others = [other for other in self._actors if other is not actor]
        return self._ways.choice(others or self._actors)

    async def _rest(self, most_s: float) -> None:
        """Do nothing for a while, unless the run is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), self._ways.uniform(0, most_s))

    async def _pause(self, retry_after: str | None) -> None:
        """Wait before asking again."""
        await asyncio.sleep(float(retry_after or AGAIN_S) * self._ways.uniform(0.5, 1.0))


class Crowd(Visitors):
    """Buyers, each a task that asks an instance, and on 503 or a lost connection another, until it has an answer.

    With an answer they ask again within `once_more_s` seconds. `thieves`: share of those who try a stranger's key then.
    """

    def __init__(
        self,
        actors: Sequence[Seller],
        items: Sequence[Item],
        seed: int,
        clock: Callable[[], float],
        told: Callable[[HttpCall | Theft], None],
        *,
        patience_s: tuple[float, ...],
        once_more_s: float = 1.5,
        thieves: float = 0.1,
    ) -> None:
        super().__init__(actors, seed, clock, patience_s=patience_s)
        self._once_more_s = once_more_s
        self._thieves = thieves
        self._free = [item.sku for item in items if not item.limit]
        self._limited = [item.sku for item in items if item.limit]
        self._told = told

    async def come(self, per_s: float) -> None:
        """Come at random moments, `per_s` a second on average, until cancelled."""
        while True:
            kind, quantity = self._wishes.random(), self._wishes.choice((1, 1, 2, 3))
            sku = self._wishes.choice(self._free)
            if kind < _KEYLESS:
                self._send(sku, quantity, keyless=True)
            elif kind < _KEYLESS + _REGULARS and self._limited:
                newest = self._count // (_PURCHASES_OF_A_REGULAR * _REGULARS_AT_ONCE)
                number = newest * _REGULARS_AT_ONCE + self._wishes.randrange(_REGULARS_AT_ONCE)
                sku = self._wishes.choice(self._limited)
                self._send(sku, min(2, quantity), buyer=f"regular-{self._name}-{number}")
            else:
                self._send(sku, quantity)
            await asyncio.sleep(self._wishes.expovariate(per_s))

    def send(self, sku: str, quantity: int) -> "asyncio.Task[None]":
        """Send one buyer with a key."""
        return self._send(sku, quantity)

    def _send(
        self, sku: str, quantity: int, *, keyless: bool = False, buyer: str | None = None
    ) -> "asyncio.Task[None]":
        self._count += 1
        name = f"{self._name}-{self._count}"
        patience_s = self._patience_s[self._count % len(self._patience_s)]
        wish = BuyersWish(name, None if keyless else name, buyer or f"buyer-{name}", sku, quantity, patience_s)
        return self._begin(self._buy(wish))

    async def _buy(self, wish: BuyersWish) -> None:
        told = await self._until_told(wish)
        if told is not None and wish.key is not None:
            actor, attempt = told
            # A buyer with an answer asks once more, elsewhere: the answer must be the same.
            await self._rest(self._once_more_s)
            await self._until_told(wish, self._another(actor))
            if attempt.told is not None and self._ways.random() < self._thieves:
                await self._steal(wish, self._another(actor))

    async def _steal(self, wish: BuyersWish, actor: Seller) -> None:
        """Ask for another buyer's order by its key, under a different name."""
        thief = replace(wish, buyer=f"thief of {wish.name}")
        try:
            answer = await self._http.post(f"{actor.url}/stock/reduce", **_request(thief))
            status, said = answer.status_code, answer.text[:200]
        except httpx.HTTPError as error:
            status, said = 0, type(error).__name__
        self._told(Theft(wish.name, wish.sku, actor.name, round(self._clock(), 4), status, said))

    async def _until_told(self, wish: BuyersWish, actor: Seller | None = None) -> tuple[Seller, HttpCall] | None:
        """Return the instance that answered, and the answer; None if there is nobody left to ask."""
        actor = actor or self._ways.choice(self._actors)
        while True:
            attempt = await self._ask(actor, wish)
            if attempt.status not in (0, 503):
                return actor, attempt
            if wish.key is None and (attempt.status == 0 or attempt.error == UNKNOWN):
                return None  # it may have been sold: asking again could buy twice
            await self._pause(attempt.retry_after)
            actor = self._another(actor)

    async def _ask(self, actor: Seller, wish: BuyersWish) -> HttpCall:
        sent_at = self._clock()

        def told(status: int, **fields: Any) -> HttpCall:
            about = "buy", wish.key or wish.buyer, wish.sku, wish.buyer, wish.quantity, actor.name
            call = HttpCall(*about, round(sent_at, 4), round(self._clock(), 4), status, wish.key, **fields)
            self._told(call)
            return call

        try:
            answer = await self._http.post(f"{actor.url}/stock/reduce", **_request(wish))
        except httpx.HTTPError as error:
            return told(0, error=type(error).__name__)
        except asyncio.CancelledError:
            told(0, error="the run was over")
            raise
        try:
            body = answer.json()
            if answer.status_code == 200:
                said = {"told": body.get("order"), "shown": {"quantity": body["quantity"]}}
                return told(200, outcome=body["outcome"], replayed=body["replayed"], **said)
            return told(answer.status_code, retry_after=answer.headers.get("retry-after"), error=body["type"])
        except (ValueError, KeyError, TypeError):
            return told(answer.status_code, error="not an answer of ours")


def _request(wish: BuyersWish) -> dict[str, Any]:
    return {
        "params": {"sku": wish.sku, "quantity": wish.quantity, "buyer": wish.buyer},
        "headers": {"Accept": "application/json"} | ({"Idempotency-Key": wish.key} if wish.key else {}),
        "timeout": httpx.Timeout(wish.patience_s, connect=1.0),
    }
