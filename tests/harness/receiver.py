"""A shop that receives events: a real HTTP server, which verifies each one, and fails as it is told."""

import base64
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import standardwebhooks
from starlette.responses import Response

from app.orders import OrderId
from lab.listener import Listener
from lab.servers.process import free_port

SECRET = "whsec_" + base64.b64encode(b"a shop's secret of 32 bytes: ok!").decode()
Decide = Callable[[dict[str, Any]], Awaitable[Response | None]]


async def accept(_: dict[str, Any]) -> Response | None:
    return None


class Receiver(Listener):
    """`got`: the events that were accepted, oldest first; `tried`: all that came, with the time.

    `decide` may answer otherwise than with 200, for each event of a batch. `batches`: how many events each batch had
    that was accepted, and `sizes`: how many each request had. `secret`: the one that it verifies with.
    """

    def __init__(self, secret: str = SECRET) -> None:
        super().__init__()
        self._verifier = standardwebhooks.Webhook(secret)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/events"
        self.decide: Decide = accept
        self.got: list[dict[str, Any]] = []
        self.heads: list[Mapping[str, str]] = []
        self.tried: list[tuple[float, dict[str, Any]]] = []
        self.batches: list[int] = []
        self.sizes: list[int] = []
        self.now = self.most = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of an instance that delivers here, quickly."""
        return {"webhook_url": self.url, "webhook_secret": SECRET, "webhook_retry_s": 0.1}

    @property
    def ids(self) -> list[str]:
        """Return the ids of the events that were accepted."""
        return [event.get("id", head["webhook-id"]) for head, event in zip(self.heads, self.got, strict=True)]

    def heads_of(self, buyer: str) -> list[tuple[Mapping[str, str], dict[str, Any]]]:
        """Return the headers of a buyer's events, and these."""
        return [
            (head, event) for head, event in zip(self.heads, self.got, strict=True) if event["data"]["buyer"] == buyer
        ]

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str]]:
        """See `Listener`."""
        try:
            found: Any = self._verifier.verify(body, dict(headers))
        except standardwebhooks.WebhookVerificationError:
            return 500, {}
        events = found["events"] if found["type"] == "batch" else [found]
        self.tried += [(time.time(), event) for event in events]
        self.sizes.append(len(events))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for event in events:
                if (answer := await self.decide(event)) is not None:
                    return answer.status_code, answer.headers
        finally:
            self.now -= 1
        self.got += events
        self.heads += [headers] * len(events)
        self.batches += [len(events)] if found is not events[0] else []
        return 200, {}

    async def listen(self) -> None:
        """Listen, again after a close."""
        await self.open(["127.0.0.1"], self.port)

    def of(self, order: OrderId | str) -> list[tuple[int, str]]:
        """Return the numbers and types of an order's events in the order in which they were accepted first."""
        found = [(one["data"]["number"], one["type"]) for one in self.got if one["data"]["order"] == str(order)]
        return list(dict.fromkeys(found))

    def by_order(self) -> dict[str, list[int]]:
        """Return the numbers of each order's events, as they were accepted, repetitions left out."""
        found: defaultdict[str, dict[int, None]] = defaultdict(dict)
        for one in self.got:
            found[one["data"]["order"]][one["data"]["number"]] = None
        return {order: list(numbers) for order, numbers in found.items()}


@asynccontextmanager
async def receiver(secret: str = SECRET) -> AsyncIterator[Receiver]:
    """Run a receiver."""
    one = Receiver(secret)
    await one.listen()
    try:
        yield one
    finally:
        await one.close()
