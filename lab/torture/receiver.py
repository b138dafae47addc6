"""The shop's end of the webhook: it notes what arrives, and misbehaves as receivers do, until it is told to behave.

Each instance has a path of its own, so it is known which of them sends.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import standardwebhooks

from lab.listener import Listener
from lab.torture.history import Delivery
from lab.torture.stage import WEBHOOK_TIMEOUT_S, Actor

SECRET: Final = "whsec_dG9ydHVyZS10b3J0dXJlLXRvcnR1cmUtdG9ydHVyZQ=="  # noqa: S105 - no secret
# The answers to an event that was taken, and how often each comes; 0: the connection is cut without an answer.
_ANSWERS: Final = {200: 92, 500: 2, 429: 2, 0: 4}
_LATE: Final = 0.03  # share of the answers
_LATE_S: Final = (0.1, 1.2 * WEBHOOK_TIMEOUT_S)
_HERE_S: Final = 12.0  # on average, until it is away
_AWAY_S: Final = (0.5, 2.5)
_HELD_S: Final = 1.2  # longer than it takes the sender to note how far it has come


class EventReceiver(Listener):
    """Takes the events of all instances. `told` is called with each that has come; times are by `clock`.

    `answers`: the status for each event that was taken, 0 for a cut connection; without it dice are thrown.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        seed: int,
        clock: Callable[[], float],
        told: Callable[[Delivery], None],
        answers: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._actors = {actor.name: actor for actor in actors}
        self._answers = answers
        self._dice = random.Random(seed)  # noqa: S311 - no secret
        self._clock = clock
        self._told = told
        self._verifier = standardwebhooks.Webhook(SECRET)
        self._good = False
        self._trap: tuple[asyncio.Future[Actor], asyncio.Event] | None = None  # who is caught, and that it is over
        self._roaming: asyncio.Task[None] | None = None

    async def open(self, hosts: Sequence[str], port: int = 0) -> int:
        """See `Listener`."""
        if self._answers is None:
            self._roaming = asyncio.create_task(self._roam())
        return await super().open(hosts, port)

    async def close(self) -> None:
        """See `Listener`."""
        if self._roaming is not None:
            self._roaming.cancel()
        await super().close()

    def behave(self) -> None:
        """Take and answer everything from now on."""
        self._good = True

    async def kill_sender(self, within_s: float) -> Actor:
        """Kill the instance that sends the next event, when it is taken and before it is answered.

        The answer is held until the sender has had the time to note what it is sure of. Raises `TimeoutError`.
        """
        caught: asyncio.Future[Actor] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        self._trap = caught, over
        try:
            actor = await asyncio.wait_for(caught, within_s)
            await asyncio.to_thread(actor.kill)
            return actor
        finally:
            self._trap = None
            over.set()

    async def _roam(self) -> None:
        while True:
            await asyncio.sleep(self._dice.expovariate(1 / _HERE_S))
            self.away = not self._good
            await asyncio.sleep(self._dice.uniform(*_AWAY_S))
            self.away = False

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str]]:
        """See `Listener`."""
        sender, at = path.strip("/"), self._clock()
        status, about = self._read(headers, body)
        if self._trap is not None:
            status = 0
            caught, over = self._trap
            await asyncio.sleep(_HELD_S)
            if not caught.done():
                caught.set_result(self._actors[sender])  # once: of several instances that send, the others go on
            await over.wait()
        elif status == 200 and self._answers is not None:
            status = self._answers()
        elif status == 200 and not self._good:
            (status,) = self._dice.choices(list(_ANSWERS), list(_ANSWERS.values()))
            if self._dice.random() < _LATE:
                await asyncio.sleep(self._dice.uniform(*_LATE_S))
        name = headers.get("webhook-id", "")
        self._told(Delivery(sender, round(at, 6), round(self._clock(), 6), status, name, **about))
        return status, {"Retry-After": "1"} if status == 429 else {}

    def _read(self, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        digest = hashlib.sha256(body).hexdigest()[:16]
        try:
            event = self._verifier.verify(body, dict(headers))
        except (standardwebhooks.WebhookVerificationError, ValueError) as error:
            return 400, {"body": digest, "wrong": str(error)}
        data = event["data"]
        own = {name: data.get(name) for name in ("order", "number", "quantity", "buyer")}
        return 200, own | {
            "body": digest,
            "event": event["type"].removeprefix("order."),
            "payment": data.get("payment_ref"),
            "happened_at": datetime.fromisoformat(event["timestamp"]).timestamp(),
            "facts": {name: value for name, value in data.items() if name not in own},
        }
