"""Several locks at once: all of them, or none.

They are taken in the order of their names, so that two who want some of the same never wait for each other in a circle;
whoever does not get one of them in time gives back those that it has.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from .errors import LockError
from .grant import Grant
from .waiting import Cancel, Wait

if TYPE_CHECKING:
    from .aio import AsyncLock
    from .backend import LockBackend
    from .lock import DistributedLock


class Grants:
    """What one has of several locks. By name: `grants["/jobs/nightly"].token`."""

    def __init__(self, grants: dict[str, Grant]) -> None:
        self._grants = grants

    def __getitem__(self, name: str) -> Grant:
        return self._grants[name]

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants.values())

    def __len__(self) -> int:
        return len(self._grants)

    @property
    def lost(self) -> bool:
        """Whether any of them is lost."""
        return any(grant.lost for grant in self)

    @property
    def deadline(self) -> float:
        """When the first of them ends if it is not renewed, on the clock of `fencelock.now`."""
        return min(grant.deadline for grant in self)

    def ensure_held(self) -> None:
        """Raise `LockLost` if any of them is lost. Call it before every write."""
        for grant in self:
            grant.ensure_held()

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called for each that is lost; the answer takes that back."""
        forgets = [grant.on_lost(callback) for grant in self]

        def forget_all() -> None:
            for forget in forgets:
                forget()

        return forget_all


class SeveralLocks:
    """Several locks of one backend, for threads.

    >>> with locks.several(["/stock/1", "/stock/2"]).holding(wait_s=2.5) as grants:
    ...     store.move(..., tokens=[grants["/stock/1"].token, grants["/stock/2"].token])
    """

    def __init__(self, locks: "Sequence[DistributedLock[Any]]") -> None:
        self._locks = sorted(locks, key=lambda lock: lock.name)

    @contextmanager
    def holding(self, *, wait_s: float | None = None, cancel: Cancel | None = None) -> Iterator[Grants]:
        """Have all of them in a block, waiting at most `wait_s` seconds for all together.

        Raises what `DistributedLock.acquire` does, and has none of them then; at the end `LockLost` if one was lost.
        """
        wait = Wait(wait_s, cancel)
        with ExitStack() as stack:
            grants = {}
            for lock in self._locks:
                left_s = None if wait_s is None else wait.left_s
                grants[lock.name] = stack.enter_context(lock.holding(wait_s=left_s, cancel=cancel))
            yield Grants(grants)


class AsyncSeveralLocks:
    """The same for tasks.

    >>> async with locks.several(["/stock/1", "/stock/2"]).holding(wait_s=2.5) as grants:
    ...     await store.move(..., tokens=[grants["/stock/1"].token, grants["/stock/2"].token])
    """

    def __init__(self, locks: "Sequence[AsyncLock]") -> None:
        self._locks = sorted(locks, key=lambda lock: lock.name)

    @asynccontextmanager
    async def holding(self, *, wait_s: float | None = None, cancel_on_lost: bool = False) -> AsyncIterator[Grants]:
        """As `SeveralLocks.holding`; `cancel_on_lost`: see `AsyncLock.holding`."""
        wait = Wait(wait_s)
        async with AsyncExitStack() as stack:
            grants = {}
            for lock in self._locks:
                left_s = None if wait_s is None else wait.left_s
                holding = lock.holding(wait_s=left_s, cancel_on_lost=cancel_on_lost)
                grants[lock.name] = await stack.enter_async_context(holding)
            yield Grants(grants)


def checked(backend: "LockBackend", names: Sequence[str]) -> Sequence[str]:
    """The names of locks that can be had together. Raises `ValueError`, and `LockError` where there are no such."""
    if not backend.guarantees.several:
        # Without turns one who wants much would hardly ever get all of it.
        raise LockError(f"{backend.name} gives no several locks at once: it promises no turns, or no tokens")
    if not names or len(set(names)) < len(names):
        raise ValueError("several locks need names, each of them once")
    return names
