"""An office is one instance's as long as its grant lasts, and is stood for again whatever ends a term."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from typing_extensions import override

from app.office import Office, holding
from fencelock import LockLost, LockUnavailable, connect
from tests.harness.virtual import VirtualLoop


class Clerk(Office[Any, "Clerk"]):
    """The office and its work at once; `told` is what happened to it, and `end` ends a term: an error, or none."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__("clerk", self._election)
        self.told = list[tuple[str, float]]()
        self.loop, self.end = loop, asyncio.Queue[Exception | None]()

    def tell(self, what: str) -> None:
        self.told.append((what, self.loop.time()))

    @asynccontextmanager
    async def _election(self) -> AsyncIterator[Any]:
        self.tell("elected")
        try:
            yield SimpleNamespace(lost=False)
        finally:
            await asyncio.sleep(1)
            self.tell("given up")

    @override
    def begin(self, grant: Any) -> "Clerk":
        self.given = grant
        return self

    async def run(self) -> None:
        if (error := await self.end.get()) is not None:
            raise error


@pytest.mark.parametrize("error", [None, LockLost("lost"), LockUnavailable("away"), ValueError("a bug")])
def test_a_term(caplog: pytest.LogCaptureFixture, error: Exception | None) -> None:
    """It ends with the work, and the next election comes after a pause; who closes an office waits until it is free."""
    loop = VirtualLoop()

    async def terms() -> None:
        clerk = Clerk(loop)
        await clerk.close()  # it did not begin yet
        clerk.start()
        await asyncio.sleep(1)
        assert clerk.in_office
        clerk.given.lost = True
        assert not clerk.in_office
        clerk.given.lost = False
        clerk.end.put_nowait(error)
        await asyncio.sleep(1)
        assert (clerk.in_office, clerk.work) == (False, None)
        await asyncio.sleep(3)
        assert clerk.in_office
        await clerk.close()
        assert (clerk.in_office, clerk.work) == (False, None)
        assert clerk.told == [("elected", 0), ("given up", 2), ("elected", 2.5), ("given up", 6)]

    with caplog.at_level(logging.INFO, "app.office"):
        loop.play(terms())
    loop.close()
    assert ("is the clerk no more: lost" in caplog.text) is isinstance(error, LockLost)
    assert ("unexpected error in the office of the clerk" in caplog.text) is isinstance(error, ValueError)


async def test_a_lock_holds_an_office() -> None:
    """The work is cancelled when its lock is lost; and a grant that anybody gets, as the lock is away, is none."""
    with connect("memory://offices") as locks:
        with pytest.raises(LockLost):
            async with asyncio.timeout(10), holding(locks.aio, "!clerk") as grant:
                grant.lease.lose("a pause was too long")
                await asyncio.Event().wait()
        with patch("app.office.degraded", lambda _: True), pytest.raises(LockUnavailable):
            async with holding(locks.aio, "!clerk"):
                pass
