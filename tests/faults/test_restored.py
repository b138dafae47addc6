"""Servers come back older than they were: from a backup, from a copy, as a replica that lacks the last writes."""

import asyncio
import json
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import ItemBlocked, StockBehind
from app.orders import Outcome, Purchase
from app.settings import PREFIX
from fencelock.etcd.backend import EtcdBackend
from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process
from tests.harness.command import seckill
from tests.harness.shop import Counter, lock_url, shop
from tests.harness.waiting import eventually_async


@pytest.fixture
def own_etcd() -> Iterator[EtcdMember]:
    """Start an etcd that a test may harm."""
    with EtcdMember() as member:
        yield member


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """Start a store that a test may harm."""
    with Valkey(durable=True) as server:
        yield server


class Copy:
    """A copy of a server's disk at a moment; the server is stopped for that, and started again."""

    def __init__(self, server: Process, folder: str, at: Path) -> None:
        self._server, self._folder, self._at = server, folder, at
        server.kill()
        shutil.copytree(server.directory / folder, at)
        server.start()

    def put_back(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.directory / self._folder)
        shutil.copytree(self._at, self._server.directory / self._folder)
        self._server.start()


def check(etcd: EtcdMember, valkey: Valkey, *command: str) -> tuple[int, Any, str]:
    """Run `seckill check --json`, or another command; return exit status, output, and standard error."""
    env = {f"{PREFIX}LOCK": lock_url(etcd.endpoint), f"{PREFIX}STORE": valkey.url}
    done = seckill(*(command or ("check",)), "--json", env=env)
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


async def sold(one: Counter, count: int) -> None:
    for _ in range(count):
        await until_sold(one)


def nobody_queues(one: Counter) -> Callable[[], Awaitable[bool]]:
    async def empty() -> bool:
        return not await one.contenders()

    return empty


async def until_ready(one: Counter, *, stock: str) -> None:
    expected = {"store": "ok", "stock": stock}
    await eventually_async(lambda: one.ready(1), str(expected), until=lambda checks: checks.items() >= expected.items())


async def until_recorded(one: Counter, etcd: EtcdMember) -> None:
    """Wait until the auditor has recorded this instance's orders."""
    backend = EtcdBackend([etcd.endpoint])
    election = backend.election(f"{one.lock_prefix}!auditor")
    await eventually_async(
        lambda: asyncio.to_thread(election.recorded), until=lambda found: json.loads(found or "{}") == one.store.marks()
    )
    backend.close()


async def until_missed(one: Counter, skus: tuple[str, ...] = ("default",)) -> None:
    """Wait until the auditor has reported missing orders, whichever instance it is."""
    await eventually_async(lambda: one.auditor.verdict, until=lambda verdict: verdict and verdict.missing == skus)


async def until_sold(one: Counter) -> None:
    """Retry, as buyers do, until the purchase is sold."""
    answer = await eventually_async(lambda: one.submit(Purchase()), "it is sold", despite=ItemBlocked)
    assert answer.outcome is Outcome.SOLD


@pytest.mark.slow
async def test_a_store_that_lost_its_last_second(own_etcd: EtcdMember, own_valkey: Valkey, tmp_path: Path) -> None:
    """A store that lacks acknowledged orders sells nothing; /readyz and `check` report it, and the operator decides."""
    etcd, valkey = own_etcd, own_valkey
    options: dict[str, Any] = {"purchase_timeout_ms": 10_000, "audit_interval_s": 0.2}
    async with shop(etcd.endpoint, valkey.url, with_auditor=True, **options) as one:
        await one.set_stock("default", 10)
        await sold(one, 3)
        copy = await asyncio.to_thread(Copy, valkey, "appendonlydir", tmp_path / "older")
        await until_ready(one, stock="ok")
        await sold(one, 2)
        await until_recorded(one, etcd)
        await asyncio.to_thread(copy.put_back)
        # The store is consistent in itself, but two orders are missing.
        assert (await one.audit("default")).violations == []
        # The seller of these orders knows.
        with pytest.raises(ItemBlocked):
            await one.submit(Purchase())
        await until_ready(one, stock="not available")
    async with shop(etcd.endpoint, valkey.url, with_auditor=True, **options) as other:
        # A newcomer reads it in the lock system.
        await until_missed(other)
        with pytest.raises(ItemBlocked):
            await other.submit(Purchase())
        await until_ready(other, stock="not available")
        with pytest.raises(StockBehind, match=r"accept-loss"):
            await other.set_stock("default", 20)
        status, audits, _ = await asyncio.to_thread(check, etcd, valkey)
        assert status == 1
        assert "seckill stock accept-loss --sku default" in audits[0]["violations"][0]
        # The operator accepts the loss, where there is one.
        await other.set_stock("pen", 10)
        command = ("stock", "accept-loss", "--all", "--yes")
        status, levels, said = await asyncio.to_thread(check, etcd, valkey, *command)
        assert (status, [(level["sku"], level["lucky"]) for level in levels]) == (0, [("default", 3)])
        assert "has lost orders" in said
        status, levels, said = await asyncio.to_thread(check, etcd, valkey, *command)
        assert (status, levels, "no item is known to have lost orders" in said) == (0, [], True)
        await until_missed(other, skus=())
        await sold(other, 1)
        await until_ready(other, stock="ok")
        assert (await asyncio.to_thread(check, etcd, valkey))[0] == 0


async def test_a_store_without_its_whole_history(own_etcd: EtcdMember, own_valkey: Valkey) -> None:
    """A store that was emptied and whose stock was set by hand sells nothing until a new sale begins."""
    etcd, valkey = own_etcd, own_valkey
    async with shop(etcd.endpoint, valkey.url, purchase_timeout_ms=10_000) as one:
        await one.set_stock("default", 10)
        await sold(one, 3)
        with_hand = _cli(valkey, "FLUSHALL") + _cli(valkey, "SET stock 300")
        assert with_hand == "+OK+OK"
        with pytest.raises(ItemBlocked):
            await one.submit(Purchase())
        await one.set_stock("default", 300, new_sale=True)
        await sold(one, 1)
        await until_ready(one, stock="ok")
        assert (await one.audit("default")).violations == []


@pytest.mark.slow
async def test_an_etcd_restored_from_a_backup(own_etcd: EtcdMember, own_valkey: Valkey, tmp_path: Path) -> None:
    """The same cluster has a lower revision: its tokens are refused, with the reason, until `unfence` ends it."""
    etcd, valkey = own_etcd, own_valkey
    async with shop(etcd.endpoint, valkey.url, purchase_timeout_ms=10_000) as one:
        await one.set_stock("default", 100)
        await sold(one, 1)
        await eventually_async(nobody_queues(one))  # the last release comes after the answer
        copy = await asyncio.to_thread(Copy, etcd, "data", tmp_path / "backup")
        await until_ready(one, stock="ok")
        for _ in range(40):  # each attempt to sell has a higher token, too
            await sold(one, 1)
        await asyncio.to_thread(copy.put_back)
        with pytest.raises(ItemBlocked):
            await one.submit(Purchase())
        await until_ready(one, stock="not available")
        status, audits, _ = await asyncio.to_thread(check, etcd, valkey)
        assert status == 1
        assert "restored from an older backup" in audits[0]["violations"][0]
        assert "seckill stock unfence --sku default" in audits[0]["violations"][0]
        assert (await asyncio.to_thread(check, etcd, valkey, "stock", "unfence", "--yes"))[0] == 0
        await sold(one, 1)
        await until_ready(one, stock="ok")
        # Its token is lower, in a new epoch.
        before, last = (await one.orders("default"))[-2:]
        assert last.token < before.token
        assert (await one.audit("default")).violations == []


async def test_an_etcd_that_was_replaced(own_valkey: Valkey) -> None:
    """`check` reports another cluster before any purchase, /readyz does after the first one; one command ends it."""
    valkey = own_valkey
    with EtcdMember() as old, EtcdMember() as new:
        async with shop(old.endpoint, valkey.url) as one:
            for sku in ("default", "pen"):
                await one.set_stock(sku, 10)
            await sold(one, 1)
        status, audits, _ = await asyncio.to_thread(check, new, valkey)
        assert status == 1
        assert "tokens of two lock systems" in audits[0]["violations"][0]
        async with shop(new.endpoint, valkey.url, purchase_timeout_ms=10_000) as one:
            for sku in ("default", "pen"):
                with pytest.raises(ItemBlocked):
                    await one.submit(Purchase(sku=sku))
            await until_ready(one, stock="not available")
            command = ("stock", "unfence", "--all", "--yes")
            status, levels, _ = await asyncio.to_thread(check, new, valkey, *command)
            assert (status, {one["sku"] for one in levels}) == (0, {"default", "pen"})
            assert (await asyncio.to_thread(check, new, valkey))[0] == 0
            await sold(one, 1)
            await until_ready(one, stock="ok")


async def test_check_without_the_lock_system(own_etcd: EtcdMember, own_valkey: Valkey) -> None:
    """The audit needs only the store, and reports that it was not compared with etcd."""
    async with shop(own_etcd.endpoint, own_valkey.url) as one:
        await one.set_stock("default", 10)
    own_etcd.kill()
    status, audits, said = await asyncio.to_thread(check, own_etcd, own_valkey)
    assert (status, audits[0]["consistent"]) == (0, True)
    assert "not compared with the lock system" in said


def _cli(valkey: Valkey, command: str) -> str:
    with socket.create_connection(("127.0.0.1", valkey.port)) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(64).decode().strip()
