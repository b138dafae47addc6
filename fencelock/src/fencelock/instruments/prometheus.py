"""Metrics for Prometheus, in the default registry: by lock system, as each name of a lock would be a series."""

from typing import Final

from prometheus_client import Counter, Histogram
from typing_extensions import override

from ..hook import Hook
from . import outcome_of

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)

# Made once, however many lock systems a process opens. The histogram's count is the number of grants, and of waits in
# vain.
_wait = Histogram("fencelock_wait_seconds", "Waits for a lock, by outcome", ["system", "outcome"], buckets=_SECONDS)
_hold = Histogram("fencelock_hold_seconds", "Time that a lock was held", ["system"], buckets=_SECONDS)
_losses = Counter("fencelock_losses", "Locks that were lost while they were held", ["system"])
_renewals = Counter("fencelock_renewals", "Renewals of leases, by result", ["system", "result"])


class Instrument(Hook):
    """Counts and measures."""

    def __init__(self, system: str) -> None:
        # All series begin at 0: PromQL's `increase` misses the first step of one that does not.
        told = ("granted", "timeout", "cancelled", "unavailable", "error")
        self._wait = {outcome: _wait.labels(system, outcome) for outcome in told}
        self._renewals = {
            result: _renewals.labels(system, result) for result in ("renewed", "retried", "lost", "abandoned")
        }
        self._hold, self._losses = _hold.labels(system), _losses.labels(system)

    @override
    def granted(self, name: str, token: int, waited_s: float) -> None:
        self._wait["granted"].observe(waited_s)

    @override
    def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
        self._wait[outcome_of(error)].observe(waited_s)

    @override
    def released(self, name: str, token: int, held_s: float) -> None:
        self._hold.observe(held_s)

    @override
    def renewal(self, event: str) -> None:
        self._renewals[event].inc()

    @override
    def lost(self, name: str, token: int, reason: str) -> None:
        self._losses.inc()
