"""How far the events of an item have left to a receiver, as its sender has noted it in the store."""

import json
from dataclasses import dataclass, replace
from typing import Final, Self

from app.errors import FenceRefused, ForeignFence
from app.orders import to_json
from app.stock import refusals
from app.stock.batch import Fence

DEFAULT_RECEIVER: Final = "default"  # the receiver of events whose URL has no name


@dataclass(frozen=True, slots=True)
class Outbox:
    """How far the events of an item have left to a receiver: see `app.outbox`.

    `sale`: the item's sale; `text`: the sender's own note, or ""; `wish`: an operator's request to the sender, or "";
    `number`: of the note, which grows.
    """

    sale: str
    text: str = ""
    wish: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Slip:
    """A receiver's note with the token of its sender, as the store keeps it: JSON, "" for none."""

    sale: str = ""
    text: str = ""
    wish: str = ""
    number: int = 0
    source: str | None = None
    token: int = 0

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read a note. Raises `ValueError` or `TypeError` for anything else."""
        return cls(**json.loads(text)) if text else cls()

    def to_text(self) -> str:
        """Write it."""
        return to_json({name: getattr(self, name) for name in self.__slots__})

    def current(self, sale: int) -> Self:
        """The note, if it is about the current sale; of an earlier sale's note only the sender and the wish."""
        own = str(sale or "")
        return self if self.sale == own else replace(self, sale=own, text="", number=0)

    def of_sale(self, sale: int) -> Outbox:
        """The note for a sender."""
        now = self.current(sale)
        return Outbox(now.sale, now.text, now.wish, now.number)

    def saved(self, sku: str, fence: Fence, outbox: Outbox) -> Self | None:
        """The note with the sender's new text; None if a later one of the same grant is here.

        Raises `FenceRefused` if a later sender has been here.
        """
        if self.source is not None and self.source != fence.source:
            raise ForeignFence(refusals.foreign(sku, Fence(self.token, self.source), fence))
        if self.source is not None and self.token > fence.token:
            raise FenceRefused(refusals.superseded(sku, self.token, fence))
        if (self.token, self.sale) == (fence.token, outbox.sale) and self.number > outbox.number:
            return None  # the note was sent before the one that is here
        wish = "" if self.wish == outbox.wish else self.wish
        own = (outbox.sale, outbox.text, wish, outbox.number, fence.source, fence.token)
        return type(self)(*own)

    def wishing(self, wish: str) -> Self:
        """The note with an operator's wish."""
        return replace(self, wish=wish)

    @property
    def unfenced(self) -> Self:
        """The note without its sender's token."""
        return replace(self, source=None, token=0)
