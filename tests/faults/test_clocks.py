"""A store's clock that is wrong: it is told, an answer has one clock in it, and no jump takes units from who is paying.

The clocks are those of real servers, moved by a library of the lab's between the server and the kernel.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, MariaDB, RedisCluster, Valkey
from lab.torture.shim import Shim, set_controls
from tests.harness.servers import optional, optional_server
from tests.harness.shop import TOKEN, client, lock_url
from tests.harness.waiting import eventually_async

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
DAY_S = 86_400
Clock = Callable[[int], None]


@pytest.fixture(params=[pytest.param(one, marks=pytest.mark.slow) for one in (Valkey, MariaDB)])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Clock]]:
    """A store, and what sets its clock so many seconds ahead."""
    optional_server("cc", "gcc")
    shim, controls = Shim(tmp_path), tmp_path / "controls"
    assert shim.available
    server = optional(request.param)
    with monkeypatch.context() as its_own:
        for name, value in shim.environment(controls).items():
            its_own.setenv(name, value)
        server.start()
    try:
        yield server.url, lambda ahead_s: set_controls(controls, off_s=ahead_s)
    finally:
        server.stop()


async def hold(http: httpx.AsyncClient, **wish: Any) -> dict[str, Any]:
    answer = await http.post("/holds", json={"buyer": "ann"} | wish)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def offer(http: httpx.AsyncClient, stock: int) -> None:
    wish = {"stock": stock, "new_sale": True, "forget_orders": "all"}
    (await http.put("/stock", json=wish, headers=OPERATOR)).raise_for_status()


async def warned(http: httpx.AsyncClient) -> list[str]:
    answer = await eventually_async(lambda: http.get("/readyz"), until=lambda one: one.status_code == 200)
    return [warning for warning in answer.json()["warnings"] if "clock" in warning]


# Waits of MariaDB's would end at once if its clock alone were behind the kernel's.
@pytest.mark.parametrize(
    ("store", "ahead_s"),
    [(Valkey, -900), (Valkey, DAY_S), pytest.param(MariaDB, DAY_S, marks=pytest.mark.slow)],
    indirect=["store"],
)
async def test_a_clock_that_is_wrong_is_told(etcd: EtcdMember, store: tuple[str, Clock], ahead_s: int) -> None:
    """By `/readyz`, which stays ready, and by the metrics; the deadline and `now` of an answer are of one clock."""
    url, set_clock = store
    set_clock(ahead_s)
    async with client(etcd.endpoint, url, hold_s=600, pay_s=600) as http:
        await offer(http, 5)
        held = await hold(http)
        assert 590 < held["pay_by"] - held["now"] < 601
        held = (await http.get(f"/holds/{held['id']}")).json()
        assert 500 < held["pay_by"] - held["now"] < 601
        first, _ = await warned(http)
        assert first.startswith("the store's clock is ")
        assert ("behind this instance's" in first) == (ahead_s < 0)
        said = (await http.get("/metrics")).text
        offset = next(line for line in said.splitlines() if line.startswith("seckill_store_clock_offset_seconds "))
        assert abs(float(offset.split()[1]) - ahead_s) < 20


@pytest.mark.parametrize("store", [Valkey], indirect=True)
def test_the_command_tells_it_once(etcd: EtcdMember, store: tuple[str, Clock]) -> None:
    """`seckill check`, on standard error."""
    url, set_clock = store
    env = os.environ | {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": url}
    set_clock(-900)
    argv = [sys.executable, "-m", "app", "check"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("s behind this instance's: one of the two is wrong\n") == 1


async def test_a_jump_ends_no_hold(etcd: EtcdMember, store: tuple[str, Clock]) -> None:
    """A day ahead: a hold lasts as long as it was told, for two instances, and can be paid; then it ends."""
    url, set_clock = store
    about: dict[str, Any] = {"hold_s": 600, "pay_s": 600, "holds_from": "anybody", "shop_token": "the-shops-token"}
    async with client(etcd.endpoint, url, **about) as http, client(etcd.endpoint, url, instance="b", **about) as other:
        await offer(http, 5)
        held, later = await hold(http), await hold(http, buyer="bob")
        assert await warned(http) == []
        set_clock(DAY_S)
        for one in (http, other):  # each batch looks for what is due, and the second instance has seen no jump
            assert (await hold(one, buyer="cid"))["outcome"] == "held"
        assert (await http.get(f"/holds/{held['id']}")).json()["state"] == "held"
        assert (await other.post(f"/holds/{held['id']}/extend")).json()["outcome"] == "extended"
        shop = {"Authorization": "Bearer the-shops-token"}
        paid = await other.post(f"/holds/{later['id']}/confirm", json={"payment_ref": "p"}, headers=shop)
        assert paid.json()["outcome"] == "confirmed"
        assert len(await warned(http)) == len(await warned(other)) == 2
        set_clock(0)

        async def is_right() -> bool:
            return await warned(http) == []

        await eventually_async(is_right, "the clock is right again")
        assert (await http.get("/stock")).json()["held"] == 3


async def test_holds_end_by_the_time_that_has_passed(etcd: EtcdMember, store: tuple[str, Clock]) -> None:
    """Also while the store's clock is a day ahead, and those that begin meanwhile end once it has said so for long."""
    url, set_clock = store
    async with client(etcd.endpoint, url, hold_s=2, pay_s=2, grace_s=0) as http:
        await offer(http, 2)
        first = await hold(http)
        set_clock(DAY_S)
        second = await hold(http, buyer="bob")
        assert {first["outcome"], second["outcome"]} == {"held"}

        async def stock() -> int:
            return int((await http.get("/stock")).json()["stock"])

        assert len(await warned(http)) == 2
        await eventually_async(stock, "both have ended", until=lambda left: left == 2)


async def test_no_number_is_used_again(etcd: EtcdMember, store: tuple[str, Clock]) -> None:
    """Orders and events of a new sale have later names than those of the one before, though the clock was set back."""
    url, set_clock = store
    async with client(etcd.endpoint, url) as http:
        names = list[int]()
        for ahead_s in (DAY_S, 0, 0):
            set_clock(ahead_s)
            await offer(http, 5)
            held = await hold(http)
            names.append(int(held["id"].split("~")[1].replace("-", "")))
            await offer(http, 5)  # nothing of this one is sold
        assert names == sorted(set(names))


@pytest.mark.slow
async def test_each_server_of_a_cluster_has_a_clock(etcd: EtcdMember, tmp_path: Path) -> None:
    """One is a day ahead: an answer has the clock of its item in it, and holds of both end in time."""
    optional_server("cc", "gcc")
    shim, controls = Shim(tmp_path), tmp_path / "controls"
    env = shim.environment(controls)
    set_controls(controls, off_s=DAY_S)
    with RedisCluster(env=os.environ | env) as cluster:
        wrong = cluster.nodes[0]
        place = {
            cluster.owner_of(cluster.slot_of(f"{{{sku}}}")) is wrong: sku for sku in map("item{}".format, range(40))
        }
        skus = place[True], place[False]
        async with client(etcd.endpoint, cluster.url, hold_s=4, pay_s=4, grace_s=0) as http:
            for sku in skus:
                wish = {"stock": 1, "new_sale": True, "forget_orders": "all"}
                (await http.put(f"/stock?sku={sku}", json=wish, headers=OPERATOR)).raise_for_status()
            for held in [await hold(http, sku=sku) for sku in skus]:
                for said in (held, (await http.get(f"/holds/{held['id']}")).json()):
                    assert 0 < said["pay_by"] - said["now"] < 5
            told = await warned(http)
            assert len(told) == 2
            assert all(f"the store's clock at 127.0.0.1:{wrong.port} is" in warning for warning in told)

            async def stock() -> list[int]:
                return [(await http.get(f"/stock?sku={sku}")).json()["stock"] for sku in skus]

            await eventually_async(stock, "both have ended", until=lambda left: left == [1, 1])
