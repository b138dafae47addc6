"""What a stock store must do that takes batches which were decided without a read before them (ADR 12)."""

from collections.abc import Callable

import pytest

from app.errors import StockChanged
from app.stock import Ask, Batch, Level, Refused, Settled, Sold, StockStore
from tests.contract.store_contract import NOBODY, SOLD_OUT, FencedStoreContract, StoreSystem, decided, fence, sell


def supposed(store: StockStore, token: int, *sold: Sold | int, batch_id: str = "s", ask: Ask = NOBODY) -> Batch:
    """What is written without a read."""
    orders = [one if isinstance(one, Sold) else Sold(one) for one in sold]
    batch = store.suppose("default", fence(token), batch_id, orders, ask)
    assert batch is not None
    return batch


class SupposingStoreContract(FencedStoreContract):
    """What fenced stores do besides that take batches which were decided without a read."""

    def test_a_supposed_batch_is_written_whole(self, play: Callable[..., None]) -> None:
        """As if it had been read and announced before; one after the other under the same token, too."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 10)
            await store.read("default", fence(1), "look")
            ask = Ask(["ann", "bob"], ["k1"])
            first = supposed(store, 2, Sold(3, "ann", "k1"), Sold(1, "bob"), batch_id="first", ask=ask)
            ids = await store.commit("default", fence(2), first)
            second = supposed(store, 2, 1, 1, batch_id="second")
            ids += await store.commit("default", fence(2), second)
            assert [order.id for order in await store.orders("default")] == ids
            assert [order.batch_id for order in await store.orders("default")] == ["first"] * 2 + ["second"] * 2
            assert await store.level("default") == Level("default", 4, 6, 10, ids[-1].split("~")[1])
            assert await store.fence("default") == fence(2)
            seen = await store.read("default", fence(3), "b", buyers=["ann", "bob"], keys=["k1"])
            assert seen.bought == {"ann": 3, "bob": 1}
            assert seen.settled == {"k1": Settled("sold", 3, "ann", ids[0])}

        play(scenario)

    @pytest.mark.parametrize(
        "otherwise",
        [
            "too few",
            "a key is known",
            "a key was refused",
            "a buyer has bought",
            "outbid",
            "foreign",
            "unfenced",
            "no number",
            "behind",
            "another batch",
        ],
    )
    def test_a_supposed_batch_is_not_written_otherwise(
        self, system: StoreSystem, play: Callable[..., None], otherwise: str
    ) -> None:
        """Nothing has happened then; a read tells what there is, or what is wrong."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 10)
            seen = await store.read("default", fence(2), "b")
            refused = (Refused("refused", SOLD_OUT),)
            await store.commit("default", fence(2), decided(seen, Sold(4, "ann", "sold"), refused=refused))
            put_back = system.copy()
            own, wanted, ask, source = fence(4), 6, NOBODY, None
            match otherwise:
                case "too few":
                    wanted = 7
                case "a key is known":
                    ask = Ask(keys=["new", "sold"])
                case "a key was refused":
                    ask = Ask(keys=["refused", "new"])
                case "a buyer has bought":
                    ask = Ask(["bob", "ann"])
                case "outbid":
                    await store.read("default", fence(5), "theirs")
                case "foreign":
                    source = "etcd:2"
                case "unfenced":
                    await store.unfence("default")
                case "no number":
                    system.set_by_hand("default", -1)
                case "behind":
                    await sell(store, 3, 1)
                    put_back()
            batch = supposed(store, 4, wanted, ask=ask)
            if otherwise == "another batch":
                await store.read("default", fence(4), "another")
            if source:
                own = fence(4, source)
            before = system.copy_of_everything()
            with pytest.raises(StockChanged):
                await store.commit("default", own, batch)
            assert system.copy_of_everything() == before

        play(scenario)

    def test_a_supposed_batch_that_is_late(self, play: Callable[..., None]) -> None:
        """One that something else of its token was before is not written: neither another batch, nor the question."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 10)
            await store.read("default", fence(1), "look")
            late = [supposed(store, 2, 1, batch_id=f"late {number}") for number in range(2)]
            await store.commit("default", fence(2), supposed(store, 2, 1, batch_id="first"))
            with pytest.raises(StockChanged):
                await store.commit("default", fence(2), late[0])
            assert await store.settle("default", fence(2), late[1]) is None
            with pytest.raises(StockChanged):
                await store.commit("default", fence(2), late[1])
            asked = supposed(store, 3, 1, batch_id="asked")
            assert await store.settle("default", fence(3), asked) is None
            with pytest.raises(StockChanged):
                await store.commit("default", fence(3), asked)
            assert (await store.level("default")).lucky == 1

        play(scenario)

    def test_a_supposed_batch_is_found_after_others(self, system: StoreSystem, play: Callable[..., None]) -> None:
        """Whether it was written can be told for certain, also by a process that had seen nothing before."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 5001)
            other = system.open()
            for one in (store, other):
                token = 2 if one is store else 10
                await one.read("default", fence(token), "look")
                written = supposed(one, token, 1, 1, batch_id=f"b{token}")
                ids = await one.commit("default", fence(token), written)
                for later in range(token + 1, token + 5):
                    await sell(store, later, *[1] * 400)
                assert await one.settle("default", fence(token + 5), written) == ids
            await other.close()

        play(scenario)

    def test_a_supposed_batch_from_before_an_unfence(self, play: Callable[..., None]) -> None:
        """The tokens that it was decided under no longer count, though they be greater than those of now."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(100), 10)
            await sell(store, 101, 1)
            late = supposed(store, 102, 1)
            await store.unfence("default")
            assert await store.settle("default", fence(50), late) is None
            await sell(store, 51, 1)
            with pytest.raises(StockChanged):
                await store.commit("default", fence(102), late)
            assert await store.fence("default") == fence(51)

        play(scenario)

    def test_a_supposed_batch_of_what_went_away(self, system: StoreSystem, play: Callable[..., None]) -> None:
        """Once it is settled that it was not written, it isn't, though the item was not there at that time."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 10)
            await sell(store, 2, 1)
            late = supposed(store, 3, 1)
            system.remove_by_hand("default")
            assert await store.settle("default", fence(4), late) is None
            system.set_by_hand("default", 9)
            with pytest.raises(StockChanged):
                await store.commit("default", fence(3), late)
            assert (await store.level("default")).lucky == 1

        play(scenario)

    def test_nothing_is_supposed_of_what_was_not_looked_at(self, play: Callable[..., None]) -> None:
        """A process that has heard nothing of an item from the store reads first."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 10)
            assert store.suppose("default", fence(2), "s", [Sold(1)], NOBODY) is None

        play(scenario)

    def test_a_new_sale_begins_with_a_read(self, system: StoreSystem, play: Callable[..., None]) -> None:
        """What is known of the sale before says nothing of where to find a batch in this one."""

        async def scenario(store: StockStore) -> None:
            await store.set_stock("default", fence(1), 10)
            await sell(store, 2, 1)
            await store.set_stock("default", fence(3), 10, new_sale=True)
            await sell(other := system.open(instance="other"), 4, 1)
            await other.close()
            with pytest.raises(StockChanged):
                await store.commit("default", fence(5), supposed(store, 5, 1))
            await sell(store, 6, 1)
            await store.commit("default", fence(7), supposed(store, 7, 1))
            assert (await store.level("default")).lucky == 3

        play(scenario)
