"""Instruments, by `connect(url, instrument=...)`: hooks for a library of metrics, traces or logs, one a module."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from ..errors import ConfigurationError
from ..hook import Hook

# By name: the library that it needs, which is imported only when it is asked for.
_LIBRARIES: Final = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry", "structlog": "structlog"}


def instruments(names: Any, system: str) -> Sequence[Hook]:
    """Return a hook for each name. `system`: the lock system that they hear of.

    Raises `ConfigurationError` for an unknown name, and for a library that is not installed.
    """
    return [_instrument(name, system) for name in ((names,) if isinstance(names, str) else tuple(names))]


def _instrument(name: str, system: str) -> Hook:
    if name not in _LIBRARIES:
        raise ConfigurationError(f"there is no instrument {name!r}; there are {', '.join(_LIBRARIES)}")
    try:
        made: Hook = import_module(f".{name}", __name__).Instrument(system)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != _LIBRARIES[name]:
            raise
        raise ConfigurationError(f"instrument={name!r} needs its library: fencelock's extra [{name}]") from None
    return made


def outcome_of(error: BaseException) -> str:
    """Return in one word how a wait without a grant ended: "timeout", "cancelled", "unavailable" or "error"."""
    kinds = {"LockTimeout": "timeout", "LockUnavailable": "unavailable"}
    kinds |= {"LockCancelled": "cancelled", "CancelledError": "cancelled"}
    return kinds.get(type(error).__name__, "error")
