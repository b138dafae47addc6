"""The buyers: they come whether or not they are served, and try again as a real client would."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from app.torture.history import Attempt
from app.torture.stage import Actor

_AGAIN_S: Final = 0.2  # after a connection that failed


@dataclass(frozen=True, slots=True)
class Wish:
    """What a buyer wants; the key makes it safe to ask again. `patience_s`: then the same is asked elsewhere."""

    key: str
    buyer: str
    quantity: int
    patience_s: float


class Crowd:
    """Buyers, each a task: asks one of the instances, and on 503 or a lost connection another one, until told.

    `patience_s`: how long they wait for an answer. Some wait longer than an instance lets them, others less.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        seed: int,
        clock: Callable[[], float],
        told: Callable[[Attempt], None],
        *,
        patience_s: tuple[float, ...],
    ) -> None:
        self._actors = actors
        self._wishes = random.Random(seed)  # noqa: S311 - what is wanted and when: the same for the same seed
        self._ways = random.Random(seed)  # noqa: S311 - whom they ask: that depends on the answers
        self._clock = clock
        self._told = told
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=5),
            trust_env=False,
        )
        self._buying: set[asyncio.Task[Attempt]] = set()
        self._failure: BaseException | None = None
        self._count = 0
        self._answered: Wish | None = None  # the last one that was
        self._name = f"{self._wishes.getrandbits(32):08x}"

    async def come(self, per_s: float) -> None:
        """Come at random moments, `rate` a second on the average, until cancelled."""
        while True:
            self.send(self._wishes.choice((1, 1, 2, 3)))
            await asyncio.sleep(self._wishes.expovariate(per_s))

    def send(self, quantity: int) -> "asyncio.Task[Attempt]":
        """Send one buyer."""
        self._count += 1
        patience_s = self._patience_s[self._count % len(self._patience_s)]
        wish = Wish(f"{self._name}-{self._count}", f"buyer-{self._count}", quantity, patience_s)
        return self._begin(self._buy(wish))

    def _begin(self, buying: Coroutine[None, None, Attempt]) -> "asyncio.Task[Attempt]":
        task = asyncio.create_task(buying)
        self._buying.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, buying: "asyncio.Task[Attempt]") -> None:
        self._buying.discard(buying)
        if not buying.cancelled() and (failure := buying.exception()) is not None:
            self._failure = self._failure or failure

    async def all_told(self, within_s: float) -> None:
        """Wait until every buyer was told; those who were not in that time give up. Raises what went wrong here."""
        if self._buying:
            await asyncio.wait(self._buying, timeout=within_s)
        late = list(self._buying)
        for buying in late:
            buying.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Send everybody home."""
        try:
            await self.all_told(0)
        finally:
            await self._http.aclose()

    async def _buy(self, wish: Wish) -> Attempt:
        actor = self._ways.choice(self._actors)
        while True:
            attempt = await self._ask(actor, wish)
            if attempt.status not in (0, 503):
                self._answered = wish
                return attempt
            pause_s = float(attempt.retry_after or _AGAIN_S)
            await asyncio.sleep(pause_s * self._ways.uniform(0.5, 1.0))
            others = [other for other in self._actors if other is not actor]
            actor = self._ways.choice(others or self._actors)

    async def _ask(self, actor: Actor, wish: Wish) -> Attempt:
        sent_at = self._clock()

        def told(status: int, **fields: object) -> Attempt:
            at = {"sent_at": round(sent_at, 4), "done_at": round(self._clock(), 4)}
            given = {"key": wish.key, "buyer": wish.buyer, "quantity": wish.quantity, "instance": actor.name}
            attempt = Attempt(**given | at | {"status": status} | fields)  # type: ignore[arg-type]
            self._told(attempt)
            return attempt

        try:
            answer = await self._http.post(
                f"{actor.url}/stock/reduce",
                params={"quantity": wish.quantity, "buyer": wish.buyer},
                headers={"Idempotency-Key": wish.key, "Accept": "application/json"},
                timeout=httpx.Timeout(wish.patience_s, connect=1.0),
            )
        except httpx.HTTPError as error:
            return told(0, error=type(error).__name__)
        except asyncio.CancelledError:
            told(0, error="the run was over")
            raise
        try:
            body = answer.json()
            if answer.status_code == 200:
                return told(
                    200,
                    outcome=body["outcome"],
                    granted=body["quantity"],
                    order=body.get("order"),
                    replayed=body["replayed"],
                )
            return told(answer.status_code, retry_after=answer.headers.get("retry-after"), error=body["type"])
        except (ValueError, KeyError, TypeError):
            return told(answer.status_code, error="not an answer of ours")
