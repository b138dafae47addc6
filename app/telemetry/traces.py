"""A trace for each grant of a lock, for OpenTelemetry. Imported only when it is wanted: it needs the extra `traces`.

Where traces go is said by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...).
"""

import logging
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from app.errors import ConfigurationError
from app.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 1.5  # a collector that is away doesn't hold up a stop for longer
_COMPLAIN_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Grant:
    """What is known of a grant before its trace is made. Times in nanoseconds since 1970."""

    asked_ns: int
    granted_ns: int
    events: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    trace: Context | None = None  # once it is made


# A till has a context of its own, and a grant at a time: what it reports is about that one, or the one just over.
_grant: ContextVar[_Grant | None] = ContextVar("seckill-grant", default=None)


class Traces:
    """Passes on what cashiers report, to be counted, and makes traces of it; nothing of single buyers.

    A trace is made when its grant is over, and sent by a thread, so that no buyer waits for a collector. What doesn't
    fit into OpenTelemetry's queue is dropped. `instance`: its name; `version`: of this program. Raises
    `ConfigurationError` if a variable of OpenTelemetry is wrong; what it finds wrong later is logged, now and then.
    """

    def __init__(self, metrics: Metrics, *, instance: str, version: str) -> None:
        _calm_the_log()
        self._metrics = metrics
        self.served = metrics.served  # called for each buyer: nothing is to come in between
        self.committed = metrics.committed
        ours = {"service.name": "seckill", "service.version": version, "service.instance.id": instance}
        said = OTELResourceDetector().detect().attributes
        # Ended by `close` alone: on exit it would take no deadline. And not made the global one: the web framework
        # makes a span for each request if there is one.
        self._provider = TracerProvider(resource=Resource.create({**ours, **said}), shutdown_on_exit=False)
        try:
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except ValueError as error:
            raise ConfigurationError(f"OpenTelemetry refuses its settings (OTEL_...): {error}") from None
        self._tracer = self._provider.get_tracer("seckill", version)

    def granted(self, lock: str, token: int, waited_s: float) -> None:
        """See `Stats.granted`."""
        now_ns = time.time_ns()
        _grant.set(_Grant(now_ns - round(waited_s * 1e9), now_ns))
        self._metrics.granted(lock, token, waited_s)

    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        """See `Stats.released`."""
        self._metrics.released(lock, token, held_s, purchases, units)
        grant = _grant.get()
        if grant is None:
            return
        over_ns = time.time_ns()  # `held_s` goes by the clock of the loop, which may be as coarse as a millisecond
        facts: dict[str, str | int] = {
            "seckill.lock": lock,
            "seckill.token": str(token),  # it may be larger than what a page that shows it can count
            "seckill.purchases": purchases,
            "seckill.units": units,
        }
        span = self._tracer.start_span("grant", attributes=facts, start_time=grant.asked_ns)
        for name, at_ns, about in grant.events:
            span.add_event(name, about, at_ns)
        if any(name == "fenced" for name, *_ in grant.events):
            span.set_status(Status(StatusCode.ERROR, "the store refused the token"))
        grant.trace = set_span_in_context(span)
        for name, from_ns, to_ns in (("wait", grant.asked_ns, grant.granted_ns), ("hold", grant.granted_ns, over_ns)):
            self._tracer.start_span(name, grant.trace, start_time=from_ns).end(to_ns)
        span.end(over_ns)

    def fenced(self, lock: str, sku: str) -> None:
        """See `Stats.fenced`."""
        self._metrics.fenced(lock, sku)
        self._happened("fenced", {"seckill.sku": sku})

    def lost(self, lock: str) -> None:
        """See `Stats.lost`. A span by itself: it is told when the grant is over, and its span has ended."""
        self._metrics.lost(lock)
        grant = _grant.get()
        trace = None if grant is None else grant.trace
        span = self._tracer.start_span("lost", trace, attributes={"seckill.lock": lock})
        span.set_status(Status(StatusCode.ERROR, "the lock was lost while it was held"))
        span.end()

    def conflicted(self) -> None:
        """See `Stats.conflicted`."""
        self._metrics.conflicted()
        self._happened("conflicted", {})

    def settled(self, result: str) -> None:
        """See `Stats.settled`."""
        self._metrics.settled(result)
        self._happened("settled", {"seckill.result": result})

    def _happened(self, name: str, about: dict[str, str]) -> None:
        grant = _grant.get()
        if grant is not None and grant.trace is None:  # buyers also give up between two grants
            grant.events.append((name, time.time_ns(), about))

    def close(self) -> None:
        """Send what is left; give up after a second and a half."""
        # OpenTelemetry's own way takes no deadline, and half a minute.
        ending = threading.Thread(target=self._provider.shutdown, name="seckill-traces-end", daemon=True)
        ending.start()
        ending.join(_CLOSE_S)


class _NowAndThen(logging.Handler):
    """What OpenTelemetry complains of, a line a minute: it would be one for each attempt.

    Without the texts that it is about: a part of an address or of a header may be a password.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._silent_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now < self._silent_until:
            return
        self._silent_until = now + _COMPLAIN_EVERY_S
        text = str(record.msg)
        if record.args and isinstance(record.args, tuple):
            text %= tuple(map(_kind, record.args))
        _log.warning("traces may be missing: %s", text)


def _kind(about: Any) -> Any:
    if isinstance(about, Exception):
        return type(about).__name__
    return "..." if isinstance(about, str) else about


_now_and_then: Final = _NowAndThen()


def _calm_the_log() -> None:
    # For all that there may be of OpenTelemetry in this process, and for good: it complains even after its end.
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(_now_and_then)
    logger.propagate = False
