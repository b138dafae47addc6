"""Log lines: for people or as JSON, and what each is about: the instance, and the grant, batch and item at hand."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

_known: ContextVar[Mapping[str, str | int]] = ContextVar("seckill_log_fields", default=MappingProxyType({}))


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """What is logged in this block, and in what it awaits, is about that: `sku`, `token`, `batch`.

    What the block starts (a task, a timer) is about it, too; what runs beside it is not. Blocks add up.
    """
    before = _known.set({**_known.get(), **fields})
    try:
        yield
    finally:
        _known.reset(before)


def also_about(**fields: str | int) -> None:
    """The same, from here to the end of the block of `about` that this is in: for what is found out within it."""
    _known.set({**_known.get(), **fields})


class Human(logging.Formatter):
    """A record is one line of printable text, whatever a buyer has put into it; a stack trace has lines of its own."""

    def __init__(self, instance: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._instance = instance

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging gives it
        """The line and what it is about, with what can't be printed as escapes."""
        fields = {"instance": self._instance, **_known.get()}
        return _printable(super().formatMessage(record) + "".join(f" {name}={fields[name]}" for name in fields))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """The stack trace, indented: none of its lines can pass for a record."""
        return "\n".join("    " + _printable(line) for line in super().formatException(ei).split("\n"))


class Json(JsonFormatter):
    """A record is a JSON object on one line of ASCII; a stack trace is its `error`.

    What others add to a record (`extra`), such as OpenTelemetry's trace and span, is in it as well.
    """

    def __init__(self, instance: str) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "error"},
            static_fields={"instance": instance},
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """ISO 8601, UTC, milliseconds."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """The record, and what it is about."""
        log_data.update(_known.get())
        return log_data


_FORMS: Final = {"human": Human, "json": Json}


def configure(*, level: str, form: str, instance: str) -> None:
    """Lines on standard error, as `form` says ("human" or "json"); of ours from `level` on.

    The libraries below us are heard only when something is wrong.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMS[form](instance))
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)  # Python's own lines, too
    logging.getLogger("app").setLevel(level.upper())


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
