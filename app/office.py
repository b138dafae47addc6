"""An office: a job that one instance does for all instances, as long as its grant lasts."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

from app.forever import end, run_forever
from app.locks.fallback import degraded
from fencelock import AsyncLocks, Grant, LockLost, LockUnavailable

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.5


AnyGrant = TypeVar("AnyGrant", bound=Grant)
AnyWork = TypeVar("AnyWork", bound="Work")


class Office(ABC, Generic[AnyGrant, AnyWork]):
    """A candidate for an office, which works in it once it is elected. It lives on one event loop.

    `elected()`: a block that waits for the office, and gives it up at its end; `name`: the office's; `work`: this
    instance's, while it is in office.
    """

    def __init__(self, name: str, elected: Callable[[], AbstractAsyncContextManager[AnyGrant]]) -> None:
        self.name = name
        self._elected = elected
        self._grant: AnyGrant | None = None
        self.work: AnyWork | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Stand for the office."""
        standing = run_forever(self._stand, every_s=_AGAIN_S, log=_log, what=f"the office of the {self.name}")
        self._task = asyncio.get_running_loop().create_task(standing, name=self.name)

    async def close(self) -> None:
        """Give the office up."""
        if self._task is not None:
            await end(self._task)

    @property
    def in_office(self) -> bool:
        """Whether this instance is in office."""
        return self.work is not None and self._grant is not None and not self._grant.lost

    @abstractmethod
    def begin(self, grant: AnyGrant) -> AnyWork:
        """The work under this grant."""

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures for `/metrics`."""
        return {}

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the operator, in sentences."""
        return ()

    async def _stand(self) -> None:
        try:
            async with self._elected() as grant:
                self._grant, self.work = grant, self.begin(grant)
                _log.info("this instance is the %s", self.name)
                try:
                    await self.work.run()
                finally:
                    self.work = self._grant = None
        except LockLost as error:
            _log.info("this instance is the %s no more: %s", self.name, error)


class Work(Protocol):
    """The work of one term in office. What it knows ends with the term."""

    async def run(self) -> None:
        """Work until the office has to be given up."""


@asynccontextmanager
async def holding(locks: AsyncLocks, lock: str) -> AsyncIterator[Grant]:
    """Hold an office's lock; the block is cancelled when it is lost. Raises `LockUnavailable`."""
    async with locks.lock(lock).holding(cancel_on_lost=True) as grant:
        if degraded(locks):
            raise LockUnavailable(f"a fallback gives everybody a grant of {lock}")
        yield grant
