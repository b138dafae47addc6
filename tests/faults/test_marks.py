"""What instances tell each other beside the locks of the orders that they have seen, step by step."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import redis

from app.embedded import EtcdMember, Valkey
from app.errors import LockUnavailable, StockBehind, StockError
from app.locks import EtcdBackend
from app.sale import marks
from app.sale.marks import Marks
from app.stock import Batch, Fence, Sold
from app.stock.redis.store import RedisStockStore

_PLACE = "/marks/!known/"  # no other test's


class Backend(EtcdBackend):
    """etcd; the next calls to remember may fail."""

    failing = 0

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        if self.failing:
            self.failing -= 1
            raise LockUnavailable("no answer")
        return super().remember(marks, instead_of=instead_of)


class Seller:
    """An instance, as far as it sells and remembers; `tick` is what it does twice a second."""

    def __init__(self, backend: Backend, valkey: Valkey, tokens: "itertools.count[int]") -> None:
        self.store = RedisStockStore(valkey.url)
        self.marks = Marks(backend, self.store, lambda sku: _PLACE + sku)
        self._tokens = tokens
        self._before: dict[str, str] = {}

    def _fence(self) -> Fence:
        return Fence(next(self._tokens), "etcd:1")

    async def put_on_sale(self, sku: str) -> None:
        await self.store.set_stock(sku, self._fence(), 100)

    async def sell(self, sku: str = "phone") -> str:
        """The order's mark."""
        fence = self._fence()
        batch_id = str(fence.token)
        seen = await self.store.read(sku, fence, batch_id)
        await self.store.commit(sku, fence, Batch(batch_id, seen.stock, [Sold(1)]))
        return self.store.marks()[sku]

    async def tick(self) -> None:
        now = self.store.marks()
        await self.marks.keep_now(self._before)
        self._before = now


class Scene:
    """Two sellers of one item; what is kept beside the locks; the store as it was."""

    def __init__(self, etcd: EtcdMember, valkey: Valkey) -> None:
        self.backend = Backend([etcd.endpoint])
        self._raw = redis.Redis.from_url(valkey.url)
        self._tokens = itertools.count(1)
        self._new = lambda: Seller(self.backend, valkey, self._tokens)
        self.sellers = [self._new(), self._new()]

    def newcomer(self) -> Seller:
        self.sellers.append(self._new())
        return self.sellers[-1]

    def kept(self, sku: str = "phone") -> str | None:
        return self.backend.recall([_PLACE + sku]).get(_PLACE + sku)

    def copy(self) -> Callable[[], None]:
        """Calling the answer puts the store back to what it is now."""
        dumps = {key: self._raw.dump(key) for key in self._raw.scan_iter()}

        def put_back() -> None:
            self._raw.flushall()
            for key, dump in dumps.items():
                self._raw.restore(key, 0, dump)

        return put_back

    async def end(self) -> None:
        for seller in self.sellers:
            await seller.store.close()
        for sku in ("phone", "case"):
            self.backend._client.delete(_PLACE + sku)
        self.backend.close()
        self._raw.close()


@asynccontextmanager
async def a_scene(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[tuple[Scene, Seller, Seller]]:
    scene = Scene(etcd, valkey)
    one, other = scene.sellers
    await one.put_on_sale("phone")
    try:
        yield scene, one, other
    finally:
        await scene.end()


def test_one_keeps_the_mark_of_an_item(etcd: EtcdMember, valkey: Valkey) -> None:
    """Of two who sell it one writes it, as long as that covers what the other has sold; then the other does."""

    async def main() -> None:
        async with a_scene(etcd, valkey) as (scene, one, other):
            of_other = ""
            for _ in range(3):
                of_one, of_other = await one.sell(), await other.sell()
                await one.tick()
                await other.tick()
                assert scene.kept() == of_one
            # The one sells no more.
            await other.tick()
            assert scene.kept() == of_other
            # It sells again, and the other's mark, which is older, does not do.
            of_other, of_one = await other.sell(), await one.sell()
            await other.tick()
            await one.marks.keep_now({"phone": of_one})
            assert scene.kept() == of_one > of_other
            # Somebody has removed it.
            scene.backend._client.delete(f"{_PLACE}phone")
            of_one = await one.sell()
            await one.tick()
            await one.tick()
            assert scene.kept() == of_one

    asyncio.run(main())


@pytest.mark.parametrize("ticks", [0, 1])
def test_who_alone_knows_of_a_lost_order_tells(etcd: EtcdMember, valkey: Valkey, ticks: int) -> None:
    """It was never beside the locks, and another goes on from the older store: that one and newcomers hear of it."""

    async def main() -> None:
        async with a_scene(etcd, valkey) as (scene, one, other):
            for _ in range(2):
                await one.sell()
                await other.sell()
                await one.tick()
                await other.tick()
            await one.sell()
            await one.tick()
            put_back = scene.copy()
            lost = await other.sell()
            await (third := scene.newcomer()).sell()
            for _ in range(ticks):
                await other.tick()
            assert scene.kept() != lost
            put_back()
            with pytest.raises(StockBehind):
                for _ in range(5):
                    await one.sell()
                    await one.tick()
                    await other.tick()
            # Who knows of another one doesn't put it in the place of one that is missing, too.
            await third.tick()
            await third.tick()
            assert scene.kept() == lost
            newcomer = scene.newcomer()
            await newcomer.marks.learn(["phone"])
            with pytest.raises(StockBehind):
                await newcomer.sell()

    asyncio.run(main())


def test_what_is_heard_meanwhile_is_not_written_over(etcd: EtcdMember, valkey: Valkey) -> None:
    """Who learns of an order while the store is asked about an earlier one has not found it yet."""

    async def main() -> None:
        async with a_scene(etcd, valkey) as (scene, one, other):
            await one.sell()
            await one.tick()
            await other.sell()
            await other.tick()  # learns of the one's
            put_back = scene.copy()
            of_one = await one.sell()
            ask = other.store.fences

            async def and_meanwhile(skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
                other.store.fences = ask  # type: ignore[method-assign]
                answers = await ask(skus)
                await one.tick()
                put_back()
                await other.marks.learn(["phone"])
                return answers

            other.store.fences = and_meanwhile  # type: ignore[method-assign]
            await other.tick()
            assert scene.kept() == of_one
            with pytest.raises(StockBehind):
                await other.sell()

    asyncio.run(main())


def test_what_is_heard_in_mid_round_is_not_gone_behind(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes many items a few at a time; a later order of one of those to come has been heard of by then."""
    monkeypatch.setattr(marks, "_AT_ONCE", 1)

    async def main() -> None:
        async with a_scene(etcd, valkey) as (scene, one, other):
            await one.put_on_sale("case")
            await one.sell("case")
            await one.tick()
            await other.sell("case")
            await other.tick()  # learns of the one's
            await other.sell("phone")
            ask = other.store.fences

            async def and_meanwhile(skus: Sequence[str]) -> dict[str, Fence | StockError | None]:
                assert skus == ["case"]
                other.store.fences = ask  # type: ignore[method-assign]
                of_one.append(await one.sell("phone"))
                await one.tick()
                await other.marks.learn(["phone"])
                return await ask(skus)

            of_one: list[str] = []
            other.store.fences = and_meanwhile  # type: ignore[method-assign]
            await other.tick()
            assert [scene.kept()] == of_one

    asyncio.run(main())


def test_the_last_ones_are_tried_again(etcd: EtcdMember, valkey: Valkey) -> None:
    """A call to the lock system that fails as an instance stops is not the last word."""

    async def main() -> None:
        async with a_scene(etcd, valkey) as (scene, one, _):
            one.marks.keep()
            of_one = await one.sell()
            scene.backend.failing = 2
            await one.marks.close()
            assert scene.kept() == of_one

    asyncio.run(main())


def test_what_is_no_mark_is_left_there(etcd: EtcdMember, valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else's, another kind of store's: it is said once, and other items are remembered all the same."""

    async def main() -> None:
        async with a_scene(etcd, valkey) as (scene, one, _):
            await one.put_on_sale("case")
            scene.backend.remember({f"{_PLACE}phone": "!theirs"}, instead_of={})
            for _ in range(3):
                await one.sell()
                of_case = await one.sell("case")
                await one.tick()
            assert (scene.kept(), scene.kept("case")) == ("!theirs", of_case)
            assert [record.getMessage() for record in caplog.records if "not a mark" in record.getMessage()] == [
                f"{_PLACE}phone is not a mark of ours: '!theirs'"
            ]

    asyncio.run(main())
