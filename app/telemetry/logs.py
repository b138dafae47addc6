"""Log lines, for people or as JSON, each with its context: the instance, and the grant, batch and item at hand."""

import atexit
import logging
import os
import select
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from types import MappingProxyType
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

_STDERR: Final = 2
_LINES_MAX: Final = 10_000

_known: ContextVar[Mapping[str, str | int]] = ContextVar("seckill_log_fields", default=MappingProxyType({}))


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Add fields (`sku`, `token`, `batch`) to the log lines of this block, and of all that it awaits.

    Tasks and timers that the block starts have them, too; concurrent ones don't. Blocks nest.
    """
    before = _known.set({**_known.get(), **fields})
    try:
        yield
    finally:
        _known.reset(before)


def also_about(**fields: str | int) -> None:
    """Add fields from here to the end of the enclosing block of `about`, for facts that are found out within it."""
    _known.set({**_known.get(), **fields})


class Human(logging.Formatter):
    """Formats a record as one line of printable text, whatever buyers send, with a stack trace below."""

    def __init__(self, instance: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._instance = instance

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging gives it
        """The line and its fields; characters that can't be printed are escaped."""
        fields = {"instance": self._instance, **_known.get()}
        return printable(super().formatMessage(record) + "".join(f" {name}={fields[name]}" for name in fields))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """The stack trace, indented: none of its lines can pass for a record."""
        return "\n".join("    " + printable(line) for line in super().formatException(ei).split("\n"))


class Json(JsonFormatter):
    """Formats a record as a JSON object on one line of ASCII; a stack trace is its `error`.

    It includes the fields that others add to a record (`extra`), such as OpenTelemetry's trace and span.
    """

    def __init__(self, instance: str) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "error"},
            static_fields={"instance": instance},
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """The time in ISO 8601, UTC, with milliseconds."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """The record, with its fields."""
        log_data.update(_known.get())
        return log_data


_FORMS: Final = {"human": Human, "json": Json}


class Lines(QueueHandler):
    """Hands lines to a thread that writes them to a file descriptor, so that logging never waits for the reader.

    A reader that stands still (a pipe, a terminal after Ctrl-S) would otherwise stop the thread that logs, which may
    have a lock. At most 10,000 lines wait to be read; those above are dropped, and counted in a line of their own.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(Queue(_LINES_MAX))
        self._descriptor = descriptor
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # the thread stays with the parent, and so do its lines
        atexit.register(self.finish)

    def _begin(self) -> None:
        self.queue: Queue[Any] = Queue(_LINES_MAX)
        self.dropped = 0
        self._listens = False

    @override
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # Formatted here, as only the task that logs knows the fields.
        return logging.makeLogRecord({"msg": self.format(record)})

    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        if not self._listens:  # (under the handler's own mutex)
            self._listens = True
            _LogListener(self, self._descriptor).start()
        try:
            self.queue.put_nowait(record)
        except Full:
            self.dropped += 1

    def finish(self, within_s: float = 1.0) -> None:
        """Flush the waiting lines; for at most a second, as nobody may be reading."""
        with self.queue.all_tasks_done:
            self.queue.all_tasks_done.wait_for(lambda: not self.queue.unfinished_tasks, within_s)


class _LogListener(QueueListener):
    def __init__(self, lines: Lines, descriptor: int) -> None:
        super().__init__(lines.queue)
        self._lines = lines
        self._descriptor = descriptor

    @override
    def handle(self, record: logging.LogRecord) -> None:
        self._write(record.msg)
        lines = self._lines
        if lines.dropped and lines.queue.empty():
            dropped, lines.dropped = lines.dropped, 0
            self._write(f"(here {dropped} lines are missing: they were not read in time)")

    def _write(self, line: str) -> None:
        # Not through sys.stderr, whose mutex a blocked thread would keep until the end of the process, and beyond.
        left = memoryview(f"{line}\n".encode(errors="backslashreplace"))
        with suppress(OSError):
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # somebody has made the terminal non-blocking
                    select.select([], [self._descriptor], [])


def configure(*, level: str, form: str, instance: str) -> None:
    """Log to standard error, in the format `form` ("human" or "json"); our own lines from `level` on.

    Libraries log only warnings and errors.
    """
    handler = Lines(_STDERR)
    handler.setFormatter(_FORMS[form](instance))
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)  # Python's own lines, too
    for house in ("app", "fencelock"):
        logging.getLogger(house).setLevel(level.upper())


def printable(text: str) -> str:
    """Make control characters visible that a terminal could obey, as others may write anything."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
