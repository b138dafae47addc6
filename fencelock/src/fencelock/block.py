"""Objects that are entered as blocks, and that decorate functions: one of them may do both, again and again."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Final, Generic, TypeVar

from .errors import LockError

Entered = TypeVar("Entered")

_INSIDE: Final = "it is entered already: each block that runs at the same time takes an object of its own"


class Block(ABC, Generic[Entered]):
    """For threads. `_block` returns a context manager for each use."""

    def __init__(self) -> None:
        self._open: list[AbstractContextManager[Entered]] = []

    @abstractmethod
    def _block(self) -> AbstractContextManager[Entered]: ...

    def __enter__(self) -> Entered:
        self._open.append(self._block())
        if len(self._open) > 1:
            self._open.pop()
            raise LockError(_INSIDE)
        try:
            return self._open[0].__enter__()
        except BaseException:
            self._open.clear()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)


class AsyncBlock(ABC, Generic[Entered]):
    """For tasks."""

    def __init__(self) -> None:
        self._open: list[AbstractAsyncContextManager[Entered]] = []

    @abstractmethod
    def _block(self) -> AbstractAsyncContextManager[Entered]: ...

    async def __aenter__(self) -> Entered:
        if self._open:
            raise LockError(_INSIDE)
        self._open.append(self._block())
        try:
            return await self._open[0].__aenter__()
        except BaseException:
            self._open.clear()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.pop().__aexit__(kind, error, trace)
