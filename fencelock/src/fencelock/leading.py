"""Leading: a body that runs on one instance of many, and ends when its term does."""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from . import portal
from .block import AsyncBlock, Block, at_once
from .election import AsyncElection, AsyncLeadership, Election, Leadership
from .errors import LockLost, LockUnavailable
from .grant import Grant
from .lock import CancelOnLost

P = ParamSpec("P")
Result = TypeVar("Result")
Term = TypeVar("Term", bound=Grant)

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 0.5  # a lock system that was away when a term ended is asked again


class AsyncLeading(AsyncBlock[AsyncLeadership]):
    """For tasks: a block that runs on one instance. See `AsyncLocks.leading`, which makes it.

    >>> async with locks.leading("/jobs/poller", "me") as term:   # waits until it is elected
    ...     await poll(token=term.token)      # is cancelled when the term is lost, and the block raises LockLost
    >>> @locks.leading("/jobs/poller", "me")
    ... async def poller(term: AsyncLeadership) -> None: ...      # when its term is lost it is called with the next one
    """

    def __init__(self, election: AsyncElection, name: str, value: str) -> None:
        super().__init__()
        self._name = name
        self._value = value
        self._election = election

    @asynccontextmanager
    async def _block(self) -> AsyncIterator[AsyncLeadership]:
        async with self._election.campaigning(self._value) as term:
            guard = CancelOnLost(term)
            try:
                yield term
            except BaseException as error:
                if guard.caused(error):
                    term.ensure_held()
                raise
            finally:
                guard.end()
            term.ensure_held()

    async def _pause(self) -> None:
        """Wait a moment before an absent lock system is asked again; don't wait if it is closed for good."""
        self._election.ballot()
        await asyncio.sleep(_AGAIN_S)

    def __call__(
        self, function: Callable[Concatenate[AsyncLeadership, P], Coroutine[Any, Any, Result]]
    ) -> Callable[P, Coroutine[Any, Any, Result]]:
        """Have a coroutine function called with each of our terms, until it returns or raises an error of its own."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is no coroutine function: functions have LockBackend.leading")

        @functools.wraps(function)
        async def led(*args: P.args, **kwargs: P.kwargs) -> Result:
            return await _led(self._name, self._block, lambda term: function(term, *args, **kwargs), self._pause)

        return led


class Leading(Block[Leadership]):
    """As `AsyncLeading`, for threads. No thread can be cancelled: the body asks its term before each write.

    >>> with locks.leading("/jobs/poller", "me") as term:
    ...     while not term.lost: poll(token=term.token)   # or `ensure_held`, `on_lost`, `trusted_s`
    >>> @locks.leading("/jobs/poller", "me")
    ... def poller(term: Leadership) -> None: ...         # once it has raised LockLost it is called with the next term
    """

    def __init__(self, leading: AsyncLeading) -> None:
        super().__init__()
        self._leading = leading

    @contextmanager
    def _block(self) -> Iterator[Leadership]:
        with Election(self._leading._election).campaign(self._leading._value) as term:
            yield term
            term.ensure_held()

    def __call__(self, function: Callable[Concatenate[Leadership, P], Result]) -> Callable[P, Result]:
        """Have a function called with each of our terms, until it returns or raises an error of its own."""
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is a coroutine function: these have AsyncLocks.leading")

        @asynccontextmanager
        async def block() -> AsyncIterator[Leadership]:
            with self._block() as term:
                yield term

        async def pause() -> None:
            portal.run(self._leading._pause())

        @functools.wraps(function)
        def led(*args: P.args, **kwargs: P.kwargs) -> Result:
            async def call(term: Leadership) -> Result:
                return function(term, *args, **kwargs)

            return at_once(_led(self._leading._name, block, call, pause))

        return led


async def _led(
    name: str,
    block: Callable[[], AbstractAsyncContextManager[Term]],
    call: Callable[[Term], Coroutine[Any, Any, Result]],
    pause: Callable[[], Coroutine[Any, Any, None]],
) -> Result:
    """Make the call in each of our terms, until it returns or raises an error of its own.

    The first time, an absent lock system is an error for the caller, as its address may be wrong.
    """
    again = False
    while True:
        lost, done = None, []  # whether the term was lost (None: we were not elected)
        try:
            async with block() as term:
                try:
                    done.append(await call(term))
                finally:
                    lost = term.lost
        except (LockLost, LockUnavailable) as error:
            if lost:
                _log.warning("%s: %s; standing again", name, error)
            if not (done or (again if lost is None else lost and isinstance(error, LockLost))):
                raise
        if done:
            return done[0]
        if lost is None:
            await pause()
        again = True
