"""Run an OpenTelemetry collector for the tests, which receives spans over HTTP, and keeps them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True)
class Received:
    """A span as received. Times are in nanoseconds since 1970; `parent` is empty for the root of a trace."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    failed: bool
    resource: dict[str, Any]


class Collector:
    """The spans received so far."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[Received] = []

    def named(self, name: str) -> list[Received]:
        """Return the spans of that name, in the order in which they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_ns)


@contextmanager
def collector() -> Iterator[Collector]:
    """Start a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                kept.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that its parent gives it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept = Collector(server.server_port)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="collector")
        serving.start()
        try:
            yield kept
        finally:
            server.shutdown()
            serving.join()


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    return [
        _received(span, _plain(of_resource.resource.attributes))
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _received(span: Span, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _plain(span.attributes),
        [(event.name, event.time_unix_nano, _plain(event.attributes)) for event in span.events],
        span.status.code == Status.STATUS_CODE_ERROR,
        resource,
    )


def _plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in attributes}
