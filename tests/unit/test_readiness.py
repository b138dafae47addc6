"""Whether a sale can go on, beside servers that are made up: each part, its words, and what is logged of it."""

import asyncio
import logging
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import StockBehind, StockCorrupt, StockUnavailable
from app.operator.readiness import Readiness
from app.stock import Fence
from fencelock import Contender, LockUnavailable


class Servers:
    """A lock system, a store and a shop, of which anything may be wrong."""

    name, lock_prefix = "etcd", "/lock/"

    def __init__(self) -> None:
        self.wrong: dict[str, Exception] = {}
        self.fences: dict[str, Any] = {}
        self.queues: dict[str, list[Contender]] = {}
        self.errors, self.waits, self.inspected = dict[str, Exception](), dict[str, float](), list[list[str]]()
        self.sells_something = True
        self.backend = SimpleNamespace(_renewing=True)
        self.heard = list[tuple[dict[str, int], float]]()

    async def ping(self, *given: float, timeout_s: float | None = None) -> None:
        assert (*given, timeout_s) in ((1.0, None), (1.0,))
        self._fail("lock" if given else "store")

    async def ensure_lasting(self, *, timeout_s: float) -> None:
        assert timeout_s == 1.0
        self._fail("lasting")

    async def clocks_ms(self, *, timeout_s: float | None) -> dict[str, int]:
        assert timeout_s == 1.0
        return {"a": 7}

    def _fail(self, part: str) -> None:
        if part in self.wrong:
            raise self.wrong[part]

    async def sells(self) -> bool:
        self._fail("sells")
        return self.sells_something

    async def inspect(self, skus: list[str]) -> dict[str, Any]:
        self.inspected.append(skus)
        return {sku: self.fences.get(sku) for sku in skus}

    async def items(self) -> list[str]:
        return sorted(self.fences)

    def marks(self) -> list[str]:
        return ["gone"]

    def lock_name(self, sku: str) -> str:
        return f"/lock/{sku}"

    def lock(self, name: str) -> Any:
        @asynccontextmanager
        async def holding(*, wait_s: float) -> Any:
            assert (name, wait_s) in (("/lock/new", 2.0), ("/lock/odd", 2.0))
            yield SimpleNamespace(token=7, source="etcd:1")

        async def contenders() -> list[Contender]:
            self._fail("queue")
            if name in self.queues:
                return self.queues[name]
            return await asyncio.Event().wait()  # type: ignore[return-value]

        return SimpleNamespace(holding=holding, contenders=contenders)

    async def contenders(self, prefix: str) -> list[Contender]:
        return [place("a", f"{prefix}all/1"), place("b", f"{prefix}!auditor/1")]


def place(instance: str, key: str = "/lock/x/1", *, holds: bool = True) -> Contender:
    return Contender(key, 1, {"instance": instance}, None, None, holds)


def made(servers: Any) -> Readiness:
    async def learn() -> None:
        servers.learned = True

    clocks: Any = SimpleNamespace(passed=lambda: 5.0, hear=lambda *told: servers.heard.append(told))
    return Readiness(servers, servers, servers, learn=learn, clocks=clocks)


WELL = {"etcd": "ok", "store": "ok", "renewal": "ok", "stock": "ok"}
AWAY = "not available"


async def test_each_part_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged once, until it is another one or over; an item alone is no reason, if others are sold."""
    servers = Servers()
    readiness = made(servers)
    assert await readiness.ready(1.0) == WELL
    assert servers.heard == [({"a": 7}, 5.0)]
    caplog.set_level(logging.INFO)
    for part, wrong in (("lock", "etcd"), ("store", "store"), ("lasting", "store")):
        servers.wrong = {part: LockUnavailable("no") if part == "lock" else StockUnavailable("no")}
        assert await readiness.ready(1.0) == WELL | {wrong: AWAY}
        assert await readiness.ready(1.0) == WELL | {wrong: AWAY}
        servers.wrong[part] = StockUnavailable("not yet")
        await readiness.ready(1.0)
        servers.wrong = {}
        assert await readiness.ready(1.0) == await readiness.ready(1.0) == WELL
        assert caplog.messages == [f"not ready, {wrong}: no", f"not ready, {wrong}: not yet", f"ready again: {wrong}"]
        caplog.clear()
    servers.backend._renewing = False
    assert await readiness.ready(1.0) == WELL | {"renewal": AWAY}
    servers.backend._renewing, servers.errors = True, {"lamp": StockCorrupt("odd")}
    assert await readiness.ready(1.0) == WELL
    servers.sells_something = False
    assert await readiness.ready(1.0) == WELL | {"stock": AWAY}
    servers.wrong = {"sells": StockUnavailable("no")}
    assert await readiness.ready(1.0) == WELL | {"stock": AWAY}
    servers.wrong, servers.sells_something = {"store": StockUnavailable("no")}, True
    assert await readiness.ready(1.0) == WELL | {"store": AWAY, "stock": AWAY}


async def test_a_fallback_is_no_reason_not_to_sell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock system is away, and the store alone decides meanwhile."""
    servers = Servers()
    servers.wrong = {"lock": LockUnavailable("no")}
    readiness = made(servers)
    assert readiness.mode == "lock"
    monkeypatch.setattr("app.operator.readiness.degraded", lambda locks: locks is servers)
    assert await readiness.ready(1.0) == WELL | {"etcd": "away"}
    assert readiness.mode == "optimistic"


async def test_who_keeps_it_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """The holders of the locks for which somebody waits for more than a second, as far as they can be asked."""
    servers = Servers()
    readiness = made(servers)
    servers.waits = {"/lock/a": 1.5, "/lock/b": 0.9, "/lock/c": 3.0}
    stranger = Contender("/lock/c/1", 1, {}, None, None, True)
    servers.queues = {"/lock/a": [place("x"), place("y", holds=False)], "/lock/b": [place("z")], "/lock/c": [stranger]}
    assert await readiness.waits_for(1.0) == ["/lock/c/1", "x"]
    assert "waited 1500 ms for /lock/a, which" in caplog.text
    del servers.queues["/lock/a"]
    assert await readiness.waits_for(0.05) == ["/lock/c/1"]  # the longest wait comes first, and then nobody answers
    servers.wrong = {"queue": LockUnavailable("no")}
    assert await readiness.waits_for(1.0) == []
    assert [one.owner["instance"] for one in await readiness.contenders()] == ["a"]  # the auditor's is no item's


async def test_the_faults_of_items() -> None:
    """A fence of another lock system, or one that is ahead of ours; what nobody has sold yet has none."""
    servers = Servers()
    servers.fences = {"new": None, "well": Fence(6, "etcd:1"), "ours": Fence(7, "etcd:1"), "odd": StockCorrupt("odd")}
    servers.fences |= {"ahead": Fence(8, "etcd:1"), "foreign": Fence(1, "redis:2")}
    found = await made(servers).faults_of(list(servers.fences))
    assert {sku: [text.partition(" of ")[0] for text in some] for sku, some in found.items() if some} == {
        "odd": ["odd"],
        "ahead": ["the stock"],
        "foreign": ["the stock"],
    }
    assert "has seen token 8, ours is 7" in found["ahead"][0]
    assert "is fenced by redis:2" in found["foreign"][0]
    assert await made(servers).faults("odd") == ["odd"]
    assert await made(servers).faults("new") == []


async def test_the_items_that_have_lost_orders() -> None:
    """Also those that are in the auditor's record alone; all are looked at, a hundred at once."""
    servers = Servers()
    servers.fences = {f"item-{n:03}": StockBehind("lost") if n % 100 == 99 else None for n in range(250)}
    servers.fences["odd"] = StockCorrupt("odd")
    assert await made(servers).behind() == ["item-099", "item-199"]
    assert [len(some) for some in servers.inspected] == [100, 100, 52]
    assert "gone" in servers.inspected[0]
