"""The store's clock counts for what holds begin with; it ends none of them by a jump."""

import asyncio
import logging
import time
from typing import Any

import pytest

from app.errors import StockError
from app.orders import Hold
from app.orders.terms import NO_TERMS, Terms
from app.sale.batch import Clocked, ask, decide_parts
from app.sale.clock import StoreClock, StoreClocks
from app.sale.queue import Entry, Item
from app.sale.rules import Rules
from app.sale.shop import Shop
from app.stock import Fence, Level
from app.telemetry.observer import Observer
from tests.harness.memory_store import MemoryServer, MemoryStockStore

DAY_S = 86_400.0
HOLD_S = 1620.0  # how long a hold lasts at most


class Clocks:
    """Three clocks: the store's, ours on the wall, and the time that has passed since the machine was started."""

    def __init__(self, *, store_ahead_s: float = 0.0) -> None:
        self.passed = 5000.0
        self.wall_s = 1_800_000_000.0
        self.store_s = self.wall_s + store_ahead_s
        self.ours = StoreClock(wall=lambda: self.wall_s, passed=lambda: self.passed)

    def go_on(self, for_s: float, *, of_store_s: float | None = None, ask_every_s: float = 5.0) -> None:
        """Let time pass, and ask the store now and then."""
        steps = max(1, round(for_s / ask_every_s))
        for _ in range(steps):
            self.passed += for_s / steps
            self.wall_s += for_s / steps
            self.store_s += (for_s if of_store_s is None else of_store_s) / steps
            self.hear()

    def hear(self, *, took_s: float = 0.01) -> None:
        self.ours.hear(round(self.store_s * 1000), self.passed - took_s)

    @property
    def ahead_s(self) -> float:
        return round(self.ours.ahead_s(HOLD_S))


def test_a_clock_that_goes_as_time_does_counts() -> None:
    """Also if it is slewed, if the answer takes long, and if it differs by seconds since another server took over."""
    clocks = Clocks(store_ahead_s=3.0)
    clocks.go_on(40_000, of_store_s=40_000 * 1.0005)
    clocks.store_s -= 25
    clocks.go_on(60)
    clocks.passed += 120  # we were stopped between question and answer
    clocks.wall_s += 120
    clocks.hear(took_s=120)
    assert (clocks.ahead_s, clocks.ours.jump_s, clocks.ours.warnings) == (0, 0, [])
    clocks.store_s += 120
    clocks.go_on(1)
    assert clocks.ours.now == pytest.approx(clocks.store_s, abs=0.1)


def test_a_jump_ahead_counts_once_no_hold_from_before_can_be_open(caplog: pytest.LogCaptureFixture) -> None:
    """It is told as long as it lasts, and a second jump begins all over."""
    clocks = Clocks()
    clocks.go_on(600)
    clocks.store_s += DAY_S
    with caplog.at_level(logging.WARNING):
        clocks.hear()
        clocks.go_on(HOLD_S - 10)
    assert clocks.ahead_s == DAY_S
    ahead, jumped = clocks.ours.warnings
    assert ahead == "the store's clock is 86,400 s ahead of this instance's: one of the two is wrong"
    assert jumped == (
        "the store's clock is 86,400 s ahead of the time that has passed: holds end by the latter until it is right"
    )
    assert [record.getMessage() for record in caplog.records] == [ahead, jumped]
    assert clocks.ours.now == pytest.approx(clocks.store_s, abs=0.1)  # what is told is by the store's all the same
    clocks.go_on(20)
    assert clocks.ahead_s == 0
    assert clocks.ours.ahead_s(2 * HOLD_S) == pytest.approx(DAY_S, abs=1)  # of an item whose holds last longer
    clocks.store_s += DAY_S
    clocks.hear()
    assert clocks.ahead_s == 2 * DAY_S


def test_a_clock_that_is_right_again_counts_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it has said in between."""
    clocks = Clocks()
    clocks.go_on(60)
    clocks.store_s += DAY_S
    clocks.go_on(300)
    clocks.store_s -= DAY_S
    with caplog.at_level(logging.INFO):
        clocks.go_on(5)
    assert (clocks.ahead_s, clocks.ours.warnings) == (0, [])
    assert caplog.messages[2:] == ["the store's clock is right again"]


def test_a_clock_that_was_behind_ends_no_hold_as_it_is_set_right() -> None:
    """Holds that began while it was behind last as long as they would have, and then it counts."""
    clocks = Clocks()
    clocks.store_s -= DAY_S
    clocks.go_on(60)
    clocks.store_s += DAY_S
    clocks.go_on(HOLD_S - 10)
    assert (clocks.ahead_s, clocks.ours.jump_s) == (DAY_S, 0)
    clocks.go_on(20)
    assert clocks.ahead_s == 0


def test_each_server_has_a_clock_of_its_own() -> None:
    """What one says moves no other's; they are told by their names, until a server is gone."""
    clocks = StoreClocks(lambda sku: sku[0])
    passed, now_ms = clocks.passed(), round(time.time() * 1000)
    for _ in range(3):
        clocks.hear({"a": now_ms, "b": now_ms + round(DAY_S * 1000)}, clocks.passed())
    assert clocks.of("apple").ahead_s(HOLD_S) == 0
    assert clocks.of("banana").ahead_s(HOLD_S) == clocks.jump_s == pytest.approx(DAY_S, abs=5)
    assert clocks.offset_s == pytest.approx(DAY_S, abs=5)
    assert [warning.partition(" is ")[0] for warning in clocks.warnings] == ["the store's clock at b"] * 2
    clocks.passed = lambda: passed + 3600
    clocks.hear({}, passed)
    assert (clocks.warnings, clocks.jump_s) == ([], 0)


@pytest.mark.parametrize("ahead_s", [DAY_S, -900.0])
def test_an_instance_that_starts_later_notices_it_too(ahead_s: float) -> None:
    """By its wall clock, as it has seen no jump."""
    clocks = Clocks(store_ahead_s=ahead_s)
    clocks.hear()
    assert clocks.ahead_s == max(0, ahead_s)
    assert clocks.ours.offset_s == pytest.approx(ahead_s, abs=0.1)
    assert len(clocks.ours.warnings) == 2


def test_a_clock_that_stands_still_or_jumps_back_is_told() -> None:
    """Nothing ends early by that, and nothing can be done about what ends late."""
    for stop_s, back_s in ((300.0, 0.0), (0.0, 900.0)):
        clocks = Clocks()
        clocks.go_on(60)
        clocks.store_s -= back_s
        clocks.go_on(stop_s or 60, of_store_s=0.0 if stop_s else None)
        assert clocks.ours.jump_s < -30
        assert clocks.ahead_s == 0
        assert clocks.ours.warnings[-1].endswith("behind the time that has passed: holds last that much longer")


def test_the_wall_clock_of_an_instance_may_jump() -> None:
    """It is told, and moves nothing."""
    clocks = Clocks()
    clocks.go_on(60)
    clocks.wall_s -= 3600
    clocks.go_on(60)
    assert clocks.ahead_s == 0
    assert clocks.ours.warnings == ["the store's clock is 3,600 s ahead of this instance's: one of the two is wrong"]


async def test_units_that_are_added_end_no_hold_and_no_line_by_a_jump() -> None:
    """They are offered to the first in line, and all else stays as it was: also in an operator's own process."""
    jump, fence, item, unanswered = [0.0], Fence(1, "memory"), Item("tv"), asyncio.get_running_loop().create_future()
    store = MemoryStockStore(MemoryServer(lambda: time.time() + jump[0]))
    clocks = StoreClocks({"tv": "the server"}.__getitem__)
    locks: Any = None  # an operator has the lock already
    shop = Shop(locks, store, Rules(), Observer(), lock_prefix="", clocks=clocks)
    await store.set_stock("tv", fence, 1, terms={"ends_at": time.time() + 3600})
    for buyer in ("ann", "bob", "cid"):
        entries = [Entry(Hold(1, "tv", buyer, wait=True), item, unanswered, 0.0, bool)]
        snapshot = (await store.prepare(fence, buyer, {"tv": ask(entries)}))["tv"]
        assert not isinstance(snapshot, StockError)
        (part,) = decide_parts(buyer, {item: snapshot}, entries, Clocked(NO_TERMS))
        await store.commit(fence, {"tv": part.write})
    jump[0] = DAY_S
    await store.set_stock("tv", fence, 1, add=True)
    await shop.serve_the_line("tv", fence)
    level = await store.level("tv")
    assert (level.stock, level.held, level.waiting) == (0, 2, 1)


@pytest.mark.parametrize(
    ("about", "terms", "due_in_s"),
    [
        ({"stock": 1, "wants": 1}, {}, 0.0),
        ({"stock": 1, "wants": 2, "held": 1}, {}, None),  # the first in line waits for what others hold
        ({"stock": 1, "wants": 3, "held": 1}, {}, 0.0),  # its wish can't be met, and keeps a unit from the others
        ({"stock": 0, "wants": 3, "held": 1}, {}, None),
        ({"stock": 1, "wants": 1}, {"paused": "tea"}, None),
        ({"stock": 1, "wants": 1}, {"starts_at": 1_020.0}, 20.0),
        ({"stock": 1, "wants": 2, "held": 1}, {"starts_at": 990.0, "ends_at": 1_030.0}, 30.0),
        ({"stock": 0, "wants": 1}, {"ends_at": 990.0}, -10.0),
        ({"stock": 1, "wants": 1, "waiting": 0, "due_in_s": 5.0}, {"ends_at": 990.0}, 5.0),
    ],
)
def test_when_a_line_is_due(about: dict[str, Any], terms: dict[str, Any], due_in_s: float | None) -> None:
    """For units that the next one may have, for a wish that can't be met, and as the hours begin or end."""
    locks: Any = None
    shop = Shop(locks, MemoryStockStore(MemoryServer(time.time)), Rules(), Observer(), lock_prefix="")
    own: dict[str, Any] = {"stock": 0, "waiting": 2, "now": 1_000.0} | about
    level = Level("tv", own.pop("stock"), 0, None, terms=Terms(**terms), **own)
    assert shop.due_in_s(level) == due_in_s
