"""Answers that get lost, stores and locks that go away in the middle: nobody is told what is not so."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from app.embedded import EtcdMember, Valkey
from app.errors import FenceRefused, NotDecided, OutcomeUnknown
from app.locks import EtcdBackend
from app.sale import Answer, Outcome, Purchase
from app.stock import Batch, Fence, Sold
from app.stock.redis import RedisStockStore
from tests.harness.proxy import Proxy
from tests.harness.servers import etcdctl
from tests.harness.shop import buy, shop
from tests.harness.waiting import eventually_async


def counted(answers: list[Any]) -> Counter[str]:
    return Counter(answer.outcome.value if isinstance(answer, Answer) else type(answer).__name__ for answer in answers)


# A commit is the call that carries a batch id; its script's name is a hash, so the marker is something in its values.
COMMIT = b"buyer-of-the-lost"


@pytest.mark.parametrize("keys", [True, False])
def test_a_lost_answer_is_settled_before_anybody_is_told(etcd: EtcdMember, valkey: Valkey, keys: bool) -> None:
    """The commit was applied, its answer was lost: after reconnecting, each buyer is told "sold" and has one order."""

    async def main() -> None:
        with Proxy(valkey.port) as proxy:
            async with shop(etcd.endpoint, f"redis://127.0.0.1:{proxy.port}/0") as one:
                await one.set_stock("default", 10)
                await one.buy(Purchase())
                proxy.lose_answer_to(b'"buyer":"' + COMMIT)
                purchases = [Purchase(buyer=COMMIT.decode(), key=f"k{number}" if keys else None) for number in range(3)]
                buying = asyncio.gather(*(one.buy(purchase) for purchase in purchases))
                await asyncio.to_thread(proxy.lost.wait, 15)
                assert not buying.done()
                proxy.restore()
                answers = await buying
                assert {answer.outcome for answer in answers} == {Outcome.SOLD}
                audit = await one.audit("default")
                assert (audit.lucky, audit.orders, audit.violations) == (4, 4, [])
                orders = {order.id for order in await one.orders("default")}
                assert {answer.order_id for answer in answers} < orders

    asyncio.run(main())


def test_a_lost_answer_is_settled_after_others_have_sold(etcd: EtcdMember, valkey: Valkey) -> None:
    """While the answer was out, our lease ended and another instance sold: what we wrote is found among the orders."""

    async def main() -> None:
        with Proxy(valkey.port) as proxy:
            async with (
                shop(etcd.endpoint, f"redis://127.0.0.1:{proxy.port}/0", purchase_timeout_ms=60_000) as one,
                shop(etcd.endpoint, valkey.url) as other,
            ):
                await one.set_stock("default", 10)
                await one.buy(Purchase())
                proxy.lose_answer_to(b'"buyer":"' + COMMIT)
                buying = asyncio.create_task(one.buy(Purchase(buyer=COMMIT.decode())))
                await asyncio.to_thread(proxy.lost.wait, 15)
                # As if it had lost its lock: the key is deleted, the next in line sells.
                holder = (await other.contenders())[0]
                await asyncio.to_thread(_revoke, etcd, holder.key)
                assert (await other.buy(Purchase())).outcome is Outcome.SOLD
                assert not buying.done()
                proxy.restore()
                answer = await buying
                assert answer.outcome is Outcome.SOLD
                assert answer.order_id is not None
                assert await other.order(answer.order_id) is not None
                audit = await other.audit("default")
                assert (audit.lucky, audit.orders, audit.violations) == (3, 3, [])

    asyncio.run(main())


def test_a_commit_that_never_arrived_is_decided_anew(etcd: EtcdMember, valkey: Valkey) -> None:
    """The commit did not arrive, and another instance sold meanwhile: the buyer is decided again, and sold to once."""

    async def main() -> None:
        with Proxy(valkey.port) as proxy:
            async with (
                shop(etcd.endpoint, f"redis://127.0.0.1:{proxy.port}/0", purchase_timeout_ms=60_000) as one,
                shop(etcd.endpoint, valkey.url) as other,
            ):
                await one.set_stock("default", 10)
                await one.buy(Purchase())
                proxy.lose_request(b'"buyer":"' + COMMIT)
                buying = asyncio.create_task(one.buy(Purchase(buyer=COMMIT.decode())))
                await asyncio.to_thread(proxy.lost.wait, 15)
                holder = (await other.contenders())[0]
                await asyncio.to_thread(_revoke, etcd, holder.key)
                assert (await other.buy(Purchase())).outcome is Outcome.SOLD
                assert (await other.level("default")).lucky == 2
                proxy.restore()
                assert (await buying).outcome is Outcome.SOLD
                audit = await other.audit("default")
                assert (audit.lucky, audit.orders, audit.violations) == (3, 3, [])

    asyncio.run(main())


def test_an_answer_that_stays_lost(etcd: EtcdMember, valkey: Valkey) -> None:
    """The store is gone for good after the commit: at the deadline "outcome unknown"; the same key tells later."""

    async def main() -> None:
        with Proxy(valkey.port) as proxy:
            async with shop(etcd.endpoint, f"redis://127.0.0.1:{proxy.port}/0", purchase_timeout_ms=500) as one:
                await one.set_stock("default", 10)
                await one.buy(Purchase())
                proxy.lose_answer_to(b'"buyer":"' + COMMIT)
                with pytest.raises(OutcomeUnknown):
                    await one.buy(Purchase(buyer=COMMIT.decode(), key="k"))
                proxy.restore()
                answer = await _until_answered(one, Purchase(buyer=COMMIT.decode(), key="k"))
                assert (answer.outcome, answer.replayed) == (Outcome.SOLD, True)
                assert (await one.audit("default")).lucky == 2

    asyncio.run(main())


@pytest.mark.parametrize("which", ["etcd", "store"])
def test_a_server_that_is_away_and_comes_back(which: str) -> None:
    """While a server is away buyers wait, and are told "not decided" at their deadline; then all is well again."""
    with EtcdMember() as etcd, Valkey(durable=True) as valkey:

        async def main() -> None:
            async with shop(etcd.endpoint, valkey.url, purchase_timeout_ms=1000, lock_ttl_s=2) as one:
                await one.set_stock("default", 100)
                assert counted(await buy(one, 10)) == {"sold": 10}
                victim = etcd if which == "etcd" else valkey
                await asyncio.to_thread(victim.kill)
                lost = await buy(one, 10)
                assert set(counted(lost)) <= {"NotDecided", "StockUnavailable"}
                assert all(check == "ok" for check in (await one.ready(1)).values()) is False
                await asyncio.to_thread(victim.start)

                async def ready() -> bool:
                    return all(check == "ok" for check in (await one.ready(1)).values())

                await eventually_async(ready)
                # What a call left behind in etcd as it died may stand in the way for a moment longer.
                assert (await _until_answered(one, Purchase())).outcome is Outcome.SOLD
                assert counted(await buy(one, 10)) == {"sold": 10}
                audit = await one.audit("default")
                assert (audit.lucky, audit.orders, audit.violations) == (21, 21, [])

        asyncio.run(main())


def test_a_short_outage_is_only_a_delay() -> None:
    """An etcd or a store that is frozen for less than the buyers' deadline costs them time, not their purchase."""
    with EtcdMember() as etcd, Valkey() as valkey:

        async def main() -> None:
            async with shop(etcd.endpoint, valkey.url) as one:
                await one.set_stock("default", 100)
                await one.buy(Purchase())
                for victim in (etcd, valkey):
                    victim.pause()
                    buying = asyncio.create_task(buy(one, 10))

                    async def queued() -> bool:
                        return one.waiting == {"default": 10}

                    await eventually_async(queued)
                    victim.resume()
                    assert counted(await buying) == {"sold": 10}
                assert (await one.audit("default")).violations == []

        asyncio.run(main())


def test_a_paused_holder_writes_nothing(etcd: EtcdMember, valkey: Valkey) -> None:
    """An instance that lost its lock between its read and its write, unaware of it, is stopped by the fence."""

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 10)
            backend = EtcdBackend([etcd.endpoint], ttl_s=5)
            store = RedisStockStore(valkey.url)
            try:
                lock = backend.lock("/seckill/lock/default")
                # The one that will be paused: it has the lock, and has read.
                grant = await asyncio.to_thread(lock.acquire, owner="paused")
                seen = await store.read("default", Fence(grant.token, grant.source), "late")
                await asyncio.to_thread(_revoke, etcd, grant.key)
                # Its successor sells.
                assert (await one.buy(Purchase())).outcome is Outcome.SOLD
                # It wakes, believes in its lease still (its clock says so), and writes.
                with pytest.raises(FenceRefused):
                    await store.commit(
                        "default", Fence(grant.token, grant.source), Batch("late", seen.stock, [Sold(1)])
                    )
                audit = await one.audit("default")
                assert (audit.lucky, audit.stock, audit.violations) == (1, 9, [])
            finally:
                await store.close()
                backend.close()

    asyncio.run(main())


def test_a_fence_of_another_etcd_sells_nothing_until_the_operator_says_so(valkey: Valkey) -> None:
    """A new etcd in front of an old store: buyers are not sold to, `unfence` opens the sale again."""
    with EtcdMember() as old, EtcdMember() as new:

        async def main() -> None:
            async with shop(old.endpoint, valkey.url) as one:
                await one.set_stock("default", 10)
                await one.buy(Purchase())
            async with shop(new.endpoint, valkey.url, purchase_timeout_ms=500) as one:
                with pytest.raises(NotDecided):
                    await one.buy(Purchase())
                await one.unfence("default")
                assert (await one.buy(Purchase())).outcome is Outcome.SOLD
                assert (await one.level("default")).lucky == 2

        asyncio.run(main())


async def _until_answered(one: Any, purchase: Purchase) -> Answer:
    answer: Answer | None = None

    async def asked() -> bool:
        nonlocal answer
        try:
            answer = await one.buy(purchase)
        except Exception:
            return False
        return True

    await eventually_async(asked)
    assert answer is not None
    return answer


def _revoke(etcd: EtcdMember, key: str) -> None:
    etcdctl(etcd.endpoint, "lease", "revoke", key.rpartition("/")[2])
