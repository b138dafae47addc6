"""Metrics and spans by OpenTelemetry's API: without an SDK they cost next to nothing."""

import time

from opentelemetry import metrics, trace
from opentelemetry.trace import Span, Status, StatusCode
from typing_extensions import override

from ..hook import Hook
from . import outcome_of


class Instrument(Hook):
    """Measures by lock system, and makes a span for each lock that is held, below the caller's own.

    The span begins with the wait, has an event "granted", and ends with the release, or as an error with the loss.
    """

    def __init__(self, system: str) -> None:
        meter = metrics.get_meter("fencelock")
        self._tracer = trace.get_tracer("fencelock")
        self._wait = meter.create_histogram("fencelock.wait", unit="s", description="Waits for a lock, by outcome")
        self._hold = meter.create_histogram("fencelock.hold", unit="s", description="Time that a lock was held")
        self._losses = meter.create_counter("fencelock.losses", description="Locks that were lost while held")
        self._renewals = meter.create_counter("fencelock.renewals", description="Renewals of leases, by result")
        self._system = {"fencelock.system": system}
        self._spans: dict[tuple[str, int], Span] = {}

    @override
    def granted(self, name: str, token: int, waited_s: float) -> None:
        self._wait.record(waited_s, {**self._system, "outcome": "granted"})
        about: dict[str, str | int] = {**self._system, "fencelock.name": name, "fencelock.token": token}
        span = self._tracer.start_span("lock", start_time=time.time_ns() - int(waited_s * 1e9), attributes=about)
        span.add_event("granted")
        self._end(name, token)  # the span of a lock without tokens, whose last holder died without a release
        self._spans[name, token] = span

    @override
    def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
        self._wait.record(waited_s, {**self._system, "outcome": outcome_of(error)})

    @override
    def released(self, name: str, token: int, held_s: float) -> None:
        self._hold.record(held_s, self._system)
        self._end(name, token)

    @override
    def renewal(self, event: str) -> None:
        self._renewals.add(1, {**self._system, "result": event})

    @override
    def lost(self, name: str, token: int, reason: str) -> None:
        self._losses.add(1, self._system)
        self._end(name, token, Status(StatusCode.ERROR, reason))

    def _end(self, name: str, token: int, status: Status | None = None) -> None:
        span = self._spans.pop((name, token), None)
        if span is not None:
            if status is not None:
                span.set_status(status)
            span.end()
