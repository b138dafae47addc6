"""The hook through which a program hears of its locks, for metrics, traces and logs."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

_log = logging.getLogger(__name__)


class Hook:
    """A hook hears of each event of a backend's locks; a subclass overrides the methods that it needs.

    A term of an election, and so of `once` and `leading`, counts as a lock of that name, and its end as a release. The
    task that acquires or releases calls it; for threads, a task on the thread that they share. `lost` is called by the
    task or thread that finds out. A method must be quick and must not raise; if it does, the error is logged. Times are
    in seconds. `connect(url, instrument=...)` has ready ones for Prometheus, OpenTelemetry and structlog.
    """

    def granted(self, name: str, token: int, waited_s: float) -> None:
        """A lock was acquired (not: re-entered)."""

    def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
        """A wait ended without it: with `LockTimeout`, `LockCancelled`, `LockUnavailable`, a cancelled task."""

    def released(self, name: str, token: int, held_s: float) -> None:
        """The last acquire was released."""

    def renewal(self, event: str) -> None:
        """A lease was "renewed", failed and will be "retried", is "lost" or "abandoned": see `Renewer`."""

    def lost(self, name: str, token: int, reason: str) -> None:
        """The lease of a grant ended while it was held."""


class Hooks(Hook):
    """Several hooks, each of which hears everything."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        for name in [name for name in vars(Hook) if not name.startswith("_")]:
            setattr(self, name, _to_all([getattr(hook, name) for hook in hooks]))


def _to_all(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*about: Any) -> None:
        for method in methods:
            told(method, *about)

    return tell


def told(method: Callable[..., None], *about: Any) -> None:
    """Call a hook's method. If it raises, the error is logged, and the lock is unaffected."""
    try:
        method(*about)
    except Exception:
        _log.exception("%s raised an error", getattr(method, "__qualname__", method))
