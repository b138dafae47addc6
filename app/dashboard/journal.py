"""The recent history of this instance, for people who watch: its last grants, and unusual events."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from app.telemetry.observer import Observer

_GRANTS: Final = 2_000
_EVENTS: Final = 40
_WITHIN_S: Final = 1.0  # within this time a repeated event is the same one


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A grant of a lock."""

    lock: str
    token: int
    at: float  # when it was acquired, in seconds since 1970
    waited_s: float
    held_s: float | None = None  # None while it is held
    purchases: int = 0  # decided under it
    units: int = 0  # sold under it


@dataclass(slots=True)
class Unusual:
    """Something unusual. `number` grows; `times`: the number of repetitions around `at` (seconds since 1970)."""

    number: int
    at: float
    kind: str
    facts: dict[str, str | int | float]
    times: int = 1


class Journal(Observer):
    """Remembers the last grants and events; nothing about single buyers."""

    def __init__(self) -> None:
        self.grants: deque[GrantRecord] = deque(maxlen=_GRANTS)  # those that are over
        self.events: deque[Unusual] = deque(maxlen=_EVENTS)
        self.units = self.served = 0  # sold, and buyers who had an answer, since the start
        self._held: dict[str, GrantRecord] = {}
        self._noted = 0

    @property
    def held(self) -> list[GrantRecord]:
        """The grants that this instance holds now."""
        return list(self._held.values())

    def grants_since(self, at: float, *, least: int) -> list[GrantRecord]:
        """The grants that ended no earlier than `at`, in seconds since 1970, but at least `least` of them."""
        found: list[GrantRecord] = []
        for one in reversed(self.grants):
            if len(found) >= least and one.at + (one.held_s or 0.0) < at:
                break
            found.append(one)
        return found[::-1]

    def note(self, kind: str, *, at: float | None = None, **facts: str | int | float) -> None:
        """Remember an event; a repeat within a second is only counted. `at`: when it was, if not now."""
        now = time.time() if at is None else at
        last = self.events[-1] if self.events else None
        if last is not None and (last.kind, last.facts) == (kind, facts) and now - last.at < _WITHIN_S:
            last.times += 1
            return
        self._noted += 1
        self.events.append(Unusual(self._noted, now, kind, facts))

    @override
    def granted(self, lock: str, token: int, waited_s: float) -> None:
        self._held[lock] = GrantRecord(lock, token, time.time(), waited_s)

    @override
    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        self.units += units
        self.served += purchases
        record = self._held.get(lock)
        if record is not None and record.token == token:
            del self._held[lock]
            self.grants.append(GrantRecord(lock, token, record.at, record.waited_s, held_s, purchases, units))

    @override
    def fenced(self, lock: str, sku: str) -> None:
        self.note("fenced", sku=sku, token=self._held[lock].token if lock in self._held else 0)

    @override
    def lost(self, lock: str) -> None:
        last = next((one for one in reversed(self.grants) if one.lock == lock), None)
        self.note("lost", lock=lock, token=last.token if last else 0)

    @override
    def resolved(self, result: str) -> None:
        self.note("resolved", result=result)
