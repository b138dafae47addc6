"""What a forked child must not share with its parent: connections, threads, and mutexes that were held at the fork."""

import atexit
import logging
import os
from collections.abc import Callable
from inspect import ismethod
from typing import Any
from weakref import ReferenceType, WeakMethod, ref

_log = logging.getLogger(__name__)

generation = 0  # how many forks lie behind this process: what was made in another generation is the parent's
_renewals: "dict[ReferenceType[Any], None]" = {}
_of_parents: list[Any] = []


def in_child(renew: Callable[[], None]) -> None:
    """Have `renew` called in each child that this process forks: a method, as long as its object lives, or a function.

    No other thread is there then. It may use nothing that one may have held, and must send nothing.
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


# At exit the references' own callbacks would find nothing any more of what they use.
atexit.register(_renewals.clear)

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)


def keep(things: Any) -> None:
    """Never finalise in this process what is its parent's: that could end something on the connections of both."""
    _of_parents.append(things)
