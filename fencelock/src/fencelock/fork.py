"""Fork safety: a child must not share connections, threads, or mutexes held at the fork, with its parent."""

import atexit
import logging
import os
from collections.abc import Callable
from inspect import ismethod
from typing import Any
from weakref import ReferenceType, WeakMethod, ref

_log = logging.getLogger(__name__)

generation = 0  # the number of forks behind this process: objects of another generation are the parent's
_renewals: "dict[ReferenceType[Any], None]" = {}
_of_parents: list[Any] = []


def in_child(renew: Callable[[], None]) -> None:
    """Have `renew` called in each child that this process forks: a method, as long as its object lives, or a function.

    No other thread exists then. `renew` may use nothing that another thread may have held, and must send nothing.
    """
    _renewals[WeakMethod(renew, _forget) if ismethod(renew) else ref(renew, _forget)] = None


def _forget(reference: "ReferenceType[Any]") -> None:
    _renewals.pop(reference, None)


def _renew_all() -> None:
    global generation  # noqa: PLW0603
    generation += 1
    for reference in list(_renewals):
        renew = reference()
        try:
            if renew is not None:
                renew()
        except Exception:
            _log.exception("unexpected error after a fork")


# At exit the references' own callbacks would use modules that are gone.
atexit.register(_renewals.clear)

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)


def keep(things: Any) -> None:
    """Never finalise the parent's objects in this process: that could end requests on connections that both share."""
    _of_parents.append(things)
