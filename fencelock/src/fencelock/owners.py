"""The owners of a lock in this process, and how often each has acquired it, which makes it re-entrant."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass

from . import fork
from .errors import LockError, LockLost, LockNotHeld
from .grant import Grant


@dataclass(slots=True)
class LockData:
    """An owner's grant, its time, and the number of acquires that are not released yet."""

    grant: Grant
    since: float
    hold_count: int = 1


class Owners:
    """The owners of one lock object. Keys are thread or task *objects*: identifiers are recycled, and a new thread
    would inherit a dead one's lock.

    The mutex is taken on event loops alone. A thread enters again, and leaves, without it (`alone`), as nobody else
    changes its data: else a signal handler with the same lock object would wait for the thread that it interrupts.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[Hashable, LockData] = {}
        self._held_by_parent: set[Hashable] = set()
        self._mutex = threading.Lock()
        fork.in_child(self._begin_in_child)

    def _begin_in_child(self) -> None:
        self._held_by_parent |= self._held.keys()
        self._held = {}
        self._mutex = threading.Lock()

    def get(self, owner: Hashable) -> LockData | None:
        """Return that owner's data, if it owns the lock."""
        return self._held.get(owner)

    def reenter(self, owner: Hashable, *, alone: bool = False) -> Grant | None:
        """Acquire once more, and return the grant, if this owner has one; else None. Raises `LockLost`.

        `alone`: the owner is the current thread.
        """
        data = self._held.get(owner)
        if data is None:
            return None
        try:
            data.grant.ensure_held()  # outside the mutex: it may call on_lost callbacks, which may use this lock
        except LockLost:
            if self._held.get(owner) is not data:  # another thread with this owner's name has just released it
                return None
            raise
        with nullcontext() if alone else self._mutex:
            if self._held.get(owner) is not data:
                return None
            data.hold_count += 1
            return data.grant

    def add(self, owner: Hashable, grant: Grant, since: float) -> None:
        """Note an owner's first acquire, at `since`. Raises `LockError` if it has made two at the same time."""
        grant.lease.owner = owner
        with self._mutex:
            if self._held:
                # The renewer gives back a dead thread's grants.
                for gone in [other for other, held in self._held.items() if held.grant.lease.abandoned]:
                    del self._held[gone]
            if owner in self._held:
                raise LockError(f"{self._name}: owner {owner!r} acquired it twice at the same time")
            self._held[owner] = LockData(grant, since)

    def leave(self, owner: Hashable) -> LockData | None:
        """Undo one acquire; if it was the last, return the lock to give back. Raises `LockNotHeld`, `LockError`."""
        with self._mutex:
            data = self._held.get(owner)
            if data is None and owner in self._held_by_parent:
                raise LockError(f"{self._name} was acquired before the fork: only the parent process can release it")
            if data is None:
                raise LockNotHeld(f"{self._name} is not held by {_describe(owner)}")
            data.hold_count -= 1
            if data.hold_count:
                return None
            del self._held[owner]
            return data

    def leave_inner(self, thread: threading.Thread) -> bool:
        """Undo one acquire of the current thread, unless it is the last one; return whether it was undone."""
        data = self._held.get(thread)
        if data is None or data.hold_count == 1:
            return False
        data.hold_count -= 1
        return True


class Owned(ABC):
    """The base of the locks for threads and for tasks: the properties about the current owner."""

    name: str
    _owners: Owners

    @abstractmethod
    def _me(self) -> Hashable:
        """Return the current thread or task. Raises `LockError` if there is none."""

    @property
    def grant(self) -> Grant:
        """The current owner's grant. Raises `LockNotHeld`."""
        owner = self._me()
        data = self._owners.get(owner)
        if data is None:
            raise LockNotHeld(f"{self.name} is not held by {_describe(owner)}")
        return data.grant

    @property
    def held_by_me(self) -> bool:
        """True if the current thread or task owns the lock and has not lost it."""
        data = self._owners.get(self._me())
        return data is not None and not data.grant.lost

    @property
    def hold_count(self) -> int:
        """The number of acquires of the current thread or task that are not released yet."""
        data = self._owners.get(self._me())
        return 0 if data is None else data.hold_count


def _describe(owner: Hashable) -> str:
    match owner:
        case threading.Thread():
            return f"thread {owner.name}"
        case asyncio.Task():
            return f"task {owner.get_name()}"
    return f"owner {owner!r}"
