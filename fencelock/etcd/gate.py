"""gRPC in a process that forks.

A child can use gRPC if no thread was inside it at the fork: then gRPC's own fork handlers see to it. Otherwise they do
nothing, and the child crashes in gRPC, or waits there for ever. So a fork waits here until nobody is inside, and a
child that can't use gRPC is told so.
"""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol
from weakref import WeakSet

from .. import fork
from ..errors import LockError
from ..per_loop import PerLoop

_QUIET_S: Final = 2.5  # a call to a server that is silent takes two seconds
_PAUSE_S: Final = 0.001
_LOOK_S: Final = 0.25
_NO: Final = ("0", "false", "no")  # what gRPC takes for "off", and then it has no fork handlers


class _Stream(Protocol):
    def close(self) -> None: ...


class _Gate:
    """Who is inside gRPC, in this process. Nobody enters while it forks."""

    def __init__(self) -> None:
        self.usable = True  # whether gRPC can be used here
        self._used = False
        self._quiet = True
        self._forks = 0  # under way
        self._begin()
        fork.in_child(self._begin_in_child)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._close, after_in_parent=self._open)

    def _begin(self) -> None:
        self.streams: WeakSet[_Stream] = WeakSet()  # whose threads are inside all the time
        self.channels: WeakSet[PerLoop[Any]] = WeakSet()
        self._changed = threading.Condition()
        self._inside = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block that calls gRPC. Raises `LockError` in a child that can't."""
        with self._changed:
            if not self.usable:
                raise LockError(
                    "etcd's client, gRPC, can't be used in this forked process: it was busy at the fork, or its fork "
                    "handlers are off (GRPC_ENABLE_FORK_SUPPORT); fork before etcd is used, or spawn"
                )
            if asyncio._get_running_loop() is None:  # a loop that waits here could not end what is under way on it
                self._changed.wait_for(lambda: not self._forks)
            self._used = True
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1

    def _close(self) -> None:
        with self._changed:
            self._forks += 1
            self._quiet = False
        if not self._used or not self.usable:
            return
        deadline = time.monotonic() + _QUIET_S
        self._wait(lambda: not self._inside, deadline)
        for stream in list(self.streams):
            stream.close()  # whoever waits for its watches looks by itself, and makes a new one after the fork
        while not self._quiet and time.monotonic() < deadline:
            # gRPC's asyncio has a thread as long as there is a channel, even of a loop that is closed.
            for channels in list(self.channels):
                channels.purge()
            if _threads_inside():
                gc.collect()
            soon = min(deadline, time.monotonic() + _LOOK_S)
            self._quiet = self._wait(lambda: not self._inside and not _threads_inside(), soon)

    @staticmethod
    def _wait(condition: Callable[[], bool], deadline: float) -> bool:
        while not (met := condition()) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return met

    def _open(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def _begin_in_child(self) -> None:
        off = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _NO
        self.usable = self.usable and not (self._used and (off or not self._quiet))
        self._used = False
        self._forks = 0
        self._begin()


def _threads_inside() -> bool:
    """Whether a thread of gRPC's runs. A stream has two, which end a moment after it."""
    targets = [getattr(thread, "_target", None) for thread in threading.enumerate()]
    return any((getattr(target, "__module__", None) or "").startswith("grpc.") for target in targets)


GATE: Final = _Gate()
