"""The shop's end of the webhook: it notes what arrives, and misbehaves as receivers do, until it is told to behave.

Each instance has a path of its own, so it is known which of them sends.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import standardwebhooks

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
_REASONS: Final = {200: "OK", 400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error"}


class Receiver:
    """Takes the events of all instances. `told` is called with each that has come; times are by `clock`."""

    def __init__(
        self, actors: Sequence[Actor], seed: int, clock: Callable[[], float], told: Callable[[Delivery], None]
    ) -> None:
        self._actors = {actor.name: actor for actor in actors}
        self._dice = random.Random(seed)  # noqa: S311 - no secret
        self._clock = clock
        self._told = told
        self._verifier = standardwebhooks.Webhook(SECRET)
        self._good = self._away = False
        self._trap: tuple[asyncio.Future[Actor], asyncio.Event] | None = None  # who is caught, and that it is over
        self._server: asyncio.Server | None = None
        self._roaming: asyncio.Task[None] | None = None
        self._busy: set[asyncio.Task[Any]] = set()

    async def open(self, hosts: Sequence[str], port: int) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, list(hosts), port)
        self._roaming = asyncio.create_task(self._roam())

    async def close(self) -> None:
        """End all connections."""
        tasks = [*self._busy, *([self._roaming] if self._roaming else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()

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
            self._away = not self._good
            await asyncio.sleep(self._dice.uniform(*_AWAY_S))
            self._away = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._busy.add(task)
        try:
            while not self._away and await self._take(reader, writer):
                pass
        except (OSError, EOFError, ValueError, asyncio.CancelledError):
            pass  # the sender was killed, or the run is over
        finally:
            self._busy.discard(task)
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take an event and answer it; False if the connection is to be cut."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        if self._away:
            return False
        actor, at = self._actors[first.split()[1].strip("/")], self._clock()
        status, about = self._read(headers, body)
        if self._trap is not None:
            status = 0
            caught, over = self._trap
            await asyncio.sleep(_HELD_S)
            if not caught.done():
                caught.set_result(actor)  # once: of several instances that send, the others go on
            await over.wait()
        elif status == 200 and not self._good:
            (status,) = self._dice.choices(list(_ANSWERS), list(_ANSWERS.values()))
            if self._dice.random() < _LATE:
                await asyncio.sleep(self._dice.uniform(*_LATE_S))
        name = headers.get("webhook-id", "")
        self._told(Delivery(actor.name, round(at, 6), round(self._clock(), 6), status, name, **about))
        if not status:
            return False
        again = "Retry-After: 1\r\n" if status == 429 else ""
        writer.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{again}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()
        return True

    def _read(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        digest = hashlib.sha256(body).hexdigest()[:16]
        try:
            event = self._verifier.verify(body, headers)
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
