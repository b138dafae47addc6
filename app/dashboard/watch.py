"""Notices events that no instance can report of itself: it was overtaken, is silent, or can't be reached."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from app.dashboard.journal import Journal
from app.dashboard.picture import InstanceState, PastGrant
from fencelock import Contender

_MISTAKEN_S: Final = 1.5  # reports are up to a second old: a belief that lasts longer is mistaken
_KEPT: Final = 100
_Key = TypeVar("_Key")


def _keep_the_last(known: "dict[_Key, Any]") -> None:
    while len(known) > _KEPT:
        del known[next(iter(known))]


class DashboardWatch:
    """Compares the state with the one before, and notes the changes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._doubted: dict[tuple[str, int], float] = {}  # instances with a wrong belief, and since when
        self._told: dict[tuple[str, str, int], None] = {}
        self._ends: dict[int, float] = {}  # by token, when its lease would have run out, by the last look
        self._silent: set[str] = set()
        self._present: set[str] = set()
        self._away: set[str] = set()
        self._auditor: str | None = None

    def reach(self, what: str, error: str | None) -> None:
        """Note whether "store" or "lock" has answered."""
        if error is not None and what not in self._away:
            self._away.add(what)
            self._journal.note("away", of=what)
        elif error is None and what in self._away:
            self._away.remove(what)
            self._journal.note("reached", of=what)

    def hear(self, instances: Sequence[InstanceState]) -> None:
        """Note which instances come, go, or are silent; only while the store, where the reports are, is there."""
        if "store" in self._away:
            return
        silent = {state.report.instance for state in instances if state.silent}
        present = {state.report.instance for state in instances}
        for name in sorted(silent - self._silent):
            self._journal.note("silent", of=name)
        for name in sorted((self._silent - silent) & present):
            self._journal.note("back", of=name)
        if self._present:
            for name in sorted(present - self._present):
                self._journal.note("came", of=name)
            for name in sorted(self._present - present - self._silent):
                self._journal.note("left", of=name)
        self._silent, self._present = silent, present

    def audit(self, auditor: str | None) -> None:
        """Note a change of the auditor."""
        if auditor is not None and self._auditor not in (None, auditor):
            self._journal.note("auditor", of=auditor)
        self._auditor = auditor or self._auditor

    def compare(
        self,
        lock: str,
        now: float,
        queue: Sequence[Contender],
        instances: Sequence[InstanceState],
        grants: Sequence[PastGrant],
    ) -> None:
        """Note instances that wrongly believe that they still hold a lock, and the next holder.

        `now`: in seconds since 1970.
        """
        holders = {one.token: str(one.owner.get("instance")) for one in queue if one.holds}
        self._ends |= {one.token: now + (one.ttl_left_s or 0.0) for one in queue if one.holds}
        began = {held.token: held.at for state in instances for held in state.report.held if held.lock == lock}
        later: dict[int, tuple[str, float | None]] = {one.grant.token: (one.instance, one.grant.at) for one in grants}
        later |= {token: (heir, began.get(token)) for token, heir in holders.items()}
        for state in instances:
            name = state.report.instance
            for held in state.report.held:
                if held.lock != lock or held.token == 0:
                    continue
                if held.token in holders:
                    self._doubted.pop((name, held.token), None)
                    continue
                since = self._doubted.setdefault((name, held.token), now)
                if state.report.paused_s > 0 or now - since > _MISTAKEN_S:
                    self._overtaken(name, held.token, now, later, patient=now - since <= _MISTAKEN_S)
        _keep_the_last(self._doubted)
        _keep_the_last(self._told)
        _keep_the_last(self._ends)

    def _overtaken(
        self, name: str, token: int, now: float, grants: Mapping[int, tuple[str, float | None]], *, patient: bool
    ) -> None:
        """Note that a lease has run out, and the next holder; `patient`: wait for that holder's report."""
        heir = min((one for one in grants if one > token), default=None)
        by, at = grants[heir] if heir is not None else ("", None)
        self._once("ran_out", name, token, min(at or now, now, self._ends.get(token, now)) - 0.001)
        if heir is not None and (at is not None or not patient):
            self._once("overtaken", name, token, at or now, by=by, by_token=str(heir))

    def _once(self, kind: str, name: str, token: int, at: float, **facts: str) -> None:
        if (kind, name, token) not in self._told:
            self._told[kind, name, token] = None
            self._journal.note(kind, at=at, of=name, token=token, **facts)
