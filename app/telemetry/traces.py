"""A span for each grant, by OpenTelemetry's API. An SDK sends them: `opentelemetry-instrument seckill serve`."""

import time
from contextvars import ContextVar, Token

from opentelemetry import context, trace
from opentelemetry.trace import Status, StatusCode
from typing_extensions import override

from app.telemetry.observer import Observer

# The span that was current in the task before it began to serve under the grant.
_before: ContextVar[Token[context.Context] | None] = ContextVar("seckill_span", default=None)


class Traces(Observer):
    """Makes a span for each grant; without an SDK they cost next to nothing. `instance`: an attribute of each."""

    def __init__(self, *, instance: str) -> None:
        self._tracer = trace.get_tracer("seckill")
        self._instance = instance

    @override
    def granted(self, lock: str, token: int, waited_s: float) -> None:
        span = self._tracer.start_span("grant", start_time=time.time_ns() - int(waited_s * 1e9))
        span.set_attributes({"seckill.instance": self._instance, "seckill.lock": lock, "seckill.token": token})
        span.add_event("granted")
        _before.set(context.attach(trace.set_span_in_context(span)))  # so that log lines have its id

    @override
    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        span, before = trace.get_current_span(), _before.get()
        span.set_attributes({"seckill.held_s": held_s, "seckill.purchases": purchases, "seckill.units": units})
        span.end()
        if before is not None:
            context.detach(before)
            _before.set(None)

    @override
    def committed(self, purchases: int) -> None:
        _event("committed", purchases=purchases)

    @override
    def fenced(self, lock: str, sku: str) -> None:
        _event("fenced", sku=sku)
        trace.get_current_span().set_status(Status(StatusCode.ERROR, "the store refused our token"))

    @override
    def conflicted(self) -> None:
        _event("conflicted")

    @override
    def resolved(self, result: str) -> None:
        _event("resolved", result=result)


def _event(name: str, **facts: str | int) -> None:
    trace.get_current_span().add_event(name, {f"seckill.{fact}": value for fact, value in facts.items()})
