"""The shop of docs/shop.md goes through all of the provider's bad days, and its books are the service's."""

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from lab.callback import signed
from lab.demo.provider import ProviderProcess
from lab.demo.sandbox import DAYS
from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process, free_port
from lab.torture.proxy import Proxy
from tests.harness.command import seckill
from tests.harness.receiver import SECRET
from tests.harness.shop import TOKEN, ThreadedInstance, lock_url
from tests.harness.waiting import eventually

SHOP = Path(__file__).parents[2] / "examples" / "shop.py"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
STOCK, PRICE = 60, 499
SHOP_TOKEN = "of-the-shop-alone"
UNPAID = ("amount", "currency", "foreign", "unsigned")  # after these days the buyer gives up


def is_up(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/", timeout=5).status_code == 404
    return False


class Stage:
    """An instance, a provider, and the shop, whose requests to the instance go through `path`."""

    def __init__(self, etcd: str, store: str, database: Path) -> None:
        self.provider = ProviderProcess(port=free_port())
        port = free_port()
        given: dict[str, Any] = {"payments_secret": self.provider.variables["PAYMENTS_SECRET"]}
        given |= {"holds_from": "shop", "shop_token": SHOP_TOKEN, "grace_s": 0.2, "audit_interval_s": 1}
        given |= {"webhook_url": f"http://127.0.0.1:{port}/events", "webhook_secret": SECRET, "webhook_retry_s": 0.1}
        self.instance = ThreadedInstance(etcd, store, **given)
        self.leading = {"SECKILL_LOCK": lock_url(etcd), "SECKILL_STORE": store}
        self.path = Proxy(self.instance.port)
        self.url = f"http://127.0.0.1:{port}"
        variables = {"SECKILL_URL": f"http://127.0.0.1:{self.path.port}", "SECKILL_SHOP_TOKEN": SHOP_TOKEN}
        variables |= {"SECKILL_WEBHOOK_SECRET": SECRET, "PROVIDER_URL": self.provider.url}
        variables |= {"SHOP_DB": str(database), "PORT": str(port)}
        self.shop = Process(
            "shop", lambda _: [sys.executable, str(SHOP)], env=os.environ | variables, ready=self._is_up
        )
        self.database = database

    def _is_up(self) -> bool:
        return is_up(self.url)

    def put(self, cart: str, quantity: int, **more: Any) -> dict[str, Any]:
        """Put a cart, and return the shop's answer."""
        wish = {"buyer": cart, "items": [{"sku": "default", "quantity": quantity}]} | more
        answer = httpx.put(f"{self.url}/carts/{cart}", json=wish, timeout=90)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def begin(self, cart: str, quantity: int, **more: Any) -> str:
        """Put a cart, and return the hold that its buyer is sent to pay."""
        answer = self.put(cart, quantity, **more)
        assert answer["outcome"] == "held"
        return parse_qs(urlsplit(answer["pay"]).query)["hold"][0]

    @contextmanager
    def lost_answer(self) -> Iterator[None]:
        """A hold is made, and its answer lost: the shop asks again with the same key."""

        def restore() -> None:
            assert self.path.struck.wait(60)
            self.path.restore()

        self.path.lose_answer_to(b"POST /holds ")
        with ThreadPoolExecutor(1) as beside:
            restored = beside.submit(restore)
            yield
            restored.result()

    def play(self, day: str, hold: str) -> None:
        """Press a button of the sandbox, and wait for the end."""
        at = f"{self.provider.url}/sandbox"
        assert httpx.post(f"{at}/play", data={"hold": hold, "day": day}, timeout=60).status_code == 303
        eventually(lambda: all(one["done"] for one in httpx.get(f"{at}/plays").json()), f"{day} is over")

    def terms(self, **change: Any) -> None:
        httpx.put(f"{self.instance.url}/stock", json=change, headers=OPERATOR, timeout=30).raise_for_status()

    def orders(self) -> list[dict[str, Any]]:
        """The service's orders."""
        answer = httpx.get(f"{self.instance.url}/orders", params={"limit": 1000}, headers=OPERATOR, timeout=30)
        return list(answer.json()["orders"])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Look into the shop's books."""
        with sqlite3.connect(self.database) as books:
            return list(books.execute(query))

    def agrees(self) -> bool:
        """Whether the shop has heard everything, and has given back what was owed."""
        orders = {one["ref"]: one for one in self.orders()}
        shop = dict(self.rows("SELECT id, state FROM cart"))
        told = shop == {cart: one["state"] for cart, one in orders.items()}
        return told and not any(one["attention"] for one in orders.values())


@pytest.fixture
def stage(etcd: EtcdMember, valkey: Valkey, tmp_path: Path) -> Iterator[Stage]:
    one = Stage(etcd.endpoint, valkey.url, tmp_path / "shop.db")
    with ExitStack() as running:
        running.enter_context(one.path)
        running.enter_context(one.instance)
        one.terms(stock=STOCK, new_sale=True, forget_orders="all", price=PRICE, currency="EUR")
        running.enter_context(one.provider.of([one.instance.url]))
        running.enter_context(one.shop)
        yield one


@pytest.mark.slow
def test_it_is_small_and_well_typed() -> None:
    """A whole back end in some 130 lines, which mypy's strict checks accept."""
    assert len(SHOP.read_text().splitlines()) <= 134
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", SHOP], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_a_service_that_came_back_older_is_believed(tmp_path: Path) -> None:
    """What happened after a restore has a number that was there, and a new id: it counts, once, and is for a look."""
    database, port = tmp_path / "shop.db", free_port()
    url = f"http://127.0.0.1:{port}"
    nobody = {"SECKILL_URL": "http://127.0.0.1:1", "PROVIDER_URL": "http://127.0.0.1:1", "SECKILL_SHOP_TOKEN": "x"}
    env = os.environ | nobody | {"SECKILL_WEBHOOK_SECRET": SECRET, "SHOP_DB": str(database), "PORT": str(port)}

    def tell(name: str, kind: str, **said: Any) -> None:
        items = [{"sku": "lamp", "quantity": 1}, {"sku": "bulb", "quantity": 2}, {"sku": "cable", "quantity": 0}]
        data = {"ref": "c1", "about": "order", "items": items, "payment_ref": None, "amount": None, **said}
        body = json.dumps({"type": kind, "data": data})
        headers = signed(SECRET, name, body)
        assert httpx.post(f"{url}/events", content=body, headers=headers, timeout=30).status_code == 200

    def books(query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(database) as found:
            return list(found.execute(query))

    with Process("shop", lambda _: [sys.executable, str(SHOP)], env=env, ready=lambda: is_up(url)):
        books("INSERT INTO cart (id, buyer, items) VALUES ('c1', 'ann', '[]')")
        tell("lamp~1", "order.held", state="held", number=1)
        tell("lamp~2", "order.cancelled", state="cancelled", number=2)
        assert books("SELECT state, number, odd FROM cart") == [("cancelled", 2, 0)]
        for _ in range(2):
            tell(
                "lamp~3",
                "order.confirmed",
                state="confirmed",
                number=2,
                payment_ref="p",
                sums=[{"currency": "EUR", "kept": 5}],
            )
        tell("lamp~2", "order.cancelled", state="cancelled", number=2)
        assert books("SELECT state, number, odd, paid FROM cart") == [("confirmed", 2, 1, 5)]
        assert books("SELECT * FROM shipment") == [("c1", "lamp", 1), ("c1", "bulb", 2)]


@pytest.mark.slow
def test_the_books_agree_after_all_bad_days(stage: Stage) -> None:
    """Each day once; answers are lost, the shop is killed, and all events come again. Then the shop's books are the
    service's and the provider's, to the unit and the cent, and nothing was shipped twice.
    """
    for number, day in enumerate(DAYS):
        if day == "late":
            stage.terms(add=True, stock=0, hold_s=1, pay_s=1)
        cart = str(uuid.uuid4())
        with stage.lost_answer() if number % 4 == 1 else nullcontext():
            hold = stage.begin(cart, 1 + number % 3)
        assert stage.begin(cart, 1 + number % 3) == hold  # the page is loaded again
        if day == "late":
            stage.terms(add=True, stock=0, hold_s=600, pay_s=600)
        if number % 4 == 2:  # it dies, misses what happens, and is back later
            stage.shop.kill()
        stage.play(day, hold)
        if number % 4 == 2:
            stage.shop.start()
        if day in UNPAID:
            httpx.post(f"{stage.instance.url}/holds/{hold}/cancel", timeout=30).raise_for_status()
    eventually(stage.agrees, "the shop has heard everything", 120)
    before = stage.rows("SELECT * FROM cart ORDER BY id")
    sent = httpx.get(f"{stage.instance.url}/metrics").text
    assert seckill("orders", "replay", "--sku", "default", "--since", "0", env=stage.leading).returncode == 0
    eventually(lambda: delivered(stage) > delivered_in(sent) + len(DAYS), "all events come again")
    eventually(stage.agrees, "the shop has heard nothing new", 120)
    assert stage.rows("SELECT * FROM cart ORDER BY id") == before

    orders = stage.orders()
    paid = [one for one in orders if one["payment_ref"]]
    assert len(orders) == len(DAYS)
    assert sorted(stage.rows("SELECT * FROM shipment")) == sorted(
        (one["ref"], "default", one["quantity"]) for one in paid
    )
    stock = httpx.get(f"{stage.instance.url}/stock").json()
    [(shipped,)] = stage.rows("SELECT sum(quantity) FROM shipment")
    assert (stock["stock"], stock["held"], stock["lucky"]) == (STOCK - shipped, 0, shipped)
    payments = httpx.get(f"{stage.provider.url}/payments").json()
    kept = {
        one["id"]: sum(paid["amount"] - paid["given_back"] for paid in payments if paid["hold"] == one["id"])
        for one in orders
    }
    assert dict(stage.rows("SELECT hold, paid FROM cart")) == kept
    assert any(0 < money < PRICE for money in kept.values())  # a part was given back
    eventually(lambda: not stage.rows("SELECT * FROM refund WHERE NOT done"), "all refunds are made")
    given_back = {one["ref"] for one in payments if one["given_back"] == one["amount"]}
    of_orders = [paid for one in orders for paid in one["payments"]]
    assert given_back == {paid["ref"] for paid in of_orders if paid["given_back"] == paid["amount"]}


@pytest.mark.slow
def test_a_cart_waits_in_line(stage: Stage) -> None:
    """Its buyer reads the place, gets one mail when it is their turn, and pays from there; who leaves ships nothing."""
    held, next_one, last = (str(uuid.uuid4()) for _ in range(3))
    hold = stage.begin(held, STOCK)
    assert stage.put(str(uuid.uuid4()), 1) == {"outcome": "sold_out"}
    for number, cart in enumerate((next_one, last), 1):
        with stage.lost_answer():
            answer = stage.put(cart, 1, wait=True)
        assert (answer["outcome"], answer["place"]["number"], answer["place"]["held"]) == ("waiting", number, STOCK)
    httpx.post(f"{stage.instance.url}/holds/{hold}/cancel", timeout=30).raise_for_status()
    eventually(lambda: stage.rows("SELECT cart FROM mail ORDER BY rowid") == [(next_one,), (last,)], "both get a mail")
    assert stage.put(held, STOCK) == {"outcome": "cancelled", "place": None}
    stage.play("pay", stage.begin(next_one, 1, wait=True))
    eventually(lambda: stage.rows("SELECT * FROM shipment") == [(next_one, "default", 1)], "it is shipped")


def delivered_in(metrics: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith("seckill_events_total") and "delivered" in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def delivered(stage: Stage) -> float:
    return delivered_in(httpx.get(f"{stage.instance.url}/metrics").text)


def test_what_is_not_signed_is_refused(stage: Stage) -> None:
    """A forged event changes nothing."""
    forged = {"type": "order.confirmed", "data": {"ref": "c", "number": 1, "state": "confirmed", "payment_ref": "p"}}
    assert httpx.post(f"{stage.url}/events", json=forged).status_code == 400
    assert stage.rows("SELECT * FROM shipment") == []
