"""A store whose next write can be held back: to see what a pause at the worst moment does."""

import asyncio
from collections.abc import Callable, Mapping
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

    To the sale it is a write like any other that is on its way for long: nobody is told that nothing was sold, and
    whether it still counts when it arrives is for the store to say.
    """

    def __init__(self, store: StockStore) -> None:
        self._store = store
        self._delay: _Delay | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def as_store(self) -> StockStore:
        """The same, for who wants a store."""
        return cast(StockStore, self)

    async def commit(self, fence: Fence, batches: Mapping[str, Batch]) -> dict[str, list[str] | StockError]:
        """As the store does it; later, if that was wished."""
        delay = self._delay
        if delay is not None and delay.sku in batches:
            self._delay = None
            delay.tell("paused", fence.token)
            if not delay.begun.done():
                delay.begun.set_result(True)
            await asyncio.sleep(delay.for_s)
            delay.tell("woke", fence.token)
        answers = await self._store.commit(fence, batches)
        if delay is not None and delay.sku in batches and not isinstance(answers[delay.sku], StockError):
            delay.tell("wrote", fence.token)
        return answers

    async def delay_next_commit(
        self,
        sku: str,
        for_s: float,
        tell: Callable[[str, int], None],
        *,
        within_s: float,
    ) -> bool:
        """Hold the next write that sells an item back for some seconds. Whether one came `within_s` seconds.

        `tell` hears "paused" and "woke", with the token of the write, and "wrote" if the store took it after all.
        """
        if self._delay is not None and not self._delay.begun.done():
            self._delay.begun.set_result(False)  # this one comes in its place
        delay = self._delay = _Delay(sku, for_s, tell, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(within_s):
                return await delay.begun
        except TimeoutError:
            return False
        finally:
            if self._delay is delay:
                self._delay = None
