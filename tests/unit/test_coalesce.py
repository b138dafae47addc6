"""Callers share look-ups, which are never older than the question, or cached for a second."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from app.errors import StockUnavailable, UnknownItem
from app.web.coalesce import Coalesced, TtlCache
from tests.harness.virtual import VirtualLoop

Play = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def play() -> Any:
    """Run a story on a clock of its own."""
    loop = VirtualLoop()
    yield loop.play
    loop.play(asyncio.sleep(60))  # the last look has its rest
    loop.close()


class Shelf:
    """A source that answers with its number of look-ups."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.looks: list[list[str]] = []
        self.takes_s = takes_s
        self.away = False

    async def look(self, names: Sequence[str]) -> Mapping[str, int | Exception]:
        self.looks.append(list(names))
        number = len(self.looks)
        await asyncio.sleep(self.takes_s)
        if self.away:
            raise StockUnavailable("it is away")
        return {name: UnknownItem(name) if name == "nope" else number for name in names}


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_thousand_who_ask_for_one_thing_are_one_look(play: Play) -> None:
    """Callers between two look-ups share the next one; callers during a look-up share the one after it."""

    async def story() -> None:
        looks = Coalesced(Shelf(takes_s=0.02).look)
        first = asyncio.create_task(looks.at("a"))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(looks.at("a")) for _ in range(1000)]
        assert await first == 1
        assert set(await asyncio.gather(*others)) == {2}

    play(story())


@pytest.mark.parametrize(("takes_s", "each_s"), [(0.0, 0.1), (0.05, 0.25), (2.0, 2.5)])
def test_looks_rest_for_four_fifths_of_the_time(play: Play, takes_s: float, each_s: float) -> None:
    """Ten times a second at most; a look that takes long waits for the store, and half a second is enough then."""

    async def story() -> None:
        looks = Coalesced(Shelf(takes_s).look)
        for number in range(1, 5):
            assert await looks.at("a") == number
        assert now() == pytest.approx(3 * each_s + takes_s)
        await asyncio.sleep(60)  # nobody asks any more
        assert await looks.at("a") == 5
        assert now() == pytest.approx(3 * each_s + takes_s + 60 + takes_s)

    play(story())


def test_many_things_are_looked_up_together(play: Play) -> None:
    """A call looks up a hundred things; an error reaches only the callers that asked for that thing."""

    async def story() -> None:
        shelf = Shelf()
        looks = Coalesced(shelf.look)
        names = [f"item-{number}" for number in range(250)] + ["nope"]
        found = await asyncio.gather(*(looks.at(name) for name in names for _ in range(2)), return_exceptions=True)
        assert [len(one) for one in shelf.looks] == [100, 100, 51]
        assert sum(isinstance(one, UnknownItem) for one in found) == 2

    play(story())


def test_one_who_goes_takes_nobody_along(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """The others get their answer, or their error; and an error for nobody is no defect."""

    async def story() -> None:
        shelf = Shelf(takes_s=1.0)
        looks, cached = Coalesced(shelf.look), TtlCache(lambda name: shelf.look([name]))
        for ask in (looks.at, cached.at):
            first, second = (asyncio.create_task(ask("a")) for _ in range(2))
            await asyncio.sleep(0.5)
            first.cancel()
            assert await second
            shelf.away = True
            first, second = (asyncio.create_task(ask("b")) for _ in range(2))
            await asyncio.sleep(0.5)
            first.cancel()
            with pytest.raises(StockUnavailable):
                await second
            alone = asyncio.create_task(ask("c"))
            await asyncio.sleep(0.5)
            alone.cancel()
            await asyncio.sleep(60)
            shelf.away = False
            assert await ask("b")

    play(story())
    gc.collect()
    assert not caplog.messages


def test_cached(play: Play) -> None:
    """All callers share a cached value until it is old; an error is not kept for longer either."""
    made = 0

    async def make(name: str) -> str:
        nonlocal made
        made += 1
        if made == 1:
            raise UnknownItem("not yet")
        return f"{name} {made}"

    async def story() -> None:
        cached = TtlCache(make, for_s=5.0)
        with pytest.raises(UnknownItem):
            await cached.at("a")
        with pytest.raises(UnknownItem):
            await cached.at("a")
        await asyncio.sleep(5.0)
        assert set(await asyncio.gather(*(cached.at("a") for _ in range(100)))) == {"a 2"}
        assert await cached.at("b") == "b 3"
        await asyncio.sleep(4.9)
        assert await cached.at("a") == "a 2"
        await asyncio.sleep(0.1)
        assert await cached.at("a") == "a 4"

    play(story())


def test_what_took_long_is_there_for_those_who_come_back(play: Play) -> None:
    """One who gave up meanwhile gets it at the next try, although it was begun long ago."""
    shelf = Shelf(takes_s=10.0)

    async def story() -> None:
        cached = TtlCache(lambda name: shelf.look([name]), for_s=1.0)
        for give_up_s in (2.0, 2.0):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(cached.at("a"), give_up_s)
        await asyncio.sleep(15.0)
        assert await cached.at("a") == {"a": 1}
        await asyncio.sleep(1.0)
        assert await cached.at("a") == {"a": 2}

    play(story())
