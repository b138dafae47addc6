"""A program can read the log of a real instance."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import redis

from app.stock.redis.keys import Keys
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import eventually

PASSWORD = "redis-swordfish"
WORKER = "app.sale.worker"


def said(instance: Instance) -> list[dict[str, Any]]:
    """Return the lines of the log; each is an object."""
    return [json.loads(line) for line in (instance.directory / "output.log").read_text().splitlines()]


def about(instance: Instance, text: str) -> list[dict[str, Any]]:
    return [line for line in said(instance) if text in line["message"]]


def put_stock(instance: Instance, stock: int) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    httpx.put(f"{instance.url}/stock", headers=headers, json={"stock": stock}, timeout=30).raise_for_status()


@pytest.fixture
def lonely_etcd() -> Iterator[EtcdMember]:
    """Start an etcd that a test may harm."""
    with EtcdMember() as member:
        yield member


def test_each_line_is_an_object_and_each_grant_a_line(etcd: EtcdMember) -> None:
    """In calm and in trouble an instance logs JSON with its name, and nothing about buyers or secrets."""
    with Valkey(options=["--requirepass", PASSWORD]) as valkey:
        store = f"redis://:{PASSWORD}@127.0.0.1:{valkey.port}/0"
        options: dict[str, Any] = {"log_format": "json", "log_level": "debug", "purchase_timeout_ms": 5000}
        with Instance(etcd.endpoint, store, **options) as instance:
            put_stock(instance, 4)
            for bought in (1, 2, 3):
                assert instance.get("/stock/reduce?buyer=ann-of-the-lake")[0] == 200
                eventually(lambda so_far=bought: len(about(instance, " served, ")) == so_far, "a line for the grant")
            grants = about(instance, " served, ")
            valkey.kill()
            for path in ("/stock/reduce?buyer=bob-of-the-hill", "/readyz", "/orders/default~1-1~" + 32 * "a"):
                assert instance.get(path)[0] == 503
            with socket.create_connection(("127.0.0.1", instance.port), timeout=10) as raw:
                raw.sendall(b"no request at all\r\n\r\n")
                assert raw.recv(1000).startswith(b"HTTP/1.1 400")
            assert about(instance, "can't be reached")
            assert not [line for line in said(instance) if line["logger"] == "uvicorn.error"]
            assert {line["instance"] for line in said(instance)} == {str(instance.port)}
            log = (instance.directory / "output.log").read_text()
    assert not [text for text in (TOKEN, PASSWORD, "ann-of-the-lake", "bob-of-the-hill") if text in log]
    assert all(line["message"].startswith("/seckill/lock/all: 1 served, waited ") for line in grants)
    assert {(line["logger"], line["level"]) for line in grants} == {(WORKER, "DEBUG")}
    tokens = [line["token"] for line in grants]
    assert tokens == sorted(set(tokens))


@pytest.mark.slow
def test_a_rush_in_vain_is_not_a_rush_of_lines(etcd: EtcdMember) -> None:
    """Requests while the store is away don't log a line each: the same trouble is logged once a second or queue."""
    with (
        Valkey() as valkey,
        ThreadPoolExecutor(50) as buyers,
        Instance(etcd.endpoint, valkey.url, log_format="json", purchase_timeout_ms=5000) as instance,
    ):
        valkey.kill()
        began = time.monotonic()
        assert {instance.get("/stock")[0] for _ in range(50)} == {503}
        took_s = time.monotonic() - began
        assert 1 <= len(about(instance, "GET /stock: the store can't be reached")) <= 1 + took_s < 50
        assert {status for status, _ in buyers.map(instance.get, 50 * ["/stock/reduce"])} == {503}
        assert len(about(instance, "buyers wait: the store can't be reached")) == 1
        assert not about(instance, "/stock/reduce")


def test_a_line_says_what_it_is_about(lonely_etcd: EtcdMember, valkey: Valkey) -> None:
    """A line about an item names it, its grant and its batch; a line without a grant names no older one."""
    with (
        ThreadPoolExecutor() as buyers,
        Instance(
            lonely_etcd.endpoint, valkey.url, log_format="json", purchase_timeout_ms=60_000, drain_timeout_s=1
        ) as instance,
    ):
        put_stock(instance, 2)
        with redis.Redis.from_url(valkey.url) as raw:
            raw.hset(Keys("default").fence, "token", 10**15)
        buyer = buyers.submit(instance.get, "/stock/reduce")
        refused = eventually(lambda: about(instance, "buyers wait: the stock of"))[0]
        assert refused["message"].startswith("1 buyers wait: the stock of 'default' has seen token")
        assert (refused["logger"], refused["level"], refused["sku"]) == (WORKER, "WARNING", "default")
        assert f"ours is {refused['token']}:" in refused["message"]
        assert len(refused["batch"]) == 32
        lonely_etcd.kill()
        away = eventually(lambda: about(instance, "buyers wait: etcd does not answer"))[0]
        assert not {"sku", "token", "batch"} & away.keys()
    assert buyer.result()[0] == 503  # as it ends


def test_the_lock_says_whose_grant_it_could_not_give_back(lonely_etcd: EtcdMember, valkey: Valkey) -> None:
    """A failed release logs from a thread, and still names the grant's token."""
    options: dict[str, Any] = {"log_format": "json", "log_level": "debug", "store_timeout_ms": 10_000}
    with (
        ThreadPoolExecutor() as buyers,
        Instance(lonely_etcd.endpoint, valkey.url, audit_interval_s=0, **options) as instance,
    ):
        put_stock(instance, 4)
        assert instance.get("/stock/reduce")[0] == 200
        valkey.pause()
        try:
            buyer = buyers.submit(instance.get, "/stock/reduce")
            operator = {"Authorization": f"Bearer {TOKEN}"}
            eventually(lambda: 'holds":true' in httpx.get(f"{instance.url}/locks", headers=operator).text, "a grant")
            lonely_etcd.pause()
        finally:
            valkey.resume()
        assert buyer.result()[0] == 200
        stuck = eventually(lambda: about(instance, "could not be given back"))[0]
        lonely_etcd.resume()
        grant = eventually(lambda: about(instance, " served, ")[1:])[0]
        assert (stuck["logger"], stuck["token"]) == ("fencelock.renewer", grant["token"])
