"""A sender's progress through an item's journal, as text in the store."""

import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from app.errors import StockError
from app.journals import rank
from app.orders import Event
from app.stock import DEFAULT_RECEIVER, StockStore

_BELL: Final = "wish/"  # on the board, before a receiver's name
_DEAD_MAX: Final = 1000  # dead letters of an item; earlier ones can be sent again by `replay --since`


class Place(NamedTuple):
    """A place in the journal: the entry, and the one before it, behind which it can be read again ("": none)."""

    after: str
    entry: str


@dataclass(slots=True)
class Parked:
    """An order whose event the receiver refuses while others get through. Times are in seconds since 1970."""

    order: str
    places: list[Place]  # the entries of the events that wait, the refused one first
    at: float  # when that one happened
    tries: int
    since: float  # when it was refused first
    due: float  # when it is tried again
    why: str
    again: bool = False  # the order got another chance after the receiver had been away
    wait_s: float = 0.0  # the pause between its last refusal and `due`

    def is_due(self, now: float) -> bool:
        """Return whether it is due: its time has come, or was set by a clock that was ahead."""
        return not now < self.due <= now + self.wait_s


class Dead(NamedTuple):
    """An event that is tried no more. `at`: when it was given up."""

    order: str
    after: str
    entry: str
    at: float
    why: str


@dataclass(slots=True)
class DeliveryState:
    """A receiver's progress in an item: events up to the cursor were delivered, or are parked or dead."""

    cursor: str = ""  # an entry; "": none yet
    count: int = 0  # the number of entries up to it
    parked: dict[str, Parked] = field(default_factory=dict)
    dead: list[Dead] = field(default_factory=list)
    kinds: frozenset[str] | None = None  # of the events that the receiver wants; None: all. Others count as delivered

    def wants(self, event: Event) -> bool:
        """Return whether the receiver wants an event."""
        return (self.kinds is None or event.kind in self.kinds) and not event.is_of_line

    def give_up(self, parked: Parked, now: float) -> None:
        """Make a dead letter of an order's first event; the events behind it are tried from now on."""
        place = parked.places.pop(0)
        self.dead = [*self.dead, Dead(parked.order, *place, now, parked.why)][-_DEAD_MAX:]
        parked.tries, parked.since, parked.due, parked.again = 0, now, now, False
        if not parked.places:
            del self.parked[parked.order]

    def revive(self, now: float, orders: Collection[str] | None = None) -> None:
        """Try dead letters again, of some orders or all, each before the later events of its order."""
        for dead in (one for one in self.dead if orders is None or one.order in orders):
            parked = self.parked.get(dead.order)
            if parked is None:
                parked = self.parked[dead.order] = Parked(dead.order, [], now, 0, now, now, dead.why)
            parked.places = sorted({*parked.places, Place(dead.after, dead.entry)}, key=lambda place: rank(place.entry))
            parked.tries, parked.since, parked.due, parked.again = 0, now, now, False
        self.dead = [] if orders is None else [one for one in self.dead if one.order not in orders]

    def try_now(self, now: float, orders: Collection[str] | None = None) -> None:
        """Try parked orders now, some or all, however long they were to wait."""
        for parked in (one for one in self.parked.values() if orders is None or one.order in orders):
            parked.due = now

    def go_back(self, entry: str) -> None:
        """Begin again behind an entry; parked and dead events there will be read anew."""
        here = rank(entry)
        self.cursor = entry
        for parked in list(self.parked.values()):
            parked.places = [place for place in parked.places if rank(place.entry) <= here]
            if not parked.places:
                del self.parked[parked.order]
        self.dead = [dead for dead in self.dead if rank(dead.entry) <= here]

    def to_text(self) -> str:
        """The state as the store keeps it."""
        own: dict[str, Any] = {"cursor": self.cursor, "count": self.count, "dead": self.dead}
        if self.kinds is not None:
            own["kinds"] = sorted(self.kinds)
        return json.dumps({**own, "parked": [asdict(one) for one in self.parked.values()]}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "DeliveryState":
        """Parse the text of `to_text`. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        if not text:
            return cls()
        found: dict[str, Any] = json.loads(text)
        rank(found["cursor"])
        parked = [Parked(**{**one, "places": [Place(*place) for place in one["places"]]}) for one in found["parked"]]
        dead = [Dead(*one) for one in found["dead"]]
        kinds = frozenset(found["kinds"]) if "kinds" in found else None
        return cls(found["cursor"], found["count"], {one.order: one for one in parked}, dead, kinds)


class Wish(NamedTuple):
    """An operator's wish: that the sender begins again behind the entry `since`, or tries the dead letters.

    `at`: that it begins with the first event of this moment or later, in seconds since 1970. With any wish the parked
    orders are tried at once. `orders`: of what is dead only these, by their numbers, and without a place to begin again
    also of what is parked.
    """

    since: str | None = None
    dead: bool = False
    at: float | None = None
    orders: list[str] | None = None

    async def ask(self, store: StockStore, sku: str, receiver: str = DEFAULT_RECEIVER) -> None:
        """Add a request to a receiver's sender to the requests that it has not yet seen."""
        while not isinstance(found := (await store.outbox([sku], receiver))[sku], StockError):
            if await store.ask_sender(sku, self._with(found.wish).to_text(), receiver, instead_of=found.wish):
                await store.notices({_BELL + receiver: secrets.token_hex(8)})
                return
        raise found

    @staticmethod
    def rung(board: Mapping[str, str], receiver: str) -> str:
        """The text on the board that changes when a receiver's sender gets a request; "": there was none."""
        return board.get(_BELL + receiver, "")

    def _with(self, text: str) -> "Wish":
        try:
            other = Wish.from_text(text) if text else self
            since = min((one for one in (self.since, other.since) if one is not None), key=rank, default=None)
            at = min((one for one in (self.at, other.at) if one is not None), default=None)
            all_dead = any(one.dead and one.orders is None for one in (self, other))
            orders = None if all_dead else sorted({*(self.orders or ()), *(other.orders or ())}) or None
            return Wish(since, self.dead or other.dead, at, orders)
        except (ValueError, TypeError):  # one that can't be granted
            return self

    def to_text(self) -> str:
        """The wish as the store keeps it."""
        return json.dumps({name: value for name, value in self._asdict().items() if value is not None})

    @classmethod
    def from_text(cls, text: str) -> "Wish":
        """Parse the text of `to_text`."""
        return cls(**json.loads(text))
