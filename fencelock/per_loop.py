"""What each event loop has of its own: clients, timers. A client of one loop can't be used on another."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from . import fork

Thing = TypeVar("Thing")


class PerLoop(Generic[Thing]):
    """Made at first use on a loop, and forgotten some time after that loop was closed."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Thing]) -> None:
        self._make = make
        self._begin()
        fork.in_child(self._begin_in_child)

    def _begin(self) -> None:
        self._mutex = threading.RLock()
        self._things: dict[asyncio.AbstractEventLoop, Thing] = {}

    def _begin_in_child(self) -> None:
        fork.keep(self._things)
        self._begin()

    def here(self) -> Thing:
        """What the running loop has."""
        loop = asyncio.get_running_loop()
        thing = self._things.get(loop)
        if thing is None:
            with self._mutex:
                self.purge()
                thing = self._things[loop] = self._make(loop)
        return thing

    def purge(self) -> None:
        """Forget what loops have that are closed."""
        with self._mutex:
            for loop in [loop for loop in self._things if loop.is_closed()]:
                del self._things[loop]

    def pop(self) -> Thing | None:
        """What the running loop has, if anything; it has that no more."""
        with self._mutex:
            return self._things.pop(asyncio.get_running_loop(), None)

    def clear(self) -> "list[tuple[asyncio.AbstractEventLoop, Thing]]":
        """What all loops have that are not closed; they have it no more."""
        with self._mutex:
            things, self._things = self._things, {}
        return [(loop, thing) for loop, thing in things.items() if not loop.is_closed()]

    def __iter__(self) -> Iterator[Thing]:
        with self._mutex:
            return iter(list(self._things.values()))
