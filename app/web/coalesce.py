"""Coalesces equal requests: each thing is looked up once for all who ask for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

Found = TypeVar("Found")

_EVERY_S: Final = 0.1
_AT_ONCE: Final = 100  # a script stops the store for as long as it runs
_REST: Final = 4  # rests this many times as long as the last look took: looks take a fifth of the time at most
_REST_MAX_S: Final = 0.5  # a look that takes long is not work, but waits for a store that is away


class Coalesced(Generic[Found]):
    """Looks up many things together, ten times a second at most: each once for all who ask for it meanwhile.

    An answer is never older than the question. `look(names)` returns for each name the result, or an error.
    """

    def __init__(self, look: Callable[[Sequence[str]], Awaitable[Mapping[str, Found | Exception]]]) -> None:
        self._look = look
        self._asked: dict[str, asyncio.Future[Found]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def at(self, name: str) -> Found:
        """Return the next look's result for that name. Raises its error."""
        future = self._asked.get(name)
        if future is None:
            future = self._asked[name] = asyncio.get_running_loop().create_future()
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_while_asked(), name="looks")
        return await asyncio.shield(future)  # if one of them is cancelled, the others wait on

    async def _look_while_asked(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                began, names = loop.time(), list(asked)
                for start in range(0, len(names), _AT_ONCE):
                    await self._look_at(names[start : start + _AT_ONCE], asked)
                took_s = loop.time() - began
                await asyncio.sleep(max(_EVERY_S - took_s, min(_REST * took_s, _REST_MAX_S)))
        finally:
            self._looking = None

    async def _look_at(self, names: Sequence[str], asked: Mapping[str, "asyncio.Future[Found]"]) -> None:
        found: Mapping[str, Found | Exception]
        try:
            found = await self._look(names)
        except Exception as error:
            found = dict.fromkeys(names, error)
        for name in names:
            answer = found[name]
            if isinstance(answer, Exception):
                asked[name].set_exception(answer)
                asked[name].exception()  # every waiter may have gone
            else:
                asked[name].set_result(answer)


class TtlCache(Generic[Found]):
    """A cache of values that `make(name)` makes once a second at most, for all who ask within that second.

    A slow result is kept for as long as it took: else it would expire before anybody comes back for it.
    """

    def __init__(self, make: Callable[[str], Awaitable[Found]], *, for_s: float = 1.0) -> None:
        self._make = make
        self._for_s = for_s
        self._made: dict[str, asyncio.Future[Found]] = {}
        self._until: dict[str, float] = {}  # of those that are made

    async def at(self, name: str = "") -> Found:
        """Return the cached value of that name, or make a new one. Raises its error."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for old in [old for old, until in self._until.items() if until <= begun]:
            del self._made[old], self._until[old]
        if name not in self._made:
            making = self._made[name] = asyncio.ensure_future(self._make(name))

            def keep(made: asyncio.Future[Found]) -> None:
                self._until[name] = begun + max(self._for_s, 2 * (loop.time() - begun))
                _ = made.cancelled() or made.exception()  # every waiter may have gone

            making.add_done_callback(keep)
        return await asyncio.shield(self._made[name])
