"""An item's journal, as far as a sender has read it, and the events of its orders that wait."""

import logging
from collections import deque
from dataclasses import dataclass, field

from app.journals import rank
from app.orders import Event
from app.outbox.state import DeliveryState, Parked, Place
from app.stock import Outbox

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Slot:
    """An entry that was read. `done`: delivered, or parked."""

    entry: str
    at: float
    done: bool = False


@dataclass(slots=True)
class Pending:
    """An event that waits. `slot`: in the window, None if it was read again as its order was parked."""

    event: Event
    place: Place
    slot: Slot | None


@dataclass(slots=True)
class Chain:
    """The events of an order that wait, oldest first."""

    feed: "Feed"
    order: str
    waiting: deque[Pending] = field(default_factory=deque)
    parked: Parked | None = None  # the order was refused before
    waits: int = 0  # how often the receiver was too busy for its events


@dataclass(slots=True)
class Feed:
    """An item's journal, as far as it was read."""

    sku: str
    outbox: Outbox
    state: DeliveryState
    read_to: str
    last: str = ""  # its end, as far as we know
    window: deque[Slot] = field(default_factory=deque)
    chains: dict[str, Chain] = field(default_factory=dict)
    dirty: bool = False
    waiting: int = 0  # events, estimated
    rung: str | None = None  # the operators' bell as their wishes for this item were looked at; None: not yet
    claimed: bool = False  # the store has taken a note of ours, so its events are this sender's to send

    @classmethod
    def of(cls, sku: str, outbox: Outbox, kinds: frozenset[str] | None = None) -> "Feed":
        """The feed of an item, from where the sender has come. `kinds`: the kinds of events to send; None: all."""
        try:
            state = DeliveryState.from_text(outbox.text)
        except (ValueError, KeyError, TypeError):
            _log.error("what the sender has noted of %s is not ours; its events are sent from the first one", sku)
            state = DeliveryState()
        state.kinds = kinds
        return cls(sku, outbox, state, state.cursor)

    def take(self, event: Event) -> Chain | None:
        """Take an event that was read; return its order's chain, if that has begun."""
        order, place = event.order.number, Place(self.read_to, event.entry)
        slot = Slot(event.entry, event.at, done=not self.state.wants(event))
        self.read_to = event.entry
        self.window.append(slot)
        if slot.done:
            self.advance()
            return None
        chain, parked = self.chains.get(order), self.state.parked.get(order)
        if parked is not None or any(dead.entry == event.entry for dead in self.state.dead):
            # The event waits behind the refused one, unless an earlier sender has read it.
            known = parked.places[-1].entry if parked is not None and parked.places else ""
            if parked is not None and rank(event.entry) > rank(known):
                parked.places.append(place)
            slot.done = True
            self.advance()
        elif chain is not None:
            chain.waiting.append(Pending(event, place, slot))
        else:
            chain = self.chains[order] = Chain(self, order, deque([Pending(event, place, slot)]))
            return chain
        return None

    def advance(self) -> None:
        """Move the cursor behind all that is done."""
        while self.window and self.window[0].done:
            self.state.cursor = self.window.popleft().entry
            self.state.count += 1
            self.waiting = max(0, self.waiting - 1)
        self.dirty = True
