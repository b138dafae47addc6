"""The events of a run, as one JSON object a line, so that it can be judged again, by us or by others.

All moments are in seconds since the run began. `kind` says what a line is: the setup first, then attempts, looks,
counts and faults as they happened, the end last.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

UNKNOWN: Final = "urn:seckill:outcome-unknown"


@dataclass(frozen=True, slots=True)
class Item:
    """An item on sale. `initial`: units at the start; `limit`: units that a buyer may have, 0 for any number."""

    sku: str
    initial: int
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of the run.

    `recovery_s`: the time that a fault may take to be over; `promises`: those that the lock declares, see
    `fencelock.backend.Guarantees`; `known`: faults after which this version of the lock's server itself is known to
    give a lock to two; `bug`: the safeguard that was switched off on purpose.
    """

    items: tuple[Item, ...]
    instances: int
    ttl_s: float
    recovery_s: float
    lock: str
    store: str
    guard: str
    seed: int
    nemeses: tuple[str, ...]
    promises: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    bug: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request of a buyer and its answer. `status` is 0 when no answer came: `error` says why.

    `wish`: the same for all attempts at one purchase; `key`: its idempotency key, if it has one; `granted`: the
    quantity in the answer.
    """

    wish: str
    key: str | None
    sku: str
    buyer: str
    quantity: int
    instance: str
    sent_at: float
    done_at: float
    status: int
    outcome: str | None = None
    granted: int | None = None
    order: str | None = None
    replayed: bool = False
    retry_after: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Theft:
    """A request with the key of another buyer's order, for the same quantity, and its answer. `status`: 0 for none."""

    key: str
    sku: str
    instance: str
    at: float
    status: int
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """A reader's view of an item in the store: asked for at `asked_at`, answered at `at`."""

    asked_at: float
    at: float
    stock: int
    lucky: int
    sku: str = "default"


@dataclass(frozen=True, slots=True)
class Restock:
    """An operator has added units. `sure`: whether that was confirmed; else it may have happened at any time since."""

    asked_at: float
    done_at: float
    added: int
    sku: str = "default"
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Belief:
    """From `since` until `until` an instance took itself for the owner of a lock: from the grant to its release.

    `lost`: it had found out by the release that its lease was over, at `until`. `ended`: whether it came to a release;
    otherwise `until` is the grant's moment: the instance was killed, nobody knows when the belief ended. `waited_s`:
    for the grant.
    """

    instance: str
    lock: str
    token: int
    since: float
    until: float
    lost: bool = False
    ended: bool = True
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Count:
    """An instance has counted something, `count` times between `since` and `at`: writes that were fenced off, ..."""

    since: float
    at: float
    instance: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. From `free_from` on the sale could go on: the shared parts were never gone, or were back.

    `struck`: whether there was a target; `target` names it, or says why there was none. `hit_at`: when it was broken.
    """

    name: str
    target: str
    struck: bool
    began_at: float
    ended_at: float
    free_from: float
    watched_until: float
    hit_at: float = 0.0


@dataclass(frozen=True, slots=True)
class SoldOrder:
    """An order as it is in the store, in the order in which they were written (of one item).

    `epoch`: that of its token; an operator who unfences the item begins the next one.
    """

    id: str
    quantity: int
    buyer: str | None
    key: str | None
    instance: str
    token: int
    batch: str
    sku: str = "default"
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """The rest of an item at the end."""

    stock: int
    lucky: int
    initial: int | None
    sku: str = "default"


@dataclass(frozen=True, slots=True)
class End:
    """The state at the end: the stock, the orders, and what was left behind on the lock's servers.

    `unreadable`: the store's errors for items that it could not read.
    """

    left: tuple[Left, ...]
    orders: tuple[SoldOrder, ...]
    queue: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(slots=True)
class History:
    """A whole run."""

    setup: Setup
    attempts: list[Attempt] = field(default_factory=list)
    thefts: list[Theft] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    restocks: list[Restock] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    end: End | None = None

    def add(self, event: "Event") -> None:
        """Add an event."""
        match event:
            case Attempt():
                self.attempts.append(event)
            case Theft():
                self.thefts.append(event)
            case Look():
                self.looks.append(event)
            case Restock():
                self.restocks.append(event)
            case Belief():
                self.beliefs.append(event)
            case Fault():
                self.faults.append(event)
            case Count():
                self.counts.append(event)
            case End():
                self.end = event


Event = Attempt | Theft | Look | Restock | Belief | Fault | Count | End

_KINDS: dict[str, type[Any]] = {
    "setup": Setup,
    "attempt": Attempt,
    "theft": Theft,
    "look": Look,
    "restock": Restock,
    "belief": Belief,
    "fault": Fault,
    "count": Count,
    "end": End,
}


class Recorder:
    """Writes a history while it happens, so that everything seen before a crash of ours is on disk."""

    def __init__(self, history: History, file: TextIO) -> None:
        self.history = history
        self._file = file
        self._write(history.setup)

    def note(self, event: Event) -> None:
        """Add an event, and write its line."""
        self.history.add(event)
        self._write(event)

    def _write(self, event: Any) -> None:
        kind = next(name for name, known in _KINDS.items() if isinstance(event, known))
        self._file.write(json.dumps({"kind": kind} | asdict(event), separators=(",", ":")) + "\n")


def load(path: Path) -> History:
    """Load a history that was written to a file. Raises `ValueError` for a file that is none."""
    with path.open() as file:
        return parse(file)


def parse(lines: Iterable[str]) -> History:
    """Parse a history from its lines."""
    history: History | None = None
    for line in lines:
        fields = json.loads(line)
        kind = fields.pop("kind", None)
        if kind not in _KINDS or (history is None) != (kind == "setup"):
            raise ValueError(f"not a line of a history: {line[:100]!r}")
        if history is None:
            lists = {name: tuple(fields[name]) for name in ("nemeses", "promises", "known")}
            items = tuple(Item(**item) for item in fields["items"])
            history = History(Setup(**fields | lists | {"items": items}))
            continue
        if kind == "end":
            fields["left"] = tuple(Left(**left) for left in fields["left"])
            fields["orders"] = tuple(SoldOrder(**order) for order in fields["orders"])
            fields |= {name: tuple(fields[name]) for name in ("queue", "leases", "unreadable")}
        history.add(_KINDS[kind](**fields))
    if history is None:
        raise ValueError("an empty history")
    return history
