"""A store whose next write can be held back, to show the effect of a pause at the worst moment."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from app.errors import StockError
from app.stock import Batch, Fence, StockStore


@dataclass(frozen=True, slots=True)
class _Delay:
    sku: str
    for_s: float
    tell: Callable[[str, int], None]
    begun: "asyncio.Future[bool]"


class DelayingStore:
    """Another store, between whose reads and writes a process can be made to stand still.

    To the sale it is a slow write like any other: nobody is told that nothing was sold, and the store decides whether
    the write still counts when it arrives.
    """

    def __init__(self, store: StockStore) -> None:
        self._store = store
        self._delay: _Delay | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def as_store(self) -> StockStore:
        """Return this object, typed as a store."""
        return cast(StockStore, self)

    async def commit(
        self, fence: Fence, batches: Mapping[str, Batch], together: Sequence[set[str]] = ()
    ) -> dict[str, list[str] | StockError]:
        """Commit as the store does, after the delay, if one was requested."""
        delay = self._delay
        if delay is not None and delay.sku in batches:
            self._delay = None
            delay.tell("paused", fence.token)
            if not delay.begun.done():
                delay.begun.set_result(True)
            await asyncio.sleep(delay.for_s)
            delay.tell("woke", fence.token)
        answers = await self._store.commit(fence, batches, together)
        if delay is not None and delay.sku in batches and not isinstance(answers[delay.sku], StockError):
            delay.tell("wrote", fence.token)
        return answers

    async def delay_next_commit(
        self, sku: str, for_s: float, tell: Callable[[str, int], None], *, within_s: float
    ) -> bool:
        """Hold back the next write that sells an item for some seconds; False if none came `within_s` seconds.

        `tell` is called with "paused" and "woke", with the token of the write, and "wrote" if the store took it.
        """
        if self._delay is not None and not self._delay.begun.done():
            self._delay.begun.set_result(False)  # the new delay replaces it
        delay = self._delay = _Delay(sku, for_s, tell, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(within_s):
                return await delay.begun
        except TimeoutError:
            return False
        finally:
            if self._delay is delay:
                self._delay = None
