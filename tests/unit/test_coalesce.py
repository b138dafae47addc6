"""Callers share look-ups, which are never older than the question, or cached for a second."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from app.errors import UnknownItem
from app.web.coalesce import Coalesced, TtlCache
from tests.harness.waiting import eventually_async


class Shelf:
    """A source that answers with its number of look-ups."""

    def __init__(self) -> None:
        self.looks: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def look(self, names: Sequence[str]) -> Mapping[str, int | Exception]:
        self.looks.append(list(names))
        number = len(self.looks)
        await self.may_answer.wait()
        return {name: UnknownItem(name) if name == "nope" else number for name in names}


async def test_a_thousand_who_ask_for_one_thing_are_one_look() -> None:
    """Callers between two look-ups share the next one; callers during a look-up share the one after it."""
    shelf = Shelf()
    looks = Coalesced(shelf.look)
    shelf.may_answer.clear()
    first = asyncio.create_task(looks.at("a"))
    while not shelf.looks:
        await asyncio.sleep(0)
    others = [asyncio.create_task(looks.at("a")) for _ in range(1000)]
    await asyncio.sleep(0)
    shelf.may_answer.set()
    assert await first == 1
    assert set(await asyncio.gather(*others)) == {2}


async def test_many_things_are_looked_up_together() -> None:
    """A call looks up a hundred things; an error reaches only the callers that asked for that thing."""
    shelf = Shelf()
    looks = Coalesced(shelf.look)
    names = [f"item-{number}" for number in range(250)] + ["nope"]
    found = await asyncio.gather(*(looks.at(name) for name in names for _ in range(2)), return_exceptions=True)
    assert [len(one) for one in shelf.looks] == [100, 100, 51]
    assert sum(isinstance(one, UnknownItem) for one in found) == 2


async def test_one_who_goes_takes_nobody_along() -> None:
    """When the first of several callers is cancelled, the others still get their answer."""
    shelf = Shelf()
    looks = Coalesced(shelf.look)
    shelf.may_answer.clear()
    first, second = (asyncio.create_task(looks.at("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    shelf.may_answer.set()
    assert await second == 1


async def test_cached() -> None:
    """All callers share a cached value until it is old; an error is not kept for longer either."""
    made = 0

    async def make(name: str) -> str:
        nonlocal made
        made += 1
        if made == 1:
            raise UnknownItem("not yet")
        return f"{name} {made}"

    cached = TtlCache(make, for_s=0.05)
    with pytest.raises(UnknownItem):
        await cached.at("a")
    await asyncio.sleep(0.06)  # the test is about this age
    assert set(await asyncio.gather(*(cached.at("a") for _ in range(100)))) == {"a 2"}
    assert await cached.at("b") == "b 3"
    await asyncio.sleep(0.06)
    assert await cached.at("a") == "a 4"


async def test_what_took_long_is_there_for_those_who_come_back() -> None:
    """One who gave up meanwhile gets it at the next try, although it was begun long ago."""
    made = 0

    async def make(name: str) -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0.5)  # the test is about this age
        return made

    cached = TtlCache(make, for_s=0.05)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cached.at(), 0.01)
    await eventually_async(lambda: cached._until, "it is made")
    assert await cached.at() == 1
    await eventually_async(cached.at, "it is old", until=lambda value: value == 2)
