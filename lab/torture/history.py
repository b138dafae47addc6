"""The events of a run, as one JSON object a line, so that it can be judged again, by us or by others.

All moments are in seconds since the run began. `kind` says what a line is: the setup first, then calls, looks,
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
class Flow:
    """An item whose units are held and then paid, and for how long; `price` of a unit, in minor units of a currency.

    `basket`: whether it may be in one order with the others of which that is so; `group`: the units that a buyer may
    have of all items that have this number, 0 for any.
    """

    item: Item
    hold_s: float
    pay_s: float
    grace_s: float
    price: int
    basket: bool = False
    group: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of the run.

    `recovery_s`: the time that a fault may take to be over; `promises`: the ones that the lock declares, see
    `fencelock.backend.Guarantees`; `known`: faults after which this version of the lock's server itself is known to
    give a lock to two; `bug`: the safeguard that was switched off on purpose; `drops`: items of which new sales begin
    all the time.
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
    flows: tuple[Flow, ...] = ()
    drops: tuple[Item, ...] = ()


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
class HttpCall:
    """A request of a buyer, a payer or the shop, and its answer. `status` is 0 when no answer came: `error` says why.

    `verb`: buy, hold, look, confirm, extend, cancel or refund; `wish`: the buyer's visit, the same for all requests
    for one order: the shop's own number of a hold, a purchase's key, or the buyer of one without a key; `order`: the
    order that the request is about; `told`: the order in the answer; `refund`: the payment to give back; `shown`: all
    that the answer shows of the order; `wait`: whether a hold gets in line; `outcome`: that of a look is the order's
    state. `items`: all lines of a basket, which stands at `sku`; `line` and `units`: the part that is cancelled or
    refunded; `refused`: the line of a basket that could not be had.
    """

    verb: str
    wish: str
    sku: str
    buyer: str
    quantity: int
    instance: str
    sent_at: float
    done_at: float
    status: int
    key: str | None = None
    order: str | None = None
    payment: str | None = None
    amount: int | None = None
    restock: bool | None = None
    wait: bool = False
    items: dict[str, int] = field(default_factory=dict)
    line: str | None = None
    units: int | None = None
    outcome: str | None = None
    told: str | None = None
    refund: str | None = None
    refused: str | None = None
    replayed: bool = False
    retry_after: str | None = None
    error: str | None = None
    shown: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that an instance has sent, and how it was answered: `status` 0 if the connection was cut instead.

    `id`: the webhook's; `event`, `order`, `number` and what follows are what it says; `body`: its digest; `wrong`: why
    it was not believed; `facts`: all that it says of what happened; `happened_at`: when, in seconds since 1970.
    """

    instance: str
    at: float
    done_at: float
    status: int
    id: str
    event: str = ""
    order: str = ""
    number: int = 0
    quantity: int = 0
    buyer: str | None = None
    payment: str | None = None
    body: str = ""
    wrong: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    happened_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """A reader's view of an item in the store: asked for at `asked_at`, answered at `at`.

    `due_in_s`: when the first hold is over; below 0: since when it is.
    """

    asked_at: float
    at: float
    sku: str
    stock: int
    held: int
    lucky: int
    due_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class UnitsAdded:
    """An operator has added units, at some moment between the request and when that was known."""

    asked_at: float
    done_at: float
    added: int
    sku: str = "default"


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator has closed an item: asked for at `asked_at`, told so at `done_at` (None: not), until `until`.

    At `until` they asked to open it again, and were told so at `resumed_at`. `how`: the outcome that buyers have then:
    paused, or, where its hours were changed, ended or not_started. `from_1970`: to be added to each of these moments
    for one of a server's clock.
    """

    sku: str
    asked_at: float
    done_at: float | None
    until: float
    resumed_at: float
    how: str = "paused"
    from_1970: float = 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """An operator has set the price of a unit: asked for at `asked_at`, told so at `done_at`."""

    sku: str
    asked_at: float
    done_at: float
    price: int


@dataclass(frozen=True, slots=True)
class NewSale:
    """An operator has begun a new sale of so many units, or removed the item (None): asked for, and told that it is so.

    Both may have happened several times in between, if an answer was lost.
    """

    sku: str
    asked_at: float
    done_at: float
    units: int | None


@dataclass(frozen=True, slots=True)
class Belief:
    """From `since` until `until` an instance believed that it held a lock: from the grant to its release.

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
class StoreCall:
    """A request of an instance to the store about one item, and its answer; `done_at` is None if there was none.

    `verb`: prepare, commit, set, add, sale or unfence; `stock`: what a commit expects, or an operator sets or adds;
    `said`: the units left, or how many orders were written, or "refused".
    """

    instance: str
    verb: str
    sku: str
    token: int
    source: str
    batch: str
    stock: int | None
    sent_at: float
    done_at: float | None
    said: int | str | None = None


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
class Late:
    """The run's own loop woke late: the processor was elsewhere, and the instances may have stood still, too."""

    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What an instance tells of an item in the end: its `level` to anybody, its `sums` to operators."""

    instance: str
    sku: str
    level: dict[str, Any]
    sums: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LastStand:
    """The last stand: what is `gone` for good; `done`: when the others did each thing first, None: never."""

    gone: str
    began_at: float
    ended_at: float
    done: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the journal of an item; the units are what it adds to those left, held and sold.

    `at`: when it was written, in seconds since 1970, by the store's clock; `epoch`: that of its token: an operator who
    unfences the item begins the next one.
    """

    sku: str
    entry: str
    kind: str
    order: str
    number: int
    quantity: int
    buyer: str | None
    key: str | None
    token: int
    batch: str
    epoch: int
    stock: int
    held: int
    lucky: int
    facts: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """How an order stands, as the store has it.

    `events`: how many it has had, by its record; `shown`: all that its buyer is shown of it.
    """

    order: str
    events: int
    shown: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cents:
    """The books of a provider in the end, after so many payments, and requests for refunds.

    `of_buyers`: whose money is not what should be left of it; `wrong`: what the books, the orders and the events say
    otherwise than each other.
    """

    payments: int
    asked: int
    of_buyers: list[str]
    wrong: list[str]


@dataclass(frozen=True, slots=True)
class Left:
    """The rest of an item at the end."""

    sku: str
    stock: int
    held: int
    lucky: int
    initial: int | None


@dataclass(frozen=True, slots=True)
class FinalState:
    """The state at the end: what is left of the items, and what was left behind on the lock's servers.

    `unreadable`: why items can't be read, or changed; `journal` and `kept`: their events and orders, in the order in
    which they were written.
    """

    left: tuple[Left, ...] = ()
    queue: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    journal: tuple[Entry, ...] = ()
    kept: tuple[Kept, ...] = ()


@dataclass(slots=True)
class History:
    """A whole run. `attempts`: the calls for items that are sold at once; `calls`: those of the flow.

    `bids`, `seen`, `announced`: the calls for drops, the looks, the deliveries about them.
    """

    setup: Setup
    attempts: list[HttpCall] = field(default_factory=list)
    bids: list[HttpCall] = field(default_factory=list)
    seen: list[Look] = field(default_factory=list)
    thefts: list[Theft] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    restocks: list[UnitsAdded] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    prices: list[Price] = field(default_factory=list)
    sales: list[NewSale] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    asked: list[StoreCall] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    calls: list[HttpCall] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    announced: list[Delivery] = field(default_factory=list)
    stands: list[LastStand] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    lates: list[Late] = field(default_factory=list)
    cents: list[Cents] = field(default_factory=list)
    end: FinalState | None = None

    @property
    def drops(self) -> set[str]:
        """The items of which new sales begin all the time."""
        return {item.sku for item in self.setup.drops}

    def add(self, event: "Event") -> None:
        """Add an event."""
        drops = self.drops
        if isinstance(event, FinalState):
            self.end = event
        elif isinstance(event, HttpCall) and event.sku in drops:
            self.bids.append(event)
        elif isinstance(event, HttpCall) and event.sku in {item.sku for item in self.setup.items}:
            self.attempts.append(event)
        elif isinstance(event, Look) and event.sku in drops:
            self.seen.append(event)
        elif isinstance(event, Delivery) and event.order.partition("~")[0] in drops:
            self.announced.append(event)
        else:
            getattr(self, _LISTS[type(event)]).append(event)


Event = (
    Theft
    | Look
    | UnitsAdded
    | Pause
    | Price
    | NewSale
    | Belief
    | StoreCall
    | Fault
    | Count
    | HttpCall
    | Delivery
    | LastStand
    | Late
    | Reading
    | Cents
    | FinalState
)

_LISTS: Final[dict[type[Any], str]] = {
    Theft: "thefts",
    Look: "looks",
    UnitsAdded: "restocks",
    Pause: "pauses",
    Price: "prices",
    NewSale: "sales",
    Belief: "beliefs",
    StoreCall: "asked",
    Fault: "faults",
    Count: "counts",
    HttpCall: "calls",
    Delivery: "deliveries",
    LastStand: "stands",
    Late: "lates",
    Cents: "cents",
    Reading: "readings",
}
_KINDS: dict[str, type[Any]] = {
    "setup": Setup,
    "theft": Theft,
    "look": Look,
    "restock": UnitsAdded,
    "pause": Pause,
    "price": Price,
    "sale": NewSale,
    "belief": Belief,
    "asked": StoreCall,
    "fault": Fault,
    "count": Count,
    "call": HttpCall,
    "delivery": Delivery,
    "stand": LastStand,
    "late": Late,
    "cents": Cents,
    "reading": Reading,
    "end": FinalState,
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
            flows = tuple(Flow(Item(**flow.pop("item")), **flow) for flow in fields.get("flows", ()))
            drops = tuple(Item(**item) for item in fields.get("drops", ()))
            history = History(Setup(**fields | lists | {"items": items, "flows": flows, "drops": drops}))
            continue
        if kind == "end":
            fields["left"] = tuple(Left(**left) for left in fields["left"])
            fields |= {name: tuple(fields[name]) for name in ("queue", "leases", "unreadable")}
            fields["journal"] = tuple(Entry(**entry) for entry in fields["journal"])
            fields["kept"] = tuple(Kept(**kept) for kept in fields["kept"])
        history.add(_KINDS[kind](**fields))
    if history is None:
        raise ValueError("an empty history")
    return history
