"""The picture of a sale, composed of the reports of all instances."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from app.dashboard.journal import GrantRecord, Unusual
from app.stock import Level
from fencelock import Contender, Guarantees

SILENT_S: Final = 3.0  # an instance that was silent for longer is presumed dead
_GRANTS: Final = 300
_EVENTS: Final = 60
_SAME_S: Final = 3.0  # two instances in use see the same event


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """The report of an instance about itself.

    Counts are those since its start.
    """

    instance: str
    number: int  # grows with each report
    units: int  # sold
    waiting: int  # buyers
    mode: str
    held: list[GrantRecord]  # the grants that it has
    grants: list[GrantRecord]  # the latest grants that it had
    events: list[Unusual]
    pausing: bool  # its next write will be delayed
    paused_s: float  # for how many seconds more its write is delayed
    lacks: list[str] = field(default_factory=list)  # dependencies that are not available, as `/readyz` names them
    port: int = 0  # where it listens; 0: not known
    rehearsal: bool = False  # whether it obeys commands
    served: int = 0  # buyers answered


@dataclass(frozen=True, slots=True)
class InstanceState:
    """A report, and how many seconds ago it came."""

    report: InstanceReport
    silent_s: float

    @property
    def silent(self) -> bool:
        """True if the instance is presumed dead."""
        return self.silent_s > SILENT_S


@dataclass(frozen=True, slots=True)
class PastGrant:
    """A grant that is over.

    `handed_over_s`: seconds from the end of the grant before, or from the request, to its own beginning, by the
    instances' clocks; None if the grant before is not known, or was overtaken.
    """

    instance: str
    grant: GrantRecord
    handed_over_s: float | None


@dataclass(frozen=True, slots=True)
class InstanceEvent:
    """An event, and the instance where it happened."""

    instance: str
    event: Unusual


@dataclass(frozen=True, slots=True)
class Picture:
    """The sale of an item at a moment, as one instance sees it, newest first."""

    at: float  # in seconds since 1970
    instance: str
    sku: str
    lock: str
    lock_system: str
    lock_guarantees: Guarantees
    rehearsal: bool  # whether an operator can send buyers, and pause the holder
    guarded: bool  # whether the store refuses the write of a holder that was overtaken
    lease_ttl_s: float
    level: Level | None  # None: see `missing` and `store_error`
    missing: bool  # the store has no such item
    store_error: str | None  # why the store doesn't answer
    queue: list[Contender]
    lock_error: str | None  # why the lock system doesn't answer
    instances: list[InstanceState]
    grants: list[PastGrant]
    events: list[InstanceEvent]


def past_grants(instances: Iterable[InstanceState], lock: str, *, most: int | None = _GRANTS) -> list[PastGrant]:
    """The last grants of a lock, of all instances, the newest first; no more than `most` of them."""
    every = sorted(
        ((state.report.instance, grant) for state in instances for grant in state.report.grants if grant.lock == lock),
        key=lambda one: one[1].at,
    )
    found = []
    for place, (instance, grant) in enumerate(every):
        handed_over_s = None
        if place and (before := every[place - 1][1]).held_s is not None:
            free_since = max(before.at + before.held_s, grant.at - grant.waited_s)
            handed_over_s = grant.at - free_since if free_since <= grant.at else None
        found.append(PastGrant(instance, grant, handed_over_s))
    return found[::-1][:most]


def last_events(instances: Iterable[InstanceState]) -> list[InstanceEvent]:
    """The last events of all instances, the newest first."""
    every = [InstanceEvent(state.report.instance, event) for state in instances for event in state.report.events]
    found: list[InstanceEvent] = []
    told: dict[str, float] = {}  # events about other instances, and when they were
    for one in sorted(every, key=lambda one: one.event.at):
        if "of" in one.event.facts:
            what = f"{one.event.kind} {one.event.facts['of']} {one.event.facts.get('token')}"
            if what in told and ("token" in one.event.facts or one.event.at - told[what] < _SAME_S):
                continue
            told[what] = one.event.at
        found.append(one)
    return found[: -_EVENTS - 1 : -1]


@dataclass(frozen=True, slots=True)
class Sample:
    """Units left, held and sold at a moment (`at`, in seconds since 1970), and the buyers served by each instance."""

    at: float
    stock: int
    lucky: int
    served: dict[str, int]
    held: int = 0


@dataclass(frozen=True, slots=True)
class ItemHistory:
    """The last two minutes of an item, as one instance knows them, the oldest first."""

    samples: list[Sample]
    grants: list[PastGrant]
