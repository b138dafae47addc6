"""An event as the shop gets it, pushed or pulled: a name, which is the same each time, and a body."""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from pydantic_core import to_json

from app.orders import Event, OrderId
from app.orders.view import of_event

_DIGITS: Final = 32


class Message(NamedTuple):
    """A message. `traceparent`: of the request that began its order; "": not known."""

    id: str
    body: bytes
    traceparent: str = ""

    @classmethod
    def of(cls, event: Event, ref: str | None) -> Self:
        """The message of an event. `ref`: the shop's own number of its order."""
        name = OrderId(event.sku, event.entry).name
        return cls(name, to_json(of_event(event, ref)), event.facts.get("traceparent") or "")

    @classmethod
    def batch(cls, messages: Sequence["Message"]) -> Self:
        """Several messages in one, in this order. Its id is made of exactly these events."""
        ids = "\n".join(one.id for one in messages)
        name = f"batch~{hashlib.sha256(ids.encode()).hexdigest()[:_DIGITS]}"
        return cls(name, b'{"type":"batch","events":[' + b",".join(one.named for one in messages) + b"]}")

    @property
    def named(self) -> bytes:
        """The body with the id in it, for a batch."""
        return b'{"id":' + to_json(self.id) + b"," + self.body[1:]
