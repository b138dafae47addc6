"""What the locks tell Prometheus, OpenTelemetry and structlog, each only when it is asked for."""

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import REGISTRY

from fencelock import ConfigurationError, Hook, LockCancelled, LockLost, LockTimeout, LockUnavailable
from fencelock.instruments import instruments
from fencelock.testing import MemoryLocks

NAME = "/jobs/nightly"


def exercise(locks: MemoryLocks) -> None:
    """A grant after 2 s that is held for 9, a wait in vain of 4, one without a server, and a loss after 1."""
    lock = locks.lock(NAME)
    locks.server.steal(NAME, for_s=2)
    with lock:
        locks.server.advance(9)
    locks.server.steal(NAME)
    with pytest.raises(LockTimeout):
        lock.acquire(wait_s=4)
    locks.server.lose(NAME)
    locks.server.freeze()
    with pytest.raises(LockUnavailable):
        lock.acquire()
    locks.server.thaw()
    with pytest.raises(LockLost), lock:
        locks.server.advance(1)
        locks.server.lose(NAME)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"fencelock_{name}", {"system": "memory"} | labels) or 0.0


def test_prometheus_counts_and_measures() -> None:
    """By lock system, from 0 on, and in the default registry however many lock systems are opened."""
    with MemoryLocks(instrument="prometheus") as first, MemoryLocks(ttl_s=6, instrument="prometheus") as locks:
        names = [
            *(("wait_seconds_count", {"outcome": one}) for one in ("granted", "timeout", "cancelled", "unavailable")),
            ("wait_seconds_sum", {"outcome": "granted"}),
            ("wait_seconds_sum", {"outcome": "timeout"}),
            *((f"hold_seconds_{one}", {}) for one in ("count", "sum")),
            ("losses_total", {}),
            ("renewals_total", {"result": "renewed"}),
            ("renewals_total", {"result": "lost"}),
        ]
        before = [sample(name, **labels) for name, labels in names]
        exercise(locks)
        assert [sample(name, **labels) - was for (name, labels), was in zip(names, before, strict=True)] == [
            *(2, 1, 0, 1),
            *(2, 4),
            *(2, 10),
            1,
            *(4, 1),
        ]
        assert first.lock(NAME).try_acquire() is not None


def test_opentelemetry_measures_and_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span for each lock that is held, below the caller's, from the wait to the release; a loss is its error."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    job = tracers.get_tracer("program").start_as_current_span("job")
    with MemoryLocks(ttl_s=6, instrument="opentelemetry") as locks, job as above:
        exercise(locks)
    held, lost, _ = spans.get_finished_spans()
    for span in (held, lost):
        assert span.parent is not None
        assert span.parent.span_id == above.get_span_context().span_id
        assert span.attributes is not None
        assert (span.attributes["fencelock.system"], span.attributes["fencelock.name"]) == ("memory", NAME)
        assert [event.name for event in span.events] == ["granted"]
    assert held.start_time is not None
    assert held.events[0].timestamp - held.start_time >= 2e9
    assert (held.status.status_code, lost.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert lost.status.description == "the server no longer knows it"
    found: dict[Any, Any] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            attributes = dict(point.attributes or {})
            assert attributes.pop("fencelock.system") == "memory"
            found[metric.name, *attributes.values()] = getattr(point, "sum", None) or getattr(point, "value", None)
    assert found["fencelock.wait", "granted"] == 2
    assert found["fencelock.wait", "timeout"] == 4
    assert (found["fencelock.hold",], found["fencelock.losses",]) == (10, 1)
    assert found["fencelock.renewals", "renewed"] == 4


def test_a_lock_without_tokens_has_a_span_for_each_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for one that died without a release."""
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    (hook,) = instruments("opentelemetry", "redlock")
    hook.granted(NAME, 0, 0)
    hook.granted(NAME, 0, 0)
    assert len(spans.get_finished_spans()) == 1
    hook.released(NAME, 0, 1)
    assert len(spans.get_finished_spans()) == 2


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (LockTimeout(), "debug"),
        (LockCancelled(), "debug"),
        (asyncio.CancelledError(), "debug"),
        (LockUnavailable(), "warning"),
        (LockLost(), "warning"),
    ],
)
def test_a_wait_that_ends_as_its_caller_wishes_is_no_warning(error: BaseException, level: str) -> None:
    with structlog.testing.capture_logs() as logs:
        (hook,) = instruments("structlog", "memory")
        hook.not_granted(NAME, error, 1)
    assert [one["log_level"] for one in logs] == [level]


def test_structlog_has_an_event_for_each() -> None:
    """What needs somebody's eye is a warning."""
    with structlog.testing.capture_logs() as logs, MemoryLocks(ttl_s=6, instrument="structlog") as locks:
        exercise(locks)
    assert [(one["event"], one["log_level"]) for one in logs] == [
        ("lock granted", "debug"),
        ("lock released", "debug"),
        ("lock not granted", "debug"),
        ("lock not granted", "warning"),
        ("lock granted", "debug"),
        ("lock lost", "warning"),
        ("lock released", "debug"),
    ]
    assert logs[0] == {
        **{"event": "lock granted", "log_level": "debug", "system": "memory", "lock": NAME},
        **{"token": logs[0]["token"], "waited_s": 2.0},
    }


def test_several_hear_beside_the_programs_own_hook(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that is set later; and an error of one of them keeps nothing from the others."""
    heard: list[str] = []

    class Odd(Hook):
        def granted(self, name: str, token: int, waited_s: float) -> None:
            heard.append(name)
            raise KeyError(name)

    with structlog.testing.capture_logs() as logs:
        with MemoryLocks(instrument=("structlog", "prometheus"), hook=Odd()) as locks, locks.lock(NAME):
            pass
        locks = MemoryLocks(instrument=["structlog"])
        locks.hook = Odd()
        with locks, locks.lock(NAME):
            pass
    assert heard == [NAME, NAME]
    assert [one["event"] for one in logs] == ["lock granted", "lock released"] * 2
    assert caplog.text.count("raised an error") == 2


def test_an_instrument_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or by what to install."""
    with pytest.raises(ConfigurationError, match="no instrument 'statsd'; there are prometheus, opentelemetry, struct"):
        MemoryLocks(instrument="statsd")
    monkeypatch.setitem(sys.modules, "structlog", None)
    monkeypatch.delitem(sys.modules, "fencelock.instruments.structlog", raising=False)
    with pytest.raises(ConfigurationError, match=r"instrument='structlog' .* extra \[structlog\]"):
        MemoryLocks(instrument="structlog")


def test_nothing_is_imported_that_is_not_asked_for() -> None:
    """A program without instruments loads none of the libraries."""
    program = "import sys, fencelock; fencelock.connect('local://').close(); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "fencelock.connection" in done.stdout
    for library in ("prometheus_client", "opentelemetry", "structlog", "instruments"):
        assert library not in done.stdout


# -- a release of what was lost --------------------------------------------------------------------------------------


async def test_a_lost_release_may_be_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """It is in the log then, for threads and tasks; what tells of a loss at once still raises."""
    with MemoryLocks(raise_on_lost_release=False) as locks:
        with caplog.at_level(logging.WARNING, "fencelock.lock"), locks.lock(NAME) as grant:
            locks.server.lose(NAME)
            with pytest.raises(LockLost):
                grant.ensure_held()
        assert caplog.messages == [
            f"{grant.key} is lost: the server no longer knows it",
            f"{NAME} was lost before it was released: the server no longer knows it",
        ]
        async with locks.aio.lock(NAME):
            locks.server.lose(NAME)
        lock = locks.aio.lock(NAME)
        await lock.acquire()
        locks.server.lose(NAME)
        await lock.release()
        with pytest.raises(LockLost):
            async with lock.holding(cancel_on_lost=True):
                locks.server.lose(NAME)
                await asyncio.Event().wait()
        await locks.leave_loop()


def test_whether_a_lost_release_raises_is_yes_or_no() -> None:
    wrong: Any = "no"
    with pytest.raises(ConfigurationError, match="raise_on_lost_release must be True or False, not 'no'"):
        MemoryLocks(raise_on_lost_release=wrong)
