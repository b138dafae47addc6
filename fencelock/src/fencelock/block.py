"""Objects that are entered as blocks, and that decorate functions: one of them may do both, again and again."""

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from .errors import LockError

Entered = TypeVar("Entered")
Result = TypeVar("Result")

_ONE: Final = "block"
_INSIDE: Final = "it is entered already: each block that runs at the same time takes an object of its own"


class Block(ABC, Generic[Entered]):
    """For threads. `_block` returns a context manager for each use."""

    def __init__(self) -> None:
        self._open: dict[str, AbstractContextManager[Entered]] = {}  # one at most; its methods are atomic

    @abstractmethod
    def _block(self) -> AbstractContextManager[Entered]: ...

    def __enter__(self) -> Entered:
        block = self._block()
        if self._open.setdefault(_ONE, block) is not block:
            raise LockError(_INSIDE)
        try:
            return block.__enter__()
        except BaseException:
            self._open.clear()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop(_ONE).__exit__(kind, error, trace)


class AsyncBlock(ABC, Generic[Entered]):
    """For tasks."""

    def __init__(self) -> None:
        self._open: dict[str, AbstractAsyncContextManager[Entered]] = {}

    @abstractmethod
    def _block(self) -> AbstractAsyncContextManager[Entered]: ...

    async def __aenter__(self) -> Entered:
        block = self._block()
        if self._open.setdefault(_ONE, block) is not block:
            raise LockError(_INSIDE)
        try:
            return await block.__aenter__()
        except BaseException:
            self._open.clear()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.pop(_ONE).__aexit__(kind, error, trace)


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that waits for nothing, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        found: Result = end.value
        return found
    work.close()
    raise RuntimeError(f"{work!r} had to wait")
